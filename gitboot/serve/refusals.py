"""Boots that were not given, and proxies that no setting names; counted, and left where the instance sees it."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from gitboot.observe.refused import KEPT, NotGiven, UnnamedProxy, WhyNot
from gitboot.observe.reports import Report, remove_report, write_report

_MOST: Final = 500  # servers, of each reason
_MOST_PROXIES: Final = 16
_PROXY_NOTED_EVERY: Final = timedelta(minutes=10)


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
        self._proxies: OrderedDict[str, UnnamedProxy] = OrderedDict()

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

    def note_proxy(self, address: str, at: datetime) -> None:
        """Take note of an address that states for whom it asks, and that no setting names as a proxy."""
        with self._lock:
            known = self._proxies.get(address)
            if known is not None and at - known.at < _PROXY_NOTED_EVERY:
                return
            self._proxies[address] = UnnamedProxy(address=address, at=at)
            self._proxies.move_to_end(address)
            if len(self._proxies) > _MOST_PROXIES:
                self._proxies.popitem(last=False)

    def since(self, at: datetime) -> Report:
        """Return what was noted within the last hour, sorted."""
        with self._lock:
            found = [each for last in self._last.values() for each in last.values() if each.at > at - KEPT]
            proxies = sorted(each for each in self._proxies.values() if each.at > at - KEPT)
        return Report(tuple(sorted(found, key=lambda each: (each.reason, each.server))), tuple(proxies))


@contextmanager
def reporting_to(spool: Path | None, refusals: Refusals) -> Iterator[Callable[[datetime], None]]:
    """What leaves a report in the spool, where another one is due at an instant; it goes with the endpoint."""
    name = f"{os.getpid()}-{token_hex(8)}"
    left = Report()

    def report(at: datetime) -> None:
        nonlocal left
        if spool is not None and (now := refusals.since(at)) != left:
            left = now
            write_report(spool, name, now)

    yield report
    if spool is not None:
        remove_report(spool, name)
