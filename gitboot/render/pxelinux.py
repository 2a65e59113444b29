"""PXELINUX configurations for each boot NIC, and the configuration for unknown machines.

lpxelinux.0 and SYSLINUX for UEFI can fetch by HTTP. pxelinux.0 only supports TFTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gitboot.model.scalars import MacAddress
from gitboot.model.server import Architecture
from gitboot.quoting import (
    BOOT_NIC_BOOTIF,
    build_command_line,
    fill_boot_nic,
    has_boot_nic_placeholder,
    sanitize_ipxe_text,
)
from gitboot.render import boot_script_parts, paths
from gitboot.render.boot_script_parts import IDLE_REASON, TO_DISK, CannotBoot, render_heading
from gitboot.render.paths import ContentType, File
from gitboot.resolve.server_decision import Boot, BootFile, Decision, Decisions
from gitboot.resolve.server_plan import BootPlan

# With `sysappend 2`, PXELINUX adds this argument at the end of the line (syslinux: doc/syslinux.txt, SYSAPPEND).
_BOOTIF: Final = f"BOOTIF={BOOT_NIC_BOOTIF}"


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield ``pxelinux.cfg/01-<mac>``. Without a plan, the configuration boots from the local disk."""
    if plan is None:
        text = _render_disk_boot(decision, boot_script_parts.describe_missing_plan(decision))
    else:
        target = f"{plan.boot.image} ({plan.phase})" if plan.boot is not None else "its local disk"
        announcement = f"{plan.server} boots {target}"
        text = render_heading(plan) + _render_configuration(plan.boot, announcement, plan.local_disk)
    for mac in decision.macs:  # PXELINUX uses the file for the NIC from which it was booted
        yield paths.PXELINUX.build_path(mac), File(fill_boot_nic(text, mac).encode(), ContentType.TEXT)


def render_idle(decision: Decision, idle_macs: tuple[MacAddress, ...]) -> Iterator[tuple[str, File]]:
    """Yield configurations that boot from the local disk, for the interfaces from which the server may not boot."""
    file = File(_render_disk_boot(decision, IDLE_REASON).encode(), ContentType.TEXT)
    yield from ((paths.PXELINUX.build_path(mac), file) for mac in idle_macs)


def render_shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield ``pxelinux.cfg/default``, unless unknown machines get a 404.

    PXELINUX uses this file for every machine that does not have its own file. Only x86 machines run PXELINUX.
    """
    if not decisions.unknown_not_found:
        boot = (decisions.unknown or {}).get(Architecture.X86_64)
        announcement = f"this machine is unknown. It boots {boot.image}." if boot else ""
        text = boot_script_parts.UNKNOWN_COMMENT + _render_configuration(boot, announcement, is_shared=True)
        yield "boot/pxelinux.cfg/default", File(text.encode(), ContentType.TEXT)


def render_endpoint_request(url: str, fallback: str) -> str | None:
    """Return a configuration that includes the endpoint's response from ``url``, or None if ``url`` is not http.

    PXELINUX skips an include that it cannot fetch, and then boots ``fallback``. pxelinux.0 cannot fetch files by HTTP.
    If two labels have the same name, PXELINUX uses the first label. If there are two defaults, PXELINUX uses the last
    default (syslinux, com32/elflink/ldlinux/readconfig.c).
    """
    if urlsplit(url).scheme != "http":
        return None
    for word in ("default", "label"):
        fallback = fallback.replace(f"{word} gitboot\n", f"{word} instead\n")
    return f"{boot_script_parts.render_endpoint_comment(url)}\n{fallback}include {url}?{paths.HOP}=1\n"


def _render_disk_boot(decision: Decision, reason: str) -> str:
    comment = boot_script_parts.render_disk_comment(decision.server, reason)
    return comment + boot_script_parts.render_pxelinux_disk_boot(decision.local_disk)


def _render_configuration(
    boot: Boot | None, announcement: str, local_disk: str | None = None, *, is_shared: bool = False
) -> str:
    """Return the configuration of a boot. If there is no boot, or PXELINUX cannot boot the image, boot the disk."""
    announcement_line = _render_messages(f"gitboot: {announcement}") if announcement else ""
    disk_boot = boot_script_parts.render_pxelinux_disk_boot(local_disk)
    if boot is None:
        return announcement_line + disk_boot
    try:
        steps = list(_build_boot_steps(boot, is_shared=is_shared))
    except CannotBoot as obstacle:
        return announcement_line + _render_messages(f"gitboot: {obstacle}", TO_DISK) + disk_boot
    label_lines = "".join(f"  {step}\n" for step in steps)
    disk_label = boot_script_parts.render_pxelinux_disk_label(local_disk)
    return f"{announcement_line}default gitboot\nprompt 0\nonerror disk\nlabel gitboot\n{label_lines}{disk_label}"


def _render_messages(*messages: str) -> str:
    return "".join(f"say {sanitize_ipxe_text(message)}\n" for message in messages)


def _build_boot_steps(boot: Boot, *, is_shared: bool) -> Iterator[str]:
    """Yield the lines of a label. Raises `CannotBoot`.

    A shared file contains no MAC address, but PXELINUX can add the MAC address as ``BOOTIF``.
    """
    if boot.is_direct:
        raise CannotBoot(f"PXELINUX cannot boot {boot.image}. Firmware boots it directly.")
    yield f"linux {_check_url(boot.loaded_kernel)}"
    if initrds := [_check_url(initrd) for initrd in boot.files.initrds]:
        if any("," in url for url in initrds):
            raise CannotBoot("PXELINUX cannot fetch an initrd whose URL contains a comma")
        yield f"initrd {','.join(initrds)}"
    arguments = boot.kernel_arguments
    if is_shared and _BOOTIF in arguments:
        arguments = tuple(each for each in arguments if each != _BOOTIF)
        yield "sysappend 2"
    if is_shared and any(map(has_boot_nic_placeholder, arguments)):
        raise CannotBoot("PXELINUX can pass an unknown machine's boot NIC only as BOOTIF")
    if arguments:
        yield f"append {build_command_line(arguments)}"


def _check_url(file: BootFile) -> str:
    scheme = urlsplit(file.url).scheme
    if scheme != "http":
        raise CannotBoot(f"the boot files have {scheme} URLs, but PXELINUX can fetch only over http")
    return file.url
