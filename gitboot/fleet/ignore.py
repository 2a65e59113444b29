"""What a ``.gitbootignore`` leaves out, in time linear in a path.

All patterns are one automaton, and the bits of one number say in which states it is: a byte of a path moves them all
at once, so nothing is ever tried again from another place, however many stars there are. (Baeza-Yates and Gonnet, "A
New Approach to Text Searching", 1992.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from gitboot.load.patterns import (
    SLASH,
    AnyFolders,
    Bytes,
    Line,
    NoPattern,
    One,
    Pattern,
    Star,
    Token,
    lines,
    parse_pattern,
)

MAX_BYTES: Final = 64 * 1024


@lru_cache(maxsize=2)  # of the accepted commit and of the next one
def read_ignore(data: bytes) -> tuple[Ignore, tuple[Line, ...]]:
    """What a file leaves out, and its lines that can match nothing."""
    patterns, malformed = [], []
    for line in lines(data):
        try:
            patterns.append(parse_pattern(line.text))
        except NoPattern:
            malformed.append(line)
    return Ignore(patterns), tuple(malformed)


class Ignore:
    """Which paths are left out; what it was asked once, it knows."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._automaton = _Automaton(patterns)
        self._behind = lru_cache(maxsize=_FOLDERS)(self._enter)
        self.leaves_out: Callable[[str], bool] = lru_cache(maxsize=_PATHS)(self._leaves_out)

    def _leaves_out(self, path: str) -> bool:
        """Whether a path, or a folder that it lies in, is left out; a path that ends with "/" is a folder."""
        folder, slash, name = path.removesuffix("/").rpartition("/")
        states = self._behind(folder) if slash else self._automaton.start
        if states is None:
            return True
        states = self._automaton.through(states, name)
        return self._automaton.leaves_out(states, is_folder=path.endswith("/"))

    def _enter(self, folder: str) -> int | None:
        """The states behind a folder's "/"; None where it is left out: nothing below can be taken in again."""
        states = self._automaton.start
        for name in folder.split("/"):
            states = self._automaton.through(states, name)
            if self._automaton.leaves_out(states, is_folder=True):
                return None
            states = self._automaton.into_folder(states)
        return states


_FOLDERS: Final = 1024
_PATHS: Final = 256 * 1024


class _States:
    """What each state of the automaton is: a token that comes next, or the end of a pattern; in the lines' order."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._next = 0
        self.ones: dict[Bytes, list[int]] = {}  # those that take one byte, by what they take
        self.stars: list[int] = []
        self.crossing: list[int] = []  # stars that take "/" as well
        self.entries: list[int] = []  # of what can be skipped: a star that crosses, and a "/"
        self.file_ends: list[int] = []
        self.ends: list[int] = []  # in a folder's name
        self.takes_in: list[int] = []  # ends of patterns that do
        self.at_path: list[int] = []  # where patterns begin
        self.at_name: list[int] = []
        for pattern in patterns:
            (self.at_path if pattern.is_path else self.at_name).append(self._next)
            for token in pattern.tokens:
                self._add(token)
            self._end(pattern)

    def _add(self, token: Token) -> None:
        match token:
            case One(members):
                self.ones.setdefault(members, []).append(self._state())
            case Star(crosses):
                state = self._state()
                self.stars.append(state)
                self.crossing += [state] * crosses
            case AnyFolders():
                self.entries.append(self._state())
                self._add(Star(crosses=True))
                self._add(One(1 << SLASH))

    def _end(self, pattern: Pattern) -> None:
        state = self._state()
        self.ends.append(state)
        self.file_ends += [state] * (not pattern.folders_only)
        self.takes_in += [state] * pattern.takes_in

    def _state(self) -> int:
        self._next += 1
        return self._next - 1


class _Automaton:
    """All patterns at once: which states it can be in is a number, a bit for each."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        states = _States(patterns)
        self._takes = [0] * 256
        for members, taking in states.ones.items():
            bits = _bits(taking)
            for byte in range(256):
                if members >> byte & 1:
                    self._takes[byte] |= bits
        self._stars, self._crossing, self._entries = map(_bits, (states.stars, states.crossing, states.entries))
        self._ends, self._file_ends, self._takes_in = map(_bits, (states.ends, states.file_ends, states.takes_in))
        self._at_name = self._with_skipped(_bits(states.at_name))
        self.start = self._with_skipped(_bits(states.at_path)) | self._at_name

    def through(self, states: int, name: str) -> int:
        """The states behind a name in a path."""
        for byte in name.encode():
            states = self._with_skipped((states & self._takes[byte]) << 1 | states & self._stars)
        return states

    def into_folder(self, states: int) -> int:
        """The states behind the "/" that ends a folder's name."""
        return self._with_skipped((states & self._takes[SLASH]) << 1 | states & self._crossing) | self._at_name

    def leaves_out(self, states: int, *, is_folder: bool) -> bool:
        """Whether the last pattern that matches says so, when all of a path was taken."""
        ended = states & (self._ends if is_folder else self._file_ends)
        return bool(ended) and not self._takes_in >> (ended.bit_length() - 1) & 1

    def _with_skipped(self, states: int) -> int:
        """The states, and those that are reached from them by taking nothing."""
        entries = states & self._entries
        states |= entries << 1 | entries << 3
        return states | (states & self._stars) << 1


def _bits(states: list[int]) -> int:
    """A number with these bits; they come in order. Built at once: to set them one by one copies it each time."""
    bits = bytearray(states[-1] // 8 + 1 if states else 0)
    for state in states:
        bits[state // 8] |= 1 << state % 8
    return int.from_bytes(bits, "little")
