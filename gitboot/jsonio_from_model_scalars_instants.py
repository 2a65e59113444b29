"""gitboot.jsonio_from_model_scalars_instants."""

from __future__ import annotations

from datetime import UTC, datetime


def format_instant(at: datetime) -> str:
    """RFC 3339 in UTC; fractions of a second only where there are any."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
