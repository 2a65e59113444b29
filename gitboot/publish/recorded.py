"""What a published tree knows of servers, read from its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gitboot.errors import UsageError
from gitboot.model.scalars import SystemUuid
from gitboot.plan import Record
from gitboot.render.parts import RECORDS
from gitboot.resolve.records import imported


def read_records(path: Path) -> dict[SystemUuid, Record]:
    """Exported records in a file, or in the files of a folder, as ``ops/records`` of a tree.

    Raises OSError, and `UsageError` naming the file that is something else.
    """
    if not path.is_dir():
        return imported(path.read_bytes(), str(path))
    files = sorted(path.glob("*.json"))
    if not files:
        raise UsageError(f"{path}: no exported records are in it; take ops/records of a published tree")
    return {uuid: record for file in files for uuid, record in imported(file.read_bytes(), str(file)).items()}


def records_in(tree: Path) -> Mapping[SystemUuid, Record]:
    """What the tree knows of servers, as far as it can be read; nothing where there is none."""
    found: dict[SystemUuid, Record] = {}
    for file in sorted((tree / RECORDS).glob("*.json")):
        with suppress(OSError, UsageError):
            found |= imported(file.read_bytes(), str(file))
    return found
