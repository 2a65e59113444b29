"""`gitboot hub`: one page, and one place for metrics, over the instances of several sites."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gitboot.cli.access import AccessSettings, check, clients_of, operators_options
from gitboot.cli.inputs import LONGEST_S, FiniteRange, config_option
from gitboot.cli.stopping import Stop, end_by_signal
from gitboot.cli.telling import log_format_option, tell, tell_what_is_logged
from gitboot.status import Event

if TYPE_CHECKING:
    import socket

    from gitboot.hub.showing import Hub
    from gitboot.serve.certificate import Certificate
    from gitboot.serve.server import EndpointServer

_LEAVE_S: Final = 5  # for who is asked to answer, once it is to end


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@click.argument("instances", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@config_option
@log_format_option
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Where to listen.")
@click.option(
    "--every",
    type=FiniteRange(min=1, max=LONGEST_S),
    metavar="SECONDS",
    default=30,
    show_default=True,
    help="How often each instance is asked.",
)
@operators_options
def command(instances: Path, listen: str, every: float, **given: Any) -> None:
    """Show the instances that FILE names as one: a page, /metrics with the labels site and name, /api/v1/sites.

    It only reads, and machines are not answered. One that cannot be reached is shown as it was read last, with since
    when. FILE: [instances.NAME] with url, an endpoint where operators ask, or out, a published tree on this machine.
    """
    from gitboot.hub.members import read_members
    from gitboot.hub.showing import Hub
    from gitboot.hub.watching import Watch
    from gitboot.serve.server import listen_at, url_of

    tell_what_is_logged()
    access = AccessSettings(operators_listen=listen, idle_connections=1, spool_tokens=None, **given)
    check(access)
    members, clients = read_members(instances), clients_of(access, None)
    stop = Stop()
    end_by_signal(stop.set, within_s=_LEAVE_S)
    listening = listen_at(listen)
    watch = Watch(members, _clock)
    hub = Hub(watch, _clock, clients)
    _look_at(clients.certificate)
    with _server(hub, listening, clients.certificate):
        url = url_of(listen, listening, "http" if clients.certificate is None else "https")
        tell(Event(at=_clock(), type="Listening", message=url, facts={"url": url}))
        watch.turn()
        while not stop.wait(every):
            watch.turn()
            _look_at(clients.certificate)
    watch.close()


def _server(hub: Hub, listening: socket.socket, certificate: Certificate | None) -> EndpointServer:
    from gitboot.serve.encrypted import EncryptedSocket
    from gitboot.serve.server import EndpointServer

    if certificate is None:
        return EndpointServer(hub, listening)
    return EndpointServer(hub, encrypted=EncryptedSocket(listening, certificate.context, hub.crowd, lambda: None))


def _look_at(certificate: Certificate | None) -> None:
    if certificate is not None and (event := certificate.look(_clock())) is not None:
        tell(event)


def _clock() -> datetime:
    return datetime.now(UTC)
