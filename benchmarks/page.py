"""The page docs/explanation/benchmarks.md: tables and plots of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cost import Cost, median
from benchmarks.plot import COLOURS, Line, draw
from benchmarks.rows import ROWS
from benchmarks.run import LARGEST, Result, Run

_FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "explanation"
_SHOWN_PROCESSES: Final = 3
_TITLES: Final = {row.name: row.title for row in ROWS}


def write_page(run: Run, folder: Path = _FOLDER) -> None:
    """Write the page and its plots, and remove plots that the page no longer has."""
    (plots := folder / "benchmarks").mkdir(exist_ok=True)
    drawn = {f"{name}.svg": svg for name, svg in draw_plots(run).items()}
    for path in plots.iterdir():
        if path.name not in drawn:
            path.unlink()
    for name, svg in drawn.items():
        (plots / name).write_text(svg)
    (folder / "benchmarks.md").write_text(render_page(run))


# Cells


def _seconds(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f} s"
    for least, unit, times in ((1, "s", 1), (1e-3, "ms", 1e3)):
        if value >= least:
            return f"{value * times:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _peak(result: Result) -> str:
    """Return the memory of the largest process."""
    peak_mib = median(result.rounds).peak_mib
    return "" if peak_mib is None else f"{peak_mib:,.0f} MiB"


def _memory(result: Result) -> str:
    """Return the memory of each process."""
    return _sizes(result.rounds)


def _format_other_memory(result: Result) -> str:
    return _sizes(_other_costs(result))


def _sizes(costs: Sequence[Cost]) -> str:
    sizes_mib = median(costs).memory_mib
    if not sizes_mib:
        return ""
    each = " + ".join(f"{size:,.0f}" for size in sizes_mib[:_SHOWN_PROCESSES])
    others = sizes_mib[_SHOWN_PROCESSES:]
    return f"{each} MiB" + (f", {len(others)} more: {sum(others):,.0f} MiB" if others else "")


def _memory_per_server(result: Result) -> str:
    """Return the memory of all processes for each server."""
    return f"{sum(median(result.rounds).memory_mib) * 1024 / result.servers:,.3g} KiB"


def _per_second(costs: Sequence[Cost]) -> str:
    """Return how many requests one core answers in a second."""
    return f"{1 / median(costs).cpu_s:,.0f}"


def _other_costs(result: Result) -> Sequence[Cost]:
    return next(iter(result.beside.values()))


# Tables

_Column = tuple[str, Callable[[Result], str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Section:
    """A heading with a table, and maybe a plot."""

    title: str
    text: str
    rows: tuple[str, ...]
    columns: tuple[_Column, ...]
    other: _Column  # of each other version
    plotted: Callable[[Result], float] | None = None
    y_title: str = ""


def _cpu(result: Result) -> float:
    return median(result.rounds).cpu_s


def _wall(result: Result) -> float:
    return median(result.rounds).wall_s


_COSTS: Final[tuple[_Column, ...]] = (
    ("CPU", lambda result: _seconds(_cpu(result))),
    ("wall", lambda result: _seconds(_wall(result))),
    ("peak", _peak),
    ("", lambda result: result.note),
)
_OTHER_CPU: Final[_Column] = ("CPU", lambda result: _seconds(_cpu(result)))

SECTIONS: Final = (
    _Section(
        title="Start",
        text=(
            "A first pass and a restart end with the last published file. The other starts end with the first "
            "answer to a machine."
        ),
        rows=("first-pass", "restart", "endpoint-start", "take-over", "take-over-empty"),
        columns=_COSTS,
        other=("CPU, wall", lambda result: f"{_seconds(_cpu(result))}, {_seconds(_wall(result))}"),
        plotted=_cpu,
        y_title="seconds of CPU",
    ),
    _Section(
        title="Commits",
        text="The wall time ends when the instance has published the last file.",
        rows=("readme", "one-server", "policy"),
        columns=_COSTS,
        other=_OTHER_CPU,
        plotted=_cpu,
        y_title="seconds of CPU",
    ),
    _Section(
        title="Memory",
        text="The table shows the memory of each process after some commits.",
        rows=("memory",),
        columns=(("memory", _memory), ("a server", _memory_per_server)),
        other=("a server", _memory_per_server),
    ),
    _Section(
        title="Memory after many commits",
        text="Each commit changes one server. The instance rests before and after.",
        rows=("many-commits",),
        columns=(("before", _format_other_memory), ("after", _memory), ("", lambda result: result.note)),
        other=("after", _memory),
    ),
    _Section(
        title="Commands",
        text="Only the first command runs without a cache.",
        rows=("validate", "validate-again", "diff", "explain"),
        columns=_COSTS,
        other=_OTHER_CPU,
    ),
    _Section(
        title="Requests",
        text=(
            "`gitboot serve` and nginx serve the same boot scripts. The table shows how many requests one core answers "
            "in a second."
        ),
        rows=("requests",),
        columns=(
            ("gitboot", lambda result: _per_second(result.rounds)),
            ("nginx", lambda result: _per_second(_other_costs(result))),
            ("share of nginx", lambda result: f"{median(_other_costs(result)).cpu_s / _cpu(result):.2f}"),
            ("peak", _peak),
        ),
        other=("requests a second", lambda result: _per_second(result.rounds)),
    ),
    _Section(
        title="Requests during a commit",
        text=(
            "A client fetches 200 boot scripts a second, while a commit changes every server. The figures are 99th "
            "percentiles."
        ),
        rows=("latency",),
        columns=(
            ("no commit", lambda result: _seconds(median(_other_costs(result)).wall_s)),
            ("during the commit", lambda result: _seconds(_wall(result))),
        ),
        other=("during the commit", lambda result: _seconds(_wall(result))),
    ),
    _Section(
        title="BMCs",
        text=(
            "Each BMC uses TLS and answers after 300 ms. An instance starts, and sets and confirms an override on each "
            "BMC. Stock sushy does the same with 64 threads and without a ledger."
        ),
        rows=("bmcs",),
        columns=(
            ("BMCs a second", lambda result: f"{1 / _wall(result):,.0f}"),
            ("CPU each", lambda result: _seconds(_cpu(result))),
            ("peak", _peak),
            ("sushy: BMCs a second", lambda result: f"{1 / median(_other_costs(result)).wall_s:,.0f}"),
            ("CPU each", lambda result: _seconds(median(_other_costs(result)).cpu_s)),
        ),
        other=("BMCs a second", lambda result: f"{1 / _wall(result):,.0f}"),
    ),
    _Section(
        title="Cobbler",
        text=(
            "Cobbler 3.3 writes the files of systems that it has in memory. gitboot parses, checks and publishes as "
            "many servers."
        ),
        rows=("cobbler",),
        columns=(_COSTS[0], ("Cobbler: CPU", lambda result: _seconds(median(_other_costs(result)).cpu_s))),
        other=_OTHER_CPU,
    ),
)

# The page

_DEFINITIONS: Final = """\
- *CPU* is the user and system time of all processes of gitboot.
- *Wall* is the time that you wait.
- *Peak* is the memory of the largest process.
"""

_MEASURE_AGAIN: Final = """\
## Measure again

