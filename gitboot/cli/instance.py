"""An instance looked at through its state directory, and requests left for it there."""

from __future__ import annotations

import getpass
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from gitboot.errors import LedgerError, UsageError
from gitboot.instance.directory import LEDGER, has_ledger, locked, never_ran, running
from gitboot.instance.journal import Journal
from gitboot.instance.provisioning import Provisioning
from gitboot.ledger import Ledger, copy_ledger
from gitboot.load import FleetRepository, load
from gitboot.load.machines import Machine, machines
from gitboot.model.scalars import SystemUuid
from gitboot.phrases import did_you_mean
from gitboot.plan import Decision
from gitboot.resolve import Decisions, decide
from gitboot.source.clone import accepted_snapshot
from gitboot.status import Event

_PATIENCE_S: Final = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """What an instance goes by: the commit that it accepted last, and a copy of its ledger."""

    repository: FleetRepository
    decisions: Decisions
    machines: Mapping[SystemUuid, Machine]
    ledger: Ledger
    provisioning: Provisioning

    def decision(self, server: str) -> Decision:
        """The decision for a server; raises `UsageError` where the accepted commit has no such server."""
        if (found := self.decisions.servers.get(server)) is None:
            hint = did_you_mean(server, self.decisions.servers, "gitboot plan lists those that there are")
            raise UsageError(f"the accepted commit has no server {server!r}; {hint}")
        return found


@contextmanager
def looked_at(state: Path, at: datetime) -> Iterator[Instance]:
    """The instance on ``state`` as it is, running or not; nothing there is changed."""
    if not has_ledger(state):
        raise never_ran(state)
    with ExitStack() as stack:
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="gitboot-look-")))
        copy_ledger(state / LEDGER, copy / LEDGER, in_use=running(state) is not None)
        try:
            ledger = stack.enter_context(Ledger.open(copy / LEDGER))
        except LedgerError as error:  # of the copy, whose path says nothing to anyone
            raise type(error)(str(error).replace(str(copy), str(state))) from None
        repository = load(accepted_snapshot(state))
        decisions, known = decide(repository), machines(repository)
        journal = Journal(ledger, _nobody)
        provisioning = Provisioning(ledger, journal, told=None, observes=ledger.observes, foreign=ledger.foreign)
        provisioning.know(decisions, known, at)
        yield Instance(
            repository=repository, decisions=decisions, machines=known, ledger=ledger, provisioning=provisioning
        )


def chosen(names: Iterable[str], instance: Instance) -> frozenset[str] | None:
    """The servers that were named, each of which is there; None where none was: all."""
    wanted = frozenset(names)
    for name in sorted(wanted):
        if name not in instance.ledger.standing() and all(
            machine.name != name for machine in instance.ledger.machines().values()
        ):
            instance.decision(name)  # says so
    return wanted or None


def request(state: Path, what: str, facts: Mapping[str, Any]) -> str:
    """Leave a request for the instance on ``state``, or carry it out in its place; return what came of it.

    Raises `UsageError` where it was refused.
    """
    if not has_ledger(state):
        raise never_ran(state)
    process = running(state)
    with ExitStack() as stack:
        if process is None:
            stack.enter_context(locked(state))
        ledger = stack.enter_context(Ledger.open(state / LEDGER))
        number = ledger.give(datetime.now(UTC), getpass.getuser(), what, facts)
        if process is None:
            _carry_out(ledger)
        else:
            _wake(process)
        outcome = _awaited(ledger, number)
    if outcome is None:
        return f"left for process {process}, which has not taken it up within {_PATIENCE_S} s"
    if outcome.startswith("refused: "):
        raise UsageError(outcome.removeprefix("refused: "))
    return outcome


def _carry_out(ledger: Ledger) -> None:
    """What an instance would do, without one."""
    from gitboot.bmc.pool import BmcPool
    from gitboot.instance.evidence import Evidence
    from gitboot.instance.overrides import Overriding
    from gitboot.instance.requests import Requests

    journal = Journal(ledger, _nobody)
    provisioning = Provisioning(ledger, journal, told=None, observes=ledger.observes, foreign=ledger.foreign)
    bmcs = BmcPool(credentials=None, write=ledger.write_override, clock=lambda: datetime.now(UTC))
    try:
        evidence = Evidence(ledger, provisioning, journal)
        requests = Requests(ledger, provisioning, Overriding(bmcs, ledger, evidence, journal), journal)
        requests.carry_out(datetime.now(UTC))
    finally:
        bmcs.close()


def _nobody(_: Event) -> None:
    """What is noted in a look, or in the ledger alone, is told to nobody."""


def _wake(process: int) -> None:
    try:
        os.kill(process, signal.SIGUSR1)
    except OSError as error:
        raise UsageError(f"process {process} cannot be woken: {error.strerror}") from None


def _awaited(ledger: Ledger, number: int) -> str | None:
    until = time.monotonic() + _PATIENCE_S
    while (outcome := ledger.outcome(number)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return outcome
