"""Plan at a given time: derive a server's plan from its decision and record, and find when the plan changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gitboot.jsonio import Digest, format_instant
from gitboot.model.boot_policy import DiskBoot, Method, NetworkBoot, OverrideMode, PolicyWait
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Lifecycle
from gitboot.resolve.install_attempts import (
    attempt_token,
    has_wanted_image,
    is_lowered,
    is_overwritten,
    is_provisioned,
    last_attempt,
    next_attempt_and_boot,
    next_boot_key,
    provision_key,
    satisfies_key,
    unfinished_later_attempt,
)
from gitboot.resolve.provisioning_record import (
    ADOPTED,
    CONSUMED_GRACE,
    DATA_GRACE,
    FETCH_GRACE,
    START_EVIDENCE,
    Clearance,
    InstallStep,
    Record,
    Run,
    StopScope,
)
from gitboot.resolve.server_decision import (
    Boot,
    BootFile,
    Decision,
    MaintenanceDecision,
    OverrideEnabled,
    OverrideTarget,
    PolicyDecision,
    UserDataFiles,
    WithheldBoot,
    offer_token,
)
from gitboot.resolve.server_plan import BootOverride, BootPlan, Cause, Phase

_NOT_CLEARED: Final = Clearance()
_CAUSE_BY_STEP: Final = {
    InstallStep.ATTEMPTED: Cause.ATTEMPTED,
    InstallStep.STARTED: Cause.STARTED,
    InstallStep.FAILED: Cause.FAILED,
}
_TARGETS: Final = {
    Method.UEFI_HTTP: OverrideTarget.UEFI_HTTP,
    Method.PXE: OverrideTarget.PXE,
    Method.VIRTUAL_MEDIA: OverrideTarget.CD,
}


def make_plan(
    decision: Decision,
    at: datetime,
    record: Record | None,
    *,
    stop: StopScope = StopScope.NONE,
    absent_files: Collection[BootFile] = (),
) -> BootPlan | None:
    """Return the plan of a server at the time ``at``, or None if the server has no plan.

    ``record`` is None if gitboot does not know what is installed. Parked and retired servers have no plan. An active
    server has a plan only if it has a policy or an active maintenance. gitboot does not offer a boot that needs one of
    the ``absent_files``, unless the boot has already been served.
    """
    state = _find_boot_state(decision, at, record, stop, absent_files)
    if state is None:
        return None
    boot = state.boot
    token = attempt_token(decision, record)
    data_token = _find_data_token(decision, state, token)
    offered = 0
    if boot is not None and state.key is not None and record is not None:
        offered = max(record.offered, record.taken_back)  # a higher number identifies a new offer
    if boot is not None and data_token is not None and (folder := decision.data_folder(data_token)) is not None:
        # Each one-time boot has its own path for user data, and its own token for reports.
        old_token = decision.token or ""
        boot = boot.move_user_data(folder, token_change=(old_token, token if token is not None else old_token))
    return BootPlan(
        server=decision.server,
        uuid=decision.uuid,
        macs=decision.macs,
        architecture=decision.architecture,
        firmware=decision.firmware,
        base_url=decision.base_url,
        restrict=decision.restrict,
        phase=state.phase,
        cause=state.cause,
        policy=decision.policy.policy if decision.policy else None,
        maintenance=state.maintenance,
        key=state.key,
        boot=boot,
        user_data=state.user_data,
        override=state.override,
        next_transition=find_next_transition(decision, at, record, stop=stop, absent_files=absent_files),
        offered=offered,
        data=data_token,
        token=token if token != decision.token else None,
        medium=state.medium_boot.medium if state.medium_boot is not None else None,
        reads_medium=state.medium_boot is not None and state.medium_boot.reads_medium,
        local_disk=decision.local_disk,
        waiting_maintenance=state.waiting_maintenance,
        is_withheld_from_ipxe=state.is_withheld_from_ipxe,
    )


def find_next_transition(
    decision: Decision,
    at: datetime,
    record: Record | None,
    *,
    stop: StopScope = StopScope.NONE,
    absent_files: Collection[BootFile] = (),
) -> datetime | None:
    """Return the first time after ``at`` when the plan changes merely because time passes, or None."""
    later_times = sorted({instant for instant in _list_transition_times(decision, record) if instant > at})
    if not later_times:
        return None
    current_state = _find_boot_state(decision, at, record, stop, absent_files)
    for instant in later_times:
        if _find_boot_state(decision, instant, record, stop, absent_files) != current_state:
            return instant
    return None


def _list_transition_times(decision: Decision, record: Record | None) -> Iterator[datetime]:
    windows: tuple[MaintenanceDecision | WithheldBoot, ...] = (*decision.maintenances, *decision.withheld)
    for window in windows:
        yield from (instant for instant in (window.start, window.end) if instant is not None)
    if record is not None:
        if record.grace_until is not None:
            yield record.grace_until
        if record.provisioned_at is not None:  # in the future if the clock was set back
            yield from (record.provisioned_at, record.provisioned_at + DATA_GRACE)
        if record.consumed_at is not None:
            yield from (record.consumed_at + grace for grace in (timedelta(), CONSUMED_GRACE, DATA_GRACE))
        serve_times = [attempt.boots[-1].at for attempt in record.attempts]
        serve_times += [serve.seen.at for serve in record.unknown_serves if not serve.is_withheld]
        serve_times += [run.at for run in record.runs.values()]
        yield from (served_at + grace for served_at in serve_times for grace in (timedelta(), FETCH_GRACE, DATA_GRACE))


def _find_data_token(decision: Decision, state: _BootState, token: Digest | None) -> Digest | None:
    """Return the token with which the booted system fetches its user data, or None if it needs no token.

    ``token`` is the token of the current attempt.
    """
    if state.data_token is not None or decision.token is None or state.user_data is None:
        return state.data_token
    is_one_time_boot = state.maintenance is None and (state.key is not None or state.boot is None)
    return token if is_one_time_boot else None


def make_fallback_plan(
    decision: Decision, withheld_plan: BootPlan, stop: StopScope, absent_files: Collection[BootFile] = ()
) -> BootPlan:
    """Return the plan that replaces a withheld plan.

    The server gets the policy's Always boot if that boot does not write a disk and no file of the boot is absent. In
    all other cases, and while all network boots are stopped, the server boots from its local disk.
    """
    is_stopped = stop is StopScope.ALL
    boot = find_harmless_boot(decision.policy, absent_files) if not is_stopped else None
    return replace(
        withheld_plan,
        phase=Phase.DISK if boot is None else Phase.NETWORK,
        cause=Cause.ALL_STOPPED if is_stopped else Cause.SUBSTITUTE,
        maintenance=withheld_plan.maintenance if boot is None else None,
        key=None,
        boot=boot,
        user_data=boot.user_data if boot is not None else None,
        offered=0,
        data=None,
        override=None,
        medium=boot.medium if boot is not None else None,
        reads_medium=False,
        is_withheld_from_ipxe=boot is not None and boot.lacks_ipxe_files(absent_files),
    )


def drop_ended_windows(decision: Decision, latest_clock: datetime | None) -> Decision:
    """Return the decision without the maintenances whose windows had ended by ``latest_clock``.

    This prevents a window that has ended from opening again after the clock was set back. ``latest_clock`` is the
    latest time that the clock has shown, or None if the clock was not set back.
    """
    if latest_clock is None:
        return decision
    remaining = tuple(
        maintenance
        for maintenance in decision.maintenances
        if maintenance.end is None or latest_clock < maintenance.end
    )
    return decision if remaining == decision.maintenances else replace(decision, maintenances=remaining)


# What a server boots at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class _BootState:
    """What a server boots at a given time, without final URLs. Two equal states belong to the same plan."""

    phase: Phase
    cause: Cause
    maintenance: str | None = None
    boot: Boot | None = None
    user_data: UserDataFiles | None = None
    override: BootOverride | None = None
    key: str | None = None
    data_token: Digest | None = None  # with this token, the system of a one-time boot fetches its user data
    medium_boot: Boot | None = None  # the boot whose medium is in a virtual drive, or may still be
    waiting_maintenance: str | None = None  # the maintenance that waits for an approval or a drain
    is_withheld_from_ipxe: bool = False  # whether only the other boot loaders get the boot
    # Whether the boot was already served and is still being served. Plans do not contain this, so it is not compared.
    is_still_served: bool = field(default=False, compare=False)


def _find_boot_state(
    decision: Decision, at: datetime, record: Record | None, stop: StopScope, absent_files: Collection[BootFile]
) -> _BootState | None:
    """Return the state of a server at the time ``at``, or None if the server has no plan."""
    if decision.lifecycle is not Lifecycle.ACTIVE:
        return None
    policy = decision.policy
    waiting_state = None
    active = [maintenance for maintenance in decision.maintenances if maintenance.is_active(at)]
    if active:  # rule R2 in docs/explanation/decisions.md; maintenances of equal priority never overlap
        highest = max(active, key=lambda maintenance: maintenance.priority)
        state = _find_maintenance_state(decision.uuid, highest, at, record)
        waiting_state = _find_waiting_state(policy, highest, state, record, absent_files)
    elif policy is not None:
        state = _find_policy_state(policy, at, record)
    else:
        return None
    if (substitute := _find_substitute(decision, state, at, record, stop, absent_files)) is not None:
        return substitute
    if waiting_state is not None:  # checked last: gitboot must not drain a server for a boot that it would not offer
        is_stopped = stop is StopScope.ALL and waiting_state.boot is not None
        return _make_disk_state(policy, Cause.ALL_STOPPED) if is_stopped else waiting_state
    if (boot := state.boot) is None:
        return state
    return replace(
        state,
        medium_boot=_select_medium_boot(boot),
        is_withheld_from_ipxe=not state.is_still_served and boot.lacks_ipxe_files(absent_files),
    )


def _find_maintenance_state(
    uuid: SystemUuid, maintenance: MaintenanceDecision, at: datetime, record: Record | None
) -> _BootState:
    """Return the state of a server while a maintenance is active."""
    boot = maintenance.boot
    name = maintenance.name
    if boot is None:
        return _BootState(phase=Phase.DISK, cause=Cause.MAINTENANCE_DISK, maintenance=name)
    if maintenance.network_boot is not NetworkBoot.ONCE:
        key = run_key(maintenance, record)
        override = _make_override(boot, maintenance.network_boot, maintenance.override, key)
        return _BootState(
            phase=Phase.MAINTENANCE,
            cause=Cause.MAINTENANCE,
            maintenance=name,
            boot=boot,
            user_data=boot.user_data,
            override=override,
        )
    if record is None:
        return _BootState(phase=Phase.DISK, cause=Cause.UNKNOWN, maintenance=name)
    return _find_run_state(uuid, maintenance, boot, at, record)


def _find_run_state(
    uuid: SystemUuid, maintenance: MaintenanceDecision, boot: Boot, at: datetime, record: Record
) -> _BootState:
    """Return the state of a server during a maintenance with a one-time boot."""
    name = maintenance.name
    key = run_key(maintenance, record)
    data_token = offer_token(uuid, name, str(maintenance.run), boot.image, str(record.offered))

    def make_served_state(cause: Cause, served_at: datetime) -> _BootState:
        """Return the disk boot after the one-time boot, whose system may still read its user data and its medium."""
        if not _is_in_grace_period(served_at, at, DATA_GRACE):
            return _BootState(phase=Phase.DISK, cause=cause, maintenance=name)
        return _BootState(
            phase=Phase.DISK,
            cause=cause,
            maintenance=name,
            user_data=boot.user_data,
            data_token=data_token if boot.user_data is not None else None,
            medium_boot=_select_medium_boot(boot),
        )

    is_served = False
    if is_current_run_consumed(maintenance, record):
        run = record.runs[name]
        is_served = True
        if not is_run_still_served(run, at):
            cause = Cause.MAINTENANCE_DONE
            if boot.proves_start and run.given is not None:
                cause = Cause.MAINTENANCE_SERVED if run.started is None else Cause.MAINTENANCE_STARTED
            return make_served_state(cause, run.at)
    elif (served_at := _find_first_serve_time(record, key)) is not None:
        is_served = True
        if not _is_in_grace_period(served_at, at, FETCH_GRACE):
            return make_served_state(Cause.MAINTENANCE_OUTCOME, served_at)
    override = _make_override(boot, maintenance.network_boot, maintenance.override, key)
    return _BootState(
        phase=Phase.MAINTENANCE,
        cause=Cause.MAINTENANCE,
        maintenance=name,
        boot=boot,
        user_data=boot.user_data,
        override=override if not is_served else None,
        key=key,
        data_token=data_token if boot.user_data is not None else None,
        is_still_served=is_served,
    )


def _find_policy_state(policy: PolicyDecision, at: datetime, record: Record | None) -> _BootState:
    """Return the state of a server to which only its policy applies."""
    boot = policy.boot
    if boot is None:
        return _make_disk_state(policy, Cause.DISK)
    if policy.network_boot is NetworkBoot.NEVER:
        return _make_disk_state(policy, Cause.NEVER)
    if policy.network_boot is NetworkBoot.ALWAYS:
        return _make_always_state(policy, boot)
    if record is None:
        return _make_disk_state(policy, Cause.UNKNOWN)
    if is_overwritten(record, policy.provision):
        return _make_disk_state(policy, Cause.OVERWRITTEN)
    if is_provisioned(policy, record):
        return _find_provisioned_state(policy, boot, at, record)
    return _find_installation_state(policy, boot, at, record)


def _find_provisioned_state(policy: PolicyDecision, boot: Boot, at: datetime, record: Record) -> _BootState:
    """Return the state of a server whose one-time installation is complete."""
    since, until = record.provisioned_at, record.grace_until
    has_later_attempt = unfinished_later_attempt(record) is not None
    if since is not None and until is not None and since <= at < until and record.image == boot.image:
        key = next_boot_key(policy, record)
        if record.attempts and not has_later_attempt:
            key = record.attempts[-1].boot_key  # the next key may belong to a later attempt
        return _make_network_state(boot, key, None, is_still_served=True)
    cause = Cause.LATER_INSTALL_UNFINISHED if has_later_attempt else Cause.PROVISIONED
    if since is None or not _is_in_grace_period(since, at, DATA_GRACE) or record.evidence == ADOPTED:
        return _make_disk_state(policy, cause)
    user_data, medium_boot = boot.user_data, None
    if record.evidence not in START_EVIDENCE:
        user_data = user_data.without_secrets() if user_data is not None else None
    elif not has_later_attempt:
        medium_boot = _select_medium_boot(boot)
    return _make_disk_state(policy, cause, user_data, medium_boot)


def _find_installation_state(policy: PolicyDecision, boot: Boot, at: datetime, record: Record) -> _BootState:
    """Return the state of a server whose one-time installation is pending."""
    key = next_boot_key(policy, record)
    served_state = _make_network_state(boot, key, None, is_still_served=True)
    last = last_attempt(record, provision_key(policy, record))
    if last is not None:
        if last.is_still_served(at) and not is_lowered(last, policy) and has_wanted_image(last, policy):
            return replace(served_state, key=last.boot_key)
        if next_attempt_and_boot(policy, record) is None:
            is_running = _is_in_grace_period(last.boots[-1].at, at, DATA_GRACE)
            user_data = boot.user_data if is_running else None
            medium_boot = _select_medium_boot(boot) if is_running and last.step is not InstallStep.FAILED else None
            if user_data is not None and last.step is InstallStep.FAILED:
                user_data = user_data.without_secrets()
            return replace(_make_disk_state(policy, _CAUSE_BY_STEP[last.step], user_data, medium_boot), key=key)
    if record.consumed_at is not None and satisfies_key(record.consumed_key, key):
        if _is_in_grace_period(record.consumed_at, at, CONSUMED_GRACE):
            return served_state
        is_running = _is_in_grace_period(record.consumed_at, at, DATA_GRACE)
        medium_boot = _select_medium_boot(boot) if is_running else None
        return replace(_make_disk_state(policy, Cause.CONSUMED, None, medium_boot), key=key)
    if (served_at := _find_first_serve_time(record, key)) is not None:
        if _is_in_grace_period(served_at, at, FETCH_GRACE):
            return served_state
        if not _is_in_grace_period(served_at, at, DATA_GRACE):
            return replace(_make_disk_state(policy, Cause.OUTCOME), key=key)
        medium_boot = _select_medium_boot(boot)
        return replace(_make_disk_state(policy, Cause.OUTCOME, boot.user_data, medium_boot), key=key)
    if policy.wait_for is PolicyWait.POWER_OFF and last is None and record.released != release_key(policy, record):
        return _make_disk_state(policy, Cause.WAITING_FOR_POWER_OFF)
    override = _make_override(boot, policy.network_boot, policy.override, key)
    return _make_network_state(boot, key, override, is_still_served=False)


def _find_first_serve_time(record: Record, key: str) -> datetime | None:
    """Return the time of the first intent to serve the boot with this key.

    Intents with a known outcome do not count. Return None if there is no such intent.
    """
    serve = record.find_unknown_serve(key)
    return serve.seen.at if serve is not None else None


def _make_always_state(policy: PolicyDecision, boot: Boot) -> _BootState:
    override = _make_override(boot, policy.network_boot, policy.override, f"policy/{policy.policy}/always")
    return _BootState(phase=Phase.NETWORK, cause=Cause.ALWAYS, boot=boot, user_data=boot.user_data, override=override)


def _make_network_state(boot: Boot, key: str, override: BootOverride | None, *, is_still_served: bool) -> _BootState:
    return _BootState(
        phase=Phase.NETWORK,
        cause=Cause.PENDING,
        boot=boot,
        user_data=boot.user_data,
        override=override,
        key=key,
        is_still_served=is_still_served,
    )


def _make_disk_state(
    policy: PolicyDecision | None,
    cause: Cause,
    user_data: UserDataFiles | None = None,
    medium_boot: Boot | None = None,
) -> _BootState:
    """Return the state of a server that boots from its disk.

    ``user_data`` and the medium of ``medium_boot`` are what the system of the server's last boot may still read.
    """
    override = None
    if policy is not None and policy.disk_boot is DiskBoot.HDD:
        override = BootOverride(
            enabled=OverrideEnabled.CONTINUOUS, target=OverrideTarget.HDD, http_boot_uri=None, reason="disk"
        )
    return _BootState(phase=Phase.DISK, cause=cause, user_data=user_data, override=override, medium_boot=medium_boot)


def _select_medium_boot(boot: Boot) -> Boot | None:
    return boot if boot.medium is not None else None


def _make_override(boot: Boot, network_boot: NetworkBoot, mode: OverrideMode, reason: str) -> BootOverride | None:
    if mode is OverrideMode.NONE:
        return None
    file = boot.http_boot_file
    return BootOverride(
        enabled=OverrideEnabled(mode.value),
        target=_TARGETS[boot.method],
        http_boot_uri=file.url if file is not None else None,
        reason=reason,
        set_again=network_boot is NetworkBoot.ALWAYS and mode is OverrideMode.ONCE,
    )


def _is_in_grace_period(since: datetime, at: datetime, grace: timedelta) -> bool:
    """Return whether ``at`` is within the grace period that begins at ``since``.

    If the clock was set back, ``since`` may be in the future.
    """
    return since <= at < since + grace


# Boots that gitboot must not offer


def _find_waiting_state(
    policy: PolicyDecision | None,
    maintenance: MaintenanceDecision,
    state: _BootState,
    record: Record | None,
    absent_files: Collection[BootFile],
) -> _BootState | None:
    """Return the state until a maintenance has its approval and its drain, or None if the maintenance does not wait."""
    is_new = state.boot is not None or state.cause is Cause.MAINTENANCE_DISK
    missing = find_missing_precondition(maintenance, record) if is_new and not state.is_still_served else None
    if missing is None:
        return None
    substitute = _make_substitute_state(policy, missing, absent_files)
    return replace(substitute, waiting_maintenance=maintenance.name)


def find_missing_precondition(maintenance: MaintenanceDecision, record: Record | None) -> Cause | None:
    """Return why gitboot must not reset and boot a server for a maintenance yet, or None if it may do so."""
    if (before := maintenance.before) is None:
        return None
    clearance = record.clearances.get(maintenance.name, _NOT_CLEARED) if record is not None else _NOT_CLEARED
    if before.approval_file is not None and not before.is_approved:
        return Cause.WAITING_FOR_APPROVAL
    if before.approval_url is not None and clearance.approved != before.approval_key:
        return Cause.WAITING_FOR_APPROVAL
    is_drained = clearance.drain == maintenance.drain_key and clearance.drained_at is not None
    return Cause.WAITING_FOR_DRAIN if before.drain_url is not None and not is_drained else None


def _find_substitute(
    decision: Decision,
    state: _BootState,
    at: datetime,
    record: Record | None,
    stop: StopScope,
    absent_files: Collection[BootFile],
) -> _BootState | None:
    """Return the state that replaces a network boot which gitboot must not offer, or None if gitboot may offer it."""
    policy, boot = decision.policy, state.boot
    if boot is None:
        return None
    if stop is StopScope.ALL:
        return _make_disk_state(policy, Cause.ALL_STOPPED)
    if (decision.stopped or stop is StopScope.WRITING) and boot.writes_disk:
        return _make_substitute_state(policy, Cause.STOPPED, absent_files)
    if boot.writes_disk and _is_withheld(decision, state, at, record):
        substitute = _make_substitute_state(policy, Cause.WITHHELD, absent_files)
        if state.is_still_served and substitute.boot is None:  # the booted system may still fetch its user data
            return replace(substitute, user_data=state.user_data, data_token=state.data_token)
        return substitute
    if not state.is_still_served and boot.lacks_files(absent_files):
        return _make_substitute_state(policy, Cause.FILE_MISSING, absent_files)
    return None


def _is_withheld(decision: Decision, state: _BootState, at: datetime, record: Record | None) -> bool:
    """Return whether a newer commit withholds an install boot.

    An attempt that has started and has not failed gets its remaining boots, unless the newer commit withdraws the
    image or gives an identity of the server to another server.
    """
    withheld = [boot for boot in decision.withheld if boot.maintenance == state.maintenance and boot.is_active(at)]
    if not withheld:
        return False
    if any(boot.takes_image_back for boot in withheld):
        return True
    policy = decision.policy
    last = None
    if policy is not None and record is not None and policy.network_boot is not NetworkBoot.ALWAYS:
        last = last_attempt(record, provision_key(policy, record))
    has_begun = state.maintenance is None and last is not None and last.failed is None
    return not (state.is_still_served or has_begun)


def _make_substitute_state(
    policy: PolicyDecision | None, cause: Cause, absent_files: Collection[BootFile]
) -> _BootState:
    """Return the state that replaces a network boot: the policy's harmless boot, or the disk."""
    if policy is not None and (boot := find_harmless_boot(policy, absent_files)) is not None:
        return replace(
            _make_always_state(policy, boot),
            cause=cause,
            medium_boot=_select_medium_boot(boot),
            is_withheld_from_ipxe=boot.lacks_ipxe_files(absent_files),
        )
    return _make_disk_state(policy, cause)


