"""Which maintenances may reset a machine that runs, and could not before: what the guard maxResets counts."""

from __future__ import annotations

from gitboot.model.boot_policy import MaintenancePower
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Decision, MaintenanceDecision

_RESETS = (MaintenancePower.RESTART, MaintenancePower.GRACEFUL_RESTART)


def resets(old: Decision | None, new: Decision) -> tuple[str, ...]:
    """The maintenances by which ``new`` can have its machine reset once more than ``old``, by name.

    No record is looked at: one whose run was made before its window was moved is told from one that comes.
    """
    if new.lifecycle is not Lifecycle.ACTIVE:
        return ()
    there = old.maintenances if old is not None and old.lifecycle is Lifecycle.ACTIVE else ()
    before = {each.name: each for each in there}
    return tuple(
        each.name for each in new.maintenances if each.power in _RESETS and not _as_much(before.get(each.name), each)
    )


def _as_much(was: MaintenanceDecision | None, now: MaintenanceDecision) -> bool:
    """Whether a machine that was reset for what a maintenance was is not for what it is."""
    if was is None or was.power not in _RESETS or was.run < now.run:
        return False
    return was.end is None or now.start is None or now.start < was.end
