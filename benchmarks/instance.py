"""An instance that runs over a fleet, and what each commit costs it: of all its processes, until it is published."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import ROUNDS, Cost, between, last_words, median, of_command, so_far
from benchmarks.fleet import Fleet
from benchmarks.repository import Repository
from gitboot.publish.tree import PENDING

GITBOOT: Final = (sys.executable, "-m", "gitboot")
ANYTHING: Final = 'max-update-percent = 100\nmax-reinstalls = 1000000000\naccept-filesystem = ["tmpfs"]\n'

_PATIENCE_S: Final = 3600
_QUIET_S: Final = 0.2  # after which whatever else a commit has set off has ended
_LULL_S: Final = 2.0
_IDLE: Final = 0.01  # of a processor: who takes less does nothing

Edit = Callable[[Fleet, int], list[tuple[str, bytes | None]]]  # the files of a commit that is the nth of its kind


class Instance:
    """An instance at ``folder``; what it costs at its first pass, and then with each commit."""

    def __init__(self, folder: Path, repository: Repository, fleet: Fleet, *more: str, settings: str = "") -> None:
        """``settings`` are lines of its configuration file."""
        folder.mkdir(exist_ok=True)
        self._more = more
        self._config = folder / "run.toml"
        self._config.write_text(ANYTHING + settings)
        self.output, self._state, self._spool = folder / "output", folder / "state", folder / "spool"
        self._said = folder / "stderr"
        self._repository, self._fleet = repository, fleet
        self._commits = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *how: str) -> tuple[str, ...]:
        where = ("--out", str(self.output), "--state", str(self._state), "--poll", "3600")
        nowhere = ("--check-assets", "off")  # where its images are
        heard = ("--spool", str(self._spool))  # else nothing could prove a boot, and it would say so of each server
        config = ("--config", str(self._config))
        return (*GITBOOT, "run", str(self._repository.path), *where, *nowhere, *heard, *config, *self._more, *how)

    def begin(self) -> Cost:
        """Publish all, and tell it that all servers are installed: the ledger is in no doubt from then on.

        What it cost to publish is returned.
        """
        found = of_command(self.command("--once"), rounds=1)
        begin = ("records", "begin", "adopt", "--yes", "--state", str(self._state))
        of_command([*GITBOOT, *begin], rounds=1)
        return found

    @contextmanager
    def running(self, *how: str) -> Iterator[Cost]:
        """From its start on; what that cost, until it had published what there was to publish."""
        began = time.perf_counter()
        try:
            self.start(*how)
            found = self.published()
            yield Cost(cpu_s=found.cpu_s, wall_s=found.wall_s - began, peak_mib=found.peak_mib)
        finally:
            self.end()

    def start(self, *how: str) -> None:
        """Begin, and wait for nothing."""
        (self._state / "status.json").unlink(missing_ok=True)
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(self.command(*how), stderr=said)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """What it has started ends with it."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def dies_publishing(self) -> None:
        """Wait until it is in the middle of a publication, and kill it there."""
        assert self._process is not None
        while not (self.output / PENDING).exists():
            assert self._process.poll() is None, last_words(self._said.read_bytes())
            time.sleep(0.001)
        self.end(signal.SIGKILL)

    def published(self) -> Cost:
        """What it has cost so far, once it has published what there is to publish."""
        assert self._process is not None
        self.until_applied(None)
        return so_far(self._process.pid)

    def spent(self) -> Cost:
        """What it has cost so far."""
        assert self._process is not None
        return so_far(self._process.pid)

    def stands_by(self) -> None:
        """Wait until it says that another one acts."""
        assert self._process is not None
        while not any(each["reason"] == "StandingBy" for each in self._said_of_itself().get("conditions", ())):
            assert self._process.poll() is None, last_words(self._said.read_bytes())
            time.sleep(0.05)

    def has_prepared(self) -> None:
        """Wait until it has made its tree, which it does while another one acts."""
        assert self._process is not None
        while b'"Prepared"' not in self._said.read_bytes():
            assert self._process.poll() is None, last_words(self._said.read_bytes())
            time.sleep(0.05)

    def _said_of_itself(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._state / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def resident_kib(self) -> int:
        """What the instance itself holds in memory, without its evaluator."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def settle(self) -> None:
        """Wait until what goes on beside it since its start, as looking through the tree, has ended."""
        assert self._process is not None
        before, spent = -1.0, so_far(self._process.pid).cpu_s
        while spent - before > _LULL_S * _IDLE:
            time.sleep(_LULL_S)
            before, spent = spent, so_far(self._process.pid).cpu_s

    def commits(self, edit: Edit, rounds: int = ROUNDS) -> Cost:
        """The median of commits of one kind; wall is from the commit in the repository to its last file."""
        assert self._process is not None
        costs = []
        for _ in range(rounds + 1):  # the first makes what the others find made
            self._commits += 1
            before = so_far(self._process.pid)
            revision = self._repository.commit(edit(self._fleet, self._commits))
            began = time.perf_counter()
            self.until_applied(revision)
            took = time.perf_counter() - began
            time.sleep(_QUIET_S)
            cost = between(before, so_far(self._process.pid))
            costs.append(Cost(cpu_s=cost.cpu_s, wall_s=took, peak_mib=cost.peak_mib))
        return median(costs[1:])

    def _applied(self) -> str | None:
        if not (status := self._said_of_itself()):
            return None
        if problems := status["attempted"]["problems"]:
            raise AssertionError(problems)
        if held := status["attempted"]["held"]:
            raise AssertionError(held)
        commit: str | None = status["applied"]["commit"] if status["plannedAt"] is not None else None
        return commit

    def until_applied(self, revision: str | None) -> None:
        """Wait until it says that it has published that commit; None: any."""
        assert self._process is not None
        end = time.monotonic() + _PATIENCE_S
        while (applied := self._applied()) is None or revision not in (None, applied):
            if self._process.poll() is not None or time.monotonic() > end:
                last = last_words(self._said.read_bytes())
                raise AssertionError(f"the instance ended, or did nothing: {' '.join(self.command())}: {last}")
            time.sleep(0.002)


# Commits


def readme(_: Fleet, number: int) -> list[tuple[str, bytes | None]]:
    return [("README.md", f"# The fleet, {number}\n".encode())]


def one_server(fleet: Fleet, number: int) -> list[tuple[str, bytes | None]]:
    """A server gets an argument of its own."""
    which = (number * 7919) % fleet.servers
    return [(fleet.path(which), fleet.server(which) + b"  kernelArguments: [note=%d]\n" % number)]


def pool(fleet: Fleet, number: int) -> list[tuple[str, bytes | None]]:
    """The servers of a pool, one in forty, get another argument."""
    text = fleet.shared()["policies/pool-05.yaml"]
    return [("policies/pool-05.yaml", text.replace(b"hugepages=", b"note=%d, hugepages=" % number))]


def every_server(fleet: Fleet, number: int) -> list[tuple[str, bytes | None]]:
    """Each server gets arguments of its own."""
    argument = b"  kernelArguments: [note=%d]\n" % number
    return [(fleet.path(each), fleet.server(each) + argument) for each in range(fleet.servers)]
