"""Output for operators: tables, with the longest names too, and events of a running instance."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import pytest
from rich.cells import cell_len

import gitboot.cli.commands
from gitboot.child_processes import spawn
from gitboot.cli.main import Exit
from gitboot.cli.terminal import (
    LogFormat,
    echo_wrapped,
    format_table,
    format_time,
    print_event,
    show_downloads,
    show_growing_progress,
    show_progress,
)
from gitboot.standard_streams import style
from gitboot.status.conditions import Event
from tests.helpers.disks_and_terminals import COLUMNS, read_to_end, show_events, terminal
from tests.helpers.fleets import document, image, policy, profile
from tests.helpers.instance_with_bmcs import Rack, run_command

HEADER = ("SERVER", "SEEN", "RECORDED")


def lines(*rows: tuple[str, str, str]) -> list[str]:
    return click.unstyle(format_table(HEADER, rows, shrinkable=(2, 1))).splitlines()


def test_a_table_that_fits_is_shown_whole() -> None:
    assert lines(("web01", "x" * 40, "y" * 50))[1] == f"web01   {'x' * 40}  {'y' * 50}"


def test_shrinkable_columns_are_shortened_from_the_first_until_the_table_fits() -> None:
    assert lines(("web01", "x" * 60, "y" * 50))[1] == f"web01   {'x' * 60}  {'y' * 29}…"


def test_a_shortened_cell_keeps_its_colour() -> None:
    shown = format_table(HEADER, [("web01", style("x" * 99, fg="red"), "y")], shrinkable=(1,))
    assert style(f"{'x' * 81}…", fg="red") in shown
    assert max(map(len, click.unstyle(shown).splitlines())) == 100


def test_columns_that_cannot_be_shortened_are_wrapped_and_names_last() -> None:
    rows = [("web01", "a long reason " * 8, "y"), ("web02", "none", "z")]
    shown = click.unstyle(format_table(HEADER, rows)).splitlines()
    assert max(map(len, shown)) <= 100
    assert [line.split()[0] for line in shown] == ["SERVER", "web01", "reason", "web02"]
    assert shown[2].startswith(" " * 8 + "reason") and "a long reason a long" in shown[1]
    header, first, second = lines(("n" * 120, "x" * 20, "y" * 30))
    assert (first, second) == (f"{'n' * 84}  xxx…  yyyyyyy…", "n" * 36)
    assert header.split() == list(HEADER)


def test_a_kind_and_its_name_are_wrapped_between_the_two() -> None:
    rows = [("web01", f"one {'x' * 30} two", f"BootPolicy/{'control-plane' * 4}")]
    shown = click.unstyle(format_table(HEADER, rows)).splitlines()
    assert max(map(len, shown)) <= 100
    assert shown[1].endswith(" two  BootPolicy/") and shown[2].strip() == "control-plane" * 4


def test_no_phase_has_the_colour_of_a_warning() -> None:
    shown = format_table(HEADER, [("Network", "Maintenance", "no plan"), ("web01", "Disk", "x")])
    for phase, colour in (("Network", "cyan"), ("Maintenance", "magenta"), ("no plan", "bright_black")):
        begin, _, _ = style("|", fg=colour).partition("|")
        assert f"{begin}{phase}" in shown
    assert style("|", fg="yellow").partition("|")[0] not in shown


def test_words_and_times_are_wrapped_only_if_nothing_else_is_left_to_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    header, row = ("SERVER", "PHASE", "REASON", "FROM"), ("web01", "Maintenance", "a long reason", "2026-12-24 08:00Z")
    for columns, first in {
        54: "web01   Maintenance  a long reason  2026-12-24 08:00Z",
        47: "web01   Maintenance  a long   2026-12-24 08:00Z",
        40: "web01   Maintenance  a long  2026-12-24",
    }.items():
        monkeypatch.setenv("COLUMNS", str(columns))
        assert click.unstyle(format_table(header, [row])).splitlines()[1] == first
    monkeypatch.setenv("COLUMNS", "40")
    folded = format_table(("N" * 20, "PHASE"), [("n" * 60, "Maintenance")]).splitlines()[1:3]
    assert [line.split()[-1] for line in folded] == [style(each, fg="magenta") for each in ("Maint", "enanc")]


def test_the_optional_column_is_omitted_if_shortening_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        rows = [("web01", "Pxe", "x" * 30)]
        return click.unstyle(
            format_table(("SERVER", "METHOD", "SEEN"), rows, optional=1, shrinkable=(2,))
        ).splitlines()[1]

    assert shown(60) == f"web01   Pxe     {'x' * 30}"
    monkeypatch.setattr("gitboot.cli.terminal._MIN_COLUMNS", 20)
    assert shown(27) == f"web01   Pxe     {'x' * 10}…"
    assert shown(26) == f"web01   {'x' * 17}…", "and what is omitted leaves room"


@pytest.mark.parametrize(
    ("instant", "shown"),
    [
        ("2027-03-06T21:00:00Z", "2027-03-06 21:00Z"),
        ("2027-03-06T21:00:09Z", "2027-03-06 21:00:09Z"),
        ("2026-11-29T23:55:00.269134Z", "2026-11-29 23:55Z"),
    ],
)
def test_a_time_is_short(instant: str, shown: str) -> None:
    assert format_time(instant) == shown


def test_a_wrapped_cell_keeps_its_colour() -> None:
    shown = format_table(HEADER, [("web01", style("red " * 40, fg="red"), "y")])
    assert shown.count(style("red " * 19 + "red", fg="red")) == 2


def test_wide_letters_count_as_two_columns_and_are_not_split() -> None:
    rows = [("机架" * 5, "日本語" * 20, "e\u0301" * 10), ("web02", "b", "c")]
    shown = click.unstyle(format_table(HEADER, rows)).splitlines()
    assert max(map(cell_len, shown)) <= 100
    assert (
        "".join(line[10:].split()[0] if at else line.split()[1] for at, line in enumerate(shown[1:3])) == "日本語" * 20
    )
    assert [line.rindex("c") for line in shown[-1:]] == [cell_len(shown[1][: shown[1].index("e\u0301")])]


@pytest.mark.parametrize("columns", [80, 40])
def test_a_narrow_terminal_has_narrower_tables(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = format_table(
        ["SOMETHING"] * 6, [["w" * 63, "两" * 30, "a b c " * 9, "d/e" * 20, "-", "x"]], below=["    where"]
    )
    assert max(map(cell_len, click.unstyle(long).splitlines())) == columns
    assert long.endswith("\n    where")


def test_an_empty_header_is_not_printed_and_an_indented_table_fits_too() -> None:
    shown = format_table(("", ""), [("field", "value " * 40)], indent=4).splitlines()
    assert shown[0].startswith("    field  value") and 90 < max(map(len, shown)) <= 100


def test_a_progress_bar_is_shown_only_on_a_terminal_and_removed_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("BMCs", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
    with terminal() as sent, show_growing_progress("BMCs") as (of, advance):
        of(3)
        advance(2)
    assert re.search(r"BMCs.* 2/3 ", click.unstyle(sent[0]))
    assert sent[0].endswith("\x1b[2K")  # a terminal ends the line with this


@pytest.mark.parametrize("columns", [80, 100])
def test_a_download_bar_shows_bytes_of_one_file_after_the_other(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with show_downloads() as bar:
        bar.begin("vmlinuz", 5)
        bar.advance(5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("COLUMNS", str(columns))
    with terminal() as sent, show_downloads() as bar:
        bar.begin("first", None)
        bar.advance(100)
        bar.begin(f"\x1b[31m{'n' * 40}", 4 << 20)
        bar.advance(3 << 20)
    shown = click.unstyle(sent[0])
    assert re.search(r"\\u001b\[31mn+… .* 3\.0/4\.0 MiB ", shown) and "\x1b[31m" not in shown
    assert all(len(line) <= columns for line in re.split(r"[\r\n]|\x1b\[\dK", shown)), shown


def test_a_message_is_wrapped_between_words_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "  " + "a long reason " * 6 + "\n\nother"
    echo_wrapped(text, err=True)
    assert capsys.readouterr().err == f"{text}\n"
    with terminal() as sent:
        echo_wrapped(text, err=True, hanging_indent="    ")
    first, second, third, *rest = sent[0].split("\n")
    assert (first, second, third) == (
        "  a long reason a long reason a long",
        "      reason a long reason a long reason",
        "      a long reason",
    )
    assert rest == ["", "other", ""]


@pytest.mark.parametrize("words", ["explain GB2018", "explain GB9999", "validate"])
def test_explanations_errors_and_problems_are_wrapped_on_a_terminal(words: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("apiVersion: gitboot.dev/v1\nkind: Fleet\nmetadata: {name: a}\nspec: {}\n")
    lines = run_on_terminal(*words.split(), folder=tmp_path)
    assert len(lines) > 1 and max(map(len, lines)) <= COLUMNS, lines


def run_on_terminal(*words: str, folder: Path) -> list[str]:
    """Run gitboot in a folder on a terminal, and return the lines that it prints."""
    screen, written = os.openpty()
    tty.setraw(written)
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "gitboot", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=written, stdout=written, stderr=written):
        os.close(written)
        return click.unstyle(read_to_end(screen).decode()).splitlines()


SERVERS: Final = tuple(f"{'s' * 61}-{number}" for number in range(2))  # 63 letters each
IMAGE, OTHER = (f"flatcar-{'i' * 53}-{number}" for number in (1, 2))
STREAM, PROFILE, POLICY = ("t" * 63, "p" * 63, "b" * 63)

POOL: Final = (
    image(IMAGE),
    image(OTHER),
    document("ImageStream", STREAM, f"current: {IMAGE}, rollout: {{image: {OTHER}, percent: 50}}"),
    profile(PROFILE, f"stream: {STREAM}", f"vars: {{console: '{'机架' * 60}', path: {'a/long/one/' * 20}}}"),
    policy(POLICY, boots=PROFILE, often="Once"),
)


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A rack with servers, one of which has an outdated installation, and unknown machines."""
    with Rack(tmp_path_factory.mktemp("rack"), pool=POOL) as made:
        for name in SERVERS:
            made.add(name, provision=1)
        made.push()
        made.once(*made.spool_options, records="fresh")
        made.blades[SERVERS[0]].provision = 2
        made.push("A subject that says at length why this server is to be installed once more " * 2)
        made.once(*made.spool_options)
        yield made


