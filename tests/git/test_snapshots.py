"""Reading a directory, a work tree and a bare repository, as `gitboot validate` and the like do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pygit2
import pytest

from gitboot.cli import evaluator_child
from gitboot.cli.evaluator_child import limit_evaluation
from gitboot.errors import InvalidRepository, SourceError, UsageError
from gitboot.fleet.revision import MAX_FILE_BYTES, Irregular, Oversized, Revision, Snapshot
from gitboot.git import snapshots as tree
from gitboot.git.repository import StoredRepository, convert_errors
from gitboot.git.snapshots import WORKTREE, load_commit, open_snapshot
from gitboot.problems import Code
from tests.helpers.fleets import SEED, profile
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import WorkTree, store_zeros


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    return WorkTree(tmp_path / "fleet")


def load_snapshot(work: WorkTree, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
    return load_commit(StoredRepository(work.path), revision, previous=previous)


def read_contents(snapshot: Snapshot) -> dict[str, str]:
    return {path: snapshot.read(blob).decode() for path, blob in snapshot.blobs.items()}


# Revisions


@pytest.mark.parametrize(
    ("rev", "text"),
    [
        pytest.param(None, "uncommitted", id="default"),
        pytest.param("WORKTREE", "uncommitted", id="work tree"),
        pytest.param("HEAD", "third", id="HEAD"),
        pytest.param("HEAD~2", "first", id="ancestor"),
        pytest.param("main", "third", id="branch"),
        pytest.param("refs/heads/old", "first", id="whole name of a ref"),
        pytest.param("light", "second", id="tag"),
        pytest.param("annotated", "second", id="annotated tag"),
        pytest.param("{id}", "second", id="id"),
        pytest.param("{short}", "second", id="abbreviated id"),
        pytest.param(":/Second", "second", id="by its message"),
    ],
)
def test_any_git_revision_can_be_read(work: WorkTree, rev: str | None, text: str) -> None:
    first = work.commit({"fleet.yaml": "first"})
    work.git("branch", "old")
    second = work.commit({"fleet.yaml": "second"}, "Second")
    work.git("tag", "light")
    work.git("tag", "--annotate", "--message=x", "annotated")
    third = work.commit({"fleet.yaml": "third"})
    work.write({"fleet.yaml": "uncommitted"})
    rev = rev and rev.format(id=second, short=second[:7])

    snapshot = open_snapshot(work.path, rev)

    revisions = {"first": first, "second": second, "third": third, "uncommitted": WORKTREE}
    assert (read_contents(snapshot), snapshot.revision) == ({"fleet.yaml": text}, revisions[text])


def test_a_bare_repository_is_read_at_its_head(work: WorkTree, tmp_path: Path) -> None:
    head = work.commit({"fleet.yaml": "a"})
    assert open_snapshot(work.bare(tmp_path / "bare.git"), None).revision == head
    assert open_snapshot(work.path / ".git", None).revision == head


def test_a_directory_needs_no_git(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.yaml").write_text("x")
    (tmp_path / ".gitignore").write_text("*")
    assert read_contents(open_snapshot(tmp_path, None)) == {".gitignore": "*", "a/x.yaml": "x"}


def test_a_linked_work_tree_has_its_own_head(work: WorkTree, tmp_path: Path) -> None:
    work.commit({"fleet.yaml": "main"})
    work.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "linked"))
    side = WorkTree(tmp_path / "linked")
    revision = side.commit({"fleet.yaml": "side"})
    side.write({"fleet.yaml": "uncommitted"})
    assert read_contents(open_snapshot(side.path, None)) == {"fleet.yaml": "uncommitted"}
    assert open_snapshot(side.path, "HEAD").revision == revision


@pytest.mark.parametrize("rev", ["HEAD", "WORKTREE"])
def test_a_folder_of_a_work_tree_is_its_own_fleet(work: WorkTree, rev: str) -> None:
    work.commit({"other.yaml": "o", "sites/fra/fleet.yaml": "f", "sites/fra/servers/a.yaml": "a"})
    snapshot = open_snapshot(work.path / "sites" / "fra", rev)
    assert read_contents(snapshot) == {"fleet.yaml": "f", "servers/a.yaml": "a"}


def test_a_folder_that_a_commit_lacks_has_no_files_there(work: WorkTree) -> None:
    work.commit({"fleet.yaml": "a"})
    work.commit({"sites/fra/fleet.yaml": "f", "sites/file": ""})
    assert dict(open_snapshot(work.path / "sites" / "fra", "HEAD~1").blobs) == {}


@pytest.mark.parametrize(
    ("where", "rev", "message"),
    [
        pytest.param("nowhere", None, "nowhere is not a directory", id="no such directory"),
        pytest.param("fleet/fleet.yaml", None, "is not a directory", id="a file"),
        pytest.param("fleet", "nope", "has no commit nope$", id="no such revision"),
        pytest.param("fleet", "mian", "has no commit mian; did you mean main[?]$", id="a similar branch"),
        pytest.param("fleet", "HEAD^{tree}", r"has no commit HEAD\^\{tree\}", id="a tree"),
        pytest.param("fleet", "0", "has no commit 0", id="too short an id"),
        pytest.param("fleet", "", "has no commit ", id="nothing"),
        pytest.param("fleet", "HEAD..HEAD", "has no commit HEAD..HEAD", id="two revisions"),
        pytest.param("plain", "HEAD", "is not in a Git repository", id="a revision without Git"),
        pytest.param("bare.git", "WORKTREE", "is a bare repository", id="no work tree"),
        pytest.param("empty", "HEAD", "has no commits yet", id="no commit yet"),
        pytest.param("empty.git", None, "has no commits yet", id="no commit yet, bare"),
        pytest.param(
            "unborn.git", None, "has no commit at HEAD; name a branch: main$", id="a HEAD of a missing branch"
        ),
        pytest.param("shallow", "HEAD~1", "has no commit HEAD~1, and this clone is shallow", id="too shallow"),
    ],
)
def test_an_invalid_argument_is_a_usage_error(
    work: WorkTree, tmp_path: Path, where: str, rev: str | None, message: str
) -> None:
    work.commit({"fleet.yaml": "a"})
    work.bare(tmp_path / "bare.git")
    (tmp_path / "plain").mkdir()
    WorkTree(tmp_path / "empty").bare(tmp_path / "empty.git")
    work.git("clone", "-q", "--bare", str(work.path), str(tmp_path / "unborn.git"))
    (tmp_path / "unborn.git" / "HEAD").write_text("ref: refs/heads/master\n")  # as `git init --bare` of some versions
    work.git("clone", "-q", "--depth=1", f"file://{work.path}", str(tmp_path / "shallow"))
    with pytest.raises(UsageError, match=message):
        open_snapshot(tmp_path / where, rev)


def test_an_empty_work_tree_has_no_files(tmp_path: Path) -> None:
    assert len(open_snapshot(WorkTree(tmp_path).path, None).blobs) == 0


@pytest.mark.parametrize("extension", ["refStorage = reftable", "objectFormat = sha256", "unheardOf = true"])
def test_a_repository_that_libgit2_cannot_read_is_named(work: WorkTree, extension: str) -> None:
    work.write({".git/config": f"[core]\nrepositoryformatversion = 1\n[extensions]\n{extension}\n"})
    with pytest.raises(SourceError, match=f"{work.path}: "):
        open_snapshot(work.path, None)


# Content of a snapshot


def test_a_work_tree_and_its_commit_have_the_same_files(work: WorkTree) -> None:
    work.write({"a.yaml": "a", "b/c/d.yaml": "d", ".gitbootignore": "x", "b/.hidden": "h", "empty": "", "ä.yaml": "ä"})
    work.write({".github/ci.yaml": "no", "b/.venv/x.yaml": "no"})
    (work.path / "link.yaml").symlink_to("a.yaml")
    (work.path / "folder").symlink_to("b")
    work.commit()
    load_snapshot, lying = open_snapshot(work.path, "HEAD"), open_snapshot(work.path, None)
    assert (dict(load_snapshot.blobs), read_contents(load_snapshot)) == (dict(lying.blobs), read_contents(lying))
    assert sorted(load_snapshot.blobs) == [".gitbootignore", "a.yaml", "b/.hidden", "b/c/d.yaml", "empty", "ä.yaml"]
    assert load_snapshot.irregular == lying.irregular
    assert load_snapshot.irregular == {"link.yaml": Irregular.SYMLINK, "folder": Irregular.SYMLINK}


def test_the_id_of_a_blob_is_that_of_git(work: WorkTree) -> None:
    work.commit({"a.yaml": "a"})
    assert open_snapshot(work.path, None).blobs["a.yaml"] == work.git("rev-parse", "HEAD:a.yaml")


def test_a_submodule_is_irregular(work: WorkTree, tmp_path: Path) -> None:
    other = WorkTree(tmp_path / "other")
    other.commit({"x.yaml": "x"})
    work.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "sub")
    work.commit({"a.yaml": "a"})
    expected = {"sub": Irregular.SUBMODULE}
    assert open_snapshot(work.path, "HEAD").irregular == expected
    assert open_snapshot(work.path, None).irregular == expected
    work.git("submodule", "--quiet", "deinit", "--force", "sub")
    assert open_snapshot(work.path, None).irregular == expected, "not initialised"
    assert "sub/x.yaml" not in open_snapshot(work.path, None).blobs


def test_a_repository_within_a_directory_is_irregular(tmp_path: Path) -> None:
    WorkTree(tmp_path / "plain" / "nested").commit({"x.yaml": "x"})
    snapshot = open_snapshot(tmp_path / "plain", None)
    assert (snapshot.irregular, dict(snapshot.blobs)) == ({"nested": Irregular.SUBMODULE}, {})


def test_a_name_that_is_not_utf8_is_irregular(work: WorkTree) -> None:
    os.makedirs(os.fsencode(work.path) + b"/sub/d\xffr")
    for name in (b"/caf\xe9.yaml", b"/sub/d\xffr/x.yaml"):
        Path(os.fsdecode(os.fsencode(work.path) + name)).write_text("x")
    work.commit({"a.yaml": "a"})
    load_snapshot, lying = open_snapshot(work.path, "HEAD"), open_snapshot(work.path, None)
    assert load_snapshot.irregular == lying.irregular
    assert load_snapshot.irregular == {"caf\ufffd.yaml": Irregular.FILE_NAME, "sub/d\ufffdr": Irregular.FILE_NAME}
    assert [*load_snapshot.blobs] == [*lying.blobs] == ["a.yaml"]


def test_ignored_files_are_omitted_unless_they_are_tracked(work: WorkTree) -> None:
    work.write({"build/tracked.yaml": "t", "x.log": "tracked"})
    work.commit()
    work.write({".gitignore": "build/\n*.log\nnested/*\n!nested/kept.yaml\n", "new.yaml": "untracked"})
    work.write(
        {"build/made.yaml": "m", "build/deep/made.yaml": "m", "y.log": "", "nested/x": "", "nested/kept.yaml": ""}
    )
    work.write({".git/info/exclude": "private.yaml\n", "private.yaml": ""})
    assert sorted(open_snapshot(work.path, None).blobs) == [
        *(".gitignore", "build/tracked.yaml", "nested/kept.yaml", "new.yaml", "x.log"),
    ]


def test_an_ignored_folder_is_read_if_it_is_named(work: WorkTree) -> None:
    work.commit({".gitignore": "build/\n"})
    work.write({"build/fleet.yaml": "f", "build/servers/a.yaml": "a"})
    assert read_contents(open_snapshot(work.path / "build", None)) == {"fleet.yaml": "f", "servers/a.yaml": "a"}


def test_a_deleted_file_is_absent(work: WorkTree) -> None:
    work.commit({"a.yaml": "a", "b.yaml": "b"})
    work.write({"b.yaml": None})
    assert [*open_snapshot(work.path, None).blobs] == ["a.yaml"]


def test_a_file_is_read_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("first")
    os.mkfifo(tmp_path / "pipe.yaml")
    with open(tmp_path / "image.iso", "wb") as image:
        image.truncate(1 << 40)  # this file cannot be read

    snapshot = open_snapshot(tmp_path, None)
    (tmp_path / "a.yaml").write_text("second")

    assert sorted(snapshot.blobs) == ["a.yaml", "image.iso"]
    assert "image.iso" in snapshot.blobs
    blob = snapshot.blobs["a.yaml"]
    (tmp_path / "a.yaml").write_text("third")
    assert (snapshot.blobs["a.yaml"], snapshot.read(blob)) == (blob, b"second"), "one state throughout"


@pytest.mark.parametrize("becomes", ["nothing", "a link", "a pipe", "a folder"])
def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path, becomes: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a")
    snapshot = open_snapshot(tmp_path, None)
    file.unlink()
    match becomes:
        case "a link":
            file.symlink_to("/etc/passwd")
        case "a pipe":
            os.mkfifo(file)
        case "a folder":
            file.mkdir()
    with pytest.raises(SourceError, match=r"a\.yaml"):
        snapshot.blobs["a.yaml"]


def test_blobs_can_be_read_in_any_thread(work: WorkTree) -> None:
    work.commit({f"{number}.yaml": f"text {number}" for number in range(50)})
    snapshot = open_snapshot(work.path, "HEAD")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read_contents, [snapshot] * 4)) == [read_contents(snapshot)] * 4


def test_a_missing_object_is_a_source_error(work: WorkTree) -> None:
    work.commit({"a.yaml": "a"})
    blob = work.git("rev-parse", "HEAD:a.yaml")
    snapshot = open_snapshot(work.path, "HEAD")
    (work.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(SourceError, match=f"object {blob} is missing"):
        snapshot.read(snapshot.blobs["a.yaml"])


# With an earlier snapshot


def list_changes() -> Iterator[dict[str, str | None]]:
    """The changes of each commit; None removes a file."""
    yield {"a.yaml": "1", "s/1/x.yaml": "x", "s/2/y.yaml": "y", "s/z.yaml": "z", ".ci/x": "1"}
    yield {"a.yaml": "2"}
    yield {"s/1/new.yaml": "n", ".ci/x": "2"}
    yield {"s/2/y.yaml": None}
    yield {"s/1/x.yaml": None, "s/1/new.yaml": None, "s/1": "a file now"}
    yield {"s/1": None, "t/x.yaml": "x"}
    yield {"t/x.yaml": None, "t.yaml": "moved", ".ci/x": None}
    yield {"a.yaml": None, "s/z.yaml": None, "t.yaml": None, "only.yaml": "o"}
    yield {}


def test_an_earlier_snapshot_saves_time_and_changes_nothing_else(work: WorkTree) -> None:
    snapshots = []
    for files in list_changes():
        snapshots.append(load_snapshot(work, work.commit(files)))
    for earlier in snapshots:
        for later in snapshots:
            again = load_snapshot(work, later.revision, previous=earlier)
            assert (again.blobs, again.irregular) == (later.blobs, later.irregular)


def test_an_unchanged_folder_is_not_read_again(work: WorkTree) -> None:
    first = load_snapshot(work, work.commit({"s/1/x.yaml": "x", "s/2/y.yaml": "y"}))
    second = work.commit({"s/2/y.yaml": "changed"})
    unchanged = work.git("rev-parse", f"{second}:s/1")
    (work.path / ".git" / "objects" / unchanged[:2] / unchanged[2:]).unlink()
    assert sorted(load_snapshot(work, second, previous=first).blobs) == ["s/1/x.yaml", "s/2/y.yaml"]
    with pytest.raises(SourceError, match=f"object {unchanged} is missing"):
        load_snapshot(work, second)


def test_irregular_entries_appear_and_disappear_between_snapshots(work: WorkTree) -> None:
    work.write({"a.yaml": "a"})
    (work.path / "b.yaml").symlink_to("a.yaml")
    Path(os.fsdecode(os.fsencode(work.path) + b"/\xff.yaml")).write_text("x")
    first = load_snapshot(work, work.commit())
    (work.path / "b.yaml").unlink()
    Path(os.fsdecode(os.fsencode(work.path) + b"/\xff.yaml")).unlink()
    second = load_snapshot(work, work.commit({"b.yaml": "b"}), previous=first)
    assert (sorted(second.blobs), second.irregular) == (["a.yaml", "b.yaml"], {})
    assert load_snapshot(work, first.revision, previous=second).irregular == first.irregular


def test_an_earlier_snapshot_of_another_repository_does_no_harm(work: WorkTree, tmp_path: Path) -> None:
    other = WorkTree(tmp_path / "other")
    foreign = load_snapshot(other, other.commit({"foreign.yaml": "f"}))
    assert [*load_snapshot(work, work.commit({"a.yaml": "a"}), previous=foreign).blobs] == ["a.yaml"]


# Hostile commits


@pytest.mark.parametrize("rev", ["HEAD", "WORKTREE"])
def test_a_file_that_no_fleet_needs_is_not_read(work: WorkTree, rev: str) -> None:
    (work.path / "fleet.yaml").write_text("# a fleet\n")
    (work.path / "huge.yaml").write_bytes(bytes(MAX_FILE_BYTES + 1))  # some KiB in a pack
    work.git("add", "-A")
    work.git("commit", "-q", "-m", "Huge")
    snapshot = open_snapshot(work.path, rev)
    with pytest.raises(Oversized, match="16,777,217 bytes"):
        snapshot.read(snapshot.blobs["huge.yaml"])
    assert snapshot.read(snapshot.blobs["fleet.yaml"]) == b"# a fleet\n"


def test_a_tree_with_too_many_files_is_rejected(work: WorkTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_FILES", 1000)
    entry = f"100644 blob {work.git('hash-object', '-w', '--stdin', text='x')}\tx"
    for _ in range(12):
        held = work.git("mktree", text=entry)
        entry = "\n".join(f"040000 tree {held}\t{name}" for name in "0123456789")
    revision = work.git("commit-tree", "-m", "bomb", work.git("mktree", text=entry))
    with pytest.raises(InvalidRepository, match=Code.UNBOUNDED):
        open_snapshot(work.path, revision)


def test_a_large_folder_outside_of_git_is_rejected_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gitboot validate /` read the names of all files of the file system first."""
    monkeypatch.setattr(tree, "MAX_OTHER_FILES", 10, raising=False)
    for number in range(10):
        (tmp_path / f"{number}.yaml").touch()
        (tmp_path / f"{number}.txt").touch()
    assert len(open_snapshot(tmp_path, None).blobs) == 20
    (tmp_path / "10.txt").touch()
    with pytest.raises(UsageError, match="is not in a Git repository, and contains more than 10 files that are not"):
        open_snapshot(tmp_path, None)


