"""Override steps: the pure table from wanted, observed and recorded state to the next step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from gitboot.bmc.identity import Another, Identified, IdentityChanged, Same, is_another_system
from gitboot.bmc.override_state import (
    AskOperator,
    Confirm,
    Eject,
    Insert,
    Leave,
    Medium,
    MediumState,
    Observed,
    OperatorCondition,
    Override,
    OverrideRecord,
    Set,
    State,
    Step,
    Wait,
    Wanted,
    Withdraw,
    places,
    slot_with,
)
from gitboot.bmc.reboot_detection import NO_MARKS, Marks, Reset, in_utc, parse
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

MAX_CORRECTIONS = 3  # within an hour; then someone else wants something else, and a person must decide
_CORRECTION_PERIOD = timedelta(hours=1)

# How long what was just written may take to be shown. Without it, one pass would write again and again.
_TO_BE_SET = timedelta(minutes=1)
_TO_BE_CLEARED = timedelta(seconds=10)

# No machine is in POST for half an hour. A BMC that goes on saying so has stopped watching: Supermicro's
# AS-1015CS shows SystemHardwareInitializationComplete for ever (bmclib, pull request 459).
_LONGEST_POST = timedelta(minutes=30)


OFF = Override(enabled=OverrideEnabled.DISABLED, target=OverrideTarget.NONE)


class Withdrawal(NamedTuple):
    """A record that only ends something, of a machine, which was noted beside the ledger."""

    uuid: SystemUuid
    record: OverrideRecord
    is_left: bool = False  # whether an earlier process has noted it: no result of a job tells of it any more


Change = Set | Insert | Eject | Withdraw  # what something is sent for


def next_step(
    *,
    wanted: Wanted | None,
    observed: Observed,
    records: Iterable[OverrideRecord],
    at: datetime,
    identified: Identified,
    keeps: Collection[str] = (),
) -> Step:
    """Decide what comes next for one BMC.

    ``records`` are all of the server's, one a reason; ``identified`` says whose machine was observed. An override of
    another reason is withdrawn first, and its media are ejected. Media in ``keeps`` belong to a boot that was served,
    and stay until the machine resets. gitboot leaves alone what it has not set itself. It sets nothing on another
    machine, and withdraws an override only on the system on which it was set.
    """
    records = tuple(each for each in records if each.state is not State.UNSENT)
    accepted = isinstance(identified, Same) and identified.accepted
    for record in records:
        if not accepted and record.stays_behind and is_another_system(record.shown, observed.shown):
            message = (
                f"{record.override} for {record.reason} was set where the BMC showed {record.shown}; now it shows"
                f" {observed.shown}, and nothing is withdrawn or set there"
            )
            return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=message)
    moving = frozenset[str]().union(*(observed.marks.moved_since(record.marks) for record in records))
    own = next((record for record in records if wanted is not None and record.reason == wanted.reason), None)
    stay = wanted.override.media if wanted is not None else ()
    lying = ((record, medium) for record in records for medium in record.media if medium.may_lie_in)
    to_eject = [(record, medium) for record, medium in lying if medium.url not in stay]
    for record in records:
        # Without a medium that has to go, its override would boot what comes next in the firmware's order, or without
        # the data that it was to find.
        loses_medium = any(record is each for each, _ in to_eject)
        may_stay = record is own and not isinstance(identified, Another) and not loses_medium
        if record.state.is_open and not may_stay:
            return _let_go(record, observed, at, moving)
    for record, medium in to_eject:
        if (put_away := _put_away(record, medium, keeps, observed, at)) is not None:
            return put_away
    if wanted is None:
        return Leave()
    if isinstance(identified, Another):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identified.message)
    step = _bring_about(structs.replace(wanted, is_first=wanted.is_first and not records), own, observed, at, moving)
    if isinstance(identified, IdentityChanged) and isinstance(step, Set | Insert):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identified.message)
    return Leave() if isinstance(step, Set | Insert) and not wanted.may_set else step


def needs_slots(wanted: Wanted | None, records: Iterable[OverrideRecord]) -> bool:
    """Return whether the slots of virtual media have to be read before the next step is decided."""
    return (wanted is not None and wanted.override.medium is not None) or any(each.has_media for each in records)


def needs_firmware_uri(wanted: Wanted | None, observed: Observed) -> bool:
    """Return whether firmware's own URI has to be read: ``UefiHttp`` would boot that, where the BMC takes no other."""
    if wanted is None or not observed.keeps_uri or observed.firmware_uri is not None:
        return False
    fitted = fit(wanted.override, observed)
    return fitted is not None and fitted.target == OverrideTarget.UEFI_HTTP and fitted.leaves_it_to_dhcp


