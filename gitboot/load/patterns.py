"""Lines written as in .gitignore -> what each of them matches.

What they mean is Git's: "gitignore", PATTERN FORMAT, and dir.c and wildmatch.c where that page leaves a question.
Bytes are matched, not characters, as Git does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits, punctuation
from typing import Final, NamedTuple

SLASH: Final = ord("/")
Bytes = int  # a set of bytes: bit 97 is b"a"
_ALL: Final[Bytes] = (1 << 256) - 1
_NO_SLASH: Final[Bytes] = _ALL ^ 1 << SLASH


class NoPattern(ValueError):
    """A line that can match nothing: Git passes over it in silence."""


class Line(NamedTuple):
    """What stands in one line that is neither empty nor a comment."""

    number: int  # 1-based
    text: bytes


def lines(data: bytes) -> Iterator[Line]:
    """The lines of a file as Git reads them: without a byte order mark, CR before LF, and spaces at the end."""
    for number, line in enumerate(data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), 1):
        text = _without_spaces(line.removesuffix(b"\r"))
        if text and not text.startswith(b"#"):
            yield Line(number, text)


_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def _without_spaces(line: bytes) -> bytes:
    """The line without spaces at its end, but for one behind a backslash."""
    text = line.rstrip(b" ")
    is_escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
    return line[: len(text) + is_escaped]


class One(NamedTuple):
    """Takes one of these bytes."""

    bytes: Bytes


class Star(NamedTuple):
    """Takes any bytes, or none."""

    crosses: bool  # "/" as well


class AnyFolders(NamedTuple):
    """Takes any folders, each with its "/", or none."""


Token = One | Star | AnyFolders


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """One line: what it matches, and what follows from that."""

    tokens: tuple[Token, ...]
    is_path: bool  # matched against the whole path, else against each name in it
    takes_in: bool  # what it matches is not left out, whatever lines above say
    folders_only: bool


def parse_pattern(text: bytes) -> Pattern:
    """What a line matches; raise `NoPattern` where that is nothing."""
    takes_in = text.startswith(b"!")
    text = text.removeprefix(b"!")
    if not text:
        raise NoPattern
    glob = text.removesuffix(b"/")
    is_path = b"/" in glob
    return Pattern(
        tokens=tuple(_tokens(glob.removeprefix(b"/"), is_path)),
        is_path=is_path,
        takes_in=takes_in,
        folders_only=glob != text,
    )


def _tokens(glob: bytes, is_path: bool) -> list[Token]:
    tokens: list[Token] = []
    # Git compares bytes up to here and takes the rest for a pattern of its own: "**" may stand at its beginning.
    literal = next((index for index, byte in enumerate(glob) if byte in b"*?[\\"), len(glob))
    position = 0
    while position < len(glob):
        match chr(glob[position]):
            case "*":
                begins = is_path and (position == literal or glob[position - 1] == SLASH)
                position, token = _stars(glob, position, begins)
                if not (isinstance(token, AnyFolders) and tokens and isinstance(tokens[-1], AnyFolders)):
                    tokens.append(token)
            case "[":
                position, members = _class(glob, position + 1)
                tokens.append(One(members & _NO_SLASH))
            case "?":
                tokens.append(One(_NO_SLASH))
                position += 1
            case _:
                position, byte = _literal(glob, position)
                tokens.append(One(1 << byte))
    return tokens


def _stars(glob: bytes, position: int, begins: bool) -> tuple[int, Star | AnyFolders]:
    """Where a run of stars ends, and what it takes: more than a name only as a name of its own."""
    beyond = next((index for index in range(position, len(glob)) if glob[index] != glob[position]), len(glob))
    if begins and beyond - position > 1:
        if glob.startswith(b"/", beyond):
            return beyond + 1, AnyFolders()
        if beyond == len(glob) or glob.startswith(b"\\/", beyond):
            return beyond, Star(crosses=True)
    return beyond, Star(crosses=False)


def _class(glob: bytes, position: int) -> tuple[int, Bytes]:
    """Where a character class ends that begins before ``position``, and the bytes in it."""
    negated = glob[position : position + 1] in (b"!", b"^")
    position += negated
    members: Bytes = 0
    before = 0  # what a "-" would begin a range with
    first = True
    while first or glob[position : position + 1] != b"]":
        first = False
        byte = _at(glob, position)
        if byte == ord("-") and before and glob[position + 1 : position + 2] not in (b"", b"]"):
            position, last = _literal(glob, position + 1)
            if last < before:
                raise NoPattern
            members |= (1 << last + 1) - (1 << before)
            before = 0
        elif (name := _class_name(glob, position)) is not None:
            if name not in _CLASSES:
                raise NoPattern
            members |= _CLASSES[name]
            position, before = position + len(name) + 4, 0
        else:
            position, before = _literal(glob, position)
            members |= 1 << before
    return position + 1, members ^ (_ALL if negated else 0)


def _literal(glob: bytes, position: int) -> tuple[int, int]:
    """Where a byte ends, that may stand behind a backslash, and the byte."""
    if _at(glob, position) == ord("\\"):
        position += 1
    return position + 1, _at(glob, position)


def _at(glob: bytes, position: int) -> int:
    if position >= len(glob):
        raise NoPattern
    return glob[position]


def _class_name(glob: bytes, position: int) -> bytes | None:
    """What stands between "[:" and ":]"; None where that is not what begins here."""
    if not glob.startswith(b"[:", position):
        return None
    name = glob[position + 2 : max(glob.find(b"]", position), 0)]
    return name[:-1] if name.endswith(b":") else None


def _bytes(members: Iterable[int]) -> Bytes:
    return sum(1 << each for each in set(members))


_CLASSES: Final[Mapping[bytes, Bytes]] = {
    b"alnum": _bytes(map(ord, ascii_letters + digits)),
    b"alpha": _bytes(map(ord, ascii_letters)),
    b"blank": _bytes(b" \t"),
    b"cntrl": _bytes([*range(32), 127]),
    b"digit": _bytes(map(ord, digits)),
    b"graph": _bytes(range(33, 127)),
    b"lower": _bytes(map(ord, ascii_lowercase)),
    b"print": _bytes(range(32, 127)),
    b"punct": _bytes(map(ord, punctuation)),
    b"space": _bytes(b" \t\n\r"),
    b"upper": _bytes(map(ord, ascii_uppercase)),
    b"xdigit": _bytes(map(ord, hexdigits)),
}
