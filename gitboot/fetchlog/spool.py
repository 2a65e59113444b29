"""Spool: fetches on their way from endpoints to the instance, as files of a folder."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

from gitboot.background_threads import BackgroundThread
from gitboot.fetchlog.log_entries import Observation, Outcome, parse_instant
from gitboot.files import lock_file, sync_folder, write_atomically
from gitboot.jsonio import Digest, encode_canonical, format_instant
from gitboot.system_clock import Uptime

MOST_BYTES: Final = 1024 * 1024  # of one file, until the next is begun
_RESTART_S: Final = 0.1  # after its thread died: no boot is served until it records again
_MOST_AT_ONCE: Final = 1000  # lines that wait for one sync
SUFFIX: Final = ".jsonl"
IDENTITY: Final = "id"
_DELETIONS: Final = "forgotten"
_ASIDE: Final = ".endpoints"
_TRIAL: Final = b"\0" * 4096  # as much as any file system gives out at a time
_LONGEST_UP_S: Final = 2**33  # which no kernel has run
_MOST_TIMES: Final = 2**32  # fetches in a minute, which no endpoint answers
_T = TypeVar("_T")


def read_or_create_identity(folder: Path) -> str:
    """What a spool is called by where it is published who may give a boot; made where there is none yet."""
    path, made = folder / IDENTITY, folder / f".{IDENTITY}.{token_hex(8)}"
    if not path.exists():
        write_atomically(made, f"{token_hex(16)}\n".encode(), mode=0o644)
        with suppress(FileExistsError):  # another process was first
            path.hardlink_to(made)
        made.unlink()
        sync_folder(folder)
    return path.read_text().strip()


def endpoint_folder(folder: Path) -> Path:
    """The folder for what endpoints keep in a spool and is not for the instance: it wakes nobody who watches that."""
    return folder / _ASIDE


def check_writable(folder: Path) -> None:
    """Write something into a spool, durably, and take it away; raises OSError where nothing can be recorded there."""
    endpoint_folder(folder).mkdir(exist_ok=True)
    path = endpoint_folder(folder) / f"{os.getpid()}-{token_hex(8)}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        if os.write(fd, _TRIAL) < len(_TRIAL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(fd)
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)


# Writing


class SpoolFile:
    """One writer's files in the spool, one after the other; not for several threads."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._fd: int | None = None
        self._size = 0

    def append(self, lines: bytes) -> None:
        """Write whole lines durably.

        Raises OSError if the lines may be lost. Somebody may have read them all the same: an intent needs `withheld`.
        """
        if self._fd is None or self._size >= self._most_bytes or not self._is_unchanged(self._fd):
            self._open_new_file()
        assert self._fd is not None  # noqa: S101
        try:
            if os.write(self._fd, lines) < len(lines):
                raise OSError("only a part was written")
            os.fdatasync(self._fd)
        except OSError:
            # Cut off what was not written wholly, and close the file: after a failed sync it is not trusted any more.
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
                os.fsync(self._fd)
            self.close()
            raise
        self._size += len(lines)

    def _is_unchanged(self, fd: int) -> bool:
        """Whether readers find what is appended: they skip bytes of a file that was longer when they read it."""
        status = os.fstat(fd)
        return status.st_nlink > 0 and status.st_size == self._size

    def close(self) -> None:
        """Let the instance delete what is there, once it has taken it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_new_file(self) -> None:
        """Open a file under a new name; it is locked before it can be seen."""
        self.close()
        name = f"{os.getpid()}-{token_hex(8)}"
        hidden, path = self._folder / f".{name}", self._folder / f"{name}{SUFFIX}"
        fd = os.open(hidden, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            lock_file(fd, waits=True)
            hidden.rename(path)
            sync_folder(self._folder)
        except BaseException:
            os.close(fd)
            for each in (hidden, path):
                each.unlink(missing_ok=True)
            raise
        self._fd, self._size = fd, 0


class _QueuedLine(NamedTuple):
    line: bytes
    written: Future[None]


class Spool:
    """Records fetches from any thread, many with one sync: `record` at once, its future when it stands durably.

    A future that was cancelled in time has nothing written. Once its line may be in the file, it cannot be cancelled.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._file = SpoolFile(folder, most_bytes)
        self._queue: SimpleQueue[_QueuedLine | Callable[[], None] | None] = SimpleQueue()
        self._thread = BackgroundThread(self._run, name="spool", first_pause_s=_RESTART_S)
        self._thread.start()

    def record(self, observation: Observation) -> Future[None]:
        """What is done once the observation stands; it fails with OSError where it cannot."""
        entry = _QueuedLine(encode_line(observation), Future())
        self._queue.put(entry)
        return entry.written

    def run_in_writer(self, call: Callable[[], _T]) -> Future[_T]:
        """What ``call`` gives or raises, made by the thread that writes: when all before it stands, and as it can."""
        done: Future[_T] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
                    done.set_exception(error)

        self._queue.put(run)
        return done

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            waiting, ends = self._collect_waiting(first)
            try:
                self._write_waiting(waiting)
            finally:
                for each in waiting:  # whoever waits does not wait for a thread that died
                    if isinstance(each, _QueuedLine) and not each.written.done():
                        each.written.set_exception(OSError("the spool's thread died"))
            if ends:
                return

    def _write_waiting(self, waiting: list[_QueuedLine | Callable[[], None]]) -> None:
        entries = [each for each in waiting if isinstance(each, _QueuedLine)]
        entries = [each for each in entries if each.written.set_running_or_notify_cancel()]
        failure = None
        try:
            if entries:
                self._file.append(b"".join(entry.line for entry in entries))
        except OSError as error:
            failure = error
        for entry in entries:
            if failure is not None:
                entry.written.set_exception(failure)
            else:
                entry.written.set_result(None)
        for each in waiting:
            if not isinstance(each, _QueuedLine):
                each()

    def _collect_waiting(
        self, first: _QueuedLine | Callable[[], None]
    ) -> tuple[list[_QueuedLine | Callable[[], None]], bool]:
        """All that waits by now, and whether the end is asked for."""
        waiting = [first]
        while len(waiting) < _MOST_AT_ONCE and not self._queue.empty():
            if (each := self._queue.get()) is None:
                return waiting, True
            waiting.append(each)
        return waiting, False


