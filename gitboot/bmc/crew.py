"""Work at many BMCs at once, in threads: as much as each site bears, and one call for all that ends meanwhile."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, NamedTuple, TypeVar

from gitboot.bmc.pace import Pace
from gitboot.bmc.redfish.transport import NO_SIGN, Sign

MOST: Final = 256
MOST_OF_SITE: Final = 128
_GATHER_S: Final = 0.2  # for so long others that end are waited for, before somebody is woken for them

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Later = Callable[[float, Callable[[], None]], None]


class Task(NamedTuple, Generic[Key, Value]):
    """What is to be done once, for whom, and where."""

    key: Key
    site: str | None  # None: of none that is known, and bound by what is borne overall
    work: Callable[[], tuple[Value, Sign]]


def in_a_while(seconds: float, what: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()


class _Queue(Generic[Key, Value]):
    """Tasks that have not begun, by site in the order in which they came; each site is served in turn."""

    def __init__(self, most: int, most_of_site: int) -> None:
        self._most, self._most_of_site = most, most_of_site
        self._waiting: dict[str | None, OrderedDict[Key, Task[Key, Value]]] = {}
        self._busy: Counter[str | None] = Counter()  # how many have begun, and not ended
        self._paces: dict[str | None, Pace] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, task: Task[Key, Value]) -> None:
        """Add a task, in place of one of the same key."""
        self.drop(task.key)
        self._waiting.setdefault(task.site, OrderedDict())[task.key] = task

    def drop(self, key: Key) -> None:
        for site in [site for site, tasks in self._waiting.items() if key in tasks]:
            del self._waiting[site][key]
            if not self._waiting[site]:
                del self._waiting[site]

    def clear(self) -> None:
        self._waiting.clear()

    def begin(self) -> Task[Key, Value] | None:
        """Take out the next whose site bears one more; None: there is none."""
        for site, tasks in self._waiting.items():
            if self._busy[site] < self._pace(site).limit:
                self._busy[site] += 1
                del self._waiting[site]
                _, task = tasks.popitem(last=False)
                if tasks:
                    self._waiting[site] = tasks  # behind the others
                return task
        return None

    def end(self, site: str | None, sign: Sign) -> None:
        self._busy[site] -= 1
        self._paces[site] = self._pace(site).after(sign)

    def _pace(self, site: str | None) -> Pace:
        if site not in self._paces:
            self._paces[site] = Pace.upto(self._most if site is None else self._most_of_site)
        return self._paces[site]


class Crew(Generic[Key, Value]):
    """At most ``most`` tasks at a time, and one of each key; what ends makes room for the next at once.

    ``on_ended`` is called, from any thread, when something has ended that nobody has taken yet: once for all that
    ends within a moment, and at once when nothing is left to do.
    """

    def __init__(
        self,
        most: int = MOST,
        most_of_site: int = MOST_OF_SITE,
        *,
        on_ended: Callable[[], None] = lambda: None,
        later: Later = in_a_while,
    ) -> None:
        self._most, self._on_ended, self._later = most, on_ended, later
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="bmc")
        self._changed = threading.Condition()  # guards what follows
        self._waiting: _Queue[Key, Value] = _Queue(most, most_of_site)
        self._running: set[Key] = set()
        self._ended: dict[Key, Value] = {}
        self._raised: list[BaseException] = []
        self._is_gathering = False

    def add(self, tasks: Iterable[Task[Key, Value]]) -> frozenset[Key]:
        """Take tasks in, but for keys whose last one still runs, or has ended since `ended` was called.

        Whoever makes a task for such a key does not know yet what the last one did. A task that has not begun gives way
        to a newer one of its key. Return the keys whose task was taken.
        """
        taken = set()
        with self._changed:
            for task in tasks:
                if task.key not in self._running and task.key not in self._ended:
                    self._waiting.put(task)
                    taken.add(task.key)
            self._begin()
        return frozenset(taken)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop tasks that have not begun."""
        with self._changed:
            for key in keys:
                self._waiting.drop(key)

    def ended(self) -> dict[Key, Value]:
        """What came of the tasks that have ended since the last call; raises what one of them has raised."""
        with self._changed:
            return self._taken()

    def next_ended(self) -> dict[Key, Value]:
        """The same, once there is something; empty only where nothing is left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._raised or not self._is_working)
            return self._taken()

    def close(self) -> None:
        """Let running tasks end, and begin no others."""
        with self._changed:
            self._waiting.clear()
        self._threads.shutdown(wait=True)

    @property
    def _is_working(self) -> bool:
        return bool(self._running or self._waiting)

    def _taken(self) -> dict[Key, Value]:
        if self._raised:
            raise self._raised.pop()
        ended, self._ended = self._ended, {}
        return ended

    def _begin(self) -> None:
        while len(self._running) < self._most and (task := self._waiting.begin()) is not None:
            self._running.add(task.key)
            self._threads.submit(self._do, task)

    def _do(self, task: Task[Key, Value]) -> None:
        try:
            value, sign = task.work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the results are taken
            self._end(task, error)
        else:
            self._end(task, value, sign)

    def _end(self, task: Task[Key, Value], value: Value | BaseException, sign: Sign = NO_SIGN) -> None:
        with self._changed:
            self._running.remove(task.key)
            self._waiting.end(task.site, sign)
            if isinstance(value, BaseException):
                self._raised.append(value)
            else:
                self._ended[task.key] = value
            self._begin()
            is_last, is_first = not self._is_working, not self._is_gathering
            self._is_gathering = self._is_gathering or not is_last
            self._changed.notify_all()
        if is_last:
            self._on_ended()
        elif is_first:
            self._later(_GATHER_S, self._gathered)

    def _gathered(self) -> None:
        with self._changed:
            self._is_gathering = False
            is_due = bool(self._ended or self._raised)
        if is_due:
            self._on_ended()
