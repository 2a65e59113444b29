"""Reconcile inputs: fetches, BMC results, requests and unknown machines until a pass takes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock, RLock
from typing import Final

from msgspec import Struct, structs

from gitboot import files
from gitboot.artifacts.availability import ArtifactWatch, Sighting
from gitboot.bmc.override_session import TaskResult
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.override_steps import UnrecordedClearing
from gitboot.bmc.power_steps import PowerRecord
from gitboot.endpoint.served_files import PublishedTree, match_documents
from gitboot.errors import LedgerError, LockedByAnother, UsageError
from gitboot.fetchlog import spool
from gitboot.fetchlog.log_entries import EndpointReport, Observation, read_reports
from gitboot.fetchlog.one_time_boots import read_claims
from gitboot.fetchlog.spool import ReadResult
from gitboot.fetchlog.unknown_machines import (
    UnknownMachine,
    UnknownMachines,
    parse_unknown,
    read_unknown_files,
    render_unknown,
)
from gitboot.fleet.layered_dict import apply_changes
from gitboot.jsonio import encode_canonical
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.instance_tables import Request
from gitboot.ledger.leader_lease import Lease
from gitboot.ledger.postgresql_fetch_log import RecordedFetches
from gitboot.ledger.store import Store, read_mark
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import StopReader
from gitboot.resolve.boot_limits import SoleClaim, StopOrder
from gitboot.resolve.server_decision import BootFile
from gitboot.status.conditions import Event
from gitboot.system_clock import Uptime, read_uptime

_logger = logging.getLogger(__name__)


class Intake(Struct, frozen=True, kw_only=True):
    """What was taken in; all of it waits on until it is forgotten."""

    spooled: tuple[Observation, ...]
    spool: Mapping[str, int]  # how far each file of it was read
    up: Uptime  # how long the kernel runs
    results: tuple[TaskResult, ...]
    written: tuple[tuple[SystemUuid, OverrideRecord | PowerRecord], ...]
    requests: tuple[Request, ...]
    witnessed: bool = False  # whether something outside STATE and OUTPUT knows the ledger's newest change
    stoppage: StopOrder | None = None  # what a person has stopped where endpoints read it
    sightings: Mapping[BootFile, Sighting] | None = None  # of all artifacts that are looked at; None: nobody looks
    noted: tuple[UnrecordedClearing, ...] = ()  # what jobs withdraw, and the ledger does not have
    given: tuple[Observation, ...] = ()  # of what was spooled, boots that the ledger never offered


class NotedWithdrawals:
    """The newest record of each withdrawal that the ledger lacks; for any thread.

    The notes lie in a file, so that a restart finds them. If the disk refuses the file, they are kept in memory. After
    a restart, an override without a note is unknown then: `OverrideRecord.may_be_cleared_unrecorded`.
    """

    def __init__(self, path: Path | None = None, ledger: str = "") -> None:
        """``path`` is the file, None for memory alone; ``ledger`` is the identity of the ledger that lacks them."""
        self._path, self._ledger, self._lock = path, ledger, Lock()
        self._notes = {(each.uuid, each.record.reason): each for each in self._read()}

    def __iter__(self) -> Iterator[UnrecordedClearing]:
        with self._lock:
            return iter([*self._notes.values()])

    def note(self, uuid: SystemUuid, record: OverrideRecord) -> None:
        """Keep a record, durably if the disk takes it, in place of an older one for the same reason."""
        with self._lock:
            self._notes.pop((uuid, record.reason), None)
            self._notes[uuid, record.reason] = UnrecordedClearing(uuid, record)
            self._write()

    def forget(self, withdrawals: Iterable[UnrecordedClearing]) -> None:
        """Drop the notes that the ledger has, or that are of another setting of the override than it knows."""
        with self._lock:
            withdrawals = [each for each in withdrawals if self._notes.get((each.uuid, each.record.reason)) == each]
            for each in withdrawals:
                del self._notes[each.uuid, each.record.reason]
            if withdrawals:
                self._write()

    def apply_to(
        self, overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]]
    ) -> Mapping[SystemUuid, Mapping[str, OverrideRecord]]:
        """Return the overrides of a ledger as they are with what is noted here."""
        found: dict[SystemUuid, Mapping[str, OverrideRecord]] = {}
        for uuid, record, _ in self:
            known = found.get(uuid, overrides.get(uuid, {}))
            if record.reason in known and known[record.reason].is_ended_by(record):
                found[uuid] = {**known, record.reason: record}
        return apply_changes(overrides, found) if found else overrides

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            if not self._notes:
                self._path.unlink(missing_ok=True)
                return
            found = [
                {"uuid": uuid, "record": server_tables.override_to_row(record)}
                for uuid, record, _ in self._notes.values()
            ]
            files.write_atomically(self._path, encode_canonical({"ledger": self._ledger, "withdrawals": found}) + b"\n")
        except OSError as error:
            _logger.error("%s: withdrawals are noted in memory alone (%s)", self._path, error.strerror)

    def _read(self) -> list[UnrecordedClearing]:
        """Return the notes of an earlier process; those of another ledger are none of this one."""
        if self._path is None or not self._path.exists():
            return []
        try:
            found = json.loads(self._path.read_bytes())
            notes = [
                (SystemUuid(each["uuid"]), server_tables.override_from_row(each["record"]))
                for each in found["withdrawals"]
            ]
            return [
                UnrecordedClearing(*each, is_from_earlier_process=True)
                for each in notes
                if found["ledger"] == self._ledger
            ]
        except (OSError, ValueError, TypeError, KeyError) as error:
            _logger.error("%s: withdrawals cannot be read (%s)", self._path, error)
            return []


class Inbox:
    """The inputs of the next reconcile, from BMC tasks, the spool, operators and the checks of artifacts."""

    def __init__(
        self,
        store: Store,
        folder: Path | None = None,
        witness: Path | None = None,
        words: StopReader | None = None,
        uptime: Callable[[], Uptime] = read_uptime,
        artifacts: ArtifactWatch | None = None,
        spool: SharedFetchLog | None = None,
        former: Path | None = None,  # another folder where an earlier version may have left claims
        withdrawals: NotedWithdrawals | None = None,
        clock: Callable[[], datetime] | None = None,  # without one, everything needs the ledger
    ) -> None:
        self.withdrawals, self._clock = withdrawals or NotedWithdrawals(), clock
        self._store, self._folder, self._witness, self._words = store, folder, witness, words or StopReader()
        self._spool: FolderFetchLog | SharedFetchLog | None = spool or (
            FolderFetchLog(folder) if folder is not None else None
        )
        self._claimed = [each for each in (folder, former) if each is not None]
        self._uptime = uptime
        self.artifacts = artifacts  # None: nobody looks at them
        self._lock = RLock()
        self._results: dict[SystemUuid, TaskResult] = {}
        self._written: list[tuple[SystemUuid, OverrideRecord | PowerRecord]] = []
        self._forgotten = 0  # how often something of the spool will have been dropped, as it was read last
        self._failed = 0  # records that could not be written down
        self.unread: str | None = None  # why the spool could not be read the last time

    @property
    def giver(self) -> str | None:
        """The identity of the spool, by which what is made once may be given; None: it cannot be written, either."""
        with suppress(OSError):
            return self._spool.giver if self._spool is not None else None
        return None

    @property
    def stoppage(self) -> StopOrder | None:
        stopped = self._words.current
        return stopped.stoppage if stopped is not None else None

    @property
    def claims(self) -> tuple[SoleClaim, ...]:
        """Claims of 2fefe59: other hosts may have served boots that this instance never learned of."""
        return read_claims(self._claimed, self._folder) if self._folder is not None else ()

    def read_reports(self, at: datetime) -> EndpointReport:
        """Return what the endpoints that write to the spool have met within the last hour."""
        return read_reports(self._folder, at) if self._folder is not None else EndpointReport()

    def record(self, uuid: SystemUuid, record: OverrideRecord | PowerRecord) -> None:
        """Write down what a job is about to do, or has done, before it goes on; raises `LedgerError`.

        A record that only ends something is noted beside the ledger, and the next reconcile writes it: the job waits
        neither for the ledger nor for a reconcile that does. The lease has to stand, because another instance may have
        set the override anew since it ran out.
        """
        if self._clock is not None and isinstance(record, OverrideRecord) and record.ends_unrecorded(self._clock()):
            if (lease := self._store.database.lease) is not None:
                lease.check()
            self.withdrawals.note(uuid, record)
            return
        failed_before = self._failed
        with self._lock:
            if self._failed != failed_before:
                raise LedgerError(f"{self._store.database.name}: the ledger cannot be written (it failed before)")
            try:
                with self._store.writing() as tx:
                    if isinstance(record, PowerRecord):
                        server_tables.write_switches(tx, [(uuid, record)])
                    else:
                        server_tables.write_overrides(tx, [(uuid, record)])
            except LedgerError:
                self._failed += 1
                raise
            self._written.append((uuid, record))

    def collect(self, results: Mapping[SystemUuid, TaskResult]) -> None:
        self._results |= results

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold back what BMC tasks record until the block ends, so that what is taken in stays the newest."""
        with self._lock:
            yield

    def take(self, offsets: Mapping[str, int], at: datetime) -> Intake:
        """Return all inputs that wait, at ``at``. ``taken`` is how far the spool was taken in before."""
        found = ReadResult([], dict(offsets), 0)
        if self._spool is not None:
            try:
                found, self.unread = self._spool.take(offsets), None
            except LedgerError as error:
                self.unread = str(error)
            except OSError as error:
                self.unread = f"{self._spool.name} cannot be read: {error.strerror}"
            if found.invalid_lines:
                _logger.error("%s: %d lines are no observations", self._spool.name, found.invalid_lines)
        up = self._uptime()
        return Intake(
            spooled=tuple(each.adjust_clock(at, up) for each in found.observations),
            spool=found.offsets,
            up=up,
            results=tuple(sorted(self._results.values(), key=lambda each: (each.server, each.uuid))),
            written=tuple(self._written),
            requests=instance_tables.read_requests(self._store),
            witnessed=self._witness is not None and read_mark(self._witness) == self._store.progress,
            stoppage=self.stoppage,
            sightings=self.artifacts.get_sightings() if self.artifacts is not None else None,
            noted=tuple(self.withdrawals),
        )

    def forget(self, intake: Intake) -> None:
        """Drop what the ledger has now. The spool keeps its own until `forget_spool`."""
        del self._written[: len(intake.written)]
        self.withdrawals.forget(intake.noted)
        for result in intake.results:
            self._results.pop(result.uuid, None)

    def overrides_with_pending(
        self, ledger_overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]]
    ) -> tuple[Mapping[SystemUuid, Mapping[str, OverrideRecord]], frozenset[SystemUuid]]:
        """Return the known overrides with what jobs have recorded since, and whose that is.

        A reconcile that cannot write to the ledger does not learn it, and has to withdraw it all the same.
        """
        with self._lock:
            found: dict[SystemUuid, Mapping[str, OverrideRecord]] = {}
            for uuid, record in self._written:
                if isinstance(record, OverrideRecord):
                    found[uuid] = {**found.get(uuid, ledger_overrides.get(uuid, {})), record.reason: record}
            overrides = self.withdrawals.apply_to(apply_changes(ledger_overrides, found) if found else ledger_overrides)
            return overrides, frozenset((*found, *(each.uuid for each in self.withdrawals)))

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        """Return how often the spool will have been cut, which the next tree has to state."""
        if self._spool is None:
            return 0
        with suppress(OSError, LedgerError):
            if not self._store.is_failing:
                self._forgotten = self._spool.count_deletions_after(offsets)
        return self._forgotten

    def forget_spool(self, offsets: Mapping[str, int], times: int) -> None:
        """Cut what a published tree has from the spool. The tree states how often that was done, ``times``."""
        if self._spool is None:
            return
        try:
            self._spool.forget(offsets, times)
        except (OSError, LedgerError) as error:
            _logger.error(
                "what was taken from %s stays there: %s",
                self._spool.name,
                error.strerror if isinstance(error, OSError) else error,
            )


