"""An instance that resumes from a checkpoint ends in the same state as one that starts without it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from gitboot.controller import checkpoint, current_plans
from gitboot.controller.checkpoint import DamageSearch
from gitboot.controller.instance import assembly
from gitboot.controller.instance import state_directory as state
from gitboot.controller.instance.state_directory import CACHE
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.protocol import Commit, EvaluationResult
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import read_or_create_identity
from gitboot.fleet.revision import Revision
from gitboot.git.clone import Source
from gitboot.ledger import instance_tables
from gitboot.model.scalars import SystemUuid
from gitboot.publish import publisher
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.manifest import MANIFEST, compute_digest
from gitboot.publish.tree_reader import (
    ALL,
    LOCK,
    RESERVES,
    Inventory,
    Tree,
    find_changed_servers,
    find_damage,
)
from gitboot.render.endpoint_files import shard_path
from gitboot.render.paths import LIST_TIMESTAMP, IdentityKind, format_identity
from gitboot.render.paths import ON_PAGE as ON_PAGE
from gitboot.resolve.provisioning_record import Record, make_record_fields, shard_name
from tests.helpers.cases import count_examples
from tests.helpers.fleets import at, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import InProcessEvaluator, Parts, record_fetch, run_in_process
from tests.helpers.running_instance import Repository

STATUS_FILES = (*ON_PAGE, *(script for _, script in ON_PAGE.values()))  # the status of the instance
NAMES = tuple(f"web{number:02}" for number in range(6))
SPARE_MAC = "52:54:00:00:00:99"
NIGHT = ("20T22:00 21T04:00", "20T12:30 20T13:00", "21T01:00 21T02:00")


@pytest.fixture(autouse=True)
def always_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store checkpoints of small fleets too, and after each change."""
    monkeypatch.setattr(checkpoint, "MIN_SERVERS", 0)
    monkeypatch.setattr(checkpoint, "_INTERVAL", timedelta())
    monkeypatch.setattr(assembly, "DamageSearch", PatientSearch)


class PatientSearch(DamageSearch):
    """A check that returns its findings when all files were read."""

    def take_damaged(self) -> frozenset[str]:
        if self._thread.is_alive:
            self.release()
            self._thread.join()
        return super().take_damaged()


def documents(draw: random.Random) -> str:
    settings = draw.choice(
        (
            "baseURL: 'http://boot.test'",
            "baseURL: 'http://boot.test', outputs: [ipxe]",
            "baseURL: 'http://boot.test', sites: [{name: a, baseURL: 'http://a.test', select: {servers: [web02]}}]",
            "baseURL: 'http://boot.test', stopped: moving house",
        )
    )
    specs = {
        name: draw.choice(("", "", "provision: 1", "provision: 2", "kernelArguments: [quiet]", "gone"))
        for name in NAMES
    }
    found = [
        fleet(settings),
        *(server(name, "role: web", spec) for name, spec in specs.items() if spec != "gone"),
        *(image("flatcar-1"), image("memtest-7", "writesDisk: false")),
        *(profile("web", "flatcar-1"), profile("repair", "memtest-7")),
        policy("web", often=draw.choice(("Once", "Always", "Never"))),
    ]
    if draw.random() < 0.5:
        found.append(maintenance("repair", draw.choice(NIGHT), select="{servers: [web01, web03]}"))
    return "---\n".join(found)


def item_of(name: str, provision: int | None) -> dict[str, object]:
    """Return the operator request for a server."""
    record = Record(provision=provision, image="flatcar-1", pool="web", evidence="Operator")
    return {"uuid": make_uuid(name), "server": name, **make_record_fields(record)}


UNKNOWN = re.compile(rb'"answered":[0-9]+|"ops/pages/data/server/[^}]*\}')


class Killed(BaseException):
    """Skip everything that is left to do."""


