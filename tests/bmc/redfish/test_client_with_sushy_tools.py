"""gitboot and a Redfish service that others wrote: sushy-tools' emulator, with its fake machines."""

from __future__ import annotations

import threading
import warnings
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta

import pytest
from werkzeug.serving import make_server

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskOutcome, TaskResult
from gitboot.bmc.override_state import (
    NO_MARKS,
    MediaShare,
    OperatorCondition,
    Override,
    OverrideRecord,
    OverrideState,
    WantedOverride,
    assign_slots,
    find_slot,
)
from gitboot.bmc.power_steps import PowerRecord
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.http_peers import WebRequest, WebResponse, web_server
from tests.helpers.redfish_double.machine import STARTED

# One machine for each test.
FOREIGN, CONTINUOUS, ONCE, MEDIA = (
    SystemUuid(f"4c4c4544-0034-4a10-8056-b9c04f4d373{number}") for number in (1, 2, 3, 4)
)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it needs cgi
        from sushy_tools.emulator.main import app

    machines = [
        {"uuid": uuid, "name": uuid, "power_state": "On", "external_notifier": False, "nics": []}
        for uuid in (FOREIGN, CONTINUOUS, ONCE, MEDIA)
    ]
    app.config |= {
        "SUSHY_EMULATOR_FAKE_DRIVER": True,
        "SUSHY_EMULATOR_FAKE_SYSTEMS": machines,
        "SUSHY_EMULATOR_STATE_DIR": str(tmp_path_factory.mktemp("emulator")),
    }
    server = make_server("127.0.0.1", 0, app)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()
    server.server_close()


def _apply_override(
    url: str, uuid: SystemUuid, enabled: OverrideEnabled, *, may_replace: bool = True
) -> list[TaskResult]:
    """Return the results of an override, immediately and after five minutes. ``may_replace``: a person allowed it."""
    wanted = WantedOverride(
        reason=f"provision/{enabled}",
        plan_digest="d" * 64,
        override=Override(enabled=enabled, target=OverrideTarget.PXE, mode="UEFI"),
    )
    opened = OverrideRecord(
        reason=wanted.reason,
        plan_digest=wanted.plan_digest,
        override=wanted.override,
        marks=NO_MARKS,
        state=OverrideState.OPENED,
        at=STARTED,
    )
    records = {opened.reason: opened} if may_replace else {}

    def write(record: OverrideRecord | PowerRecord) -> None:
        assert isinstance(record, OverrideRecord)
        records[record.reason] = record

    results = []
    with BmcConnection(
        url, Credentials(username="gitboot", password="secret"), system=f"/redfish/v1/Systems/{uuid}"
    ) as bmc:
        for at in (STARTED, STARTED + timedelta(minutes=5)):
            job = BmcTask(
                server="web01",
                uuid=uuid,
                bmc=BmcAccess(address=url, system=None, credentials="rack", verify=True, ca=None),
                wanted=wanted,
                records=tuple(records.values()),
            )
            results.append(OverrideSession(bmc, job, write, lambda at=at: at).run())  # type: ignore[misc]
    return results


def test_an_override_that_gitboot_did_not_set_is_left_to_the_operator(emulator: str) -> None:
    asked, _ = _apply_override(emulator, FOREIGN, OverrideEnabled.ONCE, may_replace=False)
    assert asked.condition is OperatorCondition.FOREIGN_OVERRIDE
    assert "the BMC shows Continuous Hdd. When this override is gone" in asked.message


def test_a_continuous_override_is_set_and_read_back(emulator: str) -> None:
    first, later = _apply_override(emulator, CONTINUOUS, OverrideEnabled.CONTINUOUS)
    assert (first.outcome, first.message) == (TaskOutcome.APPLIED, "the BMC shows Continuous Pxe")
    assert (later.outcome, later.message) == (TaskOutcome.UNCHANGED, "the BMC shows Continuous Pxe")


def test_a_bmc_that_turns_once_into_continuous_is_quoted_to_the_operator(emulator: str) -> None:
    """The BMC accepts Once and keeps Continuous."""
    first, later = _apply_override(emulator, ONCE, OverrideEnabled.ONCE)
    assert first.outcome is TaskOutcome.WAITING
    assert first.message == "gitboot set Once Pxe a moment ago, but the BMC shows Continuous Pxe"
    assert later.condition is OperatorCondition.NEEDS_OPERATOR
    assert "the BMC does not implement Once: gitboot set Once Pxe for provision/Once" in later.message
    assert "but the BMC shows Continuous Pxe, which remains after a boot" in later.message


def answer_as_share(request: WebRequest) -> WebResponse:
    """Serve an image only to a user with a password."""
    is_known = request.headers.get("Authorization") == f"Basic {b64encode(b'images:share-secret').decode()}"
    is_served = is_known and request.path == "/copies/web.iso"
    return WebResponse(200, b"an image") if is_served else WebResponse(401)


def test_an_image_is_fetched_from_a_share_with_its_own_credentials_and_ejected(emulator: str) -> None:
    url = "http://boot.test/assets/web.iso"
    with web_server(answer_as_share) as place:
        share = MediaShare(prefix="http://boot.test/assets/", place=f"{place}/copies/", protocol="HTTP")
        login = Credentials(username="images", password="share-secret")
        with BmcConnection(
            emulator,
            Credentials(username="gitboot", password="secret"),
            system=f"/redfish/v1/Systems/{MEDIA}",
            shares=(share,),
            share_login=login,
        ) as bmc:
            slots = assign_slots(bmc.media.read_slots(bmc.observe()).slots, url, None)
            assert slots is not None
            bmc.media.insert(slots[url], url)
            shown = find_slot(url, bmc.media.read_slots(bmc.observe()).slots)
            assert shown is not None and shown.path == slots[url].path
            bmc.media.eject(shown)
            assert find_slot(url, bmc.media.read_slots(bmc.observe()).slots) is None
