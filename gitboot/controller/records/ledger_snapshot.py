"""Ledger snapshot: the content of an instance's ledger as one immutable value, and changes to that value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct, field, structs

from gitboot.artifacts.availability import Sighting, is_withheld
from gitboot.bmc.credentials import CredentialUse
from gitboot.bmc.identity import PinnedIdentity
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import PowerRecord
from gitboot.errors import UsageError
from gitboot.fetchlog.one_time_boots import InstallationFetches
from gitboot.fleet.identities import LostIdentity, Machine
from gitboot.fleet.overlay import apply_changes
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.server_tables import PendingObservation
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars import SystemUuid
from gitboot.publish.durable_files import (
    OPEN_MODES,
    TreeModes,
    build_restricted_modes,
    find_group_id,
    is_readable_by_others,
)
from gitboot.publish.manifest import MANIFEST
from gitboot.resolve.provisioning_record import Record, SoleClaim
from gitboot.resolve.server_decision import BootFile, Decision
from gitboot.status.conditions import Event


class LedgerSnapshot(Struct, frozen=True, kw_only=True):
    """The content of the ledger, and the values that an instance derives from the content."""

    facts: instance_tables.Facts  # facts about the ledger, including stops and suspensions that operators requested
    recorded_commit: str | None = None  # the last commit for which new servers were recorded; None: no record is usable
    records: Mapping[SystemUuid, Record] = field(default_factory=dict)
    unobservable: frozenset[SystemUuid] = frozenset()  # machines whose next boot this instance could not observe
    sets_bmcs: bool | None = True  # whether overrides were taken into account for `unobservable`; None: unknown
    # All machines that a commit has ever described.
    machines: Mapping[SystemUuid, Machine] = field(default_factory=dict)
    accepted_machines: frozenset[SystemUuid] = frozenset()  # the machines in the accepted commit
    # Identities that machines have lost, as of the accepted commit.
    lost_identities: frozenset[LostIdentity] = frozenset()
    # Override records by machine and reason.
    overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]] = field(default_factory=dict)
    # Power records by machine and reason.
    power_records: Mapping[SystemUuid, Mapping[str, PowerRecord]] = field(default_factory=dict)
    pins: Mapping[SystemUuid, PinnedIdentity] = field(default_factory=dict)  # the pinned machine identity of each BMC
    # Pairs of a BMC and the credentials that gitboot may send to it.
    known_pairs: frozenset[CredentialUse] = frozenset()
    # Fetches that wait for a BMC task to judge them.
    pending: Mapping[SystemUuid, tuple[PendingObservation, ...]] = field(default_factory=dict)
    secret_fetches: Mapping[SystemUuid, InstallationFetches] = field(default_factory=dict)
    last_observation_id: int = 0
    # Digest of the changes -> guard -> approver and reason.
    approvals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    used_acknowledgements: frozenset[str] = frozenset()  # each counts only once: see `gitboot.ledger.instance_tables`
    unsearched_commits: tuple[str, ...] = ()  # accepted commits whose history was not searched for acknowledgements yet
    spool_offsets: Mapping[str, int] = field(default_factory=dict)  # how far each file of the fetch log was read
    # Records in the output tree when the ledger became unverified.
    published_records: Mapping[SystemUuid, Record] = field(default_factory=dict)
    # Results of artifact checks; None: artifacts are not checked.
    sightings: Mapping[BootFile, Sighting] | None = None
    # Claims of other hosts, which cause install boots to be withheld; not stored in the ledger.
    claims: tuple[SoleClaim, ...] = ()
    unwritten_clock: datetime | None = None  # the latest time of the clock while the ledger could not be written

    def record(self, uuid: SystemUuid) -> Record | None:
        """Return the server's record that plans use, or None if the record is unknown.

        The record counts as unknown if this instance could not observe the server's next boot, because gitboot would
        otherwise install the server again and again.
        """
        return None if uuid in self.unobservable else self.stored_record(uuid)

    def stored_record(self, uuid: SystemUuid) -> Record | None:
        """Return a server's stored record, even if plans treat it as unknown.

        Return None if there is no record, or if no record is usable.
        """
        return None if self.recorded_commit is None else self.records.get(uuid)

    def find_later_clock(self, at: datetime) -> datetime | None:
        """Return the latest known time of the clock if the clock is behind that time, otherwise None.

        The ledger contains this time as the last heartbeat. Plans for this time do not reopen windows that have ended.
        """
        heartbeat = self.facts.heartbeat
        times = (heartbeat.at if heartbeat is not None else None, self.unwritten_clock)
        return max((each for each in times if each is not None and at < each), default=None)

    def find_missing_files(self, decision: Decision) -> frozenset[BootFile]:
        """Return the missing files that prevent gitboot from offering the boots in a decision."""
        if self.sightings is None and not any(decision.proofs):
            return frozenset()
        return decision.find_withheld_files(partial(is_withheld, sightings=self.sightings))

    def list_overrides(self, uuid: SystemUuid) -> tuple[OverrideRecord, ...]:
        """Return all override records of a server, sorted by reason."""
        return tuple(self.overrides.get(uuid, {}).values())

    def list_power_records(self, uuid: SystemUuid) -> tuple[PowerRecord, ...]:
        """Return all power records of a server, sorted by reason."""
        return tuple(self.power_records.get(uuid, {}).values())

    @property
    def is_trusted(self) -> bool:
        """Return whether the ledger's records are verified and complete."""
        return self.facts.initialised is not None and self.facts.doubt is None and self.facts.foreign is None


