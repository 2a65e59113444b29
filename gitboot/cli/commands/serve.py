"""`gitboot serve`: the endpoint alone, over a published tree."""

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

from gitboot.child_processes import end_with, python, raise_limits, reap_orphans, uncollected
from gitboot.cli.endpoint_options import (
    AccessSettings,
    _clock,
    access_arguments,
    access_of,
    access_options,
    arguments_of_forwarding,
    check,
    clients_of,
    credential_files,
    keys_in,
    make_spool,
    operators_socket,
    recording_in,
    shared_ledger_of,
    shared_ledger_options,
    why_not_shared,
)
from gitboot.cli.options import (
    VARIABLES,
    accept_filesystem_option,
    config_option,
    handed_settings,
    reject_old_variables,
    secret_keys_option,
)
from gitboot.cli.terminal import Stop, log_format_option, stopped_by_signal, tell, tell_what_is_logged
from gitboot.errors import UsageError
from gitboot.files import check_spool
from gitboot.ledger.location import PostgresAddress
from gitboot.status.conditions import Event
from gitboot.system_clock import keeping

if TYPE_CHECKING:
    from gitboot.endpoint.access_control import CredentialFiles
    from gitboot.endpoint.age_encryption import Keys
    from gitboot.endpoint.app import Clients
    from gitboot.endpoint.tls import Certificate


@click.command(context_settings=VARIABLES)
@config_option
@log_format_option
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # GITBOOT_OUTPUT, after the parameter's name
    metavar="OUTPUT",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The published tree: what `gitboot run` or `gitboot render` wrote, or a mirror with its ops/.",
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that answer, each on a core.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Record fetches here, for `gitboot run --spool`. Default: none is recorded, and what boots once not given.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory that is served under /assets/. Default: none.",
)
@secret_keys_option
@shared_ledger_options
@access_options
@accept_filesystem_option
@handed_settings
@click.option("--operators-fd", type=int, hidden=True, help="The same for operators.")
@click.option("--fd", type=int, hidden=True, help="A socket that listens already, of the process that started this.")
@click.option("--life-fd", type=int, hidden=True, help="A pipe to write to while this process responds.")
@click.option("--parent", type=int, hidden=True, help="That process.")
@click.option("--status", type=click.Path(path_type=Path), hidden=True, help="Where the instance leaves its status.")
@click.option("--push-secret", type=click.Path(path_type=Path), hidden=True, help="What webhooks are signed by.")
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
    life_fd: int | None,
    parent: int | None,
    status: Path | None,
    push_secret: Path | None,
    ledger_id: str | None,
    ledger: str | None,
    ledger_password: Path | None,
    **given: Any,
) -> None:
    """Serve a published tree, and the API over it; as many processes as wanted.

    It answers at once whatever the tree's size, sees what is published at the next request, and turns entries at the
    instants that the tree names.
    """
    with uncollected():  # what modules make stays
        from gitboot.endpoint import app, recorder, server  # noqa: F401
    tell_what_is_logged()
    reject_old_variables()
    if parent is not None:
        end_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent says when
    if not output.is_dir():
        raise UsageError(f"{output} is not a directory; give what was published with --out")
    if spool is not None:
        make_spool(spool)
        if parent is None:  # else the instance has looked at it
            check_spool(spool, accepted_filesystems, partial(_tell, "StateMayBeLost", is_warning=True))
    access = access_of(given)
    shared = shared_ledger_of(ledger, ledger_password, spool)
    if fd is None:
        check(access)
    keys = keys_in(secret_keys, may_be_wrong=fd is not None)
    stop = stopped_by_signal(signal.SIGTERM) if parent is not None else stopped_by_signal()
    if fd is not None:
        operators = socket.socket(fileno=operators_fd) if operators_fd is not None else None
        sockets, clients = (socket.socket(fileno=fd), operators), clients_of(access, operators)
        if push_secret is not None and parent is not None:
            from gitboot.endpoint.webhooks import Pushes, PushSecret

            fetch = partial(os.kill, parent, signal.SIGHUP)  # as `gitboot reconcile` asks for it
            clients = structs.replace(clients, pushes=Pushes(PushSecret(push_secret), fetch))
        _work(
            *(output, sockets, clients, spool, assets, stop, status, ledger_id, keys, shared),
            access=access,
            push_secret=push_secret,
            life=life_fd,
        )
        return
    from gitboot.endpoint.server import listen_at, url_of
    from gitboot.publish.manifest import MANIFEST

    listening = listen_at(listen)
    url = url_of(listen, listening)
    operators = operators_socket(access)
    _tell("Listening", url, url=url)
    if not (output / MANIFEST).exists():
        _tell(
            "NothingPublished",
            f"{output} holds nothing that was published: nobody is answered until it does",
            is_warning=True,
        )
    if spool is None:
        _tell(
            "NotRecording",
            "without --spool no fetch is recorded: what is to boot once goes to the disk, reports do not count",
            is_warning=True,
        )
    if (why := why_not_shared(shared)) is not None:  # what changes later is told with NotReady
        _tell(why[0], f"{why[1]}: no boot that is made once is given", is_warning=True)
    reap_orphans(stop.wait)
    if workers == 1:
        clients = clients_of(access, operators)
        _work(
            *(output, (listening, operators), clients, spool, assets, stop),
            keys=keys,
            shared=shared,
            access=access,
        )
    else:
        from gitboot.endpoint.server import Workers

        command = worker_command(output, spool, assets, secret_keys=secret_keys, access=access)
        command += arguments_of_forwarding(shared)
        with Workers(command, listening, workers, operators=operators):
            while not stop.wait(3600):
                pass
    _tell("Stopped", "the tree stays as it is")


