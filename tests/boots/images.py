"""What the machines boot, built once a run: the assets of every published tree."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.boots import disks, initramfs, uki
from tests.boots.kernel import Kernel
from tests.boots.network import BASE_URLS

ARGUMENTS: Final = "console=ttyS0 quiet"
DIRECT: Final = ("gitboot", "nginx", "Caddy")  # whom a uki or iso may ask


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Their files by the image's name and the artifact's kind; and local disks."""

    by_name: Mapping[str, Mapping[str, Path]]
    bios_disk: Path
    uefi_disk: Path

    @classmethod
    def build(cls, kernel: Kernel, folder: Path) -> Images:
        initrd = initramfs.build(kernel.modules, folder)
        by_name: dict[str, dict[str, Path]] = {
            name: {"kernel": kernel.image, "initrd": initrd} for name in ("node-1", "discovery-1", "repair-1")
        }
        # Firmware passes these nothing: each knows its own name, and where to ask for its user data.
        for by in DIRECT:
            words = f"{ARGUMENTS} boot.image={{}} boot.base={BASE_URLS[by]}"
            for kind in ("uki", "iso"):
                name = f"{kind}-{by.lower()}-1"
                made = uki.build(kernel.image, initrd, words.format(name), folder / f"{name}.efi")
                by_name[name] = {kind: made if kind == "uki" else uki.iso(made, folder / f"{name}.iso")}
        return cls(
            by_name=by_name,
            bios_disk=disks.bios(folder / "bios.img"),
            uefi_disk=disks.uefi(folder / "uefi.img"),
        )

    def place(self, assets: Path) -> None:
        """Put them where ``assets:`` in the fleet says that they are."""
        for name, artifacts in self.by_name.items():
            (assets / name).mkdir(parents=True)
            for path in artifacts.values():
                shutil.copy(path, assets / name / path.name)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
