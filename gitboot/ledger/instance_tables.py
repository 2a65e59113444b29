"""Instance tables: accepted commit, approvals, requests, events and token keys."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from gitboot.artifacts.availability import Presence, Sighting
from gitboot.errors import Orders
from gitboot.jsonio import Digest, facts, format_instant
from gitboot.ledger import server_tables
from gitboot.ledger.schema import Database
from gitboot.ledger.store import Store, Transaction, open_database
from gitboot.model.scalars import SystemUuid, parse_uuid
from gitboot.resolve.server_decision import BootFile, WithheldBoot
from gitboot.resolve.server_plan import Stoppage
from gitboot.status.events import Event
from gitboot.system_clock import Uptime


def read(store: Store) -> Facts:
    with store.reading():
        found: dict[str, str] = dict(store.rows("SELECT name, value FROM facts"))
        return Facts(
            identity=found["identity"],
            accepted=found.get("accepted"),
            branch=found.get("branch"),
            is_default_branch="isDefaultBranch" in found,
            searched=found.get("searched"),
            lapsed=found.get("lapsed"),
            sequence=int(found.get("sequence", 0)),
            initialised=found.get("initialised"),
            begun=server_tables.instant_or_none(found.get("begun")),
            doubt=found.get("doubt"),
            observes=found.get("observes") != "no",
            foreign=found.get("foreign"),
            heir_of=found.get("heirOf"),
            output=found.get("output"),
            spool=found.get("spool"),
            site=found.get("site"),
            closes_output="closesOutput" in found,
            published="published" in found,
            keyed=found.get("published") == _KEYED,
            heartbeat=_heartbeat(found.get("heartbeat")),
            gap="gap" in found,
            clock=found.get("clock"),
            suspension=_suspension(found.get("suspension")),
            stoppage=Stoppage(**server_tables.json_value(found["stoppage"])) if "stoppage" in found else None,
            orders=Orders(**server_tables.json_value(found["orders"])) if "orders" in found else None,
            withheld=_withheld(found.get("withheld")),
            rolled_back={
                parse_uuid(uuid): int(number)
                for uuid, number in (
                    server_tables.json_value(found["rolledBack"]) if "rolledBack" in found else {}
                ).items()
            },
            left_output=_left_output(found.get("leftOutput")),
        )


def accept(tx: Transaction, commit: str | None) -> None:
    """Note which commit was accepted last; None: none is known any more."""
    _put(tx, "accepted", commit)


def follow(tx: Transaction, reference: str, *, is_default: bool) -> None:
    """Record the reference that the instance follows: of the branch that HEAD named, or what --rev named."""
    _put(tx, "branch", reference)
    _put(tx, "isDefaultBranch", "yes" if is_default else None)


def search(tx: Transaction, commit: str | None) -> None:
    """Note the accepted commit whose history was searched for acknowledgements."""
    _put(tx, "searched", commit)


def lapse(tx: Transaction) -> None:
    """Note that the commit that was accepted is not known where this copy of a ledger is."""
    tx.execute("UPDATE facts SET name = 'lapsed' WHERE name = 'accepted'")


def count_decisions(tx: Transaction, sequence: int) -> None:
    """Note how many decisions there were."""
    _put(tx, "sequence", str(sequence))


def initialise(tx: Transaction, how: str, begun: datetime | None = None) -> None:
    """Note how it became known what was installed before, in a word, and when a person said so; that ends a doubt."""
    _put(tx, "initialised", how)
    _put(tx, "begun", format_instant(begun) if begun is not None else None)
    _put(tx, "doubt", None)


def doubt(store: Store, why: str, known: int = 0) -> None:
    """Trust nothing of it until it is initialised anew, and count on from where the one had come that stood here.

    ``known`` is how many changes something else knows of.
    """
    changes = max(known, (store.mark or ("", 0))[1])
    with store.writing() as tx:
        _put(tx, "doubt", why)
        found = [int(value) for (value,) in tx.rows("SELECT value FROM facts WHERE name = 'changes'")]
        _put(tx, "changes", str(max(changes, *found, 0)))
        tx.mark()


def is_behind(store: Store) -> bool:
    """Whether a backup was put in its place: a ledger stood here that had come further, or another; or nothing says.

    Only for the process that writes to it: what another one writes meanwhile looks the same.
    """
    identity, changes = store.progress
    if (mark := store.mark) is None:
        # What was ever written to here has a mark. Only a copy has none, or a database to which another host wrote.
        return changes > 0 and store.database.is_local
    return mark[0] != identity or mark[1] > changes


def note_surroundings(tx: Transaction, about: Facts) -> None:
    """Note what holds where the instance runs, for commands that look at it from elsewhere."""
    _put(tx, "observes", None if about.observes else "no")
    _put(tx, "foreign", about.foreign)
    _put(tx, "heirOf", about.heir_of)
    _put(tx, "output", about.output)
    _put(tx, "spool", about.spool)
    _put(tx, "site", about.site)


def close_output(tx: Transaction) -> None:
    """Note that what its instance publishes is for the owner and the group alone, from now on."""
    _put(tx, "closesOutput", "yes")


def note_published(tx: Transaction) -> None:
    """Note that its tree stands where its instance publishes, with tokens by a key that nobody else has."""
    _put(tx, "published", _KEYED)


_KEYED: Final = "keyed"  # a gitboot that had no key has noted another word


def note_life(tx: Transaction, about: Facts) -> None:
    """Note when the instance was alive, and how far its clock is trusted."""
    _put(tx, "gap", "yes" if about.gap else None)
    _put(tx, "clock", about.clock)
    if (beat := about.heartbeat) is not None:
        seconds = [each.total_seconds() for each in beat.intervals]
        _put(
            tx, "heartbeat", server_tables.json_of({"at": format_instant(beat.at), "intervals": seconds, "up": beat.up})
        )


def status_key(store: Store) -> bytes:
    """Return the key that proves which commit statuses the instance of this ledger wrote; make it at the first call.

    The key stays the same for as long as the ledger exists, on every host that shares the ledger.
    """
    query = "SELECT value FROM facts WHERE name = 'statusKey'"
    if not store.rows(query):
        with store.writing() as tx:
            if not tx.rows(query):
                _put(tx, "statusKey", secrets.token_hex(_KEY_BYTES))
    ((value,),) = store.rows(query)
    return bytes.fromhex(value)


_KEY_BYTES: Final = 32


# What holds commits back, and what lets them pass


def suspend(tx: Transaction, suspension: Suspension | None) -> None:
    """Note why and until when no commit is accepted; None: it is."""
    facts = None
    if suspension is not None:
        facts = server_tables.json_of({**suspension._asdict(), "until": format_instant(suspension.until)})
    _put(tx, "suspension", facts)


def stop(tx: Transaction, stoppage: Stoppage | None) -> None:
    """Note what is stopped, and why; None: nothing is."""
    _put(tx, "stoppage", server_tables.json_of(stoppage._asdict()) if stoppage is not None else None)


def order(tx: Transaction, orders: Orders | None) -> None:
    """Note what the newest Fleet says that is obeyed at once, for the time until it is read again after a start."""
    _put(tx, "orders", server_tables.json_of(orders._asdict()) if orders is not None else None)


def withhold(tx: Transaction, withheld: Withheld | None) -> None:
    """Store which install boots newer commits do not offer; None: there are no such boots."""
    value = None
    if withheld is not None:
        servers = {uuid: [_boot_facts(boot) for boot in boots] for uuid, boots in sorted(withheld.servers.items())}
        value = server_tables.json_of({"by": withheld.by, "servers": servers})
    _put(tx, "withheld", value)


def roll_back(tx: Transaction, servers: Mapping[SystemUuid, int]) -> None:
    """Store by which decision the boots of servers were taken back that their records did not show as fetched."""
    _put(tx, "rolledBack", server_tables.json_of(dict(sorted(servers.items()))) if servers else None)


def leave_output(tx: Transaction, servers: Collection[SystemUuid]) -> None:
    """Store the servers whose one-time boot an upgrade took out of OUTPUT, and whose boot nothing serves since."""
    _put(tx, "leftOutput", server_tables.json_of({"servers": sorted(servers)}))


def store_sightings(tx: Transaction, sightings: Mapping[BootFile, Sighting], place: str) -> None:
    """Store which artifacts are there and which are not, as the instance at ``place`` sees them."""
    known = [(file, each) for file, each in sightings.items() if each.presence is not Presence.UNKNOWN]
    known.sort(key=lambda item: (item[0].url, item[0].sha256, item[0].size or 0))
    items = [{**facts(file), "presence": each.presence, "message": each.message} for file, each in known]
    _put(tx, "artifacts", server_tables.json_of({"place": place, "items": items}) if items else None)


def sightings(store: Store, place: str) -> dict[BootFile, Sighting]:
    """Return what `store_sightings` stored, unless the instance at another place saw that."""
    for (value,) in store.rows("SELECT value FROM facts WHERE name = 'artifacts'"):
        if (found := server_tables.json_value(value))["place"] in ("", place):
            return parse_sightings(found["items"])
    return {}


def parse_sightings(items: Iterable[Mapping[str, Any]]) -> dict[BootFile, Sighting]:
    """Return what the ledger stores of artifacts, as values. Raises KeyError, TypeError and ValueError."""
    return dict(map(_sighting, items))


def approvals(store: Store) -> dict[str, dict[str, str]]:
    """Return by whom and why each guard was approved, by the digest of the changes."""
    found: dict[str, dict[str, str]] = {}
    for digest, guard, at, who, reason in store.rows("SELECT digest, guard, at, who, reason FROM approvals"):
        approval = Approval(digest, (guard,), datetime.fromisoformat(at), who, reason)
        found.setdefault(digest, {})[guard] = approval.by
    return found


def approve(tx: Transaction, approvals: Iterable[Approval]) -> None:
    tx.replace(
        "approvals",
        ("digest", "guard"),
        [
            (each.digest, guard, format_instant(each.at), each.who, each.reason)
            for each in approvals
            for guard in each.guards
        ],
    )


def use_up(tx: Transaction, changes: Iterable[str]) -> None:
    """Forget the approvals of changes that were accepted."""
    tx.executemany("DELETE FROM approvals WHERE digest = ?", [(each,) for each in changes])


def _put(tx: Transaction, name: str, value: str | None) -> None:
    if value is None:
        tx.execute("DELETE FROM facts WHERE name = ?", (name,))
    else:
        tx.replace("facts", ("name",), [(name, value)])


def _heartbeat(text: str | None) -> Heartbeat | None:
    if text is None:
        return None
    facts = server_tables.json_value(text)
    return Heartbeat(
        server_tables.instant(facts["at"]),
        tuple(timedelta(seconds=each) for each in facts["intervals"]),
        Uptime(*facts["up"]) if facts.get("up") is not None else None,
    )


def _suspension(text: str | None) -> Suspension | None:
    if text is None:
        return None
    facts = server_tables.json_value(text)
    return Suspension(facts["who"], facts["reason"], server_tables.instant(facts["until"]))


def _boot_facts(boot: WithheldBoot) -> dict[str, Any]:
    window = {"start": _text_or_none(boot.start), "end": _text_or_none(boot.end)}
    return {
        "maintenance": boot.maintenance,
        **window,
        "takesImageBack": boot.takes_image_back,
        "by": boot.by,
    }


def _text_or_none(at: datetime | None) -> str | None:
    return format_instant(at) if at is not None else None


def _sighting(item: Mapping[str, Any]) -> tuple[BootFile, Sighting]:
    file = BootFile(url=item["url"], sha256=Digest(item["sha256"]), size=item["size"])
    return file, Sighting(presence=Presence(item["presence"]), message=item["message"])


def _left_output(text: str | None) -> frozenset[SystemUuid] | None:
    return frozenset(map(parse_uuid, server_tables.json_value(text)["servers"])) if text is not None else None


def _withheld(text: str | None) -> Withheld | None:
    if text is None:
        return None
    facts = server_tables.json_value(text)
    return Withheld(
        facts["by"],
        {parse_uuid(uuid): tuple(map(_withheld_boot, boots)) for uuid, boots in facts["servers"].items()},
    )


def _withheld_boot(facts: Mapping[str, Any]) -> WithheldBoot:
    return WithheldBoot(
        facts["maintenance"],
        server_tables.instant_or_none(facts["start"]),
        server_tables.instant_or_none(facts["end"]),
        takes_image_back=facts["takesImageBack"],
        by=facts["by"],
    )


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


class Approval(NamedTuple):
    """Changes with this digest may pass these guards."""

    digest: str
    guards: tuple[str, ...]
    at: datetime
    who: str
    reason: str

    @property
    def by(self) -> str:
        """Who approved, how and why, in words."""
        return f"{self.who}, with gitboot approve: {self.reason}"


class Heartbeat(NamedTuple):
    """When the instance was alive last, and how long it was between the last times before that."""

    at: datetime
    intervals: tuple[timedelta, ...] = ()
    up: Uptime | None = None  # how long the kernel ran then


class Withheld(NamedTuple):
    """The install boots that newer commits do not offer, and that gitboot withholds until one of them is accepted."""

    by: str  # the newest commit that was evaluated
    servers: Mapping[SystemUuid, tuple[WithheldBoot, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a ledger says about itself."""

    identity: str
    accepted: str | None = None  # the commit that was accepted last
    branch: str | None = None  # the reference that its instance follows, as refs/heads/main or what --rev named
    is_default_branch: bool = False  # whether HEAD named that branch at the first start, and --rev did not
    searched: str | None = None  # the accepted commit whose history was searched for acknowledgements last
    lapsed: str | None = None  # the same in a copy that is to be tried out, where it is not known
    # How many decisions there were: commits accepted, and words by which boots were offered anew. Offers have the
    # number of the last one, so that evidence of what was offered before a decision is known from that of after it.
    sequence: int = 0
    initialised: str | None = None  # how it became known what was installed before: fresh, adopt, records
    begun: datetime | None = None  # when a person has said so
    doubt: str | None = None  # why it is not trusted: one word
    observes: bool = True  # whether fetches reach its instance
    foreign: str | None = None  # the ledger whose tree lies where its instance is to publish, if it is another
    heir_of: str | None = None  # the ledger whose tree it took over
    output: str | None = None  # where its instance publishes
    spool: str | None = None  # where its endpoints record fetches
    site: str | None = None  # for whose servers alone its instance acts; "": for all; None: none has run on it yet
    closes_output: bool = False  # whether what it publishes is for the owner and the group alone
    published: bool = False  # whether it has ever published there
    keyed: bool = False  # and with tokens by a key that only its instance has
    heartbeat: Heartbeat | None = None
    gap: bool = False  # whether it was not alive for long, and has not come up to the newest commit since
    clock: str | None = None  # kept: a time service was seen to keep it; accepted: a person has said that it is right
    suspension: Suspension | None = None
    stoppage: Stoppage | None = None
    orders: Orders | None = None  # of the newest Fleet, where its commit is not accepted
    withheld: Withheld | None = None  # None: every commit that was evaluated offers what the accepted one offers
    # Servers whose boot an accepted commit took back, because their records showed no fetch of it: the number of that
    # decision in the sequence. Later evidence of an older offer installs nothing.
    rolled_back: Mapping[SystemUuid, int] = field(default_factory=dict)
    # Servers whose one-time boot lay in OUTPUT until gitboot kept such boots out of copies. None: not looked for yet.
    left_output: frozenset[SystemUuid] | None = None


