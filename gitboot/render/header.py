"""The lines that every entry begins with: which plan it is of, and why it boots what it boots."""

from __future__ import annotations

from typing import Final

from gitboot.resolve.server_plan import BootPlan

IDLE: Final = "may not boot from this interface"


def heading(plan: BootPlan) -> list[str]:
    """Comment lines without a comment sign; all of it follows from the plan."""
    lines = [f"gitboot plan {plan.digest}", f"{plan.server}: {plan.phase}, {plan.cause}"]
    source = f"Maintenance/{plan.maintenance}" if plan.maintenance else f"BootPolicy/{plan.policy}"
    if plan.boot is None:
        lines.append(f"{source} boots the local disk")
    else:
        boot = plan.boot
        lines.append(f"{source}, BootProfile/{boot.profile}, BootImage/{boot.image}, {boot.method}")
    return lines
