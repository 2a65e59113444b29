"""Machines behind one Redfish server, each brought about by a job of its own: records in a dictionary, one clock."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.identity import Pinned, Sharing
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskResult
from gitboot.bmc.override_state import Override, OverrideRecord, State, Wanted
from gitboot.bmc.power_steps import SwitchRecord, SwitchState
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.worker_pool import BmcPool
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.identities import Machine as Described
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.configuration import give_credentials
from tests.helpers.fleets import uuid_of
from tests.helpers.redfish_double.double import STARTED, Machine
from tests.helpers.redfish_double.profiles import GENERIC, Profile
from tests.helpers.redfish_double.server import RedfishServer
from tests.helpers.redfish_double.service import Service

USER, PASSWORD = "gitboot", "correct horse € battery"
SECRETS = (PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())

ONCE = Wanted(
    reason="provision/1",
    plan_digest="d" * 64,
    override=Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE, mode="UEFI"),
)
ALWAYS = replace(ONCE, override=replace(ONCE.override, enabled=OverrideEnabled.CONTINUOUS))
SET_AT_BMC = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}


@dataclass
class Rack:
    """Machines behind one Redfish server, and what is written about them."""

    server: RedfishServer
    machines: list[Machine]
    folder: Path  # of credentials
    closing: ExitStack
    now: datetime = STARTED
    written: list[tuple[str, State, int]] = field(default_factory=list)  # server, state, PATCHes until then
    records: dict[str, dict[str, OverrideRecord]] = field(default_factory=dict)
    switches: dict[str, dict[str, SwitchRecord]] = field(default_factory=dict)
    switched: list[tuple[str, SwitchState, int]] = field(default_factory=list)  # server, state, resets until then
    uuids: dict[str, SystemUuid] = field(default_factory=dict)  # as documents say, whatever BMCs show
    pins: dict[str, Pinned] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uuids |= {machine.name: SystemUuid(machine.uuid) for machine in self.machines}

    @property
    def machine(self) -> Machine:
        return self.machines[0]

    def write(self, uuid: SystemUuid, record: OverrideRecord | SwitchRecord) -> None:
        machine = next(each for each in self.machines if self.uuids[each.name] == uuid)
        if isinstance(record, SwitchRecord):
            self.switches.setdefault(machine.name, {})[record.reason] = record
            self.switched.append((machine.name, record.state, machine.resets))
            return
        self.records.setdefault(machine.name, {})[record.reason] = record
        self.written.append((machine.name, record.state, len(machine.writes)))

    def connect(self, **options: Any) -> BmcConnection:
        """Open a connection to the BMC of the first machine, which ends with the rack."""
        credentials = Credentials(username=USER, password=PASSWORD, name="rack")
        given = {"system": self.machine.path, "read_timeout_s": 60, **options}
        return self.closing.enter_context(BmcConnection(self.server.url, credentials, **given))

    def job(self, wanted: Wanted | None = ONCE, *, machine: Machine | None = None, **changed: Any) -> BmcTask:
        """A job; what is changed is the job's, or where and how its BMC is reached."""
        machine = machine or self.machine
        pins = {self.uuids[name]: pinned for name, pinned in self.pins.items()}
        machines = {
            uuid: Described(uuid=uuid, name=name, macs=(), serial=None, bmc=None) for name, uuid in self.uuids.items()
        }
        access = {each.name: changed.pop(each.name) for each in fields(BmcAccess) if each.name in changed}
        job = BmcTask(
            server=machine.name,
            uuid=self.uuids[machine.name],
            bmc=replace(
                BmcAccess(address=self.server.url, system=machine.path, credentials="rack", verify=True, ca=None),
                **access,
            ),
            wanted=wanted,
            records=tuple(self.records.get(machine.name, {}).values()),
            switches=tuple(self.switches.get(machine.name, {}).values()),
            pinned=self.pins.get(machine.name),
            shared=Sharing().after(pins, machines).values,
        )
        return replace(job, **changed)

    def bring_about(self, wanted: Wanted | None = ONCE, *, password: str = PASSWORD, **changed: Any) -> TaskResult:
        """A job done here and now."""
        job = self.job(wanted, **changed)
        credentials = Credentials(username=USER, password=password)
        with BmcConnection(job.bmc.address, credentials, system=job.bmc.system) as bmc:
            result = OverrideSession(bmc, job, lambda record: self.write(job.uuid, record), lambda: self.now).run()
        if result.pinned is not None:
            self.pins[job.server] = result.pinned
        return result

    def wait(self, seconds: float) -> None:
        """Let time pass, for gitboot and for every machine."""
        self.now += timedelta(seconds=seconds)
        for machine in self.machines:
            machine.advance(seconds)

    def boot(self, machine: Machine | None = None) -> None:
        """Reset a machine and let it boot, and time pass for all."""
        machine = machine or self.machine
        machine.reset()
        self.wait(machine.post_s * 2)

    def see_marks_move(self) -> None:
        """Install all machines once: from then on their marks are known to move, where they do."""
        before = replace(ONCE, reason="provision/0")
        for machine in self.machines:
            self.bring_about(before, machine=machine)
            machine.reset()
        self.wait(600)
        for machine in self.machines:
            self.bring_about(before, machine=machine)
            machine.requests.clear()
        self.written.clear()

    @contextmanager
    def fleet(self, **more: Any) -> Iterator[BmcPool]:
        given: dict[str, Any] = {"credentials": self.folder, "write": self.write, "clock": lambda: self.now} | more
        fleet = BmcPool(**given)
        try:
            yield fleet
        finally:
            fleet.close()


def write_credentials(folder: Path, name: str = "rack", password: str = PASSWORD) -> None:
    give_credentials(folder, name, user=USER, password=password)


MakeRack = Callable[..., Rack]


@contextmanager
def racks(folder: Path) -> Iterator[MakeRack]:
    with ExitStack() as stack:

        def make_rack(*machines: Machine, profile: Profile = GENERIC, **more: Any) -> Rack:
            found = list(machines) or [Machine("web01", uuid=uuid_of("web01"), profile=profile)]
            service = Service(*found, credentials={USER: PASSWORD})
            write_credentials(folder / "credentials")
            server = stack.enter_context(RedfishServer(service, **more))
            return Rack(server=server, machines=found, folder=folder / "credentials", closing=stack)

        yield make_rack
