"""A log file as it grows and is rotated: each whole line once, also from one process to the next."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from io import BufferedReader, FileIO
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import Final, NamedTuple, Self

from gitboot.errors import UsageError
from gitboot.files import locked, write_whole

_LONGEST_LINE_BYTES: Final = 256 * 1024  # of what is longer, the pieces count as lines
_MARK_BYTES: Final = 1024
_PLACES: Final = 64  # rotated files that are known again
_AT_ONCE: Final = 1000  # lines, until it is remembered that they were read
_COMPRESSED: Final = (".gz", ".xz", ".bz2", ".zst")


class _Place(NamedTuple):
    """How far a file was read, and what stood right before: it tells a file from one that took its place."""

    offset: int
    mark: str  # sha256


class _Opened:
    """A file that is read; it stays open, so that it can be read to its end though it is deleted."""

    def __init__(self, handle: FileIO) -> None:
        self.handle = handle
        self.offset = 0
        self._seen = (-1, -1)

    def has_changed(self) -> bool:
        """Whether it was written to since this was asked for the last time."""
        before, self._seen = self._seen, (self.stat.st_size, self.stat.st_mtime_ns)
        return self._seen != before

    def lines(self) -> Iterator[bytes]:
        """The whole lines from the offset on, which each moves as soon as the next is asked for."""
        self.handle.seek(self.offset)
        reader = BufferedReader(self.handle)
        try:
            while line := reader.readline(_LONGEST_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < _LONGEST_LINE_BYTES:
                    return  # its end is still to be written
                yield line
                self.offset += len(line)
        finally:
            reader.detach()  # a buffer would outlive what is truncated

    @property
    def stat(self) -> os.stat_result:
        return os.fstat(self.handle.fileno())

    @property
    def place(self) -> _Place:
        return _Place(self.offset, self._mark(self.offset))

    def holds(self, place: _Place) -> bool:
        """Whether this is the file that was read so far, or a copy of it."""
        return place.offset <= self.stat.st_size and place.mark == self._mark(place.offset)

    def _mark(self, offset: int) -> str:
        start = max(0, offset - _MARK_BYTES)
        return sha256(os.pread(self.handle.fileno(), offset - start, start)).hexdigest()


class LogFile:
    """The log at ``path``, with what it was rotated to; the folder ``memory`` holds how far it was read.

    A rotated file lies beside the log, under a name made from the log's, and is not compressed. It may have been
    renamed, or copied and the log truncated. The first time, only the log itself is read. A log belongs to one
    process at a time: LockedByAnother.
    """

    def __init__(self, path: Path, memory: Path) -> None:
        self._path = path.absolute()
        name = f"log-{sha256(os.fsencode(self._path)).hexdigest()[:16]}"
        self._memory, self._lock = memory / f"{name}.json", memory / f"{name}.lock"
        # As logrotate names them: gitboot.log.1, gitboot.log-20261121; and Caddy: gitboot-2026-11-21T02-34-18.000.log
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        self._rotated = re.compile(rf"{stem}{suffix}[.-].+|{stem}-[0-9].*{suffix}")
        self._stack = ExitStack()
        self._opened: dict[int, _Opened] = {}  # by inode
        self._sizes: dict[int, int] | None = None  # by inode, at the last look; None: this is the first
        self._places: list[_Place] = []  # how far each file was read, whatever its name is now; the last at the end
        self._since_ns: int | None = None  # what was modified before it has been read; None: nothing was, ever

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._lock, f"{self._path} is read into {self._memory.parent}"))
            except OSError as error:
                raise UsageError(f"{self._lock}: {error.strerror}") from error
            self._recall()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def lines(self) -> Generator[bytes, None, None]:
        """The lines that were added since the last time, those of the oldest file first.

        A line counts as read when the next one is asked for; close what is not read to its end. Raises UsageError
        for what cannot be read.
        """
        try:
            since_ns = self._open()
            for inode, file in sorted(self._opened.items(), key=lambda each: each[1].stat.st_mtime_ns):
                if file.has_changed():
                    yield from self._added(file)
                if file.stat.st_nlink == 0:
                    self._opened.pop(inode).handle.close()
            if since_ns != self._since_ns:
                self._since_ns = since_ns
                self._write()
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read to its end: {error}") from error

    def _open(self) -> int | None:
        """Open what was modified since the last time; return what time everything is read up to then."""
        found = list(self._files())
        since_ns = max((stat.st_mtime_ns for _, stat in found), default=self._since_ns)
        for path, stat in found:
            is_log = path == self._path
            if stat.st_ino in self._opened or not (is_log or self._is_new(stat)):
                continue
            if not is_log and self._is_growing(stat):
                since_ns = min(since_ns or 0, stat.st_mtime_ns)
                continue
            with suppress(FileNotFoundError):  # it has another name by now
                file = _Opened(self._stack.enter_context(path.open("rb", buffering=0)))
                self._opened[file.stat.st_ino] = file
        self._sizes = {stat.st_ino: stat.st_size for _, stat in found}
        return since_ns

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The log and its rotated files."""
        for path in self._path.parent.iterdir():
            if path == self._path or (self._rotated.fullmatch(path.name) and path.suffix not in _COMPRESSED):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    if S_ISREG(stat.st_mode):
                        yield path, stat

    def _is_new(self, stat: os.stat_result) -> bool:
        return self._since_ns is not None and stat.st_mtime_ns >= self._since_ns

    def _is_growing(self, stat: os.stat_result) -> bool:
        """Whether it may be a copy that is being made: it cannot be known again before it is whole."""
        return self._sizes is not None and self._sizes.get(stat.st_ino) != stat.st_size

    def _added(self, file: _Opened) -> Iterator[bytes]:
        """The lines beyond every place that is known in this file: it may have been truncated, or be a copy."""
        known = max((place for place in self._places if file.holds(place)), default=None)
        file.offset = known.offset if known else 0
        try:
            for number, line in enumerate(file.lines(), 1):
                yield line
                if number % _AT_ONCE == 0:
                    known = self._remember(file, known)
        finally:
            self._remember(file, known)

    def _remember(self, file: _Opened, instead_of: _Place | None) -> _Place:
        place = file.place
        if place.offset and place != instead_of:
            others = [each for each in self._places if each != instead_of]
            self._places = [*others, place][-_PLACES:]
            self._write()
        return place

    def _recall(self) -> None:
        try:
            document = json.loads(self._memory.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            raise UsageError(f"{self._memory}: {error}; without it the log is read anew") from error
        self._since_ns = document["since"]
        self._places = [_Place(offset, mark) for offset, mark in document["places"]]

    def _write(self) -> None:
        document = {"log": str(self._path), "since": self._since_ns, "places": self._places}
        write_whole(self._memory, json.dumps(document).encode())