def test_a_tree_that_is_too_deep_is_rejected(work: WorkTree) -> None:
    entry = f"100644 blob {work.git('hash-object', '-w', '--stdin', text='x')}\tx"
    for _ in range(50):
        entry = f"040000 tree {work.git('mktree', text=entry)}\t{'n' * 100}"
    revision = work.git("commit-tree", "-m", "deep", work.git("mktree", text=entry))
    with pytest.raises(InvalidRepository, match=Code.UNBOUNDED):
        open_snapshot(work.path, revision)


def test_a_malformed_tree_is_rejected(work: WorkTree, tmp_path: Path) -> None:
    (tmp_path / "tree").write_bytes(b"100644 a.yaml\0" + b"\x01" * 19)
    malformed = work.git("hash-object", "-t", "tree", "-w", "--literally", str(tmp_path / "tree"))
    whole = work.git("mktree", "--missing", text=f"040000 tree {malformed}\tsub\n")
    revision = work.git("commit-tree", "-m", "malformed", whole)
    with pytest.raises(InvalidRepository, match=f"sub/:1:1: {Code.MALFORMED}: tree {malformed} is malformed"):
        open_snapshot(work.path, revision)


# The machine that it runs on


def write_raw_tree(work: WorkTree, *found: tuple[str, bytes, str]) -> str:
    """A tree that Git does not write: (mode, name, id) in this order."""
    data = b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(id) for mode, name, id in found)
    made = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
        cwd=work.path,
        input=data,
        capture_output=True,
        check=True,
    )
    return made.stdout.decode().strip()