class Twin:
    """One of two instances with the same inputs."""

    def __init__(self, folder: Path, repository: Path, *, keeps: bool) -> None:
        self.folder, self._repository, self._keeps = folder, repository, keeps
        self._open = ExitStack()
        self.parts: Parts

    def begin(self, now: datetime, *, initial: str | None = None) -> None:
        if not self._keeps:
            (self.folder / "state" / CACHE).unlink(missing_ok=True)
        process = run_in_process(self.folder, self._repository, initial=initial, clock=lambda: now)
        self.parts = self._open.enter_context(process)
        self.reconcile_until_checked(now)

    def reconcile_until_checked(self, now: datetime) -> None:
        """Reconcile until all published files were checked and wrong ones were repaired."""
        self.parts.source.fetch()
        for _ in range(2):
            self.parts.reconciler.reconcile(now, fetched=LastFetch(), wait=True)
        self.parts.reconciler.reconcile(now, wait=True)

    def end(self) -> None:
        self._open.close()

    def kill_publication(self, now: datetime, after: int) -> None:
        """It ends at a change that it makes to its tree, after so many."""
        self.parts.source.fetch()
        left = count(after, -1)

        def ends(act: Callable[..., Any]) -> Callable[..., None]:
            def acted(*args: Any, **kwargs: Any) -> None:
                if next(left) <= 0:
                    raise Killed
                act(*args, **kwargs)

            return acted

        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            for act in (DurableDirectory.stage, DurableDirectory.place, DurableDirectory.remove, DurableDirectory.sync):
                patch.setattr(DurableDirectory, act.__name__, ends(act))
            self.parts.reconciler.reconcile(now, fetched=LastFetch(), wait=True)
        self.end()

    def tree(self) -> dict[str, tuple[bytes, float]]:
        """Return each file with its date, without the numbers of served offers and the digests of files with them.

        The signed list names the digest of the manifest, which has the digests of the records. Only this digest of the
        own manifest is omitted.
        """
        output = self.folder / "output"
        found = (path for path in output.rglob("*") if path.is_file())
        named = ((str(path.relative_to(output)), path) for path in found)
        tree = {
            name: (UNKNOWN.sub(b"", path.read_bytes()), path.stat().st_mtime)
            for name, path in named
            if name not in (*STATUS_FILES, LOCK, *RESERVES) and "manifest" not in name
        }
        if LIST_TIMESTAMP in tree and (output / MANIFEST).exists():
            content, date = tree[LIST_TIMESTAMP]
            tree[LIST_TIMESTAMP] = content.replace(compute_digest((output / MANIFEST).read_bytes()).encode(), b""), date
        return tree

    def status(self) -> dict[str, Any]:
        """Return the status of the instance, from any of its places."""
        facts = json.dumps(self.parts.reconciler.status.facts(), default=str)
        return cast(dict[str, Any], json.loads(facts.replace(str(self.folder), "")))

    def ledger(self) -> list[object]:
        """Return the whole ledger without heartbeat times and without the times and sizes of publications.

        An instance without a checkpoint publishes everything again: an offer gets the number of the newest decision
        then, and so does its response. An instance with a checkpoint keeps the earlier number.
        """
        with sqlite3.connect(self.folder / "state" / "ledger.sqlite") as ledger:
            ledger.execute("UPDATE offers SET at = '', facts = json_remove(facts, '$.number')")
            ledger.execute("UPDATE versions SET number = 0")
            ledger.execute("UPDATE records SET answered = 0")
            ledger.execute("DELETE FROM facts WHERE name IN ('changes', 'heartbeat', 'output', 'spool')")
            rows = ledger.execute("SELECT at, type, message FROM events WHERE type <> 'Published' ORDER BY id")
            happened: list[object] = [(at, type, message.replace(str(self.folder), "")) for at, type, message in rows]
            ledger.execute("DELETE FROM events")
            dumped = (re.sub(r"-[0-9a-f]{16}\.jsonl", "", line) for line in ledger.iterdump())  # by chance
            found = [*sorted(dumped), *happened]
            ledger.rollback()
        return found


