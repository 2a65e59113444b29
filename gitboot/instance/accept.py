"""Which commit is accepted: read, decided, judged by the guards; accepted whole, refused whole, or held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from gitboot.diff.guard import Acknowledged, Limits, Verdict, acknowledgements, judge, trailer
from gitboot.errors import CorruptClone, InvalidRepository, OperatorError, SourceError, TryAgain
from gitboot.instance.commit import Commit, Evaluated
from gitboot.instance.knowledge import Knowledge
from gitboot.instance.provisioning import left_to_install, would_return_installed
from gitboot.load import Revision
from gitboot.phrases import count, more, some
from gitboot.problems.problem import Problem
from gitboot.review import words
from gitboot.status import Event, Held


class CommitSource(Protocol):
    """Where commits come from, as far as accepting one needs it; errors as those of `gitboot.source.Source`."""

    def latest(self) -> Revision | None:
        """The commit that was fetched last."""

    def accepted(self) -> Revision | None:
        """The commit that was accepted last; None where there is none, or the clone was lost."""

    def has(self, revision: Revision) -> bool:
        """Whether a commit was fetched."""

    def accept(self, revision: Revision) -> None:
        """Make a commit the accepted one."""

    def restore(self, accepted: Revision | None) -> None:
        """Make the clone anew, with the accepted commit in it."""

    def messages(self, since: Revision | None, revision: Revision) -> Sequence[tuple[str, str]]:
        """The commits that ``revision`` has and ``since`` has not: (id, message)."""

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        """Whether ``latest`` leaves out something of what led to ``accepted``."""


class Evaluating(Protocol):
    """What says what a commit says; see `gitboot.instance.evaluation`."""

    def evaluate(self, revision: Revision) -> Evaluated | None:
        """What ``revision`` says; None while it is still being evaluated: ask again."""

    def adopt(self, commit: Commit) -> None:
        """Take the commit that was evaluated last as the one that the next are compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A commit that a guard holds."""

    evaluated: Evaluated
    verdict: Verdict
    given: Acknowledged  # what it was judged with
    unheeded: tuple[str, ...]  # acknowledgements that do not count, and why


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What became of the newest commit, and which one goes on."""

    accepted: Commit | None = None
    changes: str | None = None  # the digest of what the accepted one changed; None: it was accepted before the start
    attempted: Revision | None = None
    problems: tuple[Problem, ...] = ()  # of the attempted commit
    candidate: Candidate | None = None
    is_adopted: bool = False  # whether the clone knows which one is accepted
    trouble: tuple[str, str] | None = None  # why the clone cannot be read: a word, and in words

    @property
    def held(self) -> Held | None:
        """The commit that waits for an acknowledgement."""
        if self.candidate is None:
            return None
        verdict = self.candidate.verdict
        guards = tuple(str(guard) for guard in verdict.holding)
        return Held(commit=self.candidate.evaluated.commit.revision, digest=verdict.digest, guards=guards)


_Step = Callable[[Attempt, Knowledge, list[Event], datetime], Attempt]


