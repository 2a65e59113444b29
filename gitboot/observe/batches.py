"""Parts of a spool's files, as they are sent to the ledger that several hosts share.

gitboot 2fefe59 also wrote such batches into the spool of an instance, as files of their own. Their names say whose
lines they hold and where those lines stood, so that a spool of that version is read to its end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

MOST_BYTES: Final = 512 * 1024  # of one batch
SUFFIX: Final = ".jsonl"
_FORWARDED: Final = re.compile(r"([0-9a-f]{32}\.[0-9]{1,10}-[0-9a-f]{16})\.([0-9]{12})-[0-9]{12}" + re.escape(SUFFIX))


class Writer(NamedTuple):
    """Whose lines they are: a file of a spool, without its suffix."""

    spool: str  # its identity
    file: str


class ForwardedBatch(NamedTuple):
    """Whole lines of one writer, and where they stand in its file."""

    writer: Writer
    begin: int
    lines: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.lines)


def next_batch(path: Path, writer: Writer, begin: int) -> ForwardedBatch:
    """Return the whole lines of a writer's file from ``begin`` on, as many as a batch may have; none at its end."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            found = file.read(MOST_BYTES)
    except FileNotFoundError:
        found = b""
    return ForwardedBatch(writer, begin, found[: found.rfind(b"\n") + 1])


def writer_of(name: str) -> tuple[str, int]:
    """Return whose lines a file of a spool holds, and at which byte of that writer's own file they begin."""
    found = _FORWARDED.fullmatch(name)
    return (found[1], int(found[2])) if found is not None else (name, 0)
