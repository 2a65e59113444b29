"""gitboot's own bare clone of one remote: what was fetched last, what was accepted, what a commit holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import pygit2
from msgspec import structs

from gitboot.errors import BranchNotNamed, CorruptClone, OperatorError, SourceRefused, TryAgain, UsageError
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.git.fetch import BROKEN, CLONE, EMPTY, NEW, Fetching, InThisProcess, Upstream, latest_of, point, tag_of
from gitboot.git.history import Merge, acknowledging_content, date_of, is_ancestor, line, message_of, messages
from gitboot.git.remote import Head, Password, Remote, SshKey
from gitboot.git.repository import ACCEPTED, CommitReader, Stored, blaming, folder_at, note_accepted, peel_reference
from gitboot.git.snapshots import Blobs, of_commit


class FollowedBranch(NamedTuple):
    """The branch, or another reference, that an instance follows."""

    reference: str  # as refs/heads/main, or what --rev named
    is_default: bool  # whether gitboot found it: what HEAD named at the first start


class BranchRecord(Protocol):
    """The record of the branch that an instance follows."""

    def read(self) -> FollowedBranch | None:
        """Return the branch that was recorded last; None before the first start."""

    def accepted(self) -> str | None:
        """Return the commit that the instance accepted last."""

    def write(self, followed: FollowedBranch) -> None:
        """Record the branch."""


class Source:
    """One remote and ``state/repository.git``, where it is fetched to.

    The state directory is locked by whoever makes this. `fetch` and `restore` may run in one thread and the
    other methods in another: each call opens the repository anew, as libgit2 wants it. What reads the clone
    raises `CorruptClone` where it cannot, and `restore` fixes that. ``read_credentials`` is called for each fetch.
    Without it, each fetch uses the credentials of ``remote``.
    With ``record``, the first fetch of a remote without a reference finds the default branch. All later fetches
    follow that branch, also those of a later `Source` with the same record.
    """

    def __init__(
        self,
        remote: Remote,
        state: Path,
        fetching: Fetching | None = None,
        *,
        read_credentials: Callable[[], Password | SshKey | None] | None = None,
        record: BranchRecord | None = None,
    ) -> None:
        self._state, self._read_credentials, self._record = state, read_credentials, record
        self._recorded = record.read() if record is not None else None
        followed = self._recorded
        if remote.reference is not None:
            followed = FollowedBranch(remote.reference, is_default=False)
        self._followed, self._remote = followed, _with_reference(remote, followed)
        self._latest = latest_of(self._remote)
        self._head: Head | None = None  # what the remote's HEAD named at the last fetch
        self.has_fetched = False  # whether `latest` was fetched since this was made
        self.fetching = fetching or InThisProcess()
        self.clone = Stored(state / CLONE, CorruptClone)
        _sweep(self.clone.path)
        for left in (state / NEW, *state.glob(f"{EMPTY}*")):
            shutil.rmtree(left, ignore_errors=True)

    @property
    def reference(self) -> str | None:
        """The reference that is followed, as refs/heads/main or what --rev named; None before it is known."""
        return self._remote.reference

    @property
    def elsewhere(self) -> tuple[str, str] | None:
        """Return a word and a sentence if HEAD has left the branch that gitboot found at the first start.

        None if HEAD names that branch, if --rev named the branch, and before the first fetch.
        """
        followed, head = self._followed, self._head
        if followed is None or head is None or not followed.is_default or head.branch == followed.reference:
            return None
        branch = followed.reference
        if head.is_checked_out:
            is_out = f"{head.branch} is checked out" if head.branch is not None else "HEAD is detached"
            return "AnotherBranchCheckedOut", f"{is_out} in {self._remote.url}, and gitboot goes on following {branch}"
        names = f"names {head.branch} as its default branch" if head.branch is not None else "names no default branch"
        return "DefaultBranchChanged", f"{self._remote.url} {names} now, and gitboot goes on following {branch}"

    # What is there

    def latest(self) -> Revision | None:
        """The commit that was fetched last, before a restart too; None before the first."""
        if self._record is not None and self._followed is None:
            return None  # an earlier version followed HEAD, which may have named another branch
        return _at(self.clone, self._latest)

    def accepted(self) -> Revision | None:
        """The commit that was accepted last; None where there is none, or the clone was lost."""
        return _at(self.clone, ACCEPTED)

    def accept(self, revision: Revision) -> None:
        """Make a commit the accepted one, and keep it from ever being collected as garbage.

        Once this returns a power cut does not undo it.
        """
        with self.clone.reading() as ours:
            folder = folder_at(ours, revision)
            point(ours, ACCEPTED, revision)
            note_accepted(ours, folder)

    def committed_at(self, revision: Revision) -> datetime:
        with self.clone.reading() as ours:
            return date_of(CommitReader(ours).peel(revision).committer)

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        """Whether ``latest`` leaves out something of what led to ``accepted``."""
        with self.clone.reading() as ours:
            return not is_ancestor(ours, pygit2.Oid(hex=accepted), pygit2.Oid(hex=latest))

    def has(self, revision: Revision) -> bool:
        with self.clone.replacing:
            if not self.clone.path.exists():
                return False
        with self.clone.reading() as ours:
            return revision in ours.odb

    def merges(self, since: Revision | None, revision: Revision) -> tuple[Merge, ...]:
        """The commits from ``since`` to ``revision`` by first parents, the oldest first, with what they brought in.

        Where that does not lead there, or is far, all is one. Without ``since`` that is the one commit: what led to
        it is no part of what a new instance accepts.
        """
        with self.clone.reading() as ours:
            if since is None:
                return (Merge(revision, (message_of(CommitReader(ours).peel(revision)),)),)
            old, new = pygit2.Oid(hex=since), pygit2.Oid(hex=revision)
            return line(ours, old, new) or (Merge(revision, tuple(messages(ours, old, new))),)

    def acknowledging_content(self, hidden: Iterable[Revision], tips: Iterable[Revision]) -> frozenset[str]:
        """Return the signed content, as digests, of the acknowledging commits that led to ``tips``, not to ``hidden``.

        Commits that the clone lacks are left out.
        """
        with self.clone.reading() as ours:
            old, new = ([pygit2.Oid(hex=each) for each in commits if each in ours.odb] for commits in (hidden, tips))
            return acknowledging_content(ours, old, new) if new else frozenset()

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        return _snapshot(self.clone, revision, previous)

    def tag_on(self, revision: Revision) -> bytes | None:
        """The annotated tag that the remote's reference means, as Git stores it, if it is one and on this commit."""
        with self.clone.reading() as ours:
            reference = ours.references.get(tag_of(self._remote))
            if reference is None or peel_reference(ours, reference).revision != revision:
                return None
            return ours.read(reference.target)[1]

    # What the remote has

    def watch_paths(self) -> tuple[Path, ...]:
        """The directory in which, at any depth, a local repository's refs change; nothing for another remote."""
        return Upstream(self._remote, self._state).watch_paths()

    def fetch(self) -> Revision:
        """Fetch the commit that the remote's reference means now, which `latest` returns from then on.

        Raises `SourceError` where the next try may do better, and `SourceRefused` or `UsageError` where a
        person has to act first.
        """
        is_there = self.clone.path.exists()
        try:
            followed, remote = self._resolved()
            fetched, head = self.fetching.fetch(remote, self._state, anew=not is_there)
        except (TryAgain, OperatorError):
            _sweep(self.clone.path, but="accepted.lock")  # which is no fetch's
            raise
        if not is_there:
            self._replace()
        if self._record is not None and followed is not None:
            self._follow(followed, fetched, self._record)
        self._head, self.has_fetched = head, True
        return fetched

    def restore(self, accepted: Revision | None) -> None:
        """Make the clone anew from the remote, with the commit that was accepted last, as the ledger has it.

        The commit is looked for in what is left of the old clone too. While the remote cannot be fetched this
        raises what `fetch` does, and changes nothing. Raises `SourceRefused` where the commit is nowhere any
        more: then the clone is whole, but nothing in it is accepted.
        """
        _, remote = self._resolved()
        found = self.fetching.restore(remote, self._state, accepted)
        self._replace()
        self.has_fetched = True
        if not found:
            raise SourceRefused(f"the accepted commit {accepted} is not at {self._remote.url}, nor left here")
        shutil.rmtree(self._state / BROKEN, ignore_errors=True)

    def _resolved(self) -> tuple[FollowedBranch | None, Remote]:
        """Return the branch to follow, and the remote to fetch it from. Find the branch at the first start.

        Raises `UsageError` if the credentials that are valid now cannot be read.
        """
        followed, remote = self._followed, self._remote
        if self._read_credentials is not None:
            remote = structs.replace(remote, credentials=self._read_credentials())
        if self._record is None:
            return followed, remote
        followed = followed or self._record.read()  # of a write whose outcome was unknown
        if followed is not None:
            return followed, _with_reference(remote, followed)
        head = self.fetching.read_head(remote, self._state)
        if head.branch is None:
            raise BranchNotNamed(detached(remote))
        followed = FollowedBranch(head.branch, is_default=True)
        return followed, _with_reference(remote, followed)

    def _follow(self, followed: FollowedBranch, fetched: Revision, record: BranchRecord) -> None:
        """Record the branch that was fetched, and follow it from now on.

        Raises `BranchNotNamed` if gitboot found the branch just now, and it does not contain the accepted commit.
        """
        if followed == self._recorded:
            return
        if self._followed is None:
            found = record.accepted() or self.accepted()
            accepted = Revision(found) if found is not None else None
            if accepted is not None and not (self.has(accepted) and not self.is_rewind(accepted, fetched)):
                raise BranchNotNamed(
                    f"{self._remote.url}: the default branch {followed.reference} does not contain the accepted commit "
                    f"{accepted[:12]}; name the branch to follow with --rev"
                )
        record.write(followed)
        self._recorded = self._followed = followed
        self._remote = _with_reference(self._remote, followed)
        self._latest = latest_of(self._remote)

    def _replace(self) -> None:
        broken = self._state / BROKEN
        shutil.rmtree(broken, ignore_errors=True)
        with blaming(self._state), self.clone.replacing:
            if self.clone.path.exists():
                self.clone.path.rename(broken)
            (self._state / NEW).rename(self.clone.path)


