"""Artifact downloads: read files from web servers, local folders, OCI registries and archives, and mirror them."""

from __future__ import annotations

import errno
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import IO, Any, Final, cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gitboot.artifacts.availability import LARGEST_ARTIFACT, ArtifactHead, Content, Fetcher
from gitboot.artifacts.oci import OciReference, Registries
from gitboot.errors import ArtifactMissing, GitbootError, HostUnreachable, NotInRegistry, RegistryRefused, UsageError
from gitboot.files import check_output_folder, find_file_below, lock_file, open_output_folder, sync_folder
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate, format_host
from gitboot.model.scalars import split_member_url
from gitboot.render.paths import find_artifact_type
from gitboot.resolve.boot_composition import MIRRORED_NAMES
from gitboot.resolve.server_decision import BootFile
from gitboot.text import printable

CHUNK: Final = 1 << 20  # the maximum size of one read in bytes


class PrefixFetcher:
    """Selects a fetcher by the prefix of the URL. The longest matching prefix wins.

    If the URL names a file in an archive, the selected fetcher reads the archive.
    """

    def __init__(self, fetchers_by_prefix: Mapping[str, Fetcher]) -> None:
        self._by_prefix = dict(sorted(fetchers_by_prefix.items(), key=lambda each: -len(each[0])))

    def _find_fetcher(self, url: str) -> Fetcher:
        for prefix, fetcher in self._by_prefix.items():
            if url.startswith(prefix):
                return ArchiveFetcher(fetcher) if split_member_url(url) is not None else fetcher
        raise HostUnreachable(f"gitboot does not support this kind of URL: {url}")

    def head(self, url: str) -> ArtifactHead:
        return self._find_fetcher(url).head(url)

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        return self._find_fetcher(url).read(url, offset)


class FallbackFetcher:
    """Reads artifacts with one fetcher, and falls back to a second fetcher."""

    def __init__(self, first: Fetcher, second: Fetcher, *, fallback_on: type[GitbootError]) -> None:
        """Create a fetcher that uses ``second`` if ``first`` raises an error of the type ``fallback_on``."""
        self._first, self._second, self._fallback_on = first, second, fallback_on

    def head(self, url: str) -> ArtifactHead:
        try:
            return self._first.head(url)
        except self._fallback_on as error:
            try:
                return self._second.head(url)
            except ArtifactMissing:
                raise error from None  # the first place may have the artifact although the second place does not

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        with suppress(self._fallback_on):
            self._first.head(url)
            return self._first.read(url, offset)
        return self._second.read(url, offset)


# Web servers

_MOST_REDIRECTS: Final = 5
_GONE: Final = (404, 410)
_NO_HEAD: Final = (405, 501)  # responses of servers that do not support HEAD
_NO_RANGE: Final = 416
# A read waits until this many bytes have arrived. A signal stops a download between two reads.
_READ_BYTES: Final = 16 << 10


