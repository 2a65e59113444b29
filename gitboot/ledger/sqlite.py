"""SQLite driver of the ledger: open, check, migrate and back up a file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

from gitboot.errors import DamagedLedger, LedgerError
from gitboot.ledger.schema import MIGRATIONS, VERSION, Database, Row, build_version_error

# The errors that SQLite raises on a full disk: https://sqlite.org/rescode.html. SQLITE_CANTOPEN has other causes too.
_DISK_FULL_ERRORS: Final = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
)


class SqliteDatabase(Database):
    """A ledger in a SQLite file. If the file does not exist, gitboot creates it.

    With ``synchronous``, SQLite syncs the file to the disk after each transaction.
    """

    errors: ClassVar = (sqlite3.Error,)
    is_local: ClassVar = True
    snapshot: ClassVar = "BEGIN"

    def __init__(self, path: Path, *, synchronous: bool = True) -> None:
        self.path, self.name, self._synchronous = path, str(path), synchronous
        # Whether the file is open only for reading, because the disk has no space for the files of a write.
        self._is_read_only = False
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        """Open the file.

        If the disk has no space for SQLite's shared-memory index, the method opens the file read-only. This is safe if
        there is no write-ahead log, for example after a clean shutdown. In that case, the file is complete, and no
        other process can write to it.
        """
        try:
            connection = self._open_to_write()
            self._is_read_only = False
        except LedgerError as error:
            if not self._can_read_without_index(error.__cause__):
                raise
            connection = self._open_read_only(error)
            self._is_read_only = True
        return connection

    def _can_read_without_index(self, error: BaseException | None) -> bool:
        """Return whether an error means that the disk is full, and there is no write-ahead log."""
        wal = Path(f"{self.path}-wal")
        return _is_disk_full(error) and not (wal.exists() and wal.stat().st_size > 0)

    def _open_read_only(self, write_error: LedgerError) -> sqlite3.Connection:
        """Open and check a complete file. Raises ``write_error`` if the file needs a migration."""
        with self.reading(), ExitStack() as failing:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro&immutable=1",
                uri=True,
                check_same_thread=False,
                isolation_level=None,
            )
            failing.callback(connection.close)
            _check_integrity(connection, self.name)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                raise write_error
            failing.pop_all()
        return connection

    def _open_to_write(self) -> sqlite3.Connection:
        """Open, check and migrate the file. Raises `LedgerError` if the file is damaged or cannot be written."""
        with self.reading(), ExitStack() as failing:
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            failing.callback(connection.close)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._synchronous else 'OFF'}")
            _check_integrity(connection, self.name)
            _migrate(connection, self.name)
            failing.pop_all()
        return connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(statement, parameters).fetchall()

    def stream_rows(self, query: str) -> Iterator[Row]:
        yield from self.execute(query)

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(statement, rows)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        placeholders = ", ".join("?" * len(columns))
        self.execute_many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders})", rows)  # noqa: S608

    def delete(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        condition = " AND ".join(f"{key} = ?" for key in keys)
        self.execute_many(f"DELETE FROM {table} WHERE {condition}", rows)  # noqa: S608

    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:  # noqa: ARG002 - SQLite uses the primary key
        row_iterator = iter(rows)
        first = next(row_iterator, None)
        if first is not None:
            placeholders = ", ".join("?" * len(first))
            statement = f"INSERT OR REPLACE INTO {table} VALUES ({placeholders})"  # noqa: S608
            self.execute_many(statement, chain((first,), row_iterator))

    def begin(self, *, is_long: bool = False) -> None:  # noqa: ARG002 - SQLite has no time limits
        self.probe()
        self._connection.execute("BEGIN IMMEDIATE")
        if not self.open_moved:
            self.check_usable()

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:  # if the disk is full, SQLite has already rolled back
            self._connection.execute("ROLLBACK")

    def may_have_lost_writes(self, error: BaseException) -> bool:
        return _get_primary_code(error) == sqlite3.SQLITE_IOERR

    def reopen(self) -> None:
        self._connection.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError), Path(f"{self.path}{suffix}").open("rb") as file:
                # This makes SQLite read from the disk and not from the kernel's page cache.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._connection = self._open()

    def probe(self) -> None:
        """Reopen the file for writing if it is open read-only. Raises `LedgerError` if this fails."""
        if not self._is_read_only:
            return
        try:
            connection = self._open_to_write()
        except LedgerError as error:
            if not _is_disk_full(error.__cause__):
                raise
            raise LedgerError(
                f"{self.name}: the ledger cannot be written (the disk is full); free some space"
            ) from error
        self._connection.close()
        self._connection, self._is_read_only = connection, False

    def close(self) -> None:
        self._connection.close()

    def to_ledger_error(self, error: Exception) -> LedgerError:
        return convert_sqlite_error(self.name, error)


class ReadOnlySqlite(SqliteDatabase):
    """A ledger file opened for reading only, without checks or migrations.

    Readers and writers do not block each other. SQLite creates files beside the ledger even for reading. If the disk
    has no space for these files, the class reads the file without them, if that is safe (see `SqliteDatabase._open`).
    """

    _is_immutable = False  # whether SQLite reads only the file, and assumes that no other process writes to the file

    def _open(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        with self.reading():
            connection = sqlite3.connect(uri, uri=True)
            try:
                connection.execute("SELECT 1 FROM sqlite_schema")
                self._is_immutable = False
            except sqlite3.Error as error:
                connection.close()
                if not self._can_read_without_index(error):
                    raise
                connection = sqlite3.connect(f"{uri}&immutable=1", uri=True)
                self._is_immutable = True
            return connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        if self._is_immutable and not self._connection.in_transaction:  # the disk may have space again, and a writer
            self._connection.close()
            self._connection = self._open()
        return super().execute(statement, parameters)


def back_up(path: Path, target: Path) -> None:
    """Copy a ledger file that other processes may use. Raises `LedgerError` if SQLite cannot copy the file."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            source.execute("SELECT 1 FROM sqlite_schema")  # if SQLite cannot read the ledger, this raises an error
            try:
                with closing(sqlite3.connect(target)) as copy:
                    source.backup(copy)
            except sqlite3.Error as error:
                raise LedgerError(f"{target}: the copy of the ledger cannot be written ({error})") from error
    except sqlite3.Error as error:
        raise convert_sqlite_error(str(path), error) from error


