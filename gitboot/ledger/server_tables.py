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


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def parse_time_or_none(text: str | None) -> datetime | None:
    return parse_time(text) if text is not None else None


def to_json(value: object) -> str:
    """Encode a value as JSON. Times are encoded as text, and structures as objects."""
    return json.dumps(value, sort_keys=True, default=_to_plain_value)


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    return structs.asdict(value) if isinstance(value, Struct) else asdict(value)


def to_json_or_none(value: object) -> str | None:
    return to_json(value) if value is not None else None


def parse_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("expected an object")
    return value


def parse(kind: type[T], text: str, **more: object) -> T:
    """Decode a structure that `to_json` encoded.

    ``more`` contains the values of fields that are not in the JSON. Raises ValueError or TypeError if the JSON does not
    match the structure. Unknown fields raise an error too, because a newer version of gitboot may have written them and
    a later write would lose them.
    """
    found = {**parse_object(text), **more}
    if not found.keys() <= set(kind.__struct_fields__):
        raise TypeError(f"expected only {kind.__name__} fields")
    return convert(found, kind)


def _parse_or_none(kind: type[T], text: str | None) -> T | None:
    return parse(kind, text) if text is not None else None


_parse_texts: Final = build_json_decoder(list[str])


def _format_time_or_none(at: datetime | None) -> str | None:
    return format_instant(at) if at else None


# Records

_RECORD: Final = (
    "provision, image, pool, decision, evidence, provisioned_at, grace_until, consumed_at, consumed_key,"
    " overwritten_by, offered, answered, taken_back, attempts, released, unknown_serves, clearances, version"
)
_NO_ATTEMPTS: Final = "[]"
_NO_CLEARANCES: Final = "{}"
_RUNS: Final = ("uuid", "maintenance", "run", "made_at", "window_end", "seen")


def _record_to_row(record: Record) -> tuple[Any, ...]:
    return (
        *(record.provision, record.image, record.pool, record.decision, record.evidence),
        *map(_format_time_or_none, (record.provisioned_at, record.grace_until, record.consumed_at)),
        *(record.consumed_key, record.overwritten_by, record.offered, record.answered, record.taken_back),
        to_json([make_attempt_fields(each) for each in record.attempts]),
        record.released,
        to_json(to_json_value(record.unknown_serves)),
        to_json(to_json_value(record.clearances)) if record.clearances else _NO_CLEARANCES,
        record.version,
    )


def _parse_record(row: Sequence[Any], runs: Mapping[str, Run]) -> Record:
    provision, image, pool, decision, evidence, *instants = row[:8]
    consumed_key, overwritten_by, offered, answered, taken_back, attempts, released, *rest = row[8:]
    unknown_serves, clearances, version = rest
    provisioned_at, grace_until, consumed_at = map(parse_time_or_none, instants)
    return Record(
        provision=provision,
        image=image,
        pool=pool,
        decision=Digest(decision) if decision else None,
        evidence=evidence,
        provisioned_at=provisioned_at,
        grace_until=grace_until,
        consumed_at=consumed_at,
        consumed_key=consumed_key,
        runs=runs,
        offered=offered,
        answered=answered,
        taken_back=taken_back,
        attempts=tuple(map(parse_attempt, json.loads(attempts))) if attempts != _NO_ATTEMPTS else (),
        overwritten_by=overwritten_by,
        released=released,
        unknown_serves=parse_unknown_serves(json.loads(unknown_serves)) if unknown_serves != _NO_ATTEMPTS else (),
        clearances=parse_clearances(json.loads(clearances)) if clearances != _NO_CLEARANCES else {},
        version=version,
    )


# Values


_OVERRIDE: Final = (
    "reason, plan_digest, override, marks, state, at, corrections, replaces, bmc, shown, writes_disk, medium,"
    " data_medium, clears_from"
)


def override_to_row(record: OverrideRecord) -> tuple[Any, ...]:
    return (
        record.reason,
        record.plan_digest,
        to_json(record.override),
        to_json(record.marks),
        record.state,
        format_instant(record.at),
        to_json(record.corrections),
        to_json_or_none(record.replaces),
        to_json_or_none(record.bmc),
        to_json(record.shown),
        int(record.writes_disk),
        to_json_or_none(record.medium),
        to_json_or_none(record.data_medium),
        _format_time_or_none(record.clears_from),
    )


