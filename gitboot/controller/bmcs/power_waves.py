"""Power waves: which machines of a maintenance may be switched now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field, structs

from gitboot.bmc.override_session import BmcTask, Outcome
from gitboot.bmc.override_state import State
from gitboot.bmc.power_steps import Manner, SwitchRecord, SwitchState
from gitboot.controller.bmcs.desired_state import PowerPlan
from gitboot.controller.bmcs.schedule import BmcState, Schedule
from gitboot.controller.records.ledger_snapshot import Knowledge


def grant_turns(schedule: Schedule, knowledge: Knowledge, at: datetime, patience: timedelta) -> Schedule:
    """Return the schedule with the machines whose turn it is.

    A maintenance stops if one of its machines has not come back within ``patience``.
    """
    if not schedule.power:
        return (
            structs.replace(schedule, going=frozenset(), stopped={}) if schedule.going or schedule.stopped else schedule
        )
    going, members, uuids = set(), [], {}
    for uuid, power in sorted(schedule.power.items()):
        task, seen = schedule.tasks[uuid], schedule.bmcs.get(uuid)
        record = knowledge.switches.get(uuid, {}).get(power.switching.reason)
        is_ready = _is_ready(task, power, seen, record, at)
        if power.maintenance is None:
            going |= {uuid} if is_ready else set()
            continue
        since = [each.since for each in task.switches if each is not record and _counts_still(each, seen, at, patience)]
        if record is not None and record.state.is_open and not _is_back(power, seen, record):
            since.append(record.since)
        is_unread = seen is None or seen.outcome is None or seen.granted
        is_down = seen is not None and (seen.power == "Off" or seen.in_post) and power.switching.manner is not Manner.ON
        uuids[task.server] = uuid
        members.append(
            Member(
                name=task.server,
                maintenance=power.maintenance,
                group=power.group,
                limit=power.limit,
                ready=is_ready,
                away_since=min(since, default=None),
                down=is_unread or is_down,
            )
        )
    found = choose_turns(members, at, patience)
    return structs.replace(schedule, going=frozenset(going | {uuids[name] for name in found.go}), stopped=found.stopped)


def _is_ready(
    task: BmcTask, power: PowerPlan, seen: BmcState | None, record: SwitchRecord | None, at: datetime
) -> bool:
    """Return whether a machine could be switched now, by what its BMC has shown last.

    Its override stands, and its power is what it has to be. One that was to be switched and was not is looked at again
    first.
    """
    if seen is None or not power.is_due or seen.outcome not in (Outcome.UNCHANGED, Outcome.APPLIED) or seen.granted:
        return False
    if record is not None and record.state is not SwitchState.REFUSED:
        return False
    if (seen.held and at < seen.due) or seen.in_post:
        return False
    if seen.power != ("Off" if power.switching.manner is Manner.ON else "On"):
        return False
    override = power.switching.override
    return override is None or any(each.reason == override and each.state is State.CONFIRMED for each in task.records)


def _counts_still(record: SwitchRecord, seen: BmcState | None, at: datetime, patience: timedelta) -> bool:
    """Return whether a machine that was switched for another reason may be down because of that: an earlier run, say.

    If its BMC does not show the boot progress, gitboot cannot learn that the machine is back.
    """
    shows = seen is None or seen.outcome is None or seen.shows_progress
    return record.state.is_open and (shows or at - record.since < patience)


def _is_back(power: PowerPlan, seen: BmcState | None, record: SwitchRecord) -> bool:
    """Return whether the run of a machine was made, if its BMC does not show the boot progress."""
    if seen is None or seen.outcome is None or seen.shows_progress or record.state is SwitchState.RECORDED:
        return False
    return power.run_at is not None and power.run_at >= record.since


class Member(Struct, frozen=True, kw_only=True):
    """A server of a maintenance that switches power, as far as it is known."""

    name: str
    maintenance: str
    group: str | None  # of those that the limit is for: a site, a label's value; None: all, or those without
    limit: str  # how many of the group may be down: a number or a percentage
    ready: bool  # whether it could be switched now, were it its turn
    away_since: datetime | None = None  # since when it is to be back; None: it was not switched, or is back
    down: bool = False  # whether it is, or may be, down without having been switched


class WhoseTurn(Struct, frozen=True, kw_only=True):
    """Whose turn it is, by names."""

    go: frozenset[str] = frozenset()
    stopped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by maintenance: who does not come back


def choose_turns(members: Iterable[Member], at: datetime, patience: timedelta) -> WhoseTurn:
    """Return the members that may be switched at ``at``: by name, as many of each group as may be down.

    If a server was switched and has not come back within ``patience``, its maintenance stops in all groups until then.
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
            limit = group[0].limit  # of a percentage, rounded down, at least one: with none, nothing would go on
            most = max(int(limit[:-1]) * len(group) // 100, 1) if limit.endswith("%") else int(limit)
            spare = most - sum(each.down or each.away_since is not None for each in group)
            go.update(sorted(each.name for each in group if each.ready)[: max(spare, 0)])
    return WhoseTurn(go=frozenset(go), stopped={name: tuple(sorted(who)) for name, who in sorted(stopped.items())})
