"""Overrides after publication: which BMC is asked for what, and when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Final

from gitboot.bmc.apply import Job, Outcome, Result
from gitboot.bmc.override import Enabled, Override, OverrideRecord, State, Target, Wanted
from gitboot.bmc.pool import BmcPool
from gitboot.instance.evaluation import Commit
from gitboot.instance.evidence import Evidence
from gitboot.instance.journal import Journal
from gitboot.ledger import Ledger
from gitboot.load.machines import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Firmware
from gitboot.plan import BootPlan
from gitboot.render.schedule import ServerState

ONCE_READ_EVERY: Final = timedelta(seconds=30)  # how often a BMC is read that has a one-time override
READ_EVERY: Final = timedelta(minutes=5)  # and one whose override stays
FIRST_RETRY: Final = timedelta(seconds=5)
LONGEST_RETRY: Final = timedelta(minutes=10)
WITHDRAW_EVERY: Final = timedelta(seconds=10)  # while a BMC answers that it cannot now
OVERDUE: Final = timedelta(minutes=5)
_JITTER: Final = 0.2
_REST: Final = timedelta(minutes=1)  # after too many failures in a row


@dataclass(frozen=True, slots=True)
class Fleetwide:
    """What one pass works on."""

    commit: Commit
    servers: Mapping[str, ServerState]


@dataclass(frozen=True, slots=True)
class _Ask:
    """One machine's BMC, and what is to become of it."""

    name: str
    uuid: SystemUuid
    bmc: BmcAccess
    wanted: Wanted | None
    records: tuple[OverrideRecord, ...]
    site: str | None


@dataclass(slots=True)
class _Schedule:
    """When a machine's BMC is asked again."""

    name: str
    due: datetime
    wanted: Wanted | None = None  # what it was asked for last
    bmc: BmcAccess | None = None  # and where
    outcome: Outcome | None = None  # of the last job
    failures: int = 0
    late_since: datetime | None = None  # since when what is wanted could not be brought about


