"""Stop file: a file that tells the endpoints of a tree to stop installations or all boots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from gitboot.files import write_atomically
from gitboot.jsonio import encode_canonical, format_instant
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.status.conditions import find_remedy

STOP_FILE: Final = "stopped.json"
_TYPE: Final = "InstallsAllowed"  # the type of the condition that a stop makes false


def list_stop_folders(output: Path, spool: Path | None) -> tuple[Path, ...]:
    """Return the folders in which a tree's endpoints look for the stop file."""
    return (output / "ops",) if spool is None else (output / "ops", spool)


class StopNotice(NamedTuple):
    """The content of a stop file."""

    stoppage: StopOrder
    at: datetime  # when the stop was ordered


def write_stop_file(folder: Path, stoppage: StopOrder, at: datetime) -> None:
    """Durably write the stop file to ``folder``, and replace an existing stop file. Raises OSError if this fails.

    Every user who can read the folder can read the file.
    """
    content = encode_canonical({**stoppage._asdict(), "at": format_instant(at)}) + b"\n"
    write_atomically(folder / STOP_FILE, content, mode=0o644)


def remove_stop_file(folder: Path) -> None:
    """Remove the stop file if it exists. Raises OSError if it cannot be removed."""
    (folder / STOP_FILE).unlink(missing_ok=True)


class StopReader:
    """Reads the stop files in several folders. A file is read again only after it has changed."""

    def __init__(self, *folders: Path) -> None:
        self._paths = tuple(folder / STOP_FILE for folder in folders)
        # the last content of each file, with the file's inode and its mtime in nanoseconds
        self._read: dict[Path, tuple[tuple[int, int], StopNotice]] = {}

    @property
    def current(self) -> StopNotice | None:
        """The stop notice in the folders, or None if there is no stop file. A stop of everything takes precedence."""
        notices = filter(None, map(self._read_file, self._paths))
        return max(notices, key=lambda notice: notice.stoppage.everything, default=None)

    def _read_file(self, path: Path) -> StopNotice | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        signature = stat.st_ino, stat.st_mtime_ns
        if path not in self._read or self._read[path][0] != signature:
            self._read[path] = signature, _parse_stop_file(path, datetime.fromtimestamp(stat.st_mtime).astimezone())
        return self._read[path][1]


def _parse_stop_file(path: Path, at: datetime) -> StopNotice:
    """Parse a stop file. An unreadable file, which was written at ``at``, stops installations, too."""
    with suppress(OSError, ValueError, RecursionError):
        match json.loads(path.read_bytes()):
            case {"who": str(who), "reason": str(reason), "everything": bool(everything), "at": str(ordered_at)}:
                return StopNotice(StopOrder(who, reason, everything), datetime.fromisoformat(ordered_at))
    return StopNotice(StopOrder("somebody", f"{path} cannot be read", everything=False), at)


def add_stop_condition(conditions: Iterable[Mapping[str, Any]], stop: StopNotice | None) -> list[dict[str, Any]]:
    """Return an instance's conditions, updated for a stop that was ordered after the instance wrote them."""
    found = [dict(condition) for condition in conditions]
    if stop is None or any((condition["type"], condition["status"]) == (_TYPE, False) for condition in found):
        return found
    stopped = {
        "type": _TYPE,
        "status": False,
        "reason": "Stopped",
        "message": str(stop.stoppage),
        "lastTransitionTime": format_instant(stop.at),
        "remedy": find_remedy(_TYPE, "Stopped"),
    }
    others = [condition for condition in found if condition["type"] != _TYPE]
    return sorted([*others, stopped], key=lambda condition: str(condition["type"]))
