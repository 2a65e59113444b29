"""`gitboot stop-installs`: withhold install boots, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from gitboot.cli.exit import Exit
from gitboot.cli.operator import operator
from gitboot.cli.options import now, reason_option, state_option
from gitboot.errors import OperatorError
from gitboot.stoppage import Stoppage


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@reason_option
@click.option("--all-boots", "everything", is_flag=True, help="Stop all other boots from the network as well.")
def stop_installs_command(state: Path, reason: str, everything: bool) -> None:
    """Withhold install boots at once, until `gitboot allow-installs`.

    An install boot writes a disk. A machine boots what its policy always boots if that writes no disk, else its disk.
    Windows still open and end, and gitboot clears overrides. Restarts do not end the stop. Endpoints obey at their next
    request, also if no instance runs on STATE. Without a running instance, files on other web servers and overrides
    stay as they are, and the exit code is 8.
    """
    from gitboot.cli.instance import request
    from gitboot.cli.words import done_in, folders_of, told_to
    from gitboot.controller.instance.state_directory import running
    from gitboot.controller.operator_requests import STOP
    from gitboot.observe.stopped import say

    at, stoppage = now(), Stoppage(operator(), reason, everything)
    found = folders_of(state := told_to(state))
    missed = list(done_in(found, lambda folder: say(folder, stoppage, at)))
    try:
        click.echo(request(state, STOP, {"reason": reason, "everything": everything}))
    except OperatorError as error:  # the instance takes over what endpoints were told as soon as it can
        if len(missed) == len(found):
            raise
        click.echo(stoppage)
        told = ", ".join(map(str, found))
        missed.append(f"the ledger was not told, only endpoints that look into {told}: {error}")
    if running(state) is None:
        missed.append(_NOT_RUNNING)
    for each in missed:
        click.echo(f"gitboot: {each}", err=True)
    if missed:
        raise SystemExit(Exit.PARTIAL)


_NOT_RUNNING: Final = (
    "no instance runs here: endpoints (gitboot serve) obey, but what other servers give out as files stays as it is, "
    "and so does what is set at BMCs; start the instance, or end those servers"
)
