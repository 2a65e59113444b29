"""Which boots that write disks a decision can newly ask for: what the guard maxReinstalls counts."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from gitboot.jsonio import format_instant
from gitboot.model.boot_policy import NetworkBoot, OverrideMode, PolicyWait
from gitboot.resolve.server_decision import Boot, Decision, MaintenanceDecision, PolicyDecision
from gitboot.review.harmless_changes import Demand, NotProvisioned, Span, covers, instants, spans


class Why(StrEnum):
    """By what a disk-writing boot can be asked for that could not be before."""

    PROVISION = "provision"  # raised
    ATTEMPTS = "attempts"  # raised
    BOOTS = "boots"  # raised: how many times the image's installer boots
    IMAGE = "image"  # another one under OnImageChange or Always
    POLICY = "policy"  # there was none, or the server was parked
    NETWORK_BOOT = "networkBoot"
    WAIT = "waitFor"  # PowerOff no more: it may be installed while it runs
    OVERRIDE = "override"  # from None: it was left to the firmware whether it boots so
    MAC = "MAC"  # another server's: the machine behind it boots what this one does
    SERIAL = "serial"  # the same by its serial number
    ADDRESS = "address"  # the same by the IP address that its firmware asks from
    UUID = "UUID"  # the same by its UUID in the other byte order, or by the UUID that its BMC shows
    NAME = "name"  # the same by the name of its document or its xname
    NID = "nid"  # the same by the number that OpenCHAMI gives a node
    WRITES_DISK = "writesDisk"  # what it booted before wrote no disk
    MAINTENANCE = "maintenance"  # added, or its image, networkBoot, run or window changed
    UNCOVERED = "uncovered"  # a maintenance that had hidden it is gone
    STOPPED = "stopped"  # boots that write disks were, and are no more
    CLAIM = "claim"  # an image that claims for the first time to write no disk: see `gitboot.diff.disk_claims`
    CLAIM_OF_BOOT = "claim of boot"  # such an image, with what no server was offered with it


class Reinstall(NamedTuple):
    """One way in which a server's disks can newly be written."""

    why: Why
    old: str | None  # what is different: the number, the image, the policy …
    new: str | None
    maintenance: str | None = None  # None: under the policy


def reinstalls(old: Decision, new: Decision) -> tuple[Reinstall, ...]:
    """Every way in which ``new`` can ask for a disk-writing boot that ``old`` could not.

    No record is looked at, so this is what may happen, whatever a server was provisioned with. What is made once for
    a provision key is the same boot whichever pool asks for it, and whichever image belongs to it.
    """
    return tuple(dict.fromkeys(_asked_anew(old, new)))


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


def _asked_anew(old: Decision, new: Decision) -> Iterator[Reinstall]:
    """For each span of time in which ``new`` asks for a disk-writing boot that ``old`` does not: what is different."""
    times = instants(old, new)
    before, after = list(spans(old, times)), list(spans(new, times))
    for number, is_now in enumerate(after):
        ask = is_now.ask
        if ask.writes_disk and not _is_asked(ask, before[number:]):
            was = before[number].ask
            if old.stopped and not new.stopped:
                yield Reinstall(Why.STOPPED, None, None, ask.maintenance)
            elif ask.maintenance is None:
                yield from _under_policy(old, new, was)
            else:
                yield from _under_maintenance(old, new, was, ask.maintenance)


def _is_asked(ask: Demand, spans: list[Span]) -> bool:
    """Whether a disk-writing boot is asked for in the first of these spans, or its provision key there or later."""
    here = spans[0].ask
    if _asks_as_much(here, ask) and here.image == ask.image:
        return True
    if not isinstance(ask.when, NotProvisioned):
        return False
    return any(_asks_as_much(span.ask, ask) for span in spans if isinstance(span.ask.when, NotProvisioned))


def _asks_as_much(was: Demand, ask: Demand) -> bool:
    as_soon = ask.waits or not was.waits
    return was.writes_disk and as_soon and covers(was.when, ask.when) and (_sets(was) or not _sets(ask))


def _sets(ask: Demand) -> bool:
    return ask.override is not OverrideMode.NONE


