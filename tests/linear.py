"""Whether work grows with its input and no faster, measured in one process and in CPU time."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

TIMES = 8  # as much input; work that grows with its square takes 64 times as long
AT_MOST = 24.0


def growth(work: Callable[[int], object], size: int) -> float:
    """How many times as long `work` takes for eight times ``size``; give a size that takes milliseconds."""
    return _least(work, TIMES * size) / max(_least(work, size), 1e-4)


def _least(work: Callable[[int], object], size: int) -> float:
    took = []
    for _ in range(3):
        began = process_time()
        work(size)
        took.append(process_time() - began)
    return min(took)
