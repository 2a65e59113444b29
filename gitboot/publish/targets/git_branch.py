"""Git branch target: gitboot owns the whole branch, and each step is one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from msgspec import structs

from gitboot import __version__
from gitboot.errors import ForeignTree, PublishError, UsageError
from gitboot.fleet.revision import Revision
from gitboot.git.branch_writer import Authorship, OwnedBranch
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.publish.targets.sync_steps import HEAD as HEAD_PATH  # not a head of Git
from gitboot.publish.targets.sync_steps import (
    UNLISTED,
    Shard,
    TargetContent,
    TargetHead,
    TargetStep,
    build_target_content,
    parse_head,
    parse_units,
    parse_unlisted,
    render_head,
    render_unlisted,
)
from gitboot.text import format_count


class BranchTarget:
    """A branch to which only this instance pushes. The parent of each commit is also a commit by gitboot.

    ``heir_of`` returns the ledger whose branch the instance may take over, or None. ``follows_default`` is True if the
    instance follows the default branch of the same repository. ``find_author`` returns the author of a commit to the
    fleet, or None if the commit is unknown.
    """

    max_servers = None  # each step is one commit, and contains all servers

    def __init__(
        self,
        name: str,
        branch: OwnedBranch,
        *,
        ledger: str,
        heir_of: Callable[[], str | None],
        follows_default: bool,
        find_author: Callable[[Revision], Authorship | None],
        clock: Callable[[], datetime],
    ) -> None:
        self._name = name
        self._branch = branch
        self._ledger = ledger
        self._heir_of = heir_of
        self._follows_default = follows_default
        self._find_author = find_author
        self._clock = clock
        self._tip: str | None = None
        self._uncommitted: dict[str, bytes] = {}  # shards by number, from steps that did not change a served file

    def load(self) -> TargetContent:
        """Fetch the branch, and return its content.

        Raises `UsageError` if the instance follows the branch, `ForeignTree` if the branch belongs to another ledger,
        and `PublishError` if gitboot cannot parse the branch's content.
        """
        if self._follows_default and self._branch.is_default():
            raise UsageError(f"{self._name} is the branch that this instance follows; choose another branch")
        self._uncommitted = {}
        self._tip = self._branch.fetch()
        if self._tip is None:
            new_head = TargetHead(ledger=self._ledger, commit="", gitboot=__version__, writer="")
            return build_target_content(new_head, (), (), gitboot="")
        head = self._parse_own_head()
        try:
            unlisted = parse_unlisted(self._read(UNLISTED))
        except ValueError as error:
            raise self._build_damage_error(UNLISTED) from error
        shards = (self.shard(head, number) for number in head.shards)
        return build_target_content(structs.replace(head, ledger=self._ledger), shards, unlisted, gitboot=__version__)

    def _parse_own_head(self) -> TargetHead:
        """Parse the head, and check that it belongs to this ledger or its predecessor."""
        try:
            head = parse_head(self._read(HEAD_PATH))
        except ValueError as error:
            raise PublishError(
                f"{self._name}: gitboot did not write this branch's content (choose another branch)"
            ) from error
        if head.ledger not in (self._ledger, self._heir_of()):
            raise ForeignTree(
                f"{self._name} belongs to the ledger {head.ledger}, not to {self._ledger} (choose another branch, or "
                "take over this branch with `gitboot records begin`)"
            )
        return head

    def shard(self, head: TargetHead, number: str) -> Shard:
        """Return the shard with this number, or an empty shard if the head does not list it. Raises `PublishError`."""
        if (digest := head.shards.get(number)) is None:
            return {}
        path = _numbered_shard_path(number)
        data = self._uncommitted.get(number) or self._read(path)
        if compute_digest(data) != digest:
            raise self._build_damage_error(path)
        try:
            return parse_units(data)
        except ValueError as error:  # the digest is correct, so the writer of the head also wrote this shard
            raise self._build_damage_error(path) from error

    def apply(self, step: TargetStep, content: TargetContent, tree: FollowedTree) -> None:  # noqa: ARG002 - signature of FollowedTarget
        """Commit a step and push it.

        If a step does not change any served files, the method delays its commit until a step changes a served file.
        """
        self._uncommitted |= step.shards
        if not step.placed and not step.removed:
            return
        at = self._clock()
        gitboot_author = Authorship("gitboot", "gitboot@localhost", int(at.timestamp()), 0)
        author = self._find_author(Revision(step.head.commit)) or gitboot_author
        commit = self._branch.commit(self._tip, self._list_changes(step, tree), _format_message(step), author, at)
        self._branch.push(self._tip, commit)
        self._tip, self._uncommitted = commit, {}

    def _list_changes(self, step: TargetStep, tree: FollowedTree) -> dict[str, Callable[[], bytes] | None]:
        """Return a function that reads the new content of each changed path, or None for a removed path."""
        changes: dict[str, Callable[[], bytes] | None] = dict.fromkeys(step.removed)
        for path, digest in step.placed.items():
            changes[path] = partial(_read_content, tree, path, digest)
        for number, data in self._uncommitted.items():
            # partial() makes a function that returns the data
            changes[_numbered_shard_path(number)] = partial(bytes, data) if data else None
        changes[HEAD_PATH] = partial(render_head, step.head)
        changes[UNLISTED] = partial(render_unlisted, step.unlisted_paths)
        return changes

    def _read(self, path: str) -> bytes:
        """Read a file at the tip. An absent file reads as empty."""
        if self._tip is None:
            return b""
        return self._branch.read(self._tip, path) or b""

    def _build_damage_error(self, path: str) -> PublishError:
        return PublishError(f"{self._name}: {path} is damaged (delete the branch, and gitboot will create it again)")


def _read_content(tree: FollowedTree, path: str, digest: str) -> bytes:
    return tree.read_file(path, digest).content


def _numbered_shard_path(number: str) -> str:
    return f"ops/shards/{number}.json"


def _format_message(step: TargetStep) -> str:
    written, removed = format_count(len(step.placed), "file"), format_count(len(step.removed), "file")
    return (
        f"Publish {step.head.commit[:12]}\n\n{written} written, {removed} removed\n\n"
        f"Gitboot-Source: {step.head.commit}\nGitboot-Plan: {step.manifest}\n"
    )
