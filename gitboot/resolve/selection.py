"""Which of several resources select a server: worked out once for all servers that look the same to their selectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

from gitboot.model.selectors import Selector, selects
from gitboot.model.server import Server

T = TypeVar("T")


class Selecting(Generic[T]):
    """What selects servers, in a given order."""

    def __init__(self, selecting: Iterable[tuple[T, Literal["All", "None"] | Selector]]) -> None:
        self._selecting: list[T] = []
        self._by_labels: list[tuple[int, Literal["All", "None"] | Selector]] = []  # and those that select all or none
        self._by_name: dict[str, list[int]] = {}  # by server
        keys: set[str] = set()
        for number, (each, select) in enumerate(selecting):
            self._selecting.append(each)
            if isinstance(select, Selector) and select.servers:
                for name in dict.fromkeys(select.servers):
                    self._by_name.setdefault(name, []).append(number)
                continue
            self._by_labels.append((number, select))
            if isinstance(select, Selector):
                keys |= select.keys
        self._keys = tuple(sorted(keys))
        self._found: dict[tuple[str | None, ...], tuple[list[int], tuple[T, ...]]] = {}  # by labels

    def of(self, server: Server) -> tuple[T, ...]:
        """What selects a server."""
        name, labels = server.metadata.name, server.metadata.labels
        seen = tuple([labels.get(key) for key in self._keys])
        if (found := self._found.get(seen)) is None:
            numbers = [number for number, select in self._by_labels if selects(select, name, labels)]
            found = self._found[seen] = numbers, self._at(numbers)
        if (named := self._by_name.get(name)) is not None:
            return self._at(sorted((*found[0], *named)))
        return found[1]

    def _at(self, numbers: Iterable[int]) -> tuple[T, ...]:
        return tuple(self._selecting[number] for number in numbers)
