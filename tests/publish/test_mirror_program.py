"""The program of a mirror without gitboot: it copies, verifies, and ends windows, even without the publisher."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from msgspec import structs

import gitboot.publish.mirror_program as program
from gitboot.publish.list_root import replace_list_keys
from gitboot.publish.mirror_program import main
from gitboot.publish.mirror_repair import join_program
from gitboot.render.paths import File
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ALWAYS, ENTRY, REPAIR, Fleet, eventually, plan_fleet
from tests.helpers.fleets import at, maintenance
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import free_port, run_daemon
from tests.helpers.git_repositories import program as program_of
from tests.helpers.mirrors import nginx
from tests.helpers.signed_lists import ListSigner, SignedSite, listed_server, make_keys, sign_tree
from tests.publish.test_mirror_comparison import BY_MAC, FIRST

INSIDE, ENDS = at("20T23:00"), at("21T04:00")
AFTER = ENDS + timedelta(minutes=1)
SECOND = timedelta(seconds=1)
CONTENT = "o/5e1f/script"


def make_window_fleet(now: datetime = INSIDE, **shared: bytes) -> Fleet:
    """A fleet in a maintenance window, with a file that boot scripts may name."""
    fleet = plan_fleet(*ALWAYS, REPAIR, now=now)
    more = {f"boot/{CONTENT}": File(b"content\n"), **{f"boot/{name}": File(text) for name, text in shared.items()}}
    return replace(fleet, shared={**fleet.shared, **more})


@pytest.fixture
def publisher(tmp_path: Path) -> SignedSite:
    found = SignedSite(tmp_path / "publisher")
    found.publish(make_window_fleet(), INSIDE)
    return found


class MirrorHost:
    def __init__(self, folder: Path, publisher: SignedSite) -> None:
        folder.mkdir()
        self.folder, self.served = folder, folder / "boot"
        self.served.mkdir()
        self.source, self.state, self.key = str(publisher.boot), folder / "state", folder / "root.pub"
        shutil.copy(publisher.public, self.key)
        self.program = folder / "gitboot-mirror.py"
        self.program.write_bytes(join_program())

    @property
    def arguments(self) -> list[str]:
        return [
            *("--from", self.source, "--to", str(self.served)),
            *("--key", str(self.key), "--state", str(self.state)),
        ]

    def run(self, now: datetime, *more: str) -> int:
        return main([*self.arguments, *more], clock=lambda: now)

    def boots(self, path: str = ENTRY) -> bytes:
        return (self.served / path[1:]).read_bytes()

    def contents(self) -> dict[str, tuple[bytes, int]]:
        paths = (path for path in self.served.rglob("*") if path.is_file() and ".staging" not in path.parts)
        return {str(path.relative_to(self.served)): _file(path) for path in paths}


def _file(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), int(path.stat().st_mtime)


def read_published(publisher: SignedSite) -> dict[str, tuple[bytes, int]]:
    paths = (path for path in publisher.boot.rglob("*") if path.is_file())
    return {str(path.relative_to(publisher.boot)): _file(path) for path in paths}


@pytest.fixture
def host(publisher: SignedSite, tmp_path: Path) -> MirrorHost:
    return MirrorHost(tmp_path / "mirror", publisher)


def script(now: datetime, path: str = ENTRY) -> bytes:
    return plan_fleet(*ALWAYS, REPAIR, now=now).boot_files[path].content


WINDOW, ENDED = script(INSIDE), script(AFTER)


# Copies


def test_a_mirror_has_the_published_files_with_their_times(publisher: SignedSite, host: MirrorHost) -> None:
    assert host.run(INSIDE) == 0
    assert host.contents() == read_published(publisher)
    before = {path: (host.served / path).stat().st_ino for path in host.contents()}
    assert host.run(INSIDE + SECOND) == 0
    assert {path: (host.served / path).stat().st_ino for path in host.contents()} == before, "nothing is written again"


def test_a_mirror_follows_a_commit_and_removes_its_removed_files(publisher: SignedSite, host: MirrorHost) -> None:
    publisher.publish(make_window_fleet(left=b"#!ipxe\n"), INSIDE)
    host.run(INSIDE)
    assert host.boots("/left") == b"#!ipxe\n"
    publisher.publish(make_window_fleet(added=b"#!ipxe\n"), INSIDE + SECOND)
    assert host.run(INSIDE + SECOND) == 0
    assert host.contents() == read_published(publisher)
    assert not (host.served / "left").exists()


def test_an_edited_file_is_replaced_and_an_additional_boot_script_is_removed(
    publisher: SignedSite, host: MirrorHost
) -> None:
    host.run(INSIDE)
    for path in (ENTRY, FIRST):
        before = (host.served / path[1:]).stat()
        (host.served / path[1:]).write_bytes(host.boots(path)[:-2] + b"#\n")
        os.utime(host.served / path[1:], (before.st_mtime, before.st_mtime))
    (host.served / "pxelinux.cfg").mkdir(exist_ok=True)
    (host.served / "pxelinux.cfg/01-52-54-00-99-99-99").write_text("DEFAULT x\n")
    (host.served / "linked").symlink_to("/etc/passwd")
    (host.served / "assets").mkdir()
    (host.served / "assets/linux").write_text("placed by a person")
    assert host.run(INSIDE + SECOND) == 0
    assert (host.served / "assets/linux").read_text() == "placed by a person"
    shutil.rmtree(host.served / "assets")
    assert host.contents() == read_published(publisher)
    assert not (host.served / "linked").is_symlink() and not (host.served / "pxelinux.cfg").exists()


def test_a_symlink_in_the_place_of_a_folder_and_a_folder_in_the_place_of_a_file_are_replaced(
    publisher: SignedSite, host: MirrorHost, tmp_path: Path
) -> None:
    host.run(INSIDE)
    folder, first = (host.served / ENTRY[1:]).parent, host.served / FIRST[1:]
    (outside := tmp_path / "outside").mkdir()
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    first.unlink()
    (first / "more").mkdir(parents=True)
    assert host.run(INSIDE + SECOND) == 0
    assert host.contents() == read_published(publisher)
    assert not folder.is_symlink() and not [*outside.iterdir()]


def test_the_folder_is_compared_without_the_staging_folder(publisher: SignedSite, host: MirrorHost) -> None:
    host.run(INSIDE)
    assert (host.served / ".staging/boot.ipxe").exists()
    done = run_forked("verify-mirror", host.served, "--tree", publisher.root)
    assert done.returncode == 0, done.stdout
    (host.served / "v1/.staging").mkdir()
    (host.served / "v1/.staging/boot.ipxe").write_text("#!ipxe\n")
    done = run_forked("verify-mirror", host.served, "--tree", publisher.root)
    assert (done.returncode, "/v1/.staging/boot.ipxe" in done.stdout) == (8, True)
    assert host.run(INSIDE + SECOND) == 0
    assert not (host.served / "v1/.staging").exists(), "the program stages in one folder alone"


def test_files_have_the_permissions_and_the_group_of_the_folder(host: MirrorHost) -> None:
    host.served.chmod(0o750)
    host.run(AFTER)
    modes = {path.stat().st_mode & 0o777 for path in host.served.rglob("*") if path.is_file()}
    assert modes == {0o640}
    folders = {path.stat().st_mode & 0o777 for path in host.served.rglob("*") if path.is_dir()}
    assert folders == {0o750, 0o700} and (host.served / ".staging").stat().st_mode & 0o777 == 0o700


# A remote shell of rsync that passes only the beginning of a tree on this host
STALLED_SHELL: Final = f"""#!{sys.executable} -IS
import os, signal, subprocess, sys
os.set_blocking(1, True)  # rsync gives its shell an output that does not block, which would take a part of a write
with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE) as process:
    left = 300_000
    while left and (data := os.read(process.stdout.fileno(), left)):
        left -= os.write(1, data)
    signal.pause()
