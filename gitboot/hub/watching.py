"""Instances looked at side by side, and again and again: one that is down, or hangs, delays no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from gitboot.errors import HostUnreachable, UsageError
from gitboot.hub.members import NamedInstance
from gitboot.hub.overview import Sight
from gitboot.hub.readers import InstanceReader, Rows, reader_of

_AT_ONCE: Final = 64
_logger = logging.getLogger(__name__)


def look_at_all(members: Iterable[NamedInstance], clock: Callable[[], datetime]) -> list[Sight]:
    """Each of them, once."""
    watched = [(Sight(member=each), reader_of(each)) for each in members]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda each: _look(each[0], each[1], clock), watched))


def _look(before: Sight, reader: InstanceReader, clock: Callable[[], datetime]) -> Sight:
    """An instance as it is now, or as it was, with why that is not known."""
    try:
        status = reader.status()
    except (HostUnreachable, UsageError) as error:
        return replace(before, failure=str(error), since=before.since or clock())
    return Sight(member=before.member, status=status, seen=clock())


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """An instance with its servers, as they were read last."""

    sight: Sight
    reader: InstanceReader
    rows: Rows = field(default_factory=Rows)
    of: tuple[Any, ...] | None = None  # what its status said when they were read
    read: int = 0  # how often they were


class Watch:
    """What each instance was like when it was looked at last. `turn` waits for no look."""

    def __init__(self, members: Iterable[NamedInstance], clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._watched = {each.name: Watched(sight=Sight(member=each), reader=reader_of(each)) for each in members}
        self._pool = ThreadPoolExecutor(min(_AT_ONCE, len(self._watched)), thread_name_prefix="hub")
        self._underway: set[str] = set()
        self._lock = threading.Lock()

    @property
    def all(self) -> tuple[Watched, ...]:
        """Each of them, by site and name."""
        with self._lock:
            return tuple(self._watched.values())

    def turn(self) -> list[Future[None]]:
        """Look at each, but for those at which an earlier look has not come to its end."""
        with self._lock:
            due = self._watched.keys() - self._underway
            self._underway |= due
        return [self._pool.submit(self._look_at, name) for name in sorted(due)]

    def close(self) -> None:
        """Begin no more looks; those that hang are left to end with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look_at(self, name: str) -> None:
        try:
            known = self._watched[name]
            now = replace(known, sight=_look(known.sight, known.reader, self._clock))
            with self._lock:
                self._watched[name] = now  # how it fares is shown at once: its servers may take their time
            if now.sight.failure is None and now.of != (of := _version(now.sight.status or {})):
                with_rows = self._read_servers(now, of)
                with self._lock:
                    self._watched[name] = with_rows
        except Exception:
            _logger.exception("%s could not be looked at", name)  # a fault of ours: nobody asks for what became of it
        finally:
            with self._lock:
                self._underway.discard(name)

    def _read_servers(self, now: Watched, of: tuple[Any, ...]) -> Watched:
        try:
            return replace(now, rows=now.reader.rows(), of=of, read=now.read + 1)
        except (HostUnreachable, UsageError) as error:
            return replace(now, sight=replace(now.sight, failure=str(error), since=self._clock()))


def _version(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What differs once servers may boot something else, as the page has it."""
    return tuple(status.get(each) for each in ("applied", "changes", "nextTransition", "phases"))
