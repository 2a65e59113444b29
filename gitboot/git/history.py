"""Git history: follow first parents, list commits in a range, merge in memory, and find the last change of a line."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from gitboot.fleet.revision import BlobId, CommitSummary, FileChanges, Irregular, Message, Revision, Snapshot
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
    decode_path,
    find_folder_in,
    find_tree,
    get_fleet_folder,
    load_commit,
    load_worktree,
    read_worktree_file,
    resolve_commit,
)
from gitboot.problems import Code, Problem
from gitboot.text import one_line

HISTORY_COMMITS: Final = 100  # the number of commits in the history on the operators' page
# the maximum number of first-parent commits that gitboot lists; a longer history counts as one step
MAX_STEPS: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999: Final = 253_370_764_800  # in seconds since 1970; Git supports later dates, but datetime does not
SHALLOW_CLONE: Final = "this is a shallow clone without older commits; run git fetch --unshallow to fetch them"


# The history of a fleet


class HistoryStep(Struct, frozen=True, kw_only=True):
    """A commit, and the Git tree of the fleet in this commit."""

    commit: CommitSummary
    tree: str | None  # the ID of the tree of the fleet's folder; None: the commit does not contain the folder


class History:
    """Iterates over the first-parent commits of a revision, the newest first. Call `open_history` to create one."""

    def __init__(
        self, repository: StoredRepository, folder: str, steps: tuple[HistoryStep, ...], *, shallow: bool
    ) -> None:
        self._repository, self._folder = repository, folder
        self.steps = steps
        self.shallow = shallow  # whether the clone lacks older commits

    def snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        return load_commit(self._repository, revision, self._folder, previous)


def open_history(path: str | os.PathLike[str], rev: str | None) -> History:
    """Return the history of the Git revision ``rev`` for the fleet at ``path``. The default revision is HEAD."""
    root = resolve_fleet_root(Path(path))
    if rev == WORKTREE:
        raise UsageError("WORKTREE has no history; specify a revision, or omit --rev to use HEAD")
    with convert_errors(path), open_containing_repository(root) as git:
        if git is None:
            raise UsageError(f"{path} is not in a Git repository, so it has no history")
        folder = get_fleet_folder(git, root)
        start = resolve_commit(git, rev or "HEAD", str(path))
        steps = []
        for commit in CommitReader(git).first_parents(start):
            tree = find_tree(git, commit.revision, folder)
            steps.append(HistoryStep(commit=summarize_commit(commit), tree=tree.hex() if tree is not None else None))
        return History(StoredRepository(get_git_directory(git)), folder, tuple(steps), shallow=git.is_shallow)


def list_file_changes(
    git: pygit2.Repository, tip: Revision, folder: str, known: Mapping[Revision, FileChanges]
) -> Iterator[FileChanges]:
    """Yield the last `HISTORY_COMMITS` first-parent commits up to ``tip``, each with the files that it changed.

    ``known`` contains earlier results, which gitboot reuses. The history ends at the first commit that the clone does
    not contain or that libgit2 cannot read.
    """
    try:
        for commit in islice(CommitReader(git).first_parents(tip), HISTORY_COMMITS):
            yield known.get(commit.revision) or _find_changed_files(git, commit, folder)
    except (KeyError, ValueError, pygit2.GitError):
        return


def _find_changed_files(git: pygit2.Repository, commit: CommitObject, folder: str) -> FileChanges:
    before = _read_folder(git, Revision(str(commit.parents[0])), folder) if commit.parents else None
    after = _read_folder(git, commit.revision, folder)
    if before is not None and after is not None:
        diff = after.diff_to_tree(before) if before.id != after.id else None
    else:
        one_tree = after if after is not None else before
        diff = one_tree.diff_to_tree() if one_tree is not None else None
    paths: set[str] = set()
    if diff is not None:
        paths = {decode_path(file.path) for delta in diff.deltas for file in (delta.old_file, delta.new_file)}
    return FileChanges(commit=summarize_commit(commit), files=tuple(sorted(paths)))


def _read_folder(git: pygit2.Repository, revision: Revision, folder: str) -> pygit2.Tree | None:
    tree_id = find_tree(git, revision, folder)
    tree = git[pygit2.Oid(raw=tree_id)] if tree_id is not None else None
    return tree if isinstance(tree, pygit2.Tree) else None


# Authors and dates


def summarize_commit(commit: CommitObject) -> CommitSummary:
    return CommitSummary(
        revision=commit.revision,
        author=format_person(commit.author),
        date=convert_date(commit.author),
        subject=one_line(_decode(commit.message).lstrip().partition("\n")[0]),
    )


def convert_date(person: Person) -> datetime:
    """Convert an author date or a committer date.

    A date outside the years 1970 to 9999 becomes the nearest date in this range.
    """
    return _EPOCH + timedelta(seconds=min(max(person.time, 0), _YEAR_9999))


def format_person(person: Person) -> str:
    return one_line(f"{_decode(person.name)} <{_decode(person.email)}>")


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


# The last change of a line


class Blame:
    """Finds the commit that last changed each line in a fleet's files, at a revision or in the work tree.

    Call `open_blame` to create a `Blame`. gitboot reads a file when `line` is first called with the file's path.
    """

    def __init__(
        self, repository: StoredRepository, commit: Revision | None, folder: str, root: Path | None, *, shallow: bool
    ) -> None:
        self._repository = repository
        self._commit = commit  # None: there is no commit yet
        self.shallow = shallow  # whether the clone lacks older commits
        self._prefix = f"{folder}/" if folder else ""
        self._root = root  # the folder of the fleet in the work tree; None: gitboot reads only committed files
        self._lines = cache(self._blame_file)

    def line(self, path: str, number: int) -> CommitSummary | None:
        """Return the commit that last changed a line (counted from 1).

        The result is None if the line is not committed, or if a shallow clone may lack the commit.
        """
        return self._lines(path).get(number)

    def is_committed(self, path: str, number: int) -> bool:
        return number in self._lines(path)

    def _blame_file(self, path: str) -> dict[int, CommitSummary | None]:
        """Return the commit of each committed line, by the line's number in the fleet's file."""
        with self._repository.open() as git:
            if self._commit is None:
                return {}
            tree = read_tree(git, CommitReader(git).peel(self._commit))
            name = self._prefix + path
            if tree is None or name not in tree:
                return {}
            committed_lines = _blame_committed_file(git, name, self._commit)
            if self._root is None:
                return committed_lines
            committed_content = git[tree[name].id].peel(pygit2.Blob).data
            content = read_worktree_file(self._root, path)
        matches = _match_lines(committed_content, content)
        return {now: committed_lines[before] for now, before in matches.items() if before in committed_lines}


def open_blame(path: str | os.PathLike[str], rev: str | None) -> Blame | None:
    """Return a `Blame` for the fleet at ``path``, or None if the fleet is not in a Git repository.

    The arguments mean the same as in `open_snapshot`.
    """
    root = resolve_fleet_root(Path(path))
    with convert_errors(path), open_containing_repository(root) as git:
        if git is None:
            return None
        uses_worktree = find_folder_in(git, root) is not None and rev in (None, WORKTREE)
        commit = None
        if not (uses_worktree and git.head_is_unborn):
            commit = resolve_commit(git, "HEAD" if uses_worktree or rev is None else rev, str(path))
        return Blame(
            StoredRepository(get_git_directory(git)),
            commit,
            get_fleet_folder(git, root),
            root if uses_worktree else None,
            shallow=git.is_shallow,
        )


def _blame_committed_file(git: pygit2.Repository, path: str, commit: Revision) -> dict[int, CommitSummary | None]:
    """Map each line number to the commit that last changed the line."""
    try:
        hunks = list(git.blame(path, newest_commit=pygit2.Oid(hex=commit)))
    except pygit2.GitError:  # libgit2 cannot parse a commit
        return _blame_along_first_parents(git, path, commit)
    reader = CommitReader(git)
    lines: dict[int, CommitSummary | None] = {}
    for hunk in hunks:
        start = hunk.final_start_line_number
        writer = _summarize_writer(reader, reader.read(hunk.final_commit_id))
        lines |= dict.fromkeys(range(start, start + hunk.lines_in_hunk), writer)
    return lines


def _blame_along_first_parents(git: pygit2.Repository, path: str, commit: Revision) -> dict[int, CommitSummary | None]:
    """Map each line number to the commit that last changed the line, or to the merge commit for a merged branch."""
    lines: dict[int, CommitSummary | None] = {}
    reader = CommitReader(git)
    newer = reader.peel(commit)
    content = read_file(git, newer, path) or b""
    # maps a line number to the line number in the newest version
    origins = {number: number for number in range(1, content.count(b"\n") + 2)}
    for older in [*islice(reader.first_parents(commit), 1, None), None]:
        before = (read_file(git, older, path) if older is not None else None) or b""
        if before == content and older is not None:
            newer = older
            continue
        matches = _match_lines(before, content) if before else {}
        lines |= {final: _summarize_writer(reader, newer) for now, final in origins.items() if now not in matches}
        origins = {matches[now]: final for now, final in origins.items() if now in matches}
        if not origins or older is None:
            break
        newer, content = older, before
    return lines


def _summarize_writer(reader: CommitReader, commit: CommitObject) -> CommitSummary | None:
    """Summarize the commit of a line. Return None at the end of a shallow history, which may lack the real commit."""
    return None if reader.is_cut(commit.id) else summarize_commit(commit)


def read_file(git: pygit2.Repository, commit: CommitObject, path: str) -> bytes | None:
    """Return the content of a file in a commit, or None if the commit does not contain the file."""
    tree = read_tree(git, commit)
    blob = tree[path] if tree is not None and path in tree else None
    return blob.data if isinstance(blob, pygit2.Blob) else None


def _match_lines(old: bytes, new: bytes) -> dict[int, int]:
    """Map the number of each unchanged line in ``new`` to the number of the same line in ``old``.

    Differences in line endings are ignored.
    """
    line_count = max(old.count(b"\n"), new.count(b"\n")) + 1
    patch = pygit2.Patch.create_from(old, new, flag=DiffOption.IGNORE_WHITESPACE_EOL, context_lines=line_count)
    if not patch.hunks:
        return {number: number for number in range(1, line_count + 1)}
    return {line.new_lineno: line.old_lineno for line in patch.hunks[0].lines if line.origin == " "}


# Commits between two commits


def list_commits_between(
    git: pygit2.Repository, excluded: Iterable[pygit2.Oid], *tips: pygit2.Oid
) -> Iterator[CommitObject]:
    """Yield the commits that are reachable from ``tips`` but not from ``excluded``.

    Children come before their parents.
    """
    reader = CommitReader(git)
    excluded = tuple(excluded)
    try:
        walker = git.walk(None, SortMode.TOPOLOGICAL)
        for tip in tips:
            walker.push(tip)
        for oid in excluded:
            walker.hide(oid)
        ids = [commit.id for commit in walker]
    except pygit2.GitError:  # libgit2 cannot parse a commit
        ids = _sort_topologically(reader, tips, seen=find_ancestors(reader, excluded))
    return map(reader.read, ids)


def _sort_topologically(reader: CommitReader, tips: Iterable[pygit2.Oid], seen: set[pygit2.Oid]) -> list[pygit2.Oid]:
    """Return the commits that are reachable from ``tips``, children first. Commits in ``seen`` are skipped."""
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
    """Return whether ``old`` is an ancestor of ``new``. A commit is its own ancestor."""
    if old == new:
        return True
    try:
        return bool(git.descendant_of(new, old))
    except pygit2.GitError:
        return old in find_ancestors(CommitReader(git), [new])


def find_merge_base(git: pygit2.Repository, one: pygit2.Oid, other: pygit2.Oid) -> pygit2.Oid | None:
    """Return one of the best common ancestors of two commits, or None if there is no common ancestor."""
    try:
        base: pygit2.Oid | None = git.merge_base(one, other)
    except pygit2.GitError:
        reader = CommitReader(git)
        common = find_ancestors(reader, [one]) & find_ancestors(reader, [other])
        parents = {parent for oid in common for parent in reader.read(oid).parents}
        base = min(common - parents, default=None)
    return base


class Merge(NamedTuple):
    """A first-parent commit, with the messages of the commits that it merged."""

    revision: Revision
    messages: tuple[Message, ...]  # the message of the commit, and those of all commits that it merged


def list_first_parent_merges(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid) -> tuple[Merge, ...]:
    """Return the first-parent commits after ``old``, up to and including ``new``, oldest first.

    The result is () if ``old`` is not a first-parent ancestor of ``new``, or if ``old`` is more than ``MAX_STEPS``
    commits before ``new``.
    """
    commits: list[CommitObject] = []
    for commit in CommitReader(repository).first_parents(new):
        if commit.id == old:
            break
        commits.append(commit)
        if not commit.parents or len(commits) > MAX_STEPS:
            return ()
    return tuple(
        Merge(commit.revision, tuple(list_messages(repository, commit.parents[0], commit.id)))
        for commit in reversed(commits)
    )


def list_first_parents_since(
    repository: pygit2.Repository, old: pygit2.Oid | None, new: pygit2.Oid
) -> tuple[Revision, ...] | None:
    """Return the first-parent commits after ``old`` up to ``new``, oldest first, or None if there are too many.

    If the branch was rewritten, the result starts after the newest first-parent commit that ``old`` and ``new`` share.
    Without ``old``, the result contains only ``new``.
    """
    if old is None or old == new:
        return (Revision(str(new)),)
    reader = CommitReader(repository)
    newest, *others = [commit.id for commit in islice(reader.first_parents(new), MAX_STEPS + 1)]
    old_line = {old} if old in others else {commit.id for commit in reader.first_parents(old)}
    new_commits = [newest]
    for oid in others:
        if oid in old_line:
            break
        new_commits.append(oid)
    if len(new_commits) > MAX_STEPS:
        return None
    return tuple(Revision(str(oid)) for oid in reversed(new_commits))


def list_messages(
    repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, *others: pygit2.Oid
) -> Iterator[Message]:
    """Yield the messages of the commits that ``new`` or ``others`` can reach but ``old`` cannot, newest first."""
    yield from map(read_message, list_commits_between(repository, [old], new, *others))


def read_message(commit: CommitObject) -> Message:
    text = commit.message.decode(errors="replace")
    content = commit.content_digest if has_acknowledgement(commit) else ""
    return Message(
        commit.revision, text, format_person(commit.author), format_person(commit.committer), content=content
    )


def has_acknowledgement(commit: CommitObject) -> bool:
    return re.search(rb"gitboot-ack", commit.message, re.IGNORECASE) is not None


def list_acknowledging_content(
    repository: pygit2.Repository, excluded: Iterable[pygit2.Oid], tips: Iterable[pygit2.Oid]
) -> frozenset[str]:
    """Return the content digests of the commits with acknowledgements that are reachable from ``tips``.

    Commits that are also reachable from ``excluded`` are omitted.
    """
    commits = list_commits_between(repository, excluded, *tips)
    return frozenset(commit.content_digest for commit in commits if has_acknowledgement(commit))


# Ranges


class RangeCommit(Struct, frozen=True, kw_only=True):
    """A first-parent commit between BASE and HEAD, with a snapshot of the fleet in this commit."""

    merge: Merge
    snapshot: Callable[[], Snapshot]


class CommitRange(Struct, frozen=True, kw_only=True):
    """Two snapshots of one fleet, and the commits between them."""

    base: Snapshot
    head: Snapshot
    folder: str  # the folder of the fleet in the repository
    messages: tuple[Message, ...]  # the messages of the commits in BASE..HEAD, the newest first
    repository: StoredRepository
    # the content digests of commits with acknowledgements before BASE
    base_acknowledgements: frozenset[str] = frozenset()
    # The commits from BASE to HEAD, the oldest first; empty if BASE is not a first-parent ancestor of HEAD.
    commits: tuple[RangeCommit, ...] = ()


def open_range(path: Path, text: str, *, merge: bool = False, accepted: str | None = None) -> CommitRange:
    """Return the commit range ``text`` in the repository that contains ``path``.

    With ``merge``, HEAD is first merged into BASE. With ``accepted``, the range starts at this commit instead of BASE.
    The merge happens in memory and does not change the repository. Raises `UsageError` if there is no such range, and
    `InvalidRepository` if there is a merge conflict.
    """
    base, head, from_merge_base = _parse_range(text, accepted)
    root = resolve_fleet_root(path)
    with convert_errors(path), open_containing_repository(root) as repository:
        if not root.is_dir() and (repository is None or head == WORKTREE):
            raise UsageError(f"{path} is not a directory")
        if repository is None:
            raise UsageError(f"{path} is not in a Git repository, so there are no commits to compare with")
        folder = get_fleet_folder(repository, root)
        old = _resolve_commit(repository, base, path)
        new = _resolve_commit(repository, "HEAD" if head == WORKTREE else head, path)
        if not root.is_dir() and all(find_tree(repository, Revision(str(oid)), folder) is None for oid in (old, new)):
            raise UsageError(f"{path} is not a directory, and neither commit contains the folder {folder}")
        stored = StoredRepository(get_git_directory(repository))
        if head == WORKTREE:
            folder_in_worktree = find_folder_in(repository, root)
            if folder_in_worktree is None:
                raise UsageError(f"{path} has no work tree: write BASE..HEAD")
            if merge or from_merge_base:
                raise UsageError(f"{path}: the work tree has no merge base. Write BASE..WORKTREE instead")
            snapshot = load_worktree(root, repository, folder_in_worktree)
        else:  # BASE may contain a symlink that HEAD replaces with a folder
            check_folder(repository, Revision(str(new)), folder, path)
            snapshot = load_commit(stored, Revision(str(new)), folder)
        if from_merge_base and not merge and accepted is None:
            old = _resolve_merge_base(repository, old, new, path)
        first = _resolve_commit(repository, accepted, path) if accepted is not None else old
        commits = tuple(
            RangeCommit(merge=each, snapshot=partial(load_commit, stored, each.revision, folder))
            for each in list_first_parent_merges(repository, first, old if merge else new)
        )
        if merge:
            merged = snapshot = _merge_in_memory(repository, old, new, folder, path)
            if commits or first == old:  # otherwise, BASE is not a first-parent ancestor of HEAD
                last = Merge(merged.revision, tuple(list_messages(repository, old, new)))
                commits = (*commits, RangeCommit(merge=last, snapshot=lambda: merged))
        other_tips = [old] if merge else []
        messages = tuple(list_messages(repository, first, new, *other_tips))
        base_acknowledgements: frozenset[str] = frozenset()
        if any(message.content for message in messages):  # otherwise, gitboot need not search the history
            base_acknowledgements = list_acknowledging_content(repository, (), [first])
        return CommitRange(
            base_acknowledgements=base_acknowledgements,
            base=load_commit(stored, Revision(str(first)), folder),
            head=snapshot,
            folder=folder,
            repository=stored,
            messages=messages,
            commits=() if head == WORKTREE else commits,
        )


def _parse_range(text: str, accepted: str | None) -> tuple[str, str, bool]:
    """Return BASE, HEAD (WORKTREE for the work tree), and whether the range is BASE...HEAD.

    ``accepted`` replaces a missing BASE. Raises `UsageError` if the text is not a range.
    """
    separator = "..." if "..." in text else ".."
    base, is_range, head = text.partition(separator)
    base = base or accepted or ""
    if not base or base == WORKTREE or ".." in head:
        raise UsageError(
            f"{text!r} is not a range: write BASE..HEAD, BASE...HEAD, or only BASE to compare the work tree"
        )
    return base, (head or "HEAD") if is_range else WORKTREE, separator == "..."


def find_head_commit(path: Path, text: str) -> Revision | None:
    """Return the commit that HEAD of the range ``text`` resolves to before any merge, or None for the work tree."""
    _, is_range, head = text.replace("...", "..").partition("..")
    if not is_range or head == WORKTREE:
        return None
    with open_containing_repository(path.resolve()) as repository:
        return resolve_commit(repository, head or "HEAD", str(path)) if repository is not None else None


def _resolve_commit(repository: pygit2.Repository, rev: str, path: Path) -> pygit2.Oid:
    return pygit2.Oid(hex=resolve_commit(repository, rev, str(path)))


def _resolve_merge_base(repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, path: Path) -> pygit2.Oid:
    base = find_merge_base(repository, old, new)
    if base is None:
        hint = "fetch more of the history" if repository.is_shallow else "write BASE..HEAD"
        raise UsageError(f"the two commits have no common ancestor in {path}; {hint}")
    return base


# Merges in memory

_IRREGULAR: Final = {0o120000: Irregular.SYMLINK, 0o160000: Irregular.SUBMODULE}
# the first dot-folder with its slash, or the first name that is not UTF-8, whose bytes are surrogates
_DOT_FOLDER_OR_NOT_UTF8: Final = re.compile(r"(?:^|(?<=/))\.[^/]*/|[\udc80-\udcff][^/]*")


def _merge_in_memory(
    repository: pygit2.Repository, old: pygit2.Oid, new: pygit2.Oid, folder: str, path: Path
) -> Snapshot:
    base = _resolve_merge_base(repository, old, new, path)
    prefix = f"{folder}/" if folder else ""
    # libgit2 writes the merged files to a repository. gitboot uses a temporary repository that also reads the objects
    # of the original repository.
    with tempfile.TemporaryDirectory() as scratch:
        temporary = pygit2.init_repository(scratch, bare=True)
        try:
            temporary.odb.add_disk_alternate(str(get_objects_directory(repository)))
            index = _merge_commits(temporary, base, old, new)
            if problems := list(_list_conflicts(index.conflicts or (), prefix)):
                raise InvalidRepository(problems)
            blobs, irregular = _list_merged_files(index, prefix)
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


def _merge_commits(repository: pygit2.Repository, base: pygit2.Oid, old: pygit2.Oid, new: pygit2.Oid) -> pygit2.Index:
    try:
        return repository.merge_commits(old, new)
    except pygit2.GitError:  # libgit2 cannot parse some commits even though their tree is complete
        reader = CommitReader(repository)
        ancestor, ours, theirs = (read_tree(repository, reader.read(oid)) for oid in (base, old, new))
        if ancestor is None or ours is None or theirs is None:
            raise
        return repository.merge_trees(ancestor, ours, theirs)


def _list_merged_files(index: pygit2.Index, prefix: str) -> tuple[dict[str, BlobId], dict[str, Irregular]]:
    """Return the fleet's regular files in an index, and its other files. Files in dot-folders are omitted."""
    blobs: dict[str, BlobId] = {}
    irregular: dict[str, Irregular] = {}
    for entry in index:
        if not entry.path.startswith(prefix):
            continue
        name = entry.path.removeprefix(prefix)
        match = _DOT_FOLDER_OR_NOT_UTF8.search(name)
        if match is not None and match[0].endswith("/"):
            continue
        if match is not None:
            irregular[decode_path(name[: match.end()])] = Irregular.FILE_NAME
        elif entry.mode in _IRREGULAR:
            irregular[name] = _IRREGULAR[entry.mode]
        else:
            blobs[name] = BlobId(str(entry.id))
    return blobs, irregular


def _list_conflicts(conflicts: Iterable[tuple[pygit2.IndexEntry | None, ...]], prefix: str) -> Iterator[Problem]:
    """Yield a problem for each file of the fleet with a merge conflict. Conflicts outside the fleet are ignored."""
    for sides in conflicts:
        path = decode_path(str(next(side.path for side in sides if side is not None)))
        if path.startswith(prefix):
            yield Code.MERGE_CONFLICT.build_problem("the two branches conflict in this file", path.removeprefix(prefix))
