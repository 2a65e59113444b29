"""Laws of an instance's files: they follow from the accepted commit, the records and the time alone."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.fetchlog.spool import IDENTITY
from gitboot.fleet.revision import Snapshot
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.tree_reader import RESERVES
from tests.evaluator.test_evaluation_properties import EDITS, LAWS, Edit, Tree, rename_fleet, tree_of
from tests.helpers.cases import count_examples
from tests.helpers.fleets import snapshot
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets, format_blocks
from tests.helpers.instance_in_process import Bench

RUNS = settings(LAWS, max_examples=count_examples(15))
STEPS: Final = (0, 0, 1, 30, 24 * 60, 7 * 24 * 60)  # minutes: windows open and end in between
RETIRED: Final = "ops/.gitboot/retired/"
SIGNED: Final = "boot/signed/"


# Edits, beyond those of `test_evaluator_laws`, that change what the page explains


def set_spec(tree: Tree, kind: str, draw: random.Random, **fields: object) -> Tree:
    """Set fields of the spec of one document of this kind, if it is well formed. A field that is None goes."""
    paths = sorted(path for path in tree if path.startswith(f"{kind}/"))
    path = draw.choice(paths or sorted(tree))
    with suppress(ValueError, KeyError):
        document = json.loads(tree[path])
        spec = {**document["spec"], **fields}
        document["spec"] = {key: value for key, value in spec.items() if value is not None}
        return tree | {path: json.dumps(document) + "\n"}
    return tree


def change_rollout(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """A rollout begins or ends, or has another selector or percentage."""
    selector = draw.choice(["All", "None", {"matchLabels": {"role": "web"}}, {"matchLabels": {"ring": "canary"}}])
    rollout = {"image": draw.choice(["flatcar-2", "flatcar-10"]), "percent": draw.choice([0, 50]), "selector": selector}
    return set_spec(tree, "imagestream", draw, rollout=draw.choice([None, rollout, rollout]))


def change_holds(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """A stream's hold comes or goes, or has another place in the list."""
    hold = {"select": {"matchLabels": {"role": "web"}}, "image": "flatcar-1", "reason": "held"}
    other = {"select": "None", "image": "flatcar-2", "reason": "held"}
    return set_spec(tree, "imagestream", draw, holds=draw.choice([None, [hold], [other, hold]]))


