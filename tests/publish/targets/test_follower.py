"""The URL of a target, the servers that it may serve, and the thread that updates it."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from gitboot import __version__
from gitboot.controller.publication import FollowedTarget
from gitboot.controller.stages.plan import QUICK_START
from gitboot.errors import HostUnreachable, LockedByAnother, PublishError, UsageError
from gitboot.ledger.open_ledger import check_tables
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.signed_list import VALID
from gitboot.publish.targets.folder import build_folder_opener
from gitboot.publish.targets.followed_tree import FollowedTree, RaceError, ServerFiles, build_server_files
from gitboot.publish.targets.follower import (
    BranchAddress,
    BucketAddress,
    FolderAddress,
    Follower,
    Followers,
    TargetAddress,
    parse_target,
)
from gitboot.publish.targets.sync_steps import (
    HEAD,
    Shard,
    StoreTarget,
    TargetContent,
    TargetHead,
    TargetStep,
    apply_step,
    build_target_content,
    find_shard_number,
    plan_next_step,
)
from gitboot.publish.window_ends import EndedWindows
from gitboot.render.endpoint_files import DiskWrite, ListedFile, PathVersion, PublishedServer
from gitboot.render.page import NO_UPDATES
from gitboot.render.paths import File, Role, find_content_type, find_delivery
from gitboot.status.instance_status import TargetStatus
from tests.helpers.cases import for_each
from tests.helpers.endpoints import eventually
from tests.helpers.fleets import SEED, at, maintenance, make_mac, make_uuid, server
from tests.helpers.fleets import fleet as make_fleet
from tests.helpers.instance_in_process import Bench, Unsynced
from tests.publish.targets.test_s3 import ENTRY, fleet, split

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)


# The value of --target


@for_each(
    ("text", "address"),
    [
        ("s3://boots", BucketAddress(bucket="boots")),
        ("s3://boots/a/b/", BucketAddress(bucket="boots", prefix="a/b")),
        (
            "s3://boots?endpoint=http://127.0.0.1:9000&region=fra1&credentials=/run/keys/s3&ca-bundle=ca.pem",
            BucketAddress(
                bucket="boots",
                endpoint="http://127.0.0.1:9000",
                region="fra1",
                path_style=True,
                credentials=Path("/run/keys/s3"),
                ca_bundle=Path("ca.pem"),
            ),
        ),
        (
            "s3://boots?endpoint=https://s3.example.net&style=virtual&serves=https://cdn.example.net/",
            BucketAddress(bucket="boots", endpoint="https://s3.example.net", base_url="https://cdn.example.net"),
        ),
        ("/srv/mirror", FolderAddress(folder=Path("/srv/mirror"))),
        (
            "/srv/100%25?serves=http://boot.test/",
            FolderAddress(folder=Path("/srv/100%25"), base_url="http://boot.test"),
        ),
        ("file:///srv/a%20mirror", FolderAddress(folder=Path("/srv/a mirror"))),
        ("git+file:///srv/boots.git#boot", BranchAddress(url="file:///srv/boots.git", branch="boot")),
        (
            "git+ssh://git@git.example.net/boots.git?ssh-key=id&known-hosts=hosts#refs/heads/site/fra1",
            BranchAddress(
                url="ssh://git@git.example.net/boots.git",
                branch="site/fra1",
                ssh_key=Path("id"),
                known_hosts=Path("hosts"),
            ),
        ),
    ],
)
def test_a_target_is_one_url(text: str, address: TargetAddress) -> None:
    assert parse_target(text) == address


@for_each(
    ("text", "message"),
    [
        ("boots", "expected a folder"),
        ("https://example.net/boots", "expected a folder"),
        ("srv/mirror", "expected a folder"),
        ("file://mirror/srv", "expected the absolute path of a folder"),
        (f"/srv/{'m' * 256}", "a name in the path has more than 255 bytes; use a shorter name"),
        ("file:///srv/a%00b", "the path contains a NUL character; remove it"),
        ("s3://boots?credentials=/run/a%00b", "the path contains a NUL character; remove it"),
        ("/srv/mirror#boot", "expected the absolute path of a folder"),
        ("/srv/mirror?credentials=x", "there is no setting 'credentials'; the settings are serves"),
        ("s3:///prefix", "expected s3://BUCKET/PREFIX"),
        ("s3://boots/a/../b", "expected s3://BUCKET/PREFIX"),
        ("s3://boots?endpont=x", "there is no setting 'endpont'; the settings are ca-bundle"),
        ("s3://boots?ssh-key=x", "there is no setting 'ssh-key'"),
        ("s3://boots?style=both", "expected style=path or style=virtual"),
        ("s3://boots?endpoint=s3.example.net", "expected endpoint=https://HOST"),
        ("s3://boots?endpoint=https://id:s3cret@s3.example.net", "expected endpoint=https://HOST without"),
        ("s3://id:s3cret@boots", "remove the credentials from the URL"),
        ("git+https://me:s3cret@git.example.net/x#boot", "remove the credentials from the URL"),
        ("git+https://s3cret@git.example.net/x#boot", "remove the credentials from the URL"),
        ("git+https://me:s3cret/more@git.example.net/x#boot", "the host, the port or a setting is not valid"),
        ("git+https://me:s3cret#more@git.example.net/x#boot", "the host, the port or a setting is not valid"),
        ("git+https://1:2/s3cret@git.example.net/x", "--target git\\+https://…: add a branch"),
        ("git+https://git.example.net/x@site1", "^--target git\\+https://git.example.net/x@site1: add a .*: …#BRANCH$"),
        ("ssh://boot@web1/srv/boot@rack1", "^--target ssh://web1/srv/boot@rack1: add the private key"),
        ("s3://boots/team@site?regoin=x", "^--target s3://boots/team@site: there is no setting 'regoin'"),
        ("s3://boots/team@site?region", "^--target s3://boots/team@site: the host, the port or a setting"),
        ("s3://id:s3cret#more@boots", "--target s3://…: the host, the port or a setting is not valid"),
        ("git+https://git.example.net/x", "add a branch"),
        ("git+https://git.example.net/x#refs/tags/v1", "add a branch"),
        ("git+https://[::1/x#boot", "the host, the port or a setting is not valid"),
    ],
)
def test_the_error_for_a_malformed_target_contains_no_secret(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse_target(text)
    assert "s3cret" not in str(raised.value)


def test_a_bucket_without_the_extra_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "gitboot.publish.targets.s3", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'gitboot\[s3\]'"):
        import_module("gitboot.publish.targets.s3")


def test_an_instance_and_the_repair_of_a_mirror_start_without_the_extras() -> None:
    extras, modules = (
        ("obstore", "psycopg", "tuf"),
        "gitboot.controller.instance.assembly, gitboot.publish.mirror_repair",
    )
    script = f"import sys; sys.modules.update(dict.fromkeys({extras})); import {modules}"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# Files that a plain file server may serve

HERE = "boot/v1/boot/52-54-00-00-00-01"
IPXE = f"{HERE}/boot.ipxe"
HTTPBOOT = "boot/httpboot/00000000-0000-4000-8000-000000000001.json"
IGNITION = "boot/ignition/00000000-0000-4000-8000-000000000001"


def make_version(writes: DiskWrite | None, role: Role = Role.BOOT_SCRIPT) -> PathVersion:
    return PathVersion(
        since=None, content="installs", content_type="text/plain", role=role, digest="plan", writes=writes
    )


ONCE = DiskWrite(once=True, offer="offer", fallback="disk")


@for_each(
    ("path", "turn", "lacks"),
    [
        pytest.param(IPXE, make_version(None), False, id="a boot that writes no disk"),
        pytest.param(IPXE, make_version(ONCE._replace(once=False)), False, id="a boot of each time"),
        pytest.param(IPXE, make_version(ONCE), True, id="a one-time boot"),
        pytest.param(
            IPXE, make_version(ONCE._replace(in_copies=True)), False, id="a one-time boot that copies may serve"
        ),
        pytest.param(IPXE, make_version(ONCE._replace(hop="hops")), False, id="a script that asks an endpoint"),
        pytest.param(HTTPBOOT, make_version(ONCE, Role.OFFER), True, id="a one-time boot of firmware"),
        pytest.param(IGNITION, make_version(ONCE, Role.DATA), False, id="data of a one-time boot"),
    ],
)
def test_a_target_counts_a_server_whose_one_time_boot_no_endpoint_serves(
    path: str, turn: PathVersion, lacks: bool
) -> None:
    published = PublishedServer(
        server="web01",
        identities=(),
        shows={},
        summary={},
        plan={},
        files={path: ListedFile("lies", 1), "ops/x": ListedFile("x", 1)},
        contents={},
        paths={path: (turn,)},
    )
    assert build_server_files("digest", published) == ServerFiles("digest", {path: "lies"}, lacks)


@for_each(
    ("path", "content_type", "cache_control"),
    [
        (IPXE, "text/plain; charset=utf-8", "no-store"),
        (HTTPBOOT, "application/json", "no-store"),
        (IGNITION, "application/vnd.coreos.ignition+json", "no-store"),
        ("boot/unknown.ipxe", "text/plain; charset=utf-8", "no-cache"),
        (f"boot/o/{'a' * 64}/user-data", "text/cloud-config; charset=utf-8", "public, max-age=31536000, immutable"),
        (f"boot/o/{'a' * 64}/shim.efi", "application/efi", "public, max-age=31536000, immutable"),
        (
            f"{HERE}/data/{'a' * 64}/config.ign",
            "application/vnd.coreos.ignition+json",
            "no-store",
        ),
        (f"{HERE}/provisioned/{'a' * 64}", "text/plain; charset=utf-8", "no-store"),
        ("boot/signed/timestamp.json", "application/json", "no-cache"),
        ("boot/signed/servers/web01.json", "application/json", "no-cache"),
    ],
)
def test_objects_have_the_media_type_and_lifetime_of_the_mirror_configurations(
    path: str, content_type: str, cache_control: str
) -> None:
    assert (find_content_type(path), find_delivery(path).cache_control) == (content_type, cache_control)


# Decisions


def publish(root: Path, files: dict[str, File], at: datetime = AT, commit: str = "c0ffee") -> None:
    servers, shared = split(files)
    with OutputDirectory.open(root, ledger="ours") as directory:
        directory.publish(servers, shared, complete=True, commit=commit, at=at)


def plan_step(root: Path, units: Shard, max_servers: int, *, head: TargetHead | None = None) -> TargetStep:
    """Return the first step of a target that holds these units."""
    glance = (tree := FollowedTree(root)).read_summary()
    head = head or TargetHead(ledger="ours", commit="", gitboot=__version__, writer="")
    assert glance is not None
    step = plan_next_step(
        tree, glance, build_target_content(head, [units], (), gitboot=__version__), lambda _: {}, max_servers
    )
    assert step is not None
    return step


def test_servers_that_a_target_has_come_before_new_ones(tmp_path: Path) -> None:
    """An outdated boot script boots an unwanted image; a missing boot script boots nothing."""
    publish(tmp_path, fleet(1, tuple(range(9))))
    units = {f"server-52-54-00-00-00-{number:02x}": ServerFiles("old", {}) for number in (7, 8)}
    assert set(list(plan_step(tmp_path, units, 3).units)[:2]) == units.keys()


@for_each(("max_servers", "first"), [(3, {"08"}), (None, {f"{number:02x}" for number in range(9)})])
def test_urgent_servers_come_first_without_others(tmp_path: Path, max_servers: int | None, first: set[str]) -> None:
    publish(tmp_path, fleet(1, tuple(range(9))))
    tree, head = FollowedTree(tmp_path), TargetHead(ledger="ours", commit="", gitboot="0.0.1", writer="")
    tree.urgent_servers = frozenset({"server-52-54-00-00-00-08", "a-server-without-changes"})
    glance = tree.read_summary()
    assert glance is not None
    content = build_target_content(head, [], (), gitboot=__version__)
    step = plan_next_step(tree, glance, content, lambda _: {}, max_servers)
    assert step is not None
    assert {server.rpartition("-")[2] for server in step.units if server} == first
    assert (step.head.gitboot == __version__) is (max_servers is None), "files of the other version are left"


def test_finding_m5_the_shared_scripts_come_after_all_servers_and_before_removed_ones(tmp_path: Path) -> None:
    publish(tmp_path, fleet(1, tuple(range(9))))
    units = {
        "": ServerFiles("old", {}),
        "a-gone-server": ServerFiles("old", {}),
        "server-52-54-00-00-00-08": ServerFiles("old", {}),
    }
    new = {f"server-52-54-00-00-00-{number:02x}" for number in range(8)}
    first, *others, shared, last = plan_step(tmp_path, units, 99).units
    assert (first, set(others), shared, last) == ("server-52-54-00-00-00-08", new, "", "a-gone-server")


def test_servers_of_one_shard_follow_one_another(tmp_path: Path) -> None:
    """Each step writes the shards of its servers whole: a first copy writes each of them once or twice."""
    publish(tmp_path, fleet(1, tuple(range(600))))
    numbers = [find_shard_number(server) for server in plan_step(tmp_path, {}, 999).units if server]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) < len(numbers)


def test_files_of_another_version_are_written_again(tmp_path: Path) -> None:
    publish(tmp_path, fleet(1))
    glance = (tree := FollowedTree(tmp_path)).read_summary()
    assert glance is not None
    units = {server: ServerFiles(digest, {}) for server, digest in glance.states.items()}
    head = TargetHead(ledger="ours", commit=glance.commit, gitboot="0.0.1", writer="")
    assert (
        plan_next_step(tree, glance, build_target_content(head, [units], (), gitboot="0.0.1"), lambda _: {}, 99) is None
    )
    made_by = [plan_step(tmp_path, units, max_servers, head=head).head.gitboot for max_servers in (1, 99)]
    assert made_by == ["0.0.1", __version__], "some servers are left, and then none"


def test_a_boot_script_of_an_interrupted_step_stays_unverified_until_gitboot_writes_it(tmp_path: Path) -> None:
    publish(tmp_path, fleet(1))
    tree, names = FollowedTree(tmp_path), [f"server-52-54-00-00-00-{number:02x}" for number in range(2)]
    units = {name: ServerFiles("old", {ENTRY.format(number): "0" * 64}) for number, name in enumerate(names)}
    shards = {find_shard_number(name): {name: units[name]} for name in names}
    head = TargetHead(ledger="ours", commit="", gitboot=__version__, writer="", shards=dict.fromkeys(shards, "0" * 64))
    content = build_target_content(head, shards.values(), [ENTRY.format(0)], gitboot=__version__)
    glance = tree.read_summary()
    assert glance is not None
    for name, unlisted_paths, is_placed in ((names[1], {ENTRY.format(0)}, False), (names[0], set(), True)):
        tree.urgent_servers = frozenset({name})
        step = plan_next_step(tree, glance, content, lambda number: shards.get(number, {}), 1)
        assert step is not None
        assert step.units.keys() == {name}
        assert step.unlisted_paths == unlisted_paths
        assert (ENTRY.format(0) in step.placed) is is_placed
        content = apply_step(content, step)


def test_a_tree_that_changes_during_a_read_is_read_again(tmp_path: Path) -> None:
    publish(tmp_path / "out", fleet(1))
    tree = FollowedTree(tmp_path / "out")
    glance = tree.read_summary()
    assert glance is not None
    server = next(name for name in glance.states if name)
    (tmp_path / "out/ops/servers" / f"{server}.json").write_bytes(b"{}")
    with pytest.raises(RaceError):
        tree.read_server_files(server, glance.states[server])
    (tmp_path / "out/boot/boot.ipxe").write_bytes(b"half")
    with pytest.raises(RaceError):
        tree.read_file("boot/boot.ipxe", fleet(1)["boot/boot.ipxe"].sha256)


def test_files_of_an_ended_window_that_change_during_a_read_are_read_again(tmp_path: Path) -> None:
    publish(tmp_path, fleet(1))
    tree, server, script = FollowedTree(tmp_path), "server-52-54-00-00-00-01", ENTRY.format(1)
    tree.ended_servers = {server: 1}
    for text in ("#!ipxe\necho the first end\n", "#!ipxe\necho the second end\n"):
        glance = tree.read_summary()
        assert glance is not None
        digest = tree.read_server_files(server, glance.states[server]).files[script]
        (tmp_path / script).write_text(text)
        with pytest.raises(RaceError):
            tree.read_file(script, digest)
    glance = tree.read_summary()
    assert glance is not None
    assert tree.read_file(script, tree.read_server_files(server, glance.states[server]).files[script]).content


def test_a_manifest_with_an_impossible_path_is_read_again(tmp_path: Path) -> None:
    publish(tmp_path, fleet(1))
    manifest = tmp_path / MANIFEST
    manifest.write_text(re.sub(r'"nodes":\{"..', r'"nodes":{"\\u0000', manifest.read_text()))
    with pytest.raises(RaceError, match="is not a valid path"):
        FollowedTree(tmp_path).read_summary()


def test_a_list_with_a_folder_in_the_place_of_a_file_is_read_again(tmp_path: Path) -> None:
    publish(tmp_path, fleet(1))
    (tmp_path / "boot/signed/1.root.json").mkdir(parents=True)
    with pytest.raises(RaceError, match="Is a directory"):
        FollowedTree(tmp_path).read_summary()


def test_a_target_stays_empty_without_a_publication(tmp_path: Path) -> None:
    assert FollowedTree(tmp_path).read_summary() is None


# Threads


@dataclass
class MemoryTarget:
    """A target in memory that stores files, or fails as configured."""

    max_servers: int = 1
    fails: Exception | None = None
    known: tuple[str, ...] = ()  # servers of an older commit that it has
    gate: threading.Event = field(default_factory=threading.Event)
    steps: list[TargetStep] = field(default_factory=list)
    loads: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def load(self) -> TargetContent:
        self.loads += 1
        head = TargetHead(ledger="ours", commit="", gitboot=__version__, writer="")
        return build_target_content(
            head, [{server: ServerFiles("old", {}) for server in self.known}], (), gitboot=__version__
        )

    def shard(self, head: TargetHead, number: str) -> Shard:
        return {}

    def apply(self, step: TargetStep, before: TargetContent, tree: FollowedTree) -> None:
        self.gate.wait(60)
        if self.fails is not None:
            raise self.fails
        self.steps.append(step)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    publish(tmp_path, fleet(1))
    return tmp_path


def follower(
    root: Path, memory_target: MemoryTarget, wake: Callable[[], None] = lambda: None, retry_s: float = 0.01
) -> Follower:
    return Follower(
        memory_target,
        FollowedTree(root),
        target_status=TargetStatus(name="shelf", behind_since=AT),
        clock=lambda: AT,
        wake=wake,
        first_retry_s=retry_s,
    )


def test_a_target_is_updated_at_the_start_and_with_each_publication(out: Path) -> None:
    memory_target, woken = MemoryTarget(), threading.Event()
    with Followers([one := follower(out, memory_target, woken.set)]).running() as followers:
        followers.publish()
        followers.wait(60)
        assert one.target_status == TargetStatus(name="shelf", commit="c0ffee")
        assert woken.wait(60)
        servers = len(memory_target.steps)
        assert servers == 4  # three, and one without a server
        publish(out, fleet(1, (0, 1)), AT + DAY, commit="beef")
        memory_target.gate.clear()
        followers.publish()
        assert one.target_status.behind_since == AT
        memory_target.gate.set()
        followers.wait(60)
        assert one.target_status == TargetStatus(name="shelf", commit="beef")
    assert memory_target.loads == 1


def test_a_target_is_read_again_at_intervals(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have changed the target."""
    monkeypatch.setattr("gitboot.publish.targets.follower._PERIOD_S", 0.001)
    memory_target = MemoryTarget(max_servers=99)
    with Followers([follower(out, memory_target)]).running() as followers:
        followers.publish()
        assert eventually(lambda: memory_target.loads > 2)


