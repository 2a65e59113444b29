"""Archives: read a file from a tar or zip archive that another fetcher downloads, within limits."""

from __future__ import annotations

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Final, cast
from urllib.parse import urlsplit

from gitboot.artifacts.availability import CHUNK, LARGEST_ARTIFACT, ArtifactHead, Content, Fetcher
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.model.scalars import split_member_url
from gitboot.text import printable

# Limits, in bytes unless the comment says otherwise
_FREE_BYTES: Final = 256 << 20  # gitboot checks the ratio only after this many unpacked bytes
_LARGEST_RATIO: Final = 200  # decompressed bytes per byte of the archive; kernels and initrds have a ratio below 10
_XZ_MEMORY: Final = 128 << 20  # archives made with xz -9 need 65 MiB
_MOST_MEMBERS: Final = 100_000  # of a tar archive
_LARGEST_EXTENDED_HEADER: Final = 1 << 16
_LARGEST_ZIP: Final = 4 << 30
# limits the directory of a zip archive, because zipfile reads the whole directory at once
_LARGEST_ZIP_READ: Final = 4 << 20


class ArchiveFetcher:
    """Reads files inside archives, which another fetcher downloads. The URL of a file has the form ``ARCHIVE#PATH``.

    A file counts as missing if the archive does not contain the file, or if gitboot refuses to unpack the file.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def head(self, url: str) -> ArtifactHead:
        """Return the metadata of the archive, but without a size, because the size of the unpacked file is unknown."""
        archive, _ = _parse_member_url(url)
        return ArtifactHead(version=self._fetcher.head(archive).version)

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        """Read a file from its start. The requested offset is ignored."""
        del offset
        archive, path = _parse_member_url(url)
        with (
            self._fetcher.read(archive) as content,
            closing(read_archive_member(content.chunks, archive, path)) as chunks,
        ):
            yield Content(ArtifactHead(version=content.head.version), 0, chunks)


def _parse_member_url(url: str) -> tuple[str, str]:
    parts = split_member_url(url)
    if parts is None:
        raise ArtifactMissing(f"{url} does not refer to a file in an archive")
    return parts


_DAMAGE_ERRORS: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    # zipfile raises these errors if the directory of an archive is malformed
    *(NotImplementedError, ValueError, OverflowError, struct.error),
)


class _ArchiveError(Exception):
    """Raised if gitboot refuses to unpack an archive. The message states why, but does not contain the URL."""


def read_archive_member(chunks: Iterator[bytes], archive: str, path: str) -> Generator[bytes, None, None]:
    """Yield the content of a file in an archive.

    ``archive`` is a URL or a file name. Its suffix determines the format. Raises `ArtifactMissing` if the archive does
    not contain the file, is damaged, or exceeds a limit, and `HostUnreachable` if this host cannot store the archive.
    gitboot does not unpack links and devices, so a path never leads to another file.
    """
    name = urlsplit(archive).path
    try:
        if name.endswith(".zip"):
            yield from _read_zip(chunks, path)
        else:
            if name.endswith((".tar.gz", ".tgz")):
                chunks = _decompress(chunks, _Gzip)
            elif name.endswith((".tar.xz", ".txz")):
                chunks = _decompress(chunks, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_MEMORY))
            yield from _read_tar(_UnpackedStream(chunks), path)
    except _ArchiveError as error:
        raise ArtifactMissing(f"{archive}: {error}") from None
    except _DAMAGE_ERRORS as error:
        raise ArtifactMissing(f"{archive} is damaged: {printable(str(error))}") from error


# Compression


class _Gzip:
    """Decompresses gzip data, with the same interface as lzma.LZMADecompressor."""

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
        unpacked = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = len(unpacked) < max_length  # zlib may hold back output that exceeds the limit
        return unpacked


def _decompress(
    chunks: Iterator[bytes], build_decompressor: Callable[[], _Gzip | lzma.LZMADecompressor]
) -> Iterator[bytes]:
    """Yield the decompressed bytes of one or more compressed streams. Zero bytes may separate the streams."""
    packed = unpacked = 0
    decompressor = build_decompressor()
    is_between = True  # whether the next byte is before, between or after the streams
    for data in chunks:
        packed += len(data)
        while data or not decompressor.needs_input:
            if is_between:
                data = data.lstrip(b"\0")
                if not data:
                    break
            is_between = False
            piece = decompressor.decompress(data, CHUNK)
            unpacked += len(piece)
            if unpacked > _FREE_BYTES + _LARGEST_RATIO * packed:
                raise _ArchiveError(f"the archive unpacks to more than {_LARGEST_RATIO} times its size")
            yield piece
            data = b""
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor = build_decompressor()
                is_between = True
    if not is_between:
        raise EOFError("the archive is truncated")


class _UnpackedStream:
    """Reads the decompressed bytes of a tar archive."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")  # the rest of the current piece
        self._total = 0  # the number of bytes in all pieces so far

    def read_pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next ``size`` bytes. Raises EOFError if the archive has fewer bytes left."""
        while size:
            if not self._piece:
                try:
                    self._piece = memoryview(next(self._pieces))
                except StopIteration:
                    raise EOFError("the archive is truncated") from None
                self._total += len(self._piece)
                if self._total > LARGEST_ARTIFACT:
                    raise _ArchiveError(f"the unpacked archive is larger than {LARGEST_ARTIFACT:,} bytes")
            piece = self._piece[:size]
            self._piece = self._piece[size:]
            size -= len(piece)
            yield bytes(piece)

    def read(self, size: int) -> bytes:
        return b"".join(self.read_pieces(size))

    def skip(self, size: int) -> None:
        for _ in self.read_pieces(size):
            pass

    def skip_blocks(self, size: int) -> None:
        """Skip the tar blocks that contain ``size`` bytes."""
        self.skip(size + -size % tarfile.BLOCKSIZE)


# Tar


_IGNORED_TYPES: Final = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_FILE_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_TYPES_WITHOUT_CONTENT: Final = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE),
)


def _read_tar(source: _UnpackedStream, path: str) -> Iterator[bytes]:
    # gitboot does not use tarfile.open here, because that function reads extended headers of any size into memory.
    overrides: dict[str, bytes] = {}  # fields of the next member from extended headers, such as its path
    for _ in range(_MOST_MEMBERS):
        block = source.read(tarfile.BLOCKSIZE)
        if not any(block):
            raise _ArchiveError(f"the archive does not contain the file {path}")
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        size = _parse_size(overrides["size"]) if "size" in overrides else info.size
        if min(size, info.size) < 0:
            raise tarfile.ReadError("the archive contains a file with a negative size")
        if info.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            overrides |= _read_extended_header(source, info)
            continue
        if info.type in _IGNORED_TYPES:
            source.skip_blocks(info.size)
            continue
        if _find_member_name(info, block, overrides).removeprefix("./") == path:
            if info.type not in _FILE_TYPES or any(name.startswith("GNU.sparse.") for name in overrides):
                raise _ArchiveError(f"{path} in the archive is not a regular file")
            yield from source.read_pieces(size)
            return
        if info.type == tarfile.GNUTYPE_SPARSE:
            _skip_sparse_headers(source, block)
        if info.type not in _TYPES_WITHOUT_CONTENT:  # a member of an unknown type is a file (POSIX, pax)
            source.skip_blocks(size)
        overrides = {}
    raise _ArchiveError(f"the archive has more than {_MOST_MEMBERS:,} members")


def _find_member_name(info: tarfile.TarInfo, block: bytes, overrides: Mapping[str, bytes]) -> str:
    if (path := overrides.get("GNU.sparse.name", overrides.get("path"))) is not None:
        return path.decode("utf-8", "surrogateescape")
    if block[257:265] == tarfile.GNU_MAGIC:  # here, GNU tar may store times where POSIX has a prefix of the name
        return block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return info.name


def _skip_sparse_headers(source: _UnpackedStream, block: bytes) -> None:
    """Skip the blocks that continue the header of a sparse file (GNU tar, sparse_header and struct oldgnu_header)."""
    is_extended = block[482]
    while is_extended:
        is_extended = source.read(tarfile.BLOCKSIZE)[504]


def _read_extended_header(source: _UnpackedStream, info: tarfile.TarInfo) -> dict[str, bytes]:
    """Return the fields of the next member that an extended header contains."""
    if info.size > _LARGEST_EXTENDED_HEADER:
        raise _ArchiveError(f"an extended tar header is too large: {info.size:,} bytes")
    content = source.read(info.size)
    source.skip(-info.size % tarfile.BLOCKSIZE)
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0")}
    return _parse_extended_header(content)


def _parse_extended_header(content: bytes) -> dict[str, bytes]:
    """Return the records of a pax header. Each record is ``LENGTH NAME=VALUE`` and a line feed (POSIX, pax)."""
    records = {}
    at = 0
    while at < len(content):
        length = _parse_size(content[at : at + 10].partition(b" ")[0])
        name, equals, value = content[at : at + length].partition(b" ")[2].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise tarfile.ReadError("an extended tar header is malformed")
        records[name.decode(errors="replace")] = value[:-1]
        at += length
    return records


def _parse_size(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise tarfile.ReadError("an extended tar header is malformed")
    return int(text)


# Zip


def _read_zip(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    # The directory of a zip archive is at the end, so gitboot stores the whole archive before it reads a file.
    with _store_temporarily(chunks) as file:
        try:
            yield from _read_stored_zip(file, path)
        except OSError as error:  # the directory refers to a negative position
            raise zipfile.BadZipFile(str(error)) from error


def _read_stored_zip(file: IO[bytes], path: str) -> Iterator[bytes]:
    packed = file.tell()
    with zipfile.ZipFile(cast("IO[bytes]", _BoundedFile(file))) as archive:
        member = next((each for each in archive.infolist() if each.filename.removeprefix("./") == path), None)
        if member is None:
            raise _ArchiveError(f"the archive does not contain the file {path}")
        is_file = not member.is_dir() and stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
        is_stored = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not member.flag_bits & 1
        if not is_file or not is_stored:
            raise _ArchiveError(
                f"{path} in the archive is not a regular file, or its encryption or compression is unsupported"
            )
        unpacked = 0
        with archive.open(member) as content:
            while piece := content.read(CHUNK):
                unpacked += len(piece)
                if unpacked > min(LARGEST_ARTIFACT, _FREE_BYTES + _LARGEST_RATIO * packed):
                    raise _ArchiveError(f"the archive unpacks to more than {_LARGEST_RATIO} times its size")
                yield piece


def _store_temporarily(chunks: Iterator[bytes]) -> IO[bytes]:
    """Return a temporary file with the archive. Raises `HostUnreachable` if this host cannot store the archive."""
    with ExitStack() as stack:
        with _convert_storage_errors():
            file = stack.enter_context(TemporaryFile(prefix="gitboot-"))
        for chunk in chunks:
            with _convert_storage_errors():
                file.write(chunk)
                size = file.tell()
            if size > _LARGEST_ZIP:
                raise _ArchiveError(f"the zip archive is larger than {_LARGEST_ZIP:,} bytes")
        with _convert_storage_errors():
            file.flush()
        stack.pop_all()
        return file


@contextmanager
def _convert_storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostUnreachable(
            f"the zip archive cannot be stored on this host: {error.strerror}; set TMPDIR to a folder with free space"
        ) from error


class _BoundedFile:
    """A file that limits the size of each read. Otherwise, zipfile would read as many bytes as the archive states."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _LARGEST_ZIP_READ:
            raise _ArchiveError(f"the zip archive's directory is too large: {size:,} bytes")
        return self._file.read(size if size >= 0 else _LARGEST_ZIP_READ)