def override_from_row(row: Sequence[Any]) -> OverrideRecord:
    reason, plan_digest, override, marks, state, at, corrections, replaces, bmc, shown, writes_disk, *rest = row
    medium, data_medium, clears_from = rest
    return OverrideRecord(
        reason=reason,
        plan_digest=plan_digest,
        override=parse(Override, override),
        marks=parse(ResetMarks, marks),
        state=OverrideState(state),
        at=parse_time(at),
        corrections=tuple(map(parse_time, json.loads(corrections))),
        replaces=_parse_or_none(Override, replaces),
        bmc=_parse_or_none(BmcAccess, bmc),
        shown=parse(ReportedIdentity, shown),
        writes_disk=bool(writes_disk),
        medium=_parse_or_none(Medium, medium),
        data_medium=_parse_or_none(Medium, data_medium),
        clears_from=parse_time_or_none(clears_from),
    )


_OFFER: Final = tuple(name for name in Offer.__struct_fields__ if name != "plan")  # `plan` is the key of the table


def format_offer(offer: Offer) -> str:
    found = {name: getattr(offer, name) for name in _OFFER}
    return encode_canonical(
        {**found, "start": _format_time_or_none(offer.start), "end": _format_time_or_none(offer.end)}
    ).decode()


def parse_offer(plan: Digest, text: str) -> Offer:
    return parse(Offer, text, plan=plan)


def format_observation(observation: Observation, marks: ResetMarks | None = None) -> str:
    found = {"server": observation.server, "path": observation.path, "client": observation.client}
    return to_json({**found, "marks": marks} if marks is not None else found)


def parse_observation(at: str, plan: str, text: str) -> tuple[Observation, ResetMarks | None]:
    found = parse_object(text)
    marks = found.pop("marks", None)
    return Observation(**found, digest=Digest(plan), at=parse_time(at)), ResetMarks(
        **marks
    ) if marks is not None else None


class PendingObservation(NamedTuple):
    """An observed fetch of a boot that still needs confirmation by the machine's BMC."""

    id: int
    observation: Observation
    offer: Offer  # the offer of the boot that was fetched
    marks: ResetMarks | None = None  # the first marks that the BMC reported after the fetch


# Offers


def find_offer(store: Store, plan: Digest) -> Offer | None:
    """Return the stored offer for a plan, or None if no offer is stored."""
    with store.reading():
        found = store.rows("SELECT facts FROM offers WHERE plan = ?", plan)
        return parse_offer(plan, found[0][0]) if found else None


def write_offers(tx: Transaction, offers: Iterable[Offer], at: datetime) -> None:
    """Store the offers of boots that gitboot is about to publish.

    The new offers replace earlier offers of the same plans. gitboot treats a restored backup as outdated if the backup
    lacks a new offer, because gitboot could not recognize a fetch of that boot.
    """
    rows = [(each.plan, format_instant(at), format_offer(each)) for each in offers]
    if not all(tx.rows("SELECT 1 FROM offers WHERE plan = ?", each[:1]) for each in rows):
        tx.mark()
    tx.executemany("INSERT INTO offers VALUES (?, ?, ?) ON CONFLICT (plan) DO UPDATE SET facts = excluded.facts", rows)


def find_version(store: Store, path: str, modified_at: int) -> tuple[Digest, int] | None:
    """Return the plan and the decision number of the boot script with this path and modification time.

    The decision number is the number of the newest decision when the script was published. The result is None if there
    is no such boot script.
    """
    found = store.rows("SELECT plan, number FROM versions WHERE path = ? AND modified = ?", path, modified_at)
    return (Digest(found[0][0]), found[0][1]) if found else None


def has_version_modified_at(store: Store, modified_at: int) -> bool:
    return bool(store.rows("SELECT 1 FROM versions WHERE modified = ? LIMIT 1", modified_at))


