"""How much a commit changes, as a digest and as counts of groups of servers; of a first commit, without its changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from gitboot.diff.extent import Area, Extent, Label
from gitboot.diff.touched import GROUPING
from gitboot.fleet.identities import BmcAccess, machine
from gitboot.fleet.resources import FleetRepository
from gitboot.jsonio import Digest, digest
from gitboot.model.server import Server
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.document_changes import changes_ledger, shared_change, unknown_change
from gitboot.review.risks import Risk, risks

Pair = tuple[str, Digest | None, Digest | None]  # of what, before, after


def digest_of(pairs: Iterable[Pair]) -> Digest:
    """Of all that changes."""
    return digest(sorted([kind, old or "", new or ""] for kind, old, new in pairs))


def reached_at(server: str | None, access: BmcAccess | None) -> Digest:
    """Where and how a server's BMC is reached."""
    return digest([server, asdict(access) if access is not None else None])


def labels_of(server: Server) -> Iterator[Label]:
    """The groups that a server is in."""
    labels = server.metadata.labels
    yield from ((key, labels[key]) for key in GROUPING if key in labels)


def areas_of(counts: Mapping[Label | None, Mapping[str, int]]) -> tuple[Area, ...]:
    """The whole fleet first, then the groups in their order; ``counts`` has the fields of an `Area` that are not 0."""
    return tuple(_area(label, counts[label]) for label in sorted(counts, key=_place))


def _area(label: Label | None, counted: Mapping[str, int]) -> Area:
    return Area(
        label=label,
        size=counted.get("size", 0),
        changed=counted.get("changed", 0),
        less=counted.get("less", 0),
        removed=counted.get("removed", 0),
        added=counted.get("added", 0),
        reinstalled=counted.get("reinstalled", 0),
    )


def _place(label: Label | None) -> tuple[int, str]:
    return (GROUPING.index(label[0]), label[1]) if label else (-1, "")


def extent_of_first(decisions: Decisions, repository: FleetRepository, servers: Iterable[Decision]) -> Extent:
    """The extent of a commit before which there is none: `compare` finds the same, and holds all that it compares.

    ``servers`` are the decisions for all servers, each looked at once.
    """
    counts: dict[Label | None, dict[str, int]] = {None: {"size": 0}}
    found = Counter[Risk]()
    pairs: list[Pair] = []
    for decision in servers:
        server = repository.servers[decision.server]
        found.update(risks(None, decision, ()))
        pairs.append(("server", None, decision.digest))
        for label in (None, *labels_of(server)):
            group = counts.setdefault(label, {})
            group["added"] = group.get("added", 0) + 1
        if (access := machine(repository, server).bmc) is not None:
            pairs.append(("bmc", reached_at(None, None), reached_at(decision.server, access)))
    unknown, shared = unknown_change(None, decisions), shared_change(None, decisions, None, repository)
    pairs += [(kind, *each.pair) for kind, each in (("unknown", unknown), ("shared", shared)) if each is not None]
    return Extent(
        digest=digest_of(pairs),
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
        takeover=shared is not None and changes_ledger(shared),
        areas=areas_of(counts),
    )
