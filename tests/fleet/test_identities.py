"""Identities of machines: a new motherboard, a new machine, and a server whose UUID is not known yet."""

from __future__ import annotations

import pytest
from msgspec import structs

from gitboot.errors import InvalidRepository
from gitboot.fleet.identities import BmcAccess, Machine, find_changed_uuids, list_machines
from gitboot.model.scalars import MacAddress, SystemUuid, derive_uuid, is_derived_uuid
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.server_plan import Phase
from tests.helpers.cases import for_each
from tests.helpers.fleets import (
    SEED,
    at,
    fleet,
    image,
    make_mac,
    make_uuid,
    planned,
    policy,
    profile,
    repository,
    server,
)

BMC = BmcAccess(address="https://10.0.0.1", system=None, credentials="rack", verify=True, ca=None)
OLD = Machine(
    uuid=SystemUuid(make_uuid("old")),
    name="web01",
    macs=(MacAddress("52-54-00-00-00-01"), MacAddress("52-54-00-00-00-02")),
    serial="S1A",
    bmc=BMC,
)
NEW = Machine(uuid=SystemUuid(make_uuid("new")), name="web02", macs=(), serial=None, bmc=None)


@for_each(
    ("case", "new", "what"),
    [
        ("no common identity", NEW, None),
        ("its name", structs.replace(NEW, name="web01"), ("name", "web01")),
        ("one of its MAC addresses", structs.replace(NEW, macs=OLD.macs[1:]), ("MAC", "52-54-00-00-00-02")),
        ("its serial", structs.replace(NEW, serial="S1A"), ("serial", "S1A")),
        ("its BMC", structs.replace(NEW, bmc=structs.replace(BMC, credentials="other")), ("BMC", "https://10.0.0.1")),
        (
            "its BMC, in another spelling",
            structs.replace(NEW, bmc=structs.replace(BMC, address=f"{BMC.address}:443/")),
            ("BMC", BMC.address),
        ),
        (
            "another system of its BMC",
            structs.replace(NEW, bmc=structs.replace(BMC, system="/redfish/v1/Systems/2")),
            None,
        ),
        ("no serial number in the document", structs.replace(NEW, serial=None), None),
        ("its own UUID", structs.replace(OLD, name="web09"), None),
    ],
)
def test_a_new_uuid_with_an_identity_of_another_machine_is_a_new_motherboard(
    case: str, new: Machine, what: tuple[str, str] | None
) -> None:
    assert find_changed_uuids([new], [OLD]) == ({new.uuid: (*what, OLD)} if what is not None else {}), case


def test_a_commit_lists_its_machines_by_uuid_with_all_their_network_cards() -> None:
    bmc = "bmc: {address: 'https://10.0.0.1', credentials: rack, tls: {verify: false}, reports: {serial: X6DCP93}}"
    one = server("web01", "role: web", f"serial: S1A, {bmc}").replace(
        "interfaces: [", f'interfaces: [{{mac: "{make_mac("second")}", boot: false}}, '
    )
    found = list_machines(repository(SEED[0], one, *SEED[2:], server("web02", "role: web")))
    first, second = found.values()
    assert list(found) == [make_uuid("web01"), make_uuid("web02")]
    assert first.macs == tuple(sorted(make_mac(name).replace(":", "-") for name in ("web01", "second")))
    assert first.bmc == structs.replace(BMC, verify=False, reports_serial="X6DCP93")
    assert (first.name, first.serial, second.serial, second.bmc) == ("web01", "S1A", None, None)


@for_each(
    ("address", "system", "place"),
    [
        ("https://10.0.0.1", None, ("https://10.0.0.1", None)),
        ("https://10.0.0.1:443/", "/redfish/v1/Systems/1/", ("https://10.0.0.1", "/redfish/v1/Systems/1")),
        ("http://bmc:80", "//redfish/v1//Systems/1//", ("http://bmc", "/redfish/v1/Systems/1")),
        ("http://bmc:443", "/", ("http://bmc:443", "")),
        ("https://BMC.Example.net.:8443/Rack%31", "/a%2Fb", ("https://bmc.example.net:8443/Rack1", "/a%2Fb")),
        ("https://[FD00:0:0::1]:443", "/redfish/v1/Systems/self", ("https://[fd00::1]", "/redfish/v1/Systems/self")),
        ("https://[FE80:0::1%25Eth0]", None, ("https://[fe80::1%25Eth0]", None)),
        ("https://[fe80::1%Eth0]", None, ("https://[fe80::1%25Eth0]", None)),
        ("https://bmc", "/redfish/v1/Systems/Self", ("https://bmc", "/redfish/v1/Systems/Self")),
    ],
)
def test_e26_the_address_of_a_bmc_has_one_normalized_spelling(
    address: str, system: str | None, place: tuple[str, str | None]
) -> None:
    assert structs.replace(BMC, address=address, system=system).normalized_address == place


