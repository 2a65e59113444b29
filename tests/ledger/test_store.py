"""Ledger store: data after restarts, crashes and writes of several threads, and ledgers that it refuses to read."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gitboot.bmc.identity import PinnedIdentity, ReportedIdentity
from gitboot.bmc.override_state import Medium, MediumState, Override, OverrideRecord, OverrideState, ResetMarks
from gitboot.bmc.power_steps import PowerRecord, PowerRecordState, ResetType
from gitboot.controller.instance.assembly import open_or_replace_ledger
from gitboot.errors import DamagedLedger, FleetOrders, LedgerError
from gitboot.fetchlog.log_entries import Observation
from gitboot.fleet.identities import BmcAccess, Machine
from gitboot.jsonio import Digest, format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.instance_tables import Approval, Heartbeat, Suspension, WithheldBoots
from gitboot.ledger.open_ledger import copy_ledger, open_for_reading, open_ledger, set_ledger_aside
from gitboot.ledger.schema import VERSION
from gitboot.ledger.server_tables import PendingObservation
from gitboot.ledger.sqlite import back_up, convert_sqlite_error
from gitboot.ledger.store import Store
from gitboot.model.scalars import MacAddress, SystemUuid
from gitboot.resolve.provisioning_record import (
    Clearance,
    Failure,
    InstallAttempt,
    Record,
    Run,
    StepEvidence,
    StopOrder,
    UnknownServe,
)
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget, WithheldBoot
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.status.conditions import Event
from gitboot.system_clock import Uptime
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.fleets import at, make_uuid
from tests.helpers.instance_in_process import Unsynced
from tests.helpers.postgresql import PostgresServer

WEB01, WEB02 = SystemUuid(make_uuid("web01")), SystemUuid(make_uuid("web02"))
NOON = at("20T12:00")
ONCE = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE, mode="UEFI")


PLAN, OTHER_PLAN = Digest("a" * 64), Digest("b" * 64)
ENTRY = "boot/v1/boot/m/boot.ipxe"
OBSERVATION = Observation(server="web01", path=ENTRY, digest=PLAN, client="10.0.0.7", at=NOON)
BMC = BmcAccess(address="https://10.0.0.1", system="/redfish/v1/Systems/1", credentials="rack", verify=True, ca="PEM")
MACHINE = Machine(uuid=WEB01, name="web01", macs=(MacAddress("52-54-00-00-00-01"),), serial="S1", bmc=BMC)
OFFER = Offer(
    plan=PLAN,
    server="web01",
    uuid=WEB01,
    decision=Digest("d" * 64),
    phase=Phase.NETWORK,
    key="provision/1",
    policy="web",
    image="flatcar-1",
    provision=1,
    on_image_change=False,
    maintenance=None,
    run=None,
)


def make_override_record(reason: str = "provision/1", state: OverrideState = OverrideState.RECORDED) -> OverrideRecord:
    return OverrideRecord(reason=reason, plan_digest="d" * 64, override=ONCE, marks=ResetMarks(), state=state, at=NOON)


BOTH = pytest.mark.parametrize("path", ["SQLite", "PostgreSQL"], indirect=True)


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path of a ledger: a file, or an address file that names a schema of its own."""
    if getattr(request, "param", "SQLite") == "PostgreSQL":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.ledger(tmp_path)
    return tmp_path / "ledger.sqlite"


def written(path: Path) -> None:
    with open_ledger(path) as ledger:
        with ledger.writing() as tx:
            suspension = Suspension("ada", "moving", NOON)
            instance_tables.write_facts(tx, accepted="c0ffee", initialised="fresh", suspension=suspension)
            instance_tables.write_approvals(tx, [Approval("d" * 64, ("maxInstalls",), NOON, "ada", "planned")])
            server_tables.write_records(tx, [(WEB01, "web01", Record(provision=1, runs={"repair": Run(0, NOON)}))])
            server_tables.write_overrides(tx, [(WEB01, make_override_record())])
            server_tables.write_pins(
                tx, [(WEB01, PinnedIdentity(uuid=WEB01, serial="S1", at=NOON, place=(BMC.address, BMC.system)))]
            )
            instance_tables.write_events(tx, [Event(at=NOON, type="Accepted", message="c0ffee")])
            server_tables.write_machines(tx, [MACHINE])
            server_tables.write_offers(tx, [OFFER], NOON)
            server_tables.write_versions(tx, [(ENTRY, 1, PLAN)], 1)
            server_tables.write_pending_observations(tx, [PendingObservation(1, OBSERVATION, OFFER)])
            server_tables.write_spool_positions(tx, {"a.jsonl": 7})
        instance_tables.add_request(ledger, NOON, "ada", "retry", {"uuids": [WEB01]})


def write_rows(ledger: Store, write: Callable[..., None], *given: Any, **more: Any) -> None:
    with ledger.writing() as tx:
        write(tx, *given, **more)


def list_overrides(ledger: Store, uuid: SystemUuid) -> tuple[OverrideRecord, ...]:
    return tuple(server_tables.read_overrides(ledger).get(uuid, {}).values())


@contextmanager
def open_store(path: Path) -> Iterator[Store]:
    with open_or_replace_ledger(path, lambda _: None, lambda: NOON) as (ledger, _):
        yield ledger


# Opening


def test_each_new_ledger_has_its_own_identity_and_keeps_it(tmp_path: Path) -> None:
    identities = []
    for name in ("one", "other", "one"):
        with open_ledger(tmp_path / name) as ledger:
            identities.append(instance_tables.read_facts(ledger).identity)
    assert identities[0] == identities[2] != identities[1]
    assert len(identities[0]) == 36