class WebFetcher:
    """Downloads artifacts over HTTP and HTTPS. The fetcher trusts the same certificate authorities as this host."""

    def __init__(
        self,
        *,
        uses_proxies: bool = False,
        per_host: int = 8,
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
        ca_bundle: Path | None = None,
    ) -> None:
        """Create a fetcher. By default, the fetcher ignores proxies, because boot loaders do not use proxies either.

        The headers of a response must arrive within ``deadline_s`` seconds. The body must arrive at ``rate`` or faster.
        """
        self._client = HttpClient(uses_proxies=uses_proxies, connections_per_host=per_host, ca_bundle=ca_bundle)
        self._deadline_s, self._rate = deadline_s, rate

    def head(self, url: str) -> ArtifactHead:
        """Send a HEAD request, or a GET request if the server does not support HEAD, and return the metadata."""
        with self._request("HEAD", url, {}) as answer:
            if answer.status not in _NO_HEAD:
                return _build_head(answer, url)
        with self._request("GET", url, {}) as answer:
            return _build_head(answer, url)

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        return _open_content(partial(self._request, "GET", url), partial(_build_head, url=url), offset)

    @contextmanager
    def _request(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[AnswerStream]:
        """Send a request, follow all redirects, and yield the final response."""
        options: Any = {"deadline_s": self._deadline_s, "rate": self._rate, "redirects": _MOST_REDIRECTS}
        try:
            with self._client.stream(method, url, headers=headers, **options) as answer:
                yield answer
        except UsageError as error:  # the URL is invalid
            raise HostUnreachable(str(error)) from error


def _build_head(answer: AnswerStream, url: str) -> ArtifactHead:
    if answer.status in _GONE:
        raise ArtifactMissing(f"{format_host(url)} returned {answer.status}")
    if answer.status not in (200, 206):
        raise HostUnreachable(f"{format_host(url)} returned {answer.status}")
    size = _read_size(answer)
    validators = [value for name in ("ETag", "Last-Modified") if (value := answer.headers.get(name))]
    return ArtifactHead(
        size=size,
        content_type=answer.headers.get("Content-Type"),
        version=" ".join((*validators, str(size))) if validators else None,
        redirect_url=answer.final_url,
    )


@contextmanager
def _open_content(
    open_answer: Callable[[Mapping[str, str]], AbstractContextManager[AnswerStream]],
    build_head: Callable[[AnswerStream], ArtifactHead],
    offset: int,
) -> Iterator[Content]:
    """Yield the content of a file from an offset, or from the start if the server does not support ranges.

    ``open_answer`` sends a request with the given headers. Raises `HostUnreachable` if the server returns a range other
    than the one requested.
    """
    with open_answer({"Range": f"bytes={offset}-"} if offset else {}) as answer:
        if answer.status != _NO_RANGE:
            is_part = answer.status == 206
            first = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if is_part and _parse_number(first) != offset:
                raise HostUnreachable(
                    f"gitboot requested the file from byte {offset}, but received it from byte {first or 'unknown'}"
                )
            yield Content(build_head(answer), offset if is_part else 0, iter(partial(answer.read, _READ_BYTES), b""))
            return
    if not offset:
        raise HostUnreachable(f"the server responded with {_NO_RANGE} to a request without a range")
    with _open_content(open_answer, build_head, 0) as content:
        yield content


def _read_size(answer: AnswerStream) -> int | None:
    if answer.status == 206:
        return _parse_number(answer.headers.get("Content-Range", "").rpartition("/")[2])
    return _parse_number(answer.headers.get("Content-Length")) if not answer.headers.get("Content-Encoding") else None


def _parse_number(text: str | None) -> int | None:
    # Limit the length, because int rejects a text with thousands of digits.
    return int(text) if text is not None and re.fullmatch("[0-9]{1,18}", text) else None


# Local folders


class FolderFetcher:
    """Reads files from a local folder that endpoints on this host serve at a URL."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url

    def head(self, url: str) -> ArtifactHead:
        return _read_file_head(self._find_file(url))

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        path = self._find_file(url)
        with closing(_read_chunks(path, offset)) as chunks:
            yield Content(_read_file_head(path), offset, chunks)

    def _find_file(self, url: str) -> Path:
        # urlsplit gets the whole URL, because a path such as "debian:12" looks like another URL
        path = unquote(urlsplit(url).path.removeprefix(urlsplit(self._url).path))
        try:
            found = find_file_below(self._folder.resolve(), path)
        except OSError as error:
            raise HostUnreachable(f"{self._folder / path}: {error.strerror}") from error
        if found is None:
            raise ArtifactMissing(f"{self._folder / path} does not exist")
        return found


def _read_chunks(path: Path, offset: int) -> Generator[bytes, None, None]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise HostUnreachable(f"{path}: {error.strerror}") from error


def _read_file_head(path: Path) -> ArtifactHead:
    try:
        found = path.stat()
    except OSError as error:
        raise HostUnreachable(f"{path}: {error.strerror}") from error
    return ArtifactHead(
        size=found.st_size,
        content_type=find_artifact_type(path.name),
        version=f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_size}",
    )


class RegistryFetcher:
    """Reads blobs from allowed OCI registries. Registries that are not allowed count as unreachable."""

    def __init__(self, registries: Registries) -> None:
        self._registries = registries

    def head(self, url: str) -> ArtifactHead:
        with _translate_errors(), self._registries.blob(OciReference.parse(url), method="HEAD") as answer:
            return _build_blob_head(answer, url)

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        reference = OciReference.parse(url)
        with (
            _translate_errors(),
            _open_content(
                lambda headers: self._registries.blob(reference, headers=headers),
                partial(_build_blob_head, url=url),
                offset,
            ) as content,
        ):
            yield content


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except NotInRegistry as error:
        raise ArtifactMissing(str(error)) from error
    except RegistryRefused as error:
        raise HostUnreachable(str(error)) from error


def _build_blob_head(answer: AnswerStream, url: str) -> ArtifactHead:
    return ArtifactHead(size=_read_size(answer), version=url.rpartition("@")[2])


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_PART: Final = ".part"  # the suffix of incomplete downloads. They are hidden files, so endpoints do not serve them
# The suffix of markers, whose mtime is the time of the first run that did not need the copy. A marker is a folder,
# because mirrors copy and report only files.
_UNNEEDED: Final = ".unneeded"
_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


class MirrorOutcome(StrEnum):
    FETCHED = "fetched"
    EXISTS = "there"
    FAILED = "failed"


class MirroredArtifact(Struct, frozen=True, kw_only=True):
    """The result of mirroring one artifact."""

    path: str  # relative to boot/
    source: str
    outcome: MirrorOutcome
    message: str = ""  # why the download failed; "" if it did not fail


def get_mirror_path(file: BootFile) -> str:
    """Return the path of a file's local copy, relative to boot/."""
    return f"o/{file.sha256}/{file.url.rpartition('/')[2]}"


def mirror_files(
    fetcher: Fetcher,
    files: Iterable[BootFile],
    root: Path,
    report: Callable[[MirroredArtifact], None],
    *,
    parallel: int,
) -> None:
    """Download every mirrored file to ``root``, up to ``parallel`` at a time, and call ``report`` for each file.

    gitboot resumes interrupted downloads. Existing copies are complete, because gitboot verifies the digest of a
    download and syncs the content to the disk before it gives the file its final name. A signal or an exception from
    ``report`` also stops the downloads that are in progress.
    """
    by_path = {get_mirror_path(file): file for file in files if file.source is not None}
    stop = Event()
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="mirror")
    try:
        jobs = [
            pool.submit(_mirror_file, fetcher, file, path, root, stop.is_set) for path, file in sorted(by_path.items())
        ]
        for job in as_completed(jobs):
            report(job.result())
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _mirror_file(
    fetcher: Fetcher, file: BootFile, path: str, root: Path, is_stopped: Callable[[], bool]
) -> MirroredArtifact:
    build_result = partial(MirroredArtifact, path=path, source=file.source or "")
    target, is_there = root / path, False
    try:
        with open_output_folder(target.parent, make=True) as folder:
            with suppress(FileNotFoundError):
                os.rmdir(f".{target.name}{_UNNEEDED}", dir_fd=folder)
            with suppress(FileNotFoundError):
                is_there = stat.S_ISREG(os.lstat(target.name, dir_fd=folder).st_mode)
            if is_there:
                return build_result(outcome=MirrorOutcome.EXISTS)
            _fetch_file(fetcher, file, target.name, folder, is_stopped)
    except (ArtifactMissing, HostUnreachable, UsageError, _ContentMismatch) as error:
        return build_result(outcome=MirrorOutcome.FAILED, message=str(error))
    except OSError as error:
        return build_result(outcome=MirrorOutcome.FAILED, message=f"{target}: {error.strerror}")
    return build_result(outcome=MirrorOutcome.FETCHED)


