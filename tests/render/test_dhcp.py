"""DHCP configuration: read by the real servers, which send each machine its options."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.artifacts.boot_loaders import LOADERS as PLACED
from gitboot.model.fleet import Output
from gitboot.render.boot_files import render_fleet_files
from gitboot.render.dhcp import LOADERS, LONGEST_PROXY_URL
from gitboot.resolve.server_decision import Decisions
from tests.helpers import hypothesis_strategies
from tests.helpers.documentation import find_code_block, require_inline_code
from tests.helpers.fleets import make_uuid

OUTPUTS = ["ipxe", "grub", "pxelinux", "dhcp-dnsmasq", "dhcp-kea"]
SITES = [
    {"name": "fra1", "select": {"matchLabels": {"site": "fra1"}}, "baseURL": "http://fra1.test/boot,all"},
    {"name": "a.b-1", "select": {"matchLabels": {"site": "ams2"}}, "baseURL": "http://[2001:db8::1]:8080"},
]
PACKAGES = {
    "dnsmasq": "dnsmasq-base",
    "kea-dhcp4": "kea-dhcp4-server",
    "kea-dhcp6": "kea-dhcp6-server",
}  # by program


def skip_without(program: str) -> pytest.MarkDecorator:
    missing = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"{program} is missing (Debian: {PACKAGES[program]})")


def server(
    name: str, interfaces: list[dict[str, Any]], site: str = "none", **spec: Any
) -> hypothesis_strategies.Document:
    described = {"uuid": make_uuid(name), "architecture": "x86_64", "firmware": "UEFI", "interfaces": interfaces}
    return hypothesis_strategies.document("Server", name, described | spec, {"site": site})


def decided(servers: Iterable[hypothesis_strategies.Document], **fleet: Any) -> Decisions:
    image = {"url": "assets:kernel", "sha256": "a" * 64}
    documents = (
        hypothesis_strategies.document("Fleet", "test", {"baseURL": "http://192.0.2.1", "outputs": OUTPUTS} | fleet),
        hypothesis_strategies.document(
            "BootImage", "i-1", {"version": "1", "architectures": {"x86_64": {"kernel": image}}}
        ),
        hypothesis_strategies.document("BootProfile", "web", {"method": "Disk"}),
        hypothesis_strategies.document(
            "BootPolicy", "web", {"select": "All", "profile": "web", "networkBoot": "Never"}
        ),
        *servers,
    )
    return hypothesis_strategies.decided(documents)


PAGE = "docs/how-to/dhcp.md"


def render_configuration(decisions: Decisions) -> dict[str, str]:
    files = render_fleet_files(decisions)
    folder = "ops/dhcp/"
    return {path.removeprefix(folder): file.content.decode() for path, file in files.items() if folder in path}


def make_300_servers() -> list[hypothesis_strategies.Document]:
    made = []
    for number in range(300):
        addresses = [f"10.1.{number // 250}.{number % 250 + 1}/16", f"fd00:1::{number + 1:x}/64"]
        boot: dict[str, Any] = {
            "mac": f"52:54:00:01:{number // 256:02x}:{number % 256:02x}",
            "addresses": addresses[: number % 3],
        }
        other: dict[str, Any] = {"mac": f"52:54:00:02:{number // 256:02x}:{number % 256:02x}", "boot": number % 2 == 0}
        architecture = ("x86_64", "aarch64")[number % 2]
        site = ("fra1", "ams2", "none")[number % 3]
        made.append(server(f"r{number}.example", [boot, other][: number % 4 + 1], site, architecture=architecture))
    return made


HOSTILE = [
    *("ignore", "infinite", "3600", "12h", "10.0.0.1", "1.2", "a", "known", "set", "tag", "option", "id"),
    *("x" * 63, "x" * 64, ".".join(["x" * 59] * 4), "0x10", "xn--nxasmq6b", "a-.b".replace("-.", "."), "null", "true"),
]


def make_hostile_servers() -> list[hypothesis_strategies.Document]:
    return [server(name, [{"mac": f"52:54:00:03:00:{number:02x}"}]) for number, name in enumerate(HOSTILE)]


def make_servers_with_loaders() -> list[hypothesis_strategies.Document]:
    made = make_300_servers()
    for number, each in enumerate(made):
        each["spec"] |= [{"loader": "iPXE"}, {"loader": "GRUB"}, {}, {"loader": "Shim"}, {"secureBoot": True}][
            number % 5
        ]
    return made


BONDED: dict[str, list[dict[str, Any]]] = {
    "bond": [
        {"mac": "52:54:00:00:00:01", "addresses": ["10.1.0.9/16", "fd00:1::9/64"]},
        {"mac": "52:54:00:00:00:02", "addresses": ["fd00:1::9", "10.1.0.9"]},
    ],
    "three-and-one": [
        {"mac": "52:54:00:00:01:01", "addresses": ["10.1.0.10"]},
        {"mac": "52:54:00:00:01:02", "addresses": ["10.1.0.11"]},
        {"mac": "52:54:00:00:01:03", "addresses": ["10.1.0.10"]},
        {"mac": "52:54:00:00:01:04", "addresses": ["10.1.0.10"], "boot": False},
        {"mac": "52:54:00:00:01:05", "addresses": ["10.1.0.10", "fd00:1::10"]},
    ],
    "by-ipv6": [
        {"mac": "52:54:00:00:02:01", "addresses": ["fd00:1::11"]},
        {"mac": "52:54:00:00:02:02", "addresses": ["10.1.0.12", "fd00:1::11", "fd00:1::12"]},
        {"mac": "52:54:00:00:02:03", "addresses": ["10.1.0.13", "fd00:1::11"]},
    ],
    "no-address": [{"mac": "52:54:00:00:03:01"}, {"mac": "52:54:00:00:03:02"}],
}


def make_bonded_servers() -> list[hypothesis_strategies.Document]:
    return [server(name, interfaces) for name, interfaces in BONDED.items()]


FLEETS = {
    "bonds": lambda: decided(make_bonded_servers()),
    "iPXE, GRUB and Shim by name": lambda: decided(make_servers_with_loaders(), sites=SITES),
    "300 servers at sites": lambda: decided(make_300_servers(), sites=SITES),
    "names that mean something else to DHCP": lambda: decided(make_hostile_servers(), sites=SITES),
    "one server, no site": lambda: decided(make_300_servers()[:1]),
    "GRUB alone": lambda: decided(make_300_servers()[:2], outputs=["grub", "dhcp-dnsmasq", "dhcp-kea"]),
    "PXELINUX alone": lambda: decided(make_300_servers()[:2], outputs=["pxelinux", "dhcp-dnsmasq", "dhcp-kea"]),
    "DHCP alone": lambda: decided(make_300_servers()[:2], outputs=["dhcp-dnsmasq", "dhcp-kea"]),
    "a URL of everything that a URL may hold": lambda: decided(
        make_300_servers()[:3], baseURL="http://boot.test:8080/a,b/c;d/e%20f/~g/$h/*/!/(i)/[j]/@" + "k" * 100
    ),
    "a URL that is longer than an option of DHCPv4": lambda: decided(
        [], baseURL=f"http://boot.test/{'a' * 240}", outputs=["pxelinux", "dhcp-dnsmasq", "dhcp-kea"]
    ),
}


@skip_without("dnsmasq")
@pytest.mark.parametrize("case", FLEETS)
def test_dnsmasq_accepts_the_configuration_beside_an_existing_one(case: str, tmp_path: Path) -> None:
    included = tmp_path / "gitboot.conf"
    included.write_text(render_configuration(FLEETS[case]())["dnsmasq.conf"])
    include = find_code_block(PAGE, "conf-file=").replace("/srv/gitboot/ops/dhcp/dnsmasq.conf", str(included))
    own = f"port=0\ndhcp-range=10.1.0.0,static\ndhcp-host=52:54:00:ff:00:01,own\n{include}"
    (tmp_path / "dnsmasq.conf").write_text(own)
    _check_command(*require_inline_code(PAGE, "dnsmasq --test").split(), "-C", str(tmp_path / "dnsmasq.conf"))


@skip_without("dnsmasq")
@pytest.mark.parametrize("case", FLEETS)
def test_dnsmasq_accepts_the_proxy_beside_a_network_of_its_own(case: str, tmp_path: Path) -> None:
    decisions = structs.replace(FLEETS[case](), outputs=frozenset({Output.IPXE, Output.GRUB, Output.DHCP_PROXY}))
    included = tmp_path / "gitboot.conf"
    included.write_text(render_configuration(decisions)["dnsmasq-proxy.conf"])
    own = f"port=0\ndhcp-range=10.1.0.0,proxy,255.255.0.0\ndhcp-ignore=tag:!known\nconf-file={included}\n"
    (tmp_path / "dnsmasq.conf").write_text(own)
    _check_command("dnsmasq", "--test", "-C", str(tmp_path / "dnsmasq.conf"))


@pytest.mark.parametrize(
    "version", [pytest.param(4, marks=skip_without("kea-dhcp4")), pytest.param(6, marks=skip_without("kea-dhcp6"))]
)
@pytest.mark.parametrize("case", FLEETS)
def test_kea_accepts_the_configuration_beside_an_existing_one(case: str, version: int, tmp_path: Path) -> None:
    for name, text in render_configuration(FLEETS[case]()).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "kea.json").write_text(kea_configuration(tmp_path, version))
    command = {4: require_inline_code(PAGE, "kea-dhcp4 -t FILE"), 6: require_inline_code(PAGE, "kea-dhcp6 -t FILE")}[
        version
    ]
    _check_command(*command.replace("FILE", str(tmp_path / "kea.json")).split())


def kea_configuration(folder: Path, version: int) -> str:
    """Return the configuration of an operator, with the additions of docs/how-to/dhcp.md."""
    block = find_code_block(PAGE, '{"Dhcp4": {\n    "client-classes"')
    own = {
        "…": '"lease-database": {"type": "memfile", "persist": false}',
        '"client-classes": [': '"client-classes": [{"name": "own"}, ',
        '"reservations": [': '"reservations": [{"hw-address": "52:54:00:ff:00:01", "hostname": "own"}, ',
        "/srv/gitboot/ops/dhcp": str(folder),
    }
    for shown, ours in own.items():
        assert shown in block
        block = block.replace(shown, ours)
    return re.sub(r"(?i)(?<=dhcp)4", str(version), block)


def _check_command(*command: str) -> None:
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def parse_elements(text: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(f"[{text}]")
    return loaded


def test_the_order_of_documents_changes_nothing() -> None:
    servers = make_300_servers()
    expected = render_configuration(decided(servers, sites=SITES))
    random.Random(7).shuffle(servers)
    assert render_configuration(decided(servers, sites=SITES)) == expected


def test_every_boot_interface_is_reserved_with_its_first_ipv4_and_all_its_ipv6_addresses() -> None:
    addresses = ["192.0.2.9/24", "192.0.2.8", "2001:db8::9/64", "2001:db8::8"]
    nics: list[dict[str, Any]] = [
        {"mac": "52:54:00:00:00:01", "addresses": addresses},
        {"mac": "52:54:00:00:00:02", "boot": False},
    ]
    found = render_configuration(decided([server("web01", nics, "fra1")], sites=SITES))
    hosts = [line for line in found["dnsmasq.conf"].splitlines() if line.startswith("dhcp-host")]
    tags = "set:gitboot_site,set:gitboot_site_fra1"
    assert hosts == [f"dhcp-host=52:54:00:00:00:01,{tags},192.0.2.9,[2001:db8::9],[2001:db8::8],web01"]
    at_fra1 = {"hw-address": "52:54:00:00:00:01", "hostname": "web01", "client-classes": ["gitboot_site_fra1"]}
    assert parse_elements(found["kea-dhcp4-reservations.json"]) == [at_fra1 | {"ip-address": "192.0.2.9"}]
    six = ["2001:db8::9", "2001:db8::8"]
    assert parse_elements(found["kea-dhcp6-reservations.json"]) == [at_fra1 | {"ip-addresses": six}]


def test_finding_p12_the_interfaces_of_a_bond_share_one_reservation_of_dnsmasq() -> None:
    lines = render_configuration(decided(make_bonded_servers()))["dnsmasq.conf"].splitlines()
    assert [line.removeprefix("dhcp-host=") for line in lines if line.startswith("dhcp-host")] == [
        "52:54:00:00:00:01,52:54:00:00:00:02,10.1.0.9,[fd00:1::9],bond",
        "52:54:00:00:02:01,52:54:00:00:02:02,10.1.0.12,[fd00:1::11],[fd00:1::12],by-ipv6",
        "52:54:00:00:02:03,10.1.0.13,by-ipv6",  # a reservation has one IPv4 address
        "52:54:00:00:03:01,no-address",
        "52:54:00:00:03:02,no-address",
        "52:54:00:00:01:01,52:54:00:00:01:03,52:54:00:00:01:05,10.1.0.10,[fd00:1::10],three-and-one",
        "52:54:00:00:01:02,10.1.0.11,three-and-one",
    ]


def test_finding_p12_each_interface_of_a_bond_has_its_reservation_of_kea() -> None:
    found = render_configuration(decided(make_bonded_servers()[:1]))
    macs = [each["mac"] for each in BONDED["bond"]]
    reserved = parse_elements(found["kea-dhcp4-reservations.json"])
    assert reserved == [{"hw-address": mac, "ip-address": "10.1.0.9", "hostname": "bond"} for mac in macs]
    reserved = parse_elements(found["kea-dhcp6-reservations.json"])
    assert reserved == [{"hw-address": mac, "ip-addresses": ["fd00:1::9"], "hostname": "bond"} for mac in macs]


@pytest.mark.parametrize(("lifecycle", "reserved"), [("Active", True), ("Parked", True), ("Retired", False)])
def test_a_retired_server_has_no_reserved_address(lifecycle: str, reserved: bool) -> None:
    nic: dict[str, Any] = {"mac": "52:54:00:00:00:01", "addresses": ["192.0.2.9"]}
    found = render_configuration(decided([server("web01", [nic], lifecycle=lifecycle)]))
    assert ("192.0.2.9" in found["dnsmasq.conf"]) is reserved
    assert bool(parse_elements(found["kea-dhcp4-reservations.json"])) is reserved


def test_a_name_that_is_not_a_host_name_is_omitted() -> None:
    found = render_configuration(decided(make_hostile_servers()))
    given = {
        line.split(",")[1] for line in found["dnsmasq.conf"].splitlines() if line.count(",") == 1 and "-host" in line
    }
    assert given == set(HOSTILE) - {"ignore", "infinite", "3600", "12h", "10.0.0.1", "1.2", "x" * 64}
    assert {each["hostname"] for each in parse_elements(found["kea-dhcp4-reservations.json"])} == given


# The file for each kind of machine, by its name at IANA.


def kea_class(found: dict[str, str], name: str, version: int = 4) -> dict[str, Any]:
    return next(each for each in parse_elements(found[f"kea-dhcp{version}-classes.json"]) if each["name"] == name)


def test_ipxe_gets_the_first_script_and_no_loader_so_that_it_does_not_loop() -> None:
    found = render_configuration(decided([], sites=SITES))
    for version in (4, 6):
        loading = [each for each in parse_elements(found[f"kea-dhcp{version}-classes.json"]) if "loaders/" in str(each)]
        assert loading
        assert all("not member('gitboot_ipxe')" in each["test"] for each in loading)
        script = kea_class(found, "gitboot_site_fra1_script", version)
        assert "not member('gitboot_ipxe')" not in script["test"]
        assert r"http://fra1.test/boot\,all/boot.ipxe" in [each["data"] for each in script["option-data"]]
    for line in found["dnsmasq.conf"].splitlines():
        if "loaders/" in line:
            assert "tag:!gitboot_ipxe," in line


def test_a_fleet_without_ipxe_gives_grub_to_every_machine_that_has_a_grub() -> None:
    found = render_configuration(decided([], outputs=["grub", "dhcp-dnsmasq", "dhcp-kea"]))
    named = set(re.findall(r"loaders/[^\"]+", "".join(found.values())))
    assert {name.partition(",")[0] for name in named} == {"loaders/grub-x86_64.efi", "loaders/grub-aarch64.efi"}
    assert "boot.ipxe" not in "".join(found.values())


@pytest.mark.parametrize("spec", [{"secureBoot": True}, {"loader": "Shim"}], ids=str)
def test_p4_a_server_with_secure_boot_gets_the_shim_and_no_other_server_does(spec: dict[str, Any]) -> None:
    secure, other = server("web01", [{"mac": "52:54:00:00:00:01"}]), server("web02", [{"mac": "52:54:00:00:00:02"}])
    found = render_configuration(decided([{**secure, "spec": secure["spec"] | spec}, other]))
    lines = found["dnsmasq.conf"].splitlines()
    assert "dhcp-host=52:54:00:00:00:01,set:gitboot_loader,set:gitboot_loader_shim,web01" in lines
    assert "dhcp-host=52:54:00:00:00:02,web02" in lines
    assert "dhcp-no-override" in lines, "shim looks beside itself only if this option is set"
    for line in lines:
        assert ("loaders/shim" in line) == ("tag:gitboot_loader_shim" in line and "64" in line and "boot" in line), line
    http = kea_class(found, "gitboot_shim_http_x86_64")
    assert http["boot-file-name"] == "http://192.0.2.1/assets/loaders/shimx64.efi"
    assert kea_class(found, "gitboot_shim_uefi_aarch64")["boot-file-name"] == "loaders/shimaa64.efi"
    assert kea_class(found, "gitboot_shim_bios")["boot-file-name"] == "loaders/undionly.kpxe"
    assert parse_elements(found["kea-dhcp4-reservations.json"])[0]["client-classes"] == ["gitboot_loader_shim"]
    assert "shim" not in "".join(render_configuration(decided([secure, other])).values())


def test_pxelinux_gets_the_path_of_its_configurations() -> None:
    found = render_configuration(decided([], outputs=["pxelinux", "dhcp-dnsmasq", "dhcp-kea"]))
    assert 'dhcp-option-force=tag:gitboot_bios,210,"http://192.0.2.1/"' in found["dnsmasq.conf"]
    [option] = kea_class(found, "gitboot_bios")["option-data"]
    assert (option["code"], bytes.fromhex(option["data"])) == (210, b"http://192.0.2.1/")


def test_tftp_uses_the_host_of_the_base_url_if_that_is_an_address() -> None:
    found = render_configuration(decided([], sites=SITES))
    assert kea_class(found, "gitboot_bios")["next-server"] == "192.0.2.1"
    assert "next-server" not in kea_class(found, "gitboot_site_fra1_bios")
    assert "next-server" not in kea_class(found, "gitboot_site_a.b-1_bios")
    lines = found["dnsmasq.conf"].splitlines()
    assert "dhcp-boot=tag:!gitboot_site,tag:!gitboot_ipxe,tag:gitboot_bios,loaders/undionly.kpxe,,192.0.2.1" in lines
    assert "dhcp-boot=tag:gitboot_site_fra1,tag:!gitboot_ipxe,tag:gitboot_bios,loaders/undionly.kpxe" in lines
    url = kea_class(found, "gitboot_site_a.b-1_uefi_x86_64", 6)["option-data"][0]["data"]
    assert url == "tftp://[2001:db8::1]/loaders/snponly-x86_64.efi"


def test_a_url_that_does_not_fit_in_the_header_field_is_only_an_option() -> None:
    made = kea_class(render_configuration(decided([], baseURL="http://boot.test/" + "a" * 120)), "gitboot_http_x86_64")
    assert "boot-file-name" not in made
    assert made["option-data"][0]["data"].endswith("/loaders/snponly-x86_64.efi")


def test_no_artifact_is_named() -> None:
    artifacts = {
        name: {"url": f"assets:some.{name}", "sha256": "a" * 64} for name in ("uki", "iso", "loader", "kernel")
    }
    image = hypothesis_strategies.document("BootImage", "i-1", {"version": "1", "architectures": {"x86_64": artifacts}})
    boots = {"method": "UefiHttp", "httpBoot": "uki", "image": "i-1"}
    profile = hypothesis_strategies.document("BootProfile", "web", boots)
    policy = hypothesis_strategies.document(
        "BootPolicy", "web", {"select": "All", "profile": "web", "networkBoot": "Once"}
    )
    fleet = hypothesis_strategies.document("Fleet", "test", {"baseURL": "http://192.0.2.1", "outputs": OUTPUTS})
    text = "".join(
        render_configuration(
            hypothesis_strategies.decided([fleet, image, profile, policy, *make_300_servers()[:1]])
        ).values()
    )
    assert "some." not in text
    assert "assets/" in text and "assets/" not in text.replace("assets/loaders/", "")


def test_every_loader_that_dhcp_names_is_placed() -> None:
    assert {path for _, _, path in LOADERS} <= {each.path for each in PLACED}


# proxyDHCP


def render_proxy(servers: Iterable[hypothesis_strategies.Document] = (), **fleet: Any) -> list[str]:
    """Return the lines of the configuration of a proxy."""
    outputs = fleet.pop("outputs", ["ipxe", "grub", "dhcp-proxy"])
    return render_configuration(decided(servers, outputs=outputs, **fleet))["dnsmasq-proxy.conf"].splitlines()


def test_a_proxy_at_a_host_name_gives_ipxe_on_bios_a_service_because_it_needs_a_server() -> None:
    lines = render_proxy(baseURL="http://boot.test")
    assert 'dhcp-boot=tag:gitboot_ipxe,"http://boot.test/boot.ipxe"' in lines
    assert 'pxe-service=tag:gitboot_ipxe,0,gitboot,"http://boot.test/boot.ipxe"' in lines
    assert "pxe-service=tag:!gitboot_ipxe,0,gitboot,loaders/undionly.kpxe" in lines


def test_a_proxy_knows_each_boot_interface_with_its_site_and_its_loader_but_no_address() -> None:
    nics: list[dict[str, Any]] = [
        {"mac": "52:54:00:00:00:01", "addresses": ["192.0.2.9/24"]},
        {"mac": "52:54:00:00:00:02"},
        {"mac": "52:54:00:00:00:03", "boot": False},
    ]
    servers = [
        server("web01", nics, "fra1", loader="GRUB"),
        server("web02", [{"mac": "52:54:00:00:00:04"}]),
        server("old", [{"mac": "52:54:00:00:00:05"}], lifecycle="Retired"),
    ]
    lines = render_proxy(servers, sites=SITES)
    assert [line for line in lines if line.startswith("dhcp-host=")] == [
        "dhcp-host=52:54:00:00:00:01,52:54:00:00:00:02,set:gitboot_server,set:gitboot_site,set:gitboot_site_fra1,"
        "set:gitboot_loader,set:gitboot_loader_grub",
        "dhcp-host=52:54:00:00:00:04,set:gitboot_server",
    ]
    grub = "tag:gitboot_site_fra1,tag:!gitboot_ipxe,tag:gitboot_loader_grub,7,gitboot,loaders/grub-x86_64.efi"
    assert f"pxe-service={grub}" in lines
    assert 'dhcp-boot=tag:gitboot_site_fra1,tag:gitboot_ipxe,"http://fra1.test/boot,all/boot.ipxe"' in lines


def test_a_proxy_names_only_urls_that_its_answer_has_room_for() -> None:
    fitting = f"http://boot.test/{'a' * (LONGEST_PROXY_URL - len('http://boot.test//boot.ipxe'))}"
    script = f"{fitting}/boot.ipxe"
    assert len(script) == LONGEST_PROXY_URL
    lines = render_proxy(baseURL=fitting)
    assert f'dhcp-boot=tag:gitboot_ipxe,"{script}"' in lines
    assert [line for line in lines if "http" in line and "assets" in line and not line.startswith("# Omitted")] == []
    assert not [
        line for line in render_proxy(baseURL=f"{fitting}a") if "boot.ipxe" in line and not line.startswith("# ")
    ]


def test_dnsmasq_names_only_urls_that_an_option_of_dhcpv4_has_room_for() -> None:
    base = f"http://boot.test/{'a' * (255 - len('http://boot.test//boot.ipxe'))}"
    for url, is_named in ((base, True), (f"{base}a", False)):
        lines = render_configuration(decided([], baseURL=url))["dnsmasq.conf"].splitlines()
        assert (f'dhcp-boot=tag:gitboot_ipxe,"{url}/boot.ipxe"' in lines) is is_named
        assert f'dhcp-option=tag:gitboot_ipxe,option6:bootfile-url,"{url}/boot.ipxe"' in lines


def test_a_proxy_does_not_name_pxelinux_because_it_cannot_send_its_path() -> None:
    lines = render_proxy(outputs=["pxelinux", "dhcp-proxy"])
    assert not [line for line in lines if "lpxelinux" in line]


def test_without_the_output_no_file_is_written() -> None:
    assert render_configuration(decided(make_300_servers()[:1], outputs=["ipxe"])) == {}
    assert set(render_configuration(decided([], outputs=["ipxe", "dhcp-dnsmasq"]))) == {"dnsmasq.conf"}


def test_http_clients_get_https_urls_with_an_https_base_url_and_pxe_clients_still_use_tftp() -> None:
    base = "https://192.0.2.1:8443"
    found = render_configuration(decided([], baseURL=base))
    boots = [line for line in found["dnsmasq.conf"].splitlines() if line.startswith("dhcp-boot=")]
    by_client = {
        tag: next(line for line in boots if f"tag:gitboot_{tag}," in line)
        for tag in ("uefi_x86_64", "http_x86_64", "ipxe")
        if any(f"tag:gitboot_{tag}," in line for line in boots)
    }
    assert by_client["uefi_x86_64"].endswith(",loaders/snponly-x86_64.efi,,192.0.2.1")
    assert by_client["http_x86_64"].endswith(f',"{base}/assets/loaders/snponly-x86_64.efi"')
    assert f'tag:gitboot_ipxe,"{base}/boot.ipxe"' in found["dnsmasq.conf"]
    classes = {each["name"]: each for each in parse_elements(found["kea-dhcp4-classes.json"])}
    assert classes["gitboot_uefi_x86_64"]["next-server"] == "192.0.2.1"
    assert classes["gitboot_http_x86_64"]["boot-file-name"] == f"{base}/assets/loaders/snponly-x86_64.efi"
