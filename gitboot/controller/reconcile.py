"""Reconcile: the stages of one pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gitboot.bmc.identity import Another, IdentityChanged
from gitboot.bmc.step_runner import Result
from gitboot.child_processes import uncollected
from gitboot.controller.acceptance import Accepting, Attempt
from gitboot.controller.bmcs.power_waves import granted
from gitboot.controller.bmcs.schedule import (
    Schedule,
    arranged,
    events_of,
    hurried,
    jobs,
    reported,
    submitted,
    switched,
    unasked,
)
from gitboot.controller.checkpoint import Checkpoint
from gitboot.controller.condition_rules import announcements, conditions
from gitboot.controller.current_plans import Plans, WindowsMeanwhile, WindowWatch, changed_by, left_by, replanned
from gitboot.controller.instance_state import Fetched, Standing, TargetState, goes_by
from gitboot.controller.learn.evidence import Reading
from gitboot.controller.learn.ledger_changes import Batch, Learnt, learn
from gitboot.controller.learn.ledger_snapshot import Knowledge, fetches_of, known, never_offered, write, write_events
from gitboot.controller.learn.ledger_trust import doubt_of, is_clock_trusted
from gitboot.controller.operator_requests import APPROVE, BEGIN, HeldChanges, stop_of
from gitboot.controller.publish_stage import InLedger, UnwritableLedger, as_it_lies, left_output, published
from gitboot.controller.reconcile_inputs import Bmcs, Inbox, Intake
from gitboot.controller.target_followers import Followed
from gitboot.errors import LedgerError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.layered_dict import replaced
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import terms_of
from gitboot.resolve.server_decision import BootFile
from gitboot.resolve.server_plan import Halt, Stoppage
from gitboot.status.conditions import Condition, remedy
from gitboot.status.events import Event, folded
from gitboot.status.instance_status import Endpoints, Status, Telling, ThreadFailure
from gitboot.status.work_progress import Laps, Stage, Told, Work, WorkListener
from gitboot.system_clock import Keeping

LEDGER_RETRY: Final = timedelta(seconds=5)
_QUICK_START: Final = timedelta(seconds=2)  # an instance that publishes its first plan so soon reads no server states
_MOST_UNWRITTEN: Final = 1000  # events in memory that the ledger does not have yet


def _nobody(*_: object) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlet:
    """The receivers of a pass's events, status, times and progress."""

    tell: Callable[[Event], None] = _nobody
    report: Callable[[Status, datetime], None] = _nobody
    laps: Laps = field(default_factory=Laps)
    listener: WorkListener = field(default_factory=WorkListener)
    stalled: Callable[[Condition], None] = _nobody
    clock: Callable[[], datetime] | None = None  # None: a pass does not measure how long it takes


