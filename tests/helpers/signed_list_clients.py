"""Signed lists as others read them: python-tuf's own client over a folder or a web server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from gitboot.publish.list_root import make_list_keys
from gitboot.publish.publisher import Directory
from gitboot.publish.signed_list_reader import parse_keys
from gitboot.render.endpoint_files import FileVersion, Listing, listing_path, render_listing
from gitboot.render.paths import File, Files
from tests.helpers.published_trees import server_files
from tests.helpers.served_tree import BEFORE, FLEET, Fleet, Site

SIGNED = "boot/signed"


class FolderFetcher(FetcherInterface):
    """Fetch what lies in a folder, by URLs that are paths; ``fetched`` has the names."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def _fetch(self, url: str) -> Iterator[bytes]:
        self.fetched.append(url.rpartition("/")[2])
        try:
            yield Path(url).read_bytes()
        except OSError as error:
            raise DownloadHTTPError(str(error), 404) from error


def client(url: str | Path, root: bytes, cache: Path) -> Updater:
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


def lies(listing: dict[str, Any], at: datetime) -> dict[str, str]:
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


def files_in(boot: Path) -> dict[str, bytes]:
    """The files below a folder, by path."""
    return {str(path.relative_to(boot)): path.read_bytes() for path in boot.rglob("*") if path.is_file()}


def made_keys(folder: Path, now: datetime) -> Path:
    """Return a new folder of list keys."""
    make_list_keys(folder, None, now)
    return folder


def listed_server(name: str, files: Files) -> dict[str, File]:
    """Return a server's files with a listing of them, and its state."""
    files = {path: file for path, file in files.items() if path != listing_path(name)}
    versions = {path: (FileVersion(None, file.sha256, len(file.content)),) for path, file in files.items()}
    return server_files(name, {**files, listing_path(name): File(render_listing(Listing(server=name, files=versions)))})


def publish(directory: Directory, servers: dict[str, Files | None], shared: Files | None, at: datetime) -> None:
    """Publish servers; with shared files, these are all servers."""
    directory.publish(servers, shared, complete=shared is not None, commit="c0ffee", at=at)


def names(root: Path) -> set[str]:
    """The names of the metadata in a tree."""
    return {each.name for each in (root / SIGNED).iterdir() if each.is_file()}


class SignedSite:
    """A tree that the real publisher publishes and signs, in a folder of its own."""

    def __init__(self, folder: Path, *, is_signed: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        self.root, self.keys = folder / "output", folder / "keys" if is_signed else None
        self._site = Site(self.root)
        if self.keys is not None:
            made_keys(self.keys, datetime.now(UTC))  # commands go by the clock of the machine

    @property
    def boot(self) -> Path:
        return self.root / "boot"

    @property
    def public(self) -> Path:
        """The public root key."""
        assert self.keys is not None
        return self.keys / "root.pub"

    @property
    def key(self) -> bytes:
        """The public root key in 32 bytes."""
        (found,) = parse_keys(self.public.read_text())
        return found

    def publish(self, fleet: Fleet = FLEET, at: datetime = BEFORE, *, made: datetime | None = None) -> None:
        """Publish at an instant, and make the list at that or another one."""
        self._site.publish(fleet, at=at, list_keys=self.keys, listed=made or at)
