"""A snapshot read as a whole: the fleet repository that it holds, or every problem and what can be looked at anyway."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gitboot.errors import InvalidRepository
from gitboot.load.blobs import ParseCache, read_blob
from gitboot.load.checks import check
from gitboot.load.draft import Draft
from gitboot.load.listing import listed
from gitboot.load.remarks import problems_of
from gitboot.load.repository import FleetRepository
from gitboot.load.snapshot import Snapshot
from gitboot.model.fleet import Fleet
from gitboot.problems.first import first
from gitboot.problems.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Flawed:
    """What a revision says that does not hold together, as far as it can be looked at."""

    problems: tuple[Problem, ...]
    well_formed: FleetRepository  # every document that is one; what it names may be missing
    whole: FleetRepository  # of these, those of which all that they name is there
    lacking: frozenset[str]  # kinds of which documents are broken, or named something that is missing


def load(snapshot: Snapshot, cache: ParseCache | None = None) -> FleetRepository:
    """The fleet repository at ``snapshot``; raise `InvalidRepository` with what is wrong with its documents.

    ``cache`` keeps what blobs parse to between calls: only blobs that it lacks are read.
    """
    found = examine(snapshot, cache)
    if isinstance(found, Flawed):
        raise InvalidRepository(found.problems)
    return found


def examine(snapshot: Snapshot, cache: ParseCache | None = None) -> FleetRepository | Flawed:
    """The same, but with what can still be looked at where documents are wrong."""
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
    if not problems:
        return draft.repository()
    whole = draft.whole()
    lacking = {key.kind for key in draft.known() - whole} | draft.unread.kinds
    if not draft.of(Fleet):
        lacking.add("Fleet")
    return Flawed(
        problems=tuple(problems),
        well_formed=draft.repository(),
        whole=draft.repository(whole),
        lacking=frozenset(lacking),
    )
