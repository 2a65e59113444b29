"""Cobbler from PyPI, in a mount namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.cost import Cost, last_words
from benchmarks.place import Place
from benchmarks.row import CannotRun

_PROGRAM: Final = Path(__file__).resolve().parent / "floors" / "cobbler.sh"
_COBBLER: Final = "cobbler==3.3.10"
# Without its requirements for a web server and LDAP, which pip would have to compile: `sync` does not use them.
_NEEDS: Final = ["Cheetah3", "distro", "dnspython", "file-magic", "netaddr", "pymongo", "pyyaml", "requests", "schema"]


def sync(place: Place) -> Cost:
    """Run `cobbler sync` for as many systems as the place has servers. Raises CannotRun."""
    if os.geteuid():
        raise CannotRun("a mount namespace for cobbler's folders needs root")
    command = ["sh", str(_PROGRAM), str(_install(place.tools)), str(place.servers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"cobbler sync failed: {last_words(done.stderr.encode())}")
    cpu_s, wall_s = map(float, done.stdout.split())
    return Cost(cpu_s=cpu_s, wall_s=wall_s)


@cache
def _install(folder: Path) -> Path:
    venv = folder / "cobbler"
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--no-deps", _COBBLER],
        [*pip, *_NEEDS],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotRun(f"{_COBBLER} cannot be installed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return venv