@pytest.mark.parametrize("damaged", [slice(None), slice(16), slice(100, 4096)], ids=["all", "header", "schema"])
def test_a_damaged_file_is_rejected_with_its_name_and_a_hint(path: Path, damaged: slice) -> None:
    written(path)
    found = bytearray(path.read_bytes())
    found[damaged] = b"\xff" * len(found[damaged])
    path.write_bytes(found)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: the ledger cannot be read .*restore it from a backup"):
        open_ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE overrides SET marks = '{'",
        "UPDATE overrides SET state = 'Nonsense'",
        "UPDATE overrides SET at = 'yesterday'",
        "UPDATE overrides SET override = '{}'",
        "UPDATE records SET provisioned_at = 'yesterday'",
        "UPDATE runs SET made_at = ''",
        "UPDATE machines SET macs = '{'",
        "UPDATE observations SET facts = '[]'",
        "UPDATE requests SET facts = '7'",
        "UPDATE pins SET facts = '{}'",
        "UPDATE pins SET facts = json_set(facts, '$.more', 1)",
        "UPDATE offers SET facts = json_set(facts, '$.more', 1)",
        "DROP TABLE overrides",
    ],
)
def test_rows_that_gitboot_would_not_have_written_are_rejected(path: Path, change: str) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with pytest.raises(LedgerError, match="cannot be read"):
        open_ledger(path)


def test_a_ledger_that_cannot_be_reopened_is_not_damaged_and_is_usable_later(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with open_ledger(folder / "ledger.sqlite") as ledger:
        identity = instance_tables.read_facts(ledger).identity
        folder.rename(tmp_path / "unmounted")
        for read in (ledger.read_back, lambda: instance_tables.read_facts(ledger)):
            with pytest.raises(LedgerError, match="the ledger cannot be read") as failed:
                read()
            assert not isinstance(failed.value, DamagedLedger), str(failed.value)
        (tmp_path / "unmounted").rename(folder)
        ledger.read_back()
        assert instance_tables.read_facts(ledger).identity == identity


def test_the_ledger_of_a_newer_gitboot_is_rejected_and_not_changed(path: Path) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(
        LedgerError,
        match=f"has schema version {VERSION + 1}, but this version of gitboot supports {VERSION}; use a newer",
    ):
        open_ledger(path)
    assert path.read_bytes() == before


_FIRST_VERSION = """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE records (
        uuid TEXT PRIMARY KEY, server TEXT NOT NULL, provision INTEGER, image TEXT, pool TEXT, decision TEXT,
        evidence TEXT, met_at TEXT, grace_until TEXT, spent_at TEXT, spent_key TEXT
    ) STRICT;
    CREATE TABLE runs (
        uuid TEXT NOT NULL, maintenance TEXT NOT NULL, run INTEGER NOT NULL, made_at TEXT NOT NULL,
        PRIMARY KEY (uuid, maintenance)
    ) STRICT;
    CREATE TABLE armed (
        uuid TEXT NOT NULL, reason TEXT NOT NULL, plan_digest TEXT NOT NULL, override TEXT NOT NULL,
        marks TEXT NOT NULL, state TEXT NOT NULL, at TEXT NOT NULL, corrections TEXT NOT NULL,
        PRIMARY KEY (uuid, reason)
    ) STRICT;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, type TEXT NOT NULL, message TEXT NOT NULL, facts TEXT NOT NULL
    ) STRICT;
    INSERT INTO facts VALUES ('identity', '1b4e28ba-2fa1-41d2-883f-0016d3cca427');
    INSERT INTO facts VALUES ('accepted', 'c0ffee');
    INSERT INTO facts VALUES ('told', 'fresh');
    INSERT INTO records VALUES (
        'UUID', 'web01', 1, 'flatcar-1', 'web', 'DIGEST', 'Fetched', '2026-11-20T11:00:00Z', '2026-11-20T11:01:00Z',
        '2026-11-20T10:00:00Z', 'provision/1'
    );
    INSERT INTO runs VALUES ('UUID', 'repair', 3, '2026-11-20T09:00:00Z');
    INSERT INTO armed VALUES (
        'UUID', 'provision/1', 'DIGEST',
        '{"enabled": "Once", "target": "Pxe", "mode": "UEFI", "http_boot_uri": null}',
        '{"last_reset_time": "then", "boot_progress_time": null, "settled": true}',
        'Confirmed', '2026-11-20T12:00:00Z', '["2026-11-20T11:30:00Z"]'
    );
    INSERT INTO events VALUES (1, '2026-11-20T12:00:00Z', 'Accepted', 'm', '{"server": "web01"}');
    PRAGMA user_version = 1;
"""


def test_a_ledger_of_the_first_version_is_upgraded_without_loss(path: Path) -> None:
    digest = Digest("d" * 64)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_FIRST_VERSION.replace("UUID", WEB01).replace("DIGEST", digest))
    for _ in range(2):
        with open_ledger(path) as ledger:
            assert instance_tables.read_facts(ledger).identity == "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
            about = instance_tables.read_facts(ledger)
            assert (about.accepted, about.initialised, about.doubt) == ("c0ffee", "fresh", None)
            assert not instance_tables.is_behind(ledger)
            assert server_tables.read_records(ledger) == {
                WEB01: Record(
                    provision=1,
                    image="flatcar-1",
                    pool="web",
                    decision=digest,
                    evidence="Fetched",
                    provisioned_at=at("20T11:00"),
                    grace_until=at("20T11:01"),
                    consumed_at=at("20T10:00"),
                    consumed_key="provision/1",
                    runs={"repair": Run(3, at("20T09:00"))},
                )
            }
            assert list_overrides(ledger, WEB01) == (
                OverrideRecord(
                    reason="provision/1",
                    plan_digest=digest,
                    override=ONCE,
                    marks=ResetMarks(last_reset_time="then", settled=True),
                    state=OverrideState.CONFIRMED,
                    at=NOON,
                    corrections=(at("20T11:30"),),
                ),
            )
            assert [event["server"] for _, event in instance_tables.read_numbered_events(ledger)] == ["web01"]
            assert server_tables.read_machines(ledger) == {
                WEB01: Machine(uuid=WEB01, name="web01", macs=(), serial=None, bmc=None)
            }
            assert server_tables.read_current_machines(ledger) == {WEB01}
            assert (
                server_tables.read_pending_observations(ledger),
                instance_tables.read_requests(ledger),
                server_tables.find_offer(ledger, PLAN),
            ) == ([], (), None)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


