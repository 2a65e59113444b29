"""nginx and Caddy with the published configuration: responses like those of the endpoint, and logs as evidence."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gitboot.fetchlog.access_logs import IgnoreReason, LineContent, parse_line
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import read_new_lines
from gitboot.fetchlog.unknown_machines import UnknownMachine
from gitboot.render.paths import TABLE, File, Role, find_path_kind
from tests.helpers import http_peers, mirrors
from tests.helpers.endpoints import (
    BEFORE,
    ENTRY,
    GRUB,
    LOADER,
    MAC,
    REPAIR,
    UUID,
    Site,
    connect,
    eventually,
    plan_fleet,
    read_all,
)
from tests.helpers.fleets import SEED, fleet, image, policy, profile, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.mirrors import Mirror, caddy, make_unreadable, nginx

REPORTING = (
    fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"),
    server("new01", "role: new", "provision: 1"),
    policy("new", "{matchLabels: {role: new}}", often="Once"),
    server("edge01", "role: edge"),
    image("edge-1", "userData: Ignition/3.4, configFrom: SystemUUID", "uki"),
    profile("edge", "edge-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
    policy("edge", "{matchLabels: {role: edge}}", boots="edge"),
)
NOBODY = "52-54-00-00-00-99"
FLEET = plan_fleet(*REPORTING, *SEED[1:], REPAIR)
ARTIFACTS = "/o/mirrored"
SIZE = 8 * 1024 * 1024  # more than fits into the buffers between two sockets


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    Site(root).publish(FLEET)
    folder = root / f"boot{ARTIFACTS}"
    folder.mkdir()
    for name in ("linux.efi", "disc.iso", "disk.img", "vmlinuz", "config.ign", "ks.cfg", "meta-data"):
        (folder / name).write_bytes(name.encode())
    (folder / "large").write_bytes(bytes(SIZE))
    (folder / ".hidden").write_bytes(b"x")
    loaders = root / "boot/assets/loaders"
    loaders.mkdir(parents=True)
    (loaders / "grubx64.efi").write_bytes(b"GRUB")
    return root


@pytest.fixture(scope="module")
def endpoint(output: Path) -> Iterator[httpx.Client]:
    with Site(output).serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        yield client


RUNNING = {"nginx": nginx, "caddy": caddy}


@pytest.fixture(scope="module", params=RUNNING)
def mirror(request: pytest.FixtureRequest, output: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    folder = tmp_path_factory.mktemp(request.param)
    with RUNNING[request.param](output / "boot", output / "ops" / "serve", folder) as mirror:
        yield mirror


@pytest.fixture
def client(mirror: Mirror) -> Iterator[httpx.Client]:
    with http_peers.Client(base_url=mirror.url, headers=LOADER) as client:
        yield client


def test_the_page_describes_what_to_set_in_each_configuration(output: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/publish-to-a-mirror.md").read_text()
    site, caddyfile = ((output / f"ops/serve/{name}").read_text() for name in ("nginx.conf", "Caddyfile"))
    taken = re.findall(r"\{\$(GITBOOT_[A-Z]+)", caddyfile)
    told = page.partition("\n## Caddy\n")[2].partition("\n## ")[0]
    assert (len({*taken}), {*re.findall(r"GITBOOT_[A-Z]+", told)}) == (4, {*taken})
    assert site.count("# set: ") == 5 and "set its five lines" in page


# Clients


def test_the_list_of_all_machines_is_for_clients_on_the_same_host(output: Path, mirror: Mirror) -> None:
    path = next(each.relative_to(output / "boot") for each in sorted((output / "boot/signed/servers").iterdir()))
    for address, expected in (("127.0.0.1", 200), ("127.0.0.2", 403)):
        with httpx.Client(base_url=mirror.url, transport=httpx.HTTPTransport(local_address=address)) as client:
            answer = client.get(f"/{path}")
            assert answer.status_code == expected
            if expected == 200:
                assert answer.content == (output / "boot" / path).read_bytes()
                assert answer.headers["content-type"] == "application/json"
            else:
                assert (answer.content, answer.headers["cache-control"]) == (b"", "no-store")
            assert client.get("/signed/none.json").status_code == (404 if expected == 200 else 403)
            assert client.get(ENTRY).status_code == 200


@pytest.mark.parametrize("kind", RUNNING)
def test_the_monitors_of_the_fleet_may_read_the_list_of_all_machines_too(tmp_path: Path, kind: str) -> None:
    networks = "[127.0.0.64/30, 'fd00:9::/64']"
    root = tmp_path / "output"
    Site(root).publish(
        plan_fleet(fleet(f"baseURL: 'http://boot.test', provisioning: {{monitors: {networks}}}"), *SEED[1:]),
        listed=datetime.now(UTC),
    )
    (tmp_path / kind).mkdir()
    with RUNNING[kind](root / "boot", root / "ops/serve", tmp_path / kind) as mirror:
        for address, expected in (("127.0.0.1", 200), ("127.0.0.66", 200), ("127.0.0.68", 403)):
            with httpx.Client(base_url=mirror.url, transport=httpx.HTTPTransport(local_address=address)) as client:
                assert client.get("/signed/timestamp.json").status_code == expected, address


# Responses


SAME = ("content-type", "content-length", "cache-control")


def is_boot_script(path: str) -> bool:
    kind = find_path_kind(f"boot{path}")
    return kind is not None and kind.role in (Role.BOOT_SCRIPT, Role.OFFER)


def is_report(path: str) -> bool:
    return "/provisioned/" in path or "/failed/" in path


def test_every_file_is_served_as_by_the_endpoint(output: Path, endpoint: httpx.Client, client: httpx.Client) -> None:
    for spooled in (output.parent / "spool").glob("*.jsonl"):
        spooled.unlink()  # as after the publication of a tree with the served boot
    paths = [path for path in FLEET.boot_files if not path.startswith("/signed/")]  # which only copies need
    assert len([path for path in paths if is_report(path)]) == 2
    for path in paths:
        ours, theirs = endpoint.get(path), client.get(path)
        assert theirs.content == ours.content, path
        assert theirs.headers["last-modified"]
        if is_report(path):
            assert (ours.status_code, theirs.status_code) == (204, 200)
            assert ours.headers["cache-control"] == theirs.headers["cache-control"]
        elif is_boot_script(path):  # a mirror does not know whether it writes a disk
            assert _comparable_values(ours)[:-1] == _comparable_values(theirs)[:-1], path
            assert theirs.headers["cache-control"] == "no-store"
        else:
            assert _comparable_values(ours) == _comparable_values(theirs), path


def _comparable_values(response: httpx.Response) -> tuple[object, ...]:
    return (response.status_code, *(response.headers.get(name) for name in SAME))


@pytest.mark.parametrize("path", [path for path in FLEET.boot_files if is_boot_script(path)])
def test_e5_no_proxy_can_revalidate_a_boot_script(client: httpx.Client, path: str) -> None:
    first = client.get(path)
    assert ("etag" in first.headers, first.headers["cache-control"]) == (False, "no-store")
    for name, value in (("if-modified-since", first.headers["last-modified"]), ("if-none-match", '"x"')):
        again = client.get(path, headers={name: value})
        assert (again.status_code, again.content) == (200, first.content)
    whatever = client.get(path, headers={"if-none-match": "*"})
    assert (whatever.status_code, whatever.content) in [(200, first.content), (412, b"")]


@pytest.mark.parametrize("name", ["linux.efi", "disc.iso", "disk.img", "vmlinuz", "config.ign", "large"])
def test_every_artifact_is_served_as_by_the_endpoint(endpoint: httpx.Client, client: httpx.Client, name: str) -> None:
    path = f"{ARTIFACTS}/{name}"
    for method in ("GET", "HEAD"):
        ours, theirs = endpoint.request(method, path), client.request(method, path)
        assert (_comparable_values(theirs), theirs.content) == (_comparable_values(ours), ours.content)


@pytest.mark.parametrize(
    ("name", "content_type"),
    [("ks.cfg", "text/plain; charset=utf-8"), ("meta-data", "text/cloud-config; charset=utf-8")],
)
def test_user_data_has_the_media_type_of_its_name(client: httpx.Client, name: str, content_type: str) -> None:
    assert client.get(f"{ARTIFACTS}/{name}").headers["content-type"] == content_type


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        f"/v1/boot/{MAC}",
        f"/v1/boot/{MAC}/",
        f"/v1/boot/{MAC}/nothing",
        f"/v1/boot/{MAC}/provisioned/",
        f"/v1/boot/{MAC}/provisioned/{'a' * 64}",
        "/ipxe/",
        "/boot.ipxe/",
        "/ops/manifest.json",
        f"{ARTIFACTS}/.hidden",
        f"{ARTIFACTS}/none.efi",
        "/.gitboot.lock",
        "/index.html",
    ],
)
def test_p3_every_missing_path_gets_a_404_that_shim_and_grub_can_read(
    endpoint: httpx.Client, client: httpx.Client, path: str
) -> None:
    # The endpoint redirects /ipxe/ to the first script, and leads operators, as the tests are, from / to the page.
    for asked in (client,) if path in ("/", "/ipxe/") else (client, endpoint):
        for method in ("GET", "HEAD"):
            found = asked.request(method, path)
            assert (_comparable_values(found), found.content) == (MISSING, b"#" if method == "GET" else b"")
            assert found.headers.get("connection") != "close"


MISSING = (404, "text/plain; charset=utf-8", "1", "no-store")


@pytest.mark.parametrize(
    "path", [ENTRY, "/boot.ipxe", f"{ARTIFACTS}/linux.efi", "/assets/loaders/grubx64.efi", f"/unknown.ipxe?mac={MAC}"]
)
def test_p3_repeated_slashes_are_one_slash(output: Path, mirror: Mirror, path: str) -> None:
    folder, _, name = path.rpartition("/")
    with Site(output).serve(assets=output / "boot/assets") as endpoint:
        for base_url in (mirror.url, endpoint):
            expected = httpx.head(f"{base_url}{path}", headers=LOADER)  # which consumes no boot
            assert expected.status_code == 200
            for spelling in (path.replace("/", "//"), f"/{path}", f"{folder}///{name}"):
                assert _comparable_values(httpx.head(f"{base_url}{spelling}", headers=LOADER)) == _comparable_values(
                    expected
                ), spelling
            missing = http_peers.get(f"{base_url}//nothing//{name}", headers=LOADER)
            assert (_comparable_values(missing), missing.content) == (MISSING, b"#")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_and_head_are_allowed(endpoint: httpx.Client, client: httpx.Client, method: str) -> None:
    for asked in (endpoint, client):
        found = asked.request(method, ENTRY)
        assert (found.status_code, found.content, found.headers["allow"]) == (405, b"", "GET, HEAD")


def test_a_connection_stays_open_after_head(mirror: Mirror) -> None:
    with connect(mirror.url) as client:
        for method, last in (("HEAD", ""), ("GET", "Connection: close\r\n")):
            client.sendall(f"{method} {ENTRY} HTTP/1.1\r\nHost: x\r\n{last}\r\n".encode())
            if method == "HEAD":
                assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert read_all(client).endswith(_content(ENTRY))


def _content(path: str) -> bytes:
    return FLEET.boot_files[path].content


def test_a_boot_script_is_sent_as_a_whole_and_not_in_parts(client: httpx.Client) -> None:
    ignition = next(path for path in FLEET.boot_files if path.startswith("/ignition/"))
    for path in (ENTRY, ignition):
        found = client.get(path, headers={"range": "bytes=0-3", "accept-encoding": "gzip"})
        assert (found.status_code, found.content) == (200, _content(path))
    part = client.get(f"{ARTIFACTS}/large", headers={"range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, bytes(4))


@pytest.mark.parametrize("how", ["forbidden", "a loop of symlinks"])
@pytest.mark.parametrize("below", [ENTRY, f"/v1/boot/{MAC}", "/v1"], ids=["file", "folder", "folder above"])
def test_finding_m5_an_unreadable_file_is_not_absent(output: Path, client: httpx.Client, below: str, how: str) -> None:
    with make_unreadable(output / f"boot{below}", how):
        found = client.get(ENTRY)
        assert (_comparable_values(found), found.content) == ((503, *MISSING[1:]), b"#")
        assert client.get(f"/ipxe/{UUID}").status_code == (503 if below == ENTRY and how == "forbidden" else 200)
    assert client.get(ENTRY).status_code == 200


@pytest.mark.parametrize(
    ("script", "own", "names"),
    [
        ("/unknown.ipxe", ENTRY, (f"mac={MAC}", f"uuid={UUID}&serial=&mac=")),
        ("/unknown.grub.cfg", GRUB, (f"mac={MAC}",)),
    ],
)
def test_finding_m5_a_known_machine_does_not_get_the_script_of_unknown_machines(
    output: Path, endpoint: httpx.Client, client: httpx.Client, script: str, own: str, names: tuple[str, ...]
) -> None:
    for asked in (endpoint, client):
        for name in names:
            assert asked.get(f"{script}?{name}").content == FLEET.boot_files[own].content
        for query in ("", f"?mac={NOBODY}", "?uuid=&serial=x&mac="):
            found = asked.get(f"{script}{query}")
            assert (found.content, found.headers["cache-control"]) == (_content(script), "no-cache")
            assert "etag" in found.headers
    with make_unreadable(output / f"boot{own}", "forbidden"):  # all names of this file, which is one
        assert {client.get(f"{script}?{name}").status_code for name in names} == {503}


@pytest.mark.parametrize("kind", RUNNING)
def test_finding_m5_nothing_is_absent_from_an_incomplete_copy(output: Path, tmp_path: Path, kind: str) -> None:
    copy, made = tmp_path / "copy", tmp_path / kind
    for folder in (copy, made):
        folder.mkdir()
    with RUNNING[kind](copy, output / "ops/serve", made) as mirror:
        asked = (ENTRY, "/unknown.ipxe", "/boot.ipxe", "/", "/nothing")
        assert {path: http_peers.get(f"{mirror.url}{path}").status_code for path in asked} == dict.fromkeys(asked, 503)
        shutil.copytree(output / "boot/v1", copy / "v1")
        assert http_peers.get(f"{mirror.url}{ENTRY}").status_code == 200
        assert http_peers.get(f"{mirror.url}/v1/boot/{NOBODY}/boot.ipxe").status_code == 503
        shutil.copy(output / "boot/boot.ipxe", copy)
        assert http_peers.get(f"{mirror.url}/v1/boot/{NOBODY}/boot.ipxe").status_code == 404


def test_a_new_version_is_sent_at_once_and_a_known_version_is_not_sent_again(
    output: Path, client: httpx.Client
) -> None:
    path = "/unknown.ipxe"
    before = client.get(path)
    Site(output).publish(replace(FLEET, shared={**FLEET.shared, f"boot{path}": File(b"#!ipxe\n")}), commit="feed")
    after = client.get(path, headers={"if-none-match": before.headers["etag"]})
    assert (after.status_code, after.content) == (200, b"#!ipxe\n")
    assert after.headers["last-modified"] != before.headers["last-modified"]
    assert client.get(path, headers={"if-none-match": after.headers["etag"]}).status_code == 304
    Site(output).publish(FLEET)


# The headers of each kind of path, below each base URL of the Fleet


@pytest.fixture(scope="module")
def full_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("every") / "output"
    root.mkdir()
    Site(root).publish(mirrors.FLEET_OF_EVERY_PATH)
    return root


@pytest.fixture(scope="module")
def endpoint_responses(full_output: Path) -> dict[str, httpx.Response]:
    with Site(full_output).serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        return {path: client.get(path) for path in mirrors.EVERY_PATH}


@pytest.fixture(scope="module", params=RUNNING)
def full_mirror(
    request: pytest.FixtureRequest, full_output: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mirror]:
    folder = tmp_path_factory.mktemp(request.param)
    with RUNNING[request.param](full_output / "boot", full_output / "ops" / "serve", folder) as mirror:
        yield mirror


HEADERS = ("content-type", "content-length", "cache-control", "accept-ranges")


def comparable_headers(path: str, answer: httpx.Response) -> tuple[object, ...]:
    names = HEADERS[2:] if is_report(path) else HEADERS  # an endpoint has no body for it
    return (*(answer.headers.get(name) for name in names), "etag" in answer.headers)


def test_the_tree_has_a_path_of_each_kind_that_a_copy_has() -> None:
    found = {find_path_kind(f"boot{path}") for path in mirrors.FLEET_OF_EVERY_PATH.boot_files}
    assert found == {kind for kind in TABLE if kind.role is not Role.SEALED} | {None}


@pytest.mark.parametrize("base", ["", mirrors.BASE_PATH, mirrors.SITE], ids=["no path", "the Fleet's", "a site's"])
def test_finding_m9_each_kind_of_path_has_the_headers_of_the_endpoint(
    endpoint_responses: dict[str, httpx.Response], full_mirror: Mirror, base: str
) -> None:
    with http_peers.Client(base_url=f"{full_mirror.url}{base}") as client:
        for path, ours in endpoint_responses.items():
            theirs = client.get(path)
            assert theirs.content == _read_full_content(path), path
            assert comparable_headers(path, theirs) == comparable_headers(path, ours), path


def test_finding_m9_each_kind_of_path_is_revalidated_and_resumed_as_at_the_endpoint(
    tmp_path: Path, full_mirror: Mirror
) -> None:
    site = Site(tmp_path / "output")
    site.publish(mirrors.FLEET_OF_EVERY_PATH)

    def ask(client: httpx.Client) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for path in [path for path in mirrors.EVERY_PATH if _read_full_content(path) and not is_report(path)]:
            for name, value in (("if-none-match", "ETAG"), ("range", "bytes=0-0")):
                etag = client.get(path).headers.get("etag", '"x"')
                found[path, name] = client.get(path, headers={name: value.replace("ETAG", etag)}).status_code
        return found

    with site.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as endpoint:
        expected = ask(endpoint)
    for base in ("", mirrors.BASE_PATH, mirrors.SITE):
        with http_peers.Client(base_url=f"{full_mirror.url}{base}") as client:
            assert ask(client) == expected, base


def _read_full_content(path: str) -> bytes:
    return mirrors.FLEET_OF_EVERY_PATH.boot_files[path].content


def test_finding_m9_paths_below_a_base_url_are_logged_and_verified(full_output: Path, full_mirror: Mirror) -> None:
    assert verified("--tree", full_output, f"{full_mirror.url}{mirrors.BASE_PATH}")[1]["items"] == []
    path = next(path for path in mirrors.EVERY_PATH if path.endswith("/boot.ipxe") and path.startswith("/v1/boot/"))
    for base in ("", mirrors.BASE_PATH, mirrors.SITE):
        offset = full_mirror.log.stat().st_size
        for asked in (path, f"/ipxe?mac={path.split('/')[3]}"):
            assert http_peers.get(f"{full_mirror.url}{base}{asked}", headers=LOADER).content == _read_full_content(path)

        def both(offset: int = offset) -> bool:
            return len(_list_observed_paths(full_mirror, offset)) == 2

        assert eventually(both)
        assert set(_list_observed_paths(full_mirror, offset)) == {f"boot{path}"}


def _list_observed_paths(mirror: Mirror, offset: int) -> list[str]:
    lines = mirror.log.read_bytes()[offset:].splitlines()
    return [found.path for line in lines if isinstance(found := parse_line(line), Observation)]


@pytest.mark.parametrize("base", ["/some%20bas", "/some%20base2", "/SOME%20BASE", "/other", "/x/some%20base"])
def test_a_path_outside_the_base_url_is_absent(full_mirror: Mirror, base: str) -> None:
    assert http_peers.get(f"{full_mirror.url}{base}/boot.ipxe").status_code == 404


# Logs


@pytest.fixture
def follow_mirror_log(mirror: Mirror) -> Callable[[int], list[LineContent]]:
    return mirror.follow_log()


def test_the_fetch_of_a_boot_script_is_an_observation_of_its_version(
    output: Path, client: httpx.Client, follow_mirror_log: Callable[[int], list[LineContent]]
) -> None:
    report = next(path for path in FLEET.boot_files if is_report(path))
    asked = datetime.now(UTC)
    for path in (ENTRY, f"/ipxe/{UUID}", report):
        client.get(f"{path}?x=/boot.ipxe")
    answered = datetime.now(UTC)
    for found, path in zip(follow_mirror_log(3), (ENTRY, f"/ipxe/{UUID}", report), strict=True):
        assert isinstance(found, Observation)
        assert (found.path, found.client, found.server) == (f"boot{path}", "127.0.0.1", "")
        assert found.modified == int((output / f"boot{path}").stat().st_mtime) == int(BEFORE.timestamp())
        assert asked - timedelta(seconds=2) < found.at <= answered  # of its clock, which counts seconds


def test_an_incomplete_get_of_a_boot_script_is_not_an_observation(
    mirror: Mirror, client: httpx.Client, follow_mirror_log: Callable[[int], list[LineContent]]
) -> None:
    unknown = f"/v1/boot/{NOBODY}"
    for method, path in (
        ("GET", ENTRY),
        ("HEAD", ENTRY),
        ("GET", f"{unknown}/grub.cfg"),
        ("POST", ENTRY),
        ("GET", f"{unknown}/boot.ipxe"),
        ("GET", "/boot.ipxe"),
    ):
        client.request(method, path)
    found = [type(each) if isinstance(each, UnknownMachine) else each for each in follow_mirror_log(6)[1:]]
    assert found == [IgnoreReason.METHOD, UnknownMachine, IgnoreReason.METHOD, UnknownMachine, IgnoreReason.PATH]


def test_an_interrupted_fetch_is_detected(
    output: Path, mirror: Mirror, follow_mirror_log: Callable[[int], list[LineContent]]
) -> None:
    entry = f"/v1/boot/{NOBODY}/boot.ipxe"
    (output / f"boot{entry}").parent.mkdir()
    (output / f"boot{entry}").write_bytes(bytes(SIZE))  # boot scripts themselves fit into any buffer
    try:
        with connect(mirror.url, receive_buffer=4096) as client:
            client.sendall(f"GET {entry} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert follow_mirror_log(1) == [IgnoreReason.PART]
    finally:
        shutil.rmtree((output / f"boot{entry}").parent)


# gitboot verify-mirror


def verified(*arguments: object) -> tuple[int, dict[str, Any]]:
    done = run_forked("verify-mirror", *arguments, "-o", "json")
    found = json.loads(done.stdout)
    return done.returncode, {"files": found["files"], "items": found["items"]}


def test_a_mirror_with_the_published_configuration_is_verified_and_no_boot_is_consumed(
    output: Path,
    mirror: Mirror,
    client: httpx.Client,
    follow_mirror_log: Callable[[int], list[LineContent]],
) -> None:
    assert verified("--tree", output, mirror.url) == (0, {"files": len(FLEET.boot_files), "items": []})
    client.get("/last")
    assert eventually(lambda: b"/last" in mirror.log.read_bytes())
    assert [each for each in follow_mirror_log(1) if isinstance(each, Observation)] == []


# gitboot read-access-logs


def test_read_access_logs_stores_the_fetches_of_a_mirror_once(
    mirror: Mirror, client: httpx.Client, tmp_path: Path
) -> None:
    client.get(ENTRY)
    client.get("/nothing")
    assert eventually(lambda: b"/nothing" in mirror.log.read_bytes())
    spool = tmp_path / "spool"
    first = json.loads(run_forked("read-access-logs", mirror.log, "--spool", spool, "-o", "json").stdout)
    taken = read_new_lines(spool, {}).observations
    assert first["observed"] + first["unclear"] == len(taken)
    assert first["read"] == len(mirror.log.read_bytes().splitlines())
    assert first["ignored"]["of another path"] >= 1
    assert taken[-1].path == f"boot{ENTRY}"
    assert run_forked("read-access-logs", mirror.log, "--spool", spool).stdout == "0 lines read, 0 observed\n"


def test_read_access_logs_follows_until_it_is_terminated(mirror: Mirror, client: httpx.Client, tmp_path: Path) -> None:
    client.get(ENTRY)
    assert eventually(mirror.log.exists)
    spool = tmp_path / "spool"
    command = [sys.executable, "-m", "gitboot", "read-access-logs", str(mirror.log), "--spool", str(spool), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def written() -> int:
            return sum(not each.is_open_intent for each in read_new_lines(spool, {}).observations)

        assert eventually(lambda: written() > 0)
        before = written()
        client.get(ENTRY)
        assert eventually(lambda: written() > before)
        process.send_signal(signal.SIGTERM)
        summary, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert f" {written()} observed" in summary
