"""Signed list check: compare a mirror with its own signed list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final

from msgspec import structs

from gitboot.errors import HostUnreachable
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import compute_digest
from gitboot.publish.mirror_comparison import (
    FolderMirror,
    MirrorFault,
    MirrorFile,
    MirrorFinding,
    MirrorReport,
    WebMirror,
    compare_files,
    open_thread_pool,
    sort_findings,
)
from gitboot.publish.signed_list_reader import (
    DAMAGED,
    MAX_TARGETS_BYTES,
    MISSING,
    OLDER,
    SHARED,
    SIGNED,
    TIMESTAMP,
    TOLERANCE,
    UNSIGNED,
    FileVersion,
    Listing,
    ListProblem,
    SignedList,
    Target,
    find_versions_around,
    hash_path,
    is_path_digest,
    parse_listing,
    read_list,
)

_INCOMPLETE: Final = (
    "the list names a different version of this listing, because a publication or a copy is in progress, or because "
    "somebody changed the mirror. Run the command again. If the problem persists, publish again with gitboot, and copy "
    "the tree to the mirror again"
)
_LIST_FAULTS: Final = {
    MISSING: MirrorFault.MISSING,
    UNSIGNED: MirrorFault.UNSIGNED,
    OLDER: MirrorFault.STALE,
    "BadSignature": MirrorFault.BAD_SIGNATURE,
    DAMAGED: MirrorFault.DAMAGED,
}


def compare_with_list(
    mirror: FolderMirror | WebMirror,
    keys: Collection[bytes],
    now: datetime,
    *,
    parallel: int,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with its own signed list, at the time ``now``.

    ``keys`` are the public root keys. If there are no keys, gitboot does not verify signatures. If the list is replaced
    during the comparison, gitboot also compares files that are new in the list. gitboot compares a file with a finding
    again if the entry of the file in the list has changed. Raises `HostUnreachable`.
    """
    with open_thread_pool(parallel) as pool:
        findings = list(mirror.check_list_caching())
        reader = ListReader(mirror, keys, pool)
        signed_list = reader.read(findings)
        if signed_list is None:
            if mirror.names() is None:
                findings += mirror.find_extra_files(())
            return MirrorReport(findings=sort_findings(findings), files=0, unread=(), in_transition=())
        findings += _check_times(signed_list, now)
        listing_findings: list[MirrorFinding] = []
        files, hidden = reader.read_files(signed_list, now, listing_findings)

        def reread(has_findings: bool) -> dict[str, MirrorFile] | None:
            newer = reader.read([]) if has_findings or listing_findings else None
            if newer is None or newer.version == signed_list.version:
                return None
            listing_findings.clear()
            newer_files, _ = reader.read_files(newer, now, listing_findings)
            return newer_files

        report = compare_files(mirror, files, reread, pool, on_start, on_progress)
    return structs.replace(
        report,
        findings=sort_findings([*findings, *listing_findings, *report.findings]),
        files=report.files + hidden,
        hidden_files=hidden,
        signed_list=signed_list,
    )


def _check_times(signed_list: SignedList, now: datetime) -> Iterator[MirrorFinding]:
    """Yield a finding if the list has expired, or if the list is newer than the clock of this host."""
    shown = format_instant(now)
    if signed_list.expires <= now:
        path = f"{SIGNED}{signed_list.expiring}"
        message = f"{path} expired at {format_instant(signed_list.expires)}, and this host's clock shows {shown}"
        yield MirrorFinding(path=path, fault=MirrorFault.EXPIRED, message=message)
    if signed_list.made > now + TOLERANCE:
        message = (
            f"the list was made at {format_instant(signed_list.made)}, but this host's clock shows {shown} "
            "(correct the clock that is wrong)"
        )
        yield MirrorFinding(path=SIGNED + TIMESTAMP, fault=MirrorFault.EARLY, message=message)


