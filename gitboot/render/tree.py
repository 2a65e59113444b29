"""A tree of files as a value: what is published, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from gitboot.jsonio import Digest
from gitboot.render.paths import ContentType


@dataclass(frozen=True, slots=True)
class File:
    """One file: its bytes, and as what it is served."""

    content: bytes
    content_type: str = ContentType.TEXT
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sha256(self) -> Digest:
        """Of its content; computed when it is first asked for."""
        if (known := self._digest) is None:
            known = Digest(sha256(self.content).hexdigest())
            object.__setattr__(self, "_digest", known)
        return known


Files = Mapping[str, File]  # by path below the output directory: boot/… for machines, ops/… for operators
