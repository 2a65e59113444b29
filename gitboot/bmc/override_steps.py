"""Override steps: the pure table from wanted, observed and recorded state to the next step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

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

    ``records`` are all of the server's, one a reason; ``identified`` says whose machine was observed. What stands for
    another reason than the wanted one is withdrawn first, and its media ejected, but for ``keeps``, the media of a
    boot that was given: those stay until the machine resets. What gitboot has not set itself is left alone. Nothing
    is set on another machine, and nothing withdrawn but on the system on which it was set.
    """
    records = tuple(each for each in records if each.state is not State.UNSENT)
    accepted = isinstance(identified, Same) and identified.accepted
    if not accepted and (elsewhere := _set_elsewhere(records, observed)) is not None:
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=_was_set_elsewhere(elsewhere, observed))
    moving = frozenset[str]().union(*(observed.marks.moved_since(record.marks) for record in records))
    own = next((record for record in records if wanted is not None and record.reason == wanted.reason), None)
    for record in records:
        may_stay = record is own and not isinstance(identified, Another) and not _boots_another_medium(record, wanted)
        if record.state.is_open and not may_stay:
            return _let_go(record, observed, at, moving)
    for record in records:
        if (step := _put_away(record, wanted, keeps, observed, at)) is not None:
            return step
    if wanted is None:
        return Leave()
    if isinstance(identified, Another):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identified.message)
    step = _bring_about(replace(wanted, is_first=wanted.is_first and not records), own, observed, at, moving)
    if isinstance(identified, IdentityChanged) and isinstance(step, Set | Insert):
        return AskOperator(condition=OperatorCondition.ANOTHER_MACHINE, message=identified.message)
    return Leave() if isinstance(step, Set | Insert) and not wanted.may_set else step


def needs_slots(wanted: Wanted | None, records: Iterable[OverrideRecord]) -> bool:
    """Whether the slots of virtual media have to be read before the next step is decided."""
    if wanted is not None and wanted.override.medium is not None:
        return True
    return any(each.has_media for each in records)


def needs_firmware_uri(wanted: Wanted | None, observed: Observed) -> bool:
    """Whether firmware's own URI has to be read: ``UefiHttp`` would boot that, where the BMC takes no other."""
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
    """Whether the BMC's clock has to be read, beside its marks, before the next step is decided.

    It tells what has become of an override, and whether a machine is in POST that seems to have been for too long.
    """
    if observed.marks.bmc_time is not None:
        return False
    return (observed.in_post and not _in_post(observed, at)) or any(_is_in_question(each, observed) for each in records)


def _is_in_question(record: OverrideRecord, observed: Observed) -> bool:
    once = record.state.is_open and record.override.enabled is OverrideEnabled.ONCE
    if not once or record.marks.bmc_time is None:
        return False
    return not stands(record.override, observed) or bool(observed.marks.moved_since(record.marks))


def refused(record: OverrideRecord, observed: Observed) -> Confirm:
    """Tell what a refused `Set` left behind, by a reading made right after it.

    A refusal alone proves nothing: iDRAC 8 answers 400 and sets the override all the same
    (community.general, issue 5091).
    """
    state = State.CONFIRMED if stands(record.override, observed) else State.WITHDRAWN
    return Confirm(record=replace(record, state=state, marks=marks_beside(observed, record)))


def overtaken(
    record: OverrideRecord, observed: Observed, wanted: Wanted, before: Collection[OverrideRecord]
) -> Confirm:
    """Tell what a `Set` came to that was not sent, or refused, because the BMC was not any more as it was read.

    ``before`` are the server's records without that of the `Set`; if none is of its reason, another instance may
    have been faster, which has set the same, or may yet be.
    """
    before = [each for each in before if each.state is not State.UNSENT]
    if any(each.reason == record.reason for each in before):
        return refused(record, observed)
    first = replace(wanted, is_first=wanted.is_first and not before)
    if _is_set_by_another(first, record.override, observed):
        return Confirm(record=replace(record, state=State.SET_BY_ANOTHER))
    if not stands(record.override, observed):
        return Confirm(record=replace(record, state=State.UNSENT))
    return refused(record, observed)


def has_changed(seen: Observed, now: Observed) -> bool:
    """Whether anything on which a step rests is another in a later reading; the clock always is."""
    return (seen.override, seen.power, seen.in_post, seen.marks) != (
        *(now.override, now.power, now.in_post),
        now.marks.with_clock_of(seen.marks),
    )


