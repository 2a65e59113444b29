"""Manual BMC tasks: inspect BMCs and change the power of machines for an operator."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, structs

from gitboot.bmc.credentials import get_credential_use
from gitboot.bmc.identity import SharedIdentityValues, find_pinned_identity
from gitboot.bmc.override_session import BmcTask, describe_request, observe_bmc
from gitboot.bmc.override_state import (
    STEP_NAMES,
    AskOperator,
    BmcObservation,
    ClearOverride,
    ConfirmRecord,
    EjectMedium,
    InsertMedium,
    NoChange,
    Override,
    OverrideState,
    SetOverride,
    Step,
    Wait,
)
from gitboot.bmc.override_steps import choose_firmware_uri, explain_dhcp_loader, next_step
from gitboot.bmc.power_steps import (
    PowerAction,
    PowerChangeRefusal,
    PowerChangeStep,
    PowerStep,
    RequestReset,
    ResetType,
    choose_power_step,
    find_changing_marks,
    next_power_step,
)
from gitboot.bmc.worker_pool import ConnectionCache, QueuedTask, TaskRunner
from gitboot.controller.bmcs.desired_state import (
    PowerPlan,
    add_server_state,
    build_media_urls,
    build_wanted_override,
    find_power_plan,
)
from gitboot.controller.current_plans import build_server_details, find_stop_scope
from gitboot.controller.records.install_boots import remove_withheld_boots
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.controller.records.ledger_trust import find_unverified_reason
from gitboot.errors import BmcBusy, BmcNotTrusted, BmcRejected, BmcUnreachable, UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.jsonio import format_instant
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import plan_server
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.install_attempts import install_step
from gitboot.resolve.provisioning_record import InstallStep, Record
from gitboot.resolve.server_decision import Decision, OverrideEnabled
from gitboot.resolve.server_plan import UNKNOWN_OUTCOMES, BootPlan, Cause, Phase
from gitboot.status.conditions import find_remedy
from gitboot.text import quote_words

if TYPE_CHECKING:
    from gitboot.bmc.override_session import Driver
    from gitboot.bmc.redfish.transport import ResponseSample


Value = TypeVar("Value")
_logger = logging.getLogger(__name__)


class UnexpectedFailure(Exception):
    """A bug in gitboot ended the work at one BMC."""


Failure = BmcUnreachable | BmcBusy | BmcRejected | UsageError | UnexpectedFailure
FindFault = Callable[[str, str], str | None]
_NO_LEDGER_NAMED: Final = "the Fleet does not name a ledger, so another instance may change the same BMC"
_FAILURE_TEXTS: Final = {
    BmcUnreachable: "unreachable",
    BmcBusy: "busy",
    BmcRejected: "refused",
    UsageError: "no access",
    UnexpectedFailure: "internal error",
}
_UNVERIFIED_CONDITIONS: Final = {
    Cause.CONSUMED: ("InstallsCompleted", "NeedsOperator"),
    Cause.OUTCOME: ("InstallsCompleted", "OutcomeUnknown"),
    Cause.MAINTENANCE_OUTCOME: ("MaintenanceRunsStarted", "OutcomeUnknown"),
    Cause.FAILED: ("InstallsCompleted", "Failed"),
    Cause.LATER_INSTALL_UNFINISHED: ("InstallsCompleted", "Failed"),
    Cause.OVERWRITTEN: ("RecordsVerified", "UnverifiedServers"),
    Cause.UNKNOWN: ("RecordsVerified", "UnverifiedServers"),
}


class ManualTask(BmcTask, frozen=True, kw_only=True):
    """A machine with a BMC, or a removed machine whose BMC may still have an override that gitboot set."""

    decision: Decision | None  # None: the machine no longer has a document
    plan: BootPlan | None
    record: Record | None
    is_unobservable: bool = False  # whether no evidence could prove the next boot, so that the record is unusable
    power: PowerPlan | None = None
    unverified_reason: str | None = None  # why the ledger is unverified
    unnamed_ledger: str | None = None  # identity of this instance's ledger, if the Fleet names no ledger

    @property
    def evidence(self) -> str:
        """In one or two words, what gitboot knows about the boot that the plan requires."""
        record = self.record
        if record is None or self.decision is None:
            return "unseen" if self.is_unobservable else "unknown"
        if self.is_override_lost:
            return "lost"
        if self.plan is not None and self.plan.cause in UNKNOWN_OUTCOMES:
            return "outcome unknown"
        step = install_step(self.decision, record)
        if step is InstallStep.PENDING and self.plan is not None and record.consumed_key == self.plan.key is not None:
            return "consumed"
        return (record.evidence or "-") if step is InstallStep.PROVISIONED else step.lower()

    @property
    def is_override_lost(self) -> bool:
        """Return whether the override for the pending boot disappeared and there is no evidence of a boot."""
        plan = self.plan
        return (
            plan is not None
            and plan.phase is Phase.NETWORK
            and plan.key is not None
            and any(record.reason == plan.key and record.state is OverrideState.LOST for record in self.records)
        )

    @property
    def unverified_condition(self) -> tuple[str, str] | None:
        """The condition type and reason if an operator must check the machine's disks, otherwise None."""
        if self.plan is None or self.is_unobservable:
            return None
        if self.unverified_reason is not None:
            return "RecordsVerified", self.unverified_reason
        return _UNVERIFIED_CONDITIONS.get(Cause.CONSUMED if self.is_override_lost else self.plan.cause)


