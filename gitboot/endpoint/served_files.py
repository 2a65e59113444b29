"""Served files: the published tree as an endpoint reads it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, NamedTuple

from msgspec import structs

from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines, parse_unknown
from gitboot.files import ABSENT, write_atomically
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import MANIFEST, SHARED, STATUS, UNKNOWN, Head, UnknownFormat, parse_head, parse_listing
from gitboot.publish.tree_reader import StopReader, add_stop_condition, stop_folders
from gitboot.render import endpoint_files
from gitboot.render.endpoint_files import (
    TERMS,
    ListedFile,
    PublishedServer,
    ServingTerms,
    parse_shard,
    parse_state,
    shard_path,
    state_path,
)
from gitboot.render.paths import IdentityKind, format_identity
from gitboot.status.conditions import STALE_S, find_remedy
from gitboot.system_clock import ClockState, Uptime, read_uptime

_logger = logging.getLogger(__name__)
REFRESH_S: Final = 1  # how often it is looked at whose tree it is
_NO_TERMS: Final = ServingTerms()
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Signature = tuple[int, int, int]  # inode, nanoseconds since 1970, bytes: whether a file is still the one that was read


class ReadFile(NamedTuple):
    """A file as it was read."""

    file: str
    signature: Signature
    content: bytes


class LocatedServer(NamedTuple):
    """A server's state, and the file that it was read from."""

    file: str
    signature: Signature
    state: PublishedServer


class ServerMoving(Exception):
    """An identity on its way from one server to another: ask again."""


