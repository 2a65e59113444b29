"""A target that is a store of files: content, boot scripts, first scripts, deletions, manifest; each is read back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from gitboot import __version__
from gitboot.errors import HostUnreachable, PublishError
from gitboot.publish.targets.s3 import Claim
from gitboot.publish.targets.sync_steps import (
    HEAD,
    UNLISTED,
    Expected,
    FileStore,
    FollowedTree,
    Holding,
    Overtaken,
    Shard,
    StoredFile,
    TargetFile,
    TargetHead,
    TargetStep,
    digest_of,
    held,
    parse_units,
    parse_unlisted,
    render_unlisted,
)
from gitboot.render.paths import Stage, publication_stage

_SHARDS: Final = "ops/shards/"
_MAX_SHARDS_BYTES: Final = 1 << 30  # of all shards of a target together
_MOST: Final = 200  # servers in one step: a window that ends in the meantime does not wait for a whole fleet


class StoreTarget:
    """A target whose files this process alone writes, from `load` on.

    ``open_store`` returns the store as it can be reached at this moment: with the credentials of now.
    """

    def __init__(self, name: str, claim: Claim, open_store: Callable[[], FileStore], *, most: int = _MOST) -> None:
        self.most = most
        self._name, self._claim, self._open = name, claim, open_store
        self._observed: StoredFile | None = None  # `UNLISTED`, as `observe` found it

    def load(self) -> Holding:
        """Return what the target holds, and claim it for this process.

        Raises `ForeignTree`, `LockedByAnother`, `PublishError` and `HostUnreachable`.
        """
        store = self._open()
        head = self._claim.make(store)
        found = self._holding(store, head, store.get(UNLISTED))
        kept = set(map(_shard_path, head.shards.values()))
        store.remove(path for path in store.names(_SHARDS) if path not in kept)
        return found

    def observe(self, hint: str) -> Holding | None:
        """Return what the target holds, and write nothing; None if no process has claimed it.

        ``hint`` says what to do about a target of another ledger. Raises `ForeignTree`, `Overtaken` if a process writes
        a step meanwhile, `PublishError` and `HostUnreachable`.
        """
        store = self._open()
        head = self._claim.observe(store, hint)
        self._observed = store.get(UNLISTED)
        if head is None:
            return None
        try:
            return self._holding(store, head, self._observed)
        except PublishError:
            if self.is_as_observed():
                raise
            raise Overtaken(f"{self._name}: an instance is writing there") from None

    def is_as_observed(self) -> bool:
        """Return whether no process has begun, or ended, a step since `observe`."""
        found: dict[str, StoredFile | None] = {}
        self._open().get_each((HEAD, UNLISTED), found.__setitem__)
        before = self._observed and self._observed.content
        after = (unlisted := found[UNLISTED]) and unlisted.content
        return before == after and self._claim.is_as_observed(found[HEAD])

    def _holding(self, store: FileStore, head: TargetHead, listed: StoredFile | None) -> Holding:
        """Return what the target holds by this head and by this list of paths that no shard vouches for."""
        numbers = {_shard_path(digest): number for number, digest in head.shards.items()}
        shards: dict[str, Shard] = {}
        size, counting = 0, threading.Lock()

        def take(path: str, found: StoredFile | None) -> None:
            nonlocal size
            content = self._checked(head, numbers[path], found)
            with counting:
                size += len(content)
            if size > _MAX_SHARDS_BYTES:
                raise self._damaged(HEAD)
            shards[numbers[path]] = self._parsed(content, path)

        store.get_each(sorted(numbers), take)
        try:
            unlisted = parse_unlisted(listed.content) if listed is not None else frozenset()
        except ValueError as error:
            raise self._damaged(UNLISTED) from error
        return held(head, shards.values(), unlisted, gitboot=__version__)

    def shard(self, head: TargetHead, number: str) -> Shard:
        """Return a shard as the target has it; an empty one if the head has none."""
        if (digest := head.shards.get(number)) is None:
            return {}
        path = _shard_path(digest)
        return self._parsed(self._checked(head, number, self._open().get(path)), path)

    def _checked(self, head: TargetHead, number: str, found: StoredFile | None) -> bytes:
        digest = head.shards[number]
        if found is None or digest_of(found.content) != digest:
            raise self._damaged(_shard_path(digest))
        return found.content

    def _parsed(self, content: bytes, path: str) -> Shard:
        try:
            return parse_units(content)
        except ValueError as error:  # the writer of the head wrote this too
            raise self._damaged(path) from error

    def apply(self, step: TargetStep, before: Holding, tree: FollowedTree) -> None:
        """Write a step. Whatever stops it, each file is whole, and a target that `load` reads comes to the same end."""
        store = self._open()
        self._claim.check(store)
        if step.doubtful != before.unlisted:
            store.replace(UNLISTED, render_unlisted(step.doubtful))
        sizes: dict[str, int] = {}

        def read(path: str) -> TargetFile:
            file = step.file(path, tree)
            sizes[path] = len(file.content)
            return file

        for stage in Stage:
            paths = [path for path in step.placed if publication_stage(path) is stage]
            in_the_way = store.place(paths, read, step.fresh.intersection(paths))
            if theirs := sorted(path for path in in_the_way if not self._is_listed(path, before.head)):
                raise PublishError(
                    f"{self._name}: expected nothing or a file of gitboot's own at {theirs[0]}, found something else "
                    "(move it away)"
                )
            store.place(sorted(in_the_way), read, ())
        if wrong := store.differing({path: Expected(digest, sizes[path]) for path, digest in step.placed.items()}):
            raise HostUnreachable(f"{self._name}: {wrong[0]} was written, and is read as something else")
        store.remove(step.removed)
        shards = {_shard_path(digest_of(data)): data for data in step.shards.values() if data}
        store.place(sorted(shards), lambda path: TargetFile(shards[path], 0), ())
        self._claim.write(store, step.head)
        if step.unlisted != step.doubtful:
            store.replace(UNLISTED, render_unlisted(step.unlisted))
        kept = set(step.head.shards.values())
        store.remove(_shard_path(digest) for digest in before.head.shards.values() if digest not in kept)

    def _is_listed(self, path: str, head: TargetHead) -> bool:
        """Return whether a server had a path that another server has by now."""
        return any(path in unit.files for number in head.shards for unit in self.shard(head, number).values())

    def _damaged(self, path: str) -> PublishError:
        return PublishError(f"{self._name}: {path} is not what gitboot wrote (empty the target; it is filled anew)")


def _shard_path(digest: str) -> str:
    return f"{_SHARDS}{digest}.json"
