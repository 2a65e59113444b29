"""Branch writer: create commits on branches that gitboot owns, push them, and write them to Git bundles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pygit2
from msgspec import Struct, structs
from pygit2.enums import FileMode

from gitboot.errors import UsageError
from gitboot.files import resolve_fleet_root, write_output_file
from gitboot.fleet.revision import Revision
from gitboot.git.fetch import Fetcher, FetchOrder, FetchResult, InProcessFetcher, Work
from gitboot.git.history import convert_date, read_file
from gitboot.git.remote import Remote
from gitboot.git.repository import (
    CommitObject,
    CommitReader,
    StoredRepository,
    convert_errors,
    list_reachable_objects,
    open_containing_repository,
    open_repository,
    peel_reference,
    read_tree,
)
from gitboot.git.snapshots import find_fleet_folder, get_fleet_folder
from gitboot.text import quote_words

_MAX_LATER_COMMITS: Final = 100  # the number of commits in which gitboot searches for the one that added a file
_FORBIDDEN_CHARACTERS: Final = dict.fromkeys(map(ord, "<>\n\0"), " ")


class Authorship(NamedTuple):
    """The author and the author date of a commit."""

    name: str
    email: str
    time: int  # in seconds since 1970
    offset: int  # the difference from UTC in minutes


class OwnedBranch:
    """A branch of a remote to which gitboot adds commits. The bare repository at ``path`` stores these commits.

    Each new commit has the commit that `fetch` returned as its parent. If the remote branch has moved since that fetch,
    the remote rejects the push.
    """

    def __init__(
        self, get_remote: Callable[[], Remote], ref: str, path: Path, *, fetcher: Fetcher | None = None
    ) -> None:
        self._get_remote, self._ref, self._path = get_remote, ref, path
        self._fetcher = fetcher or InProcessFetcher()

    def fetch(self) -> str | None:
        """Fetch the branch and return its newest commit, or None if the remote does not have the branch."""
        with self._open() as ours:
            tip = self._carry_out("tip").revision
            if tip and tip not in ours.odb:
                self._carry_out("branch")
            return tip or None

    def is_default(self) -> bool:
        with self._open():
            head = self._carry_out("tip").head
            return head is not None and head.branch == self._ref

    def read(self, commit: str, path: str) -> bytes | None:
        """Return the content of a file in a commit, or None if the commit does not contain the file."""
        with self._open() as ours, convert_errors(self._path):
            return read_file(ours, CommitReader(ours).peel(commit), path)

    def commit(
        self,
        parent: str | None,
        changes: Mapping[str, Callable[[], bytes] | None],
        message: str,
        author: Authorship,
        at: datetime,
    ) -> str:
        """Create a commit that writes the files in ``changes``, and removes each file whose value is None.

        The branch does not move.
        """
        with self._open() as ours, convert_errors(self._path):
            index = pygit2.Index()
            if parent is not None:
                tree = read_tree(ours, CommitReader(ours).peel(parent))
                if tree is None:
                    raise KeyError(f"commit {parent} has no tree")
                index.read_tree(tree)
            for path, content in changes.items():
                if content is not None:
                    index.add(pygit2.IndexEntry(path, ours.create_blob(content()), FileMode.BLOB))
                elif path in index:
                    index.remove(path)
            author_signature = pygit2.Signature(author.name, author.email, author.time, author.offset)
            committer = pygit2.Signature("gitboot", "gitboot@localhost", int(at.timestamp()), 0)
            parents: list[str | pygit2.Oid] = [parent] if parent is not None else []
            return str(ours.create_commit(None, author_signature, committer, message, index.write_tree(ours), parents))

    def push(self, expected: str | None, commit: str) -> None:
        """Move the branch from ``expected`` to a commit. Raises `SourceError` if the branch has already moved."""
        self._carry_out("push", expected_commit=expected, pushed_commit=commit)

    def _carry_out(self, work: Work, **more: Any) -> FetchResult:
        remote = structs.replace(self._get_remote(), reference=self._ref)  # use the current credentials
        return self._fetcher.carry_out(FetchOrder(work=work, remote=remote, folder=self._path, **more))

    @contextmanager
    def _open(self) -> Iterator[pygit2.Repository]:
        with convert_errors(self._path):
            if not (self._path / "HEAD").exists():
                pygit2.init_repository(str(self._path), bare=True).free()
        with open_repository(self._path) as ours:
            yield ours


def read_authorship(clone: StoredRepository, revision: Revision) -> Authorship | None:
    """Return the author of a commit, or None if the clone does not contain the commit."""
    with clone.open() as ours:
        if revision not in ours.odb:
            return None
        author = CommitReader(ours).peel(revision).author
        name, email = _clean_author_text(author.name), _clean_author_text(author.email)
        return Authorship(name or "unknown", email or "unknown", int(convert_date(author).timestamp()), author.offset)


def _clean_author_text(raw: bytes) -> str:
    """Return a text without the characters that Git does not allow in an author."""
    return " ".join(raw.decode(errors="replace").translate(_FORBIDDEN_CHARACTERS).split())


def find_pushed_url(checkout: Path) -> str | None:
    """Return the URL and the commit of a checkout as ``https://HOST/PATH@COMMIT``, without a user name.

    Return None if the URL of the remote origin is not https, or if origin did not contain the commit at the last fetch.
    """
    try:
        repository = pygit2.Repository(str(checkout))
        head = repository.head.target
        origin = urlsplit(repository.remotes["origin"].url or "")
        branches = [*repository.branches.remote.with_commit(head)]
    except (pygit2.GitError, KeyError, ValueError):
        return None
    if origin.scheme != "https" or not origin.hostname or not branches:
        return None
    port = f":{origin.port}" if origin.port else ""
    return f"https://{origin.hostname}{port}{origin.path}@{head}"


def build_branch_prefix(prefix: str, path: Path) -> str:
    """Return ``prefix`` with the folder of the fleet at ``path``, for the branches of this fleet."""
    folder = re.sub("[^A-Za-z0-9]+", "-", find_fleet_folder(path)).strip("-")
    return f"{prefix}{folder}{'-' if folder else ''}"


def check_branch(branch: str) -> None:
    """Raise `UsageError` if Git does not accept the name of a new branch (git-check-ref-format(1), --branch)."""
    try:
        is_valid = branch != "HEAD" and branch[:1] != "-" and pygit2.reference_is_valid_name(f"refs/heads/{branch}")
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise UsageError(f"{branch!r} is not a valid branch name")


def branch_contains_files(path: Path, branch: str, files: Mapping[str, bytes]) -> bool | None:
    """Return whether a branch contains these files of the fleet at ``path``, or None if the branch does not exist.

    Remote-tracking branches count too. Raises `UsageError` if ``path`` is not in a Git repository.
    """
    root = resolve_fleet_root(path)
    with convert_errors(path), open_containing_repository(root) as repository:
        if repository is None:
            raise UsageError(f"{path} is not in a Git repository: use --no-commit to change only the file")
        tracking = (f"refs/remotes/{remote.name}/{branch}" for remote in repository.remotes)
        branches = [name for name in (f"refs/heads/{branch}", *tracking) if name in repository.references]
        folder = get_fleet_folder(repository, root)
        tips = [peel_reference(repository, repository.references[name]) for name in branches]
        trees = [tree for tree in (read_tree(repository, tip) for tip in tips) if tree is not None]
        blob_ids = {f"{folder}/{name}" if folder else name: pygit2.hash(content) for name, content in files.items()}
        has_files = (all(name in tree and tree[name].id == id for name, id in blob_ids.items()) for tree in trees)
        return any(has_files) if branches else None


class Proposal(Struct, frozen=True, kw_only=True):
    """The commit on a branch that added a file."""

    commit: Revision
    parent: Revision | None
    message: str
    committed: datetime  # the committer date of the commit


def find_proposal(path: Path, branch: str, file: str | None) -> Proposal | None:
    """Return the commit on a branch that added a file of the fleet at ``path``, or None if there is no such branch.

    If a remote has the branch, gitboot searches the remote-tracking branch. Later commits that other people added to
    the branch are ignored. Without ``file``, the function returns the last commit of the branch. Raises `UsageError` if
    the branch does not contain the file.
    """
    root = resolve_fleet_root(path)
    with convert_errors(path), open_containing_repository(root) as repository:
        if repository is None:
            raise UsageError(f"{path} is not in a Git repository, so gitboot cannot create branches")
        names = [*(f"refs/remotes/{remote.name}/{branch}" for remote in repository.remotes), f"refs/heads/{branch}"]
        name = next((name for name in names if name in repository.references), None)
        if name is None:
            return None
        commit = peel_reference(repository, repository.references[name])
        if file is not None:
            place = str(PurePosixPath(get_fleet_folder(repository, root), file))
            adding = _find_adding_commit(repository, commit, place)
            if adding is None:
                raise UsageError(f"the branch {branch} already exists, but does not contain {file}; delete the branch")
            commit = adding
        return Proposal(
            commit=commit.revision,
            parent=Revision(str(commit.parents[0])) if commit.parents else None,
            message=commit.message.decode(errors="replace"),
            committed=convert_date(commit.committer),
        )


def _find_adding_commit(repository: pygit2.Repository, tip: CommitObject, place: str) -> CommitObject | None:
    """Follow first parents from ``tip``, and return the oldest commit that still has a file.

    Return None if ``tip`` lacks the file.
    """
    oldest = None
    for commit in islice(CommitReader(repository).first_parents(tip.id), _MAX_LATER_COMMITS):
        tree = read_tree(repository, commit)
        if tree is None or place not in tree:
            break
        oldest = commit
        if commit.parents and commit.parents[0] not in repository.odb:  # a shallow clone has no older commits
            break
    return oldest


def write_bundle(path: Path, file: Path, branches: Sequence[str]) -> None:
    """Write the last commit of each local branch in ``branches`` to a Git bundle.

    The repository is at ``path``. A repository that fetches the bundle must already have the parents of these commits.
    ``git fetch FILE`` can read the bundle (gitformat-bundle(5)). Raises `UsageError` if the file cannot be written.
    """
    with convert_errors(path), open_containing_repository(resolve_fleet_root(path)) as repository:
        assert repository is not None  # noqa: S101 - `propose_commit` has checked this
        commits = {name: peel_reference(repository, repository.references[f"refs/heads/{name}"]) for name in branches}
        parents = sorted({parent for commit in commits.values() for parent in commit.parents}, key=str)
        present = set(parents)
        for parent in parents:
            if (tree := CommitReader(repository).read(parent).tree) is not None:
                present |= list_reachable_objects(repository, tree, present)
        builder = pygit2.PackBuilder(repository)
        for commit in commits.values():
            for oid in sorted(list_reachable_objects(repository, commit.id, present), key=str):
                builder.add(oid)
        with TemporaryDirectory(prefix="gitboot-") as folder:
            builder.write(folder)
            (pack,) = Path(folder).glob("*.pack")
            lines = ["# v2 git bundle", *(f"-{parent}" for parent in parents)]
            lines += (f"{commit.id} refs/heads/{name}" for name, commit in commits.items())
            write_output_file(file, ["\n".join((*lines, "", "")).encode(), pack.read_bytes()])


def propose_commit(
    path: Path, base: Revision, branch: str, files: Mapping[str, bytes], message: str, at: datetime
) -> Revision:
    """Create a branch with one commit on top of ``base`` that changes or adds files of the fleet at ``path``.

    The work tree and the checked-out branch do not change. The author of the commit is the user in the repository's Git
    configuration. Raises `UsageError` if a file or a symlink exists in place of a parent folder of a new file, or if an
    existing branch prevents the new branch.
    """
    root = resolve_fleet_root(path)
    with convert_errors(path), open_containing_repository(root) as repository:
        assert repository is not None  # noqa: S101 - is_proposed has checked this
        _reject_blocked_branch(path, repository, branch)
        folder = get_fleet_folder(repository, root)
        parent = CommitReader(repository).peel(base)
        index = pygit2.Index()
        if (tree := read_tree(repository, parent)) is not None:
            index.read_tree(tree)
        for path_of_file, content in files.items():
            place = PurePosixPath(folder, path_of_file)
            blocking_file = next((parent for parent in map(str, place.parents) if parent in index), None)
            if blocking_file is not None:
                raise UsageError(f"{path}: {blocking_file} is not a folder, so gitboot cannot add {place}")
            mode = index[str(place)].mode if str(place) in index else FileMode.BLOB
            index.add(pygit2.IndexEntry(str(place), repository.create_blob(content), mode))
        name, email = "gitboot", "gitboot@localhost"
        with suppress(KeyError):
            default = repository.default_signature
            name, email = default.name, default.email
        signature = pygit2.Signature(name, email, int(at.timestamp()), 0)
        commit = repository.create_commit(
            None, signature, signature, message, index.write_tree(repository), [parent.id]
        )
        repository.references.create(f"refs/heads/{branch}", commit)
        return Revision(str(commit))


def _reject_blocked_branch(path: Path, repository: pygit2.Repository, branch: str) -> None:
    """Raise `UsageError` if Git cannot create a branch, because a branch cannot be inside another branch."""
    for name in sorted(repository.branches.local):
        if branch.startswith(f"{name}/") or name.startswith(f"{branch}/"):
            raise UsageError(
                f"{path}: Git cannot create the branch {branch}, because the branch {name} exists; rename it with "
                f"`git branch -m {quote_words(name)} NEWNAME`"
            )
