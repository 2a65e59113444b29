from __future__ import annotations

import fcntl
import logging
import multiprocessing
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gitboot.model.scalars import Digest
from gitboot.observe.observation import Observation
from gitboot.observe.spool import append, forget, take, write


def observation(number: int = 0) -> Observation:
    return Observation(
        server=f"web{number:04}",
        path="boot/v1/boot/52-54-00-00-00-01/boot.ipxe",
        digest=Digest("a" * 64),
        client="10.12.0.13",
        at=datetime(2026, 11, 20, 22, 0, 0, 123456, tzinfo=UTC),
    )


def test_what_is_written_is_taken_once(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, observation(number))
    assert take(tmp_path) == [observation(number) for number in range(3)]
    forget(tmp_path)
    assert take(tmp_path) == []


def test_what_a_mirror_saw_has_a_date_for_a_digest(tmp_path: Path) -> None:
    seen = replace(observation(), server="", digest=None, modified=1795212000)
    append(tmp_path, seen, durably=True)
    assert take(tmp_path) == [seen]


@pytest.mark.parametrize("version", [{}, {"digest": "a" * 64, "modified": 1795212000}])
def test_an_observation_is_of_one_version(version: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either"):
        replace(observation(), **{"digest": None, "modified": None, **version})


def test_what_was_taken_and_not_forgotten_is_taken_again(tmp_path: Path) -> None:
    write(tmp_path, observation(1))
    assert take(tmp_path) == [observation(1)]
    write(tmp_path, observation(2))
    assert take(tmp_path) == [observation(1)], "after a crash"
    forget(tmp_path)
    assert take(tmp_path) == [observation(2)]


def test_an_empty_spool_holds_nothing(tmp_path: Path) -> None:
    assert take(tmp_path) == []
    forget(tmp_path)


def test_a_file_that_is_taken_away_between_opening_and_locking_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, observation(1))
    lock = fcntl.flock

    def take_first(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert take(tmp_path) == [observation(1)]
        forget(tmp_path)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", take_first)
    write(tmp_path, observation(2))
    assert take(tmp_path) == [observation(2)]


def test_taking_waits_for_who_writes(tmp_path: Path) -> None:
    write(tmp_path, observation(1))
    path = tmp_path / "observations.jsonl"
    line = path.read_bytes()
    with ThreadPoolExecutor() as pool, path.open("ab", buffering=0) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        taking = pool.submit(take, tmp_path)
        while path.exists():
            time.sleep(0.001)
        assert not taking.done()
        writer.write(line)
        fcntl.flock(writer, fcntl.LOCK_UN)
        assert taking.result() == [observation(1)] * 2


def write_many(spool: Path, first: int, count: int) -> None:
    for number in range(first, first + count):
        write(spool, observation(number))


def test_nothing_is_lost_or_doubled_between_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, 1000 * n, 300)) for n in range(3)]
    for writer in writers:
        writer.start()
    taken: list[Observation] = []
    while any(writer.is_alive() for writer in writers):
        taken += take(tmp_path)
        forget(tmp_path)
    taken += take(tmp_path)
    servers = [each.server for each in taken]
    assert len(servers) == len(set(servers)) == 900


@pytest.mark.parametrize(
    "stray",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b'{"at": "2026-11-20T22:00:00Z"}',
        b'{"at": "2026-11-20T22:00:00Z", "client": "", "path": "", "server": ""}',
        b'{"at": "2026-11-20T22:00:00Z", "client": "", "path": "", "server": "", "modified": "1"}',
        b'{"at": "soon", "client": "", "digest": "", "path": "", "server": ""}',
    ],
)
def test_a_stray_line_spoils_no_other(tmp_path: Path, stray: bytes, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, observation(1))
    with (tmp_path / "observations.jsonl").open("ab") as file:
        file.write(stray + b"\n")
    write(tmp_path, observation(2))
    assert take(tmp_path) == [observation(1), observation(2)]
    assert "1 of 3 lines" in caplog.text


def test_a_full_disk_costs_an_observation_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, observation(1))
    size = (tmp_path / "observations.jsonl").stat().st_size
    write_beyond(tmp_path, size + 10)
    assert (tmp_path / "observations.jsonl").stat().st_size == size
    write(tmp_path, observation(3))
    assert take(tmp_path) == [observation(1), observation(3)]
    assert not caplog.records


def write_beyond(spool: Path, most_bytes: int) -> None:
    """Write from a process whose files may not grow beyond that size."""
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=_write_limited, args=(spool, most_bytes))
    writer.start()
    writer.join()
    assert writer.exitcode == 0


def _write_limited(spool: Path, most_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    write(spool, observation(2))


def test_a_folder_that_is_not_there_is_an_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "missing", observation())
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "web0000" in caplog.text
