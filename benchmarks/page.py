"""What was measured as a page: a table and a plot a row, kept in `docs/benchmarks/measured.json` from run to run."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import ROUNDS
from benchmarks.row import Figure, Row
from benchmarks.rows import ROWS

_DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
_PAGE: Final = _DOCS / "benchmarks.md"
_FOLDER: Final = _DOCS / "benchmarks"
_KEPT: Final = _FOLDER / "measured.json"
_BEGIN: Final = "<!-- what `make bench` writes begins here -->"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A row at one size, in one place."""

    row: Row
    servers: int
    where: str
    figure: Figure | None = None
    cannot: str = ""
    rounds: int = ROUNDS
    failed: bool = False
    late: bool = False  # there was no time left for it: what the page says of it stays

    def line(self) -> str:
        """For who watches."""
        head = f"{self.row.name:9} {self.servers:>9,} {self.where:7}"
        if self.figure is None:
            return f"{head} {self.cannot}"
        return f"{head} {'  '.join(cell for cell in _cells(self.facts()) if cell)}"

    def facts(self) -> dict[str, Any]:
        """As it is kept."""
        facts: dict[str, Any] = {"row": self.row.name, "servers": self.servers, "where": self.where}
        if self.figure is None:
            return {**facts, "cannot": self.cannot}
        cost, floor = self.figure.cost, self.figure.floor
        facts |= {"cpu": cost.cpu_s, "wall": cost.wall_s, "peak": cost.peak_mib, "note": self.figure.note}
        if self.rounds != ROUNDS:
            facts["rounds"] = self.rounds
        return facts | ({"floorCpu": floor.cpu_s, "floorWall": floor.wall_s} if floor is not None else {})


def write(found: Iterable[Measured]) -> None:
    """Put what was measured in the place of what was kept of the same rows, sizes and places."""
    kept = json.loads(_KEPT.read_text()) if _KEPT.exists() else []
    by_key = {_key(each): each for each in (*kept, *(each.facts() for each in found))}
    facts = [by_key[key] for key in sorted(by_key)]
    _FOLDER.mkdir(exist_ok=True)
    _KEPT.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    text = _PAGE.read_text().partition(_BEGIN)[0]
    _PAGE.write_text(f"{text}{_BEGIN}\n\n" + "\n".join(sections(facts)))


def _key(facts: dict[str, Any]) -> tuple[str, str, int]:
    """What stands once: of a row that has one size, whichever that was."""
    servers = 0 if facts["row"] in _OF_ONE_SIZE else facts["servers"]
    return facts["row"], facts["where"], servers


_OF_ONE_SIZE: Final = frozenset(row.name for row in ROWS if row.only is not None)


def sections(facts: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"Python {platform.python_version()}, Linux {platform.release().partition('-')[0]}, {platform.machine()}.\n"
    for row in ROWS:
        if mine := [each for each in facts if each["row"] == row.name]:
            yield "\n".join(_section(row, mine)) + "\n"


def _section(row: Row, facts: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"### {row.title}\n"
    beside = f" Beside it: {row.floor}." if row.floor else ""
    yield f"`python -m benchmarks {row.name}`. Goal: {row.goal}.{beside}\n"
    yield from dict.fromkeys(f"Not measured: {each['cannot']}.\n" for each in facts if "cannot" in each)
    measured = sorted(
        (each for each in facts if "cannot" not in each), key=lambda each: (each["where"], each["servers"])
    )
    if not measured:
        return
    yield "| servers | files in | CPU | wall | peak | beside it: CPU | wall | CPU ÷ | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in measured:
        cells = (f"{each['servers']:,}" if row.only is None else "", each["where"], *_cells(each))
        yield f"| {' | '.join(cells)} |"
    if _plotted(row, measured):
        yield f"\n![{row.title}: cost against the number of servers](benchmarks/{row.name}.svg)"


def _cells(facts: dict[str, Any]) -> tuple[str, ...]:
    floor_cpu = facts.get("floorCpu")
    return (
        _seconds(facts["cpu"]),
        _seconds(facts["wall"]),
        f"{facts['peak']:,.0f} MiB" if facts["peak"] else "",
        _seconds(floor_cpu) if floor_cpu else "",
        _seconds(facts["floorWall"]) if "floorWall" in facts else "",
        f"{facts['cpu'] / floor_cpu:.3g}" if floor_cpu else "",
        "; ".join(filter(None, (facts["note"], _fewer(facts.get("rounds"))))),
    )


def _fewer(rounds: int | None) -> str:
    """That a figure is the median of another number of rounds than the page says."""
    return "" if rounds is None else f"{rounds} rounds" if rounds > 1 else "one round"


def _seconds(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f} s"
    for least, unit, times in ((1, "s", 1), (1e-3, "ms", 1e3)):
        if value >= least:
            return f"{value * times:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _plotted(row: Row, facts: Sequence[dict[str, Any]]) -> bool:
    """Draw cost against size, where there was more than one; say whether."""
    if len({each["servers"] for each in facts}) < 2:
        return False
    try:
        import matplotlib as mpl  # an extra of its own: no test draws
    except ImportError:
        return (_FOLDER / f"{row.name}.svg").exists()  # the figures count without their plots

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "gitboot", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
        for label, style, points in _lines(facts):
            axes.plot(*zip(*points, strict=True), style, label=label)
        axes.set(xscale="log", yscale="log", xlabel="servers", ylabel="seconds")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()
        figure.savefig(_FOLDER / f"{row.name}.svg", metadata={"Date": None})
        plt.close(figure)
    return True


def _lines(facts: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, list[tuple[int, float]]]]:
    """What is drawn: a name, how, and the seconds for each number of servers."""
    for where in dict.fromkeys(each["where"] for each in facts):
        here = [each for each in facts if each["where"] == where]
        yield f"CPU, {where}", "o-", [(each["servers"], each["cpu"]) for each in here]
        yield f"wall, {where}", ".:", [(each["servers"], each["wall"]) for each in here]
    if floors := {each["servers"]: each["floorCpu"] for each in facts if each.get("floorCpu")}:
        yield "CPU of what is beside it", "k--", list(floors.items())
