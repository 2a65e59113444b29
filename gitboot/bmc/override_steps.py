"""Override steps: pure functions that derive the next step from the wanted, observed and recorded override."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged, IdentityResult, SameMachine, are_different_systems
from gitboot.bmc.override_state import (
    NO_MARKS,
    AskOperator,
    BmcObservation,
    ClearOverride,
    ConfirmRecord,
    EjectMedium,
    InsertMedium,
    Medium,
    MediumState,
    NoChange,
    OperatorCondition,
    Override,
    OverrideRecord,
    OverrideState,
    ResetConclusion,
    ResetMarks,
    SetOverride,
    Step,
    Wait,
    WantedOverride,
    as_utc,
    assign_slots,
    find_slot,
    parse_time,
)
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

# How long a BMC may take to show a change. Without this delay, gitboot would repeat the request.
_SET_DELAY = timedelta(minutes=1)
_CLEAR_DELAY = timedelta(seconds=10)
# Corrections within this period. If more are needed, someone else probably changes the override, and a person must
# decide.
MAX_CORRECTIONS = 3
_CORRECTION_PERIOD = timedelta(hours=1)
# POST never takes half an hour, but some BMCs stop updating the boot progress. Supermicro's AS-1015CS shows
# SystemHardwareInitializationComplete forever (bmclib, pull request 459).
_MAX_POST = timedelta(minutes=30)

NO_OVERRIDE = Override(enabled=OverrideEnabled.DISABLED, target=OverrideTarget.NONE)


class UnrecordedClearing(NamedTuple):
    """A record of an override's end, stored outside the ledger because the ledger was unavailable."""

    uuid: SystemUuid
    record: OverrideRecord
    # whether an earlier process stored this clearing, so that no task result contains it
    is_from_earlier_process: bool = False


Change = SetOverride | InsertMedium | EjectMedium | ClearOverride  # steps that send a request to the BMC


def next_step(
    *,
    wanted: WantedOverride | None,
    observed: BmcObservation,
    records: Iterable[OverrideRecord],
    now: datetime,
    identity_result: IdentityResult,
    keep_media: Collection[str] = (),
) -> Step:
    """Return the next step for one BMC.

    ``records`` are all records of the server, one record for each reason. gitboot first clears overrides for other
    reasons and ejects their media. Media in ``keep_media`` belong to a boot that was served, and stay inserted until
    the machine is reset. gitboot does not touch an override that gitboot did not set. gitboot sets an override only on
    the documented machine, and clears an override only on the system on which gitboot set the override.
    """
    records = tuple(record for record in records if record.state is not OverrideState.UNSENT)
    is_accepted = isinstance(identity_result, SameMachine) and identity_result.accepted
    for record in records:
        if not is_accepted and record.may_be_left_on_bmc and are_different_systems(record.shown, observed.identity):
            return AskOperator(
                condition=OperatorCondition.ANOTHER_MACHINE,
                message=f"gitboot set {record.override} for {record.reason} on a BMC that reported {record.shown}."
                f" The BMC at this address now reports {observed.identity}",
            )
    changing_marks = frozenset[str]().union(*(observed.marks.find_later_marks(record.marks) for record in records))
    own_record = next((record for record in records if wanted is not None and record.reason == wanted.reason), None)
    wanted_media = wanted.override.media if wanted is not None else ()
    inserted_media = ((record, medium) for record in records for medium in record.media if medium.may_be_inserted)
    media_to_eject = [(record, medium) for record, medium in inserted_media if medium.url not in wanted_media]
    for record in records:
        # gitboot clears an override if it must eject the override's medium. Otherwise, the machine would boot from the
        # next device in the firmware's boot order, or start an installer without user data.
        loses_medium = any(record is losing_record for losing_record, _ in media_to_eject)
        may_stay = record is own_record and not isinstance(identity_result, AnotherMachine) and not loses_medium
        if record.state.is_open and not may_stay:
            return _clear_override(record, observed, now, changing_marks)
    for record, medium in media_to_eject:
        eject_step = _eject_medium(record, medium, keep_media, observed, now)
        if eject_step is not None:
            return eject_step
    if wanted is None:
        return NoChange()
    if isinstance(identity_result, AnotherMachine):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identity_result.message)
    wanted = structs.replace(wanted, is_first_install=wanted.is_first_install and not records)
    step = _apply_override(wanted, own_record, observed, now, changing_marks)
    if isinstance(step, SetOverride | InsertMedium):
        if isinstance(identity_result, IdentityChanged):
            return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identity_result.message)
        if not wanted.may_set:
            return NoChange()
    return step


