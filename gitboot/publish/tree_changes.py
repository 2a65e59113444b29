"""Tree changes: decide which files of the output tree to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct, field

from gitboot.errors import PublishError
from gitboot.publish.durable_files import DurableDirectory, NotAFolder, is_file
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
from gitboot.publish.tree_reader import Tree, build_damage_error, check_path
from gitboot.render.endpoint_files import (
    INDEX,
    ListedFile,
    Pair,
    Shard,
    build_index,
    is_index_path,
    parse_outline,
    parse_shard,
    parse_state_path,
    shard_path,
    state_path,
    update_shard,
)
from gitboot.render.page import NO_UPDATES, FileUpdates
from gitboot.render.paths import File, Files, is_content, is_page_or_record_file
from gitboot.text import format_names

# unused content stays for this time, because a machine that is booting may still fetch it
GRACE: Final = timedelta(days=7)
SHARED: Final = ""  # used instead of a server name for files that belong to no server
Shards = dict[str, Shard]  # by path
Parts = dict[str, bytes | None]  # by path, the head last; None: the part is empty, and its file is removed


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
        merged = {path: listed for path, listed in previous_files.items() if self._keeps_shared_file(path)}
        for path, file in self.changed_shared_files.items():
            merged[path] = ListedFile(file.sha256, len(file.content))
        return merged

    def _keeps_shared_file(self, path: str) -> bool:
        if is_page_or_record_file(path):  # these files are rendered in parts
            return not self.parts.is_whole and path not in self.parts.removed
        return self.shared is None


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
    # index shards that contain both the new and the old pairs
    shards_after_adding: Mapping[str, Shard] = field(default_factory=dict)
    # index shards without the old pairs; empty: the shard is removed
    shards_after_removing: Mapping[str, Shard] = field(default_factory=dict)
    possible_pairs: frozenset[Pair] = frozenset()  # pairs that may be in the index during the publication

    @property
    def paths(self) -> set[str]:
        """Return the paths that may have either their old or their new content until the publication ends."""
        content = {*self.retired, *self.still_used, *self.expired}
        return {*self.written, *self.withdrawn, *content, *self.shards_after_adding, *self.shards_after_removing}

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


def decide_changes(
    disk: DurableDirectory,
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
    """Plans one publication. Its public methods are the steps, in the order in which `decide_changes` calls them."""

    def __init__(
        self, disk: DurableDirectory, tree: Tree, references: ContentReferences, publication: Publication, at: datetime
    ) -> None:
        self._disk, self._tree = disk, tree
        self._references, self._publication = references, publication
        self.changes = TreeChanges(at=at)
        self._suspects: dict[str, File] = {}  # planned files that may be missing or different
        self._owned: set[str] = set()  # files of earlier publications that may be replaced
        self._dropped_content: set[str] = set()  # content that these servers no longer use
        self._identities: dict[str, tuple[str, ...]] = {}  # the new identities of each server
        self._removed_pairs: set[Pair] = set()
        self._added_pairs: set[Pair] = set()

    # Find the files that may have changed

    def find_possible_changes(self) -> None:
        """Collect the planned files that may differ on the disk, and the files of earlier publications."""
        publication = self._publication
        listed: dict[str, str] = {}  # the digests of all published states; only a complete publication reads them
        servers: Iterable[str] = publication.servers
        if publication.complete:
            listed = dict(self._tree.iter_servers())
            pending_servers = filter(None, map(parse_state_path, self._tree.pending_files))
            servers = sorted({*publication.servers, *listed, *pending_servers})
        for server in servers:
            files = publication.servers.get(server)
            if files is None:
                self._remove_server(server)
            elif publication.complete:
                self._compare_server(server, files, listed.get(server))
            else:
                self._compare_server(server, files, self._tree.find_digest(server))
        if publication.shared is not None or not publication.parts.is_empty:
            self._compare_shared_files(publication.changed_shared_files)

    def _remove_server(self, server: str) -> None:
        self.changes.content[server] = ()
        digest = self._tree.find_digest(server)
        if digest is not None:
            self.changes.digests[server] = None
        self._collect_previous_files(server, digest)

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
        before = self._tree.read_outline(server)
        if before is None:
            # The state is damaged. It most likely listed the files that are planned now.
            self._owned.update(self._publication.servers.get(server) or ())
            return frozenset()
        self._owned.update(before.files)
        self._dropped_content.update(_find_dropped_content(before.files, self._publication.servers.get(server) or {}))
        self._removed_pairs |= {(identity, server) for identity in before.identities}
        if path in self._tree.pending:
            return frozenset()
        return frozenset(name for name in before.identities if shard_path(name) not in self._tree.pending)

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
        return path in self._tree.pending or self._disk.get_size(path) != len(file.content)

    # Compare the contents of these files

    def compare_contents(self) -> None:
        """Choose the files to write. Raises PublishError if files that gitboot did not write exist at their paths."""
        own_files = (self._owned, self._tree.pending, self._tree.retired, self._references)  # files that gitboot wrote
        foreign_paths: set[str] = set()
        for path, file in sorted(self._suspects.items()):
            check_path(path)
            try:
                file_stat = self._disk.lstat(path)
            except NotAFolder as error:
                foreign_paths.add(error.path)
                continue
            if path not in self._tree.pending and self._disk.has_content(path, file_stat, file.content):
                continue
            if file_stat is None or (is_file(file_stat) and any(path in paths for paths in own_files)):
                self.changes.written.append(path)
            else:
                foreign_paths.add(path)
        if foreign_paths:
            names = format_names([str(self._disk.root / path) for path in sorted(foreign_paths)], 10)
            raise PublishError(f"gitboot will not replace files that it did not write: {names} (move them elsewhere)")

    # Remove files

    def withdraw_files(self) -> None:
        """Choose the files to remove, and the content to retire, because no published file uses them any more."""
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
        if self._publication.complete:
            return paths
        return paths - self._references.find_paths_used_by_others(self.changes.content, paths)

    def expire_content(self) -> None:
        """Choose the retired content to remove: content that was not used during `GRACE`.

        Content that is used again stays, but the list that named it as retired is removed.
        """
        self.changes.batches = sorted(since for since in self._tree.batches if since + GRACE <= self.changes.at)
        expired_paths = {path for path, since in self._tree.retired.items() if since in self.changes.batches}
        unused_paths = self._find_unused_paths(expired_paths) - set(self.changes.retired)
        self.changes.expired = sorted(path for path in unused_paths if self._disk.has_file(path))

    # Change the index

    def plan_index_changes(self, possible_pairs: Collection[Pair]) -> None:
        """Choose the shards of the index to write before and after the states, and the order of the states."""
        indexed = self._removed_pairs.union(self._added_pairs, possible_pairs)
        removed_pairs = {
            (identity, server) for identity, server in indexed if identity not in self._identities.get(server, ())
        }
        if self._publication.complete:
            union_shards, final_shards = rebuild_index(self._disk, self._identities, self._tree.pending)
        else:
            union_shards, final_shards = find_index_changes(
                self._disk, removed_pairs, self._added_pairs, self._tree.pending
            )
        self.changes.possible_pairs = frozenset(indexed)
        self.changes.shards_after_adding, self.changes.shards_after_removing = union_shards, final_shards
        self._order_states({identity for identity, _ in removed_pairs})

    def _order_states(self, removed_identities: Collection[str]) -> None:
        """Choose the order in which states are written, so that each identity always belongs to a server.

        If an identity moves, the state of its new server is written before the state of its old server.
        """
        claiming_states = {
            state_path(server)
            for server, identities in self._identities.items()
            if any(identity in removed_identities for identity in identities)
        }
        written = set(self.changes.written)
        states = [path for path in self.changes.written if parse_state_path(path) is not None]
        self.changes.states = sorted(states, key=lambda path: path not in claiming_states)
        self.changes.unchanged_states = [
            state_path(server)
            for server, files in self._publication.servers.items()
            if files is not None and not written.isdisjoint(files) and state_path(server) not in written
        ]


def _find_dropped_content(before: Iterable[str], after: Collection[str]) -> Iterator[str]:
    return (path for path in before if path not in after and is_content(path))


# The index


def find_index_changes(
    disk: DurableDirectory,
    removed_pairs: Collection[Pair],
    added_pairs: Collection[Pair],
    pending_paths: Collection[str],
) -> tuple[Shards, Shards]:
    """Return the changed and pending index shards in two versions.

    The first version includes the added pairs and still includes the removed pairs. The second version does not include
    the removed pairs.
    """
    union_shards: Shards = {}
    final_shards: Shards = {}
    removed_by_shard = _group_by_shard(removed_pairs)
    added_by_shard = _group_by_shard(added_pairs)
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
    disk: DurableDirectory, identities: Mapping[str, tuple[str, ...]], pending_paths: Collection[str]
) -> tuple[Shards, Shards]:
    """Return the shards to write for an index of exactly these identities.

    The first shards contain the new and the old pairs. The second shards contain only the new pairs. The result omits
    unchanged shards, unless they are pending. It replaces damaged shards.
    """
    new_index: dict[str, dict[str, tuple[str, ...]]] = build_index(identities)
    union_shards: Shards = {}
    final_shards: Shards = {}
    for path in sorted({*new_index, *(f"{INDEX}/{name}" for name in disk.list_names(INDEX))}):
        before = None  # the shard is missing or damaged
        with suppress(ValueError):
            before = parse_shard(disk.read(path) or b"")
        after = new_index.get(path, {})
        new_pairs = [(identity, server) for identity, servers in after.items() for server in servers]
        union = update_shard(before or {}, (), new_pairs)
        if union != before or (union and path in pending_paths):
            union_shards[path] = union
        if after != union or not after:
            final_shards[path] = after
    return union_shards, final_shards


def _group_by_shard(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    pairs_by_shard: dict[str, list[Pair]] = {}
    for identity, server in pairs:
        pairs_by_shard.setdefault(shard_path(identity), []).append((identity, server))
    return pairs_by_shard


# The manifest


def amend_manifest(
    tree: Tree, origin: TreeOrigin, digests: Mapping[str, str | None], shared: Mapping[str, ListedFile] | None
) -> tuple[Head, Parts]:
    """Return the manifest's head after these changes, and the files of the manifest to write.

    The files include all parts that an interrupted publication may have replaced.
    """
    leaf_changes: dict[tuple[str, str], dict[str, str | None]] = {}
    for server, digest in digests.items():
        leaf_changes.setdefault(find_leaf(server), {})[server] = digest
    changed_nodes = {node for node, _ in leaf_changes}
    for node, leaf in map(parse_part_path, tree.pending):
        if node is not None:
            changed_nodes.add(node)
            if leaf is not None:
                leaf_changes.setdefault((node, leaf), {})
    old_nodes = {node: tree.read_node(node) for node in sorted(changed_nodes)}
    node_changes: dict[str, dict[str, str | None]] = {node: {} for node in old_nodes}
    parts: Parts = {}
    for (node, leaf), changes in sorted(leaf_changes.items()):
        old_leaf = tree.read_leaf(node, leaf, old_nodes[node].get(leaf))
        node_changes[node][leaf] = _amend_part(parts, leaf_path(node, leaf), old_leaf, changes)
    head_changes: dict[str, str | None] = {}
    for node, changes in node_changes.items():
        head_changes[node] = _amend_part(parts, node_path(node), old_nodes[node], changes)
    listing_digest = tree.head.shared if tree.head else None
    if shared is None and MANIFEST_SHARED in tree.pending:
        shared = tree.read_shared()
    if shared is not None:
        listing = render_listing(shared) if shared else None
        listing_digest = compute_digest(listing) if listing is not None else None
        parts[MANIFEST_SHARED] = listing
    nodes = _apply_changes(tree.head.nodes if tree.head else {}, head_changes)
    head = Head(origin=origin, nodes=nodes, shared=listing_digest)
    return head, {**dict.fromkeys(tree.outdated), **parts, MANIFEST: render_head(head)}


def _amend_part(parts: Parts, path: str, digests: Mapping[str, str], changes: Mapping[str, str | None]) -> str | None:
    """Add a changed node or leaf to ``parts``. Return the digest of the part, or None if the part is now empty."""
    after = _apply_changes(digests, changes)
    data = render_digests(after) if after else None
    parts[path] = data
    return compute_digest(data) if data is not None else None


def _apply_changes(digests: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: digest for name, digest in {**digests, **changes}.items() if digest is not None}
