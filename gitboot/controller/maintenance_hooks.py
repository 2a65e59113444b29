"""Maintenance hooks: request URLs that approve a maintenance or drain a server, and record their answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from gitboot.background_threads import BackgroundThread
from gitboot.controller.bmcs.power_waves import choose_drains
from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.current_plans import Plans
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import HostUnreachable, UsageError
from gitboot.files import read_private
from gitboot.http_client import HttpClient, WebAnswer, format_host, parse_origin
from gitboot.jsonio import format_instant
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import ServerState
from gitboot.resolve.provisioning_record import Clearance, Record
from gitboot.resolve.server_decision import MaintenanceDecision
from gitboot.resolve.server_plan import Cause

ASK_EVERY_S: Final = 30.0  # the pause after an answer that is not yet the expected one
_LONGEST_PAUSE_S: Final = 600.0  # the longest pause that a server can request with Retry-After
_REQUEST_S: Final = 10.0  # the deadline for one request
_MAX_ANSWER_BYTES: Final = 64 << 10
_THREADS: Final = 4
_PER_HOST: Final = _THREADS - 1  # so that one slow host does not delay the others

Origin = tuple[str, str, int]  # scheme, host and port


class HookKind(StrEnum):
    APPROVAL = "Approval"
    DRAIN = "Drain"


class Question(NamedTuple):
    """A request that gitboot repeats until the URL gives the expected answer, or until the window ends."""

    kind: HookKind
    url: str
    maintenance: str
    run: int
    digest: str  # the digest that an approval names
    server: str | None  # None: the question is about all servers with this digest
    uuid: SystemUuid | None
    until: datetime  # the end of the window

    def body(self) -> dict[str, Any]:
        found = {
            "apiVersion": "gitboot.dev/v1alpha1",
            "kind": f"Maintenance{self.kind}",
            "maintenance": self.maintenance,
            "run": self.run,
            "digest": self.digest,
            "windowEnd": format_instant(self.until),
        }
        return found if self.server is None else {**found, "server": self.server, "uuid": self.uuid}


class HookFailure(NamedTuple):
    """The reason why a question does not have the expected answer yet."""

    question: Question
    message: str
    is_unlisted: bool = False  # whether gitboot sends no request, because maintenance-hosts does not list the host


class HookClient:
    """A client that asks questions in background threads. Thread-safe.

    gitboot sends requests only to the listed hosts, and each token only to its host. gitboot does not follow redirects.
    """

    def __init__(
        self,
        hosts: Mapping[Origin, Path | None],
        clock: Callable[[], datetime],
        wake: Callable[[], None],
        *,
        ca_bundle: Path | None = None,
        every_s: float = ASK_EVERY_S,
        request_s: float = _REQUEST_S,
        may_drain: bool = True,
    ) -> None:
        """Prepare the threads. ``hosts`` are the listed hosts, each with its token file.

        ``wake`` is called from a thread when an answer changes. An instance that reconciles only once never resets a
        machine, so it must not drain a server either.
        """
        self.may_drain = may_drain
        self._hosts, self._clock, self._wake, self._every_s = hosts, clock, wake, every_s
        self._request_s = request_s
        self._client = HttpClient(ca_bundle=ca_bundle)
        self._changed = threading.Condition()
        self._wanted: frozenset[Question] = frozenset()
        self._queues: dict[Origin, list[tuple[float, int, Question]]] = {}  # heaps by host, each with a due time
        self._asking: dict[Question, Origin] = {}  # the questions whose requests are in progress
        self._numbers = count()
        self._unasked: set[Question] = set()  # questions that have not been asked yet
        self._answers: frozenset[Question] = frozenset()
        self._failures: dict[Question, HookFailure] = {}
        self._is_closed = False
        self._threads = [BackgroundThread(self._send_questions, name=f"hooks-{number}") for number in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    def set_questions(self, questions: Collection[Question]) -> None:
        """Ask only these questions from now on, each until it has the expected answer.

        New questions are due at once.
        """
        wanted = frozenset(questions)
        wanted = wanted if self.may_drain else frozenset(each for each in wanted if each.kind is not HookKind.DRAIN)
        with self._changed:
            new = sorted(wanted - self._wanted, key=lambda each: (each.maintenance, each.kind, each.server or ""))
            self._wanted = wanted
            self._answers &= wanted
            self._unasked &= wanted
            self._failures = {each: failure for each, failure in self._failures.items() if each in wanted}
            for queue in self._queues.values():
                queue[:] = [each for each in queue if each[2] in wanted]
                heapify(queue)
            for each in new:
                if parse_origin(each.url) in self._hosts:
                    self._unasked.add(each)
                    if each not in self._asking:  # otherwise, `_store_answer` uses the answer to the current request
                        self._schedule_question(each, time.monotonic())
                else:
                    self._failures[each] = HookFailure(
                        each, f"the setting maintenance-hosts does not list {format_host(each.url)}", is_unlisted=True
                    )
            self._changed.notify_all()

    def get_answers(self) -> frozenset[Question]:
        """Return the wanted questions that have the expected answer."""
        with self._changed:
            return self._answers

    def get_failures(self) -> tuple[HookFailure, ...]:
        """Return the last failure of each question that does not have the expected answer yet."""
        with self._changed:
            return tuple(sorted(self._failures.values(), key=lambda each: (each.message, each.question)))

    def wait(self) -> None:
        """Wait until the thread has sent each wanted request once, but at most twice the deadline for one request."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._unasked, 2 * self._request_s)

    def close(self) -> None:
        """End the threads. A thread that is waiting for the network does not end until the process does."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout_s=0.1)

    def _send_questions(self) -> None:
        while (question := self._take_due_question()) is not None:
            message, pause_s = "the request failed", self._every_s
            try:
                answer = self._send_question(question)
                message = _find_fault(question, answer)
                pause_s = min(max(self._every_s, answer.retry_after_s or 0), _LONGEST_PAUSE_S)
            except (HostUnreachable, UsageError) as error:
                message = str(error)
            finally:
                self._store_answer(question, message, pause_s)

    def _schedule_question(self, question: Question, due_s: float) -> None:
        heappush(self._queues.setdefault(parse_origin(question.url), []), (due_s, next(self._numbers), question))

    def _take_due_question(self) -> Question | None:
        """Wait until a question is due, and return it. Return None after `close`."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                busy = Counter(self._asking.values())
                queues = {origin: each for origin, each in self._queues.items() if busy[origin] < _PER_HOST}
                heads = {origin: queue[0][0] for origin, queue in queues.items() if queue}
                if due := [origin for origin, due_s in heads.items() if due_s <= now_s]:
                    origin = min(due, key=lambda each: (busy[each], heads[each]))
                    question = heappop(self._queues[origin])[2]
                    if self._clock() < question.until:
                        self._asking[question] = origin
                        return question
                    self._unasked.discard(question)
                    self._changed.notify_all()
                    continue
                self._changed.wait(min(heads.values()) - now_s if heads else None)
        return None

    def _send_question(self, question: Question) -> WebAnswer:
        file = self._hosts[parse_origin(question.url)]
        credentials = {}
        if file is not None:
            token = read_private(file).decode("ascii", errors="replace").strip()
            if not token or not token.isascii() or not token.isprintable():
                raise UsageError(f"{file}: expected a token on one line")
            credentials["Authorization"] = f"Bearer {token}"
        return self._client.request_json(
            question.url,
            credentials=credentials,
            body=question.body(),
            deadline_s=self._request_s,
            max_bytes=_MAX_ANSWER_BYTES,
        )

    def _store_answer(self, question: Question, message: str, pause_s: float) -> None:
        with self._changed:
            self._asking.pop(question, None)
            self._unasked.discard(question)
            self._changed.notify_all()
            if question not in self._wanted or self._is_closed:
                return
            before = self._failures.pop(question, None)
            if not message:
                self._answers |= {question}
            else:
                self._failures[question] = HookFailure(question, message)
                self._schedule_question(question, time.monotonic() + pause_s)
            is_news = self._failures.get(question) != before
        if is_news or not message:
            self._wake()


