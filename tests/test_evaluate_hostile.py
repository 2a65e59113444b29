"""Commits that held 0.1.0 for ever: machines are answered all the while, and after a restart that meets one again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from tests.fleets import SEED, image, mac_of, profile, server
from tests.instance import Instance, Repository, eventually, running
from tests.serving import LOADER

ENTRY = f"/v1/boot/{mac_of('web01').replace(':', '-')}/boot.ipxe"
USER_DATA = "userData: {format: CloudInit, template: user-data.j2}"
LIMITS = ("--commit-seconds", "1", "--poll", "0.3")

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


@contextmanager
def asked_all_the_while(instance: Instance) -> Iterator[list[float]]:
    """Every half a second a machine's entry is asked for; how long each answer, a 200, took."""
    waits: list[float] = []
    wrong: list[object] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=instance.url, headers=LOADER, verify=False) as client:  # plain HTTP
            while not ended.wait(0.5):
                began = time.monotonic()
                try:
                    answer = client.get(ENTRY, timeout=10)
                    if answer.status_code != 200:
                        wrong.append(answer)
                except httpx.HTTPError as error:
                    wrong.append(error)
                waits.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        ended.set()
        thread.join()
    assert not wrong, wrong


def attempted(instance: Instance, commit: str) -> bool:
    return bool(instance.status()["attempted"]["commit"] == commit)


def test_machines_are_answered_while_hostile_commits_are_met_and_the_last_one_again(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    having = {
        profile("web", "flatcar-1"): profile("web", "flatcar-1", USER_DATA),
        image("flatcar-1"): image("flatcar-1", "userData: CloudInit"),
    }
    harmless = {"fleet.yaml": "---\n".join(having.get(each, each) for each in SEED), "user-data.j2": "#cloud-config\n"}
    repository.push(harmless)
    slowest: dict[str, float] = {}
    with running(repository.bare, tmp_path, *LIMITS) as instance:
        for what, files in HOSTILE.items():
            with asked_all_the_while(instance) as waits:
                commit = repository.push(harmless | files)
                eventually(partial(attempted, instance, commit), within_s=60)
            slowest[what] = max(waits, default=0)
            harmless |= {path: harmless.get(path, "") for path in files}
        applied = instance.status()["applied"]["commit"]
    with running(repository.bare, tmp_path, *LIMITS) as instance, asked_all_the_while(instance) as waits:
        eventually(partial(attempted, instance, commit), within_s=60)
        assert instance.status()["applied"]["commit"] == applied
    slowest["after a restart"] = max(waits, default=0)
    assert max(slowest.values()) < 3, slowest  # seconds, on two cores that other tests use, too
