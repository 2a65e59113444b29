"""Commit judgement: applies the guards to the commits that follow the accepted commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto

from msgspec import Struct, field, structs

from gitboot.bmc.credentials import CredentialUse, get_credential_use
from gitboot.controller.current_plans import find_changed_servers, find_departed_machines
from gitboot.controller.records.install_boots import describe_server, list_already_installed, may_have_unread_fetch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.controller.records.provisioning import (
    compare_identities_without_base,
    find_inheritances,
    find_lowered_servers,
    find_new_or_reinstalled,
    list_servers_to_install,
)
from gitboot.errors import FleetOrders, InvalidRepository, NotEvaluated
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit, EvaluationResult
from gitboot.fleet.identities import NO_MOVES, BmcAccess, LostIdentity, Machine, Moves
from gitboot.fleet.revision import Message, ReinstallsNeed, Revision
from gitboot.git.signatures import SignatureChecker
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code, Problem, Severity, find_next_change
from gitboot.resolve.server_decision import require_no_errors
from gitboot.review.acknowledgements import AckRules, IgnoredLine, has_ack_line
from gitboot.review.commit_path import CommitPath, PathCommit, PathStep, find_commit_path, find_first_provisions
from gitboot.review.guards import Acknowledgements, Guard, InstanceFacts, Limits, Verdict, judge
from gitboot.review.reinstalls import (
    NODE_REASONS,
    GainedIdentity,
    find_lost_identities,
    find_returning_servers,
    update_lost_identities,
)
from gitboot.status.instance_status import PassedCommit
from gitboot.text import format_count

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


class CommitJudgement(Struct, frozen=True, kw_only=True):
    """The result of judging the commits after the accepted commit."""

    reached: Commit | None = None  # the newest commit that gitboot can accept
    accepted_steps: tuple[tuple[Revision, Verdict], ...] = ()  # the steps up to `reached`
    # Provision numbers of the machines that are new in `accepted_steps`.
    introduced: Mapping[SystemUuid, int] = field(default_factory=dict)
    lowered: Mapping[SystemUuid, str] = field(default_factory=dict)  # see `find_lowered_servers`
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
        at = next((at for at, each in enumerate(self.valid, 1) if each is self.reached), 0)
        return self.valid[at:]


class _PathEvaluation(Struct, kw_only=True):
    commits: dict[int, Commit | None]  # valid commits by position; position 0 is the accepted commit
    path_commits: list[PathCommit] = field(default_factory=list)
    # Evaluations of valid commits, each compared with the previous valid commit.
    steps: dict[int, EvaluationResult] = field(default_factory=dict)
    lost: dict[int, frozenset[LostIdentity]] = field(default_factory=dict)  # see `find_lost_before`
    orders: dict[int, FleetOrders] = field(default_factory=dict)
    faults: dict[int, InvalidRepository] = field(default_factory=dict)  # why a commit is invalid
    invalid: InvalidRepository | None = None  # why the newest commit is invalid
    problems_until: datetime | None = None  # see `CommitJudgement`

    def find_newest_evaluated_commit(self, ahead: CommitsAhead) -> Revision | None:
        """Return the newest commit whose evaluation ended.

        If no evaluation ended, return the accepted commit or None.
        """
        for position in range(len(ahead.merges), 0, -1):
            if not isinstance(self.faults.get(position), NotEvaluated):
                return ahead.merges[position - 1][0]
        return ahead.accepted.revision if ahead.accepted is not None else None

    def find_orders_after(self, reached: int) -> FleetOrders | None:
        """Return the orders in the newest well-formed Fleet, or None if this Fleet's commit is accepted."""
        return self.orders[newest] if (newest := max(self.orders, default=0)) > reached else None

    def list_new_uuids(self, reached: int, excluded: Collection[SystemUuid]) -> Iterator[list[tuple[SystemUuid, int]]]:
        """Yield, for each accepted commit, the machines that are new in it, with their provision numbers.

        Omit the machines in ``excluded``.
        """
        for position, step in sorted(self.steps.items()):
            if position <= reached:
                yield [(each.uuid, each.provision) for each in step.new_decisions if each.uuid not in excluded]

    def find_lost_before(self, position: int) -> frozenset[LostIdentity]:
        """Return the identities that machines lose before a position, assuming that all earlier steps are accepted."""
        if position not in self.lost:
            changes = self.steps[position].extent
            self.lost[position] = update_lost_identities(
                self.find_lost_before(max(each for each in self.commits if each < position)),
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
        self._evaluation, self._limits = evaluation, limits
        self._is_covered, self._reinstalls_need = is_covered, reinstalls_need
        self._known: dict[tuple[Revision | None, Revision], EvaluationResult | InvalidRepository] = {}

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
        accepts_lines = not snapshot.facts.gap
        if not accepts_lines:
            ahead = structs.replace(ahead, merges=tuple((revision, ()) for revision, _ in ahead.merges))
        path_revisions = {revision for revision, _ in ahead.merges}
        path_revisions |= {ahead.accepted.revision} if ahead.accepted is not None else set()
        self._known = {
            (base, revision): found
            for (base, revision), found in self._known.items()
            if revision in path_revisions and (base is None or base in path_revisions)
        }
        walk = self._evaluate_commits(ahead, snapshot, at)
        judgement = CommitJudgement(
            invalid=walk.invalid,
            problems_until=walk.problems_until,
            orders=walk.find_orders_after(0),
            passed_commits=tuple(_list_passed_commits(ahead, walk, None)),
            is_incomplete=any(isinstance(each, NotEvaluated) for each in walk.faults.values()),
            evaluated=walk.find_newest_evaluated_commit(ahead),
        )
        if not walk.path_commits:
            return judgement
        commits, approvals = walk.commits, collect_approvals(snapshot)
        already_installed: dict[tuple[int, int], tuple[SystemUuid, ...]] = {}
        known = ahead.accepted.machines if ahead.accepted is not None else {}
        walk.lost[0] = snapshot.lost_identities

        def judge_step(old: int, new: int) -> Verdict:
            evaluated = self._evaluate(ahead.merges[new - 1][0], commits[old])
            assert isinstance(evaluated, EvaluationResult)  # noqa: S101 - a valid commit can be evaluated against any base
            base, by_policy = commits[old], evaluated.extent.by_policy
            # According to the two commits, the step reinstalls these machines. According to their records, it does not.
            already_installed[old, new] = (
                list_already_installed(by_policy, base, evaluated.commit, snapshot) if base is not None else ()
            )
            verdict = self._judge_changes(
                ahead,
                commits[old],
                evaluated,
                snapshot,
                walk.find_lost_before(old),
                find_first_provisions(known, walk.list_new_uuids(old, ())),
                evaluated.commit.select_server_names(already_installed[old, new]) if reads_records else frozenset(),
            )
            if reads_records or wait is WaitScope.NONE or ahead.accepted is None or not already_installed[old, new]:
                return verdict
            return (
                structs.replace(verdict, waits=True)
                if wait is WaitScope.ALL
                or may_have_unread_fetch(ahead.accepted, evaluated.commit, already_installed[old, new], snapshot)
                else verdict
            )

        def update_lost(old: int, new: int) -> None:
            evaluated = self._evaluate(ahead.merges[new - 1][0], commits[old])
            assert isinstance(evaluated, EvaluationResult)  # noqa: S101 - it was judged
            gains, lost = _find_identity_changes(commits[old], evaluated, walk.find_lost_before(old), snapshot)
            walk.lost[new] = update_lost_identities(lost, evaluated.extent.lost_identities, gains)

        def name_step(path_step: PathStep) -> tuple[Revision, Verdict]:
            return ahead.merges[path_step.new - 1][0], path_step.verdict

        candidate: Candidate | None = None
        found = find_commit_path(
            walk.path_commits,
            judge_step,
            approvals,
            AckRules(reinstalls_need=self._reinstalls_need, used_ids=snapshot.used_acknowledgements | used_ack_ids),
            update_lost,
        )
        by_fetches = {pair for pair, machines in already_installed.items() if machines and not reads_records}
        if (
            found.held_step is not None
            and walk.invalid is None
            and (newest := commits[len(walk.path_commits)]) is not None
        ):
            step, verdict = (found.held_step.old, found.held_step.new), found.held_step.verdict
            evaluated = self._evaluate(newest.revision, commits[found.held_step.old])
            assert isinstance(evaluated, EvaluationResult)  # noqa: S101 - guards judge only valid commits
            names, installed = evaluated.extent.by_policy, evaluated.commit.select_server_names(already_installed[step])
            candidate = Candidate(
                commit=newest,
                verdict=verdict,
                steps=tuple(map(name_step, found.unacknowledged_steps)),
                approvals=approvals,
                ignored_lines=found.ignored_lines,
                reinstalls_need=self._reinstalls_need,
                accepts_lines=accepts_lines,
                depends_on_records=bool(names),
                is_preliminary=step in by_fetches
                and all(
                    each.guard is Guard.MAX_REINSTALLS and each.number - len(already_installed[step]) <= each.limit
                    for each in verdict.trips
                    if not each.acknowledged
                ),
                reinstalls=tuple(each for each in names if each not in installed),
            )
        moves = walk.collect_moves(found.reached)
        reached = commits[found.reached] if found.reached else None
        return structs.replace(
            judgement,
            reached=reached,
            lost=walk.find_lost_before(found.reached) if reached is not None else None,
            approved_bmcs=self._find_uncovered_bmcs(ahead.accepted, reached, snapshot)
            if reached is not None
            else frozenset(),
            accepted_steps=tuple(map(name_step, found.accepted_steps)),
            valid=tuple(each for at, each in sorted(commits.items()) if at and each is not None),
            rolled_back=frozenset(
                uuid for path_step in found.accepted_steps for uuid in already_installed[path_step.old, path_step.new]
            ),
            used_ack_ids=found.used_line_ids,
            introduced=find_first_provisions(known, walk.list_new_uuids(found.reached, moves.machines)),
            lowered=find_lowered_servers(ahead.accepted, reached) if ahead.accepted and reached else {},
            moves=moves,
            candidate=candidate,
            orders=walk.find_orders_after(found.reached),
            passed_commits=tuple(_list_passed_commits(ahead, walk, found, waits=found.waits)),
            awaits_records=found.held_step is not None and any(old == found.reached for old, _ in by_fetches),
            waits=found.waits,
        )

    def forget_unevaluated_commits(self) -> None:
        self._known = {pair: found for pair, found in self._known.items() if not isinstance(found, NotEvaluated)}

    def _evaluate_commits(self, ahead: CommitsAhead, snapshot: LedgerSnapshot, at: datetime) -> _PathEvaluation:
        change_times: list[datetime] = []
        walk = _PathEvaluation(commits={0: ahead.accepted})
        facts = snapshot.facts
        has_begun = ahead.accepted is not None or facts.accepted is not None or facts.lapsed is not None
        for position, (revision, messages) in enumerate(ahead.merges, 1):
            if (fault := ahead.untrusted.get(revision)) is not None:  # an untrusted commit is not read
                found: EvaluationResult | InvalidRepository = InvalidRepository([fault])
            else:
                found = self._evaluate(revision, walk.commits[max(walk.commits)])
                dated = found.commit.decisions.dated if isinstance(found, EvaluationResult) else found.dated
                change_times += filter(None, [find_next_change(dated, at)])
                try:
                    if isinstance(found, EvaluationResult):
                        require_no_errors(found.commit.decisions, found.commit.fleet, at)
                    else:
                        found = found.at(at)
                except InvalidRepository as error:
                    found = error
            if isinstance(found, EvaluationResult) and found.no_site is not None and not has_begun:  # misspelled site
                found = InvalidRepository([found.no_site], fleet=found.commit.fleet)
            walk.path_commits.append(
                PathCommit(revision=revision, valid=isinstance(found, EvaluationResult), messages=tuple(messages))
            )
            if isinstance(found, EvaluationResult):
                walk.commits[position], walk.invalid = found.commit, None
                walk.steps[position], walk.orders[position] = found, found.commit.orders
            else:
                walk.invalid = walk.faults[position] = found
                if found.fleet is not None:
                    walk.orders[position] = found.fleet.find_orders(snapshot.facts.site or None)
        # Judge the commits up to the last valid commit. The invalid commits after it do not matter.
        if walk.invalid is not None:
            del walk.path_commits[max(walk.commits) :]
        walk.problems_until = min(change_times, default=None)
        return walk

    def _evaluate(self, revision: Revision, base: Commit | None) -> EvaluationResult | InvalidRepository:
        key = base.revision if base is not None else None, revision
        if key not in self._known:
            try:
                found: EvaluationResult | InvalidRepository | None = self._evaluation.evaluate(revision, base)
            except InvalidRepository as error:
                found = error
            if found is None:
                raise EvaluationUnfinished
            self._known[key] = _select_nodes_of_site(base, found) if isinstance(found, EvaluationResult) else found
        return self._known[key]

    def _find_uncovered_bmcs(
        self, base: Commit | None, commit: Commit, snapshot: LedgerSnapshot
    ) -> frozenset[CredentialUse]:
        """Return the BMCs that a commit adds and that must not receive credentials without an approval."""
        before: Mapping[SystemUuid, Machine] = {}
        machines: Iterable[Machine] = commit.machines.values()
        if base is not None:
            before, machines = base.machines, commit.select_machines(find_changed_servers(base, commit))
        new_bmcs = [
            each.bmc
            for each in machines
            if each.bmc is not None
            and (each.uuid not in before or before[each.uuid].bmc != each.bmc)
            and get_credential_use(each.bmc) not in snapshot.known_pairs
        ]
        if not new_bmcs:
            return frozenset()
        known = {get_credential_use(each.bmc) for each in before.values() if each.bmc is not None}
        return frozenset(
            get_credential_use(each)
            for each in new_bmcs
            if get_credential_use(each) not in known and not self._is_covered(each)
        )

    def _judge_changes(
        self,
        ahead: CommitsAhead,
        base: Commit | None,
        evaluated: EvaluationResult,
        snapshot: LedgerSnapshot,
        lost: frozenset[LostIdentity],
        introduced: Mapping[SystemUuid, int],
        installed: frozenset[str] = frozenset(),
    ) -> Verdict:
        """Return the guards' verdict on one step, ignoring acknowledgements.

        ``lost`` are the identities that machines lost before ``base``. ``introduced`` contains the provision numbers of
        the machines that are new since the accepted commit. ``installed`` are servers that, according to their records,
        need no installation and so do not count as reinstalled.
        """
        commit, changes, arrivals = evaluated.commit, evaluated.extent, evaluated.new_decisions
        limits = self._limits.tighten(commit.fleet.guards)
        if base is not None:  # the previous guards also judge a commit that loosens the guards
            limits = limits.tighten(base.fleet.guards)
        else:
            arrivals = find_new_or_reinstalled(snapshot, arrivals)
        changes = changes.without_reinstalls(installed)
        gains, lost = _find_identity_changes(base, evaluated, lost, snapshot)
        # Machines that come back look new in the comparison with the base. Only the records tell them apart.
        returning = find_returning_servers(arrivals, snapshot.records, snapshot.machines, changes.unknown_claims)
        inherited = find_inheritances(
            [each for each in gains if not each.is_counted and each.server not in returning],
            lost,
            commit,
            snapshot,
            introduced,
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


def _select_nodes_of_site(base: Commit | None, evaluated: EvaluationResult) -> EvaluationResult:
    """Select the changes of names and node numbers at this instance's site, because each site has its own.

    A machine loses them when it leaves the site.
    """
    commit, extent = evaluated.commit, evaluated.extent
    if commit.site is None or base is None:
        return evaluated
    lost = {each for each in extent.lost_identities if each.kind not in NODE_REASONS or each.uuid in base.machines}
    for uuid in find_departed_machines(base, commit) or ():
        if (departed := describe_server(base, uuid)) is not None:
            lost.update(each for each in find_lost_identities(departed, None) if each.kind in NODE_REASONS)
    gained = (
        each
        for each in extent.gained_identities
        if each.kind not in NODE_REASONS or each.server in commit.decisions.servers
    )
    extent = structs.replace(extent, lost_identities=tuple(sorted(lost)), gained_identities=tuple(gained))
    return structs.replace(evaluated, extent=extent)


def _find_identity_changes(
    base: Commit | None, evaluated: EvaluationResult, lost: frozenset[LostIdentity], snapshot: LedgerSnapshot
) -> tuple[Sequence[GainedIdentity], frozenset[LostIdentity]]:
    if base is None:
        return compare_identities_without_base(evaluated.commit, snapshot)
    return evaluated.extent.gained_identities, lost


def _list_passed_commits(
    ahead: CommitsAhead, walk: _PathEvaluation, path: CommitPath | None, *, waits: bool = False
) -> Iterator[PassedCommit]:
    steps = {step.new: step.verdict for step in path.unacknowledged_steps} if path is not None else {}
    accepted = {path_step.new: path_step.verdict.trips for path_step in path.accepted_steps} if path is not None else {}
    first = ahead.merges[min(steps) - 1][0][:12] if steps else None
    for position, (revision, _) in enumerate(ahead.merges[:-1], 1):
        if (fault := walk.faults.get(position)) is not None:
            says = describe_invalid_commit(fault.problems)
        elif path is not None and position <= path.reached:
            says = describe_acceptance(trip.by for trip in accepted.get(position, ()))
        elif waits:
            continue
        elif position in steps:
            says = describe_holding_guards(steps[position].holding_guards)
        else:
            says = f"held behind {first}" if first is not None else "held with later commits"
        yield PassedCommit(commit=revision, says=says)


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
