"""Calls of gitboot's processes in a window of time: recorded, and read as processes, modules and functions."""

from __future__ import annotations

import importlib.util
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.flows import hook


class Function(NamedTuple):
    """A function of a module, as one kind of process calls it."""

    process: str
    module: str
    name: str


class Calls(NamedTuple):
    """The calls of one function in one window."""

    first_ns: int
    number: int


Window = dict[Function, Calls]  # in the order of the first calls


class Tracing:
    """A folder in which gitboot's processes record the calls that they make while a window is open."""

    def __init__(self, folder: Path) -> None:
        (folder / "records").mkdir()
        self._records = folder / "records"
        (self._records / hook.WINDOW).write_bytes(b"\0")
        with (self._records / hook.WINDOW).open("r+b") as window:
            self._open = mmap.mmap(window.fileno(), 1)
        self._windows = 0
        (folder / "path").mkdir()
        self._path = folder / "path"
        shutil.copy(hook.__file__, self._path / "sitecustomize.py")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program whose calls, and whose children's, are recorded."""
        spec = importlib.util.find_spec("gitboot")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError("gitboot is not installed")
        (package,) = spec.submodule_search_locations
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self._path), os.environ.get("PYTHONPATH")))),
            hook.DIRECTORY: str(self._records),
            hook.PACKAGE: package,
        }

    @contextmanager
    def window(self) -> Iterator[int]:
        """Record from here to the end of the block; yield the number of the window."""
        self._windows += 1
        self._open[0] = self._windows  # a byte: `ValueError` after 255 windows
        try:
            yield self._windows
        finally:
            self._open[0] = 0

    def read(self) -> dict[int, Window]:
        """Return the calls of each window that was closed."""
        found: dict[int, Window] = {number: {} for number in range(1, self._windows + 1)}
        for path in sorted(self._records.glob("*.calls")):
            process, functions = "", dict[bytes, Function]()
            for line in path.read_bytes().split(b"\n")[:-1]:  # what a killed process did not finish is not a line
                kind, _, rest = line.partition(b" ")
                if kind == b"p":
                    process = rest.decode()
                elif kind == b"f":
                    number, module, name = rest.decode().split(" ", 2)
                    functions[number.encode()] = Function(process, module, name)
                else:
                    window, when, number_ = rest.split(b" ")
                    calls, function = found[int(window)], functions[number_]
                    before = calls.get(function, Calls(int(when), 0))
                    calls[function] = Calls(min(before.first_ns, int(when)), before.number + 1)
        return {
            number: dict(sorted(calls.items(), key=lambda each: each[1].first_ns)) for number, calls in found.items()
        }
