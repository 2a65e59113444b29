"""HTTP server: open the listening sockets of an endpoint, and run its worker processes."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import uvicorn
import uvloop
from starlette.types import ASGIApp

from gitboot.background_threads import BackgroundThread
from gitboot.child_processes import spawn
from gitboot.endpoint.connections import Connection
from gitboot.endpoint.tls import TlsSocket
from gitboot.errors import UsageError

if TYPE_CHECKING:
    from gitboot.status.instance_status import Endpoints

_logger = logging.getLogger(__name__)
_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 30  # firmware and boot loaders may wait for a long time between two files
_STUCK_CHECK_S: Final = 2
# the shortest and the longest pause before gitboot restarts a worker
_MIN_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
_STEADY_S: Final = 30  # the next pause is the shortest one if the worker ran at least for this time


class EndpointServer:
    """Serves ``app`` on listening sockets from `start` until `stop`. Other processes may use the same sockets.

    ``tls_sockets`` are additional sockets for TLS. The server does not handle signals. The caller must handle signals
    and call `stop`.
    """

    def __init__(self, app: ASGIApp, *listening_sockets: socket.socket, tls_sockets: Sequence[TlsSocket] = ()) -> None:
        self._sockets = listening_sockets
        self._config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,  # the log does not contain errors that clients cause
            access_log=False,
            proxy_headers=False,  # gitboot.endpoint.access_control, and not uvicorn, decides which proxies are trusted
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._server = _Server(self._config, tls_sockets)
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5) -> None:
        """Stop accepting requests, and wait for the current requests to end, but no longer than ``timeout_s``."""
        self._config.timeout_graceful_shutdown = math.ceil(timeout_s)
        self._server.should_exit = True
        self._thread.join()

    def write_heartbeat(self, pipe: int) -> None:
        """Make the serving thread write a byte to ``pipe``. The byte proves that the thread responds."""
        self._server.heartbeat_pipe = pipe

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=list(self._sockets)))


class _Server(uvicorn.Server):
    """uvicorn's server with additional TLS sockets. uvicorn itself cannot treat sockets differently."""

    def __init__(self, config: uvicorn.Config, tls_sockets: Sequence[TlsSocket]) -> None:
        super().__init__(config)
        self._tls_sockets = tls_sockets
        self._accepting: list[asyncio.Task[None]] = []
        self._stuck_checked_s = time.monotonic()  # the monotonic time of the last check for clients that are too slow
        self.heartbeat_pipe: int | None = None  # the pipe for the next heartbeat; None: no heartbeat is due

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepting = [
            asyncio.create_task(
                tls_socket.accept_clients(
                    lambda: Connection(self.config, self.server_state, self.lifespan.state),
                    self.server_state.connections,
                )
            )
            for tls_socket in self._tls_sockets
        ]

    async def on_tick(self, counter: int) -> bool:
        """Write a heartbeat, and abort the connections of slow clients.

        uvicorn calls this method ten times a second.
        """
        if self.heartbeat_pipe is not None:
            with suppress(BlockingIOError):  # a full pipe also shows that the thread responds
                os.write(self.heartbeat_pipe, b".")
            self.heartbeat_pipe = None
        lag_s = time.monotonic() - self._stuck_checked_s - _STUCK_CHECK_S
        if lag_s >= 0:
            self._stuck_checked_s = time.monotonic()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.abort_if_stuck(lag_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)


