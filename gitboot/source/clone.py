"""gitboot's own bare clone of one remote: what was fetched last, what was accepted, what a commit holds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import pygit2

from gitboot.errors import CorruptClone, SourceError, SourceRefused, UsageError
from gitboot.load import BlobId, Revision, Snapshot
from gitboot.source.objects import check, copy, merge_packs
from gitboot.source.remote import Conversation, Remote, wanted
from gitboot.source.repository import Stored, blaming, containing, files_of, opened
from gitboot.source.snapshot import folder_in
from gitboot.source.tree import Blobs, of_commit

MAX_PACKS: Final = 50  # every fetch adds one, and each is one more to look into

_ACCEPTED: Final = "refs/gitboot/accepted"
_ALL: Final = "refs/gitboot/all/"
_FETCHED: Final = "refs/gitboot/fetched"  # what a network remote gave last: a commit, or a tag on one
_FOLDER: Final = "gitboot.folder"  # of the fleet in a local repository, which may be gone by then


class Source:
    """One remote and ``state/repository.git``, where it is fetched to.

    The state directory is locked by whoever makes this. `fetch` and `restore` may run in one thread and the
    other methods in another: each call opens the repository anew, as libgit2 wants it. What reads the clone
    raises `CorruptClone` where it cannot, and `restore` fixes that.
    """

    def __init__(self, remote: Remote, state: Path) -> None:
        self._remote, self._state = remote, state
        self._clone = Stored(state / "repository.git", CorruptClone)
        self._new = Stored(state / "repository.new", CorruptClone)
        self._broken = state / "repository.broken"
        # Another URL or reference is another source: what was fetched from the one before is not its commit.
        source = hashlib.sha256(f"{remote.url}\n{remote.reference}".encode()).hexdigest()
        self._latest = f"refs/gitboot/latest/{source[:16]}"
        self._sweep()

    def _sweep(self) -> None:
        """Remove what a process that was killed left behind: locks, half a pack, half a clone."""
        with blaming(self._state):
            for left in {*self._clone.path.rglob("*.lock"), *self._clone.path.glob("objects/pack/pack_*")}:
                left.unlink()
            shutil.rmtree(self._new.path, ignore_errors=True)

    # What is there

    def latest(self) -> Revision | None:
        """The commit that was fetched last, before a restart too; None before the first."""
        return self._at(self._latest)

    def accepted(self) -> Revision | None:
        """The commit that was accepted last; None where there is none, or the clone was lost."""
        return self._at(_ACCEPTED)

    def _at(self, name: str) -> Revision | None:
        with self._clone.replacing:
            if not self._clone.path.exists():
                return None
        with self._clone.reading() as ours:
            reference = ours.references.get(name)
            return None if reference is None else Revision(str(reference.peel(pygit2.Commit).id))

    def accept(self, revision: Revision) -> None:
        """Make a commit the accepted one, and keep it from ever being collected as garbage.

        Once this returns a power cut does not undo it.
        """
        with self._clone.reading() as ours:
            _point(ours, _ACCEPTED, revision)

    def is_rewind(self, accepted: Revision, latest: Revision) -> bool:
        """Whether ``latest`` leaves out something of what led to ``accepted``."""
        with self._clone.reading() as ours:
            return accepted != latest and not ours.descendant_of(latest, accepted)

    def has(self, revision: Revision) -> bool:
        """Whether a commit was fetched."""
        with self._clone.replacing:
            if not self._clone.path.exists():
                return False
        with self._clone.reading() as ours:
            return revision in ours

    def messages(self, since: Revision | None, revision: Revision) -> list[tuple[str, str]]:
        """The commits that ``revision`` has and ``since`` has not, the newest first: (id, message).

        Without ``since`` that is the one commit: what led to it is no part of what a new instance accepts.
        """
        with self._clone.reading() as ours:
            walker = ours.walk(revision, pygit2.enums.SortMode.TOPOLOGICAL)
            if since is not None:
                walker.hide(since)
            found = ((str(commit.id), commit.raw_message.decode(errors="replace")) for commit in walker)
            return list(found if since is not None else islice(found, 1))

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        """The files of a commit; with an earlier snapshot only what differs from it is read."""
        with self._clone.reading() as ours:
            folder = _folder(ours)
        return of_commit(self._clone, revision, folder, previous)

    def watch_paths(self) -> tuple[Path, ...]:
        """The directory in which, at any depth, a local repository's refs change; nothing for another remote.

        Git replaces HEAD and packed-refs instead of writing to them, so each watched by itself would notice
        one change only. watchfiles' default filter leaves out whatever lies in a ``.git``.
        """
        with suppress(SourceError, UsageError), self._local() as (repository, _):
            if repository is not None:
                files = files_of(repository)
                common = files / "commondir"  # of a linked work tree, whose refs are elsewhere
                return ((files / common.read_text().strip()).resolve() if common.exists() else files,)
        return ()  # what is wrong there is for `fetch` to say

    # What the remote has

    def fetch(self) -> Revision:
        """Fetch the commit that the remote's reference means now, which `latest` returns from then on.

        Raises `SourceError` where the next try may do better, and `SourceRefused` or `UsageError` where a
        person has to act first.
        """
        if self._clone.path.exists():
            return self._fetch_into(self._clone)
        fetched = self._fetch_into(self._create())
        self._replace()
        return fetched

    def _create(self) -> Stored:
        """An empty clone, beside the one that is in use."""
        with blaming(self._new.path):
            shutil.rmtree(self._new.path, ignore_errors=True)
            ours = pygit2.init_repository(self._new.path, bare=True)
            ours.config["gc.pruneExpire"] = "never"  # should a person run git gc
        return self._new

    def _replace(self) -> None:
        """Put the new clone in the place of what is there."""
        shutil.rmtree(self._broken, ignore_errors=True)
        with blaming(self._state), self._clone.replacing:
            if self._clone.path.exists():
                self._clone.path.rename(self._broken)
            self._new.path.rename(self._clone.path)

    def _fetch_into(self, clone: Stored) -> Revision:
        with clone.reading() as ours:
            commit = self._bring(ours)
            _point(ours, self._latest, commit)
            merge_packs(ours, MAX_PACKS)
        return commit

    def _bring(self, ours: pygit2.Repository) -> Revision:
        """Bring the commit that the reference means into the clone."""
        with self._local() as (theirs, folder):
            if folder != _folder(ours):
                ours.config[_FOLDER] = folder
            if self._remote.commit:
                name = tip = self._remote.commit
                self._bring_commit(theirs, ours, tip)
            else:
                conversation = Conversation(self._remote, theirs, ours, self._state / "home")
                heads = conversation.heads()
                name = wanted(self._remote, heads)
                tip = heads[name]
                if tip not in ours:
                    if theirs is not None:
                        self._copy(theirs, ours, tip)
                    else:
                        self._fetch(conversation, ours, f"+{name}:{_FETCHED}")
        try:
            return Revision(str(ours[tip].peel(pygit2.Commit).id))
        except pygit2.InvalidSpecError as error:
            raise SourceError(f"{self._remote.url}: {name} is no commit") from error

    def _bring_commit(self, theirs: pygit2.Repository | None, ours: pygit2.Repository, commit: str) -> None:
        """Bring one commit into the clone, with all branches and tags: few servers give one by its id."""
        if commit in ours:
            return
        if theirs is not None:
            self._copy(theirs, ours, commit)
            return
        for name in [name for name in ours.references if name.startswith(_ALL)]:
            ours.references.delete(name)  # a branch "a" keeps out a new branch "a/b"
        conversation = Conversation(self._remote, None, ours, self._state / "home")
        self._fetch(conversation, ours, f"+refs/heads/*:{_ALL}heads/*", f"+refs/tags/*:{_ALL}tags/*")
        if commit not in ours:
            raise SourceError(f"{self._remote.url} has no branch or tag that leads to {commit}")

    def _copy(self, theirs: pygit2.Repository, ours: pygit2.Repository, tip: str) -> None:
        with blaming(self._remote.url):
            copy(theirs, ours, pygit2.Oid(hex=tip))

    def _fetch(self, conversation: Conversation, ours: pygit2.Repository, *refspecs: str) -> None:
        try:
            conversation.fetch(*refspecs)
        except SourceError:
            # Perhaps what is sent builds on something that is damaged here. Then this raises CorruptClone.
            for name in (_ACCEPTED, self._latest):
                if (reference := ours.references.get(name)) is not None:
                    check(ours, reference.peel(pygit2.Commit).id)
            raise

    @contextmanager
    def _local(self) -> Iterator[tuple[pygit2.Repository | None, str]]:
        """The remote's repository where it is on this machine, and the fleet's folder in it."""
        local = self._remote.local
        if local is None:
            yield None, ""
            return
        if not local.exists():
            raise SourceError(f"{local} is not there")
        with ExitStack() as stack:
            with blaming(local):
                theirs = stack.enter_context(containing(local.resolve()))
            if theirs is None:
                raise UsageError(f"{local} is no Git repository; make it one with git init")
            if theirs.is_shallow:
                raise UsageError(f"{local} is a shallow clone; complete it with git fetch --unshallow")
            yield theirs, folder_in(theirs, local.resolve()) or ""

    # After damage

    def restore(self, accepted: Revision | None) -> None:
        """Make the clone anew from the remote, with the commit that was accepted last, as the ledger has it.

        The commit is looked for in what is left of the old clone too. While the remote cannot be fetched this
        raises what `fetch` does, and changes nothing. Raises `SourceRefused` where the commit is nowhere any
        more: then the clone is whole, but nothing in it is accepted.
        """
        self._fetch_into(self._create())
        with self._new.reading() as ours:
            found = accepted is None or self._recover(ours, accepted)
        self._replace()
        if not found:
            raise SourceRefused(f"the accepted commit {accepted} is not at {self._remote.url}, nor left here")
        shutil.rmtree(self._broken, ignore_errors=True)

    def _recover(self, ours: pygit2.Repository, accepted: Revision) -> bool:
        for old in (self._clone.path, self._broken):
            with suppress(SourceError), blaming(old), opened(old) as left:
                copy(left, ours, pygit2.Oid(hex=accepted))
        with suppress(SourceError), self._local() as (theirs, _):
            self._bring_commit(theirs, ours, accepted)
        if accepted not in ours:
            return False
        _point(ours, _ACCEPTED, accepted)
        return True


def _point(ours: pygit2.Repository, name: str, commit: Revision) -> None:
    reference = ours.references.get(name)
    if reference is None or str(reference.target) != commit:
        ours.references.create(name, commit, force=True)


def _folder(ours: pygit2.Repository) -> str:
    return str(ours.config[_FOLDER]) if _FOLDER in ours.config else ""


class Reader:
    """Reads commits of a state directory's clone, which another process fetches into."""

    def __init__(self, state: Path) -> None:
        self._clone = Stored(state / "repository.git", CorruptClone)
        self._blobs = Blobs(self._clone)

    def snapshot(self, revision: Revision, previous: Snapshot | None = None) -> Snapshot:
        """The files of a commit; with an earlier snapshot only what differs from it is read."""
        with self._clone.reading() as ours:
            folder = _folder(ours)
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
            reference, folder = ours.references.get(_ACCEPTED), _folder(ours)
            if reference is not None:
                return of_commit(clone, Revision(str(reference.peel(pygit2.Commit).id)), folder)
    raise UsageError(f"no commit was accepted with the state directory {state} yet: begin with `gitboot run`")
