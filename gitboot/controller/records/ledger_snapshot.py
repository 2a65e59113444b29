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
from gitboot.bmc.credentials import Pair
from gitboot.bmc.identity import Pinned
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import SwitchRecord
from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import Observation, that_use_up
from gitboot.fetchlog.one_time_boots import InstallationFetches
from gitboot.fleet.identities import LostIdentity, Machine
from gitboot.fleet.layered_dict import replaced
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.instance_tables import Approval, Facts, Request
from gitboot.ledger.server_tables import Pending
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars import SystemUuid
from gitboot.publish.durable_files import OPEN, TreeModes, closed, group_of, is_open
from gitboot.publish.manifest import MANIFEST
from gitboot.render.paths import token_in
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.boot_limits import SoleClaim
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import BootFile, Decision
from gitboot.resolve.server_plan import Offer
from gitboot.status.conditions import Event


class Knowledge(Struct, frozen=True, kw_only=True):
    """What is known; what of it lasts stands in the ledger."""

    facts: Facts  # about the ledger, and what operators hold back
    settled: str | None = None  # the commit whose servers have their records; None: nothing is known of any server
    records: Mapping[SystemUuid, Record] = field(default_factory=dict)
    unseen: frozenset[SystemUuid] = frozenset()  # whose boot this instance could not see being made
    sets_bmcs: bool | None = True  # whether that goes by overrides which it sets; None: it is not known any more
    machines: Mapping[SystemUuid, Machine] = field(default_factory=dict)  # every one that was ever seen
    standing: frozenset[SystemUuid] = frozenset()  # of them, those of the accepted commit
    lost: frozenset[LostIdentity] = frozenset()  # identities by which machines asked before the accepted commit
    overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]] = field(default_factory=dict)  # by reason
    switches: Mapping[SystemUuid, Mapping[str, SwitchRecord]] = field(default_factory=dict)  # by reason
    pins: Mapping[SystemUuid, Pinned] = field(default_factory=dict)  # what BMCs showed of their machines
    known_pairs: frozenset[Pair] = frozenset()  # which BMCs may be sent which credentials, if nothing else says so
    pending: Mapping[SystemUuid, tuple[Pending, ...]] = field(default_factory=dict)  # to be judged by their BMCs
    secret_fetches: Mapping[SystemUuid, InstallationFetches] = field(default_factory=dict)
    noted: int = 0  # the number of the observation that was noted last
    approvals: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # by digest of changes: guard -> by whom and why
    met: frozenset[str] = frozenset()  # acknowledgements that do not count again; see `gitboot.ledger.instance_tables`
    unsearched: tuple[str, ...] = ()  # accepted commits, if no history was ever searched for acknowledgements
    taken: Mapping[str, int] = field(default_factory=dict)  # how far each file of the spool was taken in
    published: Mapping[SystemUuid, Record] = field(default_factory=dict)  # what the tree knew when a doubt began
    sightings: Mapping[BootFile, Sighting] | None = None  # of artifacts; None: the settings turn the checks off
    claims: tuple[SoleClaim, ...] = ()  # of other hosts, which no ledger keeps; they withhold install boots

    def record(self, uuid: SystemUuid) -> Record | None:
        """What plans go by; None: unknown.

        Nothing is known of a server whose boot this instance could not see being made: it would be installed again
        and again.
        """
        return None if uuid in self.unseen else self.recorded(uuid)

    def recorded(self, uuid: SystemUuid) -> Record | None:
        """What is recorded of a server, whether plans go by it or not; None while the ledger is in doubt."""
        return None if self.settled is None else self.records.get(uuid)

    def absent(self, decision: Decision) -> frozenset[BootFile]:
        """Of the files that a decision's boots are made by, those because of which they are not offered."""
        if self.sightings is None:
            return frozenset()
        return decision.absent(partial(is_withheld, sightings=self.sightings))

    def overrides_of(self, uuid: SystemUuid) -> tuple[OverrideRecord, ...]:
        """Every override that was set for a server, by reason."""
        return tuple(self.overrides.get(uuid, {}).values())

    def switches_of(self, uuid: SystemUuid) -> tuple[SwitchRecord, ...]:
        """Everything that was done to a server's power, by reason."""
        return tuple(self.switches.get(uuid, {}).values())

    @property
    def is_trusted(self) -> bool:
        """Whether what the ledger has of servers is trusted, and complete."""
        return self.facts.initialised is not None and self.facts.doubt is None and self.facts.foreign is None


