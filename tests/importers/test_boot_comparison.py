"""`gitboot compare-old-system`: a web server that responds as matchbox, BSS, Cobbler and Ironic do, and a fleet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gitboot.importers.boot_comparison import ComparedMachine, OldBoot, parse_boot_script
from tests.helpers.artifact_servers import ArtifactServer, artifact_server
from tests.helpers.cases import for_each
from tests.helpers.http_peers import Authority
from tests.helpers.instance_with_bmcs import run_command

UUID = "4c4c4544-0034-4a10-8056-b9c04f4d3732"
MAC = "52:54:00:12:34:56"
DIGEST = "feed" * 16
FLEET = {
    "fleet.yaml": "kind: Fleet\nmetadata: {name: example}\nspec:\n  baseURL: http://boot.example.net\n",
    "image.yaml": f"""\
kind: BootImage
metadata: {{name: flatcar}}
spec:
  version: 1.0
  userData: Ignition/3.3
  architectures:
    x86_64:
      kernel: {{url: "assets:flatcar/vmlinuz", sha256: {DIGEST}}}
      initrds: [{{url: "assets:flatcar/image.cpio.gz", sha256: {DIGEST}}}]
""",
    "profile.yaml": """\
kind: BootProfile
metadata: {name: web}
spec:
  image: flatcar
  method: Pxe
  kernelArguments: [flatcar.first_boot=1, console=ttyS0]
  userData: {format: Ignition/3.3, template: web.ign.j2}
""",
    "policy.yaml": "kind: BootPolicy\nmetadata: {name: web}\nspec: {select: None, profile: web, networkBoot: Once}\n",
    "web01.yaml": f"""\
kind: Server
metadata: {{name: web01}}
spec:
  uuid: {UUID}
  architecture: x86_64
  firmware: UEFI
  lifecycle: Parked
  policy: web
  interfaces: [{{mac: "52:54:00:99:99:99"}}, {{mac: "{MAC}"}}]
""",
}
IGNITION = '{"ignition": {"version": "3.3.0"}}'
ASK = f"/ipxe?uuid={UUID}&mac=52-54-00-12-34-56&serial=&arch=x86_64"
SCRIPT = """\
#!ipxe
set data {url}/ignition?uuid=${{uuid}}
kernel /assets/flatcar/vmlinuz initrd=main flatcar.first_boot=1 {arguments} ignition.config.url=${{data}}
initrd --name main /assets/flatcar/image.cpio.gz
boot
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    for name, text in FLEET.items():
        (folder / name).write_text(text if name.endswith(".j2") else f"apiVersion: gitboot.dev/v1alpha1\n{text}")
    (folder / "web.ign.j2").write_text('{"ignition":{"version":"3.3.0"}}\n')
    return folder


@pytest.fixture
def old_server() -> Iterator[ArtifactServer]:
    with artifact_server() as served:
        yield served


def serve_old(old_server: ArtifactServer, arguments: str = "console=ttyS0", ignition: str = IGNITION) -> None:
    old_server.put(ASK, SCRIPT.format(arguments=arguments, url=old_server.url).encode())
    old_server.put(f"/ignition?uuid={UUID}", ignition.encode())


def compare(fleet: Path, old_server: ArtifactServer | str, code: int, *more: object) -> dict[str, Any]:
    url = old_server if isinstance(old_server, str) else old_server.url
    done = run_command("compare-old-system", fleet, "--old", url, "--as", "matchbox", "-o", "json", *more)
    assert done.code == code, done
    (item,) = done.json["items"]
    found: dict[str, Any] = item
    return found


def test_a_server_that_boots_the_same_is_equal_even_while_it_is_parked(fleet: Path, old_server: ArtifactServer) -> None:
    serve_old(old_server)
    assert compare(fleet, old_server, 0)["verdict"] == "equal"


