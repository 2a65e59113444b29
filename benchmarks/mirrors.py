"""The cost of copies of a published tree: the first copy, a change of one server, a verification.

    python -m benchmarks.mirrors --sizes 1000,10000

The program prints a table. docs/explanation/publishing.md has a summary. A real instance follows a real repository, and
writes to real servers on this machine. The program counts requests, connections and bytes. All files are in memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pygit2

from benchmarks.cost import Cost, measure_command, median, subtract_cost
from benchmarks.fleet import Fleet
from benchmarks.gitboot_version import find_gitboot
from benchmarks.instance import Instance, edit_one_server
from benchmarks.repository import Repository
from benchmarks.row import CannotRun
from gitboot.publish.list_root import make_list_keys
from gitboot.publish.mirror_repair import PROGRAM
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.signed_list import RENEWED_BELOW, read_list_keys
from gitboot.publish.tree_reader import read_manifest
from tests.helpers.fleets import store_credentials
from tests.helpers.git_repositories import HttpsServer, Relay, SshServer, free_port, run_daemon
from tests.helpers.mirrors import KEY, Store, nginx

_SIZES: Final = (1000, 10_000)
_ROUNDS: Final = 3
_TIMESTAMP: Final = "boot/signed/timestamp.json"  # the last file of each publication
_POLL_S: Final = 0.02
_QUIET_S: Final = 1.0  # a target has ended its step after so long without another byte


class Traffic(NamedTuple):
    """A number of requests, connections or files, and their bytes."""

    number: int
    size_bytes: int

    def since(self, before: Traffic) -> Traffic:
        return Traffic(self.number - before.number, self.size_bytes - before.size_bytes)


UNTIMED: Final = Cost(cpu_s=0, wall_s=0)  # of figures that have only a count


class Figures(NamedTuple):
    """One row of the table."""

    copy: str
    what: str
    traffic: Traffic
    unit: str  # of the number, in the singular
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A target of an instance, and functions that observe the copy."""

    target: str  # the value of --target
    unit: str  # what `mark` counts, in the singular
    mark: Callable[[], Any]  # returns the counts so far
    since: Callable[[Any], Traffic]  # returns the traffic since a mark
    timestamp: Callable[[], bytes | None]  # returns the timestamp file of the copy


Way = Callable[[Path], AbstractContextManager[Copy]]  # makes a copy; its own files are in the folder


# Ways out


