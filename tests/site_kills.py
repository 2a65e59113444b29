"""The end of a process at any of its system calls, for processes whose parts live in this one.

What changes files counts: between two such calls nobody can tell one instant from another. A process that has died
changes nothing any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final
from unittest.mock import patch

from gitboot.ledger.store import Store, Transaction

_CHANGES: Final = ("write", "pwrite", "rename", "replace", "unlink", "link", "mkdir", "rmdir", "symlink", "ftruncate")
_SYNCS: Final = ("fsync", "fdatasync")  # a kill is no power cut: they do nothing else here
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


_living: list[Fate] = []  # whose calls are made now: the last


@contextmanager
def living(fate: Fate) -> Iterator[None]:
    """A block in which it is this process that makes calls."""
    _living.append(fate)
    try:
        yield
    finally:
        _living.pop()


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


@contextmanager
def _writing(store: Store) -> Iterator[Transaction]:
    """A transaction, before which and before whose end its process may die."""
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
            stack.enter_context(patch.object(os, name, _mortal(_nothing)))
        stack.enter_context(patch.object(os, "open", _mortal(os.open, counts=_opens_to_change)))
        stack.enter_context(patch.object(Store, "writing", _writing))
        yield
