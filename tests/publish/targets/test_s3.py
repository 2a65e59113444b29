from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import structs

from gitboot.errors import ForeignTree, GitbootError, HostUnreachable, LockedByAnother, PublishError
from gitboot.publish.mirror_comparison import WebMirror, compare_mirror, read_expected_files
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.targets import s3 as bucket_module
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.publish.targets.follower import BucketAddress
from gitboot.publish.targets.sync_steps import (
    HEAD,
    UNLISTED,
    StoreTarget,
    TargetHead,
    apply_step,
    parse_head,
    parse_unlisted,
    plan_next_step,
    render_head,
)
from gitboot.render.paths import File, Files
from tests.helpers import endpoints, mirrors
from tests.helpers.cases import get_interval
from tests.helpers.fleets import SEED, policy
from tests.helpers.fleets import server as server_of
from tests.helpers.git_repositories import free_port
from tests.helpers.http_peers import StrangeClient, iterate_deadlines, strange_server
from tests.helpers.mirrors import KEY, Store, s3_server
from tests.helpers.published_trees import bring_up, server_files

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
COMMIT = "a" * 40
ENTRY = "boot/v1/boot/52-54-00-00-00-{:02x}/boot.ipxe"
_buckets = count(1)


def fleet(version: int, servers: tuple[int, ...] = (0, 1, 2)) -> dict[str, File]:
    """Entries that name the user data of their own version."""
    files = {"boot/boot.ipxe": File(b"#!ipxe\n"), "ops/serve/nginx.conf": File(b"types {}\n")}
    for server in servers:
        data = f"user data {version} of {server}\n".encode()
        content = f"boot/o/{sha256(data).hexdigest()}/user-data"
        files[content] = File(data)
        files[ENTRY.format(server)] = File(f"{version:04} {content}\n".encode())
    return files


def split(files: Mapping[str, File]) -> tuple[dict[str, Files], Files]:
    """Return the files of each server, which are its boot script and the named content, and the shared files."""
    servers: dict[str, Files] = {}
    for path, file in files.items():
        if path.startswith("boot/v1/"):
            content = file.content.decode().split()[1]
            name = f"server-{path.split('/')[3]}"
            servers[name] = server_files(name, {path: file, content: files[content]})
    owned = {path for each in servers.values() for path in each}
    return servers, {path: file for path, file in files.items() if path not in owned}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(store: Store) -> Iterator[str]:
    name = f"boots-{next(_buckets)}"
    store.reset()
    store.make(name)
    store.writes.clear()
    yield name
    assert store.wrong == []


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_RETRIES", 0)


class FollowedSite:
    """A published directory, and the target that follows it."""

    target: Any

    def __init__(self, root: Path, *, ledger: str = "ours", heir_of: str | None = None) -> None:
        self.root, self.ledger, self.heir_of = root, ledger, heir_of
        self.tree = FollowedTree(root)
        self.open_target()

    def open_target(self) -> None:
        """Open a target as a new process does."""
        raise NotImplementedError

    def publish(self, files: Mapping[str, File], at: datetime = AT, commit: str = COMMIT) -> None:
        servers, shared = split(files)
        with OutputDirectory.open(self.root, ledger="ours") as directory:
            directory.publish(servers, shared, complete=True, commit=commit, at=at)

    def follow(self) -> int:
        return bring_up(self.target, self.tree)

    def deliver(self, files: Mapping[str, File], at: datetime = AT, commit: str = COMMIT) -> int:
        self.publish(files, at, commit)
        return self.follow()


class Site(FollowedSite):
    def __init__(self, root: Path, url: str, bucket: str, *, ledger: str = "ours", heir_of: str | None = None) -> None:
        self.url, self.bucket = url, bucket
        super().__init__(root, ledger=ledger, heir_of=heir_of)

    def open_target(self, writer: str = "me") -> None:
        address = BucketAddress(
            bucket=self.bucket, prefix="site", endpoint=self.url, path_style=True, credentials=Path("keys")
        )
        keys = KEY["aws_access_key_id"], KEY["aws_secret_access_key"]
        self.open_bucket = bucket_module.build_bucket_opener(address, lambda _: keys)
        self.target = StoreTarget(
            address.name,
            self.open_bucket,
            ledger=self.ledger,
            heir_of=lambda: self.heir_of,
            writer=writer,
            max_servers=2,
        )