R = TypeVar("R", OverrideRecord, SwitchRecord)


class LearntRecords(Generic[R]):
    """What is new of the overrides or the switches of servers, by reason, over what was known."""

    def __init__(self, known: Mapping[SystemUuid, Mapping[str, R]]) -> None:
        self._known: Mapping[SystemUuid, Mapping[str, R]] = known
        self.new: dict[SystemUuid, dict[str, R]] = {}
        self.unstored: dict[tuple[SystemUuid, str], R] = {}  # of them, those that the ledger does not have

    def of(self, uuid: SystemUuid) -> tuple[R, ...]:
        return tuple(self.new.get(uuid, self._known.get(uuid, {})).values())

    def note(self, uuid: SystemUuid, record: R, *, stored: bool = False) -> None:
        """Learn of a record; ``stored``: the ledger has it already."""
        kept = {**self.new.get(uuid, self._known.get(uuid, {})), record.reason: record}
        self.new[uuid] = dict(sorted(kept.items()))
        if not stored:
            self.unstored[uuid, record.reason] = record

    def over_known(self) -> Mapping[SystemUuid, Mapping[str, R]]:
        return replaced(self._known, self.new)


class Learning:
    """Knowledge while a batch is learned at an instant, and what of it is new, as the ledger stores it.

    What is new lies over what was known, and is put together once, at the end. Only one call of `learn` changes it.
    """

    def __init__(self, known: Knowledge, at: datetime) -> None:
        self.known, self.at = known, at  # ``known`` as it was before
        self.facts = known.facts
        self.settled = known.settled
        self.unseen = known.unseen
        self.sets_bmcs = known.sets_bmcs
        self.noted = known.noted  # the number of the observation that was noted last
        self.events: list[Event] = []
        self.machines: dict[SystemUuid, Machine] = {}
        self.gone: set[SystemUuid] = set()
        self.lost = known.lost
        self.departed: Mapping[SystemUuid, Machine] = {}
        self.dropped: frozenset[SystemUuid] = frozenset()
        self.approved: list[Approval] = []
        self.used_up: tuple[str, ...] = ()
        self.met: frozenset[str] = frozenset()
        self.outcomes: list[tuple[Request, str]] = []
        self.taken: Mapping[str, int] | None = None
        self.prune_before: datetime | None = None
        self.hurried: set[SystemUuid] = set()  # whose BMCs are to be asked now
        self.judged: set[SystemUuid] = set()  # whose fetches were judged by a reading
        self.known_pairs = known.known_pairs
        self.sightings, self.claims = known.sightings, known.claims
        self.forgotten = False  # whether nothing that was recorded before counts
        self.new_records: dict[SystemUuid, tuple[str, Record]] = {}
        self.overrides = LearntRecords(known.overrides)
        self.switches = LearntRecords(known.switches)
        self.new_pins: dict[SystemUuid, Pinned] = {}
        self.new_pending: dict[SystemUuid, tuple[Pending, ...]] = {}
        self.new_secret_fetches: dict[SystemUuid, InstallationFetches | None] = {}
        self.new_observations: dict[int, Pending] = {}  # noted now, or with marks now
        self.verdicts: dict[int, str] = {}  # by the number of an observation

    def record(self, uuid: SystemUuid) -> Record | None:
        """What is recorded of a server, whether plans go by it or not."""
        if uuid in self.new_records:
            return self.new_records[uuid][1]
        return None if self.forgotten or uuid in self.dropped else self.known.records.get(uuid)

    def settled_record(self, uuid: SystemUuid) -> Record | None:
        """What is recorded of a server; None while nothing is known of any server."""
        return self.record(uuid) if self.settled is not None else None

    def write_record(self, uuid: SystemUuid, server: str, record: Record) -> None:
        """Learn of a record, if it is another than before."""
        if record != self.record(uuid):
            self.new_records[uuid] = server, record

    def tell(self, type: str, message: str, *, warning: bool = False, **facts: Any) -> None:
        self.events.append(Event(at=self.at, type=type, message=message, facts=facts, warning=warning))

    def decide(self) -> int:
        """Count a decision; return its number. Evidence of what was offered before it has a lower one."""
        self.facts = structs.replace(self.facts, sequence=self.facts.sequence + 1)
        return self.facts.sequence

    def pinned(self, uuid: SystemUuid) -> Pinned | None:
        return self.new_pins.get(uuid, self.known.pins.get(uuid))

    def pin(self, uuid: SystemUuid, pinned: Pinned) -> None:
        if pinned != self.pinned(uuid):
            self.new_pins[uuid] = pinned

    def secret_fetches_of(self, uuid: SystemUuid) -> InstallationFetches | None:
        """Return who fetched the secrets of a server in its newest installation; None: nothing is known of that."""
        if uuid in self.new_secret_fetches:
            return self.new_secret_fetches[uuid]
        return self.known.secret_fetches.get(uuid)

    def note_secret_fetches(self, uuid: SystemUuid, fetches: InstallationFetches | None) -> None:
        """Replace the fetches of a server's secrets; None: another installation begins."""
        if fetches is not None or self.secret_fetches_of(uuid) is not None:
            self.new_secret_fetches[uuid] = fetches

    def pending_of(self, uuid: SystemUuid) -> tuple[Pending, ...]:
        return self.new_pending.get(uuid, self.known.pending.get(uuid, ()))

    def note(self, pending: Pending) -> None:
        """Keep an observation until it is judged, or with what is known of it now."""
        uuid = pending.offer.uuid
        others = tuple(each for each in self.pending_of(uuid) if each.id != pending.id)
        self.new_pending[uuid] = tuple(sorted((*others, pending), key=lambda each: each.id))
        self.new_observations[pending.id] = pending
        self.noted = max(self.noted, pending.id)

    def judge(self, pending: Pending, verdict: str) -> None:
        uuid = pending.offer.uuid
        self.new_pending[uuid] = tuple(each for each in self.pending_of(uuid) if each.id != pending.id)
        self.verdicts[pending.id] = verdict

    def finished(self) -> Knowledge:
        known = self.known
        records = {} if self.forgotten else known.records
        new = {uuid: record for uuid, (_, record) in self.new_records.items()}
        judged = [uuid for uuid, waiting in self.new_pending.items() if not waiting]
        standing = known.standing
        if self.machines or self.gone:
            standing = (standing | self.machines.keys()) - self.gone
        fetched = {uuid: each for uuid, each in self.new_secret_fetches.items() if each is not None}
        approvals = dict(known.approvals)
        for each in self.approved:
            approvals[each.digest] = {**approvals.get(each.digest, {}), **dict.fromkeys(each.guards, each.by)}
        return structs.replace(
            known,
            facts=self.facts,
            settled=self.settled,
            records=replaced(records, new, self.dropped.difference(new).intersection(records)),
            unseen=self.unseen,
            sets_bmcs=self.sets_bmcs,
            machines=replaced(known.machines, {**self.departed, **self.machines}),
            standing=standing,
            lost=self.lost,
            overrides=self.overrides.over_known(),
            switches=self.switches.over_known(),
            pins=replaced(known.pins, self.new_pins),
            known_pairs=self.known_pairs,
            pending=replaced(known.pending, self.new_pending, judged),
            secret_fetches=replaced(known.secret_fetches, fetched, self.new_secret_fetches.keys() - fetched.keys()),
            noted=self.noted,
            sightings=self.sightings,
            claims=self.claims,
            approvals={digest: guards for digest, guards in approvals.items() if digest not in self.used_up},
            met=known.met | self.met if self.met else known.met,
            unsearched=known.unsearched if self.facts.searched is None else (),
            taken=known.taken if self.taken is None else self.taken,
        )

    @property
    def sees_otherwise(self) -> bool:
        if self.sightings is self.known.sightings:
            return False
        before, now = (
            {file: (each.presence, each.message) for file, each in found if each.presence is not Presence.UNKNOWN}
            for found in ((self.known.sightings or {}).items(), (self.sightings or {}).items())
        )
        return before != now

    @property
    def is_nothing(self) -> bool:
        known = self.known
        new: Iterable[Collection[object]] = (
            *(self.new_records, self.dropped, self.machines, self.departed, self.gone, self.overrides.unstored),
            *(self.switches.unstored, self.new_pins, self.new_secret_fetches, self.new_observations, self.verdicts),
            *(self.approved, self.used_up, self.met - known.met, self.outcomes, self.events),
        )
        is_other = (
            *(self.forgotten, self.prune_before is not None, self.taken not in (None, known.taken)),
            *(self.known_pairs != known.known_pairs, self.lost != known.lost, self.facts != known.facts),
        )
        return not (any(new) or any(is_other) or self.sees_otherwise)


