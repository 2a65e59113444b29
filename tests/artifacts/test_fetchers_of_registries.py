"""Artifacts in registries, as whoever mirrors and verifies artifacts fetches them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gitboot.artifacts.availability import Fetcher
from gitboot.artifacts.fetchers import RegistryFetcher
from gitboot.artifacts.oci import AllowedRegistry, Registries
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.http_client import HttpClient
from tests.helpers.artifact_servers import Registry, Scripted, digest, registry, serving

KERNEL = b"kernel" * 1_000_000


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder, storage=folder / "storage") as found:
        found.push_blob("os/linux", KERNEL)
        yield found


def fetcher(allowed: str) -> Fetcher:
    return RegistryFetcher(Registries([AllowedRegistry.parse(allowed)], HttpClient()))


def url(host: str, content: bytes = KERNEL) -> str:
    return f"oci://{host}/os/linux@sha256:{digest(content)}"


def test_a_blob_is_read_from_any_offset(found: Registry) -> None:
    asked = fetcher(found.allowed)
    head = asked.head(url(found.host))
    assert (head.size, head.version) == (len(KERNEL), f"sha256:{digest(KERNEL)}")
    for offset in (0, 1, len(KERNEL) - 1):
        with asked.read(url(found.host), offset) as content:
            assert (content.head, content.offset, b"".join(content.chunks)) == (head, offset, KERNEL[offset:])


def test_from_behind_its_end_a_blob_is_read_anew(found: Registry) -> None:
    with fetcher(found.allowed).read(url(found.host), len(KERNEL)) as content:
        assert (content.offset, b"".join(content.chunks)) == (0, KERNEL)


def test_a_blob_that_is_missing_is_known_to_be_and_one_that_is_refused_is_not(found: Registry) -> None:
    with pytest.raises(ArtifactMissing):
        fetcher(found.allowed).head(url(found.host, b"other"))
    for refused in (fetcher("registry.test"), fetcher("http://127.0.0.1:1")):
        with pytest.raises(HostUnreachable), refused.read(url(found.host)):
            pass
    with pytest.raises(HostUnreachable):
        fetcher("http://127.0.0.1:1").head(url("127.0.0.1:1"))


def test_a_part_is_taken_only_for_what_it_is() -> None:
    server = Scripted()
    with serving(server):
        path = f"/v2/os/linux/blobs/sha256:{digest(KERNEL)}"
        server.answers[path] = 206, {"Content-Range": "bytes 5-9/10"}, b"nel"
        with pytest.raises(HostUnreachable, match="follows 5"), fetcher(server.url).read(url(server.host), 3):
            pass
        server.answers[path] = 416, {}, b"no"
        with pytest.raises(HostUnreachable, match="416"), fetcher(server.url).read(url(server.host), 3):
            pass
        server.answers[path] = 200, {}, b"kernel"  # a server that knows no ranges
        with fetcher(server.url).read(url(server.host), 3) as content:
            assert (content.offset, b"".join(content.chunks)) == (0, b"kernel")


def test_a_blob_that_ends_too_early_is_not_taken_for_another() -> None:
    server = Scripted()
    with serving(server):
        server.answers[f"/v2/os/linux/blobs/sha256:{digest(KERNEL)}"] = 200, {"Content-Length": "9"}, b"kernel"
        with fetcher(server.url).read(url(server.host)) as content:
            chunks = iter(content.chunks)
            assert next(chunks) == b"kernel"
            with pytest.raises(HostUnreachable, match="ended too early"):
                next(chunks)