@pytest.fixture
def site(tmp_path: Path, store: Store, bucket: str) -> Site:
    return Site(tmp_path / "out", store.url, bucket)


def read_served(store: Store, bucket: str) -> dict[str, bytes]:
    found = store.paths(bucket, "site/boot/")
    return {path.removeprefix("site/"): store.get(bucket, path).content for path in found}


def assert_holds(seen: Mapping[str, bytes], files: Mapping[str, File]) -> None:
    """Assert that exactly these boot scripts exist, and that the content they name exists."""
    wanted = {path: file.content for path, file in files.items() if path.startswith("boot/")}
    assert {path: content for path, content in seen.items() if "/o/" not in path or path in wanted} == wanted


def assert_no_chain_is_mixed(seen: Mapping[str, bytes]) -> None:
    """Assert that a client that fetches a boot script and then the named content gets one version."""
    for path, content in seen.items():
        if path.startswith("boot/v1/"):
            named = re.fullmatch(rb"\d{4} (\S+)\n", content)
            assert named is not None, (path, content)
            data = seen.get(named[1].decode(), b"")
            assert sha256(data).hexdigest().encode() in named[1], (path, content, data)


def test_a_bucket_has_the_files_for_machines_with_their_cache_lifetime(site: Site, store: Store, bucket: str) -> None:
    site.deliver(fleet(1))
    assert_holds(read_served(store, bucket), fleet(1))
    (content,) = (path for path in fleet(1, (1,)) if "/o/" in path)
    found = {path: store.get(bucket, f"site/{path}")[1:] for path in (content, ENTRY.format(1), "boot/boot.ipxe")}
    assert found == {
        content: ("text/cloud-config; charset=utf-8", "public, max-age=31536000, immutable"),
        ENTRY.format(1): ("text/plain; charset=utf-8", "no-store"),
        "boot/boot.ipxe": ("text/plain; charset=utf-8", "no-cache"),
    }
    head = parse_head(store.get(bucket, f"site/{HEAD}").content)
    assert (head.ledger, head.commit) == ("ours", COMMIT)


@pytest.mark.parametrize("names", ["ba", "ab"])
def test_finding_m5_a_machine_whose_document_is_renamed_is_never_absent_from_a_bucket(
    site: Site, store: Store, bucket: str, names: str
) -> None:
    entries = [ENTRY.format(number) for number in range(6)]
    for number, name in enumerate(names):
        servers = {
            f"{name}{at}": server_files(f"{name}{at}", {path: File(name.encode())}) for at, path in enumerate(entries)
        }
        with OutputDirectory.open(site.root, ledger="ours") as directory:
            directory.publish(servers, {}, complete=True, commit=name, at=AT + number * DAY)
        site.follow()
        assert read_served(store, bucket) == dict.fromkeys(entries, name.encode())
        store.seen = lambda: assert_all_exist(store, bucket, entries)


def assert_all_exist(store: Store, bucket: str, paths: list[str]) -> None:
    assert set(paths) <= read_served(store, bucket).keys()


def test_finding_m9_a_bucket_has_the_headers_of_the_endpoint(tmp_path: Path, store: Store, bucket: str) -> None:
    published = endpoints.Site(tmp_path / "out")
    published.publish(mirrors.FLEET_OF_EVERY_PATH)
    Site(published.root, store.url, bucket, ledger="test").follow()
    found = read_served(store, bucket)
    assert len(found) > 70
    with published.serve() as url:
        for path in [path for path in mirrors.EVERY_PATH if f"boot{path}" in found]:
            answer, stored = endpoints.get(f"{url}{path}"), store.get(bucket, f"site/boot{path}")
            assert stored.cache_control == answer.headers["cache-control"], path
            assert answer.status_code == 204 or stored.content_type == answer.headers["content-type"], path


