"""Commit acceptance: accepts, holds or rejects the newest commit, and formats the messages about the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from operator import is_not
from typing import Final, NamedTuple

from msgspec import Struct, field, structs

from gitboot.controller.commit_judgement import (
    CommitJudge,
    CommitJudgement,
    CommitsAhead,
    EvaluationUnfinished,
    WaitScope,
    check_signatures,
    collect_approvals,
)
from gitboot.controller.held_commit import Candidate, format_exceeded_limits, list_ack_lines
from gitboot.controller.operator_requests import find_released_servers
from gitboot.controller.records.install_boots import find_newly_withheld, merge_withheld_boots, remove_withheld_boots
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import (
    CorruptClone,
    FleetOrders,
    InvalidRepository,
    NotEvaluated,
    OperatorError,
    SourceError,
    TemporaryError,
)
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.revision import ReinstallsNeed, Revision, Signer
from gitboot.git.clone import Source
from gitboot.git.signatures import SignatureChecker, parse_untrusted_commit
from gitboot.jsonio import format_instant
from gitboot.jsonio import to_json_value as as_facts
from gitboot.ledger.instance_tables import WithheldBoots
from gitboot.problems import Code, Problem, Severity, find_next_change
from gitboot.resolve.provisioning_record import StopScope
from gitboot.review.formats import phrases
from gitboot.review.guards import Guard, Limits
from gitboot.status.conditions import Event
from gitboot.status.instance_status import Acknowledgement, ChangedArea, HeldCommit, PassedCommit
from gitboot.text import format_count, printable


class CommitTrust(Struct, frozen=True, kw_only=True):
    """The settings that determine whose commits gitboot trusts and who may acknowledge changes."""

    signatures: SignatureChecker | None = None  # None: no trusted keys are configured
    reinstalls_need: ReinstallsNeed | None = None  # None: a line in any commit acknowledges reinstallations


NO_COMMIT_TRUST: Final = CommitTrust()


class MissingCommit(NamedTuple):
    """A commit that removed boots and is no longer on the branch. gitboot keeps withholding these boots."""

    commit: Revision
    servers: int  # number of servers in the accepted commit whose boots are withheld only because of this commit
    is_here: bool  # whether the clone contains the commit, so that gitboot can compare other commits with it


class UnresumedCommit(NamedTuple):
    """The last accepted commit, if gitboot could not restore it after a start."""

    commit: Revision
    problems: tuple[Problem, ...]


class Attempt(Struct, frozen=True, kw_only=True):
    """The accepted commit, and the judgement of the newest commit."""

    accepted: Commit | None = None
    unresumed: UnresumedCommit | None = None
    awaits_accepted: bool = False  # whether gitboot will repeat the evaluation of the unresumed commit
    # The steps to the accepted commit since the start, without the commits themselves.
    steps: CommitJudgement = field(default_factory=CommitJudgement)
    # The accepted commit whose history this reconcile searched for acknowledgements, if it did.
    searched: Revision | None = None
    used_ack_ids: frozenset[str] = frozenset()  # used acknowledgements that are not in the ledger yet
    attempted: Revision | None = None  # the newest commit that was judged
    problems: tuple[Problem, ...] = ()  # the problems of the newest commit
    problems_until: datetime | None = None  # the next time at which a problem begins or ends; None: never
    orders: FleetOrders | None = None  # the orders in the newest well-formed Fleet, if its commit is not accepted
    candidate: Candidate | None = None  # the commit that a guard holds, if any
    passed_commits: tuple[PassedCommit, ...] = ()  # the commits between the accepted and the attempted commit
    waiting: Revision | None = None  # the newest commit, while an operator has suspended acceptance
    is_adopted: bool = False  # whether the accepted commit is recorded in the clone
    clone_failure: tuple[str, str] | None = None  # why gitboot cannot read the clone: reason, message
    committed_at: datetime | None = None  # committer time of the accepted commit; None: unreadable
    signer: Signer | None = None  # the owner of the trusted key that signed the accepted commit
    acknowledged: tuple[Acknowledgement, ...] = ()  # acknowledgements that were used to accept the commit
    changed: tuple[ChangedArea, ...] = ()  # the changes in the commits that were accepted last
    keys: str = ""  # changes whenever the verification of signatures may give other results
    retry_at: datetime | None = None  # when gitboot repeats an unfinished evaluation; None: never
    retries: int = 0  # number of evaluations of the newest commit that did not end
    withheld: WithheldBoots | None = None  # install boots in the accepted commit that newer commits do not offer
    offered: Commit | None = None  # the accepted commit without the boots in `withheld`
    evaluated: Revision | None = None  # the newest commit that `withheld` takes into account
    published: Revision | None = None  # value of `evaluated` at the last complete publication
    # Value of `published` once gitboot has read all fetches from before that publication.
    log_read: Revision | None = None
    is_log_unread: bool = False  # whether the last read of the fetch log did not reach its end
    awaits_records: bool = False  # whether gitboot may accept more commits once it has processed these fetches
    waits: bool = False  # whether a step that no guard holds waits until fetches are read
    # The commit that `withheld` depends on, if it is no longer on the branch.
    missing_commit: MissingCommit | None = None

    @property
    def is_unevaluated(self) -> bool:
        """Return whether gitboot will repeat the evaluation of the newest commit because it was not completed."""
        return self.retry_at is not None and any(each.code is Code.LIMITS for each in self.problems)

    @property
    def is_behind(self) -> bool:
        """Whether gitboot has not accepted the newest commit that it judged."""
        return self.accepted is None or self.accepted.revision != self.attempted

    @property
    def is_preliminary(self) -> bool:
        """Return whether the judgement on the held commit is preliminary.

        If so, gitboot judges the commit again after processing all current fetches, based on the records.
        """
        candidate, is_published = self.candidate, self.evaluated is not None and self.published == self.evaluated
        return candidate is not None and (
            self.waits
            or (is_published and self.waiting is None and not self.is_log_unread and candidate.is_preliminary)
        )

    @property
    def is_judged(self) -> bool:
        """Return whether operators can approve the newest commit, because the judgement on it is not preliminary."""
        return self.attempted is not None and not self.is_preliminary

    @property
    def held(self) -> HeldCommit | None:
        """The commit that operators can approve, or None if no guard holds a commit or the judgement is preliminary."""
        if self.candidate is None or self.is_preliminary:
            return None
        verdict = self.candidate.verdict
        return HeldCommit(
            commit=self.candidate.commit.revision,
            digest=verdict.digest,
            guards=tuple(str(guard) for guard in verdict.holding_guards),
            reasons=format_exceeded_limits(verdict),
            lines=list_ack_lines(verdict, self.candidate.reinstalls_need) if self.candidate.accepts_lines else (),
            reinstalls=self.candidate.reinstalls if Guard.MAX_REINSTALLS in verdict.holding_guards else (),
        )


_FIRST_RETRY: Final = timedelta(minutes=1)  # pause after an unfinished evaluation; doubled each time
_LONGEST_RETRY: Final = timedelta(minutes=30)
# Failed evaluations of the accepted commit after which gitboot also judges a newer commit.
_MIN_FAILURES: Final = 3
_MAX_SUBJECT: Final = 120  # characters of a commit subject that fit on one line of the published page

_Step = Callable[[Attempt, LedgerSnapshot, list[Event], datetime], Attempt]


class CommitAcceptor:
    """Accepts, holds or rejects the newest commit. Only accepted commits take effect."""

    def __init__(
        self,
        source: Source,
        evaluation: EvaluatorClient,
        *,
        limits: Limits,
        is_covered: Callable[[BmcAccess], bool] = lambda _: True,
        published_commit: Revision | None = None,
        commit_trust: CommitTrust = NO_COMMIT_TRUST,
        checkpoint_commit: Commit | None = None,
    ) -> None:
        self._source = source
        self._evaluation = evaluation
        self._limits = limits
        self._judge = CommitJudge(evaluation, limits, is_covered, commit_trust.reinstalls_need)
        self._signatures = commit_trust.signatures
        self._published = published_commit  # the commit whose files were published before this start
        # The commit in the checkpoint, which needs no evaluation. If `_resume_commit` evaluates another commit, this is
        # that commit until the ledger contains the attempt.
        self._checkpoint_commit = checkpoint_commit
        # The history between two commits never changes, so the results of the last calls are kept.
        self._list_merges = lru_cache(maxsize=1)(source.merges)
        self._is_rewind = lru_cache(maxsize=2)(source.is_rewind)
        self._is_retrying = False  # whether gitboot is repeating evaluations that did not end
        # Whether gitboot has searched the history since the start, and whether the ledger contains the result.
        self._has_searched, self._is_search_stored = False, False
        self._judged_by_records: Candidate | None = None  # the last candidate that was judged by the records
        self._records_read: tuple[object, ...] = ()  # the result of `_list_install_values` when it was judged
        # The last commits and result of `_find_newly_withheld`.
        self._last_withheld: tuple[tuple[Commit, ...], WithheldBoots | None] | None = None
        # The last arguments and result of `_set_offered_commit`.
        self._last_offered: tuple[Commit, WithheldBoots | None, Commit] | None = None

    def accept(self, before: Attempt, snapshot: LedgerSnapshot, at: datetime) -> tuple[Attempt, tuple[Event, ...]]:
        """Judge the newest commit, and return the attempt and its events.

        The first call after a start restores the last accepted commit before it judges the newest one. The caller must
        store the attempt in the ledger and then call `adopt`.
        """
        events: list[Event] = []
        attempt = structs.replace(before, clone_failure=None, searched=None, used_ack_ids=frozenset())
        self._has_searched = self._is_search_stored
        if snapshot.recorded_commit is None and snapshot.is_trusted:
            # At a start, use the records of the earlier process.
            snapshot = structs.replace(snapshot, recorded_commit="")
        for step in (
            self._resume_commit,
            self._adopt_commit,
            self._search_history,
            self._judge_newest,
            self._search_history,
        ):
            attempt = self._run_with_clone(step, attempt, snapshot, events, at)
            if attempt.clone_failure is not None:
                break
        return self._set_offered_commit(attempt), tuple(events)

    def resume(self, before: Attempt, snapshot: LedgerSnapshot, at: datetime) -> Attempt:
        """Restore the last accepted commit after a start without a writable ledger.

        If the commit cannot be evaluated, return ``before`` unchanged. A later call of `accept` must also start from
        ``before``.
        """
        try:
            resumed = self._resume_commit(before, snapshot, [], at)
        except SourceError:
            return before
        return self._set_offered_commit(resumed) if resumed.accepted is not None else before

    def start_evaluation(self, attempt: Attempt, snapshot: LedgerSnapshot, at: datetime) -> bool:
        """Start to evaluate the newest commit if necessary. Return whether an evaluation is still running."""
        try:
            latest = self._source.latest()
            if latest is None or attempt.attempted in (None, latest):
                return False
            self._judge.judge(self._read_commits_ahead(attempt.accepted, latest, snapshot), snapshot, at)
        except EvaluationUnfinished:
            return True
        except SourceError:
            pass  # `accept` reports the error
        return False

    def adopt(self, attempt: Attempt) -> Attempt:
        """Record the accepted commit in the clone. The ledger must already contain the commit."""
        self._is_search_stored = self._has_searched
        if attempt.accepted is not None:
            self._checkpoint_commit = None
        try:
            return self._adopt_commit(attempt)
        except SourceError:
            return attempt  # `accept` tries again, and reports the error

    def is_newest_accepted(self, attempt: Attempt) -> bool:
        """Return whether gitboot accepted the newest commit of a fetch since the start."""
        with suppress(SourceError):
            accepted = attempt.accepted
            return accepted is not None and self._source.has_fetched and accepted.revision == self._source.latest()
        return False

    def _run_with_clone(
        self, step: _Step, attempt: Attempt, snapshot: LedgerSnapshot, events: list[Event], at: datetime
    ) -> Attempt:
        """Run a step that uses the clone, and return the result.

        If the clone is damaged, replace it and repeat the step once.
        """
        try:
            try:
                return step(attempt, snapshot, events, at)
            except CorruptClone as error:
                events.append(Event(at=at, type="CloneCorrupt", message=str(error), warning=True))
                accepted = snapshot.facts.accepted
                try:
                    self._source.restore(Revision(accepted) if accepted is not None else None)
                except (TemporaryError, OperatorError) as failure:
                    return structs.replace(attempt, clone_failure=("CorruptClone", f"{error}; {failure}"))
                message = "gitboot replaced its damaged clone with a new clone"
                events.append(Event(at=at, type="CloneRestored", message=message))
                return step(attempt, snapshot, events, at)
        except SourceError as error:
            return structs.replace(attempt, clone_failure=(type(error).__name__, str(error)))

    def _adopt_commit(self, attempt: Attempt, *_: object) -> Attempt:
        if attempt.accepted is None or attempt.is_adopted:
            return attempt
        self._source.accept(attempt.accepted.revision)
        self._evaluation.store_results(attempt.accepted.revision)
        return structs.replace(attempt, is_adopted=True)

    def _judge_newest(self, attempt: Attempt, snapshot: LedgerSnapshot, events: list[Event], at: datetime) -> Attempt:
        """Judge the newest commit again if the result may differ from the last judgement."""
        latest, unresumed = self._source.latest(), attempt.unresumed
        if latest is None:
            return attempt
        if unresumed is not None and latest == unresumed.commit and attempt.attempted not in (None, latest):
            # The judged commit is no longer on the branch.
            return structs.replace(attempt, attempted=None, problems=unresumed.problems, candidate=None)
        if attempt.accepted is None and self._must_resume_first(attempt, latest, snapshot):
            return attempt
        # number of evaluations of this commit that did not end
        retries = attempt.retries if latest in (attempt.attempted, attempt.waiting) else 0
        attempt = _update_problems(structs.replace(attempt, waiting=None), at)
        keys = self._signatures.fingerprint(latest) if self._signatures is not None else ""
        is_gone = self._is_commit_missing(attempt.withheld, latest)
        has_news = (
            keys != attempt.keys
            or is_gone != (attempt.missing_commit is not None)
            or self._may_judge_differently(attempt, latest, snapshot, at)
        )
        if _is_retry_due(attempt, at) and not attempt.awaits_accepted and not self._is_retrying:
            self._judge.forget_unevaluated_commits()
            self._is_retrying = True
        withheld_before = attempt.withheld
        if latest == attempt.attempted and not attempt.is_behind:
            return self._update_withheld_boots(attempt, withheld_before, (), latest, is_gone=is_gone)
        if latest == attempt.attempted and not (has_news or self._is_retrying):
            return attempt
        if self._is_retrying:
            # gitboot still offers the boots that these commits remove, so it first withholds them and then reads the
            # records.
            attempt = structs.replace(attempt, evaluated=None, published=None, log_read=None)
        reads_records, wait = attempt.log_read == latest, _choose_wait_scope(attempt, latest)
        try:
            ahead = self._read_commits_ahead(attempt.accepted, latest, snapshot)
            judgement = self._judge.judge(
                ahead, snapshot, at, attempt.used_ack_ids, reads_records=reads_records, wait=wait
            )
        except EvaluationUnfinished:
            return attempt
        reached = judgement.reached or attempt.accepted
        self._evaluation.end_process_unless_accepted(reached.revision if reached is not None else None)
        if not attempt.awaits_accepted and not judgement.is_incomplete:
            attempt = structs.replace(attempt, retry_at=None, retries=0)
        elif not attempt.awaits_accepted and (self._is_retrying or not retries):
            attempt = _schedule_retry(attempt, retries, at)
        self._records_read, self._is_retrying = _list_install_values(snapshot), False
        suspension = snapshot.facts.suspension
        if suspension is not None and at < suspension.until:
            attempt = self._update_withheld_boots(
                attempt, withheld_before, judgement.valid, judgement.evaluated, is_gone=is_gone
            )
            return _record_waiting_commit(attempt, latest, judgement)
        scheduled = attempt
        if judgement.reached is not None:
            attempt = self._accept_reached_commit(attempt, judgement, judgement.reached, ahead, events, at)
        attempt = structs.replace(
            attempt,
            orders=judgement.orders,
            passed_commits=judgement.passed_commits,
            keys=keys,
            problems_until=judgement.problems_until,
            awaits_records=judgement.awaits_records,
            waits=judgement.waits,
        )
        attempt = self._update_withheld_boots(
            attempt, withheld_before, judgement.newer_commits, judgement.evaluated, is_gone=is_gone
        )
        attempt = structs.replace(attempt, evaluated=latest)
        if judgement.is_incomplete and judgement.reached is not None and judgement.reached.revision != latest:
            attempt = structs.replace(attempt, retry_at=scheduled.retry_at, retries=scheduled.retries)
        if judgement.invalid is not None:
            return _record_rejection(attempt, latest, judgement.invalid, events, at)
        if judgement.candidate is None:
            return attempt
        attempt = _record_held_commit(attempt, latest, judgement.candidate, snapshot, at)
        self._judged_by_records = attempt.candidate if reads_records else None
        return attempt

    def _must_resume_first(self, attempt: Attempt, latest: Revision, snapshot: LedgerSnapshot) -> bool:
        """Return whether gitboot must restore the last accepted commit before it judges the newest commit.

        After several failures, gitboot judges the newest commit nevertheless.
        """
        accepted_before = self._find_last_accepted(snapshot)
        has_failed = attempt.attempted is not None or attempt.retries >= _MIN_FAILURES
        return accepted_before is not None and (latest == accepted_before or not has_failed)

    def _may_judge_differently(
        self, attempt: Attempt, latest: Revision, snapshot: LedgerSnapshot, at: datetime
    ) -> bool:
        """Return whether approvals, records, fetches or the time may change the judgement of the newest commit."""
        held = attempt.candidate
        return (
            (held is not None and not held.accepts_lines and not snapshot.facts.gap)
            or (held is not None and not collect_approvals(snapshot).keys() <= held.approvals.keys())
            or (attempt.log_read == latest and (attempt.awaits_records or self._has_new_records(attempt, snapshot)))
            or (attempt.waits and _choose_wait_scope(attempt, latest) is WaitScope.NONE)
            or (attempt.problems_until is not None and attempt.problems_until <= at)
        )

    def _accept_reached_commit(
        self,
        attempt: Attempt,
        judgement: CommitJudgement,
        commit: Commit,
        ahead: CommitsAhead,
        events: list[Event],
        at: datetime,
    ) -> Attempt:
        """Return the attempt that accepts the commit that ``judgement`` reached, and report the acknowledgements."""
        accepted = self._build_attempt(commit, events, at)
        for revision, verdict in judgement.accepted_steps:
            for trip in verdict.trips:
                message = f"{revision[:12]}: {trip.guard} is acknowledged: {phrases.format_excess(trip)} (by {trip.by})"
                facts = {"commit": revision, "digest": verdict.digest, "guard": trip.guard.value, "by": trip.by}
                events.append(Event(at=at, type="Acknowledged", message=message, facts=facts))
        subjects = {
            message.commit: message.text.partition("\n")[0][:_MAX_SUBJECT]
            for _, messages in ahead.merges
            for message in messages
        }
        return structs.replace(
            accepted,
            used_ack_ids=attempt.used_ack_ids | judgement.used_ack_ids,
            steps=structs.replace(judgement, reached=None, valid=(), candidate=None),
            acknowledged=tuple(
                Acknowledgement(commit=revision, guard=guard, by=by)
                for revision, verdict in judgement.accepted_steps
                for guard, by in dict.fromkeys((trip.guard.value, trip.by) for trip in verdict.trips)
            ),
            changed=tuple(
                ChangedArea(
                    commit=revision,
                    label="=".join(area.label) if area.label is not None else "",
                    size=area.size,
                    changed=area.changed,
                    less=area.less,
                    removed=area.removed,
                    added=area.added,
                    reinstalled=area.reinstalled,
                    subject=subjects.get(revision, ""),
                )
                for revision, verdict in judgement.accepted_steps
                for area in verdict.areas
            ),
        )

    def _update_withheld_boots(
        self,
        attempt: Attempt,
        before: WithheldBoots | None,
        newer: Sequence[Commit],
        evaluated: Revision | None,
        *,
        is_gone: bool,
    ) -> Attempt:
        """Update the set of withheld boots: boots that newer commits do not offer, and boots withheld ``before``.

        ``evaluated`` is the newest commit whose evaluation ended. After a restart, a restore or a take-over, the commit
        in ``before`` may be newer, because its evaluation did not end or because the clone does not contain it.
        ``is_gone`` means that the commit in ``before`` is no longer on the branch. In that case an operator must
        decide, unless ``evaluated`` descends from that commit.
        """
        accepted = attempt.accepted
        if accepted is None:
            return attempt  # after a restart, the accepted commit may still become known
        now = self._find_newly_withheld(accepted, newer, evaluated) if newer and evaluated is not None else None
        if before is None or before.by == evaluated or (is_gone and self._limits.allow_rewind):
            return structs.replace(attempt, withheld=now, missing_commit=None)
        by = Revision(before.by)
        is_here = is_superseded = False
        with suppress(SourceError):
            is_here = self._source.has(by)
            is_superseded = is_here and evaluated is not None and self._source.is_rewind(evaluated, by)
        if is_superseded:
            return structs.replace(attempt, withheld=now, missing_commit=None)
        withheld = merge_withheld_boots(before, now)
        missing_commit = None
        if is_gone:
            boots_now = now.servers if now is not None else {}
            only_before = [uuid for uuid, boots in withheld.servers.items() if boots != boots_now.get(uuid)]
            missing_commit = MissingCommit(by, sum(uuid in accepted.machines for uuid in only_before), is_here)
        return structs.replace(attempt, withheld=withheld, missing_commit=missing_commit)

    def _find_newly_withheld(
        self, accepted: Commit, newer: Sequence[Commit], evaluated: Revision
    ) -> WithheldBoots | None:
        """Return the accepted commit's boots that newer commits do not offer. Keep the result for equal commits."""
        path = (accepted, *newer)
        if (
            self._last_withheld is None
            or len(path) != len(self._last_withheld[0])
            or any(map(is_not, path, self._last_withheld[0]))
        ):
            self._last_withheld = path, find_newly_withheld(accepted, newer, evaluated)
        withheld = self._last_withheld[1]
        return withheld._replace(by=evaluated) if withheld is not None else None

    def _is_commit_missing(self, withheld: WithheldBoots | None, latest: Revision) -> bool:
        """Return whether the commit that caused boots to be withheld was no longer on the branch at the last fetch.

        Before the first fetch of a process, return False, because the clone may be older than the commit.
        """
        if withheld is None or withheld.by == latest or not self._source.has_fetched:
            return False
        by = Revision(withheld.by)
        with suppress(SourceError):
            return not self._source.has(by) or self._is_rewind(by, latest)
        return False

    def _has_new_records(self, attempt: Attempt, snapshot: LedgerSnapshot) -> bool:
        """Return whether the records have changed since they were used to judge the held commit."""
        if attempt.candidate is None or not attempt.candidate.depends_on_records:
            return False
        if attempt.candidate is not self._judged_by_records:  # or its result could not be stored in the ledger
            return True
        return any(map(is_not, self._records_read, _list_install_values(snapshot)))

    def _set_offered_commit(self, attempt: Attempt) -> Attempt:
        """Set the accepted commit without the withheld boots. Keep the result for equal arguments."""
        accepted, last = attempt.accepted, self._last_offered
        if accepted is None:
            return attempt
        if last is None or last[0] is not accepted or last[1] != attempt.withheld:
            last = self._last_offered = accepted, attempt.withheld, remove_withheld_boots(accepted, attempt.withheld)
        return structs.replace(attempt, offered=last[2])

    def _search_history(self, attempt: Attempt, snapshot: LedgerSnapshot, *_: object) -> Attempt:
        """Find the acknowledgements in the accepted commit's history.

        These acknowledgements are used up, because each acknowledgement counts only once. After a start, also search
        the history of every other commit that is recorded as accepted, because the ledger may come from a backup or
        from a version that did not record acknowledgements.
        """
        accepted = attempt.accepted.revision if attempt.accepted is not None else None
        if accepted is None and self._source.latest() is None:
            return attempt  # the first fetch is still making the clone
        since = attempt.searched or snapshot.facts.searched
        tips = {accepted}
        if not self._has_searched:
            tips |= {*map(Revision, snapshot.unsearched_commits), self._source.accepted(), self._published}
        if tips - {None, since}:
            ack_ids = self._source.find_acknowledging_content(
                [Revision(since)] if since is not None else [], sorted(filter(None, tips))
            )
            attempt = structs.replace(
                attempt,
                searched=accepted,
                used_ack_ids=attempt.used_ack_ids | (ack_ids - snapshot.used_acknowledgements),
            )
        self._has_searched = accepted is not None  # without an accepted commit, the search must be repeated
        return attempt

    def _read_commits_ahead(self, accepted: Commit | None, latest: Revision, snapshot: LedgerSnapshot) -> CommitsAhead:
        """Return the commits from the accepted commit to the newest commit."""
        if accepted is None:  # without an accepted commit, a rewind cannot be detected
            before = self._find_last_accepted(snapshot)
            messages = [message for _, merged in self._source.merges(before, latest) for message in merged]
            ahead = CommitsAhead(
                accepted=None,
                merges=((latest, messages),),
                omitted_commit=before or self._published,
                lacks_accepted=before is not None,
            )
            return check_signatures(self._signatures, before, ahead)
        ahead = CommitsAhead(
            accepted=accepted,
            merges=self._list_merges(accepted.revision, latest),
            omitted_commit=accepted.revision if self._is_rewind(accepted.revision, latest) else None,
        )
        return check_signatures(self._signatures, accepted.revision, ahead)

    def _resume_commit(self, attempt: Attempt, snapshot: LedgerSnapshot, events: list[Event], at: datetime) -> Attempt:
        """Restore the last accepted commit after a start. Guards do not judge this commit again."""
        if attempt.accepted is not None or (attempt.attempted is not None and not attempt.awaits_accepted):
            return attempt
        before = self._find_last_accepted(snapshot)
        if before is None or (attempt.retry_at is not None and not _is_retry_due(attempt, at)):
            return attempt
        checkpoint_commit = (
            self._checkpoint_commit
            if self._checkpoint_commit is not None and self._source.has(self._checkpoint_commit.revision)
            else None
        )
        if checkpoint_commit is not None and checkpoint_commit.revision == before:
            commit = checkpoint_commit
        else:
            try:
                if checkpoint_commit is not None:
                    self._evaluation.store_results(checkpoint_commit.revision)
                evaluated = self._evaluation.evaluate(before, checkpoint_commit)
            except InvalidRepository as error:
                unresumed, will_retry = UnresumedCommit(before, error.at(at).problems), isinstance(error, NotEvaluated)
                attempt = structs.replace(attempt, unresumed=unresumed, awaits_accepted=will_retry)
                if will_retry:
                    attempt = _schedule_retry(attempt, attempt.retries, at)
                    self._judge.forget_unevaluated_commits()
                if attempt.attempted not in (None, before):  # the judgement of a newer commit stays
                    self._is_retrying = will_retry and attempt.candidate is None and attempt.is_unevaluated
                    return attempt
                attempt = _record_rejection(attempt, before, error.at(at), events, at)
                return structs.replace(attempt, attempted=None) if will_retry else attempt
            if evaluated is None:
                return attempt
            commit = evaluated.commit
        self._checkpoint_commit = commit
        return structs.replace(
            self._build_attempt(commit, events, at),
            orders=attempt.orders,
            withheld=attempt.withheld,
            evaluated=commit.revision,
        )

    def _build_attempt(self, commit: Commit, events: list[Event], at: datetime) -> Attempt:
        """Return an attempt that accepts a commit, and report the acceptance."""
        committed_at, signer = None, None
        with suppress(SourceError):  # an unreadable time or signature does not prevent acceptance
            committed_at = self._source.committed_at(commit.revision)
            signer = self._signatures.find_signer(commit.revision) if self._signatures is not None else None
        attempt = Attempt(
            accepted=commit,
            attempted=commit.revision,
            problems=commit.decisions.find_problems(at),
            problems_until=find_next_change(commit.decisions.dated, at),
            committed_at=committed_at,
            signer=signer,
        )
        facts = {"commit": commit.revision, **({"signer": as_facts(signer)} if signer is not None else {})}
        events.append(Event(at=at, type="Accepted", message=format_accepted_commit(commit, signer), facts=facts))
        return attempt

    def _find_last_accepted(self, snapshot: LedgerSnapshot) -> Revision | None:
        """Return the last accepted commit, as recorded in the ledger, in the clone, or in the output tree.

        The ledger names the commit even if the clone was lost. If the ledger was lost too, guards compare the newest
        commit with the published commit.
        """
        accepted, recorded = self._source.accepted(), snapshot.facts.accepted
        if recorded is not None and snapshot.is_trusted:
            if self._source.has(Revision(recorded)):
                return Revision(recorded)  # the ledger is written before the clone, so it may be ahead after a crash
            accepted = None  # the clone is older than the ledger: it comes from a backup, or this host was a standby
        if accepted is None and recorded is None and self._published is not None:
            return self._published if self._source.has(self._published) else None
        if accepted is None and recorded is not None and not self._limits.allow_rewind:
            raise CorruptClone(
                f"the accepted commit {recorded} is not in gitboot's clone (to continue without this commit, start "
                "gitboot once with `--allow-rewind`)"
            )
        return accepted


