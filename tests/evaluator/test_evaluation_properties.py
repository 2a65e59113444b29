"""Properties of every commit: evaluated from its changes, it equals, byte for byte, its evaluation alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Step
from hypothesis import strategies as st

from gitboot.child_processes import encode
from gitboot.disk_cache import DiskCache
from gitboot.errors import InvalidRepository
from gitboot.evaluator import protocol
from gitboot.evaluator.client import assemble_commit
from gitboot.evaluator.decision_history import DecisionHistory
from gitboot.evaluator.evaluation import CommitPair, Evaluation, Evaluator
from gitboot.evaluator.process import build_report
from gitboot.evaluator.protocol import Commit, build_commit
from gitboot.fleet import validation
from gitboot.fleet.revision import BlobId, CommitSummary, Revision, Snapshot
from gitboot.git import history as source_history
from gitboot.jsonio import to_json_value
from gitboot.resolve import fleet_decisions
from gitboot.resolve.boot_composition import Composer
from gitboot.resolve.decision_inputs import ServerInputs
from gitboot.resolve.fleet_decisions import DecidedServer
from gitboot.review.decision_changes import compare_decisions
from tests.helpers.cases import count_examples
from tests.helpers.evaluations import StoredResults
from tests.helpers.fleets import SEED, server
from tests.helpers.hypothesis_strategies import FILES, Document, GeneratedFleet, fleets, format_json, get_name

LAWS = settings(
    max_examples=count_examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    phases=[step for step in Step if step is not Step.explain],
)

Tree = dict[str, str]  # path -> text


@pytest.fixture(autouse=True, scope="module")
def _small_batches() -> Iterator[None]:
    """Divide the small fleets of these tests into several batches of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "_BATCH", 2)
        yield


@dataclass
class History:
    trees: dict[str, Tree]

    def commit(self, tree: Tree) -> Revision:
        revision = Revision(f"{len(self.trees) + 1:040}")
        self.trees[revision] = tree
        return revision

    def snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        tree = self.trees[revision]
        blobs = {path: BlobId(sha256(text.encode()).hexdigest()) for path, text in tree.items()}
        changed = None
        if previous is not None:
            paths = blobs.keys() | previous.blobs.keys()
            changed = frozenset(path for path in paths if blobs.get(path) != previous.blobs.get(path))
        return Snapshot(revision=revision, blobs=blobs, read=self.read, changed=changed)

    def read(self, blob: BlobId) -> bytes:
        texts = (text.encode() for tree in self.trees.values() for text in tree.values())
        return next(text for text in texts if sha256(text).hexdigest() == blob)


def tree_of(fleet: GeneratedFleet) -> Tree:
    return dict(FILES) | {path_of(document): format_json(document) for document in fleet.documents}


def path_of(document: Document) -> str:
    return f"{document['kind']}/{get_name(document)}.yaml".lower()


# Edits: each gives another tree, which may not be a valid fleet

Edit = Callable[[Tree, GeneratedFleet, random.Random], Tree]


def whole(_: Tree, other: GeneratedFleet, __: random.Random) -> Tree:
    return tree_of(other)


def replace_documents(tree: Tree, other: GeneratedFleet, draw: random.Random) -> Tree:
    taken = draw.sample(other.documents, draw.randint(1, 3))
    return tree | {path_of(document): format_json(document) for document in taken}


def replace_kind(tree: Tree, other: GeneratedFleet, draw: random.Random) -> Tree:
    kind = draw.choice(["Fleet", "Server", "ImageStream", "BootProfile", "BootPolicy", "Maintenance"])
    return tree | {path_of(document): format_json(document) for document in other.of(kind)}


