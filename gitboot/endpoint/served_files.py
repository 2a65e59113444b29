"""Served files: read the output tree, and compare this host's clock with the instance's clock."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Final, NamedTuple

from msgspec import structs

from gitboot.fetchlog.log_entries import parse_instant
from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines, parse_unknown_machines
from gitboot.files import ABSENT, write_atomically
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import MANIFEST, SHARED, STATUS, UNKNOWN, Head, UnknownFormat, parse_head, parse_listing
from gitboot.publish.tree_reader import StopReader, add_stop_condition, list_stop_folders
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
REFRESH_S: Final = 1  # the time between two reads of the manifest and the status
_NO_TERMS: Final = ServingTerms()
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Signature = tuple[int, int, int]  # inode, mtime in ns and size in bytes, which show whether a file has changed


class FileContent(NamedTuple):
    """The content of a file, and the file's signature at the time when gitboot read the file."""

    file: str
    signature: Signature
    content: bytes


class LocatedServer(NamedTuple):
    """A server's state, and the file from which gitboot read this state."""

    file: str
    signature: Signature
    state: PublishedServer


class ServerMoving(Exception):
    """The error for an identity, such as a MAC address, that is moving to another server. The caller must try again."""


def read_signature(file: str) -> Signature | None:
    """Return the signature of a file or folder, or None if gitboot cannot read the file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class PublishedTree:
    """The output tree at ``root``. Several processes may read the tree while another process publishes to it.

    If an instance has started the endpoint, the endpoint also reads the ``status`` file in the state directory of the
    instance. The endpoint uses the newer of the two statuses, because one of the two disks may be full and its status
    outdated. If the tree belongs to another ``ledger``, the endpoint withholds all boots whose fetches must be
    recorded.
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
        self._parsed: dict[str, tuple[Signature, Any]] = {}  # the parsed files for the whole tree, by path
        self.head: Head | None = None
        self.can_serve = False  # whether gitboot supports the format of the tree, and the instance is active
        self._condition: dict[str, Any] = {}
        # The orders by which operators have stopped boots.
        self.stop_orders = stop_orders or StopReader(*list_stop_folders(root, None))
        self.stops_all = False  # whether an operator has stopped all network boots, as of the last refresh
        # this host's clock, which gitboot compares with the clock of the instance
        self.clock = checked_clock or CheckedClock(clock)
        self.refresh()

    # Lookups

    @property
    def is_ready(self) -> bool:
        """Return whether the endpoint can serve the tree. If the last refresh failed, refresh first."""
        if not self.can_serve:
            self.refresh()
        return self.can_serve

    @property
    def belongs_to_other_instance(self) -> bool:
        """Return whether the output tree belongs to an instance other than the one that started this endpoint."""
        return self._ledger is not None and self.head is not None and self.head.origin.ledger != self._ledger

    def find_server(self, identity: str) -> LocatedServer | None:
        """Return the server with this identity, or None if there is no such server.

        Raises `ServerMoving` while the identity moves to another server.

        Raises ValueError if a file is damaged.

        Raises OSError if gitboot cannot read a file.
        """
        if (shard := self.read(shard_path(identity))) is None:
            return None
        names = parse_shard(shard.content).get(identity, ())
        for located in map(self.read_server, names):
            if located is not None and identity in located.state.identities:
                return located
        if names:
            raise ServerMoving
        return None

    def read_server(self, name: str) -> LocatedServer | None:
        """Return the state of a server, or None if there is no such server.

        Raises ValueError if the file is damaged.
        """
        found = self.read(state_path(name))
        return None if found is None else LocatedServer(found.file, found.signature, parse_state(found.content))

    def read_shared_files(self) -> Mapping[str, ListedFile]:
        """Return the list of files that do not belong to a server."""
        return self._parse_cached_file(f"{self.root}/{SHARED}", parse_listing) or {}

    @property
    def terms(self) -> ServingTerms:
        """The conditions under which endpoints serve one-time boots.

        If the file with these conditions is missing or damaged, endpoints do not serve one-time boots.
        """
        try:
            found: ServingTerms | None = self._parse_cached_file(f"{self.root}/{TERMS}", endpoint_files.parse_terms)
        except (ValueError, OSError):
            return _NO_TERMS
        return found or _NO_TERMS

    def read(self, path: str, max_bytes: int | None = None) -> FileContent | None:
        """Return a file of the output tree. Return None if the file does not exist or is larger than ``max_bytes``."""
        return _read_file(f"{self.root}/{path}", max_bytes)

    # Manifest and status of the instance

    def refresh(self) -> None:
        """Read the manifest and the status again. If the manifest is damaged, keep the previous manifest."""
        try:
            self.head = self._parse_cached_file(f"{self.root}/{MANIFEST}", parse_head)
        except UnknownFormat as error:
            self.head = None
            self._set_condition(False, "UnknownFormat", f"{self.root}/{MANIFEST}: {error}")
        except (ValueError, OSError) as error:
            self._set_condition(False, "Unreadable", f"{self.root}/{MANIFEST}: {error}")
        else:
            if self.head is None:
                self._set_condition(False, "Absent", f"{self.root}: the instance has not published yet")
            else:
                self._set_condition(True, "Read", f"{self.root}: published from commit {self.head.origin.commit}")
        instance = self._read_instance_status()
        self.clock.compare_with_instance(instance.get("clock"))
        is_other_ledger = any(
            (each["type"], each["status"], each["reason"]) == ("LedgerNamed", False, "AnotherLedger")
            for each in instance.get("conditions", ())
        )
        self.can_serve = self.head is not None and not is_other_ledger and not self.terms.is_prepared
        self.stops_all = (stop_order := self.stop_orders.current) is not None and stop_order.stoppage.everything

    def read_status(self) -> dict[str, Any]:
        """Return the status of the instance.

        The result also contains the age of the status and the OutputTreeReadable condition.
        """
        # gitboot imports this module here, so that an endpoint starts faster
        from gitboot.status.instance_status import Status, add_age

        self.refresh()
        facts = self._read_instance_status()
        if not facts:
            facts = Status(applied=self.head.origin.commit if self.head is not None else None).facts()
        facts = add_age(facts, self.clock.instance_time_age_s, self.clock.instance_time)
        return {
            **facts,
            "conditions": [*add_stop_condition(facts["conditions"], self.stop_orders.current), self._condition],
        }

    def _read_instance_status(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        for file in self._statuses:
            with suppress(ValueError, OSError):
                found.append(self._parse_cached_file(file, _parse_status) or {})
        return max(
            [each for each in found if self._ledger is None or each.get("ledger") in (None, self._ledger)],
            key=lambda each: _parse_time(each.get("clock")) or datetime.min.replace(tzinfo=UTC),
            default={},
        )

    def _set_condition(self, status: bool, reason: str, message: str) -> None:
        known = self._condition
        if known.get("message") != message:
            is_expected = not known and reason == "Absent"  # a missing file is normal before the first publication
            (_logger.info if status or is_expected else _logger.error)("%s", message)
        changed_at = known["lastTransitionTime"] if known.get("status") == status else format_instant(self._clock())
        self._condition = {
            "type": "OutputTreeReadable",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": changed_at,
            "remedy": None if status else find_remedy("OutputTreeReadable", reason),
        }

    def _parse_cached_file(self, file: str, parse_file: Callable[[bytes], Any]) -> Any:
        known = self._parsed.get(file)
        if known is not None and known[0] == read_signature(file):
            return known[1]
        if (found := _read_file(file)) is None:
            return None
        value = parse_file(found.content)
        self._parsed[file] = found.signature, value
        return value


def _read_file(file: str, max_bytes: int | None = None) -> FileContent | None:
    try:
        fd = os.open(file, _OPEN_FLAGS)
    except (OSError, ValueError) as error:  # a path with a NUL character raises ValueError
        if isinstance(error, OSError) and error.errno not in ABSENT:
            raise
        return None
    try:
        found = os.fstat(fd)
        if S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        if not S_ISREG(found.st_mode) or (max_bytes is not None and found.st_size > max_bytes):
            return None
        with open(fd, "rb", closefd=False) as stream:
            return FileContent(file, (found.st_ino, found.st_mtime_ns, found.st_size), stream.read())
    finally:
        os.close(fd)


def _parse_status(data: bytes) -> dict[str, Any]:
    """Return an instance's status without malformed conditions, which another version of gitboot may have written.

    Raises ValueError if the data does not contain a status.
    """
    try:
        found = json.loads(data)
    except RecursionError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("conditions"), list):
        raise ValueError("the file does not contain an instance's status")
    return {**found, "conditions": [each for each in found["conditions"] if _is_condition(each)]}