def read_signature(file: str) -> Signature | None:
    """What stands at ``file``; None if nothing does."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class PublishedTree:
    """The tree at ``root``; any number of processes may read one, while another publishes to it.

    An endpoint that an instance has started also reads the ``status`` that the instance leaves in its state directory,
    and goes by the newer one: either disk may be full. It knows the instance's ``ledger``: a tree of another is
    answered from as one whose fetches cannot be recorded.
    """

    def __init__(
        self,
        root: Path,
        clock: Callable[[], datetime],
        *,
        status: Path | None = None,
        ledger: str | None = None,
        checked_clock: CheckedClock | None = None,
        stop_orders: StopReader | None = None,
    ) -> None:
        self.root, self._clock, self._ledger = str(root), clock, ledger
        self._statuses = [str(path) for path in (status, root / STATUS) if path is not None]
        self._parsed: dict[str, tuple[Signature, Any]] = {}  # of what is one for the whole tree
        self.head: Head | None = None
        self.can_answer = False  # whether its format is known, and its instance acts
        self._condition: dict[str, Any] = {}
        self.stop_orders = stop_orders or StopReader(*stop_folders(root, None))  # by which a person has stopped boots
        self.stops_all = False  # whether nobody is to boot from the network, as of the last look
        self.clock = checked_clock or CheckedClock(clock)  # beside the instance's
        self.refresh()

    # What is asked for

    @property
    def is_ready(self) -> bool:
        """Whether there is something to answer from; where there was nothing a moment ago, it is looked for anew."""
        if not self.can_answer:
            self.refresh()
        return self.can_answer

    @property
    def is_foreign(self) -> bool:
        """Whether it is of another instance than the one that started this endpoint."""
        return self._ledger is not None and self.head is not None and self.head.stamp.ledger != self._ledger

    def find_server(self, identity: str) -> LocatedServer | None:
        """The server that is found by this; None where there is none.

        Raises `Moving`, ValueError for damage, and OSError for what cannot be read.
        """
        if (shard := self.read(shard_path(identity))) is None:
            return None
        names = parse_shard(shard.content).get(identity, ())
        for name in names:
            located = self.read_server(name)
            if located is not None and identity in located.state.identities:
                return located
        if names:
            raise ServerMoving
        return None

    def read_server(self, name: str) -> LocatedServer | None:
        """The state of the server of this name. Raises ValueError for what is none."""
        found = self.read(state_path(name))
        return None if found is None else LocatedServer(found.file, found.signature, parse_state(found.content))

    def read_shared_files(self) -> Mapping[str, ListedFile]:
        """The files that are no server's."""
        return self._parse_cached(f"{self.root}/{SHARED}", parse_listing) or {}

    @property
    def terms(self) -> ServingTerms:
        """On which terms boots are given; where they are missing or damaged, nobody gives what is made once."""
        try:
            found: ServingTerms | None = self._parse_cached(f"{self.root}/{TERMS}", endpoint_files.parse_terms)
        except (ValueError, OSError):
            return _NO_TERMS
        return found or _NO_TERMS

    def read(self, path: str, most_bytes: int | None = None) -> ReadFile | None:
        """Return a file of the tree; None: it is absent, or larger. Raises OSError for one that cannot be read."""
        return _read_file(f"{self.root}/{path}", most_bytes)

    # What the instance says of itself

    def refresh(self) -> None:
        """See whose tree it is, and whether it can be read; what is damaged there is answered from as it was before."""
        try:
            self.head = self._parse_cached(f"{self.root}/{MANIFEST}", parse_head)
        except UnknownFormat as error:
            self.head = None
            self._set_condition(False, "UnknownFormat", f"{self.root}/{MANIFEST}: {error}")
        except (ValueError, OSError) as error:
            self._set_condition(False, "Unreadable", f"{self.root}/{MANIFEST}: {error}")
        else:
            if self.head is None:
                self._set_condition(False, "Absent", f"{self.root}: nothing is published there")
            else:
                self._set_condition(True, "Read", f"{self.root}: of {self.head.stamp.commit}")
        instance = self._read_instance_status()
        self.clock.compare(instance.get("clock"))
        conditions = instance.get("conditions", ())
        is_other_ledger = any(
            (each["type"], each["status"], each["reason"]) == ("LedgerNamed", False, "AnotherLedger")
            for each in conditions
        )
        self.can_answer = self.head is not None and not is_other_ledger and not self.terms.is_prepared
        self.stops_all = (stopped := self.stop_orders.current) is not None and stopped.stoppage.everything

    def read_status(self) -> dict[str, Any]:
        """Return the instance's status with its age, and whether the tree can be read."""
        from gitboot.status.instance_status import Status, add_age  # only here: an endpoint starts without it

        self.refresh()
        facts = self._read_instance_status()
        if not facts:
            facts = Status(applied=self.head.stamp.commit if self.head is not None else None).facts()
        facts = add_age(facts, self.clock.silent_s, self.clock.instance_time)
        return {
            **facts,
            "conditions": [*add_stop_condition(facts["conditions"], self.stop_orders.current), self._condition],
        }

    def _read_instance_status(self) -> dict[str, Any]:
        """Return the newest status of the instance; {}: there is none."""
        found: list[dict[str, Any]] = []
        for file in self._statuses:
            with suppress(ValueError, OSError):
                found.append(self._parse_cached(file, _parse_status) or {})
        own = [each for each in found if self._ledger is None or each.get("ledger") in (None, self._ledger)]
        return max(own, key=lambda each: str(each.get("clock", "")), default={})

    def _set_condition(self, status: bool, reason: str, message: str) -> None:
        known = self._condition
        if known.get("message") != message:
            begins = not known and reason == "Absent"  # before the first commit is published, that is no trouble
            (_logger.info if status or begins else _logger.error)("%s", message)
        changed = known["lastTransitionTime"] if known.get("status") == status else format_instant(self._clock())
        facts = {
            "type": "OutputTreeReadable",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": changed,
        }
        facts["remedy"] = None if status else find_remedy("OutputTreeReadable", reason)
        self._condition = facts

    def _parse_cached(self, file: str, parse_file: Callable[[bytes], Any]) -> Any:
        known = self._parsed.get(file)
        if known is not None and known[0] == read_signature(file):
            return known[1]
        if (found := _read_file(file)) is None:
            return None
        value = parse_file(found.content)
        self._parsed[file] = found.signature, value
        return value


