"""The files of one gitboot and a fleet of one size: the repository, the instance, the checkout."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.cost import Cost, measure_command
from benchmarks.fleet import Fleet
from benchmarks.gitboot_version import Gitboot
from benchmarks.instance import Instance
from benchmarks.repository import Repository
from benchmarks.row import CannotRun


class Place:
    """A folder for one gitboot and a fleet of ``servers``. Rows share its files, which are made at first use."""

    def __init__(self, folder: Path, servers: int, gitboot: Gitboot, *, tools: Path, rounds: int) -> None:
        self.folder, self.servers, self.gitboot, self.tools, self.rounds = folder, servers, gitboot, tools, rounds
        self.fleet = Fleet(servers=servers, bmcs=False, spec=gitboot.spelling.fleet_spec)
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        shutil.rmtree(self.folder)

    @contextmanager
    def own_folder(self, name: str) -> Iterator[Path]:
        """Make a folder for one row, and remove it at the end of the block."""
        (made := self.folder / name).mkdir()
        try:
            yield made
        finally:
            shutil.rmtree(made)

    @cached_property
    def repository(self) -> Repository:
        """The fleet as one commit. Later commits are for `instance`."""
        repository = Repository(self.folder / "fleet.git")
        repository.commit(self.fleet.files())
        return repository

    @cached_property
    def first_passes(self) -> list[Cost]:
        """The cost of each pass into an empty OUTPUT."""
        return [self._published[1], *(self._measure_first_pass() for _ in range(self.rounds - 1))]

    def _measure_first_pass(self) -> Cost:
        with self.own_folder("first-pass") as folder:
            instance = Instance(folder, self.repository, self.fleet, self.gitboot)
            (cost,) = measure_command(instance.command("--once"), rounds=1)
        return cost

    @property
    def published_instance(self) -> Instance:
        """An instance that has published the fleet and has a record of each server. It runs if `instance` was used."""
        return self._published[0]

    @cached_property
    def instance(self) -> Instance:
        """The published instance, running."""
        self._closing.enter_context(self.published_instance.running())
        self.published_instance.wait_until_idle()
        return self.published_instance

    def pause(self) -> None:
        """End the published instance if it runs. The next use of `instance` starts it again."""
        self.__dict__.pop("instance", None)
        self._closing.close()

    def stop_instance(self) -> Instance:
        """Return the published instance, ended."""
        self.pause()
        return self.published_instance

    @cached_property
    def _published(self) -> tuple[Instance, Cost]:
        instance = Instance(self.folder, self.repository, self.fleet, self.gitboot)
        return instance, instance.begin()

    @cached_property
    def output(self) -> Path:
        """The published tree of a fleet whose servers are all installed."""
        _ = self.instance
        return self.stop_instance().output

    @cached_property
    def checkout(self) -> Path:
        """The first commit of the fleet, as a work tree of a repository of its own."""
        found, repository = self.folder / "checkout", Repository(self.folder / "checkout.git")
        repository.commit(self.fleet.files())
        subprocess.run(["git", "clone", "-q", str(repository.path), str(found)], check=True)
        return found

    @cached_property
    def documents(self) -> Path:
        """The list of the YAML files of the checkout."""
        listed = self.folder / "documents"
        listed.write_text("".join(f"{path}\n" for path in sorted(self.checkout.rglob("*.yaml"))))
        return listed


@contextmanager
def memory(name: str) -> Iterator[Path]:
    """Make a folder in memory."""
    root = Path("/dev/shm")
    if not root.is_dir():
        raise CannotRun("there is no /dev/shm")
    with TemporaryDirectory(prefix=f"{name}-", dir=root) as folder:
        yield Path(folder)


@contextmanager
def disk(name: str, scratch: Path) -> Iterator[Path]:
    """Mount a new ext4 file system from a file below ``scratch``. A used one can be several times slower."""
    image, at = scratch / f"{name}.ext4", scratch / f"{name}.mounted"
    at.mkdir()
    commands = (
        ["truncate", "-s", "64G", str(image)],
        ["mkfs.ext4", "-q", "-N", "8000000", str(image)],
        ["mount", "-o", "loop", str(image), str(at)],
    )
    try:
        for command in commands:
            if subprocess.run(command, capture_output=True, check=False).returncode:
                raise CannotRun(f"a new disk cannot be mounted: {command[0]} failed; it needs root and loop devices")
        try:
            yield at
        finally:
            subprocess.run(["umount", str(at)], check=True)
    finally:
        image.unlink(missing_ok=True)
        at.rmdir()
