"""Artifact downloads from web servers, the published folder and OCI registries, and local copies of artifacts."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gitboot.artifacts.archives import ArchiveFetcher
from gitboot.artifacts.availability import LARGEST_ARTIFACT, ArtifactHead, Content, Fetcher
from gitboot.artifacts.oci import OciReference, Registries
from gitboot.errors import ArtifactMissing, GitbootError, HostUnreachable, NotInRegistry, RegistryRefused, UsageError
from gitboot.files import check_output_folder, find_file_below, lock_file, open_output_folder, sync_folder
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate, format_host
from gitboot.model.scalars import split_member_url
from gitboot.render.paths import find_artifact_type
from gitboot.resolve.boot_composition import MIRRORED_NAMES
from gitboot.resolve.server_decision import BootFile

CHUNK: Final = 1 << 20  # the maximum size of one read in bytes


class PrefixFetcher:
    """Selects a fetcher by the prefix of the URL. The longest matching prefix wins.

    If the URL names a file in an archive, the selected fetcher reads the archive.
    """

    def __init__(self, by_prefix: Mapping[str, Fetcher]) -> None:
        self._by_prefix = dict(sorted(by_prefix.items(), key=lambda each: -len(each[0])))

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
    """Reads artifacts from a first fetcher, and falls back to a second one."""

    def __init__(self, first: Fetcher, second: Fetcher, *, unless: type[GitbootError]) -> None:
        """Fall back to ``second`` if ``first`` raises the error ``unless``."""
        self._first, self._second, self._unless = first, second, unless

    def head(self, url: str) -> ArtifactHead:
        with suppress(self._unless):
            return self._first.head(url)
        return self._second.head(url)

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        with suppress(self._unless):
            self._first.head(url)
            return self._first.read(url, offset)
        return self._second.read(url, offset)


# Web servers

_MOST_REDIRECTS: Final = 5
_GONE: Final = (404, 410)
_NO_HEAD: Final = (405, 501)  # responses of servers that do not support HEAD
_NO_RANGE: Final = 416


class WebFetcher:
    """Downloads over HTTP and HTTPS. This fetcher trusts the certificate authorities that this host trusts."""

    def __init__(
        self,
        *,
        uses_proxies: bool = False,
        per_host: int = 8,
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
        ca_bundle: Path | None = None,
    ) -> None:
        """Create a fetcher that, by default, ignores proxies, because boot loaders do not use proxies either.

        The headers of a response must arrive before the deadline. The body must arrive at ``rate`` or faster.
        """
        self._client = HttpClient(uses_proxies=uses_proxies, connections_per_host=per_host, ca_bundle=ca_bundle)
        self._deadline_s, self._rate = deadline_s, rate

    def head(self, url: str) -> ArtifactHead:
        """Send a HEAD request, or a GET request if the server does not support HEAD, and return the metadata."""
        with self._answer("HEAD", url, {}) as answer:
            if answer.status not in _NO_HEAD:
                return _build_head(answer, url)
        with self._answer("GET", url, {}) as answer:
            return _build_head(answer, url)

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        return _open_content(partial(self._answer, "GET", url), partial(_build_head, url=url), offset)

    @contextmanager
    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[AnswerStream]:
        """Follow all redirects, and yield the last response."""
        options: Any = {"deadline_s": self._deadline_s, "rate": self._rate, "redirects": _MOST_REDIRECTS}
        try:
            with self._client.stream(method, url, headers=headers, **options) as answer:
                yield answer
        except UsageError as error:  # the URL is invalid
            raise HostUnreachable(str(error)) from error


def _build_head(answer: AnswerStream, url: str) -> ArtifactHead:
    if answer.status in _GONE:
        raise ArtifactMissing(f"{format_host(url)} answers {answer.status}")
    if answer.status not in (200, 206):
        raise HostUnreachable(f"{format_host(url)} answers {answer.status}")
    size = _read_size(answer)
    named = [given for name in ("ETag", "Last-Modified") if (given := answer.headers.get(name))]
    return ArtifactHead(
        size=size,
        content_type=answer.headers.get("Content-Type"),
        version=" ".join((*named, str(size))) if named else None,
        redirect_url=answer.final_url,
    )


@contextmanager
def _open_content(
    open_answer: Callable[[Mapping[str, str]], AbstractContextManager[AnswerStream]],
    build_head: Callable[[AnswerStream], ArtifactHead],
    offset: int,
) -> Iterator[Content]:
    """Yield the content of a file from an offset, or from its start if the server does not support ranges.

    ``open_answer`` sends a request with the given headers. Raises `HostUnreachable` if the server returns a different
    range than the requested one.
    """
    with open_answer({"Range": f"bytes={offset}-"} if offset else {}) as answer:
        if answer.status != _NO_RANGE:
            is_part = answer.status == 206
            first = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if is_part and _parse_number(first) != offset:
                given = first or "none"
                raise HostUnreachable(
                    f"gitboot requested the file from byte {offset}, but the server returned it from {given}"
                )
            yield Content(build_head(answer), offset if is_part else 0, iter(partial(answer.read, CHUNK), b""))
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
    is_number = text is not None and text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS
    return int(text) if text is not None and is_number else None


_MOST_DIGITS: Final = 18  # a limit, because int rejects a text with thousands of digits


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
        path = unquote(urlsplit(url.removeprefix(self._url)).path)
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
_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


class Mirroring(StrEnum):
    FETCHED = "fetched"
    THERE = "there"
    FAILED = "failed"


class MirroredArtifact(Struct, frozen=True, kw_only=True):
    """The result of mirroring one artifact."""

    path: str  # relative to boot/
    source: str
    outcome: Mirroring
    message: str = ""  # why the download failed; "" if it did not fail


def mirror_path(file: BootFile) -> str:
    """Return the path of a file's local copy, relative to boot/."""
    return f"o/{file.sha256}/{file.url.rpartition('/')[2]}"


