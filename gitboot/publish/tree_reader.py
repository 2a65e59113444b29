"""Tree reader: read and check an output tree, and the stop file of an operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct

from gitboot.errors import PublishError, UsageError
from gitboot.files import is_directory, write_atomically
from gitboot.jsonio import encode_canonical, format_instant, parse_json
from gitboot.model.scalars import SystemUuid, is_placeholder_uuid, parse_instant
from gitboot.publish.durable_files import DurableDirectory, split_path
from gitboot.publish.manifest import (
    HISTORY,
    MANIFEST,
    SHARED,
    STATUS,
    UNKNOWN,
    Digests,
    Head,
    Manifest,
    TreeOrigin,
    compute_digest,
    find_leaf,
    is_manifest_part,
    leaf_path,
    node_path,
    parse_digests,
    parse_head,
    parse_listing,
)
from gitboot.render.endpoint_files import (
    ListedFile,
    Outline,
    Pair,
    PublishedServer,
    Shard,
    is_index_path,
    is_shared_list_file,
    parse_outline,
    parse_shard,
    parse_state,
    parse_state_path,
    shard_path,
    state_path,
)
from gitboot.render.paths import BOOT, ON_PAGE, PAGE_INDEX, RECORDS, is_content, is_page_or_record_file
from gitboot.resolve.provisioning_record import Record, StopOrder, parse_exported_records
from gitboot.status.conditions import find_remedy

PRIVATE_FOLDER: Final = "ops/.gitboot"
LOCK: Final = f"{PRIVATE_FOLDER}/lock"
PENDING: Final = f"{PRIVATE_FOLDER}/pending.json"
# The files whose disk space and inodes gitboot uses to end windows on a full disk, with their sizes in bytes. The first
# files are small, because another program may take the space that gitboot frees. The last file has space for the user
# data of a server, which may have 1 MiB.
RESERVES: Final = {
    **{f"{PRIVATE_FOLDER}/reserve-{number}": 32 * 1024 for number in range(1, 9)},
    f"{PRIVATE_FOLDER}/reserve-9": 1280 * 1024,
}
ALL: Final = ""  # this text replaces a server name for all files, or for files that do not belong to a server
PARTS: Final = "/"  # this text replaces a server name for all shared files in parts
_NO_NAMES: Final = frozenset({"", ".", ".."})
_RETIRED: Final = f"{PRIVATE_FOLDER}/retired"
_STATUS_FILES: Final = frozenset({HISTORY, STATUS, UNKNOWN, *(on_page for _, on_page in ON_PAGE.values())})
_S = TypeVar("_S")
_T = TypeVar("_T")


class Tree:
    """A tree's manifest, pending changes and retired content. They are read from the disk on first use."""

    def __init__(self, disk: DurableDirectory) -> None:
        self._disk = disk
        older = read_older_tree(disk)
        self.head: Head | None = None
        self.origin: TreeOrigin | None = None
        if older is not None:
            self.origin = older.origin
        else:
            self.head = _read(disk, MANIFEST, parse_head)
            if self.head is not None:
                self.origin = self.head.origin
        # The digest and the content of the listing of shared files; None: not read yet.
        self._shared: tuple[str | None, dict[str, ListedFile]] | None = None
        self._digest_cache: dict[tuple[str, str], Digests] = {}  # nodes and leaves of the manifest, by path and digest
        self.pending = frozenset(_read(disk, PENDING, _parse_paths) or ())
        self.outdated: frozenset[str] = frozenset()  # paths of the parts of an older version of the manifest
        if older is not None:  # gitboot treats all files of the tree as pending
            self.pending |= older.files
            self.outdated = older.parts
        self.batches = {
            _parse(disk, f"{_RETIRED}/{name}", name.removesuffix(".json"), parse_instant)
            for name in disk.list_names(_RETIRED)
            if name.endswith(".json")
        }
        self.retired = {  # by path, the time since which the content is unused
            path: since for since in sorted(self.batches) for path in _read(disk, batch_path(since), _parse_paths) or ()
        }

    @property
    def pending_files(self) -> set[str]:
        """Return the files that an interrupted publication may have changed."""
        return {path for path in self.pending if not is_reserved_path(path)}

    def iter_servers(self) -> Iterator[tuple[str, str]]:
        """Yield each server in the manifest, with the digest of its state."""
        for node in sorted(self.head.nodes if self.head else ()):
            for leaf, expected in sorted(self.read_node(node).items()):
                yield from sorted((self._read_part(leaf_path(node, leaf), expected, parse_digests) or {}).items())

    def read_node(self, node: str) -> Digests:
        return self._read_digests(node_path(node), self.head.nodes.get(node) if self.head else None)

    def read_leaf(self, node: str, leaf: str, expected: str | None) -> Digests:
        """Return the digests of the states in a leaf. ``expected`` is the leaf's digest according to its node."""
        return self._read_digests(leaf_path(node, leaf), expected)

    def find_digest(self, server: str) -> str | None:
        """Return the digest of a server's state in the manifest, or None if the server is not listed."""
        node, leaf = find_leaf(server)
        return self.read_leaf(node, leaf, self.read_node(node).get(leaf)).get(server)

    def read_shared(self) -> dict[str, ListedFile]:
        """Return the files that do not belong to any server.

        The method caches the listing until the listing changes or is pending.
        """
        expected = self.head.shared if self.head else None
        if self._shared is not None and self._shared[0] == expected and SHARED not in self.pending:
            return self._shared[1]
        shared = self._read_part(SHARED, expected, parse_listing) or {}
        self._shared = (expected, shared) if SHARED not in self.pending else None
        return shared

    def read_outline(self, server: str) -> Outline | None:
        """Return a server's published identities and files, or None if its state is missing or damaged."""
        data = self._disk.read(state_path(server))
        if data is None:
            return None
        with suppress(ValueError):
            return parse_outline(data)
        return None

    def _read_digests(self, path: str, expected: str | None) -> Digests:
        """Return a node or a leaf, and cache the result, because many servers share a node."""
        if expected is None or path in self.pending:
            return self._read_part(path, expected, parse_digests) or {}
        key = (path, expected)
        if key not in self._digest_cache:
            self._digest_cache[key] = self._read_part(path, expected, parse_digests) or {}
        return self._digest_cache[key]

    def _read_part(self, path: str, expected: str | None, parse_part: Callable[[bytes], _T]) -> _T | None:
        data = self._disk.read(path) if path not in self.outdated else None
        # A publication replaces the parts before the head, so an interrupted publication leaves newer parts, which are
        # not damaged.
        if (compute_digest(data) if data else None) != expected and path not in self.pending:
            raise build_damage_error(self._disk.root, path)
        return _parse(self._disk, path, data, parse_part) if data is not None else None

    def mark_pending(self, paths: Iterable[str]) -> None:
        """Mark these paths as pending until `mark_complete`."""
        self.pending = self.pending.union(paths)
        self._digest_cache.clear()

    def mark_complete(self, head: Head) -> None:
        """Record that the publication with this head is complete."""
        self.pending = self.outdated = frozenset()
        self.head, self.origin = head, head.origin

    def retire(self, paths: Collection[str], since: datetime, expired_batches: Collection[datetime]) -> None:
        """Record content that is unused since ``since``, and discard expired lists of such content."""
        if paths:
            self.batches.add(since)
            self.retired |= dict.fromkeys(paths, since)
        if expired_batches:
            self.batches.difference_update(expired_batches)
            self.retired = {path: since for path, since in self.retired.items() if since in self.batches}


