"""Values as JSON of which there is one spelling, so that it can be compared and digested."""

from __future__ import annotations

import json
from hashlib import sha256

from gitboot.model.scalars import Digest


def canonical(value: object) -> bytes:
    """RFC 8785 JSON of a value that holds no floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(value: object) -> Digest:
    """The sha256 of a value's canonical JSON."""
    return Digest(sha256(canonical(value)).hexdigest())