def give(store: Store, at: datetime, who: str, what: str, facts: Mapping[str, Any]) -> int:
    """Leave a request for the instance; from any process. Return its number."""
    with store.writing() as tx:
        ((number,),) = tx.rows(
            "INSERT INTO requests (at, who, what, facts) VALUES (?, ?, ?, ?) RETURNING id",
            (format_instant(at), who, what, server_tables.json_of(facts)),
        )
    return int(number)


def read_requests(store: Store) -> tuple[Request, ...]:
    """Requests that are not carried out yet, oldest first."""
    with store.reading():
        found = store.rows("SELECT id, at, who, what, facts FROM requests WHERE outcome IS NULL ORDER BY id")
        return tuple(
            Request(number, server_tables.instant(at), who, what, server_tables.json_value(facts))
            for number, at, who, what, facts in found
        )


def carry_out(tx: Transaction, outcomes: Iterable[tuple[Request, str]], at: datetime) -> None:
    """Note what came of requests, in the transaction that writes it."""
    tx.executemany(
        "UPDATE requests SET outcome = ?, done_at = ? WHERE id = ?",
        [(outcome, format_instant(at), request.id) for request, outcome in outcomes],
    )


def outcome(store: Store, number: int) -> str | None:
    """What came of a request; None while it waits."""
    found = store.rows("SELECT outcome FROM requests WHERE id = ?", number)
    return found[0][0] if found else None