TWICE = "the folder has 2 entries with this name"
NO_NAME = "Git does not allow a file or folder with this name"


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize(
    ("case", "found", "named", "message"),
    [
        ("two files", (("100644", b"a.yaml", "B"), ("100644", b"a.yaml", "C")), "a.yaml", TWICE),
        ("two folders", (("40000", b"servers", "T"), ("40000", b"servers", "U")), "servers", TWICE),
        ("a file and a folder", (("100644", b"a", "B"), ("100644", b"a.yaml", "B"), ("40000", b"a", "T")), "a", TWICE),
        ("two dot-folders", (("40000", b".x", "T"), ("40000", b".x", "U")), ".x", TWICE),
        ("a slash", (("100644", b"servers/a.yaml", "B"),), "servers/a.yaml", NO_NAME),
        ("a folder with a slash", (("40000", b"a/b", "T"),), "a/b", NO_NAME),
        ("this folder", (("40000", b".", "T"),), ".", NO_NAME),
        ("the folder above", (("40000", b"..", "T"),), "..", NO_NAME),
        ("Git's own folder", (("40000", b".git", "T"),), ".git", NO_NAME),
        ("in other letters", (("40000", b".GiT", "T"),), ".GiT", NO_NAME),
        ("as a file", (("100644", b".git", "B"),), ".git", NO_NAME),
        ("as Windows has it", (("40000", b"GIT~1", "T"),), "GIT~1", NO_NAME),
        ("with a stream", (("100644", b".git::$INDEX_ALLOCATION", "B"),), ".git::$INDEX_ALLOCATION", NO_NAME),
        ("with a space", (("40000", b".git ", "T"),), ".git ", NO_NAME),
        ("before a backslash", (("100644", b".git\\a.yaml", "B"),), ".git\\a.yaml", NO_NAME),
        ("after a backslash", (("40000", b"a\\GIT~1", "T"),), "a\\GIT~1", NO_NAME),
        ("as macOS has it", (("40000", b".g\xe2\x80\x8cit", "T"),), ".g\u200cit", NO_NAME),
    ],
)
def test_t10_a_name_that_a_checkout_would_not_show_is_rejected(
    work: WorkTree, depth: int, case: str, found: tuple[tuple[str, bytes, str], ...], named: str, message: str
) -> None:
    blobs = [work.git("hash-object", "-w", "--stdin", text=text) for text in ("first", "second")]
    trees = [work.git("mktree", text=f"100644 blob {blob}\tx.yaml\n") for blob in blobs]
    ids = {"B": blobs[0], "C": blobs[1], "T": trees[0], "U": trees[1]}
    made = write_raw_tree(work, *((mode, name, ids[id]) for mode, name, id in found))
    for _ in range(depth):
        made = write_raw_tree(work, ("40000", b"below", made))
    revision = Revision(work.git("commit-tree", "-m", case, made))
    with pytest.raises(InvalidRepository) as caught:
        load_snapshot(work, revision)
    assert [(each.path, each.message) for each in caught.value.problems] == [(f"{'below/' * depth}{named}", message)]
    # Beside a commit that had it already, it is refused where it is read again, and no harm where it is not.
    with pytest.raises(InvalidRepository):
        load_commit(StoredRepository(work.path), revision, "/".join(["below"] * depth))


