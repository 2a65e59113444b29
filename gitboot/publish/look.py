"""A target that is only looked at: what publishing would do, for dry runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from gitboot.publish.ended_windows import EndedWindows
from gitboot.publish.list_keys import ListKeys
from gitboot.publish.publisher import Published, would_change
from gitboot.render.parts import AS_IT_WAS, PartFiles
from gitboot.render.tree import File, Files


class Looked:
    """Stands where a `Directory` would; keeps what publishing would have done, and does none of it."""

    def __init__(self, root: Path, *, ledger: str, heir_of: str | None) -> None:
        self._root, self._ledger, self._heir_of = root, ledger, heir_of
        self._servers: dict[str, Files] = {}
        self._shared: Files = {}
        self._parts = AS_IT_WAS
        self.seen = Published(written=(), withdrawn=(), expired=(), unchanged=0)

    @property
    def is_as_left(self) -> bool:
        """Nothing was left there."""
        return True

    def dated(self, path: str, file: File, at: datetime) -> int:  # noqa: ARG002 - as a Directory has it
        """What ``path`` would be dated; what exactly matters to nobody."""
        return int(at.timestamp())

    def holds(self, files: Files) -> bool:  # noqa: ARG002 - as a Directory has it
        """Nothing stands there."""
        return False

    def end_windows(self, at: datetime) -> EndedWindows:  # noqa: ARG002 - as a Directory has it
        """Return that no window ended, because a dry run writes no file."""
        return EndedWindows((), None)

    def update_list(self, keys: ListKeys | None, at: datetime) -> None:
        """Nothing is written."""

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,  # noqa: ARG002 - as a Directory has it
        at: datetime,
        parts: PartFiles,
    ) -> Published:
        """Say what all that was given so far would do."""
        if complete:
            self._servers = {}
        for server, files in servers.items():
            if files is None:
                self._servers.pop(server, None)
            else:
                self._servers[server] = files
        self._shared = self._shared if shared is None else shared
        self._parts = self._parts.then(parts)
        self.seen = would_change(
            self._servers,
            self._shared,
            self._root,
            ledger=self._ledger,
            at=at,
            heir_of=self._heir_of,
            parts=self._parts,
        )
        return self.seen
