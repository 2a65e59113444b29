"""Mirror answers: check a mirror's response for one file against the versions that the file may have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct, field

from gitboot.jsonio import format_instant
from gitboot.publish.signed_list_reader import FileVersion
from gitboot.render.paths import BOOT, Role, find_content_type, find_path_kind, is_immutable
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
