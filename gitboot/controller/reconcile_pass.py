"""One pass of a reconcile: the components that its stages use, and the values that stages pass on."""

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
    """Do nothing. Stands in for a callback in dry runs and tests."""


@dataclass(kw_only=True, slots=True)
class Components:
    """The components of an instance, and the receivers of its events, status, stage durations and progress."""

    accepting: CommitAcceptor
    inbox: Inbox
    store: Store
    target: FollowedTarget
    bmcs: BmcPool
    clock: Callable[[], datetime]  # used to measure how long a reconcile takes
    checkpoint: Checkpoint | None = None
    tell: Callable[[Event], None] = ignore
    report: Callable[[Status, datetime], None] = ignore
    report_stalled: Callable[[Condition], None] = ignore
    laps: StageTimes = field(default_factory=StageTimes)
    listener: WorkListener = field(default_factory=WorkListener)
    windows: WindowWatch = field(init=False)
    unwritten: list[Event] = field(default_factory=list)  # events that are not in the ledger because a write failed

    def __post_init__(self) -> None:
        self.windows = WindowWatch(self.target.end_windows)

    def collect_results(self, *, wait_all: bool = False) -> None:
        """Move the results of finished BMC tasks to the inbox. With ``wait_all``, first wait for all tasks."""
        results = self.bmcs.take_results(wait_all=wait_all)
        for result in results.values():
            if result.took_s is not None:
                self.laps.add(Stage.BMC, result.took_s)
        self.inbox.collect(results)


@dataclass(kw_only=True, slots=True)
class Pass:
    """One reconcile. The stages set the fields after ``time``, in the order in which they are declared."""

    components: Components
    before: InstanceState  # the state after the last reconcile
    at: datetime  # the time of this reconcile, which planning a large fleet moves forward
    wait: bool  # whether to wait for artifacts and BMC tasks
    time: Callable[[], datetime]  # returns the start time of this reconcile plus the time elapsed since
    taken: Intake = field(init=False)  # the inputs
    is_approval_left: bool = False  # whether an approval waits for the next reconcile
    requested: BatchResult = field(init=False)  # the ledger changes that operator requests cause
    attempt: Attempt = field(init=False)  # the result of judging the newest commit
    events: tuple[Event, ...] = ()  # the events of judging the newest commit
    ready: Intake = field(init=False)  # the part of ``taken`` that this reconcile processes
    learnt: BatchResult = field(init=False)  # the ledger changes that the attempt and ``ready`` cause
    different: frozenset[str] = frozenset()  # servers whose files may differ from the published ones
    due: datetime | None = None  # when the next reconcile is due; None: at the next event
