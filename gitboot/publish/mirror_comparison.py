"""Mirror comparison: fetch the files of a mirror, and compare them with the output tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from msgspec import Struct, field, structs

from gitboot import __version__
from gitboot.errors import HostUnreachable, PublishError
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.mirror_program import find_artifact_digest, iterate_paths
from gitboot.publish.signed_list_reader import MAX_TIMESTAMP_BYTES, SIGNED, TIMESTAMP, FileVersion, SignedList
from gitboot.publish.tree_reader import read_manifest
from gitboot.render.paths import (
    BOOT,
    CHECK,
    CHECKER,
    TABLE,
    Role,
    find_content_type,
    find_path_kind,
    is_content,
    is_immutable,
    parse_request_path,
)
from gitboot.text import redact_url

UNKNOWN_MACHINE: Final = "v1/boot/02-00-00-00-00-00/boot.ipxe"  # a MAC address that no network card has
GRUB: Final = "grub.cfg"
_GONE: Final = (404, 410)
_COMMENT: Final = sha256(b"#").hexdigest()  # of the body of a 404 (see gitboot.render.web_servers)


class MirrorFault(StrEnum):
    """A kind of fault in one file on a mirror."""

    MISSING = "Missing"
    STALE = "Stale"  # the mirror has an earlier version
    WRONG = "Wrong"  # the mirror has different content
    EXTRA = "Extra"  # the file is not published
    REDIRECTED = "Redirected"
    MISTYPED = "Mistyped"
    UNSIZED = "Unsized"
    CACHEABLE = "Cacheable"
    UNDATED = "Undated"  # the modification time differs from that of the published file
    CACHED = "Cached"  # a cache served a stored version
    UNSIGNED = "Unsigned"  # the list has no signatures, but the operator passed a key
    BAD_SIGNATURE = "BadSignature"  # a part of the list lacks valid signatures of the required keys
    DAMAGED = "Damaged"  # a part of the list is malformed, or belongs to another list
    INCOMPLETE = "Incomplete"  # a listing has another version than the list states
    EXPIRED = "Expired"  # the list was not renewed in time
    EARLY = "Early"  # the list is newer than the clock of this host
    UNKNOWN = "Unknown"  # the mirror did not respond, or the response does not show whether the file is correct


class MirrorFile(Struct, frozen=True, kw_only=True):
    """A file that a mirror must contain, with the versions that are acceptable at or near the current time."""

    path: str  # below boot/
    expected: tuple[FileVersion | None, ...]  # allowed versions, the current version first; None: absent
    versions: tuple[FileVersion, ...]  # all versions that the tree or the list contains
    modified: int | None = None  # modification time in seconds since 1970; None: gitboot does not compare times
    keeps_time: bool = True  # whether a mirror must keep this time, so that its access log is evidence
    server: str | None = None  # the server to which the file belongs; None: no server, or unknown
    contents: Mapping[str, str] = field(default_factory=dict)  # the texts of versions that are not in OUTPUT, by sha256

    @property
    def is_evidence(self) -> bool:
        """Return whether a complete GET of the file is evidence of a boot.

        In that case, only machines may request the file.
        """
        kind = find_path_kind(BOOT + self.path)
        return (
            kind is not None and kind.role is not Role.OFFER and (self.keeps_time or kind.role is not Role.BOOT_SCRIPT)
        )

    @property
    def is_script_or_offer(self) -> bool:
        """Return whether the file belongs to one machine and keeps its path when its content changes."""
        kind = find_path_kind(BOOT + self.path)
        return kind is not None and kind.role in (Role.BOOT_SCRIPT, Role.OFFER)


class MirrorAnswer(Struct, frozen=True, kw_only=True):
    """A mirror's response for one path.

    A field is None if the response does not contain its value, or if gitboot did not request the value.
    """

    status: int
    size: int | None = None
    sha256: str | None = None  # the sha256 of the bytes that gitboot read
    has_body: bool = False  # whether at least one byte was read
    modified: int | None = None
    content_type: str | None = None
    cache_control: str | None = None
    encoding: str = ""
    age_s: int = 0  # how long a cache has stored the response
    redirect_url: str | None = None
    failure: str = ""  # why there is no response

    @property
    def is_found(self) -> bool:
        return 200 <= self.status < 400


class MirrorFinding(Struct, frozen=True, kw_only=True):
    """A fault that a comparison found."""

    path: str  # below boot/
    fault: MirrorFault
    message: str


class CheckedFile(NamedTuple):
    """The result of checking one file of a mirror."""

    finding: MirrorFinding | None
    is_in_transition: bool = False  # whether the file has an acceptable version other than the current one


def check_answer(file: MirrorFile, answer: MirrorAnswer) -> CheckedFile:
    """Return the most serious fault in a mirror's response, and whether the file is in transition."""
    if answer.status in _GONE and None in file.expected:
        return CheckedFile(None, is_in_transition=file.expected[0] is not None)
    acceptable = [version for version in file.expected if version is not None]
    if not acceptable:
        return CheckedFile(check_absence(file.path, answer, "the file has expired or is not valid yet"))
    version = next((each for each in acceptable if each.sha256 == answer.sha256), acceptable[0])
    first_fault = next(_find_faults(file, version, answer), None)
    if first_fault is None:
        return CheckedFile(None, is_in_transition=version != file.expected[0])
    fault, message = first_fault
    if fault is MirrorFault.WRONG:
        other_version = _describe_other_version(file, acceptable, answer)
        if other_version is not None:
            fault, message = MirrorFault.STALE, other_version
    return CheckedFile(MirrorFinding(path=file.path, fault=fault, message=message))


