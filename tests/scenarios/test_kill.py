"""Killed at any instant of a pass: whole entries of one commit or the other, and a ledger that can be read."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import traceback
from datetime import UTC, datetime
from pathlib import Path

from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.render.boot_files import server_files, shared_files
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import plan
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.instance_in_process import in_process
from tests.helpers.running_instance import Repository, git
from tests.helpers.signed_lists import assert_list_is_whole, files_in
from tests.publish.test_publisher_kill import ran_until


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
    files = shared_files(decisions)
    for decision in decisions.servers.values():
        files |= server_files(decisions, decision, plan(decision, datetime.now(UTC), None))
    return {path.removeprefix("boot/"): file.content for path, file in files.items() if path.startswith("boot/")}


def passes(folder: Path, repository: Path) -> None:
    with in_process(folder, repository, allow_rewind=True) as parts:
        while True:
            parts.source.fetch()
            parts.reconciler.reconcile(datetime.now(UTC))


def check(folder: Path, versions: dict[str, dict[str, bytes]]) -> None:
    boot = folder / "output" / "boot"
    assert_list_is_whole(files_in(boot))
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


def test_an_instance_that_is_killed_again_and_again_leaves_whole_entries(tmp_path: Path, lives: int) -> None:
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
                passes(tmp_path, repository.bare)
            except BaseException:  # noqa: BLE001 - the parent shows it
                (tmp_path / "failure").write_text(traceback.format_exc())
            finally:
                os._exit(1)
        ran_until(child, order.uniform(0.005, 0.09))
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended == -signal.SIGKILL, (tmp_path / "failure").read_text()
        check(tmp_path, versions)
    with in_process(tmp_path, repository.bare, allow_rewind=True) as parts:
        parts.source.fetch()
        parts.reconciler.reconcile(datetime.now(UTC))
        assert parts.reconciler.status.applied == commits[(kills - 1) % 2]
    boot = tmp_path / "output" / "boot"
    for name, content in versions[commits[(kills - 1) % 2]].items():
        assert (boot / name).read_bytes() == content
