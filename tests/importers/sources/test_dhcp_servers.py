"""The import of DHCP servers: each host is a machine, or in the report with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from gitboot.errors import UsageError
from gitboot.importers.inventory import ImportedInventory, Texts
from gitboot.importers.sources.dhcp_servers import read_dnsmasq, read_isc_dhcpd, read_kea
from tests.helpers.instance_with_bmcs import run_command
from tests.importers.test_fleet_files import MAC, UUID, run_import, write_files

A, B = "52:54:00:00:00:0a", "52:54:00:00:00:0b"


def kea(*reservations: dict[str, object]) -> str:
    return json.dumps({"Dhcp4": {"subnet4": [{"reservations": reservations}]}})


def list_remarks(inventory: ImportedInventory) -> list[str]:
    of_machines = (each.text for machine in inventory.machines for each in machine.remarks)
    return [*(each.text for each in inventory.remarks), *of_machines]


SHORT: Final = "2:54:0:1:2:3"
HOSTS: Final[list[tuple[str, Callable[[Texts], ImportedInventory], str, str]]] = [
    ("short octets", read_dnsmasq, f"dhcp-host={SHORT},web01,10.0.0.13", "02-54-00-01-02-03"),
    ("short octets", read_isc_dhcpd, f"host web01 {{ hardware ethernet {SHORT}; }}", "02-54-00-01-02-03"),
    ("short octets", read_kea, kea({"hw-address": SHORT, "hostname": "web01"}), "02-54-00-01-02-03"),
    ("a client id with a MAC address", read_dnsmasq, f"dhcp-host=id:01:{A},web01", A.replace(":", "-")),
    (
        "a client id with a MAC address",
        read_isc_dhcpd,
        f"host web01 {{ option dhcp-client-identifier 1:{A}; }}",
        A.replace(":", "-"),
    ),
    (
        "a client id with a MAC address",
        read_kea,
        kea({"client-id": f"01:{A}", "hostname": "web01"}),
        A.replace(":", "-"),
    ),
    ("a quoted name", read_dnsmasq, f'dhcp-host={A},"web01",10.0.0.13', A.replace(":", "-")),
    ("the hardware type of Ethernet", read_dnsmasq, f"dhcp-host=01-{A},web01", A.replace(":", "-")),
    ("a line of /etc/ethers", read_dnsmasq, f"{A} web01", A.replace(":", "-")),
    (
        "a nested block",
        read_isc_dhcpd,
        f'group {{ host web01 {{ if x {{ option a "}}"; }} hardware ethernet {A}; }} }}',
        A.replace(":", "-"),
    ),
]


@pytest.mark.parametrize(("read", "text", "mac"), [each[1:] for each in HOSTS], ids=[each[0] for each in HOSTS])
def test_finding_p11_a_host_is_found_however_it_is_written(
    read: Callable[[Texts], ImportedInventory], text: str, mac: str
) -> None:
    (machine,) = read({"file": text}).machines
    assert (machine.name, [nic.mac for nic in machine.nics]) == ("web01", [mac])


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (
            read_dnsmasq,
            "dhcp-host=id:marjorie,10.0.0.13",
            "the reservation identifies the machine by client id marjorie",
        ),
        (
            read_dnsmasq,
            "dhcp-host=web01,10.0.0.13",
            "the reservation identifies the machine by the name that the client sends",
        ),
        (
            read_dnsmasq,
            "dhcp-host=52:54:00:*:*:*,web01",
            "the MAC address 52:54:00:*:*:* was left out, because the value is not the address",
        ),
        (read_dnsmasq, "dhcp-host=01:00:5e:00:00:01,web01", "the value is a multicast address"),
        (read_dnsmasq, f"dhcp-host={A},ignore", "dnsmasq ignores this host"),
        (read_dnsmasq, f"dhcp-host=06-{A},web01", f"06-{A} was left out, because its hardware type is not Ethernet"),
        (read_dnsmasq, f"dhcp-host={A},web01\ndhcp-host={B},web01", "several reservations have the name web01"),
        (
            read_dnsmasq,
            "conf-file=/etc/more.conf",
            "conf-file /etc/more.conf refers to files that are not in the source",
        ),
        (read_dnsmasq, "dhcp-hostsdir=/etc/hosts.d", "dhcp-hostsdir /etc/hosts.d refers to files"),
        (read_isc_dhcpd, 'include "/etc/dhcp/more.conf";', "include /etc/dhcp/more.conf refers to files"),
        (
            read_isc_dhcpd,
            'host a { uid "abc"; fixed-address 10.0.0.13; }',
            "the reservation identifies the machine by client id abc",
        ),
        (
            read_isc_dhcpd,
            "host a { fixed-address 10.0.0.13; }",
            "10.0.0.13 was left out, because no interface with a MAC address is known",
        ),
        (read_isc_dhcpd, f"host a {{ hardware ethernet {A}; fixed-address a.example; }}", "because it is a DNS name"),
        (read_isc_dhcpd, f'host a {{ hardware ethernet {A}; filename "pxelinux.0"; }}', 'filename "pxelinux.0"'),
        (read_kea, kea({"duid": "01:02:03:04:05"}), "the reservation identifies the machine by duid 01:02:03:04:05"),
        (
            read_kea,
            kea({"flex-id": "'a'", "hostname": "web01"}),
            "the reservation identifies the machine by flex-id 'a'",
        ),
        (read_kea, kea({"circuit-id": "'a'"}), "the reservation identifies the machine by circuit-id 'a'"),
        (read_kea, '{"Dhcp4": {"subnet4": <?include "/etc/kea/s.json"?>}}', "<?include /etc/kea/s.json"),
        (read_kea, '{"Dhcp4": {"hosts-database": {"type": "mysql"}}}', "the import does not read databases"),
    ],
)
def test_finding_p11_what_is_not_imported_is_in_the_report(
    read: Callable[[Texts], ImportedInventory], text: str, reason: str
) -> None:
    texts = list_remarks(read({"file": text}))
    assert any(reason in each for each in texts), texts


def test_finding_p11_an_included_file_in_the_source_is_read_and_not_missing() -> None:
    hosts = f"host web01 {{ hardware ethernet {A}; }}"
    inventory = read_isc_dhcpd({"etc/dhcpd.conf": 'include "/etc/dhcp/hosts.conf";', "etc/hosts.conf": hosts})
    assert ([each.name for each in inventory.machines], inventory.remarks) == (["web01"], ())
    files = {
        "k/kea.conf": '{"Dhcp4": {"subnet4": [ <?include "/etc/kea/s.json"?> ]}}',
        "k/s.json": kea({"hw-address": A}),
    }
    for place in (
        '[ <?include "/k/s.json"?> ]',
        '[ {}, <?include "/k/s.json"?>, {} ]',
        '[{}, <?include "/k/s.json"?>]',
    ):
        files["k/kea.conf"] = f'{{"Dhcp4": {{"subnet4": {place}, <?include "/k/s.json"?> }}}}'
        assert len(read_kea(files).machines) == 1
    inventory = read_kea(files)
    assert (len(inventory.machines), inventory.remarks) == (1, ())


# Comments and layout as in the kea-dhcp4.conf of Debian's package, with hosts of our own.
STOCK: Final = """\
// This is a "basic" configuration, it's an example: http://kea.example.
// { "Dhcp4": { "subnet4": [ ] } }
{
# DHCPv4 configuration: "quoted" in a comment, and it's fine
"Dhcp4": {
    /* a block
       "with" // everything # in it */
    "valid-lifetime": 3600, // "seconds
    "option-data": [ { "name": "tz", "data": "EST5EDT4\\\\,M3.2.0/02:00" }, ],
    "subnet4": [
        {
            "subnet": "192.0.2.0/24", # /* not a block
            // "reservations": [ { "hw-address": "52:54:00:99:99:99" } ],
            "reservations": [
                { "hw-address": "52:54:00:00:00:0a", "ip-address": "192.0.2.201" },
                // this one has a client id
                { "client-id": "01:52:54:00:00:00:0b", "ip-address": "192.0.2.202", "hostname": "b" },
                { "flex-id": "'s0mEVaLue'", "ip-address": "192.0.2.206" },
            ]
        }
    ]
}
}
"""


def test_finding_p11_a_configuration_with_kinds_of_comments_is_read() -> None:
    machines = read_kea({"kea-dhcp4.conf": STOCK}).machines
    assert sorted(nic.mac.replace("-", ":") for machine in machines for nic in machine.nics) == [A, B]
    assert len(machines) == 3
    with pytest.raises(UsageError, match=r"it is not JSON \(line 8: "):
        read_kea({"k": STOCK.replace('"valid-lifetime"', "valid")})


def test_finding_p11_the_reasons_are_in_the_error_if_no_host_is_left(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", {"dnsmasq.conf": f"dhcp-host={A},ignore\nconf-dir=/etc/dnsmasq.d\n"})
    done = run_command("import", "dnsmasq", source, "--out", tmp_path / "fleet")
    assert done.code == 64 and "dnsmasq ignores this host" in done.err and "conf-dir /etc/dnsmasq.d" in done.err


def test_a_machine_with_two_uuids_is_pending(tmp_path: Path) -> None:
    """Two machines with one name become one machine, but their UUIDs differ."""
    (tmp_path / "uuids").write_text(f"{A} {UUID}\n{B} {UUID[:-1]}3\n")
    files = {"hosts.conf": f"dhcp-host={A},web01\ndhcp-host={B},web01\n"}
    fleet = run_import(tmp_path, "dnsmasq", "--uuids", tmp_path / "uuids", files=files)
    assert not (fleet / "servers").exists()
    text = (fleet / "pending" / "servers" / "web01.yaml").read_text()
    assert f"missing: the --uuids file contains {UUID} and {UUID[:-1]}3 for this machine: check which machine" in text


def test_finding_p11_interfaces_of_a_bond_share_their_address_and_another_machine_does_not(tmp_path: Path) -> None:
    line = f"dhcp-host={MAC},{B},web01,10.0.0.13\ndhcp-host={A},web02,10.0.0.13\n"
    (tmp_path / "uuids").write_text(f"{MAC} {UUID}\n{A} {UUID[:-1]}3\n")
    fleet = run_import(tmp_path, "dnsmasq", "--uuids", tmp_path / "uuids", files={"hosts.conf": line})
    done = run_command("validate", fleet)
    assert done.code == 0 and "GB2003" not in done.out, done
    report = (fleet / "import-report.md").read_text()
    assert "the address 10.0.0.13 was left out, because web01 also has it" in report
    assert (fleet / "servers" / "web01.yaml").read_text().count("10.0.0.13") == 2


def test_a_host_that_dhcpd_has_deleted_is_not_a_machine() -> None:
    host = "host {name} {{ dynamic; hardware ethernet {mac}; }}\n"
    leases = (
        host.format(name="a", mac=MAC)
        + host.format(name="b", mac="52:54:00:00:00:0b")
        + "host a { dynamic; deleted; }\nhost c { deleted; }\nhost b { deleted; }\n"
        + host.format(name="b", mac="52:54:00:00:00:0c")
    )
    machines = read_isc_dhcpd({"dhcpd.leases": leases}).machines
    assert [(each.name, *(nic.mac for nic in each.nics)) for each in machines] == [("b", "52-54-00-00-00-0c")]
