"""Evaluated fleets: evaluate revisions or a range within resource limits, and plan the boots of servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
from msgspec import Struct, structs

from gitboot.cli.evaluator_child import count_evaluation_workers, get_results_cache, limit_evaluation
from gitboot.cli.options import current_time, describe_state_variable, is_path_named
from gitboot.cli.terminal import wrap_text
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import InvalidRepository, UsageError
from gitboot.evaluator.cache import Cache
from gitboot.evaluator.evaluation import CommitPair, Evaluation, Evaluator
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import list_machines
from gitboot.fleet.revision import Message, Revision, Signer, Snapshot, Verify
from gitboot.fleet.validation import load
from gitboot.git.history import CommitRange, History, Merge, open_blame, open_range
from gitboot.git.signatures import SignatureChecker, SignatureKeys
from gitboot.git.snapshots import load_commit, open_snapshot
from gitboot.jsonio import encode_canonical
from gitboot.model.fields import InvalidDocument, Selector, read
from gitboot.model.fleet import Output
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Problem
from gitboot.publish.tree_reader import read_records
from gitboot.render.page import FileUpdates
from gitboot.render.server_files import RenderedState, ServerDetails, build_server_state, render_page_files
from gitboot.resolve.explanation import Explanations, find_source_locations, make_fleet_fields
from gitboot.resolve.fleet_decisions import find_server_sites
from gitboot.resolve.install_attempts import make_first_records
from gitboot.resolve.plan_at_time import drop_ended_windows, find_next_transition, make_plan
from gitboot.resolve.policy_selection import list_opt_outs
from gitboot.resolve.provisioning_record import Record, StopScope
from gitboot.resolve.server_decision import BootFile, Decision, Decisions, require_no_errors, suggest_server
from gitboot.resolve.server_plan import BootPlan, Cause
from gitboot.review.acknowledgements import has_ack_line
from gitboot.review.commit_path import ReviewedCommit
from gitboot.review.decision_changes import Changes, ReviewedRevision
from gitboot.text import format_count, format_names, quote_words

_ENCODING_BATCH: Final = 1000  # the number of results that gitboot encodes together
# with fewer files, the evaluation of a fleet is faster than the search for its results in the cache
MIN_FILES_FOR_CACHE: Final = 500


def load_fleet(path: Path, rev: str | None) -> FleetRepository:
    """Load the fleet at a path without evaluating decisions. Raises `InvalidRepository` if the fleet has errors."""
    with limit_evaluation() as set_limits:
        snapshot = open_snapshot(path, rev)
        set_limits(len(snapshot.blobs))
        return load(snapshot)


def find_fleet_file(path: Path, fleet: FleetRepository) -> Path:
    """Return the file with the Fleet document. Raises `UsageError` if the fleet at ``path`` is not made of files."""
    file = path / fleet.origins[Id("Fleet", fleet.fleet.metadata.name)].path
    if not file.is_file():
        raise UsageError(f"gitboot cannot write documents to {path}: pass a directory or a Git work tree")
    return file


def evaluate_fleet(path: Path, rev: str | None, now: datetime) -> Evaluation:
    """Evaluate the fleet at a path for the given time. Raises `InvalidRepository` if the fleet has errors."""
    with limit_evaluation() as set_limits:
        return FleetEvaluator(now).evaluate(open_snapshot(path, rev), set_limits).head


class FleetEvaluator:
    """An evaluator for snapshots of one fleet. It evaluates all snapshots for the same time.

    If two snapshots share a part, the evaluator evaluates the part only once.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._snapshots: dict[Revision, Snapshot] = {}
        self._last_valid: Revision | None = None
        # the evaluator compares the blobs, so the earlier snapshot does not matter
        self._evaluator = Evaluator(lambda revision, _: self._snapshots[revision], workers=count_evaluation_workers())

    def evaluate(self, snapshot: Snapshot, set_limits: Callable[[int], None], *, is_base: bool = False) -> CommitPair:
        """Evaluate a snapshot, and compare it with the previous valid snapshot. Raises `InvalidRepository`.

        The evaluation calls ``set_limits`` with the number of files. With ``is_base``, the evaluation skips the checks
        that apply only to new commits, because an earlier version of gitboot may have accepted the snapshot.
        """
        set_limits(len(snapshot.blobs))
        self._snapshots[snapshot.revision] = snapshot
        self._evaluator.results = cache = get_results_cache() if len(snapshot.blobs) >= MIN_FILES_FOR_CACHE else None
        try:
            pair = self._evaluator.evaluate(snapshot.revision, self._last_valid)
        except InvalidRepository as error:
            raise error.at(self.now) from None
        self._last_valid = snapshot.revision
        _store_results(self._evaluator, cache)
        if not is_base:
            require_no_errors(pair.head.decided.decisions, pair.head.decided.repository.fleet.spec, self.now)
        return pair


