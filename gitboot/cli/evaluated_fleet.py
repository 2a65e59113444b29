"""The fleet of a command: a revision or a range of commits, evaluated within limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
from msgspec import Struct

from gitboot.cli.evaluator_child import evaluation_limits, evaluation_workers, results_cache
from gitboot.cli.terminal import wrapped
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import InvalidRepository, UsageError
from gitboot.evaluator.cache import Cache
from gitboot.evaluator.evaluation import CommitPair, Evaluation, Evaluator
from gitboot.fleet.identities import machines
from gitboot.fleet.resources import FleetRepository
from gitboot.fleet.revision import Message, Revision, Signer, Snapshot
from gitboot.fleet.validation import load
from gitboot.git.history import History, Range, open_blame, open_range
from gitboot.git.signatures import SignatureKeys, Signatures
from gitboot.git.snapshots import of_commit, open_snapshot
from gitboot.jsonio import canonical
from gitboot.model.fields import Invalid, read
from gitboot.model.fleet import Output
from gitboot.model.scalars import SystemUuid
from gitboot.model.selectors import Selector
from gitboot.problems import Problem
from gitboot.publish.tree_reader import read_records
from gitboot.render.page_shards import page_files
from gitboot.render.plan_and_record_files import PartFiles
from gitboot.render.server_files import About, RenderedState, server_state
from gitboot.resolve.explanation import Explanations, fleet_facts, source_locations
from gitboot.resolve.fleet_decisions import sites_of
from gitboot.resolve.install_attempts import first_records
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.policy_selection import opt_outs
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision, Decisions, check_acceptable
from gitboot.resolve.server_plan import BootPlan, Cause
from gitboot.review.commit_path import Between
from gitboot.review.decision_changes import Changes, Side
from gitboot.review.guards import may_acknowledge
from gitboot.text import count, did_you_mean, some

_BATCH: Final = 1000  # results that gitboot encodes at once
WORTH: Final = 500  # files of a fleet: gitboot evaluates fewer sooner than it looks them up


def load_fleet(path: Path, rev: str | None) -> FleetRepository:
    """Load the fleet at a path without its decisions. Raises `InvalidRepository`."""
    with evaluation_limits() as begun:
        snapshot = open_snapshot(path, rev)
        begun(len(snapshot.blobs))
        return load(snapshot)


def evaluate_fleet(path: Path, rev: str | None, now: datetime) -> Evaluation:
    """Evaluate the fleet at a path for an instant. Raises `InvalidRepository`."""
    with evaluation_limits() as begun:
        return FleetEvaluator(now).evaluate(open_snapshot(path, rev), begun).head


class FleetEvaluator:
    """Evaluates snapshots of one fleet for an instant. What two snapshots have in common is evaluated once."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._snapshots: dict[Revision, Snapshot] = {}
        self._last: Revision | None = None  # that was valid
        self._evaluator = Evaluator(self._snapshot, workers=evaluation_workers())

    def evaluate(self, snapshot: Snapshot, begun: Callable[[int], None], *, is_base: bool = False) -> CommitPair:
        """Evaluate a snapshot beside the last valid one. Raises `InvalidRepository`.

        ``begun`` is called with the number of its files. ``is_base``: an earlier version of gitboot may have accepted
        the snapshot.
        """
        begun(len(snapshot.blobs))
        self._snapshots[snapshot.revision] = snapshot
        self._evaluator.results = cache = results_cache() if len(snapshot.blobs) >= WORTH else None
        try:
            found = self._evaluator.evaluate(snapshot.revision, self._last)
        except InvalidRepository as error:
            raise error.at(self.now) from None
        self._last = snapshot.revision
        _store(self._evaluator, cache)
        if not is_base:
            check_acceptable(found.head.decided.decisions, found.head.decided.repository.fleet.spec, self.now)
        return found

    def _snapshot(self, revision: Revision, previous: Snapshot | None) -> Snapshot:
        del previous  # the evaluator compares the blobs
        return self._snapshots[revision]


class HistoryEvaluator:
    """Evaluates commits of a history beside each other."""

    def __init__(self, history: History, begun: Callable[[int], None]) -> None:
        self._cache = results_cache()
        self._evaluator = Evaluator(history.snapshot, begun=begun, results=self._cache, workers=evaluation_workers())

    def __call__(self, revision: Revision, base: Revision | None) -> CommitPair:
        """Evaluate a commit beside ``base``. Raises `InvalidRepository`."""
        found = self._evaluator.evaluate(revision, base)
        if base is None and len(found.head.loaded.snapshot.blobs) >= WORTH:
            _store(self._evaluator, self._cache)  # the next command most likely reads this commit, too
        return found


def _store(evaluator: Evaluator, cache: Cache | None) -> None:
    if cache is not None:
        for kind, values in evaluator.unstored(_BATCH):
            cache.insert_many(kind, values)


