"""Which boots are stopped by something besides the accepted commit, by whose word, and why."""

from __future__ import annotations

from datetime import datetime

from gitboot.controller.learn.ledger_snapshot import Knowledge
from gitboot.errors import Orders
from gitboot.evaluator.evaluation_result import Commit
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.server_decision_from_plan import Boot, Decision
from gitboot.stoppage import Halt


def stop_of(knowledge: Knowledge, accepted: Commit | None, orders: Orders | None) -> Halt:
    """The worst of all that stops boots; ``orders`` are those of the newest Fleet, if its commit is not accepted."""
    by_hand = knowledge.facts.stoppage
    if by_hand is not None and by_hand.everything:
        return Halt.ALL
    is_stopped = by_hand is not None or stopped_by_fleet(accepted, orders) is not None or bool(knowledge.claims)
    return Halt.WRITING if is_stopped or not is_named(knowledge, accepted, orders) else Halt.NONE


def stopped_by_fleet(accepted: Commit | None, orders: Orders | None) -> str | None:
    """Why the newest Fleet, accepted or not, says that boots are stopped; or the accepted one."""
    said = (each.stopped for each in _orders(accepted, orders))
    return next((each for each in said if each is not None), None)


def is_named(knowledge: Knowledge, accepted: Commit | None, orders: Orders | None) -> bool:
    """Whether this instance may set anything: neither the newest nor the accepted Fleet names another one."""
    return all(each.ledger in (None, knowledge.facts.identity) for each in _orders(accepted, orders))


def _orders(accepted: Commit | None, orders: Orders | None) -> list[Orders]:
    return [each for each in (orders, accepted.orders if accepted is not None else None) if each is not None]


def released(
    commit: Commit, knowledge: Knowledge, at: datetime, before: Halt, after: Halt = Halt.NONE
) -> tuple[str, ...]:
    """The servers that boot from the network at once when less is stopped than before, by name."""
    servers = commit.decisions.servers.values()
    now = ((each, _boots(each, knowledge, at, after)) for each in servers)
    return tuple(each.server for each, boot in now if boot is not None and boot != _boots(each, knowledge, at, before))


def _boots(decision: Decision, knowledge: Knowledge, at: datetime, stop: Halt) -> Boot | None:
    planned = plan(decision, at, knowledge.record(decision.uuid), stop=stop)
    return planned.boot if planned is not None else None
