"""Provisioning records: the first records of servers, the servers' boots and evidence, and the effects of a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from msgspec import structs

from gitboot.controller.current_plans import find_changed_servers
from gitboot.controller.records.install_boots import (
    apply_boot_served,
    apply_disk_boot,
    apply_foreign_fetch,
    apply_open_intent,
    apply_provisioned,
    apply_reported_failure,
    apply_run_boot,
    apply_run_start,
    apply_start,
    apply_withheld_boot,
    boot_identifies_machine,
    describe_server,
    find_last_attempt,
    find_report_offer,
    is_maintenance_key,
    is_outdated,
)
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.controller.records.ledger_trust import find_unverified_reason
from gitboot.errors import UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.fleet.identities import LostIdentity, Machine, Moves, find_changed_uuids
from gitboot.model.boot_policy import NetworkBoot, OverrideMode
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import (
    HIGHEST_NEW_PROVISION,
    UnrecordedState,
    classify_unrecorded_server,
    find_attempt_image,
    find_open_attempt,
    has_all_evidence,
    highest_served_provision,
    is_provisioned,
    last_attempt,
    make_adopted_record,
    provision_key,
    unfinished_later_attempt,
)
from gitboot.resolve.plan_at_time import extend_consumed_runs, is_current_run_consumed
from gitboot.resolve.provisioning_record import (
    ADOPTED,
    CONSUMED,
    CONSUMED_GRACE,
    DECLARED,
    FETCH_GRACE,
    FETCHED,
    Failure,
    InstallStep,
    Record,
    StepEvidence,
    UnknownServe,
    find_last_seen,
    make_attempt_fields,
)
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.review.reinstalls import (
    GainedIdentity,
    Inheritance,
    find_gained_identities,
    find_lost_machine_identities,
)
from gitboot.text import format_names, quote_words

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_MAX_AHEAD: Final = timedelta(seconds=30)  # how far an endpoint's clock may be ahead


def record_new_servers(
    update: LedgerUpdate,
    commit: Commit,
    changed: Collection[str],
    installing: Collection[str],
    introduced: Mapping[SystemUuid, int],
    *,
    removed: Collection[SystemUuid] | None = None,
) -> None:
    """Write a first record for each server that is new to the ledger.

    ``changed`` are the names of the servers that the commit changes (at first, all servers), and ``installing``
    contains at least the unchanged servers that are being installed. ``removed`` are the machines that the commit
    removed, if known. ``introduced`` contains the provision numbers of machines that were added since the last accepted
    commit.

    An unverified ledger (new, restored, or another instance's) cannot show what is installed. In that case, no server
    has a usable record until an operator initializes the ledger.
    """
    decisions = commit.decisions
    if find_unverified_reason(update.facts, decisions) is not None:
        update.recorded_commit = None
        return
    known_machines, accepted = update.before.machines, update.before.accepted_machines
    machines = commit.select_machines({*changed, *commit.select_server_names(update.dropped)})
    new_machines = [
        machine
        for machine in machines
        if machine.uuid not in update.machines
        and update.record(machine.uuid) is None
        # Include known boards too, because a commit may declare later that such a board replaces another one.
        and (machine.uuid not in accepted or machine.uuid in update.dropped or machine.replaces is not None)
    ]
    if new_machines:
        _write_first_records(update, commit, new_machines, introduced)
    update.machines |= {
        machine.uuid: machine
        for machine in machines
        if known_machines.get(machine.uuid) != machine or machine.uuid not in accepted
    }
    if removed is not None:
        update.removed_machines |= accepted.intersection(removed)
    else:
        update.removed_machines |= {uuid for uuid in accepted if uuid not in commit.machines}
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
    if not outdated:
        return
    update.dropped |= frozenset(outdated)
    for uuid in outdated:
        update.new_records.pop(uuid, None)
    names = sorted(outdated.values())
    update.add_event(
        "ServerUnknown",
        f"{format_names(names)}: an endpoint served a boot that this ledger never offered, so gitboot does not know "
        f"what is installed. Check the server, then run gitboot records set {quote_words(names[0])}",
        warning=True,
        servers=names,
    )


def _write_first_records(
    update: LedgerUpdate, commit: Commit, machines: list[Machine], introduced: Mapping[SystemUuid, int]
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
            seen_machines=seen_machines,
            first_provision=introduced.get(machine.uuid),
            shared_identity=shared_identity,
            served_before=_find_served_before(update, decision),
        )
        if classification.state is UnrecordedState.UNKNOWN:
            unknown.setdefault(classification.why, []).append(machine.name)
        elif (new_record := classification.record(decision)) is not None:
            update.write_record(machine.uuid, machine.name, new_record)
    for why, names in sorted(unknown.items()):
        message = (
            f"{format_names(names)}: {why}. Check the server, then run gitboot records set {quote_words(names[0])}"
        )
        if commit.fleet.has_instances_by_site:
            message += (
                ". If another site managed the server before, run gitboot records take-over with the file from that "
                "site instead"
            )
        update.add_event("ServerUnknown", message, warning=True, servers=names)


def _find_served_before(update: LedgerUpdate, decision: Decision) -> int | None:
    """Return the highest provision number with which a machine was installed or may have booted with an earlier board.

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
            unknown_serves=_select_maintenance_serves(record),
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
            complete_installation(update, offer, FETCHED)


def extend_maintenance_runs(update: LedgerUpdate, commit: Commit, changed: Collection[str]) -> None:
    """Extend the recorded maintenance runs of servers after a commit moved the end of a window to a later time."""
    written = commit.select_server_names(update.new_records)
    for machine in commit.select_machines(written.union(changed)):
        record = update.record(machine.uuid)
        if record is not None and record.runs:
            new_record = extend_consumed_runs(record, commit.decisions.servers[machine.name])
            update.write_record(machine.uuid, machine.name, new_record)


# Boots and evidence


def record_provisioned(update: LedgerUpdate, offer: Offer, provisioned_at: datetime, evidence: str) -> None:
    """Record that a server was provisioned at ``provisioned_at``. A second call has no effect."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    new_record, change = apply_provisioned(offer, record, _adjust_to_local_clock(provisioned_at, update.at), evidence)
    if new_record is record or offer.number > update.facts.rolled_back.get(offer.uuid, -1):
        _write_with_event(update, offer, new_record, "Provisioned", f"{change} ({evidence})", evidence)
        return
    # The accepted commit had removed this boot, and gitboot had no fetch of the boot when it accepted the commit. A
    # mirror served the boot, or the evidence arrived late. gitboot never installs a server with unknown disks, so an
    # operator must check the server.
    image = f"BootImage/{offer.image}"
    if record.overwritten_by == image:
        return
    new_record = replace(record, overwritten_by=image, answered=max(offer.number, record.answered))
    update.write_record(offer.uuid, offer.server, new_record)
    update.add_event(
        "WithdrawnBootInstalled",
        f"{offer.server}: booted {image} although the accepted commit had withdrawn this boot, so the contents of the "
        f"server's disks are unknown ({evidence}). Check the server, then run gitboot records set {offer.server}",
        warning=True,
        server=offer.server,
        evidence=evidence,
        image=offer.image,
        plan=offer.plan,
    )


def record_maintenance_boot(
    update: LedgerUpdate, offer: Offer, seen: StepEvidence, evidence: str, *, is_started: bool
) -> None:
    """Record the boot of a maintenance run. With ``is_started``, also record the start. A second call has no effect."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = seen._replace(at=_adjust_to_local_clock(seen.at, update.at))
    new_record, change = apply_run_boot(offer, record, seen)
    _write_with_event(update, offer, new_record, "MaintenanceBooted", f"{change} ({evidence})", evidence)
    if is_started:
        new_record, change = apply_run_start(offer, new_record, seen)
        _write_with_event(update, offer, new_record, "MaintenanceStarted", change, evidence)


def _write_with_event(
    update: LedgerUpdate, offer: Offer, new_record: Record, type: str, change: str, evidence: str
) -> None:
    """Write a record and report the change, unless the ledger already contains an equal record."""
    if new_record == update.record(offer.uuid):
        return
    update.write_record(offer.uuid, offer.server, new_record)
    update.add_event(
        type,
        f"{offer.server}: {change}",
        evidence=evidence,
        plan=offer.plan,
        server=offer.server,
        uuid=offer.uuid,
        image=offer.image,
    )


def _adjust_to_local_clock(seen_at: datetime, at: datetime) -> datetime:
    """Return the time at which the grace period for a request begins. This time is never in the future.

    An endpoint whose clock is ahead would otherwise extend the grace period. If the time of a request is far in the
    future, the request is from before the clock was corrected, so the grace period has ended.
    """
    return min(seen_at, at) if seen_at - at <= _MAX_AHEAD else at - FETCH_GRACE


def _build_evidence(update: LedgerUpdate, observation: Observation) -> StepEvidence:
    return StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)


