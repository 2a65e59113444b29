"""Many sites with a standby each, in one process with a simulated clock and network: what they ask of Git and of BMCs.

The rules are the product's own: how often is fetched, how a site's pace is found (`gitboot.bmc.pace`), how long a lease
lasts and how often a standby looks. What a request takes is drawn from a seed, around what was measured. Hosts die at
random; once those of a tenth of the sites at the same instant, in the midst of setting overrides.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from gitboot.bmc.crew import MOST_OF_SITE
from gitboot.bmc.pace import Pace, Sign
from gitboot.instance.overrides import READ_EVERY
from gitboot.instance.standby import LOOK_S
from gitboot.ledger.lease import SECONDS, SHARE

POLL_S: Final = 60.0
JITTER: Final = 0.1
READ_CPU_S, SET_CPU_S = 0.0032, 0.009  # of an instance: docs/scaling.md
SET_REQUESTS: Final = 3
DOUBT_S: Final = 60.0  # until what was recorded, and is not seen at its BMC, is set
START_S: Final = 1.0  # of an instance with 2,000 servers, on a tree that it knows
WINDOW: Final = (3600.0, 3 * 3600.0)  # a maintenance of a tenth of all servers
DISASTER_AT: Final = WINDOW[0] + 5.0
SHARE_OF_SERVERS: Final = 0.1


@dataclass(slots=True)
class Clock:
    """What happens when."""

    now: float = 0.0
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: count[int] = field(default_factory=count)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._number), what))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until


@dataclass(slots=True)
class Seen:
    """What was counted, over all sites."""

    fetches: Counter[int] = field(default_factory=Counter)  # by second
    bmc_requests: Counter[int] = field(default_factory=Counter)
    set_after: list[float] = field(default_factory=list)  # each override, since the window opened
    taken_over_after: list[float] = field(default_factory=list)  # each lease, since its host died
    acts_after: list[float] = field(default_factory=list)  # the same, until its instance has started
    busiest_cpu: float = 0.0  # seconds of CPU of one instance in one minute
    set_twice: int = 0
    most_at_once: int = 0  # BMCs of a site


class Site:
    """Two hosts, of which one acts, and the BMCs of a site."""

    def __init__(self, clock: Clock, seen: Seen, chance: random.Random, servers: int) -> None:
        self._clock, self._seen, self._chance = clock, seen, chance
        self._latency_s = chance.lognormvariate(-4.0, 0.8)  # of its network: 18 ms, and 5 to 70
        self._acting, self._life = True, 0  # whether an instance acts, and which one
        self._renewed_at = 0.0
        self._pace, self._waiting, self._busy = Pace.upto(MOST_OF_SITE), deque[int](), 0
        self._cpu_free_at = 0.0
        self._cpu: Counter[int] = Counter()  # in milliseconds, by minute
        self._wanted = range(int(servers * SHARE_OF_SERVERS))
        self._recorded: dict[int, float] = {}  # when it was about to be set, in the ledger that both hosts have
        self._set: dict[int, int] = {}  # how often each override was set
        self._fetch()
        self._fetch()  # a standby fetches, too
        self._renew(0)

    # Git

    def _fetch(self) -> None:
        self._seen.fetches[int(self._clock.now)] += 1
        self._clock.later(POLL_S * (1 + self._chance.uniform(-JITTER, JITTER)), self._fetch)

    # The lease

    def _renew(self, life: int) -> None:
        if self._acting and life == self._life:
            self._renewed_at = self._clock.now
            self._clock.later(SECONDS / SHARE, lambda: self._renew(life))

    def die(self) -> None:
        """The host that acts dies; what it has sent by then arrives."""
        if not self._acting:
            return
        self._acting, self._busy = False, 0
        self._life += 1
        self._waiting.clear()
        died_at, runs_out = self._clock.now, self._renewed_at + SECONDS
        looks_at = runs_out + self._chance.uniform(0, LOOK_S)
        self._clock.later(looks_at - died_at, lambda: self._take_over(died_at))

    def _take_over(self, died_at: float) -> None:
        self._seen.taken_over_after.append(self._clock.now - died_at)
        self._clock.later(START_S, lambda: self._start(died_at))

    def _start(self, died_at: float) -> None:
        self._acting, self._pace = True, Pace.upto(MOST_OF_SITE)
        self._seen.acts_after.append(self._clock.now - died_at)
        self._renew(self._life)
        if WINDOW[0] <= self._clock.now < WINDOW[1]:
            self.ask(self._wanted)

    # BMCs

    def ask(self, servers: Iterable[int]) -> None:
        """Have the overrides of these servers be what the window wants."""
        if self._acting:
            self._waiting.extend(servers)
            self._begin()

    def _begin(self) -> None:
        while self._acting and self._waiting and self._busy < self._pace.limit:
            self._busy += 1
            self._seen.most_at_once = max(self._seen.most_at_once, self._busy)
            self._request(self._waiting.popleft())

    def _request(self, server: int) -> None:
        settles_at = self._recorded.get(server, -DOUBT_S) + DOUBT_S
        only_read = server in self._set or settles_at > self._clock.now
        cpu_s, requests = (READ_CPU_S, 1) if only_read else (SET_CPU_S, SET_REQUESTS)
        begins = max(self._clock.now, self._cpu_free_at)
        self._cpu_free_at = begins + cpu_s
        self._cpu[int(begins // 60)] += int(cpu_s * 1000)
        self._seen.busiest_cpu = max(self._seen.busiest_cpu, self._cpu[int(begins // 60)] / 1000)
        answer_s = self._latency_s * 2 + self._chance.lognormvariate(-1.2, 0.6)  # a BMC takes 300 ms, and up to seconds
        for _ in range(requests):
            self._seen.bmc_requests[int(begins)] += 1
        life, took_s = self._life, self._cpu_free_at - self._clock.now + answer_s * requests
        if not only_read:
            sends_s = took_s - 2 * answer_s + self._latency_s
            self._clock.later(sends_s, lambda: self._send(server, life, answer_s / 2))
        self._clock.later(took_s, lambda: self._answered(server, life, answer_s))

    def _send(self, server: int, life: int, on_its_way_s: float) -> None:
        """Record it and send it, if its instance lives; once it is sent no death takes it back."""
        if life == self._life:
            self._recorded[server] = self._clock.now
            self._clock.later(on_its_way_s, lambda: self._arrive(server))

    def _arrive(self, server: int) -> None:
        self._set[server] = self._set.get(server, 0) + 1
        self._seen.set_twice += self._set[server] > 1
        self._seen.set_after.append(self._clock.now - WINDOW[0])

    def _answered(self, server: int, life: int, answer_s: float) -> None:
        if life != self._life:
            return
        self._busy -= 1
        self._pace = self._pace.after(Sign(waited_s=answer_s))
        again_s = READ_EVERY.total_seconds() if server in self._set else DOUBT_S
        if self._clock.now + again_s < WINDOW[1]:
            self._clock.later(again_s, lambda: self._read_again(server, life))
        self._begin()

    def _read_again(self, server: int, life: int) -> None:
        if life == self._life:
            self.ask((server,))


def simulated(sites: int, servers: int, hours: float, *, dies_every_days: float = 30, seed: int = 2027) -> Seen:
    """What is seen of so many sites, which have so many servers in all."""
    clock, seen, chance = Clock(), Seen(), random.Random(seed)
    made: list[Site] = []

    def begin() -> None:
        made.append(Site(clock, seen, random.Random(chance.random()), servers // sites))

    for _ in range(sites):
        clock.later(chance.uniform(0, POLL_S), begin)
    clock.run(POLL_S)
    for site in made:
        clock.later(WINDOW[0] - clock.now, lambda site=site: site.ask(site._wanted))  # type: ignore[misc]
    for site in made[: sites // 10]:
        clock.later(DISASTER_AT - clock.now, site.die)
    for _ in range(round(sites * hours / 24 / dies_every_days)):
        clock.later(chance.uniform(0, hours * 3600), chance.choice(made).die)
    clock.run(hours * 3600)
    return seen


def _of(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _lines(seen: Seen, hours: float) -> Iterable[str]:
    total = sum(seen.fetches.values())
    yield f"fetches of the repository: {total / hours / 3600:.1f} a second, at most {max(seen.fetches.values())}"
    most = max(seen.bmc_requests.values())
    yield f"requests to BMCs: {sum(seen.bmc_requests.values()):,}, at most {most:,} in a second"
    yield f"BMCs of a site that are asked at once: at most {seen.most_at_once}"
    after = seen.set_after
    half, nearly = _of(after, 0.5), _of(after, 0.99)
    told = f"half of them within {half:.0f} s, 99 of 100 within {nearly:.0f} s, all {max(after):.0f} s"
    yield f"overrides set: {len(after):,}, {told}; twice: {seen.set_twice}"
    yield f"CPU of the busiest instance: {seen.busiest_cpu:.0f} s in a minute"
    taken = seen.taken_over_after
    yield f"leases taken over: {len(taken)}, half within {_of(taken, 0.5):.1f} s, all {max(taken):.1f} s"
    yield f"until the other instance acts: at most {max(seen.acts_after):.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--sites", type=int, default=500)
    parser.add_argument("--servers", type=int, default=1_000_000, help="in all sites")
    parser.add_argument("--hours", type=float, default=6)
    asked = parser.parse_args()
    for line in _lines(simulated(asked.sites, asked.servers, asked.hours), asked.hours):
        print(line)


if __name__ == "__main__":
    main()
