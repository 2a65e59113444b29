"""Reconciles one by one, with a clock of the test and a real Git repository: what each fault leaves published."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitboot.cli.main import cli
from gitboot.controller.instance.assembly import Dependencies, build_instance
from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.publication import render_shared_files
from gitboot.endpoint.boot_responses import BootResponses
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import LedgerError, OperatorError, PublishError, TemporaryError
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.one_time_boots import ServedBoots
from gitboot.fetchlog.spool import count_deletions, read_or_create_identity
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.git.clone import CloneReader, Source
from gitboot.git.remote import Remote
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.store import Transaction
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.publisher import OutputDirectory, PublicationResult
from gitboot.publish.tree_reader import read_tree_records
from gitboot.publish.window_ends import EndedWindows
from gitboot.render.endpoint_files import ServingTerms
from gitboot.render.paths import Files, is_content
from gitboot.render.server_files import ServerState
from gitboot.review.guards import Limits
from gitboot.status.conditions import Event, fill_state
from gitboot.system_clock import read_uptime
from tests.helpers.fleets import SEED, at, fleet, image, maintenance, make_mac, make_uuid, name_ledger, policy, server
from tests.helpers.instance_in_process import UNGUARDED, InProcessEvaluator, Unsynced, record_fetch
from tests.helpers.published_trees import verify_tree
from tests.helpers.running_instance import Repository, git
from tests.scenarios.test_run import images_in

ENTRY = f"v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
BEFORE, OPEN, AFTER = at("20T21:00"), at("20T23:00"), at("21T04:00")
REPAIR = maintenance("repair", "20T22:00 21T04:00")


def fleet_files(*documents: str) -> dict[str, str]:
    return {f"{number:02}.yaml": text for number, text in enumerate((*SEED, *documents))}


class BrittleDirectory(OutputDirectory):
    """A directory that cannot be written while it is full."""

    full, calls = False, 0
    shared: Files | None = None  # the shared files of the last publication

    def publish(self, servers: Mapping[str, Files | None], shared: Files | None, **rest: Any) -> PublicationResult:
        self.calls += 1
        self.shared = shared
        if self.full:
            raise PublishError("no space left on device")
        return super().publish(servers, shared, **rest)

    def end_windows(self, at: datetime) -> EndedWindows:
        if self.full:
            raise PublishError("no space left on device")
        return super().end_windows(at)


class CountingLedger(Unsynced):
    """A ledger that counts what is written to it."""

    written = 0

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        self.written += 1
        with super().writing() as tx:
            yield tx


class CountingReader(CloneReader):
    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.paths: list[str] = []
        self._path_of: dict[BlobId, str] = {}

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        snapshot = super().snapshot(revision, previous)
        self._path_of |= {blob: path for path, blob in snapshot.blobs.items()}
        return snapshot

    def read(self, blob: BlobId) -> bytes:
        self.paths.append(self._path_of[blob])
        return super().read(blob)


class Instance:
    """The parts of `gitboot run` in this process, without its loop."""

    def __init__(self, folder: Path, *, allow_rewind: bool = False) -> None:
        (folder / "state").mkdir(exist_ok=True)
        self.output, self.state = folder / "output", folder / "state"
        self.source = Source(Remote(url=str(folder / "git" / "fleet.git")), self.state)
        self.reader = CountingReader(self.state)
        self.events: list[Event] = []
        self._opened = ExitStack()
        self.ledger = self._opened.enter_context(CountingLedger.open(self.state / "ledger.sqlite"))
        with self.ledger.writing() as tx:
            instance_tables.write_facts(tx, initialised="fresh")
        target = BrittleDirectory.open(self.output, ledger=instance_tables.read_facts(self.ledger).identity)
        assert isinstance(target, BrittleDirectory)
        self._opened.enter_context(target)
        self.target = self.directory = target
        self.spool = folder / "spool"
        settings = Settings(
            spool=self.spool,
            output=self.output,
            state=self.state,
            git=GitSettings(repository=""),
            limits=Limits(**UNGUARDED, allow_rewind=allow_rewind),
        )
        dependencies = Dependencies(
            store=self.ledger,
            source=self.source,
            evaluation=InProcessEvaluator(self.reader),
            target=self.target,
            clock=lambda: self.now,
            tell=self.events.append,
        )
        self.instance = self._opened.enter_context(build_instance(settings, dependencies))
        self.reconciler = self.instance.reconciler

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def reconcile(self, now: datetime, *, fetch: bool = True) -> datetime | None:
        self.now, fetched = now, None
        if fetch:
            fetched = LastFetch()
            try:
                self.source.fetch()
            except (TemporaryError, OperatorError) as failure:
                fetched = LastFetch(reason=type(failure).__name__, message=str(failure), failed=True)
        return self.reconciler.reconcile(now, fetched=fetched, wait=True)

    @property
    def servers(self) -> Mapping[str, ServerState]:
        return self.reconciler.state.plans.servers

    def boots(self, now: datetime, path: str = ENTRY) -> str:
        """The image that an endpoint over the tree has web01 boot."""
        answer = BootResponses(PublishedTree(self.output, lambda: now)).find(f"/{path}", lambda: None, now)
        return "nothing" if answer is None else images_in(bytes(answer.reply.body).decode())

    @property
    def published(self) -> str:
        """Return the image that the published boot script boots."""
        return images_in((self.output / "boot" / ENTRY).read_text())

    def condition(self, type: str) -> tuple[bool, str]:
        return next((each.status, each.reason) for each in self.reconciler.status.conditions if each.type == type)

    def remedy(self, type: str) -> str | None:
        return next(each.remedy for each in self.reconciler.status.conditions if each.type == type)

    def told(self, *types: str) -> list[str]:
        return [event.type for event in self.events if not types or event.type in types]


@pytest.fixture(scope="module")
def first_commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "git"
    made = Repository.create(folder)
    git(made.work, "remote", "set-url", "origin", f"../{made.bare.name}")
    made.push(fleet_files(REPAIR))
    return folder


@pytest.fixture
def repository(tmp_path: Path, first_commit: Path) -> Repository:
    folder = shutil.copytree(first_commit, tmp_path / "git")
    return Repository(bare=folder / "fleet.git", work=folder / "work")


@pytest.fixture
def instance(tmp_path: Path, repository: Repository) -> Iterator[Instance]:
    with Instance(tmp_path) as instance:
        yield instance


# The straight line


def test_a_commit_becomes_an_index_an_output_tree_and_a_status_and_one_that_changes_no_server_is_applied(
    repository: Repository, instance: Instance
) -> None:
    due = instance.reconcile(BEFORE)
    commit = git(repository.work, "rev-parse", "HEAD")
    status = instance.reconciler.status
    assert (status.attempted, status.applied, status.problems) == (commit, commit, ())
    assert (status.planned_at, status.next_transition, due) == (BEFORE, at("20T22:00"), at("20T22:00"))
    assert status.phases == {"Network": 1}
    assert instance.boots(BEFORE) == instance.published == "flatcar-1"
    for type in ("CommitAccepted", "Published", "RecordsVerified", "SourceReady"):
        assert status.condition(type), type
    assert instance.told() == ["Accepted", "Published"]
    commit = repository.push({"note.txt": "nothing that boots"})
    instance.reconcile(BEFORE)
    assert instance.reconciler.status.applied == commit
    assert instance.target.origin is not None and instance.target.origin.commit == commit


def test_a_reconcile_without_changes_does_nothing(instance: Instance) -> None:
    for _ in range(2):
        instance.reconcile(BEFORE)
    events = len(instance.events)
    writes, calls = instance.ledger.written, instance.target.calls
    tree = {path: path.stat().st_mtime_ns for path in instance.output.rglob("*")}
    instance.reader.paths.clear()
    for minute in range(1, 4):
        assert instance.reconcile(BEFORE.replace(minute=minute)) == at("20T22:00")
    assert len(instance.events) == events
    assert (instance.ledger.written, instance.target.calls) == (writes, calls)
    assert {path: path.stat().st_mtime_ns for path in instance.output.rglob("*")} == tree
    assert instance.reader.paths == []


def test_a_commit_that_changes_one_server_reads_and_plans_no_other(repository: Repository, instance: Instance) -> None:
    more = {f"servers/web{number:02}.yaml": server(f"web{number:02}", "role: web") for number in range(2, 12)}
    repository.push(more)
    instance.reconcile(BEFORE)
    states = dict(instance.servers)
    instance.reader.paths.clear()
    repository.push({"servers/web07.yaml": server("web07", "role: web", "kernelArguments: [quiet]")})
    instance.reconcile(BEFORE)
    # A comment in the profile may allow a secret, so gitboot reads the profile of a server that it decides.
    assert [path for path in instance.reader.paths if path.startswith("servers/")] == ["servers/web07.yaml"]
    assert set(instance.reader.paths) - {"servers/web07.yaml"} <= {"04.yaml", "05.yaml"}
    now = instance.servers
    assert [name for name, state in now.items() if state is not states[name]] == ["web07"]
    (event,) = [event for event in instance.events if event.type == "Published"][1:]
    assert "boot/" not in event.message and event.facts["withdrawn"] == 0


def test_no_bmc_gets_a_request_before_the_boot_files_are_published(tmp_path: Path, repository: Repository) -> None:
    bmc = server("web01", "role: web", "provision: 1, bmc: {address: 'http://192.0.2.1', credentials: rack}")
    with Instance(tmp_path) as instance:
        named = name_ledger(instance.ledger.progress[0], SEED[0])
        repository.push({"00.yaml": named, "01.yaml": bmc, "06.yaml": policy("web", often="Once")})
        instance.target.full = True
        instance.reconcile(BEFORE)
        assert not [each for each in instance.reconciler.status.conditions if each.type == "Bmc/web01"]
        instance.target.full = False
        instance.reconcile(BEFORE)
        assert instance.condition("Bmc/web01") == (False, "Stalled")  # it has no credentials: a request was tried


# Bad commits


def test_a_bad_commit_changes_nothing_and_its_problems_are_reported_once_with_a_remedy_that_works_anywhere(
    repository: Repository, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.reconcile(BEFORE)
    good, calls = instance.reconciler.status.applied, instance.target.calls
    bad = repository.push({"tie.yaml": policy("web2", "{matchLabels: {role: web}}")})
    for _ in range(2):
        instance.reconcile(BEFORE)
    status = instance.reconciler.status
    assert (status.attempted, status.applied) == (bad, good)
    assert [problem.code for problem in status.problems] == ["GB2011"]
    assert instance.target.calls == calls
    assert instance.condition("CommitAccepted") == (False, "Invalid")
    assert instance.told("Rejected") == ["Rejected"]
    line = instance.remedy("CommitAccepted")
    assert line is not None
    monkeypatch.chdir(tmp_path)
    words = shlex.split(fill_state(line, str(instance.state)), comments=True)
    result = CliRunner().invoke(cli, words[1:])
    assert (result.exit_code, "GB2011" in result.output) == (3, True), result.output
    assert instance.reconcile(OPEN) == at("21T04:00")  # and windows go on
    assert instance.boots(OPEN) == "memtest-7"
    repository.push({"tie.yaml": policy("web2", "None")})
    instance.reconcile(OPEN)
    assert instance.condition("CommitAccepted") == (True, "Valid")


def test_a_fleet_that_was_never_valid_serves_nothing_until_it_is(tmp_path: Path, repository: Repository) -> None:
    repository.push({"00.yaml": "kind: Fleet\n"})
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
        status = instance.reconciler.status
        assert (status.planned_at, status.applied) == (None, None)
        assert status.problems
        repository.push({"00.yaml": SEED[0]})
        instance.reconcile(BEFORE)
        assert instance.boots(BEFORE) == "flatcar-1"


def test_a_commit_that_a_newer_gitboot_would_not_have_accepted_is_rejected_once(
    tmp_path: Path, repository: Repository
) -> None:
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
        for number in (1, 2):
            bad = Revision(repository.push({"tie.yaml": policy(f"web-{number}", "{matchLabels: {role: web}}")}))
            instance.source.fetch()
            if number == 1:
                instance.source.accept(bad)
                with instance.ledger.writing() as tx:
                    instance_tables.write_facts(tx, accepted=bad)
    with Instance(tmp_path) as instance:
        for _ in range(3):
            instance.reconcile(BEFORE)
        assert instance.told() == ["Rejected", "Rejected"]  # the accepted one, and the one after it
        assert instance.reconciler.status.planned_at is None


# Git is gone


def test_while_git_is_unreachable_windows_still_begin_and_end(repository: Repository, instance: Instance) -> None:
    instance.reconcile(BEFORE)
    applied = instance.reconciler.status.applied
    hidden = repository.bare.rename(repository.bare.with_suffix(".away"))
    for now, expected in ((OPEN, "memtest-7"), (AFTER, "flatcar-1")):
        instance.reconcile(now)
        assert instance.boots(now) == instance.published == expected
        assert instance.condition("SourceReady") == (False, "SourceError")
    assert instance.reconciler.status.applied == applied
    hidden.rename(repository.bare)
    commit = repository.push({"07.yaml": maintenance("repair")})
    instance.reconcile(AFTER)
    assert instance.condition("SourceReady") == (True, "Fetched")
    assert (instance.reconciler.status.applied, instance.boots(AFTER)) == (commit, "memtest-7")


def test_a_restart_while_git_is_unreachable_plans_the_accepted_commit(tmp_path: Path, repository: Repository) -> None:
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
    shutil.rmtree(repository.bare)
    with Instance(tmp_path) as instance:
        instance.reconcile(OPEN)
        assert instance.boots(OPEN) == instance.published == "memtest-7"
        assert instance.condition("SourceReady") == (False, "SourceError")


# The branch is rewound


def rewind(repository: Repository, files: dict[str, str]) -> str:
    git(repository.work, "reset", "-q", "--hard", "HEAD~1")
    for path, text in files.items():
        (repository.work / path).write_text(text)
    git(repository.work, "add", "-A")
    git(repository.work, "commit", "-q", "--allow-empty", "-m", "Rewritten")
    git(repository.work, "push", "-q", "--force", "origin", "main")
    return git(repository.work, "rev-parse", "HEAD")


def test_a_rewound_branch_is_held_until_it_is_allowed(tmp_path: Path, repository: Repository) -> None:
    accepted = repository.push({"note.txt": "what will be lost"})
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
        rewound = rewind(repository, {"07.yaml": maintenance("repair")})
        for _ in range(2):
            instance.reconcile(BEFORE)
        status = instance.reconciler.status
        assert (status.attempted, status.applied) == (rewound, accepted)
        assert instance.boots(BEFORE) == "disk", "the held commit does not offer the installation"
        assert instance.condition("CommitAccepted") == (False, "GuardTripped")
        (event,) = [event for event in instance.events if event.type == "Held"]
        assert "allowRewind" in event.message and "gitboot approve" in event.message
    with Instance(tmp_path) as instance:
        instance.reconcile(OPEN)
        assert (instance.boots(OPEN), instance.condition("CommitAccepted")) == ("memtest-7", (False, "GuardTripped"))
    with Instance(tmp_path, allow_rewind=True) as instance:
        instance.reconcile(BEFORE)
        assert (instance.reconciler.status.applied, instance.boots(BEFORE)) == (rewound, "memtest-7")
        assert instance.condition("CommitAccepted") == (True, "Valid")


def test_a_branch_that_contains_the_accepted_commit_again_is_accepted(
    repository: Repository, instance: Instance
) -> None:
    accepted = repository.push({"note.txt": "lost, and found again"})
    instance.reconcile(BEFORE)
    rewind(repository, {})
    instance.reconcile(BEFORE)
    git(repository.work, "reset", "-q", "--hard", accepted)
    (repository.work / "note.txt").write_text("more")
    git(repository.work, "commit", "-q", "-am", "Next")
    git(repository.work, "push", "-q", "--force", "origin", "main")
    instance.reconcile(BEFORE)
    assert instance.condition("CommitAccepted") == (True, "Valid")
    assert instance.reconciler.status.applied == git(repository.work, "rev-parse", "HEAD")


# gitboot's own clone is damaged


def damage(state: Path, how: str) -> None:
    clone = state / "repository.git"
    if how == "deleted":
        shutil.rmtree(clone)
    elif how == "emptied":
        shutil.rmtree(clone / "objects")
        (clone / "objects").mkdir()
    elif how == "overwritten":
        for path in (*clone.rglob("*.pack"), *clone.glob("objects/??/*")):
            path.chmod(0o644)
            path.write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("whole", []),
        ("deleted", []),  # the fetch before the reconcile brings the missing commits
        ("emptied", ["CloneCorrupt", "CloneRestored"]),
        ("overwritten", []),
    ],
)
def test_a_restart_plans_the_accepted_commit_in_the_first_reconcile_and_replaces_a_damaged_clone(
    tmp_path: Path, repository: Repository, how: str, told: list[str]
) -> None:
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
        good = instance.reconciler.status.applied
        repository.push({"tie.yaml": policy("web2", "{matchLabels: {role: web}}")})  # and the newest one is bad
    damage(tmp_path / "state", how)
    with Instance(tmp_path) as instance:
        instance.reconcile(OPEN)
        assert (instance.reconciler.status.applied, instance.boots(OPEN)) == (good, "memtest-7")
        assert instance.source.accepted() == good
        assert instance.told("CloneCorrupt", "CloneRestored") == told
        instance.reconcile(OPEN)
        assert instance.told("Accepted", "Rejected") == ["Accepted", "Rejected"], "the bad one, once"


def test_a_clone_that_is_damaged_while_an_instance_runs_is_repaired_with_the_next_commit(
    repository: Repository, instance: Instance
) -> None:
    instance.reconcile(BEFORE)
    boots = "flatcar-1"
    for how, next_boots in (("deleted", "memtest-7"), ("emptied", "flatcar-1"), ("overwritten", "memtest-7")):
        damage(instance.state, how)
        for _ in range(2):
            instance.reconcile(BEFORE)
        assert instance.boots(BEFORE) == boots, how
        selects = "All" if next_boots == "memtest-7" else "None"
        commit = repository.push({"07.yaml": maintenance(f"repair-{how}", select=selects, boots="repair")})
        for _ in range(2):
            instance.reconcile(BEFORE)
        assert (instance.reconciler.status.applied, instance.source.accepted()) == (commit, commit), how
        assert instance.boots(BEFORE) == next_boots, how
        boots = next_boots


def test_without_its_clone_and_without_git_a_running_instance_continues(
    repository: Repository, instance: Instance
) -> None:
    instance.reconcile(BEFORE)
    hidden = repository.bare.rename(repository.bare.with_suffix(".away"))
    damage(instance.state, "overwritten")
    instance.reconcile(OPEN)
    assert instance.boots(OPEN) == instance.published == "memtest-7"
    assert instance.condition("SourceReady")[0] is False
    hidden.rename(repository.bare)
    instance.reconcile(OPEN)
    instance.reconcile(OPEN)
    assert instance.condition("SourceReady") == (True, "Fetched")


def test_after_the_clone_is_deleted_a_rewound_branch_is_still_held(repository: Repository, instance: Instance) -> None:
    accepted = repository.push({"note.txt": "what will be lost"})
    instance.reconcile(BEFORE)
    damage(instance.state, "deleted")
    instance.reconcile(BEFORE)
    rewind(repository, {"07.yaml": maintenance("repair")})
    for _ in range(2):
        instance.reconcile(BEFORE)
    assert (instance.reconciler.status.applied, instance.boots(BEFORE)) == (accepted, "disk")
    assert instance.condition("CommitAccepted") == (False, "GuardTripped")


def test_if_the_accepted_commit_is_lost_new_ones_wait_until_an_operator_allows_them(
    tmp_path: Path, repository: Repository
) -> None:
    repository.push({"note.txt": "what will be lost"})
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
    rewound = rewind(repository, {})
    git(repository.bare, "reflog", "expire", "--expire=now", "--all")
    git(repository.bare, "gc", "-q", "--prune=now")
    damage(tmp_path / "state", "deleted")
    with Instance(tmp_path) as instance:
        for _ in range(2):
            instance.reconcile(BEFORE)
        assert instance.reconciler.status.planned_at is None
        assert instance.condition("SourceReady") == (False, "CorruptClone")
        (message,) = [each.message for each in instance.reconciler.status.conditions if each.type == "SourceReady"]
        assert "--allow-rewind" in message
    with Instance(tmp_path, allow_rewind=True) as instance:
        instance.reconcile(BEFORE)
        assert (instance.reconciler.status.applied, instance.boots(BEFORE)) == (rewound, "flatcar-1")


# The clock, the disk


def test_a_clock_that_is_set_back_is_followed(instance: Instance) -> None:
    instance.reconcile(OPEN)
    assert instance.published == "memtest-7"
    assert instance.reconcile(BEFORE) == at("20T22:00")
    assert instance.boots(BEFORE) == instance.published == "flatcar-1"
    assert instance.reconciler.status.planned_at == BEFORE


def test_while_the_disk_is_full_the_endpoint_is_right_and_the_next_reconcile_publishes(instance: Instance) -> None:
    """A window of the same commit starts and later ends while the disk is full."""
    instance.reconcile(BEFORE)
    for now, before, expected in ((OPEN, "flatcar-1", "memtest-7"), (AFTER, "memtest-7", "flatcar-1")):
        instance.target.full = True
        for _ in range(2):
            instance.reconcile(now)
            assert (instance.boots(now), instance.published) == (expected, before)
            assert instance.condition("Published") == (False, "PublishError")
        instance.target.full = False
        instance.reconcile(now)
        assert instance.published == expected
        assert instance.condition("Published") == (True, "Published")
        calls = instance.target.calls
        instance.reconcile(now)
        assert instance.target.calls == calls
    assert instance.told("PublishFailed") == ["PublishFailed"] * 2


def test_a_foreign_file_at_the_path_of_one_server_does_not_keep_the_window_of_another_open(
    repository: Repository, instance: Instance
) -> None:
    instance.reconcile(OPEN)
    foreign = instance.output / "boot/v1/boot" / make_mac("web02").replace(":", "-") / "boot.ipxe"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not a file of gitboot")
    repository.push({"08.yaml": server("web02", "role: web")})
    assert instance.reconcile(OPEN) == AFTER
    assert (instance.condition("Published"), instance.published) == ((False, "PublishError"), "memtest-7")
    instance.reconcile(AFTER)
    assert (instance.condition("Published"), instance.published) == ((False, "PublishError"), "disk")
    assert instance.told("WindowsEnded") == ["WindowsEnded"]
    foreign.unlink()
    assert instance.reconcile(AFTER) is None
    assert (instance.condition("Published"), instance.published) == ((True, "Published"), "flatcar-1")
    assert verify_tree(instance.output) == ()


def test_e38_an_older_copy_of_the_output_tree_is_overwritten(instance: Instance, tmp_path: Path) -> None:
    """OUTPUT is restored from a backup, or another is mounted there, while the instance goes on."""
    instance.reconcile(BEFORE)
    shutil.copytree(instance.output, tmp_path / "older")
    instance.reconcile(OPEN)
    assert instance.published == "memtest-7"
    shutil.rmtree(instance.output)
    (tmp_path / "older").rename(instance.output)
    assert instance.published == "flatcar-1"
    instance.reconcile(OPEN)
    assert instance.published == "memtest-7"
    assert instance.condition("Published") == (True, "Published")
    instance.reconcile(OPEN)
    assert instance.told("TreeReplaced") == ["TreeReplaced"]


def test_a_commit_that_could_not_be_published_is_accepted_and_not_yet_applied(
    repository: Repository, instance: Instance
) -> None:
    instance.reconcile(BEFORE)
    first = instance.reconciler.status.applied
    instance.target.full = True
    second = repository.push({"07.yaml": maintenance("repair")})
    instance.reconcile(BEFORE)
    status = instance.reconciler.status
    assert (status.attempted, status.applied, status.condition("CommitAccepted")) == (second, first, True)
    assert instance.boots(BEFORE) == "flatcar-1", "what stands published is answered"
    instance.target.full = False
    instance.reconcile(BEFORE)
    assert (instance.reconciler.status.applied, instance.published) == (second, "memtest-7")


def test_an_output_tree_of_another_ledger_is_not_touched_and_the_endpoint_serves(
    tmp_path: Path, repository: Repository
) -> None:
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
    (tmp_path / "state" / "ledger.sqlite").unlink()
    with Instance(tmp_path) as instance:
        instance.reconcile(OPEN)
        assert instance.condition("Published") == (False, "ForeignTree")
        remedy = instance.remedy("Published")
        assert remedy is not None and remedy.startswith(f"gitboot records begin {instance.output}/ops/records --state ")
        assert (instance.boots(OPEN), instance.published) == ("memtest-7", "flatcar-1")


# Outputs for the whole fleet


def test_an_output_for_the_whole_fleet_is_rendered_again_only_if_its_input_changed(
    repository: Repository, instance: Instance
) -> None:
    dhcp = "baseURL: 'http://boot.test', outputs: [ipxe, dhcp-dnsmasq]"

    def is_made(minute: int, changed: Mapping[str, str] | None = None) -> bool:
        """Return whether a commit or a fetch causes it to be rendered; in both cases the files are right."""
        if changed is not None:
            repository.push(changed)
        instance.target.shared = None
        instance.spool.mkdir(exist_ok=True)
        instance.reconcile(BEFORE.replace(minute=minute))
        standing = instance.reconciler.state
        assert standing.commit is not None and instance.condition("Published")[0]
        terms = ServingTerms(
            fetch_log_id=read_or_create_identity(instance.spool), loss_count=count_deletions(instance.spool)
        )
        for path, file in render_shared_files(standing.plans, standing.commit, terms).items():
            assert (instance.output / path).read_bytes() == file.content, path
        return instance.target.shared is not None

    assert is_made(0, {"00.yaml": fleet(dhcp)})
    assert is_made(1, {"07.yaml": server("web02", "role: web")})  # its reservation
    assert not is_made(2, {"07.yaml": server("web02", "role: web, rack: a")})
    assert not is_made(3, {"02.yaml": image("flatcar-1", "kernelArguments: [quiet]")})
    assert is_made(4, {"07.yaml": server("web02", "role: web").replace(make_mac("web02"), make_mac("other"))})
    assert is_made(5, {"00.yaml": fleet(dhcp.replace("boot.test", "other.test"))})
    assert not is_made(
        6, {"01.yaml": server("web01", "role: web", "provision: 1"), "06.yaml": policy("web", often="Once")}
    )
    plan = instance.servers["web01"].plan
    assert plan is not None and not is_made(7)
    record_fetch(
        instance.spool,
        Observation(server="web01", path=ENTRY, digest=plan.digest, client="10.0.0.7", at=BEFORE.replace(minute=7)),
    )
    assert is_made(8)  # the fetch log has deleted the fetches that were read
    assert read_tree_records(instance.output) == instance.reconciler.state.snapshot.records
    assert is_made(9, {"07.yaml": ""})
    assert make_uuid("web02") not in read_tree_records(instance.output)


@pytest.mark.parametrize(
    "changed",
    [
        {"00.yaml": fleet("baseURL: 'http://other.test', outputs: [ipxe, dhcp-dnsmasq]")},
        {"00.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe, dhcp-dnsmasq, pages]")},
        {"07.yaml": server("web02", "role: web")},
    ],
    ids=["of the fleet", "a page", "a record"],
)
def test_a_change_that_was_not_published_completely_and_then_reverted_leaves_no_trace(
    repository: Repository, instance: Instance, changed: Mapping[str, str]
) -> None:
    repository.push({"00.yaml": (before := fleet("baseURL: 'http://boot.test', outputs: [ipxe, dhcp-dnsmasq]"))})
    instance.reconcile(BEFORE)

    def stands() -> dict[str, bytes]:
        found = (path for path in instance.output.rglob("*") if path.is_file())
        named = {str(path.relative_to(instance.output)): path.read_bytes() for path in found}
        return {
            path: each
            for path, each in named.items()
            if path.startswith(("boot/", "ops/dhcp/", "ops/records/", "ops/pages/"))
            and not path.startswith("boot/signed/")  # which has instants
        }

    tree = stands()
    repository.push(changed)
    with refuse_scripts():
        instance.reconcile(BEFORE.replace(minute=1))
        assert instance.condition("Published") == (False, "PublishError")
    repository.push({"00.yaml": before, "07.yaml": ""})
    instance.reconcile(BEFORE.replace(minute=2))
    assert instance.condition("Published") == (True, "Published")
    assert stands() == tree
    assert verify_tree(instance.output) == ()


# Fetches


def test_e31_fetches_stay_in_the_fetch_log_until_a_tree_that_includes_them_is_published(
    repository: Repository, instance: Instance
) -> None:
    repository.push({"01.yaml": server("web01", "role: web", "provision: 1"), "06.yaml": policy("web", often="Once")})
    instance.reconcile(BEFORE)
    plan = instance.servers["web01"].plan
    assert plan is not None and plan.offer is not None
    fetched = Observation(
        server="web01", path=ENTRY, digest=plan.digest, offer=plan.offer, client="10.0.0.7", at=BEFORE
    )
    record_fetch(instance.spool, fetched)
    instance.target.full = True
    for minute in (5, 6):
        instance.reconcile(BEFORE.replace(minute=minute))
        given = ServedBoots(instance.spool).find("web01", plan.offer)  # a new endpoint
        assert given is not None and not given.may_serve_again(BEFORE.replace(minute=minute), read_uptime())
    assert (instance.told("Provisioned"), instance.published) == (["Provisioned"], "flatcar-1")
    instance.target.full = False
    instance.reconcile(BEFORE.replace(minute=7))
    assert (ServedBoots(instance.spool).find("web01", plan.offer), instance.published) == (None, "disk")


# An offer is stored before it is published

ONCE = {"01.yaml": server("web01", "role: web", "provision: 1"), "06.yaml": policy("web", often="Once")}


def is_version_known(instance: Instance, path: str = ENTRY) -> bool:
    """Return whether a fetch of the present file could be identified after a restart."""
    modified = int((instance.output / "boot" / path).stat().st_mtime)
    return server_tables.find_version(instance.ledger, f"boot/{path}", modified) is not None


def test_while_offers_cannot_be_stored_a_server_keeps_its_boot_until_its_window_changes(
    repository: Repository, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.reconcile(BEFORE)
    repository.push(ONCE)

    def refuse(*_: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(server_tables, "write_offers", refuse)
        for now, answered in ((BEFORE, "flatcar-1"), (OPEN, "memtest-7"), (AFTER, "disk")):
            instance.reconcile(now)
            assert instance.boots(now) == instance.published == answered
            assert instance.condition("LedgerWritable") == (False, "Failed")
            assert instance.condition("Published") == (False, "LedgerError")
    instance.reconcile(AFTER)
    assert instance.boots(AFTER) == instance.published == "flatcar-1"
    assert is_version_known(instance)


@contextmanager
def refuse_scripts() -> Iterator[None]:
    """The disk rejects the first boot script of each publication after all states, or the page."""

    def refuse(disk: DurableDirectory, path: str) -> None:
        if path.startswith(("boot/", "ops/pages/")) and not is_content(path):
            raise PublishError(f"{path}: no space left on device")
        place(disk, path)

    place = DurableDirectory.place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DurableDirectory, "place", refuse)
        yield


def test_a_boot_script_with_earlier_content_after_a_failure_is_identified_by_its_new_date(
    repository: Repository, instance: Instance
) -> None:
    repository.push(ONCE)
    instance.reconcile(BEFORE)
    with refuse_scripts():
        instance.reconcile(OPEN)
        assert instance.condition("Published") == (False, "PublishError")
    instance.reconcile(AFTER)
    assert instance.published == "flatcar-1"
    assert is_version_known(instance)


def test_a_boot_script_of_a_replaced_tree_is_identified_by_its_new_date(
    repository: Repository, instance: Instance, tmp_path: Path
) -> None:
    instance.reconcile(BEFORE)
    shutil.copytree(instance.output, tmp_path / "older")
    repository.push(ONCE)
    instance.reconcile(BEFORE.replace(minute=1))
    assert is_version_known(instance)
    shutil.rmtree(instance.output)
    (tmp_path / "older").rename(instance.output)
    instance.reconcile(BEFORE.replace(minute=2))
    assert instance.told("TreeReplaced") == ["TreeReplaced"]
    assert is_version_known(instance)


@pytest.mark.parametrize("published", [False, True], ids=["before it was published", "after it was published"])
def test_a_boot_script_is_identified_by_its_date_after_a_crash(
    tmp_path: Path, repository: Repository, published: bool
) -> None:
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
        repository.push(ONCE)
        instance.target.full = not published
        instance.reconcile(BEFORE.replace(minute=1))
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE.replace(minute=9))
        assert is_version_known(instance)
        assert (
            int((instance.output / "boot" / ENTRY).stat().st_mtime)
            == BEFORE.replace(minute=1 if published else 9).timestamp()
        )


def test_a_file_in_the_way_of_a_boot_script_is_a_failed_publication(repository: Repository, instance: Instance) -> None:
    repository.push(ONCE)
    (instance.output / "boot" / "v1").mkdir(parents=True)
    (instance.output / "boot" / "v1" / "boot").write_text("a file where a folder has to be")
    instance.reconcile(BEFORE)
    assert instance.condition("Published")[0] is False
    assert instance.boots(BEFORE) == "nothing"
    (instance.output / "boot" / "v1" / "boot").unlink()
    instance.reconcile(BEFORE)
    assert instance.published == "flatcar-1" and is_version_known(instance)
