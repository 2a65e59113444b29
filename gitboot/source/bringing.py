"""What a fetch does: commits from a remote into the clone, or into a new one that is to take its place."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple, Protocol

import pygit2

from gitboot.errors import CorruptClone, SourceError
from gitboot.fleet.revision import Revision
from gitboot.git.fetch import Upstream
from gitboot.git.remote import HEAD, Conversation, Head, Remote
from gitboot.git.repository import Stored, blaming, opened
from gitboot.source.objects import copy, merge_packs
from gitboot.source.subpath import ACCEPTED, recover_folder

CLONE: Final = "repository.git"  # in STATE
NEW: Final = "repository.new"  # until it is whole, and takes the clone's place
BROKEN: Final = "repository.broken"  # the clone before

FETCHED: Final = "refs/gitboot/fetched"  # of a branch that gitboot owns
_PUSHED: Final = "refs/gitboot/made"  # of a branch that gitboot owns: the commit that is pushed
MAX_PACKS: Final = 50  # every fetch adds one, and each is one more to look into


class Tip(NamedTuple):
    """Where a branch of a remote is."""

    commit: str | None  # None: the remote has no such branch
    head: Head  # what the remote's HEAD names


class Fetching(Protocol):
    """Whoever fetches: this process, or one of its own."""

    def fetch(self, remote: Remote, state: Path, *, anew: bool) -> tuple[Revision, Head | None]:
        """Fetch what the remote's reference means into the clone in ``state``, or into a new one beside it.

        Return the commit, and what HEAD names. HEAD is None if the reference is a commit's id.
        """

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        """Fetch into a new clone; say whether it has the accepted commit, which is looked for all over."""

    def read_head(self, remote: Remote, state: Path) -> Head:
        """Return what the remote's HEAD names. Raises `SourceError` if the remote has no commit."""

    def fetch_branch(self, remote: Remote, repository: Path) -> None:
        """Fetch the branch that the reference names into another repository of gitboot's own, as `FETCHED`."""

    def read_tip(self, remote: Remote, repository: Path) -> Tip:
        """Return where the branch that the reference names is."""

    def push_branch(self, remote: Remote, repository: Path, expected: str | None, commit: str) -> None:
        """Bring the branch that the reference names from ``expected`` to a commit of the repository.

        Raises `SourceError` if the branch is elsewhere by now, and `SourceRefused` if the remote does not take it.
        """


class InThisProcess:
    """Fetches without limits; raises `SourceError`, `SourceRefused`, `UsageError`, and `CorruptClone`."""

    def fetch(self, remote: Remote, state: Path, *, anew: bool) -> tuple[Revision, Head | None]:
        clone = _create(state) if anew else Stored(state / CLONE, CorruptClone)
        return _fetch_into(clone, remote, Upstream(remote, state))

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        new, upstream = _create(state), Upstream(remote, state)
        _fetch_into(new, remote, upstream)
        if accepted is None:
            return True
        with new.reading() as ours:
            return _recovered(ours, accepted, (state / CLONE, state / BROKEN), upstream)

    def read_head(self, remote: Remote, state: Path) -> Head:
        return Upstream(remote, state).read_head()

    def fetch_branch(self, remote: Remote, repository: Path) -> None:
        with blaming(repository), opened(repository) as ours:
            Conversation(remote, None, ours, home_of(repository)).fetch(f"+{remote.reference}:{FETCHED}")

    def read_tip(self, remote: Remote, repository: Path) -> Tip:
        with blaming(repository), opened(repository) as ours:
            heads, head = Conversation(remote, None, ours, home_of(repository)).refs()
        return Tip(heads.get(remote.reference or HEAD), head)

    def push_branch(self, remote: Remote, repository: Path, expected: str | None, commit: str) -> None:
        with blaming(repository), opened(repository) as ours:
            ours.references.create(_PUSHED, commit, force=True)
            Conversation(remote, None, ours, home_of(repository)).push(f"{_PUSHED}:{remote.reference}", expected)


def home_of(repository: Path) -> Path:
    """Where libssh2 finds the keys that hosts may show, for those that are in one folder with a repository."""
    return repository.with_name("home")


def latest_of(remote: Remote) -> str:
    """The reference by which a clone has what was fetched last."""
    return intern(f"refs/gitboot/latest/{_name(remote)}")  # pygit2 never lets go of a name that it looked up


def tag_of(remote: Remote) -> str:
    """The reference by which a clone has the annotated tag that was fetched last."""
    return intern(f"refs/gitboot/tag/{_name(remote)}")


def _name(remote: Remote) -> str:
    """Another URL, reference or folder is another source: what was fetched from the one before is not its commit."""
    place = (remote.url, remote.reference, *filter(None, [remote.subpath]))
    return hashlib.sha256("\n".join(map(str, place)).encode()).hexdigest()[:16]


def _fetch_into(clone: Stored, remote: Remote, upstream: Upstream) -> tuple[Revision, Head | None]:
    latest, tag = latest_of(remote), tag_of(remote)
    with clone.reading() as ours:
        brought = upstream.bring(ours, (ACCEPTED, latest))
        if brought.tag is not None:
            point(ours, tag, brought.tag)
        elif tag in ours.references:
            ours.references.delete(tag)
        point(ours, latest, brought.commit)
        merge_packs(ours, MAX_PACKS)
    return brought.commit, brought.head


def _create(state: Path) -> Stored:
    """An empty clone, beside the one that is in use."""
    new = Stored(state / NEW, CorruptClone)
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
            recover_folder(ours, left)
    with suppress(SourceError):
        upstream.bring_commit(ours, accepted, ())
    if accepted not in ours.odb:
        return False
    point(ours, ACCEPTED, accepted)
    return True


def point(ours: pygit2.Repository, name: str, tip: str) -> None:
    """Let a reference name a commit or a tag."""
    reference = ours.references.get(name)
    if reference is None or str(reference.target) != tip:
        ours.references.create(name, tip, force=True)
