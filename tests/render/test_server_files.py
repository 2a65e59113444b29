"""The files of one server, now and after its next transitions, and its listing."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gitboot.errors import BmcBusy, InvalidRepository
from gitboot.model.scalars import MacAddress, SystemUuid, swap_byte_order
from gitboot.problems import Problem
from gitboot.render.boot_files import render_fleet_files
from gitboot.render.endpoint_files import (
    NeededFile,
    PathVersion,
    find_version,
    listing_name,
    listing_path,
    parse_state,
    render_state,
)
from gitboot.render.paths import DATA, FAILED, IPXE_BY_MAC, MEDIUM, PROVISIONED, is_immutable
from gitboot.render.server_files import TRANSITIONS_AHEAD, RenderedState, ServerDetails, build_server_state
from gitboot.resolve.provisioning_record import Record, Run, StopScope
from gitboot.resolve.server_decision import Decisions
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from tests.helpers import http_peers, mirrors
from tests.helpers.cases import for_each, require_value
from tests.helpers.endpoints import LOADER, Site
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    decided,
    fleet,
    image,
    maintenance,
    make_mac,
    make_uuid,
    policy,
    profile,
    server,
)
from tests.helpers.mirrors import TREE_COPIES
from tests.helpers.signed_lists import list_current_digests

NOON = at("20T12:00")
SEVERAL = [maintenance(f"m{day}", f"{day}T22:00 {day}T23:00") for day in (21, 22, 23, 24)]


def state(
    *documents: str,
    record: Record | None = None,
    details: ServerDetails | None = None,
    files: dict[str, str] | None = None,
) -> RenderedState:
    decisions = decided(*documents, files=files)
    return build_server_state(decisions, decisions.servers["web01"], record, NOON, details or ServerDetails())


def find_script_version(found: RenderedState, instant: datetime) -> PathVersion:
    return require_value(find_version(found.published.paths[ENTRY], instant)[0])


ENTRY = next(path for path in state(*SEED).files if path.endswith("boot.ipxe"))


def test_a_state_has_as_many_transitions_as_gitboot_looks_ahead() -> None:
    found = state(*SEED, *SEVERAL)
    assert [instant for instant, _ in found.later] == [at(f"{day}T{hour}:00") for day in (21, 22) for hour in (22, 23)]
    assert len(found.later) == TRANSITIONS_AHEAD
    now = find_script_version(found, NOON)
    assert now.content == found.files[ENTRY].sha256
    for day in (21, 22):
        inside, after = find_script_version(found, at(f"{day}T22:30")), find_script_version(found, at(f"{day}T23:00"))
        assert "memtest-7" in found.published.contents[str(inside.content)]
        assert after == now._replace(since=at(f"{day}T23:00"))


def test_every_announced_file_exists_before_its_transition() -> None:
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


def test_a_state_is_decoded_as_it_was_encoded() -> None:
    once = (*SEED[:-1], policy("web", often="Once"))
    for documents in ((*SEED, *SEVERAL), once, (SEED[0], server("web01", spec="lifecycle: Parked"), *SEED[2:])):
        found = state(*documents, record=Record())
        data = found.files["ops/servers/web01.json"].content
        assert (parse_state(data), render_state(parse_state(data))) == (found.published, data)


@for_each("data", [b"", b"{}", b"[]", b"null", b'{"format":1}', b'{"format":2}', b'{"format":2,"server":1}'])
def test_content_that_is_not_a_state_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|state"):
        parse_state(data)


def test_the_identities_of_a_server_are_in_its_state() -> None:
    documents = (*SEED[:1], server("web01", "role: web", "provision: 1, serial: 4J8VM72"), *SEED[2:])
    details = ServerDetails(site="fra1", labels={"role": "web"}, addresses=("10.0.0.7",))
    found = state(*documents, details=details).published
    uuid = SystemUuid(make_uuid("web01"))
    assert set(found.identities) == {
        f"mac/{make_mac('web01').replace(':', '-')}",
        *(f"uuid/{each}" for each in (uuid, swap_byte_order(uuid))),
        "serial/4J8VM72",
        "address/10.0.0.7",
    }
    assert (found.summary["site"], found.summary["role"], found.summary["labels"]) == ("fra1", "web", {"role": "web"})


def test_an_interface_that_may_not_boot_belongs_to_the_server_and_its_script_says_so() -> None:
    decisions = decided(fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux]"), *ONCE[1:])
    details, record = ServerDetails(idle_macs=(MacAddress("52-54-00-99-99-99"),)), Record()
    found = build_server_state(decisions, decisions.servers["web01"], record, NOON, details)
    assert "mac/52-54-00-99-99-99" in found.published.identities
    for path in ("boot/grub.cfg-01-52-54-00-99-99-99", "boot/pxelinux.cfg/01-52-54-00-99-99-99"):
        (turn,) = found.published.paths[path]
        assert turn.content == found.files[path].sha256 == found.published.files[path].sha256
        assert "boot: false for this interface" in found.published.contents[turn.content]
        assert (turn.since, turn.digest, turn.writes) == (None, None, None)
        assert path not in found.evidence_digests
    assert found.published.paths[ENTRY][0].writes is not None  # the file for its other interface
    assert "boot/v1/boot/52-54-00-99-99-99/grub.cfg" not in found.files
    assert found.is_current(decisions.servers["web01"], record, NOON, details)
    assert not found.is_current(decisions.servers["web01"], record, NOON, ServerDetails())


ONCE = (*SEED[:-1], policy("web", "{matchLabels: {role: web}}", often="Once"))
DISKLESS = (*SEED[:-1], policy("web", "{matchLabels: {role: web}}", boots="repair"))


@for_each(
    ("documents", "once", "instead"),
    [
        pytest.param(SEED, False, "disk", id="an installation at each boot"),
        pytest.param(DISKLESS, False, None, id="Always, of an image that writes no disk"),
        pytest.param(ONCE, True, "disk", id="Once"),
        pytest.param(
            (*SEED[:-1], policy("web", "{matchLabels: {role: web}}", boots="repair", often="Once")),
            False,
            None,
            id="Once, of an image that writes no disk",
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
def test_an_install_boot_has_a_fallback(documents: tuple[str, ...], once: bool, instead: str | None) -> None:
    found = state(*documents, record=Record())
    writes = find_script_version(found, NOON).writes
    if instead is None:
        assert writes is None
    else:
        assert writes is not None and writes.once == once
        assert writes.needs == (
            NeededFile("assets/flatcar-1/initrd", None),
            NeededFile("assets/flatcar-1/kernel", None),
        )
        text = found.published.contents[str(writes.fallback)]
        assert "this boot replaces a boot that writes a disk" in text
        assert (f"{instead}/kernel" if instead != "disk" else "boots its local disk") in text
        assert "flatcar-1/kernel" not in text


def test_a_mirrored_artifact_must_be_present_before_it_is_served() -> None:
    mirrors = fleet("baseURL: 'http://boot.test', outputs: [ipxe, mirror]")
    mirrored = image("flatcar-1").replace("assets:flatcar-1/kernel", "http://vendor.test/vmlinuz")
    found = state(mirrors, *(mirrored if each == image("flatcar-1") else each for each in SEED[1:]), record=Record())
    needs = require_value(find_script_version(found, NOON).writes).needs
    assert needs == (NeededFile("assets/flatcar-1/initrd", None), NeededFile(f"o/{SHA}/kernel", None))


def test_a_signature_for_ipxe_must_be_present_before_a_boot_is_served() -> None:
    signed = image("flatcar-1", "", "kernel").replace(f"{SHA}}}", f"{SHA}, loaderSignature: 'assets:sig/k'}}", 1)
    found = state(*(signed if each == image("flatcar-1") else each for each in SEED), record=Record())
    needs = require_value(find_script_version(found, NOON).writes).needs
    assert needs == (NeededFile("assets/flatcar-1/kernel", None), NeededFile("assets/sig/k", None))


def test_a_parked_server_has_no_boot_script_that_proves_a_fetch() -> None:
    found = state(SEED[0], server("web01", spec="lifecycle: Parked"), *SEED[2:])
    assert (found.plan, found.evidence_digests) == (None, {})


def test_a_state_is_valid_until_its_transition_and_for_its_record() -> None:
    decisions = decided(*SEED, *SEVERAL)
    decision = decisions.servers["web01"]
    found = build_server_state(decisions, decision, None, NOON)
    assert found.is_current(decision, None, at("21T21:59"))
    assert not found.is_current(decision, None, at("21T22:00"))
    assert not found.is_current(decision, Record(), NOON)
    assert not found.is_current(decided(*SEED).servers["web01"], None, NOON)


def test_each_output_has_its_shared_files() -> None:
    for output, expected in (
        ("ipxe", ["boot/boot.ipxe", "boot/ipxe/boot.ipxe", "boot/unknown.ipxe"]),
        ("grub", ["boot/grub.cfg", "boot/grub/grub.cfg", "boot/unknown.grub.cfg"]),
    ):
        found = decided(fleet(f"baseURL: 'http://boot.test', outputs: [{output}]"), *SEED[1:])
        assert sorted(render_fleet_files(found)) == [*expected, "ops/serve/Caddyfile", "ops/serve/nginx.conf"]
        entries = build_server_state(found, found.servers["web01"], None, NOON).files
        assert any(path.endswith("grub.cfg") for path in entries) == (output == "grub")


def test_unknown_machines_may_have_user_data() -> None:
    documents = (
        fleet("baseURL: 'http://boot.test', unknownServers: {profile: discover}"),
        *SEED[1:],
        image("discovery-1", "writesDisk: false, userData: CloudInit"),
        profile("discover", "discovery-1", "userData: {format: CloudInit, template: t}"),
    )
    (boot,) = require_value(decided(*documents, files={"t": "#cloud-config\n"}).unknown).values()
    assert require_value(boot.user_data).files == {"meta-data": "", "user-data": "#cloud-config\n"}


def test_an_argument_that_renders_to_an_empty_text_is_omitted() -> None:
    conditional = profile("web", "flatcar-1", "kernelArguments: [\"{{ 'a' if vars.x is defined }}\", b]")
    found = state(*SEED[:4], conditional, *SEED[5:]).plan
    assert found is not None and found.boot is not None and found.boot.kernel_arguments == ("b",)


def test_a_status_has_its_conditions_problems_and_next_transition() -> None:
    held = Condition(type="SourceReady", status=True, reason="Fetched", message="", last_transition_time=NOON)
    problem = Problem(path="a", line=1, column=2, code="GB1001", message="m", hint="x")
    status = Status(conditions=(held,), problems=(problem,), next_transition=NOON + timedelta(hours=1))
    assert status.condition("SourceReady")
    assert not status.condition("Published")
    assert status.planned_at is None
    facts = json.loads(json.dumps(status.facts()))
    assert facts["conditions"][0]["lastTransitionTime"] == "2026-11-20T12:00:00Z"
    assert facts["attempted"]["problems"][0]["line"] == 1
    assert facts["nextTransition"] == "2026-11-20T13:00:00Z"


def test_problems_of_a_commit_are_sorted_by_location() -> None:
    first = Problem(path="a", line=1, column=9, code="GB1002", message="m")
    second = Problem(path="a", line=2, column=1, code="GB1001", message="m", hint="do")
    assert InvalidRepository([second, first]).problems == (first, second)
    assert str(second) == "a:2:1: GB1001: m (do)"
    assert BmcBusy("x", retry_after_s=3).retry_after_s == 3


def test_a_path_that_a_transition_does_not_change_gets_no_new_version() -> None:
    first = maintenance("a", "20T13:00 20T15:00")
    over = maintenance("b", "20T14:00 20T15:00", "priority: 1, networkBoot: Once", boots="web")
    restricted = fleet("baseURL: 'http://boot.test', unknownServers: NotFound, serving: {restrict: true}")
    found = state(restricted, *SEED[1:-1], policy("web", often="Never"), first, over)
    assert [instant for instant, _ in found.later] == [at("20T13:00"), at("20T14:00"), at("20T15:00")]
    versions = found.published.paths[ENTRY]
    assert [version.since for version in versions] == [at("20T13:00"), at("20T14:00")]
    assert versions[-1].content is None  # 404 before and after 15:00


def test_a_document_that_two_boots_share_gets_no_new_version() -> None:
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


OUTPUTS = fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux]")
ONE = maintenance("m1", "20T22:00 20T23:00")
LISTED_ENTRY = f"v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
USER_DATA = "userData: {format: Ignition/3.4, template: t}"
CONFIGURED = (
    OUTPUTS,
    SEED[1],
    image("flatcar-1", "userData: Ignition/3.4"),
    image("memtest-7", "userData: Ignition/3.4"),
    profile("web", "flatcar-1", USER_DATA),
    profile("repair", "memtest-7", USER_DATA),
    SEED[-1],
)
DISKLESS_ALWAYS = (
    *(OUTPUTS, SEED[1], image("flatcar-1", "writesDisk: false"), image("memtest-7", "writesDisk: false")),
    *(profile("web", "flatcar-1"), profile("repair", "memtest-7"), SEED[-1]),
)
FILES = {"t": '{"ignition": {"version": "3.4.0"}, "x": "{{ image.name }}"}'}


def build_state_at(
    decisions: Decisions, now: datetime, record: Record | None = None, stop: StopScope = StopScope.NONE
) -> RenderedState:
    return build_server_state(decisions, decisions.servers["web01"], record, now, stop=stop)


def read_listing(found: RenderedState) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(found.files[listing_path("web01")].content)
    return document


def list_tree(found: RenderedState, server: str = "web01") -> dict[str, str]:
    files = {path: file for path, file in found.files.items() if path.startswith("boot/")}
    return {listing_name(path): file.sha256 for path, file in files.items() if path != listing_path(server)}


# Listings


@for_each("documents", [(OUTPUTS, *SEED[1:]), (OUTPUTS, *SEED[1:], ONE), (*CONFIGURED, ONE)])
def test_the_listing_has_the_files_in_the_tree_now_and_after_each_transition(documents: tuple[str, ...]) -> None:
    decisions = decided(*documents, files=FILES)
    found = build_state_at(decisions, NOON)
    instants = [
        NOON,
        *(each + delta for each, _ in found.later for delta in (-timedelta(seconds=1), timedelta())),
    ]
    announced = {name for name in list_tree(found) if name.startswith("o/")}
    for instant in instants:
        then = list_tree(build_state_at(decisions, instant))
        listed = list_current_digests(read_listing(found), instant)
        assert {name: digest for name, digest in listed.items() if name not in announced} == {
            name: digest for name, digest in then.items() if name not in announced
        }
        assert announced <= listed.keys()


def test_a_path_with_a_token_is_listed_by_its_digest() -> None:
    mac, token = make_mac("web01").replace(":", "-"), "a" * 64
    for path in (
        DATA.build_path(mac, token, "user-data"),
        PROVISIONED.build_path(mac, token),
        FAILED.build_path(mac, token),
        MEDIUM.build_path(make_uuid("web01"), token),
    ):
        assert listing_name(path) == f"sha256:{sha256(path.removeprefix('boot/').encode()).hexdigest()}"
    assert listing_name(IPXE_BY_MAC.build_path(mac)) == LISTED_ENTRY


def test_no_listing_names_a_token() -> None:
    reported = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}")
    found = build_state_at(decided(reported, *SEED[1:-1], policy("web", often="Once")), NOON, Record())
    tokens = {word for path in found.files for word in path.split("/") if len(word) == 64 and "/o/" not in path}
    content = found.files[listing_path("web01")].content.decode()
    assert tokens and not any(token in content for token in tokens)


def test_the_listing_has_nothing_that_only_operators_may_read() -> None:
    decisions = decided(fleet("baseURL: 'http://boot.test', outputs: [ipxe, pages]"), *SEED[1:])
    names = read_listing(build_state_at(decisions, NOON))["files"]
    assert names and not any(name.startswith(("ops/", "signed/")) for name in names)


# The end of a window, without a publisher


def test_outside_a_window_a_copy_has_no_window_to_end() -> None:
    document = read_listing(build_state_at(decided(OUTPUTS, *SEED[1:], ONE), NOON))
    assert (document["ends"], document["contents"]) == (None, {})


def read_window_end(
    now: str, *maintenances: str, stop: StopScope = StopScope.NONE, record: Record | None = None
) -> tuple[datetime, dict[str, str | None]]:
    """When a copy ends the window that is open, and the text of each file then."""
    document = read_listing(build_state_at(decided(*DISKLESS_ALWAYS, *maintenances), at(now), record, stop))
    texts, files = document["contents"], document["ends"]["files"]
    for text in texts.values():
        assert text
    return datetime.fromisoformat(document["ends"]["since"]), {
        path: texts[digest] if digest is not None else None for path, (digest, _) in files.items()
    }


def test_an_open_window_ends_with_the_files_of_the_next_plan() -> None:
    decisions = decided(*DISKLESS_ALWAYS, ONE)
    since, files = read_window_end("20T22:30", ONE)
    then = build_state_at(decisions, at("20T23:00")).files
    assert since == at("20T23:00")
    assert set(files) >= {LISTED_ENTRY, f"grub.cfg-01-{make_mac('web01').replace(':', '-')}"}
    for path, text in files.items():
        assert text is not None and then[f"boot/{path}"].content.decode() == text


@pytest.mark.parametrize(
    ("windows", "since"),
    [
        (("20T22:00 20T23:00", "20T23:00 21T01:00"), "20T23:00"),  # one after the other
        (("20T22:00 20T23:30", "20T23:00 21T01:00"), "20T23:30"),  # the first takes precedence, then the second
    ],
)
def test_a_window_that_another_follows_at_once_ends_with_a_boot_without_a_maintenance(
    windows: tuple[str, str], since: str
) -> None:
    first = maintenance("m1", windows[0], "priority: 9")
    second = maintenance("m2", windows[1], "priority: 1", boots="other")
    found, files = read_window_end("20T22:30", first, second, image("other-1"), profile("other", "other-1"))
    assert found == at(since)
    text = files[LISTED_ENTRY] or ""
    assert "flatcar-1" in text and "other-1" not in text and "memtest-7" not in text


def test_a_maintenance_that_boots_the_disk_is_ended_by_a_copy_and_never_started() -> None:
    disk = profile("disk", "", method="Disk")
    first, second = (maintenance(*each) for each in (("m1", "20T22:00 20T23:00"), ("m2", "20T23:00 21T01:00")))
    since, files = read_window_end("20T22:30", disk, first.replace("profile: repair", "profile: disk"))
    assert (since, "flatcar-1" in (files[LISTED_ENTRY] or "")) == (at("20T23:00"), True)
    since, files = read_window_end("20T22:30", disk, first, second.replace("profile: repair", "profile: disk"))
    assert (since, "flatcar-1" in (files[LISTED_ENTRY] or "")) == (at("20T23:00"), True)


@pytest.mark.parametrize(
    ("writes", "now", "since"),
    [
        ("false", "20T22:05", "21T04:00"),  # its boot was served, and is served again for a minute
        ("false", "20T22:10", "21T04:00"),  # the disk boots, and the system may fetch its user data for two hours
        ("true", "20T22:05", "20T22:06"),  # a boot that writes the disk is withdrawn after the minute
        ("true", "20T22:10", "21T04:00"),
    ],
)
def test_a_window_whose_one_time_boot_was_used_ends_at_its_end(writes: str, now: str, since: str) -> None:
    images = (
        image("flatcar-1", "userData: Ignition/3.4, writesDisk: false"),
        image("memtest-7", f"userData: Ignition/3.4, writesDisk: {writes}"),
    )
    run = maintenance("m1", "20T22:00 21T04:00", "run: 1, networkBoot: Once")
    made = Record(runs={"m1": Run(1, at("20T22:05"), at("21T04:00"))})
    document = read_listing(
        build_state_at(decided(*CONFIGURED[:2], *images, *CONFIGURED[4:], run, files=FILES), at(now), made)
    )
    assert datetime.fromisoformat(document["ends"]["since"]) == at(since)
    entry = document["contents"][document["ends"]["files"][LISTED_ENTRY][0]]
    assert "flatcar-1" in entry and "memtest-7" not in entry


def test_while_all_boots_are_stopped_a_copy_boots_the_disk_after_a_window() -> None:
    disk, windows = profile("disk", "", method="Disk"), ("20T22:00 20T23:00", "20T23:00 21T01:00")
    to_disk = [maintenance(f"m{number}", window, boots="disk") for number, window in enumerate(windows)]
    for maintenances in (to_disk[:1], to_disk, (to_disk[0], maintenance("m1", windows[1]))):
        since, files = read_window_end("20T22:30", disk, *maintenances, stop=StopScope.ALL)
        assert (since, LISTED_ENTRY in files) == (at("20T23:00"), True)
        assert not any("flatcar-1" in text or "memtest-7" in text for text in files.values() if text)


def test_a_copy_does_not_start_an_installation_between_two_windows() -> None:
    first, second = maintenance("m1", "20T22:00 20T23:00"), maintenance("m2", "20T23:00 21T01:00")
    documents = (OUTPUTS, *SEED[1:-1], policy("web", often="Once"), first, second)
    texts = read_listing(build_state_at(decided(*documents), at("20T22:30"), Record()))["contents"].values()
    assert texts and not any("flatcar-1" in text or "memtest-7" in text for text in texts)


def test_a_maintenance_without_an_end_is_ended_by_a_copy_within_the_hour() -> None:
    since, files = read_window_end("20T22:30", maintenance("m1", "20T22:00 -"))
    assert at("20T22:30") < since <= at("20T23:30") + timedelta(minutes=15)
    assert "flatcar-1" in (files[LISTED_ENTRY] or "")


def test_the_data_of_a_boot_after_a_window_exists_before_the_end() -> None:
    decisions = decided(*CONFIGURED, ONE, files=FILES)
    found = build_state_at(decisions, at("20T22:30"))
    named = {path for path in build_state_at(decisions, at("20T23:00")).files if path.startswith("boot/o/")}
    assert named and named <= found.files.keys()


# An operator who looks for one server's files


def test_finding_m10_one_request_to_a_mirror_finds_each_file_of_one_server(tmp_path: Path) -> None:
    site, published = Site(tmp_path / "output"), mirrors.FLEET_OF_EVERY_PATH.servers
    site.publish(mirrors.FLEET_OF_EVERY_PATH)
    for way in TREE_COPIES:
        (folder := tmp_path / way).mkdir()
        with (
            TREE_COPIES[way](site.root, folder) as mirror,
            http_peers.Client(base_url=mirror.url, headers=LOADER) as client,
        ):
            for server, state in published.items():
                found = client.get(f"/{listing_path(server).removeprefix('boot/')}").json()["files"]
                assert found.keys() == list_tree(state, server).keys(), way
                for name, [(since, digest, size), *_] in found.items():
                    if not name.startswith("sha256:"):  # a path that has a token
                        content = client.get(f"/{name}").content
                        assert (since, digest, size) == (None, sha256(content).hexdigest(), len(content)), (way, name)
