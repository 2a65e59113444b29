"""Reinstalls: find the install boots that a commit newly permits, and the identities that servers gain or lose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import IdentityKey, LostIdentity, Machine
from gitboot.jsonio import Digest, compute_digest, format_instant
from gitboot.model.boot_image import BootImage
from gitboot.model.boot_policy import RESETS, NetworkBoot, OverrideMode, PolicyWait
from gitboot.model.fields import to_yaml_value
from gitboot.model.fleet import Output
from gitboot.model.scalars import SystemUuid, byte_orders, is_placeholder_mac, is_placeholder_serial, lookup_uuids
from gitboot.model.server import Lifecycle
from gitboot.resolve.install_attempts import is_provisioned
from gitboot.resolve.plan_at_time import is_current_run_consumed
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Boot, Decision, Host, MaintenanceDecision, WithheldBoot
from gitboot.review.document_changes import ChangeKind, DocumentChange
from gitboot.review.harmless_changes import (
    BootCondition,
    Demand,
    DemandSpan,
    EveryBoot,
    UntilProvisioned,
    UntilRun,
    compute_spans,
    covers_condition,
    find_window_edges,
)


class ReinstallReason(StrEnum):
    """The reasons why a commit can reinstall a server."""

    PROVISION = "provision"  # raised
    ATTEMPTS = "attempts"  # raised
    BOOTS = "boots"  # the number of boots that the image's installer needs was raised
    IMAGE = "image"  # the image changed, with OnImageChange or Always
    POLICY = "policy"  # the server had no policy, or was parked
    RECORD = "record"  # as POLICY, but with provision 0: only the record shows whether the server is reinstalled
    NETWORK_BOOT = "networkBoot"
    WAIT = "waitFor"  # waitFor is no longer PowerOff, so gitboot may install a running server
    OVERRIDE = "override"  # the override is no longer None; before, the boot order of the firmware decided
    MAC = "MAC"  # the MAC address of another server, whose machine now gets the boots of this server
    SERIAL = "serial"  # the serial number of another server
    ADDRESS = "address"  # the IP address of another server, from which firmware fetches
    UUID = "UUID"  # the UUID of another server, in either byte order, or as its BMC shows it
    NAME = "name"  # the document name or the xname of another server
    NID = "nid"  # the node number that another server has in OpenCHAMI
    WRITES_DISK = "writesDisk"  # the previous boot did not write disks
    MAINTENANCE = "maintenance"  # the maintenance was added, or its image, networkBoot, run or window changed
    UNCOVERED = "uncovered"  # a maintenance with a higher priority was removed
    STOPPED = "stopped"  # install boots are no longer stopped
    CLAIM = "claim"  # An image with the new claim that it does not write disks.
    # An image with such a claim, and with arguments, scripts or templates with which it has not been used before.
    CLAIM_OF_BOOT = "claim of boot"


# the modes in which the record of a server decides whether it gets an install boot
_KEYED_MODES: Final = frozenset({NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE})


class Reinstall(NamedTuple):
    """One way in which a commit can cause a server to be reinstalled."""

    why: ReinstallReason
    old: str | None  # the value that differs, such as the provision number, the image or the policy
    new: str | None
    maintenance: str | None = None  # None: the policy causes the reinstallation


def find_reinstalls(old: Decision, new: Decision) -> tuple[Reinstall, ...]:
    """Return the ways in which a new decision permits an install boot that the old decision did not permit.

    The function does not use records, so the result may contain reinstallations of servers that are already installed
    and that gitboot would not reinstall. One-time boots with the same provision key count as the same boot, even if the
    policy or the image differs.
    """
    times = find_window_edges(old, new)
    before, after = list(compute_spans(old, times)), list(compute_spans(new, times))
    reinstalls: list[Reinstall] = []
    for number, span in enumerate(after):
        demand, old_demand = span.demand, before[number].demand
        if not demand.writes_disk or _is_already_offered(demand, before[number:]):
            continue
        if old.stopped and not new.stopped:
            reinstalls.append(Reinstall(ReinstallReason.STOPPED, None, None, demand.maintenance))
        elif demand.maintenance is None:
            reinstalls += _find_policy_reinstalls(old, new, old_demand)
        else:
            reinstalls.append(_build_maintenance_reinstall(old, new, old_demand, demand.maintenance))
    return tuple(dict.fromkeys(reinstalls))


def _is_already_offered(demand: Demand, spans: list[DemandSpan]) -> bool:
    """Return whether the spans already include an install boot.

    This is true if the first span requires the same install boot, or if any span requires the boot's provision key.
    """

    def covers_demand(offered: Demand) -> bool:
        is_soon_enough = demand.waits or not offered.waits
        is_soon_enough &= demand.preconditions.requirements >= offered.preconditions.requirements
        sets_override = offered.override is not OverrideMode.NONE or demand.override is OverrideMode.NONE
        return (
            offered.writes_disk
            and is_soon_enough
            and covers_condition(offered.condition, demand.condition)
            and sets_override
        )

    current = spans[0].demand
    if covers_demand(current) and current.image == demand.image:
        return True
    is_keyed = isinstance(demand.condition, UntilProvisioned)
    return is_keyed and any(
        covers_demand(each.demand) for each in spans if isinstance(each.demand.condition, UntilProvisioned)
    )


def _find_policy_reinstalls(old: Decision, new: Decision, old_demand: Demand) -> list[Reinstall]:
    before, after = old.policy, new.policy
    assert after is not None  # noqa: S101 - it asks for a boot
    assert after.boot is not None  # noqa: S101
    if before is None:
        # without a record, gitboot adopts the server
        only_by_record = after.network_boot in _KEYED_MODES and after.provision == 0
        return [Reinstall(ReinstallReason.RECORD if only_by_record else ReinstallReason.POLICY, None, after.policy)]
    image_before = before.boot.image if before.boot is not None else None
    boots_before = before.boot.boots if before.boot is not None else after.boot.boots
    is_keyed = after.network_boot in _KEYED_MODES
    wrote_disk = before.boot is not None and before.boot.writes_disk
    is_other_image = image_before != after.boot.image and after.network_boot is not NetworkBoot.ONCE
    reinstalls: list[Reinstall] = []
    if before.network_boot is not after.network_boot:
        reinstalls.append(Reinstall(ReinstallReason.NETWORK_BOOT, before.network_boot, after.network_boot))
    if not wrote_disk:
        reinstalls.append(Reinstall(ReinstallReason.WRITES_DISK, image_before, after.boot.image))
    if wrote_disk and is_other_image:
        reinstalls.append(Reinstall(ReinstallReason.IMAGE, image_before, after.boot.image))
    if is_keyed and after.provision > before.provision:
        reinstalls.append(Reinstall(ReinstallReason.PROVISION, str(before.provision), str(after.provision)))
    if is_keyed and after.attempts > before.attempts:
        reinstalls.append(Reinstall(ReinstallReason.ATTEMPTS, str(before.attempts), str(after.attempts)))
    if is_keyed and after.boot.boots > boots_before:
        reinstalls.append(Reinstall(ReinstallReason.BOOTS, str(boots_before), str(after.boot.boots)))
    if before.wait_for is not after.wait_for and after.wait_for is PolicyWait.NONE:
        reinstalls.append(Reinstall(ReinstallReason.WAIT, before.wait_for, after.wait_for))
    if before.override is OverrideMode.NONE and after.override is not OverrideMode.NONE:
        reinstalls.append(Reinstall(ReinstallReason.OVERRIDE, before.override, after.override))
    if not reinstalls and old_demand.maintenance is not None:
        reinstalls.append(Reinstall(ReinstallReason.UNCOVERED, old_demand.maintenance, None))
    return reinstalls


def _build_maintenance_reinstall(old: Decision, new: Decision, old_demand: Demand, name: str) -> Reinstall:
    def list_decisive_fields(maintenance: MaintenanceDecision) -> tuple[object, ...]:
        image = maintenance.boot.image if maintenance.boot is not None and maintenance.boot.writes_disk else None
        window = maintenance.start, maintenance.end
        return image, maintenance.network_boot, maintenance.run, *window, maintenance.requirements

    def format_maintenance(maintenance: MaintenanceDecision) -> str:
        image = maintenance.boot.image if maintenance.boot else "local disk"
        start, end = (format_instant(each) if each else "-" for each in (maintenance.start, maintenance.end))
        needs = "".join(f", needs {each}" for each in sorted(maintenance.requirements))
        return f"{image}, {maintenance.network_boot}, run {maintenance.run}, [{start}, {end}){needs}"

    before, after = (
        next((each for each in decision.maintenances if each.name == name), None) for decision in (old, new)
    )
    assert after is not None  # noqa: S101 - it asks for a boot
    if before is None or list_decisive_fields(before) != list_decisive_fields(after):
        return Reinstall(
            ReinstallReason.MAINTENANCE, format_maintenance(before) if before else None, format_maintenance(after), name
        )
    if before.override is not after.override:
        return Reinstall(ReinstallReason.OVERRIDE, before.override, after.override, name)
    return Reinstall(ReinstallReason.UNCOVERED, old_demand.maintenance, None, name)


def wants_install(decision: Decision) -> bool:
    """Return whether a new server would get an install boot from its policy or from a maintenance."""
    policy = decision.policy
    if policy is not None and policy.boot is not None:
        # gitboot adopts a server with provision 0
        is_pending = policy.network_boot in _KEYED_MODES and policy.provision > 0
        if is_pending or (policy.network_boot is NetworkBoot.ALWAYS and policy.boot.writes_disk):
            return True
    return any(each.boot is not None and each.boot.writes_disk for each in decision.maintenances)


# For these reasons, a record rarely shows that the server is already installed.
RAISED_NUMBERS: Final = frozenset({ReinstallReason.PROVISION, ReinstallReason.ATTEMPTS, ReinstallReason.BOOTS})
_POLICY_REASONS: Final = RAISED_NUMBERS | {
    ReinstallReason.IMAGE,
    ReinstallReason.POLICY,
    ReinstallReason.RECORD,
    ReinstallReason.NETWORK_BOOT,
    ReinstallReason.WAIT,
    ReinstallReason.OVERRIDE,
    ReinstallReason.WRITES_DISK,
    ReinstallReason.UNCOVERED,
}


def may_be_already_installed(reinstalls: tuple[Reinstall, ...]) -> bool:
    """Return whether a record could show that a server is already installed, so that gitboot would not reinstall it.

    A machine's record shows which installations the machine has had because of its policy. The record does not show the
    boots of other machines, or whether an image really does not write disks.
    """
    return bool(reinstalls) and all(each.maintenance is None and each.why in _POLICY_REASONS for each in reinstalls)


# Identities of servers


class GainedIdentity(NamedTuple):
    """An identity through which a machine can newly get the install boots of a server after a commit."""

    kind: str
    value: str
    server: str
    uuid: SystemUuid  # the UUID of the server
    replaces: SystemUuid | None  # the UUID of the same machine before its board was replaced
    is_counted: bool  # whether the comparison of the commits shows that a server in the older commit had the identity
    is_new: bool  # whether the server did not have the identity in the older commit

    @property
    def identity(self) -> IdentityKey:
        return self.kind, self.value


_IDENTITY_NAMES: Final = {
    ReinstallReason.MAC: "MAC address",
    ReinstallReason.SERIAL: "serial number",
    ReinstallReason.ADDRESS: "address",
    ReinstallReason.UUID: "UUID",
    ReinstallReason.NAME: "name",
    ReinstallReason.NID: "nid",
}


class Inheritance(NamedTuple):
    """An identity that lets a possibly installed machine get the install boots of another server."""

    server: str
    kind: str
    value: str
    uuid: SystemUuid  # the UUID of the machine
    machine: str  # the last known name of the machine, or its UUID

    def __str__(self) -> str:
        return f"{self.server} gets {self.value}, the {_IDENTITY_NAMES[ReinstallReason(self.kind)]} of {self.machine}"


class DescribedServer(NamedTuple):
    """A server as one commit describes it."""

    decision: Decision
    machine: Machine
    host: Host
    labels: Mapping[str, str]
    outputs: Collection[Output]

    def list_identities(self) -> Iterator[IdentityKey]:
        """Yield all identities of the machine, including those of interfaces from which it may not boot."""
        yield from _list_machine_identities(self.machine)
        yield from self._list_network_identities()

    def list_lookups(self) -> Iterator[IdentityKey]:
        """Yield the identities that the machine can use to request its boot."""
        idle = {nic.mac for nic in self.host.nics if not nic.boots}
        yield from (
            identity
            for identity in _list_machine_identities(self.machine)
            if identity[0] != ReinstallReason.MAC or identity[1] not in idle
        )
        yield from self._list_network_identities()

    def _list_network_identities(self) -> Iterator[IdentityKey]:
        yield from ((ReinstallReason.ADDRESS, address) for address in self.host.addresses)
        if Output.BSS in self.outputs:
            yield from list_node_identities(self.machine.name, self.labels)


NODE_REASONS: Final = frozenset({ReinstallReason.NAME, ReinstallReason.NID})


def list_node_identities(server: str, labels: Mapping[str, str]) -> Iterator[IdentityKey]:
    """Yield the identities in queries of OpenCHAMI clients. Unlike other identities, several servers may share them."""
    yield from ((ReinstallReason.NAME, name) for name in sorted({server, labels.get("xname", server)}))
    if (nid := labels.get("nid")) is not None:
        yield ReinstallReason.NID, nid


def _list_machine_identities(machine: Machine) -> Iterator[IdentityKey]:
    yield from ((ReinstallReason.MAC, mac) for mac in machine.macs if not is_placeholder_mac(mac))
    bmc_serial = machine.bmc.reports_serial if machine.bmc is not None else None
    serials = (each for each in (machine.serial, bmc_serial) if each is not None and not is_placeholder_serial(each))
    yield from ((ReinstallReason.SERIAL, serial) for serial in sorted({each.upper() for each in serials}))
    bmc_uuid = machine.bmc.reports_uuid if machine.bmc is not None else None
    uuids = (each for each in (machine.uuid, bmc_uuid) if each is not None and lookup_uuids(each))
    yield from ((ReinstallReason.UUID, uuid) for uuid in sorted({byte_orders(each)[0] for each in uuids}))


def list_install_identities(server: DescribedServer | None, *, has_new_claim: bool = False) -> dict[IdentityKey, None]:
    """Return the identities through which a machine can get an install boot, in a fixed order without duplicates.

    With ``has_new_claim``, every boot counts as an install boot, because a commit newly claims that it writes no disks.
    IP addresses are included only if firmware fetches a file for the boot.
    """
    if server is None or server.decision.stopped or server.decision.lifecycle is not Lifecycle.ACTIVE:
        return {}
    policy = server.decision.policy
    boots = [each.boot for each in server.decision.maintenances]
    if policy is not None and policy.network_boot is not NetworkBoot.NEVER:
        boots.append(policy.boot)
    install_boots = [boot for boot in boots if boot is not None and (boot.writes_disk or has_new_claim)]
    if not install_boots:
        return {}
    is_http_boot = any(boot.http_boot_file is not None for boot in install_boots)
    return dict.fromkeys(
        identity for identity in server.list_lookups() if is_http_boot or identity[0] != ReinstallReason.ADDRESS
    )


def find_identity_reinstalls(
    identities: Iterable[IdentityKey], owners: Mapping[IdentityKey, str], old: DescribedServer | None
) -> tuple[Reinstall, ...]:
    """Return the reinstallations that are possible because a server takes over identities from other servers.

    ``owners`` maps identities to server names in the older commit. ``old`` is this server in the older commit.
    """
    old_identities = set(old.list_identities()) if old is not None else set()
    return tuple(
        Reinstall(ReinstallReason(identity[0]), owners[identity], identity[1])
        for identity in identities
        if identity in owners and identity not in old_identities
    )


def find_gained_identities(
    old: DescribedServer | None,
    new: DescribedServer,
    counted_reinstalls: Collection[Reinstall],
    *,
    has_new_claim: bool = False,
) -> Iterator[GainedIdentity]:
    """Yield the identities through which a machine can newly get the install boots of a server after a commit.

    ``counted_reinstalls`` are the reinstallations that were already counted when the two commits were compared.
    """
    before = list_install_identities(old)
    counted = {(reinstall.why, reinstall.new) for reinstall in counted_reinstalls}
    old_identities = set(old.list_identities()) if old is not None else set()
    for identity in list_install_identities(new, has_new_claim=has_new_claim):
        if identity not in before:
            kind, value = identity
            yield GainedIdentity(
                kind=kind,
                value=value,
                server=new.machine.name,
                uuid=new.machine.uuid,
                replaces=new.machine.replaces,
                is_counted=identity in counted,
                is_new=identity not in old_identities,
            )


def find_lost_identities(old: DescribedServer, new: DescribedServer | None) -> Iterator[LostIdentity]:
    """Yield the identities that a server no longer has in the newer commit."""
    kept = set(new.list_identities()) if new is not None else set()
    policy = old.decision.policy
    netboots = policy is not None and policy.network_boot is NetworkBoot.ALWAYS
    yield from (
        LostIdentity(*identity, old.machine.uuid, netboots)
        for identity in old.list_identities()
        if identity not in kept
    )


def find_lost_machine_identities(old: Machine, new: Machine | None) -> Iterator[LostIdentity]:
    """Yield the identities that a machine no longer has, except addresses, names and node numbers."""
    kept = set(_list_machine_identities(new)) if new is not None else set()
    yield from (LostIdentity(*identity, old.uuid) for identity in _list_machine_identities(old) if identity not in kept)


def update_lost_identities(
    before: frozenset[LostIdentity], newly_lost: Iterable[LostIdentity], newly_gained: Iterable[GainedIdentity]
) -> frozenset[LostIdentity]:
    """Return the lost identities, updated for a commit that gitboot accepted.

    If the accepted commit lets machines get a server's install boots through an identity, a guard has permitted this
    change. From then on, the identity belongs only to the machine of this server.
    """
    lost = before.union(newly_lost)
    owners = {gained.identity: gained.uuid for gained in newly_gained}
    return frozenset(each for each in lost if owners.get(each.key, each.uuid) == each.uuid) if owners else lost


# Claims that a boot does not write disks


# Kernel arguments that affect only the console output.
# Source: https://docs.kernel.org/admin-guide/kernel-parameters.html
_CONSOLE_ARGUMENTS: Final = frozenset({"console", "earlycon", "earlyprintk", "loglevel", "quiet"})


def _digest_image(image: BootImage) -> Digest:
    """Return the digest of an image's spec without the version and the provenance, which do not change what boots."""
    spec = {name: value for name, value in to_yaml_value(image)["spec"].items() if name != "version"}
    return compute_digest(_remove_provenance(spec))


