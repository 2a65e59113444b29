"""Each way out of a published tree without its publisher, and behind nginx, Varnish and Squid as installed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from gitboot.fetchlog.spool import read_new_lines
from gitboot.render.paths import File, find_content_type, find_delivery
from tests.helpers import http_peers, mirrors
from tests.helpers.endpoints import ALWAYS, ENTRY, LOADER, REPAIR, Fleet, Site, plan_fleet, site
from tests.helpers.fleets import SEED, at, fleet, maintenance, policy, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.instance_with_bmcs import POOL
from tests.helpers.mirrors import CACHES, TREE_COPIES, TreeCopy, make_unreadable, run_endpoint, unconfigured_nginx
from tests.helpers.signed_lists import SignedSite
from tests.publish.test_mirror_program import MirrorHost
from tests.render.test_boot_files import ALL_LOADERS, ENTRIES, LIVE, boots, serves_installation

INSIDE, AFTER = at("20T23:00"), at("21T04:00") + timedelta(minutes=1)
WINDOW, ENDED = (plan_fleet(*ALWAYS, REPAIR, now=now) for now in (INSIDE, AFTER))
MORE = plan_fleet(*ALWAYS, REPAIR, server("web02", "role: web"), now=AFTER)
KERNEL = f"/o/{'5e' * 32}/vmlinuz"
EVERY = replace(
    mirrors.FLEET_OF_EVERY_PATH,
    shared={**mirrors.FLEET_OF_EVERY_PATH.shared, f"boot{KERNEL}": File(bytes(range(256)) * 64)},
)
FIRST = "/boot.ipxe"
NOBODY = "/v1/boot/02-00-00-00-00-00/boot.ipxe"
NAMES = [path for path in ENDED.boot_files if not path.startswith("/signed/")]
# Each way out behind one cache; behind each cache files as nginx is set up to serve them, and a bucket.
PAIRS = [(way, cache) for way in TREE_COPIES for cache in CACHES if cache == "varnish" or way in ("nginx", "bucket")]
COPIES = ("caddy", "folder", "bucket", "branch")
NEW = sorted(MORE.boot_files.keys() - ENDED.boot_files.keys())


class CachedMirror(NamedTuple):
    """A way out, a cache before it, and the tree."""

    site: Site
    way: TreeCopy
    url: str  # of boot/ at the cache

    def publish(self, fleet: Fleet) -> None:
        self.site.publish(fleet, at=AFTER)
        self.way.bring_up()

    def get(self, path: str) -> Any:
        return http_peers.get(f"{self.url}{path}", headers=LOADER)


@pytest.fixture(scope="module")
def cached(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CachedMirror]:
    """Yield one environment for all tests of a way out and a cache. Its time goes on: no test publishes for INSIDE."""
    way, cache = request.param
    folder = tmp_path_factory.mktemp(f"{way}-{cache}")
    site = Site(folder / "output")
    (folder / "way").mkdir()
    site.publish(WINDOW, at=INSIDE)
    opened = (
        run_endpoint(site.root, INSIDE, AFTER) if way == "endpoint" else TREE_COPIES[way](site.root, folder / "way")
    )
    with opened as found:
        behind = urlsplit(found.url)
        with CACHES[cache](f"{behind.scheme}://{behind.netloc}", folder / "cache") as url:
            yield CachedMirror(site, found, f"{url}{behind.path}")


def mark_pairs(pairs: Iterable[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cached", pairs, indirect=True, ids=map("-".join, pairs))


def find_differences(cached: CachedMirror, fleet: Fleet) -> dict[str, bytes]:
    """Return the files of a fleet that a client gets as something else."""
    found = {path: cached.get(path) for path in fleet.boot_files if not path.startswith("/signed/")}
    wanted = {path: (200, file.content) for path, file in fleet.boot_files.items()}
    return {path: each.content for path, each in found.items() if (each.status_code, each.content) != wanted[path]}


@mark_pairs([*PAIRS, *(("endpoint", cache) for cache in CACHES)])
def test_finding_m1_no_cache_keeps_a_window_open(cached: CachedMirror) -> None:
    """A cache with its default settings sends the version of the mirror, with its headers."""
    for _ in range(2):
        assert find_differences(cached, WINDOW) == {}
    cached.publish(ENDED)
    for _ in range(2):
        assert find_differences(cached, ENDED) == {}
    for path in NAMES:
        behind = http_peers.get(f"{cached.way.url}{path}", headers=LOADER)
        for method in ("GET", "HEAD"):
            found = http_peers.request(method, f"{cached.url}{path}", headers=LOADER)
            for name in ("content-type", "content-length", "cache-control"):
                assert found.headers.get(name) == behind.headers[name], (method, path)


@mark_pairs([*PAIRS, ("endpoint", "varnish")])
def test_finding_m5_no_cache_keeps_an_absence_or_an_error(cached: CachedMirror) -> None:
    """A new boot script is found at once. A file that cannot be read is an error only while it cannot be read."""
    for _ in range(2):
        assert {cached.get(path).status_code for path in NEW} == {404 if cached.way.store is None else 403}
    cached.publish(MORE)
    assert find_differences(cached, MORE) == {}
    if (folder := cached.way.folder) is not None:
        with make_unreadable(folder() / ENTRY[1:], "forbidden"):
            assert [cached.get(ENTRY).status_code for _ in range(2)] == [503, 503]
        assert find_differences(cached, MORE) == {}
        with make_unreadable(folder() / FIRST[1:], "a loop of symlinks"):
            assert {cached.get(path).status_code for path in (NOBODY, FIRST)} == {503}, "the copy is not complete"
        assert cached.get(NOBODY).status_code == 404


@mark_pairs([pair for pair in PAIRS if pair[0] != "bucket" or pair[1] == "varnish"])
def test_finding_m9_each_kind_of_path_has_its_headers_and_downloads_of_kernels_resume(cached: CachedMirror) -> None:
    """The headers are those of the table that the endpoint reads as well; on each way out, and through each cache."""
    cached.publish(EVERY)
    for path in mirrors.EVERY_PATH:
        found = cached.get(path)
        headers = (found.status_code, *(found.headers.get(name) for name in ("content-type", "cache-control")))
        assert headers == (200, find_content_type(f"boot{path}"), find_delivery(f"boot{path}").cache_control), path
    for start in (0, 1000):
        part = http_peers.get(f"{cached.url}{KERNEL}", headers={"range": f"bytes={start}-"})
        assert (part.status_code, part.content) == (206, EVERY.boot_files[KERNEL].content[start:])


# A mirror whose responses may be cached

UNCONFIGURED = {"no Cache-Control": (), "a Cache-Control of its own, as Git hosts have": ("expires 5m",)}


@pytest.mark.parametrize("settings", UNCONFIGURED.values(), ids=UNCONFIGURED)
def test_finding_m7_a_mirror_whose_boot_scripts_may_be_cached_is_reported(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Without a request for a boot script, and also if no cache has stored anything yet."""
    site = SignedSite(tmp_path)
    site.publish(ENDED, AFTER, made=datetime.now(UTC))
    (tmp_path / "nginx").mkdir()
    with unconfigured_nginx(site.root / "boot", tmp_path / "nginx", *settings, "error_page 404 =404 /none") as url:
        for more in ((), ("--tree", site.root)):
            assert find_faults(url, *more)[FIRST] == "Cacheable"
        assert find_faults(url, "--tree", site.root, "--read-entries")[ENTRY] == "Cacheable"


