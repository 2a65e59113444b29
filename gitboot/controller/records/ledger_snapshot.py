"""Ledger snapshot: what an instance read of its ledger, as one value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct, field, structs

from gitboot.artifacts.availability import Presence, Sighting, is_withheld
from gitboot.bmc.credentials import CredentialUse
from gitboot.bmc.identity import PinnedIdentity
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import PowerRecord
from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import Observation, select_consuming
from gitboot.fetchlog.one_time_boots import InstallationFetches
from gitboot.fleet.identities import LostIdentity, Machine
from gitboot.fleet.layered_dict import apply_changes
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.instance_tables import Approval, Facts, Request
from gitboot.ledger.server_tables import Pending
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
from gitboot.render.paths import find_token
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.boot_limits import SoleClaim
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import BootFile, Decision
from gitboot.resolve.server_plan import Offer
from gitboot.status.conditions import Event


class Knowledge(Struct, frozen=True, kw_only=True):
    """What is known; what of it lasts stands in the ledger."""

    facts: Facts  # about the ledger, and what operators hold back
    recorded_commit: str | None = (
        None  # the commit whose servers have their records; None: nothing is known of any server
    )
    records: Mapping[SystemUuid, Record] = field(default_factory=dict)
    unobservable: frozenset[SystemUuid] = frozenset()  # whose boot this instance could not see being made
    sets_bmcs: bool | None = True  # whether that goes by overrides which it sets; None: it is not known any more
    machines: Mapping[SystemUuid, Machine] = field(default_factory=dict)  # every one that was ever seen
    accepted_machines: frozenset[SystemUuid] = frozenset()  # of them, those of the accepted commit
    lost_identities: frozenset[LostIdentity] = (
        frozenset()
    )  # identities by which machines asked before the accepted commit
    overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]] = field(default_factory=dict)  # by reason
    switches: Mapping[SystemUuid, Mapping[str, PowerRecord]] = field(default_factory=dict)  # by reason
    pins: Mapping[SystemUuid, PinnedIdentity] = field(default_factory=dict)  # what BMCs showed of their machines
    known_pairs: frozenset[CredentialUse] = (
        frozenset()
    )  # which BMCs may be sent which credentials, if nothing else says so
    pending: Mapping[SystemUuid, tuple[Pending, ...]] = field(default_factory=dict)  # to be judged by their BMCs
    secret_fetches: Mapping[SystemUuid, InstallationFetches] = field(default_factory=dict)
    last_observation_id: int = 0  # the number of the observation that was noted last
    approvals: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # by digest of changes: guard -> by whom and why
    used_acknowledgements: frozenset[str] = (
        frozenset()
    )  # acknowledgements that do not count again; see `gitboot.ledger.instance_tables`
    unsearched_commits: tuple[str, ...] = ()  # accepted commits, if no history was ever searched for acknowledgements
    spool_offsets: Mapping[str, int] = field(default_factory=dict)  # how far each file of the spool was taken in
    published_records: Mapping[SystemUuid, Record] = field(
        default_factory=dict
    )  # what the tree knew when a doubt began
    sightings: Mapping[BootFile, Sighting] | None = None  # of artifacts; None: the settings turn the checks off
    claims: tuple[SoleClaim, ...] = ()  # of other hosts, which no ledger keeps; they withhold install boots

    def record(self, uuid: SystemUuid) -> Record | None:
        """What plans go by; None: unknown.

        Nothing is known of a server whose boot this instance could not see being made: it would be installed again
        and again.
        """
        return None if uuid in self.unobservable else self.stored_record(uuid)

    def stored_record(self, uuid: SystemUuid) -> Record | None:
        """What is recorded of a server, whether plans go by it or not; None while the ledger is in doubt."""
        return None if self.recorded_commit is None else self.records.get(uuid)

    def find_missing_files(self, decision: Decision) -> frozenset[BootFile]:
        """Of the files that a decision's boots are made by, those because of which they are not offered."""
        if self.sightings is None:
            return frozenset()
        return decision.find_withheld_files(partial(is_withheld, sightings=self.sightings))

    def list_overrides(self, uuid: SystemUuid) -> tuple[OverrideRecord, ...]:
        """Every override that was set for a server, by reason."""
        return tuple(self.overrides.get(uuid, {}).values())

    def list_switches(self, uuid: SystemUuid) -> tuple[PowerRecord, ...]:
        """Everything that was done to a server's power, by reason."""
        return tuple(self.switches.get(uuid, {}).values())

    @property
    def is_trusted(self) -> bool:
        """Whether what the ledger has of servers is trusted, and complete."""
        return self.facts.initialised is not None and self.facts.doubt is None and self.facts.foreign is None


