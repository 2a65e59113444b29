"""Operator requests: kinds and contents of requests, and how gitboot carries them out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import MAXYEAR, UTC, datetime
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, assert_never, get_args

from msgspec import UNSET, Meta, Struct, ValidationError, structs

from gitboot.bmc.identity import (
    DocumentIdentity,
    PinnedIdentity,
    ReportedIdentity,
    SameMachine,
    accept_identity,
    are_different_systems,
    compare_identity,
)
from gitboot.bmc.override_state import NO_MARKS, OverrideRecord, OverrideState
from gitboot.bmc.override_steps import NO_OVERRIDE
from gitboot.bmc.power_steps import PowerRecord, PowerRecordState
from gitboot.controller.bmcs.desired_state import set_power_states
from gitboot.controller.records.evidence import confirm_secret_fetches
from gitboot.controller.records.ledger_snapshot import LedgerUpdate
from gitboot.controller.records.ledger_trust import InitMode, accept_clock, initialise_ledger
from gitboot.controller.records.provisioning import require_trusted_ledger, set_records
from gitboot.errors import StaleDigest, UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.revision import Revision
from gitboot.jsonio import Digest, convert, format_instant
from gitboot.ledger.instance_tables import Approval, Request, Suspension
from gitboot.model.scalars import Malformed, SystemUuid, parse_uuid, text
from gitboot.resolve.install_attempts import satisfies_key
from gitboot.resolve.provisioning_record import (
    RECORD_ERRORS,
    Record,
    StopOrder,
    get_provisioning_fields,
    list_event_times,
    parse_record,
)
from gitboot.status.instance_status import HeldCommit
from gitboot.text import format_count, printable

_Item = TypeVar("_Item")

REFUSED: Final = "refused: "  # the outcome of a rejected request begins with this text
_MIN_DIGITS: Final = 8  # digits of a digest that an operator has to type
_DIGITS: Final = re.compile(r"[0-9a-f]{1,64}")


# The kinds of requests. The ledger stores a request as JSON, whose keys are the names of the fields.


class OperatorRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The content of a request from an operator. Each kind of request is a subclass."""

    kind: ClassVar[str]  # as in the ledger


class SetRecords(OperatorRequest, frozen=True, kw_only=True):
    """Replace the records of servers."""

    kind: ClassVar = "records"

    # Each item has the keys uuid and server, and those of a record. An item may also have the keys seen (the result of
    # `get_provisioning_fields` for the record that the operator saw) and isForeign (another tool installed the server).
    items: tuple[Mapping[str, Any], ...]
    reason: str | None = None
    commit: Revision | None = None  # reject the request if gitboot has accepted another commit by then
    unknown: bool = False  # reject the request if a server has a record by then


class BeginWithRecords(OperatorRequest, frozen=True, kw_only=True):
    """Choose the first records of a ledger. gitboot carries out this request once it has accepted a commit."""

    kind: ClassVar = "begin"

    how: InitMode
    items: tuple[Mapping[str, Any], ...] = ()  # each with the key uuid, and those of a record
    commit: Revision | None = None  # reject the request if gitboot has accepted another commit by then


class ServerRequest(OperatorRequest, frozen=True, kw_only=True):
    """A request about one server and its BMC."""

    uuid: SystemUuid
    server: str
    reason: str

    def __post_init__(self) -> None:
        structs.force_setattr(self, "uuid", parse_uuid(self.uuid))


class ResolveOverride(ServerRequest, frozen=True, kw_only=True):
    """State whether an override with an unknown outcome was consumed."""

    kind: ClassVar = "resolve"

    consumed: bool
    key: str | None  # what the plan needs
    bmc: list[str | None] | None  # the normalized address of the BMC in the Server document


class AcceptIdentity(ServerRequest, frozen=True, kw_only=True):
    """Pin the machine identity that a BMC reports."""

    kind: ClassVar = "accept"

    shown: list[str | None]  # the UUID and the serial number that the operator saw


class ReplaceOverride(ServerRequest, frozen=True, kw_only=True):
    """Allow gitboot to replace an override that another tool set."""

    kind: ClassVar = "replace"

    key: str | None  # what the plan needs


class AcceptCertificate(ServerRequest, frozen=True, kw_only=True):
    """Pin the certificate that a BMC presents."""

    kind: ClassVar = "certificate"

    certificate: str


