"""Served files: read the output tree and the instance's status, and reread a file only if it has changed."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Final, NamedTuple

from msgspec import structs

from gitboot.endpoint.checked_clock import CheckedClock, parse_written_time
from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines, parse_unknown_machines
from gitboot.files import ABSENT
from gitboot.jsonio import format_instant, parse_json
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
from gitboot.status.conditions import find_remedy

_logger = logging.getLogger(__name__)
REFRESH_S: Final = 1  # the time between two reads of the manifest and the status
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
        status = os.stat(file)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


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

        Raises `ServerMoving` while the identity moves to another server. Raises ValueError if a file is damaged, and
        OSError if gitboot cannot read a file.
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

        Raises ValueError if the file is damaged, and OSError if gitboot cannot read the file.
        """
        if (file := self.read(state_path(name))) is None:
            return None
        return LocatedServer(file.file, file.signature, parse_state(file.content))

    def read_shared_files(self) -> Mapping[str, ListedFile]:
        """Return the list of files that do not belong to a server.

        Raises ValueError if the list is damaged, and OSError if gitboot cannot read the list.
        """
        return self._parse_cached_file(f"{self.root}/{SHARED}", parse_listing) or {}

    @property
    def terms(self) -> ServingTerms:
        """The conditions under which endpoints serve one-time boots.

        If the file with these conditions is missing or damaged, endpoints do not serve one-time boots.
        """
        try:
            terms: ServingTerms | None = self._parse_cached_file(f"{self.root}/{TERMS}", endpoint_files.parse_terms)
        except (ValueError, OSError):
            terms = None
        return terms or ServingTerms()

    def read(self, path: str, max_bytes: int | None = None) -> FileContent | None:
        """Return a file of the output tree. Return None if the file does not exist or is larger than ``max_bytes``.

        Raises OSError if gitboot cannot read the file.
        """
        return _read_file(f"{self.root}/{path}", max_bytes)

    # Manifest and status of the instance

    def refresh(self) -> None:
        """Read the manifest and the status again. If the manifest is damaged, keep the previous manifest."""
        self._read_manifest()
        status = self._read_instance_status()
        self.clock.compare_with_instance(status.get("clock"))
        is_other_ledger = any(
            (condition["type"], condition["status"], condition["reason"]) == ("LedgerNamed", False, "AnotherLedger")
            for condition in status.get("conditions", ())
        )
        self.can_serve = self.head is not None and not is_other_ledger and not self.terms.is_prepared
        notice = self.stop_orders.current
        self.stops_all = notice is not None and notice.order.everything

    def _read_manifest(self) -> None:
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

    def read_status(self) -> dict[str, Any]:
        """Return the status of the instance.

        The result also contains the age of the status and the OutputTreeReadable condition.
        """
        # gitboot imports this module here, so that an endpoint starts faster
        from gitboot.status.instance_status import Status, add_age

        self.refresh()
        applied = self.head.origin.commit if self.head is not None else None
        facts = self._read_instance_status() or Status(applied=applied).facts()
        facts = add_age(facts, self.clock.instance_time_age_s, self.clock.instance_time)
        return {
            **facts,
            "conditions": [*add_stop_condition(facts["conditions"], self.stop_orders.current), self._condition],
        }

    def _read_instance_status(self) -> dict[str, Any]:
        """Return the newest status of the tree's instance, or {} if there is no readable status."""
        statuses: list[dict[str, Any]] = []
        for file in self._statuses:
            with suppress(ValueError, OSError):
                status = self._parse_cached_file(file, _parse_status) or {}
                if self._ledger is None or status.get("ledger") in (None, self._ledger):
                    statuses.append(status)
        never = datetime.min.replace(tzinfo=UTC)
        return max(statuses, key=lambda status: parse_written_time(status.get("clock")) or never, default={})

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
        """Return the parsed content of a file, or None if the file does not exist."""
        known = self._parsed.get(file)
        if known is not None and known[0] == read_signature(file):
            return known[1]
        if (content := _read_file(file)) is None:
            return None
        value = parse_file(content.content)
        self._parsed[file] = content.signature, value
        return value


def _read_file(file: str, max_bytes: int | None = None) -> FileContent | None:
    try:
        fd = os.open(file, _OPEN_FLAGS)
    except (OSError, ValueError) as error:  # a path with a NUL character raises ValueError
        if isinstance(error, OSError) and error.errno not in ABSENT:
            raise
        return None
    try:
        status = os.fstat(fd)
        if S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        if not S_ISREG(status.st_mode) or (max_bytes is not None and status.st_size > max_bytes):
            return None
        with open(fd, "rb", closefd=False) as stream:
            return FileContent(file, (status.st_ino, status.st_mtime_ns, status.st_size), stream.read())
    finally:
        os.close(fd)


def _parse_status(data: bytes) -> dict[str, Any]:
    """Return an instance's status without malformed conditions, which another version of gitboot may have written.

    Raises ValueError if the data does not contain a status.
    """
    status = parse_json(data)
    if not isinstance(status, dict) or not isinstance(status.get("conditions"), list):
        raise ValueError("the file does not contain an instance's status")
    return {**status, "conditions": [each for each in status["conditions"] if _is_condition(each)]}


def _is_condition(value: object) -> bool:
    match value:
        case {"type": str(), "status": bool(), "reason": str()}:
            return True
    return False


def match_documents(tree: PublishedTree, machine: UnknownMachine) -> UnknownMachine | None:
    """Return an unknown machine with the name of the server whose document contains one of the machine's identities.

    Return None if the machine is known. A machine is known if a document contains its UUID, or if it sent no UUID and a
    document contains another of its identities. Also return None if the lookup is not possible now.
    """
    try:
        servers = {identity: tree.find_server(identity) for identity in machine.identities}
    except (ServerMoving, ValueError, OSError):
        return None
    is_uuid_known = machine.uuid is not None and servers[format_identity(IdentityKind.UUID, machine.uuid)] is not None
    server = next((located.state.server for located in servers.values() if located is not None), None)
    if is_uuid_known or (server is not None and machine.uuid is None):
        return None
    return structs.replace(machine, server=server)


def read_unknown_machines(tree: PublishedTree) -> UnknownMachines | None:
    """Return the unknown machines that the instance has published, or None if it has published none.

    Raises OSError if gitboot cannot read the file.
    """
    file = tree.read(UNKNOWN)
    return parse_unknown_machines(file.content) if file is not None else None
