"""Identities by which machines ask for boots: which machine lost one, and which server newly gets one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gitboot.fleet.identities import LostIdentity, Machine, Mark
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.fleet import Output
from gitboot.model.scalars.machines import (
    SystemUuid,
    byte_orders,
    is_placeholder_mac,
    is_placeholder_serial,
    lookup_uuids,
)
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Decision, Host
from gitboot.review.reinstalls import Reinstall, Why


class GainedIdentity(NamedTuple):
    """An identity by which a machine newly gets an install boot of a server."""

    kind: str
    value: str
    server: str
    uuid: SystemUuid  # of the server
    replaces: SystemUuid | None  # the UUID of the same machine before its board was replaced
    is_counted: bool  # whether the older commit shows that it was another server's, and the comparison counts that
    is_new: bool  # whether the server had it not at all in the older commit

    @property
    def mark(self) -> Mark:
        return self.kind, self.value


class Inheritance(NamedTuple):
    """An identity by which a machine that was perhaps installed newly gets an install boot of another server."""

    server: str
    kind: str
    value: str
    uuid: SystemUuid  # of the machine
    machine: str  # the name that it had last, or its UUID

    def __str__(self) -> str:
        return f"{self.server} gets {self.value}, the {_WORDS[Why(self.kind)]} of {self.machine}"


_WORDS: Final = {
    Why.MAC: "MAC address",
    Why.SERIAL: "serial number",
    Why.ADDRESS: "address",
    Why.UUID: "UUID",
    Why.NAME: "name",
    Why.NID: "nid",
}


class Described(NamedTuple):
    """What one commit says of a server."""

    decision: Decision
    machine: Machine
    host: Host
    labels: Mapping[str, str]
    outputs: Collection[Output]

    def identities(self) -> Iterator[Mark]:
        """Return every identity of the machine, also of interfaces that it may not boot from."""
        yield from _of_machine(self.machine)
        yield from self._of_network()

    def lookups(self) -> Iterator[Mark]:
        """Return every identity by which the machine can ask for its boot."""
        idle = {nic.mac for nic in self.host.nics if not nic.boots}
        yield from (mark for mark in _of_machine(self.machine) if mark[0] != Why.MAC or mark[1] not in idle)
        yield from self._of_network()

    def _of_network(self) -> Iterator[Mark]:
        yield from ((Why.ADDRESS, address) for nic in self.host.nics for address in nic.addresses)
        if Output.BSS in self.outputs:
            names = {self.machine.name, self.labels.get("xname", self.machine.name)}
            yield from ((Why.NAME, name) for name in sorted(names))
            if (nid := self.labels.get("nid")) is not None:
                yield Why.NID, nid


def _of_machine(machine: Machine) -> Iterator[Mark]:
    """Return the identities of a machine that the ledger stores with its description."""
    yield from ((Why.MAC, mac) for mac in machine.macs if not is_placeholder_mac(mac))
    reports = machine.bmc.reports_serial if machine.bmc is not None else None
    serials = (each for each in (machine.serial, reports) if each is not None and not is_placeholder_serial(each))
    yield from ((Why.SERIAL, serial) for serial in sorted({each.upper() for each in serials}))
    shown = machine.bmc.reports_uuid if machine.bmc is not None else None
    uuids = (each for each in (machine.uuid, shown) if each is not None and lookup_uuids(each))
    yield from ((Why.UUID, uuid) for uuid in sorted({byte_orders(each)[0] for each in uuids}))


def installing(described: Described | None) -> dict[Mark, None]:
    """Return the identities by which a machine can get an install boot, each once, in a fixed order.

    An address counts only if firmware fetches a file of such a boot.
    """
    if described is None or described.decision.stopped or described.decision.lifecycle is not Lifecycle.ACTIVE:
        return {}
    policy = described.decision.policy
    boots = [each.boot for each in described.decision.maintenances]
    if policy is not None and policy.network_boot is not NetworkBoot.NEVER:
        boots.append(policy.boot)
    writing = [boot for boot in boots if boot is not None and boot.writes_disk]
    if not writing:
        return {}
    by_firmware = any(boot.http_boot_file is not None for boot in writing)
    return dict.fromkeys(mark for mark in described.lookups() if by_firmware or mark[0] != Why.ADDRESS)


def of_others(marks: Iterable[Mark], owners: Mapping[Mark, str], was: str | None) -> tuple[Reinstall, ...]:
    """Return the reinstallations that identities of other servers allow.

    ``owners`` are the servers of the older commit by their identities, ``was`` is the name of the same server there.
    """
    return tuple(Reinstall(Why(mark[0]), owners[mark], mark[1]) for mark in marks if owners.get(mark, was) != was)


def gained(old: Described | None, new: Described, others: Collection[Reinstall]) -> Iterator[GainedIdentity]:
    """Return the identities by which a machine can get an install boot of ``new`` and could not of ``old``.

    ``others`` are those that the comparison of the two commits counts.
    """
    before, counted = installing(old), {(each.why, each.new) for each in others}
    had = set(old.identities()) if old is not None else set()
    machine = new.machine
    for mark in installing(new):
        if mark not in before:
            yield GainedIdentity(*mark, machine.name, machine.uuid, machine.replaces, mark in counted, mark not in had)


def lost(old: Described, new: Described | None) -> Iterator[LostIdentity]:
    """Return the identities that the machine of ``old`` has no more in ``new``, the description of the same server."""
    kept = set(new.identities()) if new is not None else set()
    policy = old.decision.policy
    netboots = policy is not None and policy.network_boot is NetworkBoot.ALWAYS
    yield from (LostIdentity(*mark, old.machine.uuid, netboots) for mark in old.identities() if mark not in kept)


def lost_by_machine(old: Machine, new: Machine | None) -> Iterator[LostIdentity]:
    """Return the identities of a machine that another description of it lacks, as far as a `Machine` has them."""
    kept = set(_of_machine(new)) if new is not None else set()
    yield from (LostIdentity(*mark, old.uuid) for mark in _of_machine(old) if mark not in kept)


def still_lost(
    before: frozenset[LostIdentity], newly_lost: Iterable[LostIdentity], newly_gained: Iterable[GainedIdentity]
) -> frozenset[LostIdentity]:
    """Return the lost identities after a commit was accepted.

    If a server gets install boots by an identity in an accepted commit, the guard has let that pass: its machine is the
    only one that the identity can belong to from then on.
    """
    now = before.union(newly_lost)
    owners = {each.mark: each.uuid for each in newly_gained}
    return frozenset(each for each in now if owners.get(each.mark, each.uuid) == each.uuid) if owners else now