def encode_line(observation: Observation) -> bytes:
    more = {
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
        **{name: value for name, value in more.items() if value is not None},
    }
    return encode_canonical(facts) + b"\n"


# Reading


class ReadResult(NamedTuple):
    observations: list[Observation]  # in their order: of one writer as they were written, of several by instant
    offsets: dict[str, int]  # by file: how far it was read, from the next time on
    invalid_lines: int  # lines that are no observations


def read_new(folder: Path, offsets: Mapping[str, int]) -> ReadResult:
    """What stands in a spool beyond ``offsets``: whole lines, each once.

    The new offsets have the files that are there, and no others. Raises OSError where it cannot be read.
    """
    found: list[tuple[datetime, str, int, Observation]] = []
    read: dict[str, int] = {}
    latest: dict[str, datetime] = {}  # by writer
    strays = 0
    for path in list_files(folder):
        begin = offsets.get(path.name, 0)
        lines = dict(read_whole_lines(path, begin))
        read[path.name] = begin + sum(map(len, lines.values()))
        writer, base = parse_file_name(path.name)
        parsed = {base + offset: parse_line(line) for offset, line in lines.items()}
        taken_back = {each for each in parsed.values() if isinstance(each, int)}
        for offset, each in parsed.items():
            if each is None:
                strays += 1
            elif isinstance(each, Observation) and offset not in taken_back:
                # A clock that goes back makes no line older than those before it.
                latest[writer] = max(latest.get(writer, each.at), each.at)
                found.append((latest[writer], writer, offset, each))
    found.sort(key=lambda each: each[:3])
    return ReadResult([each[3] for each in found], read, strays)


def delete_read_files(folder: Path, offsets: Mapping[str, int], times: int) -> None:
    """Delete the files that were taken wholly and to which nothing is added any more, for the ``times``-th time.

    Only once a tree that knows what they say, and that number, stands published; one that is no new number has nothing
    deleted. Raises OSError where it cannot be noted, durably, before anything is.
    """
    before = count_deletions(folder)
    for path in find_read_files(folder, offsets) if before < times else ():
        write_atomically(folder / _DELETIONS, f"{times}\n".encode(), mode=0o644)
        path.unlink(missing_ok=True)


