"""Mirror comparison: compare what a mirror serves with the output tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from gitboot.publish.mirror_program import artifact_digest, paths_in
from gitboot.publish.signed_list_reader import MAX_TIMESTAMP_BYTES, SIGNED, TIMESTAMP, FileVersion, SignedList
from gitboot.publish.tree_reader import read_manifest
from gitboot.render.endpoint_files import PublishedServer
from gitboot.render.paths import (
    BOOT,
    CHECK,
    CHECKER,
    REVALIDATED,
    TABLE,
    ContentType,
    Role,
    find_content_type,
    find_delivery,
    find_path_kind,
    is_content,
    is_immutable,
    parse_request_path,
)

T = TypeVar("T")
_CHUNK: Final = 1 << 20
_BATCH: Final = 4096  # files that are given to threads at a time
_AGENT: Final = f"{CHECKER}/{__version__}"
_MARK: Final = f"?{CHECK}=1"
_UNPUBLISHED: Final = "it is not published, and whoever asks for it finds it"
_OTHER_ARTIFACT: Final = "its sha256 is not the one in its path: delete the file, and copy it again"
_GONE: Final = (404, 410)
_LATER: Final = "it counts at another time"
_EARLIER: Final = "an earlier publication had it, and machines still find it"


class MirrorReport(Struct, frozen=True, kw_only=True):
    """A mirror as it compares with a published tree, or with its signed list."""

    findings: tuple[MirrorFinding, ...]  # sorted by path, those of the list first
    files: int  # that are published, also those that were not read
    unread: tuple[str, ...]  # paths that only machines fetch, sorted
    in_transition: tuple[str, ...]  # paths that are about to turn, or have just turned
    hidden_files: int = 0  # files whose path the list does not show
    signed_list: SignedList | None = None  # None: there is no list that can be read, or none was


def read_expected_files(root: Path, *, as_target: bool = False) -> dict[str, MirrorFile]:
    """What a mirror of the tree at ``root`` is to have, by path below boot/, sorted; raises `PublishError`.

    A target does not have the times of the tree.
    """
    manifest = read_manifest(root)
    if manifest is None:
        raise PublishError(f"{root}: expected a tree that gitboot published, found no {MANIFEST}")
    found = {}
    for path, listed in manifest.files.items():
        if not path.startswith(BOOT):
            continue
        try:
            modified = int((root / path).stat().st_mtime)
        except FileNotFoundError:
            continue  # a publication is under way, which withdraws it
        version = FileVersion(None, listed.sha256, listed.size)
        below = path.removeprefix(BOOT)
        found[below] = MirrorFile(
            path=below, right=(version,), versions=(version,), modified=modified, keeps_time=not as_target
        )
    return found


def compare_mirror(
    look: Callable[[], dict[str, MirrorFile]],
    mirror: FolderMirror | WebMirror,
    *,
    parallel: int,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with what ``look`` returns, and compare again what is published anew meanwhile.

    ``begun`` gets the number of files to compare, and ``done`` how many more are compared.
    """
    with threads(parallel) as pool:
        return compare_files(mirror, look(), lambda _: look(), pool, on_start, on_progress)


