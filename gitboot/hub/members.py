"""Which instances a view is over, as a file names them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gitboot.errors import UsageError
from gitboot.files import read_private
from gitboot.phrases import did_you_mean

_KEYS: Final = ("url", "token-file", "ca-bundle", "out", "site")
_ALL: Final = f"it may have {', '.join(_KEYS)}"
_OF_URLS: Final = ("token-file", "ca-bundle")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedInstance:
    """One instance, and where it is read."""

    name: str
    site: str  # of which it is shown
    url: str | None = None  # of an endpoint, where operators ask; None: it is read on this machine
    token: Path | None = None  # the file with the one that is shown there
    ca_bundle: Path | None = None  # what is trusted there, besides what this machine trusts
    out: Path | None = None  # a published tree on this machine

    def bearer(self) -> dict[str, str]:
        """How it says who it is; the file is read each time. Raises `UsageError`."""
        if self.token is None:
            return {}
        token = read_private(self.token).strip()
        if not token.isascii() or not token.decode("ascii", "replace").isprintable() or not token:
            raise UsageError(f"{self.token}: expected a token on one line")
        return {"Authorization": f"Bearer {token.decode()}"}


def read_members(file: Path) -> tuple[NamedInstance, ...]:
    """Who is named in a file, by site and name. Raises `UsageError`."""
    try:
        said = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    named = said.pop("instances", None)
    if said or not isinstance(named, dict) or not named or not all(isinstance(each, dict) for each in named.values()):
        raise UsageError(f"{file}: expected [instances.NAME] for each instance, and nothing beside them")
    members = [_InstanceTable(file, name, given).member() for name, given in named.items()]
    return tuple(sorted(members, key=lambda each: (each.site, each.name)))


@dataclass(frozen=True, slots=True)
class _InstanceTable:
    """One instance, as it is written."""

    file: Path
    name: str
    given: Mapping[str, Any]

    def member(self) -> NamedInstance:
        for key in sorted(self.given.keys() - set(_KEYS)):
            raise self._wrong(f"there is no key {key!r}; {did_you_mean(key, _KEYS, _ALL)}")
        for key, value in sorted(self.given.items()):
            if not isinstance(value, str) or not value or not value.isprintable():
                raise self._wrong(f"{key}: expected a text on one line")
        if ("url" in self.given) == ("out" in self.given):
            raise self._wrong("expected url, of an endpoint, or out, a published tree on this machine")
        for key in _OF_URLS:
            if key in self.given and "url" not in self.given:
                raise self._wrong(f"{key} belongs to a url")
        return NamedInstance(
            name=self._called(self.name),
            site=self._called(self.given.get("site", self.name)),
            url=self._url(),
            token=self._path("token-file"),
            ca_bundle=self._path("ca-bundle"),
            out=self._path("out"),
        )

    def _called(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise self._wrong(f"{name!r}: expected small letters, digits, dots and dashes, 63 at most")
        return name

    def _url(self) -> str | None:
        given = self.given.get("url")
        if given is None:
            return None
        try:
            parts = urlsplit(given)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
            is_one = is_one and not parts.query and not parts.fragment
            is_open = parts.scheme == "http" and parts.hostname not in _LOOPBACK
        except ValueError:
            is_one, is_open = False, False
        if not is_one:
            raise self._wrong("url: expected https://HOST:PORT of an endpoint, without a user")
        if is_open and "token-file" in self.given:
            raise self._wrong("token-file: http would send the token unencrypted; use https")
        return str(given).rstrip("/")

    def _path(self, key: str) -> Path | None:
        return self.file.parent / self.given[key] if key in self.given else None

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"{self.file}: [instances.{self.name}]: {what}")
