"""Commits and lines of files: author, date and message."""

from __future__ import annotations

import operator
import os
from datetime import UTC, datetime
from pathlib import Path

import pygit2
import pytest

from gitboot.errors import UsageError
from gitboot.fleet.revision import CommitSummary, Revision
from gitboot.git.history import HISTORY_COMMITS, Blame, list_file_changes, open_blame, open_history
from gitboot.jsonio import to_json_value
from gitboot.render.page import render_history
from tests.helpers.git_repositories import WorkTree


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    return WorkTree(tmp_path / "fleet")


def _newest(work: WorkTree) -> CommitSummary:
    return open_history(work.path, None).steps[0].commit


def test_a_commit_has_its_author_date_and_message(work: WorkTree) -> None:
    revision = work.commit(message="Drain rack r12\n\nNET-412")
    assert _newest(work) == CommitSummary(
        revision=revision,
        author="Ada Lovelace <ada@example.net>",
        date=datetime(2026, 11, 20, 21, tzinfo=UTC),
        subject="Drain rack r12",
    )


def test_the_changed_files_of_commits_are_those_of_the_fleets_folder(work: WorkTree) -> None:
    work.commit({"fleet/a.yaml": "1", "README": "1"}, "First")
    work.commit({"README": "2"}, "Second")
    work.commit({"fleet/a.yaml": None, "fleet/b/c.yaml": "1"}, "Third")
    git = pygit2.Repository(str(work.path))
    found = list(list_file_changes(git, work.head, "fleet", {}))
    assert [(each.commit.subject, each.files) for each in found] == [
        ("Third", ("a.yaml", "b/c.yaml")),
        ("Second", ()),
        ("First", ("a.yaml",)),
    ]
    known = {each.commit.revision: each for each in found}
    work.commit({"fleet/a.yaml": "1"}, "Fourth")
    again = list(list_file_changes(git, work.head, "fleet", known))
    assert again[0].files == ("a.yaml",) and all(map(operator.is_, again[1:], found))
    for number in range(HISTORY_COMMITS):
        work.commit({"fleet/a.yaml": str(number)}, "More")
    assert len(list(list_file_changes(git, work.head, "fleet", {}))) == HISTORY_COMMITS


def test_a_changed_file_whose_name_is_not_utf8_can_be_published(work: WorkTree) -> None:
    path = Path(os.fsdecode(os.fsencode(work.path) + b"/.dot/caf\xe9"))
    path.parent.mkdir()
    path.write_text("1")
    work.commit()
    changes = list(list_file_changes(pygit2.Repository(str(work.path)), work.head, "", {}))
    assert changes[0].files == (".dot/caf\ufffd",)
    assert render_history(changes)


@pytest.mark.parametrize(
    ("author", "message", "shown"),
    [
        pytest.param(b"\xe9ve <e@x> 1 +0000", b"caf\xe9", ("\ufffdve <e@x>", "caf\ufffd", 1970), id="not UTF-8"),
        pytest.param(b"E <e@x> 99999999999999 +0000", b"far", ("E <e@x>", "far", 9999), id="beyond all dates"),
        pytest.param(
            b"E\x1b[2J <e@x> 1 +0000", b"\x1b]0;x\x07y", (r"E\u001b[2J <e@x>", r"\u001b]0;x\u0007y", 1970), id="escapes"
        ),
        pytest.param(b" <> 1 +0000", b"", ("<>", "", 1970), id="no name and no address"),
        pytest.param(b"E <e@x> 1 +0000", b"\n\n 'quoted'\nx", ("E <e@x>", "'quoted'", 1970), id="late subject"),
    ],
)
def test_any_text_of_a_commit_can_be_printed(
    work: WorkTree, tmp_path: Path, author: bytes, message: bytes, shown: tuple[str, str, int]
) -> None:
    work.commit({"fleet.yaml": "first"})
    tree = work.git("rev-parse", "HEAD^{tree}").encode()
    odd = tmp_path / "commit"
    odd.write_bytes(b"tree %s\nauthor %s\ncommitter %s\n\n%s" % (tree, author, author, message))
    revision = Revision(work.git("hash-object", "-t", "commit", "-w", "--literally", str(odd)))
    work.git("update-ref", "refs/heads/main", revision)
    told = _newest(work)
    assert (told.author, told.subject, told.date.year) == shown


