"""Events as they happen: a coloured line on a terminal, a JSON line elsewhere; to standard error."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime

import click

from gitboot.model.scalars import format_instant
from gitboot.status import Event

_lock = threading.Lock()

_CLEAR = "\x1b[K"  # the rest of the line that is written over: ECMA-48, EL

_COLOURS = {"Accepted": "green", "Published": "green", "Provisioned": "cyan", "MaintenanceBooted": "cyan"}


def tell(event: Event) -> None:
    """Say what happened, whole lines only, whichever thread calls."""
    with _lock:
        is_passing = event.type == "Progress" and sys.stderr.isatty()
        after = "\r" if is_passing else "\n"  # the next line takes its place
        sys.stderr.write(f"{_CLEAR if sys.stderr.isatty() else ''}{_line(event)}{after}")  # at once: others write, too
        sys.stderr.flush()


def tell_what_is_logged() -> None:
    """Let what is logged, by gitboot or by a library, be events as well: nothing else goes to standard error."""
    logging.lastResort = _Logged(logging.WARNING)


class _Logged(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        facts = {"logger": record.name}
        if record.exc_info is not None:
            facts["traceback"] = logging.Formatter().formatException(record.exc_info)
        at = datetime.fromtimestamp(record.created, UTC)
        tell(Event(at=at, type="Logged", message=record.getMessage(), facts=facts, warning=True))


def _line(event: Event) -> str:
    if not sys.stderr.isatty():
        return json.dumps(
            {
                **event.facts,
                "at": format_instant(event.at),
                "type": event.type,
                "message": event.message,
                "level": "warning" if event.warning else "info",
            },
            sort_keys=True,
        )
    time = click.style(f"{event.at:%H:%M:%S}", fg="bright_black")
    kind = click.style(f"{event.type:<18}", fg="yellow" if event.warning else _COLOURS.get(event.type))
    return "\n".join([f"{time} {kind} {event.message}", *filter(None, [event.facts.get("traceback")])])
