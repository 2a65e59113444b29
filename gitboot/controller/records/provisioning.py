"""Provisioning: first records, boots that were made, and identities that moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from msgspec import structs

from gitboot.controller.records.install_boots import (
    apply_boot_served,
    apply_disk_boot,
    apply_failure,
    apply_foreign_fetch,
    apply_open_intent,
    apply_provisioned,
    apply_run_boot,
    apply_run_start,
    apply_start,
    apply_withheld,
    boot_identifies_machine,
    find_last_attempt,
    find_report_offer,
    is_maintenance_key,
    is_outdated,
)
from gitboot.controller.records.ledger_snapshot import Knowledge, KnowledgeUpdate
from gitboot.controller.records.ledger_trust import find_unverified_reason
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.fleet.identities import LostIdentity, Machine, Moves, find_changed_uuids
from gitboot.model.boot_policy import NetworkBoot, OverrideMode
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.boot_limits import CONSUMED_GRACE, FETCH_GRACE
from gitboot.resolve.install_attempts import (
    HIGHEST_NEW_PROVISION,
    UnrecordedState,
    classify_unrecorded_server,
    find_open_attempt,
    has_all_evidence,
    highest_served_provision,
    is_provisioned,
    make_adopted_record,
    unfinished_later_attempt,
)
from gitboot.resolve.plan_at_time import extend_moved_runs, has_run
from gitboot.resolve.provisioning_record import (
    Failure,
    InstallStep,
    Record,
    StepEvidence,
    UnknownServe,
    attempt_facts,
    find_last_seen,
)
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.review.reinstalls import (
    DescribedServer,
    GainedIdentity,
    Inheritance,
    find_gained_identities,
    find_lost_machine_identities,
)
from gitboot.text import format_names, quote_words

_MOST_AHEAD: Final = timedelta(seconds=30)  # of an endpoint's clock that is as good as right


def record_new_servers(
    update: KnowledgeUpdate,
    commit: Commit,
    changed: Collection[str],
    installing: Collection[str],
    introduced: Mapping[SystemUuid, int],
    *,
    removed: Collection[SystemUuid] | None = None,
) -> None:
    """Give each server that the ledger sees for the first time its first record.

    ``changed`` are the names of the servers that the commit changes, of all where nothing was settled before; ``begun``
    holds at least those of the others that are at an installation;
    ``left`` are the machines that it lacks of those before, where that is known;
    ``introduced`` says with which provision number machines came since the commit that was accepted before. A
    ledger that is new, or older than what it was, or another's, cannot know what is installed. Until it is
    initialised, nothing is known of any server.
    """
    decisions = commit.decisions
    if find_unverified_reason(update.facts, decisions) is not None:
        update.recorded_commit = None
        return
    seen, standing, dropped = update.before.machines, update.before.accepted_machines, update.dropped
    here = commit.select_machines(
        {*changed, *(commit.machines[uuid].name for uuid in dropped if uuid in commit.machines)}
    )
    # A new board that was seen already may be said to replace another one later.
    unmet = [each for each in here if each.uuid not in standing or each.uuid in dropped or each.replaces is not None]
    new = [each for each in unmet if each.uuid not in update.machines and update.record(each.uuid) is None]
    if new:
        _write_first_records(update, commit, new, introduced)
    update.machines |= {each.uuid: each for each in here if seen.get(each.uuid) != each or each.uuid not in standing}
    if removed is not None:
        update.removed_machines |= standing.intersection(removed)
    else:
        update.removed_machines |= {uuid for uuid in standing if uuid not in commit.machines}
    _adopt_by_first_policy(update, decisions, here)
    if decisions.evidence is Evidence.DECLARED:
        _record_declared(update, (decisions.servers[each.name] for each in here))
    if decisions.evidence is Evidence.FETCHED:
        written = (commit.machines[uuid].name for uuid in update.new_records if uuid in commit.machines)
        _complete_installations(update, decisions, commit.select_machines({*changed, *installing, *written}))
    if update.facts.initialised is None:
        update.facts = structs.replace(update.facts, initialised="adopt")
    update.recorded_commit = commit.revision


def drop_moved_machines(update: KnowledgeUpdate, moves: Moves) -> None:
    """Know nothing more of machines that another site has had in the meantime, but that they are not new."""
    update.departed = {each.uuid: each for each in moves.departed if each.uuid not in update.before.accepted_machines}
    update.dropped = frozenset(uuid for uuid in moves.machines if update.record(uuid) is not None)
    for uuid in update.dropped:
        update.new_records.pop(uuid, None)


def drop_records_with_unoffered_boots(update: KnowledgeUpdate, commit: Commit, boots: Iterable[Observation]) -> None:
    """Know nothing of servers that were given a boot which was left out of what a person has said to be installed.

    The ledger is an older copy, and has never offered it: they may be installed by it.
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
    message = (
        f"{format_names(names)}: given a boot that is in neither this ledger nor what it was begun with. Say what is installed "
        f"there with gitboot records set {quote_words(names[0])}"
    )
    update.add_event("ServerUnknown", message, warning=True, servers=names)


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def _write_first_records(
    update: KnowledgeUpdate, commit: Commit, machines: list[Machine], introduced: Mapping[SystemUuid, int]
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
            shared_mark=f"the {other[0]} {other[1]} of {other[2].name} ({other[2].uuid})"
            if other is not None
            else None,
        )
        if found.state is UnrecordedState.UNKNOWN:
            unknown.setdefault(found.why, []).append(each.server)
        elif (record := found.record(each)) is not None:
            update.write_record(each.uuid, each.server, record)
    for why, names in sorted(unknown.items()):
        message = f"{format_names(names)}: {why}. Say what is installed there with gitboot records set {quote_words(names[0])}"
        if commit.fleet.has_instances_by_site:
            message += ", or, where another site had it, with gitboot records take-over what that one hands over"
        update.add_event("ServerUnknown", message, warning=True, servers=names)