def needs_slots(wanted: WantedOverride | None, records: Iterable[OverrideRecord]) -> bool:
    """Return whether `next_step` needs the state of the virtual media slots."""
    return (wanted is not None and wanted.override.medium is not None) or any(each.has_media for each in records)


def needs_firmware_uri(wanted: WantedOverride | None, observed: BmcObservation) -> bool:
    """Return whether `next_step` needs to know the URI in the firmware settings.

    Firmware boots from that URI if an override with the target ``UefiHttp`` contains no URI.
    """
    if wanted is None or not observed.has_uri_setting or observed.firmware_uri is not None:
        return False
    adapted = adapt_override(wanted.override, observed)
    return adapted is not None and adapted.target == OverrideTarget.UEFI_HTTP and adapted.gets_loader_from_dhcp


def choose_firmware_uri(wanted: WantedOverride | None, observed: BmcObservation) -> str | None:
    """Return the URI to store in the firmware settings for the next reset, or None if the setting must not change.

    The URI stays in the settings after the end of the plan, and firmware boots from this URI whenever a person selects
    HTTP boot. Therefore gitboot stores only the URI of a boot loader, which requests the current boot script at each
    boot. gitboot does not store an https URI, because firmware would need the authority's certificate, which gitboot
    does not install. gitboot does not overwrite a URI that gitboot did not store.
    """
    if wanted is None or wanted.loader_url_prefix is None or observed.firmware_uri is None:
        return None
    uri, current = wanted.override.http_boot_uri, observed.firmware_uri
    if uri is None or uri == current or not uri.startswith("http://"):
        return None
    return uri if current == "" or current.startswith(wanted.loader_url_prefix) else None


def needs_clock(records: Iterable[OverrideRecord], observed: BmcObservation, now: datetime) -> bool:
    """Return whether `next_step` needs the BMC's clock.

    gitboot uses the clock to determine how an override ended, and whether the BMC reports an implausibly long POST.
    """
    if observed.marks.bmc_time is not None:
        return False
    if observed.in_post and not _is_in_post(observed, now):
        return True
    return any(
        record.state.is_open
        and record.override.enabled is OverrideEnabled.ONCE
        and record.marks.bmc_time is not None
        and (not is_override_shown(record.override, observed) or observed.marks.find_later_marks(record.marks))
        for record in records
    )


def update_refused_record(record: OverrideRecord, observed: BmcObservation) -> OverrideRecord:
    """Update the record of a `SetOverride` step after the BMC rejected the step's request.

    ``observed`` was read after the rejection.

    A rejected request can still have an effect: iDRAC 8 responds with 400 but sets the override (community.general,
    issue 5091).
    """
    state = OverrideState.CONFIRMED if is_override_shown(record.override, observed) else OverrideState.CLEARED
    return structs.replace(record, state=state, marks=add_known_clock(observed, record))


