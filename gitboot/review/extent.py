"""Extent: the numbers by which guards judge a commit, for the whole fleet and for its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import BmcAccess, LostIdentity, build_machine
from gitboot.jsonio import Digest, compute_digest
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
