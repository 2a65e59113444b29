"""`gitboot doctor`: check this host and an instance on this host."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import structs

from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.help_pages import Command
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    build_config_option,
    credentials_option,
    current_time,
    output_option,
    reject_old_variables,
    write_outputs,
)
from gitboot.errors import HeldByAnother
from gitboot.jsonio import format_document
from gitboot.standard_streams import style

if TYPE_CHECKING:
    from gitboot.controller.instance.environment_checks import Examined

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot doctor --config /etc/gitboot/gitboot.toml",
    exit_codes={
        Exit.FINE: "no check failed",
        Exit.PARTIAL: "a check failed",
    },
)
@build_config_option("run")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the instance. Default: none, and gitboot checks only the host.",
)
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # click would derive GITBOOT_OUTPUT from the parameter's name
    metavar="OUTPUT",
    type=click.Path(path_type=Path, file_okay=False),
    help="The output tree of the instance. Default: none.",
)
@credentials_option
@output_option("text", "json")
@evaluator_command
def command(
    state: Path | None, output: Path | None, credentials: Path | None, outputs: tuple[OutputOption, ...]
) -> None:
    """Check this host: clock, disks, credentials, loaders.

    gitboot checks the Git library, the clock, STATE and its ledger, OUTPUT, free disk space, the credentials for BMCs
    and where gitboot may send them, and the boot loaders that machines fetch at each base URL. For each failed check,
    it prints what to do. The instance may be running or not. gitboot changes nothing, and connects to no BMC. To check
    BMCs, use `gitboot bmc get`.

    With --config, gitboot reads the configuration file of `gitboot run`.
    """
    from gitboot.status.conditions import fill_placeholders

    reject_old_variables()
    given = {word: str(path) for word, path in (("STATE", state), ("OUTPUT", output)) if path is not None}
    checked = (
        structs.replace(each, hint=each.hint and fill_placeholders(each.hint, given))
        for each in _run_checks(state, output, credentials)
    )
    found = tuple(dict.fromkeys(checked))  # several sites may use the same mirror
    text = partial("\n".join, [_format_text(each) for each in found])
    write_outputs(outputs, json=partial(format_document, items=found), text=text)
    if any(each.health == "failed" for each in found):
        sys.exit(Exit.PARTIAL)


def _run_checks(state: Path | None, output: Path | None, credentials: Path | None) -> Iterator[Examined]:
    from gitboot.cli.instance_client import open_offline
    from gitboot.controller.instance import environment_checks
    from gitboot.controller.instance.state_directory import check_acts, find_running_process, has_ledger, read_own_lease
    from gitboot.git.repository import LIBGIT2_VERSION, list_features
    from gitboot.system_clock import read_clock_state

    yield from environment_checks.of_git(list_features(), LIBGIT2_VERSION)
    yield from environment_checks.of_the_clock(read_clock_state())
    if state is None:
        return
    yield from environment_checks.of_state(state)
    if not state.is_dir() or not has_ledger(state):
        return
    try:
        check_acts(state)
    except HeldByAnother as error:
        yield environment_checks.fine("ledger", str(error))  # the ledger is in use by an instance on another host
        return
    if (lease := read_own_lease(state)) is not None:
        message = f"the instance of this host is active, and renews its lease {lease.number}, valid until {lease.until}"
        yield environment_checks.fine("lease", message)
    with open_offline(state, current_time()) as look:
        yield from environment_checks.of_the_ledger(look, find_running_process(state))
        yield from environment_checks.of_who_sets(look)
        if output is not None:
            yield from environment_checks.of_output(output, state, servers=len(look.commit.decisions.servers))
        yield from environment_checks.of_credentials(credentials, look)
        yield from environment_checks.of_mirrors(look.commit.decisions)


def _format_text(results: Examined) -> str:
    from gitboot.cli.terminal import wrap_text

    label = f"{results.health:<8} {results.subject:<12} "
    message = wrap_text(results.message, " " * len(label), continuation="    ").removeprefix(" " * len(label))
    health = style(f"{results.health:<8}", fg=_COLOURS[results.health])
    lines = [f"{health} {results.subject:<12} {message}"]
    return "\n".join([*lines, *([f"    {results.hint}"] if results.hint else [])])
