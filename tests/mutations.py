"""The faults of mutations.yaml: read, put into a copy of the code, and compared with what their tests notice."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
import yaml

ROOT: Final = Path(__file__).parent.parent
LIST: Final = Path(__file__).with_name("mutations.yaml")
_PATIENCE_S: Final = 900  # of one run of pytest: a fault may make a test wait without end
_PASSED, _FAILED = 0, 1  # exit codes of pytest


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """One fault: a replacement in one file, and the test that notices it."""

    package: str
    fault: str
    file: str
    old: str
    new: str
    test: str

    def apply(self, root: Path, stamp_s: int) -> None:
        """Put the fault into the tree at ``root``. Raises ValueError if the old text does not occur exactly once.

        Python compiles a module again only if its size or the second of its modification time differs. ``stamp_s`` is
        that time; a caller that edits a file twice must pass two.
        """
        path = root / self.file
        content = path.read_text() if path.is_file() else ""
        if (number := content.count(self.old)) != 1:
            raise ValueError(f"the old text occurs {number} times in {self.file}")
        path.write_text(content.replace(self.old, self.new))
        os.utime(path, (stamp_s, stamp_s))


class Outcome(StrEnum):
    NOTICED = "noticed"
    NOT_NOTICED = "NOT NOTICED"
    NOT_APPLIED = "DOES NOT APPLY"
    NOT_RUN = "TEST CANNOT RUN"


def load(path: Path = LIST) -> tuple[Mutation, ...]:
    """Return the mutations of a list. Raises TypeError if one has other keys than a mutation."""
    return tuple(Mutation(**each) for each in yaml.safe_load(path.read_text())["faults"])


def run(mutations: Iterable[Mutation], tests: Sequence[str] = (), root: Path = ROOT) -> bool:
    """Print what the test of each mutation, or these ``tests``, makes of it; return whether all are noticed."""
    with TemporaryDirectory(prefix="gitboot-mutations-") as folder:
        copy = Path(folder)
        _copy_tree(root, copy)
        named = tests or sorted({each.test for each in mutations})
        if (status := _pytest(copy, named)) != _PASSED:
            click.echo(f"the tests do not pass without a fault: pytest ended with {status}", err=True)
            return False
        outcomes = []
        for number, each in enumerate(mutations):
            outcomes.append(_outcome(copy, each, tests or [each.test], stamp_s=2 * number))
            click.echo(f"{outcomes[-1]:15}  {each.package:10}  {each.fault}")
    noticed = outcomes.count(Outcome.NOTICED)
    click.echo(f"{noticed} of {len(outcomes)} faults are noticed")
    return noticed == len(outcomes)


def _outcome(copy: Path, mutation: Mutation, tests: Sequence[str], *, stamp_s: int) -> Outcome:
    path = copy / mutation.file
    before = path.read_bytes() if path.is_file() else b""
    try:
        mutation.apply(copy, stamp_s)
    except ValueError:
        return Outcome.NOT_APPLIED
    try:
        status = _pytest(copy, tests, quiet=True)
    finally:
        path.write_bytes(before)
        os.utime(path, (stamp_s + 1, stamp_s + 1))
    return {_PASSED: Outcome.NOT_NOTICED, _FAILED: Outcome.NOTICED}.get(status, Outcome.NOT_RUN)


def _copy_tree(root: Path, to: Path) -> None:
    """Copy what Git tracks at ``root`` or would track, without its history."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_symlink() or (root / name).exists():  # else it was deleted, and that is not committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name, follow_symlinks=False)


def _pytest(copy: Path, tests: Sequence[str], *, quiet: bool = False) -> int:
    """Run tests of the copy with the copy's gitboot, in their subprocesses too; return the exit code of pytest.

    With CI=true a program that is missing fails its tests, and Hypothesis tries the same examples each time.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "CI": "true"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL if quiet else None,
        stderr=subprocess.DEVNULL if quiet else None,
        start_new_session=True,
    )
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Run the faults whose package or sentence contains one of the words; without words all."""
    parser = argparse.ArgumentParser(description="Put faults into a copy of the code; see which of them tests notice.")
    parser.add_argument("word", nargs="*", help="part of a package's name or of a fault's sentence")
    parser.add_argument(
        "--test", action="append", default=[], help="a file or a node id of tests to run instead; may be repeated"
    )
    given = parser.parse_args()
    chosen = [each for each in load() if not given.word or any(_has(each, word) for word in given.word)]
    return 0 if run(chosen, given.test) else 1


def _has(mutation: Mutation, word: str) -> bool:
    return word in (mutation.package, mutation.file) or word.lower() in mutation.fault.lower()


if __name__ == "__main__":
    sys.exit(main())
