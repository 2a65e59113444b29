"""Client for the evaluator process, which evaluates commits within resource limits and may end at any time."""

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

from gitboot.child_processes import OUT_OF_MEMORY, Child, describe_exit, pause_garbage_collection
from gitboot.disk_cache import DiskCache
from gitboot.errors import CorruptClone, InvalidRepository, NotEvaluated, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import ResultsFile, look_up
from gitboot.evaluator.protocol import Commit, EvaluationLimits, EvaluationResult, build_limit_problem
from gitboot.fleet.identities import Machine
from gitboot.fleet.overlay import apply_changes, apply_differences
from gitboot.fleet.revision import Revision
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.explanation import SourceLocations
from gitboot.resolve.server_decision import Decision, FieldSources, Host
from gitboot.status.work_progress import ReportProgress, ignore_progress

_MAX_UNSTORED: Final = 8


class EvaluatorClient:
    """A client that has an evaluator process evaluate the commits of a clone, and compare each commit with a base.

    The first evaluation starts the process. Each later evaluation starts a new process if the old process has ended.
    The evaluator process ends when the client's process ends, even if the client's process is killed.
    """

    def __init__(
        self,
        state: Path,
        *,
        limits: EvaluationLimits | None = None,
        waits_for_answer: bool = False,
        start_timer: Callable[[], Callable[[], None]] = lambda: lambda: None,
        report_progress: ReportProgress = ignore_progress,
        site: str | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        self._state = state
        self._cache = cache  # the evaluator process accesses this cache only through this client
        self._site = site  # the site whose servers gitboot evaluates; None: all servers
        self._limits = limits or EvaluationLimits()
        # Whether `evaluate` waits for the result. If False, `evaluate` may return None.
        self._waits_for_answer = waits_for_answer
        # a function that is called at the start of an evaluation, and that returns a function to call at the end
        self._start_timer = start_timer
        # a function that is called with the number of files that the process has read so far
        self._report_progress = report_progress
        self.on_answer: Callable[[], None] = lambda: None
        self._process: Child | None = None
        self._running: _RunningEvaluation | None = None
        self._evaluated: set[Revision] = set()  # the commits that the current evaluator process has evaluated
        self._accepted: set[Revision] = set()  # those evaluated commits that the instance has accepted
        # the results of commits that the instance may still accept
        self._unstored: dict[Revision, _UnstoredResults] = {}
        self._conversation_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")
        self._closing = threading.Event()
        self._store_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="results")

    def evaluate(self, revision: Revision, base: Commit | None) -> EvaluationResult | None:
        """Evaluate ``revision``, and return the result, which includes the changes since ``base``.

        Without a base, all servers are new. The result is None while the process is still evaluating this commit or an
        earlier commit. The caller must then call this method again later. Raises `InvalidRepository` with all problems
        if the commit is invalid, `NotEvaluated` if the evaluation failed, and `SourceError` if the process cannot read
        the clone. After `NotEvaluated` or `SourceError`, the next call evaluates the commit again.
        """
        running = self._running
        if running is None or (running.answer.done() and not running.matches(revision, base)):
            running = self._start_evaluation(revision, base)
        if not (running.answer.done() or self._waits_for_answer) or not running.matches(revision, base):
            return None
        try:
            return running.answer.result()
        except _EvaluatorKilled as error:
            if running.is_retry:
                self._running = None
                raise NotEvaluated([build_limit_problem(str(error))]) from None
            # perhaps the commit is not the cause, so the evaluation is repeated once
            self._start_evaluation(revision, base, is_retry=True)
            return self.evaluate(revision, base)
        except (SourceError, NotEvaluated):
            self._running = None  # the next call evaluates the commit again
            raise

    def store_results(self, revision: Revision) -> None:
        """Store the results of an accepted commit in the cache, in a background thread.

        gitboot discards the results if the process had already evaluated another commit that the instance has not
        accepted.
        """
        unstored = self._unstored.pop(revision, None)
        self._accepted.add(revision)
        if unstored is None:
            return
        if self._cache is not None and unstored.untrusted <= {revision}:
            self._store_executor.submit(unstored.results.store, self._cache, self._closing.is_set)
        else:
            unstored.results.close()

    def wait_until_results_stored(self) -> None:
        self._store_executor.submit(lambda: None).result()

    def end_process_unless_accepted(self, accepted_revision: Revision | None) -> None:
        """End the process unless the instance has accepted all commits that the process evaluated.

        The commit ``accepted_revision`` counts as accepted too.
        """
        if self._evaluated - self._accepted - {accepted_revision}:
            self._end_process()

    def close(self) -> None:
        """End the evaluator process immediately. Results that are not stored yet are lost."""
        self._closing.set()
        self._end_process()
        for pool in (self._conversation_executor, self._store_executor):
            pool.shutdown()
        for unstored in self._unstored.values():
            unstored.results.close()
        if self._cache is not None:
            self._cache.close()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._conversation_executor.submit(process.reap)

    def _start_evaluation(
        self, revision: Revision, base: Commit | None, *, is_retry: bool = False
    ) -> _RunningEvaluation:
        if self._process is not None and self._process.has_ended:
            self._end_process()
        if self._process is None:
            self._process, self._evaluated = Child("gitboot.evaluator", str(self._state)), set()
            # the new process has evaluated only these commits
            self._accepted &= {base.revision} if base is not None else set()
        untrusted = frozenset(self._evaluated - self._accepted)
        self._evaluated |= {revision} if base is None else {revision, base.revision}
        unstored = _UnstoredResults(ResultsFile(self._state), untrusted)
        stop_timer = self._start_timer()
        question = protocol.Question(
            revision,
            base.revision if base is not None else None,
            self._limits,
            self._site,
            stores_results=self._cache is not None,
        )
        conversation = _Conversation(self._process, question, self._report_progress, self._cache, unstored.results)
        answer = self._conversation_executor.submit(conversation.evaluate, base)
        if (replaced := self._unstored.pop(revision, None)) is not None:
            replaced.results.close()
        self._unstored[revision] = unstored
        while len(self._unstored) > _MAX_UNSTORED:
            self._unstored.pop(next(iter(self._unstored))).results.close()
        self._running = _RunningEvaluation(revision=revision, base=base, answer=answer, is_retry=is_retry)
        answer.add_done_callback(lambda _: stop_timer())
        answer.add_done_callback(lambda _: self.on_answer())
        return self._running