def is_empty_tree(disk: DurableDirectory, tree: Tree) -> bool:
    """Return whether gitboot has never published to the tree and the tree does not contain unknown files."""
    if tree.origin is not None or tree.pending or tree.batches:
        return False
    own_names = {split_path(path)[1] for path in (PRIVATE_FOLDER, STATUS)}
    # gitboot does not publish the files in boot/assets
    return {"assets"}.issuperset(disk.list_names("boot")) and own_names.issuperset(disk.list_names("ops"))


def check_path(path: str) -> None:
    """Raise ValueError if gitboot cannot publish a file at this path."""
    top, *names = path.split("/")
    if top not in ("boot", "ops") or not names or not _NO_NAMES.isdisjoint(names) or is_reserved_path(path):
        raise ValueError(f"{path} is not a valid path in an output tree")


def is_reserved_path(path: str) -> bool:
    """Return whether ``path`` is reserved for gitboot's own records about the tree."""
    if path.startswith(BOOT):
        return is_shared_list_file(path)
    return (
        path.startswith(f"{PRIVATE_FOLDER}/") or is_manifest_part(path) or is_index_path(path) or path in _STATUS_FILES
    )


def batch_path(since: datetime) -> str:
    """Return the path of the list of content that is unused since ``since``."""
    return f"{_RETIRED}/{format_instant(since)}.json"


