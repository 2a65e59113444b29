"""Which commit is accepted: read, decided, judged by the guards; accepted whole, refused whole, or held."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gitboot.diff.guard import Acknowledged, Limits, Verdict, acknowledgements, judge, trailer
from gitboot.errors import CorruptClone, InvalidRepository, OperatorError, SourceError, TryAgain
from gitboot.instance.evaluation import Commit, Evaluated, Evaluation
from gitboot.instance.journal import Journal
from gitboot.instance.provisioning import Provisioning
from gitboot.ledger import Ledger
from gitboot.load import Revision
from gitboot.model.policy import NetworkBoot
from gitboot.model.scalars import format_instant
from gitboot.phrases import count, more, some
from gitboot.plan import Decision
from gitboot.problems.problem import Problem
from gitboot.resolve.instant import is_provisioned
from gitboot.review import words
from gitboot.source import Source
from gitboot.status import Held


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A commit that a guard holds."""

    evaluated: Evaluated
    verdict: Verdict
    given: Acknowledged  # what it was judged with
    unheeded: tuple[str, ...]  # acknowledgements that do not count, and why


class Accepting:
    """What was accepted last, what was attempted, and why that is not the same."""

    def __init__(
        self,
        source: Source,
        evaluation: Evaluation,
        ledger: Ledger,
        provisioning: Provisioning,
        journal: Journal,
        *,
        limits: Limits,
        published: Revision | None = None,
    ) -> None:
        self._source, self._evaluation, self._ledger = source, evaluation, ledger
        self._provisioning, self._journal = provisioning, journal
        self._limits = limits
        self._published = published  # the commit that the tree was made of before this start
        self.accepted: Commit | None = None
        self.attempted: Revision | None = None
        self.problems: tuple[Problem, ...] = ()  # of the attempted commit
        self._held: _Candidate | None = None

    @property
    def held(self) -> Held | None:
        """The commit that waits for an acknowledgement."""
        if self._held is None:
            return None
        verdict = self._held.verdict
        return Held(
            commit=self._held.evaluated.commit.revision,
            digest=verdict.digest,
            guards=tuple(str(guard) for guard in verdict.holding),
        )

    def accept(self, at: datetime) -> None:
        """Accept the newest commit if it holds together and no guard holds it; else the one before goes on.

        After a start that is first the one that was accepted before: bad commits and a lost remote keep it.
        """
        try:
            try:
                self._take_newest(at)
            except CorruptClone as error:
                if self._restore_clone(error, at):
                    self._take_newest(at)
        except SourceError as error:
            self._journal.condition("SourceReady", False, type(error).__name__, str(error), at)

    def _take_newest(self, at: datetime) -> None:
        if self.attempted is None:
            self._take_up_again(at)
        latest = self._source.latest()
        if latest is None or self.suspended(at) is not None:
            return
        if latest != self.attempted:
            self._held = None
            if (evaluated := self._evaluate(latest, at)) is not None:
                self._judge(evaluated, at)
        elif self._held is not None and self._approved(self._held.verdict.digest) - self._held.given:
            self._judge(self._held.evaluated, at)

    def _take_up_again(self, at: datetime) -> None:
        """After a start: go on with what was accepted before; the guards have judged it then."""
        before = self._accepted_before()
        evaluated = self._evaluate(before, at) if before is not None else None
        if evaluated is not None:
            self._accept(evaluated.commit, at)

    def _accepted_before(self) -> Revision | None:
        """The commit that was accepted last; the ledger knows it even where the clone was lost.

        Where the ledger was lost too, the tree knows what was published: guards compare with that.
        """
        accepted = self._source.accepted()
        if accepted is None and self._ledger.accepted is None and self._published is not None:
            return self._published if self._source.has(self._published) else None
        if accepted is None and self._ledger.accepted is not None and not self._limits.allow_rewind:
            raise CorruptClone(
                f"the accepted commit {self._ledger.accepted} is not in gitboot's own clone (start once with "
                "--allow-rewind to go on without it)"
            )
        return accepted

    def _restore_clone(self, error: CorruptClone, at: datetime) -> bool:
        """Make the clone anew, and tell whether that could be done; what is answered goes on meanwhile."""
        self._journal.event(at, "CloneCorrupt", str(error), warning=True)
        accepted = self._ledger.accepted
        try:
            self._source.restore(Revision(accepted) if accepted is not None else None)
        except (TryAgain, OperatorError) as failure:
            self._journal.condition("SourceReady", False, "CorruptClone", f"{error}; {failure}", at)
            return False
        self._journal.event(at, "CloneRestored", "gitboot's own clone was made anew")
        return True

    def _evaluate(self, revision: Revision, at: datetime) -> Evaluated | None:
        """What a commit says; None while that is not known yet, or where it has problems, which are told."""
        try:
            return self._evaluation.evaluate(revision)
        except InvalidRepository as error:
            self._refuse(revision, error, at)
            return None

    def _refuse(self, revision: Revision, error: InvalidRepository, at: datetime) -> None:
        self.attempted, self.problems = revision, error.problems
        rest = more(len(error.problems) - 1, "problem")
        message = f"{revision[:12]} is invalid: {error.problems[0]}{rest and f' {rest}'}"
        self._journal.condition("CommitAccepted", False, "Invalid", message, at)
        facts = {"commit": revision, "problems": [str(problem) for problem in error.problems]}
        self._journal.event(at, "Refused", message, facts, warning=True)

    def _accept(self, commit: Commit, at: datetime, *, changes: str | None = None) -> None:
        self._ledger.accept(commit.revision, changes=changes)
        self._source.accept(commit.revision)
        self._evaluation.adopt(commit)
        self.attempted, self.problems = commit.revision, commit.decisions.warnings
        self.accepted, self._held = commit, None
        servers = count(len(commit.decisions.servers), "server")
        message = f"{commit.revision[:12]} decides for {servers}"
        self._journal.condition("CommitAccepted", True, "Valid", message, at)
        self._journal.event(at, "Accepted", message, {"commit": commit.revision})

    # Guards

    def _judge(self, evaluated: Evaluated, at: datetime) -> None:
        """Accept a commit, or hold it, and say by which numbers and how it is acknowledged."""
        commit, changes = evaluated.commit, evaluated.changes
        accepted, before = self.accepted, self._accepted_before()
        limits = self._limits.tightened_by(commit.fleet.guards)
        if accepted is not None:  # a commit that loosens the fleet's guards is judged by the old ones
            limits = limits.tightened_by(accepted.fleet.guards)
        told = acknowledgements(self._source.messages(before, commit.revision), changes.digest)
        given = told.given | self._approved(changes.digest)
        verdict = judge(
            changes,
            limits,
            given,
            pending=self._provisioning.left_to_install(commit.decisions) if accepted is None else None,
            returning=self._returning(commit),
            # What was accepted and cannot be read any more cannot be compared with: nobody knows what is taken back.
            rewound=self._takes_back(before, commit.revision),
        )
        if not verdict.held:
            self._accept(commit, at, changes=verdict.digest)
            for trip in verdict.trips:
                message = f"{commit.revision[:12]}: {trip.guard} is acknowledged: {words.trip(trip)}"
                self._journal.event(at, "Acknowledged", message, {"commit": commit.revision, "digest": verdict.digest})
            return
        unheeded = tuple(
            f"{words.value(each.line)!r} does not count: {words.value(each.why)}" for each in told.unheeded
        )
        self.attempted, self.problems = commit.revision, commit.decisions.warnings
        self._held = _Candidate(evaluated=evaluated, verdict=verdict, given=given, unheeded=unheeded)
        self._tell_held(self._held, at)

    def _returning(self, commit: Commit) -> int:
        """How many machines a commit brings (back) that the records know as installed, and that would be again.

        No two commits tell that: beside the one before, or with none that can be read, they look like new ones.
        """
        before = self.accepted.machines if self.accepted is not None else {}
        come = (each for each in commit.decisions.servers.values() if each.uuid not in before)
        return sum(map(self._would_be_installed_again, come))

    def _would_be_installed_again(self, decision: Decision) -> bool:
        record, policy = self._provisioning.recorded(decision.uuid), decision.policy
        if record is None or record.provision is None or policy is None or policy.boot is None:
            return False
        by_record = policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        return by_record and policy.boot.writes_disk and not is_provisioned(policy, record)

    def _takes_back(self, before: Revision | None, revision: Revision) -> bool:
        if self.accepted is None:
            return before is not None or self._published is not None
        return before is not None and self._source.is_rewind(before, revision)

    def _approved(self, digest: str) -> Acknowledged:
        return frozenset((digest, guard) for guard in self._ledger.approved(digest))

    def _tell_held(self, held: _Candidate, at: datetime) -> None:
        revision, verdict = held.evaluated.commit.revision, held.verdict
        trips = "; ".join(f"{trip.guard}: {words.trip(trip)}" for trip in verdict.trips if not trip.acknowledged)
        guards = " ".join(f"--guard {guard}" for guard in verdict.holding)
        lines = [trailer(verdict.digest, guard) for guard in verdict.holding]
        message = (
            f"{revision[:12]} is held: {trips}. Acknowledge it in a commit's message with "
            f"{' and '.join(map(repr, lines))}, or with: gitboot approve {verdict.digest} {guards} --reason … --state …"
        )
        if held.unheeded:
            message += f" ({some(held.unheeded)})"
        if self._journal.condition("CommitAccepted", False, "GuardTripped", message, at):
            facts = {
                "commit": revision,
                "digest": verdict.digest,
                "guards": [str(guard) for guard in verdict.holding],
            }
            self._journal.event(at, "Held", message, facts, warning=True)

    # Suspension

    @property
    def suspended_until(self) -> datetime | None:
        """When a suspension ends by itself."""
        held_up = self._journal.status("Accepting") is False
        suspension = self._ledger.suspension if held_up else None
        return suspension.until if suspension is not None else None

    def suspended(self, at: datetime) -> str | None:
        """Why nothing is accepted and set now; None where it is."""
        suspension = self._ledger.suspension
        if suspension is None or at >= suspension.until:
            self._journal.condition("Accepting", True, "Accepting", "new commits are accepted", at)
            return None
        message = f"suspended by {suspension.who} until {format_instant(suspension.until)}: {suspension.reason}"
        self._journal.condition("Accepting", False, "Suspended", message, at)
        return message
