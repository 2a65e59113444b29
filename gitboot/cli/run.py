"""`gitboot run`: the main job."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gitboot.cli.exit import Exit
from gitboot.cli.telling import tell
from gitboot.errors import UsageError
from gitboot.report import Event, Observation, Status
from gitboot.settings import Settings

if TYPE_CHECKING:
    from gitboot.loop import Loop
    from gitboot.overriding import Overriding
    from gitboot.reconcile import Reconciler
    from gitboot.serve.server import Server


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@click.argument("repository", envvar="GITBOOT_REPOSITORY")
@click.option("--reference", metavar="REF", help="Branch, tag or commit to follow. Default: the remote's HEAD.")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that is published: OUTPUT/boot for machines, OUTPUT/ops for operators.",
)
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the ledger and gitboot's own clone live. Back up STATE/ledger.sqlite: it cannot be rebuilt.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the same files and the API here. Default: do not serve.")
@click.option(
    "--records",
    type=click.Choice(["fresh", "adopt"]),
    help="What a new ledger is told: fresh (no server with provision 1 or more is installed), adopt (all are).",
)
@click.option(
    "--credentials",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with NAME/username and NAME/password for the BMCs. Default: none.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory that is served under /assets/, for kernels and images. Default: none.",
)
@click.option("--poll", "poll_s", type=float, default=60, show_default=True, help="Seconds between two fetches.")
@click.option("--once", is_flag=True, help="One pass, then exit: 3 where the commit is invalid, 8 where it is partial.")
def command(
    repository: str,
    reference: str | None,
    output: Path,
    state: Path,
    listen: str | None,
    records: str | None,
    credentials: Path | None,
    assets: Path | None,
    poll_s: float,
    once: bool,
) -> None:
    """Watch REPOSITORY and do what its newest valid commit says, until interrupted.

    REPOSITORY is a path or URL of a Git repository. Each pass resolves what every server boots, publishes it
    as files, serves them, and sets boot overrides at BMCs. Every valid commit is accepted: guards against
    dangerous ones come with a later version. A commit that is invalid changes nothing: the last accepted one
    goes on. Each option has a GITBOOT_ variable: GITBOOT_OUTPUT, GITBOOT_STATE, GITBOOT_LISTEN …
    """
    sys.exit(
        _run(
            Settings(
                repository=repository,
                reference=reference,
                output=output,
                state=state,
                listen=listen,
                records=records,
                credentials=credentials,
                assets=assets,
                poll_s=poll_s,
            ),
            once=once,
        )
    )


def _run(settings: Settings, *, once: bool) -> Exit:
    """Put an instance together, run it, take it apart."""
    from gitboot.bmc.apply import Fleet as Bmcs
    from gitboot.journal import Journal
    from gitboot.ledger import Ledger
    from gitboot.lock import locked
    from gitboot.loop import Loop
    from gitboot.overriding import Overriding
    from gitboot.provisioning import Provisioning
    from gitboot.publish.directory import Directory
    from gitboot.reconcile import Reconciler
    from gitboot.source import Remote, Source

    with ExitStack() as stack:
        _make(settings.state)
        stack.enter_context(locked(settings.state))
        ledger = stack.enter_context(Ledger.open(settings.state / "ledger.sqlite"))
        target = stack.enter_context(Directory.open(settings.output, ledger=ledger.identity))
        source = Source(Remote(url=settings.repository, reference=settings.reference), settings.state)
        journal = Journal(ledger, tell)
        provisioning = Provisioning(ledger, journal, told=settings.records)
        bmcs = Bmcs(credentials=settings.credentials, write=ledger.write_armed, clock=_clock)
        stack.callback(bmcs.close)
        overriding = Overriding(bmcs, ledger, provisioning, journal)
        reconciler = Reconciler(
            source=source,
            target=target,
            ledger=ledger,
            provisioning=provisioning,
            overriding=overriding,
            journal=journal,
        )
        loop = Loop(reconciler, source, poll_s=settings.poll_s, clock=_clock, tell=tell)
        bmcs.on_finished = loop.wake
        if once:
            loop.once()
            return _exit_of(reconciler.status)
        if settings.listen is not None:
            server = stack.enter_context(_endpoint(settings, reconciler, overriding, loop))
            tell(Event(at=_clock(), type="Listening", message=server.url, facts={"url": server.url}))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.stop())
        signal.signal(signal.SIGHUP, lambda *_: loop.fetch_now())
        loop.run()
        tell(Event(at=_clock(), type="Stopped", message="what was published stays"))
    return Exit.FINE


def _endpoint(settings: Settings, reconciler: Reconciler, overriding: Overriding, loop: Loop) -> Server:
    from gitboot.serve.app import Endpoint
    from gitboot.serve.server import Server

    def observe(observation: Observation) -> None:
        overriding.observations.put(observation)
        loop.wake()

    endpoint = Endpoint(
        answers=lambda: reconciler.answers,
        status=lambda: reconciler.status,
        clock=_clock,
        observe=observe,
        assets=settings.assets,
        artifacts=settings.output / "boot" / "o",
    )
    return Server(endpoint, settings.listen or "")


def _exit_of(status: Status) -> Exit:
    """What a single pass ends with: the worst that it met."""
    if not status.condition("SourceReady"):
        return Exit.SOURCE
    if not status.condition("CommitAccepted"):
        return Exit.INVALID
    if not all(condition.status for condition in status.conditions):
        return Exit.PARTIAL
    return Exit.FINE


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}") from error


def _clock() -> datetime:
    return datetime.now(UTC)