@pytest.mark.parametrize(
    ("theirs", "ours", "code"),
    [
        ("BOOTIF=01-${netX/mac:hexhyp}", "BOOTIF={{ boot_nic.bootif }}", 0),
        ("BOOTIF=${mac}", "BOOTIF={{ boot_nic.mac }}", 0),
        ("BOOTIF=01-52-54-00-99-99-99", "BOOTIF={{ boot_nic.bootif }}", 0),
        ("BOOTIF=${mac}", "BOOTIF={{ boot_nic.bootif }}", 2),
        ("BOOTIF=01-52-54-00-77-77-77", "BOOTIF={{ boot_nic.bootif }}", 2),
    ],
)
def test_finding_p12_the_boot_nic_is_compared_however_it_is_named(
    fleet: Path, old_server: ArtifactServer, theirs: str, ours: str, code: int
) -> None:
    profile = fleet / "profile.yaml"
    profile.write_text(profile.read_text().replace("console=ttyS0", f"'{ours}'"))
    serve_old(old_server, theirs)
    assert compare(fleet, old_server, code)["verdict"] == ("differs" if code else "equal")


@pytest.mark.parametrize("ours", ["dyndbg=file x +p", 'dyndbg="file x +p"'])
def test_a_value_with_spaces_is_one_argument(fleet: Path, old_server: ArtifactServer, ours: str) -> None:
    profile = fleet / "profile.yaml"
    profile.write_text(profile.read_text().replace("console=ttyS0", f"'{ours}'"))
    serve_old(old_server, 'dyndbg="file x +p"')
    assert compare(fleet, old_server, 0)["verdict"] == "equal"
    serve_old(old_server, 'dyndbg="file y +p"')
    (difference,) = compare(fleet, old_server, 2)["differences"]
    assert (difference["old"], difference["gitboot"]) == ('dyndbg="file y +p"', 'dyndbg="file x +p"')


def test_a_difference_is_shown_with_both_values_and_the_exit_code_is_2(fleet: Path, old_server: ArtifactServer) -> None:
    serve_old(old_server, "console=ttyS1", '{"ignition": {"version": "3.3.0"}, "systemd": {}}')
    item = compare(fleet, old_server, 2)
    assert item["verdict"] == "differs"
    assert item["differences"] == [
        {"field": "arguments", "old": "console=ttyS1", "gitboot": "console=ttyS0"},
        {"field": "user data", "old": "49 bytes", "gitboot": "33 bytes"},
    ]


def test_a_secret_among_the_arguments_is_not_printed(fleet: Path, old_server: ArtifactServer) -> None:
    serve_old(old_server, "console=ttyS0 inst.rootpw=hunter2 root=http://u:hunter3@x/")
    for format in ("text", "markdown", "json"):
        done = run_command("compare-old-system", fleet, "--old", old_server.url, "--as", "matchbox", "-o", format)
        assert done.code == 2 and "inst.rootpw=" in done.out and "hunter" not in done.out + done.err
        if format == "text":
            assert max(map(len, done.out.splitlines())) <= 100


def test_a_server_that_the_old_system_does_not_know_is_missing(fleet: Path, old_server: ArtifactServer) -> None:
    assert compare(fleet, old_server, 2)["verdict"] == "missing"
    assert sum(old_server.asked.values()) == 2, "one request for each MAC address that boots"


@pytest.mark.parametrize("script", ["", "#!ipxe\nhalt\n", "#!ipxe\nchain /nowhere\n"])
def test_a_server_without_a_boot_is_missing_although_the_old_system_responds(
    fleet: Path, old_server: ArtifactServer, script: str
) -> None:
    old_server.put(ASK, script.encode())
    item = compare(fleet, old_server, 2)
    assert (item["verdict"], item["message"]) == ("missing", "the old system has no boot for this server")


@pytest.mark.parametrize(("redirects", "verdict"), [(1, "equal"), (3, "equal"), (4, "unknown"), (None, "unknown")])
def test_scripts_are_followed_up_to_the_limit(
    fleet: Path, old_server: ArtifactServer, redirects: int | None, verdict: str
) -> None:
    serve_old(old_server)
    boot = old_server.files[ASK]
    old_server.put(ASK, b"#!ipxe\nchain /1\n")
    for number in range(1, redirects or 1):
        old_server.put(f"/{number}", f"#!ipxe\nchain /{number + 1}\n".encode())
    old_server.put(f"/{redirects or 1}", boot if redirects else b"#!ipxe\nchain /1\n")
    item = compare(fleet, old_server, 0 if verdict == "equal" else 6)
    host = urlsplit(old_server.url).netloc
    too_many = f"the boot script of {host} loads another script more than 3 times"
    assert (item["verdict"], item["message"]) == (verdict, "" if verdict == "equal" else too_many)


