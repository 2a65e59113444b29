"""Standing by: another host's instance acts, and this one takes its place when the lease of their ledger is free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime
from typing import Final, Protocol

from gitboot.errors import LedgerError, OperatorError, TryAgain
from gitboot.instance import directory as state
from gitboot.instance.build import fetched_apart, named_ledger
from gitboot.instance.rights import private
from gitboot.instance.settings import Settings
from gitboot.ledger.lease import Holder
from gitboot.ledger.naming import address_beside
from gitboot.model.scalars import format_instant
from gitboot.source import Source
from gitboot.status import Condition, Event, Status

LOOK_S: Final = 2.0  # between two looks at the lease


class Ending(Protocol):
    """An end that may be asked for."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is, or for so long; say whether it was."""


def stand_by(
    settings: Settings,
    *,
    tell: Callable[[Event], None],
    clock: Callable[[], datetime],
    ending: Callable[[], AbstractContextManager[Ending]],
) -> bool:
    """Wait while another instance has the lease of the ledger; False: the end was asked for meanwhile.

    A ledger in the state directory has no lease: it is not waited for. Who comes first once it is free, takes it. What
    the remote has is fetched meanwhile, so that the commit that goes on is there when nobody else is.
    """
    with ExitStack() as stack:
        stack.enter_context(private(settings.state))
        address = address_beside(named_ledger(settings))
        if address is None:
            return True
        from gitboot.ledger.postgresql import PostgresRenewing

        stack.enter_context(state.locked(settings.state))
        end = stack.enter_context(ending())
        holder = Holder.of(settings.state)
        stack.enter_context(_fetching(settings))
        looking = stack.enter_context(closing(PostgresRenewing(address)))
        left, since, said = state.LeftStatus(settings.state, clock), clock(), ""
        while not end.wait(0):
            try:
                other = looking.other_than(holder)
            except LedgerError as error:
                reason, message, warning = "LedgerFailed", str(error), True
            else:
                if other is None:
                    return True
                reason, message, warning = "StandingBy", f"the instance {other} acts by {address.name}", False
            if message != said:
                tell(Event(at=clock(), type=reason, message=message, warning=warning))
                said = message
            acting = Condition(type="Acting", status=False, reason=reason, message=message, since=since)
            left.write({**Status(conditions=(acting,)).facts(), "at": format_instant(clock())})
            end.wait(min(LOOK_S, settings.lease_s / 5))
        return False


@contextmanager
def _fetching(settings: Settings) -> Iterator[None]:
    """Fetch again and again until the block ends; what fails is tried again, and told once this instance acts."""
    ended = threading.Event()

    def fetch(source: Source) -> None:
        while not ended.is_set():
            with suppress(TryAgain, OperatorError):
                source.fetch()
            ended.wait(settings.poll_s)

    with fetched_apart(settings, settings.state) as source:
        thread = threading.Thread(target=fetch, args=(source,), name="fetch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
    thread.join()  # its fetcher has been ended
