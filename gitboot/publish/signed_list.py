"""Signed list of an output tree: TUF metadata, and the keys that sign the metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from gitboot.errors import PublishError, UsageError
from gitboot.files import read_private
from gitboot.jsonio import convert, encode_canonical, format_instant
from gitboot.publish.durable_files import DurableDirectory, is_staging_name, staging_path
from gitboot.publish.manifest import TreeOrigin, compute_digest
from gitboot.publish.tree_reader import Tree, build_damage_error
from gitboot.render.endpoint_files import (
    SHARED_LISTING,
    ListedFile,
    build_shared_listing,
    listing_path,
    parse_state,
    render_listing,
    state_path,
    target_name,
)
from gitboot.render.paths import LIST_TIMESTAMP, SIGNED, Files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


PUBLICATION_KEY: Final = "publication.key"
ROOTS: Final = re.compile(r"([1-9][0-9]*)\.root\.json")
TARGETS: Final = re.compile(r"([1-9][0-9]*)\.targets\.json")
INSTALL: Final = "signing a list needs python-tuf and cryptography: run pip install 'gitboot[signing]'"
VALID: Final = timedelta(hours=24)  # how long a timestamp is valid
RENEWED_BELOW: Final = VALID / 2  # gitboot renews a timestamp with less time left than this
_METADATA_VALID: Final = timedelta(days=400)  # how long a snapshot or a bin is valid
_RESIGNED_BELOW: Final = timedelta(days=60)  # gitboot signs a bin or a snapshot again if less time is left than this.
# Superseded metadata stays for this time, because a reader may be about to fetch it.
_RETENTION: Final = timedelta(minutes=10)
# All bins always exist: a client that remembers a bin rejects a snapshot without it (TUF 5.5.5).
_BINS: Final = tuple(f"servers-{number:02x}" for number in range(256))
_MAX_VERSION: Final = 10**11 - 1  # the highest version that gitboot writes; it corresponds to a time in the year 5138
_VERSIONED: Final = re.compile(r"([1-9][0-9]{0,10})\.(root|targets|snapshot|servers-[0-9a-f]{2})\.json")
TargetFiles = dict[str, ListedFile]  # by target name
Listings = Mapping[str, ListedFile | None]  # by server; None: the server is gone, or has no listing
_Meta = TypeVar("_Meta")


# The parts of metadata that gitboot reads to build the next list

_Version = Annotated[int, msgspec.Meta(gt=0, le=_MAX_VERSION)]


class _Hashes(msgspec.Struct):
    sha256: str


class _VersionMeta(msgspec.Struct):
    version: _Version


class _FileMeta(_VersionMeta):
    hashes: _Hashes


class _TargetMeta(msgspec.Struct):
    hashes: _Hashes
    length: int


class _PublicationMeta(msgspec.Struct):
    manifest: str


class _TimestampMeta(_VersionMeta):
    expires: Annotated[datetime, msgspec.Meta(tz=True)]
    gitboot: _PublicationMeta
    meta: dict[str, _FileMeta]


class _SnapshotMeta(msgspec.Struct):
    meta: dict[str, _VersionMeta]


class _BinMeta(_VersionMeta):
    targets: dict[str, _TargetMeta]


class _UnusableList(ValueError):
    """The list in the tree cannot be extended, so gitboot builds a new list."""


# The content of a list


class TreeDetails(NamedTuple):
    """The facts about a tree that are recorded in its signed list."""

    origin: TreeOrigin
    manifest: str  # the digest of ops/manifest.json


class _SnapshotReference(NamedTuple):
    version: int
    sha256: str
    size: int  # bytes


class ListState(Struct, frozen=True, kw_only=True):
    """The signed list of a tree, without the content of its bins."""

    version: int  # the version of the timestamp
    snapshot: _SnapshotReference  # the snapshot that the timestamp names
    expires: datetime  # the expiry of the timestamp
    manifest: str  # the digest of the ops/manifest.json that the list describes
    keyid: str | None  # the ID of the key that signed the list; None: the list is unsigned
    targets: int | None  # the version of targets.json
    bins: Mapping[str, int]  # the versions of the bins, by name

    def is_due(self, now: datetime) -> bool:
        """Return whether the timestamp must be renewed because it expires soon or has a date in the future."""
        return not RENEWED_BELOW <= self.expires - now <= VALID

    def is_signed_by(self, keys: ListKeys | None) -> bool:
        """Return whether these keys signed the list. If ``keys`` is None, return whether the list is unsigned."""
        return (self.keyid, self.targets) == ((keys.keyid, keys.targets_version) if keys is not None else (None, None))

    @property
    def names(self) -> set[str]:
        """Return the names of the list's snapshot and bins, which contain their versions."""
        bins = {f"{version}.{name}.json" for name, version in self.bins.items()}
        return {f"{self.snapshot.version}.snapshot.json", *bins}


