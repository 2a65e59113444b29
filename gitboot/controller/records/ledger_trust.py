"""Ledger trust: heartbeats, clock checks, and the initialization of an unverified ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Final

from msgspec import structs

from gitboot.controller.records.ledger_snapshot import LedgerUpdate
from gitboot.errors import UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import Machine
from gitboot.jsonio import format_instant
from gitboot.ledger.instance_tables import Facts, Heartbeat
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import make_adopted_record, make_first_records
from gitboot.resolve.provisioning_record import (
    ADOPTED,
    CONSUMED_GRACE,
    FETCH_GRACE,
    Record,
    StepEvidence,
    find_newer_records,
)
from gitboot.resolve.server_decision import Decisions
from gitboot.system_clock import ClockState, Uptime
from gitboot.text import format_count, format_names

_HEARTBEAT_EVERY: Final = timedelta(minutes=10)
_MAX_BEHIND: Final = timedelta(minutes=2)  # the clock may be this far behind the last heartbeat
_LONGEST_GAP: Final = timedelta(hours=1)  # a longer time without heartbeats may be a gap in the ledger
_INTERVALS: Final = 5  # number of intervals between heartbeats that the ledger stores
# The texts about a clock that gitboot trusts.
CLOCK_TEXTS: Final = {
    ClockState.SYNCHRONISED: "a time service controls the clock",
    ClockState.UNSYNCHRONISED: "an operator accepted the clock as it is",
    ClockState.NEVER_SET: "no time service has set the clock since boot, which is usual in a container",
    ClockState.UNKNOWN: "the kernel does not report whether a time service controls the clock",
}
_UNVERIFIED_TEXTS: Final = {
    "RestoredLedger": "the ledger is an older copy, for example from a backup, so later installations may be missing "
    "from it. gitboot does not install servers until you confirm the records with gitboot records begin",
    "ForeignLedger": "the files in OUTPUT were published with another ledger, so this instance may lack records. "
    "gitboot does not install servers until you choose another --out, or run gitboot records begin to state what is "
    "installed",
    "DamagedLedger": "the ledger was damaged, so gitboot made a new ledger without records. gitboot does not install "
    "servers until you run gitboot records begin to state which servers are installed",
}


class InitMode(StrEnum):
    """The choice of records with which an operator initializes a ledger."""

    FRESH = "fresh"  # no server is installed: every server with provision 1 or more will be installed
    ADOPT = "adopt"  # every server has the installation that Git describes
    AS_RECORDED = "as-recorded"  # the records in this ledger are correct
    RECORDS = "records"  # the records in an exported file are correct


_BEGINNING_TEXTS: Final = {
    InitMode.FRESH: "no installed servers, except servers with provision 0",
    InitMode.ADOPT: "every server installed as Git describes it",
    InitMode.AS_RECORDED: "its own records",
    InitMode.RECORDS: "exported records",
}


# The clock


def describe_clock_lag(facts: Facts, at: datetime) -> str | None:
    """Return why the clock may be wrong, or None if the clock is not behind the ledger's last heartbeat."""
    beat = facts.heartbeat
    if beat is None or beat.at - at <= _MAX_BEHIND:
        return None
    return (
        f"the clock may be wrong: it shows {format_instant(at)}, but the last ledger entry is from "
        f"{format_instant(beat.at)}. If the clock is wrong, correct it. If the clock is correct now but was ahead "
        "earlier, run gitboot records confirm-clock"
    )


def describe_unsynced_clock(facts: Facts, clock_state: ClockState) -> str | None:
    """Return a message if no time service synchronizes the clock, otherwise None.

    The result is also None if an operator has accepted the clock as it is.
    """
    is_lost = clock_state is ClockState.NEVER_SET and facts.clock == "kept"
    if facts.clock == "accepted" or (clock_state is not ClockState.UNSYNCHRONISED and not is_lost):
        return None
    return (
        "the kernel reports that no time service, such as NTP, controls the clock. Check the output of "
        "timedatectl. If you use chrony, check that chrony.conf contains rtcsync. If the clock shows the correct time, "
        "you can accept the clock as it is with gitboot records confirm-clock"
    )


