"""docs/how-to/bmcs.md: the commands of "Enrol BMCs" take three BMCs to an accepted fleet, as a reader types them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.documentation import read_page
from tests.helpers.fleets import make_mac, make_uuid
from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import RedfishServer, Service

PAGE = "docs/how-to/bmcs.md"
ADDRESSES = {"web01": "10.112.0.13", "web02": "10.112.0.14", "web03": "10.112.0.15"}


def _commands() -> str:
    """Return the shell blocks of the numbered steps, in the order of the page."""
    return "".join(block.text for block in read_page(PAGE).fenced if block.language == "sh")


@pytest.fixture
def machines(tmp_path: Path) -> dict[str, Machine]:
    found = {name: Machine(name, uuid=make_uuid(name)) for name in ADDRESSES}
    for name, machine in found.items():
        machine.nics = {"NIC.1": make_mac(name)}
    return found


def test_the_commands_of_the_page_lead_to_an_accepted_fleet(tmp_path: Path, machines: dict[str, Machine]) -> None:
    (tmp_path / "authority").mkdir()
    authority, commands = Authority(tmp_path / "authority"), _commands()
    with ExitStack() as stack:
        for name, machine in machines.items():
            service = Service(machine, credentials={"root": "the password"})
            bmc = stack.enter_context(RedfishServer(service, tls=authority.server_context()))
            assert ADDRESSES[name] in commands
            commands = commands.replace(ADDRESSES[name], bmc.url.removeprefix("https://"))
        (folder := tmp_path / "reader").mkdir()
        terminal, person = os.openpty()
        os.write(terminal, b"y\ny\n")  # the answers to both questions
        people = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=folder,
            env=os.environ | people | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdin=person,
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(terminal)
        os.close(person)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 BMCs: 3 with no plan" in done.stdout
    assert "3 servers: 3 provisioned" in done.stdout
    assert all(machine.writes == [] for machine in machines.values())
