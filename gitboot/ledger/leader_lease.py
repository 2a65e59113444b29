"""The lease of a ledger in a PostgreSQL: one instance at a time acts by it, under a number that no other has had.

It runs out by the clock of the server, which all ask. Every transaction of who has it renews it first, and is refused
where another has taken it since: what is written is never of two. Between two transactions an instance goes by its own
clock, which counts from before the last renewal was sent, and so ends earlier.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct, field

from gitboot.background_threads import BackgroundThread
from gitboot.errors import LeaseLost
from gitboot.files import write_atomically

if TYPE_CHECKING:
    from gitboot.ledger.postgresql import LeaseConnection

LEASE_SECONDS: Final = 15.0
SHARE: Final = 5  # of them, until it is renewed where no transaction does
_ENDING_S: Final = 0.5  # that a request which only ends something waits for another renewal
_END_TIMEOUT_S: Final = 1.0  # for a renewal that is under way at the end
_HOLDER_FILE: Final = "holder"  # in STATE
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def describe_place(state: Path) -> str:
    """Return where the instance with this state directory is, in words."""
    return f"{socket.gethostname()}:{state.resolve()}"


class Holder(NamedTuple):
    """An instance on its state directory, however often it is started: it takes its own lease without waiting."""

    id: str
    place: str  # as people are told it
    seconds: float = LEASE_SECONDS  # how long it has the lease without renewing it

    @classmethod
    def load(cls, state: Path, seconds: float = LEASE_SECONDS) -> Self:
        """The one whose state directory this is, since this machine has started; a copy of either is another.

        A machine that was cloned, or restored beside itself, has the same name and the same files. Raises OSError.
        """
        path = state / _HOLDER_FILE
        if not path.exists():
            write_atomically(path, f"{token_hex(16)}\n".encode())
        started = _BOOT_ID.read_text().strip().replace("-", "")
        id = f"{path.read_text().strip()}-{path.stat().st_ino:x}-{started}@{socket.gethostname()}"
        return cls(id, describe_place(state), seconds)


class Lease(NamedTuple):
    holder: str
    epoch: int  # counts up with each that is given to another; who starts anew goes on with its own

    def __str__(self) -> str:
        return f"{self.epoch}/{self.holder}"


class LeaseState(NamedTuple):
    """A lease as everybody sees it."""

    number: int
    place: str  # where its instance is, or was
    holder: str
    is_current: bool  # whether it has not run out
    until: str  # by the clock of the server


class HeldLease(Struct):
    """A lease as its instance sees it."""

    lease: Lease
    seconds: float
    name: str  # of the ledger, as people are told it
    place: str = ""  # of its instance
    until_s: float = field(default=0.0)  # by this machine's clock
    is_lost: bool = False  # another has it, and this one never will again
    previous_place: str | None = None  # where the one is that had it before; None: it was its own, or nobody's
    moved_message: str | None = None  # the ledger goes on elsewhere: what people are told of that

    def extend(self, sent_s: float) -> None:
        self.until_s = max(self.until_s, sent_s + self.seconds)

    def mark_lost(self) -> LeaseLost:
        self.is_lost = True
        return LeaseLost(self.moved_message or f"{self.name}: another instance acts by this ledger now")

    def check(self) -> None:
        if self.is_lost:
            raise self.mark_lost()
        if now_s() >= self.until_s:
            late = f"it could not be renewed for {self.seconds:g} s"
            raise LeaseLost(f"{self.name}: another instance may act by this ledger: {late}")


class LeaseKeeper:
    """Renews a lease from a thread, for as long as the block runs; ``on_lost`` is called once, from there."""

    def __init__(self, lease: HeldLease, connection: LeaseConnection, on_lost: Callable[[], None]) -> None:
        self._lease, self._connection, self._on_lost = lease, connection, on_lost
        self._lock = threading.Lock()
        self._is_unanswered = False  # whether the server did not answer when it was last asked to renew it
        self._ending = threading.Event()
        self._thread = BackgroundThread(self._run, name="lease", first_pause_s=lease.seconds / SHARE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(timeout_s=_END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._ending.wait(self._lease.seconds / SHARE):
            try:
                self._renew()
            except LeaseLost:
                self._on_lost()
                break
        with self._lock:
            self._connection.close()

    def check(self) -> None:
        """Raise `LeaseLost` unless the server says, now, that nobody else has it; from any thread.

        The clock of a virtual machine that its host has stopped knows nothing of that: it is not enough to look at.
        """
        self._lease.check()
        if not self._renew():
            raise LeaseLost(f"{self._lease.name}: it cannot be asked whether another instance acts by this ledger")

    def check_ending(self) -> None:
        """Raise `LeaseLost` as `check` does, for a request that only ends something.

        If the server does not answer, the lease that it confirmed last is enough. Nobody waits for it longer than
        `_ENDING_S` while another thread asks it.
        """
        self._lease.check()
        until_s = now_s() + self._lease.seconds
        if not self._is_unanswered and self._lock.acquire(timeout=_ENDING_S):
            try:
                self._request_renewal(until_s)
            finally:
                self._lock.release()
        self._lease.check()

    def _renew(self) -> bool:
        """Renew it, unless that was done by another thread since this was called; say whether it is renewed."""
        until_s = now_s() + self._lease.seconds
        with self._lock:
            self._request_renewal(until_s)
        return self._lease.until_s >= until_s

    def _request_renewal(self, until_s: float) -> None:
        """Ask the server to renew it, if it does not last until then; for the thread that has `_asking`."""
        if self._lease.until_s < until_s:
            self._connection.renew(self._lease)
            self._is_unanswered = self._lease.until_s < until_s


def now_s() -> float:
    """Seconds by a clock that nobody sets, and that goes on while this machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
