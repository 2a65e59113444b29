"""An endpoint that has something to say by every metric."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from gitboot.bmc.override_state import OperatorCondition
from gitboot.endpoint.tls import Certificate
from gitboot.problems import Code, Problem, Severity
from gitboot.resolve.provisioning_record import InstallStep
from gitboot.resolve.server_plan import InstallProgress, InstallState
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import Laps, Stage
from tests.helpers.redfish_double.certificates import Authority
from tests.helpers.served_tree import BEFORE, START, site


def _laps() -> Laps:
    laps = Laps()
    for number, stage in enumerate(Stage):
        laps.add(stage, 0.1 * number)
        laps.add(stage, 1000)
    return laps


_PROBLEM: Final = Problem(path="a.yaml", line=1, column=1, code=Code.SKEW, message="old", severity=Severity.WARNING)
COMMITTED: Final = BEFORE - timedelta(hours=2)
INSTALLING: Final = InstallProgress(
    InstallState.INSTALLING, BEFORE - timedelta(minutes=9), InstallStep.STARTED, BEFORE - timedelta(minutes=7)
)
FULL: Final = Status(
    ledger="l",
    attempted="bad",
    problems=(_PROBLEM, replace(_PROBLEM, line=2), replace(_PROBLEM, code=Code.NOT_YET, severity=Severity.ERROR)),
    accepted="acce97ed",
    committed_at=COMMITTED,
    applied="c0ffee",
    planned_at=BEFORE,
    next_transition=START,
    phases={"Network": 3, "Disk": 2},
    records={"Provisioned": 4, "Pending": 1},
    installs={"Now": 1},
    runs={"Made": 1},
    installing={"Installing/Started": 1},
    installations=({"server": "web01", **INSTALLING.facts()},),
    drift={"ImageDrift": 1},
    bmcs={"Unchanged": 4, "Stalled": 1},
    below_minimum_version={"web": 2, "db": 0},
    stages=_laps().facts(),
    conditions=(
        Condition(type="SourceReady", status=False, reason="SourceError", message="", since=BEFORE),
        Condition(type="Published", status=True, reason="Published", message="", since=BEFORE),
        Condition(type="Bmc/web01", status=False, reason="Stalled", message="", since=BEFORE),
        Condition(type="Bmc/web02", status=False, reason="Stalled", message="", since=BEFORE),
        Condition(type="Bmc/web03", status=False, reason=OperatorCondition.FOREIGN_OVERRIDE, message="", since=BEFORE),
    ),
)


@contextmanager
def full(folder: Path, status: Status = FULL) -> Iterator[str]:
    """The URL of an endpoint that knows a value of each metric, and what its instance says."""
    issued = Authority(folder).issue()
    certificate = Certificate(issued.certificate, issued.key)
    certificate.look(BEFORE)
    with site() as made:
        made.say({**status.facts(), "at": "2026-11-20T20:59:00Z"})
        with made.serve(certificate=certificate) as url:
            yield url
