"""Snapshots: list and read the files in a commit or in a work tree."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Final, TypeVar

import pygit2
from msgspec import structs
from pygit2.enums import FileMode

from gitboot.errors import InvalidRepository, SourceError, UsageError
from gitboot.files import convert_os_errors, resolve_fleet_root
from gitboot.fleet.revision import MAX_FILE_BYTES, BlobId, Irregular, Oversized, Revision, Snapshot
from gitboot.git.repository import (
    ACCEPTED,
    SUBMODULE,
    SYMLINK,
    TREE,
    CommitReader,
    Entry,
    MalformedTree,
    StoredRepository,
    convert_errors,
    format_error,
    get_git_directory,
    is_out_of_memory,
    open_containing_repository,
    parse_tree,
    read_fleet_folder,
    read_oversized_blobs,
    read_tree,
)
from gitboot.problems import Code, Problem
from gitboot.text import format_suggestion

WORKTREE: Final = Revision("WORKTREE")
# These limits protect against nested repetition. Ten folders in each folder, ten levels deep, contain 10,000,000,000
# files.
MAX_FILES: Final = 1_500_000
MAX_PATH: Final = 4096  # in characters
MAX_OTHER_FILES: Final = 100_000  # the number of files that are not YAML in a folder outside of Git
MAX_NAMES: Final = 100  # the number of invalid names that gitboot reports for each folder
# the characters that HFS+ ignores (Git: utf8.c, next_hfs_char)
_IGNORED_BY_HFS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_SUFFIX: Final = re.compile(r"([\^~])([0-9]{0,9})")  # a suffix of a Git revision
_ALL_SUFFIXES: Final = re.compile(rf"(?:{_SUFFIX.pattern})+$")
_NOT_UTF8: Final = b"name"  # gitboot uses this value instead of a mode for a name that is not UTF-8
_IRREGULAR: Final = {
    SUBMODULE: Irregular.SUBMODULE,
    SYMLINK: Irregular.SYMLINK,
    _NOT_UTF8: Irregular.FILE_NAME,
}
_V = TypeVar("_V")


# Files in a commit


def load_commit(
    repository: StoredRepository, revision: Revision, folder: str = "", previous: Snapshot | None = None
) -> Snapshot:
    """Return the files below ``folder`` in a commit, except those in dot-folders.

    If the folder does not exist, the result is empty.

    ``previous`` is an earlier snapshot of the same repository. With ``previous``, gitboot reads only folders that
    differ. Raises `InvalidRepository` if a tree is malformed or too large for a fleet.
    """
    with repository.open() as git:
        base = None
        if previous is not None and previous.revision in git.odb:
            base = find_tree(git, previous.revision, previous.folder)
        changed: set[str] = set()
        blobs: dict[str, BlobId] = {}
        irregular: dict[str, Irregular] = {}
        parents = list(_walk_path(git, revision, folder))[:-1]
        for path, parent in parents:  # each name in the path must be unambiguous
            if isinstance(parent, pygit2.Tree):
                _check_names(f"{path}/" if path else "", _read_tree(git.odb, parent.id.raw, ""))
        for path, mode, blob in _list_differences(git.odb, base, find_tree(git, revision, folder)):
            changed.add(path)
            blobs.pop(path, None)
            irregular.pop(path, None)
            if mode in _IRREGULAR:
                irregular[path] = _IRREGULAR[mode]
            elif mode is not None:
                blobs[path] = BlobId(blob.hex())
    snapshot = Snapshot(revision=revision, blobs=blobs, read=BlobReader(repository), irregular=irregular, folder=folder)
    if previous is None or base is None:
        return snapshot
    # blobs and irregular contain only the changed paths
    return structs.replace(
        snapshot,
        blobs=_apply_changes(previous.blobs, blobs, changed),
        irregular=_apply_changes(previous.irregular, irregular, changed),
        changed=frozenset(changed),
    )


def _apply_changes(before: Mapping[str, _V], values: Mapping[str, _V], changed: Set[str]) -> Mapping[str, _V]:
    """Return a copy of ``before`` with new values for the changed paths, or ``before`` itself if no value differs.

    The result is a plain dictionary, because an evaluation looks up each path several times.
    """
    if all(before.get(path) == values.get(path) for path in changed):
        return before
    amended = {**before, **values}
    for path in changed - values.keys():
        amended.pop(path, None)
    return amended if values.keys() <= before.keys() else dict(sorted(amended.items()))


def find_tree(git: pygit2.Repository, revision: Revision, folder: str) -> bytes | None:
    """Return the raw ID of a folder's tree in a commit, or None if the commit does not contain the folder."""
    _, tree = list(_walk_path(git, revision, folder))[-1]
    return tree.id.raw if isinstance(tree, pygit2.Tree) else None