def read_acknowledgements(store: Store) -> frozenset[str]:
    """Return every entry."""
    return frozenset(entry for (entry,) in store.rows("SELECT entry FROM acknowledgements"))


def add(tx: Transaction, entries: Iterable[str]) -> None:
    """Add entries. A backup that lacks them is an older copy."""
    if rows := [(entry,) for entry in sorted(entries)]:
        tx.replace("acknowledgements", ("entry",), rows)
        tx.mark()


def write(tx: Transaction, events: Iterable[Event]) -> None:
    tx.insert(
        "events",
        ("at", "type", "message", "facts"),
        [(format_instant(each.at), each.type, each.message, server_tables.json_of(_facts(each))) for each in events],
    )


def _facts(event: Event) -> dict[str, Any]:
    return {**event.facts, "level": "warning"} if event.warning else dict(event.facts)


def read_events(store: Store) -> Iterator[dict[str, Any]]:
    """Everything that was written down, oldest first, as JSON values."""
    for at, type, message, others in store.rows("SELECT at, type, message, facts FROM events ORDER BY id"):
        with store.reading():
            yield {"at": at, "type": type, "message": message, **server_tables.json_value(others)}


def accepted_commits(store: Store) -> tuple[str, ...]:
    """Return the commits that were ever accepted, in the order of their ids."""
    found = store.rows("SELECT facts FROM events WHERE type = 'Accepted'")
    with store.reading():
        commits = (server_tables.json_value(facts).get("commit") for (facts,) in found)
        return tuple(sorted({each for each in commits if isinstance(each, str)}))