def find_token(store: Store, path: str) -> Digest | None:
    """Return the token in a published path, or None if no such path was published."""
    found = store.rows("SELECT plan FROM versions WHERE path = ? LIMIT 1", path)
    return Digest(found[0][0]) if found else None


def write_versions(tx: Transaction, versions: Iterable[tuple[str, int, Digest]], number: int) -> None:
    """Store the plan of each published boot script. ``versions`` yields (path, modification time, plan).

    ``number`` is the number of the newest decision.
    """
    tx.replace("versions", ("path", "modified"), [(*each, number) for each in versions])


# Observations


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
        found = store.rows("SELECT facts FROM observations WHERE at = ? AND plan = ?", at, plan)
        stored = (parse_observation(at, plan, facts)[0] for (facts,) in found)
        return any(format_observation(each) == format_observation(observation) for each in stored)


def write_pending_observations(tx: Transaction, pending: Iterable[PendingObservation]) -> None:
    """Store observations without a verdict, each with the first marks that the BMC reported after it."""
    tx.executemany(
        "INSERT INTO observations (id, at, plan, facts) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET facts = excluded.facts",
        [
            (
                each.id,
                format_instant(each.observation.at),
                each.offer.plan,
                format_observation(each.observation, each.marks),
            )
            for each in pending
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


# The spool


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


def read_lost_identities(store: Store) -> frozenset[LostIdentity]:
    found = store.rows("SELECT kind, value, uuid, netboots FROM lost_identities")
    return frozenset(LostIdentity(kind, value, SystemUuid(uuid), bool(boots)) for kind, value, uuid, boots in found)


def write_lost_identities(tx: Transaction, before: Collection[LostIdentity], now: Collection[LostIdentity]) -> None:
    """Replace the stored lost identities. gitboot treats a restored backup without a new lost identity as outdated."""
    table, key = "lost_identities", ("kind", "value", "uuid")
    removed, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    if removed:
        tx.delete(table, key, [(str(each.kind), each.value, each.uuid) for each in removed])
    if new:
        tx.replace(table, key, [(str(each.kind), each.value, each.uuid, int(each.netboots)) for each in new])
        tx.mark()


def read_machines(store: Store) -> dict[SystemUuid, Machine]:
    with store.reading():
        rows = store.rows("SELECT uuid, name, macs, serial, bmc FROM machines ORDER BY uuid")
        return {
            uuid: Machine(
                uuid=SystemUuid(uuid),
                name=name,
                macs=tuple(map(MacAddress, _parse_texts(macs))),
                serial=serial,
                bmc=_parse_or_none(BmcAccess, bmc),
            )
            for uuid, name, macs, serial, bmc in rows
        }


def read_current_machines(store: Store) -> frozenset[SystemUuid]:
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
            (each.uuid, each.name, to_json(each.macs), each.serial, to_json_or_none(each.bmc), int(is_current))
            for each in machines
        ],
    )


def read_overrides(store: Store) -> dict[SystemUuid, dict[str, OverrideRecord]]:
    """Return the override records, by machine and reason."""
    with store.reading():
        rows = store.rows(f"SELECT uuid, {_OVERRIDE} FROM overrides ORDER BY uuid, reason")  # noqa: S608 - constant
        return _group_by_reason((uuid, override_from_row(rest)) for uuid, *rest in rows)


def write_overrides(tx: Transaction, overrides: Iterable[tuple[SystemUuid, OverrideRecord]]) -> None:
    if found := [(uuid, *override_to_row(record)) for uuid, record in overrides]:
        tx.mark()
        tx.replace("overrides", ("uuid", "reason"), found)


def read_pins(store: Store) -> dict[SystemUuid, PinnedIdentity]:
    with store.reading():
        rows = store.rows("SELECT * FROM pins ORDER BY uuid")
        return {SystemUuid(uuid): parse(PinnedIdentity, found) for uuid, found in rows}


def write_pins(tx: Transaction, pins: Iterable[tuple[SystemUuid, PinnedIdentity]]) -> None:
    """Store the pinned machine identity that each BMC must report.

    gitboot does not treat a restored backup as outdated if it lacks a pinned identity, because gitboot pins the
    identity again at the next contact with the BMC.
    """
    tx.replace("pins", ("uuid",), [(uuid, to_json(each)) for uuid, each in pins])


