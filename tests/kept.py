"""What an evaluator has found out, as the bytes that are kept of it."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from gitboot import sections
from gitboot.caches import Unusable
from gitboot.evaluate.evaluator import Basis
from gitboot.evaluate.kept import from_sections, sections_of
from gitboot.load import BlobId
from gitboot.sections import Sections, keep_sections


def to_bytes(basis: Basis) -> bytes:
    return in_bytes(*sections_of(basis))


def from_bytes(data: bytes, read: Callable[[BlobId], bytes]) -> Basis:
    return from_sections(of_bytes(data), read)


def in_bytes(values: dict[str, bytes], tables: sections.Tables) -> bytes:
    """A file of sections, in memory and without a key."""
    file = BytesIO()
    sections.write_sections(file, b"", values, tables)
    return file.getvalue()


def of_bytes(data: bytes, key: bytes = b"") -> Sections:
    """Sections, of what lies in memory."""

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    found = sections._directory_of(read, len(data), key)
    assert not isinstance(found, Unusable)
    return Sections(read, found, lambda: None)


def believing(path: Path, old: bytes, new: bytes) -> None:
    """Let a file say something else, as if it had been found out."""
    found = whole(path)
    assert any(old in record for records in found[1].values() for record in records.values())
    tables = {
        table: {name: record.replace(old, new) for name, record in records.items()}.items()
        for table, records in found[1].items()
    }
    keep_sections(path, b"", found[0], tables)


def whole(path: Path) -> tuple[dict[str, bytes], dict[str, dict[str, bytes]]]:
    """All that is kept in a file without a key."""
    found = Sections.open(path, b"", lambda why: pytest.fail(why.value))
    assert found is not None
    directory = found._directory
    return {name: found.value(name) for name in directory.values}, {
        name: dict(found.table(name)) for name in directory.tables
    }
