"""Rules R2, R5 and R10: what of a decision boots at an instant, and when that changes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gitboot.model.policy import DiskBoot, Method, NetworkBoot, OverrideMode
from gitboot.model.scalars import format_instant
from gitboot.model.server import Lifecycle
from gitboot.plan import (
    CONSUMED_GRACE,
    FETCH_GRACE,
    IGNITION_GRACE,
    Boot,
    BootOverride,
    BootPlan,
    Cause,
    Decision,
    MaintenanceDecision,
    OverrideTarget,
    Phase,
    PolicyDecision,
    Record,
    UserDataFiles,
)
from gitboot.resolve.userdata import family


def plan(decision: Decision, at: datetime, record: Record | None) -> BootPlan | None:
    """What ``decision`` boots at ``at``, knowing ``record`` (None: nothing is known).

    None where there is no plan: parked, retired, or neither a policy nor an active maintenance.
    """
    state = _state(decision, at, record)
    if state is None:
        return None
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
        boot=state.boot,
        ignition=state.ignition,
        override=state.override,
        next_transition=transition(decision, at, record),
    )


def transition(decision: Decision, at: datetime, record: Record | None) -> datetime | None:
    """The next instant after ``at`` at which the plan changes without a commit and without an observation."""
    now = _state(decision, at, record)
    later = sorted({instant for instant in _instants(decision, record) if instant > at})
    return next((instant for instant in later if _state(decision, instant, record) != now), None)


def fallback(decision: Decision, planned: BootPlan) -> BootPlan:
    """What boots instead of ``planned``, which is made once, where its fetch cannot be recorded.

    The policy's Always boot if that writes no disk, which needs no record; else the local disk.
    """
    policy = decision.policy
    always = policy.boot if policy is not None and policy.network_boot is NetworkBoot.ALWAYS else None
    boot = always if always is not None and not always.writes_disk else None
    return replace(
        planned,
        phase=Phase.DISK if boot is None else Phase.NETWORK,
        cause=Cause.NOT_RECORDED,
        maintenance=planned.maintenance if boot is None else None,
        key=None,
        boot=boot,
        ignition=_ignition(boot) if boot is not None else None,
        override=None,
    )


def is_provisioned(policy: PolicyDecision, record: Record) -> bool:
    """Whether the key that the policy wants has been provisioned; lowering ``provision`` never asks again."""
    if record.provision is None or record.provision < policy.provision:
        return False
    if policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE and policy.boot is not None:
        return record.image == policy.boot.image
    return True


@dataclass(frozen=True, slots=True)
class _State:
    """What changes with time in a plan."""

    phase: Phase
    cause: Cause
    maintenance: str | None
    boot: Boot | None
    ignition: UserDataFiles | None
    override: BootOverride | None
    key: str | None = None


def _instants(decision: Decision, record: Record | None) -> Iterator[datetime]:
    """Every instant at which something about the plan may change."""
    for maintenance in decision.maintenances:
        yield from (instant for instant in (maintenance.start, maintenance.end) if instant is not None)
    if record is not None:
        if record.grace_until is not None:
            yield record.grace_until
        if record.provisioned_at is not None:
            yield record.provisioned_at + IGNITION_GRACE
        if record.consumed_at is not None:
            yield record.consumed_at + CONSUMED_GRACE
        for _, made_at in record.runs.values():
            yield made_at + FETCH_GRACE


def _state(decision: Decision, at: datetime, record: Record | None) -> _State | None:
    if decision.lifecycle is not Lifecycle.ACTIVE:
        return None
    active = [maintenance for maintenance in decision.maintenances if maintenance.active(at)]
    if active:  # R2: the highest priority; a tie never gets here
        return _under_maintenance(max(active, key=lambda maintenance: maintenance.priority), at, record)
    return _under_policy(decision.policy, at, record) if decision.policy is not None else None


def _under_maintenance(maintenance: MaintenanceDecision, at: datetime, record: Record | None) -> _State:
    boot, name = maintenance.boot, maintenance.name
    if boot is None:
        return _State(Phase.DISK, Cause.MAINTENANCE_DISK, name, None, None, None)
    made = False
    if maintenance.network_boot is NetworkBoot.ONCE:
        if record is None:
            return _State(Phase.DISK, Cause.UNKNOWN, name, None, None, None)
        run, made_at = record.runs.get(name, (-1, at))
        made = run >= maintenance.run
        if made and at >= made_at + FETCH_GRACE:
            return _State(Phase.DISK, Cause.MAINTENANCE_DONE, name, None, None, None)
    override = None
    if not made:
        override = _override(boot, maintenance.network_boot, maintenance.override, _reason(maintenance))
    key = _reason(maintenance) if maintenance.network_boot is NetworkBoot.ONCE else None
    return _State(Phase.MAINTENANCE, Cause.MAINTENANCE, name, boot, _ignition(boot), override, key)


def _reason(maintenance: MaintenanceDecision) -> str:
    return f"maintenance/{maintenance.name}/{maintenance.run}"


def _under_policy(policy: PolicyDecision, at: datetime, record: Record | None) -> _State:
    boot = policy.boot
    if boot is None:
        return _disk(policy, Cause.DISK)
    if policy.network_boot is NetworkBoot.NEVER:
        return _disk(policy, Cause.NEVER)
    if policy.network_boot is NetworkBoot.ALWAYS:
        override = _override(boot, policy.network_boot, policy.override, f"policy/{policy.policy}/always")
        return _State(Phase.NETWORK, Cause.ALWAYS, None, boot, _ignition(boot), override)
    if record is None:
        return _disk(policy, Cause.UNKNOWN)
    key = provision_reason(policy, record)
    to_be_made = _State(Phase.NETWORK, Cause.PENDING, None, boot, _ignition(boot), None, key)
    if is_provisioned(policy, record):
        if record.grace_until is not None and at < record.grace_until and record.image == boot.image:
            return to_be_made
        asks_still = record.provisioned_at is not None and at < record.provisioned_at + IGNITION_GRACE
        return _disk(policy, Cause.PROVISIONED, _ignition(boot) if asks_still else None)
    if record.consumed_at is not None and record.consumed_key == key:
        late = at >= record.consumed_at + CONSUMED_GRACE
        return replace(_disk(policy, Cause.CONSUMED), key=key) if late else to_be_made
    return replace(to_be_made, override=_override(boot, policy.network_boot, policy.override, key))


def provision_reason(policy: PolicyDecision, record: Record) -> str:
    """The provision key that a policy wants, as the reason of an override; each attempt has its own.

    Under OnImageChange an image may be wanted again that was provisioned before another: what was set for
    it then says nothing of now, so the instant of the last provisioning is part of the key.
    """
    if policy.network_boot is not NetworkBoot.ON_IMAGE_CHANGE or policy.boot is None:
        return f"provision/{policy.provision}"
    since = f"/after/{format_instant(record.provisioned_at)}" if record.provisioned_at is not None else ""
    return f"provision/{policy.provision}/{policy.boot.image}{since}"


def _disk(policy: PolicyDecision, cause: Cause, ignition: UserDataFiles | None = None) -> _State:
    override = None
    if policy.disk_boot is DiskBoot.HDD:
        override = BootOverride(
            enabled=OverrideMode.CONTINUOUS, target=OverrideTarget.HDD, http_boot_uri=None, reason="disk"
        )
    return _State(Phase.DISK, cause, None, None, ignition, override)


_TARGETS = {
    Method.UEFI_HTTP: OverrideTarget.UEFI_HTTP,
    Method.PXE: OverrideTarget.PXE,
    Method.VIRTUAL_MEDIA: OverrideTarget.CD,
}


def _override(boot: Boot, network_boot: NetworkBoot, mode: OverrideMode, reason: str) -> BootOverride | None:
    if mode is OverrideMode.NONE:
        return None
    file = boot.http_boot_file
    return BootOverride(
        enabled=mode,
        target=_TARGETS[boot.method],
        http_boot_uri=file.url if file is not None else None,
        reason=reason,
        set_again=network_boot is NetworkBoot.ALWAYS and mode is OverrideMode.ONCE,
    )


def _ignition(boot: Boot) -> UserDataFiles | None:
    user_data = boot.user_data
    return user_data if user_data is not None and family(user_data.format).value == "Ignition" else None
