"""BMCs looked at: per server what is wanted, seen, recorded and proven, and what would come next; nothing is set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gitboot.bmc.apply import would_send
from gitboot.bmc.fleet import Connections
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, UsageError
from gitboot.ledger import Ledger
from gitboot.machines import BmcAccess, Machine
from gitboot.model.scalars import SystemUuid, format_instant
from gitboot.override import (
    Armed,
    AskOperator,
    Confirm,
    Leave,
    Observed,
    Override,
    Set,
    Step,
    Wait,
    Wanted,
    Withdraw,
    next_step,
)
from gitboot.overriding import wanted_by
from gitboot.plan import BootPlan, Decision, Record
from gitboot.provisioning import Provisioning
from gitboot.resolve import Decisions, plan

PARALLEL = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One machine that has a BMC, or on whose BMC something of gitboot's may stand."""

    name: str
    uuid: SystemUuid
    bmc: BmcAccess
    decision: Decision | None  # None: no document describes it any more
    plan: BootPlan | None
    record: Record | None
    wanted: Wanted | None
    armed: tuple[Armed, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What was found."""

    subject: Subject
    seen: Observed | None  # None: it could not be read
    step: Step | None
    failure: str | None

    @property
    def needs_a_person(self) -> bool:
        return isinstance(self.step, AskOperator)

    @property
    def is_settled(self) -> bool:
        return isinstance(self.step, Leave)

    @property
    def patch(self) -> str | None:
        """What would be sent to the BMC: a path and a body."""
        return would_send(self.step, self.seen) if self.seen is not None else None

    def facts(self) -> dict[str, Any]:
        subject, record = self.subject, self.subject.record
        return {
            "server": subject.name,
            "uuid": subject.uuid,
            "bmc": subject.bmc.address,
            "phase": subject.plan.phase if subject.plan else None,
            "cause": subject.plan.cause if subject.plan else None,
            "wanted": _facts(subject.wanted.override, reason=subject.wanted.reason) if subject.wanted else None,
            "seen": _seen(self.seen) if self.seen else None,
            "recorded": [
                _facts(each.override, reason=each.reason, state=each.state, at=format_instant(each.at))
                for each in subject.armed
            ],
            "evidence": record.evidence if record else None,
            "metAt": format_instant(record.met_at) if record and record.met_at else None,
            "next": named(self.step),
            "why": self.why,
            "patch": self.patch,
        }

    @property
    def why(self) -> str:
        """The reason for what comes next, in words."""
        if self.failure is not None:
            return self.failure
        match self.step:
            case Wait(why=why):
                return why
            case AskOperator(condition=condition, message=message):
                return f"{condition}: {message}"
            case Withdraw(record=record):
                return f"it was armed for {record.reason}, which is not wanted now"
            case Confirm(record=record):
                return f"{record.reason} is {record.state.lower()}"
            case Set(record=record):
                return f"wanted for {record.reason}"
        return str(self.subject.plan.cause) if self.subject.plan else "no plan"


def subjects(
    decisions: Decisions,
    machines: Mapping[SystemUuid, Machine],
    provisioning: Provisioning,
    ledger: Ledger,
    at: datetime,
) -> Iterator[Subject]:
    """All machines with a BMC, by name; then those that have left an override behind."""
    for decision in decisions.servers.values():
        machine, record = machines[decision.uuid], provisioning.records.get(decision.uuid)
        if machine.bmc is None:
            continue
        planned = plan(decision, at, record)
        yield Subject(
            name=decision.server,
            uuid=decision.uuid,
            bmc=machine.bmc,
            decision=decision,
            plan=planned,
            record=record,
            wanted=wanted_by(planned),
            armed=ledger.armed(decision.uuid),
        )
    seen = ledger.machines()
    for uuid in sorted(ledger.open_armed()):
        armed, described = ledger.armed(uuid), machines.get(uuid)
        bmc = next((each.bmc for each in armed if each.state.is_open and each.bmc is not None), None)
        if bmc is None or (described is not None and described.bmc is not None):
            continue
        name = seen[uuid].name if uuid in seen else str(uuid)
        yield Subject(name=name, uuid=uuid, bmc=bmc, decision=None, plan=None, record=None, wanted=None, armed=armed)


def inspect(
    chosen: Iterable[Subject], connections: Connections, at: datetime, *, each: Callable[[], None] = lambda: None
) -> list[Inspection]:
    """Read each BMC once, many at a time; those that need a person first, then those that are not as wanted.

    ``each`` is called when another one has been read.
    """
    found = []
    with ThreadPoolExecutor(PARALLEL) as pool:
        for future in as_completed([pool.submit(_inspect, subject, connections, at) for subject in chosen]):
            found.append(future.result())
            each()
    return sorted(found, key=lambda one: (not one.needs_a_person, one.is_settled, one.subject.name))


def _inspect(subject: Subject, connections: Connections, at: datetime) -> Inspection:
    try:
        seen = connections.to(subject.uuid, subject.name, subject.bmc).observe()
    except (UsageError, BmcUnreachable, BmcBusy, BmcRejected) as error:
        return Inspection(subject=subject, seen=None, step=None, failure=str(error))
    step = next_step(wanted=subject.wanted, observed=seen, records=subject.armed, at=at)
    return Inspection(subject=subject, seen=seen, step=step, failure=None)


def named(step: Step | None) -> str:
    """A step in a word or three."""
    match step:
        case None:
            return "unreachable"
        case Leave():
            return "Leave"
        case Set(record=record):
            return f"Set {record.override.enabled} {record.override.target}"
    return type(step).__name__


def shown(override: Override | None) -> str:
    return f"{override.enabled} {override.target}" if override is not None else "-"


def _seen(observed: Observed) -> dict[str, Any]:
    return _facts(observed.override, power=observed.power, inPost=observed.in_post)


def _facts(override: Override, **more: Any) -> dict[str, Any]:
    return {
        "enabled": override.enabled,
        "target": override.target,
        "mode": override.mode,
        "httpBootUri": override.http_boot_uri,
        **more,
    }