def find_bin(target: str) -> str:
    """Return the name of the bin that contains a target. TAP 15 defines the bins, and gitboot uses 256 of them."""
    return f"servers-{sha256(target.encode()).hexdigest()[:2]}"


def amend_list(
    old_list: ListState | None,
    changed_targets: Mapping[str, ListedFile | None],
    tree_details: TreeDetails,
    keys: ListKeys | None,
    now: datetime,
    *,
    min_version: int,
    read_bin: Callable[[str, int], TargetFiles],
) -> tuple[ListState, dict[str, bytes]]:
    """Return the changed list, and the files to write as a mapping by path, with the timestamp last.

    ``changed_targets`` contains the targets that differ from ``old_list``, or all targets if ``old_list`` is None. The
    value of a removed target is None. ``read_bin`` takes the name and the version of a bin in ``old_list``, and returns
    the targets in the bin.
    """
    version = max(int(now.timestamp()), min_version)
    old_bins = old_list.bins if old_list is not None else {}
    changes_by_bin = _group_by_bin(changed_targets, old_bins, now)
    files: dict[str, bytes] = {}
    for name, changes in sorted(changes_by_bin.items()):
        old_targets = read_bin(name, old_bins[name]) if name in old_bins else {}
        targets = {target: file for target, file in {**old_targets, **changes}.items() if file is not None}
        files[f"{SIGNED}{version}.{name}.json"] = _render_bin(version, targets, keys)
    bins = {**old_bins, **dict.fromkeys(changes_by_bin, version)}
    targets_version = keys.targets_version if keys is not None else None

    snapshot = None
    if old_list is not None and not changes_by_bin and old_list.targets == targets_version:
        snapshot = old_list.snapshot
    if snapshot is None or _expires_soon(snapshot.version, now):
        snapshot_data = _render_snapshot(version, {"targets": targets_version, **bins}, keys)
        snapshot = _SnapshotReference(version, compute_digest(snapshot_data), len(snapshot_data))
        files[f"{SIGNED}{version}.snapshot.json"] = snapshot_data

    expires = now.astimezone(UTC).replace(microsecond=0) + VALID
    files[LIST_TIMESTAMP] = _render_timestamp(version, expires, snapshot, tree_details, keys, now)
    state = ListState(
        version=version,
        snapshot=snapshot,
        expires=expires,
        manifest=tree_details.manifest,
        keyid=keys.keyid if keys is not None else None,
        targets=targets_version,
        bins=bins,
    )
    return state, files


def _group_by_bin(
    changed_targets: Mapping[str, ListedFile | None], old_bins: Mapping[str, int], now: datetime
) -> dict[str, dict[str, ListedFile | None]]:
    """Return the changed targets of each bin to write, including bins that do not exist yet or expire soon."""
    changes_by_bin: dict[str, dict[str, ListedFile | None]] = {name: {} for name in _BINS if name not in old_bins}
    for target, file in changed_targets.items():
        changes_by_bin.setdefault(find_bin(target), {})[target] = file
    for name, version in old_bins.items():
        if _expires_soon(version, now):
            changes_by_bin.setdefault(name, {})
    return changes_by_bin


def _render_bin(version: int, targets: TargetFiles, keys: ListKeys | None) -> bytes:
    listed = {target: {"hashes": {"sha256": file.sha256}, "length": file.size} for target, file in targets.items()}
    return _sign_metadata({**_build_common_fields("targets", version, _get_expiry(version)), "targets": listed}, keys)


def _render_snapshot(version: int, versions: Mapping[str, int | None], keys: ListKeys | None) -> bytes:
    """Render a snapshot of metadata files. Omit files whose version is None."""
    meta = {f"{name}.json": {"version": number} for name, number in versions.items() if number is not None}
    return _sign_metadata({**_build_common_fields("snapshot", version, _get_expiry(version)), "meta": meta}, keys)


