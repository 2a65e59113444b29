"""`BmcConnection` against the double: each vendor, each fault, over HTTP and HTTPS."""

from __future__ import annotations

import importlib
import pkgutil
import ssl
from pathlib import Path
from typing import Any

import pytest
import sushy
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from sushy.exceptions import SushyError

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.identity import ReportedIdentity
from gitboot.bmc.override_state import BmcObservation, Override, ResetMarks
from gitboot.bmc.override_steps import NO_OVERRIDE, adapt_override, is_override_shown
from gitboot.bmc.power_steps import ResetType
from gitboot.bmc.redfish.client import ERROR_TYPES, BmcConnection
from gitboot.bmc.redfish.quirks import QUIRKS
from gitboot.bmc.redfish.resources import Resource, add_clock, build_observation
from gitboot.bmc.redfish.transport import ConnectionPolicy
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, GitbootError, LeaseLost
from gitboot.http_client import tls_context
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import PASSWORD, USER, MakeRack, Rack
from tests.helpers.cases import for_each
from tests.helpers.endpoints import eventually
from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double.machine import STARTED, Machine
from tests.helpers.redfish_double.profiles import (
    AMI,
    GENERIC,
    ILO6,
    PROFILES,
    SUPERMICRO_X10,
    SUPERMICRO_X11,
    XCC,
    Profile,
)
from tests.helpers.redfish_double.server import (
    Body,
    Drop,
    Fault,
    Hang,
    Huge,
    Ignored,
    Intrusion,
    RedfishServer,
    Redirect,
    Reverted,
    Service,
    Slow,
    Status,
    Truncated,
)

URI = "http://boot.example.net/web.efi"
ONCE = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri=URI)
ALWAYS = Override(enabled=OverrideEnabled.CONTINUOUS, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri=URI)
FROM_CD = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI")


def _set_override(bmc: BmcConnection, wanted: Override) -> BmcObservation:
    seen = bmc.observe()
    override = adapt_override(wanted, seen)
    assert override is not None
    bmc.set_override(override, seen)
    return bmc.observe()


def _format_write(machine: Machine, index: int = -1) -> str:
    """Return the override values of one PATCH, in a fixed order."""
    boot = machine.writes[index]["Boot"]
    names = ("Enabled", "Target", "Mode")
    values = [boot.pop(f"BootSourceOverride{name}", "") for name in names] + [boot.pop("HttpBootUri", "")]
    assert not boot
    return " ".join(str(value).replace(URI, "URI") for value in values if value != "")


