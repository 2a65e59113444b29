"""What a process costs, of processor, time and memory; and what one that goes on has cost so far."""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROUNDS: Final = 5  # of which the median counts

_LAST: Final = 500  # characters
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """In seconds, and in MiB of the largest process."""

    cpu_s: float
    wall_s: float
    peak_mib: float | None = None

    def __truediv__(self, times: int) -> Cost:
        return Cost(cpu_s=self.cpu_s / times, wall_s=self.wall_s / times, peak_mib=self.peak_mib)


def median(costs: Iterable[Cost]) -> Cost:
    """The median of each by itself."""
    each = list(costs)
    peaks = [cost.peak_mib for cost in each if cost.peak_mib is not None]
    return Cost(
        cpu_s=statistics.median(cost.cpu_s for cost in each),
        wall_s=statistics.median(cost.wall_s for cost in each),
        peak_mib=statistics.median(peaks) if peaks else None,
    )


_PARTIAL: Final = 8  # what `gitboot run --once` ends with where nobody has said yet what is installed


def of_command(
    command: Sequence[str | Path], *, rounds: int = ROUNDS, before: Callable[[], object] = lambda: None, **how: object
) -> Cost:
    """Run a command so often, ``before`` it each time that, and give the median; what it starts counts with it."""
    return median(_once(command, before, how) for _ in range(rounds))


# A process counts as its own peak what its parent held when it was started: so a small one starts it, and waits for it.
_STARTER: Final = """
import os, sys, time
began = time.perf_counter()
process = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(process, 0)
took = time.perf_counter() - began
os.write(int(sys.argv[1]), b"%d %a %a %d" % (status, usage.ru_utime + usage.ru_stime, took, usage.ru_maxrss))
"""


def _once(command: Sequence[str | Path], before: Callable[[], object], how: dict[str, object]) -> Cost:
    before()
    found, told = os.pipe()
    starter = (sys.executable, "-I", "-S", "-c", _STARTER, str(told), *map(str, command))
    given = {"stdout": subprocess.DEVNULL, **how, "pass_fds": (told,), "start_new_session": True}
    with tempfile.TemporaryFile() as said, os.fdopen(found) as pipe:
        try:
            process = subprocess.Popen(starter, **{"stderr": said, **given})  # type: ignore[call-overload]
        finally:
            os.close(told)
        try:
            process.wait()
        except BaseException:  # its row has no time left
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        status, cpu_s, took_s, peak_kib = pipe.read().split() or ("-1", "0", "0", "0")
        ended = os.waitstatus_to_exitcode(int(status)) if process.returncode == 0 else process.returncode
        if ended not in (0, _PARTIAL):
            said.seek(0)
            raise AssertionError(f"{shlex.join(map(str, command))} ended with {ended}: {last_words(said.read())}")
    return Cost(cpu_s=float(cpu_s), wall_s=float(took_s), peak_mib=int(peak_kib) / 1024)


def last_words(said: bytes) -> str:
    """What a program that failed has said at its end."""
    return said.decode(errors="replace").strip()[-_LAST:] or "it said nothing"


def so_far(pid: int) -> Cost:
    """What a process and all that it has started have cost until now; wall is the clock's."""
    family = list(_family(pid))
    return Cost(
        cpu_s=sum(map(_cpu_s, family)),
        wall_s=time.perf_counter(),
        peak_mib=max((_peak_mib(each) for each in family), default=0.0),
    )


def between(before: Cost, after: Cost) -> Cost:
    return Cost(cpu_s=after.cpu_s - before.cpu_s, wall_s=after.wall_s - before.wall_s, peak_mib=after.peak_mib)


def _family(pid: int) -> Iterable[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _family(int(child))


def _cpu_s(pid: int) -> float:
    """A process's own to the nanosecond, and by the tick that of its children which have ended."""
    try:
        own = time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3), as Linux makes it
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended, and counts with its parent
    return own + (int(fields[13]) + int(fields[14])) / _TICKS


def _peak_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    _, told, peak = status.partition("VmHWM:")
    return int(peak.split()[0]) / 1024 if told else 0.0  # one that has ended, and is not waited for yet, has none
