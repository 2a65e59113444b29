"""One reconcile: the components that its stages use, and the values that a stage passes to later stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gitboot.bmc.worker_pool import BmcPool
from gitboot.controller.checkpoint import Checkpoint
from gitboot.controller.commit_acceptance import Attempt, CommitAcceptor
from gitboot.controller.current_plans import WindowWatch
from gitboot.controller.instance_state import InstanceState
from gitboot.controller.reconcile_inputs import Inbox, Intake
from gitboot.controller.records.ledger_changes import BatchResult
from gitboot.controller.target_followers import FollowedTarget
from gitboot.ledger.store import Store
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import Stage, StageTimes, WorkListener


def ignore(*_: object) -> None:
    """Ignore an event, a status, or the end of a BMC task, for dry runs and tests."""


@dataclass(kw_only=True, slots=True)
class Components:
    """The components of an instance, and the receivers of its events, status, durations and progress."""

    accepting: CommitAcceptor
    inbox: Inbox
    store: Store
    target: FollowedTarget
    bmcs: BmcPool
    clock: Callable[[], datetime]  # measures how long a reconcile takes
    checkpoint: Checkpoint | None = None
    tell: Callable[[Event], None] = ignore
    report: Callable[[Status, datetime], None] = ignore
    report_stalled: Callable[[Condition], None] = ignore
    laps: StageTimes = field(default_factory=StageTimes)
    listener: WorkListener = field(default_factory=WorkListener)
    windows: WindowWatch = field(init=False)
    unwritten: list[Event] = field(default_factory=list)  # events that the ledger lacks because a write failed

    def __post_init__(self) -> None:
        self.windows = WindowWatch(self.target.end_windows)

    def collect_results(self, *, wait_all: bool = False) -> None:
        """Move the results of finished BMC tasks to the inbox. With ``wait_all``, wait for all tasks first."""
        results = self.bmcs.take_results(wait_all=wait_all)
        for result in results.values():
            if result.took_s is not None:
                self.laps.add(Stage.BMC, result.took_s)
        self.inbox.collect(results)


@dataclass(kw_only=True, slots=True)
class Pass:
    """One reconcile. The stages set the fields after ``time``, in the order of the fields."""

    components: Components
    before: InstanceState  # the state after the last reconcile
    at: datetime  # the time of this reconcile; planning a large fleet moves it forward
    wait: bool  # whether to wait for artifacts and BMC tasks
    time: Callable[[], datetime]  # the time at which this reconcile began, plus the time since
    taken: Intake = field(init=False)  # the inputs
    is_approval_left: bool = False  # whether an approval waits for the next reconcile
    requested: BatchResult = field(init=False)  # the ledger changes by operator requests
    attempt: Attempt = field(init=False)  # the result of judging the newest commit
    events: tuple[Event, ...] = ()  # the events of the attempt
    ready: Intake = field(init=False)  # the part of ``taken`` that this reconcile processes
    learnt: BatchResult = field(init=False)  # the ledger changes by the attempt and by ``ready``
    different: frozenset[str] = frozenset()  # servers whose files may differ from the published ones
    due: datetime | None = None  # when the next reconcile is due; None: at the next event
