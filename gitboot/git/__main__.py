"""The process that fetches and pushes: it carries out the orders on standard input, and reports on standard output."""

from __future__ import annotations

import os
import sys
from functools import partial

from gitboot.child_processes import OUT_OF_MEMORY, Spent, as_child_of, lift, read_frame, write_frame
from gitboot.git.fetch import ERRORS, Failed, InThisProcess, Order, Report, order
from gitboot.git.repository import lacks_memory, note_work, reported


def main(parent: str) -> None:
    """Fetch for the process ``parent``."""
    orders, reports = as_child_of(parent)
    spent = Spent.now()
    while (frame := read_frame(orders)) is not None:
        try:
            found = order(frame)
            if found.memory is not None:
                spent.limit(memory=found.memory)
            else:
                lift()
            with reported(partial(write_frame, reports)):
                answer = carry_out(found)
            write_frame(reports, answer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # what is half done is not trusted
        except BrokenPipeError:
            os._exit(0)  # the instance has ended


def carry_out(order: Order) -> Report:
    note_work()
    try:
        return InThisProcess().carry_out(order)
    except tuple(ERRORS.values()) as error:
        if lacks_memory(error):
            raise MemoryError from error
        return Failed(type(error).__name__, str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
