"""Decision changes: compare the decisions of two commits for each server."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import BmcAccess, IdentityKey, LostIdentity, Machine, list_machines
from gitboot.jsonio import Digest, compute_digest, to_json_value
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.fleet import Output, Site
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Lifecycle
from gitboot.problems import Problem
from gitboot.resolve.fleet_decisions import build_site_index
from gitboot.resolve.install_attempts import HIGHEST_NEW_PROVISION
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.document_changes import (
    AccessChange,
    ChangeKind,
    DocumentChange,
    ImageChange,
    SharedChange,
    affects_all_files,
    affects_ledger,
    compare_access,
    compare_documents,
    compare_shared_files,
    compare_unknown_boots,
    find_image_changes,
    is_mutated,
    list_images,
)
from gitboot.review.guards import (
    Area,
    ChangeScope,
    Extent,
    Label,
    Pair,
    build_areas,
    digest_bmc_access,
    digest_pairs,
    list_labels,
)
from gitboot.review.harmless_changes import is_harmless
from gitboot.review.reinstalls import (
    NODE_REASONS,
    DescribedServer,
    DiskClaims,
    GainedIdentity,
    Reinstall,
    ReinstallReason,
    find_gained_identities,
    find_identity_reinstalls,
    find_lost_identities,
    find_reinstalls,
    list_claims,
    list_install_identities,
    list_node_identities,
    may_be_already_installed,
)
from gitboot.review.risks import Effect, Risk, find_effects, find_risks

MatchingPair = tuple[str | None, str | None]  # old and new name of a server; None: the server is not in this commit


class UnknownCause(StrEnum):
    """A cause that can prevent gitboot from determining whether a server is provisioned."""

    NEW_SERVER = "came"  # the server is new, and may have been installed elsewhere
    # the server replaces a board without a Server document; only the ledger may contain the board
    REPLACES = "replaces"
    BOARD = "board"  # the UUID of the server changed, and its document does not contain the old UUID
    NOT_RAISED = "not raised"  # the server replaces a board, but its provision number was not raised
    MOVED = "moved"  # the server moves to an instance without a record of the server
    OVERWRITTEN = "overwritten"  # a maintenance writes the disks of the server


class UnknownReason(NamedTuple):
    """The reason why gitboot cannot determine whether a server is provisioned, as a cause with a detail."""

    cause: UnknownCause
    detail: str  # the provision number, the old UUID, the new site, or the maintenance


class ServerChange(Struct, frozen=True, kw_only=True):
    """A server that was added, removed or changed."""

    old: Decision | None
    new: Decision | None
    risks: frozenset[Risk]
    reinstalls: tuple[Reinstall, ...]  # the reasons why the new commit can reinstall the server
    effects: tuple[Effect, ...]
    # the reasons why gitboot cannot determine whether the server is provisioned
    unknown: tuple[UnknownReason, ...] = ()

    @property
    def name(self) -> str:
        """The name in the new commit, or the name in the old commit if the server was removed."""
        decision = self.new or self.old
        assert decision is not None  # noqa: S101 - one of the two is there
        return decision.server

    @property
    def renamed(self) -> bool:
        return self.old is not None and self.new is not None and self.old.server != self.new.server

    @property
    def retired(self) -> bool:
        """Return whether the server becomes Retired. The document of a Retired server stays in the fleet."""
        if self.old is None or self.new is None:
            return False
        return self.old.lifecycle is not Lifecycle.RETIRED and self.new.lifecycle is Lifecycle.RETIRED

    @property
    def fate(self) -> ChangeKind:
        if self.old is None or self.new is None:
            return ChangeKind.ADDED if self.old is None else ChangeKind.REMOVED
        return ChangeKind.EDITED

    @property
    def pair(self) -> tuple[Digest | None, Digest | None]:
        return self.old.digest if self.old else None, self.new.digest if self.new else None


class BmcChange(Struct, frozen=True, kw_only=True):
    """A server whose BMC credentials would be sent to a new recipient.

    The BMC is new, or its address or the settings for its certificate changed.
    """

    server: str
    is_new_server: bool  # whether the commit adds the server
    old: BmcAccess | None
    new: BmcAccess | None


_IDENTITY_REASONS: Final = frozenset(
    {ReinstallReason.ADDRESS, ReinstallReason.UUID, ReinstallReason.NAME, ReinstallReason.NID, ReinstallReason.SERIAL}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """All changes between two commits. Each list is sorted by name."""

    first: bool  # whether there is no old commit
    servers: tuple[ServerChange, ...]
    unchanged: int
    before: int  # the number of servers in the old commit
    after: int
    unknown: SharedChange | None  # the change in the boots of unknown machines; None: there is no change
    shared: SharedChange | None  # changed settings such as outputs, evidence and base URL; None: there is no change
    images: tuple[ImageChange, ...]
    areas: tuple[Area, ...]  # areas of the fleet; the first area is the whole fleet
    documents: Mapping[Id, DocumentChange]
    bmcs: tuple[BmcChange, ...]  # servers with a new BMC, or whose BMC has another address or trust
    other_pairs: tuple[Pair, ...]  # changes outside of decisions that the digest must also cover
    access: tuple[AccessChange, ...]  # changed settings that control which clients may fetch
    disk_claims: tuple[str, ...]  # images with the new claim that they do not write disks
    # new servers whose boot is new in the fleet and claims that it does not write disks
    unknown_claims: tuple[str, ...]
    lost_identities: tuple[LostIdentity, ...]  # sorted identities that machines no longer have
    gained_identities: tuple[GainedIdentity, ...]  # sorted identities that newly lead to install boots
    digest: Digest = field(init=False)  # the digest of all changes; an acknowledgement contains this digest

    def __post_init__(self) -> None:
        pairs: list[Pair] = [("server", *change.pair) for change in self.servers]
        if self.unknown is not None:
            pairs.append(("unknown", *self.unknown.pair))
        if self.shared is not None:
            pairs.append(("shared", *self.shared.pair))
        for image in self.images:
            if image.mutated or image.name in self.disk_claims:
                pairs.append(("image", *image.pair))  # include this even if no decision changed
        for access in self.access:
            old, new = compute_digest([access.field, access.old]), compute_digest([access.field, access.new])
            pairs.append(("access", old, new))
        pairs += self.other_pairs
        # Decisions do not contain all identities that one server can take over from another server.
        pairs += (
            (
                reinstall.why,
                compute_digest([reinstall.old, reinstall.new]),
                compute_digest([change.name, reinstall.new]),
            )
            for change in self.servers
            for reinstall in change.reinstalls
            if reinstall.why in _IDENTITY_REASONS
        )
        object.__setattr__(self, "digest", digest_pairs(pairs))

    @property
    def is_empty(self) -> bool:
        """Return whether gitboot would publish the same files, because no decision changed."""
        return not (self.servers or self.unknown or self.shared or self.access)

    @property
    def moved_bmcs(self) -> tuple[str, ...]:
        """The servers in both commits for which the BMC's address or the settings for its certificate changed."""
        return tuple(each.server for each in self.bmcs if not each.is_new_server)

    @property
    def extent(self) -> Extent:
        """The numbers by which guards judge the commit."""
        return Extent(
            digest=self.digest,
            is_first=self.first,
            before=self.before,
            after=self.after,
            installs=len(self.filter_by_risk(Risk.INSTALL)),
            reinstalls=len(self.reinstallable_servers),
            resets=len(self.filter_by_risk(Risk.RESET)),
            changes_unknown_boots=self.unknown is not None,
            mutated_images=sum(image.mutated for image in self.images),
            disk_claims=len(self.disk_claims),
            access=sum(each.widens for each in self.access),
            takeover=self.shared is not None and affects_ledger(self.shared),
            areas=self.areas,
            unknown_claims=self.unknown_claims,
            by_policy=tuple(
                each.new.server
                for each in self.reinstallable_servers
                if each.old is not None and each.new is not None and may_be_already_installed(each.reinstalls)
            ),
            lost_identities=self.lost_identities,
            gained_identities=self.gained_identities,
            reinstalled_servers=tuple(each.name for each in self.reinstallable_servers)
            if self.gained_identities
            else (),
        )

    @property
    def reinstallable_servers(self) -> tuple[ServerChange, ...]:
        """The changed servers that the new commit can reinstall, judged from the two commits alone."""
        return tuple(change for change in self.servers if change.reinstalls)

    def filter_by_risk(self, risk: Risk) -> tuple[ServerChange, ...]:
        """Return the server changes with the given risk."""
        return tuple(change for change in self.servers if risk in change.risks)

    def filter_by_fate(self, fate: ChangeKind) -> tuple[ServerChange, ...]:
        return tuple(change for change in self.servers if change.fate is fate)


