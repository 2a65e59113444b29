"""Documents of which kind or name could not be told: what they may be, so that nobody is told that it is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gitboot.fleet.resources import KINDS
from gitboot.fleet.yaml import Value

_NAMES: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class Unread(NamedTuple):
    """A document, or what may be several, of which it is not known which resource it is."""

    kind: str | None  # None: it may be of any
    names: frozenset[str] | None  # that it may have: what stands in it; None: nobody has read it


ANYTHING: Final = Unread(None, None)


def unread_text(data: bytes) -> Unread:
    """What a text that is no YAML may be: its name stands there."""
    return Unread(None, frozenset(_NAMES.findall(data.decode(errors="replace"))))


def unread_document(kind: Value, value: Value) -> Unread:
    """What a document may be whose kind or name is none: its name is likely there, in another place or spelling."""
    names = frozenset(name for text in _texts(value) for name in _NAMES.findall(text.lower()))
    return Unread(kind if isinstance(kind, str) and kind in KINDS else None, names)


def _texts(value: Value) -> Iterator[str]:
    match value:
        case dict():
            for key, each in value.items():
                yield from (key, *_texts(each))
        case list():
            for each in value:
                yield from _texts(each)
        case str():
            yield value


class AllUnread:
    """All of a revision's."""

    def __init__(self, found: Iterable[Unread]) -> None:
        self._unknown: set[str | None] = set()  # kinds of which one may have any name
        self._names: set[tuple[str | None, str]] = set()
        self.kinds: set[str] = set()  # that are among them, perhaps
        for each in found:
            self.add(each)

    def add(self, found: Unread) -> None:
        self.kinds |= KINDS.keys() if found.kind is None else {found.kind}
        if found.names is None:
            self._unknown.add(found.kind)
        else:
            self._names |= {(found.kind, name) for name in found.names}

    def may_hold(self, kind: str, name: str) -> bool:
        """Whether a resource that is nowhere else may be one of these."""
        return any(each in self._unknown or (each, name) in self._names for each in (kind, None))
