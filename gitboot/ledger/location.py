"""Where a ledger is: in STATE/ledger.sqlite, or in the PostgreSQL that STATE/ledger.toml names."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from gitboot.errors import UsageError
from gitboot.files import write_whole

_SEARCH_PATH: Final = re.compile(r"(?:-c\s*|--)search[_-]path=(?:\\\s)*([^,\s]+)")  # as libpq's options have it
_SCHEMES: Final = ("postgresql", "postgres")


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresAddress:
    """A database of a PostgreSQL, as libpq takes it; its password is in a file of its own."""

    url: str
    password: Path | None = None

    @classmethod
    def parse(cls, url: str, password: Path | None) -> Self:
        """Raises `UsageError`, which never has a password in it."""
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query))
        if parts.scheme not in _SCHEMES:
            raise UsageError("--ledger takes the URL of a PostgreSQL: postgresql://USER@HOST/DATABASE")
        if parts.password is not None or "password" in asked:
            raise UsageError("--ledger must not hold a password, which others could read: give it a --ledger-password")
        if not parts.path.strip("/") and "dbname" not in asked:
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
        """Whether nothing goes over a network."""
        parts = urlsplit(self.url)
        hosts = [host.rpartition(":")[0] or host for host in parts.netloc.rpartition("@")[2].split(",")]
        asked = dict(parse_qsl(parts.query)).get("host")
        return all(map(_is_here, [asked] if asked is not None else hosts))

    def facts(self) -> bytes:
        """The file that says it; a string of JSON is one of TOML."""
        lines = ["# The ledger of this state directory is there, and not in ledger.sqlite."]
        lines.append(f"url = {json.dumps(self.url)}")
        if self.password is not None:
            lines.append(f"password-file = {json.dumps(str(self.password))}")
        return "".join(f"{line}\n" for line in lines).encode()


def file_beside(path: Path) -> Path:
    """The file that names a PostgreSQL in the place of the ledger at ``path``."""
    return path.with_suffix(".toml")


def is_named(path: Path) -> bool:
    """Whether a PostgreSQL is named in the place of the ledger at ``path``."""
    return file_beside(path).exists()


def address_beside(path: Path) -> PostgresAddress | None:
    """Where the ledger is that would be at ``path``; None: there. Raises `UsageError` for what says no such thing."""
    file = file_beside(path)
    try:
        said = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    match said:
        case {"url": str(url), "password-file": str(password)}:
            return PostgresAddress(url=url, password=Path(password))
        case {"url": str(url)}:
            return PostgresAddress(url=url)
    raise UsageError(f"{file} names no ledger: it has a url, and perhaps a password-file")


def note_address(path: Path, address: PostgresAddress) -> None:
    """Name a PostgreSQL in the place of the ledger at ``path``."""
    write_whole(file_beside(path), address.facts())


def _is_here(host: str) -> bool:
    name = host.strip("[]")
    if not name or name.startswith(("/", "@", "%2F", "%2f")) or name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
