"""Evidence that a boot was made: who fetched what, and whether the machine's BMC bears it out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address
from queue import SimpleQueue

from gitboot.bmc.override import Enabled, Marks, Observed, OverrideRecord, State, stands
from gitboot.errors import LedgerError
from gitboot.instance.journal import Journal
from gitboot.instance.offers import fetches, offer_of
from gitboot.instance.provisioning import Provisioning
from gitboot.ledger import Ledger, Pending
from gitboot.model import fleet
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.observe.observation import Observation
from gitboot.plan import Cause, Offer, Phase
from gitboot.render.schedule import ServerState

Networks = Iterable[IPv4Network | IPv6Network]


class Evidence:
    """What was seen of machines' boots, until it is known what it proves."""

    def __init__(self, ledger: Ledger, provisioning: Provisioning, journal: Journal) -> None:
        self._ledger, self._provisioning, self._journal = ledger, provisioning, journal
        self._versions: dict[str, Digest] = {}  # whose plan each entry is of, as it was published last
        self._expected: dict[str, Digest] = {}  # and is to be published next
        self.observations: SimpleQueue[Observation] = SimpleQueue()  # filled by the endpoint's threads
        self._pending: dict[SystemUuid, list[Pending]] = {}  # to be judged by a reading of the BMC
        self._judging: dict[SystemUuid, tuple[Pending, ...]] = {}  # from when the BMC was asked until it has answered
        self._asked: set[int] = set()  # pending observations for which the BMC was asked at least once
        for pending in ledger.pending():
            if (offer := self._offered(pending.observation)) is not None:
                self._pending.setdefault(offer.uuid, []).append(pending)

    # Fetches

    def expect(self, plans: Mapping[str, Digest], dated: Callable[[str], int]) -> None:
        """Note whose plan each entry is of that is about to be published, and what it will be dated.

        An access log is read later, perhaps much later, and has only the date of what was sent. What was not
        published after all has another date when it is, and is noted once more.
        """
        self._expected = dict(plans)
        if fresh := [(path, dated(path), plan) for path, plan in plans.items() if self._versions.get(path) != plan]:
            self._ledger.note_versions(fresh)

    def published(self) -> None:
        """Take what was expected as published."""
        self._versions = self._expected

    def take(
        self, kind: fleet.Evidence, monitors: Networks, has_bmc: Callable[[SystemUuid], bool], at: datetime
    ) -> None:
        """Take in what was fetched since the last time; ``kind`` is what the Fleet takes for proof."""
        while not self.observations.empty():
            observation = self.observations.get()
            if _is_in(observation.client, monitors):
                continue
            try:
                self._take(observation, kind, has_bmc, at)
            except LedgerError:
                self.observations.put(observation)  # it is evidence at the next pass, too
                raise

    def _take(
        self, observation: Observation, kind: fleet.Evidence, has_bmc: Callable[[SystemUuid], bool], at: datetime
    ) -> None:
        if (offer := self._offered(observation)) is None:
            return
        if observation.is_report:
            if kind is fleet.Evidence.REPORTED and offer.phase is not Phase.MAINTENANCE:
                self._provisioning.record_boot(offer, observation.at, "Reported", at)
        elif offer.phase is Phase.MAINTENANCE or kind is fleet.Evidence.FETCHED:
            if has_bmc(offer.uuid) and any(map(_is_set_once, self._ledger.overrides(offer.uuid))):
                self._keep(observation, offer)
            else:
                self._provisioning.record_boot(offer, observation.at, "Fetched", at)
        elif kind is fleet.Evidence.PROGRESS and has_bmc(offer.uuid):
            self._keep(observation, offer)

    def _keep(self, observation: Observation, offer: Offer) -> None:
        """Note it, durably, until the machine's BMC was read."""
        pending = self._ledger.observe(observation, offer.plan)
        if pending is None:
            return  # a spool that is read once more
        kept = self._pending.setdefault(offer.uuid, [])
        if all(each.id != pending.id for each in kept):
            kept.append(pending)

    def _offered(self, observation: Observation) -> Offer | None:
        digest = observation.digest
        if digest is None and observation.modified is not None:
            digest = self._ledger.version(observation.path, observation.modified)
        return self._provisioning.offered(digest) if digest is not None else None

    # Readings of a BMC

    def wants_reading(self, uuid: SystemUuid) -> bool:
        """Whether a fetch waits for its BMC to be read, before anything is set there."""
        return any(pending.marks is None for pending in self._pending.get(uuid, ()))

    def is_new(self, uuid: SystemUuid) -> bool:
        """Whether something was fetched since the BMC was asked last."""
        return any(pending.id not in self._asked for pending in self._pending.get(uuid, ()))

    def awaits_progress(self, state: ServerState, kind: fleet.Evidence) -> bool:
        """Whether only the BMC can tell when the machine has come up."""
        plan, record = state.plan, self._provisioning.recorded(state.decision.uuid)
        if kind is not fleet.Evidence.PROGRESS or plan is None or plan.key is None or record is None:
            return False
        return record.consumed_key == plan.key or state.decision.uuid in self._pending

    def asked(self, uuid: SystemUuid) -> None:
        """Note that the BMC is being read: what was fetched before can be judged by it."""
        if uuid in self._pending:
            self._judging[uuid] = tuple(self._pending[uuid])
            self._asked.update(pending.id for pending in self._pending[uuid])

    def uncontradicted(self, asked: Collection[SystemUuid], kind: fleet.Evidence, at: datetime) -> None:
        """Believe fetches by machines whose BMCs nobody asks any more: nothing of gitboot's stands there."""
        for uuid in sorted(self._pending.keys() - asked):
            for pending in tuple(self._pending[uuid]):
                offer = self._offered(pending.observation)
                believed = offer is not None and (offer.phase is Phase.MAINTENANCE or kind is fleet.Evidence.FETCHED)
                if offer is not None and believed:
                    self._provisioning.record_boot(offer, pending.observation.at, "Fetched", at)
                self._settle(uuid, pending, "Provisioned" if believed else "Dropped")
            self._judging.pop(uuid, None)

    def judge(
        self, uuid: SystemUuid, state: ServerState | None, seen: Observed, kind: fleet.Evidence, at: datetime
    ) -> bool:
        """Tell what a reading proves; return whether a fetch was judged by it.

        ``state`` is None for a machine that has left the fleet: what it fetched before that still counts.
        """
        records = self._ledger.overrides(uuid)
        judged = False
        for pending in self._judging.get(uuid, ()):
            judged |= self._judge(pending, uuid, seen, records, kind, at)
        self._judging.pop(uuid, None)
        if state is not None and not judged:
            self._judge_consumed(state, records, at)
        if state is not None and kind is fleet.Evidence.PROGRESS:
            self._judge_progress(state, seen, records, at)
        return judged

    def _judge(
        self,
        pending: Pending,
        uuid: SystemUuid,
        seen: Observed,
        records: tuple[OverrideRecord, ...],
        kind: fleet.Evidence,
        at: datetime,
    ) -> bool:
        observation = pending.observation
        client, offer = observation.client, self._offered(observation)
        if offer is None:
            self._settle(uuid, pending, "Unknown")
        elif any(_stood(record, observation) and stands(record.override, seen) for record in records):
            message = f"{offer.server}: {client} fetched its entry, but the override still stands: another client"
            self._journal.event(at, "FetchIgnored", message, {"server": offer.server, "client": client})
            self._settle(uuid, pending, "Ignored")
        elif offer.phase is Phase.MAINTENANCE or kind is fleet.Evidence.FETCHED:
            self._provisioning.record_boot(offer, observation.at, "Fetched", at)
            self._settle(uuid, pending, "Provisioned")
        elif pending.marks is None:
            marked = self._ledger.note_marks(pending, seen.marks)
            self._pending[uuid] = [marked if each.id == pending.id else each for each in self._pending[uuid]]
            if kind is fleet.Evidence.PROGRESS:  # it is being installed: set now, it would be once more
                self._provisioning.consumed(uuid, offer.server, offer.key, at)
        else:
            return False
        return True

    def _settle(self, uuid: SystemUuid, pending: Pending, verdict: str) -> None:
        self._ledger.judge(pending, verdict)
        self._asked.discard(pending.id)
        left = [each for each in self._pending.get(uuid, ()) if each.id != pending.id]
        if left:
            self._pending[uuid] = left
        else:
            self._pending.pop(uuid, None)

    def _judge_consumed(self, state: ServerState, records: tuple[OverrideRecord, ...], at: datetime) -> None:
        """An override was consumed without a fetch: proof for what fetches nothing, else a reason to look."""
        plan = state.plan
        if plan is None or plan.boot is None or plan.key is None:
            return
        own = next((each for each in records if each.reason == plan.key), None)
        if own is None or own.state not in (State.CONSUMED, State.LOST):
            return
        offer = offer_of(state.decision, plan)
        if own.state is State.CONSUMED and not fetches(plan.boot) and offer is not None:
            self._provisioning.record_boot(offer, at, "Consumed", at)
        elif plan.phase is Phase.NETWORK:
            self._provisioning.consumed(state.decision.uuid, state.decision.server, plan.key, at)

    def _judge_progress(
        self, state: ServerState, seen: Observed, records: tuple[OverrideRecord, ...], at: datetime
    ) -> None:
        """The machine runs its system, and has come up since the boot was set or fetched."""
        plan, uuid = state.plan, state.decision.uuid
        if plan is None or plan.key is None or not seen.runs_os:
            return
        if plan.phase is not Phase.NETWORK and plan.cause is not Cause.CONSUMED:
            return
        before = [
            each.marks for each in records if each.reason == plan.key and each.state in (State.CONSUMED, State.LOST)
        ]
        before += [each.marks for each in self._pending.get(uuid, ()) if each.marks is not None]
        offer = offer_of(state.decision, plan)
        if offer is not None and any(_has_come_up(marks, seen.marks) for marks in before):
            self._provisioning.record_boot(offer, at, "Progress", at)
            for pending in tuple(self._pending.get(uuid, ())):
                self._settle(uuid, pending, "Provisioned")


def _has_come_up(before: Marks, now: Marks) -> bool:
    return now.boot_progress_time is not None and now.boot_progress_time != before.boot_progress_time


def _stood(record: OverrideRecord, observation: Observation) -> bool:
    """Whether an override was set before the fetch, which cannot have consumed a later one."""
    return _is_set_once(record) and record.at <= observation.at


def _is_set_once(record: OverrideRecord) -> bool:
    return record.state.is_open and record.override.enabled is Enabled.ONCE


def _is_in(client: str, networks: Networks) -> bool:
    try:
        address = ip_address(client)
    except ValueError:  # a client whose address nobody knows
        return False
    return any(address in network for network in networks)
