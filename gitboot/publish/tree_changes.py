"""Tree changes: decide which files of the output tree to change, and end maintenance windows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct, field

from gitboot.errors import PublishError
from gitboot.publish.durable_files import Disk, NotAFolder, TreeModes, has_content, is_file, is_full, staging_path
from gitboot.publish.manifest import (
    MANIFEST,
    Head,
    TreeOrigin,
    compute_digest,
    find_leaf,
    leaf_path,
    node_path,
    parse_part_path,
    render_digests,
    render_head,
    render_listing,
)
from gitboot.publish.manifest import SHARED as MANIFEST_SHARED
from gitboot.publish.tree_reader import LOCK, RESERVES, Tree, build_damage_error, check_path
from gitboot.render.endpoint_files import (
    INDEX,
    ListedFile,
    Pair,
    PathVersion,
    PublishedServer,
    Shard,
    build_index,
    find_version,
    is_index_path,
    parse_outline,
    parse_shard,
    parse_state,
    parse_state_path,
    shard_path,
    state_path,
    update_shard,
)
from gitboot.render.page import NO_UPDATES, FileUpdates
from gitboot.render.paths import BOOT, File, Files, find_non_script_kind, is_content, is_page_or_record_file
from gitboot.text import format_names

# unused content stays for this time, because a machine that is booting may still fetch it
GRACE: Final = timedelta(days=7)


class Publication(Struct, frozen=True, kw_only=True):
    """The files to publish."""

    servers: Mapping[str, Files | None]  # the servers that may have changed; None: the server is gone
    shared: Files | None  # files that belong to no server, except those rendered in parts; None: unchanged
    complete: bool  # whether ``servers`` contains all servers
    parts: FileUpdates = NO_UPDATES  # shared files that are rendered in parts and may have changed

    def __iter__(self) -> Iterator[Files]:
        """Yield the files of each server, and then files that belong to no server."""
        yield from (files for files in self.servers.values() if files is not None)
        yield self.changed_shared_files

    @property
    def changed_shared_files(self) -> dict[str, File]:
        """Return the files that belong to no server and may have changed."""
        return {**(self.shared or {}), **self.parts.files}

    def merge_shared(self, previous_files: Mapping[str, ListedFile]) -> dict[str, ListedFile]:
        """Return the listing of shared files after this publication, given the listing before it."""
        return {
            **{
                path: each
                for path, each in previous_files.items()
                if (self.shared is None and not is_page_or_record_file(path))
                or (not self.parts.is_whole and is_page_or_record_file(path) and path not in self.parts.removed)
            },
            **{path: ListedFile(file.sha256, len(file.content)) for path, file in self.changed_shared_files.items()},
        }


class TreeChanges(Struct, kw_only=True):
    """The changes that one publication makes to the tree. Paths are sorted, except those of states."""

    at: datetime  # UTC, in whole seconds
    # The digests of changed states for the manifest, by server; None: the server is removed.
    digests: dict[str, str | None] = field(default_factory=dict)
    shared: Mapping[str, ListedFile] | None = None  # the new listing of shared files; None: unchanged
    # by server, the content that its scripts refer to
    content: dict[str, tuple[str, ...]] = field(default_factory=dict)
    checked_files: int = 0
    written: list[str] = field(default_factory=list)
    states: Sequence[str] = ()  # the states to write, ordered so that each identity always belongs to a server
    unchanged_states: Sequence[str] = ()  # unchanged states of servers whose other files change
    withdrawn: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)  # content that is no longer used, and stays for GRACE
    expired: Sequence[str] = ()  # content to remove, because its GRACE is over
    batches: Sequence[datetime] = ()  # the times of the lists of retired content that gitboot can remove
    still_used: Sequence[str] = ()  # content that a server no longer uses, but other servers do
    shards_after_adding: Mapping[str, Shard] = field(
        default_factory=dict
    )  # index shards that contain both the new and the old pairs
    shards_after_removing: Mapping[str, Shard] = field(
        default_factory=dict
    )  # index shards without the old pairs; empty: the shard is removed
    possible_pairs: frozenset[Pair] = frozenset()  # pairs that may be in the index during the publication

    @property
    def paths(self) -> set[str]:
        """Return the paths that may have either their old or their new content until the publication ends."""
        return {
            *(*self.written, *self.withdrawn, *self.retired, *self.still_used, *self.expired),
            *(*self.shards_after_adding, *self.shards_after_removing),
        }

    @property
    def is_empty(self) -> bool:
        return not (self.paths or self.batches or self.digests or self.shared is not None)


class ContentReferences:
    """The content that each server refers to. Content without references is retired."""

    def __init__(self) -> None:
        self.by_server: dict[str, tuple[str, ...]] = {}  # paths by server; servers without content are missing
        self._counts = Counter[str]()

    def __contains__(self, path: str) -> bool:
        return path in self._counts

    def update(self, server: str, paths: tuple[str, ...]) -> None:
        """Record the content that ``server`` refers to."""
        for path in self.by_server.pop(server, ()):
            self._counts[path] -= 1
            if not self._counts[path]:
                del self._counts[path]
        self._counts.update(paths)
        if paths:
            self.by_server[server] = paths

    def update_all(self, content: Mapping[str, tuple[str, ...]], *, complete: bool) -> None:
        """Record the content that these servers refer to. If ``complete``, forget the content of all other servers."""
        if complete:
            self.by_server.clear()
            self._counts.clear()
        for server, paths in content.items():
            self.update(server, paths)

    def find_paths_used_by_others(self, servers: Collection[str], paths: Iterable[str]) -> set[str]:
        """Return the paths to which servers other than ``servers`` refer."""
        own_counts = Counter(path for server in servers for path in self.by_server.get(server, ()))
        return {path for path in paths if self._counts[path] > own_counts[path]}


SHARED: Final = ""  # used instead of a server name for files that belong to no server


def decide_changes(
    disk: Disk,
    tree: Tree,
    references: ContentReferences,
    publication: Publication,
    possible_pairs: Collection[Pair],
    at: datetime,
) -> TreeChanges:
    """Return the changes that turn the tree on disk into the wanted publication.

    This includes repairs after a crash. The files of a changed server are compared by content, so that unchanged files
    are not rewritten. The files of an unchanged server are compared by existence and size. Files that an interrupted
    publication may have changed are always rewritten, because after a failed sync the kernel may return content that is
    not on the disk. ``possible_pairs`` contains (identity, server) pairs that may be in the index. The changes remove
    all pairs that the publication does not contain. Raises a PublishError if files that gitboot did not write exist at
    paths to publish. The error lists all of these files.
    """
    planner = _ChangePlanner(disk, tree, references, publication, at.astimezone(UTC).replace(microsecond=0))
    planner.find_possible_changes()
    planner.compare_contents()
    planner.withdraw_files()
    planner.expire_content()
    planner.plan_index_changes(possible_pairs)
    return planner.changes


class _ChangePlanner:
    def __init__(
        self, disk: Disk, tree: Tree, references: ContentReferences, publication: Publication, at: datetime
    ) -> None:
        self._disk, self._tree, self._references, self._publication = disk, tree, references, publication
        self.changes = TreeChanges(at=at)
        self._suspects: dict[str, File] = {}  # planned files that may be missing or different
        self._owned: set[str] = set()  # files of earlier publications that may be replaced
        self._dropped_content: set[str] = set()  # content that these servers no longer use
        self._identities: dict[str, tuple[str, ...]] = {}  # the new identities of each server
        self._removed_pairs: set[Pair] = set()
        self._added_pairs: set[Pair] = set()

    # Find the files that may have changed

    def find_possible_changes(self) -> None:
        publication = self._publication
        listed = dict(self._tree.iter_servers()) if publication.complete else {}
        servers: Iterable[str] = publication.servers
        if publication.complete:
            pending_servers = (parse_state_path(path) for path in self._tree.pending_files)
            servers = sorted({*publication.servers, *listed, *(each for each in pending_servers if each is not None)})
        for server in servers:
            files = publication.servers.get(server)
            if files is not None:
                self._compare_server(
                    server, files, listed.get(server) if publication.complete else self._tree.find_digest(server)
                )
                continue
            self.changes.content[server] = ()
            if (digest := self._tree.find_digest(server)) is not None:
                self.changes.digests[server] = None
            self._collect_previous_files(server, digest)
        if publication.shared is not None or not publication.parts.is_empty:
            self._compare_shared_files(publication.changed_shared_files)

    def _compare_server(self, server: str, files: Files, digest: str | None) -> None:
        new_digest = files[state_path(server)].sha256
        self.changes.checked_files += len(files)
        self.changes.content[server] = tuple(filter(is_content, files))
        self._identities[server] = parse_outline(files[state_path(server)].content).identities
        if new_digest != digest:
            self.changes.digests[server] = new_digest
        if self._publication.complete and new_digest == digest:
            differing = {path: file for path, file in files.items() if self._may_differ(path, file)}
            self._owned.update(differing)
            self._suspects |= differing
            return
        self._suspects |= files
        before = self._collect_previous_files(server, digest)
        # if the digests are equal, the caller requested a complete check of this server
        indexed = before if new_digest != digest else frozenset()
        self._added_pairs |= {(identity, server) for identity in self._identities[server] if identity not in indexed}

    def _collect_previous_files(self, server: str, digest: str | None) -> frozenset[str]:
        """Collect a server's previously published files, which may be replaced or removed.

        Return the identities of the server that are certainly in the index.
        """
        path = state_path(server)
        if digest is None and path not in self._tree.pending:
            return frozenset()
        self._owned.add(path)
        if (before := self._tree.read_outline(server)) is None:
            # The state is damaged. It most likely listed the files that are planned now.
            self._owned.update(self._publication.servers.get(server) or ())
            return frozenset()
        self._owned.update(before.files)
        self._dropped_content.update(_find_dropped_content(before.files, self._publication.servers.get(server) or {}))
        self._removed_pairs |= {(identity, server) for identity in before.identities}
        if path in self._tree.pending:
            return frozenset()
        return frozenset(each for each in before.identities if shard_path(each) not in self._tree.pending)

    def _compare_shared_files(self, files: Files) -> None:
        before = self._tree.read_shared()
        after = self._publication.merge_shared(before)
        if after != before:
            self.changes.shared = after
        self.changes.checked_files += len(files)
        if self._publication.shared is not None:
            self.changes.content[SHARED] = tuple(filter(is_content, files))
        self._owned.update(before)
        self._dropped_content.update(_find_dropped_content(before, after))
        differing = files
        if self._publication.complete:
            differing = {
                path: file
                for path, file in files.items()
                if after[path] != before.get(path) or self._may_differ(path, file)
            }
        self._suspects |= differing

    def _may_differ(self, path: str, file: File) -> bool:
        return path in self._tree.pending or self._disk.size(path) != len(file.content)

    # Compare them

    def compare_contents(self) -> None:
        own_files = (self._owned, self._tree.pending, self._tree.retired, self._references)  # files that gitboot wrote
        foreign_paths: set[str] = set()
        for path, file in sorted(self._suspects.items()):
            check_path(path)
            try:
                file_stat = self._disk.lstat(path)
            except NotAFolder as error:
                foreign_paths.add(error.path)
                continue
            if path not in self._tree.pending and has_content(self._disk, path, file_stat, file.content):
                continue
            if file_stat is None or (is_file(file_stat) and any(path in each for each in own_files)):
                self.changes.written.append(path)
            else:
                foreign_paths.add(path)
        if foreign_paths:
            names = format_names([str(self._disk.root / path) for path in sorted(foreign_paths)], 10)
            raise PublishError(f"gitboot will not replace files that it did not write: {names} (move them elsewhere)")

    # Remove files

    def withdraw_files(self) -> None:
        for path in sorted(self._find_unused_paths({*self._owned, *self._tree.pending_files})):
            if not self._disk.has_file(path):
                continue
            if not is_content(path):
                self.changes.withdrawn.append(path)
            elif path in self._owned or path not in self._tree.retired:
                self.changes.retired.append(path)
        self.changes.still_used = sorted(self._dropped_content.difference(self.changes.retired))

    def _find_unused_paths(self, paths: set[str]) -> set[str]:
        """Return the paths that are not published and to which no other server refers."""
        for files in self._publication:
            paths -= files.keys()
        if paths:
            shared = self._publication.merge_shared(self._tree.read_shared())
            paths = {path for path in paths if path not in shared}
        return (
            paths
            if self._publication.complete
            else paths - self._references.find_paths_used_by_others(self.changes.content, paths)
        )

    def expire_content(self) -> None:
        """Choose the retired content to remove: content that was not used during `GRACE`.

        Content that is used again stays, but the list that named it as retired is removed.
        """
        self.changes.batches = sorted(since for since in self._tree.batches if since + GRACE <= self.changes.at)
        expired_paths = {path for path, since in self._tree.retired.items() if since in self.changes.batches}
        unused_paths = self._find_unused_paths(expired_paths) - set(self.changes.retired)
        self.changes.expired = sorted(path for path in unused_paths if self._disk.has_file(path))

    # The index

    def plan_index_changes(self, possible_pairs: Collection[Pair]) -> None:
        """Decide the changes to the index, and the order in which states are written."""
        changes, indexed = self.changes, self._removed_pairs.union(self._added_pairs, possible_pairs)
        removed_pairs = {
            (identity, server) for identity, server in indexed if identity not in self._identities.get(server, ())
        }
        changes.possible_pairs = frozenset(indexed)
        if self._publication.complete:
            changes.shards_after_adding, changes.shards_after_removing = rebuild_index(
                self._disk, self._identities, self._tree.pending
            )
        else:
            changes.shards_after_adding, changes.shards_after_removing = find_index_changes(
                self._disk, removed_pairs, self._added_pairs, self._tree.pending
            )
        # If an identity moves, the state of its new server is written before the state of its old server, so that the
        # identity always belongs to a server.
        removed_identities = {identity for identity, _ in removed_pairs}
        claiming_states = {
            state_path(name)
            for name, identities in self._identities.items()
            if not removed_identities.isdisjoint(identities)
        }
        states = [path for path in changes.written if parse_state_path(path) is not None]
        changes.states = sorted(states, key=lambda path: path not in claiming_states)
        written = set(changes.written)
        changes.unchanged_states = [
            state_path(server)
            for server, files in self._publication.servers.items()
            if files is not None and not written.isdisjoint(files) and state_path(server) not in written
        ]


def _find_dropped_content(before: Iterable[str], after: Collection[str]) -> Iterator[str]:
    return (path for path in before if path not in after and is_content(path))


Shards = dict[str, Shard]  # by path


def find_index_changes(
    disk: Disk, removed_pairs: Collection[Pair], added_pairs: Collection[Pair], pending_paths: Collection[str]
) -> tuple[Shards, Shards]:
    """Return the changed and pending index shards in two versions.

    The first version includes the added pairs and still includes the removed pairs. The second version does not include
    the removed pairs.
    """
    union_shards: Shards = {}
    final_shards: Shards = {}
    removed_by_shard, added_by_shard = _group_by_shard(removed_pairs), _group_by_shard(added_pairs)
    for path in sorted({*removed_by_shard, *added_by_shard, *filter(is_index_path, pending_paths)}):
        data = disk.read(path)
        try:
            before = parse_shard(data) if data is not None else {}
        except ValueError as error:
            raise build_damage_error(disk.root, path) from error
        union = update_shard(before, (), added_by_shard.get(path, ()))
        after = update_shard(union, removed_by_shard.get(path, ()), ())
        if union != before or (union and path in pending_paths):
            union_shards[path] = union
        if after != union:
            final_shards[path] = after
    return union_shards, final_shards


def rebuild_index(
    disk: Disk, identities: Mapping[str, tuple[str, ...]], pending_paths: Collection[str]
) -> tuple[Shards, Shards]:
    """Return the shards to write for an index of exactly these identities.

    The first shards contain the new and the old pairs. The second shards contain only the new pairs. The result omits
    unchanged shards, unless they are pending. It replaces damaged shards.
    """
    new_index: dict[str, dict[str, tuple[str, ...]]] = build_index(identities)
    union_shards: Shards = {}
    final_shards: Shards = {}
    for path in sorted({*new_index, *(f"{INDEX}/{name}" for name in disk.names(INDEX))}):
        before = None  # the shard is missing or damaged
        with suppress(ValueError):
            before = parse_shard(disk.read(path) or b"")
        after = new_index.get(path, {})
        union = update_shard(
            before or {}, (), ((identity, name) for identity, names in after.items() for name in names)
        )
        if union != before or (union and path in pending_paths):
            union_shards[path] = union
        if after != union or not after:
            final_shards[path] = after
    return union_shards, final_shards


def _group_by_shard(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(shard_path(pair[0]), []).append(pair)
    return found


Parts = dict[str, bytes | None]  # by path, the head last; None: the part is empty, and its file is removed


def amend_manifest(
    tree: Tree, origin: TreeOrigin, digests: Mapping[str, str | None], shared: Mapping[str, ListedFile] | None
) -> tuple[Head, Parts]:
    """Return the manifest's head after these changes, and the files of the manifest to write.

    The files include all parts that an interrupted publication may have replaced.
    """
    leaves: dict[tuple[str, str], dict[str, str | None]] = {}
    for server, digest in digests.items():
        leaves.setdefault(find_leaf(server), {})[server] = digest
    nodes: dict[str, dict[str, str | None]] = {}
    for node, leaf in map(parse_part_path, tree.pending):
        if node is not None:
            nodes.setdefault(node, {})
            if leaf is not None:
                leaves.setdefault((node, leaf), {})
    before = {node: tree.read_node(node) for node in sorted({*nodes, *(node for node, _ in leaves)})}
    parts: Parts = {}
    for (node, leaf), changes in sorted(leaves.items()):
        nodes.setdefault(node, {})[leaf] = _amend_part(
            parts, leaf_path(node, leaf), tree.read_leaf(node, leaf, before[node].get(leaf)), changes
        )
    node_changes: dict[str, str | None] = {}
    for node, changes in sorted(nodes.items()):
        node_changes[node] = _amend_part(parts, node_path(node), before[node], changes)
    listing = tree.head.shared if tree.head else None
    if shared is None and MANIFEST_SHARED in tree.pending:
        shared = tree.read_shared()
    if shared is not None:
        parts[MANIFEST_SHARED] = data = render_listing(shared) if shared else None
        listing = compute_digest(data) if data is not None else None
    head = Head(origin=origin, nodes=_apply_changes(tree.head.nodes if tree.head else {}, node_changes), shared=listing)
    return head, {**dict.fromkeys(tree.outdated), **parts, MANIFEST: render_head(head)}


def _amend_part(parts: Parts, path: str, digests: Mapping[str, str], changes: Mapping[str, str | None]) -> str | None:
    """Add a changed node or leaf to ``parts``. Return the digest of the part, or None if the part is now empty."""
    after = _apply_changes(digests, changes)
    parts[path] = data = render_digests(after) if after else None
    return compute_digest(data) if data is not None else None


def _apply_changes(digests: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: digest for name, digest in {**digests, **changes}.items() if digest is not None}


_SERVERS: Final = "ops/servers"
_IN_WINDOW: Final = b'"inWindow":true'  # Each state with a window contains this text.
# `WindowEnds` spends at most 1/20 of the time on reading all states, or 1/200 if their folder is unchanged.
_CHANGED_FACTOR: Final = 20
_UNCHANGED_FACTOR: Final = 200


class EndedWindows(NamedTuple):
    """The servers whose files were replaced because their windows ended, and the time at which the next window ends."""

    servers: tuple[str, ...]  # servers whose files were replaced, sorted
    next_end: datetime | None  # None: no known end


class WindowEndError(PublishError):
    """The files of some ended windows could not be replaced. ``servers`` have files that this attempt replaced."""

    def __init__(self, message: str, servers: tuple[str, ...]) -> None:
        super().__init__(message)
        self.servers = servers


class WindowEnds:
    """The times at which the windows of a published tree end.

    Reading all states of a large tree takes seconds, so gitboot reads all of them only at long intervals, and soon
    after another process has replaced a state, which changes the modification time of the folder. At other times,
    gitboot reads only the states of servers whose windows end.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[str, datetime] = {}  # by server, when a file may have to be replaced next
        self._last_read: _LastRead | None = None  # when all states were read last

    @property
    def next_end(self) -> datetime | None:
        return min(self._ends.values(), default=None)

    def is_due(self, root: Path, at: datetime) -> bool:
        """Return whether `end` may have to change the tree at ``root`` by the time ``at``."""
        return self._must_read_all(root) or any(end <= at for end in self._ends.values())

    def end(self, disk: Disk, at: datetime, modified_at: datetime) -> EndedWindows:
        """Replace the files of all windows that have ended by ``at``.

        No other process may publish to the tree during the call. Each file gets the content that is valid for its path
        at ``at``. If that content belongs to another window, the file gets the content outside of windows, because a
        newer commit may have cancelled that window. If the content boots an image that writes to a disk, the file gets
        its fallback. A file with unknown content stays. New files get the date ``modified_at``, or one second after the
        date of the previous version if that is later. If the files of some servers cannot be replaced, end the windows
        of the other servers, and then raise `WindowEndError`. The next call tries again, and reads only the states of
        the remaining servers.
        """
        began_s, version, must_read_all = (
            self._monotonic(),
            _read_folder_version(disk.root),
            self._must_read_all(disk.root),
        )
        due = sorted(name for name, end in self._ends.items() if end <= at)
        if must_read_all:
            state_servers = (parse_state_path(f"{_SERVERS}/{name}") for name in disk.names(_SERVERS))
            due = [name for name in state_servers if name is not None]
        ends = {} if must_read_all else {name: end for name, end in self._ends.items() if end > at}
        contents: dict[str, dict[str, bytes | None]] = {}
        # when `WindowEnds` must check a server next if there is no file to replace
        next_checks: dict[str, datetime | None] = {}
        # when `WindowEnds` must check a server next after its files were replaced
        later_checks: dict[str, datetime | None] = {}
        changed_servers: set[str] = set()
        failures: dict[str, PublishError] = {}
        for name in due:
            state: PublishedServer | None = None
            try:
                data = disk.read(state_path(name))
                if data is not None and _IN_WINDOW in data:
                    with suppress(ValueError):  # the next publication replaces a damaged state
                        state = parse_state(data)
                files = dict(_find_ended_window_files(disk, state, at)) if state is not None else {}
            except PublishError as error:
                failures[name] = error
                continue
            next_transition = _find_next_transition(state, at) if state is not None else None
            if files:
                contents[name], later_checks[name] = files, next_transition
            else:
                next_checks[name] = next_transition
        try:
            failures |= _replace_files(disk, contents, modified_at, changed_servers)
            if contents:
                fill_reserve(disk)
            next_checks |= {name: each for name, each in later_checks.items() if name not in failures}
        finally:
            times = {name: next_checks.get(name, min(self._ends.get(name, at), at)) for name in due}
            self._ends = ends | {name: time for name, time in times.items() if time is not None}
            if must_read_all:
                now_s = self._monotonic()
                self._last_read = _LastRead(version=version, ended_s=now_s, took_s=now_s - began_s)
        servers = tuple(sorted(changed_servers))
        if failures:
            first = next(iter(failures.values()))
            raise WindowEndError(str(first), servers) from first
        return EndedWindows(servers, self.next_end)

    def _must_read_all(self, root: Path) -> bool:
        if (last := self._last_read) is None:
            return True
        pause = _UNCHANGED_FACTOR if last.version == _read_folder_version(root) else _CHANGED_FACTOR
        return self._monotonic() >= last.ended_s + pause * last.took_s


