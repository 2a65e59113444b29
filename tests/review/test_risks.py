"""Changes between two commits: the identity of servers, the risks, the time of the effect, and the digest."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from gitboot.fleet.validation import load
from gitboot.jsonio import Digest
from gitboot.model.boot_policy import (
    DiskBoot,
    HttpBoot,
    Method,
    NetworkBoot,
    OverrideMode,
    PolicyPower,
    PolicyWait,
    Taint,
    TaintEffect,
)
from gitboot.model.server import Architecture, Firmware, Lifecycle
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.server_decision import Boot, BootFiles, Decision
from gitboot.review.decision_changes import ServerChange, UnknownCause, UnknownReason, compare_decisions
from gitboot.review.document_changes import ChangeKind
from gitboot.review.reinstalls import ReinstallReason
from gitboot.review.risks import Effect, EffectTime, Risk, find_risks
from tests.helpers.cases import for_each
from tests.helpers.evaluations import FLEET, Files, compare_files
from tests.helpers.fleets import (
    SHA,
    at,
    decision,
    document,
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

NAME = "fra1-web01"
PATH = f"servers/{NAME}.yaml"


def find_change(new: Files, old: Files = FLEET, name: str = NAME) -> ServerChange:
    return next(change for change in compare_files(new, old).servers if change.name == name)


def change_server(spec: str, labels: str = "site: fra1, role: web") -> Files:
    """The document of one server with something else in it."""
    return {PATH: server(NAME, labels, spec)}


def web(spec: str, often: str = "Once", boots: str = "web") -> Files:
    return {"policies/web.yaml": policy("web", "{matchLabels: {role: web}}", spec, often=often, boots=boots)}


def stream(spec: str) -> Files:
    return {"stream.yaml": document("ImageStream", "stable", spec)}


def window(given: str = "20T22:00 21T04:00", spec: str = "", boots: str = "bios") -> Files:
    return {"m.yaml": maintenance("m", given, spec, boots=boots)}


def attempts(number: int) -> Files:
    settings = f"baseURL: 'http://boot.test', provisioning: {{evidence: Reported, attempts: {number}}}"
    return {**FLEET, "fleet.yaml": fleet(settings)}


def boots(number: int) -> Files:
    return {"images/1.yaml": image("flatcar-1", f"userData: CloudInit, boots: {number}")}


ALWAYS = {**FLEET, **web("", "Always")}
ON_IMAGE_CHANGE = {**FLEET, **web("", "OnImageChange")}
NEVER = {**FLEET, **web("", "Never")}


# Risk classes


@for_each(
    ("what", "new", "expected"),
    [
        ("an image by stream under Once", stream("current: flatcar-2"), {Risk.IMAGE, Risk.USER_DATA}),
        (
            "a kernel argument of the profile",
            {"profiles/db.yaml": profile("db", "flatcar-1", "kernelArguments: [debug]")},
            {Risk.KERNEL_ARGUMENTS},
        ),
        ("user data", {"userdata/web.j2": "#cloud-config\n"}, {Risk.USER_DATA}),
        (
            "a pool",
            {"policies/a.yaml": policy("a", "{servers: [fra1-web01]}", "inherits: web")},
            {Risk.POOL_MOVE, Risk.USER_DATA},
        ),
        ("a node label", web("nodeLabels: {a: b}"), {Risk.POOL_MOVE}),
        ("the override", web("override: None"), {Risk.OVERRIDE_ONLY, Risk.HARMLESS}),
        ("the override and provision", {**change_server("provision: 2"), **web("override: None")}, {Risk.REINSTALL}),
        ("diskBoot", web("diskBoot: Hdd"), {Risk.OVERRIDE_ONLY}),
        ("override and an argument", web("override: None, kernelArguments: [a]"), {Risk.KERNEL_ARGUMENTS}),
        ("parked", change_server("provision: 1, lifecycle: Parked"), {Risk.WITHDRAWN, Risk.BOOT, Risk.HARMLESS}),
        ("removed", {PATH: None}, {Risk.WITHDRAWN}),
        ("provision lowered", change_server("provision: 0"), {Risk.BOOT, Risk.HARMLESS}),
        ("provision raised", change_server("provision: 2"), {Risk.REINSTALL}),
        ("a maintenance that writes no disk", window(boots="repair"), {Risk.MAINTENANCE}),
        (
            "a maintenance that writes disks",
            window(),
            {Risk.MAINTENANCE, Risk.REINSTALL, Risk.BECOMES_UNKNOWN},
        ),
        ("networkBoot to Never", web("", "Never"), {Risk.BOOT, Risk.HARMLESS}),
        (
            "restrict",
            {"fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: NotFound, serving: {restrict: true}")},
            {Risk.BOOT},
        ),
        ("the outputs", {"fleet.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe]")}, {Risk.OUTPUTS}),
        (
            "an image that is edited",
            {"images/1.yaml": image("flatcar-1", "userData: CloudInit", "kernel")},
            {Risk.IMAGE, Risk.MUTATED_IMAGE},
        ),
    ],
)
def test_a_change_has_these_risks(what: str, new: Files, expected: set[Risk]) -> None:
    name = "fra1-db01" if "of the profile" in what else NAME
    assert find_change(new, name=name).risks == expected


def signed(url: str = "assets:flatcar-1/any.sig") -> Files:
    """The image with a signature of each file for iPXE."""
    text = image("flatcar-1", "userData: CloudInit")
    return {"images/1.yaml": text.replace(f"{SHA}}}", f"{SHA}, loaderSignature: '{url}'}}")}


@for_each(
    ("what", "old", "new", "expected"),
    [
        ("a signature is added", FLEET, signed(), {Risk.BOOT, Risk.MUTATED_IMAGE}),
        ("a signature is removed", {**FLEET, **signed()}, FLEET, {Risk.BOOT, Risk.MUTATED_IMAGE}),
        ("another URL", {**FLEET, **signed()}, signed("assets:other.sig"), {Risk.BOOT, Risk.MUTATED_IMAGE}),
        ("an argument", {**FLEET, **signed()}, web("kernelArguments: [a]"), {Risk.KERNEL_ARGUMENTS}),
        ("an image", {**FLEET, **signed()}, stream("current: flatcar-2"), {Risk.IMAGE, Risk.USER_DATA}),
    ],
)
def test_a_change_of_a_boot_that_ipxe_verifies_has_these_risks(
    what: str, old: Files, new: Files, expected: set[Risk]
) -> None:
    assert find_change(new, old).risks == expected, what


@pytest.mark.parametrize(
    ("number", "often", "risk", "word"),
    [
        ("provision: 0", "Once", Risk.BECOMES_UNKNOWN, "record"),  # as `gitboot import` writes a server
        ("provision: 0", "OnImageChange", Risk.BECOMES_UNKNOWN, "record"),
        ("provision: 1", "Once", Risk.REINSTALL, "policy"),
        ("provision: 1", "OnImageChange", Risk.REINSTALL, "policy"),
    ],
)
def test_finding_r9_a_server_that_leaves_parked_is_reinstalled_only_by_its_number(
    number: str, often: str, risk: Risk, word: str
) -> None:
    parked = {**FLEET, **web("", often), **change_server(f"{number}, lifecycle: Parked")}
    changes = compare_files(change_server(number), parked)
    (change,) = changes.servers
    assert change.risks & {Risk.REINSTALL, Risk.BECOMES_UNKNOWN} == {risk}
    assert [each.why for each in change.reinstalls] == [word]
    assert changes.extent.reinstalls == 1, "the guard counts it until the instance has looked at its records"


@pytest.mark.parametrize("output", ["dhcp-dnsmasq", "dhcp-kea", "dhcp-proxy", "inventory"])
def test_finding_r9_an_output_without_boot_files_changes_no_server(output: str) -> None:
    old = {**FLEET, "fleet.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe]")}
    new = {**FLEET, "fleet.yaml": fleet(f"baseURL: 'http://boot.test', outputs: [ipxe, {output}]")}
    for before, after in ((old, new), (new, old)):
        changes = compare_files(after, before)
        assert (changes.servers, changes.extent.areas[0].changed) == ((), 0)
        assert not changes.is_empty


def test_new_servers_count_as_installs_if_they_want_a_first_boot() -> None:
    old = {path: text for path, text in FLEET.items() if path != PATH}
    assert find_change({PATH: FLEET[PATH]}, old).risks == {Risk.ADDED, Risk.INSTALL}
    assert find_change(change_server("provision: 0"), old).risks == {Risk.ADDED}


# Every part of a decision, with another value: each has to be seen by some class.
BOOT: dict[str, Any] = {
    "profile": "other",
    "image": "other",
    "version": "other",
    "method": Method.VIRTUAL_MEDIA,
    "http_boot": HttpBoot.UKI,
    "writes_disk": False,
    "config_from": None,
    "files": BootFiles(kernel=None, initrds=(), rootfs=None, uki=None, iso=None, loader=None),
    "kernel_arguments": ("other",),
    "user_data": None,
    "node_labels": {"other": "x"},
    "node_taints": (Taint(key="other", effect=TaintEffect.NO_SCHEDULE),),
    "entries": {"ipxe": "other"},
    "templates": {"other": Digest("0" * 64)},
    "boots": 2,
    "ignores_signatures": True,
}
POLICY: dict[str, Any] = {
    "policy": "other",
    "network_boot": NetworkBoot.ALWAYS,
    "override": OverrideMode.NONE,
    "disk_boot": DiskBoot.HDD,
    "power": PolicyPower.ON,
    "wait_for": PolicyWait.POWER_OFF,
    "attempts": 2,
}
MAINTENANCE: dict[str, Any] = {
    "start": at("01T00:00"),
    "end": at("30T00:00"),
    "priority": 9,
    "network_boot": NetworkBoot.ONCE,
    "override": OverrideMode.NONE,
    "run": 7,
    "power": "other",
    "max_unavailable": "9",
    "max_unavailable_per": "rack",
}
SERVER: dict[str, Any] = {
    "server": "other",
    "uuid": make_uuid("other"),
    "macs": (make_mac("other"),),
    "serial": "OTHER",
    "architecture": Architecture.AARCH64,
    "firmware": Firmware.BIOS,
    "lifecycle": Lifecycle.PARKED,
    "restrict": True,
    "base_url": "http://other.test",
    "provision": 0,
    "replaces": make_uuid("other"),
    "stopped": True,
}


def _decision() -> Decision:
    documents = [str(text) for path, text in {**FLEET, **window()}.items() if path.endswith(".yaml")]
    return decision(NAME, *documents, files={"userdata/web.j2": str(FLEET["userdata/web.j2"])})


def test_every_field_of_a_decision_belongs_to_a_risk() -> None:
    before = _decision()
    assert before.policy is not None
    assert before.policy.boot is not None
    (m,) = before.maintenances
    after = [replace(before, **{name: value}) for name, value in SERVER.items()]
    after += (replace(before, policy=replace(before.policy, **{name: value})) for name, value in POLICY.items())
    boots = [replace(before.policy.boot, **{name: value}) for name, value in BOOT.items()]
    after += (replace(before, policy=replace(before.policy, boot=boot)) for boot in [*boots, None])
    after += (replace(before, maintenances=(replace(m, **{name: value}),)) for name, value in MAINTENANCE.items())
    after += (replace(before, maintenances=(replace(m, boot=boot),)) for boot in (before.policy.boot, None))
    for each in after:
        assert each.digest != before.digest
        assert find_risks(before, each, ()), each
        assert find_risks(each, before, ()), each


def test_the_fields_above_are_all_fields_of_a_boot() -> None:
    assert set(BOOT) == {each.name for each in fields(Boot)}


# Reinstalls


@for_each(
    ("what", "old", "new", "expected"),
    [
        ("provision raised under Once", FLEET, change_server("provision: 2"), {ReinstallReason.PROVISION}),
        (
            "provision raised under OnImageChange",
            ON_IMAGE_CHANGE,
            change_server("provision: 2"),
            {ReinstallReason.PROVISION},
        ),
        ("provision raised under Always", ALWAYS, change_server("provision: 2"), set()),
        ("provision raised under Never", NEVER, change_server("provision: 2"), set()),
        ("provision lowered", FLEET, change_server("provision: 0"), set()),
        ("attempts raised", attempts(1), attempts(2), {ReinstallReason.ATTEMPTS}),
        ("attempts lowered", attempts(2), attempts(1), set()),
        ("attempts raised under Always", {**attempts(1), **web("", "Always")}, attempts(2), set()),
        ("boots of the image raised", FLEET, boots(2), {ReinstallReason.BOOTS}),
        ("boots of the image lowered", {**FLEET, **boots(2)}, boots(1), set()),
        ("another image under Once", FLEET, stream("current: flatcar-2"), set()),
        ("by the stream", ON_IMAGE_CHANGE, stream("current: flatcar-2"), {ReinstallReason.IMAGE}),
        (
            "by a rollout",
            ON_IMAGE_CHANGE,
            stream("current: flatcar-1, rollout: {image: flatcar-2}"),
            {ReinstallReason.IMAGE},
        ),
        (
            "by a hold",
            ON_IMAGE_CHANGE,
            stream("current: flatcar-1, holds: [{select: All, image: flatcar-2, reason: a}]"),
            {ReinstallReason.IMAGE},
        ),
        (
            "by a pin",
            ON_IMAGE_CHANGE,
            change_server("provision: 1, pin: {image: flatcar-2, reason: a}"),
            {ReinstallReason.IMAGE},
        ),
        (
            "by the profile",
            ON_IMAGE_CHANGE,
            {"profiles/web.yaml": profile("web", "flatcar-2")},
            {ReinstallReason.IMAGE},
        ),
        ("another image that writes no disk", ON_IMAGE_CHANGE, web("", "OnImageChange", "repair"), set()),
        ("another image under Always", ALWAYS, stream("current: flatcar-2"), {ReinstallReason.IMAGE}),
        ("networkBoot Once to Always", FLEET, web("", "Always"), {ReinstallReason.NETWORK_BOOT}),
        ("networkBoot Never to Once", NEVER, web(""), {ReinstallReason.NETWORK_BOOT}),
        ("networkBoot Once to Never", FLEET, web("", "Never"), set()),
        (
            "another policy",
            FLEET,
            {"policies/a.yaml": policy("a", "{servers: [fra1-web01]}", "inherits: web")},
            set(),
        ),
        (
            "a profile whose image writes disks",
            {**FLEET, **web("", "Once", "repair")},
            web(""),
            {ReinstallReason.WRITES_DISK},
        ),
        (
            "back from being parked",
            {**FLEET, **change_server("provision: 1, lifecycle: Parked")},
            change_server("provision: 1"),
            {ReinstallReason.POLICY},
        ),
        ("a maintenance", FLEET, window(), {ReinstallReason.MAINTENANCE}),
        ("a maintenance that writes no disk", FLEET, window(boots="repair"), set()),
        ("its image", {**FLEET, **window(boots="repair")}, window(), {ReinstallReason.MAINTENANCE}),
        (
            "its run",
            {**FLEET, **window(spec="networkBoot: Once")},
            window(spec="networkBoot: Once, run: 2"),
            {ReinstallReason.MAINTENANCE},
        ),
        ("its window", {**FLEET, **window()}, window("20T22:00 21T05:00"), {ReinstallReason.MAINTENANCE}),
        ("its reason", {**FLEET, **window()}, window(spec="reason: another"), set()),
        ("its end", {**FLEET, **window()}, {"m.yaml": None}, set()),
        (
            "what hid it",
            {**FLEET, **window(), "h.yaml": maintenance("h", "20T22:00 21T04:00", "priority: 1")},
            {"h.yaml": None},
            {ReinstallReason.UNCOVERED},
        ),
        ("what hid the policy", {**FLEET, "h.yaml": maintenance("h")}, {"h.yaml": None}, {ReinstallReason.UNCOVERED}),
        ("an override after None", {**FLEET, **web("override: None")}, web(""), {ReinstallReason.OVERRIDE}),
        ("an override after None under Never", {**NEVER, **web("override: None", "Never")}, web("", "Never"), set()),
        ("another override", ALWAYS, web("override: Once", "Always"), set()),
        ("its override after None", {**FLEET, **window(spec="override: None")}, window(), {ReinstallReason.OVERRIDE}),
        ("a kernel argument", FLEET, web("kernelArguments: [debug]"), set()),
    ],
)
def test_a_reinstall_is_a_disk_writing_boot_that_could_not_be_requested_before(
    what: str, old: Files, new: Files, expected: set[ReinstallReason]
) -> None:
    found = {change.name: change for change in compare_files(new, old).servers}
    asked = found[NAME].reinstalls if NAME in found else ()
    assert {each.why for each in asked} == expected
    assert (Risk.REINSTALL in found[NAME].risks if NAME in found else False) == bool(expected)


# Identities


def machine(name: str, uuid: str, mac: str = "", serial: str = "", bmc: str = "") -> Files:
    spec = f"uuid: {make_uuid(uuid)}, architecture: x86_64, firmware: UEFI, provision: 1, "
    spec += f"interfaces: [{{mac: '{mac or make_mac(uuid)}'}}]"
    spec += f", serial: {serial}" if serial else ""
    spec += f", bmc: {{address: 'https://{bmc}', credentials: a}}" if bmc else ""
    return {f"servers/{name}.yaml": document("Server", name, spec, "role: web")}


TAG = "4J8VM72"
MAC = "52:54:00:00:00:01"


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("the same UUID under another name", machine("a", "1"), {"servers/a.yaml": None, **machine("b", "1")}),
        ("another UUID under the same name", machine("a", "1"), machine("a", "2")),
        ("the same MAC", machine("a", "1", mac=MAC), {"servers/a.yaml": None, **machine("b", "2", mac=MAC)}),
        (
            "the same serial",
            machine("a", "1", serial="S1A"),
            {"servers/a.yaml": None, **machine("b", "2", serial="S1A")},
        ),
        ("the same BMC", machine("a", "1", bmc="x"), {"servers/a.yaml": None, **machine("b", "2", bmc="x")}),
    ],
)
def test_a_server_with_a_common_identity_is_the_same_server(what: str, old: Files, new: Files) -> None:
    changes = compare_files(new, {**FLEET, **old})
    (change,) = changes.servers
    assert (change.fate, Risk.IDENTITY in change.risks, change.reinstalls) == (ChangeKind.EDITED, True, ())
    assert (changes.before, changes.after, changes.unchanged) == (23, 23, 22)


def test_a_uuid_identifies_a_machine_better_than_a_name() -> None:
    old = {**FLEET, **machine("a", "1"), **machine("b", "2")}
    changes = compare_files({**machine("a", "2"), **machine("b", "1")}, old)
    assert [(change.old and change.old.server, change.name) for change in changes.servers] == [("b", "a"), ("a", "b")]


@pytest.mark.parametrize("taker", ["b", "new"])
@pytest.mark.parametrize(
    ("why", "mark", "other"),
    [
        (ReinstallReason.MAC, {"mac": MAC}, {"mac": "52:54:00:00:00:02"}),
        (ReinstallReason.SERIAL, {"serial": "4J8VM72"}, {}),
    ],
)
def test_a_machine_that_another_document_now_matches_may_be_reinstalled(
    taker: str, why: ReinstallReason, mark: dict[str, str], other: dict[str, str]
) -> None:
    old = {**FLEET, **machine("a", "1", **mark), **machine("b", "2")}
    left = machine("a", "1", **other)
    found = {
        change.name: change
        for change in compare_files({**left, **machine(taker, "2" if taker == "b" else "3", **mark)}, old).servers
    }
    assert [(each.why, each.old) for each in found[taker].reinstalls] == [(why, "a")]
    assert Risk.REINSTALL in found[taker].risks
    assert found["a"].reinstalls == ()
    never = {"policies/web.yaml": policy("web", "{matchLabels: {role: web}}", often="Never")}
    assert not any(
        change.reinstalls for change in compare_files({**left, **machine("b", "2", **mark)}, {**old, **never}).servers
    )


def test_without_a_common_identity_one_server_is_removed_and_one_is_added() -> None:
    changes = compare_files({"servers/a.yaml": None, **machine("b", "2")}, {**FLEET, **machine("a", "1")})
    assert [change.fate for change in changes.servers] == [ChangeKind.REMOVED, ChangeKind.ADDED]


def test_another_bmc_is_reported_even_if_no_decision_changes() -> None:
    changes = compare_files(machine("a", "1", bmc="y"), {**FLEET, **machine("a", "1", bmc="x")})
    assert changes.is_empty
    assert changes.moved_bmcs == ("a",)


# When


@for_each(
    ("what", "old", "new", "expected"),
    [
        ("an image under Once", FLEET, stream("current: flatcar-2"), {EffectTime.NEXT_INSTALL}),
        ("an image under OnImageChange", ON_IMAGE_CHANGE, stream("current: flatcar-2"), {EffectTime.NEXT_BOOT}),
        ("an image under Always", ALWAYS, stream("current: flatcar-2"), {EffectTime.NEXT_BOOT}),
        ("an image under Never", NEVER, stream("current: flatcar-2"), {EffectTime.DORMANT}),
        ("an override", FLEET, web("override: None"), {EffectTime.NOW}),
        ("parked", FLEET, change_server("provision: 1, lifecycle: Parked"), {EffectTime.NOW}),
        ("removed", FLEET, {PATH: None}, {EffectTime.NOW}),
        ("provision raised", FLEET, change_server("provision: 2"), {EffectTime.NEXT_BOOT}),
        (
            "a pool alone",
            FLEET,
            {"a.yaml": policy("a", "{servers: [fra1-web01]}", "inherits: web")},
            {EffectTime.NEXT_INSTALL},
        ),
        ("networkBoot", FLEET, web("", "Never"), {EffectTime.NEXT_BOOT}),
        ("a maintenance", FLEET, window(), {EffectTime.WINDOW}),
        ("a maintenance that goes", {**FLEET, **window()}, {"m.yaml": None}, {EffectTime.WINDOW}),
        ("the outputs", FLEET, {"fleet.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe]")}, {EffectTime.NOW}),
    ],
)
def test_a_change_takes_effect_at_its_time(what: str, old: Files, new: Files, expected: set[EffectTime]) -> None:
    assert {effect.when for effect in find_change(new, old).effects} == expected


def test_a_window_is_reported_with_its_new_times() -> None:
    (effect,) = find_change(window("20T22:00 21T05:00"), {**FLEET, **window()}).effects
    assert effect == Effect(EffectTime.WINDOW, at("20T22:00"), at("21T05:00"), "m")


# The digest


def test_the_digest_depends_on_decisions_and_not_on_their_spelling() -> None:
    one_way = compare_files(change_server("provision: 1, kernelArguments: [debug]"))
    with_notes = {PATH: f"# Looks at CHG-7.\n{change_server('provision: 1, kernelArguments: [debug]')[PATH]}"}
    assert compare_files(with_notes).digest == one_way.digest
    assert compare_files(with_notes, {**FLEET, "images/3.yaml": image("unused-3")}).digest == one_way.digest


@for_each(
    ("what", "new"),
    [
        ("another server", {"servers/fra1-web02.yaml": server("fra1-web02", "site: fra1, role: web", "provision: 2")}),
        ("more of the same server", change_server("provision: 3")),
        ("a server less", {"servers/fra1-web02.yaml": None}),
        ("a server more", {"servers/new.yaml": server("new", "role: web")}),
        ("unknown servers", {"fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: NotFound")}),
        ("outputs", {"fleet.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe]")}),
        ("a BMC", change_server("provision: 2, bmc: {address: 'https://bmc2', credentials: a}")),
        ("proof", {"fleet.yaml": fleet("baseURL: 'http://boot.test', provisioning: {monitors: [10.0.0.0/8]}")}),
    ],
)
def test_any_further_change_gives_another_digest(what: str, new: Files) -> None:
    first = change_server("provision: 2")
    assert compare_files({**first, **new}).digest != compare_files(first).digest


def test_the_bmc_of_a_new_server_is_part_of_the_digest() -> None:
    find_change, other = (compare_files(machine("new", "1", bmc=bmc)) for bmc in ("x", "y"))
    assert [change.pair for change in find_change.servers] == [change.pair for change in other.servers]
    assert find_change.digest != other.digest
    assert (find_change.moved_bmcs, other.moved_bmcs) == ((), ())


# The DHCP configuration is in no decision

DHCP = "baseURL: 'http://boot.test', outputs: [ipxe, dhcp-kea]"


def make_addressed_server(address: str, mac: str = MAC) -> Files:
    nic = f"uuid: {make_uuid('1')}, architecture: x86_64, firmware: UEFI, provision: 1, interfaces: "
    nic += f"[{{mac: '{mac}', addresses: [{address}]}}]"
    return {"servers/a.yaml": document("Server", "a", nic, "role: web")}


def test_a_change_of_evidence_or_ledger_is_not_mere_presentation() -> None:
    for spec in ("monitors: [10.0.0.0/8]", f"ledger: {make_uuid('other')}"):
        found = compare_files({"fleet.yaml": fleet(f"baseURL: 'http://boot.test', provisioning: {{{spec}}}")})
        assert (found.is_empty, found.servers) == (False, ())


def test_an_address_counts_if_dhcp_is_an_output() -> None:
    old = {**FLEET, **make_addressed_server("10.0.0.1/24")}
    assert compare_files(make_addressed_server("10.0.0.2/24"), old).is_empty
    found = compare_files(make_addressed_server("10.0.0.2/24"), {**old, "fleet.yaml": fleet(DHCP)})
    assert (found.is_empty, found.servers) == (False, ())
    assert found.shared is not None
    assert list(found.shared.new["hosts"]) == ["a"]


def test_a_site_counts_if_dhcp_is_an_output() -> None:
    site = "sites: [{{name: {name}, select: {{matchLabels: {{site: fra1}}}}, baseURL: 'http://fra1.test'}}]"
    find_change, other = ({"fleet.yaml": fleet(f"{DHCP}, {site.format(name=name)}")} for name in ("x", "y"))
    assert not compare_files(other, {**FLEET, **find_change}).is_empty


@pytest.mark.parametrize(
    ("ledgers", "found"),
    [
        ((1, 2), (UnknownReason(UnknownCause.MOVED, "fra1"),)),
        ((1, 1), ()),  # one instance acts for both
        ((None, None), ()),
        ((None, 2), ()),  # it is unknown which instance acted for the first
    ],
)
def test_a_server_that_moves_to_a_site_with_its_own_instance_is_unverified_there(
    ledgers: tuple[int | None, int | None], found: tuple[UnknownReason, ...]
) -> None:
    named = [f", ledger: {make_uuid(str(each))}" if each is not None else "" for each in ledgers]
    sites = ", ".join(
        f"{{name: {name}, baseURL: 'http://{name}.test', select: {{matchLabels: {{site: {name}}}}}{ledger}}}"
        for name, ledger in zip(("ams2", "fra1"), named, strict=True)
    )
    old, new = (
        {
            **{path: text for path, text in FLEET.items() if "servers" not in path},
            "fleet.yaml": fleet(f"baseURL: 'http://boot.test', sites: [{sites}]"),
            "servers/a.yaml": server("a", f"role: web, site: {site}", "provision: 1"),
        }
        for site in ("ams2", "fra1")
    )
    (change,) = compare_files(new, old).servers
    assert change.unknown == found
    assert (Risk.BECOMES_UNKNOWN in change.risks) == bool(found)


def test_addresses_of_other_servers_are_not_part_of_the_digest() -> None:
    """A rebase onto another server's document keeps an acknowledgement."""
    old = {**FLEET, "fleet.yaml": fleet(DHCP), **make_addressed_server("10.0.0.1/24")}
    rebased = {**old, **machine("new", "2")}
    assert (
        compare_files(make_addressed_server("10.0.0.2/24"), old).digest
        == compare_files(make_addressed_server("10.0.0.2/24"), rebased).digest
    )


