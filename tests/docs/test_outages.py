"""The outages of docs/how-to/git-is-down.md and docs/how-to/power-cut.md: Git, and the power of a whole site."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Final

from gitboot.cli.main import Exit
from tests.helpers.documentation import find_code_block, list_commands, read_page
from tests.helpers.fleets import policy
from tests.helpers.git_repositories import ENVIRONMENT
from tests.helpers.instance_with_bmcs import (
    BASE_URL,
    POOL,
    CommandResult,
    Rack,
    boots,
    condition,
    run_command,
    wait_for_condition,
)
from tests.helpers.running_instance import Instance, eventually, git

GIT_PAGE: Final = "docs/how-to/git-is-down.md"
POWER_PAGE: Final = "docs/how-to/power-cut.md"
REASON: Final = ("--reason", "INC-4711")


def until_applied(instance: Instance, commit: str) -> None:
    eventually(lambda: instance.status()["applied"]["commit"] == commit)


def take_git_down(rack: Rack) -> Path:
    """Hide the repository from the instance. Return its new place."""
    return rack.repository.bare.rename(rack.repository.bare.with_suffix(".away"))


def run_in_shell(page: str, start: str, folder: Path, **places: Path) -> None:
    """Type a block of a page in a shell, with other places and without another user."""
    text = find_code_block(page, start).removeprefix("$ ").removeprefix("# ").replace("runuser -u gitboot -- ", "")
    for word, place in places.items():
        text = text.replace(PLACES[word], str(place))
    subprocess.run(["sh", "-euc", text], cwd=folder, env={**os.environ, **ENVIRONMENT}, check=True)


PLACES: Final = {"state": "STATE", "host": "ssh://root@boot.example.net/srv", "srv": "/srv"}


# Git is down


def test_while_git_is_down_an_operator_stops_allows_records_and_approves(rack: Rack) -> None:
    web, db = rack.add("web01"), rack.add("db01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        eventually(lambda: boots(instance, db) == "flatcar-1")
        web.provision = 1
        held = rack.push("Reinstall web01")
        wait_for_condition(instance, "CommitAccepted", status=False, reason="GuardTripped")
        take_git_down(rack)
        assert rack.run_command("reconcile").code == Exit.SOURCE
        wait_for_condition(instance, "SourceReady", status=False, reason="SourceError")
        rack.said("stop-installs", *REASON)
        assert boots(instance, db) == "disk"
        rack.said("allow-installs")
        eventually(lambda: boots(instance, db) == "flatcar-1")
        rack.said("records", "set", "db01", "provisioned", *REASON)
        eventually(lambda: boots(instance, db) == "disk")
        digest = instance.status()["attempted"]["held"]["digest"]
        rack.said("approve", digest, "--all-guards", *REASON)
        until_applied(instance, held)
    with rack.running() as instance:
        wait_for_condition(instance, "SourceReady", status=False, reason="SourceError")
        until_applied(instance, held)
        eventually(lambda: boots(instance, web) == "flatcar-1")


def test_an_urgent_change_comes_from_another_repository_until_git_is_back(rack: Rack, tmp_path: Path) -> None:
    rack.add("web01")
    rack.push()
    clone, srv = tmp_path / "clone", tmp_path / "srv"
    git(tmp_path, "clone", "--quiet", str(rack.repository.bare), str(clone))  # older than the accepted commit
    origin, accepted = rack.repository.bare, rack.push("Accepted")
    with rack.running(records="adopt") as instance:
        until_applied(instance, accepted)
    away = take_git_down(rack)
    run_in_shell(GIT_PAGE, "# runuser", clone, state=rack.state)
    run_in_shell(GIT_PAGE, "$ git pull", clone)
    assert git(clone, "rev-parse", "HEAD") == accepted
    fleet = clone / "fleet.yaml"
    fleet.write_text(fleet.read_text().replace("image: flatcar-1", "image: flatcar-2"))
    git(clone, "commit", "--quiet", "--all", "--message", "Urgent")
    urgent = git(clone, "rev-parse", "HEAD")
    srv.mkdir()
    run_in_shell(GIT_PAGE, "# git init", tmp_path, srv=srv)
    run_in_shell(GIT_PAGE, "$ git push ssh:", clone, host=srv)
    rack.repository.bare = srv / "fleet.git"
    with rack.running() as instance:
        until_applied(instance, urgent)
    away.rename(origin)
    rack.repository.bare = origin
    with rack.running() as instance:
        held = wait_for_condition(instance, "CommitAccepted", status=False, reason="GuardTripped")
        assert "allowRewind" in held["message"]
        until_applied(instance, urgent)
        run_in_shell(GIT_PAGE, "$ git push origin", clone)
        rack.said("reconcile")
        wait_for_condition(instance, "CommitAccepted", status=True, reason="Valid")
        until_applied(instance, urgent)


# A power cut


def type_line(rack: Rack, start: str, server: str = "") -> CommandResult:
    """Type the only gitboot command of the page about power cuts that begins so.

    The places are those of the rack, and the server replaces the selector.
    """
    shown = (words for block in read_page(POWER_PAGE).shown for words in list_commands(block))
    (words,) = (words for words in shown if shlex.join(words).startswith(f"gitboot {start}"))
    places = {"STATE": rack.state, "DIR": rack.credentials, "rack=r12": server}
    return run_command(*(places.get(word, word) for word in words[1:] if word != "-l"))


def test_after_a_power_cut_only_the_servers_that_a_person_chose_are_installed(rack: Rack) -> None:
    rack.settings = f"{BASE_URL}, provisioning: {{evidence: Reported}}"
    rack.pool = (*POOL[:-1], policy("web", often="Once"), policy("every", "{servers: [every01]}", "priority: 9"))
    names = ("web01", "web02", "pending01", "every01", "db01")
    blades = [rack.add(name, provision=0 if name == "db01" else 1) for name in names]
    web01, web02, pending = blades[:3]
    rack.push()
    with rack.running(records="fresh") as instance:
        eventually(lambda: all(blade.stands for blade in (web01, web02, pending)))
        for blade in (web01, web02):  # their installations have begun
            blade.machine.run_through()
            assert boots(instance, blade) == "flatcar-1"
        for blade in blades:
            blade.machine.reset("ForceOff")
    stopped = type_line(rack, "stop-installs")
    assert (stopped.code, "no instance is running with this state directory" in stopped.err) == (Exit.PARTIAL, True)
    with rack.running() as instance:
        assert type_line(rack, "status").code == Exit.PARTIAL
        for blade in blades:
            assert type_line(rack, "bmc power on", blade.name).code == Exit.FINE
            blade.machine.run_through()
        assert [boots(instance, blade) for blade in blades] == ["disk"] * 5
        assert "2 served, 2 pending, 1 provisioned" in type_line(rack, "records show").out
        for line in ("records set web01", "records set web02"):
            assert type_line(rack, line).code == Exit.FINE
        allowed = type_line(rack, "allow-installs").out
        assert "3 servers may boot from the network now: every01, pending01, web02" in allowed
        wanted = ["disk", "flatcar-1", "flatcar-1", "flatcar-1", "disk"]
        eventually(lambda: [boots(instance, blade) for blade in blades] == wanted)


def test_a_power_cut_lets_servers_that_wait_for_it_be_installed(rack: Rack) -> None:
    rack.pool = (*POOL[:-1], policy("web", "All", "waitFor: PowerOff", often="Once"))
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        eventually(lambda: condition(instance, "RecordsVerified").get("status"))
        assert boots(instance, web) == "disk"
    web.machine.reset("ForceOff")
    type_line(rack, "stop-installs")
    with rack.running() as instance:
        eventually(lambda: [each for each in instance.events if each["type"] == "PoweredOff"])
        assert boots(instance, web) == "disk"
        assert "1 server may boot from the network now: web01" in type_line(rack, "allow-installs").out
        eventually(lambda: boots(instance, web) == "flatcar-1")