class ReviewedRevision(Struct, frozen=True, kw_only=True):
    """One of the two revisions that a review compares. An invalid revision has problems instead of decisions."""

    named: str
    revision: str
    decisions: Decisions | None
    repository: FleetRepository | None
    problems: tuple[Problem, ...]

    @property
    def short(self) -> str:
        """The abbreviated revision, or "" if `named` is already this text."""
        parts = (part[:12] if len(part) == 40 else part for part in self.revision.split())
        return "" if self.revision == self.named else " ".join(parts)


def compare_decisions(
    old: Decisions | None,
    new: Decisions,
    old_repository: FleetRepository | None,
    new_repository: FleetRepository,
    touched: ChangeScope | None = None,
    get_offered_claims: Callable[[], frozenset[Digest]] | None = None,
) -> Changes:
    """Return the changes between two commits. Without an old commit, everything is new.

    ``touched`` limits the comparison to servers and documents that can differ. ``get_offered_claims`` returns the
    result of `list_claims` for all old decisions. Without this function, gitboot computes the claims when it needs
    them.
    """
    shared = compare_shared_files(old, new, old_repository, new_repository, touched.servers if touched else None)
    documents = compare_documents(old_repository, new_repository, touched.documents if touched else None)
    if touched is None or (shared is not None and affects_all_files(shared)):
        touched = _list_all_servers(old_repository, new_repository)
    old_machines = list_machines(old_repository, touched.servers) if old_repository else {}
    new_machines = list_machines(new_repository, touched.servers)
    pairs = match_servers(old_machines, new_machines)
    if old is not None and get_offered_claims is None:
        get_offered_claims = partial(_collect_claims, old)
    claims = DiskClaims(documents, get_offered_claims, old_repository, new_repository)
    old_servers = _describe_servers(old, old_repository, old_machines.values())
    new_servers = _describe_servers(new, new_repository, new_machines.values())
    comparer = _ServerComparer(
        is_first=old is None,
        old_servers=old_servers,
        new_servers=new_servers,
        old_sites=_find_instance_sites(old_repository, (old_name for old_name, _ in pairs)),
        new_sites=_find_instance_sites(new_repository, (new_name for _, new_name in pairs)),
        owners=_map_owners(old_servers),
        node_owners=_find_node_owners(old, old_repository, new_servers.values()),
        mutated_images={key.name for key in documents if key.kind == "BootImage" and is_mutated(documents[key])},
        shared_change=shared,
        claims=claims,
    )
    servers, gained, lost = list[ServerChange](), list[GainedIdentity](), list[LostIdentity]()
    for old_name, new_name in pairs:
        comparison = comparer.compare(old_name, new_name)
        gained += comparison.gained
        lost += comparison.lost
        if comparison.change is not None:
            servers.append(comparison.change)
    bmcs, bmc_pairs = _find_bmc_changes(pairs, old_machines.values(), new_machines.values())
    untouched = len(old_repository.servers) - len(old_machines) if old_repository else 0
    return Changes(
        first=old is None,
        servers=tuple(servers),
        unchanged=untouched + len(pairs) - len(servers),
        before=untouched + len(old_machines),
        after=len(new_repository.servers),
        unknown=compare_unknown_boots(old, new),
        shared=shared,
        images=tuple(find_image_changes(documents, (old, new), (old_repository, new_repository), touched.servers)),
        areas=_count_areas(pairs, servers, old_repository, new_repository, touched.sizes),
        documents=documents,
        bmcs=bmcs,
        access=compare_access(old_repository.fleet.spec, new_repository.fleet.spec) if old_repository else (),
        disk_claims=tuple(sorted(claims.images)),
        unknown_claims=tuple(
            sorted(
                each.new.server for each in servers if each.old is None and each.new and claims.has_new_claim(each.new)
            )
        ),
        lost_identities=tuple(sorted(lost)),
        gained_identities=tuple(sorted(gained, key=lambda each: (*each.identity, each.server))),
        other_pairs=bmc_pairs,
    )