_SECOND_VERSION = """
    UPDATE records SET evidence = 'Spent';
    INSERT INTO armed SELECT uuid, 'maintenance/repair/1', plan_digest, override, marks, 'Spent', at, '[]' FROM armed;
    INSERT INTO armed SELECT uuid, 'provision/0', plan_digest, override, marks, 'Gone', at, '[]' FROM armed
        WHERE reason = 'provision/1';
    ALTER TABLE armed ADD COLUMN replaces TEXT;
    ALTER TABLE armed ADD COLUMN bmc TEXT;
    CREATE TABLE machines (
        uuid TEXT PRIMARY KEY, name TEXT NOT NULL, macs TEXT NOT NULL, serial TEXT, bmc TEXT, stands INTEGER NOT NULL
    ) STRICT;
    INSERT INTO machines SELECT uuid, server, '[]', NULL, NULL, 1 FROM records;
    CREATE TABLE offers (plan TEXT PRIMARY KEY, at TEXT NOT NULL, facts TEXT NOT NULL) STRICT;
    CREATE TABLE versions (
        path TEXT NOT NULL, modified INTEGER NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (path, modified)
    ) STRICT;
    CREATE TABLE observations (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, plan TEXT NOT NULL, facts TEXT NOT NULL, verdict TEXT
    ) STRICT;
    CREATE INDEX pending ON observations (id) WHERE verdict IS NULL;
    CREATE TABLE approvals (
        digest TEXT NOT NULL, guard TEXT NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (digest, guard)
    ) STRICT;
    CREATE TABLE orders (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, facts TEXT NOT NULL,
        done_at TEXT, outcome TEXT
    ) STRICT;
    INSERT INTO observations VALUES (1, '2026-11-20T12:00:00Z', 'DIGEST', '{}', 'Met');
    INSERT INTO observations VALUES (2, '2026-11-20T12:00:00Z', 'DIGEST', '{}', 'Dropped');
    INSERT INTO orders VALUES (
        1, '2026-11-20T11:00:00Z', 'ada', 'retry', '{"uuids": []}', '2026-11-20T11:00:01Z', 'done'
    );
    INSERT INTO orders VALUES (
        2, '2026-11-20T12:00:00Z', 'ada', 'resolve', '{"armed": true, "reason": "it says \\"armed\\": "}', NULL, NULL
    );
    INSERT INTO orders VALUES (
        3, '2026-11-20T12:00:00Z', 'ada', 'records',
        '{"items": [{"evidence": "Spent", "metAt": null, "runs": {"armed": {}}, "spentAt": "then", "spentKey": "k"}]}',
        NULL, NULL
    );
    PRAGMA user_version = 2;
"""


def test_a_ledger_of_the_second_version_has_the_same_facts_in_new_words(path: Path) -> None:
    digest = Digest("d" * 64)
    with closing(sqlite3.connect(path)) as connection:
        for script in (_FIRST_VERSION, _SECOND_VERSION):
            connection.executescript(script.replace("UUID", WEB01).replace("DIGEST", digest))
    for _ in range(2):
        with open_ledger(path) as ledger:
            about = instance_tables.read_facts(ledger)
            assert (about.accepted, about.initialised, about.doubt) == ("c0ffee", "fresh", None)
            assert not instance_tables.is_behind(ledger)
            (record,) = server_tables.read_records(ledger).values()
            assert (record.evidence, record.provisioned_at) == ("Consumed", at("20T11:00"))
            assert (record.consumed_at, record.consumed_key) == (at("20T10:00"), "provision/1")
            assert {each.reason: each.state for each in list_overrides(ledger, WEB01)} == {
                "maintenance/repair/1": OverrideState.CONSUMED,
                "provision/0": OverrideState.LOST,
                "provision/1": OverrideState.CONFIRMED,
            }
            assert instance_tables.read_outcome(ledger, 1) == "done"
            resolve, set_records = instance_tables.read_requests(ledger)
            assert (resolve.id, resolve.operator, resolve.at) == (2, "ada", NOON)
            assert resolve.facts == {"consumed": True, "reason": 'it says "armed": '}
            assert set_records.facts["items"] == [
                {
                    "evidence": "Consumed",
                    "provisionedAt": None,
                    "runs": {"armed": {}},
                    "consumedAt": "then",
                    "consumedKey": "k",
                }
            ]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("SELECT verdict FROM observations ORDER BY id").fetchall() == [
            ("Provisioned",),
            ("Dropped",),
        ]
        assert connection.execute("SELECT value FROM facts WHERE name = 'initialised'").fetchall() == [("fresh",)]
        assert connection.execute("SELECT value FROM facts WHERE name = 'told'").fetchall() == []


def test_a_path_that_cannot_be_a_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="unable to open"):
        open_ledger(tmp_path / "missing" / "ledger.sqlite")


def test_a_file_that_is_not_writable_is_an_error_that_names_the_missing_permission(path: Path) -> None:
    written(path)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        with pytest.raises(sqlite3.OperationalError) as failed:
            connection.execute("PRAGMA user_version = 1")
        error = convert_sqlite_error("ledger.sqlite", failed.value)
    assert not isinstance(error, DamagedLedger)
    assert str(error) == (
        "ledger.sqlite: the ledger cannot be opened (attempt to write a readonly database); give the user that runs "
        "gitboot write access to the file and to its folder"
    )


