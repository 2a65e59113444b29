"""The signed list, read by a client that others wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import UnsignedMetadataError
from tuf.api.metadata import Metadata, Root

from gitboot.errors import PublishError, UsageError
from gitboot.jsonio import encode_canonical
from gitboot.publish import signed_list
from gitboot.publish.durable_files import staging_path
from gitboot.publish.list_root import replace_list_keys
from gitboot.publish.manifest import TreeOrigin
from gitboot.publish.mirror_comparison import FolderMirror
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.signed_list import (
    VALID,
    KeyNotInRoot,
    KeyUnreadable,
    ListKeys,
    TreeDetails,
    amend_list,
    find_bin,
    read_list_keys,
)
from gitboot.publish.signed_list_check import compare_with_list
from gitboot.publish.signed_list_reader import ListProblem, parse_keys, read_list
from gitboot.render.endpoint_files import ListedFile, listing_path, render_listing
from gitboot.render.paths import File, Files
from tests.helpers.cases import get_interval
from tests.helpers.git_repositories import program
from tests.helpers.signed_lists import SIGNED, list_names, listed_server, make_client, make_keys, publish, target
from tests.publish.test_publisher_kill import hook_calls, kill_at

NOW = datetime.now(UTC).replace(microsecond=0)  # python-tuf's client goes by the clock of the machine
HOUR = timedelta(hours=1)
SHARED: Files = {"boot/boot.ipxe": File(b"#!ipxe\n"), "ops/serve/nginx.conf": File(b"types {}\n")}


def make_server(name: str, version: int = 1) -> dict[str, File]:
    return listed_server(name, {f"boot/v1/boot/{name}/boot.ipxe": File(f"#!ipxe\n# {version} of {name}\n".encode())})


def run_openssl(*arguments: str) -> bytes:
    return subprocess.run([program("openssl", "openssl"), *arguments], check=True, capture_output=True).stdout


def get_digest(file: File) -> str:
    return sha256(file.content).hexdigest()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return make_keys(tmp_path / "keys", NOW)


@pytest.fixture
def signing(keys: Path) -> ListKeys:
    return read_list_keys(keys)


Read = Callable[[str], dict[str, Any] | None]


@pytest.fixture
def read(tmp_path: Path, keys: Path) -> Read:
    """Read a listing as a client does that trusts the first root and remembers the list that it has read."""

    def read(name: str) -> dict[str, Any] | None:
        root = (keys / "1.root.json").read_bytes()
        return target(make_client(tmp_path / "out" / SIGNED, root, tmp_path / "cache"), name)

    return read


@contextmanager
def open_published(root: Path) -> Iterator[OutputDirectory]:
    with OutputDirectory.open(root, ledger="ours") as opened:
        publish(opened, {name: make_server(name) for name in ("web01", "web02", "web03")}, SHARED, NOW)
        yield opened


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[OutputDirectory]:
    with open_published(tmp_path / "out") as opened:
        yield opened


def test_a_client_of_tuf_verifies_the_listing_of_each_server(
    tmp_path: Path, read: Read, keys: Path, directory: OutputDirectory
) -> None:
    assert directory.update_list(read_list_keys(keys), NOW) == NOW + VALID
    found = read("servers/web02.json")
    assert found is not None and found["server"] == "web02"
    ((path, version),) = found["files"].items()
    content = (tmp_path / "out/boot" / path).read_bytes()
    assert version == [[None, sha256(content).hexdigest(), len(content)]]
    shared = read("shared.json")
    assert shared is not None and shared["files"] == {"boot.ipxe": [[None, get_digest(SHARED["boot/boot.ipxe"]), 7]]}


def test_a_change_of_one_server_rewrites_its_bin_the_snapshot_and_the_timestamp(
    tmp_path: Path, read: Read, signing: ListKeys, directory: OutputDirectory
) -> None:
    directory.update_list(signing, NOW)
    before = list_names(tmp_path / "out")
    publish(directory, {"web02": make_server("web02", 2)}, None, NOW + HOUR)
    directory.update_list(signing, NOW + HOUR)
    version = int((NOW + HOUR).timestamp())
    new = {f"{version}.{find_bin('servers/web02.json')}.json", f"{version}.snapshot.json"}
    assert list_names(tmp_path / "out") - before == new
    for name, expected in (("web01", 1), ("web02", 2)):
        found = read(f"servers/{name}.json")
        content = make_server(name, expected)[f"boot/v1/boot/{name}/boot.ipxe"]
        assert found is not None and list(found["files"].values()) == [
            [[None, get_digest(content), len(content.content)]]
        ]


def test_a_change_of_one_server_of_10_000_rewrites_at_most_200_kb_of_the_list(keys: Path, signing: ListKeys) -> None:
    """A listing has at most 8 names with 3 versions each, and the texts that end a window."""
    tree_details = TreeDetails(TreeOrigin(commit="c" * 40, gitboot="0.2.0", ledger="ours"), "m" * 64)
    listed = {f"servers/lon1-r{number:06}.json": ListedFile("0" * 64, 2500) for number in range(10_000)}
    amended = partial(amend_list, tree_details=tree_details, keys=signing, now=NOW, min_version=1)
    state, whole = amended(None, listed, read_bin=lambda *_: {})
    (changed, *_) = listed
    of_its_bin = {name: each for name, each in listed.items() if find_bin(name) == find_bin(changed)}
    after = {changed: ListedFile("1" * 64, 2600)}
    _, files = amended(state, after, read_bin=lambda *_: of_its_bin)
    assert sum(map(len, whole.values())) > 1_000_000
    assert sum(map(len, files.values())) + 10_000 < 200_000  # and the listing
    _, renewed = amended(state, {}, read_bin=lambda *_: {})
    assert list(renewed) == [f"{SIGNED}/timestamp.json"]


def test_a_current_list_is_not_written_again_and_a_due_one_is_renewed(
    tmp_path: Path, keys: Path, signing: ListKeys, directory: OutputDirectory
) -> None:
    directory.update_list(signing, NOW)
    assert directory.update_list(signing, NOW + VALID / 2) == NOW + VALID
    manifest, bins = (tmp_path / "out/ops/manifest.json").read_bytes(), list_names(tmp_path / "out")
    due = NOW + VALID / 2 + timedelta(seconds=1)
    assert directory.update_list(signing, due) == due + VALID
    assert (tmp_path / "out/ops/manifest.json").read_bytes() == manifest
    assert list_names(tmp_path / "out") == bins  # the timestamp alone was replaced
    make_client(tmp_path / "out" / SIGNED, (keys / "1.root.json").read_bytes(), tmp_path / "cache").refresh()


def test_without_a_key_the_list_has_the_same_files_without_signatures(
    tmp_path: Path, read: Read, keys: Path, directory: OutputDirectory
) -> None:
    directory.update_list(None, NOW)
    found = {name: json.loads((tmp_path / "out" / SIGNED / name).read_bytes()) for name in list_names(tmp_path / "out")}
    assert all(each.get("signatures", []) == [] for each in found.values())
    kinds = {name.split(".")[-2].partition("-")[0] for name in found}
    assert kinds == {"timestamp", "snapshot", "shared", "servers"}
    directory.update_list(read_list_keys(keys), NOW + HOUR)
    assert read("servers/web03.json") is not None
    directory.update_list(None, NOW + 2 * HOUR)
    with pytest.raises(UnsignedMetadataError):
        make_client(tmp_path / "out" / SIGNED, (keys / "1.root.json").read_bytes(), tmp_path / "other").refresh()


def test_a_publisher_does_not_reuse_a_bin_that_somebody_changed(
    tmp_path: Path, signing: ListKeys, directory: OutputDirectory
) -> None:
    directory.update_list(signing, NOW)
    folder, version = tmp_path / "out" / SIGNED, int(NOW.timestamp())
    path = folder / f"{version}.{find_bin('servers/web02.json')}.json"
    found = json.loads(path.read_bytes())
    found["signed"]["targets"]["servers/stranger.json"] = {"hashes": {"sha256": "0" * 64}, "length": 1}
    path.write_text(json.dumps(found))
    publish(directory, {"web02": make_server("web02", 2)}, None, NOW + HOUR)
    directory.update_list(signing, NOW + HOUR)
    after = [json.loads(each.read_bytes()) for each in folder.glob(f"{int((NOW + HOUR).timestamp())}.servers-*.json")]
    assert len(after) == 256
    listed = {name for each in after for name in each["signed"]["targets"]}
    assert listed == {"servers/web01.json", "servers/web02.json", "servers/web03.json", "shared.json"}


def _change_json(data: bytes, change: Callable[[Any], object]) -> bytes:
    document = json.loads(data)
    change(document["signed"])
    return json.dumps(document).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "no JSON": lambda _: b"{",
    "a list": lambda _: b"[]",
    "nested without end": lambda _: b"[" * 100_000,
    "a list that is signed": lambda _: b'{"signatures": [], "signed": []}',
    "a version that is a text": lambda data: _change_json(data, lambda signed: signed.update(version="1")),
    "a version that is far away": lambda data: _change_json(data, lambda signed: signed.update(version=10**30)),
    "a time without a zone": lambda data: _change_json(
        data, lambda signed: signed.update(expires="2126-01-01T00:00:00")
    ),
    "no time": lambda data: _change_json(data, lambda signed: signed.update(expires=None)),
    "files as a list": lambda data: _change_json(data, lambda signed: signed.update(meta=[], targets=[])),
    "files without a version": lambda data: _change_json(
        data, lambda signed: signed.update(meta={key: {} for key in signed.get("meta", {})}, targets={"x": {}})
    ),
    "a manifest that is a list": lambda data: _change_json(
        data, lambda signed: signed.update(gitboot={"manifest": []})
    ),
}


@pytest.mark.parametrize("kind", ["timestamp", "snapshot", "bin"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_damaged_list_is_made_again_and_no_version_goes_back(
    tmp_path: Path, read: Read, keys: Path, damage: str, kind: str, is_signed: bool
) -> None:
    """A process that begins finds it. A client that has read the list before accepts the new one."""
    signing, folder, version = read_list_keys(keys) if is_signed else None, tmp_path / "out" / SIGNED, NOW.timestamp()
    with open_published(tmp_path / "out") as first:
        first.update_list(signing, NOW)
    if is_signed:
        make_client(folder, (keys / "1.root.json").read_bytes(), tmp_path / "cache").refresh()
    file = {"bin": find_bin("servers/web02.json")}.get(kind, kind)
    path = folder / ("timestamp.json" if kind == "timestamp" else f"{version:.0f}.{file}.json")
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with open_published(tmp_path / "out") as second:
        publish(second, {"web02": make_server("web02", 2)}, None, NOW + HOUR)
        second.update_list(signing, NOW)
    if is_signed:
        assert all(read(f"servers/{name}.json") for name in ("web01", "web02", "web03"))
    after = json.loads((folder / "timestamp.json").read_bytes())["signed"]
    assert after["version"] > version and after["meta"]["snapshot.json"]["version"] > version


@pytest.mark.parametrize("lost", ["the list", "the timestamp", "nothing"])
def test_a_process_that_ended_before_it_wrote_the_list_is_completed_by_the_next(
    tmp_path: Path, read: Read, signing: ListKeys, lost: str
) -> None:
    folder = tmp_path / "out" / SIGNED
    with open_published(tmp_path / "out") as first:
        first.update_list(signing, NOW)
        publish(first, {"web02": make_server("web02", 2)}, None, NOW + HOUR)  # and then it ends
    if lost == "the list":
        for each in list_names(tmp_path / "out"):
            (folder / each).unlink()
    elif lost == "the timestamp":
        (folder / "timestamp.json").unlink()
    with OutputDirectory.open(tmp_path / "out", ledger="ours") as opened:
        publish(
            opened,
            {"web01": make_server("web01"), "web02": make_server("web02", 2), "web03": make_server("web03")},
            SHARED,
            NOW,
        )
        opened.update_list(signing, NOW + HOUR)
    found = read("servers/web02.json")
    assert found is not None
    content = make_server("web02", 2)["boot/v1/boot/web02/boot.ipxe"]
    assert list(found["files"].values()) == [[[None, get_digest(content), len(content.content)]]]


def test_a_new_process_continues_the_list_of_the_previous_one(tmp_path: Path, signing: ListKeys) -> None:
    with open_published(tmp_path / "out") as first:
        first.update_list(signing, NOW)
    before = list_names(tmp_path / "out")
    with open_published(tmp_path / "out") as second:
        assert second.update_list(signing, NOW + HOUR) == NOW + VALID
    assert list_names(tmp_path / "out") == before


def test_superseded_metadata_is_deleted_after_ten_minutes(
    tmp_path: Path, signing: ListKeys, directory: OutputDirectory
) -> None:
    old = f"{int(NOW.timestamp())}.snapshot.json"
    directory.update_list(signing, NOW)
    for minute, stands in ((1, True), (5, True), (12, False)):
        publish(directory, {"web02": make_server("web02", 10 + minute)}, None, NOW + timedelta(minutes=minute))
        directory.update_list(signing, NOW + timedelta(minutes=minute))
        assert (old in list_names(tmp_path / "out")) is stands


def test_a_clock_that_goes_back_makes_no_version_twice(
    tmp_path: Path, keys: Path, signing: ListKeys, directory: OutputDirectory
) -> None:
    directory.update_list(signing, NOW)
    root = (keys / "1.root.json").read_bytes()
    make_client(tmp_path / "out" / SIGNED, root, tmp_path / "cache").refresh()
    publish(directory, {"web02": make_server("web02", 2)}, None, NOW - HOUR)
    directory.update_list(signing, NOW - HOUR)
    reader = make_client(tmp_path / "out" / SIGNED, root, tmp_path / "cache")
    assert target(reader, "servers/web02.json") is not None  # it would refuse an earlier version than it has seen


def test_a_fast_clock_leaves_no_list_that_is_valid_too_long_and_no_bin_that_expires_unnoticed(
    tmp_path: Path, keys: Path, signing: ListKeys, directory: OutputDirectory
) -> None:
    year = timedelta(days=365)
    directory.update_list(signing, NOW + year)
    assert directory.update_list(signing, NOW) == NOW + VALID
    publish(directory, {"web02": make_server("web02", 2)}, None, NOW)
    directory.update_list(signing, NOW)
    root = (keys / "1.root.json").read_bytes()
    make_client(tmp_path / "out" / SIGNED, root, tmp_path / "cache").refresh()
    for days in range(0, 3 * 365, 30):  # until the root expires
        now = NOW + timedelta(days=days)
        assert directory.update_list(signing, now) == now + VALID
        found = [json.loads((tmp_path / "out" / SIGNED / name).read_bytes()) for name in list_used(tmp_path / "out")]
        expiring = [datetime.fromisoformat(each["signed"]["expires"]) for each in found]
        assert min(expiring) > now + timedelta(hours=12)


def list_used(root: Path) -> list[str]:
    named = json.loads((root / SIGNED / "timestamp.json").read_bytes())["signed"]["meta"]["snapshot.json"]
    snapshot = f"{named['version']}.snapshot.json"
    meta = json.loads((root / SIGNED / snapshot).read_bytes())["signed"]["meta"]
    return ["timestamp.json", snapshot, *(f"{each['version']}.{name}" for name, each in meta.items())]


def test_a_bin_that_expires_soon_is_signed_again(tmp_path: Path, signing: ListKeys, directory: OutputDirectory) -> None:
    directory.update_list(signing, NOW - timedelta(days=341))
    directory.update_list(signing, NOW)
    snapshot = json.loads((tmp_path / "out" / SIGNED / f"{int(NOW.timestamp())}.snapshot.json").read_bytes())
    versions = {each["version"] for name, each in snapshot["signed"]["meta"].items() if name != "targets.json"}
    assert versions == {int(NOW.timestamp())}


def test_if_the_disk_rejects_the_list_the_earlier_one_stays(
    tmp_path: Path, read: Read, signing: ListKeys, directory: OutputDirectory
) -> None:
    directory.update_list(signing, NOW)
    folder = tmp_path / "out" / SIGNED
    before = {each: (folder / each).read_bytes() for each in list_names(tmp_path / "out")}
    publish(directory, {"web02": make_server("web02", 2)}, None, NOW + HOUR)
    blocked = folder / staging_path("timestamp.json")
    blocked.mkdir()
    with pytest.raises(PublishError):
        directory.update_list(signing, NOW + HOUR)
    assert {each: (folder / each).read_bytes() for each in before} == before
    blocked.rmdir()
    directory.update_list(signing, NOW + HOUR)
    assert read("servers/web02.json") is not None


STEPS_AT_A_TIME = {
    "a change": get_interval(2),
    "a new publication key": get_interval(40),
    "the first list": get_interval(40),
}


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path("/dev/shm")  # a disk would only be slower
    with TemporaryDirectory(dir=folder if folder.is_dir() else None) as found:
        yield Path(found)


@pytest.mark.parametrize("case", STEPS_AT_A_TIME)
def test_killed_at_any_step_the_list_is_incomplete_and_the_next_process_completes_it(memory: Path, case: str) -> None:
    keys, root, newer = (
        make_keys(memory / "keys", NOW),
        memory / "out",
        {**SHARED, "boot/boot.ipxe": File(b"#!ipxe\n#\n")},
    )
    with open_published(memory / "before") as first:
        if case != "the first list":
            first.update_list(read_list_keys(keys), NOW - HOUR)
    if case == "a new publication key":
        replace_list_keys(keys, None, None, NOW)
    signing, public = read_list_keys(keys), parse_keys((keys / "root.pub").read_text())
    expected = {
        "a change": {"Incomplete"},
        "a new publication key": {"Incomplete", "BadSignature"},
        "the first list": {"Missing"},
    }

    def faults() -> set[str]:
        mirror = FolderMirror(root / "boot")
        report = compare_with_list(mirror, public, NOW, parallel=1, on_start=lambda _: None, on_progress=lambda _: None)
        is_listed = get_digest(newer["boot/boot.ipxe"]) in (mirror.get("signed/shared.json", 10**6) or b"").decode()
        return {each.fault for each in report.findings if is_listed or each.path != "boot.ipxe"}

    for number in count(1, STEPS_AT_A_TIME[case]):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(memory / "before", root)
        with OutputDirectory.open(root, ledger="ours") as opened:
            opened.publish({"web02": make_server("web02", 2)}, newer, complete=False, commit="c0ffee", at=NOW)
            with hook_calls(kill_at(number)) as calls, suppress(KeyboardInterrupt):
                opened.update_list(signing, NOW)
        if calls.calls < number:
            break
        assert faults() <= expected[case], number
        with OutputDirectory.open(root, ledger="ours") as again:
            stands: dict[str, Files | None] = {
                name: make_server(name, 2 if name == "web02" else 1) for name in ("web01", "web02", "web03")
            }
            publish(again, stands, newer, NOW)
            again.update_list(signing, NOW)
        assert faults() == set(), number
        assert [path for path in (root / SIGNED).iterdir() if path.name.startswith(".")] == [], number
        reader = make_client(root / SIGNED, (keys / "1.root.json").read_bytes(), memory / f"cache{number}")
        shared, listing = target(reader, "shared.json"), target(reader, "servers/web02.json")
        assert shared is not None and shared["files"]["boot.ipxe"][0][1] == get_digest(newer["boot/boot.ipxe"])
        assert (
            listing is not None
            and make_server("web02", 2)[listing_path("web02")].content == encode_canonical(listing) + b"\n"
        )
    assert number > 3 * STEPS_AT_A_TIME[case]
    assert faults() == set()


def test_a_shared_listing_that_the_list_does_not_name_is_listed_even_with_the_same_manifest(
    tmp_path: Path, read: Read, signing: ListKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version had listed another one, and the process after it was killed once it had written this one."""
    listing = tmp_path / "out" / SIGNED / "shared.json"
    with open_published(tmp_path / "out") as first, monkeypatch.context() as patch:
        patch.setattr(signed_list, "render_listing", lambda found: render_listing(found) + b"\n")
        first.update_list(signing, NOW)
    listing.write_bytes(listing.read_bytes()[:-1])
    with open_published(tmp_path / "out") as second:
        second.update_list(signing, NOW)
    assert read("shared.json") is not None


