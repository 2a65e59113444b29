"""gitboot.bmc.redfish.transport_from_bmc_pace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """What one BMC tells of the way to it."""

    waited_s: float | None = None  # until its last answer began; None: it gave none
    is_lost: bool = False  # it gave none, and did the time before


NO_SIGN: Final = Sign()
