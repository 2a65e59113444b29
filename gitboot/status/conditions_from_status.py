"""gitboot.status.conditions_from_status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One thing that holds or not, as Kubernetes and Flux word conditions."""

    type: str  # Ready, SourceReady, Stalled …
    status: bool
    reason: str  # one word in CamelCase
    message: str
    since: datetime  # when the status last changed
    remedy: str | None = None  # the line that leads out of it, where it does not hold; STATE: the state directory