def record_heartbeat(
    update: LedgerUpdate,
    clock_state: ClockState,
    *,
    is_externally_confirmed: bool,
    has_transition: bool = False,
    unwritten_clock: datetime | None = None,
    uptime: Uptime | None = None,
) -> None:
    """Record that the instance is running and what state the clock is in.

    Detect whether the instance was off for a long time. ``is_externally_confirmed`` means that a source outside STATE
    and OUTPUT confirms the ledger's newest change, so that the ledger is not an older copy. ``has_transition`` means
    that a plan changes now. In that case, the heartbeat is updated so that the transition is not undone if the clock is
    set back. For the same reason, the heartbeat is never before ``unwritten_clock``, the latest time that the clock has
    shown while the ledger could not be written.
    """
    _handle_clock_set_back(update, uptime)
    facts = update.facts
    if clock_state is ClockState.SYNCHRONISED and facts.clock != "kept":
        facts = structs.replace(facts, clock="kept")
    last = facts.heartbeat
    if last is None:
        facts = structs.replace(facts, heartbeat=Heartbeat(update.at, up=uptime))
    elif (since := update.at - last.at) >= _HEARTBEAT_EVERY:
        usual_s = median(each.total_seconds() for each in last.intervals) if last.intervals else 0
        facts = structs.replace(
            facts,
            heartbeat=Heartbeat(update.at, (*last.intervals, since)[-_INTERVALS:], uptime),
            gap=facts.gap
            or (not is_externally_confirmed and since > max(_LONGEST_GAP, 3 * timedelta(seconds=usual_s))),
        )
    elif update.at < last.at and update.before.is_trusted:
        _end_grace_periods(update, update.at, is_far=-since > _MAX_BEHIND)
    update.facts = structs.replace(facts, gap=facts.gap and not is_externally_confirmed)
    if has_transition or unwritten_clock is not None:
        refresh_heartbeat(update, uptime)
    last = update.facts.heartbeat
    if last is not None and unwritten_clock is not None and unwritten_clock > last.at:
        update.set_facts(heartbeat=last._replace(at=unwritten_clock, up=None))


def refresh_heartbeat(update: LedgerUpdate, uptime: Uptime | None = None) -> None:
    """Set the heartbeat to the current time. Call this function if the ledger is going to be written anyway."""
    last = update.facts.heartbeat
    if last is not None and update.at > last.at:
        update.set_facts(heartbeat=last._replace(at=update.at, up=uptime))


def accept_clock(update: LedgerUpdate) -> None:
    """Accept the clock as it is, as requested by an operator."""
    last = update.facts.heartbeat
    update.set_facts(heartbeat=Heartbeat(update.at, last.intervals if last is not None else ()), clock="accepted")


def _handle_clock_set_back(update: LedgerUpdate, uptime: Uptime | None) -> None:
    """End grace periods if the kernel's uptime shows that the clock was set back since the last heartbeat."""
    last = update.facts.heartbeat
    if last is None or uptime is None or last.up is None or not uptime.boot or last.up.boot != uptime.boot:
        return
    expected = last.at + timedelta(seconds=uptime.seconds - last.up.seconds)
    if expected - update.at >= FETCH_GRACE and update.before.is_trusted:
        _end_grace_periods(update, update.at - FETCH_GRACE, is_far=False)
        seconds = uptime.seconds - (update.at - last.at).total_seconds()
        update.set_facts(heartbeat=last._replace(up=Uptime(uptime.boot, seconds)))


def _end_grace_periods(update: LedgerUpdate, since: datetime, *, is_far: bool) -> None:
    """End all grace periods that began after ``since``, so that they do not start again when the clock catches up.

    gitboot can measure how far the clock is behind, but not how far it was set back. Unless the clock is far behind,
    gitboot keeps waiting for the evidence of consumed overrides, which may still arrive.
    """
    at, machines = update.at, update.before.machines
    before_grace = at - FETCH_GRACE

    def move_before_grace(seen: StepEvidence) -> StepEvidence:
        return seen._replace(at=before_grace) if seen.at > since else seen

    def end_grace_periods(record: Record) -> Record:
        provisioned_at, consumed_at = record.provisioned_at, record.consumed_at
        grace_until = record.grace_until
        if provisioned_at is not None and provisioned_at > since:
            grace_until = None
        # With an override or a served boot, the time belongs to these.
        if provisioned_at is not None and consumed_at is None and not record.attempts:
            provisioned_at = min(provisioned_at, at)
        if is_far and consumed_at is not None and consumed_at > at:
            consumed_at = at - CONSUMED_GRACE
        return replace(
            record,
            provisioned_at=provisioned_at,
            grace_until=grace_until,
            attempts=tuple(
                structs.replace(attempt, boots=tuple(map(move_before_grace, attempt.boots)))
                for attempt in record.attempts
            ),
            consumed_at=consumed_at,
            runs={name: run._replace(at=before_grace) if run.at > since else run for name, run in record.runs.items()},
            unknown_serves=tuple(serve._replace(seen=move_before_grace(serve.seen)) for serve in record.unknown_serves),
        )

    for uuid, record in update.before.records.items():
        name = machines[uuid].name if uuid in machines else uuid
        update.write_record(uuid, name, end_grace_periods(record))


# Unverified ledgers


def find_unverified_reason(facts: Facts, decisions: Decisions) -> str | None:
    """Return why the ledger is unverified, as a reason in CamelCase, or None if the ledger is verified."""
    if facts.doubt is not None:
        return facts.doubt
    if facts.foreign is not None:
        return "ForeignLedger"
    if facts.initialised is not None:
        return None
    has_installs = any(decision.provision > 0 for decision in decisions.servers.values())
    return "NewLedger" if has_installs else None  # if no server is to be installed, nothing needs verification