`make bench` needs root, 8 GiB of memory and some hours. It installs Debian packages, and writes this page.

```
make bench                                 # all rows, for 1,000 to 100,000 servers
make bench BENCH='first-pass --sizes 1000' # one row, printed; this page does not change
```

`make bench BENCH=--help` lists all options. For the cost of copies, see [Publishing](publishing.md#what-copies-cost).
"""


def render_page(run: Run) -> str:
    """Return the page as Markdown."""
    return "\n".join(
        [*_introduction(run), *(line for each in SECTIONS for line in _section(run, each)), _MEASURE_AGAIN]
    )


def _introduction(run: Run) -> Iterator[str]:
    now, *others = run.versions
    yield "# Benchmarks\n"
    yield (
        "This page shows what gitboot costs, and how to measure it again. "
        f"One run of `make bench` measured all figures, on {run.date}, on one machine: {run.machine}. "
        f"Files were {'in memory' if run.files == 'memory' else 'on a new ext4'}. "
        f"Each figure is the median of {run.rounds} rounds, at {LARGEST:,} servers of one. "
        f"gitboot is commit {now['commit']}, with Python {now['python']}."
        + "".join(f" *{each['name']}* is commit {each['commit']}, with Python {each['python']}." for each in others)
        + "\n"
    )
    yield _DEFINITIONS
    if max(run.load, default=0.0) > 1:
        yield f"Other programs used the machine, which had a load of up to {max(run.load):.1f}. Compare the CPU.\n"


def _section(run: Run, section: _Section) -> Iterator[str]:
    now, *others = (each["name"] for each in run.versions)
    measured = [result for row in section.rows for result in run.find(row, now)]
    if not measured:
        return
    yield f"## {section.title}\n\n{section.text}\n"
    if (name := _plot_name(run, section)) is not None:
        yield f"![{section.title}: {section.y_title}](benchmarks/{name}.svg)\n"
    columns = [column for column in section.columns if any(column[1](each) for each in measured if each.rounds)]
    heads = ["", "servers", *(head for head, _ in columns), *(f"{each}: {section.other[0]}" for each in others)]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for position, result in enumerate(measured):
        title = _TITLES[result.row] if position == 0 or measured[position - 1].row != result.row else ""
        if result.rounds:
            cells = [cell(result) for _, cell in columns]
        else:
            cells = [f"not measured: {result.failure}", *[""] * (len(columns) - 1)][: len(columns)]
        theirs = [_format_other_version(run, section, result, version) for version in others]
        yield f"| {' | '.join([title, f'{result.servers:,}', *cells, *theirs])} |"
    yield ""


def _format_other_version(run: Run, section: _Section, result: Result, version: str) -> str:
    found = [each for each in run.find(result.row, version) if each.servers == result.servers and each.rounds]
    return section.other[1](found[0]) if found else ""


# Plots


def draw_plots(run: Run) -> dict[str, str]:
    """Return the SVG of each plot, by name."""
    return {
        name: draw(lines, f"{section.title}: {section.y_title} by number of servers", "servers", section.y_title)
        for section in SECTIONS
        if (name := _plot_name(run, section)) is not None and (lines := plot_lines(run, section))
    }


def _plot_name(run: Run, section: _Section) -> str | None:
    return section.title.lower() if plot_lines(run, section) else None


def plot_lines(run: Run, section: _Section) -> list[Line]:
    """Return a line for each row and version with at least two sizes."""
    if section.plotted is None:
        return []
    now, *others = (each["name"] for each in run.versions)
    lines, short = list[Line](), {row: row.replace("-", " ") for row in section.rows}
    for row, colour in zip(section.rows, COLOURS, strict=False):
        for version in (now, *others):
            measured = [each for each in run.find(row, version) if each.rounds]
            points = [(each.servers, section.plotted(each)) for each in measured]
            name = short[row] if version == now else f"{short[row]}, {version}"
            lines.append(Line(name=name, points=points, colour=colour, is_dashed=version != now))
    return [line for line in lines if len(line.points) > 1]