def _read_file(file: str, most_bytes: int | None = None) -> ReadFile | None:
    try:
        fd = os.open(file, _READ)
    except (OSError, ValueError) as error:  # a NUL is a ValueError
        if isinstance(error, OSError) and error.errno not in ABSENT:
            raise
        return None
    with open(fd, "rb") as opened:
        found = os.fstat(fd)
        if not S_ISREG(found.st_mode) or (most_bytes is not None and found.st_size > most_bytes):
            return None
        return ReadFile(file, (found.st_ino, found.st_mtime_ns, found.st_size), opened.read())


def _parse_status(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict) or not isinstance(found.get("conditions"), list):
        raise ValueError("not a status")
    return found


def match_documents(tree: PublishedTree, machine: UnknownMachine) -> UnknownMachine | None:
    """The machine, with whose document has it as far as one does; None: a document has its UUID, or all that it says.

    What cannot be told just now counts as known.
    """
    try:
        found = {each: tree.find_server(each) for each in machine.identities}
    except (ServerMoving, ValueError, OSError):
        return None
    by_uuid = machine.uuid is not None and found[format_identity(IdentityKind.UUID, machine.uuid)] is not None
    server = next((each.state.server for each in found.values() if each is not None), None)
    if by_uuid or (server is not None and machine.uuid is None):
        return None
    return structs.replace(machine, server=server)


def read_unknown_machines(tree: PublishedTree) -> UnknownMachines | None:
    """The machines that no document describes, as the instance has left them; None: it has left nothing."""
    found = tree.read(UNKNOWN)
    return parse_unknown(found.content) if found is not None else None


_MAX_OFFSET: Final = timedelta(seconds=30)
_SAVE_INTERVAL: Final = timedelta(minutes=1)
_SAVED_FILE: Final = "clock"