def last(path: Path) -> int:
    """The number of the newest event in the ledger at ``path``; 0 where there is none."""
    with _beside(path) as database:
        ((found,),) = database.execute("SELECT coalesce(max(id), 0) FROM events")
        return int(found)


def after(path: Path, number: int, most: int) -> list[tuple[int, dict[str, Any]]]:
    """At most so many events behind event ``number``, with their own numbers, oldest first."""
    query = "SELECT id, at, type, message, facts FROM events WHERE id > ? ORDER BY id LIMIT ?"
    with _beside(path) as database:
        return [
            (int(id), {"at": at, "type": type, "message": message, **server_tables.json_value(facts)})
            for id, at, type, message, facts in database.execute(query, (number, most))
        ]


@contextmanager
def _beside(path: Path) -> Iterator[Database]:
    """A connection of its own, which only reads: whoever writes waits for it as little as it for them."""
    with closing(open_database(path, reads_only=True)) as database, database.reading():
        yield database


def read_token_keys(store: Store) -> tuple[str, ...]:
    """The lines of their file, oldest first; none where no instance has left any."""
    return tuple(line for (line,) in store.rows("SELECT line FROM token_keys ORDER BY number"))


def write_token_keys(tx: Transaction, lines: Sequence[str]) -> None:
    """Leave the lines of that file in the place of those before."""
    tx.execute("DELETE FROM token_keys")
    tx.executemany("INSERT INTO token_keys VALUES (?, ?)", list(enumerate(lines)))