def remove_document(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    gone = draw.choice(sorted(tree))
    return {path: text for path, text in tree.items() if path != gone}


def remove_server(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    servers = sorted(path for path in tree if path.startswith("server/"))
    gone = draw.choice(servers or sorted(tree))
    return {path: text for path, text in tree.items() if path != gone}


def change_label(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """A server gets another role, ring or site: other selectors find it."""
    path = draw.choice(sorted(path for path in tree if path.startswith("server/")) or sorted(tree))
    old, new = draw.choice([("web", "db"), ("canary", "stable"), ("ams2", "fra1"), ("stable", "canary")])
    return tree | {path: tree[path].replace(f'"{old}"', f'"{new}"')}


def rename_server(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    path = draw.choice(sorted(path for path in tree if path.startswith("server/")) or sorted(tree))
    return tree | {path: tree[path].replace('"name": "web', '"name": "aweb')}


def add_bmc(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """Give a server a BMC, perhaps one that another server has too, or placeholder identities."""
    path = draw.choice(sorted(path for path in tree if path.startswith("server/")) or sorted(tree))
    address = draw.choice(["https://10.0.0.1", "https://10.0.0.1:443/", "https://10.0.0.2"])
    reports = draw.choice(["", ', "reports": {"serial": "X6DCP93"}', ', "reports": {"serial": "Default string"}'])
    bmc = f'"bmc": {{"address": "{address}", "credentials": "rack"{reports}}}'
    return tree | {path: tree[path].replace('"spec": {', f'"spec": {{{bmc}, ', 1)}


def add_comment(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """Move a document to another line without changing its content."""
    path = draw.choice(sorted(path for path in tree if path.endswith(".yaml")))
    return tree | {path: f"# {draw.random()}\n{tree[path]}"}


def move_document(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    path = draw.choice(sorted(path for path in tree if path.endswith(".yaml")))
    return {f"moved/{each}" if each == path else each: text for each, text in tree.items()}


def copy_document(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    path = draw.choice(sorted(path for path in tree if path.endswith(".yaml")))
    return tree | {f"copied/{path}": tree[path]}


def break_document(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    path = draw.choice(sorted(path for path in tree if path.endswith(".yaml")))
    return tree | {path: draw.choice(["{", "kind: Nothing\n", tree[path].replace('"spec": {', '"spec": {"what": 1, ')])}


def change_template(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    path = draw.choice(sorted(FILES))
    leaking = draw.choice(["", ' "passwd": "hunter2",', "{{ nothing }}"])
    return tree | {path: FILES[path].replace('"of": "', f'"n": {draw.randint(0, 9)},{leaking} "of": "')}


def toggle_mirror(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    """Images are brought from elsewhere, and mirrored from now on, or no longer."""
    outputs = '"outputs": ["mirror"], '
    found = {path: text for path, text in tree.items() if path.startswith("fleet/")}
    found = {
        path: text.replace(outputs, "") if outputs in text else text.replace('"spec": {', f'"spec": {{{outputs}', 1)
        for path, text in found.items()
    }
    if draw.random() < 0.5:
        images = {path: text for path, text in tree.items() if path.startswith("bootimage/")}
        found |= {path: text.replace('"assets:', '"http://vendor.test/') for path, text in images.items()}
    return tree | found


def shown(tree: Tree, _: GeneratedFleet, __: random.Random) -> Tree:
    """Switch the page on, which has the source location of each server, or off."""
    outputs = '"outputs": ["pages"], '
    found = {path: text for path, text in tree.items() if path.startswith("fleet/") and '"outputs"' not in text}
    return {path: text.replace(outputs, "") for path, text in tree.items()} | {
        path: text.replace('"spec": {', f'"spec": {{{outputs}', 1) for path, text in found.items()
    }


def rename_fleet(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    old, new = draw.choice([("test", "prod"), ("prod", "test")])
    return {
        path: text.replace(f'"name": "{old}"', f'"name": "{new}"', 1) if path.startswith("fleet/") else text
        for path, text in tree.items()
    }


def ignore_path(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    return tree | {".gitbootignore": f"{draw.choice(sorted(tree))}\n"}


def change_readme(tree: Tree, _: GeneratedFleet, draw: random.Random) -> Tree:
    return tree | {"README.md": str(draw.random())}


EDITS: tuple[Edit, ...] = (
    *(
        whole,
        replace_documents,
        replace_documents,
        replace_kind,
        replace_kind,
        replace_kind,
        remove_document,
        remove_server,
        change_label,
    ),
    *(
        change_label,
        rename_server,
        add_bmc,
        add_bmc,
        add_comment,
        move_document,
        copy_document,
        break_document,
        change_template,
        change_template,
        toggle_mirror,
        toggle_mirror,
        shown,
        shown,
        rename_fleet,
        ignore_path,
        change_readme,
    ),
)


# Values that both ways must agree on


def evaluate_or_problems(
    evaluator: Evaluator, revision: Revision, base: Revision | None
) -> CommitPair | tuple[object, ...]:
    try:
        return evaluator.evaluate(revision, base)
    except InvalidRepository as error:
        return error.problems, error.dated


def restart_evaluator(evaluation: Evaluation, history: History) -> Evaluator:
    results = StoredResults()
    results.add(evaluation)
    return Evaluator(history.snapshot, results=results)


def evaluate_alone(history: History, revision: Revision) -> CommitPair | tuple[object, ...]:
    return evaluate_or_problems(Evaluator(history.snapshot), revision, None)


def rebuild_commit(found: CommitPair) -> Commit:
    return build_commit(found.head.decided.repository, found.head.decided.decisions)


def list_commit_values(commit: Commit) -> tuple[object, ...]:
    """Return all that an instance has of a commit, with the order of ordered parts."""
    decisions = commit.decisions
    return (
        commit.revision,
        commit.fleet,
        [(name, decision, decision.digest, to_json_value(decision)) for name, decision in decisions.servers.items()],
        list(decisions.networks.items()),
        (decisions.base_url, decisions.outputs, decisions.evidence, list(decisions.sites.items())),
        (decisions.unknown, decisions.unknown_not_found, decisions.warnings, decisions.dated),
        list(commit.machines.items()),
        list(commit.labels.items()),
        list(commit.sites.items()),
        commit.opt_outs,
        list(commit.minimum_versions.items()),
    )


def list_page_values(commit: Commit) -> tuple[object, ...]:
    """Return what the page shows of a commit besides, with the order of what has one."""
    written = [(name, each.stream, each.joins, each.kept, each.lines) for name, each in commit.written.items()]
    locations = list(commit.locations.servers.items()), list(commit.locations.shared.items())
    return written, locations, commit.shown


@LAWS
@given(first=fleets(), others=st.lists(fleets(), min_size=2, max_size=4), seed=st.integers(0, 2**32))
def test_a_commit_has_the_same_result_for_every_way_to_reach_it(
    first: GeneratedFleet, others: list[GeneratedFleet], seed: int
) -> None:
    draw = random.Random(seed)
    history = History({})
    evaluator = Evaluator(history.snapshot)
    base_tree = tree_of(first)
    revision = history.commit(base_tree)
    found = evaluate_or_problems(evaluator, revision, None)
    assert isinstance(found, CommitPair)
    base = assemble_commit(None, revision, map(round_trip, build_report(found))).commit
    base_cold = evaluate_alone(history, revision)
    for other in others * 2:
        tree = base_tree
        for _ in range(draw.randint(1, 2)):
            tree = draw.choice(EDITS)(tree, other, draw)
        revision = history.commit(tree)
        found, cold = evaluate_or_problems(evaluator, revision, base.revision), evaluate_alone(history, revision)
        if not isinstance(found, CommitPair) or not isinstance(cold, CommitPair):
            assert found == cold
            continue
        assert isinstance(base_cold, CommitPair)
        new = assemble_commit(base, revision, map(round_trip, build_report(found))).commit
        assert list_commit_values(new) == list_commit_values(rebuild_commit(cold))
        all_told = assemble_commit(None, revision, map(round_trip, build_report(cold))).commit
        assert list_page_values(new) == list_page_values(all_told)
        assert found.head.decided.repository.origins == cold.head.decided.repository.origins
        old_side, new_side = base_cold.head.decided, cold.head.decided
        whole_changes = compare_decisions(
            old_side.decisions, new_side.decisions, old_side.repository, new_side.repository
        )
        assert found.compute_changes() == whole_changes
        again = restart_evaluator(found.head, history) if draw.random() < 0.4 else None
        if draw.random() < 0.6:
            base, base_tree, base_cold = new, tree, cold
        evaluator = again or evaluator


def test_an_invalid_commit_decides_only_servers_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {f"{name}.yaml": server(name, "role: web") for name in ("web02", "web03")}
    good = {f"{number}.yaml": text for number, text in enumerate(SEED)} | servers
    history = History({})
    evaluator = Evaluator(history.snapshot)
    first = history.commit(good)
    evaluator.evaluate(first, None)
    changed = {"web03.yaml": server("web03", "role: web, ring: canary"), "broken.yaml": "kind: Nothing"}
    decided, decide_server = list[str](), fleet_decisions.decide_server

    def recorded(inputs: ServerInputs, composer: Composer) -> DecidedServer:
        decided.append(inputs.server.metadata.name)
        return decide_server(inputs, composer)

    monkeypatch.setattr(fleet_decisions, "decide_server", recorded)
    with pytest.raises(InvalidRepository):
        evaluator.evaluate(history.commit(good | changed), first)
    assert decided == ["web03"]


@LAWS
@given(first=fleets(), other=fleets(), seed=st.integers(0, 2**32))
def test_cached_results_of_another_commit_change_nothing(
    first: GeneratedFleet, other: GeneratedFleet, seed: int
) -> None:
    draw = random.Random(seed)
    history = History({})
    evaluator = Evaluator(history.snapshot)
    before = evaluate_or_problems(evaluator, history.commit(tree_of(first)), None)
    assert isinstance(before, CommitPair)
    tree = tree_of(first)
    for _ in range(draw.randint(0, 3)):
        tree = draw.choice(EDITS)(tree, other, draw)
    revision = history.commit(tree)
    found, cold = (
        evaluate_or_problems(restart_evaluator(before.head, history), revision, None),
        evaluate_alone(history, revision),
    )
    if not isinstance(found, CommitPair) or not isinstance(cold, CommitPair):
        assert found == cold
        return
    new = assemble_commit(None, revision, map(round_trip, build_report(found))).commit
    assert list_commit_values(new) == list_commit_values(rebuild_commit(cold))
    assert list_page_values(new) == list_page_values(
        assemble_commit(None, revision, map(round_trip, build_report(cold))).commit
    )
    assert found.head.decided.repository.origins == cold.head.decided.repository.origins
    assert found.head.loaded.files == cold.head.loaded.files
    assert (found.head.keys, found.head.rows, found.extent) == (cold.head.keys, cold.head.rows, cold.extent)
    assert cold.base is None and cold.extent == cold.compute_changes().extent  # of which it is not made


def round_trip(answer: protocol.Answer) -> protocol.Answer:
    return protocol.decode_answer(encode(answer))


def make_history_step(revision: Revision, tree: Tree) -> source_history.HistoryStep:
    commit = CommitSummary(revision=revision, author="", date=datetime(2026, 1, 1, tzinfo=UTC), subject="")
    return source_history.HistoryStep(commit=commit, tree=sha256(repr(sorted(tree.items())).encode()).hexdigest())


@LAWS
@given(first=fleets(), other=fleets(), seed=st.integers(0, 2**32))
def test_the_history_of_a_server_equals_the_one_from_complete_commits(
    first: GeneratedFleet, other: GeneratedFleet, seed: int
) -> None:
    draw = random.Random(seed)
    history = History({})
    trees = [tree_of(first)]
    for _ in range(draw.randint(1, 6)):  # some go back to what was before
        trees.append(draw.choice(EDITS)(draw.choice(trees[-2:]), other, draw))
    commits = [make_history_step(history.commit(tree), tree) for tree in reversed(trees)]

    def whole(revision: Revision, base: Revision | None) -> CommitPair:
        before = Evaluator(history.snapshot).evaluate(base, None) if base is not None else None
        found = Evaluator(history.snapshot).evaluate(revision, None)
        return replace(found, base=before.head if before is not None else None)

    evaluator = Evaluator(history.snapshot)
    known = evaluate_or_problems(evaluator, draw.choice(commits).commit.revision, None) if draw.random() < 0.5 else None
    if isinstance(known, CommitPair):
        evaluator = restart_evaluator(known.head, history)
    servers = sorted({get_name(each) for fleet in (first, other) for each in fleet.of("Server")})
    with (
        TemporaryDirectory() as folder,
        DiskCache(Path(folder, "steps.sqlite"), pytest.fail) as some,
        DiskCache(Path(folder, "wholes.sqlite"), pytest.fail) as all_of_them,
    ):
        by_steps, by_wholes = (
            DecisionHistory(commits, some, evaluator.evaluate),
            DecisionHistory(commits, all_of_them, whole),
        )
        found = {server: list(by_steps.list_changes(server)) for server in servers}
        assert found == {server: list(by_wholes.list_changes(server)) for server in servers}
        cached = DecisionHistory(commits, some, lambda *_: pytest.fail("a commit was evaluated again"))
        assert {server: list(cached.list_changes(server)) for server in servers} == found
