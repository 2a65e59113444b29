"""Endpoints as processes of their own: started, watched, started again, and ended with who started them."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

from gitboot.background_threads import BackgroundThread
from gitboot.processes import spawn
from gitboot.status import Endpoints

_END_S: Final = 5  # between SIGTERM and SIGKILL
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_STEADY_S: Final = 30  # who has run for so long may begin again at once


class Workers:
    """As many processes as wanted that serve at one socket, within a block.

    ``command`` gets the socket as ``--fd``, one that is for operators alone as ``--operators-fd``.
    ``on_change`` is called, from any thread, when one has ended or begun.
    """

    def __init__(
        self,
        command: Sequence[str],
        listening: socket.socket,
        count: int,
        on_change: Callable[[], None] = lambda: None,
        *,
        operators: socket.socket | None = None,
    ) -> None:
        self._command = [*command, "--fd", str(listening.fileno())]
        if operators is not None:
            self._command += ["--operators-fd", str(operators.fileno())]
        self._sockets = [listening] if operators is None else [listening, operators]
        self._count, self._on_change = count, on_change
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._restarts = 0
        self._stopping = threading.Event()
        # The system ends a worker with the thread that started it, so that thread waits for it too.
        self._threads = [
            BackgroundThread(partial(self._keep, number), name=f"endpoint {number}", on_death=lambda _: on_change())
            for number in range(count)
        ]

    def close(self) -> None:
        """End all of them, within a few seconds."""
        self._stopping.set()
        with self._lock:
            processes = [process for process in self._processes if process is not None]
        for process in processes:
            process.terminate()
        until = time.monotonic() + _END_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(until - time.monotonic(), 0))
        for process in processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def counted(self) -> Endpoints:
        with self._lock:
            alive = [process for process in self._processes if process is not None and process.poll() is None]
            return Endpoints(wanted=self._count, alive=len(alive), restarts=self._restarts)

    def _keep(self, number: int) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            began = time.monotonic()
            if (process := self._begin(number)) is None:
                return
            process.wait()
            if time.monotonic() - began >= _STEADY_S:
                pause_s = 0.0
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            if not self._stopping.is_set():
                with self._lock:
                    self._restarts += 1
                self._on_change()

    def _begin(self, number: int) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            self._processes[number] = process = spawn(self._command, pass_fds=[each.fileno() for each in self._sockets])
        self._on_change()
        return process