def test_a_copy_of_a_missing_ledger_fails_and_creates_no_files(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: the ledger cannot be read \(unable to open"):
        back_up(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_cannot_be_written_is_an_error_that_names_the_copy(path: Path, tmp_path: Path) -> None:
    written(path)
    with pytest.raises(LedgerError, match=r"copy\.sqlite: the copy of the ledger cannot be written \(unable to open"):
        back_up(path, tmp_path / "missing" / "copy.sqlite")


def test_a_write_error_of_the_disk_is_a_ledger_error_and_changes_nothing(path: Path) -> None:
    written(path)
    with open_ledger(path) as ledger:
        ledger.rows("PRAGMA query_only = ON")
        with pytest.raises(LedgerError, match="cannot be written"):
            write_rows(ledger, instance_tables.write_facts, accepted="decade")
        with pytest.raises(LedgerError, match="cannot be written"):
            write_rows(
                ledger, server_tables.write_overrides, [(WEB01, make_override_record(state=OverrideState.CONFIRMED))]
            )
        assert (instance_tables.read_facts(ledger).accepted, list_overrides(ledger, WEB01)) == (
            "c0ffee",
            (make_override_record(),),
        )
        ledger.rows("PRAGMA query_only = OFF")
        write_rows(ledger, instance_tables.write_facts, accepted="decade")
        assert instance_tables.read_facts(ledger).accepted == "decade"


# Stored values

INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SEEN = st.builds(StepEvidence, INSTANTS, TEXTS, TEXTS)
RUNS = st.builds(
    Run, st.integers(0, 10**9), INSTANTS, st.none() | INSTANTS, st.none() | SEEN, st.none() | SEEN, st.none() | SEEN
)
ATTEMPTS = st.builds(
    InstallAttempt,
    key=TEXTS,
    number=st.integers(1, 10**6),
    boots=st.lists(SEEN, min_size=1, max_size=3).map(tuple),
    started=st.none() | SEEN,
    started_boot=st.integers(0, 3),
    failed=st.none() | st.builds(Failure, INSTANTS, TEXTS, TEXTS),
    disk_boot=st.none() | SEEN,
)
RECORDS = st.builds(
    Record,
    provision=st.none() | st.integers(0, 10**18),
    image=st.none() | TEXTS,
    pool=st.none() | TEXTS,
    decision=st.none() | st.just(Digest("a" * 64)),
    evidence=st.none() | st.sampled_from(["Fetched", "Consumed", "Adopted"]),
    provisioned_at=st.none() | INSTANTS,
    grace_until=st.none() | INSTANTS,
    consumed_at=st.none() | INSTANTS,
    overwritten_by=st.none() | TEXTS,
    offered=st.integers(0, 10**9),
    answered=st.integers(0, 10**9),
    taken_back=st.integers(0, 10**9),
    attempts=st.lists(ATTEMPTS, max_size=2).map(tuple),
    unknown_serves=st.lists(st.builds(UnknownServe, TEXTS, TEXTS, SEEN, st.booleans()), max_size=2).map(tuple),
    version=st.none() | TEXTS,
    runs=st.dictionaries(TEXTS, RUNS, max_size=3),
    clearances=st.dictionaries(
        TEXTS,
        st.builds(Clearance, st.none() | TEXTS, st.none() | TEXTS, st.none() | INSTANTS, st.none() | INSTANTS),
        max_size=2,
    ),
)
BMCS = st.builds(
    BmcAccess,
    address=TEXTS,
    system=st.none() | TEXTS,
    credentials=TEXTS,
    verify=st.booleans(),
    ca=st.none() | TEXTS,
    reports_uuid=st.none() | st.just(WEB02),
    reports_serial=st.none() | TEXTS,
)
SHOWN = st.builds(ReportedIdentity, uuid=st.none() | st.just(WEB02), serial=st.none() | TEXTS, sku=st.none() | TEXTS)
PINNED = st.builds(
    PinnedIdentity,
    uuid=st.none() | st.just(WEB01),
    serial=st.none() | TEXTS,
    at=INSTANTS,
    place=st.tuples(TEXTS, st.none() | TEXTS),
    accepted=st.booleans(),
    changed=st.none() | SHOWN,
)
MARKS = st.builds(
    ResetMarks,
    last_reset_time=st.none() | TEXTS,
    boot_progress_time=st.none() | TEXTS,
    settled=st.booleans(),
    bmc_time=st.none() | TEXTS,
    bmc_ahead_s=st.none() | st.integers(-(10**10), 10**10),
    manager_reset_time=st.none() | TEXTS,
)
MEDIA = st.builds(Medium, url=TEXTS, state=st.sampled_from(MediumState), at=INSTANTS, booted=st.none() | MARKS)
OVERRIDES = st.builds(
    OverrideRecord,
    reason=st.sampled_from(["provision/1", "maintenance/repair/0", "disk"]),
    plan_digest=TEXTS,
    override=st.builds(
        Override,
        enabled=st.sampled_from(OverrideEnabled),
        target=st.sampled_from(OverrideTarget) | TEXTS,
        mode=st.none() | st.sampled_from(["UEFI", "Legacy"]),
        http_boot_uri=st.none() | TEXTS,
    ),
    marks=MARKS,
    state=st.sampled_from(OverrideState),
    at=INSTANTS,
    corrections=st.lists(INSTANTS, max_size=3).map(tuple),
    bmc=st.none() | BMCS,
    shown=SHOWN,
    writes_disk=st.booleans(),
    medium=st.none() | MEDIA,
    data_medium=st.none() | MEDIA,
    clears_from=st.none() | INSTANTS,
)
SWITCHES = st.builds(
    PowerRecord,
    reason=st.sampled_from(["provision/1", "maintenance/repair/0"]),
    type=st.sampled_from(ResetType),
    marks=MARKS,
    state=st.sampled_from(PowerRecordState),
    at=INSTANTS,
    since=INSTANTS,
    end=st.none() | INSTANTS,
)
MACHINES = st.builds(
    Machine,
    uuid=st.sampled_from([WEB01, WEB02]),
    name=TEXTS,
    macs=st.lists(TEXTS, max_size=3).map(tuple),
    serial=st.none() | TEXTS,
    bmc=st.none() | BMCS,
)
OFFERS = st.builds(
    Offer,
    plan=st.sampled_from([PLAN, OTHER_PLAN]),
    server=TEXTS,
    uuid=st.just(WEB01),
    decision=st.just(Digest("d" * 64)),
    phase=st.sampled_from(Phase),
    key=TEXTS,
    policy=st.none() | TEXTS,
    image=TEXTS,
    provision=st.integers(0, 10**18),
    on_image_change=st.booleans(),
    maintenance=st.none() | TEXTS,
    run=st.none() | st.integers(0, 10**9),
)


UUIDS = st.sampled_from([WEB01, WEB02])
TABLES: dict[str, tuple[st.SearchStrategy[Any], Callable[..., None], Callable[[Store], Any]]] = {
    "records": (RECORDS, server_tables.write_records, server_tables.read_records),
    "overrides": (OVERRIDES, server_tables.write_overrides, server_tables.read_overrides),
    "switches": (SWITCHES, server_tables.write_power_records, server_tables.read_power_records),
    "pins": (PINNED, server_tables.write_pins, server_tables.read_pins),
}


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=15)
@given(data=st.data())
def test_the_last_written_value_of_each_server_is_read_back(table: str, data: st.DataObject) -> None:
    """Overrides and power changes have one row for each reason."""
    values, write, read = TABLES[table]
    last: dict[SystemUuid, Any] = {}
    with TemporaryDirectory() as folder, Unsynced.open(Path(folder) / "ledger.sqlite") as ledger:
        for uuid, value in data.draw(st.lists(st.tuples(UUIDS, values), max_size=4)):
            write_rows(ledger, write, [(uuid, "a name", value) if table == "records" else (uuid, value)])
            by_reason = {**last.get(uuid, {}), value.reason: value} if table in ("overrides", "switches") else value
            last[uuid] = by_reason
        with open_ledger(Path(folder) / "ledger.sqlite") as again:
            assert read(again) == read(ledger) == last


@given(OFFERS)
def test_an_offer_is_read_back_from_its_row(offer: Offer) -> None:
    assert server_tables.parse_offer(offer.plan, server_tables.format_offer(offer)) == offer


@given(client=TEXTS, path=TEXTS, marks=st.none() | MARKS)
def test_an_observation_is_read_back_from_its_row(client: str, path: str, marks: ResetMarks | None) -> None:
    observation = Observation(server="", path=path, digest=PLAN, client=client, at=NOON)
    row = (format_instant(NOON), PLAN, server_tables.format_observation(observation, marks))
    assert server_tables.parse_observation(*row) == (observation, marks)


@settings(max_examples=15)
@given(st.lists(MACHINES, max_size=4))
def test_machines_are_read_as_last_described_and_those_that_left_stay(described: list[Machine]) -> None:
    with TemporaryDirectory() as folder, Unsynced.open(Path(folder) / "ledger.sqlite") as ledger:
        for machine in described:
            write_rows(ledger, server_tables.write_machines, [machine])
        write_rows(ledger, server_tables.write_machines, [], removed=[WEB02])
        with open_ledger(Path(folder) / "ledger.sqlite") as again:
            last = {machine.uuid: machine for machine in described}
            assert server_tables.read_machines(again) == server_tables.read_machines(ledger) == last
            assert server_tables.read_current_machines(again) == last.keys() & {WEB01}


FACTS: dict[str, Any] = {
    "accepted": "c0ffee",
    "branch": "refs/heads/main",
    "is_default_branch": True,
    "searched": "c0ffee",
    "sequence": 7,
    "begun": NOON,
    "doubt": "DamagedLedger",
    "observes": False,
    "heir_of": "another",
    "site": "",
    "heartbeat": Heartbeat(NOON, (timedelta(seconds=0.5),), Uptime("this", 1.5)),
    "gap": True,
    "suspension": Suspension("ada", "moving", NOON),
    "stop_order": StopOrder("ada", "fire", everything=True),
    "orders": FleetOrders("a flood", None),
    "withheld": WithheldBoots("decade", {WEB01: (WithheldBoot("m", NOON, None, takes_image_back=True, by="decade"),)}),
    "rolled_back": {WEB01: 7},
    "left_output": frozenset([WEB01, WEB02]),
}


@BOTH
def test_facts_are_read_as_last_written(path: Path) -> None:
    with open_ledger(path) as ledger:
        new = instance_tables.read_facts(ledger)
        write_rows(ledger, instance_tables.write_facts, **{**FACTS, "accepted": "bad"})
        write_rows(ledger, instance_tables.write_facts, accepted="c0ffee")
    with open_ledger(path) as ledger:
        written = instance_tables.read_facts(ledger)
        assert written == structs.replace(new, **FACTS)
        write_rows(ledger, instance_tables.write_changed_facts, written, new)
        assert instance_tables.read_facts(ledger) == new


@BOTH
def test_a_list_of_records_is_written_completely_or_not_at_all(path: Path) -> None:
    with open_ledger(path) as ledger:
        with pytest.raises(LedgerError, match="cannot be written"):
            write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record()), (WEB02, None, Record())])
        assert server_tables.read_records(ledger) == {}
        write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record())])
        assert server_tables.read_records(ledger) == {WEB01: Record()}