class Fetch(Struct, frozen=True, kw_only=True):
    """What was fetched, and what the ledger says of it."""

    observation: Observation  # with the digest of the plan whose entry was sent
    offer: Offer
    noted: bool  # whether it was noted before: a spool that is read once more


def looked_around(
    store: Store, *, observes: bool, owner: str | None, output: Path, spool: Path | None, site: str | None
) -> None:
    """Note where the instance publishes, whose tree lies there, whether fetches reach it, where, and for which site.

    Raises `UsageError` where it has acted for another one: the servers of that would look removed.
    """
    about = instance_tables.read(store)
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


def output_modes(store: Store, output: Path, group: str | None) -> TreeModes:
    """Return the permissions of what is published, and note in the ledger from when on others may not read it.

    A new ledger closes OUTPUT. One that an earlier version made leaves OUTPUT as it is until somebody names a group. So
    does a new one that takes over what an earlier ledger published for everybody.
    Raises `UsageError` for a group that gitboot may not give files to.
    """
    about, number = instance_tables.read(store), group_of(group) if group is not None else None
    is_new = (about.accepted, about.lapsed, about.initialised, about.output) == (None, None, None, None)
    takes_over = (output / MANIFEST).exists() and is_open(output)
    if not about.closes_output and number is None and (takes_over or not is_new):
        return OPEN
    if not about.closes_output:
        with store.writing() as tx:
            instance_tables.write_facts(tx, closes_output=True)
    return closed(number)