def _render_timestamp(
    version: int,
    expires: datetime,
    snapshot: _SnapshotReference,
    tree_details: TreeDetails,
    keys: ListKeys | None,
    now: datetime,
) -> bytes:
    timestamp = {
        **_build_common_fields("timestamp", version, expires),
        "gitboot": {
            "commit": tree_details.origin.commit,
            "made": format_instant(now.replace(microsecond=0)),
            "manifest": tree_details.manifest,
            "version": tree_details.origin.gitboot,
        },
        "meta": {
            "snapshot.json": {
                "hashes": {"sha256": snapshot.sha256},
                "length": snapshot.size,
                "version": snapshot.version,
            }
        },
    }
    return _sign_metadata(timestamp, keys)


def _build_common_fields(kind: str, version: int, expires: datetime) -> dict[str, Any]:
    # the specification is that of TUF
    return {"_type": kind, "expires": format_instant(expires), "spec_version": "1.0.31", "version": version}


def _expires_soon(version: int, now: datetime) -> bool:
    return _get_expiry(version) - now < _RESIGNED_BELOW


def _get_expiry(version: int) -> datetime:
    """Return when a bin or a snapshot expires.

    The version of a bin or a snapshot is its creation time in seconds since 1970.
    """
    return datetime.fromtimestamp(version, UTC) + _METADATA_VALID


def _sign_metadata(metadata: Mapping[str, Any], keys: ListKeys | None) -> bytes:
    """Encode and sign TUF metadata.

    For texts without control characters, RFC 8785 and the canonical JSON of TUF are identical.
    """
    signatures = [{"keyid": keys.keyid, "sig": keys.sign(encode_canonical(metadata))}] if keys is not None else []
    return encode_canonical({"signatures": signatures, "signed": metadata}) + b"\n"


def _verify_metadata(data: bytes | None, keys: ListKeys | None, kind: type[_Meta]) -> _Meta:
    """Verify TUF metadata, and return its signed part.

    Raises `_UnusableList` if another key signed the metadata, or if the metadata is of another kind.
    """
    try:
        document = json.loads(data or b"")
        signed, signatures = document["signed"], document["signatures"]
        if keys is not None:
            (signature,) = signatures
            if signature["keyid"] != keys.keyid or not keys.verify(encode_canonical(signed), signature["sig"]):
                raise _UnusableList("another key")
        elif signatures:
            raise _UnusableList("the list is signed, but this instance does not have a signing key")
        return convert(signed, kind)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise _UnusableList(str(error)) from error


def find_listing(files: Files | None, server: str) -> ListedFile | None:
    """Return the digest and size of a server's listing, or None if the server's files do not include a listing."""
    file = files.get(listing_path(server)) if files is not None else None
    return ListedFile(file.sha256, len(file.content)) if file is not None else None


# The files of a list


