"""Fetch process: read tasks from standard input, carry them out, and write reports to standard output."""

from __future__ import annotations

import os
import sys
from functools import partial

from gitboot.child_processes import (
    OUT_OF_MEMORY,
    ProcessUsage,
    become_child,
    lift_memory_limit,
    read_frame,
    write_frame,
)
from gitboot.git.fetch import ERRORS, FetchFailure, FetchOrder, InProcessFetcher, Report, parse_order
from gitboot.git.repository import is_out_of_memory, report_steps_to, report_work


def main(parent: str) -> None:
    """Carry out the tasks that the process ``parent`` sends, until ``parent`` ends."""
    orders, reports = become_child(parent)
    usage = ProcessUsage.measure()
    while (frame := read_frame(orders)) is not None:
        try:
            order = parse_order(frame)
            if order.memory is not None:
                usage.limit(memory_bytes=order.memory)
            else:
                lift_memory_limit()
            with report_steps_to(partial(write_frame, reports)):
                result = run_fetch_order(order)
            write_frame(reports, result)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # the process must not continue, because the fetch may be incomplete
        except BrokenPipeError:
            os._exit(0)  # the parent process has ended


def run_fetch_order(order: FetchOrder) -> Report:
    """Carry out a task, and return its result or its error. Raises MemoryError if memory ran out."""
    report_work()
    try:
        return InProcessFetcher().carry_out(order)
    except tuple(ERRORS.values()) as error:
        if is_out_of_memory(error):
            raise MemoryError from error
        return FetchFailure(type(error).__name__, str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