def update_record_after_conflict(
    record: OverrideRecord,
    observed: BmcObservation,
    wanted: WantedOverride,
    earlier_records: Collection[OverrideRecord],
) -> OverrideRecord:
    """Update the record of a `SetOverride` step that was not carried out because the BMC had changed.

    The request either failed or was not sent. ``earlier_records`` are the server's other records. If no such record has
    the same reason, another instance may have set the same override.
    """
    earlier_records = [each for each in earlier_records if each.state is not OverrideState.UNSENT]
    if any(earlier.reason == record.reason for earlier in earlier_records):
        return update_refused_record(record, observed)
    updated_wanted = structs.replace(wanted, is_first_install=wanted.is_first_install and not earlier_records)
    if _is_set_by_another(updated_wanted, record.override, observed):
        return structs.replace(record, state=OverrideState.SET_BY_ANOTHER)
    if not is_override_shown(record.override, observed):
        return structs.replace(record, state=OverrideState.UNSENT)
    return update_refused_record(record, observed)


def has_observation_changed(before: BmcObservation, after: BmcObservation) -> bool:
    """Return whether two readings differ in a value that `next_step` uses. Ignore the clock."""
    marks = after.marks.with_clock_from(before.marks)
    values_before = (before.override, before.power, before.in_post, before.marks)
    return values_before != (after.override, after.power, after.in_post, marks)


def is_override_shown(override: Override, observed: BmcObservation) -> bool:
    """Return whether the BMC shows ``override``. Ignore values that the BMC does not report."""
    current = observed.override
    if override.enabled is OverrideEnabled.DISABLED:
        return current.enabled is OverrideEnabled.DISABLED
    uri_matters = override.target == OverrideTarget.UEFI_HTTP and observed.supports_http_boot_uri
    return (
        (current.enabled, current.target) == (override.enabled, override.target)
        and (override.mode is None or current.mode in (None, override.mode))
        and (not uri_matters or current.http_boot_uri == override.http_boot_uri)
    )


def adapt_override(override: Override, observed: BmcObservation) -> Override | None:
    """Return ``override`` in a form that this BMC supports, or None if the BMC supports no form of the override.

    If the override cannot contain a URI, the DHCP server must name a boot loader, which requests the server's boot
    script.
    """
    target, uri = override.target, override.http_boot_uri
    if target == OverrideTarget.CD:
        target = observed.cd_target
    if target == OverrideTarget.UEFI_HTTP:
        continuous = override.enabled is OverrideEnabled.CONTINUOUS
        if not _supports_target(OverrideTarget.UEFI_HTTP, observed) or (continuous and not observed.continuous_http):
            target, uri = OverrideTarget.PXE, None
        elif not observed.supports_http_boot_uri:
            # Firmware would boot from the URI in its settings, but gitboot did not store that URI.
            if observed.firmware_uri not in (None, "", uri):
                target = OverrideTarget.PXE
            uri = None
    mode = override.mode if observed.override.mode else None
    wrong_mode = observed.mode_is_fixed and mode not in (None, observed.override.mode)
    if wrong_mode or not _supports_target(target, observed) or not supports_enabled_value(override.enabled, observed):
        return None
    return structs.replace(override, target=target, mode=mode, http_boot_uri=uri)


def explain_dhcp_loader(override: Override, observed: BmcObservation) -> str | None:
    """Return why only the DHCP server can name the boot loader, such as ``the BMC does not support UefiHttp``.

    Return None if this BMC's override can contain the URI of the boot loader.
    """
    adapted = adapt_override(override, observed) if override.http_boot_uri is not None else None
    if adapted is None or not adapted.gets_loader_from_dhcp:
        return None
    if adapted.target == OverrideTarget.UEFI_HTTP:
        return "the BMC does not support HttpBootUri" if observed.firmware_uri != override.http_boot_uri else None
    if observed.firmware_uri not in (None, "", override.http_boot_uri):
        return f"the firmware would boot from a different URI in its settings, {observed.firmware_uri}"
    if not _supports_target(OverrideTarget.UEFI_HTTP, observed):
        return "the BMC does not support UefiHttp"
    return "Continuous UefiHttp would permanently change the machine's boot order"


def _supports_target(target: str, observed: BmcObservation) -> bool:
    return not observed.allowable_targets or target in observed.allowable_targets