def open_listening_socket(address: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT. Port 0 selects a free port.

    Raises `UsageError` if gitboot cannot use the address.
    """
    host, port = _parse_listen_address(address)
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise UsageError(f"cannot listen at {_format_url(host, port)}: {error.strerror}") from error


def build_url(address: str, listening_socket: socket.socket, scheme: str = "http") -> str:
    """Return the base URL of a listening socket. If the port was 0, the URL contains the selected port."""
    return _format_url(_parse_listen_address(address)[0], listening_socket.getsockname()[1], scheme)


def _format_url(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _parse_listen_address(address: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/\s]+)):([0-9]{1,5})", address)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f'expected HOST:PORT or [HOST]:PORT to listen on, found "{address}"')
    return match[1] or match[2], int(match[3])


# Worker processes


class WorkerLimits(NamedTuple):
    """The time limits for worker processes. Each worker writes a heartbeat once a second.

    gitboot counts only seconds in which this process itself ran. Otherwise, workers would count as hung after the host
    was suspended or overloaded.
    """

    silent_s: int = 10  # after this time without a heartbeat, the worker counts as not responding
    hung_s: int = 30  # after this time without a heartbeat, gitboot replaces the worker
    starting_s: int = 50  # additional time until the first heartbeat
    end_s: float = 5  # the time between SIGTERM and SIGKILL


_LIMITS: Final = WorkerLimits()


class Workers:
    """Worker processes that serve on one socket until the end of a `with` block.

    gitboot passes the socket to ``command`` as ``--fd``, the operators' socket as ``--operators-fd``, the TLS socket
    for machines as ``--machines-tls-fd``, and a pipe as ``--life-fd``. Each worker writes to the pipe as long as it
    responds. gitboot kills and replaces a worker that stops writing, for example after SIGSTOP. ``on_change`` is called
    from any thread when a worker starts, ends, stops responding or responds again.
    """

    def __init__(
        self,
        command: Sequence[str],
        listening_socket: socket.socket,
        count: int,
        on_change: Callable[[], None] = lambda: None,
        *,
        operators: socket.socket | None = None,
        machines_tls: socket.socket | None = None,
        limits: WorkerLimits = _LIMITS,
    ) -> None:
        sockets = {"--fd": listening_socket, "--operators-fd": operators, "--machines-tls-fd": machines_tls}
        self._sockets_by_option = {option: opened for option, opened in sockets.items() if opened is not None}
        self._command = list(command)
        for option, opened in self._sockets_by_option.items():
            self._command += [option, str(opened.fileno())]
        self._count, self._on_change, self._limits = count, on_change, limits
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._silent_s = [0] * count  # the seconds since the last heartbeat of each worker
        self._restarts = 0
        self._stopping = threading.Event()
        # Linux ends a worker when the thread that started the worker ends. Therefore this thread also waits for the
        # worker.
        self._threads = [
            BackgroundThread(
                partial(self._keep_worker_running, number), name=f"endpoint {number}", on_death=lambda _: on_change()
            )
            for number in range(count)
        ]

    def close(self) -> None:
        """End all workers within a few seconds."""
        self._stopping.set()
        with self._lock:
            processes = [process for process in self._processes if process is not None]
        for process in processes:
            process.terminate()
        deadline_s = time.monotonic() + self._limits.end_s
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(deadline_s - time.monotonic(), 0))
        for process in processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for opened in self._sockets_by_option.values():
            opened.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count_processes(self) -> Endpoints:
        # gitboot imports this module here, so that `gitboot serve` starts faster
        from gitboot.status.instance_status import Endpoints

        with self._lock:
            running = [process is not None and process.poll() is None for process in self._processes]
            hung = sum(
                is_running and silent_s >= self._limits.silent_s
                for is_running, silent_s in zip(running, self._silent_s, strict=True)
            )
            return Endpoints(expected=self._count, alive=sum(running) - hung, restarts=self._restarts, hung=hung)

    def _keep_worker_running(self, number: int) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            began_s = time.monotonic()
            started = self._start_process(number)
            if started is None:
                return
            process, heartbeat_fd = started
            self._watch_process(number, process, heartbeat_fd)
            if time.monotonic() - began_s >= _STEADY_S:
                pause_s = 0.0
            pause_s = min(max(2 * pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S)
            if not self._stopping.is_set():
                with self._lock:
                    self._restarts += 1
                self._on_change()

    def _start_process(self, number: int) -> tuple[subprocess.Popen[bytes], int] | None:
        """Start a worker. Return the worker and its heartbeat pipe, or None if gitboot is ending all workers."""
        with self._lock:
            if self._stopping.is_set():
                return None
            read_fd, write_fd = os.pipe()
            command = [*self._command, "--life-fd", str(write_fd)]
            socket_fds = [opened.fileno() for opened in self._sockets_by_option.values()]
            try:
                process = spawn(command, pass_fds=[*socket_fds, write_fd])
            except BaseException:
                os.close(read_fd)
                raise
            finally:
                os.close(write_fd)
            self._processes[number], self._silent_s[number] = process, 0
        self._on_change()
        return process, read_fd

    def _watch_process(self, number: int, process: subprocess.Popen[bytes], heartbeat_fd: int) -> None:
        """Wait until a worker has ended, and kill a worker that does not respond."""
        poll = select.poll()
        poll.register(heartbeat_fd, select.POLLIN)
        silent_s = -self._limits.starting_s
        while process.poll() is None:
            if poll.poll(1000):
                if not os.read(heartbeat_fd, 4096):
                    break
                silent_s = 0
            else:
                silent_s += 1
                if silent_s == self._limits.hung_s:
                    _logger.error(
                        "endpoint process %d has not responded for %d s, so gitboot is replacing this process",
                        process.pid,
                        silent_s,
                    )
                    process.kill()
            with self._lock:
                was_silent = self._silent_s[number] >= self._limits.silent_s
                self._silent_s[number] = silent_s
            if was_silent is not (silent_s >= self._limits.silent_s):
                self._on_change()
        process.wait()
        os.close(heartbeat_fd)