def _walk_path(git: pygit2.Repository, revision: Revision, folder: str) -> Iterator[tuple[str, pygit2.Object | None]]:
    """Yield a commit's tree and each object on the way to ``folder``, with its path. A missing object is None."""
    item: pygit2.Object | None = read_tree(git, CommitReader(git).peel(revision))
    yield "", item
    parts = folder.split("/") if folder else []
    for depth, name in enumerate(parts, 1):
        item = item / name if isinstance(item, pygit2.Tree) and name in item else None
        yield "/".join(parts[:depth]), item


def _list_differences(
    objects: pygit2.Odb, old: bytes | None, new: bytes | None
) -> Iterator[tuple[str, bytes | None, bytes]]:
    """Yield (path, mode, ID) for each path that differs between two trees. The mode of a removed path is None.

    For a replaced path, the function yields two entries, the old object first. Folders with equal IDs are not read.
    """
    pending = [("", old, new)] if old != new else []  # if the IDs are equal, the folder is unchanged
    visited = 0
    while pending:
        prefix, old, new = pending.pop()
        before = _read_entries(objects, old, prefix)
        after = _read_entries(objects, new, prefix, is_new=True)
        if before:  # keep only the entries that differ
            before, after = set(before) - set(after), set(after) - set(before)
        visited += len(before) + len(after)
        if visited > MAX_FILES or len(prefix) > MAX_PATH:
            raise InvalidRepository(
                [_build_problem(Code.UNBOUNDED, prefix, "the commit has too many files, or a path that is too long")]
            )
        old_folders = {}
        for mode, name, raw in before:
            kind, path = _decode_name(mode, prefix, name)
            if kind == TREE:
                old_folders[path] = raw
            else:
                yield path, None, raw
        for mode, name, raw in after:
            kind, path = _decode_name(mode, prefix, name)
            if kind != TREE:
                yield path, kind, raw
            else:
                pending.append((f"{path}/", old_folders.pop(path, None), raw))
        pending += ((f"{path}/", raw, None) for path, raw in old_folders.items())


def _read_entries(objects: pygit2.Odb, tree: bytes | None, prefix: str, *, is_new: bool = False) -> Collection[Entry]:
    """Return the entries of a folder, without dot-folders. Check the names if the folder is in the new commit."""
    entries = _read_tree(objects, tree, prefix)
    if is_new:
        _check_names(prefix, entries)
    return [(mode, name, raw) for mode, name, raw in entries if mode != TREE or not name.startswith(b".")]


def _read_tree(objects: pygit2.Odb, tree: bytes | None, prefix: str) -> list[Entry]:
    try:
        return parse_tree(objects, tree) if tree else []
    except MalformedTree as error:
        raise InvalidRepository([_build_problem(Code.MALFORMED, prefix, str(error))]) from error


def _check_names(prefix: str, entries: Collection[Entry]) -> None:
    """Reject names that a checkout would ignore or change, because reviewers would see different files than gitboot."""
    problems = []
    for name, number in sorted(Counter(name for _, name, _ in entries).items()):
        shown = prefix + name.decode(errors="replace")
        if number > 1:
            problems.append(_build_problem(Code.MALFORMED, shown, f"the folder has {number} entries with this name"))
        if _is_forbidden(name):
            problems.append(_build_problem(Code.MALFORMED, shown, "Git does not allow a file or folder with this name"))
    if problems:
        raise InvalidRepository(problems[:MAX_NAMES])


def _is_forbidden(name: bytes) -> bool:
    """Return whether Git refuses to check out a name on Linux or macOS (read-cache.c, verify_path).

    Git on Windows refuses every name with a backslash. gitboot reads these names, because systemd units may have them.
    """
    if b"/" in name or name in (b".", b".."):
        return True
    if not name.startswith((b".", b"g", b"G", b"\xe2", b"\xef")) and b"\\" not in name:
        return False
    text = _IGNORED_BY_HFS.sub("", name.decode(errors="replace")).lower()
    return any(re.fullmatch(r"(\.git|git~1)[ .]*(:.*)?", part, re.DOTALL) for part in text.split("\\"))


def _decode_name(mode: bytes, prefix: str, name: bytes) -> tuple[bytes, str]:
    try:
        return mode, prefix + name.decode()
    except UnicodeDecodeError:
        return _NOT_UTF8, prefix + name.decode(errors="replace")


