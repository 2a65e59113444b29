"""The script of docs/mirrors.md that copies a tree: killed before each of its commands, overtaken, on a full disk."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from stat import S_IXUSR
from typing import Any

import pytest

from tests.failing_disk import fill, small_disk
from tests.git_servers import program
from tests.test_targets_folder import ENTRIES, Site, assert_no_chain_is_mixed, files_of
from tests.test_targets_mirror import SCRIPT, page_script

_COMMANDS = ("flock", "readlink", "rm", "rsync", "sync", "ln", "mv")
_CALLS = 8  # of one run: two of rsync


class SignedSite(Site):
    """A published directory with a list; the folder that a `Site` follows with is not used."""

    def publish(self, *what: Any, **how: Any) -> None:
        super().publish(*what, **how, is_listed=True)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SignedSite]:
    (unused := tmp_path / "unused").mkdir()
    site = SignedSite(tmp_path / "out", unused)
    yield site
    site.close()


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with the commands of the script. A file with the number of a call kills or halts the script there."""
    (folder := tmp_path / "bin").mkdir()
    for name in _COMMANDS:
        path = folder / name
        path.write_text(
            f"#!/bin/sh\necho {name} >> {folder}/calls\nnumber=$(wc -l < {folder}/calls)\n"
            f"if [ -e {folder}/kill-$number ]; then kill -9 $PPID; exit 1; fi\n"
            f"if [ -p {folder}/wait-$number ]; then read line < {folder}/wait-$number; fi\n"
            f'exec {program(name, name)} "$@"\n'
        )
        path.chmod(path.stat().st_mode | S_IXUSR)
    return folder


def start(script: Path, source: Path, commands: Path) -> subprocess.Popen[bytes]:
    (commands / "calls").unlink(missing_ok=True)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    return subprocess.Popen([script, source], env=environment, stderr=subprocess.DEVNULL)


def run(script: Path, source: Path, commands: Path) -> int:
    return start(script, source, commands).wait(600)


def boot_files(current: Path) -> dict[str, bytes]:
    """The files of a copy of OUTPUT/boot, by path below OUTPUT."""
    return {f"boot/{path.relative_to(current)}": path.read_bytes() for path in current.rglob("*") if path.is_file()}


def test_finding_m4_the_pages_script_killed_before_any_command_leaves_the_last_whole_copy(
    site: SignedSite, tmp_path: Path, commands: Path
) -> None:
    script, source = page_script(folder := tmp_path / "srv"), site.root / "boot"
    current = folder / "current"
    site.publish(0)
    assert run(script, source, commands) == 0
    for number in range(1, _CALLS + 2):
        before = boot_files(current)
        site.publish(number, (0, 1 + number % 2))
        (commands / f"kill-{number}").touch()
        status = run(script, source, commands)
        (commands / f"kill-{number}").unlink()
        assert_no_chain_is_mixed(boot_files(current))
        if number > _CALLS:
            assert status == 0
        else:
            assert (status, boot_files(current)) == (-9, before)
            assert run(script, source, commands) == 0
        assert boot_files(current) == files_of(site.root)


def test_finding_m4_a_commit_between_any_two_commands_of_the_pages_script_leaves_whole_chains(
    site: SignedSite, tmp_path: Path, commands: Path
) -> None:
    script = page_script(folder := tmp_path / "srv")
    site.publish(0)
    assert run(script, site.root / "boot", commands) == 0
    for number in range(1, _CALLS + 1):
        site.publish(2 * number - 1)
        os.mkfifo(gate := commands / f"wait-{number}")
        running = start(script, site.root / "boot", commands)
        with gate.open("w"):  # opened when the command waits
            site.publish(2 * number, (0, 2, 3))
        assert running.wait(600) == 0
        gate.unlink()
        assert_no_chain_is_mixed(seen := boot_files(folder / "current"))
        assert [path for path in seen if path.startswith("boot/v1/")] != []


def test_finding_m4_a_commit_while_rsync_copies_leaves_whole_chains(
    site: SignedSite, tmp_path: Path, commands: Path
) -> None:
    """The commit comes when rsync has copied content, and before it copies boot scripts."""
    script = page_script(folder := tmp_path / "srv")
    site.publish(1)
    os.mkfifo(gate := commands / "wait-5")  # the second rsync
    running = start(script, site.root / "boot", commands)
    with gate.open("w"):
        (boot_script := folder / "a" / ENTRIES[0].removeprefix("boot/")).unlink()
        site.publish(2)
        boot_script.write_bytes((site.root / ENTRIES[0]).read_bytes())
    assert running.wait(600) == 0
    assert_no_chain_is_mixed(seen := boot_files(folder / "current"))
    assert seen[ENTRIES[0]] == (site.root / ENTRIES[0]).read_bytes()


def test_finding_m4_a_full_disk_leaves_the_last_whole_copy(tmp_path: Path, site: SignedSite, commands: Path) -> None:
    with small_disk(tmp_path, "8m") as disk:
        script = page_script(folder := disk / "srv")
        site.publish(1)
        assert run(script, site.root / "boot", commands) == 0
        before = boot_files(folder / "current")
        site.publish(2)
        fill(disk / "filler")
        assert run(script, site.root / "boot", commands) != 0
        assert boot_files(folder / "current") == before
        (disk / "filler").unlink()
        assert run(script, site.root / "boot", commands) == 0
        assert boot_files(folder / "current") == files_of(site.root)


def test_finding_m5_a_source_that_is_not_mounted_replaces_nothing(
    tmp_path: Path, site: SignedSite, commands: Path
) -> None:
    script = page_script(folder := tmp_path / "srv")
    site.publish(1)
    assert run(script, site.root / "boot", commands) == 0
    before = boot_files(folder / "current")
    (empty := tmp_path / "empty").mkdir()
    assert run(script, empty, commands) != 0
    assert boot_files(folder / "current") == before


def test_finding_m6_a_file_that_was_repaired_stays_repaired(tmp_path: Path, site: SignedSite, commands: Path) -> None:
    """The folder that is not served has the edited file, too, with the size and the time of the right one."""
    script = page_script(folder := tmp_path / "srv")
    site.publish(1)
    for _ in range(2):
        assert run(script, site.root / "boot", commands) == 0
    path = folder / "current" / ENTRIES[0].removeprefix("boot/")
    right, at = path.read_bytes(), path.stat().st_mtime
    path.write_bytes(right.replace(b"0001", b"9999"))  # in both folders: they are links of one file
    os.utime(path, (at, at))
    repaired = path.with_name("repaired")
    repaired.write_bytes(right)
    os.utime(repaired, (at, at))
    repaired.replace(path)
    for _ in range(2):
        assert run(script, site.root / "boot", commands) == 0
        assert boot_files(folder / "current") == files_of(site.root)


def test_the_pages_script_copies_a_tree_for_an_endpoint(tmp_path: Path, site: SignedSite, commands: Path) -> None:
    script = page_script(folder := tmp_path / "srv")
    site.publish(1)
    assert run(script, site.root, commands) == 0
    assert files_of(folder / "current") == files_of(site.root)
    assert (folder / "current/ops/manifest.json").read_bytes() == (site.root / "ops/manifest.json").read_bytes()


def test_each_command_of_the_pages_script_is_counted() -> None:
    shell = {"set", "cd", "exec", "if", "then", "fi", "next", "copy", "echo", "exit"}
    words = set(re.findall(r"(?:^\s*|\$\(|then )(\w+)\b", SCRIPT, re.MULTILINE))
    assert words - shell == set(_COMMANDS)