def _describe_other_version(file: MirrorFile, acceptable: Collection[FileVersion], answer: MirrorAnswer) -> str | None:
    """Return a message if the mirror sent a version that is not acceptable now, or None for unknown content."""
    for number, version in enumerate(file.versions):
        if version not in acceptable and version.sha256 is not None and version.sha256 == answer.sha256:
            until = file.versions[number + 1].since if number + 1 < len(file.versions) else None
            times = (("from", version.since), ("until", until))
            validity = " ".join(f"{word} {format_instant(at)}" for word, at in times if at is not None)
            if validity:
                return f"the file is a different version, which is valid {validity}"
            return "the file is an earlier version"
    return None


def check_absence(path: str, answer: MirrorAnswer, reason: str) -> MirrorFinding | None:
    """Return the fault in a mirror's response to a request for an unpublished path, or None.

    ``reason`` is the reason why there must be no file at this path.
    """
    if answer.failure:
        return MirrorFinding(path=path, fault=MirrorFault.UNKNOWN, message=answer.failure)
    if answer.is_found:
        return MirrorFinding(
            path=path,
            fault=MirrorFault.EXTRA,
            message=f"the mirror returned {answer.status} for a path that is not published: {reason}",
        )
    if answer.status >= 500:
        return MirrorFinding(path=path, fault=MirrorFault.UNKNOWN, message=f"the mirror returned {answer.status}")
    return _check_grub_body(path, answer) if GRUB in path else None


def check_unknown_machine(answer: MirrorAnswer) -> MirrorFinding | None:
    """Return the fault in a mirror's response to a request for an unknown machine's boot script, or None.

    A cache may store 404 and 410 responses by its own rules (RFC 9110, 15.1), and Varnish stores them for two minutes.
    From such a cache, a machine that was just added to the fleet would get the old response instead of its boot script.
    """
    finding = check_absence(UNKNOWN_MACHINE, answer, "an unknown machine would boot this file")
    if finding is not None or answer.status not in _GONE or not may_be_cached(answer.cache_control or ""):
        return finding
    return MirrorFinding(
        path=UNKNOWN_MACHINE,
        fault=MirrorFault.CACHEABLE,
        message=f"Cache-Control does not contain `no-store`, so a cache may return this {answer.status} response even "
        "after you add the machine to the fleet",
    )


