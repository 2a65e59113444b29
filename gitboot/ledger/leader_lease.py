"""Leader lease of a shared PostgreSQL ledger: only the instance that holds the lease is active.

Each new holder gets a new number, the epoch. The clock of the database server determines when the lease expires. Each
transaction of the holder first renews the lease. The transaction fails if another instance has taken the lease.
Therefore two instances never write at the same time. Between transactions, an instance measures the age of its lease
with its own clock, starting when it sent the last renewal. Therefore the lease expires for the instance before it
expires in the database.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import Struct

from gitboot.background_threads import BackgroundThread
from gitboot.errors import LeaseLost
from gitboot.files import write_atomically

if TYPE_CHECKING:
    from gitboot.ledger.postgresql import LeaseConnection

LEASE_SECONDS: Final = 15.0
NO_HOLDER: Final = ""  # the lease holder of a ledger that was moved
# without a transaction that renews the lease, gitboot renews it after its duration divided by this number
SHARE: Final = 5
_ENDING_S: Final = 0.5  # maximum time for which `check_ending` waits for another thread's renewal
_END_TIMEOUT_S: Final = 1.0  # maximum wait for a renewal that is running when gitboot ends
_HOLDER_FILE: Final = "holder"  # in STATE
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def describe_place(state: Path) -> str:
    """Return an instance's host and state directory as text for messages."""
    return f"{socket.gethostname()}:{state.resolve()}"


class Holder(NamedTuple):
    """An instance that can hold the lease, identified by its state directory and by the boot ID of its host.

    An instance keeps its holder ID when it restarts, so it can take over its own lease without waiting.
    """

    id: str
    place: str  # for messages
    seconds: float = LEASE_SECONDS  # the duration of the lease

    @classmethod
    def load(cls, state: Path, seconds: float = LEASE_SECONDS) -> Self:
        """Return the holder for a state directory on this host.

        A copy of the state directory is a different holder. A clone of the host with the same name and files is also a
        different holder. Raises OSError if the ID of the holder cannot be stored.
        """
        path = state / _HOLDER_FILE
        if not path.exists():
            write_atomically(path, f"{token_hex(16)}\n".encode())
        started = _BOOT_ID.read_text().strip().replace("-", "")
        return cls(
            f"{path.read_text(errors='replace').strip()}-{path.stat().st_ino:x}-{started}@{socket.gethostname()}",
            describe_place(state),
            seconds,
        )


class Lease(NamedTuple):
    """The lease of one holder. Its text identifies the lease in output trees."""

    holder: str
    epoch: int  # increases when another holder takes the lease; a restarted holder keeps its epoch

    def __str__(self) -> str:
        return f"{self.epoch}/{self.holder}"


class LeaseState(NamedTuple):
    """The state of the lease in the database."""

    number: int
    place: str  # host and state directory of the current or last holder
    holder: str
    is_current: bool  # whether the lease has not expired
    until: str  # when the lease expires, by the database server's clock


class HeldLease(Struct):
    """A lease as seen by the instance that holds it."""

    lease: Lease
    seconds: float
    name: str  # the name of the ledger, for messages
    place: str = ""  # host and state directory of the instance
    until_s: float = 0.0  # when the lease expires, on the clock of `now_s`
    is_lost: bool = False  # whether another instance took the lease; once true, it stays true
    # Host and state directory of the previous holder; None: there was no other holder.
    previous_place: str | None = None
    moved_message: str | None = None  # the message to raise if the ledger was moved

    def extend(self, sent_s: float) -> None:
        """Extend the lease after a renewal that was sent at ``sent_s``."""
        self.until_s = max(self.until_s, sent_s + self.seconds)

    def mark_lost(self) -> LeaseLost:
        """Mark the lease as lost, and return the error to raise."""
        self.is_lost = True
        return LeaseLost(self.moved_message or f"{self.name}: another instance is active with this ledger")

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is lost, or has expired on this host's clock."""
        if self.is_lost:
            raise self.mark_lost()
        if now_s() >= self.until_s:
            raise LeaseLost(
                f"{self.name}: another instance may be active with this ledger, because the lease could not be renewed "
                f"for {self.seconds:g} s"
            )


class LeaseKeeper:
    """Renews a lease in a background thread during a `with` block.

    The thread calls ``on_lost`` once if the lease is lost.
    """

    def __init__(self, lease: HeldLease, connection: LeaseConnection, on_lost: Callable[[], None]) -> None:
        self._lease, self._connection, self._on_lost = lease, connection, on_lost
        self._lock = threading.Lock()
        self._is_unanswered = False  # whether the last renewal got no response
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
        """Raise `LeaseLost` unless the database server confirms that this instance still holds the lease. Thread-safe.

        The local clock cannot prove that the lease is still valid, because the clock of a virtual machine stops while
        the virtual machine is paused.
        """
        self._lease.check()
        if not self._renew():
            raise LeaseLost(f"{self._lease.name}: the database did not confirm that this instance holds the lease")

    def check_ending(self) -> None:
        """Raise `LeaseLost` if this instance may have lost the lease.

        Call this method before a change that only clears an override. Unlike `check`, this method relies on the last
        confirmed lease if the server does not respond. It waits at most `_ENDING_S` seconds for a renewal by another
        thread.
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
        """Renew the lease, unless another thread has just renewed it. Return whether the lease was renewed."""
        until_s = now_s() + self._lease.seconds
        with self._lock:
            self._request_renewal(until_s)
        return self._lease.until_s >= until_s

    def _request_renewal(self, until_s: float) -> None:
        """Renew the lease if it expires before ``until_s``. The caller must hold `_lock`."""
        if self._lease.until_s < until_s:
            self._connection.renew(self._lease)
            self._is_unanswered = self._lease.until_s < until_s


def now_s() -> float:
    """Return the seconds since boot.

    This clock is never adjusted, and it keeps running while the machine is suspended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
