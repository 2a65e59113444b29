"""Debian's packages whose programs judge documents: unpacked, not installed, so that they start no service."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.boots.debian import unpacked

_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


@cache
def unpack(package: str) -> Path:
    """The folder with the files of a package. Where it cannot be fetched, the test is left out, but fails in CI."""
    if not os.environ.get("CI") and shutil.which("apt-get") is None:
        pytest.skip(f"needs Debian's package {package}")
    try:
        return unpacked(package, _ARCHITECTURE[platform.machine()])
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs Debian's package {package}")
