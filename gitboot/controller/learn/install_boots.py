"""What a published boot would meet by being made, and what is known once it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from gitboot.jsonio import Digest
from gitboot.model.boot_image import ConfigFrom
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.graces import FETCH_GRACE
from gitboot.render.server_states import ServerState
from gitboot.resolve.install_attempts import due_boot, last_attempt, numbers_of, provision_reason, token_of
from gitboot.resolve.install_attempts_from_resolve_records import ran
from gitboot.resolve.install_progress import disk_boot_token, progress_of
from gitboot.resolve.plan_at_time import is_made
from gitboot.resolve.provisioning_record_from_plan import Record, Run, Seen
from gitboot.resolve.server_decision_from_plan import Boot, Decision
from gitboot.resolve.server_plan import WAITING, BootPlan, Offer, Phase


def fetches(boot: Boot) -> bool:
    """Whether a machine that boots this asks for something by which it can be told from others."""
    return not boot.direct or boot.config_from is ConfigFrom.SYSTEM_UUID


def offers_of(state: ServerState) -> Iterator[Offer]:
    """What is offered by a server's plans of now and next, by their data, and by the report of its installer."""
    for plan in (state.plan, *(plan for _, plan in state.later)):
        if plan is not None and (offer := offer_of(state.decision, plan, state.record)) is not None:
            yield offer
            if plan.data is not None and offer.phase is Phase.MAINTENANCE:
                yield replace(offer, plan=plan.data)
    yield from _disk_boots_of(state)
    if (report := report_of(state.decision, state.record)) is None:
        return
    yield report
    common = state.decision.token
    if common is not None and common != report.plan and not _names_itself(state.decision, common):
        yield replace(report, plan=common, attempt=0)


DISK_BOOT: Final = "disk"  # the key of an offer that stands for a boot of the disk after a served installation


def _disk_boots_of(state: ServerState) -> Iterator[Offer]:
    """Yield what a boot of the disk would meet, if an installation was served and its completion is not reported."""
    instants = (state.at, *(since for since, _ in state.later))
    decision, record = state.decision, state.record
    tokens = {disk_boot_token(decision.uuid, progress_of(record, instant)) for instant in instants}
    for token in sorted(each for each in tokens if each is not None):
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


def _names_itself(decision: Decision, common: Digest) -> bool:
    """Whether an installer reports by a token that can be told from that of another attempt: it is not encoded."""
    boot = decision.policy.boot if decision.policy is not None else None
    if boot is None:
        return False
    files = boot.user_data.files.values() if boot.user_data is not None else ()
    return any(common in text for text in (*files, *boot.entries.values(), *boot.kernel_arguments))


def report_of(decision: Decision, record: Record | None) -> Offer | None:
    """What the data and the installer's report of the last attempt would meet, whatever is booted when they come."""
    policy, token = decision.policy, token_of(decision, record)
    if token is None or record is None or policy is None or policy.boot is None:
        return None
    key = provision_reason(policy, record)
    due, last = due_boot(policy, record), last_attempt(record, key)
    return Offer(
        plan=token,
        server=decision.server,
        uuid=decision.uuid,
        decision=decision.digest,
        phase=Phase.NETWORK,
        key=key,
        base=key,
        attempt=due[0] if due is not None else last.number if last is not None else 1,
        boots=policy.boot.boots,
        shows_start=policy.boot.shows_its_start,
        policy=policy.policy,
        image=policy.boot.image,
        provision=decision.provision,
        on_image_change=policy.network_boot is NetworkBoot.ON_IMAGE_CHANGE,
        maintenance=None,
        run=None,
        writes_disk=policy.boot.writes_disk,
    )