def record_install_step(update: LedgerUpdate, offer: Offer, observation: Observation) -> None:
    """Record that an installation's boot was served, or that the installation started or failed."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = _build_evidence(update, observation)
    if observation.is_failure:
        new_record = apply_reported_failure(offer, record, Failure(seen.at, seen.client, observation.log or ""))
    elif observation.is_from_system:
        new_record = apply_start(offer, record, seen)
    else:
        new_record = apply_boot_served(offer, record, seen)
    _write_step(update, offer, new_record, seen)


def record_disk_boot(update: LedgerUpdate, offer: Offer, observation: Observation) -> None:
    """Record that a machine fetched a disk boot after an installation was served."""
    if (record := update.usable_record(offer.uuid)) is None or is_outdated(offer, record):
        return
    update.write_record(offer.uuid, offer.server, apply_disk_boot(record, _build_evidence(update, observation)))


def record_intent(update: LedgerUpdate, offer: Offer, observation: Observation, *, is_early: bool) -> None:
    """Record that an endpoint intended to serve a boot, or that the endpoint withheld the boot.

    ``is_early`` means that gitboot has not read the intent itself yet.
    """
    record, intent = update.usable_record(offer.uuid), observation.intent
    if record is None or intent is None:
        return
    seen = _build_evidence(update, observation)
    if observation.outcome is Outcome.WITHHELD:
        new_record = apply_withheld_boot(offer, record, intent, seen, is_early=is_early)
    else:
        new_record = apply_open_intent(offer, record, intent, seen)
    update.write_record(offer.uuid, offer.server, new_record)


def record_boot_served(update: LedgerUpdate, offer: Offer) -> None:
    """Drop the intents to serve a boot, because the boot was certainly served."""
    if (record := update.record(offer.uuid)) is not None:
        others = tuple(each for each in record.unknown_serves if each.key != offer.key)
        update.write_record(offer.uuid, offer.server, replace(record, unknown_serves=others))


def record_boot_consumed(update: LedgerUpdate, offer: Offer) -> None:
    """Record the boot of an image that boots without fetches. The consumed override is the evidence."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = StepEvidence(update.at, "", "")
    if offer.phase is Phase.MAINTENANCE:
        record_maintenance_boot(update, offer, seen, CONSUMED, is_started=False)
        return
    _write_step(update, offer, apply_boot_served(offer, record, seen), seen)
    complete_installation(update, offer, CONSUMED)


