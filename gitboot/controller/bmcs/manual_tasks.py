"""Manual BMC tasks: inspect BMCs and switch power for an operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, structs

from gitboot.bmc.credentials import NO_SIGN, Sign, pair_of
from gitboot.bmc.identity import Sharing, known_at
from gitboot.bmc.override_session import BmcTask, look, would_send
from gitboot.bmc.override_state import (
    AskOperator,
    Confirm,
    Eject,
    Insert,
    Leave,
    Observed,
    Override,
    Set,
    State,
    Step,
    Wait,
    Withdraw,
)
from gitboot.bmc.override_steps import left_to_dhcp, next_step, uri_to_keep
from gitboot.bmc.power_steps import (
    AskForReset,
    NotSwitched,
    PowerAction,
    PowerStep,
    ResetType,
    SwitchStep,
    marks_that_move,
    next_power,
    next_switch,
)
from gitboot.bmc.worker_pool import Connections, Crew, Task
from gitboot.controller.bmcs.desired_state import PowerPlan, media_urls, plan_power, wanted_override
from gitboot.controller.current_plans import about
from gitboot.controller.operator_requests import stop_of
from gitboot.controller.records.install_boots import offering
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.controller.records.ledger_trust import doubt_of
from gitboot.errors import BmcBusy, BmcNotTrusted, BmcRejected, BmcUnreachable, UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.jsonio import format_instant
from gitboot.model.boot_policy import HttpBoot
from gitboot.model.scalars import SystemUuid
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.install_attempts import step_of
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.provisioning_record import InstallStep, Record
from gitboot.resolve.server_decision import Decision, OverrideEnabled
from gitboot.resolve.server_plan import UNKNOWN_OUTCOMES, BootPlan, Cause, Phase
from gitboot.status.conditions import remedy
from gitboot.text import shell_words

if TYPE_CHECKING:
    from gitboot.bmc.override_session import Driver


Value = TypeVar("Value")
Failure = BmcUnreachable | BmcBusy | BmcRejected | UsageError
Signed = Callable[[str, str], bool | None]
_UNNAMED: Final = "the Fleet names no ledger, and another instance may set the same BMC"
_SET_BY_ANOTHER: Final = "was set by another instance, and is not set"
_FAILED: Final = {
    BmcUnreachable: "unreachable",
    BmcBusy: "busy",
    BmcRejected: "refused",
    UsageError: "no access",
}
_DOUBTS: Final = {
    Cause.CONSUMED: ("InstallsCompleted", "NeedsOperator"),
    Cause.OUTCOME: ("InstallsCompleted", "OutcomeUnknown"),
    Cause.MAINTENANCE_OUTCOME: ("MaintenanceRunsStarted", "OutcomeUnknown"),
    Cause.FAILED: ("InstallsCompleted", "Failed"),
    Cause.OVERTAKEN: ("InstallsCompleted", "Failed"),
    Cause.OVERWRITTEN: ("RecordsVerified", "UnverifiedServers"),
    Cause.UNKNOWN: ("RecordsVerified", "UnverifiedServers"),
}


class Subject(BmcTask, frozen=True, kw_only=True):
    """One machine that has a BMC, or on whose BMC something of gitboot's may stand."""

    decision: Decision | None  # None: no document describes it any more
    plan: BootPlan | None
    record: Record | None
    unseen: bool = False  # its record is of no use: nothing could prove the boot that it asks for
    power: PowerPlan | None = None  # what its plan wants of the machine's power
    mistrusted: str | None = None  # why nothing that is recorded counts, in a word
    unnamed: str | None = None  # the ledger of this instance, where the Fleet names none: nothing is set before it does

    @property
    def evidence(self) -> str:
        record = self.record
        if record is None or self.decision is None:
            return "unseen" if self.unseen else "unknown"
        if self.is_lost:
            return "lost"
        if self.plan is not None and self.plan.cause in UNKNOWN_OUTCOMES:
            return "outcome unknown"
        step = step_of(self.decision, record)
        if step is InstallStep.PENDING and self.plan is not None and record.consumed_key == self.plan.key is not None:
            return "consumed"
        return (record.evidence or "-") if step is InstallStep.PROVISIONED else step.lower()

    @property
    def is_lost(self) -> bool:
        """Whether the override for the boot that is still to be made is gone without a trace."""
        plan = self.plan
        if plan is None or plan.phase is not Phase.NETWORK or plan.key is None:
            return False
        return any(each.reason == plan.key and each.state is State.LOST for each in self.records)

    @property
    def doubt(self) -> tuple[str, str] | None:
        """Why only a person can tell what is on the machine's disks: the condition that says so, and its reason."""
        if self.plan is None or self.unseen:
            return None
        if self.mistrusted is not None:
            return "RecordsVerified", self.mistrusted
        return _DOUBTS.get(Cause.CONSUMED if self.is_lost else self.plan.cause)


