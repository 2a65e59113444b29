"""Ledger schema: tables, migrations, and the interface of a database driver."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from gitboot.errors import LedgerError, LedgerLeft, LedgerUnfinished
from gitboot.ledger.leader_lease import HeldLease, Holder
from gitboot.text import quote_words

# Each item migrates one schema version to the next version. gitboot runs all migrations to create a new ledger.
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
    """
    CREATE TABLE secret_fetches (uuid TEXT PRIMARY KEY, facts TEXT NOT NULL) STRICT;
    """,
    """
    CREATE TABLE acknowledgements (entry TEXT PRIMARY KEY) STRICT;
    """,
    """
    ALTER TABLE records ADD COLUMN unknown_serves TEXT NOT NULL DEFAULT '[]';
    """,
    """
    ALTER TABLE overrides ADD COLUMN clears_from TEXT;
    """,
    """
    CREATE TABLE lost_identities (
        kind TEXT NOT NULL, value TEXT NOT NULL, uuid TEXT NOT NULL, netboots INTEGER NOT NULL,
        PRIMARY KEY (kind, value, uuid)
    ) STRICT;
    INSERT INTO lost_identities SELECT DISTINCT 'MAC', mac.value, uuid, 0 FROM machines, json_each(macs) AS mac
        WHERE stands = 0;
    INSERT INTO lost_identities SELECT 'serial', upper(serial), uuid, 0 FROM machines
        WHERE stands = 0 AND serial IS NOT NULL;
    """,
    """
    ALTER TABLE records ADD COLUMN clearances TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE records ADD COLUMN version TEXT;
    """,
)
VERSION: Final = len(MIGRATIONS)
# Migrations of the PostgreSQL tables, by the version that they start from. The first schema version for PostgreSQL was
# 5.
POSTGRESQL_MIGRATIONS: Final = {
    5: "CREATE TABLE secret_fetches (uuid TEXT PRIMARY KEY, facts TEXT NOT NULL)",
    6: "CREATE TABLE acknowledgements (entry TEXT PRIMARY KEY)",
    7: "ALTER TABLE records ADD COLUMN unknown_serves TEXT NOT NULL DEFAULT '[]'",
    8: "ALTER TABLE overrides ADD COLUMN clears_from TEXT",
    9: """
    CREATE TABLE lost_identities (
        kind TEXT NOT NULL, value TEXT NOT NULL, uuid TEXT NOT NULL, netboots INTEGER NOT NULL,
        PRIMARY KEY (kind, value, uuid)
    );
    INSERT INTO lost_identities SELECT DISTINCT 'MAC', mac, uuid, 0
        FROM machines, json_array_elements_text(macs::json) AS mac WHERE stands = 0;
    INSERT INTO lost_identities SELECT 'serial', upper(serial), uuid, 0 FROM machines
        WHERE stands = 0 AND serial IS NOT NULL;
    """,
    10: "ALTER TABLE records ADD COLUMN clearances TEXT NOT NULL DEFAULT '{}', ADD COLUMN version TEXT",
}
# The tables of a new PostgreSQL ledger. The columns are in the same order as in SQLite.
POSTGRESQL: Final = """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE records (
        uuid TEXT PRIMARY KEY, server TEXT NOT NULL, provision BIGINT, image TEXT, pool TEXT, decision TEXT,
        evidence TEXT, provisioned_at TEXT, grace_until TEXT, consumed_at TEXT, consumed_key TEXT, overwritten_by TEXT,
        offered BIGINT NOT NULL, answered BIGINT NOT NULL, taken_back BIGINT NOT NULL, attempts TEXT NOT NULL,
        released TEXT, unknown_serves TEXT NOT NULL DEFAULT '[]', clearances TEXT NOT NULL DEFAULT '{}', version TEXT
    );
    CREATE TABLE runs (
        uuid TEXT NOT NULL, maintenance TEXT NOT NULL, run BIGINT NOT NULL, made_at TEXT NOT NULL, window_end TEXT,
        seen TEXT NOT NULL, PRIMARY KEY (uuid, maintenance)
    );
    CREATE TABLE overrides (
        uuid TEXT NOT NULL, reason TEXT NOT NULL, plan_digest TEXT NOT NULL, override TEXT NOT NULL,
        marks TEXT NOT NULL, state TEXT NOT NULL, at TEXT NOT NULL, corrections TEXT NOT NULL, replaces TEXT,
        bmc TEXT, shown TEXT NOT NULL, writes_disk INTEGER NOT NULL, medium TEXT, data_medium TEXT, clears_from TEXT,
        PRIMARY KEY (uuid, reason)
    );
    CREATE TABLE switches (
        uuid TEXT NOT NULL, reason TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (uuid, reason)
    );
    CREATE TABLE events (
        id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, at TEXT NOT NULL, type TEXT NOT NULL,
        message TEXT NOT NULL, facts TEXT NOT NULL
    );
    CREATE TABLE machines (
        uuid TEXT PRIMARY KEY, name TEXT NOT NULL, macs TEXT NOT NULL, serial TEXT, bmc TEXT, stands INTEGER NOT NULL
    );
    CREATE TABLE offers (plan TEXT PRIMARY KEY, at TEXT NOT NULL, facts TEXT NOT NULL);
    CREATE TABLE versions (
        path TEXT NOT NULL, modified BIGINT NOT NULL, plan TEXT NOT NULL, number BIGINT NOT NULL,
        PRIMARY KEY (path, modified)
    );
    CREATE TABLE observations (
        id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, at TEXT NOT NULL, plan TEXT NOT NULL,
        facts TEXT NOT NULL, verdict TEXT
    );
    CREATE INDEX pending ON observations (id) WHERE verdict IS NULL;
    CREATE TABLE approvals (
        digest TEXT NOT NULL, guard TEXT NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (digest, guard)
    );
    CREATE TABLE requests (
        id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, at TEXT NOT NULL, who TEXT NOT NULL,
        what TEXT NOT NULL, facts TEXT NOT NULL, done_at TEXT, outcome TEXT
    );
    CREATE TABLE spool (file TEXT PRIMARY KEY, taken BIGINT NOT NULL);
    CREATE TABLE pins (uuid TEXT PRIMARY KEY, facts TEXT NOT NULL);
    CREATE TABLE known_bmcs (address TEXT NOT NULL, credentials TEXT NOT NULL, PRIMARY KEY (address, credentials));
    CREATE TABLE secret_fetches (uuid TEXT PRIMARY KEY, facts TEXT NOT NULL);
    CREATE TABLE acknowledgements (entry TEXT PRIMARY KEY);
    CREATE TABLE lost_identities (
        kind TEXT NOT NULL, value TEXT NOT NULL, uuid TEXT NOT NULL, netboots INTEGER NOT NULL,
        PRIMARY KEY (kind, value, uuid)
    );
    CREATE TABLE ledger_version (number INTEGER NOT NULL);
