"""An instance looked at through its state directory, and requests left for it there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gitboot.cli.choosing import meant_by
from gitboot.cli.evaluator_process import evaluation_limits, results_cache
from gitboot.cli.operator import operator
from gitboot.controller.instance import assembly
from gitboot.controller.instance.assembly import Look, carried_out
from gitboot.controller.instance.state_directory import LEDGER, has_ledger, locked, never_ran, read_status, running
from gitboot.controller.operator_requests import REFUSED, HeldChanges
from gitboot.errors import NotYetDone, UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.instance.acting import check_acts
from gitboot.ledger import requests
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.store import Store
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.text import did_you_mean, shell_words

__all__ = ["Look", "chosen", "decision_of", "looked_at", "machines_of", "request"]

_PATIENCE_S: Final = 30


@contextmanager
def looked_at(state: Path, at: datetime) -> Iterator[Look]:
    """The instance on ``state`` as it is; what its commit takes to be read is limited."""
    with ExitStack() as stack:
        with evaluation_limits() as begun:
            look = stack.enter_context(assembly.looked_at(state, at, begun=begun, results=results_cache()))
        yield look


def decision_of(look: Look, server: str) -> Decision:
    """The decision for a server; raises `UsageError` where the accepted commit has no such server."""
    servers = look.commit.decisions.servers
    if (found := servers.get(server)) is None:
        hint = did_you_mean(server, servers, "gitboot plan lists those that there are")
        raise UsageError(f"the accepted commit has no server {server!r}; {hint}")
    return found


def machines_of(look: Look, server: str) -> tuple[SystemUuid, ...]:
    """The machine of a server, and those of this name that left the fleet while an override of theirs stood.

    Raises `UsageError` where there is none.
    """
    knowledge, described = look.knowledge, look.commit.machines
    left = tuple(
        uuid
        for uuid in sorted(knowledge.overrides.keys() & knowledge.machines.keys() - described.keys())
        if knowledge.machines[uuid].name == server and any(each.state.is_open for each in knowledge.overrides_of(uuid))
    )
    if left and server not in look.commit.decisions.servers:
        return left
    return (*left, decision_of(look, server).uuid)


def chosen(names: Collection[str], look: Look, selector: str | None = None) -> frozenset[str] | None:
    """The servers that were named, each of which is there, or was; None where none was named: all.

    With a ``selector`` those that have its labels, too; raises `UsageError` where none has.
    """
    if selector is not None:
        return frozenset(meant_by(look, tuple(names), selector))
    wanted, seen = frozenset(names), {machine.name for machine in look.knowledge.machines.values()}
    for name in sorted(wanted - seen):
        decision_of(look, name)  # says that it is not there
    return wanted or None


def request(state: Path, what: str, facts: Mapping[str, Any], commit: Commit | None = None) -> str:
    """Leave a request for the instance on ``state``, or carry it out in its place; return what came of it.

    ``commit`` is the accepted one, for what needs it. Raises `UsageError` where it was refused, `NotYetDone` where the
    instance has not taken it up, `HeldByAnother` where another host acts.
    """
    if not has_ledger(state):
        raise never_ran(state)
    check_acts(state)
    process = running(state)
    with ExitStack() as stack:
        if process is None:
            stack.enter_context(locked(state))
        ledger = stack.enter_context(open_ledger(state / LEDGER))
        if process is None:
            ledger.database.hold(Holder.of(state))  # another may come to act meanwhile
        number = requests.give(ledger, datetime.now(UTC), operator(), what, facts)
        if process is None:
            carried_out(ledger, commit, datetime.now(UTC), held_changes(state))
        else:
            _wake(process)
        outcome = _awaited(ledger, number)
    if outcome is None:
        raise NotYetDone(
            f"{state}: left for process {process}, which has not taken it up within {_PATIENCE_S} s "
            f"(gitboot status --state {shell_words(state)} says what it waits for)"
        )
    if outcome.startswith(REFUSED):
        raise UsageError(outcome.removeprefix(REFUSED))
    return outcome


def held_changes(state: Path) -> HeldChanges | None:
    """Return what the instance held when it wrote its status last; None if it held nothing, or none has run."""
    with suppress(UsageError):
        held = read_status(state)["attempted"].get("held")
        return HeldChanges(held["digest"], tuple(held["guards"])) if held is not None else None
    return None


def _wake(process: int) -> None:
    try:
        os.kill(process, signal.SIGUSR1)
    except OSError as error:
        raise UsageError(f"process {process} cannot be woken: {error.strerror}") from None


def _awaited(ledger: Store, number: int) -> str | None:
    until = time.monotonic() + _PATIENCE_S
    while (outcome := requests.outcome(ledger, number)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return outcome
