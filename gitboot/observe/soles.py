"""Sites whose boots one endpoint gives alone, whether it reaches the instance or not; in the instance's spool."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gitboot.canonical import canonical
from gitboot.files import write_whole
from gitboot.observe.observation import Observation
from gitboot.observe.spool import files, line_of, parse, whole_lines

_ASIDE: Final = ".forwarded"
_SOLES: Final = "soles"


def soles(folder: Path) -> Mapping[str, str]:
    """By whose spool alone a site's boots are given: its identity, by site. Raises OSError where it is unreadable."""
    try:
        found = json.loads((folder / _ASIDE / _SOLES).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise OSError(f"{folder / _ASIDE / _SOLES} does not say who gives alone") from error
    return {str(site): str(spool) for site, spool in found.items()} if isinstance(found, dict) else {}


def claim(folder: Path, site: str, spool: str) -> bool:
    """Let a site's boots be given by that spool alone, unless they are by another; who comes first has it."""
    with _held(folder):
        now = soles(folder)
        if site not in now:
            _write(folder, {**now, site: spool})
        return now.get(site, spool) == spool


def release(folder: Path, site: str, spool: str) -> None:
    """Let every endpoint give a site's boots again, if it was that spool's alone."""
    with _held(folder):
        now = soles(folder)
        if now.get(site) == spool:
            _write(folder, {each: whose for each, whose in now.items() if each != site})


def given_lines(folder: Path) -> Iterator[bytes]:
    """What a spool says of boots that were given and mean something by being made, a line each."""
    for path in files(folder):
        for _, line in whole_lines(path, 0):
            if isinstance(found := parse(line), Observation) and found.offer is not None:
                yield line_of(found)


def _write(folder: Path, now: Mapping[str, str]) -> None:
    write_whole(folder / _ASIDE / _SOLES, canonical(now) + b"\n", mode=0o640)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    aside = folder / _ASIDE
    aside.mkdir(mode=0o750, exist_ok=True)
    fd = os.open(aside / f"{_SOLES}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
