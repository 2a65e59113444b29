"""Decision history: find the commits that changed a server's decision or a document, and describe each change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from gitboot.child_processes import encode
from gitboot.errors import InvalidRepository
from gitboot.evaluator.cache import Cache
from gitboot.evaluator.evaluation import CommitPair, Evaluation
from gitboot.evaluator.protocol import ResultKind
from gitboot.fleet.documents import Id
from gitboot.fleet.ignore import list_fleet_files
from gitboot.fleet.revision import BlobId, CommitSummary, Oversized, Revision, Snapshot
from gitboot.fleet.yaml import Value, parse
from gitboot.git.history import HistoryStep
from gitboot.jsonio import build_decoder
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import Decision
from gitboot.review.decision_changes import (
    EffectKind,
    ServerEffect,
    ValueChange,
    find_field_changes,
    find_server_effects,
)
from gitboot.text import format_omitted

_NO_TREE = ""  # stands for the tree before the first commit, or in a commit without the fleet's folder


class ChangingCommit(Struct, frozen=True, kw_only=True):
    """A commit that changed the decision for a server."""

    commit: CommitSummary
    effect: ServerEffect
    uuid: SystemUuid  # the UUID of the server


class InvalidCommit(Struct, frozen=True, kw_only=True):
    """An invalid commit, for which gitboot cannot compute decisions."""

    commit: CommitSummary
    problem: str


class DocumentChange(Struct, frozen=True, kw_only=True):
    """A commit that changed a document."""

    commit: CommitSummary
    kind: EffectKind
    path: str  # the file with the document after the commit, or before the commit if it removed the document
    # the changed fields, such as spec.rollout.percent; empty if the commit added or removed the document
    changes: tuple[ValueChange, ...]


# A function that evaluates a commit and compares it with a base commit. Raises `InvalidRepository` if the commit is
# invalid.
Evaluate = Callable[[Revision, Revision | None], CommitPair]


_DECODERS: Final[Mapping[ResultKind, Callable[[bytes], Any]]] = {
    ResultKind.HISTORY_PROBLEM: build_decoder(str | None),  # the first problem of a tree; None: the tree is valid
    # the names of the servers that differ between two trees
    ResultKind.HISTORY_CHANGED: build_decoder(dict[SystemUuid, str]),
    ResultKind.HISTORY_EFFECT: build_decoder(ServerEffect),  # the effect of a step between two trees on a server
}


class DecisionHistory:
    """A reader of a repository's history, which finds the commits that changed a server's decision, newest first.

    The cache stores the first problem of each Git tree, and the effects of each step between two trees. The id of a
    tree is a digest of its content, so these results never become outdated.
    """

    def __init__(self, commits: Sequence[HistoryStep], cache: Cache | None, evaluate: Evaluate) -> None:
        self._commits, self._cache, self._evaluate = commits, cache, evaluate
        self._pair: CommitPair | None = None  # the two commits of the last evaluation

    def list_changes(self, server: str) -> Iterator[ChangingCommit | InvalidCommit]:
        """Yield the commits that changed a server's decision, and the invalid commits between them, newest first.

        ``server`` is the current name of the server, or the last name of a removed server. gitboot recognizes a renamed
        server by its UUID. If no commit contains the server, the method yields no commits.
        """
        identity: str | SystemUuid = server
        newer: HistoryStep | None = None  # the last valid commit, whose changes gitboot has not determined yet
        pending: list[InvalidCommit] = []  # the invalid commits that are newer than `newer` and were not yielded yet
        older: list[InvalidCommit] = []
        for step in (*_select_changing_steps(self._commits), None):
            if step is not None and (problem := self._find_problem(step, newer)) is not None:
                older.append(InvalidCommit(commit=step.commit, problem=problem))
                continue
            if newer is not None and (found := self._find_change(step, newer, identity)) is not None:
                identity, effect = found
                yield from pending
                yield ChangingCommit(commit=newer.commit, effect=effect, uuid=identity)
                pending = []
            pending, older, newer = pending + older, [], step

    def _find_change(
        self, old_step: HistoryStep | None, new_step: HistoryStep, server: str | SystemUuid
    ) -> tuple[SystemUuid, ServerEffect] | None:
        step = (_get_tree_id(old_step), _get_tree_id(new_step))
        if changed := self._look_up(ResultKind.HISTORY_CHANGED, step):
            if (uuid := _find_uuid(server, changed[0])) is None:
                return None
            if effect := self._look_up(ResultKind.HISTORY_EFFECT, (*step, uuid)):
                return uuid, effect[0]
        if old_step is None or old_step.tree is None or new_step.tree is None:
            found = find_server_effects(self._get_decisions(old_step), self._get_decisions(new_step))
        else:
            pair = self._evaluate_with_base(old_step, new_step)
            assert pair.base is not None  # noqa: S101 - the base is the newer commit
            found = find_server_effects(
                _select_decisions(pair.head, pair.servers), _select_decisions(pair.base, pair.servers)
            )
        removed = {uuid for uuid, effect in found.items() if effect.kind is EffectKind.REMOVED}
        names = {uuid: found[uuid].server for uuid in (*sorted(found.keys() - removed), *sorted(removed))}
        self._store(ResultKind.HISTORY_EFFECT, {(*step, uuid): effect for uuid, effect in found.items()})
        self._store(ResultKind.HISTORY_CHANGED, {step: names})
        uuid = _find_uuid(server, names)
        return (uuid, found[uuid]) if uuid is not None else None

    def _find_problem(self, step: HistoryStep, newer_step: HistoryStep | None) -> str | None:
        """Return the first problem in a commit, or None if the commit is valid.

        ``newer_step`` is the next newer valid commit, or None if there is no such commit.
        """
        if known := self._look_up(ResultKind.HISTORY_PROBLEM, _get_tree_id(step)):
            problem: str | None = known[0]
            return problem
        problem = None
        try:
            if step.tree is not None:
                self._evaluate_with_base(step, newer_step)
        except InvalidRepository as error:
            problem = " ".join(
                filter(None, (str(error.problems[0]), format_omitted(len(error.problems) - 1, "problem")))
            )
        self._store(ResultKind.HISTORY_PROBLEM, {_get_tree_id(step): problem})
        return problem

    def _look_up(self, kind: ResultKind, key: object) -> list[Any]:
        """Return a list with the cached result for a key, or an empty list if the cache has no result."""
        values = self._cache.get_many(kind, [encode(key)]).values() if self._cache is not None else ()
        return [_DECODERS[kind](value) for value in values if is_valid_history_result(kind, value)]

    def _store(self, kind: ResultKind, results: Mapping[Any, object]) -> None:
        if self._cache is not None:
            self._cache.insert_many(kind, {encode(key): encode(each) for key, each in results.items()})

    def _get_decisions(self, step: HistoryStep | None) -> Mapping[str, Decision]:
        if step is None or step.tree is None:
            return {}
        known = (self._pair.head, self._pair.base) if self._pair is not None else ()
        matching = (each for each in known if each is not None and each.revision == step.commit.revision)
        found = next(matching, None) or self._evaluate_with_base(step, None).head
        return found.decided.decisions.servers

    def _evaluate_with_base(self, step: HistoryStep, newer_step: HistoryStep | None) -> CommitPair:
        """Evaluate a commit with the next newer valid commit as the base, to avoid repeating decisions."""
        base = newer_step.commit.revision if newer_step is not None and newer_step.tree is not None else None
        pair = self._pair
        if pair is None or (pair.head.revision, pair.base and pair.base.revision) != (step.commit.revision, base):
            pair = self._pair = self._evaluate(step.commit.revision, base)
        return pair


class _FoundDocument(NamedTuple):
    path: str
    value: Mapping[str, Value]  # the parsed content, because changes of comments, order and quotes do not count


def list_document_changes(
    commits: Sequence[HistoryStep], open_commit: Callable[[Revision, Snapshot | None], Snapshot], document: Id
) -> Iterator[DocumentChange | InvalidCommit]:
    """Yield the commits that changed a document, and the commits in which the document is unreadable, newest first.

    The other documents of a commit may be invalid. ``open_commit`` opens a commit. The second argument of
    ``open_commit`` is the snapshot of another commit that has mostly the same files.
    """
    reader = _DocumentReader(document)
    snapshot: Snapshot | None = None
    newer: tuple[CommitSummary, _FoundDocument | None] | None = None
    unreadable: list[InvalidCommit] = []
    for step in (*_select_changing_steps(commits), None):
        found: _FoundDocument | None = None
        if step is not None and step.tree is not None:
            snapshot = open_commit(step.commit.revision, snapshot)
            found, problem = reader.find(snapshot)
            if problem is not None:
                unreadable.append(InvalidCommit(commit=step.commit, problem=problem))
                continue
        if newer is not None and (change := _compare_documents(newer[0], found, newer[1])) is not None:
            yield change
        if newer is not None or found is not None:
            yield from unreadable
        unreadable, newer = [], (step.commit, found) if step is not None else None


def _compare_documents(
    commit: CommitSummary, old_document: _FoundDocument | None, new_document: _FoundDocument | None
) -> DocumentChange | None:
    if old_document is None or new_document is None:
        known = new_document or old_document
        kind = EffectKind.ADDED if old_document is None else EffectKind.REMOVED
        return DocumentChange(commit=commit, kind=kind, path=known.path, changes=()) if known is not None else None
    changes = tuple(find_field_changes("", old_document.value, new_document.value))
    return (
        DocumentChange(commit=commit, kind=EffectKind.CHANGED, path=new_document.path, changes=changes)
        if changes
        else None
    )


class _DocumentReader:
    """A reader that finds a document in snapshots.

    The reader parses a file only once, and only if the file contains the document's name.
    """

    def __init__(self, document: Id) -> None:
        self._document = document
        # The document or a problem, by file; neither: the file does not contain the document.
        self._parsed: dict[BlobId, tuple[Mapping[str, Value] | None, str | None]] = {}

    def find(self, snapshot: Snapshot) -> tuple[_FoundDocument | None, str | None]:
        """Return the document in a snapshot.

        If the document is not found, return None, and the first problem that may be the cause if there is one.
        """
        first_problem: str | None = None
        for path in list_fleet_files(snapshot).documents:
            if (blob := snapshot.blobs[path]) not in self._parsed:
                self._parsed[blob] = self._parse_file(snapshot, path, blob)
            value, problem = self._parsed[blob]
            if value is not None:
                return _FoundDocument(path, value), None
            first_problem = first_problem or problem
        return None, first_problem

    def _parse_file(self, snapshot: Snapshot, path: str, blob: BlobId) -> tuple[Mapping[str, Value] | None, str | None]:
        try:
            data = snapshot.read(blob)
        except Oversized:
            return None, None
        if self._document.name.encode() not in data or self._document.kind.encode() not in data:
            return None, None
        found = parse(data, path)
        for each in found.documents:
            metadata = each.value.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if (each.value.get("kind"), name) == self._document:
                return each.value, None
        return None, str(found.problems[0]) if found.problems else None


def is_valid_history_result(kind: ResultKind, value: bytes) -> bool:
    """Return whether a decision history stores results of this kind, and the bytes are a valid result."""
    try:
        _DECODERS[kind](value)
    except (KeyError, msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _select_changing_steps(commits: Sequence[HistoryStep]) -> list[HistoryStep]:
    """Return the steps whose fleet differs from the fleet in the parent."""
    pairs = zip(commits, (*commits[1:], None), strict=True)
    return [step for step, parent in pairs if step.tree != (parent.tree if parent is not None else None)]


def _select_decisions(commit: Evaluation, servers: Collection[str]) -> Mapping[str, Decision]:
    known = commit.decided.decisions.servers
    return {name: known[name] for name in servers if name in known}


def _find_uuid(server: str | SystemUuid, names: Mapping[SystemUuid, str]) -> SystemUuid | None:
    """Return the UUID of the server with this UUID or name, or None if there is no such server.

    If two servers have the same name, return the first.

    ``names`` lists removed servers last, so a removed server matches only if no other server has its name.
    """
    if server in names:
        return SystemUuid(server)
    return next((uuid for uuid, name in names.items() if name == server), None)


def _get_tree_id(step: HistoryStep | None) -> str:
    return (step.tree if step is not None else None) or _NO_TREE