# Keys


def test_readers_that_trust_the_earlier_root_key_trust_a_new_one(
    tmp_path: Path, read: Read, keys: Path, directory: OutputDirectory
) -> None:
    replace_list_keys(keys, None, keys / "new.key", NOW)
    directory.update_list(read_list_keys(keys), NOW)
    assert read("servers/web01.json") is not None
    newest = json.loads((tmp_path / "cache/root.json").read_bytes())
    assert newest["signed"]["version"] == 2 and len(newest["signatures"]) == 2


@pytest.mark.parametrize("name", ["1.root.json", "1.targets.json"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"[" * 100_000])
def test_keys_in_a_folder_with_damaged_metadata_are_not_replaced(keys: Path, name: str, content: bytes | None) -> None:
    (keys / name).unlink()
    if content is not None:
        (keys / name).write_bytes(content)
    before = (keys / "publication.key").read_bytes()
    with pytest.raises(UsageError, match="restore the folder from a backup"):
        replace_list_keys(keys, None, None, NOW)
    assert (keys / "publication.key").read_bytes() == before


def test_a_new_root_with_the_same_publication_key_is_published_at_once(
    tmp_path: Path, read: Read, keys: Path, directory: OutputDirectory
) -> None:
    directory.update_list(read_list_keys(keys), NOW)
    bins, root = list_names(tmp_path / "out"), Metadata[Root].from_file(str(keys / "1.root.json"))
    root.signed.version, root.signed.expires = 2, root.signed.expires + timedelta(days=365)
    root.sign(CryptoSigner(load_pem_private_key((keys / "root.key").read_bytes(), None)))
    root.to_file(str(keys / "2.root.json"))
    assert directory.update_list(read_list_keys(keys), NOW + HOUR) == NOW + HOUR + VALID
    assert list_names(tmp_path / "out") == bins | {"2.root.json"}
    assert read("servers/web01.json") is not None
    assert json.loads((tmp_path / "cache/root.json").read_bytes())["signed"]["version"] == 2
    assert directory.update_list(read_list_keys(keys), NOW + 2 * HOUR) == NOW + HOUR + VALID


