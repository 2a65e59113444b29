"""Fetches that endpoints on other hosts forward: each batch is a file of the instance's spool, taken in exactly once.

A batch is part of one file of a foreign spool. Its own file's name says which, and from where to where, so that one
that comes twice is known for as long as that file is there; when it goes, its end is noted beside the spool first.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from gitboot.canonical import canonical
from gitboot.files import write_whole

MOST_BYTES: Final = 512 * 1024  # of one batch
SUFFIX: Final = ".jsonl"
_ASIDE: Final = ".forwarded"
_NAME: Final = re.compile(r"([0-9a-f]{32})\.([0-9]{1,10}-[0-9a-f]{16})\.([0-9]{12})-([0-9]{12})" + re.escape(SUFFIX))
_WRITER: Final = re.compile(r"([0-9a-f]{32})/([0-9]{1,10}-[0-9a-f]{16})")
_LAST_PLACE: Final = 10**12 - 1


class Writer(NamedTuple):
    """Whose lines they are: a file of a foreign spool, without its suffix."""

    spool: str  # its identity
    file: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """``SPOOL/FILE`` as `str` writes it; ValueError for anything else."""
        if (found := _WRITER.fullmatch(text)) is None:
            raise ValueError(f"{text!r} is no file of a spool")
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return f"{self.spool}/{self.file}"


class ForwardedBatch(NamedTuple):
    """Whole lines of one writer, and where they stand in its file."""

    writer: Writer
    begin: int
    lines: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.lines)

    @property
    def name(self) -> str:
        return f"{self.writer.spool}.{self.writer.file}.{self.begin:012d}-{self.end:012d}{SUFFIX}"


def next_batch(path: Path, writer: Writer, begin: int) -> ForwardedBatch:
    """What stands whole in a writer's file from a place on, as much as goes into a batch; at its end nothing."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            found = file.read(MOST_BYTES)
    except FileNotFoundError:
        found = b""
    return ForwardedBatch(writer, begin, found[: found.rfind(b"\n") + 1])


def accept(folder: Path, batch: ForwardedBatch, others: Collection[str] = ()) -> int:
    """Write a batch into a spool, durably, if it is the next of its writer; the place from which the next has to be.

    A batch that was there before changes nothing, nor does one that leaves something out: the place says what is
    missing. ``others`` are the files that its spool has besides; of one that it has no more nothing is kept. Raises
    OSError where it could not be written, and ValueError for places that no file has.
    """
    if not 0 <= batch.begin <= batch.end <= _LAST_PLACE:
        raise ValueError(f"{batch.begin} is no place in a file of a spool")
    with _held(folder, batch.writer.spool) as noted:
        place = _place(folder, batch.writer, noted)
        if batch.begin != place or not batch.lines:
            return place
        write_whole(folder / batch.name, batch.lines, mode=0o640)
        there = {*others, batch.writer.file}
        _note(folder, batch.writer.spool, {file: noted[file] for file in noted if file in there}, noted)
        return batch.end


def note(folder: Path, name: str) -> None:
    """Remember how far a writer has come whose batch of this name goes; of any other file nothing."""
    if (found := _NAME.fullmatch(name)) is not None:
        spool, file, end = found[1], found[2], int(found[4])
        with _held(folder, spool) as noted:
            _note(folder, spool, {**noted, file: max(end, noted.get(file, 0))}, noted)


def writer_of(name: str) -> tuple[str, int]:
    """Whose lines a file of a spool holds, and where they begin in that writer's own file."""
    found = _NAME.fullmatch(name)
    return (f"{found[1]}.{found[2]}", int(found[3])) if found is not None else (name, 0)


def _place(folder: Path, writer: Writer, noted: dict[str, int]) -> int:
    """How far a writer has come."""
    ends = [0, noted.get(writer.file, 0)]
    for path in folder.glob(f"{writer.spool}.{writer.file}.*{SUFFIX}"):
        if (found := _NAME.fullmatch(path.name)) is not None:
            ends.append(int(found[4]))
    return max(ends)


@contextmanager
def _held(folder: Path, spool: str) -> Iterator[dict[str, int]]:
    """How far the writers of a spool have come, by file, while no other process may change it."""
    aside = folder / _ASIDE
    aside.mkdir(mode=0o750, exist_ok=True)
    fd = os.open(aside / f"{spool}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield _noted(aside / spool)
    finally:
        os.close(fd)


def _noted(path: Path) -> dict[str, int]:
    with suppress(FileNotFoundError, ValueError):
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return {file: place for file, place in found.items() if isinstance(place, int)}
    return {}


def _note(folder: Path, spool: str, places: dict[str, int], before: dict[str, int]) -> None:
    if places != before:
        write_whole(folder / _ASIDE / spool, canonical(places) + b"\n", mode=0o640)
