"""A rack: servers with BMCs, the instance that drives them, and the commands as a person types them."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from gitboot.cli.main import main
from gitboot.ledger.location import PostgresAddress
from tests.helpers.configuration import give_credentials
from tests.helpers.evaluated_commits import evaluated_here
from tests.helpers.fleets import fleet, image, mac_of, naming, policy, profile, server, uuid_of
from tests.helpers.instance_process import Instance, Repository, eventually, ledger_in, running
from tests.helpers.redfish_double.double import Machine
from tests.helpers.redfish_double.faults import Drop
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, TARGET, Profile
from tests.helpers.redfish_double.server import RedfishServer
from tests.helpers.redfish_double.service import Service

USER, PASSWORD = "root", "correct-horse-staple"
POOL = (image("flatcar-1"), image("flatcar-2"), profile("web", "flatcar-1"), policy("web", often="Once"))
BASE_URL = "baseURL: 'http://boot.test'"


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def typed(*arguments: object) -> Done:
    """Type a command, in this process; what is not raised on purpose reaches the test as it is."""
    code: Any = 0
    with (
        evaluated_here(),
        patch.object(sys, "argv", ["gitboot", *map(str, arguments)]),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Done(int(code or 0), out.getvalue(), err.getvalue())


@dataclass
class Blade:
    """A server of the rack: what its document says, and the BMC that it says."""

    name: str
    machine: Machine
    bmc: RedfishServer
    uuid: str
    provision: int = 0
    more: str = ""  # of its document

    @property
    def document(self) -> str:
        access = f"bmc: {{address: '{self.bmc.url}', system: {self.machine.path}, credentials: rack}}"
        text = server(self.name, spec=f"provision: {self.provision}, {access}{self.more}")
        for made_up, its in ((uuid_of(self.name), self.uuid), (mac_of(self.name), mac_of(self.machine.name))):
            text = text.replace(made_up, its)
        return text

    @property
    def entry(self) -> str:
        return f"/v1/boot/{mac_of(self.machine.name).replace(':', '-')}/boot.ipxe"

    @property
    def override(self) -> tuple[str | None, str | None]:
        return self.machine.override[ENABLED], self.machine.override[TARGET]

    @property
    def stands(self) -> bool:
        """Whether an override stands on its BMC."""
        return self.machine.override[ENABLED] != "Disabled"

    @property
    def times_set(self) -> int:
        """How often its BMC was told to boot from the network."""
        return sum(write["Boot"].get(ENABLED) in ("Once", "Continuous") for write in self.machine.writes)


@dataclass
class Rack:
    """Blades, the repository that describes them, and a folder for OUTPUT, STATE and credentials."""

    folder: Path
    settings: str = BASE_URL
    pool: tuple[str, ...] = POOL
    named: bool = True  # whether the Fleet names the ledger of the instance
    blades: dict[str, Blade] = field(default_factory=dict)
    address: PostgresAddress | None = None  # where the ledger is; None: in STATE
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
            return ledger_in(self.state)
        self._identity = self._identity or ledger_in(self.folder / "ledger", self.address)
        return self._identity

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"

    def give_password(self, password: str) -> None:
        give_credentials(self.credentials, user=USER, password=password)

    def bmc(self, name: str, uuid: str | None = None, profile: Profile = GENERIC) -> tuple[Machine, RedfishServer]:
        """A machine with a BMC of its own, that answers."""
        machine = Machine(name, uuid=uuid or uuid_of(name), post_s=1, profile=profile)
        return machine, self._bmcs.enter_context(RedfishServer(Service(machine, credentials={USER: PASSWORD})))

    def add(self, name: str, provision: int = 0, *, profile: Profile = GENERIC) -> Blade:
        machine, bmc = self.bmc(name, profile=profile)
        self.blades[name] = Blade(name=name, machine=machine, bmc=bmc, uuid=machine.uuid, provision=provision)
        return self.blades[name]

    def push(self, subject: str = "Change") -> str:
        """Commit what the rack is now."""
        servers = (blade.document for blade in self.blades.values())
        settings = naming(self.ledger(), fleet(self.settings)) if self.named else fleet(self.settings)
        return self.repository.push({"fleet.yaml": "---\n".join((settings, *servers, *self.pool))}, subject)

    @contextmanager
    def running(self, *arguments: object, ready: bool = True, records: str | Path | None = None) -> Iterator[Instance]:
        given = ("--credentials", self.credentials, "--poll", "3600", *arguments)
        with running(self.repository.bare, self.folder, *map(str, given), ready=ready, records=records) as instance:
            yield instance

    def once(self, *arguments: object, records: str | Path | None = None) -> Done:
        """Reconcile once; and again, where the ledger is told in between what to begin with."""
        places = ("--out", self.output, "--state", self.state, "--credentials", self.credentials)
        done = typed("run", self.repository.bare, *places, "--once", *arguments)
        if records is None:
            return done
        self.said("records", "begin", records, "--yes")
        return self.once(*arguments)

    def age(self, change: str) -> None:
        """Let time pass, as far as the ledger of an instance that does not run can tell."""
        with closing(sqlite3.connect(self.state / "ledger.sqlite", isolation_level=None)) as ledger:
            assert ledger.execute(change).rowcount > 0

    def leave_in_doubt(self, name: str) -> Blade:
        """A new blade after a crash between record and set, hours ago; it has been reset since."""
        blade = self.add(name, provision=1)
        self.push()
        blade.bmc.fault(Drop(applied=False), on="PATCH", times=9)
        self.once(*self.spooling, records="fresh")
        self.age("UPDATE overrides SET at = '2026-11-01T00:00:00Z'")
        blade.bmc.heal()
        blade.machine.run_through()
        blade.machine.requests.clear()
        return blade

    @property
    def spooling(self) -> tuple[object, ...]:
        """Where fetches would reach an instance that makes one pass and listens nowhere."""
        (self.folder / "spool").mkdir(exist_ok=True)
        return ("--spool", self.folder / "spool")

    def typed(self, *command: object) -> Done:
        """A command about this rack's instance."""
        return typed(*command, "--state", self.state)

    def said(self, *command: object) -> str:
        """What a command about this rack's instance answers; it must have been taken."""
        done = self.typed(*command)
        assert done.code == 0, done
        return done.out

    def bmc_get(self, *more: object) -> dict[str, Any]:
        """`gitboot bmc get` by server."""
        done = self.typed("bmc", "get", "--credentials", self.credentials, "-o", "json", *more)
        found = {item["server"]: item for item in done.json["items"]}
        assert (done.code == 0) is all(item["answered"] for item in found.values()), done
        return found


def condition(instance: Instance, type: str) -> dict[str, Any]:
    """A condition of a running instance; empty where it says nothing of it."""
    return next((each for each in instance.status()["conditions"] if each["type"] == type), {})


def until_condition(instance: Instance, type: str, *, status: bool, reason: str) -> dict[str, Any]:
    """Wait until a condition is what it should become."""

    def look() -> dict[str, Any] | None:
        found = condition(instance, type)
        return found if (found.get("status"), found.get("reason")) == (status, reason) else None

    found: dict[str, Any] = eventually(look)
    return found


def boots(instance: Instance, blade: Blade) -> str:
    """The image that a blade's entry boots at the endpoint, or "disk"."""
    script = instance.get(blade.entry).text
    kernels = [line for line in script.splitlines() if line.startswith("kernel ")]
    return kernels[0].split("/assets/")[1].split("/")[0] if kernels else "disk"
