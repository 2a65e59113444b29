"""Snapshots of one fleet, decided one after the other, each by what is known of the one before and by earlier commands.

What is known of a large fleet is kept below $XDG_CACHE_HOME, under a key that lies below $XDG_STATE_HOME: a cache that
comes from elsewhere, as from a stranger's pull request by way of CI, does not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import click

from gitboot.caches import key_at
from gitboot.cli.bounded import workers
from gitboot.cli.inputs import kept, stated
from gitboot.evaluate.evaluator import Basis, CommitPair, Evaluator
from gitboot.evaluate.shelf import WORTH, Shelf
from gitboot.load import Revision, Snapshot
from gitboot.source import History


class Deciding:
    """Decides snapshots of the fleet at ``path``; without one nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._snapshots: dict[Revision, Snapshot] = {}
        self._last: Revision | None = None  # that holds together
        self._shelf: Shelf | None = None
        self._evaluator = Evaluator(self._snapshot, kept=self._kept, workers=workers())

    def decide(self, snapshot: Snapshot, begun: Callable[[int], None]) -> CommitPair:
        """What a snapshot decides, beside the last one that held together; raises `InvalidRepository`.

        ``begun`` is told how many files it has.
        """
        begun(len(snapshot.blobs))
        self._snapshots[snapshot.revision] = snapshot
        found = self._evaluator.evaluate(snapshot.revision, self._last)
        self._last = snapshot.revision
        if self._shelf is not None:
            self._shelf.put(self._evaluator)
        return found

    def _snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        del previous  # what differs is told by the files themselves
        return self._snapshots[revision]

    def _kept(self, snapshot: Snapshot) -> Basis | None:
        self._shelf = _shelf(self._path, snapshot) if self._path is not None else None
        return self._shelf.take(snapshot.read) if self._shelf is not None else None


class DecidingHistory:
    """Decides commits of the history of the fleet at ``path`` beside each other."""

    def __init__(self, path: Path, history: History, begun: Callable[[int], None]) -> None:
        self._path = path
        self._shelf: Shelf | None = None
        self._evaluator = Evaluator(history.snapshot, begun=begun, kept=self._kept, workers=workers())

    def __call__(self, revision: Revision, base: Revision | None) -> CommitPair:
        """What a commit decides, beside ``base``; raises `InvalidRepository`."""
        found = self._evaluator.evaluate(revision, base)
        if base is None and self._shelf is not None:  # the first: it is nearest to what the next command looks at
            self._shelf.put(self._evaluator)
        return found

    def _kept(self, snapshot: Snapshot) -> Basis | None:
        self._shelf = _shelf(self._path, snapshot)
        return self._shelf.take(snapshot.read) if self._shelf is not None else None


def _shelf(path: Path, snapshot: Snapshot) -> Shelf | None:
    """Where what is known of the fleet at ``path`` is kept; None where it is not worth it, or cannot be."""
    if len(snapshot.blobs) < WORTH:
        return None
    name = sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    file, key_file = kept(f"fleets/{name}.snapshot"), stated("cache.key")
    if file is None or key_file is None or (key := key_at(key_file)) is None:
        return None
    return Shelf(file, key, lambda text: click.echo(f"gitboot: {text}", err=True))
