"""Endpoints as processes of their own: start them, watch them, replace those that end or hang, and end them all."""

from __future__ import annotations

import logging
import os
import select
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
from gitboot.child_processes import spawn
from gitboot.status.instance_status import Endpoints

_logger = logging.getLogger(__name__)

_END_S: Final = 5  # between SIGTERM and SIGKILL
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_STEADY_S: Final = 30  # who has run for so long may begin again at once

# A process shows life once a second. These are seconds in which this process ran itself, so that a machine that was
# suspended, or is short of everything, is no reason.
_SILENT_S: Final = 10  # without a sign of life: it does not respond
_HUNG_S: Final = 30  # then gitboot replaces it
_STARTING_S: Final = 50  # more, until the first sign of life


class Workers:
    """As many processes as wanted that serve at one socket, within a block.

    ``command`` gets the socket as ``--fd``, one that is for operators alone as ``--operators-fd``, and as ``--life-fd``
    a pipe to which it writes while it responds. A process that does not, such as one that was sent SIGSTOP, is killed
    and replaced. ``on_change`` is called, from any thread, when a process ends, begins, responds no more or again.
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
        self._silent_s = [0] * count  # for how long each process has shown no life
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
            running = [process is not None and process.poll() is None for process in self._processes]
            hung = sum(each >= _SILENT_S for each, runs in zip(self._silent_s, running, strict=True) if runs)
            return Endpoints(wanted=self._count, alive=sum(running) - hung, restarts=self._restarts, hung=hung)

    def _keep(self, number: int) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            began = time.monotonic()
            if (begun := self._begin(number)) is None:
                return
            self._watch(number, *begun)
            if time.monotonic() - began >= _STEADY_S:
                pause_s = 0.0
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            if not self._stopping.is_set():
                with self._lock:
                    self._restarts += 1
                self._on_change()

    def _begin(self, number: int) -> tuple[subprocess.Popen[bytes], int] | None:
        """Start a process, and return it with the pipe that it writes to while it responds."""
        with self._lock:
            if self._stopping.is_set():
                return None
            life, writing = os.pipe()
            command = [*self._command, "--life-fd", str(writing)]
            try:
                process = spawn(command, pass_fds=[*(each.fileno() for each in self._sockets), writing])
            except BaseException:
                os.close(life)
                raise
            finally:
                os.close(writing)
            self._processes[number], self._silent_s[number] = process, 0
        self._on_change()
        return process, life

    def _watch(self, number: int, process: subprocess.Popen[bytes], life: int) -> None:
        """Wait until a process has ended; kill it if it hangs."""
        poll = select.poll()
        poll.register(life, select.POLLIN)
        silent_s = -_STARTING_S
        while process.poll() is None:
            if poll.poll(1000):
                if not os.read(life, 4096):
                    break
                silent_s = 0
            else:
                silent_s += 1
                if silent_s == _HUNG_S:
                    _logger.error("endpoint process %d has not responded for %d s: replaced", process.pid, silent_s)
                    process.kill()
            self._note_silence(number, silent_s)
        process.wait()
        os.close(life)

    def _note_silence(self, number: int, silent_s: int) -> None:
        with self._lock:
            before, self._silent_s[number] = self._silent_s[number], silent_s
        if (before >= _SILENT_S) is not (silent_s >= _SILENT_S):
            self._on_change()