@contextmanager
def threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads. What has not begun by the end of the block is dropped."""
    pool = ThreadPoolExecutor(number, thread_name_prefix="mirror")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def compare_files(
    mirror: FolderMirror | WebMirror,
    files: Mapping[str, MirrorFile],
    look_again: Callable[[bool], Mapping[str, MirrorFile] | None],
    pool: ThreadPoolExecutor,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with these files, and compare again what is published anew meanwhile.

    ``look_again`` gets whether anything differs, and returns the files by now; None: they are the same.
    """
    read = {path: file for path, file in files.items() if not file.is_evidence or mirror.reads(path)}
    on_start(len(read))
    found, turning = [*mirror.find_extra_files(files)], set[str]()
    for file, judged in _check_files(mirror, read.values(), pool, on_progress):
        found += [judged.finding] if judged.finding is not None else []
        turning |= {file.path} if judged.is_in_transition else set()
    if (now := look_again(bool(found))) is not None:
        changed = {each.path for each in found if now.get(each.path) != files.get(each.path)}
        found = [each for each in found if each.path not in changed]
        changed |= now.keys() - files.keys()
        newer = (now[path] for path in sorted(changed & now.keys()))
        again = [file for file in newer if not file.is_evidence or mirror.reads(file.path)]
        found += [
            each.finding for _, each in _check_files(mirror, again, pool, lambda _: None) if each.finding is not None
        ]
    return MirrorReport(
        findings=sort_findings(found),
        files=len(files),
        unread=tuple(sorted(files.keys() - read.keys())),
        in_transition=tuple(sorted(turning)),
    )


def _check_files(
    mirror: FolderMirror | WebMirror,
    files: Iterable[MirrorFile],
    pool: ThreadPoolExecutor,
    on_progress: Callable[[int], None],
) -> Iterator[tuple[MirrorFile, CheckedFile]]:
    def look(file: MirrorFile) -> CheckedFile:
        sizes = {each.size_bytes for each in file.versions}
        return check_answer(file, mirror.read(file.path, sizes or {0}))

    for batch in batches(files, _BATCH):
        for file, judged in zip(batch, pool.map(look, batch), strict=True):
            on_progress(1)
            yield file, judged


def batches(items: Iterable[T], most: int) -> Iterator[list[T]]:
    left = iter(items)
    while batch := list(islice(left, most)):
        yield batch


def sort_findings(findings: Iterable[MirrorFinding]) -> tuple[MirrorFinding, ...]:
    """Return findings by path, those of the list first: a wrong clock or a list of another time explains the others."""
    return tuple(sorted(set(findings), key=lambda each: (not each.path.startswith(SIGNED), each.path, each.fault)))


