"""Server tables of the ledger: records, overrides, offers, observations, known BMCs and lost identities."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct, structs

from gitboot.bmc.credentials import CredentialUse, normalize_origin
from gitboot.bmc.identity import PinnedIdentity, ReportedIdentity
from gitboot.bmc.override_state import Medium, Override, OverrideRecord, OverrideState, ResetMarks
from gitboot.bmc.power_steps import PowerRecord
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.one_time_boots import InstallationFetches
from gitboot.fleet.identities import BmcAccess, LostIdentity, Machine
from gitboot.jsonio import Digest, build_json_decoder, convert, encode_canonical, format_instant, to_json_value
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars import MacAddress, SystemUuid
from gitboot.resolve.provisioning_record import (
    Record,
    Run,
    make_attempt_fields,
    make_run_fields,
    parse_attempt,
    parse_clearances,
    parse_run_evidence,
    parse_unknown_serves,
)
from gitboot.resolve.server_plan import Offer

T = TypeVar("T", bound=Struct)
R = TypeVar("R", OverrideRecord, PowerRecord)


# Values in the columns of tables


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def parse_time_or_none(text: str | None) -> datetime | None:
    return parse_time(text) if text is not None else None


def _format_time_or_none(at: datetime | None) -> str | None:
    return format_instant(at) if at is not None else None


def to_json(value: object) -> str:
    """Encode a value as JSON. Times are encoded as text, and structures as objects."""
    return json.dumps(value, sort_keys=True, default=_to_plain_value)


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    return structs.asdict(value) if isinstance(value, Struct) else asdict(value)


def _to_json_or_none(value: object) -> str | None:
    return to_json(value) if value is not None else None


def parse_json_object(text: str) -> dict[str, Any]:
    """Decode a JSON object. Raises ValueError for malformed JSON, and TypeError for another type of JSON value."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("expected an object")
    return value


def parse_struct(struct: type[T], text: str, **more: object) -> T:
    """Decode a structure that `to_json` encoded.

    ``more`` contains the values of fields that are not in the JSON. Raises ValueError or TypeError if the JSON does not
    match the structure. Unknown fields raise an error too, because a newer version of gitboot may have written them and
    a later write would lose them.
    """
    fields = {**parse_json_object(text), **more}
    if not fields.keys() <= set(struct.__struct_fields__):
        raise TypeError(f"expected only {struct.__name__} fields")
    return convert(fields, struct)


def _parse_struct_or_none(struct: type[T], text: str | None) -> T | None:
    return parse_struct(struct, text) if text is not None else None


_parse_texts: Final = build_json_decoder(list[str])


def _group_by_reason(records: Iterable[tuple[str, R]]) -> dict[SystemUuid, dict[str, R]]:
    groups: dict[SystemUuid, dict[str, R]] = {}
    for uuid, record in records:
        groups.setdefault(SystemUuid(uuid), {})[record.reason] = record
    return groups


# Machines and lost identities


def read_machines(store: Store) -> dict[SystemUuid, Machine]:
    with store.reading():
        rows = store.rows("SELECT uuid, name, macs, serial, bmc FROM machines ORDER BY uuid")
        return {
            uuid: Machine(
                uuid=SystemUuid(uuid),
                name=name,
                macs=tuple(map(MacAddress, _parse_texts(macs))),
                serial=serial,
                bmc=_parse_struct_or_none(BmcAccess, bmc),
            )
            for uuid, name, macs, serial, bmc in rows
        }


def read_current_machines(store: Store) -> frozenset[SystemUuid]:
    """Return the machines of the accepted commit."""
    return frozenset(SystemUuid(uuid) for (uuid,) in store.rows("SELECT uuid FROM machines WHERE stands = 1"))


