"""A repository on this machine: fetched, accepted, kept and repaired."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pygit2
import pytest
import watchfiles

from gitboot.errors import CorruptClone, SourceError, SourceRefused, UsageError
from gitboot.fleet.revision import Irregular, Oversized, Revision
from gitboot.git import fetch as bringing
from gitboot.git import snapshots as tree
from gitboot.git.clone import CloneReader, Source
from gitboot.git.remote import Remote
from gitboot.git.repository import open_repository
from tests.helpers.git_repositories import ENVIRONMENT, WorkTree
from tests.helpers.running_instance import eventually

NOWHERE = Revision("1" * 40)


def make_source(url: Path | str, state: Path, reference: str | None = None) -> Source:
    return Source(Remote(url=str(url), reference=reference), state)


@pytest.fixture
def source(work: WorkTree, state: Path) -> Source:
    return make_source(work.path, state)


def text(source: Source, revision: Revision, path: str = "fleet.yaml") -> str:
    snapshot = source.snapshot(revision)
    return snapshot.read(snapshot.blobs[path]).decode()


# Fetches


@pytest.mark.parametrize("kind", ["work tree", "bare"])
def test_a_reference_selects_what_is_fetched(work: WorkTree, tmp_path: Path, kind: str) -> None:
    revisions = {"first": work.head}
    work.git("tag", "v1.0.0")
    work.git("tag", "both")
    work.git("tag", "v2.0.0-rc.1")
    revisions["main 1"] = work.commit({"fleet.yaml": "main 1"})
    work.git("tag", "--annotate", "--message=x", "v1.1.0")
    revisions["main 2"] = work.commit({"fleet.yaml": "main 2"})
    work.git("switch", "--quiet", "--create", "site/fra", "v1.0.0")
    revisions["fra"] = work.commit({"fleet.yaml": "fra"})
    work.git("branch", "both")
    work.git("switch", "--quiet", "--detach", "v1.0.0")
    revisions["pull"] = work.commit({"fleet.yaml": "pull"})
    work.git("update-ref", "refs/pull/7/head", "HEAD")
    work.git("switch", "--quiet", "main")
    url = work.path
    if kind == "bare":
        url = tmp_path / "bare.git"
        work.git("clone", "--quiet", "--mirror", str(work.path), str(url))
    for number, (reference, expected) in enumerate(
        (
            (None, "main 2"),
            ("main", "main 2"),
            ("refs/heads/site/fra", "fra"),
            ("site/fra", "fra"),
            ("v1.0.0", "first"),
            ("v1.1.0", "main 1"),  # an annotated tag
            ("both", "fra"),  # a branch before a tag of the same name
            ("refs/tags/both", "first"),
            (">=1.0.0 <2.0.0", "main 1"),
            ("refs/pull/7/head", "pull"),
            (revisions["main 1"], "main 1"),
            (revisions["pull"], "pull"),  # a commit that no branch has
        )
    ):
        (state := tmp_path / f"state-{number}").mkdir()
        source = make_source(url, state, reference)
        fetched = source.fetch()
        assert (fetched, text(source, fetched), source.latest()) == (revisions[expected], expected, fetched), reference
        assert make_source(url, state, reference).latest() == fetched, f"{reference} after a restart"


def test_a_file_url_is_a_path(work: WorkTree, tmp_path: Path, state: Path) -> None:
    moved = work.path.rename(tmp_path / "fleet %41 ü")
    assert make_source(moved, state).fetch() == work_head(moved)
    assert make_source(moved.as_uri(), state).fetch() == work_head(moved)


def work_head(path: Path) -> Revision:
    return Revision(str(pygit2.Repository(path).head.target))


def test_each_fetch_brings_the_new_commits(work: WorkTree, source: Source) -> None:
    assert source.latest() is None
    for number in range(3):
        revision = work.commit({"fleet.yaml": f"{number}", f"servers/{number}.yaml": "s"})
        assert source.fetch() == source.fetch() == revision
        assert text(source, revision) == f"{number}"
    assert len(source.snapshot(revision).blobs) == 4


def test_a_folder_of_a_work_tree_is_the_root_of_the_fleet(work: WorkTree, state: Path) -> None:
    revision = work.commit({"sites/fra/fleet.yaml": "fra", "sites/fra/servers/a.yaml": "a"})
    source = make_source(work.path / "sites" / "fra", state)
    source.fetch()
    shutil.rmtree(work.path)
    assert sorted(source.snapshot(revision).blobs) == ["fleet.yaml", "servers/a.yaml"]


def test_a_linked_work_tree_is_followed_at_its_own_head(work: WorkTree, tmp_path: Path, state: Path) -> None:
    work.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "linked"))
    side = WorkTree(tmp_path / "linked")
    revision = side.commit({"fleet.yaml": "side"})
    source = make_source(side.path, state)
    assert (source.fetch(), source.watch_paths()) == (revision, (work.path / ".git",))


def test_packed_and_loose_objects_give_the_same_files(work: WorkTree, state: Path) -> None:
    work.commit({f"servers/{number}.yaml": f"s{number}" for number in range(20)})
    work.git("gc", "--quiet")
    packed = work.head
    loose = work.commit({"servers/0.yaml": "changed"})
    source = make_source(work.path, state)
    assert (source.fetch(), text(source, packed, "servers/0.yaml")) == (loose, "s0")
    assert len(source.snapshot(loose, previous=source.snapshot(packed)).blobs) == 21
    assert not source.is_rewind(packed, loose)


def test_a_pack_whose_commits_lack_parents_is_completed(work: WorkTree, state: Path) -> None:
    second = work.commit({"fleet.yaml": "second"})
    work.git("pack-objects", "--quiet", ".git/objects/pack/pack", text=f"{second}\n{second}^{{tree}}\n")
    work.git("prune-packed")
    source = make_source(work.path, state)
    source.fetch()
    assert text(source, Revision(work.git("rev-parse", "HEAD~1"))) == "first"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        pytest.param("nope", "has no branch or tag nope; the branches are main, old", id="branch"),
        pytest.param(">=3", "has no tag with a version in the range >=3", id="range"),
        pytest.param(NOWHERE, f"object {NOWHERE} is missing", id="commit"),
        pytest.param("refs/tags/tree", "refs/tags/tree is not a commit", id="tag of a tree"),
        pytest.param("{tree}", "{tree} is not a commit", id="tree by its id"),
    ],
)
def test_a_missing_branch_or_commit_may_be_pushed_later(
    work: WorkTree, state: Path, reference: str, message: str
) -> None:
    work.git("branch", "old")
    work.git("tag", "tree", "HEAD^{tree}")
    tree = work.git("rev-parse", "HEAD^{tree}")
    source = make_source(work.path, state, reference.format(tree=tree))
    with pytest.raises(SourceError, match=message.format(tree=tree)):
        source.fetch()
    assert source.latest() is None


def test_an_empty_repository_may_get_a_commit_later(tmp_path: Path, state: Path) -> None:
    work = WorkTree(tmp_path / "empty")
    source = make_source(work.path, state)
    with pytest.raises(SourceError, match="has no commits yet"):
        source.fetch()
    assert work.commit({"fleet.yaml": "a"}) == source.fetch()


def test_for_a_head_without_a_branch_the_message_asks_for_one(work: WorkTree, tmp_path: Path, state: Path) -> None:
    bare = work.bare(tmp_path / "bare.git")
    (bare / "HEAD").write_text("ref: refs/heads/trunk\n")
    with pytest.raises(SourceError, match="no commit at HEAD; use --rev to name the branch"):
        make_source(bare, state).fetch()
    assert make_source(bare, state, "main").fetch() == work.head


def test_after_a_branch_is_deleted_the_fetched_commits_stay(work: WorkTree, state: Path) -> None:
    work.git("branch", "release")
    source = make_source(work.path, state, "release")
    revision = source.fetch()
    work.git("branch", "--delete", "--force", "release")
    with pytest.raises(SourceError, match="has no branch or tag release"):
        source.fetch()
    assert (source.latest(), text(source, revision)) == (revision, "first")


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        pytest.param(shutil.rmtree, SourceError, "does not exist", id="gone"),
        pytest.param(lambda path: shutil.rmtree(path / ".git"), UsageError, "is not a Git repository", id="no Git"),
        pytest.param(lambda path: (path / ".git/HEAD").write_text("?"), SourceError, "fleet: ", id="broken"),
        pytest.param(
            lambda path: (path / ".git/shallow").write_text(f"{work_head(path)}\n"),
            UsageError,
            "unshallow",
            id="shallow",
        ),
    ],
)
def test_after_a_repository_is_lost_the_fetched_commits_stay(
    work: WorkTree, state: Path, spoil: Callable[[Path], object], error: type[Exception], message: str, source: Source
) -> None:
    revision = source.fetch()
    spoil(work.path)
    with pytest.raises(error, match=message):
        source.fetch()
    assert (source.latest(), text(source, revision)) == (revision, "first")
    assert text(make_source(work.path, state), revision) == "first"


def test_another_source_has_not_fetched_anything_yet(work: WorkTree, tmp_path: Path, state: Path) -> None:
    work.git("branch", "other")
    source = make_source(work.path, state)
    revision = source.fetch()
    source.accept(revision)
    for url, reference in ((work.path, "other"), (tmp_path / "elsewhere", None)):
        changed = make_source(url, state, reference)
        assert (changed.latest(), changed.accepted()) == (None, revision)


def test_symlinks_and_submodules_are_reported(work: WorkTree, state: Path) -> None:
    (work.path / "link.yaml").symlink_to("fleet.yaml")
    work.git("update-index", "--add", "--cacheinfo", f"160000,{work.head},sub")
    work.git("add", "link.yaml")
    work.git("commit", "--quiet", "--message=odd")
    source = make_source(work.path, state)
    expected = {"link.yaml": Irregular.SYMLINK, "sub": Irregular.SUBMODULE}
    assert source.snapshot(source.fetch()).irregular == expected


# The accepted commit


def test_the_accepted_commit_survives_a_restart(work: WorkTree, state: Path, source: Source) -> None:
    first = source.fetch()
    assert source.accepted() is None
    source.accept(first)
    second = work.commit({"fleet.yaml": "second"})
    source.fetch()
    again = make_source(work.path, state)
    assert (again.accepted(), again.latest()) == (first, second)


def test_a_commit_that_was_never_fetched_cannot_be_accepted(source: Source) -> None:
    source.fetch()
    with pytest.raises(CorruptClone):
        source.accept(NOWHERE)


def test_a_force_push_is_a_rewind_and_the_accepted_commit_stays(work: WorkTree, tmp_path: Path, state: Path) -> None:
    bare = work.bare(tmp_path / "bare.git")
    source = make_source(bare, state)
    accepted = work.commit({"fleet.yaml": "accepted"})
    work.git("push", "--quiet", "origin", "main")
    source.accept(source.fetch())
    work.git("reset", "--quiet", "--hard", "HEAD~1")
    other = work.commit({"fleet.yaml": "other"})
    work.git("push", "--quiet", "--force", "origin", "main")
    subprocess.run(["git", "gc", "--quiet", "--prune=now"], cwd=bare, env=ENVIRONMENT, check=True)

    latest = source.fetch()

    assert (latest, source.accepted()) == (other, accepted)
    assert source.is_rewind(accepted, latest)
    subprocess.run(["git", "gc", "--quiet", "--prune=now"], cwd=state / "repository.git", env=ENVIRONMENT, check=True)
    assert text(source, accepted) == "accepted"


def test_only_a_commit_that_drops_accepted_history_is_a_rewind(work: WorkTree, state: Path) -> None:
    first = work.head
    work.git("switch", "--quiet", "--create", "side")
    side = work.commit({"side.yaml": "s"})
    work.git("switch", "--quiet", "main")
    second = work.commit({"fleet.yaml": "second"})
    work.git("merge", "--quiet", "--no-edit", "side")
    source = make_source(work.path, state)
    merged = source.fetch()
    for accepted, latest, is_rewind in [
        (first, first, False),
        (first, second, False),
        (side, merged, False),
        (second, merged, False),
        (second, first, True),
        (second, side, True),
        (merged, second, True),
    ]:
        assert source.is_rewind(accepted, latest) is is_rewind


def test_a_moved_tag_is_followed(work: WorkTree, state: Path) -> None:
    source = make_source(work.path, state, "stable")
    work.git("tag", "--annotate", "--message=x", "stable")
    first = source.fetch()
    second = work.commit({"fleet.yaml": "second"})
    work.git("tag", "--force", "--annotate", "--message=y", "stable")
    assert (first, source.fetch()) == (work.git("rev-parse", "HEAD~1"), second)


# Watched files


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(["commit", "--quiet", "--allow-empty", "--message=x"], id="commit"),
        pytest.param(["switch", "--quiet", "other"], id="switch"),
        pytest.param(["update-ref", "refs/heads/a/b/c", "HEAD"], id="new branch"),
        pytest.param(["update-ref", "refs/heads/packed", "HEAD~1"], id="packed branch"),
        pytest.param(["branch", "--delete", "--force", "packed"], id="deleted branch"),
    ],
)
def test_a_change_of_refs_is_detected(work: WorkTree, state: Path, change: list[str]) -> None:
    work.git("branch", "other")
    work.git("branch", "packed")
    work.commit({"fleet.yaml": "second"})
    work.git("pack-refs", "--all")
    for name in ("other", "main"):
        work.git("switch", "--quiet", name)  # replaces HEAD, as has happened before in any repository
    paths = make_source(work.path, state).watch_paths()
    watching = watchfiles.watch(
        *paths, watch_filter=None, debounce=50, step=10, rust_timeout=100, yield_on_timeout=True
    )
    next(watching)  # it has begun
    work.git(*change)
    eventually(lambda: next(watching))


def test_only_a_local_repository_can_be_watched(work: WorkTree, state: Path) -> None:
    assert make_source("git://git.example.net/fleet", state).watch_paths() == ()
    assert make_source("/nowhere", state).watch_paths() == ()


# Many fetches, killed ones, several at once


def test_packs_are_merged_without_loss(work: WorkTree, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringing, "MAX_PACKS", 4)
    source = make_source(work.path, state)
    texts = {}
    for number in range(12):
        texts[work.commit({"fleet.yaml": f"{number}", f"{number}.yaml": "x"})] = f"{number}"
        revision = source.fetch()
        source.accept(revision)
    packs = list((state / "repository.git/objects/pack").iterdir())
    assert len(packs) <= 2 * 4
    assert {pack.suffix for pack in packs} == {".pack", ".idx"}
    again = make_source(work.path, state)
    assert {revision: text(again, revision) for revision in texts} == texts
    assert len(again.snapshot(revision).blobs) == 13


# Oversized objects


@pytest.fixture
def small_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB are 1,000 bytes."""
    for module in ("repository", "snapshots"):
        monkeypatch.setattr(f"gitboot.git.{module}.MAX_FILE_BYTES", 1000)


