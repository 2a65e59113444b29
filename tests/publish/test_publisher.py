from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gitboot import __version__
from gitboot.errors import ForeignTree, LockedByAnother, PublishError
from gitboot.publish import durable_files
from gitboot.publish.durable_files import DurableDirectory, staging_path
from gitboot.publish.first_publication import FRESH, READY
from gitboot.publish.manifest import TreeOrigin, find_leaf, leaf_path, node_path, render_listing
from gitboot.publish.publisher import OutputDirectory, PublicationPreview, PublicationResult
from gitboot.publish.tree_changes import GRACE
from gitboot.publish.tree_reader import LOCK, RESERVES, read_manifest
from gitboot.render.endpoint_files import ListedFile, state_path
from gitboot.render.paths import ContentType, File, Files
from tests.helpers import disks_and_terminals
from tests.helpers.published_trees import owner, publish_files, record_calls, server_files, split, verify_tree

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)

ROOT = Path(__file__).parents[2]


def make_tree(version: int = 1, servers: int = 3) -> dict[str, File]:
    """Return a tree whose boot scripts name the user data of their own version."""
    files = {"boot/boot.ipxe": File(b"#!ipxe\n"), "ops/serve/nginx.conf": File(b"types {}\n")}
    for server in range(servers):
        data = f"user data {version} of {server}\n".encode()
        content = f"boot/o/{sha256(data).hexdigest()}/user-data"
        files[content] = File(data, ContentType.CLOUD_CONFIG)
        files[f"boot/v1/boot/52-54-00-00-00-0{server}/boot.ipxe"] = File(f"chain {content}\n".encode())
        files[f"ops/plans/server{server}.json"] = File(f'{{"v":{version}}}'.encode(), ContentType.JSON)
    return files


ENTRY = "boot/v1/boot/52-54-00-00-00-00/boot.ipxe"
OWNER = str(owner(ENTRY))
STATE = state_path(OWNER)


