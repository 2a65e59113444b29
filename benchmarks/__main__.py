"""The command line: which rows, for fleets of which sizes, in memory or on a disk."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import page
from benchmarks.cost import ROUNDS
from benchmarks.page import Measured
from benchmarks.place import Place, disk, memory
from benchmarks.row import CannotRun, Row
from benchmarks.rows import ROWS

SIZES = (100, 1000, 10_000)
LARGEST = 100_000  # servers of one instance


def main() -> int:
    asked = _arguments()
    end = time.monotonic() + asked.minutes * 60
    rows = [row for row in ROWS if row.name in asked.rows] if asked.rows else list(ROWS)
    has_failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for where in asked.on:
            rounds = 1 if asked.quick else asked.rounds
            for each in measured(rows, asked.sizes, where, Path(scratch), rounds, end):
                print(each.line(), flush=True)
                has_failed |= each.failed
                if not asked.quick and not each.late:
                    page.write([each])  # a run that is cut short has measured what it has
    return int(has_failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="servers: 100,1000,10000")
    parser.add_argument("--on", action="append", choices=("memory", "disk"), help="where files lie; several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of which the median counts: {ROUNDS}")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="begin no row after that, and end the last one")
    parser.add_argument("--quick", action="store_true", help="one round each; the page stays as it is")
    asked = parser.parse_args()
    asked.on = asked.on or ["memory", "disk"]
    if unknown := set(asked.rows) - {row.name for row in ROWS}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    return asked


def _sizes(text: str) -> tuple[int, ...]:
    sizes = sorted(int(each) for each in text.split(","))
    if sizes[-1] > LARGEST:
        raise argparse.ArgumentTypeError(f"{sizes[-1]:,} servers are too many: one instance is for up to {LARGEST:,}")
    return tuple(sizes)


def measured(
    rows: Iterable[Row], sizes: Sequence[int], where: str, scratch: Path, rounds: int, end: float
) -> Iterator[Measured]:
    """Each row at each size; on a disk those alone whose files lie there."""
    chosen = [row for row in rows if where == "memory" or row.writes]
    for size in sorted({size for row in chosen for size in row.sizes(sizes)}):
        wanted = [row for row in chosen if size in row.sizes(sizes)]
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(memory(scratch.name) if where == "memory" else disk("bench", scratch))
            except CannotRun as error:
                yield from (Measured(row=row, servers=size, where=where, cannot=str(error)) for row in wanted)
                continue
            place = stack.enter_context(Place(folder / "fleet", size, tools=scratch, rounds=rounds))
            yield from (_one(row, place, where, end) for row in wanted)


def _one(row: Row, place: Place, where: str, end: float) -> Measured:
    """A row that cannot run says so, and so does one that fails, whatever its fault is: the others go on."""
    gc.collect()
    told = Measured(row=row, servers=place.servers, where=where, rounds=place.rounds)
    try:
        with _until(end):
            return replace(told, figure=row.measure(place))
    except _OutOfTime:
        return replace(told, cannot="no time left", late=True)
    except CannotRun as error:
        return replace(told, cannot=str(error))
    except Exception as error:  # noqa: BLE001 - a fault of one row, which is said
        return replace(told, cannot=f"failed: {error!r}", failed=True)


class _OutOfTime(BaseException):
    """The time that was given is over; no row may take it for a fault of its own."""


@contextmanager
def _until(end: float) -> Iterator[None]:
    """Raise `_OutOfTime` within, once the clock says so."""
    if (left := end - time.monotonic()) <= 0:
        raise _OutOfTime

    def over(*_: object) -> None:
        raise _OutOfTime

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    sys.exit(main())