def find_harmless_boot(policy: PolicyDecision | None, absent_files: Collection[BootFile] = ()) -> Boot | None:
    """Return the policy's Always boot, or None if there is no such boot.

    Also return None if the boot writes a disk, or if one of its files is absent.
    """
    if policy is None or policy.network_boot is not NetworkBoot.ALWAYS or policy.boot is None:
        return None
    return None if policy.boot.writes_disk or policy.boot.lacks_files(absent_files) else policy.boot


# Runs of maintenances


def is_current_run_consumed(maintenance: MaintenanceDecision, record: Record) -> bool:
    """Return whether the current run of a maintenance is consumed. A later window offers the run again."""
    return is_run_consumed(record.runs.get(maintenance.name), maintenance.run, maintenance.start)


def is_run_consumed(last_run: Run | None, run: int, start: datetime | None) -> bool:
    """Return whether a run is consumed.

    ``last_run`` is the last consumed run of the maintenance, and ``start`` is the start of its window.
    """
    if last_run is None or last_run.run < run:
        return False
    return last_run.end is None or start is None or start < last_run.end


def is_run_still_served(last_run: Run, at: datetime) -> bool:
    """Return whether gitboot still serves a consumed run.

    gitboot serves the run again until `FETCH_GRACE` has passed or the system has fetched user data.
    """
    return last_run.started is None and _is_in_grace_period(last_run.at, at, FETCH_GRACE)