class _LastRead(NamedTuple):
    version: tuple[int, ...] | None  # the version of the folder of states, before it was read
    ended_s: float  # a time on the monotonic clock
    took_s: float


def _read_folder_version(root: Path) -> tuple[int, ...] | None:
    """Return a value that changes if a state or the whole tree is replaced, or None if there is no tree."""
    try:
        found = (root / _SERVERS).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def end_windows(root: Path, window_ends: WindowEnds, at: datetime) -> EndedWindows:
    """Replace the files of windows in the tree at ``root`` that have ended by ``at``.

    If another process is publishing there, do nothing.

    ``window_ends`` must belong to this tree. Raises `PublishError`.
    """
    if not (root / BOOT).is_dir():
        return EndedWindows((), None)
    if not window_ends.is_due(root, at):
        return EndedWindows((), window_ends.next_end)
    try:
        modes = TreeModes.from_folder((root / BOOT).stat())
    except OSError as error:
        raise PublishError(f"{root / BOOT}: {error.strerror}") from error
    with closing(Disk(root, modes)) as disk:
        if disk.lock(LOCK):
            return EndedWindows((), None)
        # When the window ends, another host may publish a boot at the same path with a date in this second. gitboot
        # must not use the access log of this host as evidence of that boot. Therefore each file is dated one second
        # after the version that it replaces.
        return window_ends.end(disk, at, datetime.fromtimestamp(0, UTC))


