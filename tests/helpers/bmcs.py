"""BMCs for tests: machines behind one Redfish server, and machines that record what gitboot wrote to their BMCs."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.identity import PinnedIdentity, SharedIdentityValues
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskResult
from gitboot.bmc.override_state import Override, OverrideRecord, OverrideState, WantedOverride
from gitboot.bmc.power_steps import PowerRecord, PowerRecordState
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.worker_pool import BmcPool
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.identities import Machine as Described
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.fleets import make_uuid, store_credentials
from tests.helpers.redfish_double.machine import STARTED, Answer, Machine
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, TARGET, Drive, Profile
from tests.helpers.redfish_double.server import RedfishServer, Service

# Machines behind one Redfish server, each brought about by a job of its own: records in a dictionary, one clock.

USER, PASSWORD = "gitboot", "correct horse € battery"
SECRETS = (PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())

ONCE = WantedOverride(
    reason="provision/1",
    plan_digest="d" * 64,
    override=Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE, mode="UEFI"),
)
ALWAYS = structs.replace(ONCE, override=structs.replace(ONCE.override, enabled=OverrideEnabled.CONTINUOUS))
SET_AT_BMC = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}


@dataclass
class Rack:
    server: RedfishServer
    machines: list[Machine]
    folder: Path  # of credentials
    closing: ExitStack
    now: datetime = STARTED
    written: list[tuple[str, OverrideState, int]] = field(default_factory=list)  # server, state, PATCHes until then
    records: dict[str, dict[str, OverrideRecord]] = field(default_factory=dict)
    switches: dict[str, dict[str, PowerRecord]] = field(default_factory=dict)
    switched: list[tuple[str, PowerRecordState, int]] = field(default_factory=list)  # server, state, resets until then
    uuids: dict[str, SystemUuid] = field(default_factory=dict)  # as in documents, for any values of BMCs
    pins: dict[str, PinnedIdentity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uuids |= {machine.name: SystemUuid(machine.uuid) for machine in self.machines}

    @property
    def machine(self) -> Machine:
        return self.machines[0]

    def write(self, uuid: SystemUuid, record: OverrideRecord | PowerRecord) -> None:
        machine = next(each for each in self.machines if self.uuids[each.name] == uuid)
        if isinstance(record, PowerRecord):
            self.switches.setdefault(machine.name, {})[record.reason] = record
            self.switched.append((machine.name, record.state, machine.resets))
            return
        self.records.setdefault(machine.name, {})[record.reason] = record
        self.written.append((machine.name, record.state, len(machine.writes)))

    def connect(self, **options: Any) -> BmcConnection:
        credentials = Credentials(username=USER, password=PASSWORD, name="rack")
        settings = {"system": self.machine.path, "read_timeout_s": 60, **options}
        return self.closing.enter_context(BmcConnection(self.server.url, credentials, **settings))

    def job(self, wanted: WantedOverride | None = ONCE, *, machine: Machine | None = None, **changed: Any) -> BmcTask:
        machine = machine or self.machine
        pins = {self.uuids[name]: pinned for name, pinned in self.pins.items()}
        machines = {
            uuid: Described(uuid=uuid, name=name, macs=(), serial=None, bmc=None) for name, uuid in self.uuids.items()
        }
        access = {name: changed.pop(name) for name in BmcAccess.__struct_fields__ if name in changed}
        job = BmcTask(
            server=machine.name,
            uuid=self.uuids[machine.name],
            bmc=structs.replace(
                BmcAccess(address=self.server.url, system=machine.path, credentials="rack", verify=True, ca=None),
                **access,
            ),
            wanted=wanted,
            records=tuple(self.records.get(machine.name, {}).values()),
            power_records=tuple(self.switches.get(machine.name, {}).values()),
            pinned=self.pins.get(machine.name),
            shared_values=SharedIdentityValues().update(pins, machines).values,
        )
        return structs.replace(job, **changed)

    def run_task(self, wanted: WantedOverride | None = ONCE, *, password: str = PASSWORD, **changed: Any) -> TaskResult:
        job = self.job(wanted, **changed)
        credentials = Credentials(username=USER, password=password)
        with BmcConnection(job.bmc.address, credentials, system=job.bmc.system) as bmc:
            result = OverrideSession(bmc, job, lambda record: self.write(job.uuid, record), lambda: self.now).run()
        if result.pinned is not None:
            self.pins[job.server] = result.pinned
        return result

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for machine in self.machines:
            machine.advance(seconds)

    def boot(self, machine: Machine | None = None) -> None:
        """Reset a machine, let it boot, and let time pass for all machines."""
        machine = machine or self.machine
        machine.reset()
        self.wait(machine.post_s * 2)

    def observe_resets(self) -> None:
        """Install all machines once, so that their marks are known to move if they do."""
        before = structs.replace(ONCE, reason="provision/0")
        for machine in self.machines:
            self.run_task(before, machine=machine)
            machine.reset()
        self.wait(600)
        for machine in self.machines:
            self.run_task(before, machine=machine)
            machine.requests.clear()
        self.written.clear()

    @contextmanager
    def fleet(self, **more: Any) -> Iterator[BmcPool]:
        settings: dict[str, Any] = {"credentials": self.folder, "write": self.write, "clock": lambda: self.now} | more
        fleet = BmcPool(**settings)
        try:
            yield fleet
        finally:
            fleet.close()


def write_credentials(folder: Path, name: str = "rack", password: str = PASSWORD) -> None:
    store_credentials(folder, name, user=USER, password=password)


MakeRack = Callable[..., Rack]


@contextmanager
def racks(folder: Path) -> Iterator[MakeRack]:
    with ExitStack() as stack:

        def make_rack(*machines: Machine, profile: Profile = GENERIC, **more: Any) -> Rack:
            found = list(machines) or [Machine("web01", uuid=make_uuid("web01"), profile=profile)]
            service = Service(*found, credentials={USER: PASSWORD})
            write_credentials(folder / "credentials")
            server = stack.enter_context(RedfishServer(service, **more))
            return Rack(server=server, machines=found, folder=folder / "credentials", closing=stack)

        yield make_rack


# Machines that record what gitboot has really made their BMCs boot.

DISCS = ("Cd", "UsbCd")
NETWORK = ("Pxe", "UefiHttp", *DISCS)
RESCUE = "http://rescue.test/somebody.iso"  # media of somebody else


class Key(NamedTuple):
    uuid: str
    reason: str


@dataclass
class ActiveOverride:
    """An override as gitboot has really set it."""

    key: Key | None  # None: for a boot without a limit
    once: bool
    epoch: int  # a request of an operator releases everything


class ProcessFate(Protocol):
    dead: bool


class Witness(Protocol):
    @property
    def crash_plan(self) -> ProcessFate:
        """Gitboot's."""

    def on_override_write(
        self,
        machine: WatchedMachine,
        before: Mapping[str, str | None],
        after: Mapping[str, str | None],
        *,
        overwrote_unseen: bool,
    ) -> None:
        """Gitboot has changed the override; ``overwrote_unseen``: what it had not seen."""

    def switched(self, machine: WatchedMachine, kind: str) -> None:
        """Gitboot switches a machine; it has not been yet."""

    def on_intrusion(self, at: datetime) -> None:
        """Somebody else has."""

    def ejected(self, machine: WatchedMachine, image: str) -> None:
        """Gitboot has ejected what lay in a drive."""


