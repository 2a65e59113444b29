"""The page of operators in a real browser: what a keystroke, a frame of scrolling, a filter and an order cost.

The processor's time of the page's main thread counts, by Chromium's own trace: a busy machine makes little difference.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from benchmarks.cost import Cost
from benchmarks.fleet import RACK, name_of
from benchmarks.row import CannotRun, Figure
from gitboot.canonical import canonical
from gitboot.render.page import FORMAT, MADE_OF, script_of, static
from gitboot.render.page.shards import COLUMNS, shard_of
from tests.browser import Browser, browser

if TYPE_CHECKING:
    from benchmarks.place import Place

_CATEGORIES: Final = "toplevel,blink.user_timing"
_TASK: Final = "ThreadControllerImpl::RunTask"
_TYPED: Final = "rack=r12"
_FRAMES: Final = 60


def measured(place: Place) -> Figure:
    """A keystroke in the search until its rows are painted; the note has the rest."""
    if shutil.which("chromium") is None:
        raise CannotRun("needs chromium")
    pages, profile = place.folder / "pages", place.folder / "profile"
    profile.mkdir(parents=True)
    _write(pages, place.servers)
    try:
        with browser(profile) as chromium:
            return _figure(chromium, f"file://{pages}/index.html")
    finally:
        shutil.rmtree(pages)
        shutil.rmtree(profile, ignore_errors=True)


def _figure(chromium: Browser, address: str) -> Figure:
    chromium.sized(1280, 900)
    began = time.perf_counter()
    chromium.open(address)
    first_s = time.perf_counter() - began
    chromium.call("HeapProfiler.collectGarbage")
    heap_mib = chromium.call("Runtime.getHeapUsage")["usedSize"] / 2**20
    with chromium.traced(_CATEGORIES) as events:
        took = [took for step in (_type, _scroll, _filter, _order) for took in step(chromium)]
    tasks = _tasks(events)
    cpu_ms = {kind: _most(kind, tasks) for kind in ("key", "wheel", "jump", "filter", "order")}
    others = ", ".join(f"{kind} {cpu_ms[kind]:.0f}" for kind in ("wheel", "jump", "filter", "order"))
    return Figure(
        cost=Cost(cpu_s=cpu_ms["key"] / 1e3, wall_s=max(took[: len(_TYPED)]), peak_mib=heap_mib),
        note=f"first table {first_s:.1f} s; ms of CPU at most: {others}",
    )


def _most(kind: str, tasks: dict[str, list[float]]) -> float:
    """What the dearest step of a kind took, in ms."""
    return max(sum(each) for step, each in tasks.items() if step.startswith(kind))


def _type(chromium: Browser) -> Iterator[float]:
    chromium.run("search.focus()")
    for number, each in enumerate(_TYPED):
        began = time.perf_counter()
        _mark(chromium, f"key{number}")
        chromium.type(each)
        chromium.painted()
        yield time.perf_counter() - began
    _mark(chromium, "rest")
    chromium.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    chromium.painted()


def _scroll(chromium: Browser) -> Iterator[float]:
    """By turns of a wheel, then to places that are far apart."""
    for number in range(_FRAMES):
        is_wheel = number < _FRAMES // 2
        by = "+= 120" if is_wheel else f"= seen.scrollHeight * {number / _FRAMES}"
        _mark(chromium, f"{'wheel' if is_wheel else 'jump'}{number}")
        chromium.run(f"{{ const seen = document.getElementById('window'); seen.scrollTop {by}; }} 0")
        chromium.painted()
        yield 0.0


def _filter(chromium: Browser) -> Iterator[float]:
    for number, value in enumerate(("Network", "Disk", "")):
        _mark(chromium, f"filter{number}")
        chromium.run(f"phase.value = '{value}'; phase.dispatchEvent(new Event('input'))")
        chromium.painted()
        yield 0.0


def _order(chromium: Browser) -> Iterator[float]:
    for number in range(6):
        _mark(chromium, f"order{number}")
        chromium.run(f"document.querySelectorAll('#fleet th button')[{number}].click()")
        chromium.painted()
        yield 0.0
    _mark(chromium, "rest")


def _mark(chromium: Browser, name: str) -> None:
    chromium.run(f"performance.mark('{name}'); 0")


def _tasks(events: list[dict[str, Any]]) -> dict[str, list[float]]:
    """What each task of the page's main thread took of the processor, in ms, by the step that it belongs to."""
    marks = sorted((each["ts"], each["name"]) for each in events if each.get("cat") == "blink.user_timing")
    thread = next((each["pid"], each["tid"]) for each in events if each.get("cat") == "blink.user_timing")
    found: dict[str, list[float]] = defaultdict(list)
    for each in events:
        if each["name"] == _TASK and (each["pid"], each["tid"]) == thread and "tdur" in each:
            step = max((mark for mark in marks if mark[0] <= each["ts"] + each["dur"]), default=(0, ""))[1]
            found[step].append(each["tdur"] / 1e3)
    return found


def _write(pages: Path, servers: int) -> None:
    """The page, with the data of its table as an instance publishes it."""
    shards: dict[str, list[list[Any]]] = defaultdict(list)
    random = Random(1)
    for number in range(servers):
        shards[shard_of(name_of(number))].append(_row(number, random))
    facts = {"format": FORMAT, "commit": "c0ffee00c0ffee00", "servers": servers, "shards": sorted(shards)}
    shown: dict[str, Any] = {"streams": [], "images": {}, "maintenances": [], "optOuts": []}
    (pages / "data/shard").mkdir(parents=True)
    for name in MADE_OF:
        (pages / name).write_bytes(static(name))
    (pages / "data/fleet.js").write_bytes(script_of("fleet", canonical(facts | shown)))
    for shard, rows in shards.items():
        content = script_of(f"shard/{shard}", canonical({"columns": COLUMNS, "rows": rows}))
        (pages / f"data/shard/{shard}.js").write_bytes(content)


def _row(number: int, random: Random) -> list[Any]:
    site = f"site{number // 2000}"
    labels = {"site": site, "rack": f"r{number // RACK}", "role": random.choice(("worker", "storage", "batch"))}
    macs = [f"{first}-{number:06x}" for first in ("24-6e-96", "40-a6-b7", "40-a6-b8")]
    image = random.choice(("flatcar-4230.2.4", "flatcar-4459.2.0", "ubuntu-24.04.3"))
    row = {
        "name": name_of(number),
        "uuid": f"4c4c4544-0034-5210-8044-{number:012x}",
        "macs": macs,
        "site": site,
        "labels": labels,
        "phase": random.choice(("Network", "Disk", "Disk")),
        "image": image,
        "version": image.partition("-")[2],
        "policy": "workers",
        "nextTransition": "2026-11-22T22:00:00Z",
        "windows": ["night"],
        "installs": random.choice((None, None, "now")),
    }
    return [row.get(name) for name in COLUMNS]
