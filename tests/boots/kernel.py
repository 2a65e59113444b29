"""A real kernel: Debian's for virtual machines."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.boots.architectures import Architecture
from tests.boots.debian import dependencies, unpacked


class Kernel(NamedTuple):
    image: Path
    modules: Path


def kernel(architecture: Architecture) -> Kernel:
    """The newest of the machine's release."""
    needed = dependencies(f"linux-image-cloud-{architecture.debian}", architecture.debian)
    [package] = [name for name in needed if name.startswith("linux-image-")]
    folder = unpacked(package, architecture.debian)
    [modules] = (folder / "lib/modules").iterdir()
    return Kernel(image=folder / "boot" / f"vmlinuz-{modules.name}", modules=modules)
