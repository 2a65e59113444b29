"""Instance tables of the ledger: facts, approvals, requests, events and token keys."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, to_builtins

from gitboot.artifacts.availability import FileSigner, Presence, Sighting
from gitboot.errors import FleetOrders
from gitboot.jsonio import Digest, convert, format_instant, to_json_value
from gitboot.ledger.server_tables import parse_json_object, parse_struct, parse_time, parse_time_or_none, to_json
from gitboot.ledger.store import Store, Transaction, open_read_only
from gitboot.model.scalars import SystemUuid, parse_uuid
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.resolve.server_decision import BootFile, FileProof, WithheldBoot
from gitboot.status.conditions import Event
from gitboot.system_clock import Uptime


class Request(NamedTuple):
    """A request from an operator to the instance that uses this ledger."""

    id: int
    at: datetime
    operator: str
    action: str  # the kind of request, such as records, resolve or retry
    facts: Any  # a JSON object, whose keys depend on the action; its text if Python cannot decode it


class Suspension(Struct, frozen=True):
    """A period in which gitboot does not accept commits or set new boot overrides."""

    who: str
    reason: str
    until: datetime


class Approval(NamedTuple):
    """An operator's approval, which lets the changes with this digest pass the named guards."""

    digest: str
    guards: tuple[str, ...]
    at: datetime
    operator: str
    reason: str

    @property
    def by(self) -> str:
        return f"{self.operator}, with gitboot approve: {self.reason}"


class Heartbeat(NamedTuple):
    """The instance's last heartbeat, and the intervals between earlier heartbeats."""

    at: datetime
    intervals: tuple[timedelta, ...] = ()
    up: Uptime | None = None  # the uptime of the host's kernel at the heartbeat


class WithheldBoots(NamedTuple):
    """Install boots of the accepted commit that gitboot withholds because newer commits do not offer them."""

    by: str  # the newest commit that was evaluated
    servers: Mapping[SystemUuid, tuple[WithheldBoot, ...]]


class Facts(Struct, frozen=True, kw_only=True):
    """Facts about a ledger and its instance, each stored in its own row."""

    identity: str
    accepted: str | None = None  # the last accepted commit
    branch: str | None = None  # the Git reference that the instance follows: refs/heads/main, or the value of --rev
    is_default_branch: bool = False  # whether the branch came from HEAD at the first start, and not from --rev
    searched: str | None = None  # the accepted commit whose history was last searched for acknowledgements
    lapsed: str | None = None  # set in a ledger copy for a dry run: the accepted commit, which the clone may lack
    # The number of decisions so far. A decision is an accepted commit, or an operator's request to offer boots again.
    # Each offer stores the number of the newest decision, so that gitboot can tell evidence for an older offer from
    # evidence for a newer offer.
    sequence: int = 0
    initialised: str | None = None  # how the first records were created: fresh, adopt or records
    begun: datetime | None = None  # when an operator requested the first records
    doubt: str | None = None  # why the ledger is unverified, for example RestoredLedger; None: it is verified
    observes: bool = True  # whether the instance receives the fetches of machines
    foreign: str | None = None  # another ledger whose output tree is in this instance's OUTPUT
    heir_of: str | None = None  # the ledger whose output tree this instance took over
    output: str | None = None  # the instance's OUTPUT
    spool: str | None = None  # the folder of the fetch log, to which endpoints write
    # The site whose servers the instance manages; "": all servers; None: the instance has not run yet.
    site: str | None = None
    closes_output: bool = False  # whether only the owner and the group may read the published files
    published: bool = False  # whether the instance has ever published to the output folder
    keyed: bool = False  # whether the instance creates tokens with its secret key
    heartbeat: Heartbeat | None = None
    gap: bool = False  # whether the instance was down for a long time and has not accepted the newest commit since
    # kept: a time service synchronizes the host's clock; accepted: an operator confirmed the clock
    clock: str | None = None
    suspension: Suspension | None = None
    stop_order: StopOrder | None = None
    # The orders in the newest commit's Fleet document, if that commit is not accepted.
    orders: FleetOrders | None = None
    withheld: WithheldBoots | None = None  # None: the evaluated commits offer the same boots as the accepted commit
    # The servers whose boot was removed by an accepted commit before their record showed a fetch of the boot, with the
    # number of that decision. If evidence for an older offer arrives later, gitboot does not count it as an
    # installation.
    rolled_back: Mapping[SystemUuid, int] = field(default_factory=dict)
    # Servers whose one-time boot was in OUTPUT before an upgrade of gitboot and is not served now. None: gitboot has
    # not determined them yet.
    left_output: frozenset[SystemUuid] | None = None


