"""Evidence of boots: fetches and BMC observations that prove a boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from msgspec import Struct, structs

from gitboot.bmc.override_state import BmcObservation, OverrideRecord, OverrideState, ResetConclusion
from gitboot.bmc.override_steps import add_known_clock, is_override_shown
from gitboot.controller.records.commit_effects import drop_records
from gitboot.controller.records.install_boots import (
    DISK_BOOT,
    boot_identifies_machine,
    build_offer,
    find_earlier_overrides,
    find_last_attempt,
    names_boot,
)
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.controller.records.provisioning import (
    complete_installation_if_proven,
    drop_intents_of_served_boot,
    record_boot_consumed,
    record_disk_boot,
    record_foreign_fetch,
    record_install_step,
    record_intent,
    record_maintenance_boot,
    record_override_by_another,
    record_override_consumed,
    record_provisioned,
)
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import (
    Observation,
    Outcome,
    drop_concluded_intents,
    get_client_network,
    select_consuming_fetches,
)
from gitboot.fetchlog.one_time_boots import (
    MAX_ADDRESSES,
    InstallationFetches,
    SecretFetches,
    describe_secret,
    find_secret,
    is_report,
)
from gitboot.ledger import server_tables
from gitboot.ledger.server_tables import PendingObservation
from gitboot.ledger.store import Store
from gitboot.model import fleet
from gitboot.model.scalars import SystemUuid
from gitboot.render.paths import find_non_script_kind, find_token
from gitboot.render.server_files import ServerState
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.install_attempts import find_attempt_image
from gitboot.resolve.plan_at_time import release_key
from gitboot.resolve.provisioning_record import (
    CONSUMED_GRACE,
    FETCH_GRACE,
    FETCHED,
    PROGRESS,
    REPORTED,
    StepEvidence,
    find_last_seen,
)
from gitboot.resolve.server_decision import OverrideEnabled
from gitboot.resolve.server_plan import WAITING_CAUSES, Cause, Offer, Phase

_NEVER: Final = datetime.min.replace(tzinfo=UTC)

Networks = Iterable[IPv4Network | IPv6Network]


class BmcEvidence(Struct, frozen=True, kw_only=True):
    """The observations from one BMC task, and the fetches that the task may confirm or rule out."""

    uuid: SystemUuid
    state: ServerState | None  # None: the machine left the fleet, but its earlier fetches still count
    observed: BmcObservation
    pending_ids: frozenset[int]  # ids of the fetches that were pending when the task began
    open_intents: frozenset[str] = frozenset()  # intents that had no outcome when the task began
    decision_number: int = 0  # number of the newest decision when the task began
    is_own_machine: bool = True  # whether the BMC belongs to this machine


# Fetches


class Fetch(Struct, frozen=True, kw_only=True):
    """A fetch, and the offer that was fetched."""

    observation: Observation  # its digest is that of the plan whose boot script was sent
    offer: Offer
    was_recorded: bool  # whether it is already in the ledger, because the fetch log is read again


def match_fetches(store: Store, observations: Iterable[Observation], keys: TokenKeys) -> tuple[Fetch, ...]:
    """Match observations to offers in the ledger. The result does not include observations without an offer.

    An endpoint logs the digest of the plan that it served, and a mirror logs the file's modification time. If the file
    was replaced in the meantime, an endpoint logs only the path. In the result, each path contains the token itself
    instead of the token's published name.
    """
    fetches = []
    for observation in observations:
        name = find_token(observation.path)
        digest, number = observation.digest, None
        if digest is not None and digest == name:
            digest = server_tables.find_token(store, observation.path) or digest
        if digest is None and observation.modified is not None:
            if (version := server_tables.find_version(store, observation.path, observation.modified)) is not None:
                digest, number = version
            elif name is not None:  # a token alone identifies the plan, even in a tree that another host published
                digest = server_tables.find_token(store, observation.path)
        if digest is None or (offer := server_tables.find_offer(store, digest)) is None:
            continue
        path = observation.path
        if name is not None:
            if not keys.is_token_name(digest, name, observation.at):
                continue
            path = path.replace(name, digest)
        if number is not None:
            offer = structs.replace(offer, number=number)
        seen = replace(observation, path=path, digest=digest, modified=None)
        was_recorded = server_tables.has_observation(store, seen, digest)
        fetches.append(Fetch(observation=seen, offer=offer, was_recorded=was_recorded))
    return tuple(fetches)


def find_unoffered_boots(store: Store, observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """Return the served one-time boots that this ledger never offered.

    Any such boot shows that the ledger is an older copy.
    """
    return tuple(
        observation
        for observation in select_consuming_fetches(observations)
        if observation.offer is not None
        and not observation.is_from_system
        and observation.digest is not None
        and server_tables.find_offer(store, observation.digest) is None
    )


def record_fetches(update: LedgerUpdate, new_fetches: Iterable[Fetch], commit: Commit) -> None:
    """Record new fetches, except requests from monitors.

    A mirror sends its files to every client and does not log server names, so a fetch from a mirror counts as served.
    An intent without an outcome is not evidence, but it consumes the boot. A mirror's log yields such an intent if the
    log does not show which client sent the request.
    """
    spec = commit.fleet.provisioning
    monitors = [ip_network(network) for network in spec.monitors]
    clients = [ip_network(network) for network in spec.clients]
    fetches = [
        _accept_known_client(fetch, clients)
        for fetch in new_fetches
        if not _is_from_monitor(fetch.observation, monitors)
    ]
    intended = [fetch for fetch in fetches if fetch.observation.is_open_intent]
    for fetch in intended:  # an intent counts as a fetch of the secret, because the secret may have been sent
        count_fetch(update, fetch.offer, fetch.observation)
    intents = {fetch.observation.intent for fetch in intended}
    fetches = drop_concluded_intents(fetches, lambda each: each.observation)
    _drop_overtaken_records(update, fetches)
    for fetch in fetches:
        observation = fetch.observation
        is_known = not observation.is_open_intent and observation.outcome is not Outcome.WITHHELD
        # An intent to serve an Always boot that writes to disk makes the content of the disks unknown.
        may_overwrite = fetch.offer.phase is Phase.MAINTENANCE and fetch.offer.writes_disk and not fetch.offer.once
        if is_known or (observation.is_open_intent and may_overwrite):
            _record_fetch(update, fetch, commit, spec.evidence)
            is_sent_by_mirror = not (observation.server or observation.is_open_intent or observation.reports_success)
            if observation.outcome is Outcome.SERVED or is_sent_by_mirror:
                drop_intents_of_served_boot(update, fetch.offer)
        elif _consumes_boot(fetch):
            record_intent(update, fetch.offer, observation, is_early=observation.intent not in intents)


def _drop_overtaken_records(update: LedgerUpdate, fetches: Iterable[Fetch]) -> None:
    """Drop the exported records that lack a boot which wrote the disk before an operator initialized the ledger.

    The fetch log contains such a boot if the instance ended before it had read the boot.
    """
    begun = update.facts.begun or _NEVER
    overtaken: dict[SystemUuid, str] = {}  # the names of servers by UUID
    for fetch in fetches:
        offer, observation, record = fetch.offer, fetch.observation, update.record(fetch.offer.uuid)
        if record is None or offer.number >= record.offered or not offer.writes_disk or offer.key == DISK_BOOT:
            continue
        if fetch.was_recorded or observation.outcome is Outcome.WITHHELD or find_non_script_kind(observation.path):
            continue
        has_boot = record.provision is not None or bool(record.attempts)
        known_until = (find_last_seen(record) or _NEVER) + (FETCH_GRACE if has_boot else timedelta())
        if known_until < observation.at <= begun:
            overtaken[offer.uuid] = offer.server
    why = "an endpoint served a boot that is not in the server's record, so gitboot does not know what is installed"
    drop_records(update, overtaken, why)


def _is_from_monitor(observation: Observation, monitors: Networks) -> bool:
    """Return whether a monitor sent the request.

    If a mirror served a boot to a boot loader, the result is always False.
    """
    is_boot_by_mirror = not observation.server and not observation.is_open_intent
    return not is_boot_by_mirror and _is_in_networks(observation.client, monitors)


def _accept_known_client(fetch: Fetch, clients: Networks) -> Fetch:
    """Turn a fetch from a mirror into evidence if the Fleet's `provisioning.clients` include the client's address."""
    observation = fetch.observation
    if observation.server or not observation.is_open_intent or not _is_in_networks(observation.client, clients):
        return fetch
    return structs.replace(fetch, observation=replace(observation, intent=None))


def _consumes_boot(fetch: Fetch) -> bool:
    """Return whether an intent consumes a boot.

    An endpoint's intents to serve user data and secrets do not consume it.
    """
    if fetch.observation.server:
        return fetch.observation.offer is not None
    return fetch.offer.once and fetch.offer.writes_disk


def _record_fetch(update: LedgerUpdate, fetch: Fetch, commit: Commit, kind: fleet.Evidence) -> None:
    """Record what a fetch proves. If the BMC must confirm the fetch first, add the fetch to the pending fetches."""
    offer, observation = fetch.offer, fetch.observation
    if offer.key == DISK_BOOT:
        record_disk_boot(update, offer, observation)
        return
    if observation.reports_success or observation.reports_failure:
        _record_report(update, fetch, kind)
        return
    if observation.intent is None:
        count_fetch(update, offer, observation)
    if not observation.is_evidence:
        return
    machine = commit.machines.get(offer.uuid)
    has_bmc = machine is not None and machine.bmc is not None
    asks_bmc = has_bmc and any(map(_is_open_one_time_override, update.overrides.list_records(offer.uuid)))
    if offer.phase is not Phase.MAINTENANCE:
        asks_bmc |= has_bmc and kind is fleet.Evidence.PROGRESS
        if not (asks_bmc and fetch.was_recorded):
            record_install_step(update, offer, observation)
        forget_earlier_fetches(update, offer)
    if not asks_bmc:
        _record_proof(update, offer, observation, kind)
    elif not fetch.was_recorded and not any(_is_duplicate(each, fetch) for each in update.list_pending(offer.uuid)):
        # The next task at the machine's BMC judges the fetch.
        update.add_pending_fetch(PendingObservation(update.last_observation_id + 1, observation, offer))


def _record_report(update: LedgerUpdate, fetch: Fetch, kind: fleet.Evidence) -> None:
    """Record an installer's report that the installation is complete or failed. An outdated report causes an event."""
    offer, observation = fetch.offer, fetch.observation
    before = update.record(offer.uuid)
    if kind is fleet.Evidence.REPORTED and offer.phase is not Phase.MAINTENANCE:
        if observation.reports_failure:
            record_install_step(update, offer, observation)
        else:
            record_provisioned(update, offer, observation.at, REPORTED)
    if update.record(offer.uuid) is before and not fetch.was_recorded and count_fetch(update, offer, observation):
        result = f"failed: {observation.log}" if observation.reports_failure else "completed"
        update.add_event(
            "ReportOutdated",
            f"{offer.server}: gitboot ignored an outdated report from an installer for {offer.key} "
            f"({offer.image}): {result}",
            warning=observation.reports_failure,
            server=offer.server,
            key=offer.key,
            log=observation.log,
        )


