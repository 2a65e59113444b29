"""Overlay mappings: change some values of a mapping, and share the other values with the mapping before the change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import merge
from math import isqrt
from typing import Any, Final, TypeVar

K = TypeVar("K", bound=Any)
V = TypeVar("V")
_MISSING: Final = object()  # the value of a key that a mapping does not contain


class Overlay(Mapping[K, V]):
    """A mapping that shares nearly all of its values with a base mapping. Create overlays with `apply_changes`.

    ``removed_keys`` are keys of the base. ``changed_values`` and ``removed_keys`` have no common key.
    """

    __slots__ = ("added_keys", "base", "changed_values", "removed_keys")

    def __init__(
        self, base: Mapping[K, V], changed_values: dict[K, V], removed_keys: set[K], added_keys: tuple[K, ...]
    ) -> None:
        self.base, self.changed_values, self.removed_keys = base, changed_values, removed_keys
        self.added_keys = added_keys  # the sorted keys that the base does not contain

    def __getitem__(self, key: K) -> V:
        if key in self.changed_values:
            return self.changed_values[key]
        if key in self.removed_keys:
            raise KeyError(key)
        return self.base[key]

    def get(self, key: K, /, default: Any = None) -> Any:  # faster than `Mapping.get`, which catches a KeyError
        if key in self.changed_values:
            return self.changed_values[key]
        return default if key in self.removed_keys else self.base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.changed_values or (key in self.base and key not in self.removed_keys)

    def __iter__(self) -> Iterator[K]:
        base_keys = iter(self.base)
        if self.removed_keys:
            base_keys = (key for key in self.base if key not in self.removed_keys)
        return merge(base_keys, self.added_keys) if self.added_keys else base_keys

    def __len__(self) -> int:
        return len(self.base) - len(self.removed_keys) + len(self.added_keys)


def apply_changes(before: Mapping[K, V], changed: Mapping[K, V], removed: Collection[K] = ()) -> Mapping[K, V]:
    """Return ``before`` with the changed values and without the removed keys. A key in both arguments is removed.

    If keys are added, the keys of ``before`` must be sorted. The caller must not change ``before`` afterwards.
    """
    if not changed and not removed:
        return before
    base, changed_values, removed_keys = before, dict(changed), set[K]()
    if isinstance(before, Overlay):
        base = before.base
        changed_values = {**before.changed_values, **changed}
        removed_keys = before.removed_keys - changed.keys()
    for key in removed:
        changed_values.pop(key, None)
        if key in base:
            removed_keys.add(key)
    if not base:
        sorted_keys = sorted(changed_values)
        if sorted_keys == list(changed_values):
            return changed_values
        return {key: changed_values[key] for key in sorted_keys}
    added_keys = tuple(sorted(key for key in changed_values if key not in base))
    if len(changed_values) + len(removed_keys) <= _compute_max_changes(base):
        return Overlay(base, changed_values, removed_keys, added_keys)
    new_base = {**base, **changed_values}
    for key in removed_keys:
        del new_base[key]
    return dict(sorted(new_base.items())) if added_keys else new_base


def apply_differences(before: Mapping[K, V], changed: Mapping[K, V], removed: Collection[K] = ()) -> Mapping[K, V]:
    """Return the result of `apply_changes`, or ``before`` itself if the result would equal it."""
    has_equal_values = all(before.get(key, _MISSING) == value for key, value in changed.items())
    if has_equal_values and not any(key in before for key in removed):
        return before
    return apply_changes(before, changed, removed)


def find_differing_keys(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    """Return the keys whose values are different objects in the two mappings.

    If both mappings share a base, the values in the base need no comparison.
    """
    base, changed_keys = _find_base_and_changed_keys(before)
    other_base, other_changed_keys = _find_base_and_changed_keys(after)
    keys = {*changed_keys, *other_changed_keys} if base is other_base else {*before, *after}
    return {key for key in keys if before.get(key, _MISSING) is not after.get(key, _MISSING)}


def _compute_max_changes(base: Mapping[K, V]) -> int:
    """Return the maximum number of changed keys in an overlay on ``base``.

    Each change copies the changed keys, and sometimes also the base. The total cost is lowest if the limit is about
    twice the square root of the size of the base. A base that is not a dict may compute its values on access, so copy
    such a base only if all of its values have changed.
    """
    return 2 * isqrt(len(base)) if isinstance(base, dict) else len(base)


def _find_base_and_changed_keys(mapping: Mapping[K, V]) -> tuple[Mapping[K, V], Collection[K]]:
    """Return the base of a mapping, and the keys whose values may differ from the base."""
    if isinstance(mapping, Overlay):
        return mapping.base, mapping.changed_values.keys() | mapping.removed_keys
    return mapping, ()
