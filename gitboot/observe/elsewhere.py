"""The fetch log that several hosts share in a PostgreSQL ledger: what an endpoint asks of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.one_time_boots import Given
from gitboot.observe.batches import ForwardedBatch, Writer


class Unrecordable(Exception):
    """A fetch log does not answer in time, or cannot be read."""


class NotTaken(Exception):
    """A batch was not taken, and why."""


def is_lease(giver: str) -> bool:
    """Return whether a tree names the lease of a shared ledger as its giver, and not the identity of a spool."""
    return "/" in giver


class SpoolElsewhere(Protocol):
    """A shared fetch log. Its methods may be called from any thread."""

    @property
    def name(self) -> str:
        """The name that messages give it."""

    @property
    def giver(self) -> str | None:
        """The identity under which one-time boots may be served now; None: they may not."""

    @property
    def forgotten(self) -> int:
        """How many times entries had been deleted at the last question."""

    @property
    def failure(self) -> str | None:
        """Why the last question had no answer."""

    def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """Return how a boot was served, by any host. Raises `Unrecordable`."""

    def reported(self, server: str, token: str) -> bool:
        """Return whether an installer has reported since its boot was served last. Raises `Unrecordable`."""

    def record(self, observation: Observation, giver: str | None, is_given_up: Callable[[], bool]) -> None:
        """Write a fetch durably before it is answered from a tree that names this ``giver``.

        Raises `Unrecordable` if the fetch may not have been written. Writes nothing if the caller has given up before
        the database takes it.
        """

    def close(self) -> None:
        """Close the connections."""

    def ping(self) -> None:
        """Ask a question if the last one failed, or is some seconds old."""

    def take(self, batch: ForwardedBatch, there: Collection[str]) -> int:
        """Take a batch if it is the next one of its writer; return the byte at which the next one has to begin.

        ``there`` are the files that the batch's spool has. Raises `NotTaken`.
        """

    def go_back(self, writer: Writer, place: int) -> None:
        """Let the next batch of a writer begin at ``place``, if more than that was taken of its file.

        Raises `NotTaken`.
        """