# profile, the settings for ONCE, for ALWAYS (none: it has no Continuous), for FROM_CD, and to switch that off;
# what the machine boots
VENDORS = [
    ("generic", "Once UefiHttp URI", "Continuous UefiHttp", "Once Cd", "Disabled", "UefiHttp UefiHttp Cd"),
    ("idrac9", "Once UefiHttp", "Continuous Pxe", "Once Cd", "Disabled", "UefiHttp Pxe Cd"),
    ("idrac10", "Once UefiHttp", "Continuous Pxe", "Once Cd", "Disabled", "UefiHttp Pxe Cd"),
    ("ilo6", "Once UefiHttp", "Continuous UefiHttp", "Once Cd", "Disabled Pxe", "UefiHttp UefiHttp Cd"),
    ("supermicro-x10", "Once Pxe", "Continuous Pxe", "Once UsbCd", "Disabled", "Pxe Pxe UsbCd"),
    (
        "supermicro-x11",
        "Once UefiHttp UEFI",
        "Continuous UefiHttp UEFI",
        "Once UsbCd UEFI",
        "Disabled UEFI",
        "UefiHttp UefiHttp UsbCd",
    ),
    (
        "supermicro-x12",
        "Once UefiHttp UEFI",
        "Continuous UefiHttp UEFI",
        "Once UsbCd UEFI",
        "Disabled UEFI",
        "UefiHttp UefiHttp UsbCd",
    ),
    (
        "supermicro-grace",
        "Once UefiHttp UEFI",
        "Continuous UefiHttp UEFI",
        "Once Cd UEFI",
        "Disabled UEFI",
        "UefiHttp UefiHttp Cd",
    ),
    (
        "ami",
        "Once UefiHttp UEFI URI",
        "Continuous UefiHttp UEFI",
        "Once Cd UEFI",
        "Disabled None UEFI",
        "UefiHttp UefiHttp Cd",
    ),
    ("xcc", "Once UefiHttp", "", "Once Cd", "Disabled", "UefiHttp None Cd"),
    ("openbmc", "Once Pxe", "Continuous Pxe", "Once Cd", "Disabled", "Pxe Pxe Cd"),
    ("openbmc-2021", "Once Pxe", "Continuous Pxe", "Once Cd", "Disabled", "Pxe Pxe Cd"),
    ("gb200", "Once Pxe", "Continuous Pxe", "Once Cd", "Disabled", "Pxe Pxe Cd"),
    (
        "dgx",
        "Once UefiHttp UEFI URI",
        "Continuous UefiHttp UEFI",
        "Once Cd UEFI",
        "Disabled None UEFI",
        "UefiHttp UefiHttp Cd",
    ),
    ("cimc", "Once Pxe", "Continuous Pxe", "Once Cd", "Disabled", "Pxe Pxe Cd"),
    ("irmc", "Once Pxe", "Continuous Pxe", "Once Cd", "None", "Pxe Pxe Cd"),
    ("ibmc", "Once Pxe", "Continuous Pxe", "Once Cd", "Disabled", "Pxe Pxe Cd"),
    ("stuck", "Once UefiHttp URI", "Continuous UefiHttp", "Once Cd", "Disabled", "UefiHttp UefiHttp Cd"),
]


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize(
    ("name", "once", "always", "from_cd", "off", "boots"), VENDORS, ids=[row[0] for row in VENDORS]
)
def test_each_vendor_gets_the_override_settings_that_it_accepts(
    make_rack: MakeRack,
    authority: Authority,
    name: str,
    once: str,
    always: str,
    from_cd: str,
    off: str,
    boots: str,
    tls: bool,
) -> None:
    rack = make_rack(profile=PROFILES[name], tls=authority.server_context() if tls else None)
    machine, bmc = rack.machine, rack.connect(system=None, tls=tls_context(ca=authority.pem))
    for wanted, sent in ((ONCE, once), (ALWAYS, always), (FROM_CD, from_cd)):
        machine.write(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
        fitted = adapt_override(wanted, bmc.observe())
        assert (fitted is not None) == bool(sent)
        if fitted is not None:
            assert is_override_shown(fitted, _set_override(bmc, wanted))
            assert _format_write(machine) == sent
        machine.run_through()

    _set_override(bmc, FROM_CD)
    bmc.set_override(NO_OVERRIDE, bmc.observe())
    assert is_override_shown(NO_OVERRIDE, bmc.observe())
    assert _format_write(machine) == off
    machine.run_through()
    assert [boot.target for boot in machine.boots] == [*boots.split(), "None"]
    assert machine.resets == 4  # no setting cost the machine another reboot
    assert not machine.boot_order_changed
    assert all("If-Match" in request.headers for request in machine.requests if request.method == "PATCH")


def test_all_profiles_are_tested() -> None:
    assert [row[0] for row in VENDORS] == list(PROFILES)


def test_only_differing_settings_are_sent(rack: Rack) -> None:
    machine, bmc = rack.machine, rack.connect()
    _set_override(bmc, ONCE)
    _set_override(bmc, ONCE)
    _set_override(bmc, Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="Legacy"))
    bmc.set_override(NO_OVERRIDE, bmc.observe())
    bmc.set_override(NO_OVERRIDE, bmc.observe())

    sent = [_format_write(machine, index) for index in range(len(machine.writes))]
    assert sent == ["Once UefiHttp URI", "Legacy None", "Disabled"]


