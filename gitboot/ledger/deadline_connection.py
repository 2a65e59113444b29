"""A connection to PostgreSQL on which every call has a total deadline, whatever the server does.

PostgreSQL's own timeouts end what a living server works at. A server that hangs, or that sends a byte now and then,
never notices them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg

from gitboot.ledger.database import Row

ANSWER_S: Final = 5.0  # for a statement that a living server answers at once
LOCK_S: Final = 12.0  # for one that may wait for a lock: `lock_timeout` is 10 s
STATEMENT_S: Final = 35.0  # for any other: `statement_timeout` is 30 s
LEISURE_S: Final = 605.0  # for a statement while a ledger is copied: `statement_timeout` is 10 min then
TRANSACTION_S: Final = 60.0  # for a transaction of few rows, from its begin to its commit
ROW_S: Final = 0.01  # more of it for each row that is sent; a PostgreSQL takes some 10,000 a second

_T = TypeVar("_T")


class LimitedConnection(psycopg.Connection[Row]):
    """A connection that closes itself when a call has not ended by its deadline, and then raises `OperationalError`.

    What the call came to is unknown then: a commit may be durable. For one thread at a time.
    """

    _call_s = STATEMENT_S
    _until_s = math.inf  # of the transaction, by the monotonic clock

    @contextmanager
    def answering_within(self, seconds: float) -> Iterator[None]:
        """A block in which each call may take so long."""
        before, self._call_s = self._call_s, seconds
        try:
            yield
        finally:
            self._call_s = before

    def limit_calls(self, seconds: float) -> None:
        """Let each call take so long from now on."""
        self._call_s = seconds

    def limit_transaction(self, seconds: float) -> None:
        """Let all calls together take so long from now on, until this is called again."""
        self._until_s = time.monotonic() + seconds

    def end_transaction(self) -> None:
        """Limit each call as before, and no transaction."""
        self._call_s, self._until_s = STATEMENT_S, math.inf

    def allow_rows(self, count: int) -> None:
        """Let the transaction take longer, because it sends so many rows."""
        self._until_s += ROW_S * count

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **kwargs: Any) -> _T:
        """Do what `psycopg.Connection.wait` does, which each call goes through, until the deadline."""
        now_s = time.monotonic()
        until_s = min(now_s + self._call_s, self._until_s)
        return super().wait(self._until(gen, until_s, until_s - now_s), *args, **kwargs)

    def _until(self, gen: Generator[Any, Any, _T], until_s: float, seconds: float) -> Generator[Any, Any, _T]:
        """Go through a generator of psycopg, which it resumes several times a second even if nothing comes."""
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if time.monotonic() >= until_s:
                    gen.close()
                    self.close()
                    raise psycopg.OperationalError(f"no answer within {max(seconds, 0):.0f} s")
                waits_for = gen.send(ready)
        except StopIteration as ended:
            result: _T = ended.value
            return result
