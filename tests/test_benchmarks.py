"""What benchmarks measure is what they say: fleets, their repositories, and the page."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.__main__ import LARGEST, main, measured
from benchmarks.cost import Cost, median, of_command
from benchmarks.fleet import RACK, Fleet
from benchmarks.flows.__main__ import FLOWS
from benchmarks.flows.site import FlowFailed, Site
from benchmarks.flows.summary import differences, summarise
from benchmarks.flows.tracing import Calls, Function, Tracing
from benchmarks.mirrors import UNTIMED, CountedStore, Figures, Traffic, files_below, line, written
from benchmarks.page import Measured, sections
from benchmarks.place import Place
from benchmarks.repository import Repository
from benchmarks.row import Figure
from benchmarks.rows import ROWS
from benchmarks.running import Edit, every_server, one_server, pool
from gitboot.load import BlobId, FleetRepository, Revision, Snapshot, load
from gitboot.resolve.decide import decide
from tests.git_servers import Relay

FLEET = Fleet(servers=3 * RACK)


def loaded(fleet: Fleet, *edits: tuple[str, bytes | None]) -> FleetRepository:
    files = {path: data for path, data in (dict(fleet.files()) | dict(edits)).items() if data is not None}
    blobs = {path: BlobId(sha256(data).hexdigest()) for path, data in files.items()}
    contents = {blobs[path]: data for path, data in files.items()}
    return load(Snapshot(revision=Revision("fleet"), blobs=blobs, read=contents.__getitem__))


def test_a_fleet_is_the_same_for_a_seed_and_another_for_another() -> None:
    assert dict(FLEET.files()) == dict(FLEET.files())
    assert FLEET.server(7) == replace(FLEET, servers=10_000).server(7)
    assert any(FLEET.server(number) != replace(FLEET, seed=2).server(number) for number in range(RACK))


def test_a_fleet_says_the_same_in_a_file_a_server_and_a_file_a_rack() -> None:
    by_rack = replace(FLEET, rack_files=True)
    assert len(dict(by_rack.files())) == len(FLEET.shared()) + 3
    assert loaded(by_rack).servers == loaded(FLEET).servers


def test_every_server_of_a_fleet_is_decided_and_half_of_them_have_ignition() -> None:
    decisions = decide(loaded(Fleet(servers=600)))
    assert len(decisions.servers) == 600
    assert not decisions.warnings
    with_ignition = [
        each
        for each in decisions.servers.values()
        if each.policy is not None and each.policy.boot is not None and "ignition" in str(each.policy.boot).lower()
    ]
    assert 240 < len(with_ignition) < 360


def test_the_servers_of_the_largest_fleet_are_valid() -> None:
    far = [(FLEET.path(number), FLEET.server(number)) for number in (65_534, 65_535, LARGEST - 1)]
    sites = "fleet.yaml", replace(FLEET, servers=LARGEST).shared()["fleet.yaml"]
    assert len(decide(loaded(FLEET, sites, *far)).servers) == FLEET.servers + 3


def test_a_larger_fleet_is_not_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "cold", "--sizes", f"100,{LARGEST + 1}"])
    with pytest.raises(SystemExit):
        main()
    assert "100,001 servers are too many" in capsys.readouterr().err


@pytest.mark.parametrize(("edit", "least", "most"), [(one_server, 1, 1), (pool, 1, 12), (every_server, 80, 100)])
def test_an_edit_changes_as_many_decisions_as_it_says(edit: Edit, least: int, most: int) -> None:
    """What boots from its disk has no arguments."""
    before, after = decide(loaded(FLEET)).servers, decide(loaded(FLEET, *edit(FLEET, 1))).servers
    assert least <= sum(after[name].digest != each.digest for name, each in before.items()) <= most


def test_a_repository_holds_what_was_committed(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "fleet.git")
    repository.commit([("a/b.yaml", b"one\n"), ("c.yaml", b"two\n")])
    revision = repository.commit([("a/b.yaml", None), ("c.yaml", b"three")])
    git = ("git", "-C", str(repository.path))
    assert subprocess.check_output([*git, "ls-tree", "-r", "--name-only", revision]) == b"c.yaml\n"
    assert subprocess.check_output([*git, "show", f"{revision}:c.yaml"]) == b"three"
    assert subprocess.check_output([*git, "rev-list", "--count", revision]) == b"2\n"


def test_a_median_is_of_each_by_itself() -> None:
    costs = [Cost(cpu_s=cpu, wall_s=wall, peak_mib=None) for cpu, wall in ((1, 9), (2, 7), (9, 8))]
    assert median(costs) == Cost(cpu_s=2, wall_s=8, peak_mib=None)


def test_the_page_shows_ratios_and_says_what_could_not_be_measured() -> None:
    cold = {"row": "cold", "where": "memory", "servers": 1000, "cpu": 3.0, "wall": 4.0, "peak": 100.0, "note": "n"}
    facts = [
        {**cold, "floorCpu": 0.5, "floorWall": 0.6},
        {"row": "entry", "where": "memory", "servers": 1, "cannot": "no nginx"},
    ]
    text = "\n".join(sections(facts))
    assert "| 1,000 | memory | 3 s | 4 s | 100 MiB | 500 ms | 600 ms | 6 | n |" in text
    assert "Not measured: no nginx." in text


def test_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_files_that_were_written_again_are_counted_and_the_others_are_not(tmp_path: Path) -> None:
    for name in ("left", "replaced"):
        (tmp_path / name).write_bytes(b"12")
    before = files_below(tmp_path)
    (new := tmp_path / "new").write_bytes(b"34")
    new.replace(tmp_path / "replaced")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/file").write_bytes(b"567")
    assert written(tmp_path, before) == Traffic(2, 5)
    assert written(tmp_path, {}) == Traffic(3, 7)


def test_a_store_counts_requests_and_a_relay_connections_and_both_count_bytes() -> None:
    store = CountedStore()
    with store, Relay(store.url) as relay:
        store.make("boots")
        store.let_anyone_read("boots")
        store.put("boots", "file", b"12")
        before = store.traffic
        for _ in range(2):
            assert httpx.get(f"{relay.url}/boots/file").content == b"12"
        assert store.traffic.since(before) == Traffic(2, 4)
        assert relay.connections == 2
        assert relay.size_bytes > 4


def test_a_row_of_copies_has_what_was_counted_and_no_times_where_none_were_measured() -> None:
    cost = Cost(cpu_s=1.7, wall_s=5.734, peak_mib=45)
    copied = Figures("folder", "first copy", Traffic(8678, 5_912_345), "file", cost)
    assert line(1000, copied) == "| folder | first copy | 1,000 | 8,678 files | 5.9 MB | 5.73 s | 1.70 s | 45 MiB |"
    renewed = Figures("signed list", "renewal", Traffic(1, 680), "file", UNTIMED)
    assert line(40, renewed) == "| signed list | renewal | 40 | 1 file | 680 B |  |  |  |"


def test_a_program_that_fails_says_why() -> None:
    with pytest.raises(AssertionError, match=r"ended with 3: no disk\Z"):
        of_command(["sh", "-c", "echo no disk >&2; exit 3"], rounds=1)


def test_the_peak_of_a_command_is_not_what_its_measurer_holds() -> None:
    held = b"x" * (100 << 20)
    peak = of_command(["true"], rounds=1).peak_mib
    assert peak is not None
    assert peak * (1 << 20) < len(held) / 2


def test_a_row_that_fails_or_is_late_does_not_lose_the_others(tmp_path: Path) -> None:
    def fails(_: Place) -> Figure:
        raise KeyError("a fault")

    def lasts(_: Place) -> Figure:
        return Figure(cost=of_command(["sleep", "3600"], rounds=1))

    def goes_on(_: Place) -> Figure:
        return Figure(cost=of_command(["true"], rounds=1))

    def measured_until(end: float, *measures: Callable[[Place], Figure]) -> list[Measured]:
        rows = [replace(ROWS[0], name=measure.__name__, measure=measure) for measure in measures]
        return list(measured(rows, [100], "memory", tmp_path, 1, end))

    found = measured_until(time.monotonic() + 3600, fails, goes_on)
    found += measured_until(time.monotonic() + 1, lasts, goes_on)
    assert [(each.failed, each.late, each.figure is not None) for each in found] == [
        *((True, False, False), (False, False, True), (False, True, False), (False, True, False))
    ]
    assert "KeyError('a fault')" in found[0].line()


_TRACED = """\
import os, threading