COMMANDS: Final = {  # by the module that prints it, and a word where it prints several tables
    "plan": "plan {work} --records fresh",
    "plan --timeline": "plan {work} --timeline {server}",
    "plan explain": "explain {server} --path {work}",
    "plan explain KIND": "explain Server",
    "images": "images {work} --records fresh",
    "new": "new image --path {work}",
    "history": "history {server} --path {work}",
    "diff": "diff --path {work} HEAD~1..HEAD",
    "artifacts": "artifacts verify {work} --assets {folder}",
    "status": "status --state {state}",
    "provisioning_records": "records show --state {state}",
    "bmc": "bmc get --state {state} --credentials {folder}/credentials",
    "bmc_power": "bmc power get --state {state} --credentials {folder}/credentials",
    "verify_mirror": "verify-mirror --tree {folder}/output {folder}/empty",
}
ELSEWHERE: Final = {  # their rows need other systems: the same function with the same bounds, tested where those are
    "bmc_enroll": "BMCs of a network",
    "bmc_scan": "BMCs of a network",
    "compare_old_system": "another provisioning system",
    "instance": "machines that no document describes",
    "secret": "an endpoint that gives secrets",
}


# How often each module calls `format_table`. If you add a table, add the command that prints it to COMMANDS, or add
# the module to ELSEWHERE.
TABLES: Final = {
    "artifacts": 3,
    "bmc": 1,
    "bmc_enroll": 1,
    "bmc_power": 2,
    "bmc_scan": 1,
    "compare_old_system": 1,
    "diff": 1,
    "history": 2,
    "images": 2,
    "instance": 1,
    "new": 1,
    "plan": 5,
    "provisioning_records": 2,
    "secret": 1,
    "status": 1,
    "verify_mirror": 2,
}