@dataclass
class WatchedDrive(Drive):
    """A drive that reports each action of gitboot to its machine."""

    machine: WatchedMachine = field(kw_only=True)

    def apply_request(self, method: str, path: str, content: Any) -> str | None:
        after, before = self.machine.prepare_write(), self.image
        why = super().apply_request(method, path, content)
        if before is not None and self.image is None:
            self.machine.witness.ejected(self.machine, before)
        after()
        return why


class WatchedMachine(Machine):
    witness: Witness
    dies_at_patch: str | None = None  # "before", "after": gitboot dies when a PATCH is about to be applied, or was
    active_override: ActiveOverride | None = None  # gitboot's override that is set
    has_unseen_change: bool = False  # by somebody else, since gitboot read it last

    def __init__(self, *arguments: Any, **facts: Any) -> None:
        super().__init__(*arguments, **facts)
        self.drives = [
            WatchedDrive(path=each.path, kind=each.kind, types=each.types, machine=self) for each in self.drives
        ]

    @property
    def media(self) -> tuple[str, ...]:
        return tuple(drive.image for drive in self.drives if drive.image is not None)

    def prepare_write(self) -> Callable[[], None]:
        """Kill gitboot before a write, if this was requested; call the returned function after the write."""
        when, self.dies_at_patch = self.dies_at_patch, None
        if when == "before":
            self._kill()
        return self._kill if when == "after" else lambda: None

    def patch(self, path: str, body: Any, if_match: str | None) -> Answer:
        after = self.prepare_write()
        before, unseen = dict(self.override), self.has_unseen_change
        answer = super().patch(path, body, if_match)
        if answer.status == 200:
            self.witness.on_override_write(self, before, before | body["Boot"], overwrote_unseen=unseen)
        after()
        return answer

    def execute_reset(self, kind: str) -> None:
        after = self.prepare_write()
        self.witness.switched(self, kind)
        super().execute_reset(kind)
        after()

    def _kill(self) -> None:
        self.witness.crash_plan.dead = True
        raise ConnectionAbortedError

    def write(self, **boot: str | None) -> None:
        if boot.get(ENABLED) not in (None, "Disabled", *self.profile.enabled):
            return  # this BMC cannot show what it does not have
        before = dict(self.override)
        super().write(**boot)
        if self.override != before:
            self.active_override, self.has_unseen_change = None, True
            self.witness.on_intrusion(self.now)

    def format_boot(self) -> str:
        return f"{self.override[ENABLED]} {self.override[TARGET]}"


class ReadTracker(Service):
    """A service that notes that its machine's override was read."""

    def answer(self, request: Any, headers: Any, body: Any) -> Answer:
        answer = super().answer(request, headers, body)
        for machine in self.machines:
            if isinstance(machine, WatchedMachine) and request.method == "GET" and answer.status == 200:
                machine.has_unseen_change = False
        return answer