def _remove_provenance(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _remove_provenance(each) for name, each in value.items() if name != "provenance"}
    return list(map(_remove_provenance, value)) if isinstance(value, list) else value


class DiskClaims:
    """Finds the boots that newly claim in a commit that they do not write disks."""

    def __init__(
        self,
        documents: Mapping[Id, DocumentChange],
        get_offered_claims: Callable[[], frozenset[Digest]] | None,
        old: FleetRepository | None,
        new: FleetRepository,
    ) -> None:
        """Prepare the search.

        ``get_offered_claims`` returns the result of `list_claims` for all decisions in the earlier commit. gitboot
        calls this function only when it needs the claims. ``get_offered_claims`` is None if there is no earlier commit.
        """
        self._get_offered = cache(get_offered_claims) if get_offered_claims is not None else None
        self._new = new
        self._hosts: set[str | None] = set()  # the base URLs in the earlier commit
        self.images = frozenset[str]()  # images whose content did not have such a claim before
        if old is None:
            return
        fleet = old.fleet.spec
        self._hosts = {fleet.base_url, *(site.base_url for site in fleet.sites)}
        claiming_images = [
            key.name
            for key, change in documents.items()
            if key.kind == "BootImage"
            and change.fate is not ChangeKind.REMOVED
            and not new.images[key.name].spec.writes_disk
        ]
        if claiming_images and old.servers:  # without servers, for example in a first commit, no data can be lost
            known = set(map(_digest_image, old.images.values()))  # the digest also covers the claim
            self.images = frozenset(name for name in claiming_images if _digest_image(new.images[name]) not in known)

    def find_new_claims(self, old: Decision | None, new: Decision) -> tuple[Reinstall, ...]:
        """Return the boots of a server that guards count as reinstallations because their claims are new.

        ``old`` is None for a new server.
        """
        reinstalls = []
        for maintenance, boot in _list_claimed_boots(new):
            if boot.image in self.images:
                reinstalls.append(Reinstall(ReinstallReason.CLAIM, None, boot.image, maintenance))
            elif old is not None and not self._is_known_claim(old, new, boot):
                reinstalls.append(Reinstall(ReinstallReason.CLAIM_OF_BOOT, None, boot.image, maintenance))
        return tuple(reinstalls)

    def has_new_claim(self, new: Decision) -> bool:
        """Return whether a new server has a boot whose claim that it does not write disks is new in the fleet."""
        return self._get_offered is not None and any(
            boot.image in self.images or not self._is_known_claim(None, new, boot)
            for _, boot in _list_claimed_boots(new)
        )

    def _is_known_claim(self, old: Decision | None, new: Decision, boot: Boot) -> bool:
        if new.base_url not in self._hosts:
            return False
        if not boot.entries and boot.user_data is None:  # compare only the image, without console arguments
            image_arguments = self._new.images[boot.image].spec.kernel_arguments
            decisive = _filter_arguments(each for each in boot.kernel_arguments if each not in image_arguments)
            # a direct boot has no arguments
            if boot.is_direct or (set(image_arguments) <= set(boot.kernel_arguments) and not decisive):
                return True
        start_digest = _digest_start(new, boot)
        if old is not None and any(
            _digest_start(old, old_boot) == start_digest for _, old_boot in _list_claimed_boots(old)
        ):
            return True  # only the user data changed, which configures the diskless system
        return self._get_offered is not None and _digest_boot(new, boot) in self._get_offered()