def find_faults(url: str, *more: object) -> dict[str, str]:
    done = run_forked("verify-mirror", url, *more, "-o", "json")
    assert done.stdout, done.stderr
    return {f"/{each['path']}": each["fault"] for each in json.loads(done.stdout)["items"]}


def test_finding_m7_squid_that_keeps_the_list_of_a_mirror_is_reported(tmp_path: Path) -> None:
    """Without a Cache-Control, Squid keeps a file for a fifth of its age (refresh_pattern . 0 20% 4320)."""
    site = SignedSite(tmp_path)
    timestamp = site.boot / "signed/timestamp.json"
    site.publish(ENDED, AFTER, made=datetime.now(UTC))
    (tmp_path / "nginx").mkdir()
    with (
        unconfigured_nginx(site.root / "boot", tmp_path / "nginx") as mirror,
        CACHES["squid"](mirror, tmp_path / "squid") as url,
    ):
        os.utime(timestamp, (0, 0))
        assert http_peers.get(f"{url}/signed/timestamp.json").content == timestamp.read_bytes()
        site.publish(MORE, AFTER + timedelta(minutes=1), made=datetime.now(UTC))
        assert http_peers.get(f"{url}/signed/timestamp.json").content != timestamp.read_bytes()
        assert find_faults(url)["/signed/timestamp.json"] == "Cached"


# Without a publisher


@pytest.mark.parametrize("window", ["20T22:00 21T04:00", "20T22:00 -"], ids=["with an end", "without an end"])
@pytest.mark.parametrize("way", COPIES)
def test_finding_m1_a_maintenance_ends_on_each_kind_of_copy_even_without_the_publisher(
    way: str, window: str, tmp_path: Path
) -> None:
    with site(None) as publisher, ExitStack() as ways:
        with publisher.serve() as endpoint:
            settings = f"baseURL: 'http://boot.test', endpoint: '{endpoint}', outputs: [ipxe, grub, pxelinux]"
            publisher.now = INSIDE
            publisher.publish(plan_fleet(fleet(settings), *LIVE, maintenance("repair", window), now=INSIDE), at=INSIDE)
            url = ways.enter_context(TREE_COPIES[way](publisher.root, tmp_path)).url
            # Nothing is published from here on. Only the clock of the endpoint runs.
            inside = {boots(url, path) for path in ALL_LOADERS}
            publisher.now = AFTER
            after = {boots(url, path) for path in ALL_LOADERS}
        alone = {boots(url, path) for path in ALL_LOADERS}  # the endpoint is gone, too
    assert (inside, after, alone) == ({"memtest"}, {"live"}, {"live"})


