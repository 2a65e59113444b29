"""History: first parents of a revision, ranges, comparisons and blame."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pygit2
from msgspec import Struct
from pygit2.enums import DiffOption, SortMode

from gitboot.errors import InvalidRepository, UsageError
from gitboot.files import resolve_fleet_root
from gitboot.fleet.revision import BlobId, Irregular, Message, Revision, Snapshot
from gitboot.git.repository import (
    CommitObject,
    CommitReader,
    Person,
    StoredRepository,
    convert_errors,
    get_git_directory,
    get_objects_directory,
    open_containing_repository,
    read_tree,
)
from gitboot.git.snapshots import (
    WORKTREE,
    check_folder,
    find_folder_in,
    get_fleet_folder,
    load_commit,
    load_worktree,
    read_worktree_file,
    resolve_commit,
    tree_at,
)
from gitboot.problems import Code, Problem
from gitboot.text import one_line


class HistoryStep(Struct, frozen=True, kw_only=True):
    """A commit, and the tree that the fleet is in it."""

    commit: CommitSummary
    tree: str | None  # the fleet's folder; two with one id are the same fleet, None: there is no such folder


class History:
    """The commits that led to a revision, the newest first; made by `open_history`."""

    def __init__(
        self, repository: StoredRepository, folder: str, steps: tuple[HistoryStep, ...], *, shallow: bool
    ) -> None:
        self._repository, self._folder = repository, folder
        self.steps = steps
        self.shallow = shallow  # whether the clone has not all that came before

    def snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        return load_commit(self._repository, revision, self._folder, previous)


def open_history(path: str | os.PathLike[str], rev: str | None) -> History:
    """What led to ``rev`` (HEAD, if None) of the fleet at ``path``, as `open_snapshot` has it."""
    root = resolve_fleet_root(Path(path))
    if rev == WORKTREE:
        raise UsageError("what lies uncommitted has no history; name a revision, or none for HEAD")
    with convert_errors(path), open_containing_repository(root) as git:
        if git is None:
            raise UsageError(f"{path} is in no Git repository, so it has no history")
        folder = get_fleet_folder(git, root)
        start = resolve_commit(git, rev or "HEAD", str(path))
        steps = tuple(
            HistoryStep(commit=summarize_commit(commit), tree=None if tree is None else tree.hex())
            for commit in CommitReader(git).first_parents(start)
            for tree in (tree_at(git, commit.revision, folder),)
        )
        return History(StoredRepository(get_git_directory(git)), folder, steps, shallow=git.is_shallow)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999: Final = 253_370_764_800  # s; Git has room for later dates, datetime has not


class CommitSummary(Struct, frozen=True, kw_only=True):
    """Who made a commit, when and why."""

    revision: Revision
    author: str  # Name <address>
    date: datetime  # when it was written
    subject: str


def summarize_commit(commit: CommitObject) -> CommitSummary:
    return CommitSummary(
        revision=commit.revision,
        author=format_person(commit.author),
        date=convert_date(commit.author),
        subject=one_line(_decode(commit.message).lstrip().partition("\n")[0]),
    )


def convert_date(person: Person) -> datetime:
    """Return when an author or a committer signed. A date outside 1970 to 9999 becomes the nearest date inside."""
    return _EPOCH + timedelta(seconds=min(max(person.time, 0), _YEAR_9999))


def format_person(person: Person) -> str:
    return one_line(f"{_decode(person.name)} <{_decode(person.email)}>")


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


class Blame:
    """The lines of a fleet's files as of a revision, or as they lie in the work tree; made by `open_blame`.

    Each file is looked into when one of its lines is first asked for.
    """

    def __init__(self, repository: StoredRepository, commit: Revision | None, folder: str, root: Path | None) -> None:
        self._repository, self._commit = repository, commit  # None: there is no commit yet
        self._prefix = f"{folder}/" if folder else ""
        self._root = root  # where the fleet lies, where it is looked at uncommitted
        self._lines = cache(self._blame_file)

    def line(self, path: str, number: int) -> CommitSummary | None:
        """Who wrote a line, 1-based, of a file of the fleet; None where it is not committed yet."""
        return self._lines(path).get(number)

    def _blame_file(self, path: str) -> dict[int, CommitSummary]:
        with self._repository.open() as git:
            if self._commit is None:
                return {}
            tree = read_tree(git, CommitReader(git).peel(self._commit))
            name = self._prefix + path
            if tree is None or name not in tree:
                return {}
            try:
                hunks = list(git.blame(name, newest_commit=pygit2.Oid(hex=self._commit)))
            except pygit2.GitError:  # libgit2 stops at a commit that it cannot parse
                lines = _blame_along_first_parents(git, name, self._commit)
            else:
                reader, lines = CommitReader(git), {}
                for hunk in hunks:
                    start = hunk.final_start_line_number
                    wrote = summarize_commit(reader.read(hunk.final_commit_id))
                    lines |= dict.fromkeys(range(start, start + hunk.lines_in_hunk), wrote)
            if self._root is None:
                return lines
            old, new = git[tree[name].id].peel(pygit2.Blob).data, read_worktree_file(self._root, path)
        return {now: lines[before] for now, before in _match_lines(old, new).items() if before in lines}


def open_blame(path: str | os.PathLike[str], rev: str | None) -> Blame | None:
    """The blame of the fleet at ``path`` as of ``rev``, both as `open_snapshot` has them; None without Git."""
    root = resolve_fleet_root(Path(path))
    with convert_errors(path), open_containing_repository(root) as git:
        if git is None:
            return None
        folder = find_folder_in(git, root)
        uncommitted = folder is not None and rev in (None, WORKTREE)
        unborn = uncommitted and git.head_is_unborn
        commit = None if unborn else resolve_commit(git, "HEAD" if uncommitted or rev is None else rev, str(path))
        return Blame(
            StoredRepository(get_git_directory(git)), commit, get_fleet_folder(git, root), root if uncommitted else None
        )


def _blame_along_first_parents(git: pygit2.Repository, path: str, commit: Revision) -> dict[int, CommitSummary]:
    """Return who wrote each line. A line that a merge brought in is its merge commit's."""
    lines: dict[int, CommitSummary] = {}
    reader = CommitReader(git)
    newer = reader.peel(commit)
    content = read_file(git, newer, path) or b""
    origins = {number: number for number in range(1, content.count(b"\n") + 2)}  # line in content -> line in the newest
    for older in [*islice(reader.first_parents(commit), 1, None), None]:
        before = (read_file(git, older, path) if older is not None else None) or b""
        if before == content and older is not None:
            newer = older
            continue
        matches = _match_lines(before, content) if before else {}
        lines |= {final: summarize_commit(newer) for now, final in origins.items() if now not in matches}
        origins = {matches[now]: final for now, final in origins.items() if now in matches}
        if not origins or older is None:
            break
        newer, content = older, before
    return lines