def uri_to_keep(wanted: Wanted | None, observed: Observed) -> str | None:
    """The URI that firmware is to keep from a reset on; None: nothing is to be changed, or it keeps somebody else's.

    It stays behind when its reason ends, and is booted by whoever chooses HTTP then: so only that of a loader, which
    is told each time what to boot. By https firmware would need the authority's certificate, which is not given here.
    """
    if wanted is None or wanted.own_loaders is None or observed.firmware_uri is None:
        return None
    uri, kept = wanted.override.http_boot_uri, observed.firmware_uri
    if uri is None or uri == kept or not uri.startswith("http://"):
        return None
    return uri if kept == "" or kept.startswith(wanted.own_loaders) else None


def needs_clock(records: Iterable[OverrideRecord], observed: Observed, at: datetime) -> bool:
    """Return whether the BMC's clock has to be read, beside its marks, before the next step is decided.

    It tells what has become of an override, and whether a machine is in POST that seems to have been for too long.
    """
    if observed.marks.bmc_time is not None:
        return False
    return (observed.in_post and not _in_post(observed, at)) or any(
        record.state.is_open
        and record.override.enabled is OverrideEnabled.ONCE
        and record.marks.bmc_time is not None
        and (not stands(record.override, observed) or observed.marks.moved_since(record.marks))
        for record in records
    )


def settle_refused(record: OverrideRecord, observed: Observed) -> OverrideRecord:
    """Return the record of a `Set` that was refused, by a reading made right after it.

    A refusal alone proves nothing: iDRAC 8 answers 400 and sets the override all the same
    (community.general, issue 5091).
    """
    state = State.CONFIRMED if stands(record.override, observed) else State.WITHDRAWN
    return structs.replace(record, state=state, marks=marks_beside(observed, record))


def settle_overtaken(
    record: OverrideRecord, observed: Observed, wanted: Wanted, before: Collection[OverrideRecord]
) -> OverrideRecord:
    """Return the record of a `Set` that was not sent, or refused, because the BMC was not any more as it was read.

    ``before`` are the server's records without that of the `Set`; if none is of its reason, another instance may
    have been faster, which has set the same, or may yet be.
    """
    before = [each for each in before if each.state is not State.UNSENT]
    if any(each.reason == record.reason for each in before):
        return settle_refused(record, observed)
    first = structs.replace(wanted, is_first=wanted.is_first and not before)
    if _is_set_by_another(first, record.override, observed):
        return structs.replace(record, state=State.SET_BY_ANOTHER)
    if not stands(record.override, observed):
        return structs.replace(record, state=State.UNSENT)
    return settle_refused(record, observed)


def has_changed(seen: Observed, now: Observed) -> bool:
    """Return whether anything on which a step rests is another in a later reading; the clock always is."""
    return (seen.override, seen.power, seen.in_post, seen.marks) != (
        *(now.override, now.power, now.in_post),
        now.marks.with_clock_of(seen.marks),
    )


def stands(override: Override, observed: Observed) -> bool:
    """Return whether ``override`` is what the BMC shows, as far as it shows it."""
    seen = observed.override
    if override.enabled is OverrideEnabled.DISABLED:
        return seen.enabled is OverrideEnabled.DISABLED
    uri_matters = override.target == OverrideTarget.UEFI_HTTP and observed.supports_http_boot_uri
    return (
        (seen.enabled, seen.target) == (override.enabled, override.target)
        and (override.mode is None or seen.mode in (None, override.mode))
        and (not uri_matters or seen.http_boot_uri == override.http_boot_uri)
    )