def test_only_changes_are_written_and_a_restart_checks_that_they_exist(site: Site, store: Store) -> None:
    site.deliver(fleet(1))
    store.writes.clear()
    assert (site.follow(), store.writes) == (0, [])
    site.open_target("another process")
    assert site.follow() == 0
    assert [each.rpartition("/")[2] for each in store.writes] == ["manifest.json"]
    store.writes.clear()
    site.deliver({**fleet(1, (0, 2)), **fleet(2, (1,))})
    assert len([each for each in store.writes if "/boot/v1/" in each]) == 1
    assert len(store.writes) < 12


def test_content_stays_as_long_as_it_is_in_the_tree_and_boot_scripts_are_removed_at_once(
    site: Site, store: Store, bucket: str
) -> None:
    site.deliver(fleet(1))
    (old,) = (path for path in fleet(1, (2,)) if "/o/" in path)
    site.deliver(fleet(1, (0, 1)), AT + DAY)
    assert ENTRY.format(2) not in read_served(store, bucket)
    assert old in read_served(store, bucket)
    site.open_target()
    site.follow()
    assert old in read_served(store, bucket)
    site.deliver(fleet(1, (0, 1)), AT + 9 * DAY)
    assert old not in read_served(store, bucket)
    assert parse_unlisted(store.get(bucket, f"site/{UNLISTED}").content) == frozenset()


def test_a_path_that_another_server_takes_over_stays(site: Site, store: Store, bucket: str) -> None:
    """Whichever of the two comes first, and in whichever step."""
    entry, other = ENTRY.format(7), "boot/v1/boot/52-54-00-00-00-99/boot.ipxe"
    for gives, takes in (("a", "b"), ("b", "a")):
        with OutputDirectory.open(site.root, ledger="ours") as directory:
            before = {
                gives: server_files(gives, {entry: File(b"1"), other: File(b"1")}),
                takes: server_files(takes, {}),
            }
            directory.publish(before, {}, complete=True, commit="1", at=AT)
            site.follow()
            now = {gives: server_files(gives, {other: File(b"1")}), takes: server_files(takes, {entry: File(b"2")})}
            directory.publish(now, {}, complete=True, commit="2", at=AT)
        held = site.target.load()
        for _ in range(3):
            glance = site.tree.read_summary()
            assert glance is not None
            step = plan_next_step(site.tree, glance, held, partial(site.target.shard, held.head), 1)
            if step is not None:
                site.target.apply(step, held, site.tree)
                held = apply_step(held, step)
        assert read_served(store, bucket) == {entry: b"2", other: b"1"}


def test_other_objects_in_the_bucket_do_not_change(site: Site, store: Store, bucket: str) -> None:
    theirs = {"site/boot/README": b"theirs", "site/ops/notes": b"theirs", "elsewhere": b"theirs"}
    for path, content in theirs.items():
        store.put(bucket, path, content)
    for version in (1, 2):
        site.deliver(fleet(version))
    site.publish(fleet(3, ()), AT + 9 * DAY)
    site.open_target()
    site.follow()
    assert {path: store.get(bucket, path).content for path in theirs} == theirs


def test_a_foreign_object_at_a_target_path_is_an_error_and_stays(site: Site, store: Store, bucket: str) -> None:
    store.put(bucket, f"site/{ENTRY.format(1)}", b"theirs")
    site.publish(fleet(1))
    with pytest.raises(PublishError, match=rf"gitboot did not write the file at {ENTRY.format(1)} "):
        site.follow()
    assert store.get(bucket, f"site/{ENTRY.format(1)}").content == b"theirs"