class Accepting:
    """Accepts the newest commit if it holds together and no guard holds it; else the one before goes on."""

    def __init__(
        self,
        source: CommitSource,
        evaluation: Evaluating,
        *,
        limits: Limits,
        published: Revision | None = None,
    ) -> None:
        self._source, self._evaluation, self._limits = source, evaluation, limits
        self._published = published  # the commit that the tree was made of before this start

    def accept(self, before: Attempt, knowledge: Knowledge, at: datetime) -> tuple[Attempt, tuple[Event, ...]]:
        """What becomes of the newest commit, and what there is to say of it.

        After a start that is first the one that was accepted before: bad commits and a lost remote keep it. What is
        accepted here counts once it is written down, and `adopt` was called.
        """
        attempt, events = replace(before, trouble=None), list[Event]()
        for step in (self._adopted, self._taken_up_again, self._taken_newest):
            attempt = self._over_a_whole_clone(step, attempt, knowledge, events, at)
            if attempt.trouble is not None:
                break
        return attempt, tuple(events)

    def adopt(self, attempt: Attempt) -> Attempt:
        """Go by the accepted commit from now on, after a restart too, once the ledger has it."""
        try:
            return self._adopted(attempt)
        except SourceError:
            return attempt  # `accept` tries again, and says so

    def _over_a_whole_clone(
        self, step: _Step, attempt: Attempt, knowledge: Knowledge, events: list[Event], at: datetime
    ) -> Attempt:
        """What a step makes of the attempt; a damaged clone is made anew, once, before it is tried again."""
        try:
            try:
                return step(attempt, knowledge, events, at)
            except CorruptClone as error:
                if trouble := self._restore(error, knowledge, events, at):
                    return replace(attempt, trouble=trouble)
                return step(attempt, knowledge, events, at)
        except SourceError as error:
            return replace(attempt, trouble=(type(error).__name__, str(error)))

    def _adopted(self, attempt: Attempt, *_: object) -> Attempt:
        if attempt.accepted is None or attempt.is_adopted:
            return attempt
        self._source.accept(attempt.accepted.revision)
        self._evaluation.adopt(attempt.accepted)
        return replace(attempt, is_adopted=True)

    def _taken_newest(self, attempt: Attempt, knowledge: Knowledge, events: list[Event], at: datetime) -> Attempt:
        if attempt.attempted is None and self._accepted_before(knowledge) is not None:
            return attempt  # what was accepted before is still being evaluated
        latest, suspension = self._source.latest(), knowledge.facts.suspension
        if latest is None or (suspension is not None and at < suspension.until):
            return attempt
        if latest != attempt.attempted:
            evaluated = self._evaluated(latest)
            if isinstance(evaluated, InvalidRepository):
                return _refused(attempt, latest, evaluated, events, at)
            return self._judged(attempt, evaluated, knowledge, events, at) if evaluated is not None else attempt
        held = attempt.candidate
        if held is not None and _approved(knowledge, held.verdict.digest) - held.given:
            return self._judged(attempt, held.evaluated, knowledge, events, at)
        return attempt

    def _taken_up_again(self, attempt: Attempt, knowledge: Knowledge, events: list[Event], at: datetime) -> Attempt:
        """After a start: go on with what was accepted before; the guards have judged it then."""
        if attempt.attempted is not None or (before := self._accepted_before(knowledge)) is None:
            return attempt
        evaluated = self._evaluated(before)
        if isinstance(evaluated, InvalidRepository):
            return _refused(attempt, before, evaluated, events, at)
        if evaluated is None:
            return attempt
        return self._adopted(_accepted(evaluated.commit, None, events, at))  # what comes next is compared with it

    def _evaluated(self, revision: Revision) -> Evaluated | InvalidRepository | None:
        try:
            return self._evaluation.evaluate(revision)
        except InvalidRepository as error:
            return error

    def _accepted_before(self, knowledge: Knowledge) -> Revision | None:
        """The commit that was accepted last; the ledger knows it even where the clone was lost.

        Where the ledger was lost too, the tree knows what was published: guards compare with that.
        """
        accepted, noted = self._source.accepted(), knowledge.facts.accepted
        if accepted is None and noted is None and self._published is not None:
            return self._published if self._source.has(self._published) else None
        if accepted is None and noted is not None and not self._limits.allow_rewind:
            raise CorruptClone(
                f"the accepted commit {noted} is not in gitboot's own clone (start once with --allow-rewind to go on "
                "without it)"
            )
        return accepted

    def _restore(
        self, error: CorruptClone, knowledge: Knowledge, events: list[Event], at: datetime
    ) -> tuple[str, str] | None:
        """Make the clone anew; return why that could not be done. What is answered goes on meanwhile."""
        events.append(Event(at=at, type="CloneCorrupt", message=str(error), warning=True))
        accepted = knowledge.facts.accepted
        try:
            self._source.restore(Revision(accepted) if accepted is not None else None)
        except (TryAgain, OperatorError) as failure:
            return "CorruptClone", f"{error}; {failure}"
        events.append(Event(at=at, type="CloneRestored", message="gitboot's own clone was made anew"))
        return None

    # Guards

    def _judged(
        self, attempt: Attempt, evaluated: Evaluated, knowledge: Knowledge, events: list[Event], at: datetime
    ) -> Attempt:
        """Accept a commit, or hold it."""
        commit, changes, accepted = evaluated.commit, evaluated.changes, attempt.accepted
        before = self._accepted_before(knowledge)
        limits = self._limits.tightened_by(commit.fleet.guards)
        if accepted is not None:  # a commit that loosens the fleet's guards is judged by the old ones
            limits = limits.tightened_by(accepted.fleet.guards)
        trailers = acknowledgements(self._source.messages(before, commit.revision), changes.digest)
        given = trailers.given | _approved(knowledge, changes.digest)
        known = accepted.machines if accepted is not None else {}
        come = (commit.decisions.servers[each.name] for uuid, each in commit.machines.items() if uuid not in known)
        verdict = judge(
            changes,
            limits,
            given,
            pending=len(left_to_install(knowledge, commit.decisions)) if accepted is None else None,
            # No two commits tell what comes back: beside the one before it looks new.
            returning=would_return_installed(knowledge, come),
            rewound=self._takes_back(accepted, before, commit.revision),
        )
        if not verdict.held:
            now = _accepted(commit, verdict.digest, events, at)
            events += _acknowledged(commit, verdict, at)
            return now
        unheeded = tuple(
            f"{words.value(each.line)!r} does not count: {words.value(each.why)}" for each in trailers.unheeded
        )
        return replace(
            attempt,
            attempted=commit.revision,
            problems=commit.decisions.warnings,
            candidate=Candidate(evaluated=evaluated, verdict=verdict, given=given, unheeded=unheeded),
        )

    def _takes_back(self, accepted: Commit | None, before: Revision | None, revision: Revision) -> bool:
        """Whether a commit leaves something out; one that cannot be compared with what was accepted may."""
        if accepted is None:
            return before is not None or self._published is not None
        return before is not None and self._source.is_rewind(before, revision)