@pytest.mark.parametrize(
    ("profile", "sent"),
    [
        pytest.param(GENERIC, "Cd", id="differences only"),
        pytest.param(SUPERMICRO_X10, "Once UsbCd", id="and Enabled"),
        pytest.param(SUPERMICRO_X11, "Once UsbCd UEFI", id="and Enabled and Mode"),
        pytest.param(AMI, "Once Cd UEFI", id="and all of it"),
    ],
)
def test_a_new_target_is_sent_together_with_the_settings_that_the_bmc_requires(
    make_rack: MakeRack, profile: Profile, sent: str
) -> None:
    rack = make_rack(profile=profile)
    machine, bmc = rack.machine, rack.connect()
    _set_override(bmc, structs.replace(FROM_CD, target=OverrideTarget.PXE))
    _set_override(bmc, FROM_CD)
    assert _format_write(machine) == sent


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_an_override_that_is_off_is_not_switched_off_again(make_rack: MakeRack, profile: Profile) -> None:
    rack = make_rack(profile=profile)
    machine, bmc = rack.machine, rack.connect()
    bmc.set_override(NO_OVERRIDE, bmc.observe())
    assert machine.writes == []


@pytest.mark.parametrize(
    ("profile", "first", "again"),
    [
        pytest.param(GENERIC, 1, 1, id="override in the system"),
        pytest.param(XCC, 2, 1, id="Settings without override"),
        pytest.param(AMI, 2, 2, id="override in Settings"),
    ],
)
def test_an_observation_takes_one_request_for_each_resource(
    make_rack: MakeRack, authority: Authority, profile: Profile, first: int, again: int
) -> None:
    rack = make_rack(profile=profile, tls=authority.server_context())
    bmc = rack.connect(tls=tls_context(ca=authority.pem))
    counts = []
    for _ in range(3):
        before = len(rack.server.service.requests)
        bmc.observe()
        counts.append(len(rack.server.service.requests) - before)
    assert (counts, rack.server.connections) == ([first, again, again], 1)


def test_the_only_system_is_searched_once(make_rack: MakeRack) -> None:
    rack = make_rack(profile=ILO6)
    bmc = rack.connect(system=None)
    bmc.observe()
    bmc.observe()
    paths = [request.path for request in rack.server.service.requests]
    assert paths == ["/redfish/v1/", "/redfish/v1/Systems", "/redfish/v1/Systems/1/", "/redfish/v1/Systems/1/"]


def test_one_of_several_systems_must_be_named(make_rack: MakeRack) -> None:
    rack = make_rack(*(Machine(name, system=name) for name in ("a", "b")))
    with pytest.raises(BmcRejected, match=r"/redfish/v1/Systems/a, /redfish/v1/Systems/b\. Set bmc\.system"):
        rack.connect(system=None).observe()
    path = rack.machines[1].path
    assert rack.connect(system=path).observe().system == path


def test_a_bmc_that_cannot_read_a_bare_etag_gets_no_write_after_a_change(rack: Rack) -> None:
    machine, server, bmc = rack.machine, rack.server, rack.connect()
    seen = bmc.observe()
    machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    server.service.requests.clear()
    with pytest.raises(BmcBusy, match="412"):
        bmc.set_override(FROM_CD, seen)
    assert [request.method for request in server.service.requests] == ["PATCH", "GET"]


@pytest.mark.parametrize("is_changed", [True, False])
def test_the_waiting_time_in_a_refusal_of_a_write_outlives_the_read_that_follows(rack: Rack, is_changed: bool) -> None:
    machine, server, bmc = rack.machine, rack.server, rack.connect()
    seen = bmc.observe()
    if is_changed:
        machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    server.fault(Status(status=412, headers={"Retry-After": "30"}), on="PATCH", times=100)
    with pytest.raises(BmcBusy, match="has changed" if is_changed else "rejects every form") as raised:
        bmc.set_override(FROM_CD, seen)
    assert raised.value.retry_after_s == 30


@pytest.mark.parametrize("error", [AttributeError, TypeError, RecursionError])
def test_an_error_in_gitboot_is_not_reported_as_an_error_of_the_bmc(rack: Rack, error: type[Exception]) -> None:
    bmc = rack.connect()
    seen = bmc.observe()

    def fail() -> bool:
        raise error

    with pytest.raises(error):
        bmc.patch(seen.settings_path, {"Boot": {}}, (), fail)