class Inspection(Struct, frozen=True, kw_only=True):
    """The state of one BMC, and the next step for that BMC."""

    task: ManualTask
    observed: BmcObservation | None = None  # None: the BMC could not be read
    step: Step | None = None
    failure: Failure | None = None
    # The URL of each program that firmware with Secure Boot would reject, with the reason.
    rejected_programs: tuple[str, ...] = ()
    # The next step of the power change, assuming that the machine is in the power wave; None: no step is due.
    power_step: PowerChangeStep | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The problems that will prevent the planned boot."""
        if self.observed is None or not self.observed.secure_boot:
            return ()
        return tuple(
            f"Secure Boot is on, but {program}, so the firmware will reject this file"
            for program in self.rejected_programs
        )

    @property
    def needs_operator(self) -> bool:
        """Whether an operator must look at the BMC or at the machine's disks."""
        return (
            isinstance(self.step, AskOperator)
            or isinstance(self.power_step, AskOperator)
            or self.task.unverified_condition is not None
        )

    @property
    def is_settled(self) -> bool:
        """Whether the BMC has the desired state."""
        return isinstance(self.step, NoChange) and self.pending_reset is None

    @property
    def pending_reset(self) -> str | None:
        """A description of the next reset or of what prevents it, or None if no reset is planned."""
        task = self.task
        power = task.power.find_current_plan(task.power_records) if task.power is not None else None
        match self.power_step:
            case RequestReset(record=record) if power is not None:
                uri = choose_firmware_uri(self.task.wanted, self.observed) if self.observed is not None else None
                before = f"; before that, gitboot sets the firmware's HTTP boot URI to {uri}" if uri is not None else ""
                return f"{record.type} for {record.reason}, {power.wave_text}{before}"
            case Wait(why=why) if power is not None:
                return f"{power.power_change.operation} for {power.power_change.reason} is waiting: {why}"
            case AskOperator(condition=condition, message=message):
                return f"{condition}: {message}"
        return None

    @property
    def request(self) -> tuple[str, ...]:
        """The next request to the BMC: the method, path and body for Redfish, or the command for IPMI."""
        return describe_request(self.step, self.observed) if self.observed is not None else ()

    def facts(self) -> dict[str, Any]:
        """Return the JSON object of this BMC."""
        task, record, observed = self.task, self.task.record, self.observed
        seen = None
        if observed is not None:
            seen = _encode_override(
                observed.override,
                power=observed.power,
                inPost=observed.in_post,
                bootOrder=list(observed.boot_order),
                secureBoot=observed.secure_boot,
                firmwareUri=observed.firmware_uri,
            )
        return {
            "server": task.server,
            "uuid": task.uuid,
            "bmc": task.bmc.address,
            "credentials": task.bmc.credentials,
            "responded": observed is not None,
            "phase": task.plan.phase if task.plan else None,
            "cause": task.plan.cause if task.plan else None,
            "wanted": _encode_override(task.wanted.override, reason=task.wanted.reason) if task.wanted else None,
            "seen": seen,
            "recorded": [
                _encode_override(
                    override.override, reason=override.reason, state=override.state, at=format_instant(override.at)
                )
                for override in task.records
            ],
            "evidence": record.evidence if record else None,
            "provisionedAt": format_instant(record.provisioned_at) if record and record.provisioned_at else None,
            "next": self.next_action,
            "why": self.why,
            "hint": self.hint,
            "needsOperator": self.needs_operator,
            "patch": self.request[-1] if self.request else None,
            "power": self.pending_reset,
            "warnings": list(self.warnings),
        }

    @property
    def why(self) -> str:
        """The reason for the failure, for the next step, or for no step."""
        if self.failure is not None:
            message, name = str(self.failure), self.task.bmc.credentials
            is_named = re.search(rf"\b{re.escape(name)}\b", message) is not None
            return message if is_named else f"{message} (credentials {name})"
        match self.step:
            case Wait(why=why):
                return why
            case AskOperator(condition=condition, message=message):
                return f"{condition}: {message}"
            case ClearOverride(record=record):
                return f"the plan no longer requires the override that gitboot set for {record.reason}"
            case InsertMedium(record=record):
                return f"{record.reason} requires the medium"
            case EjectMedium(record=record):
                return f"the medium that gitboot inserted for {record.reason} is no longer needed"
            case ConfirmRecord(record=record):
                if record.state is OverrideState.SET_BY_ANOTHER:
                    return f"another instance set the override for {record.reason}, so this instance does not set it"
                return f"the override for {record.reason} is {record.state.lower()}"
            case SetOverride(record=record):
                wanted, dhcp_reason = self.task.wanted, None
                if wanted is not None and self.observed is not None:
                    dhcp_reason = explain_dhcp_loader(wanted.override, self.observed)
                suffix = f"; {dhcp_reason}, so the DHCP server must name the boot loader" if dhcp_reason else ""
                return f"required for {record.reason}{suffix}"
            case NoChange() if self.pending_reset is not None:
                return self.pending_reset
        return str(self.task.plan.cause) if self.task.plan else "no plan"

    @property
    def hint(self) -> str | None:
        """The command that an operator can run to resolve a problem, or None. STATE in the command is a placeholder."""
        name, unverified = self.task.server, self.task.unverified_condition
        match self.failure:
            case BmcUnreachable() | BmcBusy():
                # The service root needs no password: DSP0266, "Authentication requirements".
                return f"curl -ksS {quote_words(self.task.bmc.address.rstrip('/') + '/redfish/v1/')}"
            case BmcRejected():
                return find_remedy(f"Bmc/{name}", "Stalled")
            case BmcNotTrusted():
                return "gitboot bmc access-files --state STATE"
            case UsageError() | UnexpectedFailure():
                return None
        for step in (self.step, self.power_step):
            if isinstance(step, AskOperator):
                return find_remedy(f"Bmc/{name}", step.condition)
        if unverified is not None:
            return find_remedy(*unverified, {"SERVERS": name})
        if Wait(why=_NO_LEDGER_NAMED) in (self.step, self.power_step):
            return find_remedy("BmcsSet", "LedgerNotNamed", {"LEDGER": self.task.unnamed_ledger or ""})
        return None

    @property
    def next_action(self) -> str:
        """The kind of the next step or of the failure, in one or two words."""
        if self.failure is not None:
            return next(text for error_type, text in _FAILURE_TEXTS.items() if isinstance(self.failure, error_type))
        if isinstance(self.step, NoChange) and self.pending_reset is not None:
            return "Power"
        return STEP_NAMES[type(self.step)]


