"""Artifact downloads: read files from web servers, local folders and OCI registries, and mirror them."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import IO, Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gitboot.artifacts.archives import ArchiveFetcher
from gitboot.artifacts.availability import CHUNK, LARGEST_ARTIFACT, ArtifactHead, Content, Fetcher
from gitboot.artifacts.oci import OciReference, Registries
from gitboot.errors import ArtifactMissing, GitbootError, HostUnreachable, NotInRegistry, RegistryRefused, UsageError
from gitboot.files import check_output_folder, find_file_below, lock_file, open_output_folder, sync_folder
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate, format_host
from gitboot.model.scalars import split_member_url
from gitboot.render.paths import find_artifact_type
from gitboot.resolve.boot_composition import MIRRORED_NAMES
from gitboot.resolve.server_decision import BootFile

# Combinations of fetchers


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
        """Create a fetcher that uses ``second`` if ``first`` raises an error of the type ``fallback_on``.

        A read only looks at the metadata of ``first``. An error while ``first`` sends the content is not caught.
        """
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
_MISSING_STATUSES: Final = (404, 410)
_STATUSES_WITHOUT_HEAD: Final = (405, 501)  # responses of servers that do not support HEAD
_RANGE_NOT_SATISFIABLE: Final = 416
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
            if answer.status not in _STATUSES_WITHOUT_HEAD:
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
    if answer.status in _MISSING_STATUSES:
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
        if answer.status != _RANGE_NOT_SATISFIABLE:
            is_part = answer.status == 206
            first_byte = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if is_part and _parse_number(first_byte) != offset:
                raise HostUnreachable(
                    f"gitboot requested the file from byte {offset}, but received it from byte "
                    f"{first_byte or 'unknown'}"
                )
            chunks = iter(partial(answer.read, _READ_BYTES), b"")
            yield Content(build_head(answer), offset if is_part else 0, chunks)
            return
    if not offset:
        raise HostUnreachable(f"the server responded with {_RANGE_NOT_SATISFIABLE} to a request without a range")
    with _open_content(open_answer, build_head, 0) as content:
        yield content


def _read_size(answer: AnswerStream) -> int | None:
    if answer.status == 206:
        return _parse_number(answer.headers.get("Content-Range", "").rpartition("/")[2])
    return _parse_number(answer.headers.get("Content-Length")) if not answer.headers.get("Content-Encoding") else None


def _parse_number(text: str | None) -> int | None:
    # Limit the length, because int rejects a text with thousands of digits.
    return int(text) if text is not None and re.fullmatch("[0-9]{1,18}", text) else None


# Folders


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
            file = find_file_below(self._folder.resolve(), path)
        except OSError as error:
            raise HostUnreachable(f"{self._folder / path}: {error.strerror}") from error
        if file is None:
            raise ArtifactMissing(f"{self._folder / path} does not exist")
        return file


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
        status = path.stat()
    except OSError as error:
        raise HostUnreachable(f"{path}: {error.strerror}") from error
    return ArtifactHead(
        size=status.st_size,
        content_type=find_artifact_type(path.name),
        version=f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino} {status.st_size}",
    )


# Registries


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


# Mirrors


_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
_PART_SUFFIX: Final = ".part"  # of incomplete downloads, which are hidden files, so endpoints do not serve them
# The suffix of markers, whose mtime is the time of the first run that did not need the copy. A marker is a folder,
# because mirrors copy and report only files.
_UNNEEDED_SUFFIX: Final = ".unneeded"


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
    target = root / path
    message = ""
    try:
        outcome = _fetch_unless_exists(fetcher, file, target, is_stopped)
    except (ArtifactMissing, HostUnreachable, UsageError, _ContentMismatch) as error:
        outcome, message = MirrorOutcome.FAILED, str(error)
    except OSError as error:
        outcome, message = MirrorOutcome.FAILED, f"{target}: {error.strerror}"
    return MirroredArtifact(path=path, source=file.source or "", outcome=outcome, message=message)


def _fetch_unless_exists(
    fetcher: Fetcher, file: BootFile, target: Path, is_stopped: Callable[[], bool]
) -> MirrorOutcome:
    with open_output_folder(target.parent, make=True) as folder:
        with suppress(FileNotFoundError):
            os.rmdir(f".{target.name}{_UNNEEDED_SUFFIX}", dir_fd=folder)
        with suppress(FileNotFoundError):
            if stat.S_ISREG(os.lstat(target.name, dir_fd=folder).st_mode):
                return MirrorOutcome.EXISTS
        _fetch_file(fetcher, file, target.name, folder, is_stopped)
    return MirrorOutcome.FETCHED


class _ContentMismatch(Exception):
    """The downloaded content is not the content that the image states."""


def _fetch_file(fetcher: Fetcher, file: BootFile, name: str, folder: int, is_stopped: Callable[[], bool]) -> None:
    """Download a file to a folder, or resume an interrupted download.

    Delete the incomplete download if the content is wrong or if the disk is full.
    """
    part = f".{name}{_PART_SUFFIX}"
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
            if isinstance(error, _ContentMismatch) or error.errno in _DISK_FULL_ERRORS:
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
    max_bytes = file.size if file.size is not None else LARGEST_ARTIFACT
    written.seek(0)
    digest, size = sha256(), 0
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


_DIGEST_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


def prune_mirror(root: Path, needed_paths: Collection[str], now: datetime, keep: timedelta) -> list[str]:
    """Delete copies that no run has needed for the time ``keep``, and incomplete downloads of this age.

    The time begins with the first run whose ``needed_paths`` do not contain the copy. Return the sorted paths of the
    deleted files. gitboot recognizes copies by their file names, so the user data in the same folder is not deleted.
    Raises OSError if a copy cannot be deleted, and `UsageError` if the folder is unusable.
    """
    mirror = root / "o"
    check_output_folder(mirror)
    before_s = (now - keep).timestamp()
    pruned = []
    for folder in mirror.iterdir() if mirror.is_dir() else ():
        if not _DIGEST_FOLDER.fullmatch(folder.name) or not folder.is_dir() or folder.is_symlink():
            continue
        for name in MIRRORED_NAMES:
            part, path = folder / f".{name}{_PART_SUFFIX}", f"o/{folder.name}/{name}"
            if _prune_part(part, before_s):
                pruned.append(str(part.relative_to(root)))
            if _prune_copy(folder, name, now, before_s, is_needed=path in needed_paths):
                pruned.append(path)
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
    return sorted(pruned)


def _prune_copy(folder: Path, name: str, now: datetime, before_s: float, *, is_needed: bool) -> bool:
    """Delete a copy that no run has needed since then. Return whether the copy was deleted.

    The first run that does not need the copy writes the marker, and a run that needs the copy removes the marker.
    """
    file, marker = folder / name, folder / f".{name}{_UNNEEDED_SUFFIX}"
    if is_needed or not file.exists():
        with suppress(FileNotFoundError):
            marker.rmdir()
        return False
    if not marker.exists():
        marker.mkdir()
        os.utime(marker, (now.timestamp(), now.timestamp()))
    if marker.stat().st_mtime > before_s:
        return False
    marker.rmdir()
    file.unlink()
    return True


def _prune_part(part: Path, before_s: float) -> bool:
    """Delete an incomplete download that no process has changed since then. Return whether the file was deleted.

    A download that gitboot is not allowed to open or delete is left alone, for example one of another user.
    """
    if part.is_symlink() or not part.is_file():
        return False
    mode = "rb+" if os.access(part, os.W_OK, effective_ids=True) else "rb"  # NFS locks only files open for writing
    with suppress(FileNotFoundError, PermissionError), part.open(mode) as file:
        if os.fstat(file.fileno()).st_mtime <= before_s and _lock_part(file.fileno(), part):
            part.unlink()
            return True
    return False
