"""Certificates: read the expiry times and the public key of certificates in PEM files.

This module reads DER itself, because gitboot requires the library `cryptography` only for the extra `signing`.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]+)-----END")
_VERSION_TAG: Final = 0xA0  # the tag [0] of the version; certificates of version 1 do not have it
_UTC_TIME_TAG: Final = 0x17
_RSA_ENCRYPTION_OID: Final = bytes.fromhex("06092a864886f70d010101")  # the OBJECT IDENTIFIER


def read_certificate_expiries(pem: bytes) -> tuple[datetime, ...] | None:
    """Return the expiry times of the certificates in a PEM file, in order, or None if a certificate is malformed."""
    try:
        return tuple(_read_not_after(a2b_base64(match)) for match in _PEM.findall(pem))
    except (ValueError, IndexError):
        return None


def read_public_key(pem: bytes) -> bytes | None:
    """Return the SubjectPublicKeyInfo (DER) of the first certificate in a PEM file.

    Return None if there is no certificate, or if the certificate is malformed.
    """
    if (match := _PEM.search(pem)) is None:
        return None
    try:
        der = a2b_base64(match[1])
        subject_offset = _find_end_offset(der, _find_validity(der))
        key_offset = _find_end_offset(der, subject_offset)
        return der[key_offset : _find_end_offset(der, key_offset)]
    except (ValueError, IndexError):
        return None


def is_rsa_key(public_key: bytes) -> bool:
    """Return whether a SubjectPublicKeyInfo (DER) is an RSA key with which TLS can exchange keys (RFC 4055, 1.2).

    The function does not accept RSASSA-PSS keys, because they can only sign. A malformed key is not an RSA key.
    """
    try:
        algorithm_offset = _find_content_offset(public_key, 0)
        identifier_offset = _find_content_offset(public_key, algorithm_offset)
        return public_key[identifier_offset : _find_end_offset(public_key, identifier_offset)] == _RSA_ENCRYPTION_OID
    except IndexError:
        return False


def _find_validity(der: bytes) -> int:
    """Return the offset of the Validity field in a DER certificate (RFC 5280, 4.1)."""
    offset = _find_content_offset(der, _find_content_offset(der, 0))  # Certificate, TBSCertificate
    if der[offset] == _VERSION_TAG:
        offset = _find_end_offset(der, offset)
    for _ in ("serialNumber", "signature", "issuer"):
        offset = _find_end_offset(der, offset)
    return offset


def _read_not_after(der: bytes) -> datetime:
    """Return the time after which a DER certificate is invalid.

    A UTCTime has two digits of the year. Years from 50 are in the 1900s (RFC 5280, 4.1.2.5.1).
    """
    not_before_offset = _find_content_offset(der, _find_validity(der))
    not_after_offset = _find_end_offset(der, not_before_offset)
    text = der[_find_content_offset(der, not_after_offset) : _find_end_offset(der, not_after_offset)].decode("ascii")
    if der[not_after_offset] == _UTC_TIME_TAG:
        text = f"{'19' if int(text[:2]) >= 50 else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _find_content_offset(der: bytes, offset: int) -> int:
    """Return the offset of the content of the DER element that begins at ``offset`` (X.690, 8.1)."""
    length = der[offset + 1]
    length_bytes = length & 0x7F if length & 0x80 else 0
    return offset + 2 + length_bytes


def _find_end_offset(der: bytes, offset: int) -> int:
    """Return the offset after the DER element that begins at ``offset``. Raises IndexError if the DER is shorter."""
    begin = _find_content_offset(der, offset)
    length = der[offset + 1]
    end = begin + (int.from_bytes(der[offset + 2 : begin]) if length & 0x80 else length)
    if end > len(der):
        raise IndexError("the DER element is truncated")
    return end
