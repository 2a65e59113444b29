"""The artifacts that decisions name, looked at again and again beside the reconciling: who is there, and who is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

from gitboot.artifacts.availability import Presence, ReadResults, Sighting, is_withheld, look_at, since_before
from gitboot.background_threads import BackgroundThread
from gitboot.resolve.server_decision import BootFile

if TYPE_CHECKING:
    from gitboot.artifacts.availability import Fetcher

_FIRST_RETRY_S: Final = 5.0  # after which what is not there is looked at again; twice as long each time
_LONGEST_RETRY_S: Final = 60.0
_PATIENCE_S: Final = 60.0  # for all to be looked at, where somebody waits for that
_JOIN_S: Final = 0.5


class ArtifactWatch(Protocol):
    """Whoever looks at artifacts for an instance."""

    def want(self, files: Collection[BootFile], bases: tuple[str, ...]) -> None:
        """Look at these from now on, and at no others; ``bases`` are the fleet's own base URL, and its sites'."""

    def seen(self) -> Mapping[BootFile, Sighting]:
        """What was seen of them last; the same object for as long as that is the same."""

    def wait(self) -> None:
        """Wait until each was looked at once, or for as long as that is worth."""


class Lookout:
    """Looks at artifacts in threads of its own, until it is closed.

    What is there is looked at again after ``every_s``; what is not, sooner, and then less and less often.
    """

    def __init__(
        self,
        fetcher_of: Callable[[tuple[str, ...]], tuple[Fetcher, Callable[[str], bool]]],
        *,
        before: Mapping[BootFile, Sighting],
        results: ReadResults,
        every_s: float,
        wake: Callable[[], None],
        parallel: int = 8,
    ) -> None:
        """``fetcher_of`` base URLs: who fetches, and of which URLs the content is read, not only the head.

        ``before`` is what the instance saw before its start; it counts until this looks at the artifact.
        """
        self._fetcher_of, self._results, self._every_s, self._wake = fetcher_of, results, every_s, wake
        self._before = dict(before)
        self._now = dict(self._before)
        self._seen: Mapping[BootFile, Sighting] = dict(self._now)  # as it was asked for last
        self._is_news = False  # whether that is another
        self._wanted: frozenset[BootFile] = frozenset()
        self._bases: tuple[str, ...] = ()
        self._queue: list[tuple[float, str, BootFile]] = []  # a heap of what is looked at next, and when
        self._unlooked: frozenset[BootFile] = frozenset()  # what was not looked at since it is wanted
        self._failures: dict[BootFile, int] = {}  # in a row
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [BackgroundThread(self._work, name=f"artifacts {number}") for number in range(1, parallel + 1)]
        for thread in self._threads:
            thread.start()

    def want(self, files: Collection[BootFile], bases: tuple[str, ...]) -> None:
        """Look at these from now on, and at no others; ``bases`` are the fleet's own base URL, and its sites'."""
        wanted = frozenset(files)
        with self._changed:
            if wanted == self._wanted and bases == self._bases:
                return
            if bases != self._bases:
                self._bases, (self._fetcher, self._is_read) = bases, self._fetcher_of(bases)
            new = wanted - self._wanted
            self._queue = [each for each in self._queue if each[2] in wanted]
            self._queue += [(0.0, file.url, file) for file in new]
            heapify(self._queue)
            self._unlooked = (self._unlooked & wanted) | new
            self._wanted = wanted
            self._before |= self._now
            self._failures = {file: count for file, count in self._failures.items() if file in wanted}
            for file in self._now.keys() - wanted:
                del self._now[file]
                self._is_news = True
            self._changed.notify_all()

    def seen(self) -> Mapping[BootFile, Sighting]:
        """What was seen of them last; the same object for as long as that is the same."""
        with self._changed:
            if self._is_news:
                self._seen, self._is_news = dict(self._now), False
            return self._seen

    def wait(self) -> None:
        """Wait until each was looked at once, but no longer than a minute."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._unlooked, _PATIENCE_S)

    def close(self) -> None:
        """Look at nothing more; what hangs in the network ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S / len(self._threads))

    # In its threads

    def _work(self) -> None:
        while (file := self._next()) is not None:
            before = self._now.get(file) or self._before.get(file)
            try:
                is_read = self._is_read(file.url)
                found = look_at(
                    self._fetcher, file, before, read=is_read, results=self._results, stopped=lambda: self._closed
                )
            except BaseException as error:  # an artifact that ends a thread is looked at again as others are
                message = f"gitboot could not look at it: {type(error).__name__}"
                self._note(file, since_before(Sighting(presence=Presence.UNKNOWN, message=message), before))
                raise
            if self._note(file, since_before(found, before)):
                self._wake()

    def _next(self) -> BootFile | None:
        """What is to be looked at now, once there is anything; None: nothing any more."""
        with self._changed:
            while not self._closed:
                wait_s = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    return heappop(self._queue)[2]
                self._changed.wait(wait_s)
        return None

    def _note(self, file: BootFile, found: Sighting) -> bool:
        """Keep what was seen; say whether boots are offered because of it that were not, or the reverse."""
        with self._changed:
            if file not in self._wanted or self._closed:
                return False
            failures = 0 if found.is_there else self._failures.get(file, 0) + 1
            self._failures[file], rest_s = failures, self._every_s
            if failures:
                rest_s = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 20), _LONGEST_RETRY_S, rest_s)
            heappush(self._queue, (time.monotonic() + rest_s, file.url, file))
            self._unlooked -= {file}
            self._changed.notify_all()
            if self._now.get(file) == found:
                return False
            held = is_withheld(file, self._now)
            self._now[file] = found
            self._is_news = True
            return held != is_withheld(file, self._now)
