"""gitboot.ledger.server_tables_from_ledger_entries."""

from __future__ import annotations

from typing import NamedTuple

from gitboot.bmc.reboot_detection import Marks
from gitboot.fetchlog.log_entries import Observation
from gitboot.resolve.server_plan import Offer


class Pending(NamedTuple):
    """An observation that is still to be judged by its machine's BMC."""

    id: int
    observation: Observation
    offer: Offer  # the boot that was fetched
    marks: Marks | None = None  # what the BMC showed first after it
