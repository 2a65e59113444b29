"""The memory of an instance does not grow with its commits, and the cost of a response does not grow with the fleet."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from gitboot.bmc.override_session import BmcTask, TaskOutcome, TaskResult
from gitboot.bmc.worker_pool import BmcPool
from gitboot.controller.instance_state import LastFetch
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import shard_name
from tests.helpers.fleets import at, fleet, image, make_uuid, policy, profile, server, store_credentials
from tests.helpers.instance_in_process import Bench, Parts, run_in_process
from tests.helpers.running_instance import Repository

NOON = at("20T12:00")
MOST_PACKS = 51  # of the clone; more are made one
MOST_BYTES = 768  # a commit: if commits were kept, there would be more
ONCE = 32 * 1024  # of what is only made once it is needed, a little in each part
FULL = 64  # commits until the bounded memory of the newest ones stops growing


@dataclass(frozen=True)
class Usage:
    """The memory and files of a process and its clone."""

    descriptors: int
    memory: int


def test_memory_descriptors_and_packs_do_not_grow_over_many_commits(tmp_path: Path, lives: int) -> None:
    repository = Repository.create(tmp_path / "git")
    names = [f"web{number:02}" for number in range(20)]
    repository.push({f"{name}.yaml": server(name, "role: web") for name in names})
    repository.push(
        {"all.yaml": "---\n".join((fleet(), image("flatcar-1"), profile("web", "flatcar-1"), policy("web")))}
    )
    part, found = (
        lives * 2,
        [],
    )  # of three: what is made once, or grows in steps as the table of interned words, is in one
    with run_in_process(tmp_path, repository.bare, initial="adopt") as parts:
        reconcile(parts)
        tracemalloc.start()
        try:
            for number in range(FULL + 3 * part):
                newest = change(repository, names, number)
                reconcile(parts)
                if number >= FULL and (number - FULL) % part == part - 1:
                    found.append(measure_memory())
        finally:
            tracemalloc.stop()
        assert parts.reconciler.status.applied == newest
    first, second, third = found
    assert third.descriptors <= first.descriptors
    assert min(second.memory - first.memory, third.memory - second.memory) < ONCE + MOST_BYTES * part
    assert len(list((tmp_path / "state").rglob("*.pack"))) <= MOST_PACKS


def change(repository: Repository, names: list[str], number: int) -> str:
    """Change a server, or a file that boots nothing, in turn."""
    if number % 4 == 3:
        return repository.push({"README.md": f"commit {number}\n"})
    name = names[number % len(names)]
    return repository.push({f"{name}.yaml": server(name, "role: web", f"kernelArguments: [note={number}]")})


def reconcile(parts: Parts) -> None:
    parts.source.fetch()
    parts.reconciler.reconcile(NOON, fetched=LastFetch(), wait=True)
    parts.events.clear()


def measure_memory() -> Usage:
    """Return the memory that is left after the bounded caches are emptied."""
    for each in (*gc.get_objects(), *list_objects()):
        if isinstance(each, functools._lru_cache_wrapper):
            each.cache_clear()
    gc.collect()
    return Usage(descriptors=len(os.listdir("/proc/self/fd")), memory=tracemalloc.get_traced_memory()[0])


def list_objects() -> Iterator[object]:
    """Return the memory of gitboot's modules and classes; the collector does not list what existed before the tests."""
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] == "gitboot"]:
        for value in vars(module).values():
            yield value
            if isinstance(value, type):
                yield from (getattr(each, "__func__", each) for each in vars(value).values())


# The cost of one response


