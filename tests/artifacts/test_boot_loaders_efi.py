"""What an EFI program says of its signature in its own headers."""

from __future__ import annotations

import struct

import pytest

from gitboot.artifacts.boot_loaders import HEAD, is_signed
from tests.helpers.cases import for_each

PE32, PE32_PLUS = 0x10B, 0x20B


def program(*, signed: bool, magic: int = PE32_PLUS, directories: int = 16, start: int = 0x80) -> bytes:
    optional = struct.pack("<H", magic).ljust(108 if magic == PE32_PLUS else 92, b"\0")
    tables = [(0x1000 * (number + 1), 64) for number in range(directories)]
    if not signed and directories > 4:
        tables[4] = (0, 0)
    listed = struct.pack("<I", directories) + b"".join(struct.pack("<II", *each) for each in tables)
    stub = (b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", start)).ljust(start, b"\0")
    return (stub + b"PE\0\0" + b"\0" * 20 + optional + listed).ljust(HEAD, b"\0")


@pytest.mark.parametrize("magic", [PE32, PE32_PLUS])
@pytest.mark.parametrize("signed", [False, True])
def test_the_certificate_table_says_whether_it_is_signed(magic: int, signed: bool) -> None:
    assert is_signed(program(signed=signed, magic=magic)) is signed


@for_each(
    ("case", "head", "expected"),
    [
        ("no table of certificates at all", program(signed=True, directories=4), False),
        ("a compressed kernel", b"\x1f\x8b" + b"\0" * 100, None),
        ("an old program of DOS", b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 64) + b"NE" * 40, None),
        ("one whose headers are elsewhere", b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 1 << 30), None),
        ("one that ends too early", program(signed=True)[:200], None),
        ("nothing", b"", None),
    ],
)
def test_what_is_no_program_says_nothing(case: str, head: bytes, expected: bool | None) -> None:
    assert is_signed(head) is expected, case
