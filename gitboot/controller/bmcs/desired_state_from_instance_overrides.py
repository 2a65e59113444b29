"""gitboot.controller.bmcs.desired_state_from_instance_overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gitboot.bmc.override_state import BootTarget, Enabled, Override, OverrideRecord, Wanted
from gitboot.bmc.power_steps import SwitchRecord
from gitboot.controller.bmcs.desired_state import PowerAsk, power_wanted
from gitboot.controller.learn.evidence import awaits_progress
from gitboot.controller.learn.ledger_snapshot import Knowledge
from gitboot.evaluator.evaluation_result import Commit
from gitboot.instance.beginning import Beginning
from gitboot.load.machines import BmcAccess
from gitboot.model.boot_policy import HttpBoot, PolicyWait
from gitboot.model.scalars.machines import SystemUuid
from gitboot.model.server import Firmware
from gitboot.render.paths import BOOT, MEDIUM
from gitboot.render.server_states import ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.install_attempts import last_attempt, provision_reason
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision_from_plan import OverrideTarget
from gitboot.resolve.server_plan import BootPlan, Cause, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One machine's BMC, and what is to become of it."""

    name: str
    uuid: SystemUuid
    bmc: BmcAccess
    wanted: Wanted | None
    records: tuple[OverrideRecord, ...]
    site: str | None
    serial: str | None = None
    judged_by_marks: bool = False  # its BMC alone can tell when it has come up
    keeps: tuple[str, ...] = ()  # the media of a boot that was given
    power: PowerAsk | None = None
    switches: tuple[SwitchRecord, ...] = ()


def media_of(plan: BootPlan | None, keys: TokenKeys) -> tuple[str | None, str | None]:
    """The URLs of the image that lies, or may still lie, in a virtual drive, and of the one with its user data."""
    if plan is None:
        return None, None
    if (token := plan.data_medium) is None:
        return plan.medium, None
    name = keys.name(token) if token == plan.data else token  # a digest is published as it is
    return plan.medium, f"{plan.base_url}/{MEDIUM.of(plan.uuid, name).removeprefix(BOOT)}"


def wanted_by(plan: BootPlan | None, keys: TokenKeys) -> Wanted | None:
    """What a plan wants of the BMC, in Redfish's words."""
    if plan is None or plan.override is None:
        return None
    override = plan.override
    boots_disc = override.target is OverrideTarget.CD
    medium, data_medium = media_of(plan, keys) if boots_disc else (None, None)
    return Wanted(
        reason=override.reason,
        plan_digest=plan.digest,
        override=Override(
            enabled=Enabled(override.enabled.value),
            target=BootTarget(override.target.value),
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


def _ask(
    uuid: SystemUuid,
    commit: Commit,
    servers: Mapping[str, ServerState],
    knowledge: Knowledge,
    keys: TokenKeys,
    *,
    may_set: bool,
) -> tuple[Ask | None, bool]:
    """What is to become of a machine's own BMC, and whether something new is to be set there, were it allowed.

    None: nothing is wanted there, and nothing stands there.
    """
    machine = commit.machines.get(uuid)
    if machine is None or machine.bmc is None or (state := servers.get(machine.name)) is None:
        return None, False
    wanted, records = wanted_by(state.plan, keys), knowledge.overrides_of(uuid)
    switches = knowledge.switches_of(uuid)
    power = _power_wanted(state, knowledge.switches.get(uuid, {}))
    own = next((each for each in records if _is_for(each, wanted)), None)
    is_new = (wanted is not None and wanted.is_new(own)) or (power is not None and power.is_new(switches))
    if wanted is not None:
        wanted = replace(wanted, ends=_end_of(wanted, state))
    if wanted is not None and _is_first(state, knowledge):
        wanted = replace(wanted, is_first=True)
    if wanted is not None and _waits_for_off(state):
        wanted = replace(wanted, only_off=True)
    if not may_set:
        is_begun = own is not None and not own.state.is_free
        wanted = replace(wanted, may_set=False) if wanted is not None and is_begun else None
        power = power.seen_off(switches) if power is not None else None
    stands = any(each.stays_behind for each in records)
    awaits = awaits_progress(knowledge, state, commit.fleet.provisioning.evidence)
    runs = state.plan is not None and state.plan.cause is Cause.RUNS  # it is to be seen off
    if wanted is None and power is None and not stands and not awaits and not runs:
        return None, is_new
    ask = Ask(
        name=machine.name,
        uuid=uuid,
        bmc=machine.bmc,
        wanted=wanted,
        records=records,
        site=commit.sites.get(machine.name),
        serial=machine.serial,
        judged_by_marks=awaits,
        keeps=tuple(filter(None, media_of(state.plan, keys))),
        power=power,
        switches=switches,
    )
    return ask, is_new


def _end_of(wanted: Wanted, state: ServerState) -> datetime | None:
    """Return from when on the plan wants another override, or none; None: not within the transitions that are planned.

    A maintenance without an end goes on for as long as an instance plans it.
    """
    for since, plan in state.later:
        if plan is None or plan.override is None or plan.override.reason != wanted.reason:
            return since if plan is None or plan.cause is not Cause.UNHEARD else None
    return None


def _is_first(state: ServerState, knowledge: Knowledge) -> bool:
    """Whether nothing but a person's word, of all servers at once, says that a machine was never installed."""
    record = state.record
    is_bare = record is not None and record == Record(offered=record.offered)
    return is_bare and knowledge.facts.initialised == Beginning.FRESH


def _power_wanted(state: ServerState, switches: Mapping[str, SwitchRecord]) -> PowerAsk | None:
    return power_wanted(state.decision, state.plan, state.record, switches, stop=state.stop, about=state.about)


def _waits_for_off(state: ServerState) -> bool:
    """Whether a machine's boot is only to be set while it is off: its policy says so, and nothing was attempted yet."""
    plan, policy, record = state.plan, state.decision.policy, state.record
    if plan is None or policy is None or record is None or policy.wait_for is not PolicyWait.POWER_OFF:
        return False
    return plan.phase is Phase.NETWORK and last_attempt(record, provision_reason(policy, record)) is None


def _left_behind(uuid: SystemUuid, commit: Commit, knowledge: Knowledge) -> Ask | None:
    records = knowledge.overrides_of(uuid)
    standing = [each for each in records if each.stays_behind]
    if not standing:
        return None
    machine, last = commit.machines.get(uuid), knowledge.machines.get(uuid)
    was = next((each.bmc for each in standing if each.bmc is not None), None)
    bmc = was or (last.bmc if last is not None else None)
    if bmc is None or (machine is not None and machine.bmc is not None and machine.bmc.place == bmc.place):
        return None
    name = last.name if last is not None else uuid
    return Ask(name=name, uuid=uuid, bmc=bmc, wanted=None, records=records, site=None)


def _is_for(record: OverrideRecord, wanted: Wanted | None) -> bool:
    return wanted is not None and record.reason == wanted.reason
