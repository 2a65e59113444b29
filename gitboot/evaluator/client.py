"""The client of the evaluator process, which evaluates commits within limits and may end at any time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from gitboot.child_processes import OUT_OF_MEMORY, Child, ended, uncollected
from gitboot.disk_cache import DiskCache
from gitboot.errors import CorruptClone, InvalidRepository, NotEvaluated, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import SpooledResults, lookup
from gitboot.evaluator.evaluation_result import Commit, Evaluated
from gitboot.evaluator.protocol import Allowance, exceeded
from gitboot.fleet.identities import Machine
from gitboot.fleet.layered_dict import merged, replaced
from gitboot.fleet.revision import Revision
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.explanation import SourceLocations
from gitboot.resolve.server_decision import Decision, Host, Written
from gitboot.status.work_progress import Told, unheard


class Evaluation:
    """Evaluates commits of one clone in an evaluator process, each against a base.

    The first evaluation starts the process, and so does the first one after the process has ended. The evaluator
    process ends when this process ends, even if this process is killed.
    """

    def __init__(
        self,
        state: Path,
        *,
        allowance: Allowance | None = None,
        waits: bool = False,
        timed: Callable[[], Callable[[], None]] = lambda: lambda: None,
        read: Told = unheard,
        site: str | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        self._state = state
        self._cache = cache  # of results; the evaluator process does not open it
        self._site = site  # only its servers are evaluated; None: all servers
        self._allowance = allowance or Allowance()
        self._waits = waits  # whether `evaluate` waits for the answer instead of returning None
        self._timed = timed  # is called when an evaluation begins, and returns a function to call at its end
        self._read = read  # reports how many files of a commit the process has read
        self.on_answer: Callable[[], None] = lambda: None
        self._process: Child | None = None
        self._asked: _Asked | None = None
        self._evaluated: set[Revision] = set()  # by this process
        self._kept: set[Revision] = set()  # commits that were accepted
        self._spooled: dict[Revision, _Spooled] = {}  # of commits that may be accepted yet
        self._conversations = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")
        self._closing = threading.Event()
        self._storing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="results")

    def evaluate(self, revision: Revision, base: Commit | None) -> Evaluated | None:
        """Return the evaluation of ``revision`` and what it changes against ``base``. None: everything is new.

        Returns None while the process evaluates this or an earlier commit: call again. Raises `InvalidRepository` with
        all problems of the commit, `NotEvaluated` if the evaluation did not end, and `SourceError` if the clone cannot
        be read. After the last two, the next call evaluates the commit again.
        """
        asked = self._asked
        if asked is None or (asked.answer.done() and not asked.is_of(revision, base)):
            asked = self._ask(revision, base)
        if not (asked.answer.done() or self._waits) or not asked.is_of(revision, base):
            return None
        try:
            return asked.answer.result()
        except _Killed as error:
            if asked.is_again:
                self._asked = None
                raise NotEvaluated([exceeded(str(error))]) from None
            self._ask(revision, base, is_again=True)  # the commit may not be the reason
            return self.evaluate(revision, base)
        except (SourceError, NotEvaluated):
            self._asked = None  # the next call may succeed
            raise

    def keep(self, revision: Revision) -> None:
        """Store the results of an accepted commit in the cache, in a thread.

        If the process evaluated a commit before that was not accepted, ignore the results.
        """
        spooled = self._spooled.pop(revision, None)
        self._kept.add(revision)
        if spooled is None:
            return
        if self._cache is not None and spooled.untrusted <= {revision}:
            self._storing.submit(spooled.results.store, self._cache, self._closing.is_set)
        else:
            spooled.results.close()

    def wait_until_stored(self) -> None:
        self._storing.submit(lambda: None).result()

    def settle(self, accepted: Revision | None) -> None:
        """End the process if it evaluated a commit that was not accepted. ``accepted`` counts as accepted."""
        if self._evaluated - self._kept - {accepted}:
            self._end_process()

    def close(self) -> None:
        """End the process at once. Results that are not stored yet are lost."""
        self._closing.set()
        self._end_process()
        for pool in (self._conversations, self._storing):
            pool.shutdown()
        for spooled in self._spooled.values():
            spooled.results.close()
        if self._cache is not None:
            self._cache.close()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._conversations.submit(process.put_away)

    def _ask(self, revision: Revision, base: Commit | None, *, is_again: bool = False) -> _Asked:
        if self._process is not None and self._process.has_ended:
            self._end_process()
        if self._process is None:
            self._process, self._evaluated = Child("gitboot.evaluator", str(self._state)), set()
            self._kept &= {base.revision} if base is not None else set()  # the new process has evaluated no other
        untrusted = frozenset(self._evaluated - self._kept)
        self._evaluated |= {revision} if base is None else {revision, base.revision}
        spooled = _Spooled(SpooledResults(self._state), untrusted)
        stop = self._timed()
        question = protocol.Question(
            revision,
            base.revision if base is not None else None,
            self._allowance,
            self._site,
            stores_results=self._cache is not None,
        )
        conversation = _Conversation(self._process, question, self._read, self._cache, spooled.results)
        answer = self._conversations.submit(conversation.evaluated, base)
        self._spool(revision, spooled)
        self._asked = _Asked(revision=revision, base=base, answer=answer, is_again=is_again)
        answer.add_done_callback(lambda _: stop())
        answer.add_done_callback(lambda _: self.on_answer())
        return self._asked

    def _spool(self, revision: Revision, spooled: _Spooled) -> None:
        """Keep the results of the last few commits until the instance accepts one of them."""
        if (before := self._spooled.pop(revision, None)) is not None:
            before.results.close()
        self._spooled[revision] = spooled
        while len(self._spooled) > _MOST_SPOOLED:
            self._spooled.pop(next(iter(self._spooled))).results.close()


_MOST_SPOOLED: Final = 8


class _Spooled(NamedTuple):
    results: SpooledResults
    untrusted: frozenset[Revision]  # the commits that its process had evaluated before and that were not accepted


class _Asked(Struct, frozen=True, kw_only=True):
    revision: Revision
    base: Commit | None
    answer: Future[Evaluated]
    is_again: bool  # whether the process of the first attempt was killed

    def is_of(self, revision: Revision, base: Commit | None) -> bool:
        return self.revision == revision and self.base is base


class _Killed(Exception):
    """Another process killed the evaluator process: its own limits do not end it in this way."""


def assembled(base: Commit | None, revision: Revision, answers: Iterable[protocol.Answer]) -> Evaluated:
    """Return a commit, assembled from the answers of an evaluator and the base.

    Raises the error that the evaluator reports, and EOFError if the answers end early.
    """
    parts = _Assembly(base)
    for answer in answers:
        match answer:
            case protocol.ServerParts(servers=servers):
                parts.take(servers)
            case protocol.CommitEnd() as result:
                commit = parts.commit(revision, result)
                return Evaluated(
                    commit=commit,
                    changes=result.extent,
                    names=result.come,
                    moves=result.moves,
                    no_site=result.no_site,
                )
            case protocol.Refused(problems=problems, dated=dated, fleet=fleet):
                raise InvalidRepository(problems, fleet=fleet, dated=dated)
            case protocol.Unreadable(message=message, is_corrupt=is_corrupt):
                raise CorruptClone(message) if is_corrupt else SourceError(message)
    raise EOFError


_MOST_COMMITS: Final = 2  # of one question: the base, and the commit


class _Conversation:
    """A question to an evaluator process, and the answers until the last one or the end of the process."""

    def __init__(
        self, process: Child, question: protocol.Question, read: Told, cache: DiskCache | None, results: SpooledResults
    ) -> None:
        self._process, self._question, self._read = process, question, read
        self._cache, self._results = cache, results
        self._began = 0.0  # monotonic
        self._wall_s, self._files = question.allowance.wall_s(0), 0
        self._commits = 0  # that the process has begun to evaluate
        self._is_late = False

    def evaluated(self, base: Commit | None) -> Evaluated:
        """Send the question and return the answer. If the answer is wrong or missing, end the process."""
        self._began = time.monotonic()
        try:
            self._process.send(self._question, self._left_s)
            return assembled(base, Revision(self._question.revision), self._answers())
        except (EOFError, OSError, ValueError, RecursionError, msgspec.MsgspecError):
            self._process.kill()
            raise self._end() from None
        finally:
            self._read(1, 1)

    def _left_s(self) -> float:
        return self._began + self._wall_s - time.monotonic()

    def _answers(self) -> Iterator[protocol.Answer]:
        try:
            for frame in self._process.answers(self._left_s):
                answer = protocol.answer(frame)
                match answer:
                    case protocol.Begun(files=None):  # the base and the commit each have limits of their own
                        self._commits += 1
                        if self._commits > _MOST_COMMITS:
                            raise ValueError("more commits than gitboot asked for")
                        self._began, self._wall_s, self._files = time.monotonic(), self._question.allowance.wall_s(0), 0
                    case protocol.Begun(files=int() as files):
                        self._wall_s, self._files = self._question.allowance.wall_s(files), files
                        self._read(0, files + 1)  # one more step, in which the servers are decided
                    case protocol.Counted(files=done) if self._files:
                        self._read(min(done, self._files), self._files + 1)
                    case protocol.Wanted() as wanted:
                        self._process.send(lookup(self._cache, wanted), self._left_s)
                    case protocol.NewResults(kind=kind, values=values) if self._cache is not None:
                        self._results.add(kind, values)
                yield answer
                if isinstance(answer, protocol.ServerParts) and self._cache is not None:
                    self._results.verify(answer.servers)  # `assembled` has taken them
        except TimeoutError:
            self._is_late = True
            self._process.kill()

    def _end(self) -> InvalidRepository | _Killed:
        status = self._process.wait()
        if self._is_late:
            return NotEvaluated([exceeded(f"it is not evaluated after {self._wall_s:.0f} s")])
        if status == -signal.SIGXCPU:
            return InvalidRepository([exceeded("it takes more processor time to evaluate than it may")])
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # a library aborts if it gets no memory
            return InvalidRepository([exceeded("it takes more memory to evaluate than it may")])
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return _Killed("its evaluation was killed twice, perhaps because the machine has no memory left")
        return InvalidRepository([exceeded(f"its evaluation ended {ended(status)}")])


class _Assembly:
    def __init__(self, base: Commit | None) -> None:
        self._base = base
        self._touched: list[str] = []
        self._decisions: dict[str, Decision] = {}
        self._networks: dict[str, Host] = {}
        self._machines: dict[SystemUuid, Machine] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._written: dict[str, Written] = {}

    @uncollected()  # the decoded values stay in memory
    def take(self, servers: tuple[protocol.ServerPart, ...]) -> None:
        for server in servers:
            name = server.name
            others = (server.decision, server.machine, server.network, server.labels)
            before = self._base.written if self._base is not None else None
            if before is not None and server.written == before.get(name) and all(each is None for each in others):
                continue  # as in the base
            self._touched.append(name)
            if server.decision is not None:
                self._decisions[name] = protocol.verified_decision(server.decision)
            if server.network is not None:
                self._networks[name] = protocol.network(server.network)
            if (machine := server.machine) is not None:
                self._machines[machine.uuid] = machine
            if (labels := server.labels) is not None:
                self._labels[name] = labels
            if (written := server.written) is not None:
                self._written[name] = written

    def commit(self, revision: Revision, result: protocol.CommitEnd) -> Commit:
        base, gone = self._base, result.gone
        shared = result.fleetwide.without_servers() if result.fleetwide is not None else base
        if shared is None:
            raise ValueError("a commit without a base lacks its fleet-wide part")
        before = base or shared
        written, locations = before.written, before.locations
        if shared.shown is None:  # no page is published
            written, locations = {}, SourceLocations()
        commit = replace(
            shared,
            revision=revision,
            decisions=structs.replace(
                shared.decisions,
                revision=revision,
                servers=replaced(before.decisions.servers, self._decisions, gone),
                networks=replaced(before.decisions.networks, self._networks, gone),
            ),
            machines=merged(before.machines, self._machines, result.gone_machines),
            labels=merged(before.labels, self._labels, gone),
            sites=merged(before.sites, result.sites, result.gone_sites),
            written=merged(written, self._written, gone),
            locations=SourceLocations(
                servers=merged(locations.servers, result.locations, gone),
                shared=merged(locations.shared, result.documents, result.gone_documents),
            ),
            withheld=before.withheld,
            base=base.revision if base is not None else None,
            touched=frozenset({*self._touched, *gone, *result.sites, *result.gone_sites}),
        )
        self._check(commit, result)
        return commit

    def _check(self, commit: Commit, result: protocol.CommitEnd) -> None:
        """Raise ValueError if the parts of a server belong to different servers, or if a server lacks a part.

        The base was checked before. So this checks the servers that differ, and that no part of another server was
        removed or replaced.
        """
        servers, networks = commit.decisions.servers, commit.decisions.networks
        machines = self._base.machines if self._base is not None else {}
        replaced_machines = [machines[uuid] for uuid in (*self._machines, *result.gone_machines) if uuid in machines]
        if not {each.name for each in replaced_machines} <= {*self._touched, *result.gone}:
            raise ValueError("the machine of an unchanged server was removed or replaced")
        if len({len(each) for each in (servers, networks, commit.labels, commit.machines)}) > 1:
            raise ValueError("a server lacks a part")
        for name in self._touched:
            decision, host = servers.get(name), networks.get(name)
            machine = commit.machines.get(decision.uuid) if decision is not None else None
            named = [each.server for each in (decision, host) if each is not None]
            if machine is None or [machine.name, *named] != [name] * 3 or name not in commit.labels:
                raise ValueError(f"the parts of {name} belong to different servers")
        if not all(name in servers for name in result.come):
            raise ValueError("a new server is missing from the servers")
