"""Waves of a maintenance: whose power may be switched now, who waits for whom, and which maintenances have stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A server of a maintenance that switches power, as far as it is known."""

    name: str
    maintenance: str
    group: str | None  # of those that the limit is for: a site, a label's value; None: all, or those without
    limit: str  # how many of the group may be down: a number or a percentage
    ready: bool  # whether it could be switched now, were it its turn
    away_since: datetime | None = None  # since when it is to be back; None: it was not switched, or is back
    down: bool = False  # whether it is, or may be, down without having been switched


@dataclass(frozen=True, kw_only=True, slots=True)
class WhoseTurn:
    """Whose turn it is, by names."""

    go: frozenset[str] = frozenset()
    stopped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by maintenance: who does not come back


def turns(members: Iterable[Member], at: datetime, patience: timedelta) -> WhoseTurn:
    """Whose turn it is at ``at``: by name, as many of each group as it may spare.

    Where a server that was switched has not come back within ``patience``, nobody of its maintenance follows, whatever
    the group, until it has.
    """
    groups: defaultdict[tuple[str, str | None], list[Member]] = defaultdict(list)
    stopped: defaultdict[str, list[str]] = defaultdict(list)
    for each in members:
        groups[each.maintenance, each.group].append(each)
        if each.away_since is not None and at - each.away_since >= patience:
            stopped[each.maintenance].append(each.name)
    go: set[str] = set()
    for (maintenance, _), group in groups.items():
        if maintenance not in stopped:
            spare = _limit(group) - sum(each.down or each.away_since is not None for each in group)
            go.update(sorted(each.name for each in group if each.ready)[: max(spare, 0)])
    return WhoseTurn(go=frozenset(go), stopped={name: tuple(sorted(who)) for name, who in sorted(stopped.items())})


def _limit(group: list[Member]) -> int:
    """How many of a group may be down; of a percentage, rounded down, at least one: with none, nothing would go on."""
    given = group[0].limit
    return max(int(given[:-1]) * len(group) // 100, 1) if given.endswith("%") else int(given)