class HistoryEvaluator:
    """An evaluator for commits in the history of a fleet."""

    def __init__(self, history: History, set_limits: Callable[[int], None]) -> None:
        self._cache = get_results_cache()
        self._evaluator = Evaluator(
            history.snapshot, on_begin=set_limits, results=self._cache, workers=count_evaluation_workers()
        )

    def __call__(self, revision: Revision, base: Revision | None) -> CommitPair:
        """Evaluate a commit, and compare it with ``base``. Raises `InvalidRepository`."""
        pair = self._evaluator.evaluate(revision, base)
        if base is None and len(pair.head.loaded.snapshot.blobs) >= MIN_FILES_FOR_CACHE:
            # store the results, because the next command probably reads the same commit
            _store_results(self._evaluator, self._cache)
        return pair


def _store_results(evaluator: Evaluator, cache: Cache | None) -> None:
    if cache is not None:
        for kind, values in evaluator.take_unstored_results(_ENCODING_BATCH):
            cache.insert_many(kind, values)


class PlannedFleet(Struct, frozen=True, kw_only=True):
    """A fleet at one point in time, together with the provisioning records of its servers."""

    repository: FleetRepository
    decisions: Decisions
    at: datetime
    records: Mapping[SystemUuid, Record]
    has_all_records: bool = False  # whether a server without a record is not installed for certain
    place: tuple[Path, str | None] = (Path(), None)  # the repository and the revision, for `open_blame`
    stop: StopScope = StopScope.NONE
    find_missing_files: Callable[[Decision], Collection[BootFile]] = lambda _: ()
    latest_clock: datetime | None = None  # the instance's last heartbeat, if the clock is behind it

    def find_decision(self, server: str) -> Decision:
        """Return the decision for a server. Raises `UsageError` with a similar name if the server does not exist."""
        decision = self.decisions.servers.get(server)
        if decision is None:
            raise UsageError(f"there is no server {server!r}; {suggest_server(server, self.decisions.servers)}")
        return decision

    def require_servers(self, names: Iterable[str]) -> None:
        """Raise `UsageError` if any of these servers does not exist."""
        for name in names:
            self.find_decision(name)

    def plan_server(self, server: str) -> tuple[Decision, BootPlan | None]:
        """Return the decision and the plan for a server.

        The plan is None if no policy selects the server and no maintenance is active. Raises `UsageError` if the server
        does not exist.
        """
        decision = self.find_decision(server)
        return decision, self.make_plan(decision, self.at)

    def make_plan(self, decision: Decision, at: datetime) -> BootPlan | None:
        """Return the plan for a server at a time, or None if no policy or active maintenance selects the server."""
        remaining = drop_ended_windows(decision, self.latest_clock)
        record = self.records.get(decision.uuid)
        return make_plan(remaining, at, record, stop=self.stop, absent_files=self.find_missing_files(decision))

    def find_next_transition(self, decision: Decision, at: datetime) -> datetime | None:
        """Return the next time after ``at`` at which the server's plan changes by itself, or None."""
        remaining = drop_ended_windows(decision, self.latest_clock)
        record = self.records.get(decision.uuid)
        return find_next_transition(
            remaining, at, record, stop=self.stop, absent_files=self.find_missing_files(decision)
        )

    def drop_ended_windows(self) -> Decisions:
        """Return the decisions without the maintenances that had already ended when the clock was set back."""
        if self.latest_clock is None:
            return self.decisions
        servers = {
            name: drop_ended_windows(decision, self.latest_clock) for name, decision in self.decisions.servers.items()
        }
        return structs.replace(self.decisions, servers=servers)

    def render_states(self) -> dict[str, RenderedState]:
        """Return the published state of each server, including its next transitions."""
        details = describe_servers(self.repository, self.decisions)
        return {
            name: build_server_state(self.decisions, decision, self.records.get(decision.uuid), self.at, details[name])
            for name, decision in self.decisions.servers.items()
        }

    def render_pages(self, states: Mapping[str, RenderedState]) -> FileUpdates:
        """Return the files of the status page. If the Fleet's outputs do not include pages, there are no files."""
        if Output.PAGES not in self.decisions.outputs:
            return FileUpdates(is_whole=True)
        facts = encode_canonical(make_fleet_fields(self.repository, list_opt_outs(self.repository)))
        return render_page_files(states, self.decisions.revision, facts, find_source_locations(self.repository))


