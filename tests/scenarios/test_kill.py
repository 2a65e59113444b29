"""Processes killed at any time: in a reconcile, in a hand-over between two sites, and around a PATCH of a BMC."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import pytest
from click.testing import CliRunner

from gitboot.cli.main import cli
from gitboot.controller.instance.state_directory import LEDGER
from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.ledger import server_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.model.scalars import SystemUuid
from gitboot.render.boot_files import render_fleet_files, render_server_files
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import Record
from tests.helpers.fleets import at, fleet, image, make_uuid, policy, profile, server, store_credentials
from tests.helpers.instance_in_process import Bench, run_in_process, summarize_plan
from tests.helpers.redfish_double.machine import Answer, Boot, Machine
from tests.helpers.redfish_double.profiles import ENABLED, Json
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository, git, wait_for_cpu_time
from tests.helpers.signed_lists import assert_list_is_whole, read_files
from tests.scenarios.test_installations import INSTALLS, World
from tests.scenarios.test_sites import BOOTS, SITES, make_fleet, make_servers


def documents(image_name: str) -> dict[str, str]:
    """Four servers that boot an image with user data that names it."""
    return {
        "fleet.yaml": "---\n".join(
            (
                fleet(),
                *(server(f"web{number}") for number in range(4)),
                image(image_name, "userData: CloudInit"),
                profile("web", image_name, "userData: {format: CloudInit, template: t.j2}"),
                policy("web"),
            )
        ),
        "t.j2": "#cloud-config\n# {{ server.name }} {{ image.name }}\n",
    }


def boot_files(repository: Path, revision: str) -> dict[str, bytes]:
    decisions = decide(load(open_snapshot(repository, revision)))
    files = render_fleet_files(decisions)
    for decision in decisions.servers.values():
        files |= render_server_files(decisions, decision, make_plan(decision, datetime.now(UTC), None))
    return {path.removeprefix("boot/"): file.content for path, file in files.items() if path.startswith("boot/")}


def reconcile_forever(folder: Path, repository: Path) -> None:
    with run_in_process(folder, repository, allow_rewind=True) as parts:
        while True:
            parts.source.fetch()
            parts.reconciler.reconcile(datetime.now(UTC))


def check(folder: Path, versions: dict[str, dict[str, bytes]]) -> None:
    boot = folder / "output" / "boot"
    assert_list_is_whole(read_files(boot))
    folders = ("o", "signed")
    for path in (each for each in boot.rglob("*") if each.is_file() and each.relative_to(boot).parts[0] not in folders):
        name = str(path.relative_to(boot))
        if re.search(r"\.gitboot|\.tmp", name):
            continue
        content = path.read_bytes()
        assert content in [version[name] for version in versions.values()], f"{name} is of neither commit"
        for digest in re.findall(rb"/o/([0-9a-f]{64})/", content):
            assert (boot / "o" / digest.decode() / "user-data").read_bytes() in [
                body for version in versions.values() for each, body in version.items() if each.endswith("user-data")
            ], f"{name} names user data that is not there"
    if (ledger := folder / "state" / "ledger.sqlite").exists():
        connection = sqlite3.connect(ledger)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if connection.execute("PRAGMA user_version").fetchone() != (0,):  # else it was killed as it made it
            accepted = connection.execute("SELECT value FROM facts WHERE name = 'accepted'").fetchall()
            assert not accepted or accepted[0][0] in versions
        connection.close()


def test_an_instance_that_is_killed_repeatedly_leaves_complete_boot_scripts(tmp_path: Path, lives: int) -> None:
    kills = 20 * lives
    repository = Repository.create(tmp_path / "git")
    commits = [repository.push(documents(name)) for name in ("flatcar-1", "flatcar-2")]
    versions = {commit: boot_files(repository.bare, commit) for commit in commits}
    order = random.Random(20261121)
    for kill in range(kills):
        git(repository.bare, "update-ref", "refs/heads/main", commits[kill % 2])
        child = os.fork()
        if child == 0:
            try:
                reconcile_forever(tmp_path, repository.bare)
            except BaseException:  # noqa: BLE001 - the parent shows it
                (tmp_path / "failure").write_text(traceback.format_exc())
            finally:
                os._exit(1)
        wait_for_cpu_time(child, order.uniform(0.005, 0.09))
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended == -signal.SIGKILL, (tmp_path / "failure").read_text()
        check(tmp_path, versions)
    with run_in_process(tmp_path, repository.bare, allow_rewind=True) as parts:
        parts.source.fetch()
        parts.reconciler.reconcile(datetime.now(UTC))
        assert parts.reconciler.status.applied == commits[(kills - 1) % 2]
    boot = tmp_path / "output" / "boot"
    for name, content in versions[commits[(kills - 1) % 2]].items():
        assert (boot / name).read_bytes() == content


# A server that changes its site while the process that hands it over is killed: at most one site ever installs it


WEB01: Final = SystemUuid(make_uuid("web01"))
_LONGEST_S: Final = 60


@dataclass
class Move:
    """A server between two sites, each with an instance on a folder of its own."""

    folder: Path
    repository: Repository
    ledgers: dict[str, str]

    def push(self, site: str) -> None:
        text = "---\n".join((make_fleet(self.ledgers), *BOOTS, *make_servers(web01=site, web02="fra1", web03="ams2")))
        self.repository.push({"fleet.yaml": text}, f"To {site}")

    def advance(self, site: str, *, installs: bool = False) -> tuple[object, object] | None:
        """Let the instance of a site look; what it wants of the server, if it has it."""
        with run_in_process(self.folder / site, self.repository.bare, site=site) as parts:
            world = World(parts, self.repository, at("20T12:00" if installs else "20T13:00"))  # no clock goes back
            world.advance()
            if installs:
                world.install("web01")
            found = parts.reconciler.state.plans.servers.get("web01")
            return summarize_plan(found.plan) if found is not None else None

    def hand_over(self, old: str, new: str) -> None:
        """All that a person types and what both instances do meanwhile, from the beginning."""
        for site in (old, new):
            self.advance(site)
        if self.record(new) is None:
            file = self.folder / "web01.json"
            file.write_text(self.show_status("hand-over", "web01", "--state", str(self.folder / old / "state")))
            taking = ("--reason", "moved", "--state", str(self.folder / new / "state"))
            self.show_status("take-over", str(file), *taking)
        self.advance(new)

    def show_status(self, *arguments: str) -> str:
        done = CliRunner().invoke(cli, ["records", *arguments])
        assert done.exit_code == 0, done.exception
        return done.stdout

    def record(self, site: str) -> Record | None:
        with open_ledger(self.folder / site / "state" / LEDGER) as ledger:
            return server_tables.read_records(ledger).get(WEB01)

    def list_install_sites(self) -> list[str]:
        """The sites at which the server is published to be installed."""
        files = {site: self.folder / site / "output/ops/servers/web01.json" for site in SITES}
        return [site for site, file in files.items() if file.exists() and "web01: Network" in _published(file)]


def _published(file: Path) -> str:
    return "\n".join(json.loads(file.read_bytes())["contents"].values())


def killed(do: Move, old: str, new: str, after_s: float) -> bool:
    """Call a function in a process that is killed after a while; return whether it had ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            tempfile.tempdir = str(do.folder)  # what is left there goes with it
            do.hand_over(old, new)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent shows it
            (do.folder / "failure").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    until = time.monotonic() + after_s
    while time.monotonic() < until:
        if (ended := os.waitpid(child, os.WNOHANG))[0]:
            assert os.waitstatus_to_exitcode(ended[1]) == 0, (do.folder / "failure").read_text()
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def move(tmp_path: Path) -> Move:
    repository, ledgers = Repository.create(tmp_path / "git"), {}
    with ExitStack() as stack:
        for site in SITES:
            parts = stack.enter_context(run_in_process(tmp_path / site, repository.bare, initial="fresh", site=site))
            ledgers[site] = parts.reconciler.state.snapshot.facts.identity
    return Move(tmp_path, repository, ledgers)


