"""The double itself: that it does what real BMCs do, by plain HTTP."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double.machine import POST_S, SHUTDOWN_S, Boot, Machine
from tests.helpers.redfish_double.profiles import (
    AMI,
    GENERIC,
    IDRAC9,
    IDRAC10,
    ILO6,
    OPENBMC,
    PROFILES,
    STUCK,
    SUPERMICRO_X10,
    SUPERMICRO_X11,
    XCC,
    Drives,
    Profile,
    sample,
)
from tests.helpers.redfish_double.server import (
    SESSIONS,
    Body,
    Drop,
    Fault,
    Hang,
    Huge,
    Ignored,
    Intrusion,
    PresentCertificate,
    RedfishServer,
    Redirect,
    Reverted,
    Service,
    Slow,
    Status,
    Truncated,
)

ROOT = Path(__file__).parents[2]
PLAIN = ssl.create_default_context()  # made once: it loads all of this machine's authorities
ONCE_PXE = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}
MODE = {"BootSourceOverrideMode": "UEFI"}


class Serve(Protocol):
    def __call__(self, *machines: Machine, **options: Any) -> httpx.Client: ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A client of the machines, which are served until the end of the test."""
    with ExitStack() as stack:

        def serve(*machines: Machine, **options: Any) -> httpx.Client:
            server = stack.enter_context(RedfishServer(Service(*machines), **options))
            return stack.enter_context(httpx.Client(base_url=server.url, timeout=60, verify=PLAIN))

        yield serve


def _boot(client: httpx.Client, machine: Machine) -> Any:
    return client.get(machine.path).raise_for_status().json()["Boot"]


def _write(client: httpx.Client, path: str | None, boot: dict[str, str], etag: str | None = None) -> str:
    assert path
    headers = {"If-Match": etag} if etag else {}
    response = client.patch(path, json={"Boot": boot}, headers=headers)
    code = response.json().get("error", {}).get("code", "Success")
    return f"{response.status_code} {code.rpartition('.')[2]}"


def _etag(client: httpx.Client, path: str | None) -> str:
    assert path
    return str(client.get(path).json()["@odata.etag"])


def test_a_reset_consumes_a_once_override_and_boots_its_target(serve: Serve) -> None:
    boots: list[Boot] = []
    machine = Machine(on_boot=boots.append)
    client = serve(machine)
    uri = {"BootSourceOverrideTarget": "UefiHttp", "HttpBootUri": "http://boot.example.net/web.efi"}
    assert _write(client, machine.path, ONCE_PXE | uri) == "200 Success"

    machine.run_through()
    machine.run_through()

    assert [(boot.target, boot.uri) for boot in boots] == [
        ("UefiHttp", "http://boot.example.net/web.efi"),
        ("None", None),
    ]
    assert _boot(client, machine)["BootSourceOverrideEnabled"] == "Disabled"


def test_a_continuous_override_stays(serve: Serve) -> None:
    machine = Machine()
    client = serve(machine)
    _write(client, machine.path, ONCE_PXE | {"BootSourceOverrideEnabled": "Continuous"})

    machine.run_through()
    machine.run_through()

    assert [boot.target for boot in machine.boots] == ["Pxe", "Pxe"]
    assert _boot(client, machine)["BootSourceOverrideEnabled"] == "Continuous"


def test_a_reset_takes_the_time_of_post(serve: Serve) -> None:
    machine = Machine()
    client = serve(machine)
    client.post(machine.reset_path, json={"ResetType": "ForceRestart"}).raise_for_status()

    seen = []
    for _ in range(10):
        system = client.get(machine.path).json()
        seen.append((system["BootProgress"]["LastState"], system["BootProgress"]["LastStateTime"][11:19]))
        machine.advance(POST_S / 5)

    assert list(dict.fromkeys(seen)) == [
        ("PrimaryProcessorInitializationStarted", "12:00:00"),
        ("MemoryInitializationStarted", "12:00:12"),
        ("PCIResourceConfigStarted", "12:00:42"),
        ("OSBootStarted", "12:01:00"),
        ("OSRunning", "12:01:30"),
    ]
    assert system["LastResetTime"] == "2026-11-20T12:00:00+00:00"


def test_a_graceful_restart_waits_for_the_operating_system(serve: Serve) -> None:
    machine = Machine()
    client = serve(machine)
    client.post(machine.reset_path, json={"ResetType": "GracefulRestart"}).raise_for_status()

    machine.advance(SHUTDOWN_S - 1)
    assert machine.resets == 0
    machine.advance(1)
    assert machine.in_post


