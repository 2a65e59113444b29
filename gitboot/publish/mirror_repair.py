"""Mirror repair: replace the files of a mirror that differ from the output tree."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from inspect import getsource
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from gitboot.errors import ForeignTree, PublishError, UsageError
from gitboot.jsonio import format_instant
from gitboot.publish import mirror_program, signed_list_reader
from gitboot.publish.durable_files import is_staging_name, split_path
from gitboot.publish.manifest import MANIFEST, Head, compute_digest, parse_head
from gitboot.publish.mirror_comparison import (
    FolderMirror,
    MirrorFault,
    MirrorFile,
    MirrorFinding,
    iterate_batches,
    read_expected_files,
)
from gitboot.publish.signed_list import parse_list_version
from gitboot.publish.signed_list_check import ListReader
from gitboot.publish.signed_list_reader import SIGNED, TIMESTAMP, TOLERANCE, FileVersion
from gitboot.publish.targets.folder import TargetFolder
from gitboot.publish.targets.followed_tree import FollowedTree, RaceError, TargetFile
from gitboot.publish.targets.sync_steps import (
    HEAD,
    FileCallback,
    FileConflict,
    FileStore,
    StoredFile,
    StoreTarget,
    find_outdated_servers,
)
from gitboot.publish.tree_reader import PENDING, read_state
from gitboot.render.endpoint_files import ListedFile
from gitboot.render.paths import BOOT, LIST_TIMESTAMP, find_path_kind, is_content, publication_stage
from gitboot.text import format_count, format_suggestion

ALL: Final = "all"
_TRIES: Final = 10  # number of attempts, if another process writes at the same time
# The number of files that gitboot writes between two checks of the tree and of the mirror's records.
_BATCH: Final = 200
_RETRY: Final = "retry after gitboot has published again"
_HINT: Final = "set --tree to the OUTPUT of the instance that publishes to this mirror"


class RepairAction(StrEnum):
    """What a repair did with a file of the mirror."""

    REPLACED = "Replaced"
    REMOVED = "Removed"


class Repair(NamedTuple):
    """A change that a repair made to one path of a mirror."""

    path: str
    action: RepairAction


class MirrorStore:
    """The files of a mirror to repair, by path below boot/.

    An instance may write to the mirror during a repair. Every method may raise `PublishError` and `HostUnreachable`.
    """

    def __init__(self, name: str, store: FileStore, prefix: str = BOOT) -> None:
        """``name`` identifies the mirror in messages. ``prefix`` is the path of the folder that machines read."""
        self.name, self._store, self._prefix = name, store, prefix
        # the store that contains the records of a target; None: the mirror is not a target
        self.records: FileStore | None = store

    def names(self) -> Collection[str]:
        return [path.removeprefix(self._prefix) for path in self._store.names(self._prefix)]

    def read_each(self, paths: Collection[str], on_file: FileCallback, *, parallel: int) -> None:  # noqa: ARG002 - for folders
        """Read files, and call ``on_file`` with each path and file, possibly in several threads at a time."""
        prefix = self._prefix
        self._store.get_each(
            [prefix + path for path in paths], lambda path, file: on_file(path.removeprefix(prefix), file)
        )

    def replace_each(self, files: Mapping[str, tuple[TargetFile, str | None]]) -> None:
        """Write files.

        Each file comes with the version of the existing file to replace, or None if no file may exist at that path.

        Raises `RaceError` if another process changed a file.
        """
        placed = {self._prefix + path: file for path, (file, _) in files.items()}
        self._store.place(sorted(placed), placed.__getitem__, ())
        expected_files = {
            path: ListedFile(compute_digest(file.content), len(file.content)) for path, file in placed.items()
        }
        differing_paths = self._store.find_differing_paths(expected_files)
        if differing_paths:
            raise RaceError(f"{self.name}: the content of {differing_paths[0]} changed after gitboot wrote it")

    def remove_each(self, paths: Collection[str]) -> None:
        self._store.remove(self._prefix + path for path in paths)


class FolderStore(MirrorStore):
    """A mirror in a local folder. Files that gitboot writes get the permissions and the group of the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = TargetFolder(folder)
        super().__init__(str(folder), self._files, "")
        # If the folder is named boot, its parent folder may be a target.
        parent = folder.resolve().parent
        may_have_records = os.path.lexists(parent / HEAD) or os.access(parent, os.R_OK | os.X_OK)
        is_boot = folder.resolve() == parent / BOOT
        self.records = self._parent = TargetFolder(parent) if is_boot and may_have_records else None

    def close(self) -> None:
        self._files.close()
        if self._parent is not None:
            self._parent.close()

    def names(self) -> Collection[str]:
        return FolderMirror(self._folder).names()

    def read_each(self, paths: Collection[str], on_file: FileCallback, *, parallel: int) -> None:
        """Read files. A symlink counts as absent, so that `replace_each` replaces it with a file."""

        def read(path: str) -> StoredFile | None:
            full_path = self._folder / path
            try:
                return None if full_path.is_symlink() else StoredFile(full_path.read_bytes(), None)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise PublishError(f"{full_path} cannot be read: {error.strerror}") from error

        with ThreadPoolExecutor(parallel, thread_name_prefix="repair") as pool:
            list(pool.map(lambda path: on_file(path, read(path)), paths))


