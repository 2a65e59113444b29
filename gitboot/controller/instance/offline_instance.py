"""Offline instance: the state of an instance, read from its directory without changing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from gitboot.controller.instance import state_directory
from gitboot.controller.operator_requests import BEGIN, REFUSED
from gitboot.controller.records.ledger_changes import Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, read_ledger, write_updates
from gitboot.errors import UsageError
from gitboot.evaluator.cache import Cache
from gitboot.evaluator.protocol import Commit, build_commit
from gitboot.fetchlog.one_time_boots import read_claims
from gitboot.fleet.documents import FleetRepository
from gitboot.git.clone import load_accepted_snapshot
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import describe_place
from gitboot.ledger.open_ledger import open_copy
from gitboot.ledger.store import Store
from gitboot.publish.tree_reader import read_tree_records
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.status.instance_status import HeldCommit


class OfflineInstance(Struct, frozen=True, kw_only=True):
    """The state of an instance, which may be stopped: its accepted commit, its records, and its keys."""

    commit: Commit
    repository: FleetRepository  # the documents in the accepted commit
    snapshot: LedgerSnapshot
    keys: TokenKeys  # the keys of published tokens


@contextmanager
def open_offline(
    directory: Path, at: datetime, *, on_begin: Callable[[int], None] = lambda _: None, results: Cache | None = None
) -> Iterator[OfflineInstance]:
    """Read the state of the instance in ``directory`` without changing its files. The instance may be running.

    Before the files of the accepted commit are read, ``on_begin`` is called with the number of these files. ``results``
    is a cache of evaluation results.
    """
    # Imported here, because a running instance uses an evaluator process instead.
    from gitboot.evaluator.evaluation import Evaluator

    state_directory.require_ledger(directory)
    state_directory.require_active(directory)
    ledger, is_running = directory / state_directory.LEDGER, state_directory.find_running_process(directory) is not None
    with open_copy(ledger, in_use=is_running) as store:
        snapshot = load_accepted_snapshot(directory)
        evaluator = Evaluator(lambda _, __: snapshot, on_begin=on_begin, results=results)
        evaluated = evaluator.evaluate(snapshot.revision, None).head
        whole = build_commit(evaluated.loaded.repository, evaluated.decided.decisions)
        # Read the keys if the file exists, but never create keys here.
        has_keys = (directory / state_directory.TOKEN_KEYS).exists()
        keys = state_directory.read_or_create_token_keys(directory, at, was_keyless=False) if has_keys else NO_KEYS
        stored = _read_offline_ledger(store)
        commit = whole.select_site(stored.facts.site or None)
        batch = Batch(commit=commit, changed_servers=tuple(commit.decisions.servers))
        current = apply_batch(stored, batch, at).snapshot
        own_spool = directory / state_directory.SPOOL
        spool = Path(current.facts.spool) if current.facts.spool is not None else own_spool
        yield OfflineInstance(
            commit=commit,
            repository=evaluated.loaded.repository,
            snapshot=structs.replace(
                current,
                sightings=instance_tables.read_sightings(store, describe_place(directory)),
                claims=read_claims((own_spool, spool), spool),
            ),
            keys=keys,
        )


def carry_out_offline(store: Store, commit: Commit | None, at: datetime, held: HeldCommit | None = None) -> None:
    """Carry out operator requests on behalf of an instance that is not running.

    ``commit`` is the accepted commit. ``held`` is the commit that was held when the instance last ran.
    """
    batch = Batch(
        requests=instance_tables.read_requests(store),
        commit=commit,
        changed_servers=tuple(commit.decisions.servers) if commit else (),
        held=held,
    )
    write_updates(store, [apply_batch(_read_offline_ledger(store), batch, at).update])


def simulate_initialisation(instance: OfflineInstance, facts: Mapping[str, Any], at: datetime) -> LedgerSnapshot:
    """Return the `LedgerSnapshot` that would result if an operator requested to begin with records.

    This function does not store the result. Raises `UsageError`.
    """
    batch = Batch(
        requests=(instance_tables.Request(0, at, "", BEGIN, facts),),
        commit=instance.commit,
        changed_servers=tuple(instance.commit.decisions.servers),
    )
    result = apply_batch(instance.snapshot, batch, at)
    ((_, outcome),) = result.update.request_outcomes
    if outcome.startswith(REFUSED):
        raise UsageError(outcome.removeprefix(REFUSED))
    return result.snapshot


def _read_offline_ledger(store: Store) -> LedgerSnapshot:
    """Read the ledger. While it is unverified, also read the records in the published tree."""
    snapshot = read_ledger(store)
    if snapshot.is_trusted or snapshot.facts.output is None:
        return snapshot
    return structs.replace(snapshot, published_records=read_tree_records(Path(snapshot.facts.output)))
