"""Target follower: a thread that brings a target up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from msgspec import structs

from gitboot.background_threads import BackgroundThread
from gitboot.errors import LockedByAnother, OperatorError, TemporaryError
from gitboot.publish.targets.followed_tree import FollowedTree, RaceError, TreeSummary
from gitboot.publish.targets.sync_steps import TargetStep, apply_step, plan_next_step
from gitboot.publish.targets.target_records import Shard, TargetContent, TargetHead
from gitboot.status.instance_status import TargetStatus

_FIRST_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 300.0
_SOON_S: Final = 0.5  # the first pause before gitboot repeats an interrupted read
# After this number of interrupted reads, the cause is probably not a publication. Their pauses add up to 4 minutes.
_MAX_RACES: Final = 10
# The time between two reads of the target. A former writer that was paused may have written to the target.
_PERIOD_S: Final = 600.0


class TargetStore(Protocol):
    """A target that a follower updates. Methods may raise TemporaryError or OperatorError."""

    @property
    def max_servers(self) -> int | None:
        """Return the maximum number of servers in one step, or None if a step always contains all servers."""

    def load(self) -> TargetContent:
        """Return the target's content, even after an interrupted change."""

    def shard(self, head: TargetHead, number: str) -> Shard:
        """Return the shard with this number, or an empty shard if the head does not list it."""

    def apply(self, step: TargetStep, content: TargetContent, tree: FollowedTree) -> None:
        """Write a step to the target.

        After a failure, the follower calls `load` to read the actual content of the target, and plans the next step
        from this content.
        """


