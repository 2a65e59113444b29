"""Install boots: which boots are offered, withheld and completed, and how they change a server's record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from typing import Final

from msgspec import structs

from gitboot.bmc.override_state import Override, OverrideRecord, OverrideState
from gitboot.controller.current_plans import find_changed_servers
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.identities import IdentityKey, Machine
from gitboot.fleet.overlay import apply_differences
from gitboot.fleet.revision import Revision
from gitboot.ledger.instance_tables import WithheldBoots
from gitboot.model.boot_image import ConfigFrom
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import ServerState
from gitboot.resolve.install_attempts import (
    add_consumed_run,
    attempt_token,
    disk_boot_token,
    find_begun_key,
    has_other_mode,
    image_provision_key,
    install_progress,
    is_overwritten,
    is_provisioned,
    last_attempt,
    may_have_booted,
    next_attempt_and_boot,
    parse_attempt_and_boot,
    parse_provision,
    provision_key,
    satisfies_key,
    unfinished_later_attempt,
)
from gitboot.resolve.plan_at_time import is_run_consumed
from gitboot.resolve.provisioning_record import (
    FETCH_GRACE,
    FETCHED,
    Failure,
    InstallAttempt,
    Record,
    Run,
    StepEvidence,
    UnknownServe,
)
from gitboot.resolve.server_decision import Boot, Decision, WithheldBoot, replace_token
from gitboot.resolve.server_plan import WAITING_CAUSES, BootPlan, Offer, Phase
from gitboot.review.reinstalls import DescribedServer, find_withheld_boots, list_install_identities

DISK_BOOT: Final = "disk"  # the key of offers for booting the disk after an installation was served
# Maximum number of intents without an outcome per server, because clients can send any number of requests. Beyond this
# number, the record keeps one intent for each boot.
_MAX_OPEN: Final = 32
_OTHER_INTENTS: Final = "more"  # stands for all additional intents, whose outcomes are ignored
_MAX_EARLY: Final = 32  # withheld intents per server that were not read from the log yet; most never appear
# In these states, the override was not consumed and is not set.
_PROVEN_UNUSED: Final = (OverrideState.CLEARED, OverrideState.UNSENT)


def boot_identifies_machine(boot: Boot) -> bool:
    """Return whether a machine that boots this image fetches a file that identifies the machine."""
    return not boot.is_direct or boot.config_from is ConfigFrom.SYSTEM_UUID


def names_boot(override: Override, boot: Boot) -> bool:
    """Return whether an override names the file or the medium of a boot, if it names any."""
    file = boot.http_boot_file
    is_same_file = override.http_boot_uri in (None, file.url if file is not None else None)
    return is_same_file and override.medium in (None, boot.medium)


def find_earlier_overrides(overrides: Iterable[OverrideRecord], key: str, record: Record) -> list[OverrideRecord]:
    """Return other overrides with which the machine may have booted the installation that ``key`` requires.

    gitboot set them before a commit changed `networkBoot` or lowered the provision number.
    """
    return [
        override
        for override in overrides
        if not override.state.is_unused
        and override.reason != key
        and (satisfies_key(override.reason, key) or has_other_mode(override.reason, key, record))
        and may_have_booted(override.reason, override.at, record)
    ]


def list_offers(state: ServerState) -> Iterator[Offer]:
    """Yield a server's offers: for the current and later plans, for their user data, and for the installer's report."""
    for plan in (state.plan, *(plan for _, plan in state.later)):
        if plan is not None and (offer := build_offer(state.decision, plan, state.record)) is not None:
            yield offer
            if plan.data is not None and offer.phase is Phase.MAINTENANCE:
                yield structs.replace(offer, plan=plan.data)
    yield from _list_disk_boot_offers(state)
    if (report := find_report_offer(state.decision, state.record)) is None:
        return
    yield report
    common = state.decision.token
    if common is not None and common != report.plan and not _is_replaced(state.decision, common, report.plan):
        yield structs.replace(report, plan=common, attempt=0)


def _list_disk_boot_offers(state: ServerState) -> Iterator[Offer]:
    """Yield the offers for booting from the disk, if an installation was served but its completion was not reported."""
    instants = (state.at, *(since for since, _ in state.later))
    decision, record = state.decision, state.record
    tokens = {disk_boot_token(decision.uuid, install_progress(record, instant)) for instant in instants}
    for token in sorted(token for token in tokens if token is not None):
        yield Offer(
            plan=token,
            server=decision.server,
            uuid=decision.uuid,
            decision=decision.digest,
            phase=Phase.DISK,
            key=DISK_BOOT,
            policy=None,
            image="",
            provision=decision.provision,
            on_image_change=False,
            maintenance=None,
            run=None,
            once=False,
            writes_disk=False,
        )


def _is_replaced(decision: Decision, common: str, token: str) -> bool:
    """Return whether an installer sees only the token of its attempt.

    gitboot cannot replace the common token if the texts contain it in an encoding other than base64.
    """
    boot = decision.policy.boot if decision.policy is not None else None
    if boot is None:
        return False
    files = boot.user_data.files.values() if boot.user_data is not None else ()
    return any(
        replace_token(text, common, token) != text for text in (*files, *boot.entries.values(), *boot.kernel_arguments)
    )


def find_report_offer(decision: Decision, record: Record | None) -> Offer | None:
    """Return the offer for the last attempt's user data and report.

    The offer does not depend on the current plan.
    """
    policy, token = decision.policy, attempt_token(decision, record)
    if token is None or record is None or policy is None or policy.boot is None:
        return None
    key = provision_key(policy, record)
    number = 1
    if (due := next_attempt_and_boot(policy, record)) is not None:
        number, _ = due
    elif (last := last_attempt(record, key)) is not None:
        number = last.number
    return Offer(
        plan=token,
        server=decision.server,
        uuid=decision.uuid,
        decision=decision.digest,
        phase=Phase.NETWORK,
        key=key,
        base=key,
        attempt=number,
        boots=policy.boot.boots,
        shows_start=policy.boot.proves_start,
        policy=policy.policy,
        image=policy.boot.image,
        provision=decision.provision,
        on_image_change=policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE,
        maintenance=None,
        run=None,
        writes_disk=policy.boot.writes_disk,
    )


def build_offer(decision: Decision, plan: BootPlan, record: Record | None) -> Offer | None:
    """Return the offer for a plan's boot, or None if fetching the boot is not evidence.

    A server whose plan waits for the end of an installation boots from its disk. The offer is then for the policy's
    boot, because the installer can still send a report about that boot.
    """
    policy = decision.policy
    boot = policy.boot if policy is not None and plan.cause in WAITING_CAUSES else plan.boot
    maintenance = next((each for each in decision.maintenances if each.name == plan.maintenance), None)
    key = plan.key
    if key is None and maintenance is not None and plan.is_fetch_evidence:
        key = f"maintenance/{maintenance.name}/{maintenance.run}"
    if key is None or boot is None:
        return None
    base, shows_start = None, boot.proves_start
    attempt = boot_number = 1
    if policy is not None and policy.boot is not None and record is not None and plan.phase is not Phase.MAINTENANCE:
        base, shows_start = provision_key(policy, record), policy.boot.proves_start
        attempt, boot_number = parse_attempt_and_boot(base, key)
    return Offer(
        plan=plan.digest,
        server=decision.server,
        uuid=decision.uuid,
        decision=decision.digest,
        phase=plan.phase,
        key=key,
        policy=policy.policy if policy is not None else None,
        image=boot.image,
        provision=decision.provision,
        on_image_change=policy is not None and policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE,
        maintenance=plan.maintenance,
        run=maintenance.run if maintenance is not None else None,
        once=plan.key is not None,
        start=maintenance.start if maintenance is not None else None,
        end=maintenance.end if maintenance is not None else None,
        writes_disk=boot.writes_disk,
        base=base,
        attempt=attempt,
        boot=boot_number,
        boots=boot.boots,
        shows_start=shows_start,
    )


def is_maintenance_key(key: str) -> bool:
    """Return whether a key identifies a maintenance run instead of an installation."""
    return key.startswith("maintenance/")


def select_maintenance_serves(record: Record | None) -> tuple[UnknownServe, ...]:
    """Return the maintenance boots in a record that may have been served.

    These boots stay in the record when the record of an installation changes.
    """
    return tuple(each for each in record.unknown_serves if is_maintenance_key(each.key)) if record is not None else ()


def is_outdated(offer: Offer, record: Record) -> bool:
    """Return whether newer evidence or an operator's decision has superseded this offer.

    The function compares decision numbers, so the result does not depend on a clock.
    """
    return offer.number < max(record.offered, record.answered)


def apply_run_boot(offer: Offer, record: Record, seen: StepEvidence) -> tuple[Record, str]:
    """Return the record after the boot of a maintenance run, and a description of the change.

    An up-to-date record is returned unchanged.
    """
    if (
        offer.maintenance is None
        or offer.run is None
        or (offer.once and is_run_consumed(record.runs.get(offer.maintenance), offer.run, offer.start))
    ):
        return record, ""
    run = Run(offer.run, seen.at, offer.end, seen)
    precedes_install = record.provisioned_at is not None and (
        is_outdated(offer, record) or (offer.number == record.answered and seen.at < record.provisioned_at)
    )
    new_record = add_consumed_run(
        record, offer.maintenance, run, once=offer.once, overwrites_disk=offer.writes_disk and not precedes_install
    )
    if new_record == record:
        new_record = record
    return new_record, f"booted run {offer.run} of Maintenance/{offer.maintenance}"


def apply_run_start(offer: Offer, record: Record, seen: StepEvidence) -> tuple[Record, str]:
    """Return the record after the system of a maintenance run fetched its user data, and a description of the change.

    An up-to-date record is returned unchanged. Only a fetch for the last run of the maintenance counts.
    """
    name = offer.maintenance or ""
    run = record.runs.get(name)
    if run is None or run.run != offer.run or run.started is not None:
        return record, ""
    runs = {**record.runs, name: run._replace(started=seen)}
    return replace(record, runs=runs), f"started run {offer.run} of Maintenance/{offer.maintenance}: {seen}"


def apply_provisioned(offer: Offer, record: Record, provisioned_at: datetime, evidence: str) -> tuple[Record, str]:
    """Return the record of a server after it was provisioned, and a description of the change.

    An up-to-date record is returned unchanged.
    """
    if _needs_no_boot(offer, record):
        return record, ""
    last = find_last_attempt(offer, record)
    number = offer.provision
    if last is not None:  # a commit may have lowered the number since
        number = max(number, parse_provision(last.key) or 0)
    has_grace = evidence == FETCHED and not (last is not None and last.is_running)
    new_record = replace(
        record,
        provision=max(number, record.provision or 0),
        image=offer.image,
        version=None,
        pool=offer.policy,
        decision=offer.decision,
        evidence=evidence,
        provisioned_at=provisioned_at,
        grace_until=provisioned_at + FETCH_GRACE if has_grace else None,
        answered=max(offer.number, record.answered),
        consumed_at=None,
        consumed_key=None,
        overwritten_by=None,
        unknown_serves=select_maintenance_serves(record),
    )
    suffix = ", according to its fetches" if evidence == FETCHED else ""
    return new_record, f"installed provision {number} with BootImage/{offer.image}{suffix}"


def apply_open_intent(offer: Offer, record: Record, intent: str, seen: StepEvidence) -> Record:
    """Return the record with an endpoint's intent to serve a boot. An up-to-date record is returned unchanged.

    If the boot has already been served, the record is also returned unchanged. If the BMC then rules out that earlier
    request, the BMC also rules out this intent.
    """
    known = next((each for each in record.unknown_serves if each.intent == intent), None)
    if known is not None and known.is_withheld:
        return _apply_withheld_intent(offer, record, intent, seen)
    if known is not None or is_outdated(offer, record) or _is_boot_consumed(offer, record):
        return record
    count = sum(not serve.is_withheld for serve in record.unknown_serves)
    if count >= _MAX_OPEN and record.find_unknown_serve(offer.key) is not None:
        return record
    new_serve = UnknownServe(intent if count < _MAX_OPEN - 1 else _OTHER_INTENTS, offer.key, seen)
    return replace(record, unknown_serves=(*record.unknown_serves, new_serve))


def apply_withheld_boot(offer: Offer, record: Record, intent: str, seen: StepEvidence, *, is_early: bool) -> Record:
    """Return the record after an endpoint withheld a boot. Other intents stay in the record.

    ``is_early`` means that gitboot has not read the intent itself from the log yet.
    """
    known = next((each for each in record.unknown_serves if each.intent == intent), None)
    if known is not None and not known.is_withheld:
        return _apply_withheld_intent(offer, record, intent, seen)
    if known is not None or is_outdated(offer, record):
        return record
    if not is_early:
        return _apply_withheld_intent(offer, record, intent, seen)
    early = [serve for serve in record.unknown_serves if serve.is_withheld and serve.intent]
    others = [serve for serve in record.unknown_serves if not serve.is_withheld or not serve.intent]
    early = [*early, UnknownServe(intent, offer.key, seen, is_withheld=True)][-_MAX_EARLY:]
    return replace(record, unknown_serves=(*others, *early))


def _apply_withheld_intent(offer: Offer, record: Record, intent: str, seen: StepEvidence) -> Record:
    """Return the record without a withheld intent.

    The newest withheld request stays in the record, without an intent id.
    """
    serves = tuple(serve for serve in record.unknown_serves if serve.intent != intent)
    newest = next((serve for serve in serves if not serve.intent), None)
    if newest is None or newest.seen.at < seen.at:
        open_serves = [serve for serve in serves if serve.intent]
        serves = (*open_serves, UnknownServe("", offer.key, seen, is_withheld=True))
    return replace(record, unknown_serves=serves) if serves != record.unknown_serves else record


def apply_boot_served(offer: Offer, record: Record, seen: StepEvidence) -> Record:
    """Return the record after a boot was served. An up-to-date record is returned unchanged."""
    last = find_last_attempt(offer, record)
    if _needs_no_boot(offer, record) or (last is not None and _boot_position(last) >= (offer.attempt, offer.boot)):
        return record
    if last is not None and last.number == offer.attempt:
        return _replace_attempt(offer, record, structs.replace(last, image=offer.image, boots=(*last.boots, seen)))
    key = _find_attempt_key(offer, record)
    attempt = InstallAttempt(key=key, image=offer.image, number=offer.attempt, boots=(seen,))
    return _replace_attempt(offer, record, attempt)


def apply_start(offer: Offer, record: Record, seen: StepEvidence) -> Record:
    """Return the record after the booted system fetched its user data.

    The fetch also proves that the boot was served, and ends the grace period during which the boot can be served again.
    """
    if offer.attempt == 0:  # user data paths name their attempt, but the common path now belongs to another attempt
        return record
    if record.grace_until is not None and record.attempts and not is_outdated(offer, record):
        return replace(_replace_attempt(offer, record, _add_start(offer, record.attempts[-1], seen)), grace_until=None)
    served = apply_boot_served(offer, record, seen)
    last = find_last_attempt(offer, served)
    if last is None or last.failed is not None or last.number != offer.attempt or _needs_no_boot(offer, record):
        return record
    return record if last.is_running else _replace_attempt(offer, served, _add_start(offer, last, seen))


def _add_start(offer: Offer, attempt: InstallAttempt, seen: StepEvidence) -> InstallAttempt:
    """Return the attempt with its last boot marked as started.

    The order of the fetches shows which boot was the last.
    """
    return structs.replace(attempt, image=offer.image, started=seen, started_boot=len(attempt.boots))


def apply_reported_failure(offer: Offer, record: Record, failure: Failure) -> Record:
    """Return the record after an installer reported a failure. The report is ignored if no boot was served."""
    last = find_last_attempt(offer, record)
    if last is None or last.failed is not None or _needs_no_boot(offer, record):
        return record
    if last.number != offer.attempt and (offer.attempt or failure.at < last.boots[0].at):
        return record  # the report is about an earlier attempt
    return _replace_attempt(offer, record, structs.replace(last, failed=failure))


def apply_disk_boot(record: Record, seen: StepEvidence) -> Record:
    """Return the record after a machine fetched a disk boot.

    The disk boot follows an installation, or a maintenance that wrote to the disk.
    """
    last = record.attempts[-1] if record.attempts else None
    since = record.provisioned_at
    if last is not None and last.disk_boot is None and since is not None and last.boots[-1].at <= since:
        record = replace(record, attempts=(*record.attempts[:-1], structs.replace(last, disk_boot=seen)))
    name = record.overwritten_by or ""
    if (run := record.runs.get(name)) is not None and run.given is not None and run.disk_boot is None:
        record = replace(record, runs={**record.runs, name: run._replace(disk_boot=seen)})
    return record


def apply_foreign_fetch(record: Record, seen: StepEvidence) -> Record:
    """Return the record without a request that turned out to come from another client.

    If the booted system has fetched its user data since, the boot stays in the record, because the fetch of the user
    data proves that the machine booted.
    """
    if not record.attempts:
        return record
    earlier, last = record.attempts[:-1], record.attempts[-1]
    if last.is_running and last.started is not None and not _is_same_request(last.started, seen):
        return record
    boots = last.boots[:-1] if _is_same_request(last.boots[-1], seen) else last.boots
    if not boots:
        return replace(record, attempts=earlier)
    started = None if last.started is not None and _is_same_request(last.started, seen) else last.started
    last = structs.replace(
        last, boots=boots, started=started, started_boot=last.started_boot if started is not None else 0
    )
    return replace(record, attempts=(*earlier, last))


def _is_same_request(first: StepEvidence, second: StepEvidence) -> bool:
    return (first.path, first.client) == (second.path, second.client)


def _find_attempt_key(offer: Offer, record: Record) -> str:
    """Return the provision key to which an offer's attempt belongs.

    With `OnImageChange`, the key depends on the record. If the record contains an earlier installation, the key
    contains the time of that installation.
    """
    key = offer.base or offer.key
    if offer.on_image_change and not is_outdated(offer, record):
        key = image_provision_key(offer.provision, offer.image, record)
    return find_begun_key(key, record)


def find_last_attempt(offer: Offer, record: Record) -> InstallAttempt | None:
    """Return the record's last attempt of the installation that an offer belongs to."""
    return last_attempt(record, _find_attempt_key(offer, record))


