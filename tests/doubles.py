"""What an instance in this process works with instead of Git, a tree, or a disk that keeps what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from typing import Any, ClassVar, Final

from gitboot.bmc.job import Job, Result
from gitboot.diff import compare
from gitboot.diff.guard import Limits
from gitboot.errors import PublishError
from gitboot.instance.evaluation import Commit, Evaluated, commit_of
from gitboot.instance.inbox import Bmcs
from gitboot.ledger.store import Store
from gitboot.load import FleetRepository, Revision
from gitboot.load.machines import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.publish.directory import Published
from gitboot.render.tree import File, Files
from gitboot.resolve import decide

UNGUARDED: Final[dict[str, Any]] = {"max_reinstalls": 10**6, "max_small_group": 10**6, "mutated_images": 10**6}
UNLIMITED: Final = Limits(
    **UNGUARDED,
    max_update_percent=100,
    max_delete_percent=100,
    max_deletes=10**6,
    max_installs=10**6,
    max_unknown_changes=10**6,
    allow_empty=True,
    allow_rewind=True,
)


class Unsynced(Store):
    """A ledger that does not wait for the disk: no power cut is tested with it."""

    synchronous: ClassVar = "OFF"


@dataclass
class Commits:
    """A source, and an evaluation, of commits that a test makes of repositories."""

    newest: FleetRepository | None = None
    _adopted: FleetRepository | None = None
    _numbers: ClassVar = count(1)

    def push(self, repository: FleetRepository) -> None:
        self.newest = replace(repository, revision=Revision(f"{next(self._numbers):040}"))

    @property
    def commit(self) -> Commit:
        """The newest."""
        assert self.newest is not None
        return commit_of(self.newest, decide(self.newest))

    def latest(self) -> Revision | None:
        return self.newest.revision if self.newest is not None else None

    def accepted(self) -> Revision | None:
        return None

    def has(self, revision: Revision) -> bool:
        return False

    def accept(self, revision: Revision) -> None:
        """It has no clone in which that could be noted."""

    def restore(self, accepted: Revision | None) -> None:
        """It has no clone that could be damaged."""

    def messages(self, since: Revision | None, revision: Revision) -> list[tuple[str, str]]:
        return []

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        return False

    def evaluate(self, revision: Revision, *, wait: bool = False) -> Evaluated:
        new, old = self.newest, self._adopted
        assert new is not None and new.revision == revision
        decisions = decide(new)
        changes = compare(decide(old) if old is not None else None, decisions, old, new)
        return Evaluated(commit=commit_of(new, decisions), changes=changes)

    def adopt(self, commit: Commit) -> None:
        self._adopted = self.newest

    def forget(self) -> None:
        """It reads each commit wholly."""


@dataclass
class Taking:
    """A target that takes what it is given."""

    full: bool = False  # whether its disk is

    def publish(
        self, servers: Mapping[str, Files | None], shared: Files | None, *, complete: bool, commit: str, at: datetime
    ) -> Published:
        if self.full:
            raise PublishError("no space left on device")
        return Published(written=(), withdrawn=(), expired=(), unchanged=0)

    def dated(self, path: str, file: File, at: datetime) -> int:
        return int(at.timestamp())


@dataclass
class Gate:
    """BMCs that a test can put out of reach for a while."""

    bmcs: Bmcs
    takes: bool = True  # whether jobs are taken
    gives: bool = True  # whether what came of those that have ended is given

    def submit(self, jobs: tuple[Job, ...]) -> frozenset[SystemUuid]:
        return self.bmcs.submit(jobs) if self.takes else frozenset()

    def forget(self, uuids: frozenset[SystemUuid]) -> None:
        self.bmcs.forget(uuids)

    def fingerprint(self, bmc: BmcAccess) -> str | None:
        return self.bmcs.fingerprint(bmc)

    def finished(self, *, wait_all: bool = False) -> Mapping[SystemUuid, Result]:
        return self.bmcs.finished(wait_all=wait_all) if self.gives else {}

    def close(self) -> None:
        self.bmcs.close()
