"""The rows of what gitboot has to reach, in the order of the page."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pygit2

from benchmarks import artifacts, bmcs, endpoint, evaluation, frames, serving, takeover
from benchmarks.cobbler import synced
from benchmarks.cost import Cost, median, of_command, so_far
from benchmarks.fleet import name_of
from benchmarks.floors import floor
from benchmarks.place import Place
from benchmarks.repository import Repository
from benchmarks.row import Figure, Row
from benchmarks.running import GITBOOT, Instance, one_server, pool, readme
from gitboot.source import Remote, Source

_EXAMPLE: Final = Path(__file__).resolve().parent.parent / "example-repo"
_FILE: Final = 1500  # bytes, of an entry


# The instance


def _cold(place: Place) -> Figure:
    """A first pass into nothing; the floor parses the same documents and writes as many files of those sizes."""
    cost = median([place.first_pass, *(_pass_into_nothing(place) for _ in range(place.rounds - 1))])
    copy, listed = place.folder / "copy", place.folder / "written"
    made = _list_written(place.standing.output, copy, listed)
    note = f"{made.files / place.servers:.1f} files, {made.folders / place.servers:.1f} folders a server"
    documents, left = place.documents, os.statvfs(place.folder)
    if left.f_favail < made.files + made.folders or left.f_bavail * left.f_frsize < made.bytes:
        return Figure(cost=cost, note=f"{note}; no room for as many files beside it")
    least = of_command(
        [floor("events", place.tools), documents, listed],
        before=lambda: shutil.rmtree(copy, ignore_errors=True),
        rounds=place.rounds,
    )
    shutil.rmtree(copy)
    return Figure(cost=cost, floor=least, note=note)


class _Made(NamedTuple):
    """What lies below a folder."""

    files: int  # one counts once, whatever it is called besides
    folders: int
    bytes: int  # of the disk


def _list_written(output: Path, copy: Path, listed: Path) -> _Made:
    """List for the floor what lies in ``output``, as files below ``copy``."""
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
    return _Made(files=len(first), folders=folders, bytes=(blocks * 512) + folders * 4096)


def _pass_into_nothing(place: Place) -> Cost:
    folder = place.folder / "cold"
    folder.mkdir()
    cost = of_command(Instance(folder, place.repository, place.fleet).command("--once"), rounds=1)
    shutil.rmtree(folder)
    return cost


def _readme(place: Place) -> Figure:
    cost = place.instance.commits(readme, place.rounds)
    return Figure(cost=cost, floor=_tree_diff(place))


def _tree_diff(place: Place) -> Cost:
    """What libgit2 does to compare the last two commits of the repository."""
    repository = pygit2.Repository(str(place.repository.path))
    head = repository.revparse_single("HEAD").peel(pygit2.Commit)

    def once() -> Cost:
        began, cpu = time.perf_counter(), time.process_time()
        head.parents[0].tree.diff_to_tree(head.tree)
        return Cost(cpu_s=time.process_time() - cpu, wall_s=time.perf_counter() - began)

    return median(once() for _ in range(place.rounds))


def _one_server(place: Place) -> Figure:
    before = _files(place.instance.output)
    cost = place.instance.commits(one_server, place.rounds)
    return Figure(cost=cost, floor=_replacing(place, 11), note=_manifest(place, before))


def _manifest(place: Place, before: dict[Path, float]) -> str:
    """How many bytes of the manifest a commit has written: of each level one file, the largest of any round."""
    after = _files(place.instance.output)
    levels: dict[int, int] = {}
    for path in (path for path, written in after.items() if before.get(path) != written):
        levels[len(path.parts)] = max(levels.get(len(path.parts), 0), path.stat().st_size)
    return f"manifest: at most {sum(levels.values()) / 1024:.0f} KiB a commit"


def _files(output: Path) -> dict[Path, float]:
    """What of the manifest lies there, and when it was written."""
    folder = output / "ops" / "manifest"
    found = [*folder.rglob("*.json"), output / "ops" / "manifest.json"]
    return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def _pool(place: Place) -> Figure:
    reached = place.servers // 40
    cost = place.instance.commits(pool, place.rounds)
    note = f"about {reached:,} servers, {cost.cpu_s / reached * 1e6:.0f} µs each"
    return Figure(cost=cost, floor=_replacing(place, 6 * reached), note=note)


def _replacing(place: Place, files: int) -> Cost:
    folder = place.folder / "replaced"
    folder.mkdir()
    command = [str(floor("replace", place.tools)), str(folder), str(files), str(_FILE)]
    found = of_command([*command, "20"], rounds=place.rounds) / 20
    shutil.rmtree(folder)
    return found


def _restart(place: Place) -> Figure:
    """Until it has looked at all and has nothing to do; the floor reads every object of the repository."""
    costs = []
    for _ in range(place.rounds + 1):  # the first learns that all is installed, and leaves the bookmark
        with place.standing.running() as cost:
            place.standing.settle()
            costs.append(cost)
    everything = ["git", "-C", str(place.repository.path), "cat-file", "--batch", "--batch-all-objects", "--buffer"]
    return Figure(cost=median(costs[1:]), floor=of_command(everything, rounds=place.rounds))


def _killed(place: Place) -> Figure:
    """Killed while a commit that reaches one server in forty is published, it goes on from there."""
    killed, usual = list[Cost](), list[Cost]()
    with place.standing.running():  # it learns that all is installed, and leaves the bookmark
        place.standing.settle()
    for number in range(place.rounds):
        with place.standing.running():
            place.repository.commit(pool(place.fleet, 1000 + number))
            place.standing.dies_publishing()
        for costs in (killed, usual):
            with place.standing.running() as cost:
                place.standing.settle()
                costs.append(cost)
    return Figure(cost=median(killed), floor=median(usual))


def _memory(place: Place) -> Figure:
    """All that it holds, its program too."""
    before = place.instance.commits(readme, 1)
    held = place.instance.resident_kib()
    return Figure(cost=before, note=f"{held / 1024:,.0f} MiB, {held / place.servers:.1f} KiB a server")


def _fetch(place: Place) -> Figure:
    """Of a commit of one server; Git fetches the same over the same way."""
    remote = Repository(place.folder / "fetched.git")
    remote.commit(place.fleet.files())
    (state := place.folder / "fetching").mkdir()
    source, clone = Source(Remote(url=str(remote.path)), state), place.folder / "clone.git"
    source.fetch()
    subprocess.run(["git", "clone", "-q", "--mirror", str(remote.path), str(clone)], check=True)
    costs, floors = [], []
    for number in range(place.rounds):
        remote.commit(one_server(place.fleet, number))
        began, before = time.perf_counter(), so_far(os.getpid()).cpu_s
        source.fetch()
        costs.append(Cost(cpu_s=so_far(os.getpid()).cpu_s - before, wall_s=time.perf_counter() - began))
        floors.append(of_command(["git", "-C", clone, "fetch", "-q"], rounds=1))
    return Figure(cost=median(costs), floor=median(floors))


# Commands


def _validate(place: Place) -> Figure:
    """Nothing that an earlier command has found out counts."""
    kept = place.folder / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(kept)}
    return _beside_events(
        place, "validate", ".", before=lambda: shutil.rmtree(kept, ignore_errors=True), env=environment
    )


def _beside_events(place: Place, *arguments: str, **how: Any) -> Figure:
    cost = of_command([*GITBOOT, *arguments], cwd=place.checkout, rounds=place.rounds, **how)
    return Figure(cost=cost, floor=of_command([floor("events", place.tools), place.documents], rounds=place.rounds))


def _warm(place: Place, *arguments: str, **how: Any) -> Figure:
    """After one that is not measured, which keeps what it has found out of the fleet."""
    of_command([*GITBOOT, *arguments], cwd=place.checkout, rounds=1, **how)
    return _beside_events(place, *arguments, **how)


def _diff(place: Place) -> Figure:
    """Of a commit that changes one server."""
    with _changed(place):
        return _warm(place, "diff", "HEAD..WORKTREE")


@contextmanager
def _changed(place: Place) -> Iterator[None]:
    """The checkout with a change of one server that is not committed."""
    path = place.checkout / place.fleet.path(0)
    before = path.read_bytes()
    path.write_bytes(before + b"  kernelArguments: [quiet]\n")
    try:
        yield
    finally:
        path.write_bytes(before)


def _explain(place: Place) -> Figure:
    return _warm(place, "explain", name_of(0))


def _history(place: Place) -> Figure:
    """Of ten commits, five of which changed the server; what an earlier `history` found does not count.

    What other commands have kept of the fleet does.
    """
    repository = Repository(place.folder / "history.git")
    repository.commit(place.fleet.files())
    for number in range(1, 6):
        changed = place.fleet.server(0) + b"  kernelArguments: [note=%d]\n" % number
        repository.commit([(place.fleet.path(0), changed)])
        repository.commit(one_server(place.fleet, number))
    kept = place.folder / "kept"
    return _warm(
        place,
        *("history", name_of(0), "-n", "5", "--path", str(repository.path)),
        before=lambda: (kept / "gitboot" / "history.sqlite").unlink(missing_ok=True),
        env={**os.environ, "XDG_CACHE_HOME": str(kept)},
    )


def _plan(place: Place) -> Figure:
    """Of a work tree in which one server's file is another."""
    with _changed(place):
        return _warm(place, "plan", ".", "--server", name_of(0))


