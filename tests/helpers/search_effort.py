"""How long tests search for what chance alone finds: `--lives` says it, and each takes its part of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

USUAL = 6  # lives of a machine at each BMC

lives = USUAL  # as the command line has it, before any test is imported

Case = TypeVar("Case")


def every(usual: int) -> int:
    """Of how many steps one is taken where each so many-th is usual: fewer where somebody waits."""
    return max(usual * USUAL // lives, usual)


def each_of(cases: Sequence[Case], *, one_in: int) -> Sequence[Case]:
    """All cases that differ in when something happens alone; where somebody waits, one in so many."""
    return cases if lives >= USUAL else cases[::one_in]


def examples(usual: int) -> int:
    """How many examples Hypothesis takes where so many are usual."""
    return max(usual * lives // USUAL, 2)