def test_a_machine_that_is_off_boots_nothing_until_it_is_switched_on() -> None:
    machine = Machine()
    machine.reset("ForceOff")
    machine.advance(3600)
    assert (machine.power, machine.boots) == ("Off", [])

    machine.reset("On")
    machine.advance(POST_S)
    assert (machine.power, len(machine.boots)) == ("On", 1)


def test_the_target_that_supermicro_lists_as_cd_boots_nothing() -> None:
    targets = []
    for target in ("Cd", "UsbCd"):
        machine = Machine(profile=SUPERMICRO_X11)
        machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget=target)
        machine.run_through()
        targets.append(machine.boots[0].target)
    assert targets == ["None", "UsbCd"]


# profile, the resource that is written (the system or its Settings), the content, the response
REFUSALS = [
    pytest.param(GENERIC, "system", {"BootSourceOverrideTarget": "Tape"}, "400 PropertyValueNotInList"),
    pytest.param(GENERIC, "system", {"Color": "red"}, "400 PropertyValueNotInList"),
    pytest.param(GENERIC, "system", {"BootOrder": ["Boot0001"], **ONCE_PXE}, "400 PropertyValueConflict"),
    pytest.param(IDRAC9, "settings", ONCE_PXE, "400 PropertyNotWritable"),
    pytest.param(IDRAC9, "system", {"HttpBootUri": "http://x/"}, "400 PropertyNotWritableOrUnknown"),
    pytest.param(IDRAC10, "system", ONCE_PXE, "400 PropertyNotWritable"),
    pytest.param(ILO6, "system", {**ONCE_PXE, **MODE}, "400 PropertyNotWritableOrUnknown"),
    pytest.param(ILO6, "system", {"HttpBootUri": "http://x/"}, "400 PropertyNotWritableOrUnknown"),
    pytest.param(ILO6, "system", {"BootSourceOverrideEnabled": "Disabled"}, "400 UnsupportedOperation"),
    pytest.param(SUPERMICRO_X10, "system", {**ONCE_PXE, **MODE}, "400 PropertyNotWritableOrUnknown"),
    pytest.param(SUPERMICRO_X11, "system", ONCE_PXE, "400 PropertyMissing"),
    pytest.param(AMI, "system", {**ONCE_PXE, **MODE}, "428 PreconditionRequired"),
    pytest.param(XCC, "system", ONCE_PXE, "428 PreconditionRequired"),
    pytest.param(OPENBMC, "system", {"BootSourceOverrideTarget": "UefiHttp"}, "400 PropertyValueNotInList"),
]


@pytest.mark.parametrize(("profile", "where", "boot", "answer"), REFUSALS)
def test_each_vendor_rejects_a_write_as_a_whole_if_it_rejects_a_part(
    serve: Serve, profile: Profile, where: str, boot: dict[str, str], answer: str
) -> None:
    machine = Machine(profile=profile)
    before = dict(machine.override)
    client = serve(machine)

    assert _write(client, machine.path if where == "system" else machine.settings_path, boot) == answer
    assert machine.override == before


def test_an_etag_protects_what_was_read(serve: Serve) -> None:
    machine = Machine(profile=XCC)
    client = serve(machine)
    response = client.get(machine.path)
    etag = response.headers["ETag"]
    assert etag == response.json()["@odata.etag"] == _etag(client, machine.path)

    assert _write(client, machine.path, ONCE_PXE, etag) == "200 Success"
    assert _write(client, machine.path, ONCE_PXE, etag) == "412 PreconditionFailed"
    assert _write(client, machine.path, ONCE_PXE, _etag(client, machine.path)) == "200 Success"


def test_ami_sends_weak_etags_and_accepts_strong_ones(serve: Serve) -> None:
    machine = Machine(profile=AMI)
    client = serve(machine)
    etag = _etag(client, machine.settings_path)
    boot = ONCE_PXE | MODE

    assert etag.startswith("W/")
    assert _write(client, machine.settings_path, boot, etag) == "412 PreconditionFailed"
    assert _write(client, machine.settings_path, boot, etag.removeprefix("W/")) == "200 Success"


