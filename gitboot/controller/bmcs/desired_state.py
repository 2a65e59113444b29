"""What a plan wants of a machine's power, and for which reason: at most once each, and only where Git says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gitboot.bmc.power_steps import Manner, Switching, SwitchRecord, SwitchState
from gitboot.controller.learn.ledger_snapshot import Learning
from gitboot.evaluator.evaluation_result import Commit
from gitboot.jsonio import format_instant
from gitboot.model.boot_policy import MaintenancePower, OverrideMode, PolicyPower
from gitboot.model.scalars.machines import SystemUuid
from gitboot.render.server_states import About
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision_from_plan import Boot, Decision, MaintenanceDecision, PolicyDecision
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from gitboot.stoppage import Halt

SITE = "Site"  # maxUnavailablePer, where it names no label


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerAsk:
    """What is to become of one machine's power, and among whom it has its turn."""

    switching: Switching
    is_due: bool  # whether the plan wants it now; else it is only seen to that whoever was switched comes back
    maintenance: str | None = None  # None: a policy wants it, and nobody waits for anybody
    group: str | None = None  # of those that the limit is for
    limit: str = ""
    run_at: datetime | None = None  # when its run was seen to be made

    def asked(self, switches: Iterable[SwitchRecord], *, now: bool) -> Switching | None:
        """What is wanted at this moment, or is to be seen to have become of that; ``now``: its turn has come."""
        is_open = any(each.reason == self.switching.reason and each.state.is_open for each in switches)
        return replace(self.switching, now=now) if self.is_due or is_open else None

    def is_new(self, switches: Iterable[SwitchRecord]) -> bool:
        """Whether a machine is to be switched, as far as the ledger knows."""
        own = next((each for each in switches if each.reason == self.switching.reason), None)
        return self.is_due and (own is None or own.state is SwitchState.REFUSED)

    def seen_off(self, switches: Iterable[SwitchRecord]) -> PowerAsk | None:
        """So that nothing is switched, and whoever was is seen to come back; None: nobody was."""
        if not any(each.reason == self.switching.reason and each.state.is_open for each in switches):
            return None
        return replace(self, is_due=False, switching=replace(self.switching, may_ask=False))

    @property
    def turn(self) -> str:
        """When its turn comes, in words."""
        if self.maintenance is None:
            return "at once"
        among = f" in {self.group}" if self.group is not None else ""
        return f"in its turn: {self.limit} of maintenance {self.maintenance}{among} may be down at a time"


def power_wanted(
    decision: Decision,
    plan: BootPlan | None,
    record: Record | None,
    switches: Mapping[str, SwitchRecord],
    *,
    stop: Halt,
    about: About,
) -> PowerAsk | None:
    """What a server's plan wants of its power; None: nothing.

    So it is with a machine of which nothing is known, and while anything is stopped, whatever the plan.
    """
    if plan is None or record is None or decision.stopped or stop is not Halt.NONE:
        return None
    if plan.maintenance is not None:
        found = next(each for each in decision.maintenances if each.name == plan.maintenance)
        return _by_maintenance(found, plan, record, about, switches)
    return _by_policy(decision.policy, plan) if decision.policy is not None else None


def _by_policy(policy: PolicyDecision, plan: BootPlan) -> PowerAsk | None:
    is_first_boot = plan.phase is Phase.NETWORK and plan.cause is Cause.PENDING
    if policy.power is not PolicyPower.ON or not is_first_boot or plan.key is None:
        return None
    if not _is_reached(policy.override, plan):
        return None
    override = plan.override.reason if plan.override is not None else None
    switching = Switching(reason=plan.key, manner=Manner.ON, override=override, until=plan.next_transition)
    return PowerAsk(switching=switching, is_due=True)


def _by_maintenance(
    maintenance: MaintenanceDecision,
    plan: BootPlan,
    record: Record,
    about: About,
    switches: Mapping[str, SwitchRecord],
) -> PowerAsk | None:
    if maintenance.power is MaintenancePower.NONE:
        return None
    ends = [each for each in (maintenance.end, plan.next_transition) if each is not None]
    made, per = record.runs.get(maintenance.name), maintenance.max_unavailable_per
    return PowerAsk(
        switching=Switching(
            reason=_reason(maintenance, switches),
            manner=Manner(maintenance.power.value),
            override=plan.override.reason if plan.override is not None else None,
            until=min(ends, default=None),
            end=maintenance.end,
        ),
        is_due=_asks_for_a_boot(maintenance.boot, plan) and _is_reached(maintenance.override, plan),
        maintenance=maintenance.name,
        group=about.site if per == SITE else about.labels.get(per) if per is not None else None,
        limit=maintenance.max_unavailable,
        run_at=made.at if made is not None and made.run >= maintenance.run else None,
    )


def _asks_for_a_boot(boot: Boot | None, plan: BootPlan) -> bool:
    """Whether a maintenance's boot is still to be made; one of the local disk always is, and needs no override."""
    return plan.cause is Cause.MAINTENANCE_DISK if boot is None else plan.phase is Phase.MAINTENANCE


def _is_reached(override: OverrideMode, plan: BootPlan) -> bool:
    """Whether a machine that resets boots what is planned: an override leads there, or the firmware's own order."""
    return plan.override is not None or plan.boot is None or override is OverrideMode.NONE


def _reason(maintenance: MaintenanceDecision, switches: Mapping[str, SwitchRecord]) -> str:
    """The run of a maintenance; one in a window after that in which a machine was switched is another reason."""
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
                learning.switches.note(decision.uuid, replace(record, end=each.end))


def settle_switches(
    learning: Learning, uuid: SystemUuid, state: SwitchState, which: Callable[[SwitchRecord], bool]
) -> int:
    """Take a person's word for what became of what was done to a machine's power; return of how many."""
    meant = [each for each in learning.switches.of(uuid) if each.state is not state and which(each)]
    for each in meant:
        learning.switches.note(uuid, replace(each, state=state))
    return len(meant)