def list_manual_tasks(commit: Commit, snapshot: LedgerSnapshot, keys: TokenKeys, at: datetime) -> Iterator[ManualTask]:
    """Yield the machines with a BMC, sorted by name, then removed machines whose BMC may still have an override."""
    yield from _list_described_machines(remove_withheld_boots(commit, snapshot.facts.withheld), snapshot, keys, at)
    yield from _list_removed_machines(commit, snapshot)


def _list_described_machines(
    commit: Commit, snapshot: LedgerSnapshot, keys: TokenKeys, at: datetime
) -> Iterator[ManualTask]:
    """Yield the machines that have a document with a BMC, sorted by name."""
    shared = SharedIdentityValues().update(snapshot.pins, snapshot.machines).values
    stop = find_stop_scope(snapshot, commit, snapshot.facts.orders)
    unverified_reason = find_unverified_reason(snapshot.facts, commit.decisions)
    for decision in commit.decisions.servers.values():
        machine, record = commit.machines[decision.uuid], snapshot.record(decision.uuid)
        if machine.bmc is None:
            continue
        details = build_server_details(commit, decision.server)
        absent = snapshot.find_missing_files(decision)
        server_state = plan_server(decision, record, at, details, stop, snapshot.find_later_clock(at), keys, absent)
        plan = server_state.plan
        wanted = build_wanted_override(plan, keys)
        yield ManualTask(
            server=decision.server,
            uuid=decision.uuid,
            bmc=machine.bmc,
            decision=decision,
            plan=plan,
            record=record,
            wanted=add_server_state(wanted, server_state, snapshot) if wanted is not None else None,
            keep_media=tuple(filter(None, build_media_urls(plan, keys))),
            records=snapshot.list_overrides(decision.uuid),
            site=commit.sites.get(decision.server),
            serial=machine.serial,
            pinned=snapshot.pins.get(decision.uuid),
            shared_values=shared,
            bmc_is_in_ledger=get_credential_use(machine.bmc) in snapshot.known_pairs,
            is_unobservable=record is None and snapshot.stored_record(decision.uuid) is not None,
            power=find_power_plan(server_state, snapshot.power_records.get(decision.uuid, {})),
            power_records=snapshot.list_power_records(decision.uuid),
            unverified_reason=unverified_reason,
            unnamed_ledger=snapshot.facts.identity if commit.ledger is None else None,
        )