def supports_enabled_value(enabled: OverrideEnabled, observed: BmcObservation) -> bool:
    """Return whether a BMC supports this value of BootSourceOverrideEnabled.

    XCC does not support Continuous, and iRMC does not support Disabled.
    """
    return not observed.allowable_enabled or enabled in observed.allowable_enabled


def _clear_override(
    record: OverrideRecord, observed: BmcObservation, now: datetime, changing_marks: frozenset[str]
) -> Step:
    """Return the step that clears an unwanted override, or the step that records how the override ended."""
    if _is_previous_override_shown(record, observed):
        record = structs.replace(
            record, override=record.replaces or record.override, replaces=None, state=OverrideState.CONFIRMED
        )
    if _is_foreign_override(record, observed):
        return ConfirmRecord(record=structs.replace(record, state=_infer_consumed_state(record, now)))
    if not is_override_shown(record.override, observed):
        if record.state is OverrideState.RECORDED and _is_record_recent(_SET_DELAY, record, now):
            return Wait(why=_explain_not_shown(record, observed))
        return ConfirmRecord(
            record=structs.replace(record, state=_infer_final_state(record, observed, now, changing_marks))
        )
    if record.state is OverrideState.CLEARING and _is_record_recent(_CLEAR_DELAY, record, now):
        return Wait(why="gitboot cleared the override a moment ago, but the BMC still shows it")
    return ClearOverride(
        record=structs.replace(record, state=OverrideState.CLEARING, marks=add_known_clock(observed, record), at=now)
    )


def _eject_medium(
    record: OverrideRecord, medium: Medium, keep_media: Collection[str], observed: BmcObservation, now: datetime
) -> Step | None:
    """Return the step that ejects a recorded medium, or the step that records that the medium is already gone.

    Return None if the medium must stay inserted.
    """
    # gitboot ejects the medium once the system that booted from it has stopped. Otherwise, the machine could boot from
    # the medium again.
    booted = medium.booted
    is_over = booted is not None and (
        observed.power == "Off" or observed.marks.find_reset_since(booted) is ResetConclusion.SEEN
    )
    if medium.url in keep_media and not is_over:
        if booted is not None:
            return None
        # The record does not contain the clock, because gitboot could not compare the times with a later reading
        # without a clock.
        return ConfirmRecord(
            record=record.with_medium(structs.replace(medium, booted=observed.marks.with_clock_from(NO_MARKS)))
        )
    slot = find_slot(medium.url, observed.slots)
    since = now - medium.at
    if slot is None:
        if medium.state is MediumState.INSERTED and timedelta() <= since < _SET_DELAY:
            return Wait(why="gitboot inserted the medium a moment ago, but the BMC does not show it yet")
        return ConfirmRecord(record=record.with_medium(structs.replace(medium, state=MediumState.EJECTED)))
    if medium.state is MediumState.EJECTING and timedelta() <= since < _CLEAR_DELAY:
        return Wait(why="gitboot ejected the medium a moment ago, but the BMC still shows it")
    return EjectMedium(
        record=record.with_medium(structs.replace(medium, state=MediumState.EJECTING, at=now)), slot=slot
    )


def _is_previous_override_shown(record: OverrideRecord, observed: BmcObservation) -> bool:
    """Return whether the BMC still shows the override that this record replaces, which gitboot set earlier."""
    return (
        record.state is OverrideState.RECORDED
        and record.replaces is not None
        and not is_override_shown(record.override, observed)
        and is_override_shown(record.replaces, observed)
    )


def _is_foreign_override(record: OverrideRecord, observed: BmcObservation) -> bool:
    """Return whether another program or a person set the one-time override that the BMC shows.

    This is the case if a reset has consumed the recorded override.

    A machine in POST has not consumed the override yet. If gitboot crashed before it confirmed the override, it may
    have set the override after the reset.
    """
    return (
        record.override.enabled is OverrideEnabled.ONCE
        and record.state in (OverrideState.CONFIRMED, OverrideState.CLEARING)
        and observed.marks.settled
        and not observed.in_post
        and is_override_shown(record.override, observed)
        and observed.marks.find_reset_since(record.marks) is ResetConclusion.SEEN
    )


