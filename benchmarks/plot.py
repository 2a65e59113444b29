"""Line plots as small SVG files, with logarithmic axes, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 14, 38  # margins; names of lines are on the right
_NAME_STEP: Final = 15  # between two names

# Colours of Okabe and Ito, which colour-blind readers can distinguish; a line without a colour is a minimum.
COLOURS: Final = ("#2b86d1", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
_STYLE: Final = """\
text{font:12px sans-serif;fill:#24292f}
.grid{stroke:#24292f;stroke-opacity:.15}
.floor{stroke:#57606a;stroke-dasharray:5 4}
polyline{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#e6edf3}.floor{stroke:#9198a1}}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The points of one line, in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str | None = None  # None: a dashed grey line, for another program
    is_dashed: bool = False


def draw(lines: Sequence[Line], title: str, x_title: str, y_title: str) -> str:
    """Return the SVG of these lines. Every coordinate must be above 0."""
    x_axis = _Axis.of((x for line in lines for x, _ in line.points), _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis.of((y for line in lines for _, y in line.points), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        f' role="img"><title>{escape(title)}</title><style>{_STYLE}</style>',
        *_grid(x_axis, y_axis),
        *(_line(line, x_axis, y_axis) for line in lines),
        *_names(lines, y_axis),
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:g}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate(12 {(_TOP + _HEIGHT - _BOTTOM) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """Whole decades, from one pixel to another."""

    first: int  # exponents
    last: int
    begin: float
    end: float

    @classmethod
    def of(cls, values: Iterable[float], begin: float, end: float) -> _Axis:
        found = list(values)
        first = math.floor(math.log10(min(found)))
        return cls(first=first, last=max(first + 1, math.ceil(math.log10(max(found)))), begin=begin, end=end)

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for exponent in range(self.first, self.last + 1):
            yield self.place(10.0**exponent), f"{10.0**exponent:,.0f}" if exponent >= 0 else f"{10.0**exponent:g}"


def _grid(x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    for x, label in x_axis.ticks():
        yield f'<path class="grid" d="M{x:g} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{x:g}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{label}</text>'
    for y, label in y_axis.ticks():
        yield f'<path class="grid" d="M{_LEFT} {y:g}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{label}</text>'


def _line(line: Line, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
    dots = "".join(f'<circle cx="{x:g}" cy="{y:g}" r="3"/>' for x, y in places) if line.colour else ""
    path = " ".join(f"{x:g},{y:g}" for x, y in places)
    return f'<polyline {_format_style(line)} points="{path}"/>' + (
        f'<g fill="{line.colour}">{dots}</g>' if dots else ""
    )


def _format_style(line: Line) -> str:
    if line.colour is None:
        return 'class="floor"'
    return f'stroke="{line.colour}"' + (' stroke-dasharray="5 4"' if line.is_dashed else "")


def _names(lines: Sequence[Line], y_axis: _Axis) -> Iterator[str]:
    """Write each name at the end of its line, without overlap, with a short piece of the line before it."""
    x, free_from = _WIDTH - _RIGHT + 8, 0.0
    wanted = sorted((y_axis.place(line.points[-1][1]), index) for index, line in enumerate(lines))
    room = _HEIGHT - _BOTTOM
    for position, (end, index) in enumerate(wanted):
        lowest = room - (len(wanted) - 1 - position) * _NAME_STEP
        y = max(free_from, min(end, lowest))
        free_from = y + _NAME_STEP
        yield f'<polyline {_format_style(lines[index])} points="{x},{y:g} {x + 14},{y:g}"/>'
        yield f'<text x="{x + 18}" y="{y + 4:g}">{escape(lines[index].name)}</text>'
