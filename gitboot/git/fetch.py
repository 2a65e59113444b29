"""Fetch: use a separate process to fetch a remote's reference into a clone, and to push commits."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
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
    check_objects,
    convert_errors,
    copy_accepted_folder,
    copy_objects,
    get_common_directory,
    is_out_of_memory,
    list_reachable_objects,
    merge_packs,
    open_containing_repository,
    open_repository,
    peel_reference,
    read_fleet_folder,
    read_tag,
    store_fleet_folder,
)
from gitboot.git.snapshots import find_folder_in, find_tree
from gitboot.jsonio import build_decoder

# References in a clone. Clones outlive an upgrade, so a later version must use the same names.
# all branches and tags of a remote from which gitboot needs one commit by its ID
_ALL: Final = "refs/gitboot/all/"
# the last fetch from a network remote: a commit, a tag, or a branch that gitboot owns
_FETCHED: Final = "refs/gitboot/fetched"
_PUSHED: Final = "refs/gitboot/made"  # the reference to the commit that gitboot pushes to its own branch

# Repositories in the state directory
CLONE: Final = "repository.git"
NEW: Final = "repository.new"  # the name of a new clone until the clone is complete and replaces the old clone
BROKEN: Final = "repository.broken"  # the name of the old clone after a new clone has replaced it
_FULL_COPY: Final = "repository.whole"  # exists during a fetch of the whole history
EMPTY: Final = "repository.empty."  # the prefix of an empty repository, for listing the refs of a remote

MAX_PACKS: Final = 50  # the maximum number of packs: each fetch adds a pack, and each pack makes reads slower
# this is enough for three million objects, or for a file of 250 MiB that arrives as a delta
DEFAULT_MEMORY_MIB: Final = 512
FETCH_TIMEOUT_S: Final = 3600.0  # the time limit for a fetch; this limit does not apply to a new clone
_START_TIMEOUT_S: Final = 60.0  # the time limit until a process has loaded its program from a slow disk
_PARSE_FAILURE: Final = re.compile("failed to parse")  # libgit2 has no error code for this case: signature.c, commit.c


class FetchedCommit(NamedTuple):
    """The commit to which a remote's reference points."""

    commit: Revision
    head: Head | None  # the remote's HEAD; None: gitboot did not read it, because the reference is a commit ID
    # the ID of the annotated tag; None: the reference is not an annotated tag, or the tag object has another name
    tag: str | None


