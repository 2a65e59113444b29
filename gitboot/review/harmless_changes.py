"""Harmless changes: find changes that guards ignore, because gitboot does not offer the server a new boot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

from msgspec import Struct

from gitboot.model.boot_policy import DiskBoot, NetworkBoot, OverrideMode, PolicyWait
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import NO_REQUIREMENTS, Boot, Decision, MaintenanceDecision, PolicyDecision


class EveryBoot(Struct, frozen=True):
    """A boot condition that always holds. The machine gets the boot at every start, independent of its record."""


class UntilProvisioned(Struct, frozen=True):
    """A boot condition that holds until the record shows that a provision key is provisioned."""

    number: int
    image: str | None  # the image in the key with OnImageChange; None with Once
    attempts: int = 1
    boots: int = 1  # the number of boots that each attempt needs


class UntilRun(Struct, frozen=True):
    """A boot condition that holds until a run of a maintenance is consumed."""

    maintenance: str
    run: int
    start: datetime | None
    end: datetime | None


BootCondition = EveryBoot | UntilProvisioned | UntilRun


def covers_condition(condition: BootCondition, other: BootCondition) -> bool:
    """Return whether the condition ``condition`` permits a boot in all cases in which ``other`` permits it."""
    match condition, other:
        case (EveryBoot(), _):
            return True
        case (UntilProvisioned(), UntilProvisioned()):  # attempts are used for both conditions
            is_within_limits = other.attempts <= condition.attempts and other.boots <= condition.boots
            return is_within_limits and other.number <= condition.number and other.image == condition.image
        case (UntilRun(), UntilRun()) if (condition.maintenance, condition.run) == (other.maintenance, other.run):
            # A run that was consumed in one window is also consumed in the other window, even if the window was moved.
            if other.start is None or condition.end is None or other.start < condition.end:
                return True
            return condition.start is not None and other.start <= condition.start
    return False


class Preconditions(Struct, frozen=True, kw_only=True):
    """The approval and the drain that a server waits for."""

    requirements: frozenset[str] = NO_REQUIREMENTS
    is_approved: bool = True  # Whether the fleet contains the approval, if the approval must be in a file.
    # The digest and the run for which URLs must respond. None: there are no URLs.
    url_keys: tuple[str | None, str | None] = (None, None)

    def waits_as_long_as(self, other: Preconditions) -> bool:
        """Return whether a server that has to wait for ``other`` always has to wait for this too.

        The result does not depend on how the URLs respond.
        """
        urls_match = all(theirs in (None, own) for own, theirs in zip(self.url_keys, other.url_keys, strict=True))
        is_wider = self.requirements >= other.requirements and self.is_approved <= other.is_approved
        return is_wider and urls_match


NO_PRECONDITIONS: Final = Preconditions()


class Demand(Struct, frozen=True, kw_only=True):
    """The boot that a decision requires for a server during a time span."""

    boot: Boot | None  # None: the server boots its local disk or has no plan
    condition: BootCondition = EveryBoot()
    override: OverrideMode = OverrideMode.NONE
    power: str = "None"
    waits: bool = False  # whether the boot waits until the machine is off
    # the approval and the drain for which a server waits before the boot of a maintenance
    preconditions: Preconditions = NO_PRECONDITIONS
    boot_while_waiting: Boot | None = None  # None: the local disk
    disk: DiskBoot = DiskBoot.FIRMWARE_ORDER
    maintenance: str | None = None  # None: the policy requires the boot

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk

    @property
    def image(self) -> str | None:
        return self.boot.image if self.boot is not None else None


NO_DEMAND: Final = Demand(boot=None)


class DemandSpan(Struct, frozen=True, kw_only=True):
    """The demands that apply to a server between two consecutive window boundaries."""

    demand: Demand
    lower_demands: tuple[Demand, ...]  # the demands of the policy and of maintenances with a lower priority


def compute_spans(decision: Decision, times: tuple[datetime, ...]) -> Iterator[DemandSpan]:
    """Yield the span that begins at each instant. The instants must include the start and the end of each window."""
    if decision.lifecycle is not Lifecycle.ACTIVE:
        yield from (DemandSpan(demand=NO_DEMAND, lower_demands=()) for _ in times)
        return
    policy = _build_policy_demand(decision.policy)
    always_boots = policy.boot is not None and not policy.writes_disk and isinstance(policy.condition, EveryBoot)
    # the demand that replaces a stopped boot
    replacement = policy if always_boots else Demand(boot=None, disk=policy.disk)
    for time in times:
        active = [each for each in decision.maintenances if each.is_active(time)]
        active.sort(key=lambda maintenance: maintenance.priority, reverse=True)
        boot_while_waiting = policy.boot if always_boots else None
        demands = [_build_maintenance_demand(maintenance, boot_while_waiting) for maintenance in active]
        demands.append(policy)
        if decision.stopped:
            demands = [replacement if demand.writes_disk else demand for demand in demands]
        yield DemandSpan(demand=demands[0], lower_demands=tuple(demands[1:]))


def find_window_edges(*decisions: Decision) -> tuple[datetime, ...]:
    """Return the earliest possible datetime and all times at which windows in the decisions start or end, sorted."""
    edges = {datetime.min.replace(tzinfo=UTC)}
    for decision in decisions:
        for maintenance in decision.maintenances:
            edges.update(edge for edge in (maintenance.start, maintenance.end) if edge is not None)
    return tuple(sorted(edges))


def _build_policy_demand(policy: PolicyDecision | None) -> Demand:
    if policy is None:
        return NO_DEMAND
    if policy.boot is None or policy.network_boot is NetworkBoot.NEVER:
        return Demand(boot=None, disk=policy.disk_boot)
    condition: BootCondition = EveryBoot()
    if policy.network_boot is not NetworkBoot.ALWAYS:
        image = policy.boot.image if policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE else None
        condition = UntilProvisioned(policy.provision, image, policy.attempts, policy.boot.boots)
    return Demand(
        boot=policy.boot,
        condition=condition,
        override=policy.override,
        power=policy.power,
        waits=policy.wait_for is PolicyWait.POWER_OFF and isinstance(condition, UntilProvisioned),
        disk=policy.disk_boot,
    )


def _build_maintenance_demand(maintenance: MaintenanceDecision, boot_while_waiting: Boot | None) -> Demand:
    waves = (
        maintenance.power,
        maintenance.max_unavailable,
        maintenance.max_unavailable_per or "all",
        f"run {maintenance.run}",
    )
    run = UntilRun(maintenance.name, maintenance.run, maintenance.start, maintenance.end)
    has_boot = maintenance.boot is not None
    return Demand(
        boot=maintenance.boot,
        condition=run if has_boot and maintenance.network_boot is NetworkBoot.ONCE else EveryBoot(),
        override=maintenance.override if has_boot else OverrideMode.NONE,
        power=", ".join(waves) if maintenance.power != "None" else "None",
        maintenance=maintenance.name,
        preconditions=_find_preconditions(maintenance),
        boot_while_waiting=boot_while_waiting,
    )


def _find_preconditions(maintenance: MaintenanceDecision) -> Preconditions:
    if (before := maintenance.before) is None:
        return NO_PRECONDITIONS
    return Preconditions(
        requirements=before.requirements,
        is_approved=before.approval_file is None or before.is_approved,
        url_keys=(
            before.approval_key if before.approval_url is not None else None,
            maintenance.drain_key if before.drain_url is not None else None,
        ),
    )


_PARKED: Final = (Lifecycle.ACTIVE, Lifecycle.PARKED)
_COMPARED: Final = frozenset({"lifecycle", "provision", "policy", "maintenances", "stopped", "withheld"})
_get_compared_fields: Final = attrgetter(*sorted({each.name for each in fields(Decision) if each.compare} - _COMPARED))


def is_harmless(old: Decision, new: Decision) -> bool:
    """Return whether the new decision offers only boots that the old decision also offered.

    Guards ignore the change in this case.
    """
    is_active_as_before = old.lifecycle is new.lifecycle or (old.lifecycle, new.lifecycle) == _PARKED
    if (
        not is_active_as_before
        or new.provision > old.provision
        or _get_compared_fields(new) != _get_compared_fields(old)
    ):
        return False
    times = find_window_edges(old, new)
    before, after = list(compute_spans(old, times)), list(compute_spans(new, times))
    return all(_is_demand_covered(span.demand, before[number:]) for number, span in enumerate(after))


def _is_demand_covered(demand: Demand, spans: list[DemandSpan]) -> bool:
    """Return whether a demand offers only boots that the first span also offers.

    The other spans are the later spans, in order of time.
    """
    current = spans[0]
    condition = demand.condition
    if _is_narrower_demand(demand, current.demand):
        return True
    # For an install boot, the policy itself must demand this provision key in one of the spans.
    is_asked_later = isinstance(condition, UntilProvisioned) and any(
        isinstance(span.demand.condition, UntilProvisioned) and covers_condition(span.demand.condition, condition)
        for span in spans
    )
    return (is_asked_later or not demand.writes_disk) and any(
        _is_narrower_demand(demand, each) for each in current.lower_demands
    )


# in order, the weakest condition first
_OVERRIDES: Final = (OverrideMode.NONE, OverrideMode.ONCE, OverrideMode.CONTINUOUS)


def _is_narrower_demand(demand: Demand, other: Demand) -> bool:
    """Return whether a demand offers the boot of another demand, or the disk, and only if the other demand does so."""
    if demand.disk not in (other.disk, DiskBoot.FIRMWARE_ORDER) or demand.power not in (other.power, "None"):
        return False
    same_preconditions = demand.preconditions == other.preconditions
    may_wait = demand.preconditions.requirements or other.preconditions.requirements
    if may_wait and demand.boot_while_waiting != other.boot_while_waiting:
        return False
    if demand.boot is None:  # a server that waits boots its policy's boot if this boot does not write disks
        return same_preconditions if other.boot is None else other.writes_disk and not other.preconditions.requirements
    if demand.boot != other.boot or not covers_condition(other.condition, demand.condition):
        return False
    if demand.waits is not other.waits and not (demand.waits and demand.writes_disk):
        return False  # without the wait, the boot comes earlier; with the wait, the disk replaces a harmless boot
    if not same_preconditions and not (
        demand.preconditions.waits_as_long_as(other.preconditions) and demand.writes_disk
    ):
        return False
    if not demand.writes_disk and not covers_condition(demand.condition, other.condition):
        return False  # for some records, the disk would replace a boot that writes no disk
    return _OVERRIDES.index(demand.override) <= _OVERRIDES.index(other.override)
