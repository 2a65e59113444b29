"""Values as JSON of which there is one spelling, so that it can be compared and digested."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec

from gitboot.model.scalars import Digest

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def canonical(value: object) -> bytes:
    """RFC 8785 JSON of a value that holds no floats."""
    return _encode(value)


def laid_out(value: object) -> bytes:
    """The same for a person to read: over several lines."""
    return msgspec.json.format(_encode(value), indent=2)


def digest(value: object) -> Digest:
    """The sha256 of a value's canonical JSON."""
    return Digest(sha256(canonical(value)).hexdigest())