def change_network_boot(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """A policy sets a value that it may have inherited, or no longer sets it."""
    return set_spec(tree, "bootpolicy", draw, networkBoot=draw.choice([None, "Once"]))


def change_variables(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """All policies or all profiles set a variable that few templates use, or an argument that an image may have."""
    kind = draw.choice(["bootpolicy", "bootprofile"])
    fields: dict[str, object] = draw.choice(
        [{"vars": {"unused": draw.choice(["a", "b"])}}, {"kernelArguments": ["quiet"]}]
    )
    for path in sorted(tree):
        if path.startswith(f"{kind}/"):
            tree = tree | set_spec({path: tree[path]}, kind, draw, **fields)
    return tree


ALL_EDITS: Final[tuple[Edit, ...]] = (
    *EDITS,
    *(change_rollout, change_rollout, change_holds, change_network_boot, change_variables, rename_fleet) * 2,
)


def lay_out(tree: Tree, draw: random.Random) -> Tree:
    """Return the documents as people write them: a value a line, and perhaps many documents in one file.

    The Fleet publishes the page, nearly always.
    """
    together, has_page = draw.choice(["", "", "server/", "boot"]), draw.random() < 0.9
    files: Tree = {}
    bundle: list[str] = []
    for path, text in sorted(tree.items()):
        written = format_lines(text, has_page=has_page) if path.endswith(".yaml") else text
        if together and path.startswith(together):
            bundle.append(written)
        else:
            files[path] = written
    return files | ({"bundle.yaml": "---\n".join(bundle)} if bundle else {})


def format_lines(text: str, *, has_page: bool) -> str:
    lines = text.splitlines(keepends=True)
    comments = [line for line in lines if line.startswith("#")]
    try:
        document = json.loads("".join(lines[len(comments) :]))
    except ValueError:
        return text  # it is broken on purpose
    spec = document.get("spec")
    if has_page and document["kind"] == "Fleet" and isinstance(spec, dict):
        spec["outputs"] = [*{*spec.get("outputs", ["ipxe", "grub"]), "pages"}]
        spec["outputs"].sort()
    return "".join(comments) + format_blocks(document)


# An instance, and a fresh one


@contextmanager
def instance(folder: Path, initial: str | None = None) -> Iterator[Bench]:
    """Run an instance that publishes into a directory."""
    folder.mkdir(exist_ok=True)
    with (
        OutputDirectory.open(folder / "output", ledger="mine") as target,
        Bench(folder, initial=initial, named=False, target=target) as bench,
    ):
        yield bench


def read_files(folder: Path) -> dict[str, bytes]:
    output = folder / "output"
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def publish_fresh(bench: Bench, instance_folder: Path, accepted: Snapshot, folder: Path) -> dict[str, bytes]:
    """Return the files that an instance publishes with the same ledger and an empty output."""
    folder.mkdir()
    (folder / "spool").mkdir()
    copy(instance_folder / "spool" / IDENTITY, folder / "spool")
    name = "ledger.sqlite"
    with (
        closing(sqlite3.connect(instance_folder / name)) as ledger,
        closing(sqlite3.connect(folder / name)) as copied,
    ):
        ledger.backup(copied)
    with instance(folder) as fresh:
        fresh.now = bench.now
        fresh.commits.newest = accepted
        fresh.reconcile()
    return read_files(folder)


def make_comparable(files: Mapping[str, bytes]) -> dict[str, object]:
    """Return the files without the reserved space and the lists of content that is kept for a while.

    The versions of the signed list count up, so only the content of the list is compared.
    """
    ignored = (RETIRED, SIGNED, *RESERVES)
    found: dict[str, object] = {path: data for path, data in files.items() if not path.startswith(ignored)}
    return found | {SIGNED: read_signed_list(files)}


def list_old_content(files: Mapping[str, bytes]) -> set[str]:
    """Return content that no server named at some time. It stays for machines that were about to fetch it."""
    return {path for name in files if name.startswith(RETIRED) for path in json.loads(files[name])}


def read_signed_list(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the targets of the newest signed list, by path."""

    def read_signed(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(files[f"{SIGNED}{name}"])["signed"]
        return found

    version = read_signed("timestamp.json")["meta"]["snapshot.json"]["version"]
    bins = read_signed(f"{version}.snapshot.json")["meta"]
    named = [f"{each['version']}.{name}" for name, each in bins.items() if name.startswith("servers-")]
    return {path: target for name in sorted(named) for path, target in read_signed(name)["targets"].items()}


@RUNS
@given(first=fleets(), others=st.lists(fleets(), min_size=2, max_size=3), seed=st.integers(0, 2**32))
def test_every_file_follows_from_the_accepted_commit_the_records_and_the_time(
    first: GeneratedFleet, others: list[GeneratedFleet], seed: int
) -> None:
    draw = random.Random(seed)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "instance"
        with instance(folder, draw.choice(["fresh", "adopt"])) as bench:
            bench.now, tree, accepted = first.at, tree_of(first), None
            for number, other in enumerate((first, *others * 2)):
                edited = tree
                for _ in range(draw.randint(1, 2) if number else 0):
                    edited = draw.choice(ALL_EDITS)(edited, other, draw)
                bench.commits.push(snapshot(files=lay_out(edited, draw)))
                bench.reconcile()
                newest = bench.commits.newest
                assert newest is not None
                if bench.instance.reconciler.status.applied == newest.revision:
                    tree, accepted = edited, newest
                fetched = draw.sample(sorted(bench.servers), min(2, len(bench.servers)))
                for plan in [bench.servers[name].plan for name in fetched]:
                    if plan is not None:
                        bench.fetch(plan)
                bench.now += timedelta(minutes=draw.choice(STEPS))
                bench.reconcile()
                if draw.random() < 0.3:
                    check_publication(bench, folder, accepted)
            check_publication(bench, folder, accepted)


def check_publication(bench: Bench, folder: Path, accepted: Snapshot | None) -> None:
    assert accepted is not None
    assert bench.instance.reconciler.status.applied == accepted.revision
    with TemporaryDirectory() as temporary:
        fresh = publish_fresh(bench, folder, accepted, Path(temporary) / "fresh")
    published = read_files(folder)
    found, expected = make_comparable(published), make_comparable(fresh)
    other = {path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)}
    assert other <= list_old_content(published) - expected.keys()
