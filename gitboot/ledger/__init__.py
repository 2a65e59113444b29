"""The ledger: what was provisioned, what was set and why, what happened; it cannot be rebuilt from Git."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from gitboot.bmc.override import Marks, OverrideRecord
from gitboot.ledger import rows
from gitboot.ledger.store import VERSION, Store, copy_ledger, reading, set_aside
from gitboot.load.machines import Machine
from gitboot.model.scalars import Digest, SystemUuid, format_instant
from gitboot.observe.observation import Observation
from gitboot.plan import Offer, Record, Run
from gitboot.status import Event

__all__ = ["VERSION", "Ledger", "Pending", "Request", "Suspension", "copy_ledger", "set_aside"]


class Request(NamedTuple):
    """What an operator asked of the instance that has this ledger."""

    id: int
    at: datetime
    who: str
    what: str  # one word: records, resolve, retry …
    facts: Mapping[str, Any]  # JSON values


class Suspension(NamedTuple):
    """No commit is accepted, and nothing set, until an instant."""

    who: str
    reason: str
    until: datetime


class Pending(NamedTuple):
    """An observation that is still to be judged by its BMC."""

    id: int
    observation: Observation
    marks: Marks | None  # what the BMC showed first after it


class Ledger:
    """One file with one writer; every write is on disk when its method returns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._overrides = self._read_overrides()  # by UUID and reason: asked for at every pass

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the ledger at ``path``, making it with an identity of its own where there is none.

        Raises `DamagedLedger` where it does not hold together, `LedgerError` where a newer gitboot made it.
        """
        store = Store.open(path)
        try:
            ledger = cls(store)
            for read in (ledger.machines, ledger.records, ledger.pending, ledger.requests):
                read()  # what does not hold together is noticed now, not in a pass
        except BaseException:
            store.close()
            raise
        return ledger

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Facts about the ledger itself

    @property
    def identity(self) -> str:
        return self._store.fact("identity") or ""

    @property
    def accepted(self) -> str | None:
        """The commit that was accepted last."""
        return self._store.fact("accepted")

    def accept(self, commit: str, *, changes: str | None = None) -> None:
        """Note that a commit was accepted, with the digest of what it changes: approvals of that are used up."""
        with self._store.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('accepted', ?)", (commit,))
            connection.execute("DELETE FROM approvals WHERE digest = ?", (changes,))

    def forget_accepted(self) -> None:
        """Know of no accepted commit any more."""
        self._store.set_fact("accepted", None)

    @property
    def told(self) -> bool:
        """Whether it is known what was installed before this ledger began."""
        return self._store.fact("initialised") is not None

    def tell(self, how: str) -> None:
        """Note that the ledger has been told: ``fresh``, ``adopt``, or the name of a file."""
        self._store.set_fact("initialised", how)
        self._store.set_fact("doubt", None)

    @property
    def doubt(self) -> str | None:
        """Why what it says is not believed: one word, until it is told again."""
        return self._store.fact("doubt")

    def doubt_it(self, why: str) -> None:
        """Believe nothing of it until it is told, and count on from where the one had come that stood here."""
        _, changes = self._store.mark or ("", 0)
        with self._store.writing(marked=True) as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('doubt', ?)", (why,))
            connection.execute(
                "INSERT INTO facts VALUES ('changes', ?) ON CONFLICT DO UPDATE SET value ="
                " CAST(MAX(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER)) AS TEXT)",
                (str(changes),),
            )

    @property
    def observes(self) -> bool:
        """Whether fetches reach the instance that has this ledger."""
        return self._store.fact("observes") != "no"

    @observes.setter
    def observes(self, observes: bool) -> None:
        if self.observes != observes:
            self._store.set_fact("observes", None if observes else "no")

    @property
    def foreign(self) -> bool:
        """Whether another ledger's tree lies where its instance is to publish."""
        return self._store.fact("foreign") is not None

    @foreign.setter
    def foreign(self, foreign: bool) -> None:
        if self.foreign != foreign:
            self._store.set_fact("foreign", "yes" if foreign else None)

    @property
    def is_behind(self) -> bool:
        """Whether a ledger stood here that had come further, or another: a backup was put in its place.

        Only for the process that writes to it: what another one writes meanwhile looks the same.
        """
        mark = self._store.mark
        return mark is not None and (mark[0] != self.identity or mark[1] > int(self._store.fact("changes") or 0))

    # What holds commits back, and what lets them pass

    @property
    def suspension(self) -> Suspension | None:
        """Why and until when no commit is accepted, as it was ordered last."""
        with reading(self._store.path):
            text = self._store.fact("suspension")
            if text is None:
                return None
            facts = rows.json_value(text)
            return Suspension(facts["who"], facts["reason"], rows.instant(facts["until"]))

    @suspension.setter
    def suspension(self, suspension: Suspension | None) -> None:
        facts = None
        if suspension is not None:
            facts = {**suspension._asdict(), "until": format_instant(suspension.until)}
        self._store.set_fact("suspension", rows.json_of(facts) if facts is not None else None)

    def approve(self, digest: str, guards: Iterable[str], *, at: datetime, who: str, reason: str) -> None:
        """Let changes with this digest pass these guards."""
        with self._store.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO approvals VALUES (?, ?, ?, ?, ?)",
                [(digest, guard, format_instant(at), who, reason) for guard in guards],
            )

    def approved(self, digest: str) -> frozenset[str]:
        """The guards that changes with this digest may pass."""
        return frozenset(guard for (guard,) in self._store.rows("SELECT guard FROM approvals WHERE digest = ?", digest))

    # Machines, as the accepted commits have described them

    def machines(self) -> dict[SystemUuid, Machine]:
        """Every machine that was ever seen, by UUID, as it was described last."""
        with reading(self._store.path):
            found = (
                rows.machine(row)
                for row in self._store.rows("SELECT uuid, name, macs, serial, bmc FROM machines ORDER BY uuid")
            )
            return {machine.uuid: machine for machine in found}

    def standing(self) -> dict[str, SystemUuid]:
        """The machines of the accepted commit: UUIDs by name."""
        return {
            name: SystemUuid(uuid)
            for name, uuid in self._store.rows("SELECT name, uuid FROM machines WHERE stands ORDER BY name")
        }

    def write_machines(self, machines: Iterable[Machine], *, gone: Iterable[SystemUuid] = ()) -> None:
        """Replace what is known of these machines, and note which have left the fleet; what they were stays."""
        with self._store.writing() as connection:
            connection.executemany("UPDATE machines SET stands = 0 WHERE uuid = ?", [(uuid,) for uuid in gone])
            connection.executemany(
                "INSERT OR REPLACE INTO machines VALUES (?, ?, ?, ?, ?, 1)",
                [rows.of_machine(each) for each in machines],
            )

    # Records of provisioning

    def records(self) -> dict[SystemUuid, Record]:
        """What is known of each server, by UUID; a UUID that is missing is unknown."""
        with reading(self._store.path):
            runs: dict[str, dict[str, Run]] = {}
            for uuid, maintenance, run, made_at in self._store.rows("SELECT * FROM runs"):
                runs.setdefault(uuid, {})[maintenance] = Run(run, rows.instant(made_at))
            found = self._store.rows(f"SELECT uuid, {rows.RECORD} FROM records ORDER BY uuid")  # noqa: S608 - constant
            return {SystemUuid(uuid): rows.record(rest, runs.get(uuid, {})) for uuid, *rest in found}

    def write_records(self, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
        """Replace what is known of servers: (UUID, the server's name, record), all or none of them."""
        with self._store.writing(marked=True) as connection:
            for uuid, server, record in records:
                connection.execute(
                    "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (uuid, server, *rows.of_record(record)),
                )
                connection.execute("DELETE FROM runs WHERE uuid = ?", (uuid,))
                connection.executemany(
                    "INSERT INTO runs VALUES (?, ?, ?, ?)",
                    [(uuid, name, made.run, format_instant(made.at)) for name, made in sorted(record.runs.items())],
                )

    def forget_records(self) -> None:
        """Know nothing of any server any more; what is set stays known."""
        with self._store.writing(marked=True) as connection:
            connection.execute("DELETE FROM records")
            connection.execute("DELETE FROM runs")

    # What was set

    def overrides(self, uuid: SystemUuid) -> tuple[OverrideRecord, ...]:
        """Every override that was set for a server, one a reason, by reason."""
        with self._lock:
            return tuple(self._overrides.get(uuid, {}).values())

    def open_overrides(self) -> frozenset[SystemUuid]:
        """The servers on whose BMCs an override of gitboot's may stand."""
        with self._lock:
            return frozenset(
                uuid for uuid, record in self._overrides.items() if any(each.state.is_open for each in record.values())
            )

    def _read_overrides(self) -> dict[SystemUuid, dict[str, OverrideRecord]]:
        found: dict[SystemUuid, dict[str, OverrideRecord]] = {}
        with reading(self._store.path):
            for uuid, *rest in self._store.rows(f"SELECT uuid, {rows.OVERRIDE} FROM overrides ORDER BY uuid, reason"):  # noqa: S608
                record = rows.override(rest)
                found.setdefault(SystemUuid(uuid), {})[record.reason] = record
        return found

    def write_override(self, uuid: SystemUuid, record: OverrideRecord) -> None:
        """Replace what is recorded for the server and the reason."""
        with self._store.writing(marked=True) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO overrides VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (uuid, *rows.of_override(record)),
            )
        with self._lock:
            kept = {**self._overrides.get(uuid, {}), record.reason: record}
            self._overrides[uuid] = dict(sorted(kept.items()))

    # What was published, and who fetched it

    def offer(self, offers: Iterable[Offer], at: datetime) -> None:
        """Note boots that are about to be published, whose being made would meet something."""
        with self._store.writing() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO offers VALUES (?, ?, ?)",
                [(offer.plan, format_instant(at), rows.of_offer(offer)) for offer in offers],
            )

    def offered(self, plan: Digest) -> Offer | None:
        """The boot of a plan that was published."""
        with reading(self._store.path):
            found = self._store.rows("SELECT facts FROM offers WHERE plan = ?", plan)
            return rows.offer(plan, found[0][0]) if found else None

    def note_versions(self, versions: Iterable[tuple[str, int, Digest]]) -> None:
        """Note whose plan an entry was from when it was published: (path, modification time, plan)."""
        with self._store.writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", list(versions))

    def version(self, path: str, modified: int) -> Digest | None:
        """The plan that an entry was of when it had this modification time."""
        found = self._store.rows("SELECT plan FROM versions WHERE path = ? AND modified = ?", path, modified)
        return Digest(found[0][0]) if found else None

    def observe(self, observation: Observation, plan: Digest) -> Pending | None:
        """Note an observation that is to be judged; None where it was noted before."""
        at, facts = format_instant(observation.at), rows.of_observation(observation)
        same = "SELECT 1 FROM observations WHERE at = ? AND plan = ? AND json_remove(facts, '$.marks') = json(?)"
        with self._store.writing() as connection:
            if connection.execute(same, (at, plan, facts)).fetchone():
                return None
            number = connection.execute(
                "INSERT INTO observations (at, plan, facts) VALUES (?, ?, ?)", (at, plan, facts)
            ).lastrowid
        return Pending(int(number or 0), observation, None)

    def pending(self) -> list[Pending]:
        """Observations without a verdict, oldest first."""
        with reading(self._store.path):
            found = self._store.rows("SELECT id, at, plan, facts FROM observations WHERE verdict IS NULL ORDER BY id")
            return [Pending(number, *rows.observation(at, plan, facts)) for number, at, plan, facts in found]

    def note_marks(self, pending: Pending, marks: Marks) -> Pending:
        """Note what the BMC showed first after an observation."""
        with self._store.writing() as connection:
            connection.execute(
                "UPDATE observations SET facts = ? WHERE id = ?",
                (rows.of_observation(pending.observation, marks), pending.id),
            )
        return pending._replace(marks=marks)

    def judge(self, pending: Pending, verdict: str) -> None:
        """Note what came of an observation, in a word."""
        with self._store.writing() as connection:
            connection.execute("UPDATE observations SET verdict = ? WHERE id = ?", (verdict, pending.id))

    def prune(self, before: datetime) -> None:
        """Forget offers, versions and judged observations from before an instant."""
        at, stamp = format_instant(before), int(before.timestamp())
        with self._store.writing() as connection:
            connection.execute(
                "DELETE FROM versions WHERE modified < ? AND modified <"
                " (SELECT MAX(latest.modified) FROM versions AS latest WHERE latest.path = versions.path)",
                (stamp,),
            )
            connection.execute("DELETE FROM offers WHERE at < ? AND plan NOT IN (SELECT plan FROM versions)", (at,))
            connection.execute("DELETE FROM observations WHERE at < ? AND verdict IS NOT NULL", (at,))

    # What operators asked for

    def give(self, at: datetime, who: str, what: str, facts: Mapping[str, Any]) -> int:
        """Leave a request for the instance; from any process. Return its number."""
        with self._store.writing() as connection:
            number = connection.execute(
                "INSERT INTO requests (at, who, what, facts) VALUES (?, ?, ?, ?)",
                (format_instant(at), who, what, rows.json_of(facts)),
            ).lastrowid
        return int(number or 0)

    def requests(self) -> list[Request]:
        """Those that are not carried out yet, oldest first."""
        with reading(self._store.path):
            found = self._store.rows("SELECT id, at, who, what, facts FROM requests WHERE outcome IS NULL ORDER BY id")
            return [
                Request(number, rows.instant(at), who, what, rows.json_value(facts))
                for number, at, who, what, facts in found
            ]

    def carried_out(self, request: Request, outcome: str, at: datetime) -> None:
        with self._store.writing() as connection:
            connection.execute(
                "UPDATE requests SET outcome = ?, done_at = ? WHERE id = ?", (outcome, format_instant(at), request.id)
            )

    def outcome(self, number: int) -> str | None:
        """What came of a request; None while it waits."""
        found = self._store.rows("SELECT outcome FROM requests WHERE id = ?", number)
        return found[0][0] if found else None

    # What happened

    def write_event(self, event: Event) -> None:
        with self._store.writing() as connection:
            connection.execute(
                "INSERT INTO events (at, type, message, facts) VALUES (?, ?, ?, ?)",
                (format_instant(event.at), event.type, event.message, rows.json_of(event.facts)),
            )

    def events(self) -> Iterator[dict[str, Any]]:
        """Everything that was written down, oldest first, as JSON values."""
        for at, type, message, facts in self._store.rows("SELECT at, type, message, facts FROM events ORDER BY id"):
            with reading(self._store.path):
                yield {"at": at, "type": type, "message": message, **rows.json_value(facts)}
