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

from gitboot.child_processes import OUT_OF_MEMORY, Child, describe_exit
from gitboot.errors import (
    BranchMissing,
    CorruptClone,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    SubpathMissing,
    UsageError,
)
from gitboot.files import resolve_fleet_root
from gitboot.fleet.revision import Revision
from gitboot.git.remote import HEAD, Head, Remote, RemoteConnection, find_reference, read_head
from gitboot.git.repository import (
    ACCEPTED,
    CommitReader,
    FetchStep,
    StoredRepository,
    check_history,
    check_objects,
    convert_errors,
    copy_accepted_folder,
    copy_objects,
    get_common_directory,
    lacks_memory,
    merge_packs,
    open_containing_repository,
    open_repository,
    peel_reference,
    read_fleet_folder,
    read_tag,
    store_fleet_folder,
)
from gitboot.git.snapshots import find_folder_in, tree_at
from gitboot.jsonio import build_decoder

_ALL: Final = "refs/gitboot/all/"
_FULL_COPY: Final = "repository.whole"  # in STATE, during a fetch of all of the history
EMPTY: Final = "repository.empty."  # in STATE, a repository with which the refs of a remote are listed
_PARSE_FAILURE: Final = re.compile("failed to parse")  # libgit2 says so by words alone: signature.c, commit.c
_FETCHED: Final = "refs/gitboot/fetched"  # what a network remote gave last: a commit, a tag, or a branch of gitboot's