def _write_step(update: LedgerUpdate, offer: Offer, new_record: Record, seen: StepEvidence) -> None:
    """Write a record whose last attempt made a step, and report the step. An unchanged record is not written."""
    if new_record is update.record(offer.uuid):
        return
    update.write_record(offer.uuid, offer.server, new_record)
    attempt = new_record.attempts[-1]
    subject = f"attempt {attempt.number} at {attempt.key}"
    if attempt.step is InstallStep.ATTEMPTED and len(attempt.boots) > 1:
        subject = f"boot {len(attempt.boots)} of {subject}"
    if attempt.failed is not None:
        step = f"failed: {attempt.failed}"
    elif attempt.step is InstallStep.ATTEMPTED:
        step = f"was served: {seen}"
    else:
        step = f"started: {seen}"
    update.add_event(
        str(attempt.step),
        f"{offer.server}: {subject} {step}",
        warning=attempt.failed is not None,
        server=offer.server,
        **make_attempt_fields(attempt),
    )


def complete_installation(update: LedgerUpdate, offer: Offer, evidence: str) -> None:
    """Record a server as provisioned if there is evidence for all steps of its last attempt."""
    record = update.record(offer.uuid)
    last = find_last_attempt(offer, record) if record is not None else None
    if last is not None and has_all_evidence(last, boots=offer.boots, shows_start=offer.shows_start):
        record_provisioned(update, offer, last.last_seen.at, evidence)


def record_foreign_fetch(update: LedgerUpdate, offer: Offer, observation: Observation) -> None:
    """Record that another client fetched a boot, so that gitboot offers the boot to the machine again.

    An endpoint never serves an offer with the same number twice. Until the new offer is published, the machine may
    still fetch the old offer, which then counts as before.
    """
    if (record := update.record(offer.uuid)) is not None:
        seen = StepEvidence(observation.at, observation.path, observation.client)
        if (new_record := apply_foreign_fetch(record, seen)) != record or offer.phase is Phase.MAINTENANCE:
            update.write_record(offer.uuid, offer.server, replace(new_record, taken_back=update.next_decision_number()))


def record_override_consumed(update: LedgerUpdate, uuid: SystemUuid, server: str, key: str, at: datetime) -> None:
    """Record that the override for a key was consumed, although there is no evidence of the boot yet."""
    record = update.usable_record(uuid)
    if record is not None and record.consumed_key != key:
        update.write_record(uuid, server, replace(record, consumed_at=at, consumed_key=key))


