"""Provisioning records: the first records of servers, the servers' boots and evidence, and the effects of a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
    CONSUMED_GRACE,
    FETCH_GRACE,
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
    known_machines, accepted, dropped = update.before.machines, update.before.accepted_machines, update.dropped
    machines = commit.select_machines(
        {*changed, *(commit.machines[uuid].name for uuid in dropped if uuid in commit.machines)}
    )
    # Include known boards too, because a commit may declare later that such a board replaces another one.
    unrecorded = [
        each for each in machines if each.uuid not in accepted or each.uuid in dropped or each.replaces is not None
    ]
    new = [each for each in unrecorded if each.uuid not in update.machines and update.record(each.uuid) is None]
    if new:
        _write_first_records(update, commit, new, introduced)
    update.machines |= {
        each.uuid: each for each in machines if known_machines.get(each.uuid) != each or each.uuid not in accepted
    }
    if removed is not None:
        update.removed_machines |= accepted.intersection(removed)
    else:
        update.removed_machines |= {uuid for uuid in accepted if uuid not in commit.machines}
    _adopt_servers_with_number_0(update, decisions, machines)
    _adopt_by_first_policy(update, decisions, machines)
    if decisions.evidence is Evidence.DECLARED:
        _record_declared_servers(update, (decisions.servers[each.name] for each in machines))
    if decisions.evidence is Evidence.FETCHED:
        written = (commit.machines[uuid].name for uuid in update.new_records if uuid in commit.machines)
        _complete_installations(update, decisions, commit.select_machines({*changed, *installing, *written}))
    if update.facts.initialised is None:
        update.set_facts(initialised="adopt")
    update.recorded_commit = commit.revision


def drop_moved_machines(update: LedgerUpdate, moves: Moves, machines: Mapping[SystemUuid, Machine]) -> None:
    """Drop the records of machines that moved to another site, from another site, or between other sites.

    These machines do not count as new. If a machine in ``machines`` moved from another site, also drop the records of
    its earlier boards, because the other site may have installed the machine since.
    """
    update.departed = {each.uuid: each for each in moves.departed if each.uuid not in update.before.accepted_machines}
    arrived = (machines[uuid].replaces for uuid in moves.arrived if uuid in machines)
    moved = {*moves.machines, *(board for replaced in arrived for board in _list_boards(update, replaced))}
    update.dropped = frozenset(uuid for uuid in moved if update.record(uuid) is not None)
    for uuid in update.dropped:
        update.new_records.pop(uuid, None)


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def drop_records_with_unoffered_boots(update: LedgerUpdate, commit: Commit, boots: Iterable[Observation]) -> None:
    """Drop a server's record if an endpoint served the server a newer boot that this ledger never offered.

    Such a ledger is an older copy, and the served boot may have installed the server.
    """
    if find_unverified_reason(update.facts, commit.decisions) is not None:
        return
    found: dict[SystemUuid, str] = {}
    for each in boots:
        decision = commit.decisions.servers.get(each.server)
        record = update.record(decision.uuid) if decision is not None else None
        if decision is not None and record is not None and (find_last_seen(record) or _NEVER) < each.at:
            found[decision.uuid] = each.server
    if not found:
        return
    update.dropped |= frozenset(found)
    for uuid in found:
        update.new_records.pop(uuid, None)
    names = sorted(found.values())
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
    seen = {**update.before.machines, **update.departed}
    others = find_changed_uuids(machines, seen.values())
    replaced = {each.replaces: update.record(each.replaces) for each in machines if each.replaces is not None}
    records = {uuid: record for uuid, record in replaced.items() if record is not None}
    unknown: dict[str, list[str]] = {}
    for each in (commit.decisions.servers[machine.name] for machine in machines):
        other = others.get(each.uuid)
        found = classify_unrecorded_server(
            each,
            records=records,
            seen_machines=seen,
            first_provision=introduced.get(each.uuid),
            shared_identity=f"the {other[0]} {other[1]} with {other[2].name} ({other[2].uuid})"
            if other is not None
            else None,
            served_before=_find_served_before(update, each),
        )
        if found.state is UnrecordedState.UNKNOWN:
            unknown.setdefault(found.why, []).append(each.server)
        elif (record := found.record(each)) is not None:
            update.write_record(each.uuid, each.server, record)
    for why, names in sorted(unknown.items()):
        message = f"{format_names(names)}: {why}. Check the server, then run gitboot records set "
        message += quote_words(names[0])
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
    found = list[int | None]()
    for board in _list_boards(update, decision.replaces):
        keys = [
            each.reason
            for each in update.overrides.list_records(board)
            if not each.state.is_unused and not each.override.gets_loader_from_dhcp
        ]
        record = update.record(board) or Record()
        found += [record.provision, highest_served_provision(record, keys)]
    return max((each for each in found if each is not None), default=None)


def _list_boards(update: LedgerUpdate, replaced: SystemUuid | None) -> list[SystemUuid]:
    """Return the UUIDs that a machine had with its earlier boards, beginning with ``replaced``, the last of them."""
    found = list[SystemUuid]()
    while replaced is not None and replaced not in found:
        found.append(replaced)
        machine = update.departed.get(replaced) or update.before.machines.get(replaced)
        replaced = machine.replaces if machine is not None else None
    return found


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
    """Adopt a server that was never installed."""
    if record.provision is None:
        adopted = make_adopted_record(decision)
        number = max(decision.provision, _find_served_before(update, decision) or 0)
        update.write_record(
            uuid,
            decision.server,
            replace(
                record,
                provision=number,
                image=adopted.image,
                pool=adopted.pool,
                decision=adopted.decision,
                evidence=adopted.evidence,
            ),
        )
        if decision.policy is not None and decision.policy.network_boot is NetworkBoot.ALWAYS:
            return  # the policy ignores the record
        overrides = [each.reason for each in update.overrides.list_records(uuid) if not each.state.is_unused]
        used = max(number, highest_served_provision(record, overrides) or 0)
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
        if record is None or (record.evidence, record.pool) != ("Adopted", None):
            continue
        each = decisions.servers[machine.name]
        if each.policy is not None and each.provision <= (record.provision or 0):
            adopted = make_adopted_record(each)
            update.write_record(
                each.uuid,
                each.server,
                replace(record, image=adopted.image, pool=adopted.pool, decision=adopted.decision),
            )


def _record_declared_servers(update: LedgerUpdate, servers: Iterable[Decision]) -> None:
    """Record servers as provisioned if Git declares them as provisioned. Each declared number counts only once."""
    for each in servers:
        record, declared = update.record(each.uuid), each.declared
        if (
            declared is None
            or declared < each.provision
            or (record is not None and record.provision is not None and record.provision >= declared)
        ):
            continue
        new_record = replace(
            make_adopted_record(each),
            provision=declared,
            evidence="Declared",
            provisioned_at=update.at,
            runs=record.runs if record is not None else {},
            offered=record.offered if record is not None else 0,
            taken_back=record.taken_back if record is not None else 0,
            answered=update.facts.sequence,
            unknown_serves=_select_maintenance_serves(record),
        )
        update.write_record(each.uuid, each.server, new_record)
        update.add_event(
            "Provisioned",
            f"{each.server}: provisioned, as Git declares for provision {declared}",
            server=each.server,
            uuid=each.uuid,
            evidence="Declared",
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
            complete_installation(update, offer, "Fetched")


def extend_maintenance_runs(update: LedgerUpdate, commit: Commit, changed: Collection[str]) -> None:
    """Extend the recorded maintenance runs of servers after a commit moved the end of a window to a later time."""
    written = {commit.machines[uuid].name for uuid in update.new_records if uuid in commit.machines}
    for machine in commit.select_machines(written.union(changed)):
        record = update.record(machine.uuid)
        if record is not None and record.runs:
            update.write_record(
                machine.uuid, machine.name, extend_consumed_runs(record, commit.decisions.servers[machine.name])
            )


# Boots and evidence


def record_provisioned(update: LedgerUpdate, offer: Offer, provisioned_at: datetime, evidence: str) -> None:
    """Record that a server was provisioned at ``provisioned_at``. A second call has no effect."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    new_record, what = apply_provisioned(offer, record, _adjust_to_local_clock(provisioned_at, update.at), evidence)
    if new_record is record or offer.number > update.facts.rolled_back.get(offer.uuid, -1):
        _write_with_event(update, offer, new_record, ("Provisioned", f"{what} ({evidence})"), evidence)
        return
    # The accepted commit had removed this boot, and gitboot had no fetch of the boot when it accepted the commit. A
    # mirror served the boot, or the evidence arrived late. gitboot never installs a server with unknown disks, so an
    # operator must check the server.
    by = f"BootImage/{offer.image}"
    if record.overwritten_by == by:
        return
    new_record = replace(record, overwritten_by=by, answered=max(offer.number, record.answered))
    update.write_record(offer.uuid, offer.server, new_record)
    update.add_event(
        "WithdrawnBootInstalled",
        f"{offer.server}: booted {by} although the accepted commit had withdrawn this boot, so the contents of the "
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
    new_record, what = apply_run_boot(offer, record, seen)
    _write_with_event(update, offer, new_record, ("MaintenanceBooted", f"{what} ({evidence})"), evidence)
    if is_started:
        started_record, what = apply_run_start(offer, new_record, seen)
        _write_with_event(update, offer, started_record, ("MaintenanceStarted", what), evidence)


def _write_with_event(
    update: LedgerUpdate, offer: Offer, new_record: Record, event: tuple[str, str], evidence: str
) -> None:
    if new_record == update.record(offer.uuid):
        return
    update.write_record(offer.uuid, offer.server, new_record)
    type, what = event
    update.add_event(
        type,
        f"{offer.server}: {what}",
        evidence=evidence,
        plan=offer.plan,
        server=offer.server,
        uuid=offer.uuid,
        image=offer.image,
    )


_MAX_AHEAD: Final = timedelta(seconds=30)  # how far an endpoint's clock may be ahead


def _adjust_to_local_clock(seen_at: datetime, at: datetime) -> datetime:
    """Return the time at which the grace period for a request begins. This time is never in the future.

    An endpoint whose clock is ahead would otherwise extend the grace period. If the time of a request is far in the
    future, the request is from before the clock was corrected, so the grace period has ended.
    """
    return min(seen_at, at) if seen_at - at <= _MAX_AHEAD else at - FETCH_GRACE


def record_install_step(update: LedgerUpdate, offer: Offer, observation: Observation) -> None:
    """Record that an installation's boot was served, or that the installation started or failed."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)
    if observation.is_failure:
        new_record = apply_reported_failure(offer, record, Failure(seen.at, seen.client, observation.log or ""))
    else:
        new_record = (apply_start if observation.is_from_system else apply_boot_served)(offer, record, seen)
    _write_step(update, offer, new_record, seen)


def record_disk_boot(update: LedgerUpdate, offer: Offer, observation: Observation) -> None:
    """Record that a machine fetched a disk boot after an installation was served."""
    if (record := update.usable_record(offer.uuid)) is None or is_outdated(offer, record):
        return
    seen = StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)
    update.write_record(offer.uuid, offer.server, apply_disk_boot(record, seen))


def record_intent(update: LedgerUpdate, offer: Offer, observation: Observation, *, is_early: bool) -> None:
    """Record that an endpoint intended to serve a boot, or that the endpoint withheld the boot.

    ``is_early`` means that gitboot has not read the intent itself yet.
    """
    record, intent = update.usable_record(offer.uuid), observation.intent
    if record is None or intent is None:
        return
    seen = StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)
    if observation.outcome is Outcome.WITHHELD:
        new_record = apply_withheld_boot(offer, record, intent, seen, is_early=is_early)
    else:
        new_record = apply_open_intent(offer, record, intent, seen)
    update.write_record(offer.uuid, offer.server, new_record)


def record_boot_served(update: LedgerUpdate, offer: Offer) -> None:
    if (record := update.record(offer.uuid)) is not None:
        # The boot was certainly served, so other intents to serve it no longer matter.
        others = tuple(each for each in record.unknown_serves if each.key != offer.key)
        update.write_record(offer.uuid, offer.server, replace(record, unknown_serves=others))


def record_boot_consumed(update: LedgerUpdate, offer: Offer) -> None:
    """Record the boot of an image that boots without fetches. The consumed override is the evidence."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = StepEvidence(update.at, "", "")
    if offer.phase is Phase.MAINTENANCE:
        record_maintenance_boot(update, offer, seen, "Consumed", is_started=False)
        return
    _write_step(update, offer, apply_boot_served(offer, record, seen), seen)
    complete_installation(update, offer, "Consumed")


def _write_step(update: LedgerUpdate, offer: Offer, new_record: Record, seen: StepEvidence) -> None:
    if new_record is not update.record(offer.uuid):
        update.write_record(offer.uuid, offer.server, new_record)
        attempt = new_record.attempts[-1]
        step, which = attempt.step, f"attempt {attempt.number} at {attempt.key}"
        if step is InstallStep.ATTEMPTED and len(attempt.boots) > 1:
            which = f"boot {len(attempt.boots)} of {which}"
        what = f"{'was served' if step is InstallStep.ATTEMPTED else 'started'}: {seen}"
        if is_failed := attempt.failed is not None:
            what = f"failed: {attempt.failed}"
        message = f"{offer.server}: {which} {what}"
        update.add_event(str(step), message, warning=is_failed, server=offer.server, **make_attempt_fields(attempt))


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
        later = {  # a record that an operator sets does not undo a later run
            name: run
            for name, run in (known.runs.items() if known is not None else ())
            if name not in record.runs or run.run >= record.runs[name].run
        }
        unknown_serves = (
            *(each for each in record.unknown_serves if not is_maintenance_key(each.key)),
            *_select_maintenance_serves(known if known is not None else record),
        )
        update.write_record(
            uuid,
            server,
            replace(
                record,
                runs={**record.runs, **later},
                offered=number,
                answered=0,
                taken_back=0,
                unknown_serves=unknown_serves,
            ),
        )


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
    return {
        before.uuid: machine.name
        for machine in commit.select_machines(find_changed_servers(base, commit))
        for uuid in (machine.uuid, machine.replaces)
        if uuid is not None
        and (before := base.machines.get(uuid)) is not None
        and commit.decisions.servers[machine.name].provision < base.decisions.servers[before.name].provision
    }


def list_servers_to_install(snapshot: LedgerSnapshot, decisions: Decisions) -> tuple[str, ...]:
    if not snapshot.is_trusted:
        return ()
    return tuple(
        each.server
        for each in decisions.servers.values()
        if each.policy is not None
        and each.policy.boot is not None
        and each.policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(each.policy, snapshot.records.get(each.uuid, Record()))
    )


def find_new_or_reinstalled(snapshot: LedgerSnapshot, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield the servers in an instance's first commit that are new to the ledger or would be installed again."""
    for each in decisions:
        record, policy = snapshot.records.get(each.uuid), each.policy
        is_reinstalled = (
            record is not None
            and record.provision is not None
            and policy is not None
            and policy.boot is not None
            and policy.boot.writes_disk
            and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
            and not is_provisioned(policy, record)
        )
        if is_reinstalled or each.uuid not in snapshot.accepted_machines:
            yield each


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
    marks = {each.identity for each in local_gains}
    owners: dict[tuple[str, str], list[LostIdentity]] = {}
    for each in lost_identities if marks else ():
        if each.key in marks:
            owners.setdefault(each.key, []).append(each)
    found = set()
    for gain in local_gains:
        for owner in owners.get(gain.identity, ()):
            if owner.uuid not in (gain.uuid, gain.replaces) and (
                owner.netboots or _may_be_installed(owner.uuid, snapshot, introduced)
            ):
                before = snapshot.machines.get(owner.uuid)
                found.add(
                    Inheritance(gain.server, gain.kind, gain.value, owner.uuid, before.name if before else owner.uuid)
                )
    return tuple(sorted(found))


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
    marks, gains = {each.key for each in lost}, list[GainedIdentity]()
    for uuid in commit.machines:
        if (described := describe_server(commit, uuid)) is not None:
            gains += (each for each in find_gained_identities(None, described, ()) if each.identity in marks)
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
    instance. ``sets_overrides`` means that the instance sets overrides at BMCs.
    """
    if record is None:
        return False
    policy, has_bmc = decision.policy, machine.bmc is not None

    def can_observe(boot: Boot, override: OverrideMode, evidence: Evidence) -> bool:
        if evidence in (Evidence.DECLARED, Evidence.REPORTED):
            return evidence is Evidence.DECLARED or observes_fetches
        # The BMC shows that an override was consumed.
        uses_override = has_bmc and sets_overrides and override is not OverrideMode.NONE
        # Even for a UKI, a boot loader fetches a boot script.
        notices = observes_fetches and (boot_identifies_machine(boot) or boot.direct_uki is not None)
        if evidence is Evidence.PROGRESS:
            return has_bmc and (uses_override or notices)
        return notices or (uses_override and not boot_identifies_machine(boot))

    return (
        policy is not None
        and policy.boot is not None
        and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(policy, record)
        and not can_observe(policy.boot, policy.override, evidence)
    ) or any(
        each.boot is not None
        and each.network_boot is NetworkBoot.ONCE
        and not is_current_run_consumed(each, record)
        and not can_observe(each.boot, each.override, Evidence.FETCHED)
        for each in decision.maintenances
    )
