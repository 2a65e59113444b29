"""Git objects: read and parse commits, tags and trees, including those that libgit2 rejects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from typing import Final, NamedTuple

import pygit2
from pygit2.enums import ObjectType

from gitboot.fleet.revision import Revision
from gitboot.git.repository import get_common_directory

MAX_TREE_BYTES: Final = 64 * 1024 * 1024  # the maximum size of a tree object, which gitboot reads into memory
_ENTRY: Final = re.compile(rb"([1-7][0-7]{4,5}) ([^\0]+)\0(.{20})", re.DOTALL)
_TREE: Final = re.compile(rb"tree ([0-9a-f]{40})\n")
_PARENTS: Final = re.compile(rb"(?:parent [0-9a-f]{40}\n)*")
_TIME: Final = re.compile(rb"[ \t]*(-?[0-9]+)(?:[ \t]+([+-][0-9]{4})(?![0-9]))?")
_TIME_AT_END: Final = re.compile(rb"(?:^|[ \t])-?[0-9]+(?:[ \t]+[+-][0-9]{4})?[ \t]*$")
_MAX_DIGITS: Final = 19  # the maximum number of digits, because longer numbers may exceed 63 bits
# libgit2 removes these bytes at both ends of names (signature.c, is_crud)
_TRIMMED_BYTES: Final = bytes(range(33)) + b".,:;<>\"\\'"
_SIGNATURE: Final = re.compile(rb"^gpgsig[ -][^\n]*\n(?: [^\n]*\n)*", re.MULTILINE)
_TAG: Final = re.compile(rb"object ([0-9a-f]{40})\n(?:type [a-z]+\n)?(?:tag ([^\n]*)\n)?")
# the modes of entries in a tree
TREE: Final = b"40000"
SYMLINK: Final = b"120000"
SUBMODULE: Final = b"160000"
Entry = tuple[bytes, bytes, bytes]  # the mode, the name and the ID of an entry in a tree


class MalformedTree(pygit2.GitError):
    """The error for a Git tree that is malformed or too large."""


def parse_tree(objects: pygit2.Odb, tree: bytes) -> list[Entry]:
    """Return the entries of a tree. This is several times faster than with pygit2. Raises `MalformedTree`."""
    oid = pygit2.Oid(raw=tree)
    _, size_bytes = objects.read_header(oid)
    if size_bytes > MAX_TREE_BYTES:  # a few bytes in a pack can expand to gigabytes
        raise MalformedTree(f"tree {tree.hex()} is {size_bytes:,} bytes long, but the limit is {MAX_TREE_BYTES:,}")
    _, data = objects.read(oid)
    entries: list[Entry] = _ENTRY.findall(data)
    # each entry has a space, a NUL character and an ID of 20 bytes in addition to its mode and name
    if sum(len(mode) + len(name) + 22 for mode, name, _ in entries) != len(data):
        raise MalformedTree(f"tree {tree.hex()} is malformed")
    return entries


class Person(NamedTuple):
    """The author or the committer of a commit. A field that gitboot cannot parse is empty or 0."""

    name: bytes
    email: bytes
    time: int  # seconds since 1970
    offset: int  # minutes east of UTC


class CommitObject:
    """A commit object, whose fields are parsed when they are needed."""

    def __init__(self, id: pygit2.Oid, raw: bytes) -> None:
        self.id, self.raw = id, raw
        tree = _TREE.match(raw)
        # None: the commit has no tree.
        self.tree: Final = pygit2.Oid(hex=tree[1].decode()) if tree is not None else None
        # Git accepts a parent only directly after the tree or after another parent (commit.c, parse_commit_buffer).
        parents = _PARENTS.match(raw, tree.end() if tree is not None else 0)
        lines = parents[0].splitlines() if parents is not None else []
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
        """The message as ``git log`` shows it: the text before the first NUL character."""
        _, message = self._parts
        return message.partition(b"\0")[0].lstrip(b"\n")

    @property
    def author(self) -> Person:
        return self._person(b"author ")

    @property
    def committer(self) -> Person:
        return self._person(b"committer ")

    @property
    def content_digest(self) -> str:
        """The SHA-256 of the commit without its signatures, in hexadecimal.

        A signature covers exactly these bytes. If a program rewrites the signature in another form, the commit ID
        changes, but this digest stays the same.
        """
        content, _ = split_signatures(self.raw)
        return sha256(content).hexdigest()

    def _person(self, prefix: bytes) -> Person:
        header, _ = self._parts
        lines = (line.removeprefix(prefix) for line in header.split(b"\n") if line.startswith(prefix))
        return parse_person(next(lines, b""))


class TagObject(NamedTuple):
    """An annotated tag, with the name that the tag object contains."""

    target: pygit2.Oid
    name: bytes


def parse_person(text: bytes) -> Person:
    """Parse ``Name <address> seconds +hhmm``. Parts may be missing.

    The address begins at the last ``<`` and ends at the last ``>``, as in libgit2 (signature.c).
    """
    person, mark, time = text.rpartition(b">")
    if not mark:
        person, time = text, b""
    name, mark, email = person.rpartition(b"<")
    if not mark:
        name, email = person, b""
    # if the commit contains no address, the time follows the name
    if not time and (match := _TIME_AT_END.search(name)) is not None:
        name, time = name[: match.start()], match[0]
    seconds = offset = 0
    if (match := _TIME.match(time)) is not None:
        seconds = int(match[1]) if len(match[1]) < _MAX_DIGITS else 0
        offset = _parse_offset(match[2]) if match[2] else 0
    return Person(name.strip(_TRIMMED_BYTES), email.strip(_TRIMMED_BYTES), seconds, offset)


def _parse_offset(text: bytes) -> int:
    """Convert ``+hhmm`` or ``-hhmm`` to minutes. libgit2 reads impossible offsets as 0 (signature.c)."""
    hours, minutes = int(text[1:3]), int(text[3:5])
    if hours > 14 or minutes > 59:
        return 0
    offset = hours * 60 + minutes
    return -offset if text.startswith(b"-") else offset


def split_signatures(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Split a commit into its signature headers, which begin with ``gpgsig``, and the content without these headers."""
    header, blank, message = raw.partition(b"\n\n")
    lines = header + b"\n"
    return _SIGNATURE.sub(b"", lines)[:-1] + blank + message, _SIGNATURE.findall(lines)


