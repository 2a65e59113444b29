"""What endpoints leave in a spool besides fetches, carried to that of the instance: reports, and unknown machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.files import write_whole
from gitboot.observe import asked, reports

MOST_BYTES: Final = asked.MOST_BYTES
_MOST_FILES: Final = 256  # of other hosts
_TAKEN: Final = asked.SUFFIX  # by the instance, which deletes it
_NAME: Final = re.compile(rf"[0-9]{{1,10}}-[0-9a-f]{{16}}(?:{re.escape(_TAKEN)}|{re.escape(reports.SUFFIX)})")
_SPOOL: Final = re.compile(r"[0-9a-f]{32}")


class Left(NamedTuple):
    """A file that an endpoint has left, and when."""

    name: str
    changed: int  # in nanoseconds, by whatever clock: another number is another content
    content: bytes

    @property
    def is_taken(self) -> bool:
        """Whether it is deleted when it has arrived, as the instance does, or stays as long as its endpoint."""
        return self.name.endswith(_TAKEN)


def left_in(folder: Path) -> Iterator[Left]:
    """What there is; of a file that goes meanwhile nothing."""
    for path in sorted(folder.iterdir()):
        if _NAME.fullmatch(path.name) is not None:
            with suppress(FileNotFoundError):
                yield Left(path.name, path.stat().st_mtime_ns, path.read_bytes())


def accept(folder: Path, spool: str, name: str, content: bytes) -> bool:
    """Leave it in a spool as that of a foreign one; whether there was room for it.

    A report takes the place of the one before, an empty one its own; of unknown machines the instance has to take
    what was left before. Raises OSError, and ValueError for a name that no endpoint gives.
    """
    if _SPOOL.fullmatch(spool) is None or _NAME.fullmatch(name) is None:
        raise ValueError(f"{spool}/{name} is nothing that an endpoint leaves")
    path = folder / f"{spool}.{name}"
    if not content:
        path.unlink(missing_ok=True)
        return True
    foreign = sum(_SPOOL.fullmatch(each.name.partition(".")[0]) is not None for each in folder.glob(f"*{path.suffix}"))
    if (path.exists() and name.endswith(_TAKEN)) or (foreign >= _MOST_FILES and not path.exists()):
        return False
    write_whole(path, content, mode=0o640)
    return True
