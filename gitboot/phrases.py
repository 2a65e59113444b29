"""Phrases that messages have in common: a count and its noun, the first of many, the word that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_LONGEST_WORD: Final = 300  # characters that are compared: a file's path is one, a page of text is none


def count(number: int, noun: str) -> str:
    """A count and its noun, in the plural unless it is one: 1 server, 2,000 servers."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def more(number: int, noun: str = "") -> str:
    """What is left out: and 3 more, and 1 more server; nothing where all is shown."""
    if number <= 0:
        return ""
    return f"and {number:,} more" + (f" {noun}{'' if number == 1 else 's'}" if noun else "")


def in_one_line(error: BaseException) -> str:
    """What an error says, or is called where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def some(names: Sequence[str], most: int = 5) -> str:
    """The first ``most`` names, and how many more there are: a, b and 3 more."""
    return " ".join(filter(None, (", ".join(names[:most]), more(len(names) - most))))


def near(found: object, known: Iterable[str]) -> str | None:
    """The known word that ``found`` is most like, whatever their case; None where none is like it."""
    if len(text := str(found)) > _LONGEST_WORD:
        return None
    from difflib import get_close_matches  # wanted by errors only

    words = {word.lower(): word for word in sorted(known)}
    close = get_close_matches(text.lower(), words, n=1)
    return words[close[0]] if close else None


def did_you_mean(found: object, known: Iterable[str], otherwise: str = "") -> str:
    """ "did you mean …?" with the known word that is most like ``found``, or ``otherwise``."""
    word = near(found, known)
    return f"did you mean {word}?" if word is not None else otherwise