R = TypeVar("R", OverrideRecord, PowerRecord)


class RecordChanges(Generic[R]):
    """What is new of the overrides or the switches of servers, by reason, over what was known."""

    def __init__(self, before: Mapping[SystemUuid, Mapping[str, R]]) -> None:
        self._before: Mapping[SystemUuid, Mapping[str, R]] = before
        self.new: dict[SystemUuid, dict[str, R]] = {}
        self.unstored: dict[tuple[SystemUuid, str], R] = {}  # of them, those that the ledger does not have

    def list_records(self, uuid: SystemUuid) -> tuple[R, ...]:
        return tuple(self.new.get(uuid, self._before.get(uuid, {})).values())

    def set_record(self, uuid: SystemUuid, record: R, *, stored: bool = False) -> None:
        """Learn of a record; ``stored``: the ledger has it already."""
        kept = {**self.new.get(uuid, self._before.get(uuid, {})), record.reason: record}
        self.new[uuid] = dict(sorted(kept.items()))
        if not stored:
            self.unstored[uuid, record.reason] = record

    def merge(self) -> Mapping[SystemUuid, Mapping[str, R]]:
        return apply_changes(self._before, self.new)


class KnowledgeUpdate:
    """Knowledge while a batch is learned at an instant, and what of it is new, as the ledger stores it.

    What is new lies over what was known, and is put together once, at the end. Only one call of `learn` changes it.
    """

    def __init__(self, before: Knowledge, at: datetime) -> None:
        self.before, self.at = before, at  # ``known`` as it was before
        self.facts = before.facts
        self.recorded_commit = before.recorded_commit
        self.unobservable = before.unobservable
        self.sets_bmcs = before.sets_bmcs
        self.last_observation_id = before.last_observation_id  # the number of the observation that was noted last
        self.events: list[Event] = []
        self.machines: dict[SystemUuid, Machine] = {}
        self.removed_machines: set[SystemUuid] = set()
        self.lost_identities = before.lost_identities
        self.departed: Mapping[SystemUuid, Machine] = {}
        self.dropped: frozenset[SystemUuid] = frozenset()
        self.approved: list[Approval] = []
        self.used_approvals: tuple[str, ...] = ()
        self.used_acknowledgements: frozenset[str] = frozenset()
        self.request_outcomes: list[tuple[Request, str]] = []
        self.spool_offsets: Mapping[str, int] | None = None
        self.prune_before: datetime | None = None
        self.due_now: set[SystemUuid] = set()  # whose BMCs are to be asked now
        self.judged_machines: set[SystemUuid] = set()  # whose fetches were judged by a reading
        self.known_pairs = before.known_pairs
        self.sightings, self.claims = before.sightings, before.claims
        self.discards_records = False  # whether nothing that was recorded before counts
        self.new_records: dict[SystemUuid, tuple[str, Record]] = {}
        self.overrides = RecordChanges(before.overrides)
        self.switches = RecordChanges(before.switches)
        self.new_pins: dict[SystemUuid, PinnedIdentity] = {}
        self.new_pending: dict[SystemUuid, tuple[Pending, ...]] = {}
        self.new_secret_fetches: dict[SystemUuid, InstallationFetches | None] = {}
        self.new_observations: dict[int, Pending] = {}  # noted now, or with marks now
        self.verdicts: dict[int, str] = {}  # by the number of an observation

    def record(self, uuid: SystemUuid) -> Record | None:
        """What is recorded of a server, whether plans go by it or not."""
        if uuid in self.new_records:
            return self.new_records[uuid][1]
        return None if self.discards_records or uuid in self.dropped else self.before.records.get(uuid)

    def usable_record(self, uuid: SystemUuid) -> Record | None:
        """What is recorded of a server; None while nothing is known of any server."""
        return self.record(uuid) if self.recorded_commit is not None else None

    def write_record(self, uuid: SystemUuid, server: str, record: Record) -> None:
        """Learn of a record, if it is another than before."""
        if record != self.record(uuid):
            self.new_records[uuid] = server, record

    def add_event(self, type: str, message: str, *, warning: bool = False, **facts: Any) -> None:
        self.events.append(Event(at=self.at, type=type, message=message, facts=facts, warning=warning))

    def count_decision(self) -> int:
        """Count a decision; return its number. Evidence of what was offered before it has a lower one."""
        self.facts = structs.replace(self.facts, sequence=self.facts.sequence + 1)
        return self.facts.sequence

    def current_pin(self, uuid: SystemUuid) -> PinnedIdentity | None:
        return self.new_pins.get(uuid, self.before.pins.get(uuid))

    def set_pin(self, uuid: SystemUuid, new_pin: PinnedIdentity) -> None:
        if new_pin != self.current_pin(uuid):
            self.new_pins[uuid] = new_pin

    def find_secret_fetches(self, uuid: SystemUuid) -> InstallationFetches | None:
        """Return who fetched the secrets of a server in its newest installation; None: nothing is known of that."""
        if uuid in self.new_secret_fetches:
            return self.new_secret_fetches[uuid]
        return self.before.secret_fetches.get(uuid)

    def set_secret_fetches(self, uuid: SystemUuid, fetches: InstallationFetches | None) -> None:
        """Replace the fetches of a server's secrets; None: another installation begins."""
        if fetches is not None or self.find_secret_fetches(uuid) is not None:
            self.new_secret_fetches[uuid] = fetches

    def list_pending(self, uuid: SystemUuid) -> tuple[Pending, ...]:
        return self.new_pending.get(uuid, self.before.pending.get(uuid, ()))

    def keep_pending(self, pending: Pending) -> None:
        """Keep an observation until it is judged, or with what is known of it now."""
        uuid = pending.offer.uuid
        others = tuple(each for each in self.list_pending(uuid) if each.id != pending.id)
        self.new_pending[uuid] = tuple(sorted((*others, pending), key=lambda each: each.id))
        self.new_observations[pending.id] = pending
        self.last_observation_id = max(self.last_observation_id, pending.id)

    def settle_pending(self, pending: Pending, verdict: str) -> None:
        uuid = pending.offer.uuid
        self.new_pending[uuid] = tuple(each for each in self.list_pending(uuid) if each.id != pending.id)
        self.verdicts[pending.id] = verdict

    def build_knowledge(self) -> Knowledge:
        known = self.before
        records = {} if self.discards_records else known.records
        new = {uuid: record for uuid, (_, record) in self.new_records.items()}
        judged = [uuid for uuid, waiting in self.new_pending.items() if not waiting]
        standing = known.accepted_machines
        if self.machines or self.removed_machines:
            standing = (standing | self.machines.keys()) - self.removed_machines
        fetched = {uuid: each for uuid, each in self.new_secret_fetches.items() if each is not None}
        approvals = dict(known.approvals)
        for each in self.approved:
            approvals[each.digest] = {**approvals.get(each.digest, {}), **dict.fromkeys(each.guards, each.by)}
        return structs.replace(
            known,
            facts=self.facts,
            recorded_commit=self.recorded_commit,
            records=apply_changes(records, new, self.dropped.difference(new).intersection(records)),
            unobservable=self.unobservable,
            sets_bmcs=self.sets_bmcs,
            machines=apply_changes(known.machines, {**self.departed, **self.machines}),
            accepted_machines=standing,
            lost_identities=self.lost_identities,
            overrides=self.overrides.merge(),
            switches=self.switches.merge(),
            pins=apply_changes(known.pins, self.new_pins),
            known_pairs=self.known_pairs,
            pending=apply_changes(known.pending, self.new_pending, judged),
            secret_fetches=apply_changes(
                known.secret_fetches, fetched, self.new_secret_fetches.keys() - fetched.keys()
            ),
            last_observation_id=self.last_observation_id,
            sightings=self.sightings,
            claims=self.claims,
            approvals={digest: guards for digest, guards in approvals.items() if digest not in self.used_approvals},
            used_acknowledgements=known.used_acknowledgements | self.used_acknowledgements
            if self.used_acknowledgements
            else known.used_acknowledgements,
            unsearched_commits=known.unsearched_commits if self.facts.searched is None else (),
            spool_offsets=known.spool_offsets if self.spool_offsets is None else self.spool_offsets,
        )

    @property
    def has_new_sightings(self) -> bool:
        if self.sightings is self.before.sightings:
            return False
        before, now = (
            {file: (each.presence, each.message) for file, each in found if each.presence is not Presence.UNKNOWN}
            for found in ((self.before.sightings or {}).items(), (self.sightings or {}).items())
        )
        return before != now

    @property
    def is_empty(self) -> bool:
        known = self.before
        new: Iterable[Collection[object]] = (
            *(
                self.new_records,
                self.dropped,
                self.machines,
                self.departed,
                self.removed_machines,
                self.overrides.unstored,
            ),
            *(self.switches.unstored, self.new_pins, self.new_secret_fetches, self.new_observations, self.verdicts),
            *(
                self.approved,
                self.used_approvals,
                self.used_acknowledgements - known.used_acknowledgements,
                self.request_outcomes,
                self.events,
            ),
        )
        is_other = (
            *(
                self.discards_records,
                self.prune_before is not None,
                self.spool_offsets not in (None, known.spool_offsets),
            ),
            *(
                self.known_pairs != known.known_pairs,
                self.lost_identities != known.lost_identities,
                self.facts != known.facts,
            ),
        )
        return not (any(new) or any(is_other) or self.has_new_sightings)


