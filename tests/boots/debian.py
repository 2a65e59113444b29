"""Debian's packages of any architecture and of a newer release: unpacked, not installed, and cached in .cache/.

APT runs with its own state beside that of the machine: the same mirrors and keys, but only the requested lists.
"""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.boots.programs import file, program

_CACHE: Final = Path(__file__).parents[2] / ".cache" / "boots"
_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"


@cache
def unpacked(package: str, architecture: str, release: str | None = None) -> Path:
    """The folder that holds the package's files; ``release`` is another one's codename."""
    apt = _apt(architecture, release)
    with apt.locked():
        [described] = apt.run("apt-get", "--print-uris", "download", package).splitlines()
        made = apt.folder / described.split()[1].removesuffix(".deb")  # name, version and architecture
        if not made.exists():
            _unpack(apt, package, made)
    return made


@cache
def dependencies(package: str, architecture: str) -> tuple[str, ...]:
    """The packages that it depends on."""
    apt = _apt(architecture, None)
    with apt.locked():
        shown = apt.run("apt-cache", "depends", "--important", package)
    return tuple(line.split()[-1] for line in shown.splitlines() if "Depends:" in line)


def download(package: str, architecture: str, release: str, folder: Path) -> None:
    """Put the file of a package into a folder."""
    apt = _apt(architecture, release)
    with apt.locked():
        apt.run("apt-get", "download", package, within=str(folder))


def _unpack(apt: _Apt, package: str, made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=apt.folder) as scratch:
        apt.run("apt-get", "download", package, within=scratch)
        [archive] = Path(scratch).glob("*.deb")
        subprocess.run([program("dpkg-deb"), "--extract", archive, Path(scratch, "root")], check=True)
        os.rename(Path(scratch, "root"), made)  # whole, or not at all


@dataclass(frozen=True, kw_only=True, slots=True)
class _Apt:
    """APT with a state of its own."""

    folder: Path
    options: tuple[str, ...]

    def run(self, name: str, *arguments: str, within: str | None = None) -> str:
        command = [program(name), "-qq", *self.options, *arguments]
        return subprocess.run(command, cwd=within, stdout=subprocess.PIPE, text=True, check=True).stdout

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Without another process that works with the same state."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@cache
def _apt(architecture: str, release: str | None) -> _Apt:
    """For the packages of one architecture and release; its lists are brought up to date once a run."""
    folder = _CACHE / f"{release or platform.freedesktop_os_release()['VERSION_CODENAME']}-{architecture}"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",  # another could not come to this folder
        "Dir::State::lists": f"{folder}/lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": f"{folder}/cache",
        **{f"Dir::Cache::{name}": f"{name}.bin" for name in ("pkgcache", "srcpkgcache")},  # containers go without
    }
    if release is not None:
        sources = folder / "sources.list"
        sources.write_text(f"deb [signed-by={file(_KEYS)}] {_find_mirror(architecture)} {release} main\n")
        settings |= {"Dir::Etc::sourcelist": str(sources), "Dir::Etc::sourceparts": "/dev/null"}
    apt = _Apt(folder=folder, options=tuple(f"--option={name}={value}" for name, value in settings.items()))
    with apt.locked():
        apt.run("apt-get", "update")
    return apt


def _find_mirror(architecture: str) -> str:
    """The URI that this machine has Debian from."""
    filters = ("Label: Debian", "Component: main", "Created-By: Packages")
    found = _apt(architecture, None).run("apt-get", "indextargets", "--format=$(REPO_URI)", *filters)
    return found.splitlines()[0]
