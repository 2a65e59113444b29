"""Commits that `git fsck` reports, by the name of the message: git-fsck(1), FSCK MESSAGES."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from gitboot.fleet.revision import Revision
from tests.helpers.repositories import ENVIRONMENT, Work

_ADA = b"Ada <ada@example.net> 1700000000 +0000"


def _raw(author: bytes | None = _ADA, committer: bytes | None = _ADA, more: bytes = b"", end: bytes = b"\n") -> bytes:
    """A commit with TREE and PARENT as places for two ids."""
    people = b"".join(
        b"%b %b\n" % (header, person)
        for header, person in ((b"author", author), (b"committer", committer))
        if person is not None
    )
    return b"tree TREE\nparent PARENT\n" + people + more + end + b"Malformed\n"


MALFORMED: Mapping[str, bytes] = {
    "badDate": _raw(b"Ada <ada@example.net> soon +0000"),
    "badDateOverflow": _raw(b"Ada <ada@example.net> 99999999999999999999999 +0000"),
    "badEmail": _raw(b"Ada <ada@exam<ple.net> 1700000000 +0000"),
    "badName": _raw(b"Ada> <ada@example.net> 1700000000 +0000"),
    "badTimezone": _raw(b"Ada <ada@example.net> 1700000000 +99999999"),
    "badGpgsig": _raw(more=b"gpgsig\n"),
    "missingAuthor": _raw(author=None),
    "missingCommitter": _raw(committer=None),
    "missingBoth": _raw(None, None),
    "missingDate": _raw(b"Ada <ada@example.net>"),
    "missingEmail": _raw(b"Ada 1700000000 +0000"),
    "missingEmailOfCommitter": _raw(committer=b"Ada 1700000000 +0000"),
    "missingEmailEnd": _raw(b"Ada <ada@example.net 1700000000 +0000", b"Ada <ada@example.net 1700000000 +0000"),
    "missingNameBeforeEmail": _raw(b"<ada@example.net> 1700000000 +0000"),
    "missingPerson": _raw(b"", b""),
    "missingSpaceBeforeDate": _raw(b"Ada <ada@example.net>1700000000 +0000"),
    "missingSpaceBeforeEmail": _raw(b"Ada<ada@example.net> 1700000000 +0000"),
    "multipleAuthors": _raw(more=b"author Bob\nauthor <>\n"),
    "multipleCommitters": _raw(more=b"committer Bob\n"),
    "negativeDate": _raw(b"Ada <ada@example.net> -1 +0000", b"Ada <ada@example.net> -99999999999 +0000"),
    "hugeDate": _raw(b"Ada <ada@example.net> 999999999999999999 +0000", b"Ada <a@b> 999999999999999999 +0000"),
    "nulInCommit": _raw(end=b"\n\0"),
    "nulInHeader": _raw(b"A\0da <ada@example.net> 1700000000 +0000"),
    "notUtf8": _raw(b"\xff\xfe <\xff> 1700000000 +0000", more=b"encoding none-such\n"),
    "unterminatedHeader": _raw(end=b""),
    "zeroPaddedDate": _raw(b"Ada <ada@example.net> 01700000000 +0000"),
}


def commit_malformed(work: Work, raw: bytes) -> Revision:
    """Put a commit of these bytes on the branch. It has the tree of the commit before."""
    if b"TREE" in raw:
        raw = raw.replace(b"TREE", work.git("rev-parse", "HEAD^{tree}").encode())
    raw = raw.replace(b"PARENT", work.git("rev-parse", "HEAD").encode())
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"],
        cwd=work.path,
        env=ENVIRONMENT,
        input=raw,
        capture_output=True,
        check=True,
    ).stdout.decode()
    branch = work.git("symbolic-ref", "HEAD")
    (work.path / ".git" / branch).write_text(made)  # git points no branch at some of them
    return Revision(made.strip())


def commit_by_git(work: Work, files: Mapping[str, str | None], message: str = "Change") -> Revision:
    """Make a commit by git itself: libgit2 makes none on a commit that it cannot parse."""
    work.write(files)
    work.git("add", "--all")
    work.git("commit", "--quiet", f"--message={message}")
    return work.head
