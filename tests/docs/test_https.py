"""The commands of the pages about HTTPS to machines and signatures for iPXE, as a reader types them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.documentation import find_code_block
from tests.helpers.forked_commands import run_forked
from tests.helpers.http_peers import Authority

PAGE: Final = "docs/how-to/https-for-machines.md"
VERIFY_PAGE: Final = "docs/how-to/verify-files-with-ipxe.md"


def type_block(block: str, folder: Path) -> None:
    subprocess.run(["sh", "-euc", block], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Create ca.pem, machines.crt and machines.key as docs/how-to/https-for-machines.md describes it."""
    type_block(find_code_block(PAGE, "openssl req "), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("https")
    make_certificates(made)
    return made


def test_doctor_accepts_the_certificate_of_the_page(folder: Path) -> None:
    command = find_code_block(PAGE, "gitboot doctor").replace(" --state STATE", "")  # there is no instance
    words = [
        str(folder / each) if each.endswith((".crt", ".key", ".pem")) else each
        for each in shlex.split(command.replace("\\\n", " "))
    ]
    done = run_forked(*words[1:])
    assert "machines can use" in " ".join(done.stdout.split()), done.stdout


def test_a_key_of_any_kind_is_accepted_after_the_suites_of_firmware_are_off(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue()  # with an EC key
    own = f"machines-tls = ['0.0.0.0:8443', '{issued.certificate}', '{issued.key}']\n"
    for settings, expected in (
        ("", "firmware cannot use"),
        (find_code_block(PAGE, "firmware-ciphers"), "machines can use"),
    ):
        (tmp_path / "gitboot.toml").write_text(own + settings)
        done = run_forked("doctor", "--config", tmp_path / "gitboot.toml")
        assert expected in " ".join(done.stdout.split()), done.stdout


def test_the_signatures_of_the_page_are_valid_for_their_files_alone(folder: Path) -> None:
    for name in ("vmlinuz", "initrd.img"):
        (folder / name).write_text(f"the content of {name}")
    type_block(find_code_block(VERIFY_PAGE, "openssl req "), folder)
    type_block(find_code_block(VERIFY_PAGE, "for file in "), folder)

    def verifies(content: str, signature: str) -> bool:
        how = ("-binary", "-inform", "DER", "-CAfile", "ca.pem", "-purpose", "any")
        command = ["openssl", "cms", "-verify", *how, "-content", content, "-in", signature]
        return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0

    assert verifies("vmlinuz", "vmlinuz.sig")
    assert verifies("initrd.img", "initrd.img.sig")
    assert not verifies("initrd.img", "vmlinuz.sig")
    command = ["openssl", "x509", "-in", "sign.pem", "-noout", "-ext", "keyUsage,extendedKeyUsage"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert "Digital Signature" in shown and "Code Signing" in shown
