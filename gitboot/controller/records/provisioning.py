"""Provisioning records: boots, the evidence of installations, and records that an operator sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from gitboot.bmc.override_state import OverrideState
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
    find_last_attempt,
    is_maintenance_key,
    is_outdated,
    select_maintenance_serves,
)
from gitboot.controller.records.ledger_snapshot import LedgerUpdate
from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import Observation, Outcome
from gitboot.model.boot_policy import NetworkBoot, OverrideMode
from gitboot.model.fleet import Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import has_all_evidence, is_install_pending
from gitboot.resolve.plan_at_time import is_current_run_consumed
from gitboot.resolve.provisioning_record import (
    CONSUMED,
    CONSUMED_GRACE,
    FETCH_GRACE,
    Failure,
    InstallStep,
    Record,
    StepEvidence,
    make_attempt_fields,
)
from gitboot.resolve.server_decision import Boot, Decision
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.text import quote_words

_MAX_AHEAD: Final = timedelta(seconds=30)  # how far an endpoint's clock may be ahead


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
        f"server's disks are unknown ({evidence}). {advise_check(offer.server)}",
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
    update: LedgerUpdate, offer: Offer, new_record: Record, event_type: str, change: str, evidence: str
) -> None:
    """Write a record and report the change, unless the ledger already contains an equal record."""
    if new_record == update.record(offer.uuid):
        return
    update.write_record(offer.uuid, offer.server, new_record)
    update.add_event(
        event_type,
        f"{offer.server}: {change}",
        evidence=evidence,
        plan=offer.plan,
        server=offer.server,
        uuid=offer.uuid,
        image=offer.image,
    )


def advise_check(server: str) -> str:
    """Return the sentence that tells an operator to check a server and to record what is installed."""
    return f"Check the server, then run gitboot records set {quote_words(server)}"


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
    if observation.reports_failure:
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


def drop_intents_of_served_boot(update: LedgerUpdate, offer: Offer) -> None:
    """Drop the intents to serve a boot, because the boot was certainly served.

    Keep the intents if an operator stated the record after the offer, because the record contains no other trace of the
    boot then.
    """
    record = update.record(offer.uuid)
    if record is not None and not is_outdated(offer, record):
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
    complete_installation_if_proven(update, offer, CONSUMED)


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


def complete_installation_if_proven(update: LedgerUpdate, offer: Offer, evidence: str) -> None:
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
            update, offer, StepEvidence(update.at - FETCH_GRACE, "", ""), OverrideState.SET_BY_ANOTHER, is_started=False
        )
    else:
        record_override_consumed(update, offer.uuid, offer.server, offer.key, update.at - CONSUMED_GRACE)


# Records that an operator sets


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
            *select_maintenance_serves(known if known is not None else record),
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


# Detection of boots


class Observability(Struct, frozen=True, kw_only=True):
    """What an instance can observe of the boots of one machine."""

    has_bmc: bool
    observes_fetches: bool  # whether fetches reach the instance
    sets_overrides: bool  # whether the instance sets overrides on BMCs

    def detects_boot(self, boot: Boot, override: OverrideMode, required_evidence: Evidence) -> bool:
        """Return whether the instance would detect that a boot took place, with the evidence that is required."""
        # The BMC shows that an override was consumed.
        uses_override = self.has_bmc and self.sets_overrides and override is not OverrideMode.NONE
        # Even for a UKI, a boot loader fetches a boot script.
        detects_fetch = self.observes_fetches and (boot_identifies_machine(boot) or boot.direct_uki is not None)
        match required_evidence:
            case Evidence.DECLARED:
                return True
            case Evidence.REPORTED:
                return self.observes_fetches
            case Evidence.PROGRESS:
                return self.has_bmc and (uses_override or detects_fetch)
            case Evidence.FETCHED:
                return detects_fetch or (uses_override and not boot_identifies_machine(boot))


def is_unobservable(
    decision: Decision, record: Record | None, required_evidence: Evidence, observability: Observability
) -> bool:
    """Return whether a pending one-time boot could take place without the instance detecting it.

    ``required_evidence`` is the kind of evidence that the Fleet requires.
    """
    if record is None:
        return False
    policy = decision.policy
    return (
        policy is not None
        and policy.boot is not None
        and is_install_pending(decision, record)
        and not observability.detects_boot(policy.boot, policy.override, required_evidence)
    ) or any(
        maintenance.boot is not None
        and maintenance.network_boot is NetworkBoot.ONCE
        and not is_current_run_consumed(maintenance, record)
        and not observability.detects_boot(maintenance.boot, maintenance.override, Evidence.FETCHED)
        for maintenance in decision.maintenances
    )
