"""A tree of files as a value: what is published, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from gitboot.model.scalars import Digest


class ContentType(StrEnum):
    TEXT = "text/plain; charset=utf-8"  # iPXE and GRUB take any; a browser shows it
    JSON = "application/json"
    IGNITION = "application/vnd.coreos.ignition+json"
    CLOUD_CONFIG = "text/cloud-config; charset=utf-8"
    OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class File:
    """One file: its bytes, and as what it is served."""

    content: bytes
    content_type: str = ContentType.TEXT

    @property
    def sha256(self) -> Digest:
        return Digest(sha256(self.content).hexdigest())


Files = Mapping[str, File]  # by path below the output directory: boot/… for machines, ops/… for operators

IMMUTABLE: Final = "boot/o/"  # below it a path names its content and never changes


def is_immutable(path: str) -> bool:
    return path.startswith(IMMUTABLE)