def test_after_a_lost_root_key_readers_only_need_the_new_public_key(
    tmp_path: Path, keys: Path, directory: OutputDirectory
) -> None:
    """The tree has two roots of the lost key, and the new key has one."""
    replace_list_keys(keys, None, None, NOW)
    directory.update_list(read_list_keys(keys), NOW)
    new = make_keys(tmp_path / "new", NOW)
    directory.update_list(read_list_keys(new), NOW)
    folder = tmp_path / "out" / SIGNED
    assert {name for name in list_names(tmp_path / "out") if name.endswith(".root.json")} == {"1.root.json"}
    reader = make_client(folder, (new / "1.root.json").read_bytes(), tmp_path / "cache")
    assert target(reader, "servers/web01.json") is not None
    assert read_list(FolderMirror(folder).get, parse_keys((new / "root.pub").read_text())).is_verified
    with pytest.raises(ListProblem, match="the root metadata is not signed by the specified"):
        read_list(FolderMirror(folder).get, parse_keys((keys / "root.pub").read_text()))
    directory.update_list(None, NOW)
    with pytest.raises(ListProblem, match="the list is not signed"):
        read_list(FolderMirror(folder).get, parse_keys((new / "root.pub").read_text()))


def test_a_key_that_others_may_read_is_rejected(keys: Path) -> None:
    (keys / "publication.key").chmod(0o644)
    with pytest.raises(KeyUnreadable, match="other users can read"):
        read_list_keys(keys)


