"""gitboot's bare clone of a remote: fetch commits, store which commit is accepted, and read files in commits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import pygit2
from msgspec import structs

from gitboot.errors import BranchNotNamed, CorruptClone, OperatorError, SourceRefused, TemporaryError, UsageError
from gitboot.fleet.revision import BlobId, FileChanges, Revision, Snapshot
from gitboot.git.fetch import (
    BROKEN,
    CLONE,
    EMPTY,
    NEW,
    Fetcher,
    InProcessFetcher,
    Upstream,
    build_latest_reference,
    build_tag_reference,
    set_reference,
)
from gitboot.git.history import (
    Merge,
    convert_date,
    is_ancestor,
    list_acknowledging_content,
    list_file_changes,
    list_first_parent_merges,
    list_messages,
    read_message,
)
from gitboot.git.remote import Head, Password, Remote, SshKey
from gitboot.git.repository import (
    ACCEPTED,
    CommitReader,
    StoredRepository,
    convert_errors,
    peel_reference,
    read_fleet_folder_at,
    store_accepted_folder,
)
from gitboot.git.snapshots import BlobReader, load_commit


class FollowedBranch(NamedTuple):
    """The branch or other reference that an instance follows."""

    reference: str  # the reference, for example refs/heads/main, or the value of --rev
    is_default: bool  # whether gitboot took the branch from the remote's HEAD at the first start


class BranchMismatch(NamedTuple):
    """A difference between the branch that the HEAD of a remote names and the branch that the instance follows."""

    reason: str
    message: str
    branch: str | None  # the branch that HEAD names, for example main
    followed: str


class BranchRecord(Protocol):
    """The stored record of the branch that an instance follows."""

    def read(self) -> FollowedBranch | None:
        """Return the recorded branch, or None before the first start."""

    def accepted(self) -> str | None:
        """Return the commit that the instance accepted last."""

    def write(self, branch: FollowedBranch) -> None:
        """Record the branch."""


def _shorten(reference: str | None) -> str | None:
    return reference.removeprefix("refs/heads/") if reference is not None else None


class Source:
    """The remote that an instance follows, and its clone at ``state/repository.git``.

    The caller must hold the lock on the state directory. `fetch` and `restore` may run in one thread while the other
    methods run in another thread, because each call opens the repository again, as libgit2 requires. Methods that read
    the clone raise `CorruptClone` for a damaged clone, and `restore` repairs the clone.

    Each fetch calls ``read_credentials`` to get the current credentials. Without this function, fetches use the
    credentials in ``remote``. If ``remote`` does not have a reference and there is a ``record``, the first fetch finds
    the default branch. All later fetches follow that branch, even those by a new `Source` with the same record.
    """

    def __init__(
        self,
        remote: Remote,
        state: Path,
        fetcher: Fetcher | None = None,
        *,
        read_credentials: Callable[[], Password | SshKey | None] | None = None,
        record: BranchRecord | None = None,
    ) -> None:
        self._state, self._read_credentials, self._record = state, read_credentials, record
        self._recorded = record.read() if record is not None else None
        named = FollowedBranch(remote.reference, is_default=False) if remote.reference is not None else None
        self._followed = named or self._recorded
        self._remote = _set_reference(remote, self._followed)
        self._latest = build_latest_reference(self._remote)
        self._head: Head | None = None  # the HEAD of the remote at the last fetch; None: this object has not read it
        self.has_fetched = False  # whether this object fetched `latest`
        self.fetcher = fetcher or InProcessFetcher()
        self.clone = StoredRepository(state / CLONE, CorruptClone)
        _remove_leftovers(self.clone.path)
        for left in (state / NEW, *state.glob(f"{EMPTY}*")):
            shutil.rmtree(left, ignore_errors=True)

    @property
    def reference(self) -> str | None:
        """The reference that the instance follows, for example refs/heads/main, or None before the first fetch."""
        return self._remote.reference

    @property
    def branch_mismatch(self) -> BranchMismatch | None:
        """How the remote's HEAD differs from the branch recorded at the first start, or None if there is no difference.

        The value is always None before the first fetch, and if --rev names the branch.
        """
        recorded, head = self._followed, self._head
        if recorded is None or head is None or not recorded.is_default or head.branch == recorded.reference:
            return None
        branch, followed = _shorten(head.branch), _shorten(recorded.reference) or ""
        url = self._remote.url
        if head.is_checked_out:
            reason = "AnotherBranchCheckedOut"
            state = f"{branch} is checked out in {url}" if branch is not None else f"HEAD is detached in {url}"
        else:
            reason = "DefaultBranchChanged"
            state = f"{url} has no default branch"
            if branch is not None:
                state = f"the default branch of {url} is now {branch}"
        return BranchMismatch(reason, f"{state}, but gitboot still follows {followed}", branch, followed)

    # The clone

    def latest(self) -> Revision | None:
        """Return the commit that the last fetch found, or None before the first fetch.

        gitboot stores this commit, so the result stays the same after a restart.
        """
        if self._record is not None and self._followed is None:
            return None  # an earlier version followed HEAD, which may have named another branch
        return _read_reference(self.clone, self._latest)

    def accepted(self) -> Revision | None:
        """Return the newest accepted commit, or None if gitboot has not accepted a commit or the clone is lost."""
        return _read_reference(self.clone, ACCEPTED)

    def accept(self, revision: Revision) -> None:
        """Store a commit as the accepted commit, and protect it from Git's garbage collection.

        The change is durable when the method returns.
        """
        with self.clone.open() as ours:
            folder = read_fleet_folder_at(ours, revision)
            set_reference(ours, ACCEPTED, revision)
            store_accepted_folder(ours, folder)

    def committed_at(self, revision: Revision) -> datetime:
        with self.clone.open() as ours:
            return convert_date(CommitReader(ours).peel(revision).committer)

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        """Return whether the history of ``latest`` does not contain the commit ``accepted``."""
        with self.clone.open() as ours:
            return not is_ancestor(ours, pygit2.Oid(hex=accepted), pygit2.Oid(hex=latest))

    def has(self, revision: Revision) -> bool:
        with self.clone.replacement_lock:
            if not self.clone.path.exists():
                return False
        with self.clone.open() as ours:
            return revision in ours.odb

    def merges(self, since: Revision | None, revision: Revision) -> tuple[Merge, ...]:
        """Return the first-parent commits after ``since`` up to ``revision``, oldest first, with their messages.

        If ``since`` is not a first-parent ancestor of ``revision``, or if there are too many commits between them, the
        result is a single entry with all messages. Without ``since``, the result contains only ``revision``, because a
        new instance does not accept the commits before it.
        """
        with self.clone.open() as ours:
            if since is None:
                return (Merge(revision, (read_message(CommitReader(ours).peel(revision)),)),)
            old, new = pygit2.Oid(hex=since), pygit2.Oid(hex=revision)
            merges = list_first_parent_merges(ours, old, new)
            return merges or (Merge(revision, tuple(list_messages(ours, old, new))),)

    def read_file_changes(self, revision: Revision, known: Mapping[Revision, FileChanges]) -> tuple[FileChanges, ...]:
        """Return the latest first-parent commits up to ``revision``, newest first, each with the files that it changed.

        ``known`` contains earlier results, which gitboot reuses.
        """
        with self.clone.open() as ours:
            return tuple(list_file_changes(ours, revision, read_fleet_folder_at(ours, revision), known))

    def find_acknowledging_content(self, hidden: Iterable[Revision], tips: Iterable[Revision]) -> frozenset[str]:
        """Return the content digests of commits with acknowledgements.

        These are the commits that are reachable from ``tips`` but not from ``hidden``. gitboot ignores commits that the
        clone does not contain.
        """
        with self.clone.open() as ours:
            hidden_ids = [pygit2.Oid(hex=commit) for commit in hidden if commit in ours.odb]
            tip_ids = [pygit2.Oid(hex=commit) for commit in tips if commit in ours.odb]
            return list_acknowledging_content(ours, hidden_ids, tip_ids) if tip_ids else frozenset()

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        return _load_snapshot(self.clone, revision, previous)

    def read_tag_on(self, revision: Revision) -> bytes | None:
        """Return the raw annotated tag that the instance follows, or None if the tag does not point to this commit."""
        with self.clone.open() as ours:
            reference = ours.references.get(build_tag_reference(self._remote))
            if reference is None or peel_reference(ours, reference).revision != revision:
                return None
            return ours.read(reference.target)[1]

    # The remote

    def watch_paths(self) -> tuple[Path, ...]:
        """Return the directory to watch recursively for changes in a local repository, or () for other remotes."""
        return Upstream(self._remote, self._state).watch_paths()

    def fetch(self) -> Revision:
        """Fetch the current commit of the remote's reference, and return it. `latest` then returns the same commit.

        Raises `SourceError` if a later attempt may succeed, and `SourceRefused` or `UsageError` if a person has to act.
        """
        has_clone = self.clone.path.exists()
        try:
            branch, remote = self._resolve_remote()
            revision, head = self.fetcher.fetch(remote, self._state, into_new_clone=not has_clone)
        except (TemporaryError, OperatorError):
            _remove_leftovers(self.clone.path, keep="accepted.lock")  # `keep` is a file that no fetch creates
            raise
        if not has_clone:
            self._replace_clone()
        if self._record is not None and branch is not None:
            self._record_branch(branch, revision, self._record)
        self._head = head
        self.has_fetched = True
        return revision

    def restore(self, accepted: Revision | None) -> None:
        """Create the clone again from the remote, and mark ``accepted``, the commit in the ledger, as accepted.

        If the remote does not contain this commit, gitboot searches the old clone. If the fetch fails, the clone stays
        unchanged, and the method raises the same errors as `fetch`. Raises `SourceRefused` if the commit is lost. In
        that case, the new clone is complete except that it has no accepted commit.
        """
        _, remote = self._resolve_remote()
        has_accepted_commit = self.fetcher.restore(remote, self._state, accepted)
        self._replace_clone()
        self.has_fetched = True
        if not has_accepted_commit:
            raise SourceRefused(f"neither {self._remote.url} nor the old clone contains the accepted commit {accepted}")
        shutil.rmtree(self._state / BROKEN, ignore_errors=True)

    def _resolve_remote(self) -> tuple[FollowedBranch | None, Remote]:
        """Return the branch to follow, and the remote with this branch. At the first start, this is the default branch.

        Raises `UsageError` if gitboot cannot read the current credentials. Raises `BranchNotNamed` if HEAD is detached.
        """
        branch, remote = self._followed, self._remote
        if self._read_credentials is not None:
            remote = structs.replace(remote, credentials=self._read_credentials())
        if self._record is None:
            return branch, remote
        branch = branch or self._record.read()  # an earlier write may have succeeded although it raised an error
        if branch is not None:
            return branch, _set_reference(remote, branch)
        head = self.fetcher.read_head(remote, self._state)
        if head.branch is None:
            raise BranchNotNamed(explain_detached_head(remote))
        branch = FollowedBranch(head.branch, is_default=True)
        return branch, _set_reference(remote, branch)

    def _record_branch(self, branch: FollowedBranch, revision: Revision, record: BranchRecord) -> None:
        """Store the name of the fetched branch, which gitboot follows from now on.

        Raises `BranchNotNamed` if this fetch selected the branch but the branch does not contain the accepted commit.
        """
        if branch == self._recorded:
            return
        if self._followed is None:
            commit = record.accepted() or self.accepted()
            accepted = Revision(commit) if commit is not None else None
            if accepted is not None and (not self.has(accepted) or self.is_rewind(accepted, revision)):
                raise BranchNotNamed(
                    f"{self._remote.url}: the default branch {branch.reference} does not contain the accepted commit "
                    f"{accepted[:12]}; specify the branch to follow with --rev"
                )
        record.write(branch)
        self._recorded = self._followed = branch
        self._remote = _set_reference(self._remote, branch)
        self._latest = build_latest_reference(self._remote)

    def _replace_clone(self) -> None:
        broken = self._state / BROKEN
        shutil.rmtree(broken, ignore_errors=True)
        with convert_errors(self._state), self.clone.replacement_lock:
            if self.clone.path.exists():
                self.clone.path.rename(broken)
            (self._state / NEW).rename(self.clone.path)


def explain_detached_head(remote: Remote) -> str:
    return (
        f"{remote.url} has a detached HEAD; use --rev to name the branch to follow, or --rev HEAD to follow the "
        "checked-out commit"
    )


def _set_reference(remote: Remote, branch: FollowedBranch | None) -> Remote:
    return structs.replace(remote, reference=branch.reference) if branch is not None else remote


def _remove_leftovers(clone: Path, keep: str | None = None) -> None:
    """Remove the lock files and incomplete packs that a killed process left in a clone."""
    with convert_errors(clone):
        for path in {*clone.rglob("*.lock"), *clone.glob("objects/pack/pack_*")}:
            if path.name != keep:
                path.unlink(missing_ok=True)


def _read_reference(clone: StoredRepository, name: str) -> Revision | None:
    with clone.replacement_lock:
        if not clone.path.exists():
            return None

    def read() -> Revision | None:
        with clone.open() as ours:
            reference = ours.references.get(name)
            return None if reference is None else peel_reference(ours, reference).revision

    return clone.retry(read)


def _load_snapshot(clone: StoredRepository, revision: Revision, previous: Snapshot | None) -> Snapshot:
    def read() -> Snapshot:
        with clone.open() as ours:
            folder = read_fleet_folder_at(ours, revision)
        return load_commit(clone, revision, folder, previous)

    return clone.retry(read)


class CloneReader:
    """Reads commits from a clone while another process may fetch into it."""

    def __init__(self, state: Path) -> None:
        self._clone = StoredRepository(state / CLONE, CorruptClone)
        self._blobs = BlobReader(self._clone)

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        return structs.replace(_load_snapshot(self._clone, revision, previous), read=self.read)

    def read(self, blob: BlobId) -> bytes:
        return self._blobs(blob)

    def close(self) -> None:
        """Close the pack files, because a fetch may replace them. The next read opens the pack files again."""
        self._blobs.close()


def load_accepted_snapshot(state: Path) -> Snapshot:
    """Return the snapshot of the newest commit that the instance with this state directory accepted.

    gitboot only reads the state directory. Raises `UsageError` if the instance has not accepted a commit yet.
    """
    clone = StoredRepository(state / CLONE, CorruptClone)
    if (revision := _read_reference(clone, ACCEPTED)) is None:
        raise UsageError(
            f"the instance with the state directory {state} has not accepted a commit yet: run `gitboot run`"
        )
    return _load_snapshot(clone, revision, None)
