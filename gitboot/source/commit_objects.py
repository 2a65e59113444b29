"""Commits and tags, read from the bytes that Git stores.

libgit2 rejects a whole commit if, for example, its author has no e-mail address. Git serves such commits, and they stay
in a history for good. So gitboot reads the tree and the parents by itself, and takes what it can from everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from typing import Final, NamedTuple

import pygit2
from pygit2.enums import ObjectType

from gitboot.fleet.revision import Revision
from gitboot.git.repository import objects_of


class Person(NamedTuple):
    """An author, a committer or a tagger, as the commit has them. Fields that cannot be read are empty or 0."""

    name: bytes
    email: bytes
    time: int  # seconds since 1970
    offset: int  # minutes east of UTC


class CommitObject:
    """One commit. Only the fields that a caller reads are parsed."""

    def __init__(self, id: pygit2.Oid, raw: bytes) -> None:
        self.id, self.raw = id, raw
        found = _TREE.match(raw)
        self.tree: Final = pygit2.Oid(hex=found[1].decode()) if found is not None else None  # None: it names no tree
        # git reads a parent only directly after the tree or another parent: commit.c, parse_commit_buffer.
        parents = _PARENTS.match(raw, found.end() if found is not None else 0)
        lines = parents[0].split(b"\n")[:-1] if parents is not None else []
        self.parents = tuple(pygit2.Oid(hex=line.removeprefix(b"parent ").decode()) for line in lines)

    @property
    def revision(self) -> Revision:
        return Revision(str(self.id))

    @cached_property
    def _parts(self) -> tuple[bytes, bytes]:
        header, _, message = self.raw.partition(b"\n\n")
        return header, message

    @property
    def message(self) -> bytes:
        """The message as ``git log`` shows it: up to the first NUL."""
        return self._parts[1].partition(b"\0")[0].lstrip(b"\n")

    @property
    def author(self) -> Person:
        return self._person(b"author ")

    @property
    def committer(self) -> Person:
        return self._person(b"committer ")

    @property
    def content_digest(self) -> str:
        """The SHA-256 of the commit without its signatures, as hexadecimal digits.

        A signature covers exactly these bytes. So the digest stays the same if a stranger writes a signature in
        another form, although the commit then has another id.
        """
        return sha256(content_of(self.raw)).hexdigest()

    def _person(self, prefix: bytes) -> Person:
        """Return the first person with this header."""
        lines = self._parts[0].split(b"\n")
        return parse_person(next((line.removeprefix(prefix) for line in lines if line.startswith(prefix)), b""))


_TREE: Final = re.compile(rb"tree ([0-9a-f]{40})\n")
_PARENTS: Final = re.compile(rb"(?:parent [0-9a-f]{40}\n)*")


class TagObject(NamedTuple):
    """An annotated tag."""

    target: pygit2.Oid
    name: bytes


def parse_person(text: bytes) -> Person:
    """Read ``Name <address> seconds +hhmm`` as far as that is there.

    The address begins at the last ``<`` and ends at the last ``>``, as libgit2 has it (signature.c).
    """
    who, mark, rest = text.rpartition(b">")
    if not mark:
        who, rest = text, b""
    name, mark, email = who.rpartition(b"<")
    if not mark:
        name, email = who, b""
    if not rest and (found := _TIME_AT_END.search(name)) is not None:  # there is no address
        name, rest = name[: found.start()], found[0]
    time = _TIME.match(rest)
    seconds = int(time[1]) if time is not None and len(time[1]) < _MOST_DIGITS else 0
    return Person(name.strip(_CRUD), email.strip(_CRUD), seconds, _offset(time[2]) if time and time[2] else 0)


def _offset(text: bytes) -> int:
    """Return the minutes of ``+hhmm``; 0 for what no place on Earth has, as libgit2 does (signature.c)."""
    hours, minutes = int(text[1:3]), int(text[3:5])
    if hours > 14 or minutes > 59:
        return 0
    return (hours * 60 + minutes) * (-1 if text.startswith(b"-") else 1)


_TIME: Final = re.compile(rb"[ \t]*(-?[0-9]+)(?:[ \t]+([+-][0-9]{4})(?![0-9]))?")
_TIME_AT_END: Final = re.compile(rb"(?:^|[ \t])-?[0-9]+(?:[ \t]+[+-][0-9]{4})?[ \t]*$")
_MOST_DIGITS: Final = 19  # of a number with 63 bits
_CRUD: Final = bytes(range(33)) + b".,:;<>\"\\'"  # libgit2 removes these around names: signature.c, is_crud


def content_of(raw: bytes) -> bytes:
    """Return a commit without the headers of signatures, each of which begins with ``gpgsig``."""
    header, blank, message = raw.partition(b"\n\n")
    kept: list[bytes] = []
    is_signature = False
    for line in header.split(b"\n"):
        is_signature = line.startswith((b"gpgsig ", b"gpgsig-")) or (is_signature and line.startswith(b" "))
        if not is_signature:
            kept.append(line)
    return b"\n".join(kept) + blank + message


class CommitReader:
    """Reads commits of one repository that is open. A commit at which a shallow clone ends has no parents."""

    def __init__(self, git: pygit2.Repository) -> None:
        self._git = git
        shallow = objects_of(git).parent / "shallow"
        self._cut = frozenset(shallow.read_bytes().split()) if git.is_shallow and shallow.exists() else frozenset()

    def read(self, id: pygit2.Oid | str) -> CommitObject:
        """Return a commit. Raises `KeyError` if there is no such object, `pygit2.GitError` if it is no commit."""
        oid = id if isinstance(id, pygit2.Oid) else pygit2.Oid(hex=id)
        kind, raw = self._git.odb.read(oid)
        if kind != ObjectType.COMMIT:
            raise pygit2.GitError(f"{oid} is no commit")
        commit = CommitObject(oid, raw)
        if self._cut and str(oid).encode() in self._cut:
            commit.parents = ()
        return commit

    def peel(self, id: pygit2.Oid | str) -> CommitObject:
        """Return the commit that an id means: the commit itself, or the one that a tag points to."""
        oid = id if isinstance(id, pygit2.Oid) else pygit2.Oid(hex=id)
        while (tag := read_tag(self._git, oid)) is not None:
            oid = tag.target
        return self.read(oid)

    def first_parents(self, tip: pygit2.Oid | str) -> Iterator[CommitObject]:
        """Yield a commit, its first parent, the first parent of that, and so on."""
        commit = self.peel(tip)
        yield commit
        while commit.parents:
            commit = self.read(commit.parents[0])
            yield commit


def tree_of(git: pygit2.Repository, commit: CommitObject) -> pygit2.Tree | None:
    """Return a commit's tree; None if it names none. Raises `KeyError` if the tree is missing."""
    found = git[commit.tree] if commit.tree is not None else None
    return found if isinstance(found, pygit2.Tree) else None


def read_tag(git: pygit2.Repository, id: pygit2.Oid) -> TagObject | None:
    """Return an annotated tag; None if the object is something else. Raises `KeyError` and `pygit2.GitError`."""
    kind, raw = git.odb.read(id)
    if kind != ObjectType.TAG:
        return None
    found = _TAG.match(raw)
    if found is None:
        raise pygit2.GitError(f"tag {id} names no object")
    return TagObject(pygit2.Oid(hex=found[1].decode()), found[2] or b"")


_TAG: Final = re.compile(rb"object ([0-9a-f]{40})\n(?:type [a-z]+\n)?(?:tag ([^\n]*)\n)?")


def peel_reference(git: pygit2.Repository, reference: pygit2.Reference) -> CommitObject:
    """Return the commit that a reference leads to. Raises `KeyError` and `pygit2.GitError`."""
    target = reference.resolve().target
    assert isinstance(target, pygit2.Oid)  # noqa: S101 - a resolved reference names an object
    return CommitReader(git).peel(target)
