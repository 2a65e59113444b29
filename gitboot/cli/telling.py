"""Events as they happen, to standard error: on a terminal a coloured line that fits it, elsewhere a line of JSON.

`--log-format` has text or JSON in either place.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

import click

from gitboot.child_processes import LOG_FORMAT
from gitboot.jsonio import format_instant
from gitboot.status.events_from_status import Event
from gitboot.terminal import control, escaped_lines, style, unstyled
from gitboot.text import one_line

_lock = threading.Lock()
_Command = TypeVar("_Command", bound=Callable[..., Any])


class LogFormat(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


def _choose(_: click.Context, __: click.Parameter, chosen: str) -> None:
    os.environ[LOG_FORMAT] = chosen


def log_format_option(command: _Command) -> _Command:
    return click.option(
        "--log-format",
        type=click.Choice([each.value for each in LogFormat]),
        default=LogFormat.AUTO.value,
        show_default=True,
        callback=_choose,
        expose_value=False,
        help="How events are told: text, a line each; json, a line of JSON each; auto, text on a terminal.",
    )(command)


_LEAST: Final = 20  # columns for a message, on however narrow a terminal
# ECMA-48. EL: the rest of the line that is written over. CHA: back to the first column.
_CLEAR, _BACK = control("K"), control("G")

_COLOURS = {"Accepted": "green", "Published": "green", "Provisioned": "cyan", "MaintenanceBooted": "cyan"}


def tell(event: Event) -> None:
    """Say what happened, whole lines only, whichever thread calls."""
    with _lock:
        is_passing = event.type == "Progress" and _is_seen()
        after = _BACK if is_passing else "\n"  # the next line takes its place
        sys.stderr.write(f"{_CLEAR if _is_seen() else ''}{_line(event)}{after}")  # at once: others write, too
        sys.stderr.flush()


def _is_seen() -> bool:
    """Whether somebody sees each line as it is written, in text."""
    return sys.stderr.isatty() and os.environ.get(LOG_FORMAT) != LogFormat.JSON


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
    if not _is_seen() and os.environ.get(LOG_FORMAT) != LogFormat.TEXT:
        return _json(event)
    at = f"{event.at:%H:%M:%S}" if _is_seen() else format_instant(event.at)
    level = "" if _is_seen() or not event.warning else "warning: "  # a colour says it
    message = one_line(f"{level}{event.message}")
    if _is_seen():
        message = _fitting(message, os.get_terminal_size(sys.stderr.fileno()).columns - len(f"{at} {event.type:<18} "))
    time = style(at, fg="bright_black")
    kind = style(f"{event.type:<18}", fg="yellow" if event.warning else _COLOURS.get(event.type))
    traceback = event.facts.get("traceback")
    text = "\n".join([f"{time} {kind} {message}", *([escaped_lines(traceback)] if traceback else [])])
    return text if _is_seen() else unstyled(text)


def _json(event: Event) -> str:
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


def _fitting(message: str, columns: int) -> str:
    """As much as one line has room for: a terminal would wrap the rest, and `gitboot events` has it."""
    room = max(columns, _LEAST)
    return message if len(message) <= room else f"{message[: room - 1]}…"
