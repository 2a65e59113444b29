"""A running gitboot and the repository that it follows, as processes and directories of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx
import pygit2

from gitboot.cli.instance_client import request_change
from gitboot.controller.instance.state_directory import LEDGER, has_ledger
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.records.ledger_trust import InitMode
from gitboot.ledger.store import PostgresAddress, Store, write_address
from gitboot.publish.tree_reader import read_records
from gitboot.resolve.provisioning_record import make_record_fields
from tests.helpers.endpoints import LOADER
from tests.helpers.forked_commands import Command

_GIT = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.net",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.net",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **_GIT},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@dataclass
class Repository:
    bare: Path
    work: Path

    @classmethod
    def create(cls, folder: Path) -> Repository:
        made = cls(bare=folder / "fleet.git", work=folder / "work")
        folder.mkdir(parents=True, exist_ok=True)
        pygit2.init_repository(str(made.bare), bare=True, initial_head="main")
        pygit2.init_repository(str(made.work), initial_head="main").remotes.create("origin", str(made.bare))
        return made

    def push(self, files: Mapping[str, str], subject: str = "Change") -> str:
        for path, text in files.items():
            (self.work / path).parent.mkdir(parents=True, exist_ok=True)
            (self.work / path).write_text(text)
        work = pygit2.Repository(str(self.work))  # in this process: git would start five
        work.index.add_all()
        work.index.write()
        ada = pygit2.Signature("A", "a@example.net")
        parents = [] if work.head_is_unborn else [work.head.target]
        made = work.create_commit("HEAD", ada, ada, f"{subject}\n", work.index.write_tree(), parents)
        work.remotes.create_anonymous(str(self.bare)).push(["refs/heads/main"])
        return str(made)


@dataclass
class Instance:
    """``gitboot run`` or ``serve`` in a process of its own, listening on a port that was free."""

    process: Command
    errors: TextIO
    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, *arguments: str, environment: Mapping[str, str] | None = None) -> Instance:
        read, write = os.pipe()
        made = cls(Command(arguments, {**os.environ, **(environment or {})}, errors=write), os.fdopen(read))
        os.close(write)
        return made

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", **{"headers": LOADER, "timeout": 60, "verify": False, **more})

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/api/v1/status").json()
        return found

    def read(self) -> None:
        for line in self.errors:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"type": "NotJson", "message": line.rstrip()}
            if event["type"] == "Listening":
                self.url = event["url"]
            self.events.append(event)


def eventually(condition: Callable[[], Any], within_s: float = 300, *, poll_s: float = 0.05) -> Any:
    """Return the value of ``condition`` once it is true; an AssertionError names its last value or error."""
    deadline, last = time.monotonic() + within_s, None
    while time.monotonic() < deadline:
        try:
            if last := condition():
                return last
        except httpx.TransportError as error:
            last = error
        time.sleep(poll_s)
    raise AssertionError(f"not within {within_s} s; last: {last!r}")


def create_ledger(state: Path, address: PostgresAddress | None = None) -> str:
    """Return the identity of the ledger in a state directory, or of the ledger that it names; create a missing one."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if address is not None:
        write_address(state / LEDGER, address)
    with Store.open(state / LEDGER) as ledger:
        return ledger.progress[0]