class _UnstoredResults(NamedTuple):
    results: ResultsFile
    # the commits that the same process evaluated before and that the instance has not accepted
    untrusted: frozenset[Revision]


class _RunningEvaluation(Struct, frozen=True, kw_only=True):
    revision: Revision
    base: Commit | None
    answer: Future[EvaluationResult]
    is_retry: bool  # whether the process of the first attempt was killed

    def matches(self, revision: Revision, base: Commit | None) -> bool:
        return self.revision == revision and self.base is base


class _EvaluatorKilled(Exception):
    """Raised if another process has killed the evaluator process.

    If the process exceeds a resource limit, gitboot raises a different error.
    """


def assemble_commit(base: Commit | None, revision: Revision, answers: Iterable[protocol.Answer]) -> EvaluationResult:
    """Build a commit from the base and from the answers of an evaluator process.

    Raises the error that the evaluator reported, or EOFError if the answers end early.
    """
    parts = _CommitAssembler(base)
    for answer in answers:
        match answer:
            case protocol.ServerParts(servers=servers):
                parts.add_servers(servers)
            case protocol.CommitEnd() as result:
                return EvaluationResult(
                    commit=parts.build_commit(revision, result),
                    extent=result.extent,
                    new_names=result.new_servers,
                    moves=result.moves,
                    no_site=result.no_site,
                )
            case protocol.RejectedCommit(problems=problems, dated_problems=dated, fleet=fleet):
                raise InvalidRepository(problems, fleet=fleet, dated=dated)
            case protocol.UnreadableClone(message=message, is_corrupt=is_corrupt):
                raise CorruptClone(message) if is_corrupt else SourceError(message)
    raise EOFError


_MAX_COMMITS: Final = 2  # a question contains at most two commits, which are the base and the commit itself


class _Conversation:
    def __init__(
        self,
        process: Child,
        question: protocol.Question,
        report_progress: ReportProgress,
        cache: DiskCache | None,
        results: ResultsFile,
    ) -> None:
        self._process, self._question, self._report_progress = process, question, report_progress
        self._cache, self._results = cache, results
        self._start_s = 0.0  # the monotonic time at which the current evaluation began
        self._wall_s, self._files = question.limits.wall_s(0), 0
        self._commits = 0  # the number of commits whose evaluation has begun
        self._is_late = False

    def evaluate(self, base: Commit | None) -> EvaluationResult:
        """Send the question to the process, and return the result.

        End the process if an answer is invalid or missing.
        """
        self._start_s = time.monotonic()
        try:
            self._process.send(self._question, self._remaining_s)
            return assemble_commit(base, Revision(self._question.revision), self._receive_answers())
        except (EOFError, OSError, ValueError, RecursionError, msgspec.MsgspecError):
            self._process.kill()
            raise self._make_end_error() from None
        finally:
            self._report_progress(1, 1)

    def _remaining_s(self) -> float:
        return self._start_s + self._wall_s - time.monotonic()

    def _receive_answers(self) -> Iterator[protocol.Answer]:
        try:
            for frame in self._process.read_answers(self._remaining_s):
                answer = protocol.decode_answer(frame)
                match answer:
                    case protocol.EvaluationStart(files=None):  # the base and the commit each have their own limits
                        self._commits += 1
                        if self._commits > _MAX_COMMITS:
                            raise ValueError("the evaluator process evaluated more commits than gitboot requested")
                        self._start_s, self._wall_s, self._files = time.monotonic(), self._question.limits.wall_s(0), 0
                    case protocol.EvaluationStart(files=int() as files):
                        self._wall_s, self._files = self._question.limits.wall_s(files), files
                        self._report_progress(0, files + 1)  # the decisions about the servers count as one more step
                    case protocol.FilesRead(files=done) if self._files:
                        self._report_progress(min(done, self._files), self._files + 1)
                    case protocol.CacheLookup() as wanted:
                        self._process.send(look_up(self._cache, wanted), self._remaining_s)
                    case protocol.NewResults(kind=kind, values=values) if self._cache is not None:
                        self._results.add(kind, values)
                yield answer
                if isinstance(answer, protocol.ServerParts) and self._cache is not None:
                    self._results.mark_verified(answer.servers)  # `assemble_commit` has checked these servers
        except TimeoutError:
            self._is_late = True
            self._process.kill()

    def _make_end_error(self) -> InvalidRepository | _EvaluatorKilled:
        status = self._process.wait()
        if self._is_late:
            return NotEvaluated([build_limit_problem(f"the evaluation took longer than {self._wall_s:.0f} s")])
        if status == -signal.SIGXCPU:
            return InvalidRepository([build_limit_problem("the evaluation exceeds its processor time limit")])
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # a library aborts when it cannot allocate memory
            return InvalidRepository([build_limit_problem("the evaluation exceeds its memory limit")])
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return _EvaluatorKilled(
                "another process killed the evaluation twice, perhaps because the host is out of memory"
            )
        return InvalidRepository([build_limit_problem(f"the evaluation process {describe_exit(status)}")])


