"""Guards: limits that hold a commit if the commit exceeds them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final

from msgspec import Struct, structs

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import BmcAccess, LostIdentity, build_machine
from gitboot.fleet.revision import Message, ReinstallsNeed
from gitboot.jsonio import Digest, compute_digest
from gitboot.model.fleet import Guards
from gitboot.model.server import Server
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.document_changes import affects_ledger, compare_shared_files, compare_unknown_boots
from gitboot.review.reinstalls import GainedIdentity, Inheritance
from gitboot.review.risks import Risk, find_risks
from gitboot.text import format_suggestion

# number of servers; in smaller groups, the limit on changes is a number of servers and not a percentage
MIN_SIZE_FOR_PERCENT: Final = 10


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
        guard_limits = {each.name: getattr(guards, each.name) for each in fields(guards)}
        return structs.replace(
            self, **{name: min(getattr(self, name), limit) for name, limit in guard_limits.items() if limit is not None}
        )


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


def judge(
    extent: Extent,
    limits: Limits,
    acknowledgements: Acknowledgements = NO_ACKNOWLEDGEMENTS,
    *,
    pending: int | None = None,
    returning: int = 0,
    inheritances: Sequence[Inheritance] = (),
    is_rewind: bool = False,
    takeover: bool | None = None,
    bmcs: int = 0,
) -> Verdict:
    """Judge whether a commit exceeds the limits. An acknowledgement applies to one digest and one guard.

    - ``pending`` is the number of servers that are not installed according to the instance's records, or None without
      records. In a first commit, this number replaces the number of servers that need a first boot.
    - ``returning`` is the number of servers that the commit adds and reinstalls, although the ledger already contains
      their machines.
    - ``inheritances`` are the identities through which possibly installed machines would get the install boots of other
      servers.
    - ``is_rewind`` means that the commit does not descend from the accepted commit.
    - ``takeover`` means that an instance may no longer act for the fleet. If ``takeover`` is None, the value in the
      extent applies.
    - ``bmcs`` is the number of BMCs that would get credentials for the first time.
    """
    inheriting_servers = {each.server for each in inheritances} - {*extent.reinstalled_servers}
    numbers = (
        (Guard.ALLOW_REWIND, "commits taken back", int(is_rewind and not limits.allow_rewind), 0),
        (
            Guard.ALLOW_TAKEOVER,
            "instances that may no longer act",
            int((extent.takeover if takeover is None else takeover) and not limits.allow_takeover),
            0,
        ),
        (Guard.MAX_BMC_CHANGES, "BMCs that never received these credentials", bmcs, limits.max_bmc_changes),
        (Guard.MAX_INSTALLS, "first boots", extent.installs if pending is None else pending, limits.max_installs),
        (Guard.MAX_RESETS, "servers that may be reset", extent.resets, limits.max_resets),
        (
            Guard.MAX_REINSTALLS,
            "servers that may be reinstalled",
            extent.reinstalls + returning + len(inheriting_servers),
            limits.max_reinstalls,
        ),
        *(() if extent.first else _list_change_numbers(extent, limits)),
    )
    found = [
        ExceededLimit(guard=guard, what=what, number=number, limit=limit)
        for guard, what, number, limit in numbers
        if number > limit
    ]
    if extent.after == 0 and extent.before and not limits.allow_empty:
        found.append(ExceededLimit(guard=Guard.ALLOW_EMPTY, what="servers left", number=0, limit=1))
    if not extent.first:
        found += (trip for area in extent.areas for trip in _find_exceeded_area_limits(area, limits))
    order = list(Guard)
    trips = (
        structs.replace(
            trip,
            acknowledged=(key := (extent.digest, trip.guard.value)) in acknowledgements,
            by=acknowledgements.get(key, ""),
        )
        for trip in sorted(found, key=lambda trip: (order.index(trip.guard), trip.area != "all", trip.area, trip.what))
    )
    return Verdict(
        digest=extent.digest, limits=limits, trips=tuple(trips), areas=extent.areas, inherited=tuple(inheritances)
    )


def _list_change_numbers(extent: Extent, limits: Limits) -> tuple[tuple[Guard, str, int, int], ...]:
    may_boot = "servers that may boot an image that claims for the first time not to write to disk"
    return (
        (
            Guard.MAX_UNKNOWN_CHANGES,
            "changes to the boot of unknown machines",
            int(extent.unknown),
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


def _find_exceeded_area_limits(area: Area, limits: Limits) -> Iterator[ExceededLimit]:
    for guard, what, number, percent in (
        (Guard.MAX_DELETE_PERCENT, "servers removed", area.removed, limits.max_delete_percent),
        (Guard.MAX_UPDATE_PERCENT, "servers changed", area.changed, limits.max_update_percent),
    ):
        is_small = area.size < MIN_SIZE_FOR_PERCENT
        limit = limits.max_small_group if is_small else percent
        if number > limit if is_small else number * 100 > limit * area.size:
            yield ExceededLimit(
                guard=Guard.MAX_SMALL_GROUP if is_small else guard,
                what=what,
                number=number,
                limit=limit,
                of=area.size,
                percent=not is_small,
                area=str(area),
            )


# Acknowledgements: lines of the form `Gitboot-Ack: DIGEST GUARD…` in a commit message


class IgnoredLine(Struct, frozen=True, kw_only=True):
    """An acknowledgement line that gitboot ignores, and the reason."""

    commit: str
    line: str
    why: str


_LINE: Final = re.compile(r"^[ \t]*gitboot-ack\b.*$", re.IGNORECASE | re.MULTILINE)
_WORDS: Final = re.compile(r"\s*Gitboot-Ack:[ \t]+(\S+)((?:[ \t]+\S+)+)[ \t\r]*")
SHOWN_DIGITS: Final = 16  # the number of digits of a digest in commands; `gitboot approve` needs at least 8


def format_ack_line(digest: Digest, *guards: Guard) -> str:
    """Return the commit message line that acknowledges the given guards."""
    return " ".join(["Gitboot-Ack:", digest, *guards])


def format_ack_lines(verdict: Verdict, reinstalls_need: ReinstallsNeed | None) -> tuple[str, ...]:
    """Return a line that acknowledges the guards that hold a commit, or () if no line can acknowledge them."""
    guards = list_ack_guards(verdict, reinstalls_need)
    return (format_ack_line(verdict.digest, *guards),) if guards else ()


def list_ack_guards(verdict: Verdict, reinstalls_need: ReinstallsNeed | None) -> tuple[Guard, ...]:
    """Return the guards that hold a commit and can be acknowledged by a line in a commit message."""
    excluded = {*ONLY_APPROVED, *((Guard.MAX_REINSTALLS,) if reinstalls_need is ReinstallsNeed.APPROVE else ())}
    return tuple(guard for guard in verdict.holding_guards if guard not in excluded)


def format_approval(digest: Digest) -> str:
    """Return the command that approves a held commit, with placeholders that a person must replace."""
    return f"gitboot approve {digest[:SHOWN_DIGITS]} --all-guards --reason '…' --state DIRECTORY"


class AckLine(Struct, frozen=True, kw_only=True):
    """The acknowledgement of one guard in a well-formed line of a commit message."""

    STALE: ClassVar[str] = (
        "the line acknowledges other changes. The commits changed afterwards, or a different version of gitboot "
        "computed the digest. Review the commits again"
    )
    USED: ClassVar[str] = (
        "a signed acknowledgement counts only once, and a commit with the same signed content was already accepted "
        "(--reinstalls-need signed). Sign a new commit"
    )

    commit: str
    text: str
    digest: str
    guard: str
    by: str  # the author of the commit message
    content: str = ""  # SHA-256 of the signed content, if the line is valid because of the commit's signature

    @property
    def id(self) -> str:
        """The key that ensures that a line counts only once if it is valid because of a signature."""
        return f"{self.content} {self.digest} {self.guard}"


def parse_ack_lines(
    messages: Iterable[Message],
    reinstalls_need: ReinstallsNeed | None = None,
    used_ack_ids: Container[str] = frozenset(),
) -> Iterator[AckLine | IgnoredLine]:
    """Yield the acknowledgements in commit messages, one for each guard in a line.

    An acknowledgement line may be anywhere in a message, and may be indented, for example after a squash. gitboot
    ignores malformed lines, lines with an unknown word, and acknowledgements of reinstallations that do not meet
    ``reinstalls_need``.

    A line that is valid because of a signature counts only once. Therefore ``used_ack_ids`` contains the signed
    content of the commits that led to an accepted commit, and the `AckLine.id` of each line that was already used.
    """
    for message in messages:
        for line in _LINE.findall(message.text):
            text = line.strip()
            if (why := _find_line_fault(line)) is not None:
                yield IgnoredLine(commit=message.commit, line=text, why=why)
                continue
            _, digest, *guards = line.split()
            for guard in dict.fromkeys(guards):
                if (why := _find_guard_fault(guard, message, reinstalls_need)) is not None:
                    yield IgnoredLine(commit=message.commit, line=text, why=why)
                    continue
                content = (
                    message.content
                    if guard == Guard.MAX_REINSTALLS and reinstalls_need is ReinstallsNeed.SIGNED
                    else ""
                )
                found = AckLine(
                    commit=message.commit, text=text, digest=digest, guard=guard, by=message.by, content=content
                )
                if content and (content in used_ack_ids or found.id in used_ack_ids):
                    yield IgnoredLine(commit=found.commit, line=found.text, why=AckLine.USED)
                else:
                    yield found


def _find_line_fault(line: str) -> str | None:
    if (found := _WORDS.fullmatch(line)) is None:
        return "the line does not have the form Gitboot-Ack: DIGEST GUARD"
    digest, guards = found.groups()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        return "the digest must have 64 lower-case hexadecimal digits: copy the whole line"
    if (unknown := next((each for each in guards.split() if each not in list(Guard)), None)) is not None:
        return f"there is no guard {unknown}; {format_suggestion(unknown, Guard, 'copy the whole line')}"
    return None


def _find_guard_fault(guard: str, message: Message, reinstalls_need: ReinstallsNeed | None) -> str | None:
    if guard in ONLY_APPROVED:
        return f"only gitboot approve can acknowledge {guard}, not a line in a commit message"
    if guard != Guard.MAX_REINSTALLS or reinstalls_need is None:
        return None
    if reinstalls_need is ReinstallsNeed.APPROVE:
        return "only gitboot approve can acknowledge reinstallations (--reinstalls-need approve)"
    if message.signer is None:
        return "reinstallations need a commit that is signed with a listed key (--reinstalls-need signed)"
    if message.signer.is_forge:
        return "a forge signed the commit, but a person must sign it (--reinstalls-need signed)"
    return None


def has_ack_line(message: Message) -> bool:
    """Return whether a message contains an acknowledgement line, even a malformed one."""
    return _LINE.search(message.text) is not None


def find_acknowledgements(
    messages: Iterable[Message],
    digest: Digest,
    reinstalls_need: ReinstallsNeed | None = None,
    used_ack_ids: Container[str] = frozenset(),
) -> tuple[Acknowledgements, tuple[IgnoredLine, ...]]:
    """Return the acknowledgements that contain this digest, and the acknowledgement lines that gitboot ignores."""
    acknowledgements: dict[tuple[str, str], str] = {}
    ignored = []
    for line in parse_ack_lines(messages, reinstalls_need, used_ack_ids):
        match line:
            case AckLine() if line.digest == digest:
                acknowledgements.setdefault((line.digest, line.guard), line.by)
            case AckLine():
                ignored.append(IgnoredLine(commit=line.commit, line=line.text, why=AckLine.STALE))
            case IgnoredLine():
                ignored.append(line)
    return acknowledgements, tuple(dict.fromkeys(ignored))  # report a line with several guards only once


Pair = tuple[str, Digest | None, Digest | None]  # (kind, old digest, new digest)


def digest_pairs(pairs: Iterable[Pair]) -> Digest:
    """Return one digest that covers all changes. Acknowledgement lines contain this digest."""
    return compute_digest(sorted([kind, old or "", new or ""] for kind, old, new in pairs))


def digest_bmc_access(server: str | None, access: BmcAccess | None) -> Digest:
    """Return a digest of the BMC's address, its credentials, and the settings for its certificate."""
    return compute_digest([server, structs.asdict(access) if access is not None else None])


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