def fit(override: Override, observed: Observed) -> Override | None:
    """Translate ``override`` into what this BMC can do, or None if it cannot.

    If the BMC takes no URI, DHCP names a loader, and the loader finds the server's entry.
    """
    target, uri = override.target, override.http_boot_uri
    if target == OverrideTarget.CD:
        target = observed.boots_cd_as
    if target == OverrideTarget.UEFI_HTTP:
        continuous = override.enabled is OverrideEnabled.CONTINUOUS
        if not _allows(OverrideTarget.UEFI_HTTP, observed) or (continuous and not observed.continuous_http):
            target, uri = OverrideTarget.PXE, None
        elif not observed.supports_http_boot_uri:
            if observed.firmware_uri not in (None, "", uri):  # somebody else's, which it would boot
                target = OverrideTarget.PXE
            uri = None
    mode = override.mode if observed.override.mode else None
    wrong_mode = observed.mode_is_fixed and mode not in (None, observed.override.mode)
    if wrong_mode or not _allows(target, observed) or not is_allowed(override.enabled, observed):
        return None
    return structs.replace(override, target=target, mode=mode, http_boot_uri=uri)


def left_to_dhcp(wanted: Override, observed: Observed) -> str | None:
    """Return why DHCP names the loader for a boot that is wanted by its URI, as of this BMC: ``has no UefiHttp``."""
    fitted = fit(wanted, observed) if wanted.http_boot_uri is not None else None
    if fitted is None or not fitted.leaves_it_to_dhcp:
        return None
    if fitted.target == OverrideTarget.UEFI_HTTP:
        return "takes no HttpBootUri" if observed.firmware_uri != wanted.http_boot_uri else None
    if observed.firmware_uri not in (None, "", wanted.http_boot_uri):
        return f"would boot {observed.firmware_uri}, which stands in its firmware's settings"
    lacks = not _allows(OverrideTarget.UEFI_HTTP, observed)
    return "has no UefiHttp" if lacks else "would boot by HTTP for good, were it set Continuous"


def _allows(target: str, observed: Observed) -> bool:
    return not observed.allowable_targets or target in observed.allowable_targets


def is_allowed(enabled: OverrideEnabled, observed: Observed) -> bool:
    """Return whether a BMC takes overrides for so long: XCC knows no Continuous, and iRMC no Disabled."""
    return not observed.allowable_enabled or enabled in observed.allowable_enabled


def _let_go(record: OverrideRecord, observed: Observed, at: datetime, moving: frozenset[str]) -> Step:
    """Withdraw what is no longer wanted, or settle what has become of it."""
    if _was_not_replaced(record, observed):
        record = structs.replace(
            record, override=record.replaces or record.override, replaces=None, state=State.CONFIRMED
        )
    if _is_someone_elses(record, observed):
        return Confirm(record=structs.replace(record, state=_consumed(record, at)))
    if not stands(record.override, observed):
        if record.state is State.RECORDED and _is_within(_TO_BE_SET, record, at):
            return Wait(why=_not_shown(record, observed))
        return Confirm(record=structs.replace(record, state=_what_became_of(record, observed, at, moving)))
    if record.state is State.WITHDRAWING and _is_within(_TO_BE_CLEARED, record, at):
        return Wait(why="it was cleared a moment ago, and is still shown")
    return Withdraw(
        record=structs.replace(record, state=State.WITHDRAWING, marks=marks_beside(observed, record), at=at)
    )


def _put_away(
    record: OverrideRecord, medium: Medium, keeps: Collection[str], observed: Observed, at: datetime
) -> Step | None:
    """Eject a medium that was inserted for a record, or settle what has become of it; None: it stays."""
    # Left there after the system that was booted from it ran no more, it might boot once more.
    booted = medium.booted
    is_over = booted is not None and (observed.power == "Off" or observed.marks.reset_since(booted) is Reset.SEEN)
    if medium.url in keeps and not is_over:
        if booted is not None:
            return None
        # Without the clock, which later readings may lack: beside them these instants would mean nothing.
        return Confirm(record=record.having(structs.replace(medium, booted=observed.marks.with_clock_of(NO_MARKS))))
    slot, since = slot_with(medium.url, observed.slots), at - medium.at
    if slot is None:
        if medium.state is MediumState.INSERTED and timedelta() <= since < _TO_BE_SET:
            return Wait(why="its medium was inserted a moment ago, and is not shown yet")
        return Confirm(record=record.having(structs.replace(medium, state=MediumState.EJECTED)))
    if medium.state is MediumState.EJECTING and timedelta() <= since < _TO_BE_CLEARED:
        return Wait(why="its medium was ejected a moment ago, and is still shown")
    return Eject(record=record.having(structs.replace(medium, state=MediumState.EJECTING, at=at)), slot=slot)