NAMELESS_SEED = (
    fleet(),
    image("flatcar-1"),
    image("discovery-1", "writesDisk: false"),
    profile("web", "flatcar-1"),
    profile("look", "discovery-1"),
)
LOOKS = (*NAMELESS_SEED, policy("look", "All", boots="look"))


def server_without_uuid(spec: str = "", name: str = "web01") -> str:
    return server(name, spec=spec).replace(f"uuid: {make_uuid(name)}, ", "").replace(f'uuid: "{make_uuid(name)}", ', "")


def list_codes(*documents: str) -> list[str]:
    try:
        decide(repository(*documents))
    except InvalidRepository as error:
        return [problem.code for problem in error.problems]
    return []


def test_a_server_document_may_have_no_uuid() -> None:
    assert "uuid" not in server_without_uuid()


def test_a_server_without_a_uuid_boots_an_image_that_writes_no_disk_by_its_mac_address() -> None:
    plan = planned(at("20T22:00"), *LOOKS, server_without_uuid())
    assert plan is not None and plan.phase is Phase.NETWORK
    assert plan.uuid == derive_uuid(MacAddress(make_mac("web01").replace(":", "-"))) and is_derived_uuid(plan.uuid)
    assert list_codes(*LOOKS, server_without_uuid(), server_without_uuid(name="web02")) == []


@pytest.mark.parametrize(
    "spec",
    [
        "provision: 1",
        f"replaces: {make_uuid('old')}",
        "bmc: {address: 'https://10.0.0.1', credentials: bmc}",
    ],
)
def test_a_field_that_needs_a_uuid_is_rejected_by_name(spec: str) -> None:
    with pytest.raises(InvalidRepository, match="GB2021") as raised:
        repository(*LOOKS, server_without_uuid(spec))
    assert spec.partition(":")[0] in raised.value.problems[0].message


@pytest.mark.parametrize("often", ["Once", "OnImageChange", "Always"])
def test_an_install_boot_of_a_server_without_a_uuid_is_rejected(often: str) -> None:
    assert "GB2021" in list_codes(*NAMELESS_SEED, policy("web", "All", boots="web", often=often), server_without_uuid())


def test_a_server_that_boots_nothing_needs_no_uuid() -> None:
    assert list_codes(*NAMELESS_SEED, policy("web", "All", boots="web", often="Never"), server_without_uuid()) == []
    assert (
        list_codes(
            *NAMELESS_SEED, policy("web", "All", boots="web", often="Once"), server_without_uuid("lifecycle: Parked")
        )
        == []
    )


def test_a_template_that_uses_a_missing_uuid_is_an_error() -> None:
    wants = (*LOOKS[:-1], policy("look", "All", "kernelArguments: ['id={{ server.uuid }}']", boots="look"))
    assert (list_codes(*wants, server_without_uuid()), list_codes(*wants, server("web01"))) == (["GB2102"], [])


def test_two_servers_without_a_uuid_cannot_share_a_mac_address_or_serial_number() -> None:
    same_mac = server_without_uuid(name="web02").replace(make_mac("web02"), make_mac("web01"))
    for other in (same_mac, server_without_uuid("serial: 4J8VM72", "web02")):
        with pytest.raises(InvalidRepository, match="GB2003"):
            repository(*LOOKS, server_without_uuid("serial: 4J8VM72"), other)


def test_a_server_that_gets_its_uuid_later_was_not_installed_before() -> None:
    before = list_machines(repository(*LOOKS, server_without_uuid()))
    after = list_machines(repository(*LOOKS, server("web01")))
    assert find_changed_uuids(after.values(), before.values()) == {}
    replaced = list_machines(repository(*LOOKS, server("web01").replace(make_uuid("web01"), make_uuid("other"))))
    assert find_changed_uuids(replaced.values(), after.values()).keys() == {make_uuid("other")}