class ListReader:
    """Reads a mirror's signed list, and collects findings about the list."""

    def __init__(self, mirror: FolderMirror | WebMirror, keys: Collection[bytes], pool: ThreadPoolExecutor) -> None:
        self._mirror, self._keys, self._pool = mirror, keys, pool

    def read(self, findings: list[MirrorFinding]) -> SignedList | None:
        """Return the list, or None if the list cannot be trusted.

        If the list is unsigned, return the list anyway, and add a finding if there are keys.
        """
        try:
            return read_list(self._get, self._keys, mapper=self._pool.map)
        except ListProblem as problem:
            findings.append(_build_finding(problem))
            if problem.fault != UNSIGNED:
                return None
        try:
            return read_list(self._get, (), mapper=self._pool.map)
        except ListProblem as problem:
            findings.append(_build_finding(problem))
            return None

    def _get(self, name: str, max_bytes: int) -> bytes | None:
        return self._mirror.get(f"{SIGNED}{name}", max_bytes)

    def read_files(
        self, signed_list: SignedList, now: datetime, findings: list[MirrorFinding]
    ) -> tuple[dict[str, MirrorFile], int]:
        """Return the files in all listings, sorted by path.

        Also return the number of files for which the list contains only the digest of the path.
        """
        files: dict[str, MirrorFile] = {}
        hidden_count = 0
        names = self._mirror.names()
        by_digest = {hash_path(path): path for path in names or ()}
        read_listing = partial(self._read_listing, signed_list)
        for listing, finding in self._pool.map(read_listing, sorted(signed_list.targets)):
            if finding is not None:
                findings.append(finding)
            if listing is None:
                continue
            for path, versions in listing.files.items():
                if is_path_digest(path) and names is None:
                    hidden_count += 1
                else:
                    real_path = by_digest.get(path, path)
                    files[real_path] = build_mirror_file(listing, real_path, versions, now)
            for path in listing.end.files if listing.end is not None else ():
                if path not in listing.files:
                    files[path] = build_mirror_file(listing, path, (), now)
        return dict(sorted(files.items())), hidden_count

    def _read_listing(self, signed_list: SignedList, name: str) -> tuple[Listing | None, MirrorFinding | None]:
        """Return a listing, and a finding if there is a problem with the listing.

        The listing may have a different version from the one in the list.
        """
        target = signed_list.targets[name]
        try:
            data = self._get(name, min(target.size_bytes, MAX_TARGETS_BYTES))
            if data is None:
                raise ListProblem(MISSING, name, "the list contains this listing, but its file does not exist")
            return parse_listing(name, data, target), None
        except ListProblem as problem:
            listing = self._read_unverified_listing(name) if problem.fault == DAMAGED else None
            if listing is None:
                return None, _build_finding(problem)
            return listing, MirrorFinding(path=SIGNED + name, fault=MirrorFault.INCOMPLETE, message=_INCOMPLETE)
        except HostUnreachable as error:
            return None, MirrorFinding(path=SIGNED + name, fault=MirrorFault.UNKNOWN, message=str(error))

    def _read_unverified_listing(self, name: str) -> Listing | None:
        """Read a listing without checking its digest. Return None if the file is not the listing with this name.

        Both a publication and a copy write a listing before they write the list that names it.
        """
        with suppress(ListProblem, HostUnreachable):
            data = self._get(name, MAX_TARGETS_BYTES) or b""
            listing = parse_listing(name, data, Target(compute_digest(data), len(data)))
            if name == (SHARED if listing.server is None else f"servers/{listing.server}.json"):
                return listing
        return None


def build_mirror_file(listing: Listing, path: str, versions: tuple[FileVersion, ...], now: datetime) -> MirrorFile:
    """Return a listed file with the versions that are acceptable at ``now``.

    If the listing's window has ended, the version that follows the window is also acceptable.
    """
    expected = find_versions_around(versions, now)
    end = listing.end
    if end is not None and path in end.files and end.since <= now + TOLERANCE:
        end_version = end.files[path]
        expected = (*expected, end_version if end_version.sha256 is not None else None)
        versions = (*versions, end_version)
    return MirrorFile(path=path, expected=expected, versions=versions, server=listing.server, contents=listing.contents)


def _build_finding(problem: ListProblem) -> MirrorFinding:
    return MirrorFinding(path=problem.path, fault=_LIST_FAULTS[problem.fault], message=problem.message)


def describe_signature(signed_list: SignedList) -> str:
    """Return "Verified", "Unchecked" or "Unsigned" for the signatures of a list."""
    if signed_list.is_verified:
        return "Verified"
    return "Unchecked" if signed_list.is_signed else "Unsigned"


def build_list_details(signed_list: SignedList, now: datetime) -> Mapping[str, object]:
    """Return the facts about a list for the JSON output."""
    return {
        "signature": describe_signature(signed_list),
        "version": signed_list.version,
        "commit": signed_list.commit,
        "gitboot": signed_list.gitboot,
        "made": format_instant(signed_list.made),
        "ageSeconds": max(0, int((now - signed_list.made).total_seconds())),
        "expires": format_instant(signed_list.expires),
    }
