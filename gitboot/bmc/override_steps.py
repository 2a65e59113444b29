"""Override steps: the pure table from wanted, observed and recorded state to the next step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from gitboot.bmc.identity import AnotherMachine, IdentityChanged, IdentityResult, SameMachine, is_another_system
from gitboot.bmc.override_state import (
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
    SetOverride,
    Step,
    Wait,
    WantedOverride,
    assign_slots,
    find_slot,
)
from gitboot.bmc.reboot_detection import NO_MARKS, Marks, Reset, as_utc, parse_time
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

MAX_CORRECTIONS = 3  # within an hour; then someone else wants something else, and a person must decide
_CORRECTION_PERIOD = timedelta(hours=1)

# How long what was just written may take to be shown. Without it, one pass would write again and again.
_SET_DELAY = timedelta(minutes=1)
_CLEAR_DELAY = timedelta(seconds=10)

# No machine is in POST for half an hour. A BMC that goes on saying so has stopped watching: Supermicro's
# AS-1015CS shows SystemHardwareInitializationComplete for ever (bmclib, pull request 459).
_MAX_POST = timedelta(minutes=30)


NO_OVERRIDE = Override(enabled=OverrideEnabled.DISABLED, target=OverrideTarget.NONE)


class UnrecordedClearing(NamedTuple):
    """A record that only ends something, of a machine, which was noted beside the ledger."""

    uuid: SystemUuid
    record: OverrideRecord
    is_from_earlier_process: bool = (
        False  # whether an earlier process has noted it: no result of a job tells of it any more
    )


Change = SetOverride | InsertMedium | EjectMedium | ClearOverride  # what something is sent for


def next_step(
    *,
    wanted: WantedOverride | None,
    observed: BmcObservation,
    records: Iterable[OverrideRecord],
    now: datetime,
    identity_result: IdentityResult,
    keep_media: Collection[str] = (),
) -> Step:
    """Decide what comes next for one BMC.

    ``records`` are all of the server's, one a reason; ``identified`` says whose machine was observed. An override of
    another reason is withdrawn first, and its media are ejected. Media in ``keeps`` belong to a boot that was served,
    and stay until the machine resets. gitboot leaves alone what it has not set itself. It sets nothing on another
    machine, and withdraws an override only on the system on which it was set.
    """
    records = tuple(each for each in records if each.state is not OverrideState.UNSENT)
    is_accepted = isinstance(identity_result, SameMachine) and identity_result.accepted
    for record in records:
        if not is_accepted and record.may_be_left_on_bmc and is_another_system(record.shown, observed.identity):
            message = (
                f"{record.override} for {record.reason} was set where the BMC showed {record.shown}; now it shows"
                f" {observed.identity}, and nothing is withdrawn or set there"
            )
            return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=message)
    moving_marks = frozenset[str]().union(*(observed.marks.find_later_marks(record.marks) for record in records))
    own_record = next((record for record in records if wanted is not None and record.reason == wanted.reason), None)
    wanted_media = wanted.override.media if wanted is not None else ()
    inserted_media = ((record, medium) for record in records for medium in record.media if medium.may_be_inserted)
    to_eject = [(record, medium) for record, medium in inserted_media if medium.url not in wanted_media]
    for record in records:
        # Without a medium that has to go, its override would boot what comes next in the firmware's order, or without
        # the data that it was to find.
        loses_medium = any(record is each for each, _ in to_eject)
        may_stay = record is own_record and not isinstance(identity_result, AnotherMachine) and not loses_medium
        if record.state.is_open and not may_stay:
            return _clear_override(record, observed, now, moving_marks)
    for record, medium in to_eject:
        if (eject_step := _eject_medium(record, medium, keep_media, observed, now)) is not None:
            return eject_step
    if wanted is None:
        return NoChange()
    if isinstance(identity_result, AnotherMachine):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identity_result.message)
    step = _apply_override(
        structs.replace(wanted, is_first_install=wanted.is_first_install and not records),
        own_record,
        observed,
        now,
        moving_marks,
    )
    if isinstance(identity_result, IdentityChanged) and isinstance(step, SetOverride | InsertMedium):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identity_result.message)
    return NoChange() if isinstance(step, SetOverride | InsertMedium) and not wanted.may_set else step


def needs_slots(wanted: WantedOverride | None, records: Iterable[OverrideRecord]) -> bool:
    """Return whether the slots of virtual media have to be read before the next step is decided."""
    return (wanted is not None and wanted.override.medium is not None) or any(each.has_media for each in records)


def needs_firmware_uri(wanted: WantedOverride | None, observed: BmcObservation) -> bool:
    """Return whether firmware's own URI has to be read: ``UefiHttp`` would boot that, where the BMC takes no other."""
    if wanted is None or not observed.has_uri_setting or observed.firmware_uri is not None:
        return False
    adapted = adapt_override(wanted.override, observed)
    return adapted is not None and adapted.target == OverrideTarget.UEFI_HTTP and adapted.gets_loader_from_dhcp