def _record_proof(update: LedgerUpdate, offer: Offer, observation: Observation, kind: fleet.Evidence) -> str:
    """Record what a fetch proves without a confirmation by the BMC. Return the verdict."""
    if offer.phase is Phase.MAINTENANCE:
        record_maintenance_boot(
            update,
            offer,
            StepEvidence(observation.at, observation.path, observation.client),
            FETCHED,
            is_started=observation.is_from_system,
        )
    elif kind is fleet.Evidence.FETCHED:
        complete_installation_if_proven(update, offer, FETCHED)
    else:
        return "Attempted"
    return "Provisioned"


def _is_duplicate(pending: PendingObservation, fetch: Fetch) -> bool:
    """Return whether an equal fetch (same path, same client) is already pending, so that one BMC task can judge both.

    Without this check, a client that keeps fetching a boot would fill the ledger until the BMC responds.
    """
    if pending.marks is not None:
        return pending.observation == fetch.observation
    before, now = pending.observation, fetch.observation
    return (before.path, before.client, pending.offer.plan) == (now.path, now.client, fetch.offer.plan)


def accept_fetches_without_task(update: LedgerUpdate, uuids: Iterable[SystemUuid], commit: Commit) -> None:
    """Accept the pending fetches of machines that have no BMC task, because gitboot has set no override."""
    kind = commit.fleet.provisioning.evidence
    for uuid in sorted(uuids):
        for pending in update.list_pending(uuid):
            update.conclude_pending_fetch(pending, _record_proof(update, pending.offer, pending.observation, kind))


