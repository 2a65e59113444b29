"""What an instance takes does not grow with the number of commits that it has seen."""

from __future__ import annotations

import functools
import gc
import os
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from gitboot.instance.standing import Fetched
from tests.fleets import at, fleet, image, policy, profile, server
from tests.inprocess import Parts, in_process
from tests.instance import Repository

NOON = at("20T12:00")
MOST_PACKS = 51  # of the clone; more are made one
MOST_BYTES = 768  # a commit: of one that were held there would be more
ONCE = 64 * 1024  # of what is only made once it is needed


@dataclass(frozen=True)
class Taken:
    """What a process and its clone take."""

    descriptors: int
    memory: int


def test_memory_descriptors_and_packs_stay_as_they_are_over_many_commits(tmp_path: Path, lives: int) -> None:
    repository = Repository.create(tmp_path / "git")
    names = [f"web{number:02}" for number in range(20)]
    repository.push({f"{name}.yaml": server(name, "role: web") for name in names})
    repository.push(
        {"all.yaml": "---\n".join((fleet(), image("flatcar-1"), profile("web", "flatcar-1"), policy("web")))}
    )
    commits = lives * 6
    with in_process(tmp_path, repository.bare, initial="adopt") as parts:
        reconcile(parts)
        tracemalloc.start()
        try:
            for number in range(commits):
                newest = change(repository, names, number)
                reconcile(parts)
                if number == commits // 2:  # what is made once is made by now
                    before = taken()
            after = taken()
        finally:
            tracemalloc.stop()
        assert parts.reconciler.status.applied == newest
    assert after.descriptors <= before.descriptors
    assert after.memory - before.memory < ONCE + MOST_BYTES * (commits - commits // 2)
    assert len(list((tmp_path / "state").rglob("*.pack"))) <= MOST_PACKS


def change(repository: Repository, names: list[str], number: int) -> str:
    """By turns a server, and what nobody boots."""
    if number % 4 == 3:
        return repository.push({"README.md": f"commit {number}\n"})
    name = names[number % len(names)]
    return repository.push({f"{name}.yaml": server(name, "role: web", f"kernelArguments: [note={number}]")})


def reconcile(parts: Parts) -> None:
    parts.source.fetch()
    parts.reconciler.reconcile(NOON, fetched=Fetched(), wait=True)
    parts.events.clear()


def taken() -> Taken:
    """What is left once the caches, which are bounded, are emptied."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper):
            each.cache_clear()
    gc.collect()
    return Taken(descriptors=len(os.listdir("/proc/self/fd")), memory=tracemalloc.get_traced_memory()[0])
