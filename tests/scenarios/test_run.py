"""The main job as its users have it: a process, a repository, HTTP, a BMC."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gitboot.cli.commands.run import _MAX_SHUTDOWN_S
from tests.helpers import http_peers
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import (
    SEED,
    image,
    maintenance,
    make_mac,
    make_uuid,
    name_ledger,
    policy,
    profile,
    server,
    store_credentials,
    write_configuration,
)
from tests.helpers.forked_commands import Command, start
from tests.helpers.instance_with_bmcs import Rack
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import Hang, RedfishServer, Service
from tests.helpers.running_instance import Instance, Repository, create_ledger, eventually, list_evaluators, running

ROOT = Path(__file__).parents[2]
ENTRY = f"/v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
BY_UUID = f"/ipxe/{make_uuid('web01')}"


def images_in(script: str) -> str:
    """Return the image that a boot script boots, by the URL of its kernel; "disk" for the local disk."""
    found = re.findall(r"^kernel .*/assets/([^/]+)/", script, re.MULTILINE)
    return found[0] if found else "disk"


def fleet_files(*documents: str) -> dict[str, str]:
    return {"fleet.yaml": "---\n".join(documents)}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(fleet_files(*SEED))
    return made


def test_a_maintenance_boots_in_its_window_and_never_outside(tmp_path: Path, repository: Repository) -> None:
    """The seed problem: a workload and a maintenance match one server, and the maintenance stays in Git.

    Its end finds the instance with a commit at its evaluator that takes longer than the window.
    """
    answers: list[tuple[datetime, datetime, str]] = []

    def ask(instance: Instance, path: str, end: datetime) -> None:
        with http_peers.Client(base_url=instance.url, headers=LOADER) as client:
            sent = datetime.now(UTC)
            while sent < end + timedelta(seconds=1):  # the last request is sent after the end, however long one takes
                sent = datetime.now(UTC)
                body = client.get(path).text
                answers.append((sent, datetime.now(UTC), images_in(body)))
                time.sleep(0.02)

    static = tmp_path / "output" / "boot" / ENTRY[1:]

    def look(end: datetime) -> str:
        """Return whether the window is open in the file, or over, or "" before it opens."""
        if images_in(static.read_text()) == "memtest-7":
            return "open"
        return "over" if datetime.now(UTC) >= end else ""

    with running(repository.bare, tmp_path, *write_configuration(max_reinstalls=9)) as instance:
        for patience in (timedelta(seconds=seconds) for seconds in (3, 10, 60, 240)):  # what a machine needs
            start = datetime.now(UTC).replace(microsecond=0) + patience
            end = start + patience
            window = f"{start:%Y-%m-%dT%H:%M:%S} {end:%Y-%m-%dT%H:%M:%S}"
            commit = repository.push(fleet_files(*SEED, maintenance("repair", window)))
            eventually(lambda: instance.status()["applied"]["commit"] == commit)  # noqa: B023 - called at once
            if datetime.now(UTC) >= start - patience / 2:
                continue
            answers.clear()
            with ThreadPoolExecutor(2) as pool:
                asking = pool.map(ask, [instance] * 2, [ENTRY, BY_UUID], [end] * 2)
                if is_open := eventually(partial(look, end)) == "open":
                    (evaluator,) = list_evaluators(instance.process.pid)
                    os.kill(evaluator, signal.SIGSTOP)
                    commit = repository.push({"late.yaml": server("web02", "role: web")})
                list(asking)
            if is_open:
                break
        else:
            raise AssertionError("the machine is too slow")
        eventually(lambda: images_in(static.read_text()) == "flatcar-1")
        assert instance.status()["applied"]["commit"] != commit
        os.kill(evaluator, signal.SIGCONT)
        eventually(lambda: instance.status()["applied"]["commit"] == commit)
    inside = [image for sent, received, image in answers if start <= sent and received < end]
    before = [image for sent, received, image in answers if received < start]
    after = [image for sent, received, image in answers if end <= sent]
    assert (set(before), set(inside), set(after)) == ({"flatcar-1"}, {"memtest-7"}, {"flatcar-1"})


def test_a_pushed_commit_is_served_without_waiting_for_the_poll_and_an_invalid_one_is_not_served_even_after_a_restart(
    tmp_path: Path, repository: Repository
) -> None:
    arguments = ("--poll", "3600", *write_configuration(max_reinstalls=9))

    def check_rejected(instance: Instance, earlier: str | None = None) -> None:

        def look() -> dict[str, Any] | None:
            found = instance.status()
            is_new = found["plannedAt"] not in (None, earlier)
            return found if is_new and found["attempted"]["commit"] == bad else None

        status = eventually(look)
        (problem,) = status["attempted"]["problems"]
        assert (problem["path"], problem["code"]) == ("policies/web2.yaml", "GB2011")
        assert (problem["line"], problem["column"]) == (4, 16)
        assert (status["applied"]["commit"], instance.get(ENTRY).text) == (commit, static)

    with running(repository.bare, tmp_path, *arguments) as instance:
        assert images_in(instance.get(ENTRY).text) == "flatcar-1"
        for number in (2, 3, 4):
            documents = (*SEED, image(f"flatcar-{number}"), profile("next", f"flatcar-{number}"))
            pool = policy("next", "All", "priority: 1", boots="next")
            commit = repository.push(fleet_files(*documents, pool))
            eventually(lambda: images_in(instance.get(ENTRY).text) == f"flatcar-{number}")  # noqa: B023
        eventually(lambda: instance.status()["applied"]["commit"] == commit)
        static = (tmp_path / "output" / "boot" / ENTRY[1:]).read_text()
        assert static == instance.get(ENTRY).text
        bad = repository.push({"policies/web2.yaml": policy("web2", "All", "priority: 1")})
        check_rejected(instance)
        earlier = instance.status()["plannedAt"]
    with running(repository.bare, tmp_path, *arguments) as instance:
        # The endpoint first shows the status that the earlier process wrote.
        check_rejected(instance, earlier)


def test_a_commit_in_a_work_tree_is_served_without_waiting_for_the_poll(tmp_path: Path, repository: Repository) -> None:
    with running(repository.work, tmp_path, "--poll", "3600") as instance:
        commit = repository.push(fleet_files(*SEED, maintenance("repair")))
        eventually(lambda: instance.status()["applied"]["commit"] == commit)
        assert images_in(instance.get(ENTRY).text) == "memtest-7"


def test_an_instance_continues_with_a_bad_first_commit_and_after_thousands_of_signals(tmp_path: Path) -> None:
    """A handler of signals runs between any two steps of the main thread, which may hold a lock just then."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "kind: Fleet\n"})
    with running(repository.bare, tmp_path, ready=False) as instance:
        eventually(lambda: instance.status()["attempted"]["problems"])
        answers = [instance.get(path).status_code for path in ("/healthz", "/readyz", ENTRY)]
        assert answers == [200, 503, 503]
        repository.push(fleet_files(*SEED))
        eventually(lambda: instance.get("/readyz").status_code == 200)
        assert images_in(instance.get(ENTRY).text) == "flatcar-1"
        for number in range(12000):
            instance.process.send_signal(signal.SIGUSR1 if number % 2 else signal.SIGHUP)
        eventually(lambda: instance.get("/readyz").status_code == 200)