def stands(override: Override, observed: Observed) -> bool:
    """Tell whether ``override`` is what the BMC shows, as far as it shows it."""
    seen = observed.override
    if override.enabled is OverrideEnabled.DISABLED:
        return seen.enabled is OverrideEnabled.DISABLED
    return (
        (seen.enabled, seen.target) == (override.enabled, override.target)
        and (override.mode is None or seen.mode in (None, override.mode))
        and (not _uri_matters(override, observed) or seen.http_boot_uri == override.http_boot_uri)
    )


def fit(override: Override, observed: Observed) -> Override | None:
    """Translate ``override`` into what this BMC can do, or None if it cannot.

    Where the URI cannot be set, DHCP names a loader and the loader finds the server's entry.
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
    return replace(override, target=target, mode=mode, http_boot_uri=uri)


def left_to_dhcp(wanted: Override, observed: Observed) -> str | None:
    """Why DHCP names the loader for a boot that is wanted by its URI, as of this BMC: ``has no UefiHttp``."""
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
    """Whether a BMC takes overrides for so long: XCC knows no Continuous, and iRMC no Disabled."""
    return not observed.allowable_enabled or enabled in observed.allowable_enabled


def _uri_matters(override: Override, observed: Observed) -> bool:
    return override.target == OverrideTarget.UEFI_HTTP and observed.supports_http_boot_uri


def _set_elsewhere(records: Iterable[OverrideRecord], observed: Observed) -> OverrideRecord | None:
    """What may stand or lie in a slot, but on another system than the one that is observed."""
    for record in records:
        if record.stays_behind and is_another_system(record.shown, observed.shown):
            return record
    return None


def _let_go(record: OverrideRecord, observed: Observed, at: datetime, moving: frozenset[str]) -> Step:
    """Withdraw what is no longer wanted, or settle what has become of it."""
    if _was_not_replaced(record, observed):
        record = replace(record, override=record.replaces or record.override, replaces=None, state=State.CONFIRMED)
    if _is_someone_elses(record, observed):
        return Confirm(record=replace(record, state=_consumed(record, at)))
    if not stands(record.override, observed):
        if record.state is State.RECORDED and _is_within(_TO_BE_SET, record, at):
            return Wait(why=_not_shown(record, observed))
        return Confirm(record=replace(record, state=_what_became_of(record, observed, at, moving)))
    if record.state is State.WITHDRAWING and _is_within(_TO_BE_CLEARED, record, at):
        return Wait(why="it was cleared a moment ago, and is still shown")
    return Withdraw(record=replace(record, state=State.WITHDRAWING, marks=marks_beside(observed, record), at=at))


def _boots_another_medium(record: OverrideRecord, wanted: Wanted | None) -> bool:
    """Whether a medium of it has to go: without it, its override would boot what comes next in the firmware's order.

    Or what boots without the data that it was to find.
    """
    stay = wanted.override.media if wanted is not None else ()
    return wanted is not None and any(each.may_lie_in and each.url not in stay for each in record.media)


def _put_away(
    record: OverrideRecord, wanted: Wanted | None, keeps: Collection[str], observed: Observed, at: datetime
) -> Step | None:
    """Eject what was inserted for a record, or settle what has become of it; None: it stays, or there is none."""
    stay = wanted.override.media if wanted is not None else ()
    lying = (each for each in record.media if each.may_lie_in and each.url not in stay)
    steps = (_put_away_one(record, medium, keeps, observed, at) for medium in lying)
    return next((step for step in steps if step is not None), None)


def _put_away_one(
    record: OverrideRecord, medium: Medium, keeps: Collection[str], observed: Observed, at: datetime
) -> Step | None:
    if medium.url in keeps and not _is_over(medium, observed):
        if medium.booted is not None:
            return None
        # Without the clock, which later readings may lack: beside them these instants would mean nothing.
        booted = observed.marks.with_clock_of(NO_MARKS)
        return Confirm(record=record.having(replace(medium, booted=booted)))
    slot = slot_with(medium.url, observed.slots)
    recently = timedelta() <= at - medium.at < _TO_BE_CLEARED
    if slot is None:
        if medium.state is MediumState.INSERTED and timedelta() <= at - medium.at < _TO_BE_SET:
            return Wait(why="its medium was inserted a moment ago, and is not shown yet")
        return Confirm(record=record.having(replace(medium, state=MediumState.EJECTED)))
    if medium.state is MediumState.EJECTING and recently:
        return Wait(why="its medium was ejected a moment ago, and is still shown")
    return Eject(record=record.having(replace(medium, state=MediumState.EJECTING, at=at)), slot=slot)


def _is_over(medium: Medium, observed: Observed) -> bool:
    """Whether the system that was booted from a medium runs no more: left there, it might boot once more."""
    if medium.booted is None:
        return False
    return observed.power == "Off" or observed.marks.reset_since(medium.booted) is Reset.SEEN


def _was_not_replaced(record: OverrideRecord, observed: Observed) -> bool:
    """Whether what stands is what was to give way to the record's override: it is gitboot's own, too."""
    if record.state is not State.RECORDED or record.replaces is None or stands(record.override, observed):
        return False
    return stands(record.replaces, observed)


def _is_someone_elses(record: OverrideRecord, observed: Observed) -> bool:
    """Whether a one-time override stands that cannot be the recorded one: a reset since has consumed that.

    A machine that is still in POST has not consumed it yet. What was only about to be set may have been set after
    the reset.
    """
    once = record.override.enabled is OverrideEnabled.ONCE and record.state in (State.CONFIRMED, State.WITHDRAWING)
    return (
        once
        and observed.marks.settled
        and not observed.in_post
        and stands(record.override, observed)
        and observed.marks.reset_since(record.marks) is Reset.SEEN
    )


def _consumed(record: OverrideRecord, at: datetime) -> State:
    is_proven = record.state is State.CONFIRMED and not record.may_be_cleared_unrecorded(at)
    return State.CONSUMED if is_proven else State.LOST


def _what_became_of(record: OverrideRecord, observed: Observed, at: datetime, moving: frozenset[str]) -> State:
    """Tell how an override that no longer stands has ended.

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
    """The marks that were seen, by the clock as it was read last."""
    return observed.marks if observed.marks.bmc_time is not None else observed.marks.with_clock_of(record.marks)