def record_override_by_another(update: LedgerUpdate, offer: Offer) -> None:
    """Record that another instance set the override for a boot.

    In this case, evidence of the boot has no grace period.
    """
    if offer.phase is Phase.MAINTENANCE:
        record_maintenance_boot(
            update, offer, StepEvidence(update.at - FETCH_GRACE, "", ""), "SetByAnother", is_started=False
        )
    else:
        record_override_consumed(update, offer.uuid, offer.server, offer.key, update.at - CONSUMED_GRACE)


def require_trusted_ledger(update: LedgerUpdate) -> None:
    """Raise `UsageError` if the ledger is unverified, because single records of an unverified ledger cannot be set."""
    if not update.before.is_trusted:
        raise UsageError("the ledger is unverified. First initialise the ledger with `gitboot records begin`")


def set_records(update: LedgerUpdate, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
    """Replace the records of servers, as requested by an operator.

    Raises `UsageError` if the ledger is unverified.
    """
    require_trusted_ledger(update)
    number = update.next_decision_number()
    for uuid, server, record in records:
        known = update.record(uuid)  # known even before the first commit is read
        known_runs = known.runs if known is not None else {}
        later_runs = {  # a record that an operator sets does not undo a later run
            name: run for name, run in known_runs.items() if name not in record.runs or run.run >= record.runs[name].run
        }
        unknown_serves = (
            *(each for each in record.unknown_serves if not is_maintenance_key(each.key)),
            *_select_maintenance_serves(known if known is not None else record),
        )
        new_record = replace(
            record,
            runs={**record.runs, **later_runs},
            offered=number,
            answered=0,
            taken_back=0,
            unknown_serves=unknown_serves,
        )
        update.write_record(uuid, server, new_record)


def _select_maintenance_serves(record: Record | None) -> tuple[UnknownServe, ...]:
    """Return the maintenance boots in a record that may have been served.

    These boots stay in the record when the record of an installation changes.
    """
    return tuple(each for each in record.unknown_serves if is_maintenance_key(each.key)) if record is not None else ()


# Effects of a commit


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
        if decision.policy is not None
        and decision.policy.boot is not None
        and decision.policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(decision.policy, snapshot.records.get(decision.uuid, Record()))
    )


def find_new_or_reinstalled(snapshot: LedgerSnapshot, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield the servers in an instance's first commit that are new to the ledger or would be installed again."""
    for decision in decisions:
        record, policy = snapshot.records.get(decision.uuid), decision.policy
        is_reinstalled = (
            record is not None
            and record.provision is not None
            and policy is not None
            and policy.boot is not None
            and policy.boot.writes_disk
            and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
            and not is_provisioned(policy, record)
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


def is_unobservable(
    decision: Decision,
    machine: Machine,
    record: Record | None,
    evidence: Evidence,
    *,
    observes_fetches: bool,
    sets_overrides: bool,
) -> bool:
    """Return whether a pending one-time boot could take place without the instance detecting it.

    ``evidence`` is the kind of evidence that the Fleet requires. ``observes_fetches`` means that fetches reach the
    instance. ``sets_overrides`` means that the instance sets overrides on BMCs.
    """
    if record is None:
        return False
    policy = decision.policy
    can_observe = partial(
        _can_observe, has_bmc=machine.bmc is not None, observes_fetches=observes_fetches, sets_overrides=sets_overrides
    )
    return (
        policy is not None
        and policy.boot is not None
        and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(policy, record)
        and not can_observe(policy.boot, policy.override, evidence)
    ) or any(
        maintenance.boot is not None
        and maintenance.network_boot is NetworkBoot.ONCE
        and not is_current_run_consumed(maintenance, record)
        and not can_observe(maintenance.boot, maintenance.override, Evidence.FETCHED)
        for maintenance in decision.maintenances
    )


def _can_observe(
    boot: Boot,
    override: OverrideMode,
    evidence: Evidence,
    *,
    has_bmc: bool,
    observes_fetches: bool,
    sets_overrides: bool,
) -> bool:
    """Return whether the instance would detect that a boot took place, with the evidence that the Fleet requires."""
    # The BMC shows that an override was consumed.
    uses_override = has_bmc and sets_overrides and override is not OverrideMode.NONE
    # Even for a UKI, a boot loader fetches a boot script.
    detects_fetch = observes_fetches and (boot_identifies_machine(boot) or boot.direct_uki is not None)
    match evidence:
        case Evidence.DECLARED:
            return True
        case Evidence.REPORTED:
            return observes_fetches
        case Evidence.PROGRESS:
            return has_bmc and (uses_override or detects_fetch)
        case Evidence.FETCHED:
            return detects_fetch or (uses_override and not boot_identifies_machine(boot))
