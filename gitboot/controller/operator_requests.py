"""Operator requests: store them, carry them out, and stop boots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from msgspec import structs

from gitboot.bmc.identity import accept, is_another_system
from gitboot.bmc.override_state import OverrideRecord, State
from gitboot.bmc.override_steps import OFF
from gitboot.bmc.power_steps import SwitchState
from gitboot.bmc.reboot_detection import NO_MARKS
from gitboot.controller.bmcs.desired_state import settle_switches
from gitboot.controller.records.evidence import confirm_fetches
from gitboot.controller.records.ledger_snapshot import Knowledge, Learning
from gitboot.controller.records.ledger_trust import Beginning, accept_clock, begin
from gitboot.controller.records.provisioning import check_trusted, set_records
from gitboot.errors import Orders, StaleDigest, UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.jsonio import format_instant
from gitboot.ledger.instance_tables import Approval, Request, Suspension
from gitboot.model.scalars import SystemUuid, parse_uuid
from gitboot.resolve.boot_limits import Halt, Stoppage
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.provisioning_record import last_word, record_of
from gitboot.resolve.server_decision import Boot, Decision
from gitboot.status.instance_status import Held
from gitboot.text import count

# {"items": [{"uuid", "server", "seen": a `last_word`, …a record}], "reason"}; with "unknown" and "commit" it is refused
# where something is recorded by then, or another commit is accepted.
RECORDS: Final = "records"
RESOLVE: Final = "resolve"  # {"uuid", "server", "consumed", "key", "bmc", "reason"}
ACCEPT: Final = "accept"  # {"uuid", "server", "shown": [uuid, serial], "reason"}
REPLACE: Final = "replace"  # {"uuid", "server", "key", "reason"}
CERTIFICATE: Final = "certificate"  # {"uuid", "server", "certificate", "reason"}
RETRY: Final = "retry"  # {"uuids"}
POWER: Final = "power"  # {"action", "servers": [names], "reason"}; the command itself asks their BMCs, after this
POWERED: Final = "powered"  # {"action", "items": [{"server", "resetType", "sent", "why"}], "reason"}: what came of it
BACK: Final = "back"  # {"uuid", "server", "reason"}: what was switched is in service again
CLOCK: Final = "clock"  # {"reason"}
# {"items": [{"uuid", "server", "seen": {secret: [addresses, fetches]}}], "reason"}
SECRET_FETCHES: Final = "secret-fetches"  # noqa: S105 - the name of a request
BEGIN: Final = "begin"  # {"how", "commit", "items": [{"uuid", …a record}]}; waits until a commit is accepted
APPROVE: Final = "approve"  # {"digest", "guards", "reason"}
SUSPEND: Final = "suspend"  # {"reason", "until"}
RESUME: Final = "resume"  # {}
STOP: Final = "stop"  # {"reason", "everything"}
START: Final = "start"  # {}


REFUSED: Final = "refused: "  # how the outcome of one begins that was not carried out


def carry_out(
    learning: Learning,
    requests: Iterable[Request],
    commit: Commit | None,
    held: Held | None = None,
) -> None:
    """Do what was asked for, each once; a request that makes no sense is refused, and noted as that.

    ``held`` are the changes that a guard holds. Only these can be approved, whoever left the request.
    """
    for request in requests:
        try:
            outcome = _do(learning, request, commit, held)
        except (UsageError, StaleDigest, ValueError, KeyError, TypeError, AttributeError) as error:
            outcome = f"{REFUSED}{error}"
        type = "RecordsBegun" if request.what == BEGIN else "Requested"
        learning.tell(type, f"{request.who}: {outcome}", who=request.who, request=request.what)
        learning.outcomes.append((request, outcome))


def obey(learning: Learning, stoppage: Stoppage) -> None:
    """Stop what a person has stopped where endpoints read it, unless as much is stopped already."""
    known = learning.facts.stoppage
    if known is None or stoppage.everything > known.everything:
        learning.facts = structs.replace(learning.facts, stoppage=stoppage)


def check_approval(held: Held | None, digest: str, guards: Collection[str]) -> None:
    """Raise `StaleDigest` if these guards do not hold the changes with this digest."""
    if held is None:
        raise StaleDigest("no commit is held: there is nothing to acknowledge")
    if held.digest != digest:
        raise StaleDigest(f"the commit that is held changes {held.digest}, not {digest}: look at it again")
    if others := sorted(set(guards) - set(held.guards)):
        raise StaleDigest(f"{', '.join(others)} does not hold it; {', '.join(held.guards)} does")


def _do(learning: Learning, request: Request, commit: Commit | None, held: Held | None) -> str:
    facts = request.facts
    match request.what:
        case "records":
            return _set_records(learning, request)
        case "begin" if commit is not None:
            return _begin(learning, facts, commit)
        case "resolve" | "accept" | "certificate" | "replace" | "back":
            return _ON_SERVER[request.what](learning, parse_uuid(facts["uuid"]), facts["server"], facts)
        case "clock":
            accept_clock(learning)
            return f"the clock is right: it is {format_instant(learning.at)} ({facts['reason']})"
        case "secret-fetches":
            names = confirm_fetches(learning, facts["items"])
            return f"the fetches of the secrets of {', '.join(names)} are confirmed ({facts['reason']})"
        case "retry":
            uuids = [parse_uuid(uuid) for uuid in facts["uuids"]]
            learning.hurried.update(uuids)
            return f"{count(len(uuids), 'BMC')} {'is' if len(uuids) == 1 else 'are'} asked now"
        case "power":
            return f"power {facts['action']} by hand: {', '.join(map(str, facts['servers']))} ({facts['reason']})"
        case "powered":
            told = "; ".join(f"{item['server']} {_powered(item)}" for item in facts["items"])
            return f"power {facts['action']} by hand: {told} ({facts['reason']})"
        case "approve":
            check_approval(held, facts["digest"], facts["guards"])
            approval = Approval(facts["digest"], tuple(facts["guards"]), learning.at, request.who, facts["reason"])
            learning.approved.append(approval)
            return (
                f"{', '.join(approval.guards)} acknowledged for the changes {approval.digest[:12]} ({approval.reason})"
            )
        case "suspend":
            until = datetime.fromisoformat(facts["until"])
            learning.facts = structs.replace(learning.facts, suspension=Suspension(request.who, facts["reason"], until))
            return f"suspended until {format_instant(until)}: {facts['reason']}"
        case "resume":
            was = learning.facts.suspension
            learning.facts = structs.replace(learning.facts, suspension=None)
            return "resumed" if was is not None else "it was not suspended"
        case "stop":
            stoppage = Stoppage(request.who, str(facts["reason"]), bool(facts["everything"]))
            learning.facts = structs.replace(learning.facts, stoppage=stoppage)
            return str(stoppage)
        case "start":
            stopped = learning.facts.stoppage
            learning.facts = structs.replace(learning.facts, stoppage=None)
            if (claims := learning.known.claims) and stopped:
                return f"boots that write disks are still withheld: {claims[0]}"
            return "boots are offered again" if stopped else "nothing was stopped with gitboot stop-installs"
    raise UsageError(f"this gitboot knows no request {request.what!r}")


def _set_records(learning: Learning, request: Request) -> str:
    facts = request.facts
    if facts.get("commit") not in (None, learning.facts.accepted):
        raise UsageError("another commit was accepted meanwhile; look again")
    check_trusted(learning)
    items = [(parse_uuid(item["uuid"]), str(item["server"]), record_of(item)) for item in facts["items"]]
    seen = {parse_uuid(item["uuid"]): item["seen"] for item in facts["items"] if "seen" in item}
    for uuid, server, record in items:
        if record.provision is not None or uuid not in seen or (now := learning.record(uuid)) is None:
            continue
        if now.provision is not None and last_word(now) != seen[uuid]:
            raise UsageError(f"{server} was provisioned after that was asked for; ask again if it is meant still")
    known = [server for uuid, server, _ in items if facts.get("unknown") and learning.record(uuid) is not None]
    if known:
        raise UsageError(f"{known[0]} is not unknown here any more; look again")
    set_records(learning, items)
    for uuid, _, record in items:
        if record.provision is None:  # what was set before says nothing of the boot that is asked for now
            learning.note_secret_fetches(uuid, None)
            _settle(learning, uuid, State.WITHDRAWN, _is_provision)
            settle_switches(learning, uuid, SwitchState.REFUSED, lambda each: each.reason.startswith("provision/"))
    reason = f" ({facts['reason']})" if facts.get("reason") else ""
    if len(items) == 1:
        _, server, record = items[0]
        if record.provision is None:
            return f"{server} is pending: it is installed as soon as its plan wants it{reason}"
        image = f" with BootImage/{record.image}" if record.image else ""
        return f"{server} is provisioned: provision {record.provision}{image}{reason}"
    return f"{len(items)} records are set{reason}"


def _begin(learning: Learning, facts: Mapping[str, Any], commit: Commit) -> str:
    if facts.get("commit") not in (None, commit.revision):
        raise UsageError(f"{commit.revision} was accepted meanwhile; look again")
    records = {parse_uuid(item["uuid"]): record_of(item) for item in facts.get("items", ())}
    return begin(learning, commit, Beginning(facts["how"]), records)


def _resolve(learning: Learning, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    key, consumed, bmc, reason = facts["key"], facts["consumed"], facts["bmc"], facts["reason"]
    pinned = learning.pinned(uuid)
    seen = pinned.seen if pinned is not None else None

    def is_meant(each: OverrideRecord) -> bool:
        """It is open to doubt; or it counts as consumed, and is wanted; or it stands where nobody looks now."""
        elsewhere = each.state.is_open and each.bmc is not None and list(each.bmc.place) != bmc
        elsewhere |= each.state.is_open and seen is not None and is_another_system(each.shown, seen)
        closed = each.reason == key and not each.state.is_open
        return elsewhere or closed or each.state is State.RECORDED

    record = learning.record(uuid) if learning.known.is_trusted else None
    if not consumed and record is not None and record.consumed_key == key and key is not None:
        set_records(learning, [(uuid, server, replace(record, consumed_at=None, consumed_key=None))])
    found = _settle(learning, uuid, State.LOST if consumed else State.WITHDRAWN, is_meant)
    switched = SwitchState.ASKED if consumed else SwitchState.REFUSED
    in_doubt = settle_switches(learning, uuid, switched, lambda each: each.state is SwitchState.RECORDED)
    if not found and in_doubt:
        what = "was switched, and is not again" if consumed else "was not switched, and is when its turn comes"
        return f"{server}: it {what} ({reason})"
    if not found:
        return f"{server}: there was nothing to resolve"
    what = "is consumed, and is not set again" if consumed else "was never set, and is set where wanted"
    return f"{server}: its override counts as one that {what} ({reason})"


def _powered(item: Mapping[str, Any]) -> str:
    if item["sent"]:
        return f"was sent {item['resetType']}"
    return f"may have been switched: {item['why']}" if item["sent"] is None else f"was sent nothing: {item['why']}"


def _is_back(learning: Learning, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    if not settle_switches(learning, uuid, SwitchState.BACK, lambda each: each.state.is_open):
        return f"{server}: it was not waited for"
    learning.hurried.add(uuid)
    return f"{server}: it is in service again ({facts['reason']})"


def _accept(learning: Learning, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    """Take a person's word that what a BMC shows is its server, if it still shows what the person saw."""
    pinned = learning.pinned(uuid)
    if pinned is None or [pinned.seen.uuid, pinned.seen.serial] != facts["shown"]:
        seen = pinned.seen if pinned is not None else "nothing"
        raise UsageError(f"the BMC of {server} shows {seen} by now; look again")
    learning.pin(uuid, accept(pinned, at=learning.at))
    learning.hurried.add(uuid)
    return f"{server}: it is the machine whose BMC shows {pinned.seen} ({facts['reason']})"