def _boot_position(attempt: InstallAttempt) -> tuple[int, int]:
    return attempt.number, len(attempt.boots)


def _is_boot_consumed(offer: Offer, record: Record) -> bool:
    """Return whether the boot in an offer has already been served."""
    if offer.maintenance is not None and offer.run is not None:
        return is_run_consumed(record.runs.get(offer.maintenance), offer.run, offer.start)
    last = find_last_attempt(offer, record)
    return _needs_no_boot(offer, record) or (last is not None and _boot_position(last) >= (offer.attempt, offer.boot))


def _needs_no_boot(offer: Offer, record: Record) -> bool:
    """Return whether an offer is outdated, or the image that it offers is already provisioned."""
    return is_outdated(offer, record) or (
        record.provision is not None
        and record.provision >= offer.provision
        and (not offer.on_image_change or record.image == offer.image)
    )


def _replace_attempt(offer: Offer, record: Record, attempt: InstallAttempt) -> Record:
    """Return the record with this attempt. An existing attempt with the same number is replaced.

    Attempts for other keys are dropped, and so is an override that was consumed before for another key.
    """
    same_key = [each for each in record.attempts if each.key == attempt.key]
    others = [each for each in same_key if each.number != attempt.number]
    if not same_key and not f"{record.consumed_key or attempt.key}/".startswith(f"{attempt.key}/"):
        record = replace(record, consumed_at=None, consumed_key=None)
    return replace(
        record,
        attempts=tuple(sorted((*others, attempt), key=lambda each: each.number)),
        answered=max(offer.number, record.answered),
    )


