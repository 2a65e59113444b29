"""Commit path: judge the commits between the accepted commit and the newest commit, one by one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct, structs

from gitboot.fleet.revision import Message
from gitboot.review.acknowledgements import ANY_LINE, AckLine, AckRules, IgnoredLine, format_ack_lines, parse_ack_lines
from gitboot.review.decision_changes import ReviewedRevision, compare_decisions
from gitboot.review.guards import NO_ACKNOWLEDGEMENTS, Acknowledgements, Limits, Verdict, judge

U = TypeVar("U", bound=str)  # a UUID
MAX_STEPS: Final = 200  # gitboot judges a path with more commits as one step
JudgeStep = Callable[[int, int], Verdict]  # maps (old position, new position) to the verdict without acknowledgements
StepCallback = Callable[[int, int], None]  # the position before a step, and the position after the step


def _ignore_step(old: int, new: int) -> None:
    """Do nothing for a step. This function is the default value of ``on_step``."""


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
    rules: AckRules = ANY_LINE,
    on_step: StepCallback = _ignore_step,
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
    - gitboot calls ``on_step`` for each position when a step to this position can be accepted.
    """
    if len(commits) > MAX_STEPS:
        commits = (
            *(structs.replace(commit, valid=False, messages=()) for commit in commits[:-1]),
            structs.replace(commits[-1], messages=tuple(message for commit in commits for message in commit.messages)),
        )
    search = _PathSearch(commits, judge_step, approvals, rules, on_step)
    for new, commit in enumerate(commits, 1):
        if commit.valid and not search.waits:
            search.try_position(new)
    return search.build_path(len(commits))


class _AckPosition(Struct, frozen=True):
    """An acknowledgement, and the position of the first commit with the same signed content.

    Several commits with different signers may have this content.
    """

    position: int
    ack: AckLine
    is_repeated: bool = False  # whether the commit of the acknowledgement comes after this position

    @property
    def key(self) -> _AckPosition | str:
        """The key that ensures that gitboot uses the acknowledgement only once on a path."""
        return self.ack.id if self.ack.content else self


_AckKey = _AckPosition | str | tuple[str, str]  # each acknowledgement is used only once on a path


class _PartialPath(Struct, frozen=True):
    steps: tuple[PathStep, ...] = ()
    used: frozenset[_AckKey] = frozenset()  # the acknowledgements of these steps


@dataclass(slots=True)
class _PathSearch:
    """The state of a search for a commit path: the positions found so far that can be accepted."""

    commits: Sequence[PathCommit]
    judge_step: JudgeStep
    approvals: Acknowledgements
    rules: InitVar[AckRules]
    on_step: StepCallback
    paths: dict[int, _PartialPath] = field(default_factory=lambda: {0: _PartialPath()})
    # lines with the digest of a step that ends at the line's commit or before it
    matched_lines: set[_AckPosition | str] = field(default_factory=set)
    effective_lines: set[_AckPosition] = field(default_factory=set)  # lines with the digest of any step
    waits: bool = False  # whether a step must wait although no guard holds it
    lines: tuple[_AckPosition, ...] = field(init=False)
    malformed_lines: tuple[IgnoredLine, ...] = field(init=False)

    def __post_init__(self, rules: AckRules) -> None:
        positions = tuple(enumerate(self.commits, 1))
        first_positions = {  # by signed content
            message.content: position for position, commit in reversed(positions) for message in commit.messages
        }
        lines, malformed_lines = list[_AckPosition](), list[IgnoredLine]()
        for position, commit in positions:
            for line in parse_ack_lines(commit.messages, rules):
                if isinstance(line, IgnoredLine):
                    malformed_lines.append(line)
                else:
                    first = first_positions[line.content] if line.content else position
                    lines.append(_AckPosition(first, line, first < position))
        self.lines, self.malformed_lines = tuple(lines), tuple(malformed_lines)

    def try_position(self, new: int) -> None:
        """Try to accept a step to a position.

        First try the step from the last accepted position. Then try the steps from all other positions for which an
        acknowledgement may apply.
        """
        latest, *others = sorted(self.paths, reverse=True)
        acknowledged = (old for old in others if self.approvals or any(line.position > old for line in self.lines))
        for old in (latest, *acknowledged):
            path = self.paths[old]
            step, used = self._acknowledge(old, new, path)
            if not step.verdict.held and (old == latest or step.verdict.trips):
                self.waits = step.verdict.waits
                if self.waits:
                    return
                self.paths[new] = _PartialPath((*path.steps, step), path.used | used)
                self.on_step(old, new)
                return

    def _acknowledge(self, old: int, new: int, path: _PartialPath) -> tuple[PathStep, frozenset[_AckKey]]:
        """Judge a step. Return the step with its acknowledgements, and the keys of these acknowledgements."""
        verdict = self.judge_step(old, new)
        matching = [line for line in self.lines if line.ack.digest == verdict.digest and line.position > old]
        self.effective_lines.update(matching)
        usable = [
            line
            for line in matching
            if line.key not in path.used and (line.position >= new or line.key not in self.matched_lines)
        ]
        self.matched_lines.update(line.key for line in matching if line.position >= new)
        # an acknowledgement is a line in a message, or an approval
        acks_by_guard: dict[str, _AckPosition | tuple[str, str]] = {
            approval[1]: approval for approval in self.approvals.keys() - path.used if approval[0] == verdict.digest
        }
        # the last line for a guard wins, so a line of the next commit has precedence
        usable.sort(key=lambda line: (line.position < new, line.position), reverse=True)
        acks_by_guard |= {line.ack.guard: line for line in usable}
        trips, used = [], set[_AckKey]()
        for trip in verdict.trips:
            ack, by = acks_by_guard.get(trip.guard.value), ""
            if isinstance(ack, _AckPosition):
                by = ack.ack.by
                used.add(ack.key)
            elif ack is not None:
                by = self.approvals[ack]
                used.add(ack)
            trips.append(structs.replace(trip, acknowledged=ack is not None, by=by))
        return PathStep(old=old, new=new, verdict=structs.replace(verdict, trips=tuple(trips))), frozenset(used)

    def build_path(self, newest: int) -> CommitPath:
        reached = max(self.paths)
        path = self.paths[reached]
        held: PathStep | None = None
        if reached < newest:
            held, _ = self._acknowledge(reached, newest, path)
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
        used = frozenset(key for key in path.used if isinstance(key, str))
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
            step, _ = self._acknowledge(old, new, self.paths[position])
            if step.verdict.held:
                yield step


