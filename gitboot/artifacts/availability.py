"""Artifact checks: verify periodically that boot files are available and have the digests stated in their images."""

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
from itertools import chain, count
from threading import Event, Lock
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from gitboot.background_threads import BackgroundThread
from gitboot.child_processes import encode
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.jsonio import Digest, build_decoder
from gitboot.resolve.server_decision import Boot, BootFile, Decisions
from gitboot.text import redact_url

# in bytes: the limit for a file if its image does not state the size. An installer DVD has up to 16 GiB
LARGEST_ARTIFACT: Final = 32 << 30
CHUNK: Final = 1 << 20  # in bytes: the maximum size of one chunk of content


# Sources of artifacts


class ArtifactHead(Struct, frozen=True, kw_only=True):
    """The metadata of an artifact, as reported by its web server or registry."""

    size: int | None = None  # the size of the file in bytes; None: the server does not report it
    content_type: str | None = None
    # A text from ETag and Last-Modified, which changes with the content. None: the server sends neither header.
    version: str | None = None
    redirect_url: str | None = None  # the URL after redirects; None: the server did not redirect


class Content(NamedTuple):
    """The content of an artifact, as an iterator over chunks."""

    head: ArtifactHead
    offset: int  # the position of the first chunk in the file; 0 if the server does not support ranges
    chunks: Iterator[bytes]


class Fetcher(Protocol):
    """Reads artifacts from one kind of source, such as web servers. Fetchers are thread-safe.

    A fetcher does not verify sizes or digests. Both methods raise `ArtifactMissing` if the artifact does not exist, and
    `HostUnreachable` if the fetcher cannot determine whether the artifact exists.
    """

    def head(self, url: str) -> ArtifactHead:
        """Return the metadata of an artifact without reading the content."""

    def read(self, url: str, offset: int = 0) -> AbstractContextManager[Content]:
        """Open an artifact and read from an offset, or from the start if the server does not support ranges.

        If the connection breaks later, the iterator over the chunks raises `HostUnreachable`.
        """


# Results of checks


class Presence(StrEnum):
    VERIFIED = "Verified"  # gitboot read the content, and its digest is correct
    FOUND = "Found"  # the file exists with the expected size, if the server reports a size; gitboot did not read it
    MISSING = "Missing"  # the server reports that the file does not exist
    WRONG = "Wrong"  # the size or the digest of the file differs from the one in its image
    UNSIGNED = "Unsigned"  # the fleet requires a signature, and no trusted key has verified the file
    UNKNOWN = "Unknown"  # the server does not respond, or its response does not show whether the file exists


class FileSigner(Struct, frozen=True, kw_only=True):
    """The trusted key that signed a file, as it was when gitboot verified the signature."""

    key: str  # the same value as `gitboot.artifacts.signatures.ImageSigner.key`
    name: str  # the name to show to people
    key_digest: Digest  # the digest of the trusted key, which changes if the key is revoked or extended


class UnverifiedFile(Exception):
    """Raised if no trusted key has verified a file that must be signed. The message is a sentence with the reason."""


class Sighting(Struct, frozen=True, kw_only=True):
    """The result of one check of an artifact."""

    presence: Presence
    message: str = ""  # describes the fault, or why the state is unknown; "" if there is no fault
    head: ArtifactHead = ArtifactHead()
    signer: FileSigner | None = None  # None: the fleet does not require a signature, or gitboot never verified the file

    @property
    def is_there(self) -> bool:
        return self.presence in (Presence.VERIFIED, Presence.FOUND)

    @property
    def is_known(self) -> bool:
        """Whether the state of the artifact or the signer of the file is known."""
        return self.presence is not Presence.UNKNOWN or self.signer is not None

    @property
    def is_absent(self) -> bool:
        """Whether the artifact is missing, wrong or unsigned. This is False if the server did not respond."""
        return self.presence in (Presence.MISSING, Presence.WRONG, Presence.UNSIGNED)


# Cached results


