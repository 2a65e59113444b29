"""Where an endpoint records fetches: in a spool of this host alone, or in that of an instance elsewhere as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gitboot.errors import LedgerError, LedgerLeft, UsageError
from gitboot.ledger.naming import PostgresAddress

if TYPE_CHECKING:
    from gitboot.observe.elsewhere import SpoolElsewhere
    from gitboot.serve.alone import Alone
    from gitboot.serve.forwarding import ForwardedRecording
    from gitboot.serve.recording import Recording

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMES: Final = ("forward_to", "forward_token", "forward_ca", "sole_for")


_LEDGER: Final = ("ledger", "ledger_password")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardSettings:
    """To which instance, and how."""

    url: str  # of an endpoint of it
    token: Path
    ca: Path | None
    sole_for: str | None  # the site whose boots it gives alone


Elsewhere = ForwardSettings | PostgresAddress  # an instance, or the database that several share


def forward_options(command: Command) -> Command:
    """--forward-to and --ledger, and what belongs to them."""
    url = click.option(
        "--forward-to",
        metavar="URL",
        help="An endpoint of the instance, on another host, that has --spool-tokens: what --spool records goes there, "
        "and what is made once is asked there before it is given. Default: --spool is the instance's own.",
    )
    token = click.option(
        "--forward-token",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with a token that it knows. It goes to that URL alone.",
    )
    authorities = click.option(
        "--forward-ca",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Authorities to trust for it, besides the machine's own.",
    )
    sole = click.option(
        "--sole-for",
        metavar="SITE",
        help="Give what is made once to the machines of this site alone, whether --forward-to answers or not; its "
        "instance then lets no other endpoint do so. Default: it has to answer.",
    )
    ledger = click.option(
        "--ledger",
        metavar="URL",
        help="The PostgreSQL that has the instance's ledger, as its own --ledger names it: what --spool records goes "
        "there, and what is made once is recorded there before it is given. Default: --spool is the instance's own.",
    )
    password = click.option(
        "--ledger-password",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with the password of that PostgreSQL. Default: libpq's own ways, as a client certificate.",
    )
    for option in (password, ledger, sole, authorities, token, url):
        command = option(command)
    return command


def forwarding_of(given: dict[str, Any], spool: Path | None) -> Elsewhere | None:
    """What was given for these options, taken out of the others; raises `UsageError` where it cannot be meant."""
    url, token, ca, sole = (given.pop(name) for name in _NAMES)
    ledger, password = (given.pop(name) for name in _LEDGER)
    if ledger is not None or password is not None:
        if ledger is None or url is not None or sole is not None or spool is None:
            raise UsageError("--ledger needs a --spool of this host to record in, and stands in place of --forward-to")
        return PostgresAddress.parse(ledger, password)
    if url is None and token is None and ca is None and sole is None:
        return None
    if url is None or token is None or spool is None:
        raise UsageError("--forward-to needs --forward-token, and a --spool of this host to record in")
    from gitboot.web import host_of

    host_of(url)
    try:
        token.read_bytes()
    except OSError as error:
        raise UsageError(f"--forward-token: {token} cannot be read: {error.strerror}") from None
    return ForwardSettings(url=url, token=token, ca=ca, sole_for=sole)


def arguments_of(forwarding: Elsewhere | None) -> list[str]:
    """The same as arguments of a worker."""
    if forwarding is None:
        return []
    if isinstance(forwarding, PostgresAddress):
        password = ["--ledger-password", str(forwarding.password)] if forwarding.password is not None else []
        return ["--ledger", forwarding.url, *password]
    ca = ["--forward-ca", str(forwarding.ca.absolute())] if forwarding.ca is not None else []
    sole = ["--sole-for", forwarding.sole_for] if forwarding.sole_for is not None else []
    return ["--forward-to", forwarding.url, "--forward-token", str(forwarding.token.absolute()), *ca, *sole]


@contextmanager
def recording_in(spool: Path | None, forwarding: Elsewhere | None) -> Iterator[Recording | ForwardedRecording | None]:
    """What fetches are recorded by until the block ends; None: nothing is."""
    from gitboot.observe.spool import Spool
    from gitboot.serve.app import DEADLINE_S
    from gitboot.serve.recording import Recording

    if spool is None:
        yield None
        return
    spooled = Spool(spool)
    try:
        own = Recording(spooled, DEADLINE_S)
        if forwarding is None:
            yield own
            return
        from gitboot.serve.forwarding import ForwardedRecording, Forwarder

        with closing(_elsewhere(forwarding)) as elsewhere:
            alone = _alone(spool, elsewhere, forwarding)
            with Forwarder(spool, elsewhere, DEADLINE_S, alone):
                yield ForwardedRecording(own, elsewhere, DEADLINE_S, alone)
    finally:
        spooled.close()


@contextmanager
def emptied(spool: Path | None, shared: PostgresAddress | None) -> Iterator[None]:
    """What is recorded in a spool goes where it is shared until the block ends, whoever records it."""
    if spool is None or shared is None:
        yield
        return
    from gitboot.serve.app import DEADLINE_S
    from gitboot.serve.forwarding import Forwarder

    with closing(_elsewhere(shared)) as elsewhere, Forwarder(spool, elsewhere, DEADLINE_S):
        yield


def why_not_shared(forwarding: Elsewhere | None) -> tuple[str, str] | None:
    """Why nothing is recorded in the database that hosts share: a word, and in words; None: nothing is known."""
    if not isinstance(forwarding, PostgresAddress):
        return None
    from gitboot.ledger.lease import Holder
    from gitboot.ledger.postgresql import PostgresRenewing

    try:
        with closing(PostgresRenewing(forwarding)) as looking:
            looking.other_than(Holder("an endpoint", ""))
    except LedgerError as error:
        return "LedgerLeft" if isinstance(error, LedgerLeft) else "LedgerFailed", str(error)
    return None


def _alone(spool: Path, elsewhere: SpoolElsewhere, forwarding: Elsewhere) -> Alone | None:
    """What a site's boots are given by alone; of hosts that share a database each has to reach that."""
    from gitboot.serve.alone import Alone
    from gitboot.serve.forwarding import InstanceGrants, InstanceSpool

    if not isinstance(elsewhere, InstanceSpool) or not isinstance(forwarding, ForwardSettings):
        return None
    return Alone(spool, InstanceGrants(elsewhere), forwarding.sole_for)


def _elsewhere(forwarding: Elsewhere) -> SpoolElsewhere:
    if isinstance(forwarding, PostgresAddress):
        from gitboot.ledger.fetches import SharedFetches

        return SharedFetches(forwarding)
    from gitboot.serve.forwarding import InstanceSpool

    return InstanceSpool(forwarding.url, forwarding.token, forwarding.ca)
