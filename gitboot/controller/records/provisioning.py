"""Provisioning: first records, boots that were made, and identities that moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from msgspec import structs

from gitboot.controller.records.install_boots import (
    attempted,
    disk_booted,
    failed,
    fetches,
    is_past,
    is_run,
    last_of,
    perhaps_served,
    provisioned,
    report_of,
    run_made,
    run_started,
    started,
    taken_back,
    withheld,
)
from gitboot.controller.records.ledger_snapshot import Knowledge, Learning
from gitboot.controller.records.ledger_trust import doubt_of
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.fleet.identities import LostIdentity, Machine, Moves, taken_over
from gitboot.model.boot_policy import NetworkBoot, OverrideMode
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.boot_limits import CONSUMED_GRACE, FETCH_GRACE
from gitboot.resolve.install_attempts import (
    NEW_UP_TO,
    Known,
    adopted,
    attempt_of,
    has_shown_all,
    is_provisioned,
    last_given,
    newcomer,
    overtaken_attempt,
)
from gitboot.resolve.plan_at_time import carried, has_run
from gitboot.resolve.provisioning_record import (
    Failure,
    InstallStep,
    Record,
    Seen,
    UnknownServe,
    attempt_facts,
    last_shown,
)
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.review.reinstalls import Described, GainedIdentity, Inheritance, gained, lost_by_machine
from gitboot.text import shell_words, some

_MOST_AHEAD: Final = timedelta(seconds=30)  # of an endpoint's clock that is as good as right


def settle(
    learning: Learning,
    commit: Commit,
    changed: Collection[str],
    begun: Collection[str],
    introduced: Mapping[SystemUuid, int],
    *,
    left: Collection[SystemUuid] | None = None,
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
    if doubt_of(learning.facts, decisions) is not None:
        learning.settled = None
        return
    seen, standing, dropped = learning.known.machines, learning.known.standing, learning.dropped
    here = commit.named({*changed, *(commit.machines[uuid].name for uuid in dropped if uuid in commit.machines)})
    # A new board that was seen already may be said to replace another one later.
    unmet = [each for each in here if each.uuid not in standing or each.uuid in dropped or each.replaces is not None]
    new = [each for each in unmet if each.uuid not in learning.machines and learning.record(each.uuid) is None]
    if new:
        _write_first_records(learning, commit, new, introduced)
    learning.machines |= {each.uuid: each for each in here if seen.get(each.uuid) != each or each.uuid not in standing}
    if left is not None:
        learning.gone |= standing.intersection(left)
    else:
        learning.gone |= {uuid for uuid in standing if uuid not in commit.machines}
    _adopt_late(learning, decisions, here)
    if decisions.evidence is Evidence.DECLARED:
        _declare(learning, (decisions.servers[each.name] for each in here))
    if decisions.evidence is Evidence.FETCHED:
        written = (commit.machines[uuid].name for uuid in learning.new_records if uuid in commit.machines)
        _complete_begun(learning, decisions, commit.named({*changed, *begun, *written}))
    if learning.facts.initialised is None:
        learning.facts = structs.replace(learning.facts, initialised="adopt")
    learning.settled = commit.revision


def let_go(learning: Learning, moves: Moves) -> None:
    """Know nothing more of machines that another site has had in the meantime, but that they are not new."""
    learning.departed = {each.uuid: each for each in moves.departed if each.uuid not in learning.known.standing}
    learning.dropped = frozenset(uuid for uuid in moves.machines if learning.record(uuid) is not None)
    for uuid in learning.dropped:
        learning.new_records.pop(uuid, None)


def doubt_given(learning: Learning, commit: Commit, given: Iterable[Observation]) -> None:
    """Know nothing of servers that were given a boot which was left out of what a person has said to be installed.

    The ledger is an older copy, and has never offered it: they may be installed by it.
    """
    if doubt_of(learning.facts, commit.decisions) is not None:
        return
    found: dict[SystemUuid, str] = {}
    for each in given:
        decision = commit.decisions.servers.get(each.server)
        record = learning.record(decision.uuid) if decision is not None else None
        if decision is not None and record is not None and (last_shown(record) or _NEVER) < each.at:
            found[decision.uuid] = each.server
    if not found:
        return
    learning.dropped |= frozenset(found)
    for uuid in found:
        learning.new_records.pop(uuid, None)
    names = sorted(found.values())
    message = (
        f"{some(names)}: given a boot that is in neither this ledger nor what it was begun with. Say what is installed "
        f"there with gitboot records set {shell_words(names[0])}"
    )
    learning.tell("ServerUnknown", message, warning=True, servers=names)


_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def _write_first_records(
    learning: Learning, commit: Commit, machines: list[Machine], introduced: Mapping[SystemUuid, int]
) -> None:
    seen = {**learning.known.machines, **learning.departed}
    others = taken_over(machines, seen.values())
    replaced = {each.replaces: learning.record(each.replaces) for each in machines if each.replaces is not None}
    records = {uuid: record for uuid, record in replaced.items() if record is not None}
    unknown: dict[str, list[str]] = {}
    for each in (commit.decisions.servers[machine.name] for machine in machines):
        other = others.get(each.uuid)
        found = newcomer(
            each,
            records=records,
            seen=seen,
            introduced=introduced.get(each.uuid),
            carries=f"the {other[0]} {other[1]} of {other[2].name} ({other[2].uuid})" if other is not None else None,
        )
        if found.known is Known.UNKNOWN:
            unknown.setdefault(found.why, []).append(each.server)
        elif (record := found.record(each)) is not None:
            learning.write_record(each.uuid, each.server, record)
    for why, names in sorted(unknown.items()):
        message = f"{some(names)}: {why}. Say what is installed there with gitboot records set {shell_words(names[0])}"
        if commit.fleet.has_instances_by_site:
            message += ", or, where another site had it, with gitboot records take-over what that one hands over"
        learning.tell("ServerUnknown", message, warning=True, servers=names)


def _adopt_late(learning: Learning, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Adopt what no policy described when it was seen first, parked perhaps: as the first policy wants it."""
    for machine in machines:
        record = learning.record(machine.uuid)
        if record is None or (record.evidence, record.pool) != ("Adopted", None):
            continue
        if (each := decisions.servers[machine.name]).policy is None:
            continue
        if each.provision <= (record.provision or 0):
            late = replace(
                adopted(each),
                provision=record.provision,
                provisioned_at=record.provisioned_at,
                runs=record.runs,
                offered=record.offered,
                answered=record.answered,
                taken_back=record.taken_back,
                unknown_serves=record.unknown_serves,
                overwritten_by=record.overwritten_by,
            )
            learning.write_record(each.uuid, each.server, late)


