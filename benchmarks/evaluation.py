"""What an instance does for each decision that an evaluator tells it."""

from __future__ import annotations

import gc
from time import perf_counter, process_time

from benchmarks.cost import Cost, median
from benchmarks.place import Place
from benchmarks.row import Figure
from gitboot.evaluate import wire
from gitboot.evaluate.difference import told
from gitboot.evaluate.evaluator import Evaluator
from gitboot.frames import encode
from gitboot.instance.evaluation import assembled
from gitboot.source import Reader, Remote, Source


def heard(place: Place) -> Figure:
    """The whole fleet, told and put together."""
    folder = place.folder / "followed"
    folder.mkdir()
    revision = Source(Remote(url=str(place.repository.path)), folder).fetch()
    reader = Reader(folder)
    frames = [encode(answer) for answer in told(Evaluator(reader.snapshot).evaluate(revision, None))]
    reader.close()
    costs = []
    for _ in range(place.rounds):
        gc.collect()
        began, cpu = perf_counter(), process_time()
        assembled(None, revision, map(wire.answer, frames))
        costs.append(Cost(cpu_s=process_time() - cpu, wall_s=perf_counter() - began) / place.servers)
    size = sum(map(len, frames)) / place.servers
    return Figure(cost=median(costs), note=f"{size / 1024:.1f} KiB a server")
