"""Blobs that a clone lacks on purpose, with their sizes: what is so large is no part of any fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gitboot.fleet.revision import MAX_FILE_BYTES

_NAME: Final = "left-out"
_LINE: Final = re.compile(r"^([0-9a-f]{40}) ([0-9]+)$", re.MULTILINE)


def is_left_out(size: int) -> bool:
    """Whether a blob of so many bytes is; the commit that has it is told so when it is read."""
    return size > MAX_FILE_BYTES


def left_out(repository: Path) -> dict[str, int]:
    """The sizes of those that a repository's own files name, by their ids; nothing in one that is no clone."""
    try:
        text = (repository / _NAME).read_text()
    except FileNotFoundError:
        return {}
    return {blob: int(size) for blob, size in _LINE.findall(text)}


def note_left_out(repository: Path, sizes: Mapping[str, int]) -> None:
    """Add some. A line that a crash has cut is none; the clone that lacks it counts as damaged, and is made anew."""
    known = left_out(repository)
    with (repository / _NAME).open("a") as file:
        file.writelines(f"{blob} {size}\n" for blob, size in sorted(sizes.items()) if blob not in known)
