"""The age of an instance's status, and the condition `StatusCurrent` of a status that is stale."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gitboot.jsonio import format_instant
from gitboot.status.conditions import remedy
from gitboot.status.instance_status import STALE_S

STATUS_CURRENT: Final = "StatusCurrent"


def with_age(status: Mapping[str, Any], age_s: float | None, written: datetime | None) -> dict[str, Any]:
    """Return a status with its age in seconds, and with a false condition if it is stale.

    All of a stale status may be wrong by now, so the condition has to be there even if all others are true.
    ``written`` is when the instance wrote its last status that was seen, and ``age_s`` how long ago that was; None: no
    instance has written one.
    """
    conditions = [each for each in status["conditions"] if each["type"] != STATUS_CURRENT]
    if age_s is not None and age_s > STALE_S and written is not None:
        conditions = sorted([*conditions, _stale(written, age_s)], key=lambda each: str(each["type"]))
    return {**status, "ageSeconds": None if age_s is None else int(age_s), "conditions": conditions}


def written_at(status: Mapping[str, Any]) -> datetime | None:
    """Return when an instance wrote a status, by the clock of its host; None: no instance has written it."""
    try:
        return datetime.fromisoformat(status["clock"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):
        return None


def _stale(written: datetime, age_s: float) -> dict[str, Any]:
    message = (
        f"gitboot wrote this status {int(age_s)} s ago, at {format_instant(written)}: it does not run, it hangs, or it "
        "cannot write its status. All that the status says may be wrong by now"
    )
    return {
        "type": STATUS_CURRENT,
        "status": False,
        "reason": "Stale",
        "message": message,
        "since": format_instant(written + timedelta(seconds=STALE_S)),
        "remedy": remedy(STATUS_CURRENT, "Stale"),
    }
