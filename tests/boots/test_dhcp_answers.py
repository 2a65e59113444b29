"""DHCP servers answer each kind of client: the proxy beside other servers, and the servers of the how-to page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.boots.dhcp import (
    DOCUMENTED_SERVERS,
    HOST_NAME,
    OTHER_ADDRESS,
    OTHER_SERVERS,
    PAGE,
    dnsmasq,
    kea,
    proxy_beside,
    write_generated,
)
from tests.boots.dhcp_client import ADDRESS, KINDS, RELAYED, Answer, Client, Kind, client
from tests.boots.network import BASE_URLS, HOST, NGINX, new_network
from tests.helpers.documentation import require_inline_code
from tests.helpers.fleets import make_mac

BASE: Final = BASE_URLS["gitboot"]
LOADERS: Final[dict[int | None, str]] = {  # by architecture
    0: "loaders/undionly.kpxe",
    7: "loaders/snponly-x86_64.efi",
    9: "loaders/snponly-x86_64.efi",
    11: "loaders/ipxe-aarch64.efi",
    16: "loaders/snponly-x86_64.efi",
    19: "loaders/ipxe-aarch64.efi",
}
NOBODY: Final = "0.0.0.0"  # the address in the offer of a proxy


@pytest.fixture(scope="module", autouse=True)
def network_namespace() -> Iterator[None]:
    with new_network():
        yield


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    (tmp_path / "tftp").mkdir()
    return write_generated(tmp_path)


def check_boot_file(answer: Answer, kind: Kind, client_name: str) -> None:
    """Check that an answer names the boot script, or the loader for the client's firmware."""
    if kind.ipxe:
        assert answer.file == f"{BASE}/boot.ipxe", client_name
    elif kind.http:
        url = f"{BASE}/assets/{LOADERS[kind.architecture]}"
        assert (answer.vendor, answer.file) == ("HTTPClient", url), client_name
    else:
        path = LOADERS[kind.architecture]
        assert (answer.vendor, answer.next_server, answer.file) == ("", HOST, path), client_name


def request_answer(asks: Client, kind: Kind, mac: str = make_mac("asks")) -> Answer:
    """Return the answer of the proxy with the boot file: its offer, or its answer at port 4011."""
    offers = asks.discover(kind, {HOST, OTHER_ADDRESS}, mac)
    assert offers[OTHER_ADDRESS].address != NOBODY
    assert (offers[OTHER_ADDRESS].file, offers[OTHER_ADDRESS].vendor) == ("", "")
    assert offers[HOST].address == NOBODY
    return offers[HOST] if kind.http or kind.ipxe else asks.request_boot_file(kind, offers[HOST], mac)


@pytest.mark.parametrize("other", OTHER_SERVERS)
def test_a_proxy_names_the_boot_file_of_each_kind_of_client(other: str, generated: Path, tmp_path: Path) -> None:
    with proxy_beside(other)(generated, tmp_path), client() as asks:
        for name, kind in KINDS.items():
            found = request_answer(asks, kind)
            if kind.ipxe:
                assert (found.next_server, found.file) == (HOST, f"{BASE}/boot.ipxe"), name
            elif kind.http:
                assert found.file == f"{BASE}/assets/{LOADERS[kind.architecture]}", name
            else:
                assert (found.next_server, found.file) == (HOST, LOADERS[kind.architecture]), name


def test_a_proxy_knows_the_site_and_the_loader_of_a_server_by_its_mac_address(generated: Path, tmp_path: Path) -> None:
    mac, site = make_mac("far"), BASE_URLS["nginx"]
    with proxy_beside("dnsmasq")(generated, tmp_path), client() as asks:
        script = request_answer(asks, KINDS["iPXE on BIOS"], mac)
        assert (script.next_server, script.file) == (NGINX, f"{site}/boot.ipxe")
        assert request_answer(asks, KINDS["HTTP x64"], mac).file == f"{site}/assets/loaders/grub-x86_64.efi"
        loader = request_answer(asks, KINDS["UEFI x64"], mac)
        assert (loader.next_server, loader.file) == (NGINX, "loaders/grub-x86_64.efi")
        assert request_answer(asks, KINDS["iPXE on BIOS"], make_mac("known")).file == f"{BASE}/boot.ipxe"


