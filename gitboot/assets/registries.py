"""Artifacts in OCI registries: an image's blobs, by their digests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from gitboot.artifacts.availability import ArtifactHead, Content
from gitboot.artifacts.fetchers import CHUNK
from gitboot.artifacts.oci import Registries
from gitboot.errors import ArtifactMissing, HostUnreachable, NotInRegistry, RegistryRefused
from gitboot.http_client import AnswerStream
from gitboot.oci.reference import OciReference


class RegistryFetcher:
    """Of the registries that may be asked; one that may not is as one that does not answer."""

    def __init__(self, registries: Registries) -> None:
        self._registries = registries

    def head(self, url: str) -> ArtifactHead:
        """What the registry says of a blob."""
        with _told(), self._registries.blob(OciReference.parse(url), method="HEAD") as answer:
            return _head_of(answer, url)

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        """Read a blob, in a range where that is asked for and given."""
        wanted = {"Range": f"bytes={offset}-"} if offset else {}
        with _told(), self._registries.blob(OciReference.parse(url), headers=wanted) as answer:
            if answer.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                yield Content(_head_of(answer, url), _offset_of(answer, offset), _chunks(answer))
                return
        with self.read(url) as content:
            yield content


@contextmanager
def _told() -> Iterator[None]:
    """Let what registries say be what `Fetcher` says."""
    try:
        yield
    except NotInRegistry as error:
        raise ArtifactMissing(str(error)) from error
    except RegistryRefused as error:
        raise HostUnreachable(str(error)) from error


def _head_of(answer: AnswerStream, url: str) -> ArtifactHead:
    """A blob's version is its digest: it changes with the content."""
    given = answer.headers.get("Content-Length", "")
    if answer.status == HTTPStatus.PARTIAL_CONTENT:
        given = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return ArtifactHead(size=_number(given), version=url.rpartition("@")[2])


def _offset_of(answer: AnswerStream, wanted: int) -> int:
    """Where a body begins in the whole."""
    if answer.status != HTTPStatus.PARTIAL_CONTENT:
        return 0
    if not answer.headers.get("Content-Range", "").startswith(f"bytes {wanted}-"):
        raise HostUnreachable(f"asked for what follows {wanted} bytes, and was given something else")
    return wanted


def _chunks(answer: AnswerStream) -> Generator[bytes, None, None]:
    while chunk := answer.read(CHUNK):
        yield chunk


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() else None
