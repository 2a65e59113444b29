"""What one server is answered, now and through its next transitions."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from gitboot.errors import BmcBusy, InvalidRepository
from gitboot.model.scalars import MacAddress, SystemUuid, swapped
from gitboot.problems import Problem
from gitboot.render.boot_files import shared_files
from gitboot.render.endpoint_files import Need, Turn, parse, render, turn_of
from gitboot.render.paths import is_immutable
from gitboot.render.server_files import AHEAD, About, RenderedState, server_state
from gitboot.resolve.provisioning_record import Record
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from tests.helpers.cases import for_each, present
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    decided,
    fleet,
    image,
    mac_of,
    maintenance,
    policy,
    profile,
    server,
    uuid_of,
)

NOON = at("20T12:00")
SEVERAL = [maintenance(f"m{day}", f"{day}T22:00 {day}T23:00") for day in (21, 22, 23, 24)]


def state(
    *documents: str, record: Record | None = None, about: About | None = None, files: dict[str, str] | None = None
) -> RenderedState:
    decisions = decided(*documents, files=files)
    return server_state(decisions, decisions.servers["web01"], record, NOON, about or About())


def at_entry(found: RenderedState, instant: datetime) -> Turn:
    return present(turn_of(found.published.paths[ENTRY], instant)[0])


ENTRY = next(path for path in state(*SEED).files if path.endswith("boot.ipxe"))


def test_as_many_transitions_are_known_as_are_looked_ahead() -> None:
    found = state(*SEED, *SEVERAL)
    assert [instant for instant, _ in found.later] == [at(f"{day}T{hour}:00") for day in (21, 22) for hour in (22, 23)]
    assert len(found.later) == AHEAD
    now = at_entry(found, NOON)
    assert now.content == found.files[ENTRY].sha256
    for day in (21, 22):
        inside, after = at_entry(found, at(f"{day}T22:30")), at_entry(found, at(f"{day}T23:00"))
        assert "memtest-7" in found.published.contents[str(inside.content)]
        assert after == now._replace(since=at(f"{day}T23:00"))


def test_all_that_is_announced_is_there_before_its_instant() -> None:
    user_data = "userData: {format: Ignition/3.4, template: t}"
    images = (image("flatcar-1", "userData: Ignition/3.4"), image("memtest-7", "userData: Ignition/3.4"))
    profiles = (profile("web", "flatcar-1", user_data), profile("repair", "memtest-7", user_data))
    files = {"t": '{"ignition": {"version": "3.4.0"}, "x": "{{ image.name }}"}'}
    found = state(*SEED[:2], *images, *profiles, SEED[-1], *SEVERAL, files=files)
    content = [path for path in found.files if is_immutable(path)]
    assert len(content) == 2
    held = {*found.published.contents, *(found.files[path].sha256 for path in content)}
    versions = [version for each in found.published.paths.values() for version in each]
    assert {version.content for version in versions} <= {None, *held}
    assert all(path in found.published.files for path in content)


def test_without_a_transition_nothing_is_announced() -> None:
    found = state(*SEED)
    assert (found.later, found.transition) == ((), None)
    assert all(len(versions) == 1 for versions in found.published.paths.values())


def test_a_state_is_read_as_it_was_written() -> None:
    once = (*SEED[:-1], policy("web", often="Once"))
    for documents in ((*SEED, *SEVERAL), once, (SEED[0], server("web01", spec="lifecycle: Parked"), *SEED[2:])):
        found = state(*documents, record=Record())
        data = found.files["ops/servers/web01.json"].content
        assert (parse(data), render(parse(data))) == (found.published, data)


@for_each("data", [b"", b"{}", b"[]", b"null", b'{"format":1}', b'{"format":2}', b'{"format":2,"server":1}'])
def test_what_is_no_state_is_not_taken_for_one(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|state"):
        parse(data)


def test_what_a_server_is_found_by_is_said() -> None:
    documents = (*SEED[:1], server("web01", "role: web", "provision: 1, serial: 4J8VM72"), *SEED[2:])
    about = About(site="fra1", labels={"role": "web"}, addresses=("10.0.0.7",))
    found = state(*documents, about=about).published
    uuid = SystemUuid(uuid_of("web01"))
    assert set(found.identities) == {
        f"mac/{mac_of('web01').replace(':', '-')}",
        *(f"uuid/{each}" for each in (uuid, swapped(uuid))),
        "serial/4J8VM72",
        "address/10.0.0.7",
    }
    assert (found.summary["site"], found.summary["role"], found.summary["labels"]) == ("fra1", "web", {"role": "web"})


def test_an_interface_that_may_not_boot_is_the_servers_and_says_nothing_of_its_boots() -> None:
    decisions = decided(fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux]"), *ONCE[1:])
    about, record = About(idle=(MacAddress("52-54-00-99-99-99"),)), Record()
    found = server_state(decisions, decisions.servers["web01"], record, NOON, about)
    assert "mac/52-54-00-99-99-99" in found.published.identities
    for path in ("boot/grub.cfg-01-52-54-00-99-99-99", "boot/pxelinux.cfg/01-52-54-00-99-99-99"):
        (turn,) = found.published.paths[path]
        assert turn.content == found.files[path].sha256 == found.published.files[path].sha256
        assert "may not boot from this interface" in found.published.contents[turn.content]
        assert (turn.since, turn.digest, turn.writes) == (None, None, None)
        assert path not in found.entries
    assert found.published.paths[ENTRY][0].writes is not None  # what its other interface is given
    assert "boot/v1/boot/52-54-00-99-99-99/grub.cfg" not in found.files
    assert found.holds(decisions.servers["web01"], record, NOON, about)
    assert not found.holds(decisions.servers["web01"], record, NOON, About())


ONCE = (*SEED[:-1], policy("web", "{matchLabels: {role: web}}", often="Once"))
DISKLESS = (*SEED[:-1], policy("web", "{matchLabels: {role: web}}", boots="repair"))


@for_each(
    ("documents", "once", "instead"),
    [
        pytest.param(SEED, False, "disk", id="an installation at each boot"),
        pytest.param(DISKLESS, False, None, id="Always, of what writes no disk"),
        pytest.param(ONCE, True, "disk", id="Once"),
        pytest.param(
            (*SEED[:-1], policy("web", "{matchLabels: {role: web}}", boots="repair", often="Once")),
            False,
            None,
            id="Once, of what writes no disk",
        ),
        pytest.param(
            (*SEED, maintenance("m", "20T10:00 20T14:00", "networkBoot: Once", boots="web")),
            True,
            "disk",
            id="a maintenance's Once over an Always that writes the disk",
        ),
        pytest.param(
            (*DISKLESS, maintenance("m", "20T10:00 20T14:00", "networkBoot: Once", boots="web")),
            True,
            "memtest-7",
            id="a maintenance's Once over an Always that writes none",
        ),
        pytest.param(
            (*ONCE, maintenance("m", "20T10:00 20T14:00", "networkBoot: Once")),
            False,
            None,
            id="a maintenance's Once that writes no disk",
        ),
    ],
)
def test_what_writes_a_disk_has_something_to_answer_instead(
    documents: tuple[str, ...], once: bool, instead: str | None
) -> None:
    found = state(*documents, record=Record())
    writes = at_entry(found, NOON).writes
    if instead is None:
        assert writes is None
    else:
        assert writes is not None and writes.once == once
        assert writes.needs == (Need("assets/flatcar-1/initrd", None), Need("assets/flatcar-1/kernel", None))
        text = found.published.contents[str(writes.fallback)]
        assert "in place of a boot that writes a disk" in text
        assert (f"{instead}/kernel" if instead != "disk" else "boots its local disk") in text
        assert "flatcar-1/kernel" not in text


def test_what_is_mirrored_has_to_be_there_before_it_is_given() -> None:
    mirrors = fleet("baseURL: 'http://boot.test', outputs: [ipxe, mirror]")
    mirrored = image("flatcar-1").replace("assets:flatcar-1/kernel", "http://vendor.test/vmlinuz")
    found = state(mirrors, *(mirrored if each == image("flatcar-1") else each for each in SEED[1:]), record=Record())
    needs = present(at_entry(found, NOON).writes).needs
    assert needs == (Need("assets/flatcar-1/initrd", None), Need(f"o/{SHA}/kernel", None))


def test_a_parked_server_has_no_entry_that_proves_anything() -> None:
    found = state(SEED[0], server("web01", spec="lifecycle: Parked"), *SEED[2:])
    assert (found.plan, found.entries) == (None, {})


def test_a_state_holds_until_its_transition_and_for_its_record() -> None:
    decisions = decided(*SEED, *SEVERAL)
    decision = decisions.servers["web01"]
    found = server_state(decisions, decision, None, NOON)
    assert found.holds(decision, None, at("21T21:59"))
    assert not found.holds(decision, None, at("21T22:00"))
    assert not found.holds(decision, Record(), NOON)
    assert not found.holds(decided(*SEED).servers["web01"], None, NOON)


def test_each_output_has_its_shared_files() -> None:
    for output, expected in (
        ("ipxe", ["boot/boot.ipxe", "boot/ipxe/boot.ipxe", "boot/unknown.ipxe"]),
        ("grub", ["boot/grub.cfg", "boot/unknown.grub.cfg"]),
    ):
        found = decided(fleet(f"baseURL: 'http://boot.test', outputs: [{output}]"), *SEED[1:])
        assert sorted(shared_files(found)) == [*expected, "ops/serve/Caddyfile", "ops/serve/nginx.conf"]
        entries = server_state(found, found.servers["web01"], None, NOON).files
        assert any(path.endswith("grub.cfg") for path in entries) == (output == "grub")


def test_unknown_machines_may_have_user_data() -> None:
    documents = (
        fleet("baseURL: 'http://boot.test', unknownServers: {profile: discover}"),
        *SEED[1:],
        image("discovery-1", "writesDisk: false, userData: CloudInit"),
        profile("discover", "discovery-1", "userData: {format: CloudInit, template: t}"),
    )
    (boot,) = present(decided(*documents, files={"t": "#cloud-config\n"}).unknown).values()
    assert present(boot.user_data).files == {"meta-data": "", "user-data": "#cloud-config\n"}


def test_an_argument_that_renders_to_nothing_is_none() -> None:
    conditional = profile("web", "flatcar-1", "kernelArguments: [\"{{ 'a' if vars.x is defined }}\", b]")
    found = state(*SEED[:4], conditional, *SEED[5:]).plan
    assert found is not None and found.boot is not None and found.boot.kernel_arguments == ("b",)


def test_a_status_says_which_conditions_hold() -> None:
    held = Condition(type="SourceReady", status=True, reason="Fetched", message="", since=NOON)
    problem = Problem(path="a", line=1, column=2, code="GB1001", message="m", hint="x")
    status = Status(conditions=(held,), problems=(problem,), next_transition=NOON + timedelta(hours=1))
    assert status.condition("SourceReady")
    assert not status.condition("Published")
    assert status.planned_at is None
    facts = json.loads(json.dumps(status.facts()))
    assert facts["conditions"][0]["since"] == "2026-11-20T12:00:00Z"
    assert facts["attempted"]["problems"][0]["line"] == 1
    assert facts["nextTransition"] == "2026-11-20T13:00:00Z"


def test_problems_of_a_commit_are_sorted_by_place() -> None:
    first = Problem(path="a", line=1, column=9, code="GB1002", message="m")
    second = Problem(path="a", line=2, column=1, code="GB1001", message="m", hint="do")
    assert InvalidRepository([second, first]).problems == (first, second)
    assert str(second) == "a:2:1: GB1001: m (do)"
    assert BmcBusy("x", retry_after_s=3).retry_after_s == 3


def test_a_path_that_a_transition_leaves_as_it_is_takes_no_turn() -> None:
    first = maintenance("a", "20T13:00 20T15:00")
    over = maintenance("b", "20T14:00 20T15:00", "priority: 1, networkBoot: Once", boots="web")
    restricted = fleet("baseURL: 'http://boot.test', unknownServers: NotFound, serving: {restrict: true}")
    found = state(restricted, *SEED[1:-1], policy("web", often="Never"), first, over)
    assert [instant for instant, _ in found.later] == [at("20T13:00"), at("20T14:00"), at("20T15:00")]
    versions = found.published.paths[ENTRY]
    assert [version.since for version in versions] == [at("20T13:00"), at("20T14:00")]
    assert versions[-1].content is None  # 404 before and after 15:00


def test_a_document_that_two_boots_share_takes_no_turn() -> None:
    user_data = "userData: {format: Ignition/3.4, template: t}"
    documents = (
        *SEED[:2],
        image("flatcar-1", "userData: Ignition/3.4"),
        image("memtest-7", "userData: Ignition/3.4, writesDisk: false"),
        profile("web", "flatcar-1", user_data),
        profile("repair", "memtest-7", user_data),
        SEED[-1],
        maintenance("m", "20T13:00 20T14:00"),
    )
    found = state(*documents, files={"t": '{"ignition": {"version": "3.4.0"}}'})
    by_uuid = [path for path in found.files if path.startswith("boot/ignition/")]
    assert [len(found.published.paths[path]) for path in by_uuid] == [1, 1]
    assert len(found.published.paths[ENTRY]) > 1
