"""Operator requests: kinds and contents of requests, how gitboot carries them out, and stops of boots."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from msgspec import structs

from gitboot.bmc.identity import accept_identity, are_different_systems
from gitboot.bmc.override_state import NO_MARKS, OverrideRecord, OverrideState
from gitboot.bmc.override_steps import NO_OVERRIDE
from gitboot.bmc.power_steps import PowerRecordState
from gitboot.controller.bmcs.desired_state import set_power_states
from gitboot.controller.records.evidence import confirm_secret_fetches
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.controller.records.ledger_trust import InitMode, accept_clock, initialise_ledger
from gitboot.controller.records.provisioning import require_trusted_ledger, set_records
from gitboot.errors import FleetOrders, StaleDigest, UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.jsonio import format_instant
from gitboot.ledger.instance_tables import Approval, Request, Suspension
from gitboot.model.scalars import SystemUuid, parse_uuid
from gitboot.resolve.install_attempts import satisfies_key
from gitboot.resolve.plan_at_time import drop_ended_windows, make_plan
from gitboot.resolve.provisioning_record import StopOrder, StopScope, get_provisioning_fields, parse_record
from gitboot.resolve.server_decision import Boot, Decision
from gitboot.status.instance_status import HeldCommit
from gitboot.text import format_count, printable

# {"items": [{"uuid", "server", "seen": `get_provisioning_fields`, …a record}], "reason"}. With "unknown", the request
# is rejected if a server has a record by then, and with "commit", if another commit is accepted by then.
RECORDS: Final = "records"
RESOLVE: Final = "resolve"  # {"uuid", "server", "consumed", "key", "bmc", "reason"}
ACCEPT: Final = "accept"  # {"uuid", "server", "shown": [uuid, serial], "reason"}
REPLACE: Final = "replace"  # {"uuid", "server", "key", "reason"}
CERTIFICATE: Final = "certificate"  # {"uuid", "server", "certificate", "reason"}
RETRY: Final = "retry"  # {"uuids"}
# {"action", "servers": [names], "reason"}; after this request, the command itself contacts the BMCs.
POWER: Final = "power"
POWERED: Final = "powered"  # {"action", "items": [{"server", "resetType", "sent", "why"}], "reason"}: the results
BACK: Final = "back"  # {"uuid", "server", "reason"}: a server whose power was switched is in service again
CLOCK: Final = "clock"  # {"reason"}
# {"items": [{"uuid", "server", "seen": {secret: [addresses, fetches]}}], "reason"}
SECRET_FETCHES: Final = "secret-fetches"  # noqa: S105 - the name of a request
BEGIN: Final = "begin"  # {"how", "commit", "items": [{"uuid", …a record}]}; waits until a commit is accepted
APPROVE: Final = "approve"  # {"digest", "guards", "reason"}
SUSPEND: Final = "suspend"  # {"reason", "until"}
RESUME: Final = "resume"  # {}
STOP: Final = "stop"  # {"reason", "everything"}
START: Final = "start"  # {}

REFUSED: Final = "refused: "  # the outcome of a rejected request begins with this text
_MIN_DIGITS: Final = 8  # digits of a digest that an operator has to type
_DIGITS: Final = re.compile(r"[0-9a-f]{1,64}")


def carry_out_requests(
    update: LedgerUpdate,
    requests: Iterable[Request],
    commit: Commit | None,
    held: HeldCommit | None = None,
) -> None:
    """Carry out requests, and record the outcome of each request.

    The outcome of a rejected request includes the reason. ``held`` is the commit that guards hold. Operators can
    approve only this commit.
    """
    for request in requests:
        try:
            # a surrogate, which the ledger cannot store as text, raises ValueError
            json.dumps(request.facts, ensure_ascii=False).encode()
            outcome = _carry_out_request(update, request, commit, held)
        except (UsageError, StaleDigest, ValueError, KeyError, TypeError, AttributeError) as error:
            outcome = f"{REFUSED}{error}"
        type = "RecordsBegun" if request.action == BEGIN else "Requested"
        names = _list_servers(request.facts)
        servers: dict[str, Any] = {"servers": names} if names else {}
        message = f"{request.operator}: {outcome}"
        update.add_event(type, message, who=request.operator, request=request.action, **servers)
        update.request_outcomes.append((request, outcome))


def _list_servers(fields: Mapping[str, Any]) -> list[str]:
    """Return the servers that a request names. A request from another version of gitboot may have any form."""
    servers, items = fields.get("servers"), fields.get("items")
    names = [fields.get("server")]
    if isinstance(servers, list):
        names += servers
    if isinstance(items, list):
        names += [item.get("server") for item in items if isinstance(item, Mapping)]
    return [name for name in names if isinstance(name, str)]


def apply_stoppage(update: LedgerUpdate, stoppage: StopOrder) -> None:
    """Record a stop from the files that endpoints read, unless the ledger already has this stop or a wider stop."""
    known = update.facts.stoppage
    if known is None or stoppage.everything > known.everything:
        update.set_facts(stoppage=stoppage)


def find_held_commit(held: HeldCommit | None, prefix: str) -> HeldCommit:
    """Return the held change whose digest begins with ``prefix``. Raises `UsageError` or `StaleDigest`."""
    digits = prefix.strip().lower()
    if not _DIGITS.fullmatch(digits) or len(digits) < _MIN_DIGITS:
        raise UsageError(
            f"{printable(prefix)} is not a digest: type at least {_MIN_DIGITS} of the hexadecimal digits that `gitboot "
            "status` shows"
        )
    if held is None:
        raise StaleDigest("no guard is holding a commit, so there is no commit to approve")
    if not held.digest.startswith(digits):
        raise StaleDigest(
            f"the held commit's changes have the digest {held.digest}, not {digits}: review the changes again"
        )
    return held


def check_approval(held: HeldCommit | None, digest: str, guards: Collection[str]) -> None:
    """Raise `StaleDigest` unless the held commit has this digest and all of these guards hold the commit."""
    if held is None:
        raise StaleDigest("no guard is holding a commit, so there is no commit to approve")
    if held.digest != digest:
        raise StaleDigest(
            f"the held commit's changes have the digest {held.digest}, not {digest}: review the changes again"
        )
    if others := sorted(set(guards) - set(held.guards)):
        raise StaleDigest(f"the commit is held by {', '.join(held.guards)}, not by {', '.join(others)}")


def _carry_out_request(update: LedgerUpdate, request: Request, commit: Commit | None, held: HeldCommit | None) -> str:
    """Carry out one request, and return the outcome.

    Raises `UsageError` or `StaleDigest` if the request must be rejected, and ValueError, KeyError, TypeError or
    AttributeError if the request does not have the expected form.
    """
    facts = request.facts
    match request.action:
        case "records":
            return _set_records(update, request)
        case "begin" if commit is not None:
            return _begin_with_records(update, facts, commit)
        case "resolve" | "accept" | "certificate" | "replace" | "back":
            return _ON_SERVER[request.action](update, parse_uuid(facts["uuid"]), facts["server"], facts)
        case "clock":
            accept_clock(update)
            return f"confirmed that the clock was correct at {format_instant(update.at)} ({facts['reason']})"
        case "secret-fetches":
            names = confirm_secret_fetches(update, facts["items"])
            return f"confirmed the secret fetches for {', '.join(names)} ({facts['reason']})"
        case "retry":
            uuids = [parse_uuid(uuid) for uuid in facts["uuids"]]
            update.due_now.update(uuids)
            return f"gitboot contacts {format_count(len(uuids), 'BMC')} now"
        case "power":
            return f"power {facts['action']} by hand: {', '.join(map(str, facts['servers']))} ({facts['reason']})"
        case "powered":
            results = "; ".join(map(_describe_power_result, facts["items"]))
            return f"power {facts['action']} by hand: {results} ({facts['reason']})"
        case "approve":
            check_approval(held, facts["digest"], facts["guards"])
            approval = Approval(facts["digest"], tuple(facts["guards"]), update.at, request.operator, facts["reason"])
            update.approved.append(approval)
            return f"approved {', '.join(approval.guards)} for the changes {approval.digest[:12]} ({approval.reason})"
        case "suspend":
            until = datetime.fromisoformat(facts["until"])
            update.set_facts(suspension=Suspension(request.operator, facts["reason"], until))
            return f"suspended commit acceptance until {format_instant(until)}: {facts['reason']}"
        case "resume":
            was_suspended = update.facts.suspension is not None
            update.set_facts(suspension=None)
            return "resumed accepting commits" if was_suspended else "commit acceptance was not suspended"
        case "stop":
            stoppage = StopOrder(request.operator, str(facts["reason"]), bool(facts["everything"]))
            update.set_facts(stoppage=stoppage)
            return str(stoppage)
        case "start":
            was_stopped, claims = update.facts.stoppage is not None, update.before.claims
            update.set_facts(stoppage=None)
            if not was_stopped:
                return "no stop from gitboot stop-installs was in force"
            if claims:
                return f"gitboot still withholds boots that write to disk: {claims[0]}"
            return "gitboot offers boots again"
    raise UsageError(f"this version of gitboot does not support the request {request.action!r}")


def _set_records(update: LedgerUpdate, request: Request) -> str:
    """Replace the records of servers, if they have not changed since the operator made the request."""
    facts = request.facts
    if facts.get("commit") not in (None, update.facts.accepted):
        raise UsageError("gitboot accepted another commit after you made this request; check the servers again")
    require_trusted_ledger(update)
    items = [(parse_uuid(item["uuid"]), str(item["server"]), parse_record(item)) for item in facts["items"]]
    seen = {parse_uuid(item["uuid"]): item["seen"] for item in facts["items"] if "seen" in item}
    foreign = {parse_uuid(item["uuid"]) for item in facts["items"] if item.get("isForeign") is True}
    for uuid, server, record in items:
        now = update.record(uuid)
        if (
            (record.provision is None or uuid in foreign)
            and uuid in seen
            and now is not None
            and now.provision is not None
            and get_provisioning_fields(now) != seen[uuid]
        ):
            raise UsageError(
                f"{server} was installed after you made this request; if you still want this change, repeat the request"
            )
    for uuid, server, _ in items if facts.get("unknown") else ():
        if update.record(uuid) is not None:
            raise UsageError(
                f"gitboot recorded an installation state for {server} after you made this request; check the record "
                "first"
            )
    set_records(update, items)
    for uuid, _, record in items:
        if record.provision is None:  # earlier overrides and power changes are not part of the new installation
            update.set_secret_fetches(uuid, None)
            _set_override_states(update, uuid, OverrideState.CLEARED, _is_provision_override)
            set_power_states(update, uuid, PowerRecordState.REFUSED, lambda each: each.reason.startswith("provision/"))
    reason = f" ({facts['reason']})" if facts.get("reason") else ""
    if len(items) != 1:
        return f"set {len(items)} records{reason}"
    _, server, record = items[0]
    if record.provision is None:
        return f"recorded {server} as pending: gitboot installs the server when its plan allows{reason}"
    image = ""
    if record.image:
        image = f" with BootImage/{record.image}"
    elif record.image is None and record.installed is not None:
        image = f" with {record.installed}"
    return f"recorded {server} as provisioned: provision {record.provision}{image}{reason}"


def _begin_with_records(update: LedgerUpdate, facts: Mapping[str, Any], commit: Commit) -> str:
    if facts.get("commit") not in (None, commit.revision):
        raise UsageError(f"gitboot accepted {commit.revision} after you made this request; check the servers again")
    records = {parse_uuid(item["uuid"]): parse_record(item) for item in facts.get("items", ())}
    return initialise_ledger(update, commit, InitMode(facts["how"]), records)


def _resolve_override(update: LedgerUpdate, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    """Record whether the overrides and resets with an unknown outcome took place, as an operator stated."""
    key, consumed, bmc, reason = facts["key"], facts["consumed"], facts["bmc"], facts["reason"]
    pinned = update.find_pin(uuid)
    seen = pinned.latest_identity if pinned is not None else None
    record = update.record(uuid) if update.before.is_trusted else None
    # An override with a higher provision number can also stand for the installation that the plan needs.
    is_used = key is not None and record is not None and satisfies_key(record.consumed_key, key)
    used_key = record.consumed_key if record is not None and is_used else None

    def is_affected(override: OverrideRecord) -> bool:
        """Return whether the request is about this override.

        The request is about an override if its state is unknown, if it is at another BMC, or if it is closed but the
        plan needs it.
        """
        if override.state is OverrideState.RECORDED:
            return True
        if not override.state.is_open:
            return override.reason in (key, used_key)
        is_at_another_bmc = override.bmc is not None and list(override.bmc.normalized_address) != bmc
        return is_at_another_bmc or (seen is not None and are_different_systems(override.shown, seen))

    if not consumed and record is not None and used_key is not None:
        set_records(update, [(uuid, server, replace(record, consumed_at=None, consumed_key=None))])
    override_state = OverrideState.LOST if consumed else OverrideState.CLEARED
    override_count = _set_override_states(update, uuid, override_state, is_affected)
    power_state = PowerRecordState.REQUESTED if consumed else PowerRecordState.REFUSED
    reset_count = set_power_states(update, uuid, power_state, lambda reset: reset.state is PowerRecordState.RECORDED)
    if override_count and consumed:
        return f"{server}: recorded the override as used; gitboot does not set it again ({reason})"
    if override_count:
        return f"{server}: recorded the override as not set; gitboot sets it if the plan requires it ({reason})"
    if reset_count and consumed:
        return f"{server}: recorded that gitboot switched its power, and will not switch it again ({reason})"
    if reset_count:
        return f"{server}: recorded that gitboot did not switch its power, and may still switch it ({reason})"
    return f"{server}: no override or power request is unresolved"


def _describe_power_result(result: Mapping[str, Any]) -> str:
    server = result["server"]
    if result["sent"]:
        return f"{server} was sent {result['resetType']}"
    if result["sent"] is None:
        return f"the power state of {server} may have changed: {result['why']}"
    return f"{server} was not switched: {result['why']}"


def _mark_in_service(update: LedgerUpdate, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    if not set_power_states(update, uuid, PowerRecordState.BACK, lambda each: each.state.is_open):
        return f"{server}: gitboot was not waiting for this server"
    update.due_now.add(uuid)
    return f"{server}: recorded that the server is in service again ({facts['reason']})"


def _accept_identity(update: LedgerUpdate, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    """Pin the machine identity that a BMC reports, if the BMC still reports the identity that the operator saw."""
    pinned = update.find_pin(uuid)
    if pinned is None or [pinned.latest_identity.uuid, pinned.latest_identity.serial] != facts["shown"]:
        seen = pinned.latest_identity if pinned is not None else "no machine"
        raise UsageError(f"{server}'s BMC now shows {seen}; check the machine, then repeat the request")
    update.set_pin(uuid, accept_identity(pinned, at=update.at))
    update.due_now.add(uuid)
    return f"{server}: accepted the machine that its BMC shows, {pinned.latest_identity} ({facts['reason']})"


def _accept_certificate(update: LedgerUpdate, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    certificate = str(facts["certificate"])
    if (pinned := update.find_pin(uuid)) is None:
        raise UsageError(f"gitboot has not pinned a certificate for {server}'s BMC")
    update.set_pin(uuid, structs.replace(pinned, certificate=certificate))
    update.due_now.add(uuid)
    return f"{server}: accepted the certificate {certificate} presented by its BMC ({facts['reason']})"


def _replace_override(update: LedgerUpdate, uuid: SystemUuid, server: str, facts: Mapping[str, Any]) -> str:
    """Allow gitboot to replace a foreign override with the planned override."""
    key = facts["key"]
    record = next((each for each in update.overrides.list_records(uuid) if each.reason == key), None)
    ended_states = (OverrideState.CLEARED, OverrideState.CONSUMED, OverrideState.UNSENT)
    if key is None or (record is not None and record.state not in ended_states):
        return f"{server}: there is no override to replace"
    opened = record or OverrideRecord(
        reason=key, plan_digest="", override=NO_OVERRIDE, marks=NO_MARKS, state=OverrideState.OPENED, at=update.at
    )
    update.overrides.set_record(uuid, structs.replace(opened, state=OverrideState.OPENED, at=update.at))
    update.due_now.add(uuid)
    return f"{server}: gitboot will replace the override on its BMC with the override for {key} ({facts['reason']})"


_ON_SERVER: Final[Mapping[str, Callable[[LedgerUpdate, SystemUuid, str, Mapping[str, Any]], str]]] = {
    RESOLVE: _resolve_override,
    ACCEPT: _accept_identity,
    CERTIFICATE: _accept_certificate,
    REPLACE: _replace_override,
    BACK: _mark_in_service,
}


def _set_override_states(
    update: LedgerUpdate, uuid: SystemUuid, state: OverrideState, is_selected: Callable[[OverrideRecord], bool]
) -> int:
    """Set the state of overrides to what an operator stated. Return the number of changed overrides.

    ``CLEARED`` means that an override was not consumed, so gitboot may set an override for the same reason again.
    ``LOST`` means that it was consumed, so gitboot does not set it again.
    """
    records = [record for record in update.overrides.list_records(uuid) if record.state is not state]
    selected = [record for record in records if is_selected(record)]
    for record in selected:
        update.overrides.set_record(uuid, structs.replace(record, state=state, corrections=()))
    update.due_now.add(uuid)
    return len(selected)


def _is_provision_override(record: OverrideRecord) -> bool:
    return record.reason.startswith("provision/") and record.state in (
        OverrideState.RECORDED,
        OverrideState.CONSUMED,
        OverrideState.LOST,
        OverrideState.SET_BY_ANOTHER,
    )


def find_stop_scope(snapshot: LedgerSnapshot, accepted: Commit | None, orders: FleetOrders | None) -> StopScope:
    """Return which boots are stopped.

    ``orders`` are the stop orders in the newest Fleet if gitboot has not accepted the commit that contains this Fleet.
    """
    operator_stop = snapshot.facts.stoppage
    if operator_stop is not None and operator_stop.everything:
        return StopScope.ALL
    is_stopped = operator_stop is not None or find_fleet_stop(accepted, orders) is not None or bool(snapshot.claims)
    return StopScope.WRITING if is_stopped or not may_instance_act(snapshot, accepted, orders) else StopScope.NONE


def find_fleet_stop(accepted: Commit | None, orders: FleetOrders | None) -> str | None:
    """Return the reason for a stop in the newest or the accepted Fleet, or None if neither Fleet stops boots."""
    return next((each.stopped for each in _list_orders(accepted, orders) if each.stopped is not None), None)


def may_instance_act(snapshot: LedgerSnapshot, accepted: Commit | None, orders: FleetOrders | None) -> bool:
    """Return whether this instance may be active.

    The instance must not be active if the newest or the accepted Fleet names another ledger.
    """
    return all(each.ledger in (None, snapshot.facts.identity) for each in _list_orders(accepted, orders))


def _list_orders(accepted: Commit | None, orders: FleetOrders | None) -> list[FleetOrders]:
    """Return the orders in the newest Fleet, if any, and then those in the accepted Fleet, if any."""
    return [each for each in (orders, accepted.orders if accepted is not None else None) if each is not None]


def find_released_servers(
    commit: Commit, snapshot: LedgerSnapshot, at: datetime, before: StopScope, after: StopScope = StopScope.NONE
) -> tuple[str, ...]:
    """Return the servers that can boot from the network again when the stop changes from ``before`` to ``after``.

    The result only informs operators. It includes the servers that wait for a missing file, because these servers boot
    as soon as the file appears, without further action by an operator.
    """
    released = []
    for decision in commit.decisions.servers.values():
        boot = _find_planned_boot(decision, snapshot, at, after)
        if boot is not None and boot != _find_planned_boot(decision, snapshot, at, before):
            released.append(decision.server)
    return tuple(released)


def _find_planned_boot(decision: Decision, snapshot: LedgerSnapshot, at: datetime, stop: StopScope) -> Boot | None:
    """Return the boot that a server gets from the network at ``at`` with a stop, or None."""
    remaining = drop_ended_windows(decision, snapshot.find_later_clock(at))
    planned = make_plan(remaining, at, snapshot.record(decision.uuid), stop=stop)
    return planned.boot if planned is not None else None
