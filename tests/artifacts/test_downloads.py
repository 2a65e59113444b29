"""Checks of artifacts at real servers and registries: present, missing, wrong and unknown."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gitboot.artifacts.availability import (
    ArtifactHead,
    Fetcher,
    Presence,
    ReadResults,
    Sighting,
    check_artifact,
    check_artifacts,
    find_firmware_obstacle,
)
from gitboot.artifacts.downloads import FolderFetcher, PrefixFetcher, RegistryFetcher, WebFetcher
from gitboot.artifacts.oci import AllowedRegistry, Registries
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.http_client import HttpClient, MinimumRate
from gitboot.jsonio import Digest
from gitboot.resolve.server_decision import BootFile
from tests.helpers.artifact_servers import (
    ArtifactServer,
    Registry,
    ScriptedServer,
    artifact_server,
    compute_digest,
    digest,
    registry,
    run_scripted_server,
)
from tests.helpers.cases import for_each
from tests.helpers.endpoints import Site
from tests.helpers.git_repositories import free_port
from tests.helpers.http_peers import StrangeClient, strange_server
from tests.helpers.mirrors import nginx
from tests.render.test_web_servers import FLEET

KERNEL = b"kernel " * 1000


@pytest.fixture
def server() -> Iterator[ArtifactServer]:
    with artifact_server() as server:
        yield server


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp("tree")
    Site(root).publish(FLEET)
    folder = root / "boot" / "assets"
    folder.mkdir()
    for name in ("linux.efi", "disc.iso", "vmlinuz"):
        (folder / name).write_bytes(KERNEL)
    with nginx(root / "boot", root / "ops" / "serve", tmp_path_factory.mktemp("nginx")) as mirror:
        yield f"{mirror.url}/assets", folder


def make_boot_file(url: str, content: bytes = KERNEL) -> BootFile:
    return BootFile(url=url, sha256=compute_digest(content), size=len(content))


def test_a_file_of_nginx_is_verified(published: tuple[str, Path]) -> None:
    url, _ = published
    looked = check_artifact(WebFetcher(), make_boot_file(f"{url}/linux.efi"), read=False)
    assert (looked.presence, looked.head.size) == (Presence.FOUND, len(KERNEL))
    assert find_firmware_obstacle(url, looked.head) is None
    read = check_artifact(WebFetcher(), make_boot_file(f"{url}/linux.efi"), looked, read=True)
    assert (read.presence, read.head.version) == (Presence.VERIFIED, looked.head.version)
    assert read.head.version is not None
    assert find_firmware_obstacle(f"{url}/vmlinuz", WebFetcher().head(f"{url}/vmlinuz")) is not None  # octets


def test_a_file_that_nginx_lacks_is_missing_until_it_appears(published: tuple[str, Path]) -> None:
    url, folder = published
    file = make_boot_file(f"{url}/late.iso")
    assert check_artifact(WebFetcher(), file, read=True).presence is Presence.MISSING
    (folder / "late.iso").write_bytes(KERNEL)
    assert check_artifact(WebFetcher(), file, read=True).presence is Presence.VERIFIED


def test_an_interrupted_read_from_nginx_continues_at_its_offset(published: tuple[str, Path]) -> None:
    url, _ = published
    with WebFetcher().read(f"{url}/disc.iso", 100) as content:
        assert (content.offset, content.head.size) == (100, len(KERNEL))
        assert b"".join(content.chunks) == KERNEL[100:]
    with WebFetcher().read(f"{url}/disc.iso", len(KERNEL)) as content:  # no bytes are left: 416
        assert (content.offset, b"".join(content.chunks)) == (0, KERNEL)


@pytest.mark.parametrize("status", [401, 403, 416, 429, 500, 503])
def test_a_file_of_a_server_that_denies_access_is_unknown(server: ArtifactServer, status: int) -> None:
    file = server.put("/a", KERNEL)
    server.statuses["/a"] = status
    seen = check_artifact(WebFetcher(), file, read=True)
    assert seen.presence is Presence.UNKNOWN
    assert str(status) in seen.message


@pytest.mark.parametrize("status", [404, 410])
def test_a_404_and_a_410_mean_that_the_file_is_missing(server: ArtifactServer, status: int) -> None:
    file = server.put("/a", KERNEL)
    server.statuses["/a"] = status
    assert check_artifact(WebFetcher(), file, read=False).presence is Presence.MISSING


def test_a_refused_connection_and_an_unknown_host_name_are_unknown() -> None:
    for url in (f"http://127.0.0.1:{free_port()}/a", "http://nowhere.invalid/a", "oci://registry.test/a"):
        seen = check_artifact(PrefixFetcher({"http://": WebFetcher()}), make_boot_file(url), read=True)
        assert seen.presence is Presence.UNKNOWN, url
        assert seen.message
        assert "<" not in seen.message


def test_another_size_is_wrong_without_being_read(server: ArtifactServer) -> None:
    seen = check_artifact(WebFetcher(), replace(server.put("/a", KERNEL), size=7), read=False)
    assert (seen.presence, seen.message) == (
        Presence.WRONG,
        f"the file is {len(KERNEL)} bytes long, but the image specifies 7",
    )


def test_a_body_beyond_the_size_limit_is_not_read_to_its_end(server: ArtifactServer) -> None:
    file = replace(server.put("/a", bytes(8 << 20)), size=7)
    server.no_length = True
    seen = check_artifact(WebFetcher(), file, read=True)
    assert (seen.presence, seen.message) == (Presence.WRONG, "the file is larger than 7 bytes")


def test_the_content_of_a_slow_server_is_passed_on_as_it_arrives() -> None:
    size, was_received = 1 << 20, threading.Event()

    def answer(client: StrangeClient) -> None:
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        client.send(bytes(32 << 10))
        was_received.wait()
        client.send(bytes(size - (32 << 10)))

    fetcher = WebFetcher(rate=MinimumRate(size_bytes=1, period_s=10))
    with strange_server(answer) as server, fetcher.read(f"{server.url}/a") as content:
        first = next(content.chunks)
        was_received.set()
        assert len(first) + sum(map(len, content.chunks)) == size


def test_another_digest_is_wrong_once_it_is_read(server: ArtifactServer) -> None:
    file = replace(server.put("/a", KERNEL), sha256=Digest("0" * 64))
    looked = check_artifact(WebFetcher(), file, read=False)
    assert looked.presence is Presence.FOUND
    read = check_artifact(WebFetcher(), file, looked, read=True)
    assert read.presence is Presence.WRONG
    assert compute_digest(KERNEL) in read.message
    again = check_artifact(WebFetcher(), file, read, read=False)  # known by its ETag still
    assert again.presence is Presence.WRONG
    server.put("/a", b"other")
    assert check_artifact(WebFetcher(), replace(file, size=None), read, read=False).presence is Presence.FOUND


def test_a_file_is_not_read_again_while_its_version_is_the_same(server: ArtifactServer) -> None:
    file, fetcher = server.put("/a", KERNEL), WebFetcher()
    first = check_artifact(fetcher, file, read=True)
    assert (check_artifact(fetcher, file, first, read=True).presence, server.asked["GET", "/a"]) == (
        Presence.VERIFIED,
        1,
    )
    server.no_version = True  # no header shows any more that it is the same
    check_artifact(fetcher, file, first, read=True)
    assert server.asked["GET", "/a"] == 2


def test_a_result_is_found_by_the_version_and_by_the_size_and_digest_in_the_image(server: ArtifactServer) -> None:
    file, fetcher, cache = server.put("/a", KERNEL), WebFetcher(), MemoryCache()
    results = ReadResults(cache)
    assert check_artifact(fetcher, file, read=True, results=results).presence is Presence.VERIFIED
    again = check_artifact(fetcher, file, read=False, results=results)
    assert (again.presence, again.head.size) == (Presence.VERIFIED, len(KERNEL))
    other = replace(file, sha256=Digest("0" * 64))
    assert check_artifact(fetcher, other, read=False, results=results).presence is Presence.FOUND
    assert check_artifact(fetcher, other, read=True, results=results).presence is Presence.WRONG
    assert (
        check_artifact(fetcher, other, read=False, results=results).message
        == check_artifact(fetcher, other, read=True).message
    )
    assert server.asked["GET", "/a"] == 3
    server.put("/a", KERNEL[::-1])
    assert check_artifact(fetcher, file, read=True, results=results).presence is Presence.WRONG
    cache.held = dict.fromkeys(cache.held, b"of another type")
    assert check_artifact(fetcher, file, read=False, results=results).presence is Presence.FOUND
    server.no_version = True
    cache.held.clear()
    assert check_artifact(fetcher, file, read=True, results=results).presence is Presence.WRONG
    assert cache.held == {}


class MemoryCache:
    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    def get_many(self, kind: str, keys: Collection[bytes]) -> dict[bytes, bytes]:
        assert kind == "artifact"
        return {key: self.held[key] for key in keys if key in self.held}

    def insert_many(self, kind: str, rows: Mapping[bytes, bytes]) -> None:
        assert kind == "artifact"
        self.held = {**rows, **self.held}


def test_a_body_that_ends_too_early_is_unknown(server: ArtifactServer) -> None:
    file = server.put("/a", KERNEL)
    server.cut["/a"] = 1000
    assert check_artifact(WebFetcher(), file, read=True).presence is Presence.UNKNOWN


def test_a_server_without_head_gets_a_get_request(server: ArtifactServer) -> None:
    file = server.put("/a", KERNEL)
    server.no_head = True
    assert check_artifact(WebFetcher(), file, read=False).head.size == len(KERNEL)


def test_a_server_without_ranges_is_read_from_the_beginning(server: ArtifactServer) -> None:
    server.put("/a", KERNEL)
    server.no_ranges = True
    with WebFetcher().read(f"{server.url}/a", 100) as content:
        assert (content.offset, b"".join(content.chunks)) == (0, KERNEL)


def test_a_redirect_is_followed_and_firmware_would_not(server: ArtifactServer) -> None:
    server.put("/a", KERNEL, "application/efi")
    server.redirects["/old"] = "/a"
    seen = check_artifact(WebFetcher(), make_boot_file(f"{server.url}/old"), read=True)
    assert (seen.presence, seen.head.redirect_url) == (Presence.VERIFIED, f"{server.url}/a")
    signed = msgspec.structs.replace(seen.head, redirect_url=f"{server.url}/a?X-Amz-Signature=s3cret@x")
    for head in (seen.head, signed):
        assert (find_firmware_obstacle(f"{server.url}/old", head) or "").endswith(f"redirects to {server.url}/a")


@pytest.mark.parametrize("where", ["/old", "file:///etc/passwd", "ftp://127.0.0.1/a"])
def test_a_redirect_that_leads_nowhere_is_not_followed(server: ArtifactServer, where: str) -> None:
    server.redirects["/old"] = where
    assert check_artifact(WebFetcher(), make_boot_file(f"{server.url}/old"), read=True).presence is Presence.UNKNOWN


def test_firmware_needs_a_content_length(server: ArtifactServer) -> None:
    file = server.put("/a", KERNEL, "application/efi")
    server.no_length = True
    seen = check_artifact(WebFetcher(), file, read=True)
    assert seen.presence is Presence.VERIFIED
    assert "Content-Length" in (find_firmware_obstacle(file.url, seen.head) or "")


@for_each(
    ("path", "content_type", "boots"),
    [
        ("/a", "application/efi", True),
        ("/a", "Application/EFI", True),
        ("/a", "application/efi; charset=binary", False),
        ("/a", "application/octet-stream", False),
        ("/a.efi", "application/octet-stream", True),
        ("/a.EFI", "text/plain; charset=utf-8", True),
        ("/a.efi?version=1", "application/octet-stream", True),
        ("/a.iso", None, True),
        ("/a?name=b.efi", "application/octet-stream", False),
    ],
)
def test_firmware_finds_the_kind_of_a_file_by_its_content_type_or_by_its_extension(
    path: str, content_type: str | None, boots: bool
) -> None:
    """OVMF 2022.11 boots the same files."""
    head = ArtifactHead(size=len(KERNEL), content_type=content_type)
    assert (find_firmware_obstacle(f"http://boot.test{path}", head) is None) == boots


@pytest.mark.parametrize("path", ["../outside", "%2e%2e/outside", "link", ".hidden", "none", "folder"])
def test_a_folder_has_the_files_that_endpoints_serve_and_no_others(tmp_path: Path, path: str) -> None:
    root = tmp_path / "assets"
    (root / "folder").mkdir(parents=True)
    for name in ("outside", "assets/.hidden", "assets/vm linuz"):
        (tmp_path / name).write_bytes(KERNEL)
    (root / "link").symlink_to(tmp_path / "outside")
    fetcher = FolderFetcher(root, "http://boot.test/assets/")
    assert (
        check_artifact(fetcher, make_boot_file("http://boot.test/assets/vm%20linuz"), read=True).presence
        is Presence.VERIFIED
    )
    with pytest.raises(ArtifactMissing):
        fetcher.head(f"http://boot.test/assets/{path}")
    with pytest.raises(ArtifactMissing), fetcher.read(f"http://boot.test/assets/{path}"):
        pass


def test_names_in_a_folder_may_contain_the_characters_that_separate_parts_of_urls(tmp_path: Path) -> None:
    fetcher = FolderFetcher(tmp_path, "http://boot.test/assets/")
    for name, other in (("debian:12", "12"), ("a@b", "b")):
        for folder, content in ((name, KERNEL), (other, b"other")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "vmlinuz").write_bytes(content)
        file = make_boot_file(f"http://boot.test/assets/{name}/vmlinuz")
        assert check_artifact(fetcher, file, read=True).presence is Presence.VERIFIED
    for url in ("http://boot.test/assets///[x/vmlinuz", "http://boot.test/assets//b/vmlinuz"):
        with pytest.raises(ArtifactMissing):
            fetcher.head(url)


def test_an_error_of_the_reader_is_not_an_error_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(KERNEL)
    with pytest.raises(OSError, match="full"), FolderFetcher(tmp_path, "http://b/").read("http://b/a"):
        raise OSError("full")


def test_a_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(KERNEL)
    fetcher, file = FolderFetcher(tmp_path, "http://b/"), make_boot_file("http://b/a")
    first = check_artifact(fetcher, file, read=True)
    assert check_artifact(fetcher, file, first, read=False).presence is Presence.VERIFIED
    (tmp_path / "b").write_bytes(KERNEL[::-1])
    os.utime(tmp_path / "b", ns=(0, (tmp_path / "a").stat().st_mtime_ns))
    (tmp_path / "b").rename(tmp_path / "a")
    assert check_artifact(fetcher, file, first, read=True).presence is Presence.WRONG


def test_the_longest_prefix_selects_the_fetcher(tmp_path: Path, server: ArtifactServer) -> None:
    (tmp_path / "a").write_bytes(KERNEL)
    both = PrefixFetcher(
        {"http://": WebFetcher(), f"{server.url}/assets/": FolderFetcher(tmp_path, f"{server.url}/assets/")}
    )
    assert check_artifact(both, make_boot_file(f"{server.url}/assets/a"), read=True).presence is Presence.VERIFIED
    assert check_artifact(both, make_boot_file(f"{server.url}/a"), read=True).presence is Presence.MISSING
    with pytest.raises(HostUnreachable), both.read("ftp://x/a"):
        pass


def test_connections_that_were_not_read_to_their_end_are_not_lost(server: ArtifactServer) -> None:
    server.put("/a", bytes(1 << 20))
    fetcher = WebFetcher(per_host=1)
    for _ in range(3):
        with fetcher.read(f"{server.url}/a") as content:
            next(content.chunks)
        assert fetcher.head(f"{server.url}/a").size == 1 << 20


def test_each_artifact_is_checked_and_reported_once(server: ArtifactServer) -> None:
    files = [server.put(f"/{number}", b"%d" % number) for number in range(50)]
    seen: dict[BootFile, Sighting] = {}
    results = ReadResults(MemoryCache())
    check_artifacts(WebFetcher(), files, results, seen.__setitem__, read=True, parallel=8)
    assert {each.presence for each in seen.values()} == {Presence.VERIFIED}
    assert seen.keys() == set(files)
    again: dict[BootFile, Sighting] = {}
    check_artifacts(WebFetcher(), files, results, again.__setitem__, read=True, parallel=8)
    assert (again, server.asked["GET", "/1"]) == (seen, 1)


BLOB = b"kernel" * 1_000_000


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder, storage=folder / "storage") as found:
        found.push_blob("os/linux", BLOB)
        yield found


def fetcher(allowed: str) -> Fetcher:
    return RegistryFetcher(Registries([AllowedRegistry.parse(allowed)], HttpClient()))


def url(host: str, content: bytes = BLOB) -> str:
    return f"oci://{host}/os/linux@sha256:{digest(content)}"


def test_a_blob_is_read_from_any_offset(found: Registry) -> None:
    asked = fetcher(found.allowed)
    head = asked.head(url(found.host))
    assert (head.size, head.version) == (len(BLOB), f"sha256:{digest(BLOB)}")
    for offset in (0, 1, len(BLOB) - 1):
        with asked.read(url(found.host), offset) as content:
            assert (content.head, content.offset, b"".join(content.chunks)) == (
                head,
                offset,
                BLOB[offset:],
            )


def test_a_blob_is_read_from_the_start_if_the_offset_is_behind_its_end(found: Registry) -> None:
    with fetcher(found.allowed).read(url(found.host), len(BLOB)) as content:
        assert (content.offset, b"".join(content.chunks)) == (0, BLOB)


def test_an_absent_blob_is_missing_and_a_denied_one_is_unknown(found: Registry) -> None:
    with pytest.raises(ArtifactMissing):
        fetcher(found.allowed).head(url(found.host, b"other"))
    for refused in (fetcher("registry.test"), fetcher("http://127.0.0.1:1")):
        with pytest.raises(HostUnreachable), refused.read(url(found.host)):
            pass
    with pytest.raises(HostUnreachable):
        fetcher("http://127.0.0.1:1").head(url("127.0.0.1:1"))


def test_a_range_other_than_the_requested_one_is_rejected() -> None:
    server = ScriptedServer()
    with run_scripted_server(server):
        path = f"/v2/os/linux/blobs/sha256:{digest(BLOB)}"
        server.answers[path] = 206, {"Content-Range": "bytes 5-9/10"}, b"nel"
        with pytest.raises(HostUnreachable, match="from byte 5"), fetcher(server.url).read(url(server.host), 3):
            pass
        server.answers[path] = 416, {}, b"no"
        with pytest.raises(HostUnreachable, match="416"), fetcher(server.url).read(url(server.host), 3):
            pass
        server.answers[path] = 200, {}, b"kernel"  # a server without ranges
        with fetcher(server.url).read(url(server.host), 3) as content:
            assert (content.offset, b"".join(content.chunks)) == (0, b"kernel")


@pytest.mark.parametrize("status", [200, 206])
def test_a_size_of_thousands_of_digits_counts_as_no_size(status: int) -> None:
    server, number = ScriptedServer(), "9" * 5000
    with run_scripted_server(server):
        server.answers["/a"] = status, {"Content-Length": number, "Content-Range": f"bytes 0-2/{number}"}, b"abc"
        with WebFetcher().read(f"{server.url}/a") as content:
            assert (content.head.size, b"".join(content.chunks)) == (None, b"abc")
        server.answers["/a"] = 206, {"Content-Range": f"bytes {number}-2/3"}, b"abc"
        with pytest.raises(HostUnreachable, match="999"), WebFetcher().read(f"{server.url}/a", 3):
            pass


def test_a_blob_that_ends_too_early_is_unknown() -> None:
    server = ScriptedServer()
    with run_scripted_server(server):
        server.answers[f"/v2/os/linux/blobs/sha256:{digest(BLOB)}"] = (
            200,
            {"Content-Length": "9"},
            b"kernel",
        )
        with fetcher(server.url).read(url(server.host)) as content:
            chunks = iter(content.chunks)
            assert next(chunks) == b"kernel"
            with pytest.raises(HostUnreachable, match="ended too early"):
                next(chunks)
