"""Two hosts with one ledger in a PostgreSQL, of which one acts and one stands by; and what may befall them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import pytest

from gitboot.ledger.location import PostgresAddress
from tests.helpers.configuration import configured
from tests.helpers.instance_process import Instance, children, eventually
from tests.helpers.instance_with_bmcs import Blade, Rack
from tests.helpers.postgresql import CarriedConnections, PostgresServer, postgresql

LEASE_S: Final = 10  # long enough for a host that is slow; who is killed is not waited for so long


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgresql() as server:
        yield server


@dataclass
class Host:
    """A host, on which `gitboot run` runs at times."""

    rack: Rack
    name: str
    ledger: PostgresAddress
    instance: Instance | None = None
    told: list[dict[str, Any]] = field(default_factory=list)  # by those that have ended
    _paused: list[int] = field(default_factory=list)
    _reader: threading.Thread = field(default_factory=threading.Thread)

    @property
    def folder(self) -> Path:
        return self.rack.folder / self.name

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def url(self) -> str:
        """Where it answers machines; empty while it does not act."""
        told = [event["type"] for event in self.events if event["type"] in ("Listening", "LeaseLost", "Stopped")]
        return self.instance.url if self.instance is not None and told[-1:] == ["Listening"] else ""

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.instance.events if self.instance is not None else []

    @property
    def condition(self) -> dict[str, Any]:
        """The first of what it says of itself; nothing before it has said something."""
        try:
            found: dict[str, Any] = json.loads((self.state / "status.json").read_bytes())["conditions"][0]
        except FileNotFoundError:
            return {}
        return found

    @property
    def reason(self) -> str | None:
        return self.condition.get("reason")

    def told_of(self, type: str) -> bool:
        return any(event["type"] == type for event in self.events)

    def start(self) -> None:
        places = ("--out", self.folder / "output", "--state", self.state, "--listen", "127.0.0.1:0")
        more = ("--credentials", self.rack.credentials, "--poll", "1", "--ledger", self.ledger.url)
        lease = configured(lease_seconds=LEASE_S, max_reinstalls=1)
        self.instance = Instance.start("run", *map(str, (self.rack.repository.bare, *places, *more, *lease)))
        self._reader = threading.Thread(target=self.instance.read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        assert self.instance is not None
        self.instance.process.send_signal(signal.SIGTERM)
        assert self.instance.process.wait(120) == 0, self.events[-3:]
        self._leave()

    def kill(self) -> None:
        if self.instance is not None:
            self.resume()
            self.instance.process.kill()
            self.instance.process.wait(120)
            self._leave()

    def pause(self) -> None:
        """Stop all of its processes where they are, as a host that is suspended."""
        assert self.instance is not None
        self._paused = [self.instance.process.pid, *children(self.instance.process.pid)]
        for process in self._paused:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def resume(self) -> None:
        for process in self._paused:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        self._paused = []

    def _leave(self) -> None:
        if self.instance is not None:
            self._reader.join(60)
            self.instance.errors.close()
            self.told += self.instance.events
            self.instance = None


@dataclass
class Pair:
    """Both hosts, and the server that has their ledger."""

    server: PostgresServer
    schema: str
    one: Host
    two: Host

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.one, self.two

    def lease(self) -> tuple[int, str] | None:
        """The number of the lease, and the name of the host that has it now."""
        told = self.server.sql(f"SELECT epoch || ' ' || place FROM {self.schema}.lease WHERE until > clock_timestamp()")
        epoch, _, place = told.partition(" ")
        return (int(epoch), _host_at(place)) if told else None

    def _holder(self) -> str:
        """The name of the host that has had the lease last."""
        return _host_at(self.server.sql(f"SELECT place FROM {self.schema}.lease"))

    @property
    def last_epoch(self) -> int:
        """The number of the lease, whether it has run out or not."""
        return int(self.server.sql(f"SELECT epoch FROM {self.schema}.lease"))

    def acting(self) -> Host | None:
        """The host that has the lease and answers machines."""
        if (lease := self.lease()) is None:
            return None
        host = self.one if lease[1] == self.one.name else self.two
        return host if host.url else None

    def other(self, host: Host) -> Host:
        return self.two if host is self.one else self.one

    def taken_over(self, before: int) -> Host:
        """The host that acts under a later lease; the lease of a host that was killed runs out at once."""
        if any(host.instance is None and self._holder() == host.name for host in self.hosts):
            self.server.sql(f"UPDATE {self.schema}.lease SET until = clock_timestamp() WHERE epoch = {before}")

        def look() -> Host | None:
            lease = self.lease()
            return self.acting() if lease is not None and lease[0] > before else None

        found: Host = eventually(look)
        return found


def _host_at(place: str) -> str:
    return Path(place.partition(":")[2]).parent.name


@contextmanager
def pair(
    rack: Rack, server: PostgresServer, address: PostgresAddress, other: PostgresAddress | None = None
) -> Iterator[Pair]:
    """Two hosts, none of which runs yet; the second may reach the server by another address."""
    rack.address, hosts = address, (Host(rack, "one", address), Host(rack, "two", other or address))
    try:
        yield Pair(server, address.url.rpartition("%3D")[2], *hosts)
    finally:
        for host in hosts:
            host.kill()


def boots(web: Blade, host: Host) -> str:
    """What its machine is answered after a reset."""
    assert host.instance is not None
    web.machine.run_through()
    return host.instance.get(web.entry).text


class Links(Protocol):
    """How both hosts reach the server of their ledger; a link that is cut swallows what is sent, and tells nobody."""

    def address(self, schema: str, host: int) -> PostgresAddress:
        """By which the first host, or the second one, reaches it."""

    def may_cut(self, host: int) -> bool: ...
    def cut(self, host: int) -> None: ...
    def join(self, host: int) -> None: ...


@contextmanager
def apart() -> Iterator[tuple[PostgresServer, Links]]:
    """A server in a network of its own, with a cable to each host; where none can be made, one by a wire of ours."""
    with ExitStack() as stack:
        if (cables := Cables.laid(stack)) is not None:
            made = postgresql("listen_addresses=*", network=cables.network, lets_in=("198.18.0.0/15",))
            yield stack.enter_context(made), cables
        else:
            server = stack.enter_context(postgresql())
            yield server, stack.enter_context(Wire(server))


@dataclass(frozen=True)
class Cables:
    """A network namespace with a link to this one for each host."""

    network: str
    addresses: tuple[str, ...]  # of the other ends

    @classmethod
    def laid(cls, stack: ExitStack) -> Self | None:
        """None: it takes a right that this process has not."""
        name = f"gitboot-{os.getpid()}-ledger"
        if shutil.which("ip") is None or not _done("ip", "netns", "add", name):
            return None
        stack.callback(_done, "ip", "netns", "delete", name)
        found = []
        for number in range(2):
            here, there = f"gb{os.getpid()}-{number}", f"eth{number}"
            ours, theirs = (f"198.18.{os.getpid() % 256}.{4 * number + end}" for end in (1, 2))
            for command in (
                f"ip link add {here} type veth peer name {there} netns {name}",
                f"ip address add {ours}/30 dev {here}",
                f"ip link set {here} up",
                f"ip -n {name} address add {theirs}/30 dev {there}",
                f"ip -n {name} link set {there} up",
            ):
                assert _done(*command.split()), command
            found.append(theirs)
        return cls(name, tuple(found))

    def address(self, schema: str, host: int) -> PostgresAddress:
        return _by_tcp(schema, f"{self.addresses[host]}:5432")

    def may_cut(self, _: int) -> bool:
        return True

    def cut(self, host: int) -> None:
        assert _done("ip", "-n", self.network, "link", "set", f"eth{host}", "down")

    def join(self, host: int) -> None:
        assert _done("ip", "-n", self.network, "link", "set", f"eth{host}", "up")


def _done(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _by_tcp(schema: str, place: str) -> PostgresAddress:
    options = f"sslmode=disable&options=-csearch_path%3D{schema}"
    return PostgresAddress(url=f"postgresql://postgres@{place}/postgres?{options}")


class Wire(CarriedConnections):
    """TCP connections of the second host that a thread carries, until they are cut; the first one has the socket."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(socket.create_server(("127.0.0.1", 0)), server.connect)
        self._server, self.is_cut = server, False
        self._joined = threading.Condition()

    def address(self, schema: str, host: int) -> PostgresAddress:
        port = self.listening.getsockname()[1]
        return _by_tcp(schema, f"127.0.0.1:{port}") if self.may_cut(host) else self._server.address(schema)

    def may_cut(self, host: int) -> bool:
        return host == 1

    def __exit__(self, *_: object) -> None:
        self.join(1)
        super().__exit__()

    def cut(self, _: int) -> None:
        self.is_cut = True

    def join(self, _: int) -> None:
        with self._joined:
            self.is_cut = False
            self._joined.notify_all()

    def carried(self, data: bytes) -> bytes:
        with self._joined:
            self._joined.wait_for(lambda: not self.is_cut)
        return data
