"""What of a Git object is signed, and by which signature: gitformat-signature(5)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Signed(NamedTuple):
    """The bytes that a signature is of, and the signature."""

    payload: bytes
    signature: bytes


class AmbiguousSignature(Exception):
    """An object whose signature Git's own programs and others could take for different ones."""


def of_commit(raw: bytes) -> Signed | None:
    """A commit without its header ``gpgsig``, and that header; None where it has none."""
    header, blank, message = raw.partition(b"\n\n")
    kept: list[bytes] = []
    signature: list[bytes] = []
    found = 0
    is_within = False
    for line in header.split(b"\n"):
        if line.startswith(b"gpgsig-"):
            raise AmbiguousSignature("it has a signature for another kind of repository")
        if line.startswith(b"gpgsig "):
            found += 1
            is_within = True
            signature.append(line.removeprefix(b"gpgsig "))
        elif is_within and line.startswith(b" "):
            signature.append(line[1:])
        else:
            is_within = False
            kept.append(line)
    if found > 1:
        raise AmbiguousSignature("it has more than one signature")
    return Signed(b"\n".join(kept) + blank + message, b"\n".join(signature) + b"\n") if found else None


def of_tag(raw: bytes) -> Signed | None:
    """An annotated tag up to the last line that begins a signature, and what follows."""
    *_, start = (0, *(found.start() for found in _BEGIN.finditer(raw)))
    return Signed(raw[:start], raw[start:]) if start else None


_BEGIN: Final = re.compile(rb"^-----BEGIN (?:PGP SIGNATURE|SSH SIGNATURE)-----$", re.MULTILINE)