def _accepted(commit: Commit, changes: str | None, events: list[Event], at: datetime) -> Attempt:
    message, facts = accepted_message(commit), {"commit": commit.revision}
    events.append(Event(at=at, type="Accepted", message=message, facts=facts))
    return Attempt(accepted=commit, changes=changes, attempted=commit.revision, problems=commit.decisions.warnings)


def _refused(
    attempt: Attempt, revision: Revision, error: InvalidRepository, events: list[Event], at: datetime
) -> Attempt:
    attempt = replace(attempt, attempted=revision, problems=error.problems, candidate=None)
    facts = {"commit": revision, "problems": [str(problem) for problem in error.problems]}
    events.append(Event(at=at, type="Refused", message=refused_message(attempt), facts=facts, warning=True))
    return attempt


def _acknowledged(commit: Commit, verdict: Verdict, at: datetime) -> Iterator[Event]:
    for trip in verdict.trips:
        message = f"{commit.revision[:12]}: {trip.guard} is acknowledged: {words.trip(trip)}"
        facts = {"commit": commit.revision, "digest": verdict.digest}
        yield Event(at=at, type="Acknowledged", message=message, facts=facts)


def _approved(knowledge: Knowledge, digest: str) -> Acknowledged:
    return frozenset((digest, guard) for guard in knowledge.approvals.get(digest, ()))


# In words


def accepted_message(commit: Commit) -> str:
    return f"{commit.revision[:12]} decides for {count(len(commit.decisions.servers), 'server')}"


def refused_message(attempt: Attempt) -> str:
    rest = more(len(attempt.problems) - 1, "problem")
    return f"{(attempt.attempted or '')[:12]} is invalid: {attempt.problems[0]}{rest and f' {rest}'}"


def held_message(held: Candidate) -> str:
    """By which numbers a commit is held, and how it is acknowledged."""
    revision, verdict = held.evaluated.commit.revision, held.verdict
    trips = "; ".join(f"{trip.guard}: {words.trip(trip)}" for trip in verdict.trips if not trip.acknowledged)
    guards = " ".join(f"--guard {guard}" for guard in verdict.holding)
    lines = [trailer(verdict.digest, guard) for guard in verdict.holding]
    message = (
        f"{revision[:12]} is held: {trips}. Acknowledge it in a commit's message with "
        f"{' and '.join(map(repr, lines))}, or with: gitboot approve {verdict.digest} {guards} --reason … --state …"
    )
    return f"{message} ({some(held.unheeded)})" if held.unheeded else message
