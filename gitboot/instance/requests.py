"""What an operator asks of an instance: left in its ledger by the command line, carried out by its next pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from gitboot.bmc.override import OverrideRecord, State
from gitboot.errors import UsageError
from gitboot.instance.journal import Journal
from gitboot.instance.overrides import Overriding
from gitboot.instance.provisioning import Provisioning
from gitboot.ledger import Ledger, Request, Suspension
from gitboot.model.scalars import SystemUuid, format_instant, parse_uuid
from gitboot.plan import Record
from gitboot.resolve.records import record_of

RECORDS: Final = "records"  # {"items": [{"uuid", "server", …a record}], "reason"}
RESOLVE: Final = "resolve"  # {"uuid", "server", "consumed", "key", "bmc", "reason"}
RETRY: Final = "retry"  # {"uuids"}
APPROVE: Final = "approve"  # {"digest", "guards", "reason"}
SUSPEND: Final = "suspend"  # {"reason", "until"}
RESUME: Final = "resume"  # {}


class Requests:
    """Carries out each request once."""

    def __init__(self, ledger: Ledger, provisioning: Provisioning, overriding: Overriding, journal: Journal) -> None:
        self._ledger, self._provisioning = ledger, provisioning
        self._overriding, self._journal = overriding, journal

    def carry_out(self, at: datetime) -> None:
        """Do what was asked for since the last pass; a request that makes no sense is refused, and noted as that."""
        for request in self._ledger.requests():
            try:
                outcome = self._do(request, at)
            except (UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
                outcome = f"refused: {error}"
            self._journal.event(
                at, "Requested", f"{request.who}: {outcome}", {"who": request.who, "request": request.what}
            )
            self._ledger.carried_out(request, outcome, at)

    def _do(self, request: Request, at: datetime) -> str:
        match request.what:
            case "records":
                return self._set_records(request, at)
            case "resolve":
                return self._resolve(request.facts, at)
            case "retry":
                uuids = [parse_uuid(uuid) for uuid in request.facts["uuids"]]
                self._overriding.hurry(uuids, at)
                return f"{len(uuids)} BMCs are asked now"
            case "approve":
                return self._approve(request, at)
            case "suspend":
                until = datetime.fromisoformat(request.facts["until"])
                self._ledger.suspension = Suspension(request.who, request.facts["reason"], until)
                return f"suspended until {format_instant(until)}: {request.facts['reason']}"
            case "resume":
                was, self._ledger.suspension = self._ledger.suspension, None
                return "resumed" if was is not None else "it was not suspended"
        raise UsageError(f"this gitboot knows no request {request.what!r}")

    def _approve(self, request: Request, at: datetime) -> str:
        digest, guards, reason = request.facts["digest"], request.facts["guards"], request.facts["reason"]
        self._ledger.approve(digest, guards, at=at, who=request.who, reason=reason)
        return f"{', '.join(guards)} acknowledged for the changes {digest[:12]} ({reason})"

    def _set_records(self, request: Request, at: datetime) -> str:
        facts = request.facts
        items = [(parse_uuid(item["uuid"]), str(item["server"]), record_of(item)) for item in facts["items"]]
        for uuid, server, record in items:
            if record.provision is None and self._was_provisioned_since(request, uuid):
                raise UsageError(f"{server} was provisioned after that was asked for; ask again if it is meant still")
        self._provisioning.set(items)
        for uuid, _, record in items:
            if record.provision is None:  # what was set before says nothing of the boot that is asked for now
                self._overriding.settle(uuid, State.WITHDRAWN, _is_provision, at)
        reason = f" ({facts['reason']})" if facts.get("reason") else ""
        if len(items) == 1:
            _, server, record = items[0]
            return f"{server} is {_worded(record)}{reason}"
        return f"{len(items)} records are set{reason}"

    def _was_provisioned_since(self, request: Request, uuid: SystemUuid) -> bool:
        """Whether a boot has overtaken a request: one that is carried out again after a crash, say."""
        record = self._provisioning.recorded(uuid)
        return (
            record is not None
            and record.provision is not None
            and record.provisioned_at is not None
            and record.provisioned_at > request.at
        )

    def _resolve(self, facts: Mapping[str, Any], at: datetime) -> str:
        uuid, server = parse_uuid(facts["uuid"]), facts["server"]

        def is_meant(each: OverrideRecord) -> bool:
            """It is open to doubt; or it counts as consumed, and is wanted; or it stands where nobody looks now."""
            elsewhere = each.state.is_open and each.bmc is not None and list(each.bmc.place) != facts["bmc"]
            closed = each.reason == facts["key"] and not each.state.is_open
            return elsewhere or closed or each.state is State.RECORDED

        became = State.LOST if facts["consumed"] else State.WITHDRAWN
        changed = self._overriding.settle(uuid, became, is_meant, at)
        record = self._provisioning.recorded(uuid)
        if not facts["consumed"] and record is not None and record.consumed_key == facts["key"]:
            self._provisioning.set([(uuid, server, replace(record, consumed_at=None, consumed_key=None))])
        if not changed:
            return f"{server}: there was nothing to resolve"
        what = "is consumed, and is not set again" if facts["consumed"] else "was never set, and is set where wanted"
        return f"{server}: its override counts as one that {what} ({facts['reason']})"


def _is_provision(each: OverrideRecord) -> bool:
    return each.reason.startswith("provision/") and each.state in (State.RECORDED, State.CONSUMED, State.LOST)


def _worded(record: Record) -> str:
    if record.provision is None:
        return "pending: it is installed as soon as its plan wants it"
    image = f" with BootImage/{record.image}" if record.image else ""
    return f"provisioned: provision {record.provision}{image}"
