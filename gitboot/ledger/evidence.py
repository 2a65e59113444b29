"""The book of evidence: what was offered, which version of an entry was whose, who fetched it, what came of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gitboot.fetchlog.log_entries import Observation
from gitboot.jsonio import Digest, format_instant
from gitboot.ledger import server_tables
from gitboot.ledger.server_tables import Pending
from gitboot.ledger.store import Store, Transaction
from gitboot.resolve.server_plan import Offer

# Offers


def offered(store: Store, plan: Digest) -> Offer | None:
    """The boot of a plan that was published, if its being made once means something."""
    with store.reading():
        found = store.rows("SELECT facts FROM offers WHERE plan = ?", plan)
        return server_tables.offer(plan, found[0][0]) if found else None


def offer(tx: Transaction, offers: Iterable[Offer], at: datetime) -> None:
    """Note boots that are about to be published; one that is known may be of another window by now.

    A copy of the ledger that has not heard of one is no good: its machine may have fetched it, and that would say
    nothing to it.
    """
    noted = [(each.plan, format_instant(at), server_tables.of_offer(each)) for each in offers]
    if not all(tx.rows("SELECT 1 FROM offers WHERE plan = ?", each[:1]) for each in noted):
        tx.mark()
    tx.executemany("INSERT INTO offers VALUES (?, ?, ?) ON CONFLICT (plan) DO UPDATE SET facts = excluded.facts", noted)


def version(store: Store, path: str, modified: int) -> tuple[Digest, int] | None:
    """The plan that an entry was of when it had this modification time, and its number in the ledger's sequence."""
    found = store.rows("SELECT plan, number FROM versions WHERE path = ? AND modified = ?", path, modified)
    return (Digest(found[0][0]), found[0][1]) if found else None


def is_dated(store: Store, modified: int) -> bool:
    """Whether any entry had this modification time."""
    return bool(store.rows("SELECT 1 FROM versions WHERE modified = ? LIMIT 1", modified))


def token_at(store: Store, path: str) -> Digest | None:
    """The token of what was published at a path that names one, under whichever name."""
    found = store.rows("SELECT plan FROM versions WHERE path = ? LIMIT 1", path)
    return Digest(found[0][0]) if found else None


def note_versions(tx: Transaction, versions: Iterable[tuple[str, int, Digest]], number: int) -> None:
    """Note whose plan an entry is from when it is published, at a number: (path, modification time, plan)."""
    tx.replace("versions", ("path", "modified"), [(*each, number) for each in versions])


# Observations


def pending(store: Store) -> list[Pending]:
    """Observations without a verdict, oldest first; those whose offer is forgotten can be judged no more."""
    with store.reading():
        found = store.rows(
            "SELECT observations.id, observations.at, observations.plan, observations.facts, offers.facts"
            " FROM observations LEFT JOIN offers USING (plan) WHERE verdict IS NULL ORDER BY observations.id"
        )
        read = [
            (
                number,
                *server_tables.observation(at, plan, facts),
                server_tables.offer(Digest(plan), offer) if offer is not None else None,
            )
            for number, at, plan, facts, offer in found
        ]
        return [
            Pending(number, observation, offer, marks)
            for number, observation, marks, offer in read
            if offer is not None
        ]


def last_noted(store: Store) -> int:
    """The number of the observation that was noted last."""
    return int(store.rows("SELECT COALESCE(MAX(id), 0) FROM observations")[0][0])


def was_noted(store: Store, observation: Observation, plan: Digest) -> bool:
    """Whether the same fetch was noted before, whatever came of it."""
    at = format_instant(observation.at)
    with store.reading():
        found = store.rows("SELECT facts FROM observations WHERE at = ? AND plan = ?", at, plan)
        noted = (server_tables.observation(at, plan, facts)[0] for (facts,) in found)
        return any(server_tables.of_observation(each) == server_tables.of_observation(observation) for each in noted)


def note(tx: Transaction, pending: Iterable[Pending]) -> None:
    """Note observations that are to be judged, or what the BMC showed first after them."""
    tx.executemany(
        "INSERT INTO observations (id, at, plan, facts) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET facts = excluded.facts",
        [
            (
                each.id,
                format_instant(each.observation.at),
                each.offer.plan,
                server_tables.of_observation(each.observation, each.marks),
            )
            for each in pending
        ],
    )


def judge(tx: Transaction, verdicts: Mapping[int, str]) -> None:
    """Note what came of observations, in a word each."""
    tx.executemany(
        "UPDATE observations SET verdict = ? WHERE id = ?", [(verdict, number) for number, verdict in verdicts.items()]
    )


def prune(tx: Transaction, before: datetime) -> None:
    """Forget offers, versions and judged observations from before an instant; what is current stays."""
    at, stamp = format_instant(before), int(before.timestamp())
    tx.execute(
        "DELETE FROM versions WHERE modified < ? AND modified <"
        " (SELECT MAX(latest.modified) FROM versions AS latest WHERE latest.path = versions.path)",
        (stamp,),
    )
    tx.execute("DELETE FROM offers WHERE at < ? AND plan NOT IN (SELECT plan FROM versions)", (at,))
    tx.execute("DELETE FROM observations WHERE at < ? AND verdict IS NOT NULL", (at,))


# The spool


def taken(store: Store) -> dict[str, int]:
    """How far each file of the spool was taken in, in bytes."""
    return dict(store.rows("SELECT file, taken FROM spool ORDER BY file"))


def take(tx: Transaction, taken: Mapping[str, int]) -> None:
    """Note how far the spool is taken in, in the transaction that writes what was found there."""
    tx.execute("DELETE FROM spool")
    tx.executemany("INSERT INTO spool VALUES (?, ?)", sorted(taken.items()))
