"""Repeated fetches of secrets: which fetch an endpoint records at once, and which it counts for a later line."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from gitboot.observe.observation import Observation
from gitboot.observe.secret_fetches import MOST_ADDRESSES, MOST_FETCHES, OTHERS, network_of, secret_of


class _Counted:
    """The fetches of one secret by one address, as one endpoint has recorded and counted them."""

    __slots__ = ("recorded", "recorded_s", "waiting", "waiting_times")

    def __init__(self) -> None:
        self.recorded = 0  # fetches that lines of the spool stand for
        self.recorded_s = 0.0  # when the last line was written, by a clock that only goes forward
        self.waiting: Observation | None = None  # the last fetch that no line stands for
        self.waiting_times = 0

    def taken(self, now_s: float) -> Observation | None:
        """Return what waits, as one observation; nothing waits then."""
        waiting, times = self.waiting, self.waiting_times
        if waiting is None:
            return None
        self.waiting, self.waiting_times = None, 0
        self.recorded, self.recorded_s = self.recorded + times, now_s
        return replace(waiting, times=times)


class RepeatedFetches:
    """Lets the first fetches of each secret through, and counts the others for one line a minute; from any thread.

    A client that fetches a secret all the time would else fill the spool, which has the fetches of all servers. The
    count is in memory: an endpoint that is killed loses at most a minute of it, and no address.
    """

    _EVERY_S: Final = 60.0
    _MOST: Final = 4096  # secrets

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._secrets: OrderedDict[tuple[str, str, str, bool], dict[str, _Counted]] = OrderedDict()  # last used last
        self._left: list[Observation] = []  # what waited for a secret that is not known any more

    def take(self, observation: Observation, now_s: float) -> Observation | None:
        """Return what to record now, with how many fetches it stands for; None: it waits, and was counted."""
        secret = secret_of(observation.path)
        if secret is None:
            return observation
        with self._lock:
            counted = self._of(observation, secret)
            counted.waiting, counted.waiting_times = observation, counted.waiting_times + 1
            is_due = counted.recorded <= MOST_FETCHES or now_s - counted.recorded_s >= self._EVERY_S
            return counted.taken(now_s) if is_due else None

    def due(self, now_s: float) -> list[Observation]:
        """Return what has waited for a minute, to be recorded now."""
        with self._lock:
            left, self._left = self._left, []
            due = (
                counted.taken(now_s)
                for addresses in self._secrets.values()
                for counted in addresses.values()
                if counted.waiting is not None and now_s - counted.recorded_s >= self._EVERY_S
            )
            return [*left, *(each for each in due if each is not None)]

    def rest(self) -> list[Observation]:
        """Return all that waits, when the endpoint ends."""
        return self.due(float("inf"))

    def put_back(self, observation: Observation) -> None:
        """Count what could not be recorded, so that the next fetch by its client is recorded at once with it."""
        if (secret := secret_of(observation.path)) is None:
            return
        with self._lock:
            counted = self._of(observation, secret)
            counted.recorded, counted.recorded_s = counted.recorded - observation.times, float("-inf")
            if observation.times > 1:  # the fetch that could not be recorded was perhaps not answered
                counted.waiting, counted.waiting_times = observation, counted.waiting_times + observation.times - 1

    def _of(self, observation: Observation, secret: str) -> _Counted:
        key = observation.server, str(observation.digest), secret, observation.is_evidence
        addresses = self._secrets.setdefault(key, {})
        self._secrets.move_to_end(key)
        if len(self._secrets) > self._MOST:
            _, oldest = self._secrets.popitem(last=False)
            self._left += filter(None, (each.taken(0.0) for each in oldest.values()))
        address = network_of(observation.client)
        if address not in addresses and len(addresses) >= MOST_ADDRESSES:
            address = OTHERS
        return addresses.setdefault(address, _Counted())
