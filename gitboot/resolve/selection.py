"""Which of several resources select a server: worked out once for all servers that look the same to their selectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Literal, TypeVar

from gitboot.model.scalars import Name
from gitboot.model.selectors import Selector, selects
from gitboot.model.server import Server

T = TypeVar("T")


class Selecting(Generic[T]):
    """What selects servers, in a given order."""

    def __init__(self, selecting: Iterable[tuple[T, Literal["All", "None"] | Selector]]) -> None:
        self._selecting = tuple(selecting)
        selectors = [select for _, select in self._selecting if isinstance(select, Selector)]
        self._named = frozenset(name for select in selectors for name in select.servers)
        self._keys = tuple(sorted({key for select in selectors for key in select.keys}))
        self._found: dict[tuple[str | None, ...], tuple[T, ...]] = {}

    def of(self, server: Server) -> tuple[T, ...]:
        """What selects a server."""
        name, labels = server.metadata.name, server.metadata.labels
        if name in self._named:
            return self._selected(name, labels)
        seen = tuple(labels.get(key) for key in self._keys)
        found = self._found.get(seen)
        if found is None:
            found = self._found[seen] = self._selected(name, labels)
        return found

    def _selected(self, name: Name, labels: Mapping[str, str]) -> tuple[T, ...]:
        return tuple(each for each, select in self._selecting if selects(select, name, labels))
