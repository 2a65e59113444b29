"""The tree that a standby prepares before it becomes active, so that a take-over costs as little as a restart.

gitboot plans the tree by a copy of the ledger and writes nothing to the ledger. A one-time boot must be in the ledger
before it is published, so the tree has no one-time boot that the ledger lacks. Servers with such a boot, and servers
that may be installed, boot their disks instead (they are halted). The standby publishes them again when it becomes
active.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gitboot.controller.checkpoint import WORTH, Checkpoint
from gitboot.controller.commit_acceptance import Attempt
from gitboot.controller.current_plans import changed_by, replanned
from gitboot.controller.instance import state_directory as state
from gitboot.controller.instance.state_directory import is_of, restored, token_keys
from gitboot.controller.instance_state import InstanceState, goes_by
from gitboot.controller.offered_files import Dated, published
from gitboot.controller.operator_requests import stop_of
from gitboot.controller.records.install_boots import offers_of
from gitboot.controller.records.ledger_changes import Batch, learn
from gitboot.controller.records.ledger_snapshot import known, looked_around, output_modes
from gitboot.disk_cache import DiskCache
from gitboot.errors import NotYetDone, SourceError
from gitboot.evaluator.client import Evaluation
from gitboot.evaluator.evaluation_result import Commit
from gitboot.evaluator.protocol import Allowance
from gitboot.fleet.revision import Revision
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.instance_tables import Facts
from gitboot.ledger.open_ledger import copy_ledger, lease_of, token_keys_of
from gitboot.ledger.store import Store
from gitboot.publish.publisher import Directory, Published
from gitboot.publish.tree_reader import Inventory
from gitboot.render.endpoint_files import Terms
from gitboot.render.paths import File, Files, token_in
from gitboot.render.plan_and_record_files import PartFiles
from gitboot.render.server_files import ServerState


@dataclass(frozen=True, kw_only=True, slots=True)
class StandbyPlace:
    """The directories of a standby, and the servers that it is for."""

    output: Path
    state: Path
    spool: Path | None = None  # None: the standby gets no fetches
    site: str | None = None  # the tree has only its servers; None: all servers
    looks: bool = True  # whether the standby checks artifacts
    output_group: str | None = None  # the group that may read OUTPUT


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The result: the commit, and how many servers the tree has."""

    commit: Revision
    servers: int
    halted: int  # servers that boot their disks until the standby becomes active
    at: datetime  # of the ledger


def prepare(
    place: StandbyPlace, *, allowance: Allowance, clock: Callable[[], datetime], warn: Callable[[str], None]
) -> Prepared:
    """Publish to OUTPUT what the active instance publishes, except for halted servers, and keep a checkpoint.

    This runs in a process of its own, which may be killed at any time, while the standby holds STATE. A second call
    publishes only what has changed. Raises `NotYetDone` if the ledger is not ready, or if the fleet is small.
    """
    lease = lease_of(place.state / state.LEDGER)
    if lease is None or not lease.stands:
        raise NotYetDone("no instance acts")
    if is_of(place.output, lease):
        raise NotYetDone(f"{place.output} is where {lease.place} publishes")
    with ExitStack() as stack:
        copy = stack.enter_context(_emptied(place.state / state.PREPARING))
        copy_ledger(place.state / state.LEDGER, copy / state.LEDGER, in_use=True)
        store = stack.enter_context(Store.open(copy / state.LEDGER))
        about = instance_tables.read(store)
        if about.accepted is None or not about.published or instance_tables.is_behind(store):
            raise NotYetDone("the instance that acts has published nothing by this ledger as yet")
        accepted = Revision(about.accepted)
        if not (lines := token_keys_of(place.state / state.LEDGER)):
            raise NotYetDone("the ledger has no keys of tokens")
        restored(copy, lines)
        at = max(clock(), about.heartbeat.at) if about.heartbeat is not None else clock()
        modes = output_modes(store, place.output, place.output_group)
        directory = stack.enter_context(Directory.open(place.output, ledger=about.identity, modes=modes))
        tree = _StandbyTree(directory, store, _undated(store, at, about))
        cache = stack.enter_context(state.open_cache(place.state, lambda _: None))  # the standby reports what is wrong
        checkpoint = Checkpoint(cache, tree, None, warn, place.site)
        looked_around(
            store,
            observes=place.spool is not None,
            owner=directory.stamp.ledger if directory.stamp is not None else None,
            output=place.output,
            spool=place.spool,
            site=place.site,
        )
        # The ledger has the sightings of the other host.
        knowledge = replace(known(store), sightings={} if place.looks else None)
        standing = checkpoint.resume(InstanceState(knowledge=knowledge, keys=token_keys(copy, at, follows_none=False)))
        commit = _evaluated(place, allowance, accepted, standing.plans.commit, cache)
        standing = _brought_near(standing, commit, tree, at)
        checkpoint.store(standing, len(standing.plans.servers), at)
    return Prepared(commit=accepted, servers=len(standing.plans.servers), halted=len(tree.halted), at=at)


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end. An earlier process may have left it behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _undated(store: Store, at: datetime, about: Facts) -> datetime:
    """Return a second with which no host has dated a boot script, or will date one.

    In an access log, the date of a file tells which boot was served. The active instance dates no file before its last
    heartbeat.
    """
    second = int((about.heartbeat.at if about.heartbeat is not None else at).timestamp()) - 1
    while server_tables.is_dated(store, second):
        second -= 1
    return datetime.fromtimestamp(second, UTC)