def test_an_edited_image_counts_even_if_no_decision_changes() -> None:
    def edited(spec: str) -> Files:
        return {"images/1.yaml": image("flatcar-1", f"userData: {spec}")}

    old = {**FLEET, "images/1.yaml": image("flatcar-1", "userData: Ignition/3.4")}
    old = {**old, "profiles/web.yaml": profile("web", "stream: stable")}
    find_change, other = compare_files(edited("Ignition/3.5"), old), compare_files(edited("Ignition/3.6"), old)
    assert find_change.is_empty
    assert [found.mutated for found in find_change.images] == [True]
    assert len({find_change.digest, other.digest, compare_files({}, old).digest}) == 3


def test_the_reverse_change_has_another_digest() -> None:
    there, back = (
        compare_files(change_server("provision: 2")),
        compare_files(change_server("provision: 1"), {**FLEET, **change_server("provision: 2")}),
    )
    assert there.digest != back.digest


def test_a_commit_without_a_predecessor_is_all_new() -> None:
    repository = load(snapshot(files={path: str(text) for path, text in FLEET.items()}))
    changes = compare_decisions(None, decide(repository), None, repository)
    assert changes.first
    assert {change.fate for change in changes.servers} == {ChangeKind.ADDED}
    assert len(changes.servers) == changes.after == 22
