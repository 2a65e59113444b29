"""Plans -> the tree of files: `server_files` for one server, `shared_files` for all; one line a format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Final

from gitboot.model.fleet import Evidence, Output
from gitboot.model.scalars.machines import MacAddress
from gitboot.render import (
    dhcp,
    dnsmasq,
    emulated_apis,
    grub,
    httpboot,
    ipxe,
    paths,
    peers,
    provisioned,
    pxelinux,
    userdata,
    web_servers,
)
from gitboot.render.paths import PathKind, Role
from gitboot.render.tree import File
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.server_plan import BootPlan

Renderer = Callable[[Decision, BootPlan | None], Iterator[tuple[str, File]]]

# Each format: a path that it makes, whose line in the table says what asks for it, and what makes its files.
RENDERERS: Final[tuple[tuple[PathKind, Renderer], ...]] = (
    (paths.IPXE_BY_MAC, ipxe.render),
    (paths.IPXE_BY_SERIAL, ipxe.render_by_serial),
    (paths.GRUB_BY_MAC, grub.render),
    (paths.PXELINUX, pxelinux.render),
    (paths.GRUB_BY_UUID, grub.render_by_uuid),
    (paths.HTTP_BOOT, httpboot.render),
    (paths.IGNITION, userdata.render),
    (paths.PROVISIONED, provisioned.render),
    (paths.SMEE, ipxe.render_by_mac(paths.SMEE, paths.SMEE_SCRIPT)),
    (paths.NETBOOT_XYZ, ipxe.render_by_mac(paths.NETBOOT_XYZ)),
    (paths.PIXIECORE, peers.pixiecore),
    (paths.NOCLOUD, peers.nocloud),
    (paths.USER_DATA, peers.matchbox),
    (paths.BOOT_PARAMETERS, peers.boot_parameters),
)

# What a loader finds by an interface that its machine may not boot from.
TOMBSTONES: Final = ((Output.GRUB, grub.tombstones), (Output.PXELINUX, pxelinux.tombstones))

# What every machine begins with, and what is for the whole fleet, by the output that asks for it.
SHARED: Final[tuple[tuple[Output, Callable[[Decisions], Iterator[tuple[str, File]]]], ...]] = (
    (Output.IPXE, ipxe.shared),
    (Output.GRUB, grub.shared),
    (Output.PXELINUX, pxelinux.shared),
    (Output.DHCP_DNSMASQ, dnsmasq.shared),
    (Output.DHCP_KEA, dhcp.shared),
    (Output.MATCHBOX, ipxe.shared_elsewhere("boot.ipxe.0")),
    (Output.SMEE, ipxe.shared_elsewhere("auto.ipxe")),
    (Output.SMEE, ipxe.shared_elsewhere("ipxe/script/auto.ipxe")),  # where Tinkerbell has it
)


def server_files(decisions: Decisions, decision: Decision, plan: BootPlan | None) -> dict[str, File]:
    """Return the files of one server, by path.

    A server that boots its disk has the same boot script by each lookup, or no boot script at all if it is restricted.
    """
    found: dict[str, File] = {}
    for render in _renderers(decisions.outputs, decisions.evidence):
        found.update(render(decision, plan))
    if decision.restrict and (plan is None or plan.boot is None):
        return {path: file for path, file in found.items() if not _is_boot_script(path)}
    return found


@cache
def _renderers(outputs: frozenset[Output], evidence: Evidence) -> tuple[Renderer, ...]:
    asking = {None, evidence, *outputs}
    if Output.EC2 in asking:
        asking.add(Output.NOCLOUD)  # whose files it answers
    return tuple(render for made, render in RENDERERS if made.asked_by in asking)


def _is_boot_script(path: str) -> bool:
    kind = paths.kind_of(path)
    return kind is not None and kind.role is Role.ENTRY


def tombstones(outputs: Collection[Output], decision: Decision, idle: tuple[MacAddress, ...]) -> dict[str, File]:
    """Return the files of interfaces that a server may not boot from. No plan changes them, and a fetch proves nothing.

    A restricted server has no such files: these lookups answer 404, too.
    """
    if decision.restrict:
        return {}
    return {path: file for output, render in TOMBSTONES if output in outputs for path, file in render(decision, idle)}


def is_of_hosts(outputs: Collection[Output]) -> bool:
    """Whether shared files name each server's interfaces."""
    return Output.DHCP_DNSMASQ in outputs or Output.DHCP_KEA in outputs


def shared_files(decisions: Decisions, monitors: Iterable[object] = ()) -> dict[str, File]:
    """The files that every machine begins with, and the configuration of DHCP and mirrors.

    ``monitors`` are the networks of the Fleet's `provisioning.monitors`.
    """
    files = {**dict(emulated_apis.shared(decisions.outputs)), **dict(httpboot.shared(decisions))}
    for output, shared in SHARED:
        if output in decisions.outputs:
            files.update(shared(decisions))
    for boot in (decisions.unknown or {}).values():
        if boot.user_data is not None:
            files |= dict(userdata.immutable(boot.user_data))
    base_urls = {decisions.base_url, *decisions.sites.values()}
    return {**dict(web_servers.shared(decisions.outputs, files, base_urls, list(map(str, monitors)))), **files}
