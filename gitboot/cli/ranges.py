"""Two revisions of a fleet, loaded and decided for a command that compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gitboot.cli.evaluated_fleet import FleetEvaluator
from gitboot.cli.evaluator_process import evaluation_limits
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import CommitPair
from gitboot.fleet.revision import Message, Signer
from gitboot.git.signatures import Signatures
from gitboot.git.snapshots import of_commit
from gitboot.load.snapshot import Revision, Snapshot
from gitboot.problems.codes import Problem
from gitboot.review.decision_changes import Changes
from gitboot.review.guards import may_acknowledge
from gitboot.review.merges import Between
from gitboot.review.side import Side
from gitboot.source.blame import open_blame
from gitboot.source.compare import Range, open_range
from gitboot.source.keys import SignatureKeys

NO_KEYS: Final = TrustSettings()


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Both sides of a range, and what the commits between them say."""

    base: Side
    head: Side
    messages: tuple[Message, ...]
    met: frozenset[str] = frozenset()  # as `gitboot.source.compare.Range` has it
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
    names = "accepted" if accepted is not None else base, head.removeprefix(".") or ("HEAD" if dots else "WORKTREE")
    try:
        with evaluation_limits():
            found = open_range(path, range, merge=merge, accepted=accepted)
    except InvalidRepository as error:
        # They do not merge, so there is no HEAD to look at.
        return Compared(
            base=_nothing(names[0], names[0]), head=_nothing(names[1], names[1], error.problems), messages=()
        )
    with _signatures(found, trust) as signatures:
        commits = _made(found)
        fault = signatures.faults(found.base.revision, commits).get(commits[-1]) if commits else None
        line = [each._replace(messages=_signed(each.messages, signatures)) for each in (p.merge for p in found.line)]
        messages = _signed(found.messages, signatures)
        signers = [(each, signatures.signer(each)) for each in commits] if trust.verify is not None else []
    old, _ = side(names[0], found.base, evaluator, is_base=True)
    new, pair = _nothing(names[1], found.head.revision, [fault] if fault else ()), None
    if fault is None:
        new, pair = side(names[1], found.head, evaluator)
    return Compared(
        base=old,
        head=new,
        changes=pair.changes if pair is not None else None,
        messages=messages,
        met=found.met,
        line=tuple(
            Between(merge.revision, merge.messages, partial(_side_of, passed.snapshot, evaluator))
            for merge, passed in zip(line, found.line, strict=True)
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


@contextmanager
def _signatures(found: Range, trust: TrustSettings) -> Iterator[Signatures]:
    """Whoever knows by the trusted keys, if there are any, who has signed commits."""
    with TemporaryDirectory(prefix="gitboot-keys-") as folder:
        keys = SignatureKeys(trust.keys, Path(folder, "keys"))
        keys.mark()
        yield Signatures(found.repository, keys, trust.verify)


def _made(found: Range) -> list[Revision]:
    """The commits of the range's first-parent line that there are: a merge that is tried out is none."""
    line = [each.merge.revision for each in found.line] or [found.head.revision]
    return [each for each in line if re.fullmatch("[0-9a-f]{40}", each)]


def _signed(messages: Iterable[Message], signatures: Signatures) -> tuple[Message, ...]:
    return tuple(signatures.signed(each) if may_acknowledge(each) else each for each in messages)


def _nothing(named: str, revision: str, problems: Iterable[Problem] = ()) -> Side:
    """A side that says nothing."""
    return Side(named=named, revision=revision, decisions=None, repository=None, problems=tuple(problems))


def _side_of(snapshot: Callable[[], Snapshot], evaluator: FleetEvaluator) -> Side:
    with evaluation_limits():
        found = snapshot()
    return side(found.revision, found, evaluator)[0]


def side(
    named: str, snapshot: Snapshot, evaluator: FleetEvaluator, *, is_base: bool = False
) -> tuple[Side, CommitPair | None]:
    """A revision, loaded and decided, and where it holds together what is known of it beside the one before."""
    try:
        with evaluation_limits() as begun:
            found = evaluator.evaluate(snapshot, begun, is_base=is_base)
    except InvalidRepository as error:
        return _nothing(named, snapshot.revision, error.problems), None
    decided = found.head.decided
    return Side(
        named=named,
        revision=snapshot.revision,
        decisions=decided.decisions,
        repository=decided.repository,
        problems=decided.decisions.problems_at(evaluator.now),
    ), found
