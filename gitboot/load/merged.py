"""A mapping with some of its values replaced, in the order of its keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Any)
V = TypeVar("V")


def merged(before: Mapping[K, V], changed: Mapping[K, V], gone: Collection[K]) -> Mapping[K, V]:
    """What there was, with what is another and without what is gone; the same object where nothing is.

    Copying is the only thing that takes as long as the whole is large, and is done in C.
    """
    if all(before.get(key) == each for key, each in changed.items()) and not any(key in before for key in gone):
        return before
    after = {**before, **changed}
    for key in gone:
        after.pop(key, None)
    return after if changed.keys() <= before.keys() else dict(sorted(after.items()))
