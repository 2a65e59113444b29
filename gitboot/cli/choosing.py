"""Servers that a command is about, named or selected by their labels, and whether they are meant."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gitboot.controller.instance.assembly import Look
    from gitboot.resolve.server_decision_from_plan import Decision

yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask; needed for several servers where there is no terminal."
)


def meant_by(instance: Look, servers: tuple[str, ...], selector: str | None) -> dict[str, Decision]:
    """The servers that are named, and have these labels; never all of them by saying nothing."""
    from gitboot.cli.evaluated_fleet import selected
    from gitboot.cli.instance_client import decision_of
    from gitboot.errors import UsageError
    from gitboot.model.scalars.names import Name

    if not servers and selector is None:
        raise UsageError("name servers, or select them by their labels: -l role=web")
    for name in servers:
        decision_of(instance, name)  # says that it is not there
    labels, chosen = instance.commit.labels, selected(selector)
    found = {
        name: decision
        for name, decision in sorted(instance.commit.decisions.servers.items())
        if (not servers or name in servers) and (chosen is None or chosen.matches(Name(name), labels[name]))
    }
    if not found:
        raise UsageError(f"no server{' among these' if servers else ''} has the labels {selector}")
    return found


def go_on(*, yes: bool) -> None:
    """Go on if somebody says so."""
    from gitboot.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: say --yes if this is meant")
    click.confirm("Go on?", abort=True)
