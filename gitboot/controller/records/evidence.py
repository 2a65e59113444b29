"""Evidence of boots: which fetches and BMC observations show that a boot was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from msgspec import Struct, structs

from gitboot.bmc.override_state import Observed, OverrideRecord, State
from gitboot.bmc.override_steps import marks_beside, stands
from gitboot.bmc.reboot_detection import Reset
from gitboot.controller.records.install_boots import DISK_BOOT, fetches, offer_of
from gitboot.controller.records.ledger_snapshot import Fetch, Knowledge, Learning
from gitboot.controller.records.provisioning import (
    complete,
    leave_to_another,
    note_consumed,
    record_boot,
    record_consumed,
    record_disk_boot,
    record_intent,
    record_run,
    record_served,
    record_step,
    record_taken_back,
)
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog.log_entries import Observation, Outcome, network_of, with_outcomes
from gitboot.fetchlog.one_time_boots import (
    MOST_ADDRESSES,
    InstallationFetches,
    SecretFetches,
    described,
    is_report,
    secret_of,
)
from gitboot.ledger.server_tables import Pending
from gitboot.model import fleet
from gitboot.model.scalars import SystemUuid, parse_uuid
from gitboot.render.server_files import ServerState
from gitboot.resolve.plan_at_time import wanted_release
from gitboot.resolve.provisioning_record import Seen
from gitboot.resolve.server_decision import OverrideEnabled
from gitboot.resolve.server_plan import WAITING, Cause, Offer, Phase

Networks = Iterable[IPv4Network | IPv6Network]


class Reading(Struct, frozen=True, kw_only=True):
    """What a BMC has shown, and which observations it was asked for."""

    uuid: SystemUuid
    state: ServerState | None  # None: its machine has left the fleet; what it fetched before that still counts
    observed: Observed
    judges: frozenset[int]
    intents: frozenset[str] = frozenset()  # whose outcome was unknown when it was asked for
    number: int = 0  # of the newest decision when it was asked for
    is_own: bool = True  # whether it shows no other machine


# Fetches


def take(learning: Learning, fetched: Iterable[Fetch], commit: Commit) -> None:
    """Take in what was fetched since the last time, but for what monitors asked for.

    A mirror, which knows no server's name, has sent what it has to whoever asked: it was given. An intent without an
    outcome is no evidence, and uses its boot up. The log of a mirror has such an intent if it does not show who asked.
    """
    spec = commit.fleet.provisioning
    monitors, clients = (list(map(ip_network, networks)) for networks in (spec.monitors, spec.clients))
    here = [_by_a_named_client(each, clients) for each in fetched if not _is_by_a_monitor(each.observation, monitors)]
    intended = [fetch for fetch in here if fetch.observation.is_open_intent]
    for fetch in intended:  # the fetch of a secret counts by this line: the secret may be out
        note_fetch(learning, fetch.offer, fetch.observation)
    ids = {fetch.observation.intent for fetch in intended}
    for fetch in with_outcomes(here, lambda each: each.observation):
        observation = fetch.observation
        is_known = not observation.is_open_intent and observation.outcome is not Outcome.WITHHELD
        # A boot that is served at each request and writes disks leaves them unknown, perhaps served or surely.
        may_overwrite = fetch.offer.phase is Phase.MAINTENANCE and fetch.offer.writes_disk and not fetch.offer.once
        if is_known or (observation.is_open_intent and may_overwrite):
            _take(learning, fetch, commit, spec.evidence)
            is_sent_by_mirror = not (observation.server or observation.is_open_intent or observation.is_report)
            if observation.outcome is Outcome.SERVED or is_sent_by_mirror:
                record_served(learning, fetch.offer)
        elif _uses_up(fetch):
            record_intent(learning, fetch.offer, observation, is_early=observation.intent not in ids)


def _is_by_a_monitor(observation: Observation, monitors: Networks) -> bool:
    """Return whether a monitor asked, and not a machine. What a mirror sent to a loader there counts all the same."""
    is_boot_by_mirror = not observation.server and not observation.is_open_intent
    return not is_boot_by_mirror and _is_in(observation.client, monitors)


def _by_a_named_client(fetch: Fetch, clients: Networks) -> Fetch:
    """Return a fetch from a mirror as evidence if the Fleet names its client as a machine, whatever it sends."""
    observation = fetch.observation
    if observation.server or not observation.is_open_intent or not _is_in(observation.client, clients):
        return fetch
    return structs.replace(fetch, observation=replace(observation, intent=None))


def _uses_up(fetch: Fetch) -> bool:
    """Return whether an intent uses a boot up. Intents of an endpoint for user data and secrets name no offer."""
    if fetch.observation.server:
        return fetch.observation.offer is not None
    return fetch.offer.once and fetch.offer.writes_disk


def _take(learning: Learning, fetch: Fetch, commit: Commit, kind: fleet.Evidence) -> None:
    offer, observation = fetch.offer, fetch.observation
    if offer.key == DISK_BOOT:
        record_disk_boot(learning, offer, observation)
        return
    machine = commit.machines.get(offer.uuid)
    has_bmc = machine is not None and machine.bmc is not None
    if observation.is_report or observation.is_failure:
        before = learning.record(offer.uuid)
        if kind is fleet.Evidence.REPORTED and offer.phase is not Phase.MAINTENANCE:
            if observation.is_failure:
                record_step(learning, offer, observation)
            else:
                record_boot(learning, offer, observation.at, "Reported")
        is_overtaken = learning.record(offer.uuid) is before and not fetch.noted
        if is_overtaken and note_fetch(learning, offer, observation):
            said = f"has failed: {observation.log}" if observation.is_failure else "is done"
            by = f"an installer of {offer.key} ({offer.image})"
            learning.tell(
                "ReportOutdated",
                f"{offer.server}: {by} says that it {said}; nothing follows",
                warning=observation.is_failure,
                server=offer.server,
                key=offer.key,
                log=observation.log,
            )
        return
    if observation.intent is None:
        note_fetch(learning, offer, observation)
    if not observation.is_evidence:
        return
    asks_bmc = has_bmc and any(map(_is_set_once, learning.overrides.of(offer.uuid)))
    if offer.phase is not Phase.MAINTENANCE:
        asks_bmc |= has_bmc and kind is fleet.Evidence.PROGRESS
        if not (asks_bmc and fetch.noted):
            record_step(learning, offer, observation)
        begin_installation(learning, offer)
    if not asks_bmc:
        _prove(learning, offer, observation, kind)
    elif not fetch.noted and not any(_waits_alike(each, fetch) for each in learning.pending_of(offer.uuid)):
        learning.note(Pending(learning.noted + 1, observation, offer))  # it is kept until the machine's BMC was read


def _prove(learning: Learning, offer: Offer, observation: Observation, kind: fleet.Evidence) -> str:
    """Take a fetch for what it proves of a machine that speaks for itself; return that in a word."""
    if offer.phase is Phase.MAINTENANCE:
        seen = Seen(observation.at, observation.path, observation.client)
        record_run(learning, offer, seen, "Fetched", starts=observation.is_start)
    elif kind is fleet.Evidence.FETCHED:
        complete(learning, offer, "Fetched")
    else:
        return "Attempted"
    return "Provisioned"


def _waits_alike(pending: Pending, fetch: Fetch) -> bool:
    """Whether the same was fetched before by the same client: the next reading judges both, or neither was the machine.

    A client that fetches a boot all the time would else fill the ledger until its BMC answers.
    """
    if pending.marks is not None:
        return pending.observation == fetch.observation
    before, now = pending.observation, fetch.observation
    return (before.path, before.client, pending.offer.plan) == (now.path, now.client, fetch.offer.plan)


def trust_unasked(learning: Learning, unasked: Iterable[SystemUuid], commit: Commit) -> None:
    """Take the word of machines whose BMCs nobody asks any more: nothing of gitboot's stands there."""
    kind = commit.fleet.provisioning.evidence
    for uuid in sorted(unasked):
        for pending in learning.pending_of(uuid):
            learning.judge(pending, _prove(learning, pending.offer, pending.observation, kind))


