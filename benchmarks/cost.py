"""The cost of a process and its descendants: processor time, wall time, and the memory of each process."""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_LAST_BYTES: Final = 500  # of the output of a failed program
_SAMPLE_EVERY_S: Final = 0.02  # the memory of the processes of a command
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_NOT_BEGUN: Final = 8  # `gitboot run --once` exits with 8 before `gitboot records begin`


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The cost of one round."""

    cpu_s: float  # user and system time of all processes
    wall_s: float
    memory_mib: tuple[float, ...] = ()  # the peak of each process, the largest first

    @property
    def peak_mib(self) -> float | None:
        return max(self.memory_mib, default=None)

    def __truediv__(self, units: int) -> Cost:
        """Return the cost of each unit. The memory stays the memory of the whole."""
        return Cost(cpu_s=self.cpu_s / units, wall_s=self.wall_s / units, memory_mib=self.memory_mib)


def median(costs: Iterable[Cost]) -> Cost:
    """Return the median of each column. The memory is the one of the round with the median sum."""
    rounds = list(costs)
    by_memory = sorted((cost.memory_mib for cost in rounds), key=sum)
    return Cost(
        cpu_s=statistics.median(cost.cpu_s for cost in rounds),
        wall_s=statistics.median(cost.wall_s for cost in rounds),
        memory_mib=by_memory[len(by_memory) // 2],
    )


def measure_command(
    command: Sequence[str | Path], *, rounds: int, prepare: Callable[[], object] = lambda: None, **options: Any
) -> list[Cost]:
    """Run a command ``rounds`` times and return the cost of each. ``prepare`` runs before each round.

    ``options`` are those of `subprocess.Popen`. Raises AssertionError if the command fails.
    """
    costs = []
    for _ in range(rounds):
        prepare()
        costs.append(_run(command, options))
    return costs


# A small process starts the command, because Linux counts the memory of the parent as a peak of its child.
_STARTER: Final = """
import os, sys, time
began = time.perf_counter()
process = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(process, 0)
took = time.perf_counter() - began
os.write(int(sys.argv[1]), b"%d %a %a %d" % (status, usage.ru_utime + usage.ru_stime, took, usage.ru_maxrss))
"""


def _run(command: Sequence[str | Path], options: dict[str, Any]) -> Cost:
    reading, writing = os.pipe()
    starter = (sys.executable, "-I", "-S", "-c", _STARTER, str(writing), *map(str, command))
    given = {"stdout": subprocess.DEVNULL, **options, "pass_fds": (writing,), "start_new_session": True}
    with tempfile.TemporaryFile() as printed, os.fdopen(reading) as pipe:
        try:
            process = subprocess.Popen(starter, **{"stderr": printed, **given})
        finally:
            os.close(writing)
        peaks: dict[int, float] = {}
        try:
            while process.poll() is None:
                for pid in _descendants(process.pid):
                    peaks[pid] = max(peaks.get(pid, 0.0), _peak_mib(pid))
                time.sleep(_SAMPLE_EVERY_S)
        except BaseException:  # the row has no time left
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        status, cpu_s, took_s, largest_kib = pipe.read().split() or ("-1", "0", "0", "0")
        exit_code = os.waitstatus_to_exitcode(int(status)) if process.returncode == 0 else process.returncode
        if exit_code not in (0, _NOT_BEGUN):
            printed.seek(0)
            raise AssertionError(
                f"{shlex.join(map(str, command))} exited with {exit_code}: {last_words(printed.read())}"
            )
    return Cost(cpu_s=float(cpu_s), wall_s=float(took_s), memory_mib=_memory(peaks.values(), int(largest_kib) / 1024))


def _memory(sampled: Iterable[float], largest: float) -> tuple[float, ...]:
    """Return the peaks, in MiB. Samples can miss the last growth of the largest process, which Linux counts exactly."""
    rest = sorted((each for each in sampled if each), reverse=True)[1:]
    return (largest, *(min(each, largest) for each in rest))


def last_words(printed: bytes) -> str:
    """Return the end of the output of a failed program."""
    return printed.decode(errors="replace").strip()[-_LAST_BYTES:] or "it printed nothing"


def cost_so_far(pid: int) -> Cost:
    """Return the cost of a process and its descendants since their start. The wall time is a clock reading."""
    family = [pid, *_descendants(pid)]
    return Cost(cpu_s=sum(map(_cpu_s, family)), wall_s=time.perf_counter(), memory_mib=_sorted(map(_peak_mib, family)))


def subtract_cost(before: Cost, after: Cost) -> Cost:
    """Return the difference of two results of `cost_so_far`."""
    return Cost(cpu_s=after.cpu_s - before.cpu_s, wall_s=after.wall_s - before.wall_s, memory_mib=after.memory_mib)


def resident_mib(pid: int) -> tuple[float, ...]:
    """Return the memory that a process and each of its descendants have now, the largest first."""
    return _sorted(_status_mib(each, "VmRSS:") for each in (pid, *_descendants(pid)))


def descriptors(pid: int) -> int:
    """Return how many files a process and its descendants have open."""
    return sum(len(os.listdir(f"/proc/{each}/fd")) for each in (pid, *_descendants(pid)))


def _sorted(sizes_mib: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted((each for each in sizes_mib if each), reverse=True))


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # the thread has just ended
        for child in children:
            yield int(child)
            yield from _descendants(int(child))


def _cpu_s(pid: int) -> float:
    """Return the time of a process, exact, and of its children that have ended, in clock ticks."""
    try:
        own = time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3) of Linux
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # the process has just ended: its parent counts it
    return own + (int(fields[13]) + int(fields[14])) / _TICKS


def _peak_mib(pid: int) -> float:
    return _status_mib(pid, "VmHWM:")


def _status_mib(pid: int, field: str) -> float:
    """Return a size from /proc/PID/status, or 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    _, found, rest = status.partition(field)
    return int(rest.split()[0]) / 1024 if found else 0.0
