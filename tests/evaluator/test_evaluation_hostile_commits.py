"""Commits that held 0.1.0 for ever: machines are answered all the while, and after a restart that meets one again."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path

import httpx

from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import SEED, configured, image, mac_of, profile, server
from tests.helpers.running_instance import Instance, Repository, evaluators, eventually, git, peak_mib, running

ENTRY = f"/v1/boot/{mac_of('web01').replace(':', '-')}/boot.ipxe"
USER_DATA = "userData: {format: CloudInit, template: user-data.j2}"
LIMITS = (*configured(commit_seconds=1), "--poll", "0.3")

HOSTILE = {
    "an ignore pattern of 17 stars and a name of 200 letters": {
        ".gitbootignore": f"{'*a' * 17}b\n",
        f"{'a' * 200}.yaml": "",
    },
    "a word that is nearly a secret, and 1,600 blank lines": {
        "user-data.j2": f"#cloud-config\n# passw{chr(10) * 1600}\n"
    },
    "a line of 1 MB that looks like an option": {"user-data.j2": f"#cloud-config\n# --password={'-' * 2**20}\n"},
    "a document with 50,000 bad labels": {
        "labels.yaml": server("web02", ", ".join(f"l{number}: '-'" for number in range(50_000)))
    },
    "more servers than there is time for": {
        "many.yaml": "---\n".join(server(f"n{number:05}", "role: web") for number in range(6_000))
    },
}


PATIENCE_S = 300  # whoever holds the interpreter of an endpoint holds it longer


@contextmanager
def asked_all_the_while(instance: Instance) -> Iterator[None]:
    """Every half a second a machine's entry is asked for, and each answer is a 200."""
    wrong: list[object] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=instance.url, headers=LOADER, verify=False) as client:  # plain HTTP
            while not ended.wait(0.5):
                try:
                    answer = client.get(ENTRY, timeout=PATIENCE_S)
                    if answer.status_code != 200:
                        wrong.append(answer)
                except httpx.HTTPError as error:
                    wrong.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not wrong, wrong


def attempted(instance: Instance, commit: str) -> bool:
    return bool(instance.status()["attempted"]["commit"] == commit)


def test_t1_machines_are_answered_while_hostile_commits_are_met_and_the_last_one_again(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    having = {
        profile("web", "flatcar-1"): profile("web", "flatcar-1", USER_DATA),
        image("flatcar-1"): image("flatcar-1", "userData: CloudInit"),
    }
    harmless = {"fleet.yaml": "---\n".join(having.get(each, each) for each in SEED), "user-data.j2": "#cloud-config\n"}
    repository.push(harmless)
    with running(repository.bare, tmp_path, *LIMITS) as instance:
        for files in HOSTILE.values():
            with asked_all_the_while(instance):
                commit = repository.push(harmless | files)
                eventually(partial(attempted, instance, commit))
            harmless |= {path: harmless.get(path, "") for path in files}
        applied = instance.status()["applied"]["commit"]
    with running(repository.bare, tmp_path, *LIMITS) as instance, asked_all_the_while(instance):
        eventually(partial(attempted, instance, commit))
        assert instance.status()["applied"]["commit"] == applied


def test_t1_machines_are_answered_while_a_commit_comes_to_no_end(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        (evaluator,) = evaluators(instance.process.pid)
        os.kill(evaluator, signal.SIGSTOP)
        commit = repository.push({"more.yaml": server("web02", "role: web")})
        eventually(lambda: [each for each in instance.events if each.get("commit") == commit])
        assert instance.get(ENTRY, timeout=PATIENCE_S).status_code == 200
        assert not attempted(instance, commit)
        os.kill(evaluator, signal.SIGCONT)
        eventually(partial(attempted, instance, commit))


def push_blobs(repository: Repository, mebibytes: int, count: int) -> str:
    """Commit files of so many MiB each, of which a few hundred KB are sent, as whoever may push can make them."""
    entries = []
    for number in range(count):
        head, end = f"blob {mebibytes << 20}\0".encode(), bytes([number]) * (1 << 20)
        digest, packer = hashlib.sha1(head, usedforsecurity=False), zlib.compressobj(1)
        packed = [packer.compress(head)]
        for part in (*repeat(bytes(1 << 20), mebibytes - 1), end):
            digest.update(part)
            packed.append(packer.compress(part))
        name = digest.hexdigest()
        path = repository.bare / "objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join((*packed, packer.flush())))
        entries.append(f"100644 blob {name}\tbig{number}.yaml")
    kept = git(repository.work, "ls-tree", "HEAD").splitlines()
    made = subprocess.run(
        ["git", "mktree"],
        cwd=repository.bare,
        input="\n".join((*kept, *entries)),
        text=True,
        capture_output=True,
        check=True,
    )
    parent = git(repository.bare, "rev-parse", "main")
    commit = git(repository.bare, "commit-tree", "-p", parent, "-m", "Large", made.stdout.strip())
    git(repository.bare, "update-ref", "refs/heads/main", commit)
    return commit


def test_t4_a_commit_of_gigabytes_in_a_repository_on_this_machine_fills_no_memory(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        eventually(lambda: attempted(instance, first))
        before = peak_mib(instance.process.pid)
        hostile = push_blobs(repository, mebibytes=96, count=2)
        eventually(lambda: attempted(instance, hostile))
        found = instance.status()["attempted"]["problems"]
        assert [(each["path"], each["code"]) for each in found] == [
            (f"big{number}.yaml", "GB1004") for number in range(2)
        ]
        assert "the file has 100,663,296 bytes, over 16,777,216" in found[0]["message"]
        assert peak_mib(instance.process.pid) - before < 72
        git(repository.work, "fetch", "-q", "origin")
        git(repository.work, "reset", "-q", "--soft", "origin/main")
        later = repository.push({"more.yaml": server("web02", "role: web")})
        eventually(lambda: instance.status()["applied"]["commit"] == later)
        assert peak_mib(instance.process.pid) - before < 72
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        eventually(lambda: instance.status()["applied"]["commit"] == later)
        assert not [event for event in instance.events if event["type"] in ("CloneRestored", "FetchFailed")]