@pytest.mark.parametrize(
    "name", [".gitignore", ".gitattributes", "git", "a.git", ".github", "git~2", "...", "e\u0301", "a\\x2db"]
)
def test_a_name_that_only_looks_like_one_is_read(work: WorkTree, name: str) -> None:
    revision = work.commit({f"{name}.d/x.yaml" if name.startswith(".git") else f"{name}/x.yaml": "text"})
    assert all(path.endswith("x.yaml") for path in load_snapshot(work, revision).blobs)


def test_t10_a_folder_that_occurs_twice_is_not_a_fleet(work: WorkTree) -> None:
    one, two = (
        work.git("mktree", text=f"100644 blob {work.git('hash-object', '-w', '--stdin', text=text)}\tfleet.yaml\n")
        for text in ("reviewed", "published")
    )
    made = write_raw_tree(work, ("40000", b"fleet", one), ("40000", b"fleet", two))
    revision = Revision(work.git("commit-tree", "-m", "two", made))
    with pytest.raises(InvalidRepository, match=f"fleet:1:1: {Code.MALFORMED}: {TWICE}"):
        load_commit(StoredRepository(work.path), revision, "fleet")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_repository_of_another_user_is_read(work: WorkTree) -> None:
    work.commit({"a.yaml": "a"})
    for path in (work.path, *work.path.rglob("*")):
        os.chown(path, 12345, 12345)
    assert [*open_snapshot(work.path, "HEAD").blobs] == [*open_snapshot(work.path, None).blobs] == ["a.yaml"]