class _ContentMismatch(Exception):
    """The downloaded content is not the content that the image states."""


def _fetch_file(fetcher: Fetcher, file: BootFile, name: str, folder: int, is_stopped: Callable[[], bool]) -> None:
    """Download a file to a folder, or resume an interrupted download.

    Delete the incomplete download if the content is wrong or if the disk is full.
    """
    part = f".{name}{_PART}"
    with _open_part(part, folder) as written:
        try:
            digest = _write_content(fetcher, file, written, is_stopped)
            os.fchmod(written.fileno(), 0o644)
            os.fsync(written.fileno())
            if digest != file.sha256:
                size = os.fstat(written.fileno()).st_size
                raise _ContentMismatch(
                    f"the file ({size} bytes) has the sha256 {digest}, but the image specifies {file.sha256}"
                )
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync_folder(".", folder)
        except (_ContentMismatch, OSError) as error:
            # if the disk is full, gitboot must still be able to write boot files
            if isinstance(error, _ContentMismatch) or error.errno in _FULL:
                with suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder)
            raise


@contextmanager
def _open_part(part: str, folder: int) -> Iterator[IO[bytes]]:
    """Open an incomplete download, or begin one, and lock the file until the block ends.

    Only the process that has locked the file renames or deletes the file. Raises `HostUnreachable` if this is another
    process.
    """
    fd = os.open(part, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with open(fd, "ab+") as written:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file")
        if not _lock_part(fd, part, folder):
            raise HostUnreachable("another process is downloading the file")
        yield written


def _lock_part(fd: int, part: str | Path, folder: int | None = None) -> bool:
    """Lock an open file. Return False if another process has locked the file, or has renamed or deleted it."""
    if not lock_file(fd):
        return False
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(part, dir_fd=folder))
    except FileNotFoundError:
        return False