class Fetch(Struct, frozen=True, kw_only=True):
    """What was fetched, and what the ledger says of it."""

    observation: Observation  # with the digest of the plan whose entry was sent
    offer: Offer
    was_recorded: bool  # whether it was noted before: a spool that is read once more


def record_instance_facts(
    store: Store, *, observes: bool, owner: str | None, output: Path, spool: Path | None, site: str | None
) -> None:
    """Note where the instance publishes, whose tree lies there, whether fetches reach it, where, and for which site.

    Raises `UsageError` where it has acted for another one: the servers of that would look removed.
    """
    about = instance_tables.read_facts(store)
    if about.site is not None and about.site != (site or ""):
        acted = f"--site {about.site}" if about.site else "all sites, without --site"
        asked = f"--site {site}" if site is not None else "all sites"
        raise UsageError(
            f"the ledger {about.identity} has acted for {acted}, and is to act for {asked}: what it has published and "
            f"set would be withdrawn. Start it for {acted} again; or give another --state and --out, and say there "
            "what is installed (gitboot records begin, with the ops/records of a published tree)"
        )
    foreign = owner if owner not in (about.identity, about.heir_of) else None
    now = structs.replace(about, observes=observes, foreign=foreign, output=str(output.absolute()), site=site or "")
    if (now := structs.replace(now, spool=str(spool.absolute()) if spool is not None else None)) != about:
        with store.writing() as tx:
            instance_tables.write_changed_facts(tx, about, now)