def write_machines(
    tx: Transaction, machines: Iterable[Machine], *, removed: Iterable[SystemUuid] = (), is_current: bool = True
) -> None:
    """Store machines, and mark machines that were removed from the fleet. Removed machines keep their entries.

    ``is_current`` is false for machines that are not in the accepted commit.
    """
    tx.executemany("UPDATE machines SET stands = 0 WHERE uuid = ?", [(uuid,) for uuid in removed])
    tx.replace(
        "machines",
        ("uuid",),
        [
            (
                machine.uuid,
                machine.name,
                to_json(machine.macs),
                machine.serial,
                _to_json_or_none(machine.bmc),
                int(is_current),
            )
            for machine in machines
        ],
    )


def read_lost_identities(store: Store) -> frozenset[LostIdentity]:
    rows = store.rows("SELECT kind, value, uuid, netboots FROM lost_identities")
    return frozenset(LostIdentity(kind, value, SystemUuid(uuid), bool(boots)) for kind, value, uuid, boots in rows)


def write_lost_identities(tx: Transaction, before: Collection[LostIdentity], now: Collection[LostIdentity]) -> None:
    """Replace the stored lost identities. gitboot treats a restored backup without a new lost identity as outdated."""
    table, key = "lost_identities", ("kind", "value", "uuid")
    removed = sorted(set(before) - set(now))
    new = sorted(set(now) - set(before))
    if removed:
        tx.delete(table, key, [(str(each.kind), each.value, each.uuid) for each in removed])
    if new:
        tx.replace(table, key, [(str(each.kind), each.value, each.uuid, int(each.netboots)) for each in new])
        tx.mark()


# Records and runs. The order of these columns is the order of the table, which `Transaction.replace` requires.

_RECORD_COLUMNS: Final = (
    "provision",
    "image",
    "pool",
    "decision",
    "evidence",
    "provisioned_at",
    "grace_until",
    "consumed_at",
    "consumed_key",
    "overwritten_by",
    "offered",
    "answered",
    "taken_back",
    "attempts",
    "released",
    "unknown_serves",
    "clearances",
    "version",
)
_RUN_COLUMNS: Final = ("uuid", "maintenance", "run", "made_at", "window_end", "seen")
# JSON that most records contain, and that gitboot therefore does not decode
_EMPTY_LIST: Final = "[]"
_EMPTY_OBJECT: Final = "{}"


def _format_record(record: Record) -> tuple[Any, ...]:
    return (
        record.provision,
        record.image,
        record.pool,
        record.decision,
        record.evidence,
        _format_time_or_none(record.provisioned_at),
        _format_time_or_none(record.grace_until),
        _format_time_or_none(record.consumed_at),
        record.consumed_key,
        record.overwritten_by,
        record.offered,
        record.answered,
        record.taken_back,
        to_json([make_attempt_fields(attempt) for attempt in record.attempts]),
        record.released,
        to_json(to_json_value(record.unknown_serves)),
        to_json(to_json_value(record.clearances)),
        record.version,
    )


def _parse_record(row: Sequence[Any], runs: Mapping[str, Run]) -> Record:
    columns = dict(zip(_RECORD_COLUMNS, row, strict=True))
    attempts, unknown_serves, clearances = columns["attempts"], columns["unknown_serves"], columns["clearances"]
    return Record(
        provision=columns["provision"],
        image=columns["image"],
        pool=columns["pool"],
        decision=Digest(columns["decision"]) if columns["decision"] else None,
        evidence=columns["evidence"],
        provisioned_at=parse_time_or_none(columns["provisioned_at"]),
        grace_until=parse_time_or_none(columns["grace_until"]),
        consumed_at=parse_time_or_none(columns["consumed_at"]),
        consumed_key=columns["consumed_key"],
        runs=runs,
        offered=columns["offered"],
        answered=columns["answered"],
        taken_back=columns["taken_back"],
        attempts=tuple(map(parse_attempt, json.loads(attempts))) if attempts != _EMPTY_LIST else (),
        overwritten_by=columns["overwritten_by"],
        released=columns["released"],
        unknown_serves=parse_unknown_serves(json.loads(unknown_serves)) if unknown_serves != _EMPTY_LIST else (),
        clearances=parse_clearances(json.loads(clearances)) if clearances != _EMPTY_OBJECT else {},
        version=columns["version"],
    )


