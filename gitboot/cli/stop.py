"""`gitboot stop`: offer no boot that writes disks, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from gitboot.cli.exit import Exit
from gitboot.cli.inputs import state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@click.option("--reason", required=True, help="Why, for those who find it later.")
@click.option("--all", "everything", is_flag=True, help="Stop all other boots from the network as well.")
def command(state: Path, reason: str, everything: bool) -> None:
    """Let the instance on STATE offer no boot that writes disks, at once and until `gitboot start`.

    A machine boots what its policy always boots if that writes no disk, else its disk. Windows still open and end, and
    overrides are withdrawn. It outlives restarts. Where no instance runs, nothing is published: endpoints that run go
    on giving what stands there, and the exit code is 8.
    """
    from gitboot.cli.instance import request
    from gitboot.instance.directory import running
    from gitboot.instance.requests import STOP

    click.echo(request(state, STOP, {"reason": reason, "everything": everything}))
    if running(state) is None:
        click.echo(_NOT_RUNNING, err=True)
        raise SystemExit(Exit.PARTIAL)


_NOT_RUNNING: Final = (
    "gitboot: no instance runs here, so nothing is published: endpoints that run (gitboot serve, mirrors) go on giving "
    "what stands there until one does; start it, or end them"
)
