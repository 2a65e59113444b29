"""What a mirror has to answer for each published file, and what is wrong with what it answers; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gitboot.render.paths import BOOT, TABLE, Role, asked_for, content_type_of, is_immutable, kind_of


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


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorFile:
    """A published file that a mirror is to have."""

    path: str  # below boot/
    sha256: str
    size: int
    modified: int | None  # in seconds since 1970; None: any time is right
    keeps_time: bool = True  # whether a mirror has that time, too: its log is evidence by it
    instead: bytes | None = None  # the content, where it is not what lies in OUTPUT

    @property
    def is_evidence(self) -> bool:
        """Whether a whole answer to a GET says something of a machine, so that nobody else may ask so."""
        kind = kind_of(BOOT + self.path)
        return kind is not None and kind.role is not Role.OFFER and (self.keeps_time or kind.role is not Role.ENTRY)

    @property
    def is_entry(self) -> bool:
        """Whether it is a machine's own, and changes in place."""
        kind = kind_of(BOOT + self.path)
        return kind is not None and kind.role in (Role.ENTRY, Role.OFFER)


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorAnswer:
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
    led_to: str | None = None
    trouble: str = ""  # why there is no answer

    @property
    def is_there(self) -> bool:
        return 200 <= self.status < 400


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorFinding:
    """What is wrong with one path."""

    path: str
    fault: MirrorFault
    message: str


def judge(file: MirrorFile, answer: MirrorAnswer) -> MirrorFinding | None:
    """The worst that is wrong with what is answered for a file; None: nothing is."""
    found = next(_faults(file, answer), None)
    return MirrorFinding(path=file.path, fault=found[0], message=found[1]) if found is not None else None


def judge_absence(path: str, answer: MirrorAnswer, why: str) -> MirrorFinding | None:
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


def judge_unknown_machine(answer: MirrorAnswer) -> MirrorFinding | None:
    """Return what is wrong with an answer for the boot script of a machine that has none.

    A cache may keep a 404 and a 410 by its own rules (RFC 9110, 15.1): Varnish keeps them for two minutes. The machine
    then stays unknown after its boot script is published.
    """
    found = judge_absence(NOBODY, answer, "a machine that nobody knows would boot it")
    if found is not None or answer.status not in _GONE or not may_be_kept(answer.cache_control or ""):
        return found
    message = f"a cache may keep this {answer.status}, so a machine stays unknown: Cache-Control lacks no-store"
    return MirrorFinding(path=NOBODY, fault=MirrorFault.CACHEABLE, message=message)


def _faults(file: MirrorFile, answer: MirrorAnswer) -> Iterator[tuple[MirrorFault, str]]:
    if answer.trouble:
        yield MirrorFault.UNKNOWN, answer.trouble
    elif answer.led_to is not None:
        yield MirrorFault.REDIRECTED, f"firmware follows no redirect, and this one leads to {answer.led_to}"
    elif answer.status >= 500 or answer.status == 429:
        yield MirrorFault.UNKNOWN, f"it answers {answer.status}"
    elif answer.status != 200:
        yield MirrorFault.MISSING, "it is not there" if answer.status in _GONE else f"it answers {answer.status}"
    else:
        yield from _of_content(file, answer)
        yield from _of_headers(file, answer)


_GONE: Final = (404, 410)


def _of_content(file: MirrorFile, answer: MirrorAnswer) -> Iterator[tuple[MirrorFault, str]]:
    is_older = (
        answer.modified is not None
        and file.modified is not None
        and answer.modified < file.modified
        and not is_immutable(BOOT + file.path)
    )
    if answer.encoding not in ("", "identity"):
        yield MirrorFault.WRONG, f"it is sent as {answer.encoding}, which was not asked for"
    elif (difference := _difference(file, answer)) is not None:
        yield MirrorFault.STALE if is_older else MirrorFault.WRONG, difference
    elif file.keeps_time and file.modified is not None and file.is_evidence and answer.modified != file.modified:
        yield MirrorFault.UNDATED, "it has not the time of what is published, so a fetch of it proves nothing"


def _difference(file: MirrorFile, answer: MirrorAnswer) -> str | None:
    """How the content differs, as far as it can be seen."""
    if answer.size is not None and answer.size != file.size:
        return f"it has {answer.size} bytes, and what is published {file.size}"
    if answer.sha256 is not None and answer.sha256 != file.sha256:
        return f"it has the sha256 {answer.sha256}, and what is published {file.sha256}"
    return None


def _of_headers(file: MirrorFile, answer: MirrorAnswer) -> Iterator[tuple[MirrorFault, str]]:
    wanted = content_type_of(BOOT + file.path)
    given = (answer.content_type or "").partition(";")[0].strip().lower()
    if answer.age_s > 0 and not is_immutable(BOOT + file.path):
        yield MirrorFault.CACHED, f"a cache stored this answer {answer.age_s} s ago, and machines get it until it ends"
    if answer.size is None:
        yield MirrorFault.UNSIZED, "firmware and loaders have to be told the size, and there is no Content-Length"
    if answer.content_type is not None and given != wanted.partition(";")[0]:
        yield MirrorFault.MISTYPED, f"it is {wanted}, and is served as {given or 'nothing'}"
    if answer.cache_control is not None and not is_immutable(BOOT + file.path) and may_be_kept(answer.cache_control):
        lacking = "no-store" if file.is_entry else "no-cache"
        yield MirrorFault.CACHEABLE, f"a cache may answer with an earlier version: Cache-Control lacks {lacking}"


def may_be_kept(cache_control: str) -> bool:
    """Return whether a cache may answer with what it stored and not ask again, by its own rules if there is no rule."""
    directives = {each.strip().lower() for each in cache_control.split(",")}
    return directives.isdisjoint({"no-store", "no-cache", "max-age=0"})


# What nobody has published

NOBODY: Final = "v1/boot/02-00-00-00-00-00/boot.ipxe"  # a machine that no network card makes
PRIVATE: Final = {
    "ops/manifest.json": "what lies in ops/ is for operators, and has tokens and secrets",
    "": "it may list what there is, and so every machine",
}


SAMPLE: Final = 100  # identities, at least, whose paths of a kind that no server has are asked for


def is_read_by_machines_only(path: str) -> bool:
    """Return whether a GET of this path, below boot/, may count as a machine's fetch."""
    kind = kind_of(BOOT + path)
    return kind is not None and kind.role is not Role.OFFER


def left_over(paths: Iterable[str]) -> tuple[str, ...]:
    """Return what an earlier publication may have had of the same machines, and ``paths`` are not; all below boot/.

    If the tree has no path of a kind, the Fleet has not named its output for a while, and an earlier tree had such a
    path for each machine. Then the paths of `SAMPLE` machines are enough.
    """
    known = frozenset(paths)
    used = {kind_of(BOOT + path) for path in known}
    identities: dict[str, set[str]] = {}
    for asked in (asked for path in known for asked in asked_for(path)):
        name, _, identity = asked.identity.partition("/")
        identities.setdefault(name, set()).add(identity)
    may_be: set[str] = set()
    for kind in TABLE:
        if kind.is_of_identity:
            of_kind = sorted(identities.get(kind.kind, ()))
            step = 1 if kind in used else max(1, len(of_kind) // SAMPLE)
            may_be.update(kind.of(identity).removeprefix(BOOT) for identity in of_kind[::step])
    return tuple(sorted(may_be - known))
