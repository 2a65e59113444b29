"""Endpoint options that `gitboot run` and `gitboot serve` share."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from gitboot.cli.options import Setting, combine_options
from gitboot.cli.terminal import print_event
from gitboot.errors import LedgerError, LedgerLeft, UsageError
from gitboot.files import convert_os_errors
from gitboot.ledger.location import PostgresAddress
from gitboot.status.conditions import Event

if TYPE_CHECKING:
    from gitboot.endpoint.access_control import CredentialFiles
    from gitboot.endpoint.age_encryption import AgeKeys
    from gitboot.endpoint.app import ClientRules
    from gitboot.endpoint.recorder import SharedRecorder, SpoolRecorder
    from gitboot.endpoint.tls import Certificate
    from gitboot.ledger.postgresql_fetch_log import SharedFetchLog


Command = TypeVar("Command", bound=Callable[..., Any])


class AccessSettings(Struct, frozen=True, kw_only=True):
    """Who may ask an endpoint for what."""

    operators: tuple[str, ...]  # networks; none: this machine
    operators_hosts: tuple[str, ...]
    operators_tokens: Path | None
    operators_listen: str | None  # HOST:PORT; None: where machines ask
    operators_tls: tuple[Path, Path] | None  # the certificate and its key; None: what is asked there is not encrypted
    trusted_proxies: tuple[str, ...]  # networks
    idle_connections: int  # of one address


# Who may ask an endpoint for what.
access_options = combine_options(
    click.option(
        "--operators",
        multiple=True,
        metavar="CIDR",
        help="Networks from which /api and /metrics are answered. Default: this machine alone.",
    ),
    click.option(
        "--operators-host",
        "operators_hosts",
        cls=Setting,
        envvar="GITBOOT_OPERATORS_HOST",
        multiple=True,
        metavar="NAME",
        help="Names in the URLs that operators use for /api and /metrics. gitboot always accepts addresses and "
        "localhost, and rejects other names. Default: none.",
    ),
    click.option(
        "--operators-tokens",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with a token on each line; who shows one (Authorization: Bearer) is answered from anywhere.",
    ),
    click.option(
        "--operators-tls",
        nargs=2,
        metavar="CERT KEY",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Encrypt the separate socket for operators. CERT is a file with the certificate and its chain, KEY is "
        "a file with the private key, both PEM and the key without a passphrase. gitboot reads the files again when "
        "they change. Default: no encryption.",
    ),
    click.option(
        "--trusted-proxies",
        cls=Setting,
        multiple=True,
        metavar="CIDR",
        help="Networks of proxies. gitboot takes the client's address from their X-Forwarded-For header, and ignores "
        "this header from every other address, also from this machine. Default: none.",
    ),
    click.option(
        "--operators-listen",
        metavar="HOST:PORT",
        help="Answer /api and /metrics here, and no longer where machines ask. Default: there.",
    ),
    click.option(
        "--idle-connections",
        cls=Setting,
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="The largest number of connections without a request that one address may keep. If an address opens one "
        "more, the endpoint closes the oldest. The limit does not apply to trusted proxies.",
    ),
)


def take_access_settings(options: dict[str, Any]) -> AccessSettings:
    """What was given for these options, taken out of the others."""
    return AccessSettings(**{name: options.pop(name) for name in AccessSettings.__struct_fields__})


def check_access_settings(access: AccessSettings) -> None:
    """Raise `UsageError` where it cannot be meant, or a file cannot be used: at the start, as it may be later."""
    if access.operators_tls is not None and access.operators_listen is None:
        raise UsageError("--operators-tls needs --operators-listen: gitboot does not encrypt what machines fetch")
    clients = build_clients(access, None)
    if clients.tokens is not None:
        clients.tokens.check()
    if clients.certificate is not None:
        clients.certificate.load()


def build_clients(access: AccessSettings, operators: socket.socket | None) -> ClientRules:
    """The same as an endpoint takes it; ``operators`` is the socket that is for operators alone."""
    from gitboot.endpoint.access_control import LOOPBACK, Tokens
    from gitboot.endpoint.app import ClientRules

    return ClientRules(
        operators=tuple(_parse_networks("--operators", access.operators)) or LOOPBACK,
        trusted_proxies=tuple(_parse_networks("trusted-proxies", access.trusted_proxies)),
        names=access.operators_hosts,
        tokens=Tokens(access.operators_tokens) if access.operators_tokens is not None else None,
        operators_socket=operators.getsockname()[:2] if operators is not None else None,
        certificate=build_certificate(access),
        max_idle=access.idle_connections,
    )


def credential_files(access: AccessSettings, keys: AgeKeys | None, push_secret: Path | None) -> CredentialFiles:
    """Return the credential files that an endpoint reads for each request."""
    from gitboot.endpoint.access_control import CredentialFiles, Tokens
    from gitboot.endpoint.webhooks import PushSecret

    tokens = access.operators_tokens
    checks: dict[str, Callable[[], object] | None] = {
        "--operators-tokens": Tokens(tokens).check if tokens is not None else None,
        "--secret-keys": keys.check if keys is not None else None,
        "--push-secret": PushSecret(push_secret).read if push_secret is not None else None,
    }
    return CredentialFiles({option: check for option, check in checks.items() if check is not None})


def build_certificate(access: AccessSettings) -> Certificate | None:
    """What operators are shown; None: what they ask is not encrypted."""
    from gitboot.endpoint.tls import Certificate

    return Certificate(*access.operators_tls) if access.operators_tls is not None else None


def _parse_networks(option: str, values: tuple[str, ...]) -> Iterator[Any]:
    for each in values:
        try:
            yield ip_network(each)
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None


def format_access_arguments(access: AccessSettings) -> list[str]:
    """The same as arguments of a worker, but for where to listen: it gets the socket."""
    settings = {name: getattr(access, name) for name in ("idle_connections", "operators_hosts", "trusted_proxies")}
    arguments = ["--settings", json.dumps(settings)]
    for network in access.operators:
        arguments += ["--operators", network]
    if access.operators_tokens is not None:
        arguments += ["--operators-tokens", str(access.operators_tokens.absolute())]
    if access.operators_tls is not None:
        arguments += ["--operators-tls", *(str(file.absolute()) for file in access.operators_tls)]
    return arguments


def load_secret_keys(file: Path | None, *, skip_check: bool = False) -> AgeKeys | None:
    """The keys of a file that is given; raises UsageError where it has none, unless that was looked at before."""
    if file is None:
        return None
    from gitboot.endpoint.age_encryption import AgeKeys  # few give one

    keys = AgeKeys(file)
    if not skip_check:
        keys.check()
    return keys


def open_operators_socket(access: AccessSettings) -> socket.socket | None:
    """What listens for operators alone, where that is wanted."""
    from gitboot.endpoint.server import build_url, open_listening_socket

    if access.operators_listen is None:
        return None
    listener = open_listening_socket(access.operators_listen)
    url = build_url(access.operators_listen, listener, "https" if access.operators_tls is not None else "http")
    print_event(Event(at=_clock(), type="ListeningForOperators", message=url, facts={"url": url}))
    return listener


def create_spool(spool: Path) -> None:
    """Make a spool where it is missing."""
    with convert_os_errors(spool, "made"):
        spool.mkdir(mode=0o750, parents=True, exist_ok=True)


_clock: Final = partial(datetime.now, UTC)


# --ledger and --ledger-password, for a command that serves on a host without the instance.
shared_ledger_options = combine_options(
    click.option(
        "--ledger",
        metavar="URL",
        help="The PostgreSQL database of the instance's ledger, as in its own --ledger. Fetches that --spool records "
        "go there, and a one-time boot is recorded there before it is served. Default: --spool is the instance's own.",
    ),
    click.option(
        "--ledger-password",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with the password of that database. Default: libpq's own ways, such as a client certificate.",
    ),
)


def parse_shared_ledger(ledger: str | None, password: Path | None, spool: Path | None) -> PostgresAddress | None:
    """Return the database of these options; None if there is no --ledger. Raises `UsageError` if they do not fit."""
    if ledger is None:
        if password is not None:
            raise UsageError("--ledger-password needs --ledger, whose password it is")
        return None
    if spool is None:
        raise UsageError("--ledger needs --spool: a directory of this host for fetches until the database has them")
    return PostgresAddress.parse(ledger, password)


def format_ledger_arguments(shared: PostgresAddress | None) -> list[str]:
    """Return the same options for the command line of a worker."""
    if shared is None:
        return []
    password = ["--ledger-password", str(shared.password)] if shared.password is not None else []
    return ["--ledger", shared.url, *password]


@contextmanager
def open_recording(
    spool: Path | None, shared: PostgresAddress | None
) -> Iterator[SpoolRecorder | SharedRecorder | None]:
    """Open what records fetches until the block ends; None if there is no spool."""
    from gitboot.endpoint.app import DEADLINE_S
    from gitboot.endpoint.recorder import SharedRecorder, SpoolRecorder
    from gitboot.fetchlog.spool import Spool

    if spool is None:
        yield None
        return
    spool_writer = Spool(spool)
    recording = SpoolRecorder(spool_writer, DEADLINE_S)
    try:
        with forward_spool(spool, shared) as fetches:
            yield SharedRecorder(recording, fetches, DEADLINE_S) if fetches is not None else recording
    finally:
        recording.flush()
        spool_writer.close()


@contextmanager
def forward_spool(spool: Path | None, shared: PostgresAddress | None) -> Iterator[SharedFetchLog | None]:
    """Send the fetches in a spool to the shared ledger until the block ends, whoever records them."""
    if spool is None or shared is None:
        yield None
        return
    from gitboot.endpoint.recorder import Forwarder
    from gitboot.ledger.postgresql_fetch_log import SharedFetchLog

    with closing(SharedFetchLog(shared)) as fetches, Forwarder(spool, fetches):
        yield fetches


def check_shared_ledger(shared: PostgresAddress | None) -> tuple[str, str] | None:
    """Return why the shared ledger takes no fetches, as an event's type and message; None: no reason is known."""
    if shared is None:
        return None
    from gitboot.ledger.leader_lease import Holder
    from gitboot.ledger.postgresql import LeaseConnection

    try:
        with closing(LeaseConnection(shared)) as connection:
            connection.find_other_holder(Holder("an endpoint", ""))
    except LedgerError as error:
        return "LedgerLeft" if isinstance(error, LedgerLeft) else "LedgerFailed", str(error)
    return None
