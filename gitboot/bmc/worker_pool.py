"""Worker pool: run tasks on many BMCs in parallel, with one connection to each BMC.

Other packages use `BmcPool`. The pool keeps the connections in a `ConnectionCache`. The pool runs its tasks in a
`TaskRunner`, which adapts the number of parallel tasks at each site to the response times (`ConcurrencyLimit`).
"""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, structs

from gitboot.bmc.credentials import CredentialDirectory, TrustedCredentials
from gitboot.bmc.identity import PinnedIdentity, find_pinned_identity
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskOutcome, TaskResult
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import PowerRecord
from gitboot.errors import BmcNotTrusted, UsageError
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid

if TYPE_CHECKING:
    from gitboot.bmc.override_session import Driver
    from gitboot.bmc.redfish.transport import ResponseSample


_logger = logging.getLogger(__name__)

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

# gitboot closes a connection that was idle for this long; tasks on a busy BMC follow each other faster
_IDLE_S: Final = 900
_LOGOUT_TIMEOUT_S: Final = 2  # the time to log out of all connections together when the process ends

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
CallLater = Callable[[float, Callable[[], None]], None]  # calls a function after a delay in seconds


# The pool


class BmcPool:
    """Runs at most ``max_parallel`` tasks at a time, at most ``max_per_site`` for each site, and one for each machine.

    A newer task for a machine replaces a task that has not started. ``on_finished`` is called once for all tasks that
    end at about the same time. ``fence`` raises an error if another instance may change the BMCs. ``ending_fence``
    replaces ``fence`` for requests that only end an override.
    """

    def __init__(
        self,
        *,
        credentials: Path | None,
        write: Callable[[SystemUuid, OverrideRecord | PowerRecord], None],
        clock: Callable[[], datetime],
        dry_run: bool = False,
        max_parallel: int = MAX_PARALLEL,
        max_per_site: int = MAX_PER_SITE,
        on_finished: Callable[[], None] = lambda: None,
        fence: Callable[[], None] = lambda: None,
        ending_fence: Callable[[], None] | None = None,
    ) -> None:
        self._write = write
        self._clock = clock
        self._dry_run = dry_run
        self._runner: TaskRunner[SystemUuid, TaskResult] = TaskRunner(
            max_parallel, max_per_site, on_results=on_finished
        )
        self._credentials = CredentialDirectory(credentials)
        self._connections = ConnectionCache(self._credentials, fence, ending_fence)
        self._log_out_executor = ThreadPoolExecutor(1, thread_name_prefix="log-out")

    def submit(self, tasks: Iterable[BmcTask]) -> frozenset[SystemUuid]:
        """Queue tasks, and return the machines whose task was queued.

        Skip each machine whose last task is still running, or whose last result `take_results` has not returned yet.
        """
        prepared = (structs.replace(task, dry_run=self._dry_run) for task in tasks)
        return self._runner.add(
            QueuedTask(task.uuid, task.site, partial(self._run_bmc_task, task)) for task in prepared
        )

    def drop_pending_tasks(self, uuids: Iterable[SystemUuid]) -> None:
        self._runner.drop_pending_tasks(uuids)

    def take_results(self, *, wait_all: bool = False) -> Mapping[SystemUuid, TaskResult]:
        """Return the results of all tasks that ended since the last call, by machine and sorted by server name.

        With ``wait_all``, first wait for all tasks.
        """
        for unused in self._connections.pop_unused_connections(self._runner.get_running_keys()):
            self._log_out_executor.submit(unused.close)
        results = self._runner.take_results()
        while wait_all and (more := self._runner.wait_for_results()):
            results |= more
        return dict(sorted(results.items(), key=lambda item: (item[1].server, item[0])))

    def close(self) -> None:
        self._runner.close()
        self._log_out_executor.shutdown(wait=False, cancel_futures=True)
        self._connections.close()

    def get_credentials_fingerprint(self, bmc: BmcAccess) -> str | None:
        """Return a string that changes when the credentials for a BMC change.

        After a BMC rejected its credentials, gitboot tries again only when this string has changed.
        """
        return self._credentials.fingerprint(bmc.credentials)

    def _run_bmc_task(self, task: BmcTask) -> tuple[TaskResult, ResponseSample | None]:
        started_s = time.monotonic()
        # gitboot reads the fingerprint before the attempt, so that a change of the credentials during the attempt has
        # an effect.
        fingerprint = self.get_credentials_fingerprint(task.bmc)
        sample = None
        build_failure = partial(
            TaskResult, server=task.server, uuid=task.uuid, outcome=TaskOutcome.STALLED, is_reachable=False
        )
        try:
            bmc = self._connections.connect(
                task.uuid, task.server, task.bmc, is_in_ledger=task.bmc_is_in_ledger, pinned=task.pinned
            )
            with bmc.policy.measure_requests() as get_sample:
                session = OverrideSession(bmc, task, lambda record: self._write(task.uuid, record), self._clock)
                result = session.run()
                sample = get_sample()
            if result.outcome is TaskOutcome.STALLED and not result.is_reachable:
                self._credentials.report_failure(task.bmc.credentials)
            fingerprint = self._connections.get_used_credentials_fingerprint(task.uuid)
        except UsageError as error:
            result = build_failure(message=str(error), was_attempted=not isinstance(error, BmcNotTrusted))
        except Exception as error:  # one BMC must not end the instance
            _logger.exception("a task at the BMC of %s (%s) failed", task.server, task.bmc.address)
            # All readers of the page can see the condition, and the message of an unknown error may be secret.
            message = (
                f"gitboot failed because of a defect ({type(error).__name__}); report it with the traceback from the "
                "log of `gitboot run`"
            )
            result = build_failure(message=message)
        result = replace(
            result,
            credentials_fingerprint=fingerprint,
            was_power_allowed=task.wanted_power is not None and task.wanted_power.may_start_now,
            took_s=time.monotonic() - started_s,
        )
        return result, sample