def read_records(store: Store) -> dict[SystemUuid, Record]:
    """Return the records of servers, by UUID. If a server has no record, its installation state is unknown."""
    with store.reading():
        runs: dict[str, dict[str, Run]] = {}
        run_rows = store.rows(f"SELECT {', '.join(_RUN_COLUMNS)} FROM runs")  # noqa: S608 - constant
        for uuid, maintenance, number, made_at, window_end, seen in run_rows:
            evidence = parse_run_evidence(parse_json_object(seen))
            run = Run(number, parse_time(made_at), parse_time_or_none(window_end), **evidence)
            runs.setdefault(uuid, {})[maintenance] = run
        columns = ", ".join(_RECORD_COLUMNS)
        record_rows = store.rows(f"SELECT uuid, {columns} FROM records ORDER BY uuid")  # noqa: S608 - constant
        return {SystemUuid(uuid): _parse_record(row, runs.get(uuid, {})) for uuid, *row in record_rows}


def write_records(tx: Transaction, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
    """Store records. ``records`` contains tuples of UUID, server name and record.

    gitboot treats a restored backup as outdated if the backup lacks one of these records.
    """
    servers = {uuid: (name, record) for uuid, name, record in records}
    if not servers:
        return
    tx.mark()
    record_rows = [(uuid, name, *_format_record(record)) for uuid, (name, record) in servers.items()]
    tx.replace("records", ("uuid",), record_rows)
    tx.delete("runs", ("uuid",), [(uuid,) for uuid in servers])
    run_rows = [
        (
            uuid,
            maintenance,
            run.run,
            format_instant(run.at),
            _format_time_or_none(run.end),
            to_json(make_run_fields(run)),
        )
        for uuid, (_, record) in servers.items()
        for maintenance, run in sorted(record.runs.items())
    ]
    tx.insert("runs", _RUN_COLUMNS, run_rows)


def delete_records(tx: Transaction, uuids: Collection[SystemUuid]) -> None:
    """Delete the records of servers. gitboot treats a restored backup that still contains them as outdated."""
    if uuids:
        tx.mark()
        for table in ("records", "runs"):
            tx.delete(table, ("uuid",), [(uuid,) for uuid in uuids])


def delete_all_records(tx: Transaction) -> None:
    """Delete the records of all servers, but not their overrides."""
    tx.execute("DELETE FROM records")
    tx.execute("DELETE FROM runs")
    tx.mark()


# Overrides. The order of these columns is the order of the table, which `Transaction.replace` requires.

_OVERRIDE_COLUMNS: Final = (
    "reason",
    "plan_digest",
    "override",
    "marks",
    "state",
    "at",
    "corrections",
    "replaces",
    "bmc",
    "shown",
    "writes_disk",
    "medium",
    "data_medium",
    "clears_from",
)


def format_override(record: OverrideRecord) -> tuple[Any, ...]:
    """Encode an override record as the values of its columns. `parse_override` decodes them."""
    return (
        record.reason,
        record.plan_digest,
        to_json(record.override),
        to_json(record.marks),
        record.state,
        format_instant(record.at),
        to_json(record.corrections),
        _to_json_or_none(record.replaces),
        _to_json_or_none(record.bmc),
        to_json(record.shown),
        int(record.writes_disk),
        _to_json_or_none(record.medium),
        _to_json_or_none(record.data_medium),
        _format_time_or_none(record.clears_from),
    )


def parse_override(row: Sequence[Any]) -> OverrideRecord:
    """Decode an override record. Raises ValueError or TypeError if a value is malformed."""
    columns = dict(zip(_OVERRIDE_COLUMNS, row, strict=True))
    return OverrideRecord(
        reason=columns["reason"],
        plan_digest=columns["plan_digest"],
        override=parse_struct(Override, columns["override"]),
        marks=parse_struct(ResetMarks, columns["marks"]),
        state=OverrideState(columns["state"]),
        at=parse_time(columns["at"]),
        corrections=tuple(map(parse_time, json.loads(columns["corrections"]))),
        replaces=_parse_struct_or_none(Override, columns["replaces"]),
        bmc=_parse_struct_or_none(BmcAccess, columns["bmc"]),
        shown=parse_struct(ReportedIdentity, columns["shown"]),
        writes_disk=bool(columns["writes_disk"]),
        medium=_parse_struct_or_none(Medium, columns["medium"]),
        data_medium=_parse_struct_or_none(Medium, columns["data_medium"]),
        clears_from=parse_time_or_none(columns["clears_from"]),
    )


def read_overrides(store: Store) -> dict[SystemUuid, dict[str, OverrideRecord]]:
    """Return the override records, by machine and reason."""
    with store.reading():
        columns = ", ".join(_OVERRIDE_COLUMNS)
        rows = store.rows(f"SELECT uuid, {columns} FROM overrides ORDER BY uuid, reason")  # noqa: S608 - constant
        return _group_by_reason((uuid, parse_override(row)) for uuid, *row in rows)


def write_overrides(tx: Transaction, overrides: Iterable[tuple[SystemUuid, OverrideRecord]]) -> None:
    """Store override records. gitboot treats a restored backup without one of these records as outdated."""
    if rows := [(uuid, *format_override(record)) for uuid, record in overrides]:
        tx.mark()
        tx.replace("overrides", ("uuid", "reason"), rows)


# Power records


def read_power_records(store: Store) -> dict[SystemUuid, dict[str, PowerRecord]]:
    """Return the recorded power changes, by machine and reason."""
    with store.reading():
        rows = store.rows("SELECT uuid, facts FROM switches ORDER BY uuid, reason")
        return _group_by_reason((uuid, parse_struct(PowerRecord, facts)) for uuid, facts in rows)


def write_power_records(tx: Transaction, records: Iterable[tuple[SystemUuid, PowerRecord]]) -> None:
    """Store power records. gitboot treats a restored backup without one of these records as outdated."""
    if rows := [(uuid, record.reason, to_json(record)) for uuid, record in records]:
        tx.mark()
        tx.replace("switches", ("uuid", "reason"), rows)


# Pinned identities of BMCs


def read_pins(store: Store) -> dict[SystemUuid, PinnedIdentity]:
    with store.reading():
        rows = store.rows("SELECT * FROM pins ORDER BY uuid")
        return {SystemUuid(uuid): parse_struct(PinnedIdentity, facts) for uuid, facts in rows}


def write_pins(tx: Transaction, pins: Iterable[tuple[SystemUuid, PinnedIdentity]]) -> None:
    """Store the pinned machine identity that each BMC must report.

    gitboot does not treat a restored backup as outdated if it lacks a pinned identity, because gitboot pins the
    identity again at the next contact with the BMC.
    """
    tx.replace("pins", ("uuid",), [(uuid, to_json(identity)) for uuid, identity in pins])


# Offers and versions

_OFFER_FIELDS: Final = tuple(name for name in Offer.__struct_fields__ if name != "plan")  # the key of the table


def format_offer(offer: Offer) -> str:
    fields = {name: getattr(offer, name) for name in _OFFER_FIELDS}
    fields["start"] = _format_time_or_none(offer.start)
    fields["end"] = _format_time_or_none(offer.end)
    return encode_canonical(fields).decode()


def parse_offer(plan: Digest, text: str) -> Offer:
    return parse_struct(Offer, text, plan=plan)


def find_offer(store: Store, plan: Digest) -> Offer | None:
    """Return the stored offer for a plan, or None if no offer is stored."""
    with store.reading():
        rows = store.rows("SELECT facts FROM offers WHERE plan = ?", plan)
        return parse_offer(plan, rows[0][0]) if rows else None


def write_offers(tx: Transaction, offers: Iterable[Offer], at: datetime) -> None:
    """Store the offers of boots that gitboot is about to publish.

    The new offers replace earlier offers of the same plans. gitboot treats a restored backup as outdated if the backup
    lacks a new offer, because gitboot could not recognize a fetch of that boot.
    """
    rows = [(offer.plan, format_instant(at), format_offer(offer)) for offer in offers]
    if not all(tx.rows("SELECT 1 FROM offers WHERE plan = ?", (plan,)) for plan, _, _ in rows):
        tx.mark()
    tx.executemany("INSERT INTO offers VALUES (?, ?, ?) ON CONFLICT (plan) DO UPDATE SET facts = excluded.facts", rows)


def find_version(store: Store, path: str, modified_at: int) -> tuple[Digest, int] | None:
    """Return the plan and the decision number of the boot script with this path and modification time.

    The decision number is the number of the newest decision when the script was published. The result is None if there
    is no such boot script.
    """
    rows = store.rows("SELECT plan, number FROM versions WHERE path = ? AND modified = ?", path, modified_at)
    if not rows:
        return None
    plan, number = rows[0]
    return Digest(plan), number


def has_version_modified_at(store: Store, modified_at: int) -> bool:
    return bool(store.rows("SELECT 1 FROM versions WHERE modified = ? LIMIT 1", modified_at))


def find_token(store: Store, path: str) -> Digest | None:
    """Return the token in a published path, or None if no such path was published."""
    rows = store.rows("SELECT plan FROM versions WHERE path = ? LIMIT 1", path)
    return Digest(rows[0][0]) if rows else None


def write_versions(tx: Transaction, versions: Iterable[tuple[str, int, Digest]], number: int) -> None:
    """Store the plan of each published boot script. ``versions`` yields (path, modification time, plan).

    ``number`` is the number of the newest decision.
    """
    tx.replace("versions", ("path", "modified"), [(*version, number) for version in versions])


# Observations


class PendingObservation(NamedTuple):
    """An observed fetch of a boot that still needs confirmation by the machine's BMC."""

    id: int
    observation: Observation
    offer: Offer  # the offer of the boot that was fetched
    marks: ResetMarks | None = None  # the first marks that the BMC reported after the fetch


def format_observation(observation: Observation, marks: ResetMarks | None = None) -> str:
    facts: dict[str, Any] = {"server": observation.server, "path": observation.path, "client": observation.client}
    if marks is not None:
        facts["marks"] = marks
    return to_json(facts)


def parse_observation(at: str, plan: str, text: str) -> tuple[Observation, ResetMarks | None]:
    """Decode an observation, and the first marks that the BMC reported after the observation."""
    facts = parse_json_object(text)
    marks = facts.pop("marks", None)
    observation = Observation(**facts, digest=Digest(plan), at=parse_time(at))
    return observation, ResetMarks(**marks) if marks is not None else None


def read_pending_observations(store: Store) -> list[PendingObservation]:
    """Return the observations that do not have a verdict yet, oldest first.

    Observations without a stored offer are omitted.
    """
    with store.reading():
        pending = []
        for number, at, plan, text, offer in store.rows(
            "SELECT observations.id, observations.at, observations.plan, observations.facts, offers.facts"
            " FROM observations LEFT JOIN offers USING (plan) WHERE verdict IS NULL ORDER BY observations.id"
        ):
            observation, marks = parse_observation(at, plan, text)
            if offer is not None:
                pending.append(PendingObservation(number, observation, parse_offer(Digest(plan), offer), marks))
        return pending


def read_last_observation_number(store: Store) -> int:
    return int(store.rows("SELECT COALESCE(MAX(id), 0) FROM observations")[0][0])


def has_observation(store: Store, observation: Observation, plan: Digest) -> bool:
    """Return whether an observation is stored, with or without a verdict."""
    at = format_instant(observation.at)
    with store.reading():
        rows = store.rows("SELECT facts FROM observations WHERE at = ? AND plan = ?", at, plan)
        stored = (parse_observation(at, plan, facts)[0] for (facts,) in rows)
        return any(format_observation(each) == format_observation(observation) for each in stored)


def write_pending_observations(tx: Transaction, pending: Iterable[PendingObservation]) -> None:
    """Store observations without a verdict, each with the first marks that the BMC reported after it."""
    tx.executemany(
        "INSERT INTO observations (id, at, plan, facts) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET facts = excluded.facts",
        [
            (number, format_instant(observation.at), offer.plan, format_observation(observation, marks))
            for number, observation, offer, marks in pending
        ],
    )


def write_verdicts(tx: Transaction, verdicts: Mapping[int, str]) -> None:
    tx.executemany(
        "UPDATE observations SET verdict = ? WHERE id = ?", [(verdict, number) for number, verdict in verdicts.items()]
    )


def delete_old_rows(tx: Transaction, before: datetime) -> None:
    """Delete offers, versions, and observations with a verdict if they are older than ``before``.

    The function keeps the newest version of each path, and the offers for all versions that it keeps.
    """
    at, stamp = format_instant(before), int(before.timestamp())
    tx.execute(
        "DELETE FROM versions WHERE modified < ? AND modified <"
        " (SELECT MAX(latest.modified) FROM versions AS latest WHERE latest.path = versions.path)",
        (stamp,),
    )
    tx.execute("DELETE FROM offers WHERE at < ? AND plan NOT IN (SELECT plan FROM versions)", (at,))
    tx.execute("DELETE FROM observations WHERE at < ? AND verdict IS NOT NULL", (at,))


# Positions in the fetch log, known BMCs and fetches of secrets


def read_spool_positions(store: Store) -> dict[str, int]:
    return dict(store.rows("SELECT file, taken FROM spool ORDER BY file"))


def write_spool_positions(tx: Transaction, positions: Mapping[str, int]) -> None:
    """Store how far gitboot has read each file in the fetch log.

    Call this function in the transaction that stores the fetches.
    """
    tx.execute("DELETE FROM spool")
    tx.executemany("INSERT INTO spool VALUES (?, ?)", sorted(positions.items()))


def read_known_bmcs(store: Store) -> frozenset[CredentialUse]:
    """Return the known BMCs, each as its address and the name of its credentials.

    The function normalizes the addresses, because version 0.1.0 stored them as they were written in documents.
    """
    with store.reading():
        return frozenset((normalize_origin(address), name) for address, name in store.rows("SELECT * FROM known_bmcs"))


def write_known_bmcs(tx: Transaction, pairs: Iterable[CredentialUse]) -> None:
    tx.execute("DELETE FROM known_bmcs")
    tx.executemany("INSERT INTO known_bmcs VALUES (?, ?)", sorted(pairs))


def read_secret_fetches(store: Store) -> dict[SystemUuid, InstallationFetches]:
    with store.reading():
        rows = store.rows("SELECT uuid, facts FROM secret_fetches ORDER BY uuid")
        return {SystemUuid(uuid): parse_struct(InstallationFetches, facts) for uuid, facts in rows}


def write_secret_fetches(tx: Transaction, fetches: Mapping[SystemUuid, InstallationFetches | None]) -> None:
    """Store each server's fetches of secrets.

    The value None deletes a server's entry. gitboot does not treat a restored backup as outdated if it lacks these
    fetches, because fetches of secrets do not affect plans.
    """
    deleted = [(uuid,) for uuid, server_fetches in fetches.items() if server_fetches is None]
    tx.delete("secret_fetches", ("uuid",), deleted)
    rows = [(uuid, to_json(server_fetches)) for uuid, server_fetches in fetches.items() if server_fetches is not None]
    tx.replace("secret_fetches", ("uuid",), rows)