class _CommitAssembler:
    def __init__(self, base: Commit | None) -> None:
        self._base = base
        self._touched: list[str] = []
        self._decisions: dict[str, Decision] = {}
        self._networks: dict[str, Host] = {}
        self._machines: dict[SystemUuid, Machine] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._written: dict[str, FieldSources] = {}

    @pause_garbage_collection()  # garbage collection is useless here, because the decoded values stay in memory
    def add_servers(self, servers: tuple[protocol.ServerPart, ...]) -> None:
        for server in servers:
            name = server.name
            others = (server.decision, server.machine, server.network, server.labels)
            before = self._base.written if self._base is not None else None
            if before is not None and server.written == before.get(name) and all(each is None for each in others):
                continue  # the server is the same as in the base
            self._touched.append(name)
            if server.decision is not None:
                self._decisions[name] = protocol.decode_verified_decision(server.decision)
            if server.network is not None:
                self._networks[name] = protocol.decode_host(server.network)
            if (machine := server.machine) is not None:
                self._machines[machine.uuid] = machine
            if (labels := server.labels) is not None:
                self._labels[name] = labels
            if (written := server.written) is not None:
                self._written[name] = written

    def build_commit(self, revision: Revision, result: protocol.CommitEnd) -> Commit:
        base, removed = self._base, result.removed_servers
        shared = result.fleetwide.without_servers() if result.fleetwide is not None else base
        if shared is None:
            raise ValueError("the result must contain the fleet-wide values, because there is no base commit")
        before = base or shared
        written, locations = before.written, before.locations
        if shared.shown is None:  # the fleet does not publish pages
            written, locations = {}, SourceLocations()
        commit = replace(
            shared,
            revision=revision,
            decisions=structs.replace(
                shared.decisions,
                revision=revision,
                servers=apply_changes(before.decisions.servers, self._decisions, removed),
                networks=apply_changes(before.decisions.networks, self._networks, removed),
            ),
            machines=apply_differences(before.machines, self._machines, result.removed_machines),
            labels=apply_differences(before.labels, self._labels, removed),
            sites=apply_differences(before.sites, result.sites, result.removed_sites),
            written=apply_differences(written, self._written, removed),
            locations=SourceLocations(
                servers=apply_differences(locations.servers, result.locations, removed),
                shared=apply_differences(locations.shared, result.documents, result.removed_documents),
            ),
            withheld=before.withheld,
            base=base.revision if base is not None else None,
            touched=frozenset({*self._touched, *removed, *result.sites, *result.removed_sites}),
        )
        self._check_parts(commit, result)
        return commit

    def _check_parts(self, commit: Commit, result: protocol.CommitEnd) -> None:
        """Raise ValueError if a server lacks a part, or has a part that belongs to another server.

        gitboot has already checked the base, so it now checks only the servers that differ from the base. Also raise
        ValueError if the machine of an unchanged server was removed or replaced.
        """
        servers, networks = commit.decisions.servers, commit.decisions.networks
        machines = self._base.machines if self._base is not None else {}
        replaced_machines = [machines[uuid] for uuid in (*self._machines, *result.removed_machines) if uuid in machines]
        if not {each.name for each in replaced_machines} <= {*self._touched, *result.removed_servers}:
            raise ValueError("the result removes or replaces the machine of an unchanged server")
        if len({len(each) for each in (servers, networks, commit.labels, commit.machines)}) > 1:
            raise ValueError("a server lacks a part")
        for name in self._touched:
            decision, host = servers.get(name), networks.get(name)
            machine = commit.machines.get(decision.uuid) if decision is not None else None
            named = [each.server for each in (decision, host) if each is not None]
            if machine is None or [machine.name, *named] != [name] * 3 or name not in commit.labels:
                raise ValueError(f"the parts of {name} belong to different servers")
        if not all(name in servers for name in result.new_servers):
            raise ValueError("the list of new servers contains a server that is not in the commit")
