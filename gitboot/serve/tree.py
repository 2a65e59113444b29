"""Answers from a tree that another process publishes: read as far as is asked for, followed as it changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from gitboot.errors import PublishError
from gitboot.publish.disk import Disk
from gitboot.publish.manifest import MANIFEST, Listed, Manifest
from gitboot.publish.tree import read_manifest
from gitboot.render.answers import Answers
from gitboot.render.paths import is_immutable
from gitboot.render.tree import File
from gitboot.serve.ops import NEXT, PLANS, Planned, read_next, read_plan
from gitboot.status import Condition, Status

_logger = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_MOST_HELD_BYTES: Final = 1024 * 1024  # what is larger is an artifact, which the endpoint reads from the disk


class PublishedTree:
    """The answers that the tree at ``root`` gives, from the first `refresh` on that finds a manifest.

    Any number of processes may follow one tree. What cannot be read is a condition; the answers before it go on.
    """

    def __init__(self, root: Path, clock: Callable[[], datetime]) -> None:
        self._root, self._clock = root, clock
        self._head: bytes | None = None
        self._held: Mapping[Listed, File] = {}
        self._planned: Mapping[str, Planned] = {}  # by path
        self.answers: Answers | None = None
        self.status = Status()

    def follow(self, wait: Callable[[float], bool]) -> None:
        """Refresh again and again, until ``wait``, given seconds, says that it is to end."""
        while not wait(_POLL_S):
            self.refresh()

    def refresh(self) -> None:
        """Take in what was published since the last time."""
        try:
            head = _read(self._root, MANIFEST)
            if head != self._head and (manifest := read_manifest(self._root)) is not None:
                self._take(manifest)
                self._head = head
        except (PublishError, ValueError) as error:
            self._note(False, "Unreadable", str(error))

    def _take(self, manifest: Manifest) -> None:
        listed = manifest.files
        files = _Files(self._root, listed, self._held)
        planned = {path: each for path in listed if path.startswith(PLANS) and (each := self._plan(path, files))}
        turns = {
            name: each for path in listed if path.startswith(NEXT) for name, each in read_next(path, files).items()
        }
        self._held, self._planned = files.held, planned
        self.answers = Answers(
            files=files,
            turns=turns,
            entries={path: entry for each in planned.values() for path, entry in each.entries.items()},
            servers={each.summary["server"]: each.summary for each in planned.values()},
        )
        self.status = replace(
            self.status,
            applied=manifest.stamp.commit,
            planned_at=self._clock(),
            next_transition=min((each[0].at for each in turns.values()), default=None),
            phases=Counter(each.summary["phase"] or "NoPlan" for each in planned.values()),
        )
        self._note(True, "Read", f"{self._root}: {len(listed)} files of {manifest.stamp.commit}")

    def _plan(self, path: str, files: _Files) -> Planned | None:
        known, file = self._planned.get(path), files.get(path)
        return known if known is not None and known.file is file else read_plan(path, files)

    def _note(self, status: bool, reason: str, message: str) -> None:
        known = next(iter(self.status.conditions), None)
        if known is None or known.message != message:
            (_logger.info if status else _logger.error)("%s", message)
        since = known.since if known is not None and known.status == status else self._clock()
        condition = Condition(type="TreeRead", status=status, reason=reason, message=message, since=since)
        self.status = replace(self.status, conditions=(condition,))


class _Files(Mapping[str, File]):
    """The files that a manifest lists, each read when it is first asked for."""

    def __init__(self, root: Path, listed: Mapping[str, Listed], held: Mapping[Listed, File]) -> None:
        self._root = root
        self.listed = listed
        held = dict(held)  # requests go on filling it
        self.held = {each: held[each] for each in set(listed.values()) & held.keys()}

    def __getitem__(self, path: str) -> File:
        listed = self.listed[path]
        if (file := self.held.get(listed)) is not None:
            return file
        content = _read(self._root, path) if listed.size <= _MOST_HELD_BYTES else None
        if content is None:  # an entry was withdrawn since
            raise KeyError(path)
        file = File(content, listed.content_type)
        if file.sha256 == listed.sha256:
            self.held[listed] = file
        elif is_immutable(path):
            raise KeyError(path)
        return file  # an entry that is not what is listed is newer: it is right, but not for long

    def __contains__(self, path: object) -> bool:
        return path in self.listed

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)


def _read(root: Path, path: str) -> bytes | None:
    if not root.is_dir():
        return None
    with closing(Disk(root)) as disk:
        return disk.read(path)
