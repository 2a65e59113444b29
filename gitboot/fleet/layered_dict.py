"""Layered dictionary: a large dictionary with some values replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import merge
from math import isqrt
from typing import Any, TypeVar

K = TypeVar("K", bound=Any)
V = TypeVar("V")


def merged(before: Mapping[K, V], changed: Mapping[K, V], gone: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the gone keys, or ``before`` itself if both are equal.

    If keys are added, those of ``before`` must be sorted. ``before`` must not change afterwards.
    """
    if all(before.get(key) == each for key, each in changed.items()) and not any(key in before for key in gone):
        return before
    return replaced(before, changed, gone)


def replaced(before: Mapping[K, V], changed: Mapping[K, V], gone: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the keys that are gone. Values are not compared."""
    if not changed and not gone:
        return before
    base, over, without = before, dict(changed), set[K]()
    if isinstance(before, Overlay):
        base, over, without = before.base, {**before.over, **changed}, before.without - changed.keys()
    for key in gone:
        over.pop(key, None)
        if key in base:
            without.add(key)
    if not base:
        return over if (order := sorted(over)) == list(over) else {key: over[key] for key in order}
    come = tuple(sorted(key for key in over if key not in base))
    # Each further change copies what lies above, and now and then what lies below: together that is least at the root.
    # What is no dictionary may have its values still to make.
    if len(over) + len(without) <= (2 * isqrt(len(base)) if isinstance(base, dict) else len(base)):
        return Overlay(base, over, without, come)
    flat = {**base, **over}
    for key in without:
        del flat[key]
    return dict(sorted(flat.items())) if come else flat


def differing(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    """Return the keys whose values are not the same objects. Values that both share below are not compared."""
    (base, touched), (other_base, other_touched) = _layers(before), _layers(after)
    keys = {*touched, *other_touched} if base is other_base else {*before, *after}
    return {key for key in keys if before.get(key) is not after.get(key)}


def _layers(mapping: Mapping[K, V]) -> tuple[Mapping[K, V], Collection[K]]:
    """Return what lies below a mapping, and the keys that differ from it."""
    if isinstance(mapping, Overlay):
        return mapping.base, mapping.over.keys() | mapping.without
    return mapping, ()


class Overlay(Mapping[K, V]):
    """A mapping above another mapping, with which it shares nearly all of its values."""

    __slots__ = ("base", "come", "over", "without")

    def __init__(self, base: Mapping[K, V], over: dict[K, V], without: set[K], come: tuple[K, ...]) -> None:
        self.base, self.over, self.without = base, over, without
        self.come = come  # the keys that lie above alone, sorted

    def __getitem__(self, key: K) -> V:
        if key in self.over:
            return self.over[key]
        if key in self.without:
            raise KeyError(key)
        return self.base[key]

    def get(self, key: K, /, default: Any = None) -> Any:
        if key in self.over:
            return self.over[key]
        return default if key in self.without else self.base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.over or (key in self.base and key not in self.without)

    def __iter__(self) -> Iterator[K]:
        below = (key for key in self.base if key not in self.without) if self.without else iter(self.base)
        return merge(below, self.come) if self.come else iter(below)

    def __len__(self) -> int:
        return len(self.base) - len(self.without) + len(self.come)