def find_newly_withheld(accepted: Commit, newer: Sequence[Commit], newest: Revision) -> WithheldBoots | None:
    """Return the install boots in ``accepted`` that a newer valid commit does not offer, or None if it offers all of
    them.

    ``newer`` are the later valid commits, oldest first. ``newest`` is the last commit that was evaluated.
    """
    missing: dict[SystemUuid, list[WithheldBoot]] = {}
    names, before = set[str](), accepted
    for commit in newer:
        names |= find_changed_servers(before, commit)
        before = commit
        find_owners = cache(partial(_find_identity_owners, commit, frozenset(names)))
        for machine in accepted.select_machines(names & accepted.decisions.servers.keys()):
            boots = _list_missing_boots(accepted, commit, machine.uuid, find_owners)
            missing.setdefault(machine.uuid, []).extend(boots)
    servers = {uuid: tuple(boots) for uuid, boots in sorted(missing.items()) if boots}
    return WithheldBoots(newest, servers) if servers else None


def _find_identity_owners(commit: Commit, names: Collection[str]) -> dict[IdentityKey, set[SystemUuid]]:
    """Return the machines of the named servers, by identity."""
    owners: dict[IdentityKey, set[SystemUuid]] = {}
    for machine in commit.select_machines(names):
        if (described := describe_server(commit, machine.uuid)) is not None:
            for identity in (*described.list_identities(), *_list_bmc_keys(machine)):
                owners.setdefault(identity, set()).add(machine.uuid)
    return owners