# Readings of a BMC


def awaits_progress(knowledge: Knowledge, state: ServerState, kind: fleet.Evidence) -> bool:
    plan, uuid = state.plan, state.decision.uuid
    record = knowledge.recorded(uuid)
    if kind is not fleet.Evidence.PROGRESS or plan is None or plan.key is None or record is None:
        return False
    return record.consumed_key == plan.key or uuid in knowledge.pending


def judge(learning: Learning, reading: Reading, kind: fleet.Evidence) -> bool:
    """Note what a reading proves; return whether a fetch was judged by it."""
    judged = False
    _rule_out_serves(learning, reading)
    for pending in learning.pending_of(reading.uuid):
        if pending.id in reading.judges:
            judged |= _judge(learning, pending, reading, kind)
    if reading.state is not None and reading.is_own:
        _judge_off(learning, reading.state, reading.observed)
    if reading.state is not None and not judged:
        _judge_consumed(learning, reading.state, reading.number)
    if reading.state is not None and kind is fleet.Evidence.PROGRESS:
        _judge_progress(learning, reading.state, reading)
    return judged


def _judge(learning: Learning, pending: Pending, reading: Reading, kind: fleet.Evidence) -> bool:
    observation, offer, seen = pending.observation, pending.offer, reading.observed
    records = learning.overrides.of(reading.uuid)
    if any(_rules_out(record, observation.at, seen) for record in records):
        _tell_ignored(learning, offer.server, observation.path, observation.client)
        record_taken_back(learning, offer, observation)
        learning.judge(pending, "Ignored")
    elif offer.phase is Phase.MAINTENANCE or kind is not fleet.Evidence.PROGRESS:
        if offer.phase is not Phase.MAINTENANCE:  # an earlier fetch may have been taken back, and it with that
            record_step(learning, offer, observation)
        learning.judge(pending, _prove(learning, offer, observation, kind))
    elif pending.marks is None:  # it is being installed: set now, it would be once more
        learning.note(pending._replace(marks=seen.marks))
        note_consumed(learning, reading.uuid, offer.server, offer.key, learning.at)
    else:
        return False
    return True


