"""Stops of boots: which boots are stopped, and which servers can boot again when a stop ends."""

from __future__ import annotations

from datetime import datetime

from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.errors import FleetOrders
from gitboot.evaluator.protocol import Commit
from gitboot.resolve.plan_at_time import drop_ended_windows, make_plan
from gitboot.resolve.provisioning_record import StopOrder, StopScope
from gitboot.resolve.server_decision import Boot, Decision


def apply_stop_order(update: LedgerUpdate, stop_order: StopOrder) -> None:
    """Record a stop from the files that endpoints read, unless the ledger already has this stop or a wider stop."""
    known = update.facts.stop_order
    if known is None or stop_order.everything > known.everything:
        update.set_facts(stop_order=stop_order)


def find_stop_scope(snapshot: LedgerSnapshot, accepted: Commit | None, orders: FleetOrders | None) -> StopScope:
    """Return which boots are stopped.

    ``orders`` are the stop orders in the newest Fleet if gitboot has not accepted the commit that contains this Fleet.
    """
    operator_stop = snapshot.facts.stop_order
    if operator_stop is not None and operator_stop.everything:
        return StopScope.ALL
    is_stopped = operator_stop is not None or find_fleet_stop(accepted, orders) is not None or bool(snapshot.claims)
    return StopScope.WRITING if is_stopped or not may_instance_act(snapshot, accepted, orders) else StopScope.NONE


def find_fleet_stop(accepted: Commit | None, orders: FleetOrders | None) -> str | None:
    """Return the reason for a stop in the newest or the accepted Fleet, or None if neither Fleet stops boots."""
    return next((each.stopped for each in _list_orders(accepted, orders) if each.stopped is not None), None)


def may_instance_act(snapshot: LedgerSnapshot, accepted: Commit | None, orders: FleetOrders | None) -> bool:
    """Return whether this instance may be active.

    The instance must not be active if the newest or the accepted Fleet names another ledger.
    """
    return all(each.ledger in (None, snapshot.facts.identity) for each in _list_orders(accepted, orders))


def _list_orders(accepted: Commit | None, orders: FleetOrders | None) -> list[FleetOrders]:
    """Return the orders in the newest Fleet, if any, and then those in the accepted Fleet, if any."""
    return [each for each in (orders, accepted.orders if accepted is not None else None) if each is not None]


def find_released_servers(
    commit: Commit, snapshot: LedgerSnapshot, at: datetime, before: StopScope, after: StopScope = StopScope.NONE
) -> tuple[str, ...]:
    """Return the servers that can boot from the network again when the stop changes from ``before`` to ``after``.

    The result only informs operators. It includes the servers that wait for a missing file, because these servers boot
    as soon as the file appears, without further action by an operator.
    """
    released = []
    for decision in commit.decisions.servers.values():
        boot = _find_planned_boot(decision, snapshot, at, after)
        if boot is not None and boot != _find_planned_boot(decision, snapshot, at, before):
            released.append(decision.server)
    return tuple(released)


def _find_planned_boot(decision: Decision, snapshot: LedgerSnapshot, at: datetime, stop: StopScope) -> Boot | None:
    """Return the boot that a server gets from the network at ``at`` with a stop, or None."""
    remaining = drop_ended_windows(decision, snapshot.find_later_clock(at))
    planned = make_plan(remaining, at, snapshot.record(decision.uuid), stop=stop)
    return planned.boot if planned is not None else None
