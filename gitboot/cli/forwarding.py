"""The fetch log of an endpoint: a spool of this host alone, or a PostgreSQL ledger that several hosts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gitboot.errors import LedgerError, LedgerLeft, UsageError
from gitboot.ledger.location import PostgresAddress

if TYPE_CHECKING:
    from gitboot.endpoint.recorder import ForwardedRecording, Recording

Command = TypeVar("Command", bound=Callable[..., Any])


def shared_ledger_options(command: Command) -> Command:
    """Add --ledger and --ledger-password to a command that serves on a host without the instance."""
    ledger = click.option(
        "--ledger",
        metavar="URL",
        help="The PostgreSQL database of the instance's ledger, as in its own --ledger. Fetches that --spool records "
        "go there, and a one-time boot is recorded there before it is served. Default: --spool is the instance's own.",
    )
    password = click.option(
        "--ledger-password",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with the password of that database. Default: libpq's own ways, such as a client certificate.",
    )
    return ledger(password(command))


def shared_ledger_of(ledger: str | None, password: Path | None, spool: Path | None) -> PostgresAddress | None:
    """Return the database of these options; None if there is no --ledger. Raises `UsageError` if they do not fit."""
    if ledger is None:
        if password is not None:
            raise UsageError("--ledger-password needs --ledger, whose password it is")
        return None
    if spool is None:
        raise UsageError("--ledger needs --spool: a directory of this host for fetches until the database has them")
    return PostgresAddress.parse(ledger, password)


def arguments_of(shared: PostgresAddress | None) -> list[str]:
    """Return the same options for the command line of a worker."""
    if shared is None:
        return []
    password = ["--ledger-password", str(shared.password)] if shared.password is not None else []
    return ["--ledger", shared.url, *password]


@contextmanager
def recording_in(spool: Path | None, shared: PostgresAddress | None) -> Iterator[Recording | ForwardedRecording | None]:
    """Open what records fetches until the block ends; None if there is no spool."""
    from gitboot.endpoint.app import DEADLINE_S
    from gitboot.endpoint.recorder import ForwardedRecording, Recording
    from gitboot.fetchlog.spool import Spool

    if spool is None:
        yield None
        return
    spooled = Spool(spool)
    own = Recording(spooled, DEADLINE_S)
    try:
        if shared is None:
            yield own
            return
        from gitboot.ledger.shared_fetchlog import SharedFetches
        from gitboot.serve.spool_forwarder import Forwarder

        with closing(SharedFetches(shared)) as fetches, Forwarder(spool, fetches):
            yield ForwardedRecording(own, fetches, DEADLINE_S)
    finally:
        own.end()
        spooled.close()


@contextmanager
def emptied(spool: Path | None, shared: PostgresAddress | None) -> Iterator[None]:
    """Send the fetches in a spool to the shared ledger until the block ends, whoever records them."""
    if spool is None or shared is None:
        yield
        return
    from gitboot.ledger.shared_fetchlog import SharedFetches
    from gitboot.serve.spool_forwarder import Forwarder

    with closing(SharedFetches(shared)) as fetches, Forwarder(spool, fetches):
        yield


def why_not_shared(shared: PostgresAddress | None) -> tuple[str, str] | None:
    """Return why the shared ledger takes no fetches, as an event's type and message; None: no reason is known."""
    if shared is None:
        return None
    from gitboot.ledger.leader_lease import Holder
    from gitboot.ledger.postgresql import PostgresRenewing

    try:
        with closing(PostgresRenewing(shared)) as looking:
            looking.other_than(Holder("an endpoint", ""))
    except LedgerError as error:
        return "LedgerLeft" if isinstance(error, LedgerLeft) else "LedgerFailed", str(error)
    return None
