"""A running instance of gitboot over a fleet, and the cost of its first pass and of each commit."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import Cost, cost_so_far, descriptors, last_words, measure_command, resident_mib, subtract_cost
from benchmarks.fleet import Fleet
from benchmarks.gitboot_version import Gitboot
from benchmarks.repository import Repository

_PATIENCE_S: Final = 3600
_POLL_S: Final = 0.002
_QUIET_S: Final = 0.2  # after a commit is published, until the rest of its work has ended
_IDLE: Final = 0.05  # of a processor: a standby renews its look at the lease each second

Files = list[tuple[str, bytes | None]]  # path and content; None deletes the file
Edit = Callable[[Fleet, int], Files]  # return the files of the commit with this number


class Instance:
    """An instance whose files are below ``folder``."""

    def __init__(
        self, folder: Path, repository: Repository, fleet: Fleet, gitboot: Gitboot, *options: str, settings: str = ""
    ) -> None:
        """``options`` are more options of `gitboot run`, ``settings`` are more lines of its configuration file."""
        folder.mkdir(exist_ok=True)
        self.gitboot = gitboot
        self.output, self.state = folder / "output", folder / "state"
        self._stderr = folder / "stderr"
        self._options = (
            *("--out", str(self.output), "--state", str(self.state), "--poll", "3600"),
            *("--check-assets", "off"),  # the images of the fleet do not exist
            *("--spool", str(folder / "spool")),  # without it, gitboot warns for each server that it cannot see fetches
            *gitboot.run_options(folder / "run.toml", settings),
            *options,
        )
        self._repository, self._fleet = repository, fleet
        self._commits = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *options: str) -> tuple[str, ...]:
        return self.gitboot.command("run", str(self._repository.path), *self._options, *options)

    def begin(self, records: str = "adopt") -> Cost:
        """Publish the fleet into an empty OUTPUT and return the cost. Then record all servers as installed."""
        (first_pass,) = measure_command(self.command("--once"), rounds=1)
        begin = ("records", "begin", records, "--yes", "--state", str(self.state))
        measure_command(self.gitboot.command(*begin), rounds=1)
        return first_pass

    @contextmanager
    def running(self, *options: str) -> Iterator[Cost]:
        """Run the instance inside the block. Yield the cost from its start until it has published its commit."""
        began = time.perf_counter()
        try:
            self.start(*options)
            self.wait_until_published(None)
            cost = self.cost_so_far()
            yield Cost(cpu_s=cost.cpu_s, wall_s=cost.wall_s - began, memory_mib=cost.memory_mib)
        finally:
            self.end()

    def start(self, *options: str) -> None:
        """Start the instance without waiting for it."""
        (self.state / "status.json").unlink(missing_ok=True)
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(self.command(*options), stderr=stderr)

    def end(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """End the instance. The processes that it started end with it."""
        if self._process is not None:
            self._process.send_signal(sent)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cost_so_far(self) -> Cost:
        """Return the cost of the instance since its start."""
        return cost_so_far(self.pid)

    def resident_mib(self) -> tuple[float, ...]:
        """Return the memory of each of its processes now."""
        return resident_mib(self.pid)

    def descriptors(self) -> int:
        """Return how many files its processes have open."""
        return descriptors(self.pid)

    def wait_until_standby(self) -> None:
        """Wait until the instance reports that another one is active."""
        self.wait_until(lambda: any(each["reason"] == "StandbyStarted" for each in self.status().get("conditions", ())))

    def wait_until_published(self, revision: str | None) -> None:
        """Wait until the instance has published this commit. None means any commit.

        Raises AssertionError if gitboot rejects or holds the commit.
        """
        self.wait_until(lambda: (commit := self._published()) is not None and revision in (None, commit))

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Wait for a condition. Raises AssertionError if the instance ends, or after an hour."""
        assert self._process is not None
        until = time.monotonic() + _PATIENCE_S
        while not is_over():
            if self._process.poll() is not None or time.monotonic() > until:
                printed = last_words(self._stderr.read_bytes())
                raise AssertionError(f"the instance ended, or made no progress: {' '.join(self.command())}: {printed}")
            time.sleep(_POLL_S)

    def wait_until_idle(self, quiet_s: float = 2.0) -> None:
        """Wait until the processes of the instance use less than 5 % of a processor for this time."""
        before, now = -1.0, self.cost_so_far().cpu_s
        while now - before > quiet_s * _IDLE:
            time.sleep(quiet_s)
            before, now = now, self.cost_so_far().cpu_s

    def status(self) -> dict[str, Any]:
        """Return the status file, or an empty dictionary before the instance has written one."""
        try:
            found: dict[str, Any] = json.loads((self.state / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _published(self) -> str | None:
        if not (status := self.status()):
            return None
        errors = [each for each in status["attempted"]["problems"] if each["severity"] == "error"]
        assert not errors, errors
        assert not status["attempted"]["held"], status["attempted"]["held"]
        commit: str | None = status["applied"]["commit"] if status["plannedAt"] is not None else None
        return commit

    def commit(self, edit: Edit) -> None:
        """Make one commit, and wait until it is published."""
        self._commits += 1
        self.wait_until_published(self._repository.commit(edit(self._fleet, self._commits)))

    def measure_commits(self, edit: Edit, rounds: int) -> list[Cost]:
        """Return the cost of each commit. The wall time is from the commit in the repository to the last file."""
        costs = []
        for _ in range(rounds + 1):
            self._commits += 1
            before = self.cost_so_far()
            revision = self._repository.commit(edit(self._fleet, self._commits))
            began = time.perf_counter()
            self.wait_until_published(revision)
            took_s = time.perf_counter() - began
            time.sleep(_QUIET_S)
            cost = subtract_cost(before, self.cost_so_far())
            costs.append(Cost(cpu_s=cost.cpu_s, wall_s=took_s, memory_mib=cost.memory_mib))
        return costs[1:]  # the first commit does extra work once


# Commits


def edit_readme(_: Fleet, number: int) -> Files:
    return [("README.md", f"# The fleet, {number}\n".encode())]


def edit_one_server(fleet: Fleet, number: int) -> Files:
    """Change a kernel argument of one server."""
    which = (number * 7919) % fleet.servers
    return [(fleet.path(which), fleet.server(which) + b"  kernelArguments: [note=%d]\n" % number)]


POOL: Final = "pool-05"  # the role of one server in forty


def edit_policy(fleet: Fleet, number: int) -> Files:
    """Change a kernel argument in the policy of one server in forty."""
    path = f"policies/{POOL}.yaml"
    return [(path, fleet.shared()[path].replace(b"hugepages=", b"note=%d, hugepages=" % number))]


def edit_every_server(fleet: Fleet, number: int) -> Files:
    """Change a kernel argument of each server."""
    argument = b"  kernelArguments: [note=%d]\n" % number
    return [(fleet.path(each), fleet.server(each) + argument) for each in range(fleet.servers)]
