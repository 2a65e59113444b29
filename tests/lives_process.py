"""The end of a process whose parts live in this one: at any of its writes, before or after they are durable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gitboot.errors import LedgerError
from gitboot.ledger import Ledger


class Crash(BaseException):
    """The end of the process, at this very instruction."""


@dataclass
class Fate:
    """When the process dies, and whether it has: then it writes nothing any more."""

    dead: bool = False
    dies_in: tuple[int, str] | None = None  # writes from now, and how: "before", "unmarked", "after"; or "full"

    def befall(self, ledger: Ledger) -> None:
        """Let it come with a write to this ledger."""
        store = ledger._store
        store._connection.execute("PRAGMA synchronous = OFF")  # no power cut is tested with it
        writing, write_mark = store.writing, store._write_mark
        unmarked = False

        @contextmanager
        def mortal(*, marked: bool = False) -> Iterator[Any]:
            nonlocal unmarked
            how = self._next()
            if how == "full":
                raise LedgerError("the disk is full")
            unmarked = how == "unmarked"
            with writing(marked=marked) as connection:
                yield connection
                if how == "before":
                    self.die()
            if how is not None:
                self.die()

        def mark() -> None:
            if unmarked:
                self.die()
            write_mark()

        store.writing = mortal  # type: ignore[method-assign]
        store._write_mark = mark  # type: ignore[method-assign]

    def die(self) -> None:
        self.dead = True
        raise Crash

    def _next(self) -> str | None:
        if self.dead:
            raise Crash
        if self.dies_in is None:
            return None
        left, how = self.dies_in
        self.dies_in = (left - 1, how) if left else None
        return None if left else how