def _under_policy(old: Decision, new: Decision, was: Demand) -> Iterator[Reinstall]:
    before, after = old.policy, new.policy
    assert after is not None  # noqa: S101 - it asks for a boot
    assert after.boot is not None  # noqa: S101
    if before is None:
        yield Reinstall(Why.POLICY, None, after.policy)
        return
    found = tuple(_differing(before, after, after.boot))
    if not found and was.maintenance is not None:
        found = (Reinstall(Why.UNCOVERED, was.maintenance, None),)
    yield from found


def _differing(before: PolicyDecision, after: PolicyDecision, boot: Boot) -> Iterator[Reinstall]:
    if before.network_boot is not after.network_boot:
        yield Reinstall(Why.NETWORK_BOOT, before.network_boot, after.network_boot)
    if before.boot is None or not before.boot.writes_disk:
        yield Reinstall(Why.WRITES_DISK, before.boot.image if before.boot else None, boot.image)
    elif before.boot.image != boot.image and after.network_boot is not NetworkBoot.ONCE:
        yield Reinstall(Why.IMAGE, before.boot.image, boot.image)
    if after.network_boot in _BY_KEY and after.provision > before.provision:
        yield Reinstall(Why.PROVISION, str(before.provision), str(after.provision))
    if after.network_boot in _BY_KEY and after.attempts > before.attempts:
        yield Reinstall(Why.ATTEMPTS, str(before.attempts), str(after.attempts))
    if after.network_boot in _BY_KEY and before.boot is not None and boot.boots > before.boot.boots:
        yield Reinstall(Why.BOOTS, str(before.boot.boots), str(boot.boots))
    if before.wait_for is not after.wait_for and after.wait_for is PolicyWait.NONE:
        yield Reinstall(Why.WAIT, before.wait_for, after.wait_for)
    if before.override is OverrideMode.NONE and after.override is not OverrideMode.NONE:
        yield Reinstall(Why.OVERRIDE, before.override, after.override)


def _under_maintenance(old: Decision, new: Decision, was: Demand, name: str) -> Iterator[Reinstall]:
    before, after = (next((each for each in its.maintenances if each.name == name), None) for its in (old, new))
    assert after is not None  # noqa: S101 - it asks for a boot
    if before is None or _asked(before) != _asked(after):
        yield Reinstall(Why.MAINTENANCE, _told(before) if before else None, _told(after), name)
    elif before.override is not after.override:
        yield Reinstall(Why.OVERRIDE, before.override, after.override, name)
    else:
        yield Reinstall(Why.UNCOVERED, was.maintenance, None, name)


def _asked(maintenance: MaintenanceDecision) -> tuple[object, ...]:
    """All that decides which disk-writing boots a maintenance asks for, and when."""
    image = maintenance.boot.image if maintenance.boot is not None and maintenance.boot.writes_disk else None
    return image, maintenance.network_boot, maintenance.run, maintenance.start, maintenance.end


def _told(maintenance: MaintenanceDecision) -> str:
    image = maintenance.boot.image if maintenance.boot else "local disk"
    start, end = (format_instant(each) if each else "-" for each in (maintenance.start, maintenance.end))
    return f"{image}, {maintenance.network_boot}, run {maintenance.run}, [{start}, {end})"


def may_be_installed(asked: tuple[Reinstall, ...]) -> bool:
    """Return whether the record of a server can show that all of ``asked`` is installed already.

    A record has what a policy has installed on this machine. It does not have what other machines boot, nor whether an
    image really writes no disk.
    """
    return bool(asked) and all(each.maintenance is None and each.why in _OF_POLICY for each in asked)


RAISED: Final = frozenset({Why.PROVISION, Why.ATTEMPTS, Why.BOOTS})  # what hardly any record shows as installed
_OF_POLICY: Final = RAISED | {
    *(Why.IMAGE, Why.POLICY, Why.NETWORK_BOOT, Why.WAIT, Why.OVERRIDE, Why.WRITES_DISK, Why.UNCOVERED),
}


def asks_at_once(asked: tuple[Reinstall, ...]) -> bool:
    """Whether the policy asks for its boot whatever was provisioned before."""
    return any(each.maintenance is None for each in asked)