def _find_ended_window_files(disk: Disk, state: PublishedServer, at: datetime) -> Iterator[tuple[str, bytes | None]]:
    """Yield each file of a server whose window has ended, with its new content, or None if it must be removed."""
    for path, versions in sorted(state.paths.items()):
        current, _ = find_version(versions, at)
        windows = {version.content for version in versions if version.in_window and version is not current}
        if current is not None and current.in_window:
            # the window belongs to the same maintenance, or to another maintenance with the same boot
            windows.discard(current.content)
        if not windows:
            continue
        found = disk.read(path)
        if found is not None and compute_digest(found) in windows:
            if current is not None and current.in_window:
                current = next((version for version in reversed(versions) if not version.in_window), None)
            if (content := _read_content(disk, state, current)) != found:
                yield path, content


def _find_next_transition(state: PublishedServer, at: datetime) -> datetime | None:
    path_versions = (versions for versions in state.paths.values() if any(version.in_window for version in versions))
    times = (version.since for versions in path_versions for version in versions if version.since is not None)
    return min((since for since in times if since > at), default=None)


_Contents = Mapping[str, Mapping[str, bytes | None]]  # by server and path, the new content; None: remove the file


def _replace_files(
    disk: Disk, contents: _Contents, modified_at: datetime, changed_servers: set[str]
) -> dict[str, PublishError]:
    """Durably replace files, and return the first error of each server whose files could not all be replaced.

    Each server of which a file changed is added to ``changed_servers``. If the files cannot be replaced together, try
    each half of the servers, and so on. On a full disk, replace the files server by server, because the old files of a
    server make room for the new files of the next server.
    """
    if len(contents) == 1:
        [(server, files)] = contents.items()
        try:
            _replace_server_files(disk, server, files, modified_at, changed_servers)
        except PublishError as error:
            return {server: error}
        return {}
    try:
        _replace_files_together(disk, contents, modified_at, changed_servers)
        return {}
    except PublishError as error:
        group_size = 1 if is_full(error) else (len(contents) + 1) // 2
    servers, failures = list(contents), dict[str, PublishError]()
    for start in range(0, len(servers), group_size):
        group = {server: contents[server] for server in servers[start : start + group_size]}
        failures |= _replace_files(disk, group, modified_at, changed_servers)
    return failures


