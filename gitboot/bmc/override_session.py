"""Override session: carry out one task at one BMC, which first changes the override and then the power state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from gitboot.bmc.identity import (
    DocumentIdentity,
    IdentityResult,
    PinnedIdentity,
    compare_identity,
    find_pinned_identity,
    pin_certificate,
    update_pinned_identity,
)
from gitboot.bmc.override_state import (
    EJECT_REQUEST,
    IPMI,
    AskOperator,
    BmcObservation,
    ClearOverride,
    ConfirmRecord,
    EjectMedium,
    InsertMedium,
    NoChange,
    OperatorCondition,
    Override,
    OverrideRecord,
    SetOverride,
    Step,
    Wait,
    WantedOverride,
    build_insert_request,
)
from gitboot.bmc.override_steps import (
    NO_OVERRIDE,
    Change,
    choose_firmware_uri,
    needs_clock,
    needs_firmware_uri,
    needs_slots,
    next_step,
    update_record_after_conflict,
    update_refused_record,
)
from gitboot.bmc.power_steps import (
    PowerRecord,
    PowerRecordState,
    RequestReset,
    WantedPowerChange,
    WritePowerRecord,
    find_changing_marks,
    mark_recovered_records,
    next_power_step,
)
from gitboot.bmc.redfish.quirks import build_boot_patch
from gitboot.errors import BmcBusy, BmcChanged, BmcNotTrusted, BmcRejected, BmcUnreachable, LedgerError
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled

if TYPE_CHECKING:
    from gitboot.bmc.ipmi import IpmiConnection
    from gitboot.bmc.redfish.client import BmcConnection

    Driver = BmcConnection | IpmiConnection


# The steps are clear, eject, insert and set, each with a confirmation, and some more if the BMC changes meanwhile.
_MAX_STEPS: Final = 16
_MAX_POWER_STEPS: Final = 4  # gitboot confirms the last request, reads the allowed reset types, and sends the request


class TaskOutcome(StrEnum):
    """The outcome of a task."""

    UNCHANGED = "Unchanged"
    APPLIED = "Applied"
    WAITING = "Waiting"  # gitboot tries again later
    STALLED = "Stalled"  # a person must act


class BmcTask(Struct, frozen=True, kw_only=True):
    """A task at the BMC of one machine. The task contains the wanted override and the wanted power operation."""

    server: str
    uuid: SystemUuid
    bmc: BmcAccess
    wanted: WantedOverride | None
    records: tuple[OverrideRecord, ...]
    site: str | None = None  # the site whose network contains the BMC
    dry_run: bool = False  # only report the requests that gitboot would send
    read_only: bool = False  # only read the BMC, because gitboot needs its current state to evaluate a fetch
    with_clock: bool = False  # also read the clock, which gitboot needs to compare the times of resets
    serial: str | None = None  # the serial number in the Server document
    pinned: PinnedIdentity | None = None  # the identity that the BMC reported before
    bmc_is_in_ledger: bool = False  # the ledger allows gitboot to send this BMC its credentials
    # the media of a boot that an endpoint served; they stay inserted until the machine resets
    keep_media: tuple[str, ...] = ()
    wanted_power: WantedPowerChange | None = None  # the wanted power operation
    power_records: tuple[PowerRecord, ...] = ()  # the earlier power operations
    # values that do not identify a machine, from `SharedIdentityValues.values`
    shared_values: frozenset[str] = frozenset()

    def compare_identity(self, observed: BmcObservation, pinned: PinnedIdentity | None) -> IdentityResult:
        """Check whether the BMC belongs to this machine, and return the result.

        ``pinned`` is the identity that a BMC reported earlier at the same address.
        """
        return compare_identity(
            DocumentIdentity.from_document(self.uuid, self.serial, self.bmc),
            observed.identity,
            pinned=pinned,
            shared_values=self.shared_values,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """The result of a `BmcTask`."""

    server: str
    uuid: SystemUuid
    outcome: TaskOutcome
    message: str  # describes what gitboot did, or why gitboot did nothing
    first_override: Override | None = None  # the override that the BMC showed in the first reading
    observed: BmcObservation | None = None  # the last reading
    written_records: tuple[OverrideRecord, ...] = ()  # the records that were written, in order
    power_records: tuple[PowerRecord, ...] = ()  # the power records that were written, in order
    # False: the settings of the instance forbid the task, so gitboot did not contact the BMC.
    was_attempted: bool = True
    is_reachable: bool = True  # whether gitboot can reach the BMC
    identity_result: IdentityResult | None = None  # the result of the identity check after the last reading
    pinned: PinnedIdentity | None = None  # the pinned identity to store
    # a text that changes with the credentials; None: the credentials do not exist
    credentials_fingerprint: str | None = None
    condition: OperatorCondition | None = None  # the reason why a person must act
    was_power_allowed: bool = False  # whether the power wave allowed a reset
    firmware_uri: str | None = None  # the URI that gitboot stored in the firmware settings
    retry_after_s: int | None = None  # the waiting time that a busy BMC requested
    took_s: float | None = field(default=None, compare=False)  # None: gitboot did not measure the duration


class OverrideSession:
    """Runs one task at one BMC.

    The task first reads the BMC's state, and ends when no further step is possible for now.

    ``write`` stores a record durably before it returns. The session calls ``write`` before it changes the BMC.
    """

    def __init__(
        self,
        bmc: Driver,
        task: BmcTask,
        write: Callable[[OverrideRecord | PowerRecord], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._bmc = bmc
        self._task = task
        self._write = write
        self._clock = clock
        self._records = {record.reason: record for record in task.records}
        self._pinned = find_pinned_identity(task.pinned, task.bmc.normalized_address)
        self._written_records: list[OverrideRecord] = []
        self._written_power_records: list[PowerRecord] = []
        self._first_override: Override | None = None
        self._observed: BmcObservation | None = None
        self._identity_result: IdentityResult | None = None

    def run(self) -> TaskResult:
        """Carry out the next steps for the override.

        If the override needs no step, carry out those for the power state.
        """
        try:
            return self._run_override_steps() or self._run_power_steps()
        except BmcBusy as error:
            return self._build_result(TaskOutcome.WAITING, str(error), retry_after_s=error.retry_after_s)
        except LedgerError as error:  # gitboot does not change a BMC without a record
            return self._build_result(TaskOutcome.WAITING, str(error))
        except BmcUnreachable as error:
            return self._build_result(TaskOutcome.WAITING, str(error), is_reachable=False)
        except BmcRejected as error:
            return self._build_result(TaskOutcome.STALLED, str(error), is_reachable=self._observed is not None)
        except BmcNotTrusted as error:
            return self._build_result(TaskOutcome.STALLED, str(error), was_attempted=False, is_reachable=False)

    def _run_override_steps(self) -> TaskResult | None:
        """Record, set and confirm the override. Return None if the override needs no step."""
        bmc, task, clock = self._bmc, self._task, self._clock
        observed: BmcObservation | None = None
        was_confirmed = False  # whether the last reading is still current
        for _ in range(_MAX_STEPS):
            records = tuple(self._records.values())
            if observed is None or not was_confirmed or needs_clock(records, observed, clock()):
                observed = observe_bmc(bmc, task.wanted, records, clock, with_clock=task.with_clock)
                was_confirmed = False
            step = self._choose_override_step(observed)
            if isinstance(step, Change):
                if was_confirmed:  # read the BMC again before a request
                    was_confirmed = False
                    continue
                if task.read_only:
                    message = "gitboot only reads the BMC in this task, to evaluate a fetch"
                    return self._build_result(TaskOutcome.UNCHANGED, message)
                if task.dry_run:
                    message = " ".join(("would", *describe_request(step, observed)))
                    return self._build_result(TaskOutcome.UNCHANGED, message)
            match step:
                case NoChange():
                    return None
                case Wait(why=why):
                    return self._build_result(TaskOutcome.WAITING, why)
                case AskOperator(condition=condition, message=message):
                    return self._build_result(TaskOutcome.STALLED, f"{condition}: {message}", condition=condition)
                case ConfirmRecord(record=record):
                    self._write_record(record)
                    was_confirmed = True
                case SetOverride(record=record):
                    self._set_override(record, observed)
                case InsertMedium(record=record, slot=slot, url=url) if bmc.media is not None:
                    self._write_record(record)
                    bmc.media.insert(slot, url)
                case EjectMedium(record=record, slot=slot) if bmc.media is not None:
                    self._write_record(record)
                    with bmc.policy.mark_as_ending():
                        bmc.media.eject(slot)
                case ClearOverride(record=record):
                    self._write_record(record)
                    with bmc.policy.mark_as_ending():
                        bmc.set_override(NO_OVERRIDE, observed)
        return self._build_result(
            TaskOutcome.WAITING, f"the override has not reached the desired state after {_MAX_STEPS} steps"
        )

    def _choose_override_step(self, observed: BmcObservation) -> Step:
        """Store a reading, check the identity of the machine, and return the next step for the override."""
        task = self._task
        self._observed = observed
        self._first_override = self._first_override or observed.override
        self._identity_result = task.compare_identity(observed, self._pinned)
        self._pinned = update_pinned_identity(
            observed.identity,
            self._identity_result,
            pinned=self._pinned,
            place=task.bmc.normalized_address,
            at=self._clock(),
        )
        return next_step(
            wanted=task.wanted,
            observed=observed,
            records=tuple(self._records.values()),
            now=self._clock(),
            identity_result=self._identity_result,
            keep_media=task.keep_media,
        )

    def _set_override(self, record: OverrideRecord, observed: BmcObservation) -> None:
        """Record and set an override.

        If the BMC rejects the request, read the BMC's state, record the override that the BMC shows, and raise the
        error.
        """
        if record.override.enabled is OverrideEnabled.ONCE:
            self._observed = observed = self._bmc.read_clock(observed, self._clock)
        record = structs.replace(record, marks=observed.marks)
        earlier_records = tuple(self._records.values())
        self._write_record(record)
        try:
            self._bmc.set_override(record.override, observed)
        except (BmcRejected, BmcBusy) as error:
            # A rejected request may have changed the BMC nevertheless, so gitboot reads the BMC.
            self._observed = after = self._bmc.observe()
            if isinstance(error, BmcChanged) and self._task.wanted is not None:
                self._write_record(update_record_after_conflict(record, after, self._task.wanted, earlier_records))
            else:
                self._write_record(update_refused_record(record, after))
            raise

    def _run_power_steps(self) -> TaskResult:
        """Record and request the wanted power operation, and confirm the operations that have ended."""
        bmc, task, wanted = self._bmc, self._task, self._task.wanted_power
        observed, identity_result, overrides = self._observed, self._identity_result, tuple(self._records.values())
        if wanted is None or observed is None or identity_result is None:
            return self._build_final_result()
        record = next((each for each in task.power_records if each.reason == wanted.reason), None)
        if record is None or record.state in (PowerRecordState.RECORDED, PowerRecordState.REQUESTED):
            observed = bmc.read_clock(observed, self._clock)
        changing_marks = find_changing_marks(observed, overrides, task.power_records)
        may_write = not (task.dry_run or task.read_only)
        if may_write:
            other_records = (each for each in task.power_records if each.reason != wanted.reason)
            for recovered in mark_recovered_records(other_records, observed):
                self._write_power_record(recovered)
        power_message = ""
        for _ in range(_MAX_POWER_STEPS):
            step = next_power_step(
                wanted=wanted,
                record=record,
                observed=observed,
                overrides=overrides,
                now=self._clock(),
                identity_result=identity_result,
                changing_marks=changing_marks,
            )
            match step:
                case NoChange(why=why):
                    return self._build_final_result(power_message, why)
                case Wait(why=why):
                    return self._build_final_result(power_message, f"{wanted.operation} waits: {why}")
                case AskOperator(condition=condition, message=message):
                    return self._build_result(TaskOutcome.STALLED, f"{condition}: {message}", condition=condition)
                case WritePowerRecord(record=confirmed):
                    if not may_write:
                        break
                    self._write_power_record(confirmed)
                    record = confirmed
                    power_message = f"{record.type} for {record.reason} is {record.state.lower()}"
                case RequestReset(record=requested):
                    if not observed.reset_types:
                        updated = bmc.read_reset_types(observed)
                        if updated.reset_types:
                            observed = updated
                            continue  # choose the step again with the allowed reset types
                    if may_write:
                        return self._request_reset(requested, observed)
                    reason = "" if task.read_only else f"gitboot would request {requested.type}"
                    return self._build_final_result(power_message, reason)
        return self._build_final_result(power_message)

    def _request_reset(self, record: PowerRecord, observed: BmcObservation) -> TaskResult:
        """Record and request a reset. Before the request, store the URI that the firmware boots after the reset."""
        self._write_power_record(record)
        uri_message, uri = self._store_firmware_uri(observed)
        self._bmc.reset(record.type, observed)
        self._write_power_record(structs.replace(record, state=PowerRecordState.REQUESTED))
        message = f"gitboot requested {record.type} for {record.reason}{uri_message}"
        return self._build_result(TaskOutcome.APPLIED, message, firmware_uri=uri)

    def _store_firmware_uri(self, observed: BmcObservation) -> tuple[str, str | None]:
        """Store the boot loader's URI in the firmware settings if the override cannot contain a URI.

        Return a text for the task's message, and the stored URI. The setting takes effect at the next reset. If the BMC
        rejects the setting, the machine can get the boot loader's URI only from the DHCP server.
        """
        uri = choose_firmware_uri(self._task.wanted, observed)
        if uri is None or self._bmc.firmware is None:
            return "", None
        try:
            is_changed = self._bmc.firmware.store_uri(uri, observed)
        except (BmcRejected, BmcBusy) as error:
            return f"; the DHCP server must name the boot loader, because the BMC did not store {uri}: {error}", None
        if not is_changed:
            return "", None
        return f"; after the next reset, the firmware boots from {uri}", uri

    def _write_record(self, record: OverrideRecord) -> None:
        record = structs.replace(record, bmc=self._task.bmc)
        if not self._task.dry_run:
            self._write(record)
        self._records[record.reason] = record
        self._written_records.append(record)

    def _write_power_record(self, record: PowerRecord) -> None:
        self._write(record)
        self._written_power_records.append(record)

    def _build_final_result(self, power_message: str = "", power_reason: str = "") -> TaskResult:
        """Return the result of a task that has no more steps to carry out now.

        ``power_message`` describes a confirmed power operation. ``power_reason`` explains why there is no power
        operation.
        """
        if power_message:
            return self._build_result(TaskOutcome.APPLIED, power_message)
        if power_reason and not self._written_records:
            return self._build_result(TaskOutcome.UNCHANGED, power_reason)
        override = self._observed.override if self._observed is not None else NO_OVERRIDE
        return self._build_result(
            TaskOutcome.APPLIED if self._written_records else TaskOutcome.UNCHANGED, f"the BMC shows {override}"
        )

    def _build_result(self, outcome: TaskOutcome, message: str, **fields: Any) -> TaskResult:
        task = self._task
        pinned = pin_certificate(
            self._pinned, self._bmc.policy.shown_fingerprint, place=task.bmc.normalized_address, at=self._clock()
        )
        return TaskResult(
            server=task.server,
            uuid=task.uuid,
            outcome=outcome,
            message=message,
            first_override=self._first_override,
            observed=self._observed,
            written_records=tuple(self._written_records),
            power_records=tuple(self._written_power_records),
            identity_result=self._identity_result,
            pinned=task.pinned if task.dry_run else pinned,
            **fields,
        )


def observe_bmc(
    bmc: Driver,
    wanted: WantedOverride | None,
    records: Iterable[OverrideRecord],
    clock: Callable[[], datetime],
    *,
    with_clock: bool = False,
) -> BmcObservation:
    """Read the state of a BMC with one request, plus further requests if the next step needs more values.

    The additional values can be the virtual media slots, the firmware settings and the clock.
    """
    records = tuple(records)
    observed = bmc.observe()
    if bmc.media is not None and needs_slots(wanted, records):
        observed = bmc.media.read_slots(observed)
    if bmc.firmware is not None and needs_firmware_uri(wanted, observed):
        observed = bmc.firmware.read_uri(observed)
    if with_clock or needs_clock(records, observed, clock()):
        return bmc.read_clock(observed, clock)
    return observed


def describe_request(step: object, observed: BmcObservation) -> tuple[str, ...]:
    """Return the HTTP method and a description of the request that a step sends, or () if the step sends no request.

    For IPMI requests, return only the description.
    """
    match step:
        case InsertMedium(slot=slot, url=url):
            body = json.dumps(build_insert_request(slot, url))
            return "POST" if slot.insert_target else "PATCH", f"{slot.insert_target or slot.path}: {body}"
        case EjectMedium(slot=slot):
            body = json.dumps({} if slot.eject_target else EJECT_REQUEST)
            return "POST" if slot.eject_target else "PATCH", f"{slot.eject_target or slot.path}: {body}"
        case SetOverride(record=record):
            override = record.override
        case ClearOverride():
            override = NO_OVERRIDE
        case _:
            return ()
    if observed.quirks_name == IPMI:
        return (f"Set System Boot Options: {override.enabled} {override.target} {override.mode or ''}".rstrip(),)
    return "PATCH", f"{observed.settings_path}: {json.dumps({'Boot': build_boot_patch(override, observed)})}"
