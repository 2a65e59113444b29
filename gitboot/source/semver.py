"""Ranges of versions (semver.org), and the highest tag within one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from gitboot.errors import UsageError

Release = tuple[int, int, int]


class Version(NamedTuple):
    """A version in order of precedence, semver.org §11; build metadata counts for nothing."""

    release: Release
    is_final: bool  # False sorts first: 1.0.0-rc.1 comes before 1.0.0
    prerelease: tuple[tuple[int, int, str], ...]  # numbers before words


class Term(NamedTuple):
    """One comparison, as the versions from ``start`` to before ``stop``."""

    start: Version
    stop: Version
    names_prerelease: bool

    def holds(self, version: Version) -> bool:
        return self.start <= version < self.stop and (version.is_final or self.names_prerelease)


Range = tuple[tuple[Term, ...], ...]  # one of these, of which all hold


def highest(wanted: Range, tags: Iterable[str]) -> str | None:
    """The tag whose name is the highest version in the range; of ``v1.0.0`` and ``1.0.0`` always the same."""
    versions = ((version, tag) for tag in tags if (version := parse_version(tag)))
    within = [(version, tag) for version, tag in versions if _holds(wanted, version)]
    return max(within)[1] if within else None


def _holds(wanted: Range, version: Version) -> bool:
    return any(all(term.holds(version) for term in terms) for terms in wanted)


_NUMBER: Final = r"(0|[1-9][0-9]{0,17})"
_PART: Final = r"(0|[1-9][0-9]{0,17}|[xX*])"
_SUFFIX: Final = r"(?:-(?P<prerelease>[0-9A-Za-z.-]{1,200}))?(?:\+[0-9A-Za-z.-]+)?"
_VERSION: Final = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_SUFFIX}")
_TERM: Final = re.compile(rf"\s*([<>]=?|[=^~])?\s*v?{_PART}(?:\.{_PART})?(?:\.{_PART})?{_SUFFIX}(?:\s+|,|$)")


def parse_version(text: str) -> Version | None:
    match = _VERSION.fullmatch(text)
    return _version([int(part) for part in match.group(1, 2, 3)], match["prerelease"]) if match else None


def is_range(text: str) -> bool:
    """Whether this is meant as a range: what compares is taken for no name of a branch or tag."""
    return re.search(r"[<>=^~*|\s]", text) is not None


def parse_range(text: str) -> Range:
    """``>=1.4 <2``, ``^1.2``, ``~1.2.3``, ``1.* || 3.*``; raise `UsageError` for anything else.

    A pre-release is only within a term that names one, as in Flux and Helm: ``>=1.0.0-0`` takes them all.
    """
    return tuple(tuple(_terms(alternative.strip(), text)) for alternative in text.split("||"))


def _terms(alternative: str, text: str) -> Iterable[Term]:
    position = 0
    while position < len(alternative) or not position:
        match = _TERM.match(alternative, position)
        if match is None:
            raise UsageError(f"{text!r} is no range of versions; write >=1.4 <2, ^1.2, ~1.2.3 or 1.* || 3.*")
        yield _term(match)
        position = match.end()


_LOWEST: Final = Version((0, 0, 0), False, ())
_HIGHEST: Final = Version((1 << 63, 0, 0), False, ())


def _term(match: re.Match[str]) -> Term:
    operator, *written = match.group(1, 2, 3, 4)
    parts = [int(part) for part in written if part and part.isdigit()]
    low = _version([*parts, 0, 0, 0], match["prerelease"])
    if len(parts) == 3 and operator not in ("^", "~"):
        beyond = low._replace(prerelease=(*low.prerelease, (-1, 0, "")))  # nothing lies between the two
    else:
        beyond = _next(parts, operator)
    ranges = {
        "<": (_LOWEST, low),
        "<=": (_LOWEST, beyond),
        ">=": (low, _HIGHEST),
        ">": (beyond, _HIGHEST),
    }
    start, stop = ranges.get(operator, (low, beyond))
    return Term(start, stop, match["prerelease"] is not None)


def _next(parts: list[int], operator: str | None) -> Version:
    """Where a term ends that leaves some parts open: before the pre-releases of the next release."""
    if not parts:
        return _HIGHEST
    raised = len(parts) - 1
    if operator == "^":  # up to the first part that is not 0, which may not change
        raised = next((index for index, part in enumerate(parts) if part), raised)
    elif operator == "~":
        raised = min(raised, 1)
    return _version([*parts[:raised], parts[raised] + 1, 0, 0], None)._replace(is_final=False)


def _version(parts: list[int], prerelease: str | None) -> Version:
    identifiers = prerelease.split(".") if prerelease else ()
    return Version(
        (parts[0], parts[1], parts[2]),
        prerelease is None,
        tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in identifiers),
    )
