"""Standing by: another host's instance acts, and this one takes its place when the lease of their ledger is free."""

from __future__ import annotations

import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from gitboot.background_threads import BackgroundThread
from gitboot.child_processes import spawn
from gitboot.controller.checkpoint import WORTH
from gitboot.controller.current_plans import WindowWatch
from gitboot.controller.instance import state_directory as state
from gitboot.controller.instance.assembly import named_ledger
from gitboot.controller.instance.git_source import look_for_repository, source_of
from gitboot.controller.instance.settings import Settings
from gitboot.controller.instance.state_directory import private
from gitboot.disk_cache import this_program
from gitboot.errors import GitbootError, LedgerError, LedgerLeft, LedgerUnfinished
from gitboot.evaluator.client import Evaluation
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.revision import Revision
from gitboot.git.clone import Source
from gitboot.git.fetch import FetchProcess
from gitboot.jsonio import decoder, format_instant
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.location import address_beside
from gitboot.ledger.store import mark_of, read_mark, write_mark
from gitboot.publish.tree_changes import WindowEnds, end_windows
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import Status

if TYPE_CHECKING:
    from gitboot.ledger.postgresql import PostgresRenewing

LOOK_S: Final = 2.0  # between two looks at the lease
_PREPARE_S: Final = 3600.0  # between two times that the tree is brought near to what is published
_FIRST_PAUSE_S: Final = 60.0  # where that came to nothing; twice as long each time


_STANDING_BY: Final = "StandingBy"


class Ending(Protocol):
    """An end that may be asked for."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is, or for so long; say whether it was."""


class Standby:
    """The lease of the ledger as an instance waits for it; a ledger in the state directory has none.

    Before it has once been there, a ledger that cannot be reached is an error: it may be another that was meant.
    """

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[Event], None],
        clock: Callable[[], datetime],
        preparing: Sequence[str] = (),  # the command that brings the tree near to what is published; (): none does
    ) -> None:
        self._settings, self._tell, self._clock, self._preparing = settings, tell, clock, preparing
        look_for_repository(settings)  # before anything is made
        with private(settings.state):
            self.address = address_beside(named_ledger(settings))
        if self.address is not None:
            this_program()  # which is on the disk still: what another one has prepared does not count
        self.is_patient = False  # whether a ledger that cannot be reached is waited for
        self._reference = settings.git.reference  # that is fetched meanwhile: of --rev, or of the acting instance
        self._accepted: str | None = None  # the commit that the acting instance has accepted
        self._woken = threading.Event()  # whether there is anything new to fetch, or to evaluate
        self._has_failed, self._said = False, ""
        self._windows = WindowWatch(partial(end_windows, settings.output, WindowEnds()))

    def wait(self, ending: Callable[[], AbstractContextManager[Ending]]) -> bool:
        """Wait while another instance has the lease; False: the end was asked for meanwhile.

        Who comes first once it is free, takes it. Meanwhile gitboot fetches, evaluates the commit that the other
        instance has accepted, and brings the tree near to what that instance publishes.
        """
        if self.address is None:
            return True
        from gitboot.ledger.postgresql import PostgresRenewing

        with ExitStack() as stack:
            stack.enter_context(state.locked(self._settings.state))
            end = stack.enter_context(ending())
            is_large = stack.enter_context(
                _following(
                    self._settings,
                    self._tell,
                    self._clock,
                    self._woken,
                    lambda: (self._reference, self._accepted),
                )
            )
            preparation = stack.enter_context(closing(_Preparation(self._preparing, self._settings.state, self._tell)))
            looking, since = stack.enter_context(closing(PostgresRenewing(self.address))), self._clock()
            if self._has_failed:
                end.wait(LOOK_S)
                self._has_failed = False
            while not end.wait(0):
                if (waits := self._looked(looking)) is None:
                    return True
                if waits[0] == _STANDING_BY and is_large():
                    preparation.look()
                self._say(*waits, since, preparation.said)
                wait_s = min(LOOK_S, self._settings.lease_s / 5)
                if not preparation.is_running:
                    wait_s = min(wait_s, self._end_windows())
                end.wait(wait_s)
            return False

    def _looked(self, looking: PostgresRenewing) -> tuple[str, str] | None:
        """Why it waits: a word, and in words; None: the lease can be taken."""
        try:
            other = looking.other_than(Holder.of(self._settings.state))
        except LedgerError as error:
            if not self.is_patient:
                self._end_windows()  # the service manager starts it again, until the ledger answers
                raise
            return _reason(error), str(error)
        self.is_patient = True
        if other is not None:
            self._note_progress(looking.progress())
            self._reference = self._settings.git.reference or looking.fact("branch") or self._reference
            if (accepted := looking.fact("accepted")) not in (None, self._accepted):
                self._accepted = accepted
                self._woken.set()
        return (_STANDING_BY, f"the instance {other} acts by {looking.name}") if other is not None else None

    def _end_windows(self) -> float:
        """End the windows that are over in the tree of this host; return the seconds until the next window ends."""
        _, events = self._windows.end(self._clock())
        for event in events:
            self._tell(event)
        next_end = self._windows.next_end
        return math.inf if next_end is None else max((next_end - self._clock()).total_seconds(), 0)

    def _note_progress(self, found: tuple[str, int] | None) -> None:
        """Note how far the ledger has come: so a backup that is put in its place is known for one by who acts next."""
        path = mark_of(self._settings.state / state.LEDGER)
        before = read_mark(path)
        if found is not None and (before is None or (before[0] == found[0] and before[1] < found[1])):
            with suppress(OSError):
                write_mark(path, *found)

    def fail(self, error: LedgerError) -> None:
        """Note that the ledger could not be read once the lease was taken: it is waited for."""
        self._has_failed = True
        self._say(_reason(error), str(error), self._clock())

    def _say(self, reason: str, message: str, since: datetime, of_tree: str = "") -> None:
        """Tell what has changed, and leave it for `gitboot status`, with what there is to say of the tree."""
        at = self._clock()
        if message != self._said:
            self._tell(Event(at=at, type=reason, message=message, warning=reason != _STANDING_BY))
            self._said = message
        whole = "; ".join(filter(None, (message, of_tree)))
        acting = Condition(type="Acting", status=False, reason=reason, message=whole, since=since)
        left = state.LeftStatus(self._settings.state, self._clock)
        left.write({**Status(conditions=(acting,)).facts(), "at": format_instant(at)})