R = TypeVar("R", OverrideRecord, PowerRecord)


class RecordChanges(Generic[R]):
    """Override or power records, with changes that have not been merged yet."""

    def __init__(self, before: Mapping[SystemUuid, Mapping[str, R]]) -> None:
        self._before: Mapping[SystemUuid, Mapping[str, R]] = before
        self.new: dict[SystemUuid, dict[str, R]] = {}
        self.unstored: dict[tuple[SystemUuid, str], R] = {}  # new records that are not in the ledger

    def list_records(self, uuid: SystemUuid) -> tuple[R, ...]:
        """Return the records of a machine, sorted by reason."""
        return tuple(self.new.get(uuid, self._before.get(uuid, {})).values())

    def set_record(self, uuid: SystemUuid, record: R, *, stored: bool = False) -> None:
        """Add or replace a record. ``stored`` means that the record is already in the ledger."""
        known = self.new.get(uuid, self._before.get(uuid, {}))
        self.new[uuid] = dict(sorted({**known, record.reason: record}.items()))
        if not stored:
            self.unstored[uuid, record.reason] = record

    def merge(self) -> Mapping[SystemUuid, Mapping[str, R]]:
        """Return all records with the changes."""
        return apply_changes(self._before, self.new)


class LedgerUpdate:
    """The changes that one batch makes to a `LedgerSnapshot`, in the form in which the ledger stores them.

    Only one call of `apply_batch` changes this object. `build_snapshot` merges the changes at the end.
    """

    def __init__(self, before: LedgerSnapshot, at: datetime) -> None:
        self.before, self.at = before, at
        # Whole values of the new snapshot
        self.facts = before.facts
        self.recorded_commit = before.recorded_commit
        self.unobservable = before.unobservable
        self.sets_bmcs = before.sets_bmcs
        self.last_observation_id = before.last_observation_id
        self.lost_identities = before.lost_identities
        self.known_pairs = before.known_pairs
        self.sightings = before.sightings
        self.spool_offsets: Mapping[str, int] | None = None  # None: unchanged
        # Records and machines that are new or gone
        self.discards_records = False  # whether all earlier records are void
        self.new_records: dict[SystemUuid, tuple[str, Record]] = {}  # each with the name of its server
        self.dropped: frozenset[SystemUuid] = frozenset()  # machines without a record from now on
        self.machines: dict[SystemUuid, Machine] = {}  # new and changed machines in the accepted commit
        self.removed_machines: set[SystemUuid] = set()
        self.departed: Mapping[SystemUuid, Machine] = {}  # machines that other sites have now
        self.overrides = RecordChanges(before.overrides)
        self.power_records = RecordChanges(before.power_records)
        self.new_pins: dict[SystemUuid, PinnedIdentity] = {}
        # Fetches
        self.new_pending: dict[SystemUuid, tuple[PendingObservation, ...]] = {}
        self.new_observations: dict[int, PendingObservation] = {}  # pending observations that are new or have new marks
        self.verdicts: dict[int, str] = {}  # verdict by observation number
        self.new_secret_fetches: dict[SystemUuid, InstallationFetches | None] = {}
        # Operators and events
        self.approved: list[instance_tables.Approval] = []
        self.void_approvals: tuple[str, ...] = ()
        self.used_acknowledgements: frozenset[str] = frozenset()
        self.request_outcomes: list[tuple[instance_tables.Request, str]] = []
        self.events: list[Event] = []
        self.prune_before: datetime | None = None  # delete rows that are older
        # For the BMC schedule, not for the ledger
        self.due_now: set[SystemUuid] = set()  # machines whose BMC task is due now
        self.judged_machines: set[SystemUuid] = set()  # machines for which a BMC task confirmed or ruled out a fetch

    def set_facts(self, **changed: Any) -> None:
        """Replace these facts about the ledger."""
        self.facts = structs.replace(self.facts, **changed)

    def record(self, uuid: SystemUuid) -> Record | None:
        """Return a server's record, even if the record is not usable."""
        if uuid in self.new_records:
            return self.new_records[uuid][1]
        return None if self.discards_records or uuid in self.dropped else self.before.records.get(uuid)

    def usable_record(self, uuid: SystemUuid) -> Record | None:
        """Return the record of a server, or None if the server has no usable record."""
        return self.record(uuid) if self.recorded_commit is not None else None

    def write_record(self, uuid: SystemUuid, server: str, record: Record) -> None:
        """Replace a server's record if the new record differs from it."""
        if record != self.record(uuid):
            self.new_records[uuid] = server, record

    def add_event(self, type: str, message: str, *, warning: bool = False, **facts: Any) -> None:
        """Add an event to store and report with the changes. ``facts`` are the facts of the event."""
        self.events.append(Event(at=self.at, type=type, message=message, facts=facts, warning=warning))

    def next_decision_number(self) -> int:
        """Count a new decision, and return its number. Evidence for earlier offers has lower decision numbers."""
        self.set_facts(sequence=self.facts.sequence + 1)
        return self.facts.sequence

    def find_pin(self, uuid: SystemUuid) -> PinnedIdentity | None:
        return self.new_pins.get(uuid, self.before.pins.get(uuid))

    def set_pin(self, uuid: SystemUuid, new_pin: PinnedIdentity) -> None:
        if new_pin != self.find_pin(uuid):
            self.new_pins[uuid] = new_pin

    def find_secret_fetches(self, uuid: SystemUuid) -> InstallationFetches | None:
        """Return the fetches of a server's secrets during its newest installation, or None if there were none."""
        return self.new_secret_fetches.get(uuid, self.before.secret_fetches.get(uuid))

    def set_secret_fetches(self, uuid: SystemUuid, fetches: InstallationFetches | None) -> None:
        """Replace the fetches of a server's secrets. None means that a new installation begins."""
        if fetches is not None or self.find_secret_fetches(uuid) is not None:
            self.new_secret_fetches[uuid] = fetches

    def list_pending(self, uuid: SystemUuid) -> tuple[PendingObservation, ...]:
        """Return the observations of a machine that wait for a verdict."""
        return self.new_pending.get(uuid, self.before.pending.get(uuid, ()))

    def add_pending_fetch(self, pending: PendingObservation) -> None:
        """Add or replace an observation that waits for a verdict."""
        uuid = pending.offer.uuid
        others = [each for each in self.list_pending(uuid) if each.id != pending.id]
        self.new_pending[uuid] = tuple(sorted((*others, pending), key=lambda each: each.id))
        self.new_observations[pending.id] = pending
        self.last_observation_id = max(self.last_observation_id, pending.id)

    def conclude_pending_fetch(self, pending: PendingObservation, verdict: str) -> None:
        """Remove an observation that waits for a verdict, and keep the verdict for the ledger."""
        uuid = pending.offer.uuid
        self.new_pending[uuid] = tuple(each for each in self.list_pending(uuid) if each.id != pending.id)
        self.verdicts[pending.id] = verdict

    def build_snapshot(self) -> LedgerSnapshot:
        """Return the snapshot with all changes. Unchanged values stay the same objects."""
        known = self.before
        old_records = {} if self.discards_records else known.records
        new_records = {uuid: record for uuid, (_, record) in self.new_records.items()}
        without_pending = [uuid for uuid, pending in self.new_pending.items() if not pending]
        accepted_machines = known.accepted_machines
        if self.machines or self.removed_machines:
            accepted_machines = (accepted_machines | self.machines.keys()) - self.removed_machines
        new_fetches = {uuid: fetches for uuid, fetches in self.new_secret_fetches.items() if fetches is not None}
        approvals = dict(known.approvals)
        for approval in self.approved:
            guards = dict.fromkeys(approval.guards, approval.by)
            approvals[approval.digest] = {**approvals.get(approval.digest, {}), **guards}
        used_acknowledgements = known.used_acknowledgements
        if self.used_acknowledgements:
            used_acknowledgements |= self.used_acknowledgements
        return structs.replace(
            known,
            facts=self.facts,
            recorded_commit=self.recorded_commit,
            records=apply_changes(
                old_records, new_records, self.dropped.difference(new_records).intersection(old_records)
            ),
            unobservable=self.unobservable,
            sets_bmcs=self.sets_bmcs,
            machines=apply_changes(known.machines, {**self.departed, **self.machines}),
            accepted_machines=accepted_machines,
            lost_identities=self.lost_identities,
            overrides=self.overrides.merge(),
            power_records=self.power_records.merge(),
            pins=apply_changes(known.pins, self.new_pins),
            known_pairs=self.known_pairs,
            pending=apply_changes(known.pending, self.new_pending, without_pending),
            secret_fetches=apply_changes(
                known.secret_fetches, new_fetches, self.new_secret_fetches.keys() - new_fetches.keys()
            ),
            last_observation_id=self.last_observation_id,
            sightings=self.sightings,
            approvals={digest: guards for digest, guards in approvals.items() if digest not in self.void_approvals},
            used_acknowledgements=used_acknowledgements,
            unsearched_commits=known.unsearched_commits if self.facts.searched is None else (),
            spool_offsets=known.spool_offsets if self.spool_offsets is None else self.spool_offsets,
        )

    @property
    def has_new_sightings(self) -> bool:
        """Whether the results of artifact checks that the ledger stores differ from those before."""
        if self.sightings is self.before.sightings:
            return False
        return _list_stored_values(self.before.sightings) != _list_stored_values(self.sightings)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store in the ledger."""
        known = self.before
        return not any(
            (
                self.new_records,
                self.dropped,
                self.machines,
                self.departed,
                self.removed_machines,
                self.overrides.unstored,
                self.power_records.unstored,
                self.new_pins,
                self.new_secret_fetches,
                self.new_observations,
                self.verdicts,
                self.approved,
                self.void_approvals,
                self.used_acknowledgements - known.used_acknowledgements,
                self.request_outcomes,
                self.events,
                self.discards_records,
                self.prune_before is not None,
                self.spool_offsets not in (None, known.spool_offsets),
                self.known_pairs != known.known_pairs,
                self.lost_identities != known.lost_identities,
                self.facts != known.facts,
                self.has_new_sightings,
            )
        )


def _list_stored_values(sightings: Mapping[BootFile, Sighting] | None) -> dict[BootFile, tuple[object, ...]]:
    """Return the values of artifact checks that the ledger stores."""
    known = {file: each for file, each in (sightings or {}).items() if each.is_known}
    return {file: (each.presence, each.message, each.signer) for file, each in known.items()}


def record_instance_facts(
    store: Store, *, observes: bool, owner: str | None, output: Path, spool: Path | None, site: str | None
) -> None:
    """Store facts about this start in the ledger: the OUTPUT, fetch log and site in use, and the output tree's owner.

    ``observes`` means that fetches reach the instance. ``owner`` is the ledger that published the tree in OUTPUT.

    Raises `UsageError` if the ledger was used for another site, because that site's servers would count as removed.
    """
    facts = instance_tables.read_facts(store)
    if facts.site is not None and facts.site != (site or ""):
        before = f"--site {facts.site}" if facts.site else "all sites, without --site"
        now = f"--site {site}" if site is not None else "all sites"
        raise UsageError(
            f"the ledger {facts.identity} was used for {before}, but gitboot now starts for {now} and would withdraw "
            f"the ledger's published files and overrides. Start gitboot for {before} again. To start for {now}, use "
            "another --state and --out, and initialise the new ledger: run `gitboot records begin` with the folder "
            "`ops/records` of a published tree"
        )
    new_facts = structs.replace(
        facts,
        observes=observes,
        foreign=owner if owner not in (facts.identity, facts.heir_of) else None,
        output=str(output.absolute()),
        site=site or "",
        spool=str(spool.absolute()) if spool is not None else None,
    )
    if new_facts != facts:
        with store.writing() as tx:
            instance_tables.write_changed_facts(tx, facts, new_facts)


def choose_output_modes(store: Store, output: Path, group: str | None) -> TreeModes:
    """Return the permissions for published files, and store in the ledger whether OUTPUT is closed to other users.

    If the ledger is new, OUTPUT is closed. If the ledger is from an earlier version, or if a new ledger takes over an
    open tree, OUTPUT stays open until an operator names a group.

    Raises `UsageError` if gitboot is not allowed to assign files to the group.
    """
    facts = instance_tables.read_facts(store)
    group_id = find_group_id(group) if group is not None else None
    is_new = (facts.accepted, facts.lapsed, facts.initialised, facts.output) == (None, None, None, None)
    takes_over = (output / MANIFEST).exists() and is_readable_by_others(output)
    if not facts.closes_output and group_id is None and (takes_over or not is_new):
        return OPEN_MODES
    if not facts.closes_output:
        with store.writing() as tx:
            instance_tables.write_facts(tx, closes_output=True)
    return build_restricted_modes(group_id)


def read_ledger(store: Store) -> LedgerSnapshot:
    """Read the content of the ledger. Raises `LedgerError`."""
    facts = instance_tables.read_facts(store)
    pending: dict[SystemUuid, tuple[PendingObservation, ...]] = {}
    for observation in server_tables.read_pending_observations(store):
        uuid = observation.offer.uuid
        pending[uuid] = (*pending.get(uuid, ()), observation)
    return LedgerSnapshot(
        facts=facts,
        records=server_tables.read_records(store),
        machines=server_tables.read_machines(store),
        accepted_machines=server_tables.read_current_machines(store),
        lost_identities=server_tables.read_lost_identities(store),
        overrides=server_tables.read_overrides(store),
        power_records=server_tables.read_power_records(store),
        pins=server_tables.read_pins(store),
        known_pairs=server_tables.read_known_bmcs(store),
        pending=pending,
        last_observation_id=server_tables.read_last_observation_number(store),
        secret_fetches=server_tables.read_secret_fetches(store),
        approvals=instance_tables.read_approvals(store),
        used_acknowledgements=instance_tables.read_acknowledgements(store),
        unsearched_commits=instance_tables.read_accepted_commits(store) if facts.searched is None else (),
        spool_offsets=server_tables.read_spool_positions(store),
    )


def write_updates(store: Store, updates: Iterable[LedgerUpdate]) -> None:
    """Store updates in one transaction. Raises `LedgerError`."""
    changed = [update for update in updates if not update.is_empty]
    if not changed:
        return
    with store.writing() as tx:
        for update in changed:
            _write_update(tx, update)
            if update.sightings is not None and update.has_new_sightings:
                lease = store.database.lease
                instance_tables.write_sightings(tx, update.sightings, lease.place if lease is not None else "")


def _write_update(tx: Transaction, update: LedgerUpdate) -> None:
    """Write the changes of an update in one transaction."""
    known = update.before
    instance_tables.write_changed_facts(tx, known.facts, update.facts)
    instance_tables.delete_approvals(tx, update.void_approvals)
    instance_tables.write_approvals(tx, update.approved)
    instance_tables.add_acknowledgements(tx, update.used_acknowledgements - known.used_acknowledgements)
    if update.discards_records:
        server_tables.delete_all_records(tx)
    server_tables.delete_records(tx, sorted(update.dropped))
    server_tables.write_records(tx, [(uuid, server, record) for uuid, (server, record) in update.new_records.items()])
    server_tables.write_machines(tx, update.departed.values(), is_current=False)
    server_tables.write_machines(tx, update.machines.values(), removed=sorted(update.removed_machines))
    server_tables.write_lost_identities(tx, known.lost_identities, update.lost_identities)
    server_tables.write_overrides(tx, [(uuid, each) for (uuid, _), each in update.overrides.unstored.items()])
    server_tables.write_power_records(tx, [(uuid, each) for (uuid, _), each in update.power_records.unstored.items()])
    server_tables.write_pins(tx, update.new_pins.items())
    server_tables.write_secret_fetches(tx, update.new_secret_fetches)
    if update.known_pairs != known.known_pairs:
        server_tables.write_known_bmcs(tx, update.known_pairs)
    server_tables.write_pending_observations(
        tx, [update.new_observations[number] for number in sorted(update.new_observations)]
    )
    server_tables.write_verdicts(tx, update.verdicts)
    if update.spool_offsets is not None and update.spool_offsets != known.spool_offsets:
        server_tables.write_spool_positions(tx, update.spool_offsets)
    if update.prune_before is not None:
        server_tables.delete_old_rows(tx, update.prune_before)
    instance_tables.write_outcomes(tx, update.request_outcomes, update.at)
    instance_tables.write_events(tx, update.events)


def write_events(store: Store, events: Sequence[Event]) -> None:
    """Store events. Raises `LedgerError`."""
    if events:
        with store.writing() as tx:
            instance_tables.write_events(tx, events)
