"""gitboot.controller.learn.ledger_snapshot_from_instance_evidence."""

from __future__ import annotations

from dataclasses import dataclass

from gitboot.observe.observation import Observation
from gitboot.resolve.server_plan import Offer


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """What was fetched, and what the ledger says of it."""

    observation: Observation  # with the digest of the plan whose entry was sent
    offer: Offer
    noted: bool  # whether it was noted before: a spool that is read once more