def test_ami_shows_in_the_system_the_result_of_the_last_boot(serve: Serve) -> None:
    machine = Machine(profile=AMI)
    client = serve(machine)
    etag = _etag(client, machine.settings_path).removeprefix("W/")
    continuous = ONCE_PXE | MODE | {"BootSourceOverrideEnabled": "Continuous"}
    assert _write(client, machine.path, continuous, _etag(client, machine.path).removeprefix("W/")) == (
        "400 OperationSupportedInFutureStateURI"
    )
    assert _write(client, machine.settings_path, continuous, etag) == "200 Success"

    assert _boot(client, machine)["BootSourceOverrideEnabled"] == "Disabled"
    machine.run_through()
    assert _boot(client, machine)["BootSourceOverrideEnabled"] == "Continuous"


@pytest.mark.parametrize(
    ("profile", "answer", "kept"),
    [
        pytest.param(GENERIC, "200 Success", True, id="generic takes it"),
        pytest.param(IDRAC9, "200 Success", False, id="iDRAC 9 loses it"),
        pytest.param(ILO6, "400 UnableToModifyDuringSystemPOST", False, id="iLO rejects it"),
        pytest.param(AMI, "503 ServiceTemporarilyUnavailable", False, id="AMI has no time"),
    ],
)
def test_a_write_during_post_is_handled_as_the_vendor_does(
    serve: Serve, profile: Profile, answer: str, kept: bool
) -> None:
    machine = Machine(profile=profile)
    client = serve(machine)
    machine.reset()
    path = machine.settings_path if profile is AMI else machine.path
    boot = ONCE_PXE | (MODE if profile is AMI else {})

    assert _write(client, path, boot, _etag(client, path).removeprefix("W/")) == answer
    assert (machine.override["BootSourceOverrideEnabled"] == "Once") is kept
    assert [(request.method, request.in_post) for request in machine.requests] == [
        ("GET", True),
        ("PATCH", True),
    ]


def test_a_redundant_mode_costs_idrac_another_reboot(serve: Serve) -> None:
    resets = []
    for boot in (ONCE_PXE, ONCE_PXE | MODE):
        machine = Machine(profile=IDRAC9)
        _write(serve(machine), machine.path, boot)
        machine.run_through()
        machine.advance(POST_S)
        assert [boot.target for boot in machine.boots] == ["Pxe"]
        resets.append(machine.resets)
    assert resets == [1, 2]


