"""Exit codes of commands: each code of docs/reference/exits.md, with a closed or unread output too."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final
from unittest.mock import patch

import pytest

from gitboot.cli.main import Exit
from tests.helpers.fleets import document, profile
from tests.helpers.forked_commands import Command
from tests.helpers.instance_with_bmcs import POOL, Rack, run_command
from tests.helpers.running_instance import Repository

UNGUARDED = ("--max-small-group", "9", "--max-reinstalls", "9")
REASON = ("--reason", "INC-4711")
STREAM = document("ImageStream", "stable", "current: flatcar-1, rollout: {image: flatcar-2, percent: 99}")


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path, pool=(*POOL[:2], STREAM, profile("web", "stream: stable"), POOL[3])) as made:
        made.add("web01", provision=1)
        made.add("web02", provision=1)
        made.push()
        assert made.once(records="adopt").code == Exit.FINE
        yield made


def run_and_answer_no(*command: object) -> int:
    """Return the code of a command that asks on a terminal and gets the answer no."""
    screen, typing = os.openpty()
    os.write(screen, b"n\n")
    with open(typing) as stdin, open(screen, "rb"), patch.object(sys, "stdin", stdin):
        return run_command(*command).code


def test_each_exit_code_is_that_of_a_command(rack: Rack) -> None:
    work, folder = rack.repository.work, rack.folder
    broken = folder / "broken"
    broken.mkdir()
    (broken / "fleet.yaml").write_text("kind: Nothing\n")
    found = {
        Exit.FINE: run_command("validate", work).code,
        Exit.INVALID: run_command("validate", broken).code,
        Exit.USAGE: run_command("plan", work, "--server", "nobody").code,
        Exit.PARTIAL: rack.run_command("bmc", "get", "--credentials", broken).code,
        Exit.INTERRUPTED: run_and_answer_no(
            "records", "set", "web01", "web02", "pending", "--state", rack.state, *REASON
        ),
        Exit.STALE: rack.run_command("approve", "0" * 64, "--guard", "maxReinstalls", *REASON).code,
    }
    rack.said("records", "set", "web01", "web02", "pending", "--yes", *REASON)
    rack.once(*rack.spool_options)
    rollout = (
        "rollout",
        "advance",
        "stable",
        "--path",
        work,
        "--records",
        rack.output,
        "--steps",
        "99,100",
        "--accept-fetched",
    )
    found[Exit.WAITS] = run_command(*rollout).code
    rack.blades["web01"].provision += 1
    rack.push("Reinstall web01")
    found[Exit.CHANGES] = run_command("diff", "HEAD~1", "--path", work, "--detailed-exitcode", *UNGUARDED).code
    found[Exit.HELD] = rack.once().code
    rack.said("suspend", "--until", "2099-01-01T00:00:00Z", *REASON)
    found[Exit.SUSPENDED] = rack.once().code
    rack.said("resume")
    rack.repository.bare.rename(folder / "away")
    found[Exit.SOURCE] = rack.once().code
    (rack.state / "ledger.sqlite").write_bytes(b"this is no ledger" * 100)
    found[Exit.FAULT] = rack.run_command("events").code
    assert found == {code: code for code in Exit}


EXAMPLE: Final = str(Path(__file__).parents[2] / "example-repo")


@pytest.mark.parametrize("file", ["/srv/fleet/new.yaml", None])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_is_full_or_fails_is_reported_in_one_message(tmp_path: Path, number: int, file: str | None) -> None:
    """The error of a write does not contain the file, and ended in a traceback."""
    error = OSError(number, os.strerror(number), *filter(None, [file]))
    with patch("gitboot.cli.evaluated_fleet.evaluate_fleet", side_effect=error):
        done = run_command("validate", tmp_path)
    place = f"{file}: " if file is not None else ""
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert done.err.startswith(f"gitboot: {place}{os.strerror(number)}; ") and done.err.count("\n") == 1


def unread_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def code(*command: str, unread_errors: bool = False) -> int:
    """Return the exit code of a command whose output is not read; its errors do not mention that."""
    output = unread_pipe()
    with TemporaryFile("w+") as kept:
        errors = unread_pipe() if unread_errors else os.dup(kept.fileno())
        try:
            return Command(command, os.environ, output=output, errors=errors).wait(300)
        finally:
            os.close(output)
            os.close(errors)
            kept.seek(0)
            assert not re.search("Traceback|Broken pipe|BrokenPipe|Exception", kept.read())


@pytest.mark.parametrize("unread_errors", [False, True], ids=["output", "errors too"])
def test_a_closed_pipe_makes_no_failure_a_success(tmp_path: Path, unread_errors: bool) -> None:
    """`validate | head` passed an invalid fleet, even under `pipefail`."""
    (tmp_path / "fleet.yaml").write_text("kind: Nothing\n")
    assert code("validate", str(tmp_path), unread_errors=unread_errors) == Exit.INVALID
    assert code("plan", str(tmp_path), "-o", "json", unread_errors=unread_errors) == Exit.INVALID
    assert code("explain", "nobody", "--path", EXAMPLE, unread_errors=unread_errors) == Exit.USAGE


@pytest.mark.parametrize("command", [("validate",), ("plan", "-o", "json"), ("render", "--out", "TREE")])
def test_a_closed_pipe_makes_no_success_a_failure(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *options = (str(tmp_path / "tree") if word == "TREE" else word for word in command)
    assert code(name, EXAMPLE, *options) == Exit.FINE


def test_an_instance_works_even_if_its_log_is_not_read(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "apiVersion: gitboot.dev/v1alpha1\nkind: Fleet\nmetadata: {name: f}\n"
                     "spec: {baseURL: http://boot.test}\n"})  # fmt: skip
    places = ("--state", str(tmp_path / "state"), "--out", str(tmp_path / "output"))
    done = code("run", str(repository.bare), *places, "--once", "--allow-empty", unread_errors=True)
    assert done == Exit.FINE and (tmp_path / "output" / "boot" / "boot.ipxe").exists()


@pytest.mark.parametrize("command", [("plan", "-o", "json"), ("plan",), ("--help",), ("explain", "Any")], ids=" ".join)
def test_a_full_output_is_reported_once_and_is_a_failure(command: tuple[str, ...]) -> None:
    """It was a traceback, and code 1 or 120."""
    where = (EXAMPLE,) if command[0] == "plan" else ()
    done = run_redirected(f"gitboot {' '.join([*command, *where])} > /dev/full")
    assert done.returncode == Exit.PARTIAL
    lines = [
        line
        for line in done.stderr.splitlines()
        if not re.match(r" |Without --state|\d+ servers? may need an installation", line)
    ]
    assert lines == ["gitboot: cannot write to standard output: No space left on device"]


def test_if_errors_cannot_be_written_the_exit_code_is_still_right() -> None:
    assert run_redirected(f"gitboot validate {EXAMPLE} 2> /dev/full").returncode == Exit.FINE
    assert run_redirected(f"gitboot explain nobody --path {EXAMPLE} 2> /dev/full").returncode == Exit.USAGE
    assert run_redirected(f"gitboot explain nobody --path {EXAMPLE} > /dev/full").returncode == Exit.USAGE


def test_a_command_works_without_any_open_output(tmp_path: Path) -> None:
    """`>&-` was a traceback. Other files that the command opens do not replace its output or errors."""
    done = run_redirected(f"gitboot render {EXAMPLE} --out {tmp_path / 'tree'} <&- >&- 2>&-")
    assert done.returncode == Exit.FINE and (tmp_path / "tree" / "boot" / "boot.ipxe").exists()
    assert run_redirected(f"gitboot plan {EXAMPLE} >&-").returncode == Exit.FINE


def run_redirected(command: str) -> subprocess.CompletedProcess[str]:
    """A command as a shell starts it: what is closed there is closed from the start."""
    script = f'gitboot() {{ {sys.executable} -m gitboot "$@"; }}; {command}'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300, check=False)
