"""Ledger location: SQLite or PostgreSQL, and whether it moved."""

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

_SEARCH_PATH: Final = re.compile(r"(?:-c\s*|--)search[_-]path=(?:\\\s)*([^,\s]+)")  # as libpq's options have it
_SCHEMES: Final = ("postgresql", "postgres")


class PostgresAddress(Struct, frozen=True, kw_only=True):
    """A database of a PostgreSQL, as libpq takes it; its password is in a file of its own."""

    url: str
    password: Path | None = None

    @classmethod
    def parse(cls, url: str, password: Path | None) -> Self:
        """Raises `UsageError`, which never has a password in it."""
        parts = urlsplit(url)
        parameters = dict(parse_qsl(parts.query))
        if parts.scheme not in _SCHEMES:
            raise UsageError("--ledger takes the URL of a PostgreSQL: postgresql://USER@HOST/DATABASE")
        if parts.password is not None or "password" in parameters:
            raise UsageError("--ledger must not hold a password, which others could read: give it a --ledger-password")
        if not parts.path.strip("/") and "dbname" not in parameters:
            raise UsageError("--ledger names no database: postgresql://USER@HOST/DATABASE")
        if password is not None and not password.is_file():
            raise UsageError(f"--ledger-password: {password} cannot be read")
        return cls(url=url, password=password.absolute() if password is not None else None)

    @property
    def name(self) -> str:
        """As people are told it: the schema as well, where it names one, for several ledgers may share a database."""
        place, schema = self.url.partition("?")[0], self.schema
        return f"{place} (schema {schema})" if schema is not None else place

    @property
    def schema(self) -> str | None:
        """The first schema of the search path that it asks for, if it asks for one."""
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
        lines = ["# The ledger of this state directory is there, and not in ledger.sqlite."]
        lines.append(f"url = {json.dumps(self.url)}")
        if self.password is not None:
            lines.append(f"password-file = {json.dumps(str(self.password))}")
        return "".join(f"{line}\n" for line in lines).encode()


def address_file(path: Path) -> Path:
    return path.with_suffix(".toml")


def has_address_file(path: Path) -> bool:
    return address_file(path).exists()


def read_address(path: Path) -> PostgresAddress | None:
    """Where the ledger is that would be at ``path``; None: there. Raises `UsageError` for what says no such thing."""
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
    raise UsageError(f"{file} names no ledger: it has a url, and perhaps a password-file")


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


COPY: Final = "copy"  # of both: which copy it was
NOTES: Final = (LEFT, COPY, UNFINISHED)  # none of them is copied
NO_HOLDER: Final = ""  # who holds the lease of a ledger that is left


class CopyNotes(NamedTuple):
    """What a ledger notes of copies, and which one it is."""

    identity: str
    changes: int
    moved_to: str | None  # where it was copied to, and goes on
    copy: str | None  # the copy for which it was left, or that it is itself
    copied_from: str | None  # what it is an unfinished copy of

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
    """Note that it goes on elsewhere, with the transaction that there is."""
    database.replace("facts", ("name",), [(LEFT, json.dumps({"place": place, "copy": copy}))])


def end_lease(database: Database, place: str) -> None:
    """Let nobody take the lease of a shared ledger any more, with the transaction that there is: it goes on elsewhere.

    Not even a transaction that only looks at the lease goes on beside this one.
    """
    if not database.is_local:
        database.execute("SELECT 1 FROM lease FOR UPDATE")
        leave = "UPDATE lease SET epoch = epoch + 1, holder = ?, place = ?, until = 'infinity'"
        database.execute(leave, (NO_HOLDER, place))
        database.lease = None


def free_lease(database: Database) -> None:
    """Let the lease of a shared ledger be taken again, though it was left."""
    if not database.is_local:
        database.execute("UPDATE lease SET until = clock_timestamp() WHERE holder = ?", (NO_HOLDER,))


def checkpoint_log(database: Database) -> None:
    """Let what was written to a ledger in a file stand in the file itself, and not beside it."""
    if database.is_local:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
