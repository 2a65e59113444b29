"""Files that are replaced whole, and locks that name the process that holds them."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gitboot import files
from gitboot.errors import LockedByAnother
from gitboot.files import find_lock_holder, hold_lock, write_atomically
from tests.helpers.cases import for_each


@for_each(("umask", "more", "mode"), [(0, {}, 0o600), (0o077, {"mode": 0o644}, 0o644)])
def test_a_file_has_its_mode_under_any_umask_and_no_other_file_is_left(
    tmp_path: Path, umask: int, more: dict[str, int], mode: int
) -> None:
    before = os.umask(umask)
    for content in (b"old", b"new"):
        write_atomically(tmp_path / "status.json", content, **more)
    os.umask(before)
    left = {path.name: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir()}
    assert left == {"status.json": (b"new", mode)}


def test_a_symlink_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "status.json").symlink_to("theirs")
    write_atomically(tmp_path / "status.json", b"ours")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert not (tmp_path / "status.json").is_symlink()


def test_a_path_that_cannot_be_replaced_stays_and_no_other_file_is_left(tmp_path: Path) -> None:
    (tmp_path / "status.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "status.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_reader_sees_the_old_or_the_new_content_and_never_a_part(tmp_path: Path) -> None:
    path, contents = tmp_path / "status.json", (b"a" * 300_000, b"b" * 300_000)
    write_atomically(path, contents[0])
    began, done, seen = threading.Event(), threading.Event(), set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())
            began.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(60)
    for number in range(50):
        write_atomically(path, contents[number % 2])
    done.set()
    reader.join()
    assert seen <= set(contents)


def test_simultaneous_writers_leave_the_content_of_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "status.json"

    def write(text: bytes) -> None:
        for _ in range(20):
            write_atomically(path, text * 1000)

    writers = [threading.Thread(target=write, args=[text]) for text in (b"a", b"b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in (b"a" * 1000, b"b" * 1000)
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_a_file_and_its_name_are_synced_before_the_call_returns(tmp_path: Path, trace_syncs: list[str]) -> None:
    write_atomically(tmp_path / "status.json", b"{}")
    assert trace_syncs == ["file", "renamed", "folder"]


@pytest.fixture
def trace_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the syncs and the rename of the new file."""
    seen: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(fd: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def traced_rename(*paths: Any, **options: Any) -> None:
        seen.append("renamed")
        rename(*paths, **options)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    return seen


# Locks

_HOLD = """
import sys, time
from pathlib import Path
from gitboot.files import hold_lock
with hold_lock(Path(sys.argv[1]), "state is in use"):
    print("held", flush=True)
    time.sleep(3600)
"""


@contextmanager
def _lock_in_another_process(lock: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_lock_excludes_others_and_names_its_holder(tmp_path: Path) -> None:
    with _lock_in_another_process(tmp_path / "lock") as process:
        named = re.escape(f"state is in use by process {process.pid} on {os.uname().nodename}")
        with pytest.raises(LockedByAnother, match=f"^{named}$"), hold_lock(tmp_path / "lock", "state is in use"):
            pytest.fail("two are in")
        assert find_lock_holder(tmp_path / "lock") == process.pid


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_lock_ends_with_its_process(tmp_path: Path, end: signal.Signals) -> None:
    with _lock_in_another_process(tmp_path / "lock") as process:
        process.send_signal(end)
        process.wait()
        with hold_lock(tmp_path / "lock", "state is in use"):
            assert find_lock_holder(tmp_path / "lock") == os.getpid()


def test_a_lock_that_is_free_has_no_holder(tmp_path: Path) -> None:
    assert find_lock_holder(tmp_path / "lock") is None
    with hold_lock(tmp_path / "lock", "state is in use"):
        pass
    assert find_lock_holder(tmp_path / "lock") is None


def test_a_lock_excludes_its_own_process_too(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / "lock", "state is in use"),
        pytest.raises(LockedByAnother),
        hold_lock(tmp_path / "lock", "state is in use"),
    ):
        pytest.fail("two are in")


def test_a_look_at_the_holder_of_a_lock_excludes_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PROBES", 10_000)  # no look takes so long on any machine
    lock, done = tmp_path / "lock", threading.Event()
    lock.touch()

    def look() -> None:
        while not done.is_set():
            find_lock_holder(lock)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            with hold_lock(lock, "state is in use"):
                pass
    finally:
        done.set()
        looking.join()


def test_a_symlink_is_rejected_as_a_lock(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "lock").symlink_to("theirs")
    with pytest.raises(OSError, match="symbolic links"), hold_lock(tmp_path / "lock", "state is in use"):
        pass
    assert (tmp_path / "theirs").read_text() == "theirs"
