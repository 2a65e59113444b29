"""The evaluator: one commit after the other, each against a base, of which only what differs is worked on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gitboot.diff.touched import GROUPING, Touched
from gitboot.errors import InvalidRepository
from gitboot.evaluate.encoded import passing
from gitboot.evaluate.forks import Forks
from gitboot.load import FleetRepository, Id, ParseCache, Revision, Snapshot
from gitboot.load.listing import listed, looked_into
from gitboot.load.merged import merged
from gitboot.load.register import Register
from gitboot.load.successor import Delta, Loaded, everything, succeed
from gitboot.resolve.affected import Reach, affected, entered, struck
from gitboot.resolve.decide import Decided, decide_again
from gitboot.resolve.decisions import Decisions
from gitboot.resolve.optouts import OptOut, pin_of
from gitboot.resolve.reading import read
from gitboot.sections import Spoilt

if TYPE_CHECKING:
    from gitboot.diff.changes import Changes
    from gitboot.diff.extent import Extent


class Snapshots(Protocol):
    """Where commits are read."""

    def __call__(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        """The files of a commit; with an earlier snapshot only what differs from it is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Foundation:
    """A commit that holds together, and all that the next one is evaluated on."""

    loaded: Loaded
    decided: Decided
    pinned: Mapping[str, OptOut]  # by server, sorted

    @property
    def revision(self) -> Revision:
        return self.loaded.repository.revision


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """A foundation with its indexes: all that an evaluator has of a commit."""

    foundation: Foundation
    register: Register
    reach: Reach
    # Is told, once a commit is evaluated against it, how to find out the same of that commit without it.
    relied_on: Callable[[Callable[[], Basis]], None] = lambda _: None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitPair:
    """A commit and its base: what is the same in both need not be looked at."""

    base: Foundation | None
    head: Foundation
    servers: Collection[str]  # of either commit, that can be others
    changes: Callable[[], Changes]  # worked out where it is asked for

    @property
    def extent(self) -> Extent:
        if self.base is not None:
            return self.changes().extent
        from gitboot.diff.tallying import extent_of_first  # only here: as for `compare`

        decided = self.head.decided
        return extent_of_first(decided.decisions, decided.repository, passing(decided.decisions.servers))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """How the indexes came from the base to the candidate."""

    delta: Delta
    servers: frozenset[str]


class Evaluator:
    """Holds a base, and perhaps the candidate that was evaluated last; which of them goes on, the next question says.

    The indexes follow the candidate, and go back with it where it is dropped.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        *,
        begun: Callable[[int], None] = lambda _: None,
        kept: Callable[[Snapshot], Basis | None] = lambda _: None,
        workers: Forks | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._kept = kept  # gives what another evaluator has found out of some commit, where nothing is known yet
        self.workers = workers or Forks()  # of a commit of which all is looked at
        self._begun = begun  # is told of how many files a commit is, before they are read
        self._base: Foundation | None = None
        self._candidate: Foundation | None = None
        self._step: _Step | None = None  # None: the indexes are the base's
        self._register: Register | None = None  # None: not made yet
        self._reach = Reach()

    def evaluate(self, revision: Revision, base: Revision | None) -> CommitPair:
        """What ``revision`` says, and what it changes against ``base``; raises `InvalidRepository`, `SourceError`."""
        self._take_as_base(base)
        snapshot = self._snapshots(revision, self._base.loaded.snapshot if self._base is not None else None)
        self._begun(len(snapshot.blobs))
        found = self._next(_against(self._base, snapshot)) if self._base is not None else self._first(snapshot)
        if found is None:
            found = self._whole(snapshot)
        self._candidate = found.head
        return found

    @property
    def foundation(self) -> Foundation:
        """The commit that was evaluated last."""
        assert self._candidate is not None  # noqa: S101
        return self._candidate

    def basis(self) -> Basis:
        """The same with its indexes, which change with what is evaluated next."""
        if self._step is None:
            register, reach = _indexes_of(self.foundation)
            return Basis(foundation=self.foundation, register=register, reach=reach)
        return Basis(foundation=self.foundation, register=self._indexes(self.foundation), reach=self._reach)

    def let_go(self) -> None:
        """Hold nothing of any commit: what is asked next is evaluated upon what was kept."""
        self._base = self._candidate = self._step = self._register = None
        self._reach = Reach()

    @property
    def worked_on(self) -> int:
        """How many servers the commit that was evaluated last was decided for anew."""
        return len(self._step.servers) if self._step is not None else len(self.foundation.decided.of)

    def _take_as_base(self, base: Revision | None) -> None:
        if self._candidate is not None and base == self._candidate.revision:
            if self._step is None:
                self._register = None  # it was evaluated as a whole
            self._base = self._candidate
        elif self._base is not None and base == self._base.revision:
            self._go_back()
        else:
            self._base = self._register = None
            if base is not None:
                snapshot = self._snapshots(base, None)
                self._begun(len(snapshot.blobs))
                found = self._upon_kept(snapshot)
                self._base = found.head if found is not None else self._whole(snapshot).head
        self._candidate = self._step = None

    def _go_back(self) -> None:
        if self._step is None or self._base is None or self._candidate is None or self._register is None:
            return
        struck(self._reach, self._candidate.decided.of, self._step.servers)
        entered(self._reach, self._base.decided.of, self._step.servers)
        self._register.strike(self._step.delta.come)
        self._register.enter(self._step.delta.gone)

    def _first(self, snapshot: Snapshot) -> CommitPair | None:
        """A commit before which there is none, by what was kept of this one or another; None where that is no help."""
        if (found := self._upon_kept(snapshot)) is None:
            return None
        decided = found.head.decided
        return CommitPair(
            base=None,
            head=found.head,
            servers=decided.repository.servers.keys(),
            changes=partial(_compared, None, decided.decisions, None, decided.repository),
        )

    def _upon_kept(self, snapshot: Snapshot) -> CommitPair | None:
        """A commit against what was kept of another; the indexes are the commit's then."""
        if (kept := self._kept(snapshot)) is None:
            return None
        self._base, self._register, self._reach = kept.foundation, kept.register, kept.reach
        found = None
        with suppress(Spoilt):
            found = self._next(_against(kept.foundation, snapshot))
        self._base = None
        if found is None:
            self._register = self._step = None  # they are the other commit's
        else:
            kept.relied_on(partial(_by_itself, snapshot, self.workers))
        return found

    def _whole(self, snapshot: Snapshot) -> CommitPair:
        """A commit of which all is looked at."""
        base = self._base
        head = _read(snapshot, base, self.workers)
        repository, decided = head.loaded.repository, head.decided
        before = base.decided if base is not None else None
        changes = partial(
            _compared,
            before.decisions if before else None,
            decided.decisions,
            before.repository if before else None,
            repository,
        )
        names = repository.servers.keys() | (before.repository.servers.keys() if before else set())
        return CommitPair(base=base, head=head, servers=names, changes=changes)

    def _next(self, snapshot: Snapshot) -> CommitPair | None:
        """A commit of which only what differs is looked at; None where that is not enough."""
        base = self._base
        assert base is not None  # noqa: S101
        register = self._indexes(base)
        self._register = None  # where an error leaves it half way, it is made anew
        sizes = register.sizes(GROUPING)
        found = succeed(base.loaded, register, snapshot, {})
        if found is None:
            self._register = register
            return None
        loaded, delta = found
        servers = affected(base.decided, loaded.repository, delta, register, self._reach)
        try:
            decided = decide_again(base.decided, loaded.repository, servers, only_servers=delta.only_servers)
        except InvalidRepository:
            register.strike(delta.come)
            register.enter(delta.gone)
            self._register = register
            return None
        struck(self._reach, base.decided.of, servers)
        entered(self._reach, decided.of, servers)
        self._register, self._step = register, _Step(delta=delta, servers=servers)
        documents = delta.resources | {Id("file", path) for path in delta.files}
        changes = partial(
            _compared,
            base.decided.decisions,
            decided.decisions,
            base.decided.repository,
            loaded.repository,
            Touched(servers=servers, documents=documents, sizes=sizes),
        )
        return CommitPair(
            base=base,
            head=Foundation(loaded=loaded, decided=decided, pinned=_pinned(base, loaded.repository, servers)),
            servers=servers,
            changes=changes,
        )

    def _indexes(self, base: Foundation) -> Register:
        if self._register is None:
            self._register, self._reach = _indexes_of(base)
        return self._register