class CountedStore(Store):
    """A store that counts requests, and the bytes of their bodies and answers."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self.traffic = Traffic(0, 0)
        super().__init__()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        content = list(super()._answer(environ, start))
        size_bytes = int(environ.get("CONTENT_LENGTH") or 0) + sum(map(len, content))
        with self._counting:
            self.traffic = Traffic(self.traffic.number + 1, self.traffic.size_bytes + size_bytes)
        return content


@contextmanager
def _bucket(folder: Path) -> Iterator[Copy]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    store_credentials(folder, "store", user=KEY["aws_access_key_id"], password=KEY["aws_secret_access_key"])
    store = CountedStore()
    with store:
        store.make("boots")

        def timestamp() -> bytes | None:
            with suppress(AssertionError):  # it is absent
                return store.get("boots", _TIMESTAMP).content
            return None

        yield Copy(
            target=f"s3://boots?endpoint={store.url}&credentials={folder}/store",
            unit="request",
            mark=lambda: store.traffic,
            since=lambda mark: store.traffic.since(mark),
            timestamp=timestamp,
        )


@contextmanager
def _branch(folder: Path) -> Iterator[Copy]:
    """A branch of a repository that git http-backend serves."""
    repository = pygit2.init_repository(str(folder / "served/boots.git"), bare=True)
    repository.config["http.receivepack"] = "true"

    def timestamp() -> bytes | None:
        with suppress(KeyError):
            blob = pygit2.Repository(repository.path).revparse_single(f"refs/heads/boot:{_TIMESTAMP}")
            assert isinstance(blob, pygit2.Blob)
            return blob.data
        return None

    with HttpsServer(folder / "served", folder) as server, Relay(server.url) as relay:

        def traffic() -> Traffic:
            return Traffic(len(server.requests), relay.size_bytes)

        yield Copy(
            target=f"git+{relay.url}/boots.git?ca-bundle={server.certificate}#boot",
            unit="request",
            mark=traffic,
            since=lambda mark: traffic().since(mark),
            timestamp=timestamp,
        )


@contextmanager
def _folder(folder: Path) -> Iterator[Copy]:
    (copy := folder / "copy").mkdir()
    yield Copy(
        target=str(copy),
        unit="file",
        mark=partial(list_files, copy),
        since=partial(written, copy),
        timestamp=partial(_read, copy / _TIMESTAMP),
    )


@contextmanager
def _rsync(folder: Path) -> Iterator[Copy]:
    """A folder that an rsync daemon writes."""
    (copy := folder / "copy").mkdir()
    with rsync_daemon(folder, copy, read_only=False) as relay:
        yield _make_relayed_copy(relay, f"rsync://{relay.authority}/tree", copy)


@contextmanager
def _ssh(folder: Path) -> Iterator[Copy]:
    """A folder of another host that rsync writes by ssh."""
    (copy := folder / "copy").mkdir()
    server, key, known = SshServer(folder), folder / "key", folder / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    server.key("client").with_suffix(".pub").write_bytes(key.with_suffix(".pub").read_bytes())  # users that may log in
    with server.running(), Relay(f"ssh://127.0.0.1:{server.port}") as relay:
        host, _, port = relay.authority.partition(":")
        known.write_text(f"[{host}]:{port} {server.public('ed25519')}\n")
        user = server.host.partition("@")[0]
        yield _make_relayed_copy(relay, f"ssh://{user}@{relay.authority}{copy}?ssh-key={key}&known-hosts={known}", copy)


def _make_relayed_copy(relay: Relay, target: str, copy: Path) -> Copy:
    def traffic() -> Traffic:
        return Traffic(relay.connections, relay.size_bytes)

    return Copy(
        target=target,
        unit="connection",
        mark=traffic,
        since=lambda mark: traffic().since(mark),
        timestamp=partial(_read, copy / _TIMESTAMP),
    )


@contextmanager
def rsync_daemon(folder: Path, served: Path, *, read_only: bool) -> Iterator[Relay]:
    """Serve a folder as the module `tree`."""
    port = free_port()
    (folder / "rsyncd.conf").write_text(
        f"address = 127.0.0.1\nport = {port}\nuse chroot = no\nuid = {os.geteuid()}\ngid = {os.getegid()}\n"
        f"[tree]\npath = {served}\nread only = {'yes' if read_only else 'no'}\n"
    )
    command = ["rsync", "--daemon", "--no-detach", f"--config={folder}/rsyncd.conf"]
    with run_daemon(command, port, {"PATH": os.environ["PATH"]}), Relay(f"rsync://127.0.0.1:{port}") as relay:
        yield relay


WAYS: Final[Mapping[str, tuple[str, Way]]] = {
    "s3": ("S3 bucket", _bucket),
    "git": ("Git branch by https", _branch),
    "folder": ("folder", _folder),
    "rsync": ("rsync daemon", _rsync),
    "ssh": ("rsync by ssh", _ssh),
}


# Files

Files = Mapping[str, tuple[int, int, int]]  # by path: inode, time of the last change in ns, bytes


def list_files(folder: Path) -> Files:
    """Return values for each file that differ after the file is written."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            about = os.lstat(path)
            found[os.path.relpath(path, folder)] = about.st_ino, about.st_mtime_ns, about.st_size
    return found


def written(folder: Path, before: Files) -> Traffic:
    """Return how many files were written since, and their bytes."""
    now = list_files(folder)
    sizes = [about[2] for path, about in now.items() if before.get(path) != about]
    return Traffic(len(sizes), sum(sizes))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


# Measured values


class Site:
    """A fleet of so many servers, and its published tree with a signed list."""

    def __init__(self, folder: Path, servers: int, rounds: int) -> None:
        self.folder, self.servers, self.rounds = folder, servers, rounds
        self.fleet = Fleet(servers=servers, bmcs=False)
        self.repository = Repository(folder / "fleet.git")
        self.repository.commit(self.fleet.files())
        self.keys, self.key = folder / "keys", folder / "root.pub"
        self.keys.mkdir(mode=0o700)
        self.key.write_bytes(make_list_keys(self.keys, None, datetime.now(UTC)))
        self._commits = 0
        self.gitboot = find_gitboot()
        self.instance().begin()
        self.output = self.instance().output
        self.boot = self.output / "boot"

    def instance(self, *more: str) -> Instance:
        signed = f"list-keys = {json.dumps(str(self.keys))}\n"
        return Instance(self.folder, self.repository, self.fleet, self.gitboot, *more, settings=signed)

    def commit(self) -> str:
        """Commit a change of one server."""
        self._commits += 1
        return self.repository.commit(edit_one_server(self.fleet, self._commits))

    def own_folder(self, name: str) -> Path:
        (made := self.folder / name).mkdir()
        return made