def _filter_arguments(arguments: Iterable[str]) -> list[str]:
    # an initramfs may split an argument at its spaces
    return [each for each in arguments if " " in each or each.partition("=")[0] not in _CONSOLE_ARGUMENTS]


def list_claims(decision: Decision) -> frozenset[Digest]:
    """Return the digest of each boot in a decision that claims not to write disks."""
    return frozenset(_digest_boot(decision, boot) for _, boot in _list_claimed_boots(decision))


def _list_claimed_boots(decision: Decision) -> Iterator[tuple[str | None, Boot]]:
    """Yield each boot that claims not to write disks.

    Also yield the name of the maintenance that the boot belongs to, or None if the boot belongs to the policy.
    """
    if decision.lifecycle is not Lifecycle.ACTIVE:
        return
    policy = decision.policy
    policy_boot = policy.boot if policy is not None and policy.network_boot is not NetworkBoot.NEVER else None
    if policy_boot is not None and not policy_boot.writes_disk:
        yield None, policy_boot
    for each in decision.maintenances:
        if each.boot is not None and not each.boot.writes_disk:
            yield each.name, each.boot


def _digest_start(decision: Decision, boot: Boot) -> Digest:
    """Return a digest of the files, arguments and scripts that a machine starts with.

    URLs and kernel arguments for console output do not affect the digest.
    """

    def remove_urls(text: str) -> str:
        text = text.replace(boot.user_data.url, "") if boot.user_data is not None else text
        return text.replace(decision.base_url, "")

    return compute_digest(
        {
            "image": boot.image,
            "method": [boot.method, boot.http_boot, boot.config_from],
            "files": [each.sha256 for each in boot.files.all()],
            "arguments": [remove_urls(each) for each in _filter_arguments(boot.kernel_arguments) if not boot.is_direct],
            "entries": {loader: remove_urls(text) for loader, text in boot.entries.items()},
        }
    )


