"""Records and attempts: exported records, servers without a record, machines that come back, and disks written over."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gitboot.errors import FleetOrders, InvalidRepository, UsageError
from gitboot.fleet.validation import load_revision
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.fleet_decisions import decide_revision
from gitboot.resolve.install_attempts import (
    UnrecordedState,
    add_consumed_run,
    classify_unrecorded_server,
    find_begun_key,
    make_adopted_record,
    make_first_records,
)
from gitboot.resolve.plan_at_time import extend_consumed_runs, make_plan, run_key
from gitboot.resolve.provisioning_record import (
    Failure,
    InstallAttempt,
    Record,
    Run,
    StepEvidence,
    StopScope,
    UnknownServe,
    encode_records,
    find_newer_records,
    parse_exported_records,
)
from gitboot.resolve.server_decision import Decision, MaintenanceDecision
from gitboot.resolve.server_plan import Cause, Phase
from gitboot.review.decision_changes import UnknownCause, UnknownReason
from gitboot.review.guards import InstanceFacts, Limits, judge
from gitboot.review.reinstalls import find_returning_servers
from gitboot.review.risks import Risk
from tests.helpers.cases import count_examples, for_each, require_value
from tests.helpers.evaluations import FLEET, Files, compare_files, review_files
from tests.helpers.fleets import (
    SEED,
    at,
    decided,
    decision,
    fleet,
    image,
    maintenance,
    make_mac,
    make_uuid,
    policy,
    profile,
    server,
    snapshot,
)
from tests.ledger.test_store import RECORDS

BEFORE = SystemUuid(make_uuid("before"))
ATTEMPTED = Record(
    attempts=(InstallAttempt(key="provision/1", boots=(StepEvidence(at("20T22:00"), "boot/x", "10.0.0.7"),)),)
)
CONSUMED = Record(consumed_at=at("20T22:00"), consumed_key="provision/1")
ONCE = (
    SEED[0],
    *(image("flatcar-1"), image("bios-2"), image("memtest-7", "writesDisk: false")),
    *(profile("web", "flatcar-1"), profile("bios", "bios-2"), profile("repair", "memtest-7")),
    policy("web", "{matchLabels: {role: web}}", often="Once"),
)


def web01(spec: str = "provision: 1", *more: str) -> Decision:
    return decision("web01", *ONCE, server("web01", "role: web", spec), *more)


@pytest.mark.parametrize(
    ("key", "consumed", "expected"),
    [
        ("provision/1", None, "provision/1"),
        ("provision/1", "provision/1", "provision/1"),
        ("provision/1/flatcar-1", "provision/1", "provision/1"),
        ("provision/1/flatcar-2", "provision/1", "provision/1/flatcar-2"),  # the attempt contains this boot
        ("provision/1/flatcar-2", "provision/1/boot/2", "provision/1"),
        ("provision/1", "provision/1/flatcar-2", "provision/1/flatcar-2"),
    ],
)
def test_an_override_that_was_consumed_after_an_attempt_determines_what_began(
    key: str, consumed: str | None, expected: str
) -> None:
    attempt = InstallAttempt(key="provision/1", image="flatcar-1", boots=(StepEvidence(at("20T12:00"), "", ""),))
    assert find_begun_key(key, Record(attempts=(attempt,), consumed_key=consumed)) == expected


def test_an_attempt_after_an_override_was_consumed_determines_what_began_in_a_record_of_2fefe59() -> None:
    attempt = InstallAttempt(key="provision/1/flatcar-1", boots=(StepEvidence(at("20T12:00"), "", ""),))
    record = Record(attempts=(attempt,), consumed_key="provision/1", consumed_at=at("20T10:00"))
    assert find_begun_key("provision/1/flatcar-1", record) == "provision/1/flatcar-1"


@for_each(
    ("what", "spec", "records", "introduced", "known"),
    [
        ("it comes at provision 0", "provision: 0", {}, 0, UnrecordedState.NEW),
        ("it comes at provision 1", "provision: 1", {}, 1, UnrecordedState.NEW),
        ("it came at 1 and was raised since", "provision: 3", {}, 1, UnrecordedState.NEW),
        ("it comes from another repository", "provision: 3", {}, 3, UnrecordedState.UNKNOWN),
        ("it came from there and was lowered since", "provision: 1", {}, 3, UnrecordedState.UNKNOWN),
        ("it stood there already", "provision: 1", {}, None, UnrecordedState.UNKNOWN),
        ("it replaces what nobody knows", f"replaces: {BEFORE}, provision: 2", {}, 1, UnrecordedState.UNKNOWN),
        (
            "with a higher number",
            f"replaces: {BEFORE}, provision: 2",
            {BEFORE: Record(provision=1)},
            2,
            UnrecordedState.PENDING,
        ),
        (
            "with the same",
            f"replaces: {BEFORE}, provision: 1",
            {BEFORE: Record(provision=1)},
            1,
            UnrecordedState.UNKNOWN,
        ),
        (
            "with a lower one",
            f"replaces: {BEFORE}, provision: 0",
            {BEFORE: Record(provision=1)},
            0,
            UnrecordedState.UNKNOWN,
        ),
        (
            "what was pending itself",
            f"replaces: {BEFORE}, provision: 1",
            {BEFORE: Record()},
            1,
            UnrecordedState.PENDING,
        ),
        (
            "what was pending itself, with number 0",
            f"replaces: {BEFORE}, provision: 0",
            {BEFORE: Record()},
            0,
            UnrecordedState.UNKNOWN,
        ),
        (
            "what was attempted with it",
            f"replaces: {BEFORE}, provision: 1",
            {BEFORE: ATTEMPTED},
            1,
            UnrecordedState.UNKNOWN,
        ),
        ("and raised since", f"replaces: {BEFORE}, provision: 2", {BEFORE: ATTEMPTED}, 2, UnrecordedState.PENDING),
        (
            "of which an override was consumed",
            f"replaces: {BEFORE}, provision: 1",
            {BEFORE: CONSUMED},
            1,
            UnrecordedState.UNKNOWN,
        ),
    ],
)
def test_e11_e12_a_server_without_a_record_is_new_returning_or_unverified(
    what: str, spec: str, records: dict[SystemUuid, Record], introduced: int | None, known: UnrecordedState
) -> None:
    decided = web01(spec)
    found = classify_unrecorded_server(
        decided, records=records, seen_machines=records.keys(), first_provision=introduced
    )
    assert found.state is known
    assert found.why
    boots = require_value(make_plan(decided, at("20T12:00"), found.record(decided)))
    assert (boots.phase is Phase.NETWORK) == (known is not UnrecordedState.UNKNOWN and decided.provision > 0)


@pytest.mark.parametrize(
    ("seen", "carries", "why"),
    [
        ({make_uuid("web01")}, None, "the machine is in the ledger"),
        ((), "the MAC address 52:54:00:00:00:01 with db01", "replaces"),
    ],
)
def test_e12_a_machine_that_is_not_new_is_unverified(seen: set[SystemUuid], carries: str | None, why: str) -> None:
    found = classify_unrecorded_server(
        web01(), records={}, seen_machines=seen, first_provision=1, shared_identity=carries
    )
    assert found.state is UnrecordedState.UNKNOWN
    assert why in found.why


# Leftovers of a maintenance


def record_maintenance_run(record: Record, maintenance: MaintenanceDecision, made_at: datetime) -> Record:
    run = Run(maintenance.run, made_at, maintenance.end)
    writes_disk = maintenance.boot is not None and maintenance.boot.writes_disk
    return add_consumed_run(record, maintenance.name, run, once=True, overwrites_disk=writes_disk)


WIPE = maintenance("wipe", "20T22:00 21T04:00", "networkBoot: Once", boots="bios")


def test_e12_a_maintenance_that_writes_disks_leaves_servers_unverified_until_their_number_is_raised() -> None:
    wiped = web01("provision: 1", WIPE)
    record = record_maintenance_run(make_adopted_record(wiped), wiped.maintenances[0], at("20T22:10"))
    assert record.overwritten_by == "wipe"
    after = make_plan(wiped, at("21T05:00"), record)
    assert after is not None and (after.phase, after.cause) == (Phase.DISK, Cause.OVERWRITTEN)
    raised = make_plan(web01("provision: 2", WIPE), at("21T05:00"), record)
    assert raised is not None and (raised.phase, raised.cause) == (Phase.NETWORK, Cause.PENDING)


def test_a_maintenance_that_writes_no_disk_leaves_the_records_unchanged() -> None:
    tested = web01("provision: 1", maintenance("m", "20T22:00 21T04:00", "networkBoot: Once"))
    record = record_maintenance_run(make_adopted_record(tested), tested.maintenances[0], at("20T22:10"))
    assert record == replace(make_adopted_record(tested), runs={"m": Run(1, at("20T22:10"), at("21T04:00"))})


def test_a_server_that_was_never_installed_is_pending_even_if_something_wrote_its_disk() -> None:
    wiped = web01("provision: 1", WIPE)
    planned = make_plan(wiped, at("21T05:00"), record_maintenance_run(Record(), wiped.maintenances[0], at("20T22:10")))
    assert planned is not None and planned.cause is Cause.PENDING


def test_the_result_of_a_maintenance_run_is_exported() -> None:
    wiped = web01("provision: 1", WIPE)
    records = {wiped.uuid: record_maintenance_run(make_adopted_record(wiped), wiped.maintenances[0], at("20T22:10"))}
    assert parse_exported_records(encode_records(records), "records.json") == records


# When a run is made again

MADE = record_maintenance_run(
    Record(provision=1, image="flatcar-1"), web01("provision: 1", WIPE).maintenances[0], at("20T22:10")
)


@for_each(
    ("window", "spec", "again"),
    [
        ("20T22:00 21T04:00", "", False),
        ("20T23:00 21T04:00", "", False),
        ("21T03:59 21T10:00", "", False),
        ("21T04:00 21T10:00", "", True),
        ("27T22:00 28T04:00", "", True),
        ("- 28T04:00", "", False),
        ("20T22:00 21T04:00", ", run: 2", True),
        ("27T22:00 28T04:00", ", run: 0", True),
    ],
)
def test_e17_a_run_is_repeated_in_a_later_window_or_if_it_is_raised(window: str, spec: str, again: bool) -> None:
    decided = web01("provision: 1", maintenance("wipe", window, f"networkBoot: Once{spec}", boots="bios"))
    (asked,) = decided.maintenances
    instant = asked.end.replace(hour=asked.end.hour - 1, minute=59) if asked.end else at("28T00:00")
    planned = require_value(make_plan(decided, instant, MADE))
    assert (planned.phase, planned.cause) == (
        (Phase.MAINTENANCE, Cause.MAINTENANCE) if again else (Phase.DISK, Cause.MAINTENANCE_DONE)
    )


def test_e17_the_run_of_a_later_window_has_its_own_reason() -> None:
    first, later = (
        web01("provision: 1", maintenance("wipe", window, "networkBoot: Once", boots="bios")).maintenances[0]
        for window in ("20T22:00 21T04:00", "27T22:00 28T04:00")
    )
    assert {run_key(first, None), run_key(first, MADE), run_key(later, Record())} == {"maintenance/wipe/1"}
    assert run_key(later, MADE) == "maintenance/wipe/1/after/2026-11-21T04:00:00Z"
    assert record_maintenance_run(MADE, later, at("27T23:00")).runs["wipe"] == Run(1, at("27T23:00"), at("28T04:00"))


def test_e17_a_run_lasts_as_long_as_its_window() -> None:
    longer = web01("provision: 1", maintenance("wipe", "20T22:00 21T08:00", "networkBoot: Once", boots="bios"))
    record = extend_consumed_runs(MADE, longer)
    assert record.runs["wipe"].end == at("21T08:00")
    assert extend_consumed_runs(record, web01("provision: 1", WIPE)) is record
    shifted = web01("provision: 1", maintenance("wipe", "21T05:00 21T08:00", "networkBoot: Once", boots="bios"))
    assert (planned := make_plan(shifted, at("21T06:00"), record)) is not None
    assert planned.cause is Cause.MAINTENANCE_DONE


# Machines that come back


@for_each(
    ("what", "spec", "more", "record", "counted"),
    [
        ("Once, and provisioned", "provision: 1", (), Record(provision=1, image="flatcar-1"), False),
        ("Once, and raised", "provision: 2", (), Record(provision=1, image="flatcar-1"), True),
        ("Once, and pending", "provision: 1", (), Record(), True),
        ("Once, and seen without a record", "provision: 1", (), None, False),
        ("a maintenance", "provision: 1", (WIPE,), Record(provision=1, image="flatcar-1"), True),
        ("a maintenance that was made", "provision: 1", (WIPE,), MADE, False),
        ("a maintenance, seen without a record", "provision: 1", (WIPE,), None, False),
        ("one that writes none", "", (maintenance("m", "20T22:00 21T04:00"),), None, False),
        (
            "one that writes at every boot",
            "",
            (maintenance("m", "20T22:00 21T04:00", boots="bios"),),
            None,
            True,
        ),
        (
            "Always",
            "",
            (policy("always", "{servers: [web01]}", "priority: 5"),),
            Record(provision=0, image="flatcar-1"),
            True,
        ),
    ],
)
def test_e20_returning_servers_are_counted_from_the_ledger(
    what: str, spec: str, more: tuple[str, ...], record: Record | None, counted: bool
) -> None:
    decided = web01(spec, *more)
    records = {decided.uuid: record} if record is not None else {}
    assert find_returning_servers([decided], records, {decided.uuid}) == (("web01",) if counted else ())
    assert find_returning_servers([decided], {}, ()) == ()
    assert find_returning_servers([replace(decided, stopped=True)], records, {decided.uuid}) == ()


def test_e20_deleted_servers_that_come_back_are_held() -> None:
    paths = [path for path in FLEET if path.startswith("servers/")]
    always = {**FLEET, "policies/web.yaml": policy("web", "{matchLabels: {role: web}}")}
    changes = compare_files({path: always[path] for path in paths}, {**always, **dict.fromkeys(paths)})
    come = [each.new for each in changes.servers if each.new is not None]
    back = find_returning_servers(come, {}, {each.uuid for each in come})
    assert len(back) == 18
    (trip, *_) = judge(changes.extent, Limits(), facts=InstanceFacts(returning=back)).trips
    assert (trip.guard.value, trip.number) == ("maxReinstalls", 18)


# Reviews


def make_server(spec: str, name: str = "fra1-web01") -> Files:
    return {f"servers/{name}.yaml": server(name, "site: fra1, role: web", spec)}


def make_replaced_board(spec: str) -> Files:
    text = str(make_server(spec)["servers/fra1-web01.yaml"]).replace(
        make_uuid("fra1-web01"), make_uuid("a new board"), 1
    )
    return {"servers/fra1-web01.yaml": text}


OLD = make_uuid("fra1-web01")


@for_each(
    ("what", "new", "expected"),
    [
        ("it comes at 1", make_server("provision: 1", "new01"), ()),
        ("it comes at 3", make_server("provision: 3", "new01"), (UnknownReason(UnknownCause.NEW_SERVER, "3"),)),
        (
            "it replaces what nobody is",
            make_server(f"provision: 2, replaces: {make_uuid('nobody')}", "new01"),
            (UnknownReason(UnknownCause.REPLACES, make_uuid("nobody")),),
        ),
        ("a new board", make_replaced_board("provision: 2"), (UnknownReason(UnknownCause.BOARD, OLD),)),
        (
            "a new board that is named",
            make_replaced_board(f"provision: 1, replaces: {OLD}"),
            (UnknownReason(UnknownCause.NOT_RAISED, "1"),),
        ),
        ("and raised", make_replaced_board(f"provision: 2, replaces: {OLD}"), ()),
        ("provision raised", make_server("provision: 2"), ()),
        (
            "a wipe",
            {"m.yaml": WIPE.replace("All", "{servers: [fra1-web01]}")},
            (UnknownReason(UnknownCause.OVERWRITTEN, "wipe"),),
        ),
    ],
)
def test_e12_a_review_shows_which_servers_become_unverified(
    what: str, new: Files, expected: tuple[UnknownReason, ...]
) -> None:
    (change,) = compare_files(new).servers
    assert (change.unknown, Risk.BECOMES_UNKNOWN in change.risks) == (expected, bool(expected))
    reasons = [danger.reasons for danger in review_files(new).find_dangers() if danger.risk is Risk.BECOMES_UNKNOWN]
    assert len(reasons) == len(expected)


def test_e12_a_board_that_replaces_another_is_the_same_server_whatever_else_changes() -> None:
    text = str(make_replaced_board(f"provision: 2, replaces: {OLD}")["servers/fra1-web01.yaml"])
    moved = text.replace(make_mac("fra1-web01"), make_mac("other")).replace("name: fra1-web01", "name: ams2-new")
    (change,) = compare_files({"servers/fra1-web01.yaml": None, "servers/new.yaml": moved}).servers
    assert change.old is not None and (change.old.server, change.name) == ("fra1-web01", "ams2-new")
    assert Risk.REINSTALL in change.risks


@pytest.mark.parametrize(
    ("unknown", "boots"),
    [
        ("LocalDisk", "the local disk"),
        ("NotFound", "no boot script (404)"),
        ("{profile: repair}", "BootImage/memtest-7"),
    ],
)
def test_e12_a_review_shows_what_a_machine_boots_after_its_document_is_deleted(unknown: str, boots: str) -> None:
    old = {**FLEET, "fleet.yaml": str(FLEET["fleet.yaml"]).replace("spec: {", f"spec: {{unknownServers: {unknown}, ")}
    (danger,) = (
        each
        for each in review_files({"servers/fra1-web01.yaml": None}, old).find_dangers()
        if each.risk is Risk.WITHDRAWN
    )
    assert danger.reasons == (f"a machine without a document gets the boot of unknown machines: {boots}",)


# Stopped


@for_each(
    ("what", "documents", "boots"),
    [
        ("an installation", ONCE, None),
        ("a maintenance that writes disks", (*ONCE, WIPE), None),
        ("a maintenance that writes none", (*ONCE, maintenance("m", "20T22:00 21T04:00")), "memtest-7"),
        (
            "one that writes, over what always boots from the network",
            (*ONCE, WIPE, policy("diskless", "All", "priority: 9", boots="repair")),
            "memtest-7",
        ),
    ],
)
@for_each("by", ["the commit", "a request"])
def test_a_stop_leaves_only_boots_that_write_no_disk(
    what: str, documents: tuple[str, ...], boots: str | None, by: str
) -> None:
    decided = replace(
        decision("web01", *documents, server("web01", "role: web", "provision: 1")), stopped=by == "the commit"
    )
    planned = make_plan(
        decided, at("20T23:00"), Record(), stop=StopScope.NONE if by == "the commit" else StopScope.WRITING
    )
    assert planned is not None and (planned.boot.image if planned.boot is not None else None) == boots
    if boots is None:
        assert (planned.phase, planned.cause, planned.override, planned.key) == (Phase.DISK, Cause.STOPPED, None, None)


def test_the_fleet_can_stop_installs() -> None:
    stopped = ONCE[0].replace("spec: {", "spec: {stopped: 'fire in fra1', ")
    decided = decision("web01", stopped, *ONCE[1:], server("web01", "role: web", "provision: 1"))
    assert decided.stopped
    assert decided.digest != web01().digest


BASE, NOBODY = "baseURL: 'http://boot.test'", "unknownServers: {profile: nobody}"


@for_each(
    ("what", "documents", "orders"),
    [
        (
            "a document that is broken",
            (ONCE[0].replace("spec: {", "spec: {stopped: fire, "), "kind: Nonsense\n"),
            FleetOrders("fire", None),
        ),
        (
            "a boot that cannot be",
            (ONCE[0].replace("spec: {", "spec: {stopped: fire, "), server("web01")),
            FleetOrders("fire", None),
        ),
        ("a Fleet that names what is missing", (fleet(f"{BASE}, stopped: fire, {NOBODY}"),), FleetOrders("fire", None)),
        (
            "another ledger",
            (fleet(f"{BASE}, provisioning: {{ledger: {BEFORE}}}"), "kind: X\n"),
            FleetOrders(None, BEFORE),
        ),
        ("a Fleet that says nothing of it", (ONCE[0], "kind: Nonsense\n"), FleetOrders(None, None)),
        ("a Fleet that is broken", (ONCE[0].replace("spec: {", "spec: {stopped: fire, nonsense: 1, "),), None),
    ],
)
def test_a_stop_in_an_invalid_commit_is_still_reported(
    what: str, documents: tuple[str, ...], orders: FleetOrders | None
) -> None:
    with pytest.raises(InvalidRepository) as caught:
        decide_revision(load_revision(snapshot(*documents)))
    said = caught.value.fleet
    assert (said.find_orders(None) if said is not None else None) == orders


WEB01, WEB02 = SystemUuid(make_uuid("web01")), SystemUuid(make_uuid("web02"))


@settings(max_examples=count_examples(60))
@given(st.dictionaries(st.sampled_from([WEB01, WEB02]), RECORDS))
def test_exported_records_are_imported_unchanged(records: dict[SystemUuid, Record]) -> None:
    found = parse_exported_records(encode_records(records), "records.json")
    # The answers of URLs are not exported.
    assert found == {uuid: replace(record, clearances={}) for uuid, record in records.items()}


def test_evidence_keeps_fractions_of_a_second() -> None:
    records = {WEB01: Record(provision=1, provisioned_at=at("20T12:00").replace(microsecond=123456))}
    assert b'"provisionedAt":"2026-11-20T12:00:00.123456Z"' in encode_records(records)
    assert parse_exported_records(encode_records(records), "records.json") == records


def test_exports_are_sorted_and_versioned() -> None:
    data = encode_records({WEB01: Record(), WEB02: Record()})
    assert data == encode_records({WEB02: Record(), WEB01: Record()})
    document = json.loads(data)
    assert document["apiVersion"] == "gitboot.dev/v1alpha1"
    assert [item["uuid"] for item in document["items"]] == sorted([WEB01, WEB02])


def item(**changed: Any) -> bytes:
    """Exported records of one server, with something changed; None for a key that is missing is "absent"."""
    found = json.loads(encode_records({WEB01: Record(provision=1, provisioned_at=at("20T12:00"))}))
    found["items"][0] |= changed
    found["items"][0] = {key: value for key, value in found["items"][0].items() if value != "absent"}
    return json.dumps(found).encode()


def test_the_unchanged_export_is_valid() -> None:
    assert parse_exported_records(item(), "records.json") == {WEB01: Record(provision=1, provisioned_at=at("20T12:00"))}


@for_each(
    ("case", "data"),
    [
        ("nothing", b""),
        ("another format", b"items: []\n"),
        ("no UTF-8", b'{"items": "\xff"}'),
        ("cut off", item()[:-4]),
        ("a list", b"[]"),
        ("no items", b'{"apiVersion": "gitboot.dev/v1alpha1"}'),
        ("items without a list", b'{"items": 7}'),
        ("an item that is text", b'{"items": ["web01"]}'),
        ("deep nesting", b"[" * 100_000),
        ("no UUID", item(uuid="absent")),
        ("a malformed UUID", item(uuid="web01")),
        ("a provision of text", item(provision="1")),
        ("a provision of true", item(provision=True)),
        ("a provision with a fraction", item(provision=1.5)),
        ("a provision below zero", item(provision=-1)),
        ("a provision that no ledger holds", item(provision=2**63)),
        ("an invalid key", item(consumedKey=7)),
        ("an invalid image", item(image=["flatcar-1"])),
        ("a pool of a number", item(pool=1)),
        ("a malformed digest", item(decisionDigest="a")),
        ("an invalid time", item(provisionedAt="yesterday")),
        ("an instant without an offset", item(provisionedAt="2026-11-20T12:00:00")),
        ("an instant before the calendar", item(provisionedAt="0001-01-01T00:00:00+14:00")),
        ("an instant of a number", item(consumedAt=5)),
        ("no grace", item(graceUntil="absent")),
        ("runs in a list", item(runs=[])),
        ("a run without its instant", item(runs={"repair": {"run": 1}})),
        ("a run of text", item(runs={"repair": {"run": "1", "at": "2026-11-20T12:00:00Z"}})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_records_are_rejected_with_the_name_of_their_file(case: str, data: bytes) -> None:
    with pytest.raises(
        UsageError, match=r"^backup/records\.json does not contain exported records \(.+\); use ops/records"
    ):
        parse_exported_records(data, "backup/records.json")


SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "run", "at", "2026-11-20T12:00:00Z"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.just("repair"), SCALARS)
KEYS = st.sampled_from(sorted(json.loads(item())["items"][0]))


@settings(max_examples=count_examples(100))
@given(st.dictionaries(KEYS, VALUES, max_size=2))
def test_any_json_gives_records_or_is_rejected(changed: dict[str, Any]) -> None:
    with suppress(UsageError):
        assert len(parse_exported_records(item(**changed), "records.json")) == 1


# First records


@for_each(
    ("case", "provision", "known", "adopt_all", "expected"),
    [
        ("adopted as it is", 0, False, False, "adopted"),
        ("to be installed", 1, False, False, "pending"),
        ("begun as installed", 1, False, True, "adopted"),
        ("adopted, and begun as installed", 0, False, True, "adopted"),
        ("verified already", 0, True, False, "left alone"),
        ("verified already, with any beginning", 1, True, True, "left alone"),
    ],
)
def test_the_first_records_are_fresh_or_adopted(
    case: str, provision: int, known: bool, adopt_all: bool, expected: str
) -> None:
    decided = decision("web01", SEED[0], server("web01", "role: web", f"provision: {provision}"), *SEED[2:])
    adopted = Record(provision=provision, image="flatcar-1", pool="web", decision=decided.digest, evidence="Adopted")
    records = make_first_records([decided], {WEB01: Record()} if known else {}, adopt_all=adopt_all)
    by_word = {"adopted": [(WEB01, "web01", adopted)], "pending": [(WEB01, "web01", Record())], "left alone": []}
    assert records == by_word[expected], case


@pytest.mark.parametrize(
    ("provision", "adopt_all", "is_provisioned"), [(0, False, True), (1, True, True), (1, False, False)]
)
def test_a_parked_server_is_adopted_like_any_other(provision: int, adopt_all: bool, is_provisioned: bool) -> None:
    # Else it would count as seen for the first time when it is active again, and be installed once more.
    parked = (SEED[0], server("web01", "role: web", f"lifecycle: Parked, provision: {provision}"), *SEED[2:])
    ((_, _, record),) = make_first_records([decision("web01", *parked)], {}, adopt_all=adopt_all)
    assert (record.provision == provision) == is_provisioned


def test_a_server_that_boots_its_disk_is_adopted_without_an_image() -> None:
    seed = (*SEED[:4], profile("disk", "", method="Disk"), policy("disk", boots="disk"))
    ((_, _, record),) = make_first_records([decision("web01", *seed)], {}, adopt_all=False)
    assert (record.image, record.pool, record.evidence) == (None, "disk", "Adopted")


def test_an_adopted_server_is_provisioned_since_that_time() -> None:
    record = make_adopted_record(decision("web01", *SEED), at("20T12:00"))
    assert (record.evidence, record.provisioned_at) == ("Adopted", at("20T12:00"))


# An older copy

EARLY, LATE = at("20T10:00"), at("20T12:00")
CONSUMED_LATE = Record(consumed_at=LATE, consumed_key="provision/1")


GIVEN = InstallAttempt(key="provision/1", boots=(StepEvidence(EARLY, "boot/x", "10.0.0.7"),))
FAILED = structs.replace(GIVEN, failed=Failure(EARLY + timedelta(minutes=1), "10.0.0.7", ""))
TAKEN_BACK = Record(taken_back=9)
PERHAPS = UnknownServe("one", "provision/1", StepEvidence(LATE, "boot/x", "10.0.0.7"))
WITHHELD_BEFORE = UnknownServe("", "provision/1", StepEvidence(EARLY, "boot/x", "10.0.0.7"), is_withheld=True)


@for_each(
    ("case", "published", "known", "reasons", "is_ahead"),
    [
        ("the same", Record(provision=1, provisioned_at=EARLY), Record(provision=1, provisioned_at=EARLY), (), False),
        ("a server that the ledger does not know", Record(), None, (), True),
        ("it was provisioned since", Record(provision=1, provisioned_at=LATE), Record(), (), True),
        (
            "it was provisioned again since",
            Record(provision=2, provisioned_at=LATE),
            Record(provision=1, provisioned_at=EARLY),
            (),
            True,
        ),
        (
            "the ledger has come further",
            Record(provision=1, provisioned_at=EARLY),
            Record(provision=2, provisioned_at=LATE),
            (),
            False,
        ),
        ("its installation was withdrawn since", Record(provision=1, evidence="Adopted"), Record(), (), True),
        ("the ledger has the withdrawal", Record(), Record(provision=1, evidence="Adopted"), (), False),
        ("it was set pending since", Record(provisioned_at=LATE), Record(provision=1, provisioned_at=EARLY), (), True),
        (
            "a maintenance was booted since",
            Record(runs={"m": Run(1, LATE)}),
            Record(runs={"m": Run(0, EARLY)}),
            (),
            True,
        ),
        (
            "the ledger has a later run",
            Record(runs={"m": Run(0, EARLY)}),
            Record(runs={"m": Run(1, LATE)}),
            (),
            False,
        ),
        ("its boot was served since", Record(attempts=(GIVEN,)), Record(), (), True),
        ("it has failed since", Record(attempts=(FAILED,)), Record(attempts=(GIVEN,)), (), True),
        ("the ledger has the fetch of another client", Record(attempts=(GIVEN,)), TAKEN_BACK, (), False),
        (
            "the ledger has a request that it is pending",
            Record(attempts=(FAILED,)),
            Record(provisioned_at=LATE),
            (),
            False,
        ),
        ("its boot was perhaps served since", Record(unknown_serves=(PERHAPS,)), Record(), (), True),
        (
            "the ledger has the same of its boot",
            Record(unknown_serves=(PERHAPS,)),
            Record(unknown_serves=(PERHAPS,)),
            (),
            False,
        ),
        (
            "the ledger has that its boot was withheld",
            Record(unknown_serves=(PERHAPS,)),
            Record(unknown_serves=(PERHAPS._replace(intent="", is_withheld=True),)),
            (),
            False,
        ),
        (
            "its boot was perhaps served after another was withheld",
            Record(unknown_serves=(PERHAPS,)),
            Record(unknown_serves=(WITHHELD_BEFORE,)),
            (),
            True,
        ),
        (
            "the ledger has that its boot was served",
            Record(unknown_serves=(PERHAPS,)),
            Record(attempts=(GIVEN,)),
            (),
            False,
        ),
        ("it was set and consumed since", CONSUMED_LATE, Record(), (), True),
        ("it was set, and is resolved since", CONSUMED_LATE, Record(), ("provision/1",), False),
    ],
)
def test_an_output_tree_with_newer_records_shows_that_the_ledger_is_an_older_copy(
    case: str, published: Record, known: Record | None, reasons: tuple[str, ...], is_ahead: bool
) -> None:
    ledger = {WEB01: known} if known is not None else {}
    assert find_newer_records({WEB01: published}, ledger, lambda _: reasons) == ([WEB01] if is_ahead else []), case


def test_an_adopted_server_gets_no_user_data_and_has_no_transition() -> None:
    said = "userData: {format: CloudInit, template: a.j2}"
    documents = (
        fleet(),
        server("web01", "role: web", "provision: 1"),
        image("flatcar-1", "userData: CloudInit, configFrom: KernelArguments"),
        profile("web", "flatcar-1", said),
        policy("web", often="Once"),
    )
    wanted = decided(*documents, files={"a.j2": "#cloud-config\n{}\n"}).servers["web01"]
    record = make_adopted_record(wanted, at("20T12:00"))
    found = require_value(make_plan(wanted, at("20T12:30"), record))
    assert (found.cause, found.user_data, found.data, found.next_transition) == (Cause.PROVISIONED, None, None, None)
    reported = make_plan(wanted, at("20T12:30"), replace(record, evidence="Reported"))
    assert reported is not None and reported.user_data is not None
    assert reported.next_transition == at("20T14:00")