def _infer_consumed_state(record: OverrideRecord, now: datetime) -> OverrideState:
    is_proven = record.state is OverrideState.CONFIRMED and not record.may_be_cleared_unrecorded(now)
    return OverrideState.CONSUMED if is_proven else OverrideState.LOST


def _infer_final_state(
    record: OverrideRecord, observed: BmcObservation, now: datetime, changing_marks: frozenset[str]
) -> OverrideState:
    """Return the state of an override that the BMC no longer shows.

    For a boot that writes a disk, unchanged marks rule out a reset only if earlier resets of this machine changed those
    marks. While gitboot clears an override, any unchanged mark is enough, because no machine boots in such a short
    time. From `OverrideRecord.clears_from` on, any instance may have cleared a one-time override without a record, so
    the absence of the override does not prove a boot.
    """
    if record.override.enabled is OverrideEnabled.CONTINUOUS:
        return OverrideState.CLEARED
    if record.may_be_cleared_unrecorded(now):
        return OverrideState.LOST
    is_clearing = record.state is OverrideState.CLEARING and _is_record_recent(_CLEAR_DELAY, record, now)
    trusted_marks = changing_marks if record.writes_disk and not is_clearing else None
    match observed.marks.find_reset_since(record.marks, changing_marks=trusted_marks):
        case ResetConclusion.RULED_OUT:
            return OverrideState.CLEARED
        case ResetConclusion.SEEN if record.state is OverrideState.CONFIRMED:
            return OverrideState.CONSUMED
    return OverrideState.LOST


def add_known_clock(observed: BmcObservation, record: OverrideRecord) -> ResetMarks:
    """Return the observed marks. If they contain no clock values, add those of the record."""
    return observed.marks if observed.marks.bmc_time is not None else observed.marks.with_clock_from(record.marks)


class _Goal(NamedTuple):
    """A wanted override in the form that the BMC supports, and the reading and time for which gitboot decides."""

    wanted: WantedOverride
    override: Override  # the wanted override, adapted to the BMC
    observed: BmcObservation
    now: datetime


def _apply_override(
    wanted: WantedOverride,
    record: OverrideRecord | None,
    observed: BmcObservation,
    now: datetime,
    changing_marks: frozenset[str],
) -> Step:
    """Return the next step for the wanted override. ``record`` is the ledger's record for the override's reason."""
    override = adapt_override(wanted.override, observed)
    if override is None:
        return AskOperator(
            condition=OperatorCondition.UNSUPPORTED, message=_explain_unsupported(wanted.override, observed)
        )
    if wanted.needs_http_uri and override.gets_loader_from_dhcp:
        return AskOperator(
            condition=OperatorCondition.UNSUPPORTED,
            message="the plan boots an ISO image over HTTP, but the BMC does not support HttpBootUri. A boot loader"
            " cannot start an ISO image instead",
        )
    goal = _Goal(wanted, override, observed, now)
    if record is not None and record.state is OverrideState.OPENED:
        return _set_override(goal, record)
    if record is not None and record.state is OverrideState.SET_BY_ANOTHER:
        uri = f" {record.override.http_boot_uri}" if record.override.http_boot_uri else ""
        return request_operator(
            f"the BMC already had {record.override}{uri}, the override for {record.reason}, although this instance"
            " never set it. Another instance may have set it, and the machine may already have booted from it"
        )
    if record is None and _is_set_by_another(wanted, override, observed):
        return ConfirmRecord(record=_build_record(goal, None, OverrideState.SET_BY_ANOTHER))
    if record is None or wanted.should_set(record):
        return _set_override_if_free(goal, record)
    if record.state.is_open:
        return _keep_override(goal, record, changing_marks)
    if wanted.set_again and record.state is OverrideState.LOST:
        return request_operator(
            f"the override {record.override} for {record.reason} is gone, but gitboot cannot prove that the machine"
            " booted from it, so gitboot does not set the override again"
        )
    return NoChange()