class FetchedCommit(NamedTuple):
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
        with suppress(SourceError, UsageError), self.open_local() as (repository, _):
            if repository is not None:
                return (get_common_directory(repository),)
        return ()  # what is wrong there is for `fetch` to say

    def fetch(self, ours: pygit2.Repository, base_references: Iterable[str]) -> FetchedCommit:
        head: Head | None = None
        with self.open_local() as (theirs, folder):
            folder = "/".join(filter(None, (folder, self._remote.subpath)))
            if folder != read_fleet_folder(ours):
                store_fleet_folder(ours, folder)
            if self._remote.commit:
                name = tip = self._remote.commit
                self.fetch_commit(theirs, ours, tip, base_references)
            else:
                conversation = RemoteConnection(self._remote, theirs, ours, self._state / "home")
                heads, head = conversation.list_references()
                name = find_reference(self._remote, heads)
                tip = heads[name]
                if tip not in ours.odb:
                    if theirs is not None:
                        self._copy(theirs, ours, tip)
                    else:
                        self._fetch_refs(conversation, ours, base_references, f"+{name}:{_FETCHED}")
        with convert_errors(self._remote.url):  # what led to the kept references was checked when they came
            names = (ours.references.get(each) for each in base_references)
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
        return FetchedCommit(commit, head, tip if is_own else None)

    def fetch_commit(
        self, theirs: pygit2.Repository | None, ours: pygit2.Repository, commit: str, base_references: Iterable[str]
    ) -> None:
        """Bring one commit into the clone, with all branches and tags: few servers give one by its id."""
        if commit in ours.odb:
            return
        if theirs is not None:
            self._copy(theirs, ours, commit)
            return
        for name in [name for name in ours.references if name.startswith(_ALL)]:
            ours.references.delete(name)  # a branch "a" keeps out a new branch "a/b"
        conversation = RemoteConnection(self._remote, None, ours, self._state / "home")
        self._fetch_refs(
            conversation, ours, base_references, f"+refs/heads/*:{_ALL}heads/*", f"+refs/tags/*:{_ALL}tags/*"
        )
        if commit not in ours.odb:
            raise SourceError(f"{self._remote.url} has no branch or tag that leads to {commit}")

    def read_head(self) -> Head:
        with ExitStack() as stack:
            theirs, _ = stack.enter_context(self.open_local())
            if theirs is not None:
                with convert_errors(self._remote.url):
                    return read_head(theirs)
            stack.enter_context(convert_errors(self._state))
            folder = stack.enter_context(TemporaryDirectory(prefix=EMPTY, dir=self._state))
            pygit2.init_repository(folder, bare=True).free()
            empty = stack.enter_context(open_repository(Path(folder)))
            heads, head = RemoteConnection(self._remote, None, empty, self._state / "home").list_references()
            if not heads:
                raise SourceError(f"{self._remote.url} has no commit yet")
            return head

    def _copy(self, theirs: pygit2.Repository, ours: pygit2.Repository, tip: str) -> None:
        with convert_errors(self._remote.url):
            copy_objects(theirs, ours, pygit2.Oid(hex=tip))

    def _fetch_refs(
        self, conversation: RemoteConnection, ours: pygit2.Repository, base_references: Iterable[str], *refspecs: str
    ) -> None:
        try:
            conversation.fetch(*refspecs)
        except SourceError as error:
            if lacks_memory(error):
                raise
            if _PARSE_FAILURE.search(str(error)):
                self._fetch_without_negotiation(ours, refspecs)
                return
            # Perhaps what is sent builds on something that is damaged here. Then this raises CorruptClone.
            for name in base_references:
                if (reference := ours.references.get(name)) is not None:
                    check_objects(ours, peel_reference(ours, reference).id)
            raise

    def _fetch_without_negotiation(self, ours: pygit2.Repository, refspecs: Iterable[str]) -> None:
        """Fetch all of the history into an empty repository, and copy what the clone lacks.

        To negotiate, libgit2 parses the newest commits of the clone, and gives up at one that it cannot parse.
        """
        folder = self._state / _FULL_COPY
        shutil.rmtree(folder, ignore_errors=True)
        try:
            with convert_errors(folder):
                pygit2.init_repository(folder, bare=True).free()
            with open_repository(folder) as whole:
                RemoteConnection(self._remote, None, whole, self._state / "home").fetch(*refspecs)
                for name in sorted(whole.references):
                    target = whole.references[name].resolve().target
                    assert isinstance(target, pygit2.Oid)  # noqa: S101 - a resolved reference names an object
                    self._copy(whole, ours, str(target))
                    ours.references.create(name, target, force=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def open_local(self) -> Iterator[tuple[pygit2.Repository | None, str]]:
        local = self._remote.local
        if local is None:
            yield None, ""
            return
        if not local.exists():
            raise SourceError(f"{local} is not there")
        root = resolve_fleet_root(local)
        with ExitStack() as stack:
            with convert_errors(local):
                theirs = stack.enter_context(open_containing_repository(root))
            if theirs is None:
                raise UsageError(f"{local} is no Git repository; make it one with git init")
            if theirs.is_shallow:
                raise UsageError(f"{local} is a shallow clone; complete it with git fetch --unshallow")
            yield theirs, find_folder_in(theirs, root) or ""


CLONE: Final = "repository.git"  # in STATE
NEW: Final = "repository.new"  # until it is whole, and takes the clone's place
BROKEN: Final = "repository.broken"  # the clone before
_PUSHED: Final = "refs/gitboot/made"  # of a branch that gitboot owns: the commit that is pushed
MAX_PACKS: Final = 50  # every fetch adds one, and each is one more to look into


# Fetch into the clone; into a new one; into a new one, with the accepted commit; only read what HEAD names. Of a branch
# that gitboot owns: read its commit, fetch it, or push to it.
Work = Literal["fetch", "anew", "restore", "head", "tip", "branch", "push"]


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to fetch or push, from where to where. It contains the credentials."""

    work: Work
    remote: Remote
    folder: Path  # the state directory; for a branch that gitboot owns, the branch's repository
    expected_commit: str | None = (
        None  # the accepted commit; of a push, the commit that the branch is at, if there is one
    )
    pushed_commit: str = ""  # the commit to push
    memory: int | None = None  # bytes; None: no limit


class FetchResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of an order that was carried out."""

    revision: str = ""  # what the reference means; "": no commit
    head: Head | None = None  # what the remote's HEAD names; None: the order did not read it
    has_accepted_commit: bool = True  # the accepted commit, too, where it was to be


class FetchFailure(msgspec.Struct, frozen=True, tag=True):
    """The error of an order."""

    error: str  # a name of `ERRORS`
    message: str


Report = FetchResult | FetchFailure | FetchStep
parse_order: Final[Callable[[bytes], FetchOrder]] = build_decoder(FetchOrder)
parse_report: Final[Callable[[bytes], Report]] = build_decoder(Report)
# What fetching raises on purpose.
_FETCH_ERRORS: Final = (
    SourceError,
    BranchMissing,
    CorruptClone,
    SourceRefused,
    SourceTooLarge,
    SubpathMissing,
    UsageError,
)
ERRORS: Final = {each.__name__: each for each in _FETCH_ERRORS}


class Fetching(ABC):
    """Fetches and pushes, in this process or in a process of its own."""

    @abstractmethod
    def carry_out(self, order: FetchOrder) -> FetchResult:
        """Carry out an order, and return its result. Raises `SourceError`, `SourceRefused`, `UsageError`, …."""

    def fetch(self, remote: Remote, state: Path, *, anew: bool) -> tuple[Revision, Head | None]:
        """Fetch what the remote's reference means into the clone in ``state``, or into a new one beside it.

        Return the commit, and what HEAD names. HEAD is None if the reference is a commit's id.
        """
        found = self.carry_out(FetchOrder(work="anew" if anew else "fetch", remote=remote, folder=state))
        return Revision(found.revision), found.head

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        """Fetch into a new clone; return whether it has the accepted commit, which is looked for all over."""
        return self.carry_out(
            FetchOrder(work="restore", remote=remote, folder=state, expected_commit=accepted)
        ).has_accepted_commit

    def read_head(self, remote: Remote, state: Path) -> Head:
        """Return what the remote's HEAD names. Raises `SourceError` if the remote has no commit."""
        head = self.carry_out(FetchOrder(work="head", remote=remote, folder=state)).head
        assert head is not None  # noqa: S101 - this order is to read it
        return head


class InThisProcess(Fetching):
    """Fetches without limits."""

    def carry_out(self, order: FetchOrder) -> FetchResult:
        remote, folder = order.remote, order.folder
        match order.work:
            case "fetch" | "anew":
                clone = (
                    _create_clone(folder) if order.work == "anew" else StoredRepository(folder / CLONE, CorruptClone)
                )
                revision, head = _fetch_into(clone, remote, Upstream(remote, folder))
                return FetchResult(revision=revision, head=head)
            case "restore":
                return FetchResult(has_accepted_commit=_restore_clone(remote, folder, order.expected_commit))
            case "head":
                return FetchResult(head=Upstream(remote, folder).read_head())
        with convert_errors(folder), open_repository(folder) as ours:
            conversation = RemoteConnection(remote, None, ours, folder.with_name("home"))
            match order.work:
                case "branch":
                    conversation.fetch(f"+{remote.reference}:{_FETCHED}")
                case "tip":
                    heads, head = conversation.list_references()
                    return FetchResult(revision=heads.get(remote.reference or HEAD, ""), head=head)
                case "push":
                    ours.references.create(_PUSHED, order.pushed_commit, force=True)
                    conversation.push(f"{_PUSHED}:{remote.reference}", order.expected_commit)
        return FetchResult()


def _restore_clone(remote: Remote, state: Path, accepted: str | None) -> bool:
    new, upstream = _create_clone(state), Upstream(remote, state)
    _fetch_into(new, remote, upstream)
    if accepted is None:
        return True
    with new.open() as ours:
        for old in (state / CLONE, state / BROKEN):
            with suppress(SourceError), convert_errors(old), open_repository(old) as old_clone:
                copy_objects(old_clone, ours, pygit2.Oid(hex=accepted))
                copy_accepted_folder(ours, old_clone)
        with suppress(SourceError), upstream.open_local() as (theirs, _):
            upstream.fetch_commit(theirs, ours, accepted, ())
        if accepted in ours.odb:
            set_reference(ours, ACCEPTED, accepted)
            return True
    return False


def build_latest_reference(remote: Remote) -> str:
    return intern(f"refs/gitboot/latest/{_hash_remote(remote)}")  # pygit2 never lets go of a name that it looked up


def build_tag_reference(remote: Remote) -> str:
    return intern(f"refs/gitboot/tag/{_hash_remote(remote)}")


def _hash_remote(remote: Remote) -> str:
    """Another URL, reference or folder is another source: what was fetched from the one before is not its commit."""
    place = (remote.url, remote.reference, *filter(None, [remote.subpath]))
    return hashlib.sha256("\n".join(map(str, place)).encode()).hexdigest()[:16]


def _fetch_into(clone: StoredRepository, remote: Remote, upstream: Upstream) -> tuple[Revision, Head | None]:
    latest, tag = build_latest_reference(remote), build_tag_reference(remote)
    with clone.open() as ours:
        fetched = upstream.fetch(ours, (ACCEPTED, latest))
        if fetched.tag is not None:
            set_reference(ours, tag, fetched.tag)
        elif tag in ours.references:
            ours.references.delete(tag)
        set_reference(ours, latest, fetched.commit)
        merge_packs(ours, MAX_PACKS)
    return fetched.commit, fetched.head


def _create_clone(state: Path) -> StoredRepository:
    new = StoredRepository(state / NEW, CorruptClone)
    with convert_errors(new.path):
        shutil.rmtree(new.path, ignore_errors=True)
        ours = pygit2.init_repository(new.path, bare=True)
        ours.config["gc.pruneExpire"] = "never"  # should a person run git gc
    return new


def set_reference(ours: pygit2.Repository, name: str, tip: str) -> None:
    reference = ours.references.get(name)
    if reference is None or str(reference.target) != tip:
        ours.references.create(name, tip, force=True)


DEFAULT_MEMORY_MIB: Final = 512  # a history of three million objects, or a file of 250 MiB that comes as a difference
FETCH_TIMEOUT_S: Final = 3600.0  # of whatever makes no new clone
_START_TIMEOUT_S: Final = 60.0  # until a process has read its program from a slow disk


class FetchProcess(Fetching):
    """Fetches and pushes as `InThisProcess` does; raises `SourceTooLarge`, too, if that takes too much memory.

    Raises `SourceError` if the process does not report the next step of its work in time
    (`gitboot.git.repository`), or takes longer than ``deadline_s`` as a whole. A new clone may take as long as
    data arrives at the slowest rate. The process is killed then, and the next fetch starts another one.

    A process is started at the first need, and again after it has died; for several threads at once, one each. They
    end with the thread that started them, and with `close`.
    """

    def __init__(self, mebibytes: int | None = None, *, deadline_s: float = FETCH_TIMEOUT_S) -> None:
        self._memory, self._deadline_s = (mebibytes or DEFAULT_MEMORY_MIB) << 20, deadline_s
        self._lock = Lock()  # what follows
        self._idle: Child | None = None
        self._busy: set[Child] = set()
        self._is_closed = False

    def close(self) -> None:
        """End the processes, whatever they are at, and start no more."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, None
            for child in self._busy:
                child.kill()
        if idle is not None:
            idle.kill()
            idle.reap()

    def carry_out(self, order: FetchOrder) -> FetchResult:
        if order.work != "push":  # what is packed for a push is gitboot's own, and may be large
            order = msgspec.structs.replace(order, memory=self._memory)
        url, child, is_new = order.remote.url, *self._take_child()
        start_s = _START_TIMEOUT_S if is_new else order.remote.timeout_s
        total_s = None if order.work in ("anew", "restore") else self._deadline_s
        deadline = _StepDeadline(
            FetchStep(start_s, f"the process that fetches did not begin within {start_s:g} s"), total_s
        )
        answer = None
        try:
            child.send(order)
            for frame in child.read_answers(deadline.remaining_s):
                found = parse_report(frame)
                if not isinstance(found, FetchStep):
                    answer = found
                    break
                deadline.begin(found)
            if answer is None:
                raise self._build_exit_error(url, child.wait())
        except TimeoutError:
            raise SourceError(f"{url}: {deadline.complaint}") from None
        except BrokenPipeError:
            raise self._build_exit_error(url, child.wait()) from None
        finally:
            self._return_child(child, is_free=answer is not None)
        if isinstance(answer, FetchFailure):
            raise ERRORS[answer.error](answer.message)
        return answer

    def _take_child(self) -> tuple[Child, bool]:
        """Return a process that no other thread uses meanwhile, and whether it was started just now."""
        with self._lock:
            if self._is_closed:
                raise SourceError("nothing is fetched any more: this instance ends")
            child, self._idle = self._idle, None
            if child is not None and child.has_ended:
                child.reap()
                child = None
            is_new = child is None
            child = child or Child("gitboot.git")
            self._busy.add(child)
            return child, is_new

    def _return_child(self, child: Child, *, is_free: bool) -> None:
        with self._lock:
            self._busy.remove(child)
            if is_free and not self._is_closed and self._idle is None:
                self._idle = child
                return
        child.kill()
        child.reap()

    def _build_exit_error(self, url: str, status: int) -> SourceError | SourceTooLarge:
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):
            return SourceTooLarge(
                f"{url}: to fetch it takes more memory than the {self._memory >> 20} MiB that it may; let it have more "
                "(fetch-memory in the file of --config), or take the large file out of the history"
            )
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return SourceError(f"{url}: the fetch was killed, as where a machine has no memory left")
        return SourceError(f"{url}: the fetch ended {describe_exit(status)}")


class _StepDeadline:
    def __init__(self, first: FetchStep, total_s: float | None) -> None:
        """``total_s`` is for all steps; None: as long as data arrives."""
        self._total_s, self._ends_s = total_s, math.inf if total_s is None else time.monotonic() + total_s
        self.begin(first)

    def begin(self, step: FetchStep) -> None:
        self._step, self._step_ends_s = step, time.monotonic() + step.timeout_s

    def remaining_s(self) -> float:
        return min(self._step_ends_s, self._ends_s) - time.monotonic()

    @property
    def complaint(self) -> str:
        if self._ends_s <= time.monotonic():
            return f"the fetch was not complete after {self._total_s:g} s"
        return self._step.timeout_message
