"""Records as JSON, there and back, and the first records of servers that a ledger has not seen."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.errors import UsageError
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.install_attempts import adopted, first_records
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.provisioning_record import (
    Failure,
    InstallAttempt,
    Record,
    Run,
    Seen,
    UnknownServe,
    ahead,
    exported,
    imported,
)
from gitboot.resolve.server_plan import Cause
from tests.helpers.cases import examples, for_each, present
from tests.helpers.fleets import SEED, at, decided, decision, fleet, image, policy, profile, server, uuid_of
from tests.ledger.test_store import RECORDS

WEB01, WEB02 = SystemUuid(uuid_of("web01")), SystemUuid(uuid_of("web02"))


@settings(max_examples=examples(60))
@given(st.dictionaries(st.sampled_from([WEB01, WEB02]), RECORDS))
def test_what_is_exported_is_imported_as_it_was(records: dict[SystemUuid, Record]) -> None:
    assert imported(exported(records), "records.json") == records


def test_evidence_has_fractions_of_a_second_and_they_are_kept() -> None:
    records = {WEB01: Record(provision=1, provisioned_at=at("20T12:00").replace(microsecond=123456))}
    assert b'"provisionedAt":"2026-11-20T12:00:00.123456Z"' in exported(records)
    assert imported(exported(records), "records.json") == records


def test_exports_are_sorted_and_versioned() -> None:
    data = exported({WEB01: Record(), WEB02: Record()})
    assert data == exported({WEB02: Record(), WEB01: Record()})
    document = json.loads(data)
    assert document["apiVersion"] == "gitboot.dev/v1alpha1"
    assert [item["uuid"] for item in document["items"]] == sorted([WEB01, WEB02])


def item(**changed: Any) -> bytes:
    """Exported records of one server, with something changed; None for a key that is missing is "absent"."""
    found = json.loads(exported({WEB01: Record(provision=1, provisioned_at=at("20T12:00"))}))
    found["items"][0] |= changed
    found["items"][0] = {key: value for key, value in found["items"][0].items() if value != "absent"}
    return json.dumps(found).encode()


def test_the_export_that_is_spoilt_below_is_good_as_it_is() -> None:
    assert imported(item(), "records.json") == {WEB01: Record(provision=1, provisioned_at=at("20T12:00"))}


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
        ("a key that is none", item(consumedKey=7)),
        ("an image that is none", item(image=["flatcar-1"])),
        ("a pool of a number", item(pool=1)),
        ("a malformed digest", item(decisionDigest="a")),
        ("an instant that is none", item(provisionedAt="yesterday")),
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
def test_garbage_is_refused_by_the_name_of_its_file(case: str, data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^backup/records\.json: not exported records \(.+\); take ops/records"):
        imported(data, "backup/records.json")


SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "run", "at", "2026-11-20T12:00:00Z"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.just("repair"), SCALARS)
KEYS = st.sampled_from(sorted(json.loads(item())["items"][0]))


@settings(max_examples=examples(100))
@given(st.dictionaries(KEYS, VALUES, max_size=2))
def test_no_json_at_all_ends_in_anything_but_records_or_their_refusal(changed: dict[str, Any]) -> None:
    with suppress(UsageError):
        assert len(imported(item(**changed), "records.json")) == 1


# First records


@for_each(
    ("case", "provision", "known", "adopt_all", "expected"),
    [
        ("taken over as it stands", 0, False, False, "adopted"),
        ("to be installed", 1, False, False, "pending"),
        ("told that it is installed", 1, False, True, "adopted"),
        ("taken over, and told so", 0, False, True, "adopted"),
        ("known already", 0, True, False, "left alone"),
        ("known already, whatever is told", 1, True, True, "left alone"),
    ],
)
def test_first_records(case: str, provision: int, known: bool, adopt_all: bool, expected: str) -> None:
    decided = decision("web01", SEED[0], server("web01", "role: web", f"provision: {provision}"), *SEED[2:])
    adopted = Record(provision=provision, image="flatcar-1", pool="web", decision=decided.digest, evidence="Adopted")
    records = first_records([decided], {WEB01: Record()} if known else {}, adopt_all=adopt_all)
    by_word = {"adopted": [(WEB01, "web01", adopted)], "pending": [(WEB01, "web01", Record())], "left alone": []}
    assert records == by_word[expected], case


@pytest.mark.parametrize(
    ("provision", "adopt_all", "is_provisioned"), [(0, False, True), (1, True, True), (1, False, False)]
)
def test_a_parked_server_is_known_as_any_other(provision: int, adopt_all: bool, is_provisioned: bool) -> None:
    # Else it would count as seen for the first time when it is active again, and be installed once more.
    parked = (SEED[0], server("web01", "role: web", f"lifecycle: Parked, provision: {provision}"), *SEED[2:])
    ((_, _, record),) = first_records([decision("web01", *parked)], {}, adopt_all=adopt_all)
    assert (record.provision == provision) == is_provisioned


def test_a_server_that_boots_its_disk_is_adopted_without_an_image() -> None:
    seed = (*SEED[:4], profile("disk", "", method="Disk"), policy("disk", boots="disk"))
    ((_, _, record),) = first_records([decision("web01", *seed)], {}, adopt_all=False)
    assert (record.image, record.pool, record.evidence) == (None, "disk", "Adopted")


def test_what_is_adopted_at_an_instant_is_provisioned_since_then() -> None:
    record = adopted(decision("web01", *SEED), at("20T12:00"))
    assert (record.evidence, record.provisioned_at) == ("Adopted", at("20T12:00"))


# An older copy

EARLY, LATE = at("20T10:00"), at("20T12:00")
CONSUMED = Record(consumed_at=LATE, consumed_key="provision/1")


GIVEN = InstallAttempt(key="provision/1", boots=(Seen(EARLY, "boot/x", "10.0.0.7"),))
FAILED = replace(GIVEN, failed=Failure(EARLY + timedelta(minutes=1), "10.0.0.7", ""))
TAKEN_BACK = Record(taken_back=9)
PERHAPS = UnknownServe("one", "provision/1", Seen(LATE, "boot/x", "10.0.0.7"))
WITHHELD_BEFORE = UnknownServe("", "provision/1", Seen(EARLY, "boot/x", "10.0.0.7"), is_withheld=True)


@for_each(
    ("case", "published", "known", "reasons", "is_ahead"),
    [
        ("the same", Record(provision=1, provisioned_at=EARLY), Record(provision=1, provisioned_at=EARLY), (), False),
        ("a server that the ledger does not know", Record(), None, (), True),
        ("it was provisioned since", Record(provision=1, provisioned_at=LATE), Record(), (), True),
        (
            "it was provisioned anew since",
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
        ("it was set pending since", Record(provisioned_at=LATE), Record(provision=1, provisioned_at=EARLY), (), True),
        (
            "a maintenance was booted since",
            Record(runs={"m": Run(1, LATE)}),
            Record(runs={"m": Run(0, EARLY)}),
            (),
            True,
        ),
        (
            "the ledger knows of a later run",
            Record(runs={"m": Run(0, EARLY)}),
            Record(runs={"m": Run(1, LATE)}),
            (),
            False,
        ),
        ("its boot was given since", Record(attempts=(GIVEN,)), Record(), (), True),
        ("it has failed since", Record(attempts=(FAILED,)), Record(attempts=(GIVEN,)), (), True),
        ("the ledger knows that another client had fetched it", Record(attempts=(GIVEN,)), TAKEN_BACK, (), False),
        ("the ledger was told that it is pending", Record(attempts=(FAILED,)), Record(provisioned_at=LATE), (), False),
        ("its boot was perhaps served since", Record(unknown_serves=(PERHAPS,)), Record(), (), True),
        (
            "the ledger knows as much of its boot",
            Record(unknown_serves=(PERHAPS,)),
            Record(unknown_serves=(PERHAPS,)),
            (),
            False,
        ),
        (
            "the ledger knows that its boot was withheld",
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
            "the ledger knows that its boot was served",
            Record(unknown_serves=(PERHAPS,)),
            Record(attempts=(GIVEN,)),
            (),
            False,
        ),
        ("it was set and consumed since", CONSUMED, Record(), (), True),
        ("it was set, and is resolved since", CONSUMED, Record(), ("provision/1",), False),
    ],
)
def test_a_tree_that_knows_more_than_a_ledger_tells_that_it_is_an_older_copy(
    case: str, published: Record, known: Record | None, reasons: tuple[str, ...], is_ahead: bool
) -> None:
    ledger = {WEB01: known} if known is not None else {}
    assert ahead({WEB01: published}, ledger, lambda _: reasons) == ([WEB01] if is_ahead else []), case


def test_what_is_adopted_is_answered_no_user_data_and_turns_by_no_clock() -> None:
    said = "userData: {format: CloudInit, template: a.j2}"
    documents = (
        fleet(),
        server("web01", "role: web", "provision: 1"),
        image("flatcar-1", "userData: CloudInit, configFrom: KernelArguments"),
        profile("web", "flatcar-1", said),
        policy("web", often="Once"),
    )
    wanted = decided(*documents, files={"a.j2": "#cloud-config\n{}\n"}).servers["web01"]
    record = adopted(wanted, at("20T12:00"))
    found = present(plan(wanted, at("20T12:30"), record))
    assert (found.cause, found.user_data, found.data, found.next_transition) == (Cause.PROVISIONED, None, None, None)
    reported = plan(wanted, at("20T12:30"), replace(record, evidence="Reported"))
    assert reported is not None and reported.user_data is not None
    assert reported.next_transition == at("20T14:00")
