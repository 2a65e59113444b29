"""Artifact checks: whether each file that a boot needs can be fetched and has the expected content, once and again."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from hashlib import blake2b, sha256
from heapq import heapify, heappop, heappush
from threading import Event, Lock
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct, structs

from gitboot.background_threads import BackgroundThread
from gitboot.child_processes import encode
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.jsonio import build_decoder
from gitboot.resolve.server_decision import BootFile, Decisions


class Cache(Protocol):
    """Results by kind and key."""

    def get_many(self, kind: Any, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return the values of those keys that are known."""

    def insert_many(self, kind: Any, rows: Mapping[bytes, bytes]) -> None:
        """Store values that the cache does not have yet."""


class ReadResults:
    """What gitboot read of artifacts, in a cache, by the version that the server of an artifact names."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache, self._lock = cache, Lock()

    def find(self, file: BootFile, head: ArtifactHead) -> Sighting | None:
        """Return what gitboot read of this version of a file. None: it has not read it."""
        if self._cache is None or (key := _build_key(file, head)) is None:
            return None
        with self._lock:
            value = self._cache.get_many(READ, [key]).get(key)
        if value is None or not is_read_result(value):
            return None
        presence, message = _decode(value)
        return Sighting(presence=presence, message=message, head=head)

    def store(self, file: BootFile, sighting: Sighting) -> None:
        if self._cache is not None and (key := _build_key(file, sighting.head)) is not None:
            with self._lock:
                self._cache.insert_many(READ, {key: encode((sighting.presence, sighting.message))})


READ: Final = "artifact"  # the kind of these results


class Presence(StrEnum):
    VERIFIED = "Verified"  # its content was read, and has the digest
    FOUND = "Found"  # something is there of the right size, as far as that is said; it was not read
    MISSING = "Missing"  # whoever has to have it says that there is none
    WRONG = "Wrong"  # what is there has another size or another digest
    UNKNOWN = "Unknown"  # nobody has answered, or not so that anything follows


_decode: Final[Callable[[bytes], tuple[Presence, str]]] = build_decoder(tuple[Presence, str])


def is_read_result(value: bytes) -> bool:
    """Return whether the bytes are a result of reading an artifact."""
    try:
        presence, _ = _decode(value)
    except (msgspec.MsgspecError, ValueError):
        return False
    return presence in (Presence.VERIFIED, Presence.WRONG)


def _build_key(file: BootFile, head: ArtifactHead) -> bytes | None:
    """Return the key of a version of a file. None: the server names no version."""
    if head.version is None:
        return None
    return blake2b(encode((file.url, file.sha256, file.size, head.version)), digest_size=32).digest()


class ArtifactHead(Struct, frozen=True, kw_only=True):
    """What whoever has an artifact says of it."""

    size: int | None = None  # of the whole, in bytes
    content_type: str | None = None
    version: str | None = None  # changes with the content: made of ETag and Last-Modified; None: nothing does
    redirect_url: str | None = None  # the URL to which a redirect led


class Sighting(Struct, frozen=True, kw_only=True):
    """What was seen of one artifact, and by what that is known."""

    presence: Presence
    message: str = ""  # what is wrong, or why nothing is known
    head: ArtifactHead = ArtifactHead()

    @property
    def is_there(self) -> bool:
        return self.presence in (Presence.VERIFIED, Presence.FOUND)

    @property
    def is_absent(self) -> bool:
        """Whether it is known that no machine can boot by it; a server that does not answer is not known to lack it."""
        return self.presence in (Presence.MISSING, Presence.WRONG)


NO_RESULTS: Final = ReadResults()


def check_artifact(
    fetcher: Fetcher,
    file: BootFile,
    before: Sighting | None = None,
    *,
    read: bool,
    results: ReadResults = NO_RESULTS,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Sighting:
    """What is to be seen of an artifact now; ``before`` is what was, and is not read anew while that is the same.

    Nor is what ``results`` have. Without ``read`` only its server's word is taken: that it is there, and its size. Once
    it is ``stopped``, what was not read to its end is unknown.
    """
    try:
        found = compare_head(file, fetcher.head(file.url), before)
        if found.presence is Presence.FOUND:
            found = results.find(file, found.head) or found
        if read and found.presence is Presence.FOUND:
            found = _read_artifact(fetcher, file, is_stopped)
            results.store(file, found)
        return found
    except ArtifactMissing as error:
        return Sighting(presence=Presence.MISSING, message=str(error))
    except HostUnreachable as error:
        return Sighting(presence=Presence.UNKNOWN, message=str(error))


def _read_artifact(fetcher: Fetcher, file: BootFile, is_stopped: Callable[[], bool]) -> Sighting:
    digest, size = sha256(), 0
    most = file.size if file.size is not None else LARGEST_ARTIFACT
    with fetcher.read(file.url) as content:
        for chunk in content.chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > most:
                return Sighting(presence=Presence.WRONG, message=f"it goes on after {most} bytes", head=content.head)
            if is_stopped():
                raise HostUnreachable("it was not read to its end")
    if digest.hexdigest() != file.sha256:
        message = f"its {size} bytes have the sha256 {digest.hexdigest()}, and the image says {file.sha256}"
        return Sighting(presence=Presence.WRONG, message=message, head=content.head)
    return Sighting(presence=Presence.VERIFIED, head=content.head)


def check_artifacts(
    fetcher: Fetcher,
    files: Collection[BootFile],
    results: ReadResults,
    report: Callable[[BootFile, Sighting], None],
    *,
    read: bool,
    parallel: int,
) -> None:
    """Look at each of ``files``, so many at a time; ``seen`` is called as each is done, by this thread.

    What ends it early, a signal or an error of ``seen``, ends what is under way, too.
    """
    stop = Event()
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="artifact")
    try:
        jobs = {
            pool.submit(check_artifact, fetcher, file, read=read, results=results, is_stopped=stop.is_set): file
            for file in files
        }
        for job in as_completed(jobs):
            report(jobs[job], job.result())
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class NeededArtifact(Struct, frozen=True, kw_only=True):
    """One artifact, and who needs it."""

    file: BootFile
    images: tuple[str, ...]
    sites: tuple[str, ...]  # by name; "" is the fleet itself
    servers: int  # that may boot by it; unknown machines are none
    by_firmware: bool  # whether UEFI HTTP boot fetches it itself


def list_artifacts(decisions: Decisions, sites: Mapping[str, str]) -> tuple[NeededArtifact, ...]:
    """Every artifact that any server, or an unknown machine, may be told to fetch, by URL; ``sites`` are by server."""
    uses: defaultdict[BootFile, set[tuple[str, str, str | None, bool]]] = defaultdict(set)
    for server, decision in decisions.servers.items():
        for boot in decision.boots:
            for file in boot.fetched_files:
                uses[file].add((boot.image, sites.get(server, ""), server, boot.http_boot_file == file))
    for boot in (decisions.unknown or {}).values():
        for file in boot.fetched_files:
            uses[file].add((boot.image, "", None, boot.http_boot_file == file))
    return tuple(
        NeededArtifact(
            file=file,
            images=tuple(sorted({image for image, *_ in uses[file]})),
            sites=tuple(sorted({site for _, site, *_ in uses[file]})),
            servers=len({server for _, _, server, _ in uses[file]} - {None}),
            by_firmware=any(by_firmware for *_, by_firmware in uses[file]),
        )
        for file in sorted(uses, key=lambda each: (each.url, each.sha256, each.size or 0))
    )


def group_by_source(artifacts: Iterable[NeededArtifact]) -> tuple[NeededArtifact, ...]:
    """The same, each where a mirror takes it from; what several sites fetch from their own mirrors is one there."""
    found: dict[BootFile, NeededArtifact] = {}
    for each in artifacts:
        if each.file.source is not None:
            file = replace(each.file, url=each.file.source, source=None)
            each = structs.replace(each, file=file, by_firmware=False)  # it is served under another name
        other = found.get(each.file)
        if other is not None:
            each = structs.replace(
                each,
                images=tuple(sorted({*each.images, *other.images})),
                sites=tuple(sorted({*each.sites, *other.sites})),
                servers=each.servers + other.servers,
            )
        found[each.file] = each
    return tuple(sorted(found.values(), key=lambda each: (each.file.url, each.file.sha256, each.file.size or 0)))


LARGEST_ARTIFACT: Final = 32 << 30  # if the document gives no size; an installer's DVD has up to 16 GiB


class Content(NamedTuple):
    """An artifact that is being read."""

    head: ArtifactHead
    offset: int  # in the whole, at which the chunks begin: 0 where no other was to be had
    chunks: Iterator[bytes]


class Fetcher(Protocol):
    """Whoever knows where the artifacts of a kind of URL are; it may be asked from many threads at once.

    It says what is there, and judges nothing: sizes and digests are compared by who asks.
    Both raise `ArtifactMissing` where it is known that there is none, and `HostUnreachable` where nothing is known.
    """

    def head(self, url: str) -> ArtifactHead:
        """What is said of an artifact without reading it."""

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        """Read an artifact from an offset on, or all of it; what ends it too early is raised by the chunks."""


def keep_known_absence(now: Sighting, before: Sighting | None) -> Sighting:
    """What is known after another look: who does not answer any more has not got what was missing."""
    is_silent = now.presence is Presence.UNKNOWN
    return before if is_silent and before is not None and before.is_absent else now


def is_withheld(file: BootFile, sightings: Mapping[BootFile, Sighting] | None) -> bool:
    """Whether no boot is offered that is made by a file. None: nobody looks.

    One of which nothing is known holds nothing back; but one that is mirrored is waited for until it was seen.
    """
    if sightings is None:
        return False
    seen = sightings.get(file)
    if file.source is not None:
        return seen is None or not seen.is_there
    return seen is not None and seen.is_absent


def compare_head(file: BootFile, head: ArtifactHead, before: Sighting | None = None) -> Sighting:
    """What follows from what is said of an artifact, and from its having been read before, while it is the same."""
    if file.size is not None and head.size not in (None, file.size):
        message = f"it has {head.size} bytes, and the image says {file.size}"
        return Sighting(presence=Presence.WRONG, message=message, head=head)
    was_read = before is not None and before.presence in (Presence.VERIFIED, Presence.WRONG)
    if before is not None and was_read and head.version is not None and head.version == before.head.version:
        return Sighting(presence=before.presence, message=before.message, head=head)
    return Sighting(presence=Presence.FOUND, head=head)


_FIRMWARE_TYPES = frozenset({"application/efi", "application/vnd.efi-iso", "application/vnd.efi-img"})


def find_firmware_obstacle(head: ArtifactHead) -> str | None:
    """Why UEFI HTTP boot is likely to refuse what other loaders take; None: nothing is known against it.

    UEFI Specification 2.10, 24.7.3: the type names what is booted, and the size has to be known before the file is
    fetched. No redirect is followed by most firmware.
    """
    if head.redirect_url is not None:
        return f"firmware follows no redirect, and this one leads to {head.redirect_url}"
    if head.size is None:
        return "firmware has to be told the size, and there is no Content-Length"
    given = (head.content_type or "").partition(";")[0].strip().lower()
    if given not in _FIRMWARE_TYPES:
        return f"firmware boots {' or '.join(sorted(_FIRMWARE_TYPES))}, and it is served as {given or 'nothing'}"
    return None


# Checks again and again, beside the reconciles

_FIRST_RETRY_S: Final = 5.0  # after which what is not there is looked at again; twice as long each time
_LONGEST_RETRY_S: Final = 60.0
_PATIENCE_S: Final = 60.0  # for all to be looked at, where somebody waits for that
_JOIN_S: Final = 0.5


class ArtifactWatch(Protocol):
    """Whoever looks at artifacts for an instance."""

    def want(self, files: Collection[BootFile], bases: tuple[str, ...]) -> None:
        """Look at these from now on, and at no others; ``bases`` are the fleet's own base URL, and its sites'."""

    def get_sightings(self) -> Mapping[BootFile, Sighting]:
        """What was seen of them last; the same object for as long as that is the same."""

    def wait(self) -> None:
        """Wait until each was looked at once, or for as long as that is worth."""


class ThreadedArtifactWatch:
    """Looks at artifacts in threads of its own, until it is closed.

    What is there is looked at again after ``every_s``; what is not, sooner, and then less and less often.
    """

    def __init__(
        self,
        fetcher_of: Callable[[tuple[str, ...]], tuple[Fetcher, Callable[[str], bool]]],
        *,
        before: Mapping[BootFile, Sighting],
        results: ReadResults,
        every_s: float,
        wake: Callable[[], None],
        parallel: int = 8,
    ) -> None:
        """``fetcher_of`` base URLs: who fetches, and of which URLs the content is read, not only the head.

        ``before`` is what the instance saw before its start; it counts until this looks at the artifact.
        """
        self._fetcher_of, self._results, self._every_s, self._wake = fetcher_of, results, every_s, wake
        self._before = dict(before)
        self._now = dict(self._before)
        self._sightings: Mapping[BootFile, Sighting] = dict(self._now)  # as it was asked for last
        self._is_news = False  # whether that is another
        self._wanted: frozenset[BootFile] = frozenset()
        self._bases: tuple[str, ...] = ()
        self._queue: list[tuple[float, str, BootFile]] = []  # a heap of what is looked at next, and when
        self._unchecked: frozenset[BootFile] = frozenset()  # what was not looked at since it is wanted
        self._failures: dict[BootFile, int] = {}  # in a row
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [BackgroundThread(self._work, name=f"artifacts {number}") for number in range(1, parallel + 1)]
        for thread in self._threads:
            thread.start()

    def want(self, files: Collection[BootFile], bases: tuple[str, ...]) -> None:
        wanted = frozenset(files)
        with self._changed:
            if wanted == self._wanted and bases == self._bases:
                return
            if bases != self._bases:
                self._bases, (self._fetcher, self._is_read) = bases, self._fetcher_of(bases)
            new = wanted - self._wanted
            self._queue = [each for each in self._queue if each[2] in wanted]
            self._queue += [(0.0, file.url, file) for file in new]
            heapify(self._queue)
            self._unchecked = (self._unchecked & wanted) | new
            self._wanted = wanted
            self._before |= self._now
            self._failures = {file: count for file, count in self._failures.items() if file in wanted}
            for file in self._now.keys() - wanted:
                del self._now[file]
                self._is_news = True
            self._changed.notify_all()

    def get_sightings(self) -> Mapping[BootFile, Sighting]:
        with self._changed:
            if self._is_news:
                self._sightings, self._is_news = dict(self._now), False
            return self._sightings

    def wait(self) -> None:
        """Wait until each was looked at once, but no longer than a minute."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._unchecked, _PATIENCE_S)

    def close(self) -> None:
        """Look at nothing more; what hangs in the network ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S / len(self._threads))

    # In its threads

    def _work(self) -> None:
        while (file := self._next()) is not None:
            before = self._now.get(file) or self._before.get(file)
            try:
                is_read = self._is_read(file.url)
                found = check_artifact(
                    self._fetcher, file, before, read=is_read, results=self._results, is_stopped=lambda: self._closed
                )
            except BaseException as error:  # an artifact that ends a thread is looked at again as others are
                message = f"gitboot could not look at it: {type(error).__name__}"
                self._store_sighting(
                    file, keep_known_absence(Sighting(presence=Presence.UNKNOWN, message=message), before)
                )
                raise
            if self._store_sighting(file, keep_known_absence(found, before)):
                self._wake()

    def _next(self) -> BootFile | None:
        """What is to be looked at now, once there is anything; None: nothing any more."""
        with self._changed:
            while not self._closed:
                wait_s = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    return heappop(self._queue)[2]
                self._changed.wait(wait_s)
        return None

    def _store_sighting(self, file: BootFile, sighting: Sighting) -> bool:
        """Keep what was seen; say whether boots are offered because of it that were not, or the reverse."""
        with self._changed:
            if file not in self._wanted or self._closed:
                return False
            failures = 0 if sighting.is_there else self._failures.get(file, 0) + 1
            self._failures[file], rest_s = failures, self._every_s
            if failures:
                rest_s = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 20), _LONGEST_RETRY_S, rest_s)
            heappush(self._queue, (time.monotonic() + rest_s, file.url, file))
            self._unchecked -= {file}
            self._changed.notify_all()
            if self._now.get(file) == sighting:
                return False
            held = is_withheld(file, self._now)
            self._now[file] = sighting
            self._is_news = True
            return held != is_withheld(file, self._now)
