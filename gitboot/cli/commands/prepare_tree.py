"""`gitboot prepare`: the process that prepares the output tree of a standby."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gitboot.child_processes import build_python_command, encode, exit_with_parent
from gitboot.cli.main import find_exit_code
from gitboot.cli.options import allowance_options, current_time
from gitboot.cli.terminal import log_to_events, print_event
from gitboot.errors import GitbootError, NotYetDone
from gitboot.jsonio import to_json_value
from gitboot.status.conditions import Event

if TYPE_CHECKING:
    from gitboot.controller.instance.settings import Settings

_NICENESS: Final = 10  # the lowest priority, so that all other processes on the host have precedence


@click.command()
@click.option("--out", "output", required=True, type=click.Path(path_type=Path))
@click.option("--state", required=True, type=click.Path(path_type=Path))
@click.option("--spool", type=click.Path(path_type=Path))
@click.option("--site")
@click.option("--output-group")
@click.option("--looks/--looks-not", default=True, help="Check artifacts, or do not check them.")
@click.option("--parent", type=int, required=True, help="The process ID of the standby.")
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
    exit_with_parent(parent)
    # Ignore SIGINT, which a terminal sends to all of its processes, because the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    log_to_events()
    # Imported only here, so that this process already has the lowest priority and ends with its parent.
    from gitboot.controller.instance.settings import ArtifactSettings, CheckAssets, GitSettings, Settings
    from gitboot.controller.instance.standby import prepare
    from gitboot.evaluator.protocol import EvaluationLimits

    settings = Settings(
        output=output,
        state=state,
        git=GitSettings(repository=""),  # do not fetch, because only the standby fetches
        allowance=EvaluationLimits(seconds=commit_seconds, mebibytes=commit_memory, workers=commit_workers),
        output_group=output_group,
        site=site,
        artifacts=ArtifactSettings(check=CheckAssets.HEAD if looks else CheckAssets.OFF),
        spool=spool,
    )
    try:
        prepared = prepare(
            settings,
            clock=current_time,
            warn=lambda text: print_event(Event(at=current_time(), type="CacheUnusable", message=text, warning=True)),
        )
    except GitbootError as error:
        _send_result(
            "NotPrepared", f"{error}; the standby will try again", is_warning=not isinstance(error, NotYetDone)
        )
        raise click.exceptions.Exit(find_exit_code(error)) from None
    message = (
        f"{output} contains the boot files for {prepared.servers:,} servers at commit {prepared.commit[:12]}, "
        f"excluding {prepared.halted:,} install boots"
    )
    _send_result(
        "Prepared",
        message,
        commit=prepared.commit,
        servers=prepared.servers,
        halted=prepared.halted,
        asOf=prepared.at,
    )


def _send_result(type: str, message: str, *, is_warning: bool = False, **details: object) -> None:
    """Send the result to the standby that started this process."""
    event = Event(at=current_time(), type=type, message=message, facts=to_json_value(details), warning=is_warning)
    click.echo(encode(event), nl=False)


def format_prepare_command(settings: Settings) -> list[str]:
    """Return the command line of the process that prepares the output tree of a standby."""
    from gitboot.controller.instance.settings import CheckAssets

    options = {
        "--out": settings.output.absolute(),
        "--state": settings.state.absolute(),
        "--spool": settings.spool.absolute() if settings.spool is not None else None,
        "--site": settings.site,
        "--output-group": settings.output_group,
        "--commit-seconds": settings.allowance.seconds,
        "--commit-memory": settings.allowance.mebibytes,
        "--commit-workers": settings.allowance.workers,
        "--parent": os.getpid(),
    }
    arguments = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    check_flags = ["--looks-not"] if settings.artifacts.check is CheckAssets.OFF else []
    return build_python_command("gitboot", "prepare", *arguments, *check_flags)
