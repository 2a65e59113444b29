"""A rack: servers with BMCs, the instance that drives them, and two hosts, one of them a standby."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self
from unittest.mock import patch

from gitboot.cli.main import main
from gitboot.ledger.store import PostgresAddress
from tests.helpers.fleets import (
    fleet,
    image,
    make_mac,
    make_uuid,
    name_ledger,
    policy,
    profile,
    store_credentials,
    write_configuration,
)
from tests.helpers.fleets import server as server_document
from tests.helpers.instance_in_process import evaluate_in_process
from tests.helpers.postgresql import ForwardedConnections, PostgresServer, postgresql
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, TARGET, Profile
from tests.helpers.redfish_double.server import Drop, RedfishServer, Service
from tests.helpers.running_instance import (
    Instance,
    Repository,
    close_after,
    create_ledger,
    eventually,
    list_children,
    running,
)

# A rack: servers with BMCs, the instance that drives them, and the commands as a person types them.

USER, PASSWORD = "root", "correct-horse-staple"
POOL = (image("flatcar-1"), image("flatcar-2"), profile("web", "flatcar-1"), policy("web", often="Once"))
BASE_URL = "baseURL: 'http://boot.test'"


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_command(*arguments: object) -> CommandResult:
    """Type a command, in this process; what is not raised on purpose reaches the test as it is."""
    code: Any = 0
    with (
        evaluate_in_process(),
        patch.object(sys, "argv", ["gitboot", *map(str, arguments)]),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return CommandResult(int(code or 0), out.getvalue(), err.getvalue())


@dataclass
class Blade:
    name: str
    machine: Machine
    bmc: RedfishServer
    uuid: str
    provision: int = 0
    more: str = ""  # of its document

    @property
    def document(self) -> str:
        access = f"bmc: {{address: '{self.bmc.url}', system: {self.machine.path}, credentials: rack}}"
        text = server_document(self.name, spec=f"provision: {self.provision}, {access}{self.more}")
        for made_up, its in ((make_uuid(self.name), self.uuid), (make_mac(self.name), make_mac(self.machine.name))):
            text = text.replace(made_up, its)
        return text

    @property
    def entry(self) -> str:
        return f"/v1/boot/{make_mac(self.machine.name).replace(':', '-')}/boot.ipxe"

    @property
    def override(self) -> tuple[str | None, str | None]:
        return self.machine.override[ENABLED], self.machine.override[TARGET]

    @property
    def stands(self) -> bool:
        return self.machine.override[ENABLED] != "Disabled"

    @property
    def times_set(self) -> int:
        return sum(write["Boot"].get(ENABLED) in ("Once", "Continuous") for write in self.machine.writes)


@dataclass
class Rack:
    """Blades, the repository that describes them, and a folder for OUTPUT, STATE and credentials."""

    folder: Path
    settings: str = BASE_URL
    pool: tuple[str, ...] = POOL
    named: bool = True  # whether the Fleet names the ledger of the instance
    blades: dict[str, Blade] = field(default_factory=dict)
    address: PostgresAddress | None = None  # the place of the ledger; None: in STATE
    _identity: str = ""  # of the one at an address
    _bmcs: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.repository = Repository.create(self.folder / "git")
        self.give_password(PASSWORD)
        return self

    def __exit__(self, *_: object) -> None:
        self._bmcs.close()

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def ledger(self) -> str:
        """The identity of the ledger that the Fleet names."""
        if self.address is None:
            return create_ledger(self.state)
        self._identity = self._identity or create_ledger(self.folder / "ledger", self.address)
        return self._identity

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"

    def give_password(self, password: str) -> None:
        store_credentials(self.credentials, user=USER, password=password)

    def bmc(self, name: str, uuid: str | None = None, profile: Profile = GENERIC) -> tuple[Machine, RedfishServer]:
        """Run a machine with its own BMC."""
        machine = Machine(name, uuid=uuid or make_uuid(name), post_s=1, profile=profile)
        return machine, self._bmcs.enter_context(RedfishServer(Service(machine, credentials={USER: PASSWORD})))

    def add(self, name: str, provision: int = 0, *, profile: Profile = GENERIC) -> Blade:
        machine, bmc = self.bmc(name, profile=profile)
        self.blades[name] = Blade(name=name, machine=machine, bmc=bmc, uuid=machine.uuid, provision=provision)
        return self.blades[name]

    def push(self, subject: str = "Change") -> str:
        servers = (blade.document for blade in self.blades.values())
        settings = name_ledger(self.ledger(), fleet(self.settings)) if self.named else fleet(self.settings)
        return self.repository.push({"fleet.yaml": "---\n".join((settings, *servers, *self.pool))}, subject)

    @contextmanager
    def running(self, *arguments: object, ready: bool = True, records: str | Path | None = None) -> Iterator[Instance]:
        given = ("--credentials", self.credentials, "--poll", "3600", *arguments)
        with running(self.repository.bare, self.folder, *map(str, given), ready=ready, records=records) as instance:
            yield instance

    def once(self, *arguments: object, records: str | Path | None = None) -> CommandResult:
        """Reconcile once, and a second time if the ledger must be begun in between."""
        places = ("--out", self.output, "--state", self.state, "--credentials", self.credentials)
        done = run_command("run", self.repository.bare, *places, "--once", *arguments)
        if records is None:
            return done
        self.said("records", "begin", records, "--yes")
        return self.once(*arguments)

    def age(self, change: str) -> None:
        """Let time pass in the ledger of an instance that does not run."""
        with closing(sqlite3.connect(self.state / "ledger.sqlite", isolation_level=None)) as ledger:
            assert ledger.execute(change).rowcount > 0

    def add_unverified(self, name: str) -> Blade:
        """A new blade after a crash between record and set, hours ago; it has been reset since."""
        blade = self.add(name, provision=1)
        self.push()
        blade.bmc.fault(Drop(applied=False), on="PATCH", times=9)
        self.once(*self.spool_options, records="fresh")
        self.age("UPDATE overrides SET at = '2026-11-01T00:00:00Z'")
        blade.bmc.heal()
        blade.machine.run_through()
        blade.machine.requests.clear()
        return blade

    @property
    def spool_options(self) -> tuple[object, ...]:
        """Return the options of an instance that reconciles once and does not listen, with a fetch log."""
        (self.folder / "spool").mkdir(exist_ok=True)
        return ("--spool", self.folder / "spool")

    def run_command(self, *command: object) -> CommandResult:
        return run_command(*command, "--state", self.state)

    def said(self, *command: object) -> str:
        """Return the output of a command about the instance of this rack; the command must succeed."""
        done = self.run_command(*command)
        # The exit code of `status` shows the conditions.
        assert done.code == 0 or (command[0] == "status" and not done.err), done
        return done.out

    def bmc_get(self, *more: object) -> dict[str, Any]:
        """`gitboot bmc get` by server."""
        done = self.run_command("bmc", "get", "--credentials", self.credentials, "-o", "json", *more)
        found = {item["server"]: item for item in done.json["items"]}
        assert (done.code == 0) is all(item["responded"] for item in found.values()), done
        return found


def condition(instance: Instance, type: str) -> dict[str, Any]:
    return next((each for each in instance.status()["conditions"] if each["type"] == type), {})


def wait_for_condition(instance: Instance, type: str, *, status: bool, reason: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = condition(instance, type)
        return found if (found.get("status"), found.get("reason")) == (status, reason) else None

    found: dict[str, Any] = eventually(look)
    return found


def boots(instance: Instance, blade: Blade) -> str:
    """Return the image of a server's boot script at the endpoint, or "disk"."""
    script = instance.get(blade.entry).text
    kernels = [line for line in script.splitlines() if line.startswith("kernel ")]
    return kernels[0].split("/assets/")[1].split("/")[0] if kernels else "disk"