# BMC task results


def awaits_progress(snapshot: LedgerSnapshot, state: ServerState, kind: fleet.Evidence) -> bool:
    """Return whether gitboot waits for the boot progress of a server that has probably booted the installer."""
    plan, uuid = state.plan, state.decision.uuid
    record = snapshot.stored_record(uuid)
    return (
        kind is fleet.Evidence.PROGRESS
        and plan is not None
        and plan.key is not None
        and record is not None
        and (record.consumed_key == plan.key or uuid in snapshot.pending)
    )


def apply_bmc_evidence(update: LedgerUpdate, bmc_evidence: BmcEvidence, kind: fleet.Evidence) -> bool:
    """Record the evidence from a BMC task. Return whether the task confirmed or ruled out a pending fetch."""
    is_judged, state = False, bmc_evidence.state
    _drop_impossible_intents(update, bmc_evidence)
    for pending in update.list_pending(bmc_evidence.uuid):
        if pending.id in bmc_evidence.pending_ids:
            is_judged |= _judge_fetch(update, pending, bmc_evidence, kind)
    if state is None:
        return is_judged
    if bmc_evidence.is_own_machine:
        _release_boot_if_off(update, state, bmc_evidence.observed)
    if not is_judged:
        _apply_consumed_override(update, state, bmc_evidence.decision_number)
    if kind is fleet.Evidence.PROGRESS:
        _apply_boot_progress(update, state, bmc_evidence)
    return is_judged


