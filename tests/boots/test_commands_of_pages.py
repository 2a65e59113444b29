"""The commands of the pages about loaders, Secure Boot and HTTPS, typed in a network without machines."""

from __future__ import annotations

import json
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest
import yaml

from tests.boots.debian import download, unpacked
from tests.boots.network import HOST, new_network
from tests.boots.programs import program
from tests.boots.signing import SigningKey
from tests.boots.test_https import enroll
from tests.docs.test_https import PAGE as HTTPS
from tests.docs.test_https import make_certificates
from tests.helpers.documentation import find_code_block, require_inline_code
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.running_instance import Repository, running

LOADERS: Final = "docs/reference/loaders.md"
SECURE_BOOT: Final = "docs/how-to/secure-boot.md"


class Packages(NamedTuple):
    """Packages of Debian, fetched before the network is cut off."""

    shim: Path  # an unpacked package, because shim-signed is not installed on this host
    grub: Path  # a folder with the file of grub-efi-amd64-signed of Debian 13


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    folder = tmp_path_factory.mktemp("packages")
    download("grub-efi-amd64-signed", "amd64", "trixie", folder)
    return Packages(unpacked("shim-signed", "amd64"), folder)


@pytest.fixture(scope="module", autouse=True)
def wire(packages: Packages) -> Iterator[None]:
    with new_network():
        yield


def words(block: str, places: Mapping[str, object]) -> list[str]:
    """Return the arguments of a command of gitboot, with each word of ``places`` replaced."""
    first, *arguments = shlex.split(block.replace("\\\n", " "))
    assert first == "gitboot"
    used = {name for name in places for word in arguments if word == name or word.startswith(f"{name}/")}
    assert used == set(places), block
    found = []
    for word in arguments:
        name = next((name for name in places if word == name or word.startswith(f"{name}/")), None)
        found.append(word if name is None else f"{places[name]}{word.removeprefix(name)}")
    return found


def type_command(block: str, places: Mapping[str, object]) -> str:
    done = run_forked(*words(block, places))
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


# Loaders


def test_loaders_are_placed_for_a_fleet_and_for_the_mirror_of_a_site(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"f.yaml": fleet(f"baseURL: 'http://{HOST}:8080'")})
    places = {"OUTPUT": tmp_path / "output", "/srv/tftp": tmp_path / "tftp", "FLEET": repository.work}
    type_command(find_code_block(LOADERS, "gitboot artifacts loaders --out OUTPUT/boot --tftp"), places)
    block = find_code_block(LOADERS, "gitboot artifacts loaders --out MIRROR")
    type_command(block, {"MIRROR": tmp_path / "mirror", "FLEET": repository.work})
    loaders = ("undionly.kpxe", "snponly-x86_64.efi", "grub-x86_64.efi", "lpxelinux.0", "ldlinux.c32")
    for folder in ("output/boot/assets", "tftp", "mirror/assets"):
        assert [name for name in loaders if not (tmp_path / folder / "loaders" / name).exists()] == []
    for folder, url in (("output/boot", f"(http,{HOST}:8080)"), ("mirror", "(http,192.0.2.2)")):
        assert url.encode() in (tmp_path / folder / "assets/loaders/grub-x86_64.efi").read_bytes()


# Secure Boot


def test_signed_loaders_are_placed_and_doctor_accepts_them(packages: Packages, tmp_path: Path) -> None:
    newer = tmp_path / "debian13"
    program("dpkg-deb")  # this fails if it is missing
    block = find_code_block(SECURE_BOOT, "dpkg-deb --extract").replace("/srv/debian13", str(newer))
    subprocess.run(["sh", "-euc", block], cwd=packages.grub, check=True)
    settings = yaml.safe_load(find_code_block(SECURE_BOOT, "spec:\n  outputs:"))["spec"]
    documents = (
        fleet(f"baseURL: 'http://{HOST}:8080', {json.dumps(settings)[1:-1]}"),
        server("web01", "vendor: acme"),
        server("web02", "vendor: other"),
        image("node-1"),
        profile("web", "node-1"),
        policy("web"),
    )
    repository = Repository.create(tmp_path / "git")
    repository.push({"f.yaml": "---\n".join(documents)})
    output = tmp_path / "output"
    shown = type_command(
        find_code_block(SECURE_BOOT, "gitboot artifacts loaders"),
        {
            "OUTPUT": output,
            "/srv/tftp": tmp_path / "tftp",
            "FLEET": repository.work,
            "/srv/debian13": newer,
            "/": packages.shim,
        },
    )
    for name in ("shimx64.efi", "grubx64.efi"):
        path = require_inline_code(SECURE_BOOT, f"loaders/{name}")
        assert f"placed {path}" in shown, shown
        assert (tmp_path / "tftp" / path).exists()
    kernel = output / "boot/assets/node-1/kernel"
    kernel.parent.mkdir()
    shutil.copy(output / "boot/assets/loaders/grubx64.efi", kernel)  # a program with a signature
    assets = require_inline_code(LOADERS, "--assets OUTPUT/boot/assets").replace("OUTPUT", str(output)).split()
    with running(repository.bare, tmp_path, "--listen", f"{HOST}:8080", *assets, records="fresh"):
        shown = run_forked(*words(find_code_block(SECURE_BOOT, "gitboot doctor"), {"STATE": tmp_path / "state"})).stdout
    assert "ok       Secure Boot  signatures found in 3 programs for servers with Secure Boot" in shown
    assert (output / "ops/dhcp/dnsmasq.conf").read_text().count("set:gitboot_loader_shim") == 1


