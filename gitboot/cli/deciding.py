"""Snapshots of one fleet, decided one after the other, each by what is known of the one before and by the cache."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from gitboot.cli.bounded import user_cache, workers
from gitboot.disk_cache import DiskCache
from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import CommitPair, Evaluator
from gitboot.load import Revision, Snapshot
from gitboot.resolve.decisions import check_acceptable
from gitboot.source import History

_BATCH: Final = 1000  # results that gitboot encodes at once
WORTH: Final = 500  # files of a fleet: gitboot evaluates fewer sooner than it looks them up


class Deciding:
    """Decides snapshots of the fleet at ``path``, and judges them at an instant; without a path nothing is kept."""

    def __init__(self, path: Path | None, now: datetime) -> None:
        self.now = now
        self._snapshots: dict[Revision, Snapshot] = {}
        self._last: Revision | None = None  # that holds together
        self._cache = user_cache() if path is not None else None
        self._evaluator = Evaluator(self._snapshot, workers=workers())

    def decide(self, snapshot: Snapshot, begun: Callable[[int], None], *, is_base: bool = False) -> CommitPair:
        """What a snapshot decides, beside the last one that held together; raises `InvalidRepository`.

        ``begun`` is told how many files it has. ``is_base``: an earlier version of gitboot may have accepted it.
        """
        begun(len(snapshot.blobs))
        self._snapshots[snapshot.revision] = snapshot
        self._evaluator.results = self._cache if len(snapshot.blobs) >= WORTH else None
        try:
            found = self._evaluator.evaluate(snapshot.revision, self._last)
        except InvalidRepository as error:
            raise error.at(self.now) from None
        self._last = snapshot.revision
        _store(self._evaluator, found, self._cache)
        if not is_base:
            check_acceptable(found.head.decided.decisions, found.head.decided.repository.fleet.spec, self.now)
        return found

    def _snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        del previous  # what differs is told by the files themselves
        return self._snapshots[revision]


class DecidingHistory:
    """Decides commits of a history beside each other."""

    def __init__(self, history: History, cache: DiskCache, begun: Callable[[int], None]) -> None:
        self._cache = cache
        self._evaluator = Evaluator(history.snapshot, begun=begun, results=cache, workers=workers())

    def __call__(self, revision: Revision, base: Revision | None) -> CommitPair:
        """What a commit decides, beside ``base``; raises `InvalidRepository`."""
        found = self._evaluator.evaluate(revision, base)
        if base is None:  # the first: the next command most likely looks at it, too
            _store(self._evaluator, found, self._cache)
        return found


def _store(evaluator: Evaluator, found: CommitPair, cache: DiskCache | None) -> None:
    """Put the results of a commit into the cache, if it is worth that."""
    if cache is None or len(found.head.loaded.snapshot.blobs) < WORTH:
        return
    for kind, values in evaluator.unstored(_BATCH):
        cache.insert_many(kind, values)
