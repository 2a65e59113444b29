"""The page's data of several instances as that of one: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gitboot.canonical import canonical
from gitboot.hub.overview import Freshness, Sight, behind, overview
from gitboot.hub.readers import Rows
from gitboot.model.scalars import format_instant
from gitboot.render.page import FORMAT, script_of
from gitboot.render.page.shards import COLUMNS, shard_of

_UNREAD: Final = {
    Freshness.NEVER_READ: "it was never read",
    Freshness.UNREACHABLE: "what is shown of it is as it was read at {seen}",
    Freshness.SILENT: "it has said nothing since {said}",
}


def status_script(sights: Sequence[Sight], reads: int, at: datetime) -> bytes:
    """How they fare, as the page is told of one; ``reads`` is another once servers are.

    What is one for the whole fleet, as the commits that were accepted last, is the word of the one that is furthest.
    """
    items = overview(sights, at)
    first = foremost(sights)
    known = first.status if first is not None and first.status is not None else {}
    attempted = [each.status["attempted"] for each in sights if each.status is not None]
    held = next((each for each in attempted if each["held"]), known.get("attempted"))
    facts = {
        "apiVersion": "gitboot.dev/v1alpha1",
        "at": format_instant(at),
        "changes": reads,
        "attempted": held or {"commit": None, "problems": [], "held": None},
        "accepted": known.get("accepted", {}),
        "applied": known.get("applied", {"commit": None}),
        "links": known.get("links"),
        "phases": dict(sum((Counter((each.status or {}).get("phases", {})) for each in sights), Counter())),
        "conditions": [*_unread(items), *(each for sight in sights for each in _conditions(sight))],
        "sites": items,
    }
    return script_of("status", canonical(facts))


def foremost(sights: Iterable[Sight]) -> Sight | None:
    """The one that has accepted most, of those that could be read."""
    found = [each for each in sights if each.status is not None]

    def place(sight: Sight) -> tuple[bool, bool, int]:
        by = behind(sight, [other for other in found if other is not sight])
        return sight.failure is not None, by is None, by or 0

    return min(found, key=place, default=None)


def _unread(items: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for each in items:
        if (words := _UNREAD.get(each["state"])) is not None:
            message = f"{each['failure']}: " if each["failure"] else ""
            message += words.format(seen=each["seen"], said=each["said"])
            named = {"type": f"InstanceRead/{each['instance']}", "status": False, "reason": each["state"]}
            yield {**named, "message": message, "since": each["failingSince"] or each["said"], "remedy": None}


def _conditions(sight: Sight) -> Iterable[dict[str, Any]]:
    """Those of one, each with its name; those of a BMC have that of their server."""
    for each in (sight.status or {}).get("conditions", ()):
        yield each if "/" in each["type"] else {**each, "type": f"{each['type']}/{sight.member.name}"}


def table_scripts(sights: Sequence[Sight], rows: Sequence[Rows]) -> dict[str, bytes]:
    """The servers of all of them, by the name of each script.

    Where two have a server, as for a while after it has changed its site, it is the one's that was read last.
    """
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for sight, each in sorted(zip(sights, rows, strict=True), key=lambda pair: pair[0].failure is None):
        for server in each.servers:
            at_site = {**server, "site": server.get("site") or sight.member.site}
            found[server["name"], server["uuid"]] = at_site
    shards: dict[str, list[list[Any]]] = {}
    for (name, _), server in sorted(found.items()):
        shards.setdefault(shard_of(name), []).append([server.get(column) for column in COLUMNS])
    scripts = {
        f"shard/{shard}": script_of(f"shard/{shard}", canonical({"columns": COLUMNS, "rows": each}))
        for shard, each in shards.items()
    }
    first = foremost(sights)
    shared = next((each.shared for sight, each in zip(sights, rows, strict=True) if sight is first), {})
    facts = {**shared, "format": FORMAT, "servers": len(found), "shards": sorted(shards)}
    return {**scripts, "fleet": script_of("fleet", canonical({"commit": None, **facts}))}