@pytest.mark.parametrize("installed", [False, True], ids=["pending", "installed"])
def test_after_a_kill_at_any_time_one_ledger_or_none_has_the_server_and_the_command_can_be_repeated(
    move: Move, lives: int, *, installed: bool
) -> None:
    chance = random.Random(2029)
    old, new = SITES
    move.push(old)
    for site in SITES:
        move.advance(site, installs=installed and site == old)
    for _ in range(1 + lives):
        handed = move.record(old)
        assert handed is not None and handed.provision == (1 if installed else None)
        move.push(new)
        tries, ended = 0, False
        while not ended:
            tries += 1
            after_s = chance.uniform(0, 0.02 * (tries - 1))  # the first is killed at once, however fast this machine is
            ended = killed(move, old, new, after_s if tries < 12 else _LONGEST_S)
            assert move.list_install_sites() in ([], [old], [new]), "never at both"
            known = move.record(new)
            assert known is None or known.provision == handed.provision
        assert move.list_install_sites() == ([] if installed else [new])
        taken = move.record(new)
        assert taken is not None and taken.provision == handed.provision
        assert (move.advance(new) == INSTALLS, move.advance(old)) == (not installed, None)
        old, new = new, old


# Killed at any instant between record, set and confirm: no key is set twice, and the ledger stays whole


POINTS = ("the PATCH has arrived", "the PATCH was applied", "it is read back", "some instant")
PASSES = 2