def offer_of(decision: Decision, plan: BootPlan, record: Record | None) -> Offer | None:
    """What the boot of a plan, made of a record, would meet by being made; None where that is nothing.

    A plan that waits for what becomes of a boot boots the disk, and can still be reported: its boot is the policy's.
    """
    policy = decision.policy
    boot = policy.boot if policy is not None and plan.cause in WAITING else plan.boot
    ran = next((each for each in decision.maintenances if each.name == plan.maintenance), None)
    key = plan.key or (f"maintenance/{ran.name}/{ran.run}" if ran is not None and plan.is_evidence else None)
    if key is None or boot is None:
        return None
    base, attempt, of_attempt, shows_start = None, 1, 1, boot.shows_its_start
    if policy is not None and policy.boot is not None and record is not None and plan.phase is not Phase.MAINTENANCE:
        base, shows_start = provision_reason(policy, record), policy.boot.shows_its_start
        attempt, of_attempt = numbers_of(base, key)
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
        run=ran.run if ran is not None else None,
        once=plan.key is not None,
        start=ran.start if ran is not None else None,
        end=ran.end if ran is not None else None,
        writes_disk=boot.writes_disk,
        base=base,
        attempt=attempt,
        boot=of_attempt,
        boots=boot.boots,
        shows_start=shows_start,
    )


def is_run(key: str) -> bool:
    """Whether the key of a boot is of a maintenance's run, and not of an installation."""
    return key.startswith("maintenance/")


def is_past(offer: Offer, record: Record) -> bool:
    """Whether an offer is older, in the ledger's sequence, than the newest that was met, or than a person's word.

    No clock has a say in it.
    """
    return offer.number < max(record.offered, record.answered)


def run_made(offer: Offer, record: Record, seen: Seen) -> tuple[Record, str]:
    """The record once a maintenance's boot was made, and that in words; the same record if that is no news."""
    if offer.maintenance is None or offer.run is None:
        return record, ""
    if offer.once and is_made(record.runs.get(offer.maintenance), offer.run, offer.start):
        return record, ""
    run = Run(offer.run, seen.at, offer.end, seen)
    before = record.provisioned_at is not None and (
        is_past(offer, record) or (offer.number == record.answered and seen.at < record.provisioned_at)
    )
    now = ran(record, offer.maintenance, run, once=offer.once, overwrites=offer.writes_disk and not before)
    return (now if now != record else record), f"run {offer.run} of Maintenance/{offer.maintenance} was booted"


def run_started(offer: Offer, record: Record, seen: Seen) -> tuple[Record, str]:
    """The record once the system of a maintenance's one boot has asked for its data, and that in words.

    The same record where that is no news. What is fetched is of the run that was made last.
    """
    made = record.runs.get(offer.maintenance or "")
    if made is None or made.run != offer.run or made.started is not None:
        return record, ""
    runs = {**record.runs, offer.maintenance or "": made._replace(started=seen)}
    return replace(record, runs=runs), f"run {offer.run} of Maintenance/{offer.maintenance} has started: {seen}"


def provisioned(offer: Offer, record: Record, made_at: datetime, evidence: str) -> tuple[Record, str]:
    """The record once a provision key is provisioned, and that in words; the same record if that is no news."""
    if is_past(offer, record):
        return record, ""
    reached = record.provision is not None and record.provision >= offer.provision
    if reached and (not offer.on_image_change or record.image == offer.image):
        return record, ""
    last = last_attempt(record, offer.base or offer.key)
    now = replace(
        record,
        provision=max(offer.provision, record.provision or 0),
        image=offer.image,
        pool=offer.policy,
        decision=offer.decision,
        evidence=evidence,
        provisioned_at=made_at,
        grace_until=made_at + FETCH_GRACE if evidence == "Fetched" and not (last is not None and last.runs) else None,
        answered=max(offer.number, record.answered),
        consumed_at=None,
        consumed_key=None,
        overwritten_by=None,
        unknown_serves=tuple(each for each in record.unknown_serves if is_run(each.key)),
    )
    unseen = " as far as its fetches show" if evidence == "Fetched" else ""
    return now, f"provision {offer.provision} is installed with BootImage/{offer.image}{unseen}"
