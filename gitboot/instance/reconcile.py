"""One pass: source -> load -> decide -> plan -> render -> publish -> override -> report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, Protocol, TypedDict

from gitboot.errors import LedgerError, OperatorError, PublishError, TryAgain
from gitboot.instance.accept import Accepting
from gitboot.instance.evaluation import Commit
from gitboot.instance.evidence import Evidence
from gitboot.instance.journal import Journal
from gitboot.instance.overrides import Fleetwide, Overriding
from gitboot.instance.provisioning import Provisioning
from gitboot.instance.requests import Requests
from gitboot.ledger import Ledger
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.plan import Cause, Record
from gitboot.publish.directory import Published
from gitboot.render.formats import shared_files
from gitboot.render.paths import ContentType
from gitboot.render.schedule import ServerState, about_servers, server_state
from gitboot.render.tree import File, Files
from gitboot.resolve import Decisions
from gitboot.resolve.records import drift, exported
from gitboot.status import Status


class _Planned(NamedTuple):
    """What all servers were planned from; until the next transition another pass has nothing to plan."""

    decisions: Decisions
    records: Mapping[SystemUuid, Record]
    until: datetime | None

    def holds(self, decisions: Decisions, records: Mapping[SystemUuid, Record], at: datetime) -> bool:
        same = self.decisions is decisions and self.records is records
        return same and (self.until is None or at < self.until)


class Target(Protocol):
    """Where files go, whole or not at all."""

    def publish(
        self, servers: Mapping[str, Files | None], shared: Files | None, *, complete: bool, commit: str, at: datetime
    ) -> Published:
        """Bring the files of these servers (None: gone), and the shared ones (None: as they are), to what they are."""

    def dated(self, path: str, file: File, at: datetime) -> int:
        """What ``path`` is dated, in seconds since 1970, once ``file`` was published there ``at`` that instant."""


class Reconciler:
    """One instance: what it has accepted, planned and published; `reconcile` is one pass over it.

    A pass never fails for a bad commit, a lost source, a full disk or a BMC: each is a condition, and the
    last accepted commit goes on being planned, so that windows end while Git is down.
    """

    def __init__(
        self,
        *,
        accepting: Accepting,
        target: Target,
        ledger: Ledger,
        provisioning: Provisioning,
        evidence: Evidence,
        overriding: Overriding,
        requests: Requests,
        journal: Journal,
    ) -> None:
        self._accepting, self._target, self._ledger = accepting, target, ledger
        self._provisioning, self._overriding, self._journal = provisioning, overriding, journal
        self._evidence, self._requests = evidence, requests
        self.status = Status()
        self._applied: str | None = None
        self._planned_at: datetime | None = None
        self._servers: dict[str, ServerState] = {}
        self._published: dict[str, ServerState] | None = None  # as the target has them; None: nobody knows
        self._shared: Files | None = None
        self._planned: _Planned | None = None
        self._counts = _counted(())  # of what was planned last
        self._stands = False  # whether what was planned last is what the target holds

    def reconcile(self, at: datetime, *, wait: bool = False) -> datetime | None:
        """Do one pass at ``at``; return when the next is due by the clock. Repeating a pass changes nothing.

        ``wait``: until the BMC jobs of this pass and the one before have ended.
        """
        try:
            self._requests.carry_out(at)
            self._accepting.accept(at)
            self._learn(at)
        finally:  # a ledger that cannot be written keeps no window open
            self._bring_up_to_date(at)
        accepted = self._accepting.accepted
        if accepted is not None and self._is_ours(accepted, at):
            # An override is set only for what was published: a machine that resets at once finds its files.
            may_set = self._stands and self._accepting.suspended(at) is None
            self._overriding.ask(self._fleet(accepted), at, may_set=may_set)
            if wait:
                self._overriding.collect(self._fleet(accepted), at, wait=True)
            self._check_opt_outs(accepted, at)
        self._journal.condition("LedgerWritable", True, "Writable", "the last pass ended", at)
        return self._report()

    def _fleet(self, accepted: Commit) -> Fleetwide:
        return Fleetwide(accepted, self._servers)

    def _learn(self, at: datetime) -> None:
        """Take in evidence; what was fetched before this start is evidence of what is offered now."""
        accepted = self._accepting.accepted
        if accepted is None or not self._is_ours(accepted, at):
            return
        if self._planned is None:
            self._provisioning.know(accepted.decisions, accepted.machines, at)
            self._plan(accepted.decisions, at)
        self._overriding.collect(self._fleet(accepted), at)
        self._provisioning.know(accepted.decisions, accepted.machines, at)

    def _is_ours(self, accepted: Commit, at: datetime) -> bool:
        """Whether this instance may act for the accepted commit: a Fleet may name the one ledger that does."""
        named = accepted.fleet.provisioning.ledger
        if named is None or named == self._ledger.identity:
            self._journal.forget("LedgerNamed")
            return True
        message = (
            f"the Fleet names the ledger {named} as the one that publishes and sets overrides, and this instance has "
            f"{self._ledger.identity}: nothing is answered, published or set"
        )
        if self._journal.condition("LedgerNamed", False, "AnotherLedger", message, at):
            self._journal.event(at, "StandsBack", message, warning=True)
        self._planned_at, self._stands = None, False
        return False

    def _bring_up_to_date(self, at: datetime) -> None:
        accepted = self._accepting.accepted
        if accepted is None or not self._is_ours(accepted, at):
            return
        self._plan(accepted.decisions, at)
        if not self._stands:
            self._publish(accepted, at)

    def ledger_failed(self, error: LedgerError, at: datetime) -> None:
        """Note that a pass ended early because the ledger could not be written; what is answered goes on."""
        self._journal.condition("LedgerWritable", False, "Failed", str(error), at)
        self._report()

    def source_fetched(self, error: TryAgain | OperatorError | None, at: datetime) -> None:
        """Note how the last fetch went."""
        if error is None:
            self._journal.condition("SourceReady", True, "Fetched", "the source was fetched", at)
        else:
            self._journal.condition("SourceReady", False, type(error).__name__, str(error), at)

    # plan -> render

    def _plan(self, decisions: Decisions, at: datetime) -> None:
        """Plan and render each server whose decision, record or instant asks for it."""
        before, records = self._servers, self._provisioning.records
        if self._planned_at is not None and at < self._planned_at:
            before = {}  # the clock was set back: what was planned for later does not hold
        elif self._planned is not None and self._planned.holds(decisions, records, at):
            return
        self._servers = {}
        accepted = self._accepting.accepted
        about = about_servers(accepted.sites, accepted.labels, accepted.addresses) if accepted is not None else {}
        for name, decision in decisions.servers.items():
            state, record = before.get(name), records.get(decision.uuid)
            if state is None or not state.holds(decision, record, at, about[name]):
                state = server_state(decisions, decision, record, at, about[name])
            self._servers[name] = state
        transitions = (state.transition for state in self._servers.values() if state.transition is not None)
        self._planned = _Planned(decisions, records, min(transitions, default=None))
        same = self._servers.keys() == before.keys() and all(
            state is before[name] for name, state in self._servers.items()
        )
        self._stands = self._stands and same and self._applied == decisions.revision
        self._counts = _counted(self._servers.values())
        consumed = [name for name, state in self._servers.items() if state.plan and state.plan.cause is Cause.CONSUMED]
        self._note_consumed(consumed, at)

    def _note_consumed(self, servers: list[str], at: datetime) -> None:
        """Say of which servers only a person can tell whether they were installed."""
        if servers:
            message = (
                f"an override was consumed, and no evidence followed within 30 minutes: {', '.join(servers[:5])}"
                f"{f' and {len(servers) - 5} more' if len(servers) > 5 else ''}; look at them, then gitboot records set"
            )
            if self._journal.condition("BootsProven", False, "NeedsOperator", message, at):
                self._journal.event(at, "NeedsOperator", message, {"servers": servers}, warning=True)
        else:
            self._journal.condition("BootsProven", True, "Proven", "no consumed override waits for evidence", at)

    # publish

    def _publish(self, accepted: Commit, at: datetime) -> None:
        """Bring the tree to what was planned. Where that fails, what stands there still turns by the clock."""
        states, decisions = self._servers.values(), accepted.decisions
        known = {state.decision.uuid: state.record for state in states if state.record is not None}
        files = {path: file for state in states for path, file in state.files.items()}
        shared = {**shared_files(decisions), "ops/records.json": File(exported(known), ContentType.JSON)}
        entries = {path: each for state in states for path, each in state.entries.items()}
        unnoted = self._note_offers(entries, files, at)
        self._planned_at = at
        before = self._published or {}
        changed: dict[str, Files | None] = dict.fromkeys(before.keys() - self._servers.keys())
        changed |= {name: state.files for name, state in self._servers.items() if before.get(name) is not state}
        try:
            if unnoted is not None:
                raise unnoted
            published = self._target.publish(
                changed,
                shared if shared != self._shared else None,
                complete=self._published is None,
                commit=decisions.revision,
                at=at,
            )
        except PublishError as error:
            if self._journal.condition("Published", False, type(error).__name__, str(error), at):
                self._journal.event(at, "PublishFailed", str(error), warning=True)
            return
        self._evidence.published()
        self._published, self._shared = self._servers, shared
        self._applied, self._stands = decisions.revision, True
        self._journal.condition("Published", True, "Published", f"{len(self._servers)} servers stand", at)
        if published.written or published.withdrawn:
            counts = {
                "written": len(published.written),
                "withdrawn": len(published.withdrawn),
                "unchanged": published.unchanged,
            }
            message = ", ".join(f"{count} {what}" for what, count in counts.items())
            self._journal.event(at, "Published", message, {"commit": decisions.revision, **counts})

    def _note_offers(
        self, entries: Mapping[str, Digest], files: Files, at: datetime
    ) -> LedgerError | PublishError | None:
        """Note what is about to be offered, before a machine can fetch it.

        Where that fails nothing is published: its fetches could not be told from others after a restart.
        """
        offers = self._provisioning.offers
        try:
            self._provisioning.offer(self._servers.values(), at)
            plans = {path: digest for path, digest in entries.items() if digest in offers}
            self._evidence.expect(plans, lambda path: self._target.dated(path, files[path], at))
        except (LedgerError, PublishError) as error:
            return error
        return None

    # report

    def _check_opt_outs(self, accepted: Commit, at: datetime) -> None:
        """Say which pins and holds are past their deadlines; nothing changes by itself."""
        late = [each.what for each in accepted.opt_outs if each.until is not None and each.until <= at]
        if late:
            self._journal.condition("OptOutsInTime", False, "Overdue", f"past their deadlines: {', '.join(late)}", at)
        else:
            self._journal.condition("OptOutsInTime", True, "InTime", "no pin or hold is past its deadline", at)

    def _report(self) -> datetime | None:
        """Say where this instance stands; return when something is due next."""
        next_transition = self._planned.until if self._planned is not None else None
        self.status = Status(
            ledger=self._ledger.identity,
            attempted=self._accepting.attempted,
            problems=self._accepting.problems,
            held=self._accepting.held,
            applied=self._applied,
            planned_at=self._planned_at,
            next_transition=next_transition,
            **self._counts,
            bmcs=self._overriding.outcomes,
            conditions=self._journal.conditions,
        )
        dues = (next_transition, self._overriding.next_due, self._accepting.suspended_until)
        return min((due for due in dues if due is not None), default=None)


class _Counts(TypedDict):
    """Servers by what they boot, and by what is known of them."""

    phases: Mapping[str, int]
    records: Mapping[str, int]
    drift: Mapping[str, int]


def _counted(states: Iterable[ServerState]) -> _Counts:
    phases, records, drifts = Counter[str](), Counter[str](), Counter[str]()
    for state in states:
        phases[str(state.plan.phase) if state.plan else "NoPlan"] += 1
        known = "Unknown" if state.record is None else "Pending" if state.record.provision is None else "Provisioned"
        records[known] += 1
        drifts.update(drift(state.decision, state.record).keys())
    return _Counts(phases=phases, records=records, drift=drifts)
