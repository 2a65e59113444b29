"""How much one commit may change: the guards' limits as options of the commands that judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gitboot.cli.configuration_file import Setting

if TYPE_CHECKING:
    from gitboot.review.guards import Limits

Command = TypeVar("Command", bound=Callable[..., Any])

LIMITS: Final = {
    "max_update_percent": "Percentage of servers that a commit may change, of the fleet and of each site and role. "
    "Default: 30.",
    "max_delete_percent": "Percentage of servers that a commit may remove, of the fleet and of each site and role. "
    "Default: 10.",
    "max_deletes": "Servers that a commit may remove. Default: 25.",
    "max_small_group": "Servers that a commit may change or remove in a group or fleet of fewer than 10, instead of "
    "percentages. Default: 3.",
    "max_reinstalls": "Servers that a commit may reinstall. Default: 0, so every reinstallation is acknowledged.",
    "max_installs": "New servers that a commit may install. Default: 50.",
    "max_resets": "Running servers that the maintenances of a commit may reset. Default: 50.",
}


def limit_options(command: Command) -> Command:
    """Add one option for each guard. gitboot holds a commit that changes more until it is acknowledged."""
    return _limits(command, click.Option)


def limit_settings(command: Command) -> Command:
    """Add one setting of the configuration file for each guard."""
    return _limits(command, Setting)


def _limits(command: Command, cls: type[click.Option]) -> Command:
    for name, text in reversed(LIMITS.items()):
        flag = f"--{name.replace('_', '-')}"
        count = click.IntRange(min=0)
        command = click.option(flag, name, cls=cls, type=count, metavar="N", help=f"Guard. {text}")(command)
    return command


def limits_of(given: Mapping[str, int | None], **allowed: bool) -> Limits:
    """The defaults, or what was given instead."""
    from gitboot.review.guards import Limits

    numbers: dict[str, Any] = {name: limit for name, limit in given.items() if limit is not None}
    return Limits(**numbers, **allowed)
