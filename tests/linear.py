"""Whether work grows with its input and no faster, measured in one process and in CPU time."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

TIMES = 8  # as much input; work that grows with its square takes 64 times as long
AT_MOST = 24.0


def growth(work: Callable[[int], object], size: int) -> float:
    """How many times as long `work` takes for eight times ``size``; give a size that takes milliseconds.

    Whatever disturbs a measurement makes it longer, so it is the least of ten; where one is short enough, of one.
    """
    once, least = max(min(_took(work, size) for _ in range(3)), 1e-4), float("inf")
    for _ in range(10):
        least = min(least, _took(work, TIMES * size) / once)
        if least < AT_MOST:
            break
    return least


def _took(work: Callable[[int], object], size: int) -> float:
    began = process_time()
    work(size)
    return process_time() - began