def choose_output_modes(store: Store, output: Path, group: str | None) -> TreeModes:
    """Return the permissions of what is published, and note in the ledger from when on others may not read it.

    A new ledger closes OUTPUT. One that an earlier version made leaves OUTPUT as it is until somebody names a group. So
    does a new one that takes over what an earlier ledger published for everybody.
    Raises `UsageError` for a group that gitboot may not give files to.
    """
    about, number = instance_tables.read_facts(store), find_group_id(group) if group is not None else None
    is_new = (about.accepted, about.lapsed, about.initialised, about.output) == (None, None, None, None)
    takes_over = (output / MANIFEST).exists() and is_readable_by_others(output)
    if not about.closes_output and number is None and (takes_over or not is_new):
        return OPEN_MODES
    if not about.closes_output:
        with store.writing() as tx:
            instance_tables.write_facts(tx, closes_output=True)
    return build_restricted_modes(number)


def read_knowledge(store: Store) -> Knowledge:
    about = instance_tables.read_facts(store)
    pending: dict[SystemUuid, tuple[Pending, ...]] = {}
    for each in server_tables.read_pending(store):
        pending[each.offer.uuid] = (*pending.get(each.offer.uuid, ()), each)
    return Knowledge(
        facts=about,
        records=server_tables.read_records(store),
        machines=server_tables.read_machines(store),
        accepted_machines=server_tables.read_current_machines(store),
        lost_identities=server_tables.read_lost_identities(store),
        overrides=server_tables.read_overrides(store),
        switches=server_tables.read_switches(store),
        pins=server_tables.read_pins(store),
        known_pairs=server_tables.read_known_bmcs(store),
        pending=pending,
        last_observation_id=server_tables.read_last_observation_number(store),
        secret_fetches=server_tables.read_secret_fetches(store),
        approvals=instance_tables.read_approvals(store),
        used_acknowledgements=instance_tables.read_acknowledgements(store),
        unsearched_commits=instance_tables.read_accepted_commits(store) if about.searched is None else (),
        spool_offsets=server_tables.read_spool_positions(store),
    )


