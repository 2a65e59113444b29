"""A revision's files -> what it decides, or every problem of the commit, of whatever stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gitboot.errors import InvalidRepository
from gitboot.fleet.resources import FleetRepository
from gitboot.fleet.validation import Flawed, Loaded
from gitboot.problems.codes import Code, DatedProblem, Problem
from gitboot.resolve.fleet_decisions import Decided, decide_all, not_yet


def decide_loaded(found: Loaded | Flawed, decide: Callable[[FleetRepository], Decided] = decide_all) -> Decided:
    """Return what a revision decides; raise `InvalidRepository` with everything that is wrong with it.

    If documents are broken, the others are decided anyway, and their problems are reported with them. Problems that may
    only follow from a broken document are left out.
    """
    if isinstance(found, Flawed):
        besides, dated = _besides(found, decide)
        problems = dict.fromkeys((*found.problems, *besides))
        is_there = any(key.kind == "Fleet" for key in found.well_formed.origins)
        raise InvalidRepository(problems, fleet=found.well_formed.fleet.spec if is_there else None, dated=dated)
    try:
        return decide(found.repository)
    except InvalidRepository as error:
        raise InvalidRepository(error.problems, fleet=found.repository.fleet.spec, dated=error.dated) from None


def _besides(
    flawed: Flawed, decide: Callable[[FleetRepository], Decided]
) -> tuple[list[Problem], tuple[DatedProblem, ...]]:
    """Return what is wrong with the documents that are well formed, and what of it depends on the time."""
    try:
        decisions = decide(flawed.whole).decisions
        found, dated = decisions.warnings, decisions.dated
    except InvalidRepository as error:
        found, dated = error.problems, error.dated
    doubtful = _BY_POLICIES if flawed.lacking & _DECIDING else frozenset()
    return [*(problem for problem in found if problem.code not in doubtful), *not_yet(flawed.well_formed)], dated


_DECIDING: Final = frozenset({"BootPolicy", "Fleet"})  # of which one that is missing may change who is in which pool
_BY_POLICIES: Final = frozenset({Code.NO_POLICY, Code.POLICY_TIE})