def _adopt_by_first_policy(update: KnowledgeUpdate, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Adopt what no policy described when it was seen first, parked perhaps: as the first policy wants it."""
    for machine in machines:
        record = update.record(machine.uuid)
        if record is None or (record.evidence, record.pool) != ("Adopted", None):
            continue
        if (each := decisions.servers[machine.name]).policy is None:
            continue
        if each.provision <= (record.provision or 0):
            late = replace(
                make_adopted_record(each),
                provision=record.provision,
                provisioned_at=record.provisioned_at,
                runs=record.runs,
                offered=record.offered,
                answered=record.answered,
                taken_back=record.taken_back,
                unknown_serves=record.unknown_serves,
                overwritten_by=record.overwritten_by,
            )
            update.write_record(each.uuid, each.server, late)


def _record_declared(update: KnowledgeUpdate, servers: Iterable[Decision]) -> None:
    """Take Git's word, where that is the evidence; each number is taken once."""
    for each in servers:
        record, declared = update.record(each.uuid), each.declared
        if declared is None or declared < each.provision:
            continue
        if record is not None and record.provision is not None and record.provision >= declared:
            continue
        now = replace(
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
        update.write_record(each.uuid, each.server, now)
        message = f"{each.server}: provision {declared} is provisioned (Declared)"
        update.add_event("Provisioned", message, server=each.server, evidence="Declared")


def _complete_installations(update: KnowledgeUpdate, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Take for made what has shown all that fetches can show, and waited for another kind of evidence until now."""
    for machine in machines:
        record = update.record(machine.uuid)
        if record is None or update.list_pending(machine.uuid):
            continue
        decision = decisions.servers[machine.name]
        if find_open_attempt(decision, record) is None or unfinished_later_attempt(record) is not None:
            continue
        if (offer := find_report_offer(decision, record)) is not None:
            complete_installation(update, structs.replace(offer, number=update.facts.sequence), "Fetched")


def extend_runs(update: KnowledgeUpdate, commit: Commit, changed: Collection[str]) -> None:
    """Let the runs of servers last as long as the windows in which they were made, wherever a commit moved those."""
    written = {commit.machines[uuid].name for uuid in update.new_records if uuid in commit.machines}
    for machine in commit.select_machines(written.union(changed)):
        record = update.record(machine.uuid)
        if record is None or not record.runs:
            continue
        update.write_record(
            machine.uuid, machine.name, extend_moved_runs(record, commit.decisions.servers[machine.name])
        )


# What makes a server provisioned


def record_provisioned(update: KnowledgeUpdate, offer: Offer, made_at: datetime, evidence: str) -> None:
    """Record that what is wanted was installed by ``made_at``. Twice is as once."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    now, what = apply_provisioned(offer, record, _adjust_to_local_clock(made_at, update.at), evidence)
    if now is record or offer.number > update.facts.rolled_back.get(offer.uuid, -1):
        _write_with_event(update, offer, now, ("Provisioned", f"{what} ({evidence})"), evidence)
        return
    # The accepted commit had taken this boot back. A mirror served it, or its evidence came late: when the commit was
    # accepted, nothing showed that it was fetched. Unknown never installs, so a person has to look.
    by = f"BootImage/{offer.image}"
    if record.overwritten_by == by:
        return
    now = replace(record, overwritten_by=by, answered=max(offer.number, record.answered))
    update.write_record(offer.uuid, offer.server, now)
    update.add_event(
        "WithdrawnBootInstalled",
        f"{offer.server}: was installed with {by}, which the accepted commit had taken back: its disk is unknown "
        f"({evidence}). Say what is installed there with gitboot records set {offer.server}",
        warning=True,
        server=offer.server,
        evidence=evidence,
        image=offer.image,
        plan=offer.plan,
    )


def record_maintenance_boot(
    update: KnowledgeUpdate, offer: Offer, seen: StepEvidence, evidence: str, *, starts: bool
) -> None:
    """Record that the boot of a maintenance was made, or that its system has started. Twice is as once."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = seen._replace(at=_adjust_to_local_clock(seen.at, update.at))
    now, what = apply_run_boot(offer, record, seen)
    _write_with_event(update, offer, now, ("MaintenanceBooted", f"{what} ({evidence})"), evidence)
    if starts:
        begun, what = apply_run_start(offer, now, seen)
        _write_with_event(update, offer, begun, ("MaintenanceStarted", what), evidence)


def _write_with_event(update: KnowledgeUpdate, offer: Offer, now: Record, said: tuple[str, str], evidence: str) -> None:
    if now == update.record(offer.uuid):
        return
    update.write_record(offer.uuid, offer.server, now)
    type, what = said
    message = f"{offer.server}: {what}"
    update.add_event(type, message, server=offer.server, evidence=evidence, image=offer.image, plan=offer.plan)


def _adjust_to_local_clock(seen_at: datetime, at: datetime) -> datetime:
    """When something was seen, for what ends a while later: a clock that is ahead would keep it open for longer.

    What is far ahead was seen before the clock was set right, and what it opened is over.
    """
    return min(seen_at, at) if seen_at - at <= _MOST_AHEAD else at - FETCH_GRACE


def record_step(update: KnowledgeUpdate, offer: Offer, observation: Observation) -> None:
    """Record that the boot of an installation was given, that it has started, or that it has failed."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)
    if observation.is_failure:
        now = apply_failure(offer, record, Failure(seen.at, seen.client, observation.log or ""))
    else:
        now = (apply_start if observation.is_start else apply_boot_served)(offer, record, seen)
    _write_step(update, offer, now, seen)


def record_disk_boot(update: KnowledgeUpdate, offer: Offer, observation: Observation) -> None:
    """Record that a machine has fetched a boot of its disk after an installation was served."""
    if (record := update.usable_record(offer.uuid)) is None or is_outdated(offer, record):
        return
    seen = StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)
    update.write_record(offer.uuid, offer.server, apply_disk_boot(record, seen))


def record_intent(update: KnowledgeUpdate, offer: Offer, observation: Observation, *, is_early: bool) -> None:
    """Record an intent to serve a boot, or that it was withheld; ``is_early``: before its intent was read."""
    record, intent = update.usable_record(offer.uuid), observation.intent
    if record is None or intent is None:
        return
    seen = StepEvidence(_adjust_to_local_clock(observation.at, update.at), observation.path, observation.client)
    if observation.outcome is Outcome.WITHHELD:
        now = apply_withheld(offer, record, intent, seen, is_early=is_early)
    else:
        now = apply_open_intent(offer, record, intent, seen)
    update.write_record(offer.uuid, offer.server, now)


def record_served(update: KnowledgeUpdate, offer: Offer) -> None:
    if (record := update.record(offer.uuid)) is not None:
        # It does not matter any more what else the endpoint perhaps served of it.
        others = tuple(each for each in record.unknown_serves if each.key != offer.key)
        update.write_record(offer.uuid, offer.server, replace(record, unknown_serves=others))


def record_boot_consumed(update: KnowledgeUpdate, offer: Offer) -> None:
    """Record that the boot of what fetches nothing was made: its override was consumed."""
    if (record := update.usable_record(offer.uuid)) is None:
        return
    seen = StepEvidence(update.at, "", "")
    if offer.phase is Phase.MAINTENANCE:
        record_maintenance_boot(update, offer, seen, "Consumed", starts=False)
        return
    _write_step(update, offer, apply_boot_served(offer, record, seen), seen)
    complete_installation(update, offer, "Consumed")


def _write_step(update: KnowledgeUpdate, offer: Offer, now: Record, seen: StepEvidence) -> None:
    if now is not update.record(offer.uuid):
        update.write_record(offer.uuid, offer.server, now)
        attempt = now.attempts[-1]
        step, which = attempt.step, f"attempt {attempt.number} at {attempt.key}"
        if step is InstallStep.ATTEMPTED and len(attempt.boots) > 1:
            which = f"boot {len(attempt.boots)} of {which}"
        if attempt.failed is not None:
            what = f"has failed: {attempt.failed}"
        else:
            what = f"{'was given' if step is InstallStep.ATTEMPTED else 'has started'}: {seen}"
        message, is_failed = f"{offer.server}: {which} {what}", attempt.failed is not None
        update.add_event(str(step), message, warning=is_failed, server=offer.server, **attempt_facts(attempt))


def complete_installation(update: KnowledgeUpdate, offer: Offer, evidence: str) -> None:
    """Take an installation for made if nothing more of it can be seen by what is fetched, or by its BMC."""
    record = update.record(offer.uuid)
    last = find_last_attempt(offer, record) if record is not None else None
    if last is not None and has_all_evidence(last, boots=offer.boots, shows_start=offer.shows_start):
        record_provisioned(update, offer, last.last_seen.at, evidence)


def record_foreign_fetch(update: KnowledgeUpdate, offer: Offer, observation: Observation) -> None:
    """Record that what was fetched went to another client: the machine's boot is offered anew, as another offer.

    Whoever gave it goes by its number, and would not give that again. The machine may still be given what was
    published before, until this is: so that counts as it did.
    """
    record = update.record(offer.uuid)
    if record is not None:
        seen = StepEvidence(observation.at, observation.path, observation.client)
        if (now := apply_foreign_fetch(record, seen)) != record or offer.phase is Phase.MAINTENANCE:
            update.write_record(offer.uuid, offer.server, replace(now, taken_back=update.count_decision()))


def record_override_consumed(update: KnowledgeUpdate, uuid: SystemUuid, server: str, key: str, at: datetime) -> None:
    """Record that the override for a key was consumed, and that no evidence has followed yet."""
    record = update.usable_record(uuid)
    if record is not None and record.consumed_key != key:
        update.write_record(uuid, server, replace(record, consumed_at=at, consumed_key=key))


def record_set_by_another(update: KnowledgeUpdate, offer: Offer) -> None:
    """Record that another instance has set the override for a boot: it counts as made long enough ago to be over."""
    if offer.phase is Phase.MAINTENANCE:
        record_maintenance_boot(
            update, offer, StepEvidence(update.at - FETCH_GRACE, "", ""), "SetByAnother", starts=False
        )
    else:
        record_override_consumed(update, offer.uuid, offer.server, offer.key, update.at - CONSUMED_GRACE)


def require_trusted_ledger(update: KnowledgeUpdate) -> None:
    """Raise `UsageError` where the ledger is in doubt: nothing is said of single servers then."""
    if not update.before.is_trusted:
        raise UsageError("nothing in this ledger is trusted before it is said what is installed: gitboot records begin")


def set_records(update: KnowledgeUpdate, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
    """Replace what is known of servers, as an operator says; raises `UsageError` where the ledger is in doubt."""
    require_trusted_ledger(update)
    number = update.count_decision()
    for uuid, server, record in records:
        known = update.record(uuid)  # also where it is said before the first commit was read
        runs = dict(record.runs)
        for name, made in known.runs.items() if known is not None else ():  # no person's word takes a later run back
            if name not in record.runs or made.run >= record.runs[name].run:
                runs[name] = made
        said = (each for each in record.unknown_serves if not is_maintenance_key(each.key))
        perhaps = (*said, *_select_maintenance_serves(known if known is not None else record))
        now = replace(record, runs=runs, offered=number, answered=0, taken_back=0, unknown_serves=perhaps)
        update.write_record(uuid, server, now)


def _select_maintenance_serves(record: Record | None) -> tuple[UnknownServe, ...]:
    """The boots of maintenances that were perhaps served: what is said of an installation leaves them as they are."""
    return tuple(each for each in record.unknown_serves if is_maintenance_key(each.key)) if record is not None else ()


# What a commit would install


def list_servers_to_install(knowledge: Knowledge, decisions: Decisions) -> tuple[str, ...]:
    if not knowledge.is_trusted:
        return ()
    return tuple(
        each.server
        for each in decisions.servers.values()
        if each.policy is not None
        and each.policy.boot is not None
        and each.policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(each.policy, knowledge.records.get(each.uuid, Record()))
    )


def find_new_or_reinstalled(knowledge: Knowledge, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Of the servers of a first commit those that the ledger's accepted one lacked, or that were installed before."""
    for each in decisions:
        record, policy = knowledge.records.get(each.uuid), each.policy
        is_again = (
            record is not None
            and record.provision is not None
            and policy is not None
            and policy.boot is not None
            and policy.boot.writes_disk
            and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
            and not is_provisioned(policy, record)
        )
        if is_again or each.uuid not in knowledge.accepted_machines:
            yield each


def find_inheritances(
    gains: Iterable[GainedIdentity],
    lost_identities: frozenset[LostIdentity],
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
    for each in lost_identities if marks else ():
        if each.key in marks:
            owners.setdefault(each.key, []).append(each)
    found = set()
    for gain in here:
        for owner in owners.get(gain.mark, ()):
            is_same = owner.uuid in (gain.uuid, gain.replaces)
            if not is_same and (owner.netboots or _may_be_installed(owner.uuid, knowledge, introduced)):
                before = knowledge.machines.get(owner.uuid)
                found.add(
                    Inheritance(gain.server, gain.kind, gain.value, owner.uuid, before.name if before else owner.uuid)
                )
    return tuple(sorted(found))


def _may_be_installed(uuid: SystemUuid, knowledge: Knowledge, introduced: Mapping[SystemUuid, int]) -> bool:
    """Return whether the record of a machine shows an installation, or does not show that there was none."""
    record = knowledge.records.get(uuid) if knowledge.is_trusted else None
    if record is None:  # a machine that no accepted commit has described yet is new if its number says so
        is_new = uuid not in knowledge.machines and 0 < introduced.get(uuid, 0) <= HIGHEST_NEW_PROVISION
        return not is_new
    return record.provision is not None or highest_served_provision(record) is not None or bool(record.runs)


def compare_identities_without_base(
    commit: Commit, knowledge: Knowledge
) -> tuple[tuple[GainedIdentity, ...], frozenset[LostIdentity]]:
    """Return the gained and the lost identities of a commit that cannot be compared with the accepted one.

    The ledger has the descriptions of the machines as of the accepted commit, without their addresses.
    """
    lost = set(knowledge.lost_identities)
    for uuid, machine in knowledge.machines.items():
        lost.update(find_lost_machine_identities(machine, commit.machines.get(uuid)))
    if not lost:
        return (), frozenset()
    marks, gains = {each.key for each in lost}, list[GainedIdentity]()
    decisions = commit.decisions
    for machine in commit.machines.values():
        name = machine.name
        labels = commit.labels.get(name, {})
        described = DescribedServer(
            decisions.servers[name], machine, decisions.networks[name], labels, decisions.outputs
        )
        gains += (each for each in find_gained_identities(None, described, ()) if each.mark in marks)
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
    """Whether a boot that is still to be made once could be made without the instance noticing.

    ``evidence`` is what the Fleet takes for proof; ``observes``: fetches reach the instance at all; ``sets``: it sets
    overrides at BMCs.
    """
    if record is None:
        return False
    policy, has_bmc = decision.policy, machine.bmc is not None
    can_observe = partial(
        _can_observe, has_bmc=has_bmc, observes_fetches=observes_fetches, sets_overrides=has_bmc and sets_overrides
    )
    if (
        policy is not None
        and policy.boot is not None
        and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(policy, record)
        and not can_observe(policy.boot, policy.override, evidence)
    ):
        return True
    return any(
        each.boot is not None
        and each.network_boot is NetworkBoot.ONCE
        and not has_run(each, record)
        and not can_observe(each.boot, each.override, Evidence.FETCHED)
        for each in decision.maintenances
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
    match evidence:
        case Evidence.DECLARED:
            return True
        case Evidence.REPORTED:
            return observes_fetches
    sets_overrides = sets_overrides and override is not OverrideMode.NONE  # it is seen when its override is consumed
    # A loader fetches the entry of whatever it boots, a uki too.
    notices = observes_fetches and (boot_identifies_machine(boot) or boot.direct_uki is not None)
    if evidence is Evidence.PROGRESS:
        return has_bmc and (sets_overrides or notices)
    return notices or (sets_overrides and not boot_identifies_machine(boot))
