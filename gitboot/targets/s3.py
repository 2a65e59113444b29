"""An S3 bucket as a target: content, boot scripts, first scripts, deletions, manifest; each upload is read back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gitboot import __version__
from gitboot.errors import HostUnreachable, PublishError
from gitboot.render.paths import Stage, publication_stage
from gitboot.targets.address import BucketAddress
from gitboot.targets.bucket import Bucket, ObjectConflict, each_at_once
from gitboot.targets.claim import RECORD, Claim
from gitboot.targets.holding import (
    HEAD,
    UNLISTED,
    Holding,
    Shard,
    TargetHead,
    digest_of,
    held,
    parse_units,
    parse_unlisted,
    render_unlisted,
)
from gitboot.targets.published import FollowedTree
from gitboot.targets.served import cache_control_of, content_type_of
from gitboot.targets.step import TargetStep

_SHARDS: Final = "ops/shards/"
_MAX_SHARDS_BYTES: Final = 1 << 30  # of all shards of a target together

ReadCredentials = Callable[[Path], tuple[str, str]]  # of a directory: key id and key


class BucketTarget:
    """A prefix of a bucket that this process alone writes to, from `load` on."""

    most = 200  # servers in one step: what ends in the meantime does not wait for a whole fleet

    def __init__(self, address: BucketAddress, claim: Claim, keys: ReadCredentials) -> None:
        self._address, self._claim, self._keys = address, claim, keys
        self._opened: tuple[tuple[str, str] | None, Bucket] | None = None

    def load(self) -> Holding:
        """What lies there, claimed for this process.

        Raises `ForeignTree`, `LockedByAnother`, `PublishError` and `HostUnreachable`.
        """
        bucket = self._bucket()
        head = self._claim.make(bucket)
        shards: dict[str, Shard] = {}
        size, counting = 0, threading.Lock()

        def read(number: str) -> None:
            nonlocal size
            content = self._shard_content(head, number)
            with counting:
                size += len(content)
            if size > _MAX_SHARDS_BYTES:
                raise self._damaged(HEAD)
            shards[number] = self._parsed(content, head.shards[number])

        each_at_once(read, head.shards)
        found = bucket.get(UNLISTED)
        try:
            unlisted = parse_unlisted(found.content) if found is not None else frozenset()
        except ValueError as error:
            raise self._damaged(UNLISTED) from error
        left = set(map(_shard_path, head.shards.values()))
        bucket.remove(path for path in bucket.names(_SHARDS) if path not in left)
        return held(head, shards.values(), unlisted, gitboot=__version__)

    def shard(self, head: TargetHead, number: str) -> Shard:
        """A shard as it lies there; an empty one where the head has none."""
        if (digest := head.shards.get(number)) is None:
            return {}
        return self._parsed(self._shard_content(head, number), digest)

    def _shard_content(self, head: TargetHead, number: str) -> bytes:
        digest = head.shards[number]
        found = self._bucket().get(path := _shard_path(digest))
        if found is None or digest_of(found.content) != digest:
            raise self._damaged(path)
        return found.content

    def _parsed(self, content: bytes, digest: str) -> Shard:
        try:
            return parse_units(content)
        except ValueError as error:  # whoever wrote the head wrote this too
            raise self._damaged(_shard_path(digest)) from error

    def apply(self, step: TargetStep, before: Holding, tree: FollowedTree) -> None:
        """Write a step. Whatever stops it, each file is whole, and what `load` says then leads to the same end."""
        bucket = self._bucket()
        self._claim.check(bucket)
        if step.doubtful != before.unlisted:
            bucket.replace(UNLISTED, render_unlisted(step.doubtful), RECORD)

        sizes: dict[str, int] = {}

        def place(path: str) -> None:
            content = step.content(path, tree)
            sizes[path] = len(content)
            self._place(bucket, path, content, step, before)

        for stage in Stage:
            each_at_once(place, [path for path in step.placed if publication_stage(path) is stage])
        each_at_once(lambda path: self._read_back(bucket, path, step.placed[path], sizes[path]), step.placed)
        bucket.remove(step.removed)
        for data in filter(None, step.shards.values()):
            _write_shard(bucket, data)
        self._claim.write(bucket, step.head)
        if step.unlisted != step.doubtful:
            bucket.replace(UNLISTED, render_unlisted(step.unlisted), RECORD)
        kept = set(step.head.shards.values())
        bucket.remove(_shard_path(digest) for digest in before.head.shards.values() if digest not in kept)

    def _place(self, bucket: Bucket, path: str, content: bytes, step: TargetStep, before: Holding) -> None:
        headers = {"Content-Type": content_type_of(path), "Cache-Control": cache_control_of(path)}
        if path in step.fresh:
            try:
                bucket.create(path, content, headers)
            except ObjectConflict:
                found = bucket.get(path, len(content))
                if found is not None and found.content == content:
                    return
                if not self._is_listed(path, before.head):
                    raise PublishError(
                        f"{self._address.name}: expected nothing or a file of gitboot's own at {path}, found something "
                        "else (move it away)"
                    ) from None
            else:
                return
        bucket.replace(path, content, headers)

    def _is_listed(self, path: str, head: TargetHead) -> bool:
        """Whether some server had a path, which another has by now."""
        return any(path in unit.files for number in head.shards for unit in self.shard(head, number).values())

    def _read_back(self, bucket: Bucket, path: str, digest: str, size_bytes: int) -> None:
        found = bucket.get(path, size_bytes)
        if found is None or digest_of(found.content) != digest:
            raise HostUnreachable(f"{self._address.name}: {path} was written, and is read as something else")

    def _damaged(self, path: str) -> PublishError:
        return PublishError(
            f"{self._address.name}: {path} is not what gitboot wrote (empty the prefix; it is filled anew)"
        )

    def _bucket(self) -> Bucket:
        """The bucket, opened with the credentials of this moment."""
        folder = self._address.credentials
        key = self._keys(folder) if folder is not None else None
        if self._opened is None or self._opened[0] != key:
            self._opened = key, Bucket(self._address, key)
        return self._opened[1]


def _shard_path(digest: str) -> str:
    return f"{_SHARDS}{digest}.json"


def _write_shard(bucket: Bucket, data: bytes) -> None:
    """Write what is named by its content: one that is there already is the same, or was damaged."""
    path = _shard_path(digest_of(data))
    try:
        bucket.create(path, data, RECORD)
    except ObjectConflict:
        found = bucket.get(path, len(data))
        if found is None or found.content != data:
            bucket.replace(path, data, RECORD)