def known(store: Store) -> Knowledge:
    about = instance_tables.read(store)
    pending: dict[SystemUuid, tuple[Pending, ...]] = {}
    for each in server_tables.pending(store):
        pending[each.offer.uuid] = (*pending.get(each.offer.uuid, ()), each)
    return Knowledge(
        facts=about,
        records=server_tables.read_records(store),
        machines=server_tables.read_machines(store),
        standing=server_tables.standing(store),
        lost=server_tables.read_lost_identities(store),
        overrides=server_tables.read_overrides(store),
        switches=server_tables.read_switches(store),
        pins=server_tables.read_pins(store),
        known_pairs=server_tables.read_known_bmcs(store),
        pending=pending,
        noted=server_tables.last_noted(store),
        secret_fetches=server_tables.read_secret_fetches(store),
        approvals=instance_tables.approvals(store),
        met=instance_tables.read_acknowledgements(store),
        unsearched=instance_tables.accepted_commits(store) if about.searched is None else (),
        taken=server_tables.taken(store),
    )


def write(store: Store, news: Iterable[Learning]) -> None:
    """Write down all that is new, or nothing of it; raises `LedgerError`."""
    if something := [each for each in news if not each.is_nothing]:
        with store.writing() as tx:
            for each in something:
                _write(tx, each)
                if each.sightings is not None and each.sees_otherwise:
                    lease = store.database.lease
                    instance_tables.store_sightings(tx, each.sightings, lease.place if lease is not None else "")


