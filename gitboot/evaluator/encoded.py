"""Values by name that are held as bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

from gitboot.load.merged import replaced

V = TypeVar("V")

RECENT: Final = 8192  # values that are held as they are beside their bytes: a commit reaches hardly more servers


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