def check_missing_body(answer: MirrorAnswer, *, has_shim: bool) -> MirrorFinding | None:
    """Return the fault in the body that a mirror sends in response to a GET for an absent path, or None.

    ``has_shim`` states whether machines can load shim from the mirror. shim waits forever for an empty body.
    """
    if has_shim and not answer.has_body and answer.status in _GONE:
        return MirrorFinding(
            path=UNKNOWN_MACHINE,
            fault=MirrorFault.WRONG,
            message=f"the {answer.status} response has an empty body, so shim waits forever. Set the body to `#` with "
            "error_page in nginx or handle_errors in Caddy (see OUTPUT/ops/serve), or with the CDN's custom error "
            "response",
        )
    return _check_grub_body(UNKNOWN_MACHINE, answer)


def _check_grub_body(path: str, answer: MirrorAnswer) -> MirrorFinding | None:
    """Return the fault in the body of a mirror's response to a GET for an absent path, or None.

    GRUB runs the body as its configuration, so the body must be a comment.
    """
    if answer.is_found or answer.status >= 500 or not answer.has_body or answer.sha256 == _COMMENT:
        return None
    return MirrorFinding(
        path=path,
        fault=MirrorFault.WRONG,
        message=f"the body of the {answer.status} response must be `#`, because GRUB executes the body as its "
        "configuration",
    )


def _find_faults(file: MirrorFile, version: FileVersion, answer: MirrorAnswer) -> Iterator[tuple[MirrorFault, str]]:
    """Yield the faults in a response that should contain ``version``, the most serious one first."""
    if answer.failure:
        yield MirrorFault.UNKNOWN, answer.failure
    elif answer.redirect_url is not None:
        yield (
            MirrorFault.REDIRECTED,
            f"this path redirects to {redact_url(answer.redirect_url, may_be_path=False)}, but firmware does not "
            "follow redirects",
        )
    elif answer.status >= 500 or answer.status == 429:
        yield MirrorFault.UNKNOWN, f"the mirror returned {answer.status}"
    elif answer.status != 200:
        yield (
            MirrorFault.MISSING,
            "the file is missing" if answer.status in _GONE else f"the mirror returned {answer.status}",
        )
    if answer.failure or answer.status != 200:
        return
    is_fixed = is_immutable(BOOT + file.path)
    is_older = (
        answer.modified is not None and file.modified is not None and answer.modified < file.modified and not is_fixed
    )
    content_fault = MirrorFault.STALE if is_older else MirrorFault.WRONG
    if answer.encoding not in ("", "identity"):
        yield MirrorFault.WRONG, f"the mirror sends Content-Encoding {answer.encoding}, which gitboot did not request"
    elif answer.size is not None and answer.size != version.size_bytes:
        yield content_fault, f"the file is {answer.size} bytes long instead of {version.size_bytes}"
    elif answer.sha256 is not None and answer.sha256 != version.sha256:
        yield content_fault, f"the file's sha256 is {answer.sha256} instead of {version.sha256}"
    elif file.keeps_time and file.modified is not None and file.is_evidence and answer.modified != file.modified:
        yield (
            MirrorFault.UNDATED,
            "the modification time differs from the published file's, so fetches from this mirror cannot be evidence",
        )
    if answer.age_s > 0 and not is_fixed:
        yield (
            MirrorFault.CACHED,
            f"a cache stored this response {answer.age_s} s ago, and machines get it until it expires",
        )
    if answer.size is None:
        yield MirrorFault.UNSIZED, "the response has no Content-Length, but firmware and boot loaders need the size"
    expected_type = find_content_type(BOOT + file.path)
    sent_type = (answer.content_type or "").partition(";")[0].strip().lower()
    if answer.content_type is not None and sent_type != expected_type.partition(";")[0]:
        yield MirrorFault.MISTYPED, f"the Content-Type must be {expected_type}, but it is {sent_type or 'missing'}"
    if answer.cache_control is not None and not is_fixed and may_be_cached(answer.cache_control):
        directive = "no-store" if file.is_script_or_offer else "no-cache"
        yield MirrorFault.CACHEABLE, f"Cache-Control lacks {directive}, so a cache may return an earlier version"


