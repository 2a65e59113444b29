"""Commit acceptance: accepts, holds or rejects the newest commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from operator import is_not
from typing import Final, NamedTuple

from msgspec import Struct, structs

from gitboot.controller.commit_judgement import (
    Candidate,
    CommitJudge,
    CommitJudgement,
    CommitsAhead,
    EvaluationUnfinished,
    WaitScope,
    check_signatures,
    collect_approvals,
)
from gitboot.controller.current_plans import find_released_servers
from gitboot.controller.instance_state import (
    AcceptanceState,
    MissingCommit,
    UnresumedCommit,
    format_accepted_commit,
    format_rejection,
)
from gitboot.controller.records.install_boots import find_newly_withheld, merge_withheld_boots, remove_withheld_boots
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import CorruptClone, InvalidRepository, NotEvaluated, OperatorError, SourceError, TemporaryError
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.revision import ReinstallsNeed, Revision
from gitboot.git.clone import Source
from gitboot.git.signatures import SignatureChecker
from gitboot.jsonio import to_json_value as as_facts
from gitboot.ledger.instance_tables import WithheldBoots
from gitboot.problems import find_next_change
from gitboot.resolve.provisioning_record import StopScope
from gitboot.review.formats import phrases
from gitboot.review.guards import Limits
from gitboot.status.conditions import Event
from gitboot.status.instance_status import Acknowledgement, ChangedArea


class CommitTrust(Struct, frozen=True, kw_only=True):
    """The settings that determine whose commits gitboot trusts and who may acknowledge changes."""

    signatures: SignatureChecker | None = None  # None: no trusted keys are configured
    reinstalls_need: ReinstallsNeed | None = None  # None: a line in any commit acknowledges reinstallations


NO_COMMIT_TRUST: Final = CommitTrust()


_FIRST_RETRY: Final = timedelta(minutes=1)  # pause after an unfinished evaluation; doubled each time
_LONGEST_RETRY: Final = timedelta(minutes=30)
# Failed evaluations of the accepted commit after which gitboot also judges a newer commit.
_MIN_FAILURES: Final = 3
_MAX_SUBJECT: Final = 120  # characters of a commit subject that fit on one line of the published page


class _JudgedCommit(NamedTuple):
    """The newest commit of the branch, and its judgement."""

    revision: Revision
    ahead: CommitsAhead
    judgement: CommitJudgement
    reads_records: bool  # whether the judgement uses the records of servers
    keys: str  # see `AcceptanceState.keys`
    is_gone: bool  # whether the commit in ``withheld_before`` is no longer on the branch
    withheld_before: WithheldBoots | None  # the withheld boots before this judgement


_Step = Callable[[AcceptanceState, LedgerSnapshot, list[Event], datetime], AcceptanceState]


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

    def accept(
        self, before: AcceptanceState, snapshot: LedgerSnapshot, at: datetime
    ) -> tuple[AcceptanceState, tuple[Event, ...]]:
        """Judge the newest commit, and return the new state and its events.

        The first call after a start restores the last accepted commit before it judges the newest one. The caller must
        store the new state in the ledger and then call `adopt`.
        """
        events: list[Event] = []
        acceptance = structs.replace(before, clone_failure=None, searched=None, used_ack_ids=frozenset())
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
            acceptance = self._run_with_clone(step, acceptance, snapshot, events, at)
            if acceptance.clone_failure is not None:
                break
        return self._set_offered_commit(acceptance), tuple(events)

    def resume(self, before: AcceptanceState, snapshot: LedgerSnapshot, at: datetime) -> AcceptanceState:
        """Restore the last accepted commit after a start without a writable ledger.

        If the commit cannot be evaluated, return ``before`` unchanged. A later call of `accept` must also start from
        ``before``.
        """
        try:
            resumed = self._resume_commit(before, snapshot, [], at)
        except SourceError:
            return before
        return self._set_offered_commit(resumed) if resumed.accepted is not None else before

    def start_evaluation(self, acceptance: AcceptanceState, snapshot: LedgerSnapshot, at: datetime) -> bool:
        """Start to evaluate the newest commit if necessary. Return whether an evaluation is still running."""
        try:
            latest = self._source.latest()
            if latest is None or acceptance.attempted in (None, latest):
                return False
            self._judge.judge(self._read_commits_ahead(acceptance.accepted, latest, snapshot), snapshot, at)
        except EvaluationUnfinished:
            return True
        except SourceError:
            pass  # `accept` reports the error
        return False

    def adopt(self, acceptance: AcceptanceState) -> AcceptanceState:
        """Record the accepted commit in the clone. The ledger must already contain the commit."""
        self._is_search_stored = self._has_searched
        if acceptance.accepted is not None:
            self._checkpoint_commit = None
        try:
            return self._adopt_commit(acceptance)
        except SourceError:
            return acceptance  # `accept` tries again, and reports the error

    def is_newest_accepted(self, acceptance: AcceptanceState) -> bool:
        """Return whether gitboot accepted the newest commit of a fetch since the start."""
        with suppress(SourceError):
            accepted = acceptance.accepted
            return accepted is not None and self._source.has_fetched and accepted.revision == self._source.latest()
        return False

    def _run_with_clone(
        self, step: _Step, acceptance: AcceptanceState, snapshot: LedgerSnapshot, events: list[Event], at: datetime
    ) -> AcceptanceState:
        """Run a step that uses the clone, and return the result.

        If the clone is damaged, replace it and repeat the step once.
        """
        try:
            try:
                return step(acceptance, snapshot, events, at)
            except CorruptClone as error:
                events.append(Event(at=at, type="CloneCorrupt", message=str(error), warning=True))
                accepted = snapshot.facts.accepted
                try:
                    self._source.restore(Revision(accepted) if accepted is not None else None)
                except (TemporaryError, OperatorError) as failure:
                    return structs.replace(acceptance, clone_failure=("CorruptClone", f"{error}; {failure}"))
                message = "gitboot replaced its damaged clone with a new clone"
                events.append(Event(at=at, type="CloneRestored", message=message))
                return step(acceptance, snapshot, events, at)
        except SourceError as error:
            return structs.replace(acceptance, clone_failure=(type(error).__name__, str(error)))

    def _adopt_commit(self, acceptance: AcceptanceState, *_: object) -> AcceptanceState:
        if acceptance.accepted is None or acceptance.is_adopted:
            return acceptance
        self._source.accept(acceptance.accepted.revision)
        self._evaluation.store_results(acceptance.accepted.revision)
        return structs.replace(acceptance, is_adopted=True)

    def _judge_newest(
        self, acceptance: AcceptanceState, snapshot: LedgerSnapshot, events: list[Event], at: datetime
    ) -> AcceptanceState:
        """Judge the newest commit again if the result may differ from the last judgement."""
        latest, unresumed = self._source.latest(), acceptance.unresumed
        if latest is None:
            return acceptance
        if unresumed is not None and latest == unresumed.commit and acceptance.attempted not in (None, latest):
            # The judged commit is no longer on the branch.
            return structs.replace(acceptance, attempted=None, problems=unresumed.problems, candidate=None)
        if acceptance.accepted is None and self._must_resume_first(acceptance, latest, snapshot):
            return acceptance
        # number of evaluations of this commit that did not end
        retries = acceptance.retries if latest in (acceptance.attempted, acceptance.waiting) else 0
        acceptance = _update_problems(structs.replace(acceptance, waiting=None), at)
        keys = self._signatures.fingerprint(latest) if self._signatures is not None else ""
        is_gone = self._is_commit_missing(acceptance.withheld, latest)
        has_news = (
            keys != acceptance.keys
            or is_gone != (acceptance.missing_commit is not None)
            or self._may_judge_differently(acceptance, latest, snapshot, at)
        )
        if _is_retry_due(acceptance, at) and not acceptance.awaits_accepted and not self._is_retrying:
            self._judge.forget_unevaluated_commits()
            self._is_retrying = True
        withheld_before = acceptance.withheld
        if latest == acceptance.attempted and not acceptance.is_behind:
            return self._update_withheld_boots(acceptance, withheld_before, (), latest, is_gone=is_gone)
        if latest == acceptance.attempted and not (has_news or self._is_retrying):
            return acceptance
        if self._is_retrying:
            # gitboot still offers the boots that these commits remove, so it first withholds them and then reads the
            # records.
            acceptance = structs.replace(acceptance, evaluated=None, published=None, log_read=None)
        reads_records, wait = acceptance.log_read == latest, _choose_wait_scope(acceptance, latest)
        try:
            ahead = self._read_commits_ahead(acceptance.accepted, latest, snapshot)
            judgement = self._judge.judge(
                ahead, snapshot, at, acceptance.used_ack_ids, reads_records=reads_records, wait=wait
            )
        except EvaluationUnfinished:
            return acceptance
        reached = judgement.reached or acceptance.accepted
        self._evaluation.end_process_unless_accepted(reached.revision if reached is not None else None)
        if not acceptance.awaits_accepted and not judgement.is_incomplete:
            acceptance = structs.replace(acceptance, retry_at=None, retries=0)
        elif not acceptance.awaits_accepted and (self._is_retrying or not retries):
            acceptance = _schedule_retry(acceptance, retries, at)
        self._records_read, self._is_retrying = _list_install_values(snapshot), False
        suspension = snapshot.facts.suspension
        if suspension is not None and at < suspension.until:
            acceptance = self._update_withheld_boots(
                acceptance, withheld_before, judgement.valid, judgement.evaluated, is_gone=is_gone
            )
            return _record_waiting_commit(acceptance, latest, judgement)
        newest = _JudgedCommit(latest, ahead, judgement, reads_records, keys, is_gone, withheld_before)
        return self._apply_judgement(acceptance, newest, snapshot, events, at)

    def _apply_judgement(
        self,
        before: AcceptanceState,
        newest: _JudgedCommit,
        snapshot: LedgerSnapshot,
        events: list[Event],
        at: datetime,
    ) -> AcceptanceState:
        """Accept the commit that the judgement reached, if any, and record why the newest commit is not accepted."""
        judgement, acceptance = newest.judgement, before
        if judgement.reached is not None:
            acceptance = self._accept_reached_commit(acceptance, judgement, judgement.reached, newest.ahead, events, at)
        acceptance = structs.replace(
            acceptance,
            orders=judgement.orders,
            passed_commits=judgement.passed_commits,
            keys=newest.keys,
            problems_until=judgement.problems_until,
            evaluated=newest.revision,
            awaits_records=judgement.awaits_records,
            waits=judgement.waits,
        )
        acceptance = self._update_withheld_boots(
            acceptance, newest.withheld_before, judgement.newer_commits, judgement.evaluated, is_gone=newest.is_gone
        )
        if judgement.is_incomplete and judgement.reached is not None and judgement.reached.revision != newest.revision:
            acceptance = structs.replace(acceptance, retry_at=before.retry_at, retries=before.retries)
        if judgement.invalid is not None:
            return _record_rejection(acceptance, newest.revision, judgement.invalid, events, at)
        if judgement.candidate is None:
            return acceptance
        acceptance = _record_held_commit(acceptance, newest.revision, judgement.candidate, snapshot, at)
        self._judged_by_records = acceptance.candidate if newest.reads_records else None
        return acceptance

    def _must_resume_first(self, acceptance: AcceptanceState, latest: Revision, snapshot: LedgerSnapshot) -> bool:
        """Return whether gitboot must restore the last accepted commit before it judges the newest commit.

        After several failures, gitboot judges the newest commit nevertheless.
        """
        accepted_before = self._find_last_accepted(snapshot)
        has_failed = acceptance.attempted is not None or acceptance.retries >= _MIN_FAILURES
        return accepted_before is not None and (latest == accepted_before or not has_failed)

    def _may_judge_differently(
        self, acceptance: AcceptanceState, latest: Revision, snapshot: LedgerSnapshot, at: datetime
    ) -> bool:
        """Return whether approvals, records, fetches or the time may change the judgement of the newest commit."""
        held = acceptance.candidate
        return (
            (held is not None and not held.accepts_lines and not snapshot.facts.gap)
            or (held is not None and not collect_approvals(snapshot).keys() <= held.approvals.keys())
            or (
                acceptance.log_read == latest
                and (acceptance.awaits_records or self._has_new_records(acceptance, snapshot))
            )
            or (acceptance.waits and _choose_wait_scope(acceptance, latest) is WaitScope.NONE)
            or (acceptance.problems_until is not None and acceptance.problems_until <= at)
        )

    def _accept_reached_commit(
        self,
        acceptance: AcceptanceState,
        judgement: CommitJudgement,
        commit: Commit,
        ahead: CommitsAhead,
        events: list[Event],
        at: datetime,
    ) -> AcceptanceState:
        """Return the state that accepts the commit that ``judgement`` reached, and report the acknowledgements."""
        accepted = self._build_acceptance(commit, events, at)
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
            used_ack_ids=acceptance.used_ack_ids | judgement.used_ack_ids,
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
        acceptance: AcceptanceState,
        before: WithheldBoots | None,
        newer: Sequence[Commit],
        evaluated: Revision | None,
        *,
        is_gone: bool,
    ) -> AcceptanceState:
        """Update the set of withheld boots: boots that newer commits do not offer, and boots withheld ``before``.

        ``evaluated`` is the newest commit whose evaluation ended. After a restart, a restore or a take-over, the commit
        in ``before`` may be newer, because its evaluation did not end or because the clone does not contain it.
        ``is_gone`` means that the commit in ``before`` is no longer on the branch. In that case an operator must
        decide, unless ``evaluated`` descends from that commit.
        """
        accepted = acceptance.accepted
        if accepted is None:
            return acceptance  # after a restart, the accepted commit may still become known
        now = self._find_newly_withheld(accepted, newer, evaluated) if newer and evaluated is not None else None
        if before is None or before.by == evaluated or (is_gone and self._limits.allow_rewind):
            return structs.replace(acceptance, withheld=now, missing_commit=None)
        by = Revision(before.by)
        is_here = is_superseded = False
        with suppress(SourceError):
            is_here = self._source.has(by)
            is_superseded = is_here and evaluated is not None and self._source.is_rewind(evaluated, by)
        if is_superseded:
            return structs.replace(acceptance, withheld=now, missing_commit=None)
        withheld = merge_withheld_boots(before, now)
        missing_commit = None
        if is_gone:
            boots_now = now.servers if now is not None else {}
            only_before = [uuid for uuid, boots in withheld.servers.items() if boots != boots_now.get(uuid)]
            missing_commit = MissingCommit(by, sum(uuid in accepted.machines for uuid in only_before), is_here)
        return structs.replace(acceptance, withheld=withheld, missing_commit=missing_commit)

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

    def _has_new_records(self, acceptance: AcceptanceState, snapshot: LedgerSnapshot) -> bool:
        """Return whether the records have changed since they were used to judge the held commit."""
        if acceptance.candidate is None or not acceptance.candidate.depends_on_records:
            return False
        if acceptance.candidate is not self._judged_by_records:  # or its result could not be stored in the ledger
            return True
        return any(map(is_not, self._records_read, _list_install_values(snapshot)))

    def _set_offered_commit(self, acceptance: AcceptanceState) -> AcceptanceState:
        """Set the accepted commit without the withheld boots. Keep the result for equal arguments."""
        accepted, last = acceptance.accepted, self._last_offered
        if accepted is None:
            return acceptance
        if last is None or last[0] is not accepted or last[1] != acceptance.withheld:
            last = self._last_offered = (
                accepted,
                acceptance.withheld,
                remove_withheld_boots(accepted, acceptance.withheld),
            )
        return structs.replace(acceptance, offered=last[2])

    def _search_history(self, acceptance: AcceptanceState, snapshot: LedgerSnapshot, *_: object) -> AcceptanceState:
        """Find the acknowledgements in the accepted commit's history.

        These acknowledgements are used up, because each acknowledgement counts only once. After a start, also search
        the history of every other commit that is recorded as accepted, because the ledger may come from a backup or
        from a version that did not record acknowledgements.
        """
        accepted = acceptance.accepted.revision if acceptance.accepted is not None else None
        if accepted is None and self._source.latest() is None:
            return acceptance  # the first fetch is still making the clone
        since = acceptance.searched or snapshot.facts.searched
        tips = {accepted}
        if not self._has_searched:
            tips |= {*map(Revision, snapshot.unsearched_commits), self._source.accepted(), self._published}
        if tips - {None, since}:
            ack_ids = self._source.find_acknowledging_content(
                [Revision(since)] if since is not None else [], sorted(filter(None, tips))
            )
            acceptance = structs.replace(
                acceptance,
                searched=accepted,
                used_ack_ids=acceptance.used_ack_ids | (ack_ids - snapshot.used_acknowledgements),
            )
        self._has_searched = accepted is not None  # without an accepted commit, the search must be repeated
        return acceptance

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

    def _resume_commit(
        self, acceptance: AcceptanceState, snapshot: LedgerSnapshot, events: list[Event], at: datetime
    ) -> AcceptanceState:
        """Restore the last accepted commit after a start. Guards do not judge this commit again."""
        if acceptance.accepted is not None or (acceptance.attempted is not None and not acceptance.awaits_accepted):
            return acceptance
        before = self._find_last_accepted(snapshot)
        if before is None or (acceptance.retry_at is not None and not _is_retry_due(acceptance, at)):
            return acceptance
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
                acceptance = structs.replace(acceptance, unresumed=unresumed, awaits_accepted=will_retry)
                if will_retry:
                    acceptance = _schedule_retry(acceptance, acceptance.retries, at)
                    self._judge.forget_unevaluated_commits()
                if acceptance.attempted not in (None, before):  # the judgement of a newer commit stays
                    self._is_retrying = will_retry and acceptance.candidate is None and acceptance.is_unevaluated
                    return acceptance
                acceptance = _record_rejection(acceptance, before, error.at(at), events, at)
                return structs.replace(acceptance, attempted=None) if will_retry else acceptance
            if evaluated is None:
                return acceptance
            commit = evaluated.commit
        self._checkpoint_commit = commit
        return structs.replace(
            self._build_acceptance(commit, events, at),
            orders=acceptance.orders,
            withheld=acceptance.withheld,
            evaluated=commit.revision,
        )

    def _build_acceptance(self, commit: Commit, events: list[Event], at: datetime) -> AcceptanceState:
        """Return a state that accepts a commit, and report the acceptance."""
        committed_at, signer = None, None
        with suppress(SourceError):  # an unreadable time or signature does not prevent acceptance
            committed_at = self._source.committed_at(commit.revision)
            signer = self._signatures.find_signer(commit.revision) if self._signatures is not None else None
        acceptance = AcceptanceState(
            accepted=commit,
            attempted=commit.revision,
            problems=commit.decisions.find_problems(at),
            problems_until=find_next_change(commit.decisions.dated, at),
            committed_at=committed_at,
            signer=signer,
        )
        facts = {"commit": commit.revision, **({"signer": as_facts(signer)} if signer is not None else {})}
        events.append(Event(at=at, type="Accepted", message=format_accepted_commit(commit, signer), facts=facts))
        return acceptance

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


def _choose_wait_scope(acceptance: AcceptanceState, latest: Revision) -> WaitScope:
    """Return which steps towards the newest commit must wait until gitboot has read all fetches.

    A step waits until gitboot has published files without the boots that the step removes, and has then read the fetch
    log. If publishing or reading the log fails, the step does not wait, because evidence that arrives later cannot
    start an installation.
    """
    if acceptance.accepted is None or not (
        acceptance.evaluated != latest or (acceptance.published == latest and not acceptance.is_log_unread)
    ):
        return WaitScope.NONE
    # Until all fetches since then are read, boots offered by the previously accepted commit count too.
    return WaitScope.ALL if acceptance.log_read is None else WaitScope.OFFERED


def _schedule_retry(acceptance: AcceptanceState, retries: int, at: datetime) -> AcceptanceState:
    """Schedule another evaluation of a commit. So far, ``retries + 1`` evaluations of the commit were not completed."""
    return structs.replace(
        acceptance, retry_at=at + min(_FIRST_RETRY * 2 ** min(retries, 10), _LONGEST_RETRY), retries=retries + 1
    )


def _is_retry_due(acceptance: AcceptanceState, at: datetime) -> bool:
    """Return whether to repeat an evaluation now. After the clock was set back, do not wait for the earlier time."""
    return acceptance.retry_at is not None and not at < acceptance.retry_at <= at + _LONGEST_RETRY


def _update_problems(acceptance: AcceptanceState, at: datetime) -> AcceptanceState:
    """Update the problems of the newest commit if it is accepted and a problem of it has begun or ended."""
    until = acceptance.problems_until
    if acceptance.accepted is None or acceptance.is_behind or until is None or until > at:
        return acceptance
    decisions = acceptance.accepted.decisions
    return structs.replace(
        acceptance, problems=decisions.find_problems(at), problems_until=find_next_change(decisions.dated, at)
    )


def _record_waiting_commit(
    acceptance: AcceptanceState, latest: Revision, judgement: CommitJudgement
) -> AcceptanceState:
    """Return the state while an operator has suspended acceptance. gitboot obeys the orders in the newest commit."""
    orders = judgement.orders
    if orders is None and judgement.reached is not None:
        orders = judgement.reached.orders
    return structs.replace(
        acceptance,
        orders=orders,
        waiting=latest,
        evaluated=latest,
        problems_until=judgement.problems_until if acceptance.is_behind else acceptance.problems_until,
    )


def _record_held_commit(
    acceptance: AcceptanceState, latest: Revision, candidate: Candidate, snapshot: LedgerSnapshot, at: datetime
) -> AcceptanceState:
    """Return the state with the commit that a guard holds, and the servers that the commit releases from a stop."""
    accepted, commit = acceptance.accepted, candidate.commit
    if accepted is not None and accepted.fleet.stopped is not None and commit.fleet.stopped is None:
        released = find_released_servers(commit, snapshot, at, StopScope.WRITING)
        candidate = structs.replace(candidate, released=released)
    return structs.replace(
        acceptance, attempted=latest, problems=commit.decisions.find_problems(at), candidate=candidate
    )


def _record_rejection(
    acceptance: AcceptanceState, revision: Revision, error: InvalidRepository, events: list[Event], at: datetime
) -> AcceptanceState:
    """Return the state with an invalid commit. Report its problems unless they are already known."""
    is_known = (acceptance.attempted or revision, acceptance.problems, acceptance.candidate) == (
        revision,
        error.problems,
        None,
    )
    acceptance = structs.replace(acceptance, attempted=revision, problems=error.problems, candidate=None)
    if is_known:  # an event has already reported these problems
        return acceptance
    facts = {"commit": revision, "problems": [str(problem) for problem in error.problems]}
    events.append(Event(at=at, type="Rejected", message=format_rejection(acceptance), facts=facts, warning=True))
    return acceptance


def _list_install_values(snapshot: LedgerSnapshot) -> tuple[object, ...]:
    """Return the immutable values that determine whether a server is installed.

    Compare these values by identity to detect a change.
    """
    return snapshot.records, snapshot.overrides, snapshot.pending, snapshot.unobservable, snapshot.facts.gap
