"""Reconcile inputs: the inputs that wait for the next reconcile, and the values that the stages share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final

from msgspec import Struct, structs

from gitboot import files
from gitboot.artifacts.availability import ArtifactWatch, Sighting
from gitboot.bmc.override_session import TaskResult
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.override_steps import UnrecordedClearing
from gitboot.bmc.power_steps import PowerRecord
from gitboot.bmc.worker_pool import BmcPool
from gitboot.controller.checkpoint import Checkpoint
from gitboot.controller.commit_acceptance import CommitAcceptor
from gitboot.controller.current_plans import WindowWatch
from gitboot.controller.instance_state import AcceptanceState, InstanceState
from gitboot.controller.maintenance_hooks import HookClient, Question
from gitboot.controller.publication import FollowedTarget
from gitboot.controller.records.ledger_changes import BatchResult
from gitboot.endpoint.served_files import PublishedTree, match_documents
from gitboot.errors import LedgerError, LockedByAnother
from gitboot.fetchlog import spool
from gitboot.fetchlog.log_entries import EndpointReport, Observation, read_reports
from gitboot.fetchlog.one_time_boots import read_claims
from gitboot.fetchlog.spool import ReadResult
from gitboot.fetchlog.unknown_machines import (
    UNKNOWN,
    UNKNOWN_LOCK,
    UnknownMachine,
    UnknownMachines,
    load_unknown_machines,
    read_unknown_machine_files,
    render_unknown_machines,
)
from gitboot.fleet.overlay import apply_changes
from gitboot.jsonio import encode_canonical, format_instant, parse_json
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.postgresql_fetch_log import RecordedFetches
from gitboot.ledger.store import Store, read_mark
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import StopReader
from gitboot.resolve.provisioning_record import SoleClaim, StopOrder
from gitboot.resolve.server_decision import BootFile
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import Stage, StageTimes, WorkListener
from gitboot.system_clock import Uptime, read_uptime

_logger = logging.getLogger(__name__)
_MAX_REPORTED: Final = 5  # unknown machines that cause an event each, per update


class Intake(Struct, frozen=True, kw_only=True):
    """The inputs of one reconcile. They stay in the inbox until `Inbox.forget`."""

    observations: tuple[Observation, ...]
    spool_offsets: Mapping[str, int]  # how far each file of the fetch log was read
    uptime: Uptime  # the kernel's uptime
    results: tuple[TaskResult, ...]
    written_records: tuple[tuple[SystemUuid, OverrideRecord | PowerRecord], ...]
    requests: tuple[instance_tables.Request, ...]
    is_externally_confirmed: bool = False  # whether a mark outside STATE and OUTPUT matches the ledger's newest change
    stop_order: StopOrder | None = None  # a stop in the files that endpoints read
    # Results for all checked artifacts; None: artifacts are not checked.
    sightings: Mapping[BootFile, Sighting] | None = None
    clearings: tuple[UnrecordedClearing, ...] = ()  # cleared overrides that are not in the ledger yet
    unoffered_boots: tuple[Observation, ...] = ()  # served boots that this ledger never offered
    answers: frozenset[Question] = frozenset()  # questions of maintenances that have the expected answer


class UnrecordedClearings:
    """The newest records of cleared overrides, and the latest time of the clock, that are not in the ledger yet.

    The records and the time are stored in a file for the next start. If the file cannot be written, they are only in
    memory, and after a restart gitboot cannot determine whether the overrides were cleared (see
    `OverrideRecord.may_be_cleared_unrecorded`) or whether the clock was set back. Thread-safe.
    """

    def __init__(self, path: Path | None = None, ledger: str = "") -> None:
        """Read the stored records. ``path`` is the file, or None to keep the records only in memory.

        ``ledger`` is the identity of the ledger.
        """
        self._path = path
        self._ledger = ledger
        self._lock = Lock()
        # the latest time of the clock at a transition while the ledger could not be written; None: the ledger has it
        self.latest_clock: datetime | None = None
        self._notes = {(each.uuid, each.record.reason): each for each in self._read()}

    def __iter__(self) -> Iterator[UnrecordedClearing]:
        with self._lock:
            return iter([*self._notes.values()])

    def note(self, uuid: SystemUuid, record: OverrideRecord) -> None:
        """Store a record, replacing an older record with the same reason."""
        with self._lock:
            self._notes.pop((uuid, record.reason), None)
            self._notes[uuid, record.reason] = UnrecordedClearing(uuid, record)
            self._write()

    def forget(self, clearings: Iterable[UnrecordedClearing]) -> None:
        """Delete records that are now in the ledger, or that are about an override which has been set again since."""
        with self._lock:
            stored = [each for each in clearings if self._notes.get((each.uuid, each.record.reason)) == each]
            for clearing in stored:
                del self._notes[clearing.uuid, clearing.record.reason]
            if stored:
                self._write()

    def note_clock(self, latest: datetime | None) -> None:
        """Store the latest time of the clock, or delete it if it is None because the ledger was written."""
        with self._lock:
            if latest != self.latest_clock:
                self.latest_clock = latest
                self._write()

    def apply_to(
        self, overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]]
    ) -> Mapping[SystemUuid, Mapping[str, OverrideRecord]]:
        """Return the ledger's overrides, updated with these records."""
        changed: dict[SystemUuid, Mapping[str, OverrideRecord]] = {}
        for uuid, record, _ in self:
            known = changed.get(uuid, overrides.get(uuid, {}))
            if record.reason in known and known[record.reason].is_ended_by(record):
                changed[uuid] = {**known, record.reason: record}
        return apply_changes(overrides, changed) if changed else overrides

    def _write(self) -> None:
        """Write the file, or delete it if there is nothing to store. Errors are only logged."""
        if self._path is None:
            return
        try:
            if not self._notes and self.latest_clock is None:
                self._path.unlink(missing_ok=True)
                return
            rows = [
                {"uuid": uuid, "record": server_tables.format_override(record)}
                for uuid, record, _ in self._notes.values()
            ]
            facts: dict[str, Any] = {"ledger": self._ledger, "withdrawals": rows}
            if self.latest_clock is not None:
                facts["clock"] = format_instant(self.latest_clock)
            files.write_atomically(self._path, encode_canonical(facts) + b"\n")
        except OSError as error:
            _logger.error(
                "%s: cleared overrides and the clock are recorded in memory only (%s)", self._path, error.strerror
            )

    def _read(self) -> list[UnrecordedClearing]:
        """Read the file of an earlier process. The result is empty if the file belongs to another ledger."""
        if self._path is None or not self._path.exists():
            return []
        try:
            facts = parse_json(self._path.read_bytes())
            clearings = [
                UnrecordedClearing(
                    SystemUuid(row["uuid"]),
                    server_tables.parse_override(row["record"]),
                    is_from_earlier_process=True,
                )
                for row in facts["withdrawals"]
            ]
            if facts["ledger"] != self._ledger:
                return []
            self.latest_clock = datetime.fromisoformat(facts["clock"]) if "clock" in facts else None
            return clearings
        except (OSError, ValueError, TypeError, KeyError) as error:
            _logger.error("%s: the records of cleared overrides cannot be read (%s)", self._path, error)
            return []


