"""Which boots that write disks a decision can newly ask for: what the guard maxReinstalls counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from gitboot.model.policy import NetworkBoot, OverrideMode
from gitboot.model.scalars import format_instant
from gitboot.plan import Boot, Decision, MaintenanceDecision, PolicyDecision


class Why(StrEnum):
    """By what a disk-writing boot can be asked for that could not be before."""

    PROVISION = "provision"  # raised
    IMAGE = "image"  # another one under OnImageChange or Always
    POLICY = "policy"
    NETWORK_BOOT = "networkBoot"
    OVERRIDE = "override"  # from None: it was left to the firmware whether it boots so
    MAC = "MAC"  # another server's: the machine behind it boots what this one does
    SERIAL = "serial"  # the same by its serial number
    WRITES_DISK = "writesDisk"  # what it booted before wrote no disk
    MAINTENANCE = "maintenance"  # added, or its image, networkBoot, run or window changed
    UNCOVERED = "uncovered"  # a maintenance that had hidden it is gone


Mark = tuple[str, str]  # what it is, and its value, as in gitboot.load.machines


class Reinstall(NamedTuple):
    """One way in which a server's disks can newly be written."""

    why: Why
    old: str | None  # what is different: the number, the image, the policy …
    new: str | None
    maintenance: str | None = None  # None: under the policy


def reinstalls(old: Decision, new: Decision) -> tuple[Reinstall, ...]:
    """Every way in which ``new`` can ask for a disk-writing boot that ``old`` could not.

    No record is looked at, so this is what may happen, whatever a server was provisioned with.
    """
    return (*_under_policy(old, new), *_under_maintenances(old, new))


def marks(decision: Decision) -> Iterator[Mark]:
    """What a machine is found by as this server, beside its UUID."""
    yield from ((Why.MAC, mac) for mac in decision.macs)
    if decision.serial is not None:
        yield Why.SERIAL, decision.serial.upper()


def behind_marks(new: Decision, owners: Mapping[Mark, str]) -> tuple[Reinstall, ...]:
    """The same for machines with marks that were another server's, by ``owners``."""
    policy = new.policy
    asks = policy is not None and _writes(policy.boot) and policy.network_boot is not NetworkBoot.NEVER
    if not asks and not any(_writes(maintenance.boot) for maintenance in new.maintenances):
        return ()
    return tuple(Reinstall(Why(mark[0]), owners[mark], mark[1]) for mark in marks(new) if mark in owners)


def wants_install(decision: Decision) -> bool:
    """Whether a server that is new wants a first boot, or boots something else that writes its disks."""
    policy = decision.policy
    if policy is not None and policy.boot is not None:
        if policy.network_boot in _BY_KEY and policy.provision > 0:  # with 0 it is adopted as it stands
            return True
        if policy.network_boot is NetworkBoot.ALWAYS and policy.boot.writes_disk:
            return True
    return any(_writes(maintenance.boot) for maintenance in decision.maintenances)


_BY_KEY: Final = frozenset({NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE})


def _writes(boot: Boot | None) -> bool:
    return boot is not None and boot.writes_disk


def _under_policy(old: Decision, new: Decision) -> Iterator[Reinstall]:
    before, after = old.policy, new.policy
    if after is None or after.boot is None or not after.boot.writes_disk or after.network_boot is NetworkBoot.NEVER:
        return
    if before is None or before.policy != after.policy:
        yield Reinstall(Why.POLICY, before.policy if before else None, after.policy)
    if before is None:
        return
    if before.network_boot is not after.network_boot:
        yield Reinstall(Why.NETWORK_BOOT, before.network_boot, after.network_boot)
    if before.boot is None or not before.boot.writes_disk:
        yield Reinstall(Why.WRITES_DISK, before.boot.image if before.boot else None, after.boot.image)
    elif before.boot.image != after.boot.image and after.network_boot is not NetworkBoot.ONCE:
        yield Reinstall(Why.IMAGE, before.boot.image, after.boot.image)
    if after.network_boot in _BY_KEY and after.provision > before.provision:
        yield Reinstall(Why.PROVISION, str(before.provision), str(after.provision))
    if _sets_newly(before, after):
        yield Reinstall(Why.OVERRIDE, before.override, after.override)
    if (by := _without_end(old)) and not _without_end(new):
        yield Reinstall(Why.UNCOVERED, by, None)


def _sets_newly(before: PolicyDecision | MaintenanceDecision, after: PolicyDecision | MaintenanceDecision) -> bool:
    return before.override is OverrideMode.NONE and after.override is not OverrideMode.NONE


def _without_end(decision: Decision) -> str | None:
    """A maintenance that no instant is outside of, so that the policy never counts."""
    endless = (each.name for each in decision.maintenances if each.start is None and each.end is None)
    return next(endless, None)


def _under_maintenances(old: Decision, new: Decision) -> Iterator[Reinstall]:
    before = {maintenance.name: maintenance for maintenance in old.maintenances}
    for after in new.maintenances:
        if not _writes(after.boot):
            continue
        was = before.get(after.name)
        if was is None or _asked(was) != _asked(after):
            yield Reinstall(Why.MAINTENANCE, _told(was) if was else None, _told(after), after.name)
        elif _sets_newly(was, after):
            yield Reinstall(Why.OVERRIDE, was.override, after.override, after.name)
        elif gone := _hiding(was, old) - _hiding(after, new):
            yield Reinstall(Why.UNCOVERED, min(gone)[0], None, after.name)


def _asked(maintenance: MaintenanceDecision) -> tuple[object, ...]:
    """All that decides which disk-writing boots a maintenance asks for, and when."""
    image = maintenance.boot.image if maintenance.boot is not None and maintenance.boot.writes_disk else None
    return image, maintenance.network_boot, maintenance.run, maintenance.start, maintenance.end


def _told(maintenance: MaintenanceDecision) -> str:
    image = maintenance.boot.image if maintenance.boot else "local disk"
    start, end = (format_instant(each) if each else "-" for each in (maintenance.start, maintenance.end))
    return f"{image}, {maintenance.network_boot}, run {maintenance.run}, [{start}, {end})"


def _hiding(maintenance: MaintenanceDecision, decision: Decision) -> set[tuple[str, str]]:
    """The maintenances that win over this one while both are active, with their windows."""
    return {
        (other.name, f"{other.start} {other.end}")
        for other in decision.maintenances
        if other.priority > maintenance.priority and other.overlaps(maintenance)
    }


def asks_at_once(asked: tuple[Reinstall, ...]) -> bool:
    """Whether the policy asks for its boot whatever was provisioned before.

    Another policy alone does not: a server that is provisioned with its number stays as it is installed.
    """
    return any(each.maintenance is None and (each.why is not Why.POLICY or each.old is None) for each in asked)
