"""The process that fetches and pushes: it carries out the orders on standard input, and reports on standard output."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from gitboot.child_processes import OUT_OF_MEMORY, Spent, as_child_of, lift, read_frame, write_frame
from gitboot.fleet.revision import Revision
from gitboot.git.fetch import ERRORS, Arrived, InThisProcess, Order, Report, failed, order, remote_of
from gitboot.git.repository import lacks_memory, note_work, reported


def main(parent: str) -> None:
    """Fetch for the process ``parent``."""
    asked, reports = as_child_of(parent)
    spent = Spent.now()
    while (frame := read_frame(asked)) is not None:
        try:
            ordered = order(frame)
            if ordered.memory is not None:
                spent.limit(memory=ordered.memory)
            else:
                lift()
            with reported(partial(write_frame, reports)):
                answer = _report(ordered)
            write_frame(reports, answer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # what is half done is not trusted
        except BrokenPipeError:
            os._exit(0)  # whoever asked is gone


def _report(ordered: Order) -> Report:
    remote, state, fetching = remote_of(ordered), Path(ordered.state), InThisProcess()
    note_work()
    try:
        if ordered.work == "restore":
            accepted = Revision(ordered.accepted) if ordered.accepted is not None else None
            return Arrived(found=fetching.restore(remote, state, accepted))
        if ordered.work == "head":
            return Arrived(head=fetching.read_head(remote, state))
        if ordered.work == "branch":
            fetching.fetch_branch(remote, state)
            return Arrived()
        if ordered.work == "tip":
            tip = fetching.read_tip(remote, state)
            return Arrived(revision=tip.commit or "", head=tip.head)
        if ordered.work == "push":
            fetching.push_branch(remote, state, ordered.accepted, ordered.pushed)
            return Arrived()
        revision, head = fetching.fetch(remote, state, anew=ordered.work == "anew")
        return Arrived(revision=revision, head=head)
    except tuple(ERRORS.values()) as error:
        if lacks_memory(error):
            raise MemoryError from error
        return failed(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