def _help(place: Place) -> Figure:
    """The floor is click, with nothing to do."""
    return _beside_click(place, "--help")


def _version(place: Place) -> Figure:
    return _beside_click(place, "--version")


def _example(place: Place) -> Figure:
    return _beside_click(place, "validate", str(_EXAMPLE))


def _beside_click(place: Place, *arguments: str) -> Figure:
    click = [sys.executable, "-c", "import click; click.command()(lambda: None)(['--help'])"]
    return Figure(
        cost=of_command([*GITBOOT, *arguments], rounds=place.rounds), floor=of_command(click, rounds=place.rounds)
    )


# Somebody else's program for it


def _cobbler(place: Place) -> Figure:
    """A first pass; Cobbler writes what as many systems boot, once it knows them."""
    return Figure(cost=place.first_pass, floor=median(synced(place) for _ in range(place.rounds)))


ROWS: Final = (
    Row(
        name="cold",
        title="A first pass into an empty tree",
        floor="C: libyaml's events of the same files, and as many files of those sizes",
        goal="≤ 2.5 × (8 × with one worker); ≤ 6 files and 5 folders a server",
        measure=_cold,
        writes=True,
    ),
    Row(
        name="restart",
        title="A restart with nothing changed",
        floor="Git reads every object of the repository",
        goal="≤ 3 s of CPU at 100,000",
        measure=_restart,
        writes=True,
    ),
    Row(
        name="killed",
        title="A restart after it was killed while it published one server in forty",
        floor="a restart with nothing changed",
        goal="what was cut short is published, and nothing else",
        measure=_killed,
        writes=True,
    ),
    Row(
        name="takeover",
        title="A host that stands by takes over from one that was killed",
        floor="",
        goal="≤ 30 s",
        measure=takeover.take_over,
        writes=True,
    ),
    Row(
        name="readme",
        title="A commit that changes no document",
        floor="libgit2 compares the two trees",
        goal="≤ 5 ms at 100,000",
        measure=_readme,
        writes=True,
    ),
    Row(
        name="server",
        title="One server's commit",
        floor="C: 11 files replaced durably",
        goal="≤ 20 ms of CPU in all processes at 100,000, and the same at 1,000; manifest ≤ 16 KiB",
        measure=_one_server,
        writes=True,
    ),
    Row(
        name="pool",
        title="A policy that selects one server in forty",
        floor="C: six files for each replaced durably",
        goal="≤ 150 µs a server, and writing",
        measure=_pool,
        smallest=1000,
        writes=True,
    ),
    Row(
        name="fetch",
        title="The fetch of a commit of one server",
        floor="git fetch, with what it starts",
        goal="≤ 20 ms of the client's CPU",
        measure=_fetch,
    ),
    Row(
        name="memory",
        title="What an instance holds, after a commit",
        floor="",
        goal="≤ 12 KiB a server at 100,000",
        measure=_memory,
    ),
    Row(
        name="wire",
        title="A decision, from evaluator to instance",
        floor="",
        goal="≤ 5 µs each",
        measure=evaluation.heard,
    ),
    Row(
        name="serving",
        title="Requests while a commit changes every server",
        floor="the same requests while nothing is done",
        goal="p99 ≤ 2 × that",
        measure=serving.while_working,
        smallest=1000,
    ),
    Row(
        name="entry",
        title="An entry, 16 connections kept",
        floor="nginx gives the same file",
        goal="≥ 0.35 × nginx at 10,000 and more, ≥ 0.5 × at 10",
        measure=endpoint.entry,
    ),
    Row(
        name="entry256",
        title="An entry, 256 connections kept",
        floor="nginx gives the same file",
        goal="≥ 0.35 × nginx at 10,000 and more",
        measure=partial(endpoint.entry, connections=256),
    ),
    Row(
        name="entry10",
        title="An entry of ten servers, 16 connections kept",
        floor="nginx gives the same file",
        goal="≥ 0.5 × nginx",
        measure=endpoint.entry,
        only=10,
    ),
    Row(
        name="list",
        title="The first page of the API's list of servers",
        floor="",
        goal="≤ 5 ms",
        measure=endpoint.listed,
    ),
    Row(
        name="start",
        title="An endpoint's start, to its first answer",
        floor="what it imports",
        goal="≤ 0.3 s at any size, ≤ 60 MiB",
        measure=endpoint.start,
    ),
    Row(
        name="once",
        title="A boot that is recorded before it is answered, 1,000 machines within 10 s",
        floor="one fdatasync",
        goal="p99 ≤ 2 syncs and 5 ms",
        measure=endpoint.once,
        only=1000,
        writes=True,
    ),
    Row(
        name="validate",
        title="`gitboot validate`",
        floor="C: libyaml's events",
        goal="≤ 0.4 s at 1,000",
        measure=_validate,
    ),
    Row(
        name="diff",
        title="`gitboot diff` of one server's change",
        floor="C: libyaml's events",
        goal="≤ 1 s at 100,000",
        measure=_diff,
    ),
    Row(
        name="plan",
        title="`gitboot plan --server`",
        floor="C: libyaml's events",
        goal="≤ 1 s at 100,000",
        measure=_plan,
    ),
    Row(
        name="explain",
        title="`gitboot explain SERVER`",
        floor="C: libyaml's events",
        goal="≤ 0.5 s at 100,000",
        measure=_explain,
    ),
    Row(
        name="history",
        title="`gitboot history SERVER -n 5`",
        floor="C: libyaml's events",
        goal="≤ 2 s at 100,000",
        measure=_history,
    ),
    Row(name="help", title="`gitboot --help`", floor="click alone", goal="≤ 1.5 ×", measure=_help, only=1),
    Row(name="version", title="`gitboot --version`", floor="click alone", goal="≤ 0.1 s", measure=_version, only=1),
    Row(
        name="example",
        title="`gitboot validate example-repo`",
        floor="click alone",
        goal="≤ 0.4 s",
        measure=_example,
        only=1,
    ),
    Row(
        name="cobbler",
        title="A first pass, and `cobbler sync`",
        floor="Cobbler 3.3.10 writes the files of as many systems, of one NIC each, that it has in memory",
        goal="≥ 5 × faster than that at 1,000",
        measure=_cobbler,
        only=1000,
    ),
    Row(
        name="page",
        title="A keystroke in the page's search, until it is painted",
        floor="",
        goal="≤ 50 ms of the main thread's CPU at 10,000, and no longer frame when scrolling; usable at 100,000",
        measure=frames.measured,
        smallest=1000,
    ),
    Row(
        name="artifacts",
        title="`artifacts verify` of as many artifacts as servers",
        floor="curl fetches the same URLs, as many at a time",
        goal="10,000 in a minute; again, without reading any, in half of that",
        measure=artifacts.verified,
    ),
    Row(
        name="bmcs",
        title="One of 10,000 BMCs over TLS that answer after 300 ms",
        floor="a socket that sends the request and waits",
        goal="≤ 3 ms of CPU and 1 request to read, ≤ 5 ms and 3 to set; all in 60 s; ≤ 200 KiB a connection",
        measure=bmcs.measured,
        only=1,
    ),
)