def mirror_all(
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
    by_path = {mirror_path(file): file for file in files if file.source is not None}
    stop = Event()
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="mirror")
    try:
        jobs = [pool.submit(_mirror, fetcher, file, path, root, stop.is_set) for path, file in sorted(by_path.items())]
        for job in as_completed(jobs):
            report(job.result())
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _mirror(
    fetcher: Fetcher, file: BootFile, path: str, root: Path, is_stopped: Callable[[], bool]
) -> MirroredArtifact:
    source = file.source or ""
    target = root / path
    part, is_there = f".{target.name}{_PART}", False
    try:
        with open_output_folder(target.parent, make=True) as folder:
            with suppress(FileNotFoundError):
                is_there = stat.S_ISREG(os.lstat(target.name, dir_fd=folder).st_mode)
            if is_there:
                # mark the copy as used, because `prune` deletes copies that were not used recently
                os.utime(target.name, dir_fd=folder)
                return MirroredArtifact(path=path, source=source, outcome=Mirroring.THERE)
            try:
                _fetch(fetcher, file, source, part, folder, is_stopped)
                os.rename(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                sync_folder(".", folder)
            except OSError as error:
                if error.errno in _FULL:  # the disk is full, but gitboot must still be able to write boot files
                    with suppress(FileNotFoundError):
                        os.unlink(part, dir_fd=folder)
                raise
    except (ArtifactMissing, HostUnreachable, UsageError, _ContentMismatch) as error:
        return MirroredArtifact(path=path, source=source, outcome=Mirroring.FAILED, message=str(error))
    except OSError as error:
        message = f"{target}: {error.strerror}"
        return MirroredArtifact(path=path, source=source, outcome=Mirroring.FAILED, message=message)
    return MirroredArtifact(path=path, source=source, outcome=Mirroring.FETCHED)


class _ContentMismatch(Exception):
    """The downloaded content does not have the digest that the image states."""


def _fetch(
    fetcher: Fetcher, file: BootFile, source: str, part: str, folder: int, is_stopped: Callable[[], bool]
) -> None:
    """Download a file to ``part``, or resume an interrupted download.

    Delete ``part`` if the digest of the file is wrong.
    """
    fd = os.open(part, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with open(fd, "ab+") as written:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file")
        if not lock_file(fd):
            raise HostUnreachable("another process is downloading the file")
        written.seek(0)
        digest, size, most_bytes = sha256(), 0, file.size if file.size is not None else LARGEST_ARTIFACT
        while chunk := written.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
        if not (size and digest.hexdigest() == file.sha256):
            with fetcher.read(source, size) as content:
                if content.offset != size:
                    written.truncate(0)
                    digest, size = sha256(), 0
                for chunk in content.chunks:
                    written.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    if is_stopped():
                        raise HostUnreachable("the download was stopped")
                    if size > most_bytes:
                        break
        written.flush()
        os.fchmod(written.fileno(), 0o644)
        os.fsync(written.fileno())
    if digest.hexdigest() != file.sha256:
        os.unlink(part, dir_fd=folder)
        raise _ContentMismatch(
            f"the file ({size} bytes) has the sha256 {digest.hexdigest()}, but the image states {file.sha256}"
        )


def prune(root: Path, needed_paths: Collection[str], before_s: float) -> list[str]:
    """Delete copies that are not in ``needed_paths`` and were last used before ``before_s``. Return their sorted paths.

    gitboot does not delete the user data in the same folder, because its file names differ from those of copies. Raises
    OSError if a file cannot be deleted, and `UsageError` if the folder is unusable.
    """
    check_output_folder(root / "o")
    pruned = []
    for folder in sorted((root / "o").iterdir()) if (root / "o").is_dir() else ():
        is_ours = _FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink()
        for file in sorted(folder.iterdir()) if is_ours else ():
            path = f"o/{folder.name}/{file.name}"
            name = file.name.removeprefix(".").removesuffix(_PART)
            if name in MIRRORED_NAMES and path not in needed_paths and file.stat().st_mtime < before_s:
                file.unlink()
                pruned.append(path)
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
    return pruned
