"""Several values under one key, which come and go one by one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Multimap(Generic[K, V]):
    """Values by key. Most keys have one value, which stands there without a set around it."""

    def __init__(self) -> None:
        self._held: dict[K, V | set[V]] = {}

    @classmethod
    def of(cls, held: Mapping[K, Collection[V]]) -> Multimap[K, V]:
        """What `held` gave."""
        found = cls()
        found._held = {key: set(values) if len(values) > 1 else next(iter(values)) for key, values in held.items()}
        return found

    def held(self) -> dict[K, list[V]]:
        """All that there is."""
        return {key: [*self[key]] for key in self._held}

    def __getitem__(self, key: K) -> Collection[V]:
        held = self._held.get(key)
        if held is None:
            return ()
        return held if isinstance(held, set) else (held,)

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

    def add(self, key: K, value: V) -> None:
        held = self._held.get(key)
        if held is None:
            self._held[key] = value
        elif isinstance(held, set):
            held.add(value)
        elif held != value:
            self._held[key] = {held, value}

    def discard(self, key: K, value: V) -> None:
        held = self._held.get(key)
        if isinstance(held, set):
            held.discard(value)
            if len(held) == 1:
                self._held[key] = held.pop()
        elif held == value:
            del self._held[key]