@pytest.mark.parametrize("missing", ["publication.key", "1.root.json", "1.targets.json"])
def test_a_folder_of_keys_that_lacks_a_file_is_rejected(keys: Path, missing: str) -> None:
    (keys / missing).unlink()
    with pytest.raises(KeyUnreadable):
        read_list_keys(keys)


# Possible states of a file of the folder, each as its content.
DAMAGED_KEYS: dict[str, tuple[str, bytes]] = {
    "an empty key": ("publication.key", b""),
    "a key that is cut short": ("publication.key", b"-----BEGIN PRIVATE KEY-----\n"),
    "a key that is no PEM": ("publication.key", b"\0" * 40),
    "a key of another kind": ("publication.key", run_openssl("genpkey", "-algorithm", "RSA")),
    "a key of a kind that nobody knows": (
        "publication.key",
        b"-----BEGIN PRIVATE KEY-----\nMBACAQAwBQYDKgMEBAQCBAA=\n-----END PRIVATE KEY-----\n",
    ),
    "a root that is a list": ("1.root.json", b"[]"),
    "a root that is nested without end": ("1.root.json", b"[" * 100_000),
    "a root that expires without a zone": ("1.root.json", b""),
    "a root far away": ("99999999999999999999.root.json", b"{}"),
    "a root of another version": ("2.root.json", b'{"signed": {"version": 1}}'),
    "targets of another version": ("2.targets.json", b""),
    "delegations that are a list": ("1.targets.json", b'{"signed": {"delegations": []}}'),
}


