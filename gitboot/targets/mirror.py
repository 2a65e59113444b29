"""Comparing a mirror with the published tree that it is a copy of: by HTTP as machines ask it, or as a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import md5, sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from gitboot.errors import HostUnreachable, PublishError
from gitboot.http_client import SLOWEST_DOWNLOAD, TOTAL_S, AnswerStream, HttpClient, MinimumRate
from gitboot.publish.manifest import MANIFEST, Manifest, digest_of
from gitboot.publish.tree import read_manifest, read_state
from gitboot.render.paths import BOOT
from gitboot.render.state import server_of
from gitboot.targets.mirrored import (
    NOBODY,
    PRIVATE,
    MirrorAnswer,
    MirrorFault,
    MirrorFile,
    MirrorFinding,
    judge,
    judge_absence,
    left_over,
)
from gitboot.targets.served import served

_CHUNK: Final = 1 << 20
_BATCH: Final = 4096  # files that are given to threads at a time
_MD5_LENGTH: Final = 32  # in hexadecimal digits
_UNPUBLISHED: Final = "it is not published, and whoever asks for it finds it"
_EARLIER: Final = "an earlier publication had it, and machines still find it"


class PublishedMirror(Protocol):
    """A copy of boot/, wherever it is; it may be asked from many threads at once."""

    def look(self, file: MirrorFile) -> MirrorAnswer:
        """What it has for a file."""

    def besides(self, files: Mapping[str, MirrorFile]) -> Iterator[MirrorFinding]:
        """What it has besides, as far as that can be seen."""


def expected(root: Path, *, as_target: bool = False) -> dict[str, MirrorFile]:
    """What a mirror of the tree at ``root`` is to have, by path below boot/, sorted; raises `PublishError`.

    A target has the tree as `served` says it, and not its times.
    """
    manifest = read_manifest(root)
    if manifest is None:
        raise PublishError(f"{root}: expected a tree that gitboot published, found no {MANIFEST}")
    instead, left_out = _instead(root, manifest) if as_target else ({}, frozenset())
    found = {}
    for path, listed in manifest.files.items():
        if not path.startswith(BOOT) or (path in left_out and path not in instead):
            continue
        try:
            modified = int((root / path).stat().st_mtime)
        except FileNotFoundError:
            continue  # a publication is under way, which withdraws it
        below, content = path.removeprefix(BOOT), instead.get(path)
        file = MirrorFile(
            path=below, sha256=listed.sha256, size=listed.size, modified=modified, keeps_time=not as_target
        )
        if content is not None:
            file = replace(file, sha256=digest_of(content), size=len(content), instead=content)
        found[below] = file
    return found


def _instead(root: Path, manifest: Manifest) -> tuple[dict[str, bytes], frozenset[str]]:
    """What a target has in the place of boots that are made once, and their paths."""
    instead: dict[str, bytes] = {}
    left_out: set[str] = set()
    for server in filter(None, map(server_of, manifest.files)):
        if (state := read_state(root, server)) is not None:
            found = served(state)
            instead |= found.instead
            left_out |= found.left_out
    return instead, frozenset(left_out)


def compared(
    look: Callable[[], dict[str, MirrorFile]],
    mirror: PublishedMirror,
    *,
    parallel: int,
    begun: Callable[[int], None],
    done: Callable[[int], None],
) -> tuple[tuple[MirrorFinding, ...], int]:
    """What is wrong with a mirror, sorted by path, and how many files were compared; ``look`` says what it is to have.

    What was published anew meanwhile is looked at again. ``begun`` is told how many files there are, and ``done`` how
    many more are done.
    """
    files = look()
    begun(len(files))
    found = [*mirror.besides(files), *_looked_at(mirror, files.values(), parallel, done)]
    now = look()
    changed = {each.path for each in found if now.get(each.path) != files.get(each.path)}
    again = _looked_at(mirror, (now[path] for path in sorted(changed & now.keys())), parallel, lambda _: None)
    kept = [each for each in found if each.path not in changed]
    return tuple(sorted((*kept, *again), key=lambda each: (each.path, each.fault))), len(files)


def _looked_at(
    mirror: PublishedMirror, files: Iterable[MirrorFile], parallel: int, done: Callable[[int], None]
) -> Iterator[MirrorFinding]:
    left, pool = iter(files), ThreadPoolExecutor(parallel, thread_name_prefix="mirror")
    try:
        while batch := list(islice(left, _BATCH)):
            for file, answer in zip(batch, pool.map(mirror.look, batch), strict=True):
                done(1)
                if (finding := judge(file, answer)) is not None:
                    yield finding
    finally:
        pool.shutdown(cancel_futures=True)


class FolderMirror:
    """A copy as it lies in a folder of this machine: all of it can be seen, but not how it is served."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._boot = folder, root / BOOT

    def look(self, file: MirrorFile) -> MirrorAnswer:
        path = self._folder / file.path
        try:
            with path.open("rb") as content:
                digest, found = sha256(), path.stat()
                while chunk := content.read(_CHUNK):
                    digest.update(chunk)
        except (FileNotFoundError, NotADirectoryError):
            return MirrorAnswer(status=404)
        except OSError as error:
            return MirrorAnswer(status=0, trouble=str(error.strerror))
        return MirrorAnswer(status=200, size=found.st_size, sha256=digest.hexdigest(), modified=int(found.st_mtime))

    def besides(self, files: Mapping[str, MirrorFile]) -> Iterator[MirrorFinding]:
        """What the published tree has not, neither published nor laid there by a person."""
        for path in sorted(path for path in self._folder.rglob("*") if not path.is_dir()):
            below = str(path.relative_to(self._folder))
            if below not in files and not (self._boot / below).exists():
                yield MirrorFinding(path=below, fault=MirrorFault.EXTRA, message=_UNPUBLISHED)


