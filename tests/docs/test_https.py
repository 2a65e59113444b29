"""The commands of the pages about HTTPS to machines and signatures for iPXE, as a reader types them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from tests.helpers.forked_commands import captured

DOCS: Final = Path(__file__).parents[2] / "docs"


PAGE: Final = "how-to/https-for-machines.md"


def list_blocks(page: str, heading: str) -> list[str]:
    """Return the indented code blocks of a section."""
    text = (DOCS / page).read_text()
    section = re.split(r"^#+ ", text.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return [dedent(found) for found in re.findall(r"(?<=\n\n)((?: {4,}\S.*\n)+)", section)]


def type_blocks(page: str, heading: str, program: str, folder: Path) -> None:
    """Run each block of a section that contains a program."""
    blocks = [each for each in list_blocks(page, heading) if program in each and "…" not in each]
    assert blocks
    for block in blocks:
        subprocess.run(["sh", "-euc", block], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Create ca.pem, machines.crt and machines.key as docs/how-to/https-for-machines.md describes it."""
    type_blocks(PAGE, "## Set it up", "openssl", folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("https")
    make_certificates(made)
    return made


def test_doctor_accepts_the_certificate_of_the_page(folder: Path) -> None:
    [block] = [each for each in list_blocks(PAGE, "## Set it up") if "doctor" in each]
    command, _, _ = block.partition(" --state STATE")  # there is no instance
    words = [str(folder / each) if each.endswith((".crt", ".key", ".pem")) else each for each in shlex.split(command)]
    done = captured(*words[1:])
    assert "machines can use" in " ".join(done.stdout.split()), done.stdout


def test_the_signatures_of_the_page_are_valid_for_their_files_alone(folder: Path) -> None:
    for name in ("vmlinuz", "initrd.img"):
        (folder / name).write_text(f"the content of {name}")
    type_blocks("how-to/verify-files-with-ipxe.md", "# Verify files with iPXE", "openssl", folder)

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