def _choose_wait_scope(attempt: Attempt, latest: Revision) -> WaitScope:
    """Return which steps towards the newest commit must wait until gitboot has read all fetches.

    A step waits until gitboot has published files without the boots that the step removes, and has then read the fetch
    log. If publishing or reading the log fails, the step does not wait, because evidence that arrives later cannot
    start an installation.
    """
    if attempt.accepted is None or not (
        attempt.evaluated != latest or (attempt.published == latest and not attempt.is_log_unread)
    ):
        return WaitScope.NONE
    # Until all fetches since then are read, boots offered by the previously accepted commit count too.
    return WaitScope.ALL if attempt.log_read is None else WaitScope.OFFERED


def _schedule_retry(attempt: Attempt, retries: int, at: datetime) -> Attempt:
    """Schedule another evaluation of a commit. So far, ``retries + 1`` evaluations of the commit were not completed."""
    return structs.replace(
        attempt, retry_at=at + min(_FIRST_RETRY * 2 ** min(retries, 10), _LONGEST_RETRY), retries=retries + 1
    )


def _is_retry_due(attempt: Attempt, at: datetime) -> bool:
    """Return whether to repeat an evaluation now. After the clock was set back, do not wait for the earlier time."""
    return attempt.retry_at is not None and not at < attempt.retry_at <= at + _LONGEST_RETRY


