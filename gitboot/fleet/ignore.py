"""The file `.gitbootignore`: read the patterns in this file, and list the files of a revision that gitboot reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits, punctuation
from typing import Final, NamedTuple

from msgspec import Struct

from gitboot.fleet.documents import FILE_START, build_oversized_problem, build_problem
from gitboot.fleet.revision import Irregular, Oversized, Snapshot
from gitboot.fleet.yaml import Place
from gitboot.model.scalars import quote_value
from gitboot.problems import Code, Problem

IGNORE_FILE: Final = ".gitbootignore"
MAX_BYTES: Final = 64 * 1024  # the maximum size of the file
# the numbers of folders and of paths whose results are cached
_MAX_FOLDERS: Final = 1024
_MAX_PATHS: Final = 256 * 1024


@lru_cache(maxsize=2)  # the cache has one entry for the accepted commit and one for the next commit
def parse_ignore_file(data: bytes) -> tuple[IgnorePatterns, tuple[IgnoreLine, ...]]:
    """Return the patterns and the invalid lines in a ``.gitbootignore`` file."""
    patterns, malformed = [], []
    for line in list_lines(data):
        try:
            patterns.append(parse_pattern(line.text))
        except InvalidPattern:
            malformed.append(line)
    return IgnorePatterns(patterns), tuple(malformed)


class IgnorePatterns:
    """The patterns of a .gitbootignore file, with cached results."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._automaton = _Automaton(patterns)
        self._states_after = lru_cache(maxsize=_MAX_FOLDERS)(self._enter_folder)
        self.is_ignored: Callable[[str], bool] = lru_cache(maxsize=_MAX_PATHS)(self._match_path)

    def _match_path(self, path: str) -> bool:
        """Return whether a path is ignored. A path that ends with "/" is a folder."""
        folder, slash, name = path.removesuffix("/").rpartition("/")
        states = self._states_after(folder) if slash else self._automaton.start
        if states is None:
            return True
        return self._automaton.is_ignored(self._automaton.advance(states, name), is_folder=path.endswith("/"))

    def _enter_folder(self, folder: str) -> int | None:
        """Return the states at the start of the names in a folder, or None if the folder is ignored."""
        states = self._automaton.start
        for name in folder.split("/"):
            states = self._automaton.advance(states, name)
            if self._automaton.is_ignored(states, is_folder=True):
                return None
            states = self._automaton.enter_folder(states)
        return states


SLASH: Final = ord("/")
Bytes = int  # a set of bytes as an integer, in which bit 97 stands for b"a"
_ALL: Final[Bytes] = (1 << 256) - 1
_NO_SLASH: Final[Bytes] = _ALL ^ 1 << SLASH


class _States:
    """The states of the automaton in the order of the lines.

    Each state is a position before a token or at the end of a pattern.
    """

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._next = 0
        # the states that accept one byte, grouped by the set of bytes that they accept
        self.single_bytes: dict[Bytes, list[int]] = {}
        self.stars: list[int] = []
        self.crossing: list[int] = []  # the states of stars that also accept "/"
        self.entries: list[int] = []  # the states before an `AnyFolders`, which may match zero folders
        self.file_ends: list[int] = []
        self.ends: list[int] = []  # states at the end of a pattern
        self.negations: list[int] = []  # states at the end of a pattern with "!"
        self.at_path: list[int] = []  # states at the start of a pattern that must match a whole path
        self.at_name: list[int] = []
        for pattern in patterns:
            (self.at_path if pattern.is_path else self.at_name).append(self._next)
            for token in pattern.tokens:
                self._add(token)
            state = self._add_state()
            self.ends.append(state)
            if not pattern.folders_only:
                self.file_ends.append(state)
            if pattern.is_negated:
                self.negations.append(state)

    def _add(self, token: Token) -> None:
        match token:
            case OneByte(members):
                self.single_bytes.setdefault(members, []).append(self._add_state())
            case Star(crosses):
                state = self._add_state()
                self.stars.append(state)
                if crosses:
                    self.crossing.append(state)
            case AnyFolders():
                self.entries.append(self._add_state())
                self._add(Star(crosses=True))
                self._add(OneByte(1 << SLASH))

    def _add_state(self) -> int:
        self._next += 1
        return self._next - 1