def _find_fault(question: Question, answer: WebAnswer) -> str:
    """Return why an answer differs from the expected answer, or "" if the answer is as expected."""
    host = format_host(question.url)
    if 300 <= answer.status < 400:
        return f"{host} returned a redirect (HTTP status {answer.status}), which gitboot does not follow"
    if answer.status != 200:
        return f"{host} returned HTTP status {answer.status}"
    if question.kind is HookKind.DRAIN:
        return ""
    content = answer.json if isinstance(answer.json, dict) else {}
    if content.get("approved") is not True:
        return f"{host} has not approved the maintenance"
    if (content.get("maintenance"), content.get("digest")) != (question.maintenance, question.digest):
        return f"{host} approved a different maintenance or digest"
    return ""


def parse_hook_hosts(values: Collection[str]) -> dict[Origin, Path | None]:
    """Parse the values of maintenance-hosts, each of which is URL or URL=FILE. Raises `UsageError`."""
    found: dict[Origin, Path | None] = {}
    for value in values:
        url, _, file = value.partition("=")
        try:
            origin = parse_origin(url)
        except UsageError as error:
            raise UsageError(f"maintenance-hosts: {error}") from None
        if url.rstrip("/").count("/") != 2:  # the only slashes allowed are the two after http: or https:
            raise UsageError(
                f"maintenance-hosts: {url} must not have a path; write https://HOST[:PORT] or https://HOST=FILE"
            )
        if origin in found:
            raise UsageError(f"maintenance-hosts: {url} is listed twice")
        found[origin] = Path(file) if file else None
    return found


