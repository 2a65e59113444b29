"""Manual BMC tasks: inspect BMCs and change the power of machines for an operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, structs

from gitboot.bmc.credentials import NO_SAMPLE, ResponseSample, credential_use
from gitboot.bmc.identity import SharedIdentityValues, find_pin_at
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
    choose_reset_type,
    find_changing_marks,
    next_power_step,
)
from gitboot.bmc.worker_pool import ConnectionCache, Task, TaskRunner
from gitboot.controller.bmcs.desired_state import (
    PowerPlan,
    add_server_state,
    build_media_urls,
    build_wanted_override,
    find_power_plan,
)
from gitboot.controller.current_plans import describe_server
from gitboot.controller.operator_requests import decide_halt
from gitboot.controller.records.install_boots import remove_withheld_boots
from gitboot.controller.records.ledger_snapshot import Knowledge
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


Value = TypeVar("Value")
Failure = BmcUnreachable | BmcBusy | BmcRejected | UsageError
FindFault = Callable[[str, str], str | None]
_NO_LEDGER_NAMED: Final = "the Fleet does not name a ledger, so another instance may change the same BMC"
_FAILURE_TEXTS: Final = {
    BmcUnreachable: "unreachable",
    BmcBusy: "busy",
    BmcRejected: "refused",
    UsageError: "no access",
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


class Subject(BmcTask, frozen=True, kw_only=True):
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
        record = self.record
        if record is None or self.decision is None:
            return "unseen" if self.is_unobservable else "unknown"
        if self.is_lost:
            return "lost"
        if self.plan is not None and self.plan.cause in UNKNOWN_OUTCOMES:
            return "outcome unknown"
        step = install_step(self.decision, record)
        if step is InstallStep.PENDING and self.plan is not None and record.consumed_key == self.plan.key is not None:
            return "consumed"
        return (record.evidence or "-") if step is InstallStep.PROVISIONED else step.lower()

    @property
    def is_lost(self) -> bool:
        """Return whether the override for the pending boot disappeared and there is no evidence of a boot."""
        plan = self.plan
        return (
            plan is not None
            and plan.phase is Phase.NETWORK
            and plan.key is not None
            and any(each.reason == plan.key and each.state is OverrideState.LOST for each in self.records)
        )

    @property
    def unverified_condition(self) -> tuple[str, str] | None:
        """The condition type and reason if an operator must check the machine's disks, otherwise None."""
        if self.plan is None or self.is_unobservable:
            return None
        if self.unverified_reason is not None:
            return "RecordsVerified", self.unverified_reason
        return _UNVERIFIED_CONDITIONS.get(Cause.CONSUMED if self.is_lost else self.plan.cause)


