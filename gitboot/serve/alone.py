"""An endpoint that gives a site's boots alone, whether it reaches its instance or not.

The instance lets it, once, and gives none of that site's boots itself from then on, nor does any other endpoint of it.
What was given before is asked for a moment later, when whoever was at it has ended, and stays here. It ends when this
endpoint is started without the option and has sent all that it gave.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gitboot.canonical import canonical
from gitboot.files import write_whole
from gitboot.observe.given import Given, GivenBoots
from gitboot.observe.observation import Observation
from gitboot.observe.spool import aside, identity
from gitboot.serve.recording import Recording

_logger = logging.getLogger(__name__)
SETTLED_S: Final = 3.0  # after which nobody gives any more what was asked for before: several deadlines
_ASKED_EVERY_S: Final = 30.0  # whether it still is granted
_GRANT: Final = "sole"
_LEFT: Final = "sole.left"
_BEFORE: Final = "before"


class Grant(NamedTuple):
    """What lets an endpoint give alone."""

    site: str
    giver: str  # of the instance's trees
    forgotten: int  # how often its spool had forgotten something by then, which a tree has to know


class Claimed(NamedTuple):
    """What the instance answers to who wants to give alone."""

    giver: str
    forgotten: int
    given: bytes  # what its spool has of boots, a line each


class Granting(Protocol):
    """The instance's spool, which says who may."""

    def claim(self, site: str, spool: str) -> Claimed | None:
        """Claim a site for the spool of this identity; None: it is another's. Raises `NotTaken`."""

    def release(self, site: str, spool: str) -> None:
        """Claim it no more. Raises `NotTaken`."""


class Alone:
    """The grant, as it stands in the spool of this host; asked for by one thread, read by all."""

    def __init__(self, folder: Path, instance: Granting, wanted: str | None) -> None:
        self._folder, self._instance, self._wanted = folder, instance, wanted
        self._asked_s = -math.inf
        self._claimed_s: float | None = None  # since when the instance has given it, by this process
        self._left_s: float | None = None  # since when it is given alone no more, likewise
        self._was_refused = False
        self.before = GivenBoots(aside(folder) / _BEFORE)

    @property
    def grant(self) -> Grant | None:
        """What is granted; None: nothing."""
        return _read(aside(self._folder) / _GRANT)

    @property
    def keeps(self) -> bool:
        """Whether what was given has to stay here, whoever has it besides."""
        return self.grant is not None

    def ask(self) -> None:
        """Have what is granted be what is wanted, once all that was recorded is sent; not more often than is of use.

        Raises OSError, and `NotTaken` where the instance does not answer.
        """
        grant, folder = self.grant, aside(self._folder)
        is_settled = (grant.site if grant is not None else None) == self._wanted and not (folder / _LEFT).exists()
        if time.monotonic() - self._asked_s < (_ASKED_EVERY_S if is_settled else SETTLED_S / 2):
            return
        self._asked_s = time.monotonic()
        if grant is not None and grant.site != self._wanted:
            (folder / _GRANT).rename(folder / _LEFT)
        if (left := _read(folder / _LEFT)) is not None:
            self._release(left)
        elif self._wanted is not None:
            self._claim(self._wanted, grant)

    def _release(self, left: Grant) -> None:
        """Let others give, once nobody here does any more and what they gave was sent: before this, in its round."""
        self._left_s = self._left_s if self._left_s is not None else time.monotonic()
        if time.monotonic() - self._left_s >= SETTLED_S:
            self._instance.release(left.site, identity(self._folder))
            (aside(self._folder) / _LEFT).unlink()
            self._left_s = None

    def _claim(self, site: str, grant: Grant | None) -> None:
        found = self._instance.claim(site, identity(self._folder))
        if found is None:
            if not self._was_refused:
                _logger.error("the boots of site %s are given by another endpoint alone: not by this one", site)
            self._was_refused = True
            (aside(self._folder) / _GRANT).unlink(missing_ok=True)
            return
        self._claimed_s = self._claimed_s if self._claimed_s is not None else time.monotonic()
        is_settled = time.monotonic() - self._claimed_s >= SETTLED_S
        if is_settled and (grant is None or grant.giver != found.giver):
            self._keep(Grant(site, found.giver, found.forgotten), found.given)

    def _keep(self, grant: Grant, given: bytes) -> None:
        folder = aside(self._folder)
        (folder / _BEFORE).mkdir(parents=True, exist_ok=True)
        write_whole(folder / _BEFORE / "given.jsonl", given, mode=0o640)
        write_whole(folder / _GRANT, canonical(grant._asdict()) + b"\n", mode=0o640)


def _read(path: Path) -> Grant | None:
    with suppress(FileNotFoundError, ValueError):
        match json.loads(path.read_bytes()):
            case {"site": str(site), "giver": str(giver), "forgotten": int(forgotten)}:
                return Grant(site, giver, forgotten)
    return None


class SoleRecording:
    """Records as `Recording` does what is given alone: on this host, with what was given by others before."""

    soles: Mapping[str, str] = {}

    def __init__(self, own: Recording, alone: Alone, grant: Grant) -> None:
        self._own, self._alone = own, alone
        self.giver, self.forgotten = grant.giver, grant.forgotten

    def of(self, site: str | None) -> SoleRecording:  # noqa: ARG002 - it is of one
        return self

    @property
    def failure(self) -> str | None:
        return self._own.failure

    async def record(self, observation: Observation, giver: str | None = None) -> bool:
        """Whether it stands recorded in time."""
        return await self._own.record(observation, giver)

    async def given(self, server: str, offer: str, report: str | None) -> Given | None:
        """How a boot was given, by this endpoint or by whom before. Raises `Unrecordable`."""
        before = await asyncio.to_thread(self._alone.before.find, server, offer, report)
        return await self._own.given(server, offer, report) or before

    async def reported(self, server: str, token: str) -> bool:
        """Whether an installer has reported since its boot was given last. Raises `Unrecordable`."""
        before = await asyncio.to_thread(self._alone.before.reported, server, token)
        return await self._own.reported(server, token) or before

    async def settle(self) -> None:
        """Find out whether anything can be recorded."""
        with suppress(OSError):
            await self._own.settle()
