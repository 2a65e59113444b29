"""Identity checks: a table of cases, pins, and values that vendors did not set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gitboot.bmc.identity import (
    AnotherMachine,
    DocumentIdentity,
    IdentityChanged,
    IdentityResult,
    PinnedIdentity,
    ReportedIdentity,
    SameMachine,
    SharedIdentityValues,
    UnprovenIdentity,
    accept_identity,
    are_different_systems,
    compare_identity,
    list_document_values,
    list_pinned_values,
    update_pinned_identity,
)
from gitboot.fleet.identities import Machine
from gitboot.fleet.overlay import apply_changes
from gitboot.model.scalars import SystemUuid, is_placeholder_serial, is_placeholder_uuid, swap_byte_order
from tests.helpers.cases import for_each
from tests.helpers.fleets import at, make_uuid

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLACE = ("https://10.0.0.1", "/redfish/v1/Systems/1")
OURS = SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3732")
OTHER = SystemUuid("4c4c4544-0058-3610-8044-c2c04f503933")
UNSET = SystemUuid("03000200-0400-0500-0006-000700080009")

BY_UUID = DocumentIdentity(uuid=OURS)
BY_BOTH = DocumentIdentity(uuid=OURS, serial="J4JMO72")
BY_UNSET = DocumentIdentity(uuid=UNSET, serial="J4JMO72")
REPORTS_UUID, REPORTS_SERIAL = (
    structs.replace(BY_BOTH, reports_uuid=OTHER),
    structs.replace(BY_BOTH, reports_serial="X6DCP93"),
)

SHOWS_BOTH = ReportedIdentity(uuid=OURS, serial="J4JMO72")
SHOWS_OTHER = ReportedIdentity(uuid=OTHER, serial="X6DCP93")
SHOWS_NOTHING = ReportedIdentity(serial="To be filled by O.E.M.", sku="Default string")


def _name_result(identified: IdentityResult) -> str:
    return type(identified).__name__


# description, document, reported identity, result
CASES: list[tuple[str, DocumentIdentity, ReportedIdentity, str]] = [
    ("the UUID agrees", BY_UUID, ReportedIdentity(uuid=OURS), "SameMachine"),
    ("in the other byte order", BY_UUID, ReportedIdentity(uuid=swap_byte_order(OURS)), "SameMachine"),
    ("the UUID agrees, the serial does not", BY_BOTH, structs.replace(SHOWS_BOTH, serial="X6DCP93"), "SameMachine"),
    (
        "the serial agrees, the UUID does not: a new board",
        BY_BOTH,
        structs.replace(SHOWS_BOTH, uuid=OTHER),
        "SameMachine",
    ),
    ("the serial in small letters", BY_BOTH, ReportedIdentity(uuid=OTHER, serial="j4jmo72"), "SameMachine"),
    (
        "the SKU is the serial: Dell",
        BY_BOTH,
        ReportedIdentity(uuid=OTHER, serial="CNIVC009710", sku="J4JMO72"),
        "SameMachine",
    ),
    ("neither agrees", BY_BOTH, SHOWS_OTHER, "AnotherMachine"),
    ("the UUID does not agree, no serial is known", BY_UUID, SHOWS_OTHER, "AnotherMachine"),
    ("the serial does not agree, no UUID is shown", BY_BOTH, ReportedIdentity(serial="X6DCP93"), "AnotherMachine"),
    (
        "the serial does not agree, the UUID is unset",
        BY_BOTH,
        ReportedIdentity(uuid=UNSET, serial="X6DCP93"),
        "AnotherMachine",
    ),
    ("a SKU of a product contradicts nothing", BY_BOTH, ReportedIdentity(sku="P56966-B21"), "UnprovenIdentity"),
    ("nothing is shown", BY_BOTH, ReportedIdentity(), "UnprovenIdentity"),
    ("placeholders are shown", BY_BOTH, structs.replace(SHOWS_NOTHING, uuid=UNSET), "UnprovenIdentity"),
    ("a serial is shown, and none is known", BY_UUID, ReportedIdentity(serial="X6DCP93"), "UnprovenIdentity"),
    (
        "both say the same, which nobody has set",
        DocumentIdentity(uuid=UNSET),
        ReportedIdentity(uuid=UNSET),
        "UnprovenIdentity",
    ),
    ("the same, and the serial agrees", BY_UNSET, structs.replace(SHOWS_BOTH, uuid=UNSET), "SameMachine"),
    ("the same, and the serial does not", BY_UNSET, ReportedIdentity(uuid=UNSET, serial="X6DCP93"), "AnotherMachine"),
    ("what it reports is named: the UUID", REPORTS_UUID, SHOWS_OTHER, "SameMachine"),
    ("what it reports is named: the serial", REPORTS_SERIAL, SHOWS_OTHER, "SameMachine"),
    (
        "it reports neither",
        REPORTS_UUID,
        ReportedIdentity(uuid=SystemUuid(OTHER.replace("58", "59"))),
        "AnotherMachine",
    ),
]


@for_each(("described", "shown", "whose"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_the_uuid_and_the_serial_number_decide_whether_it_is_the_described_machine(
    described: DocumentIdentity, shown: ReportedIdentity, whose: str
) -> None:
    assert _name_result(compare_identity(described, shown)) == whose


def test_both_identities_are_named_with_the_line_to_add() -> None:
    another = compare_identity(BY_BOTH, SHOWS_OTHER)
    assert another == AnotherMachine(
        message=f'the BMC reports UUID {OTHER}, serial "X6DCP93", but the Server document has UUID {OURS}, serial '
        f'"J4JMO72". If this BMC belongs to the server, you can add `reports: {{uuid: {OTHER}, serial: "X6DCP93"}}` '
        "to `bmc` in the Server document"
    )
    cannot_tell = compare_identity(BY_UUID, SHOWS_NOTHING)
    assert cannot_tell == UnprovenIdentity(
        message='the BMC reports serial "To be filled by O.E.M.", SKU "Default string", so gitboot cannot check '
        f"whether the machine has UUID {OURS}"
    )


# Placeholders


UNSET_UUIDS = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "01010101-0101-0101-0101-010101010101",
    "fefefefe-fefe-fefe-fefe-fefefefefefe",
    UNSET,
    swap_byte_order(UNSET),
    "6ab5b300-538d-1014-9fb5-b0684d007b53",
    "00010203-0405-0607-0809-0a0b0c0d0e0f",
    "12345678-1234-5678-90ab-cddeefaabbcc",
    "deadbeef-dead-beef-dead-beefdeadbeef",
]


@for_each("uuid", [*UNSET_UUIDS, OURS, OTHER, "00000000-0000-0000-0000-ac1f6b000001"])
def test_a_placeholder_uuid_is_recognized(uuid: str) -> None:
    assert is_placeholder_uuid(SystemUuid(uuid)) is (uuid in UNSET_UUIDS)


# "invalid serial" of GLPI and FusionInventory, and what boards show beside.
UNSET_SERIALS = """\
N/A
(null string)
INVALID
SYS-1234567890
SYS-9876543210
SN-12345
SN-1234567890
1111111111
1
0123456789
12345
123456789000
0000000000
NNNNNNN
xxxxxxxxxxx
EVAL
IATPASS
none
To Be Filled By O.E.M.
Tulip Computers
Serial Number xxxxxx
SN-123456fvgv3i0b8o5n6n7k
Unknow
System Serial Number
MB-1234567890
0
empty
Not Specified
OEM_Serial
SystemSerialNumb
Default string
Not Applicable
.......
""".splitlines()


SERIALS = ["J4JMO72", "CZ29200XYZ", "S348084X0B19876", "MXQ72407TY", "C2140026", "99A07WG"]


@for_each("serial", [*UNSET_SERIALS, *SERIALS])
def test_a_placeholder_serial_number_is_recognized(serial: str) -> None:
    assert is_placeholder_serial(serial) is (serial in UNSET_SERIALS)


def _make_pin(shown: ReportedIdentity, place: tuple[str, str | None] = PLACE) -> PinnedIdentity:
    return PinnedIdentity(uuid=shown.uuid, serial=shown.serial, at=NOW, place=place)


ELSEWHERE = ("https://10.0.0.2", None)
HERE, THERE = _make_pin(SHOWS_OTHER), _make_pin(SHOWS_OTHER, ELSEWHERE)


@for_each(
    ("case", "pins", "described", "found"),
    [
        ("one machine", [HERE], {}, set()),
        ("two", [HERE, THERE], {}, {OTHER, "X6DCP93"}),
        ("two at one place: a new board", [HERE, HERE], {}, set()),
        ("two, of which it is one's", [HERE, THERE], {OTHER: "x6dcp93"}, set()),
        ("in the other byte order", [HERE, THERE], {swap_byte_order(OTHER): None}, {"X6DCP93"}),
        (
            "since it has changed",
            [
                structs.replace(_make_pin(SHOWS_BOTH), changed=ReportedIdentity(uuid=OTHER)),
                _make_pin(ReportedIdentity(uuid=OTHER), ELSEWHERE),
            ],
            {},
            {OTHER},
        ),
    ],
)
def test_values_that_two_machines_report_identify_neither(
    case: str, pins: list[PinnedIdentity], described: dict[SystemUuid, str | None], found: set[str]
) -> None:
    machines = {
        uuid: Machine(uuid=uuid, name=uuid, macs=(), serial=serial, bmc=None) for uuid, serial in described.items()
    }
    kept = {SystemUuid(make_uuid(f"web{number}")): pinned for number, pinned in enumerate(pins)}
    values = SharedIdentityValues().update(kept, machines).values
    assert values == found, case
    assert isinstance(values, frozenset), case


def test_values_that_two_machines_report_prove_nothing() -> None:
    assert isinstance(compare_identity(BY_BOTH, SHOWS_OTHER, shared_values=frozenset({OTHER})), AnotherMachine)
    assert isinstance(
        compare_identity(BY_BOTH, SHOWS_OTHER, shared_values=frozenset({OTHER, "X6DCP93"})), UnprovenIdentity
    )


# Pins


@for_each(
    ("case", "before", "now", "whose"),
    [
        ("as before", SHOWS_OTHER, SHOWS_OTHER, "AnotherMachine"),
        ("as before, and ours", SHOWS_BOTH, SHOWS_BOTH, "SameMachine"),
        ("the byte order", SHOWS_BOTH, structs.replace(SHOWS_BOTH, uuid=swap_byte_order(OURS)), "SameMachine"),
        (
            "the serial, which is not the document's",
            SHOWS_BOTH,
            structs.replace(SHOWS_BOTH, serial="X6DCP93"),
            "IdentityChanged",
        ),
        (
            "the UUID, which is not the document's",
            SHOWS_BOTH,
            structs.replace(SHOWS_BOTH, uuid=OTHER),
            "IdentityChanged",
        ),
        ("to the values of the document", SHOWS_OTHER, SHOWS_BOTH, "SameMachine"),
        ("something is shown for the first time", ReportedIdentity(uuid=OURS), SHOWS_BOTH, "SameMachine"),
        ("something else is no longer shown", SHOWS_BOTH, ReportedIdentity(uuid=OURS), "SameMachine"),
        ("no identity is shown any more", SHOWS_BOTH, ReportedIdentity(), "IdentityChanged"),
        (
            "the only value is missing while the BMC starts",
            ReportedIdentity(uuid=OTHER),
            ReportedIdentity(),
            "UnprovenIdentity",
        ),
        (
            "only the serial, while the BMC starts",
            ReportedIdentity(serial="X6DCP93"),
            ReportedIdentity(),
            "UnprovenIdentity",
        ),
        ("another value instead", ReportedIdentity(uuid=OTHER), ReportedIdentity(serial="J4JMO72"), "IdentityChanged"),
        (
            "the serial of the document instead of its UUID",
            ReportedIdentity(uuid=OURS),
            ReportedIdentity(serial="j4jmo72"),
            "SameMachine",
        ),
        (
            "the UUID of the document instead of its serial",
            ReportedIdentity(serial="J4JMO72"),
            ReportedIdentity(uuid=OURS),
            "SameMachine",
        ),
        (
            "another serial instead of the document's UUID",
            ReportedIdentity(uuid=OURS),
            ReportedIdentity(serial="X6DCP93"),
            "IdentityChanged",
        ),
        ("a placeholder for another", SHOWS_NOTHING, ReportedIdentity(serial="Default string"), "IdentityChanged"),
    ],
)
def test_a_changed_identity_holds_the_server(
    case: str, before: ReportedIdentity, now: ReportedIdentity, whose: str
) -> None:
    assert _name_result(compare_identity(BY_BOTH, now, pinned=_make_pin(before))) == whose, case


def test_the_message_names_the_change_of_an_identity() -> None:
    changed = compare_identity(BY_UUID, SHOWS_OTHER, pinned=_make_pin(SHOWS_BOTH))
    assert changed == IdentityChanged(
        message=f'the BMC reports a different identity than before: UUID {OTHER} instead of {OURS}, serial "X6DCP93" '
        f'instead of "J4JMO72". If this BMC belongs to the server, you can add `reports: {{uuid: {OTHER}, serial: '
        '"X6DCP93"}` to `bmc` in the Server document'
    )


@for_each(
    ("reported", "fields"),
    [
        (structs.replace(SHOWS_OTHER, uuid=swap_byte_order(OURS)), 'serial: "X6DCP93"'),
        (structs.replace(SHOWS_OTHER, serial="j4jmo72"), f"uuid: {OTHER}"),
        (structs.replace(SHOWS_BOTH, serial="j4jmo72"), None),
    ],
)
def test_the_remedy_does_not_name_a_value_that_the_document_has(reported: ReportedIdentity, fields: str | None) -> None:
    pinned = _make_pin(ReportedIdentity(uuid=UNSET, serial="Z9"))
    result = compare_identity(structs.replace(BY_BOTH, reports_serial="Z9"), reported, pinned=pinned)
    message = "" if isinstance(result, SameMachine) else result.message
    assert (f"`reports: {{{fields}}}`" in message) if fields is not None else ("reports:" not in message)


def test_a_document_that_names_the_new_identity_accepts_it() -> None:
    named = structs.replace(BY_UUID, reports_uuid=OTHER, reports_serial="X6DCP93")
    assert compare_identity(named, SHOWS_OTHER, pinned=_make_pin(SHOWS_BOTH)) == SameMachine()


def test_an_operator_accepts_the_current_identity_and_no_later_one() -> None:
    first = _make_pin(SHOWS_BOTH)
    held = compare_identity(BY_UUID, SHOWS_OTHER, pinned=first)
    kept = update_pinned_identity(SHOWS_OTHER, held, pinned=first, place=PLACE, at=NOW)
    assert (kept.uuid, kept.changed) == (OURS, SHOWS_OTHER)
    accepted = accept_identity(kept, at=NOW + timedelta(hours=1))
    assert compare_identity(BY_UUID, SHOWS_OTHER, pinned=accepted) == SameMachine(accepted=True)
    assert isinstance(
        compare_identity(BY_UUID, structs.replace(SHOWS_OTHER, serial="Z9"), pinned=accepted), IdentityChanged
    )


@for_each(
    ("case", "reported", "result"),
    [
        ("still nothing", ReportedIdentity(), "SameMachine"),
        ("the document's UUID", SHOWS_BOTH, "SameMachine"),
        ("the document's UUID and another serial", structs.replace(SHOWS_OTHER, uuid=OURS), "SameMachine"),
        ("placeholders", structs.replace(SHOWS_NOTHING, uuid=UNSET), "SameMachine"),
        ("another machine", SHOWS_OTHER, "IdentityChanged"),
    ],
)
def test_an_operator_who_accepts_a_missing_identity_accepts_no_other_machine(
    case: str, reported: ReportedIdentity, result: str
) -> None:
    pinned = accept_identity(_make_pin(ReportedIdentity()), at=NOW)
    for _ in range(2):  # the stored identity stays the accepted one
        identified = compare_identity(BY_UUID, reported, pinned=pinned)
        assert _name_result(identified) == result, case
        pinned = update_pinned_identity(reported, identified, pinned=pinned, place=PLACE, at=NOW)
    pinned = accept_identity(pinned, at=NOW)
    assert compare_identity(BY_UUID, reported, pinned=pinned) == SameMachine(accepted=True)


@for_each(
    ("first", "other"),
    [
        (ReportedIdentity(uuid=OURS), ReportedIdentity(uuid=OTHER)),
        (ReportedIdentity(serial="J4JMO72"), ReportedIdentity(serial="X6DCP93")),
        (SHOWS_BOTH, SHOWS_OTHER),
        (ReportedIdentity(), SHOWS_OTHER),
    ],
)
def test_a_bmc_of_another_machine_that_reports_nothing_while_it_starts_stays_another(
    first: ReportedIdentity, other: ReportedIdentity
) -> None:
    pinned = accept_identity(_make_pin(first), at=NOW)
    for reported in (other, ReportedIdentity(), ReportedIdentity(), other):
        identified = compare_identity(BY_BOTH, reported, pinned=pinned)
        assert isinstance(identified, IdentityChanged)
        pinned = update_pinned_identity(reported, identified, pinned=pinned, place=PLACE, at=NOW)
        assert pinned.latest_identity == reported
    identified = compare_identity(BY_BOTH, SHOWS_BOTH, pinned=pinned)
    assert update_pinned_identity(SHOWS_BOTH, identified, pinned=pinned, place=PLACE, at=NOW).changed is None


def test_an_operator_accepts_a_machine_that_was_another_one_from_the_first_read() -> None:
    another = compare_identity(BY_UUID, SHOWS_OTHER)
    kept = update_pinned_identity(SHOWS_OTHER, another, pinned=None, place=PLACE, at=NOW)
    assert isinstance(compare_identity(BY_UUID, SHOWS_OTHER, pinned=kept), AnotherMachine)
    assert compare_identity(BY_UUID, SHOWS_OTHER, pinned=accept_identity(kept, at=NOW)) == SameMachine(accepted=True)


def test_a_pin_changes_only_if_the_reading_has_something_new() -> None:
    later = NOW + timedelta(hours=1)
    first = update_pinned_identity(ReportedIdentity(uuid=OURS), SameMachine(), pinned=None, place=PLACE, at=NOW)
    assert first == PinnedIdentity(uuid=OURS, serial=None, at=NOW, place=PLACE)
    assert update_pinned_identity(ReportedIdentity(), SameMachine(), pinned=first, place=PLACE, at=later) is first
    assert update_pinned_identity(SHOWS_BOTH, SameMachine(), pinned=first, place=PLACE, at=later) == structs.replace(
        first, serial="J4JMO72"
    )
    held = structs.replace(first, changed=SHOWS_OTHER)
    assert (
        update_pinned_identity(ReportedIdentity(uuid=OURS), SameMachine(), pinned=held, place=PLACE, at=later) == first
    )
    moved = update_pinned_identity(SHOWS_OTHER, SameMachine(), pinned=first, place=ELSEWHERE, at=later)
    assert moved == PinnedIdentity(uuid=OTHER, serial="X6DCP93", at=later, place=ELSEWHERE)


@for_each(
    ("before", "now", "another"),
    [
        (SHOWS_BOTH, SHOWS_OTHER, True),
        (SHOWS_BOTH, structs.replace(SHOWS_OTHER, uuid=swap_byte_order(OURS)), False),
        (SHOWS_BOTH, structs.replace(SHOWS_BOTH, uuid=OTHER), False),
        (SHOWS_BOTH, ReportedIdentity(), False),
        (ReportedIdentity(), SHOWS_BOTH, False),
        (ReportedIdentity(serial="J4JMO72"), ReportedIdentity(serial="X6DCP93", sku="J4JMO72"), True),
        (SHOWS_NOTHING, SHOWS_BOTH, False),
    ],
)
def test_two_readings_are_of_different_systems_only_if_no_value_matches(
    before: ReportedIdentity, now: ReportedIdentity, another: bool
) -> None:
    assert are_different_systems(before, now) is another


UUIDS = tuple(SystemUuid(make_uuid(f"web{number}")) for number in range(6))
_serials = st.sampled_from([None, "abc", "ABC", "Default string"])
_shown = st.builds(ReportedIdentity, uuid=st.sampled_from([None, *UUIDS]), serial=_serials)
_pins = st.builds(
    PinnedIdentity,
    uuid=st.sampled_from([None, *UUIDS]),
    serial=_serials,
    at=st.just(at("20T12:00")),
    place=st.sampled_from([("a", None), ("b", None), ("b", "/1")]),
    changed=st.none() | _shown,
)
_steps = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(UUIDS), _pins), st.sets(st.sampled_from(UUIDS))), max_size=6
)


def machine(uuid: SystemUuid, serial: str | None = None) -> Machine:
    return Machine(uuid=uuid, name=uuid, macs=(), serial=serial, bmc=None)


def compute_shared_values(pins: Iterable[PinnedIdentity], described: Mapping[SystemUuid, str | None]) -> frozenset[str]:
    """Values that BMCs at two places report, and that no document has."""
    shown = [(value, each.place) for each in pins for value in list_pinned_values(each)]
    places = {value: {place for each, place in shown if each == value} for value, _ in shown}
    return frozenset(value for value, its in places.items() if len(its) > 1) - list_document_values(described)


@given(_steps, st.dictionaries(st.sampled_from(UUIDS), _serials))
def test_shared_values_after_any_readings_equal_the_values_computed_from_scratch(
    steps: list[tuple[dict[SystemUuid, PinnedIdentity], set[SystemUuid]]], serials: dict[SystemUuid, str | None]
) -> None:
    sharing = SharedIdentityValues()
    pins: Mapping[SystemUuid, PinnedIdentity] = {}
    documents: list[dict[SystemUuid, Machine]] = [{}, {uuid: machine(uuid, serial) for uuid, serial in serials.items()}]
    for number, (come, gone) in enumerate(steps):
        pins, machines = apply_changes(pins, come, gone), documents[number % 2]
        sharing = sharing.update(pins, machines)
        assert sharing.values == compute_shared_values(
            pins.values(), {uuid: each.serial for uuid, each in machines.items()}
        )


class UniterablePins(dict[SystemUuid, PinnedIdentity]):
    def __iter__(self) -> Iterator[SystemUuid]:
        raise AssertionError("all of it was looked at")


def test_one_reading_does_not_look_at_other_pins() -> None:
    def pinned(number: int, serial: str) -> PinnedIdentity:
        return PinnedIdentity(uuid=None, serial=serial, at=at("20T12:00"), place=(f"bmc{number}", None))

    base = UniterablePins({uuid: pinned(number, f"s{number}") for number, uuid in enumerate(UUIDS)})
    first = SharedIdentityValues().update(dict(dict.items(base)), {})
    again = SharedIdentityValues(pins=base, _places_by_value=first._places_by_value)
    found = again.update(apply_changes(base, {UUIDS[0]: pinned(0, "S1")}), {})
    assert found.values == {"S1"}
    assert found.update(apply_changes(found.pins, {UUIDS[0]: pinned(0, "mine")}), {}).values == frozenset()
