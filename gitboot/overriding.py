"""Overrides after publication: which BMC is asked for what, when, and what its answers prove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from queue import SimpleQueue
from typing import Final

from gitboot.answers import ServerState
from gitboot.bmc.apply import Fleet, Job, Outcome, Result
from gitboot.errors import LedgerError
from gitboot.journal import Journal
from gitboot.ledger import Ledger
from gitboot.load import FleetRepository
from gitboot.model.image import ConfigFrom
from gitboot.model.server import Bmc, Firmware
from gitboot.override import Armed, Enabled, Override, State, Target, Wanted, stands
from gitboot.plan import BootPlan, Phase
from gitboot.provisioning import Offer, Provisioning
from gitboot.report import Observation

ARMED_READ_EVERY: Final = timedelta(seconds=30)  # how often a BMC with an armed override is read
FIRST_RETRY: Final = timedelta(seconds=5)
LONGEST_RETRY: Final = timedelta(minutes=10)


@dataclass(slots=True)
class _Schedule:
    """When a server's BMC is asked again."""

    due: datetime
    wanted: Wanted | None = None  # what it was asked for last
    failures: int = 0


class Overriding:
    """Brings every BMC to what its server's plan wants, each in its own time."""

    def __init__(self, bmcs: Fleet, ledger: Ledger, provisioning: Provisioning, journal: Journal) -> None:
        self._bmcs, self._ledger, self._provisioning, self._journal = bmcs, ledger, provisioning, journal
        self.observations: SimpleQueue[Observation] = SimpleQueue()  # filled by the endpoint's threads
        self._fetched: dict[str, Observation] = {}  # by server, until its BMC is asked
        self._judging: dict[str, Observation] = {}  # by server, from when its BMC was asked until it has answered
        self._schedules: dict[str, _Schedule] = {}
        self._asked: Mapping[str, ServerState] = {}
        self.would: dict[str, str] = {}  # by server, what a dry run would do

    @property
    def next_due(self) -> datetime | None:
        """When the next BMC is asked without anything else having happened."""
        return min((schedule.due for schedule in self._schedules.values()), default=None)

    def ask(
        self,
        repository: FleetRepository,
        servers: Mapping[str, ServerState],
        at: datetime,
        *,
        may_arm: bool = True,
    ) -> None:
        """Begin a job for every BMC that is due, or whose server wants something else than before.

        Without ``may_arm`` nothing new is armed; what is no longer wanted is withdrawn all the same.
        """
        due = self.next_due
        if may_arm and servers is self._asked and not self._fetched and (due is None or at < due):
            return
        self._asked = servers if may_arm else {}
        jobs = []
        idle = set(self._schedules)
        for name, state in servers.items():
            bmc = repository.servers[name].spec.bmc
            wanted = _wanted(state.plan)
            records = self._ledger.armed(state.decision.uuid)
            if not may_arm and not any(record.state.is_open and _is_for(record, wanted) for record in records):
                wanted = None
            if bmc is None or (wanted is None and not any(record.state.is_open for record in records)):
                continue
            idle.discard(name)
            schedule = self._schedules.setdefault(name, _Schedule(due=at))
            if at < schedule.due and schedule.wanted == wanted and name not in self._fetched:
                continue
            schedule.wanted, schedule.due = wanted, at + ARMED_READ_EVERY
            jobs.append(replace(_job(repository, state, bmc, wanted, records), only_read=name in self._fetched))
        for name in idle:  # among them servers that have left the fleet
            del self._schedules[name]
            self._fetched.pop(name, None)
            self._journal.forget(f"Bmc/{name}")
        for name in self._bmcs.submit(jobs) & self._fetched.keys():
            self._judging[name] = self._fetched.pop(name)

    def collect(
        self,
        repository: FleetRepository,
        servers: Mapping[str, ServerState],
        at: datetime,
        *,
        wait: bool = False,
    ) -> None:
        """Take in what came of the jobs that have ended, and completed fetches of entries."""
        for name, result in self._bmcs.finished(wait_all=wait).items():
            self._note(result, at)
            self.would[name] = result.message
            self._reschedule(name, result, at)
            if (state := servers.get(name)) is not None:
                self._judge(state, result, at)
        monitors = [ip_network(network) for network in repository.fleet.spec.provisioning.monitors]
        while not self.observations.empty():
            observation = self.observations.get()
            if _is_in(observation.client, monitors):
                continue
            try:
                self._observed(repository, observation, at)
            except LedgerError:
                self.observations.put(observation)  # it is evidence at the next pass, too
                raise

    def _reschedule(self, name: str, result: Result, at: datetime) -> None:
        if (schedule := self._schedules.get(name)) is None:
            return
        match result.outcome:
            case Outcome.WAITING:
                schedule.due = at + min(FIRST_RETRY * 2**schedule.failures, LONGEST_RETRY)
                schedule.failures = min(schedule.failures + 1, 10)
            case Outcome.STALLED:  # asked often, a BMC that refuses a password locks its account
                schedule.due = at + LONGEST_RETRY
            case _:
                schedule.failures = 0

    def _note(self, result: Result, at: datetime) -> None:
        name = result.server
        for record in {record.reason: record for record in result.wrote}.values():  # as each was left
            self._journal.event(
                at,
                f"Override{record.state}",
                f"{name}: {_text(record)} is {record.state.lower()}",
                {"server": name, "reason": record.reason, "plan": record.plan_digest},
            )
        type = f"Bmc/{name}"
        if result.outcome in (Outcome.UNCHANGED, Outcome.APPLIED) or name not in self._schedules:
            self._journal.forget(type)
        elif self._journal.condition(type, False, result.outcome, result.message, at):
            message = f"{name}: {result.message}"
            self._journal.event(at, f"Override{result.outcome}", message, {"server": name}, warning=True)

    # Evidence. A fetch proves the machine's boot only if its BMC, read after it, shows the override spent.

    def _observed(self, repository: FleetRepository, observation: Observation, at: datetime) -> None:
        offer = self._provisioning.offered(observation.digest)
        if offer is None:
            return
        server = repository.servers.get(observation.server)
        armed = any(_is_armed_once(record) for record in self._ledger.armed(offer.decision.uuid))
        if armed and server is not None and server.spec.bmc is not None:
            self._fetched[observation.server] = observation
        else:
            self._provisioning.meet(offer, observation.at, "Fetched", at)

    def _judge(self, state: ServerState, result: Result, at: datetime) -> None:
        if result.observed is None:
            return
        seen, name = result.observed, state.decision.server
        records = self._ledger.armed(state.decision.uuid)
        observation = self._judging.get(name)
        offer = self._provisioning.offered(observation.digest) if observation else None
        if observation is None or offer is None:
            self._judge_spent(state, records, at)
        elif any(_stood(record, observation) and stands(record.override, seen) for record in records):
            self._journal.event(
                at,
                "FetchIgnored",
                f"{name}: {observation.client} fetched its entry, but the override still stands: another client",
                {"server": name, "client": observation.client},
            )
        else:
            self._provisioning.meet(offer, observation.at, "Fetched", at)
        if self._judging.pop(name, None) is not None and (schedule := self._schedules.get(name)) is not None:
            schedule.due = at  # it was only read; now it may be set again

    def _judge_spent(self, state: ServerState, records: tuple[Armed, ...], at: datetime) -> None:
        """An override was consumed without a fetch: proof for what fetches nothing, else a reason to look."""
        plan, record = state.plan, state.record
        if plan is None or plan.boot is None or plan.key is None or record is None:
            return
        own = next((each for each in records if each.reason == plan.key), None)
        if own is None or own.state not in (State.SPENT, State.GONE):
            return
        fetches = not plan.boot.direct or plan.boot.config_from is ConfigFrom.SYSTEM_UUID
        if own.state is State.SPENT and not fetches:
            self._provisioning.meet(Offer(decision=state.decision, plan=plan), at, "Spent", at)
        elif plan.phase is Phase.NETWORK:
            self._provisioning.spent(state.decision, plan.key, at)