def _reason(error: LedgerError) -> str:
    """Why it waits, as a word."""
    if isinstance(error, (LedgerLeft, LedgerUnfinished)):
        return type(error).__name__
    return "LedgerFailed"


class _Preparation:
    """The process that brings the tree near to what is published, now and again; it may be killed at any instant."""

    def __init__(self, command: Sequence[str], directory: Path, tell: Callable[[Event], None]) -> None:
        self._command, self._directory, self._tell = command, directory, tell
        self._process: subprocess.Popen[bytes] | None = None
        self._due, self._pause_s = time.monotonic(), _FIRST_PAUSE_S
        self._last: Event | None = None  # that was told
        self.said = ""  # how far the tree has come

    @property
    def is_running(self) -> bool:
        """Whether it is writing the tree."""
        return self._process is not None

    def look(self) -> None:
        """Start it where it is due, and tell what came of it; of the thread with which it is to end."""
        if self._process is not None and (status := self._process.poll()) is not None:
            self._end(self._process, status)
        if self._command and self._process is None and time.monotonic() >= self._due:
            with suppress(OSError):  # there is no room for one more process, and nothing else waits for it
                self._process = spawn(self._command, stdout=subprocess.PIPE)
                self.said = self.said or "its tree is being made"

    def close(self) -> None:
        """Whoever acts has the tree for itself."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        shutil.rmtree(self._directory / state.PREPARING, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes], status: int) -> None:
        self._process, self._due = None, time.monotonic() + (_PREPARE_S if status == 0 else self._pause_s)
        self._pause_s = _FIRST_PAUSE_S if status == 0 else min(2 * self._pause_s, _PREPARE_S)
        output, _ = process.communicate()
        try:
            event: Event = _event(output)
        except msgspec.DecodeError:  # it was killed, or has said on standard error what it came to
            return
        if status == 0:
            self.said = f"its tree is as of {event.facts['asOf']}"
        elif not self.said.startswith("its tree is as of"):
            self.said = f"its tree could not be made: {event.message}"
        if self._last is None or (event.type, event.message) != (self._last.type, self._last.message):
            self._tell(event)
        self._last = event


_event: Final = decoder(Event)


@contextmanager
def _following(
    settings: Settings,
    tell: Callable[[Event], None],
    clock: Callable[[], datetime],
    woken: threading.Event,
    followed: Callable[[], tuple[str | None, str | None]],
) -> Iterator[Callable[[], bool]]:
    """Fetch the branch of the acting instance, and evaluate the commit that it accepted, until the block ends.

    ``followed`` returns the branch and the accepted commit. gitboot starts to fetch when it returns a branch. The
    results are in the cache when this instance takes over. After a failure, gitboot tries again. It reports failures
    only after the take-over. Yields a function that returns whether the fleet is large enough to prepare its tree.
    """
    ended, large = threading.Event(), threading.Event()

    def warn(message: str) -> None:
        tell(Event(at=clock(), type="KeptUnusable", message=message, warning=True))

    cache = state.open_cache(settings.state, warn)
    evaluation = Evaluation(settings.state, allowance=settings.allowance, site=settings.site, cache=cache)
    evaluation.on_answer = woken.set

    def follow(fetcher: FetchProcess) -> None:
        commit: Commit | None = None
        source: Source | None = None
        while not ended.is_set():
            woken.clear()
            reference, accepted = followed()
            if reference is None:
                woken.wait(LOOK_S)
                continue
            with suppress(GitbootError):
                if source is None or source.reference != reference:
                    of_branch = replace(settings, git=replace(settings.git, reference=reference))
                    source = source_of(of_branch, settings.state, fetcher)
                source.fetch()
            with suppress(GitbootError):  # also while the remote cannot be reached
                revision = Revision(accepted) if accepted is not None else None
                is_new = revision is not None and (commit is None or revision != commit.revision)
                if source is not None and revision is not None and is_new and source.has(revision):
                    evaluated = evaluation.evaluate(revision, commit)
                    if evaluated is not None:
                        commit = evaluated.commit
                        evaluation.keep(revision)
                if commit is not None and len(commit.decisions.servers) >= WORTH:
                    large.set()
            woken.wait(settings.poll_s)

    with closing(evaluation):
        with closing(FetchProcess(settings.git.fetch_mebibytes)) as fetcher:
            thread = BackgroundThread(partial(follow, fetcher), name="follow")
            thread.start()
            try:
                yield large.is_set
            finally:
                ended.set()
                woken.set()
        thread.join()  # its fetcher has been ended
