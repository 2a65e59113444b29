"""gitboot.cli.options_from_cli_problems."""

from __future__ import annotations

from pathlib import Path


def prefix_of(path: Path) -> str:
    """What stands before a problem's path so that it leads from here to the file."""
    return "" if path == Path() or (path.is_absolute() and not path.is_dir()) else f"{path}/"
