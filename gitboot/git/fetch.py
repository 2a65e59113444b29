"""Fetch: bring what a remote's reference means into a clone, in a process of its own."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from sys import intern
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
import pygit2

from gitboot.child_processes import OUT_OF_MEMORY, Child, ended
from gitboot.errors import (
    BranchMissing,
    CorruptClone,
    GitbootError,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    SubpathMissing,
    UsageError,
)
from gitboot.files import fleet_root
from gitboot.fleet.revision import Revision
from gitboot.git.remote import HEAD, Conversation, Head, Password, Remote, SshKey, head_of, wanted
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
    files_of,
    folder_of,
    lacks_memory,
    merge_packs,
    note_folder,
    opened,
    peel_reference,
    read_tag,
    recover_folder,
)
from gitboot.git.snapshots import folder_in, tree_at
from gitboot.jsonio import decoder

_ALL: Final = "refs/gitboot/all/"
_WHOLE: Final = "repository.whole"  # in STATE, during a fetch of all of the history
EMPTY: Final = "repository.empty."  # in STATE, a repository with which the refs of a remote are listed
_UNPARSED: Final = re.compile("failed to parse")  # libgit2 says so by words alone: signature.c, commit.c
_FETCHED: Final = "refs/gitboot/fetched"  # what a network remote gave last: a commit, or a tag on one


class Brought(NamedTuple):
    """What was fetched."""

    commit: Revision
    head: Head | None  # what the remote's HEAD names; None: nobody looked, because one commit is wanted
    tag: str | None  # the id of the annotated tag that the reference means, where it is one by its own account


class Upstream:
    """One remote, from which commits are brought into clones of the state directory ``state``.

    ``kept`` are references of the clone that a fetch builds on: where they are damaged it raises `CorruptClone`.
    """

    def __init__(self, remote: Remote, state: Path) -> None:
        self._remote, self._state = remote, state

    @property
    def url(self) -> str:
        return self._remote.url

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

    def bring(self, ours: pygit2.Repository, kept: Iterable[str]) -> Brought:
        """Bring the commit that the reference means into the clone, and the tag by which it does."""
        head: Head | None = None
        with self._local() as (theirs, folder):
            folder = "/".join(filter(None, (folder, self._remote.subpath)))
            if folder != folder_of(ours):
                note_folder(ours, folder)
            if self._remote.commit:
                name = tip = self._remote.commit
                self._bring_one(theirs, ours, tip, kept)
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
        with blaming(self._remote.url):
            check_history(ours, pygit2.Oid(hex=tip), _commits(ours, kept))
        try:
            commit = CommitReader(ours).peel(tip).revision
        except pygit2.GitError as error:
            raise SourceError(f"{self._remote.url}: {name} is no commit") from error
        if folder and tree_at(ours, commit, folder) is None:
            raise SubpathMissing(f"{self._remote.url}: commit {commit[:12]} has no folder {folder}")
        return Brought(commit, head, _own_tag(ours, tip, name))

    def _bring_one(
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
        """Return what the remote's HEAD names. Raises `SourceError` if the remote has no commit."""
        with ExitStack() as stack:
            theirs, _ = stack.enter_context(self._local())
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

    def bring_commit(self, ours: pygit2.Repository, commit: str, kept: Iterable[str]) -> None:
        """Bring one commit into the clone, wherever the reference is."""
        with self._local() as (theirs, _):
            self._bring_one(theirs, ours, commit, kept)

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
    def _local(self) -> Iterator[tuple[pygit2.Repository | None, str]]:
        """The remote's repository where it is on this machine, and the fleet's folder in it."""
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


def _own_tag(ours: pygit2.Repository, tip: str, name: str) -> str | None:
    """A tag that bears the name under which it was found: an older one, given out as a newer, does not."""
    tag = read_tag(ours, pygit2.Oid(hex=tip))
    return tip if tag is not None and name == f"refs/tags/{tag.name.decode(errors='replace')}" else None


