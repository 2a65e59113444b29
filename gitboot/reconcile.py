"""One pass: source -> load -> decide -> plan -> render -> publish -> override -> report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, Protocol, TypedDict

from gitboot.answers import ServerState, server_state
from gitboot.errors import (
    CorruptClone,
    InvalidRepository,
    LedgerError,
    OperatorError,
    Problem,
    PublishError,
    SourceError,
    TryAgain,
)
from gitboot.evidence import Evidence
from gitboot.journal import Journal
from gitboot.ledger import Ledger
from gitboot.load import BlobId, FleetRepository, ParseCache, Revision, Snapshot, load
from gitboot.machines import Machine, machines
from gitboot.model.scalars import SystemUuid
from gitboot.orders import Orders
from gitboot.overriding import Fleetwide, Overriding
from gitboot.plan import Cause, Record
from gitboot.provisioning import Provisioning
from gitboot.publish.directory import Published
from gitboot.records import drift, exported
from gitboot.render import shared_files
from gitboot.render.tree import ContentType, File, Files
from gitboot.report import Answers, EntryOf, Status
from gitboot.resolve import Decisions, decide
from gitboot.resolve.optouts import OptOut, opt_outs
from gitboot.source import Source


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

    def publish(self, files: Files, *, commit: str, at: datetime) -> Published:
        """Bring the target to hold exactly ``files``."""

    def dated(self, path: str, at: datetime) -> int:
        """What a new version of ``path`` will be dated, in seconds since 1970, when it is published ``at``."""


class Reconciler:
    """One instance: what it has accepted, planned and published; `reconcile` is one pass over it.

    A pass never fails for a bad commit, a lost source, a full disk or a BMC: each is a condition, and the
    last accepted commit goes on being planned, so that windows end while Git is down.
    """

    def __init__(
        self,
        *,
        source: Source,
        target: Target,
        ledger: Ledger,
        provisioning: Provisioning,
        evidence: Evidence,
        overriding: Overriding,
        orders: Orders,
        journal: Journal,
        parsed: ParseCache,
        keep_parsed: Callable[[ParseCache], None],
        allow_rewind: bool = False,
    ) -> None:
        self._parsed, self._keep_parsed = parsed, keep_parsed
        self._allow_rewind = allow_rewind
        self._source, self._target, self._ledger = source, target, ledger
        self._provisioning, self._overriding, self._journal = provisioning, overriding, journal
        self._evidence, self._orders = evidence, orders
        self.answers: Answers | None = None  # what the endpoint answers from; replaced as a whole
        self.status = Status()
        self._snapshot: Snapshot | None = None
        self._repository: FleetRepository | None = None
        self._machines: Mapping[SystemUuid, Machine] = {}
        self._decisions: Decisions | None = None
        self._attempted: Revision | None = None
        self._problems: tuple[Problem, ...] = ()  # of the attempted commit
        self._applied: str | None = None
        self._planned_at: datetime | None = None
        self._servers: dict[str, ServerState] = {}
        self._planned: _Planned | None = None
        self._counts = _counted(())  # of what was planned last
        self._opt_outs: tuple[FleetRepository | None, tuple[OptOut, ...]] = (None, ())
        self._stands = False  # whether what was planned last is what the target holds

    def reconcile(self, at: datetime, *, wait: bool = False) -> datetime | None:
        """Do one pass at ``at``; return when the next is due by the clock. Repeating a pass changes nothing.

        ``wait``: until the BMC jobs of this pass and the one before have ended.
        """
        try:
            self._accept(at)
            self._learn(at)
        finally:  # a ledger that cannot be written keeps no window open
            self._bring_up_to_date(at)
        if self._repository is not None and self._is_ours(at):
            # Armed is only what was published: a machine that resets at once finds its files.
            fleet = Fleetwide(self._repository, self._machines, self._servers)
            self._overriding.ask(fleet, at, may_arm=self._stands)
            if wait:
                self._overriding.collect(fleet, at, wait=True)
            self._check_opt_outs(self._repository, at)
        self._journal.condition("LedgerWritable", True, "Writable", "the last pass ended", at)
        return self._report()

    def _learn(self, at: datetime) -> None:
        """Take in evidence; what was fetched before this start is evidence of what is offered now."""
        if self._repository is None or self._decisions is None or not self._is_ours(at):
            return
        if self._planned is None:
            self._provisioning.know(self._decisions, self._machines, at)
            self._plan(self._decisions, at)
        self._overriding.collect(Fleetwide(self._repository, self._machines, self._servers), at)
        self._provisioning.know(self._decisions, self._machines, at)
        self._orders.carry_out(at)

    def _is_ours(self, at: datetime) -> bool:
        """Whether this instance may act for the accepted commit: a Fleet may name the one ledger that does."""
        named = self._repository.fleet.spec.provisioning.ledger if self._repository is not None else None
        if named is None or named == self._ledger.identity:
            self._journal.forget("LedgerNamed")
            return True
        message = (
            f"the Fleet names the ledger {named} as the one that publishes and arms, and this instance has "
            f"{self._ledger.identity}: nothing is answered, published or set"
        )
        if self._journal.condition("LedgerNamed", False, "AnotherLedger", message, at):
            self._journal.event(at, "StandsBack", message, warning=True)
        self.answers, self._planned_at, self._stands = None, None, False
        return False

    def _bring_up_to_date(self, at: datetime) -> None:
        if self._repository is None or self._decisions is None or not self._is_ours(at):
            return
        self._plan(self._decisions, at)
        if not self._stands:
            self._publish(self._repository, self._decisions, at)

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

    # source -> load -> decide

    def _accept(self, at: datetime) -> None:
        """Take the newest commit if it holds together; else the one before goes on.

        After a start that is first the one that was accepted before: bad commits and a lost remote keep it.
        """
        try:
            try:
                self._take_newest(at)
            except CorruptClone as error:
                if self._mend_clone(error, at):
                    self._take_newest(at)
        except SourceError as error:
            self._journal.condition("SourceReady", False, type(error).__name__, str(error), at)

    def _take_newest(self, at: datetime) -> None:
        if self._attempted is None and (accepted := self._accepted()) is not None:
            self._take(accepted, at)
        latest = self._source.latest()
        if latest is not None and latest != self._attempted and not self._is_held(latest, at):
            self._take(latest, at)

    def _accepted(self) -> Revision | None:
        """The commit that was accepted last; the ledger knows it even where the clone was lost."""
        accepted = self._source.accepted()
        if accepted is None and self._ledger.accepted is not None and not self._allow_rewind:
            raise CorruptClone(
                f"the accepted commit {self._ledger.accepted} is not in gitboot's own clone (start once with "
                "--allow-rewind to go on without it)"
            )
        return accepted

    def _mend_clone(self, error: CorruptClone, at: datetime) -> bool:
        """Make the clone anew, and tell whether that could be done; what is answered goes on meanwhile."""
        self._journal.event(at, "CloneCorrupt", str(error), warning=True)
        accepted = self._ledger.accepted
        try:
            self._source.restore(Revision(accepted) if accepted is not None else None)
        except (TryAgain, OperatorError) as failure:
            self._journal.condition("SourceReady", False, "CorruptClone", f"{error}; {failure}", at)
            return False
        self._journal.event(at, "CloneRestored", "gitboot's own clone was made anew")
        self._snapshot = None
        return True

    def _is_held(self, latest: Revision, at: datetime) -> bool:
        """Whether a commit leaves out something of what led to the accepted one, and nobody allowed that."""
        accepted = self._accepted()
        if self._allow_rewind or accepted is None or not self._source.is_rewind(accepted, latest):
            return False
        message = (
            f"{latest[:12]} does not descend from the accepted {accepted[:12]}: the branch was rewound or "
            "force-pushed; start once with --allow-rewind if that is meant"
        )
        self._attempted, self._problems = latest, ()
        if self._journal.condition("CommitAccepted", False, "Rewound", message, at):
            self._journal.event(at, "Held", message, {"commit": latest}, warning=True)
        return True

    def _take(self, revision: Revision, at: datetime) -> None:
        """Accept a commit as a whole, or refuse it as a whole."""
        known = dict(self._parsed)
        try:
            snapshot = self._source.snapshot(revision, previous=self._snapshot)
            repository = load(snapshot, known)
            decisions = decide(repository)
        except InvalidRepository as error:
            self._refuse(revision, error, at)
            return
        self._ledger.accept(revision)
        self._source.accept(revision)
        self._attempted, self._problems = revision, decisions.warnings
        self._decisions, self._machines = decisions, machines(repository)
        # Whatever can read the clone holds its packs open, and libgit2 to them after `restore` has replaced them.
        self._snapshot, self._repository = replace(snapshot, read=_closed), replace(repository, read=_closed)
        before = self._parsed
        self._parsed = {blob: known[blob] for blob in snapshot.blobs.values() if blob in known}
        if self._parsed.keys() != before.keys():
            self._keep_parsed(self._parsed)
        message = f"{revision[:12]} decides what {len(decisions.servers)} servers boot"
        self._journal.condition("CommitAccepted", True, "Valid", message, at)
        self._journal.event(at, "Accepted", message, {"commit": revision})

    def _refuse(self, revision: Revision, error: InvalidRepository, at: datetime) -> None:
        self._attempted, self._problems = revision, error.problems
        rest = f", and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
        message = f"{revision[:12]} is invalid: {error.problems[0]}{rest}"
        self._journal.condition("CommitAccepted", False, "Invalid", message, at)
        facts = {"commit": revision, "problems": [str(problem) for problem in error.problems]}
        self._journal.event(at, "Refused", message, facts, warning=True)

    # plan -> render

    def _plan(self, decisions: Decisions, at: datetime) -> None:
        """Plan and render each server whose decision, record or instant asks for it."""
        before, records = self._servers, self._provisioning.records
        if self._planned_at is not None and at < self._planned_at:
            before = {}  # the clock was set back: what was planned for later does not hold
        elif self._planned is not None and self._planned.holds(decisions, records, at):
            return
        self._servers = {}
        for name, decision in decisions.servers.items():
            state, record = before.get(name), records.get(decision.uuid)
            if state is None or not state.holds(decision, record, at):
                state = server_state(decisions, decision, record, at)
            self._servers[name] = state
        transitions = (state.transition for state in self._servers.values() if state.transition is not None)
        self._planned = _Planned(decisions, records, min(transitions, default=None))
        same = self._servers.keys() == before.keys() and all(
            state is before[name] for name, state in self._servers.items()
        )
        self._stands = self._stands and same and self._applied == decisions.revision
        self._counts = _counted(self._servers.values())
        spent = [name for name, state in self._servers.items() if state.plan and state.plan.cause is Cause.SPENT]
        self._note_spent(spent, at)

    def _note_spent(self, servers: list[str], at: datetime) -> None:
        """Say of which servers only a person can tell whether they were installed."""
        if servers:
            message = (
                f"an override was spent, and no evidence followed within 30 minutes: {', '.join(servers[:5])}"
                f"{f' and {len(servers) - 5} more' if len(servers) > 5 else ''}; look at them, then gitboot records set"
            )
            if self._journal.condition("BootsProven", False, "NeedsOperator", message, at):
                self._journal.event(at, "NeedsOperator", message, {"servers": servers}, warning=True)
        else:
            self._journal.condition("BootsProven", True, "Proven", "no spent override waits for evidence", at)

    # publish

    def _publish(self, repository: FleetRepository, decisions: Decisions, at: datetime) -> None:
        """Bring the endpoint and the tree to what was planned.

        The endpoint answers from memory: a full disk keeps no window open there.
        """
        states = self._servers.values()
        known = {state.decision.uuid: state.record for state in states if state.record is not None}
        files = {path: file for state in states for path, file in state.files.items()}
        files |= shared_files(decisions)
        files["ops/records.json"] = File(exported(known), ContentType.JSON)
        entries = {path: each for state in states for path, each in state.entries.items()}
        unnoted = self._note_offers(entries, at)
        self.answers = Answers(
            files=files,
            turns={path: each for state in states for path, each in state.turns.items()},
            entries=entries,
            servers={name: state.summary for name, state in self._servers.items()},
            addresses=_addresses(repository),
        )
        self._planned_at = at
        if unnoted is not None:
            raise unnoted
        try:
            published = self._target.publish(files, commit=decisions.revision, at=at)
        except PublishError as error:
            if self._journal.condition("Published", False, type(error).__name__, str(error), at):
                self._journal.event(at, "PublishFailed", str(error), warning=True)
            return
        self._applied, self._stands = decisions.revision, True
        self._journal.condition("Published", True, "Published", f"{len(files)} files stand", at)
        if published.written or published.withdrawn:
            counts = {
                "written": len(published.written),
                "withdrawn": len(published.withdrawn),
                "unchanged": published.unchanged,
            }
            message = ", ".join(f"{count} {what}" for what, count in counts.items())
            self._journal.event(at, "Published", message, {"commit": decisions.revision, **counts})

    def _note_offers(self, entries: Mapping[str, EntryOf], at: datetime) -> LedgerError | None:
        """Note what is about to be offered, before a machine can fetch it.

        Where that fails the endpoint answers all the same, and what it is asked counts for as long as this
        process lives; but no file is published whose fetches could not be told from others after a restart.
        """
        offers = self._provisioning.offers
        try:
            self._provisioning.offer(self._servers.values(), at)
            plans = {path: entry.digest for path, entry in entries.items() if entry.digest in offers}
            self._evidence.expect(plans, lambda path: self._target.dated(path, at))
        except LedgerError as error:
            return error
        return None

    # report

    def _check_opt_outs(self, repository: FleetRepository, at: datetime) -> None:
        """Say which pins and holds are past their deadlines; nothing changes by itself."""
        if self._opt_outs[0] is not repository:
            self._opt_outs = repository, tuple(opt_outs(repository))
        late = [each.what for each in self._opt_outs[1] if each.until is not None and each.until <= at]
        if late:
            self._journal.condition("OptOutsInTime", False, "Overdue", f"past their deadlines: {', '.join(late)}", at)
        else:
            self._journal.condition("OptOutsInTime", True, "InTime", "no pin or hold is past its deadline", at)

    def _report(self) -> datetime | None:
        """Say where this instance stands; return when something is due next."""
        next_transition = self._planned.until if self._planned is not None else None
        self.status = Status(
            ledger=self._ledger.identity,
            attempted=self._attempted,
            problems=self._problems,
            applied=self._applied,
            planned_at=self._planned_at,
            next_transition=next_transition,
            **self._counts,
            bmcs=self._overriding.outcomes,
            conditions=self._journal.conditions,
        )
        dues = (next_transition, self._overriding.next_due)
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
        known = "Unknown" if state.record is None else "NotMet" if state.record.provision is None else "Met"
        records[known] += 1
        drifts.update(drift(state.decision, state.record).keys())
    return _Counts(phases=phases, records=records, drift=drifts)


def _closed(blob: BlobId) -> bytes:
    """Read nothing: of an accepted commit everything has been read."""
    raise KeyError(blob)


def _addresses(repository: FleetRepository) -> dict[str, str]:
    """Which server has an IP address."""
    return {
        address.partition("/")[0]: name
        for name, server in repository.servers.items()
        for interface in server.spec.interfaces
        for address in interface.addresses
    }