def test_every_module_that_prints_a_table_is_tested_and_has_no_other_tables() -> None:
    folder = Path(gitboot.cli.commands.__path__[0])
    calls = {
        file.stem: len(re.findall(r"\bformat_table(?=\()|\(\s*format_table,", file.read_text()))
        for file in folder.glob("*.py")
    }
    assert {module: count for module, count in calls.items() if count} == TABLES
    assert TABLES.keys() == {each.partition(" ")[0] for each in COMMANDS} | ELSEWHERE.keys()


@pytest.mark.parametrize("columns", [100, 60])
@pytest.mark.parametrize("printer", COMMANDS)
def test_no_table_is_wider_than_the_terminal(
    rack: Rack, printer: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    (rack.folder / "empty").mkdir(exist_ok=True)
    words = {"work": rack.repository.work, "server": SERVERS[0], "state": rack.state, "folder": rack.folder}
    done = run_command(*(word.format(**words) for word in COMMANDS[printer].split()))
    lines = [click.unstyle(line) for line in done.out.splitlines()]
    assert len(lines) > 1, done
    wide = [line for line in lines if cell_len(line) > columns and not _COPIED.fullmatch(line)]
    assert not wide, "\n".join(wide)


_COPIED: Final = re.compile(
    r"\s*((to see this review again, run: )?gitboot .*|(Gitboot-Ack:|digest) .*|\S+)"
)  # what helps when it is copied whole


FORMAT: Final = "GITBOOT_LOG_FORMAT"
LONG: Final = "11 servers have no credentials here: ams2-w01, ams2-w02,\nams2-w03 and 8 more"
EVENT: Final = Event(
    at=datetime(2026, 12, 1, 22, 0, 7, 250_000, UTC), type="Accepted", message=LONG, facts={"commit": "c0ffee"}
)


@pytest.fixture(autouse=True)
def auto_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.AUTO)


