"""Boot files of a server in all formats, and in copies without an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from gitboot.model.boot_policy import HttpBoot
from gitboot.model.fleet import Evidence, Output
from gitboot.model.scalars import MacAddress
from gitboot.render import dhcp, emulated_apis, grub, ipxe, paths, pxelinux, user_data_files, web_servers
from gitboot.render.paths import File, Files, PathKind, Role
from gitboot.resolve.boot_limits import Halt
from gitboot.resolve.plan_at_time import harmless_boot
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.resolve.server_plan import BootPlan


def copy_files(decision: Decision, planned: BootPlan | None, stop: Halt, files: Files, alone: Files) -> dict[str, File]:
    """Return the files of a plan as they lie in OUTPUT and in its copies, while ``stop`` is in force.

    ``files`` are what the endpoint answers for ``planned``. ``alone`` is what the policies alone boot if that writes no
    disk, else the disk.

    A one-time boot is not in a copy, because every client could fetch it again and again. A maintenance is not in a
    copy either, because the copy does not end it if the publisher dies. Their boot scripts ask the endpoint, and boot
    ``alone`` if it does not answer. A loader that cannot ask gets ``alone`` at once, unless the Fleet accepts more.
    """
    is_once = planned is not None and planned.key is not None and planned.writes_disk
    if is_once and not decision.copies.one_time_boots:
        return _without_one_time_boot(decision, files, alone)
    if planned is not None and may_ask_for_end(decision, planned, stop):
        return _without_maintenance(decision, planned, files, alone)
    return {**files}


def may_ask_for_end(decision: Decision, planned: BootPlan, stop: Halt) -> bool:
    """Return whether a plan is a maintenance's whose end changes the boot, and an endpoint is named.

    While all boots from the network are stopped, the disk boots before and after the end.
    """
    if planned.maintenance is None or decision.endpoint is None or stop is Halt.ALL:
        return False
    return planned.boot is not None or harmless_boot(decision.policy) is not None


def asking_scripts(decision: Decision, files: Files, alone: Files) -> dict[str, File]:
    """Return the boot scripts that ask the endpoint for the boot of ``files``, and boot ``alone`` without an answer.

    An endpoint that cannot record fetches answers them, too. There are none if no endpoint is named.
    """
    kinds = {path: kind for path in files.keys() & alone.keys() if (kind := paths.kind_of(path)) is not None}
    scripts = {path: _asking(decision, kind, path, alone[path]) for path, kind in sorted(kinds.items())}
    return {path: script for path, script in scripts.items() if script is not None}


def _without_one_time_boot(decision: Decision, files: Files, alone: Files) -> dict[str, File]:
    found = {**files}
    # User data at a path that has no token: both boots ask for it there, so a copy has that of the boot in its scripts.
    data = {path: alone[path] for path in files.keys() & alone.keys() if _is_of(path, Role.DATA)}
    found |= data
    asks = all(files[path] == file for path, file in data.items())
    for path in files:
        kind = paths.kind_of(path)
        if kind is None or kind.role not in (Role.ENTRY, Role.OFFER) or kind is paths.PIXIECORE:
            continue
        if (other := alone.get(path)) is None:
            del found[path]
        else:
            # An iPXE without https fails to ask, and boots the same as if it had not asked.
            found[path] = (_asking(decision, kind, path, other) if asks else None) or other
    return found


def _without_maintenance(decision: Decision, planned: BootPlan, files: Files, alone: Files) -> dict[str, File]:
    is_late = decision.copies.late_ends
    boot = planned.boot
    finds_data = boot is not None and boot.user_data is not None and boot.may_ask_by_identity
    found: dict[str, File] = {}
    data = {path for path in files.keys() & alone.keys() if _is_of(path, Role.DATA) and files[path] != alone[path]}
    for path in sorted(files.keys() | alone.keys()):
        kind, its, other = paths.kind_of(path), files.get(path), alone.get(path)
        chosen = its or other
        if kind is not None and kind.role is Role.DATA:  # user data at a path that has no token: it cannot ask
            chosen = its if its is not None and (other is None or (finds_data and is_late)) else other
        elif kind is not None and (kind.role is Role.LOOK or kind is paths.HTTP_BOOT):
            names_loader = kind is paths.HTTP_BOOT and boot is not None and boot.http_boot is HttpBoot.LOADER
            chosen = its if is_late or (names_loader and its is not None) else other  # a loader asks by its boot script
        elif kind is not None and kind.role is Role.ENTRY and its != other:
            asks = not (finds_data and data) and its is not None and other is not None
            asking = _asking(decision, kind, path, other) if asks and other and _can_ask(decision, kind) else None
            chosen = asking or (its if is_late else other)
        if chosen is not None:
            found[path] = chosen
    return found


def _is_of(path: str, role: Role) -> bool:
    kind = paths.kind_of(path)
    return kind is not None and kind.role is role


def _asking(decision: Decision, kind: PathKind, path: str, otherwise: File) -> File | None:
    """Return the boot script that asks the endpoint first; None: there is no endpoint, or its loader cannot ask."""
    if decision.endpoint is None or kind.role is not Role.ENTRY:
        return None
    write, below = _writer(kind), path.removeprefix(paths.BOOT)
    if write is pxelinux.ask_endpoint:
        # PXELINUX has no variables to remember that it has asked. A load balancer that answers with a copy of this very
        # configuration would use up the TCP connections of lwIP, so that the fallback's kernel cannot be fetched.
        below = f"{paths.ASKED}{below}"
    text = write(f"{decision.endpoint}/{below}", otherwise.content.decode())
    return File(text.encode(), otherwise.content_type) if text is not None else None


def _can_ask(decision: Decision, kind: PathKind) -> bool:
    is_https = urlsplit(decision.endpoint or "").scheme == "https"
    return not is_https or (_writer(kind) is ipxe.ask_endpoint and decision.copies.ipxe_https)


def _writer(kind: PathKind) -> Callable[[str, str], str | None]:
    return next(write for loader, write in _LOADERS if loader in kind.text)


# By a part of the path that boot scripts of this loader have.
_LOADERS: Final[tuple[tuple[str, Callable[[str, str], str | None]], ...]] = (
    ("ipxe", ipxe.ask_endpoint),
    ("grub.cfg", grub.ask_endpoint),
    ("pxelinux", pxelinux.ask_endpoint),
)
Renderer = Callable[[Decision, BootPlan | None], Iterator[tuple[str, File]]]


def render_provisioned(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``v1/boot/<mac>/provisioned/<token>``, and ``failed/`` beside it, whatever the server boots now.

    An installation may outlast the time that its evidence may take, or run into a maintenance's window; it is
    heard all the same.
    """
    named = (decision.token, plan.token if plan is not None else None)
    for token in (each for each in named if each is not None):
        yield from ((each.of(mac, token), _EMPTY) for each in paths.REPORTS for mac in decision.macs)


