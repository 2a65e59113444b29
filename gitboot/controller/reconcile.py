"""Reconcile: the stages of one pass, in their order, and the components and values that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from msgspec import structs

from gitboot.bmc.identity import Another, IdentityChanged
from gitboot.bmc.worker_pool import BmcPool
from gitboot.child_processes import uncollected
from gitboot.controller.bmcs.power_waves import grant_turns
from gitboot.controller.bmcs.schedule import (
    Schedule,
    due_tasks,
    machines_without_task,
    note_results,
    note_submission,
    override_events,
    plan_tasks,
    power_events,
    reschedule_now,
)
from gitboot.controller.checkpoint import Checkpoint
from gitboot.controller.commit_acceptance import Accepting, Attempt
from gitboot.controller.condition_rules import announcements, conditions
from gitboot.controller.current_plans import Plans, WindowWatch, changed_by, left_by, replanned
from gitboot.controller.instance_state import Fetched, InstanceState, TargetState, goes_by
from gitboot.controller.offered_files import LedgerNotes, published
from gitboot.controller.operator_requests import APPROVE, BEGIN, stop_of
from gitboot.controller.reconcile_inputs import Inbox, Intake
from gitboot.controller.records import ledger_changes, ledger_snapshot
from gitboot.controller.records.evidence import Reading
from gitboot.controller.records.ledger_changes import Batch, Learnt
from gitboot.controller.records.ledger_snapshot import Knowledge, fetches_of, known, never_offered, write_events
from gitboot.controller.records.ledger_trust import behind, doubt_of, unkept
from gitboot.controller.target_followers import PATIENCE_S, Followed
from gitboot.errors import LedgerError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.ledger import instance_tables
from gitboot.ledger.instance_tables import Facts
from gitboot.ledger.store import Store
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import terms_of
from gitboot.render.server_files import ServerState
from gitboot.resolve.boot_limits import Halt
from gitboot.resolve.server_plan import Cause
from gitboot.status.conditions import Condition, Event, folded, remedy
from gitboot.status.instance_status import Endpoints, Status, Telling, ThreadFailure
from gitboot.status.work_progress import Lap, Laps, Stage, Told, Work, WorkListener
from gitboot.system_clock import Keeping


def ignore(*_: object) -> None:
    """Ignore an event, a status, or the end of a BMC task."""


@dataclass(kw_only=True, slots=True)
class Components:
    """The components of an instance, and the receivers of events, status, durations and progress."""

    accepting: Accepting
    inbox: Inbox
    store: Store
    target: Followed
    bmcs: BmcPool
    clock: Callable[[], datetime]  # by which a pass measures how long it takes
    checkpoint: Checkpoint | None = None
    tell: Callable[[Event], None] = ignore
    report: Callable[[Status, datetime], None] = ignore
    report_stalled: Callable[[Condition], None] = ignore
    laps: Laps = field(default_factory=Laps)
    listener: WorkListener = field(default_factory=WorkListener)
    windows: WindowWatch = field(init=False)
    unwritten: list[Event] = field(default_factory=list)  # events that the ledger does not have, because a write failed

    def __post_init__(self) -> None:
        self.windows = WindowWatch(self.target.end_windows)

    def collect_results(self, *, wait_all: bool = False) -> None:
        """Hand the results of BMC tasks that have ended to the inbox. With ``wait_all``, wait for all tasks first."""
        results = self.bmcs.finished(wait_all=wait_all)
        for result in results.values():
            if result.took_s is not None:
                self.laps.add(Stage.BMC, result.took_s)
        self.inbox.collect(results)


@dataclass(kw_only=True, slots=True)
class Pass:
    """One pass. The stages set the fields after ``time``, in this order."""

    components: Components
    before: InstanceState  # as the last pass left it
    at: datetime  # the instant of the pass; planning a large fleet moves it
    wait: bool  # whether the pass waits for artifacts and BMC tasks
    time: Callable[[], datetime]  # the instant at which the pass began, plus the time since
    taken: Intake = field(init=False)  # what came in
    is_approval_left: bool = False  # whether an approval waits for the next pass
    requested: Learnt = field(init=False)  # what is known after the operator requests
    attempt: Attempt = field(init=False)  # the result of judging the newest commit
    events: tuple[Event, ...] = ()  # of the attempt
    ready: Intake = field(init=False)  # the part of ``taken`` that the ledger learns now
    learnt: Learnt = field(init=False)  # what is known after the attempt and ``ready``
    different: frozenset[str] = frozenset()  # servers whose files may differ from the published ones
    due: datetime | None = None  # when the next pass is due; None: at the next event


def take_in(state: InstanceState, this: Pass) -> InstanceState:
    """Take in what the inbox has, and read the ledger again if a write to it failed. Raises `LedgerError`."""
    store = this.components.store
    if (start := state.before_resume) is not None:
        # The ledger can be written again, so the instance starts anew. It may have changed files without a date in the
        # ledger, so all files are published again.
        state = structs.replace(
            state,
            knowledge=start.knowledge,
            attempt=start.attempt,
            plans=start.plans,
            publication=structs.replace(start.publication, complete=False),
            unplanned=start.unplanned,
        )
    if store.is_suspect:
        store.read_back()
        state = structs.replace(state, knowledge=structs.replace(known(store), published=state.knowledge.published))
    state, this.taken = take_inputs(state, store, this.components.inbox, this.at)
    return state


def take_inputs(state: InstanceState, store: Store, inbox: Inbox, at: datetime) -> tuple[InstanceState, Intake]:
    """Return what the inbox has, and the state with a ledger in doubt if the ledger is an older copy.

    It is one if the forge names a later change of the ledger, or if an endpoint served a boot that the ledger never
    offered. A boot from before a person said what is installed puts only its own server in doubt.
    """
    taken = inbox.take(state.knowledge.taken, at)
    if taken.spooled:
        taken = structs.replace(taken, given=never_offered(store, taken.spooled))
    if not state.knowledge.is_trusted:
        return state, taken
    told = state.telling.known if state.telling is not None else None
    is_behind = state.opened is not None and told is not None and told > state.opened
    begun = state.knowledge.facts.begun
    if not is_behind and not any(begun is None or begun <= each.at for each in taken.given):
        return state, taken
    instance_tables.doubt(store, "RestoredLedger", told if is_behind and told is not None else 0)
    doubted = structs.replace(known(store), published=state.knowledge.records)
    everyone = state.unplanned | state.knowledge.standing
    return structs.replace(state, knowledge=doubted, opened=None, unplanned=everyone), taken


def accept(state: InstanceState, this: Pass) -> InstanceState:
    """Learn what operators asked for, then accept, hold or reject the newest commit.

    A request to begin with records waits for `learn`. After a start, an approval waits until the instance has found
    again which commit a guard holds.
    """
    taken, attempt, telling = this.taken, state.attempt, state.telling
    is_judged = attempt.attempted is not None and not attempt.is_preliminary
    waiting = {BEGIN} if is_judged else {BEGIN, APPROVE}
    this.is_approval_left = any(each.what == APPROVE for each in taken.requests if each.what in waiting)
    # The forge knew the newest change of the ledger when gitboot opened the ledger. A ledger that went on for a time
    # without the forge does not count.
    is_vouched_for = telling is not None and state.opened is not None and telling.known == state.opened
    batch = Batch(
        keeping=state.keeping,
        up=taken.up,
        witnessed=taken.witnessed or (is_vouched_for and not state.was_left),
        turned=state.plans.is_due(this.at) or attempt.attempted is None,
        written=taken.written,
        noted=taken.noted,
        requests=tuple(each for each in taken.requests if each.what not in waiting),
        stoppage=taken.stoppage,
        events=tuple(_unproven_status(state, this)),
        held=attempt.held,
    )
    this.requested = ledger_changes.learn(state.knowledge, batch, this.at)
    this.attempt, this.events = this.components.accepting.accept(attempt, this.requested.knowledge, this.at)
    return state


def resume(state: InstanceState, this: Pass) -> InstanceState:
    """Go on with the commit that was accepted before a start, if the ledger could not be written since."""
    if state.attempt.accepted is not None or not state.knowledge.is_trusted:
        return state
    attempt = this.components.accepting.resume(state.attempt, state.knowledge, this.at)
    if attempt.accepted is None:
        return state  # its evaluation has not ended, or the clone lacks the commit
    # `settled` names no commit, because the records of its servers were settled before the start.
    return structs.replace(
        state, attempt=attempt, knowledge=structs.replace(state.knowledge, settled=""), before_resume=state
    )


def _unproven_status(state: InstanceState, this: Pass) -> Iterator[Event]:
    """Report once a commit status that names a later change than the ledger has, and that has no proof.

    Anyone who may write commit statuses can write such a status, so it has no other effect.
    """
    before, opened = this.before.telling.claimed if this.before.telling is not None else None, this.before.opened
    claimed = state.telling.claimed if state.telling is not None else None
    if claimed is not None and claimed != before and opened is not None and claimed > opened:
        message = (
            f"a commit status at the forge names change {claimed} of this ledger, which has come to change {opened}, "
            "and has no proof by the ledger's key. gitboot ignores it: anyone who may write statuses, or an earlier "
            "gitboot, can have written it. If you restored this ledger from a backup, run gitboot records begin"
        )
        yield Event(at=this.at, type="StatusUnproven", message=message, facts={"change": claimed}, warning=True)


def learn(state: InstanceState, this: Pass) -> InstanceState:
    """Compute what changes in the ledger, and write nothing."""
    knowledge = this.requested.knowledge
    this.ready = ready_part(this.taken, this.attempt, knowledge)
    batch = batch_of(state, this.attempt, this.ready, this.events, this)
    this.learnt = ledger_changes.learn(knowledge, batch, this.at)
    return state


def ready_part(taken: Intake, attempt: Attempt, knowledge: Knowledge) -> Intake:
    """Return the part of the intake that is learned now.

    Results of BMC tasks and fetches wait until this instance acts for the accepted commit. Fetches also wait while the
    ledger is in doubt.
    """
    without_fetches = structs.replace(taken, spooled=(), spool=knowledge.taken)
    if attempt.accepted is None or not goes_by(knowledge, attempt.accepted):
        return structs.replace(without_fetches, results=())
    return taken if doubt_of(knowledge.facts, attempt.accepted.decisions) is None else without_fetches


def batch_of(state: InstanceState, attempt: Attempt, ready: Intake, events: tuple[Event, ...], this: Pass) -> Batch:
    """Return what is to be learned with the commit that the instance goes on with."""
    accepted, knowledge, at, components = attempt.accepted, state.knowledge, this.at, this.components
    if accepted is None:
        return Batch(events=events)
    done = (
        event
        for result in ready.results
        for event in (
            *override_events(result, accepted.revision, at, first=result.uuid not in knowledge.pins),
            *power_events(result, accepted.revision, at),
        )
    )
    is_fetched = state.fetched is not None and not state.fetched.failed
    batch = Batch(
        keeping=state.keeping,
        up=ready.up,
        attempt=attempt,
        caught_up=knowledge.facts.gap and is_fetched and components.accepting.is_newest(attempt),
        events=(*events, *done),
        sightings=ready.sightings,
    )
    if not goes_by(knowledge, accepted):
        return batch
    settled = state.plans.commit if knowledge.settled is not None else None
    unplanned = accepted.called(state.unplanned)
    return structs.replace(
        batch,
        commit=accepted,
        requests=tuple(each for each in ready.requests if each.what == BEGIN),
        changed=changed_by(settled, attempt.offered or accepted) | unplanned,
        left=left_by(settled, accepted) if knowledge.settled else None,
        begun=state.plans.begun.keys() | unplanned,
        fetched=fetches_of(components.store, ready.spooled, state.keys),
        taken=ready.spool,
        given=ready.given,
        readings=tuple(_readings(ready, state)),
        pins=tuple((each.uuid, each.pinned) for each in ready.results if each.pinned is not None),
        unasked=machines_without_task(state.schedule, knowledge) if knowledge.pending else frozenset(),
    )


def _readings(ready: Intake, state: InstanceState) -> Iterator[Reading]:
    for each in ready.results:
        if each.observed is not None:
            server, bmc = state.plans.servers.get(each.server), state.schedule.bmcs.get(each.uuid)
            yield Reading(
                uuid=each.uuid,
                state=server if server is not None and server.decision.uuid == each.uuid else None,
                observed=each.observed,
                judges=bmc.judges if bmc is not None else frozenset(),
                intents=bmc.intents if bmc is not None else frozenset(),
                number=state.knowledge.facts.sequence,
                is_own=not isinstance(each.identified, Another | IdentityChanged),
            )


def write(state: InstanceState, this: Pass) -> InstanceState:
    """Write what was learned to the ledger, and go on with the accepted commit. Raises `LedgerError`."""
    attempt = structs.replace(this.attempt, is_log_unread=this.components.inbox.unread is not None)
    changes = this.requested, this.learnt
    ledger_snapshot.write(this.components.store, [each.news for each in changes])
    if attempt.stands == state.attempt.stands and not attempt.is_log_unread:
        attempt = structs.replace(attempt, read=attempt.stands)  # all fetches before the publication are learned now
    attempt = this.components.accepting.adopt(attempt)
    return with_changes(structs.replace(state, attempt=attempt, before_resume=None), changes, this.ready, this)


def with_changes(state: InstanceState, changes: tuple[Learnt, ...], ready: Intake, this: Pass) -> InstanceState:
    """Return the state after the ledger has these changes, which came from ``ready``. Report their events."""
    this.components.inbox.forget(ready)
    for event in folded(event for each in changes for event in each.news.events):
        this.components.tell(event)
    knowledge, schedule = changes[-1].knowledge, state.schedule
    if ready.results:
        schedule = note_results(schedule, ready.results, changes[-1].news.judged, knowledge, this.at)
    if hurried := frozenset[SystemUuid]().union(*(each.news.hurried for each in changes)):
        schedule = reschedule_now(schedule, hurried, this.at)
    return structs.replace(
        state,
        knowledge=knowledge,
        schedule=schedule,
        unplanned=state.unplanned.union(*(each.changed for each in changes)),
    )


QUICK_START: Final = timedelta(seconds=2)  # an instance that publishes its first plan so soon reads no server states


def plan(state: InstanceState, this: Pass) -> InstanceState:
    """Plan the servers that need it, and name the artifacts of their boots to the watch, if artifacts are checked.

    With ``wait``, wait until the watch has checked them, and plan again by its result.
    """
    if (commit := state.commit) is None:
        return _without_plans(state, this)
    state = _plan_until_now(state, commit, this)
    if (artifacts := this.components.inbox.artifacts) is None:
        return state
    unknown = (commit.decisions.unknown or {}).values()
    needed = {*(each.file for each in state.plans.needs), *(file for boot in unknown for file in boot.fetched)}
    artifacts.want(frozenset(needed), (commit.decisions.base_url, *commit.decisions.sites.values()))
    if not this.wait:
        return state
    artifacts.wait()
    learnt = ledger_changes.learn(state.knowledge, Batch(sightings=artifacts.seen()), this.at)
    try:
        with this.components.inbox.held():
            ledger_snapshot.write(this.components.store, (learnt.news,))
    except LedgerError as error:
        return structs.replace(state, unwritable=str(error))
    for event in learnt.news.events:
        this.components.tell(event)
    # The first plans have the machines of `unplanned`.
    again = _plan_until_now(structs.replace(state, knowledge=learnt.knowledge, unplanned=frozenset()), commit, this)
    return structs.replace(again, unplanned=state.unplanned | again.unplanned)


def _without_plans(state: InstanceState, this: Pass) -> InstanceState:
    """Return the state without plans, if another instance acts for the accepted commit.

    Without an accepted commit, the plans of the process before this one stay.
    """
    if state.attempt.accepted is None:
        return state
    this.components.bmcs.forget(frozenset(state.schedule.tasks))
    return structs.replace(
        state,
        plans=Plans(),
        publication=TargetState(applied=state.publication.applied),
        schedule=Schedule(most_failures=state.schedule.most_failures, jitter=state.schedule.jitter),
        unplanned=frozenset(),
    )


def _plan_until_now(state: InstanceState, commit: Commit, this: Pass) -> InstanceState:
    """Plan the servers that need it, and set the instant of the pass to that of the plans.

    The first plans of a large fleet take minutes, and meanwhile no other code writes files. So this also ends the
    windows in the tree of an earlier process that are over by now. Then it brings the plans up to that time, because
    otherwise they would open these windows again.
    """
    components = this.components
    due: datetime | None = None
    if state.waits_since is not None:
        due = state.next_window_end
    elif not state.publication.complete:
        due = this.at + QUICK_START
    told = components.listener.of(Work.PLAN)
    publication, next_end, ended_at = state.publication, due, this.at

    def report(done: int, total: int) -> None:
        nonlocal publication, next_end, ended_at
        told(done, total)
        if next_end is None or (now := this.time()) < next_end:
            return
        servers, events = components.windows.end(now)
        publication, next_end = publication.owing(servers, events), components.windows.next_end
        if servers:
            ended_at = now

    state = _plan(state, commit, this, report)
    if next_end != due:
        state = structs.replace(state, publication=publication, next_window_end=next_end)
    if ended_at <= this.at:
        return state
    this.at = ended_at
    again = _plan(
        structs.replace(state, unplanned=frozenset()), commit, this, told
    )  # the first plans have these machines
    return structs.replace(again, unplanned=state.unplanned | again.unplanned)


def _plan(state: InstanceState, commit: Commit, this: Pass, told: Told) -> InstanceState:
    """Plan the servers whose decision or record changed, or that are due.

    If the ledger cannot be written, a stop counts that only the endpoints have.
    """
    changed = commit.called(state.unplanned) | changed_by(state.plans.commit, commit)
    stop = stop_of(state.knowledge, commit, state.attempt.orders)
    has_asked = state.telling is None or state.telling.asked
    if stop is Halt.NONE and state.knowledge.facts.gap and not has_asked:
        stop = Halt.WRITING  # the ledger was unused for long, and the forge may know that it is an older copy
    beside = this.components.inbox.stoppage if state.unwritable is not None else None
    if beside is not None and stop is not Halt.ALL:
        stop = Halt.ALL if beside.everything else Halt.WRITING
    plans, different = replanned(state.plans, commit, state.knowledge, changed, this.at, stop, state.keys, told)
    this.different |= different
    machines = {
        machine.uuid
        for each in (state.plans.commit, plans.commit)
        if each is not None
        for machine in each.named(changed | different)
    }
    return structs.replace(state, plans=plans, unplanned=state.unplanned | machines)


def publish(state: InstanceState, this: Pass) -> InstanceState:
    """Publish the plans, or end the windows that are over in the tree of an earlier process."""
    if (commit := state.commit) is not None:
        state = _note_left_output(_publish_plans(state, commit, this), commit, this)
        transition = this.before.plans.transitions.next
        if transition is not None and transition <= this.at:
            this.components.target.followers.turn(transition)
        if this.wait:
            this.components.target.followers.wait(PATIENCE_S)
        attempt = state.attempt
        if attempt.stands != attempt.evaluated and state.unwritable is None and state.publication.stands_for(commit):
            state = structs.replace(state, attempt=structs.replace(attempt, stands=attempt.evaluated))
    if commit is not None and state.publication.complete:
        return structs.replace(state, waits_since=None, next_window_end=None)
    return _end_windows(state, this)


def _publish_plans(state: InstanceState, commit: Commit, this: Pass) -> InstanceState:
    components, knowledge, at = this.components, state.knowledge, this.at
    inbox, publication = components.inbox, state.publication
    if publication.complete and not components.target.is_as_left:
        message = "what was published is not there any more as it was: all of it is published anew"
        event = Event(at=at, type="TreeReplaced", message=message, warning=True)
        publication = structs.replace(publication, complete=False, events=(event,))
    if components.checkpoint is not None:
        publication = components.checkpoint.without_suspects(publication)
    forgotten = inbox.forgotten_next(knowledge.taken)
    terms = terms_of(commit.fleet.provisioning, inbox.giver, endpoint=commit.fleet.endpoint, forgotten=forgotten)
    is_same = publication.stands_for(commit) and publication.terms == terms
    if this.different or not is_same or publication.plans.sightings is not state.plans.sightings:
        publication = published(
            publication,
            state.plans,
            commit,
            this.different,
            knowledge,
            components.target,
            LedgerNotes(components.store, knowledge.facts, at, state.unwritable),
            at,
            terms=terms,
            keys=state.keys,
        )
    if publication.stands_for(commit) and state.unwritable is None:
        inbox.forget_spool(knowledge.taken, forgotten)
    unwritable = publication.unwritable or state.unwritable
    return structs.replace(state, publication=structs.replace(publication, unwritable=None), unwritable=unwritable)


def _note_left_output(state: InstanceState, commit: Commit, this: Pass) -> InstanceState:
    """Store which one-time boots an upgrade took out of OUTPUT, if the publication is complete."""
    facts = state.knowledge.facts
    if state.unwritable is not None or not state.publication.complete:
        return state
    left = _left_output(facts, state.plans, commit, is_upgraded=state.is_upgraded)
    if left == facts.left_output:
        return state
    try:
        with this.components.store.writing() as tx:
            instance_tables.write_facts(tx, left_output=left)
    except LedgerError as error:
        return structs.replace(state, unwritable=str(error))
    return structs.replace(
        state, knowledge=structs.replace(state.knowledge, facts=structs.replace(facts, left_output=left))
    )


def _left_output(facts: Facts, plans: Plans, commit: Commit, *, is_upgraded: bool) -> frozenset[SystemUuid]:
    """Return the servers whose one-time boot was in OUTPUT before an upgrade, and which no copy serves since.

    A server leaves the set once the Fleet names an endpoint or accepts one-time boots in copies, or the boot is over.
    """
    if facts.left_output is None and not is_upgraded:
        return frozenset()
    states: Iterable[ServerState] = plans.servers.values()
    if facts.left_output is not None:
        names = [commit.machines[uuid].name for uuid in facts.left_output if uuid in commit.machines]
        states = [plans.servers[name] for name in names if name in plans.servers]
    found = set[SystemUuid]()
    for state in states:
        decision, plan = state.decision, state.plan
        is_in_copies = decision.endpoint is not None or decision.copies.one_time_boots
        is_offered = plan is not None and plan.key is not None and plan.writes_disk
        is_waiting = plan is not None and plan.cause in _WAITING and facts.left_output is not None
        if (is_offered or is_waiting) and not is_in_copies:
            found.add(decision.uuid)
    return frozenset(found)


_WAITING: Final = frozenset({Cause.STOPPED, Cause.ALL_STOPPED, Cause.WITHHELD, Cause.ABSENT})


def _end_windows(state: InstanceState, this: Pass) -> InstanceState:
    """End the windows that are over in the tree of an earlier process, until this instance has published.

    First wait a while for the first publication, because reading all server states takes time.
    """
    since: datetime = state.waits_since or this.at
    if not this.wait and since <= this.at < since + QUICK_START:
        return structs.replace(state, waits_since=since, next_window_end=since + QUICK_START)
    windows = this.components.windows
    servers, events = windows.end(this.at)
    publication = state.publication.owing(servers, events)
    return structs.replace(state, publication=publication, waits_since=since, next_window_end=windows.next_end)


def ask(state: InstanceState, this: Pass) -> InstanceState:
    """Start the BMC tasks that are due. This follows the publication: a machine that resets at once finds its files."""
    if (commit := state.commit) is None:
        return state
    components, at, suspension = this.components, this.at, state.knowledge.facts.suspension
    overrides, unlearned = components.inbox.overrides_over(state.knowledge.overrides)
    knowledge = structs.replace(state.knowledge, overrides=overrides)
    may_set = state.acts and state.publication.stands_for(commit) and (suspension is None or at >= suspension.until)
    schedule, machines = plan_tasks(
        *(state.schedule, commit, state.plans.servers, knowledge, state.unplanned | unlearned),
        may_set=may_set and behind(knowledge.facts, at) is None and unkept(knowledge.facts, state.keeping) is None,
        keys=state.keys,
        late=frozenset(each.serves for each in components.target.followers.following if each.behind_since is not None),
    )
    components.bmcs.forget(machines - schedule.tasks.keys())
    schedule = reschedule_now(schedule, _with_other_credentials(schedule, components.bmcs), at)
    schedule = grant_turns(schedule, knowledge, at, state.longest_step)
    made, schedule = due_tasks(schedule, knowledge, machines, at)
    taken = components.bmcs.submit(made)
    state = structs.replace(
        state, schedule=note_submission(schedule, made, taken, knowledge, at), unplanned=frozenset()
    )
    return _wait(state, this) if this.wait else state


def _wait(state: InstanceState, this: Pass) -> InstanceState:
    """Wait for the BMC tasks and learn their results. The next pass plans by them."""
    components = this.components
    components.collect_results(wait_all=True)
    try:
        with components.inbox.held():
            state, taken = take_inputs(state, components.store, components.inbox, this.at)
            ready = ready_part(taken, state.attempt, state.knowledge)
            batch = batch_of(state, state.attempt, ready, (), this)
            batch = structs.replace(batch, written=ready.written, noted=ready.noted, requests=ready.requests)
            learnt = ledger_changes.learn(state.knowledge, batch, this.at)
            ledger_snapshot.write(components.store, (learnt.news,))
            return with_changes(state, (learnt,), ready, this)
    except LedgerError as error:
        return structs.replace(state, unwritable=str(error))


def _with_other_credentials(schedule: Schedule, bmcs: BmcPool) -> frozenset[SystemUuid]:
    failing = {uuid: schedule.bmcs[uuid] for uuid in schedule.failing}
    rejected = {uuid: (each, each.bmc) for uuid, each in failing.items() if each.is_locked_out and each.bmc is not None}
    by_name = {bmc.credentials: bmc for _, bmc in rejected.values()}
    now = {name: bmcs.fingerprint(bmc) for name, bmc in by_name.items()}
    return frozenset(uuid for uuid, (each, bmc) in rejected.items() if now[bmc.credentials] != each.credentials)


LEDGER_RETRY: Final = timedelta(seconds=5)
_MOST_UNWRITTEN: Final = 1000  # events in memory that the ledger does not have yet


def report(state: InstanceState, this: Pass) -> InstanceState:
    """Derive the conditions, report the status and the events, and find when the next pass is due."""
    components, at = this.components, this.at
    refused, proxies = components.inbox.reported(at)
    state = structs.replace(
        state,
        refused=refused,
        unnamed_proxies=proxies,
        following=components.target.followers.following,
        unread=components.inbox.unread,
        signed_list=components.target.renew_list(at),
    )
    found = conditions(state, at)
    events = (*state.publication.events, *announcements(state.conditions, found, state, at))
    unwritten = components.unwritten
    unwritten += events
    if state.unwritable is None:
        try:
            write_events(components.store, unwritten)
            unwritten.clear()
        except LedgerError as error:  # the events are reported anyway
            state = structs.replace(state, unwritable=str(error))
            found = conditions(state, at)
    del unwritten[:-_MOST_UNWRITTEN]
    if state.unwritable is not None:
        events = (*events, Event(at=at, type="LedgerFailed", message=state.unwritable, warning=True))
    for event in folded(events):
        components.tell(event)
    state = structs.replace(state, conditions=found, publication=structs.replace(state.publication, events=()))
    components.report(structs.replace(state.status(), stages=components.laps.facts()), at)
    if components.checkpoint is not None:
        components.checkpoint.store(state, len(this.different), at)
    this.due = _next_due(state, this)
    return state


def _next_due(state: InstanceState, this: Pass) -> datetime | None:
    at, attempt, before = this.at, state.attempt, this.before.attempt
    # gitboot judges a commit by the records after it has learned the fetches from before the files changed.
    may_judge = attempt.awaits_records and _progress(attempt) != _progress(before)
    if may_judge or (this.is_approval_left and attempt.attempted is not None):
        return at
    if state.unwritable is not None:
        return min(at + LEDGER_RETRY, state.next_window_end or at + LEDGER_RETRY)
    again = at if state.commit is not None and machines_without_task(state.schedule, state.knowledge) else None
    return min((due for due in (state.next_due(at), again) if due is not None), default=None)


def _progress(attempt: Attempt) -> tuple[object, ...]:
    """Return the progress of a commit that is judged by records, and whether the fetch log could be read."""
    return attempt.evaluated, attempt.stands, attempt.read, attempt.is_log_unread


# One pass

_Stages = tuple[tuple[Stage, Callable[[InstanceState, Pass], InstanceState]], ...]

# If the ledger cannot be written, the pass discards the results of these stages. What came in waits for the next pass.
_TO_LEDGER: Final[_Stages] = (
    (Stage.TAKE_IN, take_in),
    (Stage.ACCEPT, accept),
    (Stage.LEARN, learn),
    (Stage.WRITE, write),
)
_FROM_LEDGER: Final[_Stages] = (
    (Stage.PLAN, plan),
    (Stage.PUBLISH, publish),
    (Stage.ASK, ask),
    (Stage.REPORT, report),
)


class Reconciler:
    """One instance, which each call of `reconcile` brings up to an instant.

    `reconcile` never raises because of a bad commit, a lost source, a full disk or a BMC. It reports each of them as a
    condition, and goes on with the last accepted commit, so that windows end while Git is down.
    """

    def __init__(self, standing: InstanceState, components: Components) -> None:
        self.standing = standing
        self._components = components

    @property
    def status(self) -> Status:
        return self.standing.status()

    @property
    def laps(self) -> Laps:
        return self._components.laps

    @uncollected()  # objects of a pass stay in memory, or go without the collector
    def reconcile(
        self,
        at: datetime,
        *,
        fetched: Fetched | None = None,
        serving: Endpoints | None = None,
        telling: Telling | None = None,
        unsent: tuple[str, str] | None = None,
        keeping: Keeping = Keeping.UNKNOWN,
        died: tuple[ThreadFailure, ...] = (),
        wait: bool = False,
    ) -> datetime | None:
        """Run one pass at ``at``, and return when the next pass is due. A second call at ``at`` changes nothing.

        ``fetched`` is the result of the last fetch of the source, ``serving`` the state of the endpoints, ``telling``
        that of the forge, ``unsent`` why a notice did not arrive, ``keeping`` the quality of the clock, and ``died``
        the threads that died. With ``wait``, the pass waits for artifacts and BMC tasks. If the ledger cannot be
        written, the pass plans by what the instance knew before, so that windows end in time.
        """
        components, lap = self._components, self.laps.start(Stage.TAKE_IN)
        began = components.clock()
        this = Pass(
            components=components,
            before=self.standing,
            at=at,
            wait=wait,
            time=lambda: at + max(components.clock() - began, timedelta()),
        )
        before = structs.replace(
            self.standing,
            fetched=fetched or self.standing.fetched,
            serving=serving,
            telling=telling,
            unsent=unsent,
            keeping=keeping,
            died=died,
            unwritable=None,
        )
        components.collect_results()
        try:
            components.store.probe()
            with components.inbox.held():
                state = _run(_TO_LEDGER, before, this, lap)
        except LedgerError as error:
            state = resume(structs.replace(before, unwritable=str(error)), this)
            lap(Stage.WRITE)
        state = structs.replace(state, knowledge=structs.replace(state.knowledge, claims=components.inbox.claims))
        self.standing = _run(_FROM_LEDGER, state, this, lap)
        lap.end(Stage.RECONCILE)
        return this.due

    def has_asked(self, fetched: Fetched | None, at: datetime) -> bool:
        """Start to evaluate a new commit, and return whether a pass has nothing to report until the evaluation ends.

        A pass reports ``fetched`` if the result of the last fetch was another one.
        """
        before = self.standing
        if fetched is None or fetched != before.fetched or before.attempt.trouble is not None:
            return False
        return self._components.accepting.has_asked(before.attempt, before.knowledge, at)

    def retry_targets(self) -> None:
        """Let each target retry now after a failure. Any thread may call this."""
        self._components.target.followers.retry_now()

    def report_stalled(self, stage: Stage, seconds: float, at: datetime) -> None:
        """Report a stage that hangs. Another thread calls this. The next pass that ends withdraws the report."""
        message = (
            f"the stage {stage} has made no progress for {seconds:.0f} s: nothing is planned, published or set until "
            "it ends; endpoints open and end the windows that they know"
        )
        event = Event(at=at, type="StageHangs", message=message, facts={"stage": str(stage)}, warning=True)
        self._components.unwritten.append(event)
        self._components.tell(event)  # before the condition, which is written to a disk that may hang
        hint = remedy("Reconciling", "StageHangs")
        self._components.report_stalled(
            Condition(type="Reconciling", status=False, reason="StageHangs", message=message, since=at, remedy=hint)
        )


def _run(stages: _Stages, state: InstanceState, this: Pass, lap: Lap) -> InstanceState:
    for name, stage in stages:
        state = stage(state, this)
        lap(name)
    return state
