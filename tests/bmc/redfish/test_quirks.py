"""The table of vendors: what real BMCs sent is understood, and each fact in a row is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.override_state import Override, ResetConclusion, assign_slots, find_slot
from gitboot.bmc.override_steps import NO_OVERRIDE, adapt_override, is_override_shown
from gitboot.bmc.redfish import quirks
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.redfish.quirks import QUIRKS, STANDARD, Quirks
from gitboot.bmc.redfish.resources import Resource, build_observation
from gitboot.errors import GitbootError
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.cases import for_each
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import PROFILES, Profile
from tests.helpers.redfish_double.server import RedfishServer, Service

PAYLOADS = Path(__file__).parents[2] / "helpers" / "redfish_double" / "payloads"
ROOT = Path(__file__).parents[3]
USER, PASSWORD = "gitboot", "correct horse"
ISO = "http://boot.test/web.iso"
URI = "http://boot.example.net/web.efi"
ONCE = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri=URI)
ALWAYS = structs.replace(ONCE, enabled=OverrideEnabled.CONTINUOUS)
FROM_CD = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI")
FROM_PXE = structs.replace(FROM_CD, target=OverrideTarget.PXE)
OLD = structs.replace(FROM_PXE, mode="Legacy")


# Resources of real BMCs

# payload, its row, the resource with the override, and the overrides for one HTTP boot, for all, and for a CD boot
READ = [
    ("dell-r750", "Dell iDRAC", "System.Embedded.1", "Once UefiHttp", "Continuous Pxe", "Once Cd"),
    ("dell-r750-settings", "Dell iDRAC", "System.Embedded.1", "Once UefiHttp", "Continuous Pxe", "Once Cd"),
    ("hpe-dl385-gen10", "HPE iLO", "1", "Once UefiHttp", "Continuous UefiHttp", "Once Cd"),
    ("lenovo-sr670", "Lenovo XCC", "1", "Once Pxe", None, "Once Cd"),
    ("nvidia-bluefield", "OpenBMC", "Settings", "Once UefiHttp URI", "Continuous UefiHttp URI", None),
    ("nvidia-dgx-h100", "AMI MegaRAC", "SD", "Once UefiHttp URI", "Continuous UefiHttp URI", "Once Cd"),
    ("nvidia-gb200", "OpenBMC", "Settings", "Once Pxe", "Continuous Pxe", "Once Cd"),
    ("supermicro-x13", "Supermicro", "1", "Once UefiHttp", "Continuous UefiHttp", "Once UsbCd"),
]


def test_every_stored_payload_is_tested() -> None:
    assert [row[0] for row in READ] == sorted(path.stem for path in PAYLOADS.glob("*.json"))


@for_each(("name", "row", "settings", "once", "always", "from_cd"), READ, ids=[row[0] for row in READ])
def test_payloads_of_real_bmcs_are_understood(
    name: str, row: str, settings: str, once: str, always: str | None, from_cd: str | None
) -> None:
    sent = json.loads((PAYLOADS / f"{name}.json").read_text())
    system, below = (
        Resource(url=f"https://bmc{body['@odata.id']}", body=body) if body else None
        for body in (sent["system"], sent.get("settings"))
    )
    assert system is not None
    seen = build_observation(system, below if below is not None and "BootSourceOverrideTarget" in below.boot else None)
    assert (seen.quirks_name, seen.settings_path.rpartition("/")[2]) == (row, settings)
    assert is_override_shown(NO_OVERRIDE, seen)
    assert not seen.in_post
    assert seen.identity.uuid is not None or seen.identity.serial is not None
    assert [_describe_override(adapt_override(each, seen)) for each in (ONCE, ALWAYS, FROM_CD)] == [
        once,
        always,
        from_cd,
    ]


@for_each(
    ("name", "system", "row"),
    [
        ("System_0", {"Manufacturer": "Supermicro", "Model": "GB NVL"}, "OpenBMC"),  # spyroot/redfish_ctl
        ("System_0", {"Oem": {"Ami": {}}, "Model": "QuantaGrid S74G-2U"}, "AMI MegaRAC"),  # stmcginnis/gofish
        ("System_0", {"Oem": None}, "OpenBMC"),
        (
            "System.Embedded.1",
            {"Manufacturer": ""},
            "Dell iDRAC",
        ),  # bmc-toolbox/bmclib, systems_embedded_no_manufacturer
        ("1", {"Manufacturer": "Supermicro", "Oem": {"Supermicro": {}}}, "Supermicro"),
    ],
)
def test_the_firmware_of_a_bmc_decides_its_row_and_not_the_maker_of_the_board(
    name: str, system: dict[str, object], row: str
) -> None:
    assert quirks.find_quirks(f"/redfish/v1/Systems/{name}", system).name == row


def test_a_settings_resource_without_lists_accepts_what_the_system_lists() -> None:
    """NVIDIA's GH200 (NVIDIA/libredfish, mockup nvidia_gh200)."""
    sent = json.loads((PAYLOADS / "nvidia-gb200.json").read_text())
    settings = {"BootSourceOverrideEnabled": "Continuous", "BootSourceOverrideTarget": "Hdd"}
    system, below = (
        Resource(url=f"https://bmc{sent[name]['@odata.id']}", body=body)
        for name, body in (("system", sent["system"]), ("settings", {"Boot": settings}))
    )
    seen = build_observation(system, below)
    assert _describe_override(adapt_override(ONCE, seen)) == "Once Pxe"
    assert seen.allowable_enabled == {"Once", "Continuous", "Disabled"}


