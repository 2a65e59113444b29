"""User data: immutable files by their digest, and Ignition documents by system UUID."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.model.scalars import byte_orders
from gitboot.plan import BootPlan, Decision, UserDataFiles
from gitboot.render import paths
from gitboot.render.paths import ContentType
from gitboot.render.tree import File


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """What the plan's boot configures itself by, under ``o/``; its Ignition document also by UUID."""
    if plan is None:
        return
    if plan.boot is not None and plan.boot.user_data is not None:
        yield from immutable(plan.boot.user_data)
    if plan.ignition is not None:
        yield from immutable(plan.ignition)
        document = File("".join(plan.ignition.files.values()).encode(), ContentType.IGNITION)
        for uuid in byte_orders(plan.uuid):
            yield paths.IGNITION.of(uuid), document


def immutable(user_data: UserDataFiles) -> Iterator[tuple[str, File]]:
    """User data's own files, below their digest."""
    for name, text in user_data.files.items():
        yield f"boot/{user_data.folder}/{name}", File(text.encode(), paths.artifact_type(name))
