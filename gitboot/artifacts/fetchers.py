"""Artifact fetchers: read artifacts from web servers, the published folder and OCI registries."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gitboot.artifacts.archives import ArchiveFetcher
from gitboot.artifacts.availability import ArtifactHead, Content, Fetcher
from gitboot.artifacts.oci import OciReference, Registries
from gitboot.errors import ArtifactMissing, GitbootError, HostUnreachable, NotInRegistry, RegistryRefused, UsageError
from gitboot.files import find_file_below
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate, format_host
from gitboot.model.scalars import split_member_url
from gitboot.render.paths import find_artifact_type

CHUNK: Final = 1 << 20  # bytes that one read returns at most


class PrefixFetcher:
    """Selects a fetcher by the prefix of the URL. The longest matching prefix wins.

    For the URL of a file in an archive, the selected fetcher reads the archive.
    """

    def __init__(self, by_prefix: Mapping[str, Fetcher]) -> None:
        self._by_prefix = dict(sorted(by_prefix.items(), key=lambda each: -len(each[0])))

    def _find_fetcher(self, url: str) -> Fetcher:
        for prefix, fetcher in self._by_prefix.items():
            if url.startswith(prefix):
                return ArchiveFetcher(fetcher) if split_member_url(url) is not None else fetcher
        raise HostUnreachable(f"gitboot has no way to fetch {url}")

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
    """Fetches over HTTP and HTTPS, and trusts the certificate authorities that this host trusts."""

    def __init__(
        self,
        *,
        uses_proxies: bool = False,
        per_host: int = 8,
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
    ) -> None:
        """By default, ignore proxies, because boot loaders do not use a proxy either.

        The deadline applies to the response up to its body. The body must arrive at ``rate`` or faster.
        """
        self._client = HttpClient(uses_proxies=uses_proxies, connections_per_host=per_host)
        self._deadline_s, self._rate = deadline_s, rate

    def head(self, url: str) -> ArtifactHead:
        """Return the metadata from the response to HEAD, or to GET if the server does not support HEAD."""
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
    """Yield the content from an offset, or from 0 if the server does not support ranges.

    ``open_answer`` takes the headers of the request. Raises `HostUnreachable` if the server returns another range than
    the requested one.
    """
    with open_answer({"Range": f"bytes={offset}-"} if offset else {}) as answer:
        if answer.status != _NO_RANGE:
            is_part = answer.status == 206
            first = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if is_part and _parse_number(first) != offset:
                given = first or "none"
                raise HostUnreachable(
                    f"gitboot requested the file from byte {offset}, and the server returned it from {given}"
                )
            yield Content(build_head(answer), offset if is_part else 0, iter(partial(answer.read, CHUNK), b""))
            return
    if not offset:
        raise HostUnreachable(f"the server answers {_NO_RANGE} to a request without a range")
    with _open_content(open_answer, build_head, 0) as content:
        yield content


def _read_size(answer: AnswerStream) -> int | None:
    if answer.status == 206:
        return _parse_number(answer.headers.get("Content-Range", "").rpartition("/")[2])
    return _parse_number(answer.headers.get("Content-Length")) if not answer.headers.get("Content-Encoding") else None


def _parse_number(text: str | None) -> int | None:
    is_number = text is not None and text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS
    return int(text) if text is not None and is_number else None


_MOST_DIGITS: Final = 18  # int rejects a text of thousands of digits


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
    """Reads blobs from the allowed registries, and treats all other registries as unreachable."""

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
