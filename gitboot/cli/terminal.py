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
    columns = shutil.get_terminal_size((0, 0)).columns
    for stream in (sys.__stderr__, sys.__stdin__):
        if columns == 0:
            with suppress(AttributeError, ValueError, OSError):  # the stream is closed or not a terminal
                columns = os.get_terminal_size(stream.fileno()).columns  # type: ignore[union-attr]
    return max(_MIN_COLUMNS, min(_MAX_COLUMNS, columns or _MAX_COLUMNS))


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
    table = [list(header), *([escape_line(cell) for cell in row] for row in rows)]  # the header is row 0
    widths = [max(map(_measure_width, column)) for column in zip(*table, strict=True)]
    room = terminal_width() - indent - 2 * (len(widths) - 1)
    shortest_widths = list(widths)
    for column in shrinkable:
        shortest_widths[column] = min(widths[column], max(_MIN_SHORTENED, _measure_width(header[column])))
    if optional is not None and sum(shortest_widths) > room:
        table = [[*row[:optional], *row[optional + 1 :]] for row in table]
        del widths[optional]
        shrinkable = [column - 1 if column > optional else column for column in shrinkable if column != optional]
        room += 2
    for column in shrinkable:
        excess = max(sum(widths) - room, 0)
        widths[column] = max(widths[column] - excess, _measure_width(table[0][column]))
        for row in table:
            row[column] = _shorten_cell(row[column], widths[column])
    widths = _fit_widths(widths, room, floors=_find_minimum_widths(table))
    lines: list[str] = []
    if any(header):
        lines += _format_row(table[0], widths, is_header=True)
    for number, row in enumerate(table[1:]):
        lines += _format_row(row, widths, is_header=False)
        if below and below[number]:
            lines.append(below[number])
    return textwrap.indent("\n".join(lines), " " * indent)


def _find_minimum_widths(table: Sequence[Sequence[str]]) -> tuple[Sequence[int], ...]:
    """Return minimum widths of the columns, for `_fit_widths`.

    If possible, columns are wide enough for words and times, otherwise for words, otherwise for the words of headers.
    """
    columns = list(zip(*table, strict=True))
    header_words = [_measure_words(column[:1]) for column in columns]
    words = [_measure_words(column) for column in columns]
    instants = [max(map(len, filter(_INSTANT.match, column)), default=0) for column in columns]
    return list(map(max, words, instants)), words, header_words


def _format_row(row: Sequence[str], widths: Sequence[int], *, is_header: bool) -> Iterator[str]:
    """Yield the lines of a row, whose cells may need several lines."""
    folded_cells = [_fold_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
    for line_cells in zip_longest(*folded_cells, fillvalue=""):
        cells = [cell + " " * (width - _measure_width(cell)) for cell, width in zip(line_cells, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        for index, cell in enumerate(cells):
            colour = _COLOURS.get(row[index])
            if is_header:
                cells[index] = style(cell, bold=True)
            elif colour is not None:
                cells[index] = style(cell, fg=colour)
        yield "  ".join(cells).rstrip()


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
    for minimum_widths in (*floors, [2] * len(fitted)):
        while sum(fitted) > room:
            reducible = [column for column, width in enumerate(fitted) if width > minimum_widths[column]]
            if not reducible:
                break
            fitted[max(reducible, key=lambda column: (column > 0, fitted[column]))] -= 1
    return fitted


def _fold_cell(cell: str, width: int) -> list[str]:
    """Return the lines of a cell that is at most ``width`` columns wide."""
    if _measure_width(cell) <= width:
        return [cell]
    plain = strip_style(cell)
    parts = [""]
    for word in _WORD.findall(plain):
        if cell_len(parts[-1]) + cell_len(word.rstrip()) > width:
            parts += chop_cells(word, width)
        else:
            parts[-1] += word
    return [cell.replace(plain, part.rstrip()) for part in parts if part.strip()]


def _shorten_cell(cell: str, width: int) -> str:
    plain = strip_style(cell)
    if cell_len(plain) <= width:
        return cell
    return cell.replace(plain, f"{set_cell_size(plain, width - 1).rstrip()}…")


def _measure_width(cell: str) -> int:
    return cell_len(strip_style(cell))


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
_CLEAR_LINE = build_control_sequence("K")  # ECMA-48, EL: clear the rest of the overwritten line
_FIRST_COLUMN = build_control_sequence("G")  # ECMA-48, CHA: go to the first column
_EVENT_COLOURS = {"Accepted": "green", "Published": "green", "Provisioned": "cyan", "MaintenanceBooted": "cyan"}
_print_lock = threading.Lock()


def print_event(event: Event) -> None:
    """Print an event to standard error. Any thread may call this."""
    with _print_lock:
        start, end = "", "\n"
        if _is_terminal():
            start = _CLEAR_LINE
            end = _FIRST_COLUMN if event.type == "Progress" else "\n"  # the next event replaces a progress report
        # Write in one call, because other threads also write.
        sys.stderr.write(f"{start}{_format_event(event)}{end}")
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
    if _is_terminal():
        return _format_terminal_event(event)
    at, traceback = format_instant(event.at), event.facts.get("traceback")
    if os.environ.get(LOG_FORMAT) != LogFormat.TEXT:
        level = "warning" if event.warning else "info"
        required = {"at": at, "type": event.type, "message": event.message, "level": level}
        return json.dumps({**event.facts, **required}, sort_keys=True)
    message = one_line(f"warning: {event.message}" if event.warning else event.message)
    line = f"{at} {escape_lines(f'{event.type:<18}')} {message}"
    return strip_style(f"{line}\n{escape_lines(traceback)}" if traceback else line)


def _format_terminal_event(event: Event) -> str:
    """Format an event as one line that fits, with the time of day. A colour marks a warning."""
    at, traceback = f"{event.at:%H:%M:%S}", event.facts.get("traceback")
    # truncate the message to one line, because a terminal would wrap it; `gitboot events` shows the complete message
    message = one_line(event.message)
    columns = os.get_terminal_size(sys.stderr.fileno()).columns - len(f"{at} {event.type:<18} ")
    room = max(columns, _MIN_MESSAGE_COLUMNS)
    if len(message) > room:
        message = f"{message[: room - 1]}…"
    event_type = style(f"{event.type:<18}", fg="yellow" if event.warning else _EVENT_COLOURS.get(event.type))
    line = f"{style(at, fg='bright_black')} {event_type} {message}"
    return f"{line}\n{escape_lines(traceback)}" if traceback else line


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
        self._progress = progress  # None: there is no terminal
        self._task = progress.add_task("", visible=False) if progress is not None else None

    def begin(self, name: str, size: int | None) -> None:
        """Start showing the download of another file. ``size`` is in bytes, or None if it is unknown."""
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._task = self._progress.add_task(_shorten_cell(printable(name), _DOWNLOAD_NAME), total=size)

    def advance(self, size: int) -> None:
        """Add a number of bytes that arrived."""
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
