"""Who is sent notices, as the file of ``gitboot run --notify`` says it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gitboot.errors import UsageError
from gitboot.files import read_private
from gitboot.notices.notice import Level, NotedEvent
from gitboot.text import did_you_mean

_KEYS: Final = ("webhook", "webhook-file", "secret-file", "apprise", "apprise-file", "level", "sites", "fold-minutes")
_ALL: Final = f"it may have {', '.join(_KEYS)}"
_SHORTEST_SECRET: Final = 16  # characters
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True, slots=True)
class Receiver:
    """Somebody who is sent notices, and of what."""

    name: str
    url: str = field(repr=False)
    secret: bytes | None = field(repr=False)  # by which a webhook is signed; None: the URL is for apprise
    level: Level = Level.WARNING  # and above
    sites: frozenset[str] = frozenset()  # of whose servers alone; none: of all there is
    fold: timedelta = timedelta(minutes=10)  # for which what is of one kind goes into one notice

    def wants(self, event: NotedEvent) -> bool:
        return event.level >= self.level and (not self.sites or event.site in self.sites)


def read_receivers(file: Path) -> tuple[Receiver, ...]:
    """Who is named in a file, by name. Raises `UsageError`, which never has a URL or a secret in it."""
    try:
        said = tomllib.loads(read_private(file).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise UsageError(f"{file} is no TOML") from None  # the error may show what stands there
    named = said.pop("receivers", {})
    if said or not isinstance(named, dict) or not all(isinstance(each, dict) for each in named.values()):
        raise UsageError(f"{file}: expected [receivers.NAME], and nothing beside them")
    return tuple(_Table(file, name, given).receiver() for name, given in sorted(named.items()))


def read_receiver(file: Path, name: str) -> Receiver:
    """Return the receiver of this name as the file names it now. Raises `UsageError`."""
    for receiver in read_receivers(file):
        if receiver.name == name:
            return receiver
    raise UsageError(f"{file}: receivers.{name} is not there any more; restart gitboot to stop sending to it")


@dataclass(frozen=True, slots=True)
class _Table:
    """One receiver, as it is written."""

    file: Path
    name: str
    given: Mapping[str, Any]

    def receiver(self) -> Receiver:
        for key in sorted(self.given.keys() - set(_KEYS)):
            raise self._wrong(f"there is no key {key!r}; {did_you_mean(key, _KEYS, _ALL)}")
        webhook, apprise = self._text("webhook"), self._text("apprise")
        if (webhook is None) == (apprise is None):
            raise self._wrong("expected webhook or apprise, or one of them as -file")
        secret = self._secret() if webhook is not None else None
        if webhook is not None:
            self._check(webhook)
        if apprise is not None and "secret-file" in self.given:
            raise self._wrong("secret-file signs a webhook; apprise has its secrets in its URL")
        return Receiver(
            name=self.name,
            url=webhook or apprise or "",
            secret=secret,
            level=self._level(),
            sites=self._sites(),
            fold=self._fold(),
        )

    def _text(self, key: str) -> str | None:
        """What is written for a key, or stands in the file that it names."""
        here, there = self.given.get(key), self.given.get(f"{key}-file")
        if here is not None and there is not None:
            raise self._wrong(f"expected one of {key} and {key}-file")
        found = here if there is None else self._in_file(f"{key}-file").decode(errors="replace").strip()
        if found is not None and (not isinstance(found, str) or not found or not found.isprintable()):
            raise self._wrong(f"{key}: expected a URL on one line")
        return found

    def _in_file(self, key: str) -> bytes:
        name = self.given[key]
        if not isinstance(name, str):
            raise self._wrong(f"{key}: expected the name of a file")
        return read_private(self.file.parent / name)

    def _secret(self) -> bytes:
        if "secret-file" not in self.given:
            raise self._wrong("a webhook needs secret-file, by which it is signed")
        secret = self._in_file("secret-file").strip()
        if len(secret) < _SHORTEST_SECRET:
            raise self._wrong(f"secret-file: expected {_SHORTEST_SECRET} characters or more")
        return secret

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            is_one = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
            is_one = is_one and bool(parts.hostname) and parts.username is None and parts.password is None
        except ValueError:
            is_one = False
        if not is_one:
            raise self._wrong("webhook: expected an https URL without a user (http to this machine alone)")

    def _level(self) -> Level:
        given = self.given.get("level", Level.WARNING.word)
        if (found := {each.word: each for each in Level}.get(given) if isinstance(given, str) else None) is None:
            raise self._wrong(f"level: expected {' or '.join(each.word for each in Level)}")
        return found

    def _sites(self) -> frozenset[str]:
        given = self.given.get("sites", [])
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise self._wrong("sites: expected a list of names")
        return frozenset(given)

    def _fold(self) -> timedelta:
        given = self.given.get("fold-minutes", 10)
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1440:
            raise self._wrong("fold-minutes: expected a number up to 1440")
        return timedelta(minutes=given)

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"{self.file}: receivers.{self.name}: {what}")