def choose_firmware_uri(wanted: WantedOverride | None, observed: BmcObservation) -> str | None:
    """The URI that firmware is to keep from a reset on; None: nothing is to be changed, or it keeps somebody else's.

    It stays behind when its reason ends, and is booted by whoever chooses HTTP then: so only that of a loader, which
    is told each time what to boot. By https firmware would need the authority's certificate, which is not given here.
    """
    if wanted is None or wanted.loader_url_prefix is None or observed.firmware_uri is None:
        return None
    uri, current = wanted.override.http_boot_uri, observed.firmware_uri
    if uri is None or uri == current or not uri.startswith("http://"):
        return None
    return uri if current == "" or current.startswith(wanted.loader_url_prefix) else None


def needs_clock(records: Iterable[OverrideRecord], observed: BmcObservation, now: datetime) -> bool:
    """Return whether the BMC's clock has to be read, beside its marks, before the next step is decided.

    It tells what has become of an override, and whether a machine is in POST that seems to have been for too long.
    """
    if observed.marks.bmc_time is not None:
        return False
    return (observed.in_post and not _is_in_post(observed, now)) or any(
        record.state.is_open
        and record.override.enabled is OverrideEnabled.ONCE
        and record.marks.bmc_time is not None
        and (not is_shown(record.override, observed) or observed.marks.find_later_marks(record.marks))
        for record in records
    )


def update_refused_record(record: OverrideRecord, observed: BmcObservation) -> OverrideRecord:
    """Return the record of a `Set` that was refused, by a reading made right after it.

    A refusal alone proves nothing: iDRAC 8 answers 400 and sets the override all the same
    (community.general, issue 5091).
    """
    state = OverrideState.CONFIRMED if is_shown(record.override, observed) else OverrideState.CLEARED
    return structs.replace(record, state=state, marks=add_known_clock(observed, record))


def update_overtaken_record(
    record: OverrideRecord,
    observed: BmcObservation,
    wanted: WantedOverride,
    earlier_records: Collection[OverrideRecord],
) -> OverrideRecord:
    """Return the record of a `Set` that was not sent, or refused, because the BMC was not any more as it was read.

    ``before`` are the server's records without that of the `Set`; if none is of its reason, another instance may
    have been faster, which has set the same, or may yet be.
    """
    earlier_records = [each for each in earlier_records if each.state is not OverrideState.UNSENT]
    if any(each.reason == record.reason for each in earlier_records):
        return update_refused_record(record, observed)
    first = structs.replace(wanted, is_first_install=wanted.is_first_install and not earlier_records)
    if _is_set_by_another(first, record.override, observed):
        return structs.replace(record, state=OverrideState.SET_BY_ANOTHER)
    if not is_shown(record.override, observed):
        return structs.replace(record, state=OverrideState.UNSENT)
    return update_refused_record(record, observed)