class Upstream:
    """Fetches from one remote into clones in the state directory ``state``.

    The parameter ``base_references`` of a method names the references in the clone whose objects a fetch reuses. If
    these objects are damaged, a fetch raises `CorruptClone`.
    """

    def __init__(self, remote: Remote, state: Path) -> None:
        self._remote, self._state, self._home = remote, state, state / "home"

    def watch_paths(self) -> tuple[Path, ...]:
        """Return the directory to watch recursively for changes in a local repository, or () for other remotes.

        Git replaces HEAD and packed-refs instead of writing to them, so watching these files would report only one
        change. By default, watchfiles ignores all files in a ``.git`` directory.
        """
        with suppress(SourceError, UsageError), self.open_local() as (repository, _):
            if repository is not None:
                return (get_common_directory(repository),)
        return ()  # `fetch` reports this error later

    def fetch(self, ours: pygit2.Repository, base_references: Collection[str]) -> FetchedCommit:
        """Fetch the remote's reference into a clone.

        Raises `SourceError` if the reference does not point to a commit, and `SubpathMissing` if the commit does not
        contain the remote's folder.
        """
        with self.open_local() as (theirs, folder):
            folder = "/".join(filter(None, (folder, self._remote.subpath)))
            if folder != read_fleet_folder(ours):
                store_fleet_folder(ours, folder)
            name, tip, head = self._fetch_reference(theirs, ours, base_references)
        commit = self._check_commit(ours, name, tip, folder, base_references)
        tag = read_tag(ours, pygit2.Oid(hex=tip))
        # If a server presents an older tag under a newer name, the name in the tag object differs.
        is_own = tag is not None and name == f"refs/tags/{tag.name.decode(errors='replace')}"
        return FetchedCommit(commit, head, tip if is_own else None)

    def _fetch_reference(
        self, theirs: pygit2.Repository | None, ours: pygit2.Repository, base_references: Collection[str]
    ) -> tuple[str, str, Head | None]:
        """Fetch the objects of the remote's reference. Return its full name, its object, and the remote's HEAD."""
        if self._remote.commit:
            self.fetch_commit(theirs, ours, self._remote.commit, base_references)
            return self._remote.commit, self._remote.commit, None
        connection = RemoteConnection(self._remote, theirs, ours, self._home)
        heads, head = connection.list_references()
        name = find_reference(self._remote, heads)
        tip = heads[name]
        if tip not in ours.odb:
            if theirs is not None:
                self._copy_objects(theirs, ours, tip)
            else:
                self._fetch_refs(connection, ours, base_references, f"+{name}:{_FETCHED}")
        return name, tip, head

    def _check_commit(
        self, ours: pygit2.Repository, name: str, tip: str, folder: str, base_references: Collection[str]
    ) -> Revision:
        """Check the objects that were fetched, and return the commit to which ``tip`` points."""
        with convert_errors(self._remote.url):  # raises an error if a new commit or tag exceeds the size limit
            references = (ours.references.get(name) for name in base_references)
            checked = {peel_reference(ours, reference).id for reference in references if reference is not None}
            list_reachable_objects(ours, pygit2.Oid(hex=tip), checked, with_files=False)
        try:
            commit = CommitReader(ours).peel(tip).revision
        except pygit2.GitError as error:
            raise SourceError(f"{self._remote.url}: {name} is not a commit") from error
        if folder and find_tree(ours, commit, folder) is None:
            raise SubpathMissing(f"{self._remote.url}: commit {commit[:12]} has no folder {folder}")
        return commit

    def fetch_commit(
        self, theirs: pygit2.Repository | None, ours: pygit2.Repository, commit: str, base_references: Collection[str]
    ) -> None:
        """Fetch all branches and tags to get one commit, because few servers let clients fetch a commit by its ID."""
        if commit in ours.odb:
            return
        if theirs is not None:
            self._copy_objects(theirs, ours, commit)
            return
        for name in [name for name in ours.references if name.startswith(_ALL)]:
            # gitboot deletes old branches first, because a branch "a" would prevent a new branch "a/b"
            ours.references.delete(name)
        self._fetch_refs(
            RemoteConnection(self._remote, None, ours, self._home),
            ours,
            base_references,
            f"+refs/heads/*:{_ALL}heads/*",
            f"+refs/tags/*:{_ALL}tags/*",
        )
        if commit not in ours.odb:
            raise SourceError(f"{self._remote.url} has no branch or tag that contains {commit}")

    def read_head(self) -> Head:
        """Return the remote's HEAD. Raises `SourceError` if the remote has no commits."""
        with ExitStack() as stack:
            theirs, _ = stack.enter_context(self.open_local())
            if theirs is not None:
                with convert_errors(self._remote.url):
                    return read_head(theirs)
            stack.enter_context(convert_errors(self._state))
            folder = stack.enter_context(TemporaryDirectory(prefix=EMPTY, dir=self._state))
            pygit2.init_repository(folder, bare=True).free()
            empty = stack.enter_context(open_repository(Path(folder)))
            heads, head = RemoteConnection(self._remote, None, empty, self._home).list_references()
            if not heads:
                raise SourceError(f"{self._remote.url} has no commits yet")
            return head

    def _copy_objects(self, theirs: pygit2.Repository, ours: pygit2.Repository, tip: str) -> None:
        with convert_errors(self._remote.url):
            copy_objects(theirs, ours, pygit2.Oid(hex=tip))

    def _fetch_refs(
        self, connection: RemoteConnection, ours: pygit2.Repository, base_references: Collection[str], *refspecs: str
    ) -> None:
        try:
            connection.fetch(*refspecs)
        except SourceError as error:
            if is_out_of_memory(error):
                raise
            if _PARSE_FAILURE.search(str(error)):
                self._fetch_without_negotiation(ours, refspecs)
                return
            # The received data may build on damaged objects in the clone. In that case, the check raises CorruptClone.
            for name in base_references:
                if (reference := ours.references.get(name)) is not None:
                    check_objects(ours, peel_reference(ours, reference).id)
            raise

    def _fetch_without_negotiation(self, ours: pygit2.Repository, refspecs: Iterable[str]) -> None:
        """Fetch the whole history into an empty repository, and copy the objects that the clone lacks.

        This is necessary if libgit2 cannot parse one of the newest commits in the clone. libgit2 parses these commits
        to negotiate with the remote, and a parse error makes the fetch fail.
        """
        folder = self._state / _FULL_COPY
        shutil.rmtree(folder, ignore_errors=True)
        try:
            with convert_errors(folder):
                pygit2.init_repository(folder, bare=True).free()
            with open_repository(folder) as whole:
                RemoteConnection(self._remote, None, whole, self._home).fetch(*refspecs)
                for name in sorted(whole.references):
                    target = whole.references[name].resolve().target
                    assert isinstance(target, pygit2.Oid)  # noqa: S101 - a resolved reference always names an object
                    self._copy_objects(whole, ours, str(target))
                    ours.references.create(name, target, force=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def open_local(self) -> Iterator[tuple[pygit2.Repository | None, str]]:
        """Yield the local repository that the remote names, or None for other remotes, and the fleet's folder in it."""
        local = self._remote.local_path
        if local is None:
            yield None, ""
            return
        if not local.exists():
            raise SourceError(f"{local} does not exist")
        root = resolve_fleet_root(local)
        with ExitStack() as stack:
            with convert_errors(local):
                theirs = stack.enter_context(open_containing_repository(root))
            if theirs is None:
                raise UsageError(f"{local} is not a Git repository; create one with `git init`")
            if theirs.is_shallow:
                raise UsageError(f"{local} is a shallow clone; complete it with git fetch --unshallow")
            yield theirs, find_folder_in(theirs, root) or ""


# Tasks

# fetch: fetch into the clone. anew: fetch into a new clone. restore: fetch into a new clone with the accepted commit.
# head: only read HEAD. tip, branch, push: read, fetch or push the commit of a branch that gitboot owns.
Work = Literal["fetch", "anew", "restore", "head", "tip", "branch", "push"]


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A task for a fetch process, with the credentials that the process needs."""

    work: Work
    remote: Remote
    folder: Path  # the state directory; for a branch that gitboot owns, the branch's repository
    # The accepted commit. For a push, this is the current commit of the branch, or "" if there is no branch.
    expected_commit: str | None = None
    pushed_commit: str = ""  # the commit to push
    memory: int | None = None  # in bytes; None: there is no limit


class FetchResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of a successful task."""

    revision: str = ""  # the commit to which the reference points; "": there is no commit
    head: Head | None = None  # the remote's HEAD; None: the task did not read it
    has_accepted_commit: bool = True  # False: the accepted commit is lost


class FetchFailure(msgspec.Struct, frozen=True, tag=True):
    """The error that caused a task to fail."""

    error: str  # the name of the error in `ERRORS`
    message: str


Report = FetchResult | FetchFailure | FetchStep
parse_order: Final[Callable[[bytes], FetchOrder]] = build_decoder(FetchOrder)
parse_report: Final[Callable[[bytes], Report]] = build_decoder(Report)
# The errors that a fetch can raise, by name.
ERRORS: Final = {
    error_type.__name__: error_type
    for error_type in (
        SourceError,
        BranchMissing,
        CorruptClone,
        SourceRefused,
        SourceTooLarge,
        SubpathMissing,
        UsageError,
    )
}


class Fetcher(ABC):
    """Carries out fetches and pushes in this process or in another process."""

    @abstractmethod
    def carry_out(self, order: FetchOrder) -> FetchResult:
        """Carry out a task, and return its result. Raises the errors in `ERRORS`."""

    def fetch(self, remote: Remote, state: Path, *, into_new_clone: bool) -> tuple[Revision, Head | None]:
        """Fetch the remote's reference into the clone in ``state``, or into a new clone there.

        Return the commit and the remote's HEAD. HEAD is None if the reference is a commit ID.
        """
        work: Work = "anew" if into_new_clone else "fetch"
        result = self.carry_out(FetchOrder(work=work, remote=remote, folder=state))
        return Revision(result.revision), result.head

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        """Fetch into a new clone. Return whether the accepted commit was found in the remote or in the old clone."""
        order = FetchOrder(work="restore", remote=remote, folder=state, expected_commit=accepted)
        return self.carry_out(order).has_accepted_commit

    def read_head(self, remote: Remote, state: Path) -> Head:
        """Return the remote's HEAD. Raises `SourceError` if the remote has no commits."""
        head = self.carry_out(FetchOrder(work="head", remote=remote, folder=state)).head
        assert head is not None  # noqa: S101 - a task of the kind head reads it
        return head


class InProcessFetcher(Fetcher):
    """Carries out fetches and pushes in this process, without memory and time limits."""

    def carry_out(self, order: FetchOrder) -> FetchResult:
        remote, folder = order.remote, order.folder
        match order.work:
            case "fetch":
                fetched = _fetch_into(StoredRepository(folder / CLONE, CorruptClone), remote, folder)
                return FetchResult(revision=fetched.commit, head=fetched.head)
            case "anew":
                fetched = _fetch_into(_create_clone(folder), remote, folder)
                return FetchResult(revision=fetched.commit, head=fetched.head)
            case "restore":
                return FetchResult(has_accepted_commit=_restore_clone(remote, folder, order.expected_commit))
            case "head":
                return FetchResult(head=Upstream(remote, folder).read_head())
            case "tip" | "branch" | "push":
                with convert_errors(folder), open_repository(folder) as ours:
                    return self._carry_out_for_branch(order, ours)

    def _carry_out_for_branch(self, order: FetchOrder, ours: pygit2.Repository) -> FetchResult:
        """Carry out a task for a branch that gitboot owns. ``ours`` is the branch's repository."""
        remote = order.remote
        connection = RemoteConnection(remote, None, ours, order.folder.with_name("home"))
        match order.work:
            case "tip":
                heads, head = connection.list_references()
                return FetchResult(revision=heads.get(remote.reference or HEAD, ""), head=head)
            case "branch":
                connection.fetch(f"+{remote.reference}:{_FETCHED}")
            case "push":
                ours.references.create(_PUSHED, order.pushed_commit, force=True)
                connection.push(f"{_PUSHED}:{remote.reference}", order.expected_commit)
        return FetchResult()


def _restore_clone(remote: Remote, state: Path, accepted: str | None) -> bool:
    """Fetch into a new clone. Return whether the new clone contains the accepted commit."""
    new = _create_clone(state)
    upstream = Upstream(remote, state)
    _fetch_into(new, remote, state)
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
    # intern, because pygit2 never frees a name that was looked up
    return intern(f"refs/gitboot/latest/{_hash_remote(remote)}")


def build_tag_reference(remote: Remote) -> str:
    return intern(f"refs/gitboot/tag/{_hash_remote(remote)}")


def _hash_remote(remote: Remote) -> str:
    """Return a hash of the URL, the reference and the folder.

    The hash prevents gitboot from using a commit that was fetched with other settings.
    """
    lines = [remote.url, str(remote.reference)]
    if remote.subpath:
        lines.append(remote.subpath)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _fetch_into(clone: StoredRepository, remote: Remote, state: Path) -> FetchedCommit:
    latest, tag = build_latest_reference(remote), build_tag_reference(remote)
    with clone.open() as ours:
        fetched = Upstream(remote, state).fetch(ours, (ACCEPTED, latest))
        if fetched.tag is not None:
            set_reference(ours, tag, fetched.tag)
        elif tag in ours.references:
            ours.references.delete(tag)
        set_reference(ours, latest, fetched.commit)
        merge_packs(ours, MAX_PACKS)
    return fetched


def _create_clone(state: Path) -> StoredRepository:
    new = StoredRepository(state / NEW, CorruptClone)
    with convert_errors(new.path):
        shutil.rmtree(new.path, ignore_errors=True)
        ours = pygit2.init_repository(new.path, bare=True)
        ours.config["gc.pruneExpire"] = "never"  # this protects objects if a person runs git gc
    return new


def set_reference(ours: pygit2.Repository, name: str, tip: str) -> None:
    reference = ours.references.get(name)
    if reference is None or str(reference.target) != tip:
        ours.references.create(name, tip, force=True)


# The fetch process


class FetchProcess(Fetcher):
    """Carries out fetches and pushes in a child process with limited memory and time.

    Raises `SourceTooLarge` if the process exceeds its memory limit. Raises `SourceError` if the process does not report
    its next step in time (`gitboot.git.repository`), or takes longer than ``deadline_s`` in total. A new clone may take
    longer, as long as data arrives at the minimum rate. After such an error, gitboot kills the process, and the next
    fetch starts another process.

    Threads that fetch at the same time use separate processes. Each process starts when it gets its first task. A later
    fetch may use the process from another thread. The process is killed when the thread that started it ends, or when
    `close` is called. Threads that share this object must therefore end together.
    """

    def __init__(self, mebibytes: int | None = None, *, deadline_s: float = FETCH_TIMEOUT_S) -> None:
        self._memory, self._deadline_s = (mebibytes or DEFAULT_MEMORY_MIB) << 20, deadline_s
        self._lock = Lock()  # protects the fields below
        self._idle: Child | None = None
        self._busy: set[Child] = set()
        self._is_closed = False

    def close(self) -> None:
        """Kill the child processes, and prevent new processes from starting."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, None
            for child in self._busy:
                child.kill()
        if idle is not None:
            idle.kill()
            idle.reap()

    def carry_out(self, order: FetchOrder) -> FetchResult:
        # there is no memory limit for a push, which packs gitboot's own files, because these may be large
        if order.work != "push":
            order = msgspec.structs.replace(order, memory=self._memory)
        url = order.remote.url
        child, is_new = self._take_child()
        start_s = _START_TIMEOUT_S if is_new else order.remote.timeout_s
        total_s = None if order.work in ("anew", "restore") else self._deadline_s
        deadline = _StepDeadline(FetchStep(start_s, f"the fetch process did not start within {start_s:g} s"), total_s)
        result: FetchResult | FetchFailure | None = None
        try:
            child.send(order)
            for frame in child.read_answers(deadline.remaining_s):
                report = parse_report(frame)
                if not isinstance(report, FetchStep):
                    result = report
                    break
                deadline.begin(report)
            if result is None:
                raise self._build_exit_error(url, child.wait())
        except TimeoutError:
            raise SourceError(f"{url}: {deadline.error_message}") from None
        except BrokenPipeError:
            raise self._build_exit_error(url, child.wait()) from None
        finally:
            self._return_child(child, is_free=result is not None)
        if isinstance(result, FetchFailure):
            raise ERRORS[result.error](result.message)
        return result

    def _take_child(self) -> tuple[Child, bool]:
        """Return a child process, and whether this process is new. Start a new process only if no process is idle."""
        with self._lock:
            if self._is_closed:
                raise SourceError("gitboot did not fetch the repository, because this instance is stopping")
            child, self._idle = self._idle, None
            if child is not None and child.has_ended:
                child.reap()
                child = None
            is_new = child is None
            if child is None:
                child = Child("gitboot.git")
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
                f"{url}: the fetch would exceed the memory limit of {self._memory >> 20} MiB; increase fetch-memory "
                "in the --config file, or remove large files from the history"
            )
        with self._lock:
            if self._is_closed:
                return SourceError(f"{url}: the fetch was stopped, because this instance is stopping")
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return SourceError(f"{url}: the fetch process was killed; the machine may have run out of memory")
        return SourceError(f"{url}: the fetch process {describe_exit(status)}")


class _StepDeadline:
    """The time limits for the current step of a fetch, and for all steps together."""

    def __init__(self, first: FetchStep, total_s: float | None) -> None:
        """Create a time limit. ``total_s`` is the limit for all steps together, or None for no such limit."""
        self._total_s = total_s
        self._ends_s = math.inf if total_s is None else time.monotonic() + total_s
        self.begin(first)

    def begin(self, step: FetchStep) -> None:
        self._step = step
        self._step_ends_s = time.monotonic() + step.timeout_s

    def remaining_s(self) -> float:
        return min(self._step_ends_s, self._ends_s) - time.monotonic()

    @property
    def error_message(self) -> str:
        if self._ends_s <= time.monotonic():
            return f"the fetch was not complete after {self._total_s:g} s"
        return self._step.timeout_message
