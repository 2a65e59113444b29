"""Whether an EFI program carries a signature at all: firmware with Secure Boot refuses one that has none."""

from __future__ import annotations

import struct
from typing import Final

HEAD: Final = 4096  # bytes of a file that hold its headers, with room to spare
_PE32_PLUS: Final = 0x20B
_CERTIFICATES: Final = 4  # which of the data directories is the certificate table


def is_signed(head: bytes) -> bool | None:
    """Tell by the beginning of a file; None: it is no EFI program, and its signature is elsewhere, if it has one.

    Whose signature it is, and whether a machine's firmware trusts them, is not looked at. The offsets are those of
    the PE format (Microsoft, "PE Format": Optional Header Data Directories).
    """
    try:
        if head[:2] != b"MZ":
            return None
        (start,) = struct.unpack_from("<I", head, 0x3C)
        if head[start : start + 4] != b"PE\0\0":
            return None
        optional = start + 24
        (magic,) = struct.unpack_from("<H", head, optional)
        directories = optional + (112 if magic == _PE32_PLUS else 96)
        (count,) = struct.unpack_from("<I", head, directories - 4)
        if count <= _CERTIFICATES:
            return False
        offset, size = struct.unpack_from("<II", head, directories + 8 * _CERTIFICATES)
    except struct.error:  # it ends before
        return None
    return bool(offset and size)
