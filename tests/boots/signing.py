"""Signatures of EFI programs: keys of an operator, programs without a signature, and programs that were changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from tests.boots.programs import program
from tests.helpers.documentation import find_code_block

PAGE: Final = "docs/how-to/secure-boot.md"


def _run_block(block: str, folder: Path) -> None:
    program(block.split()[0])  # this fails if it is missing
    subprocess.run(["sh", "-euc", block], cwd=folder, check=True, capture_output=True)


class SigningKey(NamedTuple):
    """A key, and the certificate that firmware trusts."""

    key: Path
    certificate: Path

    @classmethod
    def create(cls, folder: Path) -> SigningKey:
        """Create a key in an empty folder by the commands of the page."""
        _run_block(find_code_block(PAGE, "openssl req "), folder)
        assert (folder / "boot.cer").exists()
        return cls(folder / "boot.key", folder / "boot.pem")

    def sign(self, unsigned: Path) -> Path:
        """Sign a program by the command of the page."""
        folder = self.key.parent
        shutil.copy(unsigned, folder / "linux.efi")
        _run_block(find_code_block(PAGE, "sbsign "), folder)
        return folder / "linux-signed.efi"


def remove_signature(signed: Path, made: Path) -> Path:
    shutil.copy(signed, made)
    subprocess.run([program("sbattach"), "--remove", made], check=True, capture_output=True)
    return made


def tamper(signed: Path, made: Path) -> Path:
    """Return a copy with other bytes in the middle, where a UKI has its kernel."""
    content = bytearray(signed.read_bytes())
    middle = len(content) // 2
    for place in range(middle, middle + 3):
        content[place] ^= 0xFF
    made.write_bytes(content)
    return made