def describe_servers(repository: FleetRepository, decisions: Decisions) -> dict[str, ServerDetails]:
    """Return the facts about each server that appear on the status page and in exports but do not affect decisions."""
    machines_by_name = {machine.name: machine for machine in list_machines(repository).values()}
    has_page = Output.PAGES in repository.fleet.spec.outputs
    explanations = Explanations(repository, decisions.servers) if has_page else None
    sites = find_server_sites(repository)
    return {
        name: ServerDetails(
            site=sites[name].name if name in sites else None,
            labels=server.metadata.labels,
            addresses=tuple(
                sorted({address.partition("/")[0] for nic in server.spec.interfaces for address in nic.addresses})
            ),
            idle_macs=tuple(nic.mac for nic in server.spec.interfaces if not nic.boot),
            machine=machines_by_name[name],
            source=explanations.explain_server(name) if explanations is not None else None,
        )
        for name, server in repository.servers.items()
    }


def plan_fleet(
    path: Path,
    rev: str | None,
    at: datetime,
    records: str | None,
    state: Path | None = None,
    servers: Iterable[str] = (),
) -> PlannedFleet:
    """Return the fleet at a path, with the records that the option ``--records`` selects.

    Raises `UsageError` if the fleet does not contain these ``servers``. The function checks this before it prints
    anything.

    ``state`` is the state directory of an instance. If ``records`` is None, the records come from the instance's
    ledger. If the command line does not name a fleet, ``rev`` is a revision in the instance's repository. The default
    is the accepted commit, without the boots that the instance withholds.
    """
    if state is None:
        return _plan_fleet_at(path, rev, at, records)
    from gitboot.git.fetch import CLONE

    accepted = _plan_accepted_commit(state, at)
    context = click.get_current_context()
    is_named = is_path_named(context)
    if is_named or rev is not None:
        fleet = _plan_fleet_at(path if is_named else state / CLONE, rev, at, records)
        fleet.require_servers(servers)
        place = str(path) if is_named else f"revision {rev} from the repository in {state}"
        hint = "" if is_named else describe_state_variable(context)
        named_records = _describe_records(records, f"the instance's ledger ({state})")
        click.echo(wrap_text(f"using {place} and {named_records}{hint}"), err=True)
        if records is None:
            return structs.replace(fleet, records=accepted.records, has_all_records=True)
        return fleet
    accepted.require_servers(servers)
    text = (
        f"using commit {accepted.decisions.revision[:12]}, which the instance in {state} has accepted, and "
        f"{_describe_records(records, 'its ledger')}{_describe_withheld_boots(accepted, state)}"
    )
    click.echo(wrap_text(text + describe_state_variable(context)), err=True)
    if records is None:
        return accepted
    loaded_records, has_all_records = _read_records(records, accepted.decisions)
    return structs.replace(accepted, records=loaded_records, has_all_records=has_all_records)


def _plan_accepted_commit(state: Path, at: datetime) -> PlannedFleet:
    """Return the commit that an instance has accepted, without the boots that the instance withholds."""
    from gitboot.cli.instance_client import open_offline
    from gitboot.controller.current_plans import find_stop_scope
    from gitboot.controller.records.install_boots import remove_withheld_boots
    from gitboot.git.fetch import CLONE

    with open_offline(state, at) as instance:
        snapshot = instance.snapshot
        offered_commit = remove_withheld_boots(instance.commit, snapshot.facts.withheld)
        records = {uuid: snapshot.record(uuid) for uuid in snapshot.records}
        return PlannedFleet(
            repository=instance.repository,
            decisions=offered_commit.decisions,
            at=at,
            records={uuid: record for uuid, record in records.items() if record is not None},
            has_all_records=True,
            place=(state / CLONE, offered_commit.decisions.revision),
            stop=find_stop_scope(snapshot, offered_commit, snapshot.facts.orders),
            find_missing_files=snapshot.find_missing_files,
            # compared with the clock and not with --at, because --at may be an earlier time on purpose
            latest_clock=snapshot.find_later_clock(current_time()),
        )


