"""Which file a path names below a directory whose files are served: nothing leads out of it."""

from __future__ import annotations

import os
from pathlib import Path


def file_below(root: Path, path: str) -> Path | None:
    """The readable file that ``path`` names below ``root``, if it names one; hidden files are none.

    ``root`` is resolved already.
    """
    if "\\" in path or any(part == "" or part.startswith(".") for part in path.split("/")):
        return None
    try:
        found = (root / path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # missing or too long; a loop of symlinks; a NUL
        return None
    return found if found.is_relative_to(root) and found.is_file() and os.access(found, os.R_OK) else None
