"""What passes from the death of the host that acts until the one that stands by has published."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from benchmarks.cost import Cost, between, median
from benchmarks.place import Place
from benchmarks.row import CannotRun, Figure
from benchmarks.running import Instance
from gitboot.ledger.lease import SECONDS
from tests.postgresqls import postgresql, programs


def take_over(place: Place) -> Figure:
    """Two instances with a ledger in a PostgreSQL, of which whoever acts is killed, again and again.

    The first time that a host acts, it makes its whole tree: that is in the note, and in no median. So is what one
    takes that never acted, and has copies of what the other has made.
    """
    if programs() is None:
        raise CannotRun("needs postgresql: scripts/install-packages benchmarks/packages.txt")
    with ExitStack() as stack:
        ledger = stack.enter_context(postgresql()).address()
        one, two, third = (
            Instance(place.folder / name, place.repository, place.fleet, "--ledger", ledger.url)
            for name in ("one", "two", "third")
        )
        for each in (one, two, third):
            stack.callback(each.end, signal.SIGKILL)
        one.begin()
        one.start()
        one.published()
        costs = []
        for _ in range(place.rounds + 2):  # each acts for the first time in one of them
            costs.append(_taken_over(one, two))
            one, two = two, one
        third.has_copies_of(one)
        copied = _taken_over(one, third)
    note = (
        f"of which {SECONDS:.0f} s are the lease; {costs[0].wall_s:.1f} s for a host that has never acted, "
        f"{copied.wall_s:.1f} s for one with copies of the other's tree and plans"
    )
    return Figure(cost=median(costs[2:]), note=note)


def _taken_over(acting: Instance, other: Instance) -> Cost:
    """What the other one, which is to stand by first, takes from the death of the one that acts."""
    other.start()
    for each in (acting, other):
        each.settle()
    other.stands_by()  # an instance that lives keeps its lease
    before = other.spent()
    acting.end(signal.SIGKILL)
    return between(before, other.published())