def test_a_bucket_of_another_ledger_is_left_alone_until_it_is_taken_over(
    site: Site, store: Store, bucket: str, tmp_path: Path
) -> None:
    site.deliver(fleet(1))
    before = store.contents(bucket)
    other = Site(tmp_path / "out", store.url, bucket, ledger="theirs")
    with pytest.raises(ForeignTree, match="belongs to the ledger ours, not to theirs"):
        other.follow()
    assert store.contents(bucket) == before
    other.heir_of = "ours"
    other.deliver(fleet(2))
    assert_holds(read_served(store, bucket), fleet(2))
    site.open_target("the first again")
    with pytest.raises(ForeignTree, match="belongs to the ledger theirs, not to ours"):
        site.follow()


def test_a_process_that_loses_a_target_to_another_one_reports_it(site: Site, store: Store, bucket: str) -> None:
    site.deliver(fleet(1))
    first = site.target
    site.open_target("a copy of this instance")
    site.follow()
    site.target = first
    site.publish(fleet(2))
    with pytest.raises(LockedByAnother, match="a copy of this instance; this process is me"):
        site.follow()
    assert_holds(read_served(store, bucket), fleet(1))


def test_a_process_that_lost_a_target_writes_no_boot_script(site: Site, store: Store, bucket: str) -> None:
    site.deliver(fleet(1))
    first, holding = site.target, site.target.load()
    site.open_target("a copy of this instance")
    site.follow()
    site.publish(fleet(2))
    glance = site.tree.read_summary()
    assert glance is not None
    step = plan_next_step(site.tree, glance, holding, partial(first.shard, holding.head), 2)
    assert step is not None
    store.writes.clear()
    with pytest.raises(LockedByAnother, match="a copy of this instance; this process is me"):
        first.apply(step, holding, site.tree)
    assert store.writes == []


def test_another_writer_in_the_middle_of_a_step_is_detected_before_the_head_is_written(
    site: Site, store: Store, bucket: str
) -> None:
    site.deliver(fleet(1))
    site.publish(fleet(2))
    head = parse_head(store.get(bucket, f"site/{HEAD}").content)

    def other_comes(_: int, method: str, path: str) -> None:
        if method == "PUT" and "/boot/v1/" in path:
            store.put(bucket, f"site/{HEAD}", render_head(structs.replace(head, writer="other")))

    store.fails = other_comes
    with pytest.raises(LockedByAnother, match="other; this process is me"):
        site.follow()
    assert parse_head(store.get(bucket, f"site/{HEAD}").content).writer == "other"


def test_of_two_processes_that_begin_at_once_only_one_writes_boot_scripts(
    site: Site, store: Store, bucket: str
) -> None:
    site.publish(fleet(1))

    def other_is_first(number: int, *_: str) -> None:
        if number == 1:
            store.put(
                bucket,
                f"site/{HEAD}",
                b'{"commit":"","format":1,"gitboot":"0","ledger":"theirs","shards":{},"writer":"x"}\n',
            )

    store.fails = other_is_first
    with pytest.raises(HostUnreachable, match="another process has just started to write to this target"):
        site.follow()
    with pytest.raises(ForeignTree, match="theirs"):
        site.follow()
    assert store.paths(bucket) == [f"site/{HEAD}"]


def _count_writes(site: Site, store: Store, version: int) -> int:
    store.writes.clear()
    site.publish(fleet(version, (0, 1 + version % 2)), AT + version * 3 * DAY, commit=str(version))
    site.open_target()
    with suppress(GitbootError):
        site.follow()
    return len(store.writes)