class FolderMirror:
    """A copy as it lies in a folder of this machine: all of it can be seen, but not how it is served."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        """``root`` is the published tree, if it is at hand."""
        self._folder, self._boot = folder, root / BOOT if root is not None else None

    def get(self, path: str, max_bytes: int) -> bytes | None:
        """Return the first bytes of a file and one more, or None if it is absent. Raises `HostUnreachable`."""
        try:
            with (self._folder / path).open("rb") as content:
                return content.read(max_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostUnreachable(f"{self._folder / path} cannot be read: {error.strerror}") from error

    def names(self) -> list[str]:
        """Return the paths of all files, sorted, but for what the program of this mirror stages."""
        return sorted(paths_in(str(self._folder)))

    def find_cached_list(self) -> Iterator[MirrorFinding]:
        yield from ()

    def reads(self, _: str) -> bool:
        return True

    def read(self, path: str, _: Collection[int] = ()) -> MirrorAnswer:
        """Return what a file is, read whole, whatever its size."""
        try:
            with (self._folder / path).open("rb") as content:
                digest, found = sha256(), (self._folder / path).stat()
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
        except (FileNotFoundError, NotADirectoryError):
            return MirrorAnswer(status=404)
        except OSError as error:
            return MirrorAnswer(status=0, trouble=str(error.strerror))
        return MirrorAnswer(status=200, size=found.st_size, sha256=digest.hexdigest(), modified=int(found.st_mtime))

    def find_extra_files(self, files: Collection[str]) -> Iterator[MirrorFinding]:
        """What the published tree has not, neither published nor laid there by a person.

        Without the tree, the signed list, `assets/` and content that a path names may lie there.
        """
        for path in self.names():
            if path in files:
                continue
            if self._boot is not None:
                may_lie_there = (self._boot / path).exists()
            else:
                may_lie_there = path.startswith("assets/") or is_content(BOOT + path)
            if not may_lie_there and not path.startswith(SIGNED):
                yield MirrorFinding(path=path, fault=MirrorFault.EXTRA, message=_UNPUBLISHED)
            elif (named := artifact_digest(path)) is not None:
                answer = self.read(path)
                if answer.trouble:
                    yield MirrorFinding(path=path, fault=MirrorFault.UNKNOWN, message=answer.trouble)
                elif answer.sha256 != named:
                    yield MirrorFinding(path=path, fault=MirrorFault.WRONG, message=_OTHER_ARTIFACT)


class WebMirror:
    """A copy that a web server answers from.

    No request counts as a machine's fetch. Each names gitboot in its User-Agent. If a fetch of the path is evidence,
    the request has a mark in its query, too. Endpoints and `gitboot read-access-logs` look for both. By default a path
    of evidence is not requested at all, neither by HEAD: caches turn a HEAD into a GET.
    """

    def __init__(
        self,
        url: str,
        ca_bundle: Path | None,
        *,
        parallel: int,
        reads_entries: bool,
        nonce: str = "1",
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
    ) -> None:
        """The deadline is for an answer without its body; a file has to come at the ``rate``.

        ``nonce`` is a text that no request had before.
        """
        self._url, self._parallel, self._reads_entries = url.rstrip("/"), parallel, reads_entries
        self._client = HttpClient(ca_bundle=ca_bundle, uses_proxies=False, connections_per_host=parallel)
        self._numbers = count()  # of requests that no cache may answer
        self._nonce, self._deadline_s, self._rate = nonce, deadline_s, rate
        # Then a 403 means an absent file of the list: S3 answers so to a client that may not list the bucket.
        self._gives_list = False

    def get(self, path: str, max_bytes: int) -> bytes | None:
        """Return the first bytes of a file and one more, or None if it is absent; from no cache.

        Raises `HostUnreachable`.
        """
        query = f"?{CHECK}={self._nonce}-{next(self._numbers)}"
        return self._fetch(path, max_bytes, query, {"Cache-Control": "no-cache"})[0]

    def names(self) -> None:
        """A web server lists nothing."""

    def find_cached_list(self) -> Iterator[MirrorFinding]:
        """Compare the timestamp of the signed list, which each publication changes, with what caches have of it."""
        path = f"{SIGNED}{TIMESTAMP}"
        before = self.get(path, MAX_TIMESTAMP_BYTES)
        stored, answer = self._fetch(path, MAX_TIMESTAMP_BYTES, "", {})
        fault, remedy = MirrorFault.CACHED, "let the cache heed Cache-Control"
        if answer.age_s > 0:
            message = f"a cache stored it {answer.age_s} s ago"
        elif stored not in (before, self.get(path, MAX_TIMESTAMP_BYTES)):
            message = "a cache answers with another one than the mirror behind it"
        elif stored is not None and may_be_cached(answer.cache_control or ""):
            fault, message = MirrorFault.CACHEABLE, "a cache may keep the list"
            remedy = "let the mirror send Cache-Control: no-cache"
        else:
            return
        yield MirrorFinding(path=path, fault=fault, message=f"{message}: {remedy}")

    def _fetch(
        self, path: str, max_bytes: int, query: str, headers: Mapping[str, str]
    ) -> tuple[bytes | None, MirrorAnswer]:
        """Return the first bytes of an answer and one more, or None if the file is absent, and its head."""
        url = f"{self._url}/{quote(path)}{query}"
        options: Any = {"deadline_s": self._deadline_s, "rate": self._rate}
        with self._client.stream("GET", url, headers={**headers, "User-Agent": _AGENT}, **options) as answer:
            # S3 answers 403 for an absent object to a reader that may not list the bucket. Each chain of roots ends at
            # one that is absent, and python-tuf goes by both answers, too. A reader begins with the timestamp.
            if answer.status in (404, 410) or (answer.status == 403 and self._gives_list):
                return None, _read_answer(answer)
            if answer.status == 403:
                raise HostUnreachable(
                    f"{url} answers 403: the mirror does not let this host read the signed list (add this host to the "
                    "Fleet's spec.provisioning.monitors and copy the configuration again, or run the command there)"
                )
            if answer.status != 200:
                raise HostUnreachable(f"{url} answers {answer.status}")
            content = bytearray()
            while len(content) <= max_bytes and (chunk := answer.read(max_bytes + 1 - len(content))):
                content += chunk
            self._gives_list = True
            return bytes(content), _read_answer(answer)

    def reads(self, path: str) -> bool:
        return self._reads_entries or not is_fetched_by_machines_only(path)

    def read(self, path: str, sizes: Collection[int]) -> MirrorAnswer:
        """Ask by HEAD, as firmware does first, and read what has one of these sizes, in bytes.

        What only machines fetch is small, and loaders send no HEAD for it: one request is enough.
        """
        if is_fetched_by_machines_only(path):
            return self._request("GET", path, most_bytes=max(sizes) + 1)
        answer = self._request("HEAD", path)
        is_plain = answer.status == 200 and answer.redirect_url is None and answer.size in sizes
        return self._request("GET", path, most_bytes=max(sizes) + 1) if is_plain else answer

    def find_extra_files(self, files: Collection[str]) -> Iterator[MirrorFinding]:
        """What it gives that nobody has published, as far as one can ask for it; raises `HostUnreachable`."""
        first = self._request("GET", UNKNOWN_MACHINE)
        if first.trouble:
            raise HostUnreachable(first.trouble)
        found = [check_unknown_machine(first)]
        found += [check_absence(path, self._request("HEAD", path), why) for path, why in PRIVATE.items()]
        absent = find_leftover_paths(files)
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="mirror") as pool:
            answers = pool.map(partial(self._request, "HEAD"), absent)
            found += [check_absence(path, answer, _EARLIER) for path, answer in zip(absent, answers, strict=True)]
        yield from (finding for finding in found if finding is not None)

    def _request(self, method: str, path: str, *, most_bytes: int = 1) -> MirrorAnswer:
        """What is answered; so many bytes of it are read at most."""
        url = f"{self._url}/{quote(path)}{_MARK if is_fetched_by_machines_only(path) else ''}"
        options: Any = {"deadline_s": self._deadline_s, "rate": self._rate}
        try:
            with self._client.stream(method, url, headers={"User-Agent": _AGENT}, **options) as answer:
                found = _read_answer(answer)
                if method == "HEAD":
                    return found
                digest, size = sha256(), 0
                while size < most_bytes and (chunk := answer.read(min(_CHUNK, most_bytes - size))):
                    digest.update(chunk)
                    size += len(chunk)
                return structs.replace(found, sha256=digest.hexdigest(), has_body=size > 0)
        except (HostUnreachable, ValueError) as error:
            return MirrorAnswer(status=0, trouble=str(error))


def _read_answer(answer: AnswerStream) -> MirrorAnswer:
    headers, length = answer.headers, answer.headers.get("Content-Length", "")
    dated = headers.get("Last-Modified")
    return MirrorAnswer(
        status=answer.status,
        size=int(length) if length.isascii() and length.isdecimal() else None,
        modified=int(parsedate_to_datetime(dated).timestamp()) if dated is not None else None,
        content_type=headers.get("Content-Type", ""),
        cache_control=headers.get("Cache-Control", ""),
        encoding=headers.get("Content-Encoding", ""),
        age_s=int(age) if (age := headers.get("Age", "")).isascii() and age.isdecimal() else 0,
        redirect_url=headers.get("Location") if 300 <= answer.status < 400 else None,
    )


class MirrorFault(StrEnum):
    """What is wrong with a path of a mirror."""

    MISSING = "Missing"
    STALE = "Stale"  # it is what stood there before
    WRONG = "Wrong"  # it is something else
    EXTRA = "Extra"  # nothing is to be there
    REDIRECTED = "Redirected"
    MISTYPED = "Mistyped"
    UNSIZED = "Unsized"
    CACHEABLE = "Cacheable"
    UNDATED = "Undated"  # it has not the time of its version
    CACHED = "Cached"  # a cache answered with what it has stored
    UNSIGNED = "Unsigned"  # the list has no signatures, although a key is named
    BAD_SIGNATURE = "BadSignature"  # a part of the list is not signed by the keys that have to sign it
    DAMAGED = "Damaged"  # a part of the list is not what gitboot writes, or of another list
    INCOMPLETE = "Incomplete"  # a listing is of another version than the list
    EXPIRED = "Expired"  # the list has not been renewed in time
    EARLY = "Early"  # the list is of a time that this host's clock has not reached
    UNKNOWN = "Unknown"  # nobody has answered, or not so that anything follows


class MirrorFile(Struct, frozen=True, kw_only=True):
    """A published file that a mirror is to have, and how it turns."""

    path: str  # below boot/
    right: tuple[FileVersion | None, ...]  # what it may be now, the version of now first; None: absent
    versions: tuple[FileVersion, ...]  # all that the tree or the list names
    modified: int | None = None  # in seconds since 1970; None: any time is right
    keeps_time: bool = True  # whether a mirror has that time, too: its log is evidence by it
    server: str | None = None  # whose file it is; None: it belongs to no server, or nobody says
    contents: Mapping[str, str] = field(default_factory=dict)  # texts of versions that are not in OUTPUT, by sha256

    @property
    def is_evidence(self) -> bool:
        """Whether a whole answer to a GET says something of a machine, so that nobody else may ask so."""
        kind = find_path_kind(BOOT + self.path)
        return (
            kind is not None and kind.role is not Role.OFFER and (self.keeps_time or kind.role is not Role.BOOT_SCRIPT)
        )

    @property
    def is_entry(self) -> bool:
        """Whether it is a machine's own, and changes in place."""
        kind = find_path_kind(BOOT + self.path)
        return kind is not None and kind.role in (Role.BOOT_SCRIPT, Role.OFFER)


