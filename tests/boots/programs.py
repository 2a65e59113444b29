"""Programs that boots need: one that is missing is a failure, never a reason to skip."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    return found or pytest.fail(f"needs the program {name}: `make test-boot` installs it")


def file(path: str) -> Path:
    """A file of a package."""
    return Path(path) if Path(path).exists() else pytest.fail(f"needs {path}: `make test-boot` installs it")


@contextmanager
def running(command: list[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the context."""
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        end_process(process)


def end_process(process: subprocess.Popen[bytes], within_s: float = 60) -> None:
    """Tell it to end, and see to it that it does."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
