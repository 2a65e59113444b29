"""Options of commands, and keys of the configuration file that are no options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pwd import getpwnam
from typing import Final

import click
import pytest

from gitboot.cli.main import Exit, cli
from gitboot.cli.options import (
    InstantType,
    Setting,
    check_reason,
    format_key,
    is_placeholder_reason,
    list_keys,
    list_variables,
    read_operator_name,
)
from gitboot.text import parse_duration
from scripts.reference import configuration_page
from tests.helpers.cases import for_each
from tests.helpers.fleets import write_configuration
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.mirrors import BOUND

UNNAMED: Final = 4_000_000_000  # a user that no machine has


def test_a_user_without_a_name_is_shown_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without a user name, `gitboot records begin` ended with a traceback."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: UNNAMED)
    assert read_operator_name() == f"uid {UNNAMED}"


def test_a_user_is_shown_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert read_operator_name() == "ada"


def test_a_name_or_a_reason_that_is_not_utf_8_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python decodes such bytes to surrogates, which SQLite and PostgreSQL reject."""
    typed = os.fsdecode(b"d\xe9faut")
    monkeypatch.setenv("LOGNAME", typed)
    suspend = command("suspend")
    [option] = [each for each in suspend.params if each.name == "reason"]
    assert (read_operator_name(), check_reason(click.Context(suspend), option, typed)) == (r"d\udce9faut",) * 2


@pytest.mark.parametrize(
    "typed_line",
    [
        "stop-installs",
        "suspend --until 2030-01-01T00:00:00Z",
        "approve 0123 --guard maxReinstalls",
        "records set web01 provisioned",
        "bmc resolve web01 --not-set",
    ],
)
@pytest.mark.parametrize("reason", ["", "  "])
def test_a_blank_reason_is_rejected(tmp_path: Path, typed_line: str, reason: str) -> None:
    done = run_command(*typed_line.split(), "--state", tmp_path, "--reason", reason)
    assert done.code == Exit.USAGE
    assert "the reason is empty: write why you are making this change" in " ".join(done.err.split())


PLACEHOLDERS: Final = [
    *(
        "…",
        "...",
        "'…'",
        "“…”",
        '"..."',
        "....",
        "-",
        "?",
        "$",
        "TEXT",
        "text",
        "REASON",
        "<reason>",
        "<why you do this>",
    ),
    *(
        "{reason}",
        "[reason]",
        "TODO",
        "todo:",
        "FIXME",
        "TBD",
        "xxx",
        "Your reason here",
        "your_reason",
        "$REASON",
        "…\n",
    ),
]
REASONS: Final = [
    "INC-4711",
    "x",
    "[INC-4711]",
    "network upgrade",
    "Waiting for the vendor…",
    "更换磁盘",
    "TODO-17 is done",
    "5",
]


@for_each("reason", PLACEHOLDERS)
def test_finding_r10_a_placeholder_is_no_reason(reason: str) -> None:
    for command, option in TAKES_REASON:
        done = run_command(*command.split(), "--state", "nowhere", option, reason)
        said = " ".join(done.err.split())
        assert (done.code, "is a placeholder from an example" in said) == (Exit.USAGE, True), done


@for_each("reason", REASONS)
def test_finding_r10_a_reason_is_not_taken_for_a_placeholder(reason: str) -> None:
    assert not is_placeholder_reason(reason)


TAKES_REASON: Final = [
    ("stop-installs", "--reason"),
    ("suspend --until 2h", "--reason"),
    ("approve 01234567 --all-guards", "--reason"),
    ("records set web01 provisioned", "--reason"),
    ("bmc resolve web01 --not-set", "--reason"),
    ("secret fetches web01", "--confirm"),
]


def test_finding_r10_each_option_for_a_reason_refuses_placeholders() -> None:
    def find(command: click.Command) -> Iterator[click.Parameter]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from find(found)
        yield from (each for each in command.params if each.name == "reason" or each.metavar == "REASON")

    found = list(find(cli))
    assert len(found) > 10
    assert {each.callback for each in found} == {check_reason}


@for_each(
    ("text", "duration"),
    [
        ("2h", timedelta(hours=2)),
        ("30m", timedelta(minutes=30)),
        ("1d12h", timedelta(days=1, hours=12)),
        ("1d 12h", timedelta(days=1, hours=12)),
        ("1w2d3h4m5s", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5)),
        ("-15m", timedelta(minutes=-15)),
        ("+90s", timedelta(seconds=90)),
        *((text, None) for text in ("", "2", "h", "+", "12h1d", "2H", "2.5h", "٢h", "2h-1m", "2026-01-01T00:00:00Z")),
    ],
)
def test_finding_r13_a_duration_is_read(text: str, duration: timedelta | None) -> None:
    assert parse_duration(text) == duration


@for_each(("is_past", "sign"), [(True, -1), (False, 1)])
def test_finding_r13_a_duration_counts_from_now(is_past: bool, sign: int) -> None:
    for text, hours in (("2h", 2 * sign), ("+2h", 2), ("-2h", -2)):
        before = datetime.now(UTC).replace(microsecond=0)
        found = InstantType(is_past=is_past).convert(text, None, None)
        assert before <= found - timedelta(hours=hours) <= datetime.now(UTC)
    with pytest.raises(click.BadParameter, match="is too long"):
        InstantType(is_past=is_past).convert("99999999999d", None, None)
    with pytest.raises(click.BadParameter, match="2h, 30m, 1d12h"):
        InstantType(is_past=is_past).convert("tomorrow", None, None)