def test_a_proxy_does_not_answer_a_client_that_does_not_boot(generated: Path, tmp_path: Path) -> None:
    with proxy_beside("dnsmasq")(generated, tmp_path), client() as asks:
        offers = asks.discover(Kind(), {OTHER_ADDRESS})
        # dnsmasq answers one request after the other, so the first would have been answered by now.
        assert asks.discover(KINDS["BIOS"], {HOST, OTHER_ADDRESS}).keys() == {HOST, OTHER_ADDRESS}
        assert offers.keys() == {OTHER_ADDRESS}


def test_a_machine_without_a_document_gets_the_site_that_its_operator_sets(generated: Path, tmp_path: Path) -> None:
    mac = make_mac("stranger")
    with proxy_beside("dnsmasq")(generated, tmp_path, {mac: "nginx"}), client() as asks:
        assert request_answer(asks, KINDS["iPXE on UEFI"], mac).file == f"{BASE_URLS['nginx']}/boot.ipxe"


def test_a_proxy_answers_only_the_fleet_if_its_operator_ignores_the_others(generated: Path, tmp_path: Path) -> None:
    kind = KINDS["iPXE on BIOS"]
    with (
        proxy_beside("dnsmasq", require_inline_code(PAGE, "dhcp-ignore=tag:!known"))(generated, tmp_path),
        client() as asks,
    ):
        ignored = asks.discover(kind, {OTHER_ADDRESS}, make_mac("stranger"))
        # dnsmasq answers one request after the other, so the first would have been answered by now.
        assert asks.discover(kind, {HOST, OTHER_ADDRESS}, make_mac("known")).keys() == {HOST, OTHER_ADDRESS}
        assert ignored.keys() == {OTHER_ADDRESS}
        assert "proxy-ignored" in (tmp_path / "proxy.log").read_text()


def test_a_proxy_answers_a_relay_for_a_network_that_its_configuration_names(generated: Path, tmp_path: Path) -> None:
    another = f"dhcp-range={RELAYED},proxy,255.255.255.0"
    with proxy_beside("dnsmasq", another)(generated, tmp_path), client() as asks:
        found = asks.discover_through_relay(KINDS["iPXE on UEFI"], HOST)
        assert (found.address, found.file) == (NOBODY, f"{BASE}/boot.ipxe")


def test_a_proxy_at_a_host_name_names_itself_to_clients_that_need_an_address(generated: Path, tmp_path: Path) -> None:
    base_url = f"http://{HOST_NAME}:8080"
    with proxy_beside("dnsmasq")(write_generated(generated, base_url=base_url), tmp_path), client() as asks:
        for name in ("BIOS", "UEFI x64", "iPXE on UEFI"):
            assert request_answer(asks, KINDS[name]).next_server == HOST, name
        kind = KINDS["iPXE on BIOS"]
        item = asks.request_boot_file(kind, asks.discover(kind, {HOST})[HOST])
        assert (item.next_server, item.file) == (HOST, f"{base_url}/boot.ipxe")


@pytest.mark.parametrize("name", DOCUMENTED_SERVERS)
def test_a_server_of_the_page_answers_each_kind_of_client(name: str, tmp_path: Path) -> None:
    with DOCUMENTED_SERVERS[name](tmp_path, tmp_path), client() as asks:
        for client_name, kind in KINDS.items():
            found = asks.discover(kind, {HOST})[HOST]
            assert found.address not in (NOBODY, ADDRESS), client_name
            check_boot_file(found, kind, client_name)


@pytest.mark.parametrize("name", ["dnsmasq", "Kea"])
def test_a_server_with_the_generated_files_of_the_page_answers_each_kind_of_client(name: str, tmp_path: Path) -> None:
    serve, output = {"dnsmasq": (dnsmasq, "dhcp-dnsmasq"), "Kea": (kea, "dhcp-kea")}[name]
    stranger, far = make_mac("stranger"), make_mac("far")
    with serve(write_generated(tmp_path, output), tmp_path, {stranger: "nginx"}), client() as asks:
        for client_name, kind in KINDS.items():
            found = asks.discover(kind, {HOST})[HOST]
            check_boot_file(found, kind, client_name)
        for mac in (stranger, far):  # by the page's line for a machine, and by a document
            script = asks.discover(KINDS["iPXE on UEFI"], {HOST}, mac)[HOST]
            assert script.file == f"{BASE_URLS['nginx']}/boot.ipxe"
        assert asks.discover(KINDS["UEFI x64"], {HOST}, far)[HOST].file == "loaders/grub-x86_64.efi"
