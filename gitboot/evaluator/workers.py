"""Worker processes that parse files and decide servers at the same time.

Each worker is a fork of the evaluator process, which has one thread, and ends with that process. A worker may use the
rest of the commit's processor time, and its share of the memory. If a worker ends early, the evaluator process does
the rest of its work within its own limits. So the number of workers and their failures do not change an answer.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from gitboot.child_processes import Buffer, ProcessLimits, encode, end_with, framed, share_of_limits, take_off_limits
from gitboot.evaluator.cache import encode_decided, encode_servers
from gitboot.jsonio import decoder
from gitboot.load.blobs import ParsedBlob, read_blob
from gitboot.load.snapshot import BlobId, Snapshot
from gitboot.resolve.fleet_decisions import DecidedServer

T = TypeVar("T")

MOST: Final = 8
_WORTH: Final = 500  # files or servers; fewer take less time than the start of a process
BATCH: Final = 64  # files or servers in one message of a worker
_PIECE: Final = 2**20  # bytes


def processors() -> int:
    """Return the default number of workers."""
    return min(len(os.sched_getaffinity(0)), MOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forks:
    """``number`` worker processes. ``seen`` is called with the number of files that they have read so far."""

    number: int = 1
    seen: Callable[[int], None] = lambda _: None

    def parse(self, snapshot: Snapshot, wanted: Sequence[tuple[BlobId, str]]) -> dict[BlobId, bytes]:
        """Return the encoded documents of the files that have nothing but valid Server documents.

        ``wanted``: blobs with their paths. This process reads files that are left out.
        """
        if self.number < 2:
            return {}
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            self.seen(done)

        found = self._shared(wanted, lambda each: _servers_in(read_blob(snapshot, *each)), count)
        return {blob: row for (blob, _), row in zip(wanted, found, strict=True) if row is not None}

    def decide(self, one: Callable[[str], DecidedServer], names: Sequence[str]) -> list[bytes]:
        """Return what is decided for each server as an encoded `DecidedRow`."""
        found = self._shared(names, lambda name: encode_decided(one(name)))
        return [encode_decided(one(name)) if row is None else row for name, row in zip(names, found, strict=True)]

    def _shared(
        self, items: Sequence[T], work: Callable[[T], bytes | None], count: Callable[[int], None] = lambda _: None
    ) -> list[bytes | None]:
        """Return the result of ``work`` for each item. None: this process has to do it."""
        if self.number < 2 or len(items) < _WORTH or threading.active_count() > 1:
            return [None] * len(items)
        found: list[bytes | None] = [None] * len(items)
        work(items[0])  # fills what is created at first use, so that each worker gets a copy
        limits = share_of_limits(self.number)
        workers = [_begin(limits, items[number :: self.number], work) for number in range(self.number)]
        try:
            for number, at, said in _heard([worker.pipe for worker in workers]):
                first = number + at * self.number
                found[first : first + len(said) * self.number : self.number] = said
                count(len(said))
        finally:
            take_off_limits(sum(worker.end() for worker in workers))
        return found


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process, and the pipe on which it sends its results."""

    process: int
    pipe: int

    def end(self) -> float:
        """End the worker, and return its processor time in seconds."""
        os.close(self.pipe)
        os.kill(self.process, signal.SIGKILL)  # after an error, the worker may still run
        _, _, usage = os.wait4(self.process, 0)
        return usage.ru_utime + usage.ru_stime


def _begin(limits: ProcessLimits, items: Sequence[T], work: Callable[[T], bytes | None]) -> _Worker:
    parent = os.getpid()
    reading, writing = os.pipe()
    if (process := os.fork()) == 0:
        _work(parent, limits, items, work, writing)
    os.close(writing)
    return _Worker(process, reading)


def _work(
    parent: int, limits: ProcessLimits, items: Sequence[T], work: Callable[[T], bytes | None], writing: int
) -> NoReturn:
    """Do the work of a worker. On any error, end: the parent does the rest."""
    with suppress(BaseException):
        end_with(parent)
        limits.hold()
        for first in range(0, len(items), BATCH):
            batch = [work(item) for item in items[first : first + BATCH]]
            rest = memoryview(framed(encode((first, batch))))
            while rest:
                rest = rest[os.write(writing, rest) :]
    os._exit(0)  # without flushing buffers that the parent has, too


def _heard(pipes: Sequence[int]) -> Iterator[tuple[int, int, list[bytes | None]]]:
    """Yield results until all workers have ended: the worker's number, the index of its first item, the results."""
    poll, buffers = select.poll(), {pipe: Buffer() for pipe in pipes}
    numbers = {pipe: number for number, pipe in enumerate(pipes)}
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    while buffers:
        for pipe, _ in poll.poll():
            data = os.read(pipe, _PIECE)
            for frame in buffers[pipe].add(data):
                yield (numbers[pipe], *_word(frame))
            if not data:
                poll.unregister(pipe)
                del buffers[pipe]


def _servers_in(said: ParsedBlob) -> bytes | None:
    return encode_servers(said.resources) if said.has_only_servers else None


_word: Final[Callable[[bytes], tuple[int, list[bytes | None]]]] = decoder(tuple[int, list[bytes | None]])