def _declare(learning: Learning, servers: Iterable[Decision]) -> None:
    """Take Git's word, where that is the evidence; each number is taken once."""
    for each in servers:
        record, declared = learning.record(each.uuid), each.declared
        if declared is None or declared < each.provision:
            continue
        if record is not None and record.provision is not None and record.provision >= declared:
            continue
        now = replace(
            adopted(each),
            provision=declared,
            evidence="Declared",
            provisioned_at=learning.at,
            runs=record.runs if record is not None else {},
            offered=record.offered if record is not None else 0,
            taken_back=record.taken_back if record is not None else 0,
            answered=learning.facts.sequence,
            unknown_serves=_of_runs(record),
        )
        learning.write_record(each.uuid, each.server, now)
        message = f"{each.server}: provision {declared} is provisioned (Declared)"
        learning.tell("Provisioned", message, server=each.server, evidence="Declared")


def _complete_begun(learning: Learning, decisions: Decisions, machines: Iterable[Machine]) -> None:
    """Take for made what has shown all that fetches can show, and waited for another kind of evidence until now."""
    for machine in machines:
        record = learning.record(machine.uuid)
        if record is None or learning.pending_of(machine.uuid):
            continue
        decision = decisions.servers[machine.name]
        if attempt_of(decision, record) is None or overtaken_attempt(record) is not None:
            continue
        if (offer := report_of(decision, record)) is not None:
            complete(learning, structs.replace(offer, number=learning.facts.sequence), "Fetched")


