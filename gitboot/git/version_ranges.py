"""Version ranges: recognize and parse a range such as ``>=1.4 <2``, and find the highest tag within the range."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from gitboot.errors import UsageError

Release = tuple[int, int, int]


class Version(NamedTuple):
    """A version, ordered by precedence (semver.org §11). Build metadata is ignored."""

    release: Release
    is_final: bool  # False sorts before True, because 1.0.0-rc.1 is lower than 1.0.0
    prerelease: tuple[tuple[int, int, str], ...]  # numbers sort before words


class VersionInterval(NamedTuple):
    """A half-open interval of versions, from ``start`` up to but not including ``stop``, or all versions outside it."""

    start: Version
    stop: Version
    names_prerelease: bool
    is_excluded: bool  # the range contains only the versions outside the interval


# a list of alternatives; in one alternative, all intervals must contain the version
VersionRange = tuple[tuple[VersionInterval, ...], ...]


_NUMBER: Final = r"(0|[1-9][0-9]{0,17})"
_PART: Final = r"(0|[1-9][0-9]{0,17}|[xX*])"
_IDENTIFIER: Final = r"(?:0|[1-9][0-9]{0,17}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SUFFIX: Final = rf"(?:-(?P<prerelease>{_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+{_BUILD})?"
_VERSION: Final = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_SUFFIX}")
_GAP: Final = r"[0-9xX*.]*[xX*]\.[0-9]"  # a number after a wildcard, as in 1.*.3
_TERM: Final = re.compile(
    rf"\s*([<>]=?|!=|[=^~])?\s*v?(?!{_GAP}){_PART}(?:\.{_PART})?(?:\.{_PART})?{_SUFFIX}(?:\s+|,|$)"
)
_HYPHEN: Final = re.compile(r"(?<![^\s,|])(v?[0-9]\S*)\s+-\s+(?=v?[0-9])")  # 1.2 - 1.4 means >=1.2 <=1.4


def is_range(text: str) -> bool:
    """Return whether a reference is a version range, and not the name of a branch or a tag.

    Git does not allow ``^``, ``~``, ``*`` and spaces in a name, but allows the other characters of ranges
    (git-check-ref-format(1)). A text with only those characters is a range if it begins like a range. A full name, such
    as ``refs/heads/=1``, is never a range.
    """
    if text.startswith("refs/"):
        return False
    if re.search(r"[\^~*\s]", text) or text.startswith(("<", "=", ">")):
        return True
    return re.search(r"[<=>]|\|\|", text) is not None and _TERM.match(text.partition("||")[0]) is not None


def parse_range(text: str) -> VersionRange:
    """Parse a version range such as ``>=1.4 <2``, ``^1.2`` or ``1.* || 3.*``. Raises `UsageError` for other texts.

    As in Flux and Helm, an alternative matches pre-releases only if one of its terms names a pre-release. For example,
    ``>=1.0.0-0 <2`` matches pre-releases too.
    """
    alternatives = []
    for alternative in map(str.strip, _HYPHEN.sub(r">=\1 <=", text).split("||")):
        terms, position = list[VersionInterval](), 0
        while position < len(alternative) or not position:
            match = _TERM.match(alternative, position)
            if match is None:
                raise UsageError(
                    f"{text!r} is not a version range; write, for example, `>=1.4 <2`, `^1.2`, `~1.2.3` or `1.* || 3.*`"
                )
            terms.append(_parse_term(match))
            position = match.end()
        alternatives.append(tuple(terms))
    return tuple(alternatives)


_LOWEST: Final = Version((0, 0, 0), False, ())
_HIGHEST: Final = Version((1 << 63, 0, 0), False, ())


def _parse_term(match: re.Match[str]) -> VersionInterval:
    operator, *written_parts = match.group(1, 2, 3, 4)
    parts = [int(part) for part in written_parts if part and part.isdigit()]
    low = _build_version([*parts, 0, 0, 0], match["prerelease"])
    if len(parts) == 3 and operator not in ("^", "~"):
        # this value is the next higher one, because no version lies between the two values
        next_higher = low._replace(prerelease=(*low.prerelease, (-1, 0, "")))
    else:
        next_higher = _find_next_version(parts, operator)
    ranges = {
        "<": (_LOWEST, low),
        "<=": (_LOWEST, next_higher),
        ">=": (low, _HIGHEST),
        ">": (next_higher, _HIGHEST),
    }
    start, stop = ranges.get(operator, (low, next_higher))
    return VersionInterval(start, stop, match["prerelease"] is not None, operator == "!=")


def _find_next_version(parts: list[int], operator: str | None) -> Version:
    """Return the exclusive upper end of the interval that a term in a version range describes.

    This end is lower than any pre-release of the next release.
    """
    if not parts:
        return _HIGHEST
    raised = len(parts) - 1
    if operator == "^":  # with ^, the first part that is not 0 must stay the same
        raised = next((index for index, part in enumerate(parts) if part), raised)
    elif operator == "~":
        raised = min(raised, 1)
    return _build_version([*parts[:raised], parts[raised] + 1, 0, 0], None)._replace(is_final=False)


def find_highest_tag(version_range: VersionRange, tags: Iterable[str]) -> str | None:
    """Return the tag with the highest version in the range.

    The choice between equal versions such as ``v1.0.0`` and ``1.0.0`` does not depend on the order of the tags.
    """
    versions = ((version, tag) for tag in tags if (version := parse_version(tag)))
    within = [(version, tag) for version, tag in versions if any(_contains(terms, version) for terms in version_range)]
    return max(within)[1] if within else None


def _contains(terms: tuple[VersionInterval, ...], version: Version) -> bool:
    is_eligible = version.is_final or any(term.names_prerelease for term in terms)
    return is_eligible and all((term.start <= version < term.stop) != term.is_excluded for term in terms)


def parse_version(text: str) -> Version | None:
    match = _VERSION.fullmatch(text)
    return _build_version([int(part) for part in match.group(1, 2, 3)], match["prerelease"]) if match else None


def _build_version(parts: list[int], prerelease: str | None) -> Version:
    identifiers = prerelease.split(".") if prerelease else ()
    return Version(
        (parts[0], parts[1], parts[2]),
        prerelease is None,
        tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in identifiers),
    )