class BucketStore(MirrorStore):
    """A target in a bucket, whose objects have versions."""

    def replace_each(self, files: Mapping[str, tuple[TargetFile, str | None]]) -> None:
        for path, (file, version) in files.items():
            try:
                if version is None:
                    self._store.create(self._prefix + path, file.content)
                else:
                    self._store.replace(self._prefix + path, file.content, version)
            except FileConflict:
                raise RaceError(f"{self.name}: an instance replaced {path}") from None


class RepairReport(Struct, frozen=True, kw_only=True):
    """The result of a repair."""

    files: int  # the number of compared files
    repairs: tuple[Repair, ...]  # sorted by path
    extra_paths: tuple[str, ...]  # unpublished paths that machines do not request


def repair(
    store: MirrorStore,
    root: Path,
    paths: Collection[str],
    clock: Callable[[], datetime],
    *,
    parallel: int,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
    retry_s: float = 0.5,
) -> RepairReport:
    """Replace the files of a mirror that differ from the output tree at ``root``.

    ``clock`` returns the time for which the files must be valid. ``paths`` are below boot/, and `ALL` means all paths.
    gitboot writes files in this order: content, boot scripts, first scripts and scripts for unknown machines, signed
    list. It removes unpublished files last, but only if machines may request them or if ``paths`` contains them. The
    repair restarts after ``retry_s`` seconds if another process publishes to the tree, if an instance writes to the
    mirror, or if a transition passes.

    Raises `ForeignTree` if another ledger publishes to the mirror. Also raises `PublishError` and `UsageError`.
    """
    repairs: dict[str, RepairAction] = {}
    for tries_left in reversed(range(_TRIES)):
        try:
            return _RepairAttempt(store, root, clock, parallel).repair(paths, repairs, on_start, on_progress)
        except RaceError as error:
            if not tries_left:
                so_far = f" (repaired so far: {format_count(len(repairs), 'file')})" if repairs else ""
                raise PublishError(f"{error}; run the command again{so_far}") from None
        time.sleep(retry_s)
    raise AssertionError("unreachable")