def _list_removed_machines(commit: Commit, snapshot: LedgerSnapshot) -> Iterator[ManualTask]:
    """Yield the machines without a document whose BMC may still have an override."""
    for uuid in sorted(snapshot.overrides):
        overrides, current_machine = snapshot.list_overrides(uuid), commit.machines.get(uuid)
        bmcs = [override.bmc for override in overrides if override.may_be_left_on_bmc]
        bmc = next((bmc for bmc in bmcs if bmc is not None), None)
        if bmc is None or (current_machine is not None and current_machine.bmc is not None):
            continue
        yield ManualTask(
            server=snapshot.machines[uuid].name if uuid in snapshot.machines else str(uuid),
            uuid=uuid,
            bmc=bmc,
            decision=None,
            plan=None,
            record=None,
            wanted=None,
            records=overrides,
            pinned=snapshot.pins.get(uuid),
            bmc_is_in_ledger=get_credential_use(bmc) in snapshot.known_pairs,
        )


def inspect_bmcs(
    tasks: Iterable[ManualTask],
    connections: ConnectionCache,
    at: datetime,
    *,
    on_read: Callable[[int], None] = lambda _: None,
    find_fault: FindFault = lambda _url, _base_url: None,
) -> list[Inspection]:
    """Read each BMC once, with many reads in parallel.

    The result starts with the BMCs that need an operator. Unreadable BMCs follow, and then BMCs that differ from their
    plans. ``on_read`` is called with the number of BMCs that were read since the previous call. ``find_fault`` is
    called with the URL of a boot program and with the server's base URL.
    """
    results = _run_manual_tasks(
        tasks,
        connections,
        partial(_inspect_bmc, at=at, find_fault=find_fault),
        lambda task, error: Inspection(task=task, failure=error),
        on_read,
    )
    return sorted(
        results,
        key=lambda each: (not each.needs_operator, each.observed is not None, each.is_settled, each.task.server),
    )


