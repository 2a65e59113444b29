"""Sync steps: compare a target with the output tree, plan the next step of its update, and carry it out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import chain, takewhile
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct, field, structs

from gitboot import __version__
from gitboot.errors import ForeignTree, HostUnreachable, LockedByAnother, OperatorError, PublishError
from gitboot.jsonio import build_json_decoder, encode_canonical
from gitboot.publish.manifest import MANIFEST, compute_digest
from gitboot.publish.targets.followed_tree import (
    LIST,
    SHARED,
    BootPath,
    FollowedTree,
    RaceError,
    ServerFiles,
    Sha256,
    TargetFile,
    TreeSummary,
)
from gitboot.render.endpoint_files import ListedFile
from gitboot.render.paths import BOOT, Stage, is_content, publication_stage

HEAD: Final = MANIFEST
UNLISTED: Final = "ops/unlisted.json"
CONTESTED: Final = "ops/contested.json"
SHARDS: Final = "ops/shards/"  # the name of each shard is the digest of its content, except in a Git branch
MAX_RECORD_BYTES: Final = 32 << 20  # the maximum size of a file below ops/; with a million servers, a shard has 12 MiB
_T = TypeVar("_T")
_Number = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}\Z")]  # the number of a shard
_ContestedPath = Annotated[str, msgspec.Meta(pattern=r"\A(?:boot|ops/shards)(?:/(?!\.{0,2}(?:/|\Z))[^/\0]+)+\Z")]


# The types of the records


Shard = Mapping[str, ServerFiles]  # units by server


class TargetHead(Struct, frozen=True, kw_only=True):
    """The head of a target: a file that is read first and written last."""

    ledger: str
    commit: str
    gitboot: str  # the version of gitboot
    writer: str  # the random number of the process that writes to the target
    shards: Mapping[_Number, Sha256] = field(default_factory=dict)  # sha256 of the shards, by number
    format: Literal[1] = 1


class TargetContent(Struct, frozen=True, kw_only=True):
    """The facts about a target's content that gitboot needs to plan the next step."""

    head: TargetHead
    states: Mapping[str, str]  # digests of states by server, without the servers whose files are unverified
    servers: frozenset[str]  # the servers in the shards
    withheld: frozenset[str]  # the servers whose one-time boot was omitted
    unlisted_paths: frozenset[str]
    contested_paths: frozenset[str] = frozenset()  # files that another process may still write or remove


# The files


def _build_parser(kind: type[_T], fault: str) -> Callable[[bytes], _T]:
    """Return a function that parses a record of a target. The function raises ValueError with the text ``fault``."""
    decode = build_json_decoder(kind)

    def parse(data: bytes) -> _T:
        try:
            return decode(data)
        except (RecursionError, ValueError) as error:
            raise ValueError(fault) from error

    return parse


parse_head: Final = _build_parser(TargetHead, "the file is not a target head in format 1")
parse_units: Final = _build_parser(dict[str, ServerFiles], "the file is not a target shard")
# parses the list of the files at a target that are in no shard
parse_unlisted: Final = _build_parser(frozenset[BootPath], "the file is not a list of paths")
# parses the list of the files at a target that another process may still write or remove
parse_contested: Final = _build_parser(list[_ContestedPath], "the file is not a list of paths")


def render_head(head: TargetHead) -> bytes:
    return encode_canonical(msgspec.to_builtins(head)) + b"\n"


def render_units(shard: Shard) -> bytes:
    return encode_canonical(msgspec.to_builtins(shard)) + b"\n"


def render_unlisted(paths: Iterable[str]) -> bytes:
    return encode_canonical(sorted(paths)) + b"\n"


# The content


def find_shard_number(server: str) -> str:
    """Return the number of the shard that lists a server."""
    return sha256(server.encode()).hexdigest()[:2]


def shard_path(digest: str) -> str:
    """Return the path of the shard whose content has this digest."""
    return f"{SHARDS}{digest}.json"


def build_target_content(
    head: TargetHead, shards: Iterable[Shard], unlisted_paths: Iterable[str], *, gitboot: str
) -> TargetContent:
    """Summarize the content of a target from its records.

    The files of a server are unverified if another version of gitboot wrote them, or if an interrupted step may have
    changed them.
    """
    units = {server: unit for shard in shards for server, unit in shard.items()}
    unverified_paths = frozenset(unlisted_paths)
    return TargetContent(
        head=head,
        states={
            server: unit.state
            for server, unit in units.items()
            if head.gitboot == gitboot and unverified_paths.isdisjoint(unit.files.keys())
        },
        servers=frozenset(units),
        withheld=frozenset(server for server, unit in units.items() if unit.withheld),
        unlisted_paths=unverified_paths,
    )


