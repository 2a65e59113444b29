"""Several values under one key, which come and go one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from functools import cached_property
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Multimap(Generic[K, V]):
    """Values by key. Most keys have one value, which stands there without a set around it.

    What ``held`` gives, as `held` gave it, is asked for when a key is first looked at, and its lists are taken over.
    """

    def __init__(self, held: Callable[[], dict[K, list[V]]] = dict) -> None:
        self._given = held

    @cached_property
    def _held(self) -> dict[K, V | set[V] | list[V]]:
        return {**self._given()}

    def held(self) -> dict[K, list[V]]:
        """All that there is."""
        return {key: [*self[key]] for key in self._held}

    def __getitem__(self, key: K) -> Collection[V]:
        held = self._held.get(key)
        if held is None:
            return ()
        return held if isinstance(held, (set, list)) else (held,)

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

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

    def _changing(self, key: K) -> V | set[V] | None:
        """The value or the values of a key, of which one comes or goes."""
        held = self._held.get(key)
        if not isinstance(held, list):
            return held
        values = self._held[key] = set(held) if len(held) > 1 else held[0]
        return values