def test_continuous_http_changes_the_boot_order_of_idrac(serve: Serve) -> None:
    machine = Machine(profile=IDRAC9)
    continuous = {"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "UefiHttp"}
    _write(serve(machine), machine.path, continuous)
    assert machine.boot_order_changed


def test_only_a_power_switch_changes_the_last_reset_time_of_openbmc() -> None:
    machine = Machine(profile=OPENBMC)
    shown = [machine.system()["LastResetTime"]]
    for kind in ("ForceRestart", "ForceOff", "On"):
        machine.advance(POST_S)
        machine.reset(kind)
        shown.append(machine.system()["LastResetTime"])
    assert [time[11:16] for time in shown] == ["12:00", "12:00", "12:02", "12:03"]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_bmc_is_found_from_its_root(serve: Serve, profile: Profile) -> None:
    machine = Machine(profile=profile)
    client = serve(machine)
    systems = client.get("/redfish/v1/").json()["Systems"]["@odata.id"]
    (member,) = client.get(systems).json()["Members"]
    system = client.get(member["@odata.id"]).json()

    assert system["UUID"] == machine.uuid
    assert client.get(system["Actions"]["#ComputerSystem.Reset"]["target"]).status_code == 405
    if "@Redfish.Settings" in system:
        assert client.get(system["@Redfish.Settings"]["SettingsObject"]["@odata.id"]).is_success


def test_ilo_redirects_to_the_path_with_a_slash(serve: Serve) -> None:
    response = serve(Machine(profile=ILO6)).get("/redfish/v1/Systems/1")
    assert (response.status_code, response.headers["Location"]) == (308, "/redfish/v1/Systems/1/")


def test_one_service_holds_many_systems(serve: Serve) -> None:
    machines = [Machine(name, system=name) for name in ("a", "a1", "b")]
    client = serve(*machines)
    assert [client.get(machine.path).json()["HostName"] for machine in machines] == ["a", "a1", "b"]
    assert client.get("/redfish/v1/Systems/c").status_code == 404


def test_requests_need_credentials_or_a_session(serve: Serve) -> None:
    machine = Machine()
    service = Service(machine, credentials={"admin": "secret"})
    with RedfishServer(service) as server, httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client:
        sessions = client.get("/redfish/v1/").json()["Links"]["Sessions"]["@odata.id"]

        def log_in(password: str) -> httpx.Response:
            return client.post(sessions, json={"UserName": "admin", "Password": password})

        def read(**options: Any) -> int:
            return client.get(machine.path, **options).status_code

        assert (read(), read(auth=("admin", "wrong")), read(auth=("admin", "secret"))) == (401, 401, 200)
        assert read(headers={"X-Auth-Token": "made-up"}) == 401
        assert log_in("wrong").status_code == 401
        token = {"X-Auth-Token": log_in("secret").headers["X-Auth-Token"]}
        assert read(headers=token) == 200
        service.sessions.end()
        assert read(headers=token) == 401
        again = log_in("secret")
        token = {"X-Auth-Token": again.headers["X-Auth-Token"]}
        client.delete(again.headers["Location"], headers=token).raise_for_status()
        assert read(headers=token) == 401

    assert "secret" not in repr(service.requests)
    assert all("Authorization" not in request.headers for request in service.requests)


def test_an_idle_session_ends(serve: Serve) -> None:
    machine = Machine()
    service = Service(machine, credentials={"admin": "secret"}, session_timeout_s=30)
    with RedfishServer(service) as server, httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client:
        answer = client.post(SESSIONS, json={"UserName": "admin", "Password": "secret"})
        token = {"X-Auth-Token": answer.headers["X-Auth-Token"]}

        def read(path: str) -> httpx.Response:
            return client.get(path, headers=token)

        assert read("/redfish/v1/SessionService").json()["SessionTimeout"] == 30
        for _ in range(3):
            machine.advance(20)
            assert read(machine.path).status_code == 200
        assert read(SESSIONS).json()["Members"] == [{"@odata.id": answer.headers["Location"]}]
        assert read(answer.headers["Location"]).json()["UserName"] == "admin"
        machine.advance(31)
        assert read(machine.path).status_code == 401
        assert client.get(SESSIONS, auth=("admin", "secret")).json()["Members"] == []


def test_the_number_of_sessions_is_limited(serve: Serve) -> None:
    service = Service(Machine(), credentials={"admin": "secret"}, most_sessions=2)
    with RedfishServer(service) as server, httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client:
        answers = [client.post(SESSIONS, json={"UserName": "admin", "Password": "secret"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [201, 201, 503]
        assert answers[2].headers["Retry-After"] == "30"


@for_each("profile", PROFILES.values(), ids=PROFILES)
def test_a_system_has_the_form_of_the_samples_of_sushy(profile: Profile) -> None:
    machine = Machine(profile=profile)
    system, real = machine.system(), sample(profile.sample)
    elsewhere = set() if profile.drives is Drives.SYSTEM else {"VirtualMedia"}
    assert set(real) - set(system) <= {"BootProgress", "LastResetTime"} | elsewhere
    assert system["ProcessorSummary"] == real["ProcessorSummary"]
    assert system["Bios"]["@odata.id"] == f"{machine.path.rstrip('/')}/Bios"
    assert system["Boot"]["UefiTargetBootSourceOverride"] == real["Boot"]["UefiTargetBootSourceOverride"]
    if profile.settings:
        settings, real = machine.settings(), sample(profile.settings_sample)
        assert (set(settings), settings["Boot"]["BootOrder"]) == (
            set(real) | {"@odata.etag"},
            real["Boot"]["BootOrder"],
        )


def test_every_response_takes_its_latency() -> None:
    machine = Machine()
    with RedfishServer(Service(machine), latency_s=0.2) as server, http_peers.Client(base_url=server.url) as client:
        for method, content in (("GET", None), ("PATCH", {"Boot": ONCE_PXE})):
            begun = time.monotonic()
            assert client.request(method, machine.path, json=content).status_code == 200
            assert time.monotonic() - begun >= 0.2


def test_a_slow_response_comes_byte_by_byte() -> None:
    machine = Machine()
    with RedfishServer(Service(machine)) as server, socket.create_connection(server.address) as client:
        server.fault(Slow(every_s=0.05))
        client.settimeout(60)
        begun = time.monotonic()
        client.sendall(f"GET {machine.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        received = b"".join(client.recv(1) for _ in range(10))
        assert received == b"HTTP/1.1 2"
        assert time.monotonic() - begun >= 0.05 * 8


@for_each(
    ("fault", "outcome"),
    [
        pytest.param(Hang(), "ReadTimeout", id="hangs"),
        pytest.param(Slow(every_s=0), "200", id="slow"),
        pytest.param(Status(status=401), "401", id="401"),
        pytest.param(Status(status=409), "409", id="409"),
        pytest.param(Status(status=500, body=b"<html>"), "500", id="500"),
        pytest.param(Status(status=503, headers={"Retry-After": "120"}), "503", id="503"),
        pytest.param(Body(), "JSONDecodeError", id="half a document"),
        pytest.param(Body(body=b"\x00\xff<html>"), "JSONDecodeError", id="garbage"),
        pytest.param(Truncated(), "RemoteProtocolError", id="truncated"),
        pytest.param(Huge(size=1 << 20), "JSONDecodeError", id="huge"),
        pytest.param(Redirect(location="http://192.0.2.1/"), "302", id="redirected"),
        pytest.param(Drop(applied=False), "RemoteProtocolError", id="dropped"),
    ],
)
def test_each_fault_happens_once(fault: Fault, outcome: str) -> None:
    machine = Machine()
    with (
        RedfishServer(Service(machine)) as server,
        httpx.Client(base_url=server.url, timeout=60, verify=PLAIN) as client,
    ):

        def read(timeout_s: float) -> str:
            try:
                response = client.get(machine.path, timeout=timeout_s)
                if response.is_success:
                    response.json()
            except (httpx.HTTPError, ValueError) as error:
                return type(error).__name__
            return str(response.status_code)

        server.fault(fault)
        assert [read(0.5 if isinstance(fault, Hang) else 60), read(60)] == [outcome, "200"]


@pytest.mark.parametrize(
    ("fault", "status", "enabled"),
    [
        pytest.param(Drop(applied=True), None, "Once", id="applied, connection dropped"),
        pytest.param(Drop(applied=False), None, "Disabled", id="not applied, connection dropped"),
        pytest.param(Ignored(), 200, "Disabled", id="ignored"),
        pytest.param(Reverted(), 200, "Disabled", id="reverted"),
        pytest.param(Intrusion(boot={"BootSourceOverrideTarget": "Hdd"}), 412, "Disabled", id="intrusion"),
    ],
)
def test_each_fault_applies_or_drops_the_write(fault: Fault, status: int | None, enabled: str) -> None:
    machine = Machine()
    with (
        RedfishServer(Service(machine)) as server,
        httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client,
    ):
        headers = {"If-Match": _etag(client, machine.path)}
        server.fault(fault, on="PATCH")
        try:
            seen = client.patch(machine.path, json={"Boot": ONCE_PXE}, headers=headers).status_code
        except httpx.RemoteProtocolError:
            seen = None
    assert (seen, machine.override["BootSourceOverrideEnabled"]) == (status, enabled)
    assert machine.writes == [{"Boot": ONCE_PXE}]


def test_a_write_can_be_undone_later_without_an_error(serve: Serve) -> None:
    machine = Machine()
    with (
        RedfishServer(Service(machine)) as server,
        httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client,
    ):
        server.fault(Reverted(after_s=10), on="PATCH")
        assert _write(client, machine.path, ONCE_PXE) == "200 Success"
        shown = []
        for _ in range(3):
            shown.append(_boot(client, machine)["BootSourceOverrideEnabled"])
            machine.advance(5)
    assert shown == ["Once", "Once", "Disabled"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_a_bad_certificate_affects_one_connection(authority: Authority, tmp_path: Path, serve: Serve) -> None:
    bad = {
        "not valid for": authority.server_context("DNS:bmc.example.net"),
        "certificate has expired": authority.server_context(days=-1),
        "unable to get local issuer certificate": Authority(tmp_path).server_context(),
    }
    trusting = ssl.create_default_context(cadata=authority.pem)
    machine = Machine()
    with RedfishServer(Service(machine), tls=authority.server_context()) as server:
        assert server.url.startswith("https://")

        def read() -> str:
            try:
                return httpx.get(f"{server.url}{machine.path}", verify=trusting, timeout=60).reason_phrase
            except httpx.ConnectError as error:
                return str(error)

        for said, tls in bad.items():
            server.fault(PresentCertificate(tls=tls), on="TLS")
            assert said in read()
            assert read() == "OK"


@contextmanager
def _demonstration(*options: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.helpers.redfish_double", "--port", "0", "--post", "0.1", *map(str, options)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_demonstration_boots_on_reset_and_ends_on_sigterm(tmp_path: Path, serve: Serve, scheme: str) -> None:
    (tmp_path / "bmc").mkdir()
    (tmp_path / "bmc" / "username").write_text("admin\n")
    (tmp_path / "bmc" / "password").write_text("secret\n")
    uuid, mac = "4c4c4544-0034-4a10-8056-b9c04f4d3732", "52:54:00:12:34:56"
    base = serve(Machine()).base_url  # which has no boot files: each GET is a 404
    options = ("--system", f"web03={uuid},{mac}", "--credentials", tmp_path, "--fetch", base)
    with _demonstration(*options, *(("--tls", tmp_path) if scheme == "https" else ())) as process:
        assert process.stdout
        _, url, *_ = process.stdout.readline().split()
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem") if scheme == "https" else PLAIN
        with httpx.Client(base_url=url, auth=("admin", "secret"), verify=trusting, timeout=60) as client:
            assert client.base_url.scheme == scheme
            client.patch("Systems/web03", json={"Boot": ONCE_PXE}).raise_for_status()
            client.post("Systems/web03/Actions/ComputerSystem.Reset", json={}).raise_for_status()
        lines = [process.stdout.readline().split(", ")[0].strip() for _ in range(4)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0

    assert lines == [
        "web03 boots Pxe",
        "web03 GET /boot.ipxe: 404",
        "web03 GET /v1/boot/52-54-00-12-34-56/boot.ipxe: 404",
        f"web03 GET /ipxe/{uuid}: 404",
    ]


# The identity of the machine, and the Manager's clock


def _manager(client: httpx.Client, machine: Machine) -> Any:
    (manager,) = client.get(machine.path).raise_for_status().json()["Links"]["ManagedBy"]
    return client.get(manager["@odata.id"]).raise_for_status().json()


def test_a_system_shows_its_configured_identity(serve: Serve) -> None:
    machine = Machine(uuid="4c4c4544-0058-3610-8044-c2c04f503933", serial="X6DCP93", sku="0B2D")
    client = serve(machine)
    shown = client.get(machine.path).json()
    assert (shown["UUID"], shown["SerialNumber"], shown["SKU"]) == (machine.uuid, "X6DCP93", "0B2D")
    machine.uuid, machine.serial = "", "To be filled by O.E.M."
    shown = client.get(machine.path).json()
    assert (shown["UUID"], shown["SerialNumber"]) == ("", "To be filled by O.E.M.")


def test_a_manager_shows_its_clock_and_its_own_restarts(serve: Serve) -> None:
    machine = Machine()
    client = serve(machine)
    machine.advance(3600)
    machine.reset()
    shown = _manager(client, machine)
    assert (shown["DateTime"], shown["LastResetTime"]) == ("2026-11-20T13:00:00+00:00", "2026-11-17T12:00:00+00:00")
    machine.restart_bmc()
    assert _manager(client, machine)["LastResetTime"] == "2026-11-20T13:00:00+00:00"
    assert client.get(machine.path).json()["PowerState"] == "On"


def test_a_clock_that_is_set_applies_to_later_marks(serve: Serve) -> None:
    machine = Machine()
    client = serve(machine)
    machine.set_clock(datetime(1970, 1, 1, tzinfo=UTC))
    assert client.get(machine.path).json()["LastResetTime"] == "2026-11-17T12:00:00+00:00"
    machine.run_through()
    assert _manager(client, machine)["DateTime"] == "1970-01-01T00:02:00+00:00"
    assert client.get(machine.path).json()["LastResetTime"] == "1970-01-01T00:00:00+00:00"


def test_a_factory_reset_forgets_the_override_and_the_last_reset(serve: Serve) -> None:
    machine = Machine()
    client = serve(machine)
    _write(client, machine.path, ONCE_PXE)
    machine.restart_bmc(clock=datetime(1970, 1, 1, tzinfo=UTC), forgets=True)
    shown = client.get(machine.path).json()
    assert (shown["Boot"]["BootSourceOverrideEnabled"], shown["LastResetTime"][:4]) == ("Disabled", "1970")
    assert (machine.resets, machine.boots) == (0, [])


def test_marks_of_a_stuck_profile_never_move(serve: Serve) -> None:
    machine = Machine(profile=STUCK)
    client = serve(machine)
    before = client.get(machine.path).json()
    machine.run_through()
    machine.reset("ForceOff")
    machine.run_through()
    after = client.get(machine.path).json()
    assert len(machine.boots) == 2
    assert (after["LastResetTime"], "LastStateTime" in after["BootProgress"]) == (before["LastResetTime"], False)


def test_an_account_may_lack_the_right_to_read_the_manager(serve: Serve) -> None:
    machine = Machine(profile=replace(GENERIC, manager=False))
    assert serve(machine).get(machine.manager_path).status_code == 403
