"""gitboot's own bare clone of one remote: what was fetched last, what was accepted, what a commit holds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pygit2

from gitboot.errors import CorruptClone, SourceError, SourceRefused, UsageError
from gitboot.load import BlobId, Revision, Snapshot
from gitboot.source.line import Merge, line, message_of, messages
from gitboot.source.objects import copy, merge_packs
from gitboot.source.remote import Remote
from gitboot.source.repository import Stored, blaming, opened
from gitboot.source.tree import Blobs, of_commit
from gitboot.source.upstream import Upstream, folder_of

MAX_PACKS: Final = 50  # every fetch adds one, and each is one more to look into

_ACCEPTED: Final = "refs/gitboot/accepted"


class Source:
    """One remote and ``state/repository.git``, where it is fetched to.

    The state directory is locked by whoever makes this. `fetch` and `restore` may run in one thread and the
    other methods in another: each call opens the repository anew, as libgit2 wants it. What reads the clone
    raises `CorruptClone` where it cannot, and `restore` fixes that.
    """

    def __init__(self, remote: Remote, state: Path) -> None:
        self._upstream, self._state = Upstream(remote, state), state
        self.clone = Stored(state / "repository.git", CorruptClone)
        self._new = Stored(state / "repository.new", CorruptClone)
        self._broken = state / "repository.broken"
        # Another URL or reference is another source: what was fetched from the one before is not its commit.
        source = hashlib.sha256(f"{remote.url}\n{remote.reference}".encode()).hexdigest()
        self._latest = f"refs/gitboot/latest/{source[:16]}"
        self.tag = f"refs/gitboot/tag/{source[:16]}"
        _sweep(state, self.clone, self._new)

    # What is there

    def latest(self) -> Revision | None:
        """The commit that was fetched last, before a restart too; None before the first."""
        return _at(self.clone, self._latest)

    def accepted(self) -> Revision | None:
        """The commit that was accepted last; None where there is none, or the clone was lost."""
        return _at(self.clone, _ACCEPTED)

    def accept(self, revision: Revision) -> None:
        """Make a commit the accepted one, and keep it from ever being collected as garbage.

        Once this returns a power cut does not undo it.
        """
        with self.clone.reading() as ours:
            _point(ours, _ACCEPTED, revision)

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        """Whether ``latest`` leaves out something of what led to ``accepted``."""
        with self.clone.reading() as ours:
            return accepted != latest and not ours.descendant_of(latest, accepted)

    def has(self, revision: Revision) -> bool:
        """Whether a commit was fetched."""
        with self.clone.replacing:
            if not self.clone.path.exists():
                return False
        with self.clone.reading() as ours:
            return revision in ours

    def merges(self, since: Revision | None, revision: Revision) -> tuple[Merge, ...]:
        """The commits from ``since`` to ``revision`` by first parents, the oldest first, with what they brought in.

        Where that does not lead there, or is far, all is one. Without ``since`` that is the one commit: what led to
        it is no part of what a new instance accepts.
        """
        with self.clone.reading() as ours:
            if since is None:
                return (Merge(revision, (message_of(ours[revision].peel(pygit2.Commit)),)),)
            old, new = pygit2.Oid(hex=since), pygit2.Oid(hex=revision)
            return line(ours, old, new) or (Merge(revision, tuple(messages(ours, old, new))),)

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        """The files of a commit; with an earlier snapshot only what differs from it is read."""
        with self.clone.reading() as ours:
            folder = folder_of(ours)
        return of_commit(self.clone, revision, folder, previous)

    # What the remote has

    def watch_paths(self) -> tuple[Path, ...]:
        """The directory in which, at any depth, a local repository's refs change; nothing for another remote."""
        return self._upstream.watch_paths()

    def fetch(self) -> Revision:
        """Fetch the commit that the remote's reference means now, which `latest` returns from then on.

        Raises `SourceError` where the next try may do better, and `SourceRefused` or `UsageError` where a
        person has to act first.
        """
        if self.clone.path.exists():
            return self._fetch_into(self.clone)
        fetched = self._fetch_into(_create(self._new))
        self._replace()
        return fetched

    def _replace(self) -> None:
        """Put the new clone in the place of what is there."""
        shutil.rmtree(self._broken, ignore_errors=True)
        with blaming(self._state), self.clone.replacing:
            if self.clone.path.exists():
                self.clone.path.rename(self._broken)
            self._new.path.rename(self.clone.path)

    def _fetch_into(self, clone: Stored) -> Revision:
        with clone.reading() as ours:
            brought = self._upstream.bring(ours, (_ACCEPTED, self._latest))
            if brought.tag is not None:
                _point(ours, self.tag, brought.tag)
            elif self.tag in ours.references:
                ours.references.delete(self.tag)
            _point(ours, self._latest, brought.commit)
            merge_packs(ours, MAX_PACKS)
        return brought.commit

    # After damage

    def restore(self, accepted: Revision | None) -> None:
        """Make the clone anew from the remote, with the commit that was accepted last, as the ledger has it.

        The commit is looked for in what is left of the old clone too. While the remote cannot be fetched this
        raises what `fetch` does, and changes nothing. Raises `SourceRefused` where the commit is nowhere any
        more: then the clone is whole, but nothing in it is accepted.
        """
        self._fetch_into(_create(self._new))
        with self._new.reading() as ours:
            left = (self.clone.path, self._broken)
            found = accepted is None or _recovered(ours, accepted, left, self._upstream)
        self._replace()
        if not found:
            raise SourceRefused(f"the accepted commit {accepted} is not at {self._upstream.url}, nor left here")
        shutil.rmtree(self._broken, ignore_errors=True)


