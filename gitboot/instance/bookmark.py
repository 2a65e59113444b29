"""Where an instance stood, kept in a file so that the next one goes on from there and plans only what differs.

It only saves time. What it says of a commit, a record or the tree counts where that is the same by the ledger and by
the manifest of the tree; of whom anything is another by either, is planned or published anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from gitboot.assets.sighting import Sighting
from gitboot.caches import Unusable, read_cache, write_cache
from gitboot.errors import PublishError
from gitboot.evaluate import wire
from gitboot.evaluate.encoded import Encoded
from gitboot.frames import encode
from gitboot.instance.agenda import Agenda
from gitboot.instance.commit import Commit
from gitboot.instance.knowledge import Knowledge
from gitboot.instance.patrol import Patrol
from gitboot.instance.planning import ImageFile, Plans, about
from gitboot.instance.standing import Standing, TargetState
from gitboot.load import Revision
from gitboot.load.machines import Machine
from gitboot.load.merged import replaced
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.plan import BootFile, BootPlan, InstallAttempt, Record, Run
from gitboot.publish.resuming import ALL, Inventory
from gitboot.render import terms
from gitboot.render.keyed import TokenKeys
from gitboot.render.schedule import ServerState
from gitboot.resolve import Decisions
from gitboot.resolve.written import Written
from gitboot.stoppage import Halt

WORTH: Final = 500  # servers: to plan fewer anew takes less than to look whether the file counts
_SHARE: Final = 8  # one server in so many planned anew: then the next start is better off with a new file
_OFTEN: Final = timedelta(minutes=10)  # however much is planned anew


class _KeptState(msgspec.Struct, frozen=True, array_like=True):
    """A `ServerState`, but for what the commit says of the server."""

    server: str
    record: Record | None
    absent: tuple[BootFile, ...]
    at: datetime
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]
    refresh_at: datetime | None


class _KeptCommit(msgspec.Struct, frozen=True, array_like=True):
    """A `Commit`."""

    revision: Revision
    said: wire.FleetPart
    decisions: dict[str, bytes]
    networks: dict[str, bytes]
    machines: dict[SystemUuid, Machine]
    sites: dict[str, str]
    labels: dict[str, dict[str, str]]
    written: dict[str, Written]


class _KeptPlans(msgspec.Struct, frozen=True, array_like=True):
    """`Plans`, whose states are bytes until they are looked at."""

    stop: Halt
    left: datetime | None
    states: dict[str, bytes]
    instants: dict[str, datetime]
    planned_at: datetime | None
    counts: list[tuple[tuple[str, str], int]]
    versions: list[tuple[tuple[str, str], int]]
    needs: list[tuple[ImageFile, int]]
    unknown: frozenset[str]
    unseen: frozenset[str]
    consumed: frozenset[str]
    lost: frozenset[str]
    begun: dict[str, InstallAttempt]
    given: dict[str, tuple[str, Run]]
    sightings: list[tuple[BootFile, Sighting]] | None


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """What plans were made by besides the commit; each as bytes, which are only compared."""

    unseen: frozenset[SystemUuid]
    records: dict[SystemUuid, bytes]
    done: dict[SystemUuid, bytes]  # at their BMCs: overrides, and switches of power


class _KeptStanding(msgspec.Struct, frozen=True, array_like=True):
    whose: bytes  # of which instance, by which keys
    at: datetime | None  # when the tree was brought up to date last
    terms: bytes
    versions: dict[str, dict[str, Digest]]
    tree: Inventory
    known: _Known
    commit: _KeptCommit
    plans: _KeptPlans


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

    Where it cannot be relied on, it is done without, and ``warn`` is told, unless it is only of another version.
    """

    def __init__(
        self, path: Path, tree: GoneOn, patrol: Patrol, warn: Callable[[str], None], site: str | None = None
    ) -> None:
        self._path, self._tree, self._patrol, self._warn = path, tree, patrol, warn
        self._site = site  # for whose servers the instance acts; None: for all
        self._since = _Since()

    def resumed(self, fresh: Standing) -> Standing:
        """Where an instance that has only read its ledger goes on; as it is, where nothing that was kept counts."""
        if not fresh.knowledge.is_trusted or (kept := self._read()) is None:
            return fresh
        if kept.whose != _whose(fresh.knowledge, fresh.keys) or (owed := self._tree.resume(kept.tree)) is None:
            return fresh
        commit = _commit(kept.commit)
        if commit.site != self._site:
            return fresh
        plans = _plans(kept.plans, commit)
        publication = TargetState(
            applied=commit.revision,
            at=kept.at,
            complete=True,
            plans=plans,
            terms=terms.parse(kept.terms) if ALL not in owed else None,
            owed=owed - {ALL},
            versions={name: each for name, each in kept.versions.items() if name not in owed},
        )
        self._since = _Since(kept_at=plans.planned_at)
        self._patrol.start()
        return replace(
            fresh,
            # Of no commit by name: so what is known of those that differ is looked through again.
            knowledge=replace(fresh.knowledge, settled="", unseen=kept.known.unseen),
            plans=plans,
            publication=publication,
            unplanned=_differing(kept.known, _known(fresh.knowledge)) | _others(commit, fresh.knowledge),
        )

    def keep(self, standing: Standing, planned: int, at: datetime) -> None:
        """Keep where it stands, where that is worth it; ``planned``: so many servers were planned anew."""
        since = replace(self._since, planned=self._since.planned + planned)
        self._since = since
        commit, publication, servers = standing.commit, standing.publication, len(standing.plans.servers)
        if commit is None or servers < WORTH or since.planned * _SHARE <= servers:
            return
        if since.kept_at is not None and since.kept_at <= at < since.kept_at + _OFTEN:
            return
        if not (publication.stands_for(commit) and publication.plans is standing.plans and _is_whole(standing)):
            return
        try:
            held = self._tree.inventory()
        except PublishError:
            return
        write_cache(self._path, b"", _to_bytes(standing, commit, held))
        self._since = _Since(kept_at=at)

    def looked_through(self, publication: TargetState) -> TargetState:
        """What is published, of which nothing is taken for granted where it was found not to stand."""
        if not (found := self._patrol.found()):
            return publication
        return replace(
            publication,
            complete=publication.complete and ALL not in found,
            owed=publication.owed | (found - {ALL}),
            versions=replaced(publication.versions, {}, found & publication.versions.keys()),  # of another date then
        )

    def _read(self) -> _KeptStanding | None:
        found = read_cache(self._path, b"")  # who writes in STATE can do anything
        if not isinstance(found, Unusable):
            try:
                return _decode(found)
            except (msgspec.DecodeError, ValueError):
                found = Unusable.DAMAGED
        if found in (Unusable.DAMAGED, Unusable.OPEN):
            self._warn(f"what is kept in {self._path} does not count, and is planned anew: {found.value}")
        return None


