"""The end of a process at any of its system calls, for processes whose parts live in this one.

What changes files counts: between two such calls nobody can tell one instant from another. A process that has died
changes nothing any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import wraps
from queue import SimpleQueue
from typing import Any, Final
from unittest.mock import patch

from gitboot.errors import LedgerError
from gitboot.ledger.store import Store, Transaction

_CHANGES: Final = ("write", "pwrite", "rename", "replace", "unlink", "link", "mkdir", "rmdir", "symlink", "ftruncate")
_SYNCS: Final = ("fsync", "fdatasync")  # a kill is no power cut: they do nothing else here, unless one is held
_TO_CHANGE: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The end of a process, at this very instruction."""


class Fate:
    """When a process dies, and whether it has."""

    def __init__(self) -> None:
        self.dead = False
        self.dies_in: int | None = None  # calls from now
        self.calls = 0

    def next(self) -> None:
        """One call more, if the process lives to make it."""
        if not self.dead and self.dies_in is not None:
            self.dead = self.dies_in == 0
            self.dies_in -= 1
        if self.dead:
            raise Killed
        self.calls += 1


class HeldSyncs:
    """Syncs of an endpoint's fetch log, each of which lasts until the test ends it.

    Only `fdatasync` in the thread of a fetch log is held: gitboot calls it once for each batch of lines.
    """

    thread: Final = "spool"  # the name that `gitboot.observe.spool` gives to its thread

    def __init__(self) -> None:
        self.begun: SimpleQueue[Future[None] | None] = (
            SimpleQueue()
        )  # a result or an OSError ends a sync; None: no more
        self.on_begin: Callable[[], object] = lambda: None  # called by the thread of the fetch log
        self._lock, self._is_over = threading.Lock(), False

    def hold(self) -> None:
        """Wait for the end of one sync. Raises the OSError with which the test ends it."""
        ends: Future[None] = Future()
        with self._lock:
            if self._is_over:
                return
            self.begun.put(ends)
        self.on_begin()
        ends.result()

    def release(self) -> None:
        """End every sync that is still held, and hold no other."""
        with self._lock:
            self._is_over = True
            while not self.begun.empty():
                if (ends := self.begun.get()) is not None:
                    ends.set_result(None)


_living: list[Fate] = []  # whose calls are made now: the last
_held: list[HeldSyncs] = []  # who holds syncs now: the last
_unwritable: list[str] = []  # why no ledger can be written now


@contextmanager
def living(fate: Fate) -> Iterator[None]:
    """A block in which it is this process that makes calls."""
    _living.append(fate)
    try:
        yield
    finally:
        _living.pop()


@contextmanager
def holding(syncs: HeldSyncs) -> Iterator[None]:
    """Hold each sync of a fetch log that begins in this block."""
    _held.append(syncs)
    try:
        yield
    finally:
        _held.remove(syncs)
        syncs.release()


@contextmanager
def full_ledger() -> Iterator[None]:
    """Make each transaction of a ledger fail in this block, as if its disk were full."""
    _unwritable.append("the ledger cannot be written (database or disk is full)")
    try:
        yield
    finally:
        _unwritable.pop()


def _next() -> None:
    if _living:
        _living[-1].next()


def _mortal(real: Callable[..., Any], *, counts: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    @wraps(real)
    def call(*arguments: Any, **more: Any) -> Any:
        if counts(*arguments):
            _next()
        return real(*arguments, **more)

    return call


def _opens_to_change(_path: Any, flags: int, *_: Any) -> bool:
    return bool(flags & _TO_CHANGE)


def _nothing(*_: Any) -> None:
    """A sync of what no power cut will take."""


def _held_or_nothing(*_: Any) -> None:
    """A sync that a test may hold. Raises OSError."""
    if _held and threading.current_thread().name == HeldSyncs.thread:
        _held[-1].hold()


@contextmanager
def _writing(store: Store) -> Iterator[Transaction]:
    """A transaction, before which and before whose end its process may die. Raises LedgerError in `full_ledger`."""
    if _unwritable:
        raise LedgerError(_unwritable[-1])
    _next()
    with _REAL_WRITING(store) as tx:
        yield tx
        tx.send()
        _next()


_REAL_WRITING: Final = Store.writing


@contextmanager
def mortals() -> Iterator[None]:
    """A block in which processes can die so."""
    with ExitStack() as stack:
        for name in _CHANGES:
            stack.enter_context(patch.object(os, name, _mortal(getattr(os, name))))
        for name in _SYNCS:
            sync = _held_or_nothing if name == "fdatasync" else _nothing
            stack.enter_context(patch.object(os, name, _mortal(sync)))
        stack.enter_context(patch.object(os, "open", _mortal(os.open, counts=_opens_to_change)))
        stack.enter_context(patch.object(Store, "writing", _writing))
        yield
