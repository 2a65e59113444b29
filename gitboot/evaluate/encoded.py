"""Mappings whose values are made when they are asked for: of the bytes that they came as, or of a name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

from gitboot.load.merged import Unmade, made, replaced

K = TypeVar("K")
V = TypeVar("V")


class Encoded(Mapping[str, V], Generic[V]):
    """Values by name; each is decoded once, when it is first looked at, for all commits that share it by then."""

    def __init__(self, held: Mapping[str, bytes | V], decode: Callable[[bytes], V]) -> None:
        self._held, self._decode = held, decode

    @classmethod
    def of(cls, values: Mapping[str, bytes], decode: Callable[[bytes], V]) -> Encoded[V]:
        """Values that are bytes still, in the order of their names."""
        return cls(dict(values) if isinstance(values, dict) else Unmade(values), decode)

    def encoded(self, encode: Callable[[V], bytes]) -> dict[str, bytes]:
        """All of them as bytes again."""
        return {name: each if isinstance(each, bytes) else encode(each) for name, each in self._held.items()}

    def one_encoded(self, name: str, encode: Callable[[V], bytes]) -> bytes:
        held = self._held[name]
        return held if isinstance(held, bytes) else encode(held)

    def passing(self) -> Iterator[V]:
        for name in sorted(self._held):
            held = self._held[name]
            yield self._decode(held) if isinstance(held, bytes) else held

    def replaced(self, changed: Mapping[str, V], gone: Collection[str]) -> Encoded[V]:
        """The same with these values, which are none to be decoded, instead or besides."""
        return Encoded(replaced(self._held, changed, gone), self._decode)

    def having(self, changed: Mapping[str, bytes], gone: tuple[str, ...]) -> Encoded[V]:
        """The same with these values instead or besides, by name; the same object where nothing is another."""
        if not changed and not gone:
            return self
        return Encoded(replaced(self._held, changed, gone), self._decode)

    def __getitem__(self, name: str) -> V:
        held = self._held[name]
        if isinstance(held, bytes):
            held = self._decode(held)
            made(self._held, name, held)
        return held

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def encoded(values: Mapping[str, V], name: str, encode: Callable[[V], bytes]) -> bytes:
    """One of the values as bytes: as those that it still is, where it is."""
    return values.one_encoded(name, encode) if isinstance(values, Encoded) else encode(values[name])


def passing(values: Mapping[str, V]) -> Iterator[V]:
    """Each value once, in the order of the names; what is bytes stays that."""
    return values.passing() if isinstance(values, Encoded) else (values[name] for name in sorted(values))


class Derived(Mapping[K, V], Generic[K, V]):
    """What there is ``of`` each name, which raises KeyError for another; each is made anew when it is looked at."""

    def __init__(self, names: Mapping[K, object], of: Callable[[K], V]) -> None:
        self._names, self._of = names, of

    def __getitem__(self, name: K) -> V:
        return self._of(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[K]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Keyed(Mapping[K, V], Generic[K, V]):
    """A mapping whose keys are written as names; each value is decoded when it is looked at."""

    def __init__(
        self,
        values: Mapping[str, bytes],
        name: Callable[[K], str],
        key: Callable[[str], K],
        decode: Callable[[bytes], V],
    ) -> None:
        self._values, self._name, self._key, self._decode = values, name, key, decode

    def __getitem__(self, key: K) -> V:
        return self._decode(self._values[self._name(key)])

    def __iter__(self) -> Iterator[K]:
        return map(self._key, self._values)

    def __len__(self) -> int:
        return len(self._values)
