"""Text that strangers write into commits, machines and BMCs, printed by commands in real processes.

No terminal and no CI system may execute any of it, in any format of any command.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import tty
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from xml.etree import ElementTree

import click
import httpx
import pytest

from gitboot.cli.main import Exit, cli
from tests.helpers.disks_and_terminals import read_to_end
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import SHA, document, fleet, image, policy, profile, server
from tests.helpers.forked_commands import Command, RunningCommand, run_forked
from tests.helpers.git_repositories import WorkTree
from tests.helpers.instance_with_bmcs import Rack
from tests.helpers.running_instance import begin_records

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e\u200b\n::error::owned\n##[add-mask]owned ##vso[task.complete]owned"
# Possible names of files: a slash would begin another folder.
NAMES = (
    "::error file=x::owned.yaml",
    "##[add-mask]owned.yaml",
    "\x1b[31mowned\x9b2J\u202e.yaml",
    "a\n::warning::b.yaml",
)


def find_harmful(text: str) -> list[str]:
    """The lines that a terminal or a CI system would not just show."""
    return [
        line
        for line in text.split("\n")
        if not line.replace("\t", "").isprintable()
        or line.lstrip().startswith("::")
        or re.search(r"##(?:vso|teamcity)?\[", line, re.IGNORECASE)
    ]


def run_on_terminal(*arguments: object) -> str:
    """Return what a command sends a terminal, without the control sequences that gitboot and rich write."""
    screen, written = os.openpty()
    tty.setraw(written)
    command = Command([str(each) for each in arguments], os.environ, output=written, errors=written)
    os.close(written)
    text = read_to_end(screen).decode()
    command.wait(300)
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", text)  # colours, and a bar that is drawn


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkTree:
    """A fleet, checked out in the current directory; its next commit has files with hostile names."""
    made = WorkTree(tmp_path / "fleet")
    made.commit({"fleet.yaml": fleet()}, "First")
    made.write(dict.fromkeys(NAMES, "kind: [\n"))
    made.git("add", ".")
    made.git("commit", "--quiet", "--message", HOSTILE)
    monkeypatch.chdir(made.path)
    return made


@pytest.mark.parametrize(
    "command", ["validate", "validate --rev HEAD", "diff HEAD~1..HEAD", "plan", "images", "history web01"]
)
def test_finding_s14_no_file_name_begins_a_command_of_a_ci_system(work: WorkTree, command: str) -> None:
    done = run_forked(*command.split())
    assert done.returncode in (Exit.INVALID, Exit.USAGE)
    assert find_harmful(done.stdout + done.stderr) == []
    assert find_harmful(run_on_terminal(*command.split())) == []


@pytest.mark.parametrize("format", ["text", "json", "sarif", "junit", "markdown"])
@pytest.mark.parametrize("to_file", [False, True], ids=["printed", "in a file"])
def test_no_format_contains_terminal_commands(work: WorkTree, tmp_path: Path, format: str, to_file: bool) -> None:
    file = tmp_path / "found"
    done = run_forked("diff", "HEAD~1..HEAD", "-o", f"{format}={file}" if to_file else format)
    text = file.read_text() if to_file else done.stdout
    assert "owned" in text and find_harmful(text) == []
    if format == "json":
        assert set(NAMES) <= {each["path"] for each in json.loads(text)["problems"]}
    if format == "sarif":
        assert text.isascii() and json.loads(text)["runs"]
    if format == "junit":
        ElementTree.fromstring(text)


@pytest.mark.parametrize(
    "command",
    [
        "images",
        "images -o json",
        "explain web01 --path .",
        "diff HEAD~1",
        "diff HEAD~1 -o markdown",
        "diff HEAD~1 -o github",
    ],
)
def test_no_text_of_a_vendor_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """The version, the channel and the key of an image come from a vendor's server, or claim to."""
    work, quoted = WorkTree(tmp_path / "fleet"), json.dumps(HOSTILE)
    follow = f"follow: {{source: flatcar, channel: {quoted}, belowVersion: {quoted}}}"
    documents = {
        "fleet.yaml": fleet(),
        "web01.yaml": server("web01"),
        "web.yaml": profile("web", "stream: stable"),
        "policy.yaml": policy("web"),
        "stream.yaml": document("ImageStream", "stable", "current: flatcar-1"),
        "image.yaml": image("flatcar-1"),
    }
    work.commit(documents, "First")
    claim = f"sha256: {SHA}, provenance: {{digest: signed, key: {quoted}}}"
    new = image("flatcar-1").replace(f"sha256: {SHA}", claim).replace("version: '1'", f"version: {quoted}")
    work.commit({"image.yaml": new, "stream.yaml": document("ImageStream", "stable", f"current: flatcar-1, {follow}")})
    monkeypatch.chdir(work.path)
    done = run_forked(*command.split())
    assert "owned" in done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("::warning file=", "::error file="))]
    assert find_harmful("\n".join(lines) + done.stderr) == []
    if "-o" not in command:
        assert find_harmful(run_on_terminal(*command.split())) == []


