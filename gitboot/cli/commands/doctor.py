"""`gitboot doctor`: this machine, and the settings of an instance on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import structs

from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    config_of,
    credentials_option,
    now,
    output_option,
    reject_old_variables,
    write_outputs,
)
from gitboot.errors import HeldByAnother
from gitboot.jsonio import document
from gitboot.standard_streams import style

if TYPE_CHECKING:
    from gitboot.controller.instance.environment_checks import Examined

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command(context_settings=VARIABLES)
@config_of("run")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="The state directory. Default: none.")
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # GITBOOT_OUTPUT, after the parameter's name
    metavar="OUTPUT",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that is published. Default: none.",
)
@credentials_option
@output_option("text", "json")
@evaluator_command
def command(
    state: Path | None, output: Path | None, credentials: Path | None, outputs: tuple[OutputOption, ...]
) -> None:
    """Look at what an instance needs around it, running or not, and say what to do where it is not as it should be.

    It looks at the Git library, the clock, STATE and its ledger, OUTPUT, room on their disks, credentials for BMCs and
    where they may be sent, and under each base URL whether machines find what DHCP names. It changes nothing, and asks
    no BMC: that is `gitboot bmc get`. It reads the file of `gitboot run --config`, too.

    Exit codes: 0 where nothing is wrong, else 8.
    """
    from gitboot.status.conditions import filled

    reject_old_variables()
    given = {word: str(path) for word, path in (("STATE", state), ("OUTPUT", output)) if path is not None}
    found = tuple(
        structs.replace(each, hint=each.hint and filled(each.hint, given))
        for each in _findings(state, output, credentials)
    )
    text = partial("\n".join, [_as_text(each) for each in found])
    write_outputs(outputs, json=partial(document, items=found), text=text)
    if any(each.health == "failed" for each in found):
        sys.exit(Exit.PARTIAL)


def _findings(state: Path | None, output: Path | None, credentials: Path | None) -> Iterator[Examined]:
    from gitboot.cli.instance_client import looked_at
    from gitboot.controller.instance import environment_checks
    from gitboot.controller.instance.state_directory import acting_here, check_acts, has_ledger, running
    from gitboot.git.repository import LIBGIT2_VERSION, features
    from gitboot.system_clock import keeping

    yield from environment_checks.of_git(features(), LIBGIT2_VERSION)
    yield from environment_checks.of_the_clock(keeping())
    if state is None:
        return
    yield from environment_checks.of_state(state)
    if not state.is_dir() or not has_ledger(state):
        return
    try:
        check_acts(state)
    except HeldByAnother as error:
        yield environment_checks.fine("ledger", str(error))  # another host acts by it
        return
    if (lease := acting_here(state)) is not None:
        message = f"this host's instance acts, under lease {lease.number}, until {lease.until} and on"
        yield environment_checks.fine("lease", message)
    with looked_at(state, now()) as look:
        yield from environment_checks.of_the_ledger(look, running(state))
        yield from environment_checks.of_who_sets(look)
        if output is not None:
            yield from environment_checks.of_output(output, state, servers=len(look.commit.decisions.servers))
        yield from environment_checks.of_credentials(credentials, look)
        yield from environment_checks.of_mirrors(look.commit.decisions)


def _as_text(examined: Examined) -> str:
    from gitboot.cli.terminal import wrapped

    health = style(f"{examined.health:<8}", fg=_COLOURS[examined.health])
    lines = [f"{health} {examined.subject:<12} {wrapped(examined.message).strip()}"]
    return "\n".join([*lines, *([f"    {examined.hint}"] if examined.hint else [])])
