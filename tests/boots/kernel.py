"""A real kernel, from Debian's package: kept in .cache/, for it does not change between two runs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.boots.programs import program

_CACHE: Final = Path(__file__).parents[2] / ".cache" / "boots"
_META: Final = "linux-image-cloud-amd64"  # depends on the newest


class Kernel(NamedTuple):
    image: Path
    modules: Path


def kernel() -> Kernel:
    """The kernel for virtual machines, unpacked, not installed."""
    depends = subprocess.run(
        [program("apt-cache"), "depends", "--important", _META], capture_output=True, text=True, check=True
    ).stdout
    [package] = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line]
    folder = _CACHE / package
    if not folder.exists():
        _unpack(package, folder)
    [modules] = (folder / "lib/modules").iterdir()
    return Kernel(image=folder / "boot" / f"vmlinuz-{modules.name}", modules=modules)


def _unpack(package: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        subprocess.run([program("apt-get"), "-qq", "download", package], cwd=scratch, check=True)
        [archive] = Path(scratch).glob("*.deb")
        subprocess.run([program("dpkg-deb"), "--extract", archive, Path(scratch, "root")], check=True)
        shutil.move(Path(scratch, "root"), folder)