def _build_problem(code: Code, path: str, message: str) -> Problem:
    return code.build_problem(message, path[:MAX_PATH] or ".")


# Content


class BlobReader:
    """Reads blobs by ID. Each thread opens the repository separately, as libgit2 requires."""

    def __init__(self, repository: StoredRepository) -> None:
        self._repository = repository
        self._threads = threading.local()

    def __call__(self, blob: BlobId) -> bytes:
        """Return the content of a blob.

        Raises `Oversized`, without reading the blob, if the blob exceeds the size limit.
        """
        return self._repository.retry(partial(self._read, blob))

    def _read(self, blob: BlobId) -> bytes:
        with self._repository.convert_errors():
            objects = self._open_objects()
            try:
                size_bytes = self._read_size(objects, blob)
                if size_bytes > MAX_FILE_BYTES:  # a few bytes in a pack can expand to gigabytes
                    raise Oversized(size_bytes)
                return objects.read(blob)[1]
            except (pygit2.GitError, KeyError):
                self.close()
                raise

    def _open_objects(self) -> pygit2.Odb:
        """Return the object database that this thread uses, and open it for the first blob."""
        objects: pygit2.Odb | None = getattr(self._threads, "objects", None)
        if objects is None:
            with self._repository.open() as git:
                objects = self._threads.objects = git.odb
        return objects

    def _read_size(self, objects: pygit2.Odb, blob: BlobId) -> int:
        try:
            return int(objects.read_header(blob)[1])
        except KeyError:
            oversized_blobs = read_oversized_blobs(self._repository.path)
            if blob not in oversized_blobs:
                raise
            return oversized_blobs[blob]

    def close(self) -> None:
        with suppress(AttributeError):
            del self._threads.objects


# Files in a work tree


def load_worktree(root: Path, repository: pygit2.Repository | None, folder: str) -> Snapshot:
    """Return the current files below ``root``, except files in dot-folders and files that Git ignores.

    ``root`` is the location of ``folder`` in the repository's work tree. Symlinks are not followed.
    """
    ignored = _IgnoreRules(repository, folder)
    if folder and ignored(""):
        ignored = _IgnoreRules(None, folder)  # ignore rules do not apply to this folder, because the user named it
    paths = list(_walk_worktree(root, ignored) if repository is not None else _walk_plain_folder(root, ignored))
    files = WorktreeFiles(root, sorted(path for path, kind in paths if kind is None))
    irregular = {path: kind for path, kind in paths if kind is not None}
    return Snapshot(revision=WORKTREE, blobs=files, read=files.read, irregular=irregular)


class _IgnoreRules:
    """The ignore rules of a repository. Without a repository, no files are ignored."""

    def __init__(self, repository: pygit2.Repository | None, folder: str) -> None:
        self._repository = repository
        self._index = () if repository is None else repository.index
        self._top = Path() if repository is None else Path(str(repository.workdir))
        self._prefix = f"{folder}/" if folder else ""
        self._is_readable = cache(self._check_ignore_file)

    def is_tracked(self, path: str) -> bool:
        return self._prefix + path in self._index

    def __call__(self, path: str) -> bool:
        path = self._prefix + path
        folder = path.rpartition("/")[0]
        return self._repository is not None and self._is_readable(folder) and self._repository.path_is_ignored(path)

    def _check_ignore_file(self, folder: str) -> bool:
        """Return whether each .gitignore that applies to a folder is a regular file or does not exist.

        This check is needed because libgit2 would follow symlinks and block on a pipe. Git does not follow symlinks
        here (gitignore(5)).
        """
        try:
            is_regular = S_ISREG(os.lstat(self._top / folder / ".gitignore").st_mode)
        except OSError:
            is_regular = True
        return is_regular and (not folder or self._is_readable(folder.rpartition("/")[0]))


def _walk_plain_folder(root: Path, ignore_rules: _IgnoreRules) -> Iterator[tuple[str, Irregular | None]]:
    """Yield the paths that `_walk_worktree` yields.

    Raises `UsageError` early if the folder is too large to be a fleet. For example, a user may have named the root of
    the file system.
    """
    other_count = 0
    for path, kind in _walk_worktree(root, ignore_rules):
        other_count += not path.endswith((".yaml", ".yml"))
        if other_count > MAX_OTHER_FILES:
            raise UsageError(
                f"{root} is not in a Git repository, and contains more than {MAX_OTHER_FILES:,} files that are not "
                "YAML: use the path of a fleet"
            )
        yield path, kind


