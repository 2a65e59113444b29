"""Commit judgement: applies the guards to the commits that follow the accepted commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Final

from msgspec import Struct, field, structs

from gitboot.bmc.credentials import CredentialUse, get_credential_use
from gitboot.controller.current_plans import find_changed_servers, find_departed_machines
from gitboot.controller.records.commit_effects import (
    compare_identities_without_base,
    find_declared_boards,
    find_inheritances,
    find_lowered_servers,
    find_new_or_reinstalled,
    list_servers_to_install,
)
from gitboot.controller.records.install_boots import describe_server, list_already_installed, may_have_unread_fetch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import FleetOrders, InvalidRepository, NotEvaluated
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit, EvaluationResult
from gitboot.fleet.identities import NO_MOVES, BmcAccess, LostIdentity, Machine, Moves
from gitboot.fleet.revision import Message, ReinstallsNeed, Revision
from gitboot.git.signatures import SignatureChecker
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code, DatedProblem, Problem, Severity, find_next_change
from gitboot.resolve.server_decision import require_no_errors
from gitboot.review.acknowledgements import (
    AckRules,
    IgnoredLine,
    format_ack_lines,
    format_approval,
    has_ack_line,
    list_ack_guards,
)
from gitboot.review.commit_path import CommitPath, PathCommit, PathStep, find_commit_path, find_first_provisions
from gitboot.review.formats import phrases
from gitboot.review.guards import ONLY_APPROVED, Acknowledgements, Guard, InstanceFacts, Limits, Verdict, judge
from gitboot.review.reinstalls import (
    NODE_REASONS,
    GainedIdentity,
    find_lost_identities,
    find_returning_servers,
    update_lost_identities,
)
from gitboot.status.conditions import REASON_SEPARATOR
from gitboot.status.instance_status import PassedCommit
from gitboot.text import format_count, format_names, format_omitted

# Messages about a held commit


_AFTER_GAP: Final = (
    "gitboot ignores approvals in commit messages for now, because this instance was off for a long time and its "
    "ledger may be an older copy. gitboot considers these approvals again after it accepts the newest commit"
)
_MAX_INHERITED: Final = 3  # maximum number of identities in one message


class Candidate(Struct, frozen=True, kw_only=True):
    """A commit that a guard holds."""

    commit: Commit
    verdict: Verdict
    steps: tuple[tuple[Revision, Verdict], ...]  # the steps that need acknowledgement, if there are several
    approvals: Acknowledgements  # the approvals that existed when the commit was judged
    ignored_lines: tuple[IgnoredLine, ...]  # acknowledgement lines that do not count
    released: tuple[str, ...] = ()  # servers that could boot from the network again because the commit ends a stop
    # Who must acknowledge reinstallations; None: a line in any commit is enough.
    reinstalls_need: ReinstallsNeed | None = None
    accepts_lines: bool = True  # whether lines in commit messages count now
    depends_on_records: bool = False  # whether the records determine how many servers the commit reinstalls
    is_preliminary: bool = False  # whether the commit may pass the guards once gitboot reads the records
    reinstalls: tuple[str, ...] = ()  # servers that the commit reinstalls according to the records

    @property
    def accepts_each_step(self) -> bool:
        """Return whether a person can acknowledge each step on its own, because there are several steps."""
        return len(self.steps) > 1 and not any(ONLY_APPROVED & set(verdict.holding_guards) for _, verdict in self.steps)


def format_held_commit(candidate: Candidate) -> str:
    """Return a message that names the guards that hold a commit, with their counts and limits.

    The message does not contain a command, because a terminal would wrap it. The command is the remedy for the
    condition.
    """
    verdict = candidate.verdict
    reasons = REASON_SEPARATOR.join(format_exceeded_limits(verdict))
    message = f"commit {candidate.commit.revision[:12]} is on hold until it is approved: {reasons}"
    if Guard.MAX_REINSTALLS in verdict.holding_guards and candidate.reinstalls:
        message += f". Servers to reinstall: {format_names(candidate.reinstalls)}"
    if Guard.MAX_REINSTALLS in verdict.holding_guards and verdict.inherited:
        identities = "; ".join(map(str, verdict.inherited[:_MAX_INHERITED]))
        omitted = format_omitted(len(verdict.inherited) - _MAX_INHERITED, "identity")
        message += f". Moved identities: {identities} {omitted}".rstrip()
    if not candidate.accepts_lines:
        return f"{message}. {_AFTER_GAP}"
    if not list_ack_lines(verdict, candidate.reinstalls_need):
        message += ". You can approve this commit only with gitboot approve, not in a commit message"
    if candidate.released:
        message += (
            f". The commit also ends a stop, so {format_count(len(candidate.released), 'server')} would boot "
            f"from the network at once: {format_names(candidate.released)}"
        )
    if candidate.accepts_each_step:
        names = format_names([revision[:12] for revision, _ in candidate.steps])
        message += f". You can also approve each merge on its own: {names}"
    ignored_lines = [
        f"{phrases.format_value(ignored.line)!r} does not count: {phrases.format_value(ignored.why)}"
        for ignored in candidate.ignored_lines
    ]
    return f"{message} ({format_names(ignored_lines)})" if ignored_lines else message


def format_exceeded_limits(verdict: Verdict) -> tuple[str, ...]:
    """Return a clause for each exceeded limit that is not acknowledged."""
    return tuple(phrases.format_limit_clause(trip) for trip in verdict.trips if not trip.acknowledged)


def format_ack_instructions(candidate: Candidate) -> str:
    """Return instructions for acknowledging a held commit: the lines for commit messages, and the command."""
    verdict = candidate.verdict
    options = [f"run {format_approval(verdict.digest)}"]
    if candidate.accepts_lines and (lines := list_ack_lines(verdict, candidate.reinstalls_need)):
        options.insert(0, f"add the line {' '.join(lines)} to {describe_ack_message(candidate)}")
    if candidate.accepts_each_step:
        steps = "; ".join(
            f"{revision[:12]}: {' '.join(list_ack_lines(step, candidate.reinstalls_need)) or 'gitboot approve'}"
            for revision, step in candidate.steps
        )
        options.append(f"acknowledge each merge on its own: {steps}")
    return f"To let the commit through, {'. Or '.join(options)}"


def describe_ack_message(candidate: Candidate) -> str:
    """Describe the commit message that must contain the lines that acknowledge a held commit."""
    is_signed = (
        candidate.reinstalls_need is ReinstallsNeed.SIGNED and Guard.MAX_REINSTALLS in candidate.verdict.holding_guards
    )
    return f"the message of a {'signed' if is_signed else 'new'} commit"


def list_ack_lines(verdict: Verdict, reinstalls_need: ReinstallsNeed | None) -> tuple[str, ...]:
    """Return the lines that acknowledge a commit for all guards that hold it, or () if lines are not sufficient."""
    if len(list_ack_guards(verdict, reinstalls_need)) < len(verdict.holding_guards):
        return ()
    return format_ack_lines(verdict, reinstalls_need)


# The judgement


Merges = Sequence[tuple[Revision, Sequence[Message]]]  # each merge, with the messages of the commits that it brings


class EvaluationUnfinished(Exception):
    """The evaluation of a commit is still running."""


class WaitScope(Enum):
    """The steps that wait until gitboot has read all fetches.

    A step waits only if the records show fewer reinstallations than a comparison of the step's two commits.
    """

    NONE = auto()  # no step waits, because gitboot cannot withhold boots or cannot read the fetch log
    OFFERED = auto()  # steps that remove a boot offered by the accepted commit wait
    ALL = auto()


class CommitsAhead(Struct, frozen=True, kw_only=True):
    """The commits after the accepted commit, up to the newest commit."""

    accepted: Commit | None  # None: no commit is accepted yet
    merges: Merges  # oldest first
    omitted_commit: Revision | None = None  # the accepted commit, if the newest commit is not compared with it
    lacks_accepted: bool = False  # whether the omitted commit is in the clone, but cannot be evaluated
    untrusted: Mapping[Revision, Problem] = field(default_factory=dict)  # untrusted commits, with the reason


def check_signatures(signatures: SignatureChecker | None, since: Revision | None, ahead: CommitsAhead) -> CommitsAhead:
    """Return the commits after ``since``, with the signers of acknowledgements and with the untrusted commits."""
    if signatures is None:
        return ahead
    return structs.replace(
        ahead,
        merges=tuple(
            (revision, tuple(signatures.add_signer(each) if has_ack_line(each) else each for each in messages))
            for revision, messages in ahead.merges
        ),
        untrusted=signatures.find_faults(since, [revision for revision, _ in ahead.merges]),
    )


class CommitJudgement(Struct, frozen=True, kw_only=True):
    """The result of judging the commits after the accepted commit."""

    reached: Commit | None = None  # the newest commit that gitboot can accept
    accepted_steps: tuple[tuple[Revision, Verdict], ...] = ()  # the steps up to `reached`
    # Provision numbers of the machines that are new in `accepted_steps`.
    introduced: Mapping[SystemUuid, int] = field(default_factory=dict)
    lowered: Mapping[SystemUuid, str] = field(default_factory=dict)  # see `find_lowered_servers`
    declared_boards: frozenset[SystemUuid] = frozenset()  # see `find_declared_boards`
    moves: Moves = NO_MOVES  # moves of machines in `accepted_steps`
    valid: tuple[Commit, ...] = ()  # the valid commits after the accepted commit, oldest first
    # Machines that `reached` would reinstall if their records did not show that they are already installed.
    rolled_back: frozenset[SystemUuid] = frozenset()
    used_ack_ids: frozenset[str] = frozenset()  # signed acknowledgements that `accepted_steps` used up
    lost: frozenset[LostIdentity] | None = None  # identities that machines have lost; None: unchanged
    approved_bmcs: frozenset[CredentialUse] = frozenset()  # new BMCs whose use of credentials an operator approved
    candidate: Candidate | None = None
    invalid: InvalidRepository | None = None  # why the newest commit is invalid
    problems_until: datetime | None = None  # next time at which a problem of a commit begins or ends; None: never
    orders: FleetOrders | None = None  # the orders in the newest well-formed Fleet, if its commit is not accepted
    passed_commits: tuple[PassedCommit, ...] = ()  # the results for the commits before the newest commit, oldest first
    # Whether an evaluation did not end; the commit counts as invalid until its evaluation ends.
    is_incomplete: bool = False
    evaluated: Revision | None = None  # the newest commit whose evaluation ended, or the accepted commit
    awaits_records: bool = False  # whether gitboot may accept more commits once it has read all fetches
    waits: bool = False  # whether a step that no guard holds waits until fetches are read

    @property
    def newer_commits(self) -> tuple[Commit, ...]:
        """The valid commits after `reached`, oldest first.

        If `reached` is None, these are all valid commits after the accepted commit.
        """
        start = next((position for position, commit in enumerate(self.valid, 1) if commit is self.reached), 0)
        return self.valid[start:]


_Evaluation = EvaluationResult | InvalidRepository


class _Path(Struct, kw_only=True):
    """The path of the commits after the accepted commit, and what gitboot finds out about its commits and steps.

    A step leads from one valid commit to a later valid commit. The accepted commit has position 0.
    """

    ahead: CommitsAhead
    snapshot: LedgerSnapshot
    commits: dict[int, Commit | None]  # valid commits by position, and the accepted commit
    path_commits: list[PathCommit] = field(default_factory=list)
    # Evaluations of valid commits, each compared with the previous valid commit.
    steps: dict[int, EvaluationResult] = field(default_factory=dict)
    lost: dict[int, frozenset[LostIdentity]]  # see `find_lost_before`
    orders: dict[int, FleetOrders] = field(default_factory=dict)
    faults: dict[int, InvalidRepository] = field(default_factory=dict)  # why a commit is invalid
    invalid: InvalidRepository | None = None  # why the newest commit is invalid
    problems_until: datetime | None = None  # see `CommitJudgement`
    reads_records: bool  # whether the judgement uses the records of servers
    # For each judged step (old position, new position), the machines that the step reinstalls according to its two
    # commits, although their records show that they are already installed.
    already_installed: dict[tuple[int, int], tuple[SystemUuid, ...]] = field(default_factory=dict)

    def name_steps(self, steps: Iterable[PathStep]) -> tuple[tuple[Revision, Verdict], ...]:
        """Return the verdict on each step, with the commit that the step leads to."""
        return tuple((self.ahead.merges[step.new - 1][0], step.verdict) for step in steps)

    def may_change_by_records(self, old: int) -> bool:
        """Return whether the records may change the verdict on a step that begins at a position."""
        return not self.reads_records and any(
            machines and position == old for (position, _), machines in self.already_installed.items()
        )

    def find_newest_evaluated_commit(self) -> Revision | None:
        """Return the newest commit whose evaluation ended.

        If no evaluation ended, return the accepted commit or None.
        """
        for position in range(len(self.ahead.merges), 0, -1):
            if not isinstance(self.faults.get(position), NotEvaluated):
                return self.ahead.merges[position - 1][0]
        return self.ahead.accepted.revision if self.ahead.accepted is not None else None

    def find_orders_after(self, reached: int) -> FleetOrders | None:
        """Return the orders in the newest well-formed Fleet, or None if this Fleet's commit is accepted."""
        newest = max(self.orders, default=0)
        return self.orders[newest] if newest > reached else None

    def find_introduced(self, reached: int, excluded: Collection[SystemUuid] = ()) -> dict[SystemUuid, int]:
        """Return the machines that the steps up to a position add, with the provision numbers of their first commits.

        Omit the machines in ``excluded``.
        """
        known = self.ahead.accepted.machines if self.ahead.accepted is not None else {}
        added_by_steps = (
            [(decision.uuid, decision.provision) for decision in step.new_decisions if decision.uuid not in excluded]
            for position, step in sorted(self.steps.items())
            if position <= reached
        )
        return find_first_provisions(known, added_by_steps)

    def find_lost_before(self, position: int) -> frozenset[LostIdentity]:
        """Return the identities that machines lose before a position, assuming that all earlier steps are accepted."""
        if position not in self.lost:
            changes = self.steps[position].extent
            self.lost[position] = update_lost_identities(
                self.find_lost_before(max(earlier for earlier in self.commits if earlier < position)),
                changes.lost_identities,
                changes.gained_identities,
            )
        return self.lost[position]

    def collect_moves(self, reached: int) -> Moves:
        """Return the machines that moved between sites in all steps up to a position.

        A machine that arrived and then left again counts as departed.
        """
        arrived, departed, passed_on = set[SystemUuid](), dict[SystemUuid, Machine](), set[SystemUuid]()
        for position, step in sorted(self.steps.items()):
            if position <= reached:
                arrived.update(step.moves.arrived)
                passed_on.update(step.moves.passed_on)
                departed |= {uuid: step.commit.machines[uuid] for uuid in step.moves.arrived}
                departed |= {machine.uuid: machine for machine in step.moves.departed}
        return Moves(
            arrived=tuple(sorted(arrived)), departed=tuple(departed.values()), passed_on=tuple(sorted(passed_on))
        )


