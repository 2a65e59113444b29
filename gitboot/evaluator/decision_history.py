"""Decision history: the commits that changed a server's decision, and their effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gitboot.child_processes import encode
from gitboot.errors import InvalidRepository
from gitboot.evaluator.cache import Cache
from gitboot.evaluator.evaluation import CommitPair, Evaluation
from gitboot.evaluator.protocol import ResultKind
from gitboot.fleet.revision import CommitSummary, Revision
from gitboot.git.history import HistoryStep
from gitboot.jsonio import build_decoder
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import Decision
from gitboot.review.decision_changes import EffectKind, ServerEffect, find_server_effects
from gitboot.text import format_rest

_NO_TREE = ""  # replaces a missing tree: before the first commit, or if the commit lacks the fleet's folder


class ChangingCommit(Struct, frozen=True, kw_only=True):
    """A commit that changed the decision of the server."""

    commit: CommitSummary
    effect: ServerEffect


class InvalidCommit(Struct, frozen=True, kw_only=True):
    """An invalid commit, which has no decisions."""

    commit: CommitSummary
    problem: str


# Evaluates a commit against another commit. Raises `InvalidRepository`.
Evaluate = Callable[[Revision, Revision | None], CommitPair]


class DecisionHistory:
    """The decision history of servers in the commits of a repository, the newest first.

    The cache has the problem of each tree, and the effects of each step between two trees. The name of a Git tree is
    the digest of its content, so these results never become outdated.
    """

    def __init__(self, commits: Sequence[HistoryStep], cache: Cache | None, evaluate: Evaluate) -> None:
        self._commits, self._cache, self._evaluate = commits, cache, evaluate
        self._pair: CommitPair | None = None  # the last evaluation

    def list_changes(self, server: str) -> Iterator[ChangingCommit | InvalidCommit]:
        """Yield the commits that changed a server's decision, the newest first, with the invalid commits in between.

        ``server`` is the current or last name of the server. gitboot follows a renamed server by its UUID. If no commit
        has the server, this yields no commit.
        """
        wanted: str | SystemUuid = server
        newer: HistoryStep | None = None  # the last valid commit, whose changes are not determined yet
        before: list[InvalidCommit] = []  # invalid commits that are newer than `newer`, not yielded yet
        after: list[InvalidCommit] = []
        pairs = zip(self._commits, (*self._commits[1:], None), strict=True)
        # The fleet of every other commit equals the fleet of its parent byte for byte.
        changing = [step for step, parent in pairs if step.tree != (parent.tree if parent else None)]
        for step in (*changing, None):
            if step is not None and (problem := self._find_problem(step, newer)) is not None:
                after.append(InvalidCommit(commit=step.commit, problem=problem))
                continue
            if newer is not None and (found := self._find_change(step, newer, wanted)) is not None:
                wanted, effect = found
                yield from before
                yield ChangingCommit(commit=newer.commit, effect=effect)
                before = []
            before, after, newer = before + after, [], step

    def _find_change(
        self, old: HistoryStep | None, new: HistoryStep, server: str | SystemUuid
    ) -> tuple[SystemUuid, ServerEffect] | None:
        step = (_find_tree(old), _find_tree(new))
        if changed := self._look_up(ResultKind.HISTORY_CHANGED, step):
            if (uuid := _find_uuid(server, changed[0])) is None:
                return None
            if effect := self._look_up(ResultKind.HISTORY_EFFECT, (*step, uuid)):
                return uuid, effect[0]
        if old is None or old.tree is None or new.tree is None:
            found = find_server_effects(self._decide_all(old), self._decide_all(new))
        else:
            pair = self._evaluate_beside(old, new)
            assert pair.base is not None  # noqa: S101 - it is the newer commit
            found = find_server_effects(
                _select_decisions(pair.head, pair.servers), _select_decisions(pair.base, pair.servers)
            )
        removed = {uuid for uuid, effect in found.items() if effect.kind is EffectKind.REMOVED}
        names = {uuid: found[uuid].server for uuid in (*sorted(found.keys() - removed), *sorted(removed))}
        self._store(ResultKind.HISTORY_EFFECT, {(*step, uuid): effect for uuid, effect in found.items()})
        self._store(ResultKind.HISTORY_CHANGED, {step: names})
        uuid = _find_uuid(server, names)
        return (uuid, found[uuid]) if uuid is not None else None

    def _find_problem(self, step: HistoryStep, newer: HistoryStep | None) -> str | None:
        """Return the problem of a commit, or None if it is valid. ``newer`` is a similar commit that is valid."""
        if known := self._look_up(ResultKind.HISTORY_PROBLEM, _find_tree(step)):
            problem: str | None = known[0]
            return problem
        problem = None
        try:
            if step.tree is not None:
                self._evaluate_beside(step, newer)
        except InvalidRepository as error:
            problem = " ".join(filter(None, (str(error.problems[0]), format_rest(len(error.problems) - 1, "problem"))))
        self._store(ResultKind.HISTORY_PROBLEM, {_find_tree(step): problem})
        return problem

    def _look_up(self, kind: ResultKind, key: object) -> list[Any]:
        """Return a list with the cached result of a key. The list is empty if the cache has no result."""
        values = self._cache.get_many(kind, [encode(key)]).values() if self._cache is not None else ()
        return [_DECODERS[kind](value) for value in values if is_history_result(kind, value)]

    def _store(self, kind: ResultKind, results: Mapping[Any, object]) -> None:
        if self._cache is not None:
            self._cache.insert_many(kind, {encode(key): encode(each) for key, each in results.items()})

    def _decide_all(self, step: HistoryStep | None) -> Mapping[str, Decision]:
        if step is None or step.tree is None:
            return {}
        known = (self._pair.head, self._pair.base) if self._pair is not None else ()
        of_it = (each for each in known if each is not None and each.revision == step.commit.revision)
        found = next(of_it, None) or self._evaluate_beside(step, None).head
        return found.decided.decisions.servers

    def _evaluate_beside(self, step: HistoryStep, newer: HistoryStep | None) -> CommitPair:
        """Evaluate a commit together with the next valid commit, so that gitboot decides their common servers only
        once.
        """
        base = newer.commit.revision if newer is not None and newer.tree is not None else None
        pair = self._pair
        if pair is None or (pair.head.revision, pair.base and pair.base.revision) != (step.commit.revision, base):
            pair = self._pair = self._evaluate(step.commit.revision, base)
        return pair


_DECODERS: Final[Mapping[ResultKind, Callable[[bytes], Any]]] = {
    ResultKind.HISTORY_PROBLEM: build_decoder(str | None),  # by tree; None: the commit is valid
    ResultKind.HISTORY_CHANGED: build_decoder(
        dict[SystemUuid, str]
    ),  # by two trees: the servers that differ, with names
    ResultKind.HISTORY_EFFECT: build_decoder(ServerEffect),  # by two trees and a server
}


def is_history_result(kind: ResultKind, value: bytes) -> bool:
    """Return whether the bytes are a value of a kind that a history stores."""
    try:
        _DECODERS[kind](value)
    except (KeyError, msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _select_decisions(commit: Evaluation, servers: Collection[str]) -> Mapping[str, Decision]:
    known = commit.decided.decisions.servers
    return {name: known[name] for name in servers if name in known}


def _find_uuid(server: str | SystemUuid, names: Mapping[SystemUuid, str]) -> SystemUuid | None:
    """Return the UUID of the server with this UUID or name. If two servers have the name, return the first.

    Servers that exist after the step come first, so a removed server matches only if no other server has the name.
    """
    if server in names:
        return SystemUuid(server)
    return next((uuid for uuid, name in names.items() if name == server), None)


def _find_tree(step: HistoryStep | None) -> str:
    return step.tree or _NO_TREE if step is not None else _NO_TREE
