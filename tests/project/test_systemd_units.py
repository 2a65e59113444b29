"""The units in packaging/systemd: what systemd itself finds of them, and that gitboot runs as they restrict it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import click
import pytest

from gitboot.cli.main import cli
from gitboot.cli.options import Setting, list_keys
from tests.helpers.documentation import read_page
from tests.helpers.fleets import SEED
from tests.helpers.git_repositories import program
from tests.helpers.running_instance import Repository

FOLDER: Final = Path(__file__).parents[2] / "packaging" / "systemd"
UNITS: Final = ("gitboot.service", "gitboot-serve.service")
MOST_EXPOSED: Final = 20  # 2.0, of 10

# The settings of MemoryDenyWriteExecute= for a program and its children: prctl(2), since Linux 6.3.
RESTRICTED: Final = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (FOLDER / unit).read_text(), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_has_a_low_exposure_score(unit: str) -> None:
    analyze = program("systemd-analyze", "systemd")
    command = (analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", FOLDER / unit)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_knows_every_setting(unit: str, tmp_path: Path) -> None:
    """It looks for the programs, too: here gitboot is where the tests have it."""
    (tmp_path / unit).write_text((FOLDER / unit).read_text().replace("/usr/bin/gitboot", sys.executable))
    analyze = program("systemd-analyze", "systemd")
    command = (analyze, "verify", "--man=no", "--recursive-errors=no", tmp_path / unit)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit in line]) == (0, [])


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_a_command_with_existing_options(unit: str) -> None:
    (line,) = settings(unit)["ExecStart"]
    started, name, *given = shlex.split(line)
    assert started == "/usr/bin/gitboot"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {option for each in command.params if not isinstance(each, Setting) for option in each.opts}
    assert {word for word in given if word.startswith("--")} <= known


def test_both_units_have_the_same_restrictions_and_write_only_where_they_must() -> None:
    own = {"ExecStart", "Description", "User", "Group", "SupplementaryGroups", "EnvironmentFile", "LimitNOFILE"}
    own |= {"StateDirectory", "StateDirectoryMode", "ReadWritePaths", "RestartSec", "TimeoutStopSec"}
    run, serve = ({key: value for key, value in settings(unit).items() if key not in own} for unit in UNITS)
    assert run == serve
    assert settings(UNITS[0])["ReadWritePaths"] == ["/srv/gitboot /var/spool/gitboot"]
    assert settings(UNITS[1])["ReadWritePaths"] == ["/var/spool/gitboot"]
    assert settings(UNITS[0])["User"] != settings(UNITS[1])["User"]


def test_the_clock_may_be_read() -> None:
    """An instance that cannot read whether its clock is synchronised sets nothing."""
    for unit in UNITS:
        assert "ProtectClock" not in settings(unit)
        assert settings(unit)["SystemCallFilter"][-1] == "adjtimex clock_adjtime"  # after what takes them away


def test_an_instance_runs_without_memory_that_is_writable_and_executable(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    command = (sys.executable, "-m", "gitboot", "run", repository.bare, "--once")
    places = ("--out", tmp_path / "output", "--state", tmp_path / "state")
    allowed = [f"--accept-filesystem={name}" for name in ("overlay", "tmpfs", "ramfs")]
    done = subprocess.run(
        [sys.executable, "-c", RESTRICTED, *command, *places, *allowed], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("this kernel cannot refuse memory that is written and executed")
    assert '"Accepted"' in done.stderr, done.stderr
    assert (tmp_path / "output" / "ops" / "status.json").exists()


def test_every_setting_on_the_page_exists() -> None:
    texts = [block.text for block in read_page("docs/how-to/run-an-instance.md").fenced]
    files = [(found[1], text) for text in texts if (found := re.match(r"# /etc/gitboot/(run|serve)\.toml\n", text))]
    assert [name for name, _ in files] == ["run", "serve"]
    for name, text in files:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert tomllib.loads(text).keys() <= list_keys(command).keys()


@pytest.mark.skipif(os.geteuid() != 0, reason="folders are given to others by root alone")
def test_the_users_and_folders_are_created(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for tool, file in (("systemd-sysusers", "gitboot.sysusers.conf"), ("systemd-tmpfiles", "gitboot.tmpfiles.conf")):
        create = ("--create",) if tool == "systemd-tmpfiles" else ()
        done = subprocess.run(
            [program(tool, "systemd"), f"--root={tmp_path}", *create, FOLDER / file],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert {"gitboot", "gitboot-serve"} <= {
        line.partition(":")[0] for line in (tmp_path / "etc" / "passwd").read_text().splitlines()
    }
    assert oct((tmp_path / "var" / "spool" / "gitboot").stat().st_mode) == oct(0o42770)