class _Fact(NamedTuple):
    """How the ledger stores one field of `Facts`."""

    name: str
    parse: Callable[[str], Any] = str
    format: Callable[[Any], str | None] = str  # returns None if the ledger does not store the value


def _build_flag(name: str, value: str = "yes") -> _Fact:
    return _Fact(name, bool, lambda is_true: value if is_true else None)


def _parse_heartbeat(text: str) -> Heartbeat:
    facts = parse_json_object(text)
    up = facts.get("up")
    intervals = tuple(timedelta(seconds=interval_s) for interval_s in facts["intervals"])
    return Heartbeat(parse_time(facts["at"]), intervals, Uptime(*up) if up is not None else None)


def _format_heartbeat(beat: Heartbeat) -> str:
    return to_json({"at": beat.at, "intervals": [each.total_seconds() for each in beat.intervals], "up": beat.up})


def _parse_withheld(text: str) -> WithheldBoots:
    facts = parse_json_object(text)
    servers = {parse_uuid(uuid): tuple(map(_parse_withheld_boot, boots)) for uuid, boots in facts["servers"].items()}
    return WithheldBoots(facts["by"], servers)


def _parse_withheld_boot(facts: Mapping[str, Any]) -> WithheldBoot:
    return WithheldBoot(
        facts["maintenance"],
        parse_time_or_none(facts["start"]),
        parse_time_or_none(facts["end"]),
        takes_image_back=facts["takesImageBack"],
        by=facts["by"],
    )


_KEYED: Final = "keyed"  # older versions of gitboot, without token keys, stored other values
_FACTS: Final[Mapping[str, _Fact]] = {
    "accepted": _Fact("accepted"),
    "branch": _Fact("branch"),
    "is_default_branch": _build_flag("isDefaultBranch"),
    "searched": _Fact("searched"),
    "lapsed": _Fact("lapsed"),
    "sequence": _Fact("sequence", int),
    "initialised": _Fact("initialised"),
    "begun": _Fact("begun", parse_time, format_instant),
    "doubt": _Fact("doubt"),
    "observes": _Fact("observes", lambda text: text != "no", lambda observes: None if observes else "no"),
    "foreign": _Fact("foreign"),
    "heir_of": _Fact("heirOf"),
    "output": _Fact("output"),
    "spool": _Fact("spool"),
    "site": _Fact("site"),
    "closes_output": _build_flag("closesOutput"),
    "published": _build_flag("published", _KEYED),
    "keyed": _Fact("published", lambda text: text == _KEYED),
    "heartbeat": _Fact("heartbeat", _parse_heartbeat, _format_heartbeat),
    "gap": _build_flag("gap"),
    "clock": _Fact("clock"),
    "suspension": _Fact("suspension", partial(parse_struct, Suspension), to_json),
    "stop_order": _Fact(
        "stoppage", lambda text: StopOrder(**parse_json_object(text)), lambda order: to_json(order._asdict())
    ),
    "orders": _Fact(
        "orders", lambda text: FleetOrders(**parse_json_object(text)), lambda orders: to_json(orders._asdict())
    ),
    "withheld": _Fact("withheld", _parse_withheld, lambda boots: to_json(to_json_value(boots))),
    "rolled_back": _Fact(
        "rolledBack",
        lambda text: {parse_uuid(uuid): int(number) for uuid, number in parse_json_object(text).items()},
        lambda servers: to_json(servers) if servers else None,
    ),
    "left_output": _Fact(
        "leftOutput",
        lambda text: frozenset(map(parse_uuid, parse_json_object(text)["servers"])),
        lambda servers: to_json({"servers": sorted(servers)}),
    ),
}


def read_facts(store: Store) -> Facts:
    with store.reading():
        texts: dict[str, str] = dict(store.rows("SELECT name, value FROM facts"))
        return Facts(
            identity=texts["identity"],
            **{name: fact.parse(texts[fact.name]) for name, fact in _FACTS.items() if fact.name in texts},
        )


def write_facts(tx: Transaction, **values: Any) -> None:
    for name, value in values.items():
        fact = _FACTS[name]
        _write_fact(tx, fact.name, fact.format(value) if value is not None else None)


def _write_fact(tx: Transaction, name: str, text: str | None) -> None:
    if text is None:
        tx.execute("DELETE FROM facts WHERE name = ?", (name,))
    else:
        tx.replace("facts", ("name",), [(name, text)])


def write_changed_facts(tx: Transaction, before: Facts, now: Facts) -> None:
    changed = (name for name in _FACTS if getattr(now, name) != getattr(before, name))
    write_facts(tx, **{name: getattr(now, name) for name in changed})


