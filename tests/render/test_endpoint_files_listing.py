"""The listing of one server: what lies in the tree now, and from each transition on."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gitboot.render.endpoint_files import listing_path, name_in_listing
from gitboot.render.paths import DATA, FAILED, IPXE_BY_MAC, MEDIUM, PROVISIONED
from gitboot.render.server_files import RenderedState, server_state
from gitboot.resolve.boot_limits import Halt
from gitboot.resolve.provisioning_record import Record, Run
from gitboot.resolve.server_decision import Decisions
from tests.helpers import http_peers, mirrors
from tests.helpers.cases import for_each
from tests.helpers.endpoints import LOADER, Site
from tests.helpers.fleets import SEED, at, decided, fleet, image, mac_of, maintenance, policy, profile, uuid_of
from tests.helpers.mirrors import WAYS
from tests.helpers.signed_lists import lies

NOON = at("20T12:00")
OUTPUTS = fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux]")
ONE = maintenance("m1", "20T22:00 20T23:00")
ENTRY = f"v1/boot/{mac_of('web01').replace(':', '-')}/boot.ipxe"
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
DISKLESS = (
    *(OUTPUTS, SEED[1], image("flatcar-1", "writesDisk: false"), image("memtest-7", "writesDisk: false")),
    *(profile("web", "flatcar-1"), profile("repair", "memtest-7"), SEED[-1]),
)
FILES = {"t": '{"ignition": {"version": "3.4.0"}, "x": "{{ image.name }}"}'}


def rendered(
    decisions: Decisions, now: datetime, record: Record | None = None, stop: Halt = Halt.NONE
) -> RenderedState:
    return server_state(decisions, decisions.servers["web01"], record, now, stop=stop)


def listing(found: RenderedState) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(found.files[listing_path("web01")].content)
    return document


def in_tree(found: RenderedState, server: str = "web01") -> dict[str, str]:
    files = {path: file for path, file in found.files.items() if path.startswith("boot/")}
    return {name_in_listing(path): file.sha256 for path, file in files.items() if path != listing_path(server)}


# What is listed


@for_each("documents", [(OUTPUTS, *SEED[1:]), (OUTPUTS, *SEED[1:], ONE), (*CONFIGURED, ONE)])
def test_the_listing_has_what_lies_in_the_tree_now_and_after_each_transition(documents: tuple[str, ...]) -> None:
    decisions = decided(*documents, files=FILES)
    found = rendered(decisions, NOON)
    instants = [NOON, *(each + delta for each, _ in found.later for delta in (-timedelta(seconds=1), timedelta()))]
    announced = {name for name in in_tree(found) if name.startswith("o/")}
    for instant in instants:
        then = in_tree(rendered(decisions, instant))
        listed = lies(listing(found), instant)
        assert {name: digest for name, digest in listed.items() if name not in announced} == {
            name: digest for name, digest in then.items() if name not in announced
        }
        assert announced <= listed.keys()


def test_a_path_with_a_token_is_listed_by_its_digest() -> None:
    mac, token = mac_of("web01").replace(":", "-"), "a" * 64
    for path in (
        DATA.of(mac, token, "user-data"),
        PROVISIONED.of(mac, token),
        FAILED.of(mac, token),
        MEDIUM.of(uuid_of("web01"), token),
    ):
        assert name_in_listing(path) == f"sha256:{sha256(path.removeprefix('boot/').encode()).hexdigest()}"
    assert name_in_listing(IPXE_BY_MAC.of(mac)) == ENTRY


def test_no_listing_names_a_token() -> None:
    reported = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}")
    found = rendered(decided(reported, *SEED[1:-1], policy("web", often="Once")), NOON, Record())
    tokens = {word for path in found.files for word in path.split("/") if len(word) == 64 and "/o/" not in path}
    content = found.files[listing_path("web01")].content.decode()
    assert tokens and not any(token in content for token in tokens)


def test_the_listing_says_nothing_of_what_only_operators_have() -> None:
    decisions = decided(fleet("baseURL: 'http://boot.test', outputs: [ipxe, pages]"), *SEED[1:])
    names = listing(rendered(decisions, NOON))["files"]
    assert names and not any(name.startswith(("ops/", "signed/")) for name in names)


# The end of a window, without a publisher


def test_outside_a_window_a_copy_has_nothing_to_end() -> None:
    document = listing(rendered(decided(OUTPUTS, *SEED[1:], ONE), NOON))
    assert (document["ends"], document["contents"]) == (None, {})


def ended(
    now: str, *maintenances: str, stop: Halt = Halt.NONE, record: Record | None = None
) -> tuple[datetime, dict[str, str | None]]:
    """When a copy ends the window that is open, and the text of each file then."""
    document = listing(rendered(decided(*DISKLESS, *maintenances), at(now), record, stop))
    texts, files = document["contents"], document["ends"]["files"]
    for text in texts.values():
        assert text
    return datetime.fromisoformat(document["ends"]["since"]), {
        path: texts[digest] if digest is not None else None for path, (digest, _) in files.items()
    }


def test_a_window_that_is_open_ends_with_what_is_published_then() -> None:
    decisions = decided(*DISKLESS, ONE)
    since, files = ended("20T22:30", ONE)
    then = rendered(decisions, at("20T23:00")).files
    assert since == at("20T23:00")
    assert set(files) >= {ENTRY, f"grub.cfg-01-{mac_of('web01').replace(':', '-')}"}
    for path, text in files.items():
        assert text is not None and then[f"boot/{path}"].content.decode() == text


@pytest.mark.parametrize(
    ("windows", "since"),
    [
        (("20T22:00 20T23:00", "20T23:00 21T01:00"), "20T23:00"),  # one after the other
        (("20T22:00 20T23:30", "20T23:00 21T01:00"), "20T23:30"),  # the first takes precedence, then the second
    ],
)
def test_a_window_that_another_follows_at_once_ends_with_a_boot_without_maintenance(
    windows: tuple[str, str], since: str
) -> None:
    first = maintenance("m1", windows[0], "priority: 9")
    second = maintenance("m2", windows[1], "priority: 1", boots="other")
    found, files = ended("20T22:30", first, second, image("other-1"), profile("other", "other-1"))
    assert found == at(since)
    text = files[ENTRY] or ""
    assert "flatcar-1" in text and "other-1" not in text and "memtest-7" not in text


def test_a_maintenance_that_boots_the_disk_is_ended_by_a_copy_and_never_begun() -> None:
    disk = profile("disk", "", method="Disk")
    first, second = (maintenance(*each) for each in (("m1", "20T22:00 20T23:00"), ("m2", "20T23:00 21T01:00")))
    since, files = ended("20T22:30", disk, first.replace("profile: repair", "profile: disk"))
    assert (since, "flatcar-1" in (files[ENTRY] or "")) == (at("20T23:00"), True)
    since, files = ended("20T22:30", disk, first, second.replace("profile: repair", "profile: disk"))
    assert (since, "flatcar-1" in (files[ENTRY] or "")) == (at("20T23:00"), True)


@pytest.mark.parametrize(
    ("writes", "now", "since"),
    [
        ("false", "20T22:05", "21T04:00"),  # its boot was given, and is given again for a minute
        ("false", "20T22:10", "21T04:00"),  # the disk boots, and the system may ask for its user data for two hours
        ("true", "20T22:05", "20T22:06"),  # a boot that writes the disk is taken back after the minute
        ("true", "20T22:10", "21T04:00"),
    ],
)
def test_a_window_whose_one_boot_was_made_ends_when_it_ends(writes: str, now: str, since: str) -> None:
    images = (
        image("flatcar-1", "userData: Ignition/3.4, writesDisk: false"),
        image("memtest-7", f"userData: Ignition/3.4, writesDisk: {writes}"),
    )
    run = maintenance("m1", "20T22:00 21T04:00", "run: 1, networkBoot: Once")
    made = Record(runs={"m1": Run(1, at("20T22:05"), at("21T04:00"))})
    document = listing(rendered(decided(*CONFIGURED[:2], *images, *CONFIGURED[4:], run, files=FILES), at(now), made))
    assert datetime.fromisoformat(document["ends"]["since"]) == at(since)
    entry = document["contents"][document["ends"]["files"][ENTRY][0]]
    assert "flatcar-1" in entry and "memtest-7" not in entry


def test_while_all_boots_are_stopped_a_copy_boots_the_disk_after_a_window() -> None:
    disk, windows = profile("disk", "", method="Disk"), ("20T22:00 20T23:00", "20T23:00 21T01:00")
    to_disk = [maintenance(f"m{number}", window, boots="disk") for number, window in enumerate(windows)]
    for maintenances in (to_disk[:1], to_disk, (to_disk[0], maintenance("m1", windows[1]))):
        since, files = ended("20T22:30", disk, *maintenances, stop=Halt.ALL)
        assert (since, ENTRY in files) == (at("20T23:00"), True)
        assert not any("flatcar-1" in text or "memtest-7" in text for text in files.values() if text)


def test_after_a_window_a_policy_that_installs_is_not_begun_by_a_copy_that_another_window_follows() -> None:
    first, second = maintenance("m1", "20T22:00 20T23:00"), maintenance("m2", "20T23:00 21T01:00")
    documents = (OUTPUTS, *SEED[1:-1], policy("web", often="Once"), first, second)
    texts = listing(rendered(decided(*documents), at("20T22:30"), Record()))["contents"].values()
    assert texts and not any("flatcar-1" in text or "memtest-7" in text for text in texts)


def test_a_maintenance_without_an_end_is_ended_by_a_copy_within_the_hour() -> None:
    since, files = ended("20T22:30", maintenance("m1", "20T22:00 -"))
    assert at("20T22:30") < since <= at("20T23:30") + timedelta(minutes=15)
    assert "flatcar-1" in (files[ENTRY] or "")


def test_what_a_copy_boots_after_a_window_has_its_data_there_before() -> None:
    decisions = decided(*CONFIGURED, ONE, files=FILES)
    found = rendered(decisions, at("20T22:30"))
    named = {path for path in rendered(decisions, at("20T23:00")).files if path.startswith("boot/o/")}
    assert named and named <= found.files.keys()


# A person who looks for one server's files


@pytest.mark.parametrize("way", WAYS)
def test_finding_m10_one_request_to_a_mirror_finds_each_file_of_one_server(tmp_path: Path, way: str) -> None:
    (folder := tmp_path / "way").mkdir()
    site, published = Site(tmp_path / "output"), mirrors.FLEET_OF_EVERY_PATH.servers
    site.publish(mirrors.FLEET_OF_EVERY_PATH)
    with WAYS[way](site.root, folder) as mirror, http_peers.Client(base_url=mirror.url, headers=LOADER) as client:
        for server, state in published.items():
            found = client.get(f"/{listing_path(server).removeprefix('boot/')}").json()["files"]
            assert found.keys() == in_tree(state, server).keys()
            for name, [(since, digest, size), *_] in found.items():
                if not name.startswith("sha256:"):  # a path that has a token
                    content = client.get(f"/{name}").content
                    assert (since, digest, size) == (None, sha256(content).hexdigest(), len(content)), name
