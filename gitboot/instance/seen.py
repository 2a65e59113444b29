"""The machines that no document describes, as an instance keeps them in its state directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from gitboot import files
from gitboot.endpoint.served_files import PublishedTree, without_document
from gitboot.errors import LockedByAnother, UsageError
from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines, parse_unknown, render_unknown
from gitboot.observe.asked import unknown_left
from gitboot.status.events_from_status import Event

UNKNOWN: Final = "unknown.json"
_LOCK: Final = "unknown.lock"
_MOST_TOLD: Final = 5


class KeptUnknown:
    """Takes in what endpoints and mirrors have noted, and drops what a document describes by now."""

    def __init__(self, state: Path, spool: Path | None, output: Path, clock: Callable[[], datetime]) -> None:
        self._state, self._spool, self._output, self._clock = state, spool, output, clock
        self._applied: str | None = None  # the commit by which machines were looked for last

    def take_in(self, applied: str | None, at: datetime) -> tuple[bytes, tuple[Event, ...]] | None:
        """The table and what is to be told of it; None: it is as it was. A disk that refuses it loses nothing."""
        left = list(unknown_left(self._spool)) if self._spool is not None else []
        if not left and (applied == self._applied or not (self._state / UNKNOWN).exists()):
            return None
        with suppress(OSError, LockedByAnother), files.locked(self._state / _LOCK, f"{self._state} is in use"):
            table = read_unknown(self._state)
            for machine in (each for one in left for each in one.table.machines):
                table.add(machine)
            table.unkept += sum(one.table.unkept for one in left)
            table.expire(at)
            known = {name for each in read_unknown(self._state).machines for name in each.identities}
            tree = PublishedTree(self._output, self._clock)
            kept = [found for each in table.machines if (found := without_document(tree, each)) is not None]
            content = render_unknown(UnknownMachines(kept, table.unkept))
            files.write_whole(self._state / UNKNOWN, content)
            for one in left:
                one.path.unlink(missing_ok=True)
            self._applied = applied
            return content, tuple(_told([each for each in kept if known.isdisjoint(each.identities)], at))
        return None


def _told(new: list[UnknownMachine], at: datetime) -> Iterator[Event]:
    for each in new[:_MOST_TOLD]:
        message = f"{', '.join(each.identities)} asked for a boot from {each.client}, and no document describes it"
        yield Event(at=at, type="UnknownMachine", message=message, facts=replace(each, inventory=None).facts())
    if len(new) > _MOST_TOLD:
        more = len(new) - _MOST_TOLD
        message = f"{more} more asked for a boot, and no document describes them: gitboot unknown-machines"
        yield Event(at=at, type="UnknownMachine", message=message, facts={"more": len(new) - _MOST_TOLD})


def read_unknown(state: Path) -> UnknownMachines:
    """What an instance keeps; nothing where it has seen none. Raises `UsageError` where that cannot be read."""
    try:
        return parse_unknown((state / UNKNOWN).read_bytes())
    except FileNotFoundError:
        return UnknownMachines()
    except OSError as error:
        raise UsageError(f"{state / UNKNOWN} cannot be read: {error.strerror}") from None


def forget_unknown(state: Path) -> None:
    """Begin the list anew; raises `UsageError` where it cannot be written."""
    try:
        with files.locked(state / _LOCK, f"{state} is in use"):
            files.write_whole(state / UNKNOWN, render_unknown(UnknownMachines()))
    except OSError as error:
        raise UsageError(f"{state / UNKNOWN} cannot be written: {error.strerror}") from None
