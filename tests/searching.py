"""How long tests search for what chance alone finds: `--lives` says it, and each takes its part of that."""

from __future__ import annotations

USUAL = 6  # lives of a machine at each BMC

lives = USUAL  # as the command line has it, before any test is imported


def every(usual: int) -> int:
    """Of how many steps one is taken where each so many-th is usual: fewer where somebody waits."""
    return max(usual * USUAL // lives, usual)


def examples(usual: int) -> int:
    """How many examples Hypothesis takes where so many are usual."""
    return max(usual * lives // USUAL, 2)
