"""Guards: the extent of a change, the limits for it, and the verdict on a commit that exceeds a limit.

A `Guard` names a kind of limit. `Limits` contains the limits of an instance, and a Fleet document can lower them
(`gitboot.model.fleet.Guards`). An `ExceededLimit` is a limit that one commit exceeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import BmcAccess, LostIdentity, build_machine
from gitboot.jsonio import Digest, compute_digest
from gitboot.model.fleet import Guards
from gitboot.model.server import Server
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.document_changes import affects_ledger, compare_shared_files, compare_unknown_boots
from gitboot.review.reinstalls import GainedIdentity, Inheritance
from gitboot.review.risks import Risk, find_risks

GROUP_LABELS: Final = ("site", "role")  # label keys; the servers with the same value form a group
Label = tuple[str, str]  # (key, value), such as ("site", "fra1")


class Area(Struct, frozen=True, kw_only=True):
    """The numbers of changes in a group of servers, or in the whole fleet."""

    label: Label | None  # None: the whole fleet
    size: int  # servers in the old commit, and changed servers that moved into the group
    changed: int  # changed servers, except harmless changes
    less: int  # servers with harmless changes, which guards ignore
    removed: int  # removed or retired servers
    added: int
    reinstalled: int

    def __str__(self) -> str:
        return "=".join(self.label) if self.label else "all"


class Extent(Struct, frozen=True, kw_only=True):
    """The numbers by which guards judge a commit."""

    digest: Digest  # of all changes; an acknowledgement names this digest
    is_first: bool  # whether there is no old commit
    before: int  # the number of servers in the old commit
    after: int
    installs: int  # new servers that want a first boot
    reinstalls: int  # servers that the commit can reinstall
    resets: int  # running servers that a maintenance can reset because of the commit
    changes_unknown_boots: bool
    mutated_images: int  # images that were edited although they are in use
    disk_claims: int  # images that claim for the first time not to write to disk
    access: int  # changed settings that let more clients fetch files
    takeover: bool  # whether another instance may act for the fleet
    areas: tuple[Area, ...]  # the first one is the whole fleet
    unknown_claims: tuple[str, ...] = ()  # new servers with a boot, new in the fleet, that claims to write no disk
    by_policy: tuple[str, ...] = ()  # servers in `reinstalls` that may be installed already, according to records
    lost_identities: tuple[LostIdentity, ...] = ()  # sorted identities that machines no longer have
    gained_identities: tuple[GainedIdentity, ...] = ()  # sorted identities that newly lead to install boots
    reinstalled_servers: tuple[str, ...] = ()  # servers that `reinstalls` counts because of gained identities

    def without_reinstalls(self, servers: Collection[str]) -> Extent:
        """Return the extent, not counting the reinstallations of the given servers.

        ``servers`` must contain only servers that `reinstalls` counts, such as those in `by_policy`.
        """
        if not servers:
            return self
        remaining = tuple(each for each in self.reinstalled_servers if each not in servers)
        return structs.replace(self, reinstalls=self.reinstalls - len(servers), reinstalled_servers=remaining)

    def with_returning(self, servers: Sequence[str]) -> Extent:
        """Return the extent with a digest that also covers servers that only an instance's records show as reinstalled.

        Therefore an acknowledgement in a review, which shows these servers as new, does not permit gitboot to reinstall
        their machines.
        """
        return structs.replace(self, digest=compute_digest(["returning", servers, self.digest])) if servers else self

    def with_inheritances(self, inheritances: Collection[Inheritance]) -> Extent:
        """Return the extent with a digest that also covers inherited identities.

        Therefore an acknowledgement that does not cover these identities does not permit gitboot to install other
        machines.
        """
        if not inheritances:
            return self
        inherited = sorted([each.server, str(each.kind), each.value, each.uuid] for each in inheritances)
        return structs.replace(self, digest=compute_digest(["inherited", inherited, self.digest]))

    def with_rewind(self, accepted: str, revision: str) -> Extent:
        """Return the extent for a rewind, with a digest that also covers both revisions.

        The digest of the changes alone does not identify a rewind, because a rewind may not change any decisions.
        """
        return structs.replace(self, digest=compute_digest(["rewind", accepted, revision, self.digest]))

    def with_known_servers(self, old: Collection[str], new: Collection[str]) -> Extent:
        """Return a first extent that also counts removed servers, if only the UUIDs of the old servers are known."""
        kept = sum(uuid in new for uuid in old)
        whole = self.areas[0]
        area = structs.replace(whole, size=len(old), removed=len(old) - kept, added=whole.added - kept)
        return structs.replace(self, before=len(old), areas=(area, *self.areas[1:]))


class ChangeScope(Struct, frozen=True, kw_only=True):
    """The servers and documents that may differ between two commits, so that only these need to be compared.

    All other servers and documents are the same in both commits.
    """

    servers: frozenset[str]  # servers in one of the commits
    documents: frozenset[Id]  # documents, and files with the kind "file"
    sizes: Mapping[Label, int]  # the size of each group in the old commit


Pair = tuple[str, Digest | None, Digest | None]  # (kind, old digest, new digest)


def compute_first_extent(decisions: Decisions, repository: FleetRepository, servers: Iterable[Decision]) -> Extent:
    """Return the extent of an instance's first commit.

    `compare_decisions` returns the same extent but needs more memory. ``servers`` yields the decisions for all servers.
    The function reads ``servers`` only once.
    """
    counts: dict[Label | None, Counter[str]] = {None: Counter()}
    risk_counts = Counter[Risk]()
    pairs: list[Pair] = []
    for decision in servers:
        server = repository.servers[decision.server]
        risk_counts.update(find_risks(None, decision, ()))
        pairs.append(("server", None, decision.digest))
        for label in (None, *list_labels(server)):
            counts.setdefault(label, Counter())["added"] += 1
        if (access := build_machine(repository, server).bmc) is not None:
            pairs.append(("bmc", digest_bmc_access(None, None), digest_bmc_access(decision.server, access)))
    unknown = compare_unknown_boots(None, decisions)
    if unknown is not None:
        pairs.append(("unknown", *unknown.pair))
    shared = compare_shared_files(None, decisions, None, repository)
    if shared is not None:
        pairs.append(("shared", *shared.pair))
    return Extent(
        digest=digest_pairs(pairs),
        is_first=True,
        before=0,
        after=len(repository.servers),
        installs=risk_counts[Risk.INSTALL],
        reinstalls=0,
        resets=risk_counts[Risk.RESET],
        changes_unknown_boots=unknown is not None,
        mutated_images=0,
        disk_claims=0,
        access=0,
        takeover=shared is not None and affects_ledger(shared),
        areas=build_areas(counts),
    )


def list_labels(server: Server) -> Iterator[Label]:
    """Yield the labels that determine which groups a server belongs to."""
    labels = server.metadata.labels
    yield from ((key, labels[key]) for key in GROUP_LABELS if key in labels)


def build_areas(counts: Mapping[Label | None, Mapping[str, int]]) -> tuple[Area, ...]:
    """Return the area for the whole fleet, and then the areas for its groups, in order.

    ``counts`` contains the nonzero fields of each `Area`.
    """
    labels = sorted(counts, key=lambda label: (GROUP_LABELS.index(label[0]), label[1]) if label else (-1, ""))
    numbers = [name for name in Area.__struct_fields__ if name != "label"]
    return tuple(Area(label=label, **{name: counts[label].get(name, 0) for name in numbers}) for label in labels)


def digest_pairs(pairs: Iterable[Pair]) -> Digest:
    """Return one digest that covers all changes. Acknowledgement lines contain this digest."""
    return compute_digest(sorted([kind, old or "", new or ""] for kind, old, new in pairs))


def digest_bmc_access(server: str | None, access: BmcAccess | None) -> Digest:
    """Return a digest of the BMC's address, its credentials, and the settings for its certificate."""
    return compute_digest([server, structs.asdict(access) if access is not None else None])