def _judge_fetch(
    update: LedgerUpdate, pending: PendingObservation, bmc_evidence: BmcEvidence, kind: fleet.Evidence
) -> bool:
    """Confirm or rule out a pending fetch. Return False if the BMC's observations are not sufficient."""
    observation, offer, observed = pending.observation, pending.offer, bmc_evidence.observed
    if any(
        _rules_out_fetch(record, observation.at, observed)
        for record in update.overrides.list_records(bmc_evidence.uuid)
    ):
        _report_ignored_fetch(update, offer.server, observation.path, observation.client)
        record_foreign_fetch(update, offer, observation)
        update.conclude_pending_fetch(pending, "Ignored")
    elif offer.phase is Phase.MAINTENANCE or kind is not fleet.Evidence.PROGRESS:
        if offer.phase is not Phase.MAINTENANCE:
            # Record the step again, because ruling out an earlier fetch may have removed it.
            record_install_step(update, offer, observation)
        update.conclude_pending_fetch(pending, _record_proof(update, offer, observation, kind))
    elif pending.marks is None:  # do not set a new override, which would install the machine again
        update.add_pending_fetch(pending._replace(marks=observed.marks))
        record_override_consumed(update, bmc_evidence.uuid, offer.server, offer.key, update.at)
    else:
        return False
    return True


def _drop_impossible_intents(update: LedgerUpdate, bmc_evidence: BmcEvidence) -> None:
    """Drop intents without an outcome if the client cannot be the machine, and offer the boot again."""
    record, state = update.record(bmc_evidence.uuid), bmc_evidence.state
    if record is None or state is None:
        return
    overrides = update.overrides.list_records(bmc_evidence.uuid)
    ruled_out = [
        serve
        for serve in record.unknown_serves
        if serve.intent in bmc_evidence.open_intents
        and any(_rules_out_fetch(override, serve.seen.at, bmc_evidence.observed) for override in overrides)
    ]
    if not ruled_out:
        return
    name = state.decision.server
    new_record = replace(
        record,
        unknown_serves=tuple(serve for serve in record.unknown_serves if serve not in ruled_out),
        taken_back=update.next_decision_number(),
    )
    update.write_record(bmc_evidence.uuid, name, new_record)
    for serve in ruled_out:
        _report_ignored_fetch(update, name, serve.seen.path, serve.seen.client)


def _report_ignored_fetch(update: LedgerUpdate, server: str, path: str, client: str) -> None:
    update.add_event(
        "FetchIgnored",
        f"{server}: ignored the fetch of {path} by {client}: the override is still set, so another client fetched "
        "this file",
        server=server,
        client=client,
    )


def _release_boot_if_off(update: LedgerUpdate, state: ServerState, observed: BmcObservation) -> None:
    """Record that a server is off, if its plan waits for that before an installation."""
    plan, policy, record = state.plan, state.decision.policy, update.record(state.decision.uuid)
    if (
        plan is None
        or plan.cause is not Cause.WAITING_FOR_POWER_OFF
        or policy is None
        or record is None
        or observed.power != "Off"
    ):
        return
    released = release_key(policy, record)
    if released != record.released:
        name = state.decision.server
        update.write_record(state.decision.uuid, name, replace(record, released=released))
        update.add_event("PoweredOff", f"{name} is off and will be provisioned at its next boot", server=name)