class _RepairAttempt:
    """One attempt at a repair. It fails if the tree or the mirror's records change."""

    def __init__(self, store: MirrorStore, root: Path, clock: Callable[[], datetime], parallel: int) -> None:
        self._store, self._root, self._clock, self._parallel = store, root, clock, parallel
        self._published = _read_tree_state(root)
        self._now = clock()
        self._next_transition: datetime | None = None  # the time of the next transition of the files to repair
        manifest = self._published[MANIFEST]
        if manifest is None:
            raise PublishError(f"{root}: expected an output tree, found no {HEAD}")
        head = _parse_tree_head(manifest)
        if head is None:
            raise PublishError(f"{root}: another version of gitboot wrote {HEAD} (publish again with this version)")
        if self._published[PENDING] is not None:
            raise RaceError(f"{root}: a publication is in progress, or was interrupted ({_RETRY})")
        records = store.records
        self._records = MirrorRecords(store.name, records, head.origin.ledger) if records is not None else None
        is_target = self._records is not None and self._records.observe(FollowedTree(root))
        if not is_target:
            self._reject_outdated_tree()
        self._files = _read_required_files(root, self._now, parallel, compute_digest(manifest))

    def _reject_outdated_tree(self) -> None:
        """Raise `PublishError` if the mirror has a newer list than the tree, because the tree is then an old copy."""
        timestamps: list[StoredFile | None] = []
        self._store.read_each([f"{SIGNED}{TIMESTAMP}"], lambda _, file: timestamps.append(file), parallel=1)
        their_version = parse_list_version(timestamps[0].content) if timestamps[0] is not None else 0
        our_version = parse_list_version(self._published[LIST_TIMESTAMP])
        if their_version > our_version:
            raise PublishError(
                f"{self._store.name}: {SIGNED}{TIMESTAMP} has version {their_version}, but {self._root} has the "
                f"earlier version {our_version} (set --tree to the OUTPUT that gitboot currently publishes to, or, if "
                "somebody edited the file on the mirror, remove the file there)"
            )

    def repair(
        self,
        paths: Collection[str],
        repairs: dict[str, RepairAction],
        on_start: Callable[[int], None],
        on_progress: Callable[[int], None],
    ) -> RepairReport:
        """Replace or remove the files that differ. Record the change to each path in ``repairs``."""
        names = frozenset(self._store.names())
        requested = frozenset(path.removeprefix("/") for path in paths)
        chosen = self._files.keys() | names if ALL in paths else self._check_requested_paths(requested, names)
        compared_paths = sorted(self._files.keys() & chosen, key=lambda path: (_write_order(path), path))
        self._next_transition = self._find_next_transition(compared_paths)
        on_start(len(compared_paths))
        differing = self._find_differing_files(compared_paths, on_progress)
        obsolete_paths = self._find_obsolete_paths(names & chosen, requested)
        differing_paths = [path for path in compared_paths if path in differing]
        obsolete_paths += self._replace_files(differing_paths, differing, repairs)
        for batch in iterate_batches(obsolete_paths, _BATCH):
            self._check_unchanged()
            repairs |= dict.fromkeys(batch, RepairAction.REMOVED)
            self._store.remove_each(batch)
        if differing or obsolete_paths:
            self._check_unchanged()  # the files that were written last may be outdated
        extra_paths = (names & chosen).difference(self._files, obsolete_paths)
        return RepairReport(
            files=len(compared_paths),
            repairs=tuple(Repair(path, action) for path, action in sorted(repairs.items())),
            extra_paths=tuple(
                sorted(path for path in extra_paths if not path.startswith("assets/") and not is_content(BOOT + path))
            ),
        )

    def _check_requested_paths(self, requested: frozenset[str], names: frozenset[str]) -> frozenset[str]:
        """Return ``requested``. Raises `UsageError` if a path is neither in the tree nor on the mirror."""
        known = self._files.keys() | names
        unknown = sorted(requested - known)
        if unknown:
            hint = format_suggestion(unknown[0], known, f"use {ALL} for all paths")
            raise UsageError(f"--repair {unknown[0]}: no such path in the tree or on the mirror; {hint}")
        return requested

    def _find_next_transition(self, paths: Iterable[str]) -> datetime | None:
        starts = (version.since for path in paths for version in self._files[path].versions)
        return min((since for since in starts if since is not None and since > self._now), default=None)

    def _find_differing_files(
        self, paths: Collection[str], on_progress: Callable[[int], None]
    ) -> dict[str, str | None]:
        """Return the files of the mirror to replace, as versions by path. None: the path has no file or no version."""
        differing: dict[str, str | None] = {}

        def compare(path: str, file: StoredFile | None) -> None:
            digest = compute_digest(file.content) if file is not None else None
            expected = {version.sha256 if version is not None else None for version in self._files[path].expected}
            if digest not in expected:
                differing[path] = file.version if file is not None else None
            on_progress(1)

        self._store.read_each(paths, compare, parallel=self._parallel)
        return differing

    def _find_obsolete_paths(self, paths: Iterable[str], requested: Collection[str]) -> list[str]:
        """Return the sorted paths of the mirror's unpublished files that gitboot may remove."""
        removable_paths = (
            path
            for path in sorted(paths)
            if path not in self._files
            and (
                path in requested
                or path.startswith(SIGNED)
                or (find_path_kind(BOOT + path) is not None and not is_content(BOOT + path))
            )
        )
        # If an earlier version of gitboot published a server, the server has no listing. The list then does not contain
        # the server's files.
        return [path for path in removable_paths if not os.path.lexists(self._root / BOOT / path)]

    def _replace_files(
        self, paths: Iterable[str], versions: Mapping[str, str | None], repairs: dict[str, RepairAction]
    ) -> list[str]:
        """Replace files of the mirror in the order of ``paths``. Return the paths at which there must be no file."""
        absent_paths: list[str] = []
        for _, stage in groupby(paths, key=_write_order):
            for batch in iterate_batches(stage, _BATCH):
                current_files = {path: _read_current_file(self._root, self._files[path]) for path in batch}
                absent_paths += [path for path, file in current_files.items() if file is None]
                placed = {path: (file, versions[path]) for path, file in current_files.items() if file is not None}
                self._check_unchanged()
                repairs |= dict.fromkeys(placed, RepairAction.REPLACED)
                self._store.replace_each(placed)
        return absent_paths

    def _check_unchanged(self) -> None:
        """Raise `RaceError` if the tree or the mirror's records have changed, or if a transition has passed."""
        if self._next_transition is not None and self._clock() >= self._next_transition:
            raise RaceError(f"{self._root}: a scheduled change became due at {format_instant(self._next_transition)}")
        if _read_tree_state(self._root) != self._published:
            raise RaceError(f"{self._root}: another process published in the meantime")
        if self._records is not None and not self._records.is_unchanged():
            raise RaceError(f"{self._store.name}: an instance is writing to this mirror")


