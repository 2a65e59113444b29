"""Spool: a folder of files in which endpoints record fetches for the instance."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

from gitboot.background_threads import BackgroundThread
from gitboot.fetchlog.log_entries import Observation, Outcome, parse_log_instant
from gitboot.files import lock_file, sync_folder, write_atomically
from gitboot.jsonio import Digest, encode_canonical, format_instant, parse_json
from gitboot.system_clock import Uptime

SUFFIX: Final = ".jsonl"
IDENTITY: Final = "id"
_ENDPOINT_FOLDER: Final = ".endpoints"
_DELETIONS: Final = "forgotten"  # the file with the number of deletions
_TEST_DATA: Final = b"\0" * 4096  # the test data has the size of a file system block
FULL_FILE_BYTES: Final = 1024 * 1024  # a writer continues a spool file of this size in a new file
# the pause after the writer thread ended with an error; endpoints serve no boots during the pause
_RESTART_S: Final = 0.1
_MAX_BATCH_LINES: Final = 1000  # the maximum number of lines in one sync
MAX_BATCH_BYTES: Final = 512 * 1024  # the maximum size of one batch
_MAX_UPTIME_S: Final = 2**33  # in seconds: a longer uptime is invalid, because no kernel runs for so long
_MAX_TIMES: Final = 2**32  # a larger number is invalid, because no endpoint serves so many fetches in a minute
_FORWARDED_NAME: Final = re.compile(
    r"([0-9a-f]{32}\.[0-9]{1,10}-[0-9a-f]{16})\.([0-9]{12})-[0-9]{12}" + re.escape(SUFFIX)
)
_T = TypeVar("_T")


def read_or_create_identity(folder: Path) -> str:
    """Return the identity by which an output tree refers to the endpoint with this spool.

    If there is no identity yet, create one.
    """
    path = folder / IDENTITY
    if not path.exists():
        temporary_path = folder / f".{IDENTITY}.{token_hex(8)}"
        write_atomically(temporary_path, f"{token_hex(16)}\n".encode(), mode=0o644)
        with suppress(FileExistsError):  # another process may have created the file first
            path.hardlink_to(temporary_path)
        temporary_path.unlink()
        sync_folder(folder)
    return path.read_text().strip()


def get_endpoint_folder(folder: Path) -> Path:
    """Return the folder for files that only endpoints use. A write to this folder does not trigger the instance."""
    return folder / _ENDPOINT_FOLDER


def check_writable(folder: Path) -> None:
    """Write and sync a test file in a spool, and delete it.

    Raises OSError if gitboot cannot record fetches in the spool.
    """
    get_endpoint_folder(folder).mkdir(exist_ok=True)
    path = get_endpoint_folder(folder) / f"{os.getpid()}-{token_hex(8)}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        if os.write(fd, _TEST_DATA) < len(_TEST_DATA):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(fd)
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)


# Writing


class SpoolFile:
    """Writes one writer's spool files, one after the other. Only one thread may use the object."""

    def __init__(self, folder: Path, max_bytes: int = FULL_FILE_BYTES) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._fd: int | None = None
        self._size = 0

    def append(self, lines: bytes) -> None:
        """Write complete lines and sync them to the disk.

        Raises OSError if the lines may be lost. The instance may nevertheless have read the lines, so the caller must
        then write the outcome `withheld` for an intent.
        """
        if self._fd is None or self._size >= self._max_bytes or not self._is_unchanged(self._fd):
            self._open_new_file()
        assert self._fd is not None  # noqa: S101
        try:
            if os.write(self._fd, lines) < len(lines):
                raise OSError("only part of the data was written to the disk")
            os.fdatasync(self._fd)
        except OSError:
            # Remove incomplete lines and close the file, because the content of a file is uncertain after a failed
            # sync.
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
                os.fsync(self._fd)
            self.close()
            raise
        self._size += len(lines)

    def _is_unchanged(self, fd: int) -> bool:
        """Return whether the file still exists and has the expected size.

        If this is not the case, readers could miss lines that gitboot appends.
        """
        status = os.fstat(fd)
        return status.st_nlink > 0 and status.st_size == self._size

    def close(self) -> None:
        """Close and unlock the file, so that the instance may delete the file after it has read all lines."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_new_file(self) -> None:
        """Create a spool file, and lock it before renaming it to its visible name."""
        self.close()
        name = f"{os.getpid()}-{token_hex(8)}"
        hidden = self._folder / f".{name}"
        path = self._folder / f"{name}{SUFFIX}"
        fd = os.open(hidden, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            lock_file(fd, waits=True)
            hidden.rename(path)
            sync_folder(self._folder)
        except BaseException:
            os.close(fd)
            hidden.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise
        self._fd, self._size = fd, 0


class _QueuedLine(NamedTuple):
    line: bytes
    future: Future[None]


class _QueuedCall(NamedTuple):
    function: Callable[[], Any]
    future: Future[Any]


class Spool:
    """Records fetches from any thread and syncs them in batches.

    `record` immediately returns a future, which completes after the sync. A caller can cancel the future until gitboot
    starts to write the line.
    """

    def __init__(self, folder: Path, max_bytes: int = FULL_FILE_BYTES) -> None:
        self.folder = folder
        self._file = SpoolFile(folder, max_bytes)
        self._queue: SimpleQueue[_QueuedLine | _QueuedCall | None] = SimpleQueue()
        self._is_closed = False
        self._close_lock = threading.Lock()  # held to queue an item or to close the queue
        self._thread = BackgroundThread(self._run, name="spool", first_pause_s=_RESTART_S)
        self._thread.start()

    def record(self, observation: Observation) -> Future[None]:
        """Return a future that completes when the observation is synced, or fails with OSError."""
        return self._enqueue(_QueuedLine(encode_line(observation), Future()))

    def run_in_writer(self, function: Callable[[], _T]) -> Future[_T]:
        """Call a function in the writer thread after all earlier lines are written.

        Return a future for the result of the function. The future fails with OSError if the function was not called.
        """
        return self._enqueue(_QueuedCall(function, Future()))

    def _enqueue(self, item: _QueuedLine | _QueuedCall) -> Future[Any]:
        with self._close_lock:
            if self._is_closed:
                item.future.set_exception(OSError("the spool is closed"))
            else:
                self._queue.put(item)
        return item.future

    def close(self) -> None:
        """Write the queued lines, and end the writer thread. A later line or function fails with OSError."""
        with self._close_lock:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join()
        while not self._queue.empty():  # the thread has ended before, with an error
            item = self._queue.get()
            if item is not None:
                _fail_unfinished([item])
        self._file.close()

    def _run(self) -> None:
        while (items := self._take_queued_items()) is not None:
            try:
                self._write_queued_items(items)
            finally:
                _fail_unfinished(items)

    def _write_queued_items(self, items: list[_QueuedLine | _QueuedCall]) -> None:
        """Write all lines with one sync, and then call the functions. Skip the items that a caller has cancelled."""
        lines = [item for item in items if isinstance(item, _QueuedLine) and item.future.set_running_or_notify_cancel()]
        if lines:
            try:
                self._file.append(b"".join(item.line for item in lines))
            except OSError as error:
                for item in lines:
                    item.future.set_exception(error)
            else:
                for item in lines:
                    item.future.set_result(None)
        for call in items:
            if isinstance(call, _QueuedCall) and call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.function())
                except BaseException as error:  # noqa: BLE001 - the future raises the error in the caller
                    call.future.set_exception(error)

    def _take_queued_items(self) -> list[_QueuedLine | _QueuedCall] | None:
        """Wait for an item. Return the next batch, or None if `close` was called and no item is left."""
        items = list[_QueuedLine | _QueuedCall]()
        while len(items) < _MAX_BATCH_LINES and not (items and self._queue.empty()):
            item = self._queue.get()
            if item is None:
                self._queue.put(None)  # `close` ends each later call, also after an error
                break
            items.append(item)
        return items or None


def _fail_unfinished(items: Iterable[_QueuedLine | _QueuedCall]) -> None:
    """Fail the futures that are not complete, because callers must not wait for a thread that has ended."""
    for item in items:
        with suppress(InvalidStateError):  # the future is complete, or the caller has cancelled it
            item.future.set_exception(OSError("the spool's writer thread ended with an error"))


# Lines


def encode_line(observation: Observation) -> bytes:
    """Encode an observation as a line of JSON, without the fields that have their default."""
    optional = {
        "digest": observation.digest,
        "modified": observation.modified,
        "offer": observation.offer,
        "log": observation.log,
        "up": observation.up,
        "times": observation.times if observation.times > 1 else None,
        "isEvidence": None if observation.is_evidence else False,
        "intent": observation.intent,
        "outcome": observation.outcome,
    }
    facts = {
        "at": format_instant(observation.at),
        "client": observation.client,
        "path": observation.path,
        "server": observation.server,
        **{name: value for name, value in optional.items() if value is not None},
    }
    return encode_canonical(facts) + b"\n"


def parse_line(line: bytes) -> Observation | int | None:
    """Return the observation in a line, or None if the line is invalid.

    A line that version 2fefe59 of gitboot wrote may revoke another line. If so, return the offset of the revoked line.
    """
    with suppress(ValueError):
        match parse_json(line):
            case {"not": int(offset)}:
                return offset
            case {
                "at": str(at),
                "client": str(client),
                "path": str(path),
                "server": str(server),
                **more,
            }:
                digest, offer = _get_text(more, "digest"), _get_text(more, "offer")
                modified, times, outcome = more.get("modified"), more.get("times"), more.get("outcome")
                return Observation(
                    server=server,
                    path=path,
                    client=client,
                    at=parse_log_instant(at),
                    digest=Digest(digest) if digest is not None else None,
                    modified=modified if isinstance(modified, int) else None,
                    offer=Digest(offer) if offer is not None else None,
                    log=_get_text(more, "log"),
                    up=_parse_uptime(more.get("up")),
                    times=times if isinstance(times, int) and 1 <= times < _MAX_TIMES else 1,
                    is_evidence=more.get("isEvidence") is not False,
                    intent=_get_text(more, "intent"),
                    outcome=Outcome(str(outcome)) if outcome is not None else None,
                )
    return None


def _get_text(fields: Mapping[Any, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _parse_uptime(value: object) -> Uptime | None:
    match value:
        case [str(boot), int() | float() as seconds] if 0 <= seconds < _MAX_UPTIME_S:
            return Uptime(boot, seconds)
    return None


# Reading


class ReadResult(NamedTuple):
    observations: list[Observation]  # the observations, sorted by time; those of one writer keep their order
    offsets: dict[str, int]  # the offsets by file, for the next call
    invalid_lines: int  # the number of lines that are not observations


def read_new_lines(folder: Path, offsets: Mapping[str, int]) -> ReadResult:
    """Read the complete lines of a spool after ``offsets``.

    The new offsets contain only the files that still exist. Raises OSError if gitboot cannot read the spool.
    """
    timed: list[tuple[datetime, str, int, Observation]] = []  # observations, after the values that sort them
    new_offsets: dict[str, int] = {}
    latest: dict[str, datetime] = {}  # the latest time of each writer's lines
    invalid_lines = 0
    for path in list_files(folder):
        begin = offsets.get(path.name, 0)
        lines = dict(read_whole_lines(path, begin))
        new_offsets[path.name] = begin + sum(map(len, lines.values()))
        writer, base = parse_file_name(path.name)
        parsed = {base + offset: parse_line(line) for offset, line in lines.items()}
        revoked_offsets = {content for content in parsed.values() if isinstance(content, int)}
        for offset, content in parsed.items():
            if content is None:
                invalid_lines += 1
            elif isinstance(content, Observation) and offset not in revoked_offsets:
                # Even if the clock was set back, a line counts as later than the lines before it.
                latest[writer] = max(latest.get(writer, content.at), content.at)
                timed.append((latest[writer], writer, offset, content))
    timed.sort(key=lambda item: item[:3])
    return ReadResult([observation for _, _, _, observation in timed], new_offsets, invalid_lines)


def delete_finished_files(folder: Path, offsets: Mapping[str, int], deletion_number: int) -> None:
    """Delete the files that gitboot has completely read and that no longer have a writer.

    The published output tree must already reflect these files and contain the number of this deletion. If the number is
    not new, gitboot does not delete files. gitboot stores and syncs the number before it deletes files. Raises OSError
    if gitboot cannot store the number.
    """
    if count_deletions(folder) >= deletion_number:
        return
    for path in find_finished_files(folder, offsets):
        write_atomically(folder / _DELETIONS, f"{deletion_number}\n".encode(), mode=0o644)
        path.unlink(missing_ok=True)


def count_deletions(folder: Path) -> int:
    """Return the number of deletions that a spool has recorded. Raises OSError if gitboot cannot read the number."""
    try:
        return int((folder / _DELETIONS).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def count_deletions_after(folder: Path, offsets: Mapping[str, int]) -> int:
    """Return the number that the next deletion would have, or the current number if no file can be deleted."""
    has_finished_file = any(True for _ in find_finished_files(folder, offsets))
    return count_deletions(folder) + has_finished_file


def find_finished_files(folder: Path, offsets: Mapping[str, int]) -> Iterator[Path]:
    """Yield the files that gitboot has completely read and that no longer have a writer.

    Each file stays locked until the caller requests the next file.
    """
    for path in list_files(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if not lock_file(file.fileno()):
                continue
            offset = offsets.get(path.name, -1)
            file.seek(max(offset, 0))
            # the file may end with an incomplete line, because no caller got a confirmation for such a line
            if offset >= 0 and b"\n" not in file.read():
                yield path


def list_files(folder: Path) -> list[Path]:
    """Return the spool files that contain fetches. Each file has one writer."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    except FileNotFoundError:
        return []


