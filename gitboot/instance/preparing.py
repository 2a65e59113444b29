"""The tree of a standby, made before it acts, so that taking over is as going on after a restart.

It is planned by a copy of the ledger, in which nothing counts. So it offers no boot that means something by being
made: whoever acts has to note that first. Servers that have such a boot go to their disks by it, and are published anew
by who takes over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from gitboot.assets.remembered import read_sightings
from gitboot.errors import NotYetDone
from gitboot.evaluate.limits import Allowance
from gitboot.instance import directory as state
from gitboot.instance.accept import Attempt
from gitboot.instance.acting import is_of
from gitboot.instance.bookkeeping import known, looked_around
from gitboot.instance.bookmark import WORTH, Bookmark
from gitboot.instance.commit import Commit
from gitboot.instance.evaluation import Evaluation
from gitboot.instance.knowledge import Knowledge
from gitboot.instance.learn import Batch, learn
from gitboot.instance.patrol import Patrol
from gitboot.instance.planning import changed_by, replanned
from gitboot.instance.publishing import Dated, published
from gitboot.instance.standing import Standing, goes_by
from gitboot.instance.stops import stop_of
from gitboot.instance.tokenkeys import restored, token_keys
from gitboot.ledger import evidence, facts
from gitboot.ledger.entries import Facts
from gitboot.ledger.opening import copy_ledger, lease_of, token_keys_of
from gitboot.ledger.store import Store
from gitboot.load import Revision
from gitboot.plan import Offer
from gitboot.publish.directory import Directory
from gitboot.publish.resuming import Inventory
from gitboot.render.terms import terms_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an instance that stands by is to act, and for whom."""

    output: Path
    state: Path
    spool: Path | None = None  # None: no fetch reaches it
    site: str | None = None  # for whose servers; None: for all
    looks: bool = True  # whether it looks at artifacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What was made: of which commit, for how many servers, and how many of them are still to be published."""

    commit: Revision
    servers: int
    halted: int


def prepare(
    place: Place, *, allowance: Allowance, clock: Callable[[], datetime], warn: Callable[[str], None]
) -> Prepared:
    """Bring OUTPUT near to what the instance that acts publishes, and note where it stands, for who takes over.

    For a process of its own, which may be killed at any instant; another holds STATE meanwhile. Twice, it changes what
    is another by then. Raises `NotYetDone` where there is nothing to go by, or nothing to be gained.
    """
    _refuse_shared(place)
    with ExitStack() as stack:
        copy = stack.enter_context(_emptied(place.state / state.PREPARING))
        copy_ledger(place.state / state.LEDGER, copy / state.LEDGER, in_use=True)
        store = stack.enter_context(Store.open(copy / state.LEDGER))
        accepted = _accepted(store)
        if not (lines := token_keys_of(place.state / state.LEDGER)):
            raise NotYetDone("the ledger has no keys of tokens")
        restored(copy, lines)
        at = _no_earlier(clock(), facts.read(store))
        tree = stack.enter_context(Directory.open(place.output, ledger=store.progress[0]))
        patrol = Patrol(place.output, lambda: None)
        stack.callback(patrol.close)
        halting = _Halting(tree, store)
        bookmark = Bookmark(place.state / state.PLANNED, halting, patrol, warn, place.site)
        standing = Standing(
            knowledge=_known(store, place, tree.stamp.ledger if tree.stamp is not None else None),
            keys=token_keys(copy, at, follows_none=False),
        )
        standing = bookmark.resumed(standing)
        evaluation = Evaluation(place.state, allowance=allowance, waits=True, site=place.site)
        stack.callback(evaluation.close)
        evaluated = evaluation.evaluate(accepted, standing.plans.commit)
        assert evaluated is not None  # noqa: S101 - it was waited for
        standing = _brought_near(standing, evaluated.commit, tree, halting, at)
        bookmark.keep(standing, len(standing.plans.servers), at)
    return Prepared(commit=accepted, servers=len(standing.plans.servers), halted=len(halting.names))


