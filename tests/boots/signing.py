"""Signatures of EFI programs: keys of an operator, programs without a signature, and programs that were changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.boots.programs import program


class SigningKey(NamedTuple):
    """A key, and the certificate that firmware trusts."""

    key: Path
    certificate: Path

    @classmethod
    def create(cls, folder: Path, name: str) -> SigningKey:
        made = cls(folder / f"{name}.key", folder / f"{name}.pem")
        options = ("-newkey", "rsa:2048", "-noenc", "-days", "3650", "-subj", f"/CN={name}")
        files = ("-keyout", made.key, "-out", made.certificate)
        subprocess.run([program("openssl"), "req", "-x509", *options, *files], check=True, capture_output=True)
        return made

    def sign(self, unsigned: Path, made: Path) -> Path:
        files = ("--key", self.key, "--cert", self.certificate, "--output", made)
        subprocess.run([program("sbsign"), *files, unsigned], check=True, capture_output=True)
        return made


def without_signature(signed: Path, made: Path) -> Path:
    shutil.copy(signed, made)
    subprocess.run([program("sbattach"), "--remove", made], check=True, capture_output=True)
    return made


def changed(signed: Path, made: Path) -> Path:
    """Return a copy with other bytes in the middle, where a UKI has its kernel."""
    content = bytearray(signed.read_bytes())
    middle = len(content) // 2
    for place in range(middle, middle + 3):
        content[place] ^= 0xFF
    made.write_bytes(content)
    return made
