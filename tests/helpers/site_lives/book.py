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
class BootRequest:
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
    def may_be_fulfilled(self) -> bool:
        """Return whether the request may be fulfilled already, by all that can be known."""
        return bool(self.given or self.provisioned or self.may_be_done or self.consumed)

    @property
    def allowed_boots(self) -> int:
        """Return how many boots may be served in total."""
        return self.boots * min(self.attempts, 1 + self.failures)

    def record_report(self, *, failed: bool) -> None:
        self.is_over = True
        if failed:
            self.failures += 1
        else:
            self.provisioned = True


@dataclass
class Book:
    """All requests by label, and the faults of served boots."""

    requests: dict[str, BootRequest] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    # Requests

    def request(self, label: str, request: BootRequest) -> None:
        self.requests[label] = request

    def acknowledge(self, labels: Iterable[str]) -> None:
        for label in labels:
            self.requests[label].acknowledged = True

    def request_again(self, label: str, since: datetime | None) -> None:
        """Let an operator request it once more; an unreported boot may count for that."""
        was = self.requests[label]
        now = BootRequest(was.boots, was.attempts, True, was.windows, was.writes)
        boots = (*was.given[-1:], *([was.consumed_at] if was.consumed_at is not None else []))
        now.may_be_done = any(since is None or each >= since for each in boots)
        self.requests[label] = now

    def mark_done(self, label: str) -> None:
        self.requests[label].provisioned = True

    def is_open(self, label: str, clock: datetime) -> bool:
        """Return whether an override may be set for it."""
        request = self.requests[label]
        if request.windows and not any(each.covers(clock) for each in request.windows):
            return False
        if not request.writes:
            return True
        made = max(len(request.given), request.consumed)
        return request.acknowledged and not request.provisioned and made < request.allowed_boots

    # Events

    def mark_consumed(self, labels: Collection[str], now: datetime) -> None:
        """A machine booted by an override that may have been set for any of these."""
        for label in labels:
            request = self.requests[label]
            request.may_be_done, request.consumed_at = True, now
            request.consumed += len(labels) == 1

    def given(self, label: str, now: datetime, clock: datetime) -> None:
        """Record that a machine got it; ``clock`` is the time of its host at ``now``."""
        request = self.requests[label]
        if request.windows and not any(each.covers(clock) or each.covers(now) for each in request.windows):
            self.add_violation(
                now, f"{label} is given out of its window: {[each.end.isoformat() for each in request.windows]}"
            )
        if not request.writes:
            return
        if not request.acknowledged:
            self.add_violation(now, f"{label} is given, and nobody has acknowledged it")
        if request.given and not request.is_over and self._is_same_boot(request, now, clock):
            return
        if request.provisioned:
            self.add_violation(now, f"{label} is provisioned, and is given again")
        elif len(request.given) >= request.allowed_boots:
            self.add_violation(now, f"{label} was given at {request.given[-1]}, and is given again")
        request.given.append(now)
        request.by_clock = clock
        request.is_over = False

    def _is_same_boot(self, request: BootRequest, now: datetime, clock: datetime) -> bool:
        """Return whether this is the same boot: another NIC, GRUB after iPXE, or a clock that went back a little."""
        elapsed, by_clock = now - request.given[-1], clock - (request.by_clock or clock)
        return elapsed < GRACE or (elapsed - by_clock < GRACE and by_clock < GRACE)

    def switched(self, labels: Collection[str], now: datetime, clock: datetime) -> None:
        """Record that a machine was switched for a maintenance: within its window, and once in each."""
        requests = {label: self.requests[label] for label in labels}
        within = {
            label: request
            for label, request in requests.items()
            if any(window.start <= at < window.end for window in request.windows for at in (clock, now))
        }
        if not within:
            self.add_violation(
                now, f"a machine is switched for {', '.join(sorted(labels)) or 'nothing'}, outside of its window"
            )
        if len(within) == 1:
            ((label, request),) = within.items()
            request.switched += 1
            if request.switched > len(request.windows):
                self.add_violation(now, f"a machine is switched for {label} once more")

    def record_start(self, label: str) -> BootRequest:
        """Record that its data was fetched: the last served boot runs."""
        request = self.requests[label]
        request.is_over = True
        return request

    def add_violation(self, now: datetime, what: str) -> None:
        self.violations.append(f"{now}: {what}")