class CommitJudge:
    """Judges the commits after the accepted commit, and caches their evaluations."""

    def __init__(
        self,
        evaluation: EvaluatorClient,
        limits: Limits,
        is_covered: Callable[[BmcAccess], bool],
        reinstalls_need: ReinstallsNeed | None = None,
    ) -> None:
        self._evaluation = evaluation
        self._limits = limits
        self._is_covered = is_covered
        self._reinstalls_need = reinstalls_need
        # Evaluations by the compared commits: base (None: no base), commit.
        self._evaluations: dict[tuple[Revision | None, Revision], _Evaluation] = {}

    def judge(
        self,
        ahead: CommitsAhead,
        snapshot: LedgerSnapshot,
        at: datetime,
        used_ack_ids: frozenset[str] = frozenset(),
        *,
        reads_records: bool = False,
        wait: WaitScope = WaitScope.NONE,
    ) -> CommitJudgement:
        """Judge the commits in ``ahead``, and find the newest commit that gitboot can accept at ``at``.

        Acknowledgements in ``used_ack_ids`` and in ``snapshot`` are used up and do not count again. With
        ``reads_records``, the judgement also uses the records of servers. The caller must first withhold all boots
        that the newest commit removes, and read all fetches of these boots. Without ``reads_records``, the steps that
        ``wait`` selects are not accepted yet, even if no guard holds them.

        Raises `EvaluationUnfinished` or `SourceError`.
        """
        if snapshot.facts.gap:  # lines in commit messages do not count now
            ahead = structs.replace(ahead, merges=tuple((revision, ()) for revision, _ in ahead.merges))
        self._forget_other_commits(ahead)
        path = _Path(
            ahead=ahead,
            snapshot=snapshot,
            reads_records=reads_records,
            commits={0: ahead.accepted},
            lost={0: snapshot.lost_identities},
        )
        self._evaluate_commits(path, at)
        judgement = CommitJudgement(
            invalid=path.invalid,
            problems_until=path.problems_until,
            orders=path.find_orders_after(0),
            passed_commits=tuple(_list_passed_commits(path, None)),
            is_incomplete=any(isinstance(fault, NotEvaluated) for fault in path.faults.values()),
            evaluated=path.find_newest_evaluated_commit(),
        )
        if not path.path_commits:
            return judgement
        commit_path = find_commit_path(
            path.path_commits,
            lambda old, new: self._judge_step(path, old, new, wait),
            collect_approvals(snapshot),
            AckRules(reinstalls_need=self._reinstalls_need, used_ids=snapshot.used_acknowledgements | used_ack_ids),
            lambda old, new: self._update_lost(path, old, new),
        )
        return self._add_path(judgement, path, commit_path)

    def _add_path(self, judgement: CommitJudgement, path: _Path, commit_path: CommitPath) -> CommitJudgement:
        """Return the judgement with the steps of a path, the commit that they reach and the commit that is held."""
        accepted, moves = path.ahead.accepted, path.collect_moves(commit_path.reached)
        judgement = structs.replace(
            judgement,
            accepted_steps=path.name_steps(commit_path.accepted_steps),
            valid=tuple(commit for position, commit in sorted(path.commits.items()) if position and commit is not None),
            rolled_back=frozenset(
                uuid for step in commit_path.accepted_steps for uuid in path.already_installed[step.old, step.new]
            ),
            used_ack_ids=commit_path.used_line_ids,
            introduced=path.find_introduced(commit_path.reached, moves.machines),
            moves=moves,
            candidate=self._build_candidate(path, commit_path),
            orders=path.find_orders_after(commit_path.reached),
            passed_commits=tuple(_list_passed_commits(path, commit_path)),
            awaits_records=commit_path.held_step is not None and path.may_change_by_records(commit_path.reached),
            waits=commit_path.waits,
        )
        reached = path.commits[commit_path.reached] if commit_path.reached else None
        if reached is None:
            return judgement
        return structs.replace(
            judgement,
            reached=reached,
            lost=path.find_lost_before(commit_path.reached),
            approved_bmcs=self._find_uncovered_bmcs(accepted, reached, path.snapshot),
            lowered=find_lowered_servers(accepted, reached) if accepted is not None else {},
            declared_boards=find_declared_boards(accepted, reached) if accepted is not None else frozenset(),
        )

    def forget_unevaluated_commits(self) -> None:
        """Forget the evaluations that did not end, so that they are repeated."""
        self._evaluations = {
            pair: evaluation
            for pair, evaluation in self._evaluations.items()
            if not isinstance(evaluation, NotEvaluated)
        }

    def _forget_other_commits(self, ahead: CommitsAhead) -> None:
        """Forget the evaluations of commits that are neither accepted nor ahead of the accepted commit."""
        revisions = {revision for revision, _ in ahead.merges}
        if ahead.accepted is not None:
            revisions.add(ahead.accepted.revision)
        self._evaluations = {
            (base, revision): evaluation
            for (base, revision), evaluation in self._evaluations.items()
            if revision in revisions and (base is None or base in revisions)
        }

    def _evaluate_commits(self, path: _Path, at: datetime) -> None:
        """Evaluate each commit of a path, compared with the last valid commit before it."""
        ahead, facts = path.ahead, path.snapshot.facts
        has_begun = ahead.accepted is not None or facts.accepted is not None or facts.lapsed is not None
        change_times: list[datetime] = []
        for position, (revision, messages) in enumerate(ahead.merges, 1):
            if (fault := ahead.untrusted.get(revision)) is not None:  # an untrusted commit is not read
                evaluation: _Evaluation = InvalidRepository([fault])
            else:
                evaluation = self._evaluate(revision, path.commits[max(path.commits)])
                if (change_at := find_next_change(_list_dated_problems(evaluation), at)) is not None:
                    change_times.append(change_at)
                evaluation = _select_evaluation_at(evaluation, at)
            if isinstance(evaluation, EvaluationResult) and evaluation.no_site is not None and not has_begun:
                # The name of the site is probably misspelled.
                evaluation = InvalidRepository([evaluation.no_site], fleet=evaluation.commit.fleet)
            path.path_commits.append(
                PathCommit(revision=revision, valid=isinstance(evaluation, EvaluationResult), messages=tuple(messages))
            )
            if isinstance(evaluation, EvaluationResult):
                path.invalid = None
                path.commits[position] = evaluation.commit
                path.steps[position] = evaluation
                path.orders[position] = evaluation.commit.orders
            else:
                path.invalid = evaluation
                path.faults[position] = evaluation
                if evaluation.fleet is not None:
                    path.orders[position] = evaluation.fleet.find_orders(facts.site or None)
        # Judge the commits up to the last valid commit. The invalid commits after it do not matter.
        if path.invalid is not None:
            del path.path_commits[max(path.commits) :]
        path.problems_until = min(change_times, default=None)

    def _evaluate(self, revision: Revision, base: Commit | None) -> _Evaluation:
        """Return the evaluation of a commit. Raises `EvaluationUnfinished` if the evaluation is still running."""
        pair = base.revision if base is not None else None, revision
        if pair not in self._evaluations:
            try:
                evaluation: _Evaluation | None = self._evaluation.evaluate(revision, base)
            except InvalidRepository as error:
                evaluation = error
            if evaluation is None:
                raise EvaluationUnfinished
            if isinstance(evaluation, EvaluationResult):
                evaluation = _select_nodes_of_site(base, evaluation)
            self._evaluations[pair] = evaluation
        return self._evaluations[pair]

    def _evaluate_step(self, path: _Path, old: int, new: int) -> EvaluationResult:
        """Return the evaluation of the valid commit at ``new``, compared with the commit at ``old``."""
        evaluation = self._evaluate(path.ahead.merges[new - 1][0], path.commits[old])
        assert isinstance(evaluation, EvaluationResult)  # noqa: S101 - a valid commit can be evaluated against any base
        return evaluation

    def _judge_step(self, path: _Path, old: int, new: int, wait: WaitScope) -> Verdict:
        """Return the guards' verdict on one step, ignoring acknowledgements, and whether the step waits."""
        evaluated, base, accepted = self._evaluate_step(path, old, new), path.commits[old], path.ahead.accepted
        installed: tuple[SystemUuid, ...] = ()
        if base is not None:
            installed = list_already_installed(evaluated.extent.by_policy, base, evaluated.commit, path.snapshot)
        path.already_installed[old, new] = installed
        verdict = self._judge_changes(path, old, new, evaluated)
        if path.reads_records or wait is WaitScope.NONE or accepted is None or not installed:
            return verdict
        if wait is WaitScope.ALL or may_have_unread_fetch(accepted, evaluated.commit, installed, path.snapshot):
            return structs.replace(verdict, waits=True)
        return verdict

    def _update_lost(self, path: _Path, old: int, new: int) -> None:
        """Set the identities that machines lost before the position ``new``, to which a step can be accepted."""
        evaluated = self._evaluate_step(path, old, new)
        gains, lost = _find_identity_changes(path, old, evaluated)
        path.lost[new] = update_lost_identities(lost, evaluated.extent.lost_identities, gains)

    def _build_candidate(self, path: _Path, commit_path: CommitPath) -> Candidate | None:
        """Return the newest commit if a guard holds it, or None. An invalid newest commit is not held."""
        step, newest = commit_path.held_step, path.commits.get(len(path.path_commits))
        if step is None or path.invalid is not None or newest is None:
            return None
        evaluated = self._evaluate(newest.revision, path.commits[step.old])
        assert isinstance(evaluated, EvaluationResult)  # noqa: S101 - guards judge only valid commits
        installed = path.already_installed[step.old, step.new]
        reinstalled, installed_names = evaluated.extent.by_policy, evaluated.commit.select_server_names(installed)
        return Candidate(
            commit=newest,
            verdict=step.verdict,
            steps=path.name_steps(commit_path.unacknowledged_steps),
            approvals=collect_approvals(path.snapshot),
            ignored_lines=commit_path.ignored_lines,
            reinstalls_need=self._reinstalls_need,
            accepts_lines=not path.snapshot.facts.gap,
            depends_on_records=bool(reinstalled),
            is_preliminary=bool(installed)
            and not path.reads_records
            and all(
                trip.guard is Guard.MAX_REINSTALLS and trip.number - len(installed) <= trip.limit
                for trip in step.verdict.trips
                if not trip.acknowledged
            ),
            reinstalls=tuple(name for name in reinstalled if name not in installed_names),
        )

    def _find_uncovered_bmcs(
        self, base: Commit | None, commit: Commit, snapshot: LedgerSnapshot
    ) -> frozenset[CredentialUse]:
        """Return the BMCs that a commit adds and that must not receive credentials without an approval."""
        before: Mapping[SystemUuid, Machine] = {}
        machines: Iterable[Machine] = commit.machines.values()
        if base is not None:
            before = base.machines
            machines = commit.select_machines(find_changed_servers(base, commit))
        new_bmcs = [
            machine.bmc
            for machine in machines
            if machine.bmc is not None
            and (machine.uuid not in before or before[machine.uuid].bmc != machine.bmc)
            and get_credential_use(machine.bmc) not in snapshot.known_pairs
        ]
        if not new_bmcs:
            return frozenset()
        known = {get_credential_use(machine.bmc) for machine in before.values() if machine.bmc is not None}
        return frozenset(
            get_credential_use(bmc)
            for bmc in new_bmcs
            if get_credential_use(bmc) not in known and not self._is_covered(bmc)
        )

    def _judge_changes(self, path: _Path, old: int, new: int, evaluated: EvaluationResult) -> Verdict:
        """Return the guards' verdict on one step, ignoring acknowledgements."""
        ahead, snapshot = path.ahead, path.snapshot
        base, commit = path.commits[old], evaluated.commit
        changes, arrivals = evaluated.extent, evaluated.new_decisions
        limits = self._limits.tighten(commit.fleet.guards)
        if base is not None:  # the previous guards also judge a commit that loosens the guards
            limits = limits.tighten(base.fleet.guards)
        else:
            arrivals = find_new_or_reinstalled(snapshot, arrivals)
        if path.reads_records:
            changes = changes.without_reinstalls(commit.select_server_names(path.already_installed[old, new]))
        gains, lost = _find_identity_changes(path, old, evaluated)
        # Machines that come back look new in the comparison with the base. Only the records tell them apart.
        returning = find_returning_servers(arrivals, snapshot.records, snapshot.machines, changes.unknown_claims)
        inherited = find_inheritances(
            [gain for gain in gains if not gain.is_counted and gain.server not in returning],
            lost,
            commit,
            snapshot,
            path.find_introduced(old),
        )
        identity = snapshot.facts.identity
        if ahead.omitted_commit is not None:
            changes = changes.with_rewind(ahead.omitted_commit, commit.revision)
        if ahead.lacks_accepted:
            changes = changes.with_known_servers(snapshot.accepted_machines, commit.machines)
        facts = InstanceFacts(
            pending=len(list_servers_to_install(snapshot, commit.decisions)) if base is None else None,
            returning=returning,
            inheritances=inherited,
            is_rewind=ahead.omitted_commit is not None and not ahead.lacks_accepted,
            lacks_accepted=ahead.lacks_accepted,
            takeover=changes.takeover
            or (base is not None and base.allows_ledger(identity) and not commit.allows_ledger(identity)),
            bmcs=len(self._find_uncovered_bmcs(base, commit, snapshot)),
        )
        return judge(changes, limits, facts=facts)


