"""Git repositories as people make them, and commits and packs that no git program writes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from collections.abc import Mapping
from datetime import datetime
from itertools import repeat
from pathlib import Path

import pygit2

from gitboot.fleet.revision import Revision

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_AUTHOR_NAME": "Ada Lovelace",
    "GIT_AUTHOR_EMAIL": "ada@example.net",
    "GIT_AUTHOR_DATE": "2026-11-20T22:00:00+01:00",
    "GIT_COMMITTER_NAME": "Merge Bot",
    "GIT_COMMITTER_EMAIL": "bot@example.net",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",  # a commit starts no program that looks whether there is something to tidy up
    "GIT_CONFIG_KEY_0": "maintenance.auto",
    "GIT_CONFIG_VALUE_0": "false",
    "HOME": os.devnull,
}
_ADA = pygit2.Signature(
    ENVIRONMENT["GIT_AUTHOR_NAME"],
    ENVIRONMENT["GIT_AUTHOR_EMAIL"],
    int(datetime.fromisoformat(ENVIRONMENT["GIT_AUTHOR_DATE"]).timestamp()),
    60,  # minutes: its zone
)


class Work:
    """A work tree with its repository, on branch main."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists():  # that is of a linked work tree
            pygit2.init_repository(str(path), initial_head="main")

    def git(self, *arguments: str, text: str = "") -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=ENVIRONMENT, input=text, capture_output=True, text=True, check=True
        ).stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        """Write files; None removes one."""
        for name, text in files.items():
            path = self.path / name
            if text is None:
                path.unlink()
                if path.parent != self.path and not any(path.parent.iterdir()):
                    path.parent.rmdir()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def commit(self, files: Mapping[str, str | None] | None = None, message: str = "Change") -> Revision:
        self.write(files or {})
        repository = pygit2.Repository(str(self.path))  # in this process: git would be started three times
        repository.index.add_all()
        repository.index.write()
        parents = [] if repository.head_is_unborn else [repository.head.target]
        bot = pygit2.Signature(ENVIRONMENT["GIT_COMMITTER_NAME"], ENVIRONMENT["GIT_COMMITTER_EMAIL"])
        tree = repository.index.write_tree()
        return Revision(str(repository.create_commit("HEAD", _ADA, bot, f"{message.strip()}\n", tree, parents)))

    @property
    def head(self) -> Revision:
        return Revision(str(pygit2.Repository(str(self.path)).head.target))

    def bare(self, path: Path) -> Path:
        """A bare repository with the same branches and tags, which ``git push`` goes to from now on."""
        self.git("clone", "--quiet", "--bare", str(self.path), str(path))
        self.git("remote", "add", "origin", str(path))
        return path


_MALFORMED_ADA = b"Ada <ada@example.net> 1700000000 +0000"


def _raw(
    author: bytes | None = _MALFORMED_ADA,
    committer: bytes | None = _MALFORMED_ADA,
    more: bytes = b"",
    end: bytes = b"\n",
) -> bytes:
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


_MIB = 1 << 20
_BLOB, _REF_DELTA = 3, 7


def push_differences(bare: Path, mebibytes: int) -> str:
    """Commit a file of so many MiB and another one that is sent as a difference from it; some hundred KB in all.

    Whoever unpacks the second one by the book has both in memory.
    """
    size, end = mebibytes * _MIB, b"another end"
    base = _id_of(_zeros(mebibytes), size)
    difference = b"".join((_number(size), _number(size + len(end)), _copies(mebibytes), bytes([len(end)]), end))
    pack = b"".join(
        (
            b"PACK" + (2).to_bytes(4) + (2).to_bytes(4),
            *(_head(_BLOB, size), _packed(_zeros(mebibytes))),
            *(_head(_REF_DELTA, len(difference)), bytes.fromhex(base), zlib.compress(difference)),
        )
    )
    _git(bare, "index-pack", "--stdin", given=pack + hashlib.sha1(pack, usedforsecurity=False).digest())
    other = _id_of((*_zeros(mebibytes), end), size + len(end))
    kept = _git(bare, "ls-tree", "main")
    tree = _git(
        bare, "mktree", given=f"{kept}\n100644 blob {base}\tbig0.yaml\n100644 blob {other}\tbig1.yaml\n".encode()
    )
    commit = _git(bare, "commit-tree", "-p", "main", "-m", "Large", tree)
    _git(bare, "update-ref", "refs/heads/main", commit)
    return commit


def _zeros(mebibytes: int) -> tuple[bytes, ...]:
    return tuple(repeat(bytes(_MIB), mebibytes))


def _id_of(parts: tuple[bytes, ...], size: int) -> str:
    made = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def _packed(parts: tuple[bytes, ...]) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join((*(packer.compress(part) for part in parts), packer.flush()))


def _head(kind: int, size: int) -> bytes:
    """The type and the size of an object; gitformat-pack(5), "Size encoding"."""
    first, rest = kind << 4 | size & 0x0F, size >> 4
    return bytes([first | (0x80 if rest else 0)]) + (_number(rest) if rest else b"")


def _number(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _copies(mebibytes: int) -> bytes:
    """Instructions to copy the base, a MiB each; the same page, "Instruction to copy from base object"."""
    return b"".join(
        bytes([0x80 | 0x0F | 0x40]) + (at * _MIB).to_bytes(4, "little") + b"\x10" for at in range(mebibytes)
    )


def _git(bare: Path, *arguments: str, given: bytes = b"") -> str:
    person = {f"GIT_{who}_{what}": "a@example.net" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(bare), *arguments]
    return subprocess.run(command, input=given, env=person, capture_output=True, check=True).stdout.decode().strip()
