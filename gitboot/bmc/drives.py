"""The virtual drives of one BMC by Redfish: read, loaded, emptied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gitboot.bmc.override_state import EJECTION, MediaSlot, Observed, insertion
from gitboot.bmc.redfish.resources import Patch, Resource, slot_of


class RedfishDrives:
    """What `BmcConnection` reads and sends of virtual media; it raises as that does."""

    def __init__(
        self, read: Callable[[str], Resource], post: Callable[[str, Mapping[str, Any]], None], patch: Patch
    ) -> None:
        self._read, self._post, self._patch = read, post, patch

    def with_slots(self, seen: Observed) -> Observed:
        """Read the system's own, or where it has none its Manager's, as they were before Redfish 2020.4."""
        paths = self._read(seen.virtual_media).members if seen.virtual_media is not None else ()
        if not paths and seen.manager is not None:
            collection = self._read(seen.manager).link("VirtualMedia")
            paths = self._read(collection).members if collection is not None else ()
        return replace(seen, slots=tuple(slot_of(self._read(path)) for path in paths))

    def insert(self, slot: MediaSlot, url: str) -> None:
        """Insert an image, which the BMC fetches by itself."""
        self._change(slot, slot.insert, insertion(slot, url))

    def eject(self, slot: MediaSlot) -> None:
        """Eject what lies in a slot."""
        self._change(slot, slot.eject, EJECTION if slot.eject is None else {})

    def _change(self, slot: MediaSlot, action: str | None, body: Mapping[str, Any]) -> None:
        if action is None:
            self._patch(slot.path, body, slot.etags, lambda: slot_of(self._read(slot.path)) != slot)
        else:
            self._post(action, body)