def read_records(store: Store) -> dict[SystemUuid, Record]:
    """Return the records of servers, by UUID. If a server has no record, its installation state is unknown."""
    with store.reading():
        runs: dict[str, dict[str, Run]] = {}
        for uuid, maintenance, *columns in store.rows(f"SELECT {', '.join(_RUNS)} FROM runs"):  # noqa: S608 - constant
            number, made_at, end, seen = columns
            run = Run(number, parse_time(made_at), parse_time_or_none(end), **parse_run_evidence(parse_object(seen)))
            runs.setdefault(uuid, {})[maintenance] = run
        found = store.rows(f"SELECT uuid, {_RECORD} FROM records ORDER BY uuid")  # noqa: S608 - constant
        return {SystemUuid(uuid): _parse_record(rest, runs.get(uuid, {})) for uuid, *rest in found}


def write_records(tx: Transaction, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
    """Store records. ``records`` contains tuples of UUID, server name and record."""
    found = {uuid: (server, record) for uuid, server, record in records}
    if not found:
        return
    tx.mark()
    tx.replace("records", ("uuid",), [(uuid, server, *_record_to_row(each)) for uuid, (server, each) in found.items()])
    tx.delete("runs", ("uuid",), [(uuid,) for uuid in found])
    runs = [(uuid, name, run) for uuid, (_, each) in found.items() for name, run in sorted(each.runs.items())]
    tx.insert(
        "runs",
        _RUNS,
        [
            (uuid, name, run.run, format_instant(run.at), _format_time_or_none(run.end), to_json(make_run_fields(run)))
            for uuid, name, run in runs
        ],
    )


def delete_records(tx: Transaction, uuids: Collection[SystemUuid]) -> None:
    if uuids:
        tx.mark()
        for table in ("records", "runs"):
            tx.delete(table, ("uuid",), [(uuid,) for uuid in uuids])


def delete_all_records(tx: Transaction) -> None:
    """Delete the records of all servers, but not their overrides."""
    tx.execute("DELETE FROM records")
    tx.execute("DELETE FROM runs")
    tx.mark()


def read_secret_fetches(store: Store) -> dict[SystemUuid, InstallationFetches]:
    with store.reading():
        found = store.rows("SELECT uuid, facts FROM secret_fetches ORDER BY uuid")
        return {SystemUuid(uuid): parse(InstallationFetches, facts) for uuid, facts in found}


def write_secret_fetches(tx: Transaction, fetches: Mapping[SystemUuid, InstallationFetches | None]) -> None:
    """Store each server's fetches of secrets.

    The value None deletes a server's entry. gitboot does not treat a restored backup as outdated if it lacks these
    fetches, because fetches of secrets do not affect plans.
    """
    tx.delete("secret_fetches", ("uuid",), [(uuid,) for uuid, each in fetches.items() if each is None])
    tx.replace(
        "secret_fetches", ("uuid",), [(uuid, to_json(each)) for uuid, each in fetches.items() if each is not None]
    )


def read_power_records(store: Store) -> dict[SystemUuid, dict[str, PowerRecord]]:
    """Return the recorded power changes, by machine and reason."""
    with store.reading():
        rows = store.rows("SELECT uuid, facts FROM switches ORDER BY uuid, reason")
        return _group_by_reason((uuid, parse(PowerRecord, facts)) for uuid, facts in rows)


R = TypeVar("R", OverrideRecord, PowerRecord)


def _group_by_reason(records: Iterable[tuple[str, R]]) -> dict[SystemUuid, dict[str, R]]:
    found: dict[SystemUuid, dict[str, R]] = {}
    for uuid, record in records:
        found.setdefault(SystemUuid(uuid), {})[record.reason] = record
    return found


def write_power_records(tx: Transaction, records: Iterable[tuple[SystemUuid, PowerRecord]]) -> None:
    if found := [(uuid, record.reason, to_json(record)) for uuid, record in records]:
        tx.mark()
        tx.replace("switches", ("uuid", "reason"), found)