def _list_bmc_keys(machine: Machine) -> Iterator[IdentityKey]:
    """Yield the address of a machine's BMC as an identity, because an override there makes the machine boot."""
    for kind, value in machine.list_keys():
        if kind == "BMC":
            yield kind, value


def _list_missing_boots(
    accepted: Commit,
    newer: Commit,
    uuid: SystemUuid,
    find_owners: Callable[[], Mapping[IdentityKey, Collection[SystemUuid]]],
) -> tuple[WithheldBoot, ...]:
    """Return a machine's install boots in ``accepted`` that ``newer`` does not offer.

    If an identity in ``accepted`` that leads to install boots is not an identity of the machine in ``newer``, return
    all install boots, because another machine may have this identity. A started attempt then gets its remaining boots,
    unless another server in ``newer`` has the identity. ``find_owners`` returns the machines in ``newer`` by identity,
    at least those whose identities changed.
    """
    offered, other = describe_server(accepted, uuid), describe_server(newer, uuid)
    if offered is None:
        return ()
    boots = find_withheld_boots(offered.decision, other.decision if other is not None else None, newer.revision)
    if other is None:
        return boots
    used = {*list_install_identities(offered), *_list_bmc_keys(offered.machine)}
    lost = used - {*other.list_lookups(), *_list_bmc_keys(other.machine)}
    if not lost:
        return boots
    all_boots = find_withheld_boots(offered.decision, None, newer.revision)
    owners = find_owners()
    if any(owner != uuid for identity in lost for owner in owners.get(identity, ())):
        return all_boots
    return *boots, *(boot._replace(takes_image_back=False) for boot in all_boots)