def _write_content(fetcher: Fetcher, file: BootFile, written: IO[bytes], is_stopped: Callable[[], bool]) -> str:
    """Write the content that an incomplete download lacks, and return the SHA-256 digest of the whole content."""
    written.seek(0)
    digest, size, max_bytes = sha256(), 0, file.size if file.size is not None else LARGEST_ARTIFACT
    while chunk := written.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    if size and digest.hexdigest() == file.sha256:
        return digest.hexdigest()
    with fetcher.read(file.source or "", size) as content:
        if content.offset != size:
            written.truncate(0)
            digest, size = sha256(), 0
        for chunk in content.chunks:
            written.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if is_stopped():
                raise HostUnreachable("the download was stopped")
            if size > max_bytes:
                raise _ContentMismatch(f"the file is larger than {max_bytes:,} bytes")
    written.flush()
    return digest.hexdigest()


def prune_mirror(root: Path, needed_paths: Collection[str], now: datetime, keep: timedelta) -> list[str]:
    """Delete copies that no run has needed for the time ``keep``, and incomplete downloads of this age.

    The time begins with the first run whose ``needed_paths`` do not contain the copy. Return the sorted paths of the
    deleted files. gitboot recognizes copies by their file names, so the user data in the same folder is not deleted.
    Raises OSError if a file cannot be deleted, and `UsageError` if the folder is unusable.
    """
    check_output_folder(root / "o")
    before_s = (now - keep).timestamp()
    pruned = []
    for folder in (root / "o").iterdir() if (root / "o").is_dir() else ():
        is_mirror_folder = _FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink()
        for name in MIRRORED_NAMES if is_mirror_folder else ():
            path, file, part = f"o/{folder.name}/{name}", folder / name, folder / f".{name}{_PART}"
            marker = folder / f".{name}{_UNNEEDED}"
            if _prune_part(part, before_s):
                pruned.append(str(part.relative_to(root)))
            if path in needed_paths or not file.exists():
                with suppress(FileNotFoundError):
                    marker.rmdir()
                continue
            if not marker.exists():
                marker.mkdir()
                os.utime(marker, (now.timestamp(), now.timestamp()))
            if marker.stat().st_mtime <= before_s:
                marker.rmdir()
                file.unlink()
                pruned.append(path)
        if is_mirror_folder:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
    return sorted(pruned)


def _prune_part(part: Path, before_s: float) -> bool:
    """Delete an incomplete download that no process has changed since then. Return whether the file was deleted."""
    if part.is_symlink() or not part.is_file():
        return False
    with suppress(FileNotFoundError), part.open("rb+") as file:
        if os.fstat(file.fileno()).st_mtime <= before_s and _lock_part(file.fileno(), part):
            part.unlink()
            return True
    return False