@contextmanager
def locked_ledger(state: Path, *ledgers: Store) -> Iterator[None]:
    """A block in which another process holds the lock of the SQLite ledger in a state directory.

    These ``ledgers`` of the present process do not wait for the lock.
    """
    for ledger in ledgers:
        ledger.database.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(state / LEDGER, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def read_size(path: Path) -> int:
    """Return the size of a file, or 0 if an instance has deleted it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def copy_live_folder(folder: Path, target: Path) -> Path:
    """Copy a folder of a running instance, which may replace its files meanwhile. Return ``target``."""

    def has_copied() -> bool:
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(folder, target)
        except (shutil.Error, FileNotFoundError):
            return False
        return True

    eventually(has_copied)
    return target


def begin_records(state: Path, records: str | Path) -> None:
    """Tell the ledger of a running instance what to begin with, and wait until that is published."""
    eventually(lambda: has_ledger(state))
    if records in ("fresh", "adopt", "as-recorded"):
        request = BeginWithRecords(how=InitMode(str(records)))
    else:
        items = ({"uuid": uuid, **make_record_fields(record)} for uuid, record in read_records(Path(records)).items())
        request = BeginWithRecords(how=InitMode.RECORDS, items=tuple(items))
    outcome = request_change(state, request)

    def is_known() -> bool:
        try:
            found = json.loads((state / "status.json").read_bytes())["conditions"]
        except FileNotFoundError:  # the first reconcile stores the outcome before it writes its status
            return False
        return any(
            each["type"] == "RecordsVerified" and each["reason"] in ("Verified", "UnverifiedServers") for each in found
        )

    try:
        eventually(is_known)
    except AssertionError:
        raise AssertionError(f"{outcome}\n{(state / 'status.json').read_text()}") from None


@contextmanager
def running(
    repository: Path | str,
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
    records: str | Path | None = None,
) -> Iterator[Instance]:
    """A running instance with OUTPUT and STATE in ``folder``; it must end cleanly on a signal.

    ``records`` is the value with which its ledger begins.
    """
    places = ("--out", str(folder / "output"), "--state", str(folder / "state"), "--listen", "127.0.0.1:0")
    instance = Instance.start("run", str(repository), *places, *arguments, environment=environment)
    process = instance.process
    reader = threading.Thread(target=instance.read, daemon=True)
    reader.start()
    try:
        eventually(lambda: instance.url or process.poll() is not None)
        assert process.poll() is None, instance.events
        if ready:
            eventually(lambda: instance.get("/readyz").status_code == 200)
        if records is not None:
            begin_records(folder / "state", records)
        yield instance
        process.send_signal(signal.SIGTERM)
        ended = process.wait(120)
        assert ended == 0, (ended, instance.events[-3:])
        reader.join(60)
        plain = [event["message"] for event in instance.events if event["type"] == "NotJson"]
        assert not plain, "\n".join(plain)
    except BaseException as error:
        error.add_note(f"the instance had ended with {process.poll()}, and said last: {instance.events[-5:]}")
        raise
    finally:
        process.kill()
        process.wait()
        close_after(reader, instance.errors)


def close_after(reader: threading.Thread, pipe: TextIO) -> None:
    """Close the pipe that a thread has read to its end. Fail if another process still has the pipe open."""
    reader.join(60)
    assert not reader.is_alive()  # `close` would wait for the reader
    pipe.close()


def is_program(pid: int, name: str) -> bool:
    """Return whether a process is a part of gitboot: started (``gitboot.git``, ``gitboot serve``) or forked."""
    process = Path(f"/proc/{pid}")
    try:
        words = (process / "cmdline").read_text().split("\0")
        return (process / "comm").read_text() == f"{name}\n" or any(word.rpartition(".")[2] == name for word in words)
    except OSError:
        return False  # it has ended


def list_evaluators(parent: int) -> list[int]:
    return _list_children(parent, "evaluator")


def list_fetchers(parent: int) -> list[int]:
    return _list_children(parent, "git")


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_cpu_time(pid: int, seconds: float) -> None:
    """Wait until a process has had so much of a processor: proc_pid_schedstat(5)."""
    while int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) < seconds * 1e9:
        time.sleep(0.001)


def read_peak_mib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) // 1024


def list_children(parent: int) -> list[int]:
    return [each for name in ("evaluator", "source", "serve") for each in _list_children(parent, name)]


def _list_children(parent: int, name: str) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if int(fields["PPid"]) == parent and is_program(int(status.parent.name), name):
                found.append(int(status.parent.name))
        except (OSError, KeyError):
            continue
    return found