NOT_REDFISH = [
    b"[]",
    b'"no"',
    b'{"error": "no"}',
    b'{"error": []}',
    b'{"error": {"@Message.ExtendedInfo": [1]}}',
]
UNREACHABLE = [
    pytest.param(Hang(), "Read timed out", id="hangs"),
    pytest.param(Slow(), "took too long|timed out", id="a byte now and then"),
    pytest.param(Drop(applied=False), "Connection aborted", id="drops the connection"),
    pytest.param(Truncated(), "IncompleteRead", id="truncated"),
    pytest.param(Huge(), "larger than 1048576 bytes", id="without end"),
    pytest.param(Body(), "not JSON", id="half of a JSON text"),
    pytest.param(Body(body=b"\xff\xfe\x00"), "not JSON", id="not even text"),
    pytest.param(Body(body=b"[" * 100_000), "not JSON", id="nested too deeply"),
    pytest.param(Body(body=b"[1]"), "not a JSON object", id="a list"),
    pytest.param(Body(body=b'{"SerialNumber": "\\ud800"}'), "not JSON", id="half of a surrogate pair"),
    pytest.param(Body(body=b'{"SerialNumber": "\xed\xa0\x80"}'), "not JSON", id="an encoded surrogate"),
    pytest.param(
        Status(
            status=500,
            body=b'{"error": {"@Message.ExtendedInfo": [{"Severity": "Critical", "Message": ["busy"]}]}}',
        ),
        r"500 \['busy'\]",
        id="a message that is a list",
    ),
    pytest.param(Status(status=500, body=b"<html>"), "500 without a reason", id="500"),
    *(
        pytest.param(
            Status(status=400, body=body), "the BMC returned an error that is not in Redfish format", id=body.decode()
        )
        for body in NOT_REDFISH[:3]
    ),
]
REJECTED = [
    pytest.param(
        Status(status=401), '401: the BMC rejects the user name or password in the credentials "rack"', id="401"
    ),
    pytest.param(Status(status=403), "403 no", id="403"),
    pytest.param(Status(status=404), "404 no", id="404"),
    pytest.param(Status(status=501), "501 no", id="501"),
    pytest.param(Status(status=400, body=b'{"error": {"message": 5}}'), "400 5", id="a message that is a number"),
    pytest.param(
        Status(status=400, body=b'{"error": {"message": "no \\ud800"}}'), r"400 no \\ud800", id="half of a pair"
    ),
    pytest.param(Redirect(location="http://192.0.2.1/redfish/v1/"), "the BMC redirects to http://192", id="elsewhere"),
    pytest.param(Redirect(location="//[192.0.2.1/"), "the BMC redirects to", id="redirected to nonsense"),
    pytest.param(Body(body=b'{"Boot": {}}'), "has no Boot.BootSourceOverrideTarget", id="no override"),
    pytest.param(Body(body=b'{"Boot": []}'), "has no Boot.BootSourceOverrideTarget", id="Boot is a list"),
    pytest.param(
        Body(body=b'{"Boot": {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Twice"}}'),
        "shows 'Twice' as Boot.BootSourceOverrideEnabled, but gitboot supports only these values: Disabled, Once",
        id="unheard of",
    ),
    pytest.param(
        Body(body=b'{"@Redfish.Settings": {"SettingsObject": {"@odata.id": "http://192.0.2.1/a"}}}'),
        "not a path on this BMC",
        id="a link to elsewhere",
    ),
]
BUSY = [
    pytest.param(Status(status=409), "409 no", id="409"),
    pytest.param(Status(status=429), "429 no", id="429"),
    pytest.param(Status(status=503), "503 no", id="503"),
    pytest.param(
        Status(status=500, body=b'{"error": {"@Message.ExtendedInfo": [{"MessageId": "IDRAC.2.8.SYS518"}]}}'),
        "500 .*SYS518",
        id="iDRAC is not ready",
    ),
]


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        *(pytest.param(row.values[0], BmcUnreachable, row.values[1], id=str(row.id)) for row in UNREACHABLE),
        *(pytest.param(row.values[0], BmcRejected, row.values[1], id=str(row.id)) for row in REJECTED),
        *(pytest.param(row.values[0], BmcBusy, row.values[1], id=str(row.id)) for row in BUSY),
    ],
)
def test_each_fault_of_a_read_has_its_own_error(
    rack: Rack, fault: Fault, error: type[GitbootError], message: str
) -> None:
    machine, server = rack.machine, rack.server
    timeout_s = 0.3 if isinstance(fault, (Hang, Slow)) else 60  # the answer would take an hour, or half a minute
    bmc = rack.connect(read_timeout_s=timeout_s)
    server.fault(fault, times=2)  # sushy repeats a GET after a 5xx

    with pytest.raises(error, match=message) as raised:
        bmc.observe()

    assert str(raised.value).startswith(f"GET {server.url}") or server.url in str(raised.value)
    assert PASSWORD not in repr(raised.value)
    assert len(machine.requests) <= 2


