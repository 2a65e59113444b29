"""gitboot.status.events_from_status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, for logs, `gitboot events` and the audit."""

    at: datetime
    type: str  # Fetched, Accepted, Refused, Published, OverrideSet … one word in CamelCase
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether a person should look