def _was_not_replaced(record: OverrideRecord, observed: Observed) -> bool:
    """Return whether the override that stands is the one that the record was to replace: it is gitboot's own, too."""
    if record.state is not State.RECORDED or record.replaces is None or stands(record.override, observed):
        return False
    return stands(record.replaces, observed)


def _is_someone_elses(record: OverrideRecord, observed: Observed) -> bool:
    """Return whether a one-time override stands that cannot be the recorded one: a reset since has consumed that.

    A machine that is still in POST has not consumed it yet. What was only about to be set may have been set after
    the reset.
    """
    return (
        record.override.enabled is OverrideEnabled.ONCE
        and record.state in (State.CONFIRMED, State.WITHDRAWING)
        and observed.marks.settled
        and not observed.in_post
        and stands(record.override, observed)
        and observed.marks.reset_since(record.marks) is Reset.SEEN
    )


def _consumed(record: OverrideRecord, at: datetime) -> State:
    is_proven = record.state is State.CONFIRMED and not record.may_be_cleared_unrecorded(at)
    return State.CONSUMED if is_proven else State.LOST


def _what_became_of(record: OverrideRecord, observed: Observed, at: datetime, moving: frozenset[str]) -> State:
    """Return the state of an override that no longer stands.

    Marks that stand still prove for a boot that writes a disk only what they are known to do: to move. But no
    machine shuts down and boots within the moment that a withdrawal takes. From `OverrideRecord.clears_from` on, this
    or another instance may have cleared a one-time override without a record of that: then nothing proves a boot.
    """
    if record.override.enabled is OverrideEnabled.CONTINUOUS:
        return State.WITHDRAWN
    if record.may_be_cleared_unrecorded(at):
        return State.LOST
    withdrawn_now = record.state is State.WITHDRAWING and _is_within(_TO_BE_CLEARED, record, at)
    known = moving if record.writes_disk and not withdrawn_now else None
    match observed.marks.reset_since(record.marks, moving=known):
        case Reset.RULED_OUT:
            return State.WITHDRAWN
        case Reset.SEEN if record.state is State.CONFIRMED:
            return State.CONSUMED
    return State.LOST


def marks_beside(observed: Observed, record: OverrideRecord) -> Marks:
    """Return the marks that were seen, by the clock as it was read last."""
    return observed.marks if observed.marks.bmc_time is not None else observed.marks.with_clock_of(record.marks)


def _bring_about(
    wanted: Wanted, record: OverrideRecord | None, observed: Observed, at: datetime, moving: frozenset[str]
) -> Step:
    """Decide what comes next for the wanted override, of which ``record`` is the ledger's."""
    override, seen = fit(wanted.override, observed), observed.override
    if override is None:
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=_unsupported(wanted.override, observed))
    if wanted.by_uri_alone and override.leaves_it_to_dhcp:
        message = "an ISO is wanted by its URI, and the BMC takes no HttpBootUri; no loader can start one"
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    if record is not None and record.state is State.OPENED:
        return _set(wanted, record, override, observed, at)
    if record is not None and record.state is State.SET_BY_ANOTHER:
        uri = f" {record.override.http_boot_uri}" if record.override.http_boot_uri else ""
        return needs_operator(
            f"the BMC has shown {record.override}{uri} for {record.reason} before this ledger has set it: another"
            " instance may have installed the machine; nothing is set"
        )
    if record is None and _is_set_by_another(wanted, override, observed):
        return Confirm(record=_record(wanted, None, override, observed, at, state=State.SET_BY_ANOTHER))
    if record is None or wanted.is_new(record):
        # What somebody else has set does not have to give way.
        step = _set(wanted, record, override, observed, at)
        is_free = seen.enabled is OverrideEnabled.DISABLED or seen.target == OverrideTarget.NONE
        if is_free or stands(override, observed) or not isinstance(step, Set | Insert):
            return step
        uri = f" {seen.http_boot_uri}" if seen.http_boot_uri and seen.target == OverrideTarget.UEFI_HTTP else ""
        message = f"the BMC shows {seen}{uri}, which gitboot has not set; {override} is set when it is gone"
        return AskOperator(condition=OperatorCondition.FOREIGN_OVERRIDE, message=message)
    if not record.state.is_open:
        if not (wanted.set_again and record.state is State.LOST):
            return Leave()
        return needs_operator(
            f"{record.override} for {record.reason} is gone, and nothing proves that a reset consumed it: it is not set"
            " anew"
        )
    if not stands(record.override, observed):
        return _bring_back(wanted, record, override, observed, at, moving)
    if _is_someone_elses(record, observed):
        return Confirm(record=structs.replace(record, state=_consumed(record, at)))
    if (inserting := _with_media(wanted, record, override, observed, at)) is not None:
        return inserting
    if record.override != override:
        return _set(wanted, record, override, observed, at, corrections=_recent(record, at), replaces=record.override)
    may_mark = observed.marks.settled and observed.marks.may_follow(record.marks)
    if record.state is State.CONFIRMED and not may_mark:
        moved = structs.replace(record, clears_from=wanted.ends)
        return Leave() if moved == record else Confirm(record=moved)
    marks = marks_beside(observed, record)  # also where the machine has come up since: it has not consumed it
    confirmed = structs.replace(record, state=State.CONFIRMED, marks=marks, replaces=None, clears_from=wanted.ends)
    return Confirm(record=confirmed)


