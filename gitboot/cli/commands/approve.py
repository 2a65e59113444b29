"""`gitboot approve`: let a held commit pass."""

from __future__ import annotations

from pathlib import Path

import click

from gitboot.cli.options import reason_option, state_option
from gitboot.review.guards import Guard


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@click.argument("digest")
@state_option
@click.option(
    "--guard",
    "guards",
    required=True,
    multiple=True,
    type=click.Choice([str(guard) for guard in Guard]),
    metavar="GUARD",
    help="What is acknowledged: maxReinstalls, maxUpdatePercent, … as `gitboot status` names it; may be given "
    "several times.",
)
@reason_option
def approve_command(digest: str, state: Path, guards: tuple[str, ...], reason: str) -> None:
    """Acknowledge what holds the newest commit; DIGEST is of all that it changes, as
    `gitboot status` shows it.

    It counts for exactly these changes: one more commit, and they are to be looked at again. The line
    `Gitboot-Ack: DIGEST GUARD` in a commit's message says the same, and is reviewed with it.
    """
    from gitboot.cli.instance import held_changes, request
    from gitboot.controller.instance.state_directory import read_status
    from gitboot.controller.operator_requests import APPROVE, check_approval
    from gitboot.instance.acting import check_acts

    read_status(state)  # raises an error if no instance has run here
    check_acts(state)
    check_approval(held_changes(state), digest, guards)
    click.echo(request(state, APPROVE, {"digest": digest, "guards": sorted(set(guards)), "reason": reason}))