class Guard(StrEnum):
    """The guards that can hold a commit, in the order in which gitboot shows them."""

    MAX_REINSTALLS = "maxReinstalls"
    MAX_UNKNOWN_CHANGES = "maxUnknownChanges"
    MAX_ACCESS_CHANGES = "maxAccessChanges"
    MUTATED_IMAGES = "mutatedImages"
    ALLOW_EMPTY = "allowEmpty"
    ALLOW_REWIND = "allowRewind"
    ALLOW_TAKEOVER = "allowTakeover"
    MAX_BMC_CHANGES = "maxBmcChanges"
    MAX_DELETES = "maxDeletes"
    MAX_DELETE_PERCENT = "maxDeletePercent"
    MAX_UPDATE_PERCENT = "maxUpdatePercent"
    MAX_SMALL_GROUP = "maxSmallGroup"
    MAX_INSTALLS = "maxInstalls"
    MAX_RESETS = "maxResets"


# A commit message cannot acknowledge these guards. They need `gitboot approve`.
ONLY_APPROVED: Final = frozenset({Guard.ALLOW_REWIND, Guard.MAX_BMC_CHANGES})

# number of servers; in smaller groups, the limit on changes is a number of servers and not a percentage
MIN_SIZE_FOR_PERCENT: Final = 10


