"""What blobs parse to, kept on disk between starts; it can be deleted at any time."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Final

from gitboot import __version__
from gitboot.load import ParseCache

_FILE: Final = "parsed.pickle"


def read_parsed(directory: Path) -> ParseCache:
    """What was written by the same version of gitboot; empty where there is none, or it is damaged."""
    try:
        version, parsed = pickle.loads((directory / _FILE).read_bytes())  # noqa: S301 - only this instance writes there
        return dict(parsed) if version == __version__ else {}
    except Exception:  # noqa: BLE001 - whatever a damaged pickle raises, the blobs themselves are still there
        return {}


def write_parsed(directory: Path, parsed: ParseCache) -> None:
    """Keep ``parsed``; a disk that refuses it costs only time at the next start."""
    new = directory / f"{_FILE}.new"
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        new.write_bytes(pickle.dumps((__version__, dict(parsed)), pickle.HIGHEST_PROTOCOL))
        new.replace(directory / _FILE)