def describe_server(commit: Commit, uuid: SystemUuid) -> DescribedServer | None:
    """Return the server of a machine as a commit describes it, or None if the commit does not contain the machine."""
    if (machine := commit.machines.get(uuid)) is None:
        return None
    name, decisions = machine.name, commit.decisions
    return DescribedServer(
        decisions.servers[name], machine, decisions.networks[name], commit.labels.get(name, {}), decisions.outputs
    )


def merge_withheld_boots(before: WithheldBoots, after: WithheldBoots | None) -> WithheldBoots:
    """Merge two sets of withheld boots. The result names the commit that ``before`` names."""
    if after is None:
        return before
    return WithheldBoots(
        before.by,
        {
            uuid: tuple(dict.fromkeys((*before.servers.get(uuid, ()), *after.servers.get(uuid, ()))))
            for uuid in sorted({*before.servers, *after.servers})
        },
    )


def remove_withheld_boots(accepted: Commit, withheld: WithheldBoots | None) -> Commit:
    """Return the accepted commit without the withheld boots. gitboot plans and publishes this result."""
    if withheld is None:
        return accepted
    servers = accepted.decisions.servers
    local_boots = {uuid: boots for uuid, boots in withheld.servers.items() if uuid in accepted.machines}
    changed = {}
    for uuid, boots in local_boots.items():
        name = accepted.machines[uuid].name
        changed[name] = replace(servers[name], withheld=boots)
    return replace(
        accepted,
        decisions=structs.replace(accepted.decisions, servers=apply_differences(servers, changed)),
        withheld=local_boots,
    )


