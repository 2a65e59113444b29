"""Overrides that jobs withdraw without waiting for the ledger: noted in STATE until the ledger has them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock

from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.override_steps import Withdrawal
from gitboot.files import write_whole
from gitboot.fleet.layered_dict import replaced
from gitboot.jsonio import canonical
from gitboot.ledger import server_tables
from gitboot.model.scalars.machines import SystemUuid

_logger = logging.getLogger(__name__)


class NotedWithdrawals:
    """The newest record of each withdrawal that the ledger lacks; for any thread.

    The notes lie in a file, so that a restart finds them. If the disk refuses the file, they are kept in memory. After
    a restart, an override without a note is unknown then: `OverrideRecord.may_be_cleared_unrecorded`.
    """

    def __init__(self, path: Path | None = None, ledger: str = "") -> None:
        """``path`` is the file, None for memory alone; ``ledger`` is the identity of the ledger that lacks them."""
        self._path, self._ledger, self._lock = path, ledger, Lock()
        self._notes = {(each.uuid, each.record.reason): each for each in self._read()}

    def __iter__(self) -> Iterator[Withdrawal]:
        """Yield them in the order in which they were carried out."""
        with self._lock:
            return iter([*self._notes.values()])

    def note(self, uuid: SystemUuid, record: OverrideRecord) -> None:
        """Keep a record, durably if the disk takes it, in place of an older one for the same reason."""
        with self._lock:
            self._notes.pop((uuid, record.reason), None)
            self._notes[uuid, record.reason] = Withdrawal(uuid, record)
            self._keep()

    def forget(self, stored: Iterable[Withdrawal]) -> None:
        """Drop the notes that the ledger has, or that are of another setting of the override than it knows."""
        with self._lock:
            stored = [each for each in stored if self._notes.get((each.uuid, each.record.reason)) == each]
            for each in stored:
                del self._notes[each.uuid, each.record.reason]
            if stored:
                self._keep()

    def over(
        self, overrides: Mapping[SystemUuid, Mapping[str, OverrideRecord]]
    ) -> Mapping[SystemUuid, Mapping[str, OverrideRecord]]:
        """Return the overrides of a ledger as they are with what is noted here."""
        found: dict[SystemUuid, Mapping[str, OverrideRecord]] = {}
        for uuid, record, _ in self:
            known = found.get(uuid, overrides.get(uuid, {}))
            if record.reason in known and known[record.reason].is_ended_by(record):
                found[uuid] = {**known, record.reason: record}
        return replaced(overrides, found) if found else overrides

    def _keep(self) -> None:
        if self._path is None:
            return
        try:
            if not self._notes:
                self._path.unlink(missing_ok=True)
                return
            found = [
                {"uuid": uuid, "record": server_tables.of_override(record)} for uuid, record, _ in self._notes.values()
            ]
            write_whole(self._path, canonical({"ledger": self._ledger, "withdrawals": found}) + b"\n")
        except OSError as error:
            _logger.error("%s: withdrawals are noted in memory alone (%s)", self._path, error.strerror)

    def _read(self) -> list[Withdrawal]:
        """Return the notes of an earlier process; those of another ledger are none of this one."""
        if self._path is None or not self._path.exists():
            return []
        try:
            found = json.loads(self._path.read_bytes())
            notes = [
                (SystemUuid(each["uuid"]), server_tables.override(each["record"])) for each in found["withdrawals"]
            ]
            return [Withdrawal(*each, is_left=True) for each in notes if found["ledger"] == self._ledger]
        except (OSError, ValueError, TypeError, KeyError) as error:
            _logger.error("%s: withdrawals cannot be read (%s)", self._path, error)
            return []