class TargetStep(Struct, frozen=True, kw_only=True):
    """One step of a target's update: the files to write and to remove before the head is replaced."""

    head: TargetHead  # the head after the step
    manifest: str  # the digest of the manifest of the output tree
    placed: Mapping[str, str]  # sha256 by path, sorted
    # placed paths at which the target has no file of gitboot yet, or only a file of another server
    new_paths: frozenset[str]
    removed: tuple[str, ...]  # sorted
    shards: Mapping[str, bytes]  # the changed shards by number; empty: the shard is removed
    units: Mapping[str, ServerFiles | None]  # the changed servers; None: the server is gone
    unverified: frozenset[str]  # paths that are unverified until the head is written
    # paths that stay on the target after the step although no shard lists them, or whose files stay unverified
    unlisted_paths: frozenset[str]


def plan_next_step(
    tree: FollowedTree,
    summary: TreeSummary,
    target_content: TargetContent,
    read_shard: Callable[[str], Shard],
    max_servers: int | None,
) -> TargetStep | None:
    """Return the step that updates up to ``max_servers`` servers of a target, or None if there is nothing to update.

    Without a maximum, the step updates all servers. Otherwise, servers are updated in this order:

    - the urgent servers of the tree, in a step without other servers, because a step may take long
    - servers that the target already has, because the target serves an old version of their files
    - new servers
    - the shared scripts, which come after new servers, because a machine without a boot script boots as an unknown
      machine
    - servers that were removed
    - the signed list, which contains all files

    Unused content stays on the target as long as it stays in the tree. A path that moves to another server stays until
    that server is updated. If the files of a server cannot be read, the step omits the server, and everything that must
    come after the server.
    """
    urgent_servers = tree.urgent_servers  # another thread may replace this set
    outdated = _sort_outdated_servers(summary, target_content, urgent_servers)
    is_current = not outdated and target_content.head.commit == summary.commit
    if is_current and all(map(tree.has_file, target_content.unlisted_paths)):
        return None
    chosen = candidates = _omit_unreadable_servers(tree, summary, outdated)
    if outdated and not candidates:
        return None
    if max_servers is not None:
        urgent = [server for server in candidates if server in urgent_servers]
        chosen = (urgent or candidates)[:max_servers]
    update = _update_shards(tree, summary, read_shard, chosen)
    shards, new_files = update.shards, update.new_files

    obsolete_paths = (update.old_files.keys() | target_content.unlisted_paths) - new_files.keys()
    existing_paths = {path for path in obsolete_paths if tree.has_file(path)}
    # If another server on the target has the path now, the path moved to that server. If the path is unverified, it
    # stays unverified until that server is updated.
    dropped_paths = {path for path in existing_paths if not is_content(path)}
    other_numbers = [number for number in target_content.head.shards if number not in shards]
    moved_paths = _find_listed_paths(dropped_paths, chain(shards.values(), map(read_shard, other_numbers)))
    kept_paths = existing_paths - (moved_paths - target_content.unlisted_paths)

    # The files of removed servers that later steps update may still exist at their paths.
    waiting_servers = (target_content.servers - summary.states.keys()).intersection(outdated).difference(chosen)
    waiting_paths: set[str] = set()
    for number in sorted({find_shard_number(server) for server in waiting_servers}):
        shard = shards[number] if number in shards else read_shard(number)
        waiting_paths.update(path for server in waiting_servers & shard.keys() for path in shard[server].files)

    placed = {
        path: new_files[path]
        for path in sorted(new_files)
        if update.old_files.get(path) != new_files[path] or path in target_content.unlisted_paths
    }
    rendered = {number: _render_shard(shard, target_content.contested_paths) for number, shard in shards.items()}
    digests = {number: digest for number, digest in target_content.head.shards.items() if number not in rendered}
    digests |= {number: compute_digest(data) for number, data in rendered.items() if data}
    return TargetStep(
        manifest=summary.manifest,
        head=structs.replace(
            target_content.head,
            commit=summary.commit,
            # The version changes when no files of another version are left.
            gitboot=__version__ if chosen == outdated else target_content.head.gitboot,
            shards=dict(sorted(digests.items())),
        ),
        placed=placed,
        new_paths=frozenset(placed.keys() - update.old_files.keys() - target_content.unlisted_paths - waiting_paths),
        removed=tuple(sorted(obsolete_paths - existing_paths)),
        shards=rendered,
        units=update.units,
        unverified=target_content.unlisted_paths | placed.keys() | obsolete_paths,
        unlisted_paths=frozenset(kept_paths),
    )