@pytest.fixture(autouse=True)
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the syncs, without syncing, because no power is cut here."""
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    monkeypatch.setattr(durable_files, "syncfs", lambda fd: calls.append("syncfs"))
    return calls


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def directory(root: Path) -> Iterator[OutputDirectory]:
    with OutputDirectory.open(root, ledger="ours") as directory:
        yield directory


def publish(
    root: Path, files: Files, *, at: datetime = AT, commit: str = "c0ffee", ledger: str = "ours"
) -> PublicationResult:
    with OutputDirectory.open(root, ledger=ledger) as directory:
        return publish_files(directory, files, commit=commit, at=at)


def publish_again(root: Path, servers: Mapping[str, Files], shared: Files) -> PublicationResult:
    looked = PublicationPreview(root, ledger="ours", heir_of=None)
    return looked.publish(servers, shared, complete=True, commit="c0ffee", at=AT)


def read_published(root: Path) -> dict[str, bytes]:
    return {
        path: content
        for path, content in read_files(root).items()
        if not re.match(r"ops/(manifest\b|servers/|index/|\.gitboot/)", path)
    }


def read_files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def contents(files: Files) -> dict[str, bytes]:
    return {path: file.content for path, file in files.items()}


def read_stats(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (found.st_ino, found.st_mtime_ns)
        for path in root.rglob("*")
        for found in [path.lstat()]
    }


def list_folders(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


# Published files


def test_the_manifest_is_json_and_digests_in_its_head_lead_to_every_file(root: Path) -> None:
    publish(root, make_tree())
    head = json.loads((root / "ops/manifest.json").read_bytes())
    assert sorted(head) == ["commit", "gitboot", "ledger", "nodes", "shared", "version"]
    servers, shared = split(make_tree())
    listed: dict[str, str] = {}
    for node, node_digest in head["nodes"].items():
        leaves = read_digests(root / node_path(node), node_digest)
        for leaf, leaf_digest in leaves.items():
            found = read_digests(root / leaf_path(node, leaf), leaf_digest)
            assert {find_leaf(name) for name in found} == {(node, leaf)}
            listed |= found
    assert listed == {name: files[state_path(name)].sha256 for name, files in servers.items()}
    data = (root / "ops/manifest/shared.json").read_bytes()
    assert sha256(data).hexdigest() == head["shared"]
    assert json.loads(data) == {
        path: {"sha256": file.sha256, "size": len(file.content)} for path, file in shared.items()
    }


def read_digests(path: Path, expected: str) -> dict[str, str]:
    data = path.read_bytes()
    assert sha256(data).hexdigest() == expected
    found: dict[str, str] = json.loads(data)
    return found


@pytest.mark.parametrize("path", ['boot/o/x/a "quoted" \\ name', "boot/o/x/ümlaut", 'boot/o/x/a:{"sha256":'])
@pytest.mark.parametrize("is_shared", [True, False])
def test_any_name_is_in_the_manifest_unchanged(root: Path, path: str, is_shared: bool) -> None:
    files = {path: File(b"x")}
    servers, shared = ({}, files) if is_shared else ({"s": server_files("s", files)}, {})
    for _ in range(2):
        with OutputDirectory.open(root, ledger="ours") as directory:
            published = directory.publish(servers, shared, complete=True, commit="c", at=AT)
    assert published.written == ()
    manifest = read_manifest(root)
    assert manifest is not None
    assert path in manifest.files


def test_the_same_files_give_the_same_bytes_after_any_earlier_state(root: Path, tmp_path: Path) -> None:
    publish(root, make_tree(1), at=AT, commit="one")
    publish(root, make_tree(2, servers=5), at=AT + DAY, commit="two")
    publish(root, make_tree(3), at=AT + 2 * DAY, commit="three")
    publish(root, make_tree(3), at=AT + 9 * DAY, commit="three")
    publish(other := tmp_path / "other", dict(reversed(make_tree(3).items())), at=AT, commit="three")
    ours = {path: content for path, content in read_files(root).items() if not path.startswith("ops/.gitboot/")}
    theirs = {path: content for path, content in read_files(other).items() if not path.startswith("ops/.gitboot/")}
    assert ours == theirs


def test_permissions_are_the_same_under_any_umask(root: Path) -> None:
    before = os.umask(0o077)
    try:
        publish(root, make_tree())
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")] if path.name != "lock"}
    assert set(modes.values()) == {0o644, 0o755}
    assert all((mode == 0o755) == path.is_dir() for path, mode in modes.items())


# Cost


@pytest.mark.parametrize("restarted", [False, True])
def test_publishing_the_same_files_twice_writes_nothing(root: Path, restarted: bool) -> None:
    directory = OutputDirectory.open(root, ledger="ours")
    publish_files(directory, make_tree(), commit="c0ffee", at=AT)
    before = read_stats(root)
    if restarted:
        directory.close()
        directory = OutputDirectory.open(root, ledger="ours")
    published = publish_files(directory, make_tree(), commit="c0ffee", at=AT + DAY)
    directory.close()
    assert published == PublicationResult(written=(), withdrawn=(), expired=(), unchanged=len(make_tree()))
    before.pop("ops/.gitboot/lock")
    assert read_stats(root).items() >= before.items()


NODE, LEAF = find_leaf(OWNER)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        pytest.param({ENTRY: File(b"another\n")}, {ENTRY, STATE, leaf_path(NODE, LEAF), node_path(NODE)}, id="a file"),
        pytest.param({}, set(), id="the commit alone"),
    ],
)
def test_a_change_rewrites_only_its_files_and_their_part_of_the_manifest(
    root: Path, changed: Files, parts: set[str]
) -> None:
    publish(root, make_tree(), commit="one")
    before = read_stats(root)
    assert publish(root, {**make_tree(), **changed}, commit="two").written == tuple(changed)
    rewritten = {
        path for path, state in read_stats(root).items() if before.get(path) != state and (root / path).is_file()
    }
    assert rewritten - {LOCK} == {*parts, "ops/manifest.json"}
    assert read_published(root) == contents({**make_tree(), **changed})


def test_a_publication_checks_only_the_changed_servers(
    root: Path, directory: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_tree(servers=9)
    publish_files(directory, files, commit="one", at=AT)
    looked = record_calls(monkeypatch, "lstat", "get_size")
    files[ENTRY] = File(b"another\n")
    published = publish_files(directory, files, commit="two", at=AT, changed=[ENTRY])
    own = split(files)[0][OWNER]
    assert set(looked) == {*own, *RESERVES}
    assert published == PublicationResult(written=(ENTRY,), withdrawn=(), expired=(), unchanged=len(own) - 2)
    assert read_published(root) == contents(files)


# The order, and the age of versions


def test_content_comes_before_the_scripts_that_refer_to_it_and_the_manifest_last(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, make_tree(1))
    steps = record_calls(monkeypatch, "place", "remove")
    publish(root, make_tree(2, servers=2))

    def order(step: str) -> int:
        stages = [
            r"ops/\.gitboot/pending",
            r"boot/o/",
            r"ops/servers/",
            r"boot/|ops/plans|ops/\.gitboot/retired",
            r"-?ops/index/",
            r"-(boot|ops)/(?!\.gitboot)",
            r"-?ops/manifest/",
            r"ops/manifest\.json",
            r"-ops/\.gitboot/pending",
        ]
        return next(index for index, stage in enumerate(stages) if re.match(stage, step))

    assert {order(step) for step in steps} == {*range(9)}
    assert [order(step) for step in steps] == sorted(order(step) for step in steps)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        pytest.param(AT + timedelta(hours=1), AT + timedelta(hours=1), id="the time of the reconcile"),
        pytest.param(AT + timedelta(seconds=5, microseconds=900_000), AT + timedelta(seconds=5), id="whole seconds"),
        pytest.param(AT, AT + SECOND, id="the next second, within the same"),
        pytest.param(AT - DAY, AT + SECOND, id="the next second, when the clock jumped back"),
    ],
)
def test_each_version_is_dated_later_than_the_one_before(root: Path, at: datetime, expected: datetime) -> None:
    publish(root, make_tree(), at=AT)
    publish(root, {**make_tree(), ENTRY: File(b"another\n")}, at=at)
    assert (root / ENTRY).stat().st_mtime_ns == int(expected.timestamp()) * 10**9
    assert (root / "boot/boot.ipxe").stat().st_mtime == AT.timestamp()


FOLLOW = """
import sys
from hashlib import sha256
from pathlib import Path
from time import sleep
root, entry = Path(sys.argv[1]), Path(sys.argv[2])
seen = set()
try:
    while not (root / "done").exists():
        named = (root / entry).read_text().removeprefix("chain ").strip()
        content = (root / named).read_bytes()
        assert sha256(content).hexdigest() in named, f"{named}: {content}"
        if content not in seen:
            seen.add(content)
            print("another", flush=True)
        sleep(0.0002)
finally:
    sys.stdout.flush()
