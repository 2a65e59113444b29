"""Mirrors: read the files of a mirror from a folder or from its web server, and find files that are not published."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import structs

from gitboot import __version__
from gitboot.errors import HostUnreachable
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate
from gitboot.publish.mirror_answers import (
    GRUB,
    UNKNOWN_MACHINE,
    MirrorAnswer,
    MirrorFault,
    MirrorFinding,
    check_absence,
    check_missing_body,
    check_unknown_machine,
    is_fetched_by_machines_only,
    may_be_cached,
)
from gitboot.publish.mirror_program import find_artifact_digest, iterate_paths
from gitboot.publish.signed_list_reader import MAX_TIMESTAMP_BYTES, SIGNED, TIMESTAMP
from gitboot.render.paths import BOOT, CHECK, CHECKER, TABLE, find_path_kind, is_content, parse_request_path

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