# Connections


class _Access(NamedTuple):
    """The facts for which a connection was opened. A connection is usable only for the same facts."""

    bmc: BmcAccess
    credentials: TrustedCredentials
    is_in_ledger: bool  # whether the ledger allows gitboot to send the BMC its credentials


class _CachedConnection(NamedTuple):
    access: _Access
    driver: Driver


class ConnectionCache:
    """Keeps one open connection for each machine.

    If the document, the credentials or `Trust` change, a new connection replaces the old one.
    """

    def __init__(
        self,
        directory: CredentialDirectory,
        fence: Callable[[], None] = lambda: None,  # raises an error if this instance may no longer change a BMC
        # Replaces `fence` for requests that only end an override; None: use `fence`.
        ending_fence: Callable[[], None] | None = None,
    ) -> None:
        self._directory = directory
        self._fence = fence
        self._ending_fence = ending_fence
        self._lock = threading.Lock()  # guards the next two fields, which have the same keys
        self._cached: dict[SystemUuid, _CachedConnection] = {}
        # the monotonic time at which a task last took each connection, oldest first
        self._last_used_s: dict[SystemUuid, float] = {}
        self._tls_lock = threading.Lock()

    def connect(
        self,
        uuid: SystemUuid,
        server: str,
        bmc: BmcAccess,
        *,
        is_in_ledger: bool = False,
        pinned: PinnedIdentity | None = None,
    ) -> Driver:
        """Return the connection to a machine's BMC.

        ``is_in_ledger`` states whether the ledger allows gitboot to send the BMC its credentials. ``pinned`` is the
        identity that the BMC reported before. Raises `UsageError` if gitboot has no credentials for the BMC, or must
        not send them.
        """
        access = _Access(bmc, self._directory.read(bmc.credentials), is_in_ledger)
        # The connection is out of the cache until it is ready, so that `pop_unused_connections` does not return it.
        with self._lock:
            cached = self._cached.pop(uuid, None)
            self._last_used_s.pop(uuid, None)
        if cached is not None and cached.access == access:
            driver = cached.driver
            if driver.login is not None:
                # a second task at the same BMC shows that more tasks are likely, so a session is worthwhile
                driver.login.keeps_session = True
        else:
            if cached is not None:
                cached.driver.close()
            driver = self._open_connection(server, access)
        with self._lock:
            self._cached[uuid] = _CachedConnection(access, driver)
            self._last_used_s[uuid] = time.monotonic()  # the machine is now the last one in this order
        pinned = find_pinned_identity(pinned, bmc.normalized_address)
        driver.policy.pinned_fingerprint = pinned.certificate if pinned is not None else None
        return driver

    def _open_connection(self, server: str, access: _Access) -> Driver:
        # gitboot imports these modules here, because they load slowly and many fleets have no BMCs.
        from gitboot.bmc.ipmi import IpmiConnection
        from gitboot.bmc.redfish.client import BmcConnection
        from gitboot.bmc.redfish.transport import ConnectionPolicy
        from gitboot.http_client import tls_context

        bmc, trusted = access.bmc, access.credentials
        trust = trusted.trust
        certificate = trust.find_certificate(bmc)
        policy = ConnectionPolicy(
            is_address_allowed=trust.build_address_filter(bmc, is_in_ledger=access.is_in_ledger),
            required_fingerprint=bmc.fingerprint,
            access_file=str(trust.file),
            trusted_fingerprint=certificate,
            fence=self._fence,
            ending_fence=self._ending_fence,
        )
        if bmc.uses_ipmi:
            return IpmiConnection(bmc.address, trusted.credentials, policy=policy)
        try:
            # gitboot creates one context for each authority, because loading the CA bundle is slow
            with self._tls_lock:
                authority = trust.find_authority(bmc) if certificate is None else None
                tls = tls_context(verify=bmc.verify and certificate is None, ca=authority)
        except ssl.SSLError as error:
            source = f"bmc.tls.ca of {server}" if bmc.ca is not None else f"the authority for {bmc.credentials}"
            raise UsageError(f"{source} is not a PEM certificate: {error.reason or error}") from None
        return BmcConnection(
            bmc.address,
            trusted.credentials,
            system=bmc.system,
            tls=tls,
            policy=policy,
            shares=trust.media,
            share_login=trusted.share_login,
        )

    def get_used_credentials_fingerprint(self, uuid: SystemUuid) -> str | None:
        """Return the fingerprint of the credentials that gitboot last used for a machine's BMC."""
        with self._lock:
            cached = self._cached.get(uuid)
        return cached.access.credentials.fingerprint if cached is not None else None

    def pop_unused_connections(self, busy_machines: Collection[SystemUuid] = ()) -> list[Driver]:
        """Remove and return the connections that no task has taken recently, except those of ``busy_machines``.

        A BMC allows only a few sessions.
        """
        idle_since_s = time.monotonic() - _IDLE_S
        with self._lock:
            idle = takewhile(lambda uuid: self._last_used_s[uuid] < idle_since_s, self._last_used_s)
            unused = [uuid for uuid in idle if uuid not in busy_machines]
            for uuid in unused:
                del self._last_used_s[uuid]
            return [self._cached.pop(uuid).driver for uuid in unused]

    def close(self) -> None:
        """Log out and close all connections, in parallel.

        After a time limit, gitboot closes the remaining connections without logging out, and their sessions end by
        timeout.
        """
        deadline_s = time.monotonic() + _LOGOUT_TIMEOUT_S
        with self._lock, ThreadPoolExecutor(MAX_PER_SITE) as threads:
            for cached in self._cached.values():
                threads.submit(lambda driver: driver.close(log_out=time.monotonic() < deadline_s), cached.driver)
            self._cached.clear()


