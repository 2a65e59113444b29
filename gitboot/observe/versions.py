"""Which version of each path a mirror sent last: one that sends an older one after it has gone backwards."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from gitboot.files import write_whole
from gitboot.jsonio import canonical
from gitboot.observe.observation import Observation


class SentVersions:
    """The newest version of each path in one mirror's log; the folder ``memory`` holds them from one run to the next.

    What is lost of it costs no more than a word: a path is known again from its next line on.
    """

    def __init__(self, log: Path, memory: Path) -> None:
        self._memory = memory / f"sent-{sha256(os.fsencode(log.absolute())).hexdigest()[:16]}.json"
        self._newest: dict[str, int] = {}
        self._has_changed = False
        with suppress(OSError, ValueError):
            self._newest = {
                str(path): int(modified) for path, modified in json.loads(self._memory.read_bytes()).items()
            }

    def goes_back(self, observation: Observation) -> bool:
        """Whether a newer version of the same path was sent before."""
        modified, newest = observation.modified or 0, self._newest.get(observation.path, 0)
        if modified > newest:
            self._newest[observation.path] = modified
            self._has_changed = True
        return modified < newest

    def write(self) -> None:
        """Remember what was seen."""
        if self._has_changed:
            self._has_changed = False
            with suppress(OSError):
                write_whole(self._memory, canonical(self._newest))
