"""Differences between architectures: the board of QEMU, the firmware, and the names in each program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A processor architecture that machines of the fleet have."""

    name: str  # in documents, and to QEMU and the compilers
    debian: str
    efi: str  # in the names of EFI programs
    grub: str
    board: tuple[str, ...]  # QEMU's, with UEFI
    code: str  # of its firmware
    variables: str  # that it begins with
    # Loaders that `gitboot artifacts loaders` does not find on an x86 machine of this release: package and release.
    loaders: tuple[tuple[str, str | None], ...] = ()

    @property
    def boot_file(self) -> str:
        """Return the default boot file of UEFI for a disk (UEFI 2.10, 3.5.1.1)."""
        return f"BOOT{self.efi.upper()}.EFI"

    def tool(self, name: str) -> str:
        """Return the name of a GNU binary utility for the architecture."""
        return f"{self.name}-linux-gnu-{name}"


X86_64: Final = Architecture(
    name="x86_64",
    debian="amd64",
    efi="x64",
    grub="x86_64-efi",
    board=("-machine", "q35"),
    code="/usr/share/OVMF/OVMF_CODE_4M.fd",
    variables="/usr/share/OVMF/OVMF_VARS_4M.fd",
)
AARCH64: Final = Architecture(
    name="aarch64",
    debian="arm64",
    efi="aa64",
    grub="arm64-efi",
    board=("-machine", "virt", "-cpu", "cortex-a57"),
    code="/usr/share/AAVMF/AAVMF_CODE.fd",
    variables="/usr/share/AAVMF/AAVMF_VARS.ms.fd",  # the other is empty, which virt-fw-vars cannot read
    loaders=(("grub-efi-arm64-bin", None), ("ipxe", "trixie")),
)
