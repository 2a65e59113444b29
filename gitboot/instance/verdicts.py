"""The verdicts on the newest commits, brought to the forge beside the reconciling: in order, until each is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from gitboot.background_threads import BackgroundThread
from gitboot.controller.commit_verdicts import accepted_words, held_words, invalid_words
from gitboot.controller.forge import CommitVerdict, Forge, Project, Witnessed, judgement_in
from gitboot.controller.instance.settings import Settings
from gitboot.errors import ForgeRefused, HostUnreachable, SourceError
from gitboot.git.clone import Source
from gitboot.ledger.instance_tables import status_key
from gitboot.ledger.store import Store
from gitboot.load.snapshot import Revision
from gitboot.problems.codes import Severity
from gitboot.status.instance_status import Status, Telling

_FIRST_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 600.0
_QUIET_S: Final = 300.0  # for which a ledger has come no further before it is told how far that is
_MOST_QUIETS: Final = 12  # after so many of them it is told in any case
_MOST: Final = 20  # commits whose verdict waits; those before them are told no more


def verdicts_of(status: Status, change: int) -> list[CommitVerdict]:
    """What an instance makes of the newest commits, the oldest first; nothing while it stands back.

    The newest has none while it has come to nothing.
    """
    stands_back = any(each.type == "LedgerNamed" and not each.status for each in status.conditions)
    if status.attempted is None or status.ledger is None or stands_back:
        return []
    said = [(each.commit, each.says) for each in status.passed[-_MOST:]]
    if status.held is not None:
        said.append((status.attempted, held_words(status.held.guards)))
    elif status.accepted == status.attempted:
        by = [each.by for each in status.acknowledged if each.commit == status.attempted]
        said.append((status.attempted, accepted_words(by)))
    elif any(each.severity is Severity.ERROR for each in status.problems):
        said.append((status.attempted, invalid_words(status.problems)))
    return [
        CommitVerdict(commit=commit, judgement=judgement_in(says), says=says, ledger=status.ledger, change=change)
        for commit, says in said
    ]


class Verdicts:
    """What there is to tell a forge, and a thread that does; `note` never waits for it.

    How far the ledger has come is told as well: at once with a new verdict, else when it has come no further for a
    while. An older copy of the ledger is known by that, so with ``asks`` nothing is told before `ask` was answered.
    """

    def __init__(
        self,
        forge: Forge,
        wake: Callable[[], None],
        *,
        first_retry_s: float = _FIRST_RETRY_S,
        quiet_s: float = _QUIET_S,
        asks: bool = False,
    ) -> None:
        self._forge, self._wake, self._first_retry_s, self._quiet_s = forge, wake, first_retry_s, quiet_s
        self._changed = threading.Condition()
        self._waiting: dict[str, CommitVerdict] = {}  # by commit, in the order of their coming
        self._noted: dict[str, CommitVerdict] = {}  # by commit, the last that was noted
        self._newest: CommitVerdict | None = None  # of them
        self._further: tuple[float, float] | None = None  # when the ledger came further than was told: first, last
        self._key = b""  # of the ledger, once `ask` was called
        self._telling = Telling(asked=not asks)
        self._may_tell = not asks
        self._ending = False
        self._thread = BackgroundThread(self._keep_telling, name="forge", on_death=self._note_death)
        self._thread.start()

    @property
    def telling(self) -> Telling:
        """How it fares."""
        return self._telling

    def ask(self, commits: Sequence[str], ledger: str, key: bytes) -> None:
        """Ask what the forge knows of a ledger, by the newest of these commits of which it does; once that is known, no
        more. Only statuses with a proof by the ledger's ``key`` count, and all that is told from now on has one.

        Waits for the forge: not for the thread that reconciles. Without ``commits`` it is not asked, and goes for asked
        in vain.
        """
        if self._may_tell:
            return
        try:
            found = self._forge.witnessed(commits, ledger, key) if commits else Witnessed()
        except (HostUnreachable, ForgeRefused) as error:
            telling, may_tell = replace(self._telling, failure=(type(error).__name__, str(error)), asked=True), False
        else:
            telling = replace(self._telling, failure=None, asked=True, known=found.proven, claimed=found.claimed)
            may_tell = bool(commits)
        with self._changed:
            self._key = key
            turned, self._telling, self._may_tell = telling != self._telling, telling, may_tell
            self._changed.notify_all()
        if turned:
            self._wake()

    def note(self, verdicts: Iterable[CommitVerdict]) -> None:
        """Have each told, if it says anything new."""
        with self._changed:
            for verdict in verdicts:
                before, newest = self._noted.pop(verdict.commit, None), self._newest
                self._noted[verdict.commit] = self._newest = verdict
                if before is None or replace(verdict, change=before.change) != before:
                    self._have_told(verdict)
                elif newest is not None and verdict.change != newest.change:
                    now = time.monotonic()
                    self._further = (self._further[0] if self._further is not None else now, now)
            while len(self._noted) > 2 * _MOST:
                del self._noted[next(iter(self._noted))]
            self._changed.notify_all()

    def close(self, *, patience_s: float = 0) -> None:
        """End; what waits is told before that, if it takes no longer than so many seconds."""
        with self._changed:
            self._have_told_how_far(at_once=True)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting or not self._can_be_told, patience_s)
            self._ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s=1)  # one that hangs in the network ends with the process

    @property
    def _can_be_told(self) -> bool:
        return self._may_tell and self._telling.failure is None

    def _have_told(self, verdict: CommitVerdict) -> None:
        self._further = None
        self._waiting.pop(verdict.commit, None)
        self._waiting[verdict.commit] = verdict
        while len(self._waiting) > _MOST:
            del self._waiting[next(iter(self._waiting))]

    def _have_told_how_far(self, *, at_once: bool = False) -> float | None:
        """Have it told how far the ledger has come, if that is due; return after how many seconds it will be."""
        if self._further is None or self._newest is None:
            return None
        first, last = self._further
        due_s = min(last + self._quiet_s, first + _MOST_QUIETS * self._quiet_s) - time.monotonic()
        if due_s > 0 and not at_once:
            return due_s
        self._have_told(self._newest)
        return None

    def _keep_telling(self) -> None:
        failures = 0
        while (verdict := self._next()) is not None:
            wait_s = self._told(verdict, failures)
            failures = 0 if wait_s is None else failures + 1
            if wait_s is not None:
                with self._changed:
                    self._changed.wait_for(lambda: self._ending, wait_s)

    def _note_death(self, message: str) -> None:
        with self._changed:
            self._telling = replace(self._telling, failure=("ThreadDied", message))
            self._changed.notify_all()
        self._wake()

    def _next(self) -> CommitVerdict | None:
        with self._changed:
            while not self._ending:
                wait_s = self._have_told_how_far()
                if self._waiting and self._may_tell:
                    return next(iter(self._waiting.values()))
                self._changed.wait(wait_s if self._may_tell else None)
            return None

    def _write(self, verdict: CommitVerdict) -> None:
        """Write what does not stand there already, as it does after a restart.

        GitHub takes 1000 for a commit. Where it takes no more that only say how far the ledger has come, it knows less.
        """
        verdict = verdict.proven(self._key)
        known = self._forge.latest([verdict.commit], verdict.ledger)
        try:
            if known is None or known.description != verdict.description:
                self._forge.write(verdict)
        except ForgeRefused:
            if known is None or not known.is_proven(self._key):
                raise
            if replace(known, change=verdict.change).proven(self._key).description != verdict.description:
                raise

    def _told(self, verdict: CommitVerdict, failures: int) -> float | None:
        """Tell it; return after how many seconds to try again, None if that need not be."""
        wait_s: float | None = None
        telling = replace(self._telling, commit=verdict.commit, says=verdict.says, failure=None)
        try:
            self._write(verdict)
        except (HostUnreachable, ForgeRefused) as error:
            telling = replace(self._telling, failure=(type(error).__name__, str(error)))
            asked = error.retry_after_s if isinstance(error, HostUnreachable) else None
            wait_s = min(max(self._first_retry_s * 2 ** min(failures, 10), asked or 0), _LONGEST_RETRY_S)
        with self._changed:
            if wait_s is None and self._waiting.get(verdict.commit) == verdict:
                del self._waiting[verdict.commit]
            turned, self._telling = telling != self._telling, telling
            self._changed.notify_all()
        if turned:
            self._wake()
        return wait_s


class Witness:
    """A forge that is asked how far the ledger of an instance had come, before the instance tells it anything."""

    def __init__(self, verdicts: Verdicts, source: Source, ledger: str, key: bytes) -> None:
        self._verdicts, self._source, self._ledger, self._key = verdicts, source, ledger, key

    @property
    def telling(self) -> Telling:
        """How it fares, and what it knew."""
        return self._verdicts.telling

    def ask(self, *, fetched: bool) -> None:
        """Ask it by the newest commits that there are, until it has answered."""
        commits: tuple[Revision, ...] = ()
        with suppress(SourceError):
            commits = line_of(self._source) if fetched else ()
        self._verdicts.ask(commits, self._ledger, self._key)


def witness_of(verdicts: Verdicts, source: Source, store: Store) -> Witness:
    """Return the witness of the ledger of an instance that acts."""
    return Witness(verdicts, source, store.progress[0], status_key(store))


def line_of(source: Source) -> tuple[Revision, ...]:
    """The first-parent line from the newest commit that was fetched to the accepted one, the newest first."""
    latest, accepted = source.latest(), source.accepted()
    if latest is None:
        return ()
    between = tuple(revision for revision, _ in reversed(source.merges(accepted, latest))) or (latest,)
    return between if accepted is None or accepted in between else (*between, accepted)


def project_of(settings: Settings) -> Project | None:
    """Return the project that --forge names; raises `UsageError`."""
    if (told := settings.forge) is None:
        return None
    return Project.parse(told.project, told.api, allow_token_over_http=told.allow_token_over_http)


def forge_of(settings: Settings) -> Forge | None:
    """The forge that settings name, if they do; raises `UsageError` where it cannot be meant."""
    told, project = settings.forge, project_of(settings)
    if told is None or project is None:
        return None
    return Forge(
        project,
        told.token,
        name=told.name,
        link=told.link,
        ca_bundle=settings.git.ca_bundle,
        allow_token_over_http=told.allow_token_over_http,
    )


@contextmanager
def telling(settings: Settings, wake: Callable[[], None], *, patience_s: float = 0) -> Iterator[Verdicts | None]:
    """Whoever tells the forge, as long as the block runs, and so many seconds longer for what waits then."""
    if (forge := forge_of(settings)) is None:
        yield None
        return
    verdicts = Verdicts(forge, wake, asks=True)
    try:
        yield verdicts
    finally:
        verdicts.close(patience_s=patience_s)
