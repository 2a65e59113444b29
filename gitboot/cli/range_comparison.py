"""Range comparison: evaluate both sides of a commit range, and check the signatures in the range."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct

from gitboot.cli.evaluated_fleet import FleetEvaluator
from gitboot.cli.evaluator_child import limit_evaluation
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import CommitPair
from gitboot.fleet.revision import Message, Revision, Signer, Snapshot, Verify
from gitboot.git.history import CommitRange, Merge, open_blame, open_range
from gitboot.git.signatures import SignatureChecker, SignatureKeys
from gitboot.git.snapshots import load_commit
from gitboot.problems import Problem
from gitboot.review.acknowledgements import has_ack_line
from gitboot.review.commit_path import ReviewedCommit
from gitboot.review.decision_changes import Changes, ReviewedRevision

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
