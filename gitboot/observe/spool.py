"""Observations on their way from endpoints and mirrors of a published tree to the instance that publishes it.

A folder with one file of JSON lines, to which any number of processes append. The instance takes the file
away, and deletes it when it has made use of it: a crash in between means that it is read once more.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from gitboot.canonical import canonical
from gitboot.model.scalars import Digest, format_instant
from gitboot.observe.observation import Observation

_logger = logging.getLogger(__name__)

_WRITTEN: Final = "observations.jsonl"
_TAKEN: Final = "observations.taken.jsonl"


def write(spool: Path, observation: Observation) -> None:
    """Append one observation; what the disk refuses is logged, for the machine has its boot already."""
    try:
        append(spool, observation)
    except OSError as error:
        _logger.error("%s: an observation of %s is lost: %s", spool, observation.server, error.strerror)


def append(spool: Path, observation: Observation, *, durably: bool = False) -> None:
    """Append one observation, or none of it where the disk refuses: then this raises OSError."""
    line = canonical(_facts(observation)) + b"\n"
    while not _append(spool / _WRITTEN, line, durably):
        pass  # it was taken away between opening and locking


def _append(path: Path, line: bytes, durably: bool) -> bool:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        found = os.fstat(fd)
        if not _stands_at(path, found):
            return False
        if os.write(fd, line) < len(line):
            os.ftruncate(fd, found.st_size)  # half a line would spoil the next
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if durably:
            os.fsync(fd)
        return True
    finally:
        os.close(fd)


def _stands_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, path.stat())
    except FileNotFoundError:
        return False


def take(spool: Path) -> list[Observation]:
    """What was written since it was last forgotten; the same again until it is."""
    taken = spool / _TAKEN
    if not taken.exists():
        with suppress(FileNotFoundError):
            (spool / _WRITTEN).rename(taken)
    try:
        with taken.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # whoever was about to append has done so
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    observations = [observation for line in lines if (observation := _parse(line)) is not None]
    if strays := len(lines) - len(observations):
        _logger.error("%s: %d of %d lines are no observations", taken, strays, len(lines))
    return observations


def forget(spool: Path) -> None:
    """Delete what was taken."""
    (spool / _TAKEN).unlink(missing_ok=True)


def _facts(observation: Observation) -> dict[str, str | int]:
    version = {"digest": observation.digest, "modified": observation.modified}
    return {
        "at": format_instant(observation.at),
        "client": observation.client,
        "path": observation.path,
        "server": observation.server,
        **{name: value for name, value in version.items() if value is not None},
    }


def _parse(line: bytes) -> Observation | None:
    try:
        match json.loads(line):
            case {
                "at": str(at),
                "client": str(client),
                "path": str(path),
                "server": str(server),
                **version,
            }:
                digest, modified = version.get("digest"), version.get("modified")
                return Observation(
                    server=server,
                    path=path,
                    client=client,
                    at=datetime.fromisoformat(at),
                    digest=Digest(digest) if isinstance(digest, str) else None,
                    modified=modified if isinstance(modified, int) else None,
                )
    except ValueError:
        pass
    return None
