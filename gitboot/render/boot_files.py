"""Boot files of a server in all formats, including variants for copies that are served without an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from gitboot.model.boot_policy import HttpBoot
from gitboot.model.fleet import Evidence, Output
from gitboot.model.scalars import MacAddress
from gitboot.render import dhcp, emulated_apis, grub, ipxe, paths, pxelinux, user_data_files, web_servers
from gitboot.render.boot_script_parts import ScriptLoader, find_loader
from gitboot.render.paths import File, Files, PathKind, Role
from gitboot.resolve.plan_at_time import find_harmless_boot
from gitboot.resolve.provisioning_record import StopScope
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.resolve.server_plan import BootPlan


def select_copy_files(
    decision: Decision, plan: BootPlan | None, stop: StopScope, files: Files, policy_files: Files
) -> dict[str, File]:
    """Return the boot files that OUTPUT and its copies contain for a plan.

    ``files`` are the files that the endpoint serves for the plan. ``policy_files`` are the files of the boot that the
    server's policy selects when no maintenance applies. If that boot writes a disk, ``policy_files`` are the files of
    the local-disk boot instead. A copy does not contain one-time boots, because every client could fetch them many
    times. A copy also does not contain boots that a maintenance selects, because the copy cannot end the maintenance if
    the publisher stops. Instead, the boot scripts in the copy query the endpoint first, and boot ``policy_files`` if
    the endpoint does not respond. A loader that cannot query the endpoint boots ``policy_files`` directly, unless the
    Fleet allows copies to serve one-time boots or to end a maintenance late.
    """
    is_once = plan is not None and plan.key is not None and plan.writes_disk
    if is_once and not decision.copies.one_time_boots:
        return _replace_one_time_boot(decision, files, policy_files)
    if plan is not None and needs_endpoint_query(decision, plan, stop):
        return _replace_maintenance(decision, plan, files, policy_files)
    return {**files}


def needs_endpoint_query(decision: Decision, plan: BootPlan, stop: StopScope) -> bool:
    """Return whether a copy must query the endpoint because a maintenance may have ended.

    Return False if the plan has no maintenance, if there is no endpoint, or if the boot is the same before and after
    the end of the maintenance. With ``StopScope.ALL``, the server boots from its disk both before and after the end.
    """
    if plan.maintenance is None or decision.endpoint is None or stop is StopScope.ALL:
        return False
    return plan.boot is not None or find_harmless_boot(decision.policy) is not None


def render_query_scripts(decision: Decision, files: Files, policy_files: Files) -> dict[str, File]:
    """Return boot scripts that query the endpoint first, and boot ``policy_files`` if the endpoint does not respond.

    If the Fleet does not set an endpoint, the result is empty. An endpoint that cannot record fetches also serves these
    scripts.
    """
    scripts: dict[str, File] = {}
    for path in sorted(files.keys() & policy_files.keys()):
        kind = paths.find_path_kind(path)
        script = _render_query_script(decision, kind, path, policy_files[path]) if kind is not None else None
        if script is not None:
            scripts[path] = script
    return scripts


def _replace_one_time_boot(decision: Decision, files: Files, policy_files: Files) -> dict[str, File]:
    """Return the files of a copy that must not contain the one-time boot in ``files``."""
    # Without a token in the path, the one-time boot and its fallback fetch user data from the same paths. At these
    # paths, a copy contains the user data of the fallback.
    data = {path: policy_files[path] for path in files.keys() & policy_files.keys() if _has_role(path, Role.DATA)}
    can_query = all(files[path] == file for path, file in data.items())
    copy_files = {**files, **data}
    for path in files:
        kind = paths.find_path_kind(path)
        if kind is None or kind.role not in (Role.BOOT_SCRIPT, Role.OFFER) or kind is paths.PIXIECORE:
            continue
        policy_file = policy_files.get(path)
        if policy_file is None:
            del copy_files[path]
            continue
        # If iPXE does not support https, the query fails, and iPXE boots the policy file.
        query_script = _render_query_script(decision, kind, path, policy_file) if can_query else None
        copy_files[path] = query_script or policy_file
    return copy_files


def _replace_maintenance(decision: Decision, plan: BootPlan, files: Files, policy_files: Files) -> dict[str, File]:
    """Return the files of a copy that cannot end the maintenance of ``plan`` by itself."""
    is_late, boot = decision.copies.late_ends, plan.boot
    is_http = urlsplit(decision.endpoint or "").scheme != "https"
    finds_data = boot is not None and boot.user_data is not None and boot.may_fetch_by_identity
    has_other_data = any(
        _has_role(path, Role.DATA) and files[path] != policy_files[path] for path in files.keys() & policy_files.keys()
    )

    def choose_boot_script(kind: PathKind, path: str) -> File | None:
        """Return the boot script in a copy, or None if the copy has no boot script at this path."""
        plan_file, policy_file = files.get(path), policy_files.get(path)
        if plan_file == policy_file:
            return plan_file
        can_query = is_http or (find_loader(kind.template) is ScriptLoader.IPXE and decision.copies.ipxe_https)
        query_script = None
        if plan_file is not None and policy_file is not None and can_query and not (finds_data and has_other_data):
            query_script = _render_query_script(decision, kind, path, policy_file)
        return query_script or (plan_file if is_late else policy_file)

    def choose_file(path: str) -> File | None:
        """Return the file in a copy, or None if the copy has no file at this path."""
        kind, plan_file, policy_file = paths.find_path_kind(path), files.get(path), policy_files.get(path)
        if kind is None:
            return plan_file or policy_file
        if kind.role is Role.DATA:  # only a boot script can query the endpoint
            if plan_file is not None and finds_data and is_late:
                return plan_file
            return policy_file or plan_file
        if kind.role is Role.PREVIEW or kind is paths.HTTP_BOOT:
            # the boot script of the loader queries the endpoint
            names_loader = kind is paths.HTTP_BOOT and boot is not None and boot.http_boot is HttpBoot.LOADER
            return plan_file if is_late or (names_loader and plan_file is not None) else policy_file
        if kind.role is Role.BOOT_SCRIPT:
            return choose_boot_script(kind, path)
        return plan_file or policy_file

    chosen = {path: choose_file(path) for path in sorted(files.keys() | policy_files.keys())}
    return {path: file for path, file in chosen.items() if file is not None}


def _has_role(path: str, role: Role) -> bool:
    kind = paths.find_path_kind(path)
    return kind is not None and kind.role is role


# The functions that render the script that queries the endpoint first, by loader.
_ENDPOINT_REQUESTS: Final[Mapping[ScriptLoader, Callable[[str, str], str | None]]] = {
    ScriptLoader.IPXE: ipxe.render_endpoint_request,
    ScriptLoader.GRUB: grub.render_endpoint_request,
    ScriptLoader.PXELINUX: pxelinux.render_endpoint_request,
}


def _render_query_script(decision: Decision, kind: PathKind, path: str, fallback: File) -> File | None:
    """Return the boot script that queries the endpoint first.

    Return None if there is no endpoint, or if the loader cannot query an endpoint.
    """
    if decision.endpoint is None or kind.role is not Role.BOOT_SCRIPT:
        return None
    loader, relative_path = find_loader(kind.template), path.removeprefix(paths.BOOT)
    if loader is None:
        return None
    if loader is ScriptLoader.PXELINUX:
        # PXELINUX has no variable that could prevent a second query. If a load balancer returned a copy of the same
        # configuration, lwIP would run out of TCP connections, and PXELINUX could not fetch the kernel of the fallback.
        relative_path = f"{paths.QUERY_FOLDER}{relative_path}"
    text = _ENDPOINT_REQUESTS[loader](f"{decision.endpoint}/{relative_path}", fallback.content.decode())
    return File(text.encode(), fallback.content_type) if text is not None else None


_EMPTY: Final = File(b"")


def render_report_paths(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield ``v1/boot/<mac>/provisioned/<token>`` and ``v1/boot/<mac>/failed/<token>``.

    These files exist for every plan, so that the endpoint accepts the report of an installation that ends after its
    deadline or during a maintenance window.
    """
    for token in (decision.token, plan.token if plan is not None else None):
        if token is not None:
            yield from ((kind.build_path(mac, token), _EMPTY) for kind in paths.REPORTS for mac in decision.macs)


