"""The files that machines boot, built once for each run: the assets of every published tree."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Final

from tests.boots import disks, initramfs, inventory, uki
from tests.boots.architectures import Architecture
from tests.boots.debian import unpacked
from tests.boots.kernel import kernel
from tests.boots.network import BASE_URLS

# A machine has one of these consoles. Emulation under load makes the kernel's check of the timer fail.
ARGUMENTS: Final = "console=ttyAMA0 console=ttyS0 no_timer_check quiet"
DIRECT: Final = ("gitboot", "nginx", "Caddy")  # the servers to which a uki or iso may connect

Artifacts = Mapping[str, Path]  # by their kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Their files by the image's name and the architecture; local disks; and where loaders were unpacked."""

    by_name: Mapping[str, Mapping[Architecture, Artifacts]]
    bios_disk: Path
    uefi_disks: Mapping[Architecture, Path]
    unpacked: tuple[Path, ...]

    @classmethod
    def build(cls, folder: Path, *architectures: Architecture) -> Images:
        by_architecture = {architecture: _build_artifacts(architecture, folder) for architecture in architectures}
        names = next(iter(by_architecture.values()))
        return cls(
            by_name={name: {each: images[name] for each, images in by_architecture.items()} for name in names},
            bios_disk=disks.bios(folder / "bios.img"),
            uefi_disks={each: disks.uefi(each, folder / f"uefi-{each.name}.img") for each in architectures},
            unpacked=tuple(
                unpacked(package, each.debian, release) for each in architectures for package, release in each.loaders
            ),
        )

    def place(self, assets: Path) -> None:
        """Place the files at the paths of ``assets:`` in the fleet."""
        for name, by_architecture in self.by_name.items():
            (assets / name).mkdir(parents=True)
            for artifacts in by_architecture.values():
                for path in artifacts.values():
                    shutil.copy(path, assets / name / path.name)


def _build_artifacts(architecture: Architecture, folder: Path) -> dict[str, Artifacts]:
    """The files of each image."""
    linux = kernel(architecture)
    initrd = initramfs.build(linux.modules, architecture, folder / f"initrd-{architecture.name}.img")
    made: dict[str, Artifacts] = {
        name: {"kernel": linux.image, "initrd": initrd} for name in ("node-1", "discovery-1", "repair-1")
    }
    looks = inventory.build(linux, architecture, folder / f"inventory-{architecture.name}")
    made["inventory-1"] = {"kernel": linux.image, "initrd": looks}
    # Firmware passes no arguments to these: each has its own name, and the place of its user data.
    for kind, by in product(("uki", "iso"), DIRECT):
        name = f"{kind}-{by.lower()}-1"
        words = f"{ARGUMENTS} boot.image={name} boot.base={BASE_URLS[by]}"
        image = uki.build(linux.image, initrd, words, architecture, folder / f"{name}-{architecture.name}.efi")
        disc = image.with_suffix(".iso")
        made[name] = {kind: image if kind == "uki" else uki.iso(image, architecture, disc)}
    return made


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
