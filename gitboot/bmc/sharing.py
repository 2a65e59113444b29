"""What the BMCs of several machines show, kept as they are read: one more reading costs what it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gitboot.bmc.identity import Pinned, claimed_by, values_of
from gitboot.fleet.layered_dict import differing, replaced
from gitboot.load.machines import Machine
from gitboot.model.scalars.machines import SystemUuid

Place = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """A value: `gitboot.bmc.identity.shared` of these pins and machines."""

    values: frozenset[str] = frozenset()  # what tells no machine from another
    pins: Mapping[SystemUuid, Pinned] = field(default_factory=dict)
    machines: Mapping[SystemUuid, Machine] = field(default_factory=dict)
    _places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)  # who shows a value, one for each pin
    _several: frozenset[str] = frozenset()  # values that are shown at two places
    _claimed: frozenset[str] | None = None  # what documents say of their machines; None: nobody had to know

    def after(self, pins: Mapping[SystemUuid, Pinned], machines: Mapping[SystemUuid, Machine]) -> Sharing:
        """With other pins, or machines."""
        if pins is self.pins and machines is self.machines:
            return self
        found: dict[str, list[Place]] = {}
        for uuid in differing(self.pins, pins):
            if (before := self.pins.get(uuid)) is not None:
                for value in values_of(before):
                    self._at(found, value).remove(before.place)
            if (now := pins.get(uuid)) is not None:
                for value in values_of(now):
                    self._at(found, value).append(now.place)
        several = self._several - found.keys() | {value for value, places in found.items() if len(set(places)) > 1}
        claimed = self._claimed if machines is self.machines else None
        if several and claimed is None:
            claimed = claimed_by({uuid: machine.serial for uuid, machine in machines.items()})
        shown = {value: tuple(places) for value, places in found.items() if places}
        return Sharing(
            values=several - (claimed or frozenset()),
            pins=pins,
            machines=machines,
            _places=replaced(self._places, shown, found.keys() - shown.keys()) if found else self._places,
            _several=several,
            _claimed=claimed,
        )

    def _at(self, found: dict[str, list[Place]], value: str) -> list[Place]:
        if value not in found:
            found[value] = list(self._places.get(value, ()))
        return found[value]
