"""Instances in this process, without a loop: over a real repository, or with doubles of Git, tree and disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast
from unittest.mock import patch

from msgspec import structs

from gitboot.artifacts.availability import ArtifactWatch
from gitboot.bmc.override_session import BmcTask, TaskResult
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import PowerRecord
from gitboot.bmc.worker_pool import MAX_PARALLEL, MAX_PER_SITE, BmcPool
from gitboot.child_processes import encode
from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.instance import assembly, git_source
from gitboot.controller.instance.assembly import Dependencies, WriteRecord, build_bmc_pool, build_instance, run_instance
from gitboot.controller.instance.settings import (
    ArtifactSettings,
    BmcSettings,
    CheckAssets,
    GitSettings,
    Settings,
    TrustSettings,
)
from gitboot.controller.maintenance_hooks import HookClient
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.publication import ListedTarget
from gitboot.controller.reconcile import Reconciler
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.disk_cache import DiskCache
from gitboot.errors import NotEvaluated, PublishError
from gitboot.evaluator import protocol
from gitboot.evaluator.client import EvaluatorClient, assemble_commit
from gitboot.evaluator.evaluation import Evaluator
from gitboot.evaluator.process import build_report
from gitboot.evaluator.protocol import Commit, EvaluationLimits, EvaluationResult, build_commit, build_limit_problem
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, encode_line
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.fleet.validation import load
from gitboot.git.clone import CloneReader, Source
from gitboot.git.fetch import InProcessFetcher
from gitboot.git.history import Merge
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import LEASE_SECONDS
from gitboot.ledger.open_ledger import check_tables
from gitboot.ledger.store import Store
from gitboot.model.scalars import SystemUuid
from gitboot.publish.publisher import PublicationResult
from gitboot.publish.signed_list import ListKeys
from gitboot.publish.window_ends import EndedWindows
from gitboot.render.page import FileUpdates
from gitboot.render.paths import File, Files
from gitboot.render.server_files import RenderedState, ServerState
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import Record, make_record_fields
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from gitboot.review.guards import Limits
from gitboot.status.conditions import Event
from gitboot.status.work_progress import ReportProgress, ignore_progress
from gitboot.system_clock import Uptime, read_uptime
from tests.helpers import fleets
from tests.helpers.fleets import at, snapshot

# Replacements in an instance in this process for Git, a tree, or a disk that loses data.

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
        self._decided: Commit | None = None  # the newest, once it was fetched
        self.ledger: str | None = None  # for a Fleet that does not name one
        self._evaluator = Evaluator(lambda revision, previous: self._snapshot)

    def push(self, snapshot: Snapshot) -> None:
        if self.ledger is not None:
            texts = {path: snapshot.read(blob).decode() for path, blob in snapshot.blobs.items()}
            snapshot = fleets.snapshot(
                files={path: fleets.name_ledger(self.ledger, text) for path, text in texts.items()}
            )
        self.newest = structs.replace(snapshot, revision=Revision(f"{next(self._numbers):040}"))

    def push_copy(self, fleet: Commits) -> None:
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
        if self._decided is None or self._decided.revision != self._snapshot.revision:
            repository = load(self._snapshot, {})
            self._decided = build_commit(repository, decide(repository))
        return self._decided

    def latest(self) -> Revision | None:
        return self.newest.revision if self.newest is not None else None

    def accepted(self) -> Revision | None:
        return None

    def has(self, revision: Revision) -> bool:
        return False

    def accept(self, revision: Revision) -> None:
        """Do nothing: there is no clone in which the commit could be recorded."""

    def restore(self, accepted: Revision | None) -> None:
        """It has no clone that could be damaged."""

    def merges(self, since: Revision | None, revision: Revision) -> tuple[Merge, ...]:
        return (Merge(revision, ()),)

    def find_acknowledging_content(self, hidden: Iterable[Revision], tips: Iterable[Revision]) -> frozenset[str]:
        return frozenset()

    def committed_at(self, revision: Revision) -> datetime:
        return datetime(2026, 11, 20, tzinfo=UTC)

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        return False

    def evaluate(self, revision: Revision, base: Commit | None) -> EvaluationResult:
        difference = self._evaluator.evaluate(revision, base.revision if base is not None else None)
        return assemble_commit(
            base, revision, (protocol.decode_answer(encode(each)) for each in build_report(difference))
        )

    def store_results(self, revision: Revision) -> None:
        """There is no cache."""

    def end_process_unless_accepted(self, accepted_revision: Revision | None) -> None:
        """There is no process."""


class WithoutFiles:
    """What a target does with times, windows and a list that it does not have."""

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:
        return int(at.timestamp())

    def end_windows(self, at: datetime) -> EndedWindows:
        return EndedWindows((), None)

    def update_list(self, keys: ListKeys | None, at: datetime) -> datetime | None:
        return None


@dataclass
class MemoryTarget(WithoutFiles):
    """A target that stores what it receives."""

    full: bool = False  # whether its disk is
    is_unchanged: bool = True
    servers: dict[str, Files | None] = field(default_factory=dict)  # the last stored ones
    shared: Files | None = None

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: FileUpdates,
    ) -> PublicationResult:
        given = dict(servers.items())
        if self.full:
            raise PublishError("no space left on device")
        self.servers.update(given)
        self.shared = shared if shared is not None else self.shared
        return PublicationResult(written=(), withdrawn=(), expired=(), unchanged=0)

    def has_files(self, files: Files) -> bool:
        return files in self.servers.values()


@dataclass
class BmcSwitch:
    """BMCs that a test can put out of reach for a while."""

    bmcs: BmcPool
    takes: bool = True  # whether tasks are accepted
    gives: bool = True  # whether results of ended tasks are returned

    def submit(self, jobs: tuple[BmcTask, ...]) -> frozenset[SystemUuid]:
        return self.bmcs.submit(jobs) if self.takes else frozenset()

    def drop_pending_tasks(self, uuids: frozenset[SystemUuid]) -> None:
        self.bmcs.drop_pending_tasks(uuids)

    def get_credentials_fingerprint(self, bmc: BmcAccess) -> str | None:
        return self.bmcs.get_credentials_fingerprint(bmc)

    def take_results(self, *, wait_all: bool = False) -> Mapping[SystemUuid, TaskResult]:
        return self.bmcs.take_results(wait_all=wait_all) if self.gives else {}

    def close(self) -> None:
        self.bmcs.close()


def read_published_records(output: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((output / "ops" / "records").glob("*.json")))


def record_fetch(spool: Path, observation: Observation) -> None:
    """Write a fetch as an endpoint that served it and ended."""
    spool.mkdir(exist_ok=True)
    with closing(SpoolFile(spool)) as file:
        file.append(encode_line(observation))


# Commits fetched and evaluated in this process: for tests that reconcile one by one, and type commands.


class InProcessEvaluator(EvaluatorClient):
    """An evaluation without a process of its own. The evaluation of a commit in ``unending`` does not end in time."""

    def __init__(self, reader: CloneReader, site: str | None = None, unending: Collection[str] = ()) -> None:
        super().__init__(Path(), site=site)
        self._unending = unending
        self._reader = reader
        self._evaluator = Evaluator(reader.snapshot)

    def evaluate(self, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        if revision in self._unending:
            raise NotEvaluated([build_limit_problem("the evaluation did not end within 20 s")])
        try:
            difference = self._evaluator.evaluate(revision, base.revision if base is not None else None)
        finally:
            self._reader.close()
        return assemble_commit(
            base, revision, (protocol.decode_answer(encode(each)) for each in build_report(difference, self._site))
        )


class UnfinishedEvaluator(InProcessEvaluator):
    """An evaluator that never finishes a commit that is compared with another."""

    def evaluate(self, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        return super().evaluate(revision, base) if base is None else None


@contextmanager
def evaluate_in_process() -> Iterator[None]:
    """Let a command in this process fetch and evaluate in this process."""

    def make_evaluator(
        state: Path,
        *,
        limits: EvaluationLimits,
        waits_for_answer: bool,
        start_timer: Callable[[], Callable[[], None]] = lambda: lambda: None,
        report_progress: ReportProgress = ignore_progress,
        site: str | None = None,
        cache: DiskCache | None = None,
    ) -> InProcessEvaluator:
        return InProcessEvaluator(CloneReader(state), site)

    with (
        patch.object(assembly, "EvaluatorClient", make_evaluator),
        patch.object(git_source, "FetchProcess", _InProcessFetcher),
    ):
        yield


class _InProcessFetcher(InProcessFetcher):
    def __init__(self, mebibytes: int | None) -> None:
        self.mebibytes = mebibytes

    def close(self) -> None:
        pass


# An instance over a real repository, ledger and tree, without a loop, for tests that reconcile one by one.


@dataclass(frozen=True)
class Parts:
    source: Source
    ledger: Store
    reconciler: Reconciler
    events: list[Event]
    spool: Path


@contextmanager
def run_in_process(
    folder: Path,
    repository: Path,
    *,
    allow_rewind: bool = False,
    limits: Limits | None = None,
    initial: str | None = None,
    credentials: Path | None = None,
    evaluates: bool = True,
    apart: bool = False,
    unending: Collection[str] = (),
    wake: Callable[[], None] = lambda: None,
    trust: TrustSettings | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    uptime: Callable[[], Uptime] = read_uptime,
    site: str | None = None,
    lease_s: float = LEASE_SECONDS,
    list_keys: Path | None = None,
) -> Iterator[Parts]:
    """Run the instance with OUTPUT and STATE in ``folder``; nothing is fetched yet.

    Without ``evaluates`` it only finishes the commit that was accepted before. With ``apart`` it evaluates in another
    process and calls ``wake`` after a response. The evaluation of a commit in ``unending`` does not end in time.
    """
    settings = Settings(
        output=folder / "output",
        state=folder / "state",
        git=GitSettings(repository=str(repository)),
        trust=trust or TrustSettings(),
        bmc=BmcSettings(credentials=credentials, jitter=0),
        artifacts=ArtifactSettings(check=CheckAssets.OFF),  # they are nowhere
        limits=limits or Limits(allow_rewind=allow_rewind, **UNGUARDED),
        site=site,
        list_keys=list_keys,
        listen="by the test itself",
        spool=folder / "spool",
        lease_s=lease_s,
        accepted_filesystems=("tmpfs", "ramfs", "overlay"),  # tests may be on such file systems, as in containers
    )
    events: list[Event] = []

    def evaluation(state: Path) -> EvaluatorClient:
        if apart:
            return EvaluatorClient(state, site=site)
        return (
            InProcessEvaluator(CloneReader(state), site, unending)
            if evaluates
            else UnfinishedEvaluator(CloneReader(state))
        )

    with run_instance(
        settings, tell=events.append, clock=clock, wake=wake, build_evaluation=evaluation, uptime=uptime
    ) as (
        instance,
        source,
    ):
        if initial is not None:
            instance_tables.add_request(instance.store, clock(), "ada", BeginWithRecords.kind, {"how": initial})
        yield Parts(source, instance.store, instance.reconciler, events, folder / "spool")


NOON: Final = at("20T12:00")


def reconcile_once(parts: Parts, seconds: float = 0) -> None:
    """Fetch, and reconcile once, so long after noon."""
    parts.source.fetch()
    parts.reconciler.reconcile(NOON + timedelta(seconds=seconds))


def applied(parts: Parts) -> str | None:
    return parts.reconciler.status.applied


# An instance in this process, without Git and without files: its ledger and its jobs at BMCs are real.

InitialRecords = str | Mapping[SystemUuid, Record]  # the beginning of a ledger: a word, or the records of a file


def build_begin_request(initial: InitialRecords) -> dict[str, Any]:
    """Return the request of `gitboot records begin`: a word, or the records of a file."""
    if isinstance(initial, str):
        return {"how": initial}
    return {
        "how": "records",
        "items": [{"uuid": uuid, **make_record_fields(record)} for uuid, record in initial.items()],
    }


class Bench:
    """An instance for which a test makes commits, fetches and requests, and decides when to reconcile."""

    def __init__(
        self,
        folder: Path,
        *,
        initial: InitialRecords | None = "fresh",
        credentials: Path | None = None,
        observes: bool = True,
        owner: str | None = None,
        doubt: str | None = None,
        store: type[Unsynced] = Unsynced,
        failures: int = 20,
        parallel: int = MAX_PARALLEL,
        per_site: int = MAX_PER_SITE,
        keys: TokenKeys = NO_KEYS,
        artifacts: ArtifactWatch | None = None,
        named: bool = True,
        target: ListedTarget | None = None,  # None: files are not written
        hooks: HookClient | None = None,
    ) -> None:
        self.now, self.ahead = NOON, timedelta(0)  # the clock, and by how much it is ahead of what is true
        self.events: list[Event] = []
        self.commits, self.target = Commits(), MemoryTarget()
        self._opened = ExitStack()
        self.ledger = self._opened.enter_context(store.open(folder / "ledger.sqlite"))
        check_tables(self.ledger)
        if named:  # as by a Fleet that names this instance
            self.commits.ledger = self.ledger.progress[0]
        if doubt is not None:
            instance_tables.mark_unverified(self.ledger, doubt)
        bmc = BmcSettings(credentials=credentials, failures=failures, parallel=parallel, per_site=per_site, jitter=0)
        spool = folder / "spool"
        spool.mkdir(exist_ok=True)
        self._spool = SpoolFile(spool)
        git = GitSettings(repository="")
        settings = Settings(output=folder, state=folder, git=git, bmc=bmc, limits=UNLIMITED, spool=spool)
        dependencies = Dependencies(
            store=self.ledger,
            source=cast(Source, self.commits),
            evaluation=cast(EvaluatorClient, self.commits),
            target=target if target is not None else self.target,
            clock=lambda: self.job_clock or self.now,
            make_bmcs=self._gate,
            owner=owner,
            observes=observes,
            keys=keys,
            artifacts=artifacts,
            hooks=hooks,
            tell=self.events.append,
            uptime=lambda: Uptime("this", (self.now - self.ahead).timestamp()),
        )
        self.instance = self._opened.enter_context(build_instance(settings, dependencies))
        if initial is not None:
            self.request(BeginWithRecords.kind, **build_begin_request(initial))
        self.job_clock: datetime | None = None  # the clock of tasks at BMCs, if it is not the instance's
        self.before_recording: Callable[[OverrideRecord], None] = lambda _: None
        self.after_recording: Callable[[OverrideRecord], None] = lambda _: None

    def _gate(self, settings: Settings, dependencies: Dependencies, write: WriteRecord) -> BmcPool:
        def write_record(uuid: SystemUuid, record: OverrideRecord | PowerRecord) -> None:
            if isinstance(record, PowerRecord):
                write(uuid, record)
                return
            self.before_recording(record)
            write(uuid, record)
            self.after_recording(record)

        self.bmcs = BmcSwitch(build_bmc_pool(settings, dependencies, write_record))
        return cast(BmcPool, self.bmcs)

    def close(self) -> None:
        self._spool.close()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(self, *documents: str, files: Mapping[str, str] | None = None) -> Self:
        self.commits.push(snapshot(*documents, files=files))
        return self

    def wait(self, **given: float) -> Self:
        self.now += timedelta(**given)
        return self

    def reconcile(self, *, wait: bool = True) -> BootPlan | None:
        """Reconcile, to the end of the BMC jobs that it begins; what web01 boots then."""
        self.due = self.instance.reconciler.reconcile(self.now, wait=wait)
        web01 = self.servers.get("web01")
        return web01.plan if web01 is not None else None

    def plan(self) -> BootPlan | None:
        """Reconcile without any response of a BMC; return the plan of web01."""
        self.bmcs.gives = False
        try:
            return self.collect()
        finally:
            self.bmcs.gives = True

    def collect(self) -> BootPlan | None:
        """Reconcile after the running tasks have ended, and start no task."""
        self.bmcs.takes = False
        try:
            return self.reconcile()
        finally:
            self.bmcs.takes = True

    def fetch(
        self,
        plan: BootPlan | None,
        client: str = "10.0.0.7",
        path: str = "boot/v1/boot/m/boot.ipxe",
        at: datetime | None = None,
    ) -> None:
        """Let a client fetch the boot script of a plan completely, or another of its paths."""
        assert plan is not None
        self.observe(Observation(server=plan.server, path=path, digest=plan.digest, client=client, at=at or self.now))

    def observe(self, observation: Observation) -> None:
        self._spool.append(encode_line(observation))

    def request(self, what: str, **facts: object) -> int:
        """Leave a request, as the command line does; it is carried out by the next reconcile."""
        return instance_tables.add_request(self.ledger, self.now, "ada", what, facts)

    def outcome(self, number: int) -> str:
        return instance_tables.read_outcome(self.ledger, number) or ""

    @property
    def commit(self) -> Commit:
        return self.commits.commit

    @property
    def decisions(self) -> Decisions:
        return self.commit.decisions

    @property
    def snapshot(self) -> LedgerSnapshot:
        return self.instance.reconciler.state.snapshot

    @property
    def schedule(self) -> Schedule:
        return self.instance.reconciler.state.schedule

    @property
    def servers(self) -> Mapping[str, ServerState]:
        """Return the last plans of the servers."""
        return self.instance.reconciler.state.plans.servers

    @property
    def rendered(self) -> dict[str, RenderedState]:
        from tests.helpers.endpoints import render_states

        return render_states(self.instance.reconciler.state)

    @property
    def record(self) -> Record | None:
        return self.snapshot.record(self.decisions.servers["web01"].uuid)

    def told(self, *types: str) -> list[str]:
        """The types of the events that happened, of those named, or of all but those that each commit brings."""
        given = types or tuple({event.type for event in self.events} - {"Accepted", "Acknowledged", "RecordsBegun"})
        return [event.type for event in self.events if event.type in given]

    def condition(self, type: str) -> tuple[bool, str, str] | None:
        """Status, reason and message of a condition."""
        found = {
            each.type: (each.status, each.reason, each.message) for each in self.instance.reconciler.status.conditions
        }
        return found.get(type)


def summarize_plan(plan: BootPlan | None) -> tuple[Phase, Cause]:
    assert plan is not None
    return plan.phase, plan.cause
