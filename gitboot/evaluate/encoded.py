"""Mappings whose values are made when they are asked for: of the bytes that they came as, or of a name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

from gitboot.load.merged import Unmade, made, replaced

K = TypeVar("K")
V = TypeVar("V")

RECENT: Final = 8192  # values that are held as they are beside their bytes: a commit reaches hardly more servers


class Encoded(Mapping[str, V], Generic[V]):
    """Values by name; each is decoded once, when it is first looked at, and held from then on.

    So it is for what is looked at but little, or for long; of what is walked through again and again see `Compact`.
    """

    def __init__(self, held: dict[str, bytes | V] | Unmade[str, bytes | V], decode: Callable[[bytes], V]) -> None:
        self._held, self._decode = held, decode

    @classmethod
    def of(cls, values: Mapping[str, bytes], decode: Callable[[bytes], V]) -> Encoded[V]:
        """Values that are bytes still, in the order of their names."""
        return cls(Unmade(values), decode)

    def one_encoded(self, name: str, encode: Callable[[V], bytes]) -> bytes:
        held = self._held[name]
        return held if isinstance(held, bytes) else encode(held)

    def passing(self) -> Iterator[V]:
        for name in sorted(self._held):
            held = self._held[name]
            yield self._decode(held) if isinstance(held, bytes) else held

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


class Compact(Mapping[str, V], Generic[V]):
    """Values by name, held as bytes; those that were decoded, or put in, last are held as they are, too.

    So what a fleet takes in memory does not grow with how much of it was looked at.
    """

    def __init__(
        self,
        held: Mapping[str, bytes],
        decode: Callable[[bytes], V],
        encode: Callable[[V], bytes],
        recent: OrderedDict[str, tuple[bytes, V]] | None = None,
    ) -> None:
        self.held = held
        self._decode, self._encode = decode, encode
        # With the bytes that each is of: mappings of one descent share them. Threads may look at once.
        self._recent: OrderedDict[str, tuple[bytes, V]] = recent if recent is not None else OrderedDict()

    def having(self, changed: Mapping[str, bytes], gone: Collection[str]) -> Compact[V]:
        """The same with these values instead or besides; the same object where nothing is another."""
        if not changed and not gone:
            return self
        return Compact(replaced(self.held, changed, gone), self._decode, self._encode, self._recent)

    def read_by(self, decode: Callable[[bytes], V]) -> Compact[V]:
        """The same values; what of them is not held as it is will be decoded otherwise."""
        return Compact(self.held, decode, self._encode, self._recent)

    def put_in(self, name: str, value: V) -> bytes:
        """The bytes of a value, which is held as it is for a while: `having` takes them."""
        data = self._encode(value)
        self._note(name, data, value)
        return data

    def __getitem__(self, name: str) -> V:
        data = self.held[name]
        found = self._recent.get(name)
        if found is not None and found[0] is data:
            return found[1]
        value = self._decode(data)
        self._note(name, data, value)
        return value

    def _note(self, name: str, data: bytes, value: V) -> None:
        self._recent[name] = data, value
        with suppress(KeyError):  # another thread was quicker
            self._recent.move_to_end(name)
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)

    def __contains__(self, name: object) -> bool:
        return name in self.held

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


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
