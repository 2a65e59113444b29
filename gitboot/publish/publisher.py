"""Publisher: write changes to the output tree in a safe order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, structs

from gitboot import __version__
from gitboot.errors import ForeignTree, LockedByAnother, PublishError
from gitboot.jsonio import Digest, encode_canonical
from gitboot.publish.durable_files import OPEN_MODES, DurableDirectory, TreeModes, apply_modes, make_root, staging_path
from gitboot.publish.first_publication import NeededFile, check_free_space, fill_tree, finish_first_publication
from gitboot.publish.manifest import MANIFEST, STATUS, TreeOrigin, compute_digest
from gitboot.publish.signed_list import Listings, ListKeys, SignedList, TreeDetails, find_listing
from gitboot.publish.tree_changes import (
    ContentReferences,
    Parts,
    Publication,
    TreeChanges,
    amend_manifest,
    decide_changes,
)
from gitboot.publish.tree_reader import (
    LOCK,
    PENDING,
    RESERVES,
    Inventory,
    Tree,
    batch_path,
    find_changed_servers,
    find_leftover_pairs,
    is_empty_tree,
)
from gitboot.publish.window_ends import EndedWindows, WindowEnds, fill_reserve
from gitboot.render.endpoint_files import Pair, render_shards
from gitboot.render.page import NO_UPDATES, FileUpdates, render_data_script
from gitboot.render.paths import ON_PAGE, PAGE_INDEX, File, Files, Stage, is_content, publication_stage
from gitboot.status.work_progress import ReportProgress, ignore_progress, iterate_with_progress


class PublicationResult(Struct, frozen=True, kw_only=True):
    """The result of a publication. Paths are sorted."""

    written: tuple[str, ...]
    withdrawn: tuple[str, ...]  # paths that were removed, because they are no longer planned
    expired: tuple[str, ...]  # content that was removed, because no file had referred to it during GRACE
    unchanged: int  # number of checked files that did not need to change
    first_files: int = 0  # the number of files in a first publication; `written` does not list these files

    @property
    def new(self) -> int:
        return len(self.written) + self.first_files


class _Outcome(NamedTuple):
    """The result of a publication, and the listings that it changed."""

    result: PublicationResult
    listings: Listings


class OutputDirectory:
    """An output directory to which only this process publishes between `open` and `close`."""

    def __init__(
        self,
        disk: DurableDirectory,
        *,
        ledger: str,
        heir_of: Callable[[], str | None],
        report_progress: ReportProgress = ignore_progress,
    ) -> None:
        self._disk = disk
        self._ledger = ledger
        self._heir_of = heir_of
        self._report_progress = report_progress
        self._tree = Tree(disk)
        self._references = ContentReferences()
        self._unfinished: Publication | None = None  # the publication that failed and must be completed
        # (identity, server) pairs that failed publications may have left in the index
        self._indexed: frozenset[Pair] = frozenset()
        self._last_manifest: bytes | None = None  # the manifest after the last publication
        self._last_manifest_digest = ""  # the sha256 of that manifest
        self._is_foreign = False  # whether the directory contained the tree of another ledger
        self._list = SignedList()
        self._window_ends = WindowEnds()

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        ledger: str,
        heir_of: Callable[[], str | None] = lambda: None,
        report_progress: ReportProgress = ignore_progress,
        modes: TreeModes = OPEN_MODES,
    ) -> OutputDirectory:
        """Open the directory at ``root`` for the instance with this ledger, creating the directory if necessary.

        ``heir_of`` returns the ledger whose tree the instance may take over, or None if no person has approved a
        takeover. ``report_progress`` is called during a publication. ``modes`` apply to all new files, and to existing
        files unless ``modes`` is `OPEN_MODES`.

        Raises LockedByAnother if another process publishes there, and PublishError if the directory is not writable.
        """
        make_root(root, modes)
        disk = DurableDirectory(root, modes)
        try:
            if holder := disk.lock(LOCK):
                raise LockedByAnother(
                    f"{root}: {holder} is publishing to this directory (stop that process, or choose another directory)"
                )
            if modes is not OPEN_MODES:
                apply_modes(root, modes)
            disk.remove(staging_path(PENDING))
            finish_first_publication(disk)
            return cls(disk, ledger=ledger, heir_of=heir_of, report_progress=report_progress)
        except BaseException:
            disk.close()
            raise

    def close(self, *, remove_lock: bool = False) -> None:
        """Unlock the directory. With ``remove_lock``, also remove the files that only matter to an instance."""
        if remove_lock:
            for path in (*RESERVES, LOCK):
                self._disk.remove(path)
        self._disk.close()

    def __enter__(self) -> OutputDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_unchanged(self) -> bool:
        """Whether the directory still contains the manifest of the last publication.

        The value is False if somebody replaced the directory or restored an older copy of the tree. It is also False if
        the tree belongs to another ledger, so that the next publication checks the tree again.
        """
        with suppress(PublishError):
            is_same = self._last_manifest is None or self._disk.read(MANIFEST) == self._last_manifest
            return is_same and not self._is_foreign and self._disk.is_root_unchanged
        return False

    @property
    def origin(self) -> TreeOrigin | None:
        return self._tree.origin

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:
        """Return the modification time (seconds since 1970) of ``path`` if ``file`` is published there at ``at``."""
        file_stat = self._disk.lstat(path)
        if file_stat is not None and self.has_files({path: file}):
            return int(file_stat.st_mtime)  # gitboot would not write the file again
        return self._disk.choose_mtime(path, at)

    def has_files(self, files: Files) -> bool:
        """Return whether the tree contains all of these files with exactly this content."""
        return all(
            path not in self._tree.pending and self._disk.has_content(path, self._disk.lstat(path), file.content)
            for path, file in files.items()
        )

    def inventory(self) -> Inventory:
        """Return a summary of the tree, for `resume` after a restart."""
        head = self._tree.head
        return Inventory(
            states=dict(self._tree.iter_servers()),
            content=dict(self._references.by_server),
            shared=head.shared if head is not None else None,
            has_page=PAGE_INDEX in self._tree.read_shared(),
        )

    def resume(self, previous: Inventory) -> frozenset[str] | None:
        """Continue from the tree of an earlier process. Return the servers whose files have changed since ``previous``.

        The first publication must then include the current files of these servers, but does not have to be complete. In
        the result, `ALL` stands for the shared files. If the result is None, the first publication must be complete.
        """
        tree = self._tree
        if tree.origin is None or tree.origin.ledger != self._ledger:
            return None
        changed_servers = find_changed_servers(tree, previous)
        if changed_servers is None:
            return None
        indexed = find_leftover_pairs(self._disk, tree)
        if indexed is None:
            return None
        for server, paths in {**previous.content, **changed_servers}.items():
            self._references.update(server, paths)
        self._indexed = indexed
        self._cache_manifest()
        return frozenset(changed_servers)

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: FileUpdates = NO_UPDATES,
    ) -> PublicationResult:
        """Publish the files of these servers, and the shared files.

        The files of a server include its state. If the files are None, the server was removed. If ``shared`` is None,
        the shared files have not changed. ``parts`` contains shared files that are rendered in parts and may have
        changed. The first publication of a process must be ``complete``. A complete publication contains all servers.
        It removes all other files of the tree, and replaces files of the wrong size. If there is no tree yet, the items
        of ``servers`` are read once and not stored. Later publications only need to contain the servers that may have
        changed, and spend no time on other servers. A publication of unchanged files does not write to the tree.

        Before gitboot writes a file, it decides all changes and checks their paths for foreign files. After a crash or
        a failure, each file is complete in its old or its new version, and all content that scripts refer to is
        present. The next publication writes the rest. Each version of a file is dated at least one second after the
        previous version, so that access logs show the difference. If somebody replaced the tree, gitboot reads it
        again, and the publication must be complete.

        Raises ForeignTree and PublishError.
        """
        if not self.is_unchanged:
            if not complete:
                raise PublishError(
                    f"{self._disk.root}: the tree was replaced, so gitboot will publish the whole tree again"
                )
            self._reopen()
        elif self._unfinished is not None and finish_first_publication(self._disk):
            self._tree = Tree(self._disk)
        publication = Publication(servers=servers, shared=shared, complete=complete, parts=parts)
        if self._unfinished is not None and not complete:
            publication = _merge_publications(self._unfinished, publication)
        self._unfinished = publication
        self._is_foreign = True
        _reject_foreign_tree(self._disk, self._tree, self._ledger, self._heir_of)
        self._is_foreign = False
        origin = TreeOrigin(commit=commit, gitboot=__version__, ledger=self._ledger)
        old_manifest = self._disk.read(MANIFEST)
        try:
            remove_staged_files(self._disk, self._tree.pending)
            outcome = self._fill_empty_tree(publication, origin, at)
            if outcome is None:
                # `servers` may render its files when they are read, so gitboot reads them only once
                publication = self._unfinished = structs.replace(publication, servers=dict(publication.servers.items()))
                outcome = self._publish_changes(publication, origin, at)
            fill_reserve(self._disk)
        finally:
            self._disk.release_folders()
            self._report_progress(1, 1)
        self._unfinished, self._indexed, self._window_ends = None, frozenset(), WindowEnds()
        self._cache_manifest()
        old_digest = compute_digest(old_manifest) if old_manifest else None
        self._list.record_listings(outcome.listings, old_digest, self._last_manifest_digest)
        return outcome.result

    def _cache_manifest(self) -> None:
        self._last_manifest = self._disk.read(MANIFEST)
        self._last_manifest_digest = compute_digest(self._last_manifest or b"")

    def end_windows(self, at: datetime) -> EndedWindows:
        """Replace files that were published for windows that have ended by ``at``.

        The next publication must include the servers whose files were replaced. If the method raises `PublishError`,
        the next call tries again.
        """
        if not self._disk.is_root_unchanged:
            return EndedWindows((), None)
        try:
            return self._window_ends.end(self._disk, at, modified_at=at)
        finally:
            self._disk.release_folders()

    def update_list(self, keys: ListKeys | None, at: datetime) -> datetime | None:
        """Update the signed list to match the current tree, or renew the list when due. Return when the list expires.

        ``keys`` sign the list. If they are None, the list is unsigned. The method does not write a list before the
        first publication is complete, or if somebody replaced the tree. Return None if this process has not written a
        list. If the method raises `PublishError`, the earlier list remains in the tree.
        """
        head = self._tree.head
        if self._unfinished is None and self._last_manifest and head is not None and self.is_unchanged:
            tree_details = TreeDetails(head.origin, self._last_manifest_digest)
            try:
                self._list.update(self._disk, self._tree, tree_details, keys, at)
            finally:
                self._disk.release_folders()
        return self._list.expires

    def _fill_empty_tree(self, publication: Publication, origin: TreeOrigin, at: datetime) -> _Outcome | None:
        """Write a first publication.

        Return None if the tree is not empty, or if gitboot cannot rename files of a new tree to their final paths.
        """
        if not is_empty_tree(self._disk, self._tree):
            return None
        filled_tree = fill_tree(self._disk, self._tree, publication, origin, at, self._report_progress)
        if filled_tree is None:
            return None
        self._tree.mark_complete(filled_tree.head)
        self._references.update_all(filled_tree.content, complete=True)
        result = PublicationResult(
            written=(), withdrawn=(), expired=(), unchanged=0, first_files=filled_tree.files_written
        )
        return _Outcome(result, filled_tree.listings)

    def _publish_changes(self, publication: Publication, origin: TreeOrigin, at: datetime) -> _Outcome:
        """Write a publication to an existing tree."""
        tree = self._tree
        changes = decide_changes(self._disk, tree, self._references, publication, self._indexed, at)
        self._indexed = changes.possible_pairs
        head, manifest = amend_manifest(tree, origin, changes.digests, changes.shared)
        if head != tree.head or not changes.is_empty or tree.pending:
            content = _collect_content(changes, publication)
            hard_links = _group_hard_links(changes, publication)
            if tree.origin is None:  # complete an interrupted first publication
                linked_paths = {path for paths in hard_links.values() for path in paths}
                new_paths = content.keys() - linked_paths
                check_free_space(self._disk.root, (NeededFile(path, len(content[path])) for path in new_paths))
            write_changes(self._disk, tree, changes, content, hard_links, manifest, self._report_progress)
            tree.mark_complete(head)
            tree.retire(changes.retired, changes.at, changes.batches)
        self._references.update_all(changes.content, complete=publication.complete)
        listings = {server: find_listing(publication.servers.get(server), server) for server in changes.digests}
        return _Outcome(_build_result(changes), listings)

    def _reopen(self) -> None:
        make_root(self._disk.root, self._disk.modes)
        disk = DurableDirectory(self._disk.root, self._disk.modes)
        self._disk.close()
        # A manifest is never empty, so with b"" the tree counts as replaced until it has been read.
        self._disk, self._last_manifest = disk, b""
        if holder := disk.lock(LOCK):
            raise PublishError(
                f"{disk.root}: {holder} is publishing to this directory (stop that process, or choose another "
                "directory)"
            )
        finish_first_publication(disk)
        self._tree, self._references, self._window_ends = Tree(disk), ContentReferences(), WindowEnds()
        self._unfinished, self._indexed, self._last_manifest = None, frozenset(), None

    def write_status(self, content: bytes, at: datetime, path: str = STATUS) -> None:
        """Write the instance's state to a file that endpoints read.

        The method ignores errors, because an error affects only this file.
        """
        with suppress(PublishError):
            _reject_foreign_tree(self._disk, self._tree, self._ledger, self._heir_of)
            name, on_page = ON_PAGE[path]
            self._disk.stage(path, content, at)
            self._disk.place(path)
            if self._disk.lstat(PAGE_INDEX) is None:
                self._disk.remove(on_page)
            else:  # the page loads this data as a script
                self._disk.stage(on_page, render_data_script(name, content), at)
                self._disk.place(on_page)
        self._disk.release_folders()


def _merge_publications(unfinished: Publication, newer: Publication) -> Publication:
    """Return an unfinished publication with the changes of a newer one."""
    return structs.replace(
        unfinished,
        servers={**unfinished.servers, **newer.servers},
        shared=unfinished.shared if newer.shared is None else newer.shared,
        parts=unfinished.parts.merge(newer.parts),
    )


def _build_result(changes: TreeChanges) -> PublicationResult:
    return PublicationResult(
        written=tuple(changes.written),
        withdrawn=tuple(changes.withdrawn),
        expired=tuple(changes.expired),
        unchanged=changes.checked_files - len(changes.written),
    )


def _collect_content(changes: TreeChanges, publication: Publication) -> dict[str, bytes]:
    """Return the content of the written paths, in the order of these paths."""
    written = set(changes.written)
    content = {path: files[path].content for files in publication for path in files.keys() & written}
    return {path: content[path] for path in changes.written}


def _group_hard_links(changes: TreeChanges, publication: Publication) -> dict[str, tuple[str, ...]]:
    """Group the written paths of each server by identical content, keyed by the first path of each group.

    The paths of a group become hard links to one file. All links to a file belong to one server. Therefore, they are
    replaced together, they have the same date, and their number stays below the limit of the file system.
    """
    written = set(changes.written)
    grouped: set[str] = set()  # the paths of earlier servers
    hard_links: dict[str, tuple[str, ...]] = {}
    for files in publication:
        paths_by_digest: dict[Digest, list[str]] = {}
        for path in sorted((files.keys() & written) - grouped):
            paths_by_digest.setdefault(files[path].sha256, []).append(path)
        grouped.update(files)  # |= would copy the set for each server
        for paths in paths_by_digest.values():
            if len(paths) > 1:
                hard_links[paths[0]] = tuple(paths[1:])
    return hard_links


def _reject_foreign_tree(disk: DurableDirectory, tree: Tree, ledger: str, heir_of: Callable[[], str | None]) -> None:
    if tree.origin is not None and tree.origin.ledger != ledger and tree.origin.ledger != heir_of():
        raise ForeignTree(
            f"{disk.root} belongs to the ledger {tree.origin.ledger}, not to {ledger} "
            "(choose another directory, or take over this directory with `gitboot records begin`)"
        )


def write_changes(
    disk: DurableDirectory,
    tree: Tree,
    changes: TreeChanges,
    content: Mapping[str, bytes],
    hard_links: Mapping[str, tuple[str, ...]],
    manifest: Parts,
    report_progress: ReportProgress,
) -> None:
    """Replace files in a safe order: content, boot scripts, the first scripts, and the manifest last.

    ``content`` is the new content by path. ``hard_links`` maps a path to the other paths that become hard links to
    its file. ``report_progress`` counts each file twice: when it is staged and when it is placed. After a PublishError,
    the tree may contain files of two versions, and ``tree.pending`` contains the affected paths.
    """
    batch_files = _render_batches(tree, changes)
    union_shards = render_shards(changes.shards_after_adding)
    final_shards = render_shards(changes.shards_after_removing)
    # After an interrupted publication, the paths of states in this set show which servers are affected. PENDING marks
    # sets for which this is true, because older versions of gitboot wrote sets without these paths.
    tree.mark_pending({*changes.paths, *changes.unchanged_states, *batch_files, *manifest, PENDING})
    try:
        _stage_files(disk, {PENDING: encode_canonical(sorted(tree.pending))}, changes.at)
        disk.sync()
        disk.place(PENDING)
        disk.sync()
        staged = {**content, **batch_files, **union_shards, **manifest}
        _stage_files(disk, staged, changes.at, hard_links, lambda done, total: report_progress(done, 2 * total))
        disk.sync()
        _place_files(disk, (path for path in content if is_content(path)))
        disk.sync()
        _place_files(disk, union_shards)
        states = set(changes.states)
        others = [path for path in (*content, *batch_files) if not is_content(path) and path not in states]
        first_scripts = [path for path in others if publication_stage(path) is Stage.FIRST_SCRIPTS]
        placed = [*changes.states, *(path for path in others if path not in first_scripts)]
        _place_files(disk, iterate_with_progress(placed, lambda done, total: report_progress(total + done, 2 * total)))
        if first_scripts:
            disk.sync()
            _place_files(disk, first_scripts)
        if final_shards:
            _stage_files(disk, final_shards, changes.at)
            disk.sync()
            _replace_files(disk, final_shards)
        _remove_files(disk, (*changes.withdrawn, *changes.expired))
        _remove_files(disk, (batch_path(since) for since in changes.batches))
        _replace_files(disk, manifest)
        disk.sync()
        disk.remove(PENDING)
    except PublishError:
        with suppress(PublishError):
            remove_staged_files(disk, {*tree.pending, PENDING})
        raise


def remove_staged_files(disk: DurableDirectory, paths: Collection[str]) -> None:
    """Remove the temporary files that were staged for these paths."""
    for path in sorted(paths):
        disk.remove(staging_path(path))


def _replace_files(disk: DurableDirectory, contents: Mapping[str, bytes | None]) -> None:
    _remove_files(disk, (path for path, content in contents.items() if content is None))
    _place_files(disk, (path for path, content in contents.items() if content is not None))


def _place_files(disk: DurableDirectory, paths: Iterable[str]) -> None:
    for path in paths:
        disk.place(path)


def _remove_files(disk: DurableDirectory, paths: Iterable[str]) -> None:
    for path in paths:
        disk.remove(path)


def _stage_files(
    disk: DurableDirectory,
    contents: Mapping[str, bytes | None],
    at: datetime,
    hard_links: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    report_progress: ReportProgress = ignore_progress,
) -> None:
    linked_paths = {path for paths in hard_links.values() for path in paths}
    for path, content in iterate_with_progress(contents.items(), report_progress):
        if content is None or path in linked_paths:
            continue
        staged_file = disk.stage(path, content, at)
        for other_path in hard_links.get(path, ()):
            disk.stage(other_path, content, at, staged_file)


def _render_batches(tree: Tree, changes: TreeChanges) -> dict[str, bytes]:
    """Render the lists of retired content that this publication changes.

    These are the list of content that this publication retires, and the lists that an interrupted publication may have
    changed.
    """
    batches = {changes.at} if changes.retired else set[datetime]()
    if tree.pending:
        kept_batches = tree.batches.difference(changes.batches)
        batches |= {since for since in kept_batches if batch_path(since) in tree.pending}
    if not batches:
        return {}
    retired = {**tree.retired, **dict.fromkeys(changes.retired, changes.at)}
    return {
        batch_path(batch): encode_canonical(sorted(path for path, since in retired.items() if since == batch))
        for batch in sorted(batches)
    }


class PublicationPreview:
    """A replacement for `OutputDirectory` in dry runs. It computes the result of a publication but writes no files."""

    def __init__(self, root: Path, *, ledger: str, heir_of: str | None) -> None:
        self._root, self._ledger, self._heir_of = root, ledger, heir_of
        self._servers: dict[str, Files] = {}
        self._shared: Files = {}
        self._parts = NO_UPDATES
        self.result = PublicationResult(written=(), withdrawn=(), expired=(), unchanged=0)

    @property
    def is_unchanged(self) -> bool:
        return True

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:  # noqa: ARG002 - signature of OutputDirectory
        return int(at.timestamp())

    def has_files(self, files: Files) -> bool:  # noqa: ARG002 - signature of OutputDirectory
        return False

    def end_windows(self, at: datetime) -> EndedWindows:  # noqa: ARG002 - signature of OutputDirectory
        return EndedWindows((), None)

    def update_list(self, keys: ListKeys | None, at: datetime) -> None:
        """Do nothing, because a dry run does not write a list."""

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,  # noqa: ARG002 - signature of OutputDirectory
        at: datetime,
        parts: FileUpdates = NO_UPDATES,
    ) -> PublicationResult:
        """Return the result that a complete publication of all files passed so far would have.

        Raises the same errors as a real publication.
        """
        if complete:
            self._servers = {}
        for server, files in servers.items():
            if files is None:
                self._servers.pop(server, None)
            else:
                self._servers[server] = files
        self._shared = self._shared if shared is None else shared
        self._parts = self._parts.merge(parts)
        publication = Publication(servers=self._servers, shared=self._shared, complete=True, parts=self._parts)
        if not self._root.exists():
            paths = sorted(path for files in publication for path in files)
            self.result = PublicationResult(written=tuple(paths), withdrawn=(), expired=(), unchanged=0)
        else:
            with closing(DurableDirectory(self._root)) as disk:
                tree = Tree(disk)
                _reject_foreign_tree(disk, tree, self._ledger, lambda: self._heir_of)
                self.result = _build_result(decide_changes(disk, tree, ContentReferences(), publication, (), at))
        return self.result