class Planned(Struct, frozen=True, kw_only=True):
    """A fleet at an instant."""

    repository: FleetRepository
    decisions: Decisions
    at: datetime
    records: Mapping[SystemUuid, Record]

    def decision(self, server: str) -> Decision:
        """The decision for a server; raises `UsageError` with a near name where there is none."""
        if (found := self.decisions.servers.get(server)) is None:
            hint = did_you_mean(server, self.decisions.servers, "gitboot plan lists those that there are")
            raise UsageError(f"there is no server {server!r}; {hint}")
        return found

    def plan(self, server: str) -> tuple[Decision, BootPlan | None]:
        decision = self.decision(server)
        return decision, plan(decision, self.at, self.records.get(decision.uuid))

    def states(self) -> dict[str, RenderedState]:
        """Each server as it is published, its next transitions included."""
        about = about_all(self.repository, self.decisions)
        return {
            name: server_state(self.decisions, decision, self.records.get(decision.uuid), self.at, about[name])
            for name, decision in self.decisions.servers.items()
        }

    def page(self, states: Mapping[str, RenderedState]) -> PartFiles:
        """The page of all of them; nothing of one, where none is asked for."""
        if Output.PAGES not in self.decisions.outputs:
            return PartFiles(is_whole=True)
        shown = canonical(fleet_facts(self.repository, opt_outs(self.repository)))
        return page_files(states, self.decisions.revision, shown, source_locations(self.repository))


def about_all(repository: FleetRepository, decisions: Decisions) -> dict[str, About]:
    """What a repository says of each server that decides nothing."""
    found = {}
    known = {machine.name: machine for machine in machines(repository).values()}
    has_page = Output.PAGES in repository.fleet.spec.outputs
    explanations = Explanations(repository, decisions.servers) if has_page else None
    sites = sites_of(repository)
    for name, server in repository.servers.items():
        addresses = (address.partition("/")[0] for each in server.spec.interfaces for address in each.addresses)
        found[name] = About(
            site=sites[name].name if name in sites else None,
            labels=server.metadata.labels,
            addresses=tuple(sorted(addresses)),
            idle=tuple(each.mac for each in server.spec.interfaces if not each.boot),
            machine=known[name],
            written=explanations.of(name) if explanations is not None else None,
        )
    return found


def planned_fleet(path: Path, rev: str | None, at: datetime, records: str | None) -> Planned:
    """The fleet at PATH, with what ``--records`` says of its servers; raises `InvalidRepository`."""
    decided = evaluate_fleet(path, rev, at).decided
    known: dict[SystemUuid, Record] = {}
    if records in ("fresh", "adopt"):
        new = first_records(decided.decisions.servers.values(), {}, adopt_all=records == "adopt")
        known = {uuid: record for uuid, _, record in new}
    elif records is not None:
        try:
            known = read_records(Path(records))  # who is not in it is unknown, as to `gitboot run`
        except OSError as error:
            raise UsageError(f"--records {records}: {error.strerror}; give fresh, adopt or a file") from None
    return Planned(repository=decided.repository, decisions=decided.decisions, at=at, records=known)


def tell_already_made(made: Mapping[str, Mapping[str, str]]) -> None:
    """Say of each maintenance that it asks for nothing more, and what makes it ask again; by server, when."""
    servers: dict[tuple[str, str], list[str]] = {}
    for server, runs in made.items():
        for name, at in runs.items():
            servers.setdefault((name, at), []).append(server)
    for (name, at), names in sorted(servers.items()):
        click.echo(
            f"Maintenance/{name}: already made on {at} ({some(names, 3)}). Raise its run, or let its window "
            "start after the one in which it was made, and it is made again.",
            err=True,
        )


def tell_held_back(plans: Iterable[BootPlan | None]) -> None:
    """Print how many servers boot their disk only because nothing is known of them."""
    if number := sum(plan is not None and plan.cause is Cause.UNKNOWN for plan in plans):
        of_whom = "it" if number == 1 else "them"
        text = (
            f"{count(number, 'server')} would perhaps be provisioned: nothing is known of {of_whom} here, and "
            "unknown never installs. Say what is known: --records fresh, adopt or FILE."
        )
        click.echo(wrapped(text), err=True)


records_option = click.option(
    "--records",
    metavar="fresh|adopt|FILE",
    help="What is known of provisioning: fresh (servers with provision 1 or more are not installed yet), adopt "
    "(all are), or exported records (ops/records of a published tree); servers that they lack are unknown. Default: "
    "nothing, and unknown never installs.",
)


def selected(text: str | None) -> Selector | None:
    """``-l key=value,key!=value,key,!key``, as kubectl selects."""
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
    except Invalid as invalid:
        raise UsageError(f"-l {text}: {invalid}; write role=web,site!=fra1,rack,!gpu") from None


NO_KEYS: Final = TrustSettings()


