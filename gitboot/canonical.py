"""Values as JSON of which there is one spelling, so that it can be compared and digested."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from gitboot.jsonio_from_model_scalars_artifacts import Digest

if TYPE_CHECKING:
    from msgspec.json import Encoder


def canonical(value: object) -> bytes:
    """RFC 8785 JSON of a value that holds no floats."""
    return _encoder().encode(value)


@cache
def _encoder() -> Encoder:
    from msgspec.json import Encoder  # only here: an endpoint answers entries without it

    return Encoder(order="deterministic")


def laid_out(value: object) -> bytes:
    """The same for a person to read: over several lines."""
    from msgspec.json import format  # likewise

    return format(canonical(value), indent=2)


def digest(value: object) -> Digest:
    """The sha256 of a value's canonical JSON."""
    return Digest(sha256(canonical(value)).hexdigest())