class Overriding:
    """Brings every BMC to what its server's plan wants, each in its own time."""

    def __init__(
        self,
        bmcs: BmcPool,
        ledger: Ledger,
        evidence: Evidence,
        journal: Journal,
        *,
        most_failures: int = 20,
        jitter: Callable[[], float] = lambda: random.uniform(1 - _JITTER, 1),  # noqa: S311 - spreads load, guards nothing
    ) -> None:
        self._jitter = jitter
        self._bmcs, self._ledger, self._evidence, self._journal = bmcs, ledger, evidence, journal
        self._most_failures = most_failures  # in a row, until nothing more is set for a while
        self._schedules: dict[SystemUuid, _Schedule] = {}
        self._asked: Mapping[str, ServerState] = {}
        self._failures = 0  # in a row, over all BMCs
        self._resting_until: datetime | None = None
        self.would: dict[str, str] = {}  # by server, what a dry run would do

    @property
    def next_due(self) -> datetime | None:
        """When the next BMC is asked without anything else having happened."""
        return min((schedule.due for schedule in self._schedules.values()), default=None)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How many of the BMCs of which something is wanted ended their last job how."""
        return Counter(str(each.outcome or "Pending") for each in self._schedules.values())

    def hurry(self, uuids: Iterable[SystemUuid], at: datetime) -> None:
        """Ask these BMCs at the next pass, whatever came of them before."""
        for uuid in uuids:
            if (schedule := self._schedules.get(uuid)) is not None:
                schedule.due, schedule.failures = at, 0
        self._resting_until = None
        self._asked = {}

    def ask(self, fleet: Fleetwide, at: datetime, *, may_set: bool = True) -> None:
        """Begin a job for every BMC that is due, or whose server wants something else than before.

        Without ``may_set`` nothing new is set; what is no longer wanted is withdrawn all the same.
        """
        due = self.next_due
        fetched = any(self._evidence.is_new(uuid) for uuid in self._schedules)
        if may_set and fleet.servers is self._asked and not fetched and (due is None or at < due):
            return
        self._asked = fleet.servers if may_set else {}
        idle, jobs = set(self._schedules), []
        for ask in self._asks(fleet, may_set=may_set):
            idle.discard(ask.uuid)
            only_read, is_new = self._evidence.wants_reading(ask.uuid), self._evidence.is_new(ask.uuid)
            schedule = self._schedules.setdefault(ask.uuid, _Schedule(ask.name, due=at))
            same = (schedule.wanted, schedule.bmc) == (ask.wanted, ask.bmc)
            if at < schedule.due and same and not is_new:
                continue
            jobs.append((_job(ask, only_read=only_read), schedule))
        self._forget(idle)
        spec = fleet.commit.fleet.provisioning
        self._evidence.uncontradicted(self._schedules.keys(), spec.evidence, at)
        for job, schedule in self._admitted(jobs, at):
            if not self._bmcs.submit([job]):
                self._asked = {}  # its last job still runs: what is wanted now is asked for after it
            else:
                every = ONCE_READ_EVERY if _is_urgent(job) else READ_EVERY
                if schedule.wanted != job.wanted:
                    schedule.late_since = None
                schedule.wanted, schedule.bmc, schedule.due = job.wanted, job.bmc, at + every
                self._evidence.asked(job.uuid)

    def _forget(self, idle: Iterable[SystemUuid]) -> None:
        """Drop what was to be asked of machines that want nothing, and of those that have left the fleet."""
        self._bmcs.forget(idle)
        for uuid in idle:
            self._journal.forget(f"Bmc/{self._schedules.pop(uuid).name}")

    # What is asked

    def _asks(self, fleet: Fleetwide, *, may_set: bool) -> Iterator[_Ask]:
        """Every machine whose BMC is to be asked: of whom something is wanted, or on whom something stands."""
        left_behind = list(self._left_behind(fleet))
        taken = {ask.bmc.place for ask in left_behind}
        yield from left_behind
        elsewhere = {ask.uuid for ask in left_behind}
        kind = fleet.commit.fleet.provisioning.evidence
        for name, state in fleet.servers.items():
            uuid, machine = state.decision.uuid, fleet.commit.machines[state.decision.uuid]
            if machine.bmc is None or uuid in elsewhere or machine.bmc.place in taken:
                continue
            wanted, records = wanted_by(state.plan), self._ledger.overrides(uuid)
            if not may_set and not any(each.state.is_open and _is_for(each, wanted) for each in records):
                wanted = None
            stands = any(each.state.is_open for each in records)
            if wanted is None and not stands and not self._evidence.awaits_progress(state, kind):
                continue
            yield _Ask(name, uuid, machine.bmc, wanted, records, fleet.commit.sites.get(name))

    def _left_behind(self, fleet: Fleetwide) -> Iterator[_Ask]:
        """Overrides on BMCs that no document names any more for their machine: they are withdrawn there."""
        open_overrides = self._ledger.open_overrides()
        if not open_overrides:
            return
        known = self._ledger.machines()
        for uuid in sorted(open_overrides):
            records, machine = self._ledger.overrides(uuid), fleet.commit.machines.get(uuid)
            was = next((each.bmc for each in records if each.state.is_open and each.bmc is not None), None)
            last = known.get(uuid)
            bmc = was or (last.bmc if last is not None else None)
            if bmc is None or (machine is not None and machine.bmc is not None and machine.bmc.place == bmc.place):
                continue
            yield _Ask(last.name if last is not None else uuid, uuid, bmc, None, records, None)

    def _admitted(self, jobs: list[tuple[Job, _Schedule]], at: datetime) -> Iterator[tuple[Job, _Schedule]]:
        """All of them; but after too many failures in a row only what is not set anew, and one to find out."""
        if self._failures < self._most_failures:
            yield from jobs
            return
        probing = self._resting_until is None or at >= self._resting_until
        for job, schedule in jobs:
            if job.only_read or any(each.state.is_open for each in job.records):
                yield job, schedule
            elif probing:
                probing, self._resting_until = False, at + _REST
                yield job, schedule
            else:
                schedule.due = max(schedule.due, self._resting_until or at)

    # What came of it

    def collect(self, fleet: Fleetwide, at: datetime, *, wait: bool = False) -> None:
        """Take in what came of the jobs that have ended, and completed fetches of entries."""
        by_uuid = {state.decision.uuid: state for state in fleet.servers.values()}
        spec = fleet.commit.fleet.provisioning
        for uuid, result in self._bmcs.finished(wait_all=wait).items():
            if result.wrote:
                self._asked = {}  # it may have set what is no longer wanted
            self._count(result, at)
            self._reschedule(uuid, result, at)
            self._note(result, fleet, at)
            self.would[result.server] = result.message
            if result.observed is not None:
                judged = self._evidence.judge(uuid, by_uuid.get(uuid), result.observed, spec.evidence, at)
                if judged and (schedule := self._schedules.get(uuid)) is not None:
                    schedule.due = at  # it was only read; now it may be set again
        monitors = [ip_network(network) for network in spec.monitors]
        machines = fleet.commit.machines
        self._evidence.take(
            spec.evidence, monitors, lambda uuid: uuid in machines and machines[uuid].bmc is not None, at
        )

    def _count(self, result: Result, at: datetime) -> None:
        """Notice when BMCs fail in a row: then it is the network, or a password, and not they."""
        self._failures = 0 if result.answered else self._failures + 1
        if self._failures >= self._most_failures:
            message = (
                f"{self._failures} BMCs in a row have failed, the last {result.server}: {result.message}; nothing is "
                "set until one answers"
            )
            begins, self._resting_until = self._resting_until is None, self._resting_until or at + _REST
            self._journal.condition("BmcsReachable", False, "FailuresInARow", message, at)
            if begins:
                self._journal.event(at, "BmcsFailing", message, warning=True)
        else:
            for schedule in self._schedules.values():
                if schedule.due == self._resting_until:  # put off until one answers, as this one has
                    schedule.due = at
            self._resting_until = None
            self._journal.condition("BmcsReachable", True, "Reachable", "BMCs answer, as far as any is asked", at)

    def _reschedule(self, uuid: SystemUuid, result: Result, at: datetime) -> None:
        if (schedule := self._schedules.get(uuid)) is None:
            return
        schedule.outcome = result.outcome
        if result.outcome in (Outcome.UNCHANGED, Outcome.APPLIED):
            schedule.failures, schedule.late_since = 0, None
            return
        schedule.late_since = schedule.late_since or at
        if result.outcome is Outcome.STALLED:  # asked often, a BMC that refuses a password locks its account
            schedule.due = at + LONGEST_RETRY
        elif result.answered and self._is_withdrawing(uuid, schedule.wanted):
            schedule.due = at + WITHDRAW_EVERY
        else:
            schedule.due = at + min(FIRST_RETRY * 2**schedule.failures, LONGEST_RETRY) * self._jitter()
            schedule.failures = min(schedule.failures + 1, 10)
        if result.retry_after_s is not None:
            schedule.due = max(schedule.due, at + min(timedelta(seconds=result.retry_after_s), LONGEST_RETRY))

    def _is_withdrawing(self, uuid: SystemUuid, wanted: Wanted | None) -> bool:
        return any(each.state.is_open and not _is_for(each, wanted) for each in self._ledger.overrides(uuid))

    def _note(self, result: Result, fleet: Fleetwide, at: datetime) -> None:
        name = result.server
        for record in {record.reason: record for record in result.wrote}.values():  # as each was left
            facts = {
                "server": name,
                "reason": record.reason,
                "plan": record.plan_digest,
                "before": _shown(result.before),
                "after": _shown(result.observed.override if result.observed else None),
                "commit": fleet.commit.revision,
            }
            message = f"{name}: {_text(record)} is {record.state.lower()}"
            self._journal.event(at, f"Override{record.state}", message, facts)
        type, schedule = f"Bmc/{name}", self._schedules.get(result.uuid)
        if result.outcome in (Outcome.UNCHANGED, Outcome.APPLIED) or schedule is None:
            self._journal.forget(type)
            return
        late = schedule.late_since is not None and at - schedule.late_since >= OVERDUE
        reason = "Overdue" if late and result.outcome is Outcome.WAITING else str(result.outcome)
        if self._journal.condition(type, False, reason, result.message, at):
            message = f"{name}: {result.message}"
            self._journal.event(at, f"Override{reason}", message, {"server": name}, warning=True)

    # What an operator says

    def settle(self, uuid: SystemUuid, state: State, which: Callable[[OverrideRecord], bool], at: datetime) -> int:
        """Take an operator's word for what became of overrides; return of how many.

        Withdrawn: it was never consumed, and its reason is open again. Lost: it was, and is never set again.
        """
        meant = [each for each in self._ledger.overrides(uuid) if each.state is not state and which(each)]
        for each in meant:
            self._ledger.write_override(uuid, replace(each, state=state, corrections=()))
        self.hurry([uuid], at)
        return len(meant)


def _is_for(record: OverrideRecord, wanted: Wanted | None) -> bool:
    return wanted is not None and record.reason == wanted.reason


def _is_urgent(job: Job) -> bool:
    """Whether something may happen at any moment: a one-time override is consumed, or an end is awaited."""
    wanted = job.wanted
    return (
        wanted is None
        or wanted.override.enabled is Enabled.ONCE
        or not all(each.state is State.CONFIRMED for each in job.records if each.state.is_open)
    )


def _job(ask: _Ask, *, only_read: bool) -> Job:
    return Job(
        server=ask.name,
        uuid=ask.uuid,
        bmc=ask.bmc,
        wanted=ask.wanted,
        records=ask.records,
        site=ask.site,
        only_read=only_read,
    )


def wanted_by(plan: BootPlan | None) -> Wanted | None:
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
        set_again=override.set_again,
        until=plan.next_transition,
    )


def _text(record: OverrideRecord) -> str:
    return f"{_shown(record.override)} for {record.reason}"


def _shown(override: Override | None) -> str | None:
    if override is None:
        return None
    uri = f" {override.http_boot_uri}" if override.http_boot_uri else ""
    return f"{override.enabled} {override.target}{uri}"
