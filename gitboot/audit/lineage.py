"""One server through the commits of a repository: which of them changed its decision, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gitboot.audit.effects import ServerEffect, effects
from gitboot.audit.steps import Found, Steps
from gitboot.errors import InvalidRepository
from gitboot.load import ParseCache, load
from gitboot.model.scalars import SystemUuid
from gitboot.phrases import more
from gitboot.plan import Decision
from gitboot.resolve.decide import decide
from gitboot.source import CommitSummary, History
from gitboot.source.history import Step

_NOTHING = ""  # in place of a tree: before the first commit, or where the fleet's folder is not there


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """A commit that changed what is decided for the server."""

    commit: CommitSummary
    effect: ServerEffect


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A commit that is invalid: no server was ever decided by it."""

    commit: CommitSummary
    problem: str


class Lineage:
    """What a repository's commits changed; each step between two of them is decided once, then remembered."""

    def __init__(self, history: History, steps: Steps, begun: Callable[[int], None] = lambda _: None) -> None:
        self._history, self._steps = history, steps
        self._begun = begun  # is told of how many files a commit is, before it is decided
        self._parsed: ParseCache = {}
        self._decisions = lru_cache(maxsize=3)(self._decide)  # the two that are compared, and the next

    def of(self, server: str) -> Iterator[Changed | Skipped]:
        """The commits that changed a server's decision, the newest first, and the invalid ones after the first.

        ``server`` is its name now, or the last one that it had; under another name before that it is followed by
        its UUID. Nothing comes where no commit knows it.
        """
        wanted: str | SystemUuid = server
        newer: Step | None = None  # the last valid commit, of which it is not known yet what it changed
        before: list[Skipped] = []  # newer than that, and not yielded yet
        after: list[Skipped] = []
        for step in (*self._changing(), None):
            if step is not None and (problem := self._problem(step)) is not None:
                after.append(Skipped(commit=step.commit, problem=problem))
                continue
            if newer is not None and (found := self._between(step, newer, wanted)) is not None:
                wanted, effect = found
                yield from before
                yield Changed(commit=newer.commit, effect=effect)
                before = []
            before, after, newer = before + after, [], step

    def _changing(self) -> Iterator[Step]:
        """The commits whose fleet is not their parent's, byte for byte."""
        steps = self._history.steps
        for step, parent in zip(steps, (*steps[1:], None), strict=True):
            if step.tree != (parent.tree if parent else None):
                yield step

    def _between(self, old: Step | None, new: Step, server: str | SystemUuid) -> Found | None:
        """What the step from ``old`` to ``new`` changed for the server."""
        before, after = _tree(old), _tree(new)
        while (known := self._steps.effect(before, after, server)) is None:
            self._steps.keep(before, after, effects(self._decisions(old), self._decisions(new)))
        return known[0]

    def _problem(self, step: Step) -> str | None:
        """What is wrong with a commit; None where it is valid."""
        while (known := self._steps.problem(_tree(step))) is None:
            self._steps.keep_problem(_tree(step), self._found_wrong(step))
        return known[0]

    def _found_wrong(self, step: Step) -> str | None:
        try:
            self._decisions(step)
        except InvalidRepository as error:
            return " ".join(filter(None, (str(error.problems[0]), more(len(error.problems) - 1, "problem"))))
        return None

    def _decide(self, step: Step | None) -> Mapping[str, Decision]:
        if _tree(step) == _NOTHING or step is None:
            return {}
        snapshot = self._history.snapshot(step.commit)
        self._begun(len(snapshot.blobs))
        return decide(load(snapshot, self._parsed)).servers


def _tree(step: Step | None) -> str:
    return step.tree or _NOTHING if step is not None else _NOTHING