class MirrorAnswer(Struct, frozen=True, kw_only=True):
    """What a mirror answers for a path, as far as was asked; None: it does not say, or was not asked."""

    status: int
    size: int | None = None
    sha256: str | None = None  # of what was read
    has_body: bool = False  # as far as it was read
    modified: int | None = None
    content_type: str | None = None
    cache_control: str | None = None
    encoding: str = ""
    age_s: int = 0  # for how long a cache has stored it
    redirect_url: str | None = None
    trouble: str = ""  # why there is no answer

    @property
    def is_there(self) -> bool:
        return 200 <= self.status < 400


class MirrorFinding(Struct, frozen=True, kw_only=True):
    path: str
    fault: MirrorFault
    message: str


class CheckedFile(NamedTuple):
    """What a path of a mirror turns out to be."""

    finding: MirrorFinding | None
    is_in_transition: bool = False  # whether it is right, and is the version before or after the one of now


def check_answer(file: MirrorFile, answer: MirrorAnswer) -> CheckedFile:
    """The worst that is wrong with what is answered for a file, and whether the file is about to turn."""
    if answer.status in _GONE and None in file.right:
        return CheckedFile(None, is_in_transition=file.right[0] is not None)
    present = [each for each in file.right if each is not None]
    if not present:
        return CheckedFile(check_absence(file.path, answer, _LATER))
    version = next((each for each in present if each.sha256 == answer.sha256), present[0])
    if (found := next(_faults(file, version, answer), None)) is None:
        return CheckedFile(None, is_in_transition=version != file.right[0])
    fault, message = found
    for number, other in enumerate(file.versions if fault is MirrorFault.WRONG else ()):
        if other not in present and other.sha256 is not None and other.sha256 == answer.sha256:
            until = file.versions[number + 1].since if number + 1 < len(file.versions) else None
            times = (("from", other.since), ("until", until))
            counts = " ".join(f"{word} {format_instant(at)}" for word, at in times if at is not None) or "of before"
            fault, message = MirrorFault.STALE, f"it has the version {counts}"
            break
    return CheckedFile(MirrorFinding(path=file.path, fault=fault, message=message))


