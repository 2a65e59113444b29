"""Decision changes: compare the decisions of two commits server by server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gitboot.fleet.identities import BmcAccess, LostIdentity, Machine, machines
from gitboot.fleet.resources import FleetRepository, Id
from gitboot.jsonio import Digest, digest, facts
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.fleet import Site
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Lifecycle
from gitboot.problems import Problem
from gitboot.resolve.fleet_decisions import sites
from gitboot.resolve.install_attempts import NEW_UP_TO
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.document_changes import (
    AccessChange,
    DocumentChange,
    Fate,
    ImageChange,
    SharedChange,
    access_changes,
    booted,
    changed_documents,
    changes_all_files,
    changes_ledger,
    image_changes,
    is_mutated,
    shared_change,
    unknown_change,
)
from gitboot.review.guards import Area, Extent, Label, Pair, Touched, areas_of, digest_of, labels_of, reached_at
from gitboot.review.harmless_changes import is_less
from gitboot.review.reinstalls import (
    Described,
    DiskClaims,
    GainedIdentity,
    Reinstall,
    Why,
    claims_of,
    gained,
    installing,
    lost,
    may_be_installed,
    of_others,
    reinstalls,
)
from gitboot.review.risks import Effect, Risk, effects, risks


class ServerChange(Struct, frozen=True, kw_only=True):
    """One server whose decision is another, or who came, or went."""

    old: Decision | None
    new: Decision | None
    risks: frozenset[Risk]
    reinstalls: tuple[Reinstall, ...]  # why it can ask for a boot that writes disks
    effects: tuple[Effect, ...]
    unknown: tuple[BecomesUnknown, ...] = ()  # why it becomes unknown whether it is provisioned

    @property
    def name(self) -> str:
        """What the server is called, now if it is there."""
        decision = self.new or self.old
        assert decision is not None  # noqa: S101 - one of the two is there
        return decision.server

    @property
    def renamed(self) -> bool:
        return self.old is not None and self.new is not None and self.old.server != self.new.server

    @property
    def retired(self) -> bool:
        """Whether its machine goes for good, though its document stays."""
        both = [each.lifecycle is Lifecycle.RETIRED for each in (self.old, self.new) if each is not None]
        return both == [False, True]

    @property
    def fate(self) -> Fate:
        if self.old is None or self.new is None:
            return Fate.ADDED if self.old is None else Fate.REMOVED
        return Fate.EDITED

    @property
    def pair(self) -> tuple[Digest | None, Digest | None]:
        return self.old.digest if self.old else None, self.new.digest if self.new else None


class BmcChange(Struct, frozen=True, kw_only=True):
    """A server whose BMC is another, new, or trusted otherwise: by it credentials go where they did not go before."""

    server: str
    comes: bool  # whether the server itself is new
    old: BmcAccess | None
    new: BmcAccess | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What a commit changes: all facts, each list in the order of its names."""

    first: bool  # there is no commit before
    servers: tuple[ServerChange, ...]
    unchanged: int
    before: int  # how many servers the old commit has
    after: int
    unknown: SharedChange | None  # what unknown machines boot; None: the same
    shared: SharedChange | None  # outputs, evidence, the base URL of the fleet; None: the same
    images: tuple[ImageChange, ...]
    areas: tuple[Area, ...]  # the whole fleet first
    documents: Mapping[Id, DocumentChange]
    bmcs: tuple[BmcChange, ...]  # servers whose BMC is another or new, or is trusted otherwise
    besides: tuple[Pair, ...]  # what is in no decision, and yet not what was looked at if it is another
    access: tuple[AccessChange, ...]  # settings of who may fetch
    disk_claims: tuple[str, ...]  # images that claim for the first time to write no disk, by name
    unknown_claims: tuple[str, ...]  # new servers that boot what claims to write no disk, and none did before
    lost: tuple[LostIdentity, ...]  # identities that machines had, sorted
    gained: tuple[GainedIdentity, ...]  # identities by which machines newly get install boots, sorted
    digest: Digest = field(init=False)  # of all that changes: an acknowledgement is bound to it

    def __post_init__(self) -> None:
        pairs: list[Pair] = [("server", *each.pair) for each in self.servers]
        pairs += (("unknown", *self.unknown.pair),) if self.unknown else ()
        pairs += (("shared", *self.shared.pair),) if self.shared else ()
        looked_at = [each for each in self.images if each.mutated or each.name in self.disk_claims]
        pairs += (("image", *image.pair) for image in looked_at)  # no decision need follow from it
        pairs += (("access", digest([each.field, each.old]), digest([each.field, each.new])) for each in self.access)
        pairs += self.besides
        # The decisions of two servers do not show all identities that one has from the other.
        pairs += (
            (each.why, digest([each.old, each.new]), digest([change.name, each.new]))
            for change in self.servers
            for each in change.reinstalls
            if each.why in _BESIDE_DECISIONS
        )
        object.__setattr__(self, "digest", digest_of(pairs))

    @property
    def nothing(self) -> bool:
        """Whether no decision changes, and so no published byte."""
        return not (self.servers or self.unknown or self.shared or self.access)

    @property
    def moved_bmcs(self) -> tuple[str, ...]:
        """The servers that were there and are reached, or trusted, at another BMC."""
        return tuple(each.server for each in self.bmcs if not each.comes)

    @property
    def extent(self) -> Extent:
        """How much that is, as guards count it."""
        return Extent(
            digest=self.digest,
            first=self.first,
            before=self.before,
            after=self.after,
            installs=len(self.of(Risk.INSTALL)),
            reinstalls=len(self.of(Risk.REINSTALL)),
            resets=len(self.of(Risk.RESET)),
            unknown=self.unknown is not None,
            mutated_images=sum(image.mutated for image in self.images),
            disk_claims=len(self.disk_claims),
            access=sum(each.widens for each in self.access),
            takeover=self.shared is not None and changes_ledger(self.shared),
            areas=self.areas,
            unknown_claims=self.unknown_claims,
            by_policy=tuple(
                each.new.server
                for each in self.of(Risk.REINSTALL)
                if each.old is not None and each.new is not None and may_be_installed(each.reinstalls)
            ),
            lost=self.lost,
            gained=self.gained,
            reinstalled=tuple(each.name for each in self.of(Risk.REINSTALL)) if self.gained else (),
        )

    def of(self, risk: Risk) -> tuple[ServerChange, ...]:
        """The servers whose change is of a class."""
        return tuple(change for change in self.servers if risk in change.risks)

    def having(self, fate: Fate) -> tuple[ServerChange, ...]:
        return tuple(change for change in self.servers if change.fate is fate)


