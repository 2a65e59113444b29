"""Certificates for one run, made by openssl; no key outlives the folder that it was made in."""

from __future__ import annotations

import ssl
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

_DAYS = 30
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Issued(NamedTuple):
    certificate: Path
    key: Path

    @property
    def context(self) -> ssl.SSLContext:
        """What a server presents it by."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self)
        return context


class Authority:
    """A certificate authority that lives in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._issued = 0
        self._key, self._certificate = directory / "ca.key", directory / "ca.pem"
        _openssl(
            *("req", "-x509", *_KEY, "-days", str(_DAYS), "-subj", "/CN=Test CA"),
            *("-addext", "keyUsage=critical,keyCertSign", "-keyout", self._key, "-out", self._certificate),
        )

    @property
    def pem(self) -> str:
        return self._certificate.read_text()

    def issue(self, name: str = "IP:127.0.0.1", *, days: int = _DAYS) -> Issued:
        """A certificate for a subject alternative name, and its key; of a negative number of days, it has expired."""
        self._issued += 1
        stem = self._directory / f"server{self._issued}"
        issued = Issued(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={name}\nbasicConstraints=critical,CA:FALSE\n")
        _openssl("req", "-new", *_KEY, "-subj", "/CN=BMC", "-keyout", issued.key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-days", str(days), "-extfile", extensions),
            *("-CA", self._certificate, "-CAkey", self._key, "-CAcreateserial", "-out", issued.certificate),
        )
        return issued

    def server_context(self, name: str = "IP:127.0.0.1", *, days: int = _DAYS) -> ssl.SSLContext:
        return self.issue(name, days=days).context


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def authority_until(end: datetime) -> str:
    """Return the certificate of an authority that is valid for ten days before ``end``, as PEM."""
    name, key = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")]), ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), end - timedelta(10), end
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