def open_connections(directory: Path | None) -> AbstractContextManager[ConnectionCache]:
    """Return a context manager that yields a connection cache. The connections are closed when the block ends."""
    return closing(ConnectionCache(CredentialDirectory(directory)))


# The task runner


class QueuedTask(NamedTuple, Generic[Key, Value]):
    """One piece of work, with its key and its site."""

    key: Key
    site: str | None  # None: the site is unknown, so only the limit for all sites applies
    # returns the result and the response time, or None instead of the time if gitboot sent no request to the BMC
    work: Callable[[], tuple[Value, ResponseSample | None]]


def start_timer(seconds: float, callback: Callable[[], None]) -> None:
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
        call_later: CallLater = start_timer,
    ) -> None:
        self._max_parallel, self._max_per_site = max_parallel, max_per_site
        self._on_results, self._call_later = on_results, call_later
        self._executor = ThreadPoolExecutor(max_parallel, thread_name_prefix="bmc")
        self._condition = threading.Condition()  # guards the fields below
        self._waiting: dict[str | None, OrderedDict[Key, QueuedTask[Key, Value]]] = {}  # waiting tasks by site
        self._running_by_site: Counter[str | None] = Counter()  # the number of running tasks at each site
        self._limits: dict[str | None, ConcurrencyLimit] = {}
        self._running: set[Key] = set()
        self._ended: dict[Key, Value] = {}
        self._errors: list[BaseException] = []
        self._is_notification_scheduled = False

    def add(self, tasks: Iterable[QueuedTask[Key, Value]]) -> frozenset[Key]:
        """Queue tasks, and return the keys whose task was queued.

        Skip each key whose last task is still running, or whose last result `take_results` has not returned yet,
        because the new task could not take that result into account. A newer task for a key replaces a task that has
        not started.
        """
        queued = set()
        with self._condition:
            for task in tasks:
                if task.key not in self._running and task.key not in self._ended:
                    self._drop_task(task.key)
                    self._waiting.setdefault(task.site, OrderedDict())[task.key] = task
                    queued.add(task.key)
            self._start_tasks()
        return frozenset(queued)

    def drop_pending_tasks(self, keys: Iterable[Key]) -> None:
        """Remove tasks that have not started."""
        with self._condition:
            for key in keys:
                self._drop_task(key)

    def take_results(self) -> dict[Key, Value]:
        """Return the results of all tasks that ended since the last call.

        If tasks raised errors, each call raises one of them. Later calls return the results.
        """
        with self._condition:
            if self._errors:
                raise self._errors.pop()
            ended, self._ended = self._ended, {}
            return ended

    def wait_for_results(self) -> dict[Key, Value]:
        """Wait until a task has ended, and return all new results. If there are no tasks, return an empty mapping."""
        with self._condition:
            self._condition.wait_for(lambda: self._ended or self._errors or not (self._running or self._waiting))
            return self.take_results()

    def get_running_keys(self) -> frozenset[Key]:
        with self._condition:
            return frozenset(self._running)

    def close(self) -> None:
        """Remove all tasks that have not started, and wait until the running tasks have ended."""
        with self._condition:
            self._waiting.clear()
        self._executor.shutdown(wait=True)

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
            self._executor.submit(self._run_task, task)

    def _run_task(self, task: QueuedTask[Key, Value]) -> None:
        sample: ResponseSample | None = None
        error: BaseException | None = None
        try:
            value, sample = task.work()
        except BaseException as raised:  # noqa: BLE001 - take_results raises it
            error = raised
        with self._condition:
            self._running.remove(task.key)
            self._running_by_site[task.site] -= 1
            self._limits[task.site] = self._get_limit(task.site).update(sample)
            if error is not None:
                self._errors.append(error)
            else:
                self._ended[task.key] = value
            self._start_tasks()
            is_last = not (self._running or self._waiting)
            must_schedule = not is_last and not self._is_notification_scheduled
            self._is_notification_scheduled |= must_schedule
            self._condition.notify_all()
        if is_last:
            self._on_results()
        elif must_schedule:
            self._call_later(_NOTIFY_DELAY_S, self._notify_of_results)

    def _notify_of_results(self) -> None:
        with self._condition:
            self._is_notification_scheduled = False
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
