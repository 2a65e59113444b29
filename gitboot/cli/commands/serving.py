"""What `gitboot run --listen` serves: endpoints over what is published, and the spool that they write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gitboot.background_threads import BackgroundThread
from gitboot.cli.commands.serve import worker_command
from gitboot.cli.endpoint_options import AccessSettings, certificate_of, credential_files
from gitboot.cli.endpoint_options_from_cli_serve import keys_in, make_spool, operators_socket
from gitboot.cli.forwarding import arguments_of
from gitboot.cli.telling import tell
from gitboot.controller.instance.settings import Settings
from gitboot.controller.instance.state_directory import LEDGER, STATUS
from gitboot.ledger.location import address_beside
from gitboot.status.events_from_status import Event
from gitboot.status.instance_status import Endpoints

if TYPE_CHECKING:
    from gitboot.endpoint.tls import Certificate
    from gitboot.serve.credential_files import CredentialFiles
    from gitboot.serve.worker_processes import Workers


def spool_of(settings: Settings) -> Path | None:
    """Where what was fetched is recorded; None where nothing can be fetched from this instance."""
    folder = settings.spool_folder
    if folder is not None:
        make_spool(folder)
    return folder


@contextmanager
def serving(
    settings: Settings, access: AccessSettings, ledger: str, wake: Callable[[], None]
) -> Iterator[Callable[[], Endpoints] | None]:
    """How the endpoints at --listen fare, as long as the block runs; ``wake`` is called when one has ended or begun."""
    if settings.listen is None:
        yield None
        return
    from gitboot.endpoint.server import listen_at, url_of
    from gitboot.serve.worker_processes import Workers

    files = credential_files(access, keys_in(settings.secret_keys), settings.push_secret)
    certificate = certificate_of(access)
    listening = listen_at(settings.listen)
    url = url_of(settings.listen, listening)
    operators = operators_socket(access)
    command = worker_command(
        *(settings.output, settings.spool, settings.assets, settings.state / STATUS, ledger, settings.secret_keys),
        access=access,
        push_secret=settings.push_secret,
    )
    command += arguments_of(address_beside(settings.state / LEDGER))
    with Workers(command, listening, settings.workers, wake, operators=operators) as workers:
        tell(Event(at=datetime.now(UTC), type="Listening", message=url, facts={"url": url}))
        yield partial(_how_they_fare, workers, certificate, files)


def _how_they_fare(workers: Workers, certificate: Certificate | None, files: CredentialFiles) -> Endpoints:
    found = replace(workers.counted(), unread=files.failures())
    if certificate is None:
        return found
    certificate.look(datetime.now(UTC))  # each of them looks for itself, and tells what it has found
    return replace(found, certificate=certificate.failure)


@contextmanager
def watched(folder: Path | None, wake: Callable[[], None], *, below: bool = False) -> Iterator[None]:
    """Call ``wake`` when something is written in a folder, as long as the block runs; the poll is the guarantee.

    ``below``: or in one below it.
    """
    import watchfiles

    if folder is None:
        yield
        return
    ended = threading.Event()

    def keep_waking() -> None:
        for _ in watchfiles.watch(
            folder, watch_filter=None, stop_event=ended, debounce=50, step=20, raise_interrupt=False, recursive=below
        ):
            wake()

    thread = BackgroundThread(keep_waking, name=f"watch-{folder.name}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout_s=1)