def _list_all_servers(old: FleetRepository | None, new: FleetRepository) -> ChangeScope:
    old_servers = old.servers if old is not None else {}
    return ChangeScope(
        servers=frozenset(old_servers.keys() | new.servers.keys()),
        documents=frozenset(),
        sizes=Counter(label for server in old_servers.values() for label in list_labels(server)),
    )


def _find_bmc_changes(
    pairs: Iterable[MatchingPair], old_machines: Iterable[Machine], new_machines: Iterable[Machine]
) -> tuple[tuple[BmcChange, ...], tuple[Pair, ...]]:
    """Return the changed BMCs, and for each of them the pair that the digest of the changes covers."""
    old_access = {machine.name: machine.bmc for machine in old_machines}
    new_access = {machine.name: machine.bmc for machine in new_machines}
    changes, digests = list[BmcChange](), list[Pair]()
    for old_name, new_name in pairs:
        old, new = old_access.get(old_name or ""), new_access.get(new_name or "")
        if new_name is not None and old != new:
            changes.append(BmcChange(server=new_name, is_new_server=old_name is None, old=old, new=new))
            digests.append(("bmc", digest_bmc_access(old_name, old), digest_bmc_access(new_name, new)))
    return tuple(changes), tuple(digests)


def _collect_claims(decisions: Decisions) -> frozenset[Digest]:
    return frozenset(claim for each in decisions.servers.values() for claim in list_claims(each))


