"""Layered dictionaries: create changed copies of large dictionaries that share most values with the earlier version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import merge
from math import isqrt
from typing import Any, TypeVar

K = TypeVar("K", bound=Any)
V = TypeVar("V")


def merge_changes(before: Mapping[K, V], changed: Mapping[K, V], removed: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the removed keys.

    If the result would equal ``before``, return ``before`` itself. If keys are added, the keys of ``before`` must be
    sorted. The caller must not change ``before`` afterwards.
    """
    if all(before.get(key) == each for key, each in changed.items()) and not any(key in before for key in removed):
        return before
    return apply_changes(before, changed, removed)


def apply_changes(before: Mapping[K, V], changed: Mapping[K, V], removed: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the removed keys, even if nothing differs."""
    if not changed and not removed:
        return before
    base, over, without = before, dict(changed), set[K]()
    if isinstance(before, Overlay):
        base, over, without = before.base, {**before.over, **changed}, before.removed_keys - changed.keys()
    for key in removed:
        over.pop(key, None)
        if key in base:
            without.add(key)
    if not base:
        return over if (order := sorted(over)) == list(over) else {key: over[key] for key in order}
    come = tuple(sorted(key for key in over if key not in base))
    # Each change copies the upper layer, and sometimes also the base. The total cost is lowest if the size of the upper
    # layer is at most about the square root of the size of the base. A base that is not a dict may compute its values
    # on access.
    if len(over) + len(without) <= (2 * isqrt(len(base)) if isinstance(base, dict) else len(base)):
        return Overlay(base, over, without, come)
    flat = {**base, **over}
    for key in without:
        del flat[key]
    return dict(sorted(flat.items())) if come else flat


def find_differing_keys(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    """Return the keys whose values are different objects in the two mappings.

    Values in a shared base need no comparison.
    """
    (base, touched), (other_base, other_touched) = _split_layers(before), _split_layers(after)
    keys = {*touched, *other_touched} if base is other_base else {*before, *after}
    return {key for key in keys if before.get(key) is not after.get(key)}


def _split_layers(mapping: Mapping[K, V]) -> tuple[Mapping[K, V], Collection[K]]:
    """Return the base of a mapping, and the keys whose values may differ from the base."""
    if isinstance(mapping, Overlay):
        return mapping.base, mapping.over.keys() | mapping.removed_keys
    return mapping, ()


class Overlay(Mapping[K, V]):
    """A mapping that shares nearly all of its values with a base mapping."""

    __slots__ = ("added_keys", "base", "over", "removed_keys")

    def __init__(self, base: Mapping[K, V], over: dict[K, V], without: set[K], come: tuple[K, ...]) -> None:
        self.base, self.over, self.removed_keys = base, over, without
        self.added_keys = come  # the sorted keys that the base does not contain

    def __getitem__(self, key: K) -> V:
        if key in self.over:
            return self.over[key]
        if key in self.removed_keys:
            raise KeyError(key)
        return self.base[key]

    def get(self, key: K, /, default: Any = None) -> Any:
        if key in self.over:
            return self.over[key]
        return default if key in self.removed_keys else self.base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.over or (key in self.base and key not in self.removed_keys)

    def __iter__(self) -> Iterator[K]:
        below = (key for key in self.base if key not in self.removed_keys) if self.removed_keys else iter(self.base)
        return merge(below, self.added_keys) if self.added_keys else iter(below)

    def __len__(self) -> int:
        return len(self.base) - len(self.removed_keys) + len(self.added_keys)
