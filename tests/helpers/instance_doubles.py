"""What an instance in this process works with instead of Git, a tree, or a disk that keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from gitboot.bmc.override_session import BmcTask, TaskResult
from gitboot.child_processes import encode
from gitboot.controller.reconcile_inputs import Bmcs
from gitboot.errors import PublishError
from gitboot.evaluator import protocol
from gitboot.evaluator.client import assembled
from gitboot.evaluator.evaluation import Evaluator
from gitboot.evaluator.evaluation_result import Commit, Evaluated, commit_of
from gitboot.evaluator.process import report
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, line_of
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.fleet.validation import load
from gitboot.git.history import Merge
from gitboot.ledger.store import Store
from gitboot.model.scalars import SystemUuid
from gitboot.publish.publisher import Published
from gitboot.publish.signed_list import ListKeys
from gitboot.publish.tree_changes import EndedWindows
from gitboot.render.paths import File, Files
from gitboot.render.plan_and_record_files import PartFiles
from gitboot.resolve.fleet_decisions import decide
from gitboot.review.guards import Limits
from tests.helpers import fleets

UNGUARDED: Final[dict[str, Any]] = {"max_reinstalls": 10**6, "max_small_group": 10**6, "mutated_images": 10**6}
UNLIMITED: Final = Limits(
    **UNGUARDED,
    max_update_percent=100,
    max_delete_percent=100,
    max_deletes=10**6,
    max_installs=10**6,
    max_resets=10**6,
    max_unknown_changes=10**6,
    max_access_changes=10**6,
    allow_empty=True,
    allow_rewind=True,
    allow_takeover=True,
)


class Unsynced(Store):
    """A ledger that does not wait for the disk: no power cut is tested with it."""

    synchronous: ClassVar = False


class Commits:
    """A source, and an evaluation, of commits that a test makes of documents."""

    _numbers = count(1)

    has_fetched = True

    def __init__(self) -> None:
        self.newest: Snapshot | None = None
        self.ledger: str | None = None  # that a Fleet names which says nothing of it
        self._evaluator = Evaluator(lambda revision, previous: self._snapshot)

    def push(self, snapshot: Snapshot) -> None:
        """Let this be the newest commit."""
        if self.ledger is not None:
            texts = {path: snapshot.read(blob).decode() for path, blob in snapshot.blobs.items()}
            snapshot = fleets.snapshot(files={path: fleets.naming(self.ledger, text) for path, text in texts.items()})
        self.newest = replace(snapshot, revision=Revision(f"{next(self._numbers):040}"))

    def push_of_another(self, fleet: Commits) -> None:
        """The newest of another repository, as this one's: it names this instance."""
        assert fleet.newest is not None and fleet.ledger is not None and self.ledger is not None
        texts = {path: fleet.newest.read(blob).decode() for path, blob in fleet.newest.blobs.items()}
        named = {path: text.replace(fleet.ledger, self.ledger) for path, text in texts.items()}
        self.push(fleets.snapshot(files=named))

    @property
    def _snapshot(self) -> Snapshot:
        assert self.newest is not None
        return self.newest

    @property
    def commit(self) -> Commit:
        """The newest."""
        repository = load(self._snapshot, {})
        return commit_of(repository, decide(repository))

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

    def merges(self, since: Revision | None, revision: Revision) -> tuple[Merge, ...]:
        return (Merge(revision, ()),)

    def acknowledging_content(self, hidden: Iterable[Revision], tips: Iterable[Revision]) -> frozenset[str]:
        return frozenset()

    def committed_at(self, revision: Revision) -> datetime:
        return datetime(2026, 11, 20, tzinfo=UTC)

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        return False

    def evaluate(self, revision: Revision, base: Commit | None) -> Evaluated:
        difference = self._evaluator.evaluate(revision, base.revision if base is not None else None)
        return assembled(base, revision, (protocol.answer(encode(each)) for each in report(difference)))

    def keep(self, revision: Revision) -> None:
        """There is no cache."""

    def settle(self, accepted: Revision | None) -> None:
        """There is no process."""


@dataclass
class Taking:
    """A target that takes what it is given."""

    full: bool = False  # whether its disk is
    is_as_left: bool = True
    servers: dict[str, Files | None] = field(default_factory=dict)  # as they were given last
    shared: Files | None = None

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: PartFiles,
    ) -> Published:
        given = dict(servers.items())
        if self.full:
            raise PublishError("no space left on device")
        self.servers.update(given)
        self.shared = shared if shared is not None else self.shared
        return Published(written=(), withdrawn=(), expired=(), unchanged=0)

    def dated(self, path: str, file: File, at: datetime) -> int:
        return int(at.timestamp())

    def end_windows(self, at: datetime) -> EndedWindows:
        return EndedWindows((), None)

    def update_list(self, keys: ListKeys | None, at: datetime) -> datetime | None:
        return None

    def holds(self, files: Files) -> bool:
        return files in self.servers.values()


@dataclass
class Gate:
    """BMCs that a test can put out of reach for a while."""

    bmcs: Bmcs
    takes: bool = True  # whether jobs are taken
    gives: bool = True  # whether what came of those that have ended is given

    def submit(self, jobs: tuple[BmcTask, ...]) -> frozenset[SystemUuid]:
        return self.bmcs.submit(jobs) if self.takes else frozenset()

    def forget(self, uuids: frozenset[SystemUuid]) -> None:
        self.bmcs.forget(uuids)

    def fingerprint(self, bmc: BmcAccess) -> str | None:
        return self.bmcs.fingerprint(bmc)

    def finished(self, *, wait_all: bool = False) -> Mapping[SystemUuid, TaskResult]:
        return self.bmcs.finished(wait_all=wait_all) if self.gives else {}

    def close(self) -> None:
        self.bmcs.close()


def published_records(output: Path) -> bytes:
    """All that a published tree says of what is known of provisioning."""
    return b"".join(path.read_bytes() for path in sorted((output / "ops" / "records").glob("*.json")))


def note_fetch(spool: Path, observation: Observation) -> None:
    """What an endpoint leaves behind that answered it and is no more."""
    spool.mkdir(exist_ok=True)
    with closing(SpoolFile(spool)) as file:
        file.append(line_of(observation))