def _stood(record: Armed, observation: Observation) -> bool:
    """Whether an override was armed before the fetch, which cannot have consumed a later one."""
    return _is_armed_once(record) and record.at <= observation.at


def _is_in(client: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    try:
        address = ip_address(client)
    except ValueError:  # a client whose address nobody knows
        return False
    return any(address in network for network in networks)


def _is_for(record: Armed, wanted: Wanted | None) -> bool:
    return wanted is not None and record.reason == wanted.reason


def _is_armed_once(record: Armed) -> bool:
    return record.state.is_open and record.override.enabled is Enabled.ONCE


def _job(
    repository: FleetRepository,
    state: ServerState,
    bmc: Bmc,
    wanted: Wanted | None,
    records: tuple[Armed, ...],
) -> Job:
    return Job(
        server=state.decision.server,
        uuid=state.decision.uuid,
        address=bmc.address,
        system=bmc.system,
        credentials=bmc.credentials,
        verify=bmc.tls.verify,
        ca=repository.files[bmc.tls.ca].decode("ascii", "ignore") if bmc.tls.ca else None,
        wanted=wanted,
        records=records,
    )


def _wanted(plan: BootPlan | None) -> Wanted | None:
    """What a plan wants of the BMC, in Redfish's words."""
    if plan is None or plan.override is None:
        return None
    override = plan.override
    return Wanted(
        reason=override.reason,
        plan_digest=plan.digest,
        override=Override(
            enabled=Enabled(override.enabled.value),
            target=Target(override.target.value),
            mode="UEFI" if plan.firmware is Firmware.UEFI else "Legacy",
            http_boot_uri=override.http_boot_uri,
        ),
        rearm=override.rearm,
    )


def _text(record: Armed) -> str:
    uri = f" {record.override.http_boot_uri}" if record.override.http_boot_uri else ""
    return f"{record.override.enabled} {record.override.target}{uri} for {record.reason}"