def carry(learning: Learning, commit: Commit, changed: Collection[str]) -> None:
    """Let the runs of servers last as long as the windows in which they were made, wherever a commit moved those."""
    written = {commit.machines[uuid].name for uuid in learning.new_records if uuid in commit.machines}
    for machine in commit.named(written.union(changed)):
        record = learning.record(machine.uuid)
        if record is None or not record.runs:
            continue
        learning.write_record(machine.uuid, machine.name, carried(record, commit.decisions.servers[machine.name]))


# What makes a server provisioned


def record_boot(learning: Learning, offer: Offer, made_at: datetime, evidence: str) -> None:
    """Record that what is wanted was installed by ``made_at``. Twice is as once."""
    if (record := learning.settled_record(offer.uuid)) is None:
        return
    now, what = provisioned(offer, record, _by_this_clock(made_at, learning.at), evidence)
    if now is record or offer.number > learning.facts.rolled_back.get(offer.uuid, -1):
        _note(learning, offer, now, ("Provisioned", f"{what} ({evidence})"), evidence)
        return
    # The accepted commit had taken this boot back. A mirror served it, or its evidence came late: when the commit was
    # accepted, nothing showed that it was fetched. Unknown never installs, so a person has to look.
    by = f"BootImage/{offer.image}"
    if record.overwritten_by == by:
        return
    now = replace(record, overwritten_by=by, answered=max(offer.number, record.answered))
    learning.write_record(offer.uuid, offer.server, now)
    learning.tell(
        "WithdrawnBootInstalled",
        f"{offer.server}: was installed with {by}, which the accepted commit had taken back: its disk is unknown "
        f"({evidence}). Say what is installed there with gitboot records set {offer.server}",
        warning=True,
        server=offer.server,
        evidence=evidence,
        image=offer.image,
        plan=offer.plan,
    )


def record_run(learning: Learning, offer: Offer, seen: Seen, evidence: str, *, starts: bool) -> None:
    """Record that the boot of a maintenance was made, or that its system has started. Twice is as once."""
    if (record := learning.settled_record(offer.uuid)) is None:
        return
    seen = seen._replace(at=_by_this_clock(seen.at, learning.at))
    now, what = run_made(offer, record, seen)
    _note(learning, offer, now, ("MaintenanceBooted", f"{what} ({evidence})"), evidence)
    if starts:
        begun, what = run_started(offer, now, seen)
        _note(learning, offer, begun, ("MaintenanceStarted", what), evidence)


def _note(learning: Learning, offer: Offer, now: Record, said: tuple[str, str], evidence: str) -> None:
    if now == learning.record(offer.uuid):
        return
    learning.write_record(offer.uuid, offer.server, now)
    type, what = said
    message = f"{offer.server}: {what}"
    learning.tell(type, message, server=offer.server, evidence=evidence, image=offer.image, plan=offer.plan)


def _by_this_clock(seen: datetime, at: datetime) -> datetime:
    """When something was seen, for what ends a while later: a clock that is ahead would keep it open for longer.

    What is far ahead was seen before the clock was set right, and what it opened is over.
    """
    return min(seen, at) if seen - at <= _MOST_AHEAD else at - FETCH_GRACE


def record_step(learning: Learning, offer: Offer, observation: Observation) -> None:
    """Record that the boot of an installation was given, that it has started, or that it has failed."""
    if (record := learning.settled_record(offer.uuid)) is None:
        return
    seen = Seen(_by_this_clock(observation.at, learning.at), observation.path, observation.client)
    if observation.is_failure:
        now = failed(offer, record, Failure(seen.at, seen.client, observation.log or ""))
    else:
        now = (started if observation.is_start else attempted)(offer, record, seen)
    _write_step(learning, offer, now, seen)


