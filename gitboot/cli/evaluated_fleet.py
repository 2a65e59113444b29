"""The fleet that a command is about, loaded or evaluated within the limits for a commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gitboot.cli.evaluator_process import evaluation_limits, evaluation_workers, results_cache
from gitboot.errors import InvalidRepository
from gitboot.git.history import History
from gitboot.load.repository import FleetRepository
from gitboot.load.snapshot import Revision, Snapshot
from gitboot.load.whole import load
from gitboot.source.snapshot import open_snapshot

if TYPE_CHECKING:
    from gitboot.evaluator.evaluation import CommitPair, Evaluation, Evaluator
    from gitboot.evaluator.remote_cache import Cache

_BATCH: Final = 1000  # results that gitboot encodes at once
WORTH: Final = 500  # files of a fleet: gitboot evaluates fewer sooner than it looks them up


def load_fleet(path: Path, rev: str | None) -> FleetRepository:
    """Load the fleet at a path without its decisions. Raises `InvalidRepository`."""
    with evaluation_limits() as begun:
        snapshot = open_snapshot(path, rev)
        begun(len(snapshot.blobs))
        return load(snapshot)


def evaluate_fleet(path: Path, rev: str | None, now: datetime) -> Evaluation:
    """Evaluate the fleet at a path for an instant. Raises `InvalidRepository`."""
    with evaluation_limits() as begun:
        return FleetEvaluator(now).evaluate(open_snapshot(path, rev), begun).head


class FleetEvaluator:
    """Evaluates snapshots of one fleet for an instant. What two snapshots have in common is evaluated once."""

    def __init__(self, now: datetime) -> None:
        from gitboot.evaluator.evaluation import Evaluator  # only here: `load_fleet` needs no templates

        self.now = now
        self._snapshots: dict[Revision, Snapshot] = {}
        self._last: Revision | None = None  # that was valid
        self._evaluator = Evaluator(self._snapshot, workers=evaluation_workers())

    def evaluate(self, snapshot: Snapshot, begun: Callable[[int], None], *, is_base: bool = False) -> CommitPair:
        """Evaluate a snapshot beside the last valid one. Raises `InvalidRepository`.

        ``begun`` is called with the number of its files. ``is_base``: an earlier version of gitboot may have accepted
        the snapshot.
        """
        from gitboot.resolve.server_decision import check_acceptable

        begun(len(snapshot.blobs))
        self._snapshots[snapshot.revision] = snapshot
        self._evaluator.results = cache = results_cache() if len(snapshot.blobs) >= WORTH else None
        try:
            found = self._evaluator.evaluate(snapshot.revision, self._last)
        except InvalidRepository as error:
            raise error.at(self.now) from None
        self._last = snapshot.revision
        _store(self._evaluator, cache)
        if not is_base:
            check_acceptable(found.head.decided.decisions, found.head.decided.repository.fleet.spec, self.now)
        return found

    def _snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        del previous  # the evaluator compares the blobs
        return self._snapshots[revision]


class HistoryEvaluator:
    """Evaluates commits of a history beside each other."""

    def __init__(self, history: History, begun: Callable[[int], None]) -> None:
        from gitboot.evaluator.evaluation import Evaluator

        self._cache = results_cache()
        self._evaluator = Evaluator(history.snapshot, begun=begun, results=self._cache, workers=evaluation_workers())

    def __call__(self, revision: Revision, base: Revision | None) -> CommitPair:
        """Evaluate a commit beside ``base``. Raises `InvalidRepository`."""
        found = self._evaluator.evaluate(revision, base)
        if base is None and len(found.head.loaded.snapshot.blobs) >= WORTH:
            _store(self._evaluator, self._cache)  # the next command most likely reads this commit, too
        return found


def _store(evaluator: Evaluator, cache: Cache | None) -> None:
    """Store what the cache lacks of the last commits."""
    if cache is not None:
        for kind, values in evaluator.unstored(_BATCH):
            cache.insert_many(kind, values)
