"""Where an instance reads what endpoints have recorded: a folder of this host, or beside its ledger in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gitboot.fetchlog import spool
from gitboot.fetchlog.spool import Taken
from gitboot.ledger.leader_lease import Lease
from gitboot.ledger.shared_fetchlog import RecordedFetches


class ReadSpool(Protocol):
    """What endpoints have recorded. Each raises OSError or `LedgerError` where that cannot be read."""

    @property
    def name(self) -> str:
        """As people are told it."""

    @property
    def giver(self) -> str | None:
        """Its identity, by which what is made once may be given."""

    def take(self, taken: Mapping[str, int]) -> Taken:
        """What is there beyond ``taken``."""

    def forgotten_next(self, taken: Mapping[str, int]) -> int:
        """How often something of it will have been dropped, which the next tree is to know."""

    def forget(self, taken: Mapping[str, int], times: int) -> None:
        """Drop what is known to a tree that stands published, and knows how often that was done."""


class FolderSpool:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)

    @property
    def giver(self) -> str | None:
        return spool.identity(self._folder)

    def take(self, taken: Mapping[str, int]) -> Taken:
        return spool.take(self._folder, taken)

    def forgotten_next(self, taken: Mapping[str, int]) -> int:
        return spool.forgotten_next(self._folder, taken)

    def forget(self, taken: Mapping[str, int], times: int) -> None:
        spool.forget(self._folder, taken, times)


class SharedSpool:
    """What the hosts have recorded that share a ledger, for the one that has the lease."""

    def __init__(self, fetches: RecordedFetches, lease: Lease) -> None:
        self._fetches, self._lease = fetches, lease
        self.name = fetches.name

    @property
    def giver(self) -> str | None:
        return str(self._lease)

    def take(self, taken: Mapping[str, int]) -> Taken:
        return self._fetches.read(taken)

    def forgotten_next(self, taken: Mapping[str, int]) -> int:
        return self._fetches.forgotten_next(taken)

    def forget(self, taken: Mapping[str, int], times: int) -> None:
        self._fetches.forget(taken, times, self._lease)