def _evaluated(
    place: StandbyPlace, allowance: Allowance, revision: Revision, base: Commit | None, cache: DiskCache
) -> Commit:
    """Evaluate the accepted commit."""
    evaluation = Evaluation(place.state, allowance=allowance, waits=True, site=place.site, cache=cache)
    with closing(evaluation):
        try:
            evaluated = evaluation.evaluate(revision, base)
        except SourceError as error:
            raise NotYetDone(f"the accepted commit {revision[:12]} is not fetched yet ({error})") from None
        evaluation.keep(revision)
        evaluation.wait_until_stored()
    assert evaluated is not None  # noqa: S101 - with `waits`, `evaluate` returns a result
    return evaluated.commit


def _brought_near(before: InstanceState, commit: Commit, tree: _StandbyTree, at: datetime) -> InstanceState:
    """Plan and publish all servers, and halt those that the ledger is not ready for."""
    if len(commit.decisions.servers) < WORTH:
        raise NotYetDone(f"with fewer than {WORTH} servers it saves no time")
    batch = Batch(commit=commit, changed=tuple(commit.decisions.servers))
    learnt = learn(before.knowledge, batch, at).knowledge
    if learnt.settled is None or not learnt.is_trusted or not goes_by(learnt, commit):
        raise NotYetDone("nobody knows what is installed, or another ledger is named: nothing is planned")
    knowledge = replace(learnt, records=before.knowledge.records)  # the ledger must have new records first
    stop = stop_of(knowledge, commit, knowledge.facts.orders)
    changed = changed_by(before.plans.commit, commit) | commit.called(before.unplanned)
    plans, different = replanned(before.plans, commit, knowledge, changed, at, stop, before.keys)
    publication = published(
        *(before.publication, plans, commit, different, knowledge, tree, tree, at),
        terms=Terms(prepared=True),
        keys=before.keys,
    )
    if publication.failure is not None:
        raise NotYetDone(publication.failure[1])
    return replace(
        before,
        knowledge=knowledge,
        attempt=Attempt(accepted=commit),
        plans=plans,
        publication=publication,
        unplanned=frozenset(),
    )


class _StandbyTree:
    """The output tree of a standby, which halts servers that may be installed or have a boot that the ledger lacks.

    The checkpoint does not have the states of halted servers, so a standby that becomes active publishes them again.
    """

    def __init__(self, tree: Directory, store: Store, dated: datetime) -> None:
        self._tree, self._store, self._dated = tree, store, dated
        self.halted = set[str]()

    # Methods for publishing

    @property
    def is_as_left(self) -> bool:
        return self._tree.is_as_left

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,  # noqa: ARG002 - another host may have dated a boot script with it
        parts: PartFiles,
    ) -> Published:
        """Publish like `Directory.publish`, with a date that no boot script has."""
        return self._tree.publish(servers, shared, complete=complete, commit=commit, at=self._dated, parts=parts)

    def dated(self, path: str, file: File, at: datetime) -> int:  # noqa: ARG002 - likewise
        return self._tree.dated(path, file, self._dated)

    def holds(self, files: Files) -> bool:
        return self._tree.holds(files)

    # Methods for storing what is offered

    def note(self, states: Mapping[str, ServerState], dates: Mapping[str, Sequence[Dated]]) -> Collection[str]:
        """Write nothing, and return the servers to halt."""
        found = set()
        for name, server in states.items():
            offers = [(each, server_tables.offered(self._store, each.plan)) for each in offers_of(server)]
            has_noted = all(known is not None and replace(each, number=known.number) == known for each, known in offers)
            # A path needs no date in the ledger if a token in the path names its boot.
            has_dated = all(
                token_in(each.path) is not None and server_tables.token_at(self._store, each.path) == each.plan
                for each in dates[name]
            )
            if server.installs_at is not None or not (has_noted and has_dated):
                found.add(name)
        self.halted |= found
        return found

    def note_published(self) -> None:
        """Write nothing: the active instance did."""

    # Methods for the checkpoint

    def inventory(self) -> Inventory:
        """Return the inventory, with states of halted servers that never match."""
        held = self._tree.inventory()
        return replace(held, states={**held.states, **dict.fromkeys(self.halted, "")})

    def resume(self, before: Inventory) -> frozenset[str] | None:
        return self._tree.resume(before)