Renderer = Callable[[Decision, BootPlan | None], Iterator[tuple[str, File]]]
# A path and the function that renders it, for each format. The path determines which output of the Fleet enables the
# format.
RENDERERS: Final[tuple[tuple[PathKind, Renderer], ...]] = (
    (paths.IPXE_BY_MAC, ipxe.render),
    (paths.IPXE_BY_SERIAL, ipxe.render_by_serial),
    (paths.GRUB_BY_MAC, grub.render),
    (paths.PXELINUX, pxelinux.render),
    (paths.GRUB_BY_UUID, grub.render_by_uuid),
    (paths.HTTP_BOOT, emulated_apis.render_http_boot),
    (paths.IGNITION, user_data_files.render),
    (paths.PROVISIONED, render_report_paths),
    (paths.SMEE, ipxe.build_mac_renderer(paths.SMEE, paths.SMEE_SCRIPT)),
    (paths.NETBOOT_XYZ, ipxe.build_mac_renderer(paths.NETBOOT_XYZ)),
    (paths.PIXIECORE, emulated_apis.render_pixiecore),
    (paths.NOCLOUD, user_data_files.render_nocloud),
    (paths.USER_DATA, user_data_files.render_matchbox),
    (paths.BOOT_PARAMETERS, emulated_apis.render_boot_parameters),
)
# Functions that render the files for an interface with `boot: false`.
IDLE_RENDERERS: Final = ((Output.GRUB, grub.render_idle), (Output.PXELINUX, pxelinux.render_idle))
# Functions that render the files that every machine fetches first and other files of the fleet, by output.
SHARED_RENDERERS: Final[tuple[tuple[Output, Callable[[Decisions], Iterator[tuple[str, File]]]], ...]] = (
    (Output.IPXE, ipxe.render_shared),
    (Output.GRUB, grub.render_shared),
    (Output.PXELINUX, pxelinux.render_shared),
    (Output.DHCP_DNSMASQ, dhcp.render_dnsmasq),
    (Output.DHCP_KEA, dhcp.render_kea),
    (Output.DHCP_PROXY, dhcp.render_proxy),
    (Output.MATCHBOX, ipxe.build_first_script_renderer("boot.ipxe.0")),
    (Output.SMEE, ipxe.build_first_script_renderer("auto.ipxe")),
    (Output.SMEE, ipxe.build_first_script_renderer("ipxe/script/auto.ipxe")),  # the path that Tinkerbell uses
)