def test_a_bmc_is_readable_again_after_a_fault(make_rack: MakeRack, authority: Authority) -> None:
    rack = make_rack(tls=authority.server_context())
    server, bmc = rack.server, rack.connect(tls=tls_context(ca=authority.pem))
    for fault in (Truncated(), Huge(), Drop(applied=False), Body()):
        server.fault(fault)
        with pytest.raises(BmcUnreachable):
            bmc.observe()
        assert bmc.observe().power == "On"


@pytest.mark.parametrize(("retry_after", "seconds"), [("120", 120), ("9" * 5000, 3600), ("soon", None), ("-5", None)])
def test_a_busy_bmc_may_state_how_long_to_wait(rack: Rack, retry_after: str, seconds: int | None) -> None:
    rack.server.fault(Status(status=503, headers={"Retry-After": retry_after}), times=2)
    with pytest.raises(BmcBusy) as raised:
        rack.connect().observe()
    assert raised.value.retry_after_s == seconds


@pytest.mark.parametrize(
    ("profile", "fault", "error", "message", "enabled"),
    [
        pytest.param(GENERIC, Drop(applied=True), BmcUnreachable, "aborted", "Once", id="applied, dropped"),
        pytest.param(GENERIC, Drop(applied=False), BmcUnreachable, "aborted", "Disabled", id="dropped"),
        pytest.param(GENERIC, Hang(), BmcUnreachable, "timed out", "Disabled", id="hangs"),
        pytest.param(GENERIC, Status(status=500), BmcUnreachable, "500", "Disabled", id="500"),
        pytest.param(GENERIC, Status(status=400), BmcRejected, "400 no", "Disabled", id="400"),
        pytest.param(
            GENERIC,
            Redirect(location="http://192.0.2.1/redfish/v1/Systems/1", status=307),
            BmcRejected,
            "307: the BMC redirects to http://192.0.2.1/redfish/v1/Systems/1",
            "Disabled",
            id="307 to another host",
        ),
        pytest.param(
            GENERIC,
            Redirect(location="/redfish/v1/Systems/1", status=303),
            BmcRejected,
            "303: the BMC redirects to /redfish/v1/Systems/1",
            "Disabled",
            id="303, which would be read",
        ),
        pytest.param(
            GENERIC,
            Intrusion(boot={"BootSourceOverrideEnabled": "Continuous"}),
            BmcBusy,
            "412",
            "Continuous",
            id="someone else was faster",
        ),
        pytest.param(GENERIC, Ignored(), None, "", "Disabled", id="ignored"),
        pytest.param(GENERIC, Reverted(), None, "", "Disabled", id="reverted"),
    ],
)
def test_each_fault_of_a_write_has_its_own_error_and_causes_no_second_write(
    make_rack: MakeRack,
    profile: Profile,
    fault: Fault,
    error: type[GitbootError] | None,
    message: str,
    enabled: str,
) -> None:
    rack = make_rack(profile=profile)
    machine, server, seen = rack.machine, rack.server, rack.connect().observe()
    bmc = rack.connect(read_timeout_s=0.3 if isinstance(fault, Hang) else 60)
    server.fault(fault, on="PATCH")

    if error is None:
        bmc.set_override(ONCE, seen)
    else:
        with pytest.raises(error, match=message):
            bmc.set_override(ONCE, seen)

    assert machine.override["BootSourceOverrideEnabled"] == enabled
    refused = ["GET"] if isinstance(fault, Intrusion) else []  # gitboot checks for another ETag
    assert eventually(lambda: [request.method for request in machine.requests] == ["GET", "PATCH", *refused])
    assert rack.connect().observe().override.enabled == enabled
    assert [request.method for request in machine.requests].count("PATCH") == 1


