"""What commits changed, kept on disk from one look at history to the next; it can be deleted at any time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from gitboot.audit.effects import Change, EffectKind, ServerEffect
from gitboot.caches import this_program
from gitboot.facts import facts
from gitboot.model.scalars import SystemUuid

T = TypeVar("T")
Found = tuple[SystemUuid, ServerEffect]

_SCHEMA: Final = """
CREATE TABLE written_by (gitboot BLOB NOT NULL);
CREATE TABLE tree (id TEXT PRIMARY KEY, problem TEXT) WITHOUT ROWID;  -- problem: NULL where it is valid
CREATE TABLE step (id INTEGER PRIMARY KEY, old TEXT NOT NULL, new TEXT NOT NULL, UNIQUE (old, new));
CREATE TABLE effect (
    step INTEGER NOT NULL, uuid TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, changes TEXT NOT NULL,
    PRIMARY KEY (step, uuid)
) WITHOUT ROWID;
"""
_IN_MEMORY: Final = ":memory:"
_LOCKED_S: Final = 1  # what is kept is not worth a longer wait for another command


class Steps:
    """Which trees are valid, and what lies between two of them for each server; made by `Steps.open`.

    Trees are known by their ids in Git, so nothing here is ever out of date; what another gitboot wrote is dropped. A
    file that is damaged is made anew, one that cannot be written is done without.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self._path = connection, path

    @classmethod
    @contextmanager
    def open(cls, path: Path | None) -> Iterator[Steps]:
        """What is kept at ``path``; for this once only where it is None."""
        steps = cls(*_opened(path))
        try:
            yield steps
        finally:
            steps._connection.close()

    def problem(self, tree: str) -> tuple[str | None] | None:
        """What is wrong with a tree, (None,) where nothing is; None where the tree is not known."""
        rows = self._safely(lambda: self._rows("SELECT problem FROM tree WHERE id = ?", tree))
        return (rows[0][0],) if rows else None

    def keep_problem(self, tree: str, problem: str | None) -> None:
        self._safely(lambda: self._rows("INSERT OR REPLACE INTO tree VALUES (?, ?)", tree, problem))

    def effect(self, old: str, new: str, server: str | SystemUuid) -> tuple[Found | None] | None:
        """What a step changed for a server, (None,) where nothing; None where the step is not known.

        A server is named by its UUID, or by the name that it has after the step; where none has it then, by the name
        of the one that was removed.
        """

        def read() -> tuple[Found | None] | None:
            steps = self._rows("SELECT id FROM step WHERE old = ? AND new = ?", old, new)
            if not steps:
                return None
            query = "SELECT * FROM effect WHERE step = ? AND ? IN (uuid, server) ORDER BY kind"  # Removed comes last
            rows = self._rows(query, steps[0][0], server)
            return (_effect(*rows[0]) if rows else None,)

        return self._safely(read)

    def keep(self, old: str, new: str, effects: Mapping[SystemUuid, ServerEffect]) -> None:
        """Keep all that a step changed."""

        def write() -> None:
            self._rows("DELETE FROM effect WHERE step IN (SELECT id FROM step WHERE old = ? AND new = ?)", old, new)
            added = self._connection.execute("INSERT OR REPLACE INTO step (old, new) VALUES (?, ?)", (old, new))
            rows = [
                (added.lastrowid, uuid, effect.server, effect.kind, json.dumps(facts(effect.changes)))
                for uuid, effect in effects.items()
            ]
            self._connection.executemany("INSERT INTO effect VALUES (?, ?, ?, ?, ?)", rows)

        self._safely(write)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()

    def _safely(self, work: Callable[[], T]) -> T:
        """Do something in one transaction; where the file is damaged or refuses it, with an empty one in memory."""
        try:
            with self._connection:
                return work()
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            self._connection.close()
            if self._path is not None and not isinstance(error, sqlite3.OperationalError):
                _remove(self._path)
            self._connection, self._path = _made(_IN_MEMORY), None
            return work()


def _effect(_: int, uuid: str, server: str, kind: str, changes: str) -> Found:
    found = tuple(Change(field=each["field"], old=each["old"], new=each["new"]) for each in json.loads(changes))
    return SystemUuid(uuid), ServerEffect(server=server, kind=EffectKind(kind), changes=found)


def _opened(path: Path | None) -> tuple[sqlite3.Connection, Path | None]:
    if path is None:
        return _made(_IN_MEMORY), None
    for _ in range(2):  # the second time after what was no good has been removed
        with suppress(OSError, sqlite3.Error):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return _made(str(path)), path
        _remove(path)
    return _made(_IN_MEMORY), None


def _made(path: str) -> sqlite3.Connection:
    """A connection to what this gitboot wrote, or to what is empty; raises `sqlite3.Error` for anything else."""
    connection = sqlite3.connect(path, timeout=_LOCKED_S)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # what a power cut damages is made anew
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            connection.executescript(_SCHEMA)
            with connection:
                connection.execute("INSERT INTO written_by VALUES (?)", (this_program(),))
        if connection.execute("SELECT gitboot FROM written_by").fetchall() != [(this_program(),)]:
            raise sqlite3.DatabaseError(f"{path} was written by another gitboot")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-journal"):
        with suppress(OSError):
            path.with_name(name).unlink(missing_ok=True)
