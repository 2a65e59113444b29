"""Servers that get an identity of a machine that was perhaps installed before: an instance judges it by its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gitboot.controller.learn.ledger_snapshot import Knowledge
from gitboot.diff.identities import Described, GainedIdentity, Inheritance, gained, lost_by_machine
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.identities_from_diff_identities import LostIdentity
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.install_attempts import last_given
from gitboot.resolve.newcomers import NEW_UP_TO


def inheritances(
    gains: Iterable[GainedIdentity],
    lost: frozenset[LostIdentity],
    commit: Commit,
    knowledge: Knowledge,
    introduced: Mapping[SystemUuid, int],
) -> tuple[Inheritance, ...]:
    """Return which servers of a commit get install boots by an identity of a machine that was perhaps installed.

    ``introduced`` has the provision numbers of the machines that came since the accepted commit. The result is sorted.
    """
    here = [each for each in gains if each.server in commit.decisions.servers]  # the others are at another site
    marks = {each.mark for each in here}
    owners: dict[tuple[str, str], list[LostIdentity]] = {}
    for each in lost if marks else ():
        if each.mark in marks:
            owners.setdefault(each.mark, []).append(each)
    found = set()
    for gain in here:
        for owner in owners.get(gain.mark, ()):
            is_same = owner.uuid in (gain.uuid, gain.replaces)
            if not is_same and (owner.netboots or _is_perhaps_installed(owner.uuid, knowledge, introduced)):
                before = knowledge.machines.get(owner.uuid)
                found.add(
                    Inheritance(gain.server, gain.kind, gain.value, owner.uuid, before.name if before else owner.uuid)
                )
    return tuple(sorted(found))


def _is_perhaps_installed(uuid: SystemUuid, knowledge: Knowledge, introduced: Mapping[SystemUuid, int]) -> bool:
    """Return whether the record of a machine shows an installation, or does not show that there was none."""
    record = knowledge.records.get(uuid) if knowledge.is_trusted else None
    if record is None:  # a machine that no accepted commit has described yet is new if its number says so
        is_new = uuid not in knowledge.machines and 0 < introduced.get(uuid, 0) <= NEW_UP_TO
        return not is_new
    return record.provision is not None or last_given(record) is not None or bool(record.runs)


def without_base(commit: Commit, knowledge: Knowledge) -> tuple[tuple[GainedIdentity, ...], frozenset[LostIdentity]]:
    """Return the gained and the lost identities of a commit that cannot be compared with the accepted one.

    The ledger has the descriptions of the machines as of the accepted commit, without their addresses.
    """
    lost = set(knowledge.lost)
    for uuid, machine in knowledge.machines.items():
        lost.update(lost_by_machine(machine, commit.machines.get(uuid)))
    if not lost:
        return (), frozenset()
    marks, gains = {each.mark for each in lost}, list[GainedIdentity]()
    decisions = commit.decisions
    for machine in commit.machines.values():
        name = machine.name
        labels = commit.labels.get(name, {})
        described = Described(decisions.servers[name], machine, decisions.networks[name], labels, decisions.outputs)
        gains += (each for each in gained(None, described, ()) if each.mark in marks)
    return tuple(gains), frozenset(lost)