@pytest.mark.parametrize("damage", DAMAGED_KEYS)
def test_a_folder_of_keys_with_a_damaged_file_is_rejected(keys: Path, damage: str) -> None:
    name, content = DAMAGED_KEYS[damage]
    if damage == "targets of another version":
        content = (keys / "1.targets.json").read_bytes()
    if damage.endswith("without a zone"):
        found = json.loads((keys / name).read_bytes())
        found["signed"]["expires"] = found["signed"]["expires"].rstrip("Z")
        content = json.dumps(found).encode()
    (keys / name).write_bytes(content)
    with pytest.raises(KeyUnreadable, match="is not a PEM file" if "key that is" in damage else None):
        read_list_keys(keys)


def test_a_key_that_the_newest_root_does_not_name_is_rejected(tmp_path: Path, keys: Path) -> None:
    other = make_keys(tmp_path / "other", NOW)
    shutil.copy(other / "publication.key", keys)
    with pytest.raises(KeyNotInRoot):
        read_list_keys(keys)


# Random events

NAMES = ("web01", "web02", "web03", "db01")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sampled_from(NAMES), st.integers(1, 3) | st.none()),
        st.tuples(st.just("restart"), st.booleans()),  # and whether the list of before is there
        st.tuples(st.just("wait"), st.sampled_from((1, 13, 24 * 350))),  # hours
        st.tuples(st.just("replace keys")),
        st.tuples(st.just("lose"), st.integers(0, 99)),  # one file of the list
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_client_with_a_cache_finds_all_published_files_after_any_steps(steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder:
        assert_all_found(Path(folder), steps)


def assert_all_found(folder: Path, steps: list[tuple[Any, ...]]) -> None:
    root, at = folder / "out", NOW
    keys = make_keys(folder / "keys", NOW)
    first_root = (keys / "1.root.json").read_bytes()
    stands: dict[str, Files | None] = {"web01": make_server("web01")}
    directory = OutputDirectory.open(root, ledger="ours")
    publish(directory, stands, SHARED, at)
    for step in [("begin",), *steps]:
        at += timedelta(seconds=1)
        match step:
            case ("change", name, version):
                files = make_server(name, version) if version is not None else None
                stands[name] = files
                publish(directory, {name: files}, None, at)
            case ("restart", is_list_kept):
                directory.close()
                if not is_list_kept:
                    shutil.rmtree(root / SIGNED)
                directory = OutputDirectory.open(root, ledger="ours")
                publish(directory, {name: each for name, each in stands.items() if each is not None}, SHARED, at)
            case ("wait", hours):
                at += timedelta(hours=hours)
            case ("replace keys",):
                replace_list_keys(keys, None, None, NOW)
            case ("lose", number):
                lying = sorted(list_names(root))
                (root / SIGNED / lying[number % len(lying)]).unlink()
                shared = {**SHARED, "boot/again": File(str(at).encode())}
                directory.publish({}, shared, complete=False, commit="c0ffee", at=at)
        directory.update_list(read_list_keys(keys), at)
        reader = make_client(root / SIGNED, first_root, folder / "cache")
        for name, found in stands.items():
            listing = target(reader, f"servers/{name}.json")
            path = f"v1/boot/{name}/boot.ipxe"
            expected = get_digest(found[f"boot/{path}"]) if found is not None else None
            assert (listing["files"][path][0][1] if listing is not None else None) == expected, step
    directory.close()
