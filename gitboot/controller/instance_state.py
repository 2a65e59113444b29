"""Instance state: one immutable value that each stage of a reconcile replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, structs

from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.commit_judgement import Candidate, CommitJudgement, format_exceeded_limits, list_ack_lines
from gitboot.controller.current_plans import Plans, may_instance_act
from gitboot.controller.maintenance_hooks import HookFailure
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import FleetOrders
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Denial, UntrustedProxy
from gitboot.fleet.overlay import apply_changes
from gitboot.fleet.revision import Revision, Signer
from gitboot.git.clone import BranchMismatch
from gitboot.git.signatures import parse_untrusted_commit
from gitboot.jsonio import Digest, format_instant
from gitboot.ledger.instance_tables import WithheldBoots
from gitboot.model.fleet import NO_LEDGER, Evidence
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code, Problem, Severity
from gitboot.render.endpoint_files import ServingTerms
from gitboot.render.page import Members
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.install_attempts import has_all_evidence
from gitboot.resolve.provisioning_record import InstallAttempt, Run, StopScope
from gitboot.resolve.server_plan import Cause
from gitboot.review.guards import Guard
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import (
    Acknowledgement,
    ChangedArea,
    Endpoints,
    ForgeReport,
    HeldCommit,
    PassedCommit,
    SignedListState,
    Status,
    TargetStatus,
    ThreadFailure,
    WithheldServer,
)
from gitboot.system_clock import ClockState
from gitboot.text import format_count, printable

# The acceptance of commits


class MissingCommit(NamedTuple):
    """A commit that removed boots and is no longer on the branch. gitboot keeps withholding these boots."""

    commit: Revision
    servers: int  # number of servers in the accepted commit whose boots are withheld only because of this commit
    is_here: bool  # whether the clone contains the commit, so that gitboot can compare other commits with it


class UnresumedCommit(NamedTuple):
    """The last accepted commit, if gitboot could not restore it after a start."""

    commit: Revision
    problems: tuple[Problem, ...]


class AcceptanceState(Struct, frozen=True, kw_only=True):
    """The accepted commit, and the judgement of the newest commit."""

    accepted: Commit | None = None
    unresumed: UnresumedCommit | None = None
    awaits_accepted: bool = False  # whether gitboot will repeat the evaluation of the unresumed commit
    # The steps to the accepted commit since the start, without the commits themselves.
    steps: CommitJudgement = msgspec.field(default_factory=CommitJudgement)
    # The accepted commit whose history this reconcile searched for acknowledgements, if it did.
    searched: Revision | None = None
    used_ack_ids: frozenset[str] = frozenset()  # used acknowledgements that are not in the ledger yet
    attempted: Revision | None = None  # the newest commit that was judged
    problems: tuple[Problem, ...] = ()  # the problems of the newest commit
    problems_until: datetime | None = None  # the next time at which a problem begins or ends; None: never
    orders: FleetOrders | None = None  # the orders in the newest well-formed Fleet, if its commit is not accepted
    candidate: Candidate | None = None  # the commit that a guard holds, if any
    passed_commits: tuple[PassedCommit, ...] = ()  # the commits between the accepted and the attempted commit
    waiting: Revision | None = None  # the newest commit, while an operator has suspended acceptance
    is_adopted: bool = False  # whether the accepted commit is recorded in the clone
    clone_failure: tuple[str, str] | None = None  # why gitboot cannot read the clone: reason, message
    committed_at: datetime | None = None  # committer time of the accepted commit; None: unreadable
    signer: Signer | None = None  # the owner of the trusted key that signed the accepted commit
    acknowledged: tuple[Acknowledgement, ...] = ()  # acknowledgements that were used to accept the commit
    changed: tuple[ChangedArea, ...] = ()  # the changes in the commits that were accepted last
    keys: str = ""  # changes whenever the verification of signatures may give other results
    retry_at: datetime | None = None  # when gitboot repeats an unfinished evaluation; None: never
    retries: int = 0  # number of evaluations of the newest commit that did not end
    withheld: WithheldBoots | None = None  # install boots in the accepted commit that newer commits do not offer
    offered: Commit | None = None  # the accepted commit without the boots in `withheld`
    evaluated: Revision | None = None  # the newest commit that `withheld` takes into account
    published: Revision | None = None  # value of `evaluated` at the last complete publication
    # Value of `published` once gitboot has read all fetches from before that publication.
    log_read: Revision | None = None
    is_log_unread: bool = False  # whether the last read of the fetch log did not reach its end
    awaits_records: bool = False  # whether gitboot may accept more commits once it has processed these fetches
    waits: bool = False  # whether a step that no guard holds waits until fetches are read
    # The commit that `withheld` depends on, if it is no longer on the branch.
    missing_commit: MissingCommit | None = None

    @property
    def is_unevaluated(self) -> bool:
        """Return whether gitboot will repeat the evaluation of the newest commit because it was not completed."""
        return self.retry_at is not None and any(each.code is Code.LIMITS for each in self.problems)

    @property
    def is_behind(self) -> bool:
        """Whether gitboot has not accepted the newest commit that it judged."""
        return self.accepted is None or self.accepted.revision != self.attempted

    @property
    def is_preliminary(self) -> bool:
        """Return whether the judgement on the held commit is preliminary.

        If so, gitboot judges the commit again after processing all current fetches, based on the records.
        """
        candidate, is_published = self.candidate, self.evaluated is not None and self.published == self.evaluated
        return candidate is not None and (
            self.waits
            or (is_published and self.waiting is None and not self.is_log_unread and candidate.is_preliminary)
        )

    @property
    def is_judged(self) -> bool:
        """Return whether operators can approve the newest commit, because the judgement on it is not preliminary."""
        return self.attempted is not None and not self.is_preliminary

    @property
    def held(self) -> HeldCommit | None:
        """The commit that operators can approve, or None if no guard holds a commit or the judgement is preliminary."""
        if self.candidate is None or self.is_preliminary:
            return None
        verdict = self.candidate.verdict
        return HeldCommit(
            commit=self.candidate.commit.revision,
            digest=verdict.digest,
            guards=tuple(str(guard) for guard in verdict.holding_guards),
            reasons=format_exceeded_limits(verdict),
            lines=list_ack_lines(verdict, self.candidate.reinstalls_need) if self.candidate.accepts_lines else (),
            reinstalls=self.candidate.reinstalls if Guard.MAX_REINSTALLS in verdict.holding_guards else (),
        )


def format_accepted_commit(commit: Commit, signer: Signer | None = None) -> str:
    signed = f", signed by {signer}" if signer is not None else ""
    return f"accepted {commit.revision[:12]} with {format_count(len(commit.decisions.servers), 'server')}{signed}"


def format_rejection(acceptance: AcceptanceState) -> str:
    """Return a message about the first error of the newest commit, or of the accepted commit after a restart."""
    first, attempted = _find_error(acceptance.problems), acceptance.attempted
    commit = f"commit {attempted[:12]}" if attempted is not None else "the commit accepted before the restart"
    if acceptance.retry_at is not None and acceptance.is_unevaluated:
        text = printable(f"{commit} was not evaluated: {first.message} ({first.code})")
        return f"{text}. gitboot will retry at {format_instant(acceptance.retry_at)}"
    if first.code is Code.UNTRUSTED:
        ancestor, fault = parse_untrusted_commit(first), first.message
        if ancestor is not None and attempted is not None and attempted.startswith(ancestor):
            fault = f"it{first.message.removeprefix(ancestor)}"
        elif ancestor is not None:
            fault = f"its ancestor {first.message}"
        return printable(f"{commit} is not accepted: {fault} ({first.code})")
    hint = f". {first.hint[:1].upper()}{first.hint[1:]}" if first.hint else ""
    text = printable(f"{commit} is invalid: {_format_problem(first)}{hint}")
    others = len(acceptance.problems) - 1
    return f"{text}. The commit has {format_count(others, 'other problem')}" if others else text


def format_failed_resume(acceptance: AcceptanceState) -> str:
    """Return a sentence that names the problem of the accepted commit, or "" if the judgement is about this commit."""
    unresumed = acceptance.unresumed
    if unresumed is None or acceptance.attempted in (None, unresumed.commit):
        return ""
    text = printable(f"the accepted commit {unresumed.commit[:12]}: {_format_problem(_find_error(unresumed.problems))}")
    return f". gitboot cannot evaluate {text}{'. gitboot retries automatically' if acceptance.awaits_accepted else ''}"


def _find_error(problems: Sequence[Problem]) -> Problem:
    return next((each for each in problems if each.severity is Severity.ERROR), problems[0])


def _format_problem(problem: Problem) -> str:
    place = f"{problem.path}:{problem.line}:{problem.column}: " if problem.path != "." else ""
    return f"{place}{problem.code}: {problem.message}"


def find_untrusted_commit(acceptance: AcceptanceState) -> str | None:
    """Return the attempted commit or the ancestor that no trusted key signed, or None if all commits are trusted."""
    problem = next((each for each in acceptance.problems if each.code is Code.UNTRUSTED), None)
    if problem is None:
        return None
    ancestor, attempted = parse_untrusted_commit(problem), acceptance.attempted
    if ancestor is None or (attempted is not None and attempted.startswith(ancestor)):
        return attempted
    return ancestor


# The state


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
            stopped=plans.count_servers("stopped"),
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