class Twins:
    """Two instances that were one; the second one starts without a checkpoint each time."""

    def __init__(self, folder: Path, draw: random.Random, *, cut: int = 0) -> None:
        self.cut = (
            cut  # how often each of them is cut short while it publishes, for each time that anything else happens
        )
        self.repository, self._draw, self.now = Repository.create(folder / "git"), draw, at("20T12:00")
        bare = self.repository.bare
        self.one = Twin(folder / "one", bare, keeps=True)
        self.other = Twin(folder / "other", bare, keeps=False)
        self.commit()
        self.one.begin(self.now, initial=draw.choice(("fresh", "adopt")))
        self.one.parts.spool.mkdir(exist_ok=True)
        read_or_create_identity(self.one.parts.spool)  # the same for both
        self.one.end()
        shutil.copytree(self.one.folder, self.other.folder, symlinks=True)
        self._begin()

    @property
    def both(self) -> tuple[Twin, Twin]:
        return self.one, self.other

    def _begin(self) -> None:
        for each in self.both:
            each.begin(self.now)

    def end(self) -> None:
        for each in self.both:
            each.end()

    def take_step(self) -> str:
        """Let one thing happen, and return its description."""
        usual = (
            self.commit,
            self.fetch,
            self.pass_time,
            self.request_records,
            self.restart,
            self.restart,
            self.lose_file,
        )
        what = self._draw.choice((*usual, *(self.cut * len(usual) * (self.kill_publication,))))
        what()
        for each in self.both:
            each.reconcile_until_checked(self.now)
        return str(what.__name__)

    def compare(self) -> None:
        one, other = (each.tree() for each in self.both)
        assert one == other
        assert {each for twin in self.both for each in find_damage(twin.folder / "output")} <= {None}
        assert self.one.ledger() == self.other.ledger()
        said = [each.status() for each in self.both]
        assert {**said[0], "plannedAt": ""} == {**said[1], "plannedAt": ""}  # when something was published last

    def commit(self) -> None:
        self.push(documents(self._draw))

    def push(self, documents: str) -> None:
        """Publish, perhaps interrupted, with a page and with one MAC address that two servers have in turn."""
        self.pushed = documents
        if self.cut and self._draw.random() < 0.5:
            documents = documents.replace("outputs: [ipxe]", "outputs: [ipxe, pages]")
        if self.cut and self._draw.random() < 0.5:
            documents = documents.replace(make_mac("web04"), SPARE_MAC).replace(make_mac("web05"), make_mac("web04"))
        self.repository.push({"all.yaml": documents})

    def fetch(self) -> None:
        name = self._draw.choice(NAMES)
        state = self.one.parts.reconciler.state.plans.servers.get(name)
        if state is None or state.plan is None:
            return
        entry = f"boot/v1/boot/{state.decision.macs[0]}/boot.ipxe"
        for each in self.both:
            record_fetch(
                each.parts.spool,
                Observation(server=name, path=entry, digest=state.plan.digest, client="10.0.0.7", at=self.now),
            )

    def pass_time(self) -> None:
        self.now += timedelta(minutes=self._draw.choice((1, 10, 45, 240)))

    def request_records(self) -> None:
        name = self._draw.choice(NAMES)
        item = item_of(name, self._draw.choice((1, None)))
        for each in self.both:
            instance_tables.add_request(each.parts.ledger, self.now, "ada", "records", {"items": [item]})

    def restart(self) -> None:
        """Restart, perhaps with a commit, a fetch or an hour in between."""
        self.end()
        if self._draw.random() < 0.4:
            self.commit()
        if self._draw.random() < 0.3:
            self.pass_time()
        self._begin()

    def kill_publication(self) -> None:
        """Interrupt a publication once or twice, perhaps after other changes, and perhaps revert the commit."""
        for _ in range(self._draw.randrange(1, 3)):
            before = self.pushed
            self.commit()
            if self._draw.random() < 0.3:
                self.pass_time()
            after = self._draw.randrange(1, 120)
            for each in self.both:
                each.kill_publication(self.now, after)
            if self._draw.random() < 0.6:
                self.push(before if self._draw.random() < 0.6 else documents(self._draw))
            self._begin()

    def lose_file(self) -> None:
        """Lose or damage a file while no instance runs."""
        paths = sorted(self.one.tree())
        self.end()
        path = self._draw.choice(paths or ["boot/boot.ipxe"])
        is_lost = self._draw.random() < 0.5
        for each in self.both:
            file = each.folder / "output" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)  # a file with other hard links stays
            if not is_lost:
                file.write_bytes(b"{}")
                os.utime(file, (self.now.timestamp(),) * 2)
        self._begin()


# A signed list of records with another number; a file of another date; a commit that takes boots back and came before a
# start; a machine that left and came back since the checkpoint.
FOUND = (5, 32, 39, 97)


