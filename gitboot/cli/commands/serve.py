"""`gitboot serve`, and the endpoints that `gitboot run` starts: serve the published boot files from this host."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from msgspec import Struct, structs

from gitboot.child_processes import (
    build_python_command,
    exit_with_parent,
    pause_garbage_collection,
    raise_open_file_limit,
    reap_orphans,
)
from gitboot.cli.endpoint_settings import (
    AccessSettings,
    access_options,
    build_certificates,
    build_client_rules,
    build_credential_files,
    check_access_settings,
    format_access_arguments,
    format_ledger_arguments,
    load_secret_keys,
    parse_shared_ledger,
    shared_ledger_options,
    take_access_settings,
)
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    VARIABLES,
    accept_filesystem_option,
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
    from gitboot.endpoint.app import ClientRules, Endpoint
    from gitboot.endpoint.recorder import SharedRecorder, SpoolRecorder
    from gitboot.endpoint.server import EndpointServer
    from gitboot.ledger.postgresql_fetch_log import SharedFetchLog
    from gitboot.status.instance_status import Endpoints


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
    help="The number of processes that serve requests. Each process uses one CPU.",
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
    next request. At the transition times in the tree, the endpoint begins to serve other boot scripts.
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
    shared_ledger = parse_shared_ledger(ledger, ledger_password, spool)
    is_worker = fd is not None
    if not is_worker:
        check_access_settings(access)
    settings = _EndpointSettings(
        output=output,
        spool=spool,
        assets=assets,
        keys=load_secret_keys(secret_keys, skip_check=is_worker),
        shared_ledger=shared_ledger,
        access=access,
    )
    stop = stop_on_signal(signal.SIGTERM) if parent is not None else stop_on_signal()
    if fd is not None:
        sockets = _Sockets(
            machines=socket.socket(fileno=fd),
            operators=socket.socket(fileno=operators_fd) if operators_fd is not None else None,
            machines_tls=socket.socket(fileno=machines_tls_fd) if machines_tls_fd is not None else None,
        )
        settings = structs.replace(
            settings, status=status, ledger_id=ledger_id, push_secret=push_secret, heartbeat_fd=life_fd
        )
        _serve_as_worker(settings, sockets, parent, stop)
        return
    sockets = _open_sockets(listen, access)
    _print_warnings(settings)
    reap_orphans(stop.wait)
    if workers == 1:
        clients = build_client_rules(access, sockets.operators, sockets.machines_tls)
        _serve_until_stopped(settings, sockets, clients, stop)
    else:
        from gitboot.endpoint.server import Workers

        command = format_worker_command(
            access, shared_ledger, out=output, spool=spool, assets=assets, secret_keys=secret_keys
        )
        with Workers(
            command, sockets.machines, workers, operators=sockets.operators, machines_tls=sockets.machines_tls
        ):
            while not stop.wait(3600):
                pass
    print_new_event("Stopped", "the endpoint stopped")


class _EndpointSettings(Struct, frozen=True, kw_only=True):
    """The settings of one process that serves an output tree."""

    output: Path
    spool: Path | None  # None: the process does not record fetches
    assets: Path | None
    keys: AgeKeys | None  # the keys that decrypt secrets
    shared_ledger: PostgresAddress | None  # None: the ledger is on this host, and the instance reads the spool
    access: AccessSettings
    # Only a worker process has these settings. Any other process ignores their environment variables.
    status: Path | None = None  # the file to which the instance writes its status
    ledger_id: str | None = None  # the identity of the instance's ledger
    push_secret: Path | None = None  # the file with the secret of the webhook
    heartbeat_fd: int | None = None  # a pipe, to which the process writes while it responds


class _Sockets(NamedTuple):
    """The listening sockets of an endpoint."""

    machines: socket.socket
    operators: socket.socket | None  # None: operators use the socket for machines
    machines_tls: socket.socket | None


def _open_sockets(listen: str, access: AccessSettings) -> _Sockets:
    """Listen for machines at ``listen``, and at the addresses in the settings. Print the addresses."""
    from gitboot.endpoint.server import build_url, open_listening_socket

    machines = open_listening_socket(listen)
    url = build_url(listen, machines)
    operators, machines_tls = open_separate_sockets(access)
    print_new_event("Listening", url, url=url)
    return _Sockets(machines, operators, machines_tls)


def _print_warnings(settings: _EndpointSettings) -> None:
    """Print why the endpoint cannot serve boots, or only some of them. The event NotReady reports later changes."""
    from gitboot.publish.manifest import MANIFEST

    if not is_file(settings.output / MANIFEST):
        print_new_event(
            "NothingPublished",
            f"{settings.output} contains no published files yet, so the endpoint cannot serve boots",
            is_warning=True,
        )
    if settings.spool is None:
        print_new_event(
            "NotRecording",
            "without --spool, gitboot does not record fetches, withholds one-time boots and ignores reports",
            is_warning=True,
        )
    failure = check_shared_ledger(settings.shared_ledger)
    if failure is not None:
        print_new_event(failure[0], f"{failure[1]}, so the endpoint withholds one-time boots", is_warning=True)


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


def _serve_as_worker(settings: _EndpointSettings, sockets: _Sockets, parent: int | None, stop: StopRequest) -> None:
    """Serve with the sockets of the parent process. A webhook lets the parent fetch."""
    clients = build_client_rules(settings.access, sockets.operators, sockets.machines_tls)
    if settings.push_secret is not None and parent is not None:
        from gitboot.endpoint.api import PushSecret, Webhooks

        fetch = partial(os.kill, parent, signal.SIGHUP)  # the signal that `gitboot reconcile` also sends
        clients = structs.replace(clients, webhooks=Webhooks(PushSecret(settings.push_secret), fetch))
    _serve_until_stopped(settings, sockets, clients, stop)


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


_DRAIN_CHECKS: Final = 5  # limits how often many unknown machines can wake an instance


def _serve_until_stopped(
    settings: _EndpointSettings, sockets: _Sockets, clients: ClientRules, stop: StopRequest
) -> None:
    """Serve the output tree. Regularly read new versions of the tree, and print events about the endpoint."""
    from gitboot.endpoint.app import Endpoint
    from gitboot.endpoint.boot_gate import open_denial_reports
    from gitboot.endpoint.checked_clock import CheckedClock
    from gitboot.endpoint.recorder import ReadinessEvents, find_unready_reason
    from gitboot.endpoint.served_files import REFRESH_S, PublishedTree
    from gitboot.fetchlog.spool import get_endpoint_folder
    from gitboot.fetchlog.unknown_machines import UnknownMachineRecorder
    from gitboot.publish.tree_reader import StopReader, list_stop_folders

    raise_open_file_limit()
    output, spool, heartbeat_fd = settings.output, settings.spool, settings.heartbeat_fd
    if heartbeat_fd is not None:
        os.set_blocking(heartbeat_fd, False)
    with ExitStack() as stack:
        recorder = stack.enter_context(open_recorder(spool, settings.shared_ledger))
        checked_clock = CheckedClock(
            current_time, clock_state=read_clock_state, folder=get_endpoint_folder(spool) if spool is not None else None
        )
        tree = PublishedTree(
            output,
            current_time,
            status=settings.status,
            ledger=settings.ledger_id,
            checked_clock=checked_clock,
            stop_orders=StopReader(*list_stop_folders(output, spool)),
        )
        unknown_recorder = UnknownMachineRecorder(spool)
        clients = structs.replace(clients, unknown_recorder=unknown_recorder)
        endpoint = Endpoint(tree, current_time, recorder, clients, settings.assets, settings.keys)
        files = build_credential_files(settings.access, settings.keys, settings.push_secret)
        _print_changed_files(files, clients)
        server = stack.enter_context(_start_server(endpoint, sockets, clients))
        gc.freeze()  # so that the collector does not examine the existing objects again
        report_denials = stack.enter_context(open_denial_reports(spool, endpoint.denials))
        readiness_events = ReadinessEvents()
        client_warnings = _ClientWarnings(endpoint)
        for check_number in count():
            if stop.wait(REFRESH_S):
                break
            tree.refresh()
            checked_clock.save()
            _print_changed_files(files, clients)
            if recorder is not None:
                recorder.check()
            event = readiness_events.update(find_unready_reason(tree, recorder), current_time())
            if event is not None:
                print_event(event)
            report_denials(current_time())
            if check_number % _DRAIN_CHECKS == 0:
                unknown_recorder.write_file()
            client_warnings.print_new()
            if heartbeat_fd is not None:
                server.write_heartbeat(heartbeat_fd)


def _start_server(endpoint: Endpoint, sockets: _Sockets, clients: ClientRules) -> EndpointServer:
    """Return a server for the sockets. The sockets for operators and for TLS use the certificates in ``clients``."""
    from gitboot.endpoint.access_control import OperatorDenial
    from gitboot.endpoint.server import EndpointServer
    from gitboot.endpoint.tls import TlsSocket, classify_failure

    def count_operator_failure(_: OSError) -> None:
        endpoint.operator_denials[OperatorDenial.HANDSHAKE] += 1

    def count_machine_failure(error: OSError) -> None:
        endpoint.failed_handshakes[classify_failure(error)] += 1

    plain_sockets = [sockets.machines]
    tls_sockets = []
    for listener, certificate, count_failure in (
        (sockets.operators, clients.certificate, count_operator_failure),
        (sockets.machines_tls, clients.machines_certificate, count_machine_failure),
    ):
        if listener is not None and certificate is not None:
            tls_sockets.append(TlsSocket(listener, certificate.context, endpoint.limits, count_failure))
        elif listener is not None:
            plain_sockets.append(listener)
    return EndpointServer(endpoint, *plain_sockets, tls_sockets=tls_sockets)


def _print_changed_files(files: CredentialFiles, clients: ClientRules) -> None:
    at = current_time()
    events = [files.report_changes(at)]
    for certificate in (clients.certificate, clients.machines_certificate):
        if certificate is not None:
            events.append(certificate.reload_if_changed(at))
    for event in events:
        if event is not None:
            print_event(event)


_TOO_MANY_IDLE: Final = (
    "clients keep more idle connections open than the setting `idle-connections` allows. gitboot closes the oldest "
    "connections and counts them in gitboot_idle_connections_closed_total"
)


class _ClientWarnings:
    """Warnings about the clients of an endpoint. The endpoint prints each warning once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._is_proxy_reported = False
        self._are_connections_reported = False

    def print_new(self) -> None:
        from gitboot.fetchlog.log_entries import build_untrusted_proxy_message

        proxies = self._endpoint.denials.build_report(current_time()).proxies
        if proxies and not self._is_proxy_reported:
            print_new_event("ProxyNotTrusted", build_untrusted_proxy_message(proxies), is_warning=True)
            self._is_proxy_reported = True
        if self._endpoint.limits.closed_count and not self._are_connections_reported:
            print_new_event("TooManyIdleConnections", _TOO_MANY_IDLE, is_warning=True)
            self._are_connections_reported = True


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
    certificates = [certificate for certificate in build_certificates(access) if certificate is not None]
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
            processes = workers.count_processes()
            unread = files.find_failures()
            # Each process checks the certificates itself and reports its own result.
            for certificate in certificates:
                certificate.reload_if_changed(current_time())
            failures = [certificate.failure for certificate in certificates if certificate.failure is not None]
            return structs.replace(processes, unread=unread, certificate="; ".join(failures) or None)

        yield read_endpoints


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


def print_new_event(type: str, message: str, *, is_warning: bool = False, **facts: object) -> None:
    """Print a new event with the current time."""
    print_event(Event(at=current_time(), type=type, message=message, facts=facts, warning=is_warning))