def _run_manual_tasks(
    tasks: Iterable[ManualTask],
    connections: ConnectionCache,
    work: Callable[[ManualTask, Driver], Value],
    failed_result: Callable[[ManualTask, Failure], Value],
    on_done: Callable[[int], None],
) -> list[Value]:
    """Call ``work`` for each BMC, with many calls in parallel.

    ``on_done`` is called with the number of BMCs that were processed since the previous call. ``failed_result`` returns
    the result for a BMC that failed.
    """

    def run_task(task: ManualTask) -> tuple[Value, ResponseSample | None]:
        sample = None
        try:
            bmc = connections.connect(
                task.uuid, task.server, task.bmc, is_in_ledger=task.bmc_is_in_ledger, pinned=task.pinned
            )
            with bmc.policy.measure_requests() as take_sample:
                try:
                    value = work(task, bmc)
                finally:
                    sample = take_sample()
        except Exception as error:  # noqa: BLE001 - one BMC must not end the command
            value = failed_result(task, _explain_failure(task, error))
        return value, sample

    values: list[Value] = []
    with closing(TaskRunner[SystemUuid, Value]()) as runner:
        runner.add(QueuedTask(task.uuid, task.site, partial(run_task, task)) for task in tasks)
        while results := runner.wait_for_results():
            values += results.values()
            on_done(len(results))
    return values


def _explain_failure(task: ManualTask, error: Exception) -> Failure:
    """Return an expected error, or log an unexpected error and return its explanation."""
    if isinstance(error, UsageError | BmcUnreachable | BmcBusy | BmcRejected):
        return error
    _logger.error("a task at the BMC of %s (%s) failed", task.server, task.bmc.address, exc_info=error)
    return UnexpectedFailure(
        f"gitboot failed because of a defect ({type(error).__name__}); report it with the traceback from standard error"
    )


def _find_rejected_programs(task: ManualTask, find_fault: FindFault) -> Iterator[str]:
    """Yield the URL of each boot program in the plan that the firmware would reject, followed by the reason.

    The firmware starts these programs directly or through a boot loader.

    Programs inside an ISO image are not checked.
    """
    boot, decision = task.plan.boot if task.plan is not None else None, task.decision
    if boot is None or decision is None:
        return
    for file in boot.verified_programs:
        if (fault := find_fault(file.url, decision.base_url)) is not None:
            yield f"{file.url} {fault}"


def _inspect_bmc(task: ManualTask, bmc: Driver, *, at: datetime, find_fault: FindFault) -> Inspection:
    """Read a BMC, and determine the next step for the boot override and the next step for the power.

    The machine is assumed to be in the power wave.
    """
    observed = observe_bmc(bmc, task.wanted, task.records, lambda: at)
    if bmc.firmware is not None:
        observed = bmc.firmware.read_secure_boot(observed)
    identified = task.compare_identity(observed, find_pinned_identity(task.pinned, task.bmc.normalized_address))
    step = next_step(
        wanted=task.wanted,
        observed=observed,
        records=task.records,
        now=at,
        identity_result=identified,
        keep_media=task.keep_media,
    )
    is_new = isinstance(step, SetOverride | InsertMedium)
    is_new = is_new or (isinstance(step, ConfirmRecord) and step.record.state is OverrideState.SET_BY_ANOTHER)
    if task.unnamed_ledger is not None and is_new:
        step = Wait(why=_NO_LEDGER_NAMED)
    power_change = task.power.find_power_change(task.power_records, now=True) if task.power is not None else None
    power_step: PowerChangeStep | None = None
    if power_change is not None:
        power_step = next_power_step(
            wanted=power_change,
            record=next((each for each in task.power_records if each.reason == power_change.reason), None),
            observed=bmc.read_reset_types(observed),
            overrides=task.records,
            now=at,
            identity_result=identified,
            changing_marks=find_changing_marks(observed, task.records, task.power_records),
        )
        if isinstance(power_step, RequestReset) and task.unnamed_ledger is not None:
            power_step = Wait(why=_NO_LEDGER_NAMED)
    return Inspection(
        task=task,
        observed=observed,
        step=step,
        power_step=power_step,
        rejected_programs=tuple(_find_rejected_programs(task, find_fault)),
    )