def _map_owners(servers: Mapping[str, DescribedServer]) -> dict[IdentityKey, str]:
    """Map the identities that only one server can have to the names of servers."""
    return {
        identity: name
        for name, server in servers.items()
        for identity in server.list_identities()
        if identity[0] not in NODE_REASONS
    }


def _find_node_owners(
    old: Decisions | None, old_repository: FleetRepository | None, new_servers: Iterable[DescribedServer]
) -> dict[str | None, dict[IdentityKey, str]]:
    """Return the old servers that have a name, xname or nid of a new server, by ledger and identity.

    The old servers include unchanged servers, which may share these identities with a changed server. The ledger is
    None for servers whose instance is unknown. An instance serves only its own servers, so servers of two instances can
    have the same identities. The result is empty unless the old commit publishes files for OpenCHAMI.
    """
    if old is None or old_repository is None or Output.BSS not in old.outputs:
        return {}
    wanted = {
        identity for server in new_servers for identity in list_node_identities(server.machine.name, server.labels)
    }
    shared = [
        (identity, name)
        for name, server in old_repository.servers.items()
        for identity in list_node_identities(name, server.metadata.labels)
        if identity in wanted
    ]
    sites = _find_instance_sites(old_repository, {name for _, name in shared})
    owners: dict[str | None, dict[IdentityKey, str]] = {}
    for identity, name in shared:
        owners.setdefault(sites[name].ledger if name in sites else None, {})[identity] = name
    return owners


def _find_instance_sites(repository: FleetRepository | None, names: Iterable[str | None]) -> dict[str, Site]:
    """Return a mapping from server names to sites, for the servers whose site has its own instance."""
    if repository is None or all(site.ledger is None for site in repository.fleet.spec.sites):
        return {}
    index = build_site_index(repository)
    sites = {name: index.find(repository.servers[name]) for name in names if name is not None}
    return {name: found[0] for name, found in sites.items() if found and found[0].ledger is not None}


