"""Blobs of a commit -> the fleet repository as typed values, or every problem of the commit.

A `snapshot` is listed (`listing`), and each of its files is read (`blobs`, by `documents`). `loaded` checks all files
together. If a check fails, it gathers them in a `draft`, and `checks` finds each problem, which `remarks` place.
A valid revision is a `repository`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gitboot.lazy import names_of

if TYPE_CHECKING:
    from gitboot.load.blobs import ParseCache, ParsedBlob, parse_blob
    from gitboot.load.loaded import Flawed, Loaded, load_revision
    from gitboot.load.repository import FleetRepository
    from gitboot.load.resources import KINDS, Id, Origin, Resource
    from gitboot.load.snapshot import BlobId, Irregular, Oversized, Revision, Snapshot
    from gitboot.load.whole import load

__all__ = [
    "KINDS",
    "BlobId",
    "Flawed",
    "FleetRepository",
    "Id",
    "Irregular",
    "Loaded",
    "Origin",
    "Oversized",
    "ParseCache",
    "ParsedBlob",
    "Resource",
    "Revision",
    "Snapshot",
    "load",
    "load_revision",
    "parse_blob",
]

_WHERE: Final = {
    "BlobId": "gitboot.load.snapshot",
    "Flawed": "gitboot.load.loaded",
    "FleetRepository": "gitboot.load.repository",
    "Id": "gitboot.load.resources",
    "Irregular": "gitboot.load.snapshot",
    "KINDS": "gitboot.load.resources",
    "Loaded": "gitboot.load.loaded",
    "Origin": "gitboot.load.resources",
    "Oversized": "gitboot.load.snapshot",
    "ParseCache": "gitboot.load.blobs",
    "ParsedBlob": "gitboot.load.blobs",
    "Resource": "gitboot.load.resources",
    "Revision": "gitboot.load.snapshot",
    "Snapshot": "gitboot.load.snapshot",
    "load": "gitboot.load.whole",
    "load_revision": "gitboot.load.loaded",
    "parse_blob": "gitboot.load.blobs",
}
__getattr__ = names_of(__name__, _WHERE)  # who only names a revision needs no schemas
