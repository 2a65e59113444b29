"""Boots that were not given: why, to whom; counted, and left where the instance and operators see it."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from gitboot.observe.refused import KEPT, NotGiven, WhyNot
from gitboot.observe.reports import remove_report, write_report

_MOST: Final = 500  # servers, of each reason


class Refusal(NamedTuple):
    """Why a boot is not given."""

    reason: WhyNot
    words: str


class Refusals:
    """What was refused lately: the last of each server and reason; from any thread."""

    def __init__(self) -> None:
        self.counted: Counter[WhyNot] = Counter()
        self._lock = threading.Lock()
        self._last: dict[WhyNot, OrderedDict[str, NotGiven]] = {reason: OrderedDict() for reason in WhyNot}

    def note(self, server: str, refusal: Refusal, client: str, at: datetime) -> None:
        """Take note that a server's boot was not given."""
        with self._lock:
            self.counted[refusal.reason] += 1
            last = self._last[refusal.reason]
            times = last.pop(server).times + 1 if server in last else 1
            last[server] = NotGiven(
                reason=refusal.reason, server=server, words=refusal.words, client=client, at=at, times=times
            )
            if len(last) > _MOST:
                last.popitem(last=False)

    def settle(self, server: str) -> None:
        """Take note that a server's boot was given: what was in its way is no more."""
        with self._lock:
            for last in self._last.values():
                last.pop(server, None)

    def since(self, at: datetime) -> tuple[NotGiven, ...]:
        """What was refused within the last hour, sorted."""
        with self._lock:
            found = [each for last in self._last.values() for each in last.values() if each.at > at - KEPT]
        return tuple(sorted(found, key=lambda each: (each.reason, each.server)))


@contextmanager
def reporting_to(spool: Path | None, refusals: Refusals) -> Iterator[Callable[[datetime], None]]:
    """What leaves a report in the spool, where another one is due at an instant; it goes with the endpoint."""
    name = f"{os.getpid()}-{token_hex(8)}"
    left: tuple[NotGiven, ...] = ()

    def report(at: datetime) -> None:
        nonlocal left
        if spool is not None and (now := refusals.since(at)) != left:
            left = now
            write_report(spool, name, now)

    yield report
    if spool is not None:
        remove_report(spool, name)