def _bring_about(
    wanted: Wanted, record: OverrideRecord | None, observed: Observed, at: datetime, moving: frozenset[str]
) -> Step:
    override = fit(wanted.override, observed)
    if override is None:
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=_unsupported(wanted.override, observed))
    if wanted.by_uri_alone and override.leaves_it_to_dhcp:
        message = "an ISO is wanted by its URI, and the BMC takes no HttpBootUri; no loader can start one"
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    if record is not None and record.state is State.OPENED:
        return _set(wanted, record, override, observed, at)
    if record is not None and record.state is State.SET_BY_ANOTHER:
        return AskOperator(condition=OperatorCondition.NEEDS_OPERATOR, message=_was_set_by_another(record))
    if record is None and _is_set_by_another(wanted, override, observed):
        return Confirm(record=_record(wanted, None, override, observed, at, state=State.SET_BY_ANOTHER))
    if record is None or wanted.is_new(record):
        return _set_anew(wanted, record, override, observed, at)
    if not record.state.is_open:
        lost = wanted.set_again and record.state is State.LOST
        return AskOperator(condition=OperatorCondition.NEEDS_OPERATOR, message=_lost(record)) if lost else Leave()
    if not stands(record.override, observed):
        return _bring_back(wanted, record, override, observed, at, moving)
    if _is_someone_elses(record, observed):
        return Confirm(record=replace(record, state=_consumed(record, at)))
    if (step := _with_media(wanted, record, override, observed, at)) is not None:
        return step
    if record.override != override:
        return _set(wanted, record, override, observed, at, corrections=_recent(record, at), replaces=record.override)
    may_mark = observed.marks.settled and observed.marks.may_follow(record.marks)
    if record.state is State.CONFIRMED and not may_mark:
        moved = replace(record, clears_from=wanted.ends)
        return Leave() if moved == record else Confirm(record=moved)
    marks = marks_beside(observed, record)  # also where the machine has come up since: it has not consumed it
    confirmed = replace(record, state=State.CONFIRMED, marks=marks, replaces=None, clears_from=wanted.ends)
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
    became = _what_became_of(record, observed, at, moving)
    if record.state is State.WITHDRAWING:
        return Confirm(record=replace(record, state=became))
    if record.state is State.RECORDED and _is_within(_TO_BE_SET, record, at):
        return Wait(why=_not_shown(record, observed))
    if _was_not_replaced(record, observed):
        return _set(wanted, record, override, observed, at, corrections=_recent(record, at), replaces=record.replaces)
    if became is State.WITHDRAWN:
        corrections = _recent(record, at)
        if len(corrections) >= MAX_CORRECTIONS:
            return AskOperator(condition=OperatorCondition.CONTENDED, message=_contended(record, observed))
        return _set(wanted, record, override, observed, at, corrections=(*corrections, at))
    if record.state is State.CONFIRMED:
        return Confirm(record=replace(record, state=became))
    if _in_post(observed, at):
        return Wait(why="the machine is in POST, and its override is not known to be set")
    return AskOperator(condition=OperatorCondition.NEEDS_OPERATOR, message=_undecidable(record, observed))


