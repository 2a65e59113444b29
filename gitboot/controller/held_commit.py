"""Held commit: a commit that a guard holds, and the messages that describe how a person can acknowledge it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gitboot.evaluator.protocol import Commit
from gitboot.fleet.revision import ReinstallsNeed, Revision
from gitboot.review.acknowledgements import IgnoredLine, format_ack_lines, format_approval, list_ack_guards
from gitboot.review.formats import phrases
from gitboot.review.guards import ONLY_APPROVED, Acknowledgements, Guard, Verdict
from gitboot.status.conditions import REASON_SEPARATOR
from gitboot.text import format_count, format_names, format_omitted

_AFTER_GAP: Final = (
    "gitboot ignores approvals in commit messages for now, because this instance was off for a long time and its "
    "ledger may be an older copy. gitboot considers these approvals again after it accepts the newest commit"
)
_MAX_INHERITED: Final = 3  # maximum number of identities in one message


class Candidate(Struct, frozen=True, kw_only=True):
    """A commit that a guard holds."""

    commit: Commit
    verdict: Verdict
    steps: tuple[tuple[Revision, Verdict], ...]  # the steps that need acknowledgement, if there are several
    approvals: Acknowledgements  # the approvals that existed when the commit was judged
    ignored_lines: tuple[IgnoredLine, ...]  # acknowledgement lines that do not count
    released: tuple[str, ...] = ()  # servers that could boot from the network again because the commit ends a stop
    # Who must acknowledge reinstallations; None: a line in any commit is enough.
    reinstalls_need: ReinstallsNeed | None = None
    accepts_lines: bool = True  # whether lines in commit messages count now
    depends_on_records: bool = False  # whether the records determine how many servers the commit reinstalls
    is_preliminary: bool = False  # whether the commit may pass the guards once gitboot reads the records
    reinstalls: tuple[str, ...] = ()  # servers that the commit reinstalls according to the records

    @property
    def accepts_each_step(self) -> bool:
        """Return whether a person can acknowledge each step on its own, because there are several steps."""
        return len(self.steps) > 1 and not any(ONLY_APPROVED & set(verdict.holding_guards) for _, verdict in self.steps)


def format_held_commit(candidate: Candidate) -> str:
    """Return a message that names the guards that hold a commit, with their counts and limits.

    The message does not contain a command, because a terminal would wrap it. The command is the remedy for the
    condition.
    """
    verdict = candidate.verdict
    reasons = REASON_SEPARATOR.join(format_exceeded_limits(verdict))
    message = f"commit {candidate.commit.revision[:12]} is on hold until it is approved: {reasons}"
    if Guard.MAX_REINSTALLS in verdict.holding_guards and candidate.reinstalls:
        message += f". Servers to reinstall: {format_names(candidate.reinstalls)}"
    if Guard.MAX_REINSTALLS in verdict.holding_guards and verdict.inherited:
        identities = "; ".join(map(str, verdict.inherited[:_MAX_INHERITED]))
        omitted = format_omitted(len(verdict.inherited) - _MAX_INHERITED, "identity")
        message += f". Moved identities: {identities} {omitted}".rstrip()
    if not candidate.accepts_lines:
        return f"{message}. {_AFTER_GAP}"
    if not list_ack_lines(verdict, candidate.reinstalls_need):
        message += ". You can approve this commit only with gitboot approve, not in a commit message"
    if candidate.released:
        message += (
            f". The commit also ends a stop, so {format_count(len(candidate.released), 'server')} would boot "
            f"from the network at once: {format_names(candidate.released)}"
        )
    if candidate.accepts_each_step:
        names = format_names([revision[:12] for revision, _ in candidate.steps])
        message += f". You can also approve each merge on its own: {names}"
    ignored_lines = [
        f"{phrases.format_value(ignored.line)!r} does not count: {phrases.format_value(ignored.why)}"
        for ignored in candidate.ignored_lines
    ]
    return f"{message} ({format_names(ignored_lines)})" if ignored_lines else message


def format_exceeded_limits(verdict: Verdict) -> tuple[str, ...]:
    """Return a clause for each exceeded limit that is not acknowledged."""
    return tuple(phrases.format_limit_clause(trip) for trip in verdict.trips if not trip.acknowledged)


def format_ack_instructions(candidate: Candidate) -> str:
    """Return instructions for acknowledging a held commit: the lines for commit messages, and the command."""
    verdict = candidate.verdict
    options = [f"run {format_approval(verdict.digest)}"]
    if candidate.accepts_lines and (lines := list_ack_lines(verdict, candidate.reinstalls_need)):
        options.insert(0, f"add the line {' '.join(lines)} to {describe_ack_message(candidate)}")
    if candidate.accepts_each_step:
        steps = "; ".join(
            f"{revision[:12]}: {' '.join(list_ack_lines(step, candidate.reinstalls_need)) or 'gitboot approve'}"
            for revision, step in candidate.steps
        )
        options.append(f"acknowledge each merge on its own: {steps}")
    return f"To let the commit through, {'. Or '.join(options)}"


def describe_ack_message(candidate: Candidate) -> str:
    """Describe the commit message that must contain the lines that acknowledge a held commit."""
    is_signed = (
        candidate.reinstalls_need is ReinstallsNeed.SIGNED and Guard.MAX_REINSTALLS in candidate.verdict.holding_guards
    )
    return f"the message of a {'signed' if is_signed else 'new'} commit"


def list_ack_lines(verdict: Verdict, reinstalls_need: ReinstallsNeed | None) -> tuple[str, ...]:
    """Return the lines that acknowledge a commit for all guards that hold it, or () if lines are not sufficient."""
    if len(list_ack_guards(verdict, reinstalls_need)) < len(verdict.holding_guards):
        return ()
    return format_ack_lines(verdict, reinstalls_need)
