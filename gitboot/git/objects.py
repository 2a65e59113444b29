"""Git objects: read and parse commits, tags and trees, including those that libgit2 rejects."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple

import pygit2
from pygit2.enums import ObjectType

from gitboot.fleet.revision import MAX_FILE_BYTES, Revision
from gitboot.git.repository import (
    get_common_directory,
    get_git_directory,
    get_objects_directory,
    open_repository,
    report_work,
)

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


_OVERSIZED_LIST: Final = "left-out"
_OVERSIZED_LINE: Final = re.compile(r"^([0-9a-f]{40}) ([0-9]+)$", re.MULTILINE)
# libgit2 does not compute deltas for larger objects. It reads the limit from the configuration of the builder's
# repository, under the name of another setting (pack-objects.c, packbuilder_config).
_DELTA_LIMIT: Final = {"core.bigFileThreshold": "64k", "pack.deltaCacheSize": "64k"}
_PIECE_BYTES: Final = 1 << 20
_IDS_AT: Final = 8 + 4 * 256  # the position of the IDs in a pack index, after a header of 8 bytes and the fan-out table


def copy_objects(theirs: pygit2.Repository, ours: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Copy ``tip`` and all objects reachable from it into ``ours`` as one pack, except objects that ``ours`` has.

    A fetch with libgit2 has the same result, but reads all trees of the last commit for each new commit. With 100,000
    files, a fetch with libgit2 takes 100 ms instead of 10 ms. gitboot only lists blobs above the size limit, and does
    not copy them. Copying a blob needs memory for the whole blob, and a few bytes in a pack can expand to gigabytes.
    """
    present: pygit2.Odb | Collection[pygit2.Oid] = ours.odb
    if not any(_get_pack_directory(ours).iterdir()):
        _copy_packs(theirs, ours)
        present = ()  # the packs of the source may contain a commit whose parents are loose objects
    oversized: dict[str, int] = {}
    known_oversized = read_oversized_blobs(get_git_directory(theirs))  # the source may also be a clone of gitboot
    with open_repository(get_git_directory(ours)) as combined:
        # intern, because pygit2 never frees the path
        combined.odb.add_disk_alternate(intern(str(get_objects_directory(theirs))))
        builder = _create_pack_builder(combined)
        for oid in list_reachable_objects(theirs, tip, present):
            report_work()
            if oid in ours.odb:
                continue
            size = known_oversized.get(str(oid)) or _read_blob_size(theirs, oid)
            if is_oversized(size):
                oversized[str(oid)] = size
            else:
                builder.add(oid)
        if oversized:
            add_oversized_blobs(get_git_directory(ours), oversized)
        if len(builder):
            builder.write(_get_pack_directory(ours))


def _create_pack_builder(ours: pygit2.Repository) -> pygit2.PackBuilder:
    """Return a pack builder that does not compute deltas for large objects, because such deltas would take minutes."""
    for name, value in _DELTA_LIMIT.items():
        if name not in ours.config:
            ours.config[name] = value
    return pygit2.PackBuilder(ours)


def _copy_packs(theirs: pygit2.Repository, ours: pygit2.Repository) -> None:
    for index in _get_pack_directory(theirs).glob("pack-*.idx"):
        for file in (index.with_suffix(".pack"), index):
            with open(_get_pack_directory(ours) / file.name, "xb") as copied, open(file, "rb") as original:
                while piece := original.read(_PIECE_BYTES):
                    copied.write(piece)
                    report_work()
                copied.flush()
                os.fsync(copied.fileno())


