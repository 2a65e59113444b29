"""Plans -> the tree of files: `server_files` for one server, `shared_files` for all; one module a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gitboot.model.fleet import Output
from gitboot.plan import BootPlan, Decision
from gitboot.render import grub, httpboot, ipxe, plans, userdata
from gitboot.render.tree import File
from gitboot.resolve import Decisions

Renderer = Callable[[Decision, BootPlan | None], Iterator[tuple[str, File]]]

# Each boot format: the output that asks for it (None: always), and what makes its files.
RENDERERS: Final[tuple[tuple[Output | None, Renderer], ...]] = (
    (Output.IPXE, ipxe.render),
    (Output.GRUB, grub.render),
    (None, httpboot.render),
    (None, userdata.render),
    (None, plans.render),
)


def server_files(decisions: Decisions, decision: Decision, plan: BootPlan | None) -> dict[str, File]:
    """The files of one server, by path."""
    return {
        path: file
        for output, render in RENDERERS
        if output is None or output in decisions.outputs
        for path, file in render(decision, plan)
    }


def shared_files(decisions: Decisions) -> dict[str, File]:
    """The files that every machine begins with."""
    files: dict[str, File] = {}
    if Output.IPXE in decisions.outputs:
        files.update(ipxe.shared(decisions))
    if Output.GRUB in decisions.outputs:
        files.update(grub.shared(decisions))
    for boot in (decisions.unknown or {}).values():
        if boot.user_data is not None:
            files |= dict(userdata.immutable(boot.user_data))
    return files