def _tell(type: str, message: str, *, is_warning: bool = False, **facts: object) -> None:
    tell(Event(at=_clock(), type=type, message=message, facts=facts, warning=is_warning))


def worker_command(
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
    """The command line of a process that serves at a socket which this one hands down."""
    arguments = ["--out", str(output.absolute()), "--parent", str(os.getpid())]
    paths = [("--spool", spool), ("--assets", assets), ("--status", status), ("--secret-keys", secret_keys)]
    paths.append(("--push-secret", push_secret))
    for name, path in paths:
        if path is not None:
            arguments += [name, str(path.absolute())]
    arguments += access_arguments(access)
    return python("gitboot", "serve", *arguments, *(["--ledger-id", ledger] if ledger is not None else []))


def _work(
    output: Path,
    sockets: tuple[socket.socket, socket.socket | None],
    clients: Clients,
    spool: Path | None,
    assets: Path | None,
    stop: Stop,
    status: Path | None = None,
    ledger: str | None = None,
    keys: Keys | None = None,
    shared: PostgresAddress | None = None,
    *,
    access: AccessSettings,
    push_secret: Path | None = None,
    life: int | None = None,
) -> None:
    from gitboot.endpoint.access_control import Stranger
    from gitboot.endpoint.app import Endpoint
    from gitboot.endpoint.boot_gate import reporting_to
    from gitboot.endpoint.recorder import Turns, why_not_ready
    from gitboot.endpoint.served_files import LOOK_S, ComparedClock, PublishedTree
    from gitboot.endpoint.server import EndpointServer
    from gitboot.endpoint.tls import EncryptedSocket
    from gitboot.fetchlog.log_entries import unnamed_message
    from gitboot.fetchlog.spool import aside
    from gitboot.fetchlog.unknown_machines import UnknownAsked
    from gitboot.publish.tree_reader import Words, folders

    raise_limits()
    if life is not None:
        os.set_blocking(life, False)
    with ExitStack() as stack:
        recording = stack.enter_context(recording_in(spool, shared))
        compared = ComparedClock(_clock, keeping=keeping, folder=aside(spool) if spool is not None else None)
        words = Words(*folders(output, spool))
        tree = PublishedTree(output, _clock, status=status, ledger=ledger, compared=compared, words=words)
        clients = structs.replace(clients, asked=UnknownAsked(spool))
        endpoint = Endpoint(output, tree, _clock, recording, clients, assets, keys)
        files = credential_files(access, keys, push_secret)
        _tell_news(files, clients.certificate)
        plain, encrypted = [each for each in sockets if each is not None], None
        if len(plain) > 1 and clients.certificate is not None:

            def refuse() -> None:
                endpoint.strangers[Stranger.HANDSHAKE] += 1

            encrypted = EncryptedSocket(plain.pop(), clients.certificate.context, endpoint.limits, refuse)
        server = stack.enter_context(EndpointServer(endpoint, *plain, encrypted=encrypted))
        gc.freeze()  # what is there now stays; it need not be looked through again and again
        reporting = stack.enter_context(reporting_to(spool, endpoint.refusals))
        ready, closed, proxied, looks = Turns(), 0, False, count()
        while not stop.wait(LOOK_S):
            tree.look()
            compared.keep()
            _tell_news(files, clients.certificate)
            if recording is not None:
                recording.look()
            if (event := ready.turn(why_not_ready(tree, recording), _clock())) is not None:
                tell(event)
            reporting(_clock())
            if next(looks) % _LEAVING_LOOKS == 0:
                clients.asked.leave()
            if (found := endpoint.refusals.since(_clock()).proxies) and not proxied:
                _tell("ProxyNotTrusted", unnamed_message(found), is_warning=True)
            proxied = proxied or bool(found)
            if endpoint.limits.closed and not closed:
                _tell("TooManyIdleConnections", _TOO_MANY_IDLE, is_warning=True)
            closed = endpoint.limits.closed
            if life is not None:
                server.show_life(life)


def _tell_news(files: CredentialFiles, certificate: Certificate | None) -> None:
    at = _clock()
    for event in (files.look(at), certificate.look(at) if certificate is not None else None):
        if event is not None:
            tell(event)


_LEAVING_LOOKS: Final = 5  # so often, at most, a flood of unknown machines wakes an instance
_TOO_MANY_IDLE: Final = (
    "clients keep more connections open without asking than idle-connections in the file of --config allows: the "
    "oldest are closed, and counted in gitboot_idle_connections_closed_total"
)
