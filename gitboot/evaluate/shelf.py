"""Where what was found out about a fleet is kept for the next process: a file that can be deleted at any time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gitboot.caches import Unusable
from gitboot.evaluate.evaluator import Basis, Evaluator
from gitboot.evaluate.kept import from_sections, sections_of
from gitboot.load import BlobId
from gitboot.sections import Sections, Spoilt, keep_sections

KEPT: Final = "evaluated.snapshot"  # in STATE
WORTH: Final = 500  # files of a fleet: to read fewer anew takes less than to look whether this file counts
MUCH: Final = 20_000  # servers that were decided at once: to hold them takes hundreds of megabytes
_SHARE: Final = 8  # one server in so many decided anew: then the next process is better off with a new file


class Shelf:
    """A file with the basis of one commit, of which a fleet's next one is evaluated.

    Whatever is wrong with it, it is done without, and ``warn`` is told, unless it is only of another version.
    """

    def __init__(self, path: Path, key: bytes, warn: Callable[[str], None]) -> None:
        self._path, self._key, self._warn = path, key, warn
        self._since = 0  # how many servers were decided for since the file was written or read

    @classmethod
    def of_instance(cls, state: Path, warn: Callable[[str], None]) -> Shelf:
        """The one in a state directory; it has no key that is of any use: who writes there can do anything."""
        return cls(state / KEPT, b"", warn)

    def take(self, read: Callable[[BlobId], bytes]) -> Basis | None:
        """What lies there; ``read`` reads the fleet's files."""
        with suppress(Spoilt):
            if (found := Sections.open(self._path, self._key, self._unusable)) is not None:
                return from_sections(found, read)
        return None

    def _unusable(self, why: Unusable) -> None:
        self._warn(f"what is kept in {self._path} does not count, and is found out anew: {why.value}")

    def put(self, evaluator: Evaluator) -> None:
        """Keep what the evaluator has found out last, where that is worth it."""
        self._since += evaluator.worked_on
        foundation = evaluator.foundation
        if len(foundation.loaded.snapshot.blobs) < WORTH or self._since * _SHARE <= len(foundation.decided.of):
            return
        keep_sections(self._path, self._key, *sections_of(evaluator.basis()))
        self._since = 0

    def relieve(self, evaluator: Evaluator, read: Callable[[BlobId], bytes], *, has_told_all: bool) -> None:
        """Let the evaluator go on from what lies here, where that is of its last commit, and holding it takes much.

        Then it has in memory what is asked for, as after a start. It has more where it ``has_told_all``, or decided
        for many.
        """
        if len(evaluator.foundation.decided.of) < MUCH or not (has_told_all or evaluator.worked_on >= MUCH):
            return
        if (kept := self.take(read)) is not None and kept.foundation.revision == evaluator.foundation.revision:
            evaluator.let_go()
