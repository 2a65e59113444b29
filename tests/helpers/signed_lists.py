"""Signed lists by python-tuf: made as an independent publisher makes them, and read by its own client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from securesystemslib.signer import CryptoSigner, Key
from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import (
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    SuccinctRoles,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from gitboot.jsonio import encode_canonical, format_instant
from gitboot.publish.list_root import make_list_keys
from gitboot.publish.manifest import MANIFEST, compute_digest
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.signed_list_reader import hash_path, parse_keys
from gitboot.render.endpoint_files import FileVersion, Listing, listing_path, render_listing
from gitboot.render.paths import BOOT, MEDIUM, File, Files, find_non_script_kind, find_token
from tests.helpers.endpoints import BEFORE, FLEET, Fleet, Site
from tests.helpers.published_trees import server_files

# Signed lists of published trees, made with python-tuf, as an independent publisher makes them.

BITS: Final = 8  # 256 bins, of which those exist that have targets
FAR: Final = datetime(2100, 1, 1, tzinfo=UTC)

Version = tuple[datetime | None, bytes | None]  # since when, and what; None: absent


def public_key(signer: CryptoSigner) -> bytes:
    return bytes.fromhex(signer.public_key.keyval["public"])


@dataclass
class ListSigner:
    """The keys of one publisher. Without keys, its lists are unsigned."""

    roots: list[CryptoSigner] = field(default_factory=lambda: [CryptoSigner.generate_ed25519()])
    publication: CryptoSigner | None = field(default_factory=CryptoSigner.generate_ed25519)
    threshold: int = 1
    version: int = 0  # of the newest list
    roots_made: list[bytes] = field(default_factory=list)

    @classmethod
    def unsigned(cls) -> ListSigner:
        return cls(roots=[], publication=None)

    @property
    def keys(self) -> list[bytes]:
        return [public_key(each) for each in self.roots]

    def make_root(self, *, signed_by: Sequence[CryptoSigner] = (), expires: datetime = FAR) -> bytes:
        """The next root, signed by its own keys and by ``signed_by``."""
        root = Root(version=len(self.roots_made) + 1, expires=expires, consistent_snapshot=True)
        for each in self.roots:
            root.add_key(each.public_key, "root")
            root.add_key(each.public_key, "targets")
        root.roles["root"].threshold = root.roles["targets"].threshold = self.threshold
        assert self.publication is not None
        for role in ("timestamp", "snapshot"):
            root.add_key(self.publication.public_key, role)
        metadata = Metadata(root)
        for each in (*self.roots, *signed_by):
            metadata.sign(each, append=True)
        self.roots_made.append(metadata.to_bytes())
        return self.roots_made[-1]

    def make(
        self,
        listings: Mapping[str, bytes],
        *,
        made: datetime,
        expires: datetime = FAR,
        commit: str = "feed",
        manifest: str = "0" * 64,
    ) -> dict[str, bytes]:
        """The files of a list, by name below signed/."""
        self.version += 1
        version = self.version
        if self.roots and not self.roots_made:
            self.make_root()
        own = [] if self.publication is None else [self.publication]
        keys: dict[str, Key] = {each.public_key.keyid: each.public_key for each in own}
        bins = SuccinctRoles([*keys], 1, BITS, "servers")
        targets: dict[str, dict[str, TargetFile]] = {name: {} for name in bins.get_roles()}
        for name, content in listings.items():
            file = TargetFile(len(content), {"sha256": compute_digest(content)}, name)
            targets[bins.get_role_for_target(name)][name] = file
        found = {f"{number + 1}.root.json": root for number, root in enumerate(self.roots_made)}

        def add(name: str, signed: Any, signers: Sequence[CryptoSigner], *, numbered: bool = True) -> bytes:
            metadata: Metadata[Any] = Metadata(signed)
            for each in signers:
                metadata.sign(each, append=True)
            data = metadata.to_bytes()
            found[f"{version}.{name}" if numbered else name] = data
            return data

        targets = {name: files for name, files in targets.items() if files}
        for name, files in targets.items():
            add(f"{name}.json", Targets(version=version, expires=FAR, targets=files), own)
        delegating = Targets(version=version, expires=FAR, delegations=Delegations(keys, succinct_roles=bins))
        if self.roots:
            add("targets.json", delegating, self.roots)
        named_files = (*(["targets"] if self.roots else []), *targets)
        meta = {f"{name}.json": MetaFile(version) for name in named_files}
        snapshot = add("snapshot.json", Snapshot(version=version, expires=FAR, meta=meta), own)
        named = MetaFile(version, len(snapshot), {"sha256": compute_digest(snapshot)})
        custom_fields = {
            "gitboot": {"commit": commit, "made": format_instant(made), "manifest": manifest, "version": "0.2.0"}
        }
        timestamp = Timestamp(version=version, expires=expires, snapshot_meta=named, unrecognized_fields=custom_fields)
        add("timestamp.json", timestamp, own, numbered=False)
        return {**found, **listings}

    def renew(self, files: Mapping[str, bytes], *, expires: datetime) -> dict[str, bytes]:
        """The same list with a new timestamp."""
        self.version += 1
        metadata: Metadata[Timestamp] = Metadata.from_bytes(files["timestamp.json"])
        metadata.signed.expires, metadata.signed.version = expires, self.version
        if self.publication is not None:
            metadata.sign(self.publication)
        return {**files, "timestamp.json": metadata.to_bytes()}


def get_list_name(path: str) -> str:
    is_secret = find_token(BOOT + path) is not None or find_non_script_kind(BOOT + path) is MEDIUM
    return hash_path(path) if is_secret else path


def encode_listing(
    server: str | None,
    files: Mapping[str, Sequence[Version]],
    end: tuple[datetime, Mapping[str, bytes | None]] | None = None,
) -> bytes:
    """A listing of files by path below boot/, and of what they turn to at the end of the window that is open."""
    listed = {
        get_list_name(path): [
            [None if since is None else format_instant(since), *_file(each)] for since, each in versions
        ]
        for path, versions in files.items()
    }
    changed = end[1] if end is not None else {}
    ends = (
        {"since": format_instant(end[0]), "files": {path: _file(each) for path, each in changed.items()}}
        if end
        else None
    )
    texts = {compute_digest(each): each.decode() for each in changed.values() if each is not None}
    return encode_canonical({"server": server, "files": listed, "ends": ends, "contents": texts}) + b"\n"


def _file(content: bytes | None) -> list[str | int | None]:
    return [None, 0] if content is None else [compute_digest(content), len(content)]


def read_listings(root: Path) -> dict[str, bytes]:
    """The listings of a tree with a list, by name below signed/, as the publisher made them."""
    signed = root / BOOT / "signed"
    paths = [signed / "shared.json", *(signed / "servers").iterdir()]
    return {str(path.relative_to(signed)): path.read_bytes() for path in sorted(paths)}


def sign_tree(
    root: Path, signer: ListSigner, *, made: datetime | None = None, lasts: timedelta = timedelta(hours=24)
) -> dict[str, bytes]:
    """Sign a published tree again, in place of its publisher, and return the list's files by name below signed/."""
    made = made or datetime.now(UTC).replace(microsecond=0)
    manifest = compute_digest((root / MANIFEST).read_bytes())
    commit = json.loads((root / MANIFEST).read_bytes())["commit"]
    files = signer.make(read_listings(root), made=made, expires=made + lasts, manifest=manifest, commit=commit)
    write_list(root / BOOT, files)
    return files


