"""A snapshot read as a whole: the fleet repository that it holds, or every problem."""

from __future__ import annotations

from gitboot.errors import InvalidRepository
from gitboot.fleet.documents import ParseCache
from gitboot.fleet.resources import FleetRepository
from gitboot.fleet.revision import Snapshot
from gitboot.fleet.validation import Flawed, load_revision


def load(snapshot: Snapshot, cache: ParseCache | None = None) -> FleetRepository:
    """Return the fleet repository at ``snapshot``; raise `InvalidRepository` with what is wrong with its documents.

    ``cache`` keeps what blobs parse to between calls. Only blobs that it lacks are read.
    """
    found = load_revision(snapshot, cache)
    if isinstance(found, Flawed):
        raise InvalidRepository(found.problems)
    return found.repository