def detached(remote: Remote) -> str:
    return (
        f"{remote.url} has a detached HEAD; name the branch to follow with --rev, or follow what is checked out with "
        "--rev HEAD"
    )


def _with_reference(remote: Remote, followed: FollowedBranch | None) -> Remote:
    return structs.replace(remote, reference=followed.reference) if followed is not None else remote


def _sweep(clone: Path, but: str | None = None) -> None:
    """Remove what a process that was killed left behind in a clone: locks, and half a pack."""
    with blaming(clone):
        for left in {*clone.rglob("*.lock"), *clone.glob("objects/pack/pack_*")}:
            if left.name != but:
                left.unlink(missing_ok=True)


def _at(clone: Stored, name: str) -> Revision | None:
    with clone.replacing:
        if not clone.path.exists():
            return None

    def read() -> Revision | None:
        with clone.reading() as ours:
            reference = ours.references.get(name)
            return None if reference is None else peel_reference(ours, reference).revision

    return clone.steadily(read)


def _snapshot(clone: Stored, revision: Revision, previous: Snapshot | None) -> Snapshot:
    def read() -> Snapshot:
        with clone.reading() as ours:
            folder = folder_at(ours, revision)
        return of_commit(clone, revision, folder, previous)

    return clone.steadily(read)


class Reader:
    """Reads commits of a state directory's clone, which another process fetches into."""

    def __init__(self, state: Path) -> None:
        self._clone = Stored(state / CLONE, CorruptClone)
        self._blobs = Blobs(self._clone)

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        return structs.replace(_snapshot(self._clone, revision, previous), read=self.read)

    def read(self, blob: BlobId) -> bytes:
        return self._blobs(blob)

    def close(self) -> None:
        """Let go of the packs, which may be replaced; reading goes on by opening them anew."""
        self._blobs.close()


def accepted_snapshot(state: Path) -> Snapshot:
    """The files of the commit that the instance with this state directory accepted last; changes nothing there.

    Raises `UsageError` where none was accepted yet.
    """
    clone = Stored(state / CLONE, CorruptClone)
    if (revision := _at(clone, ACCEPTED)) is None:
        raise UsageError(f"no commit was accepted with the state directory {state} yet: begin with `gitboot run`")
    return _snapshot(clone, revision, None)
