"""Files of what is kept only to be faster, of which no more is read, and checked, than is asked for.

Such a file holds values by name, and tables of records by theirs. Records lie in blocks, in the order of their names.
In front stand which program wrote it, as in `caches`, and a digest of the directory at its end, which only who has the
key can make; the directory has the digest of each value and block. So whatever is read is checked, and nothing else is.

It is read by its descriptor, not mapped: what was checked is what is used, and a file that is cut short meanwhile is
damaged, and no signal. Who has it open reads it to the end, whoever replaces or deletes it.
"""

from __future__ import annotations

import hmac
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import IO, Final
from weakref import finalize

import msgspec

from gitboot.caches import SIZE, Unusable, keep_file, opened, this_program
from gitboot.decoders import decoder

BLOCK: Final = 2**16  # bytes of records at which a block ends

_WHERE: Final = Struct("<QQ")  # the directory's offset and length
_HEAD: Final = 2 * SIZE + _WHERE.size


class Spoilt(Exception):
    """What is kept in a file was found damaged after it had been opened."""


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of the file."""

    offset: int
    length: int
    digest: bytes


class _Blocks(msgspec.Struct, frozen=True, array_like=True):
    """A table: how many records it has, what they are called, and where they are."""

    records: int
    names: _Piece
    first: list[str]  # names, by block
    blocks: list[_Piece]


class _Directory(msgspec.Struct, frozen=True, array_like=True):
    values: dict[str, _Piece]
    tables: dict[str, _Blocks]


Tables = Mapping[str, Iterable[tuple[str, bytes]]]  # records in the order of their names, each name once


class Sections:
    """An open file of sections; where it does not hold what was written, reading from it raises `Spoilt`.

    The file is deleted then.
    """

    def __init__(self, read: Callable[[int, int], bytes], directory: _Directory, spoilt: Callable[[], None]) -> None:
        self._read, self._directory, self._spoilt = read, directory, spoilt

    @classmethod
    def open(cls, path: Path, key: bytes, warn: Callable[[Unusable], None]) -> Sections | None:
        """What `keep_sections` wrote with the same key and by the same program; None, and a warning, where it is not.

        There is no warning where nothing lies there, or what another version wrote.
        """
        fd = opened(path)
        found: _Directory | Unusable
        if isinstance(fd, Unusable):
            found = fd
        else:
            read = _OpenFile(fd)
            found = _directory_of(read, read.size, key)
        if isinstance(found, Unusable):
            if found in (Unusable.DAMAGED, Unusable.OPEN):
                warn(found)
            return None

        def spoilt() -> None:
            _put_away(path, read.fd)
            warn(Unusable.DAMAGED)

        return cls(read, found, spoilt)

    def value(self, name: str) -> bytes:
        return self._piece(self._directory.values[name])

    def table(self, name: str) -> Table:
        return Table(self._piece, self._directory.tables[name])

    def check(self) -> Iterator[None]:
        """Read all of it once, piece by piece."""
        for piece in self.pieces:
            self._piece(piece)
            yield

    @property
    def pieces(self) -> Iterator[_Piece]:
        """All that it is made of."""
        tables = self._directory.tables.values()
        names = (each.names for each in tables)
        return chain(self._directory.values.values(), names, *(each.blocks for each in tables))

    def _piece(self, piece: _Piece) -> bytes:
        data = self._read(piece.offset, piece.length)
        if sha256(data).digest() != piece.digest:
            self._spoilt()
            raise Spoilt
        return data


class Table(Mapping[str, bytes]):
    """Records by name, in the order of their names."""

    def __init__(self, read: Callable[[_Piece], bytes], found: _Blocks) -> None:
        self._read, self._found = read, found
        self._last: tuple[int, dict[str, bytes]] = (-1, {})  # neighbours are often asked for together

    def __getitem__(self, name: str) -> bytes:
        return self._block(bisect_right(self._found.first, name) - 1)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return self._found.records

    @cached_property
    def _names(self) -> Mapping[str, object]:
        return dict.fromkeys(_names(self._read(self._found.names)))

    def _block(self, number: int) -> dict[str, bytes]:
        if number < 0:
            return {}
        last, found = self._last
        if last != number:
            found = _records(self._read(self._found.blocks[number]))
            self._last = number, found
        return found


def keep_sections(path: Path, key: bytes, values: Mapping[str, bytes], tables: Tables) -> None:
    """Keep these at ``path``, as `write_cache` does."""
    keep_file(path, lambda file: write_sections(file, key, values, tables))


def write_sections(file: IO[bytes], key: bytes, values: Mapping[str, bytes], tables: Tables) -> None:
    """Write them to an empty file."""
    file.write(bytes(_HEAD))
    at = _HEAD

    def written(data: bytes) -> _Piece:
        nonlocal at
        file.write(data)
        at += len(data)
        return _Piece(at - len(data), len(data), sha256(data).digest())

    directory = _encode(
        _Directory(
            {name: written(value) for name, value in values.items()},
            {name: _written(records, written) for name, records in tables.items()},
        )
    )
    file.write(directory)
    where = _WHERE.pack(at, len(directory))
    file.seek(0)
    file.write(this_program() + hmac.digest(key, where + directory, "sha256") + where)


def _written(records: Iterable[tuple[str, bytes]], written: Callable[[bytes], _Piece]) -> _Blocks:
    names: list[str] = []
    first: list[str] = []
    blocks: list[_Piece] = []
    block: dict[str, bytes] = {}
    size = 0
    for name, record in records:
        names.append(name)
        block[name] = record
        size += len(name) + len(record)
        if size >= BLOCK:
            first.append(next(iter(block)))
            blocks.append(written(_encode(block)))
            block, size = {}, 0
    if block:
        first.append(next(iter(block)))
        blocks.append(written(_encode(block)))
    return _Blocks(len(names), written(_encode(names)), first, blocks)


class _OpenFile:
    """Reads pieces of an open file, which is closed with the last who reads."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        finalize(self, os.close, fd)

    def __call__(self, offset: int, length: int) -> bytes:
        with suppress(OSError):  # what the disk does not give is as damaged as what it gives otherwise
            found = os.pread(self.fd, length, offset)
            while len(found) < length and (more := os.pread(self.fd, length - len(found), offset + len(found))):
                found += more
            return found
        return b""


def _directory_of(read: Callable[[int, int], bytes], size: int, key: bytes) -> _Directory | Unusable:
    """What of a file of so many bytes is where."""
    head = read(0, _HEAD)
    if len(head) >= SIZE and head[:SIZE] != this_program():
        return Unusable.FOREIGN
    if len(head) == _HEAD:
        digest, where = head[SIZE : 2 * SIZE], head[2 * SIZE :]
        offset, length = _WHERE.unpack(where)
        directory = read(offset, length) if offset + length == size else b""
        if hmac.compare_digest(digest, hmac.digest(key, where + directory, "sha256")):
            return _decode(directory)
    return Unusable.DAMAGED


def _put_away(path: Path, fd: int) -> None:
    """Delete a file that is damaged, unless another one lies there by now."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            path.unlink()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes], _Directory]] = decoder(_Directory)
_names: Final[Callable[[bytes], list[str]]] = decoder(list[str])
_records: Final[Callable[[bytes], dict[str, bytes]]] = decoder(dict[str, bytes])
