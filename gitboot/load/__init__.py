"""Blobs of a commit -> the fleet repository as typed values, or every problem of the commit.

A `snapshot` is listed (`listing`), each of its files is read (`blobs`, by `documents`), what they say is gathered
in a `draft` and checked as a `whole` (`checks`, whose `remarks` become problems). What holds together is the
`repository`. Of the revision after one that holds together only what differs is looked at (`successor`, by a `register`
of who names and has what).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gitboot.lazy import names_of

if TYPE_CHECKING:
    from gitboot.load.blobs import ParseCache, ParsedBlob, parse_blob
    from gitboot.load.repository import FleetRepository
    from gitboot.load.resources import KINDS, Id, Origin, Resource
    from gitboot.load.snapshot import BlobId, Irregular, Oversized, Revision, Snapshot
    from gitboot.load.whole import Flawed, examine, load

__all__ = [
    "KINDS",
    "BlobId",
    "Flawed",
    "FleetRepository",
    "Id",
    "Irregular",
    "Origin",
    "Oversized",
    "ParseCache",
    "ParsedBlob",
    "Resource",
    "Revision",
    "Snapshot",
    "examine",
    "load",
    "parse_blob",
]

_WHERE: Final = {
    "BlobId": "gitboot.load.snapshot",
    "Flawed": "gitboot.load.whole",
    "FleetRepository": "gitboot.load.repository",
    "Id": "gitboot.load.resources",
    "Irregular": "gitboot.load.snapshot",
    "KINDS": "gitboot.load.resources",
    "Origin": "gitboot.load.resources",
    "Oversized": "gitboot.load.snapshot",
    "ParseCache": "gitboot.load.blobs",
    "ParsedBlob": "gitboot.load.blobs",
    "Resource": "gitboot.load.resources",
    "Revision": "gitboot.load.snapshot",
    "Snapshot": "gitboot.load.snapshot",
    "examine": "gitboot.load.whole",
    "load": "gitboot.load.whole",
    "parse_blob": "gitboot.load.blobs",
}
__getattr__ = names_of(__name__, _WHERE)  # who only names a revision needs no schemas