class Inspection(Struct, frozen=True, kw_only=True):
    """What was found."""

    subject: Subject
    seen: Observed | None = None  # None: it could not be read
    step: Step | None = None
    failure: Failure | None = None
    unsigned: tuple[str, ...] = ()  # the URLs of what its firmware would start, and has no signature
    switch: SwitchStep | None = None  # what would be done to its power, were it its turn; None: nothing is wanted

    @property
    def warnings(self) -> tuple[str, ...]:
        """What will go wrong with the boot that is planned, as far as it can be seen from here."""
        if self.seen is None or not self.seen.secure_boot:
            return ()
        return tuple(f"Secure Boot is on, and {url} has no signature: firmware will refuse it" for url in self.unsigned)

    @property
    def needs_a_person(self) -> bool:
        asks = isinstance(self.step, AskOperator) or isinstance(self.switch, AskOperator)
        return asks or self.subject.doubt is not None

    @property
    def is_settled(self) -> bool:
        return isinstance(self.step, Leave) and self.reset_to_come is None

    @property
    def reset_to_come(self) -> str | None:
        """The reset that will follow, when and why, or what it waits for; None: no reset will follow."""
        power = self.subject.power
        match self.switch:
            case AskForReset(record=record) if power is not None:
                uri = uri_to_keep(self.subject.wanted, self.seen) if self.seen is not None else None
                before = f"; before it firmware is told to keep {uri} for its HTTP boots" if uri is not None else ""
                return f"{record.type} for {record.reason}, {power.turn}{before}"
            case Wait(why=why) if power is not None:
                return f"{power.switching.manner} for {power.switching.reason} waits: {why}"
            case AskOperator(condition=condition, message=message):
                return f"{condition}: {message}"
        return None

    @property
    def request(self) -> tuple[str, ...]:
        """What would be sent to the BMC: the method, and a path and a body; by IPMI the command alone."""
        return would_send(self.step, self.seen) if self.seen is not None else ()

    def facts(self) -> dict[str, Any]:
        subject, record = self.subject, self.subject.record
        return {
            "server": subject.server,
            "uuid": subject.uuid,
            "bmc": subject.bmc.address,
            "credentials": subject.bmc.credentials,
            "responded": self.seen is not None,
            "phase": subject.plan.phase if subject.plan else None,
            "cause": subject.plan.cause if subject.plan else None,
            "wanted": _facts(subject.wanted.override, reason=subject.wanted.reason) if subject.wanted else None,
            "seen": _facts(
                self.seen.override,
                power=self.seen.power,
                inPost=self.seen.in_post,
                bootOrder=list(self.seen.boot_order),
                secureBoot=self.seen.secure_boot,
                firmwareUri=self.seen.firmware_uri,
            )
            if self.seen
            else None,
            "recorded": [
                _facts(each.override, reason=each.reason, state=each.state, at=format_instant(each.at))
                for each in subject.records
            ],
            "evidence": record.evidence if record else None,
            "provisionedAt": format_instant(record.provisioned_at) if record and record.provisioned_at else None,
            "next": self.next,
            "why": self.why,
            "hint": self.hint,
            "needsOperator": self.needs_a_person,
            "patch": self.request[-1] if self.request else None,
            "power": self.reset_to_come,
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
            case Withdraw(record=record):
                return f"it was set for {record.reason}, which is not wanted now"
            case Insert(record=record):
                return f"its medium is wanted for {record.reason}"
            case Eject(record=record):
                return f"it was inserted for {record.reason}, which needs it no more"
            case Confirm(record=record):
                became = _SET_BY_ANOTHER if record.state is State.SET_BY_ANOTHER else f"is {record.state.lower()}"
                return f"{record.reason} {became}"
            case Set(record=record):
                wanted, seen = self.subject.wanted, self.seen
                by = left_to_dhcp(wanted.override, seen) if wanted is not None and seen is not None else None
                otherwise = f"; the BMC {by}, so DHCP names the loader" if by is not None else ""
                return f"wanted for {record.reason}{otherwise}"
            case Leave() if self.reset_to_come is not None:
                return self.reset_to_come
        return str(self.subject.plan.cause) if self.subject.plan else "no plan"

    @property
    def hint(self) -> str | None:
        """The line that a person may copy, once they have looked at it; STATE: the state directory."""
        name, doubt = self.subject.server, self.subject.doubt
        match self.failure:
            case BmcUnreachable() | BmcBusy():
                # The service root needs no password: DSP0266, "Authentication requirements".
                return f"curl -ksS {shell_words(self.subject.bmc.address.rstrip('/') + '/redfish/v1/')}"
            case BmcRejected():
                return remedy(f"Bmc/{name}", "Stalled")
            case BmcNotTrusted():
                return "gitboot bmc access-files --state STATE"
            case UsageError():
                return None
        for step in (self.step, self.switch):
            if isinstance(step, AskOperator):
                return remedy(f"Bmc/{name}", step.condition)
        if doubt is not None:
            return remedy(*doubt, {"SERVERS": name})
        if Wait(why=_UNNAMED) in (self.step, self.switch):
            return remedy("BmcsSet", "LedgerNotNamed", {"LEDGER": self.subject.unnamed or ""})
        return None

    @property
    def next(self) -> str:
        if self.failure is not None:
            return next(word for kind, word in _FAILED.items() if isinstance(self.failure, kind))
        if isinstance(self.step, Leave) and self.reset_to_come is not None:
            return "Power"
        return type(self.step).__name__


def subjects(commit: Commit, knowledge: Knowledge, keys: TokenKeys, at: datetime) -> Iterator[Subject]:
    """Yield all machines with a BMC, by name; then those that have left an override behind."""
    commit = offering(commit, knowledge.facts.withheld)
    shared = Sharing().after(knowledge.pins, knowledge.machines).values
    stop = stop_of(knowledge, commit, knowledge.facts.orders)
    mistrusted = doubt_of(knowledge.facts, commit.decisions)
    for decision in commit.decisions.servers.values():
        machine, record = commit.machines[decision.uuid], knowledge.record(decision.uuid)
        if machine.bmc is None:
            continue
        planned = plan(decision, at, record, stop=stop, absent=knowledge.absent(decision))
        yield Subject(
            server=decision.server,
            uuid=decision.uuid,
            bmc=machine.bmc,
            decision=decision,
            plan=planned,
            record=record,
            wanted=wanted_override(planned, keys),
            keeps=tuple(filter(None, media_urls(planned, keys))),
            records=knowledge.overrides_of(decision.uuid),
            site=commit.sites.get(decision.server),
            serial=machine.serial,
            pinned=knowledge.pins.get(decision.uuid),
            shared=shared,
            known=pair_of(machine.bmc) in knowledge.known_pairs,
            unseen=record is None and knowledge.recorded(decision.uuid) is not None,
            power=plan_power(
                decision,
                planned,
                record,
                knowledge.switches.get(decision.uuid, {}),
                stop=stop,
                about=about(commit, decision.server),
            ),
            switches=knowledge.switches_of(decision.uuid),
            mistrusted=mistrusted,
            unnamed=knowledge.facts.identity if commit.ledger is None else None,
        )
    for uuid in sorted(knowledge.overrides):
        overrides, described = knowledge.overrides_of(uuid), commit.machines.get(uuid)
        bmc = next((each.bmc for each in overrides if each.stays_behind and each.bmc is not None), None)
        if bmc is None or (described is not None and described.bmc is not None):
            continue
        name = knowledge.machines[uuid].name if uuid in knowledge.machines else str(uuid)
        yield Subject(
            server=name,
            uuid=uuid,
            bmc=bmc,
            decision=None,
            plan=None,
            record=None,
            wanted=None,
            records=overrides,
            pinned=knowledge.pins.get(uuid),
            known=pair_of(bmc) in knowledge.known_pairs,
        )


def inspect(
    chosen: Iterable[Subject],
    connections: Connections,
    at: datetime,
    *,
    read: Callable[[int], None] = lambda _: None,
    signed: Signed = lambda _url, _base_url: None,
) -> list[Inspection]:
    """Read each BMC once, many at a time.

    Those that need a person come first, then those that could not be read, then those that are not as wanted.
    ``read`` is called with how many more have been read; ``signed`` tells whether a file that is served below a base
    URL has a signature.
    """

    def failed(subject: Subject, error: Failure) -> Inspection:
        return Inspection(subject=subject, failure=error)

    found = _at_each_bmc(chosen, connections, partial(_read, at=at, signed=signed), failed, read)
    return sorted(
        found, key=lambda one: (not one.needs_a_person, one.seen is not None, one.is_settled, one.subject.server)
    )


def _at_each_bmc(
    chosen: Iterable[Subject],
    connections: Connections,
    work: Callable[[Subject, Driver], Value],
    failed: Callable[[Subject, Failure], Value],
    done: Callable[[int], None],
) -> list[Value]:
    """Do some work at each BMC, many at a time; ``done`` is called with how many more are done.

    ``failed`` makes a value of an error in place of ``work``.
    """

    def do(subject: Subject) -> tuple[Value, Sign]:
        try:
            bmc = connections.to(subject.uuid, subject.server, subject.bmc, known=subject.known, pinned=subject.pinned)
        except UsageError as error:
            return failed(subject, error), NO_SIGN
        with bmc.reach.watched() as sign:
            try:
                value = work(subject, bmc)
            except (UsageError, BmcUnreachable, BmcBusy, BmcRejected) as error:
                value = failed(subject, error)
            return value, sign()

    found: list[Value] = []
    with closing(Crew[SystemUuid, Value]()) as crew:
        crew.add(Task(each.uuid, each.site, partial(do, each)) for each in chosen)
        while ended := crew.next_ended():
            found += ended.values()
            done(len(ended))
    return found


def _unsigned(subject: Subject, signed: Signed) -> Iterator[str]:
    """Yield the programs that its plan has firmware start, directly or by a loader, without a signature.

    The content of an ISO is not checked.
    """
    boot, decision = subject.plan.boot if subject.plan is not None else None, subject.decision
    if boot is None or decision is None:
        return
    loader = boot.files.loader if boot.http_boot is HttpBoot.LOADER else None
    for file in (boot.direct_uki,) if boot.direct else (loader, boot.files.kernel):
        if file is not None and signed(file.url, decision.base_url) is False:
            yield file.url


def _read(subject: Subject, bmc: Driver, *, at: datetime, signed: Signed) -> Inspection:
    """Read a BMC, and decide what would be done at it: to its override now, to its power were it its turn."""
    seen = look(bmc, subject.wanted, subject.records, lambda: at)
    if bmc.firmware is not None:
        seen = bmc.firmware.with_secure_boot(seen)
    identified = subject.identify(seen, known_at(subject.pinned, subject.bmc.place))
    step = next_step(
        wanted=subject.wanted,
        observed=seen,
        records=subject.records,
        at=at,
        identified=identified,
        keeps=subject.keeps,
    )
    is_new = isinstance(step, Set | Insert)
    is_new = is_new or (isinstance(step, Confirm) and step.record.state is State.SET_BY_ANOTHER)
    if subject.unnamed is not None and is_new:
        step = Wait(why=_UNNAMED)
    wanted = subject.power.switching_for(subject.switches, now=True) if subject.power is not None else None
    switch: SwitchStep | None = None
    if wanted is not None:
        switch = next_switch(
            wanted=wanted,
            record=next((each for each in subject.switches if each.reason == wanted.reason), None),
            observed=bmc.with_reset_types(seen),
            overrides=subject.records,
            at=at,
            identified=identified,
            moving=marks_that_move(seen, subject.records, subject.switches),
        )
        if isinstance(switch, AskForReset) and subject.unnamed is not None:
            switch = Wait(why=_UNNAMED)
    return Inspection(subject=subject, seen=seen, step=step, switch=switch, unsigned=tuple(_unsigned(subject, signed)))


def shown(override: Override | None) -> str:
    """Return an override in two words; a disabled override has no target that matters."""
    if override is None:
        return "-"
    return (
        str(override.enabled)
        if override.enabled is OverrideEnabled.DISABLED
        else f"{override.enabled} {override.target}"
    )


def _facts(override: Override, **more: Any) -> dict[str, Any]:
    return {
        "enabled": override.enabled,
        "target": override.target,
        "mode": override.mode,
        "httpBootUri": override.http_boot_uri,
        "medium": override.medium,
        "dataMedium": override.data_medium,
        **more,
    }


class Powered(Struct, frozen=True, kw_only=True):
    """What is to be done to one machine's power, or was."""

    subject: Subject
    seen: Observed | None  # before; None: it could not be read
    step: PowerStep
    sent: bool | None = False  # None: its answer was lost, and it may have been taken

    @property
    def would_send(self) -> bool:
        return isinstance(self.step, ResetType)

    @property
    def failed(self) -> bool:
        return isinstance(self.step, NotSwitched)

    @property
    def words(self) -> str:
        return str(self.step) if isinstance(self.step, ResetType) else self.step.why

    def facts(self) -> dict[str, Any]:
        plan = self.subject.plan
        return {
            "server": self.subject.server,
            "uuid": self.subject.uuid,
            "bmc": self.subject.bmc.address,
            "power": self.seen.power if self.seen is not None else None,
            "phase": plan.phase if plan is not None else None,
            "writesDisk": plan.writes_disk if plan is not None else None,
            "resetType": self.step if isinstance(self.step, ResetType) else None,
            "why": None if isinstance(self.step, ResetType) else self.step.why,
            "sent": self.sent,
        }


def switch(
    chosen: Iterable[Subject],
    action: PowerAction,
    connections: Connections,
    *,
    force: bool,
    send: bool,
    each: Callable[[int], None] = lambda _: None,
) -> list[Powered]:
    """Read each BMC; with ``send``, request the reset that `next_power` decides on, once.

    The results are in the order of names. ``each`` is called with how many more are done.
    """

    def work(subject: Subject, bmc: Driver) -> Powered:
        if bmc.login is not None:
            bmc.login.keeps = False  # it is asked twice at the most: no session is worth its while
        seen = bmc.with_reset_types(bmc.observe())
        identified = subject.identify(seen, known_at(subject.pinned, subject.bmc.place))
        step = next_power(action, seen, identified, force=force)
        powered = Powered(subject=subject, seen=seen, step=step)
        if not send or not isinstance(step, ResetType):
            return powered
        try:
            bmc.reset(step, seen)
        except (BmcBusy, BmcRejected) as error:
            return structs.replace(powered, step=NotSwitched(why=str(error)))
        except BmcUnreachable as error:
            why = f"{error}: whether it has taken {step} is not known; look before you ask again"
            return structs.replace(powered, step=NotSwitched(why=why), sent=None)
        return structs.replace(powered, sent=True)

    def failed(subject: Subject, error: Failure) -> Powered:
        return Powered(subject=subject, seen=None, step=NotSwitched(why=str(error)))

    return sorted(_at_each_bmc(chosen, connections, work, failed, each), key=lambda one: one.subject.server)