def _update_problems(attempt: Attempt, at: datetime) -> Attempt:
    """Update the problems of the newest commit if it is accepted and a problem of it has begun or ended."""
    until = attempt.problems_until
    if attempt.accepted is None or attempt.is_behind or until is None or until > at:
        return attempt
    decisions = attempt.accepted.decisions
    return structs.replace(
        attempt, problems=decisions.find_problems(at), problems_until=find_next_change(decisions.dated, at)
    )


def _record_waiting_commit(attempt: Attempt, latest: Revision, judgement: CommitJudgement) -> Attempt:
    """Return the attempt while an operator has suspended acceptance. gitboot obeys the orders in the newest commit."""
    orders = judgement.orders
    if orders is None and judgement.reached is not None:
        orders = judgement.reached.orders
    return structs.replace(
        attempt,
        orders=orders,
        waiting=latest,
        evaluated=latest,
        problems_until=judgement.problems_until if attempt.is_behind else attempt.problems_until,
    )


def _record_held_commit(
    attempt: Attempt, latest: Revision, candidate: Candidate, snapshot: LedgerSnapshot, at: datetime
) -> Attempt:
    """Return the attempt with the commit that a guard holds, and the servers that the commit releases from a stop."""
    accepted, commit = attempt.accepted, candidate.commit
    if accepted is not None and accepted.fleet.stopped is not None and commit.fleet.stopped is None:
        released = find_released_servers(commit, snapshot, at, StopScope.WRITING)
        candidate = structs.replace(candidate, released=released)
    return structs.replace(attempt, attempted=latest, problems=commit.decisions.find_problems(at), candidate=candidate)


