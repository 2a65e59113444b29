"""Packs as whoever may push can write them, and no git program does."""

from __future__ import annotations

import hashlib
import subprocess
import zlib
from itertools import repeat
from pathlib import Path

_MIB = 1 << 20
_BLOB, _REF_DELTA = 3, 7


def push_differences(bare: Path, mebibytes: int) -> str:
    """Commit a file of so many MiB and another one that is sent as a difference from it; some hundred KB in all.

    Whoever unpacks the second one by the book has both in memory.
    """
    size, end = mebibytes * _MIB, b"another end"
    base = _id_of(_zeros(mebibytes), size)
    difference = b"".join((_number(size), _number(size + len(end)), _copies(mebibytes), bytes([len(end)]), end))
    pack = b"".join(
        (
            b"PACK" + (2).to_bytes(4) + (2).to_bytes(4),
            *(_head(_BLOB, size), _packed(_zeros(mebibytes))),
            *(_head(_REF_DELTA, len(difference)), bytes.fromhex(base), zlib.compress(difference)),
        )
    )
    _git(bare, "index-pack", "--stdin", given=pack + hashlib.sha1(pack, usedforsecurity=False).digest())
    other = _id_of((*_zeros(mebibytes), end), size + len(end))
    kept = _git(bare, "ls-tree", "main")
    tree = _git(
        bare, "mktree", given=f"{kept}\n100644 blob {base}\tbig0.yaml\n100644 blob {other}\tbig1.yaml\n".encode()
    )
    commit = _git(bare, "commit-tree", "-p", "main", "-m", "Large", tree)
    _git(bare, "update-ref", "refs/heads/main", commit)
    return commit


def _zeros(mebibytes: int) -> tuple[bytes, ...]:
    return tuple(repeat(bytes(_MIB), mebibytes))


def _id_of(parts: tuple[bytes, ...], size: int) -> str:
    made = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def _packed(parts: tuple[bytes, ...]) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join((*(packer.compress(part) for part in parts), packer.flush()))


def _head(kind: int, size: int) -> bytes:
    """The type and the size of an object; gitformat-pack(5), "Size encoding"."""
    first, rest = kind << 4 | size & 0x0F, size >> 4
    return bytes([first | (0x80 if rest else 0)]) + (_number(rest) if rest else b"")


def _number(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _copies(mebibytes: int) -> bytes:
    """Instructions to copy the base, a MiB each; the same page, "Instruction to copy from base object"."""
    return b"".join(
        bytes([0x80 | 0x0F | 0x40]) + (at * _MIB).to_bytes(4, "little") + b"\x10" for at in range(mebibytes)
    )


def _git(bare: Path, *arguments: str, given: bytes = b"") -> str:
    person = {f"GIT_{who}_{what}": "a@example.net" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(bare), *arguments]
    return subprocess.run(command, input=given, env=person, capture_output=True, check=True).stdout.decode().strip()
