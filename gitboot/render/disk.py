"""How a loader hands over to the local disk, by firmware."""

from __future__ import annotations

from typing import Final

# Under UEFI a loader that exits gives the machine back to the firmware, which goes on in its boot order;
# under BIOS it has to start the first disk itself (iPXE: sanboot; GRUB: the disk's boot sector).
IPXE: Final = """\
iseq ${platform} efi && exit 0 ||
sanboot --no-describe --drive 0x80 ||
exit 0
"""

GRUB: Final = """\
if [ "$grub_platform" = efi ]; then
  exit
fi
set root=(hd0)
chainloader +1
boot
"""
