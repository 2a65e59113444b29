"""One run of the benchmarks as JSON: the machine, the versions, and each result."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import Cost
from benchmarks.gitboot_version import Gitboot
from benchmarks.row import Figure, Row

LARGEST: Final = 100_000  # servers that one instance supports
_FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A row of one version and one number of servers. It has rounds, or the reason why it could not be measured."""

    row: str
    version: str
    servers: int
    rounds: Sequence[Cost] = ()
    beside: Mapping[str, Sequence[Cost]]
    note: str = ""
    failure: str = ""

    @classmethod
    def of(cls, row: Row, gitboot: Gitboot, servers: int, figure: Figure) -> Result:
        return cls(
            row=row.name,
            version=gitboot.name,
            servers=servers,
            rounds=figure.rounds,
            beside=figure.beside,
            note=figure.note,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """All results of one run on one machine."""

    date: str  # YYYY-MM-DD
    machine: str  # in words
    files: str  # "memory" or "disk"
    rounds: int
    versions: Sequence[Mapping[str, str]]  # name, commit, python
    load: Sequence[float]  # processes that wanted a processor when the run began and when it ended
    results: Sequence[Result]

    def find(self, row: str, version: str) -> list[Result]:
        """Return the results of a row and a version, by number of servers."""
        found = [each for each in self.results if (each.row, each.version) == (row, version)]
        return sorted(found, key=lambda each: each.servers)


def describe_machine() -> str:
    """Return the processor, the number of cores, the memory and the system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = platform.release().partition("-")[0]
    return f"{model or platform.machine()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {kernel}"


def write_run(path: Path, run: Run) -> None:
    """Write the run as JSON, whole or not at all."""
    document = {
        "format": _FORMAT,
        "date": run.date,
        "machine": run.machine,
        "files": run.files,
        "rounds": run.rounds,
        "versions": [dict(each) for each in run.versions],
        "load": list(run.load),
        "results": [_as_json(each) for each in run.results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(path)


def read_run(path: Path) -> Run:
    """Read a file of `write_run`. Raises ValueError if the file has another format."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"{path} is not a run of this version of the benchmarks. Measure again: make bench")
    return Run(
        date=document["date"],
        machine=document["machine"],
        files=document["files"],
        rounds=document["rounds"],
        versions=document["versions"],
        load=document["load"],
        results=[_from_json(each) for each in document["results"]],
    )


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "row": result.row,
        "version": result.version,
        "servers": result.servers,
        "rounds": [_cost_as_json(cost) for cost in result.rounds],
        "beside": {name: [_cost_as_json(cost) for cost in costs] for name, costs in result.beside.items()},
        "note": result.note,
        "failure": result.failure,
    }


def _cost_as_json(cost: Cost) -> dict[str, Any]:
    return {"cpuS": cost.cpu_s, "wallS": cost.wall_s, "memoryMib": list(cost.memory_mib)}


def _from_json(found: dict[str, Any]) -> Result:
    return Result(
        row=found["row"],
        version=found["version"],
        servers=found["servers"],
        rounds=[_cost_from_json(cost) for cost in found["rounds"]],
        beside={name: [_cost_from_json(cost) for cost in costs] for name, costs in found["beside"].items()},
        note=found["note"],
        failure=found["failure"],
    )


def _cost_from_json(found: dict[str, Any]) -> Cost:
    return Cost(cpu_s=found["cpuS"], wall_s=found["wallS"], memory_mib=tuple(found["memoryMib"]))