def compare(
    old: Decisions | None,
    new: Decisions,
    old_repository: FleetRepository | None,
    new_repository: FleetRepository,
    touched: Touched | None = None,
    offered: Callable[[], frozenset[Digest]] | None = None,
) -> Changes:
    """Return what ``new`` changes. Without ``old``, it is the first commit, and all of it is new.

    ``touched`` is what can differ. None: everything. ``offered`` returns `claims_of` all decisions of ``old``. None:
    they are computed when needed.
    """
    shared = shared_change(old, new, old_repository, new_repository, touched.servers if touched else None)
    documents = changed_documents(old_repository, new_repository, touched.documents if touched else None)
    if touched is None or (shared is not None and changes_all_files(shared)):
        servers_before = old_repository.servers if old_repository is not None else {}
        sizes = Counter(label for each in servers_before.values() for label in labels_of(each))
        both = frozenset(servers_before.keys() | new_repository.servers.keys())
        touched = Touched(servers=both, documents=frozenset(), sizes=sizes)
    before = machines(old_repository, touched.servers) if old_repository else {}
    after = machines(new_repository, touched.servers)
    if old is not None and offered is None:
        offered = partial(_offered, old)
    claims = DiskClaims(documents, offered, old_repository, new_repository)
    mutated = {key.name for key in documents if key.kind == "BootImage" and is_mutated(documents[key])}
    pairs = matched(before, after)
    whose_before, whose = (
        _acted_for(old_repository, (was for was, _ in pairs)),
        _acted_for(new_repository, (now for _, now in pairs)),
    )
    was_described, is_described = (
        _described(old, old_repository, before.values()),
        _described(new, new_repository, after.values()),
    )
    owners = {mark: name for name, each in was_described.items() for mark in each.identities()}
    servers, gains, losses = [], list[GainedIdentity](), list[LostIdentity]()
    for was, is_now in pairs:
        before_it, after_it = was_described.get(was or ""), is_described.get(is_now or "")
        others = of_others(installing(after_it), owners, was)
        if old is not None and after_it is not None:
            gains += gained(before_it, after_it, others)
        if before_it is not None:
            losses += lost(before_it, after_it)
        old_decision = before_it.decision if before_it is not None else None
        new_decision = after_it.decision if after_it is not None else None
        site_before, site = whose_before.get(was or ""), whose.get(is_now or "")
        is_moved = site_before is not None and site is not None and site_before.ledger != site.ledger
        moved_to = site.name if site is not None and is_moved else None
        change = _server_change(old_decision, new_decision, mutated, shared, others, moved_to, claims)
        if change is not None:
            servers.append(change)
    by_name = {machine.name: machine.bmc for machine in after.values()}
    was_at = {machine.name: machine.bmc for machine in before.values()}
    reached = [(was, was_at.get(was or ""), now, by_name[now]) for was, now in pairs if now]
    reached = [each for each in reached if each[1] != each[3]]
    untouched = len(old_repository.servers) - len(before) if old_repository else 0
    return Changes(
        first=old is None,
        servers=tuple(servers),
        unchanged=untouched + len(pairs) - len(servers),
        before=untouched + len(before),
        after=len(new_repository.servers),
        unknown=unknown_change(old, new),
        shared=shared,
        images=tuple(image_changes(documents, (old, new), (old_repository, new_repository), touched.servers)),
        areas=_areas(pairs, servers, old_repository, new_repository, touched.sizes),
        documents=documents,
        bmcs=tuple(BmcChange(server=now, comes=was is None, old=old, new=new) for was, old, now, new in reached),
        access=access_changes(old_repository.fleet.spec, new_repository.fleet.spec) if old_repository else (),
        disk_claims=tuple(sorted(claims.images)),
        unknown_claims=tuple(
            sorted(each.new.server for each in servers if each.old is None and each.new and claims.is_unknown(each.new))
        ),
        lost=tuple(sorted(losses)),
        gained=tuple(sorted(gains, key=lambda each: (*each.mark, each.server))),
        besides=tuple(("bmc", reached_at(was, before), reached_at(now, after)) for was, before, now, after in reached),
    )


