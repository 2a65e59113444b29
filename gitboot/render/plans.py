"""Plans for operators: decision and plan of each server, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gitboot.jsonio import format_instant
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.server_plan import BootPlan, InstallProgress


def document(decision: Decision, plan: BootPlan | None) -> dict[str, Any]:
    """The decision, the plan, and their digests."""
    return {
        "apiVersion": "gitboot.dev/v1alpha1",
        "decision": decision.facts(),
        "decisionDigest": decision.digest,
        "plan": plan.facts() if plan else None,
        "digest": plan.digest if plan else None,
        "nextTransition": format_instant(plan.next_transition) if plan and plan.next_transition else None,
    }


def summary(
    decision: Decision, plan: BootPlan | None, files: Mapping[str, str], progress: InstallProgress | None
) -> dict[str, Any]:
    """Return one server's plan as the command line and the API show it; what is absent is null.

    ``files`` are the plan's boot files: path -> sha256. ``progress`` is of an installation that has begun.
    """
    boot = plan.boot if plan else None
    return {
        "server": decision.server,
        "uuid": decision.uuid,
        "macs": list(decision.macs),
        "phase": plan.phase if plan else None,
        "cause": plan.cause if plan else None,
        "installing": progress.facts() if progress is not None else None,
        "policy": decision.policy.policy if decision.policy else None,
        "maintenance": plan.maintenance if plan else None,
        "profile": boot.profile if boot else None,
        "image": boot.image if boot else None,
        "version": boot.version if boot else None,
        "method": boot.method if boot else None,
        "kernelArguments": list(boot.kernel_arguments) if boot else [],
        "files": dict(sorted(files.items())),
        "override": plan.override.facts() if plan and plan.override else None,
        "digest": plan.digest if plan else None,
        "decisionDigest": decision.digest,
        "nextTransition": format_instant(plan.next_transition) if plan and plan.next_transition else None,
    }
