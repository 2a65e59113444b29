"""Harmless changes: find changes that guards ignore, because a server is offered no new boot."""

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
    """The machine boots this way at every start, regardless of its record."""


class UntilProvisioned(Struct, frozen=True):
    """The machine boots this way until a provision key is provisioned."""

    number: int
    image: str | None  # the image in the key with OnImageChange; None with Once
    attempts: int = 1
    boots: int = 1  # how many boots each attempt needs


class UntilRun(Struct, frozen=True):
    """The machine boots this way until a run of a maintenance is consumed."""

    maintenance: str
    run: int
    start: datetime | None
    end: datetime | None


BootCondition = EveryBoot | UntilProvisioned | UntilRun


def covers(one: BootCondition, other: BootCondition) -> bool:
    """Return whether ``one`` permits a boot for every record for which ``other`` permits the boot."""
    match one, other:
        case (EveryBoot(), _):
            return True
        case (UntilProvisioned(), UntilProvisioned()):  # attempts count for both conditions
            as_often = other.attempts <= one.attempts and other.boots <= one.boots
            return as_often and other.number <= one.number and other.image == one.image
        case (UntilRun(), UntilRun()) if (one.maintenance, one.run) == (other.maintenance, other.run):
            # A run that was consumed in one window is also consumed in the other one, even if the window was moved.
            if other.start is None or one.end is None or other.start < one.end:
                return True
            return one.start is not None and other.start <= one.start
    return False


class Demand(Struct, frozen=True, kw_only=True):
    """The boot that a decision demands during a span of time."""

    boot: Boot | None  # None: the local disk or no plan
    when: BootCondition = EveryBoot()
    override: OverrideMode = OverrideMode.NONE
    power: str = "None"
    waits: bool = False  # whether the boot waits until the machine is off
    requirements: frozenset[str] = NO_REQUIREMENTS  # what must be true before a maintenance
    is_approved: bool = True  # whether the fleet contains the approval of the maintenance, if it needs one
    # The digest and the run for which URLs must answer before the boot; None: no URL has to.
    asked_for: tuple[str | None, str | None] = (None, None)
    disk: DiskBoot = DiskBoot.FIRMWARE_ORDER
    maintenance: str | None = None  # None: the policy demands the boot

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk

    @property
    def image(self) -> str | None:
        return self.boot.image if self.boot is not None else None


NO_DEMAND: Final = Demand(boot=None)


class Span(Struct, frozen=True, kw_only=True):
    """The demands on a server between two consecutive window boundaries."""

    demand: Demand
    lower_demands: tuple[Demand, ...]  # the demands of the policy and of maintenances with lower priorities


def compute_spans(decision: Decision, instants: tuple[datetime, ...]) -> Iterator[Span]:
    """Yield the span that begins at each instant. The instants must include the start and the end of each window."""
    if decision.lifecycle is not Lifecycle.ACTIVE:
        yield from (Span(demand=NO_DEMAND, lower_demands=()) for _ in instants)
        return
    policy = _policy_demand(decision.policy)
    always = policy.boot is not None and not policy.writes_disk and isinstance(policy.when, EveryBoot)
    instead = policy if always else Demand(boot=None, disk=policy.disk)  # the demand in place of a stopped boot
    for at in instants:
        active = [each for each in decision.maintenances if each.is_active(at)]
        active.sort(key=lambda maintenance: maintenance.priority, reverse=True)
        asks = [*map(_maintenance_demand, active), policy]
        if decision.stopped:
            asks = [instead if ask.writes_disk else ask for ask in asks]
        yield Span(demand=asks[0], lower_demands=tuple(asks[1:]))


def find_window_edges(*decisions: Decision) -> tuple[datetime, ...]:
    """Return the sorted times at which windows in the decisions start or end, after the minimum time."""
    found = {datetime.min.replace(tzinfo=UTC)}
    for decision in decisions:
        for maintenance in decision.maintenances:
            found.update(each for each in (maintenance.start, maintenance.end) if each is not None)
    return tuple(sorted(found))