@pytest.mark.parametrize(
    ("profile", "message", "retry_after_s"),
    [
        pytest.param(ILO6, "cannot be changed during POST", None, id="iLO"),
        pytest.param(AMI, "not while the host is booting", 30, id="AMI"),
    ],
)
def test_a_bmc_that_accepts_no_writes_during_post_is_busy(
    make_rack: MakeRack, profile: Profile, message: str, retry_after_s: int | None
) -> None:
    rack = make_rack(profile=profile)
    machine, bmc = rack.machine, rack.connect()
    machine.reset()
    with pytest.raises(BmcBusy, match=message) as raised:
        _set_override(bmc, FROM_CD)
    assert raised.value.retry_after_s == retry_after_s


def test_boot_marks_and_post_are_read(make_rack: MakeRack) -> None:
    rows = []
    for name in ("generic", "ilo6", "openbmc", "idrac9"):
        rack = make_rack(profile=PROFILES[name])
        machine, bmc = rack.machine, rack.connect()
        readings = [bmc.observe()]
        machine.reset()
        readings.append(bmc.observe())
        machine.advance(machine.post_s)
        readings.append(bmc.observe())
        machine.reset("ForceOff")
        readings.append(bmc.observe())
        for seen in readings:
            times = (seen.marks.last_reset_time, seen.marks.boot_progress_time)
            rows.append(
                (
                    name,
                    seen.power,
                    seen.in_post,
                    seen.marks.settled,
                    *(time and time[11:16] for time in times),
                )
            )
    assert rows == [
        ("generic", "On", False, True, "12:00", "12:00"),
        ("generic", "On", True, False, "12:00", "12:00"),
        ("generic", "On", False, True, "12:00", "12:01"),
        ("generic", "Off", False, False, "12:01", "12:01"),
        ("ilo6", "On", False, True, "12:00", None),
        ("ilo6", "On", True, False, "12:00", None),
        ("ilo6", "On", False, True, "12:01", None),
        ("ilo6", "Off", False, False, "12:01", None),
        ("openbmc", "On", False, True, None, "12:00"),
        ("openbmc", "On", True, False, None, "12:00"),
        ("openbmc", "On", False, True, None, "12:01"),
        ("openbmc", "Off", False, False, None, "12:01"),
        ("idrac9", "On", False, True, "12:00", None),
        ("idrac9", "On", True, False, "12:00", None),
        ("idrac9", "On", False, True, "12:00", None),
        ("idrac9", "Off", False, False, "12:01", None),
    ]


def test_a_placeholder_time_is_not_a_mark() -> None:
    machine = Machine()
    system = machine.system() | {
        "LastResetTime": "1970-01-01T00:00:00+00:00",
        "BootProgress": {"LastStateTime": ""},
    }
    seen = build_observation(Resource(url=f"http://bmc{machine.path}", body=system), None)
    assert (seen.marks.last_reset_time, seen.marks.boot_progress_time) == (None, None)


@pytest.mark.parametrize(
    ("targets", "target"),
    [(["Cd", "UsbCd"], OverrideTarget.USB_CD), (["Cd"], OverrideTarget.CD), (None, OverrideTarget.CD)],
)
def test_virtual_media_boot_as_a_usb_cd_only_if_the_bmc_offers_that_target(
    targets: list[str] | None, target: OverrideTarget
) -> None:
    machine = Machine(profile=SUPERMICRO_X11)
    body = machine.system()
    body["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"] = targets
    system = Resource(url=f"http://bmc{machine.path}", body=body)
    assert build_observation(system, None).cd_target is target


