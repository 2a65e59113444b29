"""Measure gitboot, print each row, and write the page docs/explanation/benchmarks.md."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.cost import Cost, median
from benchmarks.gitboot_version import Gitboot, find_gitboot
from benchmarks.page import write_page
from benchmarks.place import Place, disk, memory
from benchmarks.row import CannotRun, Row
from benchmarks.rows import ROWS
from benchmarks.run import LARGEST, Result, Run, describe_machine, read_run, write_run

SIZES: Final = (1000, 10_000, 100_000)
ROUNDS: Final = 5
_RUN: Final = Path("build/benchmarks.json")


def main() -> int:
    chosen = _arguments()
    if chosen.page is not None:
        write_page(read_run(chosen.page))
        return 0
    os.environ.pop("PYTHONPATH", None)  # with it, another Python could import the gitboot of this checkout
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process would compile its modules again
    versions = [find_gitboot(name="now"), *map(find_gitboot, chosen.python)]
    run = Run(
        date=datetime.now(UTC).date().isoformat(),
        machine=describe_machine(),
        files=chosen.on,
        rounds=chosen.rounds,
        versions=[{"name": each.name, "commit": each.commit, "python": each.python_version} for each in versions],
        load=(os.getloadavg()[0],),
        results=(),
    )
    is_whole = not chosen.rows
    rows = [row for row in ROWS if is_whole or row.name in chosen.rows]
    output = chosen.output or (_RUN if is_whole else None)
    end = time.monotonic() + chosen.minutes * 60
    with tempfile.TemporaryDirectory() as scratch:
        for result in measure(rows, versions, chosen.sizes, chosen.on, Path(scratch), chosen.rounds, end):
            print(_line(result), flush=True)
            run = replace(run, results=(*run.results, result), load=(run.load[0], os.getloadavg()[0]))
            if output is not None:
                write_run(output, run)
    if is_whole:
        write_page(run)
    return int(any(result.failure.startswith(_FAILED) for result in run.results))


def _arguments() -> argparse.Namespace:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="numbers of servers; default: 1000,10000,100000")
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help=f"of which the page shows the median: %(default)s; one round at {LARGEST:,} servers",
    )
    parser.add_argument("--on", choices=("memory", "disk"), default="memory", help="where files are: %(default)s")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="measure also the gitboot that this Python imports; several times",
    )
    parser.add_argument(
        "--minutes", type=float, default=24 * 60, help="begin no row after this time, and stop the last one"
    )
    parser.add_argument("--output", type=Path, help=f"write the run here; default: {_RUN} if no ROW is given")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page from this run, and measure nothing")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.rows) - set(names)):
        parser.error(f"no such row: {', '.join(unknown)}")
    return chosen


def _sizes(text: str) -> tuple[int, ...]:
    sizes = sorted(int(each) for each in text.split(","))
    if sizes[-1] > LARGEST:
        raise argparse.ArgumentTypeError(f"{sizes[-1]:,} servers are too many: one instance supports up to {LARGEST:,}")
    return tuple(sizes)


def _line(result: Result) -> str:
    head = f"{result.row:15} {result.version:8} {result.servers:>8,}"
    if not result.rounds:
        return f"{head}  {result.failure}"
    beside = [f"{name}: {_format_cost(median(costs))}" for name, costs in result.beside.items()]
    return f"{head}  {'; '.join(filter(None, (_format_cost(median(result.rounds)), *beside, result.note)))}"


def _format_cost(cost: Cost) -> str:
    memory_mib = " + ".join(f"{each:,.0f}" for each in cost.memory_mib)
    parts = (
        f"{cost.cpu_s:.4g} s of CPU" if cost.cpu_s else "",
        f"{cost.wall_s:.4g} s" if cost.wall_s else "",
        f"{memory_mib} MiB" if memory_mib else "",
    )
    return "; ".join(filter(None, parts))


def measure(
    rows: Sequence[Row],
    versions: Sequence[Gitboot],
    sizes: Sequence[int],
    where: str,
    scratch: Path,
    rounds: int,
    end: float,
) -> Iterator[Result]:
    """Yield the result of each row, size and version. The versions take turns at each row."""
    for size in sorted({size for row in rows for size in row.chosen_sizes(sizes)}):
        chosen = [row for row in rows if size in row.chosen_sizes(sizes)]
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(memory(scratch.name) if where == "memory" else disk("bench", scratch))
            except CannotRun as error:
                yield from (
                    Result(row=row.name, version=gitboot.name, servers=size, beside={}, failure=str(error))
                    for row in chosen
                    for gitboot in versions
                )
                continue
            places = [
                stack.enter_context(
                    Place(folder / each.name, size, each, tools=scratch, rounds=rounds if size < LARGEST else 1)
                )
                for each in versions
            ]
            for row in chosen:
                for place in places:
                    yield _measure_row(row, place, end)
                    place.pause()


_FAILED: Final = "failed: "


def _measure_row(row: Row, place: Place, end: float) -> Result:
    """Measure a row. If the row fails, the result has the error, and the other rows go on."""
    gc.collect()
    failed = Result(row=row.name, version=place.gitboot.name, servers=place.servers, beside={})
    try:
        with _limit_time(end):
            return Result.of(row, place.gitboot, place.servers, row.measure(place))
    except _OutOfTime:
        return replace(failed, failure="no time left")
    except CannotRun as error:
        return replace(failed, failure=str(error))
    except Exception as error:  # noqa: BLE001 - the result has it
        return replace(failed, failure=f"{_FAILED}{error!r}")


class _OutOfTime(BaseException):
    """The time of the run is over. It is no Exception, so that no row handles it as its own failure."""


@contextmanager
def _limit_time(end: float) -> Iterator[None]:
    """Raise _OutOfTime inside the block once the monotonic clock is at ``end``."""
    if (left_s := end - time.monotonic()) <= 0:
        raise _OutOfTime

    def stop(*_: object) -> None:
        raise _OutOfTime

    previous: Callable[..., object] | int | None = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, left_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


if __name__ == "__main__":
    sys.exit(main())