def _refuse_shared(place: Place) -> None:
    """Raise `NotYetDone` where OUTPUT is what the instance that acts publishes to."""
    lease = lease_of(place.state / state.LEDGER)
    if lease is None or not lease.stands:
        raise NotYetDone("no instance acts")
    if is_of(place.output, lease):
        raise NotYetDone(f"{place.output} is where {lease.place} publishes")


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder that is empty, whatever one that was killed has left there, and gone in the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _accepted(store: Store) -> Revision:
    """The commit by which the instance that acts goes."""
    about = facts.read(store)
    if about.accepted is None or not about.published or facts.is_behind(store):
        raise NotYetDone("the instance that acts has published nothing by this ledger as yet")
    return Revision(about.accepted)


def _no_earlier(at: datetime, about: Facts) -> datetime:
    """Now; by the other host's clock, where that is ahead: who takes over has come up to it by then."""
    return max(at, about.heartbeat.at) if about.heartbeat is not None else at


def _known(store: Store, place: Place, owner: str | None) -> Knowledge:
    """What the ledger knows, in the surroundings of who is to act by it."""
    looked_around(
        store,
        observes=place.spool is not None,
        owner=owner,
        output=place.output,
        spool=place.spool,
        site=place.site,
    )
    seen = read_sightings(place.state / state.ARTIFACTS) if place.looks else None
    return replace(known(store), sightings=seen)


def _brought_near(before: Standing, commit: Commit, tree: Directory, halting: _Halting, at: datetime) -> Standing:
    """All that is known to be wanted, planned and published, but for what is halted."""
    if len(commit.decisions.servers) < WORTH:
        raise NotYetDone(f"with fewer than {WORTH} servers it saves no time")
    batch = Batch(commit=commit, changed=tuple(commit.decisions.servers))
    learnt = learn(before.knowledge, batch, at).knowledge
    if learnt.settled is None or not learnt.is_trusted or not goes_by(learnt, commit):
        raise NotYetDone("nobody knows what is installed, or another ledger is named: nothing is planned")
    knowledge = replace(learnt, records=before.knowledge.records)  # what is new of them is for the ledger to know first
    stop = stop_of(knowledge, commit, knowledge.facts.orders)
    changed = changed_by(before.plans.commit, commit) | commit.called(before.unplanned)
    plans, different = replanned(before.plans, commit, knowledge, changed, at, stop, before.keys)
    publication = published(
        *(before.publication, plans, commit, different, knowledge, tree, halting, at),
        terms=terms_of(commit.fleet.provisioning, None, endpoint=commit.fleet.endpoint),  # by which nobody gives
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


class _Halting:
    """Halts whoever is offered what the ledger has not noted; and who goes on from the tree publishes them anew."""

    def __init__(self, tree: Directory, store: Store) -> None:
        self._tree, self._store = tree, store
        self.names = set[str]()

    def note(self, offers: Mapping[str, Sequence[Offer]], dates: Mapping[str, Sequence[Dated]]) -> Collection[str]:
        """Nothing; the servers of which there is anything to be noted."""
        found = {name for name, each in dates.items() if each}
        found.update(name for name, each in offers.items() if not all(map(self._has_noted, each)))
        self.names |= found
        return found

    def note_published(self) -> None:
        """It was, by whoever acts."""

    def inventory(self) -> Inventory:
        """What the tree holds; of who is halted something else than it does."""
        held = self._tree.inventory()
        return replace(held, states={**held.states, **dict.fromkeys(self.names, "")})

    def resume(self, before: Inventory) -> frozenset[str] | None:
        """As the tree does."""
        return self._tree.resume(before)

    def _has_noted(self, offer: Offer) -> bool:
        known = evidence.offered(self._store, offer.plan)
        return known is not None and replace(offer, number=known.number) == known
