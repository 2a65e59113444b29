"""BMCs by IPMI: ipmitool against pyghmi's server and OpenIPMI's simulator, over real RMCP+ sessions."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from pyghmi.ipmi.bmc import Bmc
from pyghmi.ipmi.private.session import Session

from gitboot.bmc.access_file import read_trust, render_access_file
from gitboot.bmc.credentials import Credentials
from gitboot.bmc.identity import AnotherMachine, ReportedIdentity, SameMachine
from gitboot.bmc.ipmi import IpmiConnection, _parse_override, parse_system_guid
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskOutcome, TaskResult
from gitboot.bmc.override_state import (
    BmcObservation,
    OperatorCondition,
    Override,
    OverrideRecord,
    OverrideState,
    WantedOverride,
)
from gitboot.bmc.override_steps import NO_OVERRIDE, adapt_override, is_override_shown
from gitboot.bmc.power_steps import (
    PowerAction,
    PowerChangeRefusal,
    PowerOperation,
    PowerRecord,
    PowerRecordState,
    ResetType,
    WantedPowerChange,
    choose_power_step,
)
from gitboot.bmc.redfish.transport import ConnectionPolicy
from gitboot.cli.main import Exit
from gitboot.errors import BmcBusy, BmcChanged, BmcNotTrusted, BmcRejected, BmcUnreachable, InvalidRepository
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.validation import load
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.cases import for_each
from tests.helpers.fleets import HERE, fleet, make_uuid, server, snapshot, store_credentials, write_configuration
from tests.helpers.git_repositories import free_port
from tests.helpers.instance_with_bmcs import POOL, Rack
from tests.helpers.redfish_double.machine import STARTED

# A machine behind pyghmi's IPMI server: its boot flags, its power, and what its firmware boots.

_DEVICES = {0: "None", 1: "Pxe", 2: "Hdd", 5: "Cd"}


class IpmiMachine(Bmc):  # type: ignore[misc]  # pyghmi has no types
    """The boot flags, byte by byte. A boot consumes them unless they are persistent."""

    def __init__(self, guid: bytes, password: str, *, user: str = "root") -> None:
        super().__init__({user: password}, port=0, address="127.0.0.1")
        self.port = self.serversocket.getsockname()[1]
        self.guid = guid
        self.flags = bytearray(5)
        self.keeps_valid = 0  # parameter 3
        self.power = "on"
        self.boots: list[str] = []
        self.requests: list[tuple[int, int]] = []
        self.controls: list[int] = []  # Chassis Control
        self.fails: list[int] = []  # completion codes of the next requests to set flags
        self.guid_fails: list[int] = []  # completion codes of the next requests for the GUID

    def boot(self) -> None:
        """Reset it: its firmware reads the flags and clears what was for one boot."""
        valid, persistent = self.flags[0] & 0x80, self.flags[0] & 0x40
        self.boots.append(_DEVICES[self.flags[1] >> 2 & 0b1111] if valid else "None")
        if not persistent:
            self.flags[0] &= 0x7F

    def get_power_state(self) -> str:
        return self.power

    def handle_raw_request(self, request: Any, session: Any) -> Any:
        netfn, command, data = request["netfn"], request["command"], bytes(request["data"])
        self.requests.append((netfn, command))
        match netfn, command:
            case 6, 0x37 if self.guid_fails:
                return session.send_ipmi_response(code=self.guid_fails.pop(0))
            case 6, 0x37:
                return session.send_ipmi_response(data=list(self.guid))
            case 0, 2:
                self.controls.append(data[0])
                return session.send_ipmi_response()
            case 0, 9 if data[0] == 5:
                return session.send_ipmi_response(data=[1, 5, *self.flags])
            case 0, 8 if self.fails:
                return session.send_ipmi_response(code=self.fails.pop(0))
            case 0, 8 if data[0] == 3:
                self.keeps_valid = data[1]
                return session.send_ipmi_response()
            case 0, 8 if data[0] == 5:
                self.flags[:] = data[1:6]
                return session.send_ipmi_response()
        return super().handle_raw_request(request, session)


@contextmanager
def ipmi_machine(uuid: str, password: str) -> Iterator[IpmiMachine]:
    """A machine whose BMC listens on its own port and reports its UUID in the byte order of SMBIOS."""
    machine = IpmiMachine(UUID(uuid).bytes_le, password)
    ended = threading.Event()

    def answer() -> None:
        while not ended.is_set():
            Session.wait_for_rsp(0.1)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield machine
    finally:
        ended.set()
        thread.join(60)
        assert not thread.is_alive()


UUID_ = SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3732")
LOOSE_LIMITS = write_configuration(max_small_group=100, max_update_percent=100)
PASSWORD = "correct-horse"  # OpenIPMI's simulator does not read names with a space
_PING = bytes.fromhex("0600ff06 000011be 80000000")  # ASF 2.0, 3.2.4.2: presence ping
INSTALL = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE, mode="UEFI")
HTTP = structs.replace(INSTALL, target=OverrideTarget.UEFI_HTTP, http_boot_uri="http://boot.test/web.efi")

needs_ipmitool = pytest.mark.skipif(
    shutil.which("ipmitool") is None and "CI" not in os.environ, reason="needs ipmitool: scripts/install-packages"
)


@pytest.fixture(scope="module")
def machine() -> Iterator[IpmiMachine]:
    with ipmi_machine(UUID_, PASSWORD) as machine:
        yield machine


@pytest.fixture
def bmc(machine: IpmiMachine) -> IpmiConnection:
    machine.flags[:] = bytes(5)
    machine.boots.clear()
    return _connection(machine.port)


def _connection(port: int, *, password: str = PASSWORD, policy: ConnectionPolicy | None = None) -> IpmiConnection:
    credentials = Credentials(username="root", password=password, name="rack")
    return IpmiConnection(f"ipmi://127.0.0.1:{port}", credentials, policy=policy)


@pytest.fixture(scope="module")
def cleared_observation(machine: IpmiMachine) -> BmcObservation:
    machine.flags[:] = bytes(5)
    return _connection(machine.port).observe()


@needs_ipmitool
def test_power_and_override_are_observed(machine: IpmiMachine, bmc: IpmiConnection) -> None:
    seen = bmc.observe()
    assert is_override_shown(NO_OVERRIDE, seen)
    assert (seen.power, seen.in_post, seen.marks.settled, seen.quirks_name) == ("On", False, False, "IPMI")
    machine.power = "off"
    assert bmc.observe().power == "Off"
    machine.power = "on"


@needs_ipmitool
@pytest.mark.parametrize(
    ("action", "force", "control"),
    [("off", True, 0), ("reset", True, 3), ("off", False, 5)],
    ids=["power down", "hard reset", "soft shutdown"],
)
def test_power_commands_follow_the_standard(
    machine: IpmiMachine, bmc: IpmiConnection, action: str, force: bool, control: int
) -> None:
    """IPMI 2.0, table 28-4."""
    seen = bmc.observe()
    step = choose_power_step(PowerAction(action), seen, SameMachine(), force=force)
    assert isinstance(step, ResetType)
    machine.controls.clear()
    bmc.reset(step, seen)
    assert machine.controls == [control]


@needs_ipmitool
def test_ipmi_never_requests_a_restart_from_the_operating_system(bmc: IpmiConnection) -> None:
    step = choose_power_step(PowerAction.RESET, bmc.observe(), SameMachine(), force=False)
    assert isinstance(step, PowerChangeRefusal) and step.why.endswith("add --force to bypass the operating system")


@needs_ipmitool
@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        (INSTALL, "a0 04 00 00 00"),
        (structs.replace(INSTALL, mode="Legacy"), "80 04 00 00 00"),
        (structs.replace(INSTALL, enabled=OverrideEnabled.CONTINUOUS), "e0 04 00 00 00"),
        (structs.replace(INSTALL, target=OverrideTarget.HDD), "a0 08 00 00 00"),
        (structs.replace(INSTALL, target=OverrideTarget.CD), "a0 14 00 00 00"),
        (HTTP, "a0 04 00 00 00"),
    ],
    ids=["Once Pxe", "Legacy", "Continuous", "Hdd", "Cd", "UefiHttp becomes Pxe"],
)
def test_boot_flags_follow_the_standard(
    machine: IpmiMachine, bmc: IpmiConnection, cleared_observation: BmcObservation, wanted: Override, flags: str
) -> None:
    """IPMI 2.0, table 28-14."""
    fitted = adapt_override(wanted, cleared_observation)
    assert fitted is not None
    bmc.set_override(fitted, cleared_observation)
    assert machine.flags.hex(" ") == flags
    assert machine.keeps_valid == 0x1F  # not for a minute, and not for one kind of reset alone
    assert _parse_override(machine.flags[0], machine.flags[1]) == fitted


@needs_ipmitool
def test_flags_that_somebody_else_set_since_the_read_are_not_overwritten(
    machine: IpmiMachine, bmc: IpmiConnection, cleared_observation: BmcObservation
) -> None:
    machine.flags[:] = bytes.fromhex("a008000000")
    with pytest.raises(BmcChanged, match="has changed since gitboot read it"):
        bmc.set_override(INSTALL, cleared_observation)
    assert machine.flags.hex() == "a008000000"


@needs_ipmitool
def test_flags_that_are_already_right_are_not_written(
    machine: IpmiMachine, bmc: IpmiConnection, cleared_observation: BmcObservation
) -> None:
    bmc.set_override(INSTALL, cleared_observation)
    seen = bmc.observe()
    assert is_override_shown(INSTALL, seen)
    machine.requests.clear()
    bmc.set_override(INSTALL, seen)
    assert machine.requests == []
    bmc.set_override(NO_OVERRIDE, seen)
    assert bytes(machine.flags) == bytes(5)
    machine.requests.clear()
    bmc.set_override(NO_OVERRIDE, cleared_observation)
    assert machine.requests == []


@needs_ipmitool
@pytest.mark.parametrize(
    ("code", "error"),
    [(0xC0, BmcBusy), (0xD5, BmcBusy), (0xD4, BmcRejected), (0xCC, BmcRejected)],
    ids=["busy", "not now", "no right", "wrong"],
)
def test_some_refusals_are_temporary_and_others_are_not(
    machine: IpmiMachine, bmc: IpmiConnection, cleared_observation: BmcObservation, code: int, error: type[Exception]
) -> None:
    machine.fails = [0xCC, code]  # the first: parameter 3 is unknown, which does not matter
    with pytest.raises(error, match=f"raw 0x00 0x08 0x05 .*: 0x{code:x}"):
        bmc.set_override(INSTALL, cleared_observation)


@needs_ipmitool
def test_a_bmc_that_is_too_busy_for_its_guid_has_no_other_identity(machine: IpmiMachine, bmc: IpmiConnection) -> None:
    machine.guid_fails = [0xC0]
    with pytest.raises(BmcBusy):
        bmc.observe()
    assert bmc.observe().identity.uuid is not None


@needs_ipmitool
def test_a_wrong_password_is_rejected_and_never_shown(machine: IpmiMachine) -> None:
    with pytest.raises(BmcRejected, match='rejects the user name or password in the credentials "rack"') as caught:
        _connection(machine.port, password="not this one").observe()
    assert "not this one" not in str(caught.value)
    with pytest.raises(BmcRejected, match="rejects"):  # IPMI 2.0 has room for 20 bytes
        _connection(machine.port, password="a" * 21).observe()


@needs_ipmitool
def test_an_address_that_is_not_allowed_gets_no_request(machine: IpmiMachine) -> None:
    machine.requests.clear()
    policy = ConnectionPolicy(is_address_allowed=lambda address: address == ip_address("10.0.0.1"))
    with pytest.raises(BmcNotTrusted, match="does not allow gitboot to send these credentials"):
        _connection(machine.port, policy=policy).observe()
    assert machine.requests == []


@needs_ipmitool
def test_a_silent_address_is_unreachable() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        credentials = Credentials(username="root", password=PASSWORD)
        bmc = IpmiConnection(f"ipmi://127.0.0.1:{silent.getsockname()[1]}", credentials, timeout_s=0.5)
        with pytest.raises(BmcUnreachable, match=r"no answer within 0\.5 s"):
            bmc.observe()


def test_without_ipmitool_the_message_names_the_missing_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BmcRejected, match="cannot start ipmitool: No such file or directory; install ipmitool"):
        _connection(6230).observe()


def _install_fake_ipmitool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "ipmitool"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


FLAGS = "echo ' 01 05 00 00 00 00 00'; echo 'RAW RSP (7 bytes)' >&2\n"
STATUS = "echo ' 01 00 00'; echo 'RAW RSP (3 bytes)' >&2\n"
NO_GUID = "echo 'Unable to send RAW command (channel=0x0 rsp=0xc1): Invalid command' >&2\n"


@pytest.mark.parametrize(
    ("says", "error", "why"),
    [
        (FLAGS + STATUS, BmcUnreachable, "2 responses to 3 requests"),
        (FLAGS + "echo 'Unable to send RAW command' >&2\n" + NO_GUID, BmcUnreachable, "2 responses to 3 requests"),
        (FLAGS.replace("05", "zz") + STATUS + NO_GUID, BmcUnreachable, "the response is too short"),
        ("echo 'RAW RSP (0 bytes)' >&2\n" * 2 + NO_GUID, BmcUnreachable, "the response is too short"),
        (NO_GUID * 3, BmcRejected, "raw 0x00 0x09 0x05 0x00 0x00: 0xc1 Invalid command"),
        (
            "echo 'IANA PEN registry open failed' >&2; echo '> No way' >&2; echo Unable to establish >&2",
            BmcUnreachable,
            "No way",
        ),
    ],
    ids=["ends early", "one is lost", "no octets", "nothing", "refused", "no session"],
)
def test_output_that_is_not_a_valid_response_is_an_error(
    says: str, error: type[Exception], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_fake_ipmitool(tmp_path, monkeypatch, says)
    with pytest.raises(error, match=why):
        _connection(6230).observe()


def test_without_a_guid_the_serial_number_is_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fru = "echo ' Chassis Type          : Rack'; echo ' Product Serial        : 7M2 XKQ3 '"
    _install_fake_ipmitool(tmp_path, monkeypatch, f'case "$*" in *fru*) {fru};; *) {FLAGS}{STATUS}{NO_GUID};; esac\n')
    assert _connection(6230).observe().identity == ReportedIdentity(serial="7M2 XKQ3")


@for_each(
    ("guid", "uuid"),
    [
        (UUID(UUID_).bytes, UUID_),
        (UUID(UUID_).bytes_le, "44454c4c-3400-104a-8056-b9c04f4d3732"),
        (UUID(UUID_).bytes[::-1], UUID_),
        (bytes(16), None),
        (bytes.fromhex("ff" * 16), None),
        (bytes.fromhex("000000000000000000007cc25550a8ff"), None),
        (b"short", None),
    ],
    ids=["as RFC 9562", "as SMBIOS", "as IPMI", "zeros", "ones", "no version", "short"],
)
def test_a_guid_is_parsed_in_each_byte_order(guid: bytes, uuid: str | None) -> None:
    """The second UUID is the first one in the byte order of SMBIOS; `identify` accepts both."""
    assert parse_system_guid(guid) == uuid


# Overrides and resets

GRACEFUL_CHANGE = WantedPowerChange(
    reason="power/check/1", operation=PowerOperation.GRACEFUL_RESTART, override_reason="provision/1", may_start_now=True
)


@dataclass
class DrivenBmc:
    """The BMC of a machine, driven by the whole override protocol."""

    bmc: IpmiConnection
    uuid: SystemUuid = UUID_
    wanted: Override | None = INSTALL
    records: dict[str, OverrideRecord] = field(default_factory=dict)
    at: datetime = STARTED
    switching: WantedPowerChange | None = None
    switches: dict[str, PowerRecord] = field(default_factory=dict)

    def once(self, *, crash: bool = False) -> TaskResult:
        def write(record: OverrideRecord | PowerRecord) -> None:
            if isinstance(record, PowerRecord):
                self.switches[record.reason] = record
                if crash:
                    raise KeyboardInterrupt
                return
            self.records[record.reason] = record
            if crash and self.switching is None and record.state is OverrideState.RECORDED:
                raise KeyboardInterrupt

        wanted = None
        if self.wanted is not None:
            wanted = WantedOverride(reason="provision/1", plan_digest="d" * 64, override=self.wanted)
        access = BmcAccess(address="ipmi://127.0.0.1", system=None, credentials="rack", verify=True, ca=None)
        job = BmcTask(
            server="web01",
            uuid=self.uuid,
            bmc=access,
            wanted=wanted,
            records=tuple(self.records.values()),
            wanted_power=self.switching,
            power_records=tuple(self.switches.values()),
        )
        return OverrideSession(self.bmc, job, write, lambda: self.at).run()

    @property
    def state(self) -> OverrideState:
        return self.records["provision/1"].state


@needs_ipmitool
def test_a_consumed_override_is_recorded_as_lost_and_never_set_again(machine: IpmiMachine, bmc: IpmiConnection) -> None:
    """No mark can prove that it was consumed, so evidence or a person decides."""
    asked = DrivenBmc(bmc)
    assert asked.once().outcome is TaskOutcome.APPLIED
    assert asked.state == "Confirmed"
    machine.boot()
    asked.at += timedelta(minutes=5)
    assert (asked.once().outcome, asked.state) == (TaskOutcome.APPLIED, OverrideState.LOST)
    machine.boot()
    asked.at += timedelta(hours=1)
    assert asked.once().outcome is TaskOutcome.UNCHANGED
    machine.boot()
    assert machine.boots == ["Pxe", "None", "None"]


@needs_ipmitool
def test_a_machine_without_marks_is_reset_once(machine: IpmiMachine, bmc: IpmiConnection) -> None:
    machine.controls.clear()
    asked = DrivenBmc(bmc, switching=GRACEFUL_CHANGE)
    for _ in range(3):
        asked.once()
        asked.at += timedelta(hours=1)
    assert (machine.controls, asked.switches[GRACEFUL_CHANGE.reason].state) == ([0x03], PowerRecordState.REQUESTED)


@needs_ipmitool
@pytest.mark.parametrize("switching", [None, GRACEFUL_CHANGE], ids=["before it was set", "before it was reset"])
def test_after_a_crash_an_operator_must_decide_and_nothing_is_repeated(
    machine: IpmiMachine, bmc: IpmiConnection, switching: WantedPowerChange | None
) -> None:
    machine.controls.clear()
    asked = DrivenBmc(bmc, switching=switching)
    with pytest.raises(KeyboardInterrupt):
        asked.once(crash=True)
    flags = bytes(machine.flags)
    asked.at += timedelta(minutes=5)
    assert asked.once().condition is OperatorCondition.NEEDS_OPERATOR
    assert (bytes(machine.flags), machine.controls, any(flags)) == (flags, [], switching is not None)


@needs_ipmitool
def test_an_override_that_is_no_longer_wanted_is_cleared(machine: IpmiMachine, bmc: IpmiConnection) -> None:
    asked = DrivenBmc(bmc)
    asked.once()
    asked.wanted = None
    asked.once()
    machine.boot()
    assert machine.boots == ["None"]


@needs_ipmitool
def test_no_override_is_set_on_another_machine(machine: IpmiMachine, bmc: IpmiConnection) -> None:
    asked = DrivenBmc(bmc, uuid=SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d9999"))
    result = asked.once()
    assert isinstance(result.identity_result, AnotherMachine)
    assert (result.condition, bytes(machine.flags)) == (OperatorCondition.ANOTHER_MACHINE, bytes(5))


# OpenIPMI's simulator


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A simulator that has a GUID and a power state, and accepts boot devices before their flags were read."""
    if shutil.which("ipmi_sim") is None and "CI" not in os.environ:
        pytest.skip("needs ipmi_sim: scripts/install-packages")
    folder = tmp_path_factory.mktemp("ipmi_sim")
    port = free_port()
    chassis = folder / "chassis"
    chassis.write_text(
        '#!/bin/sh\necho "$*" >> "$0.calls"\ncase "$*" in *"get power"*) echo power:1;; *) echo boot:none;; esac\n'
    )
    chassis.chmod(0o755)
    (folder / "lan.conf").write_text(
        'name "web01"\nset_working_mc 0x20\nstartlan 1\n'
        f"addr 127.0.0.1 {port}\npriv_limit admin\nallowed_auths_admin none md2 md5 straight\n"
        f"guid {UUID(UUID_).bytes.hex()}\nendlan\n"
        f'chassis_control "{chassis} 0x20"\nuser 2 true "root" "{PASSWORD}" admin 10 none md2 md5 straight\n'
    )
    (folder / "web01.emu").write_text(
        "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable 0x20\n"
    )
    command = ("ipmi_sim", "-c", folder / "lan.conf", "-f", folder / "web01.emu", "-s", folder, "-n")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for_simulator(port, process)
            yield port
        finally:
            process.kill()