class SignedList:
    """The signed list of a tree to which only this process publishes."""

    def __init__(self) -> None:
        self._state: ListState | None = None  # the list in the tree; None: not read yet
        self._digest_before: str | None = None  # the manifest's digest before the changes that are not in a list yet
        # The manifest's digest after the changes that are not in a list yet. None: this process has not published.
        self._digest_after: str | None = None
        self._changed: dict[str, ListedFile | None] = {}  # the changed targets of servers
        # The metadata of the keys when this process last found or wrote a correct list. None: the tree changed since.
        self._current_metadata: Mapping[str, bytes] | None = None
        # files that the list no longer uses, each with the time since which it is unused
        self._superseded: dict[str, datetime] = {}

    @property
    def expires(self) -> datetime | None:
        """The time at which the list expires, or None if this process has not written a list."""
        return self._state.expires if self._state is not None else None

    def record_listings(self, listings: Listings, before: str | None, after: str) -> None:
        """Record the listings that a publication changed, by server.

        The listing of a removed server is None. ``before`` and ``after`` are the digests of the manifest before and
        after the publication. If ``before`` is None, the tree had no servers.
        """
        if self._digest_after is None or self._digest_after != before:
            self._digest_before, self._changed = before, {}
        self._changed.update({target_name(listing_path(server)): listed for server, listed in listings.items()})
        self._digest_after, self._current_metadata = after, None

    def update(
        self, disk: DurableDirectory, tree: Tree, tree_details: TreeDetails, keys: ListKeys | None, now: datetime
    ) -> None:
        """Update the list to match the current tree and the keys, or renew the list when due.

        All files except listings and the timestamp have a version in their name. The timestamp is written last. Until
        then, readers find the complete metadata of the earlier list. New root metadata is written just before the
        timestamp, because it may reject the key that signed the earlier timestamp. If the method raises PublishError,
        the earlier list remains in the tree.
        """
        root_metadata = keys.metadata if keys is not None else {}
        if self._current_metadata == root_metadata and self._is_up_to_date(tree_details, keys, now):
            return
        self._current_metadata = None
        names = disk.list_names(SIGNED.rstrip("/"))
        present_versions = {name: int(match[1]) for name in names if (match := _VERSIONED.fullmatch(name))}
        root_files = {SIGNED + name: data for name, data in root_metadata.items() if disk.read(SIGNED + name) != data}
        if self._state is None or not self._state.is_signed_by(keys):
            self._state = _read_state(disk, keys)
        if self._digest_after != tree_details.manifest:  # an earlier process published the tree
            self._digest_before, self._digest_after, self._changed = tree_details.manifest, tree_details.manifest, {}
        shared = render_listing(build_shared_listing(sorted(tree.read_shared().items())))
        listings = {SHARED_LISTING: shared} if disk.read(SHARED_LISTING) != shared else {}
        shared_target = {target_name(SHARED_LISTING): ListedFile(compute_digest(shared), len(shared))}
        old_list = self._find_extendable_list(present_versions.keys())
        if old_list is not None and not _has_targets(disk, keys, old_list, shared_target):
            # a process may have ended after it wrote the listing but before it wrote the list
            self._changed |= shared_target
        is_unchanged = not self._changed and not root_files and not listings
        if old_list is not None and is_unchanged and self._is_up_to_date(tree_details, keys, now):
            self._current_metadata = root_metadata
            return
        versions = [number for name, number in present_versions.items() if name not in root_metadata]
        min_version = 1 + max([*versions, parse_list_version(disk.read(LIST_TIMESTAMP))])
        amend = partial(amend_list, tree_details=tree_details, keys=keys, now=now, min_version=min_version)
        state, files = self._amend_or_rebuild(disk, tree, keys, old_list, shared_target, amend)
        timestamp = files.pop(LIST_TIMESTAMP)
        _write(disk, {**listings, **files}, now)
        for name in present_versions.keys() - root_metadata.keys():
            # Remove the root metadata of a lost root key, because readers would accept it as the successor of the new
            # root.
            if name.endswith(".root.json"):
                disk.remove(SIGNED + name)
        _write(disk, {**root_files, LIST_TIMESTAMP: timestamp}, now)
        self._state, self._current_metadata = state, root_metadata
        self._digest_before, self._changed = tree_details.manifest, {}
        for name in filter(is_staging_name, names):
            disk.remove(SIGNED + name)
        self._remove_superseded_files(disk, present_versions.keys() - state.names - root_metadata.keys(), now)

    def _find_extendable_list(self, present_names: Collection[str]) -> ListState | None:
        """Return the list in the tree if the recorded changes begin with this list and none of its files is missing."""
        state = self._state
        if state is None or state.manifest != self._digest_before or not state.names.issubset(present_names):
            return None
        return state

    def _amend_or_rebuild(
        self,
        disk: DurableDirectory,
        tree: Tree,
        keys: ListKeys | None,
        old_list: ListState | None,
        shared_target: TargetFiles,
        amend: Callable[..., tuple[ListState, dict[str, bytes]]],
    ) -> tuple[ListState, dict[str, bytes]]:
        """Call ``amend`` with the recorded changes, or with all targets if there is no usable old list."""
        if old_list is not None:
            with suppress(_UnusableList):
                return amend(old_list, self._changed, read_bin=partial(_read_bin, disk, keys))
        targets = self._changed if self._digest_before is None else _read_all_targets(disk, tree)
        return amend(None, {**targets, **shared_target}, read_bin=lambda *_: {})

    def _is_up_to_date(self, tree_details: TreeDetails, keys: ListKeys | None, now: datetime) -> bool:
        """Return whether the list matches this manifest and these keys, and is not due for renewal."""
        state = self._state
        return (
            state is not None
            and state.manifest == tree_details.manifest
            and state.is_signed_by(keys)
            and not state.is_due(now)
        )

    def _remove_superseded_files(self, disk: DurableDirectory, names: Iterable[str], now: datetime) -> None:
        self._superseded = {name: self._superseded.get(name, now) for name in sorted(names)}
        for name, since in self._superseded.items():
            if now - since >= _RETENTION:
                disk.remove(SIGNED + name)
        disk.sync()