def add(numbers):
    return sum(number + 1 for number in numbers)

def count():
    yield from (1, 2, 3)

def sort(names):
    return sorted([name for name in names], key=lambda name: name.lower())

def die():
    os._exit(0)

class Thread:
    def run(self):
        count_all()

def count_all():
    return list(count())

def main():
    add([1, 2])
    sort(["b", "A"])
    thread = threading.Thread(target=Thread().run)
    thread.start()
    thread.join()
    if os.fork() == 0:
        die()
    os.wait()
    os.kill(os.getpid(), 9)

main()
"""


def test_the_tracer_records_threads_forks_and_processes_that_are_killed(tmp_path: Path) -> None:
    (package := tmp_path / "traced").mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_TRACED)
    tracing = Tracing(tmp_path)
    environment = {**tracing.environment, "TRACE_FLOWS_PACKAGE": str(package)}
    command = [sys.executable, "-m", "traced"]

    with tracing.window() as window:
        subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    subprocess.run(command, cwd=tmp_path, env=environment, check=False)  # no window is open

    found = {tuple(function): calls.number for function, calls in tracing.read()[window].items()}
    assert found == {
        ("traced", "traced.__main__", "main"): 1,
        ("traced", "traced.__main__", "add"): 2,  # a generator expression counts as its function
        ("traced", "traced.__main__", "sort"): 3,  # and so does a lambda
        ("traced", "traced.__main__", "Thread.run"): 1,
        ("traced", "traced.__main__", "count_all"): 1,
        ("traced", "traced.__main__", "count"): 1,
        ("traced (fork)", "traced.__main__", "die"): 1,
    }


def test_the_tracer_lists_what_a_get_by_mac_address_calls_and_rejects_an_unknown_address(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        _, get = FLOWS["get"]
        window = get(site, 0, None)
        with pytest.raises(FlowFailed, match=r"GET /v1/boot/02-00-00-00-00-01/boot\.ipxe: 404"):
            get(site, 1, "02-00-00-00-00-01")
        calls = site.tracing.read()[window]
    assert ("gitboot serve", "gitboot.serve.app") in {(each.process, each.module) for each in calls}


def test_a_comparison_of_flows_ignores_functions_that_only_some_rounds_call() -> None:
    def flow(*rounds: str) -> dict[str, Any]:
        windows = [
            {Function("gitboot run", f"gitboot.{module}", "go"): Calls(number, 1) for number, module in enumerate(each)}
            for each in rounds
        ]
        return {"flows": {"get": summarise("a GET", windows)}}

    before = flow("abc", "ab")
    assert list(before["flows"]["get"]["always"]["gitboot run"]) == ["gitboot.a", "gitboot.b"]
    assert list(before["flows"]["get"]["sometimes"]["gitboot run"]) == ["gitboot.c"]
    assert [line for line in differences(before, flow("acd", "acd")) if line.startswith("  ")] == [
        "  + gitboot.d (module)",
        "  + gitboot.d: go",
        "  - gitboot.b (module)",
        "  - gitboot.b: go",
    ]
