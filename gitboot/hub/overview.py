"""Instances side by side, by what each has said last: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from gitboot.hub.members import NamedInstance
from gitboot.model.scalars import format_instant

SILENT: Final = timedelta(minutes=15)  # as its page has it: it says how it fares at each reconcile


class Freshness(StrEnum):
    """Whether what is shown of an instance is how it fares now."""

    CURRENT = "Current"
    SILENT = "Silent"  # read, but it has said nothing for long
    UNREACHABLE = "Unreachable"  # what it said last is shown
    NEVER_READ = "NeverRead"  # and there is nothing to show


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """An instance as it was read last."""

    member: NamedInstance
    status: Mapping[str, Any] | None = None  # what it said last; None: it was never read
    seen: datetime | None = None  # when that was read
    failure: str | None = None  # why it could not be read the last time
    since: datetime | None = None  # since when it cannot

    def state(self, at: datetime) -> Freshness:
        if self.status is None:
            return Freshness.NEVER_READ
        if self.failure is not None:
            return Freshness.UNREACHABLE
        said = self.status.get("at")
        return (
            Freshness.SILENT if said is not None and datetime.fromisoformat(said) + SILENT < at else Freshness.CURRENT
        )


def overview(sights: Iterable[Sight], at: datetime) -> list[dict[str, Any]]:
    """A row for each instance, by site and name."""
    found = sorted(sights, key=lambda each: (each.member.site, each.member.name))
    return [_row(each, [other for other in found if other is not each], at) for each in found]


def _row(sight: Sight, others: Iterable[Sight], at: datetime) -> dict[str, Any]:
    status = sight.status or {}
    attempted, installs = status.get("attempted", {}), status.get("installs", {})
    return {
        "site": sight.member.site,
        "instance": sight.member.name,
        "state": sight.state(at),
        "failure": sight.failure,
        "failingSince": format_instant(sight.since) if sight.since is not None else None,
        "seen": format_instant(sight.seen) if sight.seen is not None else None,
        "said": status.get("at"),
        "ledger": status.get("ledger"),
        "commit": status.get("accepted", {}).get("commit"),
        "applied": status.get("applied", {}).get("commit"),
        "behind": behind(sight, others),
        "held": list(attempted["held"]["guards"]) if attempted.get("held") else [],
        "problems": sum(each["severity"] == "error" for each in attempted.get("problems", ())),
        "servers": sum(status.get("phases", {}).values()),
        "installs": {"now": installs.get("Now", 0), "later": installs.get("Later", 0)},
        "conditions": [dict(each) for each in status.get("conditions", ()) if not each["status"]],
    }


def behind(sight: Sight, others: Iterable[Sight]) -> int | None:
    """By how many commits an instance is behind the one that is furthest; None: nobody can tell.

    No repository is asked: each tells the commits that it has accepted last, and who has the same among them shows
    how many came after it.
    """
    own, known, unknown = _accepted(sight), [0], False
    if not own:
        return None
    for other in map(_accepted, others):
        if own[0] in other:
            known.append(other.index(own[0]))
        elif other and other[0] not in own:
            unknown = True
    return None if unknown and max(known) == 0 else max(known)


def _accepted(sight: Sight) -> list[str]:
    """The commits that an instance has accepted last, the newest first."""
    accepted = (sight.status or {}).get("accepted", {})
    newest, lately = accepted.get("commit"), [each["commit"] for each in accepted.get("lately", ())]
    return [] if newest is None else lately if newest in lately else [newest, *lately]