def _walk_worktree(root: Path, ignore_rules: _IgnoreRules) -> Iterator[tuple[str, Irregular | None]]:
    """Yield each path below ``root`` that is tracked or not ignored.

    If a path is not a regular file, its kind is yielded too.
    """
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(root / prefix) as listed:
            entries = list(listed)
        for entry in entries:
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name.startswith("."):
                continue
            if (readable := decode_path(path)) != path:
                yield readable, Irregular.FILE_NAME
            elif is_folder and not ignore_rules.is_tracked(path) and not (root / path / ".git").exists():
                pending.append(f"{path}/")
            elif ignore_rules.is_tracked(path) or not ignore_rules(path):
                if is_folder:
                    yield path, Irregular.SUBMODULE
                elif entry.is_symlink():
                    yield path, Irregular.SYMLINK
                elif entry.is_file(follow_symlinks=False):
                    yield path, None


def decode_path(path: str) -> str:
    """Return a path with U+FFFD in place of each surrogate that stands for bytes that are not UTF-8."""
    return path.encode(errors="surrogateescape").decode(errors="replace")


class WorktreeFiles(Mapping[str, BlobId]):
    """The files in a work tree. gitboot reads a file when its ID is first needed, and ignores changes after that."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self._root = root
        self._ids: dict[str, BlobId | None] = dict.fromkeys(paths)
        self._contents: dict[BlobId, bytes] = {}
        self._oversized: dict[BlobId, int] = {}

    def __getitem__(self, path: str) -> BlobId:
        if (blob := self._ids[path]) is not None:
            return blob
        try:
            content = read_worktree_file(self._root, path)
        except Oversized as error:
            blob = BlobId(f"the {error} of {path}")
            self._oversized[blob] = error.size
        else:
            blob = BlobId(str(pygit2.hash(content)))
            self._contents[blob] = content
        self._ids[path] = blob
        return blob

    def __contains__(self, path: object) -> bool:
        return path in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, blob: BlobId) -> bytes:
        if (size := self._oversized.get(blob)) is not None:
            raise Oversized(size)
        return self._contents[blob]


def read_worktree_file(root: Path, path: str) -> bytes:
    """Return the content of a regular file in the fleet at ``root``.

    Raises `SourceError` if gitboot cannot read the file.
    """
    place = f"{root}/{path}"
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode):
                raise OSError("the path is no longer a regular file")
            if status.st_size > MAX_FILE_BYTES:
                raise Oversized(status.st_size)
            return file.readall()
    except OSError as error:
        raise SourceError(f"{place}: {error.strerror or error}") from error


# Fleets and revisions


def open_snapshot(path: str | os.PathLike[str], rev: str | None) -> Snapshot:
    """Return the files of the fleet at ``path`` in the revision ``rev``.

    ``path`` may be in a work tree or a bare repository.

    ``rev`` is a Git revision, or WORKTREE for the files in the work tree. The default is WORKTREE, or HEAD in a bare
    repository. Raises `UsageError` if the directory, the repository or the revision does not exist.
    """
    root = resolve_fleet_root(Path(path))
    with convert_os_errors(Path(path), "read"):  # a parent directory cannot be entered
        is_directory = root.is_dir()
    with convert_errors(path), open_containing_repository(root) as repository:
        if not is_directory and (repository is None or (rev in (None, WORKTREE) and not repository.is_bare)):
            raise UsageError(f"{path} is not a directory")
        if repository is None:
            if rev not in (None, WORKTREE):
                raise UsageError(f"{path} is not in a Git repository, so there is no revision {rev}")
            return load_worktree(root, None, "")
        folder = find_folder_in(repository, root)
        if folder is not None and rev in (None, WORKTREE):
            return load_worktree(root, repository, folder)
        if rev == WORKTREE:
            raise UsageError(f"{path} is a bare repository without a work tree: specify a revision")
        commit = resolve_commit(repository, "HEAD" if rev is None else rev, str(path))
        folder = get_fleet_folder(repository, root)
        check_folder(repository, commit, folder, path)
        if not is_directory and find_tree(repository, commit, folder) is None:
            raise UsageError(f"{path}: commit {commit[:12]} has no folder {folder}")
        return load_commit(StoredRepository(get_git_directory(repository)), commit, folder)


def find_folder_in(repository: pygit2.Repository, root: Path) -> str | None:
    """Return the path of ``root`` relative to the work tree, "" for the top folder, or None outside of a work tree."""
    files = get_git_directory(repository).resolve()
    top = files if repository.is_bare else Path(str(repository.workdir)).resolve()
    if root.is_relative_to(files) or not root.is_relative_to(top):
        return None
    return "" if root == top else root.relative_to(top).as_posix()


def find_fleet_folder(path: Path) -> str:
    """Return the path of the fleet's folder within its repository.

    The path is "" if the fleet is in the top folder or if there is no repository.
    """
    root = resolve_fleet_root(path)
    with convert_errors(path), open_containing_repository(root) as repository:
        return get_fleet_folder(repository, root) if repository is not None else ""


def get_fleet_folder(repository: pygit2.Repository, root: Path) -> str:
    """Return the path of the fleet's folder within each commit.

    This is the path of ``root`` relative to the work tree or bare repository, or else the configured folder.
    """
    folder = find_folder_in(repository, root)
    if folder is not None:
        return folder
    files = get_git_directory(repository).resolve()
    if repository.is_bare and root != files and root.is_relative_to(files):
        return root.relative_to(files).as_posix()
    return read_fleet_folder(repository)


def check_folder(repository: pygit2.Repository, commit: Revision, folder: str, path: str | os.PathLike[str]) -> None:
    """Raise `UsageError` if the fleet's folder or one of its parent folders is a symlink in a commit."""
    for place, item in _walk_path(repository, commit, folder):
        if item is not None and item.filemode == FileMode.LINK:
            raise UsageError(
                f"{path}: {place} is a symlink in commit {commit[:12]}, but gitboot does not follow symlinks in "
                "commits; commit a folder instead, or pass the symlink's target"
            )