def test_a_signature_is_valid_for_the_enrolled_certificate(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    key, other = SigningKey.create(tmp_path / "own"), SigningKey.create(tmp_path / "other")
    signed = key.sign(Path("/usr/lib/ipxe/snponly.efi"))
    enrolled = tmp_path / "enrolled.pem"
    how: list[str | Path] = [
        "openssl",
        "x509",
        "-inform",
        "DER",
        "-in",
        key.key.with_name("boot.cer"),
        "-out",
        enrolled,
    ]
    subprocess.run(how, check=True)
    command = [program("sbverify"), "--cert"]
    subprocess.run([*command, enrolled, signed], check=True)
    assert subprocess.run([*command, other.certificate, signed], check=False).returncode != 0


# HTTPS


def test_machines_are_served_by_https_and_doctor_accepts_the_certificate(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    base_url = yaml.safe_load(require_inline_code(HTTPS, "baseURL: https://192.0.2.1:8443"))["baseURL"]
    repository = Repository.create(tmp_path / "git")
    documents = (
        fleet(f"baseURL: '{base_url}'"),
        server("web01"),
        image("web-1"),
        profile("web", "web-1"),
        policy("web"),
    )
    repository.push({"f.yaml": "---\n".join(documents)})
    files = {name: tmp_path / name for name in ("machines.crt", "machines.key")}
    command, source, *options = words(find_code_block(HTTPS, "gitboot run"), files)
    assert (command, source) == ("run", "…")
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with running(repository.bare, tmp_path, *options, records="fresh"):
        for path, status in (("boot.ipxe", 200), ("metrics", 404)):
            assert httpx.get(f"{base_url}/{path}", verify=trusted).status_code == status
        assert httpx.get(f"http://{HOST}:8080/boot.ipxe").status_code == 200
        block = find_code_block(HTTPS, "gitboot doctor")
        places = {**files, "ca.pem": tmp_path / "ca.pem", "STATE": tmp_path / "state"}
        shown = " ".join(run_forked(*words(block, places)).stdout.split())
    expected = require_inline_code(HTTPS, "machines can use machines.crt for 192.0.2.1")
    assert expected.replace("machines.crt", str(files["machines.crt"])) in shown
    assert f"{base_url}/boot.ipxe can be fetched" in shown


def test_the_authority_becomes_a_signature_list_for_firmware(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "ca.pem").read_text())
    assert der in enroll((tmp_path / "ca.pem").read_text(), tmp_path).read_bytes()


def test_this_host_trusts_the_authority_after_the_command_of_the_page(tmp_path: Path) -> None:
    """The command runs in a mount namespace, in which the folders of the host are copies."""
    make_certificates(tmp_path)
    program("update-ca-certificates")  # this fails if it is missing
    prepare = """
        cp -a /etc/ssl ssl && mount --bind ssl /etc/ssl
        mkdir -p local && mount --bind local /usr/local/share/ca-certificates
    """
    verify = "openssl verify -CApath /etc/ssl/certs machines.crt"
    block = find_code_block(HTTPS, "cp ca.pem ")
    for typed, is_trusted in ((":", False), (block, True)):
        script = f"{prepare}\n{typed}\n{verify}"
        command = [program("unshare"), "--mount", "sh", "-euc", script]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_trusted, done.stdout + done.stderr
        shutil.rmtree(tmp_path / "ssl")
