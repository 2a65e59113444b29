"""Where a fleet of one size lies while it is measured: its repository, its instance, what is made of it once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.cost import Cost
from benchmarks.fleet import Fleet
from benchmarks.repository import Repository
from benchmarks.row import CannotRun
from benchmarks.running import Instance


class Place:
    """A folder for fleets of ``servers``; all that lies there is made when it is first asked for."""

    def __init__(self, folder: Path, servers: int, *, tools: Path, rounds: int) -> None:
        self.folder, self.servers, self.tools, self.rounds = folder, servers, tools, rounds
        self.fleet = Fleet(servers=servers, bmcs=False)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        shutil.rmtree(self.folder)

    @cached_property
    def repository(self) -> Repository:
        """The fleet as one commit; what follows in it belongs to the instance."""
        repository = Repository(self.folder / "fleet.git")
        repository.commit(self.fleet.files())
        return repository

    @cached_property
    def first_pass(self) -> Cost:
        """What it cost to publish the fleet once; `instance` goes on from there."""
        return self._published[1]

    @property
    def standing(self) -> Instance:
        """One that knows that all is installed, and does not run unless `instance` was asked for."""
        return self._published[0]

    @cached_property
    def instance(self) -> Instance:
        """The same, running."""
        self._open.enter_context(self.standing.running())
        self.standing.settle()
        return self.standing

    @cached_property
    def _published(self) -> tuple[Instance, Cost]:
        instance = Instance(self.folder, self.repository, self.fleet)
        return instance, instance.begin()

    @cached_property
    def checkout(self) -> Path:
        """The fleet's files, as a work tree of a repository of its own."""
        found = self.folder / "checkout"
        subprocess.run(["git", "clone", "-q", str(self.repository.path), str(found)], check=True)
        return found

    @cached_property
    def documents(self) -> Path:
        """The list of the YAML files of the checkout."""
        listed = self.folder / "documents"
        listed.write_text("".join(f"{path}\n" for path in sorted(self.checkout.rglob("*.yaml"))))
        return listed


@contextmanager
def memory(name: str) -> Iterator[Path]:
    """A folder in memory."""
    root = Path("/dev/shm")
    if not root.is_dir():
        raise CannotRun("there is no /dev/shm")
    with TemporaryDirectory(prefix=f"{name}-", dir=root) as folder:
        yield Path(folder)


@contextmanager
def disk(name: str, scratch: Path) -> Iterator[Path]:
    """A fresh ext4 in a file below ``scratch``: a worn one is several times as slow after a mass deletion."""
    image, at = scratch / f"{name}.ext4", scratch / f"{name}.mounted"
    at.mkdir()
    made = (
        ["truncate", "-s", "64G", str(image)],
        ["mkfs.ext4", "-q", "-N", "8000000", str(image)],
        ["mount", "-o", "loop", str(image), str(at)],
    )
    try:
        for command in made:
            if subprocess.run(command, capture_output=True, check=False).returncode:
                raise CannotRun(f"there is no fresh disk: {command[0]} needs root, and loop devices")
        try:
            yield at
        finally:  # or nothing of it can be removed
            subprocess.run(["umount", str(at)], check=True)
    finally:
        image.unlink(missing_ok=True)
        at.rmdir()
