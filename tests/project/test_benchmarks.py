"""Benchmarks: fleets, costs, versions of gitboot, results, the page and its plots."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from benchmarks.__main__ import main, measure
from benchmarks.cost import Cost, cost_so_far, measure_command, median, resident_mib
from benchmarks.endpoint import choose_servers
from benchmarks.fleet import RACK, Fleet, mac_of, name_of
from benchmarks.flows.__main__ import FLOWS
from benchmarks.flows.site import FlowFailed, Site
from benchmarks.flows.summary import differences, summarise
from benchmarks.flows.tracing import Calls, Function, Tracing
from benchmarks.gitboot_version import BEFORE_SETTINGS, NOW, find_gitboot
from benchmarks.instance import POOL, Edit, edit_every_server, edit_one_server, edit_policy, edit_readme
from benchmarks.mirrors import UNTIMED, CountedStore, Figures, Traffic, line, list_files, written
from benchmarks.page import SECTIONS, draw_plots, render_page, write_page
from benchmarks.place import Place
from benchmarks.plot import Line, draw
from benchmarks.repository import Repository
from benchmarks.row import Figure
from benchmarks.rows import ROWS
from benchmarks.run import LARGEST, Result, Run, read_run, write_run
from benchmarks.take_over import LEASE_S
from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.fleet.validation import load
from gitboot.ledger.leader_lease import LEASE_SECONDS
from gitboot.problems import Code
from gitboot.resolve.fleet_decisions import decide
from tests.helpers.git_repositories import Relay

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


def test_a_fleet_is_equal_with_a_file_for_each_server_and_with_a_file_for_each_rack() -> None:
    by_rack = replace(FLEET, rack_files=True)
    assert len(dict(by_rack.files())) == len(FLEET.shared()) + 3
    assert loaded(by_rack).servers == loaded(FLEET).servers


def test_every_server_of_a_fleet_is_decided_and_half_of_them_have_ignition() -> None:
    decisions = decide(loaded(Fleet(servers=600)))
    assert len(decisions.servers) == 600
    assert {each.code for each in decisions.warnings} == {Code.SELECTS_NO_SERVER}, "larger fleets have more sites"
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
    monkeypatch.setattr("sys.argv", ["benchmarks", "first-pass", "--sizes", f"100,{LARGEST + 1}"])
    with pytest.raises(SystemExit):
        main()
    assert "100,001 servers are too many" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "least", "most"),
    [(edit_readme, 0, 0), (edit_one_server, 1, 1), (edit_policy, 1, 12), (edit_every_server, 80, 100)],
)
def test_an_edit_changes_as_many_decisions_as_its_name_promises(edit: Edit, least: int, most: int) -> None:
    """A server that boots from its disk has no arguments."""
    before, after = decide(loaded(FLEET)).servers, decide(loaded(FLEET, *edit(FLEET, 1))).servers
    assert least <= sum(after[name].digest != each.digest for name, each in before.items()) <= most


def test_the_servers_of_a_changed_policy_are_those_with_its_role() -> None:
    """The row `policy` divides its cost by them."""
    before, after = decide(loaded(FLEET)).servers, decide(loaded(FLEET, *edit_policy(FLEET, 1))).servers
    changed = {name for name, each in before.items() if after[name].digest != each.digest}
    role = f"role: {POOL}".encode()
    assert changed == {name_of(number) for number in range(FLEET.servers) if role in FLEET.server(number)}


def test_fetched_boot_scripts_are_of_servers_that_always_boot_from_the_network() -> None:
    chosen = choose_servers(FLEET, 10)
    assert len(set(chosen)) == 10
    assert chosen == choose_servers(FLEET, 10)
    decisions = decide(loaded(FLEET)).servers
    for number in chosen:
        policy = decisions[name_of(number)].policy
        assert policy is not None
        assert policy.network_boot == "Always"
        assert mac_of(number).replace("-", ":") in FLEET.server(number).decode()


def test_a_repository_contains_what_was_committed(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "fleet.git")
    repository.commit([("a/b.yaml", b"one\n"), ("c.yaml", b"two\n")])
    revision = repository.commit([("a/b.yaml", None), ("c.yaml", b"three")])
    git = ("git", "-C", str(repository.path))
    assert subprocess.check_output([*git, "ls-tree", "-r", "--name-only", revision]) == b"c.yaml\n"
    assert subprocess.check_output([*git, "show", f"{revision}:c.yaml"]) == b"three"
    assert subprocess.check_output([*git, "rev-list", "--count", revision]) == b"2\n"


def test_a_median_is_of_each_column_by_itself() -> None:
    costs = [
        Cost(cpu_s=1, wall_s=9, memory_mib=(30, 10)),
        Cost(cpu_s=2, wall_s=7, memory_mib=(50,)),
        Cost(cpu_s=9, wall_s=8, memory_mib=(10, 9)),
    ]
    assert median(costs) == Cost(cpu_s=2, wall_s=8, memory_mib=(30, 10))


def test_rows_have_names_of_their_own_and_a_place_on_the_page() -> None:
    names = [row.name for row in ROWS]
    assert sorted(names) == sorted(set(names))
    assert sorted(names) == sorted(name for section in SECTIONS for name in section.rows)


def test_the_lease_that_the_page_names_is_the_lease() -> None:
    assert LEASE_S == LEASE_SECONDS


# Versions


def _other_gitboot(folder: Path, help_text: str) -> Path:
    """Make a Python that imports another gitboot, which only prints its help."""
    (package := folder / "gitboot").mkdir()
    (package / "__init__.py").write_text('__version__ = "0.0.1"\n')
    (package / "__main__.py").write_text(f"print({help_text!r})\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_the_gitboot_of_another_python_is_measured_and_not_that_of_the_working_directory(tmp_path: Path) -> None:
    python = _other_gitboot(tmp_path, "--max-update-percent")
    found = find_gitboot(str(python))
    assert (found.name, found.commit, found.spelling) == ("0.0.1", "0.0.1", BEFORE_SETTINGS)
    printed = subprocess.check_output(found.command("run"), text=True)
    assert printed == "--max-update-percent\n"
    settings = found.run_options(tmp_path / "run.toml")
    assert settings[:2] == ("--max-update-percent", "100")
    assert not (tmp_path / "run.toml").exists()


def test_the_gitboot_of_this_checkout_gets_a_file_with_its_settings(tmp_path: Path) -> None:
    found = find_gitboot(name="now")
    assert (found.name, found.spelling) == ("now", NOW)
    assert found.run_options(tmp_path / "run.toml", "poll = 9\n") == ("--config", str(tmp_path / "run.toml"))
    assert (tmp_path / "run.toml").read_text().endswith('accept-filesystem = ["tmpfs"]\npoll = 9\n')


def test_a_row_runs_alone_and_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    """A real instance publishes a small fleet and a commit."""
    page = Path("docs/explanation/benchmarks.md")
    before = page.read_bytes()
    output = tmp_path / "run.json"
    command = [sys.executable, "-m", "benchmarks", "readme", "--sizes", "40", "--rounds", "1", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.startswith("readme          now            40  ")
    (result,) = read_run(output).results
    (cost,) = result.rounds
    assert cost.cpu_s > 0
    assert len(cost.memory_mib) > 1  # the instance and its evaluator
    assert page.read_bytes() == before


# The page


def _cost(cpu_s: float, *memory_mib: float) -> Cost:
    return Cost(cpu_s=cpu_s, wall_s=2 * cpu_s, memory_mib=memory_mib)


def _result(row: str, servers: int, cpu_s: float, version: str = "now", **more: Any) -> Result:
    return Result(row=row, version=version, servers=servers, rounds=[_cost(cpu_s, 100, 50)], **{"beside": {}, **more})


_RUN = Run(
    date="2026-11-28",
    machine="a processor, 2 cores",
    files="memory",
    rounds=5,
    versions=[
        {"name": "now", "commit": "aaaaaaa", "python": "3.11.7"},
        {"name": "2fefe59", "commit": "2fefe59", "python": "3.11.7"},
    ],
    load=(0.1, 0.2),
    results=[
        _result("first-pass", 1000, 3.0, beside={"C": [_cost(0.5)]}, note="9 files"),
        _result("first-pass", 1000, 4.0, "2fefe59", beside={"C": [_cost(0.5)]}),
        _result("first-pass", 10_000, 30.0, beside={"C": [_cost(5.0)]}),
        _result("requests", 1000, 0.00005, beside={"nginx": [_cost(0.00002)]}),
        Result(row="take-over", version="now", servers=1000, beside={}, failure="PostgreSQL is missing"),
    ],
)


def test_a_run_is_read_as_it_was_written_and_another_file_is_rejected(tmp_path: Path) -> None:
    write_run(path := tmp_path / "build/run.json", _RUN)
    found = read_run(path)
    assert render_page(found) == render_page(_RUN)
    assert [(each.row, median(each.rounds).memory_mib) for each in found.results if each.rounds] == [
        (each.row, (100, 50)) for each in _RUN.results if each.rounds
    ]
    path.write_text(json.dumps([{"row": "cold"}]))
    with pytest.raises(ValueError, match="is not a run of this version"):
        read_run(path)


def test_the_page_shows_other_versions_and_rows_without_a_measurement() -> None:
    page = render_page(_RUN)
    assert (
        "a processor, 2 cores. Files were in memory. Each figure is the median of 5 rounds, at 100,000 servers of one."
        in page
    )
    assert "|  | servers | CPU | wall | peak |  | 2fefe59: CPU, wall |" in page
    title = "| A first pass, with an empty OUTPUT | 1,000 "
    assert f"{title}| 3 s | 6 s | 100 MiB | 9 files | 4 s, 8 s |" in page
    assert "|  | 10,000 | 30 s | 60 s |" in page
    assert "| A standby takes over | 1,000 | not measured: PostgreSQL is missing |  |  |  |  |" in page
    assert "| A boot script | 1,000 | 20,000 | 50,000 | 0.40 | 100 MiB |  |" in page
    assert "## Memory" not in page  # no row of this run
    at_rest = replace(_RUN, results=[_result("memory", 1000, 0.0)])
    assert "| An instance at rest | 1,000 | 100 + 50 MiB | 154 KiB |  |" in render_page(at_rest)
    assert "Other programs used the machine" not in page
    assert "Other programs used the machine" in render_page(replace(_RUN, load=(3.0, 0.2)))


def test_every_row_of_a_table_has_a_cell_for_each_column() -> None:
    lines = render_page(_RUN).splitlines()
    for above, below in pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.count("|") == below.count("|"), below


def _outlines(page: str) -> dict[str, tuple[str, str]]:
    """Return the text and the first line of the table of each section, by title."""
    found = {}
    for section in page.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        paragraphs = body.strip().split("\n\n")
        # The last column contains notes. It has no title, and exists only if a row has a note.
        tables = [each.splitlines()[0].removesuffix("  |") for each in paragraphs if each.startswith("|")]
        found[title] = (paragraphs[0], "".join(tables))
    return found


def test_the_page_has_the_sections_and_the_columns_that_a_run_writes() -> None:
    """The page does not change its form if a run measures other rows, or other numbers of servers."""
    page = Path("docs/explanation/benchmarks.md").read_text()
    results = [_result(row.name, 1000, 1.0, beside={"C": [_cost(1.0, 9)]}) for row in ROWS]
    written = render_page(replace(_RUN, versions=_RUN.versions[:1], results=results))
    outlines = _outlines(page)
    assert len(outlines) > 6
    assert [title for title, outline in outlines.items() if _outlines(written)[title] != outline] == []
    assert written.endswith(f"## Measure again{page.partition('## Measure again')[2]}")
    assert "\n\n".join(page.split("\n\n")[2:3]) in written  # what the columns mean
    titles = re.findall(r"^\| ([^|]+?) +\| [\d,]+ \|", page, re.MULTILINE)
    assert len(titles) > 10
    assert set(titles) <= {row.title for row in ROWS}


def test_a_page_is_written_with_its_plots_and_old_plots_go(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/cold.svg").touch()
    write_page(_RUN, tmp_path)
    assert [path.name for path in (tmp_path / "benchmarks").iterdir()] == ["start.svg"]
    assert "(benchmarks/start.svg)" in (tmp_path / "benchmarks.md").read_text()
    assert (tmp_path / "benchmarks/start.svg").read_text() == draw_plots(_RUN)["start"]


def test_a_plot_has_each_line_at_its_place_and_a_style_for_dark_pages() -> None:
    lines = [
        Line(name="a & b", points=[(10, 1), (100, 10), (1000, 100)], colour="#2b86d1"),
        Line(name="floor", points=[(10, 1), (1000, 100)]),
    ]
    svg = draw(lines, "A title", "servers", "seconds")
    root = ElementTree.fromstring(svg)
    plotted = [each for each in root.iter("{http://www.w3.org/2000/svg}polyline") if "." not in each.attrib["points"]]
    assert plotted[0].attrib["points"] == "60,262 255,138 450,14"  # decades are equally far apart
    texts = {
        each.text: float(each.attrib["y"])
        for each in root.iter("{http://www.w3.org/2000/svg}text")
        if "y" in each.attrib
    }
    assert abs(texts["a & b"] - texts["floor"]) >= 15  # the names of lines with the same end do not overlap
    assert {"10", "100", "1,000"} <= set(texts)
    assert "prefers-color-scheme:dark" in svg
    assert draw(lines, "A title", "servers", "seconds") == svg


def test_the_files_that_were_written_again_are_counted_and_the_others_are_not(tmp_path: Path) -> None:
    for name in ("left", "replaced"):
        (tmp_path / name).write_bytes(b"12")
    before = list_files(tmp_path)
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


def test_a_row_of_copies_has_its_counts_and_no_times_if_none_were_measured() -> None:
    cost = Cost(cpu_s=1.7, wall_s=5.734, memory_mib=(45, 3))
    copied = Figures("folder", "first copy", Traffic(8678, 5_912_345), "file", cost)
    assert line(1000, copied) == "| folder | first copy | 1,000 | 8,678 files | 5.9 MB | 5.73 s | 1.70 s | 45 MiB |"
    renewed = Figures("signed list", "renewal", Traffic(1, 680), "file", UNTIMED)
    assert line(40, renewed) == "| signed list | renewal | 40 | 1 file | 680 B |  |  |  |"


def test_a_failed_program_reports_the_reason() -> None:
    with pytest.raises(AssertionError, match=r"exited with 3: no disk\Z"):
        measure_command(["sh", "-c", "echo no disk >&2; exit 3"], rounds=1)


def test_the_peak_of_a_command_does_not_include_the_memory_of_its_measurer() -> None:
    held = b"x" * (100 << 20)
    (cost,) = measure_command(["true"], rounds=1)
    peak = cost.peak_mib
    assert peak is not None
    assert peak * (1 << 20) < len(held) / 2


def test_the_memory_of_each_process_counts() -> None:
    with subprocess.Popen(["sh", "-c", "cat; true"], stdin=subprocess.PIPE) as shell:
        while len(resident_mib(shell.pid)) < 2:
            time.sleep(0.01)
        found = cost_so_far(shell.pid)
        assert len(found.memory_mib) == 2  # the shell and cat
        assert list(found.memory_mib) == sorted(found.memory_mib, reverse=True)
        shell.communicate()


def test_the_time_of_children_counts() -> None:
    child = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"]
    (cost,) = measure_command([sys.executable, "-c", f"import subprocess; subprocess.run({child!r})"], rounds=1)
    assert cost.cpu_s >= 0.2


def test_a_row_that_fails_or_is_late_does_not_lose_the_others(tmp_path: Path) -> None:
    def fails(_: Place) -> Figure:
        raise KeyError("a fault")

    def lasts(_: Place) -> Figure:
        return Figure(rounds=measure_command(["sleep", "3600"], rounds=1))

    def goes_on(_: Place) -> Figure:
        return Figure(rounds=measure_command(["true"], rounds=1))

    gitboot = find_gitboot(name="now")

    def measured_until(end: float, *measures: Callable[[Place], Figure]) -> list[Result]:
        rows = [replace(ROWS[0], name=each.__name__, measure=each) for each in measures]
        return list(measure(rows, [gitboot], [100], "memory", tmp_path, 1, end))

    found = measured_until(time.monotonic() + 3600, fails, goes_on)
    found += measured_until(time.monotonic() + 1, lasts, goes_on)
    assert [(each.row, each.failure, bool(each.rounds)) for each in found] == [
        ("fails", "failed: KeyError('a fault')", False),
        ("goes_on", "", True),
        ("lasts", "no time left", False),
        ("goes_on", "no time left", False),
    ]


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
    assert ("gitboot serve", "gitboot.endpoint.app") in {(each.process, each.module) for each in calls}


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
