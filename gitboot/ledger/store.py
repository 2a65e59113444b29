"""Ledger store: locate a ledger, run transactions, and write the mark of a ledger's newest state."""

from __future__ import annotations

import json
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from gitboot.errors import LedgerError, UsageError
from gitboot.files import is_file, write_atomically
from gitboot.ledger.schema import Database, Row
from gitboot.ledger.sqlite import ReadOnlySqlite, SqliteDatabase
from gitboot.text import format_error

# matches the setting in the libpq parameter `options`
_SEARCH_PATH: Final = re.compile(r"(?:-c\s*|--)search[_-]path=(?:\\\s)*([^,\s]+)")
_SCHEMES: Final = ("postgresql", "postgres")
# a password with any characters, even if they are not percent-encoded
_PASSWORD: Final = re.compile(r"://.*:.*@", re.DOTALL)
# the URL before its parameters
_DATABASE: Final = re.compile(r"[a-z]+://[^/#]*/[^/:#]*")
# a parameter; only the named parameters may contain an "@"
_PARAMETER: Final = re.compile(
    r"[a-z_]+=[^@]*|(?:application_name|options|passfile|ssl(?:cert|key|rootcert)|user)=.*", re.DOTALL
)
# an "@" that may end a password in front of a host and its database
_LOGIN_END: Final = re.compile(r"@[^@&=/?]*[/?]")
# secrets for which libpq has no file that gitboot could read
_OTHER_SECRETS: Final = {"oauth_client_secret", "scram_client_key", "scram_server_key", "sslpassword"}
_HOSTS: Final = re.compile(r"(?:(?:\[[^]]*\]|[^][:,]*)(?::[0-9]*)?(?:,|\Z))*")
_PROGRESS: Final = "SELECT name, value FROM facts WHERE name IN ('identity', 'changes')"
_MARK_BYTES: Final = 64  # the size of a mark file


class PostgresAddress(Struct, frozen=True, kw_only=True):
    """The address of a PostgreSQL database: a URL in libpq's format, and a separate file with the password."""

    url: str
    password: Path | None = None

    @classmethod
    def parse(cls, url: str, password: Path | None) -> Self:
        """Parse the URL of a database.

        Raises `UsageError` if the URL is not usable. The error message never contains a password.
        """
        try:
            parts = urlsplit(url)
        except ValueError:  # the text of this error may contain the password
            parts = None
        if parts is not None and parts.scheme not in _SCHEMES:
            raise UsageError("--ledger expects a PostgreSQL database URL: postgresql://USER@HOST/DATABASE")
        place, _, query = url.partition("?")
        parameters = dict(parse_qsl(query))  # for libpq, a "#" does not end the query
        is_query = (
            _DATABASE.fullmatch(place)
            and all(map(_PARAMETER.fullmatch, query.split("&")))
            and not _LOGIN_END.search(query)
        )
        if _PASSWORD.search(place if is_query else url) or "password" in parameters:
            raise UsageError(
                "--ledger must not contain a password, because others could read it; use --ledger-password, and write "
                "%40 for each other @ after the host"
            )
        if name := min(_OTHER_SECRETS & parameters.keys(), default=None):
            raise UsageError(
                f"--ledger must not contain {name}, because others could read it; "
                + ("use an sslkey file without a passphrase" if name == "sslpassword" else "use --ledger-password")
            )
        if parts is None or not _HOSTS.fullmatch(parts.netloc.rpartition("@")[2]):
            raise UsageError("--ledger: the host or the port is not valid; write postgresql://USER@HOST/DATABASE")
        if not parts.path.strip("/") and "dbname" not in parameters:
            raise UsageError("--ledger needs a database name: postgresql://USER@HOST/DATABASE")
        if password is not None and not is_file(password):
            raise UsageError(f"--ledger-password: {password} cannot be read")
        return cls(url=url, password=password.absolute() if password is not None else None)

    @property
    def name(self) -> str:
        """The name of the ledger for messages: the URL, with the schema if the URL sets one.

        The schema is included because several ledgers may share a database.
        """
        place, schema = self.url.partition("?")[0], self.schema
        return f"{place} (schema {schema})" if schema is not None else place

    @property
    def schema(self) -> str | None:
        """The first schema in the URL's search path, or None if the URL does not set a search path."""
        parameters = dict(parse_qsl(self.url.partition("?")[2]))
        schemas = _SEARCH_PATH.findall(parameters.get("options", ""))
        return str(schemas[-1]).replace('"', "").replace("\\", "") if schemas else None

    def facts(self) -> bytes:
        """Return the content of the address file."""
        text = (
            "# This state directory's ledger is in this database, and not in ledger.sqlite.\n"
            f"url = {json.dumps(self.url)}\n"
        )
        if self.password is not None:
            text += f"password-file = {json.dumps(str(self.password))}\n"
        return text.encode()


def get_address_file(path: Path) -> Path:
    return path.with_suffix(".toml")