def _list_dated_problems(evaluation: _Evaluation) -> Iterable[DatedProblem]:
    return evaluation.commit.decisions.dated if isinstance(evaluation, EvaluationResult) else evaluation.dated


def _select_evaluation_at(evaluation: _Evaluation, at: datetime) -> _Evaluation:
    """Return the evaluation with the errors that exist at ``at``. A valid commit with such an error is invalid."""
    if isinstance(evaluation, InvalidRepository):
        return evaluation.at(at)
    try:
        require_no_errors(evaluation.commit.decisions, evaluation.commit.fleet, at)
    except InvalidRepository as error:
        return error
    return evaluation


def _select_nodes_of_site(base: Commit | None, evaluated: EvaluationResult) -> EvaluationResult:
    """Select the changes of names and node numbers at this instance's site, because each site has its own.

    A machine loses them when it leaves the site.
    """
    commit, extent = evaluated.commit, evaluated.extent
    if commit.site is None or base is None:
        return evaluated
    lost = {
        identity
        for identity in extent.lost_identities
        if identity.kind not in NODE_REASONS or identity.uuid in base.machines
    }
    for uuid in find_departed_machines(base, commit) or ():
        if (departed := describe_server(base, uuid)) is not None:
            lost.update(identity for identity in find_lost_identities(departed, None) if identity.kind in NODE_REASONS)
    gained = (
        identity
        for identity in extent.gained_identities
        if identity.kind not in NODE_REASONS or identity.server in commit.decisions.servers
    )
    extent = structs.replace(extent, lost_identities=tuple(sorted(lost)), gained_identities=tuple(gained))
    return structs.replace(evaluated, extent=extent)


