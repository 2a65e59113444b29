"""Text: format counts, compare versions, find similar names, escape control characters, remove passwords from URLs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

# Characters without a glyph that are printable according to Python: Unicode 15, Default_Ignorable_Code_Point. A
# comparison in .NET, as in the runner of GitHub Actions, may ignore such a character between two others.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# U+FE0F after a symbol only chooses the coloured glyph of that symbol.
_GLYPH_CHOICE: Final = re.compile("[\u2000-\u33ff\U0001f000-\U0001faff]\ufe0f")
# GitHub's runner reads ``::error::`` at the start of a line after any white space, and ``##[error]`` anywhere in a line
# (actions/runner, src/Runner.Common/ActionCommand.cs, TryParseV2 and TryParse). Azure Pipelines reads ``##vso[``
# anywhere (microsoft/azure-pipelines-agent, Command.TryParse), and TeamCity ``##teamcity[`` (TeamCity, "Service
# Messages"). The commands of GitLab and Buildkite contain control characters.
_COMMAND_ANYWHERE: Final = re.compile(r"#(?=#(?:vso|teamcity)?\[)", re.IGNORECASE)
_COMMAND_AT_START: Final = re.compile(r"^([ \t]*):(?=:)", re.MULTILINE)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# RFC 3986, appendix B. A backslash ends the host too, as in the URL standard of the WHATWG.
_URL: Final = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?//|)([^/?#\\]*)([^?#]*)")
_SSH_ADDRESS: Final = re.compile(r"((?:\[[^]]*\]|[^:/?#])*)([^?#]*)")  # USER@HOST:PATH, see git-fetch(1)
_HOST_AND_PORT: Final = re.compile(r"(?:\[[^][]*\]|[^][:]*)(?::[0-9]*)?")
# the number of characters to compare, which is enough for the path of a file, but not for a page of text
_LONGEST_WORD: Final = 300
_DURATION: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<weeks>\d+)w)?(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?"
    r"(?:(?P<seconds>\d+)s)?",
    re.ASCII,
)
_TAG_PREFIX: Final = re.compile("[vV](?=[0-9])")  # as in v1.10.0
# OpenShift and OKD name their prereleases 4.9.0-0.nightly-…, 4.9.0-ec.1 and 4.9.0-fc.0.
_OPENSHIFT_CANDIDATE: Final = r"[-.](?:ec|fc)(?=\.[0-9])"
_VERSION_PART: Final = re.compile(rf"[0-9]+|(?P<early>~|-0(?=\.)|{_OPENSHIFT_CANDIDATE})|[^0-9.~]+")
_PRERELEASE: Final = frozenset(
    ("alpha", "beta", "rc", "dev", "pre", "preview", "nightly", "snapshot", "test", "canary", "milestone", "unstable")
)


# Escape text


def printable(text: str) -> str:
    """Escape text for one line of output.

    The function replaces these characters with escapes: control characters (C0, DEL, C1, line ends), invisible
    characters, characters that change the order of text, unpaired surrogates, and all spaces except U+0020. It also
    escapes the first ``#`` of a command for a CI system. Escaping the result again does not change it.
    """
    if not _is_plain(text):
        text = "".join(
            char if _is_plain(char) or (_is_plain(before) and _GLYPH_CHOICE.fullmatch(before + char)) else _escape(char)
            for before, char in zip(f" {text}", text, strict=False)
        )
    return _COMMAND_ANYWHERE.sub(r"\\u0023", text)


def printable_lines(text: str) -> str:
    """Escape each line of a text with `printable`, but keep tabs.

    No line of the result begins with a command for a CI system, even after white space.
    """
    if not _is_plain(text.replace("\n", "").replace("\t", "")):
        text = "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    return _COMMAND_AT_START.sub(r"\1\\u003a", _COMMAND_ANYWHERE.sub(r"\\u0023", text))


def one_line(text: str) -> str:
    """Return the text as one `printable` line, with a single space in place of each run of white space."""
    return printable(" ".join(text.split()))


def _is_plain(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _INVISIBLE.search(text))


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return _SHORT.get(char) or "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# URLs and commands


def redact_url(url: str, *, may_be_path: bool = True) -> str:
    """Return the scheme, the host and the path of a URL, which may be invalid, for use in messages.

    The function omits the user name, the password, the query and the fragment, because these may be secrets. It shows
    "…" instead of the host and the path in these cases:

    - The host or the port is not valid.
    - There is an "@" in the path and a ":" before this "@", so that the text before the "@" may be a password.

    The function returns a path unchanged. If ``may_be_path`` is false, the text is never a path or an address of SSH
    without a scheme, and any "@" in the path of the URL hides the path, because the text before the "@" may be a token.
    """
    if may_be_path and ":" not in url.partition("/")[0] and not url.startswith("//"):
        return url
    scheme, authority, path = _URL.findall(url)[0]
    if may_be_path and not scheme:
        authority, path = _SSH_ADDRESS.findall(url)[0]
    address = authority.rpartition("@")[2]
    may_be_login = "@" in path and (not may_be_path or ":" in f"{authority}{path}".rpartition("@")[0])
    return f"{scheme}…" if may_be_login or not _HOST_AND_PORT.fullmatch(address) else f"{scheme}{address}{path}"


def quote_words(*words: object) -> str:
    """Quote words for a command that a person copies into a shell."""
    return shlex.join(map(str, words))


# Counts, names and durations


def format_count(number: int, noun: str) -> str:
    """Format a number together with its noun: 1 server, 2,000 servers."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_age(seconds: float) -> str:
    """Format an age in the largest unit that fits: 40 seconds, 9 minutes, 3 days."""
    units = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
    unit_s, unit = next(((unit_s, unit) for unit_s, unit in units if seconds >= unit_s), units[-1])
    return format_count(max(int(seconds), 0) // unit_s, unit)


def format_omitted(number: int, noun: str = "") -> str:
    """Format the number of omitted items: "and 3 more", "and 1 more server", or "" if ``number`` is not positive."""
    if number <= 0:
        return ""
    if not noun:
        return f"and {number:,} more"
    return f"and {number:,} more {noun}{'' if number == 1 else 's'}"


def format_error(error: BaseException) -> str:
    """Return the message of an error, or the class name of the error if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


def format_names(names: Sequence[str], max_names: int = 5) -> str:
    """Join the first ``max_names`` names, and add the number of remaining names: a, b and 3 more."""
    parts = (", ".join(names[:max_names]), format_omitted(len(names) - max_names))
    return " ".join(filter(None, parts))


def find_similar(value: object, choices: Iterable[str]) -> str | None:
    """Return the choice that is most similar to ``value``, ignoring case, or None."""
    text = str(value)
    if len(text) > _LONGEST_WORD:
        return None
    from difflib import get_close_matches  # imported here, because only error messages need it

    words = {word.lower(): word for word in sorted(choices)}
    close = get_close_matches(text.lower(), words, n=1)
    return words[close[0]] if close else None


def format_suggestion(value: object, choices: Iterable[str], fallback: str = "") -> str:
    """Return "did you mean …?" with the choice that is most similar to ``value``.

    If no choice is similar, return ``fallback``.
    """
    word = find_similar(value, choices)
    return f"did you mean {word}?" if word is not None else fallback


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration such as 2h, 30m, 1d12h or -15m.

    Return None if the text is not a duration. Raises `OverflowError` if the duration is too long.
    """
    match = _DURATION.fullmatch("".join(text.split()))
    if match is None or not any(char.isdigit() for char in text):
        return None
    units = match.groupdict()
    sign = units.pop("sign")
    duration = timedelta(**{unit: int(number) for unit, number in units.items() if number is not None})
    return -duration if sign == "-" else duration


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for versions.

    The key compares the numbers between dots (3602.2.3 < 3815.0), and sorts other text before numbers. Prereleases such
    as 1.2-rc1 sort before the release, and so do versions with a tilde such as 1.2~bpo1 (deb-version(7)). The key
    ignores the v of a tag such as v1.2. It compares numbers of equal length as text, because `int` rejects very long
    numbers.
    """
    key = []
    start = 1 if _TAG_PREFIX.match(version) else 0
    for match in _VERSION_PART.finditer(version.lower(), start):
        part = match[0]
        if part[0] in "0123456789":
            digits = part.lstrip("0")
            key.append((1, len(digits), digits))
        elif match["early"] or is_prerelease(part):
            key.append((-1, 0, part))
        else:
            key.append((0, 0, part))
    return (*key, (0, 0, ""))


def is_prerelease(version: str) -> bool:
    """Return whether a version names a prerelease, such as 1.12.0-beta.0, 3.25.0_rc1 or 4.9.0-ec.1."""
    if re.search(_OPENSHIFT_CANDIDATE, version, re.IGNORECASE):
        return True
    return not _PRERELEASE.isdisjoint(re.findall("[a-z]+", version.lower()))
