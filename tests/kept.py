"""Sections in memory."""

from __future__ import annotations

from io import BytesIO

from gitboot import sections
from gitboot.caches import Unusable
from gitboot.sections import Sections


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