def read_whole_lines(path: Path, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines after an offset, each with its own offset. If the file was deleted, yield no lines."""
    with suppress(FileNotFoundError), path.open("rb") as file:  # another instance may have deleted the file
        file.seek(begin)
        for line in file:
            if line.endswith(b"\n"):
                yield begin, line
                begin += len(line)


# Forwarding to a shared fetch log


class SpoolWriter(NamedTuple):
    """A writer of lines, identified by its spool and by its file name without the suffix."""

    spool: str  # the identity of the spool
    file: str


class ForwardedBatch(NamedTuple):
    """Complete lines from one writer's file, and the offset of the first line."""

    writer: SpoolWriter
    begin: int
    lines: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.lines)


def read_batch(path: Path, writer: SpoolWriter, begin: int) -> ForwardedBatch:
    """Return the complete lines of a writer's file after ``begin``, up to the size of a batch, but at least one line.

    If there are no more complete lines, the batch is empty.
    """
    content = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(begin)
        content = file.read(MAX_BATCH_BYTES)
        if b"\n" not in content:
            content += file.readline()  # the first line is longer than a batch, and is therefore invalid
    complete_lines = content[: content.rfind(b"\n") + 1]
    return ForwardedBatch(writer, begin, complete_lines)


def parse_file_name(name: str) -> tuple[str, int]:
    """Return the writer of a spool file, and the offset at which the file's first line is in the writer's own file."""
    match = _FORWARDED_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match is not None else (name, 0)