def has_changed(before: BmcObservation, after: BmcObservation) -> bool:
    """Return whether anything on which a step rests is another in a later reading; the clock always is."""
    return (before.override, before.power, before.in_post, before.marks) != (
        *(after.override, after.power, after.in_post),
        after.marks.with_clock_from(before.marks),
    )


def is_shown(override: Override, observed: BmcObservation) -> bool:
    """Return whether ``override`` is what the BMC shows, as far as it shows it."""
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
    """Translate ``override`` into what this BMC can do, or None if it cannot.

    If the BMC takes no URI, DHCP names a loader, and the loader finds the server's entry.
    """
    target, uri = override.target, override.http_boot_uri
    if target == OverrideTarget.CD:
        target = observed.cd_target
    if target == OverrideTarget.UEFI_HTTP:
        continuous = override.enabled is OverrideEnabled.CONTINUOUS
        if not _allows_target(OverrideTarget.UEFI_HTTP, observed) or (continuous and not observed.continuous_http):
            target, uri = OverrideTarget.PXE, None
        elif not observed.supports_http_boot_uri:
            if observed.firmware_uri not in (None, "", uri):  # somebody else's, which it would boot
                target = OverrideTarget.PXE
            uri = None
    mode = override.mode if observed.override.mode else None
    wrong_mode = observed.mode_is_fixed and mode not in (None, observed.override.mode)
    if wrong_mode or not _allows_target(target, observed) or not allows_enabled(override.enabled, observed):
        return None
    return structs.replace(override, target=target, mode=mode, http_boot_uri=uri)


def explain_dhcp_loader(override: Override, observed: BmcObservation) -> str | None:
    """Return why DHCP names the loader for a boot that is wanted by its URI, as of this BMC: ``has no UefiHttp``."""
    adapted = adapt_override(override, observed) if override.http_boot_uri is not None else None
    if adapted is None or not adapted.gets_loader_from_dhcp:
        return None
    if adapted.target == OverrideTarget.UEFI_HTTP:
        return "takes no HttpBootUri" if observed.firmware_uri != override.http_boot_uri else None
    if observed.firmware_uri not in (None, "", override.http_boot_uri):
        return f"would boot {observed.firmware_uri}, which stands in its firmware's settings"
    lacks = not _allows_target(OverrideTarget.UEFI_HTTP, observed)
    return "has no UefiHttp" if lacks else "would boot by HTTP for good, were it set Continuous"


def _allows_target(target: str, observed: BmcObservation) -> bool:
    return not observed.allowable_targets or target in observed.allowable_targets


def allows_enabled(enabled: OverrideEnabled, observed: BmcObservation) -> bool:
    """Return whether a BMC takes overrides for so long: XCC knows no Continuous, and iRMC no Disabled."""
    return not observed.allowable_enabled or enabled in observed.allowable_enabled


def _clear_override(
    record: OverrideRecord, observed: BmcObservation, now: datetime, moving_marks: frozenset[str]
) -> Step:
    """Withdraw what is no longer wanted, or settle what has become of it."""
    if _was_not_replaced(record, observed):
        record = structs.replace(
            record, override=record.replaces or record.override, replaces=None, state=OverrideState.CONFIRMED
        )
    if _is_foreign_override(record, observed):
        return ConfirmRecord(record=structs.replace(record, state=_infer_consumed_state(record, now)))
    if not is_shown(record.override, observed):
        if record.state is OverrideState.RECORDED and _is_within(_SET_DELAY, record, now):
            return Wait(why=_explain_not_shown(record, observed))
        return ConfirmRecord(
            record=structs.replace(record, state=_infer_final_state(record, observed, now, moving_marks))
        )
    if record.state is OverrideState.CLEARING and _is_within(_CLEAR_DELAY, record, now):
        return Wait(why="it was cleared a moment ago, and is still shown")
    return ClearOverride(
        record=structs.replace(record, state=OverrideState.CLEARING, marks=add_known_clock(observed, record), at=now)
    )