class Reconciler:
    """One instance, which each call of `reconcile` brings up to an instant.

    `reconcile` never raises because of a bad commit, a lost source, a full disk or a BMC. It reports each of them as a
    condition, and goes on with the last accepted commit, so that windows end while Git is down.
    """

    def __init__(
        self,
        standing: Standing,
        *,
        accepting: Accepting,
        inbox: Inbox,
        store: Store,
        target: Followed,
        bmcs: Bmcs,
        outlet: Outlet,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.standing = standing
        self._accepting, self._inbox, self._store = accepting, inbox, store
        self._target, self._bmcs, self._checkpoint = target, bmcs, checkpoint
        self._tell, self._report, self.laps = outlet.tell, outlet.report, outlet.laps
        self._planning = outlet.listener.of(Work.PLAN)
        self._windows = WindowWatch(target.end_windows)
        self._clock = outlet.clock
        self._waits_since: datetime | None = None  # since when the first publication is missing; None: it is done
        self._leave_stalled = outlet.stalled
        self._unwritten: list[Event] = []  # events that the ledger does not have, because a write failed
        self._started: Standing | None = None  # the standing of the start, while the ledger cannot be written

    @property
    def status(self) -> Status:
        """A summary of the instance."""
        return self.standing.status()

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
        the threads that died. With ``wait``, the pass waits for the jobs at BMCs. If the ledger cannot be written, the
        pass plans by what the instance knew before, so that windows end in time.
        """
        lap = self.laps.start(Stage.TAKE_IN)
        time = self._time_from(at)
        before = replace(
            self.standing,
            fetched=fetched or self.standing.fetched,
            serving=serving,
            telling=telling,
            unsent=unsent,
            keeping=keeping,
            died=died,
            unwritable=None,
        )
        self._collect(wait_all=False)
        is_approval_left = False
        try:
            self._store.probe()
            with self._inbox.held():
                current = _started_anew(before, self._started) if self._started is not None else before
                current, taken = taken_in(read_back(current, self._store), self._store, self._inbox, at)
                lap(Stage.TAKE_IN)
                # After a start, an approval waits until the instance has found again which commit a guard holds.
                is_judged = current.attempt.attempted is not None and not current.attempt.is_preliminary
                waiting = {BEGIN} if is_judged else {BEGIN, APPROVE}
                wanted = tuple(each for each in taken.requests if each.what not in waiting)
                is_approval_left = any(each.what == APPROVE for each in taken.requests if each.what in waiting)
                witnessed = taken.witnessed or is_vouched_for(current)
                turned = current.plans.is_due(at) or current.attempt.attempted is None
                heartbeat = Batch(keeping=keeping, up=taken.up, witnessed=witnessed, turned=turned)
                said = replace(heartbeat, written=taken.written, noted=taken.noted, requests=wanted)
                said = replace(said, stoppage=taken.stoppage)
                said = replace(said, events=tuple(_unproven_status(telling, self.standing, at)))
                said = replace(said, held=_held_changes(current.attempt))
                asked = learn(current.knowledge, said, at)
                attempt, events = self._accepting.accept(current.attempt, asked.knowledge, at)
                lap(Stage.ACCEPT)
                heard = _heard(taken, attempt, asked.knowledge)
                learnt = learn(asked.knowledge, self._batch(current, attempt, heard, events, at), at)
                lap(Stage.LEARN)
                write(self._store, (asked.news, learnt.news))
                self._inbox.forget(heard)
            attempt = replace(attempt, is_log_unread=self._inbox.unread is not None)
            if attempt.stands == current.attempt.stands and not attempt.is_log_unread:
                attempt = replace(attempt, read=attempt.stands)  # all fetches before the publication are learned now
            now = self._after(current, self._accepting.adopt(attempt), heard, (asked, learnt), at)
            self._started = None
        except LedgerError as error:  # discard this attempt; what came in waits for the next pass
            now = self._resumed(replace(before, unwritable=str(error)), at)
        now = replace(now, knowledge=replace(now.knowledge, claims=self._inbox.claims))
        lap(Stage.WRITE)
        different = frozenset[str]()
        if (commit := now.commit) is None:
            now = self._stood_back(now)
        else:
            now, different, at = self._plan(now, commit, at, time)
            self._inbox.artifacts.want(_needed(now.plans, commit), _bases(commit))
            if wait:
                now, different, at = self._looked(now, commit, different, at, time)
            lap(Stage.PLAN)
            now = self._note_left_output(self._published(now, commit, different, at), commit)
            transition = before.plans.transitions.next
            if transition is not None and transition <= at:
                self._target.turn(transition)
            if wait:
                self._target.settle()
            now = _with_withheld_standing(now, commit)
            lap(Stage.PUBLISH)
            now = self._asked(now, commit, at)
            lap(Stage.ASK)
            now = self._waited(now, at) if wait else now
        now = self._windows_ended(now, at, waits=not wait)
        # gitboot judges a commit by the records after it has learned the fetches from before the files changed.
        may_judge = now.attempt.awaits_records and _progress(now.attempt) != _progress(before.attempt)
        due = self._reported(now, at)
        if self._checkpoint is not None:
            self._checkpoint.store(self.standing, len(different), at)
        lap(Stage.REPORT)
        lap.end(Stage.RECONCILE)
        is_judged_next = is_approval_left and self.standing.attempt.attempted is not None
        return at if is_judged_next or may_judge else due

    def retry_targets(self) -> None:
        """Let each target retry now after a failure. Any thread may call this."""
        self._target.retry_now()

    def _resumed(self, now: Standing, at: datetime) -> Standing:
        """Go on with the commit that was accepted before a start, if the ledger could not be written since."""
        if now.attempt.accepted is not None or not now.knowledge.is_trusted:
            return now
        attempt = self._accepting.resume(now.attempt, now.knowledge, at)
        if attempt.accepted is None:
            return now  # its evaluation has not ended, or the clone lacks the commit
        self._started = now
        # `settled` names no commit, because the records of its servers were settled before the start.
        return replace(now, attempt=attempt, knowledge=replace(now.knowledge, settled=""))

    def report_stalled(self, stage: Stage, seconds: float, at: datetime) -> None:
        """Report a stage that hangs. Another thread calls this. The next pass that ends withdraws the report."""
        message = (
            f"the stage {stage} has made no progress for {seconds:.0f} s: nothing is planned, published or set until "
            "it ends; endpoints open and end the windows that they know"
        )
        event = Event(at=at, type="StageHangs", message=message, facts={"stage": str(stage)}, warning=True)
        self._unwritten.append(event)
        self._tell(event)  # before the condition, which is written to a disk that may hang
        hint = remedy("Reconciling", "StageHangs", {})
        self._leave_stalled(
            Condition(type="Reconciling", status=False, reason="StageHangs", message=message, since=at, remedy=hint)
        )

    def has_asked(self, fetched: Fetched | None, at: datetime) -> bool:
        """Start to evaluate a new commit, and return whether a pass has nothing to report until the evaluation ends.

        A pass reports ``fetched`` if the result of the last fetch was another one.
        """
        before = self.standing
        if fetched is None or fetched != before.fetched or before.attempt.trouble is not None:
            return False
        return self._accepting.has_asked(before.attempt, before.knowledge, at)

    def _collect(self, *, wait_all: bool) -> None:
        """Store the results of jobs at BMCs that have ended. With ``wait_all``, wait for all jobs first."""
        results = self._bmcs.finished(wait_all=wait_all)
        for result in results.values():
            if result.took_s is not None:
                self.laps.add(Stage.BMC, result.took_s)
        self._inbox.collect(results)

    def _batch(
        self, before: Standing, attempt: Attempt, heard: Intake, events: tuple[Event, ...], at: datetime
    ) -> Batch:
        """Return the input of `learn` for the commit that the instance goes on with."""
        accepted, knowledge = attempt.accepted, before.knowledge
        if accepted is None:
            return Batch(events=events)
        pins = knowledge.pins
        done = (
            event
            for result in heard.results
            for event in (
                *events_of(result, accepted.revision, at, first=result.uuid not in pins),
                *switched(result, accepted.revision, at),
            )
        )
        is_fetched = before.fetched is not None and not before.fetched.failed
        batch = Batch(
            keeping=before.keeping,
            up=heard.up,
            accepted=(accepted.revision, attempt.changes),
            searched=attempt.searched,
            met=attempt.met,
            moves=attempt.moves,
            lost=attempt.lost,
            let_in=attempt.let_in,
            orders=attempt.orders,
            withheld=attempt.withheld,
            rolled_back=attempt.rolled_back,
            caught_up=knowledge.facts.gap and is_fetched and self._accepting.is_newest(attempt),
            events=(*events, *done),
            sightings=heard.sightings,
        )
        if not goes_by(knowledge, accepted):
            return batch
        settled = before.plans.commit if knowledge.settled is not None else None
        unplanned = accepted.called(before.unplanned)
        return replace(
            batch,
            commit=accepted,
            requests=tuple(each for each in heard.requests if each.what == BEGIN),
            introduced=attempt.introduced,
            changed=changed_by(settled, attempt.offered or accepted) | unplanned,
            left=left_by(settled, accepted) if knowledge.settled else None,
            begun=before.plans.begun.keys() | unplanned,
            fetched=fetches_of(self._store, heard.spooled, before.keys),
            taken=heard.spool,
            given=heard.given,
            readings=tuple(_readings(heard.results, before)),
            pins=tuple((each.uuid, each.pinned) for each in heard.results if each.pinned is not None),
            unasked=unasked(before.schedule, knowledge),
        )

    def _after(
        self, before: Standing, attempt: Attempt, heard: Intake, learnt: tuple[Learnt, ...], at: datetime
    ) -> Standing:
        """Return the standing after the ledger has what was learnt."""
        for event in folded(event for each in learnt for event in each.news.events):
            self._tell(event)
        knowledge, judged = learnt[-1].knowledge, learnt[-1].judged
        schedule = reported(before.schedule, heard.results, judged, knowledge, at)
        return replace(
            before,
            knowledge=knowledge,
            attempt=attempt,
            schedule=hurried(schedule, frozenset().union(*(each.hurried for each in learnt)), at),
            unplanned=before.unplanned.union(*(each.changed for each in learnt)),
        )

    def _waited(self, before: Standing, at: datetime) -> Standing:
        """Wait for the jobs at BMCs and learn their results. The next pass plans by them."""
        self._collect(wait_all=True)
        try:
            with self._inbox.held():
                before, taken = taken_in(before, self._store, self._inbox, at)
                heard = _heard(taken, before.attempt, before.knowledge)
                batch = self._batch(before, before.attempt, heard, (), at)
                batch = replace(batch, written=heard.written, noted=heard.noted, requests=heard.requests)
                learnt = learn(before.knowledge, batch, at)
                write(self._store, (learnt.news,))
                self._inbox.forget(heard)
        except LedgerError as error:
            return replace(before, unwritable=str(error))
        return self._after(before, before.attempt, heard, (learnt,), at)

    def _looked(
        self, before: Standing, commit: Commit, different: frozenset[str], at: datetime, time: Callable[[], datetime]
    ) -> tuple[Standing, frozenset[str], datetime]:
        """Wait until all artifacts are checked, and plan again by the results."""
        self._inbox.artifacts.wait()
        learnt = learn(before.knowledge, Batch(sightings=self._inbox.artifacts.seen()), at)
        try:
            with self._inbox.held():
                write(self._store, (learnt.news,))
        except LedgerError as error:
            return replace(before, unwritable=str(error)), different, at
        for event in learnt.news.events:
            self._tell(event)
        planned = replace(before, knowledge=learnt.knowledge, unplanned=frozenset())  # the plans are of this pass
        now, others, at = self._plan(planned, commit, at, time)
        return replace(now, unplanned=before.unplanned | now.unplanned), different | others, at

    def _plan(
        self, now: Standing, commit: Commit, at: datetime, time: Callable[[], datetime]
    ) -> tuple[Standing, frozenset[str], datetime]:
        """Plan all servers that need it. Return the standing, the servers whose files may differ, and the plans' time.

        The first plans of a large fleet take minutes, and meanwhile no other code writes files. So this also ends the
        windows in the tree of an earlier process that are over by ``time``. Then it brings the plans up to that time,
        because otherwise they would open these windows again. If the ledger cannot be written, a stop counts anyway.
        """
        beside = self._inbox.stoppage if now.unwritable is not None else None
        due = None
        if self._waits_since is not None:
            due = now.next_window_end
        elif not now.publication.complete:
            due = at + _QUICK_START
        windows = WindowsMeanwhile(self._windows, due, time, self._planning)
        now, different = _planned(now, commit, at, windows.report, beside)
        if windows.due != due:
            now = replace(
                now,
                publication=_owing(now.publication, windows.servers, windows.events),
                next_window_end=windows.due,
            )
        if windows.ended_at is not None and windows.ended_at > at:
            at, unplanned = windows.ended_at, now.unplanned
            planned = replace(now, unplanned=frozenset())  # the plans are of this pass
            now, others = _planned(planned, commit, at, self._planning, beside)
            now, different = replace(now, unplanned=unplanned | now.unplanned), different | others
        return now, different, at

    def _time_from(self, at: datetime) -> Callable[[], datetime]:
        """Return a function that returns the time, if it is ``at`` now."""
        if (clock := self._clock) is None:
            return lambda: at
        began = clock()
        return lambda: at + max(clock() - began, timedelta())

    def _stood_back(self, now: Standing) -> Standing:
        """Return the standing without plans, if there is no commit or another instance acts for it."""
        if now.attempt.accepted is None:  # keep the plans of the process before this one
            return now
        self._bmcs.forget(frozenset(now.schedule.asks))
        schedule = Schedule(most_failures=now.schedule.most_failures, jitter=now.schedule.jitter)
        return replace(
            now,
            plans=Plans(),
            publication=TargetState(applied=now.publication.applied),
            schedule=schedule,
            unplanned=frozenset(),
        )

    def _published(self, now: Standing, commit: Commit, different: frozenset[str], at: datetime) -> Standing:
        """Publish the plans to the target, and delete the fetches from the spool that the ledger has."""
        publication, error = as_it_lies(now.publication, self._target, at), now.unwritable
        if self._checkpoint is not None:
            publication = self._checkpoint.without_suspects(publication)
        forgotten = self._inbox.forgotten_next(now.knowledge.taken)
        terms = terms_of(
            commit.fleet.provisioning, self._inbox.giver, endpoint=commit.fleet.endpoint, forgotten=forgotten
        )
        is_same = publication.stands_for(commit) and publication.terms == terms
        if different or not is_same or publication.plans.sightings is not now.plans.sightings:
            with uncollected():
                publication = published(
                    publication,
                    now.plans,
                    commit,
                    different,
                    now.knowledge,
                    self._target,
                    InLedger(self._store, now.knowledge.facts.sequence, at)
                    if now.unwritable is None
                    else UnwritableLedger(now.unwritable, is_published=now.knowledge.facts.keyed),
                    at,
                    terms=terms,
                    keys=now.keys,
                )
        if publication.stands_for(commit) and now.unwritable is None:
            self._inbox.forget_spool(now.knowledge.taken, forgotten)
        unwritable, publication = publication.unwritable or error, replace(publication, unwritable=None)
        return replace(now, publication=publication, unwritable=unwritable)

    def _windows_ended(self, now: Standing, at: datetime, *, waits: bool) -> Standing:
        """End the windows that are over in the tree of an earlier process, until this instance has published.

        With ``waits``, wait a while for the first publication, because reading all server states takes time.
        """
        if now.commit is not None and now.publication.complete:
            self._waits_since = None
            return replace(now, next_window_end=None)
        since = self._waits_since = self._waits_since or at
        if waits and since <= at < since + _QUICK_START:
            return replace(now, next_window_end=since + _QUICK_START)
        servers, events = self._windows.end(at)
        publication = _owing(now.publication, servers, events)
        return replace(now, publication=publication, next_window_end=self._windows.next_end)

    def _note_left_output(self, now: Standing, commit: Commit) -> Standing:
        """Store which one-time boots an upgrade took out of OUTPUT, if the publication is complete."""
        about = now.knowledge.facts
        if now.unwritable is not None or not now.publication.complete:
            return now
        left = left_output(about, now.plans, commit, is_upgraded=now.is_upgraded)
        if left == about.left_output:
            return now
        try:
            with self._store.writing() as tx:
                instance_tables.write_facts(tx, left_output=left)
        except LedgerError as error:
            return replace(now, unwritable=str(error))
        return replace(now, knowledge=replace(now.knowledge, facts=replace(about, left_output=left)))

    def _asked(self, now: Standing, commit: Commit, at: datetime) -> Standing:
        """Start jobs at BMCs after the publication, so that a machine that resets at once finds its files."""
        suspension = now.knowledge.facts.suspension
        overrides, unlearned = self._inbox.overrides_over(now.knowledge.overrides)
        knowledge = replace(now.knowledge, overrides=overrides)
        may_set = now.acts and now.publication.stands_for(commit) and (suspension is None or at >= suspension.until)
        may_set = may_set and is_clock_trusted(knowledge.facts, now.keeping, at)
        late = frozenset(each.serves for each in self._target.following if each.behind_since is not None)
        schedule, machines = arranged(
            *(now.schedule, commit, now.plans.servers, knowledge, now.unplanned | unlearned),
            may_set=may_set,
            keys=now.keys,
            late=late,
        )
        self._bmcs.forget(machines - schedule.asks.keys())
        schedule = hurried(schedule, _with_other_credentials(schedule, self._bmcs), at)
        schedule = granted(schedule, knowledge, at, now.longest_step)
        made, schedule = jobs(schedule, knowledge, machines, at)
        taken = self._bmcs.submit(made)
        return replace(now, schedule=submitted(schedule, made, taken, knowledge, at), unplanned=frozenset())

    def _reported(self, now: Standing, at: datetime) -> datetime | None:
        """Report the status, and return when the next pass is due."""
        refused, proxies = self._inbox.reported(at)
        now = replace(now, refused=refused, unnamed_proxies=proxies, following=self._target.following)
        now = replace(now, unread=self._inbox.unread, signed_list=self._target.renew_list(at))
        found = conditions(now, at)
        events = (*now.publication.events, *announcements(now.conditions, found, now, at))
        self._unwritten += events
        if now.unwritable is None:
            try:
                write_events(self._store, self._unwritten)
                self._unwritten.clear()
            except LedgerError as error:  # the events are reported anyway
                now = replace(now, unwritable=str(error))
                found = conditions(now, at)
        del self._unwritten[:-_MOST_UNWRITTEN]
        if now.unwritable is not None:
            events = (*events, Event(at=at, type="LedgerFailed", message=now.unwritable, warning=True))
        for event in folded(events):
            self._tell(event)
        self.standing = replace(now, conditions=found, publication=replace(now.publication, events=()))
        self._report(replace(self.status, stages=self.laps.facts()), at)
        if now.unwritable is not None:
            return min(at + LEDGER_RETRY, now.next_window_end or at + LEDGER_RETRY)
        again = at if now.commit is not None and unasked(now.schedule, now.knowledge) else None
        return min((due for due in (self.standing.next_due(at), again) if due is not None), default=None)


def _owing(before: TargetState, servers: frozenset[str], events: tuple[Event, ...]) -> TargetState:
    """Return the publication after files of these servers changed. The next one has them even with the same plans."""
    return replace(
        before,
        owed=before.owed | servers,
        versions=replaced(before.versions, {}, servers & before.versions.keys()),
        events=(*before.events, *events),
    )


def _progress(attempt: Attempt) -> tuple[object, ...]:
    """Return the progress of a commit that is judged by records, and whether the fetch log could be read."""
    return attempt.evaluated, attempt.stands, attempt.read, attempt.is_log_unread


def _with_withheld_standing(now: Standing, commit: Commit) -> Standing:
    """Return the standing with the commit by which the publication withholds install boots."""
    attempt = now.attempt
    if attempt.stands == attempt.evaluated or now.unwritable is not None or not now.publication.stands_for(commit):
        return now
    return replace(now, attempt=replace(attempt, stands=attempt.evaluated))


def _with_other_credentials(schedule: Schedule, bmcs: Bmcs) -> frozenset[SystemUuid]:
    """Return the machines whose BMC rejected credentials that have changed since."""
    failing = {uuid: schedule.appointments[uuid] for uuid in schedule.failing}
    asked = {uuid: each for uuid, each in failing.items() if each.is_locked_out and each.bmc is not None}
    by_name = {each.bmc.credentials: each.bmc for each in asked.values() if each.bmc}
    now = {name: bmcs.fingerprint(bmc) for name, bmc in by_name.items()}
    return frozenset(uuid for uuid, each in asked.items() if each.bmc and now[each.bmc.credentials] != each.credentials)


def _unproven_status(telling: Telling | None, standing: Standing, at: datetime) -> Iterator[Event]:
    """Report once a commit status that names a later change than the ledger has, and that has no proof.

    Anyone who may write commit statuses can write such a status, so it has no other effect.
    """
    before = standing.telling.claimed if standing.telling is not None else None
    claimed = telling.claimed if telling is not None else None
    if claimed is not None and claimed != before and standing.opened is not None and claimed > standing.opened:
        message = (
            f"a commit status at the forge names change {claimed} of this ledger, which has come to change "
            f"{standing.opened}, and has no proof by the ledger's key. gitboot ignores it: anyone who may write "
            "statuses, or an earlier gitboot, can have written it. If you restored this ledger from a backup, run "
            "gitboot records begin"
        )
        yield Event(at=at, type="StatusUnproven", message=message, facts={"change": claimed}, warning=True)


def _held_changes(attempt: Attempt) -> HeldChanges | None:
    return HeldChanges(attempt.held.digest, attempt.held.guards) if attempt.held is not None else None


def is_vouched_for(standing: Standing) -> bool:
    """Return whether the forge knew the newest change of the ledger when gitboot opened the ledger.

    A ledger that went on for a time without the forge does not count.
    """
    if standing.telling is None or standing.was_left:
        return False
    return standing.opened is not None and standing.telling.known == standing.opened


def _heard(taken: Intake, attempt: Attempt, knowledge: Knowledge) -> Intake:
    """Return the part of the intake that is learned now.

    Results of BMCs and fetches wait until this instance acts for the accepted commit. Fetches also wait while the
    ledger is in doubt.
    """
    unheard = replace(taken, spooled=(), spool=knowledge.taken)
    if attempt.accepted is None or not goes_by(knowledge, attempt.accepted):
        return replace(unheard, results=())
    return taken if doubt_of(knowledge.facts, attempt.accepted.decisions) is None else unheard


def _readings(results: Iterable[Result], before: Standing) -> Iterator[Reading]:
    for each in results:
        if each.observed is not None:
            state, appointment = before.plans.servers.get(each.server), before.schedule.appointments.get(each.uuid)
            yield Reading(
                uuid=each.uuid,
                state=state if state is not None and state.decision.uuid == each.uuid else None,
                observed=each.observed,
                judges=appointment.judges if appointment is not None else frozenset(),
                intents=appointment.intents if appointment is not None else frozenset(),
                number=before.knowledge.facts.sequence,
                is_own=not isinstance(each.identified, Another | IdentityChanged),
            )


def _needed(plans: Plans, commit: Commit) -> frozenset[BootFile]:
    """Return the artifacts that the boots of all servers and of unknown machines may fetch."""
    by_strangers = (file for boot in (commit.decisions.unknown or {}).values() for file in boot.fetched)
    return frozenset((*(each.file for each in plans.needs), *by_strangers))


def _bases(commit: Commit) -> tuple[str, ...]:
    """Return the base URLs of the fleet and of its sites."""
    return (commit.decisions.base_url, *commit.decisions.sites.values())


def _started_anew(before: Standing, started: Standing) -> Standing:
    """Return the standing of the start, after the first write to the ledger has succeeded.

    The instance may have changed files before without a date in the ledger. So all files are published again.
    """
    return replace(
        before,
        knowledge=started.knowledge,
        attempt=started.attempt,
        plans=started.plans,
        publication=replace(started.publication, complete=False),
        unplanned=started.unplanned,
    )


def _planned(
    now: Standing, commit: Commit, at: datetime, told: Told, beside: Stoppage | None = None
) -> tuple[Standing, frozenset[str]]:
    """Plan the servers whose decision or record changed, or that are due. Also return those whose files may differ.

    ``beside`` is a stop that only the endpoints have, because the ledger could not be written.
    """
    changed = commit.called(now.unplanned) | changed_by(now.plans.commit, commit)
    stop = stop_of(now.knowledge, commit, now.attempt.orders)
    if stop is Halt.NONE and now.is_unasked:
        stop = Halt.WRITING
    if beside is not None and stop is not Halt.ALL:
        stop = Halt.ALL if beside.everything else Halt.WRITING
    with uncollected():
        plans, different = replanned(now.plans, commit, now.knowledge, changed, at, stop, now.keys, told)
    machines = _machines(changed | different, now.plans, plans)
    return replace(now, plans=plans, unplanned=now.unplanned | machines), different


def _machines(names: Collection[str], *plans: Plans) -> frozenset[SystemUuid]:
    """Return the machines with these server names in any of the plans."""
    found: set[SystemUuid] = set()
    for each in plans:
        if each.commit is not None:
            found.update(machine.uuid for machine in each.commit.named(names))
    return frozenset(found)


def read_back(before: Standing, store: Store) -> Standing:
    """With what the disk really has, where a write has failed; raises `LedgerError` where it cannot be read."""
    if not store.is_suspect:
        return before
    store.read_back()
    return replace(before, knowledge=replace(known(store), published=before.knowledge.published))


def taken_in(before: Standing, store: Store, inbox: Inbox, at: datetime) -> tuple[Standing, Intake]:
    """All that waits in the inbox; with a ledger in doubt, where something else knows more than it does.

    The forge may know that it had come further, and an endpoint may have given a boot that it never offered. What was
    given before a person has said what is installed puts no more than its own server in doubt.
    """
    taken = inbox.take(before.knowledge.taken, at)
    taken = replace(taken, given=never_offered(store, taken.spooled))
    if not before.knowledge.is_trusted:
        return before, taken
    told = before.telling.known if before.telling is not None else None
    if before.opened is not None and told is not None and told > before.opened:
        return _doubted(before, store, told), taken
    begun = before.knowledge.facts.begun
    if any(begun is None or begun <= each.at for each in taken.given):
        return _doubted(before, store), taken
    return before, taken


def _doubted(before: Standing, store: Store, changes: int = 0) -> Standing:
    """With a ledger that is an older copy of one that had come to so many changes, as far as anything knows."""
    instance_tables.doubt(store, "RestoredLedger", changes)
    doubted = replace(known(store), published=before.knowledge.records)
    everyone = before.unplanned | before.knowledge.standing
    return replace(before, knowledge=doubted, opened=None, unplanned=everyone)