def read_file(git: pygit2.Repository, commit: CommitObject, path: str) -> bytes | None:
    """Return a file of a commit. None: the commit has no such file."""
    tree = read_tree(git, commit)
    found = tree[path] if tree is not None and path in tree else None
    return found.data if isinstance(found, pygit2.Blob) else None


def _match_lines(old: bytes, new: bytes) -> dict[int, int]:
    """The lines of ``new`` that stand in ``old`` too, and where; a checkout may have changed their ends."""
    line_count = max(old.count(b"\n"), new.count(b"\n")) + 1
    patch = pygit2.Patch.create_from(old, new, flag=DiffOption.IGNORE_WHITESPACE_EOL, context_lines=line_count)
    if not patch.hunks:
        return {number: number for number in range(1, line_count + 1)}
    return {line.new_lineno: line.old_lineno for line in patch.hunks[0].lines if line.origin == " "}


def commits_between(
    git: pygit2.Repository, excluded: Iterable[pygit2.Oid], *tips: pygit2.Oid
) -> Iterator[CommitObject]:
    """Yield the commits that led to one of ``tips`` and to none of ``hidden``, children before their parents."""
    reader, excluded = CommitReader(git), tuple(excluded)
    try:
        walker = git.walk(None, SortMode.TOPOLOGICAL)
        for tip in tips:
            walker.push(tip)
        for each in excluded:
            walker.hide(each)
        found = [commit.id for commit in walker]
    except pygit2.GitError:  # libgit2 stops at a commit that it cannot parse
        found = _sort_topologically(reader, tips, seen=find_ancestors(reader, excluded))
    return map(reader.read, found)


