"""What is counted of requests, for Prometheus to read."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from gitboot.serve.operators import Stranger


class Answered(StrEnum):
    """What a request was for."""

    ENTRY = "entry"  # what boots a machine for a key, or reports, and so is recorded
    FILE = "file"  # another file of boot/
    PAGE = "page"  # API, metrics, health
    ARTIFACT = "artifact"  # a file read from the disk
    INVENTORY = "inventory"  # what an image found in a machine, and sends
    NOTHING = "nothing"  # no file, no page


class Metrics:
    """Counts requests."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[Answered, int]] = Counter()  # by their status
        self.strangers: Counter[Stranger] = Counter()  # who asked for what is for operators

    def count(self, answered: Answered, status: int) -> None:
        self.requests[answered, status] += 1