class _Automaton:
    """One automaton for all patterns. The automaton represents a set of states as an integer with one bit per state."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        states = _States(patterns)
        self._takes = [0] * 256
        for members, accepting in states.single_bytes.items():
            bits = _to_bits(accepting)
            for byte in range(256):
                if members >> byte & 1:
                    self._takes[byte] |= bits
        self._stars = _to_bits(states.stars)
        self._crossing = _to_bits(states.crossing)
        self._entries = _to_bits(states.entries)
        self._ends = _to_bits(states.ends)
        self._file_ends = _to_bits(states.file_ends)
        self._negations = _to_bits(states.negations)
        self._at_name = self._add_skipped_states(_to_bits(states.at_name))
        self.start = self._add_skipped_states(_to_bits(states.at_path)) | self._at_name

    def advance(self, states: int, name: str) -> int:
        for byte in name.encode():
            states = self._add_skipped_states((states & self._takes[byte]) << 1 | states & self._stars)
        return states

    def enter_folder(self, states: int) -> int:
        return self._add_skipped_states((states & self._takes[SLASH]) << 1 | states & self._crossing) | self._at_name

    def is_ignored(self, states: int, *, is_folder: bool) -> bool:
        ended = states & (self._ends if is_folder else self._file_ends)
        return bool(ended) and not self._negations >> (ended.bit_length() - 1) & 1

    def _add_skipped_states(self, states: int) -> int:
        """Return these states and all states that the automaton can enter from them without reading a byte."""
        entries = states & self._entries
        states |= entries << 1 | entries << 3
        return states | (states & self._stars) << 1


def _to_bits(states: list[int]) -> int:
    """Return an integer in which the bits with these sorted numbers are set.

    This function is fast, because it does not create a new integer for each bit.
    """
    bits = bytearray(states[-1] // 8 + 1 if states else 0)
    for state in states:
        bits[state // 8] |= 1 << state % 8
    return int.from_bytes(bits, "little")


class InvalidPattern(ValueError):
    """Raised if a line is not a valid pattern. Git ignores such a line."""


class IgnoreLine(NamedTuple):
    """A line that contains a pattern. Such a line is neither empty nor a comment."""

    number: int  # 1-based
    text: bytes


_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def list_lines(data: bytes) -> Iterator[IgnoreLine]:
    """Return the lines of a file as Git reads them: without a byte order mark, a CR before LF, or trailing spaces."""
    for number, line in enumerate(data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        text = line.rstrip(b" ")
        if (len(text) - len(text.rstrip(b"\\"))) % 2:  # a trailing space after a backslash belongs to the line
            text = line[: len(text) + 1]
        if text and not text.startswith(b"#"):
            yield IgnoreLine(number, text)


class OneByte(NamedTuple):
    """A pattern token that matches a single byte from a set."""

    bytes: Bytes


class Star(NamedTuple):
    """A pattern token that matches any number of bytes."""

    crosses: bool  # also matches "/"


class AnyFolders(NamedTuple):
    """A pattern token that matches any number of folder names, each with a final "/"."""


Token = OneByte | Star | AnyFolders


class Pattern(Struct, frozen=True, kw_only=True):
    """The parsed pattern of one line."""

    tokens: tuple[Token, ...]
    is_path: bool  # True: the pattern must match the whole path. False: the pattern must match one name in the path
    # whether the pattern begins with "!", so that gitboot reads matching files even if an earlier line ignores them
    is_negated: bool
    folders_only: bool


def parse_pattern(text: bytes) -> Pattern:
    """Parse the pattern in a line. Raises `InvalidPattern` if Git would ignore the line."""
    is_negated = text.startswith(b"!")
    text = text.removeprefix(b"!")
    if not text:
        raise InvalidPattern
    glob = text.removesuffix(b"/")
    is_path = b"/" in glob
    return Pattern(
        tokens=tuple(_parse_tokens(glob.removeprefix(b"/"), is_path)),
        is_path=is_path,
        is_negated=is_negated,
        folders_only=glob != text,
    )


# The parts of a glob. A member of a bracket expression is a class such as [:alpha:], a range or a byte. The first
# member may be "]".
_NAME: Final = rb"\[:[^\]]++(?<=:)\]"
_BYTE: Final = rb"(?:\\.|[^\\\]])"
_MEMBER: Final = re.compile(rb"(?>%b|(?!\x00)%b-%b|%b)" % (_NAME, _BYTE, _BYTE, _BYTE), re.DOTALL)
_TOKEN: Final = re.compile(
    rb"(?P<stars>\*+)|\?|\[(?P<negated>[!^]?+)(?P<first>(?>%b|\](?:-%b)?+))(?P<others>(?:%b)*+)\]|\\.|[^\\*?\[]"
    % (_MEMBER.pattern, _BYTE, _MEMBER.pattern),
    re.DOTALL,
)


def _parse_tokens(glob: bytes, is_path: bool) -> list[Token]:
    tokens: list[Token] = []
    # Git compares the bytes before this position literally and treats the rest as a separate pattern, which may begin
    # with "**".
    literal = next((index for index, byte in enumerate(glob) if byte in b"*?[\\"), len(glob))
    position = 0
    while position < len(glob):
        found = _TOKEN.match(glob, position)
        if found is None:
            raise InvalidPattern
        end = found.end()
        if found["stars"]:
            # Consecutive stars match across folders only if they form a whole name.
            is_name = is_path and end - position > 1 and (position == literal or glob[position - 1] == SLASH)
            if is_name and glob.startswith(b"/", end):
                end += 1
                if not (tokens and isinstance(tokens[-1], AnyFolders)):
                    tokens.append(AnyFolders())
            else:
                tokens.append(Star(crosses=is_name and (end == len(glob) or glob.startswith(b"\\/", end))))
        elif found["negated"] is not None:
            members = _parse_members([found["first"], *_MEMBER.findall(found["others"])])
            tokens.append(OneByte((members ^ _ALL if found["negated"] else members) & _NO_SLASH))
        else:  # a byte, optionally escaped with a backslash
            tokens.append(OneByte(_NO_SLASH if found[0] == b"?" else 1 << found[0][-1]))
        position = end
    return tokens


def _parse_members(parts: Iterable[bytes]) -> Bytes:
    members: Bytes = 0
    for part in parts:
        if part.startswith(b"[:"):
            if (name := part[2:-2]) not in _CLASSES:
                raise InvalidPattern
            members |= _CLASSES[name]
        else:
            plain = re.sub(rb"\\(.)", rb"\1", part, flags=re.DOTALL)
            first, last = plain[0], plain[-1]  # the ends of a range, which are equal for a single byte
            if last < first:
                raise InvalidPattern
            members |= (1 << last + 1) - (1 << first)
    return members


def _to_byte_set(members: Iterable[int]) -> Bytes:
    return sum(1 << member for member in set(members))


_CLASSES: Final[Mapping[bytes, Bytes]] = {
    b"alnum": _to_byte_set(map(ord, ascii_letters + digits)),
    b"alpha": _to_byte_set(map(ord, ascii_letters)),
    b"blank": _to_byte_set(b" \t"),
    b"cntrl": _to_byte_set([*range(32), 127]),
    b"digit": _to_byte_set(map(ord, digits)),
    b"graph": _to_byte_set(range(33, 127)),
    b"lower": _to_byte_set(map(ord, ascii_lowercase)),
    b"print": _to_byte_set(range(32, 127)),
    b"punct": _to_byte_set(map(ord, punctuation)),
    b"space": _to_byte_set(b" \t\n\r"),
    b"upper": _to_byte_set(map(ord, ascii_uppercase)),
    b"xdigit": _to_byte_set(map(ord, hexdigits)),
}


class Listing(NamedTuple):
    """The sorted paths of a fleet's files."""

    documents: tuple[str, ...]
    # the paths of submodules, symlinks and similar entries, whose content gitboot cannot read
    irregular: tuple[str, ...]
    problems: tuple[Problem, ...]


