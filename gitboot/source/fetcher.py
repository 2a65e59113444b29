"""Fetches by a process of its own: what a remote sends is unpacked there, within limits, and nowhere else."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from threading import Lock
from typing import Final

from gitboot.errors import SourceError, SourceTooLarge
from gitboot.frames import OUT_OF_MEMORY, Child, ended
from gitboot.load import Revision
from gitboot.source.remote import Head, Remote
from gitboot.source.sending import Arrived, Order, order_of, raised, report

MEBIBYTES: Final = 512  # a history of three million objects, or a file of 250 MiB that comes as a difference
TOTAL_S: Final = 3600.0  # of a fetch; libgit2 has a timeout only between two bytes


class FetchProcess:
    """Fetches as `InThisProcess` does; raises `SourceTooLarge`, too, where it takes more memory than it may.

    Raises `SourceError` if a fetch takes longer than ``deadline_s`` as a whole.

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
        child, answered, ends_s = self._taken(), None, time.monotonic() + self._deadline_s
        try:
            child.send(order)
            answered = report(next(child.answers(lambda: ends_s - time.monotonic())))
        except TimeoutError:
            raise SourceError(f"{order.url}: the fetch was not complete after {self._deadline_s:g} s") from None
        except (StopIteration, BrokenPipeError):
            raise self._died(order.url, child.wait()) from None
        finally:
            self._give_back(child, is_free=answered is not None)
        if isinstance(answered, Arrived):
            return answered
        raise raised(answered)

    def _taken(self) -> Child:
        """A process that nobody else asks meanwhile."""
        with self._changing:
            if self._is_closed:
                raise SourceError("nothing is fetched any more: this instance ends")
            child, self._idle = self._idle, None
            if child is not None and child.has_ended:
                child.put_away()
                child = None
            child = child or Child("gitboot.source")
            self._busy.add(child)
            return child

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