def record_disk_boot(learning: Learning, offer: Offer, observation: Observation) -> None:
    """Record that a machine has fetched a boot of its disk after an installation was served."""
    if (record := learning.settled_record(offer.uuid)) is None or is_past(offer, record):
        return
    seen = Seen(_by_this_clock(observation.at, learning.at), observation.path, observation.client)
    learning.write_record(offer.uuid, offer.server, disk_booted(record, seen))


def record_intent(learning: Learning, offer: Offer, observation: Observation, *, is_early: bool) -> None:
    """Record an intent to serve a boot, or that it was withheld; ``is_early``: before its intent was read."""
    record, intent = learning.settled_record(offer.uuid), observation.intent
    if record is None or intent is None:
        return
    seen = Seen(_by_this_clock(observation.at, learning.at), observation.path, observation.client)
    if observation.outcome is Outcome.WITHHELD:
        now = withheld(offer, record, intent, seen, is_early=is_early)
    else:
        now = perhaps_served(offer, record, intent, seen)
    learning.write_record(offer.uuid, offer.server, now)


def record_served(learning: Learning, offer: Offer) -> None:
    if (record := learning.record(offer.uuid)) is not None:
        # It does not matter any more what else the endpoint perhaps served of it.
        others = tuple(each for each in record.unknown_serves if each.key != offer.key)
        learning.write_record(offer.uuid, offer.server, replace(record, unknown_serves=others))


def record_consumed(learning: Learning, offer: Offer) -> None:
    """Record that the boot of what fetches nothing was made: its override was consumed."""
    if (record := learning.settled_record(offer.uuid)) is None:
        return
    seen = Seen(learning.at, "", "")
    if offer.phase is Phase.MAINTENANCE:
        record_run(learning, offer, seen, "Consumed", starts=False)
        return
    _write_step(learning, offer, attempted(offer, record, seen), seen)
    complete(learning, offer, "Consumed")


def _write_step(learning: Learning, offer: Offer, now: Record, seen: Seen) -> None:
    if now is not learning.record(offer.uuid):
        learning.write_record(offer.uuid, offer.server, now)
        attempt = now.attempts[-1]
        step, which = attempt.step, f"attempt {attempt.number} at {attempt.key}"
        if step is InstallStep.ATTEMPTED and len(attempt.boots) > 1:
            which = f"boot {len(attempt.boots)} of {which}"
        if attempt.failed is not None:
            what = f"has failed: {attempt.failed}"
        else:
            what = f"{'was given' if step is InstallStep.ATTEMPTED else 'has started'}: {seen}"
        message, is_failed = f"{offer.server}: {which} {what}", attempt.failed is not None
        learning.tell(str(step), message, warning=is_failed, server=offer.server, **attempt_facts(attempt))


def complete(learning: Learning, offer: Offer, evidence: str) -> None:
    """Take an installation for made if nothing more of it can be seen by what is fetched, or by its BMC."""
    record = learning.record(offer.uuid)
    last = last_of(offer, record) if record is not None else None
    if last is not None and has_shown_all(last, boots=offer.boots, shows_start=offer.shows_start):
        record_boot(learning, offer, last.last_seen.at, evidence)


def record_taken_back(learning: Learning, offer: Offer, observation: Observation) -> None:
    """Record that what was fetched went to another client: the machine's boot is offered anew, as another offer.

    Whoever gave it goes by its number, and would not give that again. The machine may still be given what was
    published before, until this is: so that counts as it did.
    """
    record = learning.record(offer.uuid)
    if record is not None:
        seen = Seen(observation.at, observation.path, observation.client)
        if (now := taken_back(record, seen)) != record or offer.phase is Phase.MAINTENANCE:
            learning.write_record(offer.uuid, offer.server, replace(now, taken_back=learning.decide()))


