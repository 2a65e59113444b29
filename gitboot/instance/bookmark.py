"""Where an instance stood, kept in a file so that the next one goes on from there and plans only what differs.

It only saves time. What it says of a commit, a record or the tree counts where that is the same by the ledger and by
the manifest of the tree; of whom anything is another by either, is planned or published anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from gitboot.assets.sighting import Sighting
from gitboot.caches import Unusable
from gitboot.decoders import decoder
from gitboot.errors import PublishError
from gitboot.evaluator import protocol
from gitboot.evaluator.evaluation_result import Commit
from gitboot.frames import encode
from gitboot.instance.agenda import Agenda
from gitboot.instance.knowledge import Knowledge
from gitboot.instance.patrol import Patrol
from gitboot.instance.planning import ImageFile, Plans, about
from gitboot.instance.standing import Standing, TargetState
from gitboot.load import Revision
from gitboot.load.machines import Machine
from gitboot.load.merged import replaced
from gitboot.model.fleet import Output
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.plan import BootFile, BootPlan, Decision, InstallAttempt, InstallProgress, Record, Run
from gitboot.publish.resuming import ALL, PARTS, Inventory
from gitboot.render import terms
from gitboot.render.keyed import TokenKeys
from gitboot.render.schedule import ServerState
from gitboot.resolve import Decisions
from gitboot.resolve.hosts import Host
from gitboot.resolve.source_locations import DocumentLocation, ServerLocation, SourceLocations
from gitboot.resolve.written import Written
from gitboot.sections import Sections, Spoilt, keep_sections
from gitboot.stoppage import Halt

WORTH: Final = 500  # servers: to plan fewer anew takes less than to look whether the file counts
_SHARE: Final = 8  # one server in so many planned anew: then the next start is better off with a new file
_OFTEN: Final = timedelta(minutes=10)  # however much is planned anew


class _KeptPlans(msgspec.Struct, frozen=True, array_like=True):
    """`Plans`, but for the states of servers and when each changes by itself."""

    stop: Halt
    left: datetime | None
    planned_at: datetime | None
    counts: list[tuple[tuple[str, str], int]]
    versions: list[tuple[tuple[str, str], int]]
    needs: list[tuple[ImageFile, int]]
    unknown: frozenset[str]
    unseen: frozenset[str]
    consumed: frozenset[str]
    lost: frozenset[str]
    unknown_outcomes: frozenset[str]
    begun: dict[str, InstallAttempt]
    given: dict[str, tuple[str, Run]]
    installing: dict[str, InstallProgress]
    sightings: list[tuple[BootFile, Sighting]] | None


class _KeptState(msgspec.Struct, frozen=True, array_like=True):
    """A `ServerState`, but for what the commit says of the server."""

    record: Record | None
    absent: tuple[BootFile, ...]
    at: datetime
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]
    refresh_at: datetime | None


class _KeptStanding(msgspec.Struct, frozen=True, array_like=True):
    whose: bytes  # of which instance, by which keys
    at: datetime | None  # when the tree was brought up to date last
    terms: bytes
    shared: str | None  # of the tree's `Inventory`
    unseen: frozenset[SystemUuid]
    revision: Revision
    said: protocol.FleetPart
    plans: _KeptPlans


class _Known(NamedTuple):
    """What plans were made by besides the commit; each as bytes, which are only compared."""

    unseen: frozenset[SystemUuid]
    records: Mapping[SystemUuid, bytes]
    done: Mapping[SystemUuid, bytes]  # at their BMCs: overrides, and switches of power


class _Read(NamedTuple):
    """What was kept, as it is gone on from."""

    small: _KeptStanding
    commit: Commit
    plans: Plans
    tree: Inventory
    versions: dict[str, dict[str, Digest]]
    known: _Known


@dataclass(frozen=True, kw_only=True, slots=True)
class _Since:
    """How much was planned since something was kept last, and when that was."""

    planned: int = 0
    kept_at: datetime | None = None


class GoneOn(Protocol):
    """A tree in which another process may have published before."""

    def inventory(self) -> Inventory:
        """What it holds."""

    def resume(self, before: Inventory) -> frozenset[str] | None:
        """Go on from what was there; return whose files may be others. None: all is to be published."""


class Bookmark:
    """The file at ``path``, beside what lies in ``tree``, which ``patrol`` looks through where it was gone on from.

    None: nobody does.

    Where it cannot be relied on, it is done without, and ``warn`` is told, unless it is only of another version.
    """

    def __init__(
        self, path: Path, tree: GoneOn, patrol: Patrol | None, warn: Callable[[str], None], site: str | None = None
    ) -> None:
        self._path, self._tree, self._patrol, self._warn = path, tree, patrol, warn
        self._site = site  # for whose servers the instance acts; None: for all
        self._since = _Since()

    def resumed(self, fresh: Standing) -> Standing:
        """Where an instance that has only read its ledger goes on; as it is, where nothing that was kept counts."""
        if not fresh.knowledge.is_trusted or (kept := self._read()) is None:
            return fresh
        small, commit, plans = kept.small, kept.commit, kept.plans
        if small.whose != _whose(fresh.knowledge, fresh.keys) or (owed := self._tree.resume(kept.tree)) is None:
            return fresh
        if commit.site != self._site:
            return fresh
        publication = TargetState(
            applied=commit.revision,
            at=small.at,
            complete=True,
            plans=plans,
            terms=terms.parse(small.terms) if ALL not in owed else None,
            owed=owed - {ALL, PARTS},
            in_doubt=PARTS in owed,
            versions={name: each for name, each in kept.versions.items() if name not in owed},
        )
        self._since = _Since(kept_at=plans.planned_at)
        if self._patrol is not None:
            self._patrol.start()
        return replace(
            fresh,
            # Of no commit by name: so what is known of those that differ is looked through again.
            knowledge=replace(
                fresh.knowledge,
                settled="",
                unseen=kept.known.unseen,
                sets_bmcs=None if kept.known.unseen else True,
            ),
            plans=plans,
            publication=publication,
            unplanned=_differing(kept.known, _known(fresh.knowledge)) | _others(commit, fresh.knowledge),
        )

    def keep(self, standing: Standing, planned: int, at: datetime) -> None:
        """Keep where it stands, where that is worth it; ``planned``: so many servers were planned anew.

        It is called at the end of a pass: whether the tree stands is looked at from the first one on.
        """
        if self._patrol is not None:
            self._patrol.release()
        since = replace(self._since, planned=self._since.planned + planned)
        self._since = since
        commit, publication, servers = standing.commit, standing.publication, len(standing.plans.servers)
        if commit is None or commit.withheld or servers < WORTH or since.planned * _SHARE <= servers:
            return
        if since.kept_at is not None and since.kept_at <= at < since.kept_at + _OFTEN:
            return
        if not (publication.stands_for(commit) and publication.plans is standing.plans and _is_whole(standing)):
            return
        try:
            held = self._tree.inventory()
        except PublishError:
            return
        small, tables = _kept(standing, commit, held)
        chunks = {name: _chunks(items) for name, items in tables.items()}
        keep_sections(self._path, b"", {_STANDING: encode(small)}, chunks)  # who writes in STATE can do anything
        self._since = _Since(kept_at=at)

    def looked_through(self, publication: TargetState) -> TargetState:
        """What is published, of which nothing is taken for granted where it was found not to stand."""
        if self._patrol is None or not (found := self._patrol.found()):
            return publication
        return replace(
            publication,
            complete=publication.complete and ALL not in found,
            owed=publication.owed | (found - {ALL}),
            versions=replaced(publication.versions, {}, found & publication.versions.keys()),  # of another date then
        )

    def _read(self) -> _Read | None:
        with suppress(Spoilt):  # it was warned of
            try:
                if (found := Sections.open(self._path, b"", self._unusable)) is not None:
                    return _read(found)
            except (msgspec.DecodeError, ValueError, KeyError):
                self._unusable(Unusable.DAMAGED)
        return None

    def _unusable(self, why: Unusable) -> None:
        self._warn(f"what is kept in {self._path} does not count, and is planned anew: {why.value}")


def _is_whole(standing: Standing) -> bool:
    """Whether all that is known is planned."""
    return standing.knowledge.is_trusted and not standing.unplanned and standing.unwritable is None


def _whose(knowledge: Knowledge, keys: TokenKeys) -> bytes:
    facts = knowledge.facts
    return sha256(encode((facts.identity, facts.observes, keys.key, keys.earlier))).digest()


def _known(knowledge: Knowledge) -> _Known:
    return _Known(knowledge.unseen, dict(_records(knowledge)), dict(_done(knowledge)))


def _records(knowledge: Knowledge) -> Iterator[tuple[SystemUuid, bytes]]:
    return ((uuid, encode(record)) for uuid, record in knowledge.records.items())


def _done(knowledge: Knowledge) -> Iterator[tuple[SystemUuid, bytes]]:
    for uuid in sorted({*knowledge.overrides, *knowledge.switches}):
        yield uuid, encode((knowledge.overrides_of(uuid), knowledge.switches_of(uuid)))


def _differing(then: _Known, now: _Known) -> frozenset[SystemUuid]:
    pairs = ((then.records, now.records), (then.done, now.done))
    return frozenset(uuid for old, new in pairs for uuid in old.keys() | new.keys() if old.get(uuid) != new.get(uuid))


def _others(commit: Commit, knowledge: Knowledge) -> frozenset[SystemUuid]:
    """The machines that are others in the ledger than in a commit, which may be older than its accepted one."""
    if commit.revision == knowledge.facts.accepted:
        return frozenset()
    here, book = commit.machines, knowledge.machines
    others = (uuid for uuid, each in here.items() if book.get(uuid) != each)
    return frozenset(here.keys() ^ knowledge.standing).union(others)


# As bytes


_STANDING: Final = "standing"
_CHUNK: Final = 1024  # servers: what is kept of so many is held at once

Items = Iterable[tuple[Any, Any]]


def _kept(standing: Standing, commit: Commit, held: Inventory) -> tuple[_KeptStanding, dict[str, Items]]:
    """What is kept: what grows with the fleet by itself, as it is come by."""
    publication, plans, knowledge, decisions = (
        standing.publication,
        standing.plans,
        standing.knowledge,
        commit.decisions,
    )
    assert publication.terms is not None  # noqa: S101 - there are some in what stands
    small = _KeptStanding(
        whose=_whose(knowledge, standing.keys),
        at=publication.at,
        terms=terms.render(publication.terms)[terms.TERMS].content,
        shared=held.shared,
        unseen=knowledge.unseen,
        revision=commit.revision,
        said=protocol.fleet_part(
            *(commit.fleet, decisions, commit.opt_outs, dict(commit.minimum_versions)), commit.shown, commit.site
        ),
        plans=_kept_plans(plans),
    )
    tables: dict[str, Items] = {
        "decisions": ((name, each.digested()) for name, each in decisions.servers.items()),
        "networks": decisions.networks.items(),
        "machines": commit.machines.items(),
        "sites": commit.sites.items(),
        "labels": ((name, dict(each)) for name, each in commit.labels.items()),
        "written": commit.written.items(),
        "locations": commit.locations.servers.items(),
        "documents": commit.locations.shared.items(),
        "states": ((name, _kept_state(each)) for name, each in plans.servers.items()),
        "instants": plans.transitions.instants.items(),
        "versions": ((name, dict(each)) for name, each in publication.versions.items()),
        "lying": held.states.items(),
        "content": held.content.items(),
        "records": _records(knowledge),
        "done": _done(knowledge),
    }
    return small, tables


def _chunks(items: Items) -> Iterator[tuple[str, bytes]]:
    """Records of a table, each of some of the items."""
    rest = iter(items)
    for number in count():
        if not (chunk := dict(islice(rest, _CHUNK))):
            return
        yield f"{number:08}", encode(chunk)


def _read(kept: Sections) -> _Read:
    """What `_kept` gave; raises `Spoilt`, DecodeError and KeyError where it is not that."""

    def table(name: str, decode: Callable[[bytes], dict[Any, Any]]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for chunk in (records := kept.table(name)):
            found.update(decode(records[chunk]))
        return found

    small = _decode(kept.value(_STANDING))
    said = small.said
    commit = Commit(
        revision=small.revision,
        fleet=said.fleet,
        decisions=Decisions(
            revision=small.revision,
            base_url=said.base_url,
            outputs=frozenset(said.outputs),
            evidence=said.evidence,
            servers=table("decisions", _decisions),
            networks=table("networks", _networks),
            sites=said.sites,
            unknown=said.unknown,
            unknown_not_found=said.unknown_not_found,
            warnings=said.warnings,
            dated=said.dated,
        ),
        machines=table("machines", _machines),
        sites=table("sites", _texts),
        labels=table("labels", _labels),
        opt_outs=said.opt_outs,
        minimum_versions=said.minimum_versions,
        site=said.site,
        written=table("written", _written),
        locations=SourceLocations(servers=table("locations", _locations), shared=table("documents", _documents)),
        shown=said.shown,
    )
    return _Read(
        small=small,
        commit=commit,
        plans=_plans(small.plans, commit, table("states", _states), table("instants", _instants)),
        tree=Inventory(
            states=table("lying", _texts),
            content=table("content", _paths),
            shared=small.shared,
            has_page=Output.PAGES in commit.decisions.outputs,
        ),
        versions=table("versions", _labels),
        known=_Known(small.unseen, table("records", _bytes), table("done", _bytes)),
    )


def _kept_plans(plans: Plans) -> _KeptPlans:
    return _KeptPlans(
        stop=plans.stop,
        left=plans.left,
        planned_at=plans.planned_at,
        counts=list(plans.counts.items()),
        versions=list(plans.versions.items()),
        needs=list(plans.needs.items()),
        unknown=plans.unknown,
        unseen=plans.unseen,
        consumed=plans.consumed,
        lost=plans.lost,
        unknown_outcomes=plans.unknown_outcomes,
        begun=dict(plans.begun),
        given=dict(plans.given),
        installing=dict(plans.installing),
        sightings=list(plans.sightings.items()) if plans.sightings is not None else None,
    )


def _kept_state(state: ServerState) -> _KeptState:
    return _KeptState(
        record=state.record,
        absent=tuple(sorted(state.absent, key=lambda file: (file.url, file.sha256))),
        at=state.at,
        plan=state.plan,
        later=state.later,
        refresh_at=state.refresh_at,
    )


def _state(kept: _KeptState, name: str, commit: Commit, stop: Halt) -> ServerState:
    return ServerState(
        decision=commit.decisions.servers[name],
        record=kept.record,
        about=about(commit, name),
        stop=stop,
        absent=frozenset(kept.absent),
        at=kept.at,
        plan=kept.plan,
        later=kept.later,
        refresh_at=kept.refresh_at,
    )


def _plans(kept: _KeptPlans, commit: Commit, states: dict[str, _KeptState], instants: dict[str, datetime]) -> Plans:
    nobody: Agenda[str] = Agenda()
    return Plans(
        commit=commit,
        stop=kept.stop,
        left=kept.left,
        servers={name: _state(each, name, commit, kept.stop) for name, each in states.items()},
        transitions=nobody.moved(instants),
        planned_at=kept.planned_at,
        counts=dict(kept.counts),
        versions=dict(kept.versions),
        unknown=kept.unknown,
        unseen=kept.unseen,
        consumed=kept.consumed,
        lost=kept.lost,
        unknown_outcomes=kept.unknown_outcomes,
        begun=kept.begun,
        sightings=dict(kept.sightings) if kept.sightings is not None else None,
        needs=dict(kept.needs),
        given=kept.given,
        installing=kept.installing,
    )


_decode: Final[Callable[[bytes], _KeptStanding]] = decoder(_KeptStanding)
_decisions: Final = decoder(dict[str, Decision])
_networks: Final = decoder(dict[str, Host])
_states: Final = decoder(dict[str, _KeptState])
_bytes: Final = decoder(dict[str, bytes])
_texts: Final = decoder(dict[str, str])
_labels: Final = decoder(dict[str, dict[str, str]])
_paths: Final = decoder(dict[str, tuple[str, ...]])
_instants: Final = decoder(dict[str, datetime])
_machines: Final = decoder(dict[SystemUuid, Machine])
_written: Final = decoder(dict[str, Written])
_locations: Final = decoder(dict[str, ServerLocation])
_documents: Final = decoder(dict[str, DocumentLocation])
