"""Store target: a target in a store of files, such as a folder or a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from gitboot import __version__
from gitboot.errors import ForeignTree, HostUnreachable, LockedByAnother, OperatorError, PublishError
from gitboot.jsonio import encode_canonical
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.followed_tree import FollowedTree, RaceError, TargetFile
from gitboot.publish.targets.sync_steps import TargetStep
from gitboot.publish.targets.target_records import (
    CONTESTED,
    HEAD,
    MAX_RECORD_BYTES,
    SHARDS,
    UNLISTED,
    Shard,
    TargetContent,
    TargetHead,
    build_target_content,
    parse_contested,
    parse_head,
    parse_units,
    parse_unlisted,
    render_head,
    render_unlisted,
    shard_path,
)
from gitboot.render.endpoint_files import ListedFile
from gitboot.render.paths import BOOT, Stage, is_content, publication_stage

_MAX_CONTESTED: Final = 20_000  # each `load` reads these files; a step has about 2,000 scripts, or 10,000 with rsync
_MAX_SHARDS_BYTES: Final = 1 << 30  # the maximum size of all shards of a target together
# the number of servers in one step; with small steps, the end of a window does not wait for the whole fleet
_MAX_SERVERS: Final = 200


class FileConflict(Exception):
    """A file cannot be written, because the existing file has another version or because a new file already exists."""


class StoredFile(NamedTuple):
    """A file in a store."""

    content: bytes
    version: str | None  # the version for `replace`; None: the store has no versions


ReadFile = Callable[[str], TargetFile]  # by path; raises `RaceError`
# a function that gets a path and its file, or None if the file is absent
FileCallback = Callable[[str, StoredFile | None], None]


class FileStore(Protocol):
    """The files of one target, by path. A reader always sees either the complete old file or the complete new file.

    Every method may raise `HostUnreachable`, or `PublishError` if a person must fix the cause.
    """

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        """Return a file, cut off after ``max_bytes + 1`` bytes, or None if it is absent."""

    def get_each(self, paths: Collection[str], on_file: FileCallback) -> None:
        """Read files, and call ``on_file`` with each path and file, possibly in several threads at a time."""

    def create(self, path: str, content: bytes) -> None:
        """Write a new file. Raises `FileConflict` if the file exists."""

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        """Replace a file. If ``version`` is set, replace only that version.

        Raises `FileConflict` if the file has another version.
        """

    def place(self, paths: Collection[str], read_file: ReadFile, new_paths: Collection[str]) -> frozenset[str]:
        """Write files.

        If a path in ``new_paths`` already has other content, keep that content, and include the path in the result.
        """

    def find_differing_paths(self, expected_files: Mapping[str, ListedFile]) -> list[str]:
        """Return the sorted paths whose content differs from the content that `place` has just written."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files. Ignore files that do not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted paths of all files below a folder. ``folder`` ends in a slash."""