def count_deletions(folder: Path) -> int:
    """How often something of a spool was deleted; raises OSError where that cannot be read."""
    try:
        return int((folder / _DELETIONS).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def count_deletions_after(folder: Path, offsets: Mapping[str, int]) -> int:
    """How often that will have been, once all that can be deleted is."""
    return count_deletions(folder) + any(True for _ in find_read_files(folder, offsets))


def find_read_files(folder: Path, offsets: Mapping[str, int]) -> Iterator[Path]:
    """The files that were taken wholly and to which nothing is added any more, each locked while it is looked at."""
    for path in list_files(folder):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if not lock_file(file.fileno()):
                continue
            taken = offsets.get(path.name, -1)
            file.seek(max(taken, 0))
            if taken >= 0 and b"\n" not in file.read():  # half a line at its end was never acknowledged
                yield path


def list_files(folder: Path) -> list[Path]:
    """What was written in a spool: each file is one writer's."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    except FileNotFoundError:
        return []


def read_whole_lines(path: Path, begin: int) -> Iterator[tuple[int, bytes]]:
    """Each whole line from a place on, with its own; none of a file that is gone by now."""
    with suppress(FileNotFoundError), path.open("rb") as file:  # another instance may have forgotten it
        file.seek(begin)
        for line in file:
            if line.endswith(b"\n"):
                yield begin, line
                begin += len(line)


def parse_line(line: bytes) -> Observation | int | None:
    """The observation that a line is, or None. A number is the place of a line that 2fefe59 took back."""
    with suppress(ValueError, RecursionError):
        match json.loads(line):
            case {"not": int(offset)}:
                return offset
            case {
                "at": str(at),
                "client": str(client),
                "path": str(path),
                "server": str(server),
                **more,
            }:
                digest, modified, log = more.get("digest"), more.get("modified"), more.get("log")
                offer, up, times = more.get("offer"), more.get("up"), more.get("times")
                intent, outcome = more.get("intent"), more.get("outcome")
                match up:
                    case [str(boot), int() | float() as seconds] if 0 <= seconds < _LONGEST_UP_S:
                        up = Uptime(boot, seconds)
                    case _:
                        up = None
                return Observation(
                    server=server,
                    path=path,
                    client=client,
                    at=parse_instant(at),
                    digest=Digest(digest) if isinstance(digest, str) else None,
                    modified=modified if isinstance(modified, int) else None,
                    offer=Digest(offer) if isinstance(offer, str) else None,
                    log=log if isinstance(log, str) else None,
                    up=up,
                    times=times if isinstance(times, int) and 1 <= times < _MOST_TIMES else 1,
                    is_evidence=more.get("isEvidence") is not False,
                    intent=intent if isinstance(intent, str) else None,
                    outcome=Outcome(str(outcome)) if outcome is not None else None,
                )
    return None


BATCHES_MOST_BYTES: Final = 512 * 1024  # of one batch
_FORWARDED: Final = re.compile(r"([0-9a-f]{32}\.[0-9]{1,10}-[0-9a-f]{16})\.([0-9]{12})-[0-9]{12}" + re.escape(SUFFIX))


class Writer(NamedTuple):
    """Whose lines they are: a file of a spool, without its suffix."""

    spool: str  # its identity
    file: str


class ForwardedBatch(NamedTuple):
    """Whole lines of one writer, and where they stand in its file."""

    writer: Writer
    begin: int
    lines: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.lines)


def read_batch(path: Path, writer: Writer, begin: int) -> ForwardedBatch:
    """Return the whole lines of a writer's file from ``begin`` on, as many as a batch may have; none at its end."""
    found = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(begin)
        found = file.read(BATCHES_MOST_BYTES)
    return ForwardedBatch(writer, begin, found[: found.rfind(b"\n") + 1])


def parse_file_name(name: str) -> tuple[str, int]:
    """Return whose lines a file of a spool holds, and at which byte of that writer's own file they begin."""
    found = _FORWARDED.fullmatch(name)
    return (found[1], int(found[2])) if found is not None else (name, 0)