def _sort_topologically(reader: CommitReader, tips: Iterable[pygit2.Oid], seen: set[pygit2.Oid]) -> list[pygit2.Oid]:
    finished: list[pygit2.Oid] = []
    pending = [(tip, False) for tip in tips]
    while pending:
        oid, is_finished = pending.pop()
        if is_finished:
            finished.append(oid)
        elif oid not in seen:
            seen.add(oid)
            pending.append((oid, True))
            pending += ((parent, False) for parent in reader.read(oid).parents)
    return finished[::-1]


def find_ancestors(reader: CommitReader, tips: Iterable[pygit2.Oid]) -> set[pygit2.Oid]:
    return set(_sort_topologically(reader, tips, seen=set()))


def is_ancestor(git: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid) -> bool:
    """Return whether ``old`` led to ``new``. A commit is its own ancestor."""
    if old == new:
        return True
    try:
        return bool(git.descendant_of(new, old))
    except pygit2.GitError:
        return old in find_ancestors(CommitReader(git), [new])


def find_merge_base(git: pygit2.Repository, one: pygit2.Oid, other: pygit2.Oid) -> pygit2.Oid | None:
    """Return a commit that led to both, and to no other such commit; None if there is none."""
    try:
        found: pygit2.Oid | None = git.merge_base(one, other)
    except pygit2.GitError:
        reader = CommitReader(git)
        both = find_ancestors(reader, [one]) & find_ancestors(reader, [other])
        best = both - {parent for each in both for parent in reader.read(each).parents}
        found = min(best, default=None)
    return found


MAX_STEPS: Final = 200  # of a line; a longer one is one step


class Merge(NamedTuple):
    """One commit of a first-parent line."""

    revision: Revision
    messages: tuple[Message, ...]  # of it, and of all commits that it brought in


def list_first_parent_merges(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid) -> tuple[Merge, ...]:
    """The commits from ``old``, without it, to ``new`` by first parents, the oldest first; none where that is no way.

    Nor where it is a long one.
    """
    found: list[CommitObject] = []
    for commit in CommitReader(repository).first_parents(new):
        if commit.id == old:
            break
        found.append(commit)
        if not commit.parents or len(found) > MAX_STEPS:
            return ()
    return tuple(
        Merge(each.revision, tuple(list_messages(repository, each.parents[0], each.id))) for each in reversed(found)
    )


def list_first_parents_since(
    repository: pygit2.Repository, old: pygit2.Oid | None, new: pygit2.Oid
) -> tuple[Revision, ...] | None:
    """``new`` and what led to it by first parents since ``old``, the oldest first; None where that is a long line.

    Where the branch was rewound or written anew it begins behind the last commit of ``old``'s own first-parent line.
    Without ``old`` it is ``new`` alone, and ``new`` is always part of it.
    """
    if old is None or old == new:
        return (Revision(str(new)),)
    reader = CommitReader(repository)
    found = [commit.id for commit in islice(reader.first_parents(new), MAX_STEPS + 1)]
    known = {old} if old in found else {commit.id for commit in reader.first_parents(old)}
    until = next((at for at, each in enumerate(found) if at and each in known), None)
    if until is None and len(found) > MAX_STEPS:
        return None
    return tuple(Revision(str(each)) for each in reversed(found[:until]))


def list_messages(
    repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, *others: pygit2.Oid
) -> Iterator[Message]:
    """The messages of the commits that ``new``, or one of the ``others``, has and ``old`` has not, the newest first."""
    yield from map(read_message, commits_between(repository, [old], new, *others))


def read_message(commit: CommitObject) -> Message:
    text = commit.message.decode(errors="replace")
    content = commit.content_digest if has_acknowledgement(commit) else ""
    return Message(
        commit.revision, text, format_person(commit.author), format_person(commit.committer), content=content
    )


def has_acknowledgement(commit: CommitObject) -> bool:
    return _ACKNOWLEDGEMENT.search(commit.message) is not None


