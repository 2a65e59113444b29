"""Certificates for one test run, made by openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Authority:
    """A certificate authority that lives in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = directory / "ca.key"
        self._certificate = directory / "ca.pem"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", "/CN=Test CA", "-addext", "keyUsage=critical,keyCertSign"),
            *("-keyout", self._key, "-out", self._certificate),
        )

    @property
    def pem(self) -> str:
        return self._certificate.read_text()

    def issue(self, name: str = "IP:127.0.0.1") -> tuple[Path, Path]:
        """A certificate for a subject alternative name, and its key."""
        certificate, key = self._directory / "server.pem", self._directory / "server.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", "/CN=BMC", "-addext", f"subjectAltName={name}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-CA", self._certificate, "-CAkey", self._key, "-keyout", key, "-out", certificate),
        )
        return certificate, key

    def server_context(self, name: str = "IP:127.0.0.1") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name))
        return context


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