def check_absence(path: str, answer: MirrorAnswer, why: str) -> MirrorFinding | None:
    """What is wrong with an answer for what nobody has published; ``why`` that matters."""
    if answer.trouble:
        return MirrorFinding(path=path, fault=MirrorFault.UNKNOWN, message=answer.trouble)
    if answer.is_there:
        message = f"it answers {answer.status} to what is not published: {why}"
        return MirrorFinding(path=path, fault=MirrorFault.EXTRA, message=message)
    if answer.status >= 500:
        return MirrorFinding(path=path, fault=MirrorFault.UNKNOWN, message=f"it answers {answer.status}")
    if answer.has_body:
        message = f"its {answer.status} has a body, which GRUB runs as a configuration"
        return MirrorFinding(path=path, fault=MirrorFault.WRONG, message=message)
    return None


def check_unknown_machine(answer: MirrorAnswer) -> MirrorFinding | None:
    """Return what is wrong with an answer for the boot script of a machine that has none.

    A cache may keep a 404 and a 410 by its own rules (RFC 9110, 15.1): Varnish keeps them for two minutes. The machine
    then stays unknown after its boot script is published.
    """
    found = check_absence(UNKNOWN_MACHINE, answer, "a machine that nobody knows would boot it")
    if found is not None or answer.status not in _GONE or not may_be_cached(answer.cache_control or ""):
        return found
    message = f"a cache may keep this {answer.status}, so a machine stays unknown: Cache-Control lacks no-store"
    return MirrorFinding(path=UNKNOWN_MACHINE, fault=MirrorFault.CACHEABLE, message=message)


