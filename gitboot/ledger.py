"""The ledger: what was provisioned, what was armed and why, what happened; it cannot be rebuilt from Git."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

from gitboot.errors import LedgerError
from gitboot.model.scalars import Digest, SystemUuid, format_instant
from gitboot.override import Armed, Enabled, Marks, Override, State
from gitboot.plan import Record
from gitboot.report import Event

_VERSION: Final = 1

_SCHEMA: Final = """
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
"""


class Ledger:
    """One SQLite file with one writer; every write is on disk when its method returns."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._lock = threading.Lock()
        self._armed = self._read_armed()  # by UUID and reason: asked for at every pass

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the ledger at ``path``, making it with an identity of its own where there is none.

        Raises `LedgerError` where it is damaged or of another version.
        """
        with _reading(path), ExitStack() as failing:
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            failing.callback(connection.close)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            cls._migrate(connection, path)
            ledger = cls(connection, path)
            failing.pop_all()
        return ledger

    @staticmethod
    def _migrate(connection: sqlite3.Connection, path: Path) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION};")
            connection.execute("INSERT INTO facts VALUES ('identity', ?)", (str(uuid4()),))
            connection.execute("COMMIT")
        elif version != _VERSION:
            raise LedgerError(
                f"{path}: the ledger is of version {version}, this gitboot knows {_VERSION}; use a newer gitboot"
            )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:  # SQLite ends it itself where the disk is full
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise LedgerError(f"{self._path}: the ledger cannot be written ({error})") from error
                raise

    def _rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock, _reading(self._path):
            return self._connection.execute(query, parameters).fetchall()

    # Facts about the ledger itself

    @property
    def identity(self) -> str:
        return self._fact("identity") or ""

    @property
    def accepted(self) -> str | None:
        """The commit that was accepted last."""
        return self._fact("accepted")

    def accept(self, commit: str) -> None:
        self._set_fact("accepted", commit)

    def forget_accepted(self) -> None:
        """Know of no accepted commit any more."""
        with self._writing() as connection:
            connection.execute("DELETE FROM facts WHERE name = 'accepted'")

    @property
    def told(self) -> bool:
        """Whether it is known what was installed before this ledger began."""
        return self._fact("told") is not None

    def tell(self, how: str) -> None:
        """Note that the ledger has been told: ``fresh`` or ``adopt``; the first word stays."""
        if not self.told:
            self._set_fact("told", how)

    def _fact(self, name: str) -> str | None:
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        return rows[0][0] if rows else None

    def _set_fact(self, name: str, value: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # Records of provisioning

    def records(self) -> dict[SystemUuid, Record]:
        """What is known of each server, by UUID; a UUID that is missing is unknown."""
        runs: dict[str, dict[str, tuple[int, datetime]]] = {}
        for uuid, maintenance, run, made_at in self._rows("SELECT * FROM runs"):
            runs.setdefault(uuid, {})[maintenance] = (run, _instant(made_at))
        rows = self._rows(
            "SELECT uuid, provision, image, pool, decision, evidence, met_at, grace_until, spent_at, spent_key "
            "FROM records"
        )
        return {
            SystemUuid(uuid): Record(
                provision=provision,
                image=image,
                pool=pool,
                decision=Digest(decision) if decision else None,
                evidence=evidence,
                met_at=_instant_or_none(met_at),
                grace_until=_instant_or_none(grace_until),
                spent_at=_instant_or_none(spent_at),
                spent_key=spent_key,
                runs=runs.get(uuid, {}),
            )
            for uuid, provision, image, pool, decision, evidence, met_at, grace_until, spent_at, spent_key in rows
        }

    def names(self) -> dict[str, SystemUuid]:
        """Whose record stands under which server's name."""
        return {server: SystemUuid(uuid) for server, uuid in self._rows("SELECT server, uuid FROM records")}

    def write_records(self, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
        """Replace what is known of servers: (UUID, the server's name, record), all or none of them."""
        with self._writing() as connection:
            for uuid, server, record in records:
                connection.execute(
                    "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        uuid,
                        server,
                        record.provision,
                        record.image,
                        record.pool,
                        record.decision,
                        record.evidence,
                        _text_or_none(record.met_at),
                        _text_or_none(record.grace_until),
                        _text_or_none(record.spent_at),
                        record.spent_key,
                    ),
                )
                connection.execute("DELETE FROM runs WHERE uuid = ?", (uuid,))
                connection.executemany(
                    "INSERT INTO runs VALUES (?, ?, ?, ?)",
                    [(uuid, name, run, format_instant(at)) for name, (run, at) in sorted(record.runs.items())],
                )

    # What was armed

    def armed(self, uuid: SystemUuid) -> tuple[Armed, ...]:
        """Every override that was armed for a server, one a reason, by reason."""
        with self._lock:
            return tuple(self._armed.get(uuid, {}).values())

    def _read_armed(self) -> dict[str, dict[str, Armed]]:
        found: dict[str, dict[str, Armed]] = {}
        rows = self._rows(
            "SELECT uuid, reason, plan_digest, override, marks, state, at, corrections FROM armed ORDER BY uuid, reason"
        )
        for uuid, reason, plan_digest, override, marks, state, at, corrections in rows:
            found.setdefault(uuid, {})[reason] = Armed(
                reason=reason,
                plan_digest=plan_digest,
                override=_override(json.loads(override)),
                marks=Marks(**json.loads(marks)),
                state=State(state),
                at=_instant(at),
                corrections=tuple(_instant(each) for each in json.loads(corrections)),
            )
        return found

    def write_armed(self, uuid: SystemUuid, armed: Armed) -> None:
        """Replace what is recorded for the server and the reason."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO armed VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    uuid,
                    armed.reason,
                    armed.plan_digest,
                    json.dumps(asdict(armed.override), sort_keys=True),
                    json.dumps(asdict(armed.marks), sort_keys=True),
                    armed.state,
                    format_instant(armed.at),
                    json.dumps([format_instant(at) for at in armed.corrections]),
                ),
            )
        with self._lock:
            kept = {**self._armed.get(uuid, {}), armed.reason: armed}
            self._armed[uuid] = dict(sorted(kept.items()))

    # What happened

    def write_event(self, event: Event) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO events (at, type, message, facts) VALUES (?, ?, ?, ?)",
                (
                    format_instant(event.at),
                    event.type,
                    event.message,
                    json.dumps(dict(event.facts), sort_keys=True),
                ),
            )

    def events(self) -> Iterator[dict[str, Any]]:
        """Everything that was written down, oldest first, as JSON values."""
        for at, type, message, facts in self._rows("SELECT at, type, message, facts FROM events ORDER BY id"):
            yield {"at": at, "type": type, "message": message, **json.loads(facts)}


def copy_ledger(path: Path, to: Path, *, in_use: bool) -> None:
    """Copy the ledger at ``path``, leaving everything beside it as it is.

    While another process writes to it, only SQLite knows what holds together; without one SQLite would make files
    there, or complete what a process left that was killed.
    """
    with _reading(path):
        if in_use:
            with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(to)) as new:
                ours.backup(new)
        else:
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{path}{suffix}", f"{to}{suffix}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What SQLite raises within, or what is made of a row, becomes a `LedgerError`."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise LedgerError(
            f"{path}: the ledger cannot be read ({error}); restore it from a backup, or move it away and start "
            "with --records"
        ) from error


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _instant_or_none(text: str | None) -> datetime | None:
    return _instant(text) if text else None


def _text_or_none(at: datetime | None) -> str | None:
    return format_instant(at) if at else None


def _override(facts: dict[str, Any]) -> Override:
    return Override(**{**facts, "enabled": Enabled(facts["enabled"])})
