"""What a commit says, as far as an instance knows it: told by an evaluator, a process that may die of a commit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from gitboot.disk_cache import DiskCache
from gitboot.errors import CorruptClone, InvalidRepository, NotEvaluated, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.encoded import Compact
from gitboot.evaluator.evaluation_result import Commit, Evaluated
from gitboot.evaluator.protocol import Allowance, exceeded
from gitboot.evaluator.remote_cache import lookup
from gitboot.evaluator.spooled_results import SpooledResults
from gitboot.frames import OUT_OF_MEMORY, Child, encode, ended
from gitboot.load import Revision
from gitboot.load.machines import Machine
from gitboot.load.merged import merged
from gitboot.model.scalars import SystemUuid
from gitboot.progress import Told, unheard
from gitboot.resolve import Decisions
from gitboot.resolve.source_locations import SourceLocations
from gitboot.resolve.written import Written

V = TypeVar("V")


class Evaluation:
    """Evaluates commits of one clone, each against another one.

    The process that does it is started at the first need, and again after it has died. It ends with this one, however
    that ends.
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
        self._cache = cache  # of results; the process itself does not open it
        self._site = site  # of whose servers alone is asked; None: of all
        self._allowance = allowance or Allowance()
        self._waits = waits  # until the answer has come, instead of giving None
        self._timed = timed  # is called when an evaluation begins, and returns what to call at its end
        self._read = read  # is told how many files of a commit are
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
        """What ``revision`` says, and what it changes against ``base``; without one all of it is new.

        None while that, or what was asked before, is still being evaluated: ask again. Raises `InvalidRepository` with
        all that speaks against it, `NotEvaluated` if the evaluation did not end, and `SourceError` where it cannot be
        read. After the last two, the next call evaluates it again.
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
            self._ask(revision, base, is_again=True)  # perhaps it is no fault of the commit
            return self.evaluate(revision, base)
        except (SourceError, NotEvaluated):
            self._asked = None  # the next time may do better
            raise

    def keep(self, revision: Revision) -> None:
        """Put the results of a commit that was accepted into the cache, in a thread.

        The process may have evaluated another commit before, which was not accepted. Then nothing is stored.
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
        """Wait until the cache has the results of the commits that were accepted."""
        self._storing.submit(lambda: None).result()

    def settle(self, accepted: Revision | None) -> None:
        """End the process if it evaluated any commit that was not accepted; ``accepted`` is about to be kept."""
        if self._evaluated - self._kept - {accepted}:
            self._end_process()

    def close(self) -> None:
        """End the process, whatever it does. Results that are not stored yet are lost."""
        self._closing.set()
        self._end_process()
        for pool in (self._conversations, self._storing):
            pool.shutdown()
        for spooled in self._spooled.values():
            spooled.results.close()
        if self._cache is not None:
            self._cache.close()

    def _end_process(self) -> None:
        """Kill the process. The thread that talks with it reaps it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._conversations.submit(process.put_away)

    def _ask(self, revision: Revision, base: Commit | None, *, is_again: bool = False) -> _Asked:
        if self._process is not None and self._process.has_ended:
            self._end_process()
        if self._process is None:
            self._process, self._evaluated = Child("gitboot.evaluator", str(self._state)), set()
            self._kept.clear()
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
        results = spooled.results if self._cache is not None else None
        answer = self._conversations.submit(_converse, self._process, question, base, self._read, self._cache, results)
        self._spool(revision, spooled)
        self._asked = _Asked(revision=revision, base=base, answer=answer, is_again=is_again)
        answer.add_done_callback(lambda _: stop())
        answer.add_done_callback(lambda _: self.on_answer())
        return self._asked

    def _spool(self, revision: Revision, spooled: _Spooled) -> None:
        """Hold results until the commit is accepted, of the last few commits."""
        if (before := self._spooled.pop(revision, None)) is not None:
            before.results.close()
        self._spooled[revision] = spooled
        while len(self._spooled) > _MOST_SPOOLED:
            self._spooled.pop(next(iter(self._spooled))).results.close()


_MOST_SPOOLED: Final = 8


class _Spooled(NamedTuple):
    """Results of an evaluation, and which commits that were not accepted its process had evaluated before."""

    results: SpooledResults
    untrusted: frozenset[Revision]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A question, and its answer once it has come."""

    revision: Revision
    base: Commit | None
    answer: Future[Evaluated]
    is_again: bool  # after a process was killed over it

    def is_of(self, revision: Revision, base: Commit | None) -> bool:
        return self.revision == revision and self.base is base


