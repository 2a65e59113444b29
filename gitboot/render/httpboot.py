"""UEFI HTTP boot as boot-operator answers it: which file a system's firmware fetches."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.canonical import canonical
from gitboot.plan import BootPlan, Decision
from gitboot.render import paths
from gitboot.render.paths import ContentType
from gitboot.render.tree import File


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``httpboot/<uuid>.json`` for a plan whose boot names a file for firmware to fetch."""
    if plan is None or plan.boot is None or (file := plan.boot.http_boot_file) is None:
        return
    answer = canonical({"SystemUUID": plan.uuid, "UKIURL": file.url})
    yield paths.HTTP_BOOT.of(plan.uuid), File(answer + b"\n", ContentType.JSON)
