"""One notice: events of one kind, told together, as JSON and in words; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from gitboot.text import count, more, one_line, printable, some

MOST: Final = 20  # events that one notice shows
_LONGEST: Final = 500  # characters of a message in words


class Level(IntEnum):
    """How much an event matters."""

    INFO = 1
    WARNING = 2  # a person should look

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedEvent:
    """An event as the ledger has it."""

    sequence: int  # its number there
    at: str
    type: str
    message: str
    level: Level
    servers: tuple[str, ...]
    site: str | None  # of the server, where it is of one
    commit: str | None

    def facts(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "at": self.at,
            "type": self.type,
            "message": self.message,
            "level": self.level.word,
            "servers": list(self.servers),
            "site": self.site,
            "commit": self.commit,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Events of one type, the oldest first."""

    ledger: str  # the identity of the instance's ledger
    type: str
    events: tuple[NotedEvent, ...]  # the first that are shown
    number: int  # of all of them
    level: Level  # the highest

    @property
    def id(self) -> str:
        """By which whoever gets it twice knows it."""
        return f"{self.ledger}-{self.events[0].sequence}-{self.number}"

    def facts(self) -> dict[str, Any]:
        return {
            "apiVersion": "gitboot.dev/v1alpha1",
            "kind": "Notice",
            "id": self.id,
            "ledger": self.ledger,
            "type": self.type,
            "level": self.level.word,
            "number": self.number,
            "events": [each.facts() for each in self.events],
        }

    @property
    def title(self) -> str:
        servers = sorted({server for each in self.events for server in each.servers})
        times = f" ({count(self.number, 'time')})" if self.number > 1 else ""
        return printable(f"gitboot: {self.type}{f': {some(servers, 3)}' if servers else ''}{times}")

    @property
    def text(self) -> str:
        lines = [f"{each.at} {_shortened(each.message)}" for each in self.events]
        return "\n".join(filter(None, (*lines, more(self.number - len(self.events)))))


def noted(sequence: int, event: Mapping[str, Any], site: str | None) -> NotedEvent:
    """What the ledger's event number ``sequence`` says; ``site`` is that of the server that it is of."""
    servers = event.get("servers")
    commit = event.get("commit")
    return NotedEvent(
        sequence=sequence,
        at=event["at"],
        type=event["type"],
        message=event["message"],
        level=Level.WARNING if event.get("level") == "warning" else Level.INFO,
        servers=tuple(_names([event.get("server")] if servers is None else servers)),
        site=site,
        commit=commit if isinstance(commit, str) else None,
    )


def _names(found: Iterable[object]) -> Iterable[str]:
    return (each for each in found if isinstance(each, str))


def _shortened(text: str) -> str:
    flat = one_line(text)
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"