def _write_order(path: str) -> tuple[int, int]:
    """Return a sort key for the order in which files are written.

    The signed list comes last, and its ``timestamp.json`` is the very last file.
    """
    if path.startswith(SIGNED):
        return 1, int(path == f"{SIGNED}{TIMESTAMP}")
    return 0, publication_stage(BOOT + path)


def _read_tree_state(root: Path) -> dict[str, bytes | None]:
    """Return the files that every publication to an output tree changes, by path. None means that a file is absent.

    `PENDING` exists during a publication, and after an interrupted publication.
    """

    def read(path: str) -> bytes | None:
        try:
            return (root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PublishError(f"{root / path} cannot be read: {error.strerror}") from error

    return {path: read(path) for path in (MANIFEST, PENDING, LIST_TIMESTAMP)}


def _read_required_files(root: Path, now: datetime, parallel: int, manifest: str) -> dict[str, MirrorFile]:
    """Return, by path below boot/, the files that a mirror of the tree must contain at ``now``.

    ``manifest`` is the digest of the tree's manifest. Raises `RaceError` if the list belongs to another manifest, and
    `PublishError` if a file of the list cannot be read.
    """
    boot = FolderMirror(root / BOOT)
    if boot.get(f"{SIGNED}{TIMESTAMP}", 0) is None:
        return read_expected_files(root)
    findings: list[MirrorFinding] = []
    files: dict[str, MirrorFile] = {}
    with ThreadPoolExecutor(parallel, thread_name_prefix="list") as pool:
        reader = ListReader(boot, (), pool)
        signed_list = reader.read(findings)
        if signed_list is not None:
            files, _ = reader.read_files(signed_list, now, findings)
    for finding in findings:
        if finding.fault is MirrorFault.UNKNOWN:
            raise PublishError(finding.message)
    if findings:
        raise RaceError(f"{root / BOOT / findings[0].path}: {findings[0].message} ({_RETRY})")
    if signed_list is not None and signed_list.manifest != manifest:
        raise RaceError(f"{root}: the signed list and the manifest belong to different publications ({_RETRY})")
    if signed_list is not None and signed_list.made > now + TOLERANCE:
        raise PublishError(
            f"{root / LIST_TIMESTAMP} was made at {format_instant(signed_list.made)}, but this host's clock shows "
            f"{format_instant(now)} (correct the clock; otherwise, the repair would reopen maintenance windows)"
        )
    list_paths = (path for path in boot.names() if path.startswith(SIGNED) and not is_staging_name(split_path(path)[1]))
    return files | {path: _read_list_file(root, path) for path in list_paths}


def _read_list_file(root: Path, path: str) -> MirrorFile:
    """Return a file of the signed list. Raises `RaceError` if a publication has removed the file."""
    full_path = root / BOOT / path
    try:
        content = full_path.read_bytes()
    except FileNotFoundError as error:
        raise RaceError(f"{full_path}: {error.strerror} ({_RETRY})") from error
    except OSError as error:
        raise PublishError(f"{full_path} cannot be read: {error.strerror}") from error
    version = FileVersion(None, compute_digest(content), len(content))
    return MirrorFile(path=path, expected=(version,), versions=())


def _read_current_file(root: Path, file: MirrorFile) -> TargetFile | None:
    """Return the current version of a file, or None if it must be absent.

    Raises `RaceError` if the tree does not contain that version, and `PublishError` if the version cannot be read.
    """
    version = file.expected[0]
    path = root / BOOT / file.path
    if version is None or version.sha256 is None:
        return None
    in_tree = TargetFile(b"", 0)
    read_error: OSError | None = None
    try:
        in_tree = TargetFile(path.read_bytes(), int(path.stat().st_mtime))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        read_error = error
    if compute_digest(in_tree.content) == version.sha256:
        return in_tree
    state = None
    try:
        state = read_state(root, file.server) if file.server is not None else None
    except OSError as error:
        read_error = error
    texts = {**file.contents, **(state.contents if state is not None else {})}
    if version.sha256 in texts:
        # A version that starts at a transition is dated at that time. Other versions have no defined time.
        since = int(version.since.timestamp()) if version.since is not None else 0
        return TargetFile(texts[version.sha256].encode(), since)
    if read_error is not None:
        raise PublishError(f"{read_error.filename} cannot be read: {read_error.strerror}") from read_error
    raise RaceError(f"{path}: the tree does not contain the file's current version ({_RETRY})")


class MirrorRecords:
    """The records in a store: the records of a target, the records of a complete copy of OUTPUT, or no records."""

    def __init__(self, name: str, store: FileStore, ledger: str) -> None:
        self._name, self._store, self._ledger = name, store, ledger
        self._copied: bytes | None = None  # the manifest's head in a copied OUTPUT
        self._target = StoreTarget(name, lambda: store, ledger=ledger, heir_of=lambda: None, writer="")

    def observe(self, tree: FollowedTree) -> bool:
        """Return whether the mirror is a target of the tree's instance.

        The method also stores the target's records, so that `is_unchanged` can compare them.

        Raises `ForeignTree` if another ledger publishes to the mirror, and `RaceError` if the target differs from the
        tree. Also raises `PublishError` and `HostUnreachable`.
        """
        head_file = self._store.get(HEAD)
        copied_head = _parse_tree_head(head_file.content) if head_file is not None else None
        self._copied = head_file.content if head_file is not None and copied_head is not None else None
        if copied_head is not None:
            if copied_head.origin.ledger != self._ledger:
                raise ForeignTree(
                    f"{self._name} belongs to the ledger {copied_head.origin.ledger}, not to {self._ledger} ({_HINT})"
                )
            return False
        if (content := self._target.observe(_HINT)) is None:
            return False
        summary = tree.read_summary()
        outdated = find_outdated_servers(summary, content) if summary is not None else set()
        if summary is not None and not outdated:
            return True
        tree.ended_servers = dict.fromkeys(outdated, 1)
        summary = tree.read_summary()
        if summary is not None and not find_outdated_servers(summary, content):
            raise RaceError(
                f"{self._name}: after the last publication, gitboot ended windows in the tree and at this target "
                "(wait until the condition Published is true)"
            )
        raise RaceError(
            f"{self._name}: an instance is writing to this target, or the target and the tree contain different "
            "publications (wait until the instance has updated the target, or set --tree to the instance's OUTPUT)"
        )

    def is_unchanged(self) -> bool:
        """Return whether no process has started or finished a write since `observe`."""
        if self._copied is None:
            return self._target.is_unchanged()
        head_file = self._store.get(HEAD)
        return head_file is not None and head_file.content == self._copied


def _parse_tree_head(data: bytes) -> Head | None:
    try:
        return parse_head(data)
    except ValueError:
        return None


# The files of a mirror's host


PROGRAM: Final = "gitboot-mirror.py"
KEY: Final = "root.pub"
_NAME: Final = "gitboot-mirror"
_INSTALLED: Final = f"/usr/local/lib/{_NAME}"  # the folder where the operator installs the program and the key
_SERVICE: Final = """\
# Copies boot files to this mirror, verifies them, and ends maintenance windows on time. The timer starts it.
[Unit]
Description=gitboot mirror: copies and verifies boot files, and ends maintenance windows
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {installed}/{program} \\
    --from {source} --to {folder} --key {installed}/{key} --state /var/lib/{name}/state
User={name}
StateDirectory={name}
StateDirectoryMode=0700
ReadWritePaths={written}
UMask=0027

CapabilityBoundingSet=
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""
_TIMER: Final = """\
# Starts the copy again 30 seconds after the last one has ended. A window ends at most so much later than it should.
[Unit]
Description=gitboot mirror: every 30 seconds

[Timer]
OnBootSec=5s
OnUnitInactiveSec=30s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def render_mirror_files(source: str, folder: str, keys: str) -> dict[str, bytes]:
    """Return the files to install on a mirror's host, by name. ``keys`` is the text of the public keys.

    Raises `UsageError` if ``folder`` is not an absolute path, or if ``source`` or ``folder`` contains characters that a
    unit file cannot contain.
    """
    if not folder.startswith("/"):
        raise UsageError(
            f"{folder} is not an absolute path: give the absolute path of the folder that the "
            "mirror's web server serves"
        )
    service = _SERVICE.format(
        installed=_INSTALLED,
        program=PROGRAM,
        key=KEY,
        name=_NAME,
        source=_quote_word(source.replace("$", "$$")),
        folder=_quote_word(folder.replace("$", "$$")),
        written=_quote_word(folder),
    )
    return {
        PROGRAM: join_program(),
        KEY: keys.encode(),
        f"{_NAME}.service": service.encode(),
        f"{_NAME}.timer": _TIMER.encode(),
    }


def join_program() -> bytes:
    """Return the mirror program as one file that contains the source of the signed list reader instead of an import."""
    before, _, after = getsource(mirror_program).partition("from gitboot.publish.signed_list_reader import (")
    return (before + getsource(signed_list_reader) + after.partition(")\n")[2]).encode()


def _quote_word(text: str) -> str:
    """Quote a word for a unit file, as described in systemd.syntax(7), Quoting, and systemd.unit(5), Specifiers.

    In a command line, the caller must also replace `$` with `$$` (systemd.service(5)).
    """
    if re.fullmatch(r"[A-Za-z0-9@:/._=+-]+", text):
        return text
    if not text.isprintable():
        raise UsageError(f"{text!r} contains characters that are not allowed in a systemd unit file")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
