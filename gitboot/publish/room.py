"""Whether file systems have room for a tree that begins with nothing: asked before any of it is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gitboot.errors import PublishError
from gitboot.phrases import count

_MIB: Final = 2**20


def check_room(root: Path, sizes: Mapping[str, int]) -> None:
    """Look whether there is room for files of these sizes, by path; raises PublishError with what lacks.

    What a folder takes counts as a file. A file system that has no limit of files, or says none, has room for them.
    """
    tops: dict[str, dict[str, int]] = {}
    for path, size in sizes.items():
        tops.setdefault(path.partition("/")[0], {})[path] = size
    file_systems: dict[int, tuple[Path, dict[str, int]]] = {}
    for top, below in tops.items():
        place = root / top if (root / top).is_dir() else root
        file_systems.setdefault(place.stat().st_dev, (place, {}))[1].update(below)
    for place, below in file_systems.values():
        _check_one(place, below)


def _check_one(place: Path, sizes: Mapping[str, int]) -> None:
    found = os.statvfs(place)
    is_root = os.geteuid() == 0  # for whom some is kept free
    free_bytes = (found.f_bfree if is_root else found.f_bavail) * found.f_frsize
    needed = len(sizes) + len({path.rpartition("/")[0] for path in sizes})
    free = found.f_ffree if is_root else found.f_favail
    if found.f_files and needed > free:
        raise PublishError(
            f"{place}: expected room for {count(needed, 'file')}, and its file system has it for {free:,} "
            "(choose one with more inodes: mkfs.ext4 -N, mount -o nr_inodes of a tmpfs)"
        )
    if (total := sum(sizes.values())) > free_bytes:
        has = f"its file system has {free_bytes / _MIB:,.1f} MiB"
        raise PublishError(f"{place}: expected room for {total / _MIB:,.1f} MiB, and {has} (free some space)")
