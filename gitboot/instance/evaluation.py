"""What a commit says, as far as an instance knows it: told by an evaluator, a process that may die of a commit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from gitboot.disk_cache import DiskCache
from gitboot.errors import CorruptClone, InvalidRepository, NotEvaluated, SourceError
from gitboot.evaluate import wire
from gitboot.evaluate.encoded import Compact
from gitboot.evaluate.limits import Allowance, exceeded
from gitboot.evaluate.rows import is_result
from gitboot.frames import OUT_OF_MEMORY, Child, encode, ended
from gitboot.instance.commit import Commit, Evaluated
from gitboot.instance.laps import Laps, Stage
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
        laps: Laps | None = None,
        read: Told = unheard,
        site: str | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        self._state = state
        self._cache = cache  # of results; the process itself does not open it
        self._site = site  # of whose servers alone is asked; None: of all
        self._allowance = allowance or Allowance()
        self._waits = waits  # until the answer has come, instead of giving None
        self._laps = laps or Laps()
        self._read = read  # is told how many files of a commit are
        self.on_answer: Callable[[], None] = lambda: None
        self._process: Child | None = None
        self._asked: _Asked | None = None
        self._conversations = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")

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
        """Put the results of a commit that was accepted into the cache, in a thread."""
        if self._cache is not None and self._process is not None and not self._process.has_ended:
            limit_s = self._allowance.wall_s(0)
            self._conversations.submit(_store_results, self._process, revision, self._cache, limit_s)

    def drop(self) -> None:
        """End the process: it evaluated a commit that was not accepted. Its results go with it."""
        if self._process is not None and (self._asked is None or self._asked.answer.done()):
            self._process.kill()
            self._put_away()

    def close(self) -> None:
        """End the process, whatever it is at."""
        if self._process is not None:
            self._process.kill()
        cache, self._cache = self._cache, None
        if cache is not None:
            self._conversations.submit(cache.close)  # in the thread that has used it
        self._conversations.shutdown()
        self._put_away()

    def _put_away(self) -> None:
        """Reap a process that has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.put_away()

    def _ask(self, revision: Revision, base: Commit | None, *, is_again: bool = False) -> _Asked:
        if self._process is not None and self._process.has_ended:
            self._put_away()
        if self._process is None:
            self._process = Child("gitboot.evaluate", str(self._state))
        lap = self._laps.start()
        question = wire.Question(revision, base.revision if base is not None else None, self._allowance, self._site)
        answer = self._conversations.submit(_converse, self._process, question, base, self._read, self._cache)
        self._asked = _Asked(revision=revision, base=base, answer=answer, is_again=is_again)
        answer.add_done_callback(lambda _: lap(Stage.EVALUATE))
        answer.add_done_callback(lambda _: self.on_answer())
        return self._asked


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
    process: Child, question: wire.Question, base: Commit | None, read: Told, cache: DiskCache | None
) -> Evaluated:
    """Ask, and wait for the answer; where none comes, the process has ended."""
    frames = _Frames(process, question.allowance, read, cache)
    try:
        process.send(question)
        return assembled(base, Revision(question.revision), frames)
    except (EOFError, BrokenPipeError):
        raise frames.end() from None
    finally:
        read(1, 1)


def _store_results(process: Child, revision: Revision, cache: DiskCache, limit_s: float) -> None:
    """Insert what the cache lacks of an accepted commit. A process that ends meanwhile leaves the rest out."""
    began = time.monotonic()
    try:
        process.send(wire.Keep(revision))
        for frame in process.answers(lambda: began + limit_s - time.monotonic()):
            match wire.answer(frame):
                case wire.NewResults(kind=kind, values=values):
                    cache.insert_many(kind, {key: value for key, value in values.items() if is_result(kind, value)})
                case wire.ResultsEnd():
                    return
    except (TimeoutError, BrokenPipeError, ValueError, msgspec.MsgspecError):
        process.kill()


def assembled(base: Commit | None, revision: Revision, answers: Iterable[wire.Answer]) -> Evaluated:
    """What an evaluator says of a commit, put together with what is known of its base.

    Raises what it says instead, and EOFError where it does not come to an end.
    """
    parts = _Assembly(base)
    for answer in answers:
        match answer:
            case wire.ServerParts(servers=servers):
                parts.take(servers)
            case wire.CommitEnd() as result:
                commit = parts.commit(revision, result)
                return Evaluated(
                    commit=commit,
                    changes=result.extent,
                    names=result.come,
                    moves=result.moves,
                    no_site=result.no_site,
                )
            case wire.Refused(problems=problems, dated=dated, fleet=fleet):
                raise InvalidRepository(problems, fleet=fleet, dated=dated)
            case wire.Unreadable(message=message, is_corrupt=is_corrupt):
                raise CorruptClone(message) if is_corrupt else SourceError(message)
    raise EOFError


class _Frames:
    """What an evaluator sends, until it ends or has to be ended."""

    def __init__(self, process: Child, allowance: Allowance, read: Told, cache: DiskCache | None) -> None:
        self._process, self._allowance, self._read, self._files = process, allowance, read, 0
        self._cache = cache
        self._began, self._wall_s = time.monotonic(), allowance.wall_s(0)
        self._late = False

    def __iter__(self) -> Iterator[wire.Answer]:
        try:
            for frame in self._process.answers(lambda: self._began + self._wall_s - time.monotonic()):
                answer = wire.answer(frame)
                match answer:
                    case wire.Begun(files=files):
                        self._wall_s, self._files = self._allowance.wall_s(files), files
                        self._read(0, files + 1)  # what was read is still to be decided
                    case wire.Counted(files=done) if self._files:
                        self._read(min(done, self._files), self._files + 1)
                    case wire.Wanted(kind=kind, keys=keys):
                        values = self._cache.get_many(kind, keys) if self._cache is not None else {}
                        self._process.send(wire.Known(dict(values)))
                yield answer
        except TimeoutError:
            self._late = True
            self._process.kill()

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

    def take(self, servers: tuple[wire.ServerPart, ...]) -> None:
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

    def _is_as_before(self, server: wire.ServerPart) -> bool:
        """Whether a server was only explained again, as its base explains it."""
        others = (server.decision, server.machine, server.network, server.labels)
        if self._base is None or any(each is not None for each in others):
            return False
        return server.written == self._base.written.get(server.name)

    def commit(self, revision: Revision, result: wire.CommitEnd) -> Commit:
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


def _nothing(result: wire.CommitEnd) -> Commit:
    """A commit without servers, to begin with."""
    said = result.fleetwide
    assert said is not None  # noqa: S101 - all of a commit is said where there is no base
    decisions = Decisions(
        revision="",
        base_url=said.base_url,
        outputs=frozenset(said.outputs),
        evidence=said.evidence,
        servers=Compact({}, wire.decision, wire.bytes_of),
        networks=Compact({}, wire.network, encode),
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


def _fleetwide(commit: Commit, said: wire.FleetPart) -> Commit:
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
