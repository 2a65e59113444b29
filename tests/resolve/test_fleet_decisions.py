"""The boots of servers: rules R1 to R10, a table each."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import Evaluator
from gitboot.fleet.validation import load, load_revision
from gitboot.jsonio import to_json_value
from gitboot.problems import Code, Problem, Severity
from gitboot.resolve.fleet_decisions import decide, decide_all, decide_revision
from gitboot.resolve.plan_at_time import find_next_transition, make_plan
from gitboot.resolve.policy_selection import is_in_rollout
from gitboot.resolve.provisioning_record import InstallAttempt, Record, Run, StepEvidence
from gitboot.resolve.server_decision import Boot
from gitboot.resolve.server_plan import Cause, Phase
from tests.helpers.cases import for_each, require_value
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    decided,
    decision,
    document,
    fleet,
    image,
    maintenance,
    make_uuid,
    planned,
    policy,
    profile,
    repository,
    server,
    snapshot,
)
from tests.helpers.http_peers import make_authority

NOON = at("20T12:00")
INSTALLED = Record(provision=1, image="flatcar-1", pool="web")
PENDING = Record()
ONCE = "Once"
CHANGE = "OnImageChange"
WINDOW = maintenance("repair", "20T22:00 21T04:00")


def problems(*documents: str, files: dict[str, str] | None = None) -> tuple[Problem, ...]:
    try:
        return decided(*documents, files=files).warnings
    except InvalidRepository as error:
        return error.problems


def list_codes(*documents: str, files: dict[str, str] | None = None) -> list[str]:
    return [str(problem.code) for problem in problems(*documents, files=files)]


def boots(instant: datetime, *documents: str, record: Record | None = None) -> str:
    found = planned(instant, *documents, record=record)
    if found is None:
        return "no plan"
    return found.boot.image if found.boot else "disk"


def decide_boot(*documents: str, files: dict[str, str] | None = None) -> Boot:
    (boot,) = decision("web01", *documents, files=files).boots
    return boot


def seed(web01: str = "", spec: str = "", *, often: str = "Always") -> tuple[str, ...]:
    return (SEED[0], server("web01", "role: web", web01), *SEED[2:-1], policy("web", spec=spec, often=often))


def make_boot_fleet(image_spec: str, profile_spec: str = "", policy_spec: str = "", **more: str) -> tuple[str, ...]:
    return (
        fleet(),
        server("web01", firmware=more.get("firmware", "UEFI")),
        image("a-1", image_spec, more.get("artifacts", "kernel, initrd")),
        profile("web", "a-1", profile_spec, method=more.get("method", "Pxe")),
        policy("web", "All", policy_spec),
    )


# R1 to R4


OPTIONAL = fleet("baseURL: 'http://boot.test', requirePolicy: false")
BIOS = (image("bios-2", "writesDisk: false"), profile("bios", "bios-2"))
LOW, HIGH = maintenance("a", spec="priority: 1"), maintenance("b", spec="priority: 2", boots="bios")
REPAIR = maintenance("repair")
PIN = "pin: {image: flatcar-9, reason: pinned}"


@for_each(
    ("case", "documents", "expected"),
    [
        ("R1: a parked server has no plan", seed("lifecycle: Parked"), "no plan"),
        ("R1: a retired server has no plan", seed("lifecycle: Retired"), "no plan"),
        ("R1: and no maintenance", (*seed("lifecycle: Parked"), REPAIR), "no plan"),
        ("R2: a window may have no end at all", (*SEED, REPAIR), "memtest-7"),
        ("R2: a window may have a start alone", (*SEED, maintenance("repair", "19T00:00 -")), "memtest-7"),
        ("R2: a window may have an end alone", (*SEED, maintenance("repair", "- 21T00:00")), "memtest-7"),
        ("R2: it has not opened", (*SEED, maintenance("repair", "21T00:00 -")), "flatcar-1"),
        ("R2: it is over", (*SEED, maintenance("repair", "- 20T00:00")), "flatcar-1"),
        (
            "R2: a maintenance beats a policy of any priority",
            (*seed(spec="priority: 999999"), maintenance("repair", spec="priority: -5")),
            "memtest-7",
        ),
        ("R2: of several the highest priority wins", (*SEED, *BIOS, LOW, HIGH), "bios-2"),
        ("R2: in any order", (*SEED, *BIOS, HIGH, LOW), "bios-2"),
        ("R3: without a required policy there is no plan", (OPTIONAL, *SEED[1:-1]), "no plan"),
        ("R3: but a maintenance", (OPTIONAL, *SEED[1:-1], REPAIR), "memtest-7"),
        ("R3: until it is over", (OPTIONAL, *SEED[1:-1], WINDOW), "no plan"),
        ("R4: a pin beats the profile's own image", (*seed(PIN), image("flatcar-9")), "flatcar-9"),
    ],
)
def test_each_server_boots_what_the_rules_select(case: str, documents: tuple[str, ...], expected: str) -> None:
    assert boots(NOON, *documents) == expected, case


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        ("20T21:59:59", "flatcar-1"),
        ("20T22:00:00", "memtest-7"),  # from the very instant that it opens
        ("21T03:59:59", "memtest-7"),
        ("21T04:00:00", "flatcar-1"),  # its end is exclusive, with the document still in Git
    ],
)
def test_r2_a_window_is_half_open(instant: str, expected: str) -> None:
    assert boots(at(instant), *SEED, WINDOW) == expected


@for_each(
    ("first", "second", "overlap", "is_over_at"),
    [
        ("20T22:00 21T04:00", "21T03:00 22T00:00", "from 2026-11-21T03:00:00Z until 2026-11-21T04:00:00Z", "21T04:00"),
        ("20T22:00 21T04:00", "20T10:00 21T05:00", "from 2026-11-20T22:00:00Z until 2026-11-21T04:00:00Z", "21T04:00"),
        ("- 21T04:00", "- 21T05:00", "until 2026-11-21T04:00:00Z", "21T04:00"),
        ("20T22:00 -", "21T03:00 -", "from 2026-11-21T03:00:00Z", None),
        ("", "", "at all times", None),
    ],
)
def test_finding_r11_an_overlap_is_named_and_counts_until_it_is_over(
    first: str, second: str, overlap: str, is_over_at: str | None
) -> None:
    files = {"windows/b.yaml": maintenance("b", second), "windows/a.yaml": maintenance("a", first)}
    found = repository(*SEED, files=files)
    ahead, last = at("2020-01-01T00:00:00"), at("2090-01-01T00:00:00")
    if is_over_at is not None:
        assert decide(found, at(is_over_at)).warnings == decide(found, last).warnings == ()
        last = at(is_over_at) - timedelta(seconds=1)
    for instant in (ahead, last):
        with pytest.raises(InvalidRepository) as raised:
            decide(found, instant)
        (problem,) = raised.value.problems
        assert (problem.code, problem.path) == ("GB2012", "windows/b.yaml")
        message = f"have the same priority and overlap {overlap}. Both apply to web01"
        assert problem.message == f"Maintenance/a (windows/a.yaml) and Maintenance/b {message}"


def test_finding_r11_an_overlap_is_reported_beside_other_problems() -> None:
    windows = (maintenance("a", "20T22:00 21T04:00"), maintenance("b", "21T03:00 22T00:00"))
    for other, code in ((policy("other", "All"), "GB2011"), ("kind: Nothing\n", "GB1021")):
        with pytest.raises(InvalidRepository) as raised:
            decide_revision(load_revision(snapshot(*SEED, *windows, other)))
        for instant, expected in (("21T03:59", {code, "GB2012"}), ("21T04:00", {code})):
            assert {each.code for each in raised.value.at(at(instant)).problems} == expected


def test_r2_no_policy_field_applies_during_a_maintenance() -> None:
    own = seed(
        "vars: {console: ttyS1}, kernelArguments: [from-server]",
        "kernelArguments: [from-policy], vars: {pool: web}, nodeLabels: {a: b}",
    )
    arguments = "kernelArguments: ['c={{ vars.console }}', 'p={{ vars.pool is defined }}']"
    found = planned(NOON, *own[:5], profile("repair", "memtest-7", arguments), own[6], REPAIR)
    assert found is not None and found.boot is not None
    assert (found.boot.kernel_arguments, found.boot.node_labels) == (("c=ttyS1", "p=false"), {})


POOLS = {
    "low": policy("low", "All", "priority: 1"),
    "high": policy("high", "All", "priority: 2"),
    "tie": policy("tie", "All", "priority: 2"),
    "child": policy("child", "All", "inherits: high"),
    "grandchild": policy("grandchild", "All", "inherits: child"),
    "none": policy("none", "None", "priority: 9"),
    "others": policy("others", "{matchLabels: {role: db}}", "priority: 9"),
}


@for_each(
    ("web01", "pools", "expected"),
    [
        ("", "low high", "high"),
        ("", "high low", "high"),
        ("", "high child", "child"),  # a custom pool beats its parent with the parent's own priority
        ("", "high child grandchild", "grandchild"),
        ("", "low others none", "low"),
        ("", "high tie", ["GB2011"]),
        ("", "high child tie", ["GB2011"]),  # an ancestor that is dropped does not settle a tie
        ("", "none", ["GB2010"]),
        ("", "", ["GB2010"]),
        ("policy: none", "none high tie", "none"),  # a server may name its policy
    ],
)
def test_r3_a_server_has_the_policy_that_the_rules_select(web01: str, pools: str, expected: str | list[str]) -> None:
    documents = (*seed(web01)[:-1], *(POOLS[name] for name in pools.split()))
    if isinstance(expected, list):
        assert list_codes(*documents) == expected
    else:
        found = decision("web01", *documents).policy
        assert found is not None and found.policy == expected


def test_a_child_inherits_the_fields_of_its_parent_merges_maps_and_appends_lists() -> None:
    parent = policy(
        "parent",
        "None",
        "priority: 7, kernelArguments: [a], nodeLabels: {l: parent, p: x}, vars: {v: parent, w: x}, "
        "nodeTaints: [{key: t, effect: NoSchedule}]",
    )
    child = policy(
        "child",
        "All",
        "inherits: parent, kernelArguments: [b], nodeLabels: {l: child}, vars: {v: child}, "
        "nodeTaints: [{key: u, effect: NoExecute}]",
    )
    arguments = profile("web", "flatcar-1", "kernelArguments: ['{{ vars.v }}{{ vars.w }}']")
    boot = decide_boot(*SEED[:4], arguments, SEED[5], parent, child)
    assert (boot.kernel_arguments, boot.node_labels) == (("a", "b", "childx"), {"l": "child", "p": "x"})
    assert [str(taint) for taint in boot.node_taints] == ["t=:NoSchedule", "u=:NoExecute"]


STREAM = "current: flatcar-1, rollout: {{image: flatcar-2, {rollout}}}"
HOLD = "holds: [{select: {matchLabels: {role: web}}, image: flatcar-0, reason: held}]"


@for_each(
    ("case", "stream", "server_spec", "expected"),
    [
        ("the stream's current image", "current: flatcar-1", "", "flatcar-1"),
        ("the rollout, with all", STREAM.format(rollout="percent: 100"), "", "flatcar-2"),
        ("the rollout, with none", STREAM.format(rollout="percent: 0"), "", "flatcar-1"),
        ("the rollout, elsewhere", STREAM.format(rollout="selector: {matchLabels: {a: b}}"), "", "flatcar-1"),
        ("a hold before the rollout", f"{STREAM.format(rollout='percent: 100')}, {HOLD}", "", "flatcar-0"),
        ("a pin before all", f"{STREAM.format(rollout='percent: 100')}, {HOLD}", PIN, "flatcar-9"),
    ],
)
def test_r4_a_policy_boots_the_image_that_the_rules_select(
    case: str, stream: str, server_spec: str, expected: str
) -> None:
    documents = (
        fleet(),
        server("web01", "role: web", server_spec),
        *(image(f"flatcar-{number}") for number in (0, 1, 2, 9)),
        document("ImageStream", "flatcar", stream),
        profile("web", "stream: flatcar"),
        policy("web"),
    )
    assert boots(NOON, *documents) == expected, case
    # Under a maintenance only the profile's image or the stream's current one count.
    assert boots(NOON, *documents, maintenance("repair", "- 30T00:00", boots="web")) == "flatcar-1", case


def test_r4_a_higher_percentage_only_adds_servers() -> None:
    uuids = [make_uuid(f"server{number}") for number in range(500)]
    reached: set[str] = set()
    for percent in range(101):
        now = {uuid for uuid in uuids if is_in_rollout("flatcar", uuid, percent)}  # type: ignore[arg-type]
        assert reached <= now
        reached = now
    assert reached == set(uuids)


def test_r4_a_percentage_selects_servers_by_the_published_hash() -> None:
    # sha256("flatcar-stable\0" + uuid) begins 0x8a2f9c…: worked out with sha256sum, not with gitboot.
    uuid = "4c4c4544-0034-4a10-8056-b9c04f4d3732"
    place = int.from_bytes(hashlib.sha256(b"flatcar-stable\0" + uuid.encode()).digest()[:8]) / 2**64 * 100
    assert not is_in_rollout("flatcar-stable", uuid, int(place))  # type: ignore[arg-type]
    assert is_in_rollout("flatcar-stable", uuid, int(place) + 1)  # type: ignore[arg-type]


# R5


@for_each(
    ("often", "provision", "record", "phase", "cause"),
    [
        ("Always", 0, None, Phase.NETWORK, Cause.ALWAYS),  # unknown stops no diskless machine
        ("Never", 1, PENDING, Phase.DISK, Cause.NEVER),
        (ONCE, 1, PENDING, Phase.NETWORK, Cause.PENDING),
        (ONCE, 1, INSTALLED, Phase.DISK, Cause.PROVISIONED),
        (ONCE, 2, INSTALLED, Phase.NETWORK, Cause.PENDING),
        (ONCE, 0, INSTALLED, Phase.DISK, Cause.PROVISIONED),  # lowering it never installs
        (ONCE, 1, None, Phase.DISK, Cause.UNKNOWN),  # unknown never installs
        (CHANGE, 1, INSTALLED, Phase.DISK, Cause.PROVISIONED),
        (CHANGE, 1, Record(provision=1, image="flatcar-0"), Phase.NETWORK, Cause.PENDING),
        (CHANGE, 1, None, Phase.DISK, Cause.UNKNOWN),
        (ONCE, 1, Record(provision=1, image="flatcar-0"), Phase.DISK, Cause.PROVISIONED),
    ],
)
def test_r5_a_policy_is_in_the_phase_that_the_rules_select(
    often: str, provision: int, record: Record | None, phase: Phase, cause: Cause
) -> None:
    found = planned(NOON, *seed(f"provision: {provision}", often=often), record=record)
    assert found is not None and (found.phase, found.cause) == (phase, cause)
    assert (found.boot is not None) == (phase is Phase.NETWORK)


def test_r5_a_profile_of_method_disk_boots_the_disk() -> None:
    found = planned(NOON, *SEED[:4], profile("web", "", method="Disk"), SEED[5], policy("web"))
    assert found is not None and (found.phase, found.cause) == (Phase.DISK, Cause.DISK)


MADE = Record(provision=1, image="flatcar-1", runs={"repair": Run(1, at("20T23:00"))})


@for_each(
    ("instant", "run", "record", "expected"),
    [
        ("20T22:30", 1, INSTALLED, "memtest-7"),
        ("20T23:00:30", 1, MADE, "memtest-7"),  # a loader's own retry still finds the boot
        ("20T23:01", 1, MADE, "disk"),  # to the end of the window
        ("21T03:59", 1, MADE, "disk"),
        ("21T04:00", 1, MADE, "flatcar-1"),
        ("20T23:30", 2, MADE, "memtest-7"),  # run 2 is another boot
        ("20T22:30", 1, None, "disk"),  # unknown never installs
    ],
)
def test_r5_once_in_a_maintenance_means_one_boot(instant: str, run: int, record: Record | None, expected: str) -> None:
    once = maintenance("repair", "20T22:00 21T04:00", f"networkBoot: Once, run: {run}")
    assert boots(at(instant), *SEED, once, record=record) == expected


FIRST, LAST = (
    StepEvidence(at(f"20T{time}"), "boot/v1/boot/web01/boot.ipxe", "10.0.0.7") for time in ("11:00", "12:00")
)
FETCHED = Record(
    provision=1,
    image="flatcar-1",
    evidence="Fetched",
    provisioned_at=LAST.at,
    grace_until=LAST.at + timedelta(seconds=60),
)


def make_twice_served_record(key: str) -> Record:
    attempt = InstallAttempt(key=key, number=1, boots=(FIRST, LAST), started=FIRST, started_boot=1)
    return replace(FETCHED, attempts=(attempt,))


CONSUMED = Record(consumed_at=NOON, consumed_key="provision/1")
AGAIN = Record(provision=1, image="flatcar-0", provisioned_at=NOON)


@for_each(
    ("case", "often", "provision", "record", "after_s", "cause", "key", "is_set"),
    [
        ("the used boot stays for the grace", ONCE, 1, FETCHED, 0, Cause.PENDING, "provision/1", False),
        ("to its end", ONCE, 1, FETCHED, 59, Cause.PENDING, "provision/1", False),
        ("and no longer", ONCE, 1, FETCHED, 60, Cause.PROVISIONED, None, False),
        # An endpoint withholds this boot, and no boot with another key, after the machine has fetched its data.
        (
            "by the key of the used boot",
            *(ONCE, 1, make_twice_served_record("provision/1"), 5, Cause.PENDING, "provision/1/boot/2", False),
        ),
        (
            "under OnImageChange as well",
            *(
                CHANGE,
                1,
                make_twice_served_record("provision/1/flatcar-1"),
                5,
                Cause.PENDING,
                "provision/1/flatcar-1/boot/2",
                False,
            ),
        ),
        ("consumed without evidence", ONCE, 1, CONSUMED, 29 * 60, Cause.PENDING, "provision/1", False),
        ("it changes to the disk", ONCE, 1, CONSUMED, 30 * 60, Cause.CONSUMED, "provision/1", False),
        ("and holds back no other number", ONCE, 2, CONSUMED, 3600, Cause.PENDING, "provision/2", True),
        ("an image is a key of its own", CHANGE, 1, PENDING, 0, Cause.PENDING, "provision/1/flatcar-1", True),
        (
            "an image that is wanted again has another key",
            *(CHANGE, 1, AGAIN, 0, Cause.PENDING, "provision/1/flatcar-1/after/2026-11-20T12:00:00Z", True),
        ),
    ],
)
def test_r5_a_used_one_time_boot_is_offered_again_only_in_its_minute_of_grace(
    case: str, often: str, provision: int, record: Record, after_s: int, cause: Cause, key: str | None, is_set: bool
) -> None:
    found = planned(NOON + timedelta(seconds=after_s), *seed(f"provision: {provision}", often=often), record=record)
    assert found is not None, case
    assert (found.cause, found.key, found.override is not None) == (cause, key, is_set), case
    assert (found.boot is not None) == (cause is Cause.PENDING), case
    assert found.override is None or found.override.reason == key, case


# R6 and R7

IGNITION = '{"ignition": {"version": "3.4.0"}}'
UKI = "httpBoot: uki"


@for_each(
    ("case", "artifacts", "method", "profile_spec", "firmware", "image_spec", "expected"),
    [
        ("a kernel by PXE", "kernel", "Pxe", "", "BIOS", "", []),
        ("a uki by PXE under UEFI", "uki", "Pxe", "", "UEFI", "", []),
        ("a uki by PXE under BIOS", "uki", "Pxe", "", "BIOS", "", ["GB4002"]),
        ("an iso by PXE", "iso", "Pxe", "", "UEFI", "", ["GB4001"]),
        ("a uki over HTTP", "uki", "UefiHttp", UKI, "UEFI", "", []),
        ("a uki over HTTP under BIOS", "uki", "UefiHttp", UKI, "BIOS", "", ["GB4002"]),
        ("no uki over HTTP", "kernel", "UefiHttp", UKI, "UEFI", "", ["GB4001"]),
        ("an iso over HTTP", "iso", "UefiHttp", "httpBoot: iso", "UEFI", "", []),
        ("a loader over HTTP", "kernel, loader", "UefiHttp", "httpBoot: loader", "UEFI", "", []),
        ("no loader over HTTP", "kernel", "UefiHttp", "httpBoot: loader", "UEFI", "", ["GB4001"]),
        ("arguments to a uki", "uki", "UefiHttp", f"{UKI}, kernelArguments: [a]", "UEFI", "", ["GB4003"]),
        ("an image's own arguments, in its uki", "uki", "UefiHttp", UKI, "UEFI", "kernelArguments: [a]", []),
        ("user data to a uki", "uki", "UefiHttp", f"{UKI}, @", "UEFI", "userData: Ignition/3.4", ["GB4003"]),
        (
            "user data to a uki that requests it",
            *("uki", "UefiHttp", f"{UKI}, @, kernelArguments: [a]", "UEFI"),
            *("userData: Ignition/3.4, configFrom: SystemUUID", []),
        ),
        (
            "arguments to a uki that requests, and no user data",
            *("uki", "UefiHttp", f"{UKI}, kernelArguments: [a]", "UEFI", "configFrom: SystemUUID", ["GB4003"]),
        ),
        (
            "user data that the image understands",
            *("kernel", "Pxe", "@", "UEFI", "userData: Ignition/3.5, kernelArguments: [ignition.firstboot]", []),
        ),
        ("user data that is too new", "kernel", "Pxe", "@", "UEFI", "userData: Ignition/3.3", ["GB4004"]),
        ("user data of another kind", "kernel", "Pxe", "@", "UEFI", "userData: CloudInit", ["GB4004"]),
        ("user data for an image without", "kernel", "Pxe", "@", "UEFI", "", ["GB4004"]),
        (
            "user data without any way to it",
            *("kernel", "Pxe", "@", "UEFI", "userData: Ignition/3.4, configFrom: None", ["GB4003"]),
        ),
    ],
)
def test_r6_image_and_method_must_match(
    case: str, artifacts: str, method: str, profile_spec: str, firmware: str, image_spec: str, expected: list[str]
) -> None:
    spec = profile_spec.replace("@", "userData: {format: Ignition/3.4, template: web.ign}")
    documents = make_boot_fleet(image_spec, spec, artifacts=artifacts, method=method, firmware=firmware)
    assert list_codes(*documents, files={"web.ign": IGNITION} if "@" in profile_spec else None) == expected, case


@for_each(
    ("format", "beside", "expected"),
    [
        ("Ignition/3.4", {"t": IGNITION}, ["GB4012"]),
        ("Ignition/3.4", {"t": "{"}, ["GB4005"]),
        ("Ignition/3.4", {"t": "{}"}, ["GB4005"]),
        ("Ignition/3.4", {"t": '{"ignition": {"version": "2.3.0"}}'}, ["GB4005"]),
        ("Ignition/3.4", {"t": '{"ignition": {"version": "3.3.0"}}'}, ["GB4005"]),
        ("CloudInit", {"t": "#cloud-config\n"}, []),
        ("CloudInit", {"t": "cloud-config\n"}, ["GB4005"]),
        ("Autoinstall", {"t": "#cloud-config\nautoinstall:\n  version: 1\n"}, []),
        ("Autoinstall", {"t": "#cloud-config\n"}, ["GB4005"]),
        ("Kickstart", {"t": "lang en_US\n%post\necho $x\n%end\n"}, []),
        ("Kickstart", {"t": "%post\n"}, ["GB4005"]),
        ("Kickstart", {"t": "{}\n"}, ["GB4005"]),
        ("Preseed", {"t": "# c\nd-i clock-setup/utc boolean \\\n true\n"}, []),
        ("Preseed", {"t": "d-i x\n"}, ["GB4005"]),
        ("Talos", {"t": "version: v1alpha1\nmachine:\n  type: worker\n"}, []),
        ("Talos", {"t": "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n"}, []),
        ("Talos", {"t": "#cloud-config\nversion: v1alpha1\n"}, ["GB4008"]),
        ("Talos", {"t": "version: v1alpha1\nmachine:\n  install: {}\n"}, ["GB4008"]),
        ("AutoYaST", {"t": '<?xml version="1.0"?>\n<profile xmlns="http://www.suse.com/1.0/yast2ns"/>'}, []),
        ("AutoYaST", {"t": '<!DOCTYPE profile [<!ENTITY a "b">]>\n<profile/>'}, ["GB4009"]),
        ("AutoYaST", {"t": "<profile/>"}, ["GB4009"]),
        ("AutoYaST", {"t": '<profile xmlns="http://www.suse.com/1.0/yast2ns">'}, ["GB4009"]),
        ("AutoYaST", {"t": ""}, ["GB4009"]),
        ("Combustion", {"t": "#!/bin/bash\n# combustion: network\n"}, []),
        ("Combustion", {"t": "echo\n"}, ["GB4010"]),
        ("Generic", {"t": "anything at all\n"}, []),
        # The other files beside user data are NoCloud's.
        ("CloudInit", {"t": "#cloud-config\n", "networkConfig": "version: 2\nethernets: {}\n"}, []),
        ("CloudInit", {"t": "#cloud-config\n", "networkConfig": "network:\n  version: 1\n  config: []\n"}, []),
        ("CloudInit", {"t": "#cloud-config\n", "networkConfig": "ethernets: {}\n"}, ["GB4011"]),
        ("CloudInit", {"t": "#cloud-config\n", "vendorData": "#cloud-config\n"}, []),
        ("CloudInit", {"t": "#cloud-config\n", "vendorData": "x: y\n"}, ["GB4011"]),
        ("Preseed", {"t": "d-i a string b\n", "vendorData": "#cloud-config\n"}, ["GB4011"]),
    ],
)
def test_r6_rendered_user_data_must_be_valid_for_its_format(
    format: str, beside: dict[str, str], expected: list[str]
) -> None:
    more = "".join(f", {name}: {name}" for name in beside if name != "t")
    documents = make_boot_fleet(f"userData: {format}", f"userData: {{format: {format}, template: t{more}}}")
    assert list_codes(*documents, files=beside) == expected


@for_each(
    ("format", "text", "arguments"),
    [
        (
            "Talos",
            "version: v1alpha1\n",
            ("talos.platform=metal", "talos.config=http://boot.test/o/{digest}/talos.yaml"),
        ),
        (
            "AutoYaST",
            '<profile xmlns="http://www.suse.com/1.0/yast2ns"/>',
            ("autoyast=http://boot.test/o/{digest}/autoinst.xml",),
        ),
        ("Combustion", "#!/bin/sh\n", ("combustion.url=http://boot.test/o/{digest}/script",)),
        ("Generic", "x", ()),
    ],
)
def test_r7_the_arguments_name_the_user_data_in_each_format(format: str, text: str, arguments: tuple[str, ...]) -> None:
    spec = f"userData: {{format: {format}, template: t}}"
    boot = decide_boot(*make_boot_fleet(f"userData: {format}, writesDisk: false", spec), files={"t": text})
    assert boot.user_data is not None
    assert boot.kernel_arguments == tuple(each.format(digest=boot.user_data.digest) for each in arguments)


def test_r7_user_data_may_use_the_arguments_and_arguments_may_use_its_url() -> None:
    spec = "userData: {format: CloudInit, template: t}, kernelArguments: "
    text = "#cloud-config\n# {{ kernel_arguments | join(' ') }} {{ urls.base }}\n"
    boot = decide_boot(*make_boot_fleet("userData: CloudInit", f"{spec}[a=b]"), files={"t": text})
    assert boot.user_data is not None
    assert boot.user_data.files["user-data"] == "#cloud-config\n# a=b http://boot.test\n"
    own = make_boot_fleet("userData: CloudInit", f"{spec}['ds=x;s={{{{ urls.user_data }}}}']")
    boot = decide_boot(*own, files={"t": "#cloud-config\n"})
    assert boot.user_data is not None
    assert boot.kernel_arguments == (f"ds=x;s={boot.user_data.url}",)  # the author has set it


# Invalid commits


def make_skew_fleet(mode: str, minimum: str) -> tuple[str, ...]:
    hold = HOLD.replace("flatcar-0", "flatcar-1")
    spec = f"current: flatcar-2, {hold}, skew: {{mode: {mode}, minimumVersion: '{minimum}'}}"
    stream = document("ImageStream", "flatcar", spec)
    return (*SEED[:4], image("flatcar-2"), stream, profile("web", "stream: flatcar"), policy("web"))


def unknown(what: str) -> tuple[str, ...]:
    spec = f"baseURL: 'http://boot.test', unknownServers: {what}"
    return (fleet(spec), *SEED[1:], profile("disk", "", method="Disk"))


def make_overlapping_fleet(second: str) -> tuple[str, ...]:
    first = maintenance("a", "20T22:00 21T04:00", select="{servers: [web01]}")
    return (*SEED, server("web02", "role: web"), first, second)


def make_policy_fleet(*policies: str) -> tuple[str, ...]:
    return (*SEED[:-1], *policies)


def make_declaring_fleet(number: str) -> tuple[str, ...]:
    annotations = f"annotations: {{gitboot.dev/provisioned: '{number}'}}, labels:"
    declares = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Declared}")
    return (declares, server("web01", "role: web").replace("labels:", annotations), *SEED[2:])


MIRRORS = fleet("baseURL: 'http://boot.test', outputs: [ipxe, mirror]")
IN_REGISTRY = image("flatcar-1").replace("assets:flatcar-1/kernel", f"oci://registry.test/os/linux@sha256:{SHA}")
IN_ARCHIVE = image("flatcar-1").replace("assets:flatcar-1/kernel", "https://vendor.test/a.tar.gz#boot/vmlinuz")
SIGNED_AT_VENDOR, SIGNED_IN_ASSETS = (
    image("flatcar-1", "", "kernel").replace(f"{SHA}}}", f"{SHA}, loaderSignature: '{url}'}}", 1)
    for url in ("https://vendor.test/kernel.sig", "assets:flatcar-1/kernel.sig")
)
BMC = "bmc: {address: 'https://bmc.test', credentials: rack}"
NEXT_YEAR = maintenance("repair", "2027-01-01T00:00 2027-01-02T00:00", boots="broken")


@for_each(
    ("case", "documents", "expected"),
    [
        ("R2: they overlap", make_overlapping_fleet(maintenance("b", "21T03:00 22T00:00")), ["GB2012"]),
        ("R2: they overlap in the past", make_overlapping_fleet(maintenance("b", "- 20T22:00:01")), ["GB2012"]),
        ("R2: they touch", make_overlapping_fleet(maintenance("b", "21T04:00 22T00:00")), []),
        ("R2: one has priority", make_overlapping_fleet(maintenance("b", "21T03:00 22T00:00", "priority: 1")), []),
        ("R2: they share no server", make_overlapping_fleet(maintenance("b", select="{servers: [web02]}")), []),
        ("R3: no required policy is a warning", (OPTIONAL, *SEED[1:-1]), ["GB2010"]),
        ("a policy inherits from itself", make_policy_fleet(policy("a", spec="inherits: a")), ["GB2005"]),
        (
            "policies inherit in a circle",
            make_policy_fleet(policy("a", spec="inherits: b"), policy("b", spec="inherits: a")),
            ["GB2005"] * 2,
        ),
        (
            "a policy outside of the circle inherits from it",
            make_policy_fleet(*(policy(name, spec=f"inherits: {parent}") for name, parent in ("ab", "bc", "cb"))),
            ["GB2005"] * 2,
        ),
        ("no parent to inherit from", make_policy_fleet(document("BootPolicy", "a", "select: All")), ["GB2006"]),
        (
            "a parent has neither",
            make_policy_fleet(document("BootPolicy", "a", "select: None"), policy("b", spec="inherits: a")),
            ["GB2006"],
        ),
        ("R4: the version is high enough", make_skew_fleet("Enforce", "1"), []),
        ("R4: skew checks the image that really boots", make_skew_fleet("Enforce", "1.0.1"), ["GB2013"]),
        ("R4: it is a warning", make_skew_fleet("Warn", "1.0.1"), ["GB2013"]),
        ("R4: no image", make_skew_fleet("None", "1.0.1"), []),
        ("R4: versions are compared by their numbers", make_skew_fleet("Enforce", "0.9.99"), []),
        (
            "R6: the boots of every phase are checked",
            (*SEED, image("iso-1", "", "iso"), profile("broken", "iso-1"), NEXT_YEAR),
            ["GB4001"],
        ),
        (
            "R6: a loader's boot script ends Continuous",
            make_boot_fleet(
                "", "httpBoot: loader", "override: Continuous", artifacts="kernel, loader, uki", method="UefiHttp"
            ),
            [],
        ),
        (
            "R6: no boot script of a uki ends Continuous",
            make_boot_fleet("", UKI, "override: Continuous", artifacts="kernel, loader, uki", method="UefiHttp"),
            ["GB2014"],
        ),
        ("R6: a boot script by PXE ends Continuous", make_boot_fleet("", "", "override: Continuous"), []),
        (
            "node labels need a way into a uki",
            make_boot_fleet("", UKI, "nodeLabels: {a: b}", artifacts="uki", method="UefiHttp"),
            ["GB4003"],
        ),
        ("unknown servers boot their disks", unknown("LocalDisk"), []),
        ("unknown servers are not found", unknown("NotFound"), []),
        ("unknown servers boot an image that writes no disk", unknown("{profile: repair}"), []),
        ("unknown servers never boot an image that writes disks", unknown("{profile: web}"), ["GB2015"]),
        ("unknown servers are found by a loader", unknown("{profile: disk}"), ["GB1044"]),
        ("unknown servers have a profile that is there", unknown("{profile: nobody}"), ["GB2004"]),
        ("a registry has to be mirrored", (*SEED[:2], IN_REGISTRY, *SEED[3:]), ["GB4007"]),
        ("an archive has to be mirrored", (*SEED[:2], IN_ARCHIVE, *SEED[3:]), ["GB4007"]),
        ("an archive is mirrored", (MIRRORS, SEED[1], IN_ARCHIVE, *SEED[3:]), []),
        ("a registry is mirrored", (MIRRORS, SEED[1], IN_REGISTRY, *SEED[3:]), []),
        ("a signature for iPXE is not mirrored", (MIRRORS, SEED[1], SIGNED_AT_VENDOR, *SEED[3:]), ["GB1044"]),
        ("a signature for iPXE below assets", (MIRRORS, SEED[1], SIGNED_IN_ASSETS, *SEED[3:]), []),
        ("a signature for iPXE without a mirror", (*SEED[:2], SIGNED_AT_VENDOR, *SEED[3:]), []),
        ("it cannot be observed to be off", seed(spec="waitFor: PowerOff", often=ONCE), ["GB1044"]),
        ("its BMC can", seed(BMC, "waitFor: PowerOff", often=ONCE), []),
        ("a policy switches on for an installation", seed(spec="power: On", often=ONCE), []),
        ("a policy switches on for a new image", seed(spec="power: On", often=CHANGE), []),
        ("a policy switches on without a boot", seed(spec="power: On", often="Always"), ["GB1044"]),
        ("a policy switches on for the disk", seed(spec="power: On", often="Never"), ["GB1044"]),
        (
            "a policy waits without an installation",
            seed(BMC, "waitFor: PowerOff", often="Always"),
            ["GB1044"],
        ),  # a warning
        ("a policy waits for the disk", seed(BMC, "waitFor: PowerOff", often="Never"), []),
        ("a declared number", make_declaring_fleet("1"), []),
        ("a declared number with zeros", make_declaring_fleet("007"), []),
        ("a declared number of 18 digits", make_declaring_fleet("9" * 18), []),
        ("a declared number is too long", make_declaring_fleet("1" * 5000), ["GB1030"]),
        ("a declared number is negative", make_declaring_fleet("-1"), ["GB1030"]),
        ("a declared number is text", make_declaring_fleet("one"), ["GB1030"]),
    ],
)
def test_an_invalid_commit_has_its_problem_codes(case: str, documents: tuple[str, ...], expected: list[str]) -> None:
    assert list_codes(*documents) == expected, case


def test_a_wait_that_has_no_effect_is_a_warning() -> None:
    (problem,) = problems(*seed(BMC, "waitFor: PowerOff", often="Always"))
    assert (problem.severity, "`waitFor: PowerOff` applies only" in problem.message) == (Severity.WARNING, True)


def test_a_hundred_servers_of_a_file_that_lack_a_policy_are_reported() -> None:
    servers = "---\n".join(server(f"b{number:03}") for number in range(150))
    assert list_codes(*SEED, files={"b.yaml": servers}) == ["GB2010"] * 100 + ["GB1015"]


@for_each(
    ("template", "line", "message"),
    [
        ("#cloud-config\n{{ nothing }}\n", 2, "nothing"),
        ("#cloud-config\n\n{% if %}\n", 3, ""),
    ],
)
def test_a_fault_of_a_template_is_reported_in_the_template_once(template: str, line: int, message: str) -> None:
    user_data = "userData: {format: CloudInit, template: t.j2}"
    others = (server("db01", "role: db"), profile("db", "a-1", user_data))
    policies = (policy("web", "{servers: [web01]}"), policy("db", "{matchLabels: {role: db}}", boots="db"))
    documents = (*make_boot_fleet("userData: CloudInit", user_data)[:-1], *others, *policies)
    (problem,) = problems(*documents, files={"t.j2": template})
    assert (problem.path, problem.line) == ("t.j2", line)
    assert message in problem.message and "db01, web01" in problem.message


def test_a_fault_in_a_templated_argument_is_reported_at_the_argument() -> None:
    documents = (*SEED[:4], profile("web", "flatcar-1", "kernelArguments: [a, '{{ nothing }}']"), *SEED[5:])
    (problem,) = problems(*documents)
    assert (problem.path, problem.line) == ("004.yaml", 4)
    assert documents[4].splitlines()[3][problem.column - 1 :].startswith("'{{ nothing }}'")


def test_a_signature_that_a_mirror_would_lack_is_reported_at_its_field() -> None:
    (problem,) = problems(MIRRORS, SEED[1], SIGNED_AT_VENDOR, *SEED[3:])
    line = SIGNED_AT_VENDOR.splitlines()[problem.line - 1]
    assert (problem.path, line[problem.column - 1 :].startswith("'https://vendor.test/kernel.sig'")) == (
        "002.yaml",
        True,
    )
    assert "the mirror cannot copy the loaderSignature" in problem.message and "BootImage/flatcar-1" in problem.message
    assert problem.hint.endswith("refer to it as `assets:PATH`")


SIGNED_UKI = image("flatcar-1", "", "kernel, uki").replace(
    f'uki", sha256: {SHA}}}', f"uki\", sha256: {SHA}, loaderSignature: 'https://vendor.test/uki.sig'}}"
)
SIGNED_UKI = SIGNED_UKI.replace(
    f'kernel", sha256: {SHA}}}', f'kernel", sha256: {SHA}, loaderSignature: "assets:k.sig"}}'
)


@for_each(
    ("case", "outputs", "loader", "of_image", "of_profile", "is_rejected"),
    [
        ("iPXE", "ipxe, grub", "", SIGNED_AT_VENDOR, "", True),
        ("GRUB for all servers", "grub", "", SIGNED_AT_VENDOR, "", False),
        ("GRUB for this server", "ipxe, grub", "loader: GRUB", SIGNED_AT_VENDOR, "", False),
        ("Secure Boot", "ipxe, grub", "secureBoot: true", SIGNED_AT_VENDOR, "", False),
        ("Secure Boot with a signed iPXE", "ipxe, grub", "secureBoot: true, loader: iPXE", SIGNED_AT_VENDOR, "", True),
        ("the kernel of an image with a uki", "ipxe", "", SIGNED_UKI, "", False),
        ("a template for the uki", "ipxe", "", SIGNED_UKI, "templates: {ipxe: uki.ipxe}", True),
        ("the uki by firmware", "ipxe", "", SIGNED_UKI, "httpBoot: uki", False),
    ],
)
def test_a_mirror_needs_only_signatures_that_ipxe_fetches(
    case: str, outputs: str, loader: str, of_image: str, of_profile: str, is_rejected: bool
) -> None:
    method = "UefiHttp" if "httpBoot" in of_profile else "Pxe"
    found = problems(
        fleet(f"baseURL: 'http://boot.test', outputs: [{outputs}, mirror], provisioning: {{evidence: Reported}}"),
        *(server("web01", "role: web", loader), of_image, profile("web", "flatcar-1", of_profile, method=method)),
        policy("web", often=ONCE),
        files={"uki.ipxe": "kernel {{ image.artifacts.uki.url }}\nboot\n"},
    )
    assert any("cannot copy the loaderSignature" in each.message for each in found) is is_rejected, case
    assert {each.severity for each in found if "cannot copy" not in each.message} <= {Severity.WARNING}, case


@for_each(
    ("spec", "of_server", "of_image", "often", "user_data", "expected"),
    [
        ("", "", SIGNED_AT_VENDOR, ONCE, "", ["GB1044"]),
        (", provisioning: {evidence: Fetched}", "", SIGNED_IN_ASSETS, CHANGE, "", ["GB1044"]),
        (", provisioning: {evidence: Reported}", "", SIGNED_AT_VENDOR, ONCE, "", []),
        (", provisioning: {evidence: Declared}", "", SIGNED_AT_VENDOR, ONCE, "", []),
        (", outputs: [grub]", "", SIGNED_AT_VENDOR, ONCE, "", []),
        ("", "loader: GRUB", SIGNED_AT_VENDOR, ONCE, "", []),
        ("", "loader: Shim", SIGNED_AT_VENDOR, ONCE, "", []),
        ("", "secureBoot: true", SIGNED_AT_VENDOR, ONCE, "", []),
        ("", "secureBoot: true, loader: iPXE", SIGNED_AT_VENDOR, ONCE, "", ["GB1044"]),
        ("", "", SIGNED_AT_VENDOR, "Always", "", []),
        ("", "", SIGNED_AT_VENDOR, ONCE, "userData: {format: CloudInit, template: t.j2}", []),
        ("", "", SEED[2], ONCE, "", []),
    ],
)
def test_a_boot_that_ipxe_may_reject_needs_a_report_or_user_data(
    spec: str, of_server: str, of_image: str, often: str, user_data: str, expected: list[str]
) -> None:
    """Without user data, the fetch of the boot script would count as the end of the installation."""
    settings = fleet(f"baseURL: 'http://boot.test'{spec}")
    if user_data:
        of_image = of_image.replace("version:", "userData: CloudInit, version:", 1)
        user_data += ", kernelArguments: ['ds=nocloud;s={{ urls.user_data }}']"
    documents = (
        settings,
        server("web01", "role: web", of_server),
        of_image,
        profile("web", "flatcar-1", user_data),
        policy("web", often=often),
    )
    found = problems(*documents, files={"t.j2": "#cloud-config\n{}\n"})
    found = tuple(each for each in found if each.code is not Code.LOADER_SIGNATURE)  # GRUB verifies nothing
    assert [str(each.code) for each in found] == expected
    assert all(each.severity is Severity.WARNING and "iPXE then rejects a file" in each.message for each in found)


# Decisions


@for_each(
    ("often", "method", "policy_spec", "expected"),
    [
        (ONCE, "Pxe", "", ("Once", "Pxe", None, "provision/1", False)),
        (CHANGE, "Pxe", "", ("Once", "Pxe", None, "provision/1/a-1", False)),
        ("Always", "Pxe", "", ("Continuous", "Pxe", None, "policy/web/always", False)),
        ("Always", "Pxe", "override: Once", ("Once", "Pxe", None, "policy/web/always", True)),
        ("Always", "Pxe", "override: None", None),
        (ONCE, UKI, "", ("Once", "UefiHttp", "http://boot.test/assets/a-1/uki", "provision/1", False)),
        ("Always", UKI, "", ("Once", "UefiHttp", "http://boot.test/assets/a-1/uki", "policy/web/always", True)),
        (
            *("Always", "httpBoot: loader", ""),
            ("Continuous", "UefiHttp", "http://boot.test/assets/a-1/loader", "policy/web/always", False),
        ),
        ("Never", "Pxe", "", None),
        ("Never", "Pxe", "diskBoot: Hdd", ("Continuous", "Hdd", None, "disk", False)),
    ],
)
def test_a_plan_has_the_override_that_it_needs(
    often: str, method: str, policy_spec: str, expected: tuple[object, ...] | None
) -> None:
    http = method.startswith("httpBoot")
    documents = (
        fleet(),
        server("web01", spec="provision: 1"),
        image("a-1", "", "kernel, loader, uki"),
        profile("web", "a-1", method if http else "", method="UefiHttp" if http else method),
        policy("web", "All", policy_spec, often=often),
    )
    found = require_value(planned(NOON, *documents, record=PENDING))
    wanted = found.override
    shown = (wanted.enabled, wanted.target, wanted.http_boot_uri, wanted.reason, wanted.set_again) if wanted else None
    assert shown == expected


@for_each(
    ("windows", "instant", "expected"),
    [
        ((WINDOW,), "20T12:00", "20T22:00"),
        ((WINDOW,), "20T22:00", "21T04:00"),
        ((WINDOW,), "21T04:00", None),
        # A time at which nothing changes is no transition.
        ((WINDOW, maintenance("over", "20T23:00 21T01:00", "priority: -1")), "20T22:00", "21T04:00"),
    ],
)
def test_r10_a_plan_has_its_next_transition(windows: tuple[str, ...], instant: str, expected: str | None) -> None:
    assert find_next_transition(decision("web01", *SEED, *windows), at(instant), None) == (
        at(expected) if expected else None
    )


def test_r8_a_comment_a_moved_line_and_a_renamed_file_change_no_digest() -> None:
    before = decision("web01", *SEED, WINDOW)
    after = decision("web01", *(f"\n# a comment\n{text}" for text in reversed((*SEED, WINDOW))))
    assert (before.digest, make_plan(before, NOON, None)) == (after.digest, make_plan(after, NOON, None))


def test_r8_a_maintenance_of_next_week_changes_the_decision_but_no_plan() -> None:
    without, having = decision("web01", *SEED), decision("web01", *SEED, WINDOW)
    assert without.digest != having.digest
    before, after = make_plan(without, NOON, None), make_plan(having, NOON, None)
    assert before is not None and after is not None and before.digest == after.digest


@for_each("url", [f"oci://registry.test/os/linux@sha256:{SHA}", "https://vendor.test/a/vmlinuz?b=c"])
def test_a_mirrored_artifact_is_fetched_below_its_digest_for_any_name(url: str) -> None:
    boot = decide_boot(MIRRORS, SEED[1], image("flatcar-1").replace("assets:flatcar-1/kernel", url), *SEED[3:])
    assert {file.url: file.source for file in boot.files.all()} == {
        f"http://boot.test/o/{SHA}/kernel": url,
        "http://boot.test/assets/flatcar-1/initrd": None,
    }


def test_the_wait_condition_of_a_policy_is_in_the_decision() -> None:
    found = decision("web01", *seed(BMC, "waitFor: PowerOff", often=ONCE)).policy
    assert found is not None and str(found.wait_for) == "PowerOff" and to_json_value(found)["waitFor"] == "PowerOff"


@for_each("power", ["On", "Restart", "GracefulRestart"])
@for_each("per", [None, "Site", "rack"])
def test_the_power_of_a_maintenance_is_in_the_decision(power: str, per: str | None) -> None:
    more = f", maxUnavailablePer: {per}" if per else ""
    window = maintenance("repair", spec=f"power: {power}, maxUnavailable: 10%{more}")
    (found,) = decision("web01", *SEED, window).maintenances
    assert (found.power, found.max_unavailable, found.max_unavailable_per) == (power, "10%", per)
    assert ("maxUnavailablePer" in to_json_value(found)) is (per is not None)


SELECTED = {
    "{matchExpressions: [{key: role, operator: In, values: [db, web]}]}": True,
    "{matchExpressions: [{key: role, operator: In, values: [db]}]}": False,
    "{matchExpressions: [{key: role, operator: NotIn, values: [db]}]}": True,
    "{matchExpressions: [{key: role, operator: NotIn, values: [web]}]}": False,
    "{matchExpressions: [{key: gpu, operator: NotIn, values: [a]}]}": True,  # as Kubernetes: without it is NotIn
    "{matchExpressions: [{key: role, operator: Exists}]}": True,
    "{matchExpressions: [{key: gpu, operator: Exists}]}": False,
    "{matchExpressions: [{key: gpu, operator: DoesNotExist}]}": True,
    "{matchExpressions: [{key: role, operator: DoesNotExist}]}": False,
    "{matchLabels: {role: web}, matchExpressions: [{key: gpu, operator: Exists}]}": False,
    "{matchLabels: {role: web, site: fra1}}": False,
    "{servers: [web01]}": True,
    "All": True,
    "None": False,
}


@for_each(("select", "expected"), SELECTED.items())
def test_a_selector_selects_the_matching_servers(select: str, expected: bool) -> None:
    assert (decision("web01", OPTIONAL, *SEED[1:-1], policy("web", select)).policy is not None) == expected


# Certificates of authorities for BMCs


def with_bmc(name: str, tls: str) -> str:
    return server(name, "role: web", f"bmc: {{address: 'https://{name}.test', credentials: a, tls: {{{tls}}}}}")


@for_each(
    ("case", "tls", "ends", "since"),
    [
        ("it expires", "ca: ca.pem", ["20T12:00"], "20T12:00"),
        ("a new one is beside it", "ca: ca.pem", ["20T12:00", "21T12:00"], "21T12:00"),
        ("at any place", "ca: ca.pem", ["21T12:00", "20T12:00"], "21T12:00"),
        ("no signature is verified", "ca: ca.pem, verify: false", ["20T12:00"], None),
        ("it is no certificate", "ca: ca.pem", [], None),
    ],
)
def test_finding_r15_an_expired_certificate_authority_for_bmcs_is_a_warning(
    case: str, tls: str, ends: list[str], since: str | None
) -> None:
    pem = "".join(make_authority(at(end)) for end in ends)
    found = decided(*SEED, *(with_bmc(f"db{number}", tls) for number in range(3)), files={"ca.pem": pem})
    assert found.warnings == ()
    if since is None:
        assert found.dated == (), case
        return
    assert found.find_problems(at(since) - timedelta(seconds=1)) == ()
    (problem,) = found.find_problems(at(since))
    assert (problem.code, problem.path, problem.line) == ("GB2027", "ca.pem", 1)
    assert problem.message == (
        f"the CA certificate for BMCs expired at {at(since):%Y-%m-%dT%H:%M:%SZ}, so gitboot rejects "
        "certificates signed by this CA (db0, db1 and 1 more)"
    )


def test_a_malformed_certificate_beside_an_expired_one_is_a_warning_at_any_time() -> None:
    malformed = "-----BEGIN CERTIFICATE-----\nMAAB\n-----END CERTIFICATE-----\n"
    files = {"ca.pem": make_authority(at("20T12:00")) + malformed}
    found = decided(*SEED, with_bmc("db0", "ca: ca.pem"), files=files)
    assert [(each.code, each.path) for each in found.warnings] == [("GB2027", "ca.pem")]
    assert "contains a malformed certificate" in found.warnings[0].message
    assert found.dated == ()


def test_finding_r15_a_new_certificate_in_the_same_file_ends_the_warning() -> None:
    trees = [
        snapshot(*SEED, with_bmc("db0", "ca: ca.pem"), files={"ca.pem": make_authority(at(end))}, revision=end)
        for end in ("20T12:00", "21T12:00")
    ]
    evaluator = Evaluator(lambda revision, previous: next(each for each in trees if each.revision == revision))
    old, new = (evaluator.evaluate(trees[i].revision, trees[0].revision if i else None).head for i in range(2))
    assert len(old.decided.decisions.find_problems(at("21T00:00"))) == 1
    assert new.decided.decisions.find_problems(at("21T00:00")) == ()
    assert new.decided.decisions.dated == decide_all(load(trees[1])).decisions.dated


def test_a_server_name_that_is_too_long_for_its_files_is_rejected_in_a_new_commit_only() -> None:
    assert problems(*SEED, server("a" * 241, "role: web")) == ()
    documents = (*SEED, server("a" * 242, "role: web"))
    with pytest.raises(InvalidRepository, match="GB1025: the name of this server has 242 characters") as caught:
        decided(*documents)
    [problem] = caught.value.problems
    assert (problem.path, problem.line, problem.hint) == ("007.yaml", 3, "use at most 241 characters")
    assert len(decide_all(repository(*documents)).decisions.servers) == 2, "an accepted commit stays accepted"
