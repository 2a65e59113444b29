"""`gitboot stop`: offer no boot that writes disks, at once."""

from __future__ import annotations

from pathlib import Path

import click

from gitboot.cli.inputs import state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@click.option("--reason", required=True, help="Why, for those who find it later.")
@click.option("--all", "everything", is_flag=True, help="Stop all other boots from the network as well.")
def command(state: Path, reason: str, everything: bool) -> None:
    """Let the instance on STATE offer no boot that writes disks, at once and until `gitboot start`.

    A machine boots what its policy always boots if that writes no disk, else its disk. Windows still open and end, and
    overrides are withdrawn. It outlives restarts.
    """
    from gitboot.cli.instance import request
    from gitboot.instance.requests import STOP

    click.echo(request(state, STOP, {"reason": reason, "everything": everything}))