def target_figures(site: Site, name: str, way: Way) -> Iterator[Figures]:
    """Yield the costs of the first copy to a target and of a change of one server.

    The first copy is timed from the start of an instance whose tree is published, and a change from its commit.
    """
    with ExitStack() as stack:
        copy = stack.enter_context(way(site.own_folder(name)))
        instance = site.instance("--target", copy.target)
        stack.callback(instance.end)
        mark, began = copy.mark(), time.perf_counter()
        instance.start()
        instance.wait_until_published(None)
        _wait_for_copy(site, copy)
        spent = instance.cost_so_far()
        first = Cost(cpu_s=spent.cpu_s, wall_s=time.perf_counter() - began, memory_mib=spent.memory_mib)
        _wait_until_quiet(copy)
        yield Figures(name, "first copy", copy.since(mark), copy.unit, first)
        instance.wait_until_idle()
        costs, traffic = list[Cost](), list[Traffic]()
        for _ in range(site.rounds + 1):  # the first round does extra work once
            mark, before = copy.mark(), instance.cost_so_far()
            began = time.perf_counter()
            instance.wait_until_published(site.commit())
            _wait_for_copy(site, copy)
            took_s = time.perf_counter() - began
            _wait_until_quiet(copy)
            spent = subtract_cost(before, instance.cost_so_far())
            costs.append(Cost(cpu_s=spent.cpu_s, wall_s=took_s, memory_mib=spent.memory_mib))
            traffic.append(copy.since(mark))
        yield Figures(name, "one server", _median(traffic[1:]), copy.unit, median(costs[1:]))


def _wait_for_copy(site: Site, copy: Copy) -> None:
    while copy.timestamp() != (site.output / _TIMESTAMP).read_bytes():
        time.sleep(_POLL_S)


def _wait_until_quiet(copy: Copy) -> None:
    """Wait until a target has ended its step."""
    before, mark = None, copy.mark()
    while before != mark:
        time.sleep(_QUIET_S)
        before, mark = mark, copy.mark()


def _median(traffic: Iterable[Traffic]) -> Traffic:
    each = list(traffic)
    return Traffic(*(round(statistics.median(column)) for column in zip(*each, strict=True)))