def _offered(decisions: Decisions) -> frozenset[Digest]:
    return frozenset(claim for each in decisions.servers.values() for claim in claims_of(each))


def _acted_for(repository: FleetRepository | None, names: Iterable[str | None]) -> dict[str, Site]:
    """The site of each of these servers that is at one with an instance of its own."""
    if repository is None or all(site.ledger is None for site in repository.fleet.spec.sites):
        return {}
    selection = sites(repository)
    found = {name: selection.of(repository.servers[name]) for name in names if name is not None}
    return {name: selected[0] for name, selected in found.items() if selected and selected[0].ledger is not None}


def _server_change(
    old: Decision | None,
    new: Decision | None,
    mutated: set[str],
    shared: SharedChange | None,
    others: tuple[Reinstall, ...],
    moved_to: str | None,
    claims: DiskClaims,
) -> ServerChange | None:
    both = (old, new) if old is not None and new is not None else None
    same = both is not None and both[0].digest == both[1].digest
    all_files = shared is not None and changes_all_files(shared)
    if same and not all_files and not others:  # addresses, for example, are no part of a decision
        return None
    asked = reinstalls(*both) if both is not None and not same else ()
    asked += others
    asked += claims.newly_made(old, new) if new is not None and not same else ()
    found = risks(old, new, asked) if not same or others else frozenset()
    if both is not None and all_files:
        found |= {Risk.OUTPUTS}
    elif both is not None and not asked and Risk.RESET not in found and is_less(*both):
        found |= {Risk.LESS}
    if not same and mutated & {*booted(old), *booted(new)}:
        found |= {Risk.MUTATED_IMAGE}
    unknown = becomes_unknown(old, new, moved_to) if not same else ()
    if unknown:
        found |= {Risk.BECOMES_UNKNOWN}
    return ServerChange(
        old=old, new=new, risks=found, reinstalls=asked, effects=effects(old, new, found, asked), unknown=unknown
    )


