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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns with two spaces between; the header in bold."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
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


def _width(cell: str) -> int:
    return len(click.unstyle(cell))
