"""One file's bytes -> what it says: resources by document, and its problems."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

from gitboot.document import MAX_FILE_BYTES, Place, locate, parse
from gitboot.load.documents import Broken, checked
from gitboot.load.problems import START, problem_at
from gitboot.load.resources import Id, Resource
from gitboot.load.snapshot import BlobId, Oversized, Snapshot
from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedBlob:
    """What one blob says wherever it lies: resources by document, problems without a path."""

    resources: tuple[tuple[int, Resource], ...]  # (index of the document, resource)
    problems: tuple[Problem, ...]
    broken: tuple[Id, ...]  # documents that have problems of their own, but a name
    nameless: bool  # some document's kind or name could not be told


ParseCache = MutableMapping[BlobId, ParsedBlob]


def parse_blob(data: bytes, path: str) -> ParsedBlob:
    """What a file says: each of its documents as a resource, or with its problems."""
    if is_lfs_pointer(data):
        problem = problem_at(path, START, Code.LFS_POINTER, Code.LFS_POINTER.headline)
        return ParsedBlob(resources=(), problems=(problem,), broken=(), nameless=True)
    documents, parse_problems = parse(data, path)
    resources: list[tuple[int, Resource]] = []
    problems = list(parse_problems)
    broken: list[Id] = []
    nameless = bool(parse_problems)
    for document in documents:
        found = checked(document.value)
        if not isinstance(found, Broken):
            resources.append((document.index, found))
            continue
        for code, message, hint, at, key in found.findings:
            problems.append(problem_at(path, locate(data, document.index, at, key=key), code, message, hint))
        if found.id is not None:
            broken.append(found.id)
        else:
            nameless = True
    return ParsedBlob(resources=tuple(resources), problems=tuple(problems), broken=tuple(broken), nameless=nameless)


def read_blob(snapshot: Snapshot, blob: BlobId, path: str) -> ParsedBlob:
    """What the file at ``path`` says; one that no fleet needs is not read."""
    try:
        return parse_blob(snapshot.read(blob), path)
    except Oversized as error:
        return ParsedBlob(resources=(), problems=(oversized(path, START, error),), broken=(), nameless=True)


def oversized(path: str, at: Place, error: Oversized) -> Problem:
    """The problem of a file that was not read, or of who names it."""
    message = f"the file has {error.size:,} bytes, over {MAX_FILE_BYTES:,}"
    return problem_at(path, at, Code.FILE_TOO_LARGE, message)


def is_lfs_pointer(data: bytes) -> bool:
    return data.startswith(_LFS)


_LFS: Final = b"version https://git-lfs.github.com/spec/"