@BOTH
def test_events_are_read_in_the_order_in_which_they_happened_for_any_clock(path: Path) -> None:
    with open_ledger(path) as ledger:
        for hour, type in ((12, "Accepted"), (11, "Published"), (12, "Rejected")):
            instant = NOON.replace(hour=hour)
            write_rows(
                ledger,
                instance_tables.write_events,
                [Event(at=instant, type=type, message="m", facts={"server": "web01", "count": 2})],
            )
    with open_ledger(path) as ledger:
        found = [event for _, event in instance_tables.read_numbered_events(ledger)]
    assert [event["type"] for event in found] == ["Accepted", "Published", "Rejected"]
    assert found[1] == {
        "at": "2026-11-20T11:00:00Z",
        "type": "Published",
        "message": "m",
        "server": "web01",
        "count": 2,
    }


# Offers and observations


@BOTH
def test_an_offer_keeps_its_first_time(path: Path) -> None:
    with open_ledger(path) as ledger:
        write_rows(ledger, server_tables.write_offers, [OFFER], NOON)
        write_rows(ledger, server_tables.write_offers, [OFFER], NOON + timedelta(days=1))
    with open_ledger(path) as ledger:
        assert (server_tables.find_offer(ledger, PLAN), server_tables.find_offer(ledger, OTHER_PLAN)) == (OFFER, None)


