"""Parts of boot scripts: comments, messages and the commands that boot the local disk."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gitboot.resolve.server_decision import Decision
    from gitboot.resolve.server_plan import BootPlan

# Paths of boot loaders below \EFI, without `.efi`. GRUB tries them in this order. {cpu} is x64 or aa64. The shim of a
# distribution comes before its GRUB, because firmware with Secure Boot trusts only the shim. GRUB skips a file that the
# firmware rejects. The last file is the default path on every disk (UEFI specification 3.5.1.1).
EFI_LOADERS: Final = (
    "debian/shim{cpu}",
    "ubuntu/shim{cpu}",
    "fedora/shim{cpu}",
    "redhat/shim{cpu}",
    "centos/shim{cpu}",
    "rocky/shim{cpu}",
    "almalinux/shim{cpu}",
    "opensuse/shim",
    "sles/shim",
    "debian/grub{cpu}",
    "ubuntu/grub{cpu}",
    "opensuse/grub{cpu}",
    "sles/grub{cpu}",
    "systemd/systemd-boot{cpu}",
    "BOOT/BOOT{cpu}",
)
# The build architectures that loaders report, by the architecture of the machine. A BIOS build reports i386 on every
# x86 machine.
LOADER_ARCHITECTURES: Final = {"x86_64": ("x86_64", "i386"), "aarch64": ("arm64",)}
# with this query, the endpoint can detect another machine
IDENTITY_QUERY: Final = "?uuid=${uuid}&serial=${serial:uristring}"
# UEFI firmware stops at its menu after a boot option succeeds, and tries the next boot option only after an error (UEFI
# specification 2.10, 3.1.2).
IPXE_DISK_BOOT: Final = """\
iseq ${platform} efi && exit 1 ||
sanboot --no-describe --drive 0x80 ||
exit 0
"""
# After `exit`, the firmware may boot from the network again, or stop at its menu. So GRUB searches the disks first.
# GRUB passes $root to the loader that it starts, regardless of the path (GRUB: loader/efi/chainloader.c).
GRUB_DISK_BOOT: Final = f"""\
if [ "$grub_platform" = efi ]; then
  set cpu=x64
  if [ "$grub_cpu" = arm64 ]; then
    set cpu=aa64
  fi
  for loader in {" ".join(path.format(cpu="$cpu") for path in EFI_LOADERS)}; do
    if search --no-floppy --file --set=root "/EFI/$loader.efi"; then
      if chainloader "/EFI/$loader.efi"; then
        boot
      fi
    fi
  done
  exit
fi
set root=(hd0)
chainloader +1
boot
"""
PXELINUX_DISK_LABEL: Final = """\
label disk
  localboot 0
"""
# values of `localDisk` in documents; the other values are paths of EFI programs
EXIT: Final = "Exit"
SANBOOT: Final = "Sanboot"
_BACKSLASH: Final = "\\"  # the path separator of UEFI (UEFI specification 10.3.5.4)
_LEAVE_IPXE: Final = "iseq ${platform} efi && exit 1 ||\nexit 0\n"
_CHAINLOAD: Final = """\
if [ "$grub_platform" = efi ]; then
  if search --no-floppy --file --set=root "{path}"; then
    if chainloader "{path}"; then
      boot
    fi
  fi
fi
"""
IDLE_REASON: Final = "the Server document has boot: false for this interface"
NO_BOOT_SCRIPT: Final = "gitboot: could not fetch a boot script. Booting the local disk."
NO_ANSWER: Final = "gitboot: the endpoint did not return a boot script. Booting the fallback."
TO_DISK: Final = "gitboot: booting the local disk"  # this text follows a message that states the reason
UNKNOWN_COMMENT: Final = """\
# gitboot: boot script for unknown machines
# An unknown machine has no Server document.
"""
UNKNOWN_REQUEST_COMMENT: Final = """\
# The lookups failed, but perhaps only because the server is unavailable.
# Only an available server returns the boot script for unknown machines."""


class CannotBoot(Exception):
    """Raised if a boot loader cannot boot an image. The text is the reason, which the boot script shows."""


def describe_missing_plan(decision: Decision) -> str:
    """Return why a server has no plan, for the comment in its boot scripts."""
    return f"the server has no boot plan, because its lifecycle is {decision.lifecycle}"