def note_consumed(learning: Learning, uuid: SystemUuid, server: str, key: str, at: datetime) -> None:
    """Record that the override for a key was consumed, and that no evidence has followed yet."""
    record = learning.settled_record(uuid)
    if record is not None and record.consumed_key != key:
        learning.write_record(uuid, server, replace(record, consumed_at=at, consumed_key=key))


def leave_to_another(learning: Learning, offer: Offer) -> None:
    """Record that another instance has set the override for a boot: it counts as made long enough ago to be over."""
    if offer.phase is Phase.MAINTENANCE:
        record_run(learning, offer, Seen(learning.at - FETCH_GRACE, "", ""), "SetByAnother", starts=False)
    else:
        note_consumed(learning, offer.uuid, offer.server, offer.key, learning.at - CONSUMED_GRACE)


def check_trusted(learning: Learning) -> None:
    """Raise `UsageError` where the ledger is in doubt: nothing is said of single servers then."""
    if not learning.known.is_trusted:
        raise UsageError("nothing in this ledger is trusted before it is said what is installed: gitboot records begin")


def set_records(learning: Learning, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
    """Replace what is known of servers, as an operator says; raises `UsageError` where the ledger is in doubt."""
    check_trusted(learning)
    number = learning.decide()
    for uuid, server, record in records:
        known = learning.record(uuid)  # also where it is said before the first commit was read
        runs = dict(record.runs)
        for name, made in known.runs.items() if known is not None else ():  # no person's word takes a later run back
            if name not in record.runs or made.run >= record.runs[name].run:
                runs[name] = made
        said = (each for each in record.unknown_serves if not is_run(each.key))
        perhaps = (*said, *_of_runs(known if known is not None else record))
        now = replace(record, runs=runs, offered=number, answered=0, taken_back=0, unknown_serves=perhaps)
        learning.write_record(uuid, server, now)


def _of_runs(record: Record | None) -> tuple[UnknownServe, ...]:
    """The boots of maintenances that were perhaps served: what is said of an installation leaves them as they are."""
    return tuple(each for each in record.unknown_serves if is_run(each.key)) if record is not None else ()


# What a commit would install


def left_to_install(knowledge: Knowledge, decisions: Decisions) -> tuple[str, ...]:
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


def strangers(knowledge: Knowledge, come: Iterable[Decision]) -> Iterator[Decision]:
    """Of the servers of a first commit those that the ledger's accepted one lacked, or that were installed before."""
    for each in come:
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
        if is_again or each.uuid not in knowledge.standing:
            yield each


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


def goes_unseen(
    decision: Decision, machine: Machine, record: Record | None, evidence: Evidence, *, observes: bool, sets: bool
) -> bool:
    """Whether a boot that is still to be made once could be made without the instance noticing.

    ``evidence`` is what the Fleet takes for proof; ``observes``: fetches reach the instance at all; ``sets``: it sets
    overrides at BMCs.
    """
    if record is None:
        return False
    policy, has_bmc = decision.policy, machine.bmc is not None
    sees = partial(_sees, has_bmc=has_bmc, observes=observes, sets=has_bmc and sets)
    if (
        policy is not None
        and policy.boot is not None
        and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(policy, record)
        and not sees(policy.boot, policy.override, evidence)
    ):
        return True
    return any(
        each.boot is not None
        and each.network_boot is NetworkBoot.ONCE
        and not has_run(each, record)
        and not sees(each.boot, each.override, Evidence.FETCHED)
        for each in decision.maintenances
    )


def _sees(boot: Boot, override: OverrideMode, evidence: Evidence, *, has_bmc: bool, observes: bool, sets: bool) -> bool:
    match evidence:
        case Evidence.DECLARED:
            return True
        case Evidence.REPORTED:
            return observes
    sets = sets and override is not OverrideMode.NONE  # it is seen when its override is consumed
    # A loader fetches the entry of whatever it boots, a uki too.
    notices = observes and (fetches(boot) or boot.direct_uki is not None)
    if evidence is Evidence.PROGRESS:
        return has_bmc and (sets or notices)
    return notices or (sets and not fetches(boot))