def list_questions(plans: Plans, schedule: Schedule, at: datetime) -> frozenset[Question]:
    """Return the questions that the waiting servers need now."""
    found = set[Question]()
    for server, maintenance in _list_waiting(plans, at):
        uuid, before, end = server.decision.uuid, maintenance.before, maintenance.end
        if before is None or end is None or server.plan is None:
            continue
        run_key = maintenance.name, maintenance.run, before.digest
        if server.plan.cause is Cause.WAITING_FOR_APPROVAL and before.approval_url is not None:
            found.add(Question(HookKind.APPROVAL, before.approval_url, *run_key, None, None, end))
        elif (
            server.plan.cause is Cause.WAITING_FOR_DRAIN
            and before.drain_url is not None
            and _find_clearance(server.record, maintenance).drain == maintenance.drain_key
            and schedule.may_set
            and uuid in schedule.power
        ):
            found.add(Question(HookKind.DRAIN, before.drain_url, *run_key, server.decision.server, uuid, end))
    return frozenset(found)


class ClearanceChange(NamedTuple):
    """A new clearance of a server, with the event that reports it."""

    uuid: SystemUuid
    server: str
    maintenance: str
    clearance: Clearance
    event: str
    message: str
    kept: frozenset[str]  # the maintenances of the server; gitboot forgets the clearances of others


def find_clearances(
    plans: Plans,
    schedule: Schedule,
    snapshot: LedgerSnapshot,
    answers: Collection[Question],
    at: datetime,
    *,
    may_drain: bool,
) -> Iterator[ClearanceChange]:
    """Yield the clearances that result from the answers, and the clearances of the servers that gitboot drains next.

    The plans may be older than the ``snapshot``.
    """
    approved = {(each.maintenance, each.digest, each.url) for each in answers if each.kind is HookKind.APPROVAL}
    drained = {each.uuid: each for each in answers if each.kind is HookKind.DRAIN}
    next_drains = choose_drains(schedule, plans, snapshot, at) if may_drain else frozenset()
    for server, maintenance in _list_waiting(plans, at):
        name, uuid, before = server.decision.server, server.decision.uuid, maintenance.before
        record = snapshot.stored_record(uuid)
        if before is None or server.plan is None or record is None:
            continue
        known, subject = _find_clearance(record, maintenance), f"{name}: Maintenance/{maintenance.name}"
        kept = frozenset(each.name for each in server.decision.maintenances)
        target = uuid, name, maintenance.name
        if server.plan.cause is Cause.WAITING_FOR_APPROVAL:
            if (
                known.approved != before.approval_key
                and (maintenance.name, before.digest, before.approval_url) in approved
            ):
                yield ClearanceChange(
                    *target,
                    known._replace(approved=before.approval_key),
                    "MaintenanceApproved",
                    f"{subject} is approved by {format_host(before.approval_url or '')} ({before.digest[:12]})",
                    kept,
                )
        elif known.drain != maintenance.drain_key:
            if uuid in next_drains:
                yield ClearanceChange(
                    *target,
                    Clearance(known.approved, drain=maintenance.drain_key, until=maintenance.end),
                    "DrainStarted",
                    f"{subject} requires the server to be drained, so gitboot requests {before.drain_url}",
                    kept,
                )
        elif known.drained_at is None and (answer := drained.get(uuid)) is not None and answer.url == before.drain_url:
            yield ClearanceChange(
                *target, known._replace(drained_at=at), "Drained", f"{subject}: the server is drained", kept
            )


def _find_clearance(record: Record | None, maintenance: MaintenanceDecision) -> Clearance:
    return record.clearances.get(maintenance.name, Clearance()) if record is not None else Clearance()


def _list_waiting(plans: Plans, at: datetime) -> Iterator[tuple[ServerState, MaintenanceDecision]]:
    """Yield each server that waits for an approval or a drain, with the maintenance, if the window is open."""
    for name, waiting in sorted(plans.waiting.items()):
        server = plans.servers[name]
        for each in server.decision.maintenances:
            if each.name == waiting and each.is_active(at):
                yield server, each
