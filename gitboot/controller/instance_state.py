"""Instance state: one immutable value that each stage of a reconcile replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from gitboot.controller.acceptance_state import AcceptanceState
from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.current_plans import Plans
from gitboot.controller.maintenance_hooks import HookFailure
from gitboot.controller.operator_requests import may_instance_act
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Denial, UntrustedProxy
from gitboot.fleet.overlay import apply_changes
from gitboot.fleet.revision import Revision
from gitboot.git.clone import BranchMismatch
from gitboot.jsonio import Digest
from gitboot.model.fleet import NO_LEDGER, Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import ServingTerms
from gitboot.render.page import Members
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.install_attempts import has_all_evidence
from gitboot.resolve.provisioning_record import InstallAttempt, Run, StopScope
from gitboot.resolve.server_plan import Cause
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import (
    Endpoints,
    ForgeReport,
    SignedListState,
    Status,
    TargetStatus,
    ThreadFailure,
    WithheldServer,
)
from gitboot.system_clock import ClockState

_MAX_SHOWN: Final = 50  # servers per list: keeps the status, which each reconcile writes, below about 50 KB


@dataclass(frozen=True, kw_only=True, slots=True)
class LastFetch:
    """The result of the last fetch from the Git repository."""

    reason: str = "Fetched"
    message: str = "gitboot fetched the branch"
    failed: bool = False
    began: datetime | None = field(default=None, compare=False)  # start of the last fetch that finished
    commit: str | None = field(default=None, compare=False)  # the commit that was fetched last
    branch_mismatch: BranchMismatch | None = None  # None: HEAD names the followed branch


class LimitedFiles(NamedTuple):
    """A description of a server's published files while the server's newest offers cannot be recorded in the ledger."""

    recorded_offers: frozenset[Digest]  # the offers that are in the ledger
    until: datetime | None  # when the clock makes these files outdated; None: never
    stop: StopScope  # the stop that was in force when the files were rendered


class TargetState(Struct, frozen=True, kw_only=True):
    """The state of a target: which of the planned files the target contains."""

    applied: Revision | None = None  # the commit whose files are in the target
    at: datetime | None = None  # when gitboot last published, or last tried to
    complete: bool = False  # whether this process has published all files
    plans: Plans = msgspec.field(default_factory=Plans)  # the plans from which its files were rendered
    has_old_records: bool = False  # whether its record files may date from before the ledger became unverified
    recorded: Members | None = None  # the machines whose records were published; None: all machines in ``plans``
    terms: ServingTerms | None = None  # the published terms under which endpoints serve one-time boots
    outdated_servers: frozenset[str] = frozenset()  # servers whose files differ from the plans
    # Of these, the servers whose offers could not be recorded in the ledger.
    limited: Mapping[str, LimitedFiles] = msgspec.field(default_factory=dict)
    # Plans of the published boot scripts, by server and path.
    versions: Mapping[str, Mapping[str, Digest]] = msgspec.field(default_factory=dict)
    failure: tuple[str, str] | None = None  # why the last publication failed: reason, message
    ledger_error: str | None = None  # why the ledger could not record the offers
    events: tuple[Event, ...] = ()  # events of the last publication

    @property
    def is_placed(self) -> bool:
        """Return whether the last publication placed its files, even if the ledger could not record all offers."""
        return self.failure is None or self.terms is not None

    def has_plans_for(self, commit: Commit) -> bool:
        """Return whether the target contains all files that are planned for a commit."""
        return self.complete and not self.outdated_servers and self.failure is None and self.applied == commit.revision

    def with_changed_files(self, servers: frozenset[str], events: tuple[Event, ...]) -> TargetState:
        """Return the state after the files of these servers changed in the target without a publication.

        The next publication writes these files again even if the plans are the same.
        """
        return structs.replace(
            self,
            outdated_servers=self.outdated_servers | servers,
            versions=apply_changes(self.versions, {}, servers & self.versions.keys()),
            events=(*self.events, *events),
        )


class InstanceState(Struct, frozen=True, kw_only=True):
    """The state of an instance: accepted commit, knowledge, plans, publication, BMC schedule and conditions."""

    snapshot: LedgerSnapshot
    keys: TokenKeys = NO_KEYS  # the keys of published tokens
    acceptance: AcceptanceState = msgspec.field(default_factory=AcceptanceState)
    plans: Plans = msgspec.field(default_factory=Plans)
    publication: TargetState = msgspec.field(default_factory=TargetState)
    schedule: Schedule = msgspec.field(default_factory=Schedule)
    unplanned: frozenset[SystemUuid] = frozenset()  # machines that have changed since they were last planned
    fetched: LastFetch | None = None  # None: no fetch has finished yet
    # How long a step of an installation may take before an operator should check the machine.
    longest_step: timedelta = timedelta(minutes=30)
    endpoints: Endpoints | None = None  # None: the instance starts no endpoints
    forge_report: ForgeReport | None = None  # None: no forge is configured
    notice_failure: tuple[str, str] | None = None  # why gitboot could not send a notice: reason, message
    thread_failures: tuple[ThreadFailure, ...] = ()  # threads of this process that died; gitboot restarts them
    target_status: tuple[TargetStatus, ...] = ()  # the targets that follow OUTPUT
    signed_list: SignedListState | None = None  # None: nothing was published since the start
    # The ledger's change number when it was opened; None: no longer compared with the forge.
    change_at_start: int | None = None
    was_unused: bool = False  # whether the ledger was unused for a long time before it was opened
    is_output_open: bool = False  # whether every user of this host may read OUTPUT
    is_upgraded: bool = False  # whether an earlier version that left one-time boots in OUTPUT used this ledger
    clock_state: ClockState = ClockState.UNKNOWN  # whether a time service synchronizes the clock
    ledger_error: str | None = None  # why the ledger could not be written
    # The latest time that the clock has shown since the ledger was last written. None: the ledger was written.
    unwritten_clock: datetime | None = None
    # The next end of a window in OUTPUT. Only used before the first publication, and after a publication failed.
    next_window_end: datetime | None = None
    waits_since: datetime | None = None  # since when gitboot waits for a publication; None: not waiting
    before_resume: InstanceState | None = None  # the state before `resume`, kept while the ledger cannot be written
    fetch_log_error: str | None = None  # why the fetch log could not be read
    hook_failures: tuple[HookFailure, ...] = ()  # why URLs of maintenances did not give the expected answer yet
    denials: tuple[Denial, ...] = ()  # boots that endpoints withheld within the last hour
    unnamed_proxies: tuple[UntrustedProxy, ...] = ()  # unconfigured proxies that endpoints saw in the last hour
    conditions: tuple[Condition, ...] = ()

    @property
    def commit(self) -> Commit | None:
        """The accepted commit, without the install boots that newer commits remove.

        None if no commit is accepted, or if the Fleet names another ledger and this instance has never been active.
        """
        accepted = self.acceptance.accepted
        if accepted is None or not can_plan(self.snapshot, accepted):
            return None
        return self.acceptance.offered or accepted

    @property
    def may_act(self) -> bool:
        """Whether this instance may set overrides and serve install boots, according to the Fleet."""
        return may_instance_act(self.snapshot, self.acceptance.accepted, self.acceptance.orders)

    @property
    def is_orphaned(self) -> bool:
        """Return whether the newest Fleet does not define this instance's site, or names no ledger for the site."""
        orders, accepted = self.acceptance.orders, self.acceptance.accepted
        if orders is None and accepted is not None:
            orders = accepted.orders
        return orders is not None and orders.ledger == NO_LEDGER

    def status(self) -> Status:
        """Return a summary of the instance.

        The summary names at most `_MAX_SHOWN` servers in each list. If there are too many fetches of secrets, the
        summary prefers unexpected fetches, and then the latest fetches. Installations are sorted by the time of their
        last step, oldest first.
        """
        acceptance, plans, accepted = self.acceptance, self.plans, self.acceptance.accepted
        installations = nsmallest(_MAX_SHOWN, plans.installing.items(), key=lambda item: (item[1].at, item[0]))
        return Status(
            ledger=self.snapshot.facts.identity,
            attempted=acceptance.attempted,
            problems=acceptance.problems,
            held=acceptance.held,
            withheld=tuple(self._list_withheld()),
            passed_commits=acceptance.passed_commits,
            accepted=accepted.revision if accepted is not None else None,
            committed_at=acceptance.committed_at,
            signer=acceptance.signer,
            acknowledged=acceptance.acknowledged,
            changed=acceptance.changed,
            applied=self.publication.applied,
            fetch_began=self.fetched.began if self.fetched is not None else None,
            fetched=self.fetched.commit if self.fetched is not None else None,
            planned_at=self.publication.at,
            next_transition=plans.transitions.next_due,
            phases=plans.count_servers("phases"),
            records=plans.count_servers("records"),
            installs=plans.count_servers("installs"),
            runs=plans.count_servers("runs"),
            installing=plans.count_servers("installing"),
            installations=tuple({"server": name, **progress.facts()} for name, progress in installations),
            drift=plans.count_servers("drift"),
            bmcs=self.schedule.outcomes,
            below_minimum_version=plans.count_below_minimum(),
            secret_fetches=tuple(self._list_secret_fetches()),
            conditions=self.conditions,
        )

    def _list_secret_fetches(self) -> Iterator[dict[str, Any]]:
        """Yield the most important fetches of secrets, sorted by server."""
        machines = self.acceptance.accepted.machines if self.acceptance.accepted is not None else {}
        by_server = {
            machines[uuid].name: fetches for uuid, fetches in self.snapshot.secret_fetches.items() if uuid in machines
        }
        shown = nlargest(_MAX_SHOWN, by_server.items(), key=lambda item: (item[1].is_unexpected, item[1].last, item[0]))
        for name, fetches in sorted(shown, key=itemgetter(0)):
            for facts in fetches.facts():
                yield {"server": name, **facts}

    def _list_withheld(self) -> Iterator[WithheldServer]:
        """Yield the servers whose install boot is withheld now, sorted by name.

        Each result includes the boot that the server gets instead.
        """
        commit = self.plans.commit
        if commit is None:
            return
        for name, boots in sorted((commit.machines[uuid].name, boots) for uuid, boots in commit.withheld.items()):
            state = self.plans.servers.get(name)
            if state is not None and state.plan is not None and state.plan.cause is Cause.WITHHELD:
                boot = state.plan.boot
                yield WithheldServer(
                    server=name,
                    by=tuple(sorted({withheld.by for withheld in boots})),
                    boots=boot.image if boot is not None else None,
                    why=str(state.plan.cause),
                )

    def find_overdue_installs(self, at: datetime) -> dict[str, InstallAttempt]:
        """Return, by server, the installations for which no new evidence has arrived for too long.

        If only a commit can declare an installation complete, the installation is not overdue once there is evidence
        for all of its other steps.
        """
        overdue: dict[str, InstallAttempt] = {}
        commit, servers = self.plans.commit, self.plans.servers
        for name, attempt in self.plans.begun.items():
            policy = servers[name].decision.policy if name in servers else None
            if commit is None or attempt.failed is not None or policy is None or policy.boot is None:
                continue
            boot = policy.boot
            has_evidence = has_all_evidence(attempt, boots=boot.boots, shows_start=boot.proves_start)
            if commit.decisions.evidence is Evidence.DECLARED and has_evidence:
                continue
            if attempt.last_seen.at + self.longest_step <= at:
                overdue[name] = attempt
        return overdue

    def find_overdue_runs(self, at: datetime) -> dict[str, tuple[str, Run]]:
        """Return, by server, the maintenance runs whose boot was served long ago but that have not started yet."""
        return {
            name: (maintenance, run)
            for name, (maintenance, run) in self.plans.given.items()
            if run.at + self.longest_step <= at
        }

    def next_due(self, at: datetime) -> datetime | None:
        """Return when a reconcile is due after ``at`` even if no event occurs, or None if no reconcile is due.

        No plans exist before the first evaluation after a start, but windows that an earlier process published still
        end.
        """
        suspension = self.snapshot.facts.suspension
        is_suspended = any(each.type == "AcceptingCommits" and not each.status for each in self.conditions)
        due_times = [
            self.plans.transitions.next_due if self.commit is not None else None,
            self.next_window_end,
            self.schedule.agenda.next_due,
            suspension.until if suspension is not None and is_suspended else None,
        ]
        later_times = [
            self.acceptance.retry_at,
            self.acceptance.problems_until,
            *(attempt.last_seen.at + self.longest_step for attempt in self.plans.begun.values()),
            *(run.at + self.longest_step for _, run in self.plans.given.values()),
        ]
        due_times += [due for due in later_times if due is not None and due > at]
        return min((due for due in due_times if due is not None), default=None)


def can_plan(snapshot: LedgerSnapshot, commit: Commit) -> bool:
    """Return whether the instance that uses this ledger plans and publishes a commit.

    An instance that another instance has replaced keeps planning, in order to end its windows and clear its overrides.
    """
    return commit.allows_ledger(snapshot.facts.identity) or snapshot.facts.initialised is not None