"""


def test_a_boot_script_always_refers_to_existing_content_through_200_commits(
    root: Path, directory: OutputDirectory
) -> None:
    publish_files(directory, make_tree(0, servers=1), commit="0", at=AT)
    reader = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(root), ENTRY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    for version in range(1, 201):
        publish_files(
            directory, make_tree(version, servers=1), commit=str(version), at=AT + version * timedelta(hours=1)
        )
        if version % 8 == 0:  # so many versions are seen, however slow the reader is
            assert reader.stdout.readline() == "another\n", reader.communicate()[1]
    (root / "done").touch()
    _, complaints = reader.communicate()
    assert complaints == ""


# Removed files


def test_files_that_are_no_longer_planned_are_removed_with_empty_folders(root: Path) -> None:
    publish(root, make_tree(servers=2))
    published = publish(root, make_tree(servers=1))
    assert published.withdrawn == ("boot/v1/boot/52-54-00-00-00-01/boot.ipxe", "ops/plans/server1.json")
    assert "boot/v1/boot/52-54-00-00-00-01" not in list_folders(root)
    assert publish(root, {}).withdrawn == (
        "boot/boot.ipxe",
        "boot/v1/boot/52-54-00-00-00-00/boot.ipxe",
        "ops/plans/server0.json",
        "ops/serve/nginx.conf",
    )
    assert not {"boot/v1", "ops/plans", "ops/manifest"} & list_folders(root)
    assert {"boot", "ops"} <= list_folders(root)


CONTENT = "boot/o/1234/user-data"
NAMED: Files = {CONTENT: File(b"named"), ENTRY: File(b"entry")}
UNNAMED: Files = {ENTRY: File(b"entry")}


@pytest.mark.parametrize(
    ("passes", "stands"),
    [
        pytest.param([(0, NAMED), (1, UNNAMED), (8, UNNAMED)], False, id="seven days after it was last named"),
        pytest.param([(0, NAMED), (1, UNNAMED), (7.99999, UNNAMED)], True, id="a second before that"),
        pytest.param([(0, NAMED), (9, UNNAMED)], True, id="however old it is"),
        pytest.param([(0, NAMED), (1, UNNAMED), (5, NAMED), (30, NAMED)], True, id="named again"),
        pytest.param([(0, NAMED), (1, UNNAMED), (8, NAMED)], True, id="named again at the last instant"),
        pytest.param([(0, NAMED), (1, UNNAMED), (5, NAMED), (6, UNNAMED), (8, UNNAMED)], True, id="counted again"),
        pytest.param([(0, NAMED), (1, UNNAMED), (5, NAMED), (9, UNNAMED)], True, id="counted again, the old time over"),
        pytest.param([(0, NAMED), (1, UNNAMED), (5, NAMED), (6, UNNAMED), (13, UNNAMED)], False, id="and then gone"),
        pytest.param([(0, NAMED), (1, UNNAMED), (1, NAMED), (1, UNNAMED), (8, UNNAMED)], False, id="in one second"),
        pytest.param([(9, NAMED), (9, UNNAMED), (1, UNNAMED), (15, UNNAMED)], True, id="the clock jumped back"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_unused_content_stays_for_seven_days(
    root: Path, passes: list[tuple[float, Files]], stands: bool, restarted: bool
) -> None:
    assert GRACE == 7 * DAY
    directory = OutputDirectory.open(root, ledger="ours")
    for day, files in passes:
        if restarted:
            directory.close()
            directory = OutputDirectory.open(root, ledger="ours")
        published = publish_files(directory, files, commit=str(day), at=AT + day * DAY)
    directory.close()
    assert (root / CONTENT).exists() == stands
    assert ("boot/o/1234" in list_folders(root)) == stands
    assert published.expired == (() if stands else (CONTENT,))
    assert verify_tree(root) == ()


def test_content_that_was_retired_together_is_removed_together(root: Path) -> None:
    files = {f"boot/o/{name}/x": File(name.encode()) for name in "abc"}
    with OutputDirectory.open(root, ledger="ours") as directory:
        publish_files(directory, files, commit="1", at=AT)
        publish_files(
            directory, {"boot/o/b/x": files["boot/o/b/x"], "boot/o/c/x": files["boot/o/c/x"]}, commit="2", at=AT
        )
        publish_files(directory, {"boot/o/c/x": files["boot/o/c/x"]}, commit="3", at=AT)
    assert set(read_published(root)) == set(files)
    assert publish(root, {"boot/o/c/x": files["boot/o/c/x"]}, at=AT + GRACE).expired == ("boot/o/a/x", "boot/o/b/x")
    assert not (root / "ops/.gitboot/retired").exists()


def test_content_that_gitboot_never_published_is_never_removed(root: Path) -> None:
    publish(root, NAMED)
    (root / "boot/o/1234/vmlinuz").write_bytes(b"mirrored")
    publish(root, UNNAMED, at=AT)
    assert publish(root, UNNAMED, at=AT + 100 * DAY).expired == (CONTENT,)
    assert read_published(root) == {**contents(UNNAMED), "boot/o/1234/vmlinuz": b"mirrored"}


# Foreign files


def test_files_that_gitboot_did_not_write_are_not_changed(root: Path) -> None:
    foreign = ["robots.txt", "boot/robots.txt", "boot/v1/boot/52-54-00-00-00-01/notes", "ops/notes", "ops/.gitboot/x"]
    place(root, dict.fromkeys(foreign, File(b"mine")))
    before = read_stats(root)
    for files in (make_tree(1), make_tree(2, servers=1), {}):
        publish(root, files)
    assert {path: read_stats(root)[path] for path in foreign} == {path: before[path] for path in foreign}


def place(root: Path, files: Files) -> None:
    for path, file in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(file.content)


def make_file(path: Path) -> None:
    path.write_text("mine")


def make_symlink(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


def make_folder_symlink(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to("elsewhere")


def make_same_symlink(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(make_tree()[ENTRY].content)
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("put", "path"),
    [
        pytest.param(make_file, "boot/o", id="a file where content is planned"),
        pytest.param(Path.mkdir, ENTRY, id="a folder where a file is planned"),
        pytest.param(make_symlink, ENTRY, id="a symlink where a file is planned"),
        pytest.param(make_same_symlink, ENTRY, id="a symlink to the very same content"),
        pytest.param(make_file, "boot/v1", id="a file where a folder must be"),
        pytest.param(make_symlink, "boot/v1/boot", id="a dangling symlink where a folder must be"),
        pytest.param(make_folder_symlink, "boot/v1/boot", id="a symlink to a folder where a folder must be"),
        pytest.param(make_folder_symlink, "boot", id="a symlink where the topmost folder must be"),
    ],
)
@pytest.mark.parametrize(
    "before", [pytest.param({}, id="first reconcile"), pytest.param(make_tree(1), id="later reconcile")]
)
def test_a_foreign_file_at_a_planned_path_is_an_error_before_the_first_write(
    root: Path, put: Callable[[Path], None], path: str, before: Files
) -> None:
    publish(root, before, commit="one")
    if (root / path).exists():
        os.rename(root / path, root / "moved")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    put(root / path)
    stood = {**read_stats(root), **read_stats(root.parent)}

    with pytest.raises(PublishError, match=re.escape(f"{root / path}")) as raised:
        publish(root, make_tree(2), commit="two")

    assert re.search(r"\(move (it|them) elsewhere\)", str(raised.value))
    now = {**read_stats(root), **read_stats(root.parent)}
    assert {path for path, state in now.items() if stood.get(path) != state} <= {
        "ops/.gitboot/lock",
        "out/ops/.gitboot/lock",
    }
    os.rename(root / path, root / "moved again")
    publish(root, make_tree(2), commit="two")
    assert verify_tree(root) == ()


def test_all_foreign_files_are_named_in_one_error(root: Path) -> None:
    place(root, dict.fromkeys(make_tree(), File(b"mine")))
    with pytest.raises(PublishError) as raised:
        publish(root, make_tree(servers=6))
    assert str(raised.value).count(str(root)) == 10
    assert "and 1 more" in str(raised.value)


def test_a_foreign_folder_at_a_removed_path_is_not_removed(root: Path, tmp_path: Path) -> None:
    publish(root, make_tree())
    (root / ENTRY).unlink()
    (root / ENTRY).symlink_to("/etc/hostname")
    os.rename(root / "ops/plans", tmp_path / "plans")
    (root / "ops/plans").symlink_to(tmp_path / "plans")
    publish(root, {"boot/boot.ipxe": make_tree()["boot/boot.ipxe"]})
    assert (root / ENTRY).is_symlink()
    assert len(list((tmp_path / "plans").iterdir())) == 3


def test_an_existing_file_with_the_planned_content_is_adopted(root: Path) -> None:
    place(root, make_tree())
    assert publish(root, make_tree()) == PublicationResult(
        written=(), withdrawn=(), expired=(), unchanged=len(make_tree())
    )
    publish(root, make_tree(2))
    assert verify_tree(root) == ()


@pytest.mark.parametrize(
    "path",
    [
        *("ops/manifest.json", "ops/manifest/00.json", "ops/.gitboot/lock"),
        *("etc/passwd", "/boot/x", "boot", "boot/", "boot//x", "boot/./x", "boot/..", "boot/../../../etc/passwd"),
    ],
)
def test_no_file_can_be_planned_outside_the_tree_or_at_a_path_of_the_publisher(root: Path, path: str) -> None:
    publish(root, {})
    before = read_stats(root.parent)
    with pytest.raises(ValueError, match=re.escape(path)):
        publish(root, {path: File(b"x")})
    before.pop("out/ops/.gitboot/lock")
    assert read_stats(root.parent).items() >= before.items()


def test_a_forged_manifest_removes_nothing_outside_the_tree(root: Path) -> None:
    (root.parent / "outside").write_text("mine")
    publish(root, {"boot/x": File(b"x")})
    forged = render_listing({"boot/../../outside": ListedFile(File(b"mine").sha256, 4)})
    (root / "ops/manifest/shared.json").write_bytes(forged)
    head = json.loads((root / "ops/manifest.json").read_text())
    head["shared"] = sha256(forged).hexdigest()
    (root / "ops/manifest.json").write_text(json.dumps(head))
    with pytest.raises(PublishError, match="the path must not contain"):
        publish(root, {})
    assert (root.parent / "outside").read_text() == "mine"


# Owners of a tree


def test_a_tree_of_another_ledger_is_not_changed(root: Path) -> None:
    publish(root, make_tree(1), ledger="theirs")
    before = read_files(root)
    with pytest.raises(ForeignTree, match=r"theirs.*ours.*gitboot records begin"):
        publish(root, make_tree(2), ledger="ours")
    with pytest.raises(ForeignTree):
        publish_again(root, *split(make_tree(2)))
    before.pop("ops/.gitboot/lock")
    assert read_files(root).items() >= before.items()


def test_a_tree_can_be_adopted(root: Path) -> None:
    publish(root, make_tree(1, servers=5), ledger="theirs")
    with OutputDirectory.open(root, ledger="ours", heir_of=lambda: "theirs") as directory:
        assert directory.origin is not None
        assert directory.origin.ledger == "theirs"
        publish_files(directory, make_tree(2), commit="ours now", at=AT)
    assert {path for path in read_published(root) if not path.startswith("boot/o/")} == {
        path for path in make_tree(2) if not path.startswith("boot/o/")
    }
    publish(root, make_tree(3), ledger="ours")
    with pytest.raises(ForeignTree):
        publish(root, make_tree(3), ledger="theirs")


def test_one_process_publishes_at_a_time_and_another_gets_an_error_with_its_name(root: Path) -> None:
    with OutputDirectory.open(root, ledger="ours"), pytest.raises(LockedByAnother) as raised:
        OutputDirectory.open(root, ledger="ours")
    assert f"process {os.getpid()} on {os.uname().nodename}" in str(raised.value)
    publish(root, make_tree())


def test_the_stamp_belongs_to_the_last_completed_reconcile(root: Path) -> None:
    with OutputDirectory.open(root, ledger="ours") as directory:
        assert directory.origin is None
        publish_files(directory, make_tree(), commit="one", at=AT)
        assert directory.origin == TreeOrigin(commit="one", gitboot=__version__, ledger="ours")
    with OutputDirectory.open(root, ledger="ours") as directory:
        assert directory.origin is not None
        assert directory.origin.commit == "one"


# Damage


def remove_file(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(first_half(path.read_bytes()))


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def remove_folder(path: Path) -> None:
    remove_file(path)
    path.parent.rmdir()


IMMUTABLE = next(path for path in make_tree() if path.startswith("boot/o/"))


@pytest.mark.parametrize("path", [ENTRY, IMMUTABLE])
@pytest.mark.parametrize("damage", [remove_file, truncate, remove_folder])
def test_the_first_publication_of_a_process_repairs_missing_and_truncated_files(
    root: Path, damage: Callable[[Path], None], path: str
) -> None:
    publish(root, make_tree())
    damage(root / path)
    assert publish(root, make_tree()).written == (path,)
    assert verify_tree(root) == ()


@pytest.mark.parametrize("path", [ENTRY, IMMUTABLE])
@pytest.mark.parametrize("damage", [remove_file, truncate, flip_bit])
def test_files_of_named_servers_are_repaired_after_any_damage(
    root: Path, damage: Callable[[Path], None], path: str, directory: OutputDirectory
) -> None:
    publish_files(directory, make_tree(), commit="one", at=AT)
    damage(root / path)
    differing = verify_tree(root)
    assert differing == (path,)
    assert publish_files(directory, make_tree(), commit="one", at=AT, changed=differing).written == (path,)
    assert verify_tree(root) == ()


def test_the_index_is_repaired_for_an_unchanged_server(root: Path, directory: OutputDirectory) -> None:
    publish_files(directory, make_tree(), commit="one", at=AT)
    lost = next(path for path in (root / "ops/index").iterdir() if f'"{OWNER}"' in path.read_text())
    remove_file(lost)
    assert verify_tree(root) == (lost.relative_to(root).as_posix(),)
    publish_files(directory, make_tree(), commit="one", at=AT, changed=[ENTRY])
    assert verify_tree(root) == ()


def test_lost_files_are_found_without_reading_the_other_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(root, make_tree())
    remove_file(root / IMMUTABLE)
    truncate(root / ENTRY)
    read = record_calls(monkeypatch, "read")
    assert sorted(publish(root, make_tree()).written) == sorted([IMMUTABLE, ENTRY])
    assert {path for path in read if path.startswith("boot/")} <= {IMMUTABLE, ENTRY}


@pytest.mark.parametrize("damage", [remove_file, truncate, flip_bit])
@pytest.mark.parametrize("path", [STATE, "ops/index/{}"])
def test_states_and_the_index_are_repaired(root: Path, damage: Callable[[Path], None], path: str) -> None:
    publish(root, make_tree())
    path = path.format(next((root / "ops/index").iterdir()).name)
    damage(root / path)
    assert path in verify_tree(root)
    publish(root, {**make_tree(), ENTRY: File(b"another\n")})
    assert verify_tree(root) == ()


PARTS = ("ops/manifest.json", node_path(NODE), leaf_path(NODE, LEAF), "ops/manifest/shared.json")


@pytest.mark.parametrize("damage", [remove_file, truncate, flip_bit])
@pytest.mark.parametrize("path", PARTS)
def test_a_damaged_manifest_is_an_error_and_no_file_changes(
    root: Path, damage: Callable[[Path], None], path: str
) -> None:
    publish(root, make_tree())
    damage(root / path)
    before = read_published(root)
    named = re.escape(str(root / "ops/manifest")) + r"[/.]"
    with pytest.raises(PublishError, match=named + ".*publish again"):
        publish(root, make_tree(2))
    assert read_published(root) == before
    if path != PARTS[0]:
        with pytest.raises(PublishError, match=named):
            read_manifest(root)
        assert path in verify_tree(root)


def publish_as_0_1_0(root: Path, files: Files) -> None:
    shards: dict[str, dict[str, object]] = {}
    place(root, files)
    for path, file in files.items():
        listed = {"contentType": "text/plain", "sha256": file.sha256, "size": len(file.content)}
        shards.setdefault(sha256(path.encode()).hexdigest()[:2], {})[path] = listed
    (root / "ops/manifest").mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, shard in shards.items():
        data = json.dumps(shard).encode()
        (root / f"ops/manifest/{name}.json").write_bytes(data)
        digests[name] = sha256(data).hexdigest()
    head = {"commit": "one", "gitboot": "0.1.0", "ledger": "ours", "shards": digests, "version": 1}
    (root / "ops/manifest.json").write_text(json.dumps(head))


@pytest.mark.parametrize("stage", ["untouched", "cut short"])
def test_a_tree_of_0_1_0_is_adopted_with_all_its_files(root: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_tree(1, servers=5)
    publish_as_0_1_0(root, old)
    (root / "boot/mine").write_text("mine")
    with pytest.raises(ForeignTree):
        publish(root, make_tree(2), ledger="theirs")
    if stage == "cut short":
        with monkeypatch.context() as patch:
            patch.setattr(DurableDirectory, "remove", lambda disk, path: (_ for _ in ()).throw(PublishError("cut")))
            with pytest.raises(PublishError, match="cut"):
                publish(root, make_tree(2))
    with OutputDirectory.open(root, ledger="ours") as directory:
        assert directory.origin == TreeOrigin(commit="one", gitboot="0.1.0", ledger="ours")
    publish(root, make_tree(2))
    retired = {path: file for path, file in old.items() if path.startswith("boot/o/")}
    assert read_published(root) == {**contents(retired), **contents(make_tree(2)), "boot/mine": b"mine"}
    assert verify_tree(root) == ()
    listed = {*(root / "ops/manifest").glob("*.json")} - {root / "ops/manifest/shared.json"}
    assert {path.stem for path in listed} == set(json.loads((root / "ops/manifest.json").read_text())["nodes"])


def test_a_manifest_of_a_later_version_is_rejected(root: Path) -> None:
    publish(root, make_tree())
    head = json.loads((root / "ops/manifest.json").read_text())
    (root / "ops/manifest.json").write_text(json.dumps({**head, "version": 3}))
    with pytest.raises(PublishError, match=r"manifest\.json"):
        publish(root, make_tree())


def test_a_folder_without_a_publication_has_no_manifest(root: Path) -> None:
    assert read_manifest(root) is None
    root.mkdir()
    assert read_manifest(root) is None


# Trying first


@pytest.mark.parametrize("before", [None, {}, make_tree(1), make_tree(1, servers=5)])
def test_a_dry_run_returns_the_result_of_a_publication_and_writes_nothing(root: Path, before: Files | None) -> None:
    if before is not None:
        publish(root, before, at=AT - GRACE)
        publish(root, make_tree(2), at=AT - GRACE)
    stood = read_stats(root.parent)
    servers, shared = split(make_tree(3))
    expected = publish_again(root, servers, shared)
    assert read_stats(root.parent) == stood
    with OutputDirectory.open(root, ledger="ours") as directory:
        done = directory.publish(servers, shared, complete=True, commit="c0ffee", at=AT)
    assert done == (
        expected if before is not None else structs.replace(expected, written=(), first_files=len(expected.written))
    )


# Write errors


PUBLISH_AS_NOBODY = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from gitboot.errors import PublishError
from gitboot.publish.publisher import OutputDirectory
from gitboot.render.paths import File
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    with OutputDirectory.open(Path(sys.argv[1]), ledger="ours") as directory:
        shared = {"boot/boot.ipxe": File(b"")}
        directory.publish({}, shared, complete=True, commit="c0ffee", at=datetime.now(UTC))
except PublishError as error:
    print(error)
"""