def format_override(override: Override | None) -> str:
    """Format an override in two words. For a disabled override, omit the target."""
    if override is None:
        return "-"
    if override.enabled is OverrideEnabled.DISABLED:
        return str(override.enabled)
    return f"{override.enabled} {override.target}"


def _encode_override(override: Override, **more: Any) -> dict[str, Any]:
    return {
        "enabled": override.enabled,
        "target": override.target,
        "mode": override.mode,
        "httpBootUri": override.http_boot_uri,
        "medium": override.medium,
        "dataMedium": override.data_medium,
        **more,
    }


class PowerResult(Struct, frozen=True, kw_only=True):
    """The result of a power action on one machine: the selected reset or an error, and whether the reset was sent."""

    task: ManualTask
    observed: BmcObservation | None  # what the BMC reported before the reset; None: the BMC could not be read
    step: PowerStep
    sent: bool | None = False  # None: the response was lost, so the BMC may have reset the machine

    @property
    def would_send(self) -> bool:
        """Whether a reset was selected."""
        return isinstance(self.step, ResetType)

    @property
    def is_failed(self) -> bool:
        """Whether gitboot refused the power action, or could not complete it."""
        return isinstance(self.step, PowerChangeRefusal)

    @property
    def text(self) -> str:
        """The selected reset, or the reason why no reset was selected."""
        return str(self.step) if isinstance(self.step, ResetType) else self.step.why

    def facts(self) -> dict[str, Any]:
        """Return the JSON object of this result."""
        plan = self.task.plan
        return {
            "server": self.task.server,
            "uuid": self.task.uuid,
            "bmc": self.task.bmc.address,
            "power": self.observed.power if self.observed is not None else None,
            "phase": plan.phase if plan is not None else None,
            "writesDisk": plan.writes_disk if plan is not None else None,
            "resetType": self.step if isinstance(self.step, ResetType) else None,
            "why": None if isinstance(self.step, ResetType) else self.step.why,
            "sent": self.sent,
        }


def switch_power(
    tasks: Iterable[ManualTask],
    action: PowerAction,
    connections: ConnectionCache,
    *,
    force: bool,
    send: bool,
    on_done: Callable[[int], None] = lambda _: None,
) -> list[PowerResult]:
    """Read each BMC, and select the reset that carries out a power action. With ``send``, request this reset once.

    The results are sorted by server name. ``on_done`` is called with the number of BMCs that were processed since the
    previous call.
    """

    def work(task: ManualTask, bmc: Driver) -> PowerResult:
        if bmc.login is not None:
            bmc.login.keeps_session = False  # at most two requests do not justify a session
        seen = bmc.read_reset_types(bmc.observe())
        step = choose_power_step(
            action,
            seen,
            task.compare_identity(seen, find_pinned_identity(task.pinned, task.bmc.normalized_address)),
            force=force,
        )
        result = PowerResult(task=task, observed=seen, step=step)
        if not send or not isinstance(step, ResetType):
            return result
        try:
            bmc.reset(step, seen)
        except (BmcBusy, BmcRejected, UsageError) as error:
            return structs.replace(result, step=PowerChangeRefusal(why=str(error)))
        except Exception as error:  # noqa: BLE001 - the BMC may have received the request
            failure = _explain_failure(task, error)
            why = f"{failure}. The BMC may have executed {step}. Check the machine before you try again"
            return structs.replace(result, step=PowerChangeRefusal(why=why), sent=None)
        return structs.replace(result, sent=True)

    results = _run_manual_tasks(
        tasks,
        connections,
        work,
        lambda task, error: PowerResult(task=task, observed=None, step=PowerChangeRefusal(why=str(error))),
        on_done,
    )
    return sorted(results, key=lambda each: each.task.server)