def _apply_consumed_override(update: LedgerUpdate, state: ServerState, number: int) -> None:
    """Record an override that was consumed without a fetch.

    If the image boots without fetches, a consumed override proves the boot. For any other image, an operator must look
    at the machine. An operator must also look at the machine if another instance set the override, or if DHCP names the
    boot loader, because such a boot loader would have fetched the boot script.
    """
    plan, uuid = state.plan, state.decision.uuid
    if plan is None or plan.boot is None or (offer := build_offer(state.decision, plan, state.record)) is None:
        return
    record = next((each for each in update.overrides.list_records(uuid) if each.reason == offer.key), None)
    if plan.phase is Phase.NETWORK and (record is None or record.state.is_unused):
        _apply_earlier_override(update, offer, identifies_machine=boot_identifies_machine(plan.boot))
    if record is None:
        return
    if record.state is OverrideState.SET_BY_ANOTHER:
        record_override_by_another(update, offer)
    if record.state not in (OverrideState.CONSUMED, OverrideState.LOST):
        return
    if (
        record.state is OverrideState.CONSUMED
        and not boot_identifies_machine(plan.boot)
        and not record.override.gets_loader_from_dhcp
    ):
        if plan.phase is Phase.NETWORK and not names_boot(record.override, plan.boot):
            # A commit changed the image since, so an operator must look at the machine.
            at = update.at - CONSUMED_GRACE
            record_override_consumed(update, uuid, state.decision.server, offer.key, at)
        else:
            record_boot_consumed(update, structs.replace(offer, number=number))
    elif plan.phase is Phase.NETWORK:
        record_override_consumed(update, uuid, state.decision.server, offer.key, update.at)


def _apply_earlier_override(update: LedgerUpdate, offer: Offer, *, identifies_machine: bool) -> None:
    """Record an override that was consumed for this installation before a commit changed the key of the installation.

    If the image boots without fetches, the machine may have booted it, so an operator must look at the machine.
    """
    if (record := update.usable_record(offer.uuid)) is None:
        return
    earlier = find_earlier_overrides(update.overrides.list_records(offer.uuid), offer.key, record)
    last = max((each for each in earlier if not each.state.is_open), key=lambda each: each.at, default=None)
    if last is not None:
        has_grace = identifies_machine and last.state is not OverrideState.SET_BY_ANOTHER
        at = update.at if has_grace else update.at - CONSUMED_GRACE
        record_override_consumed(update, offer.uuid, offer.server, last.reason, at)


def _apply_boot_progress(update: LedgerUpdate, state: ServerState, bmc_evidence: BmcEvidence) -> None:
    """Record a server as provisioned if its operating system is running and started late enough.

    The operating system must have started after the override was set or the boot was fetched.
    """
    plan, policy, uuid = state.plan, state.decision.policy, state.decision.uuid
    observed = bmc_evidence.observed
    if (
        plan is None
        or plan.key is None
        or policy is None
        or policy.boot is None
        or not observed.runs_os
        or (plan.phase is not Phase.NETWORK and plan.cause not in WAITING_CAUSES)
    ):
        return
    offer, record = build_offer(state.decision, plan, state.record), update.record(uuid)
    if offer is None or record is None or offer.boot < offer.boots:
        return
    if (last := find_last_attempt(offer, record)) is not None:  # a commit may have changed the image since
        offer = structs.replace(offer, image=find_attempt_image(last) or offer.image)
    marks_before_boot = [
        override.marks
        for override in update.overrides.list_records(uuid)
        if override.reason == plan.key
        and _was_consumed(override, observed, update.at)
        and (last is not None or names_boot(override.override, policy.boot))
    ]
    marks_before_boot += [
        pending.marks
        for pending in update.list_pending(uuid)
        if pending.marks is not None and pending.offer.key == plan.key
    ]
    if any(observed.marks.has_passed_post_since(marks) for marks in marks_before_boot):
        record_provisioned(update, structs.replace(offer, number=bmc_evidence.decision_number), update.at, PROGRESS)
        for pending in update.list_pending(uuid):
            update.conclude_pending_fetch(pending, "Provisioned")


def _was_consumed(record: OverrideRecord, observed: BmcObservation, at: datetime) -> bool:
    """Return whether a reset consumed an override. If the override was lost, the BMC may show the reset only later.

    A reset is not evidence if gitboot may have cleared the override without a record, because the machine may have
    booted something else.
    """
    return record.state is OverrideState.CONSUMED or (
        record.state is OverrideState.LOST
        and not record.may_be_cleared_unrecorded(at)
        and observed.marks.find_reset_since(record.marks) is ResetConclusion.SEEN
    )


