"""Whether file systems have room for a tree that begins with nothing: asked before any of it is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from random import Random
from typing import Final

from gitboot.errors import PublishError
from gitboot.phrases import count
from gitboot.publish.changes import Publication
from gitboot.publish.durable import split
from gitboot.render.paths import is_immutable
from gitboot.render.tree import Files

_ASKED: Final = 64  # servers, at the least: by their files is estimated what those of more take
_SURELY: Final = 0.9  # of an estimate: less is not there by accident of who was asked
_MIB: Final = 2**20


@dataclass(slots=True)
class _Need:
    """What files take of a file system; of many servers, as far as that follows from some."""

    inodes: float = 0
    size: float = 0  # bytes
    is_estimate: bool = False

    def check(self, place: Path) -> None:
        found = os.statvfs(place)
        is_root = os.geteuid() == 0  # for whom some is kept free
        free_bytes = (found.f_bfree if is_root else found.f_bavail) * found.f_frsize
        free = found.f_ffree if is_root else found.f_favail
        surely, about = (_SURELY, "about ") if self.is_estimate else (1, "")
        if found.f_files and self.inodes * surely > free:
            raise PublishError(
                f"{place}: expected room for {about}{count(round(self.inodes), 'file')}, "
                f"and its file system has it for {free:,} "
                "(choose one with more inodes: mkfs.ext4 -N, mount -o nr_inodes of a tmpfs)"
            )
        if self.size * surely > free_bytes:
            has = f"its file system has {free_bytes / _MIB:,.1f} MiB"
            raise PublishError(
                f"{place}: expected room for {about}{self.size / _MIB:,.1f} MiB, and {has} (free some space)"
            )


def check_room(root: Path, wanted: Publication) -> None:
    """Look whether there is room for all files of a publication; raises PublishError with what lacks.

    A folder counts as a file, one of several names as one, and what is written about the tree not at all. A file system
    that has no limit of files, or says none, has room for them.
    """
    _check(root, _taken(wanted))


def check_room_for(root: Path, files: Mapping[str, bytes]) -> None:
    """The same for these files, whose folders may stand."""
    _check(root, ((path, len(content), 1) for path, content in files.items()))


def _check(root: Path, taken: Iterable[tuple[str, int, float]]) -> None:
    needs: dict[Path, _Need] = {}
    places = {top: root / top if (root / top).is_mount() else root for top in ("boot", "ops")}
    for path, size, times in taken:
        place = places[path.partition("/")[0]]
        need = needs.setdefault(place, _Need())
        need.inodes += times
        need.size += times * size
        need.is_estimate |= times != 1
    for place, need in needs.items():
        need.check(place)


def _taken(wanted: Publication) -> Iterator[tuple[str, int, float]]:
    """Files and folders: path, size in bytes, and for how many such it stands."""
    names = sorted(wanted.servers)
    number = min(max(isqrt(2 * len(names)) + 1, _ASKED), len(names))
    had, sizes = Counter[str](), dict[str, int]()
    for files in map(wanted.servers.__getitem__, Random(0).sample(names, number)):  # noqa: S311 - guards nothing
        once = _once(files or {})
        had.update(once.keys())
        sizes.update(once)
    own = len(names) / number if number else 1
    of_some = _unseen(Counter(times for path, times in had.items() if is_immutable(path)), own)
    for path, size in sizes.items():
        yield path, size, (of_some if is_immutable(path) else own) if had[path] == 1 else 1
    yield from ((path, size, 1) for path, size in _once(wanted.no_servers).items() if path not in sizes)


def _unseen(seen: Mapping[int, int], most: float) -> float:
    """For how many contents each of those stands that one server alone was found to have, at the most for ``most``.

    ``seen`` has how many contents were found at so many servers. Those of one server and those that groups of servers
    share look alike in a sample; how many there are follows from how many were found once and how many twice: Chao's
    estimate of 1984.
    """
    once, twice = seen.get(1, 0), max(seen.get(2, 0), 1)
    return min(most, 1 + once / (2 * twice))


def _once(files: Files) -> dict[str, int]:
    """The sizes of some files, of those with the same content one, and of their folders."""
    firsts = {file.sha256: path for path, file in sorted(files.items(), reverse=True)}
    found = {path: len(files[path].content) for path in firsts.values()}
    for path in files:
        while path := split(path)[0]:
            found[path] = 0
    return found