class CommitReader:
    """Reads commits from an open repository. In a shallow clone, the oldest commits appear to have no parents."""

    def __init__(self, git: pygit2.Repository) -> None:
        self._git = git
        shallow = get_common_directory(git) / "shallow"
        self._cut = frozenset(shallow.read_bytes().split()) if git.is_shallow and shallow.exists() else frozenset()

    def read(self, id: pygit2.Oid | str) -> CommitObject:
        """Return the commit with this ID.

        Raises `KeyError` if the object is missing. Raises `pygit2.GitError` if the object is not a commit.
        """
        oid = id if isinstance(id, pygit2.Oid) else pygit2.Oid(hex=id)
        kind, raw = self._git.odb.read(oid)
        if kind != ObjectType.COMMIT:
            raise pygit2.GitError(f"{oid} is not a commit")
        commit = CommitObject(oid, raw)
        if self.is_cut(oid):
            commit.parents = ()
        return commit

    def is_cut(self, id: pygit2.Oid) -> bool:
        """Return whether a shallow clone lacks the parents of this commit."""
        return bool(self._cut) and str(id).encode() in self._cut

    def peel(self, id: pygit2.Oid | str) -> CommitObject:
        """Return the commit with this ID or, if the ID belongs to a tag, the commit that the tag points to."""
        oid = id if isinstance(id, pygit2.Oid) else pygit2.Oid(hex=id)
        while (tag := read_tag(self._git, oid)) is not None:
            oid = tag.target
        return self.read(oid)

    def first_parents(self, tip: pygit2.Oid | str) -> Iterator[CommitObject]:
        """Yield a commit, then its first parent, then the first parent of that parent, and so on."""
        commit = self.peel(tip)
        yield commit
        while commit.parents:
            commit = self.read(commit.parents[0])
            yield commit


def read_tree(git: pygit2.Repository, commit: CommitObject) -> pygit2.Tree | None:
    """Return the tree of a commit, or None if the commit object does not name a tree.

    Raises `KeyError` if the tree object is missing.
    """
    tree = git[commit.tree] if commit.tree is not None else None
    return tree if isinstance(tree, pygit2.Tree) else None


def read_tag(git: pygit2.Repository, id: pygit2.Oid) -> TagObject | None:
    """Return an annotated tag, or None if the object is not a tag. Raises `KeyError` if the object is missing."""
    kind, raw = git.odb.read(id)
    if kind != ObjectType.TAG:
        return None
    match = _TAG.match(raw)
    if match is None:
        raise pygit2.GitError(f"tag {id} does not point to an object")
    return TagObject(pygit2.Oid(hex=match[1].decode()), match[2] or b"")


def peel_reference(git: pygit2.Repository, reference: pygit2.Reference) -> CommitObject:
    """Return the commit that a reference points to.

    Raises `KeyError` if the commit is missing. Raises `pygit2.GitError` if the object is not a commit.
    """
    target = reference.resolve().target
    assert isinstance(target, pygit2.Oid)  # noqa: S101 - a resolved reference names an object
    return CommitReader(git).peel(target)
