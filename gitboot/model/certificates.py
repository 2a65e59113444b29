"""Certificates: read the expiry times and the public key of certificates in PEM files.

This module reads DER itself, because gitboot requires the library `cryptography` only for the extra `signing`.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]+)-----END")
_VERSION: Final = 0xA0  # the tag [0] of the version; certificates of version 1 do not have it
_UTC_TIME: Final = 0x17
_RSA_ENCRYPTION: Final = bytes.fromhex("06092a864886f70d010101")  # the OBJECT IDENTIFIER


def read_certificate_expiries(pem: bytes) -> tuple[datetime, ...]:
    """Return the expiry times of the certificates in a PEM file, in order, or () if a certificate is malformed."""
    try:
        return tuple(_read_not_after(a2b_base64(found)) for found in _PEM.findall(pem))
    except (ValueError, IndexError):
        return ()


def read_public_key(pem: bytes) -> bytes | None:
    """Return the SubjectPublicKeyInfo (DER) of the first certificate in a PEM file, or None if there is none."""
    found = _PEM.search(pem)
    try:
        der = a2b_base64(found[1]) if found is not None else b""
        offset = _find_end_offset(der, _find_end_offset(der, _find_validity(der)))  # validity, subject
        return der[offset : _find_end_offset(der, offset)]
    except (ValueError, IndexError):
        return None


def has_rsa_key(public_key: bytes) -> bool:
    """Return whether a SubjectPublicKeyInfo (DER) is an RSA key with which TLS can exchange keys (RFC 4055, 1.2)."""
    offset = _find_content_offset(public_key, 0)  # algorithm: OBJECT IDENTIFIER, parameters
    identifier = _find_content_offset(public_key, offset)
    return public_key[identifier : _find_end_offset(public_key, identifier)] == _RSA_ENCRYPTION


def _find_validity(der: bytes) -> int:
    """Return the offset of the Validity field in a DER certificate (RFC 5280, 4.1)."""
    offset = _find_content_offset(der, _find_content_offset(der, 0))  # Certificate, TBSCertificate
    if der[offset] == _VERSION:
        offset = _find_end_offset(der, offset)
    for _ in ("serialNumber", "signature", "issuer"):
        offset = _find_end_offset(der, offset)
    return offset


def _read_not_after(der: bytes) -> datetime:
    offset = _find_end_offset(der, _find_content_offset(der, _find_validity(der)))  # validity: notBefore, notAfter
    text = der[_find_content_offset(der, offset) : _find_end_offset(der, offset)].decode("ascii")
    if der[offset] == _UTC_TIME:
        text = f"{'19' if int(text[:2]) >= 50 else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _find_content_offset(der: bytes, offset: int) -> int:
    return offset + 2 + (der[offset + 1] & 0x7F if der[offset + 1] & 0x80 else 0)


def _find_end_offset(der: bytes, offset: int) -> int:
    begin, length = _find_content_offset(der, offset), der[offset + 1]
    return begin + (int.from_bytes(der[offset + 2 : begin]) if length & 0x80 else length)