def test_an_endless_chain_is_no_missing_boot_if_the_system_also_supports_http_boot(
    fleet: Path, old_server: ArtifactServer
) -> None:
    old_server.put(path := f"/ipxe/{UUID}", f"#!ipxe\nchain {path}\n".encode())
    assert compare(fleet, old_server, 6, "--as", "boot-operator")["verdict"] == "unknown"


def test_an_unreachable_old_system_proves_nothing_about_the_servers(fleet: Path) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        item = compare(fleet, f"http://127.0.0.1:{taken.getsockname()[1]}", 6)
    assert item["verdict"] == "unknown"


@pytest.mark.parametrize("status", [500, 302])
def test_an_error_of_the_old_system_is_not_a_difference(fleet: Path, old_server: ArtifactServer, status: int) -> None:
    old_server.statuses[ASK.replace("12-34-56", "99-99-99")] = status
    assert compare(fleet, old_server, 6)["verdict"] == "unknown"


def test_no_other_host_is_contacted_for_any_script(fleet: Path, old_server: ArtifactServer) -> None:
    with artifact_server() as other:
        old_server.put(ASK, f"#!ipxe\nchain {other.url}/next\n".encode())
        old_server.put(ASK.replace("12-34-56", "99-99-99"), f"#!ipxe\nkernel /k ks={other.url}/ks\nboot\n".encode())
        compare(fleet, old_server, 2)
        assert not other.asked


@pytest.mark.parametrize(
    "script",
    ["chain http://[::1/next\n", "kernel http://[::1/vmlinuz ks=http://[::1/ks\ninitrd http://[::1/initrd.img\nboot\n"],
)
def test_a_malformed_url_is_a_difference(fleet: Path, old_server: ArtifactServer, script: str) -> None:
    old_server.put(ASK, f"#!ipxe\n{script}".encode())
    item = compare(fleet, old_server, 2, "--contents")
    kernel = "http://[::1/vmlinuz" if "kernel" in script else "-"
    assert {"field": "kernel", "old": kernel, "gitboot": "http://boot.example.net/assets/flatcar/vmlinuz"} in (
        item["differences"]
    )


def test_an_old_system_with_tls_must_have_a_trusted_certificate(fleet: Path, tmp_path: Path) -> None:
    with artifact_server(Authority(tmp_path).server_context()) as old_server:
        serve_old(old_server)
        assert compare(fleet, old_server, 0, "--ca-bundle", tmp_path / "ca.pem")["verdict"] == "equal"
        assert compare(fleet, old_server, 6)["verdict"] == "unknown"


def test_many_servers_are_compared_at_once_and_listed_by_name(fleet: Path, old_server: ArtifactServer) -> None:
    text = (fleet / "web01.yaml").read_text()
    for number in range(2, 40):
        other = text.replace("web01", f"web{number:02}").replace("3732", f"{number:04}")
        other = other.replace("99:99:99", f"99:99:{number:02}").replace("12:34:56", f"12:34:{number:02}")
        (fleet / f"web{number:02}.yaml").write_text(other.replace("12:34:56", "12:34:99"))
    serve_old(old_server)
    done = run_command(
        "compare-old-system", fleet, "--old", old_server.url, "--as", "matchbox", "-o", "json", "--parallel", "8"
    )
    assert done.code == 2
    items = done.json["items"]
    assert [item["server"] for item in items] == [f"web{number:02}" for number in range(1, 40)]
    assert [item["verdict"] for item in items] == ["equal", *["missing"] * 38]
    only = run_command("compare-old-system", fleet, "--old", old_server.url, "--as", "matchbox", "--server", "web01")
    assert (only.code, only.out) == (0, "1 server: 1 equal\n")