def tag_on(source: Source, revision: Revision) -> bytes | None:
    """The annotated tag that the remote's reference means, as Git stores it, if it is one and on this commit."""
    with source.clone.reading() as ours:
        reference = ours.references.get(source.tag)
        if reference is None or str(reference.peel(pygit2.Commit).id) != revision:
            return None
        return ours.read(reference.target)[1]


def _sweep(state: Path, clone: Stored, new: Stored) -> None:
    """Remove what a process that was killed left behind: locks, half a pack, half a clone."""
    with blaming(state):
        for left in {*clone.path.rglob("*.lock"), *clone.path.glob("objects/pack/pack_*")}:
            left.unlink()
        shutil.rmtree(new.path, ignore_errors=True)


def _at(clone: Stored, name: str) -> Revision | None:
    """The commit that a reference of the clone names."""
    with clone.replacing:
        if not clone.path.exists():
            return None

    def read() -> Revision | None:
        with clone.reading() as ours:
            reference = ours.references.get(name)
            return None if reference is None else Revision(str(reference.peel(pygit2.Commit).id))

    return clone.steadily(read)


def _create(new: Stored) -> Stored:
    """An empty clone, beside the one that is in use."""
    with blaming(new.path):
        shutil.rmtree(new.path, ignore_errors=True)
        ours = pygit2.init_repository(new.path, bare=True)
        ours.config["gc.pruneExpire"] = "never"  # should a person run git gc
    return new


def _recovered(ours: pygit2.Repository, accepted: Revision, clones: Iterable[Path], upstream: Upstream) -> bool:
    """Whether the accepted commit was found, in what is left of clones or at the remote, and brought."""
    for old in clones:
        with suppress(SourceError), blaming(old), opened(old) as left:
            copy(left, ours, pygit2.Oid(hex=accepted))
    with suppress(SourceError):
        upstream.bring_commit(ours, accepted, ())
    if accepted not in ours:
        return False
    _point(ours, _ACCEPTED, accepted)
    return True


def _point(ours: pygit2.Repository, name: str, tip: str) -> None:
    reference = ours.references.get(name)
    if reference is None or str(reference.target) != tip:
        ours.references.create(name, tip, force=True)


class Reader:
    """Reads commits of a state directory's clone, which another process fetches into."""

    def __init__(self, state: Path) -> None:
        self._clone = Stored(state / "repository.git", CorruptClone)
        self._blobs = Blobs(self._clone)

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        """The files of a commit; with an earlier snapshot only what differs from it is read."""
        with self._clone.reading() as ours:
            folder = folder_of(ours)
        return replace(of_commit(self._clone, revision, folder, previous), read=self.read)

    def read(self, blob: BlobId) -> bytes:
        return self._blobs(blob)

    def close(self) -> None:
        """Let go of the packs, which may be replaced; reading goes on by opening them anew."""
        self._blobs.close()


def accepted_snapshot(state: Path) -> Snapshot:
    """The files of the commit that the instance with this state directory accepted last; changes nothing there.

    Raises `UsageError` where none was accepted yet.
    """
    clone = Stored(state / "repository.git", CorruptClone)
    if clone.path.exists():
        with clone.reading() as ours:
            reference, folder = ours.references.get(_ACCEPTED), folder_of(ours)
            if reference is not None:
                return of_commit(clone, Revision(str(reference.peel(pygit2.Commit).id)), folder)
    raise UsageError(f"no commit was accepted with the state directory {state} yet: begin with `gitboot run`")