# Archives

_FREE_BYTES: Final = 256 << 20  # gitboot checks the ratio only after this many unpacked bytes
_LARGEST_RATIO: Final = 200  # decompressed bytes per byte of the archive; kernels and initrds have a ratio below 10
_MOST_MEMBERS: Final = 100_000
_LARGEST_EXTENDED_HEADER: Final = 1 << 16
_LARGEST_ZIP: Final = 4 << 30
# in bytes: limits the directory of a zip archive, because zipfile reads the whole directory at once
_LARGEST_ZIP_READ: Final = 4 << 20
_XZ_MEMORY: Final = 128 << 20  # in bytes; archives made with xz -9 need 65 MiB


class ArchiveFetcher:
    """Reads files inside archives, which another fetcher downloads. The URL of a file has the form ``ARCHIVE#PATH``.

    A file counts as missing if the archive does not contain the file, or if gitboot refuses to unpack the file.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def head(self, url: str) -> ArtifactHead:
        """Return the metadata of the archive, but without a size, because the size of the unpacked file is unknown."""
        archive, _ = _split_url(url)
        return ArtifactHead(version=self._fetcher.head(archive).version)

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        """Read a file from its start. The requested offset is ignored."""
        del offset
        archive, path = _split_url(url)
        with (
            self._fetcher.read(archive) as content,
            closing(read_archive_member(content.chunks, archive, path)) as chunks,
        ):
            yield Content(ArtifactHead(version=content.head.version), 0, chunks)


def _split_url(url: str) -> tuple[str, str]:
    found = split_member_url(url)
    if found is None:
        raise ArtifactMissing(f"{url} does not refer to a file in an archive")
    return found


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


_DAMAGE_ERRORS: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    # zipfile raises these errors if the directory of an archive is malformed
    *(NotImplementedError, ValueError, OverflowError, OSError, struct.error),
)


class _ArchiveError(Exception):
    """Raised if gitboot refuses to unpack an archive. The message states why, but does not contain the URL."""


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
        found = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = len(found) < max_length  # zlib may hold back output that exceeds the limit
        return found


def _decompress(
    chunks: Iterator[bytes], build_decompressor: Callable[[], _Gzip | lzma.LZMADecompressor]
) -> Iterator[bytes]:
    """Yield the decompressed bytes of one or more compressed streams. Zero bytes may separate the streams."""
    packed = unpacked = 0
    decompressor, is_new = build_decompressor(), True
    for data in chunks:
        packed += len(data)
        while data or not decompressor.needs_input:
            data = data.lstrip(b"\0") if is_new else data
            if is_new and not data:
                break
            piece, is_new = decompressor.decompress(data, CHUNK), False
            unpacked += len(piece)
            if unpacked > _FREE_BYTES + _LARGEST_RATIO * packed:
                raise _ArchiveError(f"the archive unpacks to more than {_LARGEST_RATIO} times its size")
            yield piece
            data = b""
            if decompressor.eof:
                data, decompressor, is_new = decompressor.unused_data, build_decompressor(), True
    if not is_new:
        raise EOFError("the archive is truncated")


class _UnpackedStream:
    """Reads the decompressed bytes of a tar archive."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece, self._total = pieces, memoryview(b""), 0

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
            piece, self._piece = self._piece[:size], self._piece[size:]
            size -= len(piece)
            yield bytes(piece)

    def read(self, size: int) -> bytes:
        return b"".join(self.read_pieces(size))

    def skip(self, size: int) -> None:
        for _ in self.read_pieces(size):
            pass


_IGNORED: Final = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITHOUT_CONTENT: Final = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE),
)