def _write(disk: DurableDirectory, files: Mapping[str, bytes], now: datetime) -> None:
    """Write files durably: stage and sync all of them before placing the first one."""
    try:
        for path, content in files.items():
            disk.stage(path, content, now)
        disk.sync()
        for path in files:
            disk.place(path)
        disk.sync()
    except PublishError:
        for path in files:
            with suppress(PublishError):
                disk.remove(staging_path(path))
        raise


def parse_list_version(timestamp: bytes | None) -> int:
    """Return the version of a timestamp without verifying its signature, or 0 if the bytes are not a timestamp."""
    try:
        version = json.loads(timestamp or b"")["signed"]["version"]
    except (KeyError, RecursionError, TypeError, ValueError):
        return 0
    return version if isinstance(version, int) and 0 < version <= _MAX_VERSION else 0


def _read_state(disk: DurableDirectory, keys: ListKeys | None) -> ListState | None:
    """Return the list in the tree, or None if these keys did not sign it."""
    try:
        timestamp = _verify_metadata(disk.read(LIST_TIMESTAMP), keys, _TimestampMeta)
        reference = timestamp.meta["snapshot.json"]
        data = disk.read(f"{SIGNED}{reference.version}.snapshot.json") or b""
        if compute_digest(data) != reference.hashes.sha256:
            return None
        meta = _verify_metadata(data, keys, _SnapshotMeta).meta
    except (KeyError, _UnusableList):
        return None
    versions = {name.removesuffix(".json"): file.version for name, file in meta.items()}
    targets_version = versions.pop("targets", None)
    return ListState(
        version=timestamp.version,
        snapshot=_SnapshotReference(reference.version, reference.hashes.sha256, len(data)),
        expires=timestamp.expires,
        manifest=timestamp.gitboot.manifest,
        keyid=keys.keyid if keys is not None else None,
        targets=targets_version,
        bins=versions,
    )


def _read_bin(disk: DurableDirectory, keys: ListKeys | None, name: str, version: int) -> TargetFiles:
    """Return the targets in a bin. Raises `_UnusableList` if gitboot did not write the file."""
    bin_meta = _verify_metadata(disk.read(f"{SIGNED}{version}.{name}.json"), keys, _BinMeta)
    if bin_meta.version != version:
        raise _UnusableList("another version")
    return {target: ListedFile(meta.hashes.sha256, meta.length) for target, meta in bin_meta.targets.items()}


def _has_targets(disk: DurableDirectory, keys: ListKeys | None, state: ListState, targets: TargetFiles) -> bool:
    """Return whether a list contains these targets. Return False if a bin is missing or unusable."""
    with suppress(_UnusableList, KeyError):
        for target, listed in targets.items():
            name = find_bin(target)
            if _read_bin(disk, keys, name, state.bins[name]).get(target) != listed:
                return False
        return True
    return False


def _read_all_targets(disk: DurableDirectory, tree: Tree) -> dict[str, ListedFile | None]:
    """Return the digest and the size of each server's listing by target name, based on the states in the manifest."""
    targets: dict[str, ListedFile | None] = {}
    for server, digest in tree.iter_servers():
        data = disk.read(state_path(server))
        if data is None or compute_digest(data) != digest:
            raise build_damage_error(disk.root, state_path(server))
        path = listing_path(server)
        listed = parse_state(data).files.get(path)
        if listed is not None:  # an earlier version of gitboot wrote no listings
            targets[target_name(path)] = listed
    return targets


# The publication key


class KeyUnreadable(UsageError):
    """The publication key or the metadata beside it cannot be read."""


class KeyNotInRoot(UsageError):
    """The newest root metadata does not name the publication key."""