def write_list(boot: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(boot / "signed", ignore_errors=True)
    for name, content in sorted(files.items(), key=lambda each: each[0] == "timestamp.json"):
        path = boot / "signed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# Signed lists as others read them: python-tuf's own client over a folder or a web server.

SIGNED = "boot/signed"


class FolderFetcher(FetcherInterface):
    """Fetch files from a folder by URLs that are paths; ``fetched`` has the names."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def _fetch(self, url: str) -> Iterator[bytes]:
        self.fetched.append(url.rpartition("/")[2])
        try:
            yield Path(url).read_bytes()
        except OSError as error:
            raise DownloadHTTPError(str(error), 404) from error


def make_client(url: str | Path, root: bytes, cache: Path) -> Updater:
    """Return python-tuf's client of the list at ``url``, which trusts a root and remembers in ``cache``."""
    for folder in (cache, cache / "targets"):
        folder.mkdir(parents=True, exist_ok=True)
    fetcher = FolderFetcher() if isinstance(url, Path) else None
    config = UpdaterConfig(prefix_targets_with_hash=False)
    places = (str(cache), str(url), str(cache / "targets"), str(url))
    return Updater(*places, fetcher=fetcher, config=config, bootstrap=root)


def target(updater: Updater, name: str) -> dict[str, Any] | None:
    """Return the listing that a client downloads and verifies; None: the list has no such target."""
    if (found := updater.get_targetinfo(name)) is None:
        return None
    listing: dict[str, Any] = json.loads(
        Path(updater.download_target(found, str(updater.target_dir) + "/listing")).read_bytes()
    )
    return listing


def list_current_digests(listing: dict[str, Any], at: datetime) -> dict[str, str]:
    """Return the digest of each file that a listing has at an instant, by its name in the listing."""
    found = {}
    for name, versions in listing["files"].items():
        now = [digest for since, digest, _ in versions if since is None or datetime.fromisoformat(since) <= at]
        if now and now[-1] is not None:
            found[name] = now[-1]
    return found


def assert_list_is_whole(files: Mapping[str, bytes]) -> None:
    """The timestamp, if there is one, names a snapshot and bins that are there; ``files`` are by path below boot/."""
    if "signed/timestamp.json" not in files:
        return
    named = json.loads(files["signed/timestamp.json"])["signed"]["meta"]["snapshot.json"]
    snapshot = files[f"signed/{named['version']}.snapshot.json"]
    assert (sha256(snapshot).hexdigest(), len(snapshot)) == (named["hashes"]["sha256"], named["length"])
    for name, each in json.loads(snapshot)["signed"]["meta"].items():
        signed = json.loads(files[f"signed/{each['version']}.{name}"])["signed"]
        assert signed["version"] == each["version"]


def read_files(boot: Path) -> dict[str, bytes]:
    return {str(path.relative_to(boot)): path.read_bytes() for path in boot.rglob("*") if path.is_file()}


def make_keys(folder: Path, now: datetime) -> Path:
    make_list_keys(folder, None, now)
    return folder


def listed_server(name: str, files: Files) -> dict[str, File]:
    """Return a server's files with a listing of them, and its state."""
    files = {path: file for path, file in files.items() if path != listing_path(name)}
    versions = {path: (FileVersion(None, file.sha256, len(file.content)),) for path, file in files.items()}
    return server_files(name, {**files, listing_path(name): File(render_listing(Listing(server=name, files=versions)))})


def publish(directory: OutputDirectory, servers: dict[str, Files | None], shared: Files | None, at: datetime) -> None:
    directory.publish(servers, shared, complete=shared is not None, commit="c0ffee", at=at)


def list_names(root: Path) -> set[str]:
    return {each.name for each in (root / SIGNED).iterdir() if each.is_file()}


class SignedSite:
    """A tree that the real publisher publishes and signs, in a folder of its own."""

    def __init__(self, folder: Path, *, is_signed: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        self.root, self.keys = folder / "output", folder / "keys" if is_signed else None
        self._site = Site(self.root)
        if self.keys is not None:
            make_keys(self.keys, datetime.now(UTC))  # commands go by the clock of the machine

    @property
    def boot(self) -> Path:
        return self.root / "boot"

    @property
    def public(self) -> Path:
        assert self.keys is not None
        return self.keys / "root.pub"

    @property
    def key(self) -> bytes:
        (found,) = parse_keys(self.public.read_text())
        return found

    def publish(self, fleet: Fleet = FLEET, at: datetime = BEFORE, *, made: datetime | None = None) -> None:
        """Publish at an instant, and make the list at that or another one."""
        self._site.publish(fleet, at=at, list_keys=self.keys, listed=made or at)
