"""The commands as their users type them: what they print, what they exit with, what they leave alone."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
import yaml
from pygit2 import LIBGIT2_VERSION

from gitboot import __version__, errors
from gitboot.cli.main import Exit, cli, find_exit_code
from gitboot.cli.terminal import format_time
from gitboot.jsonio import format_instant
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.model.boot_image import BootImage
from gitboot.model.json_schema import KINDS, list_schema_fields
from gitboot.model.scalars import parse_uuid
from gitboot.publish.manifest import MANIFEST
from gitboot.resolve import provisioning_record
from gitboot.resolve.provisioning_record import Record, encode_records
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.documentation import ROOT
from tests.helpers.fleets import (
    SEED,
    image,
    maintenance,
    make_mac,
    make_uuid,
    name_ledger,
    policy,
    server,
    store_credentials,
)
from tests.helpers.forked_commands import RunningCommand, run_forked
from tests.helpers.instance_with_bmcs import CommandResult
from tests.helpers.instance_with_bmcs import run_command as gitboot
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Instance, Repository, create_ledger, eventually, git, running

NOON = "2026-11-20T12:00:00Z"
ENTRY = f"v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"

FLEET = (
    SEED[0],
    server("web01", "role: web, site: fra1", "provision: 1"),
    server("web02", "role: web, site: ams2"),
    *SEED[2:6],
    policy("web", "{matchLabels: {role: web}}", "kernelArguments: [quiet], vars: {console: ttyS1}", often="Once"),
    maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01]}"),
)
TIE = policy("tie", "{matchLabels: {role: web}}")


def parse_cells(done: CommandResult) -> list[list[str]]:
    """Return the cells of a table below its header, without the text after the table."""
    lines = (line for line in done.out.splitlines()[1:] if not line.startswith(" "))
    return [re.split(r"\s{2,}", line) for line in lines]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder)
    return folder


def write_fleet(folder: Path, *more: str) -> None:
    for number, text in enumerate((*FLEET, *more)):
        (folder / f"{number:02}.yaml").write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The same in Git, but for the maintenance: `gitboot run` lives by the real clock."""
    made = Repository.create(tmp_path_factory.mktemp("git"))
    made.push({f"{number:02}.yaml": text for number, text in enumerate(FLEET[:-1])})
    return made


# Help

COMMANDS = cli.list_commands(click.Context(cli))


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


MOST_COMMANDS, MOST_SUBCOMMANDS = 35, 33  # 2fefe59 had 38 and 31


def _subcommands(group: click.Group) -> list[str]:
    found: list[str] = []
    for name in group.list_commands(click.Context(group)):
        each = group.get_command(click.Context(group), name)
        found += _subcommands(each) if isinstance(each, click.Group) else [name]
    return found