def is_fetched_by_machines_only(path: str) -> bool:
    """Return whether a GET of this path below boot/ may count as a fetch by a machine."""
    kind = find_path_kind(BOOT + path)
    return kind is not None and kind.role is not Role.OFFER


def may_be_cached(cache_control: str) -> bool:
    """Return whether a cache may serve a stored copy without revalidation.

    Without a directive in Cache-Control, a cache may apply its own rules.
    """
    directives = {directive.strip().lower() for directive in cache_control.split(",")}
    return directives.isdisjoint({"no-store", "no-cache", "max-age=0"})


# Mirrors


# if gitboot no longer publishes a kind of path, it checks this kind for at least so many identities
SAMPLE_SIZE: Final = 100
_CHUNK_BYTES: Final = 1 << 20
_AGENT: Final = f"{CHECKER}/{__version__}"
_MARK: Final = f"?{CHECK}=1"
_SHIMS: Final = ("assets/loaders/shimx64.efi", "assets/loaders/shimaa64.efi")
# paths that a mirror must not serve, each with the reason
_PRIVATE_PATHS: Final = {
    "ops/manifest.json": "files in ops/ are for operators, and contain tokens and secrets",
    "": "a directory listing may show every machine",
}
_LEFTOVER_REASON: Final = "an earlier publication contained this file, and machines can still fetch it"