def test_on_a_terminal_each_event_is_one_line_that_fits() -> None:
    (line,) = click.unstyle(show_events(EVENT)).splitlines()
    assert line.startswith("22:00:07 Accepted           11 servers have no cred")
    assert len(line) == COLUMNS and line.endswith("…")


def test_on_a_terminal_events_are_json_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.JSON)
    assert json.loads(click.unstyle(show_events(EVENT)))["message"] == LONG


def test_in_a_file_events_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_event(EVENT)
    told = json.loads(capsys.readouterr().err)
    assert told == {
        "at": "2026-12-01T22:00:07.250000Z",
        "type": "Accepted",
        "message": LONG,
        "commit": "c0ffee",
        "level": "info",
    }


def test_in_a_file_events_are_whole_lines_of_text_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.TEXT)
    print_event(EVENT)
    print_event(Event(at=EVENT.at, type="Held", message="it waits", facts={}, warning=True))
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"2026-12-01T22:00:07.250000Z Accepted           {' '.join(LONG.split())}"
    assert second == "2026-12-01T22:00:07.250000Z Held               warning: it waits"


def test_the_log_format_option_applies_to_the_events_of_a_command(tmp_path: Path) -> None:
    done = run_command("run", tmp_path / "nowhere.git", "--state", tmp_path / "s", "--out", tmp_path / "o",
                 "--once", "--log-format", "text")  # fmt: skip
    assert os.environ[FORMAT] == "text" and done.code == Exit.USAGE
    assert (
        done.err == f"gitboot: no Git repository at {tmp_path}/nowhere.git; check the path\n"
        and list(tmp_path.iterdir()) == []
    )
    run_command("run", tmp_path / "nowhere.git", "--state", tmp_path / "s", "--out", tmp_path / "o")
    assert list(tmp_path.iterdir()) == [], "nor is anything made without --once"
    assert "Invalid value for '--log-format'" in run_command("run", "x", "--log-format", "xml").err


def test_a_started_process_writes_events_in_the_same_format_and_sees_no_other_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.TEXT)
    monkeypatch.setenv("GITBOOT_OUT", "/somewhere")
    output, _ = spawn(["env"], stdout=subprocess.PIPE).communicate()
    assert [line for line in output.decode().splitlines() if line.startswith("GITBOOT_")] == [f"{FORMAT}=text"]
