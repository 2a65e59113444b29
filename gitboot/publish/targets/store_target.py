"""A target that is a store of files: content, boot scripts, first scripts, deletions, manifest; each is read back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gitboot import __version__
from gitboot.errors import ForeignTree, HostUnreachable, LockedByAnother, OperatorError, PublishError
from gitboot.publish.targets.sync_steps import (
    HEAD,
    UNLISTED,
    Expected,
    FileConflict,
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
    parse_head,
    parse_units,
    parse_unlisted,
    render_head,
    render_unlisted,
)
from gitboot.render.paths import Stage, publication_stage

_SHARDS: Final = "ops/shards/"
_MAX_SHARDS_BYTES: Final = 1 << 30  # of all shards of a target together
_MOST: Final = 200  # servers in one step: a window that ends in the meantime does not wait for a whole fleet


class Claim:
    """The head as this process has written it last. Each replaces exactly that one."""

    def __init__(self, name: str, *, ledger: str, heir_of: Callable[[], str | None], writer: str) -> None:
        self._name, self._ledger, self._heir_of, self._writer = name, ledger, heir_of, writer
        self._stands: StoredFile | None = None

    def make(self, store: FileStore) -> TargetHead:
        """The head that lies there, with this process as its writer. Raises `ForeignTree` and `LockedByAnother`."""
        found = store.get(HEAD)
        if found is None:
            return self._begin(store)
        head = self._own(found.content, "choose another place, or take it over with gitboot records begin")
        if self._stands is not None and head.writer != self._writer:
            raise self._contended(head)
        self._stands = found
        return self.write(store, replace(head, ledger=self._ledger, writer=self._writer))

    def observe(self, store: FileStore, hint: str) -> TargetHead | None:
        """Return the head that a target has, and write nothing; None if it has none. Raises `ForeignTree`."""
        self._stands = store.get(HEAD)
        return self._own(self._stands.content, hint) if self._stands is not None else None

    def is_as_observed(self, found: StoredFile | None) -> bool:
        """Return whether a head that was read again is the one that this process has observed or written last."""
        return (found and found.content) == (self._stands and self._stands.content)

    def _begin(self, store: FileStore) -> TargetHead:
        head = TargetHead(ledger=self._ledger, commit="", gitboot=__version__, writer=self._writer)
        data = render_head(head)
        with suppress(FileConflict):  # of another, or of this one, whose first try was answered too late
            store.create(HEAD, data)
        self._stands = store.get(HEAD)
        if self._stands is None or self._stands.content != data:
            self._stands = None
            raise HostUnreachable(f"{self._name}: another has just begun to write there")
        return head

    def check(self, store: FileStore) -> None:
        """See that nobody else has written the head since."""
        found = store.get(HEAD)
        if found is None or not self.is_as_observed(found):
            raise self._contended(self._parse(found.content) if found is not None else None)

    def write(self, store: FileStore, head: TargetHead) -> TargetHead:
        """Replace the head. Where the answer to that was lost, what stands there says whether it was replaced."""
        data, stands = render_head(head), self._stands
        if stands is None or stands.content != data:
            with suppress(FileConflict):
                store.replace(HEAD, data, stands.version if stands is not None else None)
            found = store.get(HEAD)
            if found is None or found.content != data:
                raise self._contended(self._parse(found.content) if found is not None else None)
            self._stands = found
        return head

    def _own(self, content: bytes, hint: str) -> TargetHead:
        """Return a head of this ledger, or of the one that it goes on from. Raises `ForeignTree`."""
        head = self._parse(content)
        if head.ledger not in (self._ledger, self._heir_of()):
            raise ForeignTree(f"{self._name} belongs to the ledger {head.ledger}, not to {self._ledger} ({hint})")
        return head

    def _contended(self, head: TargetHead | None) -> OperatorError:
        if head is None:
            return PublishError(f"{self._name}: somebody has removed {HEAD}")
        if head.ledger != self._ledger:
            return ForeignTree(f"{self._name} belongs to the ledger {head.ledger} by now, not to {self._ledger}")
        return LockedByAnother(
            f"{self._name}: another process with this ledger writes there ({head.writer}; this is {self._writer}): end "
            "one of the two, then start this one anew"
        )

    def _parse(self, content: bytes) -> TargetHead:
        try:
            return parse_head(content)
        except ValueError as error:
            raise PublishError(f"{self._name}: {HEAD} is {error} (choose another place)") from error


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
