"""Effects of a commit on records: first, adopted and dropped records, and the effects that a review predicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from msgspec import structs

from gitboot.controller.current_plans import find_changed_servers
from gitboot.controller.records.install_boots import describe_server, find_report_offer, select_maintenance_serves
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.controller.records.ledger_trust import find_unverified_reason
from gitboot.controller.records.provisioning import advise_check, complete_installation_if_proven
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.fleet.identities import LostIdentity, Machine, Moves, find_changed_uuids
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import (
    HIGHEST_NEW_PROVISION,
    UnrecordedState,
    classify_unrecorded_server,
    find_attempt_image,
    find_open_attempt,
    highest_served_provision,
    is_install_pending,
    last_attempt,
    make_adopted_record,
    provision_key,
    unfinished_later_attempt,
)
from gitboot.resolve.plan_at_time import extend_consumed_runs
from gitboot.resolve.provisioning_record import ADOPTED, DECLARED, FETCHED, Record, find_last_seen
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.reinstalls import GainedIdentity, Inheritance, find_gained_identities, find_lost_machine_identities
from gitboot.text import format_names

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def update_records_for_commit(
    update: LedgerUpdate,
    commit: Commit,
    changed: Collection[str],
    installing: Collection[str],
    introduced: Mapping[SystemUuid, int],
    *,
    declared_boards: Collection[SystemUuid] = (),
    removed: Collection[SystemUuid] | None = None,
) -> None:
    """Update the records after a commit: write first records, adopt servers, and complete installations.

    Also record which machines the commit adds and removes.

    ``changed`` are the names of the servers that the commit changes (at first, all servers), and ``installing``
    contains at least the unchanged servers that are being installed. ``removed`` are the machines that the commit
    removed, if known. ``introduced`` contains the provision numbers of machines that were added since the last accepted
    commit, and ``declared_boards`` is a result of `find_declared_boards`.

    An unverified ledger (new, restored, or another instance's) cannot show what is installed. In that case, no server
    has a usable record until an operator initializes the ledger.
    """
    decisions = commit.decisions
    if find_unverified_reason(update.facts, decisions) is not None:
        update.recorded_commit = None
        return
    machines = commit.select_machines({*changed, *commit.select_server_names(update.dropped)})
    if new_machines := _select_new_machines(update, machines, declared_boards):
        _write_first_records(update, commit, new_machines, introduced, declared_boards)
    _record_machines(update, commit, machines, removed)
    _adopt_servers_with_number_0(update, decisions, machines)
    _adopt_by_first_policy(update, decisions, machines)
    if decisions.evidence is Evidence.DECLARED:
        _record_declared_servers(update, (decisions.servers[machine.name] for machine in machines))
    if decisions.evidence is Evidence.FETCHED:
        written = commit.select_server_names(update.new_records)
        _complete_installations(update, decisions, commit.select_machines({*changed, *installing, *written}))
    if update.facts.initialised is None:
        update.set_facts(initialised="adopt")
    update.recorded_commit = commit.revision


def _select_new_machines(
    update: LedgerUpdate, machines: Iterable[Machine], declared_boards: Collection[SystemUuid]
) -> list[Machine]:
    """Return the machines that need a first record.

    A known machine without a record stays unknown, because its record may have been dropped. A commit can change this
    only if it declares that the machine's board replaces another board, or raises the number of such a machine.
    """
    accepted = update.before.accepted_machines
    return [
        machine
        for machine in machines
        if machine.uuid not in update.machines
        and update.record(machine.uuid) is None
        and (machine.uuid not in accepted or machine.uuid in update.dropped or machine.uuid in declared_boards)
    ]


def _record_machines(
    update: LedgerUpdate, commit: Commit, machines: Iterable[Machine], removed: Collection[SystemUuid] | None
) -> None:
    """Record which machines the commit adds, changes and removes."""
    known_machines, accepted = update.before.machines, update.before.accepted_machines
    update.machines |= {
        machine.uuid: machine
        for machine in machines
        if known_machines.get(machine.uuid) != machine or machine.uuid not in accepted
    }
    if removed is None:
        removed = accepted - commit.machines.keys()
    update.removed_machines |= accepted.intersection(removed)


def _write_first_records(
    update: LedgerUpdate,
    commit: Commit,
    machines: list[Machine],
    introduced: Mapping[SystemUuid, int],
    declared_boards: Collection[SystemUuid],
) -> None:
    """Write the first records of new machines. Report the servers for which it is unknown what is installed."""
    seen_machines = {**update.before.machines, **update.departed}
    shared_identities = find_changed_uuids(machines, seen_machines.values())
    replaced_records: dict[SystemUuid, Record] = {}
    for machine in machines:
        if machine.replaces is not None and (record := update.record(machine.replaces)) is not None:
            replaced_records[machine.replaces] = record
    unknown: dict[str, list[str]] = {}  # the names of servers by reason
    for machine in machines:
        decision = commit.decisions.servers[machine.name]
        shared_identity = None
        if machine.uuid in shared_identities:
            kind, value, other = shared_identities[machine.uuid]
            shared_identity = f"the {kind} {value} with {other.name} ({other.uuid})"
        classification = classify_unrecorded_server(
            decision,
            records=replaced_records,
            seen_machines=seen_machines.keys() - declared_boards,
            first_provision=introduced.get(machine.uuid),
            shared_identity=shared_identity,
            served_before=_find_served_before(update, decision),
        )
        if classification.state is UnrecordedState.UNKNOWN:
            unknown.setdefault(classification.why, []).append(machine.name)
        elif (new_record := classification.record(decision)) is not None:
            update.write_record(machine.uuid, machine.name, new_record)
    advice = ""
    if commit.fleet.has_instances_by_site:
        advice = (
            ". If another site managed the server before, run gitboot records take-over with the file from that "
            "site instead"
        )
    for why, names in sorted(unknown.items()):
        _report_unknown_servers(update, names, why, advice)


def _find_served_before(update: LedgerUpdate, decision: Decision) -> int | None:
    """Return the highest provision number that an earlier board of a machine was installed with, or may have booted.

    Return None if there is no such number.

    A boot without a fetch leaves only an override. gitboot may read the fetch of a boot loader only after the commit
    that names the new board.
    """
    numbers = list[int | None]()
    for board in _list_boards(update, decision.replaces):
        keys = [
            override.reason
            for override in update.overrides.list_records(board)
            if not override.state.is_unused and not override.override.gets_loader_from_dhcp
        ]
        record = update.record(board) or Record()
        numbers += [record.provision, highest_served_provision(record, keys)]
    return max((number for number in numbers if number is not None), default=None)


def _list_boards(update: LedgerUpdate, replaced: SystemUuid | None) -> list[SystemUuid]:
    """Return the UUIDs that a machine had with its earlier boards, beginning with ``replaced``, the last of them."""
    boards = list[SystemUuid]()
    while replaced is not None and replaced not in boards:
        boards.append(replaced)
        machine = update.departed.get(replaced) or update.before.machines.get(replaced)
        replaced = machine.replaces if machine is not None else None
    return boards


def adopt_lowered_servers(update: LedgerUpdate, decisions: Decisions, lowered: Mapping[SystemUuid, str]) -> None:
    """Adopt the pending servers whose provision number the accepted commit lowers, so that they boot their disks.

    ``lowered`` is a result of `find_lowered_servers`. A record that an operator has set in this batch stays as it is.
    """
    for uuid, name in lowered.items():
        before, record = update.before.records.get(uuid), update.record(uuid)
        if before is None or record is None or record.offered != before.offered:
            continue
        decision = decisions.servers[name]
        # A recorded attempt prevents another installation only if the commit does not also change the image.
        if decision.policy is None or last_attempt(record, provision_key(decision.policy, record)) is None:
            _adopt_pending_server(update, uuid, decision, record)


def _adopt_servers_with_number_0(update: LedgerUpdate, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Adopt the servers that became pending with an earlier provision number, unless an operator set them pending."""
    for machine in machines:
        decision, record = decisions.servers[machine.name], update.record(machine.uuid)
        if decision.provision == 0 and record is not None and record.offered == 0 and not record.attempts:
            _adopt_pending_server(update, machine.uuid, decision, record)


def _adopt_pending_server(update: LedgerUpdate, uuid: SystemUuid, decision: Decision, record: Record) -> None:
    """Adopt a server that was never installed. Other servers stay unchanged."""
    if record.provision is not None:
        return
    adopted = make_adopted_record(decision)
    number = max(decision.provision, _find_served_before(update, decision) or 0)
    new_record = replace(
        record,
        provision=number,
        image=adopted.image,
        pool=adopted.pool,
        decision=adopted.decision,
        evidence=adopted.evidence,
    )
    update.write_record(uuid, decision.server, new_record)
    if decision.policy is not None and decision.policy.network_boot is NetworkBoot.ALWAYS:
        return  # the policy ignores the record
    keys = [each.reason for each in update.overrides.list_records(uuid) if not each.state.is_unused]
    used = max(number, highest_served_provision(record, keys) or 0)
    update.add_event(
        "InstallWithdrawn",
        f"{decision.server}: was never installed, and a commit lowered `provision` to {decision.provision}, so "
        f"gitboot does not install the server. To install it, raise `provision` above {used}",
        warning=True,
        server=decision.server,
    )


def _adopt_by_first_policy(update: LedgerUpdate, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Record adopted servers as having the installation that their first policy requires.

    These servers had no policy when they were adopted, for example because they were parked.
    """
    for machine in machines:
        record = update.record(machine.uuid)
        if record is None or (record.evidence, record.pool) != (ADOPTED, None):
            continue
        decision = decisions.servers[machine.name]
        if decision.policy is not None and decision.provision <= (record.provision or 0):
            adopted = make_adopted_record(decision)
            new_record = replace(record, image=adopted.image, pool=adopted.pool, decision=adopted.decision)
            update.write_record(machine.uuid, machine.name, new_record)


def _record_declared_servers(update: LedgerUpdate, servers: Iterable[Decision]) -> None:
    """Record servers as provisioned if Git declares them as provisioned. Each declared number counts only once."""
    for decision in servers:
        record, declared = update.record(decision.uuid), decision.declared
        if (
            declared is None
            or declared < decision.provision
            or (record is not None and record.provision is not None and record.provision >= declared)
        ):
            continue
        new_record = replace(
            make_adopted_record(decision),
            provision=declared,
            evidence=DECLARED,
            provisioned_at=update.at,
            runs=record.runs if record is not None else {},
            offered=record.offered if record is not None else 0,
            taken_back=record.taken_back if record is not None else 0,
            answered=update.facts.sequence,
            unknown_serves=select_maintenance_serves(record),
        )
        update.write_record(decision.uuid, decision.server, new_record)
        update.add_event(
            "Provisioned",
            f"{decision.server}: provisioned, as Git declares for provision {declared}",
            server=decision.server,
            uuid=decision.uuid,
            evidence=DECLARED,
            image=new_record.image,
        )


def _complete_installations(update: LedgerUpdate, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Record installations as complete if the recorded fetches are sufficient evidence.

    The Fleet may have required a different kind of evidence when the fetches arrived.
    """
    for machine in machines:
        record = update.record(machine.uuid)
        if record is None or update.list_pending(machine.uuid):
            continue
        decision = decisions.servers[machine.name]
        attempt = find_open_attempt(decision, record)
        if attempt is None or unfinished_later_attempt(record) is not None:
            continue
        if (offer := find_report_offer(decision, record)) is not None:
            offer = structs.replace(
                offer, image=find_attempt_image(attempt) or offer.image, number=update.facts.sequence
            )
            complete_installation_if_proven(update, offer, FETCHED)


def extend_maintenance_runs(update: LedgerUpdate, commit: Commit, changed: Collection[str]) -> None:
    """Extend the recorded maintenance runs of servers after a commit moved the end of a window to a later time."""
    written = commit.select_server_names(update.new_records)
    for machine in commit.select_machines(written.union(changed)):
        record = update.record(machine.uuid)
        if record is not None and record.runs:
            new_record = extend_consumed_runs(record, commit.decisions.servers[machine.name])
            update.write_record(machine.uuid, machine.name, new_record)


# Dropped records


def drop_moved_machines(update: LedgerUpdate, moves: Moves, machines: Mapping[SystemUuid, Machine]) -> None:
    """Drop the records of machines that moved to another site, from another site, or between other sites.

    These machines do not count as new. If a machine in ``machines`` moved from another site, also drop the records of
    its earlier boards, because the other site may have installed the machine since.
    """
    accepted = update.before.accepted_machines
    update.departed = {machine.uuid: machine for machine in moves.departed if machine.uuid not in accepted}
    moved = set(moves.machines)
    for uuid in moves.arrived:
        if uuid in machines:
            moved.update(_list_boards(update, machines[uuid].replaces))
    update.dropped = frozenset(uuid for uuid in moved if update.record(uuid) is not None)
    for uuid in update.dropped:
        update.new_records.pop(uuid, None)


def drop_records_with_unoffered_boots(update: LedgerUpdate, commit: Commit, boots: Iterable[Observation]) -> None:
    """Drop a server's record if an endpoint served the server a newer boot that this ledger never offered.

    Such a ledger is an older copy, and the served boot may have installed the server.
    """
    if find_unverified_reason(update.facts, commit.decisions) is not None:
        return
    outdated: dict[SystemUuid, str] = {}  # the names of servers by UUID
    for boot in boots:
        decision = commit.decisions.servers.get(boot.server)
        record = update.record(decision.uuid) if decision is not None else None
        if decision is not None and record is not None and (find_last_seen(record) or _NEVER) < boot.at:
            outdated[decision.uuid] = boot.server
    why = "an endpoint served a boot that this ledger never offered, so gitboot does not know what is installed"
    drop_records(update, outdated, why)


def drop_records_of_installed_boards(update: LedgerUpdate, commit: Commit, boards: Set[SystemUuid]) -> None:
    """Drop a pending server's record if one of these earlier boards may have booted with the server's number.

    gitboot may read the fetch of the earlier board only after it has accepted the commit that names the new board.
    """
    installed: dict[SystemUuid, str] = {}  # the names of servers by UUID
    for machine in commit.machines.values():
        if machine.replaces is None or boards.isdisjoint(_list_boards(update, machine.replaces)):
            continue
        decision, record = commit.decisions.servers[machine.name], update.record(machine.uuid)
        is_new = record is not None and record.provision is None and not (record.offered or record.attempts)
        if is_new and decision.provision <= (_find_served_before(update, decision) or 0):
            installed[machine.uuid] = machine.name
    drop_records(update, installed, "the server may have booted its installation with its earlier board")


def drop_records(update: LedgerUpdate, servers: Mapping[SystemUuid, str], why: str) -> None:
    """Drop the records of servers, and report that their state is unknown. ``servers`` are names by UUID."""
    if servers:
        update.dropped |= frozenset(servers)
        for uuid in servers:
            update.new_records.pop(uuid, None)
        _report_unknown_servers(update, sorted(servers.values()), why)


def _report_unknown_servers(update: LedgerUpdate, names: list[str], why: str, advice: str = "") -> None:
    message = f"{format_names(names)}: {why}. {advise_check(names[0])}{advice}"
    update.add_event("ServerUnknown", message, warning=True, servers=names)


# Effects that a review predicts


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


def find_declared_boards(base: Commit, commit: Commit) -> frozenset[SystemUuid]:
    """Return the known machines whose board replaces another board, if a commit declares this or raises `provision`."""
    declared = set()
    for machine in commit.select_machines(find_changed_servers(base, commit)):
        before = base.machines.get(machine.uuid)
        if machine.replaces is None or before is None:
            continue
        provision = base.decisions.servers[before.name].provision
        if before.replaces != machine.replaces or provision < commit.decisions.servers[machine.name].provision:
            declared.add(machine.uuid)
    return frozenset(declared)


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