# Two hosts with one ledger in a PostgreSQL, one active and one standby, and their faults.

LEASE_S: Final = 10  # long enough for a slow host; a killed one is not awaited so long


LARGE: Final = 40  # servers: so many have checkpoints and prepared trees


@dataclass
class Host:
    rack: Rack
    name: str
    ledger: PostgresAddress
    instance: Instance | None = None
    settings: dict[str, object] = field(default_factory=dict)  # of its configuration file
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
        """Return its URL for machines, or an empty text while it is not active."""
        event_types = [event["type"] for event in self.events if event["type"] in ("Listening", "LeaseLost", "Stopped")]
        return self.instance.url if self.instance is not None and event_types[-1:] == ["Listening"] else ""

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.instance.events if self.instance is not None else []

    @property
    def condition(self) -> dict[str, Any]:
        """Return the first condition, or nothing before the first status."""
        try:
            found: dict[str, Any] = json.loads((self.state / "status.json").read_bytes())["conditions"][0]
        except FileNotFoundError:
            return {}
        return found

    @property
    def reason(self) -> str | None:
        return self.condition.get("reason")

    def has_event(self, type: str) -> bool:
        return any(event["type"] == type for event in self.events)

    def start(self) -> None:
        places = ("--out", self.folder / "output", "--state", self.state, "--listen", "127.0.0.1:0")
        more = ("--credentials", self.rack.credentials, "--poll", "1", "--ledger", self.ledger.url)
        settings = write_configuration(lease_seconds=LEASE_S, max_reinstalls=1, **self.settings)
        self.instance = Instance.start("run", *map(str, (self.rack.repository.bare, *places, *more, *settings)))
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
        self._paused = [self.instance.process.pid, *list_children(self.instance.process.pid)]
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
            close_after(self._reader, self.instance.errors)
            self.told += self.instance.events
            self.instance = None