@pytest.mark.parametrize("seed", sorted({*range(count_examples(5) - 2), *FOUND}))
def test_a_restart_from_a_checkpoint_ends_in_the_same_state_as_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Often it is of some commits, fetches and records before."""
    monkeypatch.setattr(checkpoint, "_INTERVAL", timedelta(minutes=seed % 3 * 30))
    twins, happened = Twins(tmp_path, random.Random(seed)), list[str]()
    try:
        for _ in range(6):
            happened.append(twins.take_step())
            twins.compare()
    finally:
        twins.end()


@pytest.mark.parametrize("seed", range(count_examples(5)))
def test_a_start_after_an_interrupted_publication_ends_like_one_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(checkpoint, "_INTERVAL", timedelta(minutes=seed % 3 * 30))
    resumed = list[bool]()

    def noted(tree: Tree, before: Inventory) -> dict[str, tuple[str, ...]] | None:
        found = find_changed_servers(tree, before)
        if tree.pending:
            resumed.append(found is not None)
        return found

    monkeypatch.setattr(publisher, "find_changed_servers", noted)
    twins = Twins(tmp_path, random.Random(seed), cut=1)
    try:
        for _ in range(4):
            twins.take_step()
            twins.compare()
    finally:
        twins.end()
    assert all(resumed)


FLEET = "---\n".join(
    (
        fleet(),
        *(server(name, "role: web", "provision: 1") for name in NAMES),
        *(image("flatcar-1"), profile("web", "flatcar-1"), policy("web", often="Once")),
    )
)
NOON = at("20T12:00")


@pytest.fixture
def left(tmp_path: Path) -> tuple[Path, Repository]:
    """The state of an instance that has published a fleet with known installations."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"all.yaml": FLEET})
    with run_in_process(tmp_path, repository.bare, initial="fresh") as parts:
        reconcile(parts)
    assert (tmp_path / "state" / CACHE).exists()
    return tmp_path, repository


def reconcile(parts: Parts) -> None:
    parts.source.fetch()
    parts.reconciler.reconcile(NOON, fetched=LastFetch(), wait=True)


def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Record which commits are evaluated from now on, and against which base."""
    found: list[tuple[str, str | None]] = []
    evaluate = InProcessEvaluator.evaluate

    def noted(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        found.append((revision, base.revision if base is not None else None))
        return evaluate(self, revision, base)

    monkeypatch.setattr(InProcessEvaluator, "evaluate", noted)
    return found


def read_times(folder: Path) -> dict[Path, int]:
    found = (
        path for path in (folder / "output").rglob("*") if path.is_file() and path.name not in ("status.json", "lock")
    )
    return {path: path.stat().st_mtime_ns for path in found}


def test_a_restart_without_changes_reads_no_commit_plans_no_server_and_writes_nothing(
    left: tuple[Path, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = left
    before, asked = read_times(folder), evaluations(monkeypatch)
    monkeypatch.setattr(current_plans, "plan_server", None)
    with run_in_process(folder, left[1].bare) as parts:
        reconcile(parts)
        status = parts.reconciler.status
        assert (status.applied, status.phases) == (status.accepted, {"Network": len(NAMES)})
        assert (asked, parts.events[-1].type) == ([], "Accepted")
    assert read_times(folder) == before


def test_a_commit_after_the_checkpoint_is_compared_with_it(
    left: tuple[Path, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance was killed before it wrote the next checkpoint."""
    folder, repository = left
    kept = (folder / "state" / CACHE).read_bytes()
    first = repository.push({"README.md": "one"})
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
    repository.push({"all.yaml": FLEET.replace("role: web", "role: web, rack: b", 1)})
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        second = parts.reconciler.status.applied
    (folder / "state" / CACHE).write_bytes(kept)
    asked = evaluations(monkeypatch)
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        assert parts.reconciler.status.applied == second != first
    ((revision, base),) = asked
    assert (revision, base is not None and base != first) == (second, True)


def test_a_start_does_not_spin_for_a_window_that_began_while_a_commit_is_evaluated(
    left: tuple[Path, Repository],
) -> None:
    """Else it would reconcile again and again, and take from the evaluation what that needs."""
    folder, repository = left
    night = maintenance("repair", NIGHT[0], select="{servers: [web01]}")
    repair = (image("memtest-7", "writesDisk: false"), profile("repair", "memtest-7"), night)
    repository.push({"night.yaml": "---\n".join(repair)})
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        assert parts.reconciler.status.next_transition == at("20T22:00")
    kept = (folder / "state" / CACHE).read_bytes()
    repository.push({"README.md": "one"})
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
    (folder / "state" / CACHE).write_bytes(kept)
    with run_in_process(folder, repository.bare, evaluates=False) as parts:
        parts.source.fetch()
        due = parts.reconciler.reconcile(at("20T23:00"), fetched=LastFetch())
        assert due is not None and parts.reconciler.reconcile(due) == at("21T04:00"), "when the window ends in files"
        assert parts.reconciler.status.accepted is None
    with run_in_process(folder, repository.bare) as parts:
        parts.source.fetch()
        assert parts.reconciler.reconcile(at("20T23:00"), fetched=LastFetch()) == at("21T04:00")