def count_reconciles(instance: Instance) -> int:
    line = "\ngitboot_reconcile_duration_seconds_count "
    return int(float(instance.get("/metrics").text.partition(line)[2].partition("\n")[0]))


def test_a_server_is_installed_once_through_its_bmc(tmp_path: Path) -> None:
    """Once with UefiHttp or Pxe: set, consumed by a reset, proven by the fetch, and never set again."""
    machine = Machine("web01", uuid=make_uuid("web01"), system="1", post_s=1)
    credentials = tmp_path / "credentials"
    store_credentials(credentials, "bmc", password="calvin")
    with RedfishServer(Service(machine, credentials={"root": "calvin"})) as bmc:
        spec = f"provision: 1, bmc: {{address: '{bmc.url}', system: /redfish/v1/Systems/1, credentials: bmc}}"
        documents = (SEED[0], server("web01", "role: web", spec), *SEED[2:-1], policy("web", often="Once"))
        repository = Repository.create(tmp_path / "git")
        named = name_ledger(create_ledger(tmp_path / "state"), documents[0])
        repository.push(fleet_files(named, *documents[1:]))
        with running(repository.bare, tmp_path, "--credentials", str(credentials), records="fresh") as instance:

            def event(type: str) -> bool:
                return any(each["type"] == type for each in instance.events)

            def override() -> tuple[object, object]:
                shown = machine.system()["Boot"]
                return shown["BootSourceOverrideEnabled"], shown["BootSourceOverrideTarget"]

            eventually(lambda: override() == ("Once", "Pxe"))
            eventually(lambda: event("OverrideConfirmed"))
            # A fetch by another client does not count: the override is still set.
            instance.get(ENTRY)
            eventually(lambda: event("FetchIgnored"))
            assert images_in(instance.get(ENTRY).text) == "flatcar-1"
            # The machine resets, boots from the network once and fetches its boot script.
            machine.reset()
            machine.run_through()
            assert override()[0] == "Disabled"
            assert images_in(instance.get(ENTRY).text) == "flatcar-1"
            eventually(lambda: event("Provisioned"))
            writes = len(machine.writes)
            commit = repository.push({"note.txt": "not YAML, and no change to any server"})
            eventually(lambda: instance.status()["applied"]["commit"] == commit)
            passed = count_reconciles(instance)
            for number in range(1, 3):  # two reconciles, each of which would have set it
                instance.process.send_signal(signal.SIGUSR1)
                eventually(lambda number=number: count_reconciles(instance) >= passed + number)  # type: ignore[misc]
        assert len(machine.writes) == writes
        assert "calvin" not in str(instance.events)


