"""What firmware shows beside its override: whether it starts only what is signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gitboot.bmc.override import Observed
from gitboot.bmc.payload import Resource, starts_only_signed
from gitboot.errors import BmcRejected


class RedfishFirmware:
    """What `BmcConnection` reads of a system's firmware settings; it raises as that does."""

    def __init__(self, read: Callable[[str], Resource]) -> None:
        self._read = read

    def with_secure_boot(self, seen: Observed) -> Observed:
        """Read it in one more request; a BMC that shows none, or not to this role, is as it was seen."""
        if seen.secure_boot_path is None:
            return seen
        try:
            resource = self._read(seen.secure_boot_path)
        except BmcRejected:
            return seen
        return replace(seen, secure_boot=starts_only_signed(resource))
