"""Terminal output of commands: tables, progress bars, events and signals."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from rich.cells import cell_len, chop_cells, set_cell_size

from gitboot.background_threads import SignalQueue
from gitboot.child_processes import LOG_FORMAT
from gitboot.jsonio import format_instant
from gitboot.standard_streams import (
    build_control_sequence,
    escape_line,
    escape_lines,
    open_verbatim,
    strip_style,
    style,
)
from gitboot.status.conditions import Event
from gitboot.text import one_line, printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_MAX_COLUMNS: Final = 100
_MIN_COLUMNS: Final = 40
# A cell that stays on one line if there is room.
_INSTANT: Final = re.compile(r"^\d{4}-\d\d-\d\d [\d:]+Z?$")
_MIN_SHORTENED: Final = 11  # columns of a shortened cell
_COLOURS = {"Network": "cyan", "Maintenance": "magenta", "Disk": None, "no plan": "bright_black"}  # as in page.css


def terminal_width() -> int:
    """Return the output width in columns, from COLUMNS or from the terminal, but at least 40 and at most 100.

    If standard output is not a terminal, for example with `| less`, use the terminal of standard error or standard
    input.
    """
    found = shutil.get_terminal_size((0, 0)).columns
    for stream in (sys.__stderr__, sys.__stdin__) if not found else ():
        with suppress(AttributeError, ValueError, OSError):  # the stream is closed or not a terminal
            found = found or os.get_terminal_size(stream.fileno()).columns  # type: ignore[union-attr]
    return max(_MIN_COLUMNS, min(_MAX_COLUMNS, found or _MAX_COLUMNS))


def format_plan_source(item: Mapping[str, Any]) -> str:
    """Return the name of the document that determines a plan: Maintenance/NAME, the name of a policy, or ``-``."""
    return f"Maintenance/{item['maintenance']}" if item["maintenance"] else item["policy"] or "-"


def format_time(instant: str) -> str:
    """Return the result of `format_instant` in the form 2026-12-31 08:00Z, with seconds only if they are not 0."""
    return f"{instant[:10]} {instant[11:19].removesuffix(':00')}Z"


def format_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    optional: int | None = None,
    shrinkable: Sequence[int] = (),
    below: Sequence[str] = (),
    indent: int = 0,
) -> str:
    """Return a table with left-aligned columns and two spaces between columns.

    ``below`` contains, for each row, the text of the line below the row. The function escapes each cell, so that a cell
    cannot contain a line break.

    If the table is wider than the terminal, the function truncates the ``shrinkable`` columns in the given order, but
    not below the width of their headers. If a column would become narrower than 11 characters, the function omits the
    ``optional`` column. If the table is still too wide, it wraps the widest columns, between words if possible. If the
    header is empty, the table has no header line.
    """
    lines = [list(header), *([escape_line(cell) for cell in row] for row in rows)]
    widths = [max(map(_measure_width, column)) for column in zip(*lines, strict=True)]
    room = terminal_width() - indent - 2 * (len(widths) - 1)
    shortest = list(widths)
    for column in shrinkable:
        shortest[column] = min(widths[column], max(_MIN_SHORTENED, _measure_width(header[column])))
    if optional is not None and sum(shortest) > room:
        lines = [[*line[:optional], *line[optional + 1 :]] for line in lines]
        widths = [*widths[:optional], *widths[optional + 1 :]]
        shrinkable = [column - (column > optional) for column in shrinkable if column != optional]
        room += 2
    for column in shrinkable:
        widths[column] = max(widths[column] - max(sum(widths) - room, 0), _measure_width(lines[0][column]))
        for line in lines:
            line[column] = _shorten_cell(line[column], widths[column])
    columns = list(zip(*lines, strict=True))
    headers = [_measure_words(column[:1]) for column in columns]
    words = [_measure_words(column) for column in columns]
    instants = [max(map(len, filter(_INSTANT.match, column)), default=0) for column in columns]
    floors = ([max(each) for each in zip(words, instants, strict=True)], words, headers)
    widths = _fit_widths(widths, room, floors=floors)
    text = []
    for number, line in enumerate(lines):
        folded = (_fold_cell(cell, width) for cell, width in zip(line, widths, strict=True))
        for part in zip_longest(*folded, fillvalue="") if number > 0 or any(header) else ():
            cells = [cell + " " * (width - _measure_width(cell)) for cell, width in zip(part, widths, strict=True)]
            cells[-1] = cells[-1].rstrip()
            for index, cell in enumerate(cells):
                colour = _COLOURS.get(line[index]) if number > 0 else None
                if colour is not None or number == 0:
                    cells[index] = style(cell, fg=colour, bold=number == 0)
            text.append("  ".join(cells).rstrip())
        if number > 0 and below and below[number - 1]:
            text.append(below[number - 1])
    return textwrap.indent("\n".join(text), " " * indent)


_WORD: Final = re.compile(r"[^\s/]*(?:/|\s+|$)")  # a path continues on the next line after a slash


def _measure_words(cells: Iterable[str]) -> int:
    """Return the width of the widest word in these cells."""
    return max([1, *(cell_len(word.rstrip()) for cell in cells for word in _WORD.findall(strip_style(cell)))])


def _fit_widths(widths: Sequence[int], room: int, *, floors: Iterable[Sequence[int]]) -> list[int]:
    """Return column widths that fit into ``room``.

    Reduce the widest column first. Reduce the first column, which contains the names, last. Each item in ``floors`` is
    a list of minimum widths. If the first minimum widths do not fit, use the next ones. Reduce columns below all
    minimum widths only if nothing else fits.
    """
    fitted = list(widths)
    for floor in (*floors, [2] * len(fitted)):
        while sum(fitted) > room and (foldable := [each for each, width in enumerate(fitted) if width > floor[each]]):
            fitted[max(foldable, key=lambda column: (column > 0, fitted[column]))] -= 1
    return fitted


def _fold_cell(cell: str, width: int) -> list[str]:
    if _measure_width(cell) <= width:
        return [cell]
    plain, parts = strip_style(cell), [""]
    for word in _WORD.findall(plain):
        if cell_len(parts[-1]) + cell_len(word.rstrip()) > width:
            parts += chop_cells(word, width)
        else:
            parts[-1] += word
    return [cell.replace(plain, part.rstrip()) for part in parts if part.strip()]


def wrap_text(text: str, indent: str = "", *, continuation: str | None = None) -> str:
    """Return text wrapped to the terminal's width. Do not break words and paths."""
    return textwrap.fill(
        printable(text),
        terminal_width(),
        initial_indent=indent,
        subsequent_indent=continuation if continuation is not None else indent or "    ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def wrap_on_terminal(text: str, stream: TextIO, *, hanging_indent: str = "") -> str:
    """Return text whose lines are wrapped if the stream is a terminal. Other programs get each line whole.

    ``hanging_indent`` is the additional indent of each continuation line.
    """
    if not stream.isatty():
        return text
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))]
        lines.append(wrap_text(line.lstrip(" "), indent, continuation=indent + hanging_indent))
    return "\n".join(lines)


