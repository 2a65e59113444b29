"""Links and redirects of a BMC: gitboot follows them in any form, and only within the BMC."""

from __future__ import annotations

import json
import re

import pytest
from msgspec import structs

from gitboot.bmc.power_steps import ResetType
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.redfish.quirks import QUIRKS, find_quirks
from gitboot.bmc.redfish.transport import SESSIONS_PATH, ConnectionPolicy, split_origin
from gitboot.errors import BmcRejected, BmcUnreachable, LeaseLost
from tests.helpers.bmcs import ONCE, MakeRack, Rack
from tests.helpers.cases import for_each
from tests.helpers.redfish_double.profiles import ILO6, XCC
from tests.helpers.redfish_double.server import Body, Redirect, Status

REDIRECT_STATUSES = (301, 302, 307, 308)


@pytest.fixture
def rack(make_rack: MakeRack) -> Rack:
    """A machine whose paths end in a slash, and which redirects requests without it."""
    return make_rack(profile=ILO6)


@pytest.fixture
def bmc(rack: Rack) -> BmcConnection:
    return rack.connect()


def list_requests(rack: Rack) -> list[tuple[str, str]]:
    return [(each.method, each.path) for each in rack.server.service.requests]


@pytest.mark.parametrize("status", REDIRECT_STATUSES)
def test_a_write_that_is_redirected_within_the_bmc_is_repeated_at_the_new_path(
    rack: Rack, bmc: BmcConnection, status: int
) -> None:
    path = rack.machine.path.rstrip("/")
    seen = structs.replace(bmc.observe(), settings_path=path)
    rack.server.service.requests.clear()
    rack.server.fault(Redirect(location=rack.machine.path, status=status), on="PATCH")
    bmc.set_override(ONCE.override, seen)
    assert list_requests(rack) == [("PATCH", path), ("PATCH", rack.machine.path)]
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Once"
    first, second = rack.server.service.requests
    assert (first.body, first.headers["If-Match"]) == (second.body, second.headers["If-Match"])


@pytest.mark.parametrize("status", REDIRECT_STATUSES)
def test_a_reset_that_is_redirected_within_the_bmc_happens_once(rack: Rack, bmc: BmcConnection, status: int) -> None:
    rack.server.fault(Redirect(location=rack.machine.reset_path, status=status), on="RESET")
    bmc.reset(ResetType.FORCE_RESTART, bmc.observe())
    assert rack.machine.resets == 1


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("http://root:s3cret@127.0.0.9:1/a?token=s3cret", "http://127.0.0.9:1/a"),
        ("http://127.0.0.9:1/a?token=s3@cret", "http://127.0.0.9:1/a"),
        ("http://root:pa/s3cret@127.0.0.9:1/a?token=s3cret", "http://…"),
    ],
)
def test_a_refused_redirect_shows_its_target_without_secrets(
    rack: Rack, bmc: BmcConnection, location: str, shown: str
) -> None:
    rack.server.fault(Redirect(location=location, status=307), on="PATCH")
    with pytest.raises(BmcRejected, match=f"the BMC redirects to {re.escape(shown)}, but"):
        bmc.set_override(ONCE.override, bmc.observe())


@pytest.mark.parametrize("location", ["http://127.0.0.9:1/", "https://{host}{path}", "//127.0.0.9:1{path}"])
@pytest.mark.parametrize("status", REDIRECT_STATUSES)
def test_a_write_that_is_redirected_elsewhere_changes_nothing(
    rack: Rack, bmc: BmcConnection, status: int, location: str
) -> None:
    host = rack.server.url.partition("//")[2]
    location = location.format(host=host, path=rack.machine.path)
    rack.server.fault(Redirect(location=location, status=status), on="PATCH")
    with pytest.raises(BmcRejected) as raised:
        bmc.set_override(ONCE.override, bmc.observe())
    assert str(raised.value) == (
        f"PATCH {rack.server.url}{rack.machine.path}: {status}: the BMC redirects to {location}, "
        "but gitboot does not follow this redirect"
    )
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Disabled"


def test_a_loop_of_redirected_writes_ends(rack: Rack, bmc: BmcConnection) -> None:
    rack.server.fault(Redirect(location=rack.machine.path, status=307), on="PATCH", times=10)
    with pytest.raises(BmcUnreachable, match="Exceeded 3 redirects"):
        bmc.set_override(ONCE.override, bmc.observe())
    assert len(rack.machine.writes) == 4


