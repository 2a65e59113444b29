"""Several values under one key, which come and go one by one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Any)  # that can be hashed, and sorted


class Multimap(Generic[K, V]):
    """Values by key. Most keys have one value, which stands there without a set around it.

    What is ``below``, as `held` gave it, is asked for a key when that is first looked at, and its lists are taken over.
    """

    def __init__(self, below: Mapping[K, list[V]] | None = None) -> None:
        self._held: dict[K, V | set[V] | list[V]] = {}
        self._below: Mapping[K, list[V]] = below or {}
        self._gone: set[K] = set()  # of the keys below

    def held(self) -> Iterator[tuple[K, list[V]]]:
        """All that there is, the values of each key in their order."""
        return ((key, sorted(self[key])) for key in self)

    def __getitem__(self, key: K) -> Collection[V]:
        held = self._look(key)
        if held is None:
            return ()
        return held if isinstance(held, (set, list)) else (held,)

    def __contains__(self, key: K) -> bool:
        return key in self._held or (key in self._below and key not in self._gone)

    def __iter__(self) -> Iterator[K]:
        yield from self._held
        yield from (key for key in self._below if key not in self._held and key not in self._gone)

    def add(self, key: K, value: V) -> None:
        held = self._changing(key)
        if held is None:
            self._held[key] = value
        elif isinstance(held, set):
            held.add(value)
        elif held != value:
            self._held[key] = {held, value}

    def discard(self, key: K, value: V) -> None:
        held = self._changing(key)
        if isinstance(held, set):
            held.discard(value)
            if len(held) == 1:
                self._held[key] = held.pop()
        elif held == value:
            del self._held[key]
            if key in self._below:
                self._gone.add(key)

    def _look(self, key: K) -> V | set[V] | list[V] | None:
        held = self._held.get(key)
        if held is None and self._below and key not in self._gone and (found := self._below.get(key)) is not None:
            held = self._held[key] = found
        return held

    def _changing(self, key: K) -> V | set[V] | None:
        """The value or the values of a key, of which one comes or goes."""
        held = self._look(key)
        if not isinstance(held, list):
            return held
        values = self._held[key] = set(held) if len(held) > 1 else held[0]
        return values
