"""Events of an instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from gitboot.text import count, some

_MOST_NAMED: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, for logs, `gitboot events` and the audit."""

    at: datetime
    type: str  # Fetched, Accepted, Refused, Published, OverrideSet … one word in CamelCase
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether a person should look


def folded(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events in their order. Events that differ by their server alone become one, at the first of them."""
    alike: dict[object, list[Event]] = {}
    for number, event in enumerate(events):
        key: object = number
        if (server := event.facts.get("server")) is not None and event.message.startswith(f"{server}: "):
            others = tuple(sorted((name, str(value)) for name, value in event.facts.items() if name != "server"))
            key = event.type, event.at, event.warning, event.message.removeprefix(f"{server}: "), others
        alike.setdefault(key, []).append(event)
    return tuple(each[0] if len(each) == 1 else _of_all(each) for each in alike.values())


def _of_all(events: list[Event]) -> Event:
    """Return one event for the servers of several."""
    first, servers = events[0], sorted(str(each.facts["server"]) for each in events)
    facts = {**{name: value for name, value in first.facts.items() if name != "server"}, "servers": servers}
    text = first.message.removeprefix(f"{first.facts['server']}: ")
    message = f"{count(len(servers), 'server')} ({some(servers, _MOST_NAMED)}): {text}"
    return replace(first, message=message, facts=facts)