def list_already_installed(
    names: Sequence[str], base: Commit, commit: Commit, snapshot: LedgerSnapshot
) -> tuple[SystemUuid, ...]:
    """Return the machines of these servers that, according to their records, need no installation for ``commit``.

    A machine is excluded if there is any trace of the boot that ``base`` offers, because that boot may write to the
    disk.
    """
    if not snapshot.is_trusted or snapshot.facts.gap:
        return ()
    decisions = commit.decisions.servers  # the commit has no decisions for servers at other sites
    return tuple(
        decision.uuid
        for decision in map(decisions.get, names)
        if decision is not None and _needs_no_install(_find_decision(base, decision.uuid), decision, snapshot)
    )


def _needs_no_install(old: Decision | None, new: Decision, snapshot: LedgerSnapshot) -> bool:
    """Return whether the records show that a server is installed as ``new`` requires, and do not show the old boot."""
    record, policy = snapshot.record(new.uuid), new.policy
    if (
        old is None
        or record is None
        or policy is None
        or policy.network_boot is NetworkBoot.ALWAYS
        or is_overwritten(record, policy.provision)
        or not is_provisioned(policy, record)
        or unfinished_later_attempt(record) is not None
        or record.consumed_key is not None
        or new.uuid in snapshot.pending
        or any(not serve.is_withheld for serve in record.unknown_serves)
    ):
        return False
    if old.policy is None:
        return True
    key = provision_key(old.policy, record)
    return not any(
        override.state not in _PROVEN_UNUSED and (override.reason == key or override.reason.startswith(f"{key}/"))
        for override in snapshot.list_overrides(new.uuid)
    )


