"""What becomes of a command whose output nobody reads to its end."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import pytest

from gitboot.cli.exit import Exit
from tests.instance import Repository
from tests.preloaded import Command

EXAMPLE: Final = str(Path(__file__).parent.parent / "example-repo")


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
            return Command(command, os.environ, output=output, errors=errors).wait(60)
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
