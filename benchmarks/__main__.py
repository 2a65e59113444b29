"""The command line: which rows, for fleets of which sizes, in memory or on a disk."""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import CalledProcessError

from benchmarks import page
from benchmarks.cost import ROUNDS
from benchmarks.page import Measured
from benchmarks.place import Place, disk, memory
from benchmarks.row import CannotRun, Row
from benchmarks.rows import ROWS

SIZES = (100, 1000, 10_000)


def main() -> int:
    asked = _arguments()
    rows = [row for row in ROWS if row.name in asked.rows] if asked.rows else list(ROWS)
    has_failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for where in asked.on:
            for measured in _measured(rows, asked.sizes, where, Path(scratch), 1 if asked.quick else asked.rounds):
                print(measured.line(), flush=True)
                has_failed |= measured.failed
                if not asked.quick:
                    page.write([measured])  # a run that is cut short has measured what it has
    return int(has_failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="servers: 100,1000,10000")
    parser.add_argument("--on", action="append", choices=("memory", "disk"), help="where files lie; several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of which the median counts: {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="one round each; the page stays as it is")
    asked = parser.parse_args()
    asked.on = asked.on or ["memory", "disk"]
    if unknown := set(asked.rows) - {row.name for row in ROWS}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    return asked


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(each) for each in text.split(",")))


def _measured(rows: Iterable[Row], sizes: Sequence[int], where: str, scratch: Path, rounds: int) -> Iterator[Measured]:
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
            yield from (_one(row, place, where) for row in wanted)


def _one(row: Row, place: Place, where: str) -> Measured:
    """A row that cannot run says so, and so does one that fails."""
    gc.collect()
    try:
        figure = row.measure(place)
        return Measured(row=row, servers=place.servers, where=where, figure=figure, rounds=place.rounds)
    except CannotRun as error:
        return Measured(row=row, servers=place.servers, where=where, cannot=str(error))
    except (AssertionError, CalledProcessError, OSError) as error:
        return Measured(row=row, servers=place.servers, where=where, cannot=f"failed: {error}", failed=True)


if __name__ == "__main__":
    sys.exit(main())