class WebMirror:
    """A copy that a web server answers from.

    Of what a machine's fetch would say something it is asked by HEAD alone, unless it is to be read: for
    `gitboot read-access-logs` a GET is a machine's fetch.
    """

    def __init__(
        self,
        url: str,
        root: Path,
        ca_bundle: Path | None,
        *,
        parallel: int,
        reads_entries: bool,
        deadline_s: float = TOTAL_S,
        rate: MinimumRate = SLOWEST_DOWNLOAD,
    ) -> None:
        """The deadline is for an answer without its body; a file has to come at the ``rate``."""
        self._url, self._boot, self._parallel, self._reads_entries = (
            url.rstrip("/"),
            root / BOOT,
            parallel,
            reads_entries,
        )
        self._client = HttpClient(ca_bundle=ca_bundle, uses_proxies=False, connections_per_host=parallel)
        self._deadline_s, self._rate = deadline_s, rate

    def look(self, file: MirrorFile) -> MirrorAnswer:
        """Ask as firmware does first, by HEAD, and then read it."""
        answer = self._asked("HEAD", file.path, file)
        if file.is_evidence and not self._reads_entries:
            return answer
        is_plain = answer.status == 200 and answer.led_to is None and answer.size == file.size
        return self._asked("GET", file.path, file) if is_plain else answer

    def besides(self, files: Mapping[str, MirrorFile]) -> Iterator[MirrorFinding]:
        """What it gives that nobody has published, as far as one can ask for it; raises `HostUnreachable`."""
        first = self._asked("GET", NOBODY)
        if first.trouble:
            raise HostUnreachable(first.trouble)
        yield from _only(judge_absence(NOBODY, first, "a machine that nobody knows would boot it"))
        for path, why in PRIVATE.items():
            yield from _only(judge_absence(path, self._asked("HEAD", path), why))
        absent = left_over(files)
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="mirror") as pool:
            for path, answer in zip(absent, pool.map(partial(self._asked, "HEAD"), absent), strict=True):
                yield from _only(judge_absence(path, answer, _EARLIER))

    def _asked(self, method: str, path: str, file: MirrorFile | None = None) -> MirrorAnswer:
        """What is answered; as many bytes of it are read as the file has, and one."""
        options: Any = {"deadline_s": self._deadline_s, "rate": self._rate}
        try:
            with self._client.stream(method, f"{self._url}/{quote(path)}", **options) as answer:
                found = _said(answer)
                if method == "HEAD":
                    return replace(found, has_md5=file is not None and self._has_md5(answer, file))
                digest, size = _read(answer, file.size + 1 if file is not None else 1)
                return replace(found, sha256=digest, has_body=size > 0)
        except (HostUnreachable, ValueError) as error:
            return MirrorAnswer(status=0, trouble=str(error))

    def _has_md5(self, answer: AnswerStream, file: MirrorFile) -> bool:
        etag = answer.headers.get("ETag", "").strip('"')
        if not file.is_evidence or len(etag) != _MD5_LENGTH:
            return False
        try:
            content = file.instead if file.instead is not None else (self._boot / file.path).read_bytes()
            return md5(content, usedforsecurity=False).hexdigest() == etag
        except OSError:
            return False


def _only(finding: MirrorFinding | None) -> Iterator[MirrorFinding]:
    if finding is not None:
        yield finding


def _said(answer: AnswerStream) -> MirrorAnswer:
    """What the head of an answer says."""
    headers, length = answer.headers, answer.headers.get("Content-Length", "")
    dated = headers.get("Last-Modified")
    return MirrorAnswer(
        status=answer.status,
        size=int(length) if length.isascii() and length.isdecimal() else None,
        modified=int(parsedate_to_datetime(dated).timestamp()) if dated is not None else None,
        content_type=headers.get("Content-Type", ""),
        cache_control=headers.get("Cache-Control", ""),
        encoding=headers.get("Content-Encoding", ""),
        led_to=headers.get("Location") if 300 <= answer.status < 400 else None,
    )


def _read(answer: AnswerStream, most_bytes: int) -> tuple[str, int]:
    """The sha256 of so many bytes at most, and how many there were."""
    digest, size = sha256(), 0
    while size < most_bytes and (chunk := answer.read(min(_CHUNK, most_bytes - size))):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size
