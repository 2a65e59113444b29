"""A server whose UUID is not known yet: what it may do, and what is refused by name until it is."""

from __future__ import annotations

import pytest

from gitboot.errors import InvalidRepository
from gitboot.fleet.identities import machines, taken_over
from gitboot.model.scalars import MacAddress, is_stand_in, stand_in
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.server_plan import Phase
from tests.helpers.fleets import at, fleet, image, mac_of, planned, policy, profile, repository, server, uuid_of

SEED = (
    fleet(),
    image("flatcar-1"),
    image("discovery-1", "writesDisk: false"),
    profile("web", "flatcar-1"),
    profile("look", "discovery-1"),
)
LOOKS = (*SEED, policy("look", "All", boots="look"))


def nameless(spec: str = "", name: str = "web01") -> str:
    return server(name, spec=spec).replace(f"uuid: {uuid_of(name)}, ", "").replace(f'uuid: "{uuid_of(name)}", ', "")


def codes(*documents: str) -> list[str]:
    try:
        decide(repository(*documents))
    except InvalidRepository as error:
        return [problem.code for problem in error.problems]
    return []


def test_the_document_has_no_uuid() -> None:
    assert "uuid" not in nameless()


def test_it_boots_what_writes_no_disk_and_is_told_apart_by_its_mac() -> None:
    plan = planned(at("20T22:00"), *LOOKS, nameless())
    assert plan is not None and plan.phase is Phase.NETWORK
    assert plan.uuid == stand_in(MacAddress(mac_of("web01").replace(":", "-"))) and is_stand_in(plan.uuid)
    assert codes(*LOOKS, nameless(), nameless(name="web02")) == []


@pytest.mark.parametrize(
    "spec",
    [
        "provision: 1",
        f"replaces: {uuid_of('old')}",
        "bmc: {address: 'https://10.0.0.1', credentials: bmc}",
    ],
)
def test_what_needs_a_uuid_is_refused_by_name(spec: str) -> None:
    with pytest.raises(InvalidRepository, match="GB2021") as raised:
        repository(*LOOKS, nameless(spec))
    assert spec.partition(":")[0] in raised.value.problems[0].message


@pytest.mark.parametrize("often", ["Once", "OnImageChange", "Always"])
def test_a_boot_that_writes_disks_is_refused(often: str) -> None:
    assert "GB2021" in codes(*SEED, policy("web", "All", boots="web", often=often), nameless())


def test_a_server_that_boots_nothing_needs_none() -> None:
    assert codes(*SEED, policy("web", "All", boots="web", often="Never"), nameless()) == []
    assert codes(*SEED, policy("web", "All", boots="web", often="Once"), nameless("lifecycle: Parked")) == []


def test_a_template_that_wants_the_uuid_says_so() -> None:
    wants = (*LOOKS[:-1], policy("look", "All", "kernelArguments: ['id={{ server.uuid }}']", boots="look"))
    assert codes(*wants, nameless()) == ["GB2102"]
    assert codes(*wants, server("web01")) == []


def test_two_servers_without_a_uuid_share_neither_mac_nor_serial() -> None:
    same_mac = nameless(name="web02").replace(mac_of("web02"), mac_of("web01"))
    for other in (same_mac, nameless("serial: 4J8VM72", "web02")):
        with pytest.raises(InvalidRepository, match="GB2003"):
            repository(*LOOKS, nameless("serial: 4J8VM72"), other)


def test_once_its_uuid_is_known_nothing_was_installed_before() -> None:
    before = machines(repository(*LOOKS, nameless()))
    after = machines(repository(*LOOKS, server("web01")))
    assert taken_over(after.values(), before.values()) == {}
    replaced = machines(repository(*LOOKS, server("web01").replace(uuid_of("web01"), uuid_of("other"))))
    assert taken_over(replaced.values(), after.values()).keys() == {uuid_of("other")}