def write_updates(store: Store, updates: Iterable[KnowledgeUpdate]) -> None:
    """Write down all that is new, or nothing of it; raises `LedgerError`."""
    if something := [each for each in updates if not each.is_empty]:
        with store.writing() as tx:
            for each in something:
                _write_update(tx, each)
                if each.sightings is not None and each.has_new_sightings:
                    lease = store.database.lease
                    instance_tables.write_sightings(tx, each.sightings, lease.place if lease is not None else "")


def _write_update(tx: Transaction, update: KnowledgeUpdate) -> None:
    known = update.before
    instance_tables.write_changed_facts(tx, known.facts, update.facts)
    instance_tables.delete_approvals(tx, update.used_approvals)
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
    server_tables.write_switches(tx, [(uuid, each) for (uuid, _), each in update.switches.unstored.items()])
    server_tables.write_pins(tx, update.new_pins.items())
    server_tables.write_secret_fetches(tx, update.new_secret_fetches)
    if update.known_pairs != known.known_pairs:
        server_tables.write_known_bmcs(tx, update.known_pairs)
    server_tables.write_pending(tx, [update.new_observations[number] for number in sorted(update.new_observations)])
    server_tables.write_verdicts(tx, update.verdicts)
    if update.spool_offsets is not None and update.spool_offsets != known.spool_offsets:
        server_tables.write_spool_positions(tx, update.spool_offsets)
    if update.prune_before is not None:
        server_tables.prune(tx, update.prune_before)
    instance_tables.carry_out(tx, update.request_outcomes, update.at)
    instance_tables.write_events(tx, update.events)


def write_events(store: Store, events: Sequence[Event]) -> None:
    """Write down what happened besides; raises `LedgerError`."""
    if events:
        with store.writing() as tx:
            instance_tables.write_events(tx, events)


def match_fetches(store: Store, observations: Iterable[Observation], keys: TokenKeys) -> tuple[Fetch, ...]:
    """What was fetched, but for what nobody offered, and for what means nothing by being made.

    An endpoint has noted what it gave by the digest of its plan, a mirror by the date of the file. Of what was
    overtaken an endpoint knows no more than its path. By which name a token was published stays outside: from here on a
    path has the token itself.
    """
    fetches = []
    for observation in observations:
        digest, number, name = observation.digest, None, find_token(observation.path)
        if digest is not None and digest == name:
            digest = server_tables.find_token(store, observation.path) or digest
        if digest is None and observation.modified is not None:
            if (version := server_tables.find_version(store, observation.path, observation.modified)) is not None:
                digest, number = version
            elif name is not None:  # a token says by itself whose it is, also in a tree that another host has made
                digest = server_tables.find_token(store, observation.path)
        offer = server_tables.find_offer(store, digest) if digest is not None else None
        if digest is None or offer is None or not (name is None or keys.has_named(digest, name, observation.at)):
            continue
        offer = structs.replace(offer, number=number if number is not None else offer.number)
        path = observation.path.replace(name, digest) if name is not None else observation.path
        seen = replace(observation, path=path, digest=digest, modified=None)
        fetches.append(
            Fetch(observation=seen, offer=offer, was_recorded=server_tables.has_observation(store, seen, digest))
        )
    return tuple(fetches)


def find_unoffered_boots(store: Store, observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """What an endpoint has given, of what is given once, and this ledger has never offered: it is an older copy."""
    served = (each for each in select_consuming(observations) if each.offer is not None and not each.is_start)
    return tuple(
        each for each in served if each.digest is not None and server_tables.find_offer(store, each.digest) is None
    )