def _eject_medium(
    record: OverrideRecord, medium: Medium, keep_media: Collection[str], observed: BmcObservation, now: datetime
) -> Step | None:
    """Eject a medium that was inserted for a record, or settle what has become of it; None: it stays."""
    # Left there after the system that was booted from it ran no more, it might boot once more.
    booted = medium.booted
    is_over = booted is not None and (observed.power == "Off" or observed.marks.reset_since(booted) is Reset.SEEN)
    if medium.url in keep_media and not is_over:
        if booted is not None:
            return None
        # Without the clock, which later readings may lack: beside them these instants would mean nothing.
        return ConfirmRecord(
            record=record.with_medium(structs.replace(medium, booted=observed.marks.with_clock_from(NO_MARKS)))
        )
    slot, since = find_slot(medium.url, observed.slots), now - medium.at
    if slot is None:
        if medium.state is MediumState.INSERTED and timedelta() <= since < _SET_DELAY:
            return Wait(why="its medium was inserted a moment ago, and is not shown yet")
        return ConfirmRecord(record=record.with_medium(structs.replace(medium, state=MediumState.EJECTED)))
    if medium.state is MediumState.EJECTING and timedelta() <= since < _CLEAR_DELAY:
        return Wait(why="its medium was ejected a moment ago, and is still shown")
    return EjectMedium(
        record=record.with_medium(structs.replace(medium, state=MediumState.EJECTING, at=now)), slot=slot
    )


def _was_not_replaced(record: OverrideRecord, observed: BmcObservation) -> bool:
    """Return whether the override that stands is the one that the record was to replace: it is gitboot's own, too."""
    if record.state is not OverrideState.RECORDED or record.replaces is None or is_shown(record.override, observed):
        return False
    return is_shown(record.replaces, observed)


def _is_foreign_override(record: OverrideRecord, observed: BmcObservation) -> bool:
    """Return whether a one-time override stands that cannot be the recorded one: a reset since has consumed that.

    A machine that is still in POST has not consumed it yet. What was only about to be set may have been set after
    the reset.
    """
    return (
        record.override.enabled is OverrideEnabled.ONCE
        and record.state in (OverrideState.CONFIRMED, OverrideState.CLEARING)
        and observed.marks.settled
        and not observed.in_post
        and is_shown(record.override, observed)
        and observed.marks.reset_since(record.marks) is Reset.SEEN
    )


def _infer_consumed_state(record: OverrideRecord, now: datetime) -> OverrideState:
    is_proven = record.state is OverrideState.CONFIRMED and not record.may_be_cleared_unrecorded(now)
    return OverrideState.CONSUMED if is_proven else OverrideState.LOST


def _infer_final_state(
    record: OverrideRecord, observed: BmcObservation, now: datetime, moving_marks: frozenset[str]
) -> OverrideState:
    """Return the state of an override that no longer stands.

    Marks that stand still prove for a boot that writes a disk only what they are known to do: to move. But no
    machine shuts down and boots within the moment that a withdrawal takes. From `OverrideRecord.clears_from` on, this
    or another instance may have cleared a one-time override without a record of that: then nothing proves a boot.
    """
    if record.override.enabled is OverrideEnabled.CONTINUOUS:
        return OverrideState.CLEARED
    if record.may_be_cleared_unrecorded(now):
        return OverrideState.LOST
    is_clearing = record.state is OverrideState.CLEARING and _is_within(_CLEAR_DELAY, record, now)
    trusted_marks = moving_marks if record.writes_disk and not is_clearing else None
    match observed.marks.reset_since(record.marks, moving_marks=trusted_marks):
        case Reset.RULED_OUT:
            return OverrideState.CLEARED
        case Reset.SEEN if record.state is OverrideState.CONFIRMED:
            return OverrideState.CONSUMED
    return OverrideState.LOST