@BOTH
def test_each_version_of_a_boot_script_identifies_its_plan(path: Path) -> None:
    with open_ledger(path) as ledger:
        versions = [(ENTRY, 100, PLAN), (ENTRY, 200, OTHER_PLAN), ("another", 100, OTHER_PLAN)]
        write_rows(ledger, server_tables.write_versions, versions, 7)
        found = [server_tables.find_version(ledger, ENTRY, modified) for modified in (100, 200, 150)]
        assert found == [(PLAN, 7), (OTHER_PLAN, 7), None]
        write_rows(
            ledger, server_tables.write_versions, [(ENTRY, 200, PLAN)], 8
        )  # the same bytes are another plan's now
        assert server_tables.find_version(ledger, ENTRY, 200) == (PLAN, 8)


@BOTH
def test_an_observation_is_pending_until_it_is_judged(path: Path) -> None:
    pending = PendingObservation(1, OBSERVATION, OFFER)
    other = PendingObservation(2, replace(OBSERVATION, client="10.0.0.8"), OFFER)
    with open_ledger(path) as ledger:
        assert server_tables.read_last_observation_number(ledger) == 0
        write_rows(ledger, server_tables.write_offers, [OFFER], NOON)
        write_rows(ledger, server_tables.write_pending_observations, [pending])
        assert server_tables.has_observation(ledger, OBSERVATION, PLAN)
        assert not server_tables.has_observation(ledger, other.observation, PLAN)
        marked = pending._replace(marks=ResetMarks(last_reset_time="then"))
        write_rows(ledger, server_tables.write_pending_observations, [marked, other])
        assert server_tables.has_observation(ledger, OBSERVATION, PLAN)  # with or without BMC marks
    with open_ledger(path) as ledger:
        assert (
            server_tables.read_pending_observations(ledger),
            server_tables.read_last_observation_number(ledger),
        ) == (
            [marked, other],
            2,
        )
        write_rows(ledger, server_tables.write_verdicts, {1: "Provisioned"})
        assert server_tables.read_pending_observations(ledger) == [other]
        assert server_tables.has_observation(ledger, OBSERVATION, PLAN)  # a fetch log may be read twice


@BOTH
def test_current_rows_are_never_pruned(path: Path) -> None:
    before, long_ago = NOON - timedelta(days=90), NOON - timedelta(days=200)
    old, now = int(long_ago.timestamp()), int(NOON.timestamp())
    plans = [Digest(letter * 64) for letter in "abc"]
    offers = [server_tables.parse_offer(plan, server_tables.format_offer(OFFER)) for plan in plans]
    judged = PendingObservation(1, replace(OBSERVATION, digest=plans[1], at=long_ago), offers[1])
    waiting = PendingObservation(2, replace(judged.observation, client="10.0.0.8"), offers[1])
    with open_ledger(path) as ledger:
        write_rows(ledger, server_tables.write_offers, offers, long_ago)
        write_rows(
            ledger,
            server_tables.write_versions,
            [(ENTRY, old, plans[0]), (ENTRY, old + 1, plans[1]), ("other", now, plans[2])],
            1,
        )
        write_rows(ledger, server_tables.write_pending_observations, [judged, waiting])
        write_rows(ledger, server_tables.write_verdicts, {1: "Provisioned"})
        write_rows(ledger, server_tables.delete_old_rows, before)
        assert [server_tables.find_version(ledger, ENTRY, old), server_tables.find_version(ledger, ENTRY, old + 1)] == [
            None,
            (plans[1], 1),
        ]
        assert [server_tables.find_offer(ledger, plan) is not None for plan in plans] == [False, True, True]
        assert server_tables.read_pending_observations(ledger) == [waiting]
        assert not server_tables.has_observation(ledger, judged.observation, plans[1])  # forgotten


@BOTH
def test_the_positions_in_the_fetch_log_are_read_back(path: Path) -> None:
    with open_ledger(path) as ledger:
        write_rows(ledger, server_tables.write_spool_positions, {"a.jsonl": 7, "b.jsonl": 0})
        write_rows(ledger, server_tables.write_spool_positions, {"a.jsonl": 9})
    with open_ledger(path) as ledger:
        assert server_tables.read_spool_positions(ledger) == {"a.jsonl": 9}


@BOTH
def test_a_transaction_over_several_tables_is_written_completely_or_not_at_all(path: Path) -> None:
    with open_ledger(path) as ledger:
        with suppress(ZeroDivisionError), ledger.writing() as tx:
            server_tables.write_records(tx, [(WEB01, "web01", Record())])
            instance_tables.write_events(tx, [Event(at=NOON, type="Provisioned", message="m")])
            tx.send()
            raise ZeroDivisionError
        assert (
            server_tables.read_records(ledger),
            [event for _, event in instance_tables.read_numbered_events(ledger)],
            instance_tables.is_behind(ledger),
        ) == (
            {},
            [],
            False,
        )


