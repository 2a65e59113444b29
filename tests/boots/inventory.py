"""The inventory's initial ramdisk, by its own recipe, of packages that are unpacked and not installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.boots.architectures import Architecture
from tests.boots.debian import unpacked
from tests.boots.kernel import Kernel
from tests.boots.programs import program

_RECIPE: Final = Path(__file__).parents[2] / "packaging" / "inventory" / "build"


def build(linux: Kernel, architecture: Architecture, folder: Path) -> Path:
    """The ramdisk; the recipe finds each package's files below one root."""
    root, busybox = folder / "root", unpacked("busybox-static", architecture.debian) / "bin/busybox"
    for name, target in (
        (f"lib/modules/{linux.modules.name}", linux.modules),
        ("boot", linux.image.parent),
        ("bin/busybox", busybox),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target.resolve())
    path = os.pathsep.join({str(Path(program(name)).parent) for name in ("depmod", "cpio", "xz", "awk")})
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}{path}"}
    command = [str(_RECIPE), linux.modules.name, str(folder), str(root)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return folder / "initrd.img"
