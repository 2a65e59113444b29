"""All that the page shows of one server, as a file of its own among the server's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gitboot.fleet.identities import Machine
from gitboot.jsonio import canonical, format_instant
from gitboot.render.page import DATA, SCRIPT, script_of, shard_of
from gitboot.render.tree import File
from gitboot.resolve.server_plan import BootPlan, Cause
from gitboot.resolve.written import Written


def server_file(
    summary: Mapping[str, Any],
    document: Mapping[str, Any],
    now: BootPlan | None,
    later: Iterable[tuple[datetime, BootPlan | None]],
    machine: Machine | None,
    written: Written | None,
) -> tuple[str, File]:
    """All that the page shows of one server."""
    bmc = machine.bmc if machine is not None else None
    name = f"server/{summary['server']}"
    facts = {
        **{key: value for key, value in summary.items() if key != "server"},
        "name": summary["server"],
        "bmc": {"address": bmc.address, "system": bmc.system} if bmc is not None else None,
        "later": [_later(since, plan) for since, plan in changes(now, later)],
        "shard": shard_of(summary["server"]),
        "lines": written.lines if written is not None else None,
        "document": document,
    }
    return f"{DATA}{name}.js", File(script_of(name, canonical(facts)), SCRIPT)


def changes(
    now: BootPlan | None, later: Iterable[tuple[datetime, BootPlan | None]]
) -> Iterator[tuple[datetime, BootPlan | None]]:
    """Yield the transitions after which the server boots something else, or boots it for another maintenance.

    Leave out what is served only if no instance renders the server again until then.
    """
    before = _boots(now)
    for since, plan in later:
        if _boots(plan) != before and (plan is None or plan.cause is not Cause.UNHEARD):
            before = _boots(plan)
            yield since, plan


def _boots(plan: BootPlan | None) -> tuple[object, ...]:
    return (plan.phase, plan.maintenance, plan.boot) if plan is not None else ()


def _later(since: datetime, plan: BootPlan | None) -> dict[str, Any]:
    return {
        "from": format_instant(since),
        "phase": plan.phase if plan else None,
        "image": plan.boot.image if plan and plan.boot else None,
        "by": (plan.maintenance or plan.policy) if plan else None,
        "cause": plan.cause if plan else None,
    }