def test_finding_m1_the_mirror_program_ends_a_window_of_a_branch(tmp_path: Path) -> None:
    """Without an endpoint: the program copies from the checkout, whose files have other times."""
    publisher, folder = SignedSite(tmp_path / "publisher"), tmp_path / "way"
    folder.mkdir()
    publisher.publish(WINDOW, INSIDE)
    with TREE_COPIES["branch"](publisher.root, folder) as way:
        assert way.folder is not None
        host = MirrorHost(tmp_path / "mirror", publisher)
        host.source = str(way.folder())
        assert (host.run(INSIDE), host.boots()) == (0, WINDOW.boot_files[ENTRY].content)
        shutil.rmtree(way.folder())
        assert (host.run(AFTER), host.boots()) == (1, ENDED.boot_files[ENTRY].content)


@pytest.mark.parametrize("way", COPIES)
def test_finding_m2_no_kind_of_copy_installs_a_server(way: str, tmp_path: Path) -> None:
    published = Site(tmp_path / "output")
    waiting = server("web01", spec="provision: 1"), *POOL
    without, named = (
        plan_fleet(fleet(f"baseURL: 'http://boot.test'{more}", copies=False), *waiting)
        for more in ("", ", endpoint: 'http://127.0.0.1:9'")
    )
    published.publish(without)
    (tmp_path / "way").mkdir()
    with TREE_COPIES[way](published.root, tmp_path / "way") as found:
        assert [serves_installation(found.url, path) for path in ENTRIES * 2] == [False] * 4
        published.publish(named)
        found.bring_up()
        assert [serves_installation(found.url, path) for path in ENTRIES * 2] == [False] * 4


# The list


@pytest.mark.parametrize("way", TREE_COPIES)
def test_finding_m6_an_edited_file_is_found_on_each_kind_of_copy(way: str, tmp_path: Path) -> None:
    """By the list that the copy carries, with the public key alone; through a cache as without."""
    site, folder = SignedSite(tmp_path), tmp_path / "way"
    folder.mkdir()
    site.publish(ENDED, AFTER, made=datetime.now(UTC))
    with TREE_COPIES[way](site.root, folder) as found, ExitStack() as stack:
        behind = urlsplit(found.url)
        origin = f"{behind.scheme}://{behind.netloc}"
        caches = CACHES if way == "nginx" else {}
        through = [stack.enter_context(caches[name](origin, tmp_path / name)) for name in caches]
        edited = ENDED.boot_files[FIRST].content[:-2] + b"#\n"
        if found.store is not None:
            found.store.put("boots", f"site/boot{FIRST}", edited)
        else:
            file = (found.folder or Path)() / FIRST[1:]
            before = file.stat()
            file.write_bytes(edited)
            os.utime(file, (before.st_mtime, before.st_mtime))
        by_store = {NOBODY: "Wrong"} if found.store is not None else {}  # its 403 has a body
        for url in (origin, *through):
            assert find_faults(f"{url}{behind.path}", "--key", site.public) == {FIRST: "Wrong", **by_store}


# A bucket

REPORTED = plan_fleet(
    fleet("baseURL: 'http://boot.test', endpoint: 'http://endpoint.test', provisioning: {evidence: Reported}"),
    server("new01", "role: new", "provision: 1"),
    policy("new", "{matchLabels: {role: new}}", often="Once"),
    *SEED[1:],
)


def test_finding_m3_a_check_of_a_bucket_through_a_cache_is_no_evidence(tmp_path: Path) -> None:
    """By the access log of the bucket, which has only the paths with tokens as evidence."""
    site = Site(tmp_path / "output")
    site.publish(REPORTED)
    (report, *_) = (path for path in REPORTED.boot_files if "/provisioned/" in path)
    with TREE_COPIES["bucket"](site.root, tmp_path) as way:
        behind, store = urlsplit(way.url), way.store
        assert store is not None
        assert any(" REST.GET.OBJECT " in line and "/provisioned/" in line for line in store.log)
        assert read_evidence(store.log, tmp_path / "spool") == [], "gitboot itself reads back what it has written"
        for name, cache in CACHES.items():
            store.log.clear()
            with cache(f"{behind.scheme}://{behind.netloc}", tmp_path / name) as url:
                for more in ((), ("--read-entries",)):
                    done = run_forked("verify-mirror", f"{url}{behind.path}", "--tree", site.root, "--target", *more)
                    assert done.returncode == 8, "its 403 has a body"
                    assert read_evidence(store.log, tmp_path / f"spool of {name}") == []
                    assert any(f"{report}?check=1" in line for line in store.log) == bool(more)
                http_peers.get(f"{url}{behind.path}{report}", headers={"user-agent": "curl/8.5.0"})
                assert read_evidence(store.log, tmp_path / f"spool of {name}") == [f"boot{report}"]


def read_evidence(log: list[str], spool: Path) -> list[str]:
    done = run_forked("read-access-logs", "-", "--spool", spool, given="".join(log))
    assert done.returncode == 0, done.stderr
    return [each.path for each in read_new_lines(spool, {}).observations]