def test_another_hash_seed_time_zone_and_locale_give_the_same_bytes(tmp_path: Path, repository: Repository) -> None:
    trees = []
    for number, environment in enumerate(
        (
            {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"},
            {"PYTHONHASHSEED": "77", "TZ": "Asia/Kolkata", "LC_ALL": "C.UTF-8"},
        )
    ):
        out = tmp_path / f"out{number}"
        command = ["render", str(repository.bare), "--out", str(out), "--at", "2026-11-20T12:00:00Z"]
        subprocess.run(
            [sys.executable, "-m", "gitboot", *command],
            check=True,
            env={**os.environ, **environment},
            capture_output=True,
        )
        trees.append(
            {
                str(path.relative_to(out)): path.read_bytes()
                for path in sorted(out.rglob("*"))
                if path.is_file() and ".gitboot" not in path.parts
            }
        )
    assert trees[0] == trees[1]
    assert len(trees[0]) > 8


def test_no_alarm_interrupts_a_normal_end() -> None:
    script = """
import atexit, signal
atexit.register(lambda: print(signal.getitimer(signal.ITIMER_REAL)[0]))  # which is called last
from gitboot.cli.terminal import call_on_signal
call_on_signal(lambda: print(signal.getitimer(signal.ITIMER_REAL)[0] > 0), timeout_s=60)
signal.raise_signal(signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "0.0"]), done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_process_that_never_ends_is_killed_some_seconds_after_a_signal(number: signal.Signals) -> None:
    script = f"""
import signal, threading
from gitboot.cli.terminal import call_on_signal
call_on_signal(lambda: None, timeout_s=0.1)
signal.raise_signal({number:d})
threading.Event().wait()
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0
    assert _MAX_SHUTDOWN_S < 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_an_instance_while_its_bmcs_hang(tmp_path: Path, number: signal.Signals) -> None:
    with ExitStack() as stack:
        rack = stack.enter_context(Rack(tmp_path))
        blades = [rack.add(name, provision=1) for name in ("web01", "db01")]
        for blade in blades:
            blade.bmc.fault(Hang(), times=9)
        rack.push()
        instance = stack.enter_context(rack.running(records="fresh"))
        eventually(lambda: all(blade.bmc.service.requests for blade in blades))
        instance.process.send_signal(number)
        assert instance.process.wait(120) == 0


@pytest.mark.parametrize("typed", ["--version", "validate", "validate {missing}", "nonsense"])
def test_a_command_that_tests_fork_equals_one_that_is_started(tmp_path: Path, typed: str) -> None:
    arguments = typed.format(missing=tmp_path / "missing").split()
    script = f"import sys; sys.path.append({str(ROOT)!r}); "
    script += f"from tests.helpers.forked_commands_client import pass_on; pass_on({start()!r})"
    ran = [
        subprocess.run(
            [sys.executable, *command, *arguments], capture_output=True, text=True, cwd=ROOT / "example-repo"
        )
        for command in (("-IS", "-c", script), ("-m", "gitboot"))
    ]
    assert len({(each.returncode, each.stdout, each.stderr) for each in ran}) == 1, ran
    assert ran[0].stdout or ran[0].stderr


def test_a_command_that_tests_fork_ends_by_a_signal(tmp_path: Path, repository: Repository) -> None:
    places = ["--out", str(tmp_path / "output"), "--state", str(tmp_path / "state")]
    command = Command(["run", str(repository.bare), *places], os.environ)
    assert command.poll() is None
    command.kill()
    assert command.wait(60) == -signal.SIGKILL == command.poll()