_EMPTY: Final = File(b"")
# Each format: a path that it makes, whose line in the table says what asks for it, and what makes its files.
RENDERERS: Final[tuple[tuple[PathKind, Renderer], ...]] = (
    (paths.IPXE_BY_MAC, ipxe.render),
    (paths.IPXE_BY_SERIAL, ipxe.render_by_serial),
    (paths.GRUB_BY_MAC, grub.render),
    (paths.PXELINUX, pxelinux.render),
    (paths.GRUB_BY_UUID, grub.render_by_uuid),
    (paths.HTTP_BOOT, emulated_apis.render),
    (paths.IGNITION, user_data_files.render),
    (paths.PROVISIONED, render_provisioned),
    (paths.SMEE, ipxe.render_by_mac(paths.SMEE, paths.SMEE_SCRIPT)),
    (paths.NETBOOT_XYZ, ipxe.render_by_mac(paths.NETBOOT_XYZ)),
    (paths.PIXIECORE, emulated_apis.pixiecore),
    (paths.NOCLOUD, user_data_files.nocloud),
    (paths.USER_DATA, user_data_files.matchbox),
    (paths.BOOT_PARAMETERS, emulated_apis.boot_parameters),
)
# What a loader finds by an interface that its machine may not boot from.
TOMBSTONES: Final = ((Output.GRUB, grub.tombstones), (Output.PXELINUX, pxelinux.tombstones))
# What every machine begins with, and what is for the whole fleet, by the output that asks for it.
SHARED: Final[tuple[tuple[Output, Callable[[Decisions], Iterator[tuple[str, File]]]], ...]] = (
    (Output.IPXE, ipxe.shared),
    (Output.GRUB, grub.shared),
    (Output.PXELINUX, pxelinux.shared),
    (Output.DHCP_DNSMASQ, dhcp.shared_dnsmasq),
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
        return {path: file for path, file in found.items() if not _is_of(path, Role.ENTRY)}
    return found


@cache
def _renderers(outputs: frozenset[Output], evidence: Evidence) -> tuple[Renderer, ...]:
    asking = {None, evidence, *outputs}
    if Output.EC2 in asking:
        asking.add(Output.NOCLOUD)  # whose files it answers
    return tuple(render for made, render in RENDERERS if made.asked_by in asking)


def tombstones(outputs: Collection[Output], decision: Decision, idle: tuple[MacAddress, ...]) -> dict[str, File]:
    """Return the files of interfaces that a server may not boot from. No plan changes them, and a fetch proves nothing.

    A restricted server has no such files: these lookups answer 404, too.
    """
    if decision.restrict:
        return {}
    return {path: file for output, render in TOMBSTONES if output in outputs for path, file in render(decision, idle)}


def is_of_hosts(outputs: Collection[Output]) -> bool:
    """Return whether shared files name each server's interfaces."""
    return Output.DHCP_DNSMASQ in outputs or Output.DHCP_KEA in outputs


def shared_files(decisions: Decisions, monitors: Iterable[object] = ()) -> dict[str, File]:
    """Return the files that every machine begins with, and the configuration of DHCP and mirrors.

    ``monitors`` are the networks of the Fleet's `provisioning.monitors`.
    """
    files = {**dict(emulated_apis.shared(decisions.outputs)), **dict(emulated_apis.shared_httpboot(decisions))}
    for output, shared in SHARED:
        if output in decisions.outputs:
            files.update(shared(decisions))
    for boot in (decisions.unknown or {}).values():
        if boot.user_data is not None:
            files |= dict(user_data_files.immutable(boot.user_data))
    base_urls = {decisions.base_url, *decisions.sites.values()}
    return {**dict(web_servers.shared(decisions.outputs, files, base_urls, list(map(str, monitors)))), **files}