def _find_identity_changes(
    path: _Path, old: int, evaluated: EvaluationResult
) -> tuple[Sequence[GainedIdentity], frozenset[LostIdentity]]:
    """Return the identities that machines gain in a step, and those that machines lost before the step.

    ``old`` is the position at which the step begins.
    """
    lost = path.find_lost_before(old)
    if path.commits[old] is None:
        return compare_identities_without_base(evaluated.commit, path.snapshot)
    return evaluated.extent.gained_identities, lost


def _list_passed_commits(path: _Path, commit_path: CommitPath | None) -> Iterator[PassedCommit]:
    """Yield the result for each commit before the newest one. ``commit_path`` is None if only the faults are known."""
    held = {step.new: step.verdict for step in commit_path.unacknowledged_steps} if commit_path is not None else {}
    accepted = {step.new: step.verdict for step in commit_path.accepted_steps} if commit_path is not None else {}
    reached = commit_path.reached if commit_path is not None else 0
    first_held = path.ahead.merges[min(held) - 1][0][:12] if held else None
    for position, (revision, _) in enumerate(path.ahead.merges[:-1], 1):
        if (fault := path.faults.get(position)) is not None:
            result = describe_invalid_commit(fault.problems)
        elif position <= reached:
            trips = accepted[position].trips if position in accepted else ()
            result = describe_acceptance(trip.by for trip in trips)
        elif commit_path is not None and commit_path.waits:
            continue
        elif position in held:
            result = describe_holding_guards(held[position].holding_guards)
        else:
            result = f"held behind {first_held}" if first_held is not None else "held with later commits"
        yield PassedCommit(commit=revision, says=result)


def describe_acceptance(acknowledgers: Iterable[str]) -> str:
    """Describe the acceptance of a commit, and name the people who acknowledged the commit."""
    names = "; ".join(dict.fromkeys(acknowledgers))
    return f"accepted, acknowledged by {names}" if names else "accepted"


def describe_holding_guards(guards: Iterable[str]) -> str:
    """Describe which guards hold a commit."""
    return f"held by {', '.join(map(str, guards))}"


def describe_invalid_commit(problems: Iterable[Problem]) -> str:
    """Describe why a commit is invalid."""
    problems = tuple(problems)
    if any(each.code is Code.UNTRUSTED for each in problems):
        return "invalid: not signed by a trusted key"
    return f"invalid: {format_count(sum(each.severity is Severity.ERROR for each in problems), 'error')}"


def collect_approvals(snapshot: LedgerSnapshot) -> Acknowledgements:
    """Return the approvals of operators, by digest and guard."""
    return {(digest, guard): by for digest, guards in snapshot.approvals.items() for guard, by in guards.items()}
