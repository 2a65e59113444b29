"""Desired state of BMCs: the override and the power that a plan wants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, structs

from gitboot.bmc.override_session import BmcTask
from gitboot.bmc.override_state import Override, Wanted
from gitboot.bmc.power_steps import Manner, Switching, SwitchRecord, SwitchState
from gitboot.controller.records.evidence import awaits_progress
from gitboot.controller.records.ledger_snapshot import Knowledge, Learning
from gitboot.controller.records.ledger_trust import Beginning
from gitboot.evaluator.evaluation_result import Commit
from gitboot.jsonio import format_instant
from gitboot.model.boot_policy import HttpBoot, MaintenancePower, OverrideMode, PolicyPower, PolicyWait
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Firmware
from gitboot.render.paths import BOOT, MEDIUM
from gitboot.render.server_files import About, ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.boot_limits import Halt
from gitboot.resolve.install_attempts import last_attempt, provision_reason
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision, MaintenanceDecision, OverrideTarget
from gitboot.resolve.server_plan import (
    BootPlan,
    Cause,
    Phase,
)

SITE = "Site"  # maxUnavailablePer, where it names no label


class PowerPlan(Struct, frozen=True, kw_only=True):
    """What is to become of one machine's power, and among whom it has its turn."""

    switching: Switching
    is_due: bool  # whether the plan wants it now; else it is only seen to that whoever was switched comes back
    maintenance: str | None = None  # None: a policy wants it, and nobody waits for anybody
    group: str | None = None  # of those that the limit is for
    limit: str = ""
    run_at: datetime | None = None  # when its run was seen to be made

    def switching_for(self, switches: Iterable[SwitchRecord], *, now: bool) -> Switching | None:
        """Return the switching that a task brings about or follows up; ``now``: the machine's turn has come."""
        return structs.replace(self.switching, now=now) if self.is_due or self._is_open(switches) else None

    def is_new(self, switches: Iterable[SwitchRecord]) -> bool:
        """Return whether a machine is to be switched, as far as the ledger knows."""
        own = next((each for each in switches if each.reason == self.switching.reason), None)
        return self.is_due and (own is None or own.state is SwitchState.REFUSED)

    def without_asking(self, switches: Iterable[SwitchRecord]) -> PowerPlan | None:
        """Return a plan that only waits until the machine is back; None: it was not switched."""
        if not self._is_open(switches):
            return None
        return structs.replace(self, is_due=False, switching=structs.replace(self.switching, may_ask=False))

    def _is_open(self, switches: Iterable[SwitchRecord]) -> bool:
        return any(each.reason == self.switching.reason and each.state.is_open for each in switches)

    @property
    def turn(self) -> str:
        if self.maintenance is None:
            return "at once"
        among = f" in {self.group}" if self.group is not None else ""
        return f"in its turn: {self.limit} of maintenance {self.maintenance}{among} may be down at a time"


def plan_power(
    decision: Decision,
    plan: BootPlan | None,
    record: Record | None,
    switches: Mapping[str, SwitchRecord],
    *,
    stop: Halt,
    about: About,
) -> PowerPlan | None:
    """Return what a server's plan wants of its power; None: nothing.

    A plan wants nothing of the power while boots are stopped, or if nothing is known of the machine.
    """
    if plan is None or record is None or decision.stopped or stop is not Halt.NONE:
        return None
    override = plan.override.reason if plan.override is not None else None
    # A machine that resets boots what is planned if an override leads there, or the firmware's own order does.
    is_reached = plan.override is not None or plan.boot is None
    if plan.maintenance is None:
        policy, is_first_boot = decision.policy, plan.phase is Phase.NETWORK and plan.cause is Cause.PENDING
        if policy is None or policy.power is not PolicyPower.ON or not is_first_boot or plan.key is None:
            return None
        if not is_reached and policy.override is not OverrideMode.NONE:
            return None
        switching = Switching(reason=plan.key, manner=Manner.ON, override=override, until=plan.next_transition)
        return PowerPlan(switching=switching, is_due=True)
    maintenance = next(each for each in decision.maintenances if each.name == plan.maintenance)
    if maintenance.power is MaintenancePower.NONE:
        return None
    # A maintenance of the local disk always asks for a boot, and needs no override.
    is_due = plan.cause is Cause.MAINTENANCE_DISK if maintenance.boot is None else plan.phase is Phase.MAINTENANCE
    ends = [each for each in (maintenance.end, plan.next_transition) if each is not None]
    made, per = record.runs.get(maintenance.name), maintenance.max_unavailable_per
    return PowerPlan(
        switching=Switching(
            reason=_reason(maintenance, switches),
            manner=Manner(maintenance.power.value),
            override=override,
            until=min(ends, default=None),
            end=maintenance.end,
        ),
        is_due=is_due and (is_reached or maintenance.override is OverrideMode.NONE),
        maintenance=maintenance.name,
        group=about.site if per == SITE else about.labels.get(per) if per is not None else None,
        limit=maintenance.max_unavailable,
        run_at=made.at if made is not None and made.run >= maintenance.run else None,
    )