def add_known_clock(observed: BmcObservation, record: OverrideRecord) -> Marks:
    """Return the marks that were seen, by the clock as it was read last."""
    return observed.marks if observed.marks.bmc_time is not None else observed.marks.with_clock_from(record.marks)


def _apply_override(
    wanted: WantedOverride,
    record: OverrideRecord | None,
    observed: BmcObservation,
    now: datetime,
    moving_marks: frozenset[str],
) -> Step:
    """Decide what comes next for the wanted override, of which ``record`` is the ledger's."""
    override, current = adapt_override(wanted.override, observed), observed.override
    if override is None:
        return AskOperator(
            condition=OperatorCondition.UNSUPPORTED, message=_explain_unsupported(wanted.override, observed)
        )
    if wanted.needs_http_uri and override.gets_loader_from_dhcp:
        message = "an ISO is wanted by its URI, and the BMC takes no HttpBootUri; no loader can start one"
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    if record is not None and record.state is OverrideState.OPENED:
        return _set_override(wanted, record, override, observed, now)
    if record is not None and record.state is OverrideState.SET_BY_ANOTHER:
        uri = f" {record.override.http_boot_uri}" if record.override.http_boot_uri else ""
        return request_operator(
            f"the BMC has shown {record.override}{uri} for {record.reason} before this ledger has set it: another"
            " instance may have installed the machine; nothing is set"
        )
    if record is None and _is_set_by_another(wanted, override, observed):
        return ConfirmRecord(
            record=_build_record(wanted, None, override, observed, now, state=OverrideState.SET_BY_ANOTHER)
        )
    if record is None or wanted.should_set(record):
        # What somebody else has set does not have to give way.
        step = _set_override(wanted, record, override, observed, now)
        is_free = current.enabled is OverrideEnabled.DISABLED or current.target == OverrideTarget.NONE
        if is_free or is_shown(override, observed) or not isinstance(step, SetOverride | InsertMedium):
            return step
        uri = (
            f" {current.http_boot_uri}" if current.http_boot_uri and current.target == OverrideTarget.UEFI_HTTP else ""
        )
        message = f"the BMC shows {current}{uri}, which gitboot has not set; {override} is set when it is gone"
        return AskOperator(condition=OperatorCondition.FOREIGN_OVERRIDE, message=message)
    if not record.state.is_open:
        if not (wanted.set_again and record.state is OverrideState.LOST):
            return NoChange()
        return request_operator(
            f"{record.override} for {record.reason} is gone, and nothing proves that a reset consumed it: it is not set"
            " anew"
        )
    if not is_shown(record.override, observed):
        return _restore_override(wanted, record, override, observed, now, moving_marks)
    if _is_foreign_override(record, observed):
        return ConfirmRecord(record=structs.replace(record, state=_infer_consumed_state(record, now)))
    if (insert_step := _insert_media(wanted, record, override, observed, now)) is not None:
        return insert_step
    if record.override != override:
        return _set_override(
            wanted,
            record,
            override,
            observed,
            now,
            corrections=_recent_corrections(record, now),
            replaces=record.override,
        )
    may_mark = observed.marks.settled and observed.marks.may_follow(record.marks)
    if record.state is OverrideState.CONFIRMED and not may_mark:
        moved = structs.replace(record, clears_from=wanted.planned_end)
        return NoChange() if moved == record else ConfirmRecord(record=moved)
    marks = add_known_clock(observed, record)  # also where the machine has come up since: it has not consumed it
    confirmed = structs.replace(
        record, state=OverrideState.CONFIRMED, marks=marks, replaces=None, clears_from=wanted.planned_end
    )
    return ConfirmRecord(record=confirmed)


