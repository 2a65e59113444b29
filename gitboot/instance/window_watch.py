"""End maintenance windows in OUTPUT while the instance publishes no plans, and report it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.ended_windows import EndedWindows, WindowsNotEnded
from gitboot.status.events_from_status import Event
from gitboot.status.progress import Told
from gitboot.text import count

_RETRY: Final = timedelta(seconds=5)


class WindowWatch:
    """Ends windows by ``end_windows``, on a standby and on an instance that has not published its first plan."""

    def __init__(self, end_windows: Callable[[datetime], EndedWindows]) -> None:
        self._end_windows = end_windows
        self._failure = ""
        self.next_end: datetime | None = None  # when to call `end` next; None: no window is known to end

    def end(self, at: datetime) -> tuple[frozenset[str], tuple[Event, ...]]:
        """End the windows that are over at ``at``. Return the servers whose files changed, and events to report.

        If ending windows fails, call again at `next_end`. A failure that repeats is reported once.
        """
        try:
            servers, self.next_end = self._end_windows(at)
        except PublishError as error:
            self.next_end = at + _RETRY
            is_known, self._failure = str(error) == self._failure, str(error)
            event = Event(at=at, type="WindowsNotEnded", message=str(error), warning=True)
            changed = frozenset(error.servers if isinstance(error, WindowsNotEnded) else ())
            return changed, () if is_known else (event,)
        self._failure = ""
        if not servers:
            return frozenset(), ()
        message = f"ended the maintenance of {count(len(servers), 'server')} in OUTPUT, whose windows are over"
        return frozenset(servers), (Event(at=at, type="WindowsEnded", message=message, facts={"servers": [*servers]}),)


class WindowsMeanwhile:
    """Ends windows from the progress reports of work that writes no files, such as planning a large fleet.

    ``due`` is the time at which windows end first. None: never. ``told`` gets each progress report, too.
    """

    def __init__(self, watch: WindowWatch, due: datetime | None, now: Callable[[], datetime], told: Told) -> None:
        self._watch, self._now, self._told = watch, now, told
        self.due = due
        self.servers: frozenset[str] = frozenset()  # whose files changed
        self.events: tuple[Event, ...] = ()
        self.ended_at: datetime | None = None  # the time of the last change of files

    def report(self, done: int, total: int) -> None:
        """Forward a progress report, and end the windows that are over now."""
        self._told(done, total)
        if self.due is None or (now := self._now()) < self.due:
            return
        servers, events = self._watch.end(now)
        self.due = self._watch.next_end
        self.servers, self.events = self.servers | servers, (*self.events, *events)
        if servers:
            self.ended_at = now
