"""Disk cache: store results in one SQLite file, which may be deleted or damaged at any time."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b, sha256
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, Final, NamedTuple, Self, TypeVar

# The digest of the running program


# Libraries that read, check and encode documents and templates. Cached results depend on these libraries.
_LIBRARIES: Final = ("jinja2", "markupsafe", "msgspec", "pygit2", "yaml")


@cache
def compute_program_digest() -> bytes:
    """Return a digest of gitboot's source files, Python's version and the versions of installed libraries.

    Two checkouts of the same version have different digests if a file differs. Call this function at the start of a
    process. After an upgrade, it would return the digest of the new files although the process still runs the old
    files.
    """
    digest = sha256(repr(sys.version).encode())
    top = os.path.dirname(__file__)
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):  # for example the dangling symlink that Emacs creates to lock a file
                continue
            with open(path, "rb") as file:
                content = file.read()
            digest.update(repr((folder[len(top) :], name, len(content))).encode() + content)
    # Include the names of all distributions in the libraries' folders. The names contain the versions.
    specs = filter(None, map(find_spec, _LIBRARIES))
    library_folders = {Path(spec.origin).parent.parent for spec in specs if spec.origin is not None}
    for name in sorted({entry for folder in library_folders for entry in os.listdir(folder)}):
        if name.endswith(("-info", ".egg")):
            digest.update(repr(name).encode())
    return digest.digest()


# The cache


T = TypeVar("T")

# maximum size of the file; if the file is larger, gitboot deletes the least recently used entries
MAX_BYTES: Final = 2**30
MAX_VALUE_BYTES: Final = 2**26  # maximum size of one value, so that a damaged length cannot use up the memory

_BUSY_MS: Final = 200  # maximum wait for a lock; a longer wait costs more time than a new computation of the results
_MAX_USE_LAG: Final = 8  # a read updates the time of use only after this many insertions, so that reads rarely write
_MAX_IDS_PER_QUERY: Final = 500  # SQLite limits the number of parameters (sqlite.org/limits.html, 9)
_OVERHEAD_BYTES: Final = 100  # space for each entry in addition to its value

_SCHEMA: Final = (
    "CREATE TABLE entry (id BLOB PRIMARY KEY, checksum BLOB NOT NULL, used INTEGER NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX entry_used ON entry (used)",
)
_PRAGMAS: Final = (
    "page_size = 16384",  # bytes; most values are larger than the default page; only a new file gets this size
    "mmap_size = 0",  # if a mapped file is truncated, SIGBUS kills the process
    "synchronous = OFF",  # a power failure may damage the file, and gitboot then replaces the file
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "temp_store = MEMORY",
    "cache_size = -8192",  # KiB
)
# https://sqlite.org/fileformat2.html, 1.3.3; 2 means WAL, for which SQLite maps the -shm file
_ROLLBACK_JOURNAL: Final = b"\1\1"
_JOURNAL_OFFSET: Final = 18
_BUSY_ERRORS: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# errors of the operating system; every other error of SQLite means that the file is damaged
_SYSTEM_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_NOLFS,
    }
)


class _ReadResult(NamedTuple):
    """The entries that one transaction has read."""

    entry_values: dict[bytes, bytes]  # the value of each usable entry by its id
    damaged_ids: list[bytes]
    stale_ids: list[bytes]  # the ids of entries whose time of last use must be updated
    last_insertion: int


class DiskCache:
    """A cache of values that are stored by kind and key.

    The cache treats damaged entries, and entries that other versions of gitboot wrote, as missing. Methods do not raise
    exceptions for problems with the file. If the file cannot be used, each lookup is a miss, and the cache calls
    ``warn`` once with the reason. Several threads may use one object, and several processes may use one file. In each
    process, use only one object for a file, because a process loses all of its locks on a file when it closes the file
    (fcntl(2)).
    """

    def __init__(
        self, path: Path | None, warn: Callable[[str], None], *, max_bytes: int = MAX_BYTES, writes: bool = True
    ) -> None:
        """Use the file at ``path``, and create the file if it does not exist.

        If ``path`` is None, each lookup is a miss.

        Without ``writes``, the cache ignores insertions and deletions, and does not change the file or its folder.
        """
        self.max_bytes = max_bytes
        self._path, self._warn, self._writes = path, warn, writes
        # Read the sources at the start, because an upgrade may replace them later.
        self._program = compute_program_digest() if path is not None else b""
        self._connection: sqlite3.Connection | None = None
        # A second file descriptor of the same file. gitboot checks the open file, because another process could replace
        # the file at the path after a check of the path.
        self._fd = -1
        self._warnings: set[str] = set()
        self._busy_ms = _BUSY_MS
        self._lock = RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. The next call opens the file again."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None
            if self._fd >= 0:
                os.close(self._fd)  # close this after the connection, because this releases the locks of the connection
                self._fd = -1

    def get_many(self, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return a mapping of these keys to their cached values."""
        keys_by_id = {self._compute_id(kind, key): key for key in keys}
        result = self._read(partial(_read_entries, ids=sorted(keys_by_id)))
        if result is None:
            return {}
        if result.damaged_ids and self._writes:
            self._write(partial(_delete_entries, ids=result.damaged_ids))
        if result.stale_ids and self._writes:
            self._write(partial(_update_use_numbers, ids=result.stale_ids, insertion_number=result.last_insertion))
        return {keys_by_id[entry]: value for entry, value in result.entry_values.items()}

    def find_keys(self, kind: str, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Return which of these keys are in the cache, without checking the values."""
        keys_by_id = {self._compute_id(kind, key): key for key in keys}
        ids = self._read(partial(_find_ids, ids=sorted(keys_by_id))) or ()
        return frozenset(keys_by_id[entry] for entry in ids)

    def insert_many(self, kind: str, rows: Mapping[bytes, bytes]) -> None:
        """Store values for keys that are not in the cache yet.

        The method never replaces existing values. It ignores values of more than `MAX_VALUE_BYTES`. If the new values
        exceed half of the cache's size, it ignores the remaining values.
        """
        if not self._writes:
            return
        entries = []
        remaining_bytes = self.max_bytes // 2
        for key, value in rows.items():
            if len(value) > MAX_VALUE_BYTES:
                continue
            remaining_bytes -= len(value) + _OVERHEAD_BYTES
            if remaining_bytes < 0:
                break
            entry = self._compute_id(kind, key)
            entries.append((entry, _compute_checksum(entry, value), value))
        if entries:
            entries.sort()
            self._write(partial(_insert_entries, entries=entries, max_bytes=self.max_bytes))

    def delete_many(self, kind: str, keys: Iterable[bytes]) -> None:
        """Remove the values of these keys."""
        if self._writes:
            self._write(partial(_delete_entries, ids=sorted(self._compute_id(kind, key) for key in keys)))

    def _compute_id(self, kind: str, key: bytes) -> bytes:
        return blake2b(kind.encode() + b"\0" + key, digest_size=32, key=self._program).digest()

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        return self._transact(work, "BEGIN")

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        self._transact(work, "BEGIN IMMEDIATE")

    def _transact(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T | None:
        """Run ``work`` in one transaction and return its result. Return None if the file cannot be used now."""
        with self._lock:
            for _ in range(2):  # the second attempt uses a new file
                try:
                    connection = self._open_connection()
                    return None if connection is None else self._run_transaction(connection, work, begin)
                except OSError as error:
                    self.close()
                    self._warn_once("is not used", error.strerror)
                    return None
                except sqlite3.Error as error:
                    if not self._replace_damaged_file(error):
                        return None
            return None

    def _replace_damaged_file(self, error: sqlite3.Error) -> bool:
        """Remove the file if the error means that the file is damaged. Return whether the file was removed."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _BUSY_ERRORS:
            self._busy_ms = 0  # after a failure, do not wait for locks until a transaction succeeds
            return False
        if code in _SYSTEM_ERRORS:
            self._warn_once("is not used", error)
            return False
        if not self._writes:  # the process that writes the file replaces a damaged file
            self.close()
            return False
        self._warn_once("is rebuilt", error)
        self._remove_file()
        return True

    def _run_transaction(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T], begin: str
    ) -> T:
        connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
        connection.execute(begin)
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self._busy_ms = _BUSY_MS
        return result

    def _open_connection(self) -> sqlite3.Connection | None:
        """Return a connection to the file that is now at the path, or None if there is no usable file.

        Raises OSError and `sqlite3.Error`.
        """
        if self._path is None:
            return None
        if self._connection is not None and self._find_fault(self._path) is None:
            return self._connection
        self.close()
        if not self._writes:
            return self._open_read_only(self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._path.is_symlink():
            raise OSError(errno.ELOOP, "the file is a symlink; remove the symlink")
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        for _ in range(2):  # the second attempt follows the removal of an unusable file
            self._fd = os.open(self._path, flags, 0o600)
            if (fault := self._find_fault(self._path)) is None:
                self._connection = _connect(self._path, self._busy_ms)
                return self._connection
            self._warn_once("is rebuilt", fault)
            self._remove_file()
        raise OSError(errno.EPERM, "gitboot cannot replace the file")

    def _open_read_only(self, path: Path) -> sqlite3.Connection | None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if self._find_fault(path) is None and 0 < os.fstat(self._fd).st_size <= 2 * self.max_bytes:
            self._connection = _connect(path, self._busy_ms, writes=False)
            return self._connection
        self.close()
        return None

    def _find_fault(self, path: Path) -> str | None:
        """Return why the open file is unusable, or None if it is usable.

        Raises OSError if the file is unusable and gitboot must not replace it.
        """
        try:
            folder, path_stat, file_stat = path.parent.stat(), path.lstat(), os.fstat(self._fd)
            journal = os.pread(self._fd, 2, _JOURNAL_OFFSET) if stat.S_ISREG(file_stat.st_mode) else b""
        except OSError as error:
            return error.strerror or str(error)
        _check_place(folder, file_stat)
        if not os.path.samestat(path_stat, file_stat):
            return "another file has replaced the file"
        if file_stat.st_uid != os.geteuid() or file_stat.st_mode & 0o077:
            return "the file belongs to another user, or other users can read or write the file"
        # with one of these, SQLite uses WAL
        if journal not in (b"", _ROLLBACK_JOURNAL) or os.path.lexists(f"{path}-wal"):
            return "the file has a write-ahead log"
        return "the file is too large" if file_stat.st_size > 2 * self.max_bytes else None

    def _remove_file(self) -> None:
        self.close()
        assert self._path is not None  # noqa: S101 - the callers have opened or found a file at the path
        for suffix in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")

    def _warn_once(self, problem: str, reason: object) -> None:
        text = f"the cache {self._path} {problem}: {reason}"
        if text not in self._warnings:
            self._warnings.add(text)
            self._warn(text)


def _check_place(folder: os.stat_result, file: os.stat_result) -> None:
    """Raise OSError if gitboot must not replace this file in this folder."""
    if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & stat.S_IWOTH:
        raise OSError(errno.EPERM, "the file's folder belongs to another user, or every user can write to the folder")
    if not stat.S_ISREG(file.st_mode):
        raise OSError(errno.EPERM, "the path is not a regular file; remove it")


def _compute_checksum(entry: bytes, value: bytes) -> bytes:
    return blake2b(value, digest_size=16, key=entry).digest()


def _connect(path: Path, busy_ms: int, *, writes: bool = True) -> sqlite3.Connection:
    """Connect to a file, which may be empty.

    Raises `sqlite3.Error` if the file cannot be used or has a different schema.
    """
    uri = f"{path.absolute().as_uri()}?mode={'rw' if writes else 'ro'}"
    connection = sqlite3.connect(uri, busy_ms / 1000, isolation_level=None, check_same_thread=False, uri=True)
    try:
        connection.text_factory = bytes  # do not decode text, because text in the file is damage
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES + 2**16)
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        if writes and not _read_schema(connection):
            connection.execute("BEGIN IMMEDIATE")
            if not _read_schema(connection):  # only if no other process has created the tables in the meantime
                for statement in _SCHEMA:
                    connection.execute(statement)
            connection.execute("COMMIT")
        if _read_schema(connection) != [statement.encode() for statement in _SCHEMA]:
            raise sqlite3.DatabaseError("the file does not have the expected schema")
    except BaseException:
        connection.close()
        raise
    return connection


