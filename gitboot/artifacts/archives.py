"""Archives: read one file of a tar or zip archive as a stream, within limits."""

from __future__ import annotations

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryFile
from typing import IO, Final, Protocol, cast
from urllib.parse import urlsplit

from gitboot.artifacts.availability import LARGEST_ARTIFACT, ArtifactHead, Content, Fetcher
from gitboot.errors import ArtifactMissing
from gitboot.model.scalars import split_member_url
from gitboot.text import printable

_CHUNK: Final = 1 << 20
_FREE_BYTES: Final = 256 << 20  # gitboot checks the ratio only after this many unpacked bytes
_LARGEST_RATIO: Final = 200  # decompressed bytes per byte of the archive; kernels and initrds have less than 10
_MOST_MEMBERS: Final = 100_000
_LARGEST_EXTENDED_HEADER: Final = 1 << 16
_LARGEST_ZIP: Final = 4 << 30
# in bytes: limits the directory of a zip archive, because zipfile reads the whole directory at once
_LARGEST_ZIP_READ: Final = 4 << 20
_XZ_MEMORY: Final = 128 << 20  # in bytes; archives that xz -9 made need 65 MiB


class ArchiveFetcher:
    """Reads files inside archives. Their URLs have the form ``ARCHIVE#PATH``. A second fetcher downloads the archives.

    A file counts as missing if the archive does not contain the file, or if gitboot refuses to unpack the file.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def head(self, url: str) -> ArtifactHead:
        """Return the metadata of the archive, but without a size, because the size of the unpacked file is unknown."""
        archive, _ = _split(url)
        return ArtifactHead(version=self._fetcher.head(archive).version)

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        """Read a file from its start. The requested offset is ignored."""
        del offset
        archive, path = _split(url)
        with self._fetcher.read(archive) as content, closing(read_member(content.chunks, archive, path)) as chunks:
            yield Content(ArtifactHead(version=content.head.version), 0, chunks)


def _split(url: str) -> tuple[str, str]:
    found = split_member_url(url)
    if found is None:
        raise ArtifactMissing(f"{url} is not the URL of a file in an archive")
    return found


def read_member(chunks: Iterator[bytes], archive: str, path: str) -> Generator[bytes, None, None]:
    """Yield the content of a file in an archive. The suffix of the URL or name determines the format.

    Raises `ArtifactMissing` if the archive does not contain the file, is damaged, or exceeds a limit. gitboot refuses
    links and devices, so a path never leads to another file.
    """
    name = urlsplit(archive).path
    try:
        if name.endswith(".zip"):
            yield from _read_zip(chunks, path)
        else:
            if name.endswith((".tar.gz", ".tgz")):
                chunks = _decompress(chunks, _Gzip)
            elif name.endswith((".tar.xz", ".txz")):
                chunks = _decompress(chunks, _new_xz)
            yield from _read_tar(_Unpacked(chunks), path)
    except _Refused as error:
        raise ArtifactMissing(f"{archive}: {error}") from None
    except _DAMAGE as error:
        raise ArtifactMissing(f"{archive} is damaged: {printable(str(error))}") from error


_DAMAGE: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    # zipfile raises these errors if the directory of an archive is malformed
    *(NotImplementedError, ValueError, OverflowError, OSError, struct.error),
)


class _Refused(Exception):
    """gitboot refuses to unpack an archive. The message states why, without the URL of the archive."""


class _Decompressor(Protocol):
    """The methods and properties of lzma.LZMADecompressor that gitboot uses."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """Decompresses gzip data, and has the same interface as lzma.LZMADecompressor."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = len(found) < max_length  # zlib may hold back output that exceeds the limit
        return found


def _new_xz() -> _Decompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


