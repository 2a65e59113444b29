"""The verdicts on the newest commits, brought to the forge beside the reconciling: in order, until each is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from gitboot.errors import ForgeRefused, HostUnreachable
from gitboot.forge import CommitVerdict, Forge, Project, judgement_in
from gitboot.instance.judging import accepted_words, held_words, invalid_words
from gitboot.instance.settings import Settings
from gitboot.problems.problem import Severity
from gitboot.status import Status, Telling

_FIRST_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 600.0
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
    """What there is to tell a forge, and a thread that does; `note` never waits for it."""

    def __init__(self, forge: Forge, wake: Callable[[], None], *, first_retry_s: float = _FIRST_RETRY_S) -> None:
        self._forge, self._wake, self._first_retry_s = forge, wake, first_retry_s
        self._changed = threading.Condition()
        self._waiting: dict[str, CommitVerdict] = {}  # by commit, in the order of their coming
        self._noted: dict[str, CommitVerdict] = {}  # by commit, the last that was noted
        self._telling = Telling()
        self._ending = False
        self._thread = threading.Thread(target=self._keep_telling, name="forge", daemon=True)
        self._thread.start()

    @property
    def telling(self) -> Telling:
        """How it fares."""
        return self._telling

    def note(self, verdicts: Iterable[CommitVerdict]) -> None:
        """Have each told, if it says anything new."""
        with self._changed:
            for verdict in verdicts:
                before = self._noted.pop(verdict.commit, None)
                self._noted[verdict.commit] = verdict
                if before is None or replace(verdict, change=before.change) != before:
                    self._waiting.pop(verdict.commit, None)
                    self._waiting[verdict.commit] = verdict
            for kept, most in ((self._waiting, _MOST), (self._noted, 2 * _MOST)):
                while len(kept) > most:
                    del kept[next(iter(kept))]
            self._changed.notify_all()

    def close(self, *, patience_s: float = 0) -> None:
        """End; what waits is told before that, if it takes no longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._telling.failure is not None, patience_s)
            self._ending = True
            self._changed.notify_all()
        self._thread.join(timeout=1)  # one that hangs in the network ends with the process

    def _keep_telling(self) -> None:
        failures = 0
        while (verdict := self._next()) is not None:
            wait_s = self._told(verdict, failures)
            failures = 0 if wait_s is None else failures + 1
            if wait_s is not None:
                with self._changed:
                    self._changed.wait_for(lambda: self._ending, wait_s)

    def _next(self) -> CommitVerdict | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            return None if self._ending else next(iter(self._waiting.values()))

    def _is_told(self, verdict: CommitVerdict) -> bool:
        """Whether it stands there already: a restart, or a timer, says nothing new; GitHub takes 1000 for a commit."""
        known = self._forge.latest([verdict.commit])
        return known is not None and replace(known, change=verdict.change).description == verdict.description

    def _told(self, verdict: CommitVerdict, failures: int) -> float | None:
        """Tell it; return after how many seconds to try again, None if that need not be."""
        try:
            if not self._is_told(verdict):
                self._forge.write(verdict)
        except (HostUnreachable, ForgeRefused) as error:
            telling = replace(self._telling, failure=(type(error).__name__, str(error)))
            asked = error.retry_after_s if isinstance(error, HostUnreachable) else None
            wait_s: float | None = min(max(self._first_retry_s * 2 ** min(failures, 10), asked or 0), _LONGEST_RETRY_S)
        else:
            telling, wait_s = Telling(commit=verdict.commit, says=verdict.says), None
        with self._changed:
            if wait_s is None and self._waiting.get(verdict.commit) == verdict:
                del self._waiting[verdict.commit]
            turned, self._telling = telling != self._telling, telling
            self._changed.notify_all()
        if turned:
            self._wake()
        return wait_s


def forge_of(settings: Settings) -> Forge | None:
    """The forge that settings name, if they do; raises `UsageError` where it cannot be meant."""
    if (told := settings.forge) is None:
        return None
    project = Project.parse(told.project, told.api)
    return Forge(project, told.token, name=told.name, link=told.link, ca_bundle=settings.git.ca_bundle)


@contextmanager
def telling(settings: Settings, wake: Callable[[], None], *, patience_s: float = 0) -> Iterator[Verdicts | None]:
    """Whoever tells the forge, as long as the block runs, and so many seconds longer for what waits then."""
    if (forge := forge_of(settings)) is None:
        yield None
        return
    verdicts = Verdicts(forge, wake)
    try:
        yield verdicts
    finally:
        verdicts.close(patience_s=patience_s)
