"""A loader's URI in firmware's own settings: written before a reset that is made anyway, and never for an installer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from gitboot.bmc.override_session import TaskOutcome
from gitboot.bmc.override_state import BmcObservation, Override, WantedOverride
from gitboot.bmc.override_steps import explain_dhcp_loader
from gitboot.bmc.power_steps import PowerOperation, PowerRecordState, WantedPowerChange
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import MakeRack, Rack
from tests.helpers.fleets import make_uuid
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, IDRAC10, ILO6, Profile
from tests.helpers.redfish_double.server import Drop, Ignored

TREE = "http://boot.test/"
LOADER, BEFORE, OTHERS = f"{TREE}assets/web-2/loader", f"{TREE}assets/web-1/loader", "http://rescue.test/install.efi"
HTTP = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri=LOADER)
LOADER_BOOT = WantedOverride(reason="provision/1", plan_digest="d" * 64, override=HTTP, loader_url_prefix=TREE)
UKI_BOOT = structs.replace(LOADER_BOOT, loader_url_prefix=None)
RESTART = WantedPowerChange(
    reason="power/check/1", operation=PowerOperation.RESTART, override_reason="provision/1", may_start_now=True
)


def build_rack(make_rack: MakeRack, profile: Profile = IDRAC9, uri: str = "") -> Rack:
    machine = Machine("web01", uuid=make_uuid("web01"), profile=profile)
    if uri:
        machine.bios.attributes |= {profile.bios_uri: uri}
        machine.bios.attributes |= {profile.bios_switch: "Enabled"} if profile.bios_switch else {}
    return make_rack(machine)


def list_written_attributes(rack: Rack) -> list[dict[str, Any]]:
    return [each["Attributes"] for each in rack.machine.writes if "Attributes" in each]


def find_boot(rack: Rack) -> tuple[str, str | None]:
    [boot] = rack.machine.boots
    return boot.target, boot.uri


def read_bmc(rack: Rack) -> BmcObservation:
    found = rack.run_task(LOADER_BOOT, wanted_power=RESTART).observed
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("profile", "resets"), [(IDRAC9, 2), (IDRAC10, 2), (ILO6, 1)], ids=lambda each: getattr(each, "name", str(each))
)
def test_firmware_keeps_the_uri_of_the_loader_from_the_requested_reset_on(
    profile: Profile, resets: int, make_rack: MakeRack
) -> None:
    rack = build_rack(make_rack, profile)
    done = rack.run_task(LOADER_BOOT, wanted_power=RESTART)
    message = (
        f"gitboot requested ForceRestart for power/check/1; after the next reset, the firmware boots from {LOADER}"
    )
    assert (done.outcome, done.message, done.firmware_uri) == (TaskOutcome.APPLIED, message, LOADER)
    (attributes,) = list_written_attributes(rack)
    assert attributes[profile.bios_uri] == LOADER and attributes.keys() <= dict(profile.bios).keys()
    assert (
        done.observed is not None and explain_dhcp_loader(HTTP, done.observed) == "the BMC does not support HttpBootUri"
    )
    rack.wait(600)
    assert (find_boot(rack), rack.machine.resets) == (("UefiHttp", LOADER), resets)
    assert explain_dhcp_loader(HTTP, read_bmc(rack)) is None
    assert (len(list_written_attributes(rack)), rack.machine.resets) == (1, resets), "never twice"


@pytest.mark.parametrize(
    "switching", [None, structs.replace(RESTART, may_start_now=False)], ids=["no power", "not allowed yet"]
)
def test_no_uri_is_written_if_no_reset_is_allowed(switching: WantedPowerChange | None, make_rack: MakeRack) -> None:
    rack = build_rack(make_rack)
    rack.run_task(LOADER_BOOT, wanted_power=switching)
    rack.boot()
    assert (list_written_attributes(rack), find_boot(rack)) == ([], ("UefiHttp", None))


@pytest.mark.parametrize(
    "wanted",
    [
        UKI_BOOT,
        structs.replace(LOADER_BOOT, override=structs.replace(HTTP, http_boot_uri=LOADER.replace("http:", "https:"))),
    ],
    ids=["an image", "https"],
)
def test_the_uri_of_an_installer_is_never_written_to_firmware_settings(
    wanted: WantedOverride, make_rack: MakeRack
) -> None:
    rack = build_rack(make_rack)
    rack.run_task(wanted, wanted_power=RESTART)
    rack.wait(600)
    assert (list_written_attributes(rack), find_boot(rack)) == ([], ("UefiHttp", None))


@pytest.mark.parametrize("wanted", [LOADER_BOOT, UKI_BOOT], ids=["a loader", "an image"])
@pytest.mark.parametrize("profile", [IDRAC9, ILO6], ids=lambda profile: profile.name)
def test_a_uri_that_somebody_else_set_is_neither_booted_nor_replaced(
    profile: Profile, wanted: WantedOverride, make_rack: MakeRack
) -> None:
    rack = build_rack(make_rack, profile, OTHERS)
    done = rack.run_task(wanted, wanted_power=RESTART)
    assert done.observed is not None
    assert explain_dhcp_loader(HTTP, done.observed) == (
        f"the firmware would boot from a different URI in its settings, {OTHERS}"
    )
    rack.wait(600)
    assert (list_written_attributes(rack), find_boot(rack)) == ([], ("Pxe", None))


def test_a_uri_in_a_disabled_setting_still_belongs_to_somebody_else(make_rack: MakeRack) -> None:
    rack = build_rack(make_rack, uri=OTHERS)
    rack.machine.bios.attributes["HttpDev1EnDis"] = "Disabled"
    rack.run_task(LOADER_BOOT, wanted_power=RESTART)
    rack.wait(600)
    assert (list_written_attributes(rack), find_boot(rack)) == ([], ("UefiHttp", None))


def test_the_loader_of_an_older_image_is_not_booted_and_is_replaced(make_rack: MakeRack) -> None:
    rack = build_rack(make_rack, uri=BEFORE)
    rack.run_task(LOADER_BOOT, wanted_power=RESTART)
    rack.wait(600)
    assert (len(list_written_attributes(rack)), find_boot(rack)) == (1, ("Pxe", None))
    assert explain_dhcp_loader(HTTP, read_bmc(rack)) is None


def test_firmware_boots_the_same_loader_that_somebody_else_set(make_rack: MakeRack) -> None:
    rack = build_rack(make_rack, uri=LOADER)
    done = rack.run_task(UKI_BOOT, wanted_power=RESTART)
    rack.wait(600)
    assert (list_written_attributes(rack), find_boot(rack)) == ([], ("UefiHttp", LOADER))
    assert done.observed is not None and explain_dhcp_loader(HTTP, done.observed) is None


@pytest.mark.parametrize("why", ["read-only", "absent", "a job", "taken and forgotten", "the job fails"])
def test_if_firmware_does_not_keep_the_uri_dhcp_names_the_loader(why: str, make_rack: MakeRack) -> None:
    rack = build_rack(make_rack)
    bios = rack.machine.bios
    match why:
        case "read-only":
            bios.read_only = {"HttpDev1Uri"}
        case "absent":
            del bios.attributes["HttpDev1Uri"]
        case "a job":
            bios.pending = {"HttpDev1Protocol": "IPv4"}
        case "the job fails":
            bios.job_fails = True
    rack.run_task(LOADER_BOOT)
    if why == "taken and forgotten":
        rack.server.fault(Ignored(), on="PATCH", times=1)
    done = rack.run_task(LOADER_BOOT, wanted_power=RESTART)
    assert ("the DHCP server must name the boot loader, because the BMC did not store" in done.message) is (
        why in ("read-only", "a job")
    )
    rack.wait(600)
    assert find_boot(rack) == ("UefiHttp", None)
    for _ in range(3):
        assert explain_dhcp_loader(HTTP, read_bmc(rack)) == "the BMC does not support HttpBootUri"
        rack.wait(600)
    assert (len(list_written_attributes(rack)) <= 1, len(rack.machine.boots)) == (True, 1), "never twice"


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["PATCH", "POST"])
def test_after_a_crash_at_any_step_the_uri_is_written_once_and_the_machine_is_reset_once(
    method: str, applied: bool, make_rack: MakeRack
) -> None:
    rack = build_rack(make_rack)
    rack.observe_resets()
    rack.machine.boots.clear()
    before = rack.machine.resets
    rack.run_task(LOADER_BOOT)
    rack.server.fault(Drop(applied=applied), on=method, times=1)
    assert rack.run_task(LOADER_BOOT, wanted_power=RESTART).outcome is TaskOutcome.WAITING
    assert rack.switches["web01"]["power/check/1"].state is PowerRecordState.RECORDED
    for _ in range(4):
        rack.wait(120)
        rack.run_task(LOADER_BOOT, wanted_power=RESTART)
    assert find_boot(rack) == ("UefiHttp", LOADER)
    assert rack.machine.resets - before == 2, "one, and that of the job"
    assert len(list_written_attributes(rack)) == (2 if (method, applied) == ("PATCH", False) else 1)


def test_firmware_settings_are_read_only_for_http_boot_and_once_for_each_reset(make_rack: MakeRack) -> None:
    def reads() -> int:
        return sum(each.path.endswith("/Bios") for each in rack.machine.requests)

    rack = build_rack(make_rack, GENERIC)
    rack.run_task(LOADER_BOOT)
    assert reads() == 0, "it takes HttpBootUri"
    rack = build_rack(make_rack)
    rack.run_task(
        structs.replace(LOADER_BOOT, override=structs.replace(HTTP, target=OverrideTarget.PXE, http_boot_uri=None))
    )
    assert reads() == 0, "no HTTP boot is wanted"
    with rack.connect() as bmc:
        for _ in range(3):
            assert bmc.firmware.read_uri(bmc.observe()).firmware_uri == ""
        assert reads() == 1
        rack.machine.bios.attributes |= {"HttpDev1Uri": OTHERS, "HttpDev1EnDis": "Enabled"}
        rack.boot()
        assert bmc.firmware.read_uri(bmc.observe()).firmware_uri == OTHERS
