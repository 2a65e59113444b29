"""Whose machine may be switched now: waves of maintenances, by what BMCs have shown and the ledger knows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from gitboot.bmc.override_state import State
from gitboot.bmc.power_steps import Manner, SwitchRecord, SwitchState
from gitboot.bmc.step_runner import Outcome
from gitboot.controller.bmcs.desired_state import Ask, PowerAsk
from gitboot.controller.bmcs.schedule import Appointment, Schedule
from gitboot.controller.learn.ledger_snapshot import Knowledge
from gitboot.resolve.waves import Member, turns


def granted(schedule: Schedule, knowledge: Knowledge, at: datetime, patience: timedelta) -> Schedule:
    """With whose turn it is; nobody's of a maintenance in which one has not come back within ``patience``."""
    if not schedule.switching:
        return replace(schedule, going=frozenset(), stopped={}) if schedule.going or schedule.stopped else schedule
    going, members, uuids = set(), [], {}
    for uuid in sorted(schedule.switching):
        ask, seen = schedule.asks[uuid], schedule.appointments.get(uuid)
        assert ask.power is not None  # noqa: S101 - that is who is switching
        record = knowledge.switches.get(uuid, {}).get(ask.power.switching.reason)
        if (maintenance := ask.power.maintenance) is None:
            going |= {uuid} if _is_ready(ask, ask.power, seen, record, at) else set()
        else:
            members.append(_member(ask, ask.power, maintenance, seen, record, at, patience))
            uuids[ask.name] = uuid
    found = turns(members, at, patience)
    return replace(schedule, going=frozenset(going | {uuids[name] for name in found.go}), stopped=found.stopped)


def _member(
    ask: Ask,
    power: PowerAsk,
    maintenance: str,
    seen: Appointment | None,
    record: SwitchRecord | None,
    at: datetime,
    patience: timedelta,
) -> Member:
    since = [each.since for each in ask.switches if each is not record and _counts_still(each, seen, at, patience)]
    if record is not None and record.state.is_open and not _is_back(power, seen, record):
        since.append(record.since)
    is_unread = seen is None or seen.outcome is None or seen.granted
    is_down = seen is not None and (seen.power == "Off" or seen.in_post) and power.switching.manner is not Manner.ON
    return Member(
        name=ask.name,
        maintenance=maintenance,
        group=power.group,
        limit=power.limit,
        ready=_is_ready(ask, power, seen, record, at),
        away_since=min(since, default=None),
        down=is_unread or is_down,
    )


def _is_ready(ask: Ask, power: PowerAsk, seen: Appointment | None, record: SwitchRecord | None, at: datetime) -> bool:
    """Whether a machine could be switched now, by what its BMC has shown last.

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
    return override is None or any(each.reason == override and each.state is State.CONFIRMED for each in ask.records)


def _counts_still(record: SwitchRecord, seen: Appointment | None, at: datetime, patience: timedelta) -> bool:
    """Whether a machine that was switched for another reason may be down because of that: an earlier run, say.

    Where its BMC does not show how far a boot has come, nothing will ever say that it is back.
    """
    shows = seen is None or seen.outcome is None or seen.shows_progress
    return record.state.is_open and (shows or at - record.since < patience)


def _is_back(power: PowerAsk, seen: Appointment | None, record: SwitchRecord) -> bool:
    """Whether its run is known to be made, where its BMC does not show how far a boot has come."""
    if seen is None or seen.outcome is None or seen.shows_progress or record.state is SwitchState.RECORDED:
        return False
    return power.run_at is not None and power.run_at >= record.since