def has_address_file(path: Path) -> bool:
    return get_address_file(path).exists()


def read_address(path: Path) -> PostgresAddress | None:
    """Return the address of the database that replaces the file at ``path``, or None if the ledger is that file.

    Raises `UsageError` if the address file is damaged.
    """
    file = get_address_file(path)
    try:
        settings = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    match settings:
        case {"url": str(url), "password-file": str(password)}:
            return PostgresAddress(url=url, password=Path(password))
        case {"url": str(url)}:
            return PostgresAddress(url=url)
    raise UsageError(f"{file} does not contain a ledger address; add `url`, and `password-file` if required")


def write_address(path: Path, address: PostgresAddress) -> None:
    write_atomically(get_address_file(path), address.facts())


# Transactions


class Transaction:
    """A write transaction.

    The table modules call `mark` if gitboot must treat a backup without these changes as an older copy. A transaction
    blocks all other writers, and PostgreSQL aborts a transaction that is idle for some seconds. Therefore a PostgreSQL
    transaction begins only at the first read, or at the end of the `with` block when all rows are prepared. With
    SQLite, gitboot writes each row immediately and does not keep it in memory.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._prepared: list[Callable[[], object]] = []
        self._has_begun = False
        self.is_marked = False

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Write the prepared rows, and return the rows of a query."""
        self.send()
        return self._database.execute(query, parameters)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._prepared.append(partial(self._database.execute, statement, parameters))

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._write(partial(self._database.execute_many, statement), rows)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._write(partial(self._database.insert, table, columns), rows)

    def delete(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._write(partial(self._database.delete, table, keys), rows)

    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._write(partial(self._database.replace, table, keys), rows)

    def _write(self, write_rows: Callable[[Iterable[Sequence[Any]]], object], rows: Iterable[Sequence[Any]]) -> None:
        if self._database.is_local:
            self.send()
            write_rows(rows)
        else:
            self._prepared.append(partial(write_rows, list(rows)))

    def send(self) -> None:
        """Begin the transaction if it has not begun yet, and write the prepared rows."""
        if not self._has_begun:
            self._database.begin()
            self._has_begun = True
        prepared, self._prepared = self._prepared, []
        for write in prepared:
            write()

    def mark(self) -> None:
        """Count this transaction as a change to the ledger.

        gitboot then recognizes that a backup without this transaction is an older copy.
        """
        self.is_marked = True


class Store:
    """A ledger with one writer at a time. Writes are durable when their `with` block has ended."""

    synchronous: ClassVar = True  # whether each transaction waits for the disk

    def __init__(self, database: Database, path: Path) -> None:
        self.database, self.path = database, path
        self._lock = threading.Lock()
        self.is_failing = False  # whether the last read or write failed
        self._failures = 0  # the number of failed writes
        self.is_suspect = False  # whether a write may be lost, so that the ledger must be read back
        # identity and change number of the ledger at the last sync
        self._synced_progress: tuple[str, int] | None = None
        self._known_progress: tuple[str, int] | None = None  # identity and change number of the ledger at the last read

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the ledger at ``path``.

        The ledger is the file at ``path``, or a database that replaces this file. Raises `DamagedLedger` if the ledger
        is damaged. Raises `LedgerError` if a newer version of gitboot wrote the ledger.
        """
        return cls(open_database(path, synchronous=cls.synchronous), path)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Run the block of a `with` statement in a transaction.

        When the block ends, either all of its writes are durable or none are. If the block has to wait for an earlier
        write and that write fails, the block fails too. Otherwise, if the database hangs, each writer would in turn
        wait for it.
        """
        database, failures_before = self.database, self._failures
        progress: tuple[str, int] | None = None  # identity and change number after this transaction, if it counts
        with self._lock:
            if self._failures != failures_before:
                raise LedgerError(f"{database.name}: the ledger cannot be written (an earlier write failed)")
            try:
                tx = Transaction(database)
                yield tx
                tx.send()
                if tx.is_marked:
                    identity, before = _parse_progress(database.execute(_PROGRESS))
                    self._check_synced(identity, before)
                    progress = identity, before + 1
                    database.replace("facts", ("name",), [("changes", str(before + 1))])
                database.commit()
            except BaseException as error:
                self.is_suspect |= database.may_have_lost_writes(error)
                if isinstance(error, (*database.errors, LedgerError)):
                    self.is_failing = True
                    self._failures += 1
                with suppress(*database.errors):  # keep the first error, because it shows the cause
                    database.rollback()
                if isinstance(error, database.errors):
                    raise LedgerError(
                        f"{database.name}: the ledger cannot be written ({format_error(error)})"
                    ) from error
                raise
            self.is_failing = False
            if progress is not None:
                self._synced_progress = progress
                self.write_mark(*progress)

    def read_back(self) -> None:
        """Reopen the ledger and read its durable state from the disk, bypassing the kernel's page cache.

        After a failed sync, the page cache may contain pages that are marked as written but are not on the disk
        (fsync(2)). Raises `LedgerError` if a synced change is missing.
        """
        with self._lock:
            self.database.reopen()
        self._check_synced(*self._read_progress())
        self.is_suspect = False

    def _check_synced(self, identity: str, changes: int) -> None:
        """Raise `LedgerError` if the ledger on the disk lacks a change that was already synced."""
        if (synced := self._synced_progress) is not None and (identity != synced[0] or changes < synced[1]):
            raise LedgerError(
                f"{self.database.name}: the disk lost synced changes (only {changes} of {synced[1]} are left), or a "
                "backup replaced the ledger. Stop gitboot, restore the newest copy to a disk that keeps its data, and "
                "start gitboot again. gitboot then asks you to confirm which servers are installed"
            )

    def probe(self) -> None:
        """Raise `LedgerError` if the database does not respond within a few seconds.

        If a ledger in a file is open only for reading, raise `LedgerError` unless it can be opened for writing.
        """
        with self._lock:
            try:
                with self.reading():
                    self.database.probe()
            except LedgerError:
                self.is_failing = True
                raise

    def rows(self, query: str, *parameters: Any) -> list[Row]:
        """Return the rows of a query. Raises `LedgerError` if the database cannot be read."""
        try:
            with self._lock, self.reading():
                rows = self.database.execute(query, parameters)
        except LedgerError:
            self.is_failing = True
            raise
        self.is_failing = False
        return rows

    def reading(self) -> AbstractContextManager[None]:
        return self.database.reading()

    # The mark beside the ledger stores the ledger's change number. A backup that replaces the ledger has a lower
    # number.

    @property
    def mark(self) -> tuple[str, int] | None:
        return read_mark(get_mark_path(self.path))

    @property
    def progress(self) -> tuple[str, int]:
        """The identity and the change number of the ledger, or the last known values if the ledger cannot be read."""
        if self.is_failing and self._known_progress is not None:
            return self._known_progress  # another read would wait for the ledger again
        try:
            self._known_progress = self._read_progress()
        except LedgerError:
            if self._known_progress is None:
                raise
        return self._known_progress

    def _read_progress(self) -> tuple[str, int]:
        rows = self.rows(_PROGRESS)
        with self.reading():
            return _parse_progress(rows)

    def write_mark(self, identity: str, changes: int) -> None:
        """Write the mark file durably. gitboot calls this method after each transaction that counts as a change.

        Raises `LedgerError` if the mark cannot be written.
        """
        try:
            write_mark(get_mark_path(self.path), identity, changes)
        except OSError as error:
            self.is_suspect = True  # the ledger contains the change, but the caller gets an error
            raise LedgerError(
                f"{get_mark_path(self.path)}: the ledger's mark file cannot be written ({error.strerror})"
            ) from error


# Open a ledger


def open_database(
    path: Path, *, synchronous: bool = True, read_only: bool = False, open_moved: bool = False
) -> Database:
    """Open the database that stores the ledger at ``path``.

    With ``open_moved``, the function also opens a ledger that was moved, or an unfinished copy. Raises `LedgerError` if
    the database cannot be opened.
    """
    database: Database
    if (address := read_address(path)) is not None:
        from gitboot.ledger.postgresql import PostgresDatabase  # imported only here, because psycopg is optional

        database = PostgresDatabase(address, synchronous=synchronous, read_only=read_only)
    else:
        database = ReadOnlySqlite(path) if read_only else SqliteDatabase(path, synchronous=synchronous)
    database.open_moved = open_moved
    try:
        if not open_moved:
            with database.reading():
                database.check_usable()
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def open_read_only(path: Path, *, open_moved: bool = False) -> Iterator[Database]:
    """Open a ledger for reading until the block ends. The connection and the writers do not block each other.

    For ``open_moved``, see `open_database`. Raises `LedgerError` if the ledger cannot be read.
    """
    with closing(open_database(path, read_only=True, open_moved=open_moved)) as database, database.reading():
        yield database


def _parse_progress(facts: Iterable[Row]) -> tuple[str, int]:
    values: dict[str, str] = dict(facts)
    return values["identity"], int(values.get("changes", 0))


# The mark file


def get_mark_path(ledger: Path) -> Path:
    return ledger.with_suffix(".mark")


def read_mark(path: Path) -> tuple[str, int] | None:
    """Return the identity and the change number in a mark file, or None if there is no valid mark."""
    try:
        identity, changes = path.read_text("ascii").split()
        return identity, int(changes)
    except (OSError, ValueError):
        return None


def write_mark(path: Path, identity: str, changes: int) -> None:
    """Write a mark file durably. Raises OSError if this fails."""
    mark = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)
    try:
        os.pwrite(mark, f"{identity} {changes}".ljust(_MARK_BYTES - 1).encode() + b"\n", 0)
        os.fdatasync(mark)
    finally:
        os.close(mark)