class Limits(Struct, frozen=True, kw_only=True):
    """The limits above which guards hold a commit. The field defaults are the default limits of an instance."""

    max_update_percent: int = 30
    max_delete_percent: int = 10
    max_deletes: int = 25
    # number of servers; replaces percentages in groups with fewer than `MIN_SIZE_FOR_PERCENT` servers
    max_small_group: int = 3
    max_reinstalls: int = 0
    max_installs: int = 50
    max_resets: int = 50
    max_unknown_changes: int = 0
    max_access_changes: int = 0
    mutated_images: int = 0
    max_bmc_changes: int = 0
    allow_empty: bool = False
    allow_rewind: bool = False
    allow_takeover: bool = False

    def tighten(self, guards: Guards) -> Limits:
        """Return the limits, lowered to those limits in the Fleet that are lower. A Fleet cannot raise a limit."""
        lowered = {}
        for field in fields(guards):
            limit = getattr(guards, field.name)
            if limit is not None:
                lowered[field.name] = min(getattr(self, field.name), limit)
        return structs.replace(self, **lowered)


class ExceededLimit(Struct, frozen=True, kw_only=True):
    """A limit that a commit exceeds."""

    guard: Guard
    what: str  # the changes that the guard counts, such as "servers removed"
    number: int
    limit: int
    of: int | None = None  # the size of the group; None: the limit does not refer to a group
    percent: bool = False  # whether the limit is a percentage
    area: str = "all"  # "all" for the whole fleet, or a group such as site=fra1
    acknowledged: bool = False
    by: str = ""  # the person who acknowledged the exceeded limit; "": not recorded


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of judging a commit: the exceeded limits, and the digest that acknowledgements must contain."""

    digest: Digest
    limits: Limits
    trips: tuple[ExceededLimit, ...]
    areas: tuple[Area, ...] = ()  # areas of the fleet; the first area is the whole fleet
    inherited: tuple[Inheritance, ...] = ()  # identities that servers take over from machines that may be installed
    waits: bool = False  # whether the instance must first read all fetches

    @property
    def held(self) -> bool:
        return bool(self.holding_guards)

    @property
    def holding_guards(self) -> tuple[Guard, ...]:
        """The guards that hold the commit, without duplicates.

        A guard holds a commit until each exceeded limit of the guard is acknowledged.
        """
        return tuple(dict.fromkeys(trip.guard for trip in self.trips if not trip.acknowledged))


Acknowledgements = Mapping[tuple[str, str], str]  # maps (digest, guard) to the person who acknowledged the change
NO_ACKNOWLEDGEMENTS: Final[Acknowledgements] = MappingProxyType({})


class InstanceFacts(Struct, frozen=True, kw_only=True):
    """The facts from which an instance judges a commit, in addition to the changes. A review does not know them."""

    # the number of servers that are not installed according to the records; it replaces the number of servers that need
    # a first boot; None: not a first commit, or no records
    pending: int | None = None
    returning: Sequence[str] = ()  # servers that the commit adds and reinstalls, although the ledger has their machines
    # identities through which possibly installed machines would get the install boots of other servers
    inheritances: Sequence[Inheritance] = ()
    is_rewind: bool = False  # whether the commit does not descend from the accepted commit
    # whether the accepted commit cannot be evaluated, so its changed servers are not known
    lacks_accepted: bool = False
    takeover: bool | None = None  # whether an instance may no longer act for the fleet; None: as in the extent
    bmcs: int = 0  # the number of BMCs that would get credentials for the first time


NO_INSTANCE: Final = InstanceFacts()


def judge(
    extent: Extent,
    limits: Limits,
    acknowledgements: Acknowledgements = NO_ACKNOWLEDGEMENTS,
    facts: InstanceFacts = NO_INSTANCE,
) -> Verdict:
    """Judge whether a commit exceeds the limits. An acknowledgement applies to one digest and one guard."""
    takeover = extent.takeover if facts.takeover is None else facts.takeover
    first_boots = extent.installs if facts.pending is None else facts.pending
    inheriting_servers = {each.server for each in facts.inheritances} - {*extent.reinstalled_servers}
    reinstalls = extent.reinstalls + len(facts.returning) + len(inheriting_servers)
    if reinstalls > limits.max_reinstalls:  # a review does not show these servers and identities
        extent = extent.with_returning(facts.returning).with_inheritances(facts.inheritances)
    exceeded_limits = [
        *_find_exceeded_counts(
            (Guard.ALLOW_REWIND, "commits taken back", int(facts.is_rewind), int(limits.allow_rewind)),
            (Guard.ALLOW_REWIND, "accepted commits without an evaluation", int(facts.lacks_accepted), 0),
            (Guard.ALLOW_TAKEOVER, "instances that may no longer act", int(takeover), int(limits.allow_takeover)),
            (Guard.MAX_BMC_CHANGES, "BMCs that never received these credentials", facts.bmcs, limits.max_bmc_changes),
            (Guard.MAX_INSTALLS, "first boots", first_boots, limits.max_installs),
            (Guard.MAX_RESETS, "servers that may be reset", extent.resets, limits.max_resets),
            (Guard.MAX_REINSTALLS, "servers that may be reinstalled", reinstalls, limits.max_reinstalls),
        ),
        *_find_exceeded_change_limits(extent, limits),
    ]
    order = list(Guard)
    exceeded_limits.sort(key=lambda each: (order.index(each.guard), each.area != "all", each.area, each.what))
    trips = []
    for excess in exceeded_limits:
        person = acknowledgements.get((extent.digest, excess.guard.value))
        trips.append(structs.replace(excess, acknowledged=person is not None, by=person or ""))
    return Verdict(
        digest=extent.digest,
        limits=limits,
        trips=tuple(trips),
        areas=extent.areas,
        inherited=tuple(facts.inheritances),
    )


def _find_exceeded_counts(*counts: tuple[Guard, str, int, int]) -> Iterator[ExceededLimit]:
    """Yield the exceeded limits for the whole fleet.

    Each count contains a guard, the changes that the guard counts, their number, and the limit.
    """
    for guard, what, number, limit in counts:
        if number > limit:
            yield ExceededLimit(guard=guard, what=what, number=number, limit=limit)


def _find_exceeded_change_limits(extent: Extent, limits: Limits) -> Iterator[ExceededLimit]:
    """Yield the exceeded limits on changes to an earlier commit. An instance's first commit has no such changes."""
    may_boot = "servers that may boot an image that claims for the first time not to write to disk"
    unknown_changes = int(extent.changes_unknown_boots and not extent.is_first)
    yield from _find_exceeded_counts(
        (
            Guard.MAX_UNKNOWN_CHANGES,
            "changes to the boot of unknown machines",
            unknown_changes,
            limits.max_unknown_changes,
        ),
        (
            Guard.MAX_ACCESS_CHANGES,
            "settings that let more clients fetch files",
            extent.access,
            limits.max_access_changes,
        ),
        # Hold the commit even without affected servers, because any server may boot such an image later.
        (Guard.MAX_REINSTALLS, may_boot, extent.after if extent.disk_claims else 0, limits.max_reinstalls),
        (Guard.MUTATED_IMAGES, "edited images in use", extent.mutated_images, limits.mutated_images),
        (Guard.MAX_DELETES, "servers removed", extent.areas[0].removed, limits.max_deletes),
    )
    if extent.after == 0 and extent.before and not limits.allow_empty:  # the only limit that is a minimum
        yield ExceededLimit(guard=Guard.ALLOW_EMPTY, what="servers left", number=0, limit=1)
    for area in extent.areas:
        yield from _find_exceeded_area_limits(area, limits)


def _find_exceeded_area_limits(area: Area, limits: Limits) -> Iterator[ExceededLimit]:
    for guard, what, number, percent in (
        (Guard.MAX_DELETE_PERCENT, "servers removed", area.removed, limits.max_delete_percent),
        (Guard.MAX_UPDATE_PERCENT, "servers changed", area.changed, limits.max_update_percent),
    ):
        is_small = area.size < MIN_SIZE_FOR_PERCENT
        limit = limits.max_small_group if is_small else percent
        exceeds = number > limit if is_small else number * 100 > limit * area.size
        if exceeds:
            yield ExceededLimit(
                guard=Guard.MAX_SMALL_GROUP if is_small else guard,
                what=what,
                number=number,
                limit=limit,
                of=area.size,
                percent=not is_small,
                area=str(area),
            )
