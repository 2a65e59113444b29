"""Knowledge read from the ledger's books, and what is new of it written to them in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gitboot.controller.learn.ledger_snapshot import Fetch, Knowledge, News
from gitboot.errors import UsageError
from gitboot.ledger import (
    acknowledgements,
    events,
    evidence,
    instance_tables,
    known_bmcs,
    lost_identities,
    machines,
    overrides,
    pins,
    records,
    requests,
    secret_fetches,
    switches,
)
from gitboot.ledger.entries import Facts
from gitboot.ledger.server_tables_from_ledger_entries import Pending
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid
from gitboot.observe.intents import that_use_up
from gitboot.observe.observation import Observation
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.modes import OPEN, TreeModes, closed, group_of, is_open
from gitboot.render.paths import token_in
from gitboot.render.token_keys import TokenKeys
from gitboot.status.events_from_status import Event


def looked_around(
    store: Store, *, observes: bool, owner: str | None, output: Path, spool: Path | None, site: str | None
) -> None:
    """Note where the instance publishes, whose tree lies there, whether fetches reach it, where, and for which site.

    Raises `UsageError` where it has acted for another one: the servers of that would look removed.
    """
    about = instance_tables.read(store)
    if about.site is not None and about.site != (site or ""):
        raise UsageError(_of_another_site(about, site))
    foreign = owner if owner not in (about.identity, about.heir_of) else None
    now = replace(about, observes=observes, foreign=foreign, output=str(output.absolute()), site=site or "")
    if (now := replace(now, spool=str(spool.absolute()) if spool is not None else None)) != about:
        with store.writing() as tx:
            instance_tables.note_surroundings(tx, now)


def output_modes(store: Store, output: Path, group: str | None) -> TreeModes:
    """Return the permissions of what is published, and note in the ledger from when on others may not read it.

    A new ledger closes OUTPUT. One that an earlier version made leaves OUTPUT as it is until somebody names a group. So
    does a new one that takes over what an earlier ledger published for everybody.
    Raises `UsageError` for a group that gitboot may not give files to.
    """
    about, number = instance_tables.read(store), group_of(group) if group is not None else None
    is_new = (about.accepted, about.lapsed, about.initialised, about.output) == (None, None, None, None)
    takes_over = (output / MANIFEST).exists() and is_open(output)
    if not about.closes_output and number is None and (takes_over or not is_new):
        return OPEN
    if not about.closes_output:
        with store.writing() as tx:
            instance_tables.close_output(tx)
    return closed(number)


def _of_another_site(about: Facts, site: str | None) -> str:
    acted = f"--site {about.site}" if about.site else "all sites, without --site"
    asked = f"--site {site}" if site is not None else "all sites"
    return (
        f"the ledger {about.identity} has acted for {acted}, and is to act for {asked}: what it has published and set "
        f"would be withdrawn. Start it for {acted} again; or give another --state and --out, and say there what is "
        "installed (gitboot records begin, with the ops/records of a published tree)"
    )


def known(store: Store) -> Knowledge:
    """What the ledger knows."""
    about = instance_tables.read(store)
    pending: dict[SystemUuid, tuple[Pending, ...]] = {}
    for each in evidence.pending(store):
        pending[each.offer.uuid] = (*pending.get(each.offer.uuid, ()), each)
    return Knowledge(
        facts=about,
        records=records.read(store),
        machines=machines.read(store),
        standing=machines.standing(store),
        lost=lost_identities.read(store),
        overrides=overrides.read(store),
        switches=switches.read(store),
        pins=pins.read(store),
        known_pairs=known_bmcs.read(store),
        pending=pending,
        noted=evidence.last_noted(store),
        secret_fetches=secret_fetches.read(store),
        approvals=instance_tables.approvals(store),
        met=acknowledgements.read(store),
        unsearched=events.accepted_commits(store) if about.searched is None else (),
        taken=evidence.taken(store),
    )


def write(store: Store, news: Iterable[News]) -> None:
    """Write down all that is new, or nothing of it; raises `LedgerError`."""
    if something := [each for each in news if not each.is_nothing]:
        with store.writing() as tx:
            for each in something:
                _write(tx, each)
                if each.sightings is not None:
                    lease = store.database.lease
                    instance_tables.store_sightings(tx, each.sightings, lease.place if lease is not None else "")


def _write(tx: Transaction, news: News) -> None:
    _write_facts(tx, news)
    if news.forgotten:
        records.forget(tx)
    records.drop(tx, news.dropped)
    records.write(tx, [(uuid, server, record) for uuid, (server, record) in news.records.items()])
    machines.write(tx, news.departed, stand=False)
    machines.write(tx, news.machines, gone=news.gone)
    lost_identities.write(tx, news.lost_before, news.lost)
    overrides.write(tx, news.overrides)
    switches.write(tx, news.switches)
    pins.write(tx, news.pins.items())
    secret_fetches.write(tx, news.secret_fetches)
    if news.known_pairs is not None:
        known_bmcs.write(tx, news.known_pairs)
    evidence.note(tx, news.pending)
    evidence.judge(tx, news.verdicts)
    if news.taken is not None:
        evidence.take(tx, news.taken)
    if news.prune_before is not None:
        evidence.prune(tx, news.prune_before)
    requests.carry_out(tx, news.outcomes, news.at)
    events.write(tx, news.events)


def _write_facts(tx: Transaction, news: News) -> None:
    before, now = news.facts_before, news.facts
    if now.initialised is not None and (now.initialised, now.doubt) != (before.initialised, before.doubt):
        instance_tables.initialise(tx, now.initialised, now.begun)
    if (now.foreign, now.heir_of) != (before.foreign, before.heir_of):
        instance_tables.note_surroundings(tx, now)
    if (now.heartbeat, now.gap, now.clock) != (before.heartbeat, before.gap, before.clock):
        instance_tables.note_life(tx, now)
    if now.accepted != before.accepted:
        instance_tables.accept(tx, now.accepted)
    if now.sequence != before.sequence:
        instance_tables.count_decisions(tx, now.sequence)
    if now.searched != before.searched:
        instance_tables.search(tx, now.searched)
    instance_tables.use_up(tx, news.used_up)
    if now.suspension != before.suspension:
        instance_tables.suspend(tx, now.suspension)
    if now.stoppage != before.stoppage:
        instance_tables.stop(tx, now.stoppage)
    if now.orders != before.orders:
        instance_tables.order(tx, now.orders)
    if now.withheld != before.withheld:
        instance_tables.withhold(tx, now.withheld)
    if now.rolled_back != before.rolled_back:
        instance_tables.roll_back(tx, now.rolled_back)
    instance_tables.approve(tx, news.approved)
    acknowledgements.add(tx, news.met)


def write_events(store: Store, happened: Sequence[Event]) -> None:
    """Write down what happened besides; raises `LedgerError`."""
    if happened:
        with store.writing() as tx:
            events.write(tx, happened)


def fetches_of(store: Store, observations: Iterable[Observation], keys: TokenKeys) -> tuple[Fetch, ...]:
    """What was fetched, but for what nobody offered, and for what means nothing by being made."""
    found = (_fetch_of(store, each, keys) for each in observations)
    return tuple(each for each in found if each is not None)


def never_offered(store: Store, observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """What an endpoint has given, of what is given once, and this ledger has never offered: it is an older copy."""
    given = (each for each in that_use_up(observations) if each.offer is not None and not each.is_start)
    return tuple(each for each in given if each.digest is not None and evidence.offered(store, each.digest) is None)


def _fetch_of(store: Store, observation: Observation, keys: TokenKeys) -> Fetch | None:
    """An endpoint has noted what it gave by the digest of its plan, a mirror by the date of the file.

    Of what was overtaken an endpoint knows no more than its path. By which name a token was published stays outside:
    from here on a path has the token itself.
    """
    digest, number, name = observation.digest, None, token_in(observation.path)
    if digest is not None and digest == name:
        digest = evidence.token_at(store, observation.path) or digest
    if digest is None and observation.modified is not None:
        if (version := evidence.version(store, observation.path, observation.modified)) is not None:
            digest, number = version
        elif name is not None:  # a token says by itself whose it is, also in a tree that another host has made
            digest = evidence.token_at(store, observation.path)
    offer = evidence.offered(store, digest) if digest is not None else None
    if digest is None or offer is None or not (name is None or keys.has_named(digest, name, observation.at)):
        return None
    offer = replace(offer, number=number if number is not None else offer.number)
    path = observation.path.replace(name, digest) if name is not None else observation.path
    observation = replace(observation, path=path, digest=digest, modified=None)
    return Fetch(observation=observation, offer=offer, noted=evidence.was_noted(store, observation, digest))
