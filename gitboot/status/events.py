"""Events of an instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from gitboot.text import count, some

_MOST_NAMED: Final = 3


def folded(events: Iterable[Event]) -> tuple[Event, ...]:
    """``events`` in their order; those that differ by their server alone are one, where the first of them stands."""
    alike: dict[object, list[Event]] = {}
    for number, event in enumerate(events):
        alike.setdefault(_alike(event) or number, []).append(event)
    return tuple(each[0] if len(each) == 1 else _of_all(each) for each in alike.values())


def _alike(event: Event) -> tuple[object, ...] | None:
    """What events have in common that can be told as one; None: it is told by itself."""
    server = event.facts.get("server")
    if server is None or not event.message.startswith(f"{server}: "):
        return None
    others = tuple(sorted((name, str(value)) for name, value in event.facts.items() if name != "server"))
    return event.type, event.at, event.warning, _words(event), others


def _words(event: Event) -> str:
    return event.message.removeprefix(f"{event.facts['server']}: ")


def _of_all(events: list[Event]) -> Event:
    first, servers = events[0], sorted(str(each.facts["server"]) for each in events)
    facts = {**{name: value for name, value in first.facts.items() if name != "server"}, "servers": servers}
    who = f"{count(len(servers), 'server')} ({some(servers, _MOST_NAMED)})"
    return replace(first, message=f"{who}: {_words(first)}", facts=facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, for logs, `gitboot events` and the audit."""

    at: datetime
    type: str  # Fetched, Accepted, Refused, Published, OverrideSet … one word in CamelCase
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    warning: bool = False  # whether a person should look
