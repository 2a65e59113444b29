"""What a ledger in doubt is told once, before anything is installed by it: which servers are installed already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from gitboot.controller.learn.ledger_snapshot import Learning
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.ledger.entries import Facts
from gitboot.load.machines import Machine
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.install_attempts_from_resolve_records import adopted, first_records
from gitboot.resolve.provisioning_record import ahead
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.text import count, some


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
    learning: Learning, commit: Commit, how: Beginning, records: Mapping[SystemUuid, Record], at: datetime
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
            learning.write_record(each.uuid, each.server, replace(adopted(each, at), offered=number))
    if how is Beginning.RECORDS:
        for uuid, record in records.items():  # one that is not in the fleet now may come back
            said = replace(record, offered=number, answered=0, taken_back=0)  # its own are of another ledger's sequence
            learning.write_record(uuid, names.get(uuid, uuid), said)
        learning.machines |= _bare(servers)  # who is not in the file stays unknown
    heir_of = about.foreign or about.heir_of
    learning.facts = replace(learning.facts, initialised=how, begun=at, doubt=None, foreign=None, heir_of=heir_of)
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
        lacking = ahead(known.published, records, lambda uuid: [each.consumed_key for each in _one(records, uuid)])
    if how is Beginning.AS_RECORDED:
        lacking = ahead(known.published, known.records, lambda uuid: known.overrides.get(uuid, {}).keys())
    if lacking:
        raise UsageError(
            f"the published tree knows more, of {count(len(lacking), 'server')}: "
            f"{some([names.get(uuid, uuid) for uuid in lacking])}; take "
            "ops/records of that tree"
        )


def _one(records: Mapping[SystemUuid, Record], uuid: SystemUuid) -> Iterable[Record]:
    return (records[uuid],) if uuid in records else ()


def _bare(servers: Iterable[Decision]) -> dict[SystemUuid, Machine]:
    return {each.uuid: Machine(uuid=each.uuid, name=each.server, macs=(), serial=None, bmc=None) for each in servers}
