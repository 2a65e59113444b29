"""What an instance finds and does: its conditions, and its events, told and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gitboot.ledger import Ledger
from gitboot.status import Condition, Event


class Journal:
    """Conditions as they are now, and events as they happen."""

    def __init__(self, ledger: Ledger, tell: Callable[[Event], None]) -> None:
        self._ledger, self._tell = ledger, tell
        self._conditions: dict[str, Condition] = {}

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions, by type."""
        return tuple(self._conditions[type] for type in sorted(self._conditions))

    def condition(self, type: str, status: bool, reason: str, message: str, at: datetime) -> bool:
        """Set a condition; its ``since`` moves with its status only. Tell whether reason or message is new."""
        before = self._conditions.get(type)
        since = before.since if before is not None and before.status == status else at
        now = Condition(type=type, status=status, reason=reason, message=message, since=since)
        self._conditions[type] = now
        return before is None or (before.status, before.reason, before.message) != (status, reason, message)

    def status(self, type: str) -> bool | None:
        """Whether a condition holds; None where nothing is known of it."""
        found = self._conditions.get(type)
        return found.status if found is not None else None

    def forget(self, type: str) -> None:
        """Drop a condition that no longer means anything."""
        self._conditions.pop(type, None)

    def event(
        self,
        at: datetime,
        type: str,
        message: str,
        facts: Mapping[str, Any] | None = None,
        *,
        warning: bool = False,
    ) -> None:
        """Write an event down in the ledger, and tell it."""
        event = Event(at=at, type=type, message=message, facts=facts or {}, warning=warning)
        self._ledger.write_event(event)
        self._tell(event)