"""


def test_other_users_cannot_read_staged_files_during_and_after_a_copy(
    publisher: SignedSite, host: MirrorHost, tmp_path: Path
) -> None:
    """An earlier copy was killed, and its staging folder has the permissions of the published one."""
    staging, shell = host.served / ".staging", tmp_path / "shell"
    staging.mkdir(mode=0o755)
    staging.chmod(0o755)
    shell.write_text(STALLED_SHELL)
    shell.chmod(0o755)
    (publisher.boot / "assets").mkdir()
    (publisher.boot / "assets/large").write_bytes(os.urandom(1 << 20))
    host.source = f"publisher:{publisher.boot}"
    environment = {**os.environ, "RSYNC_RSH": str(shell)}
    with subprocess.Popen(_build_command(host, INSIDE), env=environment, start_new_session=True) as process:
        try:
            assert eventually(lambda: any(staging.rglob(".large.*"))), "rsync writes the file"
            assert staging.stat().st_mode & 0o777 == 0o700
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert staging.stat().st_mode & 0o777 == 0o700


# The end of a window


def test_finding_m1_a_mirror_ends_a_window_after_the_publisher_died_in_it(
    publisher: SignedSite, host: MirrorHost, tmp_path: Path
) -> None:
    """With a real rsync daemon, and nginx: the tree and its list stay as the publisher left them."""
    port, conf = free_port(), tmp_path / "rsyncd.conf"
    user = "uid = root\ngid = root\n" if os.geteuid() == 0 else ""
    conf.write_text(f"{user}[boot]\npath = {publisher.boot}\nread only = yes\nuse chroot = no\n")
    daemon = [program_of("rsync", "rsync"), "--daemon", "--no-detach", f"--config={conf}", "--address=127.0.0.1"]
    host.source = f"rsync://127.0.0.1:{port}/boot"
    (tmp_path / "nginx").mkdir()
    with nginx(host.served, publisher.root / "ops/serve", tmp_path / "nginx") as mirror:
        with run_daemon([*daemon, f"--port={port}"], port, os.environ):
            assert _run_program(host, INSIDE).returncode == 0
            assert _get(f"{mirror.url}{ENTRY}") == WINDOW
            assert _run_program(host, ENDS - SECOND).returncode == 0
            assert _get(f"{mirror.url}{ENTRY}") == WINDOW
        done = _run_program(host, ENDS)  # the publisher's host is down, too
        assert (done.returncode, "rsync failed with exit code" in done.stderr) == (1, True)
        assert _get(f"{mirror.url}{ENTRY}") == ENDED


def _get(url: str) -> bytes:
    found = http_peers.get(url)
    assert found.status_code == 200
    return found.content


CLOCK_IN_FILE: Final = """
import runpy, sys
from datetime import datetime, timezone
program = runpy.run_path(sys.argv[1])
def clock():
    with open(sys.argv[2]) as file:
        return datetime.strptime(file.read(), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
sys.exit(program["main"](sys.argv[3:], clock=clock))
"""


def _build_command(host: MirrorHost, now: datetime, interpreter: str = sys.executable) -> list[str]:
    """Return the command that runs the file as a mirror does, without gitboot, at a time."""
    clock = host.folder / "clock"
    clock.write_text(f"{now:%Y-%m-%dT%H:%M:%S}")
    return [interpreter, "-I", "-c", CLOCK_IN_FILE, str(host.program), str(clock), *host.arguments]


def _run_program(
    host: MirrorHost, now: datetime, interpreter: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_build_command(host, now, interpreter), capture_output=True, text=True, check=False)


MINORS = range(6, 15)  # of Python 3


def _interpreters() -> list[str]:
    """Return each Python 3 on the PATH or from pyenv, and the one of the tests."""
    folders = [Path(folder) for folder in os.get_exec_path() if "shims" not in folder]
    folders += sorted((Path.home() / ".pyenv/versions").glob("3.*/bin"))
    found = {str((folder / f"python3.{minor}").resolve()) for folder in folders for minor in MINORS}
    return sorted({sys.executable, *filter(os.path.exists, found)})


@for_each("interpreter", _interpreters())
def test_each_installed_python_copies_and_ends_a_window(interpreter: str, tmp_path: Path) -> None:
    folder = tmp_path / interpreter.replace("/", "-")
    folder.mkdir()
    publisher = SignedSite(folder / "publisher")
    publisher.publish(make_window_fleet(), INSIDE)
    host = MirrorHost(folder / "mirror", publisher)
    for now, script in ((INSIDE, WINDOW), (ENDS, ENDED)):
        done = _run_program(host, now, interpreter)
        assert (done.returncode, host.boots()) == (0, script), done.stderr


class Step(NamedTuple):
    """A copy at a time, perhaps after a publication, and whether the mirror boots the window then."""

    now: datetime
    is_open: bool = False
    fleet: Fleet | None = None  # is published before
    made: datetime | None = None  # the time of its list; None: the time of the copy
    is_reachable: bool = True  # whether the mirror reaches the publisher


EPOCH, BEFORE = datetime(1970, 1, 1, tzinfo=UTC), at("20T21:00")
ADDED = make_window_fleet(added=b"#!ipxe\n")
LONGER = plan_fleet(*ALWAYS, maintenance("repair", "20T22:00 21T06:00"), now=INSIDE)
BOOTS = {is_open: (script(now), script(now, BY_MAC)) for is_open, now in ((True, INSIDE), (False, AFTER))}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [Step(INSIDE, True), Step(ENDS), Step(INSIDE), Step(ENDS - SECOND), Step(EPOCH)],
            id="a window that has ended stays ended even if the clock goes back",
        ),
        pytest.param(
            [
                Step(INSIDE, True),
                Step(ENDS),
                *(Step(now, is_reachable=False) for now in (INSIDE, ENDS - SECOND, EPOCH)),
            ],
            id="also if the publisher is gone",
        ),
        # A mirror cannot have later decisions.
        pytest.param(
            [Step(BEFORE, fleet=make_window_fleet(BEFORE)), Step(INSIDE)], id="only the publisher opens windows"
        ),
        pytest.param([Step(ENDS + timedelta(days=30))], id="an expired list still ends windows"),
        pytest.param(
            [Step(INSIDE, True), Step(ENDS), Step(ENDS + timedelta(hours=1), fleet=make_window_fleet())],
            id="the window of a list has ended, for any publisher",
        ),
        pytest.param(
            [
                Step(datetime(2040, 1, 1, tzinfo=UTC)),
                Step(INSIDE + SECOND, fleet=ADDED),
                Step(INSIDE + 2 * SECOND, True, fleet=LONGER),
                Step(at("21T06:00")),
            ],
            id="a clock that was ahead is corrected by the next list, and a commit that prolongs the window opens it",
        ),
        # A mirror is without its publisher for two days. Then it reaches a list of the window, and its clock goes back.
        pytest.param(
            [
                Step(INSIDE, True),
                Step(ENDS + timedelta(days=2), fleet=ADDED, made=INSIDE + SECOND, is_reachable=False),
                *(Step(now) for now in (INSIDE + SECOND, EPOCH, INSIDE + 2 * SECOND)),
            ],
            id="a list that expired on its way opens no window that has ended",
        ),
        # The clock goes back after the end, and then a newer list arrives that was made in the window.
        pytest.param(
            [Step(INSIDE, True), Step(ENDS), Step(INSIDE + SECOND, fleet=ADDED, made=ENDS - SECOND)],
            id="a list that waited for its copy opens no window again",
        ),
    ],
)
def test_a_window_that_has_ended_is_opened_only_by_a_newer_list(
    publisher: SignedSite, host: MirrorHost, steps: list[Step]
) -> None:
    reachable, fleet = host.source, None
    for step in steps:
        if step.fleet is not None:
            publisher.publish(fleet := step.fleet, step.made or step.now)
        host.source = reachable if step.is_reachable else "/nowhere"
        assert host.run(step.now) == (0 if step.is_reachable else 1)
        assert (host.boots(), host.boots(BY_MAC)) == BOOTS[step.is_open]
        is_added = step.is_reachable and fleet is ADDED
        assert not is_added or host.boots("/added") == b"#!ipxe\n"


def test_no_step_of_a_copy_opens_a_window_that_has_ended(
    publisher: SignedSite, host: MirrorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of the publisher still has the boot scripts of the window."""
    host.run(INSIDE)
    host.run(ENDS)
    publisher.publish(make_window_fleet(added=b"#!ipxe\n"), INSIDE + SECOND)
    replace_file, seen = os.replace, set[bytes]()

    def noting(source: str, place: str) -> None:
        replace_file(source, place)
        seen.add(host.boots())

    monkeypatch.setattr(os, "replace", noting)
    assert host.run(ENDS + SECOND) == 0
    assert (seen, host.boots("/added")) == ({ENDED}, b"#!ipxe\n")


def test_a_window_that_a_commit_removed_ends_even_if_its_copy_was_interrupted(
    publisher: SignedSite, host: MirrorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full before the boot script of the new commit is in its place, and the publisher dies."""
    host.run(INSIDE)
    publisher.publish(plan_fleet(*ALWAYS, now=INSIDE), INSIDE + SECOND)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(program.Mirror, "_link", full)
        assert host.run(INSIDE + SECOND) == 1
    assert host.boots() == WINDOW
    shutil.rmtree(publisher.boot)
    assert host.run(ENDS) == 1
    assert host.boots() == ENDED


@pytest.mark.parametrize(
    "path", ["index.html", "media/holiday.mkv", "o/backup.tar", "v1/boot/web1/data/notes", "nocloud/web1/data/notes"]
)
def test_a_folder_with_other_files_is_not_changed(
    host: MirrorHost, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    (host.served / "assets").mkdir()
    (host.served / "assets/linux").write_text("placed by a person")
    other = host.served / path
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("another site")
    assert host.run(INSIDE) == 1
    assert f"--to: the folder contains {path}" in capsys.readouterr().err
    assert host.contents().keys() == {"assets/linux", path}


def test_the_first_copy_keeps_assets_and_the_files_of_keep(host: MirrorHost) -> None:
    for path in ("assets/linux", "media/holiday.mkv"):
        (host.served / path).parent.mkdir()
        (host.served / path).write_text("placed by a person")
    assert host.run(INSIDE, "--keep=media/*") == 0
    assert host.run(INSIDE + SECOND, "--keep=media/*") == 0
    assert host.contents().keys() > {"assets/linux", "media/holiday.mkv", CONTENT}


# Possible contents of a state file.
DAMAGED_STATES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "no JSON": lambda _: "{",
    "nested without end": lambda _: "[" * 100_000,
    "nothing": lambda _: "{}",
    "a list": lambda _: "[]",
    "a time without a zone": lambda state: json.dumps({**state, "latest": "2026-01-20T23:00:00"}),
    "ends that are no texts": lambda state: json.dumps(
        {**state, "ends": {path: [since, 7] for path, (since, _) in state["ends"].items()}}
    ),
    "an end outside the folder": lambda state: json.dumps({**state, "ends": {"../outside": [state["latest"], ""]}}),
    "ends as a list": lambda state: json.dumps({**state, "ends": []}),
    "versions that are texts": lambda state: json.dumps({**state, "seen": ["1", "2", "3", []]}),
    "too few versions": lambda state: json.dumps({**state, "seen": [1]}),
    "keys that are a number": lambda state: json.dumps({**state, "keys": 7}),
}


@pytest.mark.parametrize("damage", DAMAGED_STATES)
def test_a_window_ends_even_if_the_state_is_damaged(
    publisher: SignedSite, host: MirrorHost, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list that is served names the end, too."""
    host.run(INSIDE)
    host.state.write_text(DAMAGED_STATES[damage](json.loads(host.state.read_text())))
    shutil.rmtree(publisher.boot)
    assert host.run(ENDS) == 1
    assert "is damaged, so the program replaces the file" in capsys.readouterr().err
    assert (host.boots(), host.boots(BY_MAC)) == (ENDED, script(AFTER, BY_MAC))
    assert not (host.served.parent / "outside").exists()


def test_a_state_file_that_cannot_be_read_is_replaced(host: MirrorHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.run(INSIDE)
    state = host.state.read_text()
    host.state.unlink()
    host.state.symlink_to(host.state.name)
    assert host.run(INSIDE) == 0
    assert "state cannot be read, so the program replaces the file" in capsys.readouterr().err
    assert host.state.read_text() == state


@pytest.mark.parametrize("what", ["state", "state.digests", "root.pub"])
@pytest.mark.parametrize("damage", ["absent", "damaged", "a folder"])
def test_a_window_ends_even_if_a_file_was_lost(
    publisher: SignedSite, host: MirrorHost, what: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ends that are remembered were verified when they came."""
    host.run(INSIDE)
    shutil.rmtree(publisher.boot)
    lost = host.folder / what
    lost.unlink()
    if damage == "damaged":
        lost.write_bytes(b'{"1:2": 7}' if what == "state.digests" else b"\xff-----BEGIN")
    elif damage == "a folder":
        lost.mkdir()
    assert host.run(ENDS) == 1
    assert host.boots() == ENDED
    shown = capsys.readouterr().err
    assert shown.startswith("gitboot-mirror: ") and (what != "root.pub" or str(host.key) in shown)


def test_a_window_ends_even_if_another_file_cannot_be_replaced(
    publisher: SignedSite, host: MirrorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run(INSIDE)
    turned = program.Mirror._end_window

    def failing(mirror: program.Mirror, path: str, ending: program.Ending) -> None:
        if f"/{path}" == BY_MAC:
            raise OSError("the file cannot be replaced")
        turned(mirror, path, ending)

    monkeypatch.setattr(program.Mirror, "_end_window", failing)
    assert host.run(ENDS) == 1
    assert (host.boots(), host.boots(BY_MAC)) == (ENDED, script(INSIDE, BY_MAC))


def test_a_window_ends_while_a_copy_hangs(publisher: SignedSite, host: MirrorHost, tmp_path: Path) -> None:
    """The server accepts the connection, and is silent."""
    host.run(INSIDE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(300)
        host.source = f"rsync://127.0.0.1:{silent.getsockname()[1]}/boot"
        with subprocess.Popen(_build_command(host, INSIDE), start_new_session=True) as process:
            try:
                connection, _ = silent.accept()
                assert host.boots() == WINDOW
                (tmp_path / "ended").write_text(f"{ENDS:%Y-%m-%dT%H:%M:%S}")
                (tmp_path / "ended").replace(host.folder / "clock")
                assert eventually(lambda: host.boots() == ENDED)
                assert process.poll() is None
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                connection.close()


# Files that are not served


def test_an_artifact_that_does_not_match_its_path_is_not_served(publisher: SignedSite, host: MirrorHost) -> None:
    """The list does not name what `gitboot artifacts` brings to the tree."""
    kernel = publisher.boot / f"o/{sha256(b'kernel').hexdigest()}/kernel"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"kernel")
    assert host.run(INSIDE) == 0
    served = host.served / kernel.relative_to(publisher.boot)
    for edited in (kernel, served):
        before = edited.stat()
        edited.write_bytes(b"rootki")
        os.utime(edited, (before.st_mtime, before.st_mtime))
        if edited == kernel:
            (host.served / ".staging" / kernel.relative_to(publisher.boot)).unlink()  # rsync would skip it
            assert host.run(INSIDE + SECOND) == 1
            assert served.read_bytes() == b"kernel"
            kernel.write_bytes(b"kernel")
        assert host.run(INSIDE + SECOND) == 0
        assert served.read_bytes() == b"kernel"


def test_a_file_whose_name_is_not_utf_8_does_not_stop_the_mirror(publisher: SignedSite, host: MirrorHost) -> None:
    """The list cannot name the file, so the mirror serves it only in a folder that the list does not cover."""
    (publisher.boot / "assets").mkdir()
    for folder in (b"", b"assets/"):
        Path(os.fsdecode(os.fsencode(publisher.boot) + b"/" + folder + b"caf\xe9")).write_bytes(b"menu")
    assert host.run(INSIDE) == 0
    names = {os.fsencode(path) for path in host.contents()}
    assert (b"assets/caf\xe9" in names, b"caf\xe9" in names) == (True, False)
    done = run_forked("verify-mirror", host.served, "--tree", publisher.root)
    assert done.returncode == 0, done.stdout + done.stderr
    Path(os.fsdecode(os.fsencode(host.served) + b"/more\xe9")).write_bytes(b"menu")
    done = run_forked("verify-mirror", host.served, "--tree", publisher.root)
    assert (done.returncode, "/more" in done.stdout) == (8, True), done.stderr


def _edit_script(publisher: SignedSite) -> None:
    (publisher.boot / ENTRY[1:]).write_bytes(b"#!ipxe\nshell\n")


def _sign_again(publisher: SignedSite, signer: ListSigner) -> None:
    _edit_script(publisher)
    sign_tree(publisher.root, signer, made=INSIDE)


TAMPERED: Final[dict[str, tuple[Callable[[SignedSite], None], str]]] = {
    "an edited boot script": (_edit_script, "does not match its digest in the list or in its path"),
    "a list of another publisher": (
        lambda publisher: _sign_again(publisher, ListSigner()),
        "the root metadata is not signed by the specified",
    ),
    "an unsigned list": (lambda publisher: _sign_again(publisher, ListSigner.unsigned()), "the list is not signed"),
    "no list": (lambda publisher: shutil.rmtree(publisher.boot / "signed"), "there is no signed list"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_tree_without_a_valid_signature_is_not_served_and_windows_still_end(
    publisher: SignedSite, host: MirrorHost, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, words = TAMPERED[case]
    host.run(INSIDE)
    before = host.contents()
    change(publisher)
    assert host.run(INSIDE + SECOND) == 1
    shown = capsys.readouterr().err
    assert words in shown
    assert host.contents() == before
    assert host.run(ENDS) == 1
    assert host.boots() == ENDED


def test_a_boot_script_that_the_list_does_not_name_is_not_served(publisher: SignedSite, host: MirrorHost) -> None:
    before = read_published(publisher)
    (publisher.boot / "pxelinux.cfg").mkdir(exist_ok=True)
    (publisher.boot / "pxelinux.cfg/default").write_text("DEFAULT shell\n")
    assert host.run(INSIDE) == 0
    assert host.contents() == before


def test_an_earlier_tree_is_not_served(
    publisher: SignedSite, host: MirrorHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(publisher.root, tmp_path / "earlier")
    publisher.publish(make_window_fleet(added=b"#!ipxe\n"), INSIDE + SECOND)
    host.run(INSIDE)
    host.source = str(tmp_path / "earlier/boot")
    assert host.run(INSIDE) == 1
    assert "but the program has already read version" in capsys.readouterr().err
    assert host.boots("/added") == b"#!ipxe\n"


def test_after_the_loss_of_the_root_key_a_mirror_only_needs_a_new_public_key(
    publisher: SignedSite, host: MirrorHost, tmp_path: Path
) -> None:
    """Versions of the new root begin with 1, and the mirror has seen the second root of the lost key."""
    assert publisher.keys is not None
    replace_list_keys(publisher.keys, None, None, INSIDE)
    publisher.publish(make_window_fleet(), INSIDE + SECOND)
    assert host.run(INSIDE + SECOND) == 0
    publisher.keys = make_keys(tmp_path / "new", INSIDE)
    publisher.publish(make_window_fleet(added=b"#!ipxe\n"), INSIDE + 2 * SECOND)
    assert host.run(INSIDE + 2 * SECOND) == 1
    assert (host.run(ENDS), host.boots()) == (1, ENDED), "windows end meanwhile"
    shutil.copy(publisher.public, host.key)
    assert host.run(INSIDE + 3 * SECOND) == 0
    assert (host.boots("/added"), host.boots()) == (b"#!ipxe\n", ENDED), "what has ended stays ended"


def test_wrong_arguments_are_named(host: MirrorHost, capsys: pytest.CaptureFixture[str]) -> None:
    (host.folder / "linked").symlink_to(host.served)
    for key, state in (("k", host.served / "state"), (host.folder / "linked/root.pub", host.state)):
        with pytest.raises(SystemExit) as ended:
            main(["--from", host.source, "--to", str(host.served), "--key", str(key), "--state", str(state)])
        assert (ended.value.code, "outside DIR" in capsys.readouterr().err) == (2, True)
    copied = host.served / "gitboot-mirror.py"
    copied.write_bytes(host.program.read_bytes())
    done = subprocess.run([sys.executable, str(copied), *host.arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, "this program: choose a file outside DIR" in done.stderr) == (2, True)
    host.key.write_text("none")
    assert (host.run(INSIDE), "hexadecimal digits" in capsys.readouterr().err) == (1, True)
    host.key.unlink()
    assert (host.run(INSIDE), "No such file" in capsys.readouterr().err) == (1, True)


# Killed at any step


def run_killed(host: MirrorHost, left: int) -> int:
    """Run the program in a process that is killed after so many changes of names; return how it ended."""
    child = os.fork()
    if child == 0:  # pragma: no cover - it is killed
        changes = count()

        def counting(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            if next(changes) == left:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        code = 2
        try:
            for name in ("replace", "link", "unlink", "mkdir", "rmdir"):
                setattr(os, name, partial(counting, getattr(os, name)))
            code = host.run(INSIDE)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_program_that_is_killed_at_any_step_leaves_complete_chains_and_continues(
    publisher: SignedSite, host: MirrorHost
) -> None:
    """Each boot script of the tree names content, which exists in the served files at each step.

    The lists have few bins, so that each process verifies few signatures.
    """
    entries, signer = [ENTRY, BY_MAC], ListSigner()
    host.key.write_text(f"{signer.keys[0].hex()}\n")
    for number in range(400):
        names = f"o/{number:04}/script"
        fleet = _make_chain(names)
        publisher.publish(fleet, INSIDE + SECOND * number)
        sign_tree(publisher.root, signer, made=INSIDE + SECOND * number)
        code = run_killed(host, number)
        assert code in (0, -signal.SIGKILL)
        for path in entries:
            at_mirror = host.served / path[1:]
            if at_mirror.exists():
                assert (host.served / at_mirror.read_text().strip()).exists(), (number, path)
        if (host.served / FIRST[1:]).exists():
            assert all((host.served / path[1:]).exists() for path in entries), number
        if code == 0:
            break
    assert number > 10 and host.contents() == read_published(publisher)
    assert host.boots() == f"{names}\n".encode()


def _make_chain(name: str) -> Fleet:
    fleet, servers = make_window_fleet(), {}
    for server, state in fleet.servers.items():
        files = {path: _add_name(path, file, name) for path, file in state.files.items() if path.startswith("boot/")}
        servers[server] = structs.replace(state, files=listed_server(server, files))
    return replace(fleet, servers=servers, shared={**fleet.shared, f"boot/{name}": File(name.encode())})


def _add_name(path: str, file: File, name: str) -> File:
    return replace(file, content=f"{name}\n".encode()) if path in (f"boot{ENTRY}", f"boot{BY_MAC}") else file


# The files that gitboot writes for a mirror


def test_the_program_is_one_file_of_python_3_6_that_imports_the_standard_library_only() -> None:
    parsed = ast.parse(join_program(), feature_version=(3, 6))
    imported = {each.module or "" for each in ast.walk(parsed) if isinstance(each, ast.ImportFrom)}
    imported |= {name.name for each in ast.walk(parsed) if isinstance(each, ast.Import) for name in each.names}
    assert imported <= sys.stdlib_module_names, imported - sys.stdlib_module_names


def test_the_program_and_the_reader_of_lists_define_no_name_twice() -> None:
    body = ast.parse(join_program()).body
    defined = [each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)]
    defined += [
        name.id for each in body if isinstance(each, ast.Assign) for name in each.targets if isinstance(name, ast.Name)
    ]
    assert sorted(defined) == sorted(set(defined))


@pytest.fixture
def written(publisher: SignedSite, host: MirrorHost, tmp_path: Path) -> Path:
    out = tmp_path / "for-mirror"
    done = run_forked("verify-mirror", host.served, "--write-program", out, "--from", publisher.boot, "--key", host.key)
    assert done.returncode == 0, done.stderr
    return out


def test_the_written_service_runs_the_written_program(publisher: SignedSite, host: MirrorHost, written: Path) -> None:
    service = (written / "gitboot-mirror.service").read_text().replace("\\\n", " ")
    command = shlex.split(next(line for line in service.splitlines() if line.startswith("ExecStart="))[10:])
    places = {"/usr/local/lib/gitboot-mirror": str(written), "/var/lib/gitboot-mirror": str(host.folder)}
    for place, ours in places.items():
        command = [each.replace(place, ours) for each in command]
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert host.boots() == ENDED, "the window lies in the past of the real clock"


def test_systemd_accepts_the_written_units(written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder with 100% of $HOME"
    folder.mkdir()
    more = ("--from", "mirror@host:/srv/boot files", "--key", written / "root.pub")
    run_forked("verify-mirror", folder, "--write-program", tmp_path / "other", *more)
    for each in (written, tmp_path / "other"):
        text = (each / "gitboot-mirror.service").read_text().replace("/usr/local/lib/gitboot-mirror/", f"{written}/")
        (each / "gitboot-mirror.service").write_text(text.replace("User=gitboot-mirror\n", "User=root\n"))
        units = [str(each / f"gitboot-mirror.{kind}") for kind in ("service", "timer")]
        command = [program_of("systemd-analyze", "systemd"), "verify", "--man=no", *units]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        shown = [line for line in (done.stdout + done.stderr).splitlines() if "gitboot-mirror" in line]
        assert (done.returncode, shown) == (0, [])


def test_the_files_of_a_mirror_need_a_source_a_key_and_an_absolute_folder(host: MirrorHost, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, words in (
        ((host.served, "--write-program", out), "--from"),
        ((host.served, "--write-program", out, "--from", "x"), "--key"),
        (("boot", "--write-program", out, "--from", "x", "--key", host.key), "absolute path"),
        ((host.served, "--from", "x"), "--write-program"),
    ):
        done = run_forked("verify-mirror", *arguments)
        assert (done.returncode, words in done.stderr) == (64, True), done.stderr
    assert not out.exists()
