"""`gitboot suspend`: accept and set nothing for a while."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from gitboot.cli.options import InstantType, now, reason_option, state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@reason_option
@click.option("--until", required=True, type=InstantType(), metavar="INSTANT", help="When it ends by itself.")
def suspend_command(state: Path, reason: str, until: datetime) -> None:
    """Let the instance on STATE accept no new commit and set nothing, until an instant or `gitboot resume`.

    Windows still open and end, entries still turn to the disk, overrides are still withdrawn.
    """
    from gitboot.cli.instance import request
    from gitboot.controller.operator_requests import SUSPEND
    from gitboot.errors import UsageError
    from gitboot.jsonio import format_instant

    if until <= now():
        raise UsageError(f"--until {format_instant(until)} is past; name an instant to come")
    click.echo(request(state, SUSPEND, {"reason": reason, "until": format_instant(until)}))
