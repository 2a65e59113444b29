"""Boot scripts of iPXE, GRUB and PXELINUX: what they boot, how they reach the disk, and by what a server is found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings

from gitboot.errors import InvalidRepository
from gitboot.model.scalars import byte_orders
from gitboot.render.boot_files import render_fleet_files, render_idle_files, render_server_files
from gitboot.render.boot_script_parts import EFI_LOADERS, UNKNOWN_COMMENT, render_disk_boot
from gitboot.render.ipxe import render_by_serial
from gitboot.render.paths import File
from gitboot.resolve.fleet_decisions import decide, decide_all
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.server_decision import Decisions, list_idle_macs
from tests.helpers import hypothesis_strategies
from tests.helpers.cases import count_examples, for_each
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    decided,
    document,
    fleet,
    image,
    make_mac,
    make_uuid,
    policy,
    profile,
    repository,
    server,
)
from tests.helpers.hypothesis_strategies import GeneratedFleet
from tests.render.test_dhcp import decided as with_dhcp
from tests.render.test_dhcp import parse_elements, render_configuration
from tests.render.test_dhcp import server as described

NOW = at("20T22:00")
ALL = "outputs: [ipxe, grub, pxelinux]"
SHIM = "/EFI/debian/shimx64.efi"


def render_boot_scripts(
    spec: str, hardware: str = "", labels: str = "vendor: acme", unknown: str = "LocalDisk"
) -> dict[str, str]:
    made = f", hardware: [{hardware}]" if hardware else ""
    decisions = decided(
        fleet(f"baseURL: 'http://boot.test', {ALL}, unknownServers: {unknown}{made}"),
        server("web01", labels, spec),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web", often="Never"),
    )
    decision = decisions.servers["web01"]
    files = render_server_files(decisions, decision, make_plan(decision, NOW, None))
    found: dict[str, str] = {}
    for loader, expression in (("ipxe", r"v1/.*\.ipxe"), ("grub", r"v1/.*grub\.cfg"), ("pxelinux", r"pxelinux\.cfg")):
        for path in files:
            if re.search(expression, path):
                found[loader] = files[path].content.decode()
    return found


def test_exit_returns_to_the_firmware_at_once() -> None:
    found = render_boot_scripts("localDisk: Exit")
    assert "sanboot" not in found["ipxe"] and found["ipxe"].endswith("iseq ${platform} efi && exit 1 ||\nexit 0\n")
    assert found["grub"].endswith("\nexit\n") and "chainloader" not in found["grub"]
    assert "localboot -1" in found["pxelinux"]


def test_sanboot_boots_the_first_disk_under_uefi_too() -> None:
    found = render_boot_scripts("localDisk: Sanboot")["ipxe"]
    efi = found.index("iseq ${platform} efi && sanboot --no-describe --drive 0 ||")
    assert efi < found.index("exit 1") < found.index("sanboot --no-describe --drive 0x80 ||")


def test_a_path_is_tried_first_and_under_uefi_only() -> None:
    found = render_boot_scripts(f"localDisk: {SHIM}")
    assert r"iseq ${platform} efi && sanboot --no-describe --drive 0 --filename \EFI\debian\shimx64.efi ||" in (
        found["ipxe"].splitlines()
    )
    assert found["grub"].index(f'chainloader "{SHIM}"') < found["grub"].index("/EFI/$loader.efi")


def test_not_found_gives_no_boot_script_only_if_unknown_machines_have_none() -> None:
    assert render_boot_scripts("localDisk: NotFound", unknown="NotFound") == {}
    assert render_boot_scripts("localDisk: NotFound") == render_boot_scripts("")


def test_the_document_overrides_the_first_hardware_rule_that_sets_a_value() -> None:
    makes = (
        "{select: {matchLabels: {vendor: acme}}, loader: GRUB}, "
        "{select: {matchLabels: {vendor: acme}}, localDisk: Exit}, {select: All, localDisk: Sanboot}"
    )
    assert "sanboot" not in render_boot_scripts("", makes)["ipxe"]
    assert "sanboot" in render_boot_scripts("", makes, "vendor: other")["ipxe"]
    assert r"\EFI\debian" in render_boot_scripts(f"localDisk: {SHIM}", makes)["ipxe"]


def test_a_parked_server_and_a_stopped_one_boot_the_disk_in_the_same_way() -> None:
    found = render_disk_boot("boot/v1/boot/x/boot.ipxe", "web01", "stopped", "Exit")
    assert found is not None and "sanboot" not in found
    decisions = decided(
        fleet(),
        server("web01", spec="localDisk: Exit, lifecycle: Parked"),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web"),
    )
    files = render_server_files(decisions, decisions.servers["web01"], None)
    assert files and all(b"sanboot" not in file.content for file in files.values())


@for_each("word", ["exit", "EFI/x.efi", "/EFI/../x.efi", "/EFI/a b.efi", '/EFI/".efi', "/boot/x.efi"])
def test_an_invalid_way_to_the_local_disk_is_rejected(word: str) -> None:
    with pytest.raises(InvalidRepository, match="GB1032"):
        render_boot_scripts(f"localDisk: '{word}'")


def test_a_loader_that_is_not_published_is_rejected_where_it_is_named() -> None:
    documents = (image("i"), profile("web", "i"), policy("web"))
    only = "baseURL: 'http://boot.test', outputs: [ipxe]"
    for fleet_spec, spec, place in (
        (only, "loader: GRUB", "Server"),
        (f"{only}, hardware: [{{select: All, loader: GRUB}}]", "", "Fleet"),
    ):
        with pytest.raises(InvalidRepository) as raised:
            decide(repository(fleet(fleet_spec), server("web01", spec=spec), *documents))
        [problem] = raised.value.problems
        assert problem.code == "GB1044" and "outputs do not include grub" in problem.message, place


def test_a_fleet_may_use_both_loaders() -> None:
    nic = [{"mac": "52:54:00:00:00:01", "addresses": ["192.0.2.9"]}]
    other = [{"mac": "52:54:00:00:00:02"}]
    found = render_configuration(with_dhcp([described("a", nic, loader="GRUB"), described("b", other)]))
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
    classes = {each["name"]: each for each in parse_elements(found["kea-dhcp4-classes.json"])}
    assert "not member('gitboot_loader') and" in classes["gitboot_uefi_x86_64"]["test"]
    assert classes["gitboot_grub_uefi_x86_64"]["boot-file-name"] == "loaders/grub-x86_64.efi"
    [reserved] = [each for each in parse_elements(found["kea-dhcp4-reservations.json"]) if each["hostname"] == "a"]
    assert reserved["client-classes"] == ["gitboot_loader_grub"]


NOON = at("20T12:00")
FLEET = fleet("baseURL: 'http://boot.test', outputs: [ipxe, serial]")
BY_SERIAL = "boot/ipxe/serial/"


def render_files(spec: str) -> dict[str, File]:
    documents = (fleet("baseURL: 'http://boot.test', outputs: [ipxe, serial]"), server("web01", "role: web", spec))
    decisions = decide_all(repository(*documents, *SEED[2:])).decisions  # as an earlier version may have accepted it
    decision = decisions.servers["web01"]
    return render_server_files(decisions, decision, make_plan(decision, NOON, None))


@pytest.mark.parametrize("serial", ["4J8VM72", "CZ2D465CVF", "A.40-866_X", "jk" * 31 + "1"])
def test_a_serial_number_finds_the_same_boot_script_as_the_uuid(serial: str) -> None:
    files = render_files(f"serial: '{serial}'")
    assert files[f"{BY_SERIAL}{serial}"] == files[f"boot/ipxe/{make_uuid('web01')}"]
    assert b"boots flatcar-1" in files[f"{BY_SERIAL}{serial}"].content


def test_no_server_boots_by_serial_number_alone_if_its_image_requests_by_uuid() -> None:
    documents = (
        FLEET,
        server("web01", "role: web", "serial: 4J8VM72"),
        image("edge-1", "userData: Ignition/3.4, configFrom: SystemUUID", "uki"),
        profile("web", "edge-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
        SEED[-1],
    )
    decision = decided(*documents, files={"t": '{"ignition": {"version": "3.4.0"}}'}).servers["web01"]
    [(_, file)] = render_by_serial(decision, make_plan(decision, NOON, None))
    assert b"the image fetches its user data by UUID" in file.content
    assert b"kernel" not in file.content


def test_no_server_is_found_by_a_serial_number_unless_the_fleet_enables_it() -> None:
    decision = decided(SEED[0], server("web01", "role: web", "serial: 4J8VM72"), *SEED[2:])
    files = render_server_files(decision, decision.servers["web01"], make_plan(decision.servers["web01"], NOON, None))
    assert not [path for path in files if path.startswith(BY_SERIAL)]


@pytest.mark.parametrize("lifecycle", ["Parked", "Retired"])
def test_without_a_plan_a_serial_number_finds_a_script_for_the_local_disk(lifecycle: str) -> None:
    files = render_files(f"serial: 4J8VM72, lifecycle: {lifecycle}")
    assert b"The machine boots its local disk" in files[f"{BY_SERIAL}4J8VM72"].content


@for_each(
    "serial",
    [
        *("To be filled by O.E.M.", "Default string", "System Serial Number", "Not Specified", "N/A"),
        *("None", "UNKNOWN", "default", "Null", "0", "0000000000", "xxxxxxxx", "0123456789", "123456789", "1234567890"),
        *("SYS-1234567890", "SYS-9876543210", "01234567890123456789AB", "0123456789ABCDEF", "SN-12345", "0x00000000"),
        *(
            "SystemSerialNumb",
            "OEM_Serial",
            "EVAL",
            "XXXX-XXXX",
            "0000-0000-0000",
            "ToBeFilledByO.E.M.",
            "NotSpecified",
        ),
        *("a/b/c/d", "../../x", ".hidden", "with space", "ABC", "%41BCD", "j" * 65, "ÄÖÜß"),
    ],
)
def test_a_placeholder_or_invalid_serial_number_finds_no_server(serial: str) -> None:
    assert not [path for path in render_files(f"serial: '{serial}'") if path.startswith(BY_SERIAL)]


EVERY_LOOKUP = "baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux, uuid], unknownServers: {profile: repair}"


def render_tree(decisions: Decisions) -> dict[str, File]:
    files = render_fleet_files(decisions)
    for decision in decisions.servers.values():
        files |= render_server_files(decisions, decision, make_plan(decision, NOON, None))
        files |= render_idle_files(decisions.outputs, decision, list_idle_macs(decisions.networks[decision.server]))
    return files


@settings(max_examples=count_examples(40))
@given(made=hypothesis_strategies.fleets())
def test_every_interface_and_uuid_of_a_document_is_found_by_each_loader(made: GeneratedFleet) -> None:
    spec = made.of("Fleet")[0]["spec"] | {"outputs": ["ipxe", "grub", "pxelinux", "uuid", "serial"]}
    decisions = hypothesis_strategies.decided(
        made.replace_documents(hypothesis_strategies.document("Fleet", "test", spec)).documents
    )
    files = hypothesis_strategies.tree(decisions, made.records, made.at)
    for host in decisions.hosts:
        decision = decisions.servers[host.server]
        macs = decision.macs if decision.restrict else tuple(nic.mac for nic in host.nics)
        lookups = [f"boot/{lookup}-{mac}" for lookup in ("grub.cfg-01", "pxelinux.cfg/01") for mac in macs]
        for uuid in byte_orders(decision.uuid):
            lookups += [f"boot/grub.cfg-{uuid}", f"boot/ipxe/{uuid}"]
        if decision.serial is not None:
            lookups.append(f"boot/ipxe/serial/{decision.serial}")
        found = {lookup in files for lookup in lookups}
        assert found == {True} or (decision.restrict and found == {False}), host.server


def test_unknown_machines_boot_the_profile_by_the_architecture_of_grub() -> None:
    arm = image("memtest-7", "writesDisk: false").replace("x86_64: {", "aarch64: {")
    seed = (SEED[0], SEED[1], SEED[2], arm, *SEED[4:])
    text = render_fleet_files(decided(fleet(EVERY_LOOKUP), *seed[1:]))["boot/unknown.grub.cfg"].content.decode()
    condition, _, body = text.removeprefix(UNKNOWN_COMMENT).partition("\n")
    assert condition == 'if [ "$grub_cpu" = arm64 ]; then'
    assert "linux$efi '(http,boot.test)/assets/memtest-7/kernel'" in body
    assert "x86_64" not in text


def test_the_local_disk_is_tried_by_each_shim_before_any_grub_and_by_the_fallback_path_last() -> None:
    kinds = [path.rpartition("/")[2].partition("{")[0] for path in EFI_LOADERS]
    assert kinds == ["shim"] * kinds.count("shim") + ["grub"] * kinds.count("grub") + ["systemd-boot", "BOOT"]


@pytest.mark.skipif(
    shutil.which("grub-emu") is None and not os.environ.get("CI"), reason="grub-emu is missing (Debian: grub-emu)"
)
def test_grub_itself_tries_both_dialects_and_continues_if_it_has_neither(tmp_path: Path) -> None:
    # grub-emu has no Linux loader: each dialect fails at once, and the script runs to its end.
    text = render_tree(decided(*SEED))[f"boot/grub.cfg-01-{make_mac('web01').replace(':', '-')}"].content.decode()
    script = text.replace("sleep 5", "true").partition('if [ "$grub_platform"')[0] + "exit\n"
    folder = tmp_path / "grub"
    folder.mkdir()
    (folder / "grub.cfg").write_text(script)
    ran = subprocess.run(
        ["script", "--quiet", "--command", f"grub-emu -d {folder}", "/dev/null"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.stdout.count("can't find command `linux'") == 5
    assert ran.stdout.count("can't find command `linuxefi'") == 5
    assert "all 5 attempts failed. Booting the local disk." in ran.stdout


# The NIC that boots, in kernel arguments

BONDED = (
    f"uuid: {make_uuid('web01')}, architecture: x86_64, firmware: UEFI, "
    "interfaces: [{mac: '52:54:00:00:00:0a'}, {mac: '52:54:00:00:00:0b'}]"
)
NIC_PATHS = ("52-54-00-00-00-0a", "52-54-00-00-00-0b")
NIC_ARGUMENTS = "kernelArguments: ['BOOTIF={{ boot_nic.bootif }}', 'nic=of {{ boot_nic.mac }}', '---', quiet]"
NIC_OUTPUTS = "outputs: [ipxe, grub, pxelinux, uuid, bss], unknownServers: {profile: repair}"


def render_nic_files(
    arguments: str = NIC_ARGUMENTS, templates: str = "", *, unknown: str = "", files: dict[str, str] | None = None
) -> dict[str, str]:
    """The boot files of a server with two NICs and of unknown machines, by path below boot/."""
    documents = (
        fleet(f"baseURL: 'http://boot.test', {NIC_OUTPUTS}"),
        document("Server", "web01", BONDED),
        image("flatcar-1", "writesDisk: false, userData: Ignition/3.4"),
        image("memtest-7", "writesDisk: false"),
        profile("web", "flatcar-1", f"{arguments}{templates}"),
        profile("repair", "memtest-7", unknown),
        policy("web"),
    )
    found = render_tree(decided(*documents, files=files))
    boot = {path: file for path, file in found.items() if path.startswith("boot/")}
    return {path.removeprefix("boot/"): file.content.decode() for path, file in boot.items()}


def test_finding_p12_ipxe_names_the_nic_that_it_uses_in_every_script_of_a_server() -> None:
    files = render_nic_files()
    paths = [f"v1/boot/{mac}/boot.ipxe" for mac in NIC_PATHS] + [f"ipxe/{make_uuid('web01')}"]
    [script] = {files[path] for path in paths}
    kernel = 'initrd=initrd0 BOOTIF=01-${netX/mac:hexhyp} nic="of ${netX/mac}" --- quiet || goto failed\n'
    assert kernel in script


def test_finding_p12_pxelinux_names_the_nic_of_the_file() -> None:
    files = render_nic_files()
    for mac in NIC_PATHS:
        expected = f'  append BOOTIF=01-{mac} nic="of {mac.replace("-", ":")}" --- quiet\n'
        assert expected in files[f"pxelinux.cfg/01-{mac}"]


def test_finding_p12_pxelinux_adds_bootif_itself_for_an_unknown_machine_and_nothing_else() -> None:
    files = render_nic_files(unknown="kernelArguments: [quiet, 'BOOTIF={{ boot_nic.bootif }}', splash]")
    assert "  sysappend 2\n  append quiet splash\n" in files["pxelinux.cfg/default"]
    alone = render_nic_files(unknown="kernelArguments: ['BOOTIF={{ boot_nic.bootif }}']")["pxelinux.cfg/default"]
    assert "  sysappend 2\nlabel disk" in alone
    for other in ("BOOTIF={{ boot_nic.mac }}", "nic={{ boot_nic.bootif }}"):
        text = render_nic_files(unknown=f"kernelArguments: ['{other}']")["pxelinux.cfg/default"]
        assert "say gitboot: PXELINUX can pass an unknown machine's boot NIC only as BOOTIF\n" in text
        assert "linux" not in text and text.endswith("label disk\n  localboot 0\n")


def test_finding_p12_bss_parameters_are_the_command_line_with_the_nic_of_the_path() -> None:
    files = render_nic_files()
    for mac in NIC_PATHS:
        [found] = json.loads(files[f"v1/boot/{mac}/bootparameters.json"])
        assert found["params"] == f'BOOTIF=01-{mac} nic="of {mac.replace("-", ":")}" --- quiet'


def test_finding_p12_no_file_has_a_placeholder_and_a_boot_without_one_has_no_more_lines() -> None:
    unknown = "kernelArguments: ['BOOTIF={{ boot_nic.bootif }}']"
    files = render_nic_files(unknown=unknown)
    assert [path for path, text in files.items() if "boot_nic" in text] == []
    named = {path for path, text in files.items() if "BOOTIF" in text or "sysappend" in text}
    assert {"unknown.ipxe", "unknown.grub.cfg", f"grub.cfg-{make_uuid('web01')}"} < named
    plain = render_nic_files("kernelArguments: [quiet]")
    assert not any("gitboot_mac" in text or "netX/mac} " in text for text in plain.values())


NIC_GRUB = "{% raw %}# own{% endraw %}\nlinux /k {{ kernel_arguments | grub }} own={{ boot_nic.mac | grub }}\nboot\n"


@pytest.mark.skipif(
    shutil.which("grub-emu") is None and not os.environ.get("CI"), reason="grub-emu is missing (Debian: grub-emu)"
)
@for_each(
    ("default", "path", "mac"),
    [
        ("52:54:00:00:00:0b", f"v1/boot/{NIC_PATHS[0]}/grub.cfg", NIC_PATHS[1]),  # another NIC than the path's
        ("", f"v1/boot/{NIC_PATHS[0]}/grub.cfg", NIC_PATHS[0]),
        ("", f"grub.cfg-01-{NIC_PATHS[1]}", NIC_PATHS[1]),
        ("52:54:00:00:00:0b", f"grub.cfg-{make_uuid('web01')}", NIC_PATHS[1]),
        ("", f"grub.cfg-{make_uuid('web01')}", None),
        ("52:54:00:00:00:0c", "unknown.grub.cfg", "52-54-00-00-00-0c"),
    ],
)
def test_finding_p12_grub_itself_names_the_nic_that_it_uses(
    default: str, path: str, mac: str | None, tmp_path: Path
) -> None:
    # grub-emu has no network, whose variables are read-only, and no Linux loader.
    script = render_nic_files(unknown=NIC_ARGUMENTS)[path].replace("$net_default_mac", "$default")
    script = (
        script.replace("sleep 5", "true").partition('if [ "$grub_platform"')[0].replace("  if linux$efi", "  if echo")
    )
    said = _run_grub(f'grub_cpu=x86_64\ndefault="{default}"\n{script}\n', tmp_path)
    assert said.count("all 5 attempts failed") == 1
    if mac is None:
        assert said.count("GRUB did not find the MAC address of the boot NIC") == 1 and "BOOTIF" not in said
    else:
        assert said.count(f"BOOTIF=01-{mac} nic=of {mac.replace('-', ':')} --- quiet") == 10  # two dialects
        assert "GRUB did not find" not in said


def _run_grub(script: str, folder: Path) -> str:
    (folder / "grub").mkdir(exist_ok=True)
    (folder / "grub" / "grub.cfg").write_text(f"{script}exit\n")
    ran = subprocess.run(
        ["script", "--quiet", "--command", f"grub-emu -d {folder}/grub", "/dev/null"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return " ".join(ran.stdout.split())  # GRUB wraps lines


@pytest.mark.skipif(
    shutil.which("grub-script-check") is None and not os.environ.get("CI"), reason="grub-script-check is missing"
)
def test_finding_p12_grub_understands_every_configuration_that_names_the_nic(tmp_path: Path) -> None:
    files = render_nic_files(NIC_ARGUMENTS, ", templates: {grub: g}", unknown=NIC_ARGUMENTS, files={"g": NIC_GRUB})
    named = {path: text for path, text in files.items() if "gitboot_mac" in text}
    assert len(named) == 7  # two by each MAC address, two by UUID, and the one of unknown machines
    for text in named.values():
        (tmp_path / "grub.cfg").write_text(text)
        subprocess.run(["grub-script-check", str(tmp_path / "grub.cfg")], check=True)


def test_finding_p12_templates_of_the_fleet_name_the_nic_by_their_filter() -> None:
    own = {"g": NIC_GRUB, "i": "#!ipxe\nkernel /k {{ kernel_arguments | ipxe }} own={{ boot_nic.mac | ipxe }}\nboot\n"}
    files = render_nic_files(NIC_ARGUMENTS, ", templates: {grub: g, ipxe: i}", files=own)
    assert "BOOTIF=01-${netX/mac:hexhyp} " in files[f"ipxe/{make_uuid('web01')}"]
    assert files[f"ipxe/{make_uuid('web01')}"].endswith(" own=${netX/mac}\nboot\n")
    grub = files[f"v1/boot/{NIC_PATHS[0]}/grub.cfg"]
    assert grub.index('set gitboot_bootif="01-') < grub.index('# own\nlinux /k BOOTIF="$gitboot_bootif" ')
    assert '"52:54:00:00:00:0a"; do' in grub


IGNITION = '{"ignition": {"version": "3.4.0"}, "arguments": "%s"}\n'


@for_each(
    ("case", "files", "place", "message"),
    [
        (
            "a script of iPXE without the filter",
            {"i": "#!ipxe\nkernel /k\n# {{ boot_nic.mac }}\n"},
            "i:3",
            "a template for ipxe must apply the filter `ipxe` to `boot_nic` values",
        ),
        (
            "a configuration of GRUB with arguments for the kernel",
            {"g": "linux /k {{ kernel_arguments | kernel }}\n"},
            "g:1",
            "a template for grub must apply the filter `grub` to `boot_nic` values",
        ),
        (
            "user data",
            {"u": "\n" + IGNITION % "{{ boot_nic.bootif }}"},
            "u:2",
            "user data is the same for every NIC, so it cannot contain boot_nic.bootif; "
            "write {{ boot_nic.bootif }} in a kernel argument",
        ),
    ],
)
def test_finding_p12_a_text_that_no_loader_fills_in_is_refused_at_its_place(
    case: str, files: dict[str, str], place: str, message: str
) -> None:
    spec = {
        "i": ", templates: {ipxe: i}",
        "g": ", templates: {grub: g}",
        "u": ", userData: {format: Ignition/3.4, template: u}",
    }
    with pytest.raises(InvalidRepository) as caught:
        render_nic_files(NIC_ARGUMENTS, spec[place[0]], files=files)
    [problem] = caught.value.problems
    assert (f"{problem.path}:{problem.line}", problem.code) == (place, "GB2102"), case
    assert problem.message.removesuffix(" (web01)") == message


def test_finding_p12_user_data_sees_the_arguments_without_the_nic() -> None:
    files = render_nic_files(
        NIC_ARGUMENTS,
        ", userData: {format: Ignition/3.4, template: u}",
        files={"u": IGNITION % "{{ kernel_arguments | join(' ') }}"},
    )
    [data] = {text for path, text in files.items() if path.endswith("config.ign")}
    assert '"--- quiet"' in data


@for_each(
    "argument",
    ["BOOTIF={{ boot_nic.mac | replace(':', '-') }}", "{% filter upper %}a={{ boot_nic.mac }}{% endfilter %}"],
)
def test_finding_p12_an_argument_that_changes_the_nic_is_refused(argument: str) -> None:
    with pytest.raises(InvalidRepository) as caught:
        render_nic_files(f'kernelArguments: [quiet, "{argument}"]')
    [problem] = caught.value.problems
    assert (problem.code, "boot_nic" in problem.message) == ("GB2102", True)


@for_each("method", ["Pxe", "UefiHttp, httpBoot: uki", "VirtualMedia"])
def test_finding_p12_a_direct_boot_has_no_argument_with_the_nic(method: str) -> None:
    documents = (
        fleet(),
        document("Server", "web01", BONDED),
        image("flatcar-1", "writesDisk: false", "iso" if method == "VirtualMedia" else "uki"),
        profile("web", "flatcar-1", NIC_ARGUMENTS, method=method),
        policy("web"),
    )
    with pytest.raises(InvalidRepository) as caught:
        decided(*documents)
    assert "GB4003" in {problem.code for problem in caught.value.problems}


MAC = make_mac("web01").replace(":", "-")
OUTPUTS = "outputs: [pxelinux]"


def render_pxelinux(base: str = "http://boot.test", *, artifacts: str = "kernel, initrd", spec: str = "") -> list[str]:
    documents = (
        fleet(f"baseURL: '{base}', {OUTPUTS}"),
        server("web01", "role: web"),
        image("flatcar-1", "", artifacts),
        profile("web", "flatcar-1", spec),
        policy("web"),
    )
    decisions = decided(*documents)
    decision = decisions.servers["web01"]
    files = render_server_files(decisions, decision, make_plan(decision, at("20T12:00"), None))
    text = files[f"boot/pxelinux.cfg/01-{MAC}"].content.decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("base", "artifacts", "reason"),
    [
        ("https://boot.test", "kernel", "the boot files have https URLs, but PXELINUX can fetch only over http"),
        ("http://boot.test/a,b", "kernel, initrd", "PXELINUX cannot fetch an initrd whose URL contains a comma"),
        ("http://boot.test", "uki", "PXELINUX cannot boot flatcar-1. Firmware boots it directly."),
    ],
)
def test_a_boot_that_grub_cannot_start_is_reported_and_the_disk_boots(base: str, artifacts: str, reason: str) -> None:
    _, said, *rest = render_pxelinux(base, artifacts=artifacts)
    assert said == f"say gitboot: {reason}"
    assert rest == ["say gitboot: booting the local disk", "default disk", "prompt 0", "label disk", "  localboot 0"]


def test_a_comma_in_the_url_of_a_kernel_alone_does_no_harm() -> None:
    assert "  linux http://boot.test/a,b/assets/flatcar-1/kernel" in render_pxelinux(
        "http://boot.test/a,b", artifacts="kernel"
    )


@pytest.mark.parametrize(
    ("unknown", "architecture", "expected"),
    [
        ("LocalDisk", "x86_64", "default disk"),
        ("{profile: repair}", "x86_64", "linux http://boot.test/assets/memtest-7/kernel"),
        ("{profile: repair}", "aarch64", "default disk"),  # PXELINUX does not run on it
        ("NotFound", "x86_64", None),
    ],
)
def test_the_default_is_the_boot_of_unknown_machines(unknown: str, architecture: str, expected: str | None) -> None:
    spec = f"baseURL: 'http://boot.test', {OUTPUTS}, unknownServers: {unknown}"
    memtest = image("memtest-7", "writesDisk: false").replace("x86_64: {", f"{architecture}: {{")
    default = render_fleet_files(decided(fleet(spec), *SEED[1:3], memtest, *SEED[4:])).get("boot/pxelinux.cfg/default")
    lines = [line.strip() for line in default.content.decode().splitlines()] if default is not None else [None]
    assert expected in lines


# Signatures that iPXE verifies


def make_signed_image(artifacts: str, *, without: str = "") -> str:
    """Return an image with a signature for iPXE beside each file, except for the file ``without``."""

    def add(found: re.Match[str]) -> str:
        return found[0] if found[1] == without else f'{found[0]}, loaderSignature: "assets:flatcar-1/{found[1]}.sig"'

    return re.sub(rf'url: "assets:flatcar-1/(\w+)", sha256: {SHA}', add, image("flatcar-1", "", artifacts))


def render_ipxe(image_document: str, spec: str = "") -> list[str]:
    decisions = decided(fleet(), SEED[1], image_document, profile("web", "flatcar-1", spec), policy("web"))
    text = render_tree(decisions)[f"boot/v1/boot/{MAC}/boot.ipxe"].content.decode()
    return [line for line in text.splitlines() if not line.startswith(("#", "echo"))]


TRUST = (
    "imgtrust && set gitboot-verify imgverify || set gitboot-verify echo",
    "iseq ${gitboot-verify} echo && echo gitboot: this iPXE has no imgverify. It boots the files unverified. ||",
)
ASSETS = "http://boot.test/assets/flatcar-1"


def test_ipxe_verifies_the_kernel_and_each_initrd_before_it_boots_them() -> None:
    lines = render_ipxe(make_signed_image("kernel, initrd"))
    assert lines[: lines.index("boot || goto failed") + 1] == [
        *TRUST,
        "set attempt:int32 1",
        ":try",
        "imgfree",
        f"kernel --name kernel {ASSETS}/kernel initrd=initrd0 || goto failed",
        f"${{gitboot-verify}} kernel {ASSETS}/kernel.sig || goto failed",
        f"initrd --name initrd0 {ASSETS}/initrd || goto failed",
        f"${{gitboot-verify}} initrd0 {ASSETS}/initrd.sig || goto failed",
        "boot || goto failed",
    ]
    assert "imgtrust --allow ||" in lines, "a script that runs next has no signature"


def test_ipxe_verifies_a_uki() -> None:
    lines = render_ipxe(make_signed_image("uki"))
    assert lines[: lines.index("boot --name ${gitboot-none} || goto failed") + 1] == [
        *TRUST,
        "set attempt:int32 1",
        ":try",
        "imgfree",
        f"kernel --name uki {ASSETS}/uki || goto failed",
        f"${{gitboot-verify}} uki {ASSETS}/uki.sig || goto failed",
        "boot --name ${gitboot-none} || goto failed",
    ]


def test_a_signature_changes_the_digest_of_the_plan() -> None:
    """A published script with signatures must never be taken for one without."""

    def digest(image_document: str) -> str:
        decisions = decided(fleet(), SEED[1], image_document, profile("web", "flatcar-1"), policy("web"))
        plan = make_plan(decisions.servers["web01"], NOW, None)
        assert plan is not None
        return plan.digest

    assert digest(make_signed_image("kernel, initrd")) != digest(image("flatcar-1"))


@pytest.mark.parametrize(
    ("image_document", "message"),
    [
        (make_signed_image("kernel, initrd", without="initrd"), "only some of the files have a loaderSignature"),
        (make_signed_image("kernel, initrd", without="kernel"), "only some of the files have a loaderSignature"),
        (make_signed_image("kernel, initrd, uki", without="uki"), "only some of the files have a loaderSignature"),
        (
            make_signed_image("kernel, rootfs", without="kernel"),
            "the rootfs has a loaderSignature, but iPXE does not verify this file",
        ),
        (make_signed_image("iso"), "the iso has a loaderSignature, but iPXE does not verify this file"),
        (
            make_signed_image("uki").replace("assets:flatcar-1/uki.sig", f"oci://r.test/a@sha256:{SHA}"),
            "iPXE cannot fetch",
        ),
        (
            make_signed_image("uki").replace("assets:flatcar-1/uki.sig", "https://r.test/a.tar.gz#b"),
            "iPXE cannot fetch",
        ),
    ],
)
def test_a_signature_that_ipxe_would_not_use_is_an_error(image_document: str, message: str) -> None:
    with pytest.raises(InvalidRepository, match=message):
        decided(fleet(), SEED[1], image_document, profile("web", "flatcar-1"), policy("web"))