def test_a_certificate_of_an_unknown_authority_or_for_another_name_is_rejected(
    make_rack: MakeRack, authority: Authority
) -> None:
    rack = make_rack(tls=authority.server_context())
    other = make_rack(tls=authority.server_context("DNS:bmc.example.net"))
    with pytest.raises(BmcRejected, match="certificate not trusted: unable to get local issuer certificate"):
        rack.connect(tls=tls_context()).observe()
    with pytest.raises(BmcRejected, match=r"certificate not trusted: .*not valid for '127"):
        other.connect(tls=tls_context(ca=authority.pem)).observe()
    assert rack.connect(tls=tls_context(verify=False)).observe().power == "On"


def test_environment_variables_and_netrc_do_not_affect_requests(
    make_rack: MakeRack, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password wrong\n")
    for name, value in (
        ("REQUESTS_CA_BUNDLE", "/nonexistent"),
        ("CURL_CA_BUNDLE", "/nonexistent"),
        ("HTTP_PROXY", "http://192.0.2.1:1"),
        ("HTTPS_PROXY", "http://192.0.2.1:1"),
        ("NETRC", str(netrc)),
    ):
        monkeypatch.setenv(name, value)
    for tls in (None, authority.server_context()):
        assert make_rack(tls=tls).connect(tls=tls_context(ca=authority.pem)).observe().power == "On"


def test_a_bmc_that_does_not_listen_or_has_no_tls_is_unreachable(rack: Rack) -> None:
    https = rack.server.url.replace("http", "https")
    with (
        BmcConnection(https, Credentials(username=USER, password=PASSWORD)) as bmc,
        pytest.raises(BmcUnreachable),
    ):
        bmc.observe()
    with RedfishServer(Service()) as gone:
        gone.die()
    with (
        BmcConnection(gone.url, Credentials(username=USER, password=PASSWORD)) as bmc,
        pytest.raises(BmcUnreachable, match="Connection refused"),
    ):
        bmc.observe()


def test_a_loop_of_redirects_ends(rack: Rack) -> None:
    rack.server.fault(Redirect(location=rack.machine.path), times=10)
    with pytest.raises(BmcUnreachable, match="Exceeded 3 redirects"):
        rack.connect().observe()


def test_every_error_class_of_sushy_is_mapped() -> None:
    for module in pkgutil.walk_packages(sushy.__path__, "sushy."):
        if not module.name.startswith("sushy.tests"):
            importlib.import_module(module.name)

    def family(kind: type[SushyError]) -> set[type[SushyError]]:
        return {kind}.union(*(family(child) for child in kind.__subclasses__()))

    assert set(ERROR_TYPES) == family(SushyError)


def test_every_quirk_names_its_source() -> None:
    assert len({row.name for row in QUIRKS}) == len(QUIRKS)
    assert all(row.source and (row.manufacturers or row.systems) for row in QUIRKS)


def test_bmcs_with_one_authority_share_a_tls_context(authority: Authority) -> None:
    assert tls_context(ca=authority.pem) is tls_context(ca=authority.pem)
    assert tls_context(verify=False).verify_mode is ssl.CERT_NONE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text(max_size=8), inside, max_size=2),
    max_leaves=4,
)
KEYS = ("Boot", "BootProgress", "LastResetTime", "Manufacturer", "PowerState", "Oem", "@Redfish.Settings")


