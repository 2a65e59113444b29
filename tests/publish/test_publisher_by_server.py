"""Publishing by server: what one server's change costs, and what several servers share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gitboot.errors import PublishError
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.manifest import (
    MANIFEST,
    Head,
    TreeOrigin,
    compute_digest,
    find_leaf,
    leaf_path,
    node_path,
    render_digests,
    render_head,
)
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.tree_changes import amend_manifest
from gitboot.publish.tree_reader import Tree, read_manifest
from gitboot.render.endpoint_files import parse_state_path, shard_path, state_path
from gitboot.render.paths import File, Files
from tests.helpers.published_trees import record_calls, server_files, verify_tree

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
SHARED: Files = {"boot/boot.ipxe": File(b"#!ipxe\n")}


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DurableDirectory, "sync", lambda disk: None)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[OutputDirectory]:
    with OutputDirectory.open(tmp_path, ledger="ours") as opened:
        yield opened


def format_mac(number: int) -> str:
    return f"02-00-00-00-{number >> 8:02x}-{number & 255:02x}"


def make_server(name: str, address: str, *, text: str = "1", content: str = "") -> Files:
    data = (content or f"user data {text} of {name}").encode()
    return server_files(
        name,
        {
            f"boot/o/{sha256(data).hexdigest()}/user-data": File(data),
            f"boot/v1/boot/{address}/boot.ipxe": File(f"{name} {text}\n".encode()),
        },
    )


def publish(
    target: OutputDirectory, servers: dict[str, Any], *, complete: bool = False, shared: Files | None = None
) -> Any:
    return target.publish(servers, SHARED if complete else shared, complete=complete, commit="c0ffee", at=AT)


def read_index(root: Path, identity: str) -> list[str]:
    path = root / shard_path(identity)
    found: list[str] = json.loads(path.read_bytes()).get(identity, []) if path.exists() else []
    return found


def read_boot_script(root: Path, number: int) -> str | None:
    path = root / f"boot/v1/boot/{format_mac(number)}/boot.ipxe"
    return path.read_text().split()[0] if path.exists() else None


def test_one_server_of_many_costs_a_few_files_and_kilobytes(
    tmp_path: Path, target: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(target, {f"s{n:04}": make_server(f"s{n:04}", format_mac(n)) for n in range(400)}, complete=True)
    touched, placed = record_calls(monkeypatch, "lstat", "read"), record_calls(monkeypatch, "place")
    publish(target, {"s0042": make_server("s0042", format_mac(42), text="2")})
    assert len({*touched, *placed}) < 15
    stand = [tmp_path / path for path in placed if (tmp_path / path).exists()]
    assert 0 < sum(path.stat().st_size for path in stand) < 16 * 1024
    assert verify_tree(tmp_path) == ()


def test_a_server_is_added_changed_and_removed_without_naming_others(tmp_path: Path, target: OutputDirectory) -> None:
    publish(target, {"a": make_server("a", format_mac(1)), "b": make_server("b", format_mac(2))}, complete=True)
    publish(target, {"c": make_server("c", format_mac(3))})
    assert (read_index(tmp_path, f"mac/{format_mac(3)}"), read_boot_script(tmp_path, 3)) == (["c"], "c")
    assert verify_tree(tmp_path) == ()
    published = publish(target, {"a": None})
    assert f"boot/v1/boot/{format_mac(1)}/boot.ipxe" in published.withdrawn
    assert state_path("a") in published.withdrawn
    assert (read_index(tmp_path, f"mac/{format_mac(1)}"), read_boot_script(tmp_path, 1)) == ([], None)
    assert verify_tree(tmp_path) == ()
    publish(target, {}, shared={**SHARED, "boot/unknown.ipxe": File(b"#!ipxe\n")})
    assert (tmp_path / "boot/unknown.ipxe").exists()
    assert verify_tree(tmp_path) == ()
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert sorted(name for path in manifest.files if (name := parse_state_path(path))) == ["b", "c"]


@pytest.mark.parametrize("how", ["changes", "goes"])
def test_content_that_another_server_names_stays_in_the_tree(tmp_path: Path, target: OutputDirectory, how: str) -> None:
    content = f"boot/o/{sha256(b'both').hexdigest()}/user-data"
    both = {name: make_server(name, format_mac(n), content="both") for n, name in enumerate("ab")}
    publish(target, both, complete=True)
    publish(target, {"a": make_server("a", format_mac(0)) if how == "changes" else None})
    retired = tmp_path / "ops/.gitboot/retired"
    assert (tmp_path / content).exists()
    assert not retired.exists() or content not in next(retired.iterdir()).read_text()
    published = target.publish(
        {"b": make_server("b", format_mac(1))}, None, complete=False, commit="c", at=AT + timedelta(seconds=5)
    )
    assert published.expired == ()
    assert content in next(retired.iterdir()).read_text(), "nobody names it now"
    target.publish({}, None, complete=False, commit="c", at=AT + timedelta(days=8))
    assert not (tmp_path / content).exists()
    assert verify_tree(tmp_path) == ()


def test_the_next_publication_completes_a_failed_one(tmp_path: Path, target: OutputDirectory) -> None:
    publish(target, {"a": make_server("a", format_mac(1)), "b": make_server("b", format_mac(2))}, complete=True)
    (tmp_path / f"boot/v1/boot/{format_mac(9)}").write_text("in the way")
    with pytest.raises(PublishError, match=format_mac(9)):
        publish(target, {"a": make_server("a", format_mac(3)), "c": make_server("c", format_mac(9))})
    (tmp_path / f"boot/v1/boot/{format_mac(9)}").unlink()
    publish(target, {"b": make_server("b", format_mac(2), text="2")})
    assert [read_boot_script(tmp_path, number) for number in (1, 2, 3, 9)] == [None, "b", "a", "c"]
    assert [read_index(tmp_path, f"mac/{format_mac(number)}") for number in (1, 2, 3, 9)] == [[], ["b"], ["a"], ["c"]]
    assert verify_tree(tmp_path) == ()


def test_an_interrupted_publication_leaves_nothing_in_the_index(
    tmp_path: Path, target: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(target, {"a": make_server("a", format_mac(1))}, complete=True)
    with monkeypatch.context() as patch:
        patch.setattr(DurableDirectory, "remove", lambda disk, path: (_ for _ in ()).throw(PublishError("broken off")))
        with pytest.raises(PublishError, match="broken off"):
            publish(target, {"a": make_server("a", format_mac(2))})
    publish(target, {})
    assert (read_index(tmp_path, f"mac/{format_mac(1)}"), read_index(tmp_path, f"mac/{format_mac(2)}")) == ([], ["a"])
    assert (read_boot_script(tmp_path, 1), read_boot_script(tmp_path, 2)) == (None, "a")
    assert verify_tree(tmp_path) == ()


def test_the_status_of_an_instance_is_not_part_of_the_manifest(tmp_path: Path) -> None:
    with OutputDirectory.open(tmp_path, ledger="ours") as target:
        target.write_status(b"{}", AT)
        publish(target, {"a": make_server("a", format_mac(1))}, complete=True)
        target.write_status(b'{"at":1}', AT)
        publish(target, {"a": None})
    assert (tmp_path / "ops/status.json").read_bytes() == b'{"at":1}'
    assert verify_tree(tmp_path) == ()
    with OutputDirectory.open(tmp_path, ledger="theirs") as target:
        target.write_status(b"{}", AT)
    assert (tmp_path / "ops/status.json").read_bytes() == b'{"at":1}', "it is another's tree"


def test_the_lock_file_can_be_removed_on_close(tmp_path: Path) -> None:
    target = OutputDirectory.open(tmp_path, ledger="ours")
    publish(target, {"a": make_server("a", format_mac(1))}, complete=True)
    target.close(remove_lock=True)
    assert not (tmp_path / "ops/.gitboot").exists()
    with OutputDirectory.open(tmp_path, ledger="ours") as again:
        assert again.origin is not None


def test_a_change_of_one_server_rewrites_at_most_16_kib_of_the_manifest_of_100_000(tmp_path: Path) -> None:
    name, digest = "s050-000042", "0" * 64
    node, leaf = find_leaf(name)
    servers = (f"s{number // 2000:03}-{number:06}" for number in range(100_000))
    beside = render_digests({each: digest for each in (*servers, name) if find_leaf(each) == (node, leaf)})
    every = {f"{number:02x}": digest for number in range(64)}
    leaves = render_digests(every | {leaf: compute_digest(beside)})
    origin = TreeOrigin(commit="a" * 40, gitboot="0.2.0", ledger="b" * 32)
    head = render_head(Head(origin=origin, nodes=every | {node: compute_digest(leaves)}, shared=digest))
    for path, data in ((leaf_path(node, leaf), beside), (node_path(node), leaves), (MANIFEST, head)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    with closing(DurableDirectory(tmp_path)) as disk:
        _, parts = amend_manifest(Tree(disk), origin, {name: "1" * 64}, None)
    assert parts.keys() == {leaf_path(node, leaf), node_path(node), MANIFEST}
    assert beside.count(b":") > 10
    assert sum(len(data or b"") for data in parts.values()) <= 16 * 1024