class CheckedClock:
    """Tells by how much a clock is off, by what is seen of another, again and again.

    One that is behind is known at once, by the other's time or by its own, which is kept in ``folder`` from one process
    to the next. One that is ahead cannot be told from an instance that is silent, or a tree that is an old copy, but by
    what was written between two looks. Where the kernel does not vouch for it, it is waited for that, for a while after
    the start: then the instance is silent, and machines are not to wait for it.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        keeping: Callable[[], ClockState] = lambda: ClockState.UNKNOWN,
        folder: Path | None = None,
        uptime: Callable[[], Uptime] = read_uptime,
    ) -> None:
        self._clock, self._keeping, self._uptime = clock, keeping, uptime
        self._saved_file = folder / _SAVED_FILE if folder is not None else None
        self._began_s = uptime().seconds
        self._instance_time: datetime | None = None  # by the other's clock, what was seen last
        self._seen_s = self._began_s  # when this process saw it first
        self._age_s = 0.0  # how old it was then
        self._last_right: datetime | None = None  # by the other's clock, when this clock was last found right
        self._is_compared = False  # whether something was written while this process looked
        self._saved, kept_at = _read_saved_clock(self._saved_file)
        self._newest = self._saved  # the latest instant that it has shown, before this process; None: it was wrong
        is_same = kept_at is not None and kept_at.boot == uptime().boot
        self._newest_s = min(kept_at.seconds, self._began_s) if kept_at and is_same else self._began_s
        self.offset: timedelta | None = None  # by how much this one is ahead; None: by no more than it may be
        self._check_behind()

    @property
    def up(self) -> Uptime:
        """How long the kernel runs by whose clock this goes."""
        return self._uptime()

    @property
    def latest_time(self) -> datetime | None:
        """Return how far time has come at least, whatever this clock shows now; None: nothing tells it.

        The latest time that this clock has shown tells it, if that was not wrong, and the other's clock.
        """
        found = [self._clock() - (self.offset or timedelta())] if self.problem is not None else []
        if self._newest is not None:
            found.append(self._newest + timedelta(seconds=self.up.seconds - self._newest_s))
        return max(found, default=None)

    @property
    def instance_time(self) -> datetime | None:
        """Return the last time that the other wrote, by its clock; None: it has not written it yet."""
        return self._instance_time.astimezone(UTC) if self._instance_time is not None else None

    @property
    def silent_s(self) -> float | None:
        """Return the seconds since the other wrote its time; None: it has not written it yet."""
        return None if self._instance_time is None else self._age_s + self.up.seconds - self._seen_s

    def choose_time(self, at: datetime) -> datetime:
        """Return the time to answer for: ``at``, or while this clock is in doubt, the last time when it was right.

        A clock that was never right since this process began stays at the time that the other wrote first.
        """
        return at if self.problem is None else self._last_right or self._newest or at

    @property
    def problem(self) -> str | None:
        """Why no boot that writes a disk is given by this clock; None: it is right, as far as can be told."""
        if self.offset is not None:
            return f"the clock is {self.offset.total_seconds():+.0f} s off the instance's"
        # Whether it may be ahead, and nothing has shown yet that it is not.
        if self._instance_time is None or self._is_compared or self._clock() - self._instance_time <= _MAX_OFFSET:
            return None
        if self.up.seconds - self._began_s >= STALE_S or self._keeping() is ClockState.SYNCHRONISED:
            return None
        return "the clock is not compared with the instance's yet, which is silent or behind"

    def compare(self, instance_time: object) -> None:
        """Take note of the other's time, as it was written; what is none tells nothing."""
        with suppress(ValueError):
            other, up_s = datetime.fromisoformat(str(instance_time)), self.up.seconds
            is_first, is_new = self._instance_time is None, self._instance_time not in (None, other)
            if is_first or is_new:
                self._instance_time, self._seen_s = other, up_s
            off = self._clock() - other - timedelta(seconds=up_s - self._seen_s)
            if is_first or is_new:
                self._age_s = max(off.total_seconds(), 0) if is_first else 0
            if is_first or abs(off) <= _MAX_OFFSET:
                self._last_right = other
            self._is_compared |= is_new
            if is_new and abs(off) <= _MAX_OFFSET:
                self._newest = None  # whatever it has shown before
            if off < -_MAX_OFFSET or (is_new and off > _MAX_OFFSET):
                self._set_offset(off)
                return
            if not is_new and off > _MAX_OFFSET and self.offset is not None and self.offset > timedelta():
                return  # it is ahead, as it was found to be
        self._check_behind()

    def save(self) -> None:
        """Note, where the next process finds it, how far this clock has come; once a minute, and only if it is right.

        A disk that refuses it loses only that.
        """
        now = self._clock()
        if (
            self._saved_file is None
            or self.problem is not None
            or (self._saved and abs(now - self._saved) < _SAVE_INTERVAL)
        ):
            return
        with suppress(OSError):
            self._saved_file.parent.mkdir(exist_ok=True)
            up = self.up
            write_atomically(self._saved_file, f"{format_instant(now)} {up.seconds} {up.boot}\n".encode(), mode=0o640)
            self._newest, self._newest_s, self._saved = now, up.seconds, now

    def _check_behind(self) -> None:
        behind = self._clock() - self._newest if self._newest is not None else timedelta()
        self._set_offset(behind if behind < -_MAX_OFFSET else None)

    def _set_offset(self, off: timedelta | None) -> None:
        if off is not None and self.offset is None:
            seconds = off.total_seconds()
            _logger.error("the clock is %+.0f s off the instance's: no boot that writes a disk is given", seconds)
        self.offset = off


def _read_saved_clock(path: Path | None) -> tuple[datetime | None, Uptime | None]:
    """The latest instant that a clock had shown, and how long the kernel ran then; None: nobody knows."""
    with suppress(OSError, ValueError):
        words = path.read_text().split() if path is not None else []
        if len(words) == 3:
            return datetime.fromisoformat(words[0]), Uptime(words[2], float(words[1]))
        return (datetime.fromisoformat(words[0]), None) if words else (None, None)
    return None, None