def compute_first_extent(decisions: Decisions, repository: FleetRepository, servers: Iterable[Decision]) -> Extent:
    """Return the extent of an instance's first commit.

    `compare_decisions` returns the same extent but needs more memory. ``servers`` yields the decisions for all servers.
    The function reads ``servers`` only once.
    """
    counts: dict[Label | None, Counter[str]] = {None: Counter()}
    found = Counter[Risk]()
    pairs: list[Pair] = []
    for decision in servers:
        server = repository.servers[decision.server]
        found.update(find_risks(None, decision, ()))
        pairs.append(("server", None, decision.digest))
        for label in (None, *list_labels(server)):
            counts.setdefault(label, Counter())["added"] += 1
        if (access := build_machine(repository, server).bmc) is not None:
            pairs.append(("bmc", digest_bmc_access(None, None), digest_bmc_access(decision.server, access)))
    unknown, shared = compare_unknown_boots(None, decisions), compare_shared_files(None, decisions, None, repository)
    pairs += [(kind, *each.pair) for kind, each in (("unknown", unknown), ("shared", shared)) if each is not None]
    return Extent(
        digest=digest_pairs(pairs),
        first=True,
        before=0,
        after=len(repository.servers),
        installs=found[Risk.INSTALL],
        reinstalls=0,
        resets=found[Risk.RESET],
        unknown=unknown is not None,
        mutated_images=0,
        disk_claims=0,
        access=0,
        takeover=shared is not None and affects_ledger(shared),
        areas=build_areas(counts),
    )


GROUP_LABELS: Final = ("site", "role")  # label keys; the servers with the same value form a group


class ChangeScope(Struct, frozen=True, kw_only=True):
    """The servers and documents that may differ between two commits, so that only these need to be compared.

    All other servers and documents are the same in both commits.
    """

    servers: frozenset[str]  # servers in one of the commits
    documents: frozenset[Id]  # documents, and files with the kind "file"
    sizes: Mapping[Label, int]  # the size of each group in the old commit


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
    first: bool  # whether there is no old commit
    before: int  # the number of servers in the old commit
    after: int
    installs: int  # new servers that want a first boot
    reinstalls: int  # servers that the commit can reinstall
    resets: int  # running servers that a maintenance can reset because of the commit
    unknown: bool  # whether the boots of unknown machines change
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
        """Return the extent, not counting the reinstallations of the given servers."""
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