def test_adr_0064_limits_the_number_of_commands_and_names_the_user_and_the_occasion_of_each() -> None:
    groups = [each for each in map(command, COMMANDS) if isinstance(each, click.Group)]
    assert len(COMMANDS) <= MOST_COMMANDS
    assert sum(len(_subcommands(each)) for each in groups) <= MOST_SUBCOMMANDS
    text = (ROOT / "docs" / "adr" / "0064-commands-and-configuration.md").read_text()
    assert re.findall(r"^ {4}([a-z-]+) {2,}\S+(?: \S+)* {2,}\S", text, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("width", [80, 100])
def test_help_has_each_command_with_the_first_line_of_its_help_on_one_line(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run_forked("--help").stdout.splitlines()
    firsts = {name: str(command(name).help).partition("\n")[0] for name in COMMANDS}
    assert {f"  {name:<18}  {first}" for name, first in firsts.items()} <= set(lines)
    assert max(map(len, firsts.values())) <= 60
    commands = [line.split()[0] for line in lines if re.match(r"  [a-z][a-z-]* +[A-Z].*\.$", line)]
    assert commands == COMMANDS and max(map(len, lines)) < width
    assert run_forked("-h").stdout.splitlines() == lines


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_describes_its_purpose_and_each_option(name: str) -> None:
    done = gitboot(name, "--help")
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (Exit.FINE, "")
    assert max(map(len, done.out.splitlines())) <= 100
    for parameter in command(name).params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help and parameter.help.endswith("."), parameter.name
            assert " ".join(parameter.help.split()) in words, parameter.name
            assert any(option in words for option in parameter.opts)
        elif isinstance(parameter, click.Argument) and not isinstance(parameter.type, click.Choice):
            shown = (parameter.metavar or str(parameter.name).upper()).strip("[]").split("|")
            assert all(words.count(each) >= 2 for each in shown), parameter.name  # in the usage, and in the text


def _leaf_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        each = group.get_command(click.Context(group), name)
        if isinstance(each, click.Group):
            yield from _leaf_commands(each, (*path, name))
        elif each is not None:
            yield (*path, name), each


@pytest.mark.parametrize(("path", "leaf"), [pytest.param(*each, id=" ".join(each[0])) for each in _leaf_commands(cli)])
def test_help_of_a_command_lists_all_of_its_options(path: tuple[str, ...], leaf: click.Command) -> None:
    words = gitboot(*path, "--help").out.replace(",", " ").split()
    options = (each for each in leaf.params if isinstance(each, click.Option) and not each.hidden)
    assert [each.opts for each in options if not any(option in words for option in each.opts)] == []


@pytest.mark.parametrize(("path", "leaf"), [pytest.param(*each, id=" ".join(each[0])) for each in _leaf_commands(cli)])
def test_help_of_a_command_has_an_example_that_works_and_exit_codes(path: tuple[str, ...], leaf: click.Command) -> None:
    text = leaf.get_help(click.Context(leaf, info_name=" ".join(path), max_content_width=80, terminal_width=80))
    example = text.partition("Example:\n")[2].partition("\n\n")[0].replace("\\\n", " ")
    assert "Exit codes:\n" in text and max(map(len, text.splitlines())) <= 80
    words = shlex.split(example.partition(" > ")[0].removeprefix('  eval "$(').removesuffix(')"'))
    assert words[: len(path) + 1] == ["gitboot", *path]
    leaf.make_context(" ".join(path), words[len(path) + 1 :], resilient_parsing=True)
    options = {option for each in leaf.params for option in each.opts}
    assert {word for word in words if word.startswith("-")} <= options


def test_each_command_with_a_state_directory_reads_the_variable_and_names_it_in_its_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITBOOT_STATE", "/from/the/variable")
    silent, read = [], {}
    for path, leaf in _leaf_commands(cli):
        options = [each for each in leaf.params if isinstance(each, click.Option) and each.name == "state"]
        if options:
            context = click.Context(cli, info_name="gitboot")
            for name in path[:-1]:
                assert isinstance(context.command, click.Group)
                group = context.command.get_command(context, name)
                assert group is not None
                context = click.Context(group, info_name=name, parent=context, **group.context_settings)
            read[path] = leaf.make_context(path[-1], [], parent=context, resilient_parsing=True).params["state"]
            silent += [path for each in options if "the variable GITBOOT_STATE" not in (each.help or "")]
    assert silent == [] and len(read) > 30 and set(read.values()) == {Path("/from/the/variable")}


def test_version_prints_the_versions_of_gitboot_python_and_libgit2() -> None:
    done = gitboot("--version")
    expected = f"gitboot {__version__} (Python {platform.python_version()}, libgit2 {LIBGIT2_VERSION})\n"
    assert (done.code, done.out) == (Exit.FINE, expected)


def test_a_fleet_is_named_by_its_path_alone_and_once(fleet: Path, tmp_path: Path) -> None:
    assert gitboot("validate", "--path", fleet) == gitboot("validate", fleet)
    done = gitboot("validate", fleet, "--path", tmp_path)
    assert (done.code, f"specified twice, as {fleet} and as --path {tmp_path}" in done.err) == (Exit.USAGE, True)
    done = gitboot("explain", "web01", fleet, "--path", fleet)
    assert (done.code, f"to set the fleet's path, use --path {fleet}" in done.err) == (Exit.USAGE, True), done


@pytest.mark.parametrize(
    ("command_line", "old", "near"),
    [
        ("run x --rev x --output o --state s", "--output", "--out"),
        ("run x --reference x --out o --state s", "--reference", "Did you mean '--rev'?"),
        ("run x --records fresh --out o --state s", "--records", "Did you mean 'gitboot records begin'?"),
        ("run x --ssh-key k --out o --state s", "--ssh-key", "Did you mean '--git-ssh'?"),
        ("serve --out o --forward-to x", "--forward-to", "Did you mean '--ledger'?"),
        ("bmc resolve web01 --armed", "--armed", "Did you mean '--consumed'?"),
        ("bmc resolve web01 --not-armed", "--not-armed", "Did you mean '--not-set'?"),
        ("serve --output o", "--output", "--out"),
        ("doctor --output o", "--output", "--out"),
        ("secret encrypt s --to-keys k --out f", "--out", "Error: No such option '--out'."),
        ("plan x --output json", "--output", "Did you mean '--format'?"),
    ],
)
def test_an_option_of_an_earlier_version_is_unknown_and_its_replacement_is_named(
    command_line: str, old: str, near: str
) -> None:
    done = gitboot(*command_line.split())
    assert (done.code, f"No such option '{old}'" in done.err, near in done.err) == (Exit.USAGE, True, True), done


@pytest.mark.parametrize(
    ("variable", "successor"),
    [
        ("GITBOOT_OUTPUT", "GITBOOT_OUT"),
        ("GITBOOT_RECORDS", "gitboot records begin"),
        ("GITBOOT_REFERENCE", "GITBOOT_REV"),
        ("GITBOOT_SSH_KEY", "GITBOOT_GIT_SSH"),
    ],
)
@pytest.mark.parametrize("command_line", ["run x --out o --state s --once", "serve --out .", "doctor"])
def test_a_variable_of_0_1_0_is_rejected(
    monkeypatch: pytest.MonkeyPatch, command_line: str, variable: str, successor: str
) -> None:
    monkeypatch.setenv(variable, "x")
    done = gitboot(*command_line.split())
    assert (done.code, f"variable {variable} is no longer supported; use {successor}" in done.err) == (
        Exit.USAGE,
        True,
    )


# Exit codes


@for_each(
    ("error", "code"),
    [
        (errors.InvalidRepository([]), 3),
        (errors.SourceError(""), 6),
        (errors.CorruptClone(""), 6),
        (errors.SourceRefused(""), 6),
        (errors.PublishError(""), 8),
        (errors.ForeignTree(""), 8),
        (errors.UsageError(""), 64),
        (errors.LockedByAnother(""), 64),
        (errors.LedgerError(""), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_its_exit_code(error: errors.GitbootError, code: int) -> None:
    assert find_exit_code(error) == code


@for_each(
    ("fleet", "more", "code", "said"),
    [
        (FLEET[0], "", Exit.FINE, "2 servers, 2 images, no errors"),
        (FLEET[0], TIE, Exit.INVALID, "1 error in 1 file\n`gitboot explain GB2011` explains the first error\n"),
        (
            FLEET[0].replace("spec: {", "spec: {requirePolicy: false, "),
            server("web03", "role: db"),
            Exit.FINE,
            "1 warning",
        ),
    ],
)
def test_validate_exits_with_3_for_errors_alone(tmp_path: Path, fleet: str, more: str, code: Exit, said: str) -> None:
    write_fleet(tmp_path, more)
    (tmp_path / "00.yaml").write_text(fleet)
    done = gitboot("validate", tmp_path)
    assert (done.code, said in done.err) == (code, True), done


def test_a_problem_is_shown_with_its_path_its_code_and_its_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet").mkdir()
    write_fleet(tmp_path / "fleet", TIE)
    monkeypatch.chdir(tmp_path)
    problem, hint = gitboot("validate", "fleet").out.splitlines()
    assert gitboot("validate", "--subpath", "fleet").err.startswith("fleet: 1 error in 1 file\n")
    path, line, column, code, message = problem.split(":", 4)
    assert Path(path).read_text().splitlines()[int(line) - 1][int(column) - 1 :].startswith("{matchLabels")
    assert (code, "BootPolicy/web" in message) == (" GB2011", True)
    assert hint.startswith("    raise the priority of one")
    (annotation,) = gitboot("validate", "fleet", "-o", "github").out.splitlines()
    assert annotation.startswith(f"::error file={path},line={line},col={column},title=GB2011::")


@for_each(
    ("instant", "code"),
    [("2026-11-20T12:00:00Z", Exit.INVALID), ("2026-11-21T03:59:59Z", Exit.INVALID), ("2026-11-21T04:00:00Z", 0)],
)
def test_finding_r11_an_overlap_of_maintenances_counts_until_it_is_over(
    tmp_path: Path, instant: str, code: int
) -> None:
    write_fleet(tmp_path, *(maintenance(name, "20T22:00 21T04:00") for name in ("a", "b")))
    for command in ("validate", "plan"):
        done = gitboot(command, tmp_path, "--at", instant)
        said = done.out + done.err
        assert (done.code, "GB2012" in said, "until 2026-11-21T04:00:00Z" in said) == (code, *2 * [bool(code)]), done


@pytest.mark.parametrize("name", ["plan", "render", "explain"])
def test_no_command_evaluates_an_invalid_fleet(tmp_path: Path, name: str) -> None:
    (tmp_path / "fleet").mkdir()
    write_fleet(tmp_path / "fleet", TIE)
    given: dict[str, list[object]] = {
        "plan": [tmp_path / "fleet"],
        "render": [tmp_path / "fleet", "--out", tmp_path / "out"],
    }
    done = gitboot(name, *given.get(name, ["web01", "--path", tmp_path / "fleet"]))
    assert (done.code, done.out) == (Exit.INVALID, "")
    assert "GB2011" in done.err
    assert not (tmp_path / "out").exists()


# Bad inputs


@dataclass(frozen=True)
class Places:
    fleet: Path
    repository: Path
    file: Path
    missing: Path
    empty: Path
    corrupt: Path
    unborn: Path  # a repository without a commit
    loop: Path  # a symlink to itself


@pytest.fixture(scope="module")
def places(fleet: Path, repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("places")
    (folder / "file").write_text("text")
    (folder / "empty").mkdir()
    corrupt = folder / "corrupt.git"
    git(folder, "clone", "-q", "--bare", str(repository.work), str(corrupt))
    blob = git(repository.work, "rev-parse", "HEAD:06.yaml")
    (corrupt / "objects" / blob[:2] / blob[2:]).unlink()
    git(folder, "init", "-q", str(unborn := folder / "unborn"))
    (folder / "loop").symlink_to("loop")
    file, missing, empty, loop = (folder / name for name in ("file", "missing", "empty", "loop"))
    return Places(fleet, repository.bare, file, missing, empty, corrupt, unborn, loop)


USE_SHORTER_NAME = "a name in the path has more than 255 bytes; use a shorter name"


@pytest.mark.parametrize(
    ("command_line", "code", "said"),
    [
        ("plna", 64, "did you mean plan?"),
        ("stop", 64, "use `gitboot stop-installs`"),
        ("timeline", 64, "use `gitboot plan --timeline SERVER`"),
        ("schema", 64, "use `gitboot explain KIND -o json`"),
        ("hub", 64, "use `gitboot status` at each site, or watch all sites with Prometheus"),
        ("version", 64, "use `gitboot --version`"),
        ("xyzzy", 64, "There is no command 'xyzzy'; `gitboot --help` lists the commands"),
        ("bmc gett", 64, "There is no command 'gett'; did you mean get?"),
        ("bmc power xyzzy", 64, "There is no command 'xyzzy'; `gitboot bmc power --help` lists the commands"),
        ("pull", 64, "There is no command 'pull'; `gitboot --help` lists the commands"),
        ("plan --recods fresh", 64, "--records"),
        ("plan {fleet} --format table", 64, "'table' is none of text"),
        ("validate {missing}", 64, "is not a directory"),
        ("validate {file}", 64, "is not a directory"),
        ("validate {empty}", 3, "GB2001: the repository has no document of kind Fleet"),
        ("validate {corrupt}", 6, "is missing"),
        ("validate {repository} --rev nonsense", 64, "has no commit nonsense"),
        ("validate {repository} --rev WORKTREE", 64, "is a bare repository"),
        ("validate {fleet} --rev HEAD", 64, "is not in a Git repository"),
        ("validate {fleet} -o xml", 64, "'xml' is none of text, json, github, sarif, junit"),
        (
            "validate {fleet} -o text -o json",
            64,
            "json and text cannot share standard output: write json to a file with json=FILE",
        ),
        ("validate {fleet} -o json -o json", 64, "json and json cannot share standard output: write json to a file"),
        ("validate {fleet} -o text=a -o json=a", 64, "two formats write to a: use a different file for each format"),
        ("validate {fleet} -o text={missing}/x", 64, "cannot be written: No such file or directory"),
        ("plan {fleet} --at yesterday", 64, 'expected a time with an offset, found "yesterday"'),
        ("plan {fleet} --at 2026-11-20T22:00:00.5Z", 64, "remove the fractional seconds"),
        ("plan {fleet} --at 2026-11-20T12:00:00", 64, "with its offset"),
        ("plan {fleet} --records nowhere", 64, "nowhere: No such file or directory; pass fresh, adopt or a file"),
        ("plan {fleet} --records {file}", 64, "does not contain exported records"),
        ("plan {fleet} --records {empty}", 64, "the folder does not contain exported records"),
        ("plan {fleet} --server web1", 64, "there is no server 'web1'; did you mean web01?"),
        (
            f"plan {{fleet}} --server {make_mac('web01').replace(':', '-').upper()}",
            64,
            "this is the UUID, a MAC address or the serial number of web01",
        ),
        ("plan {fleet} --server ---", 64, "there is no server '---'; `gitboot plan` lists the servers"),
        ("plan {fleet} -l role=", 64, "no server has the labels role=; the fleet has 2 servers"),
        (
            "plan {fleet} --server web01 -l role=db -o json",
            64,
            "no server among web01 has the labels role=db; the fleet has 2 servers",
        ),
        ("plan {fleet} -l ,", 64, "-l ,: "),
        ("plan {fleet} -l a~b", 64, "-l a~b: "),
        ("plan {fleet} -l in=valid!", 64, "-l in=valid!: "),
        ("explain", 64, "Missing argument 'SERVER|KIND|CODE'"),
        ("explain web1 --path {fleet}", 64, "did you mean web01?"),
        ("explain web01 kernel --path {fleet}", 64, "web01 currently has no field 'kernel'; its fields are baseURL"),
        ("explain GB9999", 64, "there is no problem code GB9999"),
        ("plan {missing} --timeline web01", 64, "is not a directory"),
        (
            "plan web01",
            64,
            "web01 is not a directory; for a server, run `gitboot plan --server web01` or `gitboot explain web01`",
        ),
        ("plan {fleet} --timeline web01 --until soon", 64, "expected a time"),
        ("plan {fleet} --timeline web01 --until 2020-01-01T00:00:00Z", 64, "the start of the timeline, "),
        ("plan {fleet} --timeline web1", 64, "did you mean web01?"),
        ("plan {fleet} --timeline web01 --server web01", 64, "--timeline shows one server"),
        ("plan {fleet} --timeline web01 -l role=web", 64, "--timeline shows one server"),
        ("plan {fleet} --until 2027-01-01T00:00:00Z", 64, "add --timeline SERVER"),
        ("explain server --path {fleet}", 64, "`gitboot explain Server` lists the fields"),
        (f"explain web01 {'x' * 300} --path {{fleet}}", 64, "web01 currently has no field 'xxx"),
        ("explain Server interface", 64, "Server has no field 'interface'; its fields are uuid, "),
        ("render {fleet}", 64, "Missing option '--out'"),
        ("render {fleet} --out {file}", 8, "Not a directory"),
        ("status --state {missing}", 64, "no instance has run with the state directory"),
        ("status --state {file}", 64, "is a file"),
        ("events --state {empty}", 64, "no instance has run with the state directory"),
        ("reconcile --state {empty}", 64, "no instance is running with the state directory"),
        ("serve --out {missing}", 64, "is not a directory"),
        ("serve --out {empty} --listen nonsense", 64, "expected HOST:PORT"),
        ("run --out {empty}/o --state {empty}/s", 64, "Missing argument 'REPOSITORY'"),
        ("run {repository} --state {empty}/s", 64, "Missing option '--out'"),
        ("run {repository} --out {empty}/o --state {empty}/s --poll 0", 64, "0.0 is not in the range 0<x<="),
        ("run {repository} --out {empty}/o --state {empty}/s --poll often", 64, "'often' is not a valid float"),
        (
            "run {repository} --out {empty}/o --state {empty}/s --once --poll nan",
            64,
            "expected a finite number, found 'nan'",
        ),
        ("plan {fleet} --commit-seconds nan", 64, "'nan' is not a valid integer"),
        ("plan {fleet} --commit-seconds 0", 64, "0 is not in the range"),
        ("plan {fleet} --commit-seconds 100000000", 64, "100000000 is not in the range"),
        ("plan {fleet} --commit-memory 999999999999999999", 64, "is not in the range"),
        ("compare-old-system {fleet} --old http://x.test --as matchbox --timeout nan", 64, "expected a finite number"),
        ("events", 64, "Missing option '--state'. Set --state or the variable GITBOOT_STATE to the instance's state"),
        ("boot-script web01", 64, "specify the output tree with --tree, or its instance with --state or the variable"),
        ("boot-script web01 --state {empty}", 64, "no instance has run with the state directory"),
        ("history web01 --state {empty}", 64, "no instance has run with the state directory"),
        ("history Server/web01 --state {empty}", 64, "no instance has run with the state directory"),
        (
            "boot-script web01 --tree {empty}",
            64,
            "is not an output tree; pass the --out directory of `gitboot run` or `gitboot render`",
        ),
        ("diff", 64, "--accepted"),
        ("diff main --path {unborn}", 64, "unborn has no commits yet"),
        ("diff nonsense --path {repository}", 64, "has no commit nonsense"),
        ("diff main --path {repository}", 64, "has no work tree: write BASE.."),
        ("run {repository} --out {empty}/o --state {file}/s", 64, "cannot be read: Not a directory"),
        (
            "run {repository} --out {empty}/o --state {empty} --once --git-ssh {file}",
            64,
            "Option '--git-ssh' requires 2 arguments.",
        ),
        (f"run {{repository}} --out {{empty}}/o --state {{empty}}/{'s' * 256} --once", 64, USE_SHORTER_NAME),
        (f"run {{repository}} --out {{empty}}/{'o' * 256}/o --state {{empty}} --once", 64, USE_SHORTER_NAME),
        (f"events --state {'ä' * 128}", 64, USE_SHORTER_NAME),
        (f"validate {'f' * 256}", 64, USE_SHORTER_NAME),
        (f"plan {{fleet}} --records {'r' * 256}", 64, "File name too long"),
        ("render {fleet} --out {loop}/o", 64, "the symlinks in the path form a loop"),
        ("run {repository} --out {empty}/o --state {loop} --once", 64, "the symlinks in the path form a loop"),
        (f"events --state {'d/' * 2100}", 64, "the path has more than 4,095 bytes; use a shorter path"),
        ("run {repository} --out {file}/o --state {empty} --once", 8, "Not a directory"),
        ("run {repository} --out {empty}/o --state {empty} --spool {file}/s --once", 64, "read: Not a directory"),
        ("secret encrypt {file} --to age1\udcff --file {empty}/a", 64, "expected a complete age public key"),
        ("update-images --path {fleet} --branch-prefix a\udcff", 64, "is not a valid branch name"),
        ("run {repository}\udcff --out {empty}/o --state {empty} --once", 64, "\udcff is not valid UTF-8"),
        ("run {repository} --out {empty}/o --state {empty}/\udcff --once", 64, "\udcff is not valid UTF-8"),
    ],
)
def test_a_wrong_input_ends_with_one_message_and_a_code(
    places: Places, tmp_path: Path, command_line: str, code: int, said: str
) -> None:
    made = Path(shutil.copytree(places.empty, tmp_path / "empty"))
    named = {**vars(places), "empty": made}
    done = gitboot(*(word.format(**named) for word in command_line.split()))
    assert done.code == code, done
    assert said in " ".join((done.out + done.err).split()), done


@contextmanager
def drop_root() -> Iterator[None]:
    """Run without root's right to read everything, if tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "command_line",
    [
        "validate {closed}",
        "validate {closed}/fleet",
        "validate {open} --subpath closed/fleet",
        "plan {closed}/fleet",
        "status --state {closed}",
        "events --state {closed}",
        "reconcile --state {closed}",
        "run {closed}/fleet --out {closed}/o --state {closed}/s --once",
        "run {closed}/fleet --out {open}/o --state {closed} --once",
        "run {closed}/fleet --out {open}/o --state {closed} --dry-run",
        "boot-script web01 --tree {closed}",
        "serve --out {closed}/o",
        "render {open} --out {closed}/o",
        "render {closed}/fleet --out {open}",
        "verify-mirror {closed}/mirror",
        "verify-mirror http://mirror.test --tree {closed}/tree",
        "read-access-logs {closed}/log --spool {open}/spool",
        "read-access-logs {open} --follow --spool {closed}/spool",
        "bmc get --state {open} --credentials {closed}/credentials",
        "bmc scan {closed}/bmcs --as rack",
        "doctor --state {closed}/state",
        "update-images --path {open} --bundle {closed}/fleet/bundle",
        "ledger reclaim {closed}/old --state {open}",
        "ledger copy --state {open} --to postgresql://g@db/g --ledger-password {closed}/password",
    ],
)
def test_a_file_that_cannot_be_read_ends_in_one_message(tmp_path: Path, command_line: str) -> None:
    (tmp_path / "closed" / "fleet").mkdir(parents=True)
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open" / "closed").mkdir(mode=0)
    for name in COMMANDS:
        command(name)  # is imported while it can be read, as is what it imports when it runs
    for module in (
        "bmc.worker_pool",
        "controller.commit_acceptance",
        "controller.loop",
        "controller.operator_requests",
        "controller.reconcile",
        "evaluator.client",
        "git.clone",
        "ledger.open_ledger",
        "publish.mirror_repair",
        "publish.publisher",
        "publish.signed_list_check",
    ):
        import_module(f"gitboot.{module}")
    (tmp_path / "closed").chmod(0)
    try:
        with drop_root():
            named = {"closed": tmp_path / "closed", "open": tmp_path / "open"}
            done = gitboot(*(word.format(**named) for word in command_line.split()))
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert done.code == Exit.USAGE
    assert re.search("not readable|cannot be (read|created|written)|is a file", done.err), done


def test_an_import_of_a_directory_with_a_subdirectory_that_cannot_be_read_names_it() -> None:
    with TemporaryDirectory() as folder:
        for each in (closed := Path(folder, "source", "groups"), out := Path(folder, "out")):
            each.mkdir(parents=True)
        (closed / "web01.json").write_text(
            '{"id": "web01", "profile": "web", "selector": {"mac": "52:54:00:00:00:01"}}'
        )
        for each, mode in ((Path(folder), 0o755), (closed.parent, 0o755), (out, 0o777), (closed, 0)):
            each.chmod(mode)
        with drop_root():
            done = gitboot("import", "matchbox", closed.parent, "--out", out)
    assert (done.code, done.err) == (Exit.USAGE, f"gitboot: {closed} cannot be read: Permission denied\n")


# plan


def test_plan_shows_what_each_server_boots(fleet: Path) -> None:
    done = gitboot("plan", fleet, "--at", NOON, "--records", "fresh")
    assert parse_cells(done) == [
        ["web01", "Network", "flatcar-1", "Pxe", "web", "2026-11-20 22:00Z"],
        ["web02", "Disk", "local disk", "-", "web", "-"],
    ]
    assert done.err == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--at 0001-01-01T00:00:00Z --records fresh", "Network Disk"),
        ("--at 9999-12-31T23:59:59Z --records fresh", "Network Disk"),
        ("--at 2026-11-20T21:59:59Z", "Disk Disk"),
        ("--at 2026-11-20T22:00:00Z", "Maintenance Disk"),
        ("--at 2026-11-21T05:00:00+02:00", "Maintenance Disk"),
        ("--at 2026-11-21T04:00:00Z", "Disk Disk"),
        (f"--at {NOON} --records fresh", "Network Disk"),
        (f"--at {NOON} --records adopt", "Disk Disk"),
        (f"--at {NOON} --records FILE", "Disk Network"),
        (f"--at {NOON} --records fresh --server web01", "Network"),
        (f"--at {NOON} --records fresh --server web02 --server web01", "Network Disk"),
        (f"--at {NOON} --records fresh -l site=fra1", "Network"),
        (f"--at {NOON} --records fresh -l site!=fra1", "Disk"),
        (f"--at {NOON} --records fresh -l role=web,site", "Network Disk"),
        (f"--at {NOON} --records fresh -l role=web,!site", ""),
        (f"--at {NOON} --records fresh -l role=db", ""),
        (f"--at {NOON} --records fresh --server web02 -l site=fra1", ""),
    ],
)
def test_plan_takes_a_time_some_servers_and_the_records(
    fleet: Path, tmp_path: Path, options: str, expected: str
) -> None:
    records = {make_uuid("web01"): Record(provision=1), make_uuid("web02"): Record()}
    (tmp_path / "records.json").write_bytes(encode_records(records))  # type: ignore[arg-type]
    done = gitboot("plan", fleet, *options.replace("FILE", str(tmp_path / "records.json")).split())
    code = Exit.FINE if expected else Exit.USAGE  # no server has the labels
    assert (done.code, " ".join(row[1] for row in parse_cells(done))) == (code, expected)


def test_e8_a_server_that_a_file_of_records_lacks_is_unknown_as_it_is_to_an_instance(
    fleet: Path, tmp_path: Path
) -> None:
    file = tmp_path / "records.json"
    file.write_bytes(encode_records({parse_uuid(make_uuid("web02")): Record(provision=1)}))
    given = ("--at", NOON, "--records", file)
    planned = gitboot("plan", fleet, "--server", "web01", *given)
    assert parse_cells(planned)[0][:3] == ["web01", "Disk", "local disk"]
    assert "1 server may need an installation" in planned.err
    assert gitboot("render", fleet, "--out", tmp_path / "out", *given).code == Exit.FINE
    assert "does not install unknown servers" in (tmp_path / "out" / "boot" / ENTRY).read_text()
    explained = gitboot("explain", "web01", "--path", fleet, *given, "-o", "json").json
    assert "does not install unknown servers" in json.dumps(explained)
    assert "flatcar-1" not in (tmp_path / "out" / "boot" / ENTRY).read_text()


def test_e17_plan_shows_that_a_maintenance_run_was_already_used(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    write_fleet(fleet, maintenance("m", "20T22:00 21T04:00", "networkBoot: Once, priority: 5"))
    runs = {
        "m": provisioning_record.Run(
            1, datetime(2026, 11, 20, 22, 10, tzinfo=UTC), datetime(2026, 11, 21, 4, tzinfo=UTC)
        )
    }
    file = tmp_path / "records.json"
    file.write_bytes(encode_records({parse_uuid(make_uuid("web01")): Record(provision=1, runs=runs)}))
    during = gitboot("plan", fleet, "--records", file, "--at", "2026-11-20T23:00:00Z", "-o", "json")
    made = {item["server"]: item["alreadyMade"] for item in json.loads(during.out)["items"]}
    assert made == {"web01": {"m": "2026-11-20T22:10:00Z"}, "web02": {}}
    assert (
        "Maintenance/m: the one-time boot was consumed at 2026-11-20T22:10:00Z (web01). To repeat the maintenance"
        in during.err
    )
    over = gitboot("plan", fleet, "--records", file, "--at", "2026-11-21T05:00:00Z")
    assert "already made" not in over.err


def test_plan_counts_the_servers_that_may_need_an_installation(fleet: Path) -> None:
    done = gitboot("plan", fleet, "--at", NOON)
    assert done.err.startswith("2 servers may need an installation, because gitboot does not know whether they are")
    alone = gitboot("plan", fleet, "--at", NOON, "--server", "web01")
    assert alone.err.startswith("1 server may need an installation, because gitboot does not know whether it is")


def test_plan_reads_any_revision_and_uncommitted_files(tmp_path: Path) -> None:
    made = Repository.create(tmp_path)
    write_fleet(made.work)
    made.push({}, "First")
    made.push({"08.yaml": maintenance("repair", select="{servers: [web02]}")}, "Second")
    (made.work / "08.yaml").unlink()

    def boots(*options: object) -> list[str]:
        return [row[1] for row in parse_cells(gitboot("plan", *options, "--at", NOON))]

    assert boots(made.work) == ["Disk", "Disk"]  # as in the work tree
    assert boots(made.work, "--rev", "HEAD") == ["Disk", "Maintenance"]
    assert boots(made.work, "--rev", "HEAD~1") == ["Disk", "Disk"]
    assert boots(made.bare) == ["Disk", "Maintenance"]


PLAN_KEYS = """server uuid macs phase policy maintenance image method kernelArguments files override digest
decisionDigest nextTransition"""


def test_a_plan_in_json_always_has_every_key(fleet: Path) -> None:
    document = gitboot("plan", fleet, "--at", NOON, "--records", "fresh", "-o", "json").json
    assert (document["apiVersion"], document["revision"]) == ("gitboot.dev/v1alpha1", "WORKTREE")
    web01, web02 = document["items"]
    assert web01.keys() == web02.keys() >= set(PLAN_KEYS.split())
    assert (web01["image"], web01["kernelArguments"]) == ("flatcar-1", ["quiet"])
    assert (web02["image"], web02["override"], web02["nextTransition"]) == (None, None, None)
    assert web01["files"][f"boot/{ENTRY}"] and list(web01["files"]) == sorted(web01["files"])


@pytest.mark.parametrize(
    "command_line",
    [
        "plan {fleet} --at {at}",
        "validate {fleet}",
        "explain web01 --path {fleet} --at {at}",
        "explain web01 image --path {fleet} --at 2026-11-20T23:00:00Z",
        "explain GB2011",
        "plan {fleet} --timeline web01 --at {at}",
    ],
)
def test_json_is_versioned_sorted_and_the_same_in_a_file(fleet: Path, tmp_path: Path, command_line: str) -> None:
    words = [word.format(fleet=fleet, at=NOON) for word in command_line.split()]
    done = gitboot(*words, "-o", "json")
    assert done.code == Exit.FINE
    assert done.out == json.dumps(done.json, indent=2, sort_keys=True) + "\n"
    assert done.json.get("apiVersion") == "gitboot.dev/v1alpha1"
    file = tmp_path / "out.json"
    both = gitboot(*words, "-o", f"json={file}", "-o", "text")
    assert file.read_text() == done.out
    assert both.out == gitboot(*words).out != done.out


def test_yaml_has_the_same_content_as_json(fleet: Path) -> None:
    arguments = ("plan", fleet, "--at", NOON)
    assert yaml.safe_load(gitboot(*arguments, "-o", "yaml").out) == gitboot(*arguments, "-o", "json").json


# explain, plan --timeline


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("image", ["image"]),
        ("vars", ["vars.console"]),
        ("vars.console", ["vars.console"]),
        ("kernelArguments", ["kernelArguments[0]"]),
        ("phase", ["phase"]),
    ],
)
def test_explain_narrows_to_a_field_in_text_and_json(fleet: Path, field: str, fields: list[str]) -> None:
    arguments = ("explain", "web01", field, "--path", fleet, "--at", NOON, "--records", "fresh")
    assert [row[0] for row in parse_cells(gitboot(*arguments))] == fields
    reasons = gitboot(*arguments, "-o", "json").json["reasons"]
    assert [(reason["field"], reason["commit"]) for reason in reasons] == [(each, None) for each in fields]


@pytest.mark.parametrize("code", ["GB2011", "gb2011"])
def test_explain_prints_the_meaning_of_a_code_in_upper_and_lower_case(code: str) -> None:
    done = gitboot("explain", code)
    assert done.out.startswith("GB2011: Several policies with the same priority select the server\n")
    assert "Raise the priority" in done.out


def test_a_server_may_have_the_name_of_a_code_in_lower_case(tmp_path: Path) -> None:
    write_fleet(tmp_path, server("gb2011", "role: web"))
    done = gitboot("explain", "gb2011", "image", "--path", tmp_path, "--at", NOON)
    assert (done.code, [row[:2] for row in parse_cells(done)]) == (Exit.FINE, [["image", "flatcar-1"]]), done


def test_timeline_shows_every_change_without_a_commit(fleet: Path) -> None:
    arguments = ("plan", fleet, "--timeline", "web01", "--at", NOON, "--records", "fresh")
    rows = parse_cells(gitboot(*arguments))
    assert [row[:4] for row in rows] == [
        ["2026-11-20 12:00Z", "Network", "flatcar-1", "web"],
        ["2026-11-20 22:00Z", "Maintenance", "memtest-7", "Maintenance/repair"],
        ["2026-11-21 04:00Z", "Network", "flatcar-1", "web"],
    ]
    assert parse_cells(gitboot(*arguments, "--until", "2026-11-20T22:00:00Z")) == rows[:2]
    items = gitboot(*arguments, "-o", "json").json["items"]
    assert [format_time(item["from"]) for item in items] == [row[0] for row in rows]
    assert yaml.safe_load(gitboot(*arguments, "-o", "yaml").out)["items"] == items


def test_a_timeline_ends_at_the_latest_time_that_python_knows(fleet: Path) -> None:
    arguments = ("plan", fleet, "--timeline", "web01", "--records", "fresh")
    assert parse_cells(gitboot(*arguments, "--at", "9999-06-01T00:00:00Z"))[0][0] == "9999-06-01 00:00Z"


def test_finding_r4_a_timeline_shows_an_installation_until_its_boot_no_longer_counts_as_served(
    fleet: Path, tmp_path: Path
) -> None:
    fetched = datetime(2026, 11, 20, 11, 50, tzinfo=UTC)
    attempt = provisioning_record.InstallAttempt(
        key="provision/1", number=1, boots=(provisioning_record.StepEvidence(fetched, "boot.ipxe", "10.0.0.7"),)
    )
    record = Record(provision=1, evidence="Fetched", provisioned_at=fetched, attempts=(attempt,))
    (tmp_path / "records.json").write_bytes(encode_records({parse_uuid(make_uuid("web01")): record}))
    arguments = ("plan", fleet, "--timeline", "web01", "--at", NOON, "--records", tmp_path / "records.json")
    items = gitboot(*arguments, "-o", "json").json["items"]
    shown = {item["from"]: item["installing"] for item in items}
    assert shown[NOON]["state"] == "Served"
    assert [each for each, installing in shown.items() if each >= "2026-11-20T12:20:00Z" and installing] == []
    assert "2026-11-20T12:20:00Z" in shown
    assert gitboot(*arguments).out.count("completion is not reported") == sum(1 for each in shown.values() if each)


def test_explain_lists_the_fields_of_a_kind_each_with_its_type_and_description() -> None:
    firmware = "spec.firmware  UEFI · BIOS, required\n    The firmware mode in which the machine boots.\n"
    listed = gitboot("explain", "Server").out
    assert firmware in listed and firmware == gitboot("explain", "Server", "spec.firmware").out
    assert not re.search(r"^spec\.bmc\.", listed, re.M)
    assert re.search("^There are more fields in .*bmc.* run:\n    gitboot explain Server [a-z]+$", listed, re.M | re.S)
    tls = gitboot("explain", "Server", "bmc.tls").out
    assert {"spec.bmc.tls", "spec.bmc.tls.fingerprint"} <= set(re.findall(r"^spec\S+", tls, re.M))


def test_every_field_of_a_kind_is_found_below_the_fields_that_explain_names() -> None:
    def below(*field: str) -> set[str]:
        out = gitboot("explain", "BootImage", *field).out
        shown = set(re.findall(r"^spec\S*", out, re.M))
        named = re.search("There are more fields in (.*)[.] To\\s", " ".join(out.split()) + " ")
        return shown.union(*map(below, named[1].split(", "))) if named else shown

    assert below() == {field.path for field in list_schema_fields(BootImage)}


def test_explain_lists_all_kinds() -> None:
    assert [row[0] for row in parse_cells(gitboot("explain", "Any"))] == [kind.__name__ for kind in KINDS]


def test_explain_prints_the_schema_of_each_kind_and_of_any_or_writes_them_all(tmp_path: Path) -> None:
    for kind in ("Any", *(kind.__name__ for kind in KINDS)):
        published = ROOT / "schemas" / f"{'any' if kind == 'Any' else kind}.json"
        assert gitboot("explain", kind, "-o", "json").out == published.read_text()
    assert gitboot("explain", "--schemas", tmp_path / "schemas").code == Exit.FINE
    written = {path.name: path.read_text() for path in (tmp_path / "schemas").iterdir()}
    assert written == {path.name: path.read_text() for path in (ROOT / "schemas").iterdir()}


# render, serve


def test_render_writes_the_output_tree_once_and_does_not_touch_other_directories(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    arguments = ("render", fleet, "--out", out, "--at", NOON, "--records", "fresh")
    first, again = gitboot(*arguments), gitboot(*arguments)
    assert (first.code, again.code) == (Exit.FINE, Exit.FINE)
    assert re.search(r"[1-9]\d* files written, 0 removed, 0 unchanged", first.err)
    assert re.search(r" 0 files written, 0 removed, [1-9]\d* unchanged", again.err)
    assert "/assets/flatcar-1/kernel" in (out / "boot" / ENTRY).read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "boot").write_text("mine")
    done = gitboot("render", fleet, "--out", tmp_path / "mine")
    assert (done.code, (tmp_path / "mine" / "boot").read_text()) == (Exit.PARTIAL, "mine")
    before = sorted(fleet.rglob("*"))
    for wrong, why in (
        (fleet, "a fleet's work tree"),
        (fleet.parent, "contains files that gitboot did not write: "),
    ):
        done = gitboot("render", fleet, "--out", wrong)
        assert (done.code, why in done.err, done.err.count("--out")) == (Exit.USAGE, True, 1)
    done = gitboot("render", tmp_path / "nowhere", "--out", out)
    assert (done.code, "nowhere is not a directory" in done.err) == (Exit.USAGE, True)
    assert sorted(fleet.rglob("*")) == before


INTERRUPTED_PROGRAM = """
import os, signal, sys, tomllib
from importlib import import_module
from pathlib import Path
from runpy import run_module

how, interrupted_import, pyproject = sys.argv[1:4]
del sys.argv[1:4]
entry, name = tomllib.loads(Path(pyproject).read_text())["project"]["scripts"]["gitboot"].split(":")

def interrupt(event, arguments):
    if event == "import" and arguments[0] == interrupted_import:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
if how == "-m":
    run_module("gitboot", run_name="__main__", alter_sys=True)
else:
    getattr(import_module(entry), name)()
"""


@pytest.mark.parametrize("interrupted_import", ["click", "gitboot.cli.evaluator_child", "gitboot.cli.options"])
@pytest.mark.parametrize("how", ["-m", "script"])
def test_ctrl_c_while_a_command_starts_ends_it_without_a_traceback(how: str, interrupted_import: str) -> None:
    arguments = [how, interrupted_import, str(ROOT / "pyproject.toml"), "explain", "Server"]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_PROGRAM, *arguments], capture_output=True, check=False)
    assert done.returncode in (-signal.SIGINT, Exit.INTERRUPTED)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_an_endpoint_without_an_instance_ignores_the_settings_of_a_worker_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITBOOT_PUSH_SECRET", str(tmp_path / "absent"))  # a documented variable of `gitboot run`
    with RunningCommand("serve", "--out", tmp_path, "--listen", "127.0.0.1:0") as process:
        events = [json.loads(next(process.stderr)) for _ in range(3)]
        assert http_peers.get(f"{events[0]['url']}/readyz").status_code == 503
        process.send_signal(signal.SIGTERM)
        events += map(json.loads, process.stderr)
    assert "CredentialsUnreadable" not in {each["type"] for each in events}


def test_serve_serves_a_rendered_output_tree_until_it_is_stopped_and_logs_events(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with RunningCommand("serve", "--out", tmp_path / "out", "--listen", "127.0.0.1:0") as process:
        said = map(json.loads, process.stderr)
        listening, empty, warned = (next(said) for _ in range(3))
        told = [listening["type"], empty["type"], warned["type"]]
        assert (told, warned["level"]) == (["Listening", "NothingPublished", "NotRecording"], "warning")
        assert http_peers.get(f"{listening['url']}/readyz").status_code == 503  # not published yet
        gitboot("render", fleet, "--out", tmp_path / "out", "--at", NOON, "--records", "fresh")
        with http_peers.Client(base_url=listening["url"], headers={"user-agent": "iPXE/1.21.1"}) as client:
            assert b"could not record the fetch" in client.get(f"/{ENTRY}").content
            assert client.get("/boot.ipxe").content == (tmp_path / "out" / "boot" / "boot.ipxe").read_bytes()
            assert client.get("/api/v1/servers").status_code == 200
        manifest = tmp_path / "out" / MANIFEST
        manifest.write_text("not a manifest")
        logged = next(event for event in said if event["type"] == "Logged")
        assert (logged["level"], logged["logger"]) == ("warning", "gitboot.endpoint.served_files")
        assert str(manifest) in logged["message"]
        process.send_signal(signal.SIGTERM)
        *others, stopped = said
        assert stopped["type"] == "Stopped" and {event["type"] for event in others} <= {"NotReady"}
        assert process.wait(120) == Exit.FINE


# run --once


@dataclass
class FollowedRepository:
    repository: Repository
    folder: Path

    def name(self) -> None:
        """Let the Fleet name the instance."""
        path = "00.yaml"
        text = (self.repository.work / path).read_text()
        self.repository.push({path: name_ledger(create_ledger(self.folder / "state"), text)})

    def run(self, *more: object, once: str = "--once", records: str | None = None) -> CommandResult:
        """Reconcile once, and a second time if the ledger must be begun in between."""
        if records is not None:
            self.run(*more)
            assert gitboot("records", "begin", records, "--state", self.folder / "state", "--yes").code == Exit.FINE
        given = ("--out", self.folder / "output", "--state", self.folder / "state", "--spool", self.folder / "spool")
        return gitboot("run", self.repository.bare, *given, once, *more)

    @property
    def published(self) -> str:
        return (self.folder / "output" / "boot" / ENTRY).read_text()


@pytest.fixture
def followed_repository(tmp_path: Path, repository: Repository) -> FollowedRepository:
    made = Repository(
        bare=Path(shutil.copytree(repository.bare, tmp_path / "fleet.git")),
        work=Path(shutil.copytree(repository.work, tmp_path / "work")),
    )
    git(made.work, "remote", "set-url", "origin", str(made.bare))
    return FollowedRepository(made, tmp_path)


def test_run_once_reconciles_once_and_its_exit_code_and_the_status_show_the_result_and_a_dry_run_writes_nothing(
    followed_repository: FollowedRepository,
) -> None:
    """The first run lacks the beginning of its ledger, the third its clone, and the last the repository."""
    state = followed_repository.folder / "state"
    done = followed_repository.run()
    assert (done.code, "run gitboot records begin" in " ".join(done.err.split())) == (Exit.PARTIAL, True), done
    assert gitboot("records", "begin", "fresh", "--state", state, "--yes").code == Exit.FINE
    assert followed_repository.run().code == Exit.FINE
    assert "flatcar-1" in followed_repository.published
    shutil.rmtree(state / "repository.git")
    assert followed_repository.run().code == Exit.FINE, "it is cloned again"
    before = followed_repository.published
    followed_repository.repository.push({"tie.yaml": TIE})
    files = list_files(followed_repository.folder)
    assert followed_repository.run(once="--dry-run").code == Exit.INVALID
    assert list_files(followed_repository.folder) == files
    done = followed_repository.run()
    assert (done.code, followed_repository.published) == (Exit.INVALID, before)
    assert any(json.loads(line)["type"] == "Rejected" for line in done.err.splitlines())
    shown = gitboot("status", "--state", state).out
    assert "gitboot        not running\n" in shown
    assert re.search(r"^newest commit  [0-9a-f]{40}, 1 problem\n", shown, re.MULTILINE)
    assert re.search(r"^    \S+\.yaml:\d+: GB2011: BootPolicy/tie", shown, re.MULTILINE)
    assert re.search(r"^CommitAccepted +false +Invalid ", shown, re.MULTILINE)
    titles = {page.read_text().partition("\n")[0] for page in (ROOT / "docs/reference").glob("*.md")}
    named = re.findall(r'"(.+?)"', " ".join(shown.rpartition("\n\n")[2].split()))
    assert named and titles >= {f"# {title}" for title in named}
    shutil.move(followed_repository.repository.bare, followed_repository.folder / "away")
    assert (followed_repository.run().code, followed_repository.published) == (Exit.SOURCE, before)


def test_finding_r7_commands_show_the_commit_and_the_records_of_an_instance(
    followed_repository: FollowedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, work = followed_repository.folder / "state", followed_repository.repository.work
    assert followed_repository.run(records="adopt").code == Exit.FINE
    accepted = followed_repository.repository.push({"99.yaml": image("flatcar-99")})
    assert followed_repository.run().code == Exit.FINE
    held = followed_repository.repository.push({"01.yaml": FLEET[1].replace("provision: 1", "provision: 2")})
    assert followed_repository.run().code == Exit.HELD

    def rows(*command: object) -> tuple[list[list[str]], str]:
        done = gitboot(*command)
        assert done.code == Exit.FINE, done
        return parse_cells(done), done.err

    alone = "Without --state, gitboot cannot read an instance's accepted commit and records."
    known = f"using commit {accepted[:12]}, which the instance in {state} has accepted, and the records in its ledger; "
    known += f"guards hold commit {held[:12]}"
    chosen = "the variable GITBOOT_STATE selects this instance: add --path . to read the current directory"
    with monkeypatch.context() as patched:
        patched.chdir(work)
        for command in (
            ("plan",),
            ("images",),
            ("explain", "web01"),
            ("plan", "--timeline", "web01", "--at", "2026-11-22T00:00:00Z"),
        ):
            shown, err = rows(*command, "--state", state)
            assert known in " ".join(err.split())
            patched.setenv("GITBOOT_STATE", str(state))
            again, by_variable = rows(*command)
            assert again == shown
            assert " ".join(by_variable.split()) == f"{' '.join(err.split())}; {chosen}"
            assert chosen not in " ".join(gitboot(*command, "--path", ".").err.split())
            patched.delenv("GITBOOT_STATE")
            assert alone in " ".join(gitboot(*command).err.split())
    provision = gitboot("explain", "web01", "provision", "--state", state, "-o", "json").json["reasons"][0]
    assert (provision["value"], provision["commit"]["revision"] == held) == ("1", False)
    assert "2 servers may need" not in gitboot("plan", "--state", state).err, "the ledger has their records"
    for wrong in (("explain", "web1"), ("plan", "--server", "web1"), ("plan", "--timeline", "web1")):
        assert gitboot(*wrong, "--state", state).err == "gitboot: there is no server 'web1'; did you mean web01?\n"
    expected = (
        "gitboot: no commit in the history of the accepted commit contains a server 'web1'; did you mean web01?\n"
    )
    assert gitboot("history", "web1", "--state", state).err == expected
    ahead = gitboot("explain", "web01", "provision", "--path", work, "--state", state, "-o", "json").json["reasons"][0]
    assert ahead["value"] == "2"
    installed = {row[0]: row[3] for row in rows("images", "--state", state)[0]}
    assert installed["flatcar-1"] == "2"
    monkeypatch.setenv("GITBOOT_STATE", str(state))
    assert chosen in " ".join(gitboot("history", "web01").err.split())
    script = gitboot("boot-script", "web01")
    assert (
        script == gitboot("boot-script", "web01", "--tree", followed_repository.folder / "output")
        and script.code == Exit.FINE
    )


def test_commands_withhold_the_same_boots_as_the_instance(followed_repository: FollowedRepository) -> None:
    state = ("--state", followed_repository.folder / "state")
    assert followed_repository.run(records="fresh").code == Exit.FINE

    def phases() -> list[str]:
        """What the instance, `plan` and `explain` state about the next boot of web01, and its first line in time."""
        (published,) = re.findall(r"^# web01: (\w+)", followed_repository.published, re.MULTILINE)
        (planned,) = gitboot("plan", "--server", "web01", *state, "-o", "json").json["items"]
        timeline = gitboot("plan", "--timeline", "web01", *state, "-o", "json").json["items"]
        (explained,) = gitboot("explain", "web01", "phase", *state, "-o", "json").json["reasons"]
        return [published, planned["phase"], timeline[0]["phase"], explained["value"]]

    assert phases() == ["Network"] * 4
    (followed_repository.repository.work / "02.yaml").unlink()
    held = followed_repository.repository.push({"01.yaml": FLEET[1].replace("provision: 1", "provision: 2")})
    assert followed_repository.run().code == Exit.HELD
    assert phases() == ["Disk"] * 4
    done = gitboot("explain", "web01", "withheld", *state)
    assert f"the newer commit {held[:12]} does not offer this install boot" in " ".join(done.out.split())
    assert f"guards hold commit {held[:12]}; gitboot withholds install boots for web01" in " ".join(done.err.split())
    stop = ("stop-installs", "--reason", "INC-1", *state)
    assert "are stopped by" in gitboot(*stop).out
    done = gitboot("allow-installs", *state)
    assert done.code == Exit.FINE and "may boot from the network now" not in done.out, done
    followed_repository.repository.push({"01.yaml": FLEET[1], "02.yaml": FLEET[2]})
    assert followed_repository.run().code == Exit.FINE
    assert phases() == ["Network"] * 4
    assert "are stopped by" in gitboot(*stop).out
    assert followed_repository.run().code == Exit.PARTIAL
    assert phases() == ["Disk"] * 4
    assert "1 server may boot from the network now: web01" in gitboot("allow-installs", *state).out


def test_plan_shows_before_a_window_that_gitboot_withholds_its_install_boot(
    followed_repository: FollowedRepository,
) -> None:
    state, now = ("--state", followed_repository.folder / "state"), datetime.now(UTC).replace(microsecond=0)
    start, end = (f"{now + timedelta(hours=hours):%Y-%m-%dT%H:%M:%S}" for hours in (2, 4))
    followed_repository.repository.push(
        {"99.yaml": maintenance("wipe", f"{start} {end}", select="{servers: [web02]}", boots="web")}
    )
    assert followed_repository.run(records="adopt").code == Exit.FINE
    for removed in ("99.yaml", "02.yaml"):
        (followed_repository.repository.work / removed).unlink()
    held = followed_repository.repository.push({"01.yaml": FLEET[1].replace("provision: 1", "provision: 2")})
    assert followed_repository.run().code == Exit.HELD
    timeline = gitboot("plan", "--timeline", "web02", *state, "-o", "json").json["items"]
    withheld = "a newer commit, which is not accepted yet, does not offer this install boot"
    assert [(each["from"], each["phase"]) for each in timeline if each["why"] == withheld] == [(f"{start}Z", "Disk")]
    assert "withholds install boots for web02" not in " ".join(gitboot("plan", *state).err.split())
    later = gitboot("plan", *state, "--at", "3h")
    assert "withholds install boots for web02" in " ".join(later.err.split())
    explained = " ".join(gitboot("explain", "web02", "withheld", *state).out.split())
    assert f"Maintenance/wipe R5 the newer commit {held[:12]} does not offer this install boot" in explained


def test_an_ended_window_stays_closed_in_commands_after_the_clock_was_set_back(
    followed_repository: FollowedRepository,
) -> None:
    state, now = followed_repository.folder / "state", datetime.now(UTC).replace(microsecond=0)

    def hours(number: int) -> str:
        return f"{now + timedelta(hours=number):%Y-%m-%dT%H:%M:%S}"

    windows = {"early": f"{hours(-4)} {hours(-2)}", "late": f"{hours(-1)} {hours(1)}"}
    made = (maintenance(name, window, select="{servers: [web01]}") for name, window in windows.items())
    followed_repository.repository.push({"99.yaml": "---\n".join(made)})
    assert followed_repository.run(records="adopt").code == Exit.FINE

    def phases(*more: str) -> list[str]:
        """What `plan` and `explain` state about the next boot of web01, and its timeline."""
        given = ("--state", state, "-o", "json", *more)
        (planned,) = gitboot("plan", "--server", "web01", *given).json["items"]
        timeline = gitboot("plan", "--timeline", "web01", *given).json["items"]
        (explained,) = gitboot("explain", "web01", "phase", *given).json["reasons"]
        return [planned["phase"], explained["value"], *(each["phase"] for each in timeline)]

    def maintained() -> int:
        """The number of servers for which `images` counts a maintenance."""
        return sum(each["maintenances"] for each in gitboot("images", "--state", state, "-o", "json").json["items"])

    assert phases() == ["Maintenance", "Maintenance", "Maintenance", "Disk"]
    assert maintained() == 1
    assert phases("--at", f"{hours(-3)}Z")[:2] == ["Maintenance"] * 2, "this clock was not set back"
    with closing(sqlite3.connect(state / "ledger.sqlite", isolation_level=None)) as ledger:
        change = "UPDATE facts SET value = json_set(value, '$.at', ?) WHERE name = 'heartbeat'"
        assert ledger.execute(change, (f"{hours(2)}Z",)).rowcount == 1
    followed_repository.run()
    assert "# web01: Disk" in followed_repository.published
    assert phases() == ["Disk"] * 3
    assert maintained() == 0


def test_a_revision_is_read_in_the_repository_of_the_instance(
    followed_repository: FollowedRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The current directory has another repository, and --path names the one to read."""
    assert followed_repository.run(records="adopt").code == Exit.FINE
    work, state = followed_repository.repository.work, ("-o", "json", "--state", followed_repository.folder / "state")
    old = git(work, "rev-parse", "HEAD")
    followed_repository.repository.push({"99.yaml": image("flatcar-99")})
    assert followed_repository.run().code == Exit.FINE
    there = Repository.create(tmp_path / "elsewhere")
    newest = there.push({path.name: path.read_text() for path in work.glob("*.yaml")}, "Another repository")
    monkeypatch.chdir(there.work)
    for command in ("explain web01 provision", "plan --server web01", "images", "history web01"):
        words = (*command.split(), *state)
        for revision in (old, "refs/gitboot/accepted~1"):
            done = gitboot(*words, "--rev", revision)
            assert done.code == Exit.FINE and done.json == gitboot(*words, "--rev", old, "--path", work).json, done
        for revision in (newest, "HEAD", "main"):
            done = gitboot(*words, "--rev", revision)
            assert done.code == Exit.USAGE
            assert f"has no commit {revision}: an instance's repository" in done.err, done
            assert gitboot(*words, "--rev", revision, "--path", ".").code == Exit.FINE


def test_the_work_tree_is_shown_with_the_records_of_the_instance(
    followed_repository: FollowedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert followed_repository.run(records="adopt").code == Exit.FINE
    work = followed_repository.repository.work
    (work / "99.yaml").write_text(image("flatcar-99"))
    monkeypatch.chdir(work)
    monkeypatch.setenv("GITBOOT_STATE", str(followed_repository.folder / "state"))
    for command in ("explain web01 provision", "plan --server web01", "images"):
        words = (*command.split(), "-o", "json")
        named = gitboot(*words, "--path", ".")
        for rev in (("--rev", "WORKTREE"), ("--rev", "WORKTREE", "--path", work)):
            done = gitboot(*words, *rev)
            assert done.code == Exit.FINE and done.json == named.json, done
            assert f"and the records in the instance's ledger ({followed_repository.folder / 'state'})" in " ".join(
                done.err.split()
            )
    assert gitboot("history", "web01", "--rev", "WORKTREE").err == (
        "gitboot: WORKTREE has no history; specify a revision, or omit --rev to use HEAD\n"
    )


def test_run_once_with_a_stalled_bmc_is_partial(followed_repository: FollowedRepository) -> None:
    spec = "provision: 1, bmc: {address: 'http://127.0.0.1:1', credentials: rack}"
    followed_repository.repository.push({"01.yaml": server("web01", "role: web", spec)})
    followed_repository.name()
    done = followed_repository.run(records="fresh")
    assert done.code == Exit.PARTIAL
    assert "gitboot needs the credentials rack: pass their directory with --credentials" in done.err
    assert "flatcar-1" in followed_repository.published


def test_an_output_tree_of_another_ledger_is_not_touched_until_it_is_adopted(
    followed_repository: FollowedRepository,
) -> None:
    followed_repository.run(records="fresh")
    shutil.rmtree(followed_repository.folder / "state")
    done = followed_repository.run()
    assert (done.code, "belongs to the ledger" in done.err) == (Exit.PARTIAL, True)
    assert followed_repository.run(records="adopt").code == Exit.FINE


def test_a_damaged_ledger_is_named_and_kept_aside(followed_repository: FollowedRepository) -> None:
    (followed_repository.folder / "state").mkdir()
    ledger = followed_repository.folder / "state" / "ledger.sqlite"
    ledger.write_bytes(b"this is no ledger" * 100)
    done = followed_repository.run()
    assert (done.code, f"{ledger}: the ledger cannot be read" in done.err) == (Exit.PARTIAL, True), done
    assert "gitboot renamed the file to ledger.sqlite.damaged-1" in done.err
    assert (ledger.parent / "ledger.sqlite.damaged-1").read_bytes() == b"this is no ledger" * 100


# run --dry-run


def list_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: when it was last written to, and what it holds."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def test_a_dry_run_of_a_new_instance_lists_every_file_and_writes_nothing(
    followed_repository: FollowedRepository,
) -> None:
    before = list_files(followed_repository.folder)
    done = followed_repository.run(once="--dry-run")
    assert done.code == Exit.PARTIAL  # the records are not begun yet
    assert list_files(followed_repository.folder) == before
    written = [line.removeprefix("would write ") for line in done.out.splitlines()]
    assert written == sorted(written)
    assert str(followed_repository.folder / "output" / "boot" / ENTRY) in written
    followed_repository.run()
    made = {path for path in (followed_repository.folder / "output").rglob("*") if path.is_file()}
    bookkeeping = {
        path
        for path in made
        if re.search(r"\.gitboot|ops/(manifest|index/|status\.json)|boot/signed/[^/]+$", str(path))
    }
    assert {Path(path) for path in written} == made - bookkeeping


@pytest.mark.parametrize("left", ["closed", "killed"])
def test_a_dry_run_of_an_instance_prints_the_differences_and_writes_nothing(
    followed_repository: FollowedRepository, left: str
) -> None:
    followed_repository.run(records="fresh")
    if left == "killed":  # with what was written last only in the log beside the ledger
        state = followed_repository.folder / "state"
        with open_ledger(state / "ledger.sqlite") as ledger:
            with ledger.writing() as tx:
                instance_tables.write_facts(tx, initialised="fresh")
            shutil.copytree(state, followed_repository.folder / "copy")
        shutil.rmtree(state)
        (followed_repository.folder / "copy").rename(state)
        assert (state / "ledger.sqlite-wal").stat().st_size > 0
    followed_repository.repository.push({"08.yaml": maintenance("repair")})
    before = list_files(followed_repository.folder)
    done = followed_repository.run(once="--dry-run")
    assert done.code == Exit.FINE
    assert list_files(followed_repository.folder) == before
    assert f"would write {followed_repository.folder / 'output' / 'boot' / ENTRY}\n" in done.out
    told = {event["type"]: event["message"] for event in map(json.loads, done.err.splitlines())}
    assert told["WouldAccept"].startswith("dry run: ") and not {"Accepted", "Published"} & told.keys()
    followed_repository.run()
    assert "memtest-7" in followed_repository.published


def test_a_dry_run_shows_each_patch_and_sends_none(followed_repository: FollowedRepository) -> None:
    credentials = followed_repository.folder / "credentials"
    store_credentials(credentials, password="correct horse")
    machine = Machine("web01", uuid=make_uuid("web01"))
    with RedfishServer(Service(machine, credentials={"root": "correct horse"})) as bmc:
        spec = f"provision: 1, bmc: {{address: '{bmc.url}', credentials: rack}}"
        followed_repository.repository.push({"01.yaml": server("web01", "role: web", spec)})
        followed_repository.name()
        followed_repository.run(records="fresh")
        before = list_files(followed_repository.folder)
        done = followed_repository.run("--credentials", credentials, once="--dry-run")
    assert (machine.writes, list_files(followed_repository.folder)) == ([], before)
    *_, said = done.out.splitlines()
    assert said.startswith('web01: would PATCH /redfish/v1/Systems/1: {"Boot": {"BootSourceOverrideEnabled": "Once"')
    assert "correct horse" not in done.out + done.err


# Settings


def write_config(folder: Path, text: str) -> Path:
    (folder / "gitboot.toml").write_text(text)
    return folder / "gitboot.toml"


def test_settings_come_from_flags_then_variables_then_the_file(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(*arguments: object) -> str:
        done = gitboot("run", *arguments, "--dry-run")
        assert done.code == Exit.PARTIAL, done  # the records are not begun
        (found,) = {Path(line.split()[-1]).relative_to(tmp_path).parts[0] for line in done.out.splitlines()}
        return found

    file = write_config(
        tmp_path,
        f"repository = '{repository.bare}'\nout = '{tmp_path / 'file'}'\nstate = '{tmp_path / 'state'}'\n"
        f"poll = 5\nspool = '{tmp_path / 'spool'}'\n",
    )
    assert output("--config", file) == "file"
    monkeypatch.setenv("GITBOOT_CONFIG", str(file))
    assert output() == "file"
    monkeypatch.setenv("GITBOOT_OUT", str(tmp_path / "variable"))
    assert output() == "variable"
    assert output("--out", tmp_path / "flag") == "flag"
    monkeypatch.setenv("GITBOOT_REPOSITORY", str(tmp_path / "missing"))
    assert gitboot("run", "--dry-run").code == Exit.USAGE


@for_each("name", ["run", "serve", "status", "events", "reconcile"])
def test_each_option_of_an_instance_has_a_variable(name: str) -> None:
    with click.Context(command(name), auto_envvar_prefix="GITBOOT") as context:
        for parameter in command(name).params:
            if isinstance(parameter, click.Option) and parameter.name != "outputs":  # the format is no setting
                spelt = [each[2:].replace("-", "_").upper() for each in parameter.opts if each.startswith("--")]
                variables = parameter.envvar or f"GITBOOT_{str(parameter.name).upper()}"
                assert context.command.context_settings["auto_envvar_prefix"] == "GITBOOT"
                found = {variables} if isinstance(variables, str) else set(variables)
                assert found == {f"GITBOOT_{each}" for each in spelt}


@pytest.mark.parametrize("variable", ["GITBOOT_POLL", "GITBOOT_BMC_PARALLEL"])
def test_a_variable_with_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "often")
    done = gitboot("run", "nowhere", "--out", "o", "--state", "s")
    assert (done.code, f"Invalid value for {variable}: 'often'" in done.err) == (Exit.USAGE, True), done


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("outp = '/srv/boot'\n", "there is no setting 'outp'; did you mean out?"),
        ("reference = 'main'\n", "there is no setting 'reference'"),
        ("git_timeout = 5\n", "did you mean git-timeout?"),
        ("zzz = 1\nxyzzy = 1\n", "there is no setting 'xyzzy'; it may have accept-filesystem, allow-empty"),
        ("[run]\noutput = 'x'\n", "there is no setting 'run'"),
        ("output = \n", "cannot be read: Invalid value"),
        ("poll = 'often'\n", "gitboot.toml: 'often' is not a valid float"),
        ("git-timeout = 'often'\n", "Invalid value for git-timeout in "),
        ("step-minutes = inf\n", "inf is not in the range"),
        ("fetch-memory = 99999999999\n", "is not in the range"),
        ("bmc-parallel = 1.5\n", "bmc-parallel is 1.5; write an integer"),
        ("max-reinstalls = true\n", "max-reinstalls is true; write a string or a number"),
        ("operators = '10.0.0.0/8'\n", 'operators is "10.0.0.0/8"; write a list of strings: operators = ["…"]'),
        ("allow-empty = 1\n", "allow-empty is 1; write allow-empty = true or allow-empty = false"),
        ("config = 'other.toml'\n", "there is no setting 'config'"),
        ("poll = 0\n", "is not in the range"),
        ("records = 'fresh'\n", "there is no setting 'records'"),
        ('spool = "a\\u0000b"\n', "spool contains a NUL character; remove it"),
        ('verify = "head"\nforge-key = ["a=b\\u0000"]\n', "forge-key contains a NUL character; remove it"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_typo_in_the_file_is_named(repository: Repository, tmp_path: Path, text: str | None, said: str) -> None:
    file = write_config(tmp_path, text) if text is not None else tmp_path / "missing.toml"
    done = gitboot(
        "run", repository.bare, "--out", tmp_path / "o", "--state", tmp_path / "s", "--config", file, "--dry-run"
    )
    assert (done.code, said in " ".join(done.err.split())) == (Exit.USAGE, True), done


# A running instance


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("running") / "state"


@pytest.fixture(scope="module")
def instance(state: Path, repository: Repository) -> Iterator[Instance]:
    with running(repository.bare, state.parent, "--poll", "3600", records="fresh") as instance:
        eventually((state / "status.json").exists)
        yield instance


def test_status_shows_an_instance_that_runs(instance: Instance, state: Path) -> None:
    applied = instance.status()["applied"]["commit"]
    shown = gitboot("status", "--state", state)
    assert shown.code == Exit.FINE
    assert f"gitboot        running, process {instance.process.pid}\n" in shown.out
    assert f"applied        {applied}\n" in shown.out
    assert re.search(r"^Published +true +Published +2\d{3}-", shown.out, re.MULTILINE)
    document = gitboot("status", "--state", state, "-o", "json").json
    assert (document["apiVersion"], document["process"]) == ("gitboot.dev/v1alpha1", instance.process.pid)
    assert document["phases"]
    assert document["attempted"] == {"commit": applied, "problems": [], "held": None, "withheld": []}


def test_finding_c5_status_shows_its_age_and_a_false_condition_if_it_is_stale(
    followed_repository: FollowedRepository,
) -> None:
    followed_repository.run(records="fresh")
    state = followed_repository.folder / "state"
    shown = gitboot("status", "--state", state).out
    assert re.search(r"^written        \d+ seconds? ago$", shown, re.MULTILINE)
    assert "StatusCurrent" not in shown
    status = json.loads((state / "status.json").read_bytes())
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    (state / "status.json").write_text(json.dumps({**status, "clock": format_instant(hour_ago)}))
    shown = gitboot("status", "--state", state).out
    assert re.search(r"^StatusCurrent +false +Stale ", shown, re.MULTILINE)
    assert f"df -h {state} OUTPUT" in shown
    assert gitboot("status", "--state", state, "-o", "json").json["ageSeconds"] >= 3600


def test_events_are_lines_oldest_first_of_all_or_of_one_server(instance: Instance, state: Path) -> None:
    lines = gitboot("events", "--state", state, "-o", "json").out.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["type"] for event in events][:3] == ["BranchChosen", "Accepted", "Published"]
    assert lines == [json.dumps(event, sort_keys=True) for event in events]
    texts = gitboot("events", "--state", state).out.splitlines()
    assert [text.split()[:2] for text in texts] == [[f"{event['at'][:19]}Z", event["type"]] for event in events]
    assert gitboot("events", "--state", state, "--server", "web01").out == ""


def test_reconcile_fetches_at_once_and_reports_the_outcome_or_leaves_it_to_status(
    instance: Instance, state: Path
) -> None:
    before = instance.status()["fetched"]["began"]
    done = gitboot("reconcile", "--state", state)
    commit = instance.status()["applied"]["commit"]
    assert (done.code, done.err) == (
        Exit.FINE,
        f"Fetched {commit[:12]}. The commit is accepted, and the instance has reconciled.\n",
    )
    before, before_that = instance.status()["fetched"]["began"], before
    assert before > before_that
    done = gitboot("reconcile", "--state", state, "--timeout", "0")
    assert (done.code, f"Triggered process {instance.process.pid}. Run" in done.err) == (Exit.FINE, True)
    eventually(lambda: instance.status()["fetched"]["began"] > before)


def test_a_second_instance_is_rejected_with_the_process_that_uses_the_state_directory(
    instance: Instance, state: Path, repository: Repository, tmp_path: Path
) -> None:
    done = gitboot("run", repository.bare, "--out", tmp_path / "other", "--state", state, "--once")
    assert (done.code, f"process {instance.process.pid}" in done.err) == (Exit.USAGE, True)
    assert not (tmp_path / "other").exists()


def test_a_dry_run_beside_a_running_instance_does_not_disturb_it(
    instance: Instance, state: Path, repository: Repository
) -> None:
    given = ("--out", state.parent / "output", "--state", state, "--listen", "127.0.0.1:0")
    done = gitboot("run", repository.bare, *given, "--dry-run")
    assert (done.code, done.out) == (Exit.FINE, "")
    assert instance.get("/readyz").status_code == 200
    with closing(sqlite3.connect(state / "ledger.sqlite")) as ledger:
        assert ledger.execute("PRAGMA integrity_check").fetchone() == ("ok",)