class _ServerComparison(NamedTuple):
    change: ServerChange | None  # None: the server did not change
    gained: tuple[GainedIdentity, ...] = ()
    lost: tuple[LostIdentity, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _ServerComparer:
    """Compares single servers of two commits."""

    is_first: bool  # whether there is no old commit
    old_servers: Mapping[str, DescribedServer]  # by name, as the following mappings
    new_servers: Mapping[str, DescribedServer]
    old_sites: Mapping[str, Site]  # the sites that have their own instance
    new_sites: Mapping[str, Site]
    owners: dict[IdentityKey, str]  # the names of old servers
    node_owners: Mapping[str | None, dict[IdentityKey, str]]  # the same for identities of nodes, by ledger
    mutated_images: Collection[str]
    shared_change: SharedChange | None
    claims: DiskClaims

    def compare(self, old_name: str | None, new_name: str | None) -> _ServerComparison:
        """Compare a server that has these names in the two commits."""
        old, new = self.old_servers.get(old_name or ""), self.new_servers.get(new_name or "")
        has_new_claim = old_name is None and new is not None and self.claims.has_new_claim(new.decision)
        identities = list_install_identities(new, has_new_claim=has_new_claim)
        reinstalls = find_identity_reinstalls(identities, self._find_owners(new_name), old)
        gained: tuple[GainedIdentity, ...] = ()
        if new is not None and not self.is_first:
            gained = tuple(find_gained_identities(old, new, reinstalls, has_new_claim=has_new_claim))
        return _ServerComparison(
            change=self._build_change(
                old.decision if old is not None else None,
                new.decision if new is not None else None,
                reinstalls,
                self._find_new_site(old_name, new_name),
            ),
            gained=gained,
            lost=tuple(find_lost_identities(old, new)) if old is not None else (),
        )

    def _find_owners(self, new_name: str | None) -> Mapping[IdentityKey, str]:
        site = self.new_sites.get(new_name or "")
        ledgers = (site.ledger if site is not None else None, None)
        return ChainMap(self.owners, *(self.node_owners[ledger] for ledger in ledgers if ledger in self.node_owners))

    def _find_new_site(self, old_name: str | None, new_name: str | None) -> str | None:
        """Return the new site of a server that moves between sites with their own instances, or None."""
        old, new = self.old_sites.get(old_name or ""), self.new_sites.get(new_name or "")
        return new.name if old is not None and new is not None and old.ledger != new.ledger else None

    def _build_change(
        self,
        old: Decision | None,
        new: Decision | None,
        identity_reinstalls: tuple[Reinstall, ...],
        new_site: str | None,
    ) -> ServerChange | None:
        both = (old, new) if old is not None and new is not None else None
        is_same = both is not None and both[0].digest == both[1].digest
        all_files = self.shared_change is not None and affects_all_files(self.shared_change)
        # only fields that are not part of the decision differ, such as addresses
        if is_same and not all_files and not identity_reinstalls:
            return None
        reinstalls = find_reinstalls(*both) if both is not None and not is_same else ()
        reinstalls += identity_reinstalls
        if new is not None and not is_same:
            reinstalls += self.claims.find_new_claims(old, new)
        risks = find_risks(old, new, reinstalls) if not is_same or identity_reinstalls else frozenset()
        if both is not None and all_files:
            risks |= {Risk.OUTPUTS}
        elif both is not None and not reinstalls and Risk.RESET not in risks and is_harmless(*both):
            risks |= {Risk.HARMLESS}
        if not is_same and not {*list_images(old), *list_images(new)}.isdisjoint(self.mutated_images):
            risks |= {Risk.MUTATED_IMAGE}
        unknown = find_unknown_reasons(old, new, new_site) if not is_same else ()
        if unknown:
            risks |= {Risk.BECOMES_UNKNOWN}
        return ServerChange(
            old=old,
            new=new,
            risks=risks,
            reinstalls=reinstalls,
            effects=find_effects(old, new, risks, reinstalls),
            unknown=unknown,
        )


def _describe_servers(
    decisions: Decisions | None, repository: FleetRepository | None, machines: Iterable[Machine]
) -> dict[str, DescribedServer]:
    if decisions is None or repository is None:
        return {}
    return {
        machine.name: DescribedServer(
            decisions.servers[machine.name],
            machine,
            decisions.networks[machine.name],
            repository.servers[machine.name].metadata.labels,
            decisions.outputs,
        )
        for machine in machines
    }


# Numbers of changes in groups of servers


def _count_areas(
    pairs: Iterable[MatchingPair],
    servers: Iterable[ServerChange],
    old: FleetRepository | None,
    new: FleetRepository,
    sizes: Mapping[Label, int],
) -> tuple[Area, ...]:
    """Count the changes in the whole fleet, and then in each site and each role.

    If a server moves to another site or role, it is counted in both the old and the new one.
    """
    counts: dict[Label | None, Counter[str]] = {label: Counter(size=size) for label, size in sizes.items()}
    counts[None] = Counter(size=len(old.servers) if old is not None else 0)

    def increment(field_name: str, labels: Iterable[Label | None]) -> None:
        for label in labels:
            counts.setdefault(label, Counter())[field_name] += 1

    def labels(repository: FleetRepository | None, server: str | None) -> set[Label]:
        return set(list_labels(repository.servers[server])) if repository is not None and server is not None else set()

    changed = {change.new.server for change in servers if change.new is not None}
    for old_name, new_name in pairs:
        # count the server here too, so that a server that only moves does not lower the percentage
        if old_name is not None and new_name in changed:
            increment("size", labels(new, new_name) - labels(old, old_name))
    for change in servers:
        before = change.old.server if change.old else None
        touched = {None, *labels(old, before), *labels(new, change.new.server if change.new else None)}
        field_name = "less" if Risk.HARMLESS in change.risks else "changed"
        if change.fate is ChangeKind.ADDED:
            field_name = "added"
        elif change.fate is ChangeKind.REMOVED or change.retired:
            field_name = "removed"
        increment(field_name, touched)
        if change.reinstalls:
            increment("reinstalled", touched)
    return build_areas(counts)


# Reasons why a state becomes unknown


def find_unknown_reasons(
    old: Decision | None, new: Decision | None, new_site: str | None = None
) -> tuple[UnknownReason, ...]:
    """Compare two decisions, and return the reasons why gitboot cannot determine whether the server is provisioned.

    A server whose provision number was raised always counts as pending. ``new_site`` is the server's new site if the
    server moves between sites with their own instances.
    """
    if new is None:
        return ()
    reasons = [UnknownReason(UnknownCause.MOVED, new_site)] if new_site is not None else []
    if old is None and new.replaces is not None:
        reasons.append(UnknownReason(UnknownCause.REPLACES, new.replaces))
    elif old is None and new.provision > HIGHEST_NEW_PROVISION:
        reasons.append(UnknownReason(UnknownCause.NEW_SERVER, str(new.provision)))
    elif old is not None and old.uuid != new.uuid and new.replaces != old.uuid:
        reasons.append(UnknownReason(UnknownCause.BOARD, old.uuid))
    elif old is not None and old.uuid != new.uuid and new.provision <= old.provision:
        reasons.append(UnknownReason(UnknownCause.NOT_RAISED, str(new.provision)))
    if new.stopped or (new.policy is not None and new.policy.network_boot is NetworkBoot.ALWAYS):
        return tuple(reasons)  # gitboot serves no install boot, or the policy ignores records
    old_maintenances = {each.name: replace(each, before=None) for each in old.maintenances} if old is not None else {}
    for maintenance in new.maintenances:
        writes_disk = maintenance.boot is not None and maintenance.boot.writes_disk
        if writes_disk and old_maintenances.get(maintenance.name) != replace(maintenance, before=None):
            reasons.append(UnknownReason(UnknownCause.OVERWRITTEN, maintenance.name))
    return tuple(reasons)


# Pairs of servers


def match_servers(old: Mapping[SystemUuid, Machine], new: Mapping[SystemUuid, Machine]) -> list[MatchingPair]:
    """Match the servers of two commits.

    Return each server once. Sort the servers by their new names, and removed servers by their old names. Servers match
    by UUID, or by the UUID in the field ``replaces``. The remaining servers match by identities that a server can keep
    when its motherboard is replaced: name, MAC address, serial number and BMC.
    """
    pairs = [(machine.name, new[uuid].name) for uuid, machine in old.items() if uuid in new]
    removed = {uuid: machine for uuid, machine in old.items() if uuid not in new}
    added = {uuid: machine for uuid, machine in new.items() if uuid not in old}
    for uuid, machine in list(added.items()):
        if machine.replaces is not None and machine.replaces in removed:
            pairs.append((removed.pop(machine.replaces).name, added.pop(uuid).name))
    for kind in ("name", "MAC", "serial", "BMC"):
        owners = {value: uuid for uuid, machine in removed.items() for value in _list_identities(machine, kind)}
        for uuid, machine in list(added.items()):
            old_uuid = next((owners[value] for value in _list_identities(machine, kind) if value in owners), None)
            if old_uuid in removed:
                pairs.append((removed.pop(old_uuid).name, added.pop(uuid).name))
    all_pairs: list[MatchingPair] = [*pairs, *((machine.name, None) for machine in removed.values())]
    all_pairs += ((None, machine.name) for machine in added.values())
    return sorted(all_pairs, key=lambda pair: (pair[1] or pair[0] or "", pair[0] or ""))


def _list_identities(machine: Machine, kind: str) -> Iterator[str]:
    return (value for key_kind, value in machine.list_keys() if key_kind == kind)


# Changed fields of decisions


class EffectKind(StrEnum):
    ADDED = "Added"
    CHANGED = "Changed"
    REMOVED = "Removed"


class ValueChange(Struct, frozen=True, kw_only=True):
    """A changed field of a decision.

    The field's name is its JSON path, such as policy.boot.image or maintenances.repair.window.end.
    """

    field: str
    old: Any  # None: the field is absent
    new: Any  # None: absent


class ServerEffect(Struct, frozen=True, kw_only=True):
    """The changes that a commit makes for one server."""

    server: str  # the new name, or the old name of a removed server
    kind: EffectKind
    changes: tuple[ValueChange, ...]


def find_server_effects(old: Mapping[str, Decision], new: Mapping[str, Decision]) -> dict[SystemUuid, ServerEffect]:
    """Compare the decisions of two commits. Return the changes by UUID, because renamed servers keep their UUIDs."""
    before = {decision.uuid: decision for decision in old.values()}
    after = {decision.uuid: decision for decision in new.values()}
    effects = {}
    for uuid in sorted(before.keys() | after.keys()):
        old_decision, new_decision = before.get(uuid), after.get(uuid)
        last = new_decision or before[uuid]
        if old_decision is not None and new_decision is not None and old_decision.digest == new_decision.digest:
            continue
        kind = EffectKind.CHANGED
        if old_decision is None or new_decision is None:
            kind = EffectKind.ADDED if old_decision is None else EffectKind.REMOVED
        changes = find_field_changes("", to_json_value(old_decision) or {}, to_json_value(new_decision) or {})
        effects[uuid] = ServerEffect(server=last.server, kind=kind, changes=tuple(changes))
    return effects


def find_field_changes(path: str, old: Any, new: Any) -> Iterator[ValueChange]:
    """Yield the fields that differ, sorted by name.

    If a value exists on only one of the two sides, the function yields the whole value as one field.
    """
    sides = [side for side in (old, new) if side not in (None, [])]
    if sides and all(map(_has_names, sides)):  # compare items by name, so that an added item does not shift the others
        old, new = ({each["name"]: each for each in side or ()} for side in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from find_field_changes(f"{path}.{key}" if path else key, old.get(key), new.get(key))
    elif old != new:
        yield ValueChange(field=path, old=old, new=new)


def _has_names(value: Any) -> bool:
    """Return whether a value is a list of objects with different names. An invalid document may contain any value."""
    if not isinstance(value, list):
        return False
    names = [each.get("name") if isinstance(each, dict) else None for each in value]
    return all(isinstance(name, str) for name in names) and len({*names}) == len(names)
