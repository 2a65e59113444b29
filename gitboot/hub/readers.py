"""What an instance says of itself, and of its servers: asked of its endpoint, or read in a copy of its tree."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from gitboot.errors import HostUnreachable
from gitboot.hub.members import NamedInstance
from gitboot.publish.manifest import STATUS
from gitboot.render.page import DATA, FORMAT, value_in
from gitboot.serve.exposition import of_status
from gitboot.web import opened, opener

_TIMEOUT_S: Final = 10.0  # for one step
_LONGEST_S: Final = 120.0  # for one answer
_MOST_BYTES: Final = 512 << 20  # a million rows are about so many
_CHUNK: Final = 1 << 20
_REFUSED: Final = {
    401: "the token is none of its --operators-tokens",
    404: "this machine is none of its --operators, or the name is none of its --operators-host",
    503: "nothing is published there yet",
}


@dataclass(frozen=True, slots=True)
class Rows:
    """The servers of an instance as its page shows them."""

    shared: Mapping[str, Any] = field(default_factory=dict)  # what is no server's
    servers: tuple[Mapping[str, Any], ...] = ()


class InstanceReader(Protocol):
    """A way to an instance; each method raises `HostUnreachable`, or `UsageError` for a token file."""

    def status(self) -> Mapping[str, Any]:
        """How it fares."""

    def script(self, name: str) -> bytes | None:
        """A file of its page's data; None: there is none."""

    def rows(self) -> Rows:
        """Its servers; none where its Fleet has no page among its outputs."""


def reader_of(member: NamedInstance) -> InstanceReader:
    """The way to an instance. Raises `UsageError` for a bundle that cannot be read."""
    if member.out is not None:
        return _Tree(member.out)
    return _Endpoint(member)


class _Tree:
    """A published tree on this machine: the instance's own, or what somebody copies here."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def status(self) -> Mapping[str, Any]:
        if (found := self._read(STATUS)) is None:
            raise HostUnreachable(f"there is no {self._root / STATUS}: no instance has published there")
        return _status(found, f"{self._root / STATUS}")

    def script(self, name: str) -> bytes | None:
        return self._read(f"{DATA}{name}.js")

    def rows(self) -> Rows:
        shared = _shared(self.script("fleet"))
        found = (self.script(f"shard/{shard}") for shard in shared.get("shards", ()))
        return Rows(shared, tuple(row for each in found if each is not None for row in _rows(each)))

    def _read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostUnreachable(f"{self._root / path} cannot be read: {error.strerror}") from None


class _Endpoint:
    """An endpoint, asked as an operator asks."""

    def __init__(self, member: NamedInstance) -> None:
        self._member, self._url = member, member.url or ""
        self._opener = opener(member.ca_bundle)

    def status(self) -> Mapping[str, Any]:
        url = f"{self._url}/api/v1/status"
        return _status(self._ask(url, missing=False) or b"", url)

    def script(self, name: str) -> bytes | None:
        return self._ask(f"{self._url}/page/data/{name}.js")

    def rows(self) -> Rows:
        shared = _shared(self.script("fleet"))
        content = self.script("rows") if shared else None
        return Rows(shared, tuple(row for line in (content or b"").splitlines() for row in _rows(line)))

    def _ask(self, url: str, *, missing: bool = True) -> bytes | None:
        """What is answered; None where ``missing`` may be, and is. Led nowhere else, and not for longer than it may."""
        with opened(self._opener, url, headers=self._member.bearer(), timeout_s=_TIMEOUT_S) as answer:
            if answer.status == 404 and missing:
                return None
            if answer.status != 200:
                why = _REFUSED.get(answer.status, "it is no endpoint")
                raise HostUnreachable(f"{url} answers {answer.status}: {why}")
            return _whole(answer.read, url)


def _whole(read: Callable[[int], bytes], url: str) -> bytes:
    found, until = bytearray(), time.monotonic() + _LONGEST_S
    while part := read(_CHUNK):
        found += part
        if len(found) > _MOST_BYTES or time.monotonic() > until:
            most = f"{_MOST_BYTES >> 20} MiB, or for longer than {_LONGEST_S:.0f} s"
            raise HostUnreachable(f"{url} sends more than {most}")
    return bytes(found)


def _status(content: bytes, place: str) -> Mapping[str, Any]:
    """A status of which all can be shown that is shown of one."""
    try:
        found = json.loads(content)
        deque(of_status(found), maxlen=0)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise HostUnreachable(f"{place} is no status of a gitboot") from None
    return dict(found)


def _shared(script: bytes | None) -> Mapping[str, Any]:
    if script is None:
        return {}
    found = _value(script)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise HostUnreachable(f"its page's data are not of format {FORMAT}: this gitboot, or that one, is older")
    return found


def _rows(script: bytes) -> Iterator[Mapping[str, Any]]:
    try:
        found = _value(script)
        columns, rows = found["columns"], found["rows"]
        yield from [dict(zip(columns, row, strict=True)) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise HostUnreachable(f"its page's data cannot be read: {error!r}") from None


def _value(script: bytes) -> Any:
    try:
        return value_in(script)
    except (ValueError, RecursionError) as error:
        raise HostUnreachable(f"its page's data cannot be read: {error}") from None
