"""A PostgreSQL server with a schema for each ledger, and connections to it that tests can stop."""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final, Self

import psycopg
import pytest

from gitboot.ledger.store import PostgresAddress, write_address
from tests.helpers.forked_commands import join

_USER: Final = "postgres"  # it does not run as root
_SCHEMAS: Final = count(1)


def find_programs() -> Path | None:
    if (program := shutil.which("initdb")) is not None:
        return Path(program).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name))
    return found[-1] if found else None


def _program(name: str) -> Path:
    folder = find_programs()
    assert folder is not None, "postgresql is not installed: scripts/install-packages"
    return folder / name


@cache
def _empty_cluster() -> Path:
    """Return the data of a server that was never started: to make them takes longer than to start a server."""
    folder = Path(mkdtemp(prefix="gitboot-"))  # another user's program has to come in
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    (data := folder / "data").mkdir(mode=0o700)
    if os.getuid() == 0:
        shutil.chown(data, _USER, _USER)
    options = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", f"--username={_USER}"]
    command = [str(_program("initdb")), "-D", str(data), *options]
    subprocess.run(command, check=True, capture_output=True, user=_find_user(), cwd=folder)
    return data


@dataclass
class PostgresServer:
    """A server in a folder; it listens at a socket there, and optionally at a port of this host."""

    folder: Path
    settings: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    network: str | None = None  # the namespace of the server, if it has its own

    @property
    def port(self) -> str:
        return next((each.partition("=")[2] for each in self.settings if each.startswith("port=")), "5432")

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(self.folder / "socket" / f".s.PGSQL.{self.port}"))
        except OSError:
            made.close()
            raise
        return made

    def make(self, primary: Path | None = None) -> None:
        """Make its folders, and what is in them: of a server of its own, or of a standby of the one at a socket."""
        self.folder.mkdir()
        self.folder.chmod(0o755)  # for any umask: the server of another user must come in
        for each in (data := self.folder / "data", self.folder / "socket"):
            each.mkdir()
            each.chmod(0o700 if each is data else 0o755)
            if os.getuid() == 0:
                shutil.chown(each, _USER, _USER)
        if primary is None:
            command = ["cp", "-a", f"{_empty_cluster()}/.", str(data)]
        else:
            options = ["--no-sync", "--checkpoint=fast", "--write-recovery-conf", f"--username={_USER}"]
            command = [str(_program("pg_basebackup")), "-D", str(data), "-h", str(primary), *options]
        subprocess.run(command, check=True, capture_output=True, user=_find_user(), cwd=self.folder)

    def start(self) -> None:
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder / 'socket'}", *self.settings)
        command = [str(_program("postgres")), "-D", str(self.folder / "data"), *(f"--{each}" for each in settings)]
        with (self.folder / "log").open("ab") as log, ThreadPoolExecutor(1) as thread:

            def begin() -> subprocess.Popen[bytes]:
                if self.network is not None:
                    join(os.open(f"/run/netns/{self.network}", os.O_RDONLY))  # this thread alone
                return subprocess.Popen(command, stdout=log, stderr=log, user=_find_user(), cwd=self.folder)

            self.process = thread.submit(begin).result()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        until_s = time.monotonic() + 300
        while time.monotonic() < until_s:
            with suppress(psycopg.OperationalError):
                self.sql("SELECT 1")
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def replicate(self, folder: Path) -> PostgresServer:
        """Another server that has all that this one has acknowledged from now on, and begins where it is promoted."""
        other = PostgresServer(folder)
        other.make(self.folder / "socket")
        other.start()
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        return other

    def trust_network(self, network: str) -> None:
        """Trust clients from this network after the next start."""
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network} trust\n")

    def tls(self, certificate: Path, key: Path, port: int) -> None:
        """Listen at a port as well from the next start on, encrypted, and by password."""
        for name, file in (("server.pem", certificate), ("server.key", key)):
            copy = self.folder / "data" / name
            copy.write_bytes(file.read_bytes())
            copy.chmod(0o600)
            if os.getuid() == 0:
                shutil.chown(copy, _USER, _USER)
        (self.folder / "hba").write_text("local all postgres trust\nhostssl all gitboot 127.0.0.1/32 scram-sha-256\n")
        (self.folder / "hba").chmod(0o644)
        self.settings = (
            *("listen_addresses=127.0.0.1", f"port={port}", f"hba_file={self.folder / 'hba'}"),
            *("ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key"),
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """By default fast: connections are closed, and what was written is on the disk."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def sql(self, statements: str, database: str = "postgres") -> str:
        """Run statements as an administrator; return a line for each row, as psql prints it without alignment."""
        host, lines = str(self.folder / "socket"), list[str]()
        with psycopg.connect(host=host, port=self.port, user=_USER, dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statements.encode())
            while True:
                if (found := cursor.pgresult) is not None:
                    rows = (
                        (found.get_value(row, column) or b"" for column in range(found.nfields))
                        for row in range(found.ntuples)
                    )
                    lines += (b"|".join(row).decode() for row in rows)
                if not cursor.nextset():
                    return "\n".join(lines)

    def new_schema(self) -> str:
        schema = f"ledger_{os.getpid()}_{next(_SCHEMAS)}"
        self.sql(f"CREATE SCHEMA {schema}")
        return schema

    def address(self, schema: str | None = None) -> PostgresAddress:
        schema = schema or self.new_schema()
        options = f"-csearch_path%3D{schema}"
        return PostgresAddress(url=f"postgresql://{_USER}@/postgres?host={self.folder / 'socket'}&options={options}")

    def ledger(self, folder: Path) -> Path:
        """Return the path of a ledger in ``folder`` that names its own schema of the server."""
        path = folder / "ledger.sqlite"
        write_address(path, self.address())
        return path


def _find_user() -> str | None:
    return _USER if os.getuid() == 0 else None


@contextmanager
def public_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="gitboot-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@contextmanager
def postgresql(
    *settings: str, folder: Path | None = None, network: str | None = None, trusted_networks: tuple[str, ...] = ()
) -> Iterator[PostgresServer]:
    """A server that runs until the block ends, in a folder that its user may enter, and which is gone then."""
    if find_programs() is None and "CI" not in os.environ:
        pytest.skip("needs postgresql: scripts/install-packages")
    with public_folder() as made:
        server = PostgresServer((folder or made) / "postgresql", settings, network=network)
        server.make()
        for each in trusted_networks:
            server.trust_network(each)
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


class ForwardedConnections(ABC):
    """Connections of a socket that are carried to another one; a connection ends when both ends have, or if it is cut.

    A thread never closes a socket that another thread may read: its number may be reused by then.
    """

    def __init__(self, listening: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self.listening, self._connect = listening, connect
        self._open: set[socket.socket] = set()
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.hang_up()

    def hang_up(self) -> None:
        with self._opening:
            for each in self._open:
                _end(each)

    @abstractmethod
    def forward(self, data: bytes) -> bytes:
        """Return the part of ``data`` to carry on; may wait."""

    @property
    def is_stuck(self) -> bool:
        """Return whether no data and no end is carried any more, until all hang up or the client has left."""
        return False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self._hold, args=(client,), daemon=True).start()

    def _hold(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._connect() as server:
            both = [
                threading.Thread(target=self._carry, args=(*ends, client), daemon=True)
                for ends in ((client, server), (server, client))
            ]
            with self._opening:
                self._open |= {client, server}
            for each in both:
                each.start()
            for each in both:
                each.join()
            with self._opening:
                self._open -= {client, server}

    def _carry(self, one: socket.socket, other: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while not self.is_stuck and (data := one.recv(65536)):
                other.sendall(self.forward(data))
        if self.is_stuck:
            ends = select.poll()
            ends.register(client, 0)
            ends.poll()
        _end(other)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
