"""Results of one evaluation on disk, until the instance has accepted or rejected the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

import msgspec

from gitboot.child_processes import encode, framed, read_frame
from gitboot.disk_cache import DiskCache
from gitboot.evaluator.cache import is_result
from gitboot.evaluator.protocol import NewResults, ResultKind
from gitboot.jsonio import decoder

MAX_BYTES: Final = 2**29  # of one evaluation; the rest is not stored


class SpooledResults:
    """Results in a temporary file without a name, which the system deletes when this process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._is_full = False

    def add(self, kind: ResultKind, values: Mapping[bytes, bytes]) -> None:
        """Append results. After an error of the disk or more than MAX_BYTES, ignore all further results."""
        if self._is_full:
            return
        try:
            if self._file is None:
                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - `store` and `close` close it
            data = framed(encode(NewResults(kind, dict(values))))
            self._is_full = self._file.tell() + len(data) > MAX_BYTES
            if not self._is_full:
                self._file.write(data)
        except OSError:
            self._is_full = True

    def store(self, cache: DiskCache, is_over: Callable[[], bool] = lambda: False) -> None:
        """Insert the valid results into a cache, and close the file. Stop early if ``is_over`` returns True."""
        if (file := self._file) is None:
            return
        with file, suppress(OSError, msgspec.MsgspecError):
            file.seek(0)
            while not is_over() and (frame := read_frame(file)) is not None:
                results = _decode(frame)
                values = {key: value for key, value in results.values.items() if is_result(results.kind, value)}
                cache.insert_many(results.kind, values)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


_decode: Final[Callable[[bytes], NewResults]] = decoder(NewResults)
