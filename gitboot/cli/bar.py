"""How far a command is, for whoever watches: one line of a terminal, which is gone at the end; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gitboot.terminal import verbatim


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for so many of what is named; what is yielded is told how many more are done."""
    with growing(what) as (of, advance):
        of(total)
        yield advance


@contextmanager
def growing(what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """The same, where how many there are is found on the way: the first is told that, and may be told again."""
    if not sys.stderr.isatty():
        yield _unseen, _unseen
        return
    from rich.console import Console  # only where somebody looks: it takes a tenth of a second
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        verbatim(sys.stderr) as terminal,
        Progress(
            *columns,
            console=Console(file=terminal),
            transient=True,
            redirect_stdout=False,  # what others write is escaped by their own streams
            redirect_stderr=False,
        ) as shown,
    ):
        task = shown.add_task(what, total=None)
        yield lambda total: shown.update(task, total=total), lambda number: shown.advance(task, number)


def _unseen(_: int) -> None:
    """Where nobody looks."""
