"""`gitboot serve`: an endpoint that serves an output tree without an instance."""

from __future__ import annotations

import gc
import os
import signal
import socket
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from gitboot.child_processes import (
    end_with_parent,
    pause_garbage_collection,
    python_command,
    raise_limits,
    reap_orphans,
)
from gitboot.cli.endpoint_options import (
    AccessSettings,
    access_options,
    build_clients,
    check_access_settings,
    check_shared_ledger,
    create_spool,
    credential_files,
    format_access_arguments,
    format_ledger_arguments,
    load_secret_keys,
    open_machines_tls_socket,
    open_operators_socket,
    open_recording,
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
from gitboot.errors import UsageError
from gitboot.files import check_fetch_log_folder
from gitboot.ledger.store import PostgresAddress
from gitboot.status.conditions import Event
from gitboot.system_clock import read_clock_state

if TYPE_CHECKING:
    from gitboot.endpoint.access_control import CredentialFiles
    from gitboot.endpoint.age_encryption import AgeKeys
    from gitboot.endpoint.app import ClientRules


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
    **given: Any,
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
        end_with_parent(parent)
        # A terminal sends SIGINT to all of its processes, but the parent decides when to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not output.is_dir():
        raise UsageError(f"{output} is not a directory; pass the output tree with --out")
    if spool is not None:
        create_spool(spool)
        if parent is None:  # otherwise the instance has already checked it
            check_fetch_log_folder(
                spool, accepted_filesystems, partial(_print_event, "StateMayBeLost", is_warning=True)
            )
    access = take_access_settings(given)
    shared = parse_shared_ledger(ledger, ledger_password, spool)
    if fd is None:
        check_access_settings(access)
    keys = load_secret_keys(secret_keys, skip_check=fd is not None)
    stop = stop_on_signal(signal.SIGTERM) if parent is not None else stop_on_signal()
    if fd is not None:
        operators, machines_tls = (
            socket.socket(fileno=each) if each is not None else None for each in (operators_fd, machines_tls_fd)
        )
        clients = build_clients(access, operators, machines_tls)
        if push_secret is not None and parent is not None:
            from gitboot.endpoint.api import PushSecret, Webhooks

            fetch = partial(os.kill, parent, signal.SIGHUP)  # the signal that `gitboot reconcile` also sends
            clients = structs.replace(clients, webhooks=Webhooks(PushSecret(push_secret), fetch))
        _serve_until_stopped(
            *(output, (socket.socket(fileno=fd), operators, machines_tls), clients, spool, assets, stop),
            *(status, ledger_id, keys, shared),
            access=access,
            push_secret=push_secret,
            life=life_fd,
        )
        return
    from gitboot.endpoint.server import build_url, open_listening_socket
    from gitboot.publish.manifest import MANIFEST

    listening = open_listening_socket(listen)
    url = build_url(listen, listening)
    operators, machines_tls = open_operators_socket(access), open_machines_tls_socket(access)
    _print_event("Listening", url, url=url)
    if not (output / MANIFEST).exists():
        _print_event(
            "NothingPublished",
            f"{output} has no published files yet: the endpoint serves no boots until an instance has published",
            is_warning=True,
        )
    if spool is None:
        _print_event(
            "NotRecording",
            "without --spool, gitboot records no fetches: it withholds one-time boots, and ignores reports",
            is_warning=True,
        )
    if (why := check_shared_ledger(shared)) is not None:  # NotReady reports later changes
        _print_event(why[0], f"{why[1]}: the endpoint withholds one-time boots", is_warning=True)
    reap_orphans(stop.wait)
    if workers == 1:
        clients = build_clients(access, operators, machines_tls)
        _serve_until_stopped(
            *(output, (listening, operators, machines_tls), clients, spool, assets, stop),
            keys=keys,
            shared_ledger=shared,
            access=access,
        )
    else:
        from gitboot.endpoint.server import Workers

        command = format_worker_command(output, spool, assets, secret_keys=secret_keys, access=access)
        command += format_ledger_arguments(shared)
        with Workers(command, listening, workers, operators=operators, machines_tls=machines_tls):
            while not stop.wait(3600):
                pass
    _print_event("Stopped", "the endpoint stopped")


def _print_event(type: str, message: str, *, is_warning: bool = False, **facts: object) -> None:
    print_event(Event(at=current_time(), type=type, message=message, facts=facts, warning=is_warning))


def format_worker_command(
    output: Path,
    spool: Path | None,
    assets: Path | None,
    status: Path | None = None,
    ledger: str | None = None,
    secret_keys: Path | None = None,
    *,
    access: AccessSettings,
    push_secret: Path | None = None,
) -> list[str]:
    """Return the command line for a worker process, which inherits this process's sockets."""
    arguments = ["--out", str(output.absolute()), "--parent", str(os.getpid())]
    paths = {
        "--spool": spool,
        "--assets": assets,
        "--status": status,
        "--secret-keys": secret_keys,
        "--push-secret": push_secret,
    }
    for name, path in paths.items():
        if path is not None:
            arguments += [name, str(path.absolute())]
    arguments += format_access_arguments(access)
    return python_command("gitboot", "serve", *arguments, *(["--ledger-id", ledger] if ledger is not None else []))


def _serve_until_stopped(
    output: Path,
    sockets: tuple[socket.socket, socket.socket | None, socket.socket | None],  # machines, operators, machines' TLS
    clients: ClientRules,
    spool: Path | None,
    assets: Path | None,
    stop: StopRequest,
    status: Path | None = None,
    ledger: str | None = None,
    keys: AgeKeys | None = None,
    shared_ledger: PostgresAddress | None = None,
    *,
    access: AccessSettings,
    push_secret: Path | None = None,
    life: int | None = None,
) -> None:
    from gitboot.endpoint.access_control import OperatorDenial
    from gitboot.endpoint.app import Endpoint
    from gitboot.endpoint.boot_gate import open_denial_reports
    from gitboot.endpoint.recorder import ReadinessEvents, find_unready_reason
    from gitboot.endpoint.served_files import REFRESH_S, CheckedClock, PublishedTree
    from gitboot.endpoint.server import EndpointServer
    from gitboot.endpoint.tls import TlsSocket, classify_failure
    from gitboot.fetchlog.log_entries import build_unnamed_proxy_message
    from gitboot.fetchlog.spool import endpoint_folder
    from gitboot.fetchlog.unknown_machines import UnknownMachineRecorder
    from gitboot.publish.tree_reader import StopReader, stop_folders

    raise_limits()
    if life is not None:
        os.set_blocking(life, False)
    with ExitStack() as stack:
        recording = stack.enter_context(open_recording(spool, shared_ledger))
        compared = CheckedClock(
            current_time, keeping=read_clock_state, folder=endpoint_folder(spool) if spool is not None else None
        )
        words = StopReader(*stop_folders(output, spool))
        tree = PublishedTree(
            output, current_time, status=status, ledger=ledger, checked_clock=compared, stop_orders=words
        )
        clients = structs.replace(clients, unknown_recorder=UnknownMachineRecorder(spool))
        endpoint = Endpoint(output, tree, current_time, recording, clients, assets, keys)
        files = credential_files(access, keys, push_secret)
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
        reporting = stack.enter_context(open_denial_reports(spool, endpoint.denials))
        ready, closed, proxied, looks = ReadinessEvents(), 0, False, count()
        while not stop.wait(REFRESH_S):
            tree.refresh()
            compared.save()
            _print_changed_files(files, clients)
            if recording is not None:
                recording.check()
            if (event := ready.update(find_unready_reason(tree, recording), current_time())) is not None:
                print_event(event)
            reporting(current_time())
            if next(looks) % _DRAIN_CHECKS == 0:
                clients.unknown_recorder.write_file()
            if (found := endpoint.denials.build_report(current_time()).proxies) and not proxied:
                _print_event("ProxyNotTrusted", build_unnamed_proxy_message(found), is_warning=True)
            proxied = proxied or bool(found)
            if endpoint.limits.closed_count and not closed:
                _print_event("TooManyIdleConnections", _TOO_MANY_IDLE, is_warning=True)
            closed = endpoint.limits.closed_count
            if life is not None:
                server.write_heartbeat(life)


def _print_changed_files(files: CredentialFiles, clients: ClientRules) -> None:
    at = current_time()
    certificates = (each for each in (clients.certificate, clients.machines_certificate) if each is not None)
    for event in (files.report_changes(at), *(each.reload_if_changed(at) for each in certificates)):
        if event is not None:
            print_event(event)


_DRAIN_CHECKS: Final = 5  # limits how often many unknown machines can wake an instance
_TOO_MANY_IDLE: Final = (
    "clients keep more idle connections open than the setting idle-connections allows. gitboot closes the oldest ones, "
    "and counts them in gitboot_idle_connections_closed_total"
)
