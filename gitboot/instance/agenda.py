"""Who is due when: instants by key, of which the next are found without looking at all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from gitboot.fleet.layered_dict import replaced

Key = TypeVar("Key", bound=str)

_FEW: Final = 16  # of so many one: if more have moved, all are sorted anew


@dataclass(frozen=True, slots=True)
class Agenda(Generic[Key]):
    """A value: moving somebody gives another one."""

    instants: Mapping[Key, datetime] = field(default_factory=dict)
    _queue: list[tuple[datetime, Key]] = field(default_factory=list)  # sorted

    def moved(self, to: Mapping[Key, datetime | None]) -> Agenda[Key]:
        """With these keys due at other instants; None: not at all."""
        changed = {key: at for key, at in to.items() if self.instants.get(key) != at}
        if not changed:
            return self
        due = {key: at for key, at in changed.items() if at is not None}
        instants = replaced(self.instants, due, changed.keys() - due.keys())
        if len(changed) * _FEW > len(instants):
            return Agenda(instants, sorted((at, key) for key, at in instants.items()))
        queue = list(self._queue)
        for key in changed:
            if (before := self.instants.get(key)) is not None:
                del queue[bisect_left(queue, (before, key))]
        for key, at in due.items():
            insort(queue, (at, key))
        return Agenda(instants, queue)

    def due(self, at: datetime) -> frozenset[Key]:
        """Who is due by ``at``."""
        end = bisect_right(self._queue, at, key=lambda each: each[0])
        return frozenset(key for _, key in self._queue[:end])

    @property
    def next(self) -> datetime | None:
        """When the first is due."""
        return self._queue[0][0] if self._queue else None
