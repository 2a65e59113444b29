"""Tables for people: columns as wide as needed, coloured on a terminal, plain elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from gitboot.problems.order import printable

_WIDTH: Final = 100
_COLOURS = {"Network": "green", "Maintenance": "yellow", "Disk": None, "no plan": "bright_black"}


def source(item: Mapping[str, Any]) -> str:
    """What a plan's boot comes from: Maintenance/NAME, BootPolicy/NAME, or nothing."""
    kinds = (("Maintenance", item["maintenance"]), ("BootPolicy", item["policy"]))
    return next((f"{kind}/{name}" for kind, name in kinds if name), "-")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, shortened: Sequence[int] = ()) -> str:
    """Left-aligned columns with two spaces between; the header in bold.

    Where it is wider than 100 columns, these are ``shortened``, the first first, to no less than their headers.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for column in shortened:
        too_wide = sum(widths) + 2 * (len(widths) - 1) - _WIDTH
        widths[column] = max(widths[column] - max(too_wide, 0), len(header[column]))
        for line in lines:
            line[column] = _cut(line[column], widths[column])
    text = []
    for number, line in enumerate(lines):
        cells = [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        if number == 0:
            cells = [click.style(cell, bold=True) for cell in cells]
        else:
            cells = [
                click.style(cell, fg=colour) if (colour := _COLOURS.get(cell.rstrip())) else cell for cell in cells
            ]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


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
