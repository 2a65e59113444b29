"""Reconcile: run all stages once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import structs

from gitboot.child_processes import pause_garbage_collection
from gitboot.controller.instance_state import InstanceState, LastFetch
from gitboot.controller.reconcile_inputs import Components, ReconcileContext
from gitboot.controller.stages.plan import plan
from gitboot.controller.stages.publish import publish
from gitboot.controller.stages.report import report
from gitboot.controller.stages.start_bmc_tasks import start_bmc_tasks
from gitboot.controller.stages.update_ledger import accept, learn, resume, take_in, write_ledger
from gitboot.errors import LedgerError
from gitboot.status.conditions import Condition, Event, find_remedy
from gitboot.status.instance_status import Endpoints, ForgeReport, Status, ThreadFailure
from gitboot.status.work_progress import Stage, StageTimes, Stopwatch
from gitboot.system_clock import ClockState

# One reconcile

_Stages = tuple[tuple[Stage, Callable[[InstanceState, ReconcileContext], InstanceState]], ...]

# If the ledger cannot be written, the results of these stages are discarded, and the inputs wait for the next
# reconcile.
_TO_LEDGER: Final[_Stages] = (
    (Stage.TAKE_IN, take_in),
    (Stage.ACCEPT, accept),
    (Stage.LEARN, learn),
    (Stage.WRITE_LEDGER, write_ledger),
)
_FROM_LEDGER: Final[_Stages] = (
    (Stage.PLAN, plan),
    (Stage.PUBLISH, publish),
    (Stage.START_BMC_TASKS, start_bmc_tasks),
    (Stage.REPORT, report),
)


class Reconciler:
    """The holder of an instance's state, which `reconcile` updates.

    `reconcile` does not raise an error for an invalid commit, an unreachable Git server, a full disk or a failing BMC.
    It reports each of these faults as a condition and continues with the last accepted commit, so that windows end even
    while Git is down.
    """

    def __init__(self, initial_state: InstanceState, components: Components) -> None:
        self.state = structs.replace(initial_state, unwritten_clock=components.inbox.clearings.latest_clock)
        self._components = components

    @property
    def status(self) -> Status:
        """A summary of the instance's state."""
        return self.state.status()

    @property
    def stage_times(self) -> StageTimes:
        return self._components.stage_times

    @pause_garbage_collection()  # objects are either long-lived or freed by reference counting
    def reconcile(
        self,
        at: datetime,
        *,
        fetched: LastFetch | None = None,
        endpoints: Endpoints | None = None,
        forge_report: ForgeReport | None = None,
        notice_failure: tuple[str, str] | None = None,
        clock_state: ClockState = ClockState.UNKNOWN,
        thread_failures: tuple[ThreadFailure, ...] = (),
        wait: bool = False,
    ) -> datetime | None:
        """Reconcile once at ``at``, and return when the next reconcile is due.

        A second call with the same input has no effect.

        - ``fetched``: the result of the last fetch
        - ``endpoints``: the state of the endpoints
        - ``forge_report``: the state of reporting to the forge
        - ``notice_failure``: why a notice could not be delivered (reason, message)
        - ``clock_state``: whether a time service synchronizes the clock
        - ``thread_failures``: threads that failed
        - ``wait``: whether to wait for artifacts and BMC tasks

        If the ledger cannot be written, gitboot still plans with the records in memory, so that windows end on time.
        """
        components, stopwatch = self._components, self.stage_times.start(Stage.TAKE_IN)
        began = components.clock()
        context = ReconcileContext(
            components=components,
            before=self.state,
            at=at,
            wait=wait,
            time=lambda: at + max(components.clock() - began, timedelta()),
        )
        before = structs.replace(
            self.state,
            fetched=fetched or self.state.fetched,
            endpoints=endpoints,
            forge_report=forge_report,
            notice_failure=notice_failure,
            clock_state=clock_state,
            thread_failures=thread_failures,
            ledger_error=None,
        )
        components.collect_results()
        was_suspect = components.store.is_suspect
        try:
            components.store.probe()
            with components.inbox.hold():
                state = _run_stages(_TO_LEDGER, before, context, stopwatch)
            components.inbox.clearings.note_clock(None)
        except LedgerError as error:
            components.store.is_suspect |= was_suspect  # the next reconcile must read the ledger back again
            state = _continue_without_ledger(before, error, context)
            stopwatch(Stage.WRITE_LEDGER)
        snapshot = structs.replace(
            state.snapshot, claims=components.inbox.claims, unwritten_clock=state.unwritten_clock
        )
        state = structs.replace(state, snapshot=snapshot)
        self.state = _run_stages(_FROM_LEDGER, state, context, stopwatch)
        stopwatch.end(Stage.RECONCILE)
        return context.due

    def start_evaluation(self, fetched: LastFetch | None, at: datetime) -> bool:
        """Start the evaluation of a new commit. Return whether to wait for its result before the next reconcile.

        Do not wait if ``fetched`` differs from the last reported fetch, because a reconcile must report the new fetch.
        """
        before = self.state
        return (
            fetched is not None
            and fetched == before.fetched
            and before.acceptance.clone_failure is None
            and self._components.acceptor.start_evaluation(before.acceptance, before.snapshot, at)
        )

    def has_new_answers(self) -> bool:
        """Return whether any maintenance URL has given the expected answer since a reconcile last took the answers."""
        hooks = self._components.inbox.hooks
        return hooks is not None and bool(hooks.get_answers())

    def retry_targets(self) -> None:
        """Retry the failed targets immediately. Any thread may call this."""
        self._components.target.followers.retry_now()

    def report_stalled(self, stage: Stage, seconds: float, at: datetime) -> None:
        """Report a stalled stage. Another thread calls this. The report disappears when a reconcile ends."""
        message = (
            f"the stage {stage} has made no progress for {seconds:.0f} s. Until it ends, gitboot does not plan, "
            "publish or change BMCs. Endpoints still start and end the maintenance windows that are already published"
        )
        event = Event(at=at, type="StageHangs", message=message, facts={"stage": str(stage)}, warning=True)
        self._components.unwritten.append(event)
        self._components.tell(event)  # sent before the condition is written, because the disk with the status may hang
        self._components.report_stalled(
            Condition(
                type="Reconciling",
                status=False,
                reason="StageHangs",
                message=message,
                last_transition_time=at,
                remedy=find_remedy("Reconciling", "StageHangs"),
            )
        )


def _continue_without_ledger(before: InstanceState, error: LedgerError, context: ReconcileContext) -> InstanceState:
    """Return the state for a reconcile that cannot write the ledger, and keep the time for the next heartbeat."""
    latest = max(context.at, before.unwritten_clock or context.at)
    if before.unwritten_clock is None or before.plans.is_due(context.at):
        context.components.inbox.clearings.note_clock(latest)
    return resume(structs.replace(before, ledger_error=str(error), unwritten_clock=latest), context)


def _run_stages(
    stages: _Stages, state: InstanceState, context: ReconcileContext, stopwatch: Stopwatch
) -> InstanceState:
    for name, stage in stages:
        state = stage(state, context)
        stopwatch(name)
    return state