def _reason(maintenance: MaintenanceDecision, switches: Mapping[str, SwitchRecord]) -> str:
    """Return the run of a maintenance; one in a window after that in which a machine was switched is another reason."""
    first = reason = f"power/{maintenance.name}/{maintenance.run}"
    while (before := switches.get(reason)) is not None and before.end is not None:
        if maintenance.start is None or maintenance.start < before.end:
            break
        later = f"{first}/after/{format_instant(before.end)}"
        if later == reason:
            break
        reason = later
    return reason


def carry_switches(learning: Learning, commit: Commit, changed: Collection[str]) -> None:
    """Let what was done to power count for as long as the windows in which it was, wherever a commit moved those."""
    for name in sorted(changed):
        if (decision := commit.decisions.servers.get(name)) is None:
            continue
        switches = {each.reason: each for each in learning.switches.of(decision.uuid)}
        for each in decision.maintenances if switches else ():
            record = switches.get(_reason(each, switches))
            if record is not None and record.end is not None and (each.end is None or each.end > record.end):
                learning.switches.note(decision.uuid, structs.replace(record, end=each.end))


def settle_switches(
    learning: Learning, uuid: SystemUuid, state: SwitchState, which: Callable[[SwitchRecord], bool]
) -> int:
    """Take a person's word for what became of what was done to a machine's power; return of how many."""
    meant = [each for each in learning.switches.of(uuid) if each.state is not state and which(each)]
    for each in meant:
        learning.switches.note(uuid, structs.replace(each, state=state))
    return len(meant)


def media_urls(plan: BootPlan | None, keys: TokenKeys) -> tuple[str | None, str | None]:
    """The URLs of the image that lies, or may still lie, in a virtual drive, and of the one with its user data."""
    if plan is None:
        return None, None
    if (token := plan.data_medium) is None:
        return plan.medium, None
    name = keys.name(token) if token == plan.data else token  # a digest is published as it is
    return plan.medium, f"{plan.base_url}/{MEDIUM.of(plan.uuid, name).removeprefix(BOOT)}"


def wanted_override(plan: BootPlan | None, keys: TokenKeys) -> Wanted | None:
    if plan is None or plan.override is None:
        return None
    override = plan.override
    medium, data_medium = media_urls(plan, keys) if override.target is OverrideTarget.CD else (None, None)
    return Wanted(
        reason=override.reason,
        plan_digest=plan.digest,
        override=Override(
            enabled=override.enabled,
            target=override.target,
            mode="UEFI" if plan.firmware is Firmware.UEFI else "Legacy",
            http_boot_uri=override.http_boot_uri,
            medium=medium,
            data_medium=data_medium,
        ),
        set_again=override.set_again,
        writes_disk=plan.boot is not None and plan.boot.writes_disk,
        by_uri_alone=plan.boot is not None and plan.boot.http_boot is HttpBoot.ISO,
        own_loaders=f"{plan.base_url}/" if plan.boot is not None and plan.boot.http_boot is HttpBoot.LOADER else None,
        until=plan.next_transition,
    )


