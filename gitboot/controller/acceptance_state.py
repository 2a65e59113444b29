"""Acceptance state: the accepted commit, the judgement of the newest commit, and the messages about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, field

from gitboot.controller.commit_judgement import CommitJudgement
from gitboot.controller.held_commit import Candidate, format_exceeded_limits, list_ack_lines
from gitboot.errors import FleetOrders
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.revision import Revision, Signer
from gitboot.git.signatures import parse_untrusted_commit
from gitboot.jsonio import format_instant
from gitboot.ledger.instance_tables import WithheldBoots
from gitboot.problems import Code, Problem, Severity
from gitboot.review.guards import Guard
from gitboot.status.instance_status import Acknowledgement, ChangedArea, HeldCommit, PassedCommit
from gitboot.text import format_count, printable


class MissingCommit(NamedTuple):
    """A commit that removed boots and is no longer on the branch. gitboot keeps withholding these boots."""

    commit: Revision
    servers: int  # number of servers in the accepted commit whose boots are withheld only because of this commit
    is_here: bool  # whether the clone contains the commit, so that gitboot can compare other commits with it


class UnresumedCommit(NamedTuple):
    """The last accepted commit, if gitboot could not restore it after a start."""

    commit: Revision
    problems: tuple[Problem, ...]


class AcceptanceState(Struct, frozen=True, kw_only=True):
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


def format_accepted_commit(commit: Commit, signer: Signer | None = None) -> str:
    signed = f", signed by {signer}" if signer is not None else ""
    return f"accepted {commit.revision[:12]} with {format_count(len(commit.decisions.servers), 'server')}{signed}"


def format_rejection(acceptance: AcceptanceState) -> str:
    """Return a message about the first error of the newest commit, or of the accepted commit after a restart."""
    first, attempted = _find_error(acceptance.problems), acceptance.attempted
    commit = f"commit {attempted[:12]}" if attempted is not None else "the commit accepted before the restart"
    if acceptance.retry_at is not None and acceptance.is_unevaluated:
        text = printable(f"{commit} was not evaluated: {first.message} ({first.code})")
        return f"{text}. gitboot will retry at {format_instant(acceptance.retry_at)}"
    if first.code is Code.UNTRUSTED:
        ancestor, fault = parse_untrusted_commit(first), first.message
        if ancestor is not None and attempted is not None and attempted.startswith(ancestor):
            fault = f"it{first.message.removeprefix(ancestor)}"
        elif ancestor is not None:
            fault = f"its ancestor {first.message}"
        return printable(f"{commit} is not accepted: {fault} ({first.code})")
    hint = f". {first.hint[:1].upper()}{first.hint[1:]}" if first.hint else ""
    text = printable(f"{commit} is invalid: {_format_problem(first)}{hint}")
    others = len(acceptance.problems) - 1
    return f"{text}. The commit has {format_count(others, 'other problem')}" if others else text


def format_failed_resume(acceptance: AcceptanceState) -> str:
    """Return a sentence that names the problem of the accepted commit, or "" if the judgement is about this commit."""
    unresumed = acceptance.unresumed
    if unresumed is None or acceptance.attempted in (None, unresumed.commit):
        return ""
    text = printable(f"the accepted commit {unresumed.commit[:12]}: {_format_problem(_find_error(unresumed.problems))}")
    return f". gitboot cannot evaluate {text}{'. gitboot retries automatically' if acceptance.awaits_accepted else ''}"


def _find_error(problems: Sequence[Problem]) -> Problem:
    return next((each for each in problems if each.severity is Severity.ERROR), problems[0])


def _format_problem(problem: Problem) -> str:
    place = f"{problem.path}:{problem.line}:{problem.column}: " if problem.path != "." else ""
    return f"{place}{problem.code}: {problem.message}"


def find_untrusted_commit(acceptance: AcceptanceState) -> str | None:
    """Return the attempted commit or the ancestor that no trusted key signed, or None if all commits are trusted."""
    problem = next((each for each in acceptance.problems if each.code is Code.UNTRUSTED), None)
    if problem is None:
        return None
    ancestor, attempted = parse_untrusted_commit(problem), acceptance.attempted
    if ancestor is None or (attempted is not None and attempted.startswith(ancestor)):
        return attempted
    return ancestor
