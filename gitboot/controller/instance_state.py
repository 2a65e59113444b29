"""Instance state between two reconciles: one value, which each stage replaces as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.commit_acceptance import Attempt
from gitboot.controller.current_plans import Plans
from gitboot.controller.operator_requests import may_instance_act
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog.log_entries import Denial, UnnamedProxy
from gitboot.fleet.layered_dict import apply_changes
from gitboot.fleet.revision import Revision
from gitboot.jsonio import Digest
from gitboot.model.fleet import NO_LEDGER, Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import ServingTerms
from gitboot.render.plan_and_record_files import Members
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.install_attempts import has_all_evidence
from gitboot.resolve.provisioning_record import InstallAttempt, Run
from gitboot.resolve.server_plan import StopScope
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """The result of the last fetch from the Git repository."""

    reason: str = "Fetched"
    message: str = "gitboot fetched the branch"
    failed: bool = False
    began: datetime | None = field(default=None, compare=False)  # when the last finished fetch began
    commit: str | None = field(default=None, compare=False)  # the commit that was fetched last
    elsewhere: tuple[str, str] | None = None  # reason and message if HEAD names another branch than the followed one


class LimitedFiles(NamedTuple):
    """The published files of a server whose offers the ledger could not record."""

    noted: frozenset[Digest]  # the offers that the ledger has
    until: datetime | None  # the time at which these files become outdated by the clock; None: never
    stop: StopScope  # the stop at the time of rendering


class TargetState(Struct, frozen=True, kw_only=True):
    """The state of the target: which of the planned files are published there."""

    applied: Revision | None = None  # the commit of its files
    at: datetime | None = None  # when gitboot last published, or tried to
    complete: bool = False  # whether this process has published all files
    plans: Plans = msgspec.field(default_factory=Plans)  # the plans of its files
    in_doubt: bool = False  # whether its records may be from before the ledger became unverified
    recorded: Members | None = None  # the machines whose records were published; None: all machines in ``plans``
    terms: ServingTerms | None = None  # the terms under which endpoints serve one-time boots
    owed: frozenset[str] = frozenset()  # servers whose files differ from the plans
    limited: Mapping[str, LimitedFiles] = msgspec.field(
        default_factory=dict
    )  # those of these servers whose offers the ledger could not record
    versions: Mapping[str, Mapping[str, Digest]] = msgspec.field(
        default_factory=dict
    )  # the plans of its boot scripts, by server and path
    failure: tuple[str, str] | None = None  # why the last publication failed: reason, message
    unwritable: str | None = None  # why the ledger could not record the offers
    events: tuple[Event, ...] = ()  # events of the last publication

    def holds_plans_of(self, commit: Commit) -> bool:
        """Return whether the target has all files that were planned for a commit."""
        return self.complete and not self.owed and self.failure is None and self.applied == commit.revision

    def with_changed_files(self, servers: frozenset[str], events: tuple[Event, ...]) -> TargetState:
        """Return the state after the files of these servers changed in the target.

        The next publication writes these files again, even if the plans stay the same.
        """
        return structs.replace(
            self,
            owed=self.owed | servers,
            versions=apply_changes(self.versions, {}, servers & self.versions.keys()),
            events=(*self.events, *events),
        )


class InstanceState(Struct, frozen=True, kw_only=True):
    """The state of an instance: accepted commit, records, plans, publication, BMC tasks and conditions."""

    knowledge: Knowledge
    keys: TokenKeys = NO_KEYS  # the keys of published tokens
    attempt: Attempt = msgspec.field(default_factory=Attempt)
    plans: Plans = msgspec.field(default_factory=Plans)
    publication: TargetState = msgspec.field(default_factory=TargetState)
    schedule: Schedule = msgspec.field(default_factory=Schedule)
    unplanned: frozenset[SystemUuid] = frozenset()  # machines that changed since their last plan
    fetched: Fetched | None = None  # None: no fetch has ended yet
    # The longest step of an installation. After this time, an operator should check the machine.
    longest_step: timedelta = timedelta(minutes=30)
    serving: Endpoints | None = None  # None: the instance starts no endpoints
    telling: ForgeReport | None = None  # None: there is no forge
    unsent: tuple[str, str] | None = None  # why gitboot could not send a notice: reason, message
    thread_failures: tuple[ThreadFailure, ...] = ()  # of this process; gitboot starts the threads again
    following: tuple[TargetStatus, ...] = ()  # the targets that follow OUTPUT
    signed_list: SignedListState | None = None  # None: gitboot has published nothing since the start
    opened: int | None = None  # the change number of the ledger at its opening; None: no longer compared
    was_left: bool = False  # whether the ledger was unused for a long time before its opening
    is_output_open: bool = False  # whether every user of this host may read OUTPUT
    is_upgraded: bool = False  # whether the ledger comes from a version that left one-time boots in OUTPUT
    keeping: ClockState = ClockState.UNKNOWN  # the quality of the clock
    unwritable: str | None = None  # why the ledger could not be written
    # The next end of a window in OUTPUT, before the first publication since the start.
    next_window_end: datetime | None = None
    waits_since: datetime | None = None  # since when gitboot waits for the first publication; None: already published
    before_resume: InstanceState | None = None  # the state at the start, while the ledger cannot be written
    unread: str | None = None  # why the fetch log could not be read
    refused: tuple[Denial, ...] = ()  # boots that endpoints did not serve within the last hour
    unnamed_proxies: tuple[UnnamedProxy, ...] = ()  # proxies without a name that endpoints met within the last hour
    conditions: tuple[Condition, ...] = ()

    @property
    def commit(self) -> Commit | None:
        """The accepted commit without the install boots that newer commits remove.

        The value is None if the Fleet names another ledger and this instance never acted.
        """
        accepted = self.attempt.accepted
        if accepted is None or not plans_by(self.knowledge, accepted):
            return None
        return self.attempt.offered or accepted

    @property
    def may_act(self) -> bool:
        return may_instance_act(self.knowledge, self.attempt.accepted, self.attempt.orders)

    @property
    def is_orphaned(self) -> bool:
        """Whether the newest Fleet lacks the site of this instance, or names no ledger for the site."""
        orders = self.attempt.orders or (self.attempt.accepted.orders if self.attempt.accepted is not None else None)
        return orders is not None and orders.ledger == NO_LEDGER

    def status(self) -> Status:
        """Return a summary of the instance.

        The summary names at most `_MAX_SHOWN` servers of a kind. Unexpected secret fetches come first, then the latest
        secret fetches. Installations are sorted by the time of their last step, the oldest first.
        """
        attempt, plans, accepted = self.attempt, self.plans, self.attempt.accepted
        machines = accepted.machines if accepted is not None else {}
        fetches = (
            (machines[uuid].name, each) for uuid, each in self.knowledge.secret_fetches.items() if uuid in machines
        )
        shown = nlargest(_MAX_SHOWN, fetches, key=lambda item: (item[1].is_unexpected, item[1].last, item[0]))
        oldest = nsmallest(_MAX_SHOWN, plans.installing.items(), key=lambda item: (item[1].at, item[0]))
        return Status(
            ledger=self.knowledge.facts.identity,
            attempted=attempt.attempted,
            problems=attempt.problems,
            held=attempt.held,
            withheld=tuple(self._list_withheld()),
            passed_commits=attempt.passed,
            accepted=accepted.revision if accepted is not None else None,
            committed_at=attempt.committed_at,
            signer=attempt.signer,
            acknowledged=attempt.acknowledged,
            changed=attempt.changed,
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
            installations=tuple({"server": name, **progress.facts()} for name, progress in oldest),
            drift=plans.count_servers("drift"),
            bmcs=self.schedule.outcomes,
            below_minimum_version=plans.count_below_minimum(),
            secret_fetches=tuple(
                {"server": name, **facts} for name, each in sorted(shown, key=itemgetter(0)) for facts in each.facts()
            ),
            conditions=self.conditions,
        )

    def _list_withheld(self) -> Iterator[WithheldServer]:
        """Yield each server with withheld install boots, and the boot that replaces them, sorted by name."""
        commit = self.plans.commit
        found = commit.withheld if commit is not None else {}
        named = sorted((commit.machines[uuid].name, boots) for uuid, boots in found.items()) if commit else []
        for name, boots in named:
            state = self.plans.servers.get(name)
            if state is not None and state.plan is not None:
                boot = state.plan.boot
                yield WithheldServer(
                    server=name,
                    by=tuple(sorted({each.by for each in boots})),
                    boots=boot.image if boot is not None else None,
                    why=str(state.plan.cause),
                )

    def find_overdue(self, at: datetime) -> dict[str, InstallAttempt]:
        """Return the installations that have had no evidence for too long, by server.

        If only a commit can declare the end of installations, an installation is not overdue after gitboot has evidence
        of its other steps.
        """
        found: dict[str, InstallAttempt] = {}
        commit, servers = self.plans.commit, self.plans.servers
        for name, attempt in self.plans.begun.items():
            policy = servers[name].decision.policy if name in servers else None
            if commit is None or attempt.failed is not None or policy is None or policy.boot is None:
                continue
            boots, shows_start = policy.boot.boots, policy.boot.shows_its_start
            is_declared = commit.decisions.evidence is Evidence.DECLARED
            if is_declared and has_all_evidence(attempt, boots=boots, shows_start=shows_start):
                continue
            if attempt.last_seen.at + self.longest_step <= at:
                found[name] = attempt
        return found

    def find_overdue_runs(self, at: datetime) -> dict[str, tuple[str, Run]]:
        """Return the maintenance runs whose boot was served too long ago and that have not started, by server."""
        return {name: each for name, each in self.plans.given.items() if each[1].at + self.longest_step <= at}

    def next_due(self, at: datetime) -> datetime | None:
        """Return the next time after ``at`` at which the clock makes another reconcile necessary.

        Before the first evaluation after a start there are no plans, but windows that an earlier process published end.
        """
        is_suspended = any(each.type == "AcceptingCommits" and not each.status for each in self.conditions)
        suspension = self.knowledge.facts.suspension if is_suspended else None
        dues = (
            self.plans.transitions.next_due if self.commit is not None else None,
            self.next_window_end,
            self.schedule.next_due,
            suspension.until if suspension is not None else None,
        )
        later = (
            self.attempt.retry_at,
            self.attempt.problems_until,
            *(each.last_seen.at + self.longest_step for each in self.plans.begun.values()),
            *(run.at + self.longest_step for _, run in self.plans.given.values()),
        )
        return min(
            (*(due for due in dues if due is not None), *(due for due in later if due is not None and due > at)),
            default=None,
        )


_MAX_SHOWN: Final = (
    50  # servers of a kind: gitboot writes the status at each reconcile, and this limits it to about 50 KB
)


def plans_by(knowledge: Knowledge, commit: Commit) -> bool:
    """Return whether the instance with this ledger plans and publishes a commit.

    An instance that another instance has replaced continues to end its windows and to clear its overrides.
    """
    return commit.is_for(knowledge.facts.identity) or knowledge.facts.initialised is not None
