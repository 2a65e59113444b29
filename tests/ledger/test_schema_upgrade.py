"""Schema upgrade: a ledger that 0.1.0 wrote keeps all its data."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.bmc.credentials import get_credential_use
from gitboot.bmc.override_state import OverrideState
from gitboot.fleet.identities import LostIdentity
from gitboot.ledger import instance_tables, server_tables, sqlite
from gitboot.ledger.instance_tables import Suspension
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.schema import MIGRATIONS, VERSION
from gitboot.ledger.store import write_mark
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Run
from gitboot.resolve.server_plan import Cause, Phase
from tests.helpers.fleets import at, fleet, image, maintenance, make_uuid, policy, profile, server
from tests.helpers.forked_commands import by_migrations
from tests.helpers.instance_in_process import Bench

NAMES = ("app01", "db01", "doubt01", "old01", "web01")
UUIDS = {name: SystemUuid(make_uuid(name)) for name in NAMES}
INSTALLED_AT = at("2026-11-22T04:43:52.867810+00:00")
MADE_AT = at("2026-11-22T04:43:56.250814+00:00")
HELD = "63cdb2e74364e3a00fbf55b39b8eafcef8fe99aa3d0e344767bae2ce7a0dbd08"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((Path(__file__).parents[1] / "data" / "ledgers" / "0.1.0.sql").read_text())
        query = "SELECT value FROM facts WHERE name IN ('identity', 'changes') ORDER BY name DESC"
        identity, changes = (value for (value,) in connection.execute(query))
    write_mark(path.with_suffix(".mark"), identity, int(changes))  # as 0.1.0 left it
    return path


def documents() -> tuple[str, ...]:
    """The fleet of that version, without its BMCs."""
    return (
        fleet(),
        *(server(name, spec=f"provision: 1{', lifecycle: Parked' if name == 'old01' else ''}") for name in NAMES),
        *(image(name) for name in ("flatcar-1", "flatcar-2")),
        image("memtest-7", "writesDisk: false"),
        profile("web", "flatcar-1"),
        profile("repair", "memtest-7"),
        policy("web", often="Once"),
        maintenance("repair", "20T00:00 30T00:00", "networkBoot: Once, run: 3"),
    )


def test_an_upgraded_ledger_has_all_rows(ledger: Path) -> None:
    with open_ledger(ledger) as opened:
        about, known, set_ = (
            instance_tables.read_facts(opened),
            server_tables.read_records(opened),
            server_tables.read_overrides(opened),
        )
        assert about.identity == "9c9d6e10-90d3-48ef-ba6b-b19d87fb8551"
        assert about.accepted == "a037e29b5fd2747a5a8218bdfb998e44c7be9f15"
        assert (about.initialised, about.doubt, instance_tables.is_behind(opened)) == ("fresh", None, False)
        assert about.suspension == Suspension("root", "moving house", at("2027-01-01T00:00:00+00:00"))
        assert instance_tables.read_approvals(opened) == {HELD: {"maxReinstalls": "root, with gitboot approve: INC-2"}}
        web, app = known[UUIDS["web01"]], known[UUIDS["app01"]]
        assert (web.provision, web.image, web.pool, web.evidence) == (1, "flatcar-1", "web", "Fetched")
        assert (web.provisioned_at, web.grace_until) == (INSTALLED_AT, INSTALLED_AT + timedelta(minutes=1))
        assert web.runs == {"repair": Run(3, MADE_AT)}
        assert (app.provision, app.consumed_key, app.consumed_at is not None) == (None, "provision/1", True)
        assert (
            known.keys()
            == server_tables.read_machines(opened).keys()
            == server_tables.read_current_machines(opened)
            == set(UUIDS.values())
        )
        assert server_tables.read_machines(opened)[UUIDS["web01"]].bmc is not None
        bmcs = {
            get_credential_use(each.bmc)
            for each in server_tables.read_machines(opened).values()
            if each.bmc is not None
        }
        assert server_tables.read_known_bmcs(opened) == bmcs != frozenset(), (
            "who was asked before is asked after the upgrade"
        )
        states = {name: {each.reason: each.state for each in set_[uuid].values()} for name, uuid in UUIDS.items()}
        assert states == {
            "app01": {"maintenance/repair/3": OverrideState.CONFIRMED, "provision/1": OverrideState.CONSUMED},
            "db01": {"maintenance/repair/3": OverrideState.CONFIRMED, "provision/1": OverrideState.CLEARED},
            "doubt01": {"provision/1": OverrideState.RECORDED},
            "old01": {"provision/1": OverrideState.CLEARED},
            "web01": {"maintenance/repair/3": OverrideState.CONSUMED, "provision/1": OverrideState.CONSUMED},
        }
        (pending,) = server_tables.read_pending_observations(opened)
        assert (pending.offer.server, pending.offer.maintenance, pending.offer.run) == ("db01", "repair", 3)
        assert (server_tables.read_last_observation_number(opened), server_tables.read_spool_positions(opened)) == (
            2,
            {},
        )
        assert opened.rows("SELECT verdict FROM observations") == [("Provisioned",), (None,)]
        assert [opened.rows(f"SELECT COUNT(*) FROM {table}") for table in ("offers", "versions")] == [[(18,)], [(60,)]]
        (waiting,) = instance_tables.read_requests(opened)
        assert (waiting.operator, waiting.action, waiting.facts["consumed"]) == ("ada", "resolve", False)
        happened = Counter(event["type"] for _, event in instance_tables.read_numbered_events(opened))
        assert happened.total() == 35
        assert (happened["Provisioned"], happened["MaintenanceBooted"], happened["Held"]) == (1, 1, 2)


def test_an_instance_continues_with_an_upgraded_ledger(ledger: Path) -> None:
    with Bench(ledger.parent, initial=None) as bench:
        bench.now = at("22T12:00")
        bench.decide(*documents())
        (waiting,) = instance_tables.read_requests(bench.ledger)
        assert bench.plan() is None
        assert (bench.condition("AcceptingCommits") or (None,))[:2] == (False, "Suspended")
        assert bench.outcome(waiting.id).startswith("doubt01: recorded the override as not set")
        assert bench.snapshot.overrides[UUIDS["doubt01"]]["provision/1"].state is OverrideState.CLEARED
        bench.request("resume")
        bench.plan()
        plans = {name: state.plan for name, state in bench.servers.items()}
        assert {name: (plan.phase, plan.cause) if plan else None for name, plan in plans.items()} == {
            "app01": (Phase.MAINTENANCE, Cause.MAINTENANCE),
            "db01": (Phase.MAINTENANCE, Cause.MAINTENANCE),
            "doubt01": (Phase.MAINTENANCE, Cause.MAINTENANCE),
            "old01": None,
            "web01": (Phase.DISK, Cause.MAINTENANCE_DONE),
        }
        assert bench.condition("RecordsVerified") == (True, "Verified", "the ledger has a record for each server")
        assert bench.record is not None and bench.record.provision == 1


@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_ledger_of_every_version_in_between_is_upgraded(tmp_path: Path, version: int) -> None:
    """Ledgers of unreleased versions exist too, because some users follow `main`."""
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(MIGRATIONS[:version]))
        connection.executescript(f"INSERT INTO facts VALUES ('identity', 'ours'); PRAGMA user_version = {version};")
    with open_ledger(path) as opened:
        assert (
            instance_tables.read_facts(opened).identity,
            server_tables.read_records(opened),
            server_tables.read_power_records(opened),
        ) == (
            "ours",
            {},
            {},
        )


def test_identities_of_machines_that_left_the_fleet_before_the_upgrade_are_lost(tmp_path: Path) -> None:
    path, gone, standing = tmp_path / "ledger.sqlite", UUIDS["old01"], UUIDS["web01"]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(MIGRATIONS[:9]))
        connection.executescript(f"""
            INSERT INTO facts VALUES ('identity', 'ours');
            INSERT INTO machines VALUES
                ('{gone}', 'old01', '["52-54-00-00-00-01", "52-54-00-00-00-02"]', 'cz1', NULL, 0),
                ('{standing}', 'web01', '["52-54-00-00-00-03"]', 'cz2', NULL, 1);
            PRAGMA user_version = 9;
        """)
    marks = (("MAC", "52-54-00-00-00-01"), ("MAC", "52-54-00-00-00-02"), ("serial", "CZ1"))
    with open_ledger(path) as opened:
        assert server_tables.read_lost_identities(opened) == {LostIdentity(*mark, gone) for mark in marks}


def test_the_shortcut_schema_of_tests_equals_the_result_of_all_migrations(tmp_path: Path) -> None:
    schemas = []
    for migrate in (by_migrations, sqlite._migrate):
        with closing(sqlite3.connect(tmp_path / migrate.__name__)) as connection:
            migrate(connection, "")
            schemas.append(list(connection.iterdump()))
            (identity,) = connection.execute("SELECT value FROM facts").fetchone()
            schemas[-1] = [line.replace(identity, "") for line in schemas[-1]]
            schemas[-1] += connection.execute("PRAGMA user_version").fetchone()
    assert sqlite._migrate is not by_migrations and schemas[0] == schemas[1]
