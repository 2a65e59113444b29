"""Blobs of a commit -> the fleet repository as typed values, or every problem of the commit.

A `snapshot` is listed (`listing`), each of its files is read (`blobs`, by `documents`), what they say is gathered
in a `draft` and checked as a whole (`checks`, whose `remarks` become problems). What holds together is the
`repository`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gitboot.errors import InvalidRepository
from gitboot.load.blobs import ParseCache, ParsedBlob, parse_blob, read_blob
from gitboot.load.checks import check
from gitboot.load.draft import Draft
from gitboot.load.listing import listed
from gitboot.load.references import references
from gitboot.load.remarks import problems_of
from gitboot.load.repository import FleetRepository
from gitboot.load.resources import KINDS, Id, Origin, Resource
from gitboot.load.snapshot import BlobId, Irregular, Oversized, Revision, Snapshot
from gitboot.problems.first import first

__all__ = [
    "KINDS",
    "BlobId",
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
    "load",
    "parse_blob",
    "references",
]


def load(snapshot: Snapshot, cache: ParseCache | None = None) -> FleetRepository:
    """The fleet repository at ``snapshot``; raise `InvalidRepository` with every problem it has.

    ``cache`` keeps what blobs parse to between calls: only blobs that it lacks are read.
    """
    snapshot = replace(snapshot, read=lru_cache(maxsize=2)(snapshot.read))  # for the problems of two files that clash
    cache = {} if cache is None else cache
    files = listed(snapshot)
    draft = Draft(snapshot, files.irregular)
    for path in files.documents:
        blob = snapshot.blobs[path]
        if (parsed := cache.get(blob)) is None:
            parsed = cache[blob] = read_blob(snapshot, blob, path)
        draft.add(path, parsed)
    check(draft)
    found, more = problems_of(draft.remarks, snapshot.read)
    problems = first([*files.problems, *draft.problems, *found], draft.more + more)
    if problems:
        raise InvalidRepository(problems)
    return draft.finished()