_BESIDE_DECISIONS: Final = frozenset({Why.ADDRESS, Why.UUID, Why.NAME, Why.NID, Why.SERIAL})  # identities


def _described(
    decisions: Decisions | None, repository: FleetRepository | None, machines: Iterable[Machine]
) -> dict[str, Described]:
    if decisions is None or repository is None:
        return {}
    return {
        each.name: Described(
            decisions.servers[each.name],
            each,
            decisions.networks[each.name],
            repository.servers[each.name].metadata.labels,
            decisions.outputs,
        )
        for each in machines
    }


# Groups of servers


def _areas(
    pairs: Iterable[tuple[str | None, str | None]],
    servers: Iterable[ServerChange],
    old: FleetRepository | None,
    new: FleetRepository,
    sizes: Mapping[Label, int],
) -> tuple[Area, ...]:
    """The whole fleet, then each site and each role; a server that moves from one to another counts in both."""
    counts: dict[Label | None, dict[str, int]] = {None: {"size": len(old.servers) if old is not None else 0}}
    counts.update((label, {"size": size}) for label, size in sizes.items())

    def count(what: str, labels: Iterable[Label | None]) -> None:
        for label in labels:
            group = counts.setdefault(label, {})
            group[what] = group.get(what, 0) + 1

    def labels(repository: FleetRepository | None, server: str | None) -> set[Label]:
        if repository is None or server is None:
            return set()
        return set(labels_of(repository.servers[server]))

    changed = {change.new.server for change in servers if change.new is not None}
    for was, is_now in pairs:
        if was is not None and is_now in changed:  # whoever moves without a change dilutes no share
            count("size", labels(new, is_now) - labels(old, was))
    for change in servers:
        before = change.old.server if change.old else None
        after = change.new.server if change.new else None
        touched = {None, *labels(old, before), *labels(new, after)}
        what = "less" if Risk.LESS in change.risks else "changed"
        if change.fate is Fate.ADDED:
            what = "added"
        elif change.fate is Fate.REMOVED or change.retired:
            what = "removed"
        count(what, touched)
        if change.reinstalls:
            count("reinstalled", touched)
    return areas_of(counts)


class Since(StrEnum):
    """Since when nothing is known of a server."""

    CAME = "came"  # with a provision number that it may have been installed with elsewhere
    REPLACES = "replaces"  # a board that no document has any more: what stands in a ledger of it only that knows
    BOARD = "board"  # another UUID, and its document does not say which one it replaces
    NOT_RAISED = "not raised"  # the document says so, and asks for no installation
    MOVED = "moved"  # another instance acts for it, which knows nothing of it
    OVERWRITTEN = "overwritten"  # a maintenance writes its disks


class BecomesUnknown(NamedTuple):
    """One way in which it becomes unknown whether a server is provisioned."""

    since: Since
    what: str  # the provision number, the UUID before, the site that it comes to, or the maintenance


def becomes_unknown(
    old: Decision | None, new: Decision | None, moved_to: str | None = None
) -> tuple[BecomesUnknown, ...]:
    """Return every way in which a server becomes unknown, as far as two decisions show it.

    A raised provision number is pending whatever was before. ``moved_to`` is a site with an instance of its own, to
    which the server comes from another such site.
    """
    if new is None:
        return ()
    found = [BecomesUnknown(Since.MOVED, moved_to)] if moved_to is not None else []
    if old is None and new.replaces is not None:
        found.append(BecomesUnknown(Since.REPLACES, new.replaces))
    elif old is None and new.provision > NEW_UP_TO:
        found.append(BecomesUnknown(Since.CAME, str(new.provision)))
    elif old is not None and old.uuid != new.uuid and new.replaces != old.uuid:
        found.append(BecomesUnknown(Since.BOARD, old.uuid))
    elif old is not None and old.uuid != new.uuid and new.provision <= old.provision:
        found.append(BecomesUnknown(Since.NOT_RAISED, str(new.provision)))
    if new.stopped or (new.policy is not None and new.policy.network_boot is NetworkBoot.ALWAYS):
        return tuple(found)  # nothing is written, or nothing is asked of records
    before = {each.name: each for each in old.maintenances} if old is not None else {}
    for each in new.maintenances:
        if each.boot is not None and each.boot.writes_disk and before.get(each.name) != each:
            found.append(BecomesUnknown(Since.OVERWRITTEN, each.name))
    return tuple(found)


