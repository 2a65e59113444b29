"""The script `copy-boot` of the documentation: killed before each of its commands, overtaken, on a full disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.documentation import CALLS, COMMANDS, SCRIPT, CopyScript
from tests.publish.targets.test_folder import ENTRIES, Site, read_boot_files
from tests.publish.targets.test_s3 import assert_no_chain_is_mixed

BELOW_BOOT = ENTRIES[0].removeprefix("boot/")


class SignedSite(Site):
    """A published directory with a list; the folder that a `Site` follows with is not used."""

    def publish(self, *what: Any, **how: Any) -> None:
        super().publish(*what, **how, is_listed=True)

    @property
    def boot(self) -> Path:
        return self.root / "boot"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SignedSite]:
    (unused := tmp_path / "unused").mkdir()
    site = SignedSite(tmp_path / "out", unused)
    yield site
    site.close()


@pytest.fixture
def mirror(tmp_path: Path) -> CopyScript:
    return CopyScript(tmp_path / "srv", tmp_path / "bin")


def test_finding_m4_the_copy_script_killed_before_any_command_leaves_the_last_complete_copy(
    site: SignedSite, mirror: CopyScript
) -> None:
    site.publish(0)
    assert mirror.run(site.boot) == 0
    for call in range(1, CALLS + 2):
        before = mirror.files()
        site.publish(call, (0, 1 + call % 2))
        status = mirror.run_killed(site.boot, call)
        assert_no_chain_is_mixed(mirror.files())
        if call > CALLS:
            assert status == 0
        else:
            assert (status, mirror.files()) == (-9, before)
            assert mirror.run(site.boot) == 0
        assert mirror.files() == read_boot_files(site.root)


def test_finding_m4_a_commit_between_any_two_commands_of_the_copy_script_leaves_complete_chains(
    site: SignedSite, mirror: CopyScript
) -> None:
    site.publish(0)
    assert mirror.run(site.boot) == 0
    for call in range(1, CALLS + 1):
        site.publish(2 * call - 1)
        assert mirror.run_halted(site.boot, call, lambda call=call: site.publish(2 * call, (0, 2, 3))) == 0  # type: ignore[misc]
        assert_no_chain_is_mixed(seen := mirror.files())
        assert [path for path in seen if path.startswith("boot/v1/")] != []


def test_finding_m4_a_commit_while_rsync_copies_leaves_complete_chains(site: SignedSite, mirror: CopyScript) -> None:
    """The commit comes when rsync has copied content, and before it copies boot scripts."""
    site.publish(1)

    def commit() -> None:
        (boot_script := mirror.current.with_name("a") / BELOW_BOOT).unlink()
        site.publish(2)
        boot_script.write_bytes((site.boot / BELOW_BOOT).read_bytes())

    assert mirror.run_halted(site.boot, 5, commit) == 0  # before the second rsync
    assert_no_chain_is_mixed(seen := mirror.files())
    assert seen[ENTRIES[0]] == (site.root / ENTRIES[0]).read_bytes()


def test_finding_m4_a_full_disk_leaves_the_last_complete_copy(tmp_path: Path, site: SignedSite) -> None:
    with small_disk(tmp_path, "8m") as disk:
        mirror = CopyScript(disk / "srv", tmp_path / "bin")
        site.publish(1)
        assert mirror.run(site.boot) == 0
        before = mirror.files()
        site.publish(2)
        fill(disk / "filler")
        assert mirror.run(site.boot) != 0
        assert mirror.files() == before
        (disk / "filler").unlink()
        assert mirror.run(site.boot) == 0
        assert mirror.files() == read_boot_files(site.root)


def test_finding_m5_a_source_that_is_not_mounted_replaces_nothing(
    tmp_path: Path, site: SignedSite, mirror: CopyScript
) -> None:
    site.publish(1)
    assert mirror.run(site.boot) == 0
    before = mirror.files()
    (empty := tmp_path / "empty").mkdir()
    assert mirror.run(empty) != 0
    assert mirror.files() == before


def test_finding_m6_a_repaired_file_stays_repaired(site: SignedSite, mirror: CopyScript) -> None:
    """The folder that is not served has the edited file, too, with the size and the time of the right one."""
    site.publish(1)
    for _ in range(2):
        assert mirror.run(site.boot) == 0
    path = mirror.current / BELOW_BOOT
    right, at = path.read_bytes(), path.stat().st_mtime
    path.write_bytes(right.replace(b"0001", b"9999"))  # in both folders: they are links of one file
    os.utime(path, (at, at))
    repaired = path.with_name("repaired")
    repaired.write_bytes(right)
    os.utime(repaired, (at, at))
    repaired.replace(path)
    for _ in range(2):
        assert mirror.run(site.boot) == 0
        assert mirror.files() == read_boot_files(site.root)


def test_the_copy_script_copies_a_tree_for_an_endpoint(site: SignedSite, mirror: CopyScript) -> None:
    site.publish(1)
    assert mirror.run(site.root) == 0
    assert read_boot_files(mirror.current) == read_boot_files(site.root)
    assert (mirror.current / "ops/manifest.json").read_bytes() == (site.root / "ops/manifest.json").read_bytes()


def test_each_command_of_the_copy_script_is_counted() -> None:
    shell = {"set", "cd", "exec", "if", "then", "fi", "next", "copy", "echo", "exit"}
    words = set(re.findall(r"(?:^\s*|\$\(|then )(\w+)\b", SCRIPT, re.MULTILINE))
    assert words - shell == set(COMMANDS)