def _read_tar(source: _UnpackedStream, path: str) -> Iterator[bytes]:
    # gitboot does not use tarfile.open here, because that function reads extended headers of any size into memory.
    header: dict[str, bytes] = {}
    for _ in range(_MOST_MEMBERS):
        block = source.read(tarfile.BLOCKSIZE)
        if not any(block):
            raise _ArchiveError(f"the archive does not contain the file {path}")
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        size = _parse_size(header["size"]) if "size" in header else info.size
        if min(size, info.size) < 0:
            raise tarfile.ReadError("the archive contains a file with a negative size")
        if info.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):  # the header describes the next member
            if info.size > _LARGEST_EXTENDED_HEADER:
                raise _ArchiveError(f"an extended tar header is too large: {info.size:,} bytes")
            content = source.read(info.size)
            source.skip(-info.size % tarfile.BLOCKSIZE)
            is_name = info.type == tarfile.GNUTYPE_LONGNAME
            header |= {"path": content.rstrip(b"\0")} if is_name else _parse_extended_header(content)
            continue
        if info.type in _IGNORED:
            source.skip(info.size + -info.size % tarfile.BLOCKSIZE)
            continue
        if block[257:265] == tarfile.GNU_MAGIC:  # here, GNU tar may store times where POSIX has a prefix of the name
            info.name = block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        name = header["path"].decode("utf-8", "surrogateescape") if "path" in header else info.name
        if name.removeprefix("./") == path:
            if info.type not in _FILES:
                raise _ArchiveError(f"{path} in the archive is not a regular file")
            yield from source.read_pieces(size)
            return
        if info.type == tarfile.GNUTYPE_SPARSE:
            _skip_sparse_headers(source, block)
        if info.type not in _WITHOUT_CONTENT:  # a member of an unknown type is a file (POSIX, pax)
            source.skip(size + -size % tarfile.BLOCKSIZE)
        header = {}
    raise _ArchiveError(f"the archive has more than {_MOST_MEMBERS:,} members")


def _skip_sparse_headers(source: _UnpackedStream, block: bytes) -> None:
    """Skip the blocks that continue the header of a sparse file (GNU tar, sparse_header and struct oldgnu_header)."""
    is_extended = block[482]
    while is_extended:
        is_extended = source.read(tarfile.BLOCKSIZE)[504]


def _parse_extended_header(content: bytes) -> dict[str, bytes]:
    """Return the records of a pax header. Each record is ``LENGTH NAME=VALUE`` and a line feed (POSIX, pax)."""
    records, at = {}, 0
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


# zip


def _read_zip(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    # The directory of a zip archive is at the end, so gitboot stores the whole archive before it reads a file.
    with _store_temporarily(chunks) as file:
        packed = file.tell()
        with zipfile.ZipFile(cast("IO[bytes]", _BoundedFile(file))) as archive:
            found = next((each for each in archive.infolist() if each.filename.removeprefix("./") == path), None)
            if found is None:
                raise _ArchiveError(f"the archive does not contain the file {path}")
            is_file = not found.is_dir() and stat.S_IFMT(found.external_attr >> 16) in (0, stat.S_IFREG)
            is_stored = found.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not found.flag_bits & 1
            if not is_file or not is_stored:
                raise _ArchiveError(
                    f"{path} in the archive is not a regular file, or its encryption or compression is unsupported"
                )
            unpacked = 0
            with archive.open(found) as content:
                while piece := content.read(CHUNK):
                    unpacked += len(piece)
                    if unpacked > min(LARGEST_ARTIFACT, _FREE_BYTES + _LARGEST_RATIO * packed):
                        raise _ArchiveError(f"the archive unpacks to more than {_LARGEST_RATIO} times its size")
                    yield piece


def _store_temporarily(chunks: Iterator[bytes]) -> IO[bytes]:
    """Return a temporary file with the archive. Raises `HostUnreachable` if this host cannot store the archive."""
    try:
        with ExitStack() as stack:
            file = stack.enter_context(TemporaryFile(prefix="gitboot-"))
            for chunk in chunks:
                file.write(chunk)
                if file.tell() > _LARGEST_ZIP:
                    raise _ArchiveError(f"the zip archive is larger than {_LARGEST_ZIP:,} bytes")
            file.flush()
            stack.pop_all()
            return file
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