def mark_accepted_commit_missing(tx: Transaction) -> None:
    """Record in a copy of a ledger that the clone may lack the accepted commit."""
    tx.execute("UPDATE facts SET name = 'lapsed' WHERE name = 'accepted'")


def mark_unverified(store: Store, reason: str, known_changes: int = 0) -> None:
    """Mark a ledger as unverified until an operator initializes it again.

    The change number never decreases. After the call, it is at least as high as the number in the mark file beside the
    ledger and as ``known_changes``, a number that the caller read elsewhere.
    """
    mark = store.mark
    marked_changes = mark[1] if mark is not None else 0
    with store.writing() as tx:
        write_facts(tx, doubt=reason)
        stored_changes = [int(value) for (value,) in tx.rows("SELECT value FROM facts WHERE name = 'changes'")]
        _write_fact(tx, "changes", str(max(known_changes, marked_changes, *stored_changes, 0)))
        tx.mark()


def is_behind(store: Store) -> bool:
    """Return whether the ledger was replaced with an older copy.

    After such a replacement, the mark file belongs to another ledger or to a newer state of this ledger. Only the
    process that writes to the ledger may call this function, because another process could mistake a concurrent write
    for a newer mark.
    """
    identity, changes = store.progress
    if (mark := store.mark) is None:
        # gitboot writes a mark at every change. A local ledger with changes but without a mark is therefore a copy. In
        # a database, the changes may come from another host.
        return changes > 0 and store.database.is_local
    return mark[0] != identity or mark[1] > changes


_KEY_BYTES: Final = 32


def ensure_status_key(store: Store) -> bytes:
    """Return the key that authenticates commit statuses written with this ledger. The first call creates the key.

    All hosts that share the ledger use the same key, and the key never changes.
    """
    query = "SELECT value FROM facts WHERE name = 'statusKey'"
    if not store.rows(query):
        with store.writing() as tx:
            if not tx.rows(query):
                _write_fact(tx, "statusKey", secrets.token_hex(_KEY_BYTES))
    ((value,),) = store.rows(query)
    return bytes.fromhex(value)


def write_sightings(tx: Transaction, sightings: Mapping[BootFile, Sighting], place: str) -> None:
    """Store the results of the artifact checks that the instance at ``place`` made, except unknown results."""
    items = []
    for file in sorted(sightings, key=lambda file: (file.url, file.sha256 or "", file.size or 0, str(file.proof))):
        sighting = sightings[file]
        if not sighting.is_known:
            continue
        item = {**to_json_value(file), "presence": sighting.presence, "message": sighting.message}
        if file.proof is not None:
            item["proof"] = to_builtins(file.proof)
        if sighting.signer is not None:
            item["signer"] = to_builtins(sighting.signer)
        items.append(item)
    _write_fact(tx, "artifacts", to_json({"place": place, "items": items}) if items else None)


def read_sightings(store: Store, place: str) -> dict[BootFile, Sighting]:
    """Return the results of the artifact checks that the instance at ``place`` made."""
    for (value,) in store.rows("SELECT value FROM facts WHERE name = 'artifacts'"):
        facts = parse_json_object(value)
        if facts["place"] in ("", place):
            return parse_sightings(facts["items"])
    return {}


def parse_sightings(items: Iterable[Mapping[str, Any]]) -> dict[BootFile, Sighting]:
    """Parse the stored results of artifact checks. Raises KeyError, TypeError or ValueError for malformed items."""
    return {
        BootFile(
            url=item["url"],
            sha256=Digest(item["sha256"]) if item["sha256"] is not None else None,
            size=item["size"],
            proof=convert(item["proof"], FileProof) if "proof" in item else None,
        ): Sighting(
            presence=Presence(item["presence"]),
            message=item["message"],
            signer=convert(item["signer"], FileSigner) if "signer" in item else None,
        )
        for item in items
    }


def read_approvals(store: Store) -> dict[str, dict[str, str]]:
    """Return the approver and the reason of each approval, by digest of the changes and then by guard."""
    approvers: dict[str, dict[str, str]] = {}
    for digest, guard, at, who, reason in store.rows("SELECT digest, guard, at, who, reason FROM approvals"):
        approval = Approval(digest, (guard,), datetime.fromisoformat(at), who, reason)
        approvers.setdefault(digest, {})[guard] = approval.by
    return approvers


def write_approvals(tx: Transaction, approvals: Iterable[Approval]) -> None:
    tx.replace(
        "approvals",
        ("digest", "guard"),
        [
            (approval.digest, guard, format_instant(approval.at), approval.operator, approval.reason)
            for approval in approvals
            for guard in approval.guards
        ],
    )