def _read_schema(connection: sqlite3.Connection) -> list[object]:
    return [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY rowid")]


def _read_last_insertion(connection: sqlite3.Connection) -> int:
    """Return the number of the last insertion.

    The age of an entry is the number of insertions since the entry was last used.
    """
    (number,) = connection.execute("SELECT coalesce(max(used), 0) FROM entry").fetchone()
    if not isinstance(number, int) or number >= 2**62:
        raise sqlite3.DatabaseError("the file contains an entry whose insertion number is too high")
    return number


def _read_entries(connection: sqlite3.Connection, ids: list[bytes]) -> _ReadResult:
    result = _ReadResult({}, [], [], _read_last_insertion(connection))
    for entry, checksum, used, value in _read_rows(connection, "id, checksum, used, value", ids):
        if not isinstance(value, bytes) or checksum != _compute_checksum(entry, value):
            result.damaged_ids.append(entry)
            continue
        result.entry_values[entry] = value
        if not isinstance(used, int) or used < result.last_insertion - _MAX_USE_LAG:
            result.stale_ids.append(entry)
    return result


def _find_ids(connection: sqlite3.Connection, ids: list[bytes]) -> list[bytes]:
    return [entry for (entry,) in _read_rows(connection, "id", ids)]


def _read_rows(connection: sqlite3.Connection, columns: str, ids: list[bytes]) -> Iterator[tuple[Any, ...]]:
    """Yield these columns of the entries with these ids. The first column must be the id."""
    requested_ids = frozenset(ids)
    for start in range(0, len(ids), _MAX_IDS_PER_QUERY):
        batch = ids[start : start + _MAX_IDS_PER_QUERY]
        marks = ",".join("?" * len(batch))
        for row in connection.execute(f"SELECT {columns} FROM entry WHERE id IN ({marks})", batch):  # noqa: S608 - no text
            if row[0] not in requested_ids:
                raise sqlite3.DatabaseError("the file's index points to the wrong entry")
            yield row


def _update_use_numbers(connection: sqlite3.Connection, ids: list[bytes], insertion_number: int) -> None:
    connection.executemany("UPDATE entry SET used = ? WHERE id = ?", [(insertion_number, entry) for entry in ids])


def _delete_entries(connection: sqlite3.Connection, ids: list[bytes]) -> None:
    connection.executemany("DELETE FROM entry WHERE id = ?", [(entry,) for entry in ids])


def _insert_entries(connection: sqlite3.Connection, entries: list[tuple[bytes, bytes, bytes]], max_bytes: int) -> None:
    insertion_number = _read_last_insertion(connection) + 1
    rows = [(entry, checksum, insertion_number, value) for entry, checksum, value in entries]
    connection.executemany("INSERT OR IGNORE INTO entry VALUES (?, ?, ?, ?)", rows)
    while _measure_size(connection) > max_bytes:
        oldest = "SELECT rowid FROM entry ORDER BY used, rowid LIMIT 1 + (SELECT count(*) FROM entry) / 8"
        if not connection.execute(f"DELETE FROM entry WHERE rowid IN ({oldest})").rowcount:  # noqa: S608 - constants
            break


def _measure_size(connection: sqlite3.Connection) -> int:
    """Return the size of the used pages, in bytes."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (unused_pages,) = connection.execute("PRAGMA freelist_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    return int((pages - unused_pages) * page_bytes)