def _describe_records(records: str | None, ledger: str) -> str:
    return f"the records in {ledger}" if records is None else f"the records from --records {records}"


def _describe_withheld_boots(accepted: PlannedFleet, state: Path) -> str:
    """Return which commit a guard holds and which boots the instance withholds, as clauses that begin with "; "."""
    from gitboot.cli.instance_client import read_held_change

    text = ""
    held = read_held_change(state)
    if held is not None:
        text += f"; guards hold commit {held.commit[:12]}"
    withheld = []
    for decision in accepted.decisions.servers.values():
        plan = accepted.make_plan(decision, accepted.at) if decision.withheld else None
        if plan is not None and plan.cause is Cause.WITHHELD:
            withheld.append(plan.server)
    if withheld:
        text += f"; gitboot withholds install boots for {format_names(withheld, 3)}"
    if accepted.stop is not StopScope.NONE:
        text += f"; gitboot withholds {accepted.stop}"
    return text


def print_missing_instance(records: str | None, state: Path | None) -> None:
    """Print a note that lists what gitboot cannot read without an instance.

    Print nothing if ``records`` or ``state`` is set.
    """
    if records is None and state is None:
        click.echo(
            wrap_text("Without --state, gitboot cannot read an instance's accepted commit and records."),
            err=True,
        )


def _plan_fleet_at(path: Path, rev: str | None, at: datetime, records: str | None) -> PlannedFleet:
    evaluated = evaluate_fleet(path, rev, at).decided
    known_records, has_all_records = _read_records(records, evaluated.decisions)
    return PlannedFleet(
        repository=evaluated.repository,
        decisions=evaluated.decisions,
        at=at,
        records=known_records,
        has_all_records=has_all_records,
        place=(path, rev),
    )


def _read_records(records: str | None, decisions: Decisions) -> tuple[Mapping[SystemUuid, Record], bool]:
    """Return the records that the option ``--records`` selects, and whether the option is set."""
    known_records: dict[SystemUuid, Record] = {}
    if records in ("fresh", "adopt"):
        new = make_first_records(decisions.servers.values(), {}, adopt_all=records == "adopt")
        known_records = {uuid: record for uuid, _, record in new}
    elif records is not None:
        try:
            # It is unknown whether a server that is not in the file was installed, as in `gitboot run`.
            known_records = read_records(Path(records))
        except OSError as error:
            raise UsageError(f"--records {records}: {error.strerror}; pass fresh, adopt or a file") from None
    return known_records, records is not None


def print_finished_maintenances(finished_runs: Mapping[str, Mapping[str, str]]) -> None:
    """Print the one-time maintenances that are complete, and how to repeat them.

    ``finished_runs`` contains, for each server, the names of the maintenances and the times at which they finished.
    """
    servers: dict[tuple[str, str], list[str]] = {}
    for server, runs in finished_runs.items():
        for name, at in runs.items():
            servers.setdefault((name, at), []).append(server)
    for (name, at), names in sorted(servers.items()):
        click.echo(
            f"Maintenance/{name}: the one-time boot was consumed at {at} ({format_names(names, 3)}). To repeat the "
            "maintenance, increase `run`, or add a window that starts later.",
            err=True,
        )


def print_unknown_servers(plans: Iterable[BootPlan | None], state: Path | None = None) -> None:
    """Print the number of servers that boot from their local disk only because their state is unknown.

    The state of a server is unknown if gitboot has no record of whether the server is installed.

    ``state`` is the state directory of the instance from which the records in the plans come.
    """
    number = sum(plan is not None and plan.cause is Cause.UNKNOWN for plan in plans)
    if number == 0:
        return
    pronoun = "it is" if number == 1 else "they are"
    remedy = "Use --state, or use --records with fresh, adopt or FILE."
    if state is not None:
        remedy = f"Run `gitboot records show --state {quote_words(state)}`."
    text = (
        f"{format_count(number, 'server')} may need an installation, because gitboot does not know whether "
        f"{pronoun} installed. {remedy}"
    )
    click.echo(wrap_text(text), err=True)


