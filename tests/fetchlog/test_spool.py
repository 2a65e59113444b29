from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gitboot.background_threads import BackgroundThread
from gitboot.fetchlog import spool
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.one_time_boots import ServedBoots
from gitboot.fetchlog.spool import Spool, SpoolFile, count_deletions, count_deletions_after, encode_line, read_new_lines
from gitboot.jsonio import Digest
from tests.helpers.running_instance import eventually

AT = datetime(2026, 11, 20, 22, 0, 0, 123456, tzinfo=UTC)


def observation(number: int = 0, *, at: datetime = AT) -> Observation:
    return Observation(
        server=f"web{number:04}",
        path="boot/v1/boot/52-54-00-00-00-01/boot.ipxe",
        digest=Digest("a" * 64),
        client="10.12.0.13",
        at=at + timedelta(seconds=number),
    )


@pytest.fixture
def spool_file(tmp_path: Path) -> Iterator[SpoolFile]:
    file = SpoolFile(tmp_path)
    yield file
    file.close()


def write(file: SpoolFile, *numbers: int) -> None:
    for number in numbers:
        file.append(encode_line(observation(number)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jsonl"))


def delete_read_fetches(folder: Path, offsets: Mapping[str, int]) -> None:
    spool.delete_finished_files(folder, offsets, count_deletions_after(folder, offsets))


def test_written_observations_are_read_once(tmp_path: Path, spool_file: SpoolFile) -> None:
    write(spool_file, 0, 1, 2)
    first = read_new_lines(tmp_path, {})
    assert first.observations == [observation(number) for number in range(3)]
    assert read_new_lines(tmp_path, first.offsets).observations == []
    write(spool_file, 3)
    assert read_new_lines(tmp_path, first.offsets).observations == [observation(3)]


def test_an_observation_by_a_mirror_has_a_date_instead_of_a_digest(tmp_path: Path, spool_file: SpoolFile) -> None:
    seen = replace(observation(), server="", digest=None, modified=1795212000)
    spool_file.append(encode_line(seen))
    assert read_new_lines(tmp_path, {}).observations == [seen]


@pytest.mark.parametrize("version", [{}, {"digest": "a" * 64, "modified": 1795212000}])
def test_an_observation_has_exactly_one_version(version: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either"):
        replace(observation(), **{"digest": None, "modified": None, **version})


def test_observations_that_were_read_but_not_stored_are_read_again(tmp_path: Path, spool_file: SpoolFile) -> None:
    write(spool_file, 1)
    assert read_new_lines(tmp_path, {}).observations == read_new_lines(tmp_path, {}).observations == [observation(1)]


def test_a_missing_folder_holds_nothing(tmp_path: Path) -> None:
    assert read_new_lines(tmp_path / "missing", {}) == ([], {}, 0)
    delete_read_fetches(tmp_path / "missing", {})


def test_observations_of_several_writers_are_ordered_by_time(tmp_path: Path) -> None:
    files = [SpoolFile(tmp_path) for _ in range(3)]
    for number in (2, 1, 4, 0, 3, 5):
        write(files[number % 3], number)
    assert read_new_lines(tmp_path, {}).observations == [observation(number) for number in range(6)]


# Forgetting


def test_a_file_with_an_active_writer_is_not_deleted(tmp_path: Path, spool_file: SpoolFile) -> None:
    write(spool_file, 1)
    taken = read_new_lines(tmp_path, {})
    delete_read_fetches(tmp_path, taken.offsets)
    assert len(names(tmp_path)) == 1
    write(spool_file, 2)
    assert read_new_lines(tmp_path, taken.offsets).observations == [observation(2)]


def test_a_file_that_was_read_completely_and_closed_by_its_writer_is_deleted(
    tmp_path: Path, spool_file: SpoolFile
) -> None:
    write(spool_file, 1)
    spool_file.close()
    taken = read_new_lines(tmp_path, {})
    delete_read_fetches(tmp_path, {})
    assert len(names(tmp_path)) == 1, "nobody said that it was taken"
    delete_read_fetches(tmp_path, taken.offsets)
    assert (names(tmp_path), read_new_lines(tmp_path, taken.offsets).offsets) == ([], {})


def test_deletions_are_counted_before_they_happen(tmp_path: Path) -> None:
    for times in (1, 2, 3):
        file = SpoolFile(tmp_path)
        write(file, times)
        assert count_deletions_after(tmp_path, read_new_lines(tmp_path, {}).offsets) == times - 1, "it is still written"
        file.close()
        taken = read_new_lines(tmp_path, {})
        spool.delete_finished_files(tmp_path, taken.offsets, times - 1)
        assert (len(names(tmp_path)), count_deletions(tmp_path)) == (1, times - 1), "no tree knows that it is forgotten"
        assert count_deletions_after(tmp_path, taken.offsets) == times
        delete_read_fetches(tmp_path, taken.offsets)
        assert (names(tmp_path), count_deletions(tmp_path)) == ([], times)


def test_lines_that_were_added_after_the_read_are_not_deleted(tmp_path: Path, spool_file: SpoolFile) -> None:
    write(spool_file, 1)
    taken = read_new_lines(tmp_path, {})
    write(spool_file, 2)
    spool_file.close()
    delete_read_fetches(tmp_path, taken.offsets)
    again = read_new_lines(tmp_path, taken.offsets)
    assert again.observations == [observation(2)]
    delete_read_fetches(tmp_path, again.offsets)
    assert names(tmp_path) == []


def test_an_incomplete_line_of_a_killed_writer_is_deleted(tmp_path: Path, spool_file: SpoolFile) -> None:
    write(spool_file, 1)
    spool_file.close()
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(encode_line(observation(2))[:-9])
    taken = read_new_lines(tmp_path, {})
    assert taken.observations == [observation(1)]
    delete_read_fetches(tmp_path, taken.offsets)
    assert names(tmp_path) == []


def test_a_file_is_locked_before_it_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def forget_first(file: int, operation: int) -> None:
        assert not list(tmp_path.glob("*.jsonl"))
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", forget_first)
    write(SpoolFile(tmp_path), 1)


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path, max_bytes=500)
    write(file, *range(9))
    assert len(names(tmp_path)) > 2
    taken = read_new_lines(tmp_path, {})
    assert taken.observations == [observation(number) for number in range(9)]
    delete_read_fetches(tmp_path, taken.offsets)
    assert len(names(tmp_path)) == 1, "the one that is written"


def write_many(spool: Path, first: int, count: int) -> None:
    spooled = Spool(spool, max_bytes=5000)
    for future in [spooled.record(observation(number)) for number in range(first, first + count)]:
        future.result(timeout=60)
    spooled.close()


def test_processes_neither_lose_nor_repeat_an_observation(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, 1000 * n, 300)) for n in range(3)]
    for writer in writers:
        writer.start()
    taken: list[Observation] = []
    offsets: dict[str, int] = {}
    while True:
        ended = not any(writer.is_alive() for writer in writers)
        found = read_new_lines(tmp_path, offsets)
        taken, offsets = taken + found.observations, found.offsets
        delete_read_fetches(tmp_path, offsets)
        if ended:
            break
    servers = [each.server for each in taken]
    assert len(servers) == len(set(servers)) == 900
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "stray",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"at": "2026-11-20T22:00:00Z"}',
        b'{"at": "2026-11-20T22:00:00Z", "client": "", "path": "", "server": ""}',
        b'{"at": "2026-11-20T22:00:00Z", "client": "", "path": "", "server": "", "modified": "1"}',
        b'{"at": "soon", "client": "", "digest": "", "path": "", "server": ""}',
    ],
    ids=lambda stray: stray[:20].decode(errors="replace") or "nothing",
)
def test_a_stray_line_does_not_affect_other_lines(tmp_path: Path, spool_file: SpoolFile, stray: bytes) -> None:
    write(spool_file, 1)
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(stray + b"\n")
    write(spool_file, 2)
    taken = read_new_lines(tmp_path, {})
    assert (taken.observations, taken.invalid_lines) == ([observation(1), observation(2)], 1)


