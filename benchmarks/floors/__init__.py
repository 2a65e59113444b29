"""Small C programs that do only the work that cannot be left out."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.row import CannotRun

_HERE: Final = Path(__file__).resolve().parent
_LIBRARIES: Final = {"events": ("-lyaml",), "replace": ()}


@cache
def floor(name: str, folder: Path) -> Path:
    """Build a program in ``folder``, and return its path. Raises CannotRun."""
    if shutil.which("cc") is None:
        raise CannotRun("there is no C compiler (apt install gcc)")
    program = folder / name
    command = ["cc", "-O2", "-o", str(program), str(_HERE / f"{name}.c"), *_LIBRARIES[name]]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise CannotRun(f"{name}.c cannot be built (apt install libyaml-dev): {built.stderr.splitlines()[0]}")
    return program