def _bring_back(
    wanted: Wanted,
    record: OverrideRecord,
    override: Override,
    observed: Observed,
    at: datetime,
    moving: frozenset[str],
) -> Step:
    """Set a wanted override that does not stand once more, if it cannot have been consumed."""
    became, seen = _what_became_of(record, observed, at, moving), observed.override
    if record.state is State.WITHDRAWING:
        return Confirm(record=structs.replace(record, state=became))
    if record.state is State.RECORDED and _is_within(_TO_BE_SET, record, at):
        return Wait(why=_not_shown(record, observed))
    corrections = _recent(record, at)
    if _was_not_replaced(record, observed):
        return _set(wanted, record, override, observed, at, corrections=corrections, replaces=record.replaces)
    if became is State.WITHDRAWN and len(corrections) >= MAX_CORRECTIONS:
        times = f"{MAX_CORRECTIONS + 1} times within an hour"
        message = f"{record.override} was set {times}, and the BMC shows {seen}"
        return AskOperator(condition=OperatorCondition.CONTENDED, message=message)
    if became is State.WITHDRAWN:
        return _set(wanted, record, override, observed, at, corrections=(*corrections, at))
    if record.state is State.CONFIRMED:
        return Confirm(record=structs.replace(record, state=became))
    if _in_post(observed, at):
        return Wait(why="the machine is in POST, and its override is not known to be set")
    shown = f"; the BMC shows {seen}" if seen.enabled is not OverrideEnabled.DISABLED else ""
    return needs_operator(
        f"{record.override} was to be set for {record.reason} and does not stand: it was never set, or it was set and"
        f" consumed{shown}"
    )


def _set(
    wanted: Wanted,
    record: OverrideRecord | None,
    override: Override,
    observed: Observed,
    at: datetime,
    corrections: tuple[datetime, ...] = (),
    replaces: Override | None = None,
) -> Step:
    if wanted.until is not None and at >= wanted.until:
        return Wait(why="what is wanted from now on is still to be planned")
    if _in_post(observed, at):
        return Wait(why="the machine is in POST")
    if wanted.only_off and observed.power != "Off":
        return Wait(why="the machine runs, and its boot is set while it is off")
    if (step := _with_media(wanted, record, override, observed, at)) is not None:
        return step
    recorded = _record(wanted, record, override, observed, at, state=State.RECORDED)
    return Set(record=structs.replace(recorded, corrections=corrections, replaces=replaces))


def _record(
    wanted: Wanted, before: OverrideRecord | None, override: Override, observed: Observed, at: datetime, *, state: State
) -> OverrideRecord:
    return OverrideRecord(
        reason=wanted.reason,
        plan_digest=wanted.plan_digest,
        override=override,
        marks=observed.marks,
        state=state,
        at=at,
        shown=observed.shown,
        writes_disk=wanted.writes_disk,
        medium=before.medium if before is not None else None,
        data_medium=before.data_medium if before is not None else None,
        clears_from=wanted.ends,
    )