_IRREGULAR: Final = {
    Irregular.SUBMODULE: (Code.SUBMODULE, "the folder is a submodule, so its files are not part of the commit"),
    Irregular.SYMLINK: (Code.SYMLINK, "the file is a symbolic link, whose target may be outside the commit"),
    Irregular.FILE_NAME: (Code.FILE_NAME, "the file name is not UTF-8"),
}


def list_fleet_files(snapshot: Snapshot) -> Listing:
    """List the files of a revision, except dot-files, dot-folders, and the files that ``.gitbootignore`` matches."""
    matches_pattern, problems = _read_ignore_file(snapshot)

    def is_ignored(path: str, *, is_folder: bool = False) -> bool:
        return path.startswith(".") or "/." in path or matches_pattern(f"{path}/" if is_folder else path)

    irregular = tuple(
        path
        for path, kind in sorted(snapshot.irregular.items())
        if not is_ignored(path, is_folder=kind is Irregular.SUBMODULE)
    )
    problems += (build_problem(path, FILE_START, *_IRREGULAR[snapshot.irregular[path]]) for path in irregular)
    documents = sorted(path for path in snapshot.blobs if path.endswith((".yaml", ".yml")) and not is_ignored(path))
    return Listing(tuple(documents), irregular, tuple(problems))


def _read_ignore_file(snapshot: Snapshot) -> tuple[Callable[[str], bool], list[Problem]]:
    """Return a function that returns whether a pattern matches a path, and the problems of the file."""
    blob = snapshot.blobs.get(IGNORE_FILE)
    if blob is None:
        return _ignore_nothing, []
    try:
        data = snapshot.read(blob)
    except Oversized as error:
        return _ignore_nothing, [build_oversized_problem(IGNORE_FILE, FILE_START, error)]
    if len(data) > MAX_BYTES:
        message = f"the file is {len(data):,} bytes long; the limit is {MAX_BYTES:,}"
        hint = "use folders and patterns instead of single files"
        return _ignore_nothing, [build_problem(IGNORE_FILE, FILE_START, Code.FILE_TOO_LARGE, message, hint)]
    ignore, malformed = parse_ignore_file(data)
    problems = []
    for line in malformed:
        message = f"the line is not a valid .gitignore pattern: {quote_value(line.text.decode('utf-8', 'replace'))}"
        problems.append(build_problem(IGNORE_FILE, Place(line.number, 1), Code.IGNORE_PATTERN, message))
    return ignore.is_ignored, problems


def _ignore_nothing(_: str) -> bool:
    return False