def echo_wrapped(text: str, *, err: bool = False, hanging_indent: str = "") -> None:
    """Print text, with wrapped lines on a terminal."""
    click.echo(wrap_on_terminal(text, sys.stderr if err else sys.stdout, hanging_indent=hanging_indent), err=err)


def _shorten_cell(cell: str, width: int) -> str:
    plain = strip_style(cell)
    return cell.replace(plain, f"{set_cell_size(plain, width - 1).rstrip()}…") if cell_len(plain) > width else cell


def _measure_width(cell: str) -> int:
    return cell_len(strip_style(cell))


_lock = threading.Lock()


class LogFormat(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


def _set_log_format(_: click.Context, __: click.Parameter, log_format: str) -> None:
    os.environ[LOG_FORMAT] = log_format


log_format_option = click.option(
    "--log-format",
    type=click.Choice([each.value for each in LogFormat]),
    default=LogFormat.AUTO.value,
    show_default=True,
    callback=_set_log_format,
    expose_value=False,
    help="The format of events: one line for each event (text), one JSON object for each event (json), or text on "
    "a terminal and JSON elsewhere (auto).",
)


_MIN_MESSAGE_COLUMNS: Final = 20  # The minimum number of columns for a message on a narrow terminal.
# ECMA-48. EL: clear the rest of the overwritten line. CHA: go to the first column.
_CLEAR, _BACK = build_control_sequence("K"), build_control_sequence("G")
_EVENT_COLOURS = {"Accepted": "green", "Published": "green", "Provisioned": "cyan", "MaintenanceBooted": "cyan"}


def print_event(event: Event) -> None:
    """Print an event to standard error. Any thread may call this."""
    with _lock:
        after = _BACK if event.type == "Progress" and _is_terminal() else "\n"  # the next line replaces this one
        # Write in one call, because other threads also write.
        sys.stderr.write(f"{_CLEAR if _is_terminal() else ''}{_format_event(event)}{after}")
        sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get(LOG_FORMAT) != LogFormat.JSON


def log_to_events() -> None:
    """Print the log records of gitboot and of libraries as events, so that standard error contains only events."""
    logging.lastResort = _EventHandler(logging.WARNING)


class _EventHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        facts = {"logger": record.name}
        if record.exc_info is not None:
            facts["traceback"] = logging.Formatter().formatException(record.exc_info)
        at = datetime.fromtimestamp(record.created, UTC)
        print_event(Event(at=at, type="Logged", message=record.getMessage(), facts=facts, warning=True))


def _format_event(event: Event) -> str:
    is_terminal, level = _is_terminal(), "warning" if event.warning else "info"
    if not is_terminal and os.environ.get(LOG_FORMAT) != LogFormat.TEXT:
        required = {"at": format_instant(event.at), "type": event.type, "message": event.message, "level": level}
        return json.dumps({**event.facts, **required}, sort_keys=True)
    at = f"{event.at:%H:%M:%S}" if is_terminal else format_instant(event.at)
    # On a terminal, colour marks a warning.
    message = one_line(f"{'warning: ' if event.warning and not is_terminal else ''}{event.message}")
    # truncate the message to one line, because a terminal would wrap it; `gitboot events` shows the complete message
    if is_terminal:
        width = os.get_terminal_size(sys.stderr.fileno()).columns - len(f"{at} {event.type:<18} ")
        room = max(width, _MIN_MESSAGE_COLUMNS)
        message = message if len(message) <= room else f"{message[: room - 1]}…"
    time = style(at, fg="bright_black")
    kind = style(f"{event.type:<18}", fg="yellow" if event.warning else _EVENT_COLOURS.get(event.type))
    traceback = event.facts.get("traceback")
    text = "\n".join([f"{time} {kind} {message}", *([escape_lines(traceback)] if traceback else [])])
    return text if is_terminal else strip_style(text)


@contextmanager
def show_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar until the block ends. Yield a function that adds a number of finished items."""
    with show_growing_progress(description) as (set_total, advance):
        set_total(total)
        yield advance


@contextmanager
def show_growing_progress(description: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Show a progress bar whose total may grow.

    Yield two functions: one sets the total, and the other adds finished items.
    """
    if not sys.stderr.isatty():
        yield _ignore_number, _ignore_number
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _draw_progress(*columns) as progress:
        task = progress.add_task(description, total=None)
        yield lambda total: progress.update(task, total=total), lambda number: progress.advance(task, number)


_DOWNLOAD_NAME: Final = 30  # columns of a file's name


class DownloadBar:
    """A progress bar for downloads that run one after the other. The bar shows bytes, speed and remaining time."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._task = progress, None if progress is None else progress.add_task("", visible=False)

    def begin(self, name: str, size: int | None) -> None:
        """Start showing the download of another file. ``size`` is in bytes, or None if it is unknown."""
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._task = self._progress.add_task(_shorten_cell(printable(name), _DOWNLOAD_NAME), total=size)

    def advance(self, size: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, size)


@contextmanager
def show_downloads() -> Iterator[DownloadBar]:
    """Show a progress bar for downloads until the block ends, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield DownloadBar(None)
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), DownloadColumn(binary_units=True))
    with _draw_progress(*columns, TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        yield DownloadBar(progress)


@contextmanager
def _draw_progress(*columns: ProgressColumn) -> Iterator[Progress]:
    from rich.console import Console  # imported here, because the import takes 0.1 s
    from rich.progress import Progress

    with (
        open_verbatim(sys.stderr) as terminal,
        Progress(
            *columns,
            console=Console(file=terminal),
            transient=True,
            redirect_stdout=False,  # the standard streams already escape the output of other code
            redirect_stderr=False,
        ) as progress,
    ):
        yield progress


def _ignore_number(_: int) -> None:
    """Ignore a progress report, because there is no terminal."""


class StopRequest:
    """A request to stop, made by a signal handler or another thread."""

    def __init__(self) -> None:
        self._requests: SignalQueue[bool] = SignalQueue()
        self.is_set = False

    def set(self) -> None:
        """Request the stop. Any thread or signal handler may call this method."""
        self.is_set = True
        self._requests.put(True)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the stop request. Return whether a stop was requested."""
        if not self.is_set and self._requests.get(timeout_s):
            self._requests.put(True)  # wake the next thread, because other threads may also be waiting
        return self.is_set


def stop_on_signal(*numbers: signal.Signals) -> StopRequest:
    """Return a stop request that these signals trigger from now on. The default signals are SIGINT and SIGTERM."""
    stop = StopRequest()
    for number in numbers or (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def stop_on_signal_within() -> Iterator[StopRequest]:
    """Yield a stop request that SIGINT and SIGTERM trigger. SIGHUP and SIGUSR1 are ignored until the block ends."""
    stop = StopRequest()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    before |= {number: signal.signal(number, lambda *_: None) for number in (signal.SIGHUP, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def call_on_signal(stop: Callable[[], None], *, timeout_s: float) -> None:
    """Call ``stop`` on SIGINT or SIGTERM, and exit if the process still runs ``timeout_s`` seconds later."""

    def end(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        stop()

    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    # Stop the timer. After this, there is no signal handler, so the timer would kill the process.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
