from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gitboot.endpoint import app
from gitboot.files import find_file_below
from tests.helpers import http_peers
from tests.helpers.endpoints import LOADER, connect, exchange, get, read_all, remove_date, site

KERNEL = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "secret").write_text("secret")
    assets = root / "assets"
    (assets / "flatcar").mkdir(parents=True)
    for name in ("kernel", "x.efi", "X.EFI", "x.iso", "x.img", "a b.json"):
        (assets / "flatcar" / name).write_bytes(KERNEL)
    (assets / ".hidden").write_text("hidden")
    (assets / "current").symlink_to("flatcar")
    (assets / "out").symlink_to("../secret")
    (assets / "root").symlink_to("/")
    (assets / "loop").symlink_to("loop")
    os.mkfifo(assets / "pipe")
    (assets / "loaders").mkdir()
    (assets / "loaders/ldlinux.c32").write_bytes(KERNEL)
    return assets


@pytest.fixture(scope="module")
def client(assets: Path) -> Iterator[httpx.Client]:
    with site() as made, made.serve(assets=assets) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        yield client


def test_pxelinux_finds_its_core_beside_its_configurations(client: httpx.Client, assets: Path) -> None:
    found = client.get("/ldlinux.c32")
    assert (found.status_code, found.content) == (200, KERNEL)
    assert found.headers["etag"] == client.get("/assets/loaders/ldlinux.c32").headers["etag"]
    with site() as made, made.serve(assets=assets / "flatcar") as elsewhere, made.serve() as without:
        assert [get(f"{url}/ldlinux.c32").status_code for url in (elsewhere, without)] == [404, 404]
        assert get(f"{without}/assets/flatcar/kernel").status_code == 404


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("flatcar/kernel", "application/octet-stream"),
        ("flatcar/x.efi", "application/efi"),
        ("flatcar/X.EFI", "application/efi"),
        ("flatcar/x.iso", "application/vnd.efi-iso"),
        ("flatcar/x.img", "application/vnd.efi-img"),
        ("flatcar/a%20b.json", "application/json"),
        ("current/kernel", "application/octet-stream"),
    ],
)
def test_files_have_the_media_types_that_firmware_expects(client: httpx.Client, path: str, content_type: str) -> None:
    response = client.get(f"/assets/{path}")
    assert (response.status_code, response.content, response.headers["content-type"]) == (200, KERNEL, content_type)
    assert response.headers["content-length"] == str(len(KERNEL))
    head = client.head(f"/assets/{path}")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(KERNEL)))


@pytest.mark.parametrize(
    ("wanted", "status", "expected"),
    [
        ("bytes=0-99", 206, KERNEL[:100]),
        ("bytes=100-", 206, KERNEL[100:]),
        ("bytes=-10", 206, KERNEL[-10:]),
        ("bytes=999999999-", 416, b""),
    ],
)
def test_a_download_can_be_resumed(client: httpx.Client, wanted: str, status: int, expected: bytes) -> None:
    response = client.get("/assets/flatcar/kernel", headers={"range": wanted})
    assert (response.status_code, response.content) == (status, expected)


@pytest.mark.parametrize("wanted", ["bytes=0-99", "bytes=999999999-", "sectors=1"])
def test_a_range_applies_only_to_get(client: httpx.Client, wanted: str) -> None:
    """RFC 9110, 14.2."""
    head = client.head("/assets/flatcar/kernel", headers={"range": wanted})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(KERNEL)))
    assert "content-range" not in head.headers


def test_a_client_that_has_the_file_already_gets_a_304(client: httpx.Client) -> None:
    etag = client.get("/assets/flatcar/kernel").headers["etag"]
    response = client.get("/assets/flatcar/kernel", headers={"if-none-match": etag})
    assert (response.status_code, response.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "flatcar",
        "flatcar/",
        "flatcar/kernel/",
        "..//secret",
        "/..//secret",
        "flatcar/./kernel",
        "flatcar/../flatcar/kernel",
        "../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "%252e%252e/secret",
        "..\\secret",
        "..%5csecret",
        "flatcar/../../secret",
        "out",
        "root/etc/passwd",
        "pipe",
        ".hidden",
        "flatcar/kernel%00",
        "flatcar/%ff",
        "a" * 300,
        "a/" * 5000,
    ],
    ids=lambda path: path[:40] or "nothing",
)
def test_no_other_file_is_served(client: httpx.Client, path: str) -> None:
    asked, nothing = (
        remove_date(exchange(str(client.base_url), f"GET {each} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()))
        for each in (f"/assets/{path}", "/nothing")
    )
    assert asked == nothing


def test_finding_m5_an_unreadable_file_is_not_absent(client: httpx.Client) -> None:
    answer = client.get("/assets/loop")
    assert (answer.status_code, answer.content) == (503, b"#")


def test_a_file_that_is_removed_after_the_endpoint_found_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_and_remove(root: Path, path: str) -> Path | None:
        if (found := find_file_below(root, path)) is not None:
            found.unlink()
        return found

    monkeypatch.setattr(app, "find_file_below", find_and_remove)
    (tmp_path / "kernel").write_bytes(KERNEL)
    with site() as made, made.serve(assets=tmp_path) as url:
        answer = get(f"{url}/assets/kernel")
    assert (answer.status_code, answer.content) == (404, b"#")


def test_a_file_that_shrinks_while_it_is_sent_breaks_the_connection(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(b"k" * 30_000_000)
    with site() as made, made.serve(assets=tmp_path) as url, connect(url, receive_buffer=65536) as client:
        client.sendall(b"GET /assets/kernel HTTP/1.1\r\nHost: x\r\n\r\n")
        received = client.recv(1000)
        os.truncate(tmp_path / "kernel", 1_000_000)
        received += read_all(client)
    assert len(received) < 30_000_000
    assert received.count(b"HTTP/1.1 ") == 1, "a second answer in the midst of the first"