def _is_condition(value: object) -> bool:
    match value:
        case {"type": str(), "status": bool(), "reason": str()}:
            return True
    return False


def _parse_time(text: object) -> datetime | None:
    """Return a time that an instance or this endpoint wrote, or None if the time is malformed."""
    with suppress(ValueError):
        return parse_instant(str(text))
    return None


def match_documents(tree: PublishedTree, machine: UnknownMachine) -> UnknownMachine | None:
    """Return an unknown machine with the name of the server whose document contains one of the machine's identities.

    Return None if the machine is known. A machine is known if a document contains its UUID, or if it sent no UUID and a
    document contains another of its identities. Also return None if the lookup is not possible now.
    """
    try:
        found = {each: tree.find_server(each) for each in machine.identities}
    except (ServerMoving, ValueError, OSError):
        return None
    is_uuid_known = machine.uuid is not None and found[format_identity(IdentityKind.UUID, machine.uuid)] is not None
    server = next((each.state.server for each in found.values() if each is not None), None)
    if is_uuid_known or (server is not None and machine.uuid is None):
        return None
    return structs.replace(machine, server=server)


def read_unknown_machines(tree: PublishedTree) -> UnknownMachines | None:
    """Return the unknown machines that the instance has published, or None if it has published none."""
    found = tree.read(UNKNOWN)
    return parse_unknown_machines(found.content) if found is not None else None