def _rules_out_fetch(record: OverrideRecord, fetched_at: datetime, observed: BmcObservation) -> bool:
    """Return whether the state of an override shows that the machine cannot have sent a request.

    The request is ruled out if the override was set before the request and is still set, and if the machine was not
    reset in the meantime. If the machine was starting when the override was set, or if its resets are unknown, the
    machine may have booted from the network according to its own boot order.
    """
    return (
        _is_open_one_time_override(record)
        and record.at <= fetched_at
        and is_override_shown(record.override, observed)
        and add_known_clock(observed, record).find_reset_since(record.marks) is ResetConclusion.RULED_OUT
    )


def _is_open_one_time_override(record: OverrideRecord) -> bool:
    return record.state.is_open and record.override.enabled is OverrideEnabled.ONCE


def _is_in_networks(client: str, networks: Networks) -> bool:
    try:
        address = ip_address(client)
    except ValueError:  # the log does not contain the client's address
        return False
    return any(address in network for network in networks)


def count_fetch(update: LedgerUpdate, offer: Offer, observation: Observation) -> bool:
    """Count an outdated report or a fetch of a secret. Return whether the request came from a new address.

    All addresses beyond the first `MAX_ADDRESSES` count as one address. Each new address that fetches a secret causes
    an event. Fetches for an earlier installation are counted with the newest installation, because the paths may lead
    to the same secrets.
    """
    if offer.phase is Phase.MAINTENANCE or (secret := find_secret(observation.path)) is None:
        return False
    before = update.find_secret_fetches(offer.uuid)
    if before is None or _is_newer_installation(offer, before):
        before = InstallationFetches(key=_provision_key(offer), attempt=max(offer.attempt, 1), number=offer.number)
    fetches = before.secrets.get(secret, SecretFetches())
    address = get_client_network(observation.client)
    is_new = fetches.others is None and not before.has_fetched(address, secret)
    if is_new and not is_report(secret):
        _report_secret_fetch(update, offer, secret, observation.client, len(fetches.addresses))
    number = max(before.number, offer.number) if _provision_key(offer) == before.key else before.number
    new_fetches = fetches.add_fetch(address, observation.at, observation.times)
    update.set_secret_fetches(
        offer.uuid, structs.replace(before, number=number, secrets={**before.secrets, secret: new_fetches})
    )
    return is_new


def _report_secret_fetch(update: LedgerUpdate, offer: Offer, secret: str, client: str, earlier_addresses: int) -> None:
    """Report that a secret was fetched from a new address. From the second address on, the event is a warning."""
    message = f"{offer.server}: {client} fetched {describe_secret(secret)} for {_provision_key(offer)}"
    if earlier_addresses:
        addresses = "address has" if earlier_addresses == 1 else "addresses have"
        message += f"; {earlier_addresses} other {addresses} fetched it"
    if earlier_addresses >= MAX_ADDRESSES:
        message += ". For further addresses, gitboot only counts the fetches"
    update.add_event(
        "SecretFetched",
        message,
        warning=earlier_addresses > 0,
        server=offer.server,
        secret=secret,
        client=client,
        key=_provision_key(offer),
        addresses=earlier_addresses + 1,
    )


def forget_earlier_fetches(update: LedgerUpdate, offer: Offer) -> None:
    """Delete the fetch counts of earlier installations once the boot of a newer installation has been served."""
    before = update.find_secret_fetches(offer.uuid)
    if before is not None and offer.phase is not Phase.MAINTENANCE and _is_newer_installation(offer, before):
        update.set_secret_fetches(offer.uuid, None)


def confirm_secret_fetches(update: LedgerUpdate, uuid: SystemUuid, seen: Mapping[str, tuple[int, int]]) -> None:
    """Record that an operator confirmed the fetches of a server's secrets.

    ``seen`` contains the numbers of addresses and of fetches that the operator saw, by secret.
    """
    if (before := update.find_secret_fetches(uuid)) is None:
        return
    secrets = dict(before.secrets)
    for name in before.secrets.keys() & seen.keys():
        addresses, times = seen[name]
        secrets[name] = structs.replace(before.secrets[name], confirmed=(max(1, addresses), times))
    update.set_secret_fetches(uuid, structs.replace(before, secrets=secrets))


def _provision_key(offer: Offer) -> str:
    return offer.base or offer.key


def _is_newer_installation(offer: Offer, before: InstallationFetches) -> bool:
    """Return whether an offer belongs to a newer installation than the counted fetches.

    Attempt 0 stands for the last attempt.
    """
    return offer.attempt > before.attempt if _provision_key(offer) == before.key else offer.number > before.number