def _set_override_if_free(goal: _Goal, record: OverrideRecord | None) -> Step:
    """Return the step that sets the override, unless another program or person set the override that the BMC shows."""
    current = goal.observed.override
    step = _set_override(goal, record)
    is_free = current.enabled is OverrideEnabled.DISABLED or current.target == OverrideTarget.NONE
    if is_free or is_override_shown(goal.override, goal.observed) or not isinstance(step, SetOverride | InsertMedium):
        return step
    shows_uri = current.http_boot_uri and current.target == OverrideTarget.UEFI_HTTP
    uri = f" {current.http_boot_uri}" if shows_uri else ""
    return AskOperator(
        condition=OperatorCondition.FOREIGN_OVERRIDE,
        message=f"the BMC shows {current}{uri}. When this override is gone, gitboot sets {goal.override}",
    )


def _keep_override(goal: _Goal, record: OverrideRecord, changing_marks: frozenset[str]) -> Step:
    """Return the step that confirms, changes or restores an override that gitboot has set or is about to set."""
    wanted, override, observed, now = goal
    if not is_override_shown(record.override, observed):
        return _restore_override(goal, record, changing_marks)
    if _is_foreign_override(record, observed):
        return ConfirmRecord(record=structs.replace(record, state=_infer_consumed_state(record, now)))
    insert_step = _insert_media(goal, record)
    if insert_step is not None:
        return insert_step
    if record.override != override:
        return _set_override(goal, record, _list_recent_corrections(record, now), replaces=record.override)
    may_update_marks = observed.marks.settled and observed.marks.has_progressed_since(record.marks)
    if record.state is OverrideState.CONFIRMED and not may_update_marks:
        updated = structs.replace(record, clears_from=wanted.planned_end)
        return NoChange() if updated == record else ConfirmRecord(record=updated)
    # This applies even if the machine has booted since then without consuming the override.
    marks = add_known_clock(observed, record)
    return ConfirmRecord(
        record=structs.replace(
            record, state=OverrideState.CONFIRMED, marks=marks, replaces=None, clears_from=wanted.planned_end
        )
    )


def _restore_override(goal: _Goal, record: OverrideRecord, changing_marks: frozenset[str]) -> Step:
    """Return the next step for a wanted override that the BMC no longer shows.

    gitboot sets the override again only if the machine cannot have consumed the override.
    """
    observed, now = goal.observed, goal.now
    current = observed.override
    final_state = _infer_final_state(record, observed, now, changing_marks)
    if record.state is OverrideState.CLEARING:
        return ConfirmRecord(record=structs.replace(record, state=final_state))
    if record.state is OverrideState.RECORDED and _is_record_recent(_SET_DELAY, record, now):
        return Wait(why=_explain_not_shown(record, observed))
    corrections = _list_recent_corrections(record, now)
    if _is_previous_override_shown(record, observed):
        return _set_override(goal, record, corrections, replaces=record.replaces)
    if final_state is OverrideState.CLEARED and len(corrections) >= MAX_CORRECTIONS:
        return AskOperator(
            condition=OperatorCondition.CONTENDED,
            message=f"gitboot set {record.override} {MAX_CORRECTIONS + 1} times within an hour, but the BMC shows"
            f" {current}",
        )
    if final_state is OverrideState.CLEARED:
        return _set_override(goal, record, (*corrections, now))
    if record.state is OverrideState.CONFIRMED:
        return ConfirmRecord(record=structs.replace(record, state=final_state))
    if _is_in_post(observed, now):
        return Wait(why="the machine is in POST, and gitboot has not confirmed the override")
    if (  # some BMCs store an override for one boot as a Continuous override, such as the fake driver of sushy-tools
        record.override.enabled is OverrideEnabled.ONCE
        and current.enabled is OverrideEnabled.CONTINUOUS
        and current.target == record.override.target
    ):
        return request_operator(
            f"the BMC does not implement Once: gitboot set {record.override} for {record.reason}, but the BMC shows "
            f"{current}, which remains after a boot. In the policy, set override: None or override: Continuous. "
            "gitboot cannot tell whether the machine has booted from the override"
        )
    shown = f". The BMC shows {current}" if current.enabled is not OverrideEnabled.DISABLED else ""
    return request_operator(
        f"gitboot tried to set {record.override} for {record.reason}, but the BMC does not show it. Either the override"
        f" was never set, or the machine has booted from it{shown}"
    )


