"""`gitboot serve`, and the endpoint options that `gitboot run` also has."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from ipaddress import ip_network
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct, structs

from gitboot.child_processes import (
    build_python_command,
    exit_with_parent,
    pause_garbage_collection,
    raise_open_file_limit,
    reap_orphans,
)
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    VARIABLES,
    Setting,
    accept_filesystem_option,
    combine_options,
    config_option,
    current_time,
    inherited_settings_option,
    reject_old_variables,
    secret_keys_option,
)
from gitboot.cli.terminal import StopRequest, log_format_option, log_to_events, print_event, stop_on_signal
from gitboot.errors import LedgerError, LedgerLeft, UsageError
from gitboot.files import check_fetch_log_folder, convert_os_errors, is_directory, is_file
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.store import PostgresAddress, read_address
from gitboot.status.conditions import Event
from gitboot.system_clock import read_clock_state

if TYPE_CHECKING:
    from gitboot.controller.instance.settings import Settings
    from gitboot.endpoint.access_control import CredentialFiles
    from gitboot.endpoint.age_encryption import AgeKeys
    from gitboot.endpoint.app import ClientRules
    from gitboot.endpoint.recorder import SharedRecorder, SpoolRecorder
    from gitboot.endpoint.tls import Certificate
    from gitboot.ledger.postgresql_fetch_log import SharedFetchLog
    from gitboot.status.instance_status import Endpoints


class AccessSettings(Struct, frozen=True, kw_only=True):
    """Settings that control which clients may read from an endpoint."""

    operators: tuple[str, ...]  # networks from which operators may read; (): only this machine
    operators_hosts: tuple[str, ...]
    operators_tokens: Path | None
    operators_listen: str | None  # HOST:PORT for operators; None: the same address as for machines
    operators_tls: tuple[Path, Path] | None  # certificate and key for operators; None: the connection is not encrypted
    # HOST:PORT, certificate and key for machines; None: machines do not use TLS
    machines_tls: tuple[str, Path, Path] | None
    firmware_ciphers: bool  # whether the address for machines offers the cipher suites that firmware needs
    trusted_proxies: tuple[str, ...]  # networks
    idle_connections: int  # the maximum number of idle connections from one address


machines_tls_option = combine_options(
    click.option(
        "--machines-tls",
        metavar="HOST:PORT CERT KEY",
        type=(str, click.Path(path_type=Path, dir_okay=False), click.Path(path_type=Path, dir_okay=False)),
        help="Also serve machines by HTTPS at this address, in addition to --listen. CERT is a file with the "
        "certificate and its chain. KEY is a file with an RSA key without a passphrase. Use this key for no "
        "other socket. Both are PEM files. gitboot reads them again when they change. Default: no HTTPS for machines.",
    ),
    click.option(
        "--firmware-ciphers/--no-firmware-ciphers",
        cls=Setting,
        default=True,
        show_default=True,
        help="Whether the address of --machines-tls also offers cipher suites with RSA key exchange, after those with "
        "forward secrecy. UEFI HTTPS boot of many machines needs these cipher suites. If somebody steals the key, they "
        "can decrypt recorded connections that use these suites.",
    ),
)
# The options that control which clients may send which requests to an endpoint.
access_options = combine_options(
    click.option(
        "--operators",
        multiple=True,
        metavar="CIDR",
        help="A network whose clients may read /api and /metrics. Repeat the option for several networks. Default: "
        "only this machine.",
    ),
    click.option(
        "--operators-host",
        "operators_hosts",
        cls=Setting,
        envvar="GITBOOT_OPERATORS_HOST",
        multiple=True,
        metavar="NAME",
        help="A name that operators use in URLs of /api and /metrics. gitboot always accepts IP addresses and "
        "localhost, and rejects all other names. Default: none.",
    ),
    click.option(
        "--operators-tokens",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with a token on each line. A client that sends one of these tokens (Authorization: Bearer "
        "TOKEN) may read "
        "/api and /metrics from any address. Default: none.",
    ),
    click.option(
        "--operators-tls",
        nargs=2,
        metavar="CERT KEY",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Encrypt the socket of --operators-listen. CERT is a file with the certificate and its chain. KEY is "
        "a file with the private key, without a passphrase. Both are PEM files. gitboot reads them again when "
        "they change. Default: no encryption.",
    ),
    click.option(
        "--trusted-proxies",
        cls=Setting,
        multiple=True,
        metavar="CIDR",
        help="A network of proxies. gitboot takes the client's address from the X-Forwarded-For header of these "
        "proxies, and ignores the header from any other address, including this machine. Default: none.",
    ),
    click.option(
        "--operators-listen",
        metavar="HOST:PORT",
        help="Serve /api and /metrics only at this address, and not at --listen. Default: at --listen.",
    ),
    machines_tls_option,
    click.option(
        "--idle-connections",
        cls=Setting,
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="The number of connections without a request that one client address may keep open. If it opens one "
        "more, the endpoint closes the oldest one. The limit does not apply to trusted proxies.",
    ),
)


def take_access_settings(options: dict[str, Any]) -> AccessSettings:
    """Remove the access options from ``options``, and return them as settings."""
    return AccessSettings(**{name: options.pop(name) for name in AccessSettings.__struct_fields__})


def check_access_settings(access: AccessSettings) -> None:
    """Check that the settings do not contradict each other and that their files are usable. Raises `UsageError`."""
    if access.operators_tls is not None and access.operators_listen is None:
        raise UsageError("--operators-tls needs --operators-listen; for machines, use --machines-tls")
    _parse_networks("--operators", access.operators)
    _parse_networks("trusted-proxies", access.trusted_proxies)
    if access.operators_tokens is not None:
        from gitboot.endpoint.access_control import Tokens

        Tokens(access.operators_tokens).check()
    for certificate in build_certificates(access):
        if certificate is not None:
            certificate.load()


def build_client_rules(
    access: AccessSettings, operators: socket.socket | None, machines_tls: socket.socket | None
) -> ClientRules:
    """Convert the access settings to the form that an endpoint uses.

    The result includes the sockets for operators and for TLS.
    """
    from gitboot.endpoint.access_control import LOOPBACK, Tokens
    from gitboot.endpoint.app import ClientRules

    certificate, machines_certificate = build_certificates(access)
    return ClientRules(
        operators=_parse_networks("--operators", access.operators) or LOOPBACK,
        trusted_proxies=_parse_networks("trusted-proxies", access.trusted_proxies),
        names=access.operators_hosts,
        tokens=Tokens(access.operators_tokens) if access.operators_tokens is not None else None,
        operators_socket=operators.getsockname()[:2] if operators is not None else None,
        certificate=certificate,
        machines_tls_socket=machines_tls.getsockname()[:2] if machines_tls is not None else None,
        machines_certificate=machines_certificate,
        max_idle=access.idle_connections,
    )


def build_credential_files(access: AccessSettings, keys: AgeKeys | None, push_secret: Path | None) -> CredentialFiles:
    """Return the credential files that an endpoint reads for each request."""
    from gitboot.endpoint.access_control import CredentialFiles, Tokens
    from gitboot.endpoint.api import PushSecret

    tokens = access.operators_tokens
    checks: dict[str, Callable[[], object] | None] = {
        "--operators-tokens": Tokens(tokens).check if tokens is not None else None,
        "--secret-keys": keys.check if keys is not None else None,
        "--push-secret": PushSecret(push_secret).read if push_secret is not None else None,
    }
    return CredentialFiles({option: check for option, check in checks.items() if check is not None})


def build_certificates(access: AccessSettings) -> tuple[Certificate | None, Certificate | None]:
    """Return the certificates for the operators' socket and for the machines' TLS socket. None means no TLS."""
    if access.operators_tls is None and access.machines_tls is None:
        return None, None
    from gitboot.endpoint.tls import Certificate, CipherSuites

    operators = Certificate(*access.operators_tls) if access.operators_tls is not None else None
    if access.machines_tls is None:
        return operators, None
    suites = CipherSuites.FIRMWARE if access.firmware_ciphers else CipherSuites.MACHINES
    return operators, Certificate(*access.machines_tls[1:], suites, operators)


def _parse_networks(option: str, values: tuple[str, ...]) -> tuple[Any, ...]:
    try:
        return tuple(map(ip_network, values))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def format_access_arguments(access: AccessSettings) -> list[str]:
    """Return the access settings as command line arguments for a worker process.

    The worker process inherits the sockets.
    """
    names = ("firmware_ciphers", "idle_connections", "operators_hosts", "trusted_proxies")
    arguments = ["--settings", json.dumps({name: getattr(access, name) for name in names})]
    for network in access.operators:
        arguments += ["--operators", network]
    if access.operators_tokens is not None:
        arguments += ["--operators-tokens", str(access.operators_tokens.absolute())]
    if access.operators_tls is not None:
        arguments += ["--operators-tls", *(str(file.absolute()) for file in access.operators_tls)]
    if access.machines_tls is not None:
        address, *files = access.machines_tls
        arguments += ["--machines-tls", address, *(str(file.absolute()) for file in files)]
    return arguments


def load_secret_keys(file: Path | None, *, skip_check: bool = False) -> AgeKeys | None:
    """Return the age keys in a file, or None if no file is set.

    Raises `UsageError` if the file contains no keys, unless ``skip_check`` is set.
    """
    if file is None:
        return None
    from gitboot.endpoint.age_encryption import AgeKeys  # imported here, because few users have keys

    keys = AgeKeys(file)
    if not skip_check:
        keys.check()
    return keys


def open_separate_sockets(access: AccessSettings) -> tuple[socket.socket | None, socket.socket | None]:
    """Listen for operators, and for machines that use TLS. None means that the settings contain no such address."""
    scheme = "https" if access.operators_tls is not None else "http"
    machines_tls = access.machines_tls[0] if access.machines_tls is not None else None
    return (
        _open_socket(access.operators_listen, scheme, "ListeningForOperators"),
        _open_socket(machines_tls, "https", "ListeningByTls"),
    )


def _open_socket(address: str | None, scheme: str, event_type: str) -> socket.socket | None:
    from gitboot.endpoint.server import build_url, open_listening_socket

    if address is None:
        return None
    listener = open_listening_socket(address)
    url = build_url(address, listener, scheme)
    print_new_event(event_type, url, url=url)
    return listener


def create_spool(spool: Path) -> None:
    """Create the directory of the fetch log if it is missing."""
    with convert_os_errors(spool, "made"):
        spool.mkdir(mode=0o750, parents=True, exist_ok=True)


# --ledger and --ledger-password, for commands that serve boots on a host without the instance.
shared_ledger_options = combine_options(
    click.option(
        "--ledger",
        metavar="URL",
        help="The PostgreSQL database with the ledger of the instance, as in `gitboot run --ledger`. The endpoint "
        "sends the fetches in --spool to this database, and records each one-time boot there before it serves "
        "the boot. Default: none. An instance on this host then reads --spool.",
    ),
    click.option(
        "--ledger-password",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with the database password. Default: libpq uses its own methods, for example a "
        "client certificate.",
    ),
)


def parse_shared_ledger(ledger: str | None, password: Path | None, spool: Path | None) -> PostgresAddress | None:
    """Return the address of the shared database, or None if --ledger is not set.

    Raises `UsageError` if the options contradict each other.
    """
    if ledger is None:
        if password is not None:
            raise UsageError("--ledger-password needs --ledger, the URL of the database")
        return None
    if spool is None:
        raise UsageError("--ledger needs --spool: a directory of this host for fetches until the database has them")
    return PostgresAddress.parse(ledger, password)


def format_ledger_arguments(shared_ledger: PostgresAddress | None) -> list[str]:
    """Return the address of the shared database as command line arguments for a worker process."""
    if shared_ledger is None:
        return []
    password = ["--ledger-password", str(shared_ledger.password)] if shared_ledger.password is not None else []
    return ["--ledger", shared_ledger.url, *password]


@contextmanager
def open_recorder(
    spool: Path | None, shared_ledger: PostgresAddress | None
) -> Iterator[SpoolRecorder | SharedRecorder | None]:
    """Open a recorder for fetches for the duration of the block. Yield None if there is no spool."""
    from gitboot.endpoint.app import DEADLINE_S
    from gitboot.endpoint.recorder import SharedRecorder, SpoolRecorder
    from gitboot.fetchlog.spool import Spool

    if spool is None:
        yield None
        return
    spool_writer = Spool(spool)
    recorder = SpoolRecorder(spool_writer, DEADLINE_S)
    try:
        with forward_spool(spool, shared_ledger) as fetches:
            yield SharedRecorder(recorder, fetches, DEADLINE_S) if fetches is not None else recorder
    finally:
        recorder.flush()
        spool_writer.close()


@contextmanager
def forward_spool(spool: Path | None, shared_ledger: PostgresAddress | None) -> Iterator[SharedFetchLog | None]:
    """Send the fetches in the spool to the shared ledger for the duration of the block.

    Yield None if there is no shared ledger.
    """
    if spool is None or shared_ledger is None:
        yield None
        return
    from gitboot.endpoint.recorder import Forwarder
    from gitboot.ledger.postgresql_fetch_log import SharedFetchLog

    with closing(SharedFetchLog(shared_ledger)) as fetches, Forwarder(spool, fetches):
        yield fetches


def check_shared_ledger(shared_ledger: PostgresAddress | None) -> tuple[str, str] | None:
    """Return an event type and a message if the shared ledger cannot accept records of fetches now, otherwise None."""
    if shared_ledger is None:
        return None
    from gitboot.ledger.postgresql import LeaseConnection

    try:
        with closing(LeaseConnection(shared_ledger)) as connection:
            connection.find_other_holder(Holder("an endpoint", ""))
    except LedgerError as error:
        return "LedgerLeft" if isinstance(error, LedgerLeft) else "LedgerFailed", str(error)
    return None


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot serve --out /srv/gitboot --listen 0.0.0.0:8080 --spool /srv/spool",
    exit_codes={
        Exit.FINE: "a signal stopped gitboot",
        Exit.USAGE: "the output tree does not exist, or an option is wrong",
    },
    sections={
        "API and metrics": ("operators", "operators_listen", "operators_tokens", "operators_tls"),
    },
)
@config_option
@log_format_option
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # click would derive GITBOOT_OUTPUT from the parameter's name
    metavar="OUTPUT",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The output tree, which `gitboot run` or `gitboot render` wrote, or a mirror with ops/.",
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="The address to listen on."
)
@click.option(
    "--workers",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of processes that serve. Each process uses one CPU.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Record fetches in this directory, for `gitboot run --spool`. Default: gitboot records no fetches, "
    "and serves no one-time boots.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with kernels and images, which gitboot serves at /assets/. Default: none.",
)
@secret_keys_option
@shared_ledger_options
@access_options
@accept_filesystem_option
@inherited_settings_option
@click.option("--operators-fd", type=int, hidden=True, help="The file descriptor of a listening socket for operators.")
@click.option(
    "--machines-tls-fd", type=int, hidden=True, help="The file descriptor of a listening socket for machines with TLS."
)
@click.option("--fd", type=int, hidden=True, help="The file descriptor of a listening socket of the parent process.")
@click.option(
    "--life-fd",
    type=int,
    hidden=True,
    help="The file descriptor of a pipe. This process writes to the pipe while it responds.",
)
@click.option("--parent", type=int, hidden=True, help="The process ID of the parent process.")
@click.option(
    "--status", type=click.Path(path_type=Path), hidden=True, help="The file to which the instance writes its status."
)
@click.option(
    "--push-secret", type=click.Path(path_type=Path), hidden=True, help="The file with the secret of the webhook."
)
@click.option("--ledger-id", hidden=True, help="The identity of the instance's ledger.")
def command(
    output: Path,
    listen: str,
    workers: int,
    spool: Path | None,
    assets: Path | None,
    secret_keys: Path | None,
    accepted_filesystems: tuple[str, ...],
    fd: int | None,
    operators_fd: int | None,
    machines_tls_fd: int | None,
    life_fd: int | None,
    parent: int | None,
    status: Path | None,
    push_secret: Path | None,
    ledger_id: str | None,
    ledger: str | None,
    ledger_password: Path | None,
    **options: Any,
) -> None:
    """Serve the published boot files from this host.

    gitboot serves an output tree and its API, with one or more processes. A new version of the tree takes effect at the
    next request. The endpoint switches boot scripts at the times that the tree names.
    """
    with pause_garbage_collection():  # the objects of imported modules stay in memory
        from gitboot.endpoint import app, recorder, server  # noqa: F401
    log_to_events()
    reject_old_variables()
    if parent is not None:
        exit_with_parent(parent)
        # A terminal sends SIGINT to all of its processes, but the parent decides when to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not is_directory(output):
        raise UsageError(f"{output} is not a directory; pass the output tree with --out")
    if spool is not None:
        create_spool(spool)
        if parent is None:  # otherwise the instance has already checked it
            check_fetch_log_folder(
                spool, accepted_filesystems, partial(print_new_event, "StateMayBeLost", is_warning=True)
            )
    access = take_access_settings(options)
    shared = parse_shared_ledger(ledger, ledger_password, spool)
    if fd is None:
        check_access_settings(access)
    keys = load_secret_keys(secret_keys, skip_check=fd is not None)
    stop = stop_on_signal(signal.SIGTERM) if parent is not None else stop_on_signal()
    serve = partial(
        _serve_until_stopped,
        output=output,
        spool=spool,
        assets=assets,
        keys=keys,
        shared_ledger=shared,
        access=access,
        stop=stop,
    )
    if fd is not None:
        operators, machines_tls = (
            socket.socket(fileno=each) if each is not None else None for each in (operators_fd, machines_tls_fd)
        )
        clients = build_client_rules(access, operators, machines_tls)
        if push_secret is not None and parent is not None:
            from gitboot.endpoint.api import PushSecret, Webhooks

            fetch = partial(os.kill, parent, signal.SIGHUP)  # the signal that `gitboot reconcile` also sends
            clients = structs.replace(clients, webhooks=Webhooks(PushSecret(push_secret), fetch))
        serve(
            (socket.socket(fileno=fd), operators, machines_tls),
            clients,
            status=status,
            ledger=ledger_id,
            push_secret=push_secret,
            heartbeat_fd=life_fd,
        )
        return
    from gitboot.endpoint.server import build_url, open_listening_socket
    from gitboot.publish.manifest import MANIFEST

    listener = open_listening_socket(listen)
    url = build_url(listen, listener)
    operators, machines_tls = open_separate_sockets(access)
    print_new_event("Listening", url, url=url)
    if not is_file(output / MANIFEST):
        print_new_event(
            "NothingPublished",
            f"{output} contains no published files yet, so the endpoint cannot serve boots",
            is_warning=True,
        )
    if spool is None:
        print_new_event(
            "NotRecording",
            "without --spool, gitboot does not record fetches, withholds one-time boots and ignores reports",
            is_warning=True,
        )
    if (failure := check_shared_ledger(shared)) is not None:  # NotReady reports later changes
        print_new_event(failure[0], f"{failure[1]}, so the endpoint withholds one-time boots", is_warning=True)
    reap_orphans(stop.wait)
    if workers == 1:
        serve((listener, operators, machines_tls), build_client_rules(access, operators, machines_tls))
    else:
        from gitboot.endpoint.server import Workers

        command = format_worker_command(access, shared, out=output, spool=spool, assets=assets, secret_keys=secret_keys)
        with Workers(command, listener, workers, operators=operators, machines_tls=machines_tls):
            while not stop.wait(3600):
                pass
    print_new_event("Stopped", "the endpoint stopped")


def print_new_event(type: str, message: str, *, is_warning: bool = False, **facts: object) -> None:
    """Print a new event with the current time."""
    print_event(Event(at=current_time(), type=type, message=message, facts=facts, warning=is_warning))


def format_worker_command(
    access: AccessSettings, shared_ledger: PostgresAddress | None, ledger_id: str | None = None, **paths: Path | None
) -> list[str]:
    """Return the command line for a worker process. The worker process inherits the sockets of this process.

    ``paths`` contains the other options, all of which are paths, by name.
    """
    arguments = ["--parent", str(os.getpid()), *(["--ledger-id", ledger_id] if ledger_id is not None else [])]
    for name, path in paths.items():
        if path is not None:
            arguments += [f"--{name.replace('_', '-')}", str(path.absolute())]
    arguments += [*format_access_arguments(access), *format_ledger_arguments(shared_ledger)]
    return build_python_command("gitboot", "serve", *arguments)


@contextmanager
def serve_endpoints(
    settings: Settings, access: AccessSettings, ledger: str, wake: Callable[[], None]
) -> Iterator[Callable[[], Endpoints] | None]:
    """Run the endpoints on the --listen address for the duration of the block.

    Yield a function that returns their state.

    ``wake`` is called whenever an endpoint starts or ends.
    """
    if settings.listen is None:
        yield None
        return
    from gitboot.controller.instance.state_directory import LEDGER, STATUS
    from gitboot.endpoint.server import Workers, build_url, open_listening_socket

    files = build_credential_files(access, load_secret_keys(settings.secret_keys), settings.push_secret)
    certificates = [each for each in build_certificates(access) if each is not None]
    listener = open_listening_socket(settings.listen)
    url = build_url(settings.listen, listener)
    operators, machines_tls = open_separate_sockets(access)
    command = format_worker_command(
        access,
        read_address(settings.state / LEDGER),
        ledger_id=ledger,
        out=settings.output,
        spool=settings.spool,
        assets=settings.assets,
        status=settings.state / STATUS,
        secret_keys=settings.secret_keys,
        push_secret=settings.push_secret,
    )
    with Workers(command, listener, settings.workers, wake, operators=operators, machines_tls=machines_tls) as workers:
        print_new_event("Listening", url, url=url)

        def read_endpoints() -> Endpoints:
            found = structs.replace(workers.count_processes(), unread=files.find_failures())
            # Each process checks the certificates itself and reports its own result.
            for each in certificates:
                each.reload_if_changed(current_time())
            failures = [each.failure for each in certificates if each.failure is not None]
            return structs.replace(found, certificate="; ".join(failures) or None)

        yield read_endpoints


_DRAIN_CHECKS: Final = 5  # limits how often many unknown machines can wake an instance
_TOO_MANY_IDLE: Final = (
    "clients keep more idle connections open than the setting `idle-connections` allows. gitboot closes the oldest "
    "connections and counts them in gitboot_idle_connections_closed_total"
)


def _serve_until_stopped(
    sockets: tuple[socket.socket, socket.socket | None, socket.socket | None],  # machines, operators, machines' TLS
    clients: ClientRules,
    *,
    output: Path,
    spool: Path | None,
    assets: Path | None,
    keys: AgeKeys | None,
    shared_ledger: PostgresAddress | None,
    access: AccessSettings,
    stop: StopRequest,
    status: Path | None = None,
    ledger: str | None = None,
    push_secret: Path | None = None,
    heartbeat_fd: int | None = None,
) -> None:
    from gitboot.endpoint.access_control import OperatorDenial
    from gitboot.endpoint.app import Endpoint
    from gitboot.endpoint.boot_gate import open_denial_reports
    from gitboot.endpoint.checked_clock import CheckedClock
    from gitboot.endpoint.recorder import ReadinessEvents, find_unready_reason
    from gitboot.endpoint.served_files import REFRESH_S, PublishedTree
    from gitboot.endpoint.server import EndpointServer
    from gitboot.endpoint.tls import TlsSocket, classify_failure
    from gitboot.fetchlog.log_entries import build_untrusted_proxy_message
    from gitboot.fetchlog.spool import get_endpoint_folder
    from gitboot.fetchlog.unknown_machines import UnknownMachineRecorder
    from gitboot.publish.tree_reader import StopReader, list_stop_folders

    raise_open_file_limit()
    if heartbeat_fd is not None:
        os.set_blocking(heartbeat_fd, False)
    with ExitStack() as stack:
        recorder = stack.enter_context(open_recorder(spool, shared_ledger))
        checked_clock = CheckedClock(
            current_time, clock_state=read_clock_state, folder=get_endpoint_folder(spool) if spool is not None else None
        )
        stop_orders = StopReader(*list_stop_folders(output, spool))
        tree = PublishedTree(
            output, current_time, status=status, ledger=ledger, checked_clock=checked_clock, stop_orders=stop_orders
        )
        clients = structs.replace(clients, unknown_recorder=UnknownMachineRecorder(spool))
        endpoint = Endpoint(tree, current_time, recorder, clients, assets, keys)
        files = build_credential_files(access, keys, push_secret)
        _print_changed_files(files, clients)

        def count_operator(_: OSError) -> None:
            endpoint.operator_denials[OperatorDenial.HANDSHAKE] += 1

        def count_machine(error: OSError) -> None:
            endpoint.failed_handshakes[classify_failure(error)] += 1

        machines, operators, machines_tls = sockets
        plain, encrypted = [machines], []
        for each, certificate, count_failure in (
            (operators, clients.certificate, count_operator),
            (machines_tls, clients.machines_certificate, count_machine),
        ):
            if each is not None and certificate is not None:
                encrypted.append(TlsSocket(each, certificate.context, endpoint.limits, count_failure))
            elif each is not None:
                plain.append(each)
        server = stack.enter_context(EndpointServer(endpoint, *plain, tls_sockets=encrypted))
        gc.freeze()  # so that the collector does not examine the existing objects again
        report_denials = stack.enter_context(open_denial_reports(spool, endpoint.denials))
        ready, reported_closed, is_proxy_reported, checks = ReadinessEvents(), 0, False, count()
        while not stop.wait(REFRESH_S):
            tree.refresh()
            checked_clock.save()
            _print_changed_files(files, clients)
            if recorder is not None:
                recorder.check()
            if (event := ready.update(find_unready_reason(tree, recorder), current_time())) is not None:
                print_event(event)
            report_denials(current_time())
            if next(checks) % _DRAIN_CHECKS == 0:
                clients.unknown_recorder.write_file()
            if (found := endpoint.denials.build_report(current_time()).proxies) and not is_proxy_reported:
                print_new_event("ProxyNotTrusted", build_untrusted_proxy_message(found), is_warning=True)
            is_proxy_reported = is_proxy_reported or bool(found)
            if endpoint.limits.closed_count and not reported_closed:
                print_new_event("TooManyIdleConnections", _TOO_MANY_IDLE, is_warning=True)
            reported_closed = endpoint.limits.closed_count
            if heartbeat_fd is not None:
                server.write_heartbeat(heartbeat_fd)


def _print_changed_files(files: CredentialFiles, clients: ClientRules) -> None:
    at = current_time()
    certificates = (each for each in (clients.certificate, clients.machines_certificate) if each is not None)
    for event in (files.report_changes(at), *(each.reload_if_changed(at) for each in certificates)):
        if event is not None:
            print_event(event)
