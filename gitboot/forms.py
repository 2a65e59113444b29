"""Documents of one form: of two that differ in words alone, the second needs no parser of YAML.

Programs write most documents of a large fleet, so these have one form: the same keys, and the same between their words.
A word is of ASCII letters and digits. Whichever it is, YAML takes it alike, for what structure a document has is said
by what stands between its words: so a value is told by its place among them. Where that is not so (escapes, tags,
blocks, text that is folded) a document has no form, and is parsed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple

Build = Callable[[list[str]], Any]

_WORDS: Final = re.compile("([0-9A-Za-z]+)")
# Escapes, directives, tags, anchors, aliases, blocks, complex keys, and what may end a line.
_FORMLESS: Final = re.compile(r"[\\%!&*|>?\t\r]|[^\n -~]")
_MOST_BYTES: Final = 16 * 1024  # of a document that has one
_MOST_WORDS: Final = 500  # likewise
_MOST: Final = 256  # of what may stand between words
_MOST_TRIES: Final = 5  # to make forms of documents that have the same there


class Quoted(str):
    """A scalar written in quotes or as a block: never null, never a plain true or false."""

    __slots__ = ()


class Spot(NamedTuple):
    """Where a value stands, in characters, and what lies in it: by key or index, with the place of the key."""

    start: int
    end: int | None = None  # of a scalar that is written
    items: dict[str, tuple[int, Spot]] | list[Spot] | None = None


class _Form(NamedTuple):
    """How a value is built of the parts of any document of one form."""

    keys_of: Callable[[list[str]], Any]  # its words that are keys, or lie in them
    keys: Any
    build: Build


class Forms:
    """The forms of the documents that were parsed; the third of one form is the first that needs no parser."""

    def __init__(self) -> None:
        # By what stands between words, those of several keys, and None for each document that had no new one: the
        # first, since most documents are alone of their form.
        self._known: dict[str, list[_Form | None]] = {}

    def value(self, parts: list[str]) -> dict[str, Any] | None:
        """What the document of these parts says; None where it has to be parsed."""
        for form in self._known.get(_between(parts), ()):
            if form is not None and form.keys_of(parts) == form.keys:
                value: dict[str, Any] = form.build(parts)
                return value
        return None

    def learn(self, parts: list[str], value: dict[str, Any], placed: Callable[[], Spot]) -> None:
        """Note what a document says that was parsed; ``placed`` gives where that stands in it."""
        between = _between(parts)
        forms = self._known.get(between)
        if forms is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[between] = [None]
        elif len(forms) < _MOST_TRIES:
            formless = len(parts) > 2 * _MOST_WORDS or _FORMLESS.search(between)
            forms.append(None if formless else _Learning(parts).form(value, placed()))


def parts_of(source: bytes) -> list[str] | None:
    """A document's words, and what stands before, between and behind them; None where it can have no form."""
    return _WORDS.split(source.decode("ascii")) if len(source) <= _MOST_BYTES and source.isascii() else None


def _between(parts: list[str]) -> str:
    return "x".join(parts[::2])


class _Formless(Exception):
    """A value does not stand in the text as it is."""


class _Learning:
    """A document of which the form is made."""

    def __init__(self, parts: list[str]) -> None:
        self._parts, self._text = parts, "".join(parts)
        self._starts = list(accumulate(map(len, parts), initial=0))
        self._keys: list[int] = []  # the numbers of parts that are words of keys

    def form(self, value: dict[str, Any], placed: Spot) -> _Form | None:
        try:
            build = self._build(value, placed)
        except _Formless:
            return None
        if not self._keys:  # which say of which documents it is the form
            return None
        keys_of = itemgetter(*self._keys)
        return _Form(keys_of, keys_of(self._parts), build)

    def _build(self, value: Any, placed: Spot) -> Build:
        if isinstance(value, dict) and isinstance(placed.items, dict):
            fields = []
            for key, (at, inside) in placed.items.items():
                self._keys += self._words(*self._span(key, at))
                fields.append((key, self._build(value[key], inside)))
            return lambda parts: {key: build(parts) for key, build in fields}
        if isinstance(value, list) and isinstance(placed.items, list):
            items = [self._build(item, inside) for item, inside in zip(value, placed.items, strict=True)]
            return lambda parts: [build(parts) for build in items]
        if placed.end is None:
            return lambda _: value
        start, end = self._span(self._text[placed.start : placed.end] if value is None else value, placed.start)
        if end + start - placed.start != placed.end:  # as many quotes behind it as before it
            raise _Formless
        return self._scalar(value, start, end)

    def _scalar(self, value: str | None, start: int, end: int) -> Build:
        words = self._words(start, end)
        if not words:
            return lambda _: value
        first, last = words[0], words[-1]
        before, behind = self._text[start : self._starts[first]], self._text[self._starts[last + 1] : end]
        if isinstance(value, Quoted):
            return lambda parts: Quoted(f"{before}{''.join(parts[first : last + 1])}{behind}")
        if before or behind or first != last:
            return lambda parts: f"{before}{''.join(parts[first : last + 1])}{behind}"
        return lambda parts: None if (word := parts[first]) == "null" else word

    def _span(self, text: str, at: int) -> tuple[int, int]:
        """Where a scalar stands, without its quotes."""
        start = at + (self._text[at] in "\"'")
        if not self._text.startswith(text, start):
            raise _Formless
        return start, start + len(text)

    def _words(self, start: int, end: int) -> range:
        """The numbers of the parts that are words between two places."""
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        return range(first | 1, last, 2)
