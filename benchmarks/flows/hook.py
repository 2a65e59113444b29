"""The hook that records calls inside a gitboot process.

`benchmarks.flows.tracing` copies this file to ``sitecustomize.py`` in a directory on PYTHONPATH. Python then runs the
file at the start of every process. The file imports only the standard library, because it runs before gitboot.

Each process appends to a file of its own with one write per call, so that a process that is killed, or that ends by
`os._exit`, loses no call. A line of a file is one of:

    p PROCESS                   what runs in this process
    f NUMBER MODULE FUNCTION    a function, before its first call
    c WINDOW NANOSECONDS NUMBER a call, by CLOCK_MONOTONIC, which all processes share
"""

from __future__ import annotations

import mmap
import os
import re
import sys
import threading
import time
from opcode import opmap
from types import CodeType, FrameType
from typing import Any

# No GITBOOT_ in the names: gitboot removes such variables from the environment of its child processes.
DIRECTORY = "TRACE_FLOWS_DIRECTORY"
PACKAGE = "TRACE_FLOWS_PACKAGE"  # the folder of the package whose calls are recorded
WINDOW = "window"  # a file of one byte in DIRECTORY: the number of the open window; 0: none is open

_COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>"}  # Python 3.12 calls no function for them
_NESTED = re.compile(r"(\.<\w+>)+$")  # a lambda or a generator expression counts as its function
_IS_FUNCTION = 0x1  # CO_OPTIMIZED: the bodies of modules and classes do not have it
_IS_GENERATOR = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_RESUME = opmap["RESUME"]


class Recorder:
    """Writes the calls of one process, and of each process that it forks."""

    def __init__(self, directory: str, package: str) -> None:
        self._directory = directory
        self._package = package.rstrip("/")
        with open(f"{directory}/{WINDOW}", "rb") as window:
            self._window = mmap.mmap(window.fileno(), 1, access=mmap.ACCESS_READ)
        self._process = _name_of_process(sys.orig_argv)
        self._open()

    def _open(self) -> None:
        # By the code's address: the hash of a code object reads all of it. Keep the code object, so that Python does
        # not reuse its address.
        self._functions: dict[int, tuple[CodeType, int | None, int]] = {}
        name = f"{self._directory}/{time.monotonic_ns()}-{os.getpid()}.calls"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, f"p {self._process}\n".encode())

    def follow_fork(self) -> None:
        """Record a forked child in a file of its own."""
        os.close(self._file)
        self._process = f"{self._process.removesuffix(' (fork)')} (fork)"
        self._open()

    def call(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call. For `sys.settrace`: it returns None, so that Python reports no lines."""
        if (window := self._window[0]) == 0 or event != "call":
            return
        code = frame.f_code
        known = self._functions.get(id(code))
        if known is None:
            known = self._functions[id(code)] = self._describe(code)
        _, number, start = known
        if number is None or (start >= 0 and frame.f_lasti != start):  # a generator that goes on is not called
            return
        os.write(self._file, b"c %d %d %d\n" % (window, time.monotonic_ns(), number))

    def _describe(self, code: CodeType) -> tuple[CodeType, int | None, int]:
        """Return the code, its number if its calls are recorded, and the offset at which a generator starts or -1."""
        path = code.co_filename
        is_function = code.co_flags & _IS_FUNCTION and code.co_name not in _COMPREHENSIONS
        if not is_function or not path.startswith(f"{self._package}/"):
            return code, None, -1
        parts = [os.path.basename(self._package), *path[len(self._package) + 1 :].removesuffix(".py").split("/")]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        function = _NESTED.sub("", code.co_qualname).replace(".<locals>", "")
        number = len(self._functions)
        os.write(self._file, f"f {number} {module} {function}\n".encode())
        return code, number, _start_of_generator(code)


def _start_of_generator(code: CodeType) -> int:
    if not code.co_flags & _IS_GENERATOR:
        return -1
    instructions = code.co_code
    starts = (
        offset
        for offset in range(0, len(instructions), 2)
        if instructions[offset] == _RESUME and instructions[offset + 1] & 3 == 0
    )
    return next(starts, -1)


def _name_of_process(command: list[str]) -> str:
    """Return the module that a command runs, with its subcommand if the module is the package itself."""
    if "-m" not in command[:-1]:
        return os.path.basename(command[0])
    module, *arguments = command[command.index("-m") + 1 :]
    if "." not in module and arguments and not arguments[0].startswith("-"):
        return f"{module} {arguments[0]}"
    return module


def install() -> None:
    """Record the calls of this process from now on."""
    recorder = Recorder(os.environ[DIRECTORY], os.environ[PACKAGE])
    os.register_at_fork(after_in_child=recorder.follow_fork)
    # settrace, not setprofile: Python reports returns and calls of built-in functions to a profiler too, which
    # makes gitboot several times as slow.
    threading.settrace(recorder.call)
    sys.settrace(recorder.call)


if __name__ == "sitecustomize" and DIRECTORY in os.environ:
    install()