@BOTH
def test_requests_wait_for_the_instance_and_are_executed_once(path: Path) -> None:
    with open_ledger(path) as ledger:
        numbers = [
            instance_tables.add_request(ledger, NOON, "ada", "retry", {"uuids": [uuid]}) for uuid in (WEB01, WEB02)
        ]
    with open_ledger(path) as ledger:
        first, second = instance_tables.read_requests(ledger)
        assert (first.id, first.at, first.operator, first.action, first.facts) == (
            numbers[0],
            NOON,
            "ada",
            "retry",
            {"uuids": [WEB01]},
        )
        write_rows(ledger, instance_tables.write_outcomes, [(first, "done")], NOON)
        assert [instance_tables.read_outcome(ledger, number) for number in numbers] == ["done", None]
        assert instance_tables.read_requests(ledger) == (second,)


# An older copy, another ledger, a damaged one


def backup(path: Path, name: str = "backup.sqlite") -> Path:
    copy = path.with_name(name)
    with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(copy)) as new:
        ours.backup(new)
    return copy


def restore(copy: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(copy, path)


def is_behind(path: Path) -> bool:
    with open_ledger(path) as ledger:
        return instance_tables.is_behind(ledger)


def test_a_backup_of_the_current_state_equals_the_ledger(path: Path) -> None:
    written(path)
    restore(backup(path), path)
    assert not is_behind(path)


CHANGES: dict[str, tuple[Callable[..., None], tuple[Any, ...], bool]] = {
    "a record": (server_tables.write_records, ([(WEB01, "web01", Record(provision=2))],), True),
    "what was set": (
        server_tables.write_overrides,
        ([(WEB01, make_override_record(state=OverrideState.CONFIRMED))],),
        True,
    ),
    "what was offered": (server_tables.write_offers, ([structs.replace(OFFER, plan=Digest("e" * 64))], NOON), True),
    "what was forgotten": (server_tables.delete_all_records, (), True),
    "what is offered again": (server_tables.write_offers, ([OFFER], at("21T11:00")), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_backup_from_before_a_change_is_detected(path: Path, change: str) -> None:
    write, given, is_change = CHANGES[change]
    written(path)
    copy = backup(path)
    with open_ledger(path) as ledger:
        write_rows(ledger, write, *given)
        assert not instance_tables.is_behind(ledger)
    assert not is_behind(path)
    restore(copy, path)
    assert is_behind(path) is is_change


def test_another_ledger_in_its_place_is_detected(path: Path) -> None:
    other = path.with_name("other.sqlite")
    written(path)
    with open_ledger(other) as ledger:
        for _ in range(9):
            write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record(provision=1))])
    restore(other, path)
    assert is_behind(path)
    path.unlink()  # and so is a new one
    assert is_behind(path)


def test_a_crash_between_a_change_and_its_mark_does_not_count_as_an_older_copy(path: Path) -> None:
    written(path)
    mark = path.with_suffix(".mark").read_bytes()
    with open_ledger(path) as ledger:
        write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record(provision=2))])
    path.with_suffix(".mark").write_bytes(mark)
    assert not is_behind(path)


@pytest.mark.parametrize("mark", [b"", b"garbage", b"\xff\xfe 7", None])
def test_e9_a_ledger_with_writes_and_without_a_mark_is_an_older_copy(path: Path, mark: bytes | None) -> None:
    """Restore the documented backup on a new host."""
    written(path)
    if mark is None:
        path.with_suffix(".mark").unlink()
    else:
        path.with_suffix(".mark").write_bytes(mark)
    assert is_behind(path)
    with open_store(path) as ledger:
        assert instance_tables.read_facts(ledger).doubt == "RestoredLedger"
        write_rows(ledger, instance_tables.write_facts, initialised="as-recorded", doubt=None)
    with open_store(path) as ledger:  # its mark is whole again
        assert instance_tables.read_facts(ledger).doubt is None


def test_a_ledger_that_was_never_written_to_needs_no_mark(path: Path) -> None:
    open_ledger(path).close()
    assert not is_behind(path)
    with open_store(path) as ledger:
        assert ledger.mark == (instance_tables.read_facts(ledger).identity, 0)


def test_the_second_of_two_older_copies_is_detected_like_the_first(path: Path) -> None:
    """The wrong backup was restored and begun, and then the right one, which is newer."""
    written(path)
    copies = []
    for number in (1, 2):
        copies.append(backup(path, f"{number}.sqlite"))
        with open_ledger(path) as ledger:
            for _ in range(9):
                write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record(provision=number))])
    for copy in copies:
        restore(copy, path)
        with open_store(path) as ledger:
            assert instance_tables.read_facts(ledger).doubt == "RestoredLedger", copy.name
            write_rows(ledger, server_tables.delete_all_records)
            write_rows(ledger, instance_tables.write_facts, initialised="adopt", doubt=None)
    with open_store(path) as ledger:
        assert instance_tables.read_facts(ledger).doubt is None


def test_a_damaged_ledger_is_set_aside_completely_and_the_new_one_is_unverified(path: Path) -> None:
    for number in (1, 2):
        written(path)
        garbage = b"this was never a database\n" * 99
        path.write_bytes(garbage)
        with open_store(path) as ledger:
            about = instance_tables.read_facts(ledger)
            assert (about.doubt, server_tables.read_records(ledger), about.initialised) == ("DamagedLedger", {}, None)
        assert path.with_name(f"ledger.sqlite.damaged-{number}").read_bytes() == garbage
        with open_store(path) as ledger:
            assert instance_tables.read_facts(ledger).doubt == "DamagedLedger"
            write_rows(ledger, instance_tables.write_facts, initialised="adopt", doubt=None)
        path.unlink()
        path.with_suffix(".mark").unlink()


def test_a_crash_after_a_damaged_ledger_was_set_aside_leaves_the_new_one_unverified(path: Path) -> None:
    written(path)
    path.write_bytes(b"garbage" * 99)
    with pytest.raises(DamagedLedger):
        open_ledger(path)
    set_ledger_aside(path)
    with open_store(path) as ledger:
        assert instance_tables.read_facts(ledger).doubt is not None


# Crashes, threads, copies