def test_the_git_configuration_of_the_user_is_ignored(work: WorkTree, tmp_path: Path) -> None:
    work.commit({"a.yaml": "a"})
    work.write({"b.yaml": "b"})
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[core]\nexcludesFile = {home}/ignore\n")
    (home / "ignore").write_text("*.yaml\n")
    script = (
        "import sys; from gitboot.git.snapshots import open_snapshot; "
        "print(*sorted(open_snapshot(sys.argv[1], None).blobs))"
    )
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_DIR": "/nonexistent"}
    command = [sys.executable, "-c", script, str(work.path)]
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["a.yaml", "b.yaml"]


def test_a_symlink_to_a_fleet_is_followed(work: WorkTree, tmp_path: Path) -> None:
    work.commit({"a.yaml": "a"})
    (tmp_path / "link").symlink_to(work.path)
    assert [*open_snapshot(tmp_path / "link", None).blobs] == ["a.yaml"]
    shutil.rmtree(work.path)
    with pytest.raises(UsageError, match="is not a directory"):
        open_snapshot(tmp_path / "link", None)


# A few bytes of a pack can be gigabytes: their sizes are read first, in a process without room for them.
BOUNDED = """
import resource, sys
from pathlib import Path
import pygit2
from gitboot.errors import InvalidRepository, SourceError
from gitboot.fleet.revision import Oversized, Revision
from gitboot.git.clone import Source
from gitboot.git.remote import Remote
from gitboot.git.repository import StoredRepository, convert_errors
from gitboot.git.snapshots import load_commit
limit = 120 << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
what, path, revision, state = sys.argv[1:]
try:
    if what == "commit":
        Source(Remote(url=f"file://{path}"), Path(state)).fetch()
    else:
        snapshot = load_commit(StoredRepository(Path(path)), Revision(revision))
        snapshot.read(snapshot.blobs["big.yaml"])
except (InvalidRepository, SourceError, Oversized) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("what", "said"), [("blob", "Oversized"), ("tree", "InvalidRepository"), ("commit", "SourceError")]
)
def test_t4_sizes_are_read_before_contents(work: WorkTree, tmp_path: Path, what: str, said: str) -> None:
    objects = work.path / ".git/objects"
    if what == "commit":
        tree, person = work.git("mktree"), "A <a@example.net> 0 +0000"
        beginning = f"tree {tree}\nauthor {person}\ncommitter {person}\n\n".encode()
        revision = store_zeros(objects, "commit", 200, beginning=beginning)
        (work.path / ".git/refs/heads/main").write_text(revision)  # git would read it
    else:
        kind = "040000 tree" if what == "tree" else "100644 blob"
        root = work.git("mktree", text=f"{kind} {store_zeros(objects, what, 200)}\tbig.yaml\n")
        revision = work.git("commit-tree", "-m", "big", root)
    command = [sys.executable, "-c", BOUNDED, what, str(work.path), revision, str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(said), done


def test_reading_a_snapshot_imports_no_fetch_module() -> None:
    code = "import sys; from gitboot.git.snapshots import open_snapshot; print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gitboot.git.snapshots" in modules
    assert not {"gitboot.git.remote", "gitboot.git.fetch", "gitboot.git.signatures"} & {*modules}


def test_a_failed_allocation_in_libgit2_is_reported_as_a_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_child = evaluator_child._EvaluationSettings(set_limits=lambda _: None)
    monkeypatch.setattr(evaluator_child, "_settings", in_a_child)
    expected = "the evaluation exceeds its memory limit"
    with pytest.raises(InvalidRepository, match=expected), limit_evaluation(), convert_errors("fleet"):
        raise pygit2.GitError("failed to mmap. Could not write data")
    with pytest.raises(SourceError, match="is missing"), limit_evaluation(), convert_errors("fleet"):
        raise KeyError("a" * 40)


def test_a_message_about_a_file_that_cannot_be_read_names_the_file_and_the_cause(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    with pytest.raises(SourceError) as raised, convert_errors("fleet"):
        long.stat()
    assert str(raised.value) == f"fleet: {long}: File name too long"


# Symlinks in commits


@pytest.mark.parametrize("rev", [(), ("--rev", "HEAD")], ids=["work tree", "commit"])
@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/self/environ", "/dev/zero", "pipe"])
def test_finding_s15_no_file_behind_a_symlink_of_a_commit_is_read(
    work: WorkTree, tmp_path: Path, target: str, rev: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "pipe")  # there is no writer, so opening it would wait forever
    data = "userData: {format: CloudInit, template: t/user-data.yaml, secrets: {join: s/join.age}}"
    work.commit({"fleet.yaml": "---\n".join((*SEED, profile("other", "flatcar-1", data))), "t/x": "", "s/x": ""})
    for name in ("t/user-data.yaml", "s/join.age", "other.yaml", ".gitignore", ".gitbootignore", "t/.gitignore"):
        (work.path / name).symlink_to(tmp_path / target)
    work.git("add", "--all")  # by Git itself: libgit2 would open the pipe
    work.git("commit", "--quiet", "--message=Link")
    work.write({"t/untracked": "", "untracked.yaml": ""})
    done = run_forked("validate", work.path, *rev, "-o", "json")
    found = {
        (problem["path"].removeprefix(f"{work.path}/"), problem["code"]) for problem in json.loads(done.stdout)["items"]
    }
    assert done.returncode == 3
    assert {(name, "GB5002") for name in ("t/user-data.yaml", "s/join.age", "other.yaml")} <= found
    assert "root:" not in done.stdout + done.stderr and "PATH=" not in done.stdout + done.stderr


def test_a_gitignore_that_is_a_symlink_ignores_nothing(work: WorkTree, tmp_path: Path) -> None:
    """Git ignores such a file too."""
    (tmp_path / "patterns").write_text("*.yaml\n")
    (work.path / ".gitignore").symlink_to(tmp_path / "patterns")
    work.write({"a.yaml": "a", "folder/b.yaml": "b"})
    assert [*open_snapshot(work.path, None).blobs] == ["a.yaml", "folder/b.yaml"]
    (work.path / ".gitignore").unlink()
    (work.path / ".gitignore").write_text("*.yaml\n")
    assert [*open_snapshot(work.path, None).blobs] == [".gitignore"]
