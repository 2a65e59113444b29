"""What the BMCs of several machines show, kept as they are read: the same as found anew, and nothing is walked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from gitboot.bmc.identity import Pinned, Sharing, Shown, claimed_by, values_of
from gitboot.fleet.identities import Machine
from gitboot.fleet.layered_dict import replaced
from gitboot.model.scalars import SystemUuid
from tests.helpers.fleets import at, uuid_of

UUIDS = tuple(SystemUuid(uuid_of(f"web{number}")) for number in range(6))
_serials = st.sampled_from([None, "abc", "ABC", "Default string"])
_shown = st.builds(Shown, uuid=st.sampled_from([None, *UUIDS]), serial=_serials)
_pins = st.builds(
    Pinned,
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


def found_anew(pins: Iterable[Pinned], described: Mapping[SystemUuid, str | None]) -> frozenset[str]:
    """What is shown at two places, and claimed by no document."""
    shown = [(value, each.place) for each in pins for value in values_of(each)]
    places = {value: {place for each, place in shown if each == value} for value, _ in shown}
    return frozenset(value for value, its in places.items() if len(its) > 1) - claimed_by(described)


@given(_steps, st.dictionaries(st.sampled_from(UUIDS), _serials))
def test_after_any_readings_it_is_what_is_found_anew(
    steps: list[tuple[dict[SystemUuid, Pinned], set[SystemUuid]]], serials: dict[SystemUuid, str | None]
) -> None:
    sharing = Sharing()
    pins: Mapping[SystemUuid, Pinned] = {}
    documents: list[dict[SystemUuid, Machine]] = [{}, {uuid: machine(uuid, serial) for uuid, serial in serials.items()}]
    for number, (come, gone) in enumerate(steps):
        pins, machines = replaced(pins, come, gone), documents[number % 2]
        sharing = sharing.after(pins, machines)
        assert sharing.values == found_anew(pins.values(), {uuid: each.serial for uuid, each in machines.items()})


class Unwalked(dict[SystemUuid, Pinned]):
    """What nobody may look through."""

    def __iter__(self) -> Iterator[SystemUuid]:
        raise AssertionError("all of it was looked at")


def test_one_reading_looks_at_no_other() -> None:
    def pinned(number: int, serial: str) -> Pinned:
        return Pinned(uuid=None, serial=serial, at=at("20T12:00"), place=(f"bmc{number}", None))

    base = Unwalked({uuid: pinned(number, f"s{number}") for number, uuid in enumerate(UUIDS)})
    first = Sharing().after(dict(dict.items(base)), {})
    again = Sharing(pins=base, _places=first._places)
    found = again.after(replaced(base, {UUIDS[0]: pinned(0, "S1")}), {})
    assert found.values == {"S1"}
    assert found.after(replaced(found.pins, {UUIDS[0]: pinned(0, "mine")}), {}).values == frozenset()
