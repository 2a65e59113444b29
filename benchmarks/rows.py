"""The rows, in the order of the page."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pygit2

from benchmarks import bmcs, cobbler, endpoint, take_over
from benchmarks.cost import Cost, measure_command, median
from benchmarks.fleet import name_of
from benchmarks.floors import floor
from benchmarks.instance import POOL, edit_one_server, edit_policy, edit_readme
from benchmarks.place import Place
from benchmarks.row import Figure, Row

_EVENTS: Final = "libyaml parses the same files, in C"
_FILES_EACH: Final = 6  # replaced for a server that a policy changes
_FILES_ONE: Final = 11  # replaced for a commit of one server
_FILE_BYTES: Final = 1500


# The instance


def _measure_first_pass(place: Place) -> Figure:
    """The floor parses the same documents, and writes as many files of the same sizes."""
    rounds = place.first_passes
    copy, listed = place.folder / "copy", place.folder / "written"
    made = _list_written(place.published_instance.output, copy, listed)
    note = f"{made.files / place.servers:.1f} files and {made.folders / place.servers:.1f} folders a server"
    documents, left = place.documents, os.statvfs(place.folder)
    if left.f_favail < made.files + made.folders or left.f_bavail * left.f_frsize < made.size_bytes:
        return Figure(rounds=rounds, note=f"{note}; no room for the files of the floor")
    beside = measure_command(
        [floor("events", place.tools), documents, listed],
        prepare=lambda: shutil.rmtree(copy, ignore_errors=True),
        rounds=place.rounds,
    )
    shutil.rmtree(copy)
    return Figure(rounds=rounds, beside={f"{_EVENTS}, and writes as many files": beside}, note=note)


class _Made(NamedTuple):
    """The files and folders below a folder."""

    files: int  # a file with several names counts once
    folders: int
    size_bytes: int  # on the disk


def _list_written(output: Path, copy: Path, listed: Path) -> _Made:
    """List the files of ``output`` for the floor, as files below ``copy``."""
    first: dict[int, str] = {}  # by inode
    folders = blocks = 0
    with listed.open("w") as lines:
        for parent, below, names in os.walk(output):
            below.sort()
            folders += sum(not os.path.islink(os.path.join(parent, name)) for name in below)
            for name in sorted(names):
                path = os.path.join(parent, name)
                about, there = os.lstat(path), f"{copy}/{os.path.relpath(path, output)}"
                if not stat.S_ISREG(about.st_mode):
                    continue
                if about.st_ino in first:
                    lines.write(f"= {there}\n{first[about.st_ino]}\n")
                    continue
                first[about.st_ino] = there
                blocks += about.st_blocks
                lines.write(f"{about.st_size} {there}\n")
    return _Made(files=len(first), folders=folders, size_bytes=(blocks * 512) + folders * 4096)


def _measure_restart(place: Place) -> Figure:
    """The floor reads every object of the repository."""
    instance, costs = place.stop_instance(), []
    for _ in range(place.rounds + 1):  # the first start learns that all servers are installed
        with instance.running() as cost:
            instance.wait_until_idle()
            costs.append(cost)
    everything = ["git", "-C", str(place.repository.path), "cat-file", "--batch", "--batch-all-objects", "--buffer"]
    return Figure(rounds=costs[1:], beside={"Git reads every object": measure_command(everything, rounds=place.rounds)})


def _measure_readme(place: Place) -> Figure:
    rounds = place.instance.measure_commits(edit_readme, place.rounds)
    return Figure(rounds=rounds, beside={"libgit2 compares the two trees": _compare_trees(place)})


def _compare_trees(place: Place) -> list[Cost]:
    """Compare the last two commits of the repository."""
    repository = pygit2.Repository(str(place.repository.path))
    head = repository.revparse_single("HEAD").peel(pygit2.Commit)
    costs = []
    for _ in range(place.rounds):
        began, cpu_s = time.perf_counter(), time.process_time()
        head.parents[0].tree.diff_to_tree(head.tree)
        costs.append(Cost(cpu_s=time.process_time() - cpu_s, wall_s=time.perf_counter() - began))
    return costs


def _measure_one_server(place: Place) -> Figure:
    rounds = place.instance.measure_commits(edit_one_server, place.rounds)
    return Figure(rounds=rounds, beside={f"{_FILES_ONE} files are replaced, in C": _replace_files(place, _FILES_ONE)})


def _measure_policy(place: Place) -> Figure:
    role = f"role: {POOL}".encode()
    changed = sum(role in place.fleet.server(number) for number in range(place.servers))
    rounds = place.instance.measure_commits(edit_policy, place.rounds)
    each_ms = median(rounds).cpu_s / changed * 1e3
    return Figure(
        rounds=rounds,
        beside={f"{_FILES_EACH} files a server are replaced, in C": _replace_files(place, _FILES_EACH * changed)},
        note=f"{changed:,} servers change, {each_ms:.2g} ms each",
    )


def _replace_files(place: Place, files: int) -> list[Cost]:
    times = 20
    with place.own_folder("replaced") as folder:
        command = [str(floor("replace", place.tools)), str(folder), str(files), str(_FILE_BYTES), str(times)]
        return [cost / times for cost in measure_command(command, rounds=place.rounds)]


def _measure_memory(place: Place) -> Figure:
    """The memory of an instance that has no work after commits."""
    place.instance.measure_commits(edit_readme, 1)
    place.instance.wait_until_idle()
    return Figure(rounds=[Cost(cpu_s=0, wall_s=0, memory_mib=place.instance.resident_mib())])


_COMMITS: Final = 1000


def _measure_many_commits(place: Place) -> Figure:
    """Compare the memory after a hundred commits, each of one server, with that after a thousand more."""
    instance = place.instance
    found = []
    for commits in (_COMMITS // 10, _COMMITS):
        for _ in range(commits):
            instance.commit(edit_one_server)
        instance.wait_until_idle()
        cost = Cost(cpu_s=0, wall_s=0, memory_mib=instance.resident_mib())
        found.append((cost, instance.descriptors()))
    (before, open_before), (after, open_after) = found
    note = f"{open_before} files are open before, {open_after} after"
    return Figure(rounds=[after], beside={f"before these {_COMMITS:,} commits": [before]}, note=note)


# Commands


def _measure_validate(place: Place) -> Figure:
    """Each round begins without a cache."""
    cache = place.folder / "cache"
    return _measure_command(place, "validate", ".", prepare=lambda: shutil.rmtree(cache, ignore_errors=True))


def _measure_validate_again(place: Place) -> Figure:
    return _measure_with_cache(place, "validate", ".")


def _measure_diff(place: Place) -> Figure:
    with _change_one_server(place):
        return _measure_with_cache(place, "diff", "HEAD..WORKTREE")


@contextmanager
def _change_one_server(place: Place) -> Iterator[None]:
    """Change one server in the checkout, and do not commit."""
    path = place.checkout / place.fleet.path(0)
    before = path.read_bytes()
    path.write_bytes(before + b"  kernelArguments: [quiet]\n")
    try:
        yield
    finally:
        path.write_bytes(before)


def _measure_explain(place: Place) -> Figure:
    return _measure_with_cache(place, "explain", name_of(0))


def _measure_with_cache(place: Place, *arguments: str) -> Figure:
    """Measure a command after a round that only fills the cache."""
    measure_command(place.gitboot.command(*arguments), rounds=1, **_surroundings(place))
    return _measure_command(place, *arguments)


def _measure_command(place: Place, *arguments: str, **options: Any) -> Figure:
    version = place.gitboot.spelling.version
    return Figure(
        rounds=measure_command(
            place.gitboot.command(*arguments), rounds=place.rounds, **_surroundings(place), **options
        ),
        beside={
            _EVENTS: measure_command([floor("events", place.tools), place.documents], rounds=place.rounds),
            f"`gitboot {version}`": measure_command(place.gitboot.command(version), rounds=place.rounds),
        },
    )


def _surroundings(place: Place) -> dict[str, Any]:
    return {"cwd": place.checkout, "env": {**os.environ, "XDG_CACHE_HOME": str(place.folder / "cache")}}


# Another program


def _measure_cobbler(place: Place) -> Figure:
    synced = [cobbler.sync(place) for _ in range(place.rounds)]
    return Figure(rounds=place.first_passes, beside={"`cobbler sync` writes as many systems": synced})


ROWS: Final = (
    Row(name="first-pass", title="A first pass, with an empty OUTPUT", measure=_measure_first_pass),
    Row(name="restart", title="A restart", measure=_measure_restart),
    Row(name="take-over", title="A standby takes over", measure=take_over.measure),
    Row(
        name="take-over-empty",
        title="A standby takes over, with an empty OUTPUT",
        measure=take_over.measure_empty,
    ),
    Row(name="readme", title="A README changes", measure=_measure_readme),
    Row(name="one-server", title="One server changes", measure=_measure_one_server),
    Row(
        name="policy",
        title="The policy of one server in forty changes",
        measure=_measure_policy,
        smallest=1000,
    ),
    Row(name="memory", title="An instance at rest", measure=_measure_memory),
    Row(
        name="many-commits",
        title=f"An instance after {_COMMITS:,} commits",
        measure=_measure_many_commits,
        sizes=(1000,),
    ),
    Row(name="validate", title="`gitboot validate`, no cache", measure=_measure_validate),
    Row(name="validate-again", title="`gitboot validate`, again", measure=_measure_validate_again),
    Row(name="diff", title="`gitboot diff` of one server", measure=_measure_diff),
    Row(name="explain", title="`gitboot explain SERVER`", measure=_measure_explain),
    Row(name="requests", title="A boot script", measure=endpoint.measure_requests),
    Row(
        name="latency",
        title="A boot script",
        measure=endpoint.measure_latency,
        smallest=1000,
        largest=10_000,
    ),
    Row(name="endpoint-start", title="`gitboot serve`", measure=endpoint.measure_start),
    Row(name="bmcs", title="An override for each BMC", measure=bmcs.measure, largest=10_000),
    Row(name="cobbler", title="A first pass", measure=_measure_cobbler, sizes=(1000,)),
)