def delete_approvals(tx: Transaction, changes: Iterable[str]) -> None:
    tx.executemany("DELETE FROM approvals WHERE digest = ?", [(each,) for each in changes])


def add_request(store: Store, at: datetime, operator: str, action: str, facts: Mapping[str, Any]) -> int:
    """Add a request to the instance, and return the request's number. Any process may call this function."""
    with store.writing() as tx:
        ((number,),) = tx.rows(
            "INSERT INTO requests (at, who, what, facts) VALUES (?, ?, ?, ?) RETURNING id",
            (format_instant(at), operator, action, to_json(facts)),
        )
    return int(number)


def read_requests(store: Store) -> tuple[Request, ...]:
    """Return the requests without an outcome, oldest first."""
    with store.reading():
        rows = store.rows("SELECT id, at, who, what, facts FROM requests WHERE outcome IS NULL ORDER BY id")
        return tuple(
            Request(number, parse_time(at), operator, action, _parse_request_facts(facts))
            for number, at, operator, action, facts in rows
        )


def _parse_request_facts(text: str) -> dict[str, Any] | str:
    """Decode a request. Return the text itself if Python rejects its long integers or its depth.

    The instance rejects such a request, but the ledger stays readable.
    """
    try:
        return parse_json_object(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):
        return text


def write_outcomes(tx: Transaction, outcomes: Iterable[tuple[Request, str]], at: datetime) -> None:
    tx.executemany(
        "UPDATE requests SET outcome = ?, done_at = ? WHERE id = ?",
        [(outcome, format_instant(at), request.id) for request, outcome in outcomes],
    )


def read_outcome(store: Store, number: int) -> str | None:
    """Return the outcome of a request, or None if the request has no outcome yet or does not exist."""
    rows = store.rows("SELECT outcome FROM requests WHERE id = ?", number)
    return rows[0][0] if rows else None


def read_acknowledgements(store: Store) -> frozenset[str]:
    return frozenset(entry for (entry,) in store.rows("SELECT entry FROM acknowledgements"))


def add_acknowledgements(tx: Transaction, entries: Iterable[str]) -> None:
    """Record that acknowledgements were used.

    gitboot treats a restored backup as outdated if the backup lacks one of these acknowledgements.
    """
    if rows := [(entry,) for entry in sorted(entries)]:
        tx.replace("acknowledgements", ("entry",), rows)
        tx.mark()


def write_events(tx: Transaction, events: Iterable[Event]) -> None:
    rows = []
    for event in events:
        level = {"level": "warning"} if event.warning else {}
        rows.append((format_instant(event.at), event.type, event.message, to_json({**event.facts, **level})))
    tx.insert("events", ("at", "type", "message", "facts"), rows)


def read_numbered_events(store: Store, after: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the event for each event whose number is above ``after``, oldest first."""
    query = "SELECT id, at, type, message, facts FROM events WHERE id > ? ORDER BY id"
    for number, at, type, message, text in store.rows(query, after):
        with store.reading():
            yield int(number), {"at": at, "type": type, "message": message, **parse_json_object(text)}


def read_accepted_commits(store: Store) -> tuple[str, ...]:
    rows = store.rows("SELECT facts FROM events WHERE type = 'Accepted'")
    with store.reading():
        commits = (parse_json_object(facts).get("commit") for (facts,) in rows)
        return tuple(sorted({commit for commit in commits if isinstance(commit, str)}))


def read_last_event_number(path: Path) -> int:
    """Return the number of the newest event in the ledger at ``path``, or 0 if there are no events."""
    with open_read_only(path) as database:
        ((number,),) = database.execute("SELECT coalesce(max(id), 0) FROM events")
        return int(number)


def read_events_after(path: Path, number: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbers and events of up to ``limit`` events whose number is above ``number``, oldest first."""
    query = "SELECT id, at, type, message, facts FROM events WHERE id > ? ORDER BY id LIMIT ?"
    with open_read_only(path) as database:
        return [
            (int(id), {"at": at, "type": type, "message": message, **parse_json_object(facts)})
            for id, at, type, message, facts in database.execute(query, (number, limit))
        ]


def read_token_keys(store: Store) -> tuple[str, ...]:
    return tuple(line for (line,) in store.rows("SELECT line FROM token_keys ORDER BY number"))


def write_token_keys(tx: Transaction, lines: Sequence[str]) -> None:
    tx.execute("DELETE FROM token_keys")
    tx.executemany("INSERT INTO token_keys VALUES (?, ?)", list(enumerate(lines)))
