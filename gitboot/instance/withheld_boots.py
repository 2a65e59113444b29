"""Taking a boot back: which install boots are withheld, and which servers a newer commit does not install again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gitboot.bmc.override_state import State
from gitboot.controller.current_plans import changed_by
from gitboot.controller.learn.ledger_snapshot import Knowledge
from gitboot.diff.withheld import withheld_boots
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.layered_dict import merged
from gitboot.ledger.entries import Withheld
from gitboot.load.snapshot import Revision
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.install_attempts import is_overwritten, is_provisioned, overtaken_attempt, provision_reason
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision_from_plan import Decision, PolicyDecision, WithheldBoot


def withheld_by(accepted: Commit, newer: Sequence[Commit], newest: Revision) -> Withheld | None:
    """Return the install boots of ``accepted`` that a newer valid commit does not offer; None: there are none.

    ``newer`` are the valid commits after it, the oldest first, and ``newest`` the last one that was evaluated.
    """
    found: dict[SystemUuid, list[WithheldBoot]] = {}
    names, before = set[str](), accepted
    for commit in newer:
        names |= changed_by(before, commit)
        before = commit
        for machine in accepted.named(names & accepted.decisions.servers.keys()):
            offered, other = accepted.decisions.servers[machine.name], _decision_of(commit, machine.uuid)
            if other is None or other.digest != offered.digest:
                found.setdefault(machine.uuid, []).extend(withheld_boots(offered, other, commit.revision))
    servers = {uuid: tuple(boots) for uuid, boots in sorted(found.items()) if boots}
    return Withheld(newest, servers) if servers else None


def joined(before: Withheld, now: Withheld | None) -> Withheld:
    """Return the boots that either withholds, until the commit of ``before`` has been evaluated."""
    if now is None:
        return before
    uuids = sorted({*before.servers, *now.servers})
    return Withheld(
        before.by,
        {uuid: tuple(dict.fromkeys((*before.servers.get(uuid, ()), *now.servers.get(uuid, ())))) for uuid in uuids},
    )


def offering(accepted: Commit, withheld: Withheld | None) -> Commit:
    """Return the accepted commit as gitboot plans and publishes it: without the boots that are withheld."""
    if withheld is None:
        return accepted
    servers = accepted.decisions.servers
    here = {uuid: boots for uuid, boots in withheld.servers.items() if uuid in accepted.machines}
    changed = {
        (name := accepted.machines[uuid].name): replace(servers[name], withheld=boots) for uuid, boots in here.items()
    }
    decisions = replace(accepted.decisions, servers=merged(servers, changed))
    return replace(accepted, decisions=decisions, withheld=here)


def need_no_install(names: Sequence[str], base: Commit, commit: Commit, knowledge: Knowledge) -> tuple[SystemUuid, ...]:
    """Return the machines of these servers whose records show as installed what ``commit`` wants.

    A server whose record shows anything of the boot that ``base`` offers is left out: its disk may be written by it.
    """
    if not knowledge.is_trusted or knowledge.facts.gap:
        return ()
    here = commit.decisions.servers  # an instance of one site has no decisions for the servers of others
    found = (here[name] for name in names if name in here)
    return tuple(each.uuid for each in found if _needs_none(_decision_of(base, each.uuid), each, knowledge))


def _needs_none(old: Decision | None, new: Decision, knowledge: Knowledge) -> bool:
    record, policy = knowledge.record(new.uuid), new.policy
    if old is None or record is None or policy is None or policy.network_boot is NetworkBoot.ALWAYS:
        return False
    if is_overwritten(record, policy.provision) or not is_provisioned(policy, record):
        return False
    if overtaken_attempt(record) is not None or record.consumed_key is not None or new.uuid in knowledge.pending:
        return False
    if any(not each.is_withheld for each in record.unknown_serves):
        return False
    return not any(_shows(old.policy, record, each.reason, each.state) for each in knowledge.overrides_of(new.uuid))


def may_be_unread(accepted: Commit, commit: Commit, machines: Iterable[SystemUuid], knowledge: Knowledge) -> bool:
    """Return whether a machine may have fetched an install boot of ``accepted`` that ``commit`` does not offer.

    A fetch log that gitboot has not read yet can show such a fetch. The boot is not offered to a machine whose record
    shows that it is provisioned. A maintenance offers its boot whatever is provisioned.
    """
    for uuid in machines:
        offered = _decision_of(accepted, uuid)
        if offered is None:
            continue
        policy, record = offered.policy, knowledge.record(uuid)
        is_pending = policy is None or record is None or not _is_done(policy, record)
        boots = withheld_boots(offered, _decision_of(commit, uuid), commit.revision)
        if any(is_pending or each.maintenance is not None for each in boots):
            return True
    return False


def _is_done(policy: PolicyDecision, record: Record) -> bool:
    """Return whether a policy does not ask for its boot any more."""
    return policy.network_boot is not NetworkBoot.ALWAYS and is_provisioned(policy, record)


def _shows(policy: PolicyDecision | None, record: Record, reason: str, state: State) -> bool:
    """Return whether an override for the boot that is taken back may have been consumed, or may still stand."""
    if policy is None or state in _PROVEN_UNUSED:
        return False
    key = provision_reason(policy, record)
    return reason == key or reason.startswith(f"{key}/")


_PROVEN_UNUSED: Final = (State.WITHDRAWN, State.UNSENT)


def _decision_of(commit: Commit, uuid: SystemUuid) -> Decision | None:
    machine = commit.machines.get(uuid)
    return commit.decisions.servers[machine.name] if machine is not None else None


def rolled_back(knowledge: Knowledge, servers: Sequence[SystemUuid], number: int) -> Mapping[SystemUuid, int]:
    """Return by which decision the boots of servers were taken back, with ``servers`` by that of ``number``."""
    return {**dict(_still_rolled_back(knowledge)), **dict.fromkeys(servers, number)}


def _still_rolled_back(knowledge: Knowledge) -> Iterator[tuple[SystemUuid, int]]:
    """Yield those of which no newer offer was met, and no person has said since what is installed."""
    for uuid, number in knowledge.facts.rolled_back.items():
        record = knowledge.records.get(uuid)
        if record is not None and max(record.offered, record.answered) <= number:
            yield uuid, number
