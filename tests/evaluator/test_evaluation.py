"""Evaluation: content keys cover what a decision reads, and hostile commits come to an end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import compute_decision_keys
from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.identities import build_machine
from gitboot.fleet.validation import load
from gitboot.resolve.boot_composition import Composer
from gitboot.resolve.decision_inputs import FleetView
from gitboot.resolve.fleet_decisions import decide_server
from tests.evaluator.test_evaluation_properties import EDITS, LAWS, History, tree_of
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import (
    SEED,
    document,
    fleet,
    image,
    maintenance,
    make_mac,
    policy,
    profile,
    repository,
    server,
    write_configuration,
)
from tests.helpers.git_repositories import store_zeros
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets
from tests.helpers.running_instance import (
    Instance,
    Repository,
    eventually,
    git,
    list_evaluators,
    read_peak_mib,
    running,
)


def load_or_none(history: History, tree: dict[str, str]) -> FleetRepository | None:
    try:
        return load(history.snapshot(history.commit(tree), None))
    except InvalidRepository:
        return None


@LAWS
@given(first=fleets(), others=st.lists(fleets(), min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_equal_keys_of_two_commits_mean_equal_results(
    first: GeneratedFleet, others: list[GeneratedFleet], seed: int
) -> None:
    draw, history = random.Random(seed), History({})
    tree = tree_of(first)
    commits = [load_or_none(history, tree)]
    for other in others * 2:
        tree = draw.choice(EDITS)(tree, other, draw)
        commits.append(load_or_none(history, tree))
    results: dict[bytes, object] = {}  # by key
    for commit in commits:
        if commit is None:
            continue
        view, composer = FleetView(commit), Composer()
        keys = compute_decision_keys(commit, commit.servers)
        for name, each in commit.servers.items():
            inputs = view.server_inputs(each)
            result = inputs, decide_server(inputs, composer), build_machine(commit, each)
            assert results.setdefault(keys[name], result) == result


def check_each_by_itself(commit: FleetRepository, draw: random.Random) -> None:
    """Check that servers get the same inputs and keys together, in any order, as each gets alone."""
    view, servers = FleetView(commit), list(commit.servers.values())
    draw.shuffle(servers)
    keys = compute_decision_keys(commit, [each.metadata.name for each in servers])
    for each in servers:
        name = each.metadata.name
        assert view.server_inputs(each) == FleetView(commit).server_inputs(each), name
        assert compute_decision_keys(commit, [name]) == {name: keys[name]}


@LAWS
@given(generated=fleets(), seed=st.integers(0, 2**32))
def test_parts_that_servers_share_do_not_depend_on_the_servers_before(generated: GeneratedFleet, seed: int) -> None:
    commit = load_or_none(History({}), tree_of(generated))
    assert commit is not None
    check_each_by_itself(commit, random.Random(seed))


def test_servers_that_differ_in_one_respect_share_no_wrong_part() -> None:
    different = list(
        product(
            ("ring: a", "ring: b"),  # for a hold alone
            ("", "wave: first"),  # for the rollout alone
            ("", "pin: {image: flatcar-2, reason: r}", "pin: {image: flatcar-3, reason: r}"),
            ("", "policy: named", "lifecycle: Parked"),
            range(3),  # places in the rollout
        )
    )
    servers = [
        server(f"web{number:03}", ", ".join(filter(None, (ring, wave))), ", ".join(filter(None, (pin, more))))
        for number, (ring, wave, pin, more, _) in enumerate(different)
    ]
    holds = "{select: {matchLabels: {ring: b}}, image: flatcar-4, reason: r}"
    holds += ", {select: {servers: [web000]}, image: flatcar-1, reason: r}"
    rollout = "{image: flatcar-5, percent: 50, selector: {matchLabels: {wave: first}}}"
    commit = repository(
        fleet(),
        *(image(f"flatcar-{number}", "writesDisk: false") for number in range(1, 6)),
        document("ImageStream", "flatcar", f"current: flatcar-1, holds: [{holds}], rollout: {rollout}"),
        profile("web", "stream: flatcar"),
        profile("other", "stream: flatcar", "kernelArguments: [quiet]"),
        policy("web", "All"),
        policy("named", "None", boots="other"),
        maintenance("repair", "20T22:00 21T04:00", select="{servers: [web001]}", boots="other"),
        *servers,
    )
    view = FleetView(commit)
    images = {
        each.image.metadata.name
        for one in commit.servers.values()
        if (each := view.shared_inputs(one).boot) and each.image
    }
    assert images == {f"flatcar-{number}" for number in range(1, 6)}
    for seed in range(5):
        check_each_by_itself(commit, random.Random(seed))


def test_similar_servers_share_one_object() -> None:
    alike = [server(f"web{number:02}", "role: web, rack: r1") for number in range(5)]
    commit = repository(fleet(), image("flatcar-1"), profile("web", "flatcar-1"), policy("web", "All"), *alike)
    view = FleetView(commit)
    assert len({id(view.shared_inputs(each)) for each in commit.servers.values()}) == 1


LEDGER = "6f0a3c1e-2b47-4a8b-9d3e-5c1f7a9b0e24"
SITES = "sites: [{name: ams, baseURL: 'http://ams.test', select: All}]"
FLEET = f"baseURL: 'http://boot.test', endpoint: 'http://end.test', provisioning: {{evidence: Reported}}, {SITES}"
STREAM = "current: flatcar-1, skew: {mode: Warn, minimumVersion: '1'}"
DOCUMENTS = {
    "fleet": fleet(FLEET),
    "server": server("web01", "role: web"),
    "other": server("web02", "role: db"),
    "image": image("flatcar-1", "writesDisk: false"),
    "spare": image("flatcar-2", "writesDisk: false"),
    "stream": document("ImageStream", "flatcar", STREAM),
    "profile": profile("web", "stream: flatcar", "userData: {format: Generic, template: t}"),
    "policy": policy("web", "{matchLabels: {role: web}}", "inherits: all"),
    "all": policy("all", "All"),
    "repair": profile("repair", "flatcar-1"),
    "maintenance": maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01]}"),
}
TEMPLATE = {"t": "Hello\n", "README": ""}


def compute_key(documents: dict[str, str], files: dict[str, str]) -> bytes:
    return compute_decision_keys(repository(*documents.values(), files=files), ["web01"])["web01"]


def key_after_edit(part: str, old: str, new: str) -> bytes:
    documents, files = dict(DOCUMENTS), dict(TEMPLATE)
    edited = documents if part in documents else files
    assert old in edited[part]
    edited[part] = edited[part].replace(old, new)
    return compute_key(documents, files)


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("fleet", "name: test", "name: other"),
        ("fleet", "http://ams.test", "http://other.test"),
        ("fleet", "http://end.test", "http://other.test"),
        ("fleet", SITES, "sites: []"),
        ("fleet", "name: ams", "name: fra"),
        ("fleet", "select: All}", "select: All, endpoint: 'http://other.test'}"),
        ("fleet", "select: All}", f"select: All, ledger: {LEDGER}}}"),
        ("fleet", "sites:", "serving: {lateEnds: Accept}, sites:"),
        ("fleet", "sites:", "serving: {oneTimeBoots: Copies}, sites:"),
        ("fleet", "sites:", "serving: {restrict: true}, sites:"),
        ("fleet", "sites:", "serving: {ipxeHttps: true}, sites:"),
        ("fleet", "sites:", "stopped: a fire, sites:"),
        ("fleet", "sites:", "unknownServers: NotFound, sites:"),
        ("fleet", "sites:", "requirePolicy: false, sites:"),
        ("fleet", "evidence: Reported", "evidence: Declared"),
        ("fleet", "evidence: Reported", "evidence: Fetched"),
        ("fleet", "evidence: Reported", "evidence: Reported, attempts: 2"),
        ("fleet", "sites:", "outputs: [ipxe], sites:"),
        ("fleet", "sites:", "outputs: [ipxe, grub, mirror], sites:"),
        ("fleet", "sites:", "hardware: [{select: All, localDisk: NotFound}], sites:"),
        ("fleet", "sites:", "hardware: [{select: All, loader: GRUB}], sites:"),
        ("server", "architecture", "provision: 2, architecture"),
        ("image", "version: '1'", "version: '1.1'"),
        ("stream", "current: flatcar-1", "current: flatcar-2"),
        ("stream", "minimumVersion: '1'", "minimumVersion: '2'"),
        ("stream", "skew", "holds: [{select: {servers: [web01]}, image: flatcar-2, reason: r}], skew"),
        ("stream", "skew", "rollout: {image: flatcar-2, percent: 100}, skew"),
        ("profile", "template: t}}", "template: t}}  # gitboot:allow-secret because"),
        ("profile", "userData", "kernelArguments: [quiet], userData"),
        ("policy", "inherits", "vars: {a: b}, inherits"),
        ("all", "profile", "vars: {a: b}, profile"),
        ("repair", "image", "kernelArguments: [quiet], image"),
        ("maintenance", "21T04", "21T05"),
        ("t", "Hello", "Goodbye"),
    ],
)
def test_a_key_changes_with_each_input_of_the_decision(part: str, old: str, new: str) -> None:
    assert key_after_edit(part, old, new) != compute_key(DOCUMENTS, TEMPLATE)


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("fleet", "http://boot.test", "http://other.test"),  # the site has a base URL of its own
        ("fleet", "sites:", "guards: {maxReinstalls: 3}, sites:"),
        ("fleet", "sites:", "outputs: [ipxe, grub, pages, inventory], sites:"),
        ("fleet", "sites:", "unknownServers: {profile: repair}, sites:"),
        ("fleet", "evidence: Reported", "evidence: Progress"),
        ("fleet", "evidence: Reported", "evidence: Reported, monitors: [10.0.0.0/8], clients: [10.0.0.0/8]"),
        ("fleet", "select: All}", "select: All}, {name: fra, baseURL: 'http://fra.test', select: None}"),
        ("profile", "spec:", "# gitboot:allow-secret because\nspec:"),  # of no field
        ("profile", "kind:", "# a comment\nkind:"),
        ("server", "kind:", "# a comment\nkind:"),
        ("other", "architecture", "provision: 2, architecture"),
        ("spare", "version: '2'", "version: '2.1'"),
        ("stream", "skew", "holds: [{select: {servers: [web02]}, image: flatcar-2, reason: r}], skew"),
        ("README", "", "Read me"),
    ],
)
def test_a_key_stays_if_no_input_of_the_decision_changes(part: str, old: str, new: str) -> None:
    assert key_after_edit(part, old, new) == compute_key(DOCUMENTS, TEMPLATE)


@pytest.mark.parametrize("field", ["baseURL: 'http://boot.test'", "endpoint: 'http://end.test'"])
def test_a_server_without_a_site_depends_on_the_urls_of_the_fleet(field: str) -> None:
    documents = DOCUMENTS | {"fleet": DOCUMENTS["fleet"].replace(SITES, "sites: []")}
    other = documents | {"fleet": documents["fleet"].replace(field, field.replace(".test", ".example"))}
    assert compute_key(documents, TEMPLATE) != compute_key(other, TEMPLATE)


def test_a_key_changes_with_the_files_that_the_server_names() -> None:
    bmc = "bmc: {address: 'https://10.0.0.1', credentials: c, tls: {ca: ca.pem}}"
    documents = DOCUMENTS | {"server": server("web01", "role: web", bmc)}
    assert len({compute_key(documents, TEMPLATE | {"ca.pem": text}) for text in ("A", "B")}) == 2


def test_keys_do_not_depend_on_the_order_of_files() -> None:
    backwards = dict(reversed(DOCUMENTS.items()))
    one, two = (repository(*each.values(), files=TEMPLATE) for each in (DOCUMENTS, backwards))
    assert compute_decision_keys(one, one.servers) == compute_decision_keys(two, two.servers)


def test_keys_are_the_same_in_every_process() -> None:
    module = "tests.evaluator.test_evaluation"
    code = f"from {module} import DOCUMENTS, TEMPLATE, compute_key; print(compute_key(DOCUMENTS, TEMPLATE).hex())"
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert keys == {compute_key(DOCUMENTS, TEMPLATE).hex()}


ENTRY = f"/v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
USER_DATA = "userData: {format: CloudInit, template: user-data.j2}"
LIMITS = (*write_configuration(commit_seconds=1), "--poll", "0.3")

HOSTILE = {
    "an ignore pattern of 17 stars and a name of 200 letters": {
        ".gitbootignore": f"{'*a' * 17}b\n",
        f"{'a' * 200}.yaml": "",
    },
    "a word that is nearly a secret, and 1,600 blank lines": {
        "user-data.j2": f"#cloud-config\n# passw{chr(10) * 1600}\n"
    },
    "a line of 1 MB that looks like an option": {"user-data.j2": f"#cloud-config\n# --password={'-' * 2**20}\n"},
    "a document with 50,000 bad labels": {
        "labels.yaml": server("web02", ", ".join(f"l{number}: '-'" for number in range(50_000)))
    },
    "more servers than there is time for": {
        "many.yaml": "---\n".join(server(f"n{number:05}", "role: web") for number in range(6_000))
    },
}


PATIENCE_S = 300  # a thread that holds the interpreter of an endpoint holds it longer


@contextmanager
def keep_requesting(instance: Instance) -> Iterator[None]:
    """Request the boot script of a machine twice a second, and check that each response is a 200."""
    wrong: list[object] = []
    ended = threading.Event()

    def request_repeatedly() -> None:
        with httpx.Client(base_url=instance.url, headers=LOADER, verify=False) as client:  # plain HTTP
            while not ended.wait(0.5):
                try:
                    answer = client.get(ENTRY, timeout=PATIENCE_S)
                    if answer.status_code != 200:
                        wrong.append(answer)
                except httpx.HTTPError as error:
                    wrong.append(error)

    thread = threading.Thread(target=request_repeatedly)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not wrong, wrong


def is_attempted(instance: Instance, commit: str) -> bool:
    return bool(instance.status()["attempted"]["commit"] == commit)


def test_t1_machines_are_served_while_hostile_commits_come_and_the_accepted_one_stays(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    having = {
        profile("web", "flatcar-1"): profile("web", "flatcar-1", USER_DATA),
        image("flatcar-1"): image("flatcar-1", "userData: CloudInit"),
    }
    harmless = {"fleet.yaml": "---\n".join(having.get(each, each) for each in SEED), "user-data.j2": "#cloud-config\n"}
    repository.push(harmless)
    with running(repository.bare, tmp_path, *LIMITS) as instance:
        for files in HOSTILE.values():
            with keep_requesting(instance):
                commit = repository.push(harmless | files)
                eventually(partial(is_attempted, instance, commit))
            harmless |= {path: harmless.get(path, "") for path in files}
        applied = instance.status()["applied"]["commit"]
    with running(repository.bare, tmp_path, *LIMITS) as instance, keep_requesting(instance):
        eventually(partial(is_attempted, instance, commit))
        eventually(lambda: instance.status()["applied"]["commit"] == applied)


def test_t1_machines_are_served_while_the_evaluation_of_a_commit_does_not_end(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        (evaluator,) = list_evaluators(instance.process.pid)
        os.kill(evaluator, signal.SIGSTOP)
        commit = repository.push({"more.yaml": server("web02", "role: web")})
        eventually(lambda: [each for each in instance.events if each.get("commit") == commit])
        assert instance.get(ENTRY, timeout=PATIENCE_S).status_code == 200
        assert not is_attempted(instance, commit)
        os.kill(evaluator, signal.SIGCONT)
        eventually(partial(is_attempted, instance, commit))


def push_blobs(repository: Repository, mebibytes: int, count: int) -> str:
    """Commit files of so many MiB each, of which a few hundred KB are sent, as any client with push access can."""
    objects, ends = repository.bare / "objects", (bytes([number]) * (1 << 20) for number in range(count))
    names = [store_zeros(objects, "blob", mebibytes - 1, end=end) for end in ends]
    entries = [f"100644 blob {name}\tbig{number}.yaml" for number, name in enumerate(names)]
    kept = git(repository.work, "ls-tree", "HEAD").splitlines()
    made = subprocess.run(
        ["git", "mktree"],
        cwd=repository.bare,
        input="\n".join((*kept, *entries)),
        text=True,
        capture_output=True,
        check=True,
    )
    parent = git(repository.bare, "rev-parse", "main")
    commit = git(repository.bare, "commit-tree", "-p", parent, "-m", "Large", made.stdout.strip())
    git(repository.bare, "update-ref", "refs/heads/main", commit)
    return commit


def test_t4_a_commit_of_gigabytes_in_a_repository_on_this_machine_fills_no_memory(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        eventually(lambda: is_attempted(instance, first))
        before = read_peak_mib(instance.process.pid)
        hostile = push_blobs(repository, mebibytes=96, count=2)
        eventually(lambda: is_attempted(instance, hostile))
        found = instance.status()["attempted"]["problems"]
        assert [(each["path"], each["code"]) for each in found] == [
            (f"big{number}.yaml", "GB1004") for number in range(2)
        ]
        assert "the file is 100,663,296 bytes long; the limit is 16,777,216" in found[0]["message"]
        assert read_peak_mib(instance.process.pid) - before < 72
        git(repository.work, "fetch", "-q", "origin")
        git(repository.work, "reset", "-q", "--soft", "origin/main")
        later = repository.push({"more.yaml": server("web02", "role: web")})
        eventually(lambda: instance.status()["applied"]["commit"] == later)
        assert read_peak_mib(instance.process.pid) - before < 72
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        eventually(lambda: instance.status()["applied"]["commit"] == later)
        assert not [event for event in instance.events if event["type"] in ("CloneRestored", "FetchFailed")]