def read_manifest(root: Path) -> Manifest | None:
    """Return all files of the tree at ``root``, or None if no publication has completed there.

    During a publication, some files may still have their old version.
    """
    if not is_directory(root):
        return None
    with closing(DurableDirectory(root)) as disk:
        whole = _read_whole_tree(disk)
        if whole is not None and whole.damaged_paths and whole.is_stable:
            raise build_damage_error(disk.root, whole.damaged_paths[0])
    return whole.manifest if whole is not None else None


def read_state(root: Path, server: str) -> PublishedServer | None:
    """Return the published state of a server, or None if it has no state. Raises `PublishError` if it is damaged."""
    path = state_path(server)
    try:
        return parse_state((root / path).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise build_damage_error(root, path) from error


class _WholeTree:
    """A completely read tree: all files in the manifest, and the parts of the manifest that have a wrong digest."""

    def __init__(self, disk: DurableDirectory, head: Head) -> None:
        self._disk = disk
        self.damaged_paths: list[str] = []  # the paths of wrong parts of the manifest, and of wrong states
        files: dict[str, ListedFile] = {}
        for node, node_digest in head.nodes.items():
            for leaf, leaf_digest in (self._read_part(node_path(node), node_digest, parse_digests) or {}).items():
                states = self._read_part(leaf_path(node, leaf), leaf_digest, parse_digests) or {}
                for server, digest in states.items():
                    path = state_path(server)
                    state = self._read_part(path, digest, parse_state)
                    if state is not None:
                        files |= {**state.files, path: ListedFile(digest, disk.get_size(path) or 0)}
        if head.shared is not None:
            files |= self._read_part(SHARED, head.shared, parse_listing) or {}
        self.manifest = Manifest(origin=head.origin, files=dict(sorted(files.items())))
        # no publication is in progress, and no publication was interrupted
        self.is_stable = disk.lstat(PENDING) is None

    def _read_part(self, path: str, expected: str, parse_part: Callable[[bytes], _T]) -> _T | None:
        data = self._disk.read(path) if self._disk.has_file(path) else None
        if data is None or compute_digest(data) != expected:
            self.damaged_paths.append(path)
        with suppress(ValueError):
            return parse_part(data or b"")
        return None


def _read_whole_tree(disk: DurableDirectory) -> _WholeTree | None:
    while (data := disk.read(MANIFEST)) is not None:
        whole = _WholeTree(disk, _parse(disk, MANIFEST, data, parse_head))
        # A publication may have completed after the head was read.
        if not (whole.damaged_paths and whole.is_stable) or disk.read(MANIFEST) == data:
            return whole
    return None


def _read(disk: DurableDirectory, path: str, parse_file: Callable[[bytes], _T]) -> _T | None:
    data = disk.read(path)
    return None if data is None else _parse(disk, path, data, parse_file)


def _parse(disk: DurableDirectory, path: str, data: _S, parse_file: Callable[[_S], _T]) -> _T:
    try:
        return parse_file(data)
    except ValueError as error:
        raise build_damage_error(disk.root, path) from error


def _parse_paths(data: bytes) -> list[str]:
    paths = parse_json(data)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError("the file is not a list of paths")
    return paths


def build_damage_error(root: Path, path: str) -> PublishError:
    """Return the error for a damaged file in the tree at ``root``."""
    return PublishError(
        f"{root / path}: the file is damaged (restore it from a backup, or move boot/ and ops/ away and publish again)"
    )


# Trees of gitboot 0.1.0


class OlderTree(Struct, frozen=True, kw_only=True):
    """The content of a version 1 manifest, which gitboot 0.1.0 wrote."""

    origin: TreeOrigin
    files: frozenset[str]
    parts: frozenset[str]  # the files of the manifest itself


def read_older_tree(disk: DurableDirectory) -> OlderTree | None:
    """Read a tree of gitboot 0.1.0, or return None for other trees. Ignore parts of its manifest that were replaced."""
    match _parse_older_manifest(disk.read(MANIFEST)):
        case {
            "version": 1,
            "commit": str(commit),
            "gitboot": str(gitboot),
            "ledger": str(ledger),
            "shards": dict(shards),
        }:
            parts = {node_path(name): _parse_older_manifest(disk.read(node_path(name))) for name in shards}
            return OlderTree(
                origin=TreeOrigin(commit=commit, gitboot=gitboot, ledger=ledger),
                files=frozenset(
                    path for part in parts.values() for path, each in part.items() if isinstance(each, dict)
                ),
                parts=frozenset(parts),
            )
    return None


def _parse_older_manifest(data: bytes | None) -> dict[str, object]:
    with suppress(ValueError):
        found = parse_json(data or b"")
        if isinstance(found, dict):
            return found
    return {}


# Records


def read_records(path: Path) -> dict[SystemUuid, Record]:
    """Read exported records from a file, or from all files in a folder, such as a tree's ``ops/records``.

    Raises OSError if a file cannot be read. Raises `UsageError` with the path of the file if a file does not contain
    valid records.
    """
    if not path.is_dir():
        return _import_records(path)
    files = sorted(path.glob("*.json"))
    if not files:
        raise UsageError(
            f"{path}: the folder does not contain exported records; choose the folder ops/records of an output tree"
        )
    return {uuid: record for file in files for uuid, record in _import_records(file).items()}


def _import_records(file: Path) -> dict[SystemUuid, Record]:
    """Return the records in a file. Raises `UsageError` for a record whose UUID does not identify a machine."""
    records = parse_exported_records(file.read_bytes(), str(file))
    for uuid in sorted(filter(is_placeholder_uuid, records)):
        raise UsageError(
            f"{file}: a record has the UUID {uuid}, which is only a placeholder; remove the record, and "
            "set a UUID in the machine's firmware"
        )
    return records


def read_tree_records(tree: Path) -> Mapping[SystemUuid, Record]:
    """Return the records of the servers in a tree, skipping unreadable files."""
    records: dict[SystemUuid, Record] = {}
    for file in sorted((tree / RECORDS).glob("*.json")):
        with suppress(OSError, UsageError):
            records |= parse_exported_records(file.read_bytes(), str(file))
    return records


# Changes and damage


class Inventory(Struct, frozen=True, kw_only=True):
    """A summary of a tree: the digests of states and of the shared listing, and the content that servers refer to."""

    states: Mapping[str, str]  # sha256 by server
    content: Mapping[str, tuple[str, ...]]  # paths by server; `ALL` has the paths of shared files
    shared: str | None  # sha256 of the listing
    has_page: bool


def find_changed_servers(tree: Tree, previous: Inventory) -> dict[str, tuple[str, ...]] | None:
    """Return the servers whose files differ from ``previous``, with the content that the files refer to.

    The result includes servers that an interrupted publication affects. Return None if the process cannot continue from
    this tree. This function reads only the records of the tree; `find_damage` compares the records with the files.
    """
    # `write_changes` adds PENDING to the pending paths. Then each pending file belongs to a server whose state is also
    # pending, or does not belong to a server.
    names_servers = not tree.pending or PENDING in tree.pending
    if tree.head is None or tree.outdated or not names_servers:
        return None
    changed: dict[str, tuple[str, ...]] = {}
    with suppress(PublishError):
        states = dict(tree.iter_servers())
        pending_servers = _find_pending_servers(tree)
        if tree.head.shared != previous.shared or not tree.pending.isdisjoint((SHARED, *tree.read_shared())):
            changed[ALL] = tuple(filter(is_content, tree.read_shared()))
        has_page = PAGE_INDEX in tree.read_shared()
        if has_page is not previous.has_page or any(map(is_page_or_record_file, tree.pending)):
            changed[PARTS] = ()
        for server in states.keys() | previous.states.keys() | pending_servers:
            if server not in pending_servers and states.get(server) == previous.states.get(server):
                continue
            state = tree.read_outline(server) if server in states or server in pending_servers else None
            if state is None and server in states and server not in pending_servers:
                return None
            changed[server] = tuple(filter(is_content, state.files)) if state is not None else ()
        return changed
    return None


def find_leftover_pairs(disk: DurableDirectory, tree: Tree) -> frozenset[Pair] | None:
    """Return (identity, server) pairs that an interrupted publication may have wrongly left in the index.

    Return None if a pending part of the index is not readable.
    """
    pending_servers = _find_pending_servers(tree)
    states = {server: tree.read_outline(server) for server in pending_servers}
    identities_by_server = {server: state.identities for server, state in states.items() if state is not None}
    leftover: set[Pair] = set()
    for path in filter(is_index_path, tree.pending):
        shard = _read_shard(disk, path)
        if shard is None:
            return None
        leftover |= {
            (identity, server)
            for identity, servers in shard.items()
            for server in pending_servers.intersection(servers)
            if identity not in identities_by_server.get(server, ())
        }
    return frozenset(leftover)


def _find_pending_servers(tree: Tree) -> frozenset[str]:
    return frozenset(filter(None, map(parse_state_path, tree.pending)))


def find_damage(root: Path) -> Iterator[str | None]:
    """Check all files of a tree, and yield the servers with damaged files.

    `ALL` stands for shared files. For each server without damage, yield None to show progress. The function checks the
    existence and the size of files, and the content of states. Servers that are published during the check may be
    included, but publishing them again is harmless.
    """
    with closing(DurableDirectory(root)) as disk:
        tree = Tree(disk)
        shards: dict[str, Shard | None] = {}
        if not _has_sizes(disk, tree.read_shared()):
            yield ALL
        for server, digest in tree.iter_servers():
            state = None
            with suppress(PublishError, ValueError):
                data = disk.read(state_path(server))
                state = parse_state(data) if data is not None and compute_digest(data) == digest else None
            if state is None or not _has_sizes(disk, state.files):
                yield server
            else:
                yield _find_unindexed_server(disk, shards, state)


def _has_sizes(disk: DurableDirectory, files: Mapping[str, ListedFile]) -> bool:
    return all(disk.get_size(path) == file.size for path, file in files.items())


def _find_unindexed_server(
    disk: DurableDirectory, shards: dict[str, Shard | None], state: PublishedServer
) -> str | None:
    """Return the server's name if an identity of the server is missing from the index.

    Return `ALL` if a shard is not readable.
    """
    for identity in state.identities:
        path = shard_path(identity)
        if path not in shards:
            shards[path] = _read_shard(disk, path)
        shard = shards[path]
        if shard is None:
            return ALL
        if state.server not in shard.get(identity, ()):
            return state.server
    return None


def _read_shard(disk: DurableDirectory, path: str) -> Shard | None:
    with suppress(PublishError, ValueError):
        return parse_shard(disk.read(path) or b"{}")
    return None


# The stop file


STOP_FILE: Final = "stopped.json"
_TYPE: Final = "InstallsAllowed"  # the type of the condition that a stop makes false


def list_stop_folders(output: Path, spool: Path | None) -> tuple[Path, ...]:
    """Return the folders in which a tree's endpoints look for the stop file."""
    return (output / "ops",) if spool is None else (output / "ops", spool)


class StopNotice(NamedTuple):
    """The content of a stop file."""

    order: StopOrder
    at: datetime  # when the stop was ordered


def write_stop_file(folder: Path, order: StopOrder, at: datetime) -> None:
    """Durably write the stop file to ``folder``, and replace an existing stop file. Raises OSError if this fails.

    Every user who can read the folder can read the file.
    """
    content = encode_canonical({**order._asdict(), "at": format_instant(at)}) + b"\n"
    write_atomically(folder / STOP_FILE, content, mode=0o644)


def remove_stop_file(folder: Path) -> None:
    """Remove the stop file if it exists. Raises OSError if it cannot be removed."""
    (folder / STOP_FILE).unlink(missing_ok=True)


class StopReader:
    """Reads the stop files in several folders. A file is read again only after it has changed."""

    def __init__(self, *folders: Path) -> None:
        self._paths = tuple(folder / STOP_FILE for folder in folders)
        # the last content of each file, with the file's inode and its mtime in nanoseconds
        self._read: dict[Path, tuple[tuple[int, int], StopNotice]] = {}

    @property
    def current(self) -> StopNotice | None:
        """The stop notice in the folders, or None if there is no stop file. A stop of everything takes precedence."""
        notices = filter(None, map(self._read_file, self._paths))
        return max(notices, key=lambda notice: notice.order.everything, default=None)

    def _read_file(self, path: Path) -> StopNotice | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        signature = stat.st_ino, stat.st_mtime_ns
        if path not in self._read or self._read[path][0] != signature:
            self._read[path] = signature, _parse_stop_file(path, datetime.fromtimestamp(stat.st_mtime).astimezone())
        return self._read[path][1]


def _parse_stop_file(path: Path, at: datetime) -> StopNotice:
    """Parse a stop file. An unreadable file, which was written at ``at``, stops installations, too."""
    with suppress(OSError, OverflowError, ValueError):
        match parse_json(path.read_bytes()):
            case {"who": str(who), "reason": str(reason), "everything": bool(everything), "at": str(ordered_at)}:
                order = StopOrder(who, reason, everything)
                str(order).encode()  # JSON may contain surrogates, but responses must not
                return StopNotice(order, datetime.fromisoformat(ordered_at).astimezone(UTC))
    return StopNotice(StopOrder("somebody", f"{path} cannot be read", everything=False), at)


def add_stop_condition(conditions: Iterable[Mapping[str, Any]], stop: StopNotice | None) -> list[dict[str, Any]]:
    """Return an instance's conditions, updated for a stop that was ordered after the instance wrote them."""
    found = [dict(condition) for condition in conditions]
    if stop is None or any((condition["type"], condition["status"]) == (_TYPE, False) for condition in found):
        return found
    stopped = {
        "type": _TYPE,
        "status": False,
        "reason": "Stopped",
        "message": str(stop.order),
        "lastTransitionTime": format_instant(stop.at),
        "remedy": find_remedy(_TYPE, "Stopped"),
    }
    others = [condition for condition in found if condition["type"] != _TYPE]
    return sorted([*others, stopped], key=lambda condition: str(condition["type"]))