def _replace_server_files(
    disk: Disk, server: str, files: Mapping[str, bytes | None], modified_at: datetime, changed_servers: set[str]
) -> None:
    """Replace the files of one server. If that is impossible, replace each possible file, and raise the first error.

    If the files include user data, replace the files only together. Otherwise a boot script of the window could fetch
    the user data of the policy, or a boot script of the policy the user data of the window.
    """
    try:
        _replace_files_with_reserve(disk, {server: files}, modified_at, changed_servers)
        return
    except PublishError:
        if any(map(find_non_script_kind, files)):
            raise
    failures: list[PublishError] = []
    for path, content in files.items():
        try:
            _replace_files_with_reserve(disk, {server: {path: content}}, modified_at, changed_servers)
        except PublishError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _replace_files_with_reserve(
    disk: Disk, contents: _Contents, modified_at: datetime, changed_servers: set[str]
) -> None:
    while True:
        try:
            return _replace_files_together(disk, contents, modified_at, changed_servers)
        except PublishError as error:
            if not (is_full(error) and _free_reserve(disk)):
                raise


def _free_reserve(disk: Disk) -> bool:
    """Remove a file of the reserve. Return False if there is no file that gitboot can remove."""
    for path in RESERVES:
        if disk.size(path) is not None:
            with suppress(PublishError):
                disk.remove(path)
                return True
    return False