def render_server_files(decisions: Decisions, decision: Decision, plan: BootPlan | None) -> dict[str, File]:
    """Return the boot files of one server by path.

    If the server boots from its disk, each boot script just boots from the disk. In that case, a restricted server has
    no boot scripts.
    """
    files: dict[str, File] = {}
    for render in _select_renderers(decisions.outputs, decisions.evidence):
        files.update(render(decision, plan))
    if decision.restrict and (plan is None or plan.boot is None):
        return {path: file for path, file in files.items() if not _has_role(path, Role.BOOT_SCRIPT)}
    return files


@cache
def _select_renderers(outputs: frozenset[Output], evidence: Evidence) -> tuple[Renderer, ...]:
    requested: set[str | None] = {None, evidence, *outputs}  # None: the paths that are always enabled
    if Output.EC2 in requested:
        requested.add(Output.NOCLOUD)  # the emulated EC2 metadata service returns the NoCloud files
    return tuple(render for kind, render in RENDERERS if kind.enabled_by in requested)


def render_idle_files(
    outputs: Collection[Output], decision: Decision, idle_macs: tuple[MacAddress, ...]
) -> dict[str, File]:
    """Return the boot files for the interfaces from which a server may not boot.

    These files do not depend on the plan, and a fetch of such a file is not evidence. A restricted server has no such
    files, so an endpoint returns 404.
    """
    if decision.restrict:
        return {}
    return {
        path: file
        for output, render in IDLE_RENDERERS
        if output in outputs
        for path, file in render(decision, idle_macs)
    }


def has_dhcp_output(outputs: Collection[Output]) -> bool:
    """Return whether a fleet file, such as a DHCP configuration, lists the interfaces of each server."""
    return not {Output.DHCP_DNSMASQ, Output.DHCP_KEA, Output.DHCP_PROXY}.isdisjoint(outputs)


def render_fleet_files(decisions: Decisions, monitors: Iterable[object] = ()) -> dict[str, File]:
    """Return the files that every machine fetches first, and the configurations for DHCP servers and web servers.

    ``monitors`` are the networks in `provisioning.monitors` of the Fleet.
    """
    files = {
        **dict(emulated_apis.render_alias_list(decisions.outputs)),
        **dict(emulated_apis.render_unknown_http_boot(decisions)),
    }
    for output, render_shared in SHARED_RENDERERS:
        if output in decisions.outputs:
            files.update(render_shared(decisions))
    for boot in (decisions.unknown or {}).values():
        if boot.user_data is not None:
            files |= dict(user_data_files.render_immutable(boot.user_data))
    base_urls = {decisions.base_url, *decisions.sites.values()}
    return {
        **dict(web_servers.render_web_server_files(decisions.outputs, files, base_urls, list(map(str, monitors)))),
        **files,
    }