@pytest.mark.parametrize(
    ("kernel", "more", "differs"),
    [
        (b"kernel", ["--contents"], set()),
        (b"kernel", [], {"kernel", "initrd"}),
        (b"another", ["--contents"], {"kernel"}),
        (None, ["--contents"], {"kernel"}),
    ],
    ids=["the same", "no caller waits", "another", "not there"],
)
def test_files_at_other_paths_are_compared_by_content(
    fleet: Path, old_server: ArtifactServer, kernel: bytes | None, more: list[str], differs: set[str]
) -> None:
    # As Ironic serves them: a copy for each node.
    text = (fleet / "image.yaml").read_text()
    for content in (b"kernel", b"initrd"):
        text = text.replace(DIGEST, sha256(content).hexdigest(), 1)
    (fleet / "image.yaml").write_text(text)
    script = SCRIPT.format(arguments="console=ttyS0", url=old_server.url).replace("/assets/flatcar/", "/1be26c0b/")
    old_server.put(ASK, script.encode())
    old_server.put(f"/ignition?uuid={UUID}", IGNITION.encode())
    old_server.put("/1be26c0b/image.cpio.gz", b"initrd")
    if kernel is not None:
        old_server.put("/1be26c0b/vmlinuz", kernel)
    assert {each["field"] for each in compare(fleet, old_server, 2 if differs else 0, *more)["differences"]} == differs


def test_a_missing_file_does_not_equal_an_empty_file(fleet: Path, old_server: ArtifactServer) -> None:
    image = fleet / "image.yaml"
    image.write_text(image.read_text().replace(DIGEST, sha256(b"").hexdigest()))
    script = SCRIPT.format(arguments="console=ttyS0", url=old_server.url).replace("/assets/flatcar/", "/1be26c0b/")
    old_server.put(ASK, script.encode())
    old_server.put(f"/ignition?uuid={UUID}", IGNITION.encode())
    old_server.put("/1be26c0b/image.cpio.gz", b"")
    assert [each["field"] for each in compare(fleet, old_server, 2, "--contents")["differences"]] == ["kernel"]


def test_an_endless_response_is_cut_off(fleet: Path, old_server: ArtifactServer) -> None:
    old_server.put(ASK.replace("12-34-56", "99-99-99"), b"#" * ((1 << 20) + 1))
    assert "more than" in compare(fleet, old_server, 6)["message"]


# Scripts as the projects' own tests and documentation have them, in our words.

WEB01 = ComparedMachine(name="web01", uuid=UUID, macs=(MAC,), serial="4J8VM72")


