"""Fetches by a process of its own: what a remote sends is unpacked there, within limits, and nowhere else."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from threading import Lock
from typing import Final

from gitboot.child_processes import OUT_OF_MEMORY, Child, ended
from gitboot.errors import SourceError, SourceTooLarge
from gitboot.fleet.revision import Revision
from gitboot.git.fetch import Arrived, Order, Tip, order_of, raised, report
from gitboot.git.remote import Head, Remote
from gitboot.source.fetch_deadlines import Step

MEBIBYTES: Final = 512  # a history of three million objects, or a file of 250 MiB that comes as a difference
TOTAL_S: Final = 3600.0  # of whatever makes no new clone
_START_S: Final = 60.0  # until a process has read its program from a slow disk


class FetchProcess:
    """Fetches and pushes as `InThisProcess` does; raises `SourceTooLarge`, too, if that takes too much memory.

    Raises `SourceError` if the process does not report the next step of its work in time
    (`gitboot.source.fetch_deadlines`), or takes longer than ``deadline_s`` as a whole. A new clone may take as long as
    data arrives at the slowest rate. The process is killed then, and the next fetch starts another one.

    A process is started at the first need, and again after it has died; for several threads at once, one each. They
    end with the thread that started them, and with `close`.
    """

    def __init__(self, mebibytes: int | None = None, *, deadline_s: float = TOTAL_S) -> None:
        self._memory, self._deadline_s = (mebibytes or MEBIBYTES) << 20, deadline_s
        self._changing = Lock()  # what follows
        self._idle: Child | None = None
        self._busy: set[Child] = set()
        self._is_closed = False

    def fetch(self, remote: Remote, state: Path, *, anew: bool) -> tuple[Revision, Head | None]:
        found = self._ask(order_of("anew" if anew else "fetch", remote, state, None, self._memory))
        return Revision(found.revision), found.head

    def restore(self, remote: Remote, state: Path, accepted: Revision | None) -> bool:
        return self._ask(order_of("restore", remote, state, accepted, self._memory)).found

    def read_head(self, remote: Remote, state: Path) -> Head:
        head = self._ask(order_of("head", remote, state, None, self._memory)).head
        assert head is not None  # noqa: S101 - this order is to read it
        return head

    def fetch_branch(self, remote: Remote, repository: Path) -> None:
        self._ask(order_of("branch", remote, repository, None, self._memory))

    def read_tip(self, remote: Remote, repository: Path) -> Tip:
        found = self._ask(order_of("tip", remote, repository, None, self._memory))
        assert found.head is not None  # noqa: S101 - this order is to read it
        return Tip(found.revision or None, found.head)

    def push_branch(self, remote: Remote, repository: Path, expected: str | None, commit: str) -> None:
        # What is packed is gitboot's own, and may be large.
        self._ask(order_of("push", remote, repository, expected, None, pushed=commit))

    def close(self) -> None:
        """End the processes, whatever they are at, and start no more."""
        with self._changing:
            self._is_closed = True
            idle, self._idle = self._idle, None
            for child in self._busy:
                child.kill()
        if idle is not None:
            idle.kill()
            idle.put_away()

    def _ask(self, order: Order) -> Arrived:
        child, is_new = self._taken()
        start_s = _START_S if is_new else order.timeout_s
        first = Step(start_s, f"the process that fetches did not begin within {start_s:g} s")
        answered, waiting = None, _Waiting(first, _total_s(order, self._deadline_s))
        try:
            child.send(order)
            for frame in child.answers(waiting.left_s):
                found = report(frame)
                if not isinstance(found, Step):
                    answered = found
                    break
                waiting.begin(found)
            if answered is None:
                raise self._died(order.url, child.wait())
        except TimeoutError:
            raise SourceError(f"{order.url}: {waiting.complaint}") from None
        except BrokenPipeError:
            raise self._died(order.url, child.wait()) from None
        finally:
            self._give_back(child, is_free=answered is not None)
        if isinstance(answered, Arrived):
            return answered
        raise raised(answered)

    def _taken(self) -> tuple[Child, bool]:
        """Return a process that nobody else asks meanwhile, and whether it was started just now."""
        with self._changing:
            if self._is_closed:
                raise SourceError("nothing is fetched any more: this instance ends")
            child, self._idle = self._idle, None
            if child is not None and child.has_ended:
                child.put_away()
                child = None
            is_new = child is None
            child = child or Child("gitboot.source")
            self._busy.add(child)
            return child, is_new

    def _give_back(self, child: Child, *, is_free: bool) -> None:
        """Keep it for the next time, if it is at nothing any more; else end it."""
        with self._changing:
            self._busy.remove(child)
            if is_free and not self._is_closed and self._idle is None:
                self._idle = child
                return
        child.kill()
        child.put_away()

    def _died(self, url: str, status: int) -> SourceError | SourceTooLarge:
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):
            return SourceTooLarge(
                f"{url}: to fetch it takes more memory than the {self._memory >> 20} MiB that it may; let it have more "
                "(fetch-memory in the file of --config), or take the large file out of the history"
            )
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return SourceError(f"{url}: the fetch was killed, as where a machine has no memory left")
        return SourceError(f"{url}: the fetch ended {ended(status)}")


class _Waiting:
    """How long an instance still waits for the process that fetches."""

    def __init__(self, first: Step, total_s: float | None) -> None:
        self._began_s, self._total_s = time.monotonic(), total_s
        self.begin(first)

    def begin(self, step: Step) -> None:
        """Begin to wait for the end of a step."""
        self._step, self._step_ends_s = step, time.monotonic() + step.within_s

    def left_s(self) -> float:
        """Return how many seconds are left for this step, and for all of them."""
        left_s = self._step_ends_s - time.monotonic()
        return left_s if self._total_s is None else min(left_s, self._total_left_s(self._total_s))

    @property
    def complaint(self) -> str:
        """Return the message if the time is over."""
        if self._total_s is not None and self._total_left_s(self._total_s) <= 0:
            return f"the fetch was not complete after {self._total_s:g} s"
        return self._step.complaint

    def _total_left_s(self, total_s: float) -> float:
        return self._began_s + total_s - time.monotonic()


def _total_s(order: Order, deadline_s: float) -> float | None:
    """Return how long an order may take as a whole; None: as long as data arrives."""
    return None if order.work in ("anew", "restore") else deadline_s
