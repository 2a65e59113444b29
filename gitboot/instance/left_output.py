"""Servers whose one-time boot an upgrade took out of OUTPUT: earlier versions left such boots in the boot files."""

from __future__ import annotations

from collections.abc import Iterable

from gitboot.controller.current_plans import Plans
from gitboot.evaluator.evaluation_result import Commit
from gitboot.ledger.entries import Facts
from gitboot.model.scalars.machines import SystemUuid
from gitboot.render.server_states import ServerState
from gitboot.resolve.server_plan import Cause


def left_output(facts: Facts, plans: Plans, commit: Commit, *, is_upgraded: bool) -> frozenset[SystemUuid]:
    """Return the servers whose one-time boot was in OUTPUT before an upgrade, and which no copy serves since.

    A server leaves the set once the Fleet names an endpoint or accepts one-time boots in copies, or the boot is over.
    """
    if facts.left_output is not None:
        names = {commit.machines[uuid].name for uuid in facts.left_output if uuid in commit.machines}
        states: Iterable[ServerState] = (plans.servers[name] for name in names if name in plans.servers)
        return frozenset(state.decision.uuid for state in states if _is_in_no_copy(state))
    if not is_upgraded:
        return frozenset()
    states = plans.servers.values()
    return frozenset(state.decision.uuid for state in states if _is_in_no_copy(state) and _is_offered(state))


def _is_in_no_copy(state: ServerState) -> bool:
    decision, plan = state.decision, state.plan
    is_due = plan is not None and (_is_offered(state) or plan.cause in _WAITING)
    return is_due and decision.endpoint is None and not decision.copies.one_time_boots


def _is_offered(state: ServerState) -> bool:
    return state.plan is not None and state.plan.key is not None and state.plan.writes_disk


_WAITING = frozenset({Cause.STOPPED, Cause.ALL_STOPPED, Cause.WITHHELD, Cause.ABSENT})