def _accept_certificate(learning: Learning, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    certificate = str(facts["certificate"])
    if (pinned := learning.pinned(uuid)) is None:
        raise UsageError(f"no certificate of the BMC of {server} is pinned")
    learning.pin(uuid, structs.replace(pinned, certificate=certificate))
    learning.hurried.add(uuid)
    return f"{server}: its BMC shows the certificate {certificate} ({facts['reason']})"


def _replace(learning: Learning, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    """Let what somebody else has set give way to what the plan wants."""
    key = facts["key"]
    own = next((each for each in learning.overrides.of(uuid) if each.reason == key), None)
    if key is None or (own is not None and own.state not in (State.WITHDRAWN, State.CONSUMED, State.UNSENT)):
        return f"{server}: there was nothing to replace"
    opened = own or OverrideRecord(
        reason=key, plan_digest="", override=OFF, marks=NO_MARKS, state=State.OPENED, at=learning.at
    )
    learning.overrides.note(uuid, structs.replace(opened, state=State.OPENED, at=learning.at))
    learning.hurried.add(uuid)
    return f"{server}: whatever its BMC shows gives way to {key} ({facts['reason']})"


_ON_SERVER: Final[Mapping[str, Callable[[Learning, SystemUuid, str, Mapping[str, Any]], str]]] = {
    RESOLVE: _resolve,
    ACCEPT: _accept,
    CERTIFICATE: _accept_certificate,
    REPLACE: _replace,
    BACK: _is_back,
}


def _settle(learning: Learning, uuid: SystemUuid, state: State, which: Callable[[OverrideRecord], bool]) -> int:
    """Take an operator's word for what became of overrides; return of how many.

    Withdrawn: it was never consumed, and its reason is open again. Lost: it was, and is never set again.
    """
    meant = [each for each in learning.overrides.of(uuid) if each.state is not state and which(each)]
    for each in meant:
        learning.overrides.note(uuid, structs.replace(each, state=state, corrections=()))
    learning.hurried.add(uuid)
    return len(meant)


def _is_provision(each: OverrideRecord) -> bool:
    settled = (State.RECORDED, State.CONSUMED, State.LOST, State.SET_BY_ANOTHER)
    return each.reason.startswith("provision/") and each.state in settled


def stop_of(knowledge: Knowledge, accepted: Commit | None, orders: Orders | None) -> Halt:
    """The worst of all that stops boots; ``orders`` are those of the newest Fleet, if its commit is not accepted."""
    by_hand = knowledge.facts.stoppage
    if by_hand is not None and by_hand.everything:
        return Halt.ALL
    is_stopped = by_hand is not None or stopped_by_fleet(accepted, orders) is not None or bool(knowledge.claims)
    return Halt.WRITING if is_stopped or not is_named(knowledge, accepted, orders) else Halt.NONE


def stopped_by_fleet(accepted: Commit | None, orders: Orders | None) -> str | None:
    """Why the newest Fleet, accepted or not, says that boots are stopped; or the accepted one."""
    said = (each.stopped for each in _orders(accepted, orders))
    return next((each for each in said if each is not None), None)


def is_named(knowledge: Knowledge, accepted: Commit | None, orders: Orders | None) -> bool:
    """Whether this instance may set anything: neither the newest nor the accepted Fleet names another one."""
    return all(each.ledger in (None, knowledge.facts.identity) for each in _orders(accepted, orders))


def _orders(accepted: Commit | None, orders: Orders | None) -> list[Orders]:
    return [each for each in (orders, accepted.orders if accepted is not None else None) if each is not None]


def released(
    commit: Commit, knowledge: Knowledge, at: datetime, before: Halt, after: Halt = Halt.NONE
) -> tuple[str, ...]:
    """The servers that boot from the network at once when less is stopped than before, by name."""
    now = ((each, _boots(each, knowledge, at, after)) for each in commit.decisions.servers.values())
    return tuple(each.server for each, boot in now if boot is not None and boot != _boots(each, knowledge, at, before))


def _boots(decision: Decision, knowledge: Knowledge, at: datetime, stop: Halt) -> Boot | None:
    planned = plan(decision, at, knowledge.record(decision.uuid), stop=stop)
    return planned.boot if planned is not None else None