def _compared(
    old: Decisions | None,
    new: Decisions,
    old_repository: FleetRepository | None,
    new_repository: FleetRepository,
    touched: Touched | None = None,
) -> Changes:
    from gitboot.diff.changes import compare  # only here: to import it takes its time, and `validate` never asks

    return compare(old, new, old_repository, new_repository, touched)


def _against(base: Foundation, snapshot: Snapshot) -> Snapshot:
    """A snapshot that knows which of the files that are looked into are others than in ``base``."""
    if snapshot.changed is not None:
        return snapshot
    named = base.loaded.repository.files
    before = looked_into(base.loaded.snapshot, base.loaded.documents, named)
    now = looked_into(snapshot, listed(snapshot).documents, named)
    return replace(snapshot, changed=frozenset(path for path, _ in before.items() ^ now.items()))


def _indexes_of(foundation: Foundation) -> tuple[Register, Reach]:
    register, reach = Register(), Reach()
    register.enter(everything(foundation.loaded.repository))
    entered(reach, foundation.decided.of, foundation.decided.of)
    return register, reach


def _by_itself(snapshot: Snapshot, workers: Forks) -> Basis:
    """All that there is to know of a commit that holds together."""
    foundation = _read(snapshot, None, workers)
    register, reach = _indexes_of(foundation)
    return Basis(foundation=foundation, register=register, reach=reach)


def _read(snapshot: Snapshot, base: Foundation | None, workers: Forks) -> Foundation:
    """All that a commit says; what the base's files say need not be parsed again."""
    parsed: ParseCache = {}
    if base is not None:
        blobs = base.loaded.snapshot.blobs
        parsed = {blobs[path]: said for path, said in base.loaded.documents.items()}
    workers.parse(snapshot, parsed)
    decided = read(snapshot, parsed, workers.decide)
    repository = decided.repository
    documents = {origin.path: parsed[origin.blob] for origin in repository.origins.values()}
    return Foundation(
        loaded=Loaded(snapshot=snapshot, documents=documents, repository=repository),
        decided=decided,
        pinned=_pinned(None, repository, repository.servers),
    )


def _pinned(base: Foundation | None, repository: FleetRepository, servers: Collection[str]) -> Mapping[str, OptOut]:
    pins = {name: pin_of(repository.servers[name]) for name in servers if name in repository.servers}
    found = {name: pin for name, pin in pins.items() if pin is not None}
    return merged(base.pinned if base is not None else {}, found, [name for name in servers if name not in found])
