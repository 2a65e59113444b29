"""`gitboot resume`: end a suspension."""

from __future__ import annotations

from pathlib import Path

import click

from gitboot.cli.options import state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
def resume_command(state: Path) -> None:
    """Let the instance on STATE accept commits and set overrides again."""
    from gitboot.cli.instance import request
    from gitboot.controller.operator_requests import RESUME

    click.echo(request(state, RESUME, {}))
