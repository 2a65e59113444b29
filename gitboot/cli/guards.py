"""How much one commit may change: the guards' limits as options of the commands that judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from gitboot.diff.guard import Limits

Command = TypeVar("Command", bound=Callable[..., Any])

LIMITS: Final = {
    "max_update_percent": "Servers that one commit may change, of the fleet and of each site and role. Default: 30.",
    "max_delete_percent": "Servers that it may remove, likewise. Default: 10.",
    "max_deletes": "Servers that it may remove. Default: 25.",
    "max_small_group": "Servers, instead of percentages, in a group or fleet under 10. Default: 3.",
    "max_reinstalls": "Servers that it may let be installed again. Default: 0, always acknowledged.",
    "max_installs": "New servers that it may let be installed. Default: 50.",
    "max_resets": "Servers that it may let maintenances reset while they run. Default: 50.",
}


def limit_options(command: Command) -> Command:
    """One option a guard: what changes more than that is held until it is acknowledged."""
    for name, text in reversed(LIMITS.items()):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, type=click.IntRange(min=0), metavar="N", help=f"Guard. {text}")(command)
    return command


def limits_of(given: Mapping[str, int | None], **allowed: bool) -> Limits:
    """The defaults, or what was given instead."""
    from gitboot.diff.guard import Limits

    numbers: dict[str, Any] = {name: limit for name, limit in given.items() if limit is not None}
    return Limits(**numbers, **allowed)