class _Killed(Exception):
    """Somebody killed the process: its limits do not do that."""


def _converse(
    process: Child,
    question: protocol.Question,
    base: Commit | None,
    read: Told,
    cache: DiskCache | None,
    results: SpooledResults | None,
) -> Evaluated:
    """Ask, and wait for the answer; if none comes, the process has ended, or is ended."""
    frames = _Frames(process, question.allowance, read, cache, results)
    try:
        process.send(question, frames.left_s)
        return assembled(base, Revision(question.revision), frames)
    except (EOFError, OSError, ValueError, RecursionError, msgspec.MsgspecError):  # or the process sends no answer
        process.kill()
        raise frames.end() from None
    finally:
        read(1, 1)


def assembled(base: Commit | None, revision: Revision, answers: Iterable[protocol.Answer]) -> Evaluated:
    """What an evaluator says of a commit, put together with what is known of its base.

    Raises what it says instead, and EOFError where it does not come to an end.
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


class _Frames:
    """What an evaluator sends, until it ends or has to be ended."""

    def __init__(
        self,
        process: Child,
        allowance: Allowance,
        read: Told,
        cache: DiskCache | None = None,
        results: SpooledResults | None = None,
    ) -> None:
        self._process, self._allowance, self._read, self._files = process, allowance, read, 0
        self._cache, self._results = cache, results
        self._began, self._wall_s = time.monotonic(), allowance.wall_s(0)
        self._commits = 0  # that the process has begun
        self._late = False

    def left_s(self) -> float:
        """Return the seconds that the evaluation may still take."""
        return self._began + self._wall_s - time.monotonic()

    def __iter__(self) -> Iterator[protocol.Answer]:
        try:
            for frame in self._process.answers(self.left_s):
                answer = protocol.answer(frame)
                match answer:
                    case protocol.Begun(files=None):
                        self._begin()
                    case protocol.Begun(files=int() as files):
                        self._wall_s, self._files = self._allowance.wall_s(files), files
                        self._read(0, files + 1)  # what was read is still to be decided
                    case protocol.Counted(files=done) if self._files:
                        self._read(min(done, self._files), self._files + 1)
                    case protocol.Wanted() as wanted:
                        self._process.send(lookup(self._cache, wanted), self.left_s)
                    case protocol.NewResults(kind=kind, values=values) if self._results is not None:
                        self._results.add(kind, values)
                yield answer
        except TimeoutError:
            self._late = True
            self._process.kill()

    def _begin(self) -> None:
        """Give the base, and then the commit, the time that each may take."""
        self._commits += 1
        if self._commits > _MOST_COMMITS:
            raise ValueError("more commits than gitboot asked for")
        self._began, self._wall_s, self._files = time.monotonic(), self._allowance.wall_s(0), 0

    def end(self) -> InvalidRepository | _Killed:
        """How the process ended, as an error."""
        status = self._process.wait()
        if self._late:
            return NotEvaluated([exceeded(f"it is not evaluated after {self._wall_s:.0f} s")])
        if status == -signal.SIGXCPU:
            return InvalidRepository([exceeded("it takes more of the processor's time to evaluate than it may")])
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # pydantic aborts where it can have no memory
            return InvalidRepository([exceeded("it takes more memory to evaluate than it may")])
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            return _Killed("its evaluation was killed twice, as where a machine has no memory left")
        return InvalidRepository([exceeded(f"its evaluation ended {ended(status)}")])


class _Assembly:
    """A commit while it is put together, of its base and of what is said to be another."""

    def __init__(self, base: Commit | None) -> None:
        self._base = base
        self._touched: list[str] = []
        self._decisions: dict[str, bytes] = {}
        self._networks: dict[str, bytes] = {}
        self._machines: dict[SystemUuid, Machine] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._written: dict[str, Written] = {}

    def take(self, servers: tuple[protocol.ServerPart, ...]) -> None:
        for server in servers:
            name = server.name
            if self._is_as_before(server):
                continue
            self._touched.append(name)
            if (decision := server.decision) is not None:
                self._decisions[name] = decision
            if (network := server.network) is not None:
                self._networks[name] = network
            if (machine := server.machine) is not None:
                self._machines[machine.uuid] = machine
            if (labels := server.labels) is not None:
                self._labels[name] = labels
            if (written := server.written) is not None:
                self._written[name] = written

    def _is_as_before(self, server: protocol.ServerPart) -> bool:
        """Whether a server was only explained again, as its base explains it."""
        others = (server.decision, server.machine, server.network, server.labels)
        if self._base is None or any(each is not None for each in others):
            return False
        return server.written == self._base.written.get(server.name)

    def commit(self, revision: Revision, result: protocol.CommitEnd) -> Commit:
        base = self._base if self._base is not None else _nothing(result)
        gone = result.gone
        decisions = replace(
            base.decisions,
            revision=revision,
            servers=_having(base.decisions.servers, self._decisions, gone),
            networks=_having(base.decisions.networks, self._networks, gone),
        )
        commit = replace(
            base,
            revision=revision,
            decisions=decisions,
            machines=merged(base.machines, self._machines, result.gone_machines),
            labels=merged(base.labels, self._labels, gone),
            sites=merged(base.sites, result.sites, result.gone_sites),
            written=merged(base.written, self._written, gone),
            locations=SourceLocations(
                servers=merged(base.locations.servers, result.locations, gone),
                shared=merged(base.locations.shared, result.documents, result.gone_documents),
            ),
            base=self._base.revision if self._base is not None else None,
            touched=frozenset({*self._touched, *gone, *result.sites, *result.gone_sites}),
        )
        return commit if result.fleetwide is None else _fleetwide(commit, result.fleetwide)


def _nothing(result: protocol.CommitEnd) -> Commit:
    """A commit without servers, to begin with."""
    said = result.fleetwide
    assert said is not None  # noqa: S101 - all of a commit is said where there is no base
    decisions = Decisions(
        revision="",
        base_url=said.base_url,
        outputs=frozenset(said.outputs),
        evidence=said.evidence,
        servers=Compact({}, protocol.decision, protocol.bytes_of),
        networks=Compact({}, protocol.network, encode),
        sites={},
        unknown=None,
        unknown_not_found=said.unknown_not_found,
        warnings=(),
        dated=(),
    )
    return Commit(
        revision=Revision(""),
        fleet=said.fleet,
        decisions=decisions,
        machines={},
        sites={},
        labels={},
        opt_outs=(),
        minimum_versions={},
    )


def _fleetwide(commit: Commit, said: protocol.FleetPart) -> Commit:
    decisions = replace(
        commit.decisions,
        base_url=said.base_url,
        outputs=frozenset(said.outputs),
        evidence=said.evidence,
        sites=said.sites,
        unknown=said.unknown,
        unknown_not_found=said.unknown_not_found,
        warnings=said.warnings,
        dated=said.dated,
    )
    return replace(
        commit,
        fleet=said.fleet,
        decisions=decisions,
        opt_outs=said.opt_outs,
        minimum_versions=said.minimum_versions,
        site=said.site,
        written=commit.written if said.shown is not None else {},
        locations=commit.locations if said.shown is not None else SourceLocations(),
        shown=said.shown,
    )


def _having(before: Mapping[str, V], changed: Mapping[str, bytes], gone: tuple[str, ...]) -> Compact[V]:
    assert isinstance(before, Compact)  # noqa: S101 - all that comes from here is
    return before.having(changed, gone)