def test_after_any_interruption_no_chain_is_mixed_and_the_next_try_completes_it(
    site: Site, store: Store, bucket: str
) -> None:
    """``cut`` is a kill or a lost network; ``after`` is a write that is stored, but whose response is lost."""
    site.deliver(fleet(0))
    store.seen = lambda: assert_no_chain_is_mixed(read_served(store, bucket))
    version = 1
    for at in count(1, max(get_interval(1) - 1, 1)):  # prime to 6: what happens, and what is wanted then, alternate
        what = ("cut", "after", 503)[at % 3]
        store.fails = lambda number, *_, at=at, what=what: what if number == at else None
        writes = _count_writes(site, store, version)
        store.fails, store.is_cut = lambda *_: None, False
        assert_no_chain_is_mixed(read_served(store, bucket))
        if writes < at:
            break
        if at % 2:  # meanwhile something else is wanted
            version += 1
            site.publish(fleet(version, (0, 1 + version % 2)), AT + version * 3 * DAY, commit=str(version))
        site.open_target()
        site.follow()
        assert_holds(read_served(store, bucket), fleet(version, (0, 1 + version % 2)))
        unlisted = parse_unlisted(store.get(bucket, f"site/{UNLISTED}").content)
        head = parse_head(store.get(bucket, f"site/{HEAD}").content)
        assert head.commit == str(version)
        assert not [path for path in unlisted if not (site.root / path).exists()]
        assert len(store.paths(bucket, "site/ops/shards/")) == len(head.shards)
        version += 1
    assert at > 10


def test_a_boot_script_that_changed_back_while_nothing_could_be_written_is_written_again(
    site: Site, store: Store, bucket: str
) -> None:
    site.deliver(fleet(1))
    site.publish(fleet(2))
    store.fails = lambda _, method, path: "cut" if path.endswith(HEAD) and method == "PUT" else None
    with pytest.raises(HostUnreachable):
        site.follow()
    store.fails, store.is_cut = lambda *_: None, False
    site.publish(fleet(1), AT + DAY)
    site.open_target()
    site.follow()
    assert_holds(read_served(store, bucket), fleet(1))


def test_a_file_that_changed_after_the_write_is_an_error(site: Site, store: Store, bucket: str) -> None:
    site.deliver(fleet(1))
    site.publish(fleet(2), commit="2")
    paths = store.paths(bucket, "site/boot/v1/")

    def other_overwrites() -> None:
        for path in paths:  # the step's, whichever servers come first
            if store.get(bucket, path).content.startswith(b"0002"):
                store.put(bucket, path, b"theirs")

    store.seen = other_overwrites
    with pytest.raises(HostUnreachable, match=r"the content of .* changed after gitboot wrote it"):
        site.follow()
    assert parse_head(store.get(bucket, f"site/{HEAD}").content).commit != "2"
    store.seen = lambda: None
    site.follow()
    assert_holds(read_served(store, bucket), fleet(2))


def test_a_damaged_record_of_a_target_is_an_error(site: Site, store: Store, bucket: str) -> None:
    site.deliver(fleet(1))
    shard = store.paths(bucket, "site/ops/shards/")[0]
    store.put(bucket, shard, b"{}")
    site.open_target()
    with pytest.raises(PublishError, match=r"ops/shards/\w+\.json is damaged"):
        site.follow()


# gitboot verify-mirror


def test_a_bucket_is_compared_with_the_part_of_the_tree_that_a_target_has(
    tmp_path: Path, store: Store, bucket: str
) -> None:
    root, once = tmp_path / "out", (server_of("web01", "role: web", "provision: 1"), policy("web", often="Once"))
    endpoints.Site(root).publish(endpoints.plan_fleet(SEED[0], *SEED[2:-1], *once))
    site = Site(root, store.url, bucket, ledger="test")
    site.follow()
    store.let_anyone_read(bucket)

    def found(*, as_target: bool) -> dict[str, str]:
        look = partial(read_expected_files, root, as_target=as_target)
        mirror = WebMirror(f"{store.url}/{bucket}/site/boot", None, parallel=2, reads_machine_files=not as_target)
        found = compare_mirror(look, mirror, parallel=2, on_start=lambda _: None, on_progress=lambda _: None)
        assert found.files > len(found.findings)
        return {f"/{each.path}": each.fault for each in found.findings}

    by_store = {"/v1/boot/02-00-00-00-00-00/boot.ipxe": "Wrong"}  # whose 404 has a body
    assert found(as_target=True) == by_store
    assert found(as_target=False)[endpoints.ENTRY] == "Undated", "a bucket has times of its own"
    store.put(bucket, f"site/boot{endpoints.ENTRY}", b"#!ipxe\n# before\n")
    store.put(bucket, "site/boot/boot.ipxe", b"#!ipxe\n# another\n")
    assert found(as_target=True) == {**by_store, endpoints.ENTRY: "Wrong", "/boot.ipxe": "Wrong"}