_CHILD = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.bmc.override_state import OverrideRecord, OverrideState
from gitboot.bmc.override_steps import NO_OVERRIDE
from gitboot.bmc.override_state import ResetMarks
from gitboot.resolve.provisioning_record import Record
at = datetime(2026, 11, 20, 12, tzinfo=UTC)
ledger = open_ledger(Path(sys.argv[1]))
state = OverrideState.RECORDED
set = OverrideRecord(reason="r", plan_digest="d", override=NO_OVERRIDE, marks=ResetMarks(), state=state, at=at)
for write in (
    lambda tx: instance_tables.write_facts(tx, accepted="c0ffee"),
    lambda tx: server_tables.write_records(tx, [(sys.argv[2], "web01", Record(provision=1))]),
    lambda tx: server_tables.write_overrides(tx, [(sys.argv[2], set)]),
):
    with ledger.writing() as tx:
        write(tx)
with ledger.writing() as tx:
    tx.execute("UPDATE records SET provision = 2")
    tx.send()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(path: Path) -> None:
    """Run a process that is killed after three writes, during the fourth."""
    child = subprocess.run([sys.executable, "-c", _CHILD, str(path), WEB01], check=False)
    assert child.returncode == -signal.SIGKILL


@BOTH
def test_a_killed_process_leaves_every_completed_write_and_no_partial_one(path: Path) -> None:
    killed_writer(path)
    with open_ledger(path) as ledger:
        assert instance_tables.read_facts(ledger).accepted == "c0ffee"
        assert server_tables.read_records(ledger) == {WEB01: Record(provision=1)}
        assert [each.state for each in list_overrides(ledger, WEB01)] == [OverrideState.RECORDED]


def test_every_write_is_synced_to_the_disk(path: Path) -> None:
    with open_ledger(path) as ledger:
        assert ledger.rows("PRAGMA synchronous") == [(2,)]  # FULL: each commit is synced


@BOTH
def test_two_threads_write_without_loss(path: Path) -> None:
    with Unsynced.open(path) as unsynced:

        def write(uuid: SystemUuid) -> None:
            for number in range(40):
                write_rows(
                    unsynced, server_tables.write_overrides, [(uuid, make_override_record(f"maintenance/m/{number}"))]
                )
                write_rows(unsynced, instance_tables.write_events, [Event(at=NOON, type="E", message=uuid)])
                assert len(list_overrides(unsynced, uuid)) == number + 1

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, (WEB01, WEB02)))
        messages = [event["message"] for _, event in instance_tables.read_numbered_events(unsynced)]
        assert (messages.count(WEB01), messages.count(WEB02)) == (40, 40)
    with open_ledger(path) as ledger:
        assert (len(list_overrides(ledger, WEB01)), len(list_overrides(ledger, WEB02))) == (40, 40)


@pytest.mark.parametrize("left", ["closed", "killed", "in use"])
def test_a_copy_is_complete_and_leaves_no_temporary_files(tmp_path: Path, left: str) -> None:
    folder, copy = tmp_path / "state", tmp_path / "copy.sqlite"
    folder.mkdir()
    path = folder / "ledger.sqlite"
    if left == "killed":
        killed_writer(path)
    else:
        written(path)

    def look() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in folder.iterdir() if not each.name.endswith("-shm")}

    if left == "in use":
        with open_ledger(path) as ledger:
            write_rows(ledger, instance_tables.write_facts, accepted="decade")
            before = look()
            copy_ledger(path, copy, in_use=True)
            assert look() == before
    else:
        before, names = look(), sorted(each.name for each in folder.iterdir())
        copy_ledger(path, copy, in_use=False)
        assert (look(), sorted(each.name for each in folder.iterdir())) == (before, names)
    with open_ledger(copy) as copied:
        assert instance_tables.read_facts(copied).accepted == ("decade" if left == "in use" else "c0ffee")
        assert set(server_tables.read_records(copied)) == {WEB01}


def test_a_reader_on_a_full_disk_gets_the_events_of_an_ended_instance_and_then_those_of_the_next_one(
    tmp_path: Path,
) -> None:
    """A clean end leaves no log beside the ledger, and a full disk has no room for the index that readers need."""
    with small_disk(tmp_path, size="2m", name="state") as state:
        path = state / "ledger.sqlite"

        def write_event(type: str) -> None:
            with open_ledger(path) as ledger:
                write_rows(ledger, instance_tables.write_events, [Event(at=NOON, type=type, message="m")])

        write_event("Stopped")
        fill(state / "filler")
        with open_for_reading(path) as reader:
            assert [each["type"] for _, each in instance_tables.read_numbered_events(reader)] == ["Stopped"]
            (state / "filler").unlink()
            write_event("Listening")
            types = [each["type"] for _, each in instance_tables.read_numbered_events(reader)]
            assert types == ["Stopped", "Listening"]


def test_a_write_after_an_opening_on_a_full_disk_names_the_cause_and_succeeds_when_there_is_space(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path, size="2m", name="state") as state:
        path = state / "ledger.sqlite"
        open_ledger(path).close()
        fill(state / "filler")
        with open_ledger(path) as ledger:
            with pytest.raises(LedgerError, match=r"cannot be written \(the disk is full\); free some space"):
                write_rows(ledger, instance_tables.write_facts, accepted="decade")
            (state / "filler").unlink()
            write_rows(ledger, instance_tables.write_facts, accepted="decade")
            assert instance_tables.read_facts(ledger).accepted == "decade"


def test_a_full_disk_is_named_as_the_cause_if_a_killed_instance_left_a_log(tmp_path: Path) -> None:
    with small_disk(tmp_path, size="2m", name="state") as state:
        path = state / "ledger.sqlite"
        killed_writer(path)
        Path(f"{path}-shm").unlink()
        fill(state / "filler")
        for open_store in (open_ledger, open_for_reading):
            with pytest.raises(LedgerError, match=r"cannot be read \(the disk is full\); free some space"):
                open_store(path)