def _faults(file: MirrorFile, version: FileVersion, answer: MirrorAnswer) -> Iterator[tuple[MirrorFault, str]]:
    if answer.trouble:
        yield MirrorFault.UNKNOWN, answer.trouble
    elif answer.redirect_url is not None:
        yield MirrorFault.REDIRECTED, f"firmware follows no redirect, and this one leads to {answer.redirect_url}"
    elif answer.status >= 500 or answer.status == 429:
        yield MirrorFault.UNKNOWN, f"it answers {answer.status}"
    elif answer.status != 200:
        yield MirrorFault.MISSING, "it is not there" if answer.status in _GONE else f"it answers {answer.status}"
    if answer.trouble or answer.status != 200:
        return
    is_fixed = is_immutable(BOOT + file.path)
    is_older = (
        answer.modified is not None and file.modified is not None and answer.modified < file.modified and not is_fixed
    )
    differs = MirrorFault.STALE if is_older else MirrorFault.WRONG
    if answer.encoding not in ("", "identity"):
        yield MirrorFault.WRONG, f"it is sent as {answer.encoding}, which was not asked for"
    elif answer.size is not None and answer.size != version.size_bytes:
        yield differs, f"it has {answer.size} bytes, and what is published {version.size_bytes}"
    elif answer.sha256 is not None and answer.sha256 != version.sha256:
        yield differs, f"it has the sha256 {answer.sha256}, and what is published {version.sha256}"
    elif file.keeps_time and file.modified is not None and file.is_evidence and answer.modified != file.modified:
        yield MirrorFault.UNDATED, "it has not the time of what is published, so a fetch of it proves nothing"
    wanted = find_content_type(BOOT + file.path)
    given = (answer.content_type or "").partition(";")[0].strip().lower()
    if answer.age_s > 0 and not is_fixed:
        yield MirrorFault.CACHED, f"a cache stored this answer {answer.age_s} s ago, and machines get it until it ends"
    if answer.size is None:
        yield MirrorFault.UNSIZED, "firmware and loaders have to be told the size, and there is no Content-Length"
    if answer.content_type is not None and given != wanted.partition(";")[0]:
        yield MirrorFault.MISTYPED, f"it is {wanted}, and is served as {given or 'nothing'}"
    if answer.cache_control is not None and not is_fixed and may_be_cached(answer.cache_control):
        lacking = "no-store" if file.is_entry else "no-cache"
        yield MirrorFault.CACHEABLE, f"a cache may answer with an earlier version: Cache-Control lacks {lacking}"


