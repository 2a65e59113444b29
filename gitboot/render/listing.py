"""The listing of one server's files in the signed list: digests, sizes, and the instants at which they change.

``boot/signed/servers/<name>.json`` is a target of the TUF metadata that `gitboot.publish.signed_list` writes. Readers
are `gitboot verify-mirror` and the program at a mirror, which know no other part of gitboot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple

from gitboot.jsonio import canonical, format_instant
from gitboot.render.paths import BOOT, MEDIUM, SIGNED, is_immutable, means, token_in
from gitboot.render.tree import File, Files

_SERVERS: Final = f"{SIGNED}servers/"
SHARED_LISTING: Final = f"{SIGNED}shared.json"  # of the files that are no server's


class FileVersion(NamedTuple):
    """What a path has from an instant on, until the next version."""

    since: datetime | None  # None: now, when the tree was made
    sha256: str | None  # None: there is no file
    size: int  # bytes


class ListedFile(NamedTuple):
    """The digest and the size of a file."""

    sha256: str
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class WindowEnd:
    """What a copy turns its files to at the end of a maintenance window if nobody copies the tree any more."""

    since: datetime
    files: Mapping[str, File | None]  # by path below the output directory, those that change; None: the file goes


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The files of one server, or the files that belong to no server."""

    server: str | None  # None: the files belong to no server
    files: Mapping[str, tuple[FileVersion, ...]]  # by path below the output directory, in the order of the instants
    end: WindowEnd | None = None  # of the maintenance window that is open now


def listing_path(server: str) -> str:
    """Return the path of a server's listing."""
    return f"{_SERVERS}{server}.json"


def target_name(path: str) -> str:
    """Return the name by which TUF metadata knows the listing at ``path``."""
    return path.removeprefix(SIGNED)


def is_listing(path: str) -> bool:
    """Return whether ``path`` is the listing of a server, which the manifest lists as a file of this server."""
    return path.startswith(_SERVERS)


def is_list_record(path: str) -> bool:
    """Return whether the publisher writes ``path`` besides the files of servers: metadata, or the shared listing."""
    return path.startswith(SIGNED) and not is_listing(path)


def name_in_listing(path: str) -> str:
    """Return how a listing names a path: below ``boot/``, or by the path's sha256 if the path has a token.

    Anyone who can read the list learns every path in it, and a path with a token tells the token of an installation.
    """
    below = path.removeprefix(BOOT)
    if token_in(path) is None and means(path) is not MEDIUM:
        return below
    return f"sha256:{sha256(below.encode()).hexdigest()}"


def window_end(since: datetime, before: Files, after: Files) -> WindowEnd:
    """Return what a copy changes at the end of a window, from the files that lie in the tree before and after it.

    Paths with a token stay as they are: the list must not have them, and nothing that boots names them any more.
    """
    digests = {path: (file.sha256 if (file := after.get(path)) else None) for path in sorted({*before, *after})}
    changed = {
        path: after.get(path)
        for path, digest in digests.items()
        if _is_in_clear(path) and (path not in before or before[path].sha256 != digest)
    }
    return WindowEnd(since, changed)


def _is_in_clear(path: str) -> bool:
    """Return whether a listing has the path of a file that changes in place, below ``boot/``."""
    return path.startswith(BOOT) and not is_immutable(path) and name_in_listing(path) == path.removeprefix(BOOT)


def versions(lying: Sequence[tuple[datetime | None, Files]]) -> dict[str, tuple[FileVersion, ...]]:
    """Return the versions of each path, from the files that lie in the tree from each instant on."""
    if len(lying) == 1:  # as for most servers
        [(since, files)] = lying
        return {
            path: (FileVersion(since, file.sha256, len(file.content)),)
            for path, file in files.items()
            if path.startswith(BOOT)
        }
    found: dict[str, tuple[FileVersion, ...]] = {}
    for path in sorted({path for _, files in lying for path in files if path.startswith(BOOT)}):
        kept: list[FileVersion] = []
        for since, files in lying:
            file = files.get(path)
            version = FileVersion(since, file.sha256, len(file.content)) if file else FileVersion(since, None, 0)
            if version[1:] != (kept[-1][1:] if kept else (None, 0)):
                kept.append(version)
        found[path] = tuple(kept)
    return found


def shared_listing(files: Iterable[tuple[str, ListedFile]]) -> Listing:
    """Return the listing of the files for machines that belong to no server."""
    lasting = {path: (FileVersion(None, *each),) for path, each in files if path.startswith(BOOT)}
    return Listing(server=None, files=lasting)


def render(listing: Listing) -> bytes:
    """Return the listing as canonical JSON. The same listing gives the same bytes."""
    document = {
        "contents": _contents(listing.end),
        "ends": _end(listing.end),
        "files": {name_in_listing(path): list(map(_version, each)) for path, each in listing.files.items()},
        "server": listing.server,
    }
    return canonical(document) + b"\n"


def _version(version: FileVersion) -> list[str | int | None]:
    since = format_instant(version.since) if version.since is not None else None
    return [since, version.sha256, version.size]


def _end(end: WindowEnd | None) -> dict[str, object] | None:
    if end is None:
        return None
    files = {
        path.removeprefix(BOOT): [file.sha256, len(file.content)] if file is not None else [None, 0]
        for path, file in end.files.items()
    }
    return {"since": format_instant(end.since), "files": files}


def _contents(end: WindowEnd | None) -> dict[str, str]:
    """Return the texts that a copy needs to end the open window, by sha256."""
    files = end.files.values() if end is not None else ()
    return {file.sha256: file.content.decode() for file in files if file is not None}