class ListKeys(Struct, frozen=True, kw_only=True):
    """The publication key, and the metadata that makes readers trust the key."""

    keyid: str
    root_expires: datetime  # the expiry of the newest root metadata
    targets_version: int
    metadata: Mapping[str, bytes]  # root and targets metadata for readers, by file name
    _key: Ed25519PrivateKey

    def sign(self, content: bytes) -> str:
        """Return the Ed25519 signature of ``content``, in hexadecimal digits."""
        return self._key.sign(content).hex()

    def verify(self, content: bytes, signature: str) -> bool:
        """Return whether ``signature`` is a signature of ``content`` by the publication key."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.public_key().verify(bytes.fromhex(signature), content)
        except (InvalidSignature, ValueError):
            return False
        return True


def read_list_keys(folder: Path) -> ListKeys:
    """Read the publication key and its metadata from a folder.

    Raises KeyUnreadable if a file is missing or malformed, or if other users may read the key. Raises KeyNotInRoot if
    the newest metadata of the root key does not name the publication key.
    """
    key = _read_publication_key(folder / PUBLICATION_KEY)
    keyval = {"public": key.public_key().public_bytes_raw().hex()}
    # The key ID is the sha256 of the key's canonical JSON, as in python-tuf.
    keyid = compute_digest(encode_canonical({"keytype": "ed25519", "keyval": keyval, "scheme": "ed25519"}))
    roots = read_versions(folder, ROOTS)
    targets = read_versions(folder, TARGETS)
    if not roots or not targets or max(roots) != len(roots):
        raise KeyUnreadable(
            f"{folder} does not contain all *.root.json and *.targets.json files; copy these files from "
            "the host that has the root key"
        )
    root_version, targets_version = max(roots), max(targets)
    try:
        for number, data in [*roots.items(), (targets_version, targets[targets_version])]:
            if json.loads(data)["signed"]["version"] != number:
                raise ValueError("the version in a file's name differs from the version in its content")
        trust = _parse_key_trust(roots[root_version], targets[targets_version])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeyUnreadable(
            f"{folder} contains invalid *.root.json or *.targets.json files; copy these files again from the "
            "host that has the root key"
        ) from None
    if keyid not in trust.keyids:
        raise KeyNotInRoot(
            f"{root_version}.root.json and {targets_version}.targets.json in {folder} must both list "
            f"{PUBLICATION_KEY}; copy the key and all .json files from the host that has the root key"
        )
    return ListKeys(
        keyid=keyid,
        root_expires=trust.expires,
        targets_version=targets_version,
        metadata={
            f"{targets_version}.targets.json": targets[targets_version],
            **{f"{number}.root.json": data for number, data in sorted(roots.items())},
        },
        _key=key,
    )


def _read_publication_key(file: Path) -> Ed25519PrivateKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise KeyUnreadable(INSTALL) from None
    try:
        key = load_pem_private_key(read_private(file), password=None)
    except UsageError as error:
        raise KeyUnreadable(str(error)) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyUnreadable(
            f"{file} is not a PEM file with a private key; copy the file again from the host that has the root key"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnreadable(f"{file} is not an Ed25519 key; create one with `gitboot secret keygen --signed-list`")
    return key


class _KeyTrust(NamedTuple):
    """The keys that may sign a list, according to the newest metadata of the root key."""

    keyids: frozenset[str]  # the keys that may sign snapshots, timestamps and bins
    expires: datetime  # the expiry of the root metadata


def _parse_key_trust(root: bytes, targets: bytes) -> _KeyTrust:
    """Parse root and targets metadata. Raises ValueError, KeyError, TypeError or RecursionError."""
    signed, delegating = json.loads(root)["signed"], json.loads(targets)["signed"]
    roles = (signed["roles"]["snapshot"], signed["roles"]["timestamp"], delegating["delegations"]["succinct_roles"])
    keyids = [frozenset(role["keyids"]) for role in roles]
    expires = datetime.fromisoformat(signed["expires"])
    if expires.tzinfo is None:
        raise ValueError("a time without a zone")
    return _KeyTrust(keyids[0].intersection(*keyids), expires)


def read_versions(folder: Path, name: re.Pattern[str]) -> dict[int, bytes]:
    """Return the files in a folder whose names match ``name``, as content by the number in the name."""
    try:
        paths = {int(match[1]): path for path in folder.iterdir() if (match := name.fullmatch(path.name))}
        return {number: path.read_bytes() for number, path in paths.items()}
    except OSError as error:
        raise KeyUnreadable(f"{folder} cannot be read: {error.strerror}") from None
