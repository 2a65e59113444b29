"""`gitboot events`: what an instance did, oldest first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gitboot.cli.options import OutputOption, output_option, state_option
from gitboot.errors import UsageError
from gitboot.text import did_you_mean, one_line, printable

if TYPE_CHECKING:
    from gitboot.ledger.store import Store


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@click.option("--server", metavar="NAME", help="Only what happened to this server.")
@output_option("json", "text")
def events_command(state: Path, server: str | None, outputs: tuple[OutputOption, ...]) -> None:
    """Print what the instance on STATE did, a line each: commits, publications, evidence, every override."""
    from gitboot.controller.instance.state_directory import LEDGER, has_ledger, never_ran
    from gitboot.ledger.open_ledger import open_ledger

    if not has_ledger(state):
        raise never_ran(state)
    with open_ledger(state / LEDGER) as ledger:
        if server is not None:
            _check_known(ledger, server)
        for output in outputs:
            output.write_lines(map(_LINES[output.format], _read(ledger, server)))


def _read(ledger: Store, server: str | None) -> Iterator[dict[str, Any]]:
    from gitboot.ledger import events

    return (event for event in events.read(ledger) if server is None or event.get("server") == server)


def _check_known(ledger: Store, server: str) -> None:
    """Raise `UsageError` for a server of which nothing was ever heard, under this name."""
    from gitboot.ledger import machines

    names = {machine.name for machine in machines.read(ledger).values()}
    if server not in names and not any(True for _ in _read(ledger, server)):
        raise UsageError(
            f"nothing was ever known of a server {server!r}; {did_you_mean(server, names, 'none is near')}"
        )


def _json(event: Mapping[str, Any]) -> str:
    return json.dumps(event, sort_keys=True)


def _text(event: Mapping[str, Any]) -> str:
    return printable(f"{event['at']} {event['type']:<18} {one_line(str(event['message']))}")


_LINES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {"json": _json, "text": _text}
