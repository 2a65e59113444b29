"""One file's bytes -> what it says: resources by document, and its problems."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from gitboot.fleet.documents import (
    ANYTHING,
    START,
    Broken,
    Finding,
    Unread,
    checked,
    problem_at,
    unread_document,
    unread_text,
)
from gitboot.fleet.resources import Id, Resource
from gitboot.fleet.revision_from_document import MAX_FILE_BYTES
from gitboot.fleet.yaml import Place, locate, parse
from gitboot.load.snapshot import BlobId, Oversized, Snapshot
from gitboot.model.server import Server
from gitboot.problems.codes import MAX_KEPT, Code, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedBlob:
    """What one blob says wherever it lies: resources by document, problems without a path."""

    resources: tuple[tuple[int, Resource], ...]  # (index of the document, resource)
    problems: tuple[Problem, ...]  # the first ones, sorted
    more: int  # that lie behind those
    broken: tuple[Id, ...]  # documents that have problems of their own, but a name
    unread: tuple[Unread, ...]  # documents whose kind or name could not be told

    @property
    def has_only_servers(self) -> bool:
        """Return whether the blob has only valid Server documents, and at least one."""
        if self.problems or self.more or self.broken or self.unread or not self.resources:
            return False
        return all(isinstance(resource, Server) for _, resource in self.resources)


ParseCache = MutableMapping[BlobId, ParsedBlob]


def parse_blob(data: bytes, path: str) -> ParsedBlob:
    """What a file says: each of its documents as a resource, or with its problems."""
    if is_lfs_pointer(data):
        problem = problem_at(path, START, Code.LFS_POINTER, Code.LFS_POINTER.headline)
        return ParsedBlob(resources=(), problems=(problem,), more=0, broken=(), unread=(ANYTHING,))
    parsed = parse(data, path)
    resources: list[tuple[int, Resource]] = []
    problems: list[Problem] = []
    more = parsed.more
    broken: list[Id] = []
    unread = [ANYTHING] if parsed.unread is None else [unread_text(text) for text in parsed.unread]
    for document in parsed.documents:
        found = checked(document.value)
        if not isinstance(found, Broken):
            resources.append((document.index, found))
            continue
        shown = _problems(data, path, document.index, found.findings, MAX_KEPT - len(problems))
        problems += shown
        more += len(found.findings) - len(shown)
        if found.id is not None:
            broken.append(found.id)
        else:
            unread.append(unread_document(document.value.get("kind"), document.value))
    problems = sorted([*problems, *parsed.problems])
    return ParsedBlob(
        resources=tuple(resources),
        problems=tuple(problems[:MAX_KEPT]),
        more=more + len(problems[MAX_KEPT:]),
        broken=tuple(broken),
        unread=tuple(unread),
    )


def _problems(data: bytes, path: str, index: int, findings: Iterable[Finding], at_most: int) -> list[Problem]:
    """The first findings of a document, by their places."""
    if at_most <= 0:
        return []
    placed = [(locate(data, index, each.at, key=each.key), each) for each in findings]
    placed.sort(key=itemgetter(0))
    return [problem_at(path, place, *each.word()) for place, each in placed[:at_most]]


def read_blob(snapshot: Snapshot, blob: BlobId, path: str) -> ParsedBlob:
    """What the file at ``path`` says; one that no fleet needs is not read."""
    try:
        return parse_blob(snapshot.read(blob), path)
    except Oversized as error:
        return ParsedBlob(
            resources=(), problems=(oversized(path, START, error),), more=0, broken=(), unread=(ANYTHING,)
        )


def oversized(path: str, at: Place, error: Oversized) -> Problem:
    """The problem of a file that was not read."""
    return problem_at(path, at, Code.FILE_TOO_LARGE, too_large(error))


def too_large(error: Oversized) -> str:
    return f"the file has {error.size:,} bytes, over {MAX_FILE_BYTES:,}"


def is_lfs_pointer(data: bytes) -> bool:
    return data.startswith(_LFS)


_LFS: Final = b"version https://git-lfs.github.com/spec/"
