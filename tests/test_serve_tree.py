from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gitboot.publish.directory import Directory
from gitboot.publish.tree import read_manifest
from gitboot.render.answers import Answers
from gitboot.render.tree import File, Files
from gitboot.serve.tree import PublishedTree
from tests.fleets import SEED, fleet, image, policy, profile, server
from tests.serving import AFTER, BEFORE, ENTRY, LOOKUPS, START, Site, answers, eventually

MORE = (  # one that asks for its Ignition document by its UUID, one that boots its disk, one with a serial number
    server("edge01", "role: edge"),
    image("edge-1", "userData: Ignition/3.4, configFrom: SystemUUID", "uki"),
    profile("edge", "edge-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
    policy("edge", "{matchLabels: {role: edge}}", boots="edge"),
    server("disk01", "role: disk"),
    server("board01", "role: web", "provision: 1, serial: 4J8VM72"),
    profile("disk", "flatcar-1", method="Disk"),
    policy("disk", "{matchLabels: {role: disk}}", boots="disk"),
    server("new01", "role: web", "lifecycle: Parked"),
)
ALL = "baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux, uuid, serial]"
TEMPLATES = {"t": '{"ignition": {"version": "3.4.0"}}'}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Directory]:
    with Directory.open(tmp_path, ledger="test") as target:
        yield target


@pytest.fixture
def tree(target: Directory, tmp_path: Path) -> PublishedTree:
    return PublishedTree(tmp_path, lambda: BEFORE)


def publish(target: Directory, files: Files, commit: str = "c0ffee") -> None:
    target.publish(files, commit=commit, at=BEFORE)


def taken(tree: PublishedTree) -> Answers:
    tree.refresh()
    assert tree.answers is not None
    return tree.answers


def test_without_a_manifest_nothing_is_answered(tree: PublishedTree) -> None:
    tree.refresh()
    assert tree.answers is None
    assert not tree.status.ready


def test_a_tree_answers_as_the_instance_that_published_it(target: Directory, tree: PublishedTree) -> None:
    ours = answers(*MORE, templates=TEMPLATES, seed=(fleet(ALL), *SEED[1:]))
    publish(target, ours.files)
    theirs = taken(tree)
    assert dict(theirs.files) == ours.files
    assert theirs.entries == ours.entries
    assert ours.turns == theirs.turns
    unknown: dict[str, object] = {"files": {}, "provisioned": None, "drift": {}}  # to who has only the tree
    assert theirs.servers == {name: {**summary, **unknown} for name, summary in ours.servers.items()}
    assert len(ours.entries) >= 4
    assert len(ours.servers) == 5


def test_its_status_is_of_what_was_published(target: Directory, tree: PublishedTree) -> None:
    publish(target, answers(*MORE, templates=TEMPLATES).files, "feed")
    taken(tree)
    assert tree.status.ready
    assert tree.status.applied == "feed"
    assert tree.status.next_transition == START
    assert tree.status.phases == {"Network": 3, "Disk": 1, "NoPlan": 1}


def test_what_is_published_anew_is_followed(target: Directory, tree: PublishedTree) -> None:
    publish(target, answers().files)
    first = taken(tree)
    assert taken(tree) is first, "nothing was published since"
    publish(target, answers(now=AFTER).files)
    second = taken(tree)
    assert second is not first
    assert [each.servers["web01"]["phase"] for each in (first, second)] == ["Network", "Maintenance"]
    assert all("(Maintenance)" in second.files[f"boot{path}"].content.decode() for path in LOOKUPS)


def test_only_what_changed_is_read_again(target: Directory, tree: PublishedTree, tmp_path: Path) -> None:
    files = dict(answers().files)
    publish(target, files)
    first = dict(taken(tree).files)
    publish(target, {**files, "boot/unknown.ipxe": File(b"#!ipxe\nexit\n")})
    second = taken(tree).files
    assert {path for path in first if first[path] is not second[path]} == {"boot/unknown.ipxe"}


def test_an_entry_that_is_newer_than_the_manifest_is_served(
    target: Directory, tree: PublishedTree, tmp_path: Path
) -> None:
    publish(target, answers().files)
    path = tmp_path / "boot" / "unknown.ipxe"  # whose content stands nowhere else in the tree
    found = taken(tree)
    path.write_bytes(b"#!ipxe\n# newer\n")
    assert found.files["boot/unknown.ipxe"].content == b"#!ipxe\n# newer\n"
    path.unlink()
    assert found.at("boot/unknown.ipxe", BEFORE) is None


def test_immutable_content_that_is_not_what_it_was_is_not_served(
    target: Directory, tree: PublishedTree, tmp_path: Path
) -> None:
    path = f"o/{'c' * 64}/user-data"
    publish(target, answers().files)
    (tmp_path / "boot" / path).write_bytes(b"#cloud-config\nruncmd: []\n")
    assert taken(tree).files.get(f"boot/{path}") is None


def test_a_large_artifact_is_not_held_in_memory(target: Directory, tree: PublishedTree, tmp_path: Path) -> None:
    kernel, initrd = File(b"k" * 3_000_000), File(b"i" * 1000)
    publish(target, {f"boot/o/{file.sha256}/x": file for file in (kernel, initrd)})
    files = taken(tree).files
    assert files.get(f"boot/o/{kernel.sha256}/x") is None
    assert files.get(f"boot/o/{initrd.sha256}/x") == initrd
    site = Site(answers=tree.answers)
    with site.serve(artifacts=tmp_path / "boot" / "o") as url:
        assert httpx.get(f"{url}/o/{kernel.sha256}/x").content == kernel.content


def test_a_damaged_manifest_is_a_condition_and_the_answers_go_on(
    target: Directory, tree: PublishedTree, tmp_path: Path
) -> None:
    publish(target, answers().files)
    before = taken(tree)
    (tmp_path / "ops" / "manifest.json").write_text("{")
    tree.refresh()
    assert tree.answers is before
    assert not tree.status.condition("TreeRead")
    assert "manifest.json" in tree.status.conditions[0].message
    assert before.files[f"boot{ENTRY}"].content.startswith(b"#!ipxe")


def test_several_processes_turn_at_the_instant_without_the_instance(target: Directory, tmp_path: Path) -> None:
    publish(target, answers().files)
    sites = []
    for _ in range(2):
        tree = PublishedTree(tmp_path, lambda: BEFORE)
        sites.append(Site(answers=taken(tree), status=tree.status))
    for site in sites:
        with site.serve() as url:
            before = [httpx.get(url + path).text for path in LOOKUPS]
            site.now = START
            after = [httpx.get(url + path).text for path in LOOKUPS]
        assert not any("(Maintenance)" in text for text in before)
        assert all("(Maintenance)" in text for text in after)


def test_it_is_followed_until_it_is_stopped(target: Directory, tree: PublishedTree, tmp_path: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=tree.follow, args=(stop.wait,))
    thread.start()
    publish(target, answers().files)
    assert eventually(lambda: tree.answers is not None)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert read_manifest(tmp_path) is not None