def _write(tx: Transaction, new: Learning) -> None:
    known = new.known
    instance_tables.write_changed_facts(tx, known.facts, new.facts)
    instance_tables.use_up(tx, new.used_up)
    instance_tables.approve(tx, new.approved)
    instance_tables.add(tx, new.met - known.met)
    if new.forgotten:
        server_tables.forget(tx)
    server_tables.drop(tx, sorted(new.dropped))
    server_tables.write_records(tx, [(uuid, server, record) for uuid, (server, record) in new.new_records.items()])
    server_tables.write_machines(tx, new.departed.values(), stand=False)
    server_tables.write_machines(tx, new.machines.values(), gone=sorted(new.gone))
    server_tables.write_lost_identities(tx, known.lost, new.lost)
    server_tables.write_overrides(tx, [(uuid, each) for (uuid, _), each in new.overrides.unstored.items()])
    server_tables.write_switches(tx, [(uuid, each) for (uuid, _), each in new.switches.unstored.items()])
    server_tables.write_pins(tx, new.new_pins.items())
    server_tables.write_secret_fetches(tx, new.new_secret_fetches)
    if new.known_pairs != known.known_pairs:
        server_tables.write_known_bmcs(tx, new.known_pairs)
    server_tables.note(tx, [new.new_observations[number] for number in sorted(new.new_observations)])
    server_tables.judge(tx, new.verdicts)
    if new.taken is not None and new.taken != known.taken:
        server_tables.take(tx, new.taken)
    if new.prune_before is not None:
        server_tables.prune(tx, new.prune_before)
    instance_tables.carry_out(tx, new.outcomes, new.at)
    instance_tables.write(tx, new.events)


def write_events(store: Store, happened: Sequence[Event]) -> None:
    """Write down what happened besides; raises `LedgerError`."""
    if happened:
        with store.writing() as tx:
            instance_tables.write(tx, happened)


def fetches_of(store: Store, observations: Iterable[Observation], keys: TokenKeys) -> tuple[Fetch, ...]:
    """What was fetched, but for what nobody offered, and for what means nothing by being made.

    An endpoint has noted what it gave by the digest of its plan, a mirror by the date of the file. Of what was
    overtaken an endpoint knows no more than its path. By which name a token was published stays outside: from here on a
    path has the token itself.
    """
    fetches = []
    for observation in observations:
        digest, number, name = observation.digest, None, token_in(observation.path)
        if digest is not None and digest == name:
            digest = server_tables.token_at(store, observation.path) or digest
        if digest is None and observation.modified is not None:
            if (version := server_tables.version(store, observation.path, observation.modified)) is not None:
                digest, number = version
            elif name is not None:  # a token says by itself whose it is, also in a tree that another host has made
                digest = server_tables.token_at(store, observation.path)
        offer = server_tables.offered(store, digest) if digest is not None else None
        if digest is None or offer is None or not (name is None or keys.has_named(digest, name, observation.at)):
            continue
        offer = structs.replace(offer, number=number if number is not None else offer.number)
        path = observation.path.replace(name, digest) if name is not None else observation.path
        seen = replace(observation, path=path, digest=digest, modified=None)
        fetches.append(Fetch(observation=seen, offer=offer, noted=server_tables.was_noted(store, seen, digest)))
    return tuple(fetches)


def never_offered(store: Store, observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """What an endpoint has given, of what is given once, and this ledger has never offered: it is an older copy."""
    given = (each for each in that_use_up(observations) if each.offer is not None and not each.is_start)
    return tuple(
        each for each in given if each.digest is not None and server_tables.offered(store, each.digest) is None
    )
