"""Endpoints in processes of their own: started, restarted, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gitboot.endpoint.server import WorkerLimits, Workers, listen_at
from gitboot.status.instance_status import Endpoints
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.endpoints import AFTER, ENTRY, LOOKUPS, ONCE, Site, get, planned, site
from tests.helpers.fleets import SEED, policy, server
from tests.helpers.forked_commands import Heard
from tests.helpers.instance_in_process import published_records
from tests.helpers.running_instance import Repository, eventually, is_program, running


def workers_of(parent: int) -> list[int]:
    """The processes that serve for another."""
    return sorted(pid for pid in children(parent) if is_program(pid, "serve"))


def command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return []


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _serve(root: Path, *arguments: str) -> tuple[str, ...]:
    return ("serve", "--out", str(root), "--listen", "127.0.0.1:0", *arguments)


@contextmanager
def served(root: Path, *arguments: str) -> Iterator[tuple[str, Heard]]:
    """The base URL of `gitboot serve`, and its process."""
    with Heard(*_serve(root, *arguments)) as process:
        yield json.loads(process.stderr.readline())["url"], process


@pytest.fixture
def tree() -> Iterator[Site]:
    with site(planned(*ONCE)) as made:
        yield made


def answers(url: str) -> int:
    return get(url + ENTRY).status_code


def test_a_worker_that_is_killed_is_started_again(tree: Site) -> None:
    with served(tree.root, "--workers", "2", "--spool", str(tree.spool)) as (url, process):
        assert answers(url) == 200
        first = eventually(lambda: len(pids := workers_of(process.pid)) == 2 and pids)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        assert answers(url) == 200, "who connects meanwhile waits"
        eventually(lambda: len(pids := workers_of(process.pid)) == 2 and not set(first) & set(pids))


def test_a_worker_ends_with_its_parent_however_that_ends(tree: Site) -> None:
    with served(tree.root, "--workers", "2") as (url, process):
        assert answers(url) == 200
        pids = eventually(lambda: len(pids := workers_of(process.pid)) == 2 and pids)
        process.kill()
        process.wait()
        eventually(lambda: all(map(is_gone, pids)))


@pytest.mark.parametrize("state", ["answering", "stopped"])
def test_all_end_by_a_signal(tree: Site, state: str) -> None:
    with served(tree.root, "--workers", "2") as (url, process):
        assert answers(url) == 200
        pids = eventually(lambda: len(pids := workers_of(process.pid)) == 2 and pids)
        if state == "stopped":  # it can take no signal but one
            os.kill(pids[0], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert all(map(is_gone, pids))


def test_several_processes_turn_at_one_instant_and_see_what_is_published_at_the_next_request(tree: Site) -> None:
    with served(tree.root, "--workers", "2", "--spool", str(tree.spool)) as (url, _):
        for version in range(10):
            tree.publish(planned(*ONCE[:-1], policy(f"v{version}", often="Once"), now=AFTER), commit=str(version))
            for path in LOOKUPS * 3:  # each by a connection of its own, whoever takes it
                assert f"BootPolicy/v{version}," in get(url + path).text
        assert len(tree.observed()) == 10 * 9


def test_what_is_meant_for_another_command_is_not_handed_down(tree: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.root.parent / "config").write_text("workers = 2\n")
    monkeypatch.setenv("GITBOOT_CONFIG", str(tree.root.parent / "config"))
    command = [sys.executable, "-m", "gitboot", *_serve(tree.root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert answers(json.loads(process.stderr.readline())["url"]) == 200
            eventually(lambda: len(workers_of(process.pid)) == 2)
            assert all(b"--workers" not in command_of(pid) for pid in workers_of(process.pid))
        finally:
            process.kill()


def test_a_worker_whose_parent_is_gone_by_now_does_not_begin(tree: Site) -> None:
    command = [sys.executable, "-m", "gitboot", "serve", "--out", str(tree.root), "--fd", "0", "--parent", "1"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 1


# Under run


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({"fleet.yaml": "---\n".join((*SEED[:-1], policy("web", often="Once")))})
    return made


def test_an_instance_counts_its_endpoints_and_starts_them_again(repository: Repository, tmp_path: Path) -> None:
    with running(repository.bare, tmp_path, "--workers", "2", records="fresh") as instance:

        def serving() -> str:
            found = {each["type"]: each for each in instance.status()["conditions"]}
            return f"{found['Serving']['status']} {found['Serving']['message']}"

        eventually(lambda: serving() == "True 2 of 2 endpoints running")
        (tree_read,) = [each for each in instance.status()["conditions"] if each["type"] == "TreeRead"]
        assert tree_read["status"] is True
        os.kill(workers_of(instance.process.pid)[0], signal.SIGKILL)
        eventually(lambda: serving() == "True 2 of 2 endpoints running, 1 restart since the start")


# Shows life ten times a second at the pipe of the last argument, and leaves its process id in the folder of the first.
LIVELY = """
import os, pathlib, sys, time
while True:
    os.write(int(sys.argv[-1]), b".")
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(0.1)
"""


def test_finding_c6_an_endpoint_that_is_stopped_is_not_serving_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[Endpoints] = []

    def note_change() -> None:
        changes.append(workers.counted())

    limits = WorkerLimits(silent_s=2, hung_s=5)
    command = [sys.executable, "-c", LIVELY, str(tmp_path)]
    workers = Workers(command, listen_at("127.0.0.1:0"), 2, note_change, limits=limits)
    with workers:
        stopped, other = eventually(lambda: len(pids := [int(each.name) for each in tmp_path.iterdir()]) == 2 and pids)
        os.kill(stopped, signal.SIGSTOP)
        eventually(lambda: changes[-1] == Endpoints(wanted=2, alive=2, restarts=1))
        assert Endpoints(wanted=2, alive=1, restarts=0, hung=1) in changes
        assert is_gone(stopped)
        assert not is_gone(other)
    assert f"endpoint process {stopped} has not responded for 5 s: replaced" in caplog.text


def test_an_endpoint_shows_life_again_and_again(tree: Site) -> None:
    reading, writing = os.pipe()
    with listen_at("127.0.0.1:0") as listening:
        options = ("--fd", str(listening.fileno()), "--life-fd", str(writing), "--parent", str(os.getpid()))
        command = [sys.executable, "-m", "gitboot", "serve", "--out", str(tree.root), *options]
        with subprocess.Popen(command, pass_fds=(listening.fileno(), writing)) as process:
            os.close(writing)
            try:
                assert [os.read(reading, 1) for _ in range(2)] == [b".", b"."]
            finally:
                process.kill()
    os.close(reading)


def test_finding_c5_with_a_full_state_directory_the_endpoint_does_not_say_that_all_is_well(
    repository: Repository, tmp_path: Path
) -> None:
    with small_disk(tmp_path, "64m") as disk:
        published = ("--out", str(tmp_path / "published"))
        with running(repository.bare, disk, *published, "--poll", "0.5", records="fresh") as instance:
            eventually(lambda: instance.status()["applied"]["commit"])
            fill(disk / "filler")
            at_full = instance.status()["clock"]
            repository.push({"more.yaml": server("web02", "role: web")})
            eventually(lambda: not all(each["status"] for each in instance.status()["conditions"]))
            assert instance.status()["clock"] > at_full
            (disk / "filler").unlink()
            eventually(lambda: all(each["status"] for each in instance.status()["conditions"]))


def test_what_an_endpoint_recorded_is_taken_in_once_and_forgotten(repository: Repository, tmp_path: Path) -> None:
    web01 = server("web01", "role: web", "provision: 1")
    repository.push({"fleet.yaml": "---\n".join((SEED[0], web01, *SEED[2:-1], policy("web", often="Once")))})
    spool = tmp_path / "state" / "spool"
    with running(repository.bare, tmp_path, records="fresh") as instance:
        eventually(lambda: "(Network)" in instance.get(ENTRY).text)
        eventually(lambda: b"Fetched" in published_records(tmp_path / "output"))
        assert len(list(spool.glob("*.jsonl"))) == 1, "its writer lives"
    assert [event["type"] for event in instance.events].count("Provisioned") == 1
    with running(repository.bare, tmp_path) as instance:
        eventually(lambda: not [path for path in spool.glob("*.jsonl") if path.stat().st_size])
        assert "Provisioned" not in [event["type"] for event in instance.events]


def test_an_instance_that_is_killed_leaves_no_process_behind(repository: Repository, tmp_path: Path) -> None:
    places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "gitboot", "run", str(repository.bare), *places, "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        pids = eventually(lambda: len(pids := workers_of(process.pid)) == 2 and pids)
        process.kill()
        process.wait()
        eventually(lambda: all(map(is_gone, pids)))
    finally:
        process.kill()
        process.wait()


def test_as_the_first_process_of_a_container_it_reaps_whom_nobody_else_does(tree: Site) -> None:
    probe = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no process namespace can be made here: {probe.stderr.decode().strip()}")
    container = subprocess.Popen(
        [
            *("unshare", "-pf", "--mount-proc", "--kill-child"),
            *(sys.executable, "-m", "gitboot", "serve", "--out", str(tree.root), "--listen", "127.0.0.1:0"),
            *("--workers", "2"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert container.stderr is not None
        url = json.loads(container.stderr.readline())["url"]
        assert answers(url) == 200
        (first,) = eventually(lambda: [pid for pid in children(container.pid) if b"serve" in command_of(pid)])
        workers = eventually(lambda: len(pids := children(first)) == 2 and pids)
        orphan = subprocess.run(
            ["nsenter", "-t", str(first), "-p", "-m", "sh", "-c", "sleep 3600 & exit 0"], check=False
        )
        assert orphan.returncode == 0
        (left,) = eventually(lambda: set(children(first)) - set(workers))
        os.kill(left, signal.SIGKILL)
        eventually(lambda: children(first) == workers)  # a zombie would be one of them
        os.kill(workers[0], signal.SIGKILL)  # its own workers are its own to wait for
        eventually(lambda: len(now := children(first)) == 2 and workers[0] not in now)
        assert answers(url) == 200
    finally:
        container.kill()
        container.wait()
        if container.stderr is not None:
            container.stderr.close()


def children(pid: int) -> list[int]:
    return [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]