def find_consumed_runs(decision: Decision, at: datetime, record: Record | None) -> dict[str, Run]:
    """Return the consumed runs of the maintenances that have not ended yet, by maintenance name."""
    if record is None:
        return {}
    return {
        maintenance.name: record.runs[maintenance.name]
        for maintenance in decision.maintenances
        if maintenance.network_boot is NetworkBoot.ONCE
        and (maintenance.end is None or at < maintenance.end)
        and is_current_run_consumed(maintenance, record)
    }


def extend_consumed_runs(record: Record, decision: Decision) -> Record:
    """Return the record with the end of each consumed run extended to the new end of the maintenance's window.

    This prevents a second run if one commit extends a window and a later commit moves its start.
    """
    runs = dict(record.runs)
    for maintenance in decision.maintenances:
        run, end = runs.get(maintenance.name), maintenance.end
        if run is not None and run.end is not None and is_current_run_consumed(maintenance, record):
            runs[maintenance.name] = run._replace(end=max(run.end, end) if end is not None else None)
    return replace(record, runs=runs) if runs != record.runs else record


# Keys


def run_key(maintenance: MaintenanceDecision, record: Record | None) -> str:
    """Return the key that identifies the run that a maintenance requires.

    If a later window repeats the run, the key is new, so that overrides from the earlier window do not count.
    """
    key = f"maintenance/{maintenance.name}/{maintenance.run}"
    last_run = record.runs.get(maintenance.name) if record is not None else None
    if (
        record is None
        or last_run is None
        or last_run.run < maintenance.run
        or is_current_run_consumed(maintenance, record)
    ):
        return key
    assert last_run.end is not None  # noqa: S101 - a run without an end is consumed
    return f"{key}/after/{format_instant(last_run.end)}"


def release_key(policy: PolicyDecision, record: Record) -> str:
    """Return the key that identifies an installation that waits until the machine is off."""
    return f"{provision_key(policy, record)}/{record.offered}"