def test_frequent_publications_do_not_delay_the_next_read_of_a_target(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("gitboot.publish.targets.follower.time", SimpleNamespace(monotonic=lambda: now[0]))
    memory_target, loads = MemoryTarget(max_servers=99), []
    with Followers([one := follower(out, memory_target)]).running() as followers:
        for now[0] in (0, 300, 599, 600, 1199, 1200):
            followers.publish()
            assert one.wait(60)
            loads.append(memory_target.loads)
    assert loads == [1, 1, 1, 2, 2, 3]


def test_a_target_that_is_down_delays_nothing_and_is_tried_again_until_it_is_up(out: Path) -> None:
    memory_target = MemoryTarget(fails=HostUnreachable("shelf: no route"))
    other = MemoryTarget()
    with Followers([follower(out, memory_target), follower(out, other)]).running() as followers:
        followers.publish()
        assert eventually(lambda: memory_target.loads > 3)
        failure = ("HostUnreachable", "shelf: no route")
        assert followers.target_status[0] == TargetStatus(name="shelf", behind_since=AT, failure=failure)
        assert eventually(lambda: followers.target_status[1] == TargetStatus(name="shelf", commit="c0ffee"))
        memory_target.fails = None
        followers.wait(60)
        assert followers.target_status[0] == TargetStatus(name="shelf", commit="c0ffee")


def test_a_file_that_stays_changed_is_named_and_is_tried_again_when_it_is_restored(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.publish.targets.follower._SOON_S", 0.001)
    file = out / "ops/servers/server-52-54-00-00-00-01.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"1", b"2"))
    with Followers([one := follower(out, MemoryTarget(max_servers=99))]).running() as followers:
        followers.publish()
        assert eventually(lambda: one.target_status.failure is not None)
        assert one.target_status.failure == (
            "FileChanged",
            "shelf: ops/servers/server-52-54-00-00-00-01.json differs from the version in the manifest. "
            "If Published is true and another program changed the file, delete it and restart gitboot run",
        )
        file.write_bytes(content)
        followers.retry_now()
        followers.wait(60)
        assert one.target_status == TargetStatus(name="shelf", commit="c0ffee")


@pytest.mark.parametrize("damaged", ["ops/servers/server-52-54-00-00-00-01.json", ENTRY.format(1)])
@pytest.mark.parametrize("max_servers", [1, 99])
def test_a_file_that_cannot_be_read_does_not_stop_the_update_of_other_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str, max_servers: int
) -> None:
    """The shared files and the signed list come after all new servers, so these files wait."""
    monkeypatch.setattr("gitboot.publish.targets.follower._SOON_S", 0.001)
    out, mirror = tmp_path / "out", tmp_path / "mirror"
    mirror.mkdir()
    with OutputDirectory.open(out, ledger="ours") as directory:
        directory.publish(*split(fleet(1)), complete=True, commit="c0ffee", at=AT)
        directory.update_list(None, AT)
    content = (out / damaged).read_bytes()
    (out / damaged).write_bytes(b"damaged")
    target = StoreTarget(
        "mirror",
        build_folder_opener(mirror),
        ledger="ours",
        heir_of=lambda: None,
        writer="one",
        max_servers=max_servers,
    )
    follower = Follower(
        target,
        FollowedTree(out),
        target_status=TargetStatus(name="mirror", behind_since=AT),
        clock=lambda: AT,
        wake=lambda: None,
    )

    def is_present(path: str) -> bool:
        return (mirror / path).exists()

    with Followers([follower]).running() as followers:
        followers.publish()
        assert eventually(lambda: is_present(ENTRY.format(0)) and is_present(ENTRY.format(2)))
        assert eventually(lambda: follower.target_status.failure is not None)
        reason, message = follower.target_status.failure or ("", "")
        assert (reason, damaged in message, follower.target_status.behind_since) == ("FileChanged", True, AT)
        assert not any(map(is_present, (ENTRY.format(1), "boot/boot.ipxe", "boot/signed/timestamp.json")))
        (out / damaged).write_bytes(content)
        followers.retry_now()
        followers.wait(60)
        assert follower.target_status == TargetStatus(name="mirror", commit="c0ffee")
        assert all(map(is_present, (ENTRY.format(1), "boot/boot.ipxe", "boot/signed/timestamp.json")))


def test_a_target_that_hangs_delays_neither_publications_nor_the_end(out: Path) -> None:
    memory_target = MemoryTarget()
    memory_target.gate.clear()
    with Followers([one := follower(out, memory_target)]).running() as followers:
        followers.publish()
        assert eventually(lambda: memory_target.loads == 1)
        followers.publish()
        assert one.target_status.behind_since == AT
    memory_target.gate.set()


def test_e38_a_restored_older_tree_is_not_copied_to_a_target_before_it_is_published_again(out: Path) -> None:
    """The output at the start of an instance may be a backup, and would move a target backwards."""
    memory_target = MemoryTarget(max_servers=99)
    with Followers([one := follower(out, memory_target)]).running() as followers:
        assert not one.wait(0.2)
        assert memory_target.loads == 0
        publish(out, fleet(2), AT + DAY, commit="beef")
        followers.publish()
        followers.wait(60)
    assert [step.head.commit for step in memory_target.steps] == ["beef"]


def test_e38_a_renewed_list_of_a_restored_older_tree_is_not_copied_to_a_target(tmp_path: Path) -> None:
    """A host that resumes the work of before renews the list of its OUTPUT, which may be older than the targets."""
    with OutputDirectory.open(tmp_path / "out", ledger="ours") as directory:
        directory.publish(*split(fleet(1)), complete=True, commit="c0ffee", at=AT)
        before = directory.inventory()
    memory_target, servers = MemoryTarget(max_servers=99), split(fleet(2))
    with (
        Followers([one := follower(tmp_path / "out", memory_target)]).running() as followers,
        OutputDirectory.open(tmp_path / "out", ledger="ours") as directory,
    ):
        assert directory.resume(before) == frozenset()
        followed = FollowedTarget(directory, followers)
        assert followed.renew_list(AT).expires == AT + VALID
        assert not one.wait(0.2)
        assert memory_target.loads == 0
        followed.publish(*servers, complete=True, commit="beef", at=AT + DAY, parts=NO_UPDATES)
        followers.wait(60)
        assert followed.renew_list(AT + 2 * DAY).expires == AT + 2 * DAY + VALID
        followers.wait(60)
    assert [step.head.commit for step in memory_target.steps] == ["beef", "beef"]


def test_a_server_whose_window_ends_before_the_first_publication_does_not_wait_for_the_other_servers(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, gitboot was upgraded, and writes the files of all servers again."""
    servers, shared = split(fleet(2))
    last = max(servers, key=lambda server: (find_shard_number(server), server))
    memory_target = MemoryTarget(known=tuple(servers))
    with (
        Followers([follower(out, memory_target)]).running() as followers,
        OutputDirectory.open(out, ledger="ours") as directory,
    ):
        monkeypatch.setattr(directory, "end_windows", lambda _: EndedWindows((last,), None))
        followed = FollowedTarget(directory, followers)
        followed.end_windows(AT)
        followed.publish(servers, shared, complete=True, commit="beef", at=AT + DAY, parts=NO_UPDATES)
        followers.wait(60)
    assert [*memory_target.steps[0].units] == [last]


def test_finding_m8_a_failed_target_is_tried_at_once_on_request_and_at_a_transition(out: Path) -> None:
    memory_target = MemoryTarget(fails=HostUnreachable("shelf: no route"), known=("server-52-54-00-00-00-01",))
    with Followers([one := follower(out, memory_target, retry_s=3600)]).running() as followers:
        followers.publish()
        assert eventually(lambda: memory_target.loads == 1 and one.target_status.failure is not None)
        followers.retry_now()
        assert eventually(lambda: memory_target.loads == 2)
        followers.publish_transition(AT)
        assert eventually(lambda: memory_target.loads == 3)
        followers.publish_transition(AT + DAY)
        assert one.target_status.overdue_since == AT, "the first transition that it does not hold"
        assert eventually(lambda: memory_target.loads == 4)
        memory_target.fails = None
        followers.retry_now()
        followers.wait(60)
        assert one.target_status == TargetStatus(name="shelf", commit="c0ffee")


@for_each(("known", "overdue"), [(("server-52-54-00-00-00-01",), AT), ((), None)])
def test_finding_m8_a_target_from_before_the_start_may_have_a_window_that_has_ended(
    out: Path, known: tuple[str, ...], overdue: datetime | None
) -> None:
    memory_target = MemoryTarget(fails=HostUnreachable("shelf: no route"), known=known)
    with Followers([one := follower(out, memory_target, retry_s=3600)]).running() as followers:
        followers.publish()
        assert eventually(lambda: one.target_status.failure is not None)
        assert one.target_status.overdue_since == overdue
        memory_target.fails = None
        followers.retry_now()
        followers.wait(60)
        assert one.target_status == TargetStatus(name="shelf", commit="c0ffee")


def test_a_target_that_another_process_has_taken_over_is_left_alone_even_on_request(out: Path) -> None:
    memory_target = MemoryTarget(fails=LockedByAnother("shelf: another process"))
    with Followers([one := follower(out, memory_target)]).running() as followers:
        followers.publish()
        assert eventually(lambda: one.target_status.failure is not None)
        for hurry in (followers.publish, followers.retry_now, lambda: followers.publish_transition(AT)):
            hurry()
        assert not one.wait(0.2)
    assert memory_target.loads == 1


def test_a_publication_during_a_step_is_in_the_next_step(out: Path) -> None:
    memory_target = MemoryTarget(max_servers=99)
    memory_target.gate.clear()
    with Followers([one := follower(out, memory_target)]).running() as followers:
        followers.publish()
        assert eventually(lambda: memory_target.loads == 1)
        publish(out, fleet(2), AT + DAY, commit="beef")
        followers.publish()
        memory_target.gate.set()
        followers.wait(60)
        assert one.target_status == TargetStatus(name="shelf", commit="beef")
    assert ENTRY.format(0) in memory_target.steps[-1].placed


# Windows


class WindowSite:
    """An instance, and a folder that follows its OUTPUT. At 23:00, web01 boots memtest-7 in a window until 04:00."""

    def __init__(self, folder: Path, memory_target: MemoryTarget | None = None, retry_s: float = 0.01) -> None:
        self.output, self.copy = folder / "output", folder / "copy"
        self.copy.mkdir()
        with Unsynced.open(folder / "ledger.sqlite") as store:
            check_tables(store)
            ledger = store.progress[0]
        self.bench = Bench(folder, target=OutputDirectory.open(self.output, ledger=ledger))
        self.documents: tuple[str, ...] = (
            *SEED,
            maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01]}"),
        )
        opener = build_folder_opener(self.copy)
        target = StoreTarget("copy", opener, ledger=ledger, heir_of=lambda: None, writer=f"one-{ledger}")
        self.wake_count = 0
        self.follower = Follower(
            memory_target or target,
            FollowedTree(self.output),
            target_status=TargetStatus(name="copy", behind_since=None),
            clock=lambda: self.bench.now,
            wake=self._wake,
            first_retry_s=retry_s,
        )
        self.followers = Followers([self.follower])
        self.bench.instance.reconciler._components.target.followers = self.followers

    def _wake(self) -> None:
        self.wake_count += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.bench, self.followers.running():
            self.bench.now = at("20T23:00")
            self.bench.decide(*self.documents).reconcile()
            yield

    def block_publications(self) -> Path:
        """Add a server, and return the foreign file that prevents the publication of its script."""
        foreign = self.output / make_script("web02")
        foreign.parent.mkdir(parents=True)
        foreign.write_text("not a file of gitboot")
        self.bench.decide(*self.documents, server("web02", "role: web"))
        return foreign

    def reconcile_without_publishing(self, time: str) -> None:
        self.bench.now = at(time)
        for _ in range(2):  # before gitboot ends windows without a publication, it waits for one
            self.bench.reconcile(wait=False)
            self.bench.now += QUICK_START
        assert (self.bench.condition("Published") or ())[:2] == (False, "PublishError")

    @property
    def images(self) -> tuple[str, str]:
        """What the script of web01 boots, in OUTPUT and in the folder."""
        texts = ((root / make_script("web01")).read_text() for root in (self.output, self.copy))
        output, copy = (next((name for name in ("memtest", "flatcar") if name in text), "disk") for text in texts)
        return output, copy

    def assert_copied(self) -> None:
        assert eventually(lambda: self.images == ("flatcar", "flatcar"))
        for path in sorted(each for each in (self.output / "boot").rglob("*") if each.is_file()):
            assert (self.copy / path.relative_to(self.output)).read_bytes() == path.read_bytes()


def make_script(name: str) -> str:
    return f"boot/v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe"


def is_updated_before_web01(name: str) -> bool:
    """Return whether a server comes before web01 if both have changed and neither is urgent."""
    return find_shard_number(name) < find_shard_number("web01")


def test_a_window_ends_at_a_target_while_gitboot_cannot_publish(tmp_path: Path) -> None:
    site, script = WindowSite(tmp_path), make_script("web01")
    with site.running():
        assert eventually(lambda: site.images[1] == "memtest")
        foreign = site.block_publications()
        site.reconcile_without_publishing("21T04:00")
        assert eventually(lambda: site.images == ("disk", "disk"))
        (site.output / script).write_text("#!ipxe\necho a second window ended\n")
        site.followers.end_windows(frozenset({"web01"}), site.bench.now + timedelta(hours=1))
        assert eventually(lambda: "second" in (site.copy / script).read_text())
        foreign.unlink()
        site.bench.now += DAY
        site.bench.reconcile()
        site.assert_copied()


@pytest.mark.parametrize("fails_first", [True, False], ids=["before the window ends", "when the window ends"])
@pytest.mark.parametrize("fails_at", ["the script of web02", "the manifest"])
def test_a_partly_placed_publication_does_not_delay_the_end_of_a_window_at_a_target(
    tmp_path: Path, fails_at: str, fails_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, place = WindowSite(tmp_path), DurableDirectory.place
    site.documents = (*site.documents, server("web02", "role: web"))

    def place_some(disk: DurableDirectory, path: str) -> None:
        if path == (MANIFEST if fails_at == "the manifest" else make_script("web02")):
            raise PublishError("no space left on device")
        place(disk, path)

    with site.running():
        assert eventually(lambda: site.images[1] == "memtest")
        with monkeypatch.context() as patch:
            patch.setattr(DurableDirectory, "place", place_some)
            newer = (each.replace("-7", "-8").replace("flatcar-1", "flatcar-2") for each in site.documents[1:])
            site.bench.decide(make_fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}"), *newer)
            if fails_first:
                site.reconcile_without_publishing("20T23:30")
                assert "memtest-8" in (site.output / make_script("web01")).read_text()
            site.reconcile_without_publishing("21T04:00")
            assert eventually(lambda: "memtest" not in site.images)
        site.bench.now += DAY
        site.bench.reconcile()
        site.assert_copied()


def test_a_file_that_can_never_be_replaced_delays_no_other_file_at_a_target_and_causes_no_more_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, place = WindowSite(tmp_path), DurableDirectory.place
    chained = f"boot/ipxe/{make_uuid('web01')}"

    def place_others(disk: DurableDirectory, path: str) -> None:
        if path == make_script("web01"):
            raise PublishError("the file is immutable")
        place(disk, path)

    with site.running():
        assert site.follower.wait(60)
        site.block_publications()
        monkeypatch.setattr(DurableDirectory, "place", place_others)
        site.reconcile_without_publishing("21T04:00")
        assert eventually(lambda: "memtest" not in (site.copy / chained).read_text())
        assert site.follower.wait(60)
        assert site.images == ("memtest", "memtest")
        head, wakes = (site.copy / HEAD).stat(), 0
        for minute in range(1, 5):
            site.reconcile_without_publishing(f"21T04:{minute:02}")
            assert site.follower.wait(60)
            if minute == 1:  # the follower calls `wake` after `wait` has ended: by now for what it has copied
                wakes = site.wake_count
        assert (site.copy / HEAD).stat() == head
        assert site.wake_count == wakes, "each one would cause another reconcile, and another try"


def test_a_file_that_cannot_be_read_keeps_no_other_window_open_at_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, read_from_disk, read_bytes = WindowSite(tmp_path), DurableDirectory.read, Path.read_bytes
    window = maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01, web03]}")
    site.documents = (*SEED, server("web03", "role: web"), window)
    unreadable = make_script("web03")

    def read_others_from_disk(disk: DurableDirectory, path: str, max_bytes: int | None = None) -> bytes | None:
        if path == unreadable:
            raise PublishError("input/output error")
        return read_from_disk(disk, path, max_bytes)

    def read_others(path: Path) -> bytes:
        if path == site.output / unreadable:
            raise OSError(errno.EIO, "input/output error")
        return read_bytes(path)

    with site.running():
        assert site.follower.wait(60)
        assert site.images == ("memtest", "memtest")
        foreign = site.block_publications()
        with monkeypatch.context() as patch:
            patch.setattr(DurableDirectory, "read", read_others_from_disk)
            patch.setattr(Path, "read_bytes", read_others)
            site.reconcile_without_publishing("21T04:00")
            assert site.images[0] == "disk"
            assert eventually(lambda: site.images[1] == "disk")
        foreign.unlink()
        site.bench.now += DAY
        site.bench.reconcile()
        site.assert_copied()


def test_a_failed_target_is_tried_at_once_when_a_publication_follows_failed_ones(tmp_path: Path) -> None:
    """A transition may have passed in the meantime."""
    memory_target = MemoryTarget(max_servers=99)
    site = WindowSite(tmp_path, memory_target, retry_s=3600)
    with site.running():
        assert site.follower.wait(60)
        foreign = site.block_publications()
        memory_target.fails = HostUnreachable("copy: no route")
        site.reconcile_without_publishing("21T04:00")
        assert eventually(lambda: site.follower.target_status.failure is not None)
        foreign.unlink()
        memory_target.fails = None
        site.bench.wait(minutes=1).reconcile(wait=False)
        assert site.follower.wait(60)


def test_a_server_whose_window_ended_does_not_wait_for_a_commit_that_changes_all_servers(tmp_path: Path) -> None:
    memory_target = MemoryTarget(max_servers=1)
    site = WindowSite(tmp_path, memory_target)
    names = [name for name in (f"web{number:02}" for number in range(2, 30)) if is_updated_before_web01(name)]
    site.documents = (*site.documents, *(server(name, "role: web") for name in names))
    with site.running():
        assert site.follower.wait(60)
        memory_target.gate.clear()
        site.bench.decide(*(each.replace("flatcar-1", "flatcar-2") for each in site.documents))
        site.bench.reconcile(wait=False)
        steps = len(memory_target.steps)
        site.bench.wait(hours=5)
        site.bench.reconcile(wait=False)
        memory_target.gate.set()
        assert site.follower.wait(60)
    first, second, *others = ([*step.units] for step in memory_target.steps[steps:])
    assert ["web01"] in (first, second), "only a step that began before the end may come first"
    assert len(others) > 2
