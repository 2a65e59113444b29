"""The ledger's SQLite file: opened whole or not at all, brought to this version, written durably."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self
from uuid import uuid4

from gitboot.errors import DamagedLedger, LedgerError

# What brings a ledger from one version to the next; a new one goes through all of them.
MIGRATIONS: Final = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE records (
        uuid TEXT PRIMARY KEY, server TEXT NOT NULL, provision INTEGER, image TEXT, pool TEXT, decision TEXT,
        evidence TEXT, met_at TEXT, grace_until TEXT, spent_at TEXT, spent_key TEXT
    ) STRICT;
    CREATE TABLE runs (
        uuid TEXT NOT NULL, maintenance TEXT NOT NULL, run INTEGER NOT NULL, made_at TEXT NOT NULL,
        PRIMARY KEY (uuid, maintenance)
    ) STRICT;
    CREATE TABLE armed (
        uuid TEXT NOT NULL, reason TEXT NOT NULL, plan_digest TEXT NOT NULL, override TEXT NOT NULL,
        marks TEXT NOT NULL, state TEXT NOT NULL, at TEXT NOT NULL, corrections TEXT NOT NULL,
        PRIMARY KEY (uuid, reason)
    ) STRICT;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, type TEXT NOT NULL, message TEXT NOT NULL, facts TEXT NOT NULL
    ) STRICT;
    """,
    """
    ALTER TABLE armed ADD COLUMN replaces TEXT;
    ALTER TABLE armed ADD COLUMN bmc TEXT;
    CREATE TABLE machines (
        uuid TEXT PRIMARY KEY, name TEXT NOT NULL, macs TEXT NOT NULL, serial TEXT, bmc TEXT, stands INTEGER NOT NULL
    ) STRICT;
    INSERT INTO machines SELECT uuid, server, '[]', NULL, NULL, 1 FROM records;
    CREATE TABLE offers (plan TEXT PRIMARY KEY, at TEXT NOT NULL, facts TEXT NOT NULL) STRICT;
    CREATE TABLE versions (
        path TEXT NOT NULL, modified INTEGER NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (path, modified)
    ) STRICT;
    CREATE TABLE observations (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, plan TEXT NOT NULL, facts TEXT NOT NULL, verdict TEXT
    ) STRICT;
    CREATE INDEX pending ON observations (id) WHERE verdict IS NULL;
    CREATE TABLE approvals (
        digest TEXT NOT NULL, guard TEXT NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (digest, guard)
    ) STRICT;
    CREATE TABLE orders (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, facts TEXT NOT NULL,
        done_at TEXT, outcome TEXT
    ) STRICT;
    """,
    """
    ALTER TABLE records RENAME COLUMN met_at TO provisioned_at;
    ALTER TABLE records RENAME COLUMN spent_at TO consumed_at;
    ALTER TABLE records RENAME COLUMN spent_key TO consumed_key;
    UPDATE records SET evidence = 'Consumed' WHERE evidence = 'Spent';
    ALTER TABLE armed RENAME TO overrides;
    UPDATE overrides SET state = 'Consumed' WHERE state = 'Spent';
    UPDATE overrides SET state = 'Lost' WHERE state = 'Gone';
    UPDATE observations SET verdict = 'Provisioned' WHERE verdict = 'Met';
    ALTER TABLE orders RENAME TO requests;
    UPDATE requests SET facts = replace(replace(replace(replace(
        facts, '"metAt": ', '"provisionedAt": '), '"spentAt": ', '"consumedAt": '), '"spentKey": ', '"consumedKey": '),
        '"evidence": "Spent"', '"evidence": "Consumed"') WHERE what = 'records' AND outcome IS NULL;
    UPDATE requests SET facts = replace(facts, '"armed": ', '"consumed": ') WHERE what = 'resolve' AND outcome IS NULL;
    UPDATE facts SET name = 'initialised' WHERE name = 'told';
    CREATE TABLE spool (file TEXT PRIMARY KEY, taken INTEGER NOT NULL) STRICT;
    ALTER TABLE overrides ADD COLUMN shown TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE overrides ADD COLUMN writes_disk INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE overrides ADD COLUMN medium TEXT;
    CREATE TABLE pins (uuid TEXT PRIMARY KEY, facts TEXT NOT NULL) STRICT;
    ALTER TABLE records ADD COLUMN overwritten_by TEXT;
    ALTER TABLE records ADD COLUMN offered INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE records ADD COLUMN answered INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE records ADD COLUMN taken_back INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE records ADD COLUMN attempts TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE runs ADD COLUMN window_end TEXT;
    CREATE TABLE known_bmcs (
        address TEXT NOT NULL, credentials TEXT NOT NULL, PRIMARY KEY (address, credentials)
    ) STRICT;
    INSERT OR IGNORE INTO known_bmcs SELECT json_extract(bmc, '$.address'), json_extract(bmc, '$.credentials')
        FROM (SELECT bmc FROM machines WHERE stands UNION ALL SELECT bmc FROM overrides) WHERE bmc IS NOT NULL;
    ALTER TABLE runs ADD COLUMN seen TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE versions ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    UPDATE records SET offered = 1 WHERE provision IS NULL AND provisioned_at IS NOT NULL;
    INSERT INTO facts SELECT 'sequence', '1' WHERE EXISTS (SELECT 1 FROM records);
    """,
    """
    ALTER TABLE records ADD COLUMN released TEXT;
    CREATE TABLE switches (
        uuid TEXT NOT NULL, reason TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (uuid, reason)
    ) STRICT;
    """,
    """
    ALTER TABLE overrides ADD COLUMN data_medium TEXT;
    """,
)
VERSION: Final = len(MIGRATIONS)
_MARK_BYTES: Final = 64