def convert_sqlite_error(name: str, error: Exception) -> LedgerError:
    """Convert a SQLite error, or an error caused by a malformed row, to a ledger error.

    The result is a `DamagedLedger` unless the error shows that the file itself may be intact.
    """
    if _get_primary_code(error) == sqlite3.SQLITE_READONLY:  # also raised for a read, which may create files
        return LedgerError(
            f"{name}: the ledger cannot be opened ({error}); give the user that runs gitboot write access to the file "
            "and to its folder"
        )
    if getattr(error, "sqlite_errorcode", 0) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return LedgerError(f"{name}: the ledger cannot be read (the disk is full); free some space")
    lacks_table = "no such table" in str(error) or "no such column" in str(error)
    # The file is missing or locked, for example, or `reopen` closed the connection and could not open the file again.
    is_intact = isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError) and not lacks_table
    if is_intact:
        return LedgerError(f"{name}: the ledger cannot be read ({error})")
    return build_damaged_error(name, str(error))


def build_damaged_error(name: str, cause: str) -> DamagedLedger:
    return DamagedLedger(
        f"{name}: the ledger cannot be read ({cause}); restore it from a backup, or start with a new ledger and"
        " use `gitboot records begin` to confirm what is installed"
    )


def _get_primary_code(error: BaseException) -> int:
    """Return the primary result code of a SQLite error, which is the low byte of the extended code, or 0."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_disk_full(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) in _DISK_FULL_ERRORS


def _check_integrity(connection: sqlite3.Connection, name: str) -> None:
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise build_damaged_error(name, result)


def _migrate(connection: sqlite3.Connection, name: str) -> None:
    """Create the tables of a new ledger and its identity, or convert the tables of an earlier version.

    Raises `LedgerError` if a later version of gitboot wrote the ledger.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise build_version_error(name, version)
    if version == VERSION:
        return
    steps = "".join(MIGRATIONS[version:])
    identity = "" if version else f"INSERT INTO facts VALUES ('identity', '{uuid4()}');"  # noqa: S608 - constant
    connection.executescript(f"BEGIN IMMEDIATE; {steps} {identity} PRAGMA user_version = {VERSION}; COMMIT;")
