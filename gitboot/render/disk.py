"""How a loader hands over to the local disk, by loader and firmware: one table, in docs/loaders.md as well.

| loader | BIOS | UEFI |
|---|---|---|
| iPXE | `sanboot` of the first disk, then `exit` | `exit 1`: firmware goes on in its boot order |
| GRUB | the boot sector of the first disk | `EFI_LOADERS` in their order, then `exit` |
| PXELINUX | `localboot 0` | `localboot 0`, which SYSLINUX answers by leaving |

The loader chooses as it runs: a UEFI machine may have come by BIOS, and the shared scripts do not know whose they are.
"""

from __future__ import annotations

from typing import Final

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
PXELINUX_ALONE: Final = f"default disk\nprompt 0\n{PXELINUX}"


def sent_to_disk(path: str, who: str, why: str) -> str | None:
    """What sends on to its disk a machine that asks for its entry at ``path``; None: it is no loader's."""
    for loader, first, rest in _LOADERS:
        if loader in path:
            return f"{first}# {who}: {why}, on to the local disk\n{rest}"
    return None


_LOADERS: Final = (("ipxe", "#!ipxe\n", IPXE), ("grub.cfg", "", GRUB), ("pxelinux", "", PXELINUX_ALONE))
