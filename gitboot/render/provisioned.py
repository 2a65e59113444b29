"""The paths by which an installer says that it is done, or has failed: files, so that any mirror answers them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gitboot.render import paths
from gitboot.render.tree import File
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.server_plan import BootPlan

_EMPTY: Final = File(b"")


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``v1/boot/<mac>/provisioned/<token>``, and ``failed/`` beside it, whatever the server boots now.

    An installation may outlast the time that its evidence may take, or run into a maintenance's window; it is
    heard all the same.
    """
    named = (decision.token, plan.token if plan is not None else None)
    for token in (each for each in named if each is not None):
        yield from ((each.of(mac, token), _EMPTY) for each in paths.REPORTS for mac in decision.macs)
