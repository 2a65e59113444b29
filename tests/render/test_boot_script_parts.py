"""What is different for machines of some make: how loaders hand over to their disks, and which loader DHCP names."""

from __future__ import annotations

import re

import pytest

from gitboot.errors import InvalidRepository
from gitboot.render.boot_files import server_files
from gitboot.render.boot_script_parts import sent_to_disk
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import plan
from tests.helpers.cases import for_each
from tests.helpers.fleets import at, decided, fleet, image, policy, profile, repository, server
from tests.render.test_dhcp import configuration, elements
from tests.render.test_dhcp import decided as with_dhcp
from tests.render.test_dhcp import server as described

NOW = at("20T22:00")
ALL = "outputs: [ipxe, grub, pxelinux]"
SHIM = "/EFI/debian/shimx64.efi"


def entries(spec: str, hardware: str = "", labels: str = "vendor: acme", unknown: str = "LocalDisk") -> dict[str, str]:
    made = f", hardware: [{hardware}]" if hardware else ""
    decisions = decided(
        fleet(f"baseURL: 'http://boot.test', {ALL}, unknownServers: {unknown}{made}"),
        server("web01", labels, spec),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web", often="Never"),
    )
    decision = decisions.servers["web01"]
    files = server_files(decisions, decision, plan(decision, NOW, None))
    found: dict[str, str] = {}
    for loader, expression in (("ipxe", r"v1/.*\.ipxe"), ("grub", r"v1/.*grub\.cfg"), ("pxelinux", r"pxelinux\.cfg")):
        for path in files:
            if re.search(expression, path):
                found[loader] = files[path].content.decode()
    return found


def test_without_a_word_each_loader_does_what_suits_most() -> None:
    found = entries("")
    assert "iseq ${platform} efi && exit 1" in found["ipxe"] and "sanboot" in found["ipxe"]
    assert "/EFI/$loader.efi" in found["grub"]
    assert "localboot 0" in found["pxelinux"]


def test_exit_leaves_at_once() -> None:
    found = entries("localDisk: Exit")
    assert "sanboot" not in found["ipxe"] and found["ipxe"].endswith("iseq ${platform} efi && exit 1 ||\nexit 0\n")
    assert found["grub"].endswith("\nexit\n") and "chainloader" not in found["grub"]
    assert "localboot -1" in found["pxelinux"]


def test_sanboot_boots_the_first_disk_under_uefi_too() -> None:
    found = entries("localDisk: Sanboot")["ipxe"]
    efi = found.index("iseq ${platform} efi && sanboot --no-describe --drive 0 ||")
    assert efi < found.index("exit 1") < found.index("sanboot --no-describe --drive 0x80 ||")


def test_a_path_is_tried_first_and_only_under_uefi() -> None:
    found = entries(f"localDisk: {SHIM}")
    assert r"iseq ${platform} efi && sanboot --no-describe --drive 0 --filename \EFI\debian\shimx64.efi ||" in (
        found["ipxe"].splitlines()
    )
    assert found["grub"].index(f'chainloader "{SHIM}"') < found["grub"].index("/EFI/$loader.efi")


def test_not_found_has_no_script_only_where_unknown_machines_have_none() -> None:
    assert entries("localDisk: NotFound", unknown="NotFound") == {}
    assert entries("localDisk: NotFound") == entries("")


def test_the_document_wins_over_the_first_make_that_says_something() -> None:
    makes = (
        "{select: {matchLabels: {vendor: acme}}, loader: GRUB}, "
        "{select: {matchLabels: {vendor: acme}}, localDisk: Exit}, {select: All, localDisk: Sanboot}"
    )
    assert "sanboot" not in entries("", makes)["ipxe"]
    assert "sanboot" in entries("", makes, "vendor: other")["ipxe"]
    assert r"\EFI\debian" in entries(f"localDisk: {SHIM}", makes)["ipxe"]


def test_a_parked_server_and_a_stop_go_the_same_way() -> None:
    found = sent_to_disk("boot/v1/boot/x/boot.ipxe", "web01", "stopped", "Exit")
    assert found is not None and "sanboot" not in found
    decisions = decided(
        fleet(),
        server("web01", spec="localDisk: Exit, lifecycle: Parked"),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web"),
    )
    files = server_files(decisions, decisions.servers["web01"], None)
    assert files and all(b"sanboot" not in file.content for file in files.values())


@for_each("word", ["exit", "EFI/x.efi", "/EFI/../x.efi", "/EFI/a b.efi", '/EFI/".efi', "/boot/x.efi"])
def test_what_is_no_way_to_a_disk_is_refused(word: str) -> None:
    with pytest.raises(InvalidRepository, match="GB1032"):
        entries(f"localDisk: '{word}'")


def test_a_loader_that_is_not_published_is_refused_where_it_is_named() -> None:
    documents = (image("i"), profile("web", "i"), policy("web"))
    only = "baseURL: 'http://boot.test', outputs: [ipxe]"
    for fleet_spec, spec, place in (
        (only, "loader: GRUB", "Server"),
        (f"{only}, hardware: [{{select: All, loader: GRUB}}]", "", "Fleet"),
    ):
        with pytest.raises(InvalidRepository) as raised:
            decide(repository(fleet(fleet_spec), server("web01", spec=spec), *documents))
        [problem] = raised.value.problems
        assert problem.code == "GB1044" and "grub is not among the outputs" in problem.message, place


def test_both_loaders_are_named_in_one_fleet() -> None:
    nic = [{"mac": "52:54:00:00:00:01", "addresses": ["192.0.2.9"]}]
    other = [{"mac": "52:54:00:00:00:02"}]
    found = configuration(with_dhcp([described("a", nic, loader="GRUB"), described("b", other)]))
    lines = found["dnsmasq.conf"].splitlines()
    assert "dhcp-host=52:54:00:00:00:01,set:gitboot_loader,set:gitboot_loader_grub,192.0.2.9,a" in lines
    most = (
        "dhcp-boot=tag:!gitboot_ipxe,tag:!gitboot_loader,tag:gitboot_uefi_x86_64,loaders/snponly-x86_64.efi,,192.0.2.1"
    )
    grub = (
        "dhcp-boot=tag:!gitboot_ipxe,tag:gitboot_loader_grub,tag:gitboot_uefi_x86_64,loaders/grub-x86_64.efi,,192.0.2.1"
    )
    bios = "dhcp-boot=tag:!gitboot_ipxe,tag:gitboot_loader_grub,tag:gitboot_bios,loaders/undionly.kpxe,,192.0.2.1"
    assert {most, grub, bios} <= set(lines), "BIOS has no GRUB that is placed"
    classes = {each["name"]: each for each in elements(found["kea-dhcp4-classes.json"])}
    assert "not member('gitboot_loader') and" in classes["gitboot_uefi_x86_64"]["test"]
    assert classes["gitboot_grub_uefi_x86_64"]["boot-file-name"] == "loaders/grub-x86_64.efi"
    [reserved] = [each for each in elements(found["kea-dhcp4-reservations.json"]) if each["hostname"] == "a"]
    assert reserved["client-classes"] == ["gitboot_loader_grub"]


def test_a_fleet_in_which_nobody_wants_another_is_told_nothing_of_loaders() -> None:
    found = configuration(with_dhcp([described("b", [{"mac": "52:54:00:00:00:02"}])]))
    assert "gitboot_loader" not in "".join(found.values())