def _rule_out_serves(learning: Learning, reading: Reading) -> None:
    """Drop the intents without an outcome by clients that cannot be the machine, and offer its boot anew."""
    record, state = learning.record(reading.uuid), reading.state
    if record is None or state is None:
        return
    overrides = learning.overrides.of(reading.uuid)
    ruled_out = [
        each
        for each in record.unknown_serves
        if each.intent in reading.intents and any(_rules_out(its, each.seen.at, reading.observed) for its in overrides)
    ]
    if not ruled_out:
        return
    kept = tuple(each for each in record.unknown_serves if each not in ruled_out)
    name, number = state.decision.server, learning.decide()
    learning.write_record(reading.uuid, name, replace(record, unknown_serves=kept, taken_back=number))
    for each in ruled_out:
        _tell_ignored(learning, name, each.seen.path, each.seen.client)


def _tell_ignored(learning: Learning, server: str, path: str, client: str) -> None:
    message = f"{server}: {client} fetched {path}, but the override still stands: another client"
    learning.tell("FetchIgnored", message, server=server, client=client)


def _judge_off(learning: Learning, state: ServerState, seen: Observed) -> None:
    """The machine is off: what waits for that is offered from now on."""
    plan, policy, record = state.plan, state.decision.policy, learning.record(state.decision.uuid)
    if plan is None or plan.cause is not Cause.RUNS or policy is None or record is None or seen.power != "Off":
        return
    released = wanted_release(policy, record)
    if released != record.released:
        name = state.decision.server
        learning.write_record(state.decision.uuid, name, replace(record, released=released))
        learning.tell("PoweredOff", f"{name} is off: it is provisioned at its next boot", server=name)


def _judge_consumed(learning: Learning, state: ServerState, number: int) -> None:
    """An override was consumed without a fetch: proof for what fetches nothing, else a reason to look.

    Where DHCP names the loader, that would have asked for the machine's entry. What another instance has set is that
    one's to give: nothing is given here until a person has looked.
    """
    plan, uuid = state.plan, state.decision.uuid
    if plan is None or plan.boot is None or (offer := offer_of(state.decision, plan, state.record)) is None:
        return
    own = next((each for each in learning.overrides.of(uuid) if each.reason == offer.key), None)
    if own is not None and own.state is State.SET_BY_ANOTHER:
        leave_to_another(learning, offer)
    if own is None or own.state not in (State.CONSUMED, State.LOST):
        return
    if own.state is State.CONSUMED and not fetches(plan.boot) and not own.override.leaves_it_to_dhcp:
        record_consumed(learning, structs.replace(offer, number=number))
    elif plan.phase is Phase.NETWORK:
        note_consumed(learning, uuid, state.decision.server, offer.key, learning.at)


def _judge_progress(learning: Learning, state: ServerState, reading: Reading) -> None:
    """The machine runs its system, and has come up since the boot was set or fetched."""
    plan, uuid, seen = state.plan, state.decision.uuid, reading.observed
    if plan is None or plan.key is None or not seen.runs_os:
        return
    if plan.phase is not Phase.NETWORK and plan.cause not in WAITING:
        return
    own = [each for each in learning.overrides.of(uuid) if each.reason == plan.key]
    before = [each.marks for each in own if _was_consumed(each, seen, learning.at)]
    before += [each.marks for each in learning.pending_of(uuid) if each.marks is not None]
    offer = offer_of(state.decision, plan, state.record)
    if offer is None or offer.boot < offer.boots:
        return
    if any(seen.marks.has_come_up_since(marks) for marks in before):
        record_boot(learning, structs.replace(offer, number=reading.number), learning.at, "Progress")
        for pending in learning.pending_of(uuid):
            learning.judge(pending, "Provisioned")