class DesiredState(NamedTuple):
    """What is to become of one machine's own BMC."""

    task: BmcTask | None = None  # None: nothing is wanted there, and nothing stands there
    power: PowerPlan | None = None
    is_new: bool = False  # whether something new is to be set there, were it allowed


def desired_state(
    uuid: SystemUuid,
    commit: Commit,
    servers: Mapping[str, ServerState],
    knowledge: Knowledge,
    keys: TokenKeys,
    *,
    may_set: bool,
) -> DesiredState:
    """Return what is to become of a machine's own BMC; without ``may_set``, nothing new is set there."""
    machine = commit.machines.get(uuid)
    if machine is None or machine.bmc is None or (state := servers.get(machine.name)) is None:
        return DesiredState()
    wanted, records, switches = (
        wanted_override(state.plan, keys),
        knowledge.overrides_of(uuid),
        knowledge.switches_of(uuid),
    )
    power = plan_power(
        state.decision,
        state.plan,
        state.record,
        knowledge.switches.get(uuid, {}),
        stop=state.stop,
        about=state.about,
    )
    is_new = power is not None and power.is_new(switches)
    if wanted is not None:
        own = next((each for each in records if each.reason == wanted.reason), None)
        is_new = is_new or wanted.is_new(own)
        # A person has said, of all servers at once, that none is installed, and nothing else is known of this one.
        is_bare = state.record is not None and state.record == Record(offered=state.record.offered)
        wanted = structs.replace(
            wanted,
            ends=_end_of(wanted, state),
            is_first=is_bare and knowledge.facts.initialised == Beginning.FRESH,
            only_off=_waits_for_off(state),
            may_set=may_set,
        )
        if not may_set and (own is None or own.state.is_free):
            wanted = None
    if not may_set and power is not None:
        power = power.without_asking(switches)
    awaits = awaits_progress(knowledge, state, commit.fleet.provisioning.evidence)
    runs = state.plan is not None and state.plan.cause is Cause.RUNS  # it is to be seen off
    stands = any(each.stays_behind for each in records)
    if wanted is None and power is None and not (stands or awaits or runs):
        return DesiredState(is_new=is_new)
    task = BmcTask(
        server=machine.name,
        uuid=uuid,
        bmc=machine.bmc,
        wanted=wanted,
        records=records,
        site=commit.sites.get(machine.name),
        serial=machine.serial,
        with_clock=awaits,
        keeps=tuple(filter(None, media_urls(state.plan, keys))),
        switches=switches,
    )
    return DesiredState(task, power, is_new)


def _end_of(wanted: Wanted, state: ServerState) -> datetime | None:
    """Return from when on the plan wants another override, or none; None: not within the transitions that are planned.

    A maintenance without an end goes on for as long as an instance plans it.
    """
    for since, plan in state.later:
        if plan is None or plan.override is None or plan.override.reason != wanted.reason:
            return since if plan is None or plan.cause is not Cause.UNHEARD else None
    return None


def _waits_for_off(state: ServerState) -> bool:
    """Return whether gitboot sets a boot only while the machine is off, as a policy wants for a first attempt."""
    plan, policy, record = state.plan, state.decision.policy, state.record
    if plan is None or policy is None or record is None or policy.wait_for is not PolicyWait.POWER_OFF:
        return False
    return plan.phase is Phase.NETWORK and last_attempt(record, provision_reason(policy, record)) is None


def leftover_task(uuid: SystemUuid, commit: Commit, knowledge: Knowledge) -> BmcTask | None:
    """Return the task that withdraws what stands at a BMC that no document names any more for its machine."""
    records = knowledge.overrides_of(uuid)
    standing = [each for each in records if each.stays_behind]
    if not standing:
        return None
    machine, last = commit.machines.get(uuid), knowledge.machines.get(uuid)
    was = next((each.bmc for each in standing if each.bmc is not None), None)
    bmc = was or (last.bmc if last is not None else None)
    if bmc is None or (machine is not None and machine.bmc is not None and machine.bmc.place == bmc.place):
        return None
    server = last.name if last is not None else uuid
    return BmcTask(server=server, uuid=uuid, bmc=bmc, wanted=None, records=records)
