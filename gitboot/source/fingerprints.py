"""By what the files of a work tree are known to be as they were: kept for the next look at them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gitboot.caches import Unusable, read_cache, write_cache
from gitboot.decoders import decoder
from gitboot.frames import encode
from gitboot.source.worktree import Mark, WorkFiles

_GRANULE_NS: Final = 2_000_000_000  # no file system's clock is coarser
_SHARE: Final = 8  # one file in so many read anew: then the next look is better off with new marks


def recall(files: WorkFiles, path: Path, key: bytes) -> None:
    """Let files that are as `keep` saw them be known without being read."""
    found = read_cache(path, key)
    if not isinstance(found, Unusable):
        try:
            files.recall(_decode(found))
        except msgspec.DecodeError:  # they are read, and new marks made
            return


def keep(files: WorkFiles, path: Path, key: bytes, begun_ns: int) -> None:
    """Keep what files were known by, where that is worth it; ``begun_ns`` is the clock before the first was read.

    One that was written just then may be written once more without any sign of it, so it is read again.
    """
    if files.anew * _SHARE > len(files):
        marks = {name: mark for name, mark in files.marks() if mark.last_ns + _GRANULE_NS < begun_ns}
        write_cache(path, key, encode(marks))


_decode: Final[Callable[[bytes], dict[str, Mark]]] = decoder(dict[str, Mark])