def list_objects(state: Path) -> set[str]:
    with open_repository(state / "repository.git") as clone:
        return {str(oid) for oid in clone}


@pytest.mark.usefixtures("small_file_limit")
def test_t4_a_file_that_no_fleet_needs_is_not_copied_and_its_size_is_known(
    work: WorkTree, state: Path, source: Source
) -> None:
    first = source.fetch()
    large = work.commit({"large.yaml": "x" * 1001, "small.yaml": "x" * 1000})
    source.accept(source.fetch())
    later = work.commit({"fleet.yaml": "later", "folder/also.yaml": "y" * 5000})
    source = make_source(work.path, state)  # as after a restart
    assert source.fetch() == later
    assert (text(source, large, "small.yaml"), text(source, later)) == ("x" * 1000, "later")
    for path, size in {"large.yaml": 1001, "folder/also.yaml": 5000}.items():
        assert work.git("rev-parse", f"HEAD:{path}") not in list_objects(state)
        with pytest.raises(Oversized) as raised:
            text(source, later, path)
        assert raised.value.size == size
    with pytest.raises(Oversized):
        CloneReader(state).read(source.snapshot(later).blobs["large.yaml"])
    assert len((state / "repository.git/left-out").read_text().splitlines()) == 2
    assert not source.is_rewind(first, later)


