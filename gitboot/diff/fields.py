"""Which fields of two nested values differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Path = tuple[str | int, ...]


class FieldChange(NamedTuple):
    """One field before and after; None: it was not there."""

    path: Path
    old: Any
    new: Any

    @property
    def dotted(self) -> str:
        """The path as people write it: spec.holds[0].image."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


def changed_fields(old: Any, new: Any, path: Path = ()) -> Iterator[FieldChange]:
    """The deepest fields that differ, in the order of their names; lists of another length as a whole."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from changed_fields(old.get(key), new.get(key), (*path, key))
    elif _are_alike(old, new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from changed_fields(before, after, (*path, number))
    else:
        yield FieldChange(path, old, new)


def _are_alike(old: Any, new: Any) -> bool:
    """Whether two lists have as many items, and mappings in them."""
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    return all(isinstance(each, Mapping) for each in (*old, *new))