def _sort_outdated_servers(
    summary: TreeSummary, target_content: TargetContent, urgent_servers: Collection[str]
) -> list[str]:
    """Return the outdated servers in the order in which `plan_next_step` updates them."""
    removed_servers = target_content.servers - summary.states.keys()

    def sort_key(server: str) -> tuple[bool, bool, bool, bool, bool, str, str]:
        # Sort servers by shard, because each step writes complete shards.
        return (
            server not in urgent_servers,
            server == LIST,
            server in removed_servers,
            server == SHARED,
            server not in target_content.servers,
            find_shard_number(server),
            server,
        )

    return sorted(find_outdated_servers(summary, target_content), key=sort_key)


def _omit_unreadable_servers(tree: FollowedTree, summary: TreeSummary, outdated: list[str]) -> list[str]:
    """Return the outdated servers that a step may update although the files of some servers cannot be read."""
    unreadable = {server for server, state in tree.unreadable_states.items() if summary.states.get(server) == state}
    if unreadable.isdisjoint(outdated):
        return outdated
    return [
        server for server in takewhile(lambda each: each not in (SHARED, LIST), outdated) if server not in unreadable
    ]


class _ShardUpdate(NamedTuple):
    """The shards of the servers that a step updates, and the files of these servers."""

    shards: dict[str, dict[str, ServerFiles]]  # the complete shards after the step, by number
    units: dict[str, ServerFiles | None]  # the updated servers; None: the server is gone
    old_files: dict[str, str]  # sha256 by path, before the step
    new_files: dict[str, str]  # sha256 by path, after the step


def _update_shards(
    tree: FollowedTree, summary: TreeSummary, read_shard: Callable[[str], Shard], servers: Iterable[str]
) -> _ShardUpdate:
    update = _ShardUpdate({}, {}, {}, {})
    for server in servers:
        number = find_shard_number(server)
        if number not in update.shards:
            update.shards[number] = {**read_shard(number)}
        shard = update.shards[number]
        old_unit = shard.pop(server, None)
        if old_unit is not None:
            update.old_files.update(old_unit.files)
        update.units[server] = None
        if server in summary.states:
            new_unit = tree.read_server_files(server, summary.states[server])
            update.units[server] = shard[server] = new_unit
            update.new_files.update(new_unit.files)
    return update


def _find_listed_paths(paths: Collection[str], shards: Iterable[Shard]) -> set[str]:
    """Return those of ``paths`` that a shard lists. If there are no paths, read no shard."""
    if not paths:
        return set()
    return {path for shard in shards for unit in shard.values() for path in unit.files if path in paths}


def _render_shard(shard: Shard, contested_paths: Collection[str]) -> bytes:
    """Render a shard as a file, or return b"" for an empty shard."""
    data = render_units(shard) if shard else b""
    while data and shard_path(compute_digest(data)) in contested_paths:
        data += b"\n"  # another process may remove the shard at this path
    return data


def find_outdated_servers(summary: TreeSummary, target_content: TargetContent) -> set[str]:
    """Return the servers whose files on a target differ from the tree, including removed servers."""
    outdated = {server for server, state in summary.states.items() if target_content.states.get(server) != state}
    return outdated | (target_content.servers - summary.states.keys())


def apply_step(target_content: TargetContent, step: TargetStep) -> TargetContent:
    """Return the target's content after a step."""
    present_units = {server: unit for server, unit in step.units.items() if unit is not None}
    states = {server: state for server, state in target_content.states.items() if server not in step.units}
    states |= {server: unit.state for server, unit in present_units.items()}
    withheld_servers = {server for server, unit in present_units.items() if unit.withheld}
    return TargetContent(
        head=step.head,
        states=states,
        servers=(target_content.servers - step.units.keys()) | present_units.keys(),
        withheld=(target_content.withheld - step.units.keys()) | withheld_servers,
        unlisted_paths=step.unlisted_paths,
        contested_paths=target_content.contested_paths,
    )


# Targets that are stores of files


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
