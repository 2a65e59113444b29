"""A spool that several hosts share: by it each of them gives what is made once, into it each empties its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gitboot.observe.batches import ForwardedBatch
from gitboot.observe.given import Given
from gitboot.observe.observation import Observation


class Unrecordable(Exception):
    """What a spool knows is unavailable: too late, or not to be read."""


class NotTaken(Exception):
    """What was sent was not taken, and why."""


class SpoolElsewhere(Protocol):
    """The spool of an instance, which is not a folder of this host; from any thread."""

    @property
    def name(self) -> str:
        """As people are told it."""

    @property
    def giver(self) -> str | None:
        """By which identity what is made once may be given now; None: by none."""

    @property
    def forgotten(self) -> int:
        """How often it had forgotten something by then."""

    @property
    def soles(self) -> Mapping[str, str]:
        """The sites whose boots one spool gives alone, as they were then, and which that is."""

    @property
    def failure(self) -> str | None:
        """Why no question was answered the last time."""

    def given(self, server: str, offer: str, report: str | None, timeout_s: float) -> Given | None:
        """How a boot was given, by whichever host. Raises `Unrecordable`."""

    def reported(self, server: str, token: str, timeout_s: float) -> bool:
        """Whether an installer has reported since its boot was given last. Raises `Unrecordable`."""

    def record(self, observation: Observation, giver: str | None, timeout_s: float) -> None:
        """Record what is about to be given, durably, by a tree that names this ``giver``.

        Raises `Unrecordable` where it may not stand there.
        """

    def close(self) -> None:
        """Hold no connection any more."""

    def ping(self, timeout_s: float) -> None:
        """Put a question where it is not known whether one would be answered."""

    def take(self, batch: ForwardedBatch, there: Collection[str]) -> int:
        """Take a batch in, if it is the next of its writer; the place from which the next has to be.

        ``there`` are the files that its spool has. Raises `NotTaken`.
        """

    def leave(self, spool: str, name: str, content: bytes) -> None:
        """Leave there what an endpoint has left in the spool of this identity; empty: no more. Raises `NotTaken`."""