def _restore_override(
    wanted: WantedOverride,
    record: OverrideRecord,
    override: Override,
    observed: BmcObservation,
    now: datetime,
    moving_marks: frozenset[str],
) -> Step:
    """Set a wanted override that does not stand once more, if it cannot have been consumed."""
    final_state, current = _infer_final_state(record, observed, now, moving_marks), observed.override
    if record.state is OverrideState.CLEARING:
        return ConfirmRecord(record=structs.replace(record, state=final_state))
    if record.state is OverrideState.RECORDED and _is_within(_SET_DELAY, record, now):
        return Wait(why=_explain_not_shown(record, observed))
    corrections = _recent_corrections(record, now)
    if _was_not_replaced(record, observed):
        return _set_override(wanted, record, override, observed, now, corrections=corrections, replaces=record.replaces)
    if final_state is OverrideState.CLEARED and len(corrections) >= MAX_CORRECTIONS:
        times = f"{MAX_CORRECTIONS + 1} times within an hour"
        message = f"{record.override} was set {times}, and the BMC shows {current}"
        return AskOperator(condition=OperatorCondition.CONTENDED, message=message)
    if final_state is OverrideState.CLEARED:
        return _set_override(wanted, record, override, observed, now, corrections=(*corrections, now))
    if record.state is OverrideState.CONFIRMED:
        return ConfirmRecord(record=structs.replace(record, state=final_state))
    if _is_in_post(observed, now):
        return Wait(why="the machine is in POST, and its override is not known to be set")
    shown = f"; the BMC shows {current}" if current.enabled is not OverrideEnabled.DISABLED else ""
    return request_operator(
        f"{record.override} was to be set for {record.reason} and does not stand: it was never set, or it was set and"
        f" consumed{shown}"
    )


def _set_override(
    wanted: WantedOverride,
    record: OverrideRecord | None,
    override: Override,
    observed: BmcObservation,
    now: datetime,
    corrections: tuple[datetime, ...] = (),
    replaces: Override | None = None,
) -> Step:
    if wanted.valid_until is not None and now >= wanted.valid_until:
        return Wait(why="what is wanted from now on is still to be planned")
    if _is_in_post(observed, now):
        return Wait(why="the machine is in POST")
    if wanted.only_while_off and observed.power != "Off":
        return Wait(why="the machine runs, and its boot is set while it is off")
    if (step := _insert_media(wanted, record, override, observed, now)) is not None:
        return step
    recorded = _build_record(wanted, record, override, observed, now, state=OverrideState.RECORDED)
    return SetOverride(record=structs.replace(recorded, corrections=corrections, replaces=replaces))


def _build_record(
    wanted: WantedOverride,
    before: OverrideRecord | None,
    override: Override,
    observed: BmcObservation,
    now: datetime,
    *,
    state: OverrideState,
) -> OverrideRecord:
    return OverrideRecord(
        reason=wanted.reason,
        plan_digest=wanted.plan_digest,
        override=override,
        marks=observed.marks,
        state=state,
        at=now,
        shown=observed.identity,
        writes_disk=wanted.writes_disk,
        medium=before.medium if before is not None else None,
        data_medium=before.data_medium if before is not None else None,
        clears_from=wanted.planned_end,
    )


def _is_set_by_another(wanted: WantedOverride, override: Override, observed: BmcObservation) -> bool:
    """Whether another instance is at work: what this one is about to set for the first time stands, or has stood.

    Two that nobody named, each told that nothing is installed, see nothing of each other but the BMC. It shows the
    override until a boot has consumed it, and many go on showing its URI after that.
    """
    if not wanted.writes_disk or override.enabled is not OverrideEnabled.ONCE:
        return False
    uri = override.http_boot_uri
    has_stood = wanted.is_first_install and uri is not None and observed.override.http_boot_uri == uri
    return is_shown(override, observed) or has_stood