def _digest_boot(decision: Decision, boot: Boot) -> Digest:
    """Return a digest of the files, arguments, scripts and templates that a machine starts with."""
    format = boot.user_data.format if boot.user_data is not None else None
    return compute_digest([_digest_start(decision, boot), format, dict(boot.templates)])


# Resets


def find_resets(old: Decision | None, new: Decision) -> tuple[str, ...]:
    """Return the names of the maintenances that can reset the machine only because of the new commit.

    The function does not use records. It ignores a maintenance whose window was only extended or moved to an earlier
    time.
    """

    def was_reset_allowed(before: MaintenanceDecision | None, now: MaintenanceDecision) -> bool:
        if before is None or before.power not in RESETS or before.run < now.run:
            return False
        if not now.requirements >= before.requirements:
            return False
        return before.end is None or now.start is None or now.start < before.end

    if new.lifecycle is not Lifecycle.ACTIVE:
        return ()
    old_maintenances = old.maintenances if old is not None and old.lifecycle is Lifecycle.ACTIVE else ()
    before = {each.name: each for each in old_maintenances}
    return tuple(
        each.name
        for each in new.maintenances
        if each.power in RESETS and not was_reset_allowed(before.get(each.name), each)
    )


# Servers that return, and boots that a newer commit withholds


