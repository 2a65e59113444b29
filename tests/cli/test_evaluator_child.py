"""Commands that read a commit: in a child that cannot open the cache, gets the signals, and ends with its parent."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from gitboot import child_processes, disk_cache
from gitboot.child_processes import build_frame, encode
from gitboot.cli.main import cli
from gitboot.controller.instance import state_directory
from gitboot.disk_cache import DiskCache
from gitboot.endpoint.age_encryption import make_key
from gitboot.evaluator.protocol import EvaluationStart, NewResults, ResultKind
from gitboot.resolve.provisioning_record import Record, make_record_fields
from tests.helpers.fleets import SEED, make_uuid, server
from tests.helpers.git_repositories import WorkTree
from tests.helpers.instance_with_bmcs import Rack, run_command
from tests.helpers.running_instance import eventually, is_alive

ROOT = Path(__file__).parents[2]

# Every command that reads a commit, with arguments with which it does: A: keys of age; E: exported records; F: a new
# file; H: what was handed over; K: keys of images; S: a state directory; W: a fleet.
COMMANDS = {
    "allow-installs": "--state S",
    "artifacts download": "W --out F",
    "artifacts loaders": "--path W --out F",
    "artifacts signatures": "W --image-keys K",
    "artifacts verify": "W --head",
    "bmc access-files": "--state S",
    "bmc apply": "--state S",
    "bmc diff": "--state S",
    "bmc enroll": "127.0.0.1 --as rack --path W",
    "bmc get": "--state S",
    "bmc power get": "--state S",
    "bmc power off": "web01 --state S --reason R --yes",
    "bmc power on": "web01 --state S --reason R --yes",
    "bmc power reset": "web01 --state S --reason R --yes",
    "bmc resolve": "web01 --same --state S --reason R",
    "bmc scan": "127.0.0.1 --as rack --path W",
    "compare-old-system": "W --old http://127.0.0.1:1 --as matchbox",
    "diff": "HEAD..WORKTREE W",
    "doctor": "--state S",
    "explain": "web01 --path W",
    "history": "web01 --path W",
    "images": "W",
    "new image": "--path W",
    "new server": "web09 --path W --mac 02:00:00:00:00:99",
    "plan": "W",
    "records begin": "fresh --state S --yes",
    "records hand-over": "web01 --state S",
    "records import": "E --state S --reason R",
    "records set": "web01 provisioned --state S --reason R --yes",
    "records show": "--state S",
    "records take-over": "H --state S --reason R",
    "render": "W --out F",
    "rollout advance": "stable --steps 10,50 --records E --path W",
    "secret check": "W --secret-keys A",
    "secret fetches": "--state S",
    "update-images": "--path W",
    "validate": "W",
}


def _walk_commands(
    command: click.Command, context: click.Context, name: str = ""
) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _walk_commands(found, context, f"{name} {each}".strip())
    else:
        yield name, command


def test_all_commands_that_read_a_commit_are_listed() -> None:
    found = dict(_walk_commands(cli, click.Context(cli)))
    names = {name: {each.name for each in command.params} for name, command in found.items()}
    assert {name for name, options in names.items() if "no_cache" in options} == COMMANDS.keys()
    listed = (ROOT / "docs" / "adr" / "0011-commit-evaluation.md").read_text().partition("A test compares")[2]
    assert set(re.findall("`([^`]+)`", listed.partition("## Consequences")[0])) == COMMANDS.keys()
    assert {name for name, options in names.items() if "commit_memory" in options} == {"run", *COMMANDS}


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A machine with a BMC, and an instance that has accepted its document."""
    with Rack(tmp_path_factory.mktemp("rack")) as made:
        made.add("web01", provision=1)
        made.push()
        assert made.once(records="adopt").code == 0
        make_key(made.folder / "A")
        (made.folder / "K").mkdir()
        given = {"kind": "HandOver", "uuid": make_uuid("web01"), "record": make_record_fields(Record())}
        (made.folder / "H").write_text(json.dumps(given | dict.fromkeys(("server", "commit", "ledger", "at"), "")))
        WorkTree(made.folder / "W").commit({f"{number:02}.yaml": text for number, text in enumerate(SEED)})
        yield made