def _record_rejection(
    attempt: Attempt, revision: Revision, error: InvalidRepository, events: list[Event], at: datetime
) -> Attempt:
    """Return the attempt with an invalid commit. Report its problems unless they are already known."""
    is_known = (attempt.attempted or revision, attempt.problems, attempt.candidate) == (revision, error.problems, None)
    attempt = structs.replace(attempt, attempted=revision, problems=error.problems, candidate=None)
    if is_known:  # an event has already reported these problems
        return attempt
    facts = {"commit": revision, "problems": [str(problem) for problem in error.problems]}
    events.append(Event(at=at, type="Rejected", message=format_rejection(attempt), facts=facts, warning=True))
    return attempt


def _list_install_values(snapshot: LedgerSnapshot) -> tuple[object, ...]:
    """Return the immutable values that determine whether a server is installed.

    Compare these values by identity to detect a change.
    """
    return snapshot.records, snapshot.overrides, snapshot.pending, snapshot.unobservable, snapshot.facts.gap


def format_accepted_commit(commit: Commit, signer: Signer | None = None) -> str:
    signed = f", signed by {signer}" if signer is not None else ""
    return f"accepted {commit.revision[:12]} with {format_count(len(commit.decisions.servers), 'server')}{signed}"


def format_rejection(attempt: Attempt) -> str:
    """Return a message about the first error of the newest commit, or of the accepted commit after a restart."""
    first, attempted = _find_error(attempt.problems), attempt.attempted
    commit = f"commit {attempted[:12]}" if attempted is not None else "the commit accepted before the restart"
    if attempt.retry_at is not None and attempt.is_unevaluated:
        text = printable(f"{commit} was not evaluated: {first.message} ({first.code})")
        return f"{text}. gitboot will retry at {format_instant(attempt.retry_at)}"
    if first.code is Code.UNTRUSTED:
        ancestor, fault = parse_untrusted_commit(first), first.message
        if ancestor is not None and attempted is not None and attempted.startswith(ancestor):
            fault = f"it{first.message.removeprefix(ancestor)}"
        elif ancestor is not None:
            fault = f"its ancestor {first.message}"
        return printable(f"{commit} is not accepted: {fault} ({first.code})")
    hint = f". {first.hint[:1].upper()}{first.hint[1:]}" if first.hint else ""
    text = printable(f"{commit} is invalid: {_format_problem(first)}{hint}")
    others = len(attempt.problems) - 1
    return f"{text}. The commit has {format_count(others, 'other problem')}" if others else text


