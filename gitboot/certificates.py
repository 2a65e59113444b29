"""When the X.509 certificates in a PEM file end, which Python's ssl shows only of peers."""

from __future__ import annotations

import re
from binascii import a2b_base64
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]+)-----END")
_VERSION: Final = 0xA0  # [0], which certificates of version 1 do not have
_UTC_TIME: Final = 0x17


def certificate_ends(pem: bytes) -> tuple[datetime, ...]:
    """Return when each certificate of a file ends, in the order of the file; nothing if one of them is none."""
    try:
        return tuple(_not_after(a2b_base64(found)) for found in _PEM.findall(pem))
    except (ValueError, IndexError):
        return ()


def _not_after(der: bytes) -> datetime:
    """Return when a certificate ends: RFC 5280, 4.1."""
    at = _content(der, _content(der, 0))  # Certificate, TBSCertificate
    if der[at] == _VERSION:
        at = _end(der, at)
    for _ in ("serialNumber", "signature", "issuer"):
        at = _end(der, at)
    at = _end(der, _content(der, at))  # validity: notBefore, notAfter
    text = der[_content(der, at) : _end(der, at)].decode("ascii")
    if der[at] == _UTC_TIME:
        text = f"{'19' if int(text[:2]) >= 50 else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(der: bytes, at: int) -> int:
    """Return where the content of the element at an offset begins."""
    return at + 2 + (der[at + 1] & 0x7F if der[at + 1] & 0x80 else 0)


def _end(der: bytes, at: int) -> int:
    """Return where the next element begins."""
    begin, length = _content(der, at), der[at + 1]
    return begin + (int.from_bytes(der[at + 2 : begin]) if length & 0x80 else length)