@pytest.mark.usefixtures("small_file_limit")
def test_t4_an_object_that_is_missing_and_was_not_omitted_on_purpose_is_damage(
    work: WorkTree, state: Path, source: Source
) -> None:
    work.commit({"large.yaml": "x" * 1001})
    later = source.fetch()
    (state / "repository.git/left-out").write_text("")
    with pytest.raises(CorruptClone):
        text(source, later, "large.yaml")
    source.restore(later)
    with pytest.raises(Oversized):
        text(source, later, "large.yaml")


@pytest.mark.usefixtures("small_file_limit")
def test_t4_an_accepted_commit_that_the_remote_dropped_is_copied_from_the_old_clone(
    work: WorkTree, tmp_path: Path, state: Path
) -> None:
    bare = work.bare(tmp_path / "bare.git")
    source = make_source(bare, state)
    source.fetch()
    accepted = work.commit({"fleet.yaml": "accepted", "large.yaml": "x" * 1001})
    work.git("push", "--quiet", "origin", "main")
    source.accept(source.fetch())
    work.git("push", "--quiet", "--force", "origin", "HEAD~1:main")
    subprocess.run(["git", "gc", "--quiet", "--prune=now"], cwd=bare, env=ENVIRONMENT, check=True)
    (state / "repository.git/refs/gitboot/accepted").write_text("?")
    source.restore(accepted)
    assert (source.accepted(), text(source, accepted)) == (accepted, "accepted")
    with pytest.raises(Oversized):
        text(source, accepted, "large.yaml")
    assert source.is_rewind(accepted, source.fetch())


