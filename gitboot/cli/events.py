"""`gitboot events`: what an instance did, oldest first."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gitboot.cli.inputs import state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@click.option("--server", metavar="NAME", help="Only what happened to this server.")
def command(state: Path, server: str | None) -> None:
    """Print what the instance on STATE did, as JSON lines: commits, publications, evidence, every override."""
    from gitboot.instance.directory import LEDGER, has_ledger, never_ran
    from gitboot.ledger import events
    from gitboot.ledger.opening import open_ledger

    if not has_ledger(state):
        raise never_ran(state)
    with open_ledger(state / LEDGER) as ledger:
        for event in events.read(ledger):
            if server is None or event.get("server") == server:
                click.echo(json.dumps(event, sort_keys=True))