def test_records_that_are_newer_than_the_checkpoint_count(left: tuple[Path, Repository]) -> None:
    """A server that was provisioned after that is not offered its installer once more, not for a moment."""
    folder, repository = left
    kept = (folder / "state" / CACHE).read_bytes()
    item = item_of("web00", 1)
    with run_in_process(folder, repository.bare) as parts:
        instance_tables.add_request(parts.ledger, NOON, "ada", "records", {"items": [item]})
        reconcile(parts)
        assert parts.reconciler.status.phases == {"Disk": 1, "Network": len(NAMES) - 1}
    before = read_times(folder)
    (folder / "state" / CACHE).write_bytes(kept)
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        assert parts.reconciler.status.phases == {"Disk": 1, "Network": len(NAMES) - 1}
    assert read_times(folder) == before


def test_an_output_tree_that_is_older_than_the_checkpoint_is_updated(left: tuple[Path, Repository]) -> None:
    folder, repository = left
    shutil.copytree(folder / "output", folder / "older", symlinks=True)
    repository.push({"all.yaml": FLEET.replace("provision: 1", "provision: 1, kernelArguments: [quiet]", 1)})
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        newest = parts.reconciler.status.applied
    entry = folder / "output" / "boot" / "v1" / "boot" / make_mac("web00").replace(":", "-") / "boot.ipxe"
    assert "quiet" in (content := entry.read_text())
    shutil.rmtree(folder / "output")
    (folder / "older").rename(folder / "output")
    assert "quiet" not in entry.read_text()
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        assert (parts.reconciler.status.applied, entry.read_text()) == (newest, content)


@pytest.mark.parametrize("harm", ["of a commit that is gone", "of another ledger", "in doubt"])
def test_an_unusable_checkpoint_is_ignored(
    left: tuple[Path, Repository], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    folder, repository = left
    with run_in_process(folder, repository.bare) as parts:
        assert parts.reconciler.state.plans.commit is not None
    asked = evaluations(monkeypatch)
    if harm == "of a commit that is gone":
        answers = iter([True, False])  # the accepted one is there
        monkeypatch.setattr(Source, "has", lambda *_: next(answers, True))
    if harm == "of another ledger":
        (folder / "state" / "token-keys").unlink()
    if harm == "in doubt":
        monkeypatch.setattr(LedgerSnapshot, "is_trusted", False)
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        assert "CacheUnusable" not in {event.type for event in parts.events}
    assert [base for _, base in asked] == [None]


# The cache, which anyone may delete or damage


def sql(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        found: list[tuple[Any, ...]] = connection.execute(statement).fetchall()
        return found


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "garbage": lambda path: path.write_bytes(b"garbage " * 4096),
    "overwritten with ones": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "without entries": lambda path: sql(path, "DELETE FROM entry"),
    "with damaged entries": lambda path: sql(path, "UPDATE entry SET value = zeroblob(length(value))"),
    "a directory": make_directory,
}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in read_times(folder)}


def is_resumed(folder: Path, repository: Repository) -> bool:
    """Start, reconcile, and return whether the start used a checkpoint."""
    with run_in_process(folder, repository.bare) as parts:
        commit = parts.reconciler.state.plans.commit
        reconcile(parts)
        assert parts.reconciler.status.phases == {"Network": len(NAMES)}
    return commit is not None


@pytest.mark.parametrize("harm", HARMS)
def test_a_cache_that_is_damaged_at_any_time_changes_no_file_and_has_a_checkpoint_after_the_next_reconcile(
    left: tuple[Path, Repository], harm: str
) -> None:
    """Damaged before a start, and while an instance runs."""
    folder, repository = left
    path, before = folder / "state" / CACHE, contents(folder)
    HARMS[harm](path)
    assert not is_resumed(folder, repository)
    assert contents(folder) == before
    assert is_resumed(folder, repository) is path.is_file()
    assert contents(folder) == before
    if path.is_dir():
        path.rmdir()
        assert not is_resumed(folder, repository)
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        HARMS[harm](path)
        reconcile(parts)
        repository.push({"all.yaml": FLEET.replace("role: web", "role: web, rack: b", 1)})
        reconcile(parts)
        before, applied = contents(folder), parts.reconciler.status.applied
    assert is_resumed(folder, repository) is path.is_file()
    assert contents(folder) == before
    with run_in_process(folder, repository.bare) as parts:
        reconcile(parts)
        assert parts.reconciler.status.applied == applied