def resolve_commit(repository: pygit2.Repository, rev: str, repository_name: str) -> Revision:
    """Return the commit that a Git revision resolves to. Raises `UsageError` if the revision does not exist."""
    try:
        return CommitReader(repository).peel(_resolve_object(repository, rev)).revision
    except (pygit2.GitError, KeyError, ValueError) as error:
        if is_out_of_memory(error):
            raise MemoryError from error
        subject = "this repository" if repository_name == "." else repository_name
        raise UsageError(_explain_missing_commit(repository, subject, rev, error)) from error


def _resolve_object(repository: pygit2.Repository, rev: str) -> pygit2.Oid:
    """Return the object that a Git revision resolves to.

    libgit2 cannot resolve a revision such as ``main~2`` if it cannot parse a commit on the way. In that case, gitboot
    resolves the revision itself, and supports the suffixes ``^``, ``^N`` and ``~N``. Raises `pygit2.GitError`,
    `KeyError` or `ValueError` if the revision does not exist.
    """
    try:
        return repository.revparse_single(rev).id
    except (pygit2.GitError, KeyError, ValueError):
        with suppress(pygit2.GitError, LookupError, ValueError, StopIteration):
            return _resolve_object_by_parts(repository, rev)
        raise


def _resolve_object_by_parts(repository: pygit2.Repository, rev: str) -> pygit2.Oid:
    name = _ALL_SUFFIXES.split(rev, maxsplit=1)[0]
    if not name:  # libgit2 would read an empty name as HEAD
        raise ValueError(f"{rev!r} is not a revision")
    try:
        oid = repository.lookup_reference_dwim(name).resolve().target
    except (pygit2.GitError, KeyError, ValueError):
        if not re.fullmatch("[0-9a-f]{4,40}", name):
            raise
        oid = repository.expand_id(name)
    reader = CommitReader(repository)
    for kind, number in _SUFFIX.findall(rev.removeprefix(name)):
        commit = reader.peel(oid)
        count = int(number or 1)
        if kind == "~":
            oid = next(islice(reader.first_parents(commit.id), count, None)).id
        elif count:
            oid = commit.parents[count - 1]
    return pygit2.Oid(hex=str(oid))


def _explain_missing_commit(repository: pygit2.Repository, subject: str, rev: str, error: Exception) -> str:
    if ACCEPTED in repository.references:
        return (
            f"{subject} has no commit {rev}: an instance's repository has no branches, so use a commit ID or "
            f"{ACCEPTED}~1, or name another repository with --path"
        )
    branches = sorted(repository.branches)
    if repository.head_is_unborn and not branches:
        return f"{subject} has no commits yet"
    if repository.head_is_unborn and rev == "HEAD":
        return f"{subject} has no commit at HEAD; name a branch: {', '.join(branches[:10])}"
    message = f"{subject} has no commit {rev or repr(rev)}"
    reason = format_error(error)
    if reason != rev:  # the reason often only repeats the name
        message += f": {reason}"
    if repository.is_shallow:
        message += ", and this clone is shallow; fetch more of its history"
    tags = (name.removeprefix("refs/tags/") for name in repository.references if name.startswith("refs/tags/"))
    suggestion = format_suggestion(rev, (*branches, *tags))
    return f"{message}; {suggestion}" if suggestion else message
