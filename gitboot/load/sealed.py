"""Files that age encrypted: what can be told of them without a key."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Final

MOST_BYTES: Final = 64 * 1024  # a certificate with its chain has 10 KiB
_ARMOR: Final = re.compile(
    rb"\s*-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END AGE ENCRYPTED FILE-----\s*"
)
# The age specification, "Header": a line for the version, stanzas, each of which begins with its type, and a MAC.
_HEADER: Final = b"age-encryption.org/v1\n"
_STANZA: Final = re.compile(rb"-> ([!-~]+)(?: [!-~]+)*\n(?:[A-Za-z0-9+/]{64}\n)*[A-Za-z0-9+/]{0,63}\n")
_MAC: Final = re.compile(rb"--- [A-Za-z0-9+/]{43}\n")
_MOST_RECIPIENTS: Final = 20  # each is tried with each key


class NotSealed(ValueError):
    """Why no endpoint could open a file."""


def sealed(data: bytes) -> bytes:
    """The file without its armor; raise `NotSealed` where it is none that an endpoint with the right key could open."""
    if len(data) > MOST_BYTES:
        raise NotSealed(f"it has {len(data):,} bytes, over {MOST_BYTES:,}")
    if found := _ARMOR.fullmatch(data):
        try:
            data = b64decode(found[1].replace(b"\r", b"").replace(b"\n", b""), validate=True)
        except ValueError:
            raise NotSealed("its armor is damaged") from None
    if not data.startswith(_HEADER):
        raise NotSealed("it is not encrypted by age")
    kinds, at = [], len(_HEADER)
    while stanza := _STANZA.match(data, at):
        kinds.append(stanza[1].decode())
        at = stanza.end()
    if not _MAC.match(data, at):
        raise NotSealed("it is not whole")
    if "scrypt" in kinds:
        raise NotSealed("it is encrypted with a passphrase, which nobody would enter")
    if "X25519" not in kinds:
        others = sorted({kind[:20] for kind in kinds if not kind.endswith("-grease")})
        raise NotSealed(f"it is encrypted to no key of age itself (age1…), but to {', '.join(others[:3]) or 'none'}")
    if len(kinds) > _MOST_RECIPIENTS:
        raise NotSealed(f"it is encrypted to {len(kinds)} keys, over {_MOST_RECIPIENTS}")
    return data