class FolderFetchLog:
    """The fetch log of the endpoints on this host: a folder. Its methods raise OSError if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)

    @property
    def giver(self) -> str | None:
        return spool.read_or_create_identity(self._folder)

    def take(self, offsets: Mapping[str, int]) -> ReadResult:
        return spool.read_new(self._folder, offsets)

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        return spool.count_deletions_after(self._folder, offsets)

    def forget(self, offsets: Mapping[str, int], times: int) -> None:
        spool.delete_read_files(self._folder, offsets, times)


class SharedFetchLog:
    """The fetches that the hosts of a shared ledger have recorded, for the host with the lease.

    Its methods raise `LedgerError` if the database cannot be read.
    """

    def __init__(self, fetches: RecordedFetches, lease: Lease) -> None:
        self._fetches, self._lease = fetches, lease
        self.name = fetches.name

    @property
    def giver(self) -> str | None:
        return str(self._lease)

    def take(self, offsets: Mapping[str, int]) -> ReadResult:
        return self._fetches.read(offsets)

    def count_deletions_after(self, offsets: Mapping[str, int]) -> int:
        return self._fetches.count_deletions_after(offsets)

    def forget(self, offsets: Mapping[str, int], times: int) -> None:
        self._fetches.delete_read(offsets, times, self._lease)


UNKNOWN: Final = "unknown.json"
_LOCK: Final = "unknown.lock"
_MAX_REPORTED: Final = 5


class UnknownMachineFile:
    """The table of unknown machines, from the notes of endpoints and mirrors, without machines that have a document."""

    def __init__(self, state: Path, spool: Path | None, output: Path, clock: Callable[[], datetime]) -> None:
        self._state, self._spool, self._output, self._clock = state, spool, output, clock
        self._applied: str | None = None  # the commit by which machines were looked for last

    def update(self, commit: str | None, at: datetime) -> tuple[bytes, tuple[Event, ...]] | None:
        """Return the new table and its events. None: it is unchanged. If it cannot be written, the notes stay."""
        left = list(read_unknown_files(self._spool)) if self._spool is not None else []
        if not left and (commit == self._applied or not (self._state / UNKNOWN).exists()):
            return None
        with suppress(OSError, LockedByAnother), files.hold_lock(self._state / _LOCK, f"{self._state} is in use"):
            table = read_unknown(self._state)
            for machine in (each for one in left for each in one.table.machines):
                table.add(machine)
            table.unkept += sum(one.table.unkept for one in left)
            table.expire(at)
            known = {name for each in read_unknown(self._state).machines for name in each.identities}
            tree = PublishedTree(self._output, self._clock)
            kept = [found for each in table.machines if (found := match_documents(tree, each)) is not None]
            content = render_unknown(UnknownMachines(kept, table.unkept))
            files.write_atomically(self._state / UNKNOWN, content)
            for one in left:
                one.path.unlink(missing_ok=True)
            self._applied = commit
            return content, tuple(
                _report_new_machines([each for each in kept if known.isdisjoint(each.identities)], at)
            )
        return None


def _report_new_machines(new: list[UnknownMachine], at: datetime) -> Iterator[Event]:
    for each in new[:_MAX_REPORTED]:
        message = f"{', '.join(each.identities)} asked for a boot from {each.client}, and no document describes it"
        yield Event(at=at, type="UnknownMachine", message=message, facts=structs.replace(each, inventory=None).facts())
    if len(new) > _MAX_REPORTED:
        more = len(new) - _MAX_REPORTED
        message = f"{more} more asked for a boot, and no document describes them: gitboot unknown-machines"
        yield Event(at=at, type="UnknownMachine", message=message, facts={"more": len(new) - _MAX_REPORTED})


def read_unknown(state: Path) -> UnknownMachines:
    """Return the table of an instance, empty if there is none. Raises `UsageError`."""
    try:
        return parse_unknown((state / UNKNOWN).read_bytes())
    except FileNotFoundError:
        return UnknownMachines()
    except OSError as error:
        raise UsageError(f"{state / UNKNOWN} cannot be read: {error.strerror}") from None


def forget_unknown(state: Path) -> None:
    """Empty the table. Raises `UsageError`."""
    try:
        with files.hold_lock(state / _LOCK, f"{state} is in use"):
            files.write_atomically(state / UNKNOWN, render_unknown(UnknownMachines()))
    except OSError as error:
        raise UsageError(f"{state / UNKNOWN} cannot be written: {error.strerror}") from None
