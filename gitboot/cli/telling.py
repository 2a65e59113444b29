"""Events as they happen: a coloured line on a terminal, a JSON line elsewhere; to standard error."""

from __future__ import annotations

import json
import sys
import threading

import click

from gitboot.model.scalars import format_instant
from gitboot.status import Event

_lock = threading.Lock()

_COLOURS = {"Accepted": "green", "Published": "green", "Provisioned": "cyan", "MaintenanceBooted": "cyan"}


def tell(event: Event) -> None:
    """Say what happened, whole lines only, whichever thread calls."""
    with _lock:
        print(_line(event), file=sys.stderr, flush=True)  # noqa: T201 - this is where gitboot speaks


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
    return f"{time} {kind} {event.message}"
