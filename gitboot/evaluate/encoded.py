"""A mapping whose values stay the bytes that they came as, until one of them is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")


class Encoded(Mapping[str, V], Generic[V]):
    """Values by name; each is decoded once, when it is first looked at."""

    def __init__(self, held: dict[str, bytes | V], decode: Callable[[bytes], V]) -> None:
        self._held, self._decode = held, decode

    def having(self, changed: Mapping[str, bytes], gone: tuple[str, ...]) -> Encoded[V]:
        """The same with these values instead or besides, by name; the same object where nothing is another."""
        if not changed and not gone:
            return self
        held = {**self._held, **changed}
        for name in gone:
            del held[name]
        in_order = changed.keys() <= self._held.keys()
        return Encoded(held if in_order else dict(sorted(held.items())), self._decode)

    def __getitem__(self, name: str) -> V:
        value = self._held[name]
        if isinstance(value, bytes):
            value = self._held[name] = self._decode(value)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
