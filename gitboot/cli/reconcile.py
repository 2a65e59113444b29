"""`gitboot reconcile`: wake a running instance."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from gitboot.cli.inputs import state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
def command(state: Path) -> None:
    """Let the instance on STATE fetch and pass now, instead of at its next poll."""
    from gitboot.errors import UsageError
    from gitboot.instance.directory import running

    process = running(state)
    if process is None:
        raise UsageError(f"no gitboot runs with the state directory {state}: begin with `gitboot run`")
    try:
        os.kill(process, signal.SIGHUP)
    except OSError as error:
        raise UsageError(f"process {process} cannot be woken: {error.strerror}") from None
    click.echo(f"process {process} was woken; `gitboot status` shows what comes of it", err=True)
