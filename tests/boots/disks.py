"""Local disks that print on the console that they were booted, and do nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.boots.architectures import Architecture
from tests.boots.debian import unpacked
from tests.boots.programs import program

MARK: Final = "BOOTED from the local disk"
_SECTOR: Final = 512

# A boot sector in 16-bit code: each byte of the text goes out at COM1, then the processor stops.
#   7c00  cli; cld; xor ax, ax; mov ds, ax; mov si, text; mov dx, 3fdh (COM1's line status)
#   next: in al, dx; test al, 20h (it can take a byte); jz next; lodsb; test al, al; jz stop
#         sub dx, 5; out dx, al; add dx, 5; jmp next
#   stop: hlt; jmp stop
_CODE: Final = bytes.fromhex(
    "fa fc 31 c0 8e d8 be 22 7c ba fd 03"  # begins
    "ec a8 20 74 fb ac 84 c0 74 09 83 ea 05 ee 83 c2 05 eb ed"  # next
    "f4 eb fd"  # stop
)
_SIZE: Final = 1 << 20


def bios(made: Path) -> Path:
    """A disk with a boot sector."""
    assert len(_CODE) == 0x22, "where the text begins"
    sector = (_CODE + f"\r\n{MARK}\r\n".encode() + b"\0").ljust(_SECTOR - 2, b"\0") + b"\x55\xaa"
    made.write_bytes(sector.ljust(_SIZE, b"\0"))
    return made


def uefi(architecture: Architecture, made: Path) -> Path:
    """Build a disk with a loader at the default path, which firmware and GRUB try without a boot entry."""
    configuration, loader = made.with_suffix(".cfg"), made.with_suffix(".efi")
    configuration.write_text(f'echo "{MARK}"\nsleep 60\n')
    package = unpacked(f"grub-efi-{architecture.debian}-bin", architecture.debian)
    modules = package / "usr/lib/grub" / architecture.grub
    command = [program("grub-mkimage"), f"--format={architecture.grub}", f"--directory={modules}", f"--output={loader}"]
    names = ("echo", "sleep", "normal", "minicmd")
    subprocess.run([*command, "--prefix=/", f"--config={configuration}", *names], check=True)
    return esp(loader, architecture, made)


def esp(loader: Path, architecture: Architecture, made: Path) -> Path:
    """A FAT file system with ``loader`` as \\EFI\\BOOT\\BOOTX64.EFI, or what it is called there."""
    with made.open("wb") as image:
        image.truncate((loader.stat().st_size + (4 << 20)) & ~511)
    subprocess.run([program("mkfs.vfat"), made], check=True, capture_output=True)
    for command in (["mmd", "::EFI", "::EFI/BOOT"], ["mcopy", str(loader), f"::EFI/BOOT/{architecture.boot_file}"]):
        name, *arguments = command
        subprocess.run([program(name), "-i", str(made), *arguments], check=True)
    return made
