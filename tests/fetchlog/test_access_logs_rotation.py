"""A log that grows and is rotated while it is read: each line once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gitboot.errors import LockedByAnother, UsageError
from gitboot.fetchlog.access_logs import LogFile


@contextmanager
def open_reader(log: Path) -> Iterator[Callable[[], list[str]]]:
    memory = log.parent.parent / "memory"
    memory.mkdir(parents=True, exist_ok=True)
    with LogFile(log, memory) as file:
        yield lambda: [line.decode().strip() for line in file.read_lines()]


def read_once(log: Path) -> list[str]:
    with open_reader(log) as read:
        return read()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "gitboot.log"


def append(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def rename(log: Path) -> Path:
    return log.rename(log.with_name("gitboot.log.1"))


def copy(log: Path) -> Path:
    copied = Path(shutil.copy(log, log.with_name("gitboot.log.1")))
    os.truncate(log, 0)
    return copied


def rotate_file(log: Path) -> Path:
    return log.rename(log.with_name("gitboot-2026-11-21T02-34-18.000.log"))


ROTATIONS = pytest.mark.parametrize("rotate", [rename, copy, rotate_file])
IN_ONE_PROCESS = pytest.mark.parametrize("at_once", [True, False], ids=["followed", "process by process"])


@contextmanager
def reader(log: Path, at_once: bool) -> Iterator[Callable[[], list[str]]]:
    if at_once:
        with open_reader(log) as read:
            yield read
    else:
        yield lambda: read_once(log)


@IN_ONE_PROCESS
def test_each_line_is_read_once(log: Path, at_once: bool) -> None:
    append(log, "a", "b")
    with reader(log, at_once) as read:
        assert (read(), read()) == (["a", "b"], [])
        append(log, "c")
        assert read() == ["c"]


@IN_ONE_PROCESS
@ROTATIONS
def test_a_rotation_loses_and_repeats_no_line(log: Path, rotate: Callable[[Path], Path], at_once: bool) -> None:
    append(log, "a")
    with reader(log, at_once) as read:
        assert read() == ["a"]
        append(log, "b")
        rotated = rotate(log)
        append(log, "c")
        assert sorted(read() + read()) == ["b", "c"]
        append(rotated, "d")  # by a server that has not opened the new log yet
        append(log, "e")
        assert sorted(read() + read()) == ["d", "e"]


@IN_ONE_PROCESS
def test_a_log_that_was_truncated_and_grew_again_is_read_from_its_beginning(log: Path, at_once: bool) -> None:
    append(log, "a" * 10)
    with reader(log, at_once) as read:
        assert len(read()) == 1
        log.write_text("")
        append(log, "b" * 10, "c")
        assert read() == ["b" * 10, "c"]


def test_several_rotations_between_two_reads_lose_no_line(log: Path) -> None:
    append(log, "a")
    assert read_once(log) == ["a"]
    append(log, "b")
    log.rename(log.with_name("gitboot.log.2"))
    append(log, "c")
    log.rename(log.with_name("gitboot.log.1"))
    append(log, "d")
    assert (read_once(log), read_once(log)) == (["b", "c", "d"], [])


def test_files_that_were_rotated_before_the_first_read_are_ignored(log: Path) -> None:
    append(log, "a")
    rename(log)
    append(log, "b")
    assert (read_once(log), read_once(log)) == (["b"], [])


def test_a_followed_file_is_read_to_its_end_even_if_it_is_deleted(log: Path) -> None:
    append(log, "a")
    with open_reader(log) as read:
        assert read() == ["a"]
        append(log, "b")
        rename(log).unlink()  # compressed
        append(log, "c")
        assert (read(), read()) == (["b", "c"], [])


def test_a_copy_that_is_being_made_is_not_read_as_new_lines(log: Path) -> None:
    append(log, "a", "b")
    with open_reader(log) as read:
        assert read() == ["a", "b"]
        copied = log.with_name("gitboot.log.1")
        append(copied, "a")
        assert read() == []
        append(copied, "b", "c")
        assert read() == []
        log.write_text("")
        assert read() == ["c"]


@pytest.mark.parametrize(
    "name", ["gitboot.log.2.gz", "gitboot-other.log", "gitboot.login", "other.log", "gitboot.log.d"]
)
def test_a_file_that_is_not_a_rotated_log_is_ignored(log: Path, name: str) -> None:
    append(log, "a")
    read_once(log)
    append(log.with_name(name) if not name.endswith(".d") else _folder(log.with_name(name)) / "x", "x")
    assert read_once(log) == []


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@IN_ONE_PROCESS
def test_a_line_is_read_when_it_is_complete(log: Path, at_once: bool) -> None:
    log.write_text("a\nhal")
    with reader(log, at_once) as read:
        assert read() == ["a"]
        with log.open("a") as file:
            file.write("f\n")
        assert read() == ["half"]


def test_a_line_without_end_is_read_in_pieces(log: Path) -> None:
    log.write_text("a" * 1_000_000)
    assert [len(piece) for piece in read_once(log)] == [262_144] * 3
    append(log, "", "b")
    assert [len(piece) for piece in read_once(log)] == [1_000_000 - 3 * 262_144, 1]


def test_a_line_counts_as_read_when_the_next_one_is_requested(log: Path, tmp_path: Path) -> None:
    append(log, *(f"{number}" for number in range(3)))
    with open_reader(log):
        pass
    with LogFile(log, tmp_path / "memory") as file:
        lines = file.read_lines()
        assert [next(lines), next(lines)] == [b"0\n", b"1\n"]
        lines.close()
    assert read_once(log) == ["1", "2"]


def test_after_a_kill_only_some_lines_of_a_long_log_are_read_again(log: Path, tmp_path: Path) -> None:
    append(log, *(f"{number}" for number in range(2500)))
    with open_reader(log):
        pass
    with LogFile(log, tmp_path / "memory") as file:
        lines = file.read_lines()
        for _ in range(1500):
            next(lines)
        (memory,) = (tmp_path / "memory").glob("*.json")
        at_the_kill = memory.read_bytes()
        lines.close()
    memory.write_bytes(at_the_kill)
    assert read_once(log) == [f"{number}" for number in range(999, 2500)]


def test_a_log_that_does_not_exist_yet_is_awaited(log: Path) -> None:
    with open_reader(log) as read:
        assert read() == []
        append(log, "a")
        assert read() == ["a"]


def test_two_processes_cannot_read_one_log_with_one_state_file(log: Path) -> None:
    with open_reader(log), pytest.raises(LockedByAnother), open_reader(log):
        pass


def test_a_damaged_state_file_is_an_error(log: Path, tmp_path: Path) -> None:
    append(log, "a")
    read_once(log)
    (memory,) = (tmp_path / "memory").glob("*.json")
    memory.write_text("{")
    with pytest.raises(UsageError, match="reads the log again from the start"):
        read_once(log)


def test_a_missing_folder_is_an_error(log: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="memory"), LogFile(log, tmp_path / "memory"):
        pass
    with pytest.raises(UsageError, match="missing"), open_reader(tmp_path / "missing" / "x" / "gitboot.log") as read:
        read()
