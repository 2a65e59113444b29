"""Tables for people: columns as wide as needed, coloured on a terminal, plain elsewhere."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import click

from gitboot.problems.order import printable

_WIDTH: Final = 100
_COLOURS = {"Network": "green", "Maintenance": "yellow", "Disk": None, "no plan": "bright_black"}


def source(item: Mapping[str, Any]) -> str:
    """What a plan's boot comes from: Maintenance/NAME, BootPolicy/NAME, or nothing."""
    kinds = (("Maintenance", item["maintenance"]), ("BootPolicy", item["policy"]))
    return next((f"{kind}/{name}" for kind, name in kinds if name), "-")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, shortened: Sequence[int] = (), below: Sequence[str] = ()
) -> str:
    """Left-aligned columns with two spaces between; the header in bold. ``below`` has a line for below each row.

    Where it is wider than 100 columns, these are ``shortened``, the first first, to no less than their headers. If
    that is not enough, the widest are folded: their cells go on in the next lines.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for column in shortened:
        widths[column] = max(widths[column] - max(_excess(widths), 0), len(header[column]))
        for line in lines:
            line[column] = _cut(line[column], widths[column])
    widths = _fitting(widths, least=[len(name) for name in header])
    text = []
    for number, line in enumerate(lines):
        for part in zip_longest(
            *(_folded(cell, width) for cell, width in zip(line, widths, strict=True)), fillvalue=""
        ):
            cells = [cell + " " * (width - _width(cell)) for cell, width in zip(part, widths, strict=True)]
            cells[-1] = cells[-1].rstrip()
            text.append("  ".join(map(_bold if number == 0 else _coloured, cells)).rstrip())
        if number > 0 and below and below[number - 1]:
            text.append(f"    {click.style(below[number - 1], fg='bright_black')}")
    return "\n".join(text)


def _excess(widths: Sequence[int]) -> int:
    """By how many columns a table is too wide."""
    return sum(widths) + 2 * (len(widths) - 1) - _WIDTH


def _fitting(widths: Sequence[int], *, least: Sequence[int]) -> list[int]:
    """The widths with the widest made narrower until all fits, none below its ``least``; names, the first, at last."""
    found = list(widths)
    while _excess(found) > 0:
        foldable = [column for column, width in enumerate(found) if width > least[column]]
        if not foldable:
            break
        found[max(foldable, key=lambda column: (column > 0, found[column]))] -= 1
    return found


def _folded(cell: str, width: int) -> list[str]:
    """A cell in lines of at most so many columns; one that is coloured keeps its colour."""
    if _width(cell) <= width:
        return [cell]
    plain, parts = click.unstyle(cell), [""]
    for word in _WORD.findall(plain):
        if len(parts[-1]) + len(word.rstrip()) > width:
            parts += [word[at : at + width] for at in range(0, len(word), width)]
        else:
            parts[-1] += word
    return [cell.replace(plain, part.rstrip()) for part in parts if part.strip()]


_WORD: Final = re.compile(r"[^\s/]*(?:/|\s+|$)")  # a path goes on in the next line after a slash


def _bold(cell: str) -> str:
    return click.style(cell, bold=True)


def _coloured(cell: str) -> str:
    colour = _COLOURS.get(cell.rstrip())
    return click.style(cell, fg=colour) if colour else cell


def wrapped(text: str, indent: str = "") -> str:
    """A sentence in lines of at most 100 columns, the further ones indented; commands and paths stay whole."""
    return textwrap.fill(
        printable(text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or "    ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _cut(cell: str, width: int) -> str:
    """A cell of at most so many columns; one that is coloured keeps its colour."""
    plain = click.unstyle(cell)
    return cell.replace(plain, f"{plain[: width - 1]}…") if len(plain) > width else cell


def _width(cell: str) -> int:
    return len(click.unstyle(cell))