class Inspection(Struct, frozen=True, kw_only=True):
    """The state of one BMC, and the next step for that BMC."""

    subject: Subject
    observed: BmcObservation | None = None  # None: the BMC could not be read
    step: Step | None = None
    failure: Failure | None = None
    # The URL of each program that firmware with Secure Boot would reject, with the reason.
    rejected_programs: tuple[str, ...] = ()
    # The next step of the power change, assuming that the machine is in the power wave; None: no step is due.
    switch: PowerChangeStep | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The problems that will prevent the planned boot."""
        if self.observed is None or not self.observed.secure_boot:
            return ()
        return tuple(
            f"Secure Boot is on, but {each}, so the firmware will reject this file" for each in self.rejected_programs
        )

    @property
    def needs_operator(self) -> bool:
        return (
            isinstance(self.step, AskOperator)
            or isinstance(self.switch, AskOperator)
            or self.subject.unverified_condition is not None
        )

    @property
    def is_settled(self) -> bool:
        return isinstance(self.step, NoChange) and self.pending_reset is None

    @property
    def pending_reset(self) -> str | None:
        """A description of the next reset or of what prevents it, or None if no reset is planned."""
        subject = self.subject
        power = subject.power.find_current(subject.power_records) if subject.power is not None else None
        match self.switch:
            case RequestReset(record=record) if power is not None:
                uri = choose_firmware_uri(self.subject.wanted, self.observed) if self.observed is not None else None
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
        subject, record = self.subject, self.subject.record
        return {
            "server": subject.server,
            "uuid": subject.uuid,
            "bmc": subject.bmc.address,
            "credentials": subject.bmc.credentials,
            "responded": self.observed is not None,
            "phase": subject.plan.phase if subject.plan else None,
            "cause": subject.plan.cause if subject.plan else None,
            "wanted": _build_override_facts(subject.wanted.override, reason=subject.wanted.reason)
            if subject.wanted
            else None,
            "seen": _build_override_facts(
                self.observed.override,
                power=self.observed.power,
                inPost=self.observed.in_post,
                bootOrder=list(self.observed.boot_order),
                secureBoot=self.observed.secure_boot,
                firmwareUri=self.observed.firmware_uri,
            )
            if self.observed
            else None,
            "recorded": [
                _build_override_facts(each.override, reason=each.reason, state=each.state, at=format_instant(each.at))
                for each in subject.records
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
        if self.failure is not None:
            why, name = str(self.failure), self.subject.bmc.credentials
            return why if re.search(rf"\b{re.escape(name)}\b", why) else f"{why} (credentials {name})"
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
                wanted, seen, dhcp_reason = self.subject.wanted, self.observed, None
                if wanted is not None and seen is not None:
                    dhcp_reason = explain_dhcp_loader(wanted.override, seen)
                suffix = f"; {dhcp_reason}, so the DHCP server must name the boot loader" if dhcp_reason else ""
                return f"required for {record.reason}{suffix}"
            case NoChange() if self.pending_reset is not None:
                return self.pending_reset
        return str(self.subject.plan.cause) if self.subject.plan else "no plan"

    @property
    def hint(self) -> str | None:
        """The command that an operator can run to resolve a problem, or None. STATE in the command is a placeholder."""
        name, unverified = self.subject.server, self.subject.unverified_condition
        match self.failure:
            case BmcUnreachable() | BmcBusy():
                # The service root needs no password: DSP0266, "Authentication requirements".
                return f"curl -ksS {quote_words(self.subject.bmc.address.rstrip('/') + '/redfish/v1/')}"
            case BmcRejected():
                return find_remedy(f"Bmc/{name}", "Stalled")
            case BmcNotTrusted():
                return "gitboot bmc access-files --state STATE"
            case UsageError():
                return None
        for step in (self.step, self.switch):
            if isinstance(step, AskOperator):
                return find_remedy(f"Bmc/{name}", step.condition)
        if unverified is not None:
            return find_remedy(*unverified, {"SERVERS": name})
        if Wait(why=_NO_LEDGER_NAMED) in (self.step, self.switch):
            return find_remedy("BmcsSet", "LedgerNotNamed", {"LEDGER": self.subject.unnamed_ledger or ""})
        return None

    @property
    def next_action(self) -> str:
        if self.failure is not None:
            return next(word for kind, word in _FAILURE_TEXTS.items() if isinstance(self.failure, kind))
        if isinstance(self.step, NoChange) and self.pending_reset is not None:
            return "Power"
        return STEP_NAMES[type(self.step)]


def list_subjects(commit: Commit, knowledge: Knowledge, keys: TokenKeys, at: datetime) -> Iterator[Subject]:
    """Yield the machines with a BMC, sorted by name, then removed machines whose BMC may still have an override."""
    commit = remove_withheld_boots(commit, knowledge.facts.withheld)
    shared = SharedIdentityValues().update(knowledge.pins, knowledge.machines).values
    stop = decide_halt(knowledge, commit, knowledge.facts.orders)
    unverified_reason = find_unverified_reason(knowledge.facts, commit.decisions)
    for decision in commit.decisions.servers.values():
        machine, record = commit.machines[decision.uuid], knowledge.record(decision.uuid)
        if machine.bmc is None:
            continue
        details, absent = describe_server(commit, decision.server), knowledge.find_missing_files(decision)
        server_state = plan_server(decision, record, at, details, stop, knowledge.find_later_clock(at), keys, absent)
        plan = server_state.plan
        wanted = build_wanted_override(plan, keys)
        yield Subject(
            server=decision.server,
            uuid=decision.uuid,
            bmc=machine.bmc,
            decision=decision,
            plan=plan,
            record=record,
            wanted=add_server_state(wanted, server_state, knowledge) if wanted is not None else None,
            keep_media=tuple(filter(None, build_media_urls(plan, keys))),
            records=knowledge.list_overrides(decision.uuid),
            site=commit.sites.get(decision.server),
            serial=machine.serial,
            pinned=knowledge.pins.get(decision.uuid),
            shared_values=shared,
            bmc_is_in_ledger=credential_use(machine.bmc) in knowledge.known_pairs,
            is_unobservable=record is None and knowledge.stored_record(decision.uuid) is not None,
            power=find_power_plan(server_state, knowledge.switches.get(decision.uuid, {})),
            power_records=knowledge.list_switches(decision.uuid),
            unverified_reason=unverified_reason,
            unnamed_ledger=knowledge.facts.identity if commit.ledger is None else None,
        )
    for uuid in sorted(knowledge.overrides):
        overrides, current_machine = knowledge.list_overrides(uuid), commit.machines.get(uuid)
        bmc = next((each.bmc for each in overrides if each.may_be_left_on_bmc and each.bmc is not None), None)
        if bmc is None or (current_machine is not None and current_machine.bmc is not None):
            continue
        yield Subject(
            server=knowledge.machines[uuid].name if uuid in knowledge.machines else str(uuid),
            uuid=uuid,
            bmc=bmc,
            decision=None,
            plan=None,
            record=None,
            wanted=None,
            records=overrides,
            pinned=knowledge.pins.get(uuid),
            bmc_is_in_ledger=credential_use(bmc) in knowledge.known_pairs,
        )


def inspect_bmcs(
    subjects: Iterable[Subject],
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

    def build_failed_inspection(subject: Subject, error: Failure) -> Inspection:
        return Inspection(subject=subject, failure=error)

    return sorted(
        _run_at_each_bmc(
            subjects,
            connections,
            partial(_inspect_bmc, at=at, find_fault=find_fault),
            build_failed_inspection,
            on_read,
        ),
        key=lambda each: (not each.needs_operator, each.observed is not None, each.is_settled, each.subject.server),
    )


def _run_at_each_bmc(
    subjects: Iterable[Subject],
    connections: ConnectionCache,
    work: Callable[[Subject, Driver], Value],
    build_failure: Callable[[Subject, Failure], Value],
    on_done: Callable[[int], None],
) -> list[Value]:
    """Call ``work`` for each BMC, with many calls in parallel.

    ``on_done`` is called with the number of BMCs that were processed since the previous call. ``build_failure`` returns
    the result for a BMC that failed.
    """

    def process_subject(subject: Subject) -> tuple[Value, ResponseSample]:
        try:
            bmc = connections.connect(
                subject.uuid, subject.server, subject.bmc, is_in_ledger=subject.bmc_is_in_ledger, pinned=subject.pinned
            )
        except UsageError as error:
            return build_failure(subject, error), NO_SAMPLE
        with bmc.policy.measure_requests() as take_sample:
            try:
                value = work(subject, bmc)
            except (UsageError, BmcUnreachable, BmcBusy, BmcRejected) as error:
                value = build_failure(subject, error)
            return value, take_sample()

    found: list[Value] = []
    with closing(TaskRunner[SystemUuid, Value]()) as runner:
        runner.add(Task(each.uuid, each.site, partial(process_subject, each)) for each in subjects)
        while results := runner.wait_for_results():
            found += results.values()
            on_done(len(results))
    return found


def _find_rejected_programs(subject: Subject, find_fault: FindFault) -> Iterator[str]:
    """Yield the URL of each boot program in the plan that the firmware would reject, followed by the reason.

    The firmware starts these programs directly or through a boot loader.

    Programs inside an ISO image are not checked.
    """
    boot, decision = subject.plan.boot if subject.plan is not None else None, subject.decision
    if boot is None or decision is None:
        return
    for file in boot.verified_programs:
        if (fault := find_fault(file.url, decision.base_url)) is not None:
            yield f"{file.url} {fault}"


def _inspect_bmc(subject: Subject, bmc: Driver, *, at: datetime, find_fault: FindFault) -> Inspection:
    """Read a BMC, and determine the next step for the boot override and the next step for the power.

    The machine is assumed to be in the power wave.
    """
    observed = observe_bmc(bmc, subject.wanted, subject.records, lambda: at)
    if bmc.firmware is not None:
        observed = bmc.firmware.with_secure_boot(observed)
    identified = subject.identify(observed, find_pin_at(subject.pinned, subject.bmc.normalized_address))
    step = next_step(
        wanted=subject.wanted,
        observed=observed,
        records=subject.records,
        now=at,
        identity_result=identified,
        keep_media=subject.keep_media,
    )
    is_new = isinstance(step, SetOverride | InsertMedium)
    is_new = is_new or (isinstance(step, ConfirmRecord) and step.record.state is OverrideState.SET_BY_ANOTHER)
    if subject.unnamed_ledger is not None and is_new:
        step = Wait(why=_NO_LEDGER_NAMED)
    wanted = subject.power.find_power_change(subject.power_records, now=True) if subject.power is not None else None
    switch: PowerChangeStep | None = None
    if wanted is not None:
        switch = next_power_step(
            wanted=wanted,
            record=next((each for each in subject.power_records if each.reason == wanted.reason), None),
            observed=bmc.with_reset_types(observed),
            overrides=subject.records,
            now=at,
            identity_result=identified,
            changing_marks=find_changing_marks(observed, subject.records, subject.power_records),
        )
        if isinstance(switch, RequestReset) and subject.unnamed_ledger is not None:
            switch = Wait(why=_NO_LEDGER_NAMED)
    return Inspection(
        subject=subject,
        observed=observed,
        step=step,
        switch=switch,
        rejected_programs=tuple(_find_rejected_programs(subject, find_fault)),
    )


def format_override(override: Override | None) -> str:
    """Format an override in two words. For a disabled override, omit the target."""
    if override is None:
        return "-"
    return (
        str(override.enabled)
        if override.enabled is OverrideEnabled.DISABLED
        else f"{override.enabled} {override.target}"
    )


def _build_override_facts(override: Override, **more: Any) -> dict[str, Any]:
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

    subject: Subject
    observed: BmcObservation | None  # what the BMC reported before the reset; None: the BMC could not be read
    step: PowerStep
    sent: bool | None = False  # None: the response was lost, so the BMC may have reset the machine

    @property
    def would_send(self) -> bool:
        return isinstance(self.step, ResetType)

    @property
    def is_failed(self) -> bool:
        return isinstance(self.step, PowerChangeRefusal)

    @property
    def text(self) -> str:
        return str(self.step) if isinstance(self.step, ResetType) else self.step.why

    def facts(self) -> dict[str, Any]:
        plan = self.subject.plan
        return {
            "server": self.subject.server,
            "uuid": self.subject.uuid,
            "bmc": self.subject.bmc.address,
            "power": self.observed.power if self.observed is not None else None,
            "phase": plan.phase if plan is not None else None,
            "writesDisk": plan.writes_disk if plan is not None else None,
            "resetType": self.step if isinstance(self.step, ResetType) else None,
            "why": None if isinstance(self.step, ResetType) else self.step.why,
            "sent": self.sent,
        }


def switch_power(
    subjects: Iterable[Subject],
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

    def work(subject: Subject, bmc: Driver) -> PowerResult:
        if bmc.login is not None:
            bmc.login.keeps_session = False  # at most two requests do not justify a session
        seen = bmc.with_reset_types(bmc.observe())
        step = choose_reset_type(
            action,
            seen,
            subject.identify(seen, find_pin_at(subject.pinned, subject.bmc.normalized_address)),
            force=force,
        )
        result = PowerResult(subject=subject, observed=seen, step=step)
        if not send or not isinstance(step, ResetType):
            return result
        try:
            bmc.reset(step, seen)
        except (BmcBusy, BmcRejected) as error:
            return structs.replace(result, step=PowerChangeRefusal(why=str(error)))
        except BmcUnreachable as error:
            why = f"{error}. The BMC may have executed {step}. Check the machine before you try again"
            return structs.replace(result, step=PowerChangeRefusal(why=why), sent=None)
        return structs.replace(result, sent=True)

    def build_failed_result(subject: Subject, error: Failure) -> PowerResult:
        return PowerResult(subject=subject, observed=None, step=PowerChangeRefusal(why=str(error)))

    return sorted(
        _run_at_each_bmc(subjects, connections, work, build_failed_result, on_done),
        key=lambda each: each.subject.server,
    )
