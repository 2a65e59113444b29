"""What a published tree knows of servers, read from its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gitboot.errors import UsageError
from gitboot.model.scalars.machines import SystemUuid, is_placeholder_uuid
from gitboot.render.parts import RECORDS
from gitboot.resolve.provisioning_record import imported
from gitboot.resolve.provisioning_record_from_plan import Record


def read_records(path: Path) -> dict[SystemUuid, Record]:
    """Exported records in a file, or in the files of a folder, as ``ops/records`` of a tree.

    Raises OSError, and `UsageError` naming the file that is something else.
    """
    if not path.is_dir():
        return _imported(path)
    files = sorted(path.glob("*.json"))
    if not files:
        raise UsageError(f"{path}: no exported records are in it; take ops/records of a published tree")
    return {uuid: record for file in files for uuid, record in _imported(file).items()}


def _imported(file: Path) -> dict[SystemUuid, Record]:
    """Return the records of a file. Raises `UsageError` for a record of a UUID that identifies no machine."""
    records = imported(file.read_bytes(), str(file))
    for uuid in sorted(filter(is_placeholder_uuid, records)):
        raise UsageError(
            f"{file}: a record is of the UUID {uuid}, which identifies no machine: remove the record, and set a UUID "
            "in the machine's firmware"
        )
    return records


def records_in(tree: Path) -> Mapping[SystemUuid, Record]:
    """What the tree knows of servers, as far as it can be read; nothing where there is none."""
    found: dict[SystemUuid, Record] = {}
    for file in sorted((tree / RECORDS).glob("*.json")):
        with suppress(OSError, UsageError):
            found |= imported(file.read_bytes(), str(file))
    return found
