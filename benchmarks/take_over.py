"""What passes from the death of the host that acts until the one that stands by has published."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from benchmarks.cost import Cost, between, median
from benchmarks.place import Place
from benchmarks.row import CannotRun, Figure
from benchmarks.running import Instance
from gitboot.instance.bookmark import WORTH
from gitboot.ledger.lease import SECONDS
from tests.postgresqls import postgresql, programs


def take_over(place: Place) -> Figure:
    """Two instances with a ledger in a PostgreSQL, of which whoever acts is killed, again and again.

    What one takes that has never acted is in the note, and in no median: once with the tree that it has made beside
    standing by, once with none as yet.
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
        costs: list[Cost] = []
        for _ in range(place.rounds + 2):  # each acts for the first time in one of them
            two.start()
            two.stands_by()
            if place.servers >= WORTH and not costs:
                two.has_prepared()
            for each in (one, two):
                each.settle()
            costs.append(_taken_over(one, two))
            one, two = two, one
        third.start()
        third.stands_by()
        unprepared = _taken_over(one, third)
    note = (
        f"of which {SECONDS:.0f} s are the lease; {costs[0].wall_s:.1f} s for a host that has never acted, "
        f"{unprepared.wall_s:.1f} s where it has made no tree yet"
    )
    return Figure(cost=median(costs[2:]), note=note)


def _taken_over(acting: Instance, other: Instance) -> Cost:
    """What the other one, which stands by, takes from the death of the one that acts."""
    before = other.spent()
    acting.end(signal.SIGKILL)
    return between(before, other.published())
