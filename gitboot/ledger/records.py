"""The book of records: what is known of each server's provisioning."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gitboot.ledger import server_tables
from gitboot.ledger.store import Store, Transaction
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.provisioning_record_from_plan import Record, Run


def read(store: Store) -> dict[SystemUuid, Record]:
    """What is known of each server, by UUID; a UUID that is missing is unknown."""
    with store.reading():
        runs: dict[str, dict[str, Run]] = {}
        for uuid, maintenance, *made in store.rows(f"SELECT {', '.join(server_tables.RUNS)} FROM runs"):  # noqa: S608 - constant
            runs.setdefault(uuid, {})[maintenance] = server_tables.run(*made)
        found = store.rows(f"SELECT uuid, {server_tables.RECORD} FROM records ORDER BY uuid")  # noqa: S608 - constant
        return {SystemUuid(uuid): server_tables.record(rest, runs.get(uuid, {})) for uuid, *rest in found}


def write(tx: Transaction, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
    """Replace what is known of servers: (UUID, the server's name, record)."""
    found = {uuid: (server, record) for uuid, server, record in records}
    if not found:
        return
    tx.mark()
    tx.replace(
        "records", ("uuid",), [(uuid, server, *server_tables.of_record(each)) for uuid, (server, each) in found.items()]
    )
    tx.delete("runs", ("uuid",), [(uuid,) for uuid in found])
    made = [(uuid, name, run) for uuid, (_, each) in found.items() for name, run in sorted(each.runs.items())]
    tx.insert("runs", server_tables.RUNS, [(uuid, *server_tables.of_run(name, run)) for uuid, name, run in made])


def drop(tx: Transaction, uuids: Collection[SystemUuid]) -> None:
    """Know nothing of these servers any more."""
    if uuids:
        tx.mark()
        for table in ("records", "runs"):
            tx.delete(table, ("uuid",), [(uuid,) for uuid in uuids])


def forget(tx: Transaction) -> None:
    """Know nothing of any server any more; what is set stays known."""
    tx.execute("DELETE FROM records")
    tx.execute("DELETE FROM runs")
    tx.mark()