def test_commands_for_github_contain_no_other_commands(work: WorkTree) -> None:
    """A command ends at the end of its line, and its properties at a comma or a colon."""
    lines = run_forked("validate", "-o", "github").stdout.splitlines()
    commands = [re.fullmatch(r"::error file=([^,:]*),line=\d+,col=\d+,title=GB\d+::([^\n]*)", line) for line in lines]
    assert len(commands) >= len(NAMES) and all(commands)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    "author",
    [
        b"\xe9 <\xff>",
        HOSTILE.encode() + b" <c@d>",
        b"A <B> <c@d>",
        b"A > B <c@d>",
        b"< <c@d>",
        b" <>",
        b"A <>",
        b" <c@d>",
    ],
    ids=repr,
)
def test_finding_s17_no_name_of_an_author_ends_explain_or_controls_a_terminal(tmp_path: Path, author: bytes) -> None:
    work = WorkTree(tmp_path / "fleet")
    who = author.replace(b"\n", b"\r")  # a header ends with its line
    work.commit({"server.yaml": server("web01")}, "First")
    documents = [fleet(), image("flatcar-1"), profile("web", "flatcar-1"), policy("web")]
    work.commit({"fleet.yaml": "---\n".join(documents)}, "Second")
    odd = tmp_path / "commit"
    tree, parent = work.git("rev-parse", "HEAD^{tree}").encode(), work.git("rev-parse", "HEAD~1").encode()
    odd.write_bytes(
        b"tree %s\nparent %s\nauthor %s 1 +0000\ncommitter %s 1 +0000\n\n%s"
        % (tree, parent, who, who, HOSTILE.encode())
    )
    work.git("reset", "--quiet", work.git("hash-object", "-t", "commit", "-w", "--literally", str(odd)))
    for command in (["explain", "web01", "--path"], ["history", "web01", "--path"], ["diff", "HEAD~1..HEAD"]):
        done = run_forked(*command, work.path)
        assert done.returncode in (Exit.FINE, Exit.HELD), done.stderr
        assert find_harmful(done.stdout + done.stderr) == []
    reasons = json.loads(run_forked("explain", "web01", "--path", work.path, "-o", "json").stdout)["reasons"]
    days = {each["commit"]["date"][:4] for each in reasons if each["commit"]}
    assert days == {"1970", "2026"}, "each line has the commit that wrote it"


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    base_url = "baseURL: 'http://127.0.0.1:9/x/$(touch$IFS$9owned);id&'"
    with Rack(tmp_path_factory.mktemp("hostile"), settings=base_url) as made:
        made.add("web01", provision=1).more = ", serial: J4JMO72"
        made.push(HOSTILE)
        yield made


def test_finding_s7_no_machine_controls_the_terminal_that_shows_events(rack: Rack) -> None:
    """A machine sends a serial number in its query that differs from the document."""
    begun = RunningCommand(
        *("run", rack.repository.bare, "--out", rack.output, "--state", rack.state, "--credentials", rack.credentials),
        *("--listen", "127.0.0.1:0", "--poll", "3600", "--log-format", "text"),
    )
    with begun as instance:
        killer = Timer(600, instance.kill)  # a text that never comes fails the test
        killer.start()
        lines: list[str] = []
        url = _read_until(instance.stderr, lines, r"http://127\.0\.0\.1:\d+")
        begin_records(rack.state, "fresh")
        _read_until(instance.stderr, lines, "Published")
        path = rack.blades["web01"].entry
        asked = {"serial": HOSTILE.replace("\n", "\r"), "uuid": ""}
        answer = httpx.get(url + path, params=asked, headers=LOADER, timeout=60)
        assert answer.status_code == 200
        _read_until(instance.stderr, lines, "not the machine in the Server document")
        instance.send_signal(signal.SIGTERM)
        lines += instance.stderr.read().splitlines()
        killer.cancel()
    assert any("OWNED" in line for line in lines) and find_harmful("\n".join(lines)) == []
    for command in ("events", "events -o json", "status", "status -o json", "unknown-machines", "records show"):
        arguments = [*command.split(), "--state", rack.state]
        done = run_forked(*arguments)
        assert find_harmful(done.stdout + done.stderr) == [], command
        assert find_harmful(run_on_terminal(*arguments)) == [], command
    assert "OWNED" in run_forked("events", "--state", rack.state).stdout


def _read_until(stream: Iterator[str], lines: list[str], pattern: str) -> str:
    for line in stream:
        lines.append(line.rstrip("\n"))
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(lines)


def test_no_bmc_controls_the_terminal_that_shows_it(rack: Rack) -> None:
    rack.once()  # it has accepted a commit
    machine = rack.blades["web01"].machine
    machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget=f"Pxe{HOSTILE}")
    for command in ("bmc get", "bmc apply --dry-run", "bmc power get"):
        arguments = [*command.split(), "--state", rack.state, "--credentials", rack.credentials]
        done = run_forked(*arguments)
        assert find_harmful(done.stdout + done.stderr) == [], command
        assert find_harmful(run_on_terminal(*arguments)) == [], command


def test_finding_s17_doctor_prints_commands_whose_values_are_quoted(rack: Rack) -> None:
    rack.once()  # it has accepted a commit
    done = run_forked("doctor", "--state", rack.state)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("    curl "))
    command, option, url = shlex.split(line)
    assert (command, option) == ("curl", "-I")
    assert url.startswith("http://127.0.0.1:9/x/$(touch$IFS$9owned);id&/")


# Every command


def _leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _leaves(found, (*path, name))
    else:
        yield path, command


COMMANDS = dict(_leaves(cli))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_command_obeys_or_passes_on_hostile_input(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value that a command has to have is hostile; so is a value that it may have, and does not take."""
    monkeypatch.chdir(tmp_path)
    needed: list[str] = []
    for each in COMMANDS[path].params:
        if isinstance(each, click.Argument):
            needed.append(HOSTILE)
        elif each.required:
            needed += [each.opts[0], HOSTILE]
    for more in ([], [HOSTILE], ["--no-such-option", HOSTILE], [f"--{HOSTILE}"]):
        done = run_forked(*path, *needed, *more)
        assert find_harmful(done.stdout + done.stderr) == []
        assert "Traceback" not in done.stderr
