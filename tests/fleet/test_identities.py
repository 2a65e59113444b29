"""Who a machine is: the marks by which a new motherboard is told from a new machine."""

from __future__ import annotations

from dataclasses import replace

from gitboot.fleet.identities import BmcAccess, Machine, machines, taken_over
from gitboot.model.scalars import MacAddress, SystemUuid
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, mac_of, repository, server, uuid_of

BMC = BmcAccess(address="https://10.0.0.1", system=None, credentials="rack", verify=True, ca=None)
SPELT = "HTTPS://10.0.0.1:443/"
OLD = Machine(
    uuid=SystemUuid(uuid_of("old")),
    name="web01",
    macs=(MacAddress("52-54-00-00-00-01"), MacAddress("52-54-00-00-00-02")),
    serial="S1A",
    bmc=BMC,
)
NEW = Machine(uuid=SystemUuid(uuid_of("new")), name="web02", macs=(), serial=None, bmc=None)


@for_each(
    ("case", "new", "what"),
    [
        ("nothing in common", NEW, None),
        ("its name", replace(NEW, name="web01"), ("name", "web01")),
        ("one of its MACs", replace(NEW, macs=OLD.macs[1:]), ("MAC", "52-54-00-00-00-02")),
        ("its serial", replace(NEW, serial="S1A"), ("serial", "S1A")),
        ("its BMC", replace(NEW, bmc=replace(BMC, credentials="other")), ("BMC", "https://10.0.0.1")),
        (
            "its BMC, spelt otherwise",
            replace(NEW, bmc=replace(BMC, address=f"{BMC.address}:443/")),
            ("BMC", BMC.address),
        ),
        ("another system of its BMC", replace(NEW, bmc=replace(BMC, system="/redfish/v1/Systems/2")), None),
        ("no serial, as it has none", replace(NEW, serial=None), None),
        ("its own UUID", replace(OLD, name="web09"), None),
    ],
)
def test_a_new_uuid_that_carries_a_mark_of_another_is_a_new_motherboard(
    case: str, new: Machine, what: tuple[str, str] | None
) -> None:
    assert taken_over([new], [OLD]) == ({new.uuid: (*what, OLD)} if what is not None else {}), case


def test_a_commit_describes_its_machines_by_uuid_with_all_their_nics() -> None:
    bmc = "bmc: {address: 'https://10.0.0.1', credentials: rack, tls: {verify: false}, reports: {serial: X6DCP93}}"
    one = server("web01", "role: web", f"serial: S1A, {bmc}").replace(
        "interfaces: [", f'interfaces: [{{mac: "{mac_of("second")}", boot: false}}, '
    )
    found = machines(repository(SEED[0], one, *SEED[2:], server("web02", "role: web")))
    first, second = found.values()
    assert list(found) == [uuid_of("web01"), uuid_of("web02")]
    assert first.macs == tuple(sorted(mac_of(name).replace(":", "-") for name in ("web01", "second")))
    assert first.bmc == replace(BMC, verify=False, reports_serial="X6DCP93")
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
def test_e26_where_a_bmc_is_reached_has_one_spelling(
    address: str, system: str | None, place: tuple[str, str | None]
) -> None:
    assert replace(BMC, address=address, system=system).place == place