def publish_as_nobody(root: Path) -> str:
    """Publish as a user who does not own the tree. Return the error message."""
    command = [sys.executable, "-c", PUBLISH_AS_NOBODY, str(root)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def test_a_path_that_is_not_writable_is_an_error_with_a_hint() -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "out"
        Path(folder).chmod(0o755)
        publish(root, make_tree())
        (root / LOCK).chmod(0o444)
        hint = "Permission denied (give write access to the user that runs gitboot)"
        assert publish_as_nobody(root) == f"{root / LOCK}: {hint}\n"
        assert verify_tree(root) == ()


@pytest.mark.parametrize("unwritable", ["boot", ""])
def test_a_first_publication_names_the_folder_that_is_not_writable(unwritable: str) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "out"
        Path(folder).chmod(0o755)
        for path in ("", "ops", unwritable):
            (root / path).mkdir(exist_ok=True)
            (root / path).chmod(0o555 if path == unwritable else 0o777)
        hint = "Permission denied (give write access to the user that runs gitboot)"
        assert publish_as_nobody(root) == f"{root / unwritable}: {hint}\n"


def test_a_first_publication_does_not_rename_an_error_that_is_not_about_its_files(root: Path) -> None:
    def report_progress(done: int, total: int) -> None:
        if total > 1:
            raise PermissionError(errno.EACCES, "Permission denied", "elsewhere")

    with (
        OutputDirectory.open(root, ledger="ours", report_progress=report_progress) as directory,
        pytest.raises(PermissionError, match="elsewhere"),
    ):
        publish_files(directory, make_tree(), commit="c0ffee", at=AT)
    assert not (root / FRESH).exists()
    assert publish(root, make_tree()).first_files
    assert verify_tree(root) == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks_and_terminals.small_disk(tmp_path, name="disk") as folder:
        yield folder


def test_after_a_full_disk_the_next_publication_succeeds_when_there_is_space(small_disk: Path) -> None:
    root = small_disk / "out"
    large = {f"boot/{number}": File(b"%06d" % number + b"x" * 100_000) for number in range(20)}
    with OutputDirectory.open(root, ledger="ours") as directory:
        publish_files(directory, make_tree(1), commit="one", at=AT)
        with pytest.raises(PublishError, match=r"boot/\d+: No space left on device \(free some space\)"):
            publish_files(directory, {**make_tree(2), **large}, commit="two", at=AT)
        assert read_published(root) == contents(make_tree(1))
        publish_files(directory, make_tree(2), commit="two", at=AT)
    assert read_published(root).items() >= contents(make_tree(2)).items()
    assert verify_tree(root) == ()


def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    root = small_disk / "out"
    publish(root, make_tree(1))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert verify_tree(root) == ()
    with pytest.raises(PublishError, match=r"Read-only file system \(mount it writable\)"):
        publish(root, make_tree(2))


def test_a_name_that_is_too_long_for_the_system_is_named(root: Path) -> None:
    longest = f"ops/plans/{'x' * 255}"
    publish(root, {longest: File(b"as long as it gets")})
    assert set(read_published(root)) == {longest}
    with pytest.raises(PublishError, match=r"x{256}: File name too long"):
        publish(root, {longest + "x": File(b"longer")})


def test_many_files_are_synced_together_and_a_few_one_by_one(root: Path, syncs: list[str]) -> None:
    publish(root, make_tree(1, servers=100))
    syncs.clear()
    publish(root, make_tree(2, servers=100))
    assert 0 < syncs.count("syncfs") < len(syncs) < 20
    syncs.clear()
    publish(root, {**make_tree(2, servers=100), ENTRY: File(b"another\n")})
    assert 0 < syncs.count("fsync") == len(syncs) < 20


# Any sequence


PATHS = ["boot/a", "boot/x/a", "boot/x/y/a", "boot/o/1/a", "boot/o/1/b", "boot/o/2/a", "ops/plans/a.json"]
TREES = st.dictionaries(st.sampled_from(PATHS), st.sampled_from([File(b"1"), File(b"2"), File(b"22")]))


@settings(max_examples=40)
@given(st.lists(st.tuples(TREES, st.integers(0, 9), st.sampled_from(["told", "compared", "restarted"])), max_size=6))
def test_the_tree_depends_on_the_last_publication_alone(passes: list[tuple[Files, int, str]]) -> None:
    with TemporaryDirectory() as folder:
        at, before = AT, dict[str, File]()
        directory = OutputDirectory.open(root := Path(folder), ledger="ours")
        for files, days, how in passes:
            at += days * DAY
            if how == "restarted":
                directory.close()
                directory = OutputDirectory.open(root, ledger="ours")
            changed = [path for path in PATHS if files.get(path) != before.get(path)] if how == "told" else None
            stood = read_published(root)
            published = publish_files(directory, files, commit="c", at=at, changed=changed)
            stand = read_published(root)
            assert contents(files).items() <= stand.items()
            assert all(path.startswith("boot/o/") for path in stand.keys() - files.keys())
            written = {path for path in files if stood.get(path) != stand[path]}
            assert (published.first_files, set(published.written)) in ((0, written), (len(written), set()))
            assert {*published.withdrawn, *published.expired} == stood.keys() - stand.keys()
            assert verify_tree(root) == ()
            before = dict(files)
        directory.close()


# Another tree in its place


def put(directory: OutputDirectory, version: int, at: datetime = AT) -> None:
    publish_files(directory, make_tree(version), commit=str(version), at=at)


def replace_older(root: Path, older: Path, how: str) -> None:
    match how:
        case "in place":
            shutil.rmtree(root / "ops")
            shutil.copytree(older / "ops", root / "ops")
        case "another folder":
            root.rename(root.with_name("aside"))
            shutil.copytree(older, root)
        case "gone":
            shutil.rmtree(root)


@pytest.mark.parametrize("how", ["in place", "another folder", "gone"])
def test_a_replaced_tree_is_published_to_completely(tmp_path: Path, how: str) -> None:
    root, older = tmp_path / "output", tmp_path / "older"
    with OutputDirectory.open(root, ledger="test") as directory:
        put(directory, 1)
        shutil.copytree(root, older)
        put(directory, 2, at=AT + DAY)
        assert directory.is_unchanged
        replace_older(root, older, how)
        assert not directory.is_unchanged
        servers, shared = split(make_tree(2))
        with pytest.raises(PublishError, match="the tree was replaced"):
            directory.publish(servers, shared, complete=False, commit="2", at=AT + DAY)
        put(directory, 2, at=AT + DAY)
        assert directory.is_unchanged
        assert verify_tree(root) == ()
        assert (root / ENTRY).read_bytes() == make_tree(2)[ENTRY].content
        with pytest.raises(LockedByAnother):
            OutputDirectory.open(root, ledger="test")


@pytest.mark.parametrize("how", ["in place", "another folder", "gone"])
@pytest.mark.parametrize("has_published", [True, False])
def test_after_the_tree_of_another_instance_is_moved_away_publishing_works(
    tmp_path: Path, how: str, has_published: bool
) -> None:
    root, theirs, mine = tmp_path / "output", tmp_path / "theirs", tmp_path / "mine"
    for folder, ledger, version in ((theirs, "theirs", 7), (mine, "test", 1)):
        with OutputDirectory.open(folder, ledger=ledger) as other:
            put(other, version)
    if not has_published:
        shutil.copytree(theirs, root)
    with OutputDirectory.open(root, ledger="test") as directory:
        if has_published:
            put(directory, 1)
            shutil.rmtree(root)
            shutil.copytree(theirs, root)
        for _ in range(2):
            with pytest.raises(ForeignTree):
                put(directory, 2)
        assert (root / ENTRY).read_bytes() == make_tree(7)[ENTRY].content
        replace_older(root, mine, how)
        put(directory, 2)
        assert (verify_tree(root), (root / ENTRY).read_bytes()) == ((), make_tree(2)[ENTRY].content)


def test_after_a_failed_first_publication_the_next_one_uses_the_directory_that_exists_by_then(tmp_path: Path) -> None:
    """The disk was full, and a larger one was mounted at its place."""
    root = tmp_path / "output"
    with OutputDirectory.open(root, ledger="test") as directory:
        (root / "boot").touch()
        with pytest.raises(PublishError):
            put(directory, 1)
        root.rename(tmp_path / "aside")
        root.mkdir()
        put(directory, 1)
        assert (verify_tree(root), (root / ENTRY).read_bytes()) == ((), make_tree(1)[ENTRY].content)


@pytest.mark.parametrize("is_file_new", [False, True])
def test_a_file_and_a_folder_at_the_same_path_are_named_when_a_first_publication_continues(
    tmp_path: Path, is_file_new: bool
) -> None:
    """gitboot was killed before it moved the complete tree, and then somebody created the other one."""
    root = tmp_path / "output"
    file, folder = (root / READY, root) if is_file_new else (root, root / READY)
    (file / "boot").mkdir(parents=True)
    (file / "boot/x").touch()
    (folder / "boot/x/y").mkdir(parents=True)
    reason = "Is a directory" if is_file_new else "Not a directory"
    with pytest.raises(PublishError, match=f"output/boot/x: {reason}"):
        OutputDirectory.open(root, ledger="test")


def test_a_tree_to_which_another_process_publishes_is_not_changed(tmp_path: Path) -> None:
    root, moved = tmp_path / "output", tmp_path / "moved"
    with OutputDirectory.open(root, ledger="test") as directory:
        put(directory, 1)
        root.rename(moved)
        with OutputDirectory.open(root, ledger="test") as other:
            put(other, 2)
            for _ in range(2):
                with pytest.raises(PublishError, match="is publishing to this directory"):
                    put(directory, 1)
        put(directory, 1)
        assert (root / ENTRY).read_bytes() == make_tree(1)[ENTRY].content


# One file, several names


ALIKE = ("boot/v1/boot/m/boot.ipxe", "boot/ipxe/u", "boot/ipxe/v")


def make_server_files(text: bytes, *paths: str) -> dict[str, Files]:
    return {"s": server_files("s", dict.fromkeys(paths, File(text)))}


def list_temporary(root: Path) -> list[Path]:
    return [*root.rglob(".gitboot-*.tmp")]


def inodes(root: Path) -> list[int]:
    return [(root / path).stat().st_ino for path in ALIKE]


def test_equal_files_of_one_server_are_hard_links(root: Path, directory: OutputDirectory) -> None:
    given: Any = {"shared": {"boot/shared": File(b"1")}, "complete": True, "commit": "1", "at": AT}
    others = {"t": server_files("t", {"boot/ipxe/t": File(b"1")})}
    directory.publish({**make_server_files(b"1", *ALIKE), **others}, **given)
    assert len(set(inodes(root))) == 1
    assert not {(root / path).stat().st_ino for path in ("boot/ipxe/t", "boot/shared")} & set(inodes(root))
    before = inodes(root)
    directory.publish(make_server_files(b"2", *ALIKE), None, complete=False, commit="2", at=AT)
    assert len(set(inodes(root))) == 1
    assert inodes(root) != before
    assert {(root / path).read_bytes() for path in ALIKE} == {b"2"}
    assert len({(root / path).stat().st_mtime for path in ALIKE}) == 1
    assert verify_tree(root) == ()
    assert list_temporary(root) == []


def test_a_name_that_is_added_later_is_a_separate_file_with_its_own_date(
    root: Path, directory: OutputDirectory
) -> None:
    directory.publish(make_server_files(b"1", *ALIKE[:2]), {}, complete=True, commit="1", at=AT)
    later = AT + timedelta(hours=1)
    directory.publish(make_server_files(b"1", *ALIKE), None, complete=False, commit="2", at=later)
    first, second, third = inodes(root)
    assert first == second != third
    dates = [(root / path).stat().st_mtime for path in ALIKE]
    assert dates == [AT.timestamp(), AT.timestamp(), later.timestamp()]


def test_a_file_with_another_date_is_no_hard_link_to_a_file_with_a_predicted_date(
    root: Path, directory: OutputDirectory
) -> None:
    """An access log tells versions apart by the predicted date of each path."""
    file = File(b"2")
    directory.publish(make_server_files(b"1", *ALIKE[:1]), {}, complete=True, commit="1", at=AT)
    expected = [directory.predict_mtime(path, file, AT) for path in ALIKE]
    directory.publish(make_server_files(b"2", *ALIKE), None, complete=False, commit="2", at=AT)
    assert [int((root / path).stat().st_mtime) for path in ALIKE] == expected
    first, second, third = inodes(root)
    assert first != second == third


@pytest.mark.parametrize("code", [errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP])
def test_without_hard_links_equal_files_are_two_files(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    refused: list[object] = []

    def link(*names: object, **_: object) -> None:
        refused.append(names)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    with OutputDirectory.open(root, ledger="ours") as directory:
        directory.publish(make_server_files(b"1", *ALIKE), {}, complete=True, commit="1", at=AT)
    assert len(refused) == 2
    assert len(set(inodes(root))) == 3
    assert {(root / path).read_bytes() for path in ALIKE} == {b"1"}
    assert verify_tree(root) == ()


def test_a_partial_file_with_two_names_does_not_change_either(root: Path) -> None:
    """A publisher that was killed between two renames leaves a temporary name of an existing file."""
    with OutputDirectory.open(root, ledger="ours") as directory:
        directory.publish(make_server_files(b"1", *ALIKE), {}, complete=True, commit="1", at=AT)
        left = root / staging_path(ALIKE[1])
        os.link(root / ALIKE[0], left)
        directory.publish(make_server_files(b"2", ALIKE[1]), None, complete=False, commit="2", at=AT)
        assert (root / ALIKE[1]).read_bytes() == b"2"
    with OutputDirectory.open(root, ledger="ours") as directory:
        directory.publish(make_server_files(b"1", *ALIKE), {}, complete=True, commit="3", at=AT)
    assert {(root / path).read_bytes() for path in ALIKE} == {b"1"}
    assert list_temporary(root) == []


# Room


@pytest.mark.parametrize(
    ("limit", "lacks"),
    [
        ("nr_inodes=60", r"disk: publishing needs \d+ inodes, but the file system has only \d+ free \(.*more inodes"),
        (
            "size=64k",
            r"disk: publishing needs 0\.\d MiB, but the file system has only 0\.\d MiB free \(free "
            r"some space\)",
        ),
    ],
    ids=["inodes", "bytes"],
)
def test_a_first_publication_does_not_start_without_enough_space(small_disk: Path, limit: str, lacks: str) -> None:
    files = {f"boot/ipxe/{number}": File(b"%03d" % number + b"x" * 2000) for number in range(100)}
    subprocess.run(["mount", "-o", f"remount,{limit}", str(small_disk)], check=True)
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        with pytest.raises(PublishError, match=lacks):
            publish_files(directory, files, commit="one", at=AT)
        assert not (small_disk / "boot").exists()
        subprocess.run(["mount", "-o", "remount,size=8m,nr_inodes=5000", str(small_disk)], check=True)
        publish_files(directory, files, commit="one", at=AT)
    assert verify_tree(small_disk) == ()


def test_a_disk_whose_free_space_is_unknown_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with OutputDirectory.open(tmp_path / "output", ledger="test") as directory:
        monkeypatch.setattr(os, "statvfs", fail)
        with pytest.raises(PublishError, match="output: Input/output error"):
            put(directory, 1)


def test_hard_links_need_no_space(small_disk: Path) -> None:
    names = [f"boot/ipxe/{number}" for number in range(100)]
    subprocess.run(["mount", "-o", "remount,size=128k", str(small_disk)], check=True)
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        directory.publish(make_server_files(b"1" * 4000, *names), {}, complete=True, commit="1", at=AT)
    assert len({(small_disk / name).stat().st_ino for name in names}) == 1


def test_an_existing_tree_is_not_checked_for_space(small_disk: Path) -> None:
    """Windows end on a disk that is nearly full."""
    large = {f"boot/ipxe/{number}": File(b"%d" % number + b"x" * 50_000) for number in range(10)}
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        publish_files(directory, large, commit="1", at=AT)
        subprocess.run(["mount", "-o", "remount,size=900k", str(small_disk)], check=True)
        publish_files(directory, {**large, "boot/ipxe/0": File(b"2")}, commit="2", at=AT)
    assert (small_disk / "boot/ipxe/0").read_bytes() == b"2"


def make_thousand(content_of: Callable[[int], File]) -> dict[str, Files]:
    """A thousand servers with two small files each, and content."""
    return {
        f"s{number:03}": server_files(
            f"s{number:03}",
            {f"boot/o/{content.sha256}/user-data": content}
            | {f"boot/{kind}/{number}": File(f"{kind} {number}".encode()) for kind in ("ipxe", "grub")},
        )
        for number in range(1000)
        for content in [content_of(number)]
    }


def test_content_of_a_group_of_servers_needs_space_once(small_disk: Path) -> None:
    """A thousand servers with 300 contents of 40 kB need 12 MB; one content for each server would need 40 MB."""
    subprocess.run(["mount", "-o", "remount,size=30m,nr_inodes=6000", str(small_disk)], check=True)
    contents = [File(b"%03d" % number * 13_333) for number in range(300)]
    servers = make_thousand(lambda number: contents[number % 300])
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        assert directory.publish(servers, {}, complete=True, commit="1", at=AT).new == 3300


def test_an_interrupted_first_publication_only_needs_space_for_the_rest(small_disk: Path) -> None:
    large = {f"boot/ipxe/{number}": File(b"%d" % number + b"x" * 50_000) for number in range(10)}
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        publish_files(directory, large, commit="1", at=AT)
    shutil.rmtree(small_disk / "ops")  # the manifest comes last
    subprocess.run(["mount", "-o", "remount,size=700k", str(small_disk)], check=True)
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        publish_files(directory, large, commit="1", at=AT)
    assert verify_tree(small_disk) == ()


@pytest.mark.parametrize(("inodes", "has_room"), [(3000, False), (5000, True)])
def test_the_space_for_many_servers_is_estimated_from_a_sample(small_disk: Path, inodes: int, has_room: bool) -> None:
    """A thousand, with two files and a state each and one that all have, so some 3,100."""
    subprocess.run(["mount", "-o", f"remount,size=64m,nr_inodes={inodes - 500}", str(small_disk)], check=True)
    common = File(b"x" * 100)
    servers = make_thousand(lambda _: common)
    with OutputDirectory.open(small_disk, ledger="ours") as directory:
        if has_room:
            assert directory.publish(servers, {}, complete=True, commit="1", at=AT).new == 3001
        else:
            with pytest.raises(PublishError, match=r"publishing needs about 3,0\d\d inodes, but .* has only 2,\d\d\d "):
                directory.publish(servers, {}, complete=True, commit="1", at=AT)
            assert not (small_disk / "boot").exists()