# A store that a stranger controls


def make_bucket(url: str, timeout_s: float = 60, ca_bundle: Path | None = None) -> bucket_module.Bucket:
    address = BucketAddress(
        bucket="boots", prefix="site", endpoint=url, path_style=True, credentials=Path("keys"), ca_bundle=ca_bundle
    )
    return bucket_module.Bucket(address, ("id", "not-to-be-seen"), timeout_s=timeout_s)


HEADERS = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nLast-Modified: Fri, 20 Nov 2026 12:00:00 GMT\r\n'


def test_finding_s8_an_object_without_an_end_is_read_to_its_limit() -> None:
    def answer(client: StrangeClient) -> None:
        client.send(HEADERS + b"Content-Length: 10737418240\r\n\r\n")
        client.flood(bytes(1 << 20), 10240)

    with strange_server(answer) as server:
        found = make_bucket(server.url).get(HEAD, 1000)
        assert found is not None and found.content == bytes(1001)
        assert server.left.wait(60)
    assert server.taken < 64 << 20  # the first piece, and buffers of this machine


def test_finding_s8_an_object_that_is_sent_slowly_ends_at_the_timeout() -> None:
    def answer(client: StrangeClient) -> None:
        client.send(HEADERS + b"Content-Length: 1000000\r\n\r\n")
        client.drip(b"a")

    with strange_server(answer) as server:
        for timeout_s in iterate_deadlines(server):
            with pytest.raises(HostUnreachable):
                make_bucket(server.url, timeout_s=timeout_s).get(HEAD)
        assert server.left.wait(60)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            "<RequestTime>20261120T120000Z</RequestTime><ServerTime>2026-11-20T13:00:00Z</ServerTime>",
            "this host's clock is 3,600 s behind the store's clock",
        ),
        (
            "<RequestTime>20261120T140000Z</RequestTime><ServerTime>2026-11-20T13:00:00Z</ServerTime>",
            "this host's clock is 3,600 s ahead of the store's clock",
        ),
        ("<ServerTime>2026-11-20T13:00:00Z</ServerTime>", "this host's clock differs from the store's clock"),
        (
            "<RequestTime>x</RequestTime><ServerTime>y</ServerTime>",
            "this host's clock differs from the store's clock",
        ),
    ],
)
def test_finding_m10_a_rejected_request_names_a_wrong_clock_first(times: str, words: str) -> None:
    answer = make_refusal("403 Forbidden", "RequestTimeTooSkewed", times)
    for error in collect_errors(answer):
        assert isinstance(error, PublishError) and str(error).startswith(f"s3://boots/site: {words}")


def make_refusal(status: str, code: str, more: str = "") -> Callable[[StrangeClient], None]:
    message = "<Message>Words of the store, which are long enough to be cut off before the cause.</Message>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>{message * 2}{more}</Error>'.encode()

    def answer(client: StrangeClient) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(head.encode() + body)

    return answer


def collect_errors(answer: Callable[[StrangeClient], None]) -> list[GitbootError]:
    with strange_server(answer) as server:
        bucket = make_bucket(server.url)
        return [
            get_error(partial(bucket.get, HEAD)),
            get_error(partial(bucket.create, "boot/a", b"")),
            get_error(partial(bucket.replace, "boot/a", b"", '"1"')),
            get_error(partial(bucket.remove, ["boot/a"])),
            get_error(partial(bucket.names, "boot")),
        ]


def get_error(request: Callable[[], object]) -> GitbootError:
    with pytest.raises(GitbootError) as raised:
        request()
    message = str(raised.value)
    assert "not-to-be-seen" not in message and "\n" not in message and len(message) < 400
    return raised.value


