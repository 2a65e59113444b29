"""What is learned from a batch of requests, fetches and readings, and from the accepted commit; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field, structs

from gitboot.artifacts.availability import Sighting
from gitboot.bmc.credentials import pair_of
from gitboot.bmc.identity import Pinned
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.override_steps import Withdrawal
from gitboot.bmc.power_steps import SwitchRecord
from gitboot.controller import operator_requests
from gitboot.controller.bmcs.desired_state import carry_switches
from gitboot.controller.commit_acceptance import Attempt
from gitboot.controller.records import evidence, ledger_trust, provisioning
from gitboot.controller.records.evidence import Reading
from gitboot.controller.records.install_boots import rolled_back
from gitboot.controller.records.ledger_snapshot import Fetch, Knowledge, Learning
from gitboot.controller.records.provisioning import goes_unseen
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.ledger.instance_tables import Request
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.boot_limits import Stoppage
from gitboot.resolve.server_decision import BootFile
from gitboot.status.conditions import Event
from gitboot.status.instance_status import Held
from gitboot.system_clock import Keeping, Uptime

KEPT: Final = timedelta(days=90)  # how long it is remembered what was offered and fetched


class Batch(Struct, frozen=True, kw_only=True):
    """What has come in since the last one."""

    written: tuple[
        tuple[SystemUuid, OverrideRecord | SwitchRecord], ...
    ] = ()  # by jobs at BMCs; the ledger has it already
    noted: tuple[Withdrawal, ...] = ()  # by jobs at BMCs, of what they end; the ledger does not have it
    requests: tuple[Request, ...] = ()
    held: Held | None = None  # what can be approved
    stoppage: Stoppage | None = None  # what a person has stopped without the ledger
    keeping: Keeping | None = None  # how the clock is kept; None: it is no instance that learns this
    up: Uptime | None = None  # how long the kernel runs
    witnessed: bool = False  # whether something outside STATE and OUTPUT knows the newest change of the ledger
    turned: bool = False  # whether the clock alone has changed a plan since the last one, or there was none
    caught_up: bool = False  # whether the newest commit that there is is the accepted one
    attempt: Attempt = field(default_factory=Attempt)  # at the newest commit, with the commit that is accepted now
    commit: Commit | None = None  # the accepted one, where this instance acts for it
    changed: Collection[str] = ()  # its servers that are others than before; all, where nothing was settled yet
    left: Collection[SystemUuid] | None = None  # machines that it lacks, of those before; None: look for them
    begun: Collection[str] = ()  # of the others, at least those that are at an installation
    fetched: tuple[Fetch, ...] = ()
    taken: Mapping[str, int] | None = None  # how far the spool is taken in with that
    given: tuple[Observation, ...] = ()  # boots that this ledger never offered
    readings: tuple[Reading, ...] = ()
    pins: tuple[tuple[SystemUuid, Pinned], ...] = ()  # what was seen at BMCs of who their machines are
    unasked: frozenset[SystemUuid] = frozenset()  # who waits to be judged by a BMC that nobody asks
    events: tuple[Event, ...] = ()  # to be written down with it
    sightings: Mapping[BootFile, Sighting] | None = None  # of all artifacts that are looked at; None: as before


class Learnt(Struct, frozen=True, kw_only=True):
    """What is known now, and what of it is new."""

    knowledge: Knowledge
    news: Learning
    changed: frozenset[SystemUuid]  # of whom a record, an override or an observation is another


def learn(knowledge: Knowledge, batch: Batch, at: datetime) -> Learnt:
    """What is known after ``batch``."""
    learning = Learning(knowledge, at)
    for uuid, record in batch.written:
        if isinstance(record, SwitchRecord):
            learning.switches.note(uuid, record, stored=True)
        else:
            learning.overrides.note(uuid, record, stored=True)
    for each in batch.noted:
        _note_withdrawal(learning, each)
    if batch.keeping is not None:
        # Once a day, as seen from when the instance was alive before: a clock that leaps ahead makes nothing old.
        last = learning.facts.heartbeat
        if last is not None and last.at.date() < at.date():
            learning.prune_before = last.at - KEPT
        ledger_trust.beat(learning, batch.keeping, witnessed=batch.witnessed, turned=batch.turned, up=batch.up)
    if batch.stoppage is not None:
        operator_requests.obey(learning, batch.stoppage)
    operator_requests.carry_out(learning, batch.requests, batch.commit, batch.held)
    if batch.caught_up and learning.facts.gap:
        learning.facts = structs.replace(learning.facts, gap=False)
    learning.events += batch.events
    attempt, accepted, steps = batch.attempt, batch.attempt.accepted, batch.attempt.steps
    if accepted is not None:
        learning.facts = structs.replace(learning.facts, orders=attempt.orders, withheld=attempt.withheld)
    if attempt.searched is not None:
        learning.facts = structs.replace(learning.facts, searched=attempt.searched)
    learning.met |= attempt.met
    learning.known_pairs |= steps.let_in
    if accepted is not None and accepted.revision != learning.facts.accepted:
        learning.used_up = tuple(verdict.digest for _, verdict in steps.hops)
        taken_back = rolled_back(knowledge, sorted(steps.rolled_back), learning.facts.sequence)
        learning.facts = structs.replace(learning.facts, accepted=accepted.revision, rolled_back=taken_back)
        learning.lost = steps.lost if steps.lost is not None else learning.lost
        provisioning.let_go(learning, steps.moves)
        learning.decide()
    if batch.sightings is not None:
        _look(learning, batch.sightings)
    if batch.commit is not None:
        _learn_of(learning, batch, batch.commit)
    unseen = learning.unseen ^ knowledge.unseen
    if batch.keeping is not None and not learning.is_nothing:
        ledger_trust.refresh(learning, batch.up)
    changed = {
        *learning.new_records,
        *learning.dropped,
        *learning.overrides.new,
        *learning.new_pending,
        *learning.switches.new,
        *unseen,
    }
    if (learning.settled is None) != (knowledge.settled is None):
        changed |= learning.known.standing | learning.machines.keys()
    return Learnt(
        knowledge=learning.finished(),
        news=learning,
        changed=frozenset(changed),
    )


def _note_withdrawal(learning: Learning, noted: Withdrawal) -> None:
    """Learn of a withdrawal that was noted beside the ledger, unless the override was set or settled since."""
    uuid, record, is_left = noted
    known = next((each for each in learning.overrides.of(uuid) if each.reason == record.reason), None)
    if known is None or not known.is_ended_by(record):
        return
    learning.overrides.note(uuid, record)
    if not is_left:
        return  # the result of its job becomes an event
    machine = learning.known.machines.get(uuid)
    name = machine.name if machine is not None else uuid
    message = (
        f"{name}: the instance noted before it ended that {record.override.enabled} {record.override.target} for "
        f"{record.reason} is {record.state}"
    )
    learning.tell(f"Override{record.state}", message, server=name, reason=record.reason, plan=record.plan_digest)


def _learn_of(learning: Learning, batch: Batch, commit: Commit) -> None:
    """Learn of the machines of a commit; what was fetched before a start is evidence of what was offered then."""
    if learning.settled != commit.revision:
        provisioning.settle(
            learning, commit, batch.changed, batch.begun, batch.attempt.steps.introduced, left=batch.left
        )
    kind = commit.fleet.provisioning.evidence
    for uuid, pinned in batch.pins:
        learning.pin(uuid, pinned)
    for reading in batch.readings:
        if evidence.judge(learning, reading, kind):
            learning.judged.add(reading.uuid)
    if batch.unasked:
        evidence.trust_unasked(learning, batch.unasked, commit)
    if batch.fetched:
        evidence.take(learning, batch.fetched, commit)
    if batch.given:
        provisioning.doubt_given(learning, commit, batch.given)
    if batch.changed or learning.new_records:
        provisioning.carry(learning, commit, batch.changed)
    if learning.known.switches or learning.switches.new:
        carry_switches(learning, commit, batch.changed)
    if batch.changed and learning.known_pairs:  # who is asked for nothing any more is a stranger when it comes back
        uuids = learning.known.overrides.keys() | learning.overrides.new.keys()
        standing = (each.bmc for uuid in uuids for each in learning.overrides.of(uuid) if each.stays_behind)
        described = (machine.bmc for machine in commit.machines.values())
        learning.known_pairs &= {pair_of(bmc) for bmc in (*described, *standing) if bmc is not None}
    learning.taken = batch.taken
    learning.unseen = _unseen(learning, commit, batch.changed)


def _look(learning: Learning, sightings: Mapping[BootFile, Sighting]) -> None:
    """Learn what was seen of artifacts; what is not looked at any more has not come back."""
    before = learning.sightings or {}
    if sightings is learning.sightings:
        return
    for file, now in sightings.items():
        was_absent = file in before and before[file].is_absent
        if now.is_absent and not was_absent:
            message = f"{file.url}: {now.message}; what boots by it is not offered until it is there"
            learning.tell("ArtifactMissing", message, warning=True, url=file.url, sha256=file.sha256)
        elif was_absent and not now.is_absent:
            learning.tell("ArtifactFound", f"{file.url} is there", url=file.url, sha256=file.sha256)
    learning.sightings = sightings


def _unseen(learning: Learning, commit: Commit, changed: Collection[str]) -> frozenset[SystemUuid]:
    servers, found = commit.decisions.servers, set()
    kind, observes = commit.decisions.evidence, learning.facts.observes
    # Of some boots, nothing but an override that was set could show that they were made.
    sets = commit.ledger is not None or (observes and kind is not Evidence.PROGRESS)
    uuids = {machine.uuid for machine in commit.named(changed)} | learning.new_records.keys()
    if not sets:
        uuids |= learning.overrides.new.keys()
    if sets is not learning.sets_bmcs:  # the Fleet names a ledger now, or none any more
        uuids, learning.sets_bmcs = {*commit.machines, *learning.unseen}, sets
    for uuid in uuids & commit.machines.keys():
        machine = commit.machines[uuid]
        is_set = sets or any(each.state.is_open for each in learning.overrides.of(uuid))
        record, decision = learning.record(uuid), servers[machine.name]
        if goes_unseen(decision, machine, record, kind, observes=observes, sets=is_set):
            found.add(uuid)
    return (learning.unseen - uuids) | found if uuids else learning.unseen
