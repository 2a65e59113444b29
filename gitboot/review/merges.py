"""The commits between two sides, each judged by itself: what an instance makes of several merges."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from gitboot.fleet.revision import Message, ReinstallsNeed
from gitboot.review.commit_path import Hop, Leg, way
from gitboot.review.decision_changes import compare
from gitboot.review.guards import Limits, Unheeded, Verdict, judge, trailers
from gitboot.review.side import Side


class Between(NamedTuple):
    """One commit of the first-parent line from BASE to HEAD."""

    revision: str
    messages: tuple[Message, ...]  # of it, and of all commits that it brought in
    side: Callable[[], Side]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldStep:
    """One merge that somebody has to acknowledge, and by which lines."""

    commit: str
    lines: tuple[str, ...]


def judged_by_steps(
    verdict: Verdict,
    base: Side,
    head: Side,
    line: Sequence[Between],
    limits: Limits,
    need: ReinstallsNeed | None,
    met: Container[str],
) -> tuple[Verdict, tuple[HeldStep, ...], tuple[Unheeded, ...]]:
    """A verdict over several commits as an instance comes to it: each is judged by itself.

    With what holds of each of them, and the lines that count for nothing.
    """

    @cache
    def side(position: int) -> Side:
        if position == 0:
            return base
        return head if position == len(line) else line[position - 1].side()

    def judged(old: int, new: int) -> Verdict:
        before, after = side(old), side(new)
        assert after.decisions is not None  # noqa: S101 - it is valid
        assert after.repository is not None  # noqa: S101
        changes = compare(before.decisions, after.decisions, before.repository, after.repository)
        return judge(changes.extent, tightened(limits, before, after))

    legs = [
        Leg(revision=each.revision, valid=side(at).decisions is not None, messages=each.messages)
        for at, each in enumerate(line, 1)
    ]
    found = way(legs, judged, need=need, met=met)
    if found.held is None:
        trips = tuple(trip for hop in found.hops for trip in hop.verdict.trips)  # each of which is acknowledged
        return replace(verdict, trips=trips), (), found.unheeded
    # What the commits change together may be harmless where one of them is not: an instance may look in between.
    holding = verdict if verdict.held else found.held.verdict
    return holding, tuple(_steps(found.steps, line, need)), found.unheeded


def tightened(limits: Limits, *sides: Side) -> Limits:
    """Limits as the fleets of these commits have them."""
    for side in sides:
        if side.repository is not None:
            limits = limits.tightened_by(side.repository.fleet.spec.guards)
    return limits


def _steps(hops: Sequence[Hop], line: Sequence[Between], need: ReinstallsNeed | None) -> Iterator[HeldStep]:
    for hop in hops:
        lines = tuple(text for _, text in trailers(hop.verdict, need))
        yield HeldStep(commit=line[hop.new - 1].revision, lines=lines)
