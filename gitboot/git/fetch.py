"""Fetch: bring what a remote's reference means into a clone, in a process of its own."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from sys import intern
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final, Literal, NamedTuple

import msgspec
import pygit2

from gitboot.child_processes import OUT_OF_MEMORY, Child, ended
from gitboot.errors import (
    BranchMissing,
    CorruptClone,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    SubpathMissing,
    UsageError,
)
from gitboot.files import fleet_root
from gitboot.fleet.revision import Revision
from gitboot.git.remote import HEAD, Conversation, Head, Remote, head_of, wanted
from gitboot.git.repository import (
    ACCEPTED,
    CommitReader,
    Step,
    Stored,
    blaming,
    check,
    check_history,
    containing,
    copy,
    folder_of,
    lacks_memory,
    merge_packs,
    note_folder,
    opened,
    peel_reference,
    read_tag,
    recover_folder,
    shared_files_of,
)
from gitboot.git.snapshots import folder_in, tree_at
from gitboot.jsonio import decoder

_ALL: Final = "refs/gitboot/all/"
_WHOLE: Final = "repository.whole"  # in STATE, during a fetch of all of the history
EMPTY: Final = "repository.empty."  # in STATE, a repository with which the refs of a remote are listed
_UNPARSED: Final = re.compile("failed to parse")  # libgit2 says so by words alone: signature.c, commit.c
_FETCHED: Final = "refs/gitboot/fetched"  # what a network remote gave last: a commit, a tag, or a branch of gitboot's


class Brought(NamedTuple):
    commit: Revision
    head: Head | None  # what the remote's HEAD names; None: nobody looked, because one commit is wanted
    tag: str | None  # the id of the annotated tag that the reference means, where it is one by its own account


class Upstream:
    """One remote, from which commits are brought into clones of the state directory ``state``.

    ``kept`` are references of the clone that a fetch builds on: where they are damaged it raises `CorruptClone`.
    """

    def __init__(self, remote: Remote, state: Path) -> None:
        self._remote, self._state = remote, state

    def watch_paths(self) -> tuple[Path, ...]:
        """The directory in which, at any depth, a local repository's refs change; nothing for another remote.

        Git replaces HEAD and packed-refs instead of writing to them, so each watched by itself would notice
        one change only. watchfiles' default filter leaves out whatever lies in a ``.git``.
        """
        with suppress(SourceError, UsageError), self.local() as (repository, _):
            if repository is not None:
                return (shared_files_of(repository),)
        return ()  # what is wrong there is for `fetch` to say

    def bring(self, ours: pygit2.Repository, kept: Iterable[str]) -> Brought:
        head: Head | None = None
        with self.local() as (theirs, folder):
            folder = "/".join(filter(None, (folder, self._remote.subpath)))
            if folder != folder_of(ours):
                note_folder(ours, folder)
            if self._remote.commit:
                name = tip = self._remote.commit
                self.bring_commit(theirs, ours, tip, kept)
            else:
                conversation = Conversation(self._remote, theirs, ours, self._state / "home")
                heads, head = conversation.refs()
                name = wanted(self._remote, heads)
                tip = heads[name]
                if tip not in ours.odb:
                    if theirs is not None:
                        self._copy(theirs, ours, tip)
                    else:
                        self._fetch(conversation, ours, kept, f"+{name}:{_FETCHED}")
        with blaming(self._remote.url):  # what led to the kept references was checked when they came
            names = (ours.references.get(each) for each in kept)
            known = {peel_reference(ours, each).id for each in names if each is not None}
            check_history(ours, pygit2.Oid(hex=tip), known)
        try:
            commit = CommitReader(ours).peel(tip).revision
        except pygit2.GitError as error:
            raise SourceError(f"{self._remote.url}: {name} is no commit") from error
        if folder and tree_at(ours, commit, folder) is None:
            raise SubpathMissing(f"{self._remote.url}: commit {commit[:12]} has no folder {folder}")
        tag = read_tag(ours, pygit2.Oid(hex=tip))
        # An older tag that is served as a newer one does not bear the name under which it was found.
        is_own = tag is not None and name == f"refs/tags/{tag.name.decode(errors='replace')}"
        return Brought(commit, head, tip if is_own else None)

    def bring_commit(
        self, theirs: pygit2.Repository | None, ours: pygit2.Repository, commit: str, kept: Iterable[str]
    ) -> None:
        """Bring one commit into the clone, with all branches and tags: few servers give one by its id."""
        if commit in ours.odb:
            return
        if theirs is not None:
            self._copy(theirs, ours, commit)
            return
        for name in [name for name in ours.references if name.startswith(_ALL)]:
            ours.references.delete(name)  # a branch "a" keeps out a new branch "a/b"
        conversation = Conversation(self._remote, None, ours, self._state / "home")
        self._fetch(conversation, ours, kept, f"+refs/heads/*:{_ALL}heads/*", f"+refs/tags/*:{_ALL}tags/*")
        if commit not in ours.odb:
            raise SourceError(f"{self._remote.url} has no branch or tag that leads to {commit}")

    def read_head(self) -> Head:
        with ExitStack() as stack:
            theirs, _ = stack.enter_context(self.local())
            if theirs is not None:
                with blaming(self._remote.url):
                    return head_of(theirs)
            stack.enter_context(blaming(self._state))
            folder = stack.enter_context(TemporaryDirectory(prefix=EMPTY, dir=self._state))
            pygit2.init_repository(folder, bare=True).free()
            empty = stack.enter_context(opened(Path(folder)))
            heads, head = Conversation(self._remote, None, empty, self._state / "home").refs()
            if not heads:
                raise SourceError(f"{self._remote.url} has no commit yet")
            return head

    def _copy(self, theirs: pygit2.Repository, ours: pygit2.Repository, tip: str) -> None:
        with blaming(self._remote.url):
            copy(theirs, ours, pygit2.Oid(hex=tip))

    def _fetch(self, conversation: Conversation, ours: pygit2.Repository, kept: Iterable[str], *refspecs: str) -> None:
        try:
            conversation.fetch(*refspecs)
        except SourceError as error:
            if lacks_memory(error):
                raise
            if _UNPARSED.search(str(error)):
                self._fetch_without_negotiation(ours, refspecs)
                return
            # Perhaps what is sent builds on something that is damaged here. Then this raises CorruptClone.
            for name in kept:
                if (reference := ours.references.get(name)) is not None:
                    check(ours, peel_reference(ours, reference).id)
            raise

    def _fetch_without_negotiation(self, ours: pygit2.Repository, refspecs: Iterable[str]) -> None:
        """Fetch all of the history into an empty repository, and copy what the clone lacks.

        To negotiate, libgit2 parses the newest commits of the clone, and gives up at one that it cannot parse.
        """
        folder = self._state / _WHOLE
        shutil.rmtree(folder, ignore_errors=True)
        try:
            with blaming(folder):
                pygit2.init_repository(folder, bare=True).free()
            with opened(folder) as whole:
                Conversation(self._remote, None, whole, self._state / "home").fetch(*refspecs)
                for name in sorted(whole.references):
                    target = whole.references[name].resolve().target
                    assert isinstance(target, pygit2.Oid)  # noqa: S101 - a resolved reference names an object
                    self._copy(whole, ours, str(target))
                    ours.references.create(name, target, force=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def local(self) -> Iterator[tuple[pygit2.Repository | None, str]]:
        local = self._remote.local
        if local is None:
            yield None, ""
            return
        if not local.exists():
            raise SourceError(f"{local} is not there")
        root = fleet_root(local)
        with ExitStack() as stack:
            with blaming(local):
                theirs = stack.enter_context(containing(root))
            if theirs is None:
                raise UsageError(f"{local} is no Git repository; make it one with git init")
            if theirs.is_shallow:
                raise UsageError(f"{local} is a shallow clone; complete it with git fetch --unshallow")
            yield theirs, folder_in(theirs, root) or ""


CLONE: Final = "repository.git"  # in STATE
NEW: Final = "repository.new"  # until it is whole, and takes the clone's place
BROKEN: Final = "repository.broken"  # the clone before
_PUSHED: Final = "refs/gitboot/made"  # of a branch that gitboot owns: the commit that is pushed
MAX_PACKS: Final = 50  # every fetch adds one, and each is one more to look into


# Fetch into the clone; into a new one; into a new one, with the accepted commit; only read what HEAD names. Of a branch
# that gitboot owns: read its commit, fetch it, or push to it.
Work = Literal["fetch", "anew", "restore", "head", "tip", "branch", "push"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to fetch or push, from where to where. It contains the credentials."""

    work: Work
    remote: Remote
    folder: Path  # the state directory; for a branch that gitboot owns, the branch's repository
    accepted: str | None = None  # the accepted commit; of a push, the commit that the branch is at, if there is one
    pushed: str = ""  # the commit to push
    memory: int | None = None  # bytes; None: no limit


