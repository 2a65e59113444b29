"""Many BMCs at once: each brought to its wanted override, its failures an outcome and never an exception."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from gitboot.bmc.quirks import boot_patch
from gitboot.bmc.redfish import Bmc, Credentials
from gitboot.bmc.transport import tls_context
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, UsageError
from gitboot.model.scalars import SystemUuid
from gitboot.override import (
    OFF,
    Armed,
    AskOperator,
    Confirm,
    Leave,
    Observed,
    Set,
    Wait,
    Wanted,
    Withdraw,
    next_step,
    refused,
)

_MOST_STEPS: Final = 8  # withdraw, confirm, set, confirm, and as much again for a BMC that changes under us


class Outcome(StrEnum):
    UNCHANGED = "Unchanged"
    APPLIED = "Applied"
    WAITING = "Waiting"  # it is tried again
    STALLED = "Stalled"  # a person must act


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One server's BMC, and what it is to become."""

    server: str
    uuid: SystemUuid
    address: str
    system: str | None
    credentials: str  # a name
    verify: bool
    ca: str | None  # PEM
    wanted: Wanted | None
    records: tuple[Armed, ...]
    dry_run: bool = False  # say what would be written, and write nothing
    only_read: bool = False  # a fetch is to be judged by what stands now: nothing is set before


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of a job."""

    server: str
    uuid: SystemUuid
    outcome: Outcome
    message: str  # what was done, or why not
    observed: Observed | None = None  # the last reading
    wrote: tuple[Armed, ...] = ()  # records as they were written, in order


def bring_about(bmc: Bmc, job: Job, write: Callable[[Armed], None], clock: Callable[[], datetime]) -> Result:
    """Record, set, confirm, until nothing is left to do now.

    ``write`` returns when its record is durable; it is called before the BMC is changed.
    """
    records = {record.reason: record for record in job.records}
    wrote: list[Armed] = []
    seen: Observed | None = None

    def done(outcome: Outcome, message: str) -> Result:
        return Result(
            server=job.server,
            uuid=job.uuid,
            outcome=outcome,
            message=message,
            observed=seen,
            wrote=tuple(wrote),
        )

    def keep(record: Armed) -> None:
        if not job.dry_run:
            write(record)
        records[record.reason] = record
        wrote.append(record)

    try:
        for _ in range(_MOST_STEPS):
            seen = bmc.observe()
            step = next_step(wanted=job.wanted, observed=seen, records=records.values(), at=clock())
            if job.only_read and isinstance(step, Set | Withdraw):
                return done(Outcome.UNCHANGED, "only read, to judge a fetch")
            if job.dry_run and isinstance(step, Set | Withdraw):
                override = step.record.override if isinstance(step, Set) else OFF
                return done(Outcome.UNCHANGED, f"would PATCH {seen.settings}: {json.dumps(boot_patch(override, seen))}")
            match step:
                case Leave():
                    shown = f"{seen.override.enabled} {seen.override.target}"
                    return done(Outcome.APPLIED if wrote else Outcome.UNCHANGED, f"the BMC shows {shown}")
                case Wait(why=why):
                    return done(Outcome.WAITING, why)
                case AskOperator(condition=condition, message=message):
                    return done(Outcome.STALLED, f"{condition}: {message}")
                case Confirm(record=record):
                    keep(record)
                case Set(record=record):
                    keep(record)
                    try:
                        bmc.set_override(record.override, seen)
                    except (BmcRejected, BmcBusy) as error:
                        # A refusal alone proves nothing: what it left behind is read.
                        seen = bmc.observe()
                        keep(refused(record, seen).record)
                        again = isinstance(error, BmcBusy)
                        return done(Outcome.WAITING if again else Outcome.STALLED, str(error))
                case Withdraw(record=record):
                    keep(record)
                    bmc.clear(seen)
    except (BmcUnreachable, BmcBusy) as error:
        return done(Outcome.WAITING, str(error))
    except BmcRejected as error:
        return done(Outcome.STALLED, str(error))
    return done(Outcome.WAITING, f"not settled after {_MOST_STEPS} steps")


def read_credentials(directory: Path, name: str) -> Credentials:
    """``directory/name/username`` and ``…/password``, as Kubernetes mounts them; read anew each time."""
    try:
        username, password = ((directory / name / part).read_text().rstrip("\n") for part in ("username", "password"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"no credentials named {name}: {directory / name} needs the files username and password ({error})"
        ) from None
    return Credentials(username=username, password=password)


@dataclass(slots=True)
class _Connection:
    job: Job
    credentials: Credentials
    bmc: Bmc


@dataclass(slots=True)
class Fleet:
    """Connections to all BMCs, kept open, with at most ``parallel`` of them used at a time.

    Jobs run in threads of their own and are collected with `finished`; one server has one job at a time.
    """

    credentials: Path | None
    write: Callable[[SystemUuid, Armed], None]
    clock: Callable[[], datetime]
    dry_run: bool = False  # every job
    parallel: int = 32
    on_finished: Callable[[], None] = lambda: None
    _pool: ThreadPoolExecutor = field(init=False)
    _running: dict[str, Future[Result]] = field(init=False, default_factory=dict)
    _connections: dict[str, _Connection] = field(init=False, default_factory=dict)
    _trusting: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="bmc")

    def submit(self, jobs: Iterable[Job]) -> frozenset[str]:
        """Begin jobs, but for servers whose last one still runs; return the servers whose job began."""
        begun = set()
        for job in jobs:
            if job.server not in self._running:
                future = self._pool.submit(self._run, replace(job, dry_run=self.dry_run))
                self._running[job.server] = future
                future.add_done_callback(lambda _: self.on_finished())
                begun.add(job.server)
        return frozenset(begun)

    def finished(self, *, wait_all: bool = False) -> Mapping[str, Result]:
        """The results of jobs that have ended since the last call, by server."""
        if wait_all:
            wait(self._running.values())
        done = {server: future for server, future in sorted(self._running.items()) if future.done()}
        for server in done:
            del self._running[server]
        return {server: future.result() for server, future in done.items()}

    def close(self) -> None:
        """Let running jobs end, and close all connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for connection in self._connections.values():
            connection.bmc.close()

    def _run(self, job: Job) -> Result:
        try:
            bmc = self._connected(job)
        except UsageError as error:
            return Result(server=job.server, uuid=job.uuid, outcome=Outcome.STALLED, message=str(error))
        return bring_about(bmc, job, lambda record: self.write(job.uuid, record), self.clock)

    def _connected(self, job: Job) -> Bmc:
        """The kept connection, made anew when the document or the credentials have changed."""
        if self.credentials is None:
            raise UsageError(f"no directory of credentials is given, and {job.credentials} is needed (--credentials)")
        credentials = read_credentials(self.credentials, job.credentials)
        kept = self._connections.get(job.server)
        if kept is not None:
            same = (kept.job.address, kept.job.system, kept.job.verify, kept.job.ca, kept.credentials)
            if same == (job.address, job.system, job.verify, job.ca, credentials):
                return kept.bmc
            kept.bmc.close()
        bmc = Bmc(job.address, credentials, system=job.system, tls=self._trusted(job))
        self._connections[job.server] = _Connection(job, credentials, bmc)
        return bmc

    def _trusted(self, job: Job) -> ssl.SSLContext:
        try:
            with self._trusting:  # one context for each authority: loading the CA bundle is what costs
                return tls_context(verify=job.verify, ca=job.ca)
        except ssl.SSLError as error:
            raise UsageError(f"bmc.tls.ca of {job.server} is no certificate in PEM: {error.reason or error}") from None