def find_returning_servers(
    added: Iterable[Decision],
    records: Mapping[SystemUuid, Record],
    seen_machines: Collection[SystemUuid],
    unknown_claims: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the added servers that the guard maxReinstalls must count.

    The ledger already contains the machines of these servers. If only two commits are compared, such a server appears
    to be new. The servers in ``unknown_claims`` boot an image that claims not to write disks, and this claim has not
    been acknowledged.
    """

    def gets_install_boot(decision: Decision, record: Record | None) -> bool:
        """Return whether the server would get an install boot, now or in a later window."""
        if decision.stopped:
            return False
        policy = decision.policy
        if policy is not None and policy.boot is not None and policy.boot.writes_disk:
            is_offered = record is not None and not is_provisioned(policy, record)
            if policy.network_boot is NetworkBoot.ALWAYS or (policy.network_boot in _KEYED_MODES and is_offered):
                return True
        return any(
            each.network_boot is NetworkBoot.ALWAYS
            or (record is not None and not is_current_run_consumed(each, record))
            for each in decision.maintenances
            if each.boot is not None and each.boot.writes_disk
        )

    returning = []
    for decision in added:
        is_known = decision.uuid in seen_machines or decision.uuid in records
        if is_known and (decision.server in unknown_claims or gets_install_boot(decision, records.get(decision.uuid))):
            returning.append(decision.server)
    return tuple(sorted(returning))


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)  # the first time that `find_window_edges` returns


def find_withheld_boots(accepted: Decision, newer: Decision | None, by: str) -> tuple[WithheldBoot, ...]:
    """Return the install boots that an accepted decision offers but a newer decision does not, sorted by time.

    ``newer`` is the decision of the commit ``by`` for the same machine, or None if that commit does not contain the
    machine.
    """
    times = find_window_edges(accepted) if newer is None else find_window_edges(accepted, newer)
    demands = [span.demand for span in compute_spans(accepted, times)]
    newer_demands: list[Demand | None] = [None for _ in times]
    if newer is not None:
        newer_demands = [span.demand for span in compute_spans(newer, times)]
    windows = pairwise((*(None if time == _EARLIEST else time for time in times), None))
    withheld: list[WithheldBoot] = []
    for (start, end), demand, newer_demand in zip(windows, demands, newer_demands, strict=True):
        is_offered = newer_demand is not None and _get_install_fields(demand) == _get_install_fields(newer_demand)
        if not demand.writes_disk or is_offered:
            continue
        takes_image_back = newer_demand is None or newer_demand.image != demand.image
        boot = WithheldBoot(demand.maintenance, start, end, takes_image_back=takes_image_back, by=by)
        # extend the previous boot if only its window differs and this window begins at its end
        if withheld and withheld[-1] == boot._replace(start=withheld[-1].start, end=start):
            withheld[-1] = withheld[-1]._replace(end=end)
        else:
            withheld.append(boot)
    return tuple(withheld)


def _get_install_fields(demand: Demand) -> tuple[object, ...] | None:
    """Return the values by which install boots are compared, or None if the demand does not include a boot."""
    boot = demand.boot
    if boot is None:
        return None
    return (
        *(demand.maintenance, _get_condition_key(demand.condition), demand.waits, demand.preconditions),
        *(boot.image, boot.files, boot.method, boot.http_boot, boot.writes_disk),
        *(boot.kernel_arguments, dict(boot.entries), boot.user_data),
    )


def _get_condition_key(condition: BootCondition) -> tuple[object, ...]:
    """Return the provision key or the maintenance run in a boot condition, without the number of attempts."""
    match condition:
        case UntilProvisioned():
            return "provision", condition.number, condition.image
        case UntilRun():
            return "run", condition.maintenance, condition.run
        case EveryBoot():
            return ("always",)