# What cannot be written


def test_a_full_disk_costs_only_one_observation(tmp_path: Path) -> None:
    writer = multiprocessing.get_context("fork").Process(target=write_limited, args=(tmp_path,))
    writer.start()
    writer.join()
    assert (writer.exitcode, read_new_lines(tmp_path, {}).observations) == (0, [observation(1), observation(3)])


def write_limited(spool: Path) -> None:
    file = SpoolFile(spool)
    write(file, 1)
    size = len(encode_line(observation(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    with pytest.raises(OSError, match="part"):
        write(file, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write(file, 3)


def test_after_a_failed_sync_a_file_is_not_used_again(
    tmp_path: Path, spool_file: SpoolFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(spool_file, 1)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            write(spool_file, 2)
    write(spool_file, 3)
    assert (len(names(tmp_path)), read_new_lines(tmp_path, {}).observations) == (2, [observation(1), observation(3)])


@pytest.mark.parametrize("left", [0, 9, len(encode_line(observation(1)))], ids=["nothing", "half a line", "a line"])
def test_a_file_that_somebody_truncated_gets_no_more_lines(tmp_path: Path, spool_file: SpoolFile, left: int) -> None:
    """Readers have come further than its end."""
    write(spool_file, 1, 2)
    taken = read_new_lines(tmp_path, {})
    (path,) = tmp_path.glob("*.jsonl")
    os.truncate(path, left)
    write(spool_file, 3)
    again = read_new_lines(tmp_path, taken.offsets)
    assert (again.observations, again.invalid_lines) == ([observation(3)], 0)
    assert (path.stat().st_size, len(names(tmp_path))) == (left, 2)
    delete_read_fetches(tmp_path, again.offsets)
    assert len(names(tmp_path)) == 1 and not path.exists(), "the other is still written"


def test_a_boot_whose_line_the_writer_took_back_was_not_served(tmp_path: Path, spool_file: SpoolFile) -> None:
    """Another process has read the line before its sync failed."""
    given = ServedBoots(tmp_path)
    first, second = (replace(observation(number), offer=Digest(str(number) * 64)) for number in (1, 2))
    spool_file.append(encode_line(first))
    whole = len(encode_line(first))
    spool_file.append(encode_line(second))
    assert given.find(second.server, str(second.offer)) is not None
    (path,) = tmp_path.glob("*.jsonl")
    os.truncate(path, whole)
    assert given.find(second.server, str(second.offer)) is None
    assert given.find(first.server, str(first.offer)) is not None


def test_a_deleted_folder_fails_each_observation(tmp_path: Path) -> None:
    spooled = Spool(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        spooled.record(observation()).result(timeout=60)
    spooled.close()


def test_all_that_waits_for_a_writer_thread_that_fails_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    failures: list[threading.ExceptHookArgs] = []

    def fail(_: SpoolFile, lines: bytes) -> None:
        begun.set()
        gate.wait(60)
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", failures.append)
    spooled = Spool(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(SpoolFile, "append", fail)
        first = spooled.record(observation(1))
        begun.wait(60)
        waiting, called = spooled.record(observation(2)), spooled.run_in_writer(lambda: 1)
        gate.set()
        for future in (first, waiting, called):
            with pytest.raises(OSError, match="writer thread"):
                future.result(timeout=60)
    spooled.record(observation(3)).result(timeout=60)
    spooled.close()
    assert len(failures) == 2
    assert read_new_lines(tmp_path, {}).observations == [observation(3)]


def test_a_writer_thread_that_fails_at_the_close_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that closes the spool may come to `join` after the writer thread's pause."""
    begun, gate = threading.Event(), threading.Event()

    def fail(_: SpoolFile, lines: bytes) -> None:
        begun.set()
        gate.wait(60)
        raise MemoryError

    def join_late(thread: BackgroundThread) -> None:
        gate.set()
        eventually(lambda: not thread.is_alive, 60)

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(SpoolFile, "append", fail)
    monkeypatch.setattr(BackgroundThread, "join", join_late)
    spooled = Spool(tmp_path)
    first = spooled.record(observation(1))
    assert begun.wait(60)
    waiting = spooled.record(observation(2))
    spooled.close()
    for future in (first, waiting):
        with pytest.raises(OSError, match="writer thread"):
            future.result(timeout=0)


def test_a_closed_spool_rejects_each_observation(tmp_path: Path) -> None:
    spooled = Spool(tmp_path)
    spooled.close()
    for future in (spooled.record(observation()), spooled.run_in_writer(lambda: 1)):
        with pytest.raises(OSError, match="closed"):
            future.result(timeout=0)


def test_a_line_that_is_longer_than_a_batch_is_read_as_one_batch(tmp_path: Path, spool_file: SpoolFile) -> None:
    long = b"x" * (2 * spool.MAX_BATCH_BYTES) + b"\n"
    spool_file.append(long + encode_line(observation()))
    (path,) = tmp_path.glob("*.jsonl")
    writer = spool.SpoolWriter("spool", path.stem)
    batch = spool.read_batch(path, writer, 0)
    assert batch.lines == long
    assert spool.read_batch(path, writer, batch.end).lines == encode_line(observation())


# Many at once, and too late


def test_waiting_observations_are_written_with_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, syncs, sync = threading.Event(), [0], os.fdatasync

    def slowly(fd: int) -> None:
        syncs[0] += 1
        gate.wait(60)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slowly)
    spooled = Spool(tmp_path)
    futures = [spooled.record(observation(number)) for number in range(500)]
    assert not any(future.done() for future in futures), "nothing is told before it stands"
    gate.set()
    for future in futures:
        future.result(timeout=60)
    spooled.close()
    assert syncs[0] <= 3
    assert len(read_new_lines(tmp_path, {}).observations) == 500


def test_a_cancelled_observation_is_not_written_unless_its_write_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun, sync = threading.Event(), threading.Event(), os.fdatasync

    def slowly(fd: int) -> None:
        begun.set()
        gate.wait(60)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slowly)
    spooled = Spool(tmp_path)
    under_way = spooled.record(observation(1))
    begun.wait(60)
    waiting, last = spooled.record(observation(2)), spooled.record(observation(3))
    assert not under_way.cancel()
    assert waiting.cancel()
    gate.set()
    last.result(timeout=60)
    spooled.close()
    assert read_new_lines(tmp_path, {}).observations == [observation(1), observation(3)]
    (path,) = tmp_path.glob("*.jsonl")
    assert b"web0002" not in path.read_bytes()