def program_figures(site: Site, name: str) -> Iterator[Figures]:
    """Yield the cost of the program of a mirror, and the part of the signed list that each change rewrites."""
    folder = site.own_folder("program")
    (mirror := folder / "mirror").mkdir()
    with ExitStack() as stack:
        relay = stack.enter_context(rsync_daemon(folder, site.boot, read_only=True))
        source, arguments = f"rsync://{relay.authority}/tree", ("--write-program", str(folder), "--from")
        command = [*site.gitboot.command(), "verify-mirror", str(mirror), *arguments, source, "--key", str(site.key)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        where = ("--from", source, "--to", str(mirror), "--key", str(site.key), "--state", str(folder / "state"))

        def run(what: str) -> Figures:
            mark = Traffic(relay.connections, relay.size_bytes)
            (cost,) = measure_command([sys.executable, "-I", folder / PROGRAM, *where], rounds=1)
            if _read(mirror / "signed/timestamp.json") != (site.output / _TIMESTAMP).read_bytes():
                raise AssertionError("the program has not copied the tree")
            traffic = Traffic(relay.connections, relay.size_bytes).since(mark)
            return Figures(name, what, traffic, "connection", cost)

        yield run("first copy")
        yield run("nothing changed")
        instance = site.instance()
        stack.enter_context(instance.running())
        runs, lists = list[Figures](), list[Traffic]()
        for _ in range(site.rounds):
            before = list_files(site.boot / "signed")
            instance.wait_until_published(site.commit())
            lists.append(written(site.boot / "signed", before))
            runs.append(run("one server"))
        yield runs[0]._replace(traffic=_median(each.traffic for each in runs), cost=median(each.cost for each in runs))
        yield Figures("signed list", "one server", _median(lists), "file", UNTIMED)


def list_figures(site: Site) -> Iterator[Figures]:
    """Yield the size of the signed list, and the size of the part that a renewal rewrites."""
    yield Figures("signed list", "all", written(site.boot / "signed", {}), "file", UNTIMED)
    manifest = read_manifest(site.output)
    assert manifest is not None
    at = datetime.now(UTC)
    keys = read_list_keys(site.keys)
    with OutputDirectory.open(site.output, ledger=manifest.origin.ledger) as directory:
        if directory.resume(directory.inventory()) is None:
            raise AssertionError("the tree is not as its last publication left it")
        directory.update_list(keys, at)
        before = list_files(site.boot / "signed")
        directory.update_list(keys, at + RENEWED_BELOW * 1.1)
    yield Figures("signed list", "renewal", written(site.boot / "signed", before), "file", UNTIMED)


def verification_figures(site: Site) -> Iterator[Figures]:
    """Yield the cost of `gitboot verify-mirror`, for a folder and for nginx that serves the folder."""
    folder = site.own_folder("verified")
    copy = folder / "copy"
    subprocess.run(["cp", "-a", site.boot, copy], check=True)
    cost = _measure_verification(site, str(copy), folder)
    yield Figures("`verify-mirror`", "folder", written(copy, {}), "file", cost)
    with nginx(copy, site.output / "ops/serve", folder) as mirror:
        for what, more in (("nginx", ()), ("nginx, `--read-entries`", ("--read-entries",))):
            mirror.log.write_bytes(b"")
            cost = _measure_verification(site, mirror.url, folder, *more)
            answers = [json.loads(line) for line in mirror.log.read_text().splitlines()]
            size_bytes = sum(each["bytes"] for each in answers)
            traffic = Traffic(round(len(answers) / site.rounds), round(size_bytes / site.rounds))
            yield Figures("`verify-mirror`", what, traffic, "request", cost)
    shutil.rmtree(copy)


def _measure_verification(site: Site, mirror: str, folder: Path, *more: str) -> Cost:
    """Return the cost of a verification without findings."""
    costs = []
    for _ in range(site.rounds):
        with (folder / "report.json").open("w") as report:
            command = [*site.gitboot.command(), "verify-mirror", mirror, "--key", str(site.key), "-o", "json", *more]
            costs += measure_command(command, rounds=1, stdout=report)
        found = json.loads((folder / "report.json").read_text())
        if found["items"] or found["list"]["signature"] != "Verified":
            raise AssertionError(f"{mirror}: {found['items'][:3]}, {found['list']}")
    return median(costs)


# The table


def line(servers: int, each: Figures) -> str:
    """Return a row of the table in Markdown."""
    cost, traffic = each.cost, each.traffic
    seconds = (f"{cost.wall_s:,.2f} s", f"{cost.cpu_s:,.2f} s") if cost is not UNTIMED else ("", "")
    peak = f"{cost.peak_mib:,.0f} MiB" if cost.peak_mib else ""
    number = f"{traffic.number:,} {each.unit}{'' if traffic.number == 1 else 's'}"
    return (
        f"| {' | '.join((each.copy, each.what, f'{servers:,}', number, _size(traffic.size_bytes), *seconds, peak))} |"
    )


def _size(size_bytes: int) -> str:
    if size_bytes >= 1_000_000:
        return f"{size_bytes / 1e6:,.1f} MB"
    return f"{size_bytes / 1e3:,.1f} kB" if size_bytes >= 1000 else f"{size_bytes} B"


def _rows(chosen: Iterable[str], site: Site) -> Iterator[Figures]:
    for name in chosen:
        if name in WAYS:
            title, way = WAYS[name]
            yield from (each._replace(copy=title) for each in target_figures(site, name, way))
        elif name == "program":
            yield from program_figures(site, "mirror's program")
        elif name == "verify":
            yield from verification_figures(site)
        else:
            yield from list_figures(site)


def main() -> int:
    names = (*WAYS, "program", "verify", "list")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirrors", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--sizes", default=",".join(map(str, _SIZES)), help="servers: 1000,10000")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"whose median counts: {_ROUNDS}")
    asked = parser.parse_args()
    if unknown := set(asked.rows) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    for missing in (each for each in ("nginx", "rsync", "git") if shutil.which(each) is None):
        raise CannotRun(f"{missing} has to be installed")
    print("| copy | what | servers | counted | bytes | wall | CPU | peak |\n|---|---|---|---|---|---|---|---|")
    for servers in map(int, asked.sizes.split(",")):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            for each in _rows(asked.rows or names, Site(Path(folder), servers, asked.rounds)):
                print(line(servers, each), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