def may_have_unread_fetch(
    accepted: Commit, commit: Commit, machines: Iterable[SystemUuid], snapshot: LedgerSnapshot
) -> bool:
    """Return whether a machine may have fetched an install boot that ``accepted`` offers but ``commit`` does not.

    Only ``machines`` are checked. Such a fetch may be in the part of the fetch log that gitboot has not read yet. A
    machine that is recorded as provisioned gets no boot from a policy, but still gets the boot of a maintenance.
    """
    for uuid in machines:
        if (offered := _find_decision(accepted, uuid)) is None:
            continue
        policy, record = offered.policy, snapshot.record(uuid)
        is_done = record is not None and policy is not None and is_provisioned(policy, record)
        is_pending = not is_done or policy is None or policy.network_boot is NetworkBoot.ALWAYS
        boots = _list_missing_boots(accepted, commit, uuid, dict)
        if any(is_pending or boot.maintenance is not None for boot in boots):
            return True
    return False


def _find_decision(commit: Commit, uuid: SystemUuid) -> Decision | None:
    machine = commit.machines.get(uuid)
    return commit.decisions.servers[machine.name] if machine is not None else None


def collect_rollbacks(snapshot: LedgerSnapshot, servers: Sequence[SystemUuid], number: int) -> Mapping[SystemUuid, int]:
    """Return, by machine, the number of the decision that removed its boots.

    For the machines in ``servers``, this decision number is ``number``.
    """
    rolled_back = {}
    for uuid, earlier_number in snapshot.facts.rolled_back.items():
        record = snapshot.records.get(uuid)
        # An earlier entry stays unless newer evidence or an operator has decided about the machine since.
        if record is not None and max(record.offered, record.answered) <= earlier_number:
            rolled_back[uuid] = earlier_number
    return {**rolled_back, **dict.fromkeys(servers, number)}