def _policy_demand(policy: PolicyDecision | None) -> Demand:
    if policy is None:
        return NO_DEMAND
    if policy.boot is None or policy.network_boot is NetworkBoot.NEVER:
        return Demand(boot=None, disk=policy.disk_boot)
    when: BootCondition = EveryBoot()
    if policy.network_boot is not NetworkBoot.ALWAYS:
        of_image = policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE
        image = policy.boot.image if of_image else None
        when = UntilProvisioned(policy.provision, image, policy.attempts, policy.boot.boots)
    return Demand(
        boot=policy.boot,
        when=when,
        override=policy.override,
        power=policy.power,
        waits=policy.wait_for is PolicyWait.POWER_OFF and isinstance(when, UntilProvisioned),
        disk=policy.disk_boot,
    )


def _maintenance_demand(maintenance: MaintenanceDecision) -> Demand:
    waves = (
        maintenance.power,
        maintenance.max_unavailable,
        maintenance.max_unavailable_per or "all",
        f"run {maintenance.run}",
    )
    power = ", ".join(waves) if maintenance.power != "None" else "None"
    needs, before = maintenance.requirements, maintenance.before
    is_approved = before is None or before.approval_file is None or before.is_approved
    asked_for: tuple[str | None, str | None] = (None, None)
    if before is not None:
        asked_for = (
            before.digest if before.approval_url is not None else None,
            maintenance.drain_key if before.drain_url is not None else None,
        )
    if maintenance.boot is None:
        return Demand(boot=None, power=power, maintenance=maintenance.name, requirements=needs, is_approved=is_approved)
    when: BootCondition = EveryBoot()
    if maintenance.network_boot is NetworkBoot.ONCE:
        when = UntilRun(maintenance.name, maintenance.run, maintenance.start, maintenance.end)
    return Demand(
        boot=maintenance.boot,
        when=when,
        override=maintenance.override,
        power=power,
        maintenance=maintenance.name,
        requirements=needs,
        is_approved=is_approved,
        asked_for=asked_for,
    )


def is_harmless(old: Decision, new: Decision) -> bool:
    """Return whether a new decision offers only boots that the old decision also offered.

    Guards ignore such a change.
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
    return all(_offers_no_more(is_now.demand, before[number:]) for number, is_now in enumerate(after))


def _offers_no_more(demand: Demand, spans: list[Span]) -> bool:
    """Return whether a demand offers no more than the first of the spans. The other spans follow it in time."""
    here, key = spans[0], demand.when
    if _is_within(demand, here.demand):
        return True
    # For an install boot, the policy itself must demand this provision key in one of the spans.
    is_asked_later = isinstance(key, UntilProvisioned) and any(
        isinstance(span.demand.when, UntilProvisioned) and covers(span.demand.when, key) for span in spans
    )
    return (is_asked_later or not demand.writes_disk) and any(_is_within(demand, each) for each in here.lower_demands)


_PARKED: Final = (Lifecycle.ACTIVE, Lifecycle.PARKED)
_COMPARED: Final = frozenset({"lifecycle", "provision", "policy", "maintenances", "stopped", "withheld"})
_get_compared_fields: Final = attrgetter(*sorted({each.name for each in fields(Decision) if each.compare} - _COMPARED))


def _is_within(demand: Demand, other: Demand) -> bool:
    if demand.disk not in (other.disk, DiskBoot.FIRMWARE_ORDER) or demand.power not in (other.power, "None"):
        return False
    if demand.power != "None" and not demand.requirements >= other.requirements:
        return False  # gitboot may reset the machine sooner
    if demand.is_approved and not other.is_approved and (demand.boot is not None or demand.power != "None"):
        return False  # a commit that adds an approval offers more
    if demand.boot is None:
        return other.boot is None or other.writes_disk
    if demand.boot != other.boot or not covers(other.when, demand.when):
        return False
    if demand.waits is not other.waits and not (demand.waits and demand.writes_disk):
        return False  # without the wait, the boot comes earlier; with it, the disk replaces a harmless boot
    needs_more = demand.requirements > other.requirements
    if demand.requirements != other.requirements and not (needs_more and demand.writes_disk):
        return False  # as with the wait
    if demand.requirements == other.requirements and demand.asked_for != other.asked_for:
        return False  # earlier answers may count only for one of them
    if other.is_approved and not demand.is_approved and not demand.writes_disk:
        return False  # the disk would replace a boot that writes no disk
    if not demand.writes_disk and not covers(demand.when, other.when):
        return False  # for some records, the disk would replace a boot that writes no disk
    return _OVERRIDES.index(demand.override) <= _OVERRIDES.index(other.override)


_OVERRIDES: Final = (OverrideMode.NONE, OverrideMode.ONCE, OverrideMode.CONTINUOUS)  # from weakest to strongest
