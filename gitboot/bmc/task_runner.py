"""Task runner: run tasks in parallel, with limits for each site that adapt to response times."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, structs

if TYPE_CHECKING:
    from gitboot.bmc.redfish.transport import ResponseSample

MAX_PARALLEL: Final = 256
MAX_PER_SITE: Final = 128
_NOTIFY_DELAY_S: Final = 0.2  # how long gitboot waits for more results before the notification

INITIAL_LIMIT: Final = 16  # the limit before the first measurement
MIN_LIMIT: Final = 4
_LIMIT_STEP: Final = 8  # the growth of the limit in each round after the limit has been too high once
# the network or this machine counts as overloaded if the latency is this many times the best latency
_SLOW_FACTOR: Final = 2
_LATENCY_TOLERANCE_S: Final = 0.1  # added to the best latency, for BMCs that respond immediately
_MAX_LOST_SHARE: Final = 0.1  # the share of the previously responsive BMCs that may fail to respond
# the best latency grows by this factor in each round, because a network may become slower permanently
_BEST_LATENCY_GROWTH: Final = 1.1

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Later = Callable[[float, Callable[[], None]], None]


class Task(NamedTuple, Generic[Key, Value]):
    """One piece of work, with its key and its site."""

    key: Key
    site: str | None  # None: the site is unknown, so only the limit for all sites applies
    # returns the result, and the measured response time; None: gitboot did not send a request to the BMC
    work: Callable[[], tuple[Value, ResponseSample | None]]


def call_later(seconds: float, callback: Callable[[], None]) -> None:
    """Call ``callback`` in another thread after a delay, unless the process ends before."""
    timer = threading.Timer(seconds, callback)
    timer.daemon = True
    timer.start()


class TaskRunner(Generic[Key, Value]):
    """Runs at most ``max_parallel`` tasks at a time, at most ``max_per_site`` for each site, and one for each key.

    Tasks of one site start in the order in which they were added, and the sites take turns. ``on_results`` is called,
    from any thread, when there are new results: once for all tasks that end at about the same time, and immediately
    when the last task ends.
    """

    def __init__(
        self,
        max_parallel: int = MAX_PARALLEL,
        max_per_site: int = MAX_PER_SITE,
        *,
        on_results: Callable[[], None] = lambda: None,
        call_after: Later = call_later,
    ) -> None:
        self._max_parallel, self._max_per_site = max_parallel, max_per_site
        self._on_results, self._later = on_results, call_after
        self._threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="bmc")
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: dict[str | None, OrderedDict[Key, Task[Key, Value]]] = {}  # waiting tasks by site
        self._running_by_site: Counter[str | None] = Counter()  # the number of running tasks at each site
        self._limits: dict[str | None, ConcurrencyLimit] = {}
        self._running: set[Key] = set()
        self._ended: dict[Key, Value] = {}
        self._errors: list[BaseException] = []
        self._is_gathering = False

    def add(self, tasks: Iterable[Task[Key, Value]]) -> frozenset[Key]:
        """Queue tasks, and return the keys whose task was queued.

        Skip each key whose last task is still running, or whose last result `take_results` has not returned yet,
        because the new task could not take that result into account. A newer task for a key replaces a task that has
        not started.
        """
        queued = set()
        with self._changed:
            for task in tasks:
                if task.key not in self._running and task.key not in self._ended:
                    self._drop_task(task.key)
                    self._waiting.setdefault(task.site, OrderedDict())[task.key] = task
                    queued.add(task.key)
            self._start_tasks()
        return frozenset(queued)

    def drop_pending_tasks(self, keys: Iterable[Key]) -> None:
        """Remove tasks that have not started."""
        with self._changed:
            for key in keys:
                self._drop_task(key)

    def take_results(self) -> dict[Key, Value]:
        """Return the results of all tasks that ended since the last call.

        If a task raised an error, raise the error.
        """
        with self._changed:
            if self._errors:
                raise self._errors.pop()
            ended, self._ended = self._ended, {}
            return ended

    def wait_for_results(self) -> dict[Key, Value]:
        """Wait until a task has ended, and return all new results. If there are no tasks, return an empty mapping."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._errors or not (self._running or self._waiting))
            return self.take_results()

    def close(self) -> None:
        """Remove all tasks that have not started, and wait until the running tasks have ended."""
        with self._changed:
            self._waiting.clear()
        self._threads.shutdown(wait=True)

    def _drop_task(self, key: Key) -> None:
        for site in [site for site, tasks in self._waiting.items() if key in tasks]:
            del self._waiting[site][key]
            if not self._waiting[site]:
                del self._waiting[site]

    def _get_limit(self, site: str | None) -> ConcurrencyLimit:
        if site not in self._limits:
            self._limits[site] = ConcurrencyLimit.start(self._max_parallel if site is None else self._max_per_site)
        return self._limits[site]

    def _start_tasks(self) -> None:
        while len(self._running) < self._max_parallel:
            for site in self._waiting:
                if self._running_by_site[site] < self._get_limit(site).limit:
                    break
            else:
                return
            tasks = self._waiting.pop(site)
            _, task = tasks.popitem(last=False)
            if tasks:
                self._waiting[site] = tasks  # the site is now the last one in the order of sites
            self._running_by_site[site] += 1
            self._running.add(task.key)
            self._threads.submit(self._run_task, task)

    def _run_task(self, task: Task[Key, Value]) -> None:
        sample: ResponseSample | None = None
        error: BaseException | None = None
        try:
            value, sample = task.work()
        except BaseException as raised:  # noqa: BLE001 - take_results raises it
            error = raised
        with self._changed:
            self._running.remove(task.key)
            self._running_by_site[task.site] -= 1
            self._limits[task.site] = self._get_limit(task.site).update(sample)
            if error is not None:
                self._errors.append(error)
            else:
                self._ended[task.key] = value
            self._start_tasks()
            is_last = not (self._running or self._waiting)
            is_first = not self._is_gathering
            self._is_gathering = self._is_gathering or not is_last
            self._changed.notify_all()
        if is_last:
            self._on_results()
        elif is_first:
            self._later(_NOTIFY_DELAY_S, self._notify_of_results)

    def _notify_of_results(self) -> None:
        with self._changed:
            self._is_gathering = False
            is_due = bool(self._ended or self._errors)
        if is_due:
            self._on_results()