MatchingPair = tuple[str | None, str | None]  # a server's name before and after; None: it was not there


def matched(old: Mapping[SystemUuid, Machine], new: Mapping[SystemUuid, Machine]) -> list[MatchingPair]:
    """Every server of both commits once, in the order of its name (its new one, where it has one).

    A UUID says most, then what a document says that it replaces. What is left is matched by the marks that a new
    motherboard keeps, the surest first.
    """
    pairs = [(machine.name, new[uuid].name) for uuid, machine in old.items() if uuid in new]
    gone = {uuid: machine for uuid, machine in old.items() if uuid not in new}
    come = {uuid: machine for uuid, machine in new.items() if uuid not in old}
    for uuid, machine in list(come.items()):
        if machine.replaces is not None and machine.replaces in gone:
            pairs.append((gone.pop(machine.replaces).name, come.pop(uuid).name))
    for kind in ("name", "MAC", "serial", "BMC"):
        whose = {mark: uuid for uuid, machine in gone.items() for mark in _marks(machine, kind)}
        for uuid, machine in list(come.items()):
            before = next((whose[mark] for mark in _marks(machine, kind) if mark in whose), None)
            if before in gone:
                pairs.append((gone.pop(before).name, come.pop(uuid).name))
    found: list[MatchingPair] = [*pairs, *((machine.name, None) for machine in gone.values())]
    found += ((None, machine.name) for machine in come.values())
    return sorted(found, key=lambda pair: (pair[1] or pair[0] or "", pair[0] or ""))


def _marks(machine: Machine, kind: str) -> Iterator[str]:
    return (value for what, value in machine.marks() if what == kind)


class EffectKind(StrEnum):
    ADDED = "Added"
    CHANGED = "Changed"
    REMOVED = "Removed"


class Change(Struct, frozen=True, kw_only=True):
    """One field of a decision, as JSON has it: policy.boot.image, maintenances.repair.window.end."""

    field: str
    old: Any  # None: it was not there
    new: Any  # None: it is gone


class ServerEffect(Struct, frozen=True, kw_only=True):
    """What a commit changes for one server."""

    server: str  # its name from then on; the last one where it is removed
    kind: EffectKind
    changes: tuple[Change, ...]


def all_effects(old: Mapping[str, Decision], new: Mapping[str, Decision]) -> dict[SystemUuid, ServerEffect]:
    """What differs between two commits' decisions, by the servers' UUIDs: a renamed server is the same one."""
    before, after = ({decision.uuid: decision for decision in side.values()} for side in (old, new))
    found = {}
    for uuid in sorted(before.keys() | after.keys()):
        was, is_now = before.get(uuid), after.get(uuid)
        last = is_now or before[uuid]
        if was is not None and is_now is not None and was.digest == is_now.digest:
            continue
        kind = EffectKind.ADDED if was is None else EffectKind.REMOVED if is_now is None else EffectKind.CHANGED
        changes = _changes("", facts(was) or {}, facts(is_now) or {})
        found[uuid] = ServerEffect(server=last.server, kind=kind, changes=tuple(changes))
    return found


def _changes(path: str, old: Any, new: Any) -> Iterator[Change]:
    """The fields that differ, in the order of their names; what is there on one side only comes whole."""
    if _are_named(old) or _are_named(new):  # so that one that is added moves none of the others
        old, new = ({each["name"]: each for each in side or ()} for side in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _changes(f"{path}.{key}" if path else key, old.get(key), new.get(key))
    elif old != new:
        yield Change(field=path, old=old, new=new)


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, dict) and "name" in each for each in value)


class Side(Struct, frozen=True, kw_only=True):
    """One of the two revisions: how it was named, what it is, and what it says, if that holds together."""

    named: str
    revision: str
    decisions: Decisions | None
    repository: FleetRepository | None
    problems: tuple[Problem, ...]

    @property
    def short(self) -> str:
        """The revision in few characters, if it says more than the name."""
        parts = (part[:12] if len(part) == 40 else part for part in self.revision.split())
        return "" if self.revision == self.named else " ".join(parts)
