"""Snapshots of one fleet, decided one after the other, each by what is known of the one before and by earlier commands.

What is known of a large fleet is kept below $XDG_CACHE_HOME, under a key that lies below $XDG_STATE_HOME: a cache that
comes from elsewhere, as from a stranger's pull request by way of CI, does not count.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import click

from gitboot.caches import key_at
from gitboot.cli.inputs import kept, stated
from gitboot.evaluate.evaluator import Basis, CommitPair, Evaluator
from gitboot.evaluate.shelf import WORTH, Shelf
from gitboot.load import Revision, Snapshot
from gitboot.resolve.decide import Decided


class Deciding:
    """Decides snapshots of the fleet at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._snapshots: dict[Revision, Snapshot] = {}
        self._last: Revision | None = None  # that holds together
        self._shelf: Shelf | None = None
        self._evaluator = Evaluator(self._snapshot, kept=self._kept)

    def decide(self, snapshot: Snapshot, begun: Callable[[int], None]) -> Decided:
        """What a snapshot decides; raises `InvalidRepository`. ``begun`` is told how many files it has."""
        return self.compare(snapshot, begun).head.decided

    def compare(self, snapshot: Snapshot, begun: Callable[[int], None]) -> CommitPair:
        """The same beside the one before, if that held together."""
        gc.disable()  # a fleet is loaded once and all of it kept: collecting would only look at it again and again
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

    def _kept(self) -> Basis | None:
        snapshot = self._snapshots[next(reversed(self._snapshots))]
        name = sha256(os.fsencode(self._path.resolve())).hexdigest()[:32]
        file, key_file = kept(f"fleets/{name}.snapshot"), stated("cache.key")
        if len(snapshot.blobs) < WORTH or file is None or key_file is None or (key := key_at(key_file)) is None:
            return None
        self._shelf = Shelf(file, key, lambda text: click.echo(f"gitboot: {text}", err=True))
        return self._shelf.take(snapshot.read)