@pytest.mark.parametrize("name", ["dell-r750", "hpe-dl385-gen10"])
def test_firmware_settings_of_real_bmcs_are_read_and_the_double_has_no_other_attributes(name: str) -> None:
    sent = json.loads((PAYLOADS / f"{name}.json").read_text())
    seen = build_observation(Resource(url=f"https://bmc{sent['system']['@odata.id']}", body=sent["system"]), None)
    bios = Resource(url=f"https://bmc{seen.bios_path}", body=sent["bios"])
    row = quirks.get_quirks(seen)
    assert seen.has_uri_setting and row.firmware_uri is not None
    assert row.firmware_uri.read(bios.attributes) == "", "nobody has written any there"
    assert row.firmware_uri.related_attributes.keys() <= bios.attributes.keys()
    assert bios.can_apply_at_reset is (row.name == "Dell iDRAC")
    doubles = [profile for profile in _list_profiles(row) if profile.bios]
    assert doubles and all(dict(profile.bios).keys() <= bios.attributes.keys() for profile in doubles)


def _describe_override(override: Override | None) -> str | None:
    if override is None:
        return None
    return f"{override.enabled} {override.target}{' URI' if override.http_boot_uri else ''}"


# Each fact of each row


@dataclass(frozen=True)
class Deviation:
    """A field of a row that is not as the standard has it."""

    row: Quirks
    field: str  # "": the whole row

    def __str__(self) -> str:
        return f"{self.row.name}: {self.field or 'all of it'}"

    def without(self) -> tuple[Quirks, ...]:
        """The table as it would be without the fact."""
        if not self.field:
            return tuple(each for each in QUIRKS if each is not self.row)
        poorer = structs.replace(self.row, **{self.field: getattr(STANDARD, self.field)})
        return tuple(poorer if each is self.row else each for each in QUIRKS)


def _list_deviations() -> Iterator[Deviation]:
    names = {"name", "source", "manufacturers", "systems", "oem"}
    for row in QUIRKS:
        yield Deviation(row, "")
        for name in row.__struct_fields__:
            if name not in names and getattr(row, name) != getattr(STANDARD, name):
                yield Deviation(row, name)


DEVIATIONS = list(_list_deviations())


def _list_profiles(row: Quirks) -> list[Profile]:
    return [each for each in PROFILES.values() if _find_row(each) == row.name]


@cache
def _find_row(profile: Profile) -> str:
    machine = Machine(profile=profile)
    return quirks.find_quirks(machine.path, {"Manufacturer": profile.manufacturer}).name


