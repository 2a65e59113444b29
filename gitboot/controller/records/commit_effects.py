"""Effects of a commit: lowered provision numbers, pending installations, and boots that another server would get."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gitboot.controller.current_plans import find_changed_servers
from gitboot.controller.records.install_boots import describe_server
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import LostIdentity
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import HIGHEST_NEW_PROVISION, highest_served_provision, is_install_pending
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.reinstalls import GainedIdentity, Inheritance, find_gained_identities, find_lost_machine_identities


def find_lowered_servers(base: Commit, commit: Commit) -> dict[SystemUuid, str]:
    """Return the machines whose provision number a commit lowers, with the names of their servers in the commit.

    The result includes machines whose motherboard the commit replaces.
    """
    lowered: dict[SystemUuid, str] = {}
    for machine in commit.select_machines(find_changed_servers(base, commit)):
        provision = commit.decisions.servers[machine.name].provision
        for uuid in (machine.uuid, machine.replaces):
            before = base.machines.get(uuid) if uuid is not None else None
            if before is not None and provision < base.decisions.servers[before.name].provision:
                lowered[before.uuid] = machine.name
    return lowered


def list_servers_to_install(snapshot: LedgerSnapshot, decisions: Decisions) -> tuple[str, ...]:
    """Return the servers that their policies install now. The result is empty while the ledger is unverified."""
    if not snapshot.is_trusted:
        return ()
    return tuple(
        decision.server
        for decision in decisions.servers.values()
        if is_install_pending(decision, snapshot.records.get(decision.uuid, Record()))
    )


def find_new_or_reinstalled(snapshot: LedgerSnapshot, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield the servers in an instance's first commit that are new to the ledger or would be installed again."""
    for decision in decisions:
        record, boot = snapshot.records.get(decision.uuid), decision.installation
        is_reinstalled = (
            record is not None
            and record.provision is not None
            and boot is not None
            and boot.writes_disk
            and is_install_pending(decision, record)
        )
        if is_reinstalled or decision.uuid not in snapshot.accepted_machines:
            yield decision


def find_inheritances(
    gains: Iterable[GainedIdentity],
    lost_identities: frozenset[LostIdentity],
    commit: Commit,
    snapshot: LedgerSnapshot,
    introduced: Mapping[SystemUuid, int],
) -> tuple[Inheritance, ...]:
    """Return the identities through which a possibly installed machine would get another server's install boots.

    ``introduced`` contains the provision numbers of the machines that were added since the accepted commit. The result
    is sorted.
    """
    local_gains = [each for each in gains if each.server in commit.decisions.servers]  # without servers at other sites
    gained = {gain.identity for gain in local_gains}
    if not gained:
        return ()
    lost_by_identity: dict[tuple[str, str], list[LostIdentity]] = {}
    for lost in lost_identities:
        if lost.key in gained:
            lost_by_identity.setdefault(lost.key, []).append(lost)
    inheritances = set()
    for gain in local_gains:
        for lost in lost_by_identity.get(gain.identity, ()):
            if lost.uuid not in (gain.uuid, gain.replaces) and (
                lost.netboots or _may_be_installed(lost.uuid, snapshot, introduced)
            ):
                owner = snapshot.machines.get(lost.uuid)
                owner_name = owner.name if owner is not None else lost.uuid
                inheritances.add(Inheritance(gain.server, gain.kind, gain.value, lost.uuid, owner_name))
    return tuple(sorted(inheritances))


def _may_be_installed(uuid: SystemUuid, snapshot: LedgerSnapshot, introduced: Mapping[SystemUuid, int]) -> bool:
    """Return whether a machine might already be installed.

    If there is no usable record, only a new machine is certainly not installed.
    """
    record = snapshot.records.get(uuid) if snapshot.is_trusted else None
    if record is None:  # new: never described by an accepted commit, and with a low provision number
        is_new = uuid not in snapshot.machines and 0 < introduced.get(uuid, 0) <= HIGHEST_NEW_PROVISION
        return not is_new
    return record.provision is not None or highest_served_provision(record) is not None or bool(record.runs)


def compare_identities_without_base(
    commit: Commit, snapshot: LedgerSnapshot
) -> tuple[tuple[GainedIdentity, ...], frozenset[LostIdentity]]:
    """Return the identities that machines gain in a commit, and those that machines have lost.

    Because there is no accepted commit, the commit is compared with the machines in the ledger. The ledger does not
    store the addresses of these machines.
    """
    lost = set(snapshot.lost_identities)
    for uuid, machine in snapshot.machines.items():
        lost.update(find_lost_machine_identities(machine, commit.machines.get(uuid)))
    if not lost:
        return (), frozenset()
    lost_keys = {identity.key for identity in lost}
    gains = list[GainedIdentity]()
    for uuid in commit.machines:
        if (described := describe_server(commit, uuid)) is not None:
            gains += (gain for gain in find_gained_identities(None, described, ()) if gain.identity in lost_keys)
    return tuple(gains), frozenset(lost)
