"""The keys that a known_hosts file holds for a host, by the rules of sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".

libssh2, below libgit2, compares keys well but does not read the file as OpenSSH does: it takes keys that are
marked @revoked, overlooks patterns, and stops at a line that it cannot read. So it is given plain lines only.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Final

DEFAULT_PORT: Final = 22


def trusted_keys(text: str, host: str, port: int) -> tuple[str, ...]:
    """The keys, as ``TYPE BASE64``, that the file lets ``host`` show at ``port``; sorted."""
    names = (host.lower(), f"[{host.lower()}]:{port}") if port != DEFAULT_PORT else (host.lower(),)
    trusted: set[str] = set()
    revoked: set[str] = set()
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else None
        if len(fields) < 3 or not any(_covers(fields[0], name) for name in names):
            continue
        key = f"{fields[1]} {fields[2]}"
        if marker is None:
            trusted.add(key)
        elif marker == "@revoked":  # @cert-authority is left out: libssh2 knows no host certificates
            revoked.add(key)
    return tuple(sorted(trusted - revoked))


def _covers(patterns: str, name: str) -> bool:
    """Whether a line's first field means ``name``: by its hash, or by patterns; "!" before one excludes."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    fitting = [pattern for pattern in patterns.split(",") if _fits(pattern.removeprefix("!"), name)]
    return bool(fitting) and not any(pattern.startswith("!") for pattern in fitting)


def _fits(pattern: str, name: str) -> bool:
    wild = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, name) is not None


def _is_hash_of(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in hashed.split("|")[2:])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