def _is_whole(standing: Standing) -> bool:
    """Whether all that is known is planned."""
    return standing.knowledge.is_trusted and not standing.unplanned and standing.unwritable is None


def _whose(knowledge: Knowledge, keys: TokenKeys) -> bytes:
    facts = knowledge.facts
    return sha256(encode((facts.identity, facts.observes, keys.key, keys.earlier))).digest()


def _known(knowledge: Knowledge) -> _Known:
    return _Known(
        unseen=knowledge.unseen,
        records={uuid: encode(record) for uuid, record in knowledge.records.items()},
        done={
            uuid: encode((knowledge.overrides_of(uuid), knowledge.switches_of(uuid)))
            for uuid in {*knowledge.overrides, *knowledge.switches}
        },
    )


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


def _to_bytes(standing: Standing, commit: Commit, held: Inventory) -> bytes:
    publication, plans = standing.publication, standing.plans
    assert publication.terms is not None  # noqa: S101 - there are some in what stands
    return encode(
        _KeptStanding(
            whose=_whose(standing.knowledge, standing.keys),
            at=publication.at,
            terms=terms.render(publication.terms)[terms.TERMS].content,
            versions={name: dict(each) for name, each in publication.versions.items()},
            tree=held,
            known=_known(standing.knowledge),
            commit=_kept_commit(commit),
            plans=_kept_plans(plans),
        )
    )