class Compared(Struct, frozen=True, kw_only=True):
    """Both sides of a range, and what the commits between them say."""

    base: Side
    head: Side
    messages: tuple[Message, ...]
    met: frozenset[str] = frozenset()  # as `gitboot.git.history.Range` has it
    changes: Callable[[], Changes] | None = None  # of HEAD against BASE, where that is known
    line: tuple[Between, ...] = ()
    signers: tuple[tuple[str, Signer], ...] = ()  # of commits that have to be signed
    writer: Callable[[str, int], str | None] | None = None  # commit and author of a line of HEAD; None: not committed


def compared(
    path: Path,
    range: str,
    *,
    merge: bool,
    at: datetime,
    accepted: str | None = None,
    trust: TrustSettings = NO_KEYS,
) -> Compared:
    """Both sides of ``range``; one that is invalid has its problems instead of decisions.

    HEAD is judged at an instant. Where a commit is ``accepted``, BASE is that. Commits that have to be signed and are
    not are a problem of HEAD; what a merge would make is signed by nobody yet.
    """
    evaluator = FleetEvaluator(at)
    base, dots, head = range.partition("..")
    base = "accepted" if accepted is not None else base
    head = head.removeprefix(".") or ("HEAD" if dots else "WORKTREE")
    try:
        with evaluation_limits():
            found = open_range(path, range, merge=merge, accepted=accepted)
    except InvalidRepository as error:
        # They do not merge, so there is no HEAD to look at.
        return Compared(base=_without_fleet(base, base), head=_without_fleet(head, head, error.problems), messages=())
    merges = [each.merge for each in found.line]
    revisions = [each.revision for each in merges] or [found.head.revision]
    commits = [each for each in revisions if re.fullmatch("[0-9a-f]{40}", each)]  # a merge that is tried out is none
    with TemporaryDirectory(prefix="gitboot-keys-") as folder:
        keys = SignatureKeys(trust.keys, Path(folder, "keys"))
        keys.mark()
        signatures = Signatures(found.repository, keys, trust.verify)

        def signed(messages: Iterable[Message]) -> tuple[Message, ...]:
            return tuple(signatures.signed(each) if may_acknowledge(each) else each for each in messages)

        fault = signatures.faults(found.base.revision, commits).get(commits[-1]) if commits else None
        merges = [each._replace(messages=signed(each.messages)) for each in merges]
        messages = signed(found.messages)
        signers = [(each, signatures.signer(each)) for each in commits] if trust.verify is not None else []

    def side_of(snapshot: Callable[[], Snapshot]) -> Side:
        with evaluation_limits():
            opened = snapshot()
        return side(opened.revision, opened, evaluator)[0]

    old, _ = side(base, found.base, evaluator, is_base=True)
    new, pair = _without_fleet(head, found.head.revision, [fault] if fault else ()), None
    if fault is None:
        new, pair = side(head, found.head, evaluator)
    return Compared(
        base=old,
        head=new,
        changes=pair.changes if pair is not None else None,
        messages=messages,
        met=found.met,
        line=tuple(
            Between(merge.revision, merge.messages, partial(side_of, passed.snapshot))
            for merge, passed in zip(merges, found.line, strict=True)
        ),
        signers=tuple((commit, signer) for commit, signer in signers if signer is not None),
        writer=partial(_writer, path, found),
    )


def _writer(path: Path, found: Range, file: str, number: int) -> str | None:
    """Return the commit and the author of a line, 1-based, of a file of HEAD; None for a line that is not committed.

    A merge that is tried out has no commit. Its line is looked up in the branch, if the merge leaves the file alone.
    """
    revision = found.head.revision.partition(" ")[0]
    if revision != found.head.revision:
        branch = of_commit(found.repository, Revision(revision), found.folder)
        if branch.blobs.get(file) != found.head.blobs.get(file):
            return None
    blame = open_blame(path, revision)
    commit = blame.line(file, number) if blame is not None else None
    return f"{commit.author} in {commit.revision[:12]}" if commit is not None else None


def side(
    named: str, snapshot: Snapshot, evaluator: FleetEvaluator, *, is_base: bool = False
) -> tuple[Side, CommitPair | None]:
    """A revision, loaded and decided, and where it holds together what is known of it beside the one before."""
    try:
        with evaluation_limits() as begun:
            found = evaluator.evaluate(snapshot, begun, is_base=is_base)
    except InvalidRepository as error:
        return _without_fleet(named, snapshot.revision, error.problems), None
    decided = found.head.decided
    return Side(
        named=named,
        revision=snapshot.revision,
        decisions=decided.decisions,
        repository=decided.repository,
        problems=decided.decisions.problems_at(evaluator.now),
    ), found


def _without_fleet(named: str, revision: str, problems: Iterable[Problem] = ()) -> Side:
    return Side(named=named, revision=revision, decisions=None, repository=None, problems=tuple(problems))