@given(profile=st.sampled_from(list(PROFILES.values())), garbage=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_no_payload_crashes_the_reader(profile: Profile, garbage: dict[str, Any]) -> None:
    machine = Machine(profile=profile)
    system = Resource(url=f"http://bmc{machine.path}", body=machine.system() | garbage)
    system.link("@Redfish.Settings", "SettingsObject")
    try:
        build_observation(system, None)
    except BmcRejected:
        assert "Boot" in garbage or profile.name == "idrac10"


# Identity and clock


@for_each(
    ("case", "given", "instead"),
    [
        ("as it is", {}, {}),
        ("in capitals", {"UUID": "4C4C4544-0034-4A10-8056-B9C04F4D3732"}, {}),
        ("without hyphens", {"UUID": "4C4C454400344A108056B9C04F4D3732"}, {}),
        ("zeros", {"UUID": "00000000-0000-0000-0000-000000000000"}, {"uuid": None}),
        ("no UUID", {"UUID": "Not Available"}, {"uuid": None}),
        ("a number", {"UUID": 7}, {"uuid": None}),
        ("a padded serial number", {"SerialNumber": " SN1  "}, {}),
        ("an empty one", {"SerialNumber": ""}, {"serial": None}),
        ("null", {"UUID": None, "SerialNumber": None, "SKU": None}, {"uuid": None, "serial": None, "sku": None}),
    ],
)
def test_the_identity_of_a_system_is_read_with_its_override(
    case: str, given: dict[str, Any], instead: dict[str, Any]
) -> None:
    body = Machine(serial="SN1", sku="0B2D").system() | given
    expected = structs.replace(
        ReportedIdentity(uuid=SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3732"), serial="SN1", sku="0B2D"), **instead
    )
    assert build_observation(Resource(url="http://bmc/x", body=body), None).identity == expected, case


@for_each(
    ("manager", "bmc_time", "ahead"),
    [
        ({"DateTime": "2026-11-20T12:00:05Z"}, "2026-11-20T12:00:05Z", 5),
        ({"DateTime": "2026-11-20T14:00:00", "DateTimeLocalOffset": "+02:00"}, "2026-11-20T14:00:00+02:00", 0),
        ({"DateTime": "2026-11-20T14:00:00+02:00", "DateTimeLocalOffset": "+02:00"}, "2026-11-20T14:00:00+02:00", 0),
        ({"DateTime": "2026-11-20T10:00:00-02:00"}, "2026-11-20T10:00:00-02:00", 0),
        ({"DateTime": "2026-11-20T12:00:00"}, "2026-11-20T12:00:00", 0),
        ({"DateTime": "2026-11-20T11:00:00"}, "2026-11-20T11:00:00", -3600),
        ({"DateTime": "1970-01-01T00:00:00Z"}, "1970-01-01T00:00:00Z", -1795176000),
        ({"DateTime": None}, None, None),
        ({"DateTime": "yesterday"}, None, None),
    ],
)
def test_the_clock_of_a_manager_is_read_with_its_offset(
    manager: dict[str, Any], bmc_time: str | None, ahead: int | None
) -> None:
    resource = Resource(url="http://bmc/m", body=manager | {"LastResetTime": "2026-11-01T00:00:00Z"})
    marks = add_clock(ResetMarks(), resource, STARTED)
    assert (marks.bmc_time, marks.bmc_ahead_s) == (bmc_time, ahead)
    assert marks.manager_reset_time == ("2026-11-01T00:00:00Z" if bmc_time else None)


def test_the_clock_is_read_once_and_only_from_a_bmc_that_has_a_manager(rack: Rack) -> None:
    machine, server, bmc = rack.machine, rack.server, rack.connect()
    seen = bmc.read_clock(bmc.observe(), lambda: machine.now)
    assert (seen.marks.bmc_time, seen.manager_path) == ("2026-11-20T12:00:00+00:00", "/redfish/v1/Managers/1")
    assert bmc.read_clock(seen, lambda: machine.now) == seen
    without = structs.replace(bmc.observe(), manager_path=None)
    assert bmc.read_clock(without, lambda: machine.now) == without
    assert [request.path for request in server.service.requests] == [machine.path, seen.manager_path, machine.path]


def test_if_another_instance_may_be_active_the_bmc_is_read_and_nothing_is_changed(rack: Rack) -> None:
    """The lease is checked right before a request is sent, because another instance may have become active."""
    lost: list[LeaseLost] = []

    def fence() -> None:
        if lost:
            raise lost[0]

    bmc = rack.connect(policy=ConnectionPolicy(fence=fence))
    seen = bmc.observe()
    lost.append(LeaseLost("another acts"))
    with pytest.raises(LeaseLost):
        bmc.set_override(ONCE, seen)
    with pytest.raises(LeaseLost):
        bmc.reset(ResetType.FORCE_RESTART, seen)
    assert bmc.observe().override == seen.override
    assert {each.method for each in rack.machine.requests} == {"GET"}
