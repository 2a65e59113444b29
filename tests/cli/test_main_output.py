"""What becomes of a command whose output nobody reads to its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import pytest

from gitboot.cli.main import Exit
from tests.helpers.forked_commands import Command
from tests.helpers.running_instance import Repository

EXAMPLE: Final = str(Path(__file__).parents[2] / "example-repo")


def unread() -> int:
    """The end of a pipe that nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    return write


def code(*command: str, unread_errors: bool = False) -> int:
    """How a command ends, of which nobody reads a line; what it says of errors does not name that."""
    output = unread()
    with TemporaryFile("w+") as kept:
        errors = unread() if unread_errors else os.dup(kept.fileno())
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


def test_an_instance_whose_log_nobody_reads_does_its_work(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "apiVersion: gitboot.dev/v1alpha1\nkind: Fleet\nmetadata: {name: f}\n"
                     "spec: {baseURL: http://boot.test}\n"})  # fmt: skip
    places = ("--state", str(tmp_path / "state"), "--out", str(tmp_path / "output"))
    done = code("run", str(repository.bare), *places, "--once", "--allow-empty", unread_errors=True)
    assert done == Exit.FINE and (tmp_path / "output" / "boot" / "boot.ipxe").exists()


@pytest.mark.parametrize("command", [("plan", "-o", "json"), ("plan",), ("--help",), ("explain", "Any")], ids=" ".join)
def test_a_full_output_is_said_once_and_is_no_success(command: tuple[str, ...]) -> None:
    """It was a traceback, and code 1 or 120."""
    where = (EXAMPLE,) if command[0] == "plan" else ()
    done = redirected(f"gitboot {' '.join([*command, *where])} > /dev/full")
    assert done.returncode == Exit.PARTIAL
    lines = [line for line in done.stderr.splitlines() if not re.match(r" |\d+ servers? would", line)]
    assert lines == ["gitboot: standard output cannot be written: No space left on device"]


def test_where_errors_cannot_be_written_the_code_is_what_was_found() -> None:
    assert redirected(f"gitboot validate {EXAMPLE} 2> /dev/full").returncode == Exit.FINE
    assert redirected(f"gitboot explain nobody --path {EXAMPLE} 2> /dev/full").returncode == Exit.USAGE
    assert redirected(f"gitboot explain nobody --path {EXAMPLE} > /dev/full").returncode == Exit.USAGE


def test_a_command_without_any_output_does_its_work(tmp_path: Path) -> None:
    """`>&-` was a traceback. What it writes besides is not given to who writes to output or errors."""
    done = redirected(f"gitboot render {EXAMPLE} --out {tmp_path / 'tree'} <&- >&- 2>&-")
    assert done.returncode == Exit.FINE and (tmp_path / "tree" / "boot" / "boot.ipxe").exists()
    assert redirected(f"gitboot plan {EXAMPLE} >&-").returncode == Exit.FINE


def redirected(command: str) -> subprocess.CompletedProcess[str]:
    """A command as a shell starts it: what is closed there is closed from the start."""
    script = f'gitboot() {{ {sys.executable} -m gitboot "$@"; }}; {command}'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300, check=False)
