"""Ledger trust: how far the clock and a ledger that was unused for a while can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Final

from msgspec import structs

from gitboot.controller.records.ledger_snapshot import KnowledgeUpdate
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.identities import Machine
from gitboot.jsonio import format_instant
from gitboot.ledger.instance_tables import Facts, Heartbeat
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.boot_limits import CONSUMED_GRACE, FETCH_GRACE
from gitboot.resolve.install_attempts import make_adopted_record, make_first_records
from gitboot.resolve.provisioning_record import (
    Record,
    StepEvidence,
    find_newer_records,
)
from gitboot.resolve.server_decision import Decisions
from gitboot.system_clock import ClockState, Uptime
from gitboot.text import format_count, format_names

_BEAT_EVERY: Final = timedelta(minutes=10)
_MOST_BEHIND: Final = timedelta(minutes=2)
_LONGEST_GAP: Final = timedelta(hours=1)
_INTERVALS: Final = 5  # that are remembered


def describe_clock_lag(about: Facts, at: datetime) -> str | None:
    """How the clock is behind what the ledger has seen; None: it is not."""
    beat = about.heartbeat
    if beat is None or beat.at - at <= _MOST_BEHIND:
        return None
    return (
        f"the clock says {format_instant(at)}, and the ledger was written to at {format_instant(beat.at)}: correct the "
        "clock; where it was ahead before, accept it with gitboot records confirm-clock"
    )


def describe_unkept_clock(about: Facts, clock_state: ClockState) -> str | None:
    """Why the kernel does not vouch for the clock; None: it does, or never did and was never asked to."""
    is_lost = clock_state is ClockState.UNKEPT and about.clock == "kept"
    if about.clock == "accepted" or (clock_state is not ClockState.UNSYNCHRONISED and not is_lost):
        return None
    return (
        "the kernel says that no time service keeps the clock right: see to it (timedatectl, chronyc tracking; chrony "
        "needs rtcsync), or accept the clock as it is with gitboot records confirm-clock"
    )


def record_heartbeat(
    update: KnowledgeUpdate,
    clock_state: ClockState,
    *,
    is_externally_confirmed: bool,
    has_transition: bool = False,
    uptime: Uptime | None = None,
) -> None:
    """Note that the instance is alive, and how its clock is kept; and notice for how long it was not alive.

    ``witnessed``: something outside STATE and OUTPUT knows the ledger's newest change: they are no older copy.
    ``turned``: a plan turns at this instant, and is not to turn back by a clock that does.
    """
    _handle_clock_set_back(update, uptime)
    about = update.facts
    if clock_state is ClockState.SYNCHRONISED and about.clock != "kept":
        about = structs.replace(about, clock="kept")
    last = about.heartbeat
    if last is None:
        about = structs.replace(about, heartbeat=Heartbeat(update.at, up=uptime))
    elif (since := update.at - last.at) >= _BEAT_EVERY:
        intervals = (*last.intervals, since)[-_INTERVALS:]
        usual_s = median(each.total_seconds() for each in last.intervals) if last.intervals else 0
        is_gap = since > max(_LONGEST_GAP, 3 * timedelta(seconds=usual_s))
        about = structs.replace(
            about,
            heartbeat=Heartbeat(update.at, intervals, uptime),
            gap=about.gap or (not is_externally_confirmed and is_gap),
        )
    elif update.at < last.at and update.before.is_trusted:
        _end_grace_periods(update, update.at, is_far=-since > _MOST_BEHIND)
    update.facts = about
    if is_externally_confirmed and about.gap:
        update.facts = structs.replace(about, gap=False)
    if has_transition:
        refresh_heartbeat(update, uptime)


def refresh_heartbeat(update: KnowledgeUpdate, uptime: Uptime | None = None) -> None:
    """Note that something is written at this instant; that costs nothing besides."""
    last = update.facts.heartbeat
    if last is not None and update.at > last.at:
        update.facts = structs.replace(update.facts, heartbeat=last._replace(at=update.at, up=uptime))


def accept_clock(update: KnowledgeUpdate) -> None:
    """Go by the present clock, as a person says."""
    about = update.facts
    intervals = about.heartbeat.intervals if about.heartbeat is not None else ()
    update.facts = structs.replace(about, heartbeat=Heartbeat(update.at, intervals), clock="accepted")


def _handle_clock_set_back(update: KnowledgeUpdate, uptime: Uptime | None) -> None:
    """Close what was open for a while by a clock that was set back since: the kernel tells how long it has run."""
    last = update.facts.heartbeat
    if last is None or uptime is None or last.up is None or not uptime.boot or last.up.boot != uptime.boot:
        return
    expected = last.at + timedelta(seconds=uptime.seconds - last.up.seconds)
    if expected - update.at >= FETCH_GRACE and update.before.is_trusted:
        _end_grace_periods(update, update.at - FETCH_GRACE, is_far=False)
        as_it_is = Uptime(uptime.boot, uptime.seconds - (update.at - last.at).total_seconds())
        update.facts = structs.replace(update.facts, heartbeat=last._replace(up=as_it_is))


def _end_grace_periods(update: KnowledgeUpdate, since: datetime, *, is_far: bool) -> None:
    """Take what is noted as later than ``since`` for just over: nothing opens when the clock gets there again.

    How far a clock went back is not known, only how far it is behind. Evidence of what was consumed may still be on its
    way: unless it is far behind, that is waited for.
    """
    at, known = update.at, update.before
    over = at - FETCH_GRACE

    def move_before_grace(seen: StepEvidence) -> StepEvidence:
        return seen._replace(at=over) if seen.at > since else seen

    for uuid, record in known.records.items():
        fetched, consumed = record.provisioned_at, record.consumed_at
        is_untouched = consumed is None and not record.attempts  # else the instant is part of what was set or given
        now = replace(
            record,
            provisioned_at=min(fetched, at) if fetched is not None and is_untouched else fetched,
            grace_until=None if fetched is not None and fetched > since else record.grace_until,
            attempts=tuple(
                structs.replace(each, boots=tuple(map(move_before_grace, each.boots))) for each in record.attempts
            ),
            consumed_at=at - CONSUMED_GRACE if is_far and consumed is not None and consumed > at else consumed,
            runs={name: made._replace(at=over) if made.at > since else made for name, made in record.runs.items()},
            unknown_serves=tuple(each._replace(seen=move_before_grace(each.seen)) for each in record.unknown_serves),
        )
        update.write_record(uuid, known.machines[uuid].name if uuid in known.machines else uuid, now)


class Beginning(StrEnum):
    """What a ledger begins with."""

    FRESH = "fresh"  # no server that wants provision 1 or more is installed
    ADOPT = "adopt"  # every server is installed as Git wants it
    AS_RECORDED = "as-recorded"  # what this ledger says is right
    RECORDS = "records"  # what a file of exported records says


_BEGINNING_TEXTS = {
    Beginning.FRESH: "none of its servers installed",
    Beginning.ADOPT: "every server installed as Git wants it",
    Beginning.AS_RECORDED: "what it has recorded",
    Beginning.RECORDS: "exported records",
}


def find_unverified_reason(about: Facts, decisions: Decisions) -> str | None:
    """Why the ledger is not trusted, if it is not: one word."""
    if about.doubt is not None:
        return about.doubt
    if about.foreign is not None:
        return "ForeignLedger"
    if about.initialised is not None:
        return None
    wanting = any(decision.provision > 0 for decision in decisions.servers.values())
    return "NewLedger" if wanting else None  # else nothing would be installed, whatever is said


def initialise_ledger(
    update: KnowledgeUpdate,
    commit: Commit,
    beginning: Beginning,
    records: Mapping[SystemUuid, Record],
) -> str:
    """Take a person's word for what is installed; return what that came to. A ledger in no doubt stays as it is.

    ``records`` are those of a file. Raises `UsageError` where that cannot be said of this ledger.
    """
    about, servers = update.facts, commit.decisions.servers.values()
    names = {each.uuid: each.server for each in servers}
    if (doubt := find_unverified_reason(about, commit.decisions)) is None:
        return "the ledger is in no doubt, and nothing is changed (gitboot records set says it of single servers)"
    _check_beginning(update, beginning, records, doubt, names)
    number = update.count_decision()
    if beginning is not Beginning.AS_RECORDED:
        update.discards_records = True
        update.new_records.clear()
    if beginning is Beginning.FRESH:
        for uuid, server, record in make_first_records(servers, {}, adopt_all=False):
            update.write_record(uuid, server, record)
    if beginning is Beginning.ADOPT:
        for each in servers:
            update.write_record(each.uuid, each.server, replace(make_adopted_record(each, update.at), offered=number))
    if beginning is Beginning.RECORDS:
        for uuid, record in records.items():  # one that is not in the fleet now may come back
            said = replace(record, offered=number, answered=0, taken_back=0)  # its own are of another ledger's sequence
            update.write_record(uuid, names.get(uuid, uuid), said)
        for each in servers:  # who is not in the file stays unknown
            update.machines[each.uuid] = Machine(uuid=each.uuid, name=each.server, macs=(), serial=None, bmc=None)
    heir_of = about.foreign or about.heir_of
    update.facts = structs.replace(
        update.facts, initialised=beginning, begun=update.at, doubt=None, foreign=None, heir_of=heir_of
    )
    return f"{doubt}: the ledger begins with {_BEGINNING_TEXTS[beginning]}"


def _check_beginning(
    update: KnowledgeUpdate,
    beginning: Beginning,
    records: Mapping[SystemUuid, Record],
    doubt: str,
    names: Mapping[SystemUuid, str],
) -> None:
    known = update.before
    if beginning is Beginning.FRESH and doubt != "NewLedger":
        raise UsageError(f"fresh is for a new ledger, and this one is none ({doubt}): every server would be installed")
    if beginning is Beginning.AS_RECORDED and (known.facts.initialised is None or doubt == "DamagedLedger"):
        raise UsageError(f"nothing is recorded in this ledger ({doubt}); say adopt, or name a file of exported records")
    lacking: list[SystemUuid] = []
    if beginning is Beginning.RECORDS:
        consumed = {uuid: (each.consumed_key,) for uuid, each in records.items()}
        lacking = find_newer_records(known.published_records, records, lambda uuid: consumed.get(uuid, ()))
    if beginning is Beginning.AS_RECORDED:
        lacking = find_newer_records(
            known.published_records, known.records, lambda uuid: known.overrides.get(uuid, {}).keys()
        )
    if lacking:
        raise UsageError(
            f"the published tree knows more, of {format_count(len(lacking), 'server')}: "
            f"{format_names([names.get(uuid, uuid) for uuid in lacking])}; take "
            "ops/records of that tree"
        )
