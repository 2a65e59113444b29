"""What is kept on disk only to be faster: it can be deleted at any time, and counts only where it is whole.

A file of it begins with which program wrote it, and with a digest that only who has the key can make. So what is
damaged, cut short, of another version or another's is never taken for what was found out.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from gitboot.files import replacing

MOST: Final = 16  # files in one folder, two a fleet
SIZE: Final = 32  # bytes of a digest
_SUFFIX: Final = ".snapshot"


class Unusable(Enum):
    """Why what is kept in a file does not count."""

    ABSENT = "there is none"
    FOREIGN = "another version of gitboot wrote it"
    DAMAGED = "it is damaged, or not from here"
    OPEN = "others may write it"


def opened(path: Path) -> int | Unusable:
    """A descriptor of what lies there, if nobody else can write it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return Unusable.ABSENT
    except OSError:
        return Unusable.DAMAGED
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return fd
    os.close(fd)
    return Unusable.DAMAGED if stat.S_ISDIR(found.st_mode) else Unusable.OPEN


def keep_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file, whose folder is nobody else's; of many files there those used least go. Errors are ignored."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path) as file:
            write(file)
        _tidy(path.parent)


def _tidy(folder: Path) -> None:
    """Keep the newest files, and none that was begun and left."""
    found = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[MOST:]:
        path.unlink(missing_ok=True)


# Libraries whose results are cached: they read, check and encode documents and templates.
_LIBRARIES: Final = ("jinja2", "markupsafe", "msgspec", "pydantic", "pydantic_core", "pygit2", "yaml")


@cache
def this_program() -> bytes:
    """Return a digest of gitboot's own files, of Python's version and of the versions of the libraries beside it.

    The digest differs for two checkouts of one version of gitboot if a file differs. Call it early: after an upgrade
    it would describe the new files, while the process still runs the old ones.
    """
    program = sha256(repr(sys.version).encode())
    top = os.path.dirname(__file__)
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            program.update(repr((folder[len(top) :], name, len(content))).encode() + content)
    for name in sorted(_installed_beside(_LIBRARIES)):
        program.update(repr(name).encode())
    return program.digest()


def _installed_beside(libraries: Iterable[str]) -> set[str]:
    """Return the names of all distributions in the folders of these libraries, which end in a version."""
    specs = filter(None, map(find_spec, libraries))
    folders = {Path(spec.origin).parent.parent for spec in specs if spec.origin is not None}
    return {name for folder in folders for name in os.listdir(folder) if name.endswith(("-info", ".egg"))}
