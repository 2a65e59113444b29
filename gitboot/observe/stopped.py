"""A person's word that boots are stopped, where endpoints read it with each request, with an instance or without.

It lies beside the tree, in ``ops/``, and in the spool: an endpoint obeys either, and what copies the tree copies it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from gitboot.files import write_whole
from gitboot.jsonio import canonical, format_instant
from gitboot.status.conditions import remedy
from gitboot.stoppage import Stoppage

WORD: Final = "stopped.json"


def folders(output: Path, spool: Path | None) -> tuple[Path, ...]:
    """Where the word is read and left for the endpoints of a tree."""
    return (output / "ops",) if spool is None else (output / "ops", spool)


class Stopped(NamedTuple):
    """What is stopped, and since when."""

    stoppage: Stoppage
    at: datetime


def say(folder: Path, stoppage: Stoppage, at: datetime) -> None:
    """Leave the word in ``folder``, durably, in place of one that is there; raises OSError.

    Whoever may read what else is there may read it, whoever has left it.
    """
    facts = {**stoppage._asdict(), "at": format_instant(at)}
    write_whole(folder / WORD, canonical(facts) + b"\n", mode=0o644)


def take_back(folder: Path) -> None:
    """Take the word away again, whoever has left it; raises OSError where one goes on standing."""
    (folder / WORD).unlink(missing_ok=True)


class Words:
    """The words in some folders, each read again where it has changed."""

    def __init__(self, *folders: Path) -> None:
        self._paths = tuple(folder / WORD for folder in folders)
        self._read: dict[Path, tuple[tuple[int, int], Stopped]] = {}  # by inode and nanoseconds since 1970

    @property
    def now(self) -> Stopped | None:
        """The word that stops most; None: nothing is stopped. One that cannot be read stops what writes disks."""
        found = [each for each in map(self._look, self._paths) if each is not None]
        return max(found, key=lambda each: each.stoppage.everything, default=None)

    def _look(self, path: Path) -> Stopped | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        signature = stat.st_ino, stat.st_mtime_ns
        if path not in self._read or self._read[path][0] != signature:
            self._read[path] = signature, _parsed(path, datetime.fromtimestamp(stat.st_mtime).astimezone())
        return self._read[path][1]


def _parsed(path: Path, at: datetime) -> Stopped:
    with suppress(OSError, ValueError, RecursionError):
        match json.loads(path.read_bytes()):
            case {"who": str(who), "reason": str(reason), "everything": bool(everything), "at": str(said)}:
                return Stopped(Stoppage(who, reason, everything), datetime.fromisoformat(said))
    return Stopped(Stoppage("somebody", f"{path} cannot be read", everything=False), at)


def with_stop(conditions: Iterable[Mapping[str, Any]], stopped: Stopped | None) -> list[dict[str, Any]]:
    """An instance's conditions, as it has left them, with what was stopped since."""
    found = [dict(each) for each in conditions]
    if stopped is None or any((each["type"], each["status"]) == (_TYPE, False) for each in found):
        return found
    facts = {
        "type": _TYPE,
        "status": False,
        "reason": "Stopped",
        "message": str(stopped.stoppage),
        "since": format_instant(stopped.at),
        "remedy": remedy(_TYPE, "Stopped"),
    }
    return sorted([*(each for each in found if each["type"] != _TYPE), facts], key=lambda each: str(each["type"]))


_TYPE: Final = "BootsOffered"