def fill_reserve(disk: Disk) -> None:
    """Reserve the space and the inodes that gitboot needs to end windows on a full disk, or as much as is free."""
    for path, size_bytes in RESERVES.items():
        with suppress(PublishError):
            if disk.size(path) != size_bytes:
                disk.reserve_space(path, size_bytes)


def _replace_files_together(disk: Disk, contents: _Contents, modified_at: datetime, changed_servers: set[str]) -> None:
    if not contents:
        return
    try:
        for files in contents.values():
            linked_paths: dict[bytes, str] = {}  # files with the same content need the space of one file
            for path, content in sorted(files.items(), key=lambda item: (item[1] or b"", item[0])):
                if content is not None:
                    disk.stage(path, content, modified_at, linked_path=linked_paths.get(content))
                    linked_paths.setdefault(content, path)
        disk.sync()
        for name, files in contents.items():
            # If a boot script cannot be replaced, this script still needs the user data of the window.
            for path, content in sorted(files.items(), key=lambda item: find_non_script_kind(item[0]) is not None):
                if content is None:
                    try:
                        disk.remove(path)
                    finally:
                        if disk.size(path) is None:  # `remove` may fail after it has removed the file
                            changed_servers.add(name)
                else:
                    disk.place(path)
                    changed_servers.add(name)
        disk.sync()
    except PublishError:
        for path in (path for files in contents.values() for path in files):
            with suppress(PublishError):
                disk.remove(staging_path(path))
        raise


def _read_content(disk: Disk, state: PublishedServer, version: PathVersion | None) -> bytes | None:
    """Return the content of a version, or the fallback if the boot writes a disk. Return None if there is no file."""
    if version is None:
        return None
    digest = version.content if version.writes is None else version.writes.fallback
    if digest is None:
        return None
    if (text := state.contents.get(digest)) is not None:
        return text.encode()
    return disk.read(state.stored_paths[digest]) if digest in state.stored_paths else None
