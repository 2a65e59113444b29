"""The book of a site: who requested what, and how often it was served. The book judges a life.

It does not use gitboot. Each requested installation, wipe and repair has a label, which is in the kernel arguments. The
book compares the boots that machines get with the requests by that label.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

GRACE: Final = timedelta(seconds=60)


class Window(NamedTuple):
    """From when until when a maintenance is wanted."""

    start: datetime
    end: datetime

    def covers(self, clock: datetime) -> bool:
        return self.start <= clock < self.end + GRACE


@dataclass
class Ask:
    boots: int = 1  # of one attempt
    attempts: int = 1
    acknowledged: bool = True
    windows: list[Window] = field(default_factory=list)  # of a maintenance; none: it is wanted until it is done
    writes: bool = True

    given: list[datetime] = field(default_factory=list)  # when each of its boots was served first
    by_clock: datetime | None = None  # the last of them
    is_over: bool = False  # the last of them: its data was fetched, or its installer reported
    failures: int = 0
    provisioned: bool = False
    may_be_done: bool = False  # an operator has reported it, read or not
    switched: int = 0  # times that its machine was, for it
    consumed: int = 0  # overrides
    consumed_at: datetime | None = None  # the last that may have been for it

    @property
    def may_have_been_made(self) -> bool:
        """Return whether the request may be fulfilled already, by all that can be known."""
        return bool(self.given or self.provisioned or self.may_be_done or self.consumed)

    @property
    def may_be_given(self) -> int:
        """Return how many boots may be served in total."""
        return self.boots * min(self.attempts, 1 + self.failures)

    def reported(self, *, failed: bool) -> None:
        self.is_over = True
        if failed:
            self.failures += 1
        else:
            self.provisioned = True


@dataclass
class Book:
    """All requests by label, and the faults of served boots."""

    asks: dict[str, Ask] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    # Requests

    def ask(self, label: str, ask: Ask) -> None:
        self.asks[label] = ask

    def acknowledge(self, labels: Iterable[str]) -> None:
        for label in labels:
            self.asks[label].acknowledged = True

    def ask_again(self, label: str, since: datetime | None) -> None:
        """Let an operator request it once more; an unreported boot may count for that."""
        was = self.asks[label]
        now = Ask(was.boots, was.attempts, True, was.windows, was.writes)
        boots = (*was.given[-1:], *([was.consumed_at] if was.consumed_at is not None else []))
        now.may_be_done = any(since is None or each >= since for each in boots)
        self.asks[label] = now

    def is_done(self, label: str) -> None:
        self.asks[label].provisioned = True

    def is_open(self, label: str, clock: datetime) -> bool:
        """Return whether an override may be set for it."""
        ask = self.asks[label]
        if ask.windows and not any(each.covers(clock) for each in ask.windows):
            return False
        if not ask.writes:
            return True
        made = max(len(ask.given), ask.consumed)
        return ask.acknowledged and not ask.provisioned and made < ask.may_be_given

    # Events

    def is_consumed(self, labels: Collection[str], now: datetime) -> None:
        """A machine booted by an override that may have been set for any of these."""
        for label in labels:
            ask = self.asks[label]
            ask.may_be_done, ask.consumed_at = True, now
            ask.consumed += len(labels) == 1

    def given(self, label: str, now: datetime, clock: datetime) -> None:
        """Record that a machine got it; ``clock`` is the time of its host at ``now``."""
        ask = self.asks[label]
        if ask.windows and not any(each.covers(clock) or each.covers(now) for each in ask.windows):
            self.wrong(now, f"{label} is given out of its window: {[each.end.isoformat() for each in ask.windows]}")
        if not ask.writes:
            return
        if not ask.acknowledged:
            self.wrong(now, f"{label} is given, and nobody has acknowledged it")
        if ask.given and not ask.is_over and self._is_same_boot(ask, now, clock):
            return
        if ask.provisioned:
            self.wrong(now, f"{label} is provisioned, and is given again")
        elif len(ask.given) >= ask.may_be_given:
            self.wrong(now, f"{label} was given at {ask.given[-1]}, and is given again")
        ask.given.append(now)
        ask.by_clock = clock
        ask.is_over = False

    def _is_same_boot(self, ask: Ask, now: datetime, clock: datetime) -> bool:
        """Return whether this is the same boot: another NIC, GRUB after iPXE, or a clock that went back a little."""
        elapsed, by_clock = now - ask.given[-1], clock - (ask.by_clock or clock)
        return elapsed < GRACE or (elapsed - by_clock < GRACE and by_clock < GRACE)

    def switched(self, labels: Collection[str], now: datetime, clock: datetime) -> None:
        """Record that a machine was switched for a maintenance: within its window, and once in each."""
        asks = {label: self.asks[label] for label in labels}
        within = {
            label: ask
            for label, ask in asks.items()
            if any(window.start <= at < window.end for window in ask.windows for at in (clock, now))
        }
        if not within:
            self.wrong(
                now, f"a machine is switched for {', '.join(sorted(labels)) or 'nothing'}, outside of its window"
            )
        if len(within) == 1:
            ((label, ask),) = within.items()
            ask.switched += 1
            if ask.switched > len(ask.windows):
                self.wrong(now, f"a machine is switched for {label} once more")

    def started(self, label: str) -> Ask:
        """Record that its data was fetched: the last served boot runs."""
        ask = self.asks[label]
        ask.is_over = True
        return ask

    def wrong(self, now: datetime, what: str) -> None:
        self.violations.append(f"{now}: {what}")