def find_first_provisions(known_uuids: Container[U], commits: Iterable[Iterable[tuple[U, int]]]) -> dict[U, int]:
    """Return the first provision number of each UUID that is not known yet, taken from the first commit with the UUID.

    ``commits`` yields the (UUID, provision number) pairs of each valid first-parent commit since the accepted commit,
    in order.
    """
    provisions = dict[U, int]()
    for servers in commits:
        for uuid, provision in servers:
            if uuid not in known_uuids:
                provisions.setdefault(uuid, provision)
    return provisions


class ReviewedCommit(NamedTuple):
    """A commit on the first-parent path from BASE to HEAD."""

    revision: str
    messages: tuple[Message, ...]  # of the commit itself and of all commits that it merged
    get_revision: Callable[[], ReviewedRevision]


class HeldStep(Struct, frozen=True, kw_only=True):
    """A commit that a person must acknowledge, and the lines that would acknowledge this commit."""

    commit: str
    lines: tuple[str, ...]


def judge_by_steps(
    verdict: Verdict,
    base: ReviewedRevision,
    head: ReviewedRevision,
    commits: Sequence[ReviewedCommit],
    limits: Limits,
    rules: AckRules,
) -> tuple[Verdict, tuple[HeldStep, ...], tuple[IgnoredLine, ...]]:
    """Judge several commits one by one, in the same way as an instance.

    Return the verdict on all commits together, the held commits, and the acknowledgement lines that gitboot ignores.
    """

    @cache
    def get_revision(position: int) -> ReviewedRevision:
        if position == 0:
            return base
        return head if position == len(commits) else commits[position - 1].get_revision()

    def judge_step(old: int, new: int) -> Verdict:
        before, after = get_revision(old), get_revision(new)
        assert after.decisions is not None  # noqa: S101 - the commit is valid
        assert after.repository is not None  # noqa: S101
        changes = compare_decisions(before.decisions, after.decisions, before.repository, after.repository)
        return judge(changes.extent, tighten_limits(limits, before, after))

    path_commits = [
        PathCommit(revision=each.revision, valid=get_revision(at).decisions is not None, messages=each.messages)
        for at, each in enumerate(commits, 1)
    ]
    path = find_commit_path(path_commits, judge_step, rules=rules)
    if path.held_step is None:
        # all of the commits are acknowledged
        trips = tuple(trip for step in path.accepted_steps for trip in step.verdict.trips)
        return structs.replace(verdict, trips=trips), (), path.ignored_lines
    # The commits together may be harmless although one commit is not. An instance may fetch this commit without the
    # later commits.
    held_verdict = verdict if verdict.held else path.held_step.verdict
    steps = (
        HeldStep(commit=commits[step.new - 1].revision, lines=format_ack_lines(step.verdict, rules.reinstalls_need))
        for step in path.unacknowledged_steps
    )
    return held_verdict, tuple(steps), path.ignored_lines


def tighten_limits(limits: Limits, *sides: ReviewedRevision) -> Limits:
    """Return the limits, lowered to the limits in the Fleet documents of these commits if those are lower."""
    for side in sides:
        if side.repository is not None:
            limits = limits.tighten(side.repository.fleet.spec.guards)
    return limits