class MarkInService(ServerRequest, frozen=True, kw_only=True):
    """State that a server whose power gitboot switched is in service again."""

    kind: ClassVar = "back"


class ContactBmcs(OperatorRequest, frozen=True, kw_only=True):
    """Contact BMCs now instead of at the next scheduled time."""

    kind: ClassVar = "retry"

    uuids: tuple[SystemUuid, ...]

    def __post_init__(self) -> None:
        structs.force_setattr(self, "uuids", tuple(map(parse_uuid, self.uuids)))


class SwitchPower(OperatorRequest, frozen=True, kw_only=True):
    """Record that a command is about to switch the power of servers."""

    kind: ClassVar = "power"

    action: str
    servers: tuple[str, ...]
    reason: str


class PowerSwitched(Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a command that switches power, for one server."""

    server: str
    reset_type: str | None
    sent: bool | None  # None: the outcome is unknown
    why: str | None  # why the command did not send a request, or why the outcome is unknown


class RecordPowerResults(OperatorRequest, frozen=True, kw_only=True):
    """Record what a command sent to BMCs after `SwitchPower`."""

    kind: ClassVar = "powered"

    action: str
    items: tuple[PowerSwitched, ...]
    reason: str


class ConfirmClock(OperatorRequest, frozen=True, kw_only=True):
    """Confirm that the clock of the instance shows the correct time."""

    kind: ClassVar = "clock"

    reason: str


class SeenSecretFetches(Struct, frozen=True, kw_only=True):
    """The fetches of secrets by one server that an operator saw."""

    uuid: SystemUuid
    server: str
    seen: Mapping[str, tuple[int, int]]  # by secret: the numbers of addresses and of fetches

    def __post_init__(self) -> None:
        structs.force_setattr(self, "uuid", parse_uuid(self.uuid))


class ConfirmSecretFetches(OperatorRequest, frozen=True, kw_only=True):
    """Confirm that the fetches of secrets were legitimate."""

    kind: ClassVar = "secret-fetches"

    items: tuple[SeenSecretFetches, ...]
    reason: str


class ApproveCommit(OperatorRequest, frozen=True, kw_only=True):
    """Let the held commit pass guards."""

    kind: ClassVar = "approve"

    digest: Digest
    guards: tuple[str, ...]
    reason: str


class SuspendAcceptance(OperatorRequest, frozen=True, kw_only=True):
    """Accept no commits until a time."""

    kind: ClassVar = "suspend"

    reason: str
    until: Annotated[datetime, Meta(tz=True)]

    def __post_init__(self) -> None:
        structs.force_setattr(self, "until", self.until.astimezone(UTC))


class ResumeAcceptance(OperatorRequest, frozen=True, kw_only=True):
    """Accept commits again."""

    kind: ClassVar = "resume"


class StopInstalls(OperatorRequest, frozen=True, kw_only=True):
    """Withhold boots that write to disk, or all boots."""

    kind: ClassVar = "stop"

    reason: str
    everything: bool


class AllowInstalls(OperatorRequest, frozen=True, kw_only=True):
    """End a stop from `StopInstalls`."""

    kind: ClassVar = "start"


AnyRequest = (
    SetRecords
    | BeginWithRecords
    | ResolveOverride
    | AcceptIdentity
    | ReplaceOverride
    | AcceptCertificate
    | MarkInService
    | ContactBmcs
    | SwitchPower
    | RecordPowerResults
    | ConfirmClock
    | ConfirmSecretFetches
    | ApproveCommit
    | SuspendAcceptance
    | ResumeAcceptance
    | StopInstalls
    | AllowInstalls
)
_REQUEST_TYPES: Final[Mapping[str, type[AnyRequest]]] = {
    request_type.kind: request_type for request_type in get_args(AnyRequest)
}


def parse_request(request: Request) -> AnyRequest:
    """Return the content of a request. Raises `UsageError` if this version of gitboot cannot carry out the request."""
    request_type = _REQUEST_TYPES.get(request.action)
    if request_type is None:
        raise UsageError(f"this version of gitboot does not support the request {request.action!r}")
    try:
        json.dumps(request.facts, ensure_ascii=False).encode()
        return convert(request.facts, request_type)
    except UnicodeEncodeError:  # the ledger cannot store such a character as text
        raise UsageError("the request contains half of a surrogate pair; remove this character") from None
    except (ValidationError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"this version of gitboot cannot read the request {request.action!r} ({error}): use the same version of "
            "gitboot as the instance"
        ) from None


# Carry out requests


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
        event_type = "Requested"
        try:
            content = parse_request(request)
            outcome = _carry_out_request(update, content, request.operator, commit, held)
            if isinstance(content, BeginWithRecords):
                event_type = "RecordsBegun"
        except (UsageError, StaleDigest) as error:
            outcome = f"{REFUSED}{error}"
        names = _list_servers(request.facts)
        servers: dict[str, Any] = {"servers": names} if names else {}
        message = f"{request.operator}: {outcome}"
        update.add_event(event_type, message, who=request.operator, request=request.action, **servers)
        update.request_outcomes.append((request, outcome))


def _list_servers(fields: Any) -> list[str]:
    """Return the servers that a request names. A request from another version of gitboot may have any form."""
    if not isinstance(fields, Mapping):
        return []
    servers, items = fields.get("servers"), fields.get("items")
    names = [fields.get("server")]
    if isinstance(servers, list):
        names += servers
    if isinstance(items, list):
        names += [item.get("server") for item in items if isinstance(item, Mapping)]
    return [name for name in names if isinstance(name, str)]


def _carry_out_request(
    update: LedgerUpdate, request: AnyRequest, operator: str, commit: Commit | None, held: HeldCommit | None
) -> str:
    """Carry out one request, and return the outcome.

    Raises `UsageError` or `StaleDigest` if the request must be rejected. Such a request changes nothing.
    """
    match request:
        case SetRecords():
            return _set_records(update, request)
        case BeginWithRecords():
            return _begin_with_records(update, request, commit)
        case ResolveOverride():
            return _resolve_override(update, request)
        case AcceptIdentity():
            return _accept_identity(update, request)
        case ReplaceOverride():
            return _replace_override(update, request)
        case AcceptCertificate():
            return _accept_certificate(update, request)
        case MarkInService():
            return _mark_in_service(update, request)
        case ContactBmcs():
            update.due_now.update(request.uuids)
            return f"gitboot contacts {format_count(len(request.uuids), 'BMC')} now"
        case SwitchPower():
            return f"power {request.action} by hand: {', '.join(request.servers)} ({request.reason})"
        case RecordPowerResults():
            results = "; ".join(map(_describe_power_result, request.items))
            return f"power {request.action} by hand: {results} ({request.reason})"
        case ConfirmClock():
            accept_clock(update)
            return f"confirmed that the clock was correct at {format_instant(update.at)} ({request.reason})"
        case ConfirmSecretFetches():
            return _confirm_secret_fetches(update, request)
        case ApproveCommit():
            check_approval(held, request.digest, request.guards)
            update.approved.append(Approval(request.digest, request.guards, update.at, operator, request.reason))
            guards = ", ".join(request.guards)
            return f"approved {guards} for the changes {request.digest[:12]} ({request.reason})"
        case SuspendAcceptance():
            update.set_facts(suspension=Suspension(operator, request.reason, request.until))
            return f"suspended commit acceptance until {format_instant(request.until)}: {request.reason}"
        case ResumeAcceptance():
            was_suspended = update.facts.suspension is not None
            update.set_facts(suspension=None)
            return "resumed accepting commits" if was_suspended else "commit acceptance was not suspended"
        case StopInstalls():
            stop_order = StopOrder(operator, request.reason, request.everything)
            update.set_facts(stop_order=stop_order)
            return str(stop_order)
        case AllowInstalls():
            return _allow_installs(update)
        case _:
            assert_never(request)


class _ItemToSet(NamedTuple):
    """One item of `SetRecords`."""

    uuid: SystemUuid
    server: str
    record: Record
    seen: Any  # the provisioning that the operator saw, or `UNSET`
    is_foreign: bool


def _set_records(update: LedgerUpdate, request: SetRecords) -> str:
    """Replace the records of servers, if they have not changed since the operator made the request."""
    if request.commit not in (None, update.facts.accepted):
        raise UsageError("gitboot accepted another commit after you made this request; check the servers again")
    require_trusted_ledger(update)
    items = _parse_items(request.items, _parse_item_to_set)
    for item in items:
        if _was_installed_meanwhile(update, item):
            raise UsageError(
                f"{item.server} was installed after you made this request; if you still want this change, repeat the "
                "request"
            )
    for item in items if request.unknown else ():
        if update.record(item.uuid) is not None:
            raise UsageError(
                f"gitboot recorded an installation state for {item.server} after you made this request; check the "
                "record first"
            )
    set_records(update, [(item.uuid, item.server, item.record) for item in items])
    for item in items:
        if item.record.provision is None:  # earlier overrides and power changes are not part of the new installation
            update.set_secret_fetches(item.uuid, None)
            _set_override_states(update, item.uuid, OverrideState.CLEARED, _is_provision_override)
            set_power_states(update, item.uuid, PowerRecordState.REFUSED, _is_provision_reset)
    reason = f" ({request.reason})" if request.reason else ""
    if len(items) != 1:
        return f"set {len(items)} records{reason}"
    return f"{_describe_record(items[0].server, items[0].record)}{reason}"


def _parse_items(items: Iterable[Mapping[str, Any]], parse: Callable[[Mapping[str, Any]], _Item]) -> list[_Item]:
    """Parse the items of a request. Raises `UsageError` if an item is malformed."""
    parsed = []
    for number, item in enumerate(items, 1):
        try:
            parsed.append(parse(item))
        except RECORD_ERRORS as error:
            problem = f"the key {error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            hint = f"; {error.hint}" if isinstance(error, Malformed) and error.hint else ""
            names = (item.get("server"), item.get("uuid"), "without a server")
            name = next(each for each in names if isinstance(each, str))
            raise UsageError(f"gitboot cannot read item {number} ({name}) of the request: {problem}{hint}") from None
    return parsed


def _parse_item_to_set(item: Mapping[str, Any]) -> _ItemToSet:
    return _ItemToSet(
        uuid=parse_uuid(item["uuid"]),
        server=text(item["server"]),
        record=_parse_record(item),
        seen=item.get("seen", UNSET),
        is_foreign=item.get("isForeign") is True,
    )


def _parse_record(item: Mapping[str, Any]) -> Record:
    """Parse a record. Raises one of `RECORD_ERRORS`, also if a plan could not add a grace period to a time."""
    record = parse_record(item)
    for at in list_event_times(record):
        if at.year == MAXYEAR:
            raise ValueError(f"expected a time before the year {MAXYEAR}, found {format_instant(at)}")
    return record


def _was_installed_meanwhile(update: LedgerUpdate, item: _ItemToSet) -> bool:
    """Return whether gitboot installed the server after the operator saw its record.

    Only a request that makes the server pending, or that records an installation by another tool, depends on this.
    """
    if item.seen is UNSET or not (item.record.provision is None or item.is_foreign):
        return False
    current = update.record(item.uuid)
    return current is not None and current.provision is not None and get_provisioning_fields(current) != item.seen


def _describe_record(server: str, record: Record) -> str:
    """Return a sentence about a record that an operator set."""
    if record.provision is None:
        return f"recorded {server} as pending: gitboot installs the server when its plan allows"
    image = ""
    if record.image:
        image = f" with BootImage/{record.image}"
    elif record.image is None and record.installed is not None:
        image = f" with {record.installed}"
    return f"recorded {server} as provisioned: provision {record.provision}{image}"


def _describe_power_result(result: PowerSwitched) -> str:
    """Return a clause about what a command sent to one server."""
    if result.sent:
        return f"{result.server} was sent {result.reset_type}"
    if result.sent is None:
        return f"the power state of {result.server} may have changed: {result.why}"
    return f"{result.server} was not switched: {result.why}"


def _begin_with_records(update: LedgerUpdate, request: BeginWithRecords, commit: Commit | None) -> str:
    """Initialize the ledger with the records that an operator chose."""
    if commit is None:
        raise UsageError("gitboot has not accepted a commit yet; repeat the request when it has")
    if request.commit not in (None, commit.revision):
        raise UsageError(f"gitboot accepted {commit.revision} after you made this request; check the servers again")
    records = dict(_parse_items(request.items, lambda item: (parse_uuid(item["uuid"]), _parse_record(item))))
    return initialise_ledger(update, commit, request.how, records)


def _confirm_secret_fetches(update: LedgerUpdate, request: ConfirmSecretFetches) -> str:
    """Record that the fetches of secrets that an operator saw were legitimate."""
    for item in request.items:
        if update.find_secret_fetches(item.uuid) is None:
            raise UsageError(f"no secret fetch is recorded for {item.server}")
    for item in request.items:
        confirm_secret_fetches(update, item.uuid, item.seen)
    names = ", ".join(item.server for item in request.items)
    return f"confirmed the secret fetches for {names} ({request.reason})"


def _allow_installs(update: LedgerUpdate) -> str:
    """End the stop that an operator ordered."""
    was_stopped, claims = update.facts.stop_order is not None, update.before.claims
    update.set_facts(stop_order=None)
    if not was_stopped:
        return "no stop from gitboot stop-installs was in force"
    if claims:
        return f"gitboot still withholds boots that write to disk: {claims[0]}"
    return "gitboot offers boots again"


# Approvals


def find_held_commit(held: HeldCommit | None, prefix: str) -> HeldCommit:
    """Return the held change whose digest begins with ``prefix``. Raises `UsageError` or `StaleDigest`."""
    digits = prefix.strip().lower()
    if not _DIGITS.fullmatch(digits) or len(digits) < _MIN_DIGITS:
        raise UsageError(
            f"{printable(prefix)} is not a digest: type at least {_MIN_DIGITS} of the hexadecimal digits that `gitboot "
            "status` shows"
        )
    if held is not None and held.commit.startswith(digits):
        raise StaleDigest(
            f"{digits} is the held commit itself: pass the digest of its changes, {held.digest}, after you have "
            "reviewed the changes"
        )
    if held is None or not held.digest.startswith(digits):
        raise _make_stale_error(held, digits)
    return held


def check_approval(held: HeldCommit | None, digest: str, guards: Collection[str]) -> None:
    """Raise `StaleDigest` unless the held commit has this digest and all of these guards hold the commit."""
    if held is None or held.digest != digest:
        raise _make_stale_error(held, digest)
    if others := sorted(set(guards) - set(held.guards)):
        raise StaleDigest(f"the commit is held by {', '.join(held.guards)}, not by {', '.join(others)}")


def _make_stale_error(held: HeldCommit | None, digest: str) -> StaleDigest:
    """Return the error for a digest that the changes of the held commit do not have."""
    if held is None:
        return StaleDigest("no guard is holding a commit, so there is no commit to approve")
    return StaleDigest(
        f"the held commit's changes have the digest {held.digest}, not {digest}: review the changes again"
    )


# Requests about the BMC of one server


def _resolve_override(update: LedgerUpdate, request: ResolveOverride) -> str:
    """Record whether the overrides and resets with an unknown outcome took place, as an operator stated."""
    uuid, server, key = request.uuid, request.server, request.key
    pinned = update.find_pin(uuid)
    seen = pinned.latest_identity if pinned is not None else None
    record = update.record(uuid) if update.before.is_trusted else None
    # An override with a higher provision number can also stand for the installation that the plan needs.
    is_used = key is not None and record is not None and satisfies_key(record.consumed_key, key)
    used_key = record.consumed_key if record is not None and is_used else None
    clears_record = not request.consumed and record is not None and used_key is not None
    if clears_record and record is not None:
        set_records(update, [(uuid, server, replace(record, consumed_at=None, consumed_key=None))])
    override_state = OverrideState.LOST if request.consumed else OverrideState.CLEARED
    override_count = _set_override_states(
        update, uuid, override_state, lambda override: _is_affected(override, request, seen, used_key)
    )
    power_state = PowerRecordState.REQUESTED if request.consumed else PowerRecordState.REFUSED
    reset_count = set_power_states(update, uuid, power_state, lambda reset: reset.state is PowerRecordState.RECORDED)
    if not override_count and not reset_count and not clears_record:
        return f"{server}: no override or power request is unresolved"
    outcome = _describe_resolution(has_overrides=clears_record or override_count > 0, is_consumed=request.consumed)
    return f"{server}: {outcome} ({request.reason})"


def _is_affected(
    override: OverrideRecord, request: ResolveOverride, seen: ReportedIdentity | None, used_key: str | None
) -> bool:
    """Return whether a request to resolve an override is about this override.

    The request is about an override if its state is unknown, if it is at another BMC, or if it is closed but the plan
    needs it. ``seen`` is the machine identity that the BMC reports now. ``used_key`` is the key that was consumed for
    the installation that the plan needs.
    """
    if override.state is OverrideState.RECORDED:
        return True
    if not override.state.is_open:
        return override.reason in (request.key, used_key)
    is_at_another_bmc = override.bmc is not None and list(override.bmc.normalized_address) != request.bmc
    return is_at_another_bmc or (seen is not None and are_different_systems(override.shown, seen))


def _describe_resolution(*, has_overrides: bool, is_consumed: bool) -> str:
    """Return a clause about the overrides, or else about the power requests, that an operator resolved."""
    if has_overrides:
        if is_consumed:
            return "recorded the override as used; gitboot does not set it again"
        return "recorded the override as not set; gitboot sets it if the plan requires it"
    if is_consumed:
        return "recorded that gitboot switched the server's power, and will not switch it again"
    return "recorded that gitboot did not switch the server's power, and may still switch it"


def _mark_in_service(update: LedgerUpdate, request: MarkInService) -> str:
    """Record that a server is in service again."""
    if not set_power_states(update, request.uuid, PowerRecordState.BACK, lambda record: record.state.is_open):
        return f"{request.server}: gitboot was not waiting for this server"
    update.due_now.add(request.uuid)
    return f"{request.server}: recorded that the server is in service again ({request.reason})"


def _accept_identity(update: LedgerUpdate, request: AcceptIdentity) -> str:
    """Pin the machine identity that a BMC reports, if the BMC still reports the identity that the operator saw."""
    pinned = update.find_pin(request.uuid)
    if pinned is None or [pinned.latest_identity.uuid, pinned.latest_identity.serial] != request.shown:
        seen = pinned.latest_identity if pinned is not None else "no machine"
        raise UsageError(f"{request.server}'s BMC now shows {seen}; check the machine, then repeat the request")
    if not _needs_acceptance(update, request.uuid, pinned):
        return f"{request.server}: its BMC shows this server already, so there is no identity to accept"
    update.set_pin(request.uuid, accept_identity(pinned, at=update.at))
    update.due_now.add(request.uuid)
    shown = pinned.latest_identity
    return f"{request.server}: accepted the machine that its BMC shows, {shown} ({request.reason})"


def _needs_acceptance(update: LedgerUpdate, uuid: SystemUuid, pinned: PinnedIdentity) -> bool:
    """Return whether the BMC may belong to another machine than the document, or than a recorded override.

    An accepted identity counts as the server's even if its document changes later.
    """
    seen, overrides = pinned.latest_identity, update.overrides.list_records(uuid)
    if any(each.may_be_left_on_bmc and are_different_systems(each.shown, seen) for each in overrides):
        return True
    machine = update.before.machines.get(uuid)
    if machine is None:
        return True
    document = DocumentIdentity.from_document(uuid, machine.serial, machine.bmc)
    return not isinstance(compare_identity(document, seen, pinned=pinned), SameMachine)


def _accept_certificate(update: LedgerUpdate, request: AcceptCertificate) -> str:
    """Pin the certificate that a BMC presents."""
    server, certificate = request.server, request.certificate
    if (pinned := update.find_pin(request.uuid)) is None:
        raise UsageError(f"gitboot has not pinned a certificate for {server}'s BMC")
    update.set_pin(request.uuid, structs.replace(pinned, certificate=certificate))
    update.due_now.add(request.uuid)
    return f"{server}: accepted the certificate {certificate} presented by its BMC ({request.reason})"


def _replace_override(update: LedgerUpdate, request: ReplaceOverride) -> str:
    """Allow gitboot to replace a foreign override with the planned override."""
    uuid, server, key = request.uuid, request.server, request.key
    record = next((record for record in update.overrides.list_records(uuid) if record.reason == key), None)
    ended_states = (OverrideState.CLEARED, OverrideState.CONSUMED, OverrideState.UNSENT)
    if key is None or (record is not None and record.state not in ended_states):
        return f"{server}: there is no override to replace"
    opened = record or OverrideRecord(
        reason=key, plan_digest="", override=NO_OVERRIDE, marks=NO_MARKS, state=OverrideState.OPENED, at=update.at
    )
    update.overrides.set_record(uuid, structs.replace(opened, state=OverrideState.OPENED, at=update.at))
    update.due_now.add(uuid)
    return f"{server}: gitboot will replace the override on its BMC with the override for {key} ({request.reason})"


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


def _is_provision_reset(record: PowerRecord) -> bool:
    return record.reason.startswith("provision/")