class Inbox:
    """A collector of the inputs for the next reconcile: BMC results, fetches, operator requests and artifact checks."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], datetime] | None = None,  # None: write each record of a BMC task to the ledger
        clearings: UnrecordedClearings | None = None,
        spool: Path | None = None,  # the folder of the fetch log
        former_spool: Path | None = None,  # another folder in which an earlier version may have left its claims
        shared_fetches: RecordedFetches | None = None,  # the fetch log in a shared ledger, which replaces the folder
        mark_file: Path | None = None,  # a mark outside STATE and OUTPUT
        stop_reader: StopReader | None = None,
        uptime: Callable[[], Uptime] = read_uptime,
        artifacts: ArtifactWatch | None = None,  # None: artifacts are not checked
        hooks: HookClient | None = None,  # None: the URLs of maintenances are not requested
    ) -> None:
        self._store = store
        self._clock = clock
        self._spool = spool
        self._mark_file = mark_file
        self.clearings = clearings or UnrecordedClearings()
        self._fetch_log: FolderFetchLog | RecordedFetches | None = shared_fetches
        if shared_fetches is None and spool is not None:
            self._fetch_log = FolderFetchLog(spool)
        self._claim_folders = [folder for folder in (spool, former_spool) if folder is not None]
        self._stop_reader = stop_reader or StopReader()
        self._uptime = uptime
        self.artifacts, self.hooks = artifacts, hooks
        self._lock = RLock()
        self._results: dict[SystemUuid, TaskResult] = {}
        self._written: list[tuple[SystemUuid, OverrideRecord | PowerRecord]] = []
        self._deletion_count = 0  # the last result of `count_deletions_after`
        self._failed = 0  # number of records that could not be written to the ledger
        self.fetch_log_error: str | None = None  # why the last read of the fetch log failed; None: it succeeded

    @property
    def fetch_log_id(self) -> str | None:
        """The identity of the fetch log that endpoints must use to serve one-time boots.

        None if endpoints must not serve one-time boots.
        """
        with suppress(OSError):
            return self._fetch_log.fetch_log_id if self._fetch_log is not None else None
        return None

    @property
    def stop_order(self) -> StopOrder | None:
        """The stop in the files that endpoints read, or None."""
        notice = self._stop_reader.current
        return notice.order if notice is not None else None

    @property
    def claims(self) -> tuple[SoleClaim, ...]:
        """The claims that were written by gitboot at commit 2fefe59.

        If there is a claim, another host may have served boots that this instance's fetch log does not contain.
        """
        return read_claims(self._claim_folders, self._spool) if self._spool is not None else ()

    def read_reports(self, at: datetime) -> EndpointReport:
        """Return the withheld boots and the unconfigured proxies that endpoints reported in the last hour."""
        return read_reports(self._spool, at) if self._spool is not None else EndpointReport()

    def record(self, uuid: SystemUuid, record: OverrideRecord | PowerRecord) -> None:
        """Store a record of a BMC task before the task continues. Raises `LedgerError`.

        A record that only clears an override is stored in a file, so that the task does not wait for a ledger that
        hangs. The next reconcile writes this record to the ledger. The lease must be valid, because otherwise another
        instance may have set the override again.
        """
        if (
            self._clock is not None
            and isinstance(record, OverrideRecord)
            and record.may_be_written_later(self._clock())
        ):
            if (lease := self._store.database.lease) is not None:
                lease.check()
            self.clearings.note(uuid, record)
            return
        failed_before = self._failed
        with self._lock:
            if self._failed != failed_before:  # a write failed while this task waited for the lock
                raise LedgerError(
                    f"{self._store.database.name}: the ledger cannot be written (an earlier write failed)"
                )
            try:
                with self._store.writing() as tx:
                    if isinstance(record, PowerRecord):
                        server_tables.write_power_records(tx, [(uuid, record)])
                    else:
                        server_tables.write_overrides(tx, [(uuid, record)])
            except LedgerError:
                self._failed += 1
                raise
            self._written.append((uuid, record))

    def add_results(self, results: Mapping[SystemUuid, TaskResult]) -> None:
        """Add the results of BMC tasks. A newer result of a machine replaces an older one."""
        self._results |= results

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Delay new records from BMC tasks until the block ends, so that no record is newer than the inputs."""
        with self._lock:
            yield

    def take(self, offsets: Mapping[str, int], at: datetime) -> Intake:
        """Return all waiting inputs.

        ``offsets`` are the positions in the fetch log up to which its entries are already in the ledger.
        """
        fetches = self._read_fetch_log(offsets)
        uptime = self._uptime()
        return Intake(
            observations=tuple(observation.adjust_clock(at, uptime) for observation in fetches.observations),
            spool_offsets=fetches.offsets,
            uptime=uptime,
            results=tuple(sorted(self._results.values(), key=lambda each: (each.server, each.uuid))),
            written_records=tuple(self._written),
            requests=instance_tables.read_requests(self._store),
            is_externally_confirmed=self._mark_file is not None and read_mark(self._mark_file) == self._store.progress,
            stop_order=self.stop_order,
            sightings=self.artifacts.get_sightings() if self.artifacts is not None else None,
            clearings=tuple(self.clearings),
            answers=self.hooks.get_answers() if self.hooks is not None else frozenset(),
        )

    def _read_fetch_log(self, offsets: Mapping[str, int]) -> ReadResult:
        """Return the new entries of the fetch log. Return no entries if the log cannot be read."""
        no_entries = ReadResult([], dict(offsets), 0)
        if self._fetch_log is None:
            return no_entries
        try:
            fetches = self._fetch_log.read(offsets)
        except LedgerError as error:
            self.fetch_log_error = str(error)
            return no_entries
        except OSError as error:
            self.fetch_log_error = f"{self._fetch_log.name} cannot be read: {error.strerror}"
            return no_entries
        self.fetch_log_error = None
        if fetches.invalid_lines:
            _logger.error("%s: ignored %d lines that are not observations", self._fetch_log.name, fetches.invalid_lines)
        return fetches

    def forget(self, intake: Intake) -> None:
        """Delete inputs that are now in the ledger. The entries of the fetch log stay until `forget_spool`."""
        del self._written[: len(intake.written_records)]
        self.clearings.forget(intake.clearings)
        for result in intake.results:
            self._results.pop(result.uuid, None)

    def merge_pending_overrides(
        self, ledger_overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]]
    ) -> tuple[Mapping[SystemUuid, Mapping[str, OverrideRecord]], frozenset[SystemUuid]]:
        """Return the overrides, updated with newer records from BMC tasks, and the machines with such records.

        A reconcile that cannot write the ledger calls this method, because it still has to clear overrides although it
        has not processed these records.
        """
        with self._lock:
            changed: dict[SystemUuid, Mapping[str, OverrideRecord]] = {}
            for uuid, record in self._written:
                if isinstance(record, OverrideRecord):
                    changed[uuid] = {**changed.get(uuid, ledger_overrides.get(uuid, {})), record.reason: record}
            overrides = apply_changes(ledger_overrides, changed) if changed else ledger_overrides
            overrides = self.clearings.apply_to(overrides)
            return overrides, frozenset((*changed, *(clearing.uuid for clearing in self.clearings)))

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        """Return the number that the next deletion of fetch log entries will have.

        The number is published in the next output tree.
        """
        if self._fetch_log is None:
            return 0
        with suppress(OSError, LedgerError):
            if not self._store.is_failing:
                self._deletion_count = self._fetch_log.count_deletions_after(offsets)
        return self._deletion_count

    def forget_spool(self, offsets: Mapping[str, int], times: int) -> None:
        """Delete the fetch log entries that the output tree already reflects.

        ``times`` is the deletion number in the tree.
        """
        if self._fetch_log is None:
            return
        try:
            self._fetch_log.delete_read_fetches(offsets, times)
        except (OSError, LedgerError) as error:
            _logger.error(
                "%s: entries that gitboot has read could not be deleted: %s",
                self._fetch_log.name,
                error.strerror if isinstance(error, OSError) else error,
            )