def _wait_for_simulator(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ping:
        ping.settimeout(0.1)
        while process.poll() is None and time.monotonic() < until:
            ping.sendto(_PING, ("127.0.0.1", port))
            with suppress(OSError):
                assert ping.recv(64)
                return
    raise AssertionError(f"the simulator has not begun: {process.poll()}")


@needs_ipmitool
def test_the_simulator_of_openipmi_is_read_with_its_own_cipher_suite(simulator: int) -> None:
    seen = _connection(simulator).observe()
    assert (seen.identity.uuid, seen.power, is_override_shown(NO_OVERRIDE, seen)) == (UUID_, "On", True)
    with pytest.raises(BmcRejected, match="rejects the user name or password"):
        _connection(simulator, password="wrong").observe()


@needs_ipmitool
def test_flags_that_are_accepted_but_not_shown_need_an_operator(simulator: int) -> None:
    """The flags never become valid, so gitboot does not set the override a second time."""
    asked = DrivenBmc(_connection(simulator))
    assert "does not show it yet" in asked.once().message
    asked.at += timedelta(minutes=5)
    assert asked.once().condition is OperatorCondition.NEEDS_OPERATOR


# Access and addresses


@needs_ipmitool
def test_an_instance_sets_boot_flags_and_reports_it(machine: IpmiMachine, tmp_path: Path) -> None:
    machine.flags[:] = bytes(5)
    address = f"ipmi://127.0.0.1:{machine.port}"
    text = server("web01", spec=f"provision: 1, bmc: {{address: '{address}', credentials: rack}}")
    with Rack(tmp_path, pool=(*POOL, text.replace(make_uuid("web01"), UUID_))) as rack:
        store_credentials(rack.credentials, password=PASSWORD, trust=f"{HERE}ipmi = true\n")
        rack.push()
        machine.fails = [0xCC, 0xC0]  # it is busy
        assert rack.once(*LOOSE_LIMITS, *rack.spool_options, records="fresh").code == Exit.PARTIAL
        diffed = rack.run_command("bmc", "diff", "--credentials", rack.credentials)
        assert f"{address}: Set System Boot Options: Once Pxe UEFI" in diffed.out
        assert (bytes(machine.flags), rack.once(*LOOSE_LIMITS, *rack.spool_options).code) == (bytes(5), Exit.FINE)
        assert machine.flags.hex(" ") == "a0 04 00 00 00"
        shown = rack.run_command("bmc", "get", "--credentials", rack.credentials)
        assert all(each in shown.out for each in ("Once Pxe", "Confirmed", "provision/1", "1 as planned"))


@for_each(
    ("access", "problem"),
    [
        ("address: 'ipmi://10.112.0.13'", None),
        ("address: 'ipmi://bmc7.example.net:6230'", None),
        ("address: 'ipmi://[fd00::7]:623'", None),
        ("address: 'ipmi://10.112.0.13/redfish'", "write ipmi://HOST or ipmi://HOST:PORT"),
        ("address: 'ipmi://10.112.0.13:99999'", "check the host and the port"),
        ("address: 'ipmi://root:secret@10.112.0.13'", "must not contain a user name or a password"),
        ("address: 'ipmi://10.112.0.13', system: /redfish/v1/Systems/1", "`system` and `tls` apply only to Redfish"),
        ("address: 'ipmi://10.112.0.13', tls: {verify: false}", "`system` and `tls` apply only to Redfish"),
    ],
)
def test_a_document_names_an_ipmi_address(access: str, problem: str | None) -> None:
    text = server("web01", spec=f"bmc: {{{access}, credentials: rack}}")
    if problem is None:
        assert load(snapshot("---\n".join((fleet(), text)))).servers["web01"].spec.bmc is not None
        return
    with pytest.raises(InvalidRepository, match=problem):
        load(snapshot("---\n".join((fleet(), text))))


def test_credentials_are_sent_by_ipmi_only_if_the_access_file_allows_it(tmp_path: Path) -> None:
    bmc = BmcAccess(address="ipmi://10.112.0.13", system=None, credentials="rack", verify=True, ca=None)
    store_credentials(tmp_path, password="secret", trust='networks = ["10.112.0.0/24"]\n')
    with pytest.raises(BmcNotTrusted, match=r"IPMI sends a hash of the password to any client; .* `ipmi = true`"):
        read_trust(tmp_path, "rack").build_address_filter(bmc, is_in_ledger=True)
    store_credentials(tmp_path, password="secret", trust='networks = ["10.112.0.0/24"]\nipmi = true\n')
    assert read_trust(tmp_path, "rack").build_address_filter(bmc, is_in_ledger=False)(ip_address("10.112.0.13"))
    assert render_access_file([bmc]) == (
        'networks = ["10.112.0.13/32"]\nipmi = true  # any client can get a hash of the password: ipmi://10.112.0.13\n'
    )
    assert bmc.normalized_address == ("ipmi://10.112.0.13", None)
    assert structs.replace(bmc, address="ipmi://10.112.0.13:623").normalized_address == bmc.normalized_address