_MAX_OFFSET: Final = timedelta(seconds=30)
_SAVE_INTERVAL: Final = timedelta(minutes=1)
_SAVED_FILE: Final = "clock"


class CheckedClock:
    """This host's clock, which gitboot compares with the times in the instance's status.

    If this clock is behind, gitboot detects this immediately. The clock's time is then earlier than the instance's
    time, or earlier than the clock's own last time, which gitboot saves in ``folder`` for the next process.

    If this clock is ahead, the times look the same as if the instance had stopped writing, or as if the output tree
    were an old copy. gitboot can tell these cases apart only after the instance has written a time between two
    comparisons. Until then, gitboot does not trust the clock unless the kernel reports that the clock is synchronized.
    After `STALE_S` seconds, the instance counts as silent, and gitboot no longer waits for the instance to write a
    time.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        clock_state: Callable[[], ClockState] = lambda: ClockState.UNKNOWN,
        folder: Path | None = None,
        uptime: Callable[[], Uptime] = read_uptime,
    ) -> None:
        self._clock, self._clock_state, self._uptime = clock, clock_state, uptime
        self._saved_file = folder / _SAVED_FILE if folder is not None else None
        self._began_s = uptime().seconds
        self._instance_time: datetime | None = None  # the last time that the instance wrote
        self._seen_s = self._began_s  # the uptime at which this process first read that time
        self._age_s = 0.0  # the age of that time when this process first read it
        self._last_correct: datetime | None = None  # the last time of the instance that agreed with this clock
        self._is_compared = False  # whether the instance wrote while this process ran
        self._saved, saved_uptime = _read_saved_clock(self._saved_file)
        self._newest = self._saved  # the latest saved time of this clock; None: that time was wrong
        is_same_boot = saved_uptime is not None and saved_uptime.boot == uptime().boot
        self._newest_s = min(saved_uptime.seconds, self._began_s) if saved_uptime and is_same_boot else self._began_s
        # the difference between this clock and the instance's clock; None: the difference is within the limit
        self.offset: timedelta | None = None
        self._check_saved_time()

    @property
    def up(self) -> Uptime:
        """Return the uptime of this host's kernel."""
        return self._uptime()

    @property
    def latest_time(self) -> datetime | None:
        """A time that has definitely passed, even if this clock is wrong now, or None if gitboot has no such time.

        The time is the latest correct time of this clock, or the time of the instance's clock.
        """
        found = [self._clock() - (self.offset or timedelta())] if self.problem is not None else []
        if self._newest is not None:
            found.append(self._newest + timedelta(seconds=self.up.seconds - self._newest_s))
        return max(found, default=None)

    @property
    def instance_time(self) -> datetime | None:
        """The last time that the instance wrote, or None if this process has not read such a time yet."""
        return self._instance_time

    @property
    def instance_time_age_s(self) -> float | None:
        """The seconds since the instance last wrote a time, or None if this process has not read any such time yet."""
        return None if self._instance_time is None else self._age_s + self.up.seconds - self._seen_s

    def choose_time(self, at: datetime) -> datetime:
        """Return the time to use for responses: ``at`` or, if this clock has a problem, the last correct time.

        If the clock was never correct while this process ran, return the first time that the instance wrote.
        """
        return at if self.problem is None else self._last_correct or self._newest or at

    @property
    def problem(self) -> str | None:
        """The problem of this clock that makes gitboot withhold install boots, or None."""
        if self.offset is not None:
            return _format_offset(self.offset)
        # The code below decides whether the clock may be ahead.
        if self._instance_time is None or self._is_compared or self._clock() - self._instance_time <= _MAX_OFFSET:
            return None
        if self.up.seconds - self._began_s >= STALE_S or self._clock_state() is ClockState.SYNCHRONISED:
            return None
        return (
            "the clock of this host is ahead of the last time that the instance wrote, so the clock is wrong, or no "
            "instance is running"
        )

    def compare_with_instance(self, instance_time: object) -> None:
        """Compare this clock with a time that the instance wrote. Ignore a malformed time."""
        if (written_time := _parse_time(instance_time)) is not None:
            self._compare_with_time(written_time)
        else:
            self._check_saved_time()

    def _compare_with_time(self, written_time: datetime) -> None:
        up_s = self.up.seconds
        is_first, is_new = self._instance_time is None, self._instance_time not in (None, written_time)
        if is_first or is_new:
            self._instance_time, self._seen_s = written_time, up_s
        offset = self._clock() - written_time - timedelta(seconds=up_s - self._seen_s)
        if is_first or is_new:
            self._age_s = max(offset.total_seconds(), 0) if is_first else 0
        if is_first or abs(offset) <= _MAX_OFFSET:
            self._last_correct = written_time
        self._is_compared |= is_new
        if is_new and abs(offset) <= _MAX_OFFSET:
            self._newest = None  # gitboot no longer uses the earlier times of this clock
        if offset < -_MAX_OFFSET or (is_new and offset > _MAX_OFFSET):
            self._set_offset(offset)
            return
        if not is_new and offset > _MAX_OFFSET and self.offset is not None and self.offset > timedelta():
            return  # the clock is still ahead
        self._check_saved_time()

    def save(self) -> None:
        """Save the time of this clock, at most once a minute and only while the clock is correct.

        Also save the time for the next process, unless there is no folder or the disk has an error.
        """
        now, up = self._clock(), self.up
        if self.problem is not None or (self._saved and abs(now - self._saved) < _SAVE_INTERVAL):
            return
        self._newest, self._newest_s, self._saved = now, up.seconds, now
        if self._saved_file is not None:
            with suppress(OSError):
                self._saved_file.parent.mkdir(exist_ok=True)
                content = f"{format_instant(now)} {up.seconds} {up.boot}\n".encode()
                write_atomically(self._saved_file, content, mode=0o640)

    def _check_saved_time(self) -> None:
        behind = self._clock() - self._newest if self._newest is not None else timedelta()
        self._set_offset(behind if behind < -_MAX_OFFSET else None)

    def _set_offset(self, offset: timedelta | None) -> None:
        if offset is not None and self.offset is None:
            _logger.error(
                "%s; the endpoint withholds install boots",
                _format_offset(offset),
            )
        self.offset = offset


def _format_offset(offset: timedelta) -> str:
    seconds = offset.total_seconds()
    relation = "ahead of" if seconds > 0 else "behind"
    return f"the clock of this host is {abs(seconds):.0f} s {relation} the clock of the instance"


def _read_saved_clock(path: Path | None) -> tuple[datetime | None, Uptime | None]:
    """Return the saved time of a clock, and the uptime of the kernel when the time was saved.

    If one of these values is unknown, it is None.
    """
    words: list[str] = []
    if path is not None:
        with suppress(OSError, ValueError):
            words = path.read_text().split()
    saved_time = _parse_time(words[0]) if words else None
    if saved_time is not None and len(words) == 3:
        with suppress(ValueError):
            if (seconds := float(words[1])) >= 0:  # this is false for NaN
                return saved_time, Uptime(words[2], seconds)
    return saved_time, None
