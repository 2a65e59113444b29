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
    """The kinds of requests: approval of a maintenance, or drain of a server."""

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
        """Return the JSON object that gitboot sends to the URL."""
        facts = {
            "apiVersion": "gitboot.dev/v1alpha1",
            "kind": f"Maintenance{self.kind}",
            "maintenance": self.maintenance,
            "run": self.run,
            "digest": self.digest,
            "windowEnd": format_instant(self.until),
        }
        return facts if self.server is None else {**facts, "server": self.server, "uuid": self.uuid}


class HookFailure(NamedTuple):
    """The reason why a question does not have the expected answer yet."""

    question: Question
    message: str
    is_unlisted: bool = False  # whether gitboot sends no request, because maintenance-hosts does not list the host


class _QueueEntry(NamedTuple):
    due_s: float  # when to send the request, in monotonic time
    number: int  # unique, so that questions with the same due time are never compared
    question: Question


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
        self._hosts = hosts
        self._clock = clock
        self._wake = wake
        self._every_s = every_s
        self._request_s = request_s
        self._client = HttpClient(ca_bundle=ca_bundle)
        self._changed = threading.Condition()
        self._wanted: frozenset[Question] = frozenset()
        self._queues: dict[Origin, list[_QueueEntry]] = {}  # heaps by host
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
        wanted = frozenset(each for each in questions if self.may_drain or each.kind is not HookKind.DRAIN)
        with self._changed:
            new = sorted(wanted - self._wanted, key=lambda each: (each.maintenance, each.kind, each.server or ""))
            self._wanted = wanted
            self._answers &= wanted
            self._unasked &= wanted
            self._failures = {asked: failure for asked, failure in self._failures.items() if asked in wanted}
            for queue in self._queues.values():
                queue[:] = [entry for entry in queue if entry.question in wanted]
                heapify(queue)
            for question in new:
                if parse_origin(question.url) in self._hosts:
                    self._unasked.add(question)
                    if question not in self._asking:  # `_store_answer` uses the answer to a current request
                        self._schedule_question(question, time.monotonic())
                else:
                    message = f"the setting maintenance-hosts does not list {format_host(question.url)}"
                    self._failures[question] = HookFailure(question, message, is_unlisted=True)
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
        queue = self._queues.setdefault(parse_origin(question.url), [])
        heappush(queue, _QueueEntry(due_s, next(self._numbers), question))

    def _take_due_question(self) -> Question | None:
        """Wait until a question is due, and return it. Return None after `close`."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                busy = Counter(self._asking.values())
                next_due = {
                    origin: queue[0].due_s
                    for origin, queue in self._queues.items()
                    if queue and busy[origin] < _PER_HOST
                }
                due_origins = [origin for origin, due_s in next_due.items() if due_s <= now_s]
                if not due_origins:
                    self._changed.wait(min(next_due.values()) - now_s if next_due else None)
                    continue
                origin = min(due_origins, key=lambda each: (busy[each], next_due[each]))
                question = heappop(self._queues[origin]).question
                if self._clock() < question.until:
                    self._asking[question] = origin
                    return question
                self._unasked.discard(question)  # its window has ended
                self._changed.notify_all()
        return None

    def _send_question(self, question: Question) -> WebAnswer:
        """Send one request. Raises `HostUnreachable`, or `UsageError` if the token file is unusable."""
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
        """Store the result of a request. ``message`` is "" for the expected answer, else why to repeat the request."""
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
    """Return the token file of each host in maintenance-hosts. A value is URL or URL=FILE. Raises `UsageError`."""
    token_files: dict[Origin, Path | None] = {}
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
        if origin in token_files:
            raise UsageError(f"maintenance-hosts: {url} is listed twice")
        token_files[origin] = Path(file) if file else None
    return token_files


def list_questions(plans: Plans, schedule: Schedule, at: datetime) -> frozenset[Question]:
    """Return the questions that the waiting servers need now."""
    questions = set[Question]()
    for server, maintenance in _list_waiting(plans, at):
        uuid, before, end = server.decision.uuid, maintenance.before, maintenance.end
        if before is None or end is None or server.plan is None:
            continue
        if server.plan.cause is Cause.WAITING_FOR_APPROVAL and before.approval_url is not None:
            questions.add(
                Question(
                    kind=HookKind.APPROVAL,
                    url=before.approval_url,
                    maintenance=maintenance.name,
                    run=maintenance.run,
                    digest=before.digest,
                    server=None,
                    uuid=None,
                    until=end,
                )
            )
        elif (
            server.plan.cause is Cause.WAITING_FOR_DRAIN
            and before.drain_url is not None
            and _find_clearance(server.record, maintenance).drain == maintenance.drain_key
            and schedule.may_set
            and uuid in schedule.power
        ):
            questions.add(
                Question(
                    kind=HookKind.DRAIN,
                    url=before.drain_url,
                    maintenance=maintenance.name,
                    run=maintenance.run,
                    digest=before.digest,
                    server=server.decision.server,
                    uuid=uuid,
                    until=end,
                )
            )
    return frozenset(questions)


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
    drain_urls = {each.uuid: each.url for each in answers if each.kind is HookKind.DRAIN}
    next_drains = choose_drains(schedule, plans, snapshot, at) if may_drain else frozenset()
    for server, maintenance in _list_waiting(plans, at):
        name, uuid, before = server.decision.server, server.decision.uuid, maintenance.before
        record = snapshot.stored_record(uuid)
        if before is None or server.plan is None or record is None:
            continue
        known = _find_clearance(record, maintenance)
        subject = f"{name}: Maintenance/{maintenance.name}"
        if server.plan.cause is Cause.WAITING_FOR_APPROVAL:
            approval = maintenance.name, before.digest, before.approval_url
            if known.approved == before.approval_key or approval not in approved:
                continue
            clearance = known._replace(approved=before.approval_key)
            event = "MaintenanceApproved"
            message = f"{subject} is approved by {format_host(before.approval_url or '')} ({before.digest[:12]})"
        elif known.drain != maintenance.drain_key:
            if uuid not in next_drains:
                continue
            clearance = Clearance(known.approved, drain=maintenance.drain_key, until=maintenance.end)
            event = "DrainStarted"
            message = f"{subject} requires the server to be drained, so gitboot requests {before.drain_url}"
        else:
            if known.drained_at is not None or uuid not in drain_urls or drain_urls[uuid] != before.drain_url:
                continue
            clearance = known._replace(drained_at=at)
            event = "Drained"
            message = f"{subject}: the server is drained"
        yield ClearanceChange(
            uuid=uuid,
            server=name,
            maintenance=maintenance.name,
            clearance=clearance,
            event=event,
            message=message,
            kept=frozenset(kept.name for kept in server.decision.maintenances),
        )


def _find_clearance(record: Record | None, maintenance: MaintenanceDecision) -> Clearance:
    return record.clearances.get(maintenance.name, Clearance()) if record is not None else Clearance()


def _list_waiting(plans: Plans, at: datetime) -> Iterator[tuple[ServerState, MaintenanceDecision]]:
    """Yield each server that waits for an approval or a drain, with the maintenance, if the window is open."""
    for name, waiting in sorted(plans.waiting.items()):
        server = plans.servers[name]
        for maintenance in server.decision.maintenances:
            if maintenance.name == waiting and maintenance.is_active(at):
                yield server, maintenance
