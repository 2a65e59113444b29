"""The end of a process whose parts live in this one: at any of its writes, before or after they are durable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gitboot.errors import LedgerError
from gitboot.ledger.store import Transaction
from tests.helpers.instance_doubles import Unsynced


class Crash(BaseException):
    """The end of the process, at this very instruction."""


@dataclass
class Fate:
    """When the process dies, and whether it has: then it writes nothing any more."""

    dead: bool = False
    dies_in: tuple[int, str] | None = None  # writes from now, and how: "before", "unmarked", "after"; or "full"

    def die(self) -> None:
        self.dead = True
        raise Crash

    def next(self) -> str | None:
        """How the process dies with the write that is about to be made; None: it lives on."""
        if self.dead:
            raise Crash
        if self.dies_in is None:
            return None
        left, how = self.dies_in
        self.dies_in = (left - 1, how) if left else None
        return None if left else how


class Mortal(Unsynced):
    """A ledger whose process dies with one of its writes."""

    fate = Fate()
    _how: str | None = None

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        how = self.fate.next()
        if how == "full":
            raise LedgerError("the disk is full")
        self._how = how
        with super().writing() as tx:
            yield tx
            if how == "before":
                tx.send()
                self.fate.die()
        if how is not None:
            self.fate.die()

    def write_mark(self, identity: str, changes: int) -> None:
        if self._how == "unmarked":
            self.fate.die()
        super().write_mark(identity, changes)
