"""Branch writer: commits that add files, commits that are on a branch already, and bundles that Git can fetch."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gitboot.errors import UsageError
from gitboot.fleet.revision import Revision
from gitboot.git.branch_writer import find_proposal, propose_commit, write_bundle
from tests.helpers.git_repositories import ENVIRONMENT

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
BRANCH = "gitboot/update-stable-2"
FILES = {"images/os-2.yaml": b"two\n", "streams.yaml": b"rollout\n"}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a person", "-c", "user.email=person@example.net", *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository whose fleet is in the folder fleet/."""
    folder = tmp_path / "work"
    (folder / "fleet/images").mkdir(parents=True)
    (folder / "fleet/images/os-1.yaml").write_text("one\n")
    (folder / "fleet/streams.yaml").write_text("current\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=Begin")
    return folder


def head(work: Path) -> Revision:
    return Revision(git(work, "rev-parse", "HEAD"))


def test_a_commit_adds_a_file_and_a_second_one_at_the_same_time_is_the_same(work: Path) -> None:
    made = propose_commit(work / "fleet", head(work), BRANCH, FILES, "Add os-2", AT)
    assert git(work, "diff", "--name-status", f"main..{BRANCH}").split() == [
        *("A", "fleet/images/os-2.yaml"),
        *("M", "fleet/streams.yaml"),
    ]
    assert git(work, "show", f"{BRANCH}:fleet/images/os-2.yaml") == "two"
    assert git(work, "ls-tree", BRANCH, "fleet/images/os-2.yaml").split()[0] == "100644"
    assert (git(work, "status", "--porcelain"), git(work, "branch", "--show-current")) == ("", "main")
    assert propose_commit(work / "fleet", head(work), "other", FILES, "Add os-2", AT) == made
    assert propose_commit(work / "fleet", head(work), "later", FILES, "Add os-2", AT + timedelta(seconds=1)) != made


@pytest.mark.parametrize("file", ["streams.yaml/os-2.yaml", "linked/os-2.yaml"])
def test_a_file_is_not_added_below_a_file_or_a_symlink(work: Path, file: str) -> None:
    (work / "fleet/linked").symlink_to("images")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "--message=Link")
    with pytest.raises(UsageError, match=f"{Path(file).parent} is not a folder"):
        propose_commit(work / "fleet", head(work), BRANCH, {file: b"two\n"}, "Add", AT)
    assert git(work, "branch", "--list", "gitboot/*") == ""


@pytest.mark.parametrize("existing", ["gitboot", f"{BRANCH}/mine"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_an_existing_branch_that_prevents_a_new_one_is_named(work: Path, existing: str, is_packed: bool) -> None:
    git(work, "branch", existing)
    if is_packed:
        git(work, "pack-refs", "--all")
    with pytest.raises(UsageError) as error:
        propose_commit(work / "fleet", head(work), BRANCH, FILES, "Add os-2", AT)
    assert str(error.value) == (
        f"{work / 'fleet'}: Git cannot create the branch {BRANCH}, because the branch {existing} exists; rename it "
        f"with `git branch -m {existing} NEWNAME`"
    )
    git(work, "branch", "-m", existing, "mine")
    propose_commit(work / "fleet", head(work), BRANCH, FILES, "Add os-2", AT)


def test_a_proposal_is_found_on_a_local_branch_and_on_that_of_a_remote(work: Path, tmp_path: Path) -> None:
    assert find_proposal(work / "fleet", BRANCH, "images/os-2.yaml") is None
    base = head(work)
    made = propose_commit(work / "fleet", base, BRANCH, FILES, "Add os-2\n\nfrom somewhere\n", AT)
    found = find_proposal(work / "fleet", BRANCH, "images/os-2.yaml")
    assert found is not None
    assert (found.commit, found.parent, found.committed) == (made, base, AT)
    assert found.message == "Add os-2\n\nfrom somewhere\n"
    with pytest.raises(UsageError, match="does not contain images"):
        find_proposal(work / "fleet", BRANCH, "images/os-3.yaml")

    git(work, "checkout", "--quiet", BRANCH)
    (work / "fleet/images/os-2.yaml").write_text("two, with a comment\n")
    git(work, "commit", "--quiet", "--all", "--message=A person's")
    git(work, "checkout", "--quiet", "main")
    for name, depth in (("whole", ()), ("shallow", ("--depth=1", "--no-single-branch"))):
        clone = tmp_path / name
        git(tmp_path, "clone", "--quiet", *depth, work.as_uri(), name)
        there = find_proposal(clone / "fleet", BRANCH, "images/os-2.yaml")
        assert there is not None
        assert (there.commit == made) is (name == "whole")


def test_git_fetches_a_bundle_into_a_clone_that_has_the_parent(work: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", work.as_uri(), "clone")
    git(tmp_path, "clone", "--quiet", "--depth=1", work.as_uri(), "shallow")
    names = [BRANCH, "gitboot/update-edge-7"]
    for name in names:
        propose_commit(work / "fleet", head(work), name, {**FILES, f"images/{name[-1]}.yaml": b"it\n"}, "Add", AT)
    bundle = tmp_path / "updates.bundle"
    write_bundle(work / "fleet", bundle, names)
    again = tmp_path / "again.bundle"
    write_bundle(work / "fleet", again, names)
    assert again.read_bytes() == bundle.read_bytes()
    for name in ("clone", "shallow"):
        clone = tmp_path / name
        git(clone, "bundle", "verify", str(bundle))
        git(clone, "fetch", "--quiet", str(bundle), "refs/heads/gitboot/*:refs/fetched/*")
        for branch in names:
            assert git(clone, "rev-parse", f"refs/fetched/{branch.removeprefix('gitboot/')}") == git(
                work, "rev-parse", branch
            )
        git(clone, "fsck", "--strict")
    empty = tmp_path / "empty"
    git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(subprocess.CalledProcessError):
        git(empty, "fetch", "--quiet", str(bundle), "refs/heads/*:refs/fetched/*")