def _kept_commit(commit: Commit) -> _KeptCommit:
    decisions = commit.decisions
    return _KeptCommit(
        revision=commit.revision,
        said=wire.fleet_part(
            *(commit.fleet, decisions, commit.opt_outs, dict(commit.minimum_versions)), commit.shown, commit.site
        ),
        decisions=_encoded(decisions.servers),
        networks=_encoded(decisions.networks),
        machines=dict(commit.machines),
        sites=dict(commit.sites),
        labels={name: dict(each) for name, each in commit.labels.items()},
        written=dict(commit.written),
    )


def _commit(kept: _KeptCommit) -> Commit:
    said = kept.said
    return Commit(
        revision=kept.revision,
        fleet=said.fleet,
        decisions=Decisions(
            revision=kept.revision,
            base_url=said.base_url,
            outputs=frozenset(said.outputs),
            evidence=said.evidence,
            servers=Encoded.of(kept.decisions, wire.decision),
            networks=Encoded.of(kept.networks, wire.network),
            sites=said.sites,
            unknown=said.unknown,
            unknown_not_found=said.unknown_not_found,
            warnings=said.warnings,
        ),
        machines=kept.machines,
        sites=kept.sites,
        labels=kept.labels,
        opt_outs=said.opt_outs,
        minimum_versions=said.minimum_versions,
        site=said.site,
        written=kept.written,
        shown=said.shown,
    )


def _kept_plans(plans: Plans) -> _KeptPlans:
    return _KeptPlans(
        stop=plans.stop,
        left=plans.left,
        states={name: _kept_state(state) for name, state in plans.servers.items()},
        instants=dict(plans.transitions.instants),
        planned_at=plans.planned_at,
        counts=list(plans.counts.items()),
        versions=list(plans.versions.items()),
        needs=list(plans.needs.items()),
        unknown=plans.unknown,
        unseen=plans.unseen,
        consumed=plans.consumed,
        lost=plans.lost,
        begun=dict(plans.begun),
        given=dict(plans.given),
        sightings=list(plans.sightings.items()) if plans.sightings is not None else None,
    )


def _plans(kept: _KeptPlans, commit: Commit) -> Plans:
    def state(data: bytes) -> ServerState:
        found = _state(data)
        return ServerState(
            decision=commit.decisions.servers[found.server],
            record=found.record,
            about=about(commit, found.server),
            stop=kept.stop,
            absent=frozenset(found.absent),
            at=found.at,
            plan=found.plan,
            later=found.later,
            refresh_at=found.refresh_at,
        )

    nobody: Agenda[str] = Agenda()
    return Plans(
        commit=commit,
        stop=kept.stop,
        left=kept.left,
        servers=Encoded.of(kept.states, state),
        transitions=nobody.moved(kept.instants),
        planned_at=kept.planned_at,
        counts=dict(kept.counts),
        versions=dict(kept.versions),
        unknown=kept.unknown,
        unseen=kept.unseen,
        consumed=kept.consumed,
        lost=kept.lost,
        begun=kept.begun,
        sightings=dict(kept.sightings) if kept.sightings is not None else None,
        needs=dict(kept.needs),
        given=kept.given,
    )


def _kept_state(state: ServerState) -> bytes:
    return encode(
        _KeptState(
            server=state.decision.server,
            record=state.record,
            absent=tuple(sorted(state.absent, key=lambda file: (file.url, file.sha256))),
            at=state.at,
            plan=state.plan,
            later=state.later,
            refresh_at=state.refresh_at,
        )
    )


def _encoded(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Values as the bytes that they came as, where they still are that."""
    if isinstance(values, Encoded):
        return values.encoded(encode)
    return {name: encode(each) for name, each in values.items()}


_decode: Final[Callable[[bytes], _KeptStanding]] = msgspec.msgpack.Decoder(_KeptStanding).decode
_state: Final[Callable[[bytes], _KeptState]] = msgspec.msgpack.Decoder(_KeptState).decode