@dataclass
class ScriptedBmcs:
    """BMCs that respond when the test says so."""

    asked: dict[SystemUuid, BmcTask] = field(default_factory=dict)
    answers: dict[SystemUuid, TaskResult] = field(default_factory=dict)

    def submit(self, jobs: tuple[BmcTask, ...]) -> frozenset[SystemUuid]:
        self.asked |= {job.uuid: job for job in jobs}
        return frozenset(job.uuid for job in jobs)

    def drop_pending_tasks(self, uuids: frozenset[SystemUuid]) -> None:
        for uuid in uuids:
            self.asked.pop(uuid, None)

    def fingerprint(self, bmc: BmcAccess) -> str | None:
        return bmc.credentials

    def take_results(self, *, wait_all: bool = False) -> Mapping[SystemUuid, TaskResult]:
        given, self.answers = self.answers, {}
        return given

    def close(self) -> None:
        """Do nothing: no task runs."""

    def answer(self, outcome: TaskOutcome, **more: Any) -> None:
        """Let one of the waiting BMCs respond."""
        job = self.asked.pop(min(self.asked))
        self.answers[job.uuid] = TaskResult(server=job.server, uuid=job.uuid, outcome=outcome, message="", **more)


def count_lines(act: Callable[[], object]) -> int:
    """Return how many lines a call runs, which grows with the fleet if it walks over all servers."""
    line_count = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal line_count
        line_count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return line_count


def measure_answers(folder: Path, servers: int) -> Iterator[tuple[str, int]]:
    """Return the lines of a reconcile in which each server has a waiting BMC and one of them responds."""
    bmc = "bmc: {{address: 'https://{}.bmc.test', system: /redfish/v1/Systems/1, credentials: rack}}"
    store_credentials(folder, password="correct horse")
    with Bench(folder, credentials=folder) as bench:
        bmcs = ScriptedBmcs()
        bench.bmcs.bmcs = cast(BmcPool, bmcs)

        def reconcile() -> object:
            return bench.instance.reconciler.reconcile(bench.now)

        names = [f"web{number:03}" for number in range(servers)]
        bench.decide(
            *(fleet(), image("flatcar-1"), profile("web", "flatcar-1"), policy("web", often="Once")),
            *(server(name, "role: web", f"provision: 1, {bmc.format(name)}") for name in names),
        )
        reconcile()
        reconcile()
        assert len(bmcs.asked) == servers
        bmcs.answer(TaskOutcome.UNCHANGED)
        reconcile()  # the first of its kind makes what the others find made
        yield "none", count_lines(reconcile)
        bmcs.answer(TaskOutcome.UNCHANGED)
        yield "one", count_lines(reconcile)
        bmcs.answer(TaskOutcome.WAITING, is_reachable=False)
        yield "one that failed", count_lines(reconcile)


def measure_fetches(folder: Path, servers: int) -> Iterator[tuple[str, int]]:
    """Return the lines of a reconcile in which a server has fetched its installer and gets a record."""
    with Bench(folder) as bench:
        names = [f"web{number:03}" for number in range(servers)]
        bench.decide(
            *(fleet(), image("flatcar-1"), profile("web", "flatcar-1"), policy("web", often="Once")),
            *(server(name, "role: web", "provision: 1") for name in names),
        )
        bench.reconcile()
        # A record is written with all others of its shard.
        shards = Counter(shard_name(SystemUuid(make_uuid(f"web{number:03}"))) for number in range(MANY))
        alone = [name for name in names if shards[shard_name(SystemUuid(make_uuid(name)))] == 1]
        for name in alone[:3]:  # the first make what the others find made
            bench.fetch(bench.servers[name].plan)
            yield f"a fetch of {name}", count_lines(lambda: bench.instance.reconciler.reconcile(bench.now))
            record = bench.snapshot.record(SystemUuid(make_uuid(name)))
            assert record is not None and record.provision == 1


@pytest.mark.parametrize("steps_of", [measure_answers, measure_fetches])
def test_the_cost_of_one_server_does_not_depend_on_the_size_of_the_fleet(
    tmp_path: Path, steps_of: Callable[[Path, int], Iterator[tuple[str, int]]]
) -> None:
    found = []
    for servers in (FEW, MANY):
        (folder := tmp_path / str(servers)).mkdir()
        found.append(dict(steps_of(folder, servers)))
    few, many = found
    assert {what: count - few[what] for what, count in many.items() if count > few[what] + MOST_STEPS} == {}


FEW, MANY = 20, 120  # servers
MOST_STEPS = 99  # of a hundred servers more: not one for each
