"""Whether file systems have room for a tree that begins with nothing: asked before any of it is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gitboot.errors import PublishError
from gitboot.phrases import count
from gitboot.publish.changes import Publication
from gitboot.publish.durable import split
from gitboot.render.tree import Files

_ASKED: Final = 64  # servers: by their files is estimated what those of more take
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
    """Look whether there is room for the files of a publication; raises PublishError with what lacks.

    A folder counts as a file, one of several names as one, and what is written about the tree not at all. A file system
    that has no limit of files, or says none, has room for them.
    """
    needs: dict[Path, _Need] = {}
    places = {top: root / top if (root / top).is_mount() else root for top in ("boot", "ops")}
    for path, size, times in _taken(wanted):
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
    asked = names[:: max(len(names) // _ASKED, 1)]
    had, sizes = Counter[str](), dict[str, int]()
    for files in map(wanted.servers.__getitem__, asked):
        once = _once(files or {})
        had.update(once.keys())
        sizes.update(once)
    for path, size in sizes.items():
        yield path, size, len(names) / len(asked) if had[path] == 1 else 1  # what several have is of all of them
    yield from ((path, size, 1) for path, size in _once(wanted.no_servers).items() if path not in sizes)


def _once(files: Files) -> dict[str, int]:
    """The sizes of some files, of those with the same content one, and of their folders."""
    firsts = {file.sha256: path for path, file in sorted(files.items(), reverse=True)}
    found = {path: len(files[path].content) for path in firsts.values()}
    for path in files:
        while path := split(path)[0]:
            found[path] = 0
    return found
