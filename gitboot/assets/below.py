"""Which file a path names below a directory whose files are served: nothing leads out of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gitboot.files import ABSENT


def file_below(root: Path, path: str) -> Path | None:
    """The readable file that ``path`` names below ``root``, if it names one; hidden files are none.

    ``root`` is resolved already. Raises OSError for a file that is there and cannot be read.
    """
    if "\\" in path or any(part == "" or part.startswith(".") for part in path.split("/")):
        return None
    try:
        found = Path(os.path.realpath(root / path, strict=True))
    except ValueError:  # a NUL
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise
    if not (found.is_relative_to(root) and found.is_file()):
        return None
    if not os.access(found, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(found))
    return found
