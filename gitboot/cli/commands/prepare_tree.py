"""`gitboot prepare`: the process in which a standby prepares its tree."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gitboot.child_processes import encode, end_with, python
from gitboot.cli.main import exit_of
from gitboot.cli.options import allowance_options
from gitboot.cli.terminal import tell, tell_what_is_logged
from gitboot.errors import GitbootError, NotYetDone
from gitboot.jsonio import facts
from gitboot.status.conditions import Event

if TYPE_CHECKING:
    from gitboot.controller.instance.settings import Settings

_NICE: Final = 10  # whatever else the host does goes first


@click.command()
@click.option("--out", "output", required=True, type=click.Path(path_type=Path))
@click.option("--state", required=True, type=click.Path(path_type=Path))
@click.option("--spool", type=click.Path(path_type=Path))
@click.option("--site")
@click.option("--output-group")
@click.option("--looks/--looks-not", default=True, help="Whether the instance looks at artifacts.")
@click.option("--parent", type=int, required=True, help="The process that started this, and holds STATE.")
@allowance_options
def prepare_subcommand(
    output: Path,
    state: Path,
    spool: Path | None,
    site: str | None,
    output_group: str | None,
    looks: bool,
    parent: int,
    commit_seconds: int | None,
    commit_memory: int | None,
    commit_workers: int | None,
) -> None:
    """Prepare OUTPUT for the time when this standby becomes active. Standbys start this command."""
    from gitboot.controller.instance.settings import ArtifactSettings, CheckAssets, GitSettings, Settings
    from gitboot.controller.instance.standby import prepare
    from gitboot.evaluator.protocol import Allowance

    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent says when
    os.nice(_NICE)
    tell_what_is_logged()
    settings = Settings(
        output=output,
        state=state,
        git=GitSettings(repository=""),  # the standby fetches
        allowance=Allowance(seconds=commit_seconds, mebibytes=commit_memory, workers=commit_workers),
        output_group=output_group,
        site=site,
        artifacts=ArtifactSettings(check=CheckAssets.HEAD if looks else CheckAssets.OFF),
        spool=spool,
    )
    try:
        done = prepare(settings, clock=_clock, warn=_warn)
    except GitbootError as error:
        _hand_over("NotPrepared", f"{error}; it is tried again", is_warning=not isinstance(error, NotYetDone))
        raise click.exceptions.Exit(exit_of(error)) from None
    message = f"{output} has the tree of {done.servers:,} servers at {done.commit[:12]}, {done.halted:,} of them halted"
    _hand_over("Prepared", message, commit=done.commit, servers=done.servers, halted=done.halted, asOf=done.at)


def _hand_over(type: str, message: str, *, is_warning: bool = False, **details: object) -> None:
    """Send the result to the standby that started this process."""
    event = Event(at=_clock(), type=type, message=message, facts=facts(details), warning=is_warning)
    click.echo(encode(event), nl=False)


def _warn(message: str) -> None:
    tell(Event(at=_clock(), type="CacheUnusable", message=message, warning=True))


def _clock() -> datetime:
    return datetime.now(UTC)


def prepare_command(settings: Settings) -> list[str]:
    """Return the command line with which a standby prepares the tree of these settings."""
    from gitboot.controller.instance.settings import CheckAssets

    arguments = ["--out", str(settings.output.absolute()), "--state", str(settings.state.absolute())]
    allowance = settings.allowance
    options = {
        "--spool": settings.spool.absolute() if settings.spool is not None else None,
        "--site": settings.site,
        "--output-group": settings.output_group,
        "--commit-seconds": allowance.seconds,
        "--commit-memory": allowance.mebibytes,
        "--commit-workers": allowance.workers,
    }
    for name, value in options.items():
        if value is not None:
            arguments += [name, str(value)]
    if settings.artifacts.check is CheckAssets.OFF:
        arguments.append("--looks-not")
    return python("gitboot", "prepare", *arguments, "--parent", str(os.getpid()))
