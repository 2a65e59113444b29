"""Plans -> the tree of files: `server_files` for one server, `shared_files` for all; one line a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gitboot.model.fleet import Output
from gitboot.plan import BootPlan, Decision
from gitboot.render import dnsmasq, grub, httpboot, ipxe, kea, mirrors, paths, provisioned, pxelinux, userdata
from gitboot.render.paths import PathKind
from gitboot.render.tree import File
from gitboot.resolve import Decisions

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
)

# What every machine begins with, and what is for the whole fleet, by the output that asks for it.
SHARED: Final[tuple[tuple[Output, Callable[[Decisions], Iterator[tuple[str, File]]]], ...]] = (
    (Output.IPXE, ipxe.shared),
    (Output.GRUB, grub.shared),
    (Output.PXELINUX, pxelinux.shared),
    (Output.DHCP_DNSMASQ, dnsmasq.shared),
    (Output.DHCP_KEA, kea.shared),
)


def server_files(decisions: Decisions, decision: Decision, plan: BootPlan | None) -> dict[str, File]:
    """The files of one server, by path."""
    asking = {None, decisions.evidence, *decisions.outputs}
    return {
        path: file for made, render in RENDERERS if made.asked_by in asking for path, file in render(decision, plan)
    }


def shared_files(decisions: Decisions) -> dict[str, File]:
    """The files that every machine begins with, and the configuration of DHCP and mirrors."""
    files = dict(mirrors.shared())
    for output, shared in SHARED:
        if output in decisions.outputs:
            files.update(shared(decisions))
    for boot in (decisions.unknown or {}).values():
        if boot.user_data is not None:
            files |= dict(userdata.immutable(boot.user_data))
    return files