@for_each(
    ("script", "kernel", "initrds", "arguments"),
    [
        pytest.param(
            "#!ipxe\nkernel /image/kernel a=b c\ninitrd /image/one /image/two \nboot\n",
            "http://old/image/kernel",
            ("http://old/image/one", "http://old/image/two"),
            ("a=b", "c"),
            id="matchbox",
        ),
        pytest.param(
            "#!ipxe\nkernel --name kernel https://k.example/k initrd=initrd p1,p2 xname=x0 || goto boot_retry\n"
            "initrd --name initrd https://k.example/i || goto boot_retry\nboot || goto boot_retry\n"
            ":boot_retry\nsleep 30\nchain https://gw/boot/v1/bootscript?mac=02:0b&retry=1\n",
            "https://k.example/k",
            ("https://k.example/i",),
            ("p1,p2", "xname=x0"),
            id="BSS",
        ),
        pytest.param(
            "#!ipxe\nset base http://old/osie\nkernel ${base}/vmlinuz-x86_64 worker=${mac} \\\nconsole=tty0\n"
            "initrd ${base}/initramfs\nboot\n",
            "http://old/osie/vmlinuz-x86_64",
            ("http://old/osie/initramfs",),
            (f"worker={MAC}", "console=tty0"),
            id="variables and a continued line",
        ),
        pytest.param(
            ":web01\nkernel /images/d/vmlinuz   initrd=initrd.magic\ninitrd /images/d/initrd\nboot\n",
            "http://old/images/d/vmlinuz",
            ("http://old/images/d/initrd",),
            (),
            id="Cobbler",
        ),
        pytest.param(
            "#!ipxe\nset a 1 ; kernel /k a=${a} b=#2 # the kernel\nimgfetch --name i /i || shell ; boot\n",
            "http://old/k",
            ("http://old/i",),
            ("a=1", "b=#2"),
            id="comments and several commands in a line",
        ),
        pytest.param("#!ipxe\nset v x;#y\nkernel /k v=${v}\nboot\n", "http://old/k", (), ("v=x;#y",), id="no comment"),
        pytest.param("#!ipxe\nexit\nkernel /k\nboot\n", None, (), (), id="the disk"),
        pytest.param(
            "#!ipxe\nset i:int32 0\n:retry_kernel\nkernel /k a=1 && goto download || iseq ${i} 9 && goto failed || "
            "inc i && echo retry ; sleep 2 ; goto retry_kernel\n:download\n:retry_initrd\n"
            "initrd /i && goto boot || inc i && sleep 2 ; goto retry_initrd\n:boot\nboot || goto failed\n"
            ":failed\nexit\n",
            "http://old/k",
            ("http://old/i",),
            ("a=1",),
            id="Smee",
        ),
        pytest.param(
            "#!ipxe\niseq ${platform} efi && kernel /efi || kernel /bios\nboot\n",
            "http://old/efi",
            (),
            (),
            id="a condition before the kernel",
        ),
        pytest.param(
            "#!ipxe\niseq ${buildarch} arm64 && set arch arm64 || set arch amd64\nkernel /k-${arch}\nboot\n",
            "http://old/k-amd64",
            (),
            (),
            id="a condition before a variable",
        ),
        pytest.param(
            "#!ipxe\nisset ${next} && goto other || goto none ||\nprompt --timeout 1 Shell? && goto other ||\n"
            "isset ${uuid} && goto web\n:other\nkernel /other\nboot\n:web\nkernel /web\nboot\n",
            "http://old/web",
            (),
            (),
            id="conditions before labels",
        ),
    ],
)
def test_a_script_is_parsed_as_ipxe_does(
    script: str, kernel: str | None, initrds: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    boot = parse_boot_script(script, "http://old/x/y", WEB01.list_variables(MAC))
    assert (boot.kernel, boot.initrds, boot.arguments, boot.chain) == (kernel, initrds, arguments, None)


@for_each(
    ("shape", "url"),
    [
        ("matchbox", f"ipxe?uuid={UUID}&mac=52-54-00-12-34-56&serial=4J8VM72&arch=x86_64"),
        ("openchami", f"boot/v1/bootscript?mac={MAC}"),
        ("tinkerbell", f"{MAC}/auto.ipxe"),
        ("cobbler", "cblr/svc/op/ipxe/system/web01"),
        ("ironic", "pxelinux.cfg/52-54-00-12-34-56"),
        ("boot-operator", f"ipxe/{UUID}"),
    ],
)
def test_each_system_has_its_own_paths(shape: str, url: str) -> None:
    assert WEB01.list_script_urls("http://old/", shape) == (f"http://old/{url}",)


# As Ironic 39's conductor wrote it for a node of the ramdisk deploy interface, without unreachable parts.
IRONIC = """\
#!ipxe
set i:int32 0
goto boot_ramdisk
:deploy
imgfree
kernel  selinux=0 quiet BOOTIF=${mac} initrd=deploy_ramdisk || goto retry
initrd  || goto retry
boot
:retry
iseq ${i} 10 && goto fail ||
inc i
goto boot_ramdisk
:boot_ramdisk
imgfree
kernel http://old/NODE/kernel root=/dev/ram0 text quiet ipa-global-request-id=req-1 initrd=ramdisk || goto boot_ramdisk
initrd http://old/NODE/ramdisk || goto boot_ramdisk
boot
:boot_whole_disk
sanboot --no-describe || exit 0
"""


def test_a_script_is_parsed_from_the_label_that_it_goes_to() -> None:
    found = parse_boot_script(IRONIC, "http://old/pxelinux.cfg/x", {})
    assert (found.kernel, found.initrds) == ("http://old/NODE/kernel", ("http://old/NODE/ramdisk",))
    assert found.arguments == ("root=/dev/ram0", "text", "quiet", "ipa-global-request-id=req-1")
    assert (
        parse_boot_script(
            IRONIC.replace("goto boot_ramdisk\n:deploy", "goto boot_whole_disk\n:deploy"), "http://old/", {}
        )
        == OldBoot()
    )


def test_a_script_with_a_loop_ends() -> None:
    assert (
        parse_boot_script("#!ipxe\n:a\ngoto b\n:b\ngoto a\nkernel /k\nboot\n", "http://old/", {}).kernel
        == "http://old/k"
    )
