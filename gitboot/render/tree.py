"""A tree of files as a value: what is published, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from gitboot.model.scalars import Digest
from gitboot.render.paths import ContentType


@dataclass(frozen=True, slots=True)
class File:
    """One file: its bytes, and as what it is served."""

    content: bytes
    content_type: str = ContentType.TEXT

    @property
    def sha256(self) -> Digest:
        return Digest(sha256(self.content).hexdigest())


Files = Mapping[str, File]  # by path below the output directory: boot/… for machines, ops/… for operators