def test_t4_similar_large_files_are_not_compared(work: WorkTree, state: Path, source: Source) -> None:
    """For eight of 7 MB that took minutes, in which no other commit was fetched."""
    source.fetch()
    alike = {size: "".join(f"{number} {number**3}\n" for number in range(size // 12)) for size in (10_000, 200_000)}
    work.commit({f"{size}-{number}.yaml": f"{text}{number}\n" for size, text in alike.items() for number in range(3)})
    source.fetch()
    differences = []
    for index in (state / "repository.git/objects/pack").glob("*.idx"):
        for line in work.git("verify-pack", "-v", str(index)).splitlines():
            kind, *columns = line.split()[1:]
            if kind == "blob" and len(columns) > 3:  # how many it builds on, and which
                differences.append(columns)
    assert len(differences) == 2, "of the small ones alone"


@pytest.mark.usefixtures("small_file_limit")
def test_t4_a_pack_with_a_large_file_is_not_merged(
    work: WorkTree, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network remote sends such a pack, and a first clone stores it."""
    monkeypatch.setattr(bringing, "MAX_PACKS", 3)
    source = make_source(work.path, state)
    source.fetch()
    packs = state / "repository.git/objects/pack"
    large = work.git("hash-object", "-w", "--stdin", text="x" * 2000)
    with_large = work.git("pack-objects", "--quiet", str(packs / "pack"), text=f"{large}\n")
    for number in range(6):
        revision = work.commit({"fleet.yaml": f"{number}", f"{number}.yaml": "x" * 999})
        source.accept(source.fetch())
    assert (packs / f"pack-{with_large}.pack").exists()
    assert len(list(packs.glob("*.pack"))) <= 3
    assert large in list_objects(state)
    assert text(source, revision) == "5"


def test_fetching_leaks_no_descriptors(work: WorkTree, source: Source) -> None:

    def fetch() -> int:
        source.accept(source.fetch())
        text(source, work.commit({"fleet.yaml": f"{time.monotonic_ns()}"}) and source.fetch())
        return len(os.listdir("/proc/self/fd"))

    before = fetch()
    assert max(fetch() for _ in range(10)) <= before  # objects of earlier tests may be closed meanwhile


def test_an_earlier_snapshot_still_reads_after_packs_were_merged(
    work: WorkTree, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "MAX_PACKS", 2)
    source = make_source(work.path, state)
    snapshots = []
    for number in range(6):
        work.commit({"fleet.yaml": f"{number}"})
        snapshots.append(source.snapshot(source.fetch()))
    assert [snapshot.read(snapshot.blobs["fleet.yaml"]) for snapshot in snapshots] == [b"%d" % n for n in range(6)]


def test_a_push_during_a_fetch_gives_one_of_the_two_commits(work: WorkTree, state: Path) -> None:
    pushed = [work.commit({f"{name}.yaml": "0" for name in "abc"})]

    def push() -> None:
        for number in range(1, 15):
            pushed.append(work.commit({f"{name}.yaml": f"{number}" for name in "abc"}))

    source = make_source(work.path, state)
    pushing = threading.Thread(target=push)
    pushing.start()
    seen = []
    while pushing.is_alive():
        seen.append(source.fetch())
        snapshot = source.snapshot(seen[-1])
        assert len({snapshot.read(snapshot.blobs[f"{name}.yaml"]) for name in "abc"}) == 1
    pushing.join()
    assert set(seen) <= set(pushed)
    assert source.fetch() == pushed[-1]


def test_reading_continues_during_a_fetch(work: WorkTree, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename_slowly(path: Path, target: Path) -> None:
        os.rename(path, target)
        time.sleep(0.02)

    monkeypatch.setattr(bringing, "MAX_PACKS", 3)
    monkeypatch.setattr(Path, "rename", rename_slowly)
    source = make_source(work.path, state)
    revision = source.fetch()
    source.accept(revision)
    began, done = threading.Event(), threading.Event()

    def read() -> int:
        count = 0
        while not done.is_set():
            assert (source.accepted(), text(source, revision)) == (revision, "first")
            count += 1
            began.set()
        return count

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        eventually(lambda: began.is_set() or reading.done())
        for number in range(10):
            work.commit({"fleet.yaml": f"{number}"})
            source.fetch()
            if number % 3 == 0:
                source.restore(revision)
        done.set()
        assert reading.result() > 0


@pytest.mark.parametrize("reader", [Source, CloneReader])
def test_a_commit_whose_packs_were_merged_as_it_was_read_is_read_again(
    work: WorkTree, state: Path, monkeypatch: pytest.MonkeyPatch, reader: type, source: Source
) -> None:
    revision, objects, look = source.fetch(), state / "repository.git/objects", tree.find_tree
    tried: list[Revision] = []

    def gone_the_first_time(git: pygit2.Repository, revision: Revision, folder: str) -> bytes | None:
        tried.append(revision)
        if len(tried) > 1:
            return look(git, revision, folder)
        objects.rename(state / "aside")
        try:
            return look(pygit2.Repository(git.path), revision, folder)
        finally:
            (state / "aside").rename(objects)

    monkeypatch.setattr(tree, "find_tree", gone_the_first_time)
    found = (source if reader is Source else CloneReader(state)).snapshot(revision)
    assert (list(found.blobs), len(tried)) == (["fleet.yaml"], 2)


def leave_temporary_files(state: Path) -> Iterator[Path]:
    git = state / "repository.git"
    for path in (git / "refs/gitboot/accepted.lock", git / "HEAD.lock", git / "config.lock"):
        path.touch()
        yield path
    half = git / "objects/pack/pack_git2_0123456789abcdef"
    half.write_bytes(b"PACK")
    yield half
    begun = state / "repository.new"
    pygit2.init_repository(begun, bare=True)
    yield begun


def test_leftovers_of_a_killed_process_are_removed(work: WorkTree, state: Path, source: Source) -> None:
    source.accept(source.fetch())
    left = list(leave_temporary_files(state))
    source = make_source(work.path, state)
    assert [path for path in left if path.exists()] == []
    revision = work.commit({"fleet.yaml": "second"})
    source.accept(source.fetch())
    assert source.accepted() == revision


def test_a_killed_first_fetch_is_repeated(work: WorkTree, state: Path) -> None:
    """Killed at instants spread over the whole of it."""
    work.commit({f"servers/{number}.yaml": f"{number}" * 100 for number in range(300)})
    script = (
        "import sys, pathlib; from gitboot.git.remote import Remote; from gitboot.git.clone import Source;"
        "Source(Remote(url=sys.argv[1]), pathlib.Path(sys.argv[2])).fetch(); print('done')"
    )
    outcomes = set[str]()
    for number in count():
        if number >= 4 and "" in outcomes:  # one was killed in time
            break
        shutil.rmtree(state, ignore_errors=True)
        command = [sys.executable, "-c", script, str(work.path), str(state)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while not (state / "repository.new").exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.02 * (number % 4))
        process.send_signal(signal.SIGKILL)
        outcomes.add(process.communicate()[0])
        source = make_source(work.path, state)
        assert (source.fetch(), len(source.snapshot(work.head).blobs)) == (work.head, 301)
        assert not (state / "repository.new").exists()


# Damage


def clone_pack(git: Path) -> Path:
    (pack,) = git.glob("objects/pack/*.pack")
    pack.chmod(0o644)
    return pack


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for position in range(100, len(data) - 20, 50):
        data[position] ^= 0xFF
    path.write_bytes(data)


def empty_folder(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def overwrite_index(git: Path) -> None:
    index = clone_pack(git).with_suffix(".idx")
    index.chmod(0o644)
    index.write_bytes(b"junk")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nothing": shutil.rmtree,
    "an empty directory": empty_folder,
    "no HEAD": lambda git: (git / "HEAD").unlink(),
    "garbage in config": lambda git: (git / "config").write_text("[[["),
    "no packs": lambda git: empty_folder(git / "objects/pack"),
    "half a pack": lambda git: os.truncate(clone_pack(git), 200),
    "an empty pack": lambda git: os.truncate(clone_pack(git), 0),
    "flipped bytes": lambda git: flip_a_byte(clone_pack(git)),
    "an index of garbage": overwrite_index,
    "garbage in a ref": lambda git: (git / "refs/gitboot/accepted").write_text("?"),
    "an empty ref": lambda git: (git / "refs/gitboot/accepted").write_text(""),
    "a ref to nothing": lambda git: (git / "refs/gitboot/accepted").write_text(f"{NOWHERE}\n"),
}


def read_all(source: Source, revision: Revision) -> None:
    source.accepted()
    snapshot = source.snapshot(revision)
    for blob in snapshot.blobs.values():
        snapshot.read(blob)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_clone_is_reported_and_restored(work: WorkTree, state: Path, damage: str) -> None:
    accepted = work.commit({f"{number}.yaml": f"{number}" * 50 for number in range(20)})
    source = make_source(work.path, state)
    source.accept(source.fetch())
    latest = work.commit({"fleet.yaml": "second"})
    DAMAGE[damage](state / "repository.git")

    source = make_source(work.path, state)
    with pytest.raises(CorruptClone, match=r"state/repository\.git"):
        read_all(source, accepted)
    source.restore(accepted)

    assert (source.accepted(), source.latest(), text(source, accepted)) == (accepted, latest, "first")
    assert len(source.snapshot(accepted).blobs) == 21
    assert sorted(path.name for path in state.iterdir()) == ["repository.git"]


def test_an_accepted_commit_that_is_lost_needs_an_operator(work: WorkTree, source: Source) -> None:
    source.fetch()
    with pytest.raises(
        SourceRefused,
        match=f"neither {work.path} nor the old clone contains the accepted commit {NOWHERE}",
    ):
        source.restore(NOWHERE)
    assert (source.accepted(), source.latest()) == (None, work.head)


def test_while_the_remote_is_unreachable_a_clone_is_not_replaced(work: WorkTree, source: Source) -> None:
    accepted = source.fetch()
    source.accept(accepted)
    work.path.rename(work.path.with_name("away"))
    with pytest.raises(SourceError, match="does not exist"):
        source.restore(accepted)
    assert (source.accepted(), text(source, accepted)) == (accepted, "first")


def test_a_clone_inside_another_repository_is_not_confused_with_it(work: WorkTree) -> None:
    state = work.path / "state"
    source = make_source(work.path, state)
    revision = source.fetch()
    (state / "repository.git" / "HEAD").unlink()
    with pytest.raises(CorruptClone):
        source.snapshot(revision)


def test_every_error_of_pygit2_is_mapped() -> None:
    """All that pygit2 raises of its own is a GitError, but for what callbacks raise to decline."""
    errors = {error for error in vars(pygit2.errors).values() if isinstance(error, type)}
    assert {error.__name__ for error in errors if not issubclass(error, pygit2.GitError)} == {"Passthrough"}