def _was_consumed(record: OverrideRecord, seen: Observed, at: datetime) -> bool:
    """Whether a reset has consumed an override; of one that is lost, its BMC may prove it later.

    Not if gitboot may have cleared it without a record of that: the reset booted something else then.
    """
    lost = record.state is State.LOST and not record.may_be_cleared_unrecorded(at)
    return record.state is State.CONSUMED or (lost and seen.marks.reset_since(record.marks) is Reset.SEEN)


def _rules_out(record: OverrideRecord, fetched_at: datetime, seen: Observed) -> bool:
    """Whether the machine cannot have fetched something: its override was set before, stands, and it did not reset.

    A machine that was coming up when it was set, or of which no reset is known, may have booted from the network by its
    own boot order, past the override.
    """
    was_before = _is_set_once(record) and record.at <= fetched_at
    has_not_reset = marks_beside(seen, record).reset_since(record.marks) is Reset.RULED_OUT
    return was_before and stands(record.override, seen) and has_not_reset


def _is_set_once(record: OverrideRecord) -> bool:
    return record.state.is_open and record.override.enabled is OverrideEnabled.ONCE


def _is_in(client: str, networks: Networks) -> bool:
    try:
        address = ip_address(client)
    except ValueError:  # a client whose address nobody knows
        return False
    return any(address in network for network in networks)


def note_fetch(learning: Learning, offer: Offer, observation: Observation) -> bool:
    """Count a fetch of a secret, or a report that changes nothing, in its installation; return whether it is new there.

    A fetch is new if its address is. All addresses beyond `MOST_ADDRESSES` are new once together. A secret that a new
    address fetched is an event. What was offered for an earlier installation counts in the newest one: its paths may
    lead to the same secrets.
    """
    if offer.phase is Phase.MAINTENANCE or (secret := secret_of(observation.path)) is None:
        return False
    before = learning.secret_fetches_of(offer.uuid)
    if before is None or _is_newer(offer, before):
        before = InstallationFetches(key=_key(offer), attempt=max(offer.attempt, 1), number=offer.number)
    fetches, address = before.secrets.get(secret, SecretFetches()), network_of(observation.client)
    is_new = fetches.others is None and not before.has_fetched(address, secret)
    if is_new and not is_report(secret):
        number, client = len(fetches.addresses) + 1, observation.client
        others = f"{number - 1} other {'address has' if number == 2 else 'addresses have'} fetched it"
        which = f"; {others}" if number > 1 else ""
        if number > MOST_ADDRESSES:
            which += ". Fetches by further addresses are only counted"
        learning.tell(
            "SecretFetched",
            f"{offer.server}: {client} fetched {described(secret)} for {_key(offer)}{which}",
            warning=number > 1,
            server=offer.server,
            secret=secret,
            client=client,
            key=_key(offer),
            addresses=number,
        )
    now = fetches.fetched(address, observation.at, observation.times)
    number = max(before.number, offer.number) if _key(offer) == before.key else before.number
    learning.note_secret_fetches(
        offer.uuid, structs.replace(before, number=number, secrets={**before.secrets, secret: now})
    )
    return is_new


def begin_installation(learning: Learning, offer: Offer) -> None:
    """Forget the fetches of earlier installations where the boot of a newer one was served."""
    before = learning.secret_fetches_of(offer.uuid)
    if before is not None and offer.phase is not Phase.MAINTENANCE and _is_newer(offer, before):
        learning.note_secret_fetches(offer.uuid, None)


def confirm_fetches(learning: Learning, items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Take a person's word that the fetches that they saw were right; return the names of the servers.

    Raises `UsageError` for a server without fetches.
    """
    names = []
    for item in items:
        uuid = SystemUuid(parse_uuid(item["uuid"]))
        if (before := learning.secret_fetches_of(uuid)) is None:
            raise UsageError(f"no fetch of a secret of {item['server']} is recorded")
        secrets = {
            name: structs.replace(each, confirmed=(max(1, seen[0]), seen[1]))
            if (seen := item["seen"].get(name))
            else each
            for name, each in before.secrets.items()
        }
        learning.note_secret_fetches(uuid, structs.replace(before, secrets=secrets))
        names.append(str(item["server"]))
    return names


def _key(offer: Offer) -> str:
    return offer.base or offer.key


def _is_newer(offer: Offer, before: InstallationFetches) -> bool:
    """Return whether an offer is of a newer installation. Attempt 0 is whichever was made last."""
    if _key(offer) == before.key:
        return offer.attempt > before.attempt
    return offer.number > before.number