def may_be_cached(cache_control: str) -> bool:
    """Return whether a cache may answer with what it stored and not ask again, by its own rules if there is no rule."""
    directives = {each.strip().lower() for each in cache_control.split(",")}
    return directives.isdisjoint({"no-store", "no-cache", "max-age=0"})


# What nobody has published

UNKNOWN_MACHINE: Final = "v1/boot/02-00-00-00-00-00/boot.ipxe"  # a machine that no network card makes
PRIVATE: Final = {
    "ops/manifest.json": "what lies in ops/ is for operators, and has tokens and secrets",
    "": "it may list what there is, and so every machine",
}
SAMPLE_SIZE: Final = 100  # identities, at least, whose paths of a kind that no server has are asked for


def is_fetched_by_machines_only(path: str) -> bool:
    """Return whether a GET of this path, below boot/, may count as a machine's fetch."""
    kind = find_path_kind(BOOT + path)
    return kind is not None and kind.role is not Role.OFFER


def find_leftover_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Return what an earlier publication may have had of the same machines, and ``paths`` are not; all below boot/.

    If the tree has no path of a kind, the Fleet has not named its output for a while, and an earlier tree had such a
    path for each machine. Then the paths of `SAMPLE` machines are enough.
    """
    known = frozenset(paths)
    used = {find_path_kind(BOOT + path) for path in known}
    identities: dict[str, set[str]] = {}
    for asked in (asked for path in known for asked in parse_request_path(path)):
        name, _, identity = asked.identity.partition("/")
        identities.setdefault(name, set()).add(identity)
    may_be: set[str] = set()
    for kind in TABLE:
        if kind.needs_identity_only:
            of_kind = sorted(identities.get(kind.kind, ()))
            step = 1 if kind in used else max(1, len(of_kind) // SAMPLE_SIZE)
            may_be.update(kind.build_path(identity).removeprefix(BOOT) for identity in of_kind[::step])
    return tuple(sorted(may_be - known))


class ServedFiles(NamedTuple):
    """The files of one server as a target has them, by path below the output directory."""

    files: dict[str, str]  # their sha256
    lacks_boots: bool = False  # whether a one-time boot is due, and no endpoint is named that would serve it


def list_served_files(state: PublishedServer) -> ServedFiles:
    """Return the files of a server at a target: `render.copies` has left one-time boots out of the tree already."""
    now = (turns[0] for turns in state.paths.values() if turns and turns[0].content is not None)
    boots = [
        turn.writes
        for turn in now
        if turn.role in (Role.BOOT_SCRIPT, Role.OFFER)
        and turn.writes is not None
        and turn.writes.once
        and not turn.writes.in_copies
    ]
    return ServedFiles(
        {path: each.sha256 for path, each in state.files.items() if path.startswith(BOOT)},
        lacks_boots=bool(boots) and all(writes.hop is None for writes in boots),
    )


def build_headers(path: str) -> dict[str, str]:
    """Return the headers that a store sends with a file; those below ops/ are for gitboot alone."""
    if not path.startswith(BOOT):
        return {"Content-Type": ContentType.JSON.value, "Cache-Control": REVALIDATED}
    return {"Content-Type": find_content_type(path), "Cache-Control": find_delivery(path).cache_control}