class Cache(Protocol):
    """A store of cached results. A kind and a key identify each result."""

    def get_many(self, kind: Any, keys: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return the cached values. Keys that are not in the cache are omitted."""

    def insert_many(self, kind: Any, rows: Mapping[bytes, bytes]) -> None:
        """Add values to the cache. Existing keys keep their values."""


READ: Final = "artifact"  # the kind of these results in the cache


class ReadResults:
    """Cached results of reading artifacts. Each key includes the version that the web server or registry reports."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache, self._lock = cache, Lock()

    def find(self, file: BootFile, head: ArtifactHead) -> Sighting | None:
        """Return the cached result for this version of a file, or None if gitboot has not read the version."""
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


_decode: Final[Callable[[bytes], tuple[Presence, str]]] = build_decoder(tuple[Presence, str])


def is_read_result(value: bytes) -> bool:
    """Return whether a cached value is a well-formed result of reading an artifact."""
    try:
        presence, _ = _decode(value)
    except (msgspec.MsgspecError, ValueError):
        return False
    return presence in (Presence.VERIFIED, Presence.WRONG)


def _build_key(file: BootFile, head: ArtifactHead) -> bytes | None:
    if head.version is None:
        return None
    return blake2b(encode((file.url, file.sha256, file.size, head.version)), digest_size=32).digest()


NO_RESULTS: Final = ReadResults()


# Checks


def check_artifact(
    fetcher: Fetcher,
    file: BootFile,
    before: Sighting | None = None,
    *,
    read: bool,
    results: ReadResults = NO_RESULTS,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Sighting:
    """Check an artifact. Do not read a version again if ``before`` or ``results`` already contains its result.

    If ``read`` is False, or if no document states the digest, only send a HEAD request to check that the file exists
    and has the expected size. If ``is_stopped`` returns True while the file is being read, the result is
    `Presence.UNKNOWN`.
    """
    try:
        sighting = compare_head(file, fetcher.head(file.url), before)
        if sighting.presence is Presence.FOUND:
            sighting = results.find(file, sighting.head) or sighting
        if read and sighting.presence is Presence.FOUND and file.sha256 is not None:
            sighting = _read_artifact(fetcher, file, is_stopped)
            results.store(file, sighting)
        return sighting
    except ArtifactMissing as error:
        return Sighting(presence=Presence.MISSING, message=str(error))
    except HostUnreachable as error:
        return Sighting(presence=Presence.UNKNOWN, message=str(error))


def _read_artifact(fetcher: Fetcher, file: BootFile, is_stopped: Callable[[], bool]) -> Sighting:
    digest, size = sha256(), 0
    max_bytes = file.size if file.size is not None else LARGEST_ARTIFACT
    with fetcher.read(file.url) as content:
        for chunk in content.chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > max_bytes:
                return Sighting(
                    presence=Presence.WRONG, message=f"the file is larger than {max_bytes} bytes", head=content.head
                )
            if is_stopped():
                raise HostUnreachable("the check was stopped before it had read the whole file")
    if digest.hexdigest() == file.sha256:
        return Sighting(presence=Presence.VERIFIED, head=content.head)
    return Sighting(
        presence=Presence.WRONG,
        message=f"the file ({size} bytes) has the sha256 {digest.hexdigest()}, but the image specifies {file.sha256}",
        head=content.head,
    )


def check_artifacts(
    fetcher: Fetcher,
    files: Collection[BootFile],
    results: ReadResults,
    report: Callable[[BootFile, Sighting], None],
    *,
    read: bool,
    parallel: int,
) -> None:
    """Check the files, up to ``parallel`` at a time, and call ``report`` with each result in the calling thread.

    A signal or an exception from ``report`` also stops the checks that are in progress.
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


def compare_head(file: BootFile, head: ArtifactHead, before: Sighting | None = None) -> Sighting:
    """Compare the metadata of an artifact with its image.

    If gitboot has already read this version of the artifact, return the result in ``before``.
    """
    if file.size is not None and head.size not in (None, file.size):
        return Sighting(
            presence=Presence.WRONG,
            message=f"the file is {head.size} bytes long, but the image specifies {file.size}",
            head=head,
        )
    was_read = before is not None and before.presence in (Presence.VERIFIED, Presence.WRONG)
    if before is not None and was_read and head.version is not None and head.version == before.head.version:
        return Sighting(presence=before.presence, message=before.message, head=head)
    return Sighting(presence=Presence.FOUND, head=head)


_FIRMWARE_TYPES = frozenset({"application/efi", "application/vnd.efi-iso", "application/vnd.efi-img"})
_FIRMWARE_EXTENSIONS = (".efi", ".iso", ".img")


def find_firmware_obstacle(url: str, head: ArtifactHead) -> str | None:
    """Return why firmware would probably reject an artifact in UEFI HTTP boot, or None if no reason is known.

    UEFI Specification 2.10, section 24.7.3: the content type determines the kind of file, and the size must be known
    before the download. EDK II uses the extension in the URL if it does not recognize the whole content type
    (NetworkPkg/HttpBootDxe, HttpBootCheckImageType). Most firmware does not follow redirects.
    """
    if head.redirect_url is not None:
        shown_url = redact_url(head.redirect_url, may_be_path=False)
        return f"firmware does not follow redirects, but this URL redirects to {shown_url}"
    if head.size is None:
        return "firmware needs the file size, but the response has no Content-Length"
    media_type = (head.content_type or "").strip().lower()
    if media_type not in _FIRMWARE_TYPES and not urlsplit(url).path.lower().endswith(_FIRMWARE_EXTENSIONS):
        expected = " or ".join(sorted(_FIRMWARE_TYPES))
        return (
            f"firmware needs the Content-Type {expected}, but it is {media_type or 'missing'}, and the URL does not "
            "end in .efi, .iso or .img"
        )
    return None


# Effects of results


def keep_known_state(file: BootFile, current: Sighting, before: Sighting | None) -> Sighting:
    """Return the new result, or the result ``before`` if the server does not respond now.

    An absent artifact stays absent. A mirrored artifact stays available, because gitboot would withhold its boots if
    its state were unknown.
    """
    if current.presence is not Presence.UNKNOWN or before is None:
        return current
    if before.is_there and file.source is not None:
        return structs.replace(before, signer=current.signer)
    if not before.is_absent or (before.presence is Presence.UNSIGNED and current.signer is not None):
        return current
    return before


def is_withheld(file: BootFile, sightings: Mapping[BootFile, Sighting] | None) -> bool:
    """Return whether gitboot withholds the boots that need a file. ``sightings`` is None if artifact checks are off.

    If the state of an artifact is unknown, gitboot serves the boots that need the artifact. There are two exceptions:

    - If the artifact is mirrored, gitboot withholds the boots until a check has found the artifact.
    - If the artifact must be signed, gitboot withholds the boots until a trusted key has verified the artifact, even if
      artifact checks are off.
    """
    if sightings is None:
        return file.proof is not None
    sighting = sightings.get(file)
    if file.proof is not None and (sighting is None or sighting.signer is None):
        return True
    if file.source is not None:
        return sighting is None or not sighting.is_there
    return sighting is not None and sighting.is_absent


# Artifacts of a fleet


class NeededArtifact(Struct, frozen=True, kw_only=True):
    """An artifact and the number of servers that need this artifact."""

    file: BootFile
    images: tuple[str, ...]
    sites: tuple[str, ...]  # names of the sites that need the artifact; "" stands for servers without a site
    servers: int  # the number of servers that may boot from the artifact, not counting unknown machines
    by_firmware: bool  # whether firmware downloads the artifact directly by UEFI HTTP boot


class _ArtifactUse(NamedTuple):
    image: str
    site: str
    server: str | None  # None: an unknown machine
    by_firmware: bool


def list_artifacts(decisions: Decisions, sites: Mapping[str, str]) -> tuple[NeededArtifact, ...]:
    """Return every artifact that a server or an unknown machine may fetch, sorted by URL.

    ``sites`` maps the names of servers to the names of their sites.
    """
    uses: defaultdict[BootFile, set[_ArtifactUse]] = defaultdict(set)
    boots: Iterator[tuple[str | None, Boot]] = chain(
        ((server, boot) for server, decision in decisions.servers.items() for boot in decision.boots),
        ((None, boot) for boot in (decisions.unknown or {}).values()),
    )
    for server, boot in boots:
        site = sites.get(server, "") if server is not None else ""
        for file in boot.fetched_files:
            uses[file.without_proof()].add(_ArtifactUse(boot.image, site, server, boot.http_boot_file == file))
    return tuple(
        NeededArtifact(
            file=file,
            images=tuple(sorted({use.image for use in uses[file]})),
            sites=tuple(sorted({use.site for use in uses[file]})),
            servers=len({use.server for use in uses[file] if use.server is not None}),
            by_firmware=any(use.by_firmware for use in uses[file]),
        )
        for file in sorted(uses, key=_get_file_order)
    )


def _get_file_order(file: BootFile) -> tuple[str, str, int]:
    return file.url, file.sha256 or "", file.size or 0


def group_by_source(artifacts: Iterable[NeededArtifact]) -> tuple[NeededArtifact, ...]:
    """Return the artifacts with source URLs in place of mirror URLs.

    If several sites fetch an artifact from their own mirrors, the result contains the artifact only once.
    """
    by_file: dict[BootFile, NeededArtifact] = {}
    for artifact in artifacts:
        file, by_firmware = artifact.file, artifact.by_firmware
        if file.source is not None:
            file = replace(file, url=file.source, source=None)
            by_firmware = False  # firmware fetches the mirror's URL instead
        other = by_file.get(file)
        by_file[file] = NeededArtifact(
            file=file,
            images=tuple(sorted({*artifact.images, *(other.images if other is not None else ())})),
            sites=tuple(sorted({*artifact.sites, *(other.sites if other is not None else ())})),
            servers=artifact.servers + (other.servers if other is not None else 0),
            by_firmware=by_firmware,
        )
    return tuple(by_file[file] for file in sorted(by_file, key=_get_file_order))


# Periodic checks in background threads

_FIRST_RETRY_S: Final = 5.0  # the delay before the first retry; each further failure doubles the delay
_LONGEST_RETRY_S: Final = 60.0
_LONGEST_PROOF_RETRY_S: Final = 1800.0
_MAX_WAIT_S: Final = 60.0  # how long `wait` waits for all checks together
_JOIN_S: Final = 0.5


class ArtifactWatch(Protocol):
    """Keeps the results of artifact checks up to date for an instance."""

    def watch_files(self, files: Collection[BootFile], base_urls: tuple[str, ...]) -> None:
        """Replace the set of artifacts to check. ``base_urls`` are the base URLs of the fleet and of all sites."""

    def get_sightings(self) -> Mapping[BootFile, Sighting]:
        """Return the latest results. If the results have not changed, return the same object as the previous call."""

    def wait(self) -> None:
        """Wait until each artifact has been checked once, or until the wait times out."""


class ThreadedArtifactWatch:
    """Checks artifacts in background threads until `close` is called.

    The threads check an available artifact again after ``every_s`` seconds. They retry other artifacts earlier, with
    exponential backoff.
    """

    def __init__(
        self,
        build_fetcher: Callable[[tuple[str, ...]], tuple[Fetcher, Callable[[str], bool]]],
        *,
        before: Mapping[BootFile, Sighting],
        results: ReadResults,
        every_s: float,
        wake: Callable[[], None],
        verify: Callable[[BootFile, FileSigner | None, tuple[str, ...]], FileSigner],
        parallel: int = 8,
    ) -> None:
        """Start the threads that check artifacts.

        ``before`` contains the results of the previous process. Each of these results applies until gitboot has checked
        the artifact. ``verify`` checks the signature of a file. Its arguments are the file, the signer that an earlier
        verification found (or None), and the base URLs. ``verify`` returns the signer, or raises `UnverifiedFile`.
        """
        self._build_fetcher, self._results, self._every_s, self._wake = build_fetcher, results, every_s, wake
        self._verify = verify
        self._previous, self._current = dict(before), dict(before)
        self._sightings: Mapping[BootFile, Sighting] = dict(before)  # the object that `get_sightings` returned last
        self._results_changed = False  # whether the results have changed since the last call to `get_sightings`
        self._wanted: frozenset[BootFile] = frozenset()
        self._bases: tuple[str, ...] = ()
        # A heap of the next checks: time, URL, and a number, because several files may have the same URL.
        self._queue: list[tuple[float, str, int, BootFile]] = []
        self._numbers = count()
        self._unchecked: frozenset[BootFile] = frozenset()  # wanted artifacts that have not been checked yet
        self._failures: dict[BootFile, int] = {}  # number of consecutive failures
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            BackgroundThread(self._check_files, name=f"artifacts {number}") for number in range(1, parallel + 1)
        ]
        for thread in self._threads:
            thread.start()

    def watch_files(self, files: Collection[BootFile], base_urls: tuple[str, ...]) -> None:
        wanted = frozenset(files)
        with self._changed:
            if wanted == self._wanted and base_urls == self._bases:
                return
            if base_urls != self._bases:
                self._fetcher, self._should_read = self._build_fetcher(base_urls)
                self._bases = base_urls
            new = wanted - self._wanted
            self._queue = [each for each in self._queue if each[3] in wanted]
            self._queue += [(0.0, file.url, next(self._numbers), file) for file in new]
            heapify(self._queue)
            self._unchecked = (self._unchecked & wanted) | new
            self._wanted = wanted
            self._previous |= self._current
            self._failures = {file: count for file, count in self._failures.items() if file in wanted}
            for file in self._current.keys() - wanted:
                del self._current[file]
                self._results_changed = True
            self._changed.notify_all()

    def get_sightings(self) -> Mapping[BootFile, Sighting]:
        with self._changed:
            if self._results_changed:
                self._sightings = dict(self._current)
                self._results_changed = False
            return self._sightings

    def wait(self) -> None:
        """Wait until each artifact has been checked once, but no longer than a minute."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._unchecked, _MAX_WAIT_S)

    def close(self) -> None:
        """Stop all checks. A thread that is waiting for the network ends when the process exits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S / len(self._threads))

    # Run by the background threads

    def _check_files(self) -> None:
        while (file := self._wait_for_file()) is not None:
            before = self._current.get(file) or self._previous.get(file)
            try:
                sighting = check_artifact(
                    self._fetcher,
                    file,
                    before,
                    read=self._should_read(file.url),
                    results=self._results,
                    is_stopped=lambda: self._closed,
                )
                if file.proof is not None:
                    sighting = self._add_signer(file, sighting, before)
            # an unexpected error counts as a failed check, so that the thread continues and repeats the check later
            except BaseException as error:
                failed = Sighting(
                    presence=Presence.UNKNOWN,
                    message=f"the check failed with {type(error).__name__}",
                    signer=before.signer if before is not None else None,
                )
                self._store_sighting(file, keep_known_state(file, failed, before))
                raise
            if self._store_sighting(file, keep_known_state(file, sighting, before)):
                self._wake()

    def _add_signer(self, file: BootFile, sighting: Sighting, before: Sighting | None) -> Sighting:
        """Add the signer of the file to the result of a check.

        A file that gitboot has verified remains verified if the server stops responding.
        """
        known = before.signer if before is not None else None
        if sighting.presence in (Presence.MISSING, Presence.WRONG):
            return structs.replace(sighting, signer=known)
        try:
            return structs.replace(sighting, signer=self._verify(file, known, self._bases))
        except UnverifiedFile as error:
            return structs.replace(sighting, presence=Presence.UNSIGNED, message=str(error))

    def _wait_for_file(self) -> BootFile | None:
        """Wait until an artifact is due, and return it. Return None after `close`."""
        with self._changed:
            while not self._closed:
                wait_s = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    return heappop(self._queue)[3]
                self._changed.wait(wait_s)
        return None

    def _store_sighting(self, file: BootFile, sighting: Sighting) -> bool:
        """Store the result of a check, and return whether the result changes which boots gitboot withholds."""
        with self._changed:
            if file not in self._wanted or self._closed:
                return False
            failures = 0 if sighting.is_there else self._failures.get(file, 0) + 1
            self._failures[file] = failures
            delay_s = self._compute_delay_s(sighting, failures)
            heappush(self._queue, (time.monotonic() + delay_s, file.url, next(self._numbers), file))
            self._unchecked -= {file}
            self._changed.notify_all()
            if self._current.get(file) == sighting:
                return False
            was_withheld = is_withheld(file, self._current)
            self._current[file] = sighting
            self._results_changed = True
            return was_withheld != is_withheld(file, self._current)

    def _compute_delay_s(self, sighting: Sighting, failures: int) -> float:
        """Return the time until the next check of an artifact after this number of consecutive failures."""
        if not failures:
            return self._every_s
        # A signature check may download the whole file, so gitboot waits longer before it repeats the check.
        is_unsigned = sighting.presence is Presence.UNSIGNED
        longest_s = _LONGEST_PROOF_RETRY_S if is_unsigned else min(_LONGEST_RETRY_S, self._every_s)
        return min(min(_FIRST_RETRY_S, self._every_s) * 2.0 ** min(failures - 1, 20), longest_s)