class FolderFetchLog:
    """The fetch log of the endpoints on this host, in a folder. Methods raise OSError if the log cannot be read.

    For hosts that share a ledger, `RecordedFetches` takes its place.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)

    @property
    def fetch_log_id(self) -> str | None:
        return spool.read_or_create_identity(self._folder)

    def read(self, offsets: Mapping[str, int]) -> ReadResult:
        return spool.read_new_lines(self._folder, offsets)

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        return spool.count_deletions_after(self._folder, offsets)

    def delete_read_fetches(self, offsets: Mapping[str, int], deletion_number: int) -> None:
        spool.delete_finished_files(self._folder, offsets, deletion_number)


class UnknownMachineFile:
    """The file of unknown machines.

    gitboot merges the files of the endpoints into this file, and leaves out machines that have a document.
    """

    def __init__(self, state: Path, spool: Path | None, output: Path, clock: Callable[[], datetime]) -> None:
        self._state = state
        self._spool = spool
        self._output = output
        self._clock = clock
        self._applied: str | None = None  # the commit for which the file was last updated

    def update(self, commit: str | None, at: datetime) -> tuple[bytes, tuple[Event, ...]] | None:
        """Update the file. Return its new content and the events to report, or None if the file is unchanged.

        If gitboot cannot write the file, it keeps the endpoints' files for the next update.
        """
        new_files = list(read_unknown_machine_files(self._spool)) if self._spool is not None else []
        if not new_files and (commit == self._applied or not (self._state / UNKNOWN).exists()):
            return None
        with (
            suppress(OSError, LockedByAnother),
            files.hold_lock(self._state / UNKNOWN_LOCK, f"{self._state} is in use"),
        ):
            table = load_unknown_machines(self._state)
            known = {identity for machine in table.machines for identity in machine.identities}
            for file in new_files:
                for machine in file.table.machines:
                    table.add(machine)
                table.dropped_count += file.table.dropped_count
            table.expire(at)
            tree = PublishedTree(self._output, self._clock)
            matched = [match_documents(tree, machine) for machine in table.machines]
            kept = [machine for machine in matched if machine is not None]
            content = render_unknown_machines(UnknownMachines(kept, table.dropped_count))
            files.write_atomically(self._state / UNKNOWN, content)
            for file in new_files:
                file.path.unlink(missing_ok=True)
            self._applied = commit
            new_machines = [machine for machine in kept if known.isdisjoint(machine.identities)]
            return content, tuple(_report_new_machines(new_machines, at))
        return None


def _report_new_machines(new: list[UnknownMachine], at: datetime) -> Iterator[Event]:
    """Yield an event for each of the first new machines, and one event for the others."""
    for machine in new[:_MAX_REPORTED]:
        yield Event(
            at=at,
            type="UnknownMachine",
            message=f"the unknown machine {', '.join(machine.identities)} at {machine.client} requested a boot",
            facts=structs.replace(machine, inventory=None).facts(),
        )
    if len(new) > _MAX_REPORTED:
        more = len(new) - _MAX_REPORTED
        yield Event(
            at=at,
            type="UnknownMachine",
            message=f"{more} more unknown machines requested a boot. List them with gitboot unknown-machines",
            facts={"more": more},
        )


@dataclass(kw_only=True, slots=True)
class Components:
    """The components of an instance, and the receivers of its events, status, stage durations and progress."""

    acceptor: CommitAcceptor
    inbox: Inbox
    store: Store
    target: FollowedTarget
    windows: WindowWatch  # ends windows in ``target``
    bmcs: BmcPool
    clock: Callable[[], datetime]  # used to measure how long a reconcile takes
    checkpoint: Checkpoint | None
    tell: Callable[[Event], None]
    report: Callable[[Status, datetime], None]
    report_stalled: Callable[[Condition], None]
    stage_times: StageTimes
    listener: WorkListener
    unwritten: list[Event] = field(default_factory=list)  # events that are not in the ledger because a write failed

    def collect_results(self, *, wait_all: bool = False) -> None:
        """Move the results of finished BMC tasks to the inbox. With ``wait_all``, first wait for all tasks."""
        results = self.bmcs.take_results(wait_all=wait_all)
        for result in results.values():
            if result.took_s is not None:
                self.stage_times.add(Stage.BMC, result.took_s)
        self.inbox.add_results(results)


@dataclass(kw_only=True, slots=True)
class ReconcileContext:
    """One reconcile. The stages set the fields that are declared after ``time``, in the order of their declaration."""

    components: Components
    before: InstanceState  # the state after the last reconcile
    at: datetime  # the time of this reconcile, which planning a large fleet moves forward
    wait: bool  # whether to wait for artifacts and BMC tasks
    time: Callable[[], datetime]  # returns the start time of this reconcile plus the time elapsed since
    intake: Intake = field(init=False)  # the inputs
    is_approval_left: bool = False  # whether an approval waits for the next reconcile
    request_changes: BatchResult = field(init=False)  # the ledger changes that operator requests cause
    acceptance: AcceptanceState = field(init=False)  # the result of judging the newest commit
    events: tuple[Event, ...] = ()  # the events of judging the newest commit
    ready: Intake = field(init=False)  # the part of ``intake`` that this reconcile processes
    input_changes: BatchResult = field(init=False)  # the ledger changes that ``acceptance`` and ``ready`` cause
    replanned_servers: frozenset[str] = frozenset()  # servers whose files may differ from the published ones
    due: datetime | None = None  # when the next reconcile is due; None: at the next event