def _commits(ours: pygit2.Repository, names: Iterable[str]) -> set[pygit2.Oid]:
    """The commits that references of the clone name; what led to them was looked at when they came."""
    found = (ours.references.get(name) for name in names)
    return {peel_reference(ours, reference).id for reference in found if reference is not None}


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


# Fetch into the clone; into a new one; into a new one, with the accepted commit; only read what HEAD names. Of a branch
# that gitboot owns, and the repository ``state``: read its commit, fetch it, or push to it.
Work = Literal["fetch", "anew", "restore", "head", "tip", "branch", "push"]


class SentPassword(msgspec.Struct, frozen=True, tag=True):
    user: str
    password: str

    def __repr__(self) -> str:
        return "SentPassword()"


class SentKey(msgspec.Struct, frozen=True, tag=True):
    private_key: str
    known_hosts: str
    passphrase: str

    def __repr__(self) -> str:
        return "SentKey()"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to fetch or push, from where to where, and how much memory that may take; the credentials are in it."""

    work: Work
    state: str
    accepted: str | None  # the accepted commit; of a push, the commit that the branch is at, if there is one
    memory: int | None  # bytes; None: no limit
    max_bytes: int | None  # that the clone may take on disk; None: no limit
    pushed: str = ""  # the commit to push
    url: str
    reference: str | None
    subpath: str
    credentials: SentPassword | SentKey | None
    ca_bundle: str | None
    connect_timeout_s: float
    timeout_s: float


class Arrived(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It was fetched, or pushed."""

    revision: str = ""  # what the reference means; "": no commit
    head: Head | None = None  # what the remote's HEAD names; None: nobody looked
    found: bool = True  # the accepted commit, too, where it was to be


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It is not."""

    error: str  # a name of `ERRORS`
    message: str


Report = Arrived | Failed | Step
order: Final[Callable[[bytes], Order]] = decoder(Order)
report: Final[Callable[[bytes], Report]] = decoder(Report)
# What fetching raises on purpose.
_RAISED: Final = (SourceError, BranchMissing, CorruptClone, SourceRefused, SourceTooLarge, SubpathMissing, UsageError)
ERRORS: Final = {each.__name__: each for each in _RAISED}


def order_of(
    work: Work, remote: Remote, state: Path, accepted: str | None, memory: int | None, *, pushed: str = ""
) -> Order:
    sent: SentPassword | SentKey | None = None
    match remote.credentials:
        case Password(user=user, password=password):
            sent = SentPassword(user, password)
        case SshKey(private_key=key, known_hosts=known_hosts, passphrase=passphrase):
            sent = SentKey(str(key), str(known_hosts), passphrase)
    return Order(
        work=work,
        state=str(state),
        accepted=accepted,
        memory=memory,
        max_bytes=remote.max_bytes,
        pushed=pushed,
        url=remote.url,
        reference=remote.reference,
        subpath=remote.subpath,
        credentials=sent,
        ca_bundle=str(remote.ca_bundle) if remote.ca_bundle is not None else None,
        connect_timeout_s=remote.connect_timeout_s,
        timeout_s=remote.timeout_s,
    )


def remote_of(order: Order) -> Remote:
    """Where an order leads."""
    credentials: Password | SshKey | None = None
    match order.credentials:
        case SentPassword(user, password):
            credentials = Password(user=user, password=password)
        case SentKey(key, known_hosts, passphrase):
            credentials = SshKey(private_key=Path(key), known_hosts=Path(known_hosts), passphrase=passphrase)
    return Remote(
        url=order.url,
        reference=order.reference,
        subpath=order.subpath,
        credentials=credentials,
        ca_bundle=Path(order.ca_bundle) if order.ca_bundle is not None else None,
        connect_timeout_s=order.connect_timeout_s,
        timeout_s=order.timeout_s,
        max_bytes=order.max_bytes,
    )


def failed(error: GitbootError) -> Failed:
    return Failed(type(error).__name__, str(error))


def raised(failure: Failed) -> GitbootError:
    """An error, as it was before it was sent."""
    return ERRORS[failure.error](failure.message)


MEBIBYTES: Final = 512  # a history of three million objects, or a file of 250 MiB that comes as a difference
TOTAL_S: Final = 3600.0  # of whatever makes no new clone
_START_S: Final = 60.0  # until a process has read its program from a slow disk


class FetchProcess:
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

    def fetch(self, remote: Remote, state: Path, *, anew: bool) -> tuple[Revision, Head | None]:
        found = self._ask(order_of("anew" if anew else "fetch", remote, state, None, self._memory))
        return Revision(found.revision), found.head

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        return self._ask(order_of("restore", remote, state, accepted, self._memory)).found

    def read_head(self, remote: Remote, state: Path) -> Head:
        head = self._ask(order_of("head", remote, state, None, self._memory)).head
        assert head is not None  # noqa: S101 - this order is to read it
        return head

    def fetch_branch(self, remote: Remote, repository: Path) -> None:
        self._ask(order_of("branch", remote, repository, None, self._memory))

    def read_tip(self, remote: Remote, repository: Path) -> Tip:
        found = self._ask(order_of("tip", remote, repository, None, self._memory))
        assert found.head is not None  # noqa: S101 - this order is to read it
        return Tip(found.revision or None, found.head)

    def push_branch(self, remote: Remote, repository: Path, expected: str | None, commit: str) -> None:
        # What is packed is gitboot's own, and may be large.
        self._ask(order_of("push", remote, repository, expected, None, pushed=commit))

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

    def _ask(self, order: Order) -> Arrived:
        child, is_new = self._taken()
        start_s = _START_S if is_new else order.timeout_s
        first = Step(start_s, f"the process that fetches did not begin within {start_s:g} s")
        answered, waiting = None, _Waiting(first, _total_s(order, self._deadline_s))
        try:
            child.send(order)
            for frame in child.answers(waiting.left_s):
                found = report(frame)
                if not isinstance(found, Step):
                    answered = found
                    break
                waiting.begin(found)
            if answered is None:
                raise self._died(order.url, child.wait())
        except TimeoutError:
            raise SourceError(f"{order.url}: {waiting.complaint}") from None
        except BrokenPipeError:
            raise self._died(order.url, child.wait()) from None
        finally:
            self._give_back(child, is_free=answered is not None)
        if isinstance(answered, Arrived):
            return answered
        raise raised(answered)

    def _taken(self) -> tuple[Child, bool]:
        """Return a process that nobody else asks meanwhile, and whether it was started just now."""
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
        """Keep it for the next time, if it is at nothing any more; else end it."""
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
    """How long an instance still waits for the process that fetches."""

    def __init__(self, first: Step, total_s: float | None) -> None:
        self._began_s, self._total_s = time.monotonic(), total_s
        self.begin(first)

    def begin(self, step: Step) -> None:
        """Begin to wait for the end of a step."""
        self._step, self._step_ends_s = step, time.monotonic() + step.within_s

    def left_s(self) -> float:
        """Return how many seconds are left for this step, and for all of them."""
        left_s = self._step_ends_s - time.monotonic()
        return left_s if self._total_s is None else min(left_s, self._total_left_s(self._total_s))

    @property
    def complaint(self) -> str:
        """Return the message if the time is over."""
        if self._total_s is not None and self._total_left_s(self._total_s) <= 0:
            return f"the fetch was not complete after {self._total_s:g} s"
        return self._step.complaint

    def _total_left_s(self, total_s: float) -> float:
        return self._began_s + total_s - time.monotonic()


def _total_s(order: Order, deadline_s: float) -> float | None:
    """Return how long an order may take as a whole; None: as long as data arrives."""
    return None if order.work in ("anew", "restore") else deadline_s