class StoreTarget:
    """A target to which only this process writes after `load`.

    ``open_store`` opens the store with the current credentials. ``writer`` is a random number that identifies this
    process. This process replaces the head only if the head is still the one that this process last wrote or read.
    """

    def __init__(
        self,
        name: str,
        open_store: Callable[[], FileStore],
        *,
        ledger: str,
        heir_of: Callable[[], str | None],
        writer: str,
        max_servers: int = _MAX_SERVERS,
    ) -> None:
        self.max_servers = max_servers
        self._name = name
        self._open = open_store
        self._ledger = ledger
        self._heir_of = heir_of  # returns the ledger whose target this process may take over, or None
        self._writer = writer
        self._last_head: StoredFile | None = None  # the head that this process wrote or read last
        self._last_unlisted: StoredFile | None = None  # the `UNLISTED` file that this process wrote or read last
        # The scripts and shards that another process may still write or remove if it was only paused, oldest first.
        # Each `load` compares the scripts with the shards. The file `CONTESTED` lists the paths for the next process.
        self._contested_paths: dict[str, None] = {}

    def load(self) -> TargetContent:
        """Return the content of the target, and claim the target for this process.

        Raises `ForeignTree`, `LockedByAnother`, `PublishError` and `HostUnreachable`.
        """
        store = self._open()
        # List the shards before the claim, because the next process may write shards while this process is paused.
        shard_paths = store.names(SHARDS)
        head = self._claim(store)
        unused_shards = sorted({*shard_paths}.difference(map(shard_path, head.shards.values())))
        unlisted_file = store.get(UNLISTED)
        contested_file = store.get(CONTESTED)
        try:
            contested_paths = parse_contested(contested_file.content) if contested_file is not None else []
        except ValueError as error:
            raise self._build_damage_error(CONTESTED) from error
        self._contested_paths = dict.fromkeys([*contested_paths, *self._contested_paths, *unused_shards])
        target_content = self._read_target_content(store, head, unlisted_file)
        if unlisted_file != self._last_unlisted:  # another process wrote the file, or a response was lost
            scripts = [path for path in sorted(target_content.unlisted_paths) if not is_content(path)]
            self._contested_paths |= dict.fromkeys(scripts)
        data = encode_canonical([*self._contested_paths][-_MAX_CONTESTED:]) + b"\n"
        if self._contested_paths and (contested_file is None or contested_file.content != data):
            store.replace(CONTESTED, data)
        self._last_unlisted = unlisted_file
        store.remove(unused_shards)
        return structs.replace(target_content, contested_paths=frozenset(self._contested_paths))

    def observe(self, hint: str) -> TargetContent | None:
        """Return the content of the target without writing, or None if no process has claimed the target.

        If the target belongs to another ledger, raises `ForeignTree` with ``hint`` in the message. Raises `RaceError`
        if another process writes a step. Also raises `PublishError` and `HostUnreachable`.
        """
        store = self._open()
        self._last_head = store.get(HEAD)
        head = self._parse_own_head(self._last_head.content, hint) if self._last_head is not None else None
        self._last_unlisted = store.get(UNLISTED)
        if head is None:
            return None
        try:
            return self._read_target_content(store, head, self._last_unlisted)
        except PublishError:
            if self.is_unchanged():
                raise
            raise RaceError(f"{self._name}: an instance is writing to this target") from None

    def is_unchanged(self) -> bool:
        """Return whether no process has started or finished a step since `observe`."""
        current: dict[str, StoredFile | None] = {}
        self._open().get_each((HEAD, UNLISTED), current.__setitem__)
        is_head_unchanged = _get_content(current[HEAD]) == _get_content(self._last_head)
        return is_head_unchanged and _get_content(current[UNLISTED]) == _get_content(self._last_unlisted)

    def shard(self, head: TargetHead, number: str) -> Shard:
        if (digest := head.shards.get(number)) is None:
            return {}
        return self._parse_verified_shard(digest, self._open().get(shard_path(digest)))

    def apply(self, step: TargetStep, content: TargetContent, tree: FollowedTree) -> None:
        """Write a step. If the method is interrupted, each file is complete, and `load` returns a consistent state."""
        store = self._open()
        current_head = store.get(HEAD)
        if current_head is None or self._last_head is None or current_head.content != self._last_head.content:
            raise self._build_conflict_error(current_head)
        self._write_unlisted(store, step.unverified)
        sizes: dict[str, int] = {}

        def read(path: str) -> TargetFile:
            file = tree.read_file(path, step.placed[path])
            sizes[path] = len(file.content)
            return file

        for stage in Stage:
            paths = [path for path in step.placed if publication_stage(path) is stage]
            conflicts = store.place(paths, read, step.new_paths.intersection(paths))
            if conflicts:
                self._reject_foreign_files(conflicts, content.head)
            store.place(sorted(conflicts), read, ())
        expected_files = {path: ListedFile(digest, sizes[path]) for path, digest in step.placed.items()}
        differing_paths = store.find_differing_paths(expected_files)
        if differing_paths:
            raise HostUnreachable(f"{self._name}: the content of {differing_paths[0]} changed after gitboot wrote it")
        store.remove(step.removed)
        shards = {shard_path(compute_digest(data)): data for data in step.shards.values() if data}
        store.place(sorted(shards), lambda path: TargetFile(shards[path], 0), ())
        self._write_head(store, step.head)
        self._write_unlisted(store, step.unlisted_paths)
        kept_digests = set(step.head.shards.values())
        store.remove(shard_path(digest) for digest in content.head.shards.values() if digest not in kept_digests)

    def _reject_foreign_files(self, paths: Iterable[str], head: TargetHead) -> None:
        """Raise PublishError if the shards of the target do not list all of these existing files."""
        shards = (self.shard(head, number) for number in head.shards)
        listed_paths = {path for shard in shards for unit in shard.values() for path in unit.files}
        foreign_paths = set(paths) - listed_paths
        if foreign_paths:
            raise PublishError(
                f"{self._name}: gitboot did not write the file at {min(foreign_paths)} (move the file away)"
            )

    def _claim(self, store: FileStore) -> TargetHead:
        """Record in the head that this process is the writer, and return the head. If there is no head, create one."""
        current_head = store.get(HEAD)
        if current_head is None:
            return self._create_head(store)
        head = self._parse_own_head(
            current_head.content, "choose another target, or take over this target with gitboot records begin"
        )
        if self._last_head is not None and head.writer != self._writer:
            raise self._build_conflict_error(current_head)
        self._last_head = current_head
        return self._write_head(store, structs.replace(head, ledger=self._ledger, writer=self._writer))

    def _create_head(self, store: FileStore) -> TargetHead:
        head = TargetHead(ledger=self._ledger, commit="", gitboot=__version__, writer=self._writer)
        data = render_head(head)
        # Another process created the file, or this process created the file but did not get the response.
        with suppress(FileConflict):
            store.create(HEAD, data)
        self._last_head = store.get(HEAD)
        if self._last_head is None or self._last_head.content != data:
            self._last_head = None
            raise HostUnreachable(f"{self._name}: another process has just started to write to this target")
        return head

    def _write_head(self, store: FileStore, head: TargetHead) -> TargetHead:
        """Replace the head, and read it back, because the response to a successful write may have been lost."""
        data = render_head(head)
        last_head = self._last_head
        if last_head is None or last_head.content != data:
            with suppress(FileConflict):
                store.replace(HEAD, data, last_head.version if last_head is not None else None)
            current_head = store.get(HEAD)
            if current_head is None or current_head.content != data:
                raise self._build_conflict_error(current_head)
            self._last_head = current_head
        return head

    def _write_unlisted(self, store: FileStore, paths: Collection[str]) -> None:
        """Write `UNLISTED`, and read it back. If another process wrote the file, keep it, because `load` needs it."""
        data = render_unlisted(paths)
        last = self._last_unlisted
        if data == (last.content if last is not None else render_unlisted(())):
            return
        with suppress(FileConflict):
            if last is None:
                store.create(UNLISTED, data)
            else:
                store.replace(UNLISTED, data, last.version)
        current = store.get(UNLISTED)
        if current is None or current.content != data:
            raise HostUnreachable(f"{self._name}: another process wrote {UNLISTED}")
        self._last_unlisted = current

    def _parse_own_head(self, content: bytes, hint: str) -> TargetHead:
        """Parse a head, and check that it belongs to this ledger or its predecessor. Raises `ForeignTree`."""
        head = self._parse_head(content)
        if head.ledger not in (self._ledger, self._heir_of()):
            raise ForeignTree(f"{self._name} belongs to the ledger {head.ledger}, not to {self._ledger} ({hint})")
        return head

    def _parse_head(self, content: bytes) -> TargetHead:
        try:
            return parse_head(content)
        except ValueError as error:
            raise PublishError(f"{self._name}: {HEAD}: {error} (choose another target)") from error

    def _build_conflict_error(self, current_head: StoredFile | None) -> OperatorError:
        if current_head is None:
            return PublishError(f"{self._name}: another process removed {HEAD}")
        head = self._parse_head(current_head.content)
        if head.ledger != self._ledger:
            return ForeignTree(f"{self._name} now belongs to the ledger {head.ledger}, not to {self._ledger}")
        return LockedByAnother(
            f"{self._name}: another process with the same ledger is writing to this target ({head.writer}; this "
            f"process is {self._writer}). Stop one of the processes, then restart this process"
        )

    def _read_target_content(
        self, store: FileStore, head: TargetHead, unlisted_file: StoredFile | None
    ) -> TargetContent:
        digests = {shard_path(digest): digest for digest in head.shards.values()}
        shards: list[Shard] = []
        size_bytes = 0
        size_lock = threading.Lock()

        def add_shard(path: str, file: StoredFile | None) -> None:
            nonlocal size_bytes
            with size_lock:
                size_bytes += len(file.content) if file is not None else 0
            if size_bytes > _MAX_SHARDS_BYTES:
                raise self._build_damage_error(HEAD)
            shards.append(self._parse_verified_shard(digests[path], file))

        store.get_each(sorted(digests), add_shard)
        try:
            unlisted_paths = parse_unlisted(unlisted_file.content) if unlisted_file is not None else frozenset()
        except ValueError as error:
            raise self._build_damage_error(UNLISTED) from error
        unverified_paths = unlisted_paths.union(self._find_overwritten_paths(store, shards))
        return build_target_content(head, shards, unverified_paths, gitboot=__version__)

    def _find_overwritten_paths(self, store: FileStore, shards: Iterable[Shard]) -> list[str]:
        """Return the contested paths whose files differ from the shards, including files that no shard lists."""
        expected = {
            path: unit.files[path]
            for shard in shards
            for unit in shard.values()
            for path in self._contested_paths.keys() & unit.files.keys()
        }
        overwritten: list[str] = []

        def compare(path: str, file: StoredFile | None) -> None:
            digest = compute_digest(file.content) if file is not None else None
            if digest != expected.get(path):
                overwritten.append(path)

        store.get_each(sorted(path for path in self._contested_paths if path.startswith(BOOT)), compare)
        return overwritten

    def _parse_verified_shard(self, digest: str, stored_file: StoredFile | None) -> Shard:
        if stored_file is None or compute_digest(stored_file.content) != digest:
            raise self._build_damage_error(shard_path(digest))
        try:
            return parse_units(stored_file.content)
        except ValueError as error:  # the digest is correct, so the process that wrote the head also wrote this shard
            raise self._build_damage_error(shard_path(digest)) from error

    def _build_damage_error(self, path: str) -> PublishError:
        return PublishError(f"{self._name}: {path} is damaged (empty the target, and gitboot will refill it)")


def _get_content(file: StoredFile | None) -> bytes | None:
    return file.content if file is not None else None