def test_a_lease_that_is_lost_during_a_redirect_stops_the_write(rack: Rack) -> None:
    """The write is repeated at the other path, so it is fenced there too."""
    sent: list[int] = []

    def fence() -> None:
        sent.append(1)
        if len(sent) == 2:
            raise LeaseLost("another acts")

    bmc = rack.connect(policy=ConnectionPolicy(fence=fence))
    rack.server.fault(Redirect(location=rack.machine.path, status=307), on="PATCH")
    with pytest.raises(LeaseLost):
        bmc.set_override(ONCE.override, bmc.observe())
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Disabled"


@pytest.mark.parametrize("link", ["{path}?{sessions}", "{path}#{sessions}", "{sessions}/../../..{path}"])
def test_no_link_of_a_bmc_makes_another_change_count_as_a_login(rack: Rack, link: str) -> None:
    """Without the lease, gitboot may log in and out, and change nothing else."""

    def fence() -> None:
        raise LeaseLost("another acts")

    bmc = rack.connect(policy=ConnectionPolicy(fence=fence, ending_fence=lambda: None))
    path = link.format(path=rack.machine.reset_path, sessions=SESSIONS_PATH)
    seen = structs.replace(bmc.observe(), reset_action=path)
    with pytest.raises(LeaseLost):
        bmc.reset(ResetType.FORCE_RESTART, seen)
    assert rack.machine.resets == 0


@for_each("path", [f"{SESSIONS_PATH}/7", "/redfish/v1/Sessions/7"])
def test_an_instance_without_the_lease_logs_out_at_the_path_that_the_bmc_returned(
    make_rack: MakeRack, path: str
) -> None:
    def fence() -> None:
        raise LeaseLost("another acts")

    rack = make_rack()
    rack.server.fault(Status(status=201, headers={"X-Auth-Token": "t", "Location": path}), on="POST")
    with rack.connect(policy=ConnectionPolicy(fence=fence, ending_fence=lambda: None)) as bmc:
        bmc.observe()
        bmc.login.keeps_session = True
        rack.server.service.sessions._credentials = None  # any token does
        bmc.observe()
    assert list_requests(rack)[-1] == ("DELETE", path)


@for_each("form", ["{url}{path}", "//{host}{path}", "{upper}{path}"])
def test_a_link_to_the_same_bmc_may_be_a_full_url(make_rack: MakeRack, form: str) -> None:
    rack = make_rack(profile=XCC)
    host = rack.server.url.partition("//")[2]
    link = form.format(url=rack.server.url, host=host, upper=f"HTTP://{host}", path=rack.machine.path)
    bmc = rack.connect(system=None)
    bmc.read("/redfish/v1/")
    rack.server.fault(Body(body=b"{}"))  # the root, which may name no collection
    rack.server.fault(Body(body=json.dumps({"Members": [{"@odata.id": link}]}).encode()))
    assert bmc.observe().system == rack.machine.path, form


@for_each(
    "link",
    [
        "http://127.0.0.9:1/redfish/v1/Systems/1",
        "//127.0.0.9:1/redfish/v1/Systems/1",
        "https://{host}/redfish/v1/Systems/1",
        "http://{host}@127.0.0.9:1/redfish/v1/Systems/1",
        "http://[/redfish/v1/Systems/1",
        "Systems/1",
        "http://{host}",
        "file:///etc/passwd",
        "",
    ],
)
def test_a_link_to_another_host_is_rejected(make_rack: MakeRack, link: str) -> None:
    rack = make_rack()
    with pytest.raises(BmcRejected, match="not a path on this BMC"):
        rack.connect().read(link.format(host=rack.server.url.partition("//")[2]))
    assert rack.server.service.requests == []


@for_each(
    ("one", "other", "is_same"),
    [
        ("https://bmc.test", "https://bmc.test:443/redfish/v1/", True),
        ("http://bmc.test:80", "http://BMC.test/", True),
        ("https://bmc.test", "http://bmc.test", False),
        ("https://bmc.test", "https://bmc.test:8443", False),
        ("https://[2001:db8::1]", "https://[2001:DB8::1]:443", True),
    ],
)
def test_an_origin_has_the_port_of_its_scheme(one: str, other: str, is_same: bool) -> None:
    assert (split_origin(one) == split_origin(other)) is is_same, (one, other)


def test_quirks_of_a_bmc_apply_with_or_without_a_trailing_slash_in_its_system_path() -> None:
    for row in QUIRKS:
        for path in row.systems:
            assert find_quirks(path, {}) == find_quirks(f"{path}/", {}) == row
