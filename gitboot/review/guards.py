"""Guards: limits that hold a commit if the commit exceeds them.

A `Guard` names a kind of limit. `Limits` contains the limits of an instance, and a Fleet document can lower them
(`gitboot.model.fleet.Guards`). An `ExceededLimit` is a limit that one commit exceeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gitboot.jsonio import Digest
from gitboot.model.fleet import Guards
from gitboot.review.extent import Area, Extent
from gitboot.review.reinstalls import Inheritance


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