class Transaction:
    """What is written in one go; a book marks it where a backup without the change is no longer as good."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.is_marked = False

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(statement, rows)

    def mark(self) -> None:
        """Count this transaction as a change that a backup must have, to be as good as this ledger."""
        self.is_marked = True


class Store:
    """One SQLite file with one writer; every write is on disk when its block ends."""

    synchronous: ClassVar = "FULL"  # each transaction is synced

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self.path = connection, path
        self._lock = threading.Lock()
        self.is_suspect = False  # whether a write has failed: nothing counts as written until it was read back
        self._written: tuple[str, int] | None = None  # the identity, and the changes that were last synced

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file at ``path``, making it with an identity of its own where there is none.

        Raises `DamagedLedger` where it does not hold together, `LedgerError` where a newer gitboot made it.
        """
        with reading(path), ExitStack() as failing:
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            failing.callback(connection.close)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {cls.synchronous}")
            _check(connection, path)
            _migrate(connection, path)
            failing.pop_all()
        return cls(connection, path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction; all of it is on disk when the block ends, or none."""
        with self._lock:
            changes = None
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                tx = Transaction(self._connection)
                yield tx
                if tx.is_marked:
                    changes = self._count_change()
                self._connection.execute("COMMIT")
            except BaseException as error:
                self.is_suspect |= _may_have_lost(error)
                if self._connection.in_transaction:  # SQLite ends it itself where the disk is full
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise LedgerError(f"{self.path}: the ledger cannot be written ({error})") from error
                raise
            if changes is not None:
                self._written = changes
                self.write_mark(*changes)

    def read_back(self) -> None:
        """Open the file anew, from the disk and not from what the kernel remembers of it.

        After a sync that failed, the kernel may take for written what is not (fsync(2)). Raises `LedgerError` where
        what counted as written is not there.
        """
        with self._lock:
            self._connection.close()
            for suffix in ("", "-wal", "-shm"):
                _forget_cached(Path(f"{self.path}{suffix}"))
            fresh = type(self).open(self.path)
            self._connection = fresh._connection
        identity, changes = self.progress
        if self._written is not None and (identity, changes) < self._written:
            raise LedgerError(
                f"{self.path}: the disk has lost what it had synced ({changes} changes of {self._written[1]}); restore "
                "a backup, on another disk"
            )
        self.is_suspect = False

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock, self.reading():
            return self._connection.execute(query, parameters).fetchall()

    def reading(self) -> AbstractContextManager[None]:
        """A block in which rows that gitboot would not have written are a damaged ledger."""
        return reading(self.path)

    # Beside the ledger stands how far it had come: a backup that is put in its place has not come that far.

    @property
    def mark(self) -> tuple[str, int] | None:
        """The identity and the number of changes that were last noted beside the ledger."""
        return read_mark(self._mark_path)

    @property
    def progress(self) -> tuple[str, int]:
        """The identity, and the number of changes that it holds."""
        found = dict(self.rows("SELECT name, value FROM facts WHERE name IN ('identity', 'changes')"))
        with self.reading():
            return found["identity"], int(found.get("changes", 0))

    @property
    def _mark_path(self) -> Path:
        return self.path.with_suffix(".mark")

    def _count_change(self) -> tuple[str, int]:
        self._connection.execute(
            "INSERT INTO facts VALUES ('changes', '1')"
            " ON CONFLICT DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT)"
        )
        rows = self._connection.execute("SELECT value FROM facts WHERE name IN ('identity', 'changes') ORDER BY name")
        changes, identity = (value for (value,) in rows)
        return identity, int(changes)

    def write_mark(self, identity: str, changes: int) -> None:
        """Note durably, beside the ledger, how far it has come; after each transaction that counts."""
        try:
            write_mark(self._mark_path, identity, changes)
        except OSError as error:
            self.is_suspect = True  # the change is in the ledger, and whoever made it does not know
            raise LedgerError(f"{self._mark_path}: the ledger's mark cannot be written ({error.strerror})") from error


def read_mark(path: Path) -> tuple[str, int] | None:
    """The identity and the number of changes that a mark notes; None where there is none."""
    try:
        identity, changes = path.read_text("ascii").split()
        return identity, int(changes)
    except (OSError, ValueError):
        return None


def write_mark(path: Path, identity: str, changes: int) -> None:
    """Note durably how far a ledger has come; raises OSError."""
    mark = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)
    try:
        os.pwrite(mark, f"{identity} {changes}".ljust(_MARK_BYTES - 1).encode() + b"\n", 0)
        os.fdatasync(mark)
    finally:
        os.close(mark)


def _may_have_lost(error: BaseException) -> bool:
    """Whether a write failed in such a way that nobody knows what stands on the disk; not where it is full, say."""
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_IOERR


def _forget_cached(path: Path) -> None:
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise damaged(path, found)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise LedgerError(
            f"{path}: the ledger is of version {version}, this gitboot knows {VERSION}; use a newer gitboot"
        )
    if version == VERSION:
        return
    steps = "".join(MIGRATIONS[version:])
    identity = "" if version else f"INSERT INTO facts VALUES ('identity', '{uuid4()}');"  # noqa: S608 - its own
    connection.executescript(f"BEGIN IMMEDIATE; {steps} {identity} PRAGMA user_version = {VERSION}; COMMIT;")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What SQLite raises within, or what is made of a row, becomes a `LedgerError`."""
    try:
        yield
    except sqlite3.OperationalError as error:  # no such file, no rights, locked: nothing is wrong with the file
        if "no such table" in str(error) or "no such column" in str(error):
            raise damaged(path, str(error)) from error
        raise LedgerError(f"{path}: the ledger cannot be read ({error})") from error
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, what: str) -> DamagedLedger:
    return DamagedLedger(
        f"{path}: the ledger cannot be read ({what}); restore it from a backup, or let gitboot begin a new one and say "
        "what is installed: gitboot records begin"
    )