_ACKNOWLEDGEMENT: Final = re.compile(rb"gitboot-ack", re.IGNORECASE)


def list_acknowledging_content(
    repository: pygit2.Repository, excluded: Iterable[pygit2.Oid], tips: Iterable[pygit2.Oid]
) -> frozenset[str]:
    """Return the signed content, as digests, of acknowledging commits that led to ``tips`` and not to ``hidden``."""
    found = commits_between(repository, excluded, *tips)
    return frozenset(commit.content_digest for commit in found if has_acknowledgement(commit))


class RangeCommit(Struct, frozen=True, kw_only=True):
    """One commit of the first-parent line from BASE to HEAD, and its fleet."""

    merge: Merge
    snapshot: Callable[[], Snapshot]


class CommitRange(Struct, frozen=True, kw_only=True):
    """Two snapshots of one fleet, and what the commits between them say."""

    base: Snapshot
    head: Snapshot
    folder: str  # of the fleet in its repository
    messages: tuple[Message, ...]  # of BASE..HEAD, the newest first
    repository: StoredRepository
    base_acknowledgements: frozenset[str] = (
        frozenset()
    )  # the signed content, as digests, of acknowledging commits that led to BASE
    commits: tuple[RangeCommit, ...] = ()  # from BASE to HEAD, the oldest first; empty where BASE is not on HEAD's line


def open_range(path: Path, text: str, *, merge: bool = False, accepted: str | None = None) -> CommitRange:
    """The range ``text`` of the repository around ``path``; with ``merge`` HEAD is merged into BASE first.

    Where a commit is ``accepted``, HEAD, or what the merge makes, is compared with that, whatever BASE is.
    Nothing is written, not even for a merge. Raises `UsageError` where there is no such range, and
    `InvalidRepository` where the two do not merge.
    """
    dots = "..." if "..." in text else ".."
    base, is_range, head = text.partition(dots)
    base = base or accepted or ""
    if not base or base == WORKTREE or ".." in head:
        raise UsageError(f"{text!r} is no range: write BASE..HEAD, BASE...HEAD, or BASE for what lies uncommitted")
    head = (head or "HEAD") if is_range else WORKTREE
    root = resolve_fleet_root(path)
    with convert_errors(path), open_containing_repository(root) as repository:
        if not root.is_dir() and (repository is None or head == WORKTREE):
            raise UsageError(f"{path} is not a directory")
        if repository is None:
            raise UsageError(f"{path} is in no Git repository, so there is nothing to compare with")
        in_worktree, folder = find_folder_in(repository, root), get_fleet_folder(repository, root)
        old, new = (
            _resolve_commit(repository, base, path),
            _resolve_commit(repository, "HEAD" if head == WORKTREE else head, path),
        )
        if not root.is_dir() and all(tree_at(repository, Revision(str(each)), folder) is None for each in (old, new)):
            raise UsageError(f"{path} is not a directory, nor is {folder} a folder of one of the commits")
        if head != WORKTREE:  # BASE may have a symlink that HEAD replaces with a folder
            check_folder(repository, Revision(str(new)), folder, path)
        stored = StoredRepository(get_git_directory(repository))
        if head == WORKTREE:
            if in_worktree is None:
                raise UsageError(f"{path} has no work tree, where something could lie uncommitted: write BASE..HEAD")
            if merge or dots == "...":
                raise UsageError(f"{path}: what lies in the work tree is compared as it is: BASE..WORKTREE")
            snapshot = load_worktree(root, repository, in_worktree)
        else:
            snapshot = load_commit(stored, Revision(str(new)), folder)
        if dots == "..." and not merge and accepted is None:
            old = _require_merge_base(repository, old, new, path)
        first = _resolve_commit(repository, accepted, path) if accepted is not None else old
        commits = tuple(
            RangeCommit(merge=each, snapshot=partial(load_commit, stored, each.revision, folder))
            for each in list_first_parent_merges(repository, first, old if merge else new)
        )
        if merge:
            merged = snapshot = _merge_in_memory(repository, old, new, folder, path)
            last = Merge(merged.revision, tuple(list_messages(repository, old, new)))
            is_on_line = bool(commits) or first == old  # else BASE does not lead there
            commits = (*commits, RangeCommit(merge=last, snapshot=lambda: merged)) if is_on_line else ()
        range_messages = tuple(list_messages(repository, first, new, *([old] if merge else [])))
        can_repeat = any(each.content for each in range_messages)  # else the history is not searched
        return CommitRange(
            base_acknowledgements=list_acknowledging_content(repository, (), [first]) if can_repeat else frozenset(),
            base=load_commit(stored, Revision(str(first)), folder),
            head=snapshot,
            folder=folder,
            repository=stored,
            messages=range_messages,
            commits=() if head == WORKTREE else commits,
        )