records_option = click.option(
    "--records",
    metavar="fresh|adopt|FILE",
    help="What is installed. fresh: treat servers with provision 1 or more as not installed yet. adopt: treat all "
    "servers as installed. FILE contains exported records, such as ops/records of an output tree. gitboot never "
    "installs a server without a record. Default: no records, and no installations.",
)


def parse_selector(text: str | None) -> Selector | None:
    """Parse a selector such as ``key=value,key!=value,key,!key`` in the syntax of kubectl. Raises `UsageError`."""
    if text is None:
        return None
    expressions: list[dict[str, object]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "!=" in part:
            key, _, value = part.partition("!=")
            expressions.append({"key": key.strip(), "operator": "NotIn", "values": [value.strip()]})
        elif "=" in part:
            key, _, value = part.replace("==", "=", 1).partition("=")
            expressions.append({"key": key.strip(), "operator": "In", "values": [value.strip()]})
        elif part.startswith("!"):
            expressions.append({"key": part[1:].strip(), "operator": "DoesNotExist"})
        else:
            expressions.append({"key": part, "operator": "Exists"})
    try:
        return read(Selector, {"matchExpressions": expressions})
    except InvalidDocument as invalid:
        raise UsageError(f"-l {text}: {invalid}; for example, write role=web,site!=fra1,rack,!gpu") from None


# Ranges of commits


_NO_TRUST: Final = TrustSettings()


class ComparedRange(Struct, frozen=True, kw_only=True):
    """Both sides of a commit range, and the messages of the commits in the range."""

    base: ReviewedRevision
    head: ReviewedRevision
    messages: tuple[Message, ...]
    base_acknowledgements: frozenset[str] = frozenset()  # as in the class `gitboot.git.history.CommitRange`
    changes: Callable[[], Changes] | None = None  # the changes from BASE to HEAD, if gitboot has computed them
    commits: tuple[ReviewedCommit, ...] = ()
    signers: tuple[tuple[str, Signer], ...] = ()  # signers of commits that must be signed
    # a function that returns the commit and the author of a line in HEAD, or None
    writer: Callable[[str, int], str | None] | None = None


def compare_range(
    path: Path,
    range: str,
    *,
    merge: bool,
    at: datetime,
    accepted: str | None = None,
    trust: TrustSettings = _NO_TRUST,
) -> ComparedRange:
    """Evaluate both sides of a commit range for the given time. An invalid side contains problems instead of decisions.

    With ``accepted``, that commit is BASE. If a commit lacks a required signature, the result contains a problem for
    HEAD. The result of a trial merge does not need a signature.
    """
    evaluator = FleetEvaluator(at)
    base, dots, head = range.partition("..")
    if accepted is not None:
        base = "accepted"
    head = head.removeprefix(".") or ("HEAD" if dots else "WORKTREE")
    try:
        with limit_evaluation():
            opened_range = open_range(path, range, merge=merge, accepted=accepted)
    except InvalidRepository as error:
        # Git cannot merge the two sides, so there is no HEAD to compare.
        return ComparedRange(
            base=_build_empty_side(base, base), head=_build_empty_side(head, head, error.problems), messages=()
        )
    signed_range = _check_signatures(opened_range, trust)

    def evaluate_commit(revision: Revision, open_commit: Callable[[], Snapshot]) -> ReviewedRevision:
        fault = signed_range.faults.get(revision)
        if fault is not None:  # an instance does not read this commit
            return _build_empty_side(revision, revision, [fault])
        with limit_evaluation():
            snapshot = open_commit()
        return evaluate_side(snapshot.revision, snapshot, evaluator)[0]

    base_side, _ = evaluate_side(base, opened_range.base, evaluator, is_base=True)
    if signed_range.head_fault is None:
        head_side, pair = evaluate_side(head, opened_range.head, evaluator)
    else:
        head_side, pair = _build_empty_side(head, opened_range.head.revision, [signed_range.head_fault]), None
    return ComparedRange(
        base=base_side,
        head=head_side,
        changes=pair.compute_changes if pair is not None else None,
        messages=signed_range.messages,
        base_acknowledgements=opened_range.base_acknowledgements,
        commits=tuple(
            ReviewedCommit(
                merge.revision, merge.messages, partial(evaluate_commit, merge.revision, range_commit.snapshot)
            )
            for merge, range_commit in zip(signed_range.merges, opened_range.commits, strict=True)
        ),
        signers=signed_range.signers,
        writer=partial(_find_line_author, path, opened_range),
    )


class _SignedRange(Struct, frozen=True, kw_only=True):
    """The signatures in a commit range."""

    messages: tuple[Message, ...]  # with the signers of the messages that have a Gitboot-Ack line
    merges: tuple[Merge, ...]  # with the same messages
    faults: Mapping[Revision, Problem]  # the commits that lack a required signature
    head_fault: Problem | None  # the fault because of which an instance would not read HEAD
    signers: tuple[tuple[str, Signer], ...]  # signers of commits that must be signed


def _check_signatures(opened_range: CommitRange, trust: TrustSettings) -> _SignedRange:
    """Check the signatures of the commits and of the acknowledgements in a range."""
    merges = [range_commit.merge for range_commit in opened_range.commits]
    revisions = [merge.revision for merge in merges] or [opened_range.head.revision]
    # the result of a trial merge is not a commit
    commits = [revision for revision in revisions if re.fullmatch("[0-9a-f]{40}", revision)]
    with TemporaryDirectory(prefix="gitboot-keys-") as folder:
        keys = SignatureKeys(trust.keys, Path(folder, "keys"))
        keys.fingerprint()
        checker = SignatureChecker(opened_range.repository, keys, trust.verify)

        def add_signers(messages: Iterable[Message]) -> tuple[Message, ...]:
            return tuple(checker.add_signer(message) if has_ack_line(message) else message for message in messages)

        faults = checker.find_faults(opened_range.base.revision, commits) if commits else {}
        signed_merges = tuple(merge._replace(messages=add_signers(merge.messages)) for merge in merges)
        messages = add_signers(opened_range.messages)
        signers = [(commit, checker.find_signer(commit)) for commit in commits] if trust.verify is not None else []
    # With --verify range, each commit before a trial merge must be signed.
    last_signed = commits[-1] if trust.verify is Verify.RANGE and commits else revisions[-1]
    return _SignedRange(
        messages=messages,
        merges=signed_merges,
        faults=faults,
        head_fault=faults.get(last_signed),
        signers=tuple((commit, signer) for commit, signer in signers if signer is not None),
    )


def _find_line_author(path: Path, opened_range: CommitRange, file: str, number: int) -> str | None:
    """Return the commit and author of a line in HEAD, or None for an uncommitted line.

    ``number`` is the number of the line, from 1. HEAD may be the result of a trial merge, which is not a commit. In
    this case, look up the line in the branch, unless the merge changes the file.
    """
    revision = opened_range.head.revision.partition(" ")[0]
    if revision != opened_range.head.revision:
        branch = load_commit(opened_range.repository, Revision(revision), opened_range.folder)
        if branch.blobs.get(file) != opened_range.head.blobs.get(file):
            return None
    blame = open_blame(path, revision)
    if blame is None or not blame.is_committed(file, number):
        return None
    commit = blame.line(file, number)
    if commit is None:
        return "an unknown author, because this clone is shallow"
    return f"{commit.author} in {commit.revision[:12]}"


def evaluate_side(
    name: str, snapshot: Snapshot, evaluator: FleetEvaluator, *, is_base: bool = False
) -> tuple[ReviewedRevision, CommitPair | None]:
    """Evaluate one side of a commit range. The returned `CommitPair` is None if the side is invalid."""
    try:
        with limit_evaluation() as set_limits:
            pair = evaluator.evaluate(snapshot, set_limits, is_base=is_base)
    except InvalidRepository as error:
        return _build_empty_side(name, snapshot.revision, error.problems), None
    decided = pair.head.decided
    side = ReviewedRevision(
        named=name,
        revision=snapshot.revision,
        decisions=decided.decisions,
        repository=decided.repository,
        problems=decided.decisions.find_problems(evaluator.now),
    )
    return side, pair


def _build_empty_side(name: str, revision: str, problems: Iterable[Problem] = ()) -> ReviewedRevision:
    return ReviewedRevision(named=name, revision=revision, decisions=None, repository=None, problems=tuple(problems))
