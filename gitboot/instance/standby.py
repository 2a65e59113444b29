"""Standing by: another host's instance acts, and this one takes its place when the lease of their ledger is free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from gitboot.errors import GitbootError, LedgerError, LedgerLeft, LedgerUnfinished
from gitboot.instance import directory as state
from gitboot.instance.build import fetched_apart, look_for_repository, named_ledger
from gitboot.instance.commit import Commit
from gitboot.instance.evaluation import Evaluation
from gitboot.instance.rights import private
from gitboot.instance.settings import Settings
from gitboot.ledger.lease import Holder
from gitboot.ledger.naming import address_beside
from gitboot.ledger.store import mark_of, read_mark, write_mark
from gitboot.model.scalars import format_instant
from gitboot.source import Source
from gitboot.status import Condition, Event, Status

if TYPE_CHECKING:
    from gitboot.ledger.postgresql import PostgresRenewing

LOOK_S: Final = 2.0  # between two looks at the lease


class Ending(Protocol):
    """An end that may be asked for."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is, or for so long; say whether it was."""


class Standby:
    """The lease of the ledger as an instance waits for it; a ledger in the state directory has none.

    Before it has once been there, a ledger that cannot be reached is an error: it may be another that was meant.
    """

    def __init__(self, settings: Settings, tell: Callable[[Event], None], clock: Callable[[], datetime]) -> None:
        self._settings, self._tell, self._clock = settings, tell, clock
        look_for_repository(settings)  # before anything is made
        with private(settings.state):
            self.address = address_beside(named_ledger(settings))
        self.is_patient = False  # whether a ledger that cannot be reached is waited for
        self._has_failed, self._said = False, ""

    def wait(self, ending: Callable[[], AbstractContextManager[Ending]]) -> bool:
        """Wait while another instance has the lease; False: the end was asked for meanwhile.

        Who comes first once it is free, takes it. What the remote has is fetched and evaluated meanwhile, so that the
        commit that goes on is there when nobody else is.
        """
        if self.address is None:
            return True
        from gitboot.ledger.postgresql import PostgresRenewing

        with ExitStack() as stack:
            stack.enter_context(state.locked(self._settings.state))
            end = stack.enter_context(ending())
            stack.enter_context(_following(self._settings))
            looking, since = stack.enter_context(closing(PostgresRenewing(self.address))), self._clock()
            if self._has_failed:
                end.wait(LOOK_S)
                self._has_failed = False
            while not end.wait(0):
                if (waits := self._looked(looking)) is None:
                    return True
                self._say(*waits, since)
                end.wait(min(LOOK_S, self._settings.lease_s / 5))
            return False

    def _looked(self, looking: PostgresRenewing) -> tuple[str, str] | None:
        """Why it waits: a word, and in words; None: the lease can be taken."""
        try:
            other = looking.other_than(Holder.of(self._settings.state))
        except LedgerError as error:
            if not self.is_patient:
                raise
            return _reason(error), str(error)
        self.is_patient = True
        if other is not None:
            self._note_progress(looking.progress())
        return ("StandingBy", f"the instance {other} acts by {looking.name}") if other is not None else None

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

    def _say(self, reason: str, message: str, since: datetime) -> None:
        """Tell what has changed, and leave it for `gitboot status`."""
        at = self._clock()
        if message != self._said:
            self._tell(Event(at=at, type=reason, message=message, warning=reason != "StandingBy"))
            self._said = message
        acting = Condition(type="Acting", status=False, reason=reason, message=message, since=since)
        left = state.LeftStatus(self._settings.state, self._clock)
        left.write({**Status(conditions=(acting,)).facts(), "at": format_instant(at)})


def _reason(error: LedgerError) -> str:
    """Why it waits, as a word."""
    if isinstance(error, (LedgerLeft, LedgerUnfinished)):
        return type(error).__name__
    return "LedgerFailed"


@contextmanager
def _following(settings: Settings) -> Iterator[None]:
    """Fetch what the remote has, and evaluate it, again and again until the block ends.

    What was found out of a commit stands in the state directory then, and is most of what a first tree takes. What
    fails is tried again, and told once this instance acts.
    """
    ended, woken = threading.Event(), threading.Event()
    evaluation = Evaluation(settings.state, allowance=settings.allowance, site=settings.site)
    evaluation.on_answer = woken.set

    def follow(source: Source) -> None:
        commit: Commit | None = None
        while not ended.is_set():
            woken.clear()
            with suppress(GitbootError):
                newest = source.fetch()
                if commit is None or newest != commit.revision:
                    evaluated = evaluation.evaluate(newest, commit)
                    commit = evaluated.commit if evaluated is not None else commit
            woken.wait(settings.poll_s)

    with closing(evaluation):
        with fetched_apart(settings, settings.state) as source:
            thread = threading.Thread(target=follow, args=(source,), name="follow", daemon=True)
            thread.start()
            try:
                yield
            finally:
                ended.set()
                woken.set()
        thread.join()  # its fetcher has been ended
