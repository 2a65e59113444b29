"""UEFI HTTP boot as boot-operator answers it: which file a system's firmware fetches."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.jsonio import canonical
from gitboot.model.server import Architecture
from gitboot.render import paths
from gitboot.render.paths import ContentType
from gitboot.render.tree import File
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.server_plan import BootPlan


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``httpboot/<uuid>.json`` for a plan whose boot names a file for firmware to fetch."""
    if plan is None or plan.boot is None or (file := plan.boot.http_boot_file) is None:
        return
    answer = canonical({"SystemUUID": plan.uuid, "UKIURL": file.url})
    yield paths.HTTP_BOOT.of(plan.uuid), File(answer + b"\n", ContentType.JSON)


def shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """What firmware fetches that asks from an address of no server, as boot-operator's default is.

    That is the image of unknown machines in a form that firmware can start: its uki, its own loader, its iso. The
    question does not say for which architecture: it is x86_64 where there is one for that.
    """
    boots = decisions.unknown or {}
    images = [boots[each].files for each in (Architecture.X86_64, Architecture.AARCH64) if each in boots]
    found = (each.uki or each.loader or each.iso for each in images)
    if (file := next(filter(None, found), None)) is not None:
        yield paths.UNKNOWN_HTTP_BOOT, File(canonical({"UKIURL": file.url}) + b"\n", ContentType.JSON)
