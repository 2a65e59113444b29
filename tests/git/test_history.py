"""Commits: who made one, when and why."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gitboot.fleet.revision import Revision
from gitboot.git.history import CommitSummary, open_history
from tests.helpers.git_repositories import Work


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "fleet")


def _newest(work: Work) -> CommitSummary:
    return open_history(work.path, None).steps[0].commit


def test_a_commit_tells_who_when_and_why(work: Work) -> None:
    revision = work.commit(message="Drain rack r12\n\nNET-412")
    assert _newest(work) == CommitSummary(
        revision=revision,
        author="Ada Lovelace <ada@example.net>",
        date=datetime(2026, 11, 20, 21, tzinfo=UTC),
        subject="Drain rack r12",
    )


@pytest.mark.parametrize(
    ("author", "message", "shown"),
    [
        pytest.param(b"\xe9ve <e@x> 1 +0000", b"caf\xe9", ("\ufffdve <e@x>", "caf\ufffd", 1970), id="not UTF-8"),
        pytest.param(b"E <e@x> 99999999999999 +0000", b"far", ("E <e@x>", "far", 9999), id="beyond all dates"),
        pytest.param(
            b"E\x1b[2J <e@x> 1 +0000", b"\x1b]0;x\x07y", (r"E\u001b[2J <e@x>", r"\u001b]0;x\u0007y", 1970), id="escapes"
        ),
        pytest.param(b" <> 1 +0000", b"", ("<>", "", 1970), id="nobody, nothing"),
        pytest.param(b"E <e@x> 1 +0000", b"\n\n 'quoted'\nx", ("E <e@x>", "'quoted'", 1970), id="late subject"),
    ],
)
def test_whatever_a_commit_says_can_be_shown(
    work: Work, tmp_path: Path, author: bytes, message: bytes, shown: tuple[str, str, int]
) -> None:
    work.commit({"fleet.yaml": "first"})
    tree = work.git("rev-parse", "HEAD^{tree}").encode()
    odd = tmp_path / "commit"
    odd.write_bytes(b"tree %s\nauthor %s\ncommitter %s\n\n%s" % (tree, author, author, message))
    revision = Revision(work.git("hash-object", "-t", "commit", "-w", "--literally", str(odd)))
    work.git("update-ref", "refs/heads/main", revision)
    told = _newest(work)
    assert (told.author, told.subject, told.date.year) == shown
