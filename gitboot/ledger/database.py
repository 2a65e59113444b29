"""What keeps a ledger's tables: a file of SQLite, or a PostgreSQL.

Both understand the statements that the books have, which are of the SQL that they share, with ``?`` for parameters;
where the two differ, there is a method here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from gitboot.errors import LedgerError
from gitboot.ledger.leader_lease import HeldLease, Holder

Row = tuple[Any, ...]


class ManyRows(ABC):
    """What is done with many rows of a table at once, within a transaction."""

    @abstractmethod
    def each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Carry out a statement that gives none, for each of these."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add rows with these columns; the others are what they are by default."""

    @abstractmethod
    def delete(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Delete the rows that have these ``keys``."""

    @abstractmethod
    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Put whole rows in the place of those with the same ``keys``, which are the first columns of the table."""


class Database(ABC):
    """An open database, in which all of a version's tables are; for one thread at a time."""

    errors: ClassVar[tuple[type[Exception], ...]]  # what it raises

    snapshot: ClassVar[str]  # what begins a transaction in which all that is read is of one instant, and nobody waits
    after_copying: ClassVar[tuple[str, ...]] = ()  # statements, once rows with numbers were put into it
    is_local: ClassVar[bool]  # whether it lies in the state directory, and is lost or put back with it

    name: str  # as people are told it
    many: ManyRows
    takes_any = False  # whether it is opened, and written to, where it was left or is half a copy
    lease: HeldLease | None = None  # by which it is held; what lies in a state directory needs only that one's lock

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Carry out a statement; its rows, if it gives some."""

    @abstractmethod
    def whole(self, query: str) -> Iterator[Row]:
        """All rows of a long answer, within a transaction for which others may wait."""

    @abstractmethod
    def begin(self, *, at_leisure: bool = False) -> None:
        """Begin a transaction, once no other process is in one; raises `LedgerLeft` where it goes on elsewhere.

        ``at_leisure``: nothing may be asked in it for a while.
        """

    @abstractmethod
    def commit(self) -> None:
        """End it; what was written in it is durable then."""

    @abstractmethod
    def rollback(self) -> None:
        """End it, if there is one, with nothing of it written."""

    @abstractmethod
    def may_have_lost(self, error: BaseException) -> bool:
        """Whether a write failed in such a way that nobody knows what is durable."""

    def probe(self) -> None:  # noqa: B027 - a file answers at once, or hangs with its disk
        """Ask for an answer that a database gives at once. Raises one of `errors`."""

    @abstractmethod
    def reopen(self) -> None:
        """Open it anew, from what is durable. Raises as `open` does."""

    def hold(self, holder: Holder) -> None:  # noqa: B027 - see `lease`
        """Take the lease, and give it back when it is closed; raises `LockedByAnother` while another has it."""

    @abstractmethod
    def close(self) -> None:
        """Hold nothing of it any more."""

    @abstractmethod
    def unreadable(self, error: Exception) -> LedgerError:
        """What was raised while rows were read, or made values of, as an error of the ledger."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which rows that gitboot would not have written are a damaged ledger."""
        try:
            yield
        except self.errors as error:
            raise self.unreadable(error) from error
        except (ValueError, TypeError, KeyError) as error:
            raise self.unreadable(error) from error