def render_disk_comment(machine: str, reason: str) -> str:
    """Return the comment at the top of a boot script that boots from the local disk because there is no plan."""
    return f"# {machine}: {reason}\n# The machine boots its local disk.\n"


def render_endpoint_comment(url: str) -> str:
    """Return the comment at the top of a boot script that queries the endpoint at ``url``."""
    return f"""\
# gitboot: this script fetches the current boot script from the endpoint
# Endpoint: {url}
# Only the endpoint counts one-time boots and ends each maintenance on time.
# If the endpoint does not answer, the machine boots the fallback below."""


def render_heading(plan: BootPlan) -> str:
    """Return the comment at the top of a plan's boot scripts. The comment depends only on the plan."""
    source = f"Maintenance/{plan.maintenance}" if plan.maintenance else f"BootPolicy/{plan.policy}"
    source_line = f"{source} boots the local disk"
    if (boot := plan.boot) is not None:
        source_line = f"{source}, BootProfile/{boot.profile}, BootImage/{boot.image}, {boot.method}"
    return f"# gitboot plan {plan.digest}\n# {plan.server}: {plan.phase}, {plan.cause}\n# {source_line}\n"


def render_ipxe_disk_boot(local_disk: str | None) -> str:
    """Return the last part of an iPXE script, which boots from the local disk.

    If ``local_disk`` is None, use the default disk boot.
    """
    if local_disk is None:
        return IPXE_DISK_BOOT
    if local_disk == EXIT:
        return _LEAVE_IPXE
    # With UEFI, iPXE of 2023 and newer numbers drives from 0 (commit b1c13cc). An older iPXE finds no drive.
    path = f" --filename {local_disk.replace('/', _BACKSLASH)}" if local_disk != SANBOOT else ""
    return f"iseq ${{platform}} efi && sanboot --no-describe --drive 0{path} ||\n{IPXE_DISK_BOOT}"


def render_grub_disk_boot(local_disk: str | None) -> str:
    """Return the last part of a GRUB configuration, which boots from the local disk."""
    if local_disk == EXIT:
        return "exit\n"
    if local_disk in (None, SANBOOT):
        return GRUB_DISK_BOOT
    return _CHAINLOAD.format(path=local_disk) + GRUB_DISK_BOOT


def render_pxelinux_disk_label(local_disk: str | None) -> str:
    """Return the PXELINUX label that boots from the local disk."""
    return PXELINUX_DISK_LABEL.replace("localboot 0", "localboot -1") if local_disk == EXIT else PXELINUX_DISK_LABEL


def render_pxelinux_disk_boot(local_disk: str | None) -> str:
    """Return a complete PXELINUX configuration that boots from the local disk."""
    return f"default disk\nprompt 0\n{render_pxelinux_disk_label(local_disk)}"


class ScriptLoader(StrEnum):
    """A boot loader that fetches boot scripts. The value of each member occurs in the paths of the loader's scripts."""

    IPXE = "ipxe"
    GRUB = "grub.cfg"
    PXELINUX = "pxelinux"


def find_loader(path: str) -> ScriptLoader | None:
    """Return the boot loader that fetches its script from ``path``, or None if boot loaders do not fetch ``path``."""
    return next((loader for loader in ScriptLoader if loader in path), None)


# The first line of boot scripts and the function that renders the commands to boot the disk, by loader.
_DISK_SCRIPTS: Final = {
    ScriptLoader.IPXE: ("#!ipxe\n", render_ipxe_disk_boot),
    ScriptLoader.GRUB: ("", render_grub_disk_boot),
    ScriptLoader.PXELINUX: ("", render_pxelinux_disk_boot),
}


def render_disk_boot(path: str, machine: str, reason: str, local_disk: str | None = None) -> str | None:
    """Return a boot script that boots from the local disk, for the loader that fetches ``path``.

    Return None if boot loaders do not fetch ``path``.
    """
    loader = find_loader(path)
    if loader is None:
        return None
    first_line, render_boot = _DISK_SCRIPTS[loader]
    return f"{first_line}{render_disk_comment(machine, reason)}{render_boot(local_disk)}"
