"""Ledger trust: how far the clock and a ledger that was unused for a while can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Final

from msgspec import structs

from gitboot.controller.records.ledger_snapshot import Learning
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.identities import Machine
from gitboot.jsonio import format_instant
from gitboot.ledger.instance_tables import Facts, Heartbeat
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.boot_limits import CONSUMED_GRACE, FETCH_GRACE
from gitboot.resolve.install_attempts import adopted, first_records
from gitboot.resolve.provisioning_record import (
    Record,
    Seen,
    ahead,
)
from gitboot.resolve.server_decision import Decisions
from gitboot.system_clock import Keeping, Uptime
from gitboot.text import count, some

_BEAT_EVERY: Final = timedelta(minutes=10)
_MOST_BEHIND: Final = timedelta(minutes=2)
_LONGEST_GAP: Final = timedelta(hours=1)
_INTERVALS: Final = 5  # that are remembered


def behind(about: Facts, at: datetime) -> str | None:
    """How the clock is behind what the ledger has seen; None: it is not."""
    beat = about.heartbeat
    if beat is None or beat.at - at <= _MOST_BEHIND:
        return None
    return (
        f"the clock says {format_instant(at)}, and the ledger was written to at {format_instant(beat.at)}: correct the "
        "clock; where it was ahead before, accept it with gitboot records confirm-clock"
    )


def unkept(about: Facts, keeping: Keeping) -> str | None:
    """Why the kernel does not vouch for the clock; None: it does, or never did and was never asked to."""
    is_lost = keeping is Keeping.UNKEPT and about.clock == "kept"
    if about.clock == "accepted" or (keeping is not Keeping.UNSYNCHRONISED and not is_lost):
        return None
    return (
        "the kernel says that no time service keeps the clock right: see to it (timedatectl, chronyc tracking; chrony "
        "needs rtcsync), or accept the clock as it is with gitboot records confirm-clock"
    )


def beat(
    learning: Learning,
    keeping: Keeping,
    *,
    witnessed: bool,
    turned: bool = False,
    up: Uptime | None = None,
) -> None:
    """Note that the instance is alive, and how its clock is kept; and notice for how long it was not alive.

    ``witnessed``: something outside STATE and OUTPUT knows the ledger's newest change: they are no older copy.
    ``turned``: a plan turns at this instant, and is not to turn back by a clock that does.
    """
    _notice_set_back(learning, up)
    about = learning.facts
    if keeping is Keeping.SYNCHRONISED and about.clock != "kept":
        about = structs.replace(about, clock="kept")
    last = about.heartbeat
    if last is None:
        about = structs.replace(about, heartbeat=Heartbeat(learning.at, up=up))
    elif (since := learning.at - last.at) >= _BEAT_EVERY:
        intervals = (*last.intervals, since)[-_INTERVALS:]
        usual_s = median(each.total_seconds() for each in last.intervals) if last.intervals else 0
        is_gap = since > max(_LONGEST_GAP, 3 * timedelta(seconds=usual_s))
        about = structs.replace(
            about, heartbeat=Heartbeat(learning.at, intervals, up), gap=about.gap or (not witnessed and is_gap)
        )
    elif learning.at < last.at and learning.known.is_trusted:
        _close_graces(learning, learning.at, is_far=-since > _MOST_BEHIND)
    learning.facts = about
    if witnessed and about.gap:
        learning.facts = structs.replace(about, gap=False)
    if turned:
        refresh(learning, up)


def refresh(learning: Learning, up: Uptime | None = None) -> None:
    """Note that something is written at this instant; that costs nothing besides."""
    last = learning.facts.heartbeat
    if last is not None and learning.at > last.at:
        learning.facts = structs.replace(learning.facts, heartbeat=last._replace(at=learning.at, up=up))


def accept_clock(learning: Learning) -> None:
    """Go by the present clock, as a person says."""
    about = learning.facts
    intervals = about.heartbeat.intervals if about.heartbeat is not None else ()
    learning.facts = structs.replace(about, heartbeat=Heartbeat(learning.at, intervals), clock="accepted")


def _notice_set_back(learning: Learning, up: Uptime | None) -> None:
    """Close what was open for a while by a clock that was set back since: the kernel tells how long it has run."""
    last = learning.facts.heartbeat
    if last is None or up is None or last.up is None or not up.boot or last.up.boot != up.boot:
        return
    expected = last.at + timedelta(seconds=up.seconds - last.up.seconds)
    if expected - learning.at >= FETCH_GRACE and learning.known.is_trusted:
        _close_graces(learning, learning.at - FETCH_GRACE, is_far=False)
        as_it_is = Uptime(up.boot, up.seconds - (learning.at - last.at).total_seconds())
        learning.facts = structs.replace(learning.facts, heartbeat=last._replace(up=as_it_is))


def _close_graces(learning: Learning, since: datetime, *, is_far: bool) -> None:
    """Take what is noted as later than ``since`` for just over: nothing opens when the clock gets there again.

    How far a clock went back is not known, only how far it is behind. Evidence of what was consumed may still be on its
    way: unless it is far behind, that is waited for.
    """
    at, known = learning.at, learning.known
    over = at - FETCH_GRACE

    def seen_before(seen: Seen) -> Seen:
        return seen._replace(at=over) if seen.at > since else seen

    for uuid, record in known.records.items():
        fetched, consumed = record.provisioned_at, record.consumed_at
        is_untouched = consumed is None and not record.attempts  # else the instant is part of what was set or given
        now = replace(
            record,
            provisioned_at=min(fetched, at) if fetched is not None and is_untouched else fetched,
            grace_until=None if fetched is not None and fetched > since else record.grace_until,
            attempts=tuple(
                structs.replace(each, boots=tuple(map(seen_before, each.boots))) for each in record.attempts
            ),
            consumed_at=at - CONSUMED_GRACE if is_far and consumed is not None and consumed > at else consumed,
            runs={name: made._replace(at=over) if made.at > since else made for name, made in record.runs.items()},
            unknown_serves=tuple(each._replace(seen=seen_before(each.seen)) for each in record.unknown_serves),
        )
        learning.write_record(uuid, known.machines[uuid].name if uuid in known.machines else uuid, now)


class Beginning(StrEnum):
    """What a ledger begins with."""

    FRESH = "fresh"  # no server that wants provision 1 or more is installed
    ADOPT = "adopt"  # every server is installed as Git wants it
    AS_RECORDED = "as-recorded"  # what this ledger says is right
    RECORDS = "records"  # what a file of exported records says


_WORDED = {
    Beginning.FRESH: "none of its servers installed",
    Beginning.ADOPT: "every server installed as Git wants it",
    Beginning.AS_RECORDED: "what it has recorded",
    Beginning.RECORDS: "exported records",
}


def doubt_of(about: Facts, decisions: Decisions) -> str | None:
    """Why the ledger is not trusted, if it is not: one word."""
    if about.doubt is not None:
        return about.doubt
    if about.foreign is not None:
        return "ForeignLedger"
    if about.initialised is not None:
        return None
    wanting = any(decision.provision > 0 for decision in decisions.servers.values())
    return "NewLedger" if wanting else None  # else nothing would be installed, whatever is said


def begin(
    learning: Learning,
    commit: Commit,
    how: Beginning,
    records: Mapping[SystemUuid, Record],
) -> str:
    """Take a person's word for what is installed; return what that came to. A ledger in no doubt stays as it is.

    ``records`` are those of a file. Raises `UsageError` where that cannot be said of this ledger.
    """
    about, servers = learning.facts, commit.decisions.servers.values()
    names = {each.uuid: each.server for each in servers}
    if (doubt := doubt_of(about, commit.decisions)) is None:
        return "the ledger is in no doubt, and nothing is changed (gitboot records set says it of single servers)"
    _check(learning, how, records, doubt, names)
    number = learning.decide()
    if how is not Beginning.AS_RECORDED:
        learning.forgotten = True
        learning.new_records.clear()
    if how is Beginning.FRESH:
        for uuid, server, record in first_records(servers, {}, adopt_all=False):
            learning.write_record(uuid, server, record)
    if how is Beginning.ADOPT:
        for each in servers:
            learning.write_record(each.uuid, each.server, replace(adopted(each, learning.at), offered=number))
    if how is Beginning.RECORDS:
        for uuid, record in records.items():  # one that is not in the fleet now may come back
            said = replace(record, offered=number, answered=0, taken_back=0)  # its own are of another ledger's sequence
            learning.write_record(uuid, names.get(uuid, uuid), said)
        for each in servers:  # who is not in the file stays unknown
            learning.machines[each.uuid] = Machine(uuid=each.uuid, name=each.server, macs=(), serial=None, bmc=None)
    heir_of = about.foreign or about.heir_of
    learning.facts = structs.replace(
        learning.facts, initialised=how, begun=learning.at, doubt=None, foreign=None, heir_of=heir_of
    )
    return f"{doubt}: the ledger begins with {_WORDED[how]}"


def _check(
    learning: Learning,
    how: Beginning,
    records: Mapping[SystemUuid, Record],
    doubt: str,
    names: Mapping[SystemUuid, str],
) -> None:
    known = learning.known
    if how is Beginning.FRESH and doubt != "NewLedger":
        raise UsageError(f"fresh is for a new ledger, and this one is none ({doubt}): every server would be installed")
    if how is Beginning.AS_RECORDED and (known.facts.initialised is None or doubt == "DamagedLedger"):
        raise UsageError(f"nothing is recorded in this ledger ({doubt}); say adopt, or name a file of exported records")
    lacking: list[SystemUuid] = []
    if how is Beginning.RECORDS:
        consumed = {uuid: (each.consumed_key,) for uuid, each in records.items()}
        lacking = ahead(known.published, records, lambda uuid: consumed.get(uuid, ()))
    if how is Beginning.AS_RECORDED:
        lacking = ahead(known.published, known.records, lambda uuid: known.overrides.get(uuid, {}).keys())
    if lacking:
        raise UsageError(
            f"the published tree knows more, of {count(len(lacking), 'server')}: "
            f"{some([names.get(uuid, uuid) for uuid in lacking])}; take "
            "ops/records of that tree"
        )