class Follower:
    """Updates one target in a thread. `publish` never waits for the target.

    The follower starts after the first publication, because the output tree may be an outdated copy until then.
    """

    def __init__(
        self,
        target: TargetStore,
        tree: FollowedTree,
        *,
        target_status: TargetStatus,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
        first_retry_s: float = _FIRST_RETRY_S,
    ) -> None:
        self._target = target
        self._tree = tree
        self._clock = clock
        self._wake = wake
        self._first_retry_s = first_retry_s
        self._target_status = target_status
        self._changed = threading.Condition()
        self._published_count = 0  # the number of publications
        # The time since which the target may serve a maintenance window that ended while no instance ran. None: there
        # is no such window.
        self._possibly_overdue_since: datetime | None = None
        self._is_ending = False
        self._retries_now = False  # whether the next attempt starts now, even after a failure
        self._race_count = 0  # the number of consecutive interrupted reads
        self._is_taken_over = False  # whether another process took over the target
        self._target_content: TargetContent | None = None  # None: the follower must read the content from the target
        self._next_read_s = 0.0  # the monotonic time at which the follower reads the content again
        self._thread = BackgroundThread(self._run, name=f"target {target_status.name}", on_death=self._report_death)

    @property
    def target_status(self) -> TargetStatus:
        return self._target_status

    def start(self) -> None:
        self._thread.start()

    def prioritize(self, servers: frozenset[str]) -> None:
        """Let the next steps update these servers before other servers, because their transitions are due."""
        with self._changed:
            is_current = self._target_status.behind_since is None
            self._tree.urgent_servers = servers if is_current else self._tree.urgent_servers | servers

    def end_windows(self, servers: frozenset[str], at: datetime) -> None:
        """Start to copy the files of servers whose windows ended in the output tree without a publication."""
        self.prioritize(servers)
        self.publish_transition(at, {**self._tree.ended_servers, **dict.fromkeys(servers, self._published_count)})

    def publish(self, ended_servers: Mapping[str, int] = MappingProxyType({})) -> None:
        """Start to update the target to the latest publication.

        ``ended_servers`` is the new value of `FollowedTree.ended_servers`.
        """
        with self._changed:
            self._tree.ended_servers = ended_servers
            if self._published_count == 0:
                self._possibly_overdue_since = self._clock()
            self._published_count += 1
            if self._target_status.behind_since is None:
                self._target_status = structs.replace(self._target_status, behind_since=self._clock())
            self._changed.notify_all()

    def publish_transition(self, at: datetime, ended_servers: Mapping[str, int] = MappingProxyType({})) -> None:
        """Start to update the target after gitboot published the transition at ``at``.

        The next attempt starts now, even if earlier attempts failed.
        """
        with self._changed:
            if self._target_status.overdue_since is None:
                self._target_status = structs.replace(self._target_status, overdue_since=at)
        self.publish(ended_servers)
        self.retry_now()

    def retry_now(self) -> None:
        """Start the next attempt now, and reset the pauses after failures.

        This has no effect on a target that another process took over.
        """
        with self._changed:
            self._retries_now = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the target is up to date, or until the timeout. Return whether the target is up to date."""
        with self._changed:
            return self._changed.wait_for(lambda: self._target_status.behind_since is None, timeout_s)

    def end(self) -> None:
        """Stop the follower after its current request. If the request hangs, the request ends when the process ends."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s=1)

    def _run(self) -> None:
        failures = 0
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending or self._published_count > 0)
        while not self._is_ending:
            published, self._retries_now = self._published_count, False
            wait_s, failures = self._try_once(published, failures)
            with self._changed:
                # After a failure, new publications do not shorten the wait.
                self._changed.wait_for(
                    lambda: (
                        self._is_ending
                        or (self._retries_now and not self._is_taken_over)
                        or (failures == 0 and self._published_count != published)  # noqa: B023 - called in this iteration
                    ),
                    wait_s,
                )
                failures = 0 if self._retries_now else failures

    def _report_death(self, message: str) -> None:
        self._target_content = None
        self._update_status(failure=("ThreadDied", f"{self._target_status.name}: {message}"))

    def _try_once(self, published_count: int, failures: int) -> tuple[float, int]:
        """Try to update the target.

        Return the number of seconds until the next attempt, and the number of consecutive failures.
        """
        try:
            summary = self._update_target()
        except RaceError as error:
            self._race_count += 1
            if self._race_count >= _MAX_RACES:
                hint = "If Published is true and another program changed the file, delete it and restart gitboot run"
                self._update_status(failure=("FileChanged", f"{self._target_status.name}: {error}. {hint}"))
            # The next publication shortens this wait.
            return min(_SOON_S * 2 ** (min(self._race_count, _MAX_RACES) - 1), _LONGEST_RETRY_S), 0
        except (TemporaryError, OperatorError) as error:
            self._target_content = None
            self._update_status(failure=(type(error).__name__, str(error)))
            if isinstance(error, LockedByAnother):  # another attempt would take the target back from the other process
                self._is_taken_over = True
                return threading.TIMEOUT_MAX, failures + 1
            return min(self._first_retry_s * 2 ** min(failures, 10), _LONGEST_RETRY_S), failures + 1
        self._race_count = 0
        self._update_status(commit=summary.commit if summary is not None else None, published_count=published_count)
        return max(self._next_read_s - time.monotonic(), 0) if summary is not None else _PERIOD_S, 0

    def _update_target(self) -> TreeSummary | None:
        summary = self._tree.read_summary()
        while summary is not None and not self._is_ending:
            if self._target_content is None or time.monotonic() >= self._next_read_s:
                self._target_content = self._target.load()
                self._next_read_s = time.monotonic() + _PERIOD_S
                if not self._target_content.servers:  # a target without servers cannot serve an ended window
                    with self._changed:
                        self._possibly_overdue_since = None
                        self._target_status = structs.replace(self._target_status, overdue_since=None)
            target_content = self._target_content
            step = plan_next_step(
                self._tree,
                summary,
                target_content,
                partial(self._target.shard, target_content.head),
                self._target.max_servers,
            )
            if step is None:
                break
            self._target_content = None  # if `apply` fails, the next attempt reads the target again
            self._target.apply(step, target_content, self._tree)
            self._target_content = apply_step(target_content, step)
            if not step.omits_servers:
                self._race_count = 0
            summary = self._tree.read_summary()
        return summary

    def _update_status(
        self, *, failure: tuple[str, str] | None = None, commit: str | None = None, published_count: int | None = None
    ) -> None:
        with self._changed:
            before = self._target_status
            now = structs.replace(before, failure=failure, commit=commit or before.commit)
            if failure is not None:
                now = structs.replace(now, overdue_since=before.overdue_since or self._possibly_overdue_since)
            if self._target_content is not None:
                now = structs.replace(now, withheld=len(self._target_content.withheld))
            if published_count is not None and published_count == self._published_count and not self._is_ending:
                now = structs.replace(now, behind_since=None, overdue_since=None)
                self._possibly_overdue_since = None
            self._target_status = now
            self._changed.notify_all()
        if now != before:
            self._wake()


class Followers:
    """The followers of all targets of an instance."""

    def __init__(self, followers: Sequence[Follower] = ()) -> None:
        self._followers = tuple(followers)

    @property
    def target_status(self) -> tuple[TargetStatus, ...]:
        return tuple(follower.target_status for follower in self._followers)

    def publish(self) -> None:
        for follower in self._followers:
            follower.publish()

    def publish_transition(self, at: datetime) -> None:
        for follower in self._followers:
            follower.publish_transition(at)

    def prioritize(self, servers: frozenset[str]) -> None:
        for follower in self._followers:
            follower.prioritize(servers)

    def end_windows(self, servers: frozenset[str], at: datetime) -> None:
        for follower in self._followers:
            follower.end_windows(servers, at)

    def retry_now(self) -> None:
        for follower in self._followers:
            follower.retry_now()

    def wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for follower in self._followers:
            follower.wait(max(until - time.monotonic(), 0))

    @contextmanager
    def running(self) -> Iterator[Followers]:
        """Run the followers until the block ends."""
        for follower in self._followers:
            follower.start()
        try:
            yield self
        finally:
            for follower in self._followers:
                follower.end()
