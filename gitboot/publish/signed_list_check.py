"""Signed mirror: compare a mirror with the signed list that it carries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from gitboot.errors import HostUnreachable
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import digest_of
from gitboot.publish.mirror_comparison import (
    FolderMirror,
    MirrorAnswer,
    MirrorFault,
    MirrorFile,
    MirrorFinding,
    WebMirror,
    judge,
    judge_absence,
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
    hashed_path,
    is_hashed,
    parse_listing,
    read_list,
    versions_around,
)

_BATCH: Final = 4096  # files that are given to threads at a time
_LATER: Final = "it counts at another time"
_INCOMPLETE: Final = (
    "the list names another version of this listing: a publication or a copy has not ended, or somebody has changed "
    "the mirror. Run the command again; if this finding stays, let gitboot publish and the mirror copy again"
)
_LIST_FAULTS: Final = {
    MISSING: MirrorFault.MISSING,
    UNSIGNED: MirrorFault.UNSIGNED,
    OLDER: MirrorFault.STALE,
    "BadSignature": MirrorFault.BAD_SIGNATURE,
    DAMAGED: MirrorFault.DAMAGED,
}


class ListedFile(NamedTuple):
    """A file of a listing at one time."""

    path: str  # below boot/
    right: tuple[FileVersion | None, ...]  # what it may be now, the version of now first; None: absent
    versions: tuple[FileVersion, ...]  # all that the list names
    server: str | None = None  # whose file it is; None: it belongs to no server
    contents: Mapping[str, str] = MappingProxyType({})  # texts of the listing, by sha256


class _Judged(NamedTuple):
    """What a path of a mirror turns out to be."""

    finding: MirrorFinding | None
    is_turning: bool = False  # whether it is right, and is the version before or after the one of now


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorReport:
    """A mirror as it compares with its list."""

    signed: SignedList | None  # None: there is no list that can be read
    findings: tuple[MirrorFinding, ...]  # sorted by path
    files: int  # that the list names, those included whose paths have tokens
    unread: tuple[str, ...]  # paths that only machines fetch
    hidden: int  # files whose path the list does not show
    turning: tuple[str, ...]  # paths that are about to turn, or have just turned


def compare_with_list(
    mirror: FolderMirror | WebMirror,
    keys: Collection[bytes],
    now: datetime,
    *,
    parallel: int,
    begun: Callable[[int], None],
    done: Callable[[int], None],
) -> MirrorReport:
    """Return what is wrong with a mirror by its own list, as of ``now``.

    ``keys`` are public keys of the list's root; without keys its signatures are not checked. If the list is replaced
    meanwhile, the paths with findings are compared again. Raises `HostUnreachable`.
    """
    with ThreadPoolExecutor(parallel, thread_name_prefix="mirror") as pool:
        found = [*mirror.cached()]
        reader = ListReader(mirror, keys, pool)
        if (signed := reader.read(found)) is None:
            if mirror.names() is None:
                found += mirror.besides(())
            return MirrorReport(signed=None, findings=_sorted(found), files=0, unread=(), hidden=0, turning=())
        if signed.expires <= now:
            until = f"was to be renewed before {format_instant(signed.expires)}"
            message = f"{SIGNED}{signed.expiring} {until}, and the clock of this host shows {format_instant(now)}"
            found.append(MirrorFinding(path=f"{SIGNED}{signed.expiring}", fault=MirrorFault.EXPIRED, message=message))
        if signed.made > now + TOLERANCE:
            made = f"the list was made at {format_instant(signed.made)}"
            message = (
                f"{made}, and the clock of this host shows {format_instant(now)} (correct the clock that is wrong)"
            )
            found.append(MirrorFinding(path=SIGNED + TIMESTAMP, fault=MirrorFault.EARLY, message=message))
        listed: list[MirrorFinding] = []
        files, hidden = reader.files(signed, now, listed)
        read = {path: file for path, file in files.items() if mirror.reads(path)}
        begun(len(read))
        compared = [*mirror.besides(files)]
        turning = set[str]()
        for file, judged in _judged(mirror, read.values(), pool, done):
            compared += [judged.finding] if judged.finding is not None else []
            turning |= {file.path} if judged.is_turning else set()
        is_wrong = bool(listed or compared)
        if is_wrong and (newer := reader.read([])) is not None and newer.version != signed.version:
            listed = []
            again, _ = reader.files(newer, now, listed)
            changed = {path for each in compared if again.get(path := each.path) != files.get(path)}
            compared = [each for each in compared if each.path not in changed]
            changed |= {path for path in again.keys() - files.keys() if mirror.reads(path)}
            for _, judged in _judged(
                mirror, (again[path] for path in sorted(changed & again.keys())), pool, lambda _: None
            ):
                compared += [judged.finding] if judged.finding is not None else []
    return MirrorReport(
        signed=signed,
        findings=_sorted([*found, *listed, *compared]),
        files=len(files) + hidden,
        unread=tuple(sorted(files.keys() - read.keys())),
        hidden=hidden,
        turning=tuple(sorted(turning)),
    )


def _sorted(findings: Iterable[MirrorFinding]) -> tuple[MirrorFinding, ...]:
    """Return findings by path, those of the list first: a wrong clock or a list of another time explains the others."""
    return tuple(sorted(set(findings), key=lambda each: (not each.path.startswith(SIGNED), each.path, each.fault)))


class ListReader:
    """Reads the list of a mirror, and notes what is wrong with it."""

    def __init__(self, mirror: FolderMirror | WebMirror, keys: Collection[bytes], pool: ThreadPoolExecutor) -> None:
        self._mirror, self._keys, self._pool = mirror, keys, pool

    def read(self, found: list[MirrorFinding]) -> SignedList | None:
        """Return the list; None if it cannot be trusted. An unsigned one is read, and reported if a key is named."""
        try:
            return read_list(self._get, self._keys, each=self._pool.map)
        except ListProblem as problem:
            found.append(_finding(problem))
            if problem.fault != UNSIGNED:
                return None
        try:
            return read_list(self._get, (), each=self._pool.map)
        except ListProblem as problem:
            found.append(_finding(problem))
            return None

    def _get(self, name: str, max_bytes: int) -> bytes | None:
        return self._mirror.get(f"{SIGNED}{name}", max_bytes)

    def files(self, signed: SignedList, now: datetime, found: list[MirrorFinding]) -> tuple[dict[str, ListedFile], int]:
        """Return the files of all listings, by path, sorted, and how many files have no path that is shown."""
        files: dict[str, ListedFile] = {}
        hidden, names = 0, self._mirror.names()
        by_digest = {hashed_path(path): path for path in names or ()}
        for listing, finding in self._pool.map(lambda name: self._listing(signed, name), sorted(signed.targets)):
            found += [finding] if finding is not None else []
            if listing is None:
                continue
            for path, versions in listing.files.items():
                if is_hashed(path) and names is None:
                    hidden += 1
                    continue
                shown = by_digest.get(path, path)
                files[shown] = listed_file(listing, shown, versions, now)
            for path in listing.end.files if listing.end is not None else ():
                if path not in listing.files:
                    files[path] = listed_file(listing, path, (), now)
        return dict(sorted(files.items())), hidden

    def _listing(self, signed: SignedList, name: str) -> tuple[Listing | None, MirrorFinding | None]:
        """Return a listing, and what is wrong with it, also one of another version than the list names."""
        target = signed.targets[name]
        try:
            data = self._get(name, min(target.size_bytes, MAX_TARGETS_BYTES))
            if data is None:
                raise ListProblem(MISSING, name, "it is absent, and the list names it")
            return parse_listing(name, data, target), None
        except ListProblem as problem:
            listing = self._other_version(name) if problem.fault == DAMAGED else None
            if listing is None:
                return None, _finding(problem)
            return listing, MirrorFinding(path=SIGNED + name, fault=MirrorFault.INCOMPLETE, message=_INCOMPLETE)
        except HostUnreachable as error:
            return None, MirrorFinding(path=SIGNED + name, fault=MirrorFault.UNKNOWN, message=str(error))

    def _other_version(self, name: str) -> Listing | None:
        """Return a listing of this server, whatever its digest; None: it is no listing.

        A publication, and a copy of it, writes a listing before the list that names it.
        """
        with suppress(ListProblem, HostUnreachable):
            data = self._get(name, MAX_TARGETS_BYTES) or b""
            listing = parse_listing(name, data, Target(digest_of(data), len(data)))
            if name == (SHARED if listing.server is None else f"servers/{listing.server}.json"):
                return listing
        return None


def listed_file(listing: Listing, path: str, versions: tuple[FileVersion, ...], now: datetime) -> ListedFile:
    """Return a file of a listing at ``now``. A copy that has ended a window by itself is right, too."""
    right, end = versions_around(versions, now), listing.end
    if end is None or path not in end.files or end.since > now + TOLERANCE:
        return ListedFile(path, right, versions, listing.server, listing.contents)
    ended = end.files[path] if end.files[path].sha256 is not None else None
    return ListedFile(path, (*right, ended), (*versions, end.files[path]), listing.server, listing.contents)


def _finding(problem: ListProblem) -> MirrorFinding:
    return MirrorFinding(path=problem.path, fault=_LIST_FAULTS[problem.fault], message=problem.message)


def _judged(
    mirror: FolderMirror | WebMirror, files: Iterable[ListedFile], pool: ThreadPoolExecutor, done: Callable[[int], None]
) -> Iterator[tuple[ListedFile, _Judged]]:
    def look(file: ListedFile) -> _Judged:
        sizes = {each.size_bytes for each in file.versions}
        return judge_listed(file, mirror.read(file.path, sizes or {0}))

    left = iter(files)
    while batch := list(islice(left, _BATCH)):
        for file, judged in zip(batch, pool.map(look, batch), strict=True):
            done(1)
            yield file, judged


def judge_listed(file: ListedFile, answer: MirrorAnswer) -> _Judged:
    """Return what is wrong with an answer for a file that the list names."""
    is_absent = answer.status in (404, 410)
    if is_absent and None in file.right:
        return _Judged(None, is_turning=file.right[0] is not None)
    present = [each for each in file.right if each is not None]
    if not present:
        return _Judged(judge_absence(file.path, answer, _LATER))
    version = next((each for each in present if each.sha256 == answer.sha256), present[0])
    assert version.sha256 is not None  # noqa: S101 - a version that is present has a digest
    wanted = MirrorFile(path=file.path, sha256=version.sha256, size=version.size_bytes, modified=None)
    finding = judge(wanted, answer)
    if finding is None:
        return _Judged(None, is_turning=version != file.right[0])
    for number, other in enumerate(file.versions if finding.fault is MirrorFault.WRONG else ()):
        if other not in present and other.sha256 is not None and other.sha256 == answer.sha256:
            until = file.versions[number + 1].since if number + 1 < len(file.versions) else None
            times = (("from", other.since), ("until", until))
            counts = " ".join(f"{word} {format_instant(at)}" for word, at in times if at is not None) or "of before"
            message = f"it has the version {counts}"
            return _Judged(MirrorFinding(path=file.path, fault=MirrorFault.STALE, message=message))
    return _Judged(finding)


def signature_of(signed: SignedList) -> str:
    """Return whether a list is signed, and whether its signatures were checked."""
    if signed.is_verified:
        return "Verified"
    return "Unchecked" if signed.is_signed else "Unsigned"


def facts_of(signed: SignedList, now: datetime) -> Mapping[str, object]:
    """Return what JSON shows of a list."""
    return {
        "signature": signature_of(signed),
        "version": signed.version,
        "commit": signed.commit,
        "gitboot": signed.gitboot,
        "made": format_instant(signed.made),
        "ageSeconds": max(0, int((now - signed.made).total_seconds())),
        "expires": format_instant(signed.expires),
    }
