"""What an operator asks of an instance: left in its ledger by the command line, carried out by its next pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from gitboot.bmc.override import Armed, State
from gitboot.errors import UsageError
from gitboot.instance.journal import Journal
from gitboot.instance.overrides import Overriding
from gitboot.instance.provisioning import Provisioning
from gitboot.ledger import Ledger, Order, Suspension
from gitboot.model.scalars import SystemUuid, format_instant, parse_uuid
from gitboot.plan import Record
from gitboot.resolve.records import record_of

RECORDS: Final = "records"  # {"items": [{"uuid", "server", "notMet", …a record}], "reason"}
RESOLVE: Final = "resolve"  # {"uuid", "server", "armed", "key", "bmc", "reason"}
RETRY: Final = "retry"  # {"uuids"}
APPROVE: Final = "approve"  # {"digest", "guards", "reason"}
SUSPEND: Final = "suspend"  # {"reason", "until"}
RESUME: Final = "resume"  # {}


class Orders:
    """Carries out each order once."""

    def __init__(self, ledger: Ledger, provisioning: Provisioning, overriding: Overriding, journal: Journal) -> None:
        self._ledger, self._provisioning = ledger, provisioning
        self._overriding, self._journal = overriding, journal

    def carry_out(self, at: datetime) -> None:
        """Do what was ordered since the last pass; an order that makes no sense is refused, and noted as that."""
        for order in self._ledger.orders():
            try:
                outcome = self._do(order, at)
            except (UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
                outcome = f"refused: {error}"
            self._journal.event(at, "Ordered", f"{order.who}: {outcome}", {"who": order.who, "order": order.what})
            self._ledger.carried_out(order, outcome, at)

    def _do(self, order: Order, at: datetime) -> str:
        match order.what:
            case "records":
                return self._set_records(order, at)
            case "resolve":
                return self._resolve(order.facts, at)
            case "retry":
                uuids = [parse_uuid(uuid) for uuid in order.facts["uuids"]]
                self._overriding.hurry(uuids, at)
                return f"{len(uuids)} BMCs are asked now"
            case "approve":
                return self._approve(order, at)
            case "suspend":
                until = datetime.fromisoformat(order.facts["until"])
                self._ledger.suspension = Suspension(order.who, order.facts["reason"], until)
                return f"suspended until {format_instant(until)}: {order.facts['reason']}"
            case "resume":
                was, self._ledger.suspension = self._ledger.suspension, None
                return "resumed" if was is not None else "it was not suspended"
        raise UsageError(f"this gitboot knows no order {order.what!r}")

    def _approve(self, order: Order, at: datetime) -> str:
        digest, guards, reason = order.facts["digest"], order.facts["guards"], order.facts["reason"]
        self._ledger.approve(digest, guards, at=at, who=order.who, reason=reason)
        return f"{', '.join(guards)} acknowledged for the changes {digest[:12]} ({reason})"

    def _set_records(self, order: Order, at: datetime) -> str:
        facts = order.facts
        items = [(parse_uuid(item["uuid"]), str(item["server"]), record_of(item)) for item in facts["items"]]
        for uuid, server, record in items:
            if record.provision is None and self._was_met_since(order, uuid):
                raise UsageError(f"{server} was provisioned after that was asked for; ask again if it is meant still")
        self._provisioning.set(items)
        for uuid, _, record in items:
            if record.provision is None:  # what was armed before says nothing of the boot that is asked for now
                self._overriding.settle(uuid, State.WITHDRAWN, _is_provision, at)
        reason = f" ({facts['reason']})" if facts.get("reason") else ""
        if len(items) == 1:
            _, server, record = items[0]
            return f"{server} is {_worded(record)}{reason}"
        return f"{len(items)} records are set{reason}"

    def _was_met_since(self, order: Order, uuid: SystemUuid) -> bool:
        """Whether a boot has overtaken an order: after a crash in the middle of it, say, which carries it out again."""
        record = self._provisioning.recorded(uuid)
        return (
            record is not None
            and record.provision is not None
            and record.met_at is not None
            and record.met_at > order.at
        )

    def _resolve(self, facts: Mapping[str, Any], at: datetime) -> str:
        uuid, server = parse_uuid(facts["uuid"]), facts["server"]

        def is_meant(armed: Armed) -> bool:
            """It is open to doubt; or it counts as consumed, and is wanted; or it stands where nobody looks now."""
            elsewhere = armed.state.is_open and armed.bmc is not None and list(armed.bmc.place) != facts["bmc"]
            closed = armed.reason == facts["key"] and not armed.state.is_open
            return elsewhere or closed or armed.state is State.RECORDED

        became = State.GONE if facts["armed"] else State.WITHDRAWN
        changed = self._overriding.settle(uuid, became, is_meant, at)
        record = self._provisioning.recorded(uuid)
        if not facts["armed"] and record is not None and record.spent_key == facts["key"]:
            self._provisioning.set([(uuid, server, replace(record, spent_at=None, spent_key=None))])
        if not changed:
            return f"{server}: there was nothing to resolve"
        what = "is consumed, and is not armed again" if facts["armed"] else "was never set, and is armed where wanted"
        return f"{server}: its override counts as one that {what} ({facts['reason']})"


def _is_provision(armed: Armed) -> bool:
    return armed.reason.startswith("provision/") and armed.state in (State.RECORDED, State.SPENT, State.GONE)


def _worded(record: Record) -> str:
    if record.provision is None:
        return "not met: it is installed as soon as its plan wants it"
    image = f" with BootImage/{record.image}" if record.image else ""
    return f"met: provision {record.provision}{image}"