def find_head_commit(path: Path, text: str) -> Revision | None:
    """Return the commit that HEAD of the range ``text`` names, before any merge; None if HEAD is the work tree."""
    _, found, head = text.replace("...", "..").partition("..")
    if not found or head == WORKTREE:
        return None
    with open_containing_repository(path.resolve()) as repository:
        return resolve_commit(repository, head or "HEAD", str(path)) if repository is not None else None


def _resolve_commit(repository: pygit2.Repository, rev: str, path: Path) -> pygit2.Oid:
    return pygit2.Oid(hex=resolve_commit(repository, rev, str(path)))


def _require_merge_base(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, path: Path) -> pygit2.Oid:
    found = find_merge_base(repository, old, new)
    if found is None:
        hint = "fetch more of the history" if repository.is_shallow else "write BASE..HEAD"
        raise UsageError(f"{path}: the two commits have no common ancestor here; {hint}")
    return found


# What a merge would be

_IRREGULAR: Final = {0o120000: Irregular.SYMLINK, 0o160000: Irregular.SUBMODULE}


def _merge_in_memory(
    repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, folder: str, path: Path
) -> Snapshot:
    base = _require_merge_base(repository, old, new, path)
    # libgit2 writes the files that it merges: into a repository that is thrown away, beside which ours is read.
    with tempfile.TemporaryDirectory() as scratch:
        temporary = pygit2.init_repository(scratch, bare=True)
        try:
            temporary.odb.add_disk_alternate(str(get_objects_directory(repository)))
            try:
                index = temporary.merge_commits(old, new)
            except pygit2.GitError:  # libgit2 may be unable to parse a commit whose tree is whole
                reader = CommitReader(temporary)
                ancestor, ours, theirs = (read_tree(temporary, reader.read(each)) for each in (base, old, new))
                if ancestor is None or ours is None or theirs is None:
                    raise
                index = temporary.merge_trees(ancestor, ours, theirs)
            prefix = f"{folder}/" if folder else ""
            if problems := list(_list_conflicts(index.conflicts or (), prefix)):
                raise InvalidRepository(problems)
            blobs, irregular = dict[str, BlobId](), dict[str, Irregular]()
            for entry in index:
                name = entry.path.removeprefix(prefix)
                is_in_dot_folder = any(part.startswith(".") for part in name.split("/")[:-1])
                if not entry.path.startswith(prefix) or is_in_dot_folder:
                    continue
                if entry.mode in _IRREGULAR:
                    irregular[name] = _IRREGULAR[entry.mode]
                else:
                    blobs[name] = BlobId(str(entry.id))
            new_blobs = {blob: temporary.odb.read(blob)[1] for blob in blobs.values() if blob not in repository.odb}
        finally:
            temporary.free()
    stored = load_commit(StoredRepository(get_git_directory(repository)), Revision(str(old)), folder)
    return Snapshot(
        revision=Revision(f"{new} merged into {old}"),
        blobs=blobs,
        read=lambda blob: new_blobs[blob] if blob in new_blobs else stored.read(blob),
        irregular=irregular,
    )


def _list_conflicts(conflicts: Iterable[tuple[pygit2.IndexEntry | None, ...]], prefix: str) -> Iterator[Problem]:
    """A problem for each file of the fleet that does not merge; what clashes beside the fleet is not its own."""
    for sides in conflicts:
        path = str(next(side.path for side in sides if side is not None))
        if path.startswith(prefix):
            yield Code.MERGE_CONFLICT.build_problem("the two branches do not merge", path.removeprefix(prefix))