THREE = "one\ntwo\nthree\n"


def blame(path: Path, rev: str | None = None) -> Blame:
    found = open_blame(path, rev)
    assert found is not None
    return found


def subjects(found: Blame, path: str, lines: int = 3) -> list[str | None]:
    commits = [found.line(path, number) for number in range(1, lines + 1)]
    return [commit.subject if commit else None for commit in commits]


def test_each_line_has_the_commit_that_wrote_it(work: WorkTree) -> None:
    first = work.commit({"a.yaml": THREE}, "First")
    work.commit({"a.yaml": "one\n2\nthree\n"}, "Second")
    work.commit({"b.yaml": "other"}, "Third")
    found = blame(work.path, "HEAD")
    assert subjects(found, "a.yaml") == ["First", "Second", "First"]
    commit = found.line("a.yaml", 1)
    assert commit is not None
    assert (commit.revision, commit.author) == (first, "Ada Lovelace <ada@example.net>")
    assert to_json_value(commit)["date"] == "2026-11-20T21:00:00Z"


def test_an_earlier_revision_has_its_own_lines(work: WorkTree) -> None:
    work.commit({"a.yaml": THREE}, "First")
    work.commit({"a.yaml": "one\n2\nthree\n"}, "Second")
    assert subjects(blame(work.path, "HEAD~1"), "a.yaml") == ["First"] * 3


@pytest.mark.parametrize(
    ("case", "now", "expected"),
    [
        ("untouched", THREE, ["First", "First", "First"]),
        ("a line changed", "one\n2\nthree\n", ["First", None, "First"]),
        ("a line above", "zero\none\ntwo\n", [None, "First", "First"]),
        ("a line removed", "two\nthree\n", ["First", "First", None]),
        ("line ends of another system", "one\r\ntwo\r\nnew\r\n", ["First", "First", None]),
        ("without its last line end", "one\ntwo\nthree", ["First", "First", "First"]),
        ("empty", "", [None, None, None]),
    ],
)
def test_an_uncommitted_line_has_no_commit(work: WorkTree, case: str, now: str, expected: list[str | None]) -> None:
    work.commit({"a.yaml": THREE}, "First")
    (work.path / "a.yaml").write_bytes(now.encode())
    assert subjects(blame(work.path), "a.yaml") == expected, case


def test_an_uncommitted_file_has_no_commit(work: WorkTree) -> None:
    (work.path / "before.yaml").write_text(THREE)
    assert subjects(blame(work.path), "before.yaml") == [None] * 3  # there is no commit at all
    work.commit({"a.yaml": THREE}, "First")
    (work.path / "new.yaml").write_text(THREE)
    assert subjects(blame(work.path), "new.yaml") == [None] * 3


def test_lines_are_found_for_a_fleet_in_a_folder_and_in_a_bare_repository(work: WorkTree, tmp_path: Path) -> None:
    work.commit({"fleets/a.yaml": THREE}, "First")
    assert subjects(blame(work.path / "fleets"), "a.yaml") == ["First"] * 3
    assert subjects(blame(work.bare(tmp_path / "bare.git")), "fleets/a.yaml") == ["First"] * 3


def test_without_git_no_author_is_known(tmp_path: Path) -> None:
    assert open_blame(tmp_path, None) is None


def test_a_missing_revision_is_named(work: WorkTree) -> None:
    work.commit({"a.yaml": THREE})
    with pytest.raises(UsageError, match="has no commit nonsense"):
        open_blame(work.path, "nonsense")


def test_a_file_is_read_once_and_only_on_request(work: WorkTree) -> None:
    work.commit({"a.yaml": THREE}, "First")
    found = blame(work.path, "HEAD")
    assert subjects(found, "a.yaml") == ["First"] * 3
    (work.path / ".git").rename(work.path / "gone")
    assert subjects(found, "a.yaml") == ["First"] * 3