class Arrived(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of an order that was carried out."""

    revision: str = ""  # what the reference means; "": no commit
    head: Head | None = None  # what the remote's HEAD names; None: the order did not read it
    found: bool = True  # the accepted commit, too, where it was to be


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The error of an order."""

    error: str  # a name of `ERRORS`
    message: str


Report = Arrived | Failed | Step
order: Final[Callable[[bytes], Order]] = decoder(Order)
report: Final[Callable[[bytes], Report]] = decoder(Report)
# What fetching raises on purpose.
_RAISED: Final = (SourceError, BranchMissing, CorruptClone, SourceRefused, SourceTooLarge, SubpathMissing, UsageError)
ERRORS: Final = {each.__name__: each for each in _RAISED}


class Fetching(ABC):
    """Fetches and pushes, in this process or in a process of its own."""

    @abstractmethod
    def carry_out(self, order: Order) -> Arrived:
        """Carry out an order, and return its result. Raises `SourceError`, `SourceRefused`, `UsageError`, …."""

    def fetch(self, remote: Remote, state: Path, *, anew: bool) -> tuple[Revision, Head | None]:
        """Fetch what the remote's reference means into the clone in ``state``, or into a new one beside it.

        Return the commit, and what HEAD names. HEAD is None if the reference is a commit's id.
        """
        found = self.carry_out(Order(work="anew" if anew else "fetch", remote=remote, folder=state))
        return Revision(found.revision), found.head

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        """Fetch into a new clone; return whether it has the accepted commit, which is looked for all over."""
        return self.carry_out(Order(work="restore", remote=remote, folder=state, accepted=accepted)).found

    def read_head(self, remote: Remote, state: Path) -> Head:
        """Return what the remote's HEAD names. Raises `SourceError` if the remote has no commit."""
        head = self.carry_out(Order(work="head", remote=remote, folder=state)).head
        assert head is not None  # noqa: S101 - this order is to read it
        return head


class InThisProcess(Fetching):
    """Fetches without limits."""

    def carry_out(self, order: Order) -> Arrived:
        remote, folder = order.remote, order.folder
        match order.work:
            case "fetch" | "anew":
                clone = _create(folder) if order.work == "anew" else Stored(folder / CLONE, CorruptClone)
                revision, head = _fetch_into(clone, remote, Upstream(remote, folder))
                return Arrived(revision=revision, head=head)
            case "restore":
                return Arrived(found=_restore(remote, folder, order.accepted))
            case "head":
                return Arrived(head=Upstream(remote, folder).read_head())
        with blaming(folder), opened(folder) as ours:
            conversation = Conversation(remote, None, ours, folder.with_name("home"))
            match order.work:
                case "branch":
                    conversation.fetch(f"+{remote.reference}:{_FETCHED}")
                case "tip":
                    heads, head = conversation.refs()
                    return Arrived(revision=heads.get(remote.reference or HEAD, ""), head=head)
                case "push":
                    ours.references.create(_PUSHED, order.pushed, force=True)
                    conversation.push(f"{_PUSHED}:{remote.reference}", order.accepted)
        return Arrived()


def _restore(remote: Remote, state: Path, accepted: str | None) -> bool:
    new, upstream = _create(state), Upstream(remote, state)
    _fetch_into(new, remote, upstream)
    if accepted is None:
        return True
    with new.reading() as ours:
        for old in (state / CLONE, state / BROKEN):
            with suppress(SourceError), blaming(old), opened(old) as left:
                copy(left, ours, pygit2.Oid(hex=accepted))
                recover_folder(ours, left)
        with suppress(SourceError), upstream.local() as (theirs, _):
            upstream.bring_commit(theirs, ours, accepted, ())
        if accepted in ours.odb:
            point(ours, ACCEPTED, accepted)
            return True
    return False


def latest_of(remote: Remote) -> str:
    return intern(f"refs/gitboot/latest/{_name(remote)}")  # pygit2 never lets go of a name that it looked up


def tag_of(remote: Remote) -> str:
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
    new = Stored(state / NEW, CorruptClone)
    with blaming(new.path):
        shutil.rmtree(new.path, ignore_errors=True)
        ours = pygit2.init_repository(new.path, bare=True)
        ours.config["gc.pruneExpire"] = "never"  # should a person run git gc
    return new


def point(ours: pygit2.Repository, name: str, tip: str) -> None:
    reference = ours.references.get(name)
    if reference is None or str(reference.target) != tip:
        ours.references.create(name, tip, force=True)


MEBIBYTES: Final = 512  # a history of three million objects, or a file of 250 MiB that comes as a difference
TOTAL_S: Final = 3600.0  # of whatever makes no new clone
_START_S: Final = 60.0  # until a process has read its program from a slow disk


class FetchProcess(Fetching):
    """Fetches and pushes as `InThisProcess` does; raises `SourceTooLarge`, too, if that takes too much memory.

    Raises `SourceError` if the process does not report the next step of its work in time
    (`gitboot.git.repository`), or takes longer than ``deadline_s`` as a whole. A new clone may take as long as
    data arrives at the slowest rate. The process is killed then, and the next fetch starts another one.

    A process is started at the first need, and again after it has died; for several threads at once, one each. They
    end with the thread that started them, and with `close`.
    """

    def __init__(self, mebibytes: int | None = None, *, deadline_s: float = TOTAL_S) -> None:
        self._memory, self._deadline_s = (mebibytes or MEBIBYTES) << 20, deadline_s
        self._changing = Lock()  # what follows
        self._idle: Child | None = None
        self._busy: set[Child] = set()
        self._is_closed = False

    def close(self) -> None:
        """End the processes, whatever they are at, and start no more."""
        with self._changing:
            self._is_closed = True
            idle, self._idle = self._idle, None
            for child in self._busy:
                child.kill()
        if idle is not None:
            idle.kill()
            idle.put_away()

    def carry_out(self, order: Order) -> Arrived:
        if order.work != "push":  # what is packed for a push is gitboot's own, and may be large
            order = msgspec.structs.replace(order, memory=self._memory)
        url, child, is_new = order.remote.url, *self._take_child()
        start_s = _START_S if is_new else order.remote.timeout_s
        total_s = None if order.work in ("anew", "restore") else self._deadline_s
        waiting = _Waiting(Step(start_s, f"the process that fetches did not begin within {start_s:g} s"), total_s)
        answered = None
        try:
            child.send(order)
            for frame in child.answers(waiting.left_s):
                found = report(frame)
                if not isinstance(found, Step):
                    answered = found
                    break
                waiting.begin(found)
            if answered is None:
                raise self._died(url, child.wait())
        except TimeoutError:
            raise SourceError(f"{url}: {waiting.complaint}") from None
        except BrokenPipeError:
            raise self._died(url, child.wait()) from None
        finally:
            self._give_back(child, is_free=answered is not None)
        if isinstance(answered, Failed):
            raise ERRORS[answered.error](answered.message)
        return answered

    def _take_child(self) -> tuple[Child, bool]:
        """Return a process that no other thread uses meanwhile, and whether it was started just now."""
        with self._changing:
            if self._is_closed:
                raise SourceError("nothing is fetched any more: this instance ends")
            child, self._idle = self._idle, None
            if child is not None and child.has_ended:
                child.put_away()
                child = None
            is_new = child is None
            child = child or Child("gitboot.git")
            self._busy.add(child)
            return child, is_new

    def _give_back(self, child: Child, *, is_free: bool) -> None:
        with self._changing:
            self._busy.remove(child)
            if is_free and not self._is_closed and self._idle is None:
                self._idle = child
                return
        child.kill()
        child.put_away()

    def _died(self, url: str, status: int) -> SourceError | SourceTooLarge:
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):
            return SourceTooLarge(
                f"{url}: to fetch it takes more memory than the {self._memory >> 20} MiB that it may; let it have more "
                "(fetch-memory in the file of --config), or take the large file out of the history"
            )
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return SourceError(f"{url}: the fetch was killed, as where a machine has no memory left")
        return SourceError(f"{url}: the fetch ended {ended(status)}")


class _Waiting:
    def __init__(self, first: Step, total_s: float | None) -> None:
        """``total_s`` is for all steps; None: as long as data arrives."""
        self._total_s, self._ends_s = total_s, math.inf if total_s is None else time.monotonic() + total_s
        self.begin(first)

    def begin(self, step: Step) -> None:
        self._step, self._step_ends_s = step, time.monotonic() + step.within_s

    def left_s(self) -> float:
        return min(self._step_ends_s, self._ends_s) - time.monotonic()

    @property
    def complaint(self) -> str:
        if self._ends_s <= time.monotonic():
            return f"the fetch was not complete after {self._total_s:g} s"
        return self._step.complaint