def format_failed_resume(attempt: Attempt) -> str:
    """Return a sentence that names the problem of the accepted commit, or "" if the judgement is about this commit."""
    unresumed = attempt.unresumed
    if unresumed is None or attempt.attempted in (None, unresumed.commit):
        return ""
    text = printable(f"the accepted commit {unresumed.commit[:12]}: {_format_problem(_find_error(unresumed.problems))}")
    return f". gitboot cannot evaluate {text}{'. gitboot retries automatically' if attempt.awaits_accepted else ''}"


def _find_error(problems: Sequence[Problem]) -> Problem:
    return next((each for each in problems if each.severity is Severity.ERROR), problems[0])


def _format_problem(problem: Problem) -> str:
    place = f"{problem.path}:{problem.line}:{problem.column}: " if problem.path != "." else ""
    return f"{place}{problem.code}: {problem.message}"


def find_untrusted_commit(attempt: Attempt) -> str | None:
    """Return the attempted commit or the ancestor that no trusted key signed, or None if all commits are trusted."""
    problem = next((each for each in attempt.problems if each.code is Code.UNTRUSTED), None)
    if problem is None:
        return None
    ancestor, attempted = parse_untrusted_commit(problem), attempt.attempted
    if ancestor is None or (attempted is not None and attempted.startswith(ancestor)):
        return attempted
    return ancestor