"""
# Tables for hosts that share a ledger: the lease, and the fetch log of all endpoints. A copy of a ledger omits these
# tables.
SHARED: Final = """
    CREATE TABLE lease (
        one INTEGER PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL, holder TEXT NOT NULL, place TEXT NOT NULL,
        until TIMESTAMPTZ NOT NULL, forgotten BIGINT NOT NULL
    );
    CREATE TABLE fetches (
        id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, writer TEXT, place BIGINT, server TEXT NOT NULL,
        offer TEXT, line TEXT NOT NULL
    );
    CREATE INDEX fetches_of_server ON fetches (server);
    CREATE INDEX fetches_of_offer ON fetches (offer) WHERE offer IS NOT NULL;
    CREATE TABLE writers (spool TEXT NOT NULL, file TEXT NOT NULL, place BIGINT NOT NULL, PRIMARY KEY (spool, file));
    CREATE TABLE token_keys (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""
TABLES: Final = (
    "facts",
    "records",
    "runs",
    "overrides",
    "switches",
    "events",
    "machines",
    "offers",
    "versions",
    "observations",
    "approvals",
    "requests",
    "spool",
    "pins",
    "known_bmcs",
    "secret_fetches",
    "acknowledgements",
    "lost_identities",
)
NUMBERED: Final = ("events", "observations", "requests")  # tables whose key the database generates
LEFT: Final = "left"  # the fact with this name marks a ledger that was moved
UNFINISHED: Final = "unfinished"  # the fact with this name marks an unfinished copy of a ledger
Row = tuple[Any, ...]


class Database(ABC):
    """An open ledger database. Use it from one thread at a time."""

    errors: ClassVar[tuple[type[Exception], ...]]  # the exceptions that the driver raises

    snapshot: ClassVar[str]  # statement that begins a transaction that reads one snapshot and does not block writers
    after_copy_sql: ClassVar[tuple[str, ...]] = ()  # statements to run in this database after a ledger was copied to it
    # Whether the database is a file in the state directory, which is lost or restored together with that directory.
    is_local: ClassVar[bool]

    name: str  # name of the ledger for messages
    open_moved = False  # whether a moved ledger or an unfinished copy may be used
    # the lease of a shared ledger; None: the ledger is a file, which only needs the lock on the state directory
    lease: HeldLease | None = None

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Execute a statement, and return its rows, or [] if the statement does not return rows."""

    @abstractmethod
    def stream_rows(self, query: str) -> Iterator[Row]:
        """Yield the rows of a large query result. Until all rows are read, the transaction may block other clients."""

    @abstractmethod
    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement that does not return rows, once for each row of parameters."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows with values for ``columns``. The other columns get their default values."""

    @abstractmethod
    def delete(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Delete the rows whose ``keys`` columns have these values."""

    @abstractmethod
    def replace(self, table: str, keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert complete rows, and replace existing rows with the same values in the ``keys`` columns.

        The ``keys`` columns are the first columns of the table.
        """

    @abstractmethod
    def begin(self, *, is_long: bool = False) -> None:
        """Begin a write transaction.

        The method first waits until other writers have ended their transactions. With ``is_long``, there may be long
        pauses between statements. Raises `LedgerLeft` if the ledger was moved.
        """

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction, which makes its writes durable."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll back the current transaction if there is one."""

    @abstractmethod
    def may_have_lost_writes(self, error: BaseException) -> bool:
        """Return whether it is unclear after this error which writes are durable."""

    def probe(self) -> None:  # noqa: B027 - a file responds at once, or hangs with its disk
        """Send a query that a healthy server responds to immediately.

        Raises one of `errors` or `LedgerError` if the server does not respond, or if a file cannot be written.
        """

    @abstractmethod
    def reopen(self) -> None:
        """Close and reopen the database, so that later reads return the durable state.

        Raises `LedgerError` if the database cannot be opened.
        """

    def take_lease(self, holder: Holder) -> None:  # noqa: B027 - see `lease`
        """Take the lease and keep it until `close`. Raises `HeldByAnother` if another instance holds the lease."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, and release the lease."""

    @abstractmethod
    def to_ledger_error(self, error: Exception) -> LedgerError:
        """Convert an error from reading or decoding rows to a ledger error."""

    def check_usable(self) -> None:
        """Raise `LedgerLeft` if the ledger was moved, or `LedgerUnfinished` if the ledger is an incomplete copy."""
        rows = self.execute(f"SELECT name, value FROM facts WHERE name IN ('{LEFT}', '{UNFINISHED}')")  # noqa: S608
        for name, value in rows:
            if name == LEFT:
                raise build_moved_error(self.name, json.loads(value)["place"])
            to = "file" if self.is_local else "URL"
            raise LedgerUnfinished(
                f"{self.name}: this is an unfinished copy of {value}; wait for the copy to finish, or if it was killed,"
                f" run it again on that host: gitboot ledger copy --state STATE --to {quote_words(to)}"
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert database errors, and errors caused by malformed rows, to ledger errors in a `with` block."""
        try:
            yield
        except self.errors as error:
            raise self.to_ledger_error(error) from error
        except (ValueError, TypeError, KeyError) as error:
            raise self.to_ledger_error(error) from error


def build_moved_error(name: str, place: str) -> LedgerLeft:
    if place.startswith("postgres"):
        hint = (
            "use the new place on this host too. Run: gitboot ledger copy --state STATE --to URL (this also finishes a "
            "killed copy); if you start gitboot with --ledger, change it to the new place"
        )
    else:
        hint = (
            "stop the instances on other hosts; if the copy was killed, finish it on that host: gitboot ledger copy"
            " --state STATE --to file"
        )
    return LedgerLeft(f"{name}: this ledger was moved to {place}; {hint}")


def build_version_error(name: str, version: int) -> LedgerError:
    return LedgerError(
        f"{name}: the ledger has schema version {version}, but this version of gitboot supports {VERSION}; use a newer "
        "version"
    )