def set_forever(folder: Path, order: dict[str, Any]) -> None:
    """Run in the child until it is killed: set the numbered override, and read its state."""
    bmc = f"bmc: {{address: '{order['bmc']}', system: {order['system']}, credentials: rack}}"
    with Bench(folder, credentials=folder) as bench:
        bench.now = datetime.fromisoformat(order["at"])
        bench.decide(
            fleet(),
            server("web01", spec=f"provision: {order['provision']}, {bmc}"),
            image("flatcar-1", "configFrom: None", "uki"),
            profile("web", "flatcar-1", "httpBoot: uki", method="UefiHttp"),
            policy("web", often="Once"),
        )
        for _ in range(PASSES):
            bench.reconcile()
            bench.wait(seconds=31)


@dataclass
class Nursery:
    """A process without threads that makes children on demand: a process with threads had better not fork."""

    orders: TextIO
    replies: TextIO
    pid: int

    def start_child(self, **order: Any) -> int:
        """Let a child carry out an order; return its process id."""
        print(json.dumps(order), file=self.orders, flush=True)
        return int(self.replies.readline())

    def ended(self) -> int:
        """Wait for the child, and return how it ended."""
        return int(self.replies.readline())


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    (orders_in, orders_out), (births_in, births_out) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(orders_out)
        with os.fdopen(orders_in) as orders, os.fdopen(births_out, "w") as replies:
            for line in orders:
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        set_forever(folder, json.loads(line))
                        status = 0
                    except BaseException:  # noqa: BLE001 - the parent shows it
                        (folder / "failure").write_text(traceback.format_exc())
                    finally:
                        os._exit(status)
                print(child, file=replies, flush=True)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=replies, flush=True)
        os._exit(0)
    os.close(orders_in)
    os.close(births_out)
    with os.fdopen(orders_out, "w") as orders, os.fdopen(births_in) as replies:
        yield Nursery(orders, replies, pid)
    os.waitpid(pid, 0)


@dataclass
class KillPoint:
    """The child, and where it is to be killed."""

    point: str = ""
    pid: int = 0
    patched: bool = False
    kill_sent: threading.Event = field(default_factory=threading.Event)

    def reach(self, point: str) -> None:
        if point == self.point and self.kill_sent.wait(60):
            os.kill(self.pid, signal.SIGKILL)


class WatchedMachine(Machine):
    """A machine that records its real boots, and kills the process that wrote to it."""

    victim = KillPoint()
    provision = 1
    set_number: int | None = None  # the number that is set
    sets = 0

    def patch(self, path: str, body: Any, if_match: str | None) -> Answer:
        self.victim.reach("the PATCH has arrived")  # and is applied all the same: it is in the BMC's hands
        answer = super().patch(path, body, if_match)
        if self.override[ENABLED] == "Once":
            assert answer.status == 200
            self.set_number = self.provision
            self.sets += 1
            self.victim.patched = True
            self.victim.reach("the PATCH was applied")
        return answer

    def system(self) -> Json:
        if self.victim.patched:
            self.victim.reach("it is read back")
        return super().system()


def test_an_instance_that_is_killed_around_a_patch_sets_no_override_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    kills = 10 * lives
    monkeypatch.setattr("gitboot.ledger.store.os.fdatasync", lambda _: None)  # no power is cut here
    store_credentials(tmp_path, password="secret")
    chance, killed = random.Random(20261121), Counter[str]()
    machine = WatchedMachine("web01", uuid=make_uuid("web01"))
    booted: list[int] = []  # the numbers that were booted from the network, each time that one was

    def on_boot(boot: Boot) -> None:
        if boot.target == "UefiHttp":
            assert machine.set_number is not None
            booted.append(machine.set_number)

    machine.on_boot = on_boot
    with nursery(tmp_path) as children, RedfishServer(Service(machine)) as bmc:

        def live(point: str) -> int:
            """Let a child live until it is killed at a point, or ends without having come there."""
            machine.victim = victim = KillPoint(point)
            facts = {"bmc": bmc.url, "system": machine.path, "provision": machine.provision}
            victim.pid = children.start_child(**facts, at=machine.now.isoformat())
            victim.kill_sent.set()
            if point == "some instant":
                time.sleep(chance.uniform(0, 0.06))
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(victim.pid, signal.SIGKILL)
            status = children.ended()
            while bmc.is_busy:  # what it sent last is still carried out
                time.sleep(0.001)
            assert status in (0, -signal.SIGKILL), (tmp_path / "failure").read_text()
            return status

        while killed.total() < kills:
            point = chance.choice(POINTS)
            reached = live(point) == -signal.SIGKILL
            killed[point] += reached
            with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            machine.advance(600)
            if chance.random() < 0.4:
                machine.run_through()
            if not reached or machine.provision in booted or chance.random() < 0.2:
                machine.provision += 1
            assert len(booted) == len(set(booted)), f"set again after it was booted: {booted}"
        machine.provision += 1
        assert live("") == 0
        machine.run_through()
        assert booted[-1] == machine.provision, "what was killed so often sets no more"
    assert len(booted) == len(set(booted)) >= kills // 10
    assert min(killed[point] for point in POINTS) >= kills // 20, killed
