"""Commit path: judge the commits between the accepted commit and the newest commit, one by one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct, structs

from gitboot.fleet.revision import Message, ReinstallsNeed
from gitboot.review.decision_changes import Side, compare_decisions
from gitboot.review.guards import (
    NO_ACKNOWLEDGEMENTS,
    AckLine,
    Acknowledgements,
    IgnoredLine,
    Limits,
    Verdict,
    format_ack_lines,
    judge,
    parse_ack_lines,
)

U = TypeVar("U", bound=str)  # a UUID
MAX_STEPS: Final = 200  # gitboot judges a path with more commits as one step
JudgeStep = Callable[[int, int], Verdict]  # maps (old position, new position) to the verdict without acknowledgements
OnArrival = Callable[[int, int], None]  # the position before a step, and the position after the step


def _ignore(old: int, new: int) -> None:
    """Do nothing for a step. This function is the default value of ``on_arrival``."""


class PathCommit(Struct, frozen=True, kw_only=True):
    """A commit on the first-parent path after the accepted commit."""

    revision: str
    valid: bool  # False: the commit becomes part of the step to the next valid commit
    messages: tuple[Message, ...]  # the messages of the commit and of all commits that it merged


class PathStep(Struct, frozen=True, kw_only=True):
    """A step between two positions on the path, with its verdict.

    Position 0 is the accepted commit, and position n is the n-th commit after it.
    """

    old: int
    new: int
    verdict: Verdict


class CommitPath(Struct, frozen=True, kw_only=True):
    """The steps on a commit path that gitboot can accept, and the step that it holds."""

    accepted_steps: tuple[PathStep, ...]  # steps that no guard holds; each step begins at the end of the previous step
    held_step: PathStep | None  # the step from the last accepted position to the newest commit; None: no step is held
    # held steps from one commit to the next commit, each with its own digest
    unacknowledged_steps: tuple[PathStep, ...]
    ignored_lines: tuple[IgnoredLine, ...]
    used_line_ids: frozenset[str] = frozenset()  # the IDs of signed lines that acknowledged accepted steps
    waits: bool = False  # whether the next step must wait although no guard holds it

    @property
    def reached(self) -> int:
        """The position of the newest commit that can be accepted."""
        return self.accepted_steps[-1].new if self.accepted_steps else 0


def find_commit_path(
    commits: Sequence[PathCommit],
    judge_step: JudgeStep,
    approvals: Acknowledgements = NO_ACKNOWLEDGEMENTS,
    need: ReinstallsNeed | None = None,
    counted_before: Container[str] = frozenset(),
    on_arrival: OnArrival = _ignore,
) -> CommitPath:
    """Judge the first-parent commits after the accepted commit, in order. The last commit must be valid.

    gitboot judges each commit against the last commit that can be accepted. Therefore a change that a later commit
    reverts needs no acknowledgement. If commits were rebased one by one, an acknowledgement line may apply to a step
    that starts at an earlier commit, so gitboot also judges that step. Each line acknowledges at most one step. If
    possible, gitboot chooses a step that ends at the commit that contains the line, or before that commit. Otherwise,
    gitboot chooses a step that ends after that commit. A line that is valid because of a signature is valid only for
    the first commit with the signed content. If a step must wait although no guard holds it, the path ends before this
    step. Therefore waiting never changes the steps of the path.

    - ``approvals`` are acknowledgements that do not come from commit messages.
    - ``need`` specifies how reinstallations must be acknowledged.
    - ``counted_before`` contains the signed lines that acknowledged earlier commits.
    - gitboot calls ``on_arrival`` for each position when a step to this position can be accepted.
    """
    if len(commits) > MAX_STEPS:
        commits = (
            *(structs.replace(leg, valid=False, messages=()) for leg in commits[:-1]),
            structs.replace(commits[-1], messages=tuple(message for leg in commits for message in leg.messages)),
        )
    search = _Search(commits, judge_step, approvals, need, counted_before, on_arrival)
    for new, leg in enumerate(commits, 1):
        if leg.valid and not search.waits:
            search.arrive(new)
    return search.finish(len(commits))


class _AckPosition(Struct, frozen=True):
    """An acknowledgement, and the position of the first commit with the same signed content.

    Several commits with different signers may have this content.
    """

    at: int
    ack: AckLine
    is_repeated: bool = False  # whether the commit of the acknowledgement comes after this position

    @property
    def key(self) -> _AckPosition | str:
        """The key that ensures that gitboot uses the acknowledgement only once on a path."""
        return self.ack.id if self.ack.content else self


class _PartialPath(Struct, frozen=True):
    steps: tuple[PathStep, ...] = ()
    used: frozenset[_Used] = frozenset()


@dataclass(slots=True)
class _Search:
    """The state of a search for a commit path: the positions found so far that can be accepted."""

    commits: Sequence[PathCommit]
    judge_step: JudgeStep
    approvals: Acknowledgements
    need: ReinstallsNeed | None
    counted_before: Container[str]
    on_arrival: OnArrival
    paths: dict[int, _PartialPath] = field(default_factory=lambda: {0: _PartialPath()})
    matched_lines: set[_AckPosition | str] = field(
        default_factory=set
    )  # lines with the digest of a step that ends at the line's commit or before it
    effective_lines: set[_AckPosition] = field(default_factory=set)  # lines with the digest of any step
    waits: bool = False  # whether a step must wait although no guard holds it
    lines: tuple[_AckPosition, ...] = field(init=False)
    malformed_lines: tuple[IgnoredLine, ...] = field(init=False)

    def __post_init__(self) -> None:
        legs = tuple(enumerate(self.commits, 1))
        first = {each.content: at for at, leg in reversed(legs) for each in leg.messages}
        found = [
            (at, each) for at, leg in legs for each in parse_ack_lines(leg.messages, self.need, self.counted_before)
        ]
        self.lines = tuple(
            _AckPosition(first[each.content], each, first[each.content] < at)
            if each.content
            else _AckPosition(at, each)
            for at, each in found
            if isinstance(each, AckLine)
        )
        self.malformed_lines = tuple(each for _, each in found if isinstance(each, IgnoredLine))

    def arrive(self, new: int) -> None:
        """Try to accept a step to a position.

        First try the step from the last accepted position. Then try the steps from all other positions for which an
        acknowledgement may apply.
        """
        latest, *others = sorted(self.paths, reverse=True)
        acknowledged = (old for old in others if self.approvals or any(line.at > old for line in self.lines))
        for old in (latest, *acknowledged):
            path = self.paths[old]
            hop, used = self._acknowledge(PathStep(old=old, new=new, verdict=self.judge_step(old, new)), path)
            if not hop.verdict.held and (old == latest or hop.verdict.trips):
                self.waits = hop.verdict.waits
                if self.waits:
                    return
                self.paths[new] = _PartialPath((*path.steps, hop), path.used | used)
                self.on_arrival(old, new)
                return

    def _acknowledge(self, hop: PathStep, path: _PartialPath) -> tuple[PathStep, frozenset[_Used]]:
        same = [line for line in self.lines if line.ack.digest == hop.verdict.digest and line.at > hop.old]
        self.effective_lines.update(same)
        counting = [
            line
            for line in same
            if line.key not in path.used and (line.at >= hop.new or line.key not in self.matched_lines)
        ]
        self.matched_lines.update(line.key for line in same if line.at >= hop.new)
        # an acknowledgement is a line in a message, or an approval
        given: dict[str, _AckPosition | tuple[str, str]] = {
            each[1]: each for each in self.approvals.keys() - path.used if each[0] == hop.verdict.digest
        }
        for line in sorted(counting, key=lambda line: (line.at < hop.new, line.at), reverse=True):
            given[line.ack.guard] = line  # the last assignment wins, so a line of the next commit has precedence
        by = {
            guard: each.ack.by if isinstance(each, _AckPosition) else self.approvals[each]
            for guard, each in given.items()
        }
        trips = tuple(
            structs.replace(trip, acknowledged=trip.guard.value in given, by=by.get(trip.guard.value, ""))
            for trip in hop.verdict.trips
        )
        counted = (given[trip.guard.value] for trip in trips if trip.acknowledged)
        used = frozenset(each.key if isinstance(each, _AckPosition) else each for each in counted)
        return structs.replace(hop, verdict=structs.replace(hop.verdict, trips=trips)), used

    def finish(self, newest: int) -> CommitPath:
        reached = max(self.paths)
        path, held = self.paths[reached], None
        if reached < newest:
            held, _ = self._acknowledge(
                PathStep(old=reached, new=newest, verdict=self.judge_step(reached, newest)), path
            )
        stale = (
            IgnoredLine(
                commit=line.ack.commit,
                line=line.ack.text,
                why=AckLine.USED if line.is_repeated else AckLine.STALE,
            )
            for line in self.lines
            if line not in self.effective_lines
        )
        steps = tuple(self._find_held_steps(reached, newest)) if held is not None else ()
        used = frozenset(each for each in path.used if isinstance(each, str))
        return CommitPath(
            accepted_steps=path.steps,
            held_step=held,
            unacknowledged_steps=steps,
            ignored_lines=tuple(dict.fromkeys((*self.malformed_lines, *stale))),
            used_line_ids=used,
            waits=self.waits,
        )

    def _find_held_steps(self, position: int, newest: int) -> Iterator[PathStep]:
        """Yield the steps that a person must acknowledge, beginning at a position.

        Each of these steps leads from one commit to the next.
        """
        valid = [position, *(at for at in range(position + 1, newest + 1) if self.commits[at - 1].valid)]
        for old, new in pairwise(valid):
            hop, _ = self._acknowledge(
                PathStep(old=old, new=new, verdict=self.judge_step(old, new)), self.paths[position]
            )
            if hop.verdict.held:
                yield hop


_Used = _AckPosition | str | tuple[str, str]  # each acknowledgement is used only once on a path


def find_first_provisions(known_uuids: Container[U], commits: Iterable[Iterable[tuple[U, int]]]) -> dict[U, int]:
    """Return the first provision number of each UUID that is not known yet, taken from the first commit with the UUID.

    ``commits`` yields the (UUID, provision number) pairs of each valid first-parent commit since the accepted commit,
    in order.
    """
    found = dict[U, int]()
    for servers in commits:
        for uuid, provision in servers:
            if uuid not in known_uuids:
                found.setdefault(uuid, provision)
    return found


class CommitBetween(NamedTuple):
    """A commit on the first-parent path from BASE to HEAD."""

    revision: str
    messages: tuple[Message, ...]  # of the commit itself and of all commits that it merged
    side: Callable[[], Side]


class HeldStep(Struct, frozen=True, kw_only=True):
    """A commit that a person must acknowledge, and the lines that would acknowledge this commit."""

    commit: str
    lines: tuple[str, ...]


def judge_by_steps(
    verdict: Verdict,
    base: Side,
    head: Side,
    line: Sequence[CommitBetween],
    limits: Limits,
    need: ReinstallsNeed | None,
    counted_before: Container[str],
) -> tuple[Verdict, tuple[HeldStep, ...], tuple[IgnoredLine, ...]]:
    """Judge several commits one by one, in the same way as an instance.

    Return the verdict on all commits together, the held commits, and the acknowledgement lines that gitboot ignores.
    """

    @cache
    def side(position: int) -> Side:
        if position == 0:
            return base
        return head if position == len(line) else line[position - 1].side()

    def judge_step(old: int, new: int) -> Verdict:
        before, after = side(old), side(new)
        assert after.decisions is not None  # noqa: S101 - the commit is valid
        assert after.repository is not None  # noqa: S101
        changes = compare_decisions(before.decisions, after.decisions, before.repository, after.repository)
        return judge(changes.extent, tighten_limits(limits, before, after))

    legs = [
        PathCommit(revision=each.revision, valid=side(at).decisions is not None, messages=each.messages)
        for at, each in enumerate(line, 1)
    ]
    found = find_commit_path(legs, judge_step, need=need, counted_before=counted_before)
    if found.held_step is None:
        trips = tuple(
            trip for hop in found.accepted_steps for trip in hop.verdict.trips
        )  # all of the commits are acknowledged
        return structs.replace(verdict, trips=trips), (), found.ignored_lines
    # The commits together may be harmless although one commit is not. An instance may fetch this commit without the
    # later commits.
    holding = verdict if verdict.held else found.held_step.verdict
    steps = (
        HeldStep(commit=line[hop.new - 1].revision, lines=format_ack_lines(hop.verdict, need))
        for hop in found.unacknowledged_steps
    )
    return holding, tuple(steps), found.ignored_lines


def tighten_limits(limits: Limits, *sides: Side) -> Limits:
    """Return the limits, lowered to the limits in the Fleet documents of these commits if those are lower."""
    for side in sides:
        if side.repository is not None:
            limits = limits.tighten(side.repository.fleet.spec.guards)
    return limits