def test_a_checkpoint_that_lacks_any_entry_does_not_count(left: tuple[Path, Repository]) -> None:
    folder, repository = left
    path, before = folder / "state" / CACHE, contents(folder)
    rows = [row for (row,) in sql(path, "SELECT rowid FROM entry")]
    assert len(rows) >= 10
    whole, warned = path.read_bytes(), 0
    for row in rows:
        path.write_bytes(whole)
        sql(path, f"DELETE FROM entry WHERE rowid = {row}")
        with run_in_process(folder, repository.bare) as parts:
            assert parts.reconciler.state.plans.commit is None
            reconcile(parts)
            warned += "CacheUnusable" in {event.type for event in parts.events}
        assert contents(folder) == before
        assert is_resumed(folder, repository)
    assert warned == len(rows) - 1  # a cache without the manifest looks like a new one


def test_unchanged_chunks_are_not_written_again(left: tuple[Path, Repository]) -> None:
    folder, repository = left
    path = folder / "state" / CACHE
    before = set(sql(path, "SELECT id, rowid FROM entry"))
    repository.push({"all.yaml": FLEET.replace("role: web", "role: web, rack: b", 1)})
    assert is_resumed(folder, repository)
    after = set(sql(path, "SELECT id, rowid FROM entry"))
    assert len(before & after) >= 4
    assert len(after) <= len(before) + 1, "chunks of the last checkpoint are deleted"
    assert is_resumed(folder, repository)


def test_a_checkpoint_is_used_again_after_its_token_keys_are_restored(left: tuple[Path, Repository]) -> None:
    folder, repository = left
    keys = folder / "state" / "token-keys"
    keys.rename(folder / "token-keys")
    assert not is_resumed(folder, repository)
    repository.push({"all.yaml": FLEET.replace("role: web", "role: web, rack: b", 1)})
    assert is_resumed(folder, repository), "chunks of the checkpoint before are deleted"
    (folder / "token-keys").replace(keys)
    assert is_resumed(folder, repository)


def test_a_checkpoint_that_does_not_fit_in_the_cache_is_omitted(
    left: tuple[Path, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, repository = left
    path = folder / "state" / CACHE
    path.unlink()
    monkeypatch.setattr(state, "CACHE_BYTES", 4096)
    assert not is_resumed(folder, repository)
    assert sql(path, "SELECT rowid FROM entry") == []
    assert not is_resumed(folder, repository)


def test_a_start_deletes_cache_files_of_an_earlier_version(left: tuple[Path, Repository]) -> None:
    folder, repository = left
    names = {"planned.snapshot", "evaluated.snapshot"}
    for name in names:
        (folder / "state" / name).write_bytes(b"of an earlier version")
    assert is_resumed(folder, repository)
    assert not names & {path.name for path in (folder / "state").iterdir()}


HARMED = {
    f"boot/v1/boot/{make_mac('web00').replace(':', '-')}/boot.ipxe": "web00",
    "ops/servers/web00.json": "web00",
    shard_path(format_identity(IdentityKind.MAC, make_mac("web00").replace(":", "-"))): "web00",
    f"ops/records/{shard_name(SystemUuid(make_uuid('web00')))}.json": ALL,
}


@pytest.mark.parametrize(("path", "found"), HARMED.items())
def test_a_changed_or_missing_file_of_the_output_is_found_and_repaired(
    left: tuple[Path, Repository], path: str, found: str
) -> None:
    folder, repository = left
    output = folder / "output"
    content = (output / path).read_bytes()
    for harm in (b"{}", b"no JSON", None):
        (output / path).unlink()
        if harm is not None:
            (output / path).write_bytes(harm)
        is_unreadable = "/index/" in path and harm == b"no JSON"
        assert {each for each in find_damage(output) if each is not None} == {ALL if is_unreadable else found}
        with run_in_process(folder, repository.bare) as parts:
            reconcile(parts)
            assert (output / path).read_bytes() == content
        assert {each for each in find_damage(output) if each is not None} == set()
