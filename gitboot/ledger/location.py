"""Ledger location: a file or a PostgreSQL database, and notes about copies and moves."""

from __future__ import annotations

import json
import re
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from gitboot.errors import UsageError
from gitboot.files import write_atomically
from gitboot.ledger.schema import LEFT, UNFINISHED, Database

_SEARCH_PATH: Final = re.compile(r"(?:-c\s*|--)search[_-]path=(?:\\\s)*([^,\s]+)")  # in the libpq parameter `options`
_SCHEMES: Final = ("postgresql", "postgres")


class PostgresAddress(Struct, frozen=True, kw_only=True):
    """The address of a PostgreSQL database: a URL in libpq's format, and a separate file with the password."""

    url: str
    password: Path | None = None

    @classmethod
    def parse(cls, url: str, password: Path | None) -> Self:
        """Parse the URL of a database. Raises `UsageError`, whose message never contains a password."""
        parts = urlsplit(url)
        parameters = dict(parse_qsl(parts.query))
        if parts.scheme not in _SCHEMES:
            raise UsageError("--ledger expects the URL of a PostgreSQL database: postgresql://USER@HOST/DATABASE")
        if parts.password is not None or "password" in parameters:
            raise UsageError(
                "--ledger must not contain a password, because others could read it; use --ledger-password"
            )
        if not parts.path.strip("/") and "dbname" not in parameters:
            raise UsageError("--ledger needs the name of a database: postgresql://USER@HOST/DATABASE")
        if password is not None and not password.is_file():
            raise UsageError(f"--ledger-password: {password} cannot be read")
        return cls(url=url, password=password.absolute() if password is not None else None)

    @property
    def name(self) -> str:
        """The name for messages: the URL, and the schema if there is one, because ledgers may share a database."""
        place, schema = self.url.partition("?")[0], self.schema
        return f"{place} (schema {schema})" if schema is not None else place

    @property
    def schema(self) -> str | None:
        """The first schema in the URL's search path, or None if the URL does not set a search path."""
        options = dict(parse_qsl(urlsplit(self.url).query)).get("options", "")
        found = _SEARCH_PATH.findall(options)
        return str(found[-1]).replace('"', "").replace("\\", "") if found else None

    @property
    def is_here(self) -> bool:
        parts = urlsplit(self.url)
        hosts = [host.rpartition(":")[0] or host for host in parts.netloc.rpartition("@")[2].split(",")]
        host_parameter = dict(parse_qsl(parts.query)).get("host")
        return all(map(_is_here, [host_parameter] if host_parameter is not None else hosts))

    def facts(self) -> bytes:
        lines = ["# The ledger of this state directory is in this database, and not in ledger.sqlite."]
        lines.append(f"url = {json.dumps(self.url)}")
        if self.password is not None:
            lines.append(f"password-file = {json.dumps(str(self.password))}")
        return "".join(f"{line}\n" for line in lines).encode()


def address_file(path: Path) -> Path:
    return path.with_suffix(".toml")


def has_address_file(path: Path) -> bool:
    return address_file(path).exists()


def read_address(path: Path) -> PostgresAddress | None:
    """Return the address of the database that replaces the file at ``path``, or None if the ledger is that file.

    Raises `UsageError` if the address file is damaged.
    """
    file = address_file(path)
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
    raise UsageError(f"{file} does not name a ledger; it needs a url, and optionally a password-file")


def write_address(path: Path, address: PostgresAddress) -> None:
    write_atomically(address_file(path), address.facts())


def _is_here(host: str) -> bool:
    name = host.strip("[]")
    if not name or name.startswith(("/", "@", "%2F", "%2f")) or name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


COPY: Final = "copy"  # the id of a copy, stored in both the old and the new ledger
NOTES: Final = (LEFT, COPY, UNFINISHED)  # facts that are left out of a copy
NO_HOLDER: Final = ""  # the lease holder of a ledger that was moved


class CopyNotes(NamedTuple):
    """The identity of a ledger, and what the ledger records about copies and moves."""

    identity: str
    changes: int
    moved_to: str | None  # the new location of the ledger
    copy: str | None  # the id of the copy that this ledger is, or that it was moved to
    copied_from: str | None  # the source of an unfinished copy

    @classmethod
    def read(cls, database: Database) -> Self:
        with database.reading():
            found: dict[str, Any] = dict(database.execute("SELECT name, value FROM facts"))
            left = json.loads(found[LEFT]) if LEFT in found else {}
            return cls(
                identity=found["identity"],
                changes=int(found.get("changes", 0)),
                moved_to=left["place"] if left else None,
                copy=left["copy"] if left else found.get(COPY),
                copied_from=found.get(UNFINISHED),
            )


def note_left(database: Database, place: str, copy: str) -> None:
    """Record in the current transaction that the ledger was moved to ``place``."""
    database.replace("facts", ("name",), [(LEFT, json.dumps({"place": place, "copy": copy}))])


def end_lease(database: Database, place: str) -> None:
    """End the lease of a shared ledger permanently, in the transaction that moves the ledger.

    Until this transaction ends, it also blocks transactions that only read the lease.
    """
    if not database.is_local:
        database.execute("SELECT 1 FROM lease FOR UPDATE")
        leave = "UPDATE lease SET epoch = epoch + 1, holder = ?, place = ?, until = 'infinity'"
        database.execute(leave, (NO_HOLDER, place))
        database.lease = None


def free_lease(database: Database) -> None:
    """Allow instances to take the lease of a shared ledger that is used again after a move."""
    if not database.is_local:
        database.execute("UPDATE lease SET until = clock_timestamp() WHERE holder = ?", (NO_HOLDER,))


def checkpoint_log(database: Database) -> None:
    """Write the write-ahead log of a SQLite ledger back into its file."""
    if database.is_local:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