def describe_unverified_ledger(facts: Facts, decisions: Decisions) -> tuple[str, str] | None:
    """Return the reason why the ledger is unverified and a message, or None if the ledger is verified."""
    if (reason := find_unverified_reason(facts, decisions)) is None:
        return None
    provisioned = sum(decision.provision > 0 for decision in decisions.servers.values())
    return reason, _UNVERIFIED_TEXTS.get(
        reason,
        "the ledger is new, so gitboot does not know which servers are already installed. Git requires gitboot to "
        f"install {format_count(provisioned, 'server')}. gitboot does not install servers until you run gitboot "
        "records begin to state which servers are installed",
    )


def initialise_ledger(
    update: LedgerUpdate,
    commit: Commit,
    init_mode: InitMode,
    records: Mapping[SystemUuid, Record],
) -> str:
    """Initialize an unverified ledger with the records that an operator chose. Return a description of the result.

    A verified ledger stays unchanged. ``records`` are the records in an exported file. Raises `UsageError` if the
    choice is not possible for this ledger.
    """
    facts, decisions = update.facts, commit.decisions.servers.values()
    names = {decision.uuid: decision.server for decision in decisions}
    doubt = find_unverified_reason(facts, commit.decisions)
    if doubt is None:
        if facts.initialised is None and init_mode is InitMode.ADOPT:  # the first commit adopts servers by itself
            return f"the ledger begins with {_BEGINNING_TEXTS[init_mode]}: no server has a provision number above 0"
        return "the ledger is verified already. Use gitboot records set for single servers"
    _check_init_mode(update, init_mode, records, doubt, names)
    number = update.next_decision_number()
    withdrawn = _find_withdrawn_records(update, records) if doubt == "RestoredLedger" else {}
    if init_mode is not InitMode.AS_RECORDED:
        update.discards_records = True
        update.new_records.clear()
    if init_mode is InitMode.FRESH:
        for uuid, server, record in make_first_records(decisions, {}, adopt_all=False):
            update.write_record(uuid, server, record)
    if init_mode is InitMode.ADOPT:
        for decision in decisions:
            adopted = make_adopted_record(decision, update.at)
            update.write_record(decision.uuid, decision.server, replace(adopted, offered=number))
    if init_mode is InitMode.RECORDS:
        newer = frozenset(find_newer_records(withdrawn, records, lambda uuid: (withdrawn[uuid].consumed_key,)))
        # Include machines that are not in the fleet now, because they may come back.
        for uuid, record in records.items():
            # Decision numbers in the file belong to another ledger.
            new_record = replace(withdrawn[uuid] if uuid in newer else record, offered=number, answered=0, taken_back=0)
            update.write_record(uuid, names.get(uuid, uuid), new_record)
        for uuid, name in names.items():  # servers that the file does not contain stay unknown
            update.machines[uuid] = Machine(uuid=uuid, name=name, macs=(), serial=None, bmc=None)
    update.set_facts(
        initialised=init_mode,
        begun=update.at,
        doubt=None,
        foreign=None,
        heir_of=facts.foreign or facts.heir_of,
    )
    return f"{doubt}: the ledger begins with {_BEGINNING_TEXTS[init_mode]}"


def _find_withdrawn_records(update: LedgerUpdate, records: Mapping[SystemUuid, Record]) -> dict[SystemUuid, Record]:
    """Return this ledger's records of servers that are pending in ``records`` but adopted in this ledger.

    A restored ledger has learned from Git that these servers are no longer to be installed.
    """
    withdrawn = {}
    for uuid, record in records.items():
        own = update.record(uuid)
        if record.provision is None and own is not None and own.evidence == ADOPTED:
            withdrawn[uuid] = own
    return withdrawn


def _check_init_mode(
    update: LedgerUpdate,
    init_mode: InitMode,
    records: Mapping[SystemUuid, Record],
    reason: str,
    names: Mapping[SystemUuid, str],
) -> None:
    """Raise `UsageError` if an operator must not choose these records for a ledger that is unverified for a reason."""
    known = update.before
    if init_mode is InitMode.FRESH and reason != "NewLedger":
        raise UsageError(
            f"`fresh` is allowed only for a new ledger ({reason}), because it makes gitboot install every server; "
            "use `adopt` or a file with exported records"
        )
    if init_mode is InitMode.AS_RECORDED and (known.facts.initialised is None or reason == "DamagedLedger"):
        raise UsageError(f"this ledger has no usable records ({reason}). Use `adopt` or a file with exported records")
    missing: list[SystemUuid] = []
    if init_mode is InitMode.RECORDS:
        consumed = {uuid: (record.consumed_key,) for uuid, record in records.items()}
        missing = find_newer_records(known.published_records, records, lambda uuid: consumed.get(uuid, ()))
    if init_mode is InitMode.AS_RECORDED:
        missing = find_newer_records(
            known.published_records, known.records, lambda uuid: known.overrides.get(uuid, {}).keys()
        )
    if missing:
        raise UsageError(
            f"the published tree has newer records for {format_count(len(missing), 'server')}: "
            f"{format_names([names.get(uuid, uuid) for uuid in missing])}. Use the folder `ops/records` in that tree"
        )
