"""A server that changes its site, while whoever hands it over is killed: at most one of two sites ever installs it."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from gitboot.cli.main import cli
from gitboot.controller.instance.state_directory import LEDGER
from gitboot.ledger import server_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record
from tests.helpers.fleets import at, uuid_of
from tests.helpers.instance_in_process import in_process
from tests.helpers.running_instance import Repository
from tests.scenarios.test_installations import INSTALLS, World, shown
from tests.scenarios.test_sites import BOOTS, SITES, fleet_of, placed

WEB01: Final = SystemUuid(uuid_of("web01"))
_LONGEST_S: Final = 60


@dataclass
class Move:
    """A server between two sites, each with an instance on a folder of its own."""

    folder: Path
    repository: Repository
    ledgers: dict[str, str]

    def push(self, site: str) -> None:
        text = "---\n".join((fleet_of(self.ledgers), *BOOTS, *placed(web01=site, web02="fra1", web03="ams2")))
        self.repository.push({"fleet.yaml": text}, f"To {site}")

    def turn(self, site: str, *, installs: bool = False) -> tuple[object, object] | None:
        """Let the instance of a site look; what it wants of the server, if it has it."""
        with in_process(self.folder / site, self.repository.bare, site=site) as parts:
            world = World(parts, self.repository, at("20T12:00" if installs else "20T13:00"))  # no clock goes back
            world.turn()
            if installs:
                world.install("web01")
            found = parts.reconciler.standing.plans.servers.get("web01")
            return shown(found.plan) if found is not None else None

    def hand_over(self, old: str, new: str) -> None:
        """All that a person types and what both instances do meanwhile, from the beginning."""
        for site in (old, new):
            self.turn(site)
        if self.record(new) is None:
            file = self.folder / "web01.json"
            file.write_text(self.typed("hand-over", "web01", "--state", str(self.folder / old / "state")))
            taking = ("--reason", "moved", "--state", str(self.folder / new / "state"))
            self.typed("take-over", str(file), *taking)
        self.turn(new)

    def typed(self, *arguments: str) -> str:
        done = CliRunner().invoke(cli, ["records", *arguments])
        assert done.exit_code == 0, done.exception
        return done.stdout

    def record(self, site: str) -> Record | None:
        with open_ledger(self.folder / site / "state" / LEDGER) as ledger:
            return server_tables.read_records(ledger).get(WEB01)

    def installing(self) -> list[str]:
        """The sites at which the server is published to be installed."""
        files = {site: self.folder / site / "output/ops/servers/web01.json" for site in SITES}
        return [site for site, file in files.items() if file.exists() and "web01: Network" in _published(file)]


def _published(file: Path) -> str:
    return "\n".join(json.loads(file.read_bytes())["contents"].values())


def killed(do: Move, old: str, new: str, after_s: float) -> bool:
    """Do it in a process that is killed after a while; say whether it had come to its end."""
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
            parts = stack.enter_context(in_process(tmp_path / site, repository.bare, initial="fresh", site=site))
            ledgers[site] = parts.reconciler.standing.knowledge.facts.identity
    return Move(tmp_path, repository, ledgers)


@pytest.mark.parametrize("installed", [False, True], ids=["pending", "installed"])
def test_killed_at_any_instant_one_has_it_or_nobody_and_it_is_typed_again(
    move: Move, lives: int, *, installed: bool
) -> None:
    chance, kills = random.Random(2029), 0
    old, new = SITES
    move.push(old)
    for site in SITES:
        move.turn(site, installs=installed and site == old)
    for _ in range(3 * lives):
        handed = move.record(old)
        assert handed is not None and handed.provision == (1 if installed else None)
        move.push(new)
        tries, ended = 0, False
        while not ended:
            tries += 1
            after_s = chance.uniform(0, 0.02 * (tries - 1))  # the first is killed at once, however fast this machine is
            ended = killed(move, old, new, after_s if tries < 12 else _LONGEST_S)
            kills += not ended
            assert move.installing() in ([], [old], [new]), "never at both"
            known = move.record(new)
            assert known is None or known.provision == handed.provision
        assert move.installing() == ([] if installed else [new])
        taken = move.record(new)
        assert taken is not None and taken.provision == handed.provision
        assert (move.turn(new) == INSTALLS, move.turn(old)) == (not installed, None)
        old, new = new, old
    assert kills >= 3 * lives
