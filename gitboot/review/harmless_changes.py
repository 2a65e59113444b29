"""Harmless changes: changes that no guard holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

from msgspec import Struct

from gitboot.model.boot_policy import DiskBoot, NetworkBoot, OverrideMode, PolicyWait
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Boot, Decision, MaintenanceDecision, PolicyDecision


class EachTime(Struct, frozen=True):
    """Whatever is known: at each boot."""


class NotProvisioned(Struct, frozen=True):
    """While a provision key is not provisioned."""

    number: int
    image: str | None  # that belongs to the key, under OnImageChange; None: under Once
    attempts: int = 1
    boots: int = 1  # of each


class NotRun(Struct, frozen=True):
    """While a maintenance's run was not made."""

    maintenance: str
    run: int
    start: datetime | None
    end: datetime | None


When = EachTime | NotProvisioned | NotRun


def covers(one: When, other: When) -> bool:
    """Whether a boot is offered for each record under ``one`` for which it is under ``other``."""
    match one, other:
        case (EachTime(), _):
            return True
        case (NotProvisioned(), NotProvisioned()):  # an attempt counts for both
            as_often = other.attempts <= one.attempts and other.boots <= one.boots
            return as_often and other.number <= one.number and other.image == one.image
        case (NotRun(), NotRun()) if (one.maintenance, one.run) == (other.maintenance, other.run):
            # Whoever has made one has made the other, wherever its window was moved to.
            if other.start is None or one.end is None or other.start < one.end:
                return True
            return one.start is not None and other.start <= one.start
    return False


class Demand(Struct, frozen=True, kw_only=True):
    """What is asked for in one span of time."""

    boot: Boot | None  # None: the local disk, or nothing
    when: When = EachTime()
    override: OverrideMode = OverrideMode.NONE
    power: str = "None"
    waits: bool = False  # until the machine is off
    disk: DiskBoot = DiskBoot.FIRMWARE_ORDER
    maintenance: str | None = None  # None: the policy asks

    @property
    def writes_disk(self) -> bool:
        return self.boot is not None and self.boot.writes_disk

    @property
    def image(self) -> str | None:
        return self.boot.image if self.boot is not None else None


NOTHING: Final = Demand(boot=None)


class Span(Struct, frozen=True, kw_only=True):
    """From one instant to the next, as far as windows tell: what counts, and what does once a window has ended."""

    ask: Demand
    beneath: tuple[Demand, ...]  # of the policy, and of maintenances that lose


def spans(decision: Decision, instants: tuple[datetime, ...]) -> Iterator[Span]:
    """What ``decision`` asks for from each of these instants on; each window's ends are among them."""
    if decision.lifecycle is not Lifecycle.ACTIVE:
        yield from (Span(ask=NOTHING, beneath=()) for _ in instants)
        return
    policy = _of_policy(decision.policy)
    always = policy.boot is not None and not policy.writes_disk and isinstance(policy.when, EachTime)
    instead = policy if always else Demand(boot=None, disk=policy.disk)  # of a boot that is stopped
    for at in instants:
        active = [each for each in decision.maintenances if each.active(at)]
        active.sort(key=lambda maintenance: maintenance.priority, reverse=True)
        asks = [*map(_of_maintenance, active), policy]
        if decision.stopped:
            asks = [instead if ask.writes_disk else ask for ask in asks]
        yield Span(ask=asks[0], beneath=tuple(asks[1:]))


def instants(*decisions: Decision) -> tuple[datetime, ...]:
    """Every instant at which a window of these decisions opens or ends, after one that lies before all."""
    found = {datetime.min.replace(tzinfo=UTC)}
    for decision in decisions:
        for maintenance in decision.maintenances:
            found.update(each for each in (maintenance.start, maintenance.end) if each is not None)
    return tuple(sorted(found))


def _of_policy(policy: PolicyDecision | None) -> Demand:
    if policy is None:
        return NOTHING
    if policy.boot is None or policy.network_boot is NetworkBoot.NEVER:
        return Demand(boot=None, disk=policy.disk_boot)
    when: When = EachTime()
    if policy.network_boot is not NetworkBoot.ALWAYS:
        of_image = policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE
        image = policy.boot.image if of_image else None
        when = NotProvisioned(policy.provision, image, policy.attempts, policy.boot.boots)
    return Demand(
        boot=policy.boot,
        when=when,
        override=policy.override,
        power=policy.power,
        waits=policy.wait_for is PolicyWait.POWER_OFF and isinstance(when, NotProvisioned),
        disk=policy.disk_boot,
    )


def _of_maintenance(maintenance: MaintenanceDecision) -> Demand:
    waves = (
        maintenance.power,
        maintenance.max_unavailable,
        maintenance.max_unavailable_per or "all",
        f"run {maintenance.run}",
    )
    power = ", ".join(waves) if maintenance.power != "None" else "None"
    if maintenance.boot is None:
        return Demand(boot=None, power=power, maintenance=maintenance.name)
    when: When = EachTime()
    if maintenance.network_boot is NetworkBoot.ONCE:
        when = NotRun(maintenance.name, maintenance.run, maintenance.start, maintenance.end)
    return Demand(
        boot=maintenance.boot, when=when, override=maintenance.override, power=power, maintenance=maintenance.name
    )


def is_less(old: Decision, new: Decision) -> bool:
    """Whether ``new`` offers nothing that ``old`` did not: such a change is held by no guard."""
    is_active_as_before = old.lifecycle is new.lifecycle or (old.lifecycle, new.lifecycle) == _PARKED
    if not is_active_as_before or new.provision > old.provision or _same(new) != _same(old):
        return False
    times = instants(old, new)
    before, after = list(spans(old, times)), list(spans(new, times))
    return all(_is_no_more(is_now.ask, before[number:]) for number, is_now in enumerate(after))


def _is_no_more(ask: Demand, spans: list[Span]) -> bool:
    """Whether ``ask`` offers nothing that the first of these spans does not, which the others follow."""
    here, key = spans[0], ask.when
    if _is_within(ask, here.ask):
        return True
    # A policy has to ask by itself for a boot that writes a disk, by this provision key, in one of these spans.
    is_asked_later = isinstance(key, NotProvisioned) and any(
        isinstance(span.ask.when, NotProvisioned) and covers(span.ask.when, key) for span in spans
    )
    return (is_asked_later or not ask.writes_disk) and any(_is_within(ask, each) for each in here.beneath)


_PARKED: Final = (Lifecycle.ACTIVE, Lifecycle.PARKED)
_COMPARED: Final = frozenset({"lifecycle", "provision", "policy", "maintenances", "stopped", "withheld"})
_same: Final = attrgetter(*sorted({each.name for each in fields(Decision) if each.compare} - _COMPARED))


def _is_within(ask: Demand, other: Demand) -> bool:
    if ask.disk not in (other.disk, DiskBoot.FIRMWARE_ORDER) or ask.power not in (other.power, "None"):
        return False
    if ask.boot is None:
        return other.boot is None or other.writes_disk
    if ask.boot != other.boot or not covers(other.when, ask.when):
        return False
    if ask.waits is not other.waits and not (ask.waits and ask.writes_disk):
        return False  # without waiting it is offered sooner; what waits leaves the disk in place of what writes none
    if not ask.writes_disk and not covers(ask.when, other.when):
        return False  # for some record the disk would take the place of what writes none
    return _OVERRIDES.index(ask.override) <= _OVERRIDES.index(other.override)


_OVERRIDES: Final = (OverrideMode.NONE, OverrideMode.ONCE, OverrideMode.CONTINUOUS)  # each sets more than those before
