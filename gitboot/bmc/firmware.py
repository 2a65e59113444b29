"""What firmware shows beside its override: whether it starts only what is signed, and what it boots by HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from gitboot.bmc.override_state import Observed
from gitboot.bmc.redfish.quirks import FirmwareUri, row_of
from gitboot.bmc.redfish.resources import Patch, Resource, starts_only_signed
from gitboot.errors import BmcRejected

_AT_RESET: Final = {"@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}


class RedfishFirmware:
    """What `BmcConnection` reads and writes of a system's firmware settings; it raises as that does."""

    def __init__(self, read: Callable[[str], Resource], patch: Patch) -> None:
        self._read, self._patch = read, patch
        self._uri: tuple[tuple[str | None, ...], str | None] | None = None  # as it was read, and at which marks

    def with_secure_boot(self, seen: Observed) -> Observed:
        """Read it in one more request; a BMC that shows none, or not to this role, is as it was seen."""
        if seen.secure_boot_path is None:
            return seen
        try:
            resource = self._read(seen.secure_boot_path)
        except BmcRejected:
            return seen
        return replace(seen, secure_boot=starts_only_signed(resource))

    def with_uri(self, seen: Observed) -> Observed:
        """Read what firmware boots by HTTP, in one more request; not again before the machine's marks move.

        A setting takes effect at a reset. A BMC that shows none, or not to this role, is as it was seen.
        """
        setting, marks = row_of(seen).firmware_uri, _since(seen)
        if setting is None or seen.bios is None:
            return seen
        if self._uri is None or self._uri[0] != marks or not any(marks[1:]):
            try:
                self._uri = marks, setting.read(self._read(seen.bios).attributes)
            except BmcRejected:
                self._uri = marks, None
        return replace(seen, firmware_uri=self._uri[1])

    def keep_uri(self, uri: str, seen: Observed) -> bool:
        """Have firmware keep a URI from the next reset on, in place of what was seen; False: it is to already.

        That the BMC has taken it says nothing of what the reset makes of it.
        """
        setting = row_of(seen).firmware_uri
        if setting is None or seen.bios is None:
            return False
        bios = self._read(seen.bios)
        path = bios.link("@Redfish.Settings", "SettingsObject")
        if path is None or bios.attributes.get(setting.attribute) not in ("", uri, seen.firmware_uri):
            return False  # what does not count now is somebody's all the same
        pending = self._read(path)
        attributes = _to_write(setting, uri, bios.attributes)
        if all(pending.attributes.get(name) == value for name, value in attributes.items()):
            return False
        body = (_AT_RESET if bios.settings_at_reset else {}) | {"Attributes": attributes}

        def has_changed() -> bool:
            now = self._read(path)
            return (now.etags, now.attributes) != (pending.etags, pending.attributes)

        self._patch(path, body, pending.etags, has_changed)
        return True


def _since(seen: Observed) -> tuple[str | None, ...]:
    marks = seen.marks
    return seen.power, marks.last_reset_time, marks.boot_progress, marks.boot_progress_time


def _to_write(setting: FirmwareUri, uri: str, shown: Mapping[str, Any]) -> Mapping[str, str]:
    """Its attributes, as far as this firmware has them: one that it does not know would be refused with the rest."""
    return {name: value for name, value in setting.beside.items() if name in shown} | {setting.attribute: uri}