def _set_anew(
    wanted: Wanted, record: OverrideRecord | None, override: Override, observed: Observed, at: datetime
) -> Step:
    """Set what does not stand in gitboot's name, unless somebody else's override would have to give way to it."""
    step = _set(wanted, record, override, observed, at)
    seen = observed.override
    free = seen.enabled is OverrideEnabled.DISABLED or seen.target == OverrideTarget.NONE or stands(override, observed)
    if isinstance(step, Set | Insert) and not free:
        return AskOperator(condition=OperatorCondition.FOREIGN_OVERRIDE, message=_foreign(override, seen))
    return step


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
    return Set(record=replace(recorded, corrections=corrections, replaces=replaces))


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
    seen = observed.override
    uri = override.http_boot_uri
    has_stood = wanted.is_first and uri is not None and seen.http_boot_uri == uri
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
        return _no_slot(override, observed)
    kept = record is not None and (record.state.is_open or record.state is State.OPENED)
    found = _record(wanted, record, override, observed, at, state=State.INSERTED)
    if record is not None and kept:
        found = record
    inserted = Medium(url=url, state=MediumState.INSERTED, at=at)
    is_data = url == override.data_medium
    found = replace(found, data_medium=inserted) if is_data else replace(found, medium=inserted)
    return Insert(record=found, slot=slots[url], url=url)


def _no_slot(override: Override, observed: Observed) -> AskOperator:
    needs_data = override.data_medium is not None
    bare = [replace(slot, image=None, inserted=False) for slot in observed.slots]
    if places(bare, override.medium or "", override.data_medium) is None:
        discs = [slot for slot in observed.slots if slot.takes_discs]
        message = "a medium is wanted, and the BMC has no slot for a CD"
        if discs and needs_data:
            message = (
                f"a second medium is wanted, with the user data, and the BMC has one slot alone, {discs[0].path};"
                " nothing is inserted. An image that says configFrom: SystemUUID needs one"
            )
        return AskOperator(condition=OperatorCondition.UNSUPPORTED, message=message)
    taken = [
        f"{slot.path} has {slot.image or 'a medium'}"
        for slot in observed.slots
        if not slot.is_free and slot.image not in override.media and (slot.takes_discs or needs_data)
    ]
    what = "two media are" if needs_data else "a medium is"
    message = f"{what} wanted, and {', '.join(taken)}, which gitboot has not inserted; it is left alone"
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
    seen = observed.override
    if seen.enabled is OverrideEnabled.DISABLED:
        return "it was set a moment ago, and is not shown yet"
    return (
        f"{record.override.enabled} {record.override.target} was set a moment ago, and the BMC shows {seen.enabled}"
        f" {seen.target}"
    )


def _foreign(override: Override, seen: Override) -> str:
    uri = f" {seen.http_boot_uri}" if seen.http_boot_uri and seen.target == OverrideTarget.UEFI_HTTP else ""
    return (
        f"the BMC shows {seen.enabled} {seen.target}{uri}, which gitboot has not set;"
        f" {override.enabled} {override.target} is set when it is gone"
    )


def _was_set_elsewhere(record: OverrideRecord, observed: Observed) -> str:
    return (
        f"{record.override.enabled} {record.override.target} for {record.reason} was set where the BMC showed"
        f" {record.shown}; now it shows {observed.shown}, and nothing is withdrawn or set there"
    )


def _contended(record: OverrideRecord, observed: Observed) -> str:
    seen = observed.override
    return (
        f"{record.override.enabled} {record.override.target} was set {MAX_CORRECTIONS + 1} times within an"
        f" hour, and the BMC shows {seen.enabled} {seen.target}"
    )


def _undecidable(record: OverrideRecord, observed: Observed) -> str:
    seen = observed.override
    shown = f"; the BMC shows {seen.enabled} {seen.target}" if seen.enabled is not OverrideEnabled.DISABLED else ""
    return (
        f"{record.override.enabled} {record.override.target} was to be set for {record.reason} and does not"
        f" stand: it was never set, or it was set and consumed{shown}"
    )


def _was_set_by_another(record: OverrideRecord) -> str:
    uri = f" {record.override.http_boot_uri}" if record.override.http_boot_uri else ""
    return (
        f"the BMC has shown {record.override.enabled} {record.override.target}{uri} for {record.reason} before this"
        " ledger has set it: another instance may have installed the machine; nothing is set"
    )


def _lost(record: OverrideRecord) -> str:
    return (
        f"{record.override.enabled} {record.override.target} for {record.reason} is gone, and nothing proves that a"
        " reset consumed it: it is not set anew"
    )