def _insert_media(
    wanted: WantedOverride, record: OverrideRecord | None, override: Override, observed: BmcObservation, now: datetime
) -> Step | None:
    """Insert the media of an override, one after the other; None: they are shown, or there is none to boot.

    They are inserted before the override is set: one without a medium would boot what comes next in the firmware's
    order. Nothing is inserted where there is no place for both, and what boots comes last: whatever happens between,
    no installer starts without its data.
    """
    url = next((each for each in override.media if find_slot(each, observed.slots) is None), None)
    if url is None or override.medium is None:
        return None
    before = next((each for each in record.media if each.url == url), None) if record is not None else None
    if before is not None and timedelta() <= now - before.at < _SET_DELAY:
        return Wait(why="its medium was inserted a moment ago, and is not shown yet")
    if (slots := assign_slots(observed.slots, override.medium, override.data_medium)) is None:
        return _report_missing_slot(override, override.medium, observed)
    if record is not None and (record.state.is_open or record.state is OverrideState.OPENED):
        found = record
    else:
        found = _build_record(wanted, record, override, observed, now, state=OverrideState.INSERTED)
    inserted = Medium(url=url, state=MediumState.INSERTED, at=now)
    is_data = url == override.data_medium
    found = structs.replace(found, data_medium=inserted) if is_data else structs.replace(found, medium=inserted)
    return InsertMedium(record=found, slot=slots[url], url=url)


def _report_missing_slot(override: Override, medium: str, observed: BmcObservation) -> AskOperator:
    needs_data = override.data_medium is not None
    if assign_slots([slot.without_medium for slot in observed.slots], medium, override.data_medium) is None:
        disc = next((slot for slot in observed.slots if slot.accepts_discs), None)
        message = "a medium is wanted, and the BMC has no slot for a CD"
        if disc is not None and needs_data:
            message = (
                f"a second medium is wanted, with the user data, and the BMC has one slot alone, {disc.path};"
                " nothing is inserted. An image that says configFrom: SystemUUID needs one"
            )
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    taken = ", ".join(
        f"{slot.path} has {slot.image or 'a medium'}"
        for slot in observed.slots
        if not slot.is_free and slot.image not in override.media and (slot.accepts_discs or needs_data)
    )
    what = "two media are" if needs_data else "a medium is"
    message = f"{what} wanted, and {taken}, which gitboot has not inserted; it is left alone"
    return AskOperator(condition=OperatorCondition.FOREIGN_MEDIUM, message=message)


def _is_in_post(observed: BmcObservation, at: datetime) -> bool:
    marks = observed.marks
    if not observed.in_post or marks.boot_progress_time is None:
        return observed.in_post
    since, now = parse_time(marks.boot_progress_time), parse_time(marks.bmc_time)
    if now is None:  # by our clock, if the BMC says which time it means
        now = at if since is not None and since.tzinfo is not None else None
    return since is None or now is None or abs(as_utc(now) - as_utc(since)) < _MAX_POST


def _is_within(period: timedelta, record: OverrideRecord, now: datetime) -> bool:
    return timedelta() <= now - record.at < period  # a clock that went back holds nothing up


def _recent_corrections(record: OverrideRecord, now: datetime) -> tuple[datetime, ...]:
    return tuple(instant for instant in record.corrections if now - instant < _CORRECTION_PERIOD)


def request_operator(message: str) -> AskOperator:
    return AskOperator(condition=OperatorCondition.NEEDS_OPERATOR, message=message)


def _explain_unsupported(override: Override, observed: BmcObservation) -> str:
    if not _allows_target(override.target, observed):
        allowable = ", ".join(sorted(observed.allowable_targets))
        return f"{override.target} is wanted, and the BMC boots only {allowable}"
    if not allows_enabled(override.enabled, observed):
        allowable = ", ".join(sorted(observed.allowable_enabled))
        return (
            f"{override.enabled} is wanted, and the BMC knows only {allowable}: override: Once in the policy, or None"
        )
    return f"mode {override.mode} is wanted, and the BMC has {observed.override.mode}, which it cannot change"


def _explain_not_shown(record: OverrideRecord, observed: BmcObservation) -> str:
    if observed.override.enabled is OverrideEnabled.DISABLED:
        return "it was set a moment ago, and is not shown yet"
    return f"{record.override} was set a moment ago, and the BMC shows {observed.override}"