def _set_override(
    goal: _Goal,
    record: OverrideRecord | None,
    corrections: tuple[datetime, ...] = (),
    replaces: Override | None = None,
) -> Step:
    """Return the step that sets the override or first inserts its media, or the reason to wait."""
    wanted, observed, now = goal.wanted, goal.observed, goal.now
    if wanted.valid_until is not None and now >= wanted.valid_until:
        return Wait(why="the plan has ended, and gitboot has not made the next plan yet")
    if _is_in_post(observed, now):
        return Wait(why="the machine is in POST")
    if wanted.only_while_off and observed.power != "Off":
        return Wait(why="the machine is on, but gitboot sets this boot override only while the machine is off")
    insert_step = _insert_media(goal, record)
    if insert_step is not None:
        return insert_step
    new_record = _build_record(goal, record, OverrideState.RECORDED)
    return SetOverride(record=structs.replace(new_record, corrections=corrections, replaces=replaces))


def _build_record(goal: _Goal, before: OverrideRecord | None, state: OverrideState) -> OverrideRecord:
    wanted = goal.wanted
    return OverrideRecord(
        reason=wanted.reason,
        plan_digest=wanted.plan_digest,
        override=goal.override,
        marks=goal.observed.marks,
        state=state,
        at=goal.now,
        shown=goal.observed.identity,
        writes_disk=wanted.writes_disk,
        medium=before.medium if before is not None else None,
        data_medium=before.data_medium if before is not None else None,
        clears_from=wanted.planned_end,
    )


def _is_set_by_another(wanted: WantedOverride, override: Override, observed: BmcObservation) -> bool:
    """Return whether the BMC already shows the override that this instance is about to set for the first time.

    If so, another instance manages the same machine. Two new instances without a common ledger can detect each other
    only through the BMC. The BMC shows the override until a boot consumes the override, and many BMCs show the URI even
    after that.
    """
    if not wanted.writes_disk or override.enabled is not OverrideEnabled.ONCE:
        return False
    uri = override.http_boot_uri
    shows_uri = wanted.is_first_install and uri is not None and observed.override.http_boot_uri == uri
    return is_override_shown(override, observed) or shows_uri


def _insert_media(goal: _Goal, record: OverrideRecord | None) -> Step | None:
    """Return the step that inserts the next medium of an override, or None if the BMC already shows all its media.

    gitboot inserts the media before it sets the override, because a machine without the medium would boot from the next
    device in the firmware's boot order. gitboot inserts the boot medium last, and only if there are slots for both
    media, so that an installer never starts without its user data.
    """
    override, observed, now = goal.override, goal.observed, goal.now
    url = next((url for url in override.media if not _is_inserted(url, record, observed)), None)
    if url is None or override.medium is None:
        return None
    recorded_media = record.media if record is not None else ()
    earlier_medium = next((medium for medium in recorded_media if medium.url == url), None)
    if earlier_medium is not None and timedelta() <= now - earlier_medium.at < _SET_DELAY:
        return Wait(why="gitboot inserted the medium a moment ago, but the BMC does not show it yet")
    slots = assign_slots(observed.slots, override.medium, override.data_medium)
    if slots is None:
        return _report_missing_slot(override, override.medium, observed)
    new_medium = Medium(url=url, state=MediumState.INSERTED, at=now)
    change = {"data_medium" if url == override.data_medium else "medium": new_medium}
    if record is None or not (record.state.is_open or record.state is OverrideState.OPENED):
        record = _build_record(goal, record, OverrideState.INSERTED)
    return InsertMedium(record=structs.replace(record, **change), slot=slots[url], url=url)