@dataclass
class Pair:
    server: PostgresServer
    schema: str
    one: Host
    two: Host

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.one, self.two

    def lease(self) -> tuple[int, str] | None:
        """The number of the lease, and the name of the host that has it now."""
        lease = self.server.sql(
            f"SELECT epoch || ' ' || place FROM {self.schema}.lease WHERE until > clock_timestamp()"
        )
        epoch, _, place = lease.partition(" ")
        return (int(epoch), _get_host(place)) if lease else None

    def _holder(self) -> str:
        return _get_host(self.server.sql(f"SELECT place FROM {self.schema}.lease"))

    @property
    def last_epoch(self) -> int:
        """The number of the lease, whether it has run out or not."""
        return int(self.server.sql(f"SELECT epoch FROM {self.schema}.lease"))

    def acting(self) -> Host | None:
        """Return the host that has the lease and serves machines."""
        if (lease := self.lease()) is None:
            return None
        host = self.one if lease[1] == self.one.name else self.two
        return host if host.url else None

    def other(self, host: Host) -> Host:
        return self.two if host is self.one else self.one

    def wait_for_takeover(self, before: int) -> Host:
        """The host that acts under a later lease; the lease of a host that was killed runs out at once."""
        if any(host.instance is None and self._holder() == host.name for host in self.hosts):
            self.server.sql(f"UPDATE {self.schema}.lease SET until = clock_timestamp() WHERE epoch = {before}")

        def look() -> Host | None:
            lease = self.lease()
            return self.acting() if lease is not None and lease[0] > before else None

        found: Host = eventually(look)
        return found


def _get_host(place: str) -> str:
    return Path(place.partition(":")[2]).parent.name


@contextmanager
def pair(
    rack: Rack, server: PostgresServer, address: PostgresAddress, other: PostgresAddress | None = None
) -> Iterator[Pair]:
    """Return two hosts that do not run yet; the second one may reach the server by another address."""
    rack.address, hosts = address, (Host(rack, "one", address), Host(rack, "two", other or address))
    try:
        yield Pair(server, address.url.rpartition("%3D")[2], *hosts)
    finally:
        for host in hosts:
            host.kill()


def find_boot_at_host(web: Blade, host: Host) -> str:
    """Return the boot of a machine at a host after a reset."""
    assert host.instance is not None
    web.machine.run_through()
    return host.instance.get(web.entry).text


class Links(Protocol):
    """The links of both hosts to the server of their ledger; a cut link drops all packets silently."""

    def address(self, schema: str, host: int) -> PostgresAddress:
        """By which the first host, or the second one, reaches it."""

    def may_cut(self, host: int) -> bool: ...
    def cut(self, host: int) -> None: ...
    def join(self, host: int) -> None: ...


@contextmanager
def separate_ledger() -> Iterator[tuple[PostgresServer, Links]]:
    """Run a server in its own network with a cable to each host, or with a relay if that is not allowed."""
    with ExitStack() as stack:
        if (cables := Cables.create(stack)) is not None:
            made = postgresql("listen_addresses=*", network=cables.network, trusted_networks=("198.18.0.0/15",))
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
    def create(cls, stack: ExitStack) -> Self | None:
        """Return the links, or None without the right to make them."""
        name = f"gitboot-{os.getpid()}-ledger"
        if shutil.which("ip") is None or not _has_succeeded("ip", "netns", "add", name):
            return None
        stack.callback(_has_succeeded, "ip", "netns", "delete", name)
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
                assert _has_succeeded(*command.split()), command
            found.append(theirs)
        return cls(name, tuple(found))

    def address(self, schema: str, host: int) -> PostgresAddress:
        return _build_address(schema, f"{self.addresses[host]}:5432")

    def may_cut(self, _: int) -> bool:
        return True

    def cut(self, host: int) -> None:
        assert _has_succeeded("ip", "-n", self.network, "link", "set", f"eth{host}", "down")

    def join(self, host: int) -> None:
        assert _has_succeeded("ip", "-n", self.network, "link", "set", f"eth{host}", "up")


def _has_succeeded(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _build_address(schema: str, place: str) -> PostgresAddress:
    options = f"sslmode=disable&options=-csearch_path%3D{schema}"
    return PostgresAddress(url=f"postgresql://postgres@{place}/postgres?{options}")


class Wire(ForwardedConnections):
    """TCP connections of the second host that a thread carries, until they are cut; the first one has the socket."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(socket.create_server(("127.0.0.1", 0)), server.connect)
        self._server, self.is_cut = server, False
        self._joined = threading.Condition()

    def address(self, schema: str, host: int) -> PostgresAddress:
        port = self.listening.getsockname()[1]
        return _build_address(schema, f"127.0.0.1:{port}") if self.may_cut(host) else self._server.address(schema)

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

    def forward(self, data: bytes) -> bytes:
        with self._joined:
            self._joined.wait_for(lambda: not self.is_cut)
        return data
