"""gitboot.resolve.install_attempts_from_resolve_records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from gitboot.model.graces import FETCH_GRACE
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.provisioning_record_from_plan import Record, Run
from gitboot.resolve.server_decision_from_plan import Decision


def first_records(
    decisions: Iterable[Decision], known: Mapping[SystemUuid, Record], *, adopt_all: bool
) -> list[tuple[SystemUuid, str, Record]]:
    """Records for servers that a ledger sees for the first time.

    A server is adopted as it stands, its wanted key as provisioned, when its provision number is 0 (nothing is
    reinstalled by taking over a running fleet), and is pending when it is 1 or more; with ``adopt_all``
    all are adopted.
    """
    return [
        (decision.uuid, decision.server, adopted(decision) if adopt_all or decision.provision == 0 else Record())
        for decision in decisions
        if decision.uuid not in known
    ]


def adopted(decision: Decision, at: datetime | None = None) -> Record:
    """The record of a server that is as its decision wants it.

    With an instant, the runs of maintenances that had begun by then count as made, so long ago that nothing is given
    once more; and what was fetched before it says nothing.
    """
    policy = decision.policy
    begun = [each for each in decision.maintenances if at is not None and (each.start is None or each.start <= at)]
    return Record(
        provision=decision.provision,
        image=policy.boot.image if policy and policy.boot else None,
        pool=policy.policy if policy else None,
        decision=decision.digest,
        evidence="Adopted",
        provisioned_at=at,
        runs={each.name: Run(each.run, at - FETCH_GRACE, each.end) for each in begun if at is not None},
    )


def ran(record: Record, maintenance: str, made: Run, *, once: bool, overwrites: bool) -> Record:
    """The record once a maintenance's boot was made; one that writes disks leaves them unknown."""
    return replace(
        record,
        runs={**record.runs, maintenance: made} if once else record.runs,
        overwritten_by=maintenance if overwrites else record.overwritten_by,
    )
