"""What passes from the death of the host that acts until the one that stands by has published."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from benchmarks.cost import between, median
from benchmarks.place import Place
from benchmarks.row import CannotRun, Figure
from benchmarks.running import Instance
from gitboot.ledger.lease import SECONDS
from tests.postgresqls import postgresql, programs


def take_over(place: Place) -> Figure:
    """Two instances with a ledger in a PostgreSQL, of which whoever acts is killed, again and again.

    The first time that a host acts, it makes its whole tree: that is in the note, and in no median.
    """
    if programs() is None:
        raise CannotRun("needs postgresql: scripts/install-packages benchmarks/packages.txt")
    with ExitStack() as stack:
        ledger = stack.enter_context(postgresql()).address()
        one, two = (
            Instance(place.folder / name, place.repository, place.fleet, "--ledger", ledger.url)
            for name in ("one", "two")
        )
        for each in (one, two):
            stack.callback(each.end, signal.SIGKILL)
        one.begin()
        one.start()
        one.published()
        costs = []
        for _ in range(place.rounds + 2):  # each acts for the first time in one of them
            two.start()
            for each in (one, two):
                each.settle()
            two.stands_by()  # an instance that lives keeps its lease
            before = two.spent()
            one.end(signal.SIGKILL)
            costs.append(between(before, two.published()))
            one, two = two, one
    first = costs[0]
    note = f"of which {SECONDS:.0f} s are the lease; {first.wall_s:.1f} s for a host that has never acted"
    return Figure(cost=median(costs[2:]), note=note)