def check_objects(repository: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Read all objects that are reachable from ``tip``. Raises `pygit2.GitError` if an object is damaged or missing."""
    for oid in list_reachable_objects(repository, tip, ()):
        report_work()
        if not is_oversized(_read_blob_size(repository, oid)):
            repository.odb.read(oid)


def list_reachable_objects(
    repository: pygit2.Repository,
    tip: pygit2.Oid,
    excluded: pygit2.Odb | Collection[pygit2.Oid],
    *,
    with_files: bool = True,
) -> set[pygit2.Oid]:
    """Return all objects that are reachable from ``tip``. References from ``excluded`` objects are not followed.

    Without ``with_files``, return only commits and tags. Raises `pygit2.GitError` if a commit, a tag or a tree exceeds
    the size limit. gitboot reads whole commits, and a few bytes in a pack can expand to gigabytes.
    """
    reachable: set[pygit2.Oid] = set()
    pending = [tip]
    reader = CommitReader(repository)
    while pending:
        oid = pending.pop()
        if oid in reachable or oid in excluded:
            continue
        report_work()
        reachable.add(oid)
        kind, size = repository.odb.read_header(oid)
        if size > MAX_TREE_BYTES:
            raise pygit2.GitError(f"object {oid} is {size:,} bytes long, but the limit is {MAX_TREE_BYTES:,}")
        match kind:
            case ObjectType.TAG if (tag := read_tag(repository, oid)) is not None:
                pending.append(tag.target)
            case ObjectType.COMMIT:
                commit = reader.read(oid)
                pending += commit.parents
                if with_files and commit.tree is not None:
                    pending.append(commit.tree)
            case ObjectType.TREE:
                for mode, _, raw in parse_tree(repository.odb, oid.raw):
                    if mode == TREE:
                        pending.append(pygit2.Oid(raw=raw))
                    elif mode != SUBMODULE and (blob := pygit2.Oid(raw=raw)) not in excluded:
                        reachable.add(blob)
    return reachable


def _read_blob_size(repository: pygit2.Repository, oid: pygit2.Oid) -> int:
    kind, size = repository.odb.read_header(oid)
    return size if kind == ObjectType.BLOB else 0


def merge_packs(repository: pygit2.Repository, limit: int) -> None:
    """If there are more than ``limit`` packs, merge all packs except the largest into one pack.

    A pack that contains an object too large for memory stays unchanged. If the process is killed during a merge, some
    objects are stored twice until the next call.
    """
    folder = _get_pack_directory(repository)
    packs = sorted(folder.glob("pack-*.pack"), key=lambda pack: pack.stat().st_size)
    if len(packs) <= limit:
        return
    merged_packs = [pack for pack in packs[:-1] if not _has_oversized_blob(repository, pack)]
    if len(merged_packs) < 2:
        return
    builder = _create_pack_builder(repository)
    for pack in merged_packs:
        for oid in _list_pack_objects(pack):
            builder.add(oid)
    builder.write(folder)
    if set(folder.glob("pack-*.pack")) - set(packs):
        for pack in merged_packs:
            # gitboot deletes the index first, because Git finds packs by their indexes
            pack.with_suffix(".idx").unlink()
            pack.unlink()


def _has_oversized_blob(repository: pygit2.Repository, pack: Path) -> bool:
    return any(is_oversized(_read_blob_size(repository, oid)) for oid in _list_pack_objects(pack))


def _get_pack_directory(repository: pygit2.Repository) -> Path:
    return get_git_directory(repository) / "objects" / "pack"


def _list_pack_objects(pack: Path) -> Iterator[pygit2.Oid]:
    """Yield the object IDs in a pack's index (gitformat-pack(5), "Version 2 pack-*.idx files")."""
    data = pack.with_suffix(".idx").read_bytes()
    count = int.from_bytes(data[_IDS_AT - 4 : _IDS_AT])
    return (pygit2.Oid(raw=data[at : at + 20]) for at in range(_IDS_AT, _IDS_AT + 20 * count, 20))


# Blobs that are too large to copy


def is_oversized(size: int) -> bool:
    """Return whether a blob is too large to copy.

    When gitboot reads a commit that contains such a blob, gitboot reports a problem.
    """
    return size > MAX_FILE_BYTES


def read_oversized_blobs(repository: Path) -> dict[str, int]:
    """Return a mapping from the IDs to the sizes of the blobs that were too large to copy into a clone.

    For repositories that are not such clones, the result is {}.
    """
    with suppress(FileNotFoundError):
        return {blob: int(size) for blob, size in _OVERSIZED_LINE.findall((repository / _OVERSIZED_LIST).read_text())}
    return {}


def add_oversized_blobs(repository: Path, sizes: Mapping[str, int]) -> None:
    """Add the IDs and sizes of oversized blobs to the stored list.

    If a crash truncates a line, gitboot treats the clone as damaged and creates it again.
    """
    known = read_oversized_blobs(repository)
    with (repository / _OVERSIZED_LIST).open("a") as file:
        file.writelines(f"{blob} {size}\n" for blob, size in sorted(sizes.items()) if blob not in known)
