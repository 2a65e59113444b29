"""Parts of boot scripts: header, and boot from the local disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gitboot.resolve.server_plan import BootPlan

# Below \EFI without `.efi`, in the order in which they are tried; {cpu} is x64 or aa64. A distribution's shim comes
# before its GRUB, for under Secure Boot firmware trusts only the former; what it refuses is passed over. The last is
# the path that the UEFI specification gives every disk (3.5.1.1).
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
# By architecture, what a loader says that it was built for: a BIOS build says i386 on any x86 machine.
BUILDS: Final = {"x86_64": ("x86_64", "i386"), "aarch64": ("arm64",)}
WHO: Final = "?uuid=${uuid}&serial=${serial:uristring}"  # so that an endpoint can tell it from another machine
# To UEFI, success means that something was booted: it stops at its menu. Only an error lets it go on (2.10, 3.1.2).
IPXE: Final = """\
iseq ${platform} efi && exit 1 ||
sanboot --no-describe --drive 0x80 ||
exit 0
"""
# Firmware that is left by `exit` may come back to the network, or end in its menu: so GRUB looks for itself first.
# What it chains to is told that it came from $root, whatever path it is given by (GRUB: loader/efi/chainloader.c).
GRUB: Final = f"""\
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
PXELINUX: Final = """\
label disk
  localboot 0
"""
EXIT: Final = "Exit"
SANBOOT: Final = "Sanboot"
_LEAVE_IPXE: Final = "iseq ${platform} efi && exit 1 ||\nexit 0\n"


def ipxe_to_disk(how: str | None) -> str:
    """Return the end of an iPXE script, which boots the disk. ``how`` is from a document; None: the default way."""
    if how is None:
        return IPXE
    if how == EXIT:
        return _LEAVE_IPXE
    # Drives are numbered from 0 there, by iPXE of 2023 and newer (commit b1c13cc); an older one has none, and goes on.
    path = f" --filename {how.replace('/', _BACKSLASH)}" if how != SANBOOT else ""
    return f"iseq ${{platform}} efi && sanboot --no-describe --drive 0{path} ||\n{IPXE}"


_BACKSLASH: Final = "\\"  # as UEFI has it in paths (10.3.5.4)


def grub_to_disk(how: str | None) -> str:
    """Return the end of a GRUB configuration, which boots the disk."""
    if how == EXIT:
        return "exit\n"
    return GRUB if how in (None, SANBOOT) else f"{_CHAINED.format(path=how)}{GRUB}"


_CHAINED: Final = """\
if [ "$grub_platform" = efi ]; then
  if search --no-floppy --file --set=root "{path}"; then
    if chainloader "{path}"; then
      boot
    fi
  fi
fi
"""


def pxelinux_to_disk(how: str | None) -> str:
    """Return the PXELINUX label that boots the disk."""
    return PXELINUX.replace("localboot 0", "localboot -1") if how == EXIT else PXELINUX


def pxelinux_alone(how: str | None) -> str:
    """Return a whole PXELINUX configuration that boots the disk."""
    return f"default disk\nprompt 0\n{pxelinux_to_disk(how)}"


def sent_to_disk(path: str, who: str, why: str, how: str | None = None) -> str | None:
    """Return the boot script at ``path`` that boots the disk; None: no boot loader fetches the path."""
    for loader, first, to_disk in _LOADERS:
        if loader in path:
            return f"{first}# {who}: {why}, on to the local disk\n{to_disk(how)}"
    return None


_LOADERS: Final = (("ipxe", "#!ipxe\n", ipxe_to_disk), ("grub.cfg", "", grub_to_disk), ("pxelinux", "", pxelinux_alone))
IDLE: Final = "may not boot from this interface"


def heading(plan: BootPlan) -> str:
    """Return the comment that begins a boot script; all of it follows from the plan."""
    source = f"Maintenance/{plan.maintenance}" if plan.maintenance else f"BootPolicy/{plan.policy}"
    last = f"{source} boots the local disk"
    if (boot := plan.boot) is not None:
        last = f"{source}, BootProfile/{boot.profile}, BootImage/{boot.image}, {boot.method}"
    return f"# gitboot plan {plan.digest}\n# {plan.server}: {plan.phase}, {plan.cause}\n# {last}\n"