@pytest.mark.parametrize(
    ("status", "code", "words", "kind"),
    [
        (
            "403 Forbidden",
            "AccessDenied",
            "the store rejects the credentials, or the credentials lack a permission: AccessDenied",
            PublishError,
        ),
        (
            "400 Bad Request",
            "ExpiredToken",
            "the store rejects the credentials, or the credentials lack a permission: Expired",
            PublishError,
        ),
        ("404 Not Found", "NoSuchBucket", "the bucket does not exist", PublishError),
        ("503 Slow Down", "SlowDown", "the store returned 503 Service Unavailable SlowDown", HostUnreachable),
    ],
)
def test_finding_m10_the_cause_comes_first_for_any_request_to_a_store(
    status: str, code: str, words: str, kind: type[GitbootError]
) -> None:
    for error in collect_errors(make_refusal(status, code)):
        assert isinstance(error, kind) and str(error).startswith(f"s3://boots/site: {words}")
        assert "the cause" not in str(error), "the words of the store"


@pytest.mark.parametrize(("begins_days", "words"), [(2, "is not valid before"), (-4, "expired at")])
def test_finding_m10_a_certificate_that_this_clock_rejects_is_named_with_both_times(
    tmp_path: Path, begins_days: int, words: str
) -> None:
    begins = datetime.now(UTC) + begins_days * DAY
    certificate = tmp_path / "certificate.pem"
    with (
        strange_server(lambda _: None, tls=make_tls(certificate, begins, begins + DAY)) as server,
        pytest.raises(HostUnreachable, match=f"^s3://boots/site: the store's certificate {words} ") as raised,
    ):
        make_bucket(server.url, ca_bundle=certificate).get(HEAD)
    assert re.search(
        r"this host's clock shows \d{4}-\d\d-\d\dT[\d:]+Z \(renew the certificate, or correct the clock\)",
        str(raised.value),
    )


def make_tls(certificate: Path, begins: datetime, ends: datetime) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")])
    builder = x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
    builder = builder.serial_number(1).not_valid_before(begins).not_valid_after(ends)
    names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    (both := certificate.with_name("both.pem")).write_bytes(private + certificate.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context


def test_finding_m10_an_unreachable_store_is_named_with_the_reason() -> None:
    with pytest.raises(HostUnreachable, match=r"^s3://boots/site: Connection refused, at GET http://127"):
        make_bucket(f"http://127.0.0.1:{free_port()}").get(HEAD)


def test_a_listing_with_endless_pages_ends_at_a_deadline() -> None:
    page = (
        b'<?xml version="1.0"?><ListBucketResult><Name>boots</Name><Prefix>site</Prefix><KeyCount>0</KeyCount>'
        b"<MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>more</NextContinuationToken></ListBucketResult>"
    )

    def answer(client: StrangeClient) -> None:
        client.send(HEADERS + b"Content-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(page) + page)

    message = ""
    for timeout_s in (0.4, 4.0, 40.0):  # on a busy machine, a page may take longer than the shortest timeout
        with strange_server(answer) as server:
            with pytest.raises(HostUnreachable) as raised:
                make_bucket(server.url, timeout_s=timeout_s).names("o")
            message = str(raised.value)
        if f"listing o did not finish within {5 * timeout_s:g} s" in message:
            break
    else:
        raise AssertionError(message)
    assert len(server.requests) > 2


@pytest.mark.parametrize(
    "content", [b"[]\n", b"nonsense", b"[" * 100_000, b'{"a": 1}', b'{"\\ud800": {"state": "", "files": {}}}']
)
def test_finding_s8_a_shard_that_gitboot_did_not_write_is_an_error(
    tmp_path: Path, store: Store, bucket: str, content: bytes
) -> None:
    site = Site(tmp_path / "output", store.url, bucket)
    written = site.open_bucket()
    digest = sha256(content).hexdigest()
    written.create(f"ops/shards/{digest}.json", content)
    head = TargetHead(ledger="ours", commit="c0ffee", gitboot="0", writer="me", shards={"00": digest})
    written.create(HEAD, render_head(head))
    with pytest.raises(PublishError, match="is damaged"):
        site.target.load()