def _is_inserted(url: str, record: OverrideRecord | None, observed: BmcObservation) -> bool:
    """Return whether a slot of the BMC contains the image at ``url``.

    Some BMCs show an image that is no longer connected. On such a BMC, the image counts as inserted only if gitboot
    inserted the image for this record.
    """
    slot = find_slot(url, observed.slots)
    if slot is None or not slot.may_be_stale:
        return slot is not None
    recorded_media = record.media if record is not None else ()
    return any(medium.url == url and medium.state is MediumState.INSERTED for medium in recorded_media)


def _report_missing_slot(override: Override, medium: str, observed: BmcObservation) -> AskOperator:
    needs_data = override.data_medium is not None
    empty_slots = [structs.replace(slot, image=None, inserted=False) for slot in observed.slots]
    if assign_slots(empty_slots, medium, override.data_medium) is None:
        disc = next((slot for slot in observed.slots if slot.accepts_discs), None)
        message = "the plan needs a medium, but the BMC does not have a virtual CD drive"
        if disc is not None and needs_data:
            message = (
                f"the plan needs a second medium for the user data, but the BMC has only the slot {disc.path}, so"
                " gitboot does not insert a medium. An image with configFrom: SystemUUID needs only one medium"
            )
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    taken = ", ".join(
        f"{slot.path} has {slot.image or 'a medium'}"
        for slot in observed.slots
        if not slot.is_free and slot.image not in override.media and (slot.accepts_discs or needs_data)
    )
    needed = "two media" if needs_data else "a medium"
    return AskOperator(
        condition=OperatorCondition.FOREIGN_MEDIUM,
        message=f"the plan needs {needed}, but the drives contain media that gitboot did not insert: {taken}",
    )


def _is_in_post(observed: BmcObservation, now: datetime) -> bool:
    marks = observed.marks
    if not observed.in_post or marks.boot_progress_time is None:
        return observed.in_post
    since, bmc_time = parse_time(marks.boot_progress_time), parse_time(marks.bmc_time)
    if bmc_time is None:  # gitboot's own clock is usable if the BMC reports an offset from UTC
        bmc_time = now if since is not None and since.tzinfo is not None else None
    return since is None or bmc_time is None or abs(as_utc(bmc_time) - as_utc(since)) < _MAX_POST


def _is_record_recent(period: timedelta, record: OverrideRecord, now: datetime) -> bool:
    return timedelta() <= now - record.at < period  # if the clock was set back, gitboot does not wait


def _list_recent_corrections(record: OverrideRecord, now: datetime) -> tuple[datetime, ...]:
    return tuple(instant for instant in record.corrections if now - instant < _CORRECTION_PERIOD)


def request_operator(message: str) -> AskOperator:
    return AskOperator(condition=OperatorCondition.NEEDS_OPERATOR, message=message)


def _explain_unsupported(override: Override, observed: BmcObservation) -> str:
    if not _supports_target(override.target, observed):
        allowable = ", ".join(sorted(observed.allowable_targets))
        return f"the plan needs {override.target}, but the BMC supports only {allowable}"
    if not supports_enabled_value(override.enabled, observed):
        allowable = ", ".join(sorted(observed.allowable_enabled))
        return (
            f"the plan needs {override.enabled}, but the BMC supports only {allowable}. In the policy, set"
            " override: Once or override: None"
        )
    return f"the plan needs mode {override.mode}, but the BMC uses {observed.override.mode} and cannot change it"


def _explain_not_shown(record: OverrideRecord, observed: BmcObservation) -> str:
    if observed.override.enabled is OverrideEnabled.DISABLED:
        return "gitboot set the override a moment ago, but the BMC does not show it yet"
    return f"gitboot set {record.override} a moment ago, but the BMC shows {observed.override}"
