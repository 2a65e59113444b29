"""New ledgers in one step: tests make a thousand, and each would go through what every version has changed.

One of an older version goes through them as ever.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Final
from uuid import uuid4

from gitboot.ledger import sqlite
from gitboot.ledger.schema import VERSION

by_migrations: Final = sqlite._migrate


def make_at_once() -> None:
    """Let this process make new ledgers of what all migrations come to."""
    with closing(sqlite3.connect(":memory:")) as made:
        by_migrations(made, "")
        rows = made.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    tables = ";".join(sql for (sql,) in rows)

    def at_once(connection: sqlite3.Connection, name: str) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            by_migrations(connection, name)
            return
        identity = f"INSERT INTO facts VALUES ('identity', '{uuid4()}')"
        connection.executescript(f"BEGIN IMMEDIATE; {tables}; {identity}; PRAGMA user_version = {VERSION}; COMMIT;")

    sqlite._migrate = at_once