def _is_set_by_another(wanted: Wanted, override: Override, observed: Observed) -> bool:
    """Whether another instance is at work: what this one is about to set for the first time stands, or has stood.

    Two that nobody named, each told that nothing is installed, see nothing of each other but the BMC. It shows the
    override until a boot has consumed it, and many go on showing its URI after that.
    """
    if not wanted.writes_disk or override.enabled is not OverrideEnabled.ONCE:
        return False
    uri = override.http_boot_uri
    has_stood = wanted.is_first and uri is not None and observed.override.http_boot_uri == uri
    return stands(override, observed) or has_stood


def _with_media(
    wanted: Wanted, record: OverrideRecord | None, override: Override, observed: Observed, at: datetime
) -> Step | None:
    """Insert the media of an override, one after the other; None: they are shown, or there is none to boot.

    They are inserted before the override is set: one without a medium would boot what comes next in the firmware's
    order. Nothing is inserted where there is no place for both, and what boots comes last: whatever happens between,
    no installer starts without its data.
    """
    url = next((each for each in override.media if slot_with(each, observed.slots) is None), None)
    if url is None or override.medium is None:
        return None
    before = next((each for each in record.media if each.url == url), None) if record is not None else None
    if before is not None and timedelta() <= at - before.at < _TO_BE_SET:
        return Wait(why="its medium was inserted a moment ago, and is not shown yet")
    if (slots := places(observed.slots, override.medium, override.data_medium)) is None:
        return _no_slot(override, override.medium, observed)
    if record is not None and (record.state.is_open or record.state is State.OPENED):
        found = record
    else:
        found = _record(wanted, record, override, observed, at, state=State.INSERTED)
    inserted = Medium(url=url, state=MediumState.INSERTED, at=at)
    is_data = url == override.data_medium
    found = structs.replace(found, data_medium=inserted) if is_data else structs.replace(found, medium=inserted)
    return Insert(record=found, slot=slots[url], url=url)


def _no_slot(override: Override, medium: str, observed: Observed) -> AskOperator:
    needs_data = override.data_medium is not None
    if places([slot.emptied for slot in observed.slots], medium, override.data_medium) is None:
        disc = next((slot for slot in observed.slots if slot.takes_discs), None)
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
        if not slot.is_free and slot.image not in override.media and (slot.takes_discs or needs_data)
    )
    what = "two media are" if needs_data else "a medium is"
    message = f"{what} wanted, and {taken}, which gitboot has not inserted; it is left alone"
    return AskOperator(condition=OperatorCondition.FOREIGN_MEDIUM, message=message)


def _in_post(observed: Observed, at: datetime) -> bool:
    marks = observed.marks
    if not observed.in_post or marks.boot_progress_time is None:
        return observed.in_post
    since, now = parse(marks.boot_progress_time), parse(marks.bmc_time)
    if now is None:  # by our clock, if the BMC says which time it means
        now = at if since is not None and since.tzinfo is not None else None
    return since is None or now is None or abs(in_utc(now) - in_utc(since)) < _LONGEST_POST


def _is_within(period: timedelta, record: OverrideRecord, at: datetime) -> bool:
    return timedelta() <= at - record.at < period  # a clock that went back holds nothing up


def _recent(record: OverrideRecord, at: datetime) -> tuple[datetime, ...]:
    return tuple(instant for instant in record.corrections if at - instant < _CORRECTION_PERIOD)


def needs_operator(message: str) -> AskOperator:
    return AskOperator(condition=OperatorCondition.NEEDS_OPERATOR, message=message)


def _unsupported(override: Override, observed: Observed) -> str:
    if not _allows(override.target, observed):
        allowable = ", ".join(sorted(observed.allowable_targets))
        return f"{override.target} is wanted, and the BMC boots only {allowable}"
    if not is_allowed(override.enabled, observed):
        allowable = ", ".join(sorted(observed.allowable_enabled))
        return (
            f"{override.enabled} is wanted, and the BMC knows only {allowable}: override: Once in the policy, or None"
        )
    return f"mode {override.mode} is wanted, and the BMC has {observed.override.mode}, which it cannot change"


def _not_shown(record: OverrideRecord, observed: Observed) -> str:
    if observed.override.enabled is OverrideEnabled.DISABLED:
        return "it was set a moment ago, and is not shown yet"
    return f"{record.override} was set a moment ago, and the BMC shows {observed.override}"