class ConcurrencyLimit(Struct, frozen=True, kw_only=True):
    """The number of tasks that may run at one site at a time, computed from the response times of the site's BMCs.

    Each sample produces a new object. A round consists of as many samples as the limit allows tasks. gitboot ignores
    BMCs that have never responded, so that a rack without power does not slow down the tasks at other BMCs.
    """

    maximum: int
    limit: int
    is_probing: bool = True  # whether each round doubles the limit, because the limit has never been too high
    best_latency_s: float = math.inf  # the median latency of the fastest round
    latencies_s: tuple[float, ...] = ()  # the latencies of this round
    lost_count: int = 0  # the number of lost responses in this round

    @classmethod
    def start(cls, maximum: int) -> ConcurrencyLimit:
        """Return the limit before the first sample."""
        return cls(maximum=maximum, limit=min(INITIAL_LIMIT, maximum))

    def update(self, sample: ResponseSample | None) -> ConcurrencyLimit:
        """Return the limit after a sample. A sample of None, or one without a measurement, changes nothing."""
        if sample is None or (sample.latency_s is None and not sample.is_lost):
            return self
        latencies_s = self.latencies_s if sample.latency_s is None else (*self.latencies_s, sample.latency_s)
        lost_count = self.lost_count + sample.is_lost
        sample_count = len(latencies_s) + lost_count
        if sample_count < self.limit:
            return structs.replace(self, latencies_s=latencies_s, lost_count=lost_count)
        median_s = sorted(latencies_s)[len(latencies_s) // 2] if latencies_s else math.inf
        is_slow = median_s > self.best_latency_s * _SLOW_FACTOR + _LATENCY_TOLERANCE_S
        is_overloaded = is_slow or lost_count > _MAX_LOST_SHARE * sample_count
        if is_overloaded:
            limit = max(self.limit // 2, MIN_LIMIT)
        elif self.is_probing:
            limit = self.limit * 2
        else:
            limit = self.limit + _LIMIT_STEP
        return ConcurrencyLimit(
            maximum=self.maximum,
            limit=min(limit, self.maximum),
            is_probing=self.is_probing and not is_overloaded,
            best_latency_s=min(median_s, self.best_latency_s * _BEST_LATENCY_GROWTH),
        )