class FolderMirror:
    """A mirror in a local folder. gitboot can read all files, but cannot check the headers that a web server sends."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        """``root`` is the published output tree, if the tree is on this host."""
        self._folder = folder
        self._boot = root / BOOT if root is not None else None

    def get(self, path: str, max_bytes: int) -> bytes | None:
        """Return the first ``max_bytes + 1`` bytes of a file, or None if the file is absent.

        Raises `HostUnreachable`.
        """
        try:
            with (self._folder / path).open("rb") as content:
                return content.read(max_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostUnreachable(f"{self._folder / path} cannot be read: {error.strerror}") from error

    def names(self) -> list[str]:
        """Return the sorted paths of all files, except those in the staging folder of the mirror program."""
        return sorted(iterate_paths(str(self._folder)))

    def check_list_caching(self) -> Iterator[MirrorFinding]:
        yield from ()

    def may_read(self, _: str) -> bool:
        return True

    def read(self, path: str, _: Collection[int] = ()) -> MirrorAnswer:
        """Read a file completely, and return its size, digest and modification time."""
        try:
            with (self._folder / path).open("rb") as content:
                digest = sha256()
                file_stat = (self._folder / path).stat()
                while chunk := content.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except (FileNotFoundError, NotADirectoryError):
            return MirrorAnswer(status=404)
        except OSError as error:
            return MirrorAnswer(status=0, failure=str(error.strerror))
        return MirrorAnswer(
            status=200, size=file_stat.st_size, sha256=digest.hexdigest(), modified=int(file_stat.st_mtime)
        )

    def find_extra_files(self, files: Collection[str]) -> Iterator[MirrorFinding]:
        """Find files that are not in the published tree, and artifacts with a wrong digest.

        If the tree is not on this host, the function treats these files as published: the signed list, files in
        `assets/`, and content with a digest in its path.
        """
        for path in self.names():
            if path in files:
                continue
            if not self._may_be_published(path):
                message = "the mirror serves a file that is not published"
                yield MirrorFinding(path=path, fault=MirrorFault.EXTRA, message=message)
                continue
            expected_digest = find_artifact_digest(path)
            if expected_digest is not None:
                answer = self.read(path)
                if answer.failure:
                    yield MirrorFinding(path=path, fault=MirrorFault.UNKNOWN, message=answer.failure)
                elif answer.sha256 != expected_digest:
                    message = "the file's sha256 differs from the one in its path; delete the file, and copy it again"
                    yield MirrorFinding(path=path, fault=MirrorFault.WRONG, message=message)

    def _may_be_published(self, path: str) -> bool:
        if path.startswith(SIGNED):
            return True
        if self._boot is not None:
            return (self._boot / path).exists()
        return path.startswith("assets/") or is_content(BOOT + path)


class WebMirror:
    """A mirror behind a web server.

    Requests by gitboot must not count as fetches by machines. Therefore, each request identifies gitboot in the
    User-Agent. If a fetch of a path is evidence, the query of gitboot's request also contains a mark. Endpoints and
    `gitboot read-access-logs` check the User-Agent and the mark. By default, gitboot does not request such paths at
    all, not even with HEAD, because a cache may turn a HEAD into a GET.
    """

    def __init__(
        self,
        url: str,
        ca_bundle: Path | None,
        *,
        parallel: int,
        reads_machine_files: bool,
        nonce: str = "1",
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
    ) -> None:
        """``deadline_s`` is the time limit for the status and the headers of a response.

        ``rate`` is the minimum transfer rate of the body. Each comparison needs a new ``nonce``, so that no cache has
        already stored a response.
        """
        self._url = url.rstrip("/")
        self._parallel = parallel
        self._reads_machine_files = reads_machine_files
        self._client = HttpClient(ca_bundle=ca_bundle, uses_proxies=False, connections_per_host=parallel)
        self._numbers = count()  # the numbers in the queries of requests that bypass caches
        self._nonce = nonce
        self._limits: dict[str, Any] = {"deadline_s": deadline_s, "rate": rate}
        # After gitboot has read a file of the list, a 403 means that a file is absent. S3 returns 403 to clients that
        # may not list the bucket.
        self._serves_list = False

    def get(self, path: str, max_bytes: int) -> bytes | None:
        """Return the first ``max_bytes + 1`` bytes of a file, bypassing all caches.

        Return None if the file is absent. Raises `HostUnreachable`.
        """
        query = f"?{CHECK}={self._nonce}-{next(self._numbers)}"
        content, _ = self._fetch(path, max_bytes, query, {"Cache-Control": "no-cache"})
        return content

    def names(self) -> None:
        """Return None, because a web server does not list its files."""

    def check_list_caching(self) -> Iterator[MirrorFinding]:
        """Find caches that may serve an outdated signed list.

        gitboot fetches the timestamp file twice: once bypassing all caches, and once through the caches. This file
        changes with each publication.
        """
        path = f"{SIGNED}{TIMESTAMP}"
        before = self.get(path, MAX_TIMESTAMP_BYTES)
        stored, answer = self._fetch(path, MAX_TIMESTAMP_BYTES, "", {})
        remedy = "configure the cache to follow Cache-Control"
        if answer.age_s > 0:
            message = f"a cache stored this file {answer.age_s} s ago: {remedy}"
            yield MirrorFinding(path=path, fault=MirrorFault.CACHED, message=message)
        elif stored not in (before, self.get(path, MAX_TIMESTAMP_BYTES)):
            message = f"a cache and the mirror behind it serve different versions of this file: {remedy}"
            yield MirrorFinding(path=path, fault=MirrorFault.CACHED, message=message)
        elif stored is not None and may_be_cached(answer.cache_control or ""):
            message = "caches may store the list: configure the mirror to send Cache-Control: no-cache"
            yield MirrorFinding(path=path, fault=MirrorFault.CACHEABLE, message=message)

    def _fetch(
        self, path: str, max_bytes: int, query: str, headers: Mapping[str, str]
    ) -> tuple[bytes | None, MirrorAnswer]:
        """Return at most ``max_bytes + 1`` bytes of a file, and the status and the headers of the response.

        The bytes are None if the file is absent.
        """
        url = f"{self._url}/{quote(path)}{query}"
        headers = {**headers, "User-Agent": _AGENT}
        with self._client.stream("GET", url, headers=headers, **self._limits) as answer:
            # S3 returns 403 for an absent object if the client may not list the bucket. Readers fetch the timestamp
            # first, so a 403 after that means an absent file. python-tuf also accepts 403 and 404 at the end of the
            # chain of roots.
            if answer.status in (404, 410) or (answer.status == 403 and self._serves_list):
                return None, _read_answer(answer)
            if answer.status == 403:
                raise HostUnreachable(
                    f"{url} returned 403: this host is not allowed to read the mirror's signed list. Run the command "
                    "on a host that the Fleet lists in spec.provisioning.monitors. To use this host, add it to that "
                    "list, and copy the generated configuration to the web server again"
                )
            if answer.status != 200:
                raise HostUnreachable(f"{url} returned {answer.status}")
            content = bytearray()
            while len(content) <= max_bytes and (chunk := answer.read(max_bytes + 1 - len(content))):
                content += chunk
            self._serves_list = True
            return bytes(content), _read_answer(answer)

    def may_read(self, path: str) -> bool:
        return self._reads_machine_files or not is_fetched_by_machines_only(path)

    def read(self, path: str, sizes: Collection[int]) -> MirrorAnswer:
        """Request a file as firmware does: first with HEAD, and then with GET if the size in bytes is one of ``sizes``.

        If only machines fetch the file, send a single GET, because such files are small and boot loaders do not send
        HEAD requests for them.
        """
        if is_fetched_by_machines_only(path):
            return self._request("GET", path, max_bytes=max(sizes) + 1)
        answer = self._request("HEAD", path)
        is_plain = answer.status == 200 and answer.redirect_url is None and answer.size in sizes
        return self._request("GET", path, max_bytes=max(sizes) + 1) if is_plain else answer

    def find_extra_files(self, files: Collection[str]) -> Iterator[MirrorFinding]:
        """Find unpublished files that the mirror serves at paths that gitboot can guess.

        If ``files`` is empty, the published files are unknown, and gitboot assumes that they contain GRUB scripts.
        Raises `HostUnreachable`.
        """
        first = self._request("GET", UNKNOWN_MACHINE, max_bytes=2)  # one byte more than the expected body, "#"
        if first.failure:
            raise HostUnreachable(first.failure)
        findings = [check_unknown_machine(first)]
        if not files or GRUB in files:  # shim starts GRUB, and iPXE and PXELINUX ignore the body
            findings.append(check_missing_body(first, has_shim=any(map(self._has_file, _SHIMS))))
        for path, reason in _PRIVATE_PATHS.items():
            findings.append(check_absence(path, self._request("HEAD", path), reason))
        leftover_paths = find_leftover_paths(files)
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="mirror") as pool:
            answers = pool.map(partial(self._request, "HEAD"), leftover_paths)
            for path, answer in zip(leftover_paths, answers, strict=True):
                findings.append(check_absence(path, answer, _LEFTOVER_REASON))
        yield from (finding for finding in findings if finding is not None)

    def _has_file(self, path: str) -> bool:
        answer = self._request("HEAD", path)
        if answer.failure:
            raise HostUnreachable(answer.failure)
        return answer.is_found

    def _request(self, method: str, path: str, *, max_bytes: int = 1) -> MirrorAnswer:
        url = f"{self._url}/{quote(path)}{_MARK if is_fetched_by_machines_only(path) else ''}"
        try:
            with self._client.stream(method, url, headers={"User-Agent": _AGENT}, **self._limits) as answer:
                result = _read_answer(answer)
                if method == "HEAD":
                    return result
                digest = sha256()
                size = 0
                while size < max_bytes and (chunk := answer.read(min(_CHUNK_BYTES, max_bytes - size))):
                    digest.update(chunk)
                    size += len(chunk)
                return structs.replace(result, sha256=digest.hexdigest(), has_body=size > 0)
        except (HostUnreachable, ValueError) as error:
            return MirrorAnswer(status=0, failure=str(error))


def _read_answer(answer: AnswerStream) -> MirrorAnswer:
    headers = answer.headers
    modified = None
    with suppress(ValueError, OverflowError):  # the date is malformed
        if "Last-Modified" in headers:
            modified = int(parsedate_to_datetime(headers["Last-Modified"]).timestamp())
    return MirrorAnswer(
        status=answer.status,
        size=_parse_number(headers.get("Content-Length", "")),
        modified=modified,
        content_type=headers.get("Content-Type", ""),
        cache_control=headers.get("Cache-Control", ""),
        encoding=headers.get("Content-Encoding", ""),
        age_s=_parse_number(headers.get("Age", "")) or 0,
        redirect_url=headers.get("Location") if 300 <= answer.status < 400 else None,
    )


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


# Paths that are not published


def find_leftover_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths below boot/ that an earlier publication may have left for the same machines.

    ``paths`` are the currently published paths. If they do not include any paths of one kind, such as GRUB
    configurations, the Fleet document does not list this kind of output. If an earlier tree had this output, the tree
    contained such a path for every machine. Therefore, it is sufficient to check `SAMPLE_SIZE` machines.
    """
    published_paths = frozenset(paths)
    published_kinds = {find_path_kind(BOOT + path) for path in published_paths}
    identities_by_kind: dict[str, set[str]] = {}
    for path in published_paths:
        for lookup in parse_request_path(path):
            identity_kind, _, identity = lookup.identity.partition("/")
            identities_by_kind.setdefault(identity_kind, set()).add(identity)
    possible_paths: set[str] = set()
    for path_kind in TABLE:
        if path_kind.needs_identity_only:
            identities = sorted(identities_by_kind.get(path_kind.identity_kind, ()))
            step = 1 if path_kind in published_kinds else max(1, len(identities) // SAMPLE_SIZE)
            possible_paths.update(path_kind.build_path(identity).removeprefix(BOOT) for identity in identities[::step])
    return tuple(sorted(possible_paths - published_paths))


T = TypeVar("T")
_BATCH: Final = 4096  # the number of files that gitboot submits to the threads at a time


class MirrorReport(Struct, frozen=True, kw_only=True):
    """The result of comparing a mirror with a published tree, or with its signed list."""

    findings: tuple[MirrorFinding, ...]  # sorted by path; findings about the signed list come first
    files: int  # number of published files, including those that were not read
    unread: tuple[str, ...]  # sorted paths that gitboot did not read, because only machines may fetch them
    in_transition: tuple[str, ...]  # sorted paths that have the version before or after a transition
    hidden_files: int = 0  # number of files whose paths the list contains only as digests
    signed_list: SignedList | None = None  # None: the list was not read, or is not readable


def read_expected_files(root: Path, *, as_target: bool = False) -> dict[str, MirrorFile]:
    """Return the files that a mirror of the tree at ``root`` must contain, sorted by their path below boot/.

    With ``as_target``, gitboot does not compare modification times, because a target does not keep the modification
    times of the tree. Raises `PublishError` if the tree cannot be read.
    """
    manifest = read_manifest(root)
    if manifest is None:
        raise PublishError(f"{root}: expected an output tree, found no {MANIFEST}")
    files = {}
    for tree_path, listed in manifest.files.items():
        if not tree_path.startswith(BOOT):
            continue
        try:
            modified = int((root / tree_path).stat().st_mtime)
        except FileNotFoundError:  # a publication in progress has removed the file
            continue
        except OSError as error:
            raise PublishError(f"{root / tree_path} cannot be read: {error.strerror}") from error
        path = tree_path.removeprefix(BOOT)
        version = FileVersion(None, listed.sha256, listed.size)
        files[path] = MirrorFile(
            path=path, expected=(version,), versions=(version,), modified=modified, keeps_time=not as_target
        )
    return files


def compare_mirror(
    read: Callable[[], dict[str, MirrorFile]],
    mirror: FolderMirror | WebMirror,
    *,
    parallel: int,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with the files that ``read`` returns. Files published during the comparison are compared again.

    ``on_start`` is called with the number of files to compare, and ``on_progress`` with the number of files compared
    since its last call.
    """
    with open_thread_pool(parallel) as pool:
        return compare_files(mirror, read(), lambda _: read(), pool, on_start, on_progress)


@contextmanager
def open_thread_pool(number: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool. Tasks that have not started when the block ends are cancelled."""
    pool = ThreadPoolExecutor(number, thread_name_prefix="mirror")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def compare_files(
    mirror: FolderMirror | WebMirror,
    files: Mapping[str, MirrorFile],
    reread: Callable[[bool], Mapping[str, MirrorFile] | None],
    pool: ThreadPoolExecutor,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with these files. Files published during the comparison are compared again.

    ``reread`` returns the current files, or None if the files have not changed. gitboot calls ``reread(True)``
    if there are findings, and ``reread(False)`` otherwise.
    """
    files_to_read = {path: file for path, file in files.items() if _may_read(mirror, file)}
    on_start(len(files_to_read))
    findings = list(mirror.find_extra_files(files))
    in_transition: set[str] = set()
    for file, checked in _check_files(mirror, files_to_read.values(), pool, on_progress):
        if checked.finding is not None:
            findings.append(checked.finding)
        if checked.is_in_transition:
            in_transition.add(file.path)
    current_files = reread(bool(findings))
    if current_files is not None:
        changed = {finding.path for finding in findings if current_files.get(finding.path) != files.get(finding.path)}
        findings = [finding for finding in findings if finding.path not in changed]
        new_paths = current_files.keys() - files.keys()
        newer_files = [current_files[path] for path in sorted(changed | new_paths) if path in current_files]
        files_to_recheck = [file for file in newer_files if _may_read(mirror, file)]
        for _, checked in _check_files(mirror, files_to_recheck, pool, lambda _: None):
            if checked.finding is not None:
                findings.append(checked.finding)
    return MirrorReport(
        findings=sort_findings(findings),
        files=len(files),
        unread=tuple(sorted(files.keys() - files_to_read.keys())),
        in_transition=tuple(sorted(in_transition)),
    )


def _may_read(mirror: FolderMirror | WebMirror, file: MirrorFile) -> bool:
    """Return whether gitboot may read a file. Its request must not count as evidence of a boot."""
    return not file.is_evidence or mirror.may_read(file.path)


def _check_files(
    mirror: FolderMirror | WebMirror,
    files: Iterable[MirrorFile],
    pool: ThreadPoolExecutor,
    on_progress: Callable[[int], None],
) -> Iterator[tuple[MirrorFile, CheckedFile]]:
    def check_file(file: MirrorFile) -> CheckedFile:
        sizes = {version.size_bytes for version in file.versions}
        return check_answer(file, mirror.read(file.path, sizes or {0}))

    for batch in iterate_batches(files, _BATCH):
        for file, checked in zip(batch, pool.map(check_file, batch), strict=True):
            on_progress(1)
            yield file, checked


def iterate_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def sort_findings(findings: Iterable[MirrorFinding]) -> tuple[MirrorFinding, ...]:
    """Return findings sorted by path, with findings about the signed list first.

    A wrong clock or an outdated list often explains the findings about other files.
    """
    return tuple(sorted(set(findings), key=lambda each: (not each.path.startswith(SIGNED), each.path, each.fault)))