MOST_OPTIONS = 45
START = ("run", "nowhere", "--out", "o", "--state", "s")


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def list_settings(name: str) -> dict[str, Setting]:
    return {key: each for key, each in list_keys(command(name)).items() if isinstance(each, Setting)}


def test_run_has_at_most_45_options() -> None:
    run = command("run")
    shown = [each for each in run.get_params(click.Context(run)) if isinstance(each, click.Option) and not each.hidden]
    assert "--help" in {option for each in shown for option in each.opts}
    assert len(shown) <= MOST_OPTIONS, "make the new one a setting: docs/adr/0064-commands-and-configuration.md"


@for_each("name", ["run", "serve"])
def test_the_reference_has_a_row_for_each_key_and_the_help_has_no_setting(name: str) -> None:
    section = configuration_page().partition(f"## gitboot {name}: settings")[2].split("## gitboot serve: settings")[0]
    shown, _, options = section.partition(f"## gitboot {name}: options")
    help = command(name).get_help(click.Context(command(name)))
    assert "docs/reference/configuration.md" in help
    for parameter in list_keys(command(name)).values():
        key, is_setting = format_key(parameter), isinstance(parameter, Setting)
        row = next(line for line in (shown if is_setting else options).splitlines() if line.startswith(f"| `{key}` |"))
        assert all(f"`{variable}`" in row for variable in list_variables(parameter))
        assert (f"--{key} " in help) is not (is_setting or isinstance(parameter, click.Argument))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--bmc-parallel", "5"),
            "--bmc-parallel is a setting in the configuration file: write bmc-parallel = 5",
        ),
        (("--step-minutes=0.5",), "write step-minutes = 0.5 to a file, and pass this file with --config"),
        (("--forge-name", "a b"), 'write forge-name = "a b" to a file'),
        (
            ("--trusted-proxies", "10.0.0.1", "--trusted-proxies", "::1"),
            'write trusted-proxies = ["10.0.0.1", "::1"]',
        ),
    ],
)
def test_a_setting_on_the_command_line_is_rejected_with_the_line_to_write_in_the_file(
    arguments: tuple[str, ...], line: str
) -> None:
    done = run_command(*START, *arguments)
    assert (done.code, line in " ".join(done.err.split())) == (Exit.USAGE, True), done


def test_a_setting_on_the_command_line_names_the_file_that_is_used() -> None:
    _, file = config = write_configuration(bmc_failures=3)
    done = run_command(*START, *config, "--bmc-parallel", "5")
    assert f"write bmc-parallel = 5 to {file}" in " ".join(done.err.split())


@for_each("key", sorted(list_settings("run")))
def test_a_variable_of_a_setting_takes_precedence_over_the_file(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = list_settings("run")[key]
    assert setting.name is not None
    numbers = isinstance(setting.type, click.types.IntParamType | click.types.FloatParamType)
    written, varied = (7, "8") if numbers else ("x", "y")
    if setting.is_flag:
        written, varied = True, "false"
    config = write_configuration(**{key: [written] if setting.multiple else written})

    def value() -> object:
        context = command("run").make_context("run", [*START[1:], *config], auto_envvar_prefix="GITBOOT")
        found = context.params[setting.name or ""]
        if setting.is_flag:
            return found
        return str(found) if isinstance(found, Path) else found

    assert value() == ((written,) if setting.multiple else written)
    monkeypatch.setenv(list_variables(setting)[0], varied)
    expected = False if setting.is_flag else int(varied) if numbers else varied
    assert value() == ((expected,) if setting.multiple else expected)


def test_a_worker_gets_its_settings_from_the_process_that_starts_it(tmp_path: Path) -> None:
    given = {"firmware_ciphers": False, "idle_connections": 3, "operators_hosts": ["a", "b"], "trusted_proxies": []}
    handed = json.dumps(given)
    arguments = ["--out", str(tmp_path), "--settings", handed]
    context = command("serve").make_context("serve", arguments, auto_envvar_prefix="GITBOOT")
    found = {name: context.params[name] for name in json.loads(handed)}
    assert found == {**given, "operators_hosts": ("a", "b"), "trusted_proxies": ()}


def test_two_values_of_an_option_come_from_a_list_of_the_file_or_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def values(*arguments: str) -> list[object]:
        context = command("run").make_context("run", [*START[1:], *arguments], auto_envvar_prefix="GITBOOT")
        return [context.params[name] for name in ("operators_tls", "git_ssh", "forge")]

    assert values() == [None, None, None]
    named = write_configuration(operators_tls=["a", "b"], git_ssh=["c", "d"], forge=["gitea=https://e.test/f/g", "h"])
    expected = [(Path("a"), Path("b")), (Path("c"), Path("d")), ("gitea=https://e.test/f/g", Path("h"))]
    assert values(*named) == expected
    monkeypatch.setenv("GITBOOT_OPERATORS_TLS", "a:b")
    monkeypatch.setenv("GITBOOT_GIT_SSH", "c:d")
    monkeypatch.setenv("GITBOOT_FORGE", "gitea=https://e.test/f/g h")
    assert values() == expected
    monkeypatch.delenv("GITBOOT_OPERATORS_TLS")
    done = run_command(*START, *write_configuration(operators_tls=["a"]))
    said = " ".join(done.err.split())
    assert (done.code, "for operators-tls in " in said, "Takes 2 values but 1 " in said) == (64, True, True), done


def test_a_state_directory_of_another_user_gets_a_hint_with_this_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may create a directory of another user")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, getpwnam("nobody").pw_uid, -1)
    command = (*BOUND, sys.executable, "-m", "gitboot", "status", "--state", str(state))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert f"You may not read {state}. Use `runuser -u nobody -- gitboot …`" in done.stderr