def _run_scenario(profile: Profile) -> list[str]:
    """Return the states of overrides that are set and booted, changed, and disabled."""
    machine = Machine(profile=profile)
    found = []
    with (
        RedfishServer(Service(machine, credentials={USER: PASSWORD})) as server,
        BmcConnection(server.url, Credentials(username=USER, password=PASSWORD)) as bmc,
    ):
        found += _boot_over_firmware_uri(bmc, machine)
        for wanted in (ONCE, ALWAYS, FROM_CD, OLD):
            machine.write(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
            found.append(_set_and_boot(bmc, machine, wanted))
            machine.write(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
            found.append(_set(bmc, wanted) or _remove_override(bmc))
        found.append(_set(bmc, FROM_PXE) or _set(bmc, FROM_CD) or _remove_override(bmc))
        machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="None")
        found.append(_remove_override(bmc))
        found += _test_insertions(bmc, machine)
    order = "wrong: the boot order changed" if machine.boot_order_changed else "the boot order as it was"
    return [*found, f"{machine.resets} resets", order]


def _test_insertions(bmc: BmcConnection, machine: Machine) -> list[str]:
    """Return what comes of an image after another, of one whose URL a drive shows already, and of one too many."""
    if not machine.drives:
        return []
    found = [_insert_medium(bmc, machine, "http://boot.test/old.iso")]
    machine.drives[1].apply_request("POST", machine.drives[1].action("Eject"), {})
    machine.drives[1].apply_request("PATCH", machine.drives[1].path, {"Inserted": False})
    if machine.profile.drives_are_stale:
        machine.drives[1].stale = ISO
    found.append(_insert_medium(bmc, machine, ISO))
    return [*found, _insert_medium(bmc, machine, "http://boot.test/another.iso")]


def _insert_medium(bmc: BmcConnection, machine: Machine, url: str) -> str:
    seen = bmc.media.read_slots(bmc.observe())
    if (slots := assign_slots(seen.slots, url, None)) is None:
        return "no drive is free"
    if find_slot(url, seen.slots) is None or slots[url].may_be_stale:
        try:
            bmc.media.insert(slots[url], url)
        except GitbootError as error:
            return f"refused: {error}"
    return "inserted" if any(drive.image == url for drive in machine.drives) else "wrong: not inserted"


def _boot_over_firmware_uri(bmc: BmcConnection, machine: Machine) -> list[str]:
    """Return the HTTP boot after another URI was written into the firmware settings."""
    before = dict(machine.bios.attributes)
    machine.bios.attributes |= {machine.profile.bios_uri: "http://old.example.net/install.efi"} if before else {}
    machine.bios.attributes |= {machine.profile.bios_switch: "Enabled"} if machine.profile.bios_switch else {}
    found = _set_and_boot(bmc, machine, ONCE)
    machine.bios.attributes = before
    return [f"wrong: {found}" if "old.example.net" in found else found]


def _set_and_boot(bmc: BmcConnection, machine: Machine, wanted: Override) -> str:
    before = bmc.observe()
    if (failed := _set(bmc, wanted)) is not None:
        return failed
    machine.run_through()
    after = bmc.observe()
    proof = after.marks.find_reset_since(before.marks)
    boots = f"boots {machine.boots[-1].target} {machine.boots[-1].uri}"
    if after.in_post:
        return f"wrong: {boots}, and stays in POST"
    return f"wrong: {boots}, unseen" if proof is ResetConclusion.RULED_OUT else f"{boots}, a reset is {proof.value}"


def _set(bmc: BmcConnection, wanted: Override) -> str | None:
    """Why it cannot be set, if so."""
    seen = bmc.observe()
    if seen.has_uri_setting:
        seen = bmc.firmware.read_uri(seen)
    fitted = adapt_override(wanted, seen)
    if fitted is None:
        return "unsupported"
    try:
        bmc.set_override(fitted, seen)
    except GitbootError as error:
        return f"refused: {error}"
    return None


def _remove_override(bmc: BmcConnection) -> str:
    try:
        bmc.set_override(NO_OVERRIDE, bmc.observe())
    except GitbootError as error:
        return f"refused: {error}"
    return "off" if is_override_shown(NO_OVERRIDE, bmc.observe()) else "wrong: still on"


@cache
def _run_good_scenario(name: str) -> tuple[str, ...]:
    states = _run_scenario(PROFILES[name])
    assert not [each for each in states if each.startswith(("refused", "wrong"))]
    return tuple(states)


@pytest.mark.parametrize("fact", DEVIATIONS, ids=[str(each) for each in DEVIATIONS])
def test_without_any_single_quirk_of_the_table_a_bmc_behaves_worse(
    fact: Deviation, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = _list_profiles(fact.row)
    assert profiles, "no double behaves like this row"
    good = {each.name: _run_good_scenario(each.name) for each in profiles}
    monkeypatch.setattr(quirks, "QUIRKS", fact.without())
    assert any(tuple(_run_scenario(each)) != good[each.name] for each in profiles)


def test_each_row_describes_each_of_its_differences() -> None:
    assert [len(row.differences) for row in QUIRKS] == [
        sum(1 for fact in DEVIATIONS if fact.row is row and fact.field) for row in QUIRKS
    ]


def test_every_row_and_its_source_are_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "bmcs.md").read_text()
    assert all(row.name in page and row.source in page for row in QUIRKS)