@pytest.mark.parametrize("command", COMMANDS)
def test_no_cache_opens_no_cache(command: str, rack: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened: list[Path | None] = []
    began: list[None] = []
    uncollected = child_processes.pause_garbage_collection

    class Opened(DiskCache):
        def __init__(self, path: Path | None, *more: Any, **options: Any) -> None:
            opened.append(path)
            super().__init__(path, *more, **options)

    def begin() -> Any:
        began.append(None)
        return uncollected()

    for module in (disk_cache, state_directory):
        monkeypatch.setattr(module, "DiskCache", Opened)
    monkeypatch.setattr("gitboot.cli.evaluator_child.pause_garbage_collection", begin)
    places = {name: rack.folder / name for name in "AHKW"}
    places |= {"E": rack.output / "ops" / "records", "F": tmp_path / "F", "S": rack.state}
    arguments = [*command.split(), *(str(places.get(each, each)) for each in COMMANDS[command].split())]
    kept = rack.state / "cache.sqlite"
    before = kept.exists()
    run_command(*arguments, "--no-cache")
    assert began or command == "bmc apply", "it read no commit"  # that needs an instance that runs
    assert opened == []
    assert not (tmp_path / "cache").exists()
    assert kept.exists() is before
    run_command(*arguments)
    user = tmp_path / "cache" / "gitboot" / "cache.sqlite"
    assert opened == [kept if "S" in COMMANDS[command].split() else user]
    assert "S" not in COMMANDS[command].split() or not user.exists()


# The child, with a command of its own

OWN_PROCESS = """
import os, signal, sys
import click
from gitboot.cli.evaluator_child import OWN_PROCESS, evaluator_command, get_results_cache
from gitboot.evaluator.protocol import ResultKind

@click.command()
@evaluator_command
def command():
    cache = get_results_cache()
"""
RUN = """
command(obj=OWN_PROCESS, standalone_mode=False)
"""
KIND = ResultKind.HISTORY_PROBLEM


def begin(tmp_path: Path, body: str, **more: Any) -> subprocess.Popen[str]:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    command = [sys.executable, "-c", OWN_PROCESS + lines + RUN]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, **more)


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def read_stored(tmp_path: Path, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    with DiskCache(tmp_path / "gitboot" / "cache.sqlite", pytest.fail) as cache:
        return cache.get_many(KIND, keys)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


SIGNAL_PROGRAM = """
numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # a signal before `sigwait` is kept
print(os.getpid(), flush=True)
while (number := signal.sigwait(numbers)) != signal.SIGTERM:
    os.write(1, f"{signal.Signals(number).name}\\n".encode())
os.write(1, b"SIGTERM\\n")
os._exit(7)
"""


def test_the_child_gets_each_signal_once(tmp_path: Path) -> None:
    with begin(tmp_path, SIGNAL_PROGRAM) as process:
        read_line(process)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            process.send_signal(number)
            assert read_line(process) == number.name
        process.terminate()
        assert wait_for_end(process) == (7, "SIGTERM\n", "")


def test_a_terminal_sends_its_signal_to_the_child_itself(tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with begin(tmp_path, SIGNAL_PROGRAM, stdin=its_end, start_new_session=True, preexec_fn=control) as process:
        read_line(process)
        os.write(terminal, b"\x03")
        assert read_line(process) == "SIGINT"
        process.terminate()  # the parent takes the signal of the terminal first
        assert wait_for_end(process) == (7, "SIGTERM\n", "")
    os.close(terminal)
    os.close(its_end)


def test_a_killed_parent_ends_its_child(tmp_path: Path) -> None:
    with begin(tmp_path, SIGNAL_PROGRAM) as process:
        child = int(read_line(process))
        assert is_alive(child) and child != process.pid
        os.kill(child, signal.SIGSTOP)  # it comes to no end by itself
        process.kill()
    eventually(lambda: not is_alive(child))


def test_results_of_the_child_are_stored_and_looked_up(tmp_path: Path) -> None:
    rows = {b"%d" % number: encode("x" * 5000) for number in range(2500)}  # more than a socket holds
    body = f"""
rows = {{b"%d" % number: {encode("x" * 5000)!r} for number in range(2500)}}
cache.insert_many({str(KIND)!r}, rows)
print(cache.get_many(ResultKind({str(KIND)!r}), [*rows, b"other"]) == rows)
"""
    assert wait_for_end(begin(tmp_path, body)) == (0, "True\n", "")
    assert read_stored(tmp_path, [*rows, b"other"]) == rows


RIGHT = build_frame(encode(NewResults(KIND, {b"right": encode("a problem")})))
WRONG = {
    "part of a frame": build_frame(encode(NewResults(KIND, {b"wrong": encode("a problem")})))[:-1],
    "another message": build_frame(encode(EvaluationStart(1))),
    "a value of another type": build_frame(encode(NewResults(KIND, {b"wrong": encode(1)}))),
    "a decision that is none": build_frame(encode(NewResults(ResultKind.DECIDED, {b"wrong": encode(1)}))),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_no_row_of_an_invalid_frame_is_stored(wrong: str, tmp_path: Path) -> None:
    body = f"""
stream = cache._outgoing
stream.write({RIGHT + WRONG[wrong]!r})
stream.flush()
if {wrong!r} != "part of a frame":
    cache.insert_many(ResultKind({str(KIND)!r}), {{b"wrong": {encode("a problem")!r}}})
    print(cache.get_many(ResultKind({str(KIND)!r}), [b"right"]))
"""
    assert wait_for_end(begin(tmp_path, body)) == (0, "" if wrong == "part of a frame" else "{}\n", "")
    assert read_stored(tmp_path, [b"right", b"wrong"]) == {b"right": encode("a problem")}


def test_a_process_that_the_child_leaves_behind_blocks_nothing(tmp_path: Path) -> None:
    body = """
if (left := os.fork()) == 0:
    while True:
        signal.pause()
print(left)
"""
    with begin(tmp_path, body) as process:
        left = int(read_line(process))
        try:
            assert process.wait(300) == 0
        finally:
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


# Real commands

TRACING_PROGRAM = """
import os, sys
def note(event, arguments):
    if event in ("open", "sqlite3.connect") and "cache.sqlite" in str(arguments[0]):
        os.write(noted, f"{os.getpid()} {event}\\n".encode())
noted = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(note)
from gitboot.cli.main import program
del sys.argv[1]
program()
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    work, names = WorkTree(tmp_path / "large"), [f"web{number}" for number in range(100, 600)]
    files = {f"{number:02}.yaml": text for number, text in enumerate(SEED)}
    work.commit(files | {f"{name}.yaml": server(name, "role: web") for name in names})
    return work.path


def trace_opens(tmp_path: Path, *arguments: object) -> tuple[int, set[str], set[str]]:
    """Run a command; return its pid, the pids that opened a cache, and how they did."""
    log = tmp_path / "opened"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-c", TRACING_PROGRAM, str(log), *map(str, arguments)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        pass
    assert process.returncode == 0
    lines = [line.split() for line in log.read_text().splitlines()]
    return process.pid, {pid for pid, _ in lines}, {event for _, event in lines}


def test_only_the_parent_opens_the_cache(tmp_path: Path, large: Path, rack: Rack) -> None:
    DiskCache(rack.state / "cache.sqlite", pytest.fail).insert_many("kind", {b"key": b"value"})
    commands: tuple[tuple[object, ...], ...] = (
        ("validate", large),
        ("validate", large),
        ("history", "web01", "--path", large),
        ("records", "show", "--state", rack.state),
    )
    for command in commands:
        pid, pids, events = trace_opens(tmp_path, *command)
        assert pids == {str(pid)}
        assert "sqlite3.connect" in events


def test_commands_that_run_at_once_share_the_cache(tmp_path: Path, large: Path) -> None:
    command = [sys.executable, "-m", "gitboot", "plan", str(large), "-o", "json", "--at", "2026-11-22T00:00:00Z"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    both = [started(), started()]
    outputs = [each.communicate() for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert outputs[0] == outputs[1] == started().communicate()
    assert (tmp_path / "cache" / "gitboot" / "cache.sqlite").stat().st_size > 500_000