def _decompress(chunks: Iterator[bytes], new: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Yield the decompressed bytes of one or more compressed streams. There may be zeros between the streams."""
    packed = unpacked = 0
    decompressor, is_new = new(), True
    for data in chunks:
        packed += len(data)
        while data or not decompressor.needs_input:
            data = data.lstrip(b"\0") if is_new else data
            if is_new and not data:
                break
            piece, is_new = decompressor.decompress(data, _CHUNK), False
            unpacked += len(piece)
            if unpacked > _FREE_BYTES + _LARGEST_RATIO * packed:
                raise _Refused(f"the archive unpacks to more than {_LARGEST_RATIO} times its size")
            yield piece
            data = b""
            if decompressor.eof:
                data, decompressor, is_new = decompressor.unused_data, new(), True
    if not is_new:
        raise EOFError("the archive ends too early")


class _Unpacked:
    """Reads the decompressed bytes of a tar archive."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece, self._total = pieces, memoryview(b""), 0

    def read_pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next ``size`` bytes. Raises EOFError if the archive ends before them."""
        while size:
            if not self._piece:
                try:
                    self._piece = memoryview(next(self._pieces))
                except StopIteration:
                    raise EOFError("the archive ends too early") from None
                self._total += len(self._piece)
                if self._total > LARGEST_ARTIFACT:
                    raise _Refused(f"the unpacked archive has more than {LARGEST_ARTIFACT:,} bytes")
            piece, self._piece = self._piece[:size], self._piece[size:]
            size -= len(piece)
            yield bytes(piece)

    def read(self, size: int) -> bytes:
        return b"".join(self.read_pieces(size))

    def skip(self, size: int) -> None:
        for _ in self.read_pieces(size):
            pass


# types of headers that describe the next member of the archive
_EXTENDED: Final = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_IGNORED: Final = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


def _read_tar(source: _Unpacked, path: str) -> Iterator[bytes]:
    # gitboot does not use tarfile.open here, because that function reads extended headers of any size into memory.
    described: dict[str, bytes] = {}
    for _ in range(_MOST_MEMBERS):
        block = source.read(tarfile.BLOCKSIZE)
        if not any(block):
            raise _Refused(f"the archive does not contain the file {path}")
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        size = _parse_size(described["size"]) if "size" in described else info.size
        if min(size, info.size) < 0:
            raise tarfile.ReadError("a member has a negative size")
        padding = -size % tarfile.BLOCKSIZE
        if info.type in _EXTENDED:
            if info.size > _LARGEST_EXTENDED_HEADER:
                raise _Refused(f"an extended header is too large: {info.size:,} bytes")
            content = source.read(info.size)
            source.skip(-info.size % tarfile.BLOCKSIZE)
            is_name = info.type == tarfile.GNUTYPE_LONGNAME
            described |= {"path": content.rstrip(b"\0")} if is_name else _parse_extended_header(content)
            continue
        name = described["path"].decode("utf-8", "surrogateescape") if "path" in described else info.name
        if name.removeprefix("./") == path:
            if info.type not in _FILES:
                raise _Refused(f"{path} in the archive is not a regular file")
            yield from source.read_pieces(size)
            return
        if info.type in (*_FILES, *_IGNORED):  # links, devices and folders have no content
            source.skip(size + padding)
        if info.type not in _IGNORED:
            described = {}
    raise _Refused(f"the archive has more than {_MOST_MEMBERS:,} members")


def _parse_extended_header(content: bytes) -> dict[str, bytes]:
    """Return the records of a pax header. A record is ``LENGTH NAME=VALUE`` and a line feed (POSIX, pax)."""
    records, at = {}, 0
    while at < len(content):
        length = _parse_size(content[at : at + 10].partition(b" ")[0])
        name, equals, value = content[at : at + length].partition(b" ")[2].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise tarfile.ReadError("an extended header is malformed")
        records[name.decode(errors="replace")] = value[:-1]
        at += length
    return records


def _parse_size(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise tarfile.ReadError("an extended header is malformed")
    return int(text)


# zip


def _read_zip(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    # The directory of a zip archive is at the end, so gitboot stores the whole archive before it reads a file.
    with TemporaryFile(prefix="gitboot-") as file:
        for chunk in chunks:
            file.write(chunk)
            if file.tell() > _LARGEST_ZIP:
                raise _Refused(f"the zip archive has more than {_LARGEST_ZIP:,} bytes")
        packed = file.tell()
        with zipfile.ZipFile(cast("IO[bytes]", _BoundedFile(file))) as archive:
            found = next((each for each in archive.infolist() if each.filename.removeprefix("./") == path), None)
            if found is None:
                raise _Refused(f"the archive does not contain the file {path}")
            mode = found.external_attr >> 16
            is_stored = found.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if found.is_dir() or (stat.S_IFMT(mode) not in (0, stat.S_IFREG)) or found.flag_bits & 1 or not is_stored:
                raise _Refused(
                    f"{path} in the archive is not a regular file, or its encryption or compression is unsupported"
                )
            unpacked = 0
            with archive.open(found) as content:
                while piece := content.read(_CHUNK):
                    unpacked += len(piece)
                    if unpacked > min(LARGEST_ARTIFACT, _FREE_BYTES + _LARGEST_RATIO * packed):
                        raise _Refused(f"the archive unpacks to more than {_LARGEST_RATIO} times its size")
                    yield piece


class _BoundedFile:
    """A file that limits the size of each read, because zipfile requests as many bytes as the archive states."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _LARGEST_ZIP_READ:
            raise _Refused(f"the directory of the archive is too large: {size:,} bytes")
        return self._file.read(size if size >= 0 else _LARGEST_ZIP_READ)
